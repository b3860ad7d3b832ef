//! Ingresses, network policies and endpoint slices.

use serde_json::Value;

use super::services::endpoints;
use super::words::{Page, each, selector, shown, text};
use crate::select::{Item, list};
use crate::server::{Server, segment};

/// The targets of an Ingress, in words: by backend.
pub(super) type Backends = Vec<(Value, String)>;

/// Reads the Services and endpoints behind an Ingress.
pub(super) async fn backends(server: &Server, item: &Item) -> Backends {
    let spec = &item.object["spec"];
    let paths =
        each(&spec["rules"]).flat_map(|rule| each(&rule["http"]["paths"])).map(|path| &path["backend"]);
    let mut known = Backends::new();
    for backend in paths.chain([&spec["defaultBackend"]]).filter(|backend| backend.is_object()) {
        if known.iter().all(|(each, _)| each != backend) {
            known.push((backend.clone(), leads_to(server, &item.namespace, backend).await));
        }
    }
    known
}

async fn leads_to(server: &Server, namespace: &str, backend: &Value) -> String {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    if resource.is_object() {
        return format!(
            "APIGroup: {}, Kind: {}, Name: {}",
            shown(&resource["apiGroup"], "<none>"),
            text(&resource["kind"]),
            text(&resource["name"])
        );
    }
    let (name, port) = (text(&service["name"]), &service["port"]);
    let shown_port = match port["number"].as_i64() {
        Some(number) if number != 0 => number.to_string(),
        _ => text(&port["name"]),
    };
    let title = format!("{name}:{shown_port}");
    let place = segment(namespace);
    let labels = format!("kubernetes.io/service-name={name}");
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{place}/endpointslices");
    let slices = match list(server, &slices, Some(&labels), None).await {
        Ok(slices) => slices,
        Err(error) => return format!("{title} (<error: {error}>)"),
    };
    let found = match server.get(&format!("/api/v1/namespaces/{place}/services/{}", segment(&name))).await {
        Ok(found) => found,
        Err(error) => return format!("{title} (<error: {error}>)"),
    };
    let fits = |each: &&Value| match port["number"].as_i64() {
        Some(number) if number != 0 => each["port"] == number,
        _ => each["name"] == port["name"],
    };
    let port = each(&found["spec"]["ports"]).find(fits).map(|port| text(&port["name"])).unwrap_or_default();
    format!("{title} ({})", endpoints(&slices, &port))
}

pub(super) fn ingress(page: &mut Page, object: &Value, backends: &[(Value, String)]) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    let told = |backend: &Value| {
        backends.iter().find(|(each, _)| each == backend).map_or(String::new(), |(_, told)| told.clone())
    };
    page.pair(0, "Name", text(&metadata["name"]));
    page.labels("Labels", &metadata["labels"]);
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    let mut addresses: Vec<String> = each(&object["status"]["loadBalancer"]["ingress"])
        .map(|each| shown(if each["ip"].is_string() { &each["ip"] } else { &each["hostname"] }, ""))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.sort();
    addresses.dedup();
    page.pair(0, "Address", addresses.join(","));
    page.pair(0, "Ingress Class", shown(&spec["ingressClassName"], "<none>"));
    let default = if spec["defaultBackend"].is_object() {
        told(&spec["defaultBackend"])
    } else {
        "<default>".to_owned()
    };
    page.pair(0, "Default backend", &default);
    if each(&spec["tls"]).next().is_some() {
        page.line(0, "TLS:");
    }
    for tls in each(&spec["tls"]) {
        let hosts: Vec<String> = each(&tls["hosts"]).map(text).collect();
        match text(&tls["secretName"]).as_str() {
            "" => page.line(1, format!("SNI routes {}", hosts.join(","))),
            secret => page.line(1, format!("{secret} terminates {}", hosts.join(","))),
        }
    }
    page.line(0, "Rules:");
    page.line(1, "Host\tPath\tBackends");
    page.line(1, "----\t----\t--------");
    let mut rules = each(&spec["rules"]).filter(|rule| rule["http"].is_object()).peekable();
    if rules.peek().is_none() {
        page.line(1, format!("*\t*\t{default}"));
    }
    for rule in rules {
        let host = text(&rule["host"]);
        page.line(1, format!("{}\t", if host.is_empty() { "*" } else { &host }));
        for path in each(&rule["http"]["paths"]) {
            page.line(2, format!("\t{} \t{}", text(&path["path"]), told(&path["backend"])));
        }
    }
    page.annotations("Annotations", &metadata["annotations"]);
}

pub(super) fn policy(page: &mut Page, object: &Value) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    let created = text(&metadata["creationTimestamp"]).replace('T', " ").replace('Z', " +0000 UTC");
    page.pair(0, "Created on", created);
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    page.line(0, "Spec:");
    let pods = match selector(&spec["podSelector"]).as_str() {
        "<none>" => "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned(),
        pods => pods.to_owned(),
    };
    page.line(1, format!("PodSelector:     {pods}"));
    let types: Vec<String> = each(&spec["policyTypes"]).map(text).collect();
    for (name, way) in [("Ingress", Way::In), ("Egress", Way::Out)] {
        let lower = name.to_lowercase();
        if types.iter().any(|each| each == name) {
            page.line(1, format!("Allowing {lower} traffic:"));
            traffic(page, &spec[&lower], way);
        } else {
            page.line(1, format!("Not affecting {lower} traffic"));
        }
    }
    let types = if types.is_empty() { "<none>".to_owned() } else { types.join(", ") };
    page.line(1, format!("Policy Types: {types}"));
}

/// The direction of traffic, from the view of the selected pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

