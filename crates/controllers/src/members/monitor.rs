//! Notices when the agent of a pull-mode cluster falls silent, and says so in the Ready condition.
//!
//! Watches: clusters in pull mode; looks at each and at its agent's Lease every `Timing::monitor_period`.
//! Writes:  Ready = Unknown of clusters that have been silent for longer than the grace period.
//!
//! Push clusters are not touched: the controller that collects their status notices it.

#[cfg(test)]
mod on_server;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::{Cluster, ClusterSyncMode};
use api::conditions::cluster as conditions;
use api::constants::NAMESPACE_CLUSTER;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use propagation::status::{condition, set_condition};
use runtime::{Error, Outcome, Queue, Reconcile, UNLIMITED, controller};
use serde_json::json;

use super::Shared;

const NEVER: &str = "Cluster status controller never posted cluster status.";
const STOPPED: &str = "Cluster status controller stopped posting cluster status.";

/// Watches over the agents; runs along with the cluster controller.
pub(super) struct Monitor {
    shared: Arc<Shared>,
    queue: Arc<Queue<String>>,
    signs: Mutex<HashMap<String, Signs>>,
}

impl Monitor {
    pub(super) fn subscribed(shared: &Arc<Shared>) -> Arc<Self> {
        let (shared, queue) = (shared.clone(), Queue::new("cluster-monitor"));
        let monitor = Arc::new(Self { shared, queue, signs: Mutex::default() });
        let of = monitor.clone();
        monitor.shared.mirrors.clusters.subscribe(move |change| {
            let is_pull = |cluster: &Arc<Cluster>| cluster.spec.sync_mode == ClusterSyncMode::Pull;
            match (&change.old, &change.new) {
                (_, None) => drop(of.signs.lock().remove(&change.key.name)),
                (old, Some(new)) if is_pull(new) && !old.as_ref().is_some_and(is_pull) => {
                    of.queue.push(change.key.name.clone());
                }
                _ => {}
            }
        });
        monitor
    }

    pub(super) fn run(self: &Arc<Self>) {
        controller::run(self, &self.queue, UNLIMITED, &self.shared.supervisor);
    }
}

/// What is known of a cluster in pull mode.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    /// When its agent last renewed its Lease; an error if that cannot be read.
    renewed: Result<Option<Timestamp>, String>,
    signs: Option<Signs>,
    grace: Grace,
}

/// What follows from a look.
#[derive(Debug)]
pub(crate) enum Plan {
    Nothing(&'static str),
    /// Remember these signs of life, and write the condition if it has been silent for too long.
    Note {
        signs: Box<Signs>,
        verdict: Option<Condition>,
    },
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let Ok(renewed) = view.renewed else { return Plan::Nothing("what cannot be read is not silence") };
    let mut signs = view.signs.clone().unwrap_or_else(|| Signs::first(&view.cluster, now));
    let verdict = signs.step(&view.cluster, renewed, now, view.grace);
    Plan::Note { signs: Box::new(signs), verdict }
}

impl Reconcile for Monitor {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let shared = &self.shared;
        let cluster = shared.cluster(name).filter(|cluster| cluster.spec.sync_mode == ClusterSyncMode::Pull);
        let Some(cluster) = cluster else { return Ok(None) };
        let leases = Api::<Lease>::namespaced(shared.client().clone(), NAMESPACE_CLUSTER);
        let renewed = match leases.get_opt(name).await {
            Ok(lease) => Ok(lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0)),
            Err(error) => Err(error.to_string()),
        };
        let grace = Grace {
            startup: shared.timing.startup_grace_period,
            monitor: shared.timing.monitor_grace_period,
        };
        Ok(Some(View { cluster, renewed, signs: self.signs.lock().get(name).cloned(), grace }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        match plan {
            Plan::Nothing(why) => tracing::debug!(cluster = name, why, "the agent is not judged"),
            Plan::Note { signs, verdict } => {
                self.signs.lock().insert(name.clone(), *signs);
                if let Some(verdict) = verdict {
                    write(&self.shared, name, &view.cluster, verdict).await;
                }
            }
        }
        Ok(Outcome::After(self.shared.timing.monitor_period))
    }
}

#[derive(Debug, Clone, Copy)]
struct Grace {
    startup: Duration,
    monitor: Duration,
}

/// The signs of life of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Signs {
    last: Timestamp,
    ready: Option<Condition>,
    renewed: Option<Timestamp>,
}

