//! The detector on a server: claims, bindings, and what is not written twice.

use api::config::ResourceInterpreterCustomization;
use api::labels::{BINDING_MANAGED_BY, RESOURCE_TEMPLATE_CLAIMED_BY};
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use propagation::skip::SkipRules;
use serde_json::json;

use super::*;
use crate::Settings;
use crate::fixtures::{merged, read};
use crate::world::World;

pub(crate) struct Test {
    pub(crate) world: World,
    pub(crate) detector: Arc<Detector>,
}

impl Test {
    pub(crate) async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let world = World::with(settings).await;
        let detector = subscribed(&world.plane);
        Self { world, detector }
    }

    /// Creates a policy with an identity that selects ConfigMaps.
    pub(crate) async fn policy(&self, name: &str, otherwise: Value) -> Arc<PropagationPolicy> {
        let base = json!({
            "metadata": {
                "name": name, "namespace": self.world.namespace,
                "labels": { "propagationpolicy.karmada.io/permanent-id": self.world.own(name) },
            },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
        });
        self.world.put(&self.world.environment.mirrors.policies, merged(base, otherwise)).await
    }

    pub(crate) fn key(&self, name: &str) -> TemplateKey {
        let kind = apimachinery::gvk::Gvk::new("", "v1", "ConfigMap");
        TemplateKey { kind, namespace: self.world.namespace.clone(), name: name.to_owned() }
    }

    pub(crate) async fn once(&self, name: &str) -> Outcome {
        self.world.once(self.detector.as_ref(), &self.key(name)).await
    }

    /// Updates the mirror of templates with the current ConfigMap.
    pub(crate) async fn see(&self, name: &str) -> Value {
        let api = self.world.api::<ConfigMap>(&self.world.namespace);
        self.world.know(api.get(name).await.expect("it exists"))
    }

    pub(crate) async fn stored_binding(&self, name: &str) -> Option<ResourceBinding> {
        let api = self.world.api::<ResourceBinding>(&self.world.namespace);
        api.get_opt(&format!("{name}-configmap")).await.expect("the server answers")
    }

    pub(crate) fn claimed_by(&self, metadata: &ObjectMeta) -> Option<String> {
        let labels = metadata.labels.as_ref()?;
        labels.get("propagationpolicy.karmada.io/permanent-id").cloned()
    }

    pub(crate) async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

const CLAIM: &str = "PATCH */configmaps/web";
const BIND: &str = "POST */resourcebindings";

#[tokio::test]
async fn a_template_is_claimed_and_bound_once() {
    let test = Test::new().await;
    test.policy("p", json!({})).await;
    test.world.template("web", json!({})).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [CLAIM, BIND]);
    let binding = test.stored_binding("web").await.expect("a binding");
    assert_eq!(test.claimed_by(&binding.metadata), Some(test.world.own("p")));
    assert!(!Binding::permanent_id(&binding).is_empty());
    assert!(test.world.event("ApplyPolicySucceed").await.contains("Apply policy"));

    // The watch shows our own claim, and then a status, and then a change of its data.
    let seen = test.see("web").await;
    assert_eq!(binding.spec.resource.resource_version, seen["metadata"]["resourceVersion"]);
    assert_eq!(test.detector.templates.waiting(), [test.key("web")]);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    let made: ConfigMap = read(seen);
    test.world.know(test.world.patch(&made, json!({ "data": { "k": "w" } })).await);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */resourcebindings/web-configmap"]);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn finding_25_a_priority_class_whose_name_is_a_path_is_not_read() {
    for name in ["../../../../api/v1/secrets", "a?watch=true", "a#"] {
        let test = Test::new().await;
        let priority = json!({ "priorityClassSource": "KubePriorityClass", "priorityClassName": name });
        test.policy("p", json!({ "spec": { "schedulePriority": priority } })).await;
        test.world.template("web", json!({})).await;
        test.world.writes();
        let ended = test.once("web").await;
        let Outcome::Failed { error, conflict: false } = ended else {
            panic!("there is no such class: {ended:?}")
        };
        assert_eq!(error, format!("priority class {name} not found"));
        assert!(test.stored_binding("web").await.is_none(), "as with any class that does not exist");
        let reads = test.world.reads();
        assert!(!reads.iter().any(|path| path.contains("priorityclasses")), "{reads:?}");
        test.end().await;
    }
}

