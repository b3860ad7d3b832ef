//! Binds templates to policies: finds the policy of a template, claims it, and keeps its binding as the policy says.
//!
//! Watches: templates of every kind, both kinds of propagation policies (see `policies`), override policies
//! that a propagation policy waits for, bindings that vanish.
//! Writes: the claim on the template; the binding's metadata and what the policy says in its spec.
//!
//! `decide` decides about a template and its binding.

mod decide;
#[cfg(test)]
pub(super) mod on_server;
mod touches;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::events as reasons;
use api::policy::{ClusterPropagationPolicy, PropagationPolicy, PropagationSpec};
use api::work::{ClusterResourceBinding, ResourceBinding};
use apimachinery::names;
use interpreter::Operation;
use jiff::Timestamp;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use parking_lot::{Mutex, RwLock};
use propagation::binding::{self, Inputs};
use propagation::claim::{Claim, Holder};
use propagation::index::WaitingSet;
use propagation::policies::{self as choosing, Choice, Policy, PolicyIndex};
use propagation::{Binding, Object, Reference as _};
use runtime::{Change, Error, Guard, Key, Mirror, Outcome, Queue, Reconcile, controller};
use serde_json::Value;

use crate::interpretation::{Lesson, on_lessons};

use super::metrics::METRICS;
use super::mirrored;
use super::templates::TemplateKey;
use super::{BindingKey, Plane, Start, StoredBinding, bindings, policies};
use decide::{Bind, Held, Mark, Plan, Touch, View};
use policies::Policies;
use touches::{Taken, Touches};

const TEMPLATE_WORKERS: usize = 8;
const POLICY_WORKERS: usize = 2;
pub(super) const COMPONENT: &str = "resource-detector";

/// What the detector knows besides the mirrors.
pub(crate) struct Detector {
    pub(super) plane: Arc<Plane>,
    pub(super) templates: Arc<Queue<TemplateKey>>,
    pub(super) policies: Arc<Queue<Key>>,
    pub(super) cluster_policies: Arc<Queue<Key>>,
    pub(super) policy_index: RwLock<PolicyIndex<PropagationPolicy>>,
    pub(super) cluster_policy_index: RwLock<PolicyIndex<ClusterPropagationPolicy>>,
    /// Templates that no policy selects yet.
    pub(super) waiting: Mutex<WaitingSet>,
    /// Templates whose policy waits for override policies.
    blocked: Mutex<HashSet<TemplateKey>>,
    /// Why templates are in the queue.
    touches: Touches,
    /// Templates as they were when we claimed and bound them. The watch shows them again, perhaps with a
    /// status that was written meanwhile; that does not matter to the binding.
    bound: Mutex<HashMap<TemplateKey, Value>>,
    /// Bindings by the permanent id of the policy that claims them.
    claimed: Mutex<HashMap<String, BTreeSet<BindingKey>>>,
}

/// What is known of a template, and which changes were seen since it was last reconciled.
pub(crate) struct Looked {
    view: View,
    taken: Taken,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let detector = subscribed(plane);
    let (policies, cluster_policies) =
        (Policies::<PropagationPolicy>::new(&detector), Policies::<ClusterPropagationPolicy>::new(&detector));
    Box::new(move || {
        let supervisor = &detector.plane.supervisor;
        controller::run(&detector, &detector.templates, TEMPLATE_WORKERS, supervisor);
        controller::run(&policies, &detector.policies, POLICY_WORKERS, supervisor);
        controller::run(&cluster_policies, &detector.cluster_policies, POLICY_WORKERS, supervisor);
    })
}

pub(super) fn subscribed(plane: &Arc<Plane>) -> Arc<Detector> {
    let detector = Arc::new(Detector {
        plane: Arc::clone(plane),
        templates: Queue::new("resource detector"),
        policies: Queue::new("propagationPolicy reconciler"),
        cluster_policies: Queue::new("clusterPropagationPolicy reconciler"),
        policy_index: RwLock::default(),
        cluster_policy_index: RwLock::default(),
        waiting: Mutex::default(),
        blocked: Mutex::default(),
        touches: Touches::default(),
        bound: Mutex::default(),
        claimed: Mutex::default(),
    });
    plane.tell_panics_of_templates(&detector.templates, COMPONENT, TemplateKey::clone);
    plane.templates.subscribe({
        let detector = Arc::clone(&detector);
        move |change| detector.template_changed(change)
    });
    plane.mirrors.bindings.subscribe({
        let detector = Arc::clone(&detector);
        move |change| detector.binding_changed(change)
    });
    plane.mirrors.cluster_bindings.subscribe({
        let detector = Arc::clone(&detector);
        move |change| detector.binding_changed(change)
    });
    plane.mirrors.override_policies.subscribe({
        let detector = Arc::clone(&detector);
        move |change| detector.override_changed(change)
    });
    plane.mirrors.cluster_override_policies.subscribe({
        let detector = Arc::clone(&detector);
        move |change| detector.override_changed(change)
    });
    policies::subscribe(&detector);
    on_lessons(&plane.mirrors, {
        let detector = Arc::clone(&detector);
        move |lesson| detector.rules_changed(lesson)
    });
    detector
}

