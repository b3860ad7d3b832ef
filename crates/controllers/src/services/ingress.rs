//! Lets traffic from outside enter in some clusters and reach back ends in all: a MultiClusterIngress gets an
//! Ingress in its entry clusters.
//!
//! Watches: MultiClusterIngresses, their Ingresses, ServiceImports, collected Works, the bindings of Ingresses and Services, Clusters.
//! Writes:  an Ingress template of the same name, owned by the MultiClusterIngress; its ResourceBinding, if an annotation names the
//!          entry clusters; the status of the MultiClusterIngress.
//!
//! `multiClusterIngress` in `--controllers`, off by default. Upstream has only the kind. The Ingress is a
//! template like any other: the annotation `networking.karmada.io/entry-clusters` places it, or a policy that
//! selects it. An imported back end is replaced by its derived Service, which has endpoints in all clusters;
//! any other keeps its name, such as the Service of a MultiClusterService, and that of a headless import, which has no derived one.

#[cfg(test)]
mod on_server;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::annotations::{COPIED_ANNOTATIONS, COPIED_LABELS, ENTRY_CLUSTERS};
use api::labels::{
    BINDING_MANAGED_BY, RESOURCE_BINDING_PERMANENT_ID, RESOURCE_TEMPLATE_CLAIMED_BY, finalizers,
};
use api::multicluster::{ServiceImport, ServiceImportType};
use api::names;
use api::networking::{
    IngressLoadBalancerStatus, MultiClusterIngress, MultiClusterIngressStatus, ServiceLocation,
};
use api::policy::{ClusterAffinity, Placement};
use api::work::{ResourceBinding, ResourceBindingSpec};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Resource;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use propagation::{Object, Reference as _};
use runtime::{Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use super::MOST_WARNINGS;
use super::index::{Role, cluster_of, roles};
use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "multicluster-ingress-controller";
const WORKERS: usize = 2;
/// The label value on objects that belong to a MultiClusterIngress.
const HOLDER: &str = "MultiClusterIngress";
/// The reasons of events. Upstream has none for the kind.
const SYNCED: &str = "SyncIngressSucceed";
const NOT_SYNCED: &str = "SyncIngressFailed";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

struct Controller {
    plane: Arc<Plane>,
    /// The warnings that were told last, so that they are not told again and again.
    told: Mutex<HashMap<Key, Vec<String>>>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    plane.tell_panics(&queue, COMPONENT, &plane.mirrors.multi_cluster_ingresses);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    let pushed = queue.clone();
    plane.mirrors.multi_cluster_ingresses.subscribe(move |change| pushed.push(change.key.clone()));
    let pushed = queue.clone();
    plane.templates.subscribe(move |change| {
        if let Some(ingress) = change.new.as_ref().or(change.old.as_ref())
            && ingress.kind() == "Ingress"
            && ingress.api_version() == "networking.k8s.io/v1"
        {
            pushed.push(Key::new(ingress.namespace(), ingress.name()));
        }
    });
    // A change of a back end, or of its import, may concern all ingresses of its namespace. There are few of
    // them.
    let push_all = Arc::new({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |namespace: &str| {
            for key in plane.mirrors.multi_cluster_ingresses.keys(|key| key.namespace == namespace) {
                pushed.push(key);
            }
        }
    });
    let push = push_all.clone();
    plane.mirrors.service_imports.subscribe(move |change| {
        let kind = |import: &Option<Arc<ServiceImport>>| import.as_deref().map(has_derived);
        if kind(&change.old) != kind(&change.new) {
            push(&change.key.namespace);
        }
    });
    let push = push_all.clone();
    plane.mirrors.works.subscribe(move |change| {
        if change.old.is_none() || change.new.is_none() {
            let version = change.new.as_deref().or(change.old.as_deref());
            for (service, role) in version.into_iter().flat_map(roles) {
                if role == Role::Collected {
                    push(&service.namespace);
                }
            }
        }
    });
    let pushed = queue.clone();
    plane.mirrors.bindings.subscribe(move |change| {
        let reach = |binding: &Option<Arc<ResourceBinding>>| binding.as_deref().map(clusters_of);
        if change.key.name.ends_with("-service") && reach(&change.old) != reach(&change.new) {
            push_all(&change.key.namespace);
        }
        let placement = |binding: &Option<Arc<ResourceBinding>>| {
            binding.as_deref().map(|binding| (binding.spec.placement.clone(), clusters_of(binding)))
        };
        // Other controllers of this process write bindings as well: a policy may have been faster, or slower.
        if let Some(ingress) = change.key.name.strip_suffix("-ingress")
            && placement(&change.old) != placement(&change.new)
        {
            pushed.push(Key::new(change.key.namespace.clone(), ingress));
        }
    });
    plane.mirrors.clusters.subscribe({
        let (plane, pushed) = (plane.clone(), queue.clone());
        move |change| {
            let look = |cluster: &Option<Arc<Cluster>>| cluster.as_deref().map(has_endpoints);
            if look(&change.old) != look(&change.new) {
                for key in plane.mirrors.multi_cluster_ingresses.keys(|_| true) {
                    pushed.push(key);
                }
            }
        }
    });
    (Arc::new(Controller { plane: plane.clone(), told: Mutex::default() }), queue)
}

/// What is known of a MultiClusterIngress.
pub(crate) struct View {
    multi: Option<Arc<MultiClusterIngress>>,
    ingress: Option<Ingress>,
    binding: Option<Arc<ResourceBinding>>,
    /// Which of its back ends are imported and have a derived Service.
    imported: BTreeSet<String>,
    /// In which clusters each of its back ends has endpoints.
    locations: BTreeMap<String, Vec<String>>,
    /// To which clusters each of its back ends is propagated: the derived Service of one that is imported.
    propagated: BTreeMap<String, BTreeSet<String>>,
    /// The names of all clusters.
    clusters: BTreeSet<String>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    status: Option<Box<MultiClusterIngressStatus>>,
    /// Why requests would not reach a back end.
    warnings: Vec<String>,
    /// Why it cannot be applied.
    problem: Option<String>,
}

#[derive(Debug, PartialEq)]
enum Step {
    CreateIngress(Box<Ingress>),
    UpdateIngress(Box<Ingress>),
    DeleteIngress,
    CreateBinding(Box<ResourceBinding>),
    UpdateBinding(Box<ResourceBinding>),
    DeleteBinding,
}

fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let Some(multi) = &view.multi else {
        if view.ingress.as_ref().is_some_and(is_ours) {
            plan.steps.push(Step::DeleteIngress);
        }
        return plan;
    };
    if multi.metadata.deletion_timestamp.is_some() {
        // The Ingress is owned by it and deleted with it.
        return plan;
    }
    let entries = entry_clusters(multi);
    let wanted = match desired(multi, &view.imported, entries.is_some()) {
        Ok(wanted) => wanted,
        Err(error) => {
            plan.problem = Some(error.to_string());
            return plan;
        }
    };
    let Some(existing) = &view.ingress else {
        // Its binding needs its uid, so it is written when the Ingress exists.
        plan.steps.push(Step::CreateIngress(Box::new(wanted)));
        return plan;
    };
    if !is_ours(existing) {
        let name = multi.metadata.name.as_deref().unwrap_or("");
        plan.problem = Some(format!("ingress {name} exists and does not belong to this MultiClusterIngress"));
        return plan;
    }
    if existing.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut updated = existing.clone();
    updated.spec = wanted.spec;
    updated.metadata.owner_references = wanted.metadata.owner_references;
    let mut set_before: BTreeSet<&str> = copied(existing, COPIED_LABELS).collect();
    if entries.is_none() {
        set_before.insert(RESOURCE_TEMPLATE_CLAIMED_BY);
    }
    set(&mut updated.metadata.labels, wanted.metadata.labels, &set_before);
    let mut set_before: BTreeSet<&str> = copied(existing, COPIED_ANNOTATIONS).collect();
    set_before.extend([COPIED_ANNOTATIONS, COPIED_LABELS]);
    set(&mut updated.metadata.annotations, wanted.metadata.annotations, &set_before);
    let maps = |ingress: &Ingress| {
        let meta = &ingress.metadata;
        (meta.labels.clone().unwrap_or_default(), meta.annotations.clone().unwrap_or_default())
    };
    let same = updated.spec == existing.spec
        && updated.metadata.owner_references == existing.metadata.owner_references
        && maps(&updated) == maps(existing);
    if !same {
        plan.steps.push(Step::UpdateIngress(Box::new(updated)));
    }
    plan.warnings = dangling(view, entries.as_deref());
    bind(view, existing, entries, &mut plan);
    let status = status(view, multi, existing);
    if status != multi.status {
        plan.status = Some(Box::new(status));
    }
    plan
}

