//! Holds removals of copies when too many of them come at once, and lets them go when somebody agrees.
//!
//! Watches: policies (what they say about their removals). Asked by the binding controller before it takes a copy away.
//! Writes: annotations of policies that say what is held; Events about it.
//!
//! What is at stake is counted from what there is, not from what has happened: before the first copy goes, all copies are
//! known that the policies and clusters do not want any more. So a restart changes nothing: what is held says so on its
//! policy. The rules are in `propagation::withdrawal`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::events as reasons;
use api::labels::annotations::{
    ALLOW_REMOVALS, CLUSTER_PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE,
    REMOVALS_HELD,
};
use api::policy::{ClusterPropagationPolicy, Placement, PropagationPolicy};
use api::work::Work;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference as Involved;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use propagation::withdrawal::{self, AtStake, Leftover, Limits, Losses, Recent, State, Verdict};
use propagation::{Binding, directly_purged_clusters, expected_clusters};
use runtime::events::about;
use runtime::{Error, Key, Mirror, Outcome, Queue};
use scheduler::affinity::is_wanted;
use serde_json::{Value, json};

use super::bindings::{Queues, cluster_of, key};
use super::{Plane, Start, StoredBinding};

const COMPONENT: &str = "binding-controller";
const WORKERS: usize = 2;
/// How long what is at stake is believed while neither policies nor clusters change.
const BELIEVED: Duration = Duration::from_secs(1);
/// How often a policy that holds removals is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// What has been taken away lately, and what is at stake.
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

/// What would be taken away, by policy; the key of a cluster-wide policy has no namespace.
#[derive(Default)]
struct Survey {
    copies: usize,
    losses: HashMap<Key, Losses>,
    clusters: HashMap<Key, std::collections::BTreeSet<String>>,
}

impl Survey {
    fn at_stake(&self, policy: &Key) -> AtStake {
        let losses = self.losses.get(policy);
        AtStake {
            templates: losses.map_or(0, BTreeMap::len),
            copies: losses.map_or(0, |losses| losses.values().sum()),
            clusters: self.clusters.get(policy).cloned().unwrap_or_default(),
        }
    }
}

