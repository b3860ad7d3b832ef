//! Taints clusters by their conditions, as ClusterTaintPolicies say.
//!
//! Watches: Clusters (new ones, their conditions), ClusterTaintPolicies (new ones, changes of their spec).
//! Writes:  `spec.taints` of Clusters. A policy that is deleted leaves its taints where they are, as upstream.

#[cfg(test)]
mod on_server;

use std::sync::Arc;

use api::cluster::Cluster;
use api::events;
use api::policy::{ClusterTaintPolicy, MatchCondition, MatchConditionOperator};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use propagation::status::whole_seconds;
use runtime::{Change, Error, Guard, Outcome, Queue, Reconcile, controller};
use scheduler::affinity::cluster_matches;

use crate::members::taints_message;
use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "cluster-taint-policy-controller";
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
    plane.mirrors.taint_policies.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(new) = &change.new else { return };
            if change.old.as_ref().is_some_and(|old| old.spec == new.spec) {
                return;
            }
            for cluster in plane.mirrors.clusters.all().iter().filter(|cluster| is_meant(new, cluster)) {
                pushed.push(cluster.metadata.name.clone().unwrap_or_default());
            }
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

fn is_news(change: &Change<'_, Cluster>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.status.conditions != new.status.conditions,
        (None, Some(_)) => true,
        _ => false,
    }
}

fn is_meant(policy: &ClusterTaintPolicy, cluster: &Cluster) -> bool {
    policy.spec.target_clusters.as_ref().is_none_or(|affinity| cluster_matches(cluster, affinity))
}

/// A cluster and all policies.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    policies: Vec<Arc<ClusterTaintPolicy>>,
}

/// The taints as they should be, if they differ.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    taints: Option<Vec<Taint>>,
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let View { cluster, policies } = view;
    if cluster.metadata.deletion_timestamp.is_some() {
        return Plan { taints: None };
    }
    let mut policies: Vec<&ClusterTaintPolicy> =
        policies.iter().map(AsRef::as_ref).filter(|policy| is_meant(policy, cluster)).collect();
    // The oldest policy first; a younger one overrides it.
    policies.sort_by_key(|policy| {
        let created = policy.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, policy.metadata.name.clone())
    });
    let mut taints = cluster.spec.taints.clone();
    for policy in policies {
        let same = |taint: &Taint, wanted: &api::policy::Taint| {
            taint.key == wanted.key && taint.effect == wanted.effect
        };
        if hold(&policy.spec.add_on_conditions, cluster) {
            for wanted in &policy.spec.taints {
                if !taints.iter().any(|taint| same(taint, wanted)) {
                    taints.push(Taint {
                        key: wanted.key.clone(),
                        effect: wanted.effect.clone(),
                        value: (!wanted.value.is_empty()).then(|| wanted.value.clone()),
                        time_added: Some(Time(whole_seconds(now))),
                    });
                }
            }
        }
        if hold(&policy.spec.remove_on_conditions, cluster) {
            taints.retain(|taint| !policy.spec.taints.iter().any(|unwanted| same(taint, unwanted)));
        }
    }
    Plan { taints: (taints != cluster.spec.taints).then_some(taints) }
}

