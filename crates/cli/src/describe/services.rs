//! Services, with the addresses behind them.

use serde_json::Value;

use super::words::{Page, each, joined, shown, text};
use crate::select::{Item, list};
use crate::server::{Server, segment};

/// The EndpointSlices of a service.
pub(super) async fn slices(server: &Server, item: &Item) -> Vec<Value> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", segment(&item.namespace));
    let labels = format!("kubernetes.io/service-name={}", item.name);
    list(server, &path, Some(&labels), None).await.unwrap_or_default()
}

pub(super) fn service(page: &mut Page, object: &Value, slices: &[Value]) {
    let (metadata, spec) = (&object["metadata"], &object["spec"]);
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    page.pair(0, "Selector", joined(&spec["selector"]));
    page.pair(0, "Type", text(&spec["type"]));
    if let Some(policy) = spec["ipFamilyPolicy"].as_str() {
        page.pair(0, "IP Family Policy", policy);
    }
    let texts = |list: &Value| each(list).map(text).collect::<Vec<_>>().join(",");
    if each(&spec["ipFamilies"]).next().is_some() {
        page.pair(0, "IP Families", texts(&spec["ipFamilies"]));
    } else {
        page.pair(0, "IP Families", "<none>");
    }
    page.pair(0, "IP", text(&spec["clusterIP"]));
    if each(&spec["clusterIPs"]).next().is_some() {
        page.pair(0, "IPs", texts(&spec["clusterIPs"]));
    } else {
        page.pair(0, "IPs", "<none>");
    }
    if each(&spec["externalIPs"]).next().is_some() {
        page.pair(0, "External IPs", texts(&spec["externalIPs"]));
    }
    for (title, key) in [("IP", "loadBalancerIP"), ("External Name", "externalName")] {
        if let Some(value) = spec[key].as_str().filter(|value| !value.is_empty()) {
            page.pair(0, title, value);
        }
    }
    let ingress: Vec<String> = each(&object["status"]["loadBalancer"]["ingress"])
        .map(|each| {
            let address = text(&each["ip"]);
            let mode = each["ipMode"].as_str().map(|mode| format!(" ({mode})")).unwrap_or_default();
            if address.is_empty() { text(&each["hostname"]) } else { format!("{address}{mode}") }
        })
        .collect();
    if !ingress.is_empty() {
        page.pair(0, "LoadBalancer Ingress", ingress.join(", "));
    }
    for port in each(&spec["ports"]) {
        let name = match text(&port["name"]).as_str() {
            "" => "<unset>".to_owned(),
            name => name.to_owned(),
        };
        let protocol = shown(&port["protocol"], "TCP");
        page.line(0, format!("Port:\t{name}\t{}/{protocol}", shown(&port["port"], "0")));
        page.pair(0, "TargetPort", format!("{}/{protocol}", shown(&port["targetPort"], "0")));
        if port["nodePort"].as_i64().unwrap_or(0) > 0 {
            page.line(0, format!("NodePort:\t{name}\t{}/{protocol}", shown(&port["nodePort"], "0")));
        }
        page.pair(0, "Endpoints", endpoints(slices, &text(&port["name"])));
    }
    page.pair(0, "Session Affinity", text(&spec["sessionAffinity"]));
    for (title, key) in [
        ("External Traffic Policy", "externalTrafficPolicy"),
        ("Internal Traffic Policy", "internalTrafficPolicy"),
    ] {
        if let Some(policy) = spec[key].as_str() {
            page.pair(0, title, policy);
        }
    }
    if spec["healthCheckNodePort"].as_i64().unwrap_or(0) > 0 {
        page.pair(0, "HealthCheck NodePort", shown(&spec["healthCheckNodePort"], "0"));
    }
    if each(&spec["loadBalancerSourceRanges"]).next().is_some() {
        page.pair(0, "LoadBalancer Source Ranges", texts(&spec["loadBalancerSourceRanges"]));
    }
}

/// At most three addresses of a port, and the number of further ones.
pub(super) fn endpoints(slices: &[Value], name: &str) -> String {
    let mut found = Vec::new();
    for slice in slices {
        for port in each(&slice["ports"]).filter(|port| text(&port["name"]) == name) {
            for endpoint in
                each(&slice["endpoints"]).filter(|endpoint| endpoint["conditions"]["ready"] != false)
            {
                for address in each(&endpoint["addresses"]) {
                    let address = text(address);
                    let host = if address.contains(':') { format!("[{address}]") } else { address };
                    found.push(format!("{host}:{}", shown(&port["port"], "0")));
                }
            }
        }
    }
    match found.len() {
        0 if slices.is_empty() => "<none>".to_owned(),
        0..=3 => found.join(","),
        more => format!("{} + {} more...", found[..3].join(","), more - 3),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn at_most_three_addresses_are_told() {
        let addresses = |count: usize| {
            let endpoints: Vec<Value> =
                (0..count).map(|i| json!({"addresses": [format!("10.0.0.{i}")]})).collect();
            json!({"ports": [{"name": "", "port": 80}], "endpoints": endpoints})
        };
        assert_eq!(endpoints(&[], ""), "<none>");
        assert_eq!(endpoints(&[addresses(2)], ""), "10.0.0.0:80,10.0.0.1:80");
        assert_eq!(endpoints(&[addresses(5)], ""), "10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more...");
        assert_eq!(endpoints(&[addresses(5)], "other"), "");
    }
}
