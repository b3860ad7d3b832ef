//! The distributor on a server: what is attached, detached and recorded, and which change enqueues which
//! binding.

use http::Method;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use propagation::skip::SkipRules;
use serde_json::json;

use super::*;
use crate::Settings;
use crate::fixtures::{merged, read};
use crate::world::World;

struct Test {
    world: World,
    distributor: Arc<Distributor>,
}

impl Test {
    async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let world = World::with(settings).await;
        let distributor = subscribed(&world.plane);
        Self { world, distributor }
    }

    /// Creates a Deployment that mounts ConfigMaps, and the templates know it.
    async fn deployment(&self, name: &str, maps: &[&str]) -> Value {
        let volume = |map: &&str| json!({ "name": map, "configMap": { "name": map } });
        let volumes: Vec<Value> = maps.iter().map(volume).collect();
        let made = self.world.create::<Deployment>(json!({
            "metadata": { "name": name, "namespace": self.world.namespace },
            "spec": {
                "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } }, "spec": {
                    "containers": [{ "name": "c", "image": "i" }], "volumes": volumes,
                } },
            },
        }));
        let mut template = serde_json::to_value(made.await).expect("a tree");
        template["apiVersion"] = "apps/v1".into();
        template["kind"] = "Deployment".into();
        self.world.plane.templates.note(&template);
        template
    }

    /// Creates the binding of a Deployment that brings along what it needs.
    async fn binding(&self, template: &Value, otherwise: Value) -> Arc<ResourceBinding> {
        let name = template["metadata"]["name"].as_str().expect("a name");
        let base = json!({
            "metadata": {
                "name": format!("{name}-deployment"),
                "labels": { "resourcebinding.karmada.io/permanent-id": self.world.own(name) },
            },
            "spec": {
                "propagateDeps": true, "clusters": [{ "name": "m1" }],
                "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": template["metadata"]["uid"] },
            },
        });
        self.world.binding(merged(base, otherwise)).await
    }

    async fn once(&self, binding: &ResourceBinding) -> Outcome {
        self.world.once(self.distributor.as_ref(), &Key::of(binding)).await
    }

    /// Returns the binding of a ConfigMap.
    async fn attached(&self, map: &str) -> Option<ResourceBinding> {
        let api = self.world.api::<ResourceBinding>(&self.world.namespace);
        api.get_opt(&format!("{map}-configmap")).await.expect("the server answers")
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn needed_in(binding: &ResourceBinding) -> Vec<&str> {
    binding.spec.required_by.iter().flat_map(|by| &by.clusters).map(|target| target.name.as_str()).collect()
}

#[tokio::test]
async fn what_a_template_needs_is_attached_once() {
    let test = Test::new().await;
    let app = test.deployment("app", &["conf", "absent"]).await;
    test.world.template("conf", json!({})).await;
    let binding = test.binding(&app, json!({})).await;
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let expected = ["PATCH */resourcebindings/app-deployment", "POST */resourcebindings"];
    assert_eq!(test.world.writes(), expected);
    let attached = test.attached("conf").await.expect("a binding");
    assert_eq!(needed_in(&attached), ["m1"]);
    assert!(is_attached(&attached) && !propagation::Binding::permanent_id(&attached).is_empty());
    let recorded = test.world.stored(binding.as_ref()).await.expect("it exists");
    assert!(decide::is_held(&recorded));
    assert_eq!(dependencies::parse(&recorded).expect("a record").len(), 2, "also what does not exist yet");
    assert!(test.world.event("GetDependenciesSucceed").await.contains("app"));
    assert!(!test.world.event("SyncScheduleResultToDependenciesSucceed").await.is_empty());

    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);

    // The other one appears, and enqueues the binding.
    test.world.template("absent", json!({})).await;
    assert!(test.distributor.queue.waiting().contains(&Key::of(binding.as_ref())));
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */resourcebindings"]);
    test.end().await;
}

#[tokio::test]
async fn what_is_needed_is_attached_although_policies_pass_over_it() {
    for skip in [SkipRules::new("v1/ConfigMap", []), SkipRules::new("", ["world-.*"])] {
        let test = Test::with(Settings { skip: skip.expect("a rule"), ..Settings::default() }).await;
        let app = test.deployment("app", &["conf"]).await;
        test.world.template("conf", json!({})).await;
        let binding = test.binding(&app, json!({})).await;
        assert_eq!(test.once(&binding).await, Outcome::Done);
        assert_eq!(needed_in(&test.attached("conf").await.expect("a binding")), ["m1"]);
        test.end().await;
    }
}

