//! Laws that hold for any policies and objects.

use std::cmp::Reverse;
use std::sync::Arc;

use api::cluster::Cluster;
use api::policy::{ClusterOverridePolicy, PropagationPolicy, ResourceSelector};
use interpreter::{Interpreter, at_once};
use propagation::delivery::{self, Decision};
use propagation::index::SelectorIndex;
use propagation::overrides::Overrides;
use propagation::policies::{Policy, PolicyIndex};
use propagation::render::DesiredWork;
use propagation::selector::matches_any;
use proptest::prelude::*;
use serde_json::{Value, json};

fn word(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

fn selector() -> impl Strategy<Value = ResourceSelector> {
    let labels = prop::option::of(word(&["x", "y"]));
    (word(&["Deployment", "Secret"]), word(&["", "n1", "n2"]), word(&["", "", "a", "b"]), labels).prop_map(
        |(kind, namespace, name, label)| {
            let labels = label.map(|label| json!({"matchLabels": {"l": label}}));
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": kind, "namespace": namespace, "name": name, "labelSelector": labels,
            }))
            .expect("a selector")
        },
    )
}

fn object() -> impl Strategy<Value = Value> {
    (word(&["Deployment", "Secret"]), word(&["", "n1", "n2"]), word(&["a", "b"]), word(&["x", "y", "z"]))
        .prop_map(|(kind, namespace, name, label)| {
            json!({
                "apiVersion": "v1", "kind": kind,
                "metadata": {"namespace": namespace, "name": name, "labels": {"l": label}},
            })
        })
}

fn policy() -> impl Strategy<Value = PropagationPolicy> {
    let selectors = prop::collection::vec(selector(), 1..4);
    (word(&["n1", "n2"]), word(&["p", "q", "r", "s"]), -1..2_i32, selectors).prop_map(
        |(namespace, name, priority, selectors)| {
            let mut policy = PropagationPolicy::default();
            policy.metadata.namespace = Some(namespace.into());
            policy.metadata.name = Some(name.into());
            policy.spec.priority = Some(priority);
            policy.spec.resource_selectors = selectors;
            policy
        },
    )
}

/// The rule of the specification, by looking at everything.
fn scan<'a>(policies: &'a [PropagationPolicy], object: &Value) -> Option<&'a PropagationPolicy> {
    policies
        .iter()
        .filter(|policy| policy.metadata.namespace.as_deref() == object["metadata"]["namespace"].as_str())
        .filter_map(|policy| Some((matches_any(&policy.spec.resource_selectors, object)?, policy)))
        .min_by_key(|(implicit, policy)| {
            (Reverse(policy.priority()), Reverse(*implicit), policy.metadata.name.clone())
        })
        .map(|(_, policy)| policy)
}

