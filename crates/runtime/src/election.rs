//! Leader election: of several processes, the one that holds the Lease acts.
//!
//! In: the control plane, our identity, the timing. Out: a [`Leadership`] once we hold the Lease; it says when the Lease is lost,
//! and releases it when we shut down.
//!
//! The protocol is that of Go's controllers, so that they and we can compete for the same Lease. A holder renews every
//! [`Timing::retry`], and the Lease says how long it is respected ([`Timing::lease`] of its holder). A candidate that has seen no
//! renewal for that long, by its own clock, takes over. A holder that could not renew for [`Timing::renew`], which is shorter,
//! has lost it and must not act any more. A renewal counts from when it was requested: others may have seen it long before its
//! answer arrives. Times in the Lease are for people: clocks of different machines are never compared.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Labels, add};

/// The timing of the election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// `--leader-elect-lease-duration`: how long a Lease that is not renewed is respected.
    pub lease: Duration,
    /// `--leader-elect-renew-deadline`: how long a holder tries to renew before it gives up.
    pub renew: Duration,
    /// `--leader-elect-retry-period`: how long every process waits between two attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// A timing that cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTiming {
    #[error("the lease duration must be longer than the renew deadline")]
    LeaseTooShort,
    #[error("the renew deadline must be longer than the retry period")]
    DeadlineTooShort,
    #[error("durations must be longer than zero; the lease lasts at least a second")]
    Zero,
}

impl Timing {
    /// Returns whether the timing rules out two holders at once and gives every process a second attempt.
    pub fn check(&self) -> Result<(), BadTiming> {
        if self.retry.is_zero() || self.lease < Duration::from_secs(1) {
            return Err(BadTiming::Zero);
        }
        if self.lease <= self.renew {
            return Err(BadTiming::LeaseTooShort);
        }
        // Go's jitter factor: a wait may be longer by up to 1.2 times its length.
        if self.renew <= self.retry.mul_f64(1.2) {
            return Err(BadTiming::DeadlineTooShort);
        }
        Ok(())
    }
}

/// A candidate, and the Lease it wants.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub namespace: String,
    pub lease: String,
    /// Unique among all processes.
    pub identity: String,
    pub timing: Timing,
}

static MASTER: LazyLock<Family<Labels<1, String>, Gauge>> = LazyLock::new(|| {
    let metrics = Family::default();
    let help = "Whether this process leads: 1 if it does, 0 if it waits";
    add(|registry| registry.register("leader_election_master_status", help, Family::clone(&metrics)));
    metrics
});

impl Candidate {
    /// Waits until we hold the Lease; `None` if it is stopped before.
    pub async fn lead(self, client: &Client, stop: &CancellationToken) -> Option<Leadership> {
        let leases = Api::namespaced(client.clone(), &self.namespace);
        let mut attempt = Attempt { view: View::default(), leases, client: client.clone(), candidate: self };
        attempt.gauge().set(0);
        let asked = loop {
            let (timing, asked) = (attempt.candidate.timing, Instant::now());
            let result = tokio::select! {
                () = stop.cancelled() => return None,
                result = tokio::time::timeout(timing.renew, attempt.once()) => result,
            };
            match result {
                Ok(Ok(true)) => break asked,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot look at the lease"),
                Err(_) => tracing::warn!("cannot look at the lease: no answer in time"),
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(timing.retry) => {}
            }
        };
        attempt.gauge().set(1);
        let (lost, ending) = (CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(hold(attempt, asked, lost.clone(), ending.clone()));
        Some(Leadership { lost, ending, task })
    }
}

/// The Lease while we hold it.
pub struct Leadership {
    lost: CancellationToken,
    ending: CancellationToken,
    task: JoinHandle<()>,
}

impl Leadership {
    /// Waits until we no longer hold the Lease. From then on nothing may be written in its name.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Releases the Lease, so that the next holder need not wait. Must be called when the work has ended.
    pub async fn release(self) {
        self.ending.cancel();
        let _ = self.task.await;
    }
}

/// Renews until it is stopped, or until the Lease is lost. `renewed` is when the Lease was last requested successfully.
async fn hold(
    mut attempt: Attempt,
    mut renewed: Instant,
    lost: CancellationToken,
    ending: CancellationToken,
) {
    let timing = attempt.candidate.timing;
    let mut asked = renewed;
    loop {
        // What cannot be counted ends at once: a Lease may be lost, but not relied on for too long.
        let deadline = renewed.checked_add(timing.renew).unwrap_or(renewed);
        let next = asked.checked_add(timing.retry).unwrap_or(deadline);
        tokio::select! {
            () = ending.cancelled() => {
                attempt.gauge().set(0);
                attempt.give_back().await;
                return;
            }
            () = tokio::time::sleep_until(next) => {}
        }
        asked = Instant::now();
        match tokio::time::timeout_at(deadline, attempt.once()).await {
            Ok(Ok(true)) => {
                renewed = asked;
                continue;
            }
            Ok(Ok(false)) => tracing::error!("the lease is held by somebody else"),
            Ok(Err(error)) if Instant::now() < deadline => {
                tracing::warn!(%error, "cannot renew the lease; trying again");
                continue;
            }
            Ok(Err(error)) => tracing::error!(%error, "could not renew the lease in time"),
            Err(_) => tracing::error!("could not renew the lease in time: no answer"),
        }
        attempt.gauge().set(0);
        lost.cancel();
        return;
    }
}

struct Attempt {
    candidate: Candidate,
    client: Client,
    leases: Api<Lease>,
    view: View,
}

impl Attempt {
    fn gauge(&self) -> Gauge {
        MASTER.get_or_create_owned(&[("name", self.candidate.lease.clone())])
    }

