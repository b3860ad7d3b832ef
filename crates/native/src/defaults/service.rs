//! Defaults of Services and of the other networking kinds.
//!
//! Addresses, families and node ports are allocated, not defaulted: see `prepare::service`.

use serde_json::{Value, json};

use super::tree::{Object, below, each, ensure, has_items, put, put_nonzero, text};

pub(super) fn service(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put_nonzero(spec, "sessionAffinity", "None");
    session_affinity(spec);
    put_nonzero(spec, "type", "ClusterIP");
    each(spec, "ports", |port| {
        put_nonzero(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            put_nonzero(port, "targetPort", number);
        }
    });
    let kind = text(spec, "type").to_owned();
    let reachable_from_outside = matches!(kind.as_str(), "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && has_items(spec, "externalIPs"));
    if reachable_from_outside {
        put_nonzero(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        put(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        put(spec, "allocateLoadBalancerNodePorts", true);
        if let Some(balancer) = below(root, "status").and_then(|status| below(status, "loadBalancer")) {
            each(balancer, "ingress", |ingress| {
                if !text(ingress, "ip").is_empty() {
                    put(ingress, "ipMode", "VIP");
                }
            });
        }
    }
}

/// Three hours is the kube-proxy default for client affinity.
fn session_affinity(spec: &mut Object) {
    match text(spec, "sessionAffinity") {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => {
            let timeout = spec.get("sessionAffinityConfig").and_then(|config| {
                config.get("clientIP")?.get("timeoutSeconds").filter(|seconds| !seconds.is_null())
            });
            if timeout.is_none() {
                let config = json!({"clientIP": {"timeoutSeconds": 10800}});
                spec.insert("sessionAffinityConfig".to_owned(), config);
            }
        }
        _ => {}
    }
}

pub(super) fn endpoints(root: &mut Object) {
    each(root, "subsets", |subset| {
        each(subset, "ports", |port| put_nonzero(port, "protocol", "TCP"));
    });
}

pub(super) fn endpoint_slice(root: &mut Object) {
    each(root, "ports", |port| {
        put(port, "name", "");
        put(port, "protocol", "TCP");
    });
    each(root, "endpoints", |endpoint| put(endpoint, "conditions", Object::new()));
}

pub(super) fn ingress_class(root: &mut Object) {
    if let Some(parameters) = below(root, "spec").and_then(|spec| below(spec, "parameters")) {
        put(parameters, "scope", "Cluster");
    }
}

pub(super) fn network_policy(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "podSelector", Object::new());
    if !has_items(spec, "policyTypes") {
        let mut types = vec![Value::from("Ingress")];
        if has_items(spec, "egress") {
            types.push(Value::from("Egress"));
        }
        spec.insert("policyTypes".to_owned(), Value::Array(types));
    }
    for direction in ["ingress", "egress"] {
        each(spec, direction, |rule| {
            each(rule, "ports", |port| put(port, "protocol", "TCP"));
        });
    }
}