impl Removals {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// Follows what policies say; wired together with the binding controller, which is told whom to look at again.
pub(super) fn wire(plane: &Arc<Plane>, bindings: &Queues) -> Start {
    let queue = Queue::new("removal-limit");
    macro_rules! follow {
        ($($mirror:ident),*) => {$({
            let (of, pushed, bindings) = (Arc::clone(plane), Arc::clone(&queue), bindings.clone());
            plane.mirrors.$mirror.subscribe(move |change| {
                of.removals.changes.fetch_add(1, Ordering::Relaxed);
                let Some(new) = &change.new else { return };
                let state = State::of(new.metadata.annotations.as_ref());
                let before = change.old.as_ref().map(|old| State::of(old.metadata.annotations.as_ref()));
                if state != State::Free {
                    pushed.push(change.key.clone());
                }
                if before.is_some_and(|before| before != state && state != State::Free) {
                    push_all(&of, &bindings, change.key);
                }
            });
        })*};
    }
    follow!(policies, cluster_policies);
    let of = Arc::clone(plane);
    plane.mirrors.clusters.subscribe(move |_| {
        of.removals.changes.fetch_add(1, Ordering::Relaxed);
    });
    let plane = Arc::clone(plane);
    Box::new(move || {
        let supervisor = plane.supervisor.clone();
        queue.spawn(WORKERS, &supervisor, move |policy: Key| {
            let plane = Arc::clone(&plane);
            async move { look_after(&plane, &policy).await }
        });
    })
}

/// Has the bindings of a policy looked at.
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

/// Takes the note off a policy that has nothing to remove any more: the change was undone, or carried out.
async fn look_after(plane: &Plane, policy: &Key) -> Outcome {
    let Some(found) = Found::of(plane, policy) else { return Outcome::Done };
    if found.state() == State::Free {
        return Outcome::Done;
    }
    if plane.survey().at_stake(policy).copies > 0 {
        return Outcome::After(LOOK);
    }
    let patch = json!({"metadata": {"annotations": {REMOVALS_HELD: null, ALLOW_REMOVALS: null}}});
    match annotate(plane, policy, patch).await {
        Ok(()) => Outcome::Done,
        Err(error) => error.into(),
    }
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

/// Returns the policy behind a binding, as the binding says itself.
fn policy_of(metadata: &ObjectMeta) -> Option<Key> {
    let notes = metadata.annotations.as_ref()?;
    if let Some(name) = notes.get(PROPAGATION_POLICY_NAME) {
        return Some(Key::new(notes.get(PROPAGATION_POLICY_NAMESPACE)?.clone(), name.clone()));
    }
    Some(Key::new("", notes.get(CLUSTER_PROPAGATION_POLICY_NAME)?.clone()))
}

/// Patches a policy; the mirror learns of it at once. That it is gone is fine.
async fn annotate(plane: &Plane, policy: &Key, patch: Value) -> Result<(), Error> {
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let client = plane.client().clone();
    let done = if policy.namespace.is_empty() {
        let api = Api::<ClusterPropagationPolicy>::all(client);
        let answer = api.patch(&policy.name, &parameters, &patch).await;
        answer.map(|answer| plane.mirrors.cluster_policies.note(answer))
    } else {
        let api = Api::<PropagationPolicy>::namespaced(client, &policy.namespace);
        api.patch(&policy.name, &parameters, &patch).await.map(|answer| plane.mirrors.policies.note(answer))
    };
    match done {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => Ok(done?),
    }
}

impl Plane {
    /// Returns whether copies of a binding may be taken away now; if not, their policy says so.
    pub(super) async fn may_remove<B: StoredBinding>(
        &self,
        binding: &B,
        works: &[&Arc<Work>],
    ) -> Result<bool, Error> {
        let template = key(binding).to_string();
        let policy = policy_of(binding.metadata());
        let found = policy.as_ref().and_then(|policy| Found::of(self, policy));
        let now = Timestamp::now();
        match found.as_ref().map(Found::state) {
            Some(State::Allowed) => return Ok(true),
            Some(State::Held { .. }) => return Ok(false),
            Some(State::Free) | None => {}
        }
        let (mut losses, mut copies) = (self.removals.recent.lock().losses(now), 0);
        let limits = self.removals.limits;
        // Few objects need no survey.
        if self.mirrors.works.len() + losses.len() > limits.templates {
            let survey = self.survey();
            copies += losses.values().sum::<usize>() + survey.copies;
            for (policy, lost) in &survey.losses {
                if Found::of(self, policy).is_none_or(|found| found.state().is_news(now)) {
                    for (template, count) in lost {
                        *losses.entry(template.clone()).or_default() += count;
                    }
                }
            }
            let own = losses.entry(template.clone()).or_default();
            *own = (*own).max(works.len());
            if limits.exceeded(&losses, copies) {
                self.hold(&survey, policy.as_ref(), now).await?;
                if found.is_none() {
                    let message = "Copies of this resource are held, since too many others would be removed at once, and \
                                   there is no policy on which to agree; a new policy for the resource can be asked.";
                    self.events.warning(COMPONENT, &about(binding), reasons::REMOVALS_HELD, message);
                }
                return Ok(false);
            }
        }
        self.removals.recent.lock().note(template, works.len(), now);
        Ok(true)
    }

    /// Notes on every policy that would remove something that it is held, and on the one that asks.
    async fn hold(&self, survey: &Survey, asking: Option<&Key>, now: Timestamp) -> Result<(), Error> {
        let _alone = self.removals.holding.lock().await;
        let others = survey.losses.keys().filter(|policy| Some(*policy) != asking);
        for policy in asking.into_iter().chain(others) {
            let Some(found) = Found::of(self, policy).filter(|found| found.state() == State::Free) else {
                continue;
            };
            let at_stake = survey.at_stake(policy);
            let id = uuid::Uuid::new_v4().simple().to_string();
            let shown = match &found {
                Found::Namespaced(_) => format!("propagationpolicy {} -n {}", policy.name, policy.namespace),
                Found::Cluster(_) => format!("clusterpropagationpolicy {}", policy.name),
            };
            let note = withdrawal::held_note(&id[..8], now, &shown, &at_stake);
            annotate(self, policy, json!({"metadata": {"annotations": {REMOVALS_HELD: note}}})).await?;
            tracing::warn!(%policy, "removals are held: {note}");
            self.events.warning(COMPONENT, &found.subject(), reasons::REMOVALS_HELD, note);
        }
        Ok(())
    }

    /// Counts what would be taken away, were nothing held.
    fn survey(&self) -> Arc<Survey> {
        let changes = self.removals.changes.load(Ordering::Relaxed);
        let mut cached = self.removals.survey.lock();
        if let Some((at, when, survey)) = cached.as_ref()
            && *at == changes
            && when.elapsed() < BELIEVED
        {
            return Arc::clone(survey);
        }
        let mut counting = Counting { plane: self, survey: Survey::default(), wanted: HashMap::new() };
        counting.count_all(&self.mirrors.bindings);
        counting.count_all(&self.mirrors.cluster_bindings);
        let survey = Arc::new(counting.survey);
        *cached = Some((changes, Instant::now(), Arc::clone(&survey)));
        survey
    }
}

struct Counting<'a> {
    plane: &'a Plane,
    survey: Survey,
    /// Whether a policy wants a cluster: the same for all its bindings.
    wanted: HashMap<(Key, String), bool>,
}

impl Counting<'_> {
    fn count_all<B: Binding>(&mut self, mirror: &Mirror<B>) {
        for binding in mirror.all() {
            if binding.metadata().deletion_timestamp.is_none() {
                self.count(binding.as_ref());
            }
        }
    }

