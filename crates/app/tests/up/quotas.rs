//! One quota, many who create and delete bindings at once, and a server that is killed in the middle: never over the limit, and
//! never a charge that stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::policy::FederatedResourceQuota;
use api::work::ResourceBinding;
use apimachinery::quantity::Quantity;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::{Server, install_tls};

/// In thousandths of a CPU; a client wants from 500 to 1500 at a time.
const LIMIT: i64 = 8_000;

/// What clients were told.
#[derive(Default)]
struct Told {
    created: AtomicUsize,
    refused: AtomicUsize,
    deleted: AtomicUsize,
    stop: AtomicBool,
}

impl Told {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn binding(name: &str, replicas: i64, waits: bool) -> ResourceBinding {
    let finalizers: &[&str] = if waits { &["example.com/wait"] } else { &[] };
    let spec = json!({
        "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": name },
        "clusters": [{ "name": "m1", "replicas": replicas }],
        "replicaRequirements": { "resourceRequest": { "cpu": "500m" } },
    });
    let metadata = json!({ "name": name, "finalizers": finalizers });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a binding")
}

/// Waits a moment after an answer that says nothing: the server may be away.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Creates, changes and deletes bindings of its own until told to stop.
async fn work(bindings: Api<ResourceBinding>, client: usize, told: Arc<Told>) {
    let name = format!("c{client}");
    for round in client.. {
        if told.is_over() {
            return;
        }
        let (replicas, waits) = (i64::try_from(round % 3).expect("small") + 1, round % 2 == 0);
        match bindings.create(&PostParams::default(), &binding(&name, replicas, waits)).await {
            Ok(_) => drop(told.created.fetch_add(1, Ordering::Relaxed)),
            Err(kube::Error::Api(status)) if status.reason == "QuotaExceeded" => {
                told.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(kube::Error::Api(status)) => assert_eq!(status.reason, "AlreadyExists", "{status:?}"),
            Err(_) => rest().await,
        }
        let change =
            Patch::Merge(json!({ "spec": { "clusters": [{ "name": "m2", "replicas": round % 4 }] } }));
        drop(bindings.patch(&name, &PatchParams::default(), &change).await);
        // Something is left at the end.
        if told.is_over() {
            return;
        }
        if bindings.delete(&name, &DeleteParams::default()).await.is_ok() {
            told.deleted.fetch_add(1, Ordering::Relaxed);
        }
        let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        drop(bindings.patch(&name, &PatchParams::default(), &release).await);
    }
}

fn milli(list: &api::policy::ResourceList) -> i64 {
    list.get("cpu").map_or(0, |amount| Quantity::parse(&amount.0).expect("an amount").milli_value())
}

/// Returns what the bindings of one list use.
async fn exists(bindings: &Api<ResourceBinding>) -> Option<i64> {
    let list = bindings.list(&ListParams::default()).await.ok()?;
    let limits = serde_json::from_value(json!({ "cpu": "1" })).expect("limits");
    Some(milli(&admission::usage::used(&limits, list.items.iter().map(|binding| &binding.spec))))
}

/// Looks at what exists, again and again.
async fn watch(bindings: Api<ResourceBinding>, told: Arc<Told>) -> usize {
    let mut looks = 0;
    while !told.is_over() {
        match exists(&bindings).await {
            Some(used) => {
                assert!(used <= LIMIT, "{used} thousandths of a CPU are in use, {LIMIT} are allowed");
                looks += 1;
            }
            None => rest().await,
        }
    }
    looks
}

async fn run(clients: usize, kills: usize, between: usize) {
    install_tls();
    let flags = [
        "--feature-gates=FederatedQuotaEnforcement=true",
        "--controllers=federatedResourceQuotaEnforcement,federatedResourceQuotaStatus",
    ];
    let mut server = Server::start(env!("CARGO_BIN_EXE_karmada"), &flags);
    let client = server.client().await;
    let quotas: Api<FederatedResourceQuota> = Api::namespaced(client.clone(), "default");
    let bindings: Api<ResourceBinding> = Api::namespaced(client.clone(), "default");
    let quota: Value =
        json!({ "metadata": { "name": "q" }, "spec": { "overall": { "cpu": format!("{LIMIT}m") } } });
    let quota = serde_json::from_value(quota).expect("a quota");
    quotas.create(&PostParams::default(), &quota).await.expect("a quota");

    let told = Arc::new(Told::default());
    let watching = tokio::spawn(watch(bindings.clone(), told.clone()));
    let working: Vec<_> =
        (0..clients).map(|client| tokio::spawn(work(bindings.clone(), client, told.clone()))).collect();
    for kill in 0..=kills {
        let enough = told.created.load(Ordering::Relaxed) + between;
        testkit::eventually(format!("enough bindings before kill {kill}"), async || {
            assert!(!watching.is_finished(), "the limit was exceeded, see above");
            let created = told.created.load(Ordering::Relaxed);
            if created >= enough { Ok(()) } else { Err(format!("{created} of {enough}")) }
        })
        .await;
        if kill < kills {
            server.kill();
            server.restart();
        }
    }
    told.stop.store(true, Ordering::Relaxed);
    for client in working {
        client.await.expect("no client panics");
    }
    let ended = Instant::now();
    let looks = watching.await.expect("never over the limit");
    let (status, used) =
        (quotas.get("q").await.expect("the quota").status, exists(&bindings).await.expect("a list"));
    let took = ended.elapsed();
    let count = |what: &AtomicUsize| what.load(Ordering::Relaxed);
    println!(
        "{clients} clients, {kills} kills: {} created, {} refused, {} deleted, {looks} looks; at the end {} thousandths \
         charged, {used} exist, looked at after {took:?}",
        count(&told.created),
        count(&told.refused),
        count(&told.deleted),
        milli(&status.overall_used),
    );
    // Nobody writes any more, so the two were read at the same state: nothing is waited for.
    assert_eq!(milli(&status.overall_used), used, "{status:?}");
    assert!(count(&told.refused) > 0, "the limit was never reached");

    // What is left can be removed, and nothing stays.
    bindings.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("all go");
    for left in bindings.list(&ListParams::default()).await.expect("a list").items {
        let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let name = left.metadata.name.unwrap_or_default();
        bindings.patch(&name, &PatchParams::default(), &release).await.expect("it is let go");
    }
    let status = quotas.get("q").await.expect("the quota").status;
    assert_eq!((milli(&status.overall_used), exists(&bindings).await), (0, Some(0)), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_under_many_clients_and_kill_9() {
    run(12, 3, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the whole of it takes minutes: 100 clients, ten kills"]
async fn a_quota_holds_under_a_hundred_clients_and_ten_times_kill_9() {
    run(100, 10, 300).await;
}
