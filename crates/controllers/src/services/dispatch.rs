//! Dispatches the collected EndpointSlices of a MultiClusterService to its consumers.
//!
//! Watches: MultiClusterServices, collected and dispatched Works, Clusters (whether they are ready) and their execution namespaces.
//! Writes:  dispatched Works; the finalizer of collected ones; the condition EndpointSliceDispatched and events of the
//!          MultiClusterService.
//!
//! `endpointslice-dispatch-controller`, `endpointsliceDispatch` in `--controllers`, behind the gate
//! MultiClusterService. One reconcile per MultiClusterService compares all its slices with all its consumers,
//! so that any order of events ends in the same state. If a provider is not ready, its slices are removed
//! from the consumers, and return when it is ready. Upstream leaves them until the cluster is removed.

mod decide;
#[cfg(test)]
mod on_server;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::conditions::multi_cluster_service as conditions;
use futures::StreamExt as _;
use jiff::Timestamp;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};

use super::index::{Role, roles};
use super::told::tell;
use super::works::Token;
use super::{cluster_of_changed_space, concerned, lacks_slices, with_space};
use crate::plane::Plane;
use crate::plane::works::identified;
use crate::table::Start;
use decide::{Plan, Step, View};

const COMPONENT: &str = "endpointslice-dispatch-controller";
/// A key writes to many consumers at once.
const WORKERS: usize = 8;
/// How many Works of a key are written at once: there may be tens of thousands.
const AT_ONCE: usize = 32;

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.multi_cluster_services);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    let pushed = queue.clone();
    plane.mirrors.multi_cluster_services.subscribe(move |change| {
        let unchanged = matches!((&change.old, &change.new), (Some(old), Some(new))
            if old.spec == new.spec && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp);
        if !unchanged {
            pushed.push(change.key.clone());
        }
    });
    let pushed = queue.clone();
    plane.mirrors.works.subscribe(move |change| {
        let marks = |work: &api::work::Work| {
            let meta = &work.metadata;
            let deleted = meta.deletion_timestamp.clone();
            (meta.labels.clone(), meta.annotations.clone(), meta.finalizers.clone(), meta.generation, deleted)
        };
        // The status of a Work in its member does not matter here.
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        if old.map(marks) == new.map(marks) {
            return;
        }
        for (service, role) in [old, new].into_iter().flatten().flat_map(roles) {
            // A collected Work may also be our own write, since both controllers run in one process.
            if role == Role::Collected || (role == Role::Dispatched && !change.ours) {
                pushed.push(service);
            }
        }
    });
    plane.mirrors.clusters.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let look = |cluster: &Option<Arc<api::cluster::Cluster>>| {
                cluster.as_deref().map(|cluster| {
                    (
                        cluster.status.is_ready(),
                        lacks_slices(cluster),
                        cluster.metadata.deletion_timestamp.is_some(),
                    )
                })
            };
            if look(&change.old) == look(&change.new) {
                return;
            }
            for service in plane.mirrors.multi_cluster_services.all() {
                pushed.push(Key::of(service.as_ref()));
            }
        }
    });
    plane.mirrors.namespaces.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(cluster) = cluster_of_changed_space(change) else { return };
            for service in concerned(&plane.mirrors.multi_cluster_services, cluster) {
                pushed.push(service);
            }
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let mirrors = &self.plane.mirrors;
        let (mut collected, mut dispatched) = (Vec::new(), Vec::new());
        for (name, role) in self.plane.services.works(key) {
            let Some(work) = mirrors.works.find(&name) else { continue };
            match role {
                Role::Collected => collected.push(work),
                Role::Dispatched => dispatched.push(work),
                Role::Request | Role::Export => {}
            }
        }
        Ok(Some(View {
            key: key.clone(),
            multi: mirrors.multi_cluster_services.find(key),
            clusters: mirrors.clusters.all(),
            spaces: with_space(&mirrors.namespaces),
            collected,
            dispatched,
        }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, _: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let wrote = !plan.steps.is_empty();
        let mut errors: Vec<Error> =
            plan.errors.into_iter().map(|error| Error::Several(vec![error])).collect();
        let carried = plan.steps.into_iter().map(|step| async move {
            let takes_from = step.takes_from();
            self.carry_out(step).await.map_err(|error| (takes_from, error))
        });
        // In order, so that the same failures read the same in the condition.
        let results: Vec<_> = futures::stream::iter(carried).buffered(AT_ONCE).collect().await;
        let mut stuck = BTreeSet::new();
        for (takes_from, error) in results.into_iter().filter_map(Result::err) {
            stuck.extend(takes_from);
            errors.push(error);
        }
        for work in decide::free(plan.release, &stuck) {
            let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.works);
            let finalizer = Token::MultiClusterService.finalizer();
            if let Err(error) = writer.release(mirror, work.as_ref(), finalizer).await {
                errors.push(error);
            }
        }
        let result = Error::join(errors);
        let Some(multi) = view.multi.as_deref().filter(|_| plan.tells) else {
            return result.map(|()| Outcome::Done);
        };
        for (reason, message) in plan.warnings {
            self.plane.events.say(COMPONENT, multi, reason, message);
        }
        if let Some(told) = decide::conclude(&result) {
            let kind = conditions::ENDPOINT_SLICE_DISPATCHED;
            tell(&self.plane, COMPONENT, multi, kind, told, wrote).await?;
        }
        result.map(|()| Outcome::Done)
    }
}

impl Controller {
    async fn carry_out(&self, step: Step) -> Result<(), Error> {
        // Derived: everything can be dispatched again.
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.works);
        match step {
            Step::Create(work) => writer.create(mirror, &identified(*work)).await,
            Step::Update(old, new) => {
                writer.update_mirrored(mirror, old.as_ref(), &new, Guard::Fields).await.map(drop)
            }
            Step::Delete(work) => writer.delete(work.as_ref()).await,
        }
    }
}