#[tokio::test]
async fn a_claim_and_a_binding_do_not_wait_for_the_disk() {
    let test = Test::new().await;
    test.policy("p", json!({})).await;
    test.world.template("web", json!({})).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.durable_writes(), [""; 0], "the policy claims and binds it again after a crash");
    assert!(test.stored_binding("web").await.is_some());
    test.end().await;
}

#[tokio::test]
async fn components_that_are_listed_and_that_cannot_be_are_told_of() {
    let gate = api::features::MULTIPLE_POD_TEMPLATES_SCHEDULING;
    let features = Settings::default().features.with(gate, true);
    let test = Test::with(Settings { features, ..Settings::default() }).await;
    let customizations = &test.world.environment.mirrors.customizations;
    let script = |text: &str| {
        json!({
            "metadata": { "name": test.world.own("parts") },
            "spec": {
                "target": { "apiVersion": "v1", "kind": "ConfigMap" },
                "customizations": { "componentResource": { "luaScript": text } },
            },
        })
    };
    let fails = script("function GetComponents(o) return o.x.y end");
    let customization: Arc<ResourceInterpreterCustomization> = test.world.put(customizations, fails).await;
    test.policy("p", json!({})).await;
    test.world.template("web", json!({})).await;
    let outcome = test.once("web").await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert!(test.world.event("GetComponentsFailed").await.contains("InterpretComponent"));
    let lists = script("function GetComponents(o) return {{name = 'leader', replicas = 1}} end");
    customizations.note(test.world.patch(customization.as_ref(), lists).await);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.stored_binding("web").await.expect("a binding").spec.components.len(), 1);
    assert!(test.world.event("GetComponentsSucceed").await.starts_with("Get components of"));
    test.end().await;
}

