//! What clients are told when the disk is behind, or the store is gone.

use apiserver::auth::User;
use apiserver::local::{self, Terms};
use apiserver::{Handle, Options};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::start_with;
use crate::support::{Api, DEADLINE};

const MAPS: &str = "api/v1/namespaces/default/configmaps";

/// A server on a disk that can be made to fail.
async fn start() -> (Handle, Api, store::Faults, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let faults = store::Faults::new();
    let options = Options {
        data_dir: Some(folder.path().join("data")),
        store_faults: Some(faults.clone()),
        ..Options::default()
    };
    let (handle, _) = start_with(options).await;
    let api = Api::without_retries(&handle.kubeconfig).await;
    (handle, api, faults, folder)
}

/// Makes an object that everybody sees and that is not on disk: the disk is full from before it was written. It holds a
/// finalizer and is being deleted.
async fn write_without_disk(handle: &Handle, faults: &store::Faults) -> String {
    let patient = local::client(&handle.server, User::system("system:admin"));
    let terms = Terms { durability: store::Durability::Buffered, ..Terms::default() };
    let hasty = local::client_on(&handle.server, User::system("system:admin"), terms);
    let maps = |client: kube::Client| kube::Api::<ConfigMap>::namespaced(client, "default");
    let map = |name: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name, "finalizers": ["example.com/kept"]}}))
            .expect("a ConfigMap")
    };
    let started = std::time::Instant::now();
    for number in 0.. {
        assert!(started.elapsed() < DEADLINE, "the server never stops writing by itself");
        let name = format!("hasty-{number}");
        faults.disk_full();
        let made = maps(hasty.clone()).create(&PostParams::default(), &map(&name)).await;
        let marked = match made {
            Ok(_) => maps(hasty.clone()).delete(&name, &Default::default()).await.is_ok(),
            Err(_) => false,
        };
        if marked {
            return name;
        }
        // A controller of the server wrote at the same time, and the store noticed the disk: once more.
        faults.heal();
        let other = format!("patient-{number}");
        while maps(patient.clone()).create(&PostParams::default(), &map(&other)).await.is_err() {
            assert!(started.elapsed() < DEADLINE, "the store does not recover");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    unreachable!("the loop ends with a name")
}

#[tokio::test]
async fn finding_19_a_write_that_changes_nothing_is_not_acknowledged_before_the_disk_has_it() {
    let (handle, api, faults, _folder) = start().await;
    let name = write_without_disk(&handle, &faults).await;
    let path = format!("{MAPS}/{name}");
    let object: Value = api.get(&path).await.expect(200).json();
    for answer in [
        api.put(&path, &object).await,
        api.merge(&path, &json!({"metadata": {"finalizers": ["example.com/kept"]}})).await,
        api.delete(&path).await,
    ] {
        let status = answer.json();
        assert_eq!((answer.code, &status["reason"]), (503, &json!("ServiceUnavailable")), "{status}");
    }
    // A dry run waits for nothing.
    api.put(&format!("{path}?dryRun=All"), &object).await.expect(200);
    faults.heal();
    handle.stop().await;
}

#[tokio::test]
async fn finding_18_a_server_whose_store_is_gone_says_so_and_tells_its_owner() {
    let (handle, api, faults, _folder) = start().await;
    api.get("livez").await.expect(200);
    faults.bug();
    // The write that meets the fault, and one after it.
    for name in ["first", "second"] {
        let answer = api.post(MAPS, &json!({"metadata": {"name": name}})).await;
        let status = answer.json();
        assert_eq!((answer.code, &status["reason"]), (503, &json!("ServiceUnavailable")), "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("the store has failed and takes no more writes"), "{message}");
    }
    for path in ["readyz", "livez", "livez/etcd"] {
        api.get(path).await.expect(500);
    }
    api.get(MAPS).await.expect(200);
    let reason = tokio::time::timeout(DEADLINE, handle.failure()).await.expect("told in time");
    assert!(reason.contains("panicked"), "{reason}");
    tokio::time::timeout(DEADLINE, handle.stop()).await.expect("it ends all the same");
}
