//! The control-plane side: templates, policies, bindings, placements, Works, and the status that comes back.
//!
//! All controllers of this side share one set of mirrors (a watch and a copy per kind) and read nothing else. Each
//! owns a queue of keys; changes in the mirrors push keys, workers reconcile them.
//!
//! Code map: `templates` finds and mirrors every kind · `mirrored` is how the mirror stores a template ·
//! `detector` and `policies` bind templates to policies · `dependencies` propagates what they need ·
//! `scheduling` chooses clusters · `both` is what controllers of bindings share · `bindings` writes Works,
//! `works` finds them again · `removals` holds removals when there are too many · `status` collects reports ·
//! `namespaces` mirrors namespaces into all clusters · `quotas` are FederatedResourceQuotas · `unified_auth`
//! lets the cluster proxy impersonate its users.

pub(crate) mod agent_requests;
pub(crate) mod bindings;
pub(crate) mod both;
pub(crate) mod dependencies;
pub(crate) mod detector;
mod metrics;
mod mirrored;
pub(crate) mod namespaces;
mod override_events;
mod policies;
pub(crate) mod quotas;
mod removals;
pub mod scheduling;
pub(crate) mod status;
pub(crate) mod templates;
pub(crate) mod unified_auth;
pub(crate) mod works;

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use api::work::{ClusterResourceBinding, ResourceBinding};
use parking_lot::RwLock;
use propagation::Binding;
use propagation::overrides::Overrides;
use runtime::writer::Stored;
use runtime::{Mirror, Queue};

use crate::Settings;
use crate::environment::Environment;
use crate::failover::Halt;
use crate::mirrors::{Mirrors, Watch};
use crate::table::Start;
use templates::{TemplateKey, Templates};
use works::Works;

/// What the controllers of this side share.
pub(crate) struct Plane {
    environment: Arc<Environment>,
    pub(crate) templates: Arc<Templates>,
    /// A renderer takes the index as it is and holds no lock meanwhile: rendering takes long, and controllers that are told of changed
    /// policies must not wait for it.
    overrides: RwLock<Arc<Overrides>>,
    pub(crate) works: Works,
    removals: removals::Removals,
    halt: OnceLock<Arc<Halt>>,
}

impl Deref for Plane {
    type Target = Environment;

    fn deref(&self) -> &Environment {
        &self.environment
    }
}

/// A binding of either scope that can be written.
pub(crate) trait StoredBinding: Binding + Stored {
    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>>;
}

impl StoredBinding for ResourceBinding {
    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>> {
        &mirrors.bindings
    }
}

impl StoredBinding for ClusterResourceBinding {
    fn mirror(mirrors: &Mirrors) -> &Arc<Mirror<Self>> {
        &mirrors.cluster_bindings
    }
}

/// Identifies a binding of either scope; the namespace of a ClusterResourceBinding is empty.
type BindingKey = runtime::Key;

impl Plane {
    pub(crate) fn new(environment: &Arc<Environment>, settings: &Settings) -> Arc<Self> {
        let plane = Arc::new(Self {
            environment: environment.clone(),
            templates: Templates::new(environment.writer.clone(), settings.skip.clone()),
            overrides: RwLock::default(),
            works: Works::new(environment.mirrors.works.clone()),
            removals: removals::Removals::new(settings.removals),
            halt: OnceLock::new(),
        });
        plane.follow_overrides();
        plane.follow_works();
        plane
    }

    /// As [`Environment::tell_panics`], for queues of what is in the templates.
    pub(crate) fn tell_panics_of_templates<K>(
        self: &Arc<Self>,
        queue: &Queue<K>,
        component: &'static str,
        template: impl Fn(&K) -> TemplateKey + Send + Sync + 'static,
    ) where
        K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    {
        let plane = Arc::clone(self);
        queue.tell_panics(move |key, panic| {
            if let Some(found) = plane.templates.get(&template(key)) {
                plane.tell_panic_of(component, found.as_ref(), panic);
            }
        });
    }

    /// Returns the watcher that says whether evictions are halted. The first call starts it, which happens
    /// before the mirrors start.
    pub(crate) fn halt(&self) -> &Arc<Halt> {
        self.halt.get_or_init(|| Halt::new(&self.environment))
    }

    /// Waits until the watched mirrors are complete.
    pub(crate) async fn complete(&self, watches: &[Watch]) {
        self.mirrors.complete(watches).await;
        if watches.contains(&Watch::Templates) {
            self.templates.complete().await;
        }
    }

    /// Keeps the index of overrides in step with the policies. Registered first, so that every controller
    /// that is told of a changed policy finds the index up to date.
    fn follow_overrides(self: &Arc<Self>) {
        let plane = Arc::clone(self);
        self.mirrors.override_policies.subscribe(move |change| {
            let mut overrides = plane.overrides.write();
            let overrides = Arc::make_mut(&mut *overrides);
            match &change.new {
                Some(policy) => overrides.insert(Arc::clone(policy)),
                None => overrides.remove(&change.key.namespace, &change.key.name),
            }
        });
        let plane = Arc::clone(self);
        self.mirrors.cluster_override_policies.subscribe(move |change| {
            let mut overrides = plane.overrides.write();
            let overrides = Arc::make_mut(&mut *overrides);
            match &change.new {
                Some(policy) => overrides.insert_cluster(Arc::clone(policy)),
                None => overrides.remove_cluster(&change.key.name),
            }
        });
    }
}
