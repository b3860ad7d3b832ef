//! What has to be true of a control plane and its members at rest.

use std::collections::{BTreeMap, HashMap, HashSet};

use api::labels::{
    ENDPOINT_SLICE_NAME, ENDPOINT_SLICE_NAMESPACE, MULTI_CLUSTER_SERVICE_NAME,
    MULTI_CLUSTER_SERVICE_NAMESPACE, RETAIN_REPLICAS, annotations, finalizers,
};
use api::names;
use serde_json::Value;

/// Everything there is.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The objects of the control plane, of all kinds.
    pub plane: Vec<Value>,
    /// What the control plane has put into each member.
    pub members: BTreeMap<String, Vec<Value>>,
    /// Which controllers run, as `--controllers` says it.
    pub controllers: String,
}

/// Each finalizer, the kind that carries it, and the controller that takes it off again.
const FINALIZERS: &[(&str, &str, &str)] = &[
    (finalizers::CLUSTER, "Cluster", "cluster"),
    (finalizers::EXECUTION, "Work", "execution"),
    (finalizers::BINDING, "ResourceBinding", "binding"),
    (finalizers::CLUSTER_RESOURCE_BINDING, "ClusterResourceBinding", "binding"),
    (finalizers::BINDING_DEPENDENCIES, "ResourceBinding", "dependencies-distributor"),
    (finalizers::PROPAGATION_POLICY, "PropagationPolicy", "resource-detector"),
    (finalizers::CLUSTER_PROPAGATION_POLICY, "ClusterPropagationPolicy", "resource-detector"),
    (finalizers::ENDPOINT_SLICE, "Work", "endpointSlice"),
    (finalizers::MCS_ENDPOINT_SLICE_DISPATCH, "Work", "endpointsliceDispatch"),
    (finalizers::MULTI_CLUSTER_SERVICE, "MultiClusterService", "multiclusterservice"),
];

/// Workloads whose template shows the sum of these fields of its members' objects.
const SUMMED: &[(&str, &[&str])] = &[
    ("Deployment", &["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]),
    ("StatefulSet", &["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]),
    ("DaemonSet", &["desiredNumberScheduled", "numberReady", "numberAvailable"]),
];

/// Returns what is wrong, in words.
pub fn complaints(state: &State) -> Vec<String> {
    let laws = [
        works_without_wish,
        wishes_without_work,
        objects_without_work,
        works_without_object,
        finalizers_without_controller,
        replicas_that_do_not_add_up,
        statuses_that_do_not_add_up,
        services::complaints,
    ];
    let index = Index::new(state);
    laws.into_iter().flat_map(|law| law(&index)).collect()
}

/// The objects by their names: a world may have thousands, and the laws look most of them up.
struct Index<'a> {
    state: &'a State,
    /// By kind, namespace and name. Kinds of several groups may have one name.
    plane: HashMap<(&'a str, &'a str, &'a str), Vec<&'a Value>>,
    /// The uids.
    owners: HashSet<&'a str>,
    /// By cluster, kind, namespace and name.
    members: HashMap<(&'a str, &'a str, &'a str, &'a str), Vec<&'a Value>>,
}

impl<'a> Index<'a> {
    fn new(state: &'a State) -> Self {
        let key = |object: &'a Value| (text(&object["kind"]), namespace_of(object), name_of(object));
        let mut plane: HashMap<_, Vec<&Value>> = HashMap::new();
        for object in &state.plane {
            plane.entry(key(object)).or_default().push(object);
        }
        let mut members: HashMap<_, Vec<&Value>> = HashMap::new();
        for (cluster, objects) in &state.members {
            for object in objects {
                let (kind, namespace, name) = key(object);
                members.entry((cluster.as_str(), kind, namespace, name)).or_default().push(object);
            }
        }
        let owners = state.plane.iter().map(|object| text(&object["metadata"]["uid"])).collect();
        Self { state, plane, owners, members }
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &'a Value> {
        self.state.plane.iter().filter(move |object| object["kind"] == kind)
    }

    fn bindings(&self) -> impl Iterator<Item = &'a Value> {
        self.state.plane.iter().filter(|object| is_binding(object))
    }

    fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<&'a Value> {
        self.plane.get(&(kind, namespace, name))?.first().copied()
    }

    /// Returns the template of a binding. Only the group counts, objects are served in all versions.
    fn template(&self, binding: &Value) -> Option<&'a Value> {
        let wanted = &binding["spec"]["resource"];
        let key = (text(&wanted["kind"]), text(&wanted["namespace"]), text(&wanted["name"]));
        self.plane.get(&key)?.iter().find(|found| group_of(found) == group_of(wanted)).copied()
    }

    fn work(&self, binding: &Value, cluster: &str) -> Option<&'a Value> {
        let wanted = &binding["spec"]["resource"];
        let name = names::work(text(&wanted["kind"]), text(&wanted["name"]), text(&wanted["namespace"]));
        self.find("Work", &names::execution_space(cluster), &name)
    }

    fn in_member(&self, cluster: &str, like: &Value) -> Option<&'a Value> {
        let key = (cluster, text(&like["kind"]), namespace_of(like), name_of(like));
        self.members.get(&key)?.iter().find(|object| is_same(object, like)).copied()
    }
}

