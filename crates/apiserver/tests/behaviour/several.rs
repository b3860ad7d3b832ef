//! Several servers on one etcd, of which one is behind: what it does rests on what is there, not on what it has heard.

use apiserver::Options;
use clusters::{Etcd, Network};
use serde_json::json;

use crate::start_with;

const DEFINITIONS: &str = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_created_in_what_another_server_deletes() {
    let dir = tempfile::tempdir().expect("a folder");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let mut way = etcd.way().await.expect("a way to etcd that can be slow");
    let on = |endpoint: &str, data: &str| Options {
        etcd: Some(store::EtcdOptions::new([endpoint.to_owned()])),
        data_dir: Some(dir.path().join(data)),
        ..Options::default()
    };
    let (near, api) = start_with(on(&etcd.endpoint, "near")).await;
    let (far, late) = start_with(on(&way.endpoint, "far")).await;
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pandas.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
            "names": {"plural": "pandas", "kind": "Panda"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    api.post(DEFINITIONS, &definition).await.expect(201);
    api.until("apis/example.com/v1/pandas", |answer| answer.code == 200).await;
    late.until("apis/example.com/v1/pandas", |answer| answer.code == 200).await;

    // The second server hears of everything too late: of what is deleted on a busy machine only if the way is slow enough.
    let (mut behind, mut spaces) = (false, Vec::new());
    for delay_ms in [400, 800, 1600] {
        let space = format!("n{delay_ms}");
        way.set(Network::Open).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}});
        api.post("api/v1/namespaces", &namespace).await.expect(201);
        late.get(&format!("api/v1/namespaces/{space}")).await.expect(200);
        way.set(Network::Slow { delay_ms }).await;
        api.delete(&format!("api/v1/namespaces/{space}")).await.expect(200);
        behind = far.server.store.get("namespaces", &space).is_some_and(|entry| !entry.head.deleting);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        let refused = late.post(&format!("api/v1/namespaces/{space}/configmaps"), &map).await;
        assert!([403, 404].contains(&refused.code), "{}", refused.text());
        assert!(refused.text().contains("namespace"), "{}", refused.text());
        spaces.push(space);
        if behind {
            break;
        }
    }
    assert!(behind, "the second server is never too late");

    api.delete(&format!("{DEFINITIONS}/pandas.example.com")).await.expect(200);
    let panda = json!({"apiVersion": "example.com/v1", "kind": "Panda", "metadata": {"name": "a"}});
    let refused = late.post("apis/example.com/v1/pandas", &panda).await;
    assert!([403, 404].contains(&refused.code), "{}", refused.text());

    way.set(Network::Open).await;
    near.server.store.catch_up().await.expect("etcd answers");
    assert!(near.server.store.get("example.com/pandas", "a").is_none());
    for space in spaces {
        assert!(near.server.store.get("configmaps", &format!("{space}/a")).is_none(), "{space}");
    }
    far.stop().await;
    near.stop().await;
}

/// One server has been told of the second range already, the other one not yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_either_family_is_given_once_whichever_server_has_which_ranges() {
    const SERVICES: &str = "api/v1/namespaces/default/services";
    let dir = tempfile::tempdir().expect("a folder");
    let Some(etcd) = Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let with = |ranges: &str, data: &str| Options {
        etcd: Some(store::EtcdOptions::new([etcd.endpoint.clone()])),
        data_dir: Some(dir.path().join(data)),
        service_ranges: ranges.parse().expect("ranges"),
        ..Options::default()
    };
    // Small enough for clashes.
    let (both, api) = start_with(with("10.96.0.0/12,fd00::/122", "both")).await;
    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 80}]}})
    };
    let made = api.post(SERVICES, &service("first")).await.expect(201).json();
    let (single, other) = start_with(with("10.96.0.0/12", "single")).await;
    let (twin, third) = start_with(with("10.96.0.0/12,fd00::/122", "twin")).await;
    let second = made["spec"]["clusterIPs"][1].as_str().expect("a second address").to_owned();
    let wanted = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "thief"},
        "spec": {"ipFamilies": ["IPv6"], "clusterIP": second, "ports": [{"port": 80}]}});
    let refused = third.post(SERVICES, &wanted).await.expect(422);
    assert!(refused.text().contains("already allocated"), "the start of the second server took nothing away");

    let names: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
    let makes = names.iter().enumerate().map(|(number, name)| {
        let at = [&api, &third][number % 2];
        let service = service(name);
        async move { at.post(SERVICES, &service).await.expect(201).json() }
    });
    let made = futures::future::join_all(makes).await;
    let mut all: Vec<&str> = made
        .iter()
        .flat_map(|one| one["spec"]["clusterIPs"].as_array().expect("addresses"))
        .filter_map(|ip| ip.as_str())
        .collect();
    all.push(&second);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!((count, all.len()), (81, 81), "none is there twice");

    // A server of one range gives back what it could not have given.
    other.delete(&format!("{SERVICES}/first")).await.expect(200);
    third.until(&format!("{SERVICES}/first"), |answer| answer.code == 404).await;
    third.post(SERVICES, &wanted).await.expect(201);
    for server in [both, single, twin] {
        server.stop().await;
    }
}
