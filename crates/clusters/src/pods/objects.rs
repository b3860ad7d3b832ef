//! The objects by which a member with real pods finds its name server and its metrics: Services without selectors, whose servers run
//! beside the kubelet instead of in pods.

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{error::Error, nodes::START_DEADLINE, wait::until};

/// Where pods ask for names.
pub(super) const DNS_ADDRESS: &str = "10.96.0.10";

/// Creates the objects; the servers' address is `node`, and `authority` signed the certificate of the metrics server.
pub(crate) async fn create(client: &Client, node: &str, authority: &str) -> Result<(), Error> {
    apply(client, &all(node, authority)).await
}

/// Creates `objects`, one after the other. A young cluster may refuse the first attempts.
pub(crate) async fn apply(client: &Client, objects: &[Value]) -> Result<(), Error> {
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_string();
        let kind = object["kind"].as_str().unwrap_or_default().to_string();
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default().split_once('/') {
            Some((group, version)) => (group.to_string(), version.to_string()),
            None => (String::new(), "v1".to_string()),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind { group, version, kind: kind.clone() });
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        until(&format!("{kind} {name} to be created"), START_DEADLINE, async || {
            let params = PatchParams::apply("clusters").force();
            api.patch(&name, &params, &Patch::Apply(object))
                .await
                .map(|_| ())
                .map_err(|error| error.to_string())
        })
        .await?;
    }
    Ok(())
}

fn all(node: &str, authority: &str) -> Vec<Value> {
    let dns = [("dns", "UDP", 53, 53), ("dns-tcp", "TCP", 53, 53)];
    let mut objects = service("kube-dns", Some(DNS_ADDRESS), node, &dns);
    objects.extend(service("metrics-server", None, node, &[("https", "TCP", 443, 4443)]));
    objects.push(json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": BASE64_STANDARD.encode(authority),
            "service": {"name": "metrics-server", "namespace": "kube-system"},
        },
    }));
    objects
}

/// Returns a Service and the EndpointSlice that leads it to `node`. A port is a name, a protocol, the Service's number and the server's.
fn service(name: &str, address: Option<&str>, node: &str, ports: &[(&str, &str, u16, u16)]) -> Vec<Value> {
    let outer: Vec<Value> = ports
        .iter()
        .map(|(name, protocol, port, target)| {
            json!({"name": name, "protocol": protocol, "port": port, "targetPort": target})
        })
        .collect();
    let inner: Vec<Value> = ports
        .iter()
        .map(|(name, protocol, _, target)| json!({"name": name, "protocol": protocol, "port": target}))
        .collect();
    let mut spec = json!({"ports": outer});
    if let Some(address) = address {
        spec["clusterIP"] = json!(address);
    }
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": spec,
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [node], "conditions": {"ready": true}}],
            "ports": inner,
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_server_has_the_address_that_kubelets_tell_their_pods() {
        let objects = all("10.60.0.10", "authority");
        assert_eq!(objects[0]["spec"]["clusterIP"], DNS_ADDRESS);
        assert_eq!(objects[1]["endpoints"][0]["addresses"][0], "10.60.0.10");
        assert_eq!(objects[3]["ports"][0]["port"], 4443);
    }
}
