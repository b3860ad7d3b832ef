//! Applies Works: their manifests exist in the member as wanted, and are deleted with the Works.
//!
//! Watches: Work (root, by generation), managed objects in the members (changed or deleted by others), Clusters that
//!          become Ready or leave.
//! Writes:  objects in the member; the Work's Dispatching and Applied conditions; its finalizer.
//!
//! `execution-controller`, `execution` in `--controllers`. An object that is already as wanted costs no
//! request, because the mirror of the managed objects shows it. A mirror may be out of date or incomplete, so
//! an object that is missing there may still exist: a creation that meets an existing object, or an update
//! that meets a newer one, starts over from the member's own answer. Only [`super::removal`] deletes.

mod decide;
#[cfg(test)]
mod on_server;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use api::labels::finalizers;
use api::work::{ManifestStatus, Work};
use api::{events, names};
use interpreter::Operation;
use jiff::Timestamp;
use member::{Kind, Lookup, Member};
use propagation::Object;
use propagation::delivery::{self, Decision};
use runtime::Key;
use serde_json::{Value, json};

use super::metrics::METRICS;
use runtime::{Outcome, Reconcile, UNLIMITED, controller, place};

use super::{Shared, Start, removal, work_of, work_status};
use decide::{Plan, Step, View, Wanted};

const COMPONENT: &str = "execution-controller";

/// How often one manifest is tried against a member that keeps changing it; as upstream's conflict retry.
const ATTEMPTS: usize = 5;

/// Why a manifest could not be applied.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Member(#[from] member::Error),
    #[error(transparent)]
    Propagation(#[from] propagation::Error),
    #[error("{0}")]
    Foreign(String),
    #[error("{0} keeps being changed by others")]
    KeepsChanging(String),
}

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    shared.tell_panics(&shared.executions, COMPONENT, &shared.mirrors.works);
    shared.mirrors.works.subscribe({
        let shared = shared.clone();
        move |change| {
            let Some(new) = change.new.as_deref() else { return };
            // Status and labels of a Work do not concern the member; only a new generation does.
            let news = change.old.as_deref().is_none_or(|old| {
                old.metadata.generation != new.metadata.generation
                    || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
            });
            if news {
                shared.executions.push(change.key.clone());
            }
        }
    });
    // A weak reference: the members must not keep their own owner alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe(Arc::new(move |change| {
        let Some(shared) = weak.upgrade() else { return };
        let drifted = match (change.old, change.new) {
            (Some(old), Some(new)) => delivery::drifted(old, new),
            (Some(_), None) => true,
            // An object that is new in the mirror is compared when its Work is reconciled, which happens
            // anyway.
            (None, _) => false,
        };
        if drifted
            && !change.ours
            && let Some(work) = work_of(change)
        {
            shared.executions.push(work);
        }
    }));
    shared.on_lessons(&[Operation::Retain], |shared| &shared.executions);
    Box::new({
        let shared = shared.clone();
        move || {
            // The limit is that of the member a key belongs to.
            controller::run(
                &Arc::new(Controller(shared.clone())),
                &shared.executions,
                UNLIMITED,
                &shared.supervisor,
            );
        }
    })
}

