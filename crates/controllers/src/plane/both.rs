//! What controllers of bindings share: they handle both kinds alike, each with its own mirror and queue.

use std::ops::Deref;
use std::sync::Arc;

use api::work::{ClusterResourceBinding, ObjectReference, ResourceBinding};
use propagation::Object;
use runtime::{Change, Mirror, Queue, Reconcile, controller};
use serde_json::Value;

use super::{BindingKey, Plane, StoredBinding};

/// The bindings of one kind, and the queue of those that a controller has to reconcile.
pub(crate) struct Bindings<B> {
    pub(crate) plane: Arc<Plane>,
    pub(crate) mirror: Arc<Mirror<B>>,
    pub(crate) queue: Arc<Queue<BindingKey>>,
}

impl<B: StoredBinding> Bindings<B> {
    /// Returns them with an empty queue. Events name this component when the reconcile of a binding panics.
    pub(crate) fn new(plane: &Arc<Plane>, queue: &'static str, component: &'static str) -> Self {
        let (queue, mirror) = (Queue::new(queue), B::mirror(&plane.mirrors).clone());
        plane.tell_panics(&queue, component, &mirror);
        Self { plane: plane.clone(), mirror, queue }
    }

    /// Enqueues a binding when it changes in a way that matters.
    pub(crate) fn push_on(&self, is_news: impl Fn(&Change<'_, B>) -> bool + Send + Sync + 'static) {
        let queue = self.queue.clone();
        self.mirror.subscribe(move |change| {
            if is_news(change) {
                queue.push(change.key.clone());
            }
        });
    }

    /// Enqueues these bindings when evictions are halted or resumed.
    pub(crate) fn push_on_halt(&self, concerns: impl Fn(&B) -> bool + Send + Sync + 'static) {
        let (mirror, queue) = (self.mirror.clone(), self.queue.clone());
        self.plane.halt().subscribe(move |changed| {
            if changed.is_none() {
                let concerned = mirror.all().into_iter().filter(|binding| concerns(binding));
                concerned.for_each(|binding| queue.push(BindingKey::of(binding.as_ref())));
            }
        });
    }
}

/// Processes the queues of both kinds.
pub(crate) fn run<N, C>(namespaced: &Arc<N>, cluster: &Arc<C>, workers: usize)
where
    N: Reconcile<Key = BindingKey> + Deref<Target = Bindings<ResourceBinding>>,
    C: Reconcile<Key = BindingKey> + Deref<Target = Bindings<ClusterResourceBinding>>,
{
    controller::run(namespaced, &namespaced.queue, workers, &namespaced.plane.supervisor);
    controller::run(cluster, &cluster.queue, workers, &cluster.plane.supervisor);
}

/// Returns whether a template is the object that a binding stands for, and not another one of the same name.
pub(crate) fn stands_for(resource: &ObjectReference, template: &Value) -> bool {
    // A binding that was made by hand may leave it open.
    resource.uid.is_empty() || template.uid() == resource.uid
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn which_template_a_binding_stands_for() {
        let resource = |uid: &str| ObjectReference { uid: uid.to_owned(), ..ObjectReference::default() };
        let template = |uid: &str| json!({ "metadata": { "name": "web", "uid": uid } });
        for (name, uid, found, expected) in [
            ("this one", "t", "t", true),
            ("one that was deleted and created again", "t", "u", false),
            ("any of this name", "", "t", true),
            ("one that has no uid", "t", "", false),
        ] {
            assert_eq!(stands_for(&resource(uid), &template(found)), expected, "{name}");
        }
    }
}