/// Places the Ingress in its entry clusters. Without an annotation policies do that; with one that names no
/// cluster, the Ingress is in no cluster.
fn bind(view: &View, ingress: &Ingress, entries: Option<Vec<String>>, plan: &mut Plan) {
    let ours = |binding: &ResourceBinding| {
        let labels = binding.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(BINDING_MANAGED_BY)).map(String::as_str) == Some(HOLDER)
    };
    // Without names, an affinity would select all clusters.
    let Some(clusters) = entries.filter(|clusters| !clusters.is_empty()) else {
        let left = |binding: &ResourceBinding| ours(binding) && binding.metadata.deletion_timestamp.is_none();
        if view.binding.as_deref().is_some_and(left) {
            plan.steps.push(Step::DeleteBinding);
        }
        return;
    };
    let affinity = ClusterAffinity { cluster_names: clusters, ..ClusterAffinity::default() };
    let placement = Some(Placement { cluster_affinity: Some(affinity), ..Placement::default() });
    let template = json!(ingress);
    match view.binding.as_deref() {
        None => plan.steps.push(Step::CreateBinding(Box::new(ResourceBinding {
            metadata: ObjectMeta {
                name: Some(names::binding("Ingress", template.name())),
                namespace: ingress.metadata.namespace.clone(),
                owner_references: Some(vec![template.controller_reference()]),
                finalizers: Some(vec![finalizers::BINDING.to_owned()]),
                labels: Some([(BINDING_MANAGED_BY.to_owned(), HOLDER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: ResourceBindingSpec {
                resource: template.reference(),
                placement,
                // The Secrets of its certificates are propagated with it.
                propagate_deps: true,
                ..ResourceBindingSpec::default()
            },
            ..ResourceBinding::default()
        }))),
        // That of an earlier Ingress has to go first. One that nobody owns does not go: it was left when its Ingress was deleted.
        Some(existing) if is_of_earlier(existing, template.uid()) => {
            plan.problem =
                Some("the binding of an earlier ingress of this name is still being deleted".to_owned());
        }
        Some(existing) => {
            let mut updated = existing.clone();
            let owners = updated.metadata.owner_references.get_or_insert_default();
            if owners.is_empty() {
                owners.push(template.controller_reference());
            }
            updated
                .metadata
                .labels
                .get_or_insert_default()
                .insert(BINDING_MANAGED_BY.to_owned(), HOLDER.to_owned());
            updated.spec.placement = placement;
            updated.spec.propagate_deps = true;
            // A new version of the template makes the binding controller render it. Our own change of the
            // Ingress has no version yet: its event enqueues this key again.
            updated.spec.resource = template.reference();
            if updated != *existing {
                plan.steps.push(Step::UpdateBinding(Box::new(updated)));
            }
        }
    }
}

/// Returns whether a binding goes, with the Ingress that had the name before.
fn is_of_earlier(binding: &ResourceBinding, uid: &str) -> bool {
    let mut owners = binding.metadata.owner_references.iter().flatten();
    let is_owned = binding.spec.resource.uid != uid && owners.any(|owner| owner.uid != uid);
    binding.metadata.deletion_timestamp.is_some() || is_owned
}

/// Returns what keeps requests from a back end: entry clusters that do not exist, or to which a back end is not propagated.
fn dangling(view: &View, entries: Option<&[String]>) -> Vec<String> {
    let placed = || view.binding.as_deref().map(clusters_of).unwrap_or_default();
    // Without an annotation, the policy that places the Ingress chooses the entries.
    let entries: BTreeSet<String> = entries.map_or_else(placed, |entries| entries.iter().cloned().collect());
    let list =
        |clusters: &[&String]| clusters.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let (known, unknown): (Vec<&String>, Vec<&String>) =
        entries.iter().partition(|entry| view.clusters.contains(*entry));
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        let unknown = list(&unknown);
        warnings.push(format!("no cluster is named {unknown}; correct the annotation {ENTRY_CLUSTERS}"));
    }
    for (name, reached) in &view.propagated {
        let lacking: Vec<&String> = known.iter().copied().filter(|entry| !reached.contains(*entry)).collect();
        if lacking.is_empty() {
            continue;
        }
        let lacking = list(&lacking);
        warnings.push(if view.imported.contains(name) {
            let derived = names::derived_service(name);
            format!("Service {derived} is not propagated to {lacking}; propagate ServiceImport {name} there")
        } else {
            format!(
                "Service {name} is not propagated to {lacking}; propagate it there by a policy or a \
                 MultiClusterService, or import it with type ClusterSetIP"
            )
        });
    }
    warnings.truncate(MOST_WARNINGS);
    warnings
}

/// Returns the clusters to which a binding propagates its object, as itself or with what depends on it.
fn clusters_of(binding: &ResourceBinding) -> BTreeSet<String> {
    let spec = &binding.spec;
    let required = spec.required_by.iter().flat_map(|snapshot| &snapshot.clusters);
    spec.clusters.iter().chain(required).map(|target| target.name.clone()).collect()
}

/// Returns whether an import has a Service `derived-<name>`.
fn has_derived(import: &ServiceImport) -> bool {
    import.spec.type_ == ServiceImportType::ClusterSetIP
}

/// Returns whether the endpoints of a cluster are in use. Those of one that is lost, or leaves, are in no other cluster.
fn has_endpoints(cluster: &Cluster) -> bool {
    cluster.status.is_ready() && cluster.metadata.deletion_timestamp.is_none()
}

/// Returns the clusters among those with endpoints from which slices of a Service were collected.
fn located(works: &[(Key, Role)], ready: &BTreeSet<String>) -> Vec<String> {
    let collected = works.iter().filter(|(_, role)| *role == Role::Collected);
    let clusters: BTreeSet<&str> = collected.map(|(work, _)| cluster_of(work)).collect();
    clusters.into_iter().filter(|cluster| ready.contains(*cluster)).map(str::to_owned).collect()
}

/// Returns the clusters that the annotation names; nothing if there is no annotation.
fn entry_clusters(multi: &MultiClusterIngress) -> Option<Vec<String>> {
    let named = multi.metadata.annotations.as_ref()?.get(ENTRY_CLUSTERS)?;
    let names: BTreeSet<&str> = named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    Some(names.into_iter().map(str::to_owned).collect())
}

/// Returns the keys that an Ingress has from its MultiClusterIngress, by the annotation that lists them.
fn copied<'a>(ingress: &'a Ingress, list: &str) -> impl Iterator<Item = &'a str> {
    let listed = ingress.metadata.annotations.as_ref().and_then(|annotations| annotations.get(list));
    listed.map_or("", String::as_str).split(',')
}

