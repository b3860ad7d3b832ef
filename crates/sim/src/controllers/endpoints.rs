//! Endpoints and EndpointSlices of Services: the addresses of the pods they select.
//!
//! A Service has slices of its own for each of its families; Endpoints hold its first family only. Both as upstream.

use std::net::IpAddr;

use apimachinery::selector::LabelSelector;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::objects::{
    Object, controlled_by, flag, is_finished, is_ready, label, list, map_at, number, stamp, text,
};
use crate::plan::Step;
use crate::view::View;

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const SLICES: &str = "endpointslice-controller.k8s.io";
/// Endpoints per slice, as upstream.
const PER_SLICE: usize = 100;

pub(crate) fn decide(view: &View<'_>, service: &Value) -> Vec<Step> {
    let Some(selector) =
        service.pointer("/spec/selector").and_then(Value::as_object).filter(|all| !all.is_empty())
    else {
        return Vec::new();
    };
    if text(service, "/spec/type") == "ExternalName" || service.is_deleting() {
        return Vec::new();
    }
    let selector = LabelSelector::from_labels(
        selector.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or(""))),
    );
    let mut pods = view.objects.selected(Kind::Pod, service.namespace(), &selector);
    pods.retain(|pod| !is_finished(pod) && !text(pod, "/status/podIP").is_empty());
    pods.sort_by(|a, b| a.name().cmp(b.name()));
    let mut steps = Vec::new();
    steps.extend(endpoints(view, service, &pods));
    steps.extend(slices(view, service, &pods));
    steps
}

/// Returns the steps that remove the Endpoints of a deleted Service.
pub(crate) fn abandoned(view: &View<'_>, space: &str, service: &str) -> Vec<Step> {
    let left = view.get(Kind::Endpoints, space, service);
    left.filter(|left| label(left, "endpoints.kubernetes.io/managed-by") == "endpoint-controller")
        .map(|left| Step::delete(Kind::Endpoints, &left))
        .into_iter()
        .collect()
}

/// Returns the families of a Service's endpoints, as `addressType` names them. One that came without any has the usual one.
fn families(service: &Value) -> Vec<&str> {
    let named: Vec<&str> = list(service, "/spec/ipFamilies").iter().filter_map(Value::as_str).collect();
    if named.is_empty() { vec!["IPv4"] } else { named }
}

/// Returns the address of a pod in a family, if it has one.
fn address_in<'a>(pod: &'a Value, family: &str) -> Option<&'a str> {
    let mut all =
        list(pod, "/status/podIPs").iter().map(|one| text(one, "/ip")).chain([text(pod, "/status/podIP")]);
    all.find(|address| match address.parse() {
        Ok(IpAddr::V4(_)) => family == "IPv4",
        Ok(IpAddr::V6(_)) => family == "IPv6",
        Err(_) => false,
    })
}

fn counts_as_ready(service: &Value, pod: &Value) -> bool {
    flag(service, "/spec/publishNotReadyAddresses") || is_ready(pod)
}

/// Returns the ports of a Service on a pod: name, number, protocol; ports that the pod does not have are left out.
fn ports(service: &Value, pod: &Value) -> Vec<Value> {
    list(service, "/spec/ports")
        .iter()
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            let number = match &port["targetPort"] {
                Value::Number(number) => number.as_i64()?,
                Value::String(wanted) => list(pod, "/spec/containers")
                    .iter()
                    .flat_map(|container| list(container, "/ports"))
                    .find(|own| {
                        own["name"] == *wanted && own["protocol"].as_str().unwrap_or("TCP") == protocol
                    })
                    .and_then(|own| number(own, "/containerPort"))?,
                _ => port["port"].as_i64()?,
            };
            let mut made =
                json!({"name": port["name"].as_str().unwrap_or(""), "port": number, "protocol": protocol});
            if let Some(application) = port.get("appProtocol").filter(|own| own.is_string()) {
                made["appProtocol"] = application.clone();
            }
            Some(made)
        })
        .collect()
}

fn target(pod: &Value) -> Value {
    json!({"kind": "Pod", "namespace": pod.namespace(), "name": pod.name(), "uid": pod.uid()})
}

