//! The policies' side of the detector: which templates a policy gains, loses and takes over when it changes.
//!
//! Watches: PropagationPolicy, ClusterPropagationPolicy.
//! Writes: releases claims (template and binding), takes templates over from policies of lower priority, and
//! removes the policy's finalizer when no object carries its claim any more. Bindings stay: what runs keeps
//! running.

mod decide;
#[cfg(test)]
mod on_server;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::events as reasons;
use api::features::POLICY_PREEMPTION;
use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID, finalizers};
use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use api::work::ObjectReference;
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use parking_lot::RwLock;
use propagation::claim::{Claim, Holder};
use propagation::policies::{Policy, PolicyIndex, Preemption, preemption};
use propagation::{Binding, Object};
use runtime::writer::Stored;
use runtime::{Change, Error, Guard, Key, Mirror, Outcome, Queue, Reconcile};
use serde_json::Value;

use super::detector::{COMPONENT, Detector, describe, kind_of};
use super::metrics::METRICS;
use super::templates::TemplateKey;
use crate::mirrors::Mirrors;
use decide::{Plan, Step, View};

/// What the reconcile needs to know about a policy besides its spec.
pub(crate) trait Kept: Policy + Stored {
    const FINALIZER: &'static str;
    const PERMANENT_ID: &'static str;

    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>>;
    fn queue(detector: &Detector) -> &Queue<Key>;
    fn index(detector: &Detector) -> &RwLock<PolicyIndex<Self>>;
}

impl Kept for PropagationPolicy {
    const FINALIZER: &'static str = finalizers::PROPAGATION_POLICY;
    const PERMANENT_ID: &'static str = PROPAGATION_POLICY_PERMANENT_ID;

    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>> {
        &mirrors.policies
    }

    fn queue(detector: &Detector) -> &Queue<Key> {
        &detector.policies
    }

    fn index(detector: &Detector) -> &RwLock<PolicyIndex<Self>> {
        &detector.policy_index
    }
}

impl Kept for ClusterPropagationPolicy {
    const FINALIZER: &'static str = finalizers::CLUSTER_PROPAGATION_POLICY;
    const PERMANENT_ID: &'static str = CLUSTER_PROPAGATION_POLICY_PERMANENT_ID;

    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>> {
        &mirrors.cluster_policies
    }

    fn queue(detector: &Detector) -> &Queue<Key> {
        &detector.cluster_policies
    }

    fn index(detector: &Detector) -> &RwLock<PolicyIndex<Self>> {
        &detector.cluster_policy_index
    }
}

pub(super) fn subscribe(detector: &Arc<Detector>) {
    detector.plane.mirrors.policies.subscribe({
        let detector = Arc::clone(detector);
        move |change| changed(&detector, change)
    });
    detector.plane.mirrors.cluster_policies.subscribe({
        let detector = Arc::clone(detector);
        move |change| changed(&detector, change)
    });
}

fn changed<P: Kept>(detector: &Detector, change: &Change<P>) {
    let index = P::index(detector);
    let Some(new) = &change.new else {
        index.write().remove(&change.key.namespace, &change.key.name);
        return;
    };
    index.write().insert(Arc::clone(new));
    let Some(old) = &change.old else {
        P::queue(detector).push(change.key.clone());
        return;
    };
    let marked = |policy: &P| Claim::of(policy).is_ok();
    if old.meta().generation != new.meta().generation || marked(old) != marked(new) {
        P::queue(detector).push(change.key.clone());
    }
    let fell = new.priority() < old.priority();
    if fell && detector.plane.features.enabled(POLICY_PREEMPTION) {
        let index = index.read();
        for policy in index.encouraged(new.namespace(), old.priority(), new.priority()) {
            P::queue(detector).push(Key::new(policy.namespace(), policy.name()));
        }
    }
}

/// Reconciles the policies of one kind.
pub(super) struct Policies<P> {
    detector: Arc<Detector>,
    mirror: Arc<Mirror<P>>,
}

impl<P: Kept> Policies<P> {
    pub(super) fn new(detector: &Arc<Detector>) -> Arc<Self> {
        let mirror = P::mirror(&detector.plane.mirrors).clone();
        detector.plane.tell_panics(P::queue(detector), COMPONENT, &mirror);
        Arc::new(Self { detector: detector.clone(), mirror })
    }
}

impl<P: Kept> Reconcile for Policies<P> {
    type Key = Key;
    type View = View<P>;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View<P>>, Error> {
        Ok(observe(&self.detector, &self.mirror, key))
    }

    fn decide(view: &View<P>, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, _: &Key, view: View<P>, plan: Plan) -> Result<Outcome, Error> {
        for step in plan.steps {
            carry_out(&self.detector, view.policy.as_ref(), step).await?;
        }
        Ok(Outcome::Done)
    }
}

fn observe<P: Kept>(detector: &Detector, mirror: &Mirror<P>, key: &Key) -> Option<View<P>> {
    let policy = mirror.find(key)?;
    let templates = &detector.plane.templates;
    let claim = Claim::of(policy.as_ref()).ok();
    let bindings = claim.iter().flat_map(|claim| detector.bindings_of(&claim.id));
    let bound = bindings.filter_map(|key| {
        let resource = resource_of(detector, &key)?;
        Some((key, templates.get(&TemplateKey::of_reference(&resource))))
    });
    let claimed = match &claim {
        Some(claim) if policy.is_lazy() || policy.is_deleting() => {
            claimed_templates(detector, policy.as_ref(), claim)
        }
        _ => Vec::new(),
    };
    let preempts = policy.preempts_always() && detector.plane.features.enabled(POLICY_PREEMPTION);
    Some(View {
        has_identity: claim.is_some(),
        bound: bound.collect(),
        claimed,
        waiting: waiting_for(detector, policy.as_ref()),
        named: if preempts { named(detector, mirror, policy.as_ref()) } else { Vec::new() },
        policy,
    })
}

