//! The environment that all controllers share.

use std::sync::Arc;

use api::features::Features;
use interpreter::Interpreter;
use kube::Resource;
use member::Members;
use runtime::events::{Subject, about};
use runtime::{Events, Key, Mirror, Queue, Supervisor, Writer};

use crate::interpretation;
use crate::members::Signs;
use crate::mirrors::Mirrors;
use crate::plane::scheduling;
use crate::{Context, MyClusters, Timing, autoscaling, failover, services};

/// The reason of the event about an object whose reconcile panicked. Upstream has none.
const RECONCILE_PANICKED: &str = "ReconcilePanicked";

pub(crate) struct Environment {
    pub(crate) writer: Writer,
    pub(crate) supervisor: Supervisor,
    pub(crate) events: Events,
    /// One interpreter for all controllers, so that they agree on what a resource means.
    pub(crate) interpreter: Interpreter,
    pub(crate) features: Features,
    pub(crate) mirrors: Mirrors,
    /// Finds what belongs to a Service that several clusters have.
    pub(crate) services: Arc<services::Index>,
    pub(crate) members: Arc<Members>,
    pub(crate) mine: MyClusters,
    /// In an agent: what its last heartbeat says about the control plane.
    pub(crate) signs: Option<Arc<Signs>>,
    pub(crate) timing: Timing,
    pub(crate) scheduler: scheduling::Settings,
    pub(crate) failover: failover::Settings,
    pub(crate) autoscaling: autoscaling::Settings,
    /// Whether nodes and pods of members are followed.
    pub(crate) resource_modeling: bool,
}

impl Environment {
    pub(crate) fn new(context: &Context) -> Self {
        let mirrors = Mirrors::default();
        let services = Arc::new(services::Index::default());
        // Registered before any controller, so that a controller that is told of a Work finds the index up to
        // date.
        let index = services.clone();
        mirrors.works.subscribe(move |change| index.note_work(change));
        Self {
            events: Events::new(context.writer.client().clone(), &context.supervisor),
            writer: context.writer.clone(),
            supervisor: context.supervisor.clone(),
            interpreter: interpretation::interpreter(
                &mirrors,
                context.writer.client().clone(),
                &context.settings.features,
            ),
            features: context.settings.features.clone(),
            mirrors,
            services,
            members: context.members.clone(),
            signs: match &context.clusters {
                MyClusters::Push => None,
                MyClusters::One { name, .. } => Some(Signs::new(context.writer.client().clone(), name)),
            },
            mine: context.clusters.clone(),
            timing: context.settings.timing.clone(),
            scheduler: context.scheduler.clone(),
            failover: context.settings.failover.clone(),
            autoscaling: context.settings.autoscaling.clone(),
            resource_modeling: context.settings.resource_modeling,
        }
    }

    /// Emits an event that says that the reconcile of an object panicked.
    pub(crate) fn tell_panics<K>(&self, queue: &Queue<Key>, component: &'static str, mirror: &Arc<Mirror<K>>)
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let (events, mirror) = (self.events.clone(), mirror.clone());
        queue.tell_panics(move |key, panic| tell_panic(&events, component, &mirror, key, panic));
    }

    /// As [`Self::tell_panics`], for objects without a namespace, which a queue knows by name.
    pub(crate) fn tell_panics_by_name<K>(
        &self,
        queue: &Queue<String>,
        component: &'static str,
        mirror: &Arc<Mirror<K>>,
    ) where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let (events, mirror) = (self.events.clone(), mirror.clone());
        queue.tell_panics(move |name, panic| {
            tell_panic(&events, component, &mirror, &Key::new("", name.as_str()), panic);
        });
    }

    /// Has users see that the work on an object that is at hand panicked.
    pub(crate) fn tell_panic_of(&self, component: &'static str, object: &impl Subject, panic: &str) {
        warn(&self.events, component, object, panic);
    }

    /// Has users see that the work on this object panicked.
    pub(crate) fn tell_panic<K>(&self, component: &'static str, mirror: &Mirror<K>, key: &Key, panic: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        tell_panic(&self.events, component, mirror, key, panic);
    }

    /// Returns the client for reading.
    pub(crate) fn client(&self) -> &kube::Client {
        self.writer.client()
    }
}

fn tell_panic<K>(events: &Events, component: &'static str, mirror: &Mirror<K>, key: &Key, panic: &str)
where
    K: Resource<DynamicType = ()>,
{
    if let Some(object) = mirror.find(key) {
        warn(events, component, &about(object.as_ref()), panic);
    }
}

fn warn(events: &Events, component: &'static str, object: &impl Subject, panic: &str) {
    let message = format!("{component} panicked and tries again later: {panic}");
    events.warning(component, object, RECONCILE_PANICKED, message);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::World;

    #[tokio::test]
    async fn a_panic_is_told_of_an_object_that_is_known_by_name() {
        let world = World::new().await;
        let (environment, queue): (_, Arc<Queue<String>>) = (&world.environment, Queue::new("test"));
        environment.tell_panics_by_name(&queue, "test", &environment.mirrors.clusters);
        let cluster = world.cluster("m1", json!({})).await;
        assert_eq!(world.panicked(&queue, cluster).await, "test panicked and tries again later: by accident");
        world.supervisor.stop().await;
    }
}
