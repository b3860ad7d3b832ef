//! Rows of Services, endpoints, ingresses and network policies.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Row, labels, or, selector, shortened};
use crate::validation::node::Node;

/// Addresses and hosts beyond this many are only counted.
const MAX_SHOWN: usize = 3;

pub(super) fn service(row: Row<'_>) -> Vec<Value> {
    let ports: Vec<String> = row
        .spec("ports")
        .items()
        .map(|port| {
            let (number, protocol) = (port.at("port").int(), port.at("protocol").text());
            match port.at("nodePort").int() {
                node_port @ 1.. => format!("{number}:{node_port}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    let cluster_ip = row.spec("clusterIPs").items().next().map_or("<none>", Node::text);
    vec![
        row.name(),
        row.spec("type").text().into(),
        cluster_ip.into(),
        external_ip(row).into(),
        or(&ports.join(","), "<none>").into(),
        row.age(),
        labels(row.spec("selector")),
    ]
}

fn external_ip(row: Row<'_>) -> String {
    let external = row.spec("externalIPs").texts().join(",");
    match row.spec("type").text() {
        "ClusterIP" | "NodePort" => or(&external, "<none>").to_owned(),
        "LoadBalancer" => {
            let balancer = load_balancer(row);
            match (balancer.is_empty(), external.is_empty()) {
                (true, true) => "<pending>".to_owned(),
                (false, false) => format!("{balancer},{external}"),
                _ => balancer + &external,
            }
        }
        "ExternalName" => row.spec("externalName").text().to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Addresses (or host names) of the load balancer, sorted, once each.
fn load_balancer(row: Row<'_>) -> String {
    let entries = row.status("loadBalancer").at("ingress");
    let shown: BTreeSet<&str> = entries
        .items()
        .map(|entry| or(entry.at("ip").text(), entry.at("hostname").text()))
        .filter(|address| !address.is_empty())
        .collect();
    shown.into_iter().collect::<Vec<_>>().join(",")
}

pub(super) fn endpoints(row: Row<'_>) -> Vec<Value> {
    let subsets = row.root.at("subsets");
    let mut all = Vec::new();
    for subset in subsets.items() {
        let addresses = || subset.at("addresses").items().map(|address| address.at("ip").text());
        if subset.at("ports").is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in subset.at("ports").items() {
            let port = port.at("port").int();
            all.extend(
                addresses().map(|ip| {
                    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
                }),
            );
        }
    }
    let text = if subsets.is_empty() {
        "<none>".to_owned()
    } else {
        shortened(&all[..all.len().min(MAX_SHOWN)], all.len(), MAX_SHOWN, ",")
    };
    vec![row.name(), text.into(), row.age()]
}

pub(super) fn endpoint_slice(row: Row<'_>) -> Vec<Value> {
    let ports: Vec<String> = row
        .root
        .at("ports")
        .items()
        .map(|port| match (port.at("port").opt_int(), port.at("name").opt_text()) {
            (Some(number), _) => number.to_string(),
            (None, Some(name)) => name.to_owned(),
            (None, None) => "*".to_owned(),
        })
        .collect();
    let addresses: Vec<String> = row
        .root
        .at("endpoints")
        .items()
        .flat_map(|endpoint| endpoint.at("addresses").texts())
        .map(str::to_owned)
        .collect();
    let list = |all: &[String]| -> Value {
        or(&shortened(&all[..all.len().min(MAX_SHOWN)], all.len(), MAX_SHOWN, ","), "<unset>").into()
    };
    vec![row.name(), row.root.at("addressType").text().into(), list(&ports), list(&addresses), row.age()]
}

pub(super) fn ingress(row: Row<'_>) -> Vec<Value> {
    let class = row.spec("ingressClassName").opt_text().unwrap_or("<none>");
    let ports = if row.spec("tls").is_empty() { "80" } else { "80, 443" };
    vec![row.name(), class.into(), hosts(row).into(), load_balancer(row).into(), ports.into(), row.age()]
}

/// Upstream counts rules, not hosts, for what is left out, and only once three hosts are shown.
fn hosts(row: Row<'_>) -> String {
    let rules = row.spec("rules");
    let mut shown: Vec<String> = Vec::new();
    let mut more = false;
    for rule in rules.items() {
        more |= shown.len() == MAX_SHOWN;
        let host = rule.at("host").text();
        if !more && !host.is_empty() {
            shown.push(host.to_owned());
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - MAX_SHOWN),
        (false, false) => shown.join(","),
    }
}

pub(super) fn ingress_class(row: Row<'_>) -> Vec<Value> {
    let is_default =
        row.meta("annotations").at("ingressclass.kubernetes.io/is-default-class").text() == "true";
    let name = row.meta("name").text();
    let name = if is_default { format!("{name} (default)") } else { name.to_owned() };
    let parameters = row.spec("parameters");
    let shown = if parameters.exists() {
        let kind = parameters.at("kind").text();
        let kind = match parameters.at("apiGroup").opt_text() {
            Some(group) => format!("{kind}.{group}"),
            None => kind.to_owned(),
        };
        format!("{kind}/{}", parameters.at("name").text())
    } else {
        "<none>".to_owned()
    };
    vec![name.into(), row.spec("controller").text().into(), shown.into(), row.age()]
}

pub(super) fn network_policy(row: Row<'_>) -> Vec<Value> {
    vec![row.name(), selector(row.spec("podSelector")), row.age()]
}

pub(super) fn service_cidr(row: Row<'_>) -> Vec<Value> {
    vec![row.name(), row.spec("cidrs").texts().join(",").into(), row.age()]
}

/// Upstream renders an age here that has no column.
pub(super) fn ip_address(row: Row<'_>) -> Vec<Value> {
    let parent = row.spec("parentRef");
    let shown = if parent.exists() {
        let (group, resource) = (parent.at("group").text(), parent.at("resource").text());
        let mut shown = if group.is_empty() {
            resource.to_lowercase()
        } else {
            format!("{resource}.{group}").to_lowercase()
        };
        for part in [parent.at("namespace").text(), parent.at("name").text()] {
            if !part.is_empty() {
                shown = format!("{shown}/{part}");
            }
        }
        shown
    } else {
        "<none>".to_owned()
    };
    vec![row.name(), shown.into(), row.age()]
}
