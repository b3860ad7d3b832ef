//! Writes into a Cluster's status which actions its conditions call for, as Remedies say.
//!
//! Watches: Clusters (their conditions and actions), Remedies.
//! Writes:  `status.remedyActions` of Clusters.

#[cfg(test)]
mod on_server;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::cluster::Cluster;
use api::remedy::{ClusterConditionOperator, ClusterConditionRequirement, Remedy};
use jiff::Timestamp;
use runtime::{Change, Error, Outcome, Queue, Reconcile, controller};

use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "remedy-controller";
const WORKERS: usize = 5;

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<String>>) {
    let queue: Arc<Queue<String>> = Queue::new(COMPONENT);
    plane.tell_panics_by_name(&queue, COMPONENT, &plane.mirrors.clusters);
    let pushed = queue.clone();
    plane.mirrors.clusters.subscribe(move |change| {
        if is_news(change) {
            pushed.push(change.key.name.clone());
        }
    });
    plane.mirrors.remedies.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let versions: Vec<&Remedy> =
                [&change.old, &change.new].into_iter().flatten().map(AsRef::as_ref).collect();
            for cluster in plane.mirrors.clusters.all() {
                let name = cluster.metadata.name.clone().unwrap_or_default();
                if versions.iter().any(|remedy| is_meant(remedy, &name)) {
                    pushed.push(name);
                }
            }
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

/// Returns whether a cluster may need other actions, or whether its actions were changed by others.
fn is_news(change: &Change<'_, Cluster>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            let actions = |cluster: &Cluster| -> BTreeSet<String> {
                cluster.status.remedy_actions.iter().cloned().collect()
            };
            old.status.conditions != new.status.conditions || actions(old) != actions(new)
        }
        (None, Some(_)) => true,
        _ => false,
    }
}

fn is_meant(remedy: &Remedy, cluster: &str) -> bool {
    remedy
        .spec
        .cluster_affinity
        .as_ref()
        .is_none_or(|affinity| affinity.cluster_names.iter().any(|name| name == cluster))
}

/// A cluster and all remedies.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    remedies: Vec<Arc<Remedy>>,
}

/// The actions as they should be, if they differ.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    actions: Option<Vec<String>>,
}

fn decide(view: &View) -> Plan {
    let View { cluster, remedies } = view;
    if cluster.metadata.deletion_timestamp.is_some() {
        return Plan { actions: None };
    }
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let firing = remedies.iter().filter(|remedy| is_meant(remedy, name) && fires(remedy, cluster));
    let actions: BTreeSet<&String> = firing.flat_map(|remedy| &remedy.spec.actions).collect();
    let actions: Vec<String> = actions.into_iter().cloned().collect();
    Plan { actions: (actions != cluster.status.remedy_actions).then_some(actions) }
}