#[tokio::test]
async fn objects_of_a_kind_that_is_not_mirrored_yet_are_waited_for() {
    let skip = SkipRules::new("v1/ConfigMap", []).expect("a rule");
    let test = Test::with(Settings { skip, ..Settings::default() }).await;
    let selected: DependentObjectReference = read(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "namespace": test.world.namespace, "labelSelector": {},
    }));
    test.world.template("conf", json!({})).await;
    // In this test world, no list ever completes.
    let found = test.distributor.objects(&selected).await;
    assert!(matches!(found, Err(Error::Waiting(_))), "{found:?}");
    let named = DependentObjectReference { name: "conf".to_owned(), ..selected };
    assert_eq!(test.distributor.objects(&named).await.expect("found").len(), 1, "one by name needs no list");
    test.end().await;
}

#[tokio::test]
async fn what_a_selector_covers_is_looked_up_before_it_counts_as_gone() {
    let test = Test::new().await;
    let conf = test.world.template("conf", json!({ "metadata": { "labels": { "a": "b" } } })).await;
    let app = test.deployment("app", &["conf"]).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let selected: DependentObjectReference = read(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "namespace": test.world.namespace,
        "labelSelector": { "matchLabels": { "a": "b" } },
    }));
    let wanted = Wanted::These(vec![selected]);
    // The mirror of its kind is being filled, or its kind was not served for a moment.
    test.world.plane.templates.forget(&conf);
    test.world.refuse(Method::GET, "/configmaps/conf", 500, "InternalError");
    assert!(test.distributor.attached(&binding, &wanted).await.is_err(), "nothing is concluded from silence");
    let seen = test.distributor.attached(&binding, &wanted).await.expect("the server answers");
    assert_eq!(seen.len(), 1);
    assert!(seen[0].object.is_some(), "not in the mirror is not gone");

    let maps = test.world.api::<ConfigMap>(&test.world.namespace);
    maps.delete("conf", &kube::api::DeleteParams::default()).await.expect("deleted");
    let seen = test.distributor.attached(&binding, &wanted).await.expect("the server answers");
    assert!(seen[0].object.is_none());
    test.end().await;
}

#[tokio::test]
async fn what_is_needed_follows_to_other_clusters() {
    let test = Test::new().await;
    let app = test.deployment("app", &["conf"]).await;
    test.world.template("conf", json!({})).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let moved = json!({ "spec": { "clusters": [{ "name": "m2" }, { "name": "m3" }] } });
    let newest = test.world.environment.mirrors.bindings.find(&Key::of(binding.as_ref())).expect("known");
    test.world.environment.mirrors.bindings.note(test.world.patch(newest.as_ref(), moved).await);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */resourcebindings/conf-configmap"]);
    assert_eq!(needed_in(&test.attached("conf").await.expect("a binding")), ["m2", "m3"]);
    test.end().await;
}

