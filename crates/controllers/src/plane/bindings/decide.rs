//! Decides which Works of a binding are deleted, and what happens after that. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::work::{TargetCluster, Work};
use jiff::Timestamp;
use propagation::withdrawal::{self, Leftover, Verdict};
use propagation::{Binding, check_scope, directly_purged_clusters, expected_clusters, target_clusters};
use runtime::Key;

use crate::plane::removals::{Permit, Request, permit};

/// What is known of a binding.
pub(crate) struct View<B> {
    pub(super) binding: Arc<B>,
    /// All Works that belong to it.
    pub(super) works: Vec<Arc<Work>>,
    /// The clusters that it no longer asks for and that still have a Work.
    pub(super) left: BTreeMap<String, Place>,
    /// The facts that decide whether copies may be removed; gathered only if [`is_limited`] says so.
    pub(super) request: Option<Request>,
}

/// A cluster that a binding no longer asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    pub(super) cluster: Option<Arc<Cluster>>,
    /// An object that needs this one still has a copy there.
    pub(super) needed: bool,
}

impl<B> View<B> {
    pub(super) fn work(&self, key: &Key) -> Option<&Arc<Work>> {
        self.works.iter().find(|work| Key::of(work.as_ref()) == *key)
    }
}

/// The plan: first delete Works, then do this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) delete: Vec<Deletion>,
    /// Works that would be deleted, but stay as long as they are held.
    pub(super) limited: Vec<Deletion>,
    /// Whether the limited ones may be deleted.
    pub(super) permit: Option<Permit>,
    /// A cluster in which a dependency stays until the objects that need it are gone; checked again later.
    pub(super) waiting: Option<String>,
    pub(super) then: Then,
}

/// A Work to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deletion {
    pub(super) work: Key,
    pub(super) why: Why,
}

/// Why a Work is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The binding itself is being deleted.
    BindingGoes,
    /// The placement has other clusters now.
    ClusterLeft,
    /// The copy has to be gone before another one is created.
    Purged,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Then {
    /// Take the finalizer off the binding.
    Release,
    /// Bring the Works of these clusters up to date.
    Render(Vec<TargetCluster>),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Look again later.
    Wait(String),
    /// The binding cannot be applied; an event says so.
    Refuse(String),
}

pub(super) fn decide<B: Binding>(view: &View<B>, now: Timestamp) -> Plan {
    let mut plan = without_limit(view);
    if let Some(request) = &view.request
        && !plan.limited.is_empty()
    {
        let permit = permit(request, plan.limited.len(), now);
        if permit.is_granted() {
            plan.delete.append(&mut plan.limited);
        }
        plan.permit = Some(permit);
    }
    plan
}

/// Returns whether the plan deletes Works that must stay if too many others are deleted at the same time.
pub(super) fn is_limited<B: Binding>(view: &View<B>) -> bool {
    !without_limit(view).limited.is_empty()
}

fn without_limit<B: Binding>(view: &View<B>) -> Plan {
    let View { binding, works, .. } = view;
    let mut plan = Plan {
        delete: Vec::new(),
        limited: Vec::new(),
        permit: None,
        waiting: None,
        then: Then::Nothing("it goes"),
    };
    if binding.metadata().deletion_timestamp.is_some() {
        let held = binding.metadata().finalizers.iter().flatten().any(|finalizer| finalizer == B::FINALIZER);
        if !held {
            return Plan { then: Then::Nothing("the binding goes and waits for others"), ..plan };
        }
        let goes = |work: &Arc<Work>| Deletion { work: Key::of(work.as_ref()), why: Why::BindingGoes };
        return Plan { delete: present(works).map(goes).collect(), then: Then::Release, ..plan };
    }
    if binding.permanent_id().is_empty() {
        let name = binding.metadata().name.as_deref().unwrap_or("");
        return Plan { then: Then::Wait(format!("for the permanent id of binding {name}")), ..plan };
    }
    for work in present(works) {
        judge(view, work, &mut plan);
    }
    // The end of the old copy brings us back here. A copy that is asked for, as one that another object needs, does not end.
    let (purged, expected) = (directly_purged_clusters(binding.spec()), expected_clusters(binding.spec()));
    let goes = |cluster: &str| purged.contains(cluster) && !expected.contains(cluster);
    let old_copy = works.iter().any(|work| cluster_of(work).is_some_and(goes));
    plan.then = if old_copy {
        Then::Nothing("the old copy goes before a new one is made")
    } else if let Err(error) = check_scope(binding.as_ref()) {
        Then::Refuse(error.to_string())
    } else {
        Then::Render(target_clusters(binding.spec()))
    };
    plan
}