/// A remedy without conditions always fires; one with an empty list of them never does.
fn fires(remedy: &Remedy, cluster: &Cluster) -> bool {
    let matches = |wanted: &ClusterConditionRequirement| {
        cluster.status.condition(&wanted.condition_type).is_some_and(|found| match wanted.operator {
            ClusterConditionOperator::Equal => found.status == wanted.condition_status,
            ClusterConditionOperator::NotEqual => found.status != wanted.condition_status,
            _ => false,
        })
    };
    let Some(reasons) = &remedy.spec.decision_matches else { return true };
    reasons.iter().filter_map(|reason| reason.cluster_condition_match.as_ref()).any(matches)
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let mirrors = &self.plane.mirrors;
        let remedies = mirrors.remedies.all();
        Ok(mirrors.clusters.get("", name).map(|cluster| View { cluster, remedies }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, _: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let Some(actions) = plan.actions else { return Ok(Outcome::Done) };
        let written = self.plane.writer.change_status(view.cluster.as_ref(), |cluster| {
            cluster.status.remedy_actions.clone_from(&actions);
            Ok(())
        });
        if let Some(written) = written.await? {
            self.plane.mirrors.clusters.note(written);
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read};
    use runtime::Key;

    fn remedy(spec: Value) -> Arc<Remedy> {
        let base = json!({ "metadata": { "name": "r" }, "spec": { "actions": ["TrafficControl"] } });
        Arc::new(read(merged(base, json!({ "spec": spec }))))
    }

    fn when(kind: &str, operator: &str, status: &str) -> Value {
        json!({ "clusterConditionMatch": { "conditionType": kind, "operator": operator, "conditionStatus": status } })
    }

    #[test]
    fn which_actions_a_cluster_calls_for() {
        let on = |matches: Vec<Value>| vec![remedy(json!({ "decisionMatches": matches }))];
        let named = |names: &[&str]| vec![remedy(json!({ "clusterAffinity": { "clusterNames": names } }))];
        let acting = json!({ "status": { "remedyActions": ["TrafficControl"] } });
        let none = || json!({});
        let (set, empty): (Option<&[&str]>, Option<&[&str]>) = (Some(&["TrafficControl"]), Some(&[]));
        let two = vec![remedy(json!({ "actions": ["B", "A"] })), remedy(json!({ "actions": ["A", "C"] }))];
        let cases = [
            ("nothing is said", none(), vec![], None),
            ("always", none(), vec![remedy(none())], set),
            ("it is already so", acting.clone(), vec![remedy(none())], None),
            ("the remedy is gone", acting.clone(), vec![], empty),
            ("equal", none(), on(vec![when("Ready", "Equal", "False")]), set),
            ("not equal", none(), on(vec![when("Ready", "Equal", "True")]), None),
            ("another status", none(), on(vec![when("Ready", "NotEqual", "True")]), set),
            ("the same status", none(), on(vec![when("Ready", "NotEqual", "False")]), None),
            ("an operator that nobody knows", none(), on(vec![when("Ready", "Like", "False")]), None),
            ("a condition that is missing", none(), on(vec![when("Dns", "NotEqual", "True")]), None),
            (
                "any of them",
                none(),
                on(vec![when("Dns", "Equal", "False"), when("Ready", "Equal", "False")]),
                set,
            ),
            ("an empty list", none(), on(vec![]), None),
            ("it recovers", acting.clone(), on(vec![when("Ready", "Equal", "True")]), empty),
            ("this cluster is named", none(), named(&["m1"]), set),
            ("another cluster is named", none(), named(&["m2"]), None),
            ("no cluster is named", none(), named(&[]), None),
            ("sorted, each once", none(), two, Some(&["A", "B", "C"])),
            ("the cluster leaves", deleting(), vec![remedy(none())], None),
            ("a reason that names no condition", none(), on(vec![none()]), None),
            (
                "it is named, and its condition does not hold",
                none(),
                vec![remedy(json!({
                    "clusterAffinity": { "clusterNames": ["m1"] },
                    "decisionMatches": [when("Ready", "Equal", "True")],
                }))],
                None,
            ),
            ("nothing is to be done", none(), vec![remedy(json!({ "actions": [] }))], None),
            (
                "written by others in another order",
                json!({ "status": { "remedyActions": ["B", "A"] } }),
                vec![remedy(json!({ "actions": ["A", "B"] }))],
                Some(&["A", "B"]),
            ),
            (
                "more than is asked for",
                json!({ "status": { "remedyActions": ["Alarm", "TrafficControl"] } }),
                vec![remedy(none())],
                set,
            ),
        ];
        for (name, otherwise, remedies, expected) in cases {
            let view = View { cluster: Arc::new(cluster("m1", "False", otherwise)), remedies };
            let expected = expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
            assert_eq!(decide(&view).actions, expected, "{name}");
        }
    }

    #[test]
    fn which_changes_of_clusters_count() {
        let key = Key::new("", "m1");
        let plain = || ("True", json!({}));
        let acting = || ("True", json!({ "status": { "remedyActions": ["TrafficControl"] } }));
        let two = |one: &str, other: &str| ("True", json!({ "status": { "remedyActions": [one, other] } }));
        let cases = [
            ("it is new", None, Some(plain()), true),
            ("its condition changed", Some(plain()), Some(("False", json!({}))), true),
            ("somebody took its actions away", Some(acting()), Some(plain()), true),
            ("nothing that counts", Some(plain()), Some(plain()), false),
            ("the same actions in another order", Some(two("A", "B")), Some(two("B", "A")), false),
            ("it is gone", Some(plain()), None, false),
        ];
        for (name, old, new, expected) in cases {
            let made = |state: Option<(&str, Value)>| {
                state.map(|(ready, with)| Arc::new(cluster("m1", ready, with)))
            };
            let change = Change { key: &key, old: made(old), new: made(new), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }
}