fn hostname<'a>(service: &Value, pod: &'a Value) -> Option<&'a str> {
    let own = text(pod, "/spec/hostname");
    (!own.is_empty() && text(pod, "/spec/subdomain") == service.name()).then_some(own)
}

fn labels(service: &Value) -> Map<String, Value> {
    let mut labels = service.labels().as_object().cloned().unwrap_or_default();
    if text(service, "/spec/clusterIP") == "None" {
        labels.insert("service.kubernetes.io/headless".to_owned(), json!(""));
    }
    labels
}

fn endpoints(view: &View<'_>, service: &Value, pods: &[Value]) -> Option<Step> {
    // One subset per set of ports; pods of one Service nearly always agree on them.
    let mut subsets: Vec<(Vec<Value>, Vec<Value>, Vec<Value>)> = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
        let mut ports = ports(service, pod);
        for port in &mut ports {
            if port["name"] == "" {
                port.as_object_mut().expect("a port is an object").remove("name");
            }
        }
        if ports.is_empty() && !list(service, "/spec/ports").is_empty() {
            continue;
        }
        let Some(own) = families(service).first().and_then(|family| address_in(pod, family)) else {
            continue;
        };
        let mut address = json!({"ip": own, "nodeName": text(pod, "/spec/nodeName"),
            "targetRef": target(pod)});
        if let Some(own) = hostname(service, pod) {
            address["hostname"] = json!(own);
        }
        let at = subsets.iter().position(|(own, _, _)| *own == ports).unwrap_or_else(|| {
            subsets.push((ports, Vec::new(), Vec::new()));
            subsets.len() - 1
        });
        let subset = &mut subsets[at];
        if counts_as_ready(service, pod) { subset.1.push(address) } else { subset.2.push(address) }
    }
    let subsets: Vec<Value> = subsets
        .into_iter()
        .map(|(ports, ready, unready)| {
            let mut subset = json!({});
            for (field, mut values) in
                [("addresses", ready), ("notReadyAddresses", unready), ("ports", ports)]
            {
                if field != "ports" {
                    values.sort_by_key(|value| ip(text(value, "/ip")));
                }
                if !values.is_empty() {
                    subset[field] = values.into();
                }
            }
            subset
        })
        .collect();
    let mut labels = labels(service);
    labels.insert("endpoints.kubernetes.io/managed-by".to_owned(), json!("endpoint-controller"));
    let old = view.get(Kind::Endpoints, service.namespace(), service.name());
    if let Some(old) = &old
        && list(old, "/subsets") == subsets
        && old.labels().as_object() == Some(&labels)
    {
        return None;
    }
    let mut new = old.clone().unwrap_or_else(|| {
        json!({"apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": service.name(), "namespace": service.namespace()}})
    });
    new["metadata"]["labels"] = labels.into();
    map_at(&mut new["metadata"], "annotations").insert(TRIGGER.to_owned(), json!(stamp(view.now)));
    let fields = new.as_object_mut().expect("an object");
    if subsets.is_empty() {
        fields.remove("subsets");
    } else {
        fields.insert("subsets".to_owned(), subsets.into());
    }
    Some(match old {
        Some(_) => Step::Update { kind: Kind::Endpoints, object: new },
        None => Step::Create { kind: Kind::Endpoints, object: new, tell: None },
    })
}

fn ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

fn slices(view: &View<'_>, service: &Value, pods: &[Value]) -> Vec<Step> {
    let families = families(service);
    let mut old = view.objects.owned(Kind::EndpointSlice, service.namespace(), service.uid());
    old.retain(|slice| {
        label(slice, "endpointslice.kubernetes.io/managed-by") == SLICES && !slice.is_deleting()
    });
    old.sort_by(|a, b| a.name().cmp(b.name()));
    let mut steps = Vec::new();
    for family in &families {
        let (own, others) = old.into_iter().partition(|slice| slice["addressType"] == *family);
        old = others;
        steps.extend(slices_of(view, service, pods, family, own));
    }
    // The Service has lost their family.
    steps.extend(old.iter().map(|slice| Step::delete(Kind::EndpointSlice, slice)));
    steps
}

