//! Holds removals of copies when there are too many at once, and releases them when a user confirms.
//!
//! Watches: policies (their annotations about removals). The binding controller asks it before it removes a
//! copy.
//! Writes: annotations of policies that say what is held; Events about it.
//!
//! The count comes from the current state, not from past events: before the first copy is removed, all copies
//! are known that policies and clusters no longer want. So a restart changes nothing: an annotation on the
//! policy says what is held. `decide` applies the rules of `propagation::withdrawal`.

mod decide;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::events as reasons;
use api::labels::annotations::{
    ALLOW_REMOVALS, CLUSTER_PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE,
    REMOVALS_HELD,
};
use api::policy::{ClusterPropagationPolicy, Placement, PropagationPolicy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference as Involved;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use propagation::Binding;
use propagation::withdrawal::{self, AtStake, Limits, Recent, State};
use runtime::events::about;
use runtime::{Error, Key, Mirror, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use super::bindings::{Queues, cluster_of, key};
use super::{Plane, Start, StoredBinding};
use decide::{Copies, Count, Next, Note, Survey};
pub(super) use decide::{Permit, Request, permit};

const COMPONENT: &str = "binding-controller";
const WORKERS: usize = 2;
/// How long a count stays valid while neither policies nor clusters change.
const BELIEVED: Duration = Duration::from_secs(1);
/// How often a policy with held removals is checked.
const LOOK: Duration = Duration::from_secs(2);

/// What was removed recently, and what would be removed.
#[derive(Default)]
pub(super) struct Removals {
    limits: Limits,
    recent: Mutex<Recent>,
    /// Counts changes of policies and clusters.
    changes: AtomicU64,
    survey: Mutex<Option<(u64, Instant, Arc<Survey>)>>,
    /// Held while notes are written, so that every policy gets one.
    holding: tokio::sync::Mutex<()>,
}

impl Removals {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// Watches the policies. Registered together with the binding controller, whose queues get the bindings to
/// reconcile again.
pub(super) fn wire(plane: &Arc<Plane>, bindings: &Queues) -> Start {
    let queue = Queue::new("removal-limit");
    macro_rules! follow {
        ($($mirror:ident),*) => {$({
            let (followed, pushed, bindings) = (Arc::clone(plane), Arc::clone(&queue), bindings.clone());
            plane.mirrors.$mirror.subscribe(move |change| {
                followed.removals.changes.fetch_add(1, Ordering::Relaxed);
                let Some(new) = &change.new else { return };
                let state = State::of(new.metadata.annotations.as_ref());
                let before = change.old.as_ref().map(|old| State::of(old.metadata.annotations.as_ref()));
                if state != State::Free {
                    pushed.push(change.key.clone());
                }
                // Also when somebody takes the note off: what is left is held with a new one, or may go by now.
                if before.is_some_and(|before| before != state) {
                    push_all(&followed, &bindings, change.key);
                }
            });
        })*};
    }
    follow!(policies, cluster_policies);
    plane.mirrors.clusters.subscribe({
        let plane = Arc::clone(plane);
        move |_| {
            plane.removals.changes.fetch_add(1, Ordering::Relaxed);
        }
    });
    let controller = Arc::new(Controller { plane: Arc::clone(plane) });
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

/// Removes the annotation from a policy that has nothing left to remove.
struct Controller {
    plane: Arc<Plane>,
}

impl Reconcile for Controller {
    type Key = Key;
    type View = Note;
    type Plan = Next;

    async fn observe(&self, policy: &Key) -> Result<Option<Note>, Error> {
        let Some(found) = Found::of(&self.plane, policy) else { return Ok(None) };
        let state = found.state();
        let copies = if state == State::Free { 0 } else { self.plane.survey().at_stake(policy).copies };
        Ok(Some(Note { state, copies }))
    }

    fn decide(note: &Note, _: Timestamp) -> Next {
        decide::next(note)
    }

    async fn apply(&self, policy: &Key, _: Note, plan: Next) -> Result<Outcome, Error> {
        match plan {
            Next::Nothing(_) => Ok(Outcome::Done),
            Next::Later => Ok(Outcome::After(LOOK)),
            Next::Clear => {
                let patch = json!({"metadata": {"annotations": {REMOVALS_HELD: null, ALLOW_REMOVALS: null}}});
                annotate(&self.plane, policy, patch).await?;
                Ok(Outcome::Done)
            }
        }
    }
}

/// Enqueues the bindings of a policy.
fn push_all(plane: &Plane, queues: &Queues, policy: &Key) {
    fn push<B: Binding>(mirror: &Mirror<B>, queues: &Queues, policy: &Key) {
        for binding in mirror.all() {
            if policy_of(binding.metadata()).as_ref() == Some(policy) {
                queues.push(key(binding.as_ref()));
            }
        }
    }
    push(&plane.mirrors.bindings, queues, policy);
    push(&plane.mirrors.cluster_bindings, queues, policy);
}

/// A policy of either scope.
enum Found {
    Namespaced(Arc<PropagationPolicy>),
    Cluster(Arc<ClusterPropagationPolicy>),
}

impl Found {
    fn of(plane: &Plane, policy: &Key) -> Option<Self> {
        if policy.namespace.is_empty() {
            plane.mirrors.cluster_policies.find(policy).map(Self::Cluster)
        } else {
            plane.mirrors.policies.find(policy).map(Self::Namespaced)
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Namespaced(policy) => &policy.metadata,
            Self::Cluster(policy) => &policy.metadata,
        }
    }

    fn placement(&self) -> &Placement {
        match self {
            Self::Namespaced(policy) => &policy.spec.placement,
            Self::Cluster(policy) => &policy.spec.placement,
        }
    }

    fn state(&self) -> State {
        State::of(self.metadata().annotations.as_ref())
    }

    /// Returns what an event is about.
    fn subject(&self) -> Involved {
        match self {
            Self::Namespaced(policy) => about(policy.as_ref()),
            Self::Cluster(policy) => about(policy.as_ref()),
        }
    }
}

/// Returns the policy that a binding names. A PropagationPolicy is behind bindings of its own namespace only: whoever writes bindings
/// chooses what they name, and must not have notes written on the policies of other namespaces.
fn policy_of(metadata: &ObjectMeta) -> Option<Key> {
    let notes = metadata.annotations.as_ref()?;
    if let Some(name) = notes.get(PROPAGATION_POLICY_NAME) {
        let namespace =
            notes.get(PROPAGATION_POLICY_NAMESPACE).filter(|it| metadata.namespace.as_ref() == Some(*it))?;
        return Some(Key::new(namespace.clone(), name.clone()));
    }
    Some(Key::new("", notes.get(CLUSTER_PROPAGATION_POLICY_NAME)?.clone()))
}

/// Patches a policy and updates the mirror at once. It is fine if the policy is gone.
async fn annotate(plane: &Plane, policy: &Key, patch: Value) -> Result<(), Error> {
    let (writer, mirrors) = (&plane.writer, &plane.mirrors);
    if policy.namespace.is_empty() {
        writer.patch_mirrored(&mirrors.cluster_policies, policy, patch).await.map(drop)
    } else {
        writer.patch_mirrored(&mirrors.policies, policy, patch).await.map(drop)
    }
}

impl Plane {
    /// Returns the facts that decide whether a binding may remove copies.
    pub(super) fn removal_request<B: StoredBinding>(&self, binding: &B) -> Request {
        let policy = policy_of(binding.metadata());
        let state = |policy: &Key| Some((policy.clone(), Found::of(self, policy)?.state()));
        let mut states: BTreeMap<Key, State> = policy.iter().filter_map(state).collect();
        let recent = self.removals.recent.lock().losses(Timestamp::now());
        let limits = self.removals.limits;
        let survey = decide::needs_survey(limits, self.mirrors.works.len(), &recent).then(|| self.survey());
        states.extend(survey.iter().flat_map(|survey| survey.losses.keys()).filter_map(state));
        Request { template: key(binding).to_string(), policy, limits, recent, survey, states }
    }

    /// Records the decision about the copies of a binding: removals are counted, and held ones are noted on
    /// its policy.
    pub(super) async fn note_removals<B: StoredBinding>(
        &self,
        binding: &B,
        permit: Permit,
        now: Timestamp,
    ) -> Result<(), Error> {
        match permit {
            Permit::Agreed | Permit::Held => {}
            Permit::Within(copies) => {
                self.removals.recent.lock().note(key(binding).to_string(), copies, now);
            }
            Permit::Hold { policies, unowned } => {
                self.hold(&policies, now).await?;
                if unowned {
                    let message = "Copies of this resource are held, since too many others would be removed at once, and \
                                   there is no policy on which to agree; a new policy for the resource can be asked.";
                    self.events.warning(COMPONENT, &about(binding), reasons::REMOVALS_HELD, message);
                }
            }
        }
        Ok(())
    }

    /// Notes on policies what is held. Several bindings may ask at once; the first note stays.
    async fn hold(&self, policies: &[(Key, AtStake)], now: Timestamp) -> Result<(), Error> {
        let _alone = self.removals.holding.lock().await;
        for (policy, at_stake) in policies {
            let Some(found) = Found::of(self, policy).filter(|found| found.state() == State::Free) else {
                continue;
            };
            let id = uuid::Uuid::new_v4().simple().to_string();
            let shown = match &found {
                Found::Namespaced(_) => format!("propagationpolicy {} -n {}", policy.name, policy.namespace),
                Found::Cluster(_) => format!("clusterpropagationpolicy {}", policy.name),
            };
            let note = withdrawal::held_note(&id[..8], now, &shown, at_stake);
            annotate(self, policy, json!({"metadata": {"annotations": {REMOVALS_HELD: note}}})).await?;
            tracing::warn!(%policy, "removals are held: {note}");
            self.events.warning(COMPONENT, &found.subject(), reasons::REMOVALS_HELD, note);
        }
        Ok(())
    }

    /// Counts what would be removed if nothing were held.
    fn survey(&self) -> Arc<Survey> {
        let changes = self.removals.changes.load(Ordering::Relaxed);
        let mut cached = self.removals.survey.lock();
        if let Some((at, when, survey)) = cached.as_ref()
            && *at == changes
            && when.elapsed() < BELIEVED
        {
            return Arc::clone(survey);
        }
        let mut count = Count::default();
        self.count_all(&self.mirrors.bindings, &mut count);
        self.count_all(&self.mirrors.cluster_bindings, &mut count);
        let survey = Arc::new(count.finish());
        *cached = Some((changes, Instant::now(), Arc::clone(&survey)));
        survey
    }

    fn count_all<B: Binding>(&self, mirror: &Mirror<B>, count: &mut Count) {
        for binding in mirror.all() {
            if binding.metadata().deletion_timestamp.is_some() {
                continue;
            }
            let works = self.works.of(binding.as_ref());
            let present = works.iter().filter(|work| work.metadata.deletion_timestamp.is_none());
            let names = present.filter_map(|work| cluster_of(work));
            let policy = policy_of(binding.metadata()).unwrap_or_else(|| Key::new("", ""));
            let found = Found::of(self, &policy);
            count.add(&Copies {
                template: key(binding.as_ref()).to_string(),
                spec: binding.spec(),
                policy,
                placement: found.as_ref().map(Found::placement),
                places: names.map(|name| (name.to_owned(), self.mirrors.clusters.get("", name))).collect(),
            });
        }
    }
}