#[tokio::test]
async fn two_that_need_the_same_share_it_and_their_disagreement_is_told_once() {
    let test = Test::new().await;
    test.world.template("conf", json!({})).await;
    let first = test.deployment("first", &["conf"]).await;
    let first = test.binding(&first, json!({ "spec": { "conflictResolution": "Overwrite" } })).await;
    let second = test.deployment("second", &["conf"]).await;
    let second = test.binding(&second, json!({ "spec": { "clusters": [{ "name": "m2" }] } })).await;
    assert_eq!(test.once(&first).await, Outcome::Done);
    assert_eq!(test.once(&second).await, Outcome::Done);
    let attached = test.attached("conf").await.expect("a binding");
    let mut clusters = needed_in(&attached);
    clusters.sort_unstable();
    assert_eq!(clusters, ["m1", "m2"]);
    assert!(test.world.event("DependencyPolicyConflict").await.contains("ConflictResolution"));
    assert_eq!(test.distributor.told.lock().len(), 1);
    test.world.writes();
    assert_eq!(test.once(&second).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_is_no_longer_needed_is_detached() {
    let test = Test::new().await;
    test.world.template("conf", json!({})).await;
    let app = test.deployment("app", &["conf"]).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let mut without = app.clone();
    without["spec"]["template"]["spec"]["volumes"] = json!([]);
    without["metadata"]["resourceVersion"] = "999999999".into();
    without["metadata"]["labels"] = json!({ "propagationpolicy.karmada.io/permanent-id": "x" });
    test.world.plane.templates.note(&without);
    test.world.writes();
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let detached = test.attached("conf").await.expect("the binding stays");
    assert!(needed_in(&detached).is_empty() && !is_attached(&detached));
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_stops_bringing_others_along_lets_them_go_and_is_let_go() {
    let test = Test::new().await;
    test.world.template("conf", json!({})).await;
    let app = test.deployment("app", &["conf"]).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let mirror = &test.world.environment.mirrors.bindings;
    let newest = mirror.find(&Key::of(binding.as_ref())).expect("known");
    mirror.note(test.world.patch(newest.as_ref(), json!({ "spec": { "propagateDeps": false } })).await);
    assert!(test.distributor.queue.waiting().contains(&Key::of(binding.as_ref())));
    // The first attempt to detach fails: the binding stays held.
    test.world.refuse(Method::PATCH, "/resourcebindings/conf-configmap", 500, "InternalError");
    let outcome = test.once(&binding).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert!(decide::is_held(&test.world.stored(binding.as_ref()).await.expect("it exists")));
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert!(!decide::is_held(&test.world.stored(binding.as_ref()).await.expect("it exists")));
    assert!(needed_in(&test.attached("conf").await.expect("it stays")).is_empty());
    test.end().await;
}

#[tokio::test]
async fn an_attached_binding_that_vanished_needs_no_detaching() {
    let test = Test::new().await;
    test.world.template("conf", json!({})).await;
    let app = test.deployment("app", &["conf"]).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    let attached = test.attached("conf").await.expect("a binding");
    test.world.patch(&attached, json!({ "metadata": { "finalizers": null } })).await;
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    api.delete("conf-configmap", &kube::api::DeleteParams::default()).await.expect("deleted");
    let mirror = &test.world.environment.mirrors.bindings;
    let newest = mirror.find(&Key::of(binding.as_ref())).expect("known");
    mirror.note(test.world.patch(newest.as_ref(), json!({ "spec": { "propagateDeps": false } })).await);
    assert_eq!(test.once(&binding).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn what_cannot_be_attached_holds_up_no_other_and_is_told() {
    let test = Test::new().await;
    for name in ["one", "two"] {
        test.world.template(name, json!({})).await;
    }
    let app = test.deployment("app", &["one", "two"]).await;
    let binding = test.binding(&app, json!({})).await;
    test.world.refuse(Method::POST, "/resourcebindings", 403, "Forbidden");
    let outcome = test.once(&binding).await;
    assert_eq!(outcome, Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false });
    let made = [test.attached("one").await.is_some(), test.attached("two").await.is_some()];
    assert_eq!(made.iter().filter(|made| **made).count(), 1);
    assert_eq!(test.world.event("SyncScheduleResultToDependenciesFailed").await, "refused: Forbidden");
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert!(test.attached("one").await.is_some() && test.attached("two").await.is_some());
    test.end().await;
}

#[tokio::test]
async fn a_template_that_is_missing_is_waited_for() {
    let test = Test::new().await;
    let app = json!({ "metadata": { "name": "app", "uid": "u" } });
    let binding = test.binding(&app, json!({})).await;
    let expected = "waiting for the template of binding app-deployment".to_owned();
    assert_eq!(test.once(&binding).await, Outcome::Failed { error: expected, conflict: false });
    assert_eq!(test.world.once(test.distributor.as_ref(), &Key::new("a", "b")).await, Outcome::Done);
    test.end().await;
}

#[tokio::test]
async fn what_is_known_of_bindings_goes_with_them() {
    let test = Test::new().await;
    test.world.template("conf", json!({})).await;
    let app = test.deployment("app", &["conf"]).await;
    let binding = test.binding(&app, json!({})).await;
    assert_eq!(test.once(&binding).await, Outcome::Done);
    assert_eq!(test.distributor.attached.lock().len(), 1);
    let mirror = &test.world.environment.mirrors.bindings;
    let attached = test.attached("conf").await.expect("a binding");
    test.distributor.told.lock().insert(Key::of(&attached), "m".to_owned());
    mirror.remove(&Key::of(&attached), 0);
    mirror.remove(&Key::of(binding.as_ref()), 0);
    assert!(test.distributor.attached.lock().is_empty() && test.distributor.told.lock().is_empty());
    let before = test.distributor.queue.waiting().len();
    test.world.template("other", json!({})).await;
    assert_eq!(test.distributor.queue.waiting().len(), before, "nobody depends on it");
    test.end().await;
}
