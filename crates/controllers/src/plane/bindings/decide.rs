//! Which Works of a binding go, and what comes after that. Pure.

use std::sync::Arc;

use api::work::Work;
use propagation::{Binding, check_scope, directly_purged_clusters, expected_clusters};
use runtime::Key;

/// What is known of a binding.
pub(crate) struct View<B> {
    pub(super) binding: Arc<B>,
    /// All Works that belong to it.
    pub(super) works: Vec<Arc<Work>>,
}

/// What is to be done: first Works go, then this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) delete: Vec<Deletion>,
    pub(super) then: Then,
}

/// A Work that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deletion {
    pub(super) work: Key,
    pub(super) why: Why,
}

/// Why a Work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The binding itself goes.
    BindingGoes,
    /// The placement has other clusters now.
    ClusterLeft,
    /// The copy is to be gone before another one is made.
    Purged,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// Take the finalizer off the binding.
    Release,
    /// Bring the Works of the chosen clusters up to date.
    Render,
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Look again later.
    Wait(String),
    /// The binding cannot be carried out; users are told.
    Refuse(String),
}

pub(super) fn decide<B: Binding>(view: &View<B>) -> Plan {
    let View { binding, works } = view;
    let spec = binding.spec();
    if binding.metadata().deletion_timestamp.is_some() {
        let held = binding.metadata().finalizers.iter().flatten().any(|finalizer| finalizer == B::FINALIZER);
        if !held {
            return Plan { delete: Vec::new(), then: Then::Nothing("the binding goes and waits for others") };
        }
        return Plan { delete: going(works, |_| Some(Why::BindingGoes)), then: Then::Release };
    }
    if binding.permanent_id().is_empty() {
        let name = binding.metadata().name.as_deref().unwrap_or("");
        let then = Then::Wait(format!("for the permanent id of binding {name}"));
        return Plan { delete: Vec::new(), then };
    }
    let (expected, purged) = (expected_clusters(spec), directly_purged_clusters(spec));
    // A placement that finds no cluster does not mean that the user wants the object removed: what runs keeps running,
    // except where it was evicted from on purpose. A binding without a placement follows others; if none names it, it goes.
    let found_none = expected.is_empty() && spec.placement.is_some();
    let delete = going(works, |cluster| match cluster {
        cluster if expected.contains(cluster) => None,
        cluster if purged.contains(cluster) => Some(Why::Purged),
        _ if found_none => None,
        _ => Some(Why::ClusterLeft),
    });
    // The end of the old copy brings us back here.
    let old_copy = works.iter().any(|work| cluster_of(work).is_some_and(|cluster| purged.contains(cluster)));
    let then = if old_copy {
        Then::Nothing("the old copy goes before a new one is made")
    } else if let Err(error) = check_scope(binding.as_ref()) {
        Then::Refuse(error.to_string())
    } else {
        Then::Render
    };
    Plan { delete, then }
}

/// Returns the Works that go, of those that are not going already.
fn going(works: &[Arc<Work>], why: impl Fn(&str) -> Option<Why>) -> Vec<Deletion> {
    let present = works.iter().filter(|work| work.metadata.deletion_timestamp.is_none());
    present
        .filter_map(|work| Some(Deletion { why: why(cluster_of(work)?)?, work: Key::of(work.as_ref()) }))
        .collect()
}