impl Signs {
    /// A cluster without Ready condition counts from its creation, any other from the first look.
    fn first(cluster: &Cluster, now: Timestamp) -> Self {
        let ready = cluster.status.condition(conditions::READY).cloned();
        let created = cluster.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Self { last: if ready.is_none() { created.unwrap_or(now) } else { now }, ready, renewed: None }
    }

    /// Takes a look; returns the condition to write if the cluster has been silent for too long.
    fn step(
        &mut self,
        cluster: &Cluster,
        renewed: Option<Timestamp>,
        now: Timestamp,
        grace: Grace,
    ) -> Option<Condition> {
        let ready = cluster.status.condition(conditions::READY);
        if self.ready.as_ref() != ready {
            self.ready = ready.cloned();
            self.last = now;
        }
        if renewed > self.renewed {
            self.renewed = renewed;
            self.last = now;
        }
        let patience = if ready.is_none() { grace.startup } else { grace.monitor };
        if now.duration_since(self.last).unsigned_abs() <= patience {
            return None;
        }
        match ready {
            None => {
                let reason = conditions::REASON_STATUS_NEVER_UPDATED;
                Some(condition(conditions::READY, "Unknown", reason, NEVER, now))
            }
            Some(ready) if ready.status != "Unknown" => {
                let reason = conditions::REASON_STATUS_UNKNOWN;
                Some(condition(conditions::READY, "Unknown", reason, STOPPED, now))
            }
            Some(_) => None,
        }
    }
}

async fn write(shared: &Shared, name: &str, cluster: &Cluster, verdict: Condition) {
    let mut all = cluster.status.conditions.clone();
    set_condition(&mut all, verdict);
    let patch = json!({
        "metadata": { "resourceVersion": cluster.metadata.resource_version },
        "status": { "conditions": all },
    });
    let clusters = Api::<Cluster>::all(shared.client().clone());
    if let Err(error) = clusters.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        tracing::debug!(cluster = name, %error, "verdict not written, the next look writes it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Grace = Grace { startup: Duration::from_secs(60), monitor: Duration::from_secs(40) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn cluster(ready: Option<&str>) -> Cluster {
        let mut cluster: Cluster = serde_json::from_value(json!({
            "metadata": { "name": "m1", "creationTimestamp": "1970-01-01T00:00:00Z" },
            "spec": { "syncMode": "Pull" },
        }))
        .unwrap();
        cluster.status.conditions =
            ready.map(|status| condition("Ready", status, "r", "", at(0))).into_iter().collect();
        cluster
    }

    #[test]
    fn a_cluster_that_never_reported_becomes_unknown_after_the_startup_grace() {
        let silent = cluster(None);
        let mut signs = Signs::first(&silent, at(10));
        assert_eq!(signs.step(&silent, None, at(60), GRACE), None);
        let verdict = signs.step(&silent, None, at(61), GRACE).unwrap();
        assert_eq!(
            (verdict.status.as_str(), verdict.reason.as_str()),
            ("Unknown", "ClusterStatusNeverUpdated")
        );
    }

    #[test]
    fn a_lease_keeps_a_cluster_alive_and_silence_makes_it_unknown_once() {
        let ready = cluster(Some("True"));
        let mut signs = Signs::first(&ready, at(0));
        assert_eq!(signs.step(&ready, Some(at(30)), at(30), GRACE), None);
        assert_eq!(signs.step(&ready, Some(at(30)), at(70), GRACE), None);
        let verdict = signs.step(&ready, Some(at(30)), at(71), GRACE).unwrap();
        assert_eq!(verdict.reason, "ClusterStatusUnknown");
        let unknown = cluster(Some("Unknown"));
        assert_eq!(signs.step(&unknown, Some(at(30)), at(72), GRACE), None);
        assert_eq!(signs.step(&unknown, Some(at(30)), at(172), GRACE), None);
    }
}