/// Sets what is wanted, and drops what was set before and is not wanted any more. The keys of others stay.
fn set(
    map: &mut Option<BTreeMap<String, String>>,
    wanted: Option<BTreeMap<String, String>>,
    set_before: &BTreeSet<&str>,
) {
    let (map, wanted) = (map.get_or_insert_default(), wanted.unwrap_or_default());
    map.retain(|key, _| !set_before.contains(key.as_str()));
    map.extend(wanted);
}

fn is_ours(ingress: &Ingress) -> bool {
    ingress.metadata.owner_references.iter().flatten().any(|owner| owner.kind == HOLDER)
}

fn desired(
    multi: &MultiClusterIngress,
    imported: &BTreeSet<String>,
    claimed: bool,
) -> serde_json::Result<Ingress> {
    let mut spec = serde_json::to_value(&multi.spec)?;
    each_backend(&mut spec, &mut |service| {
        if let Some(name) = service["name"].as_str().filter(|name| imported.contains(*name)) {
            service["name"] = names::derived_service(name).into();
        }
    });
    let mut labels = multi.metadata.labels.clone().unwrap_or_default();
    labels.retain(|key, _| !key.contains("karmada.io/"));
    let list = |keys: &BTreeMap<String, String>| {
        let keys: Vec<&str> = keys.keys().map(String::as_str).collect();
        (!keys.is_empty()).then(|| keys.join(","))
    };
    let copied_labels = list(&labels);
    if claimed {
        labels.insert(RESOURCE_TEMPLATE_CLAIMED_BY.to_owned(), HOLDER.to_owned());
    }
    // Ingress controllers read annotations.
    let mut annotations = multi.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| {
        ![ENTRY_CLUSTERS, LAST_APPLIED, COPIED_ANNOTATIONS, COPIED_LABELS].contains(&key.as_str())
    });
    for (key, list) in [(COPIED_ANNOTATIONS, list(&annotations)), (COPIED_LABELS, copied_labels)] {
        annotations.extend(list.map(|list| (key.to_owned(), list)));
    }
    Ok(Ingress {
        metadata: ObjectMeta {
            name: multi.metadata.name.clone(),
            namespace: multi.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: multi.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(serde_json::from_value(spec)?),
        ..Ingress::default()
    })
}

