//! The policies' side of the detector: which templates a policy gains, loses and takes over when it changes.
//!
//! Watches: PropagationPolicy, ClusterPropagationPolicy.
//! Writes: releases claims (template and binding), takes templates over from policies of lower priority, and drops
//! the policy's finalizer when nothing carries its claim any more. Bindings stay: what runs keeps running.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::events as reasons;
use api::features::POLICY_PREEMPTION;
use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID, finalizers};
use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use api::work::ObjectReference;
use apimachinery::gvk::Gvk;
use parking_lot::RwLock;
use propagation::claim::{Claim, Holder};
use propagation::policies::{Policy, PolicyIndex, Preemption, preemption};
use propagation::{Binding, Object};
use runtime::writer::Stored;
use runtime::{Change, Error, Guard, Key, Mirror, Queue};
use serde_json::Value;

use super::detector::{COMPONENT, Detector, describe, kind_of};
use super::metrics::METRICS;
use super::templates::TemplateKey;

/// What the reconcile needs to know of a policy besides what it says.
pub(crate) trait Kept: Policy + Stored {
    const FINALIZER: &'static str;
    const PERMANENT_ID: &'static str;

    fn queue(detector: &Detector) -> &Queue<Key>;
    fn index(detector: &Detector) -> &RwLock<PolicyIndex<Self>>;
}

impl Kept for PropagationPolicy {
    const FINALIZER: &'static str = finalizers::PROPAGATION_POLICY;
    const PERMANENT_ID: &'static str = PROPAGATION_POLICY_PERMANENT_ID;

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

    fn queue(detector: &Detector) -> &Queue<Key> {
        &detector.cluster_policies
    }
    fn index(detector: &Detector) -> &RwLock<PolicyIndex<Self>> {
        &detector.cluster_policy_index
    }
}

pub(super) fn subscribe(detector: &Arc<Detector>) {
    let of = Arc::clone(detector);
    detector.plane.mirrors.policies.subscribe(move |change| changed(&of, change));
    let of = Arc::clone(detector);
    detector.plane.mirrors.cluster_policies.subscribe(move |change| changed(&of, change));
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

pub(super) async fn reconcile<P: Kept>(
    detector: &Detector,
    mirror: &Mirror<P>,
    key: &Key,
) -> Result<(), Error> {
    let Some(policy) = mirror.get(&key.namespace, &key.name) else { return Ok(()) };
    if policy.is_deleting() {
        return clean_up(detector, policy.as_ref()).await;
    }
    let Ok(claim) = Claim::of(policy.as_ref()) else { return introduce(detector, policy.as_ref()).await };
    for key in detector.bindings_of(&claim.id) {
        let Some(resource) = resource_of(detector, &key) else { continue };
        match detector.plane.templates.get(&TemplateKey::of_reference(&resource)) {
            Some(template) if !policy.selects(&template) => detector.release(&template, &claim).await?,
            Some(template) => detector.push_for_policy(TemplateKey::of(&template), policy.is_lazy()),
            // Not mirrored yet; it comes up by itself.
            None => {}
        }
    }
    release_unbound(detector, policy.as_ref(), &claim).await?;
    for key in waiting_for(detector, policy.as_ref()) {
        detector.push_for_policy(key, policy.is_lazy());
    }
    if policy.preempts_always() && detector.plane.features.enabled(POLICY_PREEMPTION) {
        preempt(detector, mirror, policy.as_ref(), &claim).await?;
    }
    Ok(())
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
    let plane = &detector.plane;
    if key.namespace.is_empty() {
        plane.mirrors.cluster_bindings.get("", &key.name).map(|binding| binding.spec().resource.clone())
    } else {
        plane.mirrors.bindings.get(&key.namespace, &key.name).map(|binding| binding.spec().resource.clone())
    }
}

/// Releases templates that a lazy policy claimed without binding them, once it no longer selects them.
async fn release_unbound<P: Kept>(detector: &Detector, policy: &P, claim: &Claim) -> Result<(), Error> {
    if !policy.is_lazy() {
        return Ok(());
    }
    for template in claimed_templates(detector, policy, claim) {
        if !policy.selects(&template) {
            detector.release(&template, claim).await?;
        }
    }
    Ok(())
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

/// Takes the policy's claims off everything, then lets it go.
async fn clean_up<P: Kept>(detector: &Detector, policy: &P) -> Result<(), Error> {
    if let Ok(claim) = Claim::of(policy) {
        for template in claimed_templates(detector, policy, &claim) {
            detector.release(&template, &claim).await?;
        }
        for key in detector.bindings_of(&claim.id) {
            detector.release_binding(&key, &claim).await?;
            // A template of a kind that is no longer among the selectors still carries the claim.
            if let Some(resource) = resource_of(detector, &key)
                && let Some(template) = detector.plane.templates.get(&TemplateKey::of_reference(&resource))
            {
                detector.release(&template, &claim).await?;
            }
        }
    }
    detector.plane.writer.derived().release(policy, P::FINALIZER).await.map(drop)
}

/// Takes over the templates it names from policies that rank lower.
async fn preempt<P: Kept>(
    detector: &Detector,
    mirror: &Mirror<P>,
    policy: &P,
    claim: &Claim,
) -> Result<(), Error> {
    for selector in &policy.spec().resource_selectors {
        let key = TemplateKey {
            kind: Gvk::from_api_version(&selector.api_version, &selector.kind),
            namespace: selector.namespace.clone(),
            name: selector.name.clone(),
        };
        let Some(template) = detector.plane.templates.get(&key) else { continue };
        if template.is_deleting() || !policy.selects(&template) {
            continue;
        }
        let held = Claim::read(&template);
        let holder_priority = held.as_ref().and_then(|held| match &held.holder {
            Holder::Policy { namespace, name } => mirror.get(namespace, name),
            Holder::ClusterPolicy { name } => mirror.get("", name),
        });
        let holder_priority = holder_priority.map(|holder| holder.priority());
        if preemption(policy, held.as_ref(), holder_priority) != Preemption::Take {
            continue;
        }
        let events = &detector.plane.events;
        let taken = detector.claim(&template, claim).await;
        METRICS.preempted(&taken);
        match taken {
            Ok(_) => {
                let message = format!("Preempted by {} ({})", kind_of::<P>(), describe(policy));
                events.normal(COMPONENT, template.as_ref(), reasons::PREEMPT_POLICY_SUCCEED, message);
            }
            Err(error) => {
                let message = error.to_string();
                events.warning(COMPONENT, template.as_ref(), reasons::PREEMPT_POLICY_FAILED, message);
                return Err(error);
            }
        }
    }
    Ok(())
}