#[tokio::test]
async fn what_another_controller_claims_in_the_meantime_is_left_to_it() {
    let test = Test::new().await;
    test.policy("p", json!({})).await;
    let claimed_by =
        |holder: Value| json!({ "metadata": { "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: holder } } });
    // The mirror does not show that claim yet; the answer to ours does.
    let made: ConfigMap = read(test.world.template("web", json!({})).await);
    test.world.patch(&made, claimed_by(json!("X"))).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [CLAIM]);
    assert!(test.stored_binding("web").await.is_none());

    // Ours came first, but the binding is the other controller's by now.
    let free = test.world.patch(&made, claimed_by(Value::Null)).await;
    test.world.know(free);
    let binding = json!({
        "metadata": {
            "name": "web-configmap", "namespace": test.world.namespace, "labels": { BINDING_MANAGED_BY: "X" },
        },
        "spec": { "resource": { "apiVersion": "v1", "kind": "ConfigMap", "name": "web" } },
    });
    let _: Arc<ResourceBinding> = test.world.put(&test.world.environment.mirrors.bindings, binding).await;
    test.world.patch(&made, claimed_by(json!("X"))).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);

    // A label that was left on the binding blocks nothing.
    test.world.patch(&made, claimed_by(Value::Null)).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), ["PATCH */resourcebindings/web-configmap"]);
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_another_controller_writes_at_this_moment_is_left_to_it() {
    let test = Test::new().await;
    let world = &test.world;
    world.plane.templates.learn("", "v1", "Service", true);
    let selectors = json!({ "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "Service" }] } });
    let policy = test.policy("p", selectors).await;
    let named = json!({ "name": "web", "namespace": world.namespace });
    let made: Service =
        world.create(json!({ "metadata": named, "spec": { "ports": [{ "port": 80 }] } })).await;
    world.know(made.clone());
    let kind = apimachinery::gvk::Gvk::new("", "v1", "Service");
    let key = TemplateKey { kind, namespace: world.namespace.clone(), name: "web".to_owned() };
    assert_eq!(world.once(test.detector.as_ref(), &key).await, Outcome::Done);
    world.know(world.stored(&made).await.expect("the Service"));
    let mirrors = &world.environment.mirrors;
    let bound = mirrors.bindings.get(&world.namespace, "web-service").expect("it is bound");

    // The policy changes its mind while the other controller writes; the mirror shows nothing of that yet.
    let placed = |cluster: &str| json!({ "placement": { "clusterAffinity": { "clusterNames": [cluster] } } });
    let theirs = json!({ "metadata": { "labels": { BINDING_MANAGED_BY: "X" } }, "spec": placed("m1") });
    world.patch(bound.as_ref(), theirs).await;
    mirrors.policies.note(world.patch(policy.as_ref(), json!({ "spec": placed("m2") })).await);
    // Nor does it show our claim, which is not written twice.
    world.know(made.clone());
    world.writes();
    let outcome = world.once(test.detector.as_ref(), &key).await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(world.writes(), ["PATCH */resourcebindings/web-service"]);
    let stored = world.stored(bound.as_ref()).await.expect("the binding");
    let placement = stored.spec.placement.unwrap_or_default();
    assert_eq!(placement.cluster_affinity.unwrap_or_default().cluster_names, ["m1"]);
    test.end().await;
}

#[tokio::test]
async fn a_template_that_nobody_selects_waits() {
    let test = Test::new().await;
    test.world.template("web", json!({})).await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done, "one look is enough");
    assert_eq!(test.world.writes(), [""; 0]);
    assert_eq!(test.detector.waiting.lock().len(), 1);
    // The changes that were seen are still known when a policy appears.
    let policy = test.policy("p", json!({ "spec": { "activationPreference": "Lazy" } })).await;
    assert_eq!(test.detector.policies.waiting(), [Key::of(policy.as_ref())]);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert!(test.detector.waiting.lock().is_empty());
    test.end().await;
}

#[tokio::test]
async fn what_policies_pass_over_is_not_claimed_though_it_is_mirrored() {
    for skip in [SkipRules::new("v1/ConfigMap", []), SkipRules::new("", ["world-.*"])] {
        let test = Test::with(Settings { skip: skip.expect("a rule"), ..Settings::default() }).await;
        test.policy("p", json!({})).await;
        test.world.template("web", json!({})).await;
        assert!(test.detector.templates.waiting().is_empty(), "nobody is told of it");
        test.world.writes();
        // As if the binding of something that depends on it had vanished.
        assert_eq!(test.once("web").await, Outcome::Done);
        assert_eq!(test.world.writes(), [""; 0]);
        assert!(test.detector.waiting.lock().is_empty());
        test.end().await;
    }
}

#[tokio::test]
async fn a_policy_that_comes_during_the_first_look_is_not_missed() {
    let test = Test::new().await;
    test.world.template("web", json!({})).await;
    let key = test.key("web");
    let looked = test.detector.observe(&key).await.expect("no error").expect("a template");
    let plan = <Detector as Reconcile>::decide(&looked, Timestamp::now());
    assert!(matches!(plan, Plan::Wait), "{plan:?}");
    test.policy("p", json!({})).await;
    let outcome = test.detector.apply(&key, looked, plan).await.expect("no error");
    assert_eq!(outcome, Outcome::After(Duration::ZERO), "it has not seen the template waiting");
    assert_eq!(test.once("web").await, Outcome::Done);
    assert!(test.stored_binding("web").await.is_some());
    test.end().await;
}

#[tokio::test]
async fn a_lazy_policy_claims_at_once_and_binds_when_a_user_comes() {
    let test = Test::new().await;
    test.policy("p", json!({ "spec": { "activationPreference": "Lazy" } })).await;
    let template = test.world.template("web", json!({})).await;
    // As if the policy had enqueued it.
    test.detector.touches.take(&test.key("web")).settle();
    test.detector.push_for_policy(test.key("web"), true);
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [CLAIM]);
    let claimed = test.see("web").await;
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "our own claim is not a user's touch");
    assert_ne!(claimed, template);
    test.world.know(test.world.patch(&read::<ConfigMap>(claimed), json!({ "data": { "k": "w" } })).await);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [BIND]);
    test.end().await;
}