/// Calls `seen` with every Service that a spec names as a back end.
fn each_backend(spec: &mut Value, seen: &mut impl FnMut(&mut Value)) {
    let mut look = |backend: &mut Value| {
        if backend["service"].is_object() {
            seen(&mut backend["service"]);
        }
    };
    if spec["defaultBackend"].is_object() {
        look(&mut spec["defaultBackend"]);
    }
    for rule in spec["rules"].as_array_mut().into_iter().flatten() {
        for path in rule["http"]["paths"].as_array_mut().into_iter().flatten() {
            look(&mut path["backend"]);
        }
    }
}

/// Returns the names of the Services that are its back ends.
fn backends(multi: &MultiClusterIngress) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut spec = serde_json::to_value(&multi.spec).unwrap_or_default();
    each_backend(&mut spec, &mut |service| names.extend(service["name"].as_str().map(str::to_owned)));
    names
}

/// The addresses are those of the Ingress template, which aggregates the members' addresses.
fn status(view: &View, multi: &MultiClusterIngress, ingress: &Ingress) -> MultiClusterIngressStatus {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let balancer = balancer.and_then(|balancer| serde_json::from_value(json!(balancer)).ok());
    let mut balancer: IngressLoadBalancerStatus = balancer.unwrap_or_default();
    for address in &mut balancer.ingress {
        // Karmada's schema demands an error of each port, which none has when all is well. It would refuse the whole status.
        address.ports.retain(|port| port.error.as_deref().is_some_and(|error| !error.is_empty()));
    }
    let location = |(name, clusters): (&String, &Vec<String>)| ServiceLocation {
        name: name.clone(),
        clusters: clusters.clone(),
    };
    MultiClusterIngressStatus {
        load_balancer: balancer,
        service_locations: view
            .locations
            .iter()
            .filter(|(_, clusters)| !clusters.is_empty())
            .map(location)
            .collect(),
        ..multi.status.clone()
    }
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let mirrors = &self.plane.mirrors;
        let multi = mirrors.multi_cluster_ingresses.find(key);
        let ingress = self.plane.writer.api::<Ingress>(&key.namespace).get_opt(&key.name).await?;
        let names = multi.as_deref().map(backends).unwrap_or_default();
        let (mut clusters, mut ready) = (BTreeSet::new(), BTreeSet::new());
        for cluster in mirrors.clusters.all() {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            if has_endpoints(&cluster) {
                ready.insert(name.clone());
            }
            clusters.insert(name);
        }
        let mut view = View {
            multi,
            ingress,
            binding: mirrors.bindings.get(&key.namespace, &names::binding("Ingress", &key.name)),
            imported: BTreeSet::new(),
            locations: BTreeMap::new(),
            propagated: BTreeMap::new(),
            clusters,
        };
        for name in names {
            let service = Key::new(key.namespace.clone(), name.clone());
            let mut brought = name.clone();
            if mirrors.service_imports.find(&service).is_some_and(|import| has_derived(&import)) {
                brought = names::derived_service(&name);
                view.imported.insert(name.clone());
            }
            let binding = mirrors.bindings.get(&key.namespace, &names::binding("Service", &brought));
            let reached = binding.as_deref().map(clusters_of).unwrap_or_default();
            view.propagated.insert(name.clone(), reached);
            view.locations.insert(name, located(&self.plane.services.works(&service), &ready));
        }
        Ok(Some(view))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let wrote = !plan.steps.is_empty();
        let mut result = plan.problem.map_or(Ok(()), |problem| Err(Error::Several(vec![problem])));
        for step in plan.steps {
            if let Err(error) = self.carry_out(key, &view, step).await {
                result = Err(error);
                break;
            }
        }
        let news = self.news(key, plan.warnings);
        let Some(multi) = &view.multi else { return result.map(|()| Outcome::Done) };
        for warning in news {
            let about = runtime::events::about(multi.as_ref());
            self.plane.events.warning(COMPONENT, &about, NOT_SYNCED, warning);
        }
        if let Some(status) = plan.status {
            let mirror = &self.plane.mirrors.multi_cluster_ingresses;
            let mut told = MultiClusterIngress::clone(multi);
            told.status = *status;
            // The difference names what goes as well: the status alone does not mention an address that is gone.
            match self.plane.writer.update_status(multi.as_ref(), &told, Guard::Fields).await {
                Ok(Some(answer)) => mirror.note(answer),
                Ok(None) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        match &result {
            Ok(()) if wrote => {
                let message = "Ingress is brought to its entry clusters.";
                self.plane.events.normal(COMPONENT, &runtime::events::about(multi.as_ref()), SYNCED, message);
            }
            Err(error) if !error.is_conflict() => {
                let about = runtime::events::about(multi.as_ref());
                self.plane.events.warning(COMPONENT, &about, NOT_SYNCED, error.to_string());
            }
            _ => {}
        }
        result.map(|()| Outcome::Done)
    }
}

impl Controller {
    /// Returns the warnings, unless the same ones were told last.
    fn news(&self, key: &Key, warnings: Vec<String>) -> Vec<String> {
        let mut told = self.told.lock();
        let known = match warnings.is_empty() {
            true => told.remove(key),
            false => told.insert(key.clone(), warnings.clone()),
        };
        if known.as_ref() == Some(&warnings) { Vec::new() } else { warnings }
    }

    async fn carry_out(&self, key: &Key, view: &View, step: Step) -> Result<(), Error> {
        let (writer, mirror) = (self.plane.writer.derived(), &self.plane.mirrors.bindings);
        let ingresses = writer.api::<Ingress>(&key.namespace);
        match (step, &view.ingress, &view.binding) {
            (Step::CreateIngress(ingress), ..) => {
                ingresses.create(&kube::api::PostParams::default(), &ingress).await?;
                Ok(())
            }
            (Step::UpdateIngress(new), Some(old), _) => {
                writer.update(old, &new, Guard::Fields).await.map(drop)
            }
            (Step::DeleteIngress, Some(old), _) => writer.delete(old).await,
            (Step::CreateBinding(mut binding), ..) => {
                let id = uuid::Uuid::new_v4().to_string();
                binding
                    .metadata
                    .labels
                    .get_or_insert_default()
                    .insert(RESOURCE_BINDING_PERMANENT_ID.to_owned(), id);
                writer.create(mirror, binding.as_ref()).await
            }
            (Step::UpdateBinding(new), _, Some(old)) => {
                writer.update_mirrored(mirror, old.as_ref(), &new, Guard::Fields).await.map(drop)
            }
            (Step::DeleteBinding, _, Some(old)) => writer.delete(old.as_ref()).await,
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read};

    fn multi(otherwise: Value) -> Option<Arc<MultiClusterIngress>> {
        let base = json!({
            "metadata": { "name": "shop", "namespace": "d", "uid": "m", "annotations": { ENTRY_CLUSTERS: "m2, m1" } },
            "spec": { "rules": [{ "host": "shop.example.com", "http": { "paths": [
                { "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } } },
                { "path": "/api", "pathType": "Prefix", "backend": { "service": { "name": "api", "port": { "number": 80 } } } },
            ] } }] },
        });
        Some(Arc::new(read(merged(base, otherwise))))
    }

    fn view(multi: Option<Arc<MultiClusterIngress>>, ingress: Option<Ingress>) -> View {
        let locations =
            BTreeMap::from([("web".to_owned(), vec!["m3".to_owned()]), ("api".to_owned(), Vec::new())]);
        let entries = || -> BTreeSet<String> { ["m1", "m2"].map(str::to_owned).into() };
        let propagated = [("web".to_owned(), entries()), ("api".to_owned(), entries())].into();
        let (imported, clusters) = (["web".to_owned()].into(), entries());
        View { multi, ingress, binding: None, imported, locations, propagated, clusters }
    }

    fn made(otherwise: Value) -> Option<Ingress> {
        let made = desired(&multi(json!({})).unwrap(), &["web".to_owned()].into(), true).unwrap();
        Some(read(merged(merged(json!(made), json!({ "metadata": { "uid": "i" } })), otherwise)))
    }

    fn words(plan: &Plan) -> Vec<String> {
        let step = |step: &Step| match step {
            Step::CreateIngress(_) => "create it".to_owned(),
            Step::UpdateIngress(_) => "update it".to_owned(),
            Step::DeleteIngress => "delete it".to_owned(),
            Step::CreateBinding(binding) | Step::UpdateBinding(binding) => {
                let placement = binding.spec.placement.clone().unwrap_or_default();
                format!("bind {}", placement.cluster_affinity.unwrap_or_default().cluster_names.join("+"))
            }
            Step::DeleteBinding => "unbind".to_owned(),
        };
        plan.steps.iter().map(step).chain(plan.problem.clone()).collect()
    }

    #[test]
    fn what_becomes_of_a_multi_cluster_ingress() {
        let foreign = json!({ "metadata": { "ownerReferences": null } });
        let other = json!({ "spec": { "rules": null } });
        let cases = [
            ("it is new", multi(json!({})), None, vec!["create it"]),
            ("its Ingress is there", multi(json!({})), made(json!({})), vec!["bind m1+m2"]),
            ("the Ingress was changed", multi(json!({})), made(other), vec!["update it", "bind m1+m2"]),
            (
                "the name is taken",
                multi(json!({})),
                made(foreign.clone()),
                vec!["ingress shop exists and does not belong to this MultiClusterIngress"],
            ),
            ("it goes", multi(deleting()), made(json!({})), vec![]),
            ("it is gone", None, made(json!({})), vec!["delete it"]),
            ("it is gone, and the Ingress is somebody's", None, made(foreign), vec![]),
            ("its Ingress goes", multi(json!({})), made(deleting()), vec![]),
            (
                "its Ingress is of an earlier one of its name",
                multi(json!({ "metadata": { "uid": "m2" } })),
                made(json!({})),
                vec!["update it", "bind m1+m2"],
            ),
            (
                "somebody changed a label that it has set",
                multi(json!({ "metadata": { "labels": { "team": "a" } } })),
                made(json!({ "metadata": {
                    "labels": { "team": "b" }, "annotations": { COPIED_LABELS: "team" },
                } })),
                vec!["update it", "bind m1+m2"],
            ),
            (
                "somebody added a label",
                multi(json!({})),
                made(json!({ "metadata": { "labels": { "x": "y" } } })),
                vec!["bind m1+m2"],
            ),
            (
                "a policy places it",
                multi(json!({ "metadata": { "annotations": null } })),
                made(json!({})),
                vec!["update it"],
            ),
        ];
        for (name, multi, ingress, expected) in cases {
            assert_eq!(words(&decide(&view(multi, ingress))), expected, "{name}");
        }
    }

    #[test]
    fn a_bound_ingress_is_left_alone_until_its_entries_change() {
        let mut bound = view(multi(json!({})), made(json!({})));
        let Some(Step::CreateBinding(binding)) = decide(&bound).steps.pop() else { panic!("it is bound") };
        bound.binding = Some(Arc::from(binding));
        assert_eq!(words(&decide(&bound)), Vec::<String>::new());
        bound.multi = multi(json!({ "metadata": { "annotations": { ENTRY_CLUSTERS: "m1" } } }));
        assert_eq!(words(&decide(&bound)), ["bind m1"]);
        bound.multi = multi(json!({ "metadata": { "annotations": { ENTRY_CLUSTERS: "," } } }));
        assert_eq!(words(&decide(&bound)), ["unbind"], "without a name it is nowhere, not everywhere");
        bound.multi = multi(json!({ "metadata": { "annotations": null } }));
        assert_eq!(words(&decide(&bound)), ["update it", "unbind"]);
        let going = merged(json!(bound.binding.as_deref()), deleting());
        bound.binding = Some(Arc::new(read(going)));
        assert_eq!(words(&decide(&bound)), ["update it"], "it goes already");
    }

    #[test]
    fn a_binding_brings_its_ingress_to_the_entries() {
        let view = view(multi(json!({})), made(json!({})));
        let Some(Step::CreateBinding(binding)) = decide(&view).steps.pop() else { panic!("it is bound") };
        let ObjectMeta { name, namespace, finalizers, labels, owner_references, .. } = binding.metadata;
        assert_eq!((name.as_deref(), namespace.as_deref()), (Some("shop-ingress"), Some("d")));
        assert_eq!(finalizers, Some(vec!["karmada.io/binding-controller".to_owned()]));
        assert_eq!(labels, Some([(BINDING_MANAGED_BY.to_owned(), HOLDER.to_owned())].into()));
        let owners: Vec<String> = owner_references
            .unwrap_or_default()
            .into_iter()
            .map(|owner| format!("{} {}", owner.kind, owner.uid))
            .collect();
        assert_eq!(owners, ["Ingress i"]);
        let of = binding.spec.resource;
        let named = [&of.api_version, &of.kind, &of.namespace, &of.name, &of.uid].map(String::as_str);
        assert_eq!(named, ["networking.k8s.io/v1", "Ingress", "d", "shop", "i"]);
        assert!(binding.spec.propagate_deps);
    }

    #[test]
    fn what_others_changed_in_the_binding_is_put_right() {
        let mut bound = view(multi(json!({})), made(json!({})));
        let Some(Step::CreateBinding(binding)) = decide(&bound).steps.pop() else { panic!("it is bound") };
        let elsewhere = json!({ "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } });
        for (what, change, expected) in [
            ("nothing", json!({}), &[][..]),
            ("another cluster", json!({ "spec": elsewhere }), &["bind m1+m2"]),
            ("without its Secrets", json!({ "spec": { "propagateDeps": false } }), &["bind m1+m2"]),
            ("without its holder", json!({ "metadata": { "labels": null } }), &["bind m1+m2"]),
            ("another label", json!({ "metadata": { "labels": { "x": "y" } } }), &[]),
        ] {
            bound.binding = Some(Arc::new(read(merged(json!(binding), change))));
            assert_eq!(words(&decide(&bound)), expected, "{what}");
        }
    }

    #[test]
    fn a_binding_of_a_policy_is_not_deleted() {
        let mut free = view(multi(json!({ "metadata": { "annotations": null } })), made(json!({})));
        free.binding = Some(Arc::new(crate::fixtures::binding(json!({}))));
        assert_eq!(words(&decide(&free)), ["update it"]);
        free.multi = multi(json!({ "metadata": { "annotations": { ENTRY_CLUSTERS: "," } } }));
        assert_eq!(words(&decide(&free)), Vec::<String>::new());
    }

    #[test]
    fn a_new_version_of_the_ingress_reaches_its_binding() {
        let version = |version: &str| json!({ "metadata": { "resourceVersion": version } });
        let mut bound = view(multi(json!({})), made(version("7")));
        let Some(Step::CreateBinding(binding)) = decide(&bound).steps.pop() else { panic!("it is bound") };
        bound.binding = Some(Arc::from(binding));
        let other = json!({ "spec": { "rules": [{ "host": "new.example.com" }] } });
        bound.multi = multi(other);
        let mut plan = decide(&bound);
        assert_eq!(words(&plan), ["update it"], "its new version is not known yet");
        let Some(Step::UpdateIngress(updated)) = plan.steps.pop() else { panic!("it is updated") };
        bound.ingress = Some(read(merged(json!(updated), version("8"))));
        let plan = decide(&bound);
        assert_eq!(words(&plan), ["bind m1+m2"]);
        let Some(Step::UpdateBinding(rebound)) = plan.steps.first() else { panic!("it is rebound") };
        assert_eq!(rebound.spec.resource.resource_version, "8");
    }

    #[test]
    fn labels_and_annotations_that_go_leave_the_ingress_as_well() {
        let mut view = view(None, made(json!({})));
        // Updates the Ingress and adds what others have put on it; returns its labels and annotations.
        let mut step = |marks: Value| {
            view.multi = multi(marks);
            let Some(Step::UpdateIngress(updated)) = decide(&view).steps.into_iter().next() else {
                panic!("it is updated")
            };
            let others =
                json!({ "metadata": { "labels": { "theirs": "1" }, "annotations": { "x/theirs": "1" } } });
            view.ingress = Some(read(merged(json!(updated), others)));
            let keys = |map: BTreeMap<String, String>| map.into_keys().collect::<Vec<_>>().join(" ");
            let meta = view.ingress.clone().unwrap_or_default().metadata;
            (keys(meta.labels.unwrap_or_default()), keys(meta.annotations.unwrap_or_default()))
        };
        let claim = RESOURCE_TEMPLATE_CLAIMED_BY;
        let both = json!({ "metadata": { "labels": { "team": "a", "tier": "b" }, "annotations": { "x/class": "c", "x/size": "1m" } } });
        let (labels, annotations) = step(both);
        assert_eq!(labels, format!("{claim} team theirs tier"));
        assert_eq!(annotations, format!("{COPIED_ANNOTATIONS} {COPIED_LABELS} x/class x/size x/theirs"));
        let one = json!({ "metadata": { "labels": { "team": "a" }, "annotations": { "x/size": "2m" } } });
        let (labels, annotations) = step(one);
        assert_eq!(labels, format!("{claim} team theirs"));
        assert_eq!(annotations, format!("{COPIED_ANNOTATIONS} {COPIED_LABELS} x/size x/theirs"));
        let (labels, annotations) = step(json!({}));
        assert_eq!((labels, annotations), (format!("{claim} theirs"), "x/theirs".to_owned()));
    }

    #[test]
    fn imported_back_ends_are_derived_services_and_others_keep_their_names() {
        let spec = json!(made(json!({})).unwrap().spec);
        let names = spec.pointer("/rules/0/http/paths").and_then(Value::as_array).expect("paths");
        let names: Vec<&Value> = names.iter().map(|path| &path["backend"]["service"]["name"]).collect();
        assert_eq!(names, ["derived-web", "api"]);
    }

    #[test]
    fn the_back_end_of_all_other_requests_counts_as_well() {
        let back_end = json!({ "service": { "name": "web", "port": { "number": 80 } } });
        let multi =
            multi(json!({ "spec": { "defaultBackend": back_end, "rules": null } })).expect("it is there");
        assert_eq!(backends(&multi), ["web".to_owned()].into());
        let made = json!(desired(&multi, &["web".to_owned()].into(), true).expect("an Ingress"));
        assert_eq!(made["spec"]["defaultBackend"]["service"]["name"], "derived-web");
    }

    #[test]
    fn marks_of_karmada_and_of_kubectl_stay_behind() {
        let marks = json!({ "metadata": {
            "labels": { "team": "a", "policy.karmada.io/id": "p" },
            "annotations": { LAST_APPLIED: "{}", COPIED_LABELS: "x", COPIED_ANNOTATIONS: "x", "x/size": "1m" },
        } });
        let made = desired(&multi(marks).expect("it is there"), &BTreeSet::new(), true).expect("an Ingress");
        let map = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, String>> {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        assert_eq!(made.metadata.labels, map(&[("team", "a"), (RESOURCE_TEMPLATE_CLAIMED_BY, HOLDER)]));
        let expected = map(&[("x/size", "1m"), (COPIED_ANNOTATIONS, "x/size"), (COPIED_LABELS, "team")]);
        assert_eq!(made.metadata.annotations, expected);
    }

    #[test]
    fn which_imports_have_a_derived_service() {
        let import = |kind: &str| -> ServiceImport {
            read(json!({ "metadata": { "name": "web" }, "spec": { "type": kind, "ports": [] } }))
        };
        assert!(has_derived(&import("ClusterSetIP")) && !has_derived(&import("Headless")));
    }

    #[test]
    fn addresses_and_locations_come_back() {
        let addresses = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } } });
        let plan = decide(&view(multi(json!({})), made(addresses)));
        let status = json!(plan.status.expect("there is news"));
        assert_eq!(status["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
        assert_eq!(status["serviceLocations"], json!([{ "name": "web", "clusters": ["m3"] }]));
    }

    #[test]
    fn ports_without_an_error_do_not_keep_an_address_away() {
        let ports = json!([{ "port": 80, "protocol": "TCP" }, { "port": 443, "protocol": "TCP", "error": "NoCertificate" }]);
        let addresses =
            json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1", "ports": ports }] } } });
        let plan = decide(&view(multi(json!({})), made(addresses)));
        let status = json!(plan.status.expect("there is news"));
        let expected = json!([{ "ip": "192.0.2.1", "ports": [{ "port": 443, "protocol": "TCP", "error": "NoCertificate" }] }]);
        assert_eq!(status["loadBalancer"]["ingress"], expected);
    }

    #[test]
    fn a_binding_that_its_earlier_ingress_left_behind_is_taken_over() {
        let mut again = view(multi(json!({})), made(json!({})));
        let Some(Step::CreateBinding(binding)) = decide(&again).steps.pop() else { panic!("it is bound") };
        let binding = json!(binding);
        again.ingress = made(json!({ "metadata": { "uid": "i2" } }));
        again.binding = Some(Arc::new(read(binding.clone())));
        let waits = "the binding of an earlier ingress of this name is still being deleted";
        assert_eq!(words(&decide(&again)), [waits]);
        again.binding = Some(Arc::new(read(merged(binding.clone(), deleting()))));
        assert_eq!(words(&decide(&again)), [waits]);
        let mut going = view(multi(json!({})), made(json!({})));
        going.binding = Some(Arc::new(read(merged(binding.clone(), deleting()))));
        assert_eq!(words(&decide(&going)), [waits], "it goes, though its Ingress stays");
        let mut owned = view(multi(json!({})), made(json!({})));
        let others = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "App", "name": "a", "uid": "a" }] } });
        owned.binding = Some(Arc::new(read(merged(binding.clone(), others))));
        assert_eq!(
            words(&decide(&owned)),
            Vec::<String>::new(),
            "it is of this one, and somebody else owns it, too"
        );
        let left = merged(binding, json!({ "metadata": { "ownerReferences": null } }));
        again.binding = Some(Arc::new(read(left)));
        let plan = decide(&again);
        assert_eq!(words(&plan), ["bind m1+m2"]);
        let Some(Step::UpdateBinding(taken)) = plan.steps.first() else { panic!("it is taken over") };
        assert_eq!(taken.spec.resource.uid, "i2");
        assert_eq!(taken.metadata.owner_references.clone().unwrap_or_default()[0].uid, "i2");
    }

    #[test]
    fn entries_that_do_not_lead_to_a_back_end_are_told_with_a_remedy() {
        let told = |change: &dyn Fn(&mut View)| {
            let mut view = view(multi(json!({})), made(json!({})));
            change(&mut view);
            decide(&view).warnings
        };
        assert_eq!(told(&|_| {}), [""; 0]);
        assert_eq!(
            told(&|view| view.clusters = ["m1".to_owned()].into()),
            ["no cluster is named m2; correct the annotation networking.karmada.io/entry-clusters"]
        );
        assert_eq!(
            told(&|view| view.clusters = BTreeSet::new()),
            ["no cluster is named m1, m2; correct the annotation networking.karmada.io/entry-clusters"]
        );
        let here = |name: &str| (name.to_owned(), BTreeSet::from(["m1".to_owned()]));
        assert_eq!(
            told(&|view| view.propagated = [here("web"), here("api")].into()),
            [
                "Service api is not propagated to m2; propagate it there by a policy or a MultiClusterService, or import it \
                 with type ClusterSetIP",
                "Service derived-web is not propagated to m2; propagate ServiceImport web there",
            ]
        );
        let many = |view: &mut View| {
            view.propagated = (0..100).map(|number| (format!("s{number}"), BTreeSet::new())).collect();
        };
        assert_eq!(told(&many).len(), MOST_WARNINGS);
        // Without an annotation, a policy chooses the entries.
        let by_policy = json!({ "spec": { "clusters": [{ "name": "m2" }] } });
        let by_policy: ResourceBinding = crate::fixtures::binding(by_policy);
        assert_eq!(
            told(&|view| {
                view.multi = multi(json!({ "metadata": { "annotations": null } }));
                view.binding = Some(Arc::new(by_policy.clone()));
                view.propagated = [here("web")].into();
            }),
            ["Service derived-web is not propagated to m2; propagate ServiceImport web there"]
        );
    }

    #[test]
    fn a_service_is_where_its_binding_and_those_that_need_it_bring_it() {
        let binding = crate::fixtures::binding(json!({ "spec": {
            "clusters": [{ "name": "m1" }],
            "requiredBy": [{ "namespace": "default", "name": "web-serviceimport", "clusters": [{ "name": "m2" }] }],
        } }));
        assert_eq!(clusters_of(&binding), BTreeSet::from(["m1", "m2"].map(str::to_owned)));
    }

    #[test]
    fn back_ends_are_not_where_a_cluster_is_lost() {
        let work = |cluster: &str, role: Role| (Key::new(names::execution_space(cluster), "w"), role);
        let works = [
            work("m1", Role::Collected),
            work("m2", Role::Collected),
            work("m3", Role::Dispatched),
            work("m1", Role::Collected),
        ];
        let ready = |clusters: &[&str]| -> BTreeSet<String> {
            clusters.iter().map(|name| (*name).to_owned()).collect()
        };
        assert_eq!(located(&works, &ready(&["m1", "m2", "m3"])), ["m1", "m2"]);
        assert_eq!(located(&works, &ready(&["m2"])), ["m2"]);
        assert!(has_endpoints(&cluster("m1", "True", json!({}))));
        assert!(!has_endpoints(&cluster("m1", "Unknown", json!({}))));
        assert!(!has_endpoints(&cluster("m1", "True", deleting())));
    }
}
