//! Carries out Works: what they contain exists in the member as wanted, and is gone when they are.
//!
//! Watches: Work (root, by generation), managed objects in the members (changed or deleted by others), Clusters that
//!          become Ready or leave.
//! Writes:  objects in the member; the Work's Dispatching and Applied conditions; its finalizer.
//!
//! `execution-controller`, `execution` in `--controllers`. Whatever is already as wanted costs no request: the copy of
//! the managed objects tells. A copy may be behind or incomplete, so nothing is concluded from an object that is not in
//! it: a creation that meets an existing object, or an update that meets a newer one, starts over from the member's
//! own answer. Deletions are in [`super::removal`] alone.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use api::conditions::work as conditions;
use api::labels::finalizers;
use api::work::{ManifestStatus, Work};
use api::{events, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use member::{Kind, Lookup, Member};
use propagation::Object;
use propagation::apply::{self, Decision};
use propagation::status::{condition, set_condition};
use runtime::Key;
use serde_json::{Value, json};

use super::metrics::METRICS;
use runtime::{Outcome, UNLIMITED};

use super::{Shared, Start, is_leaving, is_ready, removal, work_of, work_status};

const COMPONENT: &str = "execution-controller";
const MESSAGE_DISPATCHING: &str = "Work is being dispatched to member clusters.";
const MESSAGE_SUSPENDED: &str = "Work dispatching is in a suspended state.";
const MESSAGE_APPLIED: &str = "Manifest has been successfully applied";

/// How often one manifest is tried against a member that keeps changing it; as upstream's conflict retry.
const ATTEMPTS: usize = 5;

/// Why a manifest could not be carried out.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Member(#[from] member::Error),
    #[error(transparent)]
    Propagation(#[from] propagation::Error),
    #[error("{0}")]
    Foreign(String),
    #[error("{0} keeps being changed by others")]
    Restless(String),
}

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let of = shared.clone();
    shared.mirrors.works.subscribe(move |change| {
        let Some(new) = change.new.as_deref() else { return };
        // Status and marks of a Work are not for the member; only a new generation is.
        let news = change.old.as_deref().is_none_or(|old| {
            old.metadata.generation != new.metadata.generation
                || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        });
        if news {
            of.executions.push(change.key.clone());
        }
    });
    // The members must not keep alive what keeps them alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe(Arc::new(move |change| {
        let Some(of) = weak.upgrade() else { return };
        let drifted = match (change.old, change.new) {
            (Some(old), Some(new)) => apply::drifted(old, new),
            (Some(_), None) => true,
            // What is new to us is compared when its Work is looked at, which happens anyway.
            (None, _) => false,
        };
        if drifted
            && !change.ours
            && let Some(work) = work_of(change)
        {
            of.executions.push(work);
        }
    }));
    let of = shared.clone();
    Box::new(move || {
        let (supervisor, queue) = (of.supervisor.clone(), of.executions.clone());
        // The limit is that of the member a key belongs to.
        queue.spawn(UNLIMITED, &supervisor, move |key: Key| {
            let of = of.clone();
            async move { reconcile(&of, &key).await }
        });
    })
}

async fn reconcile(shared: &Arc<Shared>, key: &Key) -> Outcome {
    let Some(work) = shared.mirrors.works.find(key) else { return Outcome::Done };
    let Some(cluster_name) = names::cluster_of_execution_space(&key.namespace) else { return Outcome::Done };
    // A Cluster or connection that is missing takes up all its Works when it comes.
    let Some(cluster) = shared.my_cluster(cluster_name) else { return Outcome::Done };
    if work.metadata.deletion_timestamp.is_some() {
        let preserve = work.spec.preserve_resources_on_deletion == Some(true);
        return if is_ready(&cluster) || preserve {
            let Some(member) = shared.members.get(cluster_name) else { return Outcome::Done };
            let _permit = member.permit().await;
            withdraw(shared, &member, key, &work, preserve).await
        } else if is_leaving(&cluster) {
            // It cannot be reached and is being removed: its objects stay where they are.
            release(shared, key, &work).await
        } else {
            Outcome::Done
        };
    }
    let suspended = work.spec.suspend_dispatching == Some(true);
    let mut wanted = vec![dispatching(suspended)];
    if suspended || !is_ready(&cluster) {
        return write_conditions(shared, key, &work, wanted, Outcome::Done).await;
    }
    let Some(member) = shared.members.get(cluster_name) else {
        return write_conditions(shared, key, &work, wanted, Outcome::Done).await;
    };
    let permit = member.permit().await;
    let started = Instant::now();
    let (applied, outcome) = carry_out(shared, &member, key, &work).await;
    drop(permit);
    METRICS.carried(started, outcome == Outcome::Done);
    let is_applied = applied.status == "True";
    wanted.push(applied);
    // What the member answered tells the state of the objects as well: one write instead of two.
    let news = match shared.enabled.work_status && is_applied {
        true => work_status::news(shared, &member, key, &work).await,
        false => None,
    };
    let reports = news.as_ref().map(|news| news.reports.as_slice());
    let (outcome, written) = write_status(shared, key, &work, wanted, reports, outcome).await;
    if let Some(news) = news.filter(|_| written) {
        work_status::written(shared, &member, key, &work, &news).await;
    }
    outcome
}

