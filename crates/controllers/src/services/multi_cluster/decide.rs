//! Decides what a MultiClusterService needs: its requests, the claim on its Service, and the Service's
//! binding. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::cluster::Cluster;
use api::conditions::multi_cluster_service as conditions;
use api::events as reasons;
use api::labels::annotations::{
    CLUSTER_PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAME, PROPAGATION_POLICY_NAMESPACE,
};
use api::labels::{
    BINDING_MANAGED_BY, CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, MULTI_CLUSTER_SERVICE_NAME,
    MULTI_CLUSTER_SERVICE_NAMESPACE, MULTI_CLUSTER_SERVICE_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID,
    RESOURCE_TEMPLATE_CLAIMED_BY, finalizers,
};
use api::networking::MultiClusterService;
use api::policy::{ClusterAffinity, ConflictResolution, Placement};
use api::work::{ResourceBinding, ResourceBindingSpec, Work};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use propagation::{Object, Reference as _};
use runtime::{Error, Key};
use serde_json::{Value, json};

use super::super::index::cluster_of;
use super::super::told::Told;
use super::super::works::{Ensure, Token, is_going, released, request, tokens};
use super::super::{bound, is_cross_cluster, lacks_slices, meant};
use super::metadata_patch;

/// The value of the marks on what belongs to a MultiClusterService.
pub(super) const HOLDER: &str = "MultiClusterService";
const DONE: &str = "Service is propagated to target clusters.";

/// What is known of a MultiClusterService.
pub(crate) struct View {
    pub(super) key: Key,
    pub(super) multi: Option<Arc<MultiClusterService>>,
    pub(super) clusters: Vec<Arc<Cluster>>,
    /// The clusters that can get Works.
    pub(super) spaces: BTreeSet<String>,
    /// The Service of its name, or its head.
    pub(super) service: Option<Arc<Value>>,
    /// The Service's binding.
    pub(super) binding: Option<Arc<ResourceBinding>>,
    /// The Works that ask providers for its endpoints.
    pub(super) requests: Vec<Arc<Work>>,
    /// The Works that hold slices of its Service.
    pub(super) collected: Vec<Arc<Work>>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Events about single clusters: reason and message.
    pub(super) warnings: Vec<(&'static str, String)>,
    /// Why the Service cannot be propagated.
    pub(super) problem: Option<String>,
    /// A watch event will enqueue the key when the problem ends, so no retry is needed.
    pub(super) waits: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// The finalizer is added, before anything else.
    Hold,
    /// The finalizer is removed, after everything else.
    Release,
    /// Without an identity: it gets one when it is written.
    CreateRequest(Box<Work>),
    UpdateRequest(Arc<Work>, Box<Work>),
    DeleteRequest(Arc<Work>),
    /// A slice is held for others, and no longer for a MultiClusterService.
    ReleaseCollected(Arc<Work>, Box<Work>),
    /// A slice is held for nobody any more.
    DeleteCollected(Arc<Work>),
    PatchService(Value),
    CreateBinding(Box<ResourceBinding>),
    UpdateBinding(Arc<ResourceBinding>, Box<ResourceBinding>),
}

/// The steps of a plan, in the order in which they are taken. Those of one stage do not depend on each other.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// Requests are written after the finalizer that ensures their removal.
    pub(super) hold: Vec<Step>,
    /// The claim is written before the binding: a policy that meets the binding checks who has claimed the Service.
    pub(super) claims: Vec<Step>,
    pub(super) requests: Vec<Step>,
    /// With the requests: see [`after_claims`].
    pub(super) bindings: Vec<Step>,
    /// A slice is released after its request was withdrawn: otherwise it would be collected again.
    pub(super) slices: Vec<Step>,
    /// See [`at_last`].
    pub(super) release: Vec<Step>,
}

pub(super) fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let Some(multi) = &view.multi else {
        // It had a finalizer. Somebody took that off by force, and these were left behind.
        withdraw(view, &BTreeSet::new(), &mut plan);
        release_service(view, None, &mut plan);
        return plan;
    };
    let held =
        multi.metadata.finalizers.iter().flatten().any(|held| held == finalizers::MULTI_CLUSTER_SERVICE);
    if multi.metadata.deletion_timestamp.is_some() || !is_cross_cluster(multi) {
        withdraw(view, &BTreeSet::new(), &mut plan);
        release_service(view, Some(multi.as_ref()), &mut plan);
        if held {
            plan.steps.push(Step::Release);
        }
        return plan;
    }
    if !held {
        plan.steps.push(Step::Hold);
    }
    let providers = meant(&multi.spec.provider_clusters, &view.clusters);
    let consumers = meant(&multi.spec.consumer_clusters, &view.clusters);
    ask(view, multi, &providers, &mut plan);
    bound(&mut plan.warnings);
    withdraw(view, &providers, &mut plan);
    let Some(service) = view.service.as_ref().filter(|service| !service.is_deleting()) else {
        plan.waits = plan.problem.is_none();
        plan.problem.get_or_insert_with(|| format!("services {:?} not found", view.key.name));
        return plan;
    };
    claim(multi, service, &mut plan);
    bind(view, multi, service, providers.union(&consumers).cloned().collect(), &mut plan);
    plan
}

