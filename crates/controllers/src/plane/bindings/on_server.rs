//! The binding controller on a server: which Works are created and deleted, which events are sent, and which
//! bindings a change enqueues.

use api::policy::{ClusterOverridePolicy, OverridePolicy, PropagationPolicy};
use api::work::Work;
use http::Method;
use kube::api::{DeleteParams, ListParams};
use propagation::Object;
use runtime::Key;
use serde_json::json;

use super::*;
use crate::Settings;
use crate::fixtures::merged;
use crate::world::World;

struct Test {
    world: World,
    namespaced: Arc<Controller<ResourceBinding>>,
    cluster_wide: Arc<Controller<ClusterResourceBinding>>,
    queues: Queues,
}

impl Test {
    async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let world = World::with(settings).await;
        let (namespaced, cluster_wide, queues) = subscribed(&world.plane);
        Self { world, namespaced, cluster_wide, queues }
    }

    /// Creates a ConfigMap with a binding that asks for these clusters.
    async fn bound(&self, clusters: &[&String], otherwise: Value) -> Arc<ResourceBinding> {
        let template = self.world.template("web", json!({})).await;
        let targets: Vec<Value> = clusters.iter().map(|name| json!({ "name": name })).collect();
        let spec = json!({ "spec": {
            "placement": {}, "clusters": targets, "resource": { "uid": template.uid() },
        } });
        self.world.binding(merged(spec, otherwise)).await
    }

    async fn once(&self, binding: &ResourceBinding) -> Outcome {
        self.world.once(self.namespaced.as_ref(), &key(binding)).await
    }

    fn queued(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for queue in [&self.queues.namespaced, &self.queues.cluster] {
            keys.extend(
                queue.waiting().iter().map(|key| key.to_string().replace(&self.world.namespace, "*")),
            );
        }
        keys
    }

    async fn works(&self, cluster: &str) -> Vec<Work> {
        let api = self.world.api::<Work>(&api::names::execution_space(cluster));
        api.list(&ListParams::default()).await.expect("the server answers").items
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn each_cluster_gets_one_work_and_a_second_look_writes_nothing() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    let binding = test.bound(&[&m1, &m2], json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let mut writes = test.world.writes();
    writes.sort();
    assert_eq!(writes, ["POST karmada-es-*-m1/works", "POST karmada-es-*-m2/works"]);
    for cluster in [&m1, &m2] {
        let works = test.works(cluster).await;
        let manifest = &works[0].spec.workload.manifests[0];
        assert_eq!((works.len(), manifest["data"]["k"].as_str()), (1, Some("v")));
    }
    assert_eq!(test.world.event("SyncWorkSucceed").await, "Sync work of binding succeed.");
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn finding_25_a_binding_with_the_id_of_another_one_does_not_reach_its_works() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let victim = test.bound(&[&m1], json!({})).await;
    assert_eq!(test.once(&victim).await, Outcome::Done);
    let made = test.works(&m1).await;
    assert_eq!((made.len(), test.world.plane.works.of(victim.as_ref()).len()), (1, 1));
    // It asks for no cluster, and is purged from this one.
    let task = json!({ "fromCluster": m1, "purgeMode": "Directly", "reason": "r", "producer": "p" });
    let forged = json!({
        "metadata": { "name": "forged", "finalizers": ["karmada.io/binding-controller"] },
        "spec": {
            "placement": {}, "gracefulEvictionTasks": [task], "resource": { "name": "other", "uid": "" },
        },
    });
    let forged = test.world.binding(forged).await;
    assert_eq!(victim.permanent_id(), forged.permanent_id());
    assert!(test.world.plane.works.of(forged.as_ref()).is_empty());
    test.world.writes();
    assert_eq!(test.once(&forged).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert!(test.works(&m1).await.iter().all(|work| work.metadata.deletion_timestamp.is_none()));
    test.end().await;
}

#[tokio::test]
async fn a_cluster_that_does_not_exist_is_waited_for_and_holds_up_no_other() {
    let test = Test::new().await;
    let (m1, missing) = (test.world.cluster("m1", json!({})).await, test.world.own("m2"));
    let binding = test.bound(&[&m1, &missing], json!({})).await;
    let outcome = test.once(&binding).await;
    let expected = format!("waiting for cluster {missing} to exist");
    assert_eq!(outcome, Outcome::Failed { error: expected, conflict: false });
    assert_eq!(test.works(&m1).await.len(), 1);
    test.queues.namespaced.waiting();
    test.world.cluster("m2", json!({})).await;
    assert!(test.queued().contains(&"*/web-configmap".to_owned()), "the cluster that comes brings it up");
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.works(&missing).await.len(), 1);
    test.end().await;
}

#[tokio::test]
async fn a_work_that_is_refused_is_told_of_and_made_later() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let binding = test.bound(&[&m1], json!({})).await;
    test.world.refuse(Method::POST, "/works", 403, "Forbidden");
    let outcome = test.once(&binding).await;
    assert_eq!(outcome, Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false });
    assert_eq!(test.world.event("SyncWorkFailed").await, "refused: Forbidden");
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.works(&m1).await.len(), 1);
    test.end().await;
}