fn overriders() -> impl Strategy<Value = Value> {
    // Only what promises to be idempotent: replacing, removing where present, and labels. A registry must look
    // like one: a word without dot or colon is taken for a part of the repository the second time.
    let label = (word(&["add", "replace", "remove"]), word(&["a", "b", "c"]), "[a-z]{1,3}");
    let image = prop::sample::select(vec![("Registry", "r.io"), ("Repository", "app"), ("Tag", "v2")]);
    (
        prop::collection::vec(label, 0..4),
        prop::option::of(image),
        prop::option::of(0..9_i64),
        prop::collection::vec(word(&["--a", "--b"]), 0..3),
    )
        .prop_map(|(labels, image, replicas, remove)| {
            let labels: Vec<Value> = labels
                .into_iter()
                .map(|(operator, key, value)| json!({"operator": operator, "value": {key: value}}))
                .collect();
            let image: Vec<Value> = image
                .into_iter()
                .map(|(component, value)| json!({"component": component, "operator": "replace", "value": value}))
                .collect();
            let plaintext: Vec<Value> = replicas
                .into_iter()
                .map(|value| json!({"path": "/spec/replicas", "operator": "replace", "value": value}))
                .collect();
            json!({
                "labelsOverrider": labels, "imageOverrider": image, "plaintext": plaintext,
                "argsOverrider": [{"containerName": "c", "operator": "remove", "value": remove}],
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        policies in prop::collection::vec(policy(), 0..12),
        objects in prop::collection::vec(object(), 1..8),
    ) {
        // Of two policies with the same key the later one replaces the earlier.
        let mut current: Vec<PropagationPolicy> = Vec::new();
        let mut index = PolicyIndex::default();
        for policy in policies {
            current.retain(|known| {
                (&known.metadata.namespace, &known.metadata.name)
                    != (&policy.metadata.namespace, &policy.metadata.name)
            });
            current.push(policy.clone());
            index.insert(Arc::new(policy));
            for object in &objects {
                prop_assert_eq!(index.best(object).map(|policy| policy.as_ref()), scan(&current, object));
            }
        }
        while let Some(gone) = current.pop() {
            let key = |text: &Option<String>| text.clone().unwrap_or_default();
            index.remove(&key(&gone.metadata.namespace), &key(&gone.metadata.name));
            for object in &objects {
                prop_assert_eq!(index.best(object).map(|policy| policy.as_ref()), scan(&current, object));
            }
        }
    }

    #[test]
    fn an_index_maintained_step_by_step_equals_a_fresh_one(
        steps in prop::collection::vec((0..5_u8, prop::option::of(prop::collection::vec(selector(), 0..3))), 0..20),
    ) {
        let mut index = SelectorIndex::default();
        for (owner, selectors) in steps {
            match selectors {
                Some(selectors) => index.insert(owner, &selectors),
                None => {
                    index.remove(&owner);
                }
            }
            prop_assert!(index.check());
        }
    }

    #[test]
    fn overriding_twice_is_overriding_once_where_promised(overriders in overriders()) {
        let policy: ClusterOverridePolicy = serde_json::from_value(json!({
            "metadata": {"name": "p"}, "spec": {"overrideRules": [{"overriders": overriders}]},
        })).expect("a policy");
        let mut overrides = Overrides::default();
        overrides.insert_cluster(Arc::new(policy));
        let cluster = Cluster::default();
        let mut object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "d", "namespace": "n", "labels": {"a": "1"}},
            "spec": {"replicas": 1, "template": {"spec": {"containers": [
                {"name": "c", "image": "reg.io/nginx:1", "args": ["--a", "--b", "--c"]},
            ]}}},
        });
        overrides.apply(&mut object, &cluster).expect("the overriders apply");
        let once = object.clone();
        overrides.apply(&mut object, &cluster).expect("the overriders apply");
        prop_assert_eq!(object, once);
    }

    #[test]
    fn what_was_just_written_needs_no_second_write(
        replicas in 0..9_i64,
        kind in word(&["Deployment", "Service", "ServiceAccount", "ConfigMap", "PersistentVolumeClaim"]),
        theirs in prop::collection::btree_map("[a-z]{1,4}", "[a-z]{0,3}", 0..4),
    ) {
        let api_version = if kind == "Deployment" { "apps/v1" } else { "v1" };
        let template = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": "d", "namespace": "n", "uid": "u"},
            "spec": {"replicas": replicas},
        });
        let work = DesiredWork::new("m1", template, [].into(), [].into()).expect("a work").create();
        let desired = &work.spec.workload.manifests[0];
        let mut observed = desired.clone();
        for (key, value) in theirs {
            observed["metadata"]["labels"][&key] = value.clone().into();
            observed["metadata"]["annotations"][&key] = value.into();
        }
        observed["metadata"]["resourceVersion"] = "9".into();
        observed["spec"]["replicas"] = (replicas + 1).into();
        let interpreter = Interpreter::native();
        let decision = at_once(delivery::decide(desired, &observed, &interpreter)).expect("native rules answer at once").expect("a decision");
        let Decision::Update(mut written) = decision else { panic!("drift must be repaired") };
        written["status"] = json!({"x": 1});
        written["metadata"]["resourceVersion"] = "10".into();
        prop_assert_eq!(at_once(delivery::decide(desired, &written, &interpreter)).expect("native rules answer at once").expect("a decision"), Decision::Keep);
    }
}
