//! Propagates the Service of a MultiClusterService to its providers and consumers, and asks the providers for
//! its endpoints.
//!
//! Watches: MultiClusterServices, Services of the same name, Clusters and their execution namespaces, the Works that ask providers, the
//!          Works that hold slices, the Services' bindings.
//! Writes:  the claim on the Service; its ResourceBinding; a Work in each provider's execution namespace; the marks of collected Works
//!          that it does not want any more; finalizer, the condition ServiceApplied and events of the MultiClusterService.
//!
//! `multiclusterservice-controller`, `multiclusterservice` in `--controllers`, behind the gate
//! MultiClusterService. When the MultiClusterService is deleted, the binding and the Services in the members
//! stay, as upstream: a policy may take the Service over.

mod decide;
#[cfg(test)]
mod on_server;

use std::sync::Arc;

use api::cluster::Cluster;
use api::conditions::multi_cluster_service as conditions;
use api::labels::{RESOURCE_BINDING_PERMANENT_ID, RESOURCE_TEMPLATE_CLAIMED_BY, finalizers};
use api::names;
use api::networking::MultiClusterService;
use apimachinery::gvk::Gvk;
use futures::future::join_all;
use jiff::Timestamp;
use propagation::Object;
use propagation::activation::specification_changed;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use super::index::{Role, roles};
use super::told::tell;
use crate::plane::Plane;
use crate::plane::templates::TemplateKey;
use crate::plane::works::identified;
use crate::table::Start;
use decide::{Plan, Stages, Step, View};