/// Returns whether all conditions hold. An empty list never holds, nor does a condition that the cluster does
/// not have.
fn hold(conditions: &[MatchCondition], cluster: &Cluster) -> bool {
    let holds = |wanted: &MatchCondition| {
        let Some(found) = cluster.status.condition(&wanted.condition_type) else { return false };
        let listed = wanted.status_values.contains(&found.status);
        match wanted.operator {
            MatchConditionOperator::In => listed,
            MatchConditionOperator::NotIn => !listed,
            _ => false,
        }
    };
    !conditions.is_empty() && conditions.iter().all(holds)
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let mirrors = &self.plane.mirrors;
        let policies = mirrors.taint_policies.all();
        Ok(mirrors.clusters.get("", name).map(|cluster| View { cluster, policies }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, _: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (plane, cluster) = (&self.plane, view.cluster.as_ref());
        let Some(taints) = plan.taints else { return Ok(Outcome::Done) };
        let mut tainted = cluster.clone();
        tainted.spec.taints = taints;
        let written =
            plane.writer.update_mirrored(&plane.mirrors.clusters, cluster, &tainted, Guard::Version);
        match written.await {
            Ok(_) => {
                let message = format!("Taint cluster succeed: {}.", taints_message(&tainted.spec.taints));
                plane.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_SUCCEED, message);
                Ok(Outcome::Done)
            }
            Err(error) => {
                if !error.is_conflict() {
                    plane.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_FAILED, error.to_string());
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{at, cluster, deleting, merged, read};
    use runtime::Key;

    /// A policy that taints with `dead:NoExecute` on Ready=False and takes it off on Ready=True.
    fn policy(name: &str, otherwise: Value) -> Arc<ClusterTaintPolicy> {
        let on =
            |status: &str| json!([{ "conditionType": "Ready", "operator": "In", "statusValues": [status] }]);
        let base = json!({
            "metadata": { "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {
                "addOnConditions": on("False"), "removeOnConditions": on("True"),
                "taints": [{ "key": "dead", "effect": "NoExecute", "value": "v" }],
            },
        });
        Arc::new(read(merged(base, otherwise)))
    }

    fn spec(spec: Value) -> Value {
        json!({ "spec": spec })
    }

    /// Returns the taints that the policies leave, as text; nothing if they are as before.
    fn decided(
        ready: &str,
        taints: &[&str],
        otherwise: Value,
        policies: Vec<Arc<ClusterTaintPolicy>>,
    ) -> Option<String> {
        let taints: Vec<Value> =
            taints.iter().map(|key| json!({ "key": key, "effect": "NoExecute", "value": "old" })).collect();
        let cluster = cluster("m1", ready, merged(spec(json!({ "taints": taints })), otherwise));
        let plan = decide(&View { cluster: Arc::new(cluster), policies }, at(7));
        plan.taints.map(|taints| {
            let texts: Vec<String> = taints.iter().map(propagation::eviction::print).collect();
            texts.join(" ")
        })
    }

    #[test]
    fn which_taints_a_cluster_gets_and_loses() {
        let condition = |kind: &str, operator: &str, values: &[&str]| json!({ "conditionType": kind, "operator": operator, "statusValues": values });
        let add = |conditions: Value| policy("p", spec(json!({ "addOnConditions": conditions })));
        let other =
            |cluster: &str| policy("p", spec(json!({ "targetClusters": { "clusterNames": [cluster] } })));
        let network = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "False", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "NetworkReady", "status": "Unknown", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] } });
        let both = json!([condition("Ready", "In", &["False"]), condition("NetworkReady", "In", &["False"])]);
        let none = || json!({});
        let added = Some("dead=v:NoExecute");
        let cases = [
            ("its condition holds", "False", vec![], none(), vec![policy("p", none())], added),
            ("there is no policy", "False", vec![], none(), vec![], None),
            ("its condition does not hold", "Unknown", vec![], none(), vec![policy("p", none())], None),
            ("it has the taint", "False", vec!["dead"], none(), vec![policy("p", none())], None),
            (
                "it recovers",
                "True",
                vec!["dead", "mine"],
                none(),
                vec![policy("p", none())],
                Some("mine=old:NoExecute"),
            ),
            ("another cluster is meant", "False", vec![], none(), vec![other("m2")], None),
            ("this one is meant", "False", vec![], none(), vec![other("m1")], added),
            ("no conditions hold for nobody", "False", vec![], none(), vec![add(json!([]))], None),
            (
                "not in",
                "False",
                vec![],
                none(),
                vec![add(json!([condition("Ready", "NotIn", &["True"])]))],
                added,
            ),
            (
                "in what is excluded",
                "False",
                vec![],
                none(),
                vec![add(json!([condition("Ready", "NotIn", &["False"])]))],
                None,
            ),
            (
                "a condition that is missing",
                "False",
                vec![],
                none(),
                vec![add(json!([condition("Odd", "NotIn", &["True"])]))],
                None,
            ),
            (
                "an operator that is not known",
                "False",
                vec![],
                none(),
                vec![add(json!([condition("Ready", "Like", &["False"])]))],
                None,
            ),
            ("both must hold", "False", vec![], network.clone(), vec![add(both)], None),
            ("the cluster leaves", "False", vec![], deleting(), vec![policy("p", none())], None),
            (
                "both hold",
                "False",
                vec![],
                network.clone(),
                vec![add(json!([
                    condition("Ready", "In", &["False"]),
                    condition("NetworkReady", "In", &["False", "Unknown"])
                ]))],
                added,
            ),
            (
                "several taints, without a value",
                "False",
                vec!["b"],
                none(),
                vec![policy(
                    "p",
                    spec(json!({ "taints": [
                        { "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoExecute" },
                        { "key": "b", "effect": "NoSchedule" },
                    ] })),
                )],
                Some("b=old:NoExecute a:NoSchedule b:NoSchedule"),
            ),
            (
                "it recovers, and the taint has another effect",
                "True",
                vec!["dead"],
                none(),
                vec![policy("p", spec(json!({ "taints": [{ "key": "dead", "effect": "NoSchedule" }] })))],
                None,
            ),
            (
                "reasons to add it and to remove it",
                "False",
                vec![],
                none(),
                vec![policy(
                    "p",
                    spec(json!({ "removeOnConditions": [condition("Ready", "In", &["False"])] })),
                )],
                None,
            ),
            (
                "nothing would ever remove it",
                "True",
                vec!["dead"],
                none(),
                vec![policy("p", spec(json!({ "removeOnConditions": [] })))],
                None,
            ),
        ];
        for (name, ready, taints, otherwise, policies, expected) in cases {
            assert_eq!(decided(ready, &taints, otherwise, policies).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn the_youngest_policy_has_the_last_word() {
        let young = |otherwise: Value| {
            let created = json!({ "metadata": { "creationTimestamp": "2026-02-01T00:00:00Z" } });
            policy("a", merged(created, otherwise))
        };
        let on_false = json!([{ "conditionType": "Ready", "operator": "In", "statusValues": ["False"] }]);
        let removing = young(spec(json!({ "addOnConditions": [], "removeOnConditions": on_false })));
        assert_eq!(decided("False", &[], json!({}), vec![removing.clone(), policy("b", json!({}))]), None);
        assert_eq!(
            decided("False", &["dead"], json!({}), vec![removing, policy("b", json!({}))]).as_deref(),
            Some("")
        );
    }

    #[test]
    fn of_two_policies_of_one_age_the_name_decides() {
        let on_false = json!([{ "conditionType": "Ready", "operator": "In", "statusValues": ["False"] }]);
        let removing = |name: &str| {
            policy(name, spec(json!({ "addOnConditions": [], "removeOnConditions": on_false.clone() })))
        };
        let after = vec![removing("b"), policy("a", json!({}))];
        assert_eq!(decided("False", &[], json!({}), after), None, "b takes off what a adds");
        let before = vec![policy("b", json!({})), removing("a")];
        assert_eq!(decided("False", &[], json!({}), before).as_deref(), Some("dead=v:NoExecute"));
    }

    #[test]
    fn a_taint_begins_at_a_full_second() {
        let view = View {
            cluster: Arc::new(cluster("m1", "False", json!({}))),
            policies: vec![policy("p", json!({}))],
        };
        let now = Timestamp::from_millisecond(7_900).expect("a time");
        let taints = decide(&view, now).taints.expect("a taint");
        assert_eq!(taints[0].time_added, Some(Time(at(7))), "as the server stores it");
    }

    #[test]
    fn which_changes_of_clusters_count() {
        let key = Key::new("", "m1");
        let cases = [
            ("it is new", None, Some(("True", "7")), true),
            ("its condition changed", Some(("True", "7")), Some(("False", "8")), true),
            ("something else changed", Some(("True", "7")), Some(("True", "8")), false),
            ("it is gone", Some(("True", "7")), None, false),
        ];
        for (name, old, new, expected) in cases {
            let made = |state: Option<(&str, &str)>| {
                state.map(|(ready, version)| {
                    let version = json!({ "metadata": { "resourceVersion": version } });
                    Arc::new(cluster("m1", ready, version))
                })
            };
            let change = Change { key: &key, old: made(old), new: made(new), ours: false, initial: false };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }
}
