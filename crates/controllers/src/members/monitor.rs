//! Notices when the agent of a pull-mode cluster stops reporting, and sets the Ready condition.
//!
//! Watches: clusters in pull mode; checks each and its agent's Lease every `Timing::monitor_period`.
//! Writes:  Ready = Unknown of clusters that have been silent for longer than the grace period.
//!
//! Silence is measured with a clock that does not jump, from the first check of this process on, so neither a
//! correction of the system's time nor a restart counts as silence. Push clusters are ignored: the controller
//! that collects their status notices outages.

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
use parking_lot::Mutex;
use propagation::status::{condition, set_condition};
use runtime::{Error, Guard, Outcome, Queue, Reconcile, UNLIMITED, controller};
use tokio::time::Instant;

use super::Shared;

const NEVER: &str = "Cluster status controller never posted cluster status.";
const STOPPED: &str = "Cluster status controller stopped posting cluster status.";

/// Monitors the agents; runs together with the cluster controller.
pub(super) struct Monitor {
    shared: Arc<Shared>,
    queue: Arc<Queue<String>>,
    signs: Mutex<HashMap<String, Signs>>,
}

impl Monitor {
    pub(super) fn subscribed(shared: &Arc<Shared>) -> Arc<Self> {
        let (shared, queue) = (shared.clone(), Queue::new("cluster-monitor"));
        let monitor = Arc::new(Self { shared, queue, signs: Mutex::default() });
        monitor.shared.mirrors.clusters.subscribe({
            let monitor = monitor.clone();
            move |change| {
                let is_pull = |cluster: &Arc<Cluster>| cluster.spec.sync_mode == ClusterSyncMode::Pull;
                match (&change.old, &change.new) {
                    (_, None) => drop(monitor.signs.lock().remove(&change.key.name)),
                    (old, Some(new)) if is_pull(new) && !old.as_ref().is_some_and(is_pull) => {
                        monitor.queue.push(change.key.name.clone());
                    }
                    _ => {}
                }
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
    /// The time of the check, by a clock that does not jump.
    at: Instant,
}

/// What follows from a check.
#[derive(Debug)]
pub(crate) enum Plan {
    Nothing(&'static str),
    /// Remember these heartbeats, and write the condition if it has been silent for too long.
    Note {
        signs: Signs,
        verdict: Option<Box<Condition>>,
    },
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let Ok(renewed) = view.renewed else { return Plan::Nothing("what cannot be read is not silence") };
    let mut signs = view.signs.clone().unwrap_or_else(|| Signs::first(&view.cluster, now, view.at));
    let verdict = signs.step(&view.cluster, renewed, (now, view.at), view.grace);
    Plan::Note { signs, verdict: verdict.map(Box::new) }
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
        let signs = self.signs.lock().get(name).cloned();
        Ok(Some(View { cluster, renewed, signs, grace, at: Instant::now() }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        match plan {
            Plan::Nothing(why) => tracing::debug!(cluster = name, why, "the agent is not judged"),
            Plan::Note { signs, verdict } => {
                self.signs.lock().insert(name.clone(), signs);
                if let Some(verdict) = verdict {
                    write(&self.shared, name, &view.cluster, *verdict).await;
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

/// The heartbeats of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Signs {
    last: Instant,
    ready: Option<Condition>,
    renewed: Option<Timestamp>,
}

impl Signs {
    /// Silence of a cluster without Ready condition counts from its creation, of any other from the first
    /// check.
    fn first(cluster: &Cluster, now: Timestamp, at: Instant) -> Self {
        let ready = cluster.status.condition(conditions::READY).cloned();
        let created = cluster.metadata.creation_timestamp.as_ref().filter(|_| ready.is_none());
        let age = created.map(|created| now.duration_since(created.0)).filter(|age| age.is_positive());
        let last = age.and_then(|age| at.checked_sub(age.unsigned_abs())).unwrap_or(at);
        Self { last, ready, renewed: None }
    }

    /// Checks a cluster; returns the condition to write if it has been silent for too long.
    fn step(
        &mut self,
        cluster: &Cluster,
        renewed: Option<Timestamp>,
        (now, at): (Timestamp, Instant),
        grace: Grace,
    ) -> Option<Condition> {
        let ready = cluster.status.condition(conditions::READY);
        if self.ready.as_ref() != ready {
            self.ready = ready.cloned();
            self.last = at;
        }
        // Any other time is one: an agent whose clock is put right renews with earlier times than before.
        if renewed.is_some() && renewed != self.renewed {
            self.renewed = renewed;
            self.last = at;
        }
        let patience = if ready.is_none() { grace.startup } else { grace.monitor };
        if at.saturating_duration_since(self.last) <= patience {
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
    let mut judged = cluster.clone();
    set_condition(&mut judged.status.conditions, verdict);
    match shared.writer.update_status(cluster, &judged, Guard::Version).await {
        Ok(written) => written.into_iter().for_each(|written| shared.mirrors.clusters.note(written)),
        Err(error) => tracing::debug!(cluster = name, %error, "verdict not written, the next look writes it"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

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

    /// The two clocks, which agree.
    struct Clocks(Instant);

    impl Clocks {
        fn new() -> Self {
            Self(Instant::now() + Duration::from_secs(10_000))
        }

        fn at(&self, second: i64) -> (Timestamp, Instant) {
            (at(second), self.0 + Duration::from_secs(second.unsigned_abs()))
        }
    }

    #[test]
    fn a_cluster_that_never_reported_becomes_unknown_after_the_startup_grace() {
        let (silent, clocks) = (cluster(None), Clocks::new());
        let (now, seen) = clocks.at(10);
        let mut signs = Signs::first(&silent, now, seen);
        assert_eq!(signs.step(&silent, None, clocks.at(60), GRACE), None);
        let verdict = signs.step(&silent, None, clocks.at(61), GRACE).unwrap();
        let Condition { type_, status, reason, .. } = &verdict;
        assert_eq!([type_, status, reason], ["Ready", "Unknown", "ClusterStatusNeverUpdated"]);
        assert_eq!(verdict.message, "Cluster status controller never posted cluster status.");
    }

    #[test]
    fn a_lease_keeps_a_cluster_alive_and_silence_makes_it_unknown_once() {
        let (ready, clocks) = (cluster(Some("True")), Clocks::new());
        let (now, seen) = clocks.at(0);
        let mut signs = Signs::first(&ready, now, seen);
        assert_eq!(signs.step(&ready, Some(at(30)), clocks.at(30), GRACE), None);
        assert_eq!(signs.step(&ready, Some(at(30)), clocks.at(70), GRACE), None);
        let verdict = signs.step(&ready, Some(at(30)), clocks.at(71), GRACE).unwrap();
        let Condition { type_, status, reason, .. } = &verdict;
        assert_eq!([type_, status, reason], ["Ready", "Unknown", "ClusterStatusUnknown"]);
        assert_eq!(verdict.message, "Cluster status controller stopped posting cluster status.");
        let unknown = cluster(Some("Unknown"));
        assert_eq!(signs.step(&unknown, Some(at(30)), clocks.at(72), GRACE), None);
        assert_eq!(signs.step(&unknown, Some(at(30)), clocks.at(172), GRACE), None);
    }

    #[test]
    fn silence_of_a_cluster_that_reported_counts_from_the_first_check() {
        let (ready, clocks) = (cluster(Some("True")), Clocks::new());
        let (now, seen) = clocks.at(1_000);
        let mut signs = Signs::first(&ready, now, seen);
        assert_eq!(signs.step(&ready, None, clocks.at(1_040), GRACE), None);
        assert!(signs.step(&ready, None, clocks.at(1_041), GRACE).is_some());
        // Its clock is ahead of ours.
        let mut silent = cluster(None);
        silent.metadata.creation_timestamp = Some(Time(at(2_000)));
        let mut signs = Signs::first(&silent, now, seen);
        assert_eq!(signs.step(&silent, None, clocks.at(1_060), GRACE), None);
        assert!(signs.step(&silent, None, clocks.at(1_061), GRACE).is_some());
    }

    #[test]
    fn what_cannot_be_read_is_not_silence() {
        let view = |renewed: Result<Option<Timestamp>, String>| {
            let (now, seen) = Clocks::new().at(0);
            let signs = Some(Signs::first(&cluster(Some("True")), now, seen));
            let at = seen + Duration::from_secs(100);
            View { cluster: Arc::new(cluster(Some("True"))), renewed, signs, grace: GRACE, at }
        };
        assert!(matches!(decide(&view(Err("why".to_owned())), at(100)), Plan::Nothing(_)));
        assert!(matches!(decide(&view(Ok(None)), at(100)), Plan::Note { verdict: Some(_), .. }));
        assert!(matches!(decide(&view(Ok(Some(at(99)))), at(100)), Plan::Note { verdict: None, .. }));
    }

    #[test]
    fn a_condition_that_changed_is_a_sign_of_life_once() {
        let (ready, ill, clocks) = (cluster(Some("True")), cluster(Some("False")), Clocks::new());
        let (now, seen) = clocks.at(0);
        let mut signs = Signs::first(&ready, now, seen);
        assert_eq!(signs.step(&ill, None, clocks.at(30), GRACE), None);
        assert_eq!(signs.step(&ill, None, clocks.at(70), GRACE), None, "40 s since it changed");
        assert!(signs.step(&ill, None, clocks.at(71), GRACE).is_some());
    }

    #[test]
    fn an_agent_whose_clock_is_set_back_is_not_silent() {
        let (ready, clocks) = (cluster(Some("True")), Clocks::new());
        let (now, seen) = clocks.at(0);
        let mut signs = Signs::first(&ready, now, seen);
        // An hour ahead, until somebody sets it right.
        assert_eq!(signs.step(&ready, Some(at(3_630)), clocks.at(30), GRACE), None);
        for second in (40..200).step_by(10) {
            assert_eq!(signs.step(&ready, Some(at(second)), clocks.at(second), GRACE), None, "{second}");
        }
        assert_eq!(signs.step(&ready, None, clocks.at(230), GRACE), None);
        assert!(signs.step(&ready, None, clocks.at(231), GRACE).is_some(), "a lost Lease is not a sign");
    }

    #[test]
    fn a_clock_that_jumps_is_not_silence() {
        let (ready, clocks) = (cluster(Some("True")), Clocks::new());
        let (now, seen) = clocks.at(0);
        let mut signs = Signs::first(&ready, now, seen);
        let next = clocks.at(5).1;
        assert_eq!(signs.step(&ready, Some(at(0)), (at(86_400), next), GRACE), None);
        assert_eq!(signs.step(&ready, Some(at(0)), (at(-86_400), next), GRACE), None);
    }
}
