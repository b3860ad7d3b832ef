//! Members of both families of addresses, beside one that has IPv4 only.

use serde_json::{Value, json};

use crate::site::Site;

fn texts(object: &Value, pointer: &str, field: &str) -> Vec<String> {
    let items = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    items
        .map(|item| if field.is_empty() { item } else { &item[field] })
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn service(name: &str, otherwise: Value) -> Value {
    let mut spec =
        json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
    for (field, value) in otherwise.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"team": "a"}}, "spec": spec})
}

/// Waits until a Service has these slices, by family and addresses.
async fn until_sliced(site: &Site, service: &str, wanted: &[(&str, &[String])]) -> Vec<Value> {
    testkit::eventually(format!("{service} has the slices {wanted:?}"), async || {
        let mut slices = site.list("EndpointSlice", "test").await;
        slices.retain(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service);
        slices.sort_by_key(|slice| slice["addressType"].to_string());
        let mut found = Vec::new();
        for slice in &slices {
            let mut addresses: Vec<String> = slice["endpoints"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|endpoint| texts(endpoint, "/addresses", ""))
                .collect();
            addresses.sort();
            found.push((slice["addressType"].as_str().unwrap_or_default(), addresses));
        }
        let same = found.len() == wanted.len()
            && found.iter().zip(wanted).all(|(found, wanted)| found.0 == wanted.0 && found.1 == wanted.1);
        if same { Ok(slices.clone()) } else { Err(format!("{found:?}")) }
    })
    .await
}

async fn with_pods(site: &Site) -> [Vec<String>; 2] {
    site.namespace("test").await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    site.create("test", deployment).await;
    site.until("Deployment", "test", "web", "become available", |web| {
        web["status"]["availableReplicas"] == 2
    })
    .await;
    let mut both = [Vec::new(), Vec::new()];
    for pod in site.list("Pod", "test").await {
        let all = texts(&pod, "/status/podIPs", "ip");
        assert_eq!(pod["status"]["podIP"], all[0].as_str());
        assert_eq!(texts(&pod, "/status/hostIPs", "ip").len(), if all.len() == 2 { 2 } else { 0 });
        for (family, address) in both.iter_mut().zip(all) {
            family.push(address);
        }
    }
    both.iter_mut().for_each(|family| family.sort());
    both
}

#[tokio::test]
async fn a_dual_stack_member_gives_both_families_to_who_asks() {
    let mut options = sim::Options::new(2, 2);
    options.members[0].dual_stack = true;
    let fleet = sim::start(options).await.expect("simulated members");
    let site = Site::simulated(&fleet.members()[0]).await;
    let [four, six] = with_pods(&site).await;
    assert_eq!((four.len(), six.len()), (2, 2));
    assert!(four.iter().all(|address| address.starts_with("10.112.")), "{four:?}");
    assert!(six.iter().all(|address| address.starts_with("fd00:10:112::")), "{six:?}");
    let node = site
        .until("Node", "", "node1", "have addresses", |node| node["status"]["addresses"].is_array())
        .await;
    assert_eq!(texts(&node, "/status/addresses", "address"), ["172.16.0.1", "fd00:172:16::1"]);

    site.create("test", service("both", json!({"ipFamilyPolicy": "PreferDualStack"}))).await;
    site.create("test", service("six", json!({"ipFamilies": ["IPv6"]}))).await;
    site.create(
        "test",
        service("headless", json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "None"})),
    )
    .await;
    site.create("test", service("usual", json!({}))).await;
    let slices = until_sliced(&site, "both", &[("IPv4", &four), ("IPv6", &six)]).await;
    for slice in &slices {
        let name = slice["metadata"]["name"].as_str().unwrap_or_default();
        assert!(name.starts_with("both-") && slice["metadata"]["generateName"] == "both-", "{slice:#}");
        assert_eq!(
            slice["metadata"]["labels"],
            json!({"team": "a", "kubernetes.io/service-name": "both",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"})
        );
        assert_eq!(slice["metadata"]["ownerReferences"][0]["name"], "both");
        assert_eq!(slice["ports"][0]["port"], 8080);
    }
    until_sliced(&site, "six", &[("IPv6", &six)]).await;
    until_sliced(&site, "headless", &[("IPv4", &four), ("IPv6", &six)]).await;
    until_sliced(&site, "usual", &[("IPv4", &four)]).await;
    // Endpoints have the first family of their Service.
    for (name, wanted) in [("both", &four), ("six", &six), ("headless", &four), ("usual", &four)] {
        site.until("Endpoints", "test", name, "have the addresses of the first family", |endpoints| {
            let mut found = texts(endpoints, "/subsets/0/addresses", "ip");
            found.sort();
            found == *wanted
        })
        .await;
    }
    let made = site.until("Service", "test", "both", "exist", |_| true).await;
    let given = texts(&made, "/spec/clusterIPs", "");
    assert!(
        given.len() == 2 && given[0].starts_with("10.") && given[1].starts_with("fd00:10:96::"),
        "{given:?}"
    );

    // A family goes with its slices, and comes back with them.
    site.patch("Service", "test", "both", json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await;
    until_sliced(&site, "both", &[("IPv4", &four)]).await;
    site.patch("Service", "test", "both", json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await;
    until_sliced(&site, "both", &[("IPv4", &four), ("IPv6", &six)]).await;

    // The other member has one family, as ever.
    let site = Site::simulated(&fleet.members()[1]).await;
    let [four, six] = with_pods(&site).await;
    assert_eq!((four.len(), six.len()), (2, 0));
    site.create("test", service("both", json!({"ipFamilyPolicy": "PreferDualStack"}))).await;
    until_sliced(&site, "both", &[("IPv4", &four)]).await;
    let required = serde_json::from_value(service("required", json!({"ipFamilyPolicy": "RequireDualStack"})))
        .expect("an object");
    let refused = site
        .api("Service", "test")
        .create(&Default::default(), &required)
        .await
        .expect_err("it has one family");
    assert!(refused.to_string().contains("not configured for dual-stack services"), "{refused}");
    fleet.stop().await;
}