/// Returns the ids of the policies that claim an object.
fn claim_ids(metadata: &ObjectMeta) -> impl Iterator<Item = &String> {
    let labels = metadata.labels.iter();
    labels.flat_map(|labels| {
        [api::labels::PROPAGATION_POLICY_PERMANENT_ID, api::labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID]
            .into_iter()
            .filter_map(|key| labels.get(key))
    })
}

impl Detector {
    fn template_changed(&self, change: &Change<Value>) {
        let Some(object) = change.new.as_ref().or(change.old.as_ref()) else { return };
        if let Some(touch) = Touch::of(change.old.as_deref(), change.new.as_deref(), change.initial) {
            self.push(TemplateKey::of(object), touch);
        }
    }

    fn push(&self, key: TemplateKey, touch: Touch) {
        self.touches.add(key.clone(), touch);
        self.templates.push(key);
    }

    /// Enqueues a template because its policy changed, which does not count as a change of the template.
    pub(super) fn push_for_policy(&self, key: TemplateKey, lazy: bool) {
        self.push(key, Touch { by_user: !lazy, fresh: false });
    }

    fn binding_changed<B: Binding>(&self, change: &Change<B>) {
        let ids = |binding: &Option<Arc<B>>| -> BTreeSet<String> {
            binding.iter().flat_map(|binding| claim_ids(binding.metadata()).cloned()).collect()
        };
        let (old, new) = (ids(&change.old), ids(&change.new));
        if old != new {
            let key = change.key;
            let mut claimed = self.claimed.lock();
            for id in old.difference(&new) {
                if let Some(keys) = claimed.get_mut(id) {
                    keys.remove(key);
                    if keys.is_empty() {
                        claimed.remove(id);
                    }
                }
            }
            for id in new.difference(&old) {
                claimed.entry(id.clone()).or_default().insert(key.clone());
            }
        }
        // The template may still exist, or be a new one that waits for the deletion of its predecessor's
        // binding.
        if let (Some(old), None) = (&change.old, &change.new) {
            self.push(TemplateKey::of_reference(&old.spec().resource), Touch::default());
        }
    }

    fn override_changed<P>(&self, change: &Change<P>) {
        if change.old.is_none() {
            let blocked = std::mem::take(&mut *self.blocked.lock());
            for key in blocked {
                self.push(key, Touch::default());
            }
        }
    }

    /// Enqueues the templates whose replicas or components may now be interpreted differently.
    fn rules_changed(&self, lesson: &Lesson) {
        let (mirrors, asked) =
            (&self.plane.mirrors, [Operation::InterpretReplica, Operation::InterpretComponent]);
        let bindings = lesson.bindings(&mirrors.bindings, &asked);
        let references = bindings.iter().map(|binding| &binding.spec.resource);
        let cluster_bindings = lesson.bindings(&mirrors.cluster_bindings, &asked);
        for reference in references.chain(cluster_bindings.iter().map(|binding| &binding.spec.resource)) {
            self.push(TemplateKey::of_reference(reference), Touch::default());
        }
    }

    /// Returns the bindings that the policy with this permanent id claims.
    pub(super) fn bindings_of(&self, policy_id: &str) -> Vec<BindingKey> {
        self.claimed.lock().get(policy_id).into_iter().flatten().cloned().collect()
    }

    fn stop_waiting(&self, key: &TemplateKey) {
        let api_version = key.kind.api_version();
        self.waiting.lock().remove(&api_version, &key.kind.kind, &key.namespace, &key.name);
    }

