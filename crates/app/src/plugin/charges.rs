//! The law of quotas: the charges equal the existing usage, whatever happened before.
//!
//! Random steps on a server with data on disk: bindings are created, changed, marked and removed; writes are refused, lose races
//! or are dry runs; quotas are created, change and are removed; the server restarts. Several steps happen at once. After each
//! batch, every quota in force has exactly the usage of the stored bindings, and no write exceeded its limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use api::features::{FEDERATED_QUOTA_ENFORCEMENT, Features, MULTIPLE_POD_TEMPLATES_SCHEDULING};
use api::policy::{FederatedResourceQuota, ResourceList};
use api::work::{ResourceBinding, ResourceBindingSpec};
use apiserver::{Options, Profile, local};
use futures::future::join_all;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::*;

const BATCHES: usize = 60;
const AT_ONCE: u64 = 8;
/// Few, so that steps collide.
const NAMES: u64 = 10;

/// A reproducible source of randomness.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.below(from.len() as u64)).expect("small")]
    }
}

struct World {
    handle: apiserver::Handle,
    bindings: Api<ResourceBinding>,
    quotas: Api<FederatedResourceQuota>,
}

impl World {
    async fn start(data: &Path) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let environment = Arc::new(Environment::default());
        let features = Features::default()
            .with(FEDERATED_QUOTA_ENFORCEMENT, true)
            .with(MULTIPLE_POD_TEMPLATES_SCHEDULING, true);
        let settings = Settings { features, ..Settings::default() };
        let handle = apiserver::start(Options {
            profile: Profile::Karmada,
            definitions: api::crd::all().into_iter().chain(api::crd::aggregated()).collect(),
            plugins: vec![Arc::new(Karmada::new(settings, environment.clone()))],
            data_dir: Some(data.to_owned()),
            ..Options::default()
        })
        .await
        .expect("the server starts");
        let client = local::client(&handle.server, apiserver::auth::User::system("system:admin"));
        environment.connect(client.clone());
        let (bindings, quotas) =
            (Api::namespaced(client.clone(), "default"), Api::namespaced(client, "default"));
        Self { handle, bindings, quotas }
    }

    async fn limits(&self) -> BTreeMap<String, ResourceList> {
        let quotas = self.quotas.list(&ListParams::default()).await.expect("a list").items;
        quotas
            .into_iter()
            .map(|quota| (quota.metadata.name.unwrap_or_default(), quota.spec.overall))
            .collect()
    }

    /// Fails unless every quota in force has the existing usage. Returns the usage of each.
    async fn check(&self, when: &str) -> BTreeMap<String, ResourceList> {
        let bindings = self.bindings.list(&ListParams::default()).await.expect("a list").items;
        let quotas = self.quotas.list(&ListParams::default()).await.expect("a list").items;
        let mut all = BTreeMap::new();
        for quota in quotas {
            let name = quota.metadata.name.clone().unwrap_or_default();
            let exists =
                admission::usage::used(&quota.spec.overall, bindings.iter().map(|binding| &binding.spec));
            let in_force = admission::usage::same(&quota.status.overall, &quota.spec.overall);
            assert!(
                !in_force || admission::usage::same(&quota.status.overall_used, &exists),
                "{when}: {name} says {:?}, and there is {exists:?}",
                quota.status.overall_used
            );
            all.insert(name, exists);
        }
        all
    }
}

fn spec(dice: &mut Dice) -> Value {
    let resource =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "web" });
    let requests = |dice: &mut Dice| {
        json!({ "resourceRequest": {
            "cpu": dice.pick(&["1", "250m", "1500u", "0"]), "memory": dice.pick(&["1Gi", "100M", "1500m"]),
        } })
    };
    let clusters: Vec<Value> =
        (0..dice.below(3)).map(|n| json!({ "name": format!("m{n}"), "replicas": dice.below(4) })).collect();
    let mut spec = json!({ "resource": resource, "clusters": clusters });
    if dice.below(3) == 0 {
        // Sometimes the same name twice, which is refused after all other checks passed.
        let second = dice.pick(&["b", "b", "a"]);
        spec["components"] = json!([
            { "name": "a", "replicas": dice.below(3), "replicaRequirements": requests(dice) },
            { "name": second, "replicas": 1, "replicaRequirements": requests(dice) },
        ]);
    } else if dice.below(5) > 0 {
        spec["replicaRequirements"] = requests(dice);
    }
    spec
}