/// Returns in which order steps are taken.
pub(super) fn stages(steps: Vec<Step>) -> Stages {
    let mut stages = Stages::default();
    for step in steps {
        let stage = match &step {
            Step::Hold => &mut stages.hold,
            Step::PatchService(_) => &mut stages.claims,
            Step::CreateRequest(_) | Step::UpdateRequest(..) | Step::DeleteRequest(_) => &mut stages.requests,
            Step::CreateBinding(_) | Step::UpdateBinding(..) => &mut stages.bindings,
            Step::ReleaseCollected(..) | Step::DeleteCollected(_) => &mut stages.slices,
            Step::Release => &mut stages.release,
        };
        stage.push(step);
    }
    stages
}

/// Returns what is written together after the claims. If a claim `failed`, no binding is: a policy that meets it would believe that
/// nobody has claimed the Service.
pub(super) fn after_claims(mut requests: Vec<Step>, bindings: Vec<Step>, failed: bool) -> Vec<Step> {
    if !failed {
        requests.extend(bindings);
    }
    requests
}

/// Returns the last steps, which let the MultiClusterService go: none if anything `failed`, since nobody would look at it again.
pub(super) fn at_last(release: Vec<Step>, failed: bool) -> Vec<Step> {
    if failed { Vec::new() } else { release }
}

/// Returns whether no retry is needed. A missing Service enqueues the key when it is created; a write that `failed` is tried again.
pub(super) fn only_waits(waits: bool, failed: bool) -> bool {
    waits && !failed
}

/// Returns what users are told of an attempt that ended like this; nothing after a conflict, since it is tried again at once.
pub(super) fn conclude(multi: &MultiClusterService, result: &Result<(), Error>) -> Option<Told> {
    let stays = multi.metadata.deletion_timestamp.is_none() && is_cross_cluster(multi);
    let (status, reason, event, message) = match result {
        Err(error) if error.is_conflict() => return None,
        Ok(()) if !stays => return None,
        Ok(()) => {
            ("True", conditions::REASON_SERVICE_APPLIED, reasons::SYNC_SERVICE_SUCCEED, DONE.to_owned())
        }
        Err(error) => {
            let message = error.to_string();
            ("False", conditions::REASON_SERVICE_NOT_APPLIED, reasons::SYNC_SERVICE_FAILED, message)
        }
    };
    Some(Told { condition: stays.then_some((status, reason)), event, message })
}

/// Asks each provider for endpoints. One that is not ready is asked too, and answers when it is back.
fn ask(view: &View, multi: &MultiClusterService, providers: &BTreeSet<String>, plan: &mut Plan) {
    for provider in providers {
        let named = |cluster: &&Arc<Cluster>| cluster.metadata.name.as_ref() == Some(provider);
        let Some(cluster) = view.clusters.iter().find(named) else {
            plan.warnings
                .push((reasons::CLUSTER_NOT_FOUND, format!("Provider cluster {provider} is not found")));
            continue;
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if lacks_slices(cluster) {
            let message = format!("Provider cluster {provider} does not support EndpointSlice");
            plan.warnings.push((reasons::API_INCOMPATIBLE, message));
            continue;
        }
        // A cluster that has just joined is asked when its namespace exists.
        let has_space = view.spaces.contains(provider);
        if !cluster.status.is_ready() {
            let message =
                format!("Provider cluster {provider} is not ready, its endpoints are left out until it is");
            plan.warnings.push((reasons::SYNC_SERVICE_FAILED, message));
        } else if !has_space {
            let message = format!("Provider cluster {provider} is asked when it has an execution namespace");
            plan.warnings.push((reasons::SYNC_SERVICE_FAILED, message));
        }
        if !has_space {
            continue;
        }
        let wanted = match request(multi, provider) {
            Ok(wanted) => wanted,
            Err(error) => {
                plan.problem = Some(error.to_string());
                continue;
            }
        };
        let existing = view.requests.iter().find(|work| Key::of(work.as_ref()) == wanted.key());
        match (wanted.ensure(existing.map(AsRef::as_ref)), existing) {
            (Ensure::Create(work), _) => plan.steps.push(Step::CreateRequest(work)),
            (Ensure::Update(work), Some(existing)) => {
                plan.steps.push(Step::UpdateRequest(Arc::clone(existing), work));
            }
            _ => {}
        }
    }
}

/// Withdraws the requests to all clusters but these, and releases the slices that were collected there. Whoever collected a slice
/// releases it as well; but an agent may be down, or run without the gate.
fn withdraw(view: &View, except: &BTreeSet<String>, plan: &mut Plan) {
    let is_left =
        |work: &&Arc<Work>| !is_going(work) && !except.contains(cluster_of(&Key::of(work.as_ref())));
    for work in view.requests.iter().filter(is_left) {
        plan.steps.push(Step::DeleteRequest(Arc::clone(work)));
    }
    for work in view.collected.iter().filter(is_left) {
        let mut left = tokens(work);
        if left.remove(&Token::MultiClusterService) {
            plan.steps.push(match released(work, &left) {
                Some(released) => Step::ReleaseCollected(Arc::clone(work), Box::new(released)),
                None => Step::DeleteCollected(Arc::clone(work)),
            });
        }
    }
}

fn id_of(multi: &MultiClusterService) -> String {
    let labels = multi.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MULTI_CLUSTER_SERVICE_PERMANENT_ID)).cloned().unwrap_or_default()
}