const COMPONENT: &str = "multiclusterservice-controller";
const WORKERS: usize = 4;

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
        // Changes of its status, which we write, do not matter here.
        let same = |old: &MultiClusterService, new: &MultiClusterService| {
            let wish = |service: &MultiClusterService| {
                let meta = &service.metadata;
                let marks = (meta.annotations.clone(), meta.labels.clone(), meta.finalizers.clone());
                (service.spec.clone(), marks, meta.deletion_timestamp.clone())
            };
            wish(old) == wish(new)
        };
        match (&change.old, &change.new) {
            (Some(old), Some(new)) if same(old, new) => {}
            _ => pushed.push(change.key.clone()),
        }
    });
    plane.templates.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(service) = change.new.as_ref().or(change.old.as_ref()) else { return };
            let unchanged =
                matches!((&change.old, &change.new), (Some(old), Some(new)) if !specification_changed(old, new));
            let key = Key::new(service.namespace(), service.name());
            // One may carry the marks of a MultiClusterService that went while nobody looked.
            let marked = || service.label(RESOURCE_TEMPLATE_CLAIMED_BY) == Some(decide::HOLDER);
            if service.kind() == "Service"
                && service.api_version() == "v1"
                && !unchanged
                && (marked() || plane.mirrors.multi_cluster_services.find(&key).is_some())
            {
                pushed.push(key);
            }
        }
    });
    plane.mirrors.clusters.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let look = |cluster: &Option<Arc<Cluster>>| {
                cluster.as_deref().map(|cluster| (cluster.status.is_ready(), super::lacks_slices(cluster)))
            };
            if look(&change.old) == look(&change.new) {
                return;
            }
            for service in super::concerned(&plane.mirrors.multi_cluster_services, &change.key.name) {
                pushed.push(service);
            }
        }
    });
    plane.mirrors.namespaces.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(cluster) = super::cluster_of_changed_space(change) else { return };
            for service in super::concerned(&plane.mirrors.multi_cluster_services, cluster) {
                pushed.push(service);
            }
        }
    });
    plane.mirrors.works.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let versions = [change.old.as_deref(), change.new.as_deref()];
            for (service, role) in versions.into_iter().flatten().flat_map(roles) {
                // An agent may collect a slice at the very moment at which its MultiClusterService goes.
                let is_late = || {
                    let is_new = change.old.is_none();
                    is_new && plane.mirrors.multi_cluster_services.find(&service).is_none()
                };
                let matters = match role {
                    Role::Request => !change.ours,
                    Role::Collected => is_late(),
                    Role::Export | Role::Dispatched => false,
                };
                if matters {
                    pushed.push(service);
                }
            }
        }
    });
    plane.mirrors.bindings.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(service) = change.key.name.strip_suffix("-service") else { return };
            let key = Key::new(change.key.namespace.clone(), service);
            let spec = |binding: &Option<Arc<api::work::ResourceBinding>>| {
                binding.as_deref().map(|binding| {
                    let spec = &binding.spec;
                    (
                        spec.placement.clone(),
                        spec.conflict_resolution.clone(),
                        binding.metadata.labels.clone(),
                    )
                })
            };
            // Other controllers of this process write bindings as well: a policy may have been faster, or slower.
            if spec(&change.old) != spec(&change.new)
                && plane.mirrors.multi_cluster_services.find(&key).is_some()
            {
                pushed.push(key);
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
        let (mut requests, mut collected) = (Vec::new(), Vec::new());
        for (name, role) in self.plane.services.works(key) {
            let list = match role {
                Role::Request => &mut requests,
                Role::Collected => &mut collected,
                Role::Export | Role::Dispatched => continue,
            };
            list.extend(mirrors.works.find(&name));
        }
        Ok(Some(View {
            key: key.clone(),
            multi: mirrors.multi_cluster_services.find(key),
            clusters: mirrors.clusters.all(),
            spaces: super::with_space(&mirrors.namespaces),
            service: self.plane.templates.get(&service_key(key)),
            binding: mirrors.bindings.get(&key.namespace, &names::binding("Service", &key.name)),
            requests,
            collected,
        }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let plane = &self.plane;
        let wrote = !plan.steps.is_empty();
        let Stages { hold, claims, requests, bindings, slices, release } = decide::stages(plan.steps);
        let mut errors = Vec::new();
        for step in hold {
            self.carry_out(key, &view, step).await?;
        }
        for step in claims {
            if let Err(error) = self.carry_out(key, &view, step).await {
                errors.push(error);
            }
        }
        for steps in [decide::after_claims(requests, bindings, !errors.is_empty()), slices] {
            let results = join_all(steps.into_iter().map(|step| self.carry_out(key, &view, step))).await;
            errors.extend(results.into_iter().filter_map(Result::err));
        }
        let Some(multi) = &view.multi else { return Error::join(errors).map(|()| Outcome::Done) };
        for (reason, message) in plan.warnings {
            plane.events.say(COMPONENT, multi.as_ref(), reason, message);
        }
        let only_waits = decide::only_waits(plan.waits, !errors.is_empty());
        if let Some(problem) = plan.problem {
            errors.push(Error::Several(vec![problem]));
        }
        for step in decide::at_last(release, !errors.is_empty()) {
            self.carry_out(key, &view, step).await?;
        }
        let result = Error::join(errors);
        if let Some(told) = decide::conclude(multi, &result) {
            tell(plane, COMPONENT, multi, conditions::SERVICE_APPLIED, told, wrote).await?;
        }
        if only_waits { Ok(Outcome::Done) } else { result.map(|()| Outcome::Done) }
    }
}

fn service_key(key: &Key) -> TemplateKey {
    TemplateKey {
        kind: Gvk::new("", "v1", "Service"),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

impl Controller {
    async fn carry_out(&self, key: &Key, view: &View, step: Step) -> Result<(), Error> {
        let plane = &self.plane;
        let (writer, mirrors) = (plane.writer.derived(), &plane.mirrors);
        match (step, view.multi.as_deref()) {
            (Step::Hold, Some(multi)) => {
                let mut held = multi.clone();
                held.metadata
                    .finalizers
                    .get_or_insert_default()
                    .push(finalizers::MULTI_CLUSTER_SERVICE.to_owned());
                // Durable, because the next steps have effects in members.
                let mirror = &mirrors.multi_cluster_services;
                plane.writer.update_mirrored(mirror, multi, &held, Guard::Version).await.map(drop)
            }
            (Step::Release, Some(multi)) => {
                let newest = mirrors.multi_cluster_services.find(key);
                let multi = newest.as_deref().unwrap_or(multi);
                let mirror = &mirrors.multi_cluster_services;
                plane.writer.release(mirror, multi, finalizers::MULTI_CLUSTER_SERVICE).await.map(drop)
            }
            (Step::Hold | Step::Release, None) => Ok(()),
            (Step::CreateRequest(work), _) => writer.create(&mirrors.works, &identified(*work)).await,
            (Step::UpdateRequest(old, new), _) => {
                writer.update_mirrored(&mirrors.works, old.as_ref(), &new, Guard::Fields).await.map(drop)
            }
            (Step::DeleteRequest(work) | Step::DeleteCollected(work), _) => {
                writer.delete(work.as_ref()).await
            }
            (Step::ReleaseCollected(old, new), _) => {
                // Whoever collected it may release it at the same moment, for another reason.
                let written = writer.update_mirrored(&mirrors.works, old.as_ref(), &new, Guard::Version);
                match written.await {
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result.map(drop),
                }
            }
            (Step::PatchService(patch), _) => {
                plane.templates.patch_unless_equal(&service_key(key), patch).await
            }
            (Step::CreateBinding(mut binding), _) => {
                let labels = binding.metadata.labels.get_or_insert_default();
                labels.insert(RESOURCE_BINDING_PERMANENT_ID.to_owned(), uuid::Uuid::new_v4().to_string());
                writer.create(&mirrors.bindings, binding.as_ref()).await
            }
            (Step::UpdateBinding(old, new), _) => {
                writer.update_mirrored(&mirrors.bindings, old.as_ref(), &new, Guard::Fields).await.map(drop)
            }
        }
    }
}

/// Returns a merge patch of metadata.
fn metadata_patch(labels: Value, annotations: Value) -> Value {
    json!({ "metadata": { "labels": labels, "annotations": annotations } })
}