/// Decides about the slices of one family; `old` are those it has.
fn slices_of(view: &View<'_>, service: &Value, pods: &[Value], family: &str, old: Vec<Value>) -> Vec<Step> {
    let mut groups: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for pod in pods {
        let Some(address) = address_in(pod, family) else { continue };
        let ports = ports(service, pod);
        if ports.is_empty() && !list(service, "/spec/ports").is_empty() {
            continue;
        }
        let serving = is_ready(pod);
        let terminating = pod.is_deleting();
        let ready =
            counts_as_ready(service, pod) && !terminating || flag(service, "/spec/publishNotReadyAddresses");
        let mut endpoint = json!({
            "addresses": [address],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "nodeName": text(pod, "/spec/nodeName"),
            "targetRef": target(pod),
        });
        let zone = view
            .get(Kind::Node, "", text(pod, "/spec/nodeName"))
            .map(|node| label(&node, "topology.kubernetes.io/zone").to_owned());
        if let Some(zone) = zone.filter(|zone| !zone.is_empty()) {
            endpoint["zone"] = json!(zone);
        }
        if let Some(own) = hostname(service, pod) {
            endpoint["hostname"] = json!(own);
        }
        match groups.iter_mut().find(|(own, endpoints)| *own == ports && endpoints.len() < PER_SLICE) {
            Some((_, endpoints)) => endpoints.push(endpoint),
            None => groups.push((ports, vec![endpoint])),
        }
    }
    if groups.is_empty() {
        // A Service without pods has one empty slice.
        groups.push((Vec::new(), Vec::new()));
    }
    let mut labels = labels(service);
    labels.insert("endpointslice.kubernetes.io/managed-by".to_owned(), json!(SLICES));
    labels.insert("kubernetes.io/service-name".to_owned(), json!(service.name()));
    let mut steps = Vec::new();
    let mut left = old.into_iter();
    for (ports, endpoints) in groups {
        let present = left.next();
        let mut new = present.clone().unwrap_or_else(|| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {"generateName": format!("{}-", service.name()), "namespace": service.namespace(),
                    "ownerReferences": [controlled_by(service)]}})
        });
        let or_null = |values: Vec<Value>| if values.is_empty() { Value::Null } else { values.into() };
        new["metadata"]["labels"] = labels.clone().into();
        new["endpoints"] = or_null(endpoints);
        new["ports"] = or_null(ports);
        match present {
            Some(present) if present == new => {}
            Some(_) => {
                map_at(&mut new["metadata"], "annotations")
                    .insert(TRIGGER.to_owned(), json!(stamp(view.now)));
                steps.push(Step::Update { kind: Kind::EndpointSlice, object: new });
            }
            None => {
                map_at(&mut new["metadata"], "annotations")
                    .insert(TRIGGER.to_owned(), json!(stamp(view.now)));
                steps.push(Step::Create { kind: Kind::EndpointSlice, object: new, tell: None });
            }
        }
    }
    steps.extend(left.map(|slice| Step::delete(Kind::EndpointSlice, &slice)));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    #[test]
    fn a_service_gets_the_addresses_of_its_pods() {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "d", "uid": "s"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http", "protocol": "TCP"}]}});
        let pod = |name: &str, app: &str, ready: &str| {
            json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": app}},
            "spec": {"nodeName": "n", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let pods = vec![pod("a", "web", "True"), pod("b", "web", "False"), pod("c", "db", "True")];
        let steps = with_view(pods, |view| decide(view, &service));
        let [Step::Create { object: endpoints, .. }, Step::Create { object: slice, .. }] = steps.as_slice()
        else {
            panic!("{steps:?}");
        };
        assert_eq!(list(endpoints, "/subsets/0/addresses").len(), 1);
        assert_eq!(list(endpoints, "/subsets/0/notReadyAddresses").len(), 1);
        assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], 8080);
        assert_eq!(list(slice, "/endpoints").len(), 2);
        assert_eq!(slice["endpoints"][1]["conditions"]["ready"], false);
    }
    #[test]
    fn a_service_of_two_families_has_slices_of_each() {
        let service = |families: &[&str]| {
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "namespace": "d", "uid": "s", "labels": {"team": "a"}},
                "spec": {"selector": {"app": "web"}, "ipFamilies": families, "ports": [{"port": 80, "protocol": "TCP"}]}})
        };
        let pod = |name: &str, addresses: &[&str]| {
            let all: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": "web"}},
                "spec": {"nodeName": "n", "containers": [{}]},
                "status": {"phase": "Running", "podIP": addresses[0], "podIPs": all,
                    "conditions": [{"type": "Ready", "status": "True"}]}})
        };
        // The second one was there before the cluster became dual-stack.
        let pods = [pod("a", &["10.0.0.1", "fd00::1"]), pod("b", &["10.0.0.2"])];
        let slice = |name: &str, family: &str| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
                "metadata": {"name": name, "namespace": "d", "uid": name, "generateName": "web-",
                    "labels": {"endpointslice.kubernetes.io/managed-by": SLICES, "kubernetes.io/service-name": "web"},
                    "ownerReferences": [controlled_by(&service(&[]))]}})
        };
        let told = |families: &[&str], present: &[Value]| -> Vec<String> {
            let objects = pods.iter().chain(present).cloned().collect();
            let steps = with_view(objects, |view| decide(view, &service(families)));
            let tell = |step: Step| match step {
                Step::Create { object, .. } | Step::Update { object, .. }
                    if object["kind"] == "Endpoints" =>
                {
                    let all =
                        list(&object, "/subsets/0/addresses").iter().map(|one| text(one, "/ip").to_owned());
                    format!("endpoints {}", all.collect::<Vec<_>>().join(" "))
                }
                Step::Create { object, .. } | Step::Update { object, .. } => {
                    assert_eq!(object["metadata"]["labels"]["kubernetes.io/service-name"], "web");
                    assert_eq!(object["metadata"]["labels"]["team"], "a");
                    assert_eq!(object["metadata"]["generateName"], "web-");
                    let all = list(&object, "/endpoints").iter().flat_map(|one| list(one, "/addresses"));
                    let all: Vec<&str> = all.filter_map(Value::as_str).collect();
                    format!("{} {} {}", object.name(), text(&object, "/addressType"), all.join(" "))
                }
                Step::Delete { name, .. } => format!("delete {name}"),
                other => format!("{other:?}"),
            };
            steps.into_iter().map(tell).collect()
        };
        let (four, six) = (" IPv4 10.0.0.1 10.0.0.2", " IPv6 fd00::1");
        assert_eq!(told(&["IPv4"], &[]), ["endpoints 10.0.0.1 10.0.0.2", four]);
        assert_eq!(told(&["IPv4", "IPv6"], &[]), ["endpoints 10.0.0.1 10.0.0.2", four, six]);
        assert_eq!(told(&["IPv6", "IPv4"], &[]), ["endpoints fd00::1", six, four]);
        // Each family keeps to its own slices, whatever they are called, and what is over goes.
        let present = [slice("web-1", "IPv6"), slice("web-2", "IPv4"), slice("web-3", "IPv4")];
        assert_eq!(
            told(&["IPv4", "IPv6"], &present),
            [
                "endpoints 10.0.0.1 10.0.0.2",
                "web-2 IPv4 10.0.0.1 10.0.0.2",
                "delete web-3",
                "web-1 IPv6 fd00::1"
            ]
        );
        assert_eq!(
            told(&["IPv4"], &present),
            ["endpoints 10.0.0.1 10.0.0.2", "web-2 IPv4 10.0.0.1 10.0.0.2", "delete web-3", "delete web-1"]
        );
        // Without pods of a family there is one slice without endpoints.
        let pods_of_one = [pod("b", &["10.0.0.2"])];
        let steps = with_view(pods_of_one.to_vec(), |view| slices(view, &service(&["IPv6"]), &pods_of_one));
        let [Step::Create { object, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!((&object["addressType"], &object["endpoints"]), (&json!("IPv6"), &Value::Null));
    }
}