fn traffic(page: &mut Page, rules: &Value, way: Way) {
    let (peers, title, kind, end) = match way {
        Way::In => ("from", "From", "ingress", "source"),
        Way::Out => ("to", "To", "egress", "destination"),
    };
    let count = each(rules).count();
    if count == 0 {
        page.line(2, format!("<none> (Selected pods are isolated for {kind} connectivity)"));
    }
    for (place, rule) in each(rules).enumerate() {
        if each(&rule["ports"]).next().is_none() {
            page.line(2, "To Port: <any> (traffic allowed to all ports)");
        }
        for port in each(&rule["ports"]) {
            let (number, protocol) = (shown(&port["port"], "<nil>"), shown(&port["protocol"], "TCP"));
            match port["endPort"].as_i64() {
                None => page.line(2, format!("To Port: {number}/{protocol}")),
                Some(last) => page.line(2, format!("To Port Range: {number}-{last}/{protocol}")),
            }
        }
        if each(&rule[peers]).next().is_none() {
            page.line(2, format!("{title}: <any> (traffic not restricted by {end})"));
        }
        for peer in each(&rule[peers]) {
            page.line(2, format!("{title}:"));
            for (title, key) in [("NamespaceSelector", "namespaceSelector"), ("PodSelector", "podSelector")] {
                if peer[key].is_object() {
                    page.line(3, format!("{title}: {}", selector(&peer[key])));
                }
            }
            let block = &peer["ipBlock"];
            if block.is_object() {
                let except: Vec<String> = each(&block["except"]).map(text).collect();
                page.line(3, "IPBlock:");
                page.line(4, format!("CIDR: {}", text(&block["cidr"])));
                page.line(4, format!("Except: {}", except.join(", ")));
            }
        }
        if place + 1 < count {
            page.line(2, "----------");
        }
    }
}

pub(super) fn slice(page: &mut Page, object: &Value) {
    let metadata = &object["metadata"];
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    page.pair(0, "AddressType", text(&object["addressType"]));
    let or_unset = |value: &Value| match shown(value, "").as_str() {
        "" => "<unset>".to_owned(),
        text => text.to_owned(),
    };
    if each(&object["ports"]).next().is_none() {
        page.line(0, "Ports: <unset>");
    } else {
        page.line(0, "Ports:");
        page.line(1, "Name\tPort\tProtocol");
        page.line(1, "----\t----\t--------");
    }
    for port in each(&object["ports"]) {
        let line =
            format!("{}\t{}\t{}", or_unset(&port["name"]), or_unset(&port["port"]), text(&port["protocol"]));
        page.line(1, line);
    }
    if each(&object["endpoints"]).next().is_none() {
        page.line(0, "Endpoints: <none>");
    } else {
        page.line(0, "Endpoints:");
    }
    for endpoint in each(&object["endpoints"]) {
        let addresses: Vec<String> = each(&endpoint["addresses"]).map(text).collect();
        let addresses = if addresses.is_empty() { "<none>".to_owned() } else { addresses.join(", ") };
        page.pair(1, "- Addresses", addresses);
        page.line(2, "Conditions:");
        page.pair(3, "Ready", or_unset(&endpoint["conditions"]["ready"]));
        page.pair(2, "Hostname", shown(&endpoint["hostname"], "<unset>"));
        let target = &endpoint["targetRef"];
        if target.is_object() {
            page.pair(2, "TargetRef", format!("{}/{}", text(&target["kind"]), text(&target["name"])));
        }
        page.pair(2, "NodeName", shown(&endpoint["nodeName"], "<unset>"));
        page.pair(2, "Zone", shown(&endpoint["zone"], "<unset>"));
    }
}

/// The pods that use a persistent volume claim.
pub(super) async fn users(server: &Server, item: &Item) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{}/pods", segment(&item.namespace));
    let mut pods = list(server, &path, None, None).await.unwrap_or_default();
    pods.retain(|pod| {
        each(&pod["spec"]["volumes"]).any(|volume| volume["persistentVolumeClaim"]["claimName"] == *item.name)
    });
    pods.sort_by_key(|pod| text(&pod["metadata"]["name"]));
    pods
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_says_who_may_talk_to_whom() {
        let object = json!({"metadata": {"name": "n", "namespace": "s", "creationTimestamp": "2026-11-17T18:53:25Z"}, "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"ports": [{"port": 80, "endPort": 90}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
                {},
            ],
        }});
        let mut page = Page::default();
        policy(&mut page, &object);
        let text = page.finish();
        for line in [
            "Created on:   2026-11-17 18:53:25 +0000 UTC\n",
            "  PodSelector:     <none> (Allowing the specific traffic to all pods in this namespace)\n",
            "    To Port Range: 80-90/TCP\n    From:\n      IPBlock:\n        CIDR: 10.0.0.0/8\n        Except: 10.1.0.0/16\n    ----------\n",
            "    To Port: <any> (traffic allowed to all ports)\n    From: <any> (traffic not restricted by source)\n",
            "  Allowing egress traffic:\n    <none> (Selected pods are isolated for egress connectivity)\n  Policy Types: Ingress, Egress\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn an_ingress_without_rules_leads_to_its_default() {
        let object = json!({"metadata": {"name": "n"}, "spec": {"defaultBackend": {"service": {"name": "web"}},
            "tls": [{"hosts": ["a", "b"]}]}});
        let mut page = Page::default();
        ingress(
            &mut page,
            &object,
            &[(json!({"service": {"name": "web"}}), "web:80 (10.0.0.1:80)".to_owned())],
        );
        let text = page.finish();
        assert!(text.contains("SNI routes a,b\n"), "{text}");
        assert!(text.contains("  *           *     web:80 (10.0.0.1:80)\n"), "{text}");
    }
}
