//! Copies collected EndpointSlices into the control plane, from where they follow the ServiceImports that
//! need them.
//!
//! Watches: collected Works, bindings and Works of ServiceExports, Clusters (whether they are ready), imported EndpointSlices.
//! Writes:  EndpointSlices `imported-<cluster>-<slice>`; the finalizer of collected Works.
//!
//! `endpointslice-controller`, `endpointSlice` in `--controllers`. If a cluster is not ready, its slices are
//! removed, and return when it is ready. Upstream leaves them until the cluster is removed. Upstream also takes the slices of any cluster
//! that says it exports the Service; here the ServiceExport in the control plane says which clusters do, if there is one.

#[cfg(test)]
mod on_server;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use api::labels::{ENDPOINT_SLICE_CONTROLLER, ENDPOINT_SLICE_MANAGED_BY, WORK_PERMANENT_ID};
use api::names;
use api::work::Work;
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::ObjectMeta;
use propagation::Object;
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};

use super::index::{Role, cluster_of, roles};
use super::works::{Token, is_going, label, manifest, offered, service_of};
use super::{SERVICE_NAME, SLICE};
use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "endpointslice-controller";
/// Each key writes one object, so a few workers are enough.
const WORKERS: usize = 8;

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.works);
    let pushed = queue.clone();
    plane.mirrors.works.subscribe(move |change| {
        let versions = [change.old.as_deref(), change.new.as_deref()];
        let mut roles = versions.into_iter().flatten().flat_map(roles);
        if roles.any(|(_, role)| role == Role::Collected) {
            pushed.push(change.key.clone());
        }
    });
    plane.mirrors.works.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let ((Some(work), None) | (None, Some(work))) = (&change.old, &change.new) else { return };
            for (service, _) in roles(work).into_iter().filter(|(_, role)| *role == Role::Export) {
                push_collected(&plane, &pushed, &service);
            }
        }
    });
    plane.mirrors.bindings.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let Some(name) = change.key.name.strip_suffix("-serviceexport") else { return };
            if change.old.is_some() != change.new.is_some() {
                push_collected(&plane, &pushed, &Key::new(change.key.namespace.clone(), name));
            }
        }
    });
    plane.mirrors.clusters.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let ready = |cluster: &Option<Arc<Cluster>>| cluster.as_deref().map(|it| it.status.is_ready());
            if ready(&change.old) != ready(&change.new) {
                for work in plane.services.collected_in(&change.key.name) {
                    pushed.push(work);
                }
            }
        }
    });
    let pushed = queue.clone();
    plane.mirrors.imported_slices.subscribe(move |change| {
        let slice = change.new.as_deref().or(change.old.as_deref());
        if !change.ours
            && let Some(work) = slice.and_then(work_of)
        {
            pushed.push(work);
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

/// Pushes the collected Works of a Service.
fn push_collected(plane: &Plane, queue: &Queue<Key>, service: &Key) {
    for (work, role) in plane.services.works(service) {
        if role == Role::Collected {
            queue.push(work);
        }
    }
}

/// Returns whether users export a Service in the control plane, and not from this cluster.
///
/// A member says itself that it exports a Service: with the object that was brought there, or with one that somebody has made there. Its
/// endpoints get the clients of all clusters that import the Service. Where the owners of the Service say from where it is exported, no
/// other member has a say in it.
fn is_exported_elsewhere(plane: &Plane, service: &Key, cluster: &str) -> bool {
    let binding =
        plane.mirrors.bindings.get(&service.namespace, &names::binding("ServiceExport", &service.name));
    binding.is_some_and(|binding| {
        let works = plane.works.of(binding.as_ref());
        !works.iter().any(|work| cluster_of(&Key::of(work.as_ref())) == cluster)
    })
}

/// Returns the Work that an imported slice comes from.
fn work_of(slice: &EndpointSlice) -> Option<Key> {
    let notes = slice.metadata.annotations.as_ref()?;
    Some(Key::new(notes.get(WORK_NAMESPACE)?.clone(), notes.get(WORK_NAME)?.clone()))
}

/// What is known of a collected Work.
pub(crate) struct View {
    key: Key,
    work: Option<Arc<Work>>,
    cluster: Option<Arc<Cluster>>,
    /// See [`is_exported_elsewhere`].
    elsewhere: bool,
    /// The slices in the control plane that come from it.
    imported: Vec<Arc<EndpointSlice>>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    create: Option<Box<EndpointSlice>>,
    /// Change the first into the second.
    update: Option<(Arc<EndpointSlice>, Box<EndpointSlice>)>,
    delete: Vec<Arc<EndpointSlice>>,
    /// The Work's finalizer is removed afterwards.
    release: bool,
}

fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let wanted = view.work.as_deref().and_then(|work| {
        let is_ready = view.cluster.as_deref().is_some_and(|cluster| cluster.status.is_ready());
        let offered = !is_going(work) && !view.elsewhere && is_ready;
        offered.then(|| desired(&view.key, work)).flatten()
    });
    for slice in &view.imported {
        if wanted.as_ref().is_none_or(|wanted| wanted.metadata.name != slice.metadata.name) {
            plan.delete.push(Arc::clone(slice));
        }
    }
    if let Some(wanted) = wanted {
        let existing = view.imported.iter().find(|slice| slice.metadata.name == wanted.metadata.name);
        match existing {
            None => plan.create = Some(Box::new(wanted)),
            // The member has made it anew for another family of addresses. No server lets that be changed.
            Some(existing) if existing.address_type != wanted.address_type => {
                plan.delete.push(Arc::clone(existing));
                plan.create = Some(Box::new(wanted));
            }
            Some(existing) => {
                let mut updated = EndpointSlice::clone(existing);
                let labels = updated.metadata.labels.get_or_insert_default();
                labels.extend(wanted.metadata.labels.unwrap_or_default());
                updated.endpoints = wanted.endpoints;
                updated.ports = wanted.ports;
                if updated != **existing {
                    plan.update = Some((Arc::clone(existing), Box::new(updated)));
                }
            }
        }
    }
    plan.release = view.work.as_deref().is_some_and(|work| {
        let held =
            work.metadata.finalizers.iter().flatten().any(|held| held == Token::ServiceExport.finalizer());
        held && (is_going(work) || service_of(work, Token::ServiceExport).is_none())
    });
    plan
}

/// Returns the slice that the control plane should have; none if no ServiceExport wants it, or the Work cannot be read.
fn desired(key: &Key, work: &Work) -> Option<EndpointSlice> {
    let service = service_of(work, Token::ServiceExport)?;
    let slice = offered(work, &service)?;
    let name = names::imported_endpoint_slice(cluster_of(key), slice.name());
    let collected: EndpointSlice = serde_json::from_value(slice).ok()?;
    let labels = [
        (WORK_PERMANENT_ID, label(work, WORK_PERMANENT_ID).to_owned()),
        (SERVICE_NAME, names::derived_service(&service.name)),
        (ENDPOINT_SLICE_MANAGED_BY, ENDPOINT_SLICE_CONTROLLER.to_owned()),
    ];
    let notes = [(WORK_NAMESPACE, key.namespace.clone()), (WORK_NAME, key.name.clone())];
    let map = |pairs: &[(&str, String)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    };
    Some(EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(service.namespace),
            labels: Some(map(&labels)),
            annotations: Some(map(&notes)),
            ..ObjectMeta::default()
        },
        ..collected
    })
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let mirrors = &self.plane.mirrors;
        let work = mirrors.works.find(key);
        let name = work.as_deref().and_then(|work| manifest(work, SLICE)).map(|slice| {
            Key::new(slice.namespace(), names::imported_endpoint_slice(cluster_of(key), slice.name()))
        });
        let imported = match name {
            Some(name) => mirrors.imported_slices.find(&name).into_iter().collect(),
            // The Work is gone, and with it the name of its slice. That is rare: its finalizer holds it until then.
            None => mirrors.imported_slices.all(),
        };
        let imported = imported.into_iter().filter(|slice| work_of(slice).as_ref() == Some(key)).collect();
        let cluster = mirrors.clusters.get("", cluster_of(key));
        let service = work.as_deref().and_then(|work| service_of(work, Token::ServiceExport));
        let elsewhere =
            service.is_some_and(|service| is_exported_elsewhere(&self.plane, &service, cluster_of(key)));
        Ok(Some(View { key: key.clone(), work, cluster, elsewhere, imported }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, _: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.imported_slices);
        for slice in &plan.delete {
            writer.delete(slice.as_ref()).await?;
        }
        if let Some(slice) = &plan.create {
            writer.create(mirror, slice.as_ref()).await?;
        }
        if let Some((old, new)) = &plan.update {
            writer.update_mirrored(mirror, old.as_ref(), new, Guard::Fields).await?;
        }
        if let Some(work) = view.work.filter(|_| plan.release) {
            let works = &self.plane.mirrors.works;
            writer.release(works, work.as_ref(), Token::ServiceExport.finalizer()).await?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::works::{Ensure, collected};
    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read};
    use crate::plane::works::identify;

    fn work(otherwise: Value) -> Arc<Work> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" } },
            "endpoints": [{ "addresses": ["10.0.0.1"] }], "ports": [{ "name": "http", "port": 80 }],
        });
        let wanted =
            collected("m1", &slice, &Key::new("shop", "web"), &BTreeSet::from([Token::ServiceExport]));
        let Ensure::Create(mut work) = wanted.unwrap().ensure(None) else { panic!("it is made") };
        identify(&mut work, "id");
        Arc::new(read(merged(serde_json::to_value(work).unwrap(), otherwise)))
    }

    fn slice() -> EndpointSlice {
        desired(&Key::of(work(json!({})).as_ref()), &work(json!({}))).expect("a slice")
    }

    fn words(plan: &Plan) -> Vec<&'static str> {
        let mut words = Vec::new();
        words.extend(plan.create.as_ref().map(|_| "create"));
        words.extend(plan.update.as_ref().map(|_| "update"));
        words.extend(plan.delete.iter().map(|_| "delete"));
        words.extend(plan.release.then_some("release"));
        words
    }

    #[test]
    fn what_the_control_plane_has_of_a_collected_slice() {
        let moved = json!({ "spec": { "workload": { "manifests": [{
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "shop" }, "endpoints": [{ "addresses": ["10.0.0.2"] }],
            "ports": [{ "name": "http", "port": 80 }] }] } } });
        let other_family = json!({ "spec": { "workload": { "manifests": [{
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
            "metadata": { "name": "web-1", "namespace": "shop" }, "endpoints": [{ "addresses": ["fd00::1"] }],
            "ports": [{ "name": "http", "port": 80 }] }] } } });
        let unexported = json!({ "metadata": { "labels": {
            "endpointslice.karmada.io/name": null, "endpointslice.karmada.io/namespace": null } } });
        let cases = [
            ("it comes", Some(work(json!({}))), "True", false, vec!["create"]),
            ("it is there", Some(work(json!({}))), "True", true, vec![]),
            ("its endpoints changed", Some(work(moved)), "True", true, vec!["update"]),
            ("it has other addresses", Some(work(other_family)), "True", true, vec!["create", "delete"]),
            ("its cluster is lost", Some(work(json!({}))), "False", true, vec!["delete"]),
            ("its cluster is silent", Some(work(json!({}))), "Unknown", true, vec!["delete"]),
            ("its cluster is still away", Some(work(json!({}))), "False", false, vec![]),
            ("it goes", Some(work(deleting())), "True", true, vec!["delete", "release"]),
            ("no export wants it any more", Some(work(unexported)), "True", true, vec!["delete", "release"]),
            ("it is gone", None, "True", true, vec!["delete"]),
        ];
        for (name, found, ready, there, expected) in cases {
            let imported = if there { vec![Arc::new(slice())] } else { Vec::new() };
            let key = Key::of(work(json!({})).as_ref());
            let cluster = Some(Arc::new(cluster("m1", ready, json!({}))));
            let view = View { key, work: found, cluster, elsewhere: false, imported };
            assert_eq!(words(&decide(&view)), expected, "{name}");
        }
    }

    #[test]
    fn a_cluster_from_which_the_service_is_not_exported_has_no_slice() {
        for (name, imported, expected) in [
            ("its slice was imported", vec![Arc::new(slice())], vec!["delete"]),
            ("its slice was never imported", vec![], vec![]),
        ] {
            let work = work(json!({}));
            let key = Key::of(work.as_ref());
            let cluster = Some(Arc::new(cluster("m1", "True", json!({}))));
            let view = View { key, work: Some(work), cluster, elsewhere: true, imported };
            assert_eq!(words(&decide(&view)), expected, "{name}");
        }
    }

    #[test]
    fn what_is_left_of_a_slice_goes_and_what_others_changed_is_put_right() {
        let key = || Key::of(work(json!({})).as_ref());
        let ready = || Some(Arc::new(cluster("m1", "True", json!({}))));
        let with = |otherwise: Value| Arc::new(read::<EndpointSlice>(merged(json!(slice()), otherwise)));
        let renamed = || with(json!({ "metadata": { "name": "imported-m1-old" } }));
        let unheld =
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": null } });
        let elsewhere = json!({ "spec": { "workload": { "manifests": [{
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "kube-system" }, "endpoints": [] }] } } });
        let cases = [
            ("its cluster is gone", Some(work(json!({}))), None, vec![with(json!({}))], vec!["delete"]),
            (
                "one of an earlier name",
                Some(work(json!({}))),
                ready(),
                vec![renamed(), with(json!({}))],
                vec!["delete"],
            ),
            (
                "only one of an earlier name",
                Some(work(json!({}))),
                ready(),
                vec![renamed()],
                vec!["create", "delete"],
            ),
            (
                "it goes, and others hold it",
                Some(work(unheld)),
                ready(),
                vec![with(json!({}))],
                vec!["delete"],
            ),
            (
                "it is of another namespace",
                Some(work(elsewhere)),
                ready(),
                vec![with(json!({}))],
                vec!["delete"],
            ),
            (
                "somebody took its label off",
                Some(work(json!({}))),
                ready(),
                vec![with(json!({ "metadata": { "labels": { SERVICE_NAME: null } } }))],
                vec!["update"],
            ),
            (
                "somebody added a label",
                Some(work(json!({}))),
                ready(),
                vec![with(json!({ "metadata": { "labels": { "x": "y" } } }))],
                vec![],
            ),
            (
                "somebody changed its ports",
                Some(work(json!({}))),
                ready(),
                vec![with(json!({ "ports": [{ "port": 1 }] }))],
                vec!["update"],
            ),
        ];
        for (name, work, cluster, imported, expected) in cases {
            assert_eq!(
                words(&decide(&View { key: key(), work, cluster, elsewhere: false, imported })),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn an_imported_slice_is_named_after_its_cluster_and_belongs_to_the_derived_service() {
        let EndpointSlice { metadata, .. } = slice();
        assert_eq!(metadata.name.as_deref(), Some("imported-m1-web-1"));
        assert_eq!(metadata.namespace.as_deref(), Some("shop"));
        let labels = metadata.labels.expect("labels");
        assert_eq!(labels[SERVICE_NAME], "derived-web");
        assert_eq!(labels[ENDPOINT_SLICE_MANAGED_BY], "endpointslice-controller.karmada.io");
        assert_eq!(labels[WORK_PERMANENT_ID], "id");
        assert_eq!(work_of(&slice()), Some(Key::of(work(json!({})).as_ref())));
        let notes = metadata.annotations.expect("annotations");
        assert_eq!(notes["work.karmada.io/namespace"], "karmada-es-m1");
        let unmarked = |key: &str| {
            work_of(&read(merged(json!(slice()), json!({ "metadata": { "annotations": { key: null } } }))))
        };
        assert_eq!([unmarked(WORK_NAMESPACE), unmarked(WORK_NAME)], [None, None]);
    }
}