    fn look(&self, key: &TemplateKey, touch: Touch) -> View {
        let templates = &self.plane.templates;
        // Objects that policies skip may be mirrored because templates depend on them; no policy claims them.
        let template =
            templates.get(key).filter(|found| Claim::read(found).is_some() || !templates.skip().skips(found));
        let held = template.as_deref().and_then(Claim::read).map(|claim| {
            let mirrors = &self.plane.mirrors;
            let policy = match &claim.holder {
                Holder::Policy { namespace, name } => {
                    mirrors.policies.get(namespace, name).map(Choice::Policy)
                }
                Holder::ClusterPolicy { name } => {
                    mirrors.cluster_policies.get("", name).map(Choice::ClusterPolicy)
                }
            };
            Held { claim, policy }
        });
        let choice = match (&template, &held) {
            (Some(template), None) => self.choose(template),
            _ => None,
        };
        let mut view = View { template, touch, held, choice, missing: Vec::new() };
        view.missing = match view.policy() {
            Some(Choice::Policy(policy)) => self.missing_overrides(policy.as_ref()),
            Some(Choice::ClusterPolicy(policy)) => self.missing_overrides(policy.as_ref()),
            None => Vec::new(),
        };
        view
    }

    /// Returns the override policies that a policy waits for and that do not exist.
    fn missing_overrides<P: Policy>(&self, policy: &P) -> Vec<String> {
        let overrides = self.plane.overrides.read();
        let wanted = policy.spec().dependent_overrides.iter();
        wanted.filter(|name| !overrides.contains(policy.namespace(), name)).cloned().collect()
    }

    async fn carry_out(
        &self,
        key: &TemplateKey,
        template: &Value,
        touch: Touch,
        plan: Plan,
    ) -> Result<(), Error> {
        match plan {
            Plan::Forget | Plan::Wait => Ok(()),
            Plan::Nothing(why) => {
                tracing::trace!(controller = COMPONENT, ?key, why, "nothing to do");
                Ok(())
            }
            Plan::Release(claim) => self.release(template, &claim).await,
            Plan::AskPolicy(Choice::Policy(policy)) => {
                self.policies.push(Key::new(policy.namespace(), policy.name()));
                Ok(())
            }
            Plan::AskPolicy(Choice::ClusterPolicy(policy)) => {
                self.cluster_policies.push(Key::new("", policy.name()));
                Ok(())
            }
            Plan::Block(missing) => {
                self.blocked.lock().insert(key.clone());
                Err(Error::Waiting(format!("for override policies {}", missing.join(", "))))
            }
            Plan::Apply { policy: Choice::Policy(policy), bind } => {
                self.apply_policy(template, policy.as_ref(), touch, bind).await
            }
            Plan::Apply { policy: Choice::ClusterPolicy(policy), bind } => {
                self.apply_policy(template, policy.as_ref(), touch, bind).await
            }
        }
    }

    fn choose(&self, template: &Value) -> Option<Choice> {
        let started = Instant::now();
        let choice = choosing::choose(&self.policy_index.read(), &self.cluster_policy_index.read(), template);
        METRICS.matched(started);
        choice
    }

    async fn apply_policy<P: Policy>(
        &self,
        template: &Value,
        policy: &P,
        touch: Touch,
        bind: bool,
    ) -> Result<(), Error> {
        let claim = Claim::of(policy).map_err(Error::decision)?;
        let started = Instant::now();
        let result = self.claim_and_bind(template, policy, &claim, touch, bind).await;
        METRICS.applied(started, &result);
        match &result {
            Ok(true) => {
                let message = format!("Apply {} ({}) succeed", kind_of::<P>(), describe(policy));
                self.plane.events.normal(COMPONENT, template, reasons::APPLY_POLICY_SUCCEED, message);
            }
            Err(error) if !error.is_conflict() => {
                let message = format!("Apply {} ({}) failed: {error}", kind_of::<P>(), describe(policy));
                self.plane.events.warning(COMPONENT, template, reasons::APPLY_POLICY_FAILED, message);
            }
            _ => {}
        }
        result.map(drop)
    }

    /// Returns whether the binding had to be written.
    async fn claim_and_bind<P: Policy>(
        &self,
        template: &Value,
        policy: &P,
        claim: &Claim,
        touch: Touch,
        bind: bool,
    ) -> Result<bool, Error> {
        let version = template.resource_version();
        let Some(template) = self.claim(template, claim).await? else { return Ok(false) };
        let claimed_now = template.resource_version() != version;
        // The answer may show that another controller has claimed it since we read it.
        if !bind || decide::is_anothers(&template) {
            return Ok(false);
        }
        let priority_class = self.priority_class(policy.spec()).await?;
        let inputs = Inputs {
            template: &template,
            policy: policy.spec(),
            claim,
            interpreter: &self.plane.interpreter,
            features: &self.plane.features,
            priority_class,
        };
        let plane = &self.plane;
        let written = if template.namespace().is_empty() {
            self.bind::<ClusterResourceBinding>(&plane.mirrors.cluster_bindings, &inputs, touch).await?
        } else {
            self.bind::<ResourceBinding>(&plane.mirrors.bindings, &inputs, touch).await?
        };
        if claimed_now {
            self.bound.lock().insert(TemplateKey::of(&template), template);
        }
        Ok(written)
    }