/// Returns the templates that the policy names one by one and selects, and whether it takes them over.
fn named<P: Kept>(detector: &Detector, mirror: &Mirror<P>, policy: &P) -> Vec<(TemplateKey, Preemption)> {
    let keys = policy.spec().resource_selectors.iter().map(|selector| TemplateKey {
        kind: Gvk::from_api_version(&selector.api_version, &selector.kind),
        namespace: selector.namespace.clone(),
        name: selector.name.clone(),
    });
    keys.filter_map(|key| {
        let template = detector.plane.templates.get(&key)?;
        if template.is_deleting() || !policy.selects(&template) {
            return None;
        }
        let held = Claim::read(&template);
        let holder = held.as_ref().and_then(|held| match &held.holder {
            Holder::Policy { namespace, name } => mirror.get(namespace, name),
            Holder::ClusterPolicy { name } => mirror.get("", name),
        });
        let priority = holder.map(|holder| holder.priority());
        Some((key, preemption(policy, held.as_ref(), priority)))
    })
    .collect()
}

async fn carry_out<P: Kept>(detector: &Detector, policy: &P, step: Step) -> Result<(), Error> {
    let template = |key: &TemplateKey| detector.plane.templates.get(key);
    match step {
        Step::Introduce => introduce(detector, policy).await,
        Step::Look(key) => {
            detector.push_for_policy(key, policy.is_lazy());
            Ok(())
        }
        Step::Release(key) => match (template(&key), Claim::of(policy)) {
            (Some(template), Ok(claim)) => detector.release(&template, &claim).await,
            _ => Ok(()),
        },
        Step::ReleaseBinding(key) => match Claim::of(policy) {
            Ok(claim) => detector.release_binding(&key, &claim).await,
            Err(_) => Ok(()),
        },
        Step::Take(key) => match (template(&key), Claim::of(policy)) {
            (Some(template), Ok(claim)) => take(detector, policy, &template, &claim).await,
            _ => Ok(()),
        },
        Step::LetGo => {
            let (writer, mirror) = (detector.plane.writer.derived(), P::mirror(&detector.plane.mirrors));
            writer.release(mirror, policy, P::FINALIZER).await.map(drop)
        }
    }
}

/// Gives a policy what admission would have given it: its permanent id and its finalizer. Only control planes without
/// our admission need it.
async fn introduce<P: Kept>(detector: &Detector, policy: &P) -> Result<(), Error> {
    let mut introduced = policy.clone();
    let metadata = introduced.meta_mut();
    let id = uuid::Uuid::new_v4().to_string();
    metadata.labels.get_or_insert_default().insert(P::PERMANENT_ID.to_owned(), id);
    let finalizers = metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == P::FINALIZER) {
        finalizers.push(P::FINALIZER.to_owned());
    }
    detector.plane.writer.derived().update(policy, &introduced, Guard::Version).await?;
    Ok(())
}

fn resource_of(detector: &Detector, key: &super::BindingKey) -> Option<ObjectReference> {
    let mirrors = &detector.plane.mirrors;
    if key.namespace.is_empty() {
        mirrors.cluster_bindings.get("", &key.name).map(|binding| binding.spec().resource.clone())
    } else {
        mirrors.bindings.get(&key.namespace, &key.name).map(|binding| binding.spec().resource.clone())
    }
}

/// Returns the mirrored templates that carry the policy's claim, of the kinds it selects.
fn claimed_templates<P: Kept>(detector: &Detector, policy: &P, claim: &Claim) -> Vec<Arc<Value>> {
    let selectors = &policy.spec().resource_selectors;
    let kinds: BTreeSet<Gvk> = selectors
        .iter()
        .map(|selector| Gvk::from_api_version(&selector.api_version, &selector.kind))
        .collect();
    let templates = kinds.iter().flat_map(|kind| detector.plane.templates.all(kind));
    templates.filter(|template| template.label(P::PERMANENT_ID) == Some(&claim.id)).collect()
}

/// Returns the waiting templates that the policy selects.
fn waiting_for<P: Kept>(detector: &Detector, policy: &P) -> Vec<TemplateKey> {
    let mut found = Vec::new();
    let waiting = detector.waiting.lock();
    for selector in &policy.spec().resource_selectors {
        let kind = Gvk::from_api_version(&selector.api_version, &selector.kind);
        for (namespace, name) in waiting.candidates(selector) {
            if P::NAMESPACED && namespace != policy.namespace() {
                continue;
            }
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            found.push(TemplateKey { kind: kind.clone(), namespace, name });
        }
    }
    drop(waiting);
    found.retain(|key| detector.plane.templates.get(key).is_some_and(|template| policy.selects(&template)));
    found
}

/// Takes a template over from a policy that ranks lower.
async fn take<P: Kept>(
    detector: &Detector,
    policy: &P,
    template: &Value,
    claim: &Claim,
) -> Result<(), Error> {
    let events = &detector.plane.events;
    let taken = detector.claim(template, claim).await;
    METRICS.preempted(&taken);
    match taken {
        Ok(_) => {
            let message = format!("Preempted by {} ({})", kind_of::<P>(), describe(policy));
            events.normal(COMPONENT, template, reasons::PREEMPT_POLICY_SUCCEED, message);
            Ok(())
        }
        Err(error) => {
            events.warning(COMPONENT, template, reasons::PREEMPT_POLICY_FAILED, error.to_string());
            Err(error)
        }
    }
}