#[tokio::test]
async fn a_lazy_policy_binds_what_another_one_has_released() {
    let test = Test::new().await;
    let first = test.policy("a", json!({})).await;
    test.policy("b", json!({ "spec": { "activationPreference": "Lazy" } })).await;
    test.world.template("web", json!({})).await;
    assert_eq!(test.once("web").await, Outcome::Done);
    test.see("web").await;
    assert_eq!(test.once("web").await, Outcome::Done);
    let binding = test.stored_binding("web").await.expect("a binding");
    assert_eq!(test.claimed_by(&binding.metadata), Some(test.world.own("a")));
    test.world.environment.mirrors.policies.remove(&Key::of(first.as_ref()), 0);
    assert_eq!(test.once("web").await, Outcome::Done, "it is released");
    test.see("web").await;
    assert_eq!(test.once("web").await, Outcome::Done);
    let binding = test.stored_binding("web").await.expect("the binding");
    assert_eq!(test.claimed_by(&binding.metadata), Some(test.world.own("b")));
    // The claim of the lazy policy does not count as a touch.
    test.see("web").await;
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_fails_keeps_what_was_seen() {
    let test = Test::new().await;
    test.policy("p", json!({ "spec": { "activationPreference": "Lazy" } })).await;
    test.world.template("web", json!({})).await;
    test.world.refuse(Method::POST, "/resourcebindings", 500, "InternalError");
    let outcome = test.once("web").await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert!(test.world.event("ApplyPolicyFailed").await.contains("refused: InternalError"));
    assert!(test.stored_binding("web").await.is_none());
    assert_eq!(test.once("web").await, Outcome::Done, "a user has touched it, and that is not forgotten");
    assert!(test.stored_binding("web").await.is_some());
    test.end().await;
}

#[tokio::test]
async fn a_template_that_vanished_or_goes_gets_nothing() {
    let test = Test::new().await;
    test.policy("p", json!({})).await;
    let template = test.world.template("web", json!({})).await;
    let api = test.world.api::<ConfigMap>(&test.world.namespace);
    api.delete("web", &kube::api::DeleteParams::default()).await.expect("deleted");
    assert_eq!(test.once("web").await, Outcome::Done, "it is gone before it is claimed");
    assert!(test.stored_binding("web").await.is_none());
    test.world.plane.templates.forget(&template);
    test.detector.bound.lock().insert(test.key("web"), template);
    assert_eq!(test.once("web").await, Outcome::Done);
    assert!(test.detector.bound.lock().is_empty(), "nothing is remembered of it");
    test.end().await;
}

#[tokio::test]
async fn a_policy_that_waits_for_override_policies_holds_its_templates_back() {
    let test = Test::new().await;
    test.policy("p", json!({ "spec": { "dependentOverrides": ["o1"] } })).await;
    test.world.template("web", json!({})).await;
    test.world.writes();
    let expected = "waiting for override policies o1".to_owned();
    assert_eq!(test.once("web").await, Outcome::Failed { error: expected, conflict: false });
    assert_eq!(test.world.writes(), [""; 0]);
    let own = json!({
        "metadata": { "name": "o1", "namespace": test.world.namespace },
        "spec": { "resourceSelectors": [], "overrideRules": [] },
    });
    test.world.put(&test.world.environment.mirrors.override_policies, own).await;
    assert_eq!(test.detector.templates.waiting(), [test.key("web")], "it is brought up");
    assert!(test.detector.blocked.lock().is_empty());
    assert_eq!(test.once("web").await, Outcome::Done);
    assert!(test.stored_binding("web").await.is_some());
    test.end().await;
}

#[tokio::test]
async fn the_claim_of_a_policy_that_is_gone_is_taken_off() {
    let test = Test::new().await;
    let policy = test.policy("p", json!({})).await;
    test.world.template("web", json!({})).await;
    assert_eq!(test.once("web").await, Outcome::Done);
    test.see("web").await;
    assert_eq!(test.detector.bindings_of(&test.world.own("p")).len(), 1);
    test.world.environment.mirrors.policies.remove(&Key::of(policy.as_ref()), 0);
    test.world.writes();
    assert_eq!(test.once("web").await, Outcome::Done);
    assert_eq!(test.world.writes(), [CLAIM, "PATCH */resourcebindings/web-configmap"]);
    let released = test.see("web").await;
    assert!(Claim::read(&released).is_none());
    let binding = test.stored_binding("web").await.expect("it stays: what runs keeps running");
    assert_eq!(test.claimed_by(&binding.metadata), None);
    test.world.environment.mirrors.bindings.note(binding);
    assert!(test.detector.bindings_of(&test.world.own("p")).is_empty());
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_vanished_is_made_again_and_one_that_goes_is_waited_for() {
    let test = Test::new().await;
    test.policy("p", json!({})).await;
    test.world.template("web", json!({})).await;
    assert_eq!(test.once("web").await, Outcome::Done);
    test.see("web").await;
    assert_eq!(test.once("web").await, Outcome::Done);
    let mirror = &test.world.environment.mirrors.bindings;
    let binding = test.stored_binding("web").await.expect("a binding");
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    let held = json!({ "metadata": { "finalizers": ["example.io/held"] } });
    test.world.patch(&binding, held).await;
    api.delete("web-configmap", &kube::api::DeleteParams::default()).await.expect("told to go");
    mirror.note(test.stored_binding("web").await.expect("held"));
    let made: ConfigMap = read(test.see("web").await);
    test.world.know(test.world.patch(&made, json!({ "data": { "k": "w" } })).await);
    let expected = "waiting for binding web-configmap to go".to_owned();
    assert_eq!(test.once("web").await, Outcome::Failed { error: expected, conflict: false });
    test.world.patch(&binding, json!({ "metadata": { "finalizers": null } })).await;
    mirror.remove(&Key::of(&binding), 0);
    assert!(test.detector.templates.waiting().contains(&test.key("web")), "it is queued again");
    assert_eq!(test.once("web").await, Outcome::Done);
    let again = test.stored_binding("web").await.expect("a new one");
    assert_ne!(again.metadata.uid, binding.metadata.uid);
    test.end().await;
}

#[tokio::test]
async fn a_template_of_a_cluster_policy_and_without_namespace_is_bound_cluster_wide() {
    let test = Test::new().await;
    let name = test.world.own("target");
    test.world.namespace(&name).await;
    let policy: Arc<ClusterPropagationPolicy> = test
        .world
        .put(
            &test.world.environment.mirrors.cluster_policies,
            json!({
                "metadata": {
                    "name": test.world.own("c"),
                    "labels": { "clusterpropagationpolicy.karmada.io/permanent-id": test.world.own("c") },
                },
                "spec": {
                    "resourceSelectors": [{ "apiVersion": "v1", "kind": "Namespace", "name": name }],
                    "placement": {}, "schedulePriority": { "priorityClassSource": "KubePriorityClass", "priorityClassName": "none" },
                },
            }),
        )
        .await;
    let namespace: k8s_openapi::api::core::v1::Namespace =
        test.world.api("").get(&name).await.expect("it exists");
    let key = TemplateKey::of(&test.world.know(namespace));
    assert_eq!(test.world.once(test.detector.as_ref(), &key).await, Outcome::Done);
    let binding = test.world.api::<ClusterResourceBinding>("").get(&format!("{name}-namespace")).await;
    let labels = binding.expect("a binding").metadata.labels.unwrap_or_default();
    let id = labels.get("clusterpropagationpolicy.karmada.io/permanent-id");
    assert_eq!(id, Some(&test.world.own("c")));
    assert_eq!(test.detector.cluster_policies.waiting(), [Key::of(policy.as_ref())]);
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_of_the_template() {
    let test = Test::new().await;
    test.world.template("web", json!({})).await;
    let told = test.world.panicked(&test.detector.templates, test.key("web")).await;
    assert!(told.contains("by accident"), "{told}");
    test.world.supervisor.stop().await;
}
