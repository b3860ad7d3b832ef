//! Notices when the agent of a pull-mode cluster falls silent, and says so in the Ready condition.
//!
//! Watches: nothing; looks at the clusters and the agents' Leases every `Timing::monitor_period`.
//! Writes:  Ready = Unknown of clusters that have been silent for longer than the grace period.
//!
//! Push clusters are not touched: the controller that collects their status notices it.

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
use propagation::status::{condition, set_condition};
use serde_json::json;

use super::Shared;

const NEVER: &str = "Cluster status controller never posted cluster status.";
const STOPPED: &str = "Cluster status controller stopped posting cluster status.";

pub(super) async fn run(shared: Arc<Shared>) {
    let mut signs: HashMap<String, Signs> = HashMap::new();
    let mut ticks = tokio::time::interval(shared.timing.monitor_period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shared.supervisor.token().cancelled() => return,
            _ = ticks.tick() => {}
        }
        let clusters = shared.mirrors.clusters.entries();
        signs.retain(|name, _| clusters.iter().any(|(key, _)| key.name == *name));
        for (key, cluster) in
            clusters.iter().filter(|(_, cluster)| cluster.spec.sync_mode == ClusterSyncMode::Pull)
        {
            let leases = Api::<Lease>::namespaced(shared.client().clone(), NAMESPACE_CLUSTER);
            let renewed = match leases.get_opt(&key.name).await {
                Ok(lease) => lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0),
                // What cannot be read is not silence.
                Err(_) => continue,
            };
            let now = Timestamp::now();
            let seen = signs.entry(key.name.clone()).or_insert_with(|| Signs::first(cluster, now));
            let grace = Grace {
                startup: shared.timing.startup_grace_period,
                monitor: shared.timing.monitor_grace_period,
            };
            if let Some(verdict) = seen.step(cluster, renewed, now, grace) {
                write(&shared, &key.name, cluster, verdict).await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Grace {
    startup: Duration,
    monitor: Duration,
}

/// The signs of life of one cluster.
#[derive(Debug)]
struct Signs {
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