fn is_binding(object: &Value) -> bool {
    ["ResourceBinding", "ClusterResourceBinding"].contains(&text(&object["kind"]))
}

fn is_same(one: &Value, other: &Value) -> bool {
    one["kind"] == other["kind"]
        && group_of(one) == group_of(other)
        && name_of(one) == name_of(other)
        && namespace_of(one) == namespace_of(other)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn name_of(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

fn namespace_of(object: &Value) -> &str {
    text(&object["metadata"]["namespace"])
}

fn group_of(object: &Value) -> &str {
    text(&object["apiVersion"]).split_once('/').map_or("", |(group, _)| group)
}

fn full(object: &Value) -> String {
    format!("{} {}", text(&object["kind"]), names::namespaced_key(namespace_of(object), name_of(object)))
}

fn is_going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn note<'a>(object: &'a Value, key: &str) -> &'a str {
    text(&object["metadata"]["annotations"][key])
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn has_condition(object: &Value, kind: &str) -> bool {
    items(&object["status"]["conditions"]).iter().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Returns the binding a Work belongs to, as it says itself: kind, namespace and name.
pub(super) fn binding_of(work: &Value) -> Option<(&'static str, &str, &str)> {
    let name = note(work, annotations::RESOURCE_BINDING_NAME);
    if !name.is_empty() {
        return Some(("ResourceBinding", note(work, annotations::RESOURCE_BINDING_NAMESPACE), name));
    }
    let name = note(work, annotations::CLUSTER_RESOURCE_BINDING_NAME);
    (!name.is_empty()).then_some(("ClusterResourceBinding", "", name))
}

/// Returns the Service whose endpoints a Work is about: the kind of object that wants it, its namespace and its name.
fn service_of(work: &Value) -> Option<(&'static str, &str, &str)> {
    let label = |key: &str| text(&work["metadata"]["labels"][key]);
    let multi =
        ("MultiClusterService", label(MULTI_CLUSTER_SERVICE_NAMESPACE), label(MULTI_CLUSTER_SERVICE_NAME));
    let export = ("ServiceExport", label(ENDPOINT_SLICE_NAMESPACE), label(ENDPOINT_SLICE_NAME));
    [multi, export].into_iter().find(|(.., name)| !name.is_empty())
}

/// Returns the clusters where a binding wants its object: chosen for it, or for somebody who needs it.
pub(super) fn wanted_clusters(binding: &Value) -> Vec<&str> {
    let spec = &binding["spec"];
    let needed = items(&spec["requiredBy"]).iter().flat_map(|snapshot| items(&snapshot["clusters"]));
    let chosen = items(&spec["clusters"]).iter().chain(needed);
    chosen.map(|target| text(&target["name"])).collect()
}

/// Returns the clusters where a binding leaves its object for now, until it runs elsewhere.
pub(super) fn evicting_clusters(binding: &Value) -> impl Iterator<Item = &str> {
    items(&binding["spec"]["gracefulEvictionTasks"]).iter().map(|task| text(&task["fromCluster"]))
}

/// Every Work has somebody who wants it: a binding that names the cluster, or the owner it was made for. Where no controller makes Works,
/// the test writes them itself.
fn works_without_wish(index: &Index<'_>) -> Vec<String> {
    if !runs(&index.state.controllers, "binding") {
        return Vec::new();
    }
    // Removals that are held until somebody agrees leave Works that nobody wants, as they should.
    let held = index.state.plane.iter().any(|object| !note(object, annotations::REMOVALS_HELD).is_empty());
    let mut complaints = Vec::new();
    for work in index.of_kind("Work").filter(|work| !is_going(work)) {
        let Some((kind, namespace, name)) = binding_of(work) else {
            // The laws of services across clusters judge those.
            if service_of(work).is_some() {
                continue;
            }
            let owner = items(&work["metadata"]["ownerReferences"]).first();
            let uid = owner.map_or("", |owner| text(&owner["uid"]));
            if uid.is_empty() || !index.owners.contains(uid) {
                complaints.push(format!("{} names no binding, and no owner that exists", full(work)));
            }
            continue;
        };
        let cluster = names::cluster_of_execution_space(namespace_of(work)).unwrap_or("");
        match index.find(kind, namespace, name) {
            None => complaints.push(format!(
                "{} has no binding: there is no {kind} {}",
                full(work),
                names::namespaced_key(namespace, name)
            )),
            Some(binding) => {
                let wanted = wanted_clusters(binding).contains(&cluster)
                    || evicting_clusters(binding).any(|evicting| evicting == cluster);
                if !wanted && !held {
                    complaints.push(format!(
                        "{} is there although {} does not want {cluster}",
                        full(work),
                        full(binding)
                    ));
                }
            }
        }
    }
    complaints
}

/// Every binding has its template, and a Work in each cluster it wants. Where no controller makes bindings or Works, the test writes them
/// itself, or does without.
fn wishes_without_work(index: &Index<'_>) -> Vec<String> {
    let [detects, renders] =
        ["resource-detector", "binding"].map(|controller| runs(&index.state.controllers, controller));
    let mut complaints = Vec::new();
    for binding in index.bindings().filter(|binding| !is_going(binding)) {
        if detects && index.template(binding).is_none() {
            complaints.push(format!("{} has no template", full(binding)));
        }
        if !renders || binding["spec"]["suspension"].is_object() {
            continue;
        }
        for cluster in wanted_clusters(binding) {
            let there = index.find("Cluster", "", cluster).is_some_and(|cluster| !is_going(cluster));
            if there && index.work(binding, cluster).is_none() {
                complaints.push(format!("{} wants {cluster} and has no Work there", full(binding)));
            }
        }
    }
    complaints
}

/// Every managed object in a member has its Work, with a manifest of it.
fn objects_without_work(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (cluster, objects) in &index.state.members {
        for object in objects {
            let (space, name) =
                (note(object, annotations::WORK_NAMESPACE), note(object, annotations::WORK_NAME));
            let manifests =
                index.find("Work", space, name).map(|work| &work["spec"]["workload"]["manifests"]);
            match manifests {
                None => complaints
                    .push(format!("{} in {cluster} has no Work: there is no {space}/{name}", full(object))),
                Some(manifests) if !items(manifests).iter().any(|manifest| is_same(manifest, object)) => {
                    complaints.push(format!(
                        "{} in {cluster} is not what its Work {space}/{name} says",
                        full(object)
                    ));
                }
                Some(_) => {}
            }
        }
    }
    complaints
}

/// Every Work that says it was applied has its objects in the member.
fn works_without_object(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for work in index.of_kind("Work").filter(|work| has_condition(work, "Applied") && !is_going(work)) {
        let Some(cluster) = names::cluster_of_execution_space(namespace_of(work)) else { continue };
        if !index.state.members.contains_key(cluster) {
            continue;
        }
        for manifest in items(&work["spec"]["workload"]["manifests"]) {
            if index.in_member(cluster, manifest).is_none() {
                complaints.push(format!(
                    "{} is applied, but {} is not in {cluster}",
                    full(work),
                    full(manifest)
                ));
            }
        }
    }
    complaints
}

/// Every finalizer of Karmada's has a controller that runs and takes it off, and nothing waits for one.
fn finalizers_without_controller(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for object in &index.state.plane {
        for finalizer in items(&object["metadata"]["finalizers"]).iter().map(text) {
            if !finalizer.starts_with("karmada.io/") {
                continue;
            }
            let known =
                FINALIZERS.iter().find(|(name, kind, _)| *name == finalizer && object["kind"] == *kind);
            match known {
                None => complaints
                    .push(format!("{} has {finalizer}, which no controller takes off", full(object))),
                Some((_, _, controller)) if !runs(&index.state.controllers, controller) => {
                    complaints
                        .push(format!("{} has {finalizer}, but {controller} does not run", full(object)));
                }
                Some(_) => {}
            }
        }
        if is_going(object) {
            let waiting = &object["metadata"]["finalizers"];
            complaints.push(format!("{} is still being deleted, with finalizers {waiting}", full(object)));
        }
    }
    complaints
}

/// Whether a list of controllers names one, or all without taking it out again.
fn runs(list: &str, controller: &str) -> bool {
    let without = format!("-{controller}");
    let named: Vec<&str> = list.split(',').map(str::trim).collect();
    named.contains(&controller) || (named.contains(&"*") && !named.contains(&without.as_str()))
}

/// Replicas that are divided sum up to those of the template, and each Work and member has its share.
fn replicas_that_do_not_add_up(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for binding in
        index.bindings().filter(|binding| has_condition(binding, "Scheduled") && !is_going(binding))
    {
        let spec = &binding["spec"];
        if spec["placement"]["replicaScheduling"]["replicaSchedulingType"] != "Divided" {
            continue;
        }
        let Some(wanted) = spec["replicas"].as_i64() else { continue };
        let share = |target: &Value| target["replicas"].as_i64().unwrap_or(0);
        let divided: i64 = items(&spec["clusters"]).iter().map(share).sum();
        if divided != wanted {
            complaints.push(format!("{} wants {wanted} replicas and divides {divided}", full(binding)));
        }
        let template = index.template(binding).map(|template| &template["spec"]["replicas"]);
        if let Some(template) = template.and_then(Value::as_i64)
            && template != wanted
        {
            complaints.push(format!("{} wants {wanted} replicas, its template {template}", full(binding)));
        }
        for target in items(&spec["clusters"]) {
            let cluster = text(&target["name"]);
            let Some(work) = index.work(binding, cluster) else { continue };
            let Some(manifest) = items(&work["spec"]["workload"]["manifests"]).first() else { continue };
            let share = share(target);
            let overridden = !note(work, annotations::APPLIED_OVERRIDES).is_empty()
                || !note(work, annotations::APPLIED_CLUSTER_OVERRIDES).is_empty();
            if let Some(told) = manifest["spec"]["replicas"].as_i64() {
                if told != share && !overridden {
                    complaints.push(format!("{} says {told} replicas instead of {share}", full(work)));
                }
                let retained = manifest["metadata"]["labels"][RETAIN_REPLICAS] == "true";
                let inside =
                    index.in_member(cluster, manifest).and_then(|object| object["spec"]["replicas"].as_i64());
                if let Some(inside) = inside
                    && inside != told
                    && !retained
                {
                    complaints.push(format!(
                        "{} in {cluster} has {inside} replicas instead of {told}",
                        full(manifest)
                    ));
                }
            }
        }
    }
    complaints
}

/// The status of a template is the sum of what its members' objects say.
fn statuses_that_do_not_add_up(index: &Index<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for binding in index.bindings().filter(|binding| !is_going(binding)) {
        let Some(template) = index.template(binding) else { continue };
        let Some((_, fields)) = SUMMED.iter().find(|(kind, _)| template["kind"] == *kind) else { continue };
        let clusters = wanted_clusters(binding);
        if clusters.is_empty() || !clusters.iter().all(|cluster| index.state.members.contains_key(*cluster)) {
            continue;
        }
        for field in *fields {
            let count = |object: &Value| object["status"][*field].as_i64().unwrap_or(0);
            let sum: i64 =
                clusters.iter().filter_map(|cluster| index.in_member(cluster, template)).map(count).sum();
            if count(template) != sum {
                complaints.push(format!(
                    "{} shows {field} {}, its members have {sum}",
                    full(template),
                    count(template)
                ));
            }
        }
    }
    complaints
}

mod services;
#[cfg(test)]
mod tests;