    fn count<B: Binding>(&mut self, binding: &B) {
        let works = self.plane.works.of(binding.permanent_id());
        let present: Vec<&str> = works
            .iter()
            .filter(|work| work.metadata.deletion_timestamp.is_none())
            .filter_map(|work| cluster_of(work))
            .collect();
        self.survey.copies += present.len();
        let Some(own) = binding.spec().placement.as_ref() else { return };
        // A policy that was deleted leaves its bindings as they are.
        let policy = policy_of(binding.metadata()).unwrap_or_else(|| Key::new("", ""));
        let found = Found::of(self.plane, &policy);
        let placement = found.as_ref().map_or(own, Found::placement);
        let (expected, purged) =
            (expected_clusters(binding.spec()), directly_purged_clusters(binding.spec()));
        let mut lost = 0;
        for name in present {
            let cluster = self.plane.mirrors.clusters.get("", name);
            let place = (policy.clone(), name.to_owned());
            let judge = || cluster.as_ref().is_none_or(|cluster| is_wanted(cluster, placement));
            let wanted = match found {
                Some(_) => *self.wanted.entry(place).or_insert_with(judge),
                None => judge(),
            };
            // The policy knows first; what it says has not come to the binding yet.
            if wanted && expected.contains(name) {
                continue;
            }
            let leftover = Leftover {
                cluster: cluster.as_deref(),
                placement: Some(placement),
                found_none: expected.is_empty(),
                purged: purged.contains(name),
                needed: false,
            };
            if withdrawal::judge(&leftover) == Verdict::Limited {
                lost += 1;
                self.survey.clusters.entry(policy.clone()).or_default().insert(name.to_owned());
            }
        }
        if lost > 0 {
            self.survey.losses.entry(policy).or_default().insert(key(binding).to_string(), lost);
        }
    }
}