fn cluster_of(work: &Work) -> Option<&str> {
    api::names::cluster_of_execution_space(work.metadata.namespace.as_deref()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, deleting, merged, work};

    fn plan(binding: Value, works: Vec<Arc<Work>>) -> Plan {
        decide(&View { binding: Arc::new(fixtures::binding(binding)), works })
    }

    /// A placement that chose these clusters.
    fn chosen(clusters: &[&str]) -> Value {
        let clusters: Vec<Value> = clusters.iter().map(|name| json!({ "name": name })).collect();
        json!({ "spec": { "placement": {}, "clusters": clusters } })
    }

    fn evicted(from: &str, mode: &str) -> Value {
        json!({ "spec": { "gracefulEvictionTasks": [{
            "fromCluster": from, "purgeMode": mode, "reason": "r", "producer": "p",
        }] } })
    }

    fn works(clusters: &[&str]) -> Vec<Arc<Work>> {
        clusters.iter().map(|cluster| work(cluster, json!({}))).collect()
    }

    fn gone(cluster: &str, why: Why) -> Deletion {
        Deletion { work: Key::new(format!("karmada-es-{cluster}"), "web-1"), why }
    }

    #[test]
    fn which_works_go() {
        let cases: Vec<(&str, Value, Vec<Arc<Work>>, Vec<Deletion>)> = vec![
            ("all are wanted", chosen(&["m1", "m2"]), works(&["m1", "m2"]), vec![]),
            (
                "one left the placement",
                chosen(&["m1"]),
                works(&["m1", "m2"]),
                vec![gone("m2", Why::ClusterLeft)],
            ),
            ("it is going already", chosen(&["m1"]), vec![work("m2", deleting())], vec![]),
            ("no cluster was found", chosen(&[]), works(&["m1", "m2"]), vec![]),
            (
                "no cluster was found, and one was purged",
                merged(chosen(&[]), evicted("m1", "Directly")),
                works(&["m1", "m2"]),
                vec![gone("m1", Why::Purged)],
            ),
            (
                "one was purged, others stay",
                merged(chosen(&["m2"]), evicted("m1", "Directly")),
                works(&["m1", "m2", "m3"]),
                vec![gone("m1", Why::Purged), gone("m3", Why::ClusterLeft)],
            ),
            (
                "purged, and chosen again",
                merged(chosen(&["m1"]), evicted("m1", "Directly")),
                works(&["m1"]),
                vec![],
            ),
            (
                "evicted gracefully: it stays until the eviction ends",
                merged(chosen(&["m2"]), evicted("m1", "Gracefully")),
                works(&["m1", "m2"]),
                vec![],
            ),
            (
                "required by another binding",
                json!({ "spec": { "requiredBy": [{ "namespace": "default", "name": "app", "clusters": [{ "name": "m1" }] }] } }),
                works(&["m1", "m2"]),
                vec![gone("m2", Why::ClusterLeft)],
            ),
            ("required by nobody any more", json!({}), works(&["m1"]), vec![gone("m1", Why::ClusterLeft)]),
            (
                "the binding goes",
                merged(
                    chosen(&["m1"]),
                    merged(
                        deleting(),
                        json!({ "metadata": { "finalizers": ["karmada.io/binding-controller"] } }),
                    ),
                ),
                vec![work("m1", json!({})), work("m2", deleting())],
                vec![gone("m1", Why::BindingGoes)],
            ),
            (
                "the binding goes, and is held by others",
                merged(chosen(&["m1"]), deleting()),
                works(&["m1"]),
                vec![],
            ),
            (
                "without an identity nothing is known to be its own",
                json!({ "metadata": { "labels": null } }),
                works(&["m1"]),
                vec![],
            ),
            (
                "a Work outside of execution namespaces is not touched",
                chosen(&["m1"]),
                vec![work("m1", json!({ "metadata": { "namespace": "default" } }))],
                vec![],
            ),
        ];
        for (name, binding, works, expected) in cases {
            assert_eq!(plan(binding, works).delete, expected, "{name}");
        }
    }

    #[test]
    fn what_comes_then() {
        let held = json!({ "metadata": { "finalizers": ["karmada.io/binding-controller"] } });
        let cases: Vec<(&str, Value, Vec<Arc<Work>>, Then)> = vec![
            ("chosen clusters", chosen(&["m1"]), vec![], Then::Render),
            ("no clusters", chosen(&[]), vec![], Then::Render),
            ("the binding goes", merged(deleting(), held), works(&["m1"]), Then::Release),
            (
                "the binding goes, held by others",
                deleting(),
                works(&["m1"]),
                Then::Nothing("the binding goes and waits for others"),
            ),
            (
                "no identity",
                json!({ "metadata": { "labels": null } }),
                vec![],
                Then::Wait("for the permanent id of binding web-configmap".to_owned()),
            ),
            (
                "the old copy is there",
                merged(chosen(&["m2"]), evicted("m1", "Directly")),
                works(&["m1"]),
                Then::Nothing("the old copy goes before a new one is made"),
            ),
            (
                "the old copy is on its way out",
                merged(chosen(&["m2"]), evicted("m1", "Directly")),
                vec![work("m1", deleting())],
                Then::Nothing("the old copy goes before a new one is made"),
            ),
            (
                "the old copy is gone",
                merged(chosen(&["m2"]), evicted("m1", "Directly")),
                works(&["m2"]),
                Then::Render,
            ),
            (
                "an eviction that lets the old copy stay",
                merged(chosen(&["m2"]), evicted("m1", "Gracefully")),
                works(&["m1"]),
                Then::Render,
            ),
        ];
        for (name, binding, works, expected) in cases {
            assert_eq!(plan(binding, works).then, expected, "{name}");
        }
    }

    #[test]
    fn a_binding_stands_for_objects_of_its_own_namespace() {
        let foreign = json!({ "spec": { "resource": { "namespace": "other" } } });
        let plan = plan(merged(chosen(&["m1"]), foreign), works(&["m1", "m2"]));
        assert!(
            matches!(plan.then, Then::Refuse(ref why) if why.contains("not in its namespace")),
            "{plan:?}"
        );
        assert_eq!(plan.delete, [gone("m2", Why::ClusterLeft)], "what left still goes");
    }
}