    /// Tries once to get or keep the Lease; returns whether we hold it.
    async fn once(&mut self) -> Result<bool, Error> {
        let found = self.leases.get_opt(&self.candidate.lease).await?;
        let step = self.view.step(found.as_ref(), &self.candidate, Instant::now(), Timestamp::now());
        let written = match step {
            Step::Wait => return Ok(false),
            Step::Create(lease) => self.create(&lease).await,
            Step::Update(lease) => {
                self.leases.replace(&self.candidate.lease, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                self.view.note(&lease, Instant::now());
                Ok(true)
            }
            // Another process was faster; the next attempt shows which.
            Err(Error::Api(status)) if status.code == 409 && !self.view.is_held_by(&self.candidate) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Error> {
        match self.leases.create(&PostParams::default(), lease).await {
            Err(Error::Api(status)) if status.code == 404 => {
                // A control plane that was never installed may lack the namespace.
                let mut namespace = Namespace::default();
                namespace.metadata.name = Some(self.candidate.namespace.clone());
                match Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await {
                    Ok(_) => {}
                    Err(Error::Api(status)) if status.code == 409 => {}
                    Err(error) => return Err(error),
                }
                self.leases.create(&PostParams::default(), lease).await
            }
            result => result,
        }
    }

    async fn give_back(&mut self) {
        let Some(lease) = self.view.given_back(Timestamp::now()) else { return };
        let name = &self.candidate.lease;
        let parameters = PostParams::default();
        let written =
            tokio::time::timeout(self.candidate.timing.renew, self.leases.replace(name, &parameters, &lease));
        match written.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease was not given back"),
            Err(_) => tracing::warn!("the lease was not given back: no answer in time"),
        }
    }
}

/// What a candidate has seen of the Lease, and since when by its own clock.
#[derive(Debug, Default)]
struct View {
    seen: Option<(Lease, Instant)>,
}

/// The next step for the Lease.
#[derive(Debug, PartialEq)]
enum Step {
    Create(Lease),
    Update(Lease),
    /// Another process holds it.
    Wait,
}

impl View {
    fn step(&mut self, found: Option<&Lease>, candidate: &Candidate, now: Instant, wall: Timestamp) -> Step {
        let wall = MicroTime(wall);
        // Rounded up: what others respect is never shorter than what we rely on.
        let lease = candidate.timing.lease;
        let seconds = lease.as_secs().saturating_add(u64::from(lease.subsec_nanos() > 0));
        let mut spec = LeaseSpec {
            holder_identity: Some(candidate.identity.clone()),
            lease_duration_seconds: i32::try_from(seconds).ok(),
            acquire_time: Some(wall.clone()),
            renew_time: Some(wall),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        };
        let Some(found) = found else {
            let metadata = ObjectMeta {
                name: Some(candidate.lease.clone()),
                namespace: Some(candidate.namespace.clone()),
                ..ObjectMeta::default()
            };
            return Step::Create(Lease { metadata, spec: Some(spec) });
        };
        self.note(found, now);
        let current = found.spec.clone().unwrap_or_default();
        let transitions = current.lease_transitions.unwrap_or(0);
        match current.holder_identity.as_deref() {
            Some(holder) if holder == candidate.identity => {
                spec.acquire_time = current.acquire_time;
                spec.lease_transitions = Some(transitions);
            }
            Some(holder) if !holder.is_empty() => {
                let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
                // Its holder may be more patient than we are, and relies on what it has written.
                let said = current.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
                let said = said.filter(|seconds| *seconds > 0).map(Duration::from_secs);
                if since.checked_add(said.unwrap_or(lease)).is_none_or(|end| now < end) {
                    return Step::Wait;
                }
                spec.lease_transitions = Some(transitions.saturating_add(1));
            }
            // It was given back.
            _ => spec.lease_transitions = Some(transitions.saturating_add(1)),
        }
        // With its resource version, so that the first writer wins.
        Step::Update(Lease { spec: Some(spec), ..found.clone() })
    }

    /// Records the Lease; the clock restarts only if it has changed.
    fn note(&mut self, lease: &Lease, now: Instant) {
        if self.seen.as_ref().is_none_or(|(known, _)| known.spec != lease.spec) {
            self.seen = Some((lease.clone(), now));
        } else if let Some((known, _)) = &mut self.seen {
            *known = lease.clone();
        }
    }

    fn is_held_by(&self, candidate: &Candidate) -> bool {
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_ref()) == Some(&candidate.identity)
    }

    /// Returns the Lease as it should be when no process holds it.
    fn given_back(&self, wall: Timestamp) -> Option<Lease> {
        let (lease, _) = self.seen.as_ref()?;
        let mut lease = lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(wall));
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    fn candidate(identity: &str) -> Candidate {
        Candidate {
            namespace: "karmada-system".to_owned(),
            lease: "karmada-controller-manager".to_owned(),
            identity: identity.to_owned(),
            timing: Timing::default(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn spec(step: Step) -> LeaseSpec {
        match step {
            Step::Create(lease) | Step::Update(lease) => lease.spec.unwrap(),
            Step::Wait => panic!("it had to wait"),
        }
    }

    #[test]
    fn a_lease_that_is_renewed_is_respected_and_one_that_is_not_is_taken() {
        let (a, b) = (candidate("a"), candidate("b"));
        let (mut of_a, mut of_b) = (View::default(), View::default());
        let start = Instant::now();
        let Step::Create(mut lease) = of_a.step(None, &a, start, at(0)) else { panic!("a new lease") };
        assert_eq!(of_b.step(Some(&lease), &b, start, at(0)), Step::Wait);
        // Renewed after ten seconds: b's waiting time starts again.
        lease.spec = Some(spec(of_a.step(Some(&lease), &a, start + Duration::from_secs(10), at(10))));
        let ten = start + Duration::from_secs(10);
        assert_eq!(of_b.step(Some(&lease), &b, ten, at(10)), Step::Wait);
        assert_eq!(of_b.step(Some(&lease), &b, ten + Duration::from_secs(14), at(24)), Step::Wait);
        let taken = spec(of_b.step(Some(&lease), &b, ten + Duration::from_secs(15), at(25)));
        assert_eq!(taken.holder_identity.as_deref(), Some("b"));
        assert_eq!((taken.lease_transitions, taken.acquire_time), (Some(1), Some(MicroTime(at(25)))));
    }

    #[test]
    fn clocks_of_others_do_not_count() {
        let b = candidate("b");
        let mut view = View::default();
        let mut lease = Lease {
            spec: Some(spec(View::default().step(None, &candidate("a"), Instant::now(), at(0)))),
            ..Lease::default()
        };
        lease.metadata.name = Some("karmada-controller-manager".to_owned());
        // By the wall clock it is long over, but b has only just seen it.
        assert_eq!(view.step(Some(&lease), &b, Instant::now(), at(100_000)), Step::Wait);
    }

    #[test]
    fn a_lease_is_respected_as_long_as_its_holder_says() {
        let (seconds, start) = (Duration::from_secs, Instant::now());
        let patient = Timing { lease: seconds(60), renew: seconds(40), ..Timing::default() };
        let patient = Candidate { timing: patient, ..candidate("a") };
        let held = spec(View::default().step(None, &patient, start, at(0)));
        // What the Lease says, and how long it is waited for.
        for (said, respected) in [(held.lease_duration_seconds, 60), (None, 15), (Some(0), 15), (Some(1), 1)]
        {
            let held = LeaseSpec { lease_duration_seconds: said, ..held.clone() };
            let (lease, mut view) = (Lease { spec: Some(held), ..Lease::default() }, View::default());
            let mut step = |passed: Duration| view.step(Some(&lease), &candidate("b"), start + passed, at(0));
            assert_eq!(step(Duration::ZERO), Step::Wait, "{said:?}");
            assert_eq!(step(seconds(respected) - Duration::from_millis(1)), Step::Wait, "{said:?}");
            assert_ne!(step(seconds(respected)), Step::Wait, "{said:?}");
        }
        let odd = Timing { lease: Duration::from_millis(1_500), ..Timing::default() };
        let odd = Candidate { timing: odd, ..candidate("a") };
        assert_eq!(spec(View::default().step(None, &odd, start, at(0))).lease_duration_seconds, Some(2));
    }

    #[test]
    fn finding_28_the_largest_numbers_in_a_lease_of_others_do_not_stop_an_election() {
        let start = Instant::now();
        for (holder, said) in [("a", Some(1)), ("", None)] {
            let full = LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: said,
                lease_transitions: Some(i32::MAX),
                ..LeaseSpec::default()
            };
            let (lease, mut view) = (Lease { spec: Some(full), ..Lease::default() }, View::default());
            view.note(&lease, start);
            let taken = spec(view.step(Some(&lease), &candidate("b"), start + Duration::from_secs(1), at(1)));
            assert_eq!(taken.holder_identity.as_deref(), Some("b"));
            assert_eq!(taken.lease_transitions, Some(i32::MAX));
        }
    }

    /// A server with one Lease, which stores writes immediately and answers them with a given delay.
    fn server(late: &Arc<Mutex<Duration>>) -> Client {
        let free = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "karmada-controller-manager", "resourceVersion": "1" }, "spec": {},
        });
        let (stored, late) = (Arc::new(Mutex::new(free)), late.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (stored, late) = (stored.clone(), late.clone());
            async move {
                let written =
                    request.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
                if let Ok(lease) = serde_json::from_slice::<Value>(&written) {
                    *stored.lock() = lease;
                    let late = *late.lock();
                    tokio::time::sleep(late).await;
                }
                let answer = stored.lock().to_string();
                Ok::<_, String>(http::Response::new(Body::from(answer.into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_makes_no_lease_longer() {
        let (late, stop, began) =
            (Arc::new(Mutex::new(Duration::ZERO)), CancellationToken::new(), Instant::now());
        let leadership = candidate("a").lead(&server(&late), &stop).await.expect("nobody else wants it");
        // It is renewed after two seconds, which others see immediately and we after six more. The next answer never arrives.
        *late.lock() = Duration::from_secs(6);
        tokio::time::sleep(Duration::from_secs(7)).await;
        *late.lock() = Duration::from_secs(3600);
        leadership.lost().await;
        let held = began.elapsed();
        assert!(held < Duration::from_secs(2 + 15), "others may take it then, and we held it for {held:?}");
    }

    #[test]
    fn a_renewal_keeps_the_time_of_the_first_day() {
        let a = candidate("a");
        let mut view = View::default();
        let first = spec(view.step(None, &a, Instant::now(), at(5)));
        let lease = Lease { spec: Some(first), ..Lease::default() };
        let renewed = spec(view.step(Some(&lease), &a, Instant::now(), at(9)));
        assert_eq!(renewed.acquire_time, Some(MicroTime(at(5))));
        assert_eq!((renewed.renew_time, renewed.lease_transitions), (Some(MicroTime(at(9))), Some(0)));
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        let (a, b) = (candidate("a"), candidate("b"));
        let mut view = View::default();
        let lease =
            Lease { spec: Some(spec(view.step(None, &a, Instant::now(), at(0)))), ..Lease::default() };
        view.note(&lease, Instant::now());
        assert!(view.is_held_by(&a));
        let free = view.given_back(at(1)).unwrap();
        let taken = spec(View::default().step(Some(&free), &b, Instant::now(), at(2)));
        assert_eq!(taken.holder_identity.as_deref(), Some("b"));
    }

    #[test]
    fn patience_that_would_allow_two_holders_is_refused() {
        assert_eq!(Timing::default().check(), Ok(()));
        let seconds = Duration::from_secs;
        let timing = |lease, renew, retry| Timing {
            lease: seconds(lease),
            renew: seconds(renew),
            retry: seconds(retry),
        };
        assert_eq!(timing(10, 10, 2).check(), Err(BadTiming::LeaseTooShort));
        assert_eq!(timing(15, 2, 2).check(), Err(BadTiming::DeadlineTooShort));
        assert_eq!(timing(15, 10, 0).check(), Err(BadTiming::Zero));
    }
}
