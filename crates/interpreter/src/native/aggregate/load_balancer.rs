//! Unites the addresses under which the members expose a Service or an Ingress.

use std::collections::{BTreeMap, BTreeSet};

use api::work::AggregatedStatusItem;
use serde_json::{Map, Value, json};

use super::{replace_status, reports};
use crate::Result;
use crate::fields::{count, list, string, text};
use crate::native::kinds::Kind;

/// The order of entries is the order of this key: named hosts before bare addresses, a set mode before none.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    unnamed: bool,
    hostname: String,
    ip: String,
    without_mode: bool,
    mode: String,
}

/// Ports are sorted by number, protocol and error; no error comes first.
type Port = (i64, String, Option<String>);

pub(super) fn aggregate(kind: Kind, object: Value, items: &[AggregatedStatusItem]) -> Result<Value> {
    if kind == Kind::Service && text(&object, &["spec", "type"])? != "LoadBalancer" {
        return Ok(object);
    }
    let mut addresses: BTreeMap<Address, BTreeSet<Port>> = BTreeMap::new();
    for (_, report) in reports(items) {
        for ingress in list(report, &["loadBalancer", "ingress"])? {
            let hostname = text(ingress, &["hostname"])?.to_owned();
            let mode = match kind {
                Kind::Service => string(ingress, &["ipMode"])?,
                _ => None,
            };
            let address = Address {
                unnamed: hostname.is_empty(),
                hostname,
                ip: text(ingress, &["ip"])?.to_owned(),
                without_mode: mode.is_none(),
                mode: mode.unwrap_or("").to_owned(),
            };
            let ports = addresses.entry(address).or_default();
            for port in list(ingress, &["ports"])? {
                ports.insert((
                    count(port, &["port"])?,
                    text(port, &["protocol"])?.to_owned(),
                    string(port, &["error"])?.map(str::to_owned),
                ));
            }
        }
    }

    let ingress: Vec<Value> = addresses.into_iter().map(|(address, ports)| entry(address, ports)).collect();
    let balancer = if ingress.is_empty() { json!({}) } else { json!({ "ingress": ingress }) };
    replace_status(object, Map::from_iter([("loadBalancer".to_owned(), balancer)]))
}

fn entry(address: Address, ports: BTreeSet<Port>) -> Value {
    let mut entry = Map::new();
    for (field, value) in [("hostname", address.hostname), ("ip", address.ip), ("ipMode", address.mode)] {
        if !value.is_empty() {
            entry.insert(field.into(), value.into());
        }
    }
    let ports: Vec<Value> = ports
        .into_iter()
        .map(|(port, protocol, error)| {
            let mut status = json!({"port": port, "protocol": protocol});
            if let Some(error) = error {
                status["error"] = error.into();
            }
            status
        })
        .collect();
    if !ports.is_empty() {
        entry.insert("ports".into(), Value::Array(ports));
    }
    Value::Object(entry)
}