/// Decides about one Work, if the binding no longer asks for its cluster.
fn judge<B: Binding>(view: &View<B>, work: &Arc<Work>, plan: &mut Plan) {
    let spec = view.binding.spec();
    let expected = expected_clusters(spec);
    let Some(name) = cluster_of(work).filter(|name| !expected.contains(name)) else { return };
    let (unknown, purged) = (Place::default(), directly_purged_clusters(spec).contains(name));
    let Place { cluster, needed } = view.left.get(name).unwrap_or(&unknown);
    let verdict = withdrawal::judge(&Leftover {
        cluster: cluster.as_deref(),
        placement: spec.placement.as_ref(),
        found_none: expected.is_empty(),
        purged,
        needed: *needed,
    });
    let why = if purged { Why::Purged } else { Why::ClusterLeft };
    let deletion = Deletion { work: Key::of(work.as_ref()), why };
    match verdict {
        Verdict::Keep if *needed => plan.waiting = Some(name.to_owned()),
        Verdict::Keep => {}
        Verdict::Remove => plan.delete.push(deletion),
        Verdict::Limited => plan.limited.push(deletion),
    }
}

/// Returns the Works that are not being deleted yet.
fn present(works: &[Arc<Work>]) -> impl Iterator<Item = &Arc<Work>> {
    works.iter().filter(|work| work.metadata.deletion_timestamp.is_none())
}