/// A condition to be.
struct Wanted {
    kind: &'static str,
    status: &'static str,
    reason: &'static str,
    message: String,
    /// See [`is_confirmed`].
    generation: Option<i64>,
}

impl Wanted {
    fn new(
        kind: &'static str,
        status: &'static str,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into(), generation: None }
    }
}

fn dispatching(suspended: bool) -> Wanted {
    if suspended {
        Wanted::new(conditions::DISPATCHING, "False", conditions::REASON_SUSPENDED, MESSAGE_SUSPENDED)
    } else {
        Wanted::new(conditions::DISPATCHING, "True", conditions::REASON_DISPATCHING, MESSAGE_DISPATCHING)
    }
}

/// Returns whether the member once took this very Work, and has made something of its own of it.
///
/// Some objects never look like their manifest, since the member adds to them (tolerations of a pod, for example). For
/// those the Applied condition carries the Work's generation, so that a restart, which has forgotten what was written,
/// need not write it again.
fn is_confirmed(work: &Work) -> bool {
    work.metadata.generation.is_some()
        && work.status.conditions.iter().any(|known| {
            known.type_ == conditions::APPLIED
                && known.status == "True"
                && known.observed_generation == work.metadata.generation
        })
}

/// What became of a manifest.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    wrote: bool,
    /// The member's object has more in it than the manifest.
    embellished: bool,
}

/// Applies all manifests; returns the Applied condition and how to go on.
async fn carry_out(shared: &Shared, member: &Member, key: &Key, work: &Work) -> (Wanted, Outcome) {
    let manifests = &work.spec.workload.manifests;
    let mut errors = Vec::new();
    let (confirmed, mut all) = (is_confirmed(work), Carried::default());
    for manifest in manifests {
        let place = format!("{}/{}", manifest.namespace(), manifest.name());
        match carry_out_one(shared, member, manifest, confirmed).await {
            Ok(carried) => {
                all.embellished |= carried.embellished;
                if !carried.wrote {
                    continue;
                }
                all.wrote = true;
                let message = format!("Successfully applied resource({place}) to cluster {}", member.name());
                shared.say_of_template(COMPONENT, manifest, events::SYNC_SUCCEED, message);
            }
            Err(error) => {
                let message = format!(
                    "Failed to create or update resource({place}) in member cluster({}): {error}",
                    member.name()
                );
                shared.say_of_template(COMPONENT, manifest, events::SYNC_FAILED, message);
                errors.push(error.to_string());
            }
        }
    }
    if errors.is_empty() {
        if all.wrote {
            let message = format!("Sync work({key}) to cluster({}) successful.", member.name());
            shared.events.say(COMPONENT, work, events::SYNC_SUCCEED, message);
        }
        let mut applied =
            Wanted::new(conditions::APPLIED, "True", conditions::REASON_APPLIED, MESSAGE_APPLIED);
        applied.generation = work.metadata.generation.filter(|_| all.embellished);
        return (applied, Outcome::Done);
    }
    let text = aggregate(&errors);
    let message = format!("Failed to sync work({key}) to cluster({}), err: {text}", member.name());
    shared.events.say(COMPONENT, work, events::SYNC_FAILED, message);
    let total = manifests.len();
    let message = format!("Failed to apply all manifests ({}/{total}): {text}", total - errors.len());
    (Wanted::new(conditions::APPLIED, "False", conditions::REASON_NOT_APPLIED, message), Outcome::Retry)
}

/// As Go joins errors: one stands alone, several in brackets, none twice.
fn aggregate(errors: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    if let [one] = distinct[..] { one.to_owned() } else { format!("[{}]", distinct.join(", ")) }
}