    /// Marks the template as the policy's; returns it as it then is, or nothing if it is gone.
    pub(super) async fn claim(&self, template: &Value, claim: &Claim) -> Result<Option<Value>, Error> {
        let key = TemplateKey::of(template);
        // Two controllers claim these. The mirror may not show yet what the other one has written, or what we wrote before a conflict.
        let newest =
            if decide::may_be_anothers(&key) { self.plane.templates.current(&key).await? } else { None };
        let template = newest.as_ref().unwrap_or(template);
        match decide::mark(template, claim) {
            Mark::Anothers => Ok(Some(template.clone())),
            Mark::Carries => self.whole(template.clone()).await,
            // The policy that claims it claims it again after a crash.
            Mark::Patch(patch) => self.plane.templates.derived().patch(&key, patch).await,
        }
    }

    /// Returns whether another controller has claimed a template. It claims the template before it writes the
    /// binding, so if a binding carries its label, the server has the claim, even if the mirror does not show
    /// it yet. If a policy wrote such a binding, the object would be removed from clusters that the other
    /// controller wants.
    async fn is_anothers_by_now(&self, key: &TemplateKey) -> Result<bool, Error> {
        Ok(self.plane.templates.current(key).await?.is_some_and(|template| decide::is_anothers(&template)))
    }

    /// Returns the whole template; the mirror may have only its head.
    async fn whole(&self, template: Value) -> Result<Option<Value>, Error> {
        if !mirrored::is_head(&template) {
            return Ok(Some(template));
        }
        let found = self.plane.templates.fetch(&template.reference()).await?;
        Ok(found.map(Arc::unwrap_or_clone))
    }

    async fn priority_class(&self, policy: &PropagationSpec) -> Result<Option<i32>, Error> {
        let Some(wanted) = &policy.schedule_priority else { return Ok(None) };
        // A user has named it, and the client writes the name into a path as it is: `?watch=true` would be a watch, for hours.
        if !names::is_path_segment(&wanted.priority_class_name) {
            return Ok(None);
        }
        let api: Api<PriorityClass> = Api::all(self.plane.client().clone());
        Ok(api.get_opt(&wanted.priority_class_name).await?.and_then(|class| class.value))
    }

    /// Brings the binding of a template in line: reads what is there, has `decide::bind` decide, and takes that one step.
    async fn bind<B: StoredBinding>(
        &self,
        mirror: &Mirror<B>,
        inputs: &Inputs<'_>,
        touch: Touch,
    ) -> Result<bool, Error> {
        let template = inputs.template;
        let interpreted = binding::interpreted(inputs);
        let desired: B = self.build(inputs, interpreted).await?;
        let name = Binding::metadata(&desired).name.clone().unwrap_or_default();
        let (existing, key) = (mirror.get(template.namespace(), &name), TemplateKey::of(template));
        if existing.as_deref().is_some_and(decide::is_managed) && self.is_anothers_by_now(&key).await? {
            return Ok(false);
        }
        let plan = {
            let bound = self.bound.lock();
            let memory = (bound.get(&key), template);
            decide::bind(existing.as_deref(), &desired, inputs.policy, inputs.claim, touch, memory)
                .map_err(Error::decision)?
        };
        let written = self.write_binding(mirror, &key, existing.as_deref(), desired, plan).await?;
        if let (true, Some(operation)) = (written, interpreted) {
            let (what, reason) = match operation {
                Operation::InterpretComponent => ("components", reasons::GET_COMPONENTS_SUCCEED),
                _ => ("replicas", reasons::GET_REPLICAS_SUCCEED),
            };
            let message = format!("Get {what} of {} succeed", template.describe());
            self.plane.events.normal(COMPONENT, template, reason, message);
        }
        Ok(written)
    }

    /// Returns the binding that a template should have, which may need the interpreter.
    async fn build<B: StoredBinding>(
        &self,
        inputs: &Inputs<'_>,
        interpreted: Option<Operation>,
    ) -> Result<B, Error> {
        let built = binding::build(inputs).await;
        if let Err(error @ propagation::Error::Interpret { .. }) = &built {
            let reason = match interpreted {
                Some(Operation::InterpretComponent) => reasons::GET_COMPONENTS_FAILED,
                _ => reasons::GET_REPLICAS_FAILED,
            };
            self.plane.events.warning(COMPONENT, inputs.template, reason, error.to_string());
        }
        built.map_err(Error::decision)
    }

