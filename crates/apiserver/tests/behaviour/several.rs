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
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    api.post("api/v1/namespaces", &namespace).await.expect(201);
    late.get("api/v1/namespaces/n").await.expect(200);

    // From here on the second server hears of everything too late.
    way.set(Network::Slow { delay_ms: 400 }).await;
    api.delete("api/v1/namespaces/n").await.expect(200);
    assert!(far.server.store.get("namespaces", "n").is_some_and(|entry| !entry.head.deleting), "too quick");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let refused = late.post("api/v1/namespaces/n/configmaps", &map).await;
    assert!([403, 404].contains(&refused.code), "{}", refused.text());
    assert!(refused.text().contains("namespace"), "{}", refused.text());

    api.delete(&format!("{DEFINITIONS}/pandas.example.com")).await.expect(200);
    let panda = json!({"apiVersion": "example.com/v1", "kind": "Panda", "metadata": {"name": "a"}});
    let refused = late.post("apis/example.com/v1/pandas", &panda).await;
    assert!([403, 404].contains(&refused.code), "{}", refused.text());

    way.set(Network::Open).await;
    near.server.store.catch_up().await.expect("etcd answers");
    for (collection, name) in [("configmaps", "n/a"), ("example.com/pandas", "a")] {
        assert!(near.server.store.get(collection, name).is_none(), "{collection}");
    }
    far.stop().await;
    near.stop().await;
}
