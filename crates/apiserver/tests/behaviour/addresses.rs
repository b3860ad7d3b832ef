//! Addresses of Services: of one family or of both, and what becomes of them when the server gets other ranges.

use std::path::Path;

use apiserver::{Options, ServiceRanges};
use serde_json::{Value, json};

use crate::support::{Answer, Api, Call};
use crate::{start, start_with};

const SERVICES: &str = "api/v1/namespaces/default/services";
const RANGE: &str = "apis/networking.k8s.io/v1/servicecidrs/kubernetes";

fn ranges(text: &str) -> ServiceRanges {
    text.parse().expect("ranges")
}

fn service(name: &str, otherwise: Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    for (field, value) in otherwise.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn families(answer: &Answer) -> Value {
    answer.json()["spec"]["ipFamilies"].clone()
}

fn addresses(answer: &Answer) -> Vec<String> {
    serde_json::from_value(answer.json()["spec"]["clusterIPs"].clone()).expect("addresses")
}

async fn make(api: &Api, name: &str, otherwise: Value) -> Answer {
    api.post(SERVICES, &service(name, otherwise)).await.expect(201)
}

async fn refuse(api: &Api, name: &str, otherwise: Value, why: &str) {
    let refused = api.post(SERVICES, &service(name, otherwise)).await.expect(422);
    assert!(refused.text().contains(why), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_one_range_has_services_of_one_family() {
    let (handle, api) = start().await;
    let usual = make(&api, "usual", json!({})).await;
    assert_eq!(families(&usual), json!(["IPv4"]));
    assert!(addresses(&usual)[0].starts_with("10."), "{usual:?}");
    let preferred = make(&api, "preferred", json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(families(&preferred), json!(["IPv4"]));
    let required = json!({"ipFamilyPolicy": "RequireDualStack"});
    refuse(&api, "required", required.clone(), "this cluster is not configured for dual-stack services")
        .await;
    // A rehearsal tells that, too.
    let rehearsed = Call::new("POST", format!("{SERVICES}?dryRun=All")).json(&service("required", required));
    api.send(&rehearsed).await.expect(422);
    let range = api.get(RANGE).await.expect(200);
    assert_eq!(range.json()["spec"]["cidrs"], json!(["10.96.0.0/12"]));
    let own = api.get(&format!("{SERVICES}/kubernetes")).await.expect(200);
    assert_eq!(addresses(&own), ["10.96.0.1"]);
    for address in ["10.96.0.0", "10.111.255.255", "10.95.0.1"] {
        refuse(
            &api,
            "outside",
            json!({"clusterIP": address}),
            "the provided network does not match the current range",
        )
        .await;
    }
    handle.stop().await;
}

/// Validation sees what was assigned: this type needs a port for health checks, and nobody has to name one.
#[tokio::test(flavor = "multi_thread")]
async fn a_balancer_of_local_traffic_gets_its_port_for_health_checks() {
    let (handle, api) = start().await;
    let made = make(&api, "web", json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})).await;
    let port = made.json()["spec"]["healthCheckNodePort"].as_i64();
    assert!(port.is_some_and(|port| (30000..=32767).contains(&port)), "{made:?}");
    handle.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_two_ranges_has_services_of_both_families() {
    let options = Options { service_ranges: ranges("10.0.0.0/16,fd00::/108"), ..Options::default() };
    let (handle, api) = start_with(options).await;
    let own = api.get(&format!("{SERVICES}/kubernetes")).await.expect(200);
    assert_eq!((addresses(&own), families(&own)), (vec!["10.0.0.1".to_owned()], json!(["IPv4"])));
    let range = api.get(RANGE).await.expect(200);
    assert_eq!(range.json()["spec"]["cidrs"], json!(["10.0.0.0/16", "fd00::/108"]));
    assert_eq!(families(&make(&api, "usual", json!({})).await), json!(["IPv4"]));

    let wanted = json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"]});
    let made = make(&api, "web", wanted).await;
    assert_eq!(
        (addresses(&made), families(&made)),
        (vec!["10.0.0.7".to_owned(), "fd00::7".to_owned()], json!(["IPv4", "IPv6"]))
    );
    let taken = json!({"ipFamilies": ["IPv6"], "clusterIP": "fd00:0::7"});
    refuse(&api, "other", taken.clone(), "failed to allocate IP fd00:0::7: provided IP is already allocated")
        .await;

    // The second address is given back, and another Service gets it.
    let path = format!("{SERVICES}/web");
    let single = api.merge(&path, &json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await.expect(200);
    assert_eq!((addresses(&single), families(&single)), (vec!["10.0.0.7".to_owned()], json!(["IPv4"])));
    api.post(SERVICES, &service("other", taken)).await.expect(201);
    // So the first one gets another.
    let both = api.merge(&path, &json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await.expect(200);
    let second = addresses(&both).pop().expect("an address");
    assert!(second.starts_with("fd00::") && second != "fd00::7", "{second}");
    // Whoever leaves addresses and families out keeps them.
    let mut sent = both.json();
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        sent["spec"].as_object_mut().expect("a spec").remove(field);
    }
    let kept = api.put(&path, &sent).await.expect(200);
    assert_eq!(kept.json()["spec"], both.json()["spec"]);
    api.delete(&path).await.expect(200);
    make(&api, "heir", json!({"ipFamilies": ["IPv6"], "clusterIP": second})).await;
    handle.stop().await;
}

/// What a Service has outlives a start with fewer ranges, and is nobody else's after the next one.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_kept_when_the_ranges_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |dir: &Path, text: &str| Options {
        data_dir: Some(dir.to_owned()),
        service_ranges: ranges(text),
        ..Options::default()
    };
    let (single, both) = ("10.96.0.0/12", "10.96.0.0/12,fd00::/108");
    let prefer = json!({"ipFamilyPolicy": "PreferDualStack"});
    let (handle, api) = start_with(with(folder.path(), single)).await;
    let first = make(&api, "first", prefer.clone()).await;
    handle.stop().await;

    let (handle, api) = start_with(with(folder.path(), both)).await;
    assert_eq!(
        api.get(RANGE).await.expect(200).json()["spec"]["cidrs"],
        json!(["10.96.0.0/12", "fd00::/108"])
    );
    // Nobody gets a family because the server has it.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let same = api.merge(&format!("{SERVICES}/first"), &label).await.expect(200);
    assert_eq!(same.json()["spec"], first.json()["spec"]);
    let second = make(&api, "second", prefer).await;
    let held = addresses(&second);
    assert_eq!(held.len(), 2);
    handle.stop().await;

    let (handle, api) = start_with(with(folder.path(), single)).await;
    let same = api.merge(&format!("{SERVICES}/second"), &label).await.expect(200);
    assert_eq!(addresses(&same), held, "it is changed, and keeps what it has");
    handle.stop().await;

    let (handle, api) = start_with(with(folder.path(), both)).await;
    let taken = json!({"ipFamilies": ["IPv6"], "clusterIP": held[1]});
    refuse(&api, "third", taken.clone(), "provided IP is already allocated").await;
    api.delete(&format!("{SERVICES}/second")).await.expect(200);
    make(&api, "third", taken).await;
    handle.stop().await;
}