/// Takes the Service over from any policy that has claimed it.
fn claim(multi: &MultiClusterService, service: &Value, plan: &mut Plan) {
    let (id, Key { namespace, name }) = (id_of(multi), Key::of(multi));
    let labels = [
        (RESOURCE_TEMPLATE_CLAIMED_BY, Some(HOLDER)),
        (MULTI_CLUSTER_SERVICE_PERMANENT_ID, Some(id.as_str())),
        (PROPAGATION_POLICY_PERMANENT_ID, None),
        (CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, None),
    ];
    let annotations = [
        (MULTI_CLUSTER_SERVICE_NAMESPACE, Some(namespace.as_str())),
        (MULTI_CLUSTER_SERVICE_NAME, Some(name.as_str())),
        (PROPAGATION_POLICY_NAMESPACE, None),
        (PROPAGATION_POLICY_NAME, None),
        (CLUSTER_PROPAGATION_POLICY_NAME, None),
    ];
    let there = labels.iter().all(|(key, value)| service.label(key) == *value)
        && annotations.iter().all(|(key, value)| service.annotation(key) == *value);
    if !there {
        let map = |pairs: &[(&str, Option<&str>)]| -> Value {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect()
        };
        plan.steps.push(Step::PatchService(metadata_patch(map(&labels), map(&annotations))));
    }
}