struct Controller(Arc<Shared>);

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, runtime::Error> {
        let shared = &self.0;
        let Some(work) = shared.mirrors.works.find(key) else { return Ok(None) };
        let Some(name) = names::cluster_of_execution_space(&key.namespace) else { return Ok(None) };
        // When a missing Cluster appears, all its Works are enqueued.
        let Some(cluster) = shared.my_cluster(name) else { return Ok(None) };
        Ok(Some(View { work, cluster, connected: shared.members.get(name).is_some() }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, runtime::Error> {
        let (shared, work) = (&self.0, &view.work);
        let member = view.cluster.metadata.name.as_deref().and_then(|name| shared.members.get(name));
        Ok(match (plan, member) {
            (Plan::Nothing(_), _) => Outcome::Done,
            (Plan::LetGo, _) => release(shared, key, work).await,
            (Plan::Tell { suspended }, _) => {
                let wanted = vec![Wanted::dispatching(suspended)];
                write_status(shared, key, work, wanted, None, Outcome::Done).await.0
            }
            (Plan::Withdraw { preserve }, Some(member)) => {
                place::hold(member.permit().await, withdraw(shared, &member, key, work, preserve)).await
            }
            (Plan::CarryOut, Some(member)) => carry_out_and_tell(shared, &member, key, work).await,
            // The connection has just been closed; the next one enqueues all Works.
            (_, None) => Outcome::Done,
        })
    }
}

async fn carry_out_and_tell(shared: &Shared, member: &Member, key: &Key, work: &Work) -> Outcome {
    let permit = member.permit().await;
    let started = Instant::now();
    let (applied, outcome) = place::hold(permit, carry_out(shared, member, key, work)).await;
    METRICS.carried(started, outcome == Outcome::Done);
    // Statuses of the Work that were reported while it was applied count as reported.
    let _alone = shared.status_locks.of(key).await;
    let newer = work_status::newer_status(shared, key, work).map(|status| Work { status, ..work.clone() });
    let work = newer.as_ref().unwrap_or(work);
    // The member's answers also contain the status of the objects: one write instead of two.
    let news = match shared.enabled.work_status && applied.status == "True" {
        true => work_status::news(shared, member, key, work).await,
        false => None,
    };
    let wanted = vec![Wanted::dispatching(false), applied];
    let reports = news.as_ref().map(|news| news.reports.as_slice());
    let (outcome, written) = write_status(shared, key, work, wanted, reports, outcome).await;
    if let Some(news) = news.filter(|_| written) {
        work_status::written(shared, member, key, work, &news).await;
    }
    outcome
}

/// The result of a manifest.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    wrote: bool,
    /// The member's object has more in it than the manifest.
    added_to: bool,
}

/// Applies all manifests; returns the Applied condition and what to do next.
async fn carry_out(shared: &Shared, member: &Member, key: &Key, work: &Work) -> (Wanted, Outcome) {
    let manifests = &work.spec.workload.manifests;
    let mut errors = Vec::new();
    let (confirmed, mut all) = (decide::is_confirmed(work), Carried::default());
    for manifest in manifests {
        let place = format!("{}/{}", manifest.namespace(), manifest.name());
        match carry_out_one(shared, member, manifest, confirmed).await {
            Ok(carried) => {
                all.added_to |= carried.added_to;
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
    let applied = Wanted::applied(work, &errors, all.added_to);
    if errors.is_empty() {
        if all.wrote {
            let message = format!("Sync work({key}) to cluster({}) successful.", member.name());
            shared.events.say(COMPONENT, work, events::SYNC_SUCCEED, message);
        }
        return (applied, Outcome::Done);
    }
    let text = decide::join(&errors);
    let message = format!("Failed to sync work({key}) to cluster({}), err: {text}", member.name());
    shared.events.say(COMPONENT, work, events::SYNC_FAILED, message);
    (applied, Outcome::Retry)
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
    for _ in 0..ATTEMPTS {
        let Some(object) = &observed else {
            let created = member.create(&kind, &key, manifest).await;
            METRICS.created(&created, manifest, member.name());
            match created {
                Ok(created) => {
                    member.note(&kind, &key, wish, created.resource_version());
                    return Ok(Carried { wrote: true, added_to: added_to(shared, manifest, &created).await });
                }
                Err(error) if error.is_already_exists() => {
                    observed = member.get(&kind, &key).await?.map(Arc::new);
                    continue;
                }
                // A server checks much before the name: allocated ports and addresses, quotas, webhooks. So
                // the object may exist in spite of another error, and then it needs an update.
                Err(error) if error.may_hide_existing() => match member.get(&kind, &key).await {
                    Ok(Some(found)) => observed = Some(Arc::new(found)),
                    _ => return Err(error.into()),
                },
                Err(error) => return Err(error.into()),
            }
            continue;
        };
        let written = member.has_written(&kind, &key, wish, object.resource_version());
        let judged = delivery::decide(manifest, object, &shared.interpreter).await;
        match decide::judge(object, judged, written, confirmed)? {
            Step::Keep { added_to } => return Ok(Carried { wrote: false, added_to }),
            Step::Confirm => {
                member.note(&kind, &key, wish, object.resource_version());
                return Ok(Carried { wrote: false, added_to: true });
            }
            Step::Refuse => return Err(Error::Foreign(delivery::foreign_message(manifest, member.name()))),
            Step::Update(update) => {
                let updated = member.update(&kind, &key, &update).await;
                METRICS.updated(&updated, manifest, member.name());
                match updated {
                    Ok(updated) => {
                        member.note(&kind, &key, wish, updated.resource_version());
                        let wrote = updated.resource_version() != object.resource_version();
                        return Ok(Carried { wrote, added_to: added_to(shared, manifest, &updated).await });
                    }
                    Err(error) if error.is_conflict() || error.is_not_found() => {
                        observed = member.get(&kind, &key).await?.map(Arc::new);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Err(Error::KeepsChanging(manifest.describe()))
}

/// Returns whether the member's object has more in it than the manifest, or cannot be judged.
async fn added_to(shared: &Shared, manifest: &Value, object: &Value) -> bool {
    !matches!(delivery::decide(manifest, object, &shared.interpreter).await, Ok(Decision::Keep))
}

fn object_key(kind: &Kind, manifest: &Value) -> Key {
    Key::new(if kind.namespaced { manifest.namespace() } else { "" }, manifest.name())
}

/// Identifies a wanted object within this process.
fn fingerprint(manifest: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    manifest.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Deletes a Work's objects from the member, or only removes our labels from them, and then removes the
/// Work's finalizer.
async fn withdraw(shared: &Shared, member: &Member, key: &Key, work: &Work, preserve: bool) -> Outcome {
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
    let Some(kind) = kind_left(shared, member, manifest).await? else { return Ok(()) };
    let removed = removal::remove(member, &kind, &object_key(&kind, manifest), work).await;
    METRICS.deleted(&removed, manifest, member.name());
    let removed = removed?;
    tracing::debug!(object = manifest.describe(), cluster = member.name(), ?removed, "withdrawn");
    Ok(())
}

/// Returns the kind of an object that is withdrawn; nothing if the kind is gone, and its objects with it.
async fn kind_left(shared: &Shared, member: &Member, manifest: &Value) -> member::Result<Option<Kind>> {
    let (version, kind) = (manifest.api_version(), manifest.kind());
    decide::if_served(shared.kinds.resolve(shared.client(), member, version, kind).await)
}

/// Removes our labels and annotations from an object that stays.
async fn let_go(shared: &Shared, member: &Member, manifest: &Value) -> Result<(), Error> {
    let Some(kind) = kind_left(shared, member, manifest).await? else { return Ok(()) };
    let key = object_key(&kind, manifest);
    let mut released = manifest.clone();
    delivery::release(&mut released);
    for _ in 0..ATTEMPTS {
        let Some(observed) = member.get(&kind, &key).await? else { return Ok(()) };
        // Without our label we must not touch it.
        let Decision::Update(update) = delivery::decide(&released, &observed, &shared.interpreter).await?
        else {
            return Ok(());
        };
        match member.update(&kind, &key, &update).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::KeepsChanging(manifest.describe()))
}

/// Removes the Work's finalizer.
async fn release(shared: &Shared, key: &Key, work: &Work) -> Outcome {
    match shared.writer.release(&shared.mirrors.works, work, finalizers::EXECUTION).await {
        Ok(_) => Outcome::Done,
        Err(error) if error.is_conflict() => Outcome::Retry,
        Err(error) => {
            tracing::warn!(controller = COMPONENT, object = %key, %error, "cannot let the Work go");
            Outcome::Retry
        }
    }
}

/// Writes the conditions that differ, and the status of the objects if it has changed; returns what to do
/// next, and whether it was written.
async fn write_status(
    shared: &Shared,
    key: &Key,
    work: &Work,
    wanted: Vec<Wanted>,
    reports: Option<&[ManifestStatus]>,
    outcome: Outcome,
) -> (Outcome, bool) {
    let conditions = decide::merged(work, &wanted, Timestamp::now());
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
            if let Some(wanted) = wanted.iter().find(|wanted| wanted.changes_dispatching(work)) {
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
