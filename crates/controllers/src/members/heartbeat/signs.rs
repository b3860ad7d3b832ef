//! Uses the last heartbeat to find out whether the control plane still has the history that this agent saw.
//!
//! It remembers the last Lease that was written. If the control plane shows the same Lease, its history
//! includes that write. If it shows another one, the control plane was restored from a backup, or another
//! client changed the Lease: then everything is listed again, and later checks compare with the Lease that is
//! found now. The answer to a write may have been lost; such a Lease is recognised by its time.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::constants::NAMESPACE_CLUSTER;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Api, Client};
use parking_lot::Mutex;
use runtime::{Vouched, Witness};

/// How long the control plane may take to show the Lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// The last heartbeat of this agent.
pub(crate) struct Signs {
    leases: Api<Lease>,
    cluster: String,
    last: Mutex<Last>,
    /// When the Lease was last read, and the result. Locked during the read, so that waiting callers take the
    /// same answer.
    looked: tokio::sync::Mutex<Option<(Instant, Vouched)>>,
    /// Called when the history has changed.
    broken: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Last {
    written: Option<Sign>,
    /// The time in a renewal whose answer has not arrived.
    tried: Option<MicroTime>,
}

/// What distinguishes two writes of a Lease.
#[derive(Debug, Clone, PartialEq)]
struct Sign {
    uid: String,
    revision: u64,
}

impl Sign {
    fn of(lease: &Lease) -> Option<Self> {
        let revision = lease.metadata.resource_version.as_ref()?.parse().ok()?;
        Some(Self { uid: lease.metadata.uid.clone()?, revision })
    }
}

fn time(lease: &Lease) -> Option<MicroTime> {
    lease.spec.as_ref()?.renew_time.clone()
}

impl Signs {
    pub(crate) fn new(client: Client, cluster: &str) -> Arc<Self> {
        Arc::new(Self {
            leases: Api::namespaced(client, NAMESPACE_CLUSTER),
            cluster: cluster.to_owned(),
            last: Mutex::default(),
            looked: tokio::sync::Mutex::default(),
            broken: OnceLock::new(),
        })
    }

    /// Sets the callback for a changed history.
    pub(crate) fn when_broken(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.broken.set(Box::new(act));
    }

    /// A renewal is about to be written.
    pub(super) fn tries(&self, lease: &Lease) {
        self.last.lock().tried = time(lease);
    }

    /// The control plane has answered to a write.
    pub(super) fn wrote(&self, lease: &Lease) {
        *self.last.lock() = Last { written: Sign::of(lease), tried: None };
    }

    /// The control plane was asked for the Lease. Returns up to where the history is the one that was seen, if it is.
    pub(super) fn found(&self, lease: Option<&Lease>) -> Option<u64> {
        let found = lease.and_then(Sign::of);
        let mut last = self.last.lock();
        let Some(written) = last.written.clone() else {
            last.written = found;
            return None;
        };
        let same = found.as_ref().is_some_and(|found| {
            let late = last.tried.is_some() && lease.and_then(time) == last.tried;
            *found == written || (late && found.uid == written.uid && found.revision > written.revision)
        });
        *last = Last { written: found, tried: None };
        drop(last);
        if same {
            return Some(written.revision);
        }
        tracing::warn!(
            cluster = self.cluster,
            "the control plane has another history than before; all is listed anew"
        );
        if let Some(act) = self.broken.get() {
            act();
        }
        None
    }

    async fn look(&self) -> Vouched {
        match tokio::time::timeout(PATIENCE, self.leases.get_opt(&self.cluster)).await {
            Ok(Ok(lease)) => self.found(lease.as_ref()).map_or(Vouched::Nothing, Vouched::Until),
            // It has answered, but shows us no Lease.
            Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => Vouched::Nothing,
            Ok(Err(_)) | Err(_) => Vouched::Unreachable,
        }
    }
}

impl Witness for Signs {
    fn vouch(&self, since: Instant) -> BoxFuture<'_, Vouched> {
        async move {
            let mut looked = self.looked.lock().await;
            if let Some((at, said)) = *looked
                && at >= since
            {
                return said;
            }
            let at = Instant::now();
            let said = self.look().await;
            *looked = Some((at, said));
            said
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    fn signs() -> (Arc<Signs>, Arc<AtomicUsize>) {
        let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let (signs, broken) =
            (Signs::new(Client::new(never, "default"), "m1"), Arc::new(AtomicUsize::new(0)));
        let counted = broken.clone();
        signs.when_broken(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (signs, broken)
    }

    fn lease(uid: &str, version: &str, second: u32) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "m1", "uid": uid, "resourceVersion": version },
            "spec": { "renewTime": format!("2030-01-01T00:00:{second:02}.000000Z") },
        }))
        .expect("a lease")
    }

    #[tokio::test]
    async fn a_lease_as_it_was_written_vouches_for_everything_before_it() {
        let (signs, broken) = signs();
        assert_eq!(signs.found(None), None, "nothing is known yet");
        signs.wrote(&lease("u", "70", 1));
        assert_eq!(signs.found(Some(&lease("u", "70", 1))), Some(70));
        // The answer to a renewal got lost.
        signs.tries(&lease("u", "70", 2));
        assert_eq!(signs.found(Some(&lease("u", "90", 2))), Some(70));
        assert_eq!(signs.found(Some(&lease("u", "90", 2))), Some(90));
        assert_eq!(broken.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn what_is_found_first_is_known_from_then_on() {
        let (signs, broken) = signs();
        assert_eq!(signs.found(Some(&lease("u", "70", 1))), None);
        assert_eq!(signs.found(Some(&lease("u", "70", 1))), Some(70));
        assert_eq!(signs.found(Some(&lease("u", "80", 1))), None, "nobody has tried to renew it");
        assert_eq!(broken.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn any_other_lease_is_of_another_history() {
        let others = [
            ("older", Some(lease("u", "50", 0))),
            ("newer, by somebody else", Some(lease("u", "90", 7))),
            ("of another object", Some(lease("other", "70", 1))),
            ("older, with the time of a renewal that was tried", Some(lease("u", "60", 2))),
            ("of another object, with that time", Some(lease("other", "90", 2))),
            ("gone", None),
        ];
        for (what, other) in others {
            let (signs, broken) = signs();
            signs.wrote(&lease("u", "70", 1));
            signs.tries(&lease("u", "70", 2));
            assert_eq!(signs.found(other.as_ref()), None, "{what}");
            assert_eq!(broken.load(Ordering::Relaxed), 1, "{what}");
            // From here on, the current Lease is known.
            let again = signs.found(other.as_ref());
            assert_eq!(again, other.and_then(|lease| Sign::of(&lease)).map(|sign| sign.revision), "{what}");
        }
    }
}