/// Brings one object in line with its manifest.
async fn carry_out_one(
    shared: &Shared,
    member: &Member,
    manifest: &Value,
    confirmed: bool,
) -> Result<Carried, Error> {
    let kind = shared.kinds.resolve(shared.client(), member, manifest.api_version(), manifest.kind()).await?;
    let key = object_key(&kind, manifest);
    let mut observed = match member.look_up(&kind, &key).await {
        Lookup::Found(object) => Some(object),
        // If it exists after all, the creation says so.
        Lookup::Missing => None,
        Lookup::Unknown => member.get(&kind, &key).await?.map(Arc::new),
    };
    let wish = fingerprint(manifest);
    let embellished =
        |object: &Value| !matches!(apply::decide(manifest, object, &shared.interpreter), Ok(Decision::Keep));
    for _ in 0..ATTEMPTS {
        let Some(object) = &observed else {
            let created = member.create(&kind, &key, manifest).await;
            METRICS.created(&created, manifest, member.name());
            match created {
                Ok(created) => {
                    member.note(&kind, &key, wish, created.resource_version());
                    return Ok(Carried { wrote: true, embellished: embellished(&created) });
                }
                Err(error) if error.is_already_exists() => {
                    observed = member.get(&kind, &key).await?.map(Arc::new);
                    continue;
                }
                // Much is checked before the name: allocated ports and addresses, quotas, webhooks. The object may
                // exist all the same, and then it is an update that is wanted.
                Err(error) if error.may_hide_existing() => match member.get(&kind, &key).await {
                    Ok(Some(found)) => observed = Some(Arc::new(found)),
                    _ => return Err(error.into()),
                },
                Err(error) => return Err(error.into()),
            }
            continue;
        };
        if apply::is_managed(object) && member.has_written(&kind, &key, wish, object.resource_version()) {
            return Ok(Carried { wrote: false, embellished: embellished(object) });
        }
        match apply::decide(manifest, object, &shared.interpreter)? {
            Decision::Keep => return Ok(Carried::default()),
            Decision::Update(update) if confirmed && apply::covers(object, &update) => {
                member.note(&kind, &key, wish, object.resource_version());
                return Ok(Carried { wrote: false, embellished: true });
            }
            Decision::Foreign => {
                return Err(Error::Foreign(apply::foreign_message(manifest, member.name())));
            }
            Decision::Update(update) => {
                let updated = member.update(&kind, &key, &update).await;
                METRICS.updated(&updated, manifest, member.name());
                match updated {
                    Ok(updated) => {
                        member.note(&kind, &key, wish, updated.resource_version());
                        let wrote = updated.resource_version() != object.resource_version();
                        return Ok(Carried { wrote, embellished: embellished(&updated) });
                    }
                    Err(error) if error.is_conflict() || error.is_not_found() => {
                        observed = member.get(&kind, &key).await?.map(Arc::new);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Err(Error::Restless(manifest.describe()))
}

fn object_key(kind: &Kind, manifest: &Value) -> Key {
    Key::new(if kind.namespaced { manifest.namespace() } else { "" }, manifest.name())
}

/// Tells one wish from another within this process.
fn fingerprint(manifest: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    manifest.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Takes a Work's objects out of the member, or only our marks off them, and lets the Work go.
async fn withdraw(shared: &Arc<Shared>, member: &Member, key: &Key, work: &Work, preserve: bool) -> Outcome {
    if !has_finalizer(work) {
        return Outcome::Done;
    }
    for manifest in &work.spec.workload.manifests {
        let result = if preserve {
            let_go(shared, member, manifest).await
        } else {
            take_out(shared, member, manifest, key).await
        };
        if let Err(error) = result {
            let message = format!("Failed to sync work({key}) to cluster({}), err: {error}", member.name());
            shared.events.say(COMPONENT, work, events::SYNC_FAILED, message);
            tracing::debug!(controller = COMPONENT, object = %key, cluster = member.name(), %error, "not withdrawn");
            return Outcome::Retry;
        }
    }
    release(shared, key, work).await
}

async fn take_out(shared: &Shared, member: &Member, manifest: &Value, work: &Key) -> Result<(), Error> {
    let kind =
        match shared.kinds.resolve(shared.client(), member, manifest.api_version(), manifest.kind()).await {
            Ok(kind) => kind,
            // Neither side knows the kind any more, and with it went its objects.
            Err(member::Error::UnknownKind { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    let removed = removal::remove(member, &kind, &object_key(&kind, manifest), work).await;
    METRICS.deleted(&removed, manifest, member.name());
    let removed = removed?;
    tracing::debug!(object = manifest.describe(), cluster = member.name(), ?removed, "withdrawn");
    Ok(())
}

/// Takes our marks off an object that stays.
async fn let_go(shared: &Shared, member: &Member, manifest: &Value) -> Result<(), Error> {
    let kind = shared.kinds.resolve(shared.client(), member, manifest.api_version(), manifest.kind()).await?;
    let key = object_key(&kind, manifest);
    let mut released = manifest.clone();
    apply::release(&mut released);
    for _ in 0..ATTEMPTS {
        let Some(observed) = member.get(&kind, &key).await? else { return Ok(()) };
        // Without our mark it is no longer ours to touch.
        let Decision::Update(update) = apply::decide(&released, &observed, &shared.interpreter)? else {
            return Ok(());
        };
        match member.update(&kind, &key, &update).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Restless(manifest.describe()))
}

fn has_finalizer(work: &Work) -> bool {
    work.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::EXECUTION)
}

/// Lets the Work go.
async fn release(shared: &Arc<Shared>, key: &Key, work: &Work) -> Outcome {
    if !has_finalizer(work) {
        return Outcome::Done;
    }
    match shared.writer.release(work, finalizers::EXECUTION).await {
        Ok(_) => Outcome::Done,
        Err(error) if error.is_conflict() => Outcome::Retry,
        Err(error) => {
            tracing::warn!(controller = COMPONENT, object = %key, %error, "cannot let the Work go");
            Outcome::Retry
        }
    }
}

async fn write_conditions(
    shared: &Arc<Shared>,
    key: &Key,
    work: &Work,
    wanted: Vec<Wanted>,
    outcome: Outcome,
) -> Outcome {
    write_status(shared, key, work, wanted, None, outcome).await.0
}

/// Writes the conditions that differ, and the state of the objects if there is news of it; returns how to go on, and
/// whether it is written.
async fn write_status(
    shared: &Arc<Shared>,
    key: &Key,
    work: &Work,
    wanted: Vec<Wanted>,
    reports: Option<&[ManifestStatus]>,
    outcome: Outcome,
) -> (Outcome, bool) {
    let conditions = merged(work, &wanted, Timestamp::now());
    if conditions.is_none() && reports.is_none() {
        return (outcome, false);
    }
    let mut status = json!({});
    if let Some(conditions) = conditions {
        status["conditions"] = json!(conditions);
    }
    if let Some(reports) = reports {
        status["manifestStatuses"] = json!(reports);
    }
    let patch = json!({ "status": status });
    match shared.writer.patch_status(work, patch).await {
        Ok(answer) => {
            if let Some(wanted) = wanted.iter().find(|wanted| dispatching_changes(work, wanted)) {
                shared.events.say(COMPONENT, work, events::WORK_DISPATCHING, wanted.message.clone());
            }
            shared.mirrors.works.note(answer);
            (outcome, true)
        }
        Err(error) if error.is_not_found() => (Outcome::Done, false),
        Err(error) if error.is_conflict() => (Outcome::Retry, false),
        Err(error) => {
            tracing::warn!(controller = COMPONENT, object = %key, %error, "cannot write the conditions");
            (Outcome::Retry, false)
        }
    }
}

fn dispatching_changes(work: &Work, wanted: &Wanted) -> bool {
    let known = |known: &Condition| known.type_ == wanted.kind && known.status == wanted.status;
    wanted.kind == conditions::DISPATCHING && !work.status.conditions.iter().any(known)
}

/// Returns the conditions of a Work with the wanted ones in them, or `None` if they are there already.
fn merged(work: &Work, wanted: &[Wanted], now: Timestamp) -> Option<Vec<Condition>> {
    let mut conditions = work.status.conditions.clone();
    let mut changed = false;
    for wanted in wanted {
        let new = condition(wanted.kind, wanted.status, wanted.reason, &wanted.message, now);
        let new = Condition { observed_generation: wanted.generation, ..new };
        changed |= set_condition(&mut conditions, new);
    }
    changed.then_some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_are_there_are_not_written_again() {
        let wanted = [
            dispatching(false),
            Wanted::new(conditions::APPLIED, "True", "AppliedSuccessful", MESSAGE_APPLIED),
        ];
        let mut work = Work::default();
        work.status.conditions = merged(&work, &wanted, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(work.status.conditions.len(), 2);
        let later = Timestamp::from_second(100).unwrap();
        assert_eq!(merged(&work, &wanted, later), None);
        assert!(dispatching_changes(&work, &dispatching(true)));
        assert!(!dispatching_changes(&work, &dispatching(false)));
        let suspended = merged(&work, &[dispatching(true)], later).unwrap();
        assert_eq!(
            (suspended[0].status.as_str(), suspended[0].reason.as_str()),
            ("False", "SuspendDispatching")
        );
        assert_eq!(suspended[0].message, "Work dispatching is in a suspended state.");
    }

    #[test]
    fn a_work_is_confirmed_for_the_generation_that_was_applied_alone() {
        let mut work = Work::default();
        work.metadata.generation = Some(3);
        assert!(!is_confirmed(&work));
        let mut applied = Wanted::new(conditions::APPLIED, "True", "AppliedSuccessful", MESSAGE_APPLIED);
        applied.generation = Some(3);
        work.status.conditions = merged(&work, &[applied], Timestamp::UNIX_EPOCH).unwrap();
        assert!(is_confirmed(&work));
        work.metadata.generation = Some(4);
        assert!(!is_confirmed(&work));
    }

    #[test]
    fn errors_are_joined_as_go_joins_them() {
        let of =
            |errors: &[&str]| aggregate(&errors.iter().map(|error| (*error).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["a"]), "a");
        assert_eq!(of(&["a", "b", "a"]), "[a, b]");
    }
}