#[tokio::test]
async fn a_work_that_the_mirror_does_not_know_yet_is_a_conflict_and_not_an_error() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let binding = test.bound(&[&m1], json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let made = test.works(&m1).await.remove(0);
    test.world.environment.mirrors.works.remove(&Key::of(&made), 0);
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    test.world.environment.mirrors.works.note(made);
    assert_eq!(test.once(&binding).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn works_of_clusters_that_were_left_go() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    let binding = test.bound(&[&m1, &m2], json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let left = test.world.patch(binding.as_ref(), json!({ "spec": { "clusters": [{ "name": m1 }] } })).await;
    test.world.environment.mirrors.bindings.note(left);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let writes = test.world.writes();
    assert_eq!(writes.len(), 1);
    assert!(writes[0].starts_with("DELETE karmada-es-*-m2/works/"), "{writes:?}");
    let going = test.works(&m2).await.remove(0);
    assert!(going.metadata.deletion_timestamp.is_some(), "it waits for the execution controller");
    test.world.environment.mirrors.works.note(going.clone());
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it is told once");

    // It is gone, but the mirror does not know yet: deleting it again is fine.
    test.world.patch(&going, json!({ "metadata": { "finalizers": null } })).await;
    let mut present = going;
    present.metadata.deletion_timestamp = None;
    present.metadata.resource_version = Some("999999999".to_owned());
    test.world.environment.mirrors.works.note(present);
    assert_eq!(test.once(&binding).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn a_deletion_that_is_refused_is_told_of_before_anything_else_happens() {
    let test = Test::new().await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    let binding = test.bound(&[&m1], json!({})).await;
    test.world.work(&m2, json!({})).await;
    test.world.refuse(Method::DELETE, "/works/web-1", 409, "Conflict");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    test.world.refuse(Method::DELETE, "/works/web-1", 500, "InternalError");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    let told = test.world.event("CleanupWorkFailed").await;
    assert_eq!(told, "refused: InternalError", "a conflict is not told");
    assert!(test.works(&m1).await.is_empty(), "no Work is made before the old one is told to go");
    test.end().await;
}

#[tokio::test]
async fn too_many_at_once_are_held_until_somebody_agrees() {
    let limits = propagation::withdrawal::Limits { templates: 0, percent: 0 };
    let test = Test::with(Settings { removals: limits, ..Settings::default() }).await;
    let (m1, m2) = (test.world.cluster("m1", json!({})).await, test.world.cluster("m2", json!({})).await);
    let policy: Arc<PropagationPolicy> = test
        .world
        .put(
            &test.world.environment.mirrors.policies,
            json!({
                "metadata": { "name": "p", "namespace": test.world.namespace },
                "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
            }),
        )
        .await;
    let by = json!({ "metadata": { "annotations": {
        "propagationpolicy.karmada.io/name": "p", "propagationpolicy.karmada.io/namespace": test.world.namespace,
    } } });
    let binding = test.bound(&[&m1], by).await;
    test.world.work(&m2, json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */propagationpolicies/p", "POST karmada-es-*-m1/works"]);
    assert_eq!(test.works(&m2).await.len(), 1, "its copy stays");
    let held = test.world.stored(policy.as_ref()).await.expect("it exists");
    let note =
        held.metadata.annotations.as_ref().and_then(|notes| notes.get("policy.karmada.io/removals-held"));
    let id = note.and_then(|note| note.split(' ').next()).expect("a note with an id").to_owned();
    test.world.environment.mirrors.policies.note(held.clone());
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it waits");

    let agreed = json!({ "metadata": { "annotations": { "policy.karmada.io/allow-removals": id } } });
    test.world.environment.mirrors.policies.note(test.world.patch(&held, agreed).await);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["DELETE karmada-es-*-m2/works/web-1"]);
    test.end().await;
}

#[tokio::test]
async fn a_note_that_somebody_takes_off_brings_up_the_bindings_that_it_is_about() {
    let test = Test::new().await;
    let held = json!({ "policy.karmada.io/removals-held": "12345678 2026-01-01T00:00:00Z: 1 copy" });
    let policy: Arc<PropagationPolicy> = test
        .world
        .put(
            &test.world.environment.mirrors.policies,
            json!({
                "metadata": { "name": "p", "namespace": test.world.namespace, "annotations": held },
                "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
            }),
        )
        .await;
    let by = json!({ "metadata": { "annotations": {
        "propagationpolicy.karmada.io/name": "p", "propagationpolicy.karmada.io/namespace": test.world.namespace,
    } } });
    let binding = test.bound(&[], by).await;
    let queues = Queues { namespaced: Queue::new("namespaced"), cluster: Queue::new("cluster") };
    drop(removals::wire(&test.world.plane, &queues));
    let off = json!({ "metadata": { "annotations": { "policy.karmada.io/removals-held": null } } });
    test.world.environment.mirrors.policies.note(test.world.patch(policy.as_ref(), off).await);
    assert_eq!(queues.namespaced.waiting(), [key(binding.as_ref())]);
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_goes_takes_its_works_along_and_is_let_go() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let held = json!({ "metadata": { "finalizers": ["karmada.io/binding-controller"] } });
    let binding = test.bound(&[&m1], held).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    api.delete("web-configmap", &DeleteParams::default()).await.expect("told to go");
    let going = test.world.stored(binding.as_ref()).await.expect("it is held");
    test.world.environment.mirrors.bindings.note(going);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let writes = test.world.writes();
    assert_eq!(writes.len(), 2);
    assert!(writes[0].starts_with("DELETE karmada-es-*-m1/works/"), "{writes:?}");
    assert_eq!(writes[1], "PATCH */resourcebindings/web-configmap");
    assert!(test.world.stored(binding.as_ref()).await.is_none());
    assert_eq!(test.once(&binding).await, Outcome::Done, "once more is fine");
    test.end().await;
}

#[tokio::test]
async fn nothing_is_made_of_a_template_that_is_gone_or_another_one() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let absent =
        test.world.binding(json!({ "spec": { "placement": {}, "clusters": [{ "name": m1 }] } })).await;
    assert_eq!(test.once(&absent).await, Outcome::Done);
    test.world.template("web", json!({})).await;
    assert_eq!(test.once(&absent).await, Outcome::Done, "its uid is another one");
    assert!(test.works(&m1).await.is_empty());
    test.end().await;
}

#[tokio::test]
async fn an_override_that_fails_is_told_of_and_one_that_applies_as_well() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let mirror = &test.world.environment.mirrors.override_policies;
    let with = |path: &str| {
        json!({
            "metadata": { "name": "o", "namespace": test.world.namespace },
            "spec": {
                "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "web" }],
                "overrideRules": [{ "overriders": { "plaintext": [
                    { "path": path, "operator": "replace", "value": "overridden" },
                ] } }],
            },
        })
    };
    let policy: Arc<OverridePolicy> = test.world.put(mirror, with("/data/absent/k")).await;
    let binding = test.bound(&[&m1], json!({})).await;
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert!(!test.world.event("ApplyOverridePolicyFailed").await.is_empty());
    test.queues.namespaced.waiting();
    mirror.note(test.world.patch(policy.as_ref(), with("/data/k")).await);
    assert!(test.queued().contains(&"*/web-configmap".to_owned()), "what it selects is queued");
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let work = test.works(&m1).await.remove(0);
    assert_eq!(work.spec.workload.manifests[0]["data"]["k"], "overridden");
    assert!(test.world.event("ApplyOverridePolicySucceed").await.contains(&m1));
    test.end().await;
}

#[tokio::test]
async fn which_changes_bring_bindings_up() {
    let test = Test::new().await;
    let mirrors = &test.world.environment.mirrors;
    let m1 = test.world.cluster("m1", json!({})).await;
    let binding = test.bound(&[], json!({})).await;
    assert_eq!(test.queued(), ["*/web-configmap"], "it is new");
    let clear = || {
        while let Some(turn) = futures::FutureExt::now_or_never(runtime::Turns::next(
            test.queues.namespaced.as_ref(),
            &tokio_util::sync::CancellationToken::new(),
        )) {
            runtime::Turns::done(test.queues.namespaced.as_ref(), turn.expect("a turn"), Outcome::Done);
        }
    };
    clear();
    assert!(test.queued().is_empty());
    mirrors
        .bindings
        .note(test.world.patch(binding.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await);
    assert!(test.queued().is_empty(), "its generation did not move");
    mirrors.bindings.note(test.world.patch(binding.as_ref(), json!({ "spec": { "replicas": 3 } })).await);
    assert_eq!(test.queued(), ["*/web-configmap"]);
    clear();

    // A cluster with a leftover copy changes its labels.
    let work = test.world.work(&m1, json!({})).await;
    assert!(test.queued().is_empty());
    let cluster = mirrors.clusters.get("", &m1).expect("known");
    mirrors.clusters.note(
        test.world.patch(cluster.as_ref(), json!({ "metadata": { "annotations": { "a": "b" } } })).await,
    );
    assert!(test.queued().is_empty(), "that says nothing");
    mirrors.clusters.note(test.world.patch(cluster.as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(test.queued(), ["*/web-configmap"]);
    clear();
    let placed = json!({ "spec": { "clusters": [{ "name": m1 }] } });
    mirrors.bindings.note(test.world.patch(binding.as_ref(), placed).await);
    clear();
    mirrors.clusters.note(test.world.patch(cluster.as_ref(), json!({ "spec": { "region": "us" } })).await);
    assert!(test.queued().is_empty(), "it asks for that cluster");

    // A Work that vanishes.
    mirrors.works.remove(&Key::of(work.as_ref()), 0);
    assert_eq!(test.queued(), ["*/web-configmap"]);
    clear();

    // Cluster-wide override policies enqueue what they select, or everything.
    let elsewhere = json!({
        "metadata": { "name": test.world.own("o") },
        "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "Secret" }], "overrideRules": [] },
    });
    let policy: Arc<ClusterOverridePolicy> =
        test.world.put(&mirrors.cluster_override_policies, elsewhere).await;
    assert!(test.queued().is_empty());
    let everything = json!({ "spec": { "resourceSelectors": null } });
    mirrors.cluster_override_policies.note(test.world.patch(policy.as_ref(), everything).await);
    assert_eq!(test.queued(), ["*/web-configmap"]);
    test.end().await;
}

#[tokio::test]
async fn cluster_wide_bindings_have_a_queue_of_their_own() {
    let test = Test::new().await;
    let m1 = test.world.cluster("m1", json!({})).await;
    let name = test.world.own("ns");
    test.world.namespace(&name).await;
    let namespace: k8s_openapi::api::core::v1::Namespace =
        test.world.api("").get(&name).await.expect("it exists");
    let template = test.world.know(namespace);
    let binding: Arc<ClusterResourceBinding> = test
        .world
        .put(
            &test.world.environment.mirrors.cluster_bindings,
            json!({
                "metadata": {
                    "name": test.world.own("b"),
                    "labels": { "clusterresourcebinding.karmada.io/permanent-id": test.world.own("id") },
                },
                "spec": { "placement": {}, "clusters": [{ "name": m1 }], "resource": {
                    "apiVersion": "v1", "kind": "Namespace", "name": name, "uid": template.uid(),
                } },
            }),
        )
        .await;
    assert_eq!(test.queues.cluster.waiting(), [key(binding.as_ref())]);
    let reconciled = test.world.once(test.cluster_wide.as_ref(), &key(binding.as_ref())).await;
    assert_eq!(reconciled, Outcome::Done);
    assert_eq!(test.works(&m1).await.len(), 1);
    test.end().await;
}
