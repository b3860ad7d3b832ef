//! The heartbeat of an agent: the Lease of its cluster, renewed as long as the agent can reach the control
//! plane.
//!
//! Watches: nothing; it begins when the cluster is healthy for the first time. Writes: Lease `karmada-cluster/CLUSTER`, every
//! `Timing::lease_duration` × `Timing::lease_renew_fraction`.
//!
//! The control plane compares renewals with its own clock (`monitor`), so a wrong clock does no harm. The
//! Lease is deleted with its Cluster, which owns it; a Lease of an earlier Cluster of the same name is taken
//! over.
//!
//! Only the agent writes this Lease, and it writes it often. So the Lease also shows whether the control
//! plane still has the history that the agent saw ([`Signs`]): watches that were cut resume where they were,
//! unless the control plane was restored from a backup.

#[cfg(test)]
mod on_server;
mod signs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::cluster::Cluster;
use api::constants::NAMESPACE_CLUSTER;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Resource};
use parking_lot::Mutex;
use runtime::{Error, Outcome, Queue, Reconcile, UNLIMITED, controller};

use super::Shared;
use crate::Timing;
pub(crate) use signs::Signs;

/// Renewals of many agents that started together spread out by up to this part of their interval.
const JITTER: f64 = 0.04;
/// The shortest time between renewals, also if the Lease is to last for no time at all.
const SHORTEST: Duration = Duration::from_millis(100);

pub(super) struct Heartbeat {
    shared: Arc<Shared>,
    queue: Arc<Queue<String>>,
    begun: AtomicBool,
    /// The Lease as it was last written: it has one writer, so it need not be read again.
    last: Mutex<Option<Lease>>,
}

impl Heartbeat {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        let timing = &shared.timing;
        // While the control plane cannot be reached, renewals fail. When it is back, the next one has to come before it takes the
        // agent for silent; a minute, as queues rest otherwise, is too long.
        let longest = interval(timing, 1.0);
        let (shared, queue) = (shared.clone(), Queue::resting_at_most("cluster-lease", longest));
        Arc::new(Self { shared, queue, begun: AtomicBool::new(false), last: Mutex::default() })
    }

    pub(super) fn run(self: &Arc<Self>) {
        controller::run(self, &self.queue, UNLIMITED, &self.shared.supervisor);
    }

    /// The cluster is healthy: starts the heartbeat, which lasts as long as the Cluster exists.
    pub(super) fn begin(&self, cluster: &str) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.queue.push(cluster.to_owned());
        }
    }

    fn interval(&self) -> Duration {
        interval(&self.shared.timing, 1.0 + JITTER * f64::from(rand_fraction()))
    }
}

fn interval(timing: &Timing, spread: f64) -> Duration {
    timing.lease_duration.mul_f64(timing.lease_renew_fraction * spread).max(SHORTEST)
}

/// Returns a number below one that differs from renewal to renewal.
fn rand_fraction() -> f32 {
    let bytes = uuid::Uuid::new_v4().into_bytes();
    f32::from(u16::from_be_bytes([bytes[0], bytes[1]])) / 65536.0
}

/// What is known before a renewal.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    lease: Option<Lease>,
    duration: Duration,
}

/// What is written.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    Create(Lease),
    Renew(Lease),
}

fn decide(view: &View, now: Timestamp) -> Plan {
    let name = view.cluster.metadata.name.clone().unwrap_or_default();
    let mut lease = view.lease.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: Cluster::api_version(&()).into_owned(),
        kind: Cluster::kind(&()).into_owned(),
        name: name.clone(),
        uid: view.cluster.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    lease.metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(NAMESPACE_CLUSTER.to_owned()),
        owner_references: Some(vec![owner]),
        ..lease.metadata
    };
    let spec = lease.spec.take().unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(name),
        // No server accepts a Lease that lasts less than a second.
        lease_duration_seconds: Some(i32::try_from(view.duration.as_secs().max(1)).unwrap_or(i32::MAX)),
        renew_time: Some(MicroTime(now)),
        ..spec
    });
    if view.lease.is_some() { Plan::Renew(lease) } else { Plan::Create(lease) }
}