pub(crate) fn cluster_of(work: &Work) -> Option<&str> {
    api::names::cluster_of_execution_space(work.metadata.namespace.as_deref()?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, at, deleting, merged, work};

    /// Decides about a binding whose leftover Works are in clusters with this readiness; none if they are not known.
    fn plan_in(ready: Option<&str>, needed: bool, binding: Value, works: Vec<Arc<Work>>) -> Plan {
        let place = |name: &str| Place {
            cluster: ready.map(|ready| Arc::new(fixtures::cluster(name, ready, json!({})))),
            needed,
        };
        let left =
            works.iter().filter_map(|work| cluster_of(work)).map(|name| (name.to_owned(), place(name)));
        let left = left.collect();
        decide(&View { binding: Arc::new(fixtures::binding(binding)), works, left, request: None }, at(100))
    }

    fn plan(binding: Value, works: Vec<Arc<Work>>) -> Plan {
        plan_in(Some("True"), false, binding, works)
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

    fn required_in(cluster: &str) -> Value {
        json!({ "spec": { "requiredBy": [{ "namespace": "default", "name": "app", "clusters": [{ "name": cluster }] }] } })
    }

    fn works(clusters: &[&str]) -> Vec<Arc<Work>> {
        clusters.iter().map(|cluster| work(cluster, json!({}))).collect()
    }

    fn gone(cluster: &str, why: Why) -> Deletion {
        Deletion { work: Key::new(format!("karmada-es-{cluster}"), "web-1"), why }
    }

    #[test]
    fn which_works_go() {
        let held = || json!({ "metadata": { "finalizers": ["karmada.io/binding-controller"] } });
        let elsewhere = json!({ "spec": { "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } } });
        let left = |cluster: &str| vec![gone(cluster, Why::ClusterLeft)];
        /// Binding, its Works, what is deleted at once, what is deleted unless there is too much.
        type Case = (&'static str, Value, Vec<Arc<Work>>, Vec<Deletion>, Vec<Deletion>);
        let cases: Vec<Case> = vec![
            ("all are wanted", chosen(&["m1", "m2"]), works(&["m1", "m2"]), vec![], vec![]),
            ("one left the placement", chosen(&["m1"]), works(&["m1", "m2"]), vec![], left("m2")),
            ("it is going already", chosen(&["m1"]), vec![work("m2", deleting())], vec![], vec![]),
            ("no cluster was found", chosen(&[]), works(&["m1", "m2"]), vec![], vec![]),
            (
                "no cluster was found, and these are not wanted",
                merged(chosen(&[]), elsewhere),
                works(&["m1"]),
                vec![],
                left("m1"),
            ),
            (
                "no cluster was found, and one was purged",
                merged(chosen(&[]), evicted("m1", "Directly")),
                works(&["m1", "m2"]),
                vec![gone("m1", Why::Purged)],
                vec![],
            ),
            (
                "one was purged, by the name that this had up to v1.18",
                merged(chosen(&["m2"]), evicted("m1", "Immediately")),
                works(&["m1", "m2"]),
                vec![gone("m1", Why::Purged)],
                vec![],
            ),
            (
                "one was purged, one left",
                merged(chosen(&["m2"]), evicted("m1", "Directly")),
                works(&["m1", "m2", "m3"]),
                vec![gone("m1", Why::Purged)],
                left("m3"),
            ),
            (
                "purged, and chosen again",
                merged(chosen(&["m1"]), evicted("m1", "Directly")),
                works(&["m1"]),
                vec![],
                vec![],
            ),
            (
                "evicted gracefully: it stays until the eviction ends",
                merged(chosen(&["m2"]), evicted("m1", "Gracefully")),
                works(&["m1", "m2"]),
                vec![],
                vec![],
            ),
            ("required by another binding", required_in("m1"), works(&["m1", "m2"]), left("m2"), vec![]),
            ("required by nobody any more", json!({}), works(&["m1"]), left("m1"), vec![]),
            (
                "the binding goes",
                merged(chosen(&["m1"]), merged(deleting(), held())),
                vec![work("m1", json!({})), work("m2", deleting())],
                vec![gone("m1", Why::BindingGoes)],
                vec![],
            ),
            (
                "the binding goes, and is held by others",
                merged(chosen(&["m1"]), deleting()),
                works(&["m1"]),
                vec![],
                vec![],
            ),
            (
                "without an identity nothing is its own",
                json!({ "metadata": { "labels": null } }),
                works(&["m1"]),
                vec![],
                vec![],
            ),
            (
                "a Work outside of execution namespaces is not judged",
                chosen(&["m1"]),
                vec![work("m1", json!({ "metadata": { "namespace": "default" } }))],
                vec![],
                vec![],
            ),
        ];
        for (name, binding, works, delete, limited) in cases {
            let plan = plan(binding, works);
            assert_eq!((plan.delete, plan.limited), (delete, limited), "{name}");
        }
    }

    #[test]
    fn what_is_known_of_a_cluster_counts() {
        let left = || vec![gone("m2", Why::ClusterLeft)];
        let cases = [
            ("it is well: not too many leave it at once", Some("True"), chosen(&["m1"]), vec![], left()),
            ("it fails: workloads leave it", Some("False"), chosen(&["m1"]), left(), vec![]),
            ("it is silent: workloads leave it", Some("Unknown"), chosen(&["m1"]), left(), vec![]),
            ("it is not known, others were found", None, chosen(&["m1"]), left(), vec![]),
            ("it is not known, and no other was found", None, chosen(&[]), vec![], vec![]),
            ("it fails, and no other was found", Some("False"), chosen(&[]), vec![], vec![]),
        ];
        for (name, ready, binding, delete, limited) in cases {
            let plan = plan_in(ready, false, binding, works(&["m2"]));
            assert_eq!((plan.delete, plan.limited, plan.waiting), (delete, limited, None), "{name}");
        }
    }

    #[test]
    fn what_is_limited_goes_if_it_may() {
        let limits = |templates: usize| withdrawal::Limits { templates, percent: 0 };
        let decided = |request: Option<Request>, clusters: &[&str]| {
            let works = works(&["m1", "m2"]);
            let place = |name: &str| {
                let cluster = Some(Arc::new(fixtures::cluster(name, "True", json!({}))));
                (name.to_owned(), Place { cluster, needed: false })
            };
            let left = ["m1", "m2"].into_iter().filter(|name| !clusters.contains(name)).map(place).collect();
            let binding = Arc::new(fixtures::binding(chosen(clusters)));
            decide(&View { binding, works, left, request }, at(100))
        };
        let asked = |templates: usize| Some(Request::of_nobody("default/web-configmap", limits(templates)));
        let free = decided(asked(9), &["m1"]);
        assert_eq!((free.delete.len(), free.limited.len()), (1, 0), "it is within the limit");
        assert_eq!(free.permit, Some(Permit::Within(1)));
        let held = decided(asked(0), &["m1"]);
        assert_eq!((held.delete.len(), held.limited.len()), (0, 1));
        assert_eq!(held.permit, Some(Permit::Hold { policies: Vec::new(), unowned: true }));
        assert_eq!(decided(asked(9), &["m1", "m2"]).permit, None, "nothing goes: nothing is asked");
        assert_eq!(decided(None, &["m1"]).limited.len(), 1, "without an answer nothing goes");
    }

    #[test]
    fn a_dependency_stays_until_what_needs_it_has_left() {
        let waiting = plan_in(Some("True"), true, required_in("m1"), works(&["m1", "m2"]));
        assert_eq!(
            (waiting.delete, waiting.waiting.as_deref(), waiting.then),
            (vec![], Some("m2"), render(&["m1"]))
        );
        let free = plan_in(Some("True"), false, required_in("m1"), works(&["m1", "m2"]));
        assert_eq!((free.delete, free.waiting), (vec![gone("m2", Why::ClusterLeft)], None));
    }

    fn render(clusters: &[&str]) -> Then {
        let target = |name: &&str| TargetCluster { name: (*name).to_owned(), ..TargetCluster::default() };
        Then::Render(clusters.iter().map(target).collect())
    }

    #[test]
    fn what_comes_then() {
        let held = json!({ "metadata": { "finalizers": ["karmada.io/binding-controller"] } });
        let cases: Vec<(&str, Value, Vec<Arc<Work>>, Then)> = vec![
            ("chosen clusters", chosen(&["m1"]), vec![], render(&["m1"])),
            ("no clusters", chosen(&[]), vec![], render(&[])),
            (
                "chosen and required ones",
                merged(chosen(&["m2"]), required_in("m1")),
                vec![],
                render(&["m2", "m1"]),
            ),
            ("chosen and required", merged(chosen(&["m1"]), required_in("m1")), vec![], render(&["m1"])),
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
                render(&["m2"]),
            ),
            (
                "the old copy stays: another object needs it",
                merged(merged(chosen(&["m2"]), evicted("m1", "Directly")), required_in("m1")),
                works(&["m1"]),
                render(&["m2", "m1"]),
            ),
            (
                "an eviction that lets the old copy stay",
                merged(chosen(&["m2"]), evicted("m1", "Gracefully")),
                works(&["m1"]),
                render(&["m2"]),
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
        assert_eq!(plan.limited, [gone("m2", Why::ClusterLeft)], "what left still goes");
    }
}