/// Propagates the Service to these clusters.
fn bind(
    view: &View,
    multi: &MultiClusterService,
    service: &Value,
    clusters: BTreeSet<String>,
    plan: &mut Plan,
) {
    let Key { namespace, name } = Key::of(multi);
    let labels = BTreeMap::from([
        (BINDING_MANAGED_BY.to_owned(), HOLDER.to_owned()),
        (MULTI_CLUSTER_SERVICE_PERMANENT_ID.to_owned(), id_of(multi)),
    ]);
    let annotations = BTreeMap::from([
        (MULTI_CLUSTER_SERVICE_NAMESPACE.to_owned(), namespace.clone()),
        (MULTI_CLUSTER_SERVICE_NAME.to_owned(), name.clone()),
    ]);
    let affinity =
        ClusterAffinity { cluster_names: clusters.into_iter().collect(), ..ClusterAffinity::default() };
    let placement = Placement { cluster_affinity: Some(affinity), ..Placement::default() };
    let owner =
        OwnerReference { controller: None, block_owner_deletion: None, ..service.controller_reference() };
    let Some(existing) = &view.binding else {
        plan.steps.push(Step::CreateBinding(Box::new(ResourceBinding {
            metadata: ObjectMeta {
                name: Some(api::names::binding("Service", &name)),
                namespace: Some(namespace),
                owner_references: Some(vec![owner]),
                finalizers: Some(vec![finalizers::BINDING.to_owned()]),
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: ResourceBindingSpec {
                resource: service.reference(),
                placement: Some(placement),
                conflict_resolution: Some(ConflictResolution::Overwrite),
                ..ResourceBindingSpec::default()
            },
            ..ResourceBinding::default()
        })));
        return;
    };
    let mut owners = existing.metadata.owner_references.iter().flatten();
    if existing.metadata.deletion_timestamp.is_some() || owners.any(|owner| owner.uid != service.uid()) {
        // That of an earlier Service has to go first. One that nobody owns does not go: it was left when its Service was deleted.
        plan.problem = Some(format!("the binding of an earlier service {name:?} is still being deleted"));
        return;
    }
    let mut wanted = ResourceBinding::clone(existing);
    let owners = wanted.metadata.owner_references.get_or_insert_default();
    if owners.is_empty() {
        owners.push(owner);
    }
    let marks = wanted.metadata.labels.get_or_insert_default();
    marks.extend(labels);
    marks.retain(|key, _| {
        key != PROPAGATION_POLICY_PERMANENT_ID && key != CLUSTER_PROPAGATION_POLICY_PERMANENT_ID
    });
    let notes = wanted.metadata.annotations.get_or_insert_default();
    notes.extend(annotations);
    notes.retain(|key, _| {
        ![PROPAGATION_POLICY_NAMESPACE, PROPAGATION_POLICY_NAME, CLUSTER_PROPAGATION_POLICY_NAME]
            .contains(&key.as_str())
    });
    wanted.spec.resource = service.reference();
    wanted.spec.placement = Some(placement);
    wanted.spec.conflict_resolution = Some(ConflictResolution::Overwrite);
    if wanted != **existing {
        plan.steps.push(Step::UpdateBinding(Arc::clone(existing), Box::new(wanted)));
    }
}

/// Takes the marks off the Service and its binding, if they are of this MultiClusterService; without one, if they are of any.
fn release_service(view: &View, multi: Option<&MultiClusterService>, plan: &mut Plan) {
    let id = multi.map(id_of);
    let ours = |holder: Option<&str>, value: Option<&str>| match &id {
        Some(id) => value == Some(id.as_str()),
        None => holder == Some(HOLDER) && value.is_some(),
    };
    if let Some(service) = &view.service
        && ours(
            service.label(RESOURCE_TEMPLATE_CLAIMED_BY),
            service.label(MULTI_CLUSTER_SERVICE_PERMANENT_ID),
        )
    {
        let labels = json!({ RESOURCE_TEMPLATE_CLAIMED_BY: null, MULTI_CLUSTER_SERVICE_PERMANENT_ID: null });
        plan.steps.push(Step::PatchService(metadata_patch(labels, json!({}))));
    }
    if let Some(binding) = &view.binding {
        let labels = binding.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        if ours(label(BINDING_MANAGED_BY), label(MULTI_CLUSTER_SERVICE_PERMANENT_ID)) {
            let mut released = ResourceBinding::clone(binding);
            let marks = released.metadata.labels.get_or_insert_default();
            marks.retain(|key, _| key != BINDING_MANAGED_BY && key != MULTI_CLUSTER_SERVICE_PERMANENT_ID);
            let notes = released.metadata.annotations.get_or_insert_default();
            notes
                .retain(|key, _| key != MULTI_CLUSTER_SERVICE_NAMESPACE && key != MULTI_CLUSTER_SERVICE_NAME);
            plan.steps.push(Step::UpdateBinding(Arc::clone(binding), Box::new(released)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::MOST_WARNINGS;
    use super::super::super::works::{collected, service_of};
    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read, refused};
    use crate::plane::works::identify;

    fn multi(otherwise: Value) -> Option<Arc<MultiClusterService>> {
        let base = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "finalizers": [finalizers::MULTI_CLUSTER_SERVICE],
                "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: "id" },
            },
            "spec": {
                "types": ["CrossCluster"], "providerClusters": [{ "name": "m1" }], "consumerClusters": [{ "name": "m2" }],
            },
        });
        Some(Arc::new(read(merged(base, otherwise))))
    }

    fn service(otherwise: Value) -> Option<Arc<Value>> {
        let base = json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": "shop", "uid": "s", "resourceVersion": "7" } });
        Some(Arc::new(merged(base, otherwise)))
    }

    fn claimed() -> Value {
        json!({ "metadata": {
            "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: HOLDER, MULTI_CLUSTER_SERVICE_PERMANENT_ID: "id" },
            "annotations": { MULTI_CLUSTER_SERVICE_NAMESPACE: "shop", MULTI_CLUSTER_SERVICE_NAME: "web" },
        } })
    }

    fn view(multi: Option<Arc<MultiClusterService>>, service: Option<Arc<Value>>) -> View {
        let clusters = ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", json!({})))).into();
        let spaces = ["m1", "m2"].map(str::to_owned).into();
        let (key, requests, collected) = (Key::new("shop", "web"), Vec::new(), Vec::new());
        View { key, multi, clusters, spaces, service, binding: None, requests, collected }
    }

    /// Has what a plan makes be there.
    fn settled(mut view: View) -> View {
        let plan = decide(&view);
        for step in plan.steps {
            match step {
                Step::CreateRequest(mut work) => {
                    identify(&mut work, "id");
                    view.requests.push(Arc::from(work));
                }
                Step::CreateBinding(binding) => view.binding = Some(Arc::from(binding)),
                _ => {}
            }
        }
        view
    }

    fn words(plan: &Plan) -> Vec<String> {
        let step = |step: &Step| match step {
            Step::Hold => "hold".to_owned(),
            Step::Release => "release".to_owned(),
            Step::CreateRequest(work) => format!("ask {}", cluster_of(&Key::of(work.as_ref()))),
            Step::UpdateRequest(_, work) => format!("ask {} anew", cluster_of(&Key::of(work.as_ref()))),
            Step::DeleteRequest(work) => format!("leave {}", cluster_of(&Key::of(work.as_ref()))),
            Step::ReleaseCollected(_, work) => format!("release {}", cluster_of(&Key::of(work.as_ref()))),
            Step::DeleteCollected(work) => format!("drop {}", cluster_of(&Key::of(work.as_ref()))),
            Step::PatchService(_) => "mark".to_owned(),
            Step::CreateBinding(binding) => {
                let placement = binding.spec.placement.clone().unwrap_or_default();
                format!("bind {}", placement.cluster_affinity.unwrap_or_default().cluster_names.join("+"))
            }
            Step::UpdateBinding(_, binding) => {
                let marked =
                    binding.metadata.labels.iter().flatten().any(|(key, _)| key == BINDING_MANAGED_BY);
                if marked { "rebind".to_owned() } else { "unbind".to_owned() }
            }
        };
        let mut words: Vec<String> = plan.steps.iter().map(step).collect();
        words.extend(plan.warnings.iter().map(|(reason, _)| (*reason).to_owned()));
        words.extend(plan.problem.clone());
        words
    }

    fn check(view: &View, expected: &[&str], name: &str) {
        assert_eq!(words(&decide(view)), expected, "{name}");
    }

    #[test]
    fn what_a_multi_cluster_service_needs() {
        let new = json!({ "metadata": { "finalizers": null } });
        check(&view(multi(new), service(json!({}))), &["hold", "ask m1", "mark", "bind m1+m2"], "it is new");
        check(
            &view(multi(json!({})), None),
            &["ask m1", "services \"web\" not found"],
            "without its Service",
        );
        let whole = || settled(view(multi(json!({})), service(claimed())));
        check(&whole(), &[], "all is there");

        let moved = json!({ "spec": { "providerClusters": [{ "name": "m2" }] } });
        let mut changed = whole();
        changed.multi = multi(moved);
        check(&changed, &["ask m2", "leave m1", "rebind"], "another provider");

        let mut unknown = whole();
        unknown.multi =
            multi(json!({ "spec": { "providerClusters": [{ "name": "m1" }, { "name": "m9" }] } }));
        check(&unknown, &["ask m1 anew", "rebind", "ClusterNotFound"], "a provider that does not exist");

        let mut going = whole();
        going.multi = multi(deleting());
        check(&going, &["leave m1", "mark", "unbind", "release"], "it goes");
        going.multi = multi(json!({ "spec": { "types": ["LoadBalancer"] } }));
        check(&going, &["leave m1", "mark", "unbind", "release"], "it is not ours any more");
        going.multi = None;
        check(&going, &["leave m1", "mark", "unbind"], "its finalizer was taken off by force");
        (going.service, going.binding) = (service(json!({})), None);
        check(&going, &["leave m1"], "it is gone, and the Service is nobody's");

        let mut again = whole();
        again.service = service(merged(claimed(), json!({ "metadata": { "uid": "s2" } })));
        let waits = "the binding of an earlier service \"web\" is still being deleted";
        check(&again, &[waits], "the Service was made anew");
        let left =
            merged(json!(again.binding.as_deref()), json!({ "metadata": { "ownerReferences": null } }));
        again.binding = Some(Arc::new(read(left)));
        check(&again, &["rebind"], "the Service was made anew, and its binding was left behind");
        let Some(Step::UpdateBinding(_, taken)) = decide(&again).steps.pop() else {
            panic!("it is taken over")
        };
        assert_eq!(taken.spec.resource.uid, "s2");
        assert_eq!(taken.metadata.owner_references.unwrap_or_default()[0].uid, "s2");

        let mut taken = whole();
        let label = json!({ "metadata": { "labels": { PROPAGATION_POLICY_PERMANENT_ID: "p" } } });
        taken.service = service(merged(claimed(), label));
        check(&taken, &["mark"], "a policy has claimed the Service");

        let mut away = whole();
        away.clusters[0] = Arc::new(cluster("m1", "False", json!({})));
        check(&away, &["SyncServiceFailed"], "the provider is away");

        let mut joins = view(multi(json!({})), service(claimed()));
        joins.spaces.remove("m1");
        let told = ["bind m1+m2", "SyncServiceFailed"];
        check(&joins, &told, "the provider has no execution namespace yet");
        joins.spaces.insert("m1".to_owned());
        check(&joins, &["ask m1", "bind m1+m2"], "it is there");

        let mut leaves = view(multi(json!({})), service(claimed()));
        leaves.clusters[0] = Arc::new(cluster("m1", "True", deleting()));
        check(&leaves, &["bind m1+m2"], "the provider leaves");
        let complete = json!({ "status": {
            "apiEnablements": [{ "groupVersion": "v1", "resources": [] }],
            "conditions": [{ "type": "CompleteAPIEnablements", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        leaves.clusters[0] = Arc::new(cluster("m1", "", complete));
        check(&leaves, &["bind m1+m2", "APIIncompatible"], "the provider knows no slices");
    }

    #[test]
    fn providers_of_any_number_that_are_unknown_make_a_bounded_number_of_events() {
        let names: Value =
            (0..MOST_WARNINGS + 2).map(|number| json!({ "name": format!("gone{number}") })).collect();
        let plan = decide(&view(multi(json!({ "spec": { "providerClusters": names } })), None));
        assert_eq!(plan.warnings.len(), MOST_WARNINGS + 1);
    }

    #[test]
    fn a_claim_takes_all_marks_of_policies_off_the_service() {
        let label = |key: &str| json!({ "metadata": { "labels": { key: "x" } } });
        let annotation = |key: &str| json!({ "metadata": { "annotations": { key: "x" } } });
        let without = |part: &str, key: &str| json!({ "metadata": { part: { key: null } } });
        let (labels, annotations) = ("labels", "annotations");
        for change in [
            label(PROPAGATION_POLICY_PERMANENT_ID),
            label(CLUSTER_PROPAGATION_POLICY_PERMANENT_ID),
            annotation(PROPAGATION_POLICY_NAMESPACE),
            annotation(PROPAGATION_POLICY_NAME),
            annotation(CLUSTER_PROPAGATION_POLICY_NAME),
            without(labels, RESOURCE_TEMPLATE_CLAIMED_BY),
            without(labels, MULTI_CLUSTER_SERVICE_PERMANENT_ID),
            without(annotations, MULTI_CLUSTER_SERVICE_NAMESPACE),
            without(annotations, MULTI_CLUSTER_SERVICE_NAME),
        ] {
            let mut changed = settled(view(multi(json!({})), service(claimed())));
            changed.service = service(merged(claimed(), change.clone()));
            let plan = decide(&changed);
            assert_eq!(words(&plan), ["mark"], "{change}");
            let Some(Step::PatchService(patch)) = plan.steps.first() else { panic!("it is marked") };
            let patched = merged(json!(changed.service.as_deref()), patch.clone());
            assert_eq!(Some(Arc::new(patched)), service(claimed()), "{change}");
        }
    }

    #[test]
    fn a_binding_brings_its_service_to_all_that_provide_or_consume() {
        let binding = settled(view(multi(json!({})), service(claimed()))).binding.expect("it is bound");
        let ObjectMeta { name, namespace, finalizers, labels, annotations, owner_references, .. } =
            binding.metadata.clone();
        assert_eq!((name.as_deref(), namespace.as_deref()), (Some("web-service"), Some("shop")));
        assert_eq!(finalizers, Some(vec!["karmada.io/binding-controller".to_owned()]));
        let map = |pairs: [(&str, &str); 2]| {
            Some(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        };
        assert_eq!(labels, map([(BINDING_MANAGED_BY, HOLDER), (MULTI_CLUSTER_SERVICE_PERMANENT_ID, "id")]));
        let named = [(MULTI_CLUSTER_SERVICE_NAMESPACE, "shop"), (MULTI_CLUSTER_SERVICE_NAME, "web")];
        assert_eq!(annotations, map(named));
        let owner = owner_references.unwrap_or_default().remove(0);
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Service", "s"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
        assert_eq!(binding.spec.conflict_resolution, Some(ConflictResolution::Overwrite));
        assert_eq!(binding.spec.resource.uid, "s");
    }

    #[test]
    fn what_is_told_of_a_provider_that_cannot_be_asked() {
        let lacks = json!({ "status": {
            "apiEnablements": [{ "groupVersion": "v1", "resources": [] }],
            "conditions": [{ "type": "CompleteAPIEnablements", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        let told = |ready: &str, otherwise: Value, space: bool| {
            let mut view = view(multi(json!({})), service(claimed()));
            view.clusters[0] = Arc::new(cluster("m1", ready, otherwise));
            if !space {
                view.spaces.remove("m1");
            }
            decide(&view).warnings.into_iter().map(|(_, message)| message).collect::<Vec<_>>()
        };
        let away = "Provider cluster m1 is not ready, its endpoints are left out until it is";
        let joins = "Provider cluster m1 is asked when it has an execution namespace";
        assert_eq!(told("True", json!({}), true), [""; 0]);
        assert_eq!(told("False", json!({}), true), [away]);
        assert_eq!(told("True", json!({}), false), [joins]);
        assert_eq!(told("", lacks, true), ["Provider cluster m1 does not support EndpointSlice"]);
        let unknown = multi(json!({ "spec": { "providerClusters": [{ "name": "m9" }] } }));
        let (_, message) = decide(&view(unknown, None)).warnings.remove(0);
        assert_eq!(message, "Provider cluster m9 is not found");
    }

    #[test]
    fn a_binding_that_is_let_go_of_has_no_mark_left() {
        let mut going = settled(view(multi(json!({})), service(claimed())));
        let others = json!({ "metadata": { "labels": { "x": "y" }, "annotations": { "x": "y" } } });
        going.binding = Some(Arc::new(read(merged(json!(going.binding.as_deref()), others))));
        going.multi = multi(deleting());
        let released = decide(&going).steps.into_iter().find_map(|step| match step {
            Step::UpdateBinding(_, binding) => Some(binding.metadata),
            _ => None,
        });
        let ObjectMeta { labels, annotations, .. } = released.expect("it is let go of");
        let theirs = Some(BTreeMap::from([("x".to_owned(), "y".to_owned())]));
        assert_eq!((&labels, &annotations), (&theirs, &theirs));
    }

    #[test]
    fn what_becomes_of_the_service_and_its_binding() {
        let whole = || settled(view(multi(json!({})), service(claimed())));
        let mut goes = whole();
        goes.service = service(merged(claimed(), deleting()));
        check(&goes, &["services \"web\" not found"], "the Service is being deleted");
        assert!(decide(&goes).waits, "the next one queues it again");
        let mut going = whole();
        going.binding = Some(Arc::new(read(merged(json!(going.binding.as_deref()), deleting()))));
        let waits = "the binding of an earlier service \"web\" is still being deleted";
        check(&going, &[waits], "the binding goes");
        assert!(!decide(&going).waits, "nobody tells when that has gone");

        // A policy has written the binding before the MultiClusterService took the Service over.
        let marked = json!({ "metadata": {
            "labels": { PROPAGATION_POLICY_PERMANENT_ID: "p", CLUSTER_PROPAGATION_POLICY_PERMANENT_ID: "c", "x": "y" },
            "annotations": {
                PROPAGATION_POLICY_NAMESPACE: "shop", PROPAGATION_POLICY_NAME: "p",
                CLUSTER_PROPAGATION_POLICY_NAME: "c", "x": "y",
            },
        } });
        let mut taken = whole();
        taken.binding = Some(Arc::new(read(merged(json!(taken.binding.as_deref()), marked))));
        let Some(Step::UpdateBinding(_, binding)) = decide(&taken).steps.pop() else {
            panic!("it is taken over")
        };
        let keys =
            |map: Option<BTreeMap<String, String>>| map.unwrap_or_default().into_keys().collect::<Vec<_>>();
        let labels = [BINDING_MANAGED_BY, MULTI_CLUSTER_SERVICE_PERMANENT_ID, "x"].map(str::to_owned);
        let annotations =
            [MULTI_CLUSTER_SERVICE_NAME, MULTI_CLUSTER_SERVICE_NAMESPACE, "x"].map(str::to_owned);
        let sorted = |mut keys: Vec<String>| {
            keys.sort();
            keys
        };
        assert_eq!(keys(binding.metadata.labels), sorted(labels.into()));
        assert_eq!(keys(binding.metadata.annotations), sorted(annotations.into()));

        // What others have changed in it is put right.
        for (what, change) in [
            ("another cluster", json!({ "placement": { "clusterAffinity": { "clusterNames": ["m9"] } } })),
            ("another resolution of conflicts", json!({ "conflictResolution": "Abort" })),
            ("another version of the Service", json!({ "resource": { "resourceVersion": "6" } })),
        ] {
            let mut changed = whole();
            let spec = json!({ "spec": change });
            changed.binding = Some(Arc::new(read(merged(json!(changed.binding.as_deref()), spec))));
            check(&changed, &["rebind"], what);
        }

        for (what, change) in
            [("its labels", json!({ "labels": null })), ("its annotations", json!({ "annotations": null }))]
        {
            let mut changed = whole();
            let metadata = json!({ "metadata": change });
            changed.binding = Some(Arc::new(read(merged(json!(changed.binding.as_deref()), metadata))));
            check(&changed, &["rebind"], what);
            let Some(Step::UpdateBinding(_, binding)) = decide(&changed).steps.pop() else {
                panic!("it is put right")
            };
            assert_eq!(Some(Arc::from(binding)), whole().binding, "{what}");
        }

        // One that is gone leaves alone what is of another kind of holder.
        let other =
            json!({ "metadata": { "labels": { RESOURCE_TEMPLATE_CLAIMED_BY: "MultiClusterIngress" } } });
        let held = view(None, service(merged(claimed(), other)));
        check(&held, &[], "somebody else has it by now");
        let unnamed = json!({ "metadata": { "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: null } } });
        let held = view(None, service(merged(claimed(), unnamed)));
        check(&held, &[], "it does not say whose it is");
    }

    fn held(cluster: &str, tokens: &[Token], otherwise: Value) -> Arc<Work> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "shop" },
        });
        let tokens = tokens.iter().copied().collect();
        let wanted = collected(cluster, &slice, &Key::new("shop", "web"), &tokens).expect("a Work");
        let Ensure::Create(mut work) = wanted.ensure(None) else { panic!("it is made") };
        identify(&mut work, "id");
        Arc::new(read(merged(json!(work), otherwise)))
    }

    #[test]
    fn slices_are_released_although_whoever_collected_them_is_silent() {
        use Token::{MultiClusterService as M, ServiceExport as E};
        let whole = || settled(view(multi(json!({})), service(claimed())));
        let moved = || multi(json!({ "spec": { "providerClusters": [{ "name": "m2" }] } }));
        // Name; the MultiClusterService; what is collected in m1; then: what becomes of that.
        let cases = [
            ("it stays", multi(json!({})), held("m1", &[M], json!({})), vec![]),
            ("another provider", moved(), held("m1", &[M], json!({})), vec!["drop m1"]),
            (
                "another provider, and it is exported",
                moved(),
                held("m1", &[M, E], json!({})),
                vec!["release m1"],
            ),
            ("it goes", multi(deleting()), held("m1", &[M], json!({})), vec!["drop m1"]),
            ("it is gone", None, held("m1", &[M, E], json!({})), vec!["release m1"]),
            ("it was released already", None, held("m1", &[E], json!({})), vec![]),
            ("it is being deleted already", None, held("m1", &[M], deleting()), vec![]),
        ];
        for (name, multi, work, expected) in cases {
            let mut view = whole();
            (view.multi, view.collected) = (multi, vec![work]);
            let plan = decide(&view);
            let mut words = words(&plan);
            words.retain(|word| word.starts_with("drop") || word.starts_with("release "));
            assert_eq!(words, expected, "{name}");
            for step in &plan.steps {
                if let Step::ReleaseCollected(_, work) = step {
                    assert_eq!(tokens(work), BTreeSet::from([E]), "{name}");
                    assert_eq!(service_of(work, M), None, "{name}");
                }
            }
        }
    }

    #[test]
    fn steps_are_taken_in_an_order_that_a_crash_cannot_harm() {
        let binding = settled(view(multi(json!({})), service(claimed()))).binding.expect("it is bound");
        let work = held("m1", &[Token::MultiClusterService], json!({}));
        let copy = || Box::new(Work::clone(&work));
        let steps = vec![
            Step::Release,
            Step::DeleteCollected(Arc::clone(&work)),
            Step::UpdateBinding(Arc::clone(&binding), Box::new(ResourceBinding::clone(&binding))),
            Step::ReleaseCollected(Arc::clone(&work), copy()),
            Step::DeleteRequest(Arc::clone(&work)),
            Step::CreateBinding(Box::new(ResourceBinding::clone(&binding))),
            Step::PatchService(json!({})),
            Step::CreateRequest(copy()),
            Step::Hold,
            Step::UpdateRequest(Arc::clone(&work), copy()),
        ];
        let Stages { hold, claims, requests, bindings, slices, release } = stages(steps);
        let named = |steps: Vec<Step>| words(&Plan { steps, ..Plan::default() });
        assert_eq!(named(hold), ["hold"]);
        assert_eq!(named(claims), ["mark"]);
        assert_eq!(named(requests), ["leave m1", "ask m1", "ask m1 anew"]);
        assert_eq!(named(bindings), ["rebind", "bind m1+m2"]);
        assert_eq!(named(slices), ["drop m1", "release m1"]);
        assert_eq!(named(release), ["release"]);
    }

    #[test]
    fn what_follows_a_failure() {
        let named = |steps: Vec<Step>| words(&Plan { steps, ..Plan::default() });
        let requests = || vec![Step::DeleteRequest(held("m1", &[], json!({})))];
        let bindings = || vec![Step::CreateBinding(Box::default())];
        assert_eq!(named(after_claims(requests(), bindings(), false)), ["leave m1", "bind "]);
        assert_eq!(
            named(after_claims(requests(), bindings(), true)),
            ["leave m1"],
            "a policy may have claimed it"
        );
        assert_eq!(named(at_last(vec![Step::Release], false)), ["release"]);
        assert_eq!(
            named(at_last(vec![Step::Release], true)),
            [""; 0],
            "it is looked at again while it is held"
        );
        // Whether the Service is waited for, and whether a write failed.
        for (waits, failed, expected) in
            [(true, false, true), (true, true, false), (false, false, false), (false, true, false)]
        {
            assert_eq!(only_waits(waits, failed), expected, "{waits} {failed}");
        }
    }

    #[test]
    fn what_is_told_of_an_attempt() {
        let other = json!({ "spec": { "types": ["LoadBalancer"] } });
        let applied = Some(("True", "ServiceAppliedSucceed"));
        let failed = Some(("False", "ServiceAppliedFailed"));
        // Name; what it is; how the attempt ended; then: condition and event.
        let cases = [
            ("it worked", json!({}), None, Some((applied, "SyncServiceSucceed"))),
            ("it failed", json!({}), Some(500), Some((failed, "SyncServiceFailed"))),
            ("others were faster", json!({}), Some(409), None),
            ("it has gone", deleting(), None, None),
            ("it cannot go", deleting(), Some(500), Some((None, "SyncServiceFailed"))),
            ("it cannot go yet: others were faster", deleting(), Some(409), None),
            ("it is not ours any more", other.clone(), None, None),
            ("it cannot be left", other, Some(500), Some((None, "SyncServiceFailed"))),
        ];
        for (name, otherwise, code, expected) in cases {
            let multi = multi(otherwise).expect("it is there");
            let told = conclude(&multi, &code.map_or(Ok(()), |code| Err(refused(code))));
            let message = if code.is_some() { "why" } else { DONE }.to_owned();
            let expected = expected.map(|(condition, event)| Told { condition, event, message });
            assert_eq!(told, expected, "{name}");
        }
    }

    #[test]
    fn marks_of_another_one_stay() {
        let mut view = settled(view(multi(json!({})), service(claimed())));
        let other = json!({ "metadata": { "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: "other" } } });
        view.multi = multi(merged(deleting(), other));
        check(&view, &["leave m1", "release"], "it was made anew under the same name");
    }
}