    /// Returns whether the binding had to be written.
    async fn write_binding<B: StoredBinding>(
        &self,
        mirror: &Mirror<B>,
        key: &TemplateKey,
        existing: Option<&B>,
        mut desired: B,
        plan: Bind<B>,
    ) -> Result<bool, Error> {
        let writer = self.plane.writer.derived();
        match (plan, existing) {
            (Bind::Wait, _) => {
                let name = Binding::metadata(&desired).name.as_deref().unwrap_or_default();
                Err(Error::Waiting(format!("for binding {name} to go")))
            }
            (Bind::Nothing { seen }, _) => {
                if seen {
                    self.bound.lock().remove(key);
                }
                Ok(false)
            }
            (Bind::Update(wanted), Some(existing)) => {
                self.bound.lock().remove(key);
                writer.update_mirrored(mirror, existing, &wanted, decide::guard(key)).await
            }
            (Bind::Create | Bind::Update(_), _) => {
                // Admission would give it an identity; control planes without our admission have bindings, too.
                let labels = Binding::metadata_mut(&mut desired).labels.get_or_insert_default();
                labels.insert(B::PERMANENT_ID.to_owned(), uuid::Uuid::new_v4().to_string());
                writer.create(mirror, &desired).await.map(|()| true)
            }
        }
    }

    /// Removes a claim from the template, whose change enqueues it again, and then from the binding. As long
    /// as the binding carries the claim, a policy finds both again after a failure.
    pub(super) async fn release(&self, template: &Value, claim: &Claim) -> Result<(), Error> {
        if let Some(patch) = decide::unmark(template, claim) {
            self.plane.templates.derived().patch(&TemplateKey::of(template), patch).await?;
        }
        let name = api::names::binding(template.kind(), template.name());
        self.release_binding(&BindingKey { namespace: template.namespace().to_owned(), name }, claim).await
    }

    pub(super) async fn release_binding(&self, key: &BindingKey, claim: &Claim) -> Result<(), Error> {
        let plane = &self.plane;
        if key.namespace.is_empty() {
            release_binding(plane, &plane.mirrors.cluster_bindings, key, claim).await
        } else {
            release_binding(plane, &plane.mirrors.bindings, key, claim).await
        }
    }
}

impl Reconcile for Detector {
    type Key = TemplateKey;
    type View = Looked;
    type Plan = Plan;

    async fn observe(&self, key: &TemplateKey) -> Result<Option<Looked>, Error> {
        let taken = self.touches.take(key);
        Ok(Some(Looked { view: self.look(key, taken.touch()), taken }))
    }

    fn decide(looked: &Looked, _: Timestamp) -> Plan {
        decide::decide(&looked.view)
    }

    async fn apply(&self, key: &TemplateKey, looked: Looked, plan: Plan) -> Result<Outcome, Error> {
        let Looked { view, taken } = looked;
        match (&view.template, &plan) {
            (Some(template), Plan::Wait) => {
                // A policy that appeared between the read and this line has not seen that the template waits.
                let begins = self.waiting.lock().insert(template);
                if begins && self.choose(template).is_some() {
                    return Ok(Outcome::After(Duration::ZERO));
                }
            }
            _ => self.stop_waiting(key),
        }
        match &view.template {
            Some(template) => self.carry_out(key, template, view.touch, plan).await?,
            None => drop(self.bound.lock().remove(key)),
        }
        taken.settle();
        Ok(Outcome::Done)
    }
}

async fn release_binding<B: StoredBinding>(
    plane: &Plane,
    mirror: &Mirror<B>,
    key: &BindingKey,
    claim: &Claim,
) -> Result<(), Error> {
    let Some(binding) = mirror.get(&key.namespace, &key.name) else { return Ok(()) };
    let Some(released) = decide::unmark_binding(binding.as_ref(), claim) else { return Ok(()) };
    debug_assert_eq!(bindings::key(binding.as_ref()), *key);
    // The mirror is updated at once: a policy that is being deleted releases a template with its binding, and
    // then the binding.
    match plane.writer.derived().update_mirrored(mirror, binding.as_ref(), &released, Guard::Version).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result.map(drop),
    }
}

pub(super) fn kind_of<P: Policy>() -> &'static str {
    if P::NAMESPACED { "policy" } else { "cluster policy" }
}

pub(super) fn describe<P: Policy>(policy: &P) -> String {
    api::names::namespaced_key(policy.namespace(), policy.name())
}