/// Takes one step. It may be refused: only the state afterwards counts.
async fn step(world: &World, seed: u64) {
    let dice = &mut Dice(seed | 1);
    let name = format!("b{}", dice.below(NAMES));
    let (create, patch) = (PostParams::default(), PatchParams::default());
    let finalizers = if dice.below(2) == 0 { json!([]) } else { json!(["example.com/wait"]) };
    let binding = |spec: Value, version: Option<String>| -> ResourceBinding {
        let metadata = json!({ "name": name, "finalizers": finalizers, "resourceVersion": version });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a binding")
    };
    let limits = json!({ "cpu": dice.pick(&["2", "6", "500m"]), "memory": dice.pick(&["2Gi", "10Gi"]) });
    let quota = format!("q{}", dice.below(2));
    match dice.below(20) {
        0..=6 => drop(world.bindings.create(&create, &binding(spec(dice), None)).await),
        7 => {
            let tried = PostParams { dry_run: true, ..PostParams::default() };
            drop(world.bindings.create(&tried, &binding(spec(dice), None)).await);
        }
        8..=10 => {
            let change = Patch::Merge(json!({ "spec": spec(dice) }));
            drop(world.bindings.patch(&name, &patch, &change).await);
        }
        11 => {
            // From a read a moment ago; other steps may be faster.
            let Ok(found) = world.bindings.get(&name).await else { return };
            tokio::task::yield_now().await;
            let newer = binding(spec(dice), found.metadata.resource_version);
            drop(world.bindings.replace(&name, &create, &newer).await);
        }
        12 => {
            let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            drop(world.bindings.patch(&name, &patch, &release).await);
        }
        13..=16 => drop(world.bindings.delete(&name, &DeleteParams::default()).await),
        17 => {
            let object = json!({ "metadata": { "name": quota }, "spec": { "overall": limits } });
            let object = serde_json::from_value(object).expect("a quota");
            drop(world.quotas.create(&create, &object).await);
        }
        18 => {
            let change = Patch::Merge(json!({ "spec": { "overall": limits } }));
            drop(world.quotas.patch(&quota, &patch, &change).await);
        }
        _ if dice.below(4) == 0 => drop(world.quotas.delete(&quota, &DeleteParams::default()).await),
        _ if dice.below(8) == 0 => {
            let (all, how) = (ListParams::default(), DeleteParams::default());
            drop(world.bindings.delete_collection(&how, &all).await);
        }
        _ => {}
    }
}