impl Reconcile for Heartbeat {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let Some(cluster) = self.shared.my_cluster(name) else {
            // The next Cluster of this name starts from scratch.
            self.begun.store(false, Ordering::Relaxed);
            self.last.lock().take();
            return Ok(None);
        };
        let known = self.last.lock().clone();
        let lease = match known {
            Some(lease) => Some(lease),
            None => {
                let found = self.leases().get_opt(name).await?;
                self.signs(|signs| {
                    signs.found(found.as_ref());
                });
                found
            }
        };
        Ok(Some(View { cluster, lease, duration: self.shared.timing.lease_duration }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, name: &String, _: View, plan: Plan) -> Result<Outcome, Error> {
        // Not by the `Writer`: no mirror follows Leases, and a Lease is replaced as a whole. The replacement is refused
        // if the Lease has another version, or is gone, so a control plane that was restored is noticed ([`Signs`]).
        // It is on disk before it is answered: one that a crash of the control plane loses would look like a backup.
        let leases = self.leases();
        // If the write fails, the known Lease is dropped, and the next attempt reads it.
        self.last.lock().take();
        let written = match plan {
            Plan::Create(lease) => leases.create(&PostParams::default(), &lease).await?,
            Plan::Renew(lease) => {
                self.signs(|signs| signs.tries(&lease));
                leases.replace(name, &PostParams::default(), &lease).await?
            }
        };
        self.signs(|signs| signs.wrote(&written));
        *self.last.lock() = Some(written);
        Ok(Outcome::After(self.interval()))
    }
}

impl Heartbeat {
    fn signs(&self, tell: impl FnOnce(&Signs)) {
        if let Some(signs) = &self.shared.signs {
            tell(signs);
        }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.shared.client().clone(), NAMESPACE_CLUSTER)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{at, cluster};

    fn view(lease: Option<Lease>) -> View {
        let cluster = cluster("m1", "True", json!({ "metadata": { "uid": "u1" } }));
        View { cluster: Arc::new(cluster), lease, duration: Duration::from_secs(40) }
    }

    #[test]
    fn a_lease_is_made_once_and_then_renewed() {
        let Plan::Create(lease) = decide(&view(None), at(100)) else { panic!("there is none yet") };
        let spec = lease.spec.clone().expect("a spec");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("m1"), Some(40)));
        assert_eq!(lease.metadata.owner_references.as_ref().expect("an owner")[0].uid, "u1");
        let Plan::Renew(renewed) = decide(&view(Some(lease)), at(110)) else { panic!("there is one") };
        assert_eq!(renewed.spec.expect("a spec").renew_time, Some(MicroTime(at(110))));
    }

    #[test]
    fn a_lease_that_lasts_for_no_time_is_not_renewed_without_a_pause() {
        let lasting = |lease_duration| interval(&Timing { lease_duration, ..Timing::default() }, 1.0);
        assert_eq!(lasting(Duration::from_secs(40)), Duration::from_secs(10));
        assert_eq!(lasting(Duration::ZERO), SHORTEST);
        let none = View { duration: Duration::ZERO, ..view(None) };
        let Plan::Create(lease) = decide(&none, at(100)) else { panic!("there is none yet") };
        assert_eq!(lease.spec.expect("a spec").lease_duration_seconds, Some(1));
    }

    #[test]
    fn what_a_renewal_says() {
        let lease = |spec: Value| -> Option<Lease> {
            let lease = json!({ "metadata": { "name": "m1", "resourceVersion": "7" }, "spec": spec });
            Some(serde_json::from_value(lease).expect("a lease"))
        };
        let secs = Duration::from_secs;
        // What is there, how long it is to last; then: created or renewed, for how many seconds, and how often it changed hands.
        let cases = [
            ("there is none", None, secs(40), ("create", 40, None)),
            ("there is one", lease(json!({})), secs(40), ("renew", 40, None)),
            ("it lasted longer", lease(json!({ "leaseDurationSeconds": 60 })), secs(40), ("renew", 40, None)),
            ("somebody else held it", lease(json!({ "holderIdentity": "x" })), secs(40), ("renew", 40, None)),
            (
                "what others say in it stays",
                lease(json!({ "leaseTransitions": 3 })),
                secs(40),
                ("renew", 40, Some(3)),
            ),
            ("a part of a second", None, Duration::from_millis(10), ("create", 1, None)),
            ("half a second more", None, Duration::from_millis(1500), ("create", 1, None)),
            ("for ever", None, Duration::MAX, ("create", i32::MAX, None)),
        ];
        for (name, lease, duration, expected) in cases {
            let (what, written) = match decide(&View { duration, ..view(lease) }, at(100)) {
                Plan::Create(lease) => ("create", lease),
                Plan::Renew(lease) => ("renew", lease),
            };
            assert_eq!(written.metadata.namespace.as_deref(), Some(NAMESPACE_CLUSTER), "{name}");
            let spec = written.spec.expect("a spec");
            assert_eq!(
                (spec.holder_identity.as_deref(), spec.renew_time),
                (Some("m1"), Some(MicroTime(at(100)))),
                "{name}"
            );
            let found = (what, spec.lease_duration_seconds.unwrap_or_default(), spec.lease_transitions);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_lease_of_an_earlier_cluster_gets_the_new_owner() {
        let old: Lease = serde_json::from_value(json!({
            "metadata": { "name": "m1", "resourceVersion": "7", "ownerReferences": [
                { "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "name": "m1", "uid": "old" }] },
        }))
        .expect("a lease");
        let Plan::Renew(lease) = decide(&view(Some(old)), at(0)) else { panic!("there is one") };
        assert_eq!(lease.metadata.owner_references.expect("an owner")[0].uid, "u1");
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
    }
}