fn amount(list: &ResourceList, name: &str) -> apimachinery::quantity::Quantity {
    let text = list.get(name).map_or("0", |amount| &amount.0);
    apimachinery::quantity::Quantity::parse(text).expect("an amount")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_equal_the_existing_usage_whatever_happens() {
    let seed = std::env::var("KARMADA_RS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20);
    let data = tempfile::tempdir().expect("a folder");
    let mut world = World::start(data.path()).await;
    let mut dice = Dice(seed);
    let mut before = world.check("at first").await;
    let mut most = 0;
    for batch in 0..BATCHES {
        let when = format!("seed {seed}, batch {batch}");
        let limits_before = world.limits().await;
        let seeds: Vec<u64> = (0..=dice.below(AT_ONCE)).map(|_| dice.below(u64::MAX)).collect();
        join_all(seeds.into_iter().map(|seed| step(&world, seed))).await;
        if batch % 20 == 19 {
            world.handle.stop().await;
            world = World::start(data.path()).await;
        }
        let after = world.check(&when).await;
        most = most.max(world.bindings.list(&ListParams::default()).await.expect("a list").items.len());
        // A quota that had these limits all the time, and was not exceeded, is not exceeded now.
        for (name, limits) in world.limits().await {
            let (Some(used), Some(then)) = (after.get(&name), before.get(&name)) else { continue };
            for resource in limits.keys().filter(|_| limits_before.get(&name) == Some(&limits)) {
                let limit = amount(&limits, resource);
                assert!(
                    amount(used, resource) <= limit.max(amount(then, resource)),
                    "{when}: {name} is exceeded: {used:?} of {limits:?}, {then:?} before"
                );
            }
        }
        before = after;
    }
    assert!(most > 2, "seed {seed}: there were never more than {most} bindings");
    world.handle.stop().await;
}

/// A binding that is being deleted counts until it is gone.
#[tokio::test]
async fn a_charge_stays_for_as_long_as_the_binding_does() {
    let data = tempfile::tempdir().expect("a folder");
    let world = World::start(data.path()).await;
    let limits = json!({ "metadata": { "name": "q" }, "spec": { "overall": { "cpu": "4" } } });
    let limits = serde_json::from_value(limits).expect("a quota");
    world.quotas.create(&PostParams::default(), &limits).await.expect("a quota");
    let used = async || {
        let status = world.quotas.get("q").await.expect("the quota").status;
        status.overall_used.get("cpu").map_or_else(String::new, |amount| amount.0.clone())
    };
    let binding = |name: &str, replicas: u32| -> ResourceBinding {
        let spec = json!({
            "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": name },
            "clusters": [{ "name": "m1", "replicas": replicas }],
            "replicaRequirements": { "resourceRequest": { "cpu": "1" } },
        });
        let metadata = json!({ "name": name, "finalizers": ["example.com/wait"] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a binding")
    };
    let create = PostParams::default();
    world.bindings.create(&create, &binding("a", 3)).await.expect("it fits");
    assert_eq!(used().await, "3");
    let refused = world.bindings.create(&create, &binding("b", 2)).await.expect_err("too much").to_string();
    assert!(
        refused.contains(
            "admission webhook \"resourcebinding.karmada.io\" denied the request: FederatedResourceQuota(default/q) \
             exceeded for resource cpu: requested sum 5, limit 4."
        ),
        "{refused}"
    );
    assert_eq!(used().await, "3", "nothing is charged for what is refused");
    world.bindings.delete("a", &DeleteParams::default()).await.expect("it is marked");
    assert_eq!(used().await, "3");
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    world.bindings.patch("a", &PatchParams::default(), &release).await.expect("it goes");
    assert_eq!(used().await, "");
    world.bindings.create(&create, &binding("b", 2)).await.expect("it fits now");
    assert_eq!(used().await, "2");
    world.handle.stop().await;
}

/// Bindings that exist before their quota count from the first charge on.
#[tokio::test]
async fn a_quota_counts_what_was_there_before_it() {
    let data = tempfile::tempdir().expect("a folder");
    let world = World::start(data.path()).await;
    let spec = json!({
        "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "web" },
        "clusters": [{ "name": "m1", "replicas": 3 }],
        "replicaRequirements": { "resourceRequest": { "cpu": "1" } },
    });
    let spec: ResourceBindingSpec = serde_json::from_value(spec).expect("a spec");
    let create = PostParams::default();
    let binding = |name: &str| {
        let metadata = kube::api::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        ResourceBinding { metadata, spec: spec.clone(), ..ResourceBinding::default() }
    };
    world.bindings.create(&create, &binding("a")).await.expect("nothing limits it");
    let limits = json!({ "metadata": { "name": "q" }, "spec": { "overall": { "cpu": "5" } } });
    let limits = serde_json::from_value(limits).expect("a quota");
    world.quotas.create(&create, &limits).await.expect("a quota");
    let refused = world.bindings.create(&create, &binding("b")).await.expect_err("6 of 5").to_string();
    assert!(refused.contains("requested sum 6, limit 5."), "{refused}");
    world.bindings.delete("a", &DeleteParams::default()).await.expect("it goes");
    world.bindings.create(&create, &binding("b")).await.expect("3 of 5");
    let used = world.check("at the end").await;
    assert_eq!(amount(&used["q"], "cpu").to_string(), "3");
    world.handle.stop().await;
}
