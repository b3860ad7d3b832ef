//! Decides which slices go to which consumers. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::cluster::Cluster;
use api::conditions::multi_cluster_service as conditions;
use api::events as reasons;
use api::labels::annotations::PROVISION_CLUSTER;
use api::networking::MultiClusterService;
use api::work::Work;
use runtime::{Error, Key};

use super::super::index::cluster_of;
use super::super::told::Told;
use super::super::works::{
    Ensure, MOST_SLICES, Token, annotation, dispatched, is_going, manifest, offered, service_of,
};
use super::super::{SLICE, bound, is_cross_cluster, lacks_slices, meant};

pub(super) const DONE: &str = "EndpointSlice are dispatched successfully";

/// What is known of a MultiClusterService and its slices.
pub(crate) struct View {
    pub(super) key: Key,
    pub(super) multi: Option<Arc<MultiClusterService>>,
    pub(super) clusters: Vec<Arc<Cluster>>,
    /// The clusters that can get Works.
    pub(super) spaces: BTreeSet<String>,
    /// The Works that hold slices of its Service, for any controller.
    pub(super) collected: Vec<Arc<Work>>,
    /// The Works that bring them to consumers.
    pub(super) dispatched: Vec<Arc<Work>>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Collected Works whose finalizer is removed afterwards.
    pub(super) release: Vec<Arc<Work>>,
    /// Events about single clusters: reason and message.
    pub(super) warnings: Vec<(&'static str, String)>,
    pub(super) errors: Vec<String>,
    /// The status of the MultiClusterService needs a condition.
    pub(super) tells: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Without an identity: it gets one when it is written.
    Create(Box<Work>),
    Update(Arc<Work>, Box<Work>),
    Delete(Arc<Work>),
}

impl Step {
    /// Returns the cluster whose slice it removes.
    pub(super) fn takes_from(&self) -> Option<String> {
        match self {
            Self::Delete(work) => Some(annotation(work, PROVISION_CLUSTER).to_owned()),
            Self::Create(_) | Self::Update(..) => None,
        }
    }
}

/// Returns the Works whose finalizer can be removed: no slice of their cluster is left in a consumer. `stuck`
/// are the clusters of slices that could not be removed; one without a name may be any cluster.
pub(super) fn free(release: Vec<Arc<Work>>, stuck: &BTreeSet<String>) -> Vec<Arc<Work>> {
    let is_free = |work: &Arc<Work>| !stuck.contains("") && !stuck.contains(&cluster_of_work(work));
    release.into_iter().filter(is_free).collect()
}

/// Returns what users are told of an attempt that ended like this; nothing after a conflict, since it is tried again at once.
pub(super) fn conclude(result: &Result<(), Error>) -> Option<Told> {
    let (condition, event, message) = match result {
        Err(error) if error.is_conflict() => return None,
        Ok(()) => (
            ("True", conditions::REASON_ENDPOINT_SLICE_DISPATCHED),
            reasons::DISPATCH_ENDPOINT_SLICE_SUCCEED,
            DONE.to_owned(),
        ),
        Err(error) => (
            ("False", conditions::REASON_ENDPOINT_SLICE_NOT_DISPATCHED),
            reasons::DISPATCH_ENDPOINT_SLICE_FAILED,
            error.to_string(),
        ),
    };
    Some(Told { condition: Some(condition), event, message })
}

pub(super) fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let live = view
        .multi
        .as_deref()
        .filter(|multi| multi.metadata.deletion_timestamp.is_none() && is_cross_cluster(multi));
    let mut wanted_keys = BTreeSet::new();
    if let Some(multi) = live {
        let providers = meant(&multi.spec.provider_clusters, &view.clusters);
        let consumers = consumers(view, multi, &mut plan);
        bound(&mut plan.warnings);
        // Looked up for each slice and consumer: a thousand slices in fifty clusters are fifty thousand Works.
        let existing: BTreeMap<Key, &Arc<Work>> =
            view.dispatched.iter().map(|work| (Key::of(work.as_ref()), work)).collect();
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for work in view.collected.iter().filter(|work| offers(view, work, &providers)) {
            plan.tells = true;
            let source = cluster_of_work(work);
            let Some(slice) = offered(work, &view.key) else { continue };
            let slices = taken.entry(source.clone()).or_default();
            *slices += 1;
            if *slices > MOST_SLICES {
                continue;
            }
            for consumer in consumers.iter().filter(|consumer| **consumer != source) {
                let wanted = match dispatched(&view.key, &slice, &source, consumer) {
                    Ok(wanted) => wanted,
                    Err(error) => {
                        plan.errors.push(error.to_string());
                        continue;
                    }
                };
                let key = wanted.key();
                let existing = existing.get(&key).copied();
                wanted_keys.insert(key);
                match (wanted.ensure(existing.map(AsRef::as_ref)), existing) {
                    (Ensure::Create(work), _) => plan.steps.push(Step::Create(work)),
                    // The provider has made it anew for another family of addresses. No server lets that be changed.
                    (Ensure::Update(work), Some(old)) if family(&work) != family(old) => {
                        plan.steps.push(Step::Delete(Arc::clone(old)));
                    }
                    (Ensure::Update(work), Some(old)) => plan.steps.push(Step::Update(Arc::clone(old), work)),
                    // The deletion of an old Work enqueues this again when it is complete.
                    _ => {}
                }
            }
        }
        for (source, count) in taken.into_iter().filter(|(_, count)| *count > MOST_SLICES) {
            let message = format!(
                "Provider cluster {source} has {count} EndpointSlices of the Service, {MOST_SLICES} of them are dispatched"
            );
            plan.warnings.push((reasons::DISPATCH_ENDPOINT_SLICE_FAILED, message));
        }
    }
    let left = view
        .dispatched
        .iter()
        .filter(|work| !is_going(work) && !wanted_keys.contains(&Key::of(work.as_ref())));
    plan.steps.extend(left.map(|work| Step::Delete(Arc::clone(work))));
    // Without collected slices there is no condition, unless there was one before.
    plan.tells |= live.is_some_and(|multi| {
        let mut said = multi.status.conditions.iter();
        said.any(|said| said.type_ == conditions::ENDPOINT_SLICE_DISPATCHED)
    });
    plan.release = view.collected.iter().filter(|work| is_let_go(work)).cloned().collect();
    plan
}

/// Returns the consumers to which slices can be dispatched. One that is not ready gets them when it is back.
fn consumers(view: &View, multi: &MultiClusterService, plan: &mut Plan) -> Vec<String> {
    let mut found = Vec::new();
    for consumer in meant(&multi.spec.consumer_clusters, &view.clusters) {
        let named = |cluster: &&Arc<Cluster>| cluster.metadata.name.as_ref() == Some(&consumer);
        let Some(cluster) = view.clusters.iter().find(named) else {
            plan.warnings
                .push((reasons::CLUSTER_NOT_FOUND, format!("Consumer cluster {consumer} is not found")));
            continue;
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if lacks_slices(cluster) {
            let message = format!("Consumer cluster {consumer} does not support EndpointSlice");
            plan.warnings.push((reasons::API_INCOMPATIBLE, message));
            continue;
        }
        // A cluster that has just joined gets them when its namespace exists.
        let has_space = view.spaces.contains(&consumer);
        if !cluster.status.is_ready() {
            let message =
                format!("Consumer cluster {consumer} is not ready, it gets the endpoints when it is");
            plan.warnings.push((reasons::SYNC_SERVICE_FAILED, message));
        } else if !has_space {
            let message =
                format!("Consumer cluster {consumer} gets the endpoints when it has an execution namespace");
            plan.warnings.push((reasons::SYNC_SERVICE_FAILED, message));
        }
        if has_space {
            found.push(consumer);
        }
    }
    found
}

/// Returns whether a collected slice has endpoints for others: it is wanted, and its cluster is a provider that is ready.
fn offers(view: &View, work: &Work, providers: &BTreeSet<String>) -> bool {
    let source = cluster_of_work(work);
    let cluster = view.clusters.iter().find(|cluster| cluster.metadata.name.as_ref() == Some(&source));
    !is_going(work)
        && service_of(work, Token::MultiClusterService).as_ref() == Some(&view.key)
        && annotation(work, PROVISION_CLUSTER).is_empty()
        && providers.contains(&source)
        && cluster
            .is_some_and(|cluster| cluster.status.is_ready() && cluster.metadata.deletion_timestamp.is_none())
}

/// Returns whether our finalizer on a collected Work is no longer needed.
fn is_let_go(work: &Work) -> bool {
    let held =
        work.metadata.finalizers.iter().flatten().any(|held| held == Token::MultiClusterService.finalizer());
    held && (is_going(work) || service_of(work, Token::MultiClusterService).is_none())
}

/// Returns which addresses the slice in a Work has.
fn family(work: &Work) -> Option<&str> {
    manifest(work, SLICE)?.get("addressType")?.as_str()
}

fn cluster_of_work(work: &Work) -> String {
    cluster_of(&Key::of(work)).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::super::MOST_WARNINGS;
    use super::super::super::works::{Wanted, collected};
    use super::*;
    use crate::fixtures::{cluster, deleting, merged, read, refused};
    use crate::plane::works::identify;

    fn key() -> Key {
        Key::new("shop", "web")
    }

    fn slice(name: &str) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
            "metadata": { "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": "web", "x": "y" } },
            "endpoints": [{ "addresses": ["fd00::1"] }], "ports": [{ "name": "http", "port": 8080 }],
        })
    }

    fn held(cluster: &str, tokens: &[Token], otherwise: Value) -> Arc<Work> {
        let tokens: BTreeSet<Token> = tokens.iter().copied().collect();
        let wanted = collected(cluster, &slice("a"), &key(), &tokens).unwrap();
        let Ensure::Create(mut work) = wanted.ensure(None) else { panic!("it is made") };
        identify(&mut work, "id");
        Arc::new(read(merged(serde_json::to_value(work).unwrap(), otherwise)))
    }

    /// Returns a Work as it is after it was written.
    fn stored(wanted: &Wanted) -> Arc<Work> {
        let Ensure::Create(mut work) = wanted.ensure(None) else { panic!("it is made") };
        identify(&mut work, "id");
        Arc::from(work)
    }

    fn brought(source: &str, consumer: &str) -> Arc<Work> {
        let wanted = dispatched(&key(), &slice("a"), source, consumer).unwrap();
        stored(&wanted)
    }

    fn going(source: &str, consumer: &str) -> Arc<Work> {
        Arc::new(read(merged(json!(*brought(source, consumer)), deleting())))
    }

    fn multi(providers: &[&str], consumers: &[&str], otherwise: Value) -> Option<Arc<MultiClusterService>> {
        let list = |names: &[&str]| -> Value { names.iter().map(|name| json!({ "name": name })).collect() };
        let base = json!({
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": {
                "types": ["CrossCluster"], "providerClusters": list(providers), "consumerClusters": list(consumers),
            },
        });
        Some(Arc::new(read(merged(base, otherwise))))
    }

    fn spaces() -> BTreeSet<String> {
        ["m1", "m2", "m3"].map(str::to_owned).into()
    }

    fn words(plan: &Plan) -> Vec<String> {
        let place = |work: &Work| cluster_of_work(work);
        let step = |step: &Step| match step {
            Step::Create(work) => format!("+{}", place(work)),
            Step::Update(_, work) => format!("~{}", place(work)),
            Step::Delete(work) => format!("-{}", place(work)),
        };
        let mut words: Vec<String> = plan.steps.iter().map(step).collect();
        words.extend(plan.release.iter().map(|work| format!("release {}", place(work))));
        words.extend(plan.warnings.iter().map(|(reason, _)| (*reason).to_owned()));
        words
    }

    #[test]
    fn which_slices_go_where() {
        use Token::{MultiClusterService as M, ServiceExport as E};
        let (ready, away) = ("True", "False");
        let one = |otherwise: Value| vec![held("m1", &[M], otherwise)];
        let lacks = json!({ "status": {
            "apiEnablements": [{ "groupVersion": "v1", "resources": [] }],
            "conditions": [
                { "type": "Ready", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                { "type": "CompleteAPIEnablements", "status": "True", "reason": "", "message": "",
                  "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        // Name; the MultiClusterService; readiness of m1 and m2; collected; dispatched; then: what happens.
        let cases = [
            (
                "to the consumer",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![],
                vec!["+m2"],
            ),
            (
                "to all but its own",
                multi(&[], &[], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![],
                vec!["+m2", "+m3"],
            ),
            (
                "it is there already",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![brought("m1", "m2")],
                vec![],
            ),
            (
                "the consumer changes",
                multi(&["m1"], &["m3"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![brought("m1", "m2")],
                vec!["+m3", "-m2"],
            ),
            (
                "its cluster is lost",
                multi(&["m1"], &["m2"], json!({})),
                away,
                ready,
                one(json!({})),
                vec![brought("m1", "m2")],
                vec!["-m2"],
            ),
            (
                "the consumer is away and gets it all the same",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                away,
                one(json!({})),
                vec![],
                vec!["+m2", "SyncServiceFailed"],
            ),
            (
                "its cluster does not provide any more",
                multi(&["m3"], &["m2"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![brought("m1", "m2")],
                vec!["-m2"],
            ),
            (
                "nobody is there",
                multi(&["m1"], &["m9"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![],
                vec!["ClusterNotFound"],
            ),
            (
                "the MultiClusterService goes",
                multi(&["m1"], &["m2"], deleting()),
                ready,
                ready,
                one(json!({})),
                vec![brought("m1", "m2")],
                vec!["-m2"],
            ),
            ("it is gone", None, ready, ready, one(json!({})), vec![brought("m1", "m2")], vec!["-m2"]),
            (
                "the collected one goes",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(deleting()),
                vec![brought("m1", "m2")],
                vec!["-m2", "release m1"],
            ),
            (
                "an export wants it, and nobody else",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                vec![held(
                    "m1",
                    &[E],
                    json!({ "metadata": { "finalizers": [M.finalizer(), E.finalizer()] } }),
                )],
                vec![],
                vec!["release m1"],
            ),
            (
                "an unwanted one goes already",
                multi(&["m1"], &["m3"], json!({})),
                ready,
                ready,
                vec![],
                vec![going("m1", "m2")],
                vec![],
            ),
            (
                "an old one has to go first",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(json!({})),
                vec![going("m1", "m2")],
                vec![],
            ),
            (
                "the collected one goes, and others hold it",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(merged(deleting(), json!({ "metadata": { "finalizers": [E.finalizer()] } }))),
                vec![],
                vec![],
            ),
            (
                "the collected one is of another Service by now",
                multi(&["m1"], &["m2"], json!({})),
                ready,
                ready,
                one(json!({ "metadata": { "labels": { "multiclusterservice.karmada.io/name": "api" } } })),
                vec![brought("m1", "m2")],
                vec!["-m2"],
            ),
            (
                "it is for a load balancer",
                multi(&["m1"], &["m2"], json!({ "spec": { "types": ["LoadBalancer"] } })),
                ready,
                ready,
                one(json!({})),
                vec![],
                vec![],
            ),
        ];
        for (name, multi, first, second, collected, dispatched, expected) in cases {
            let clusters = [("m1", first), ("m2", second), ("m3", "True")];
            let clusters = clusters.map(|(name, ready)| Arc::new(cluster(name, ready, json!({})))).into();
            let view = View { key: key(), multi, clusters, spaces: spaces(), collected, dispatched };
            assert_eq!(words(&decide(&view)), expected, "{name}");
        }
        // Which cluster leaves; what is in m2 already; then: what happens, where m1 and m2 provide, and m2 and m3 consume.
        for (leaving, dispatched, expected) in [
            ("nobody", vec![brought("m1", "m2")], vec!["+m3", "+m3"]),
            ("m1", vec![brought("m1", "m2")], vec!["+m3", "-m2"]),
            ("m2", vec![], vec!["+m3"]),
        ] {
            let otherwise = |name: &str| if name == leaving { deleting() } else { json!({}) };
            let clusters = ["m1", "m2", "m3"];
            let view = View {
                key: key(),
                multi: multi(&["m1", "m2"], &["m2", "m3"], json!({})),
                clusters: clusters.map(|name| Arc::new(cluster(name, "True", otherwise(name)))).into(),
                spaces: spaces(),
                collected: vec![held("m1", &[M], json!({})), held("m2", &[M], json!({}))],
                dispatched,
            };
            assert_eq!(words(&decide(&view)), expected, "{leaving} leaves");
        }
        let clusters = vec![Arc::new(cluster("m1", "True", json!({}))), Arc::new(cluster("m2", "", lacks))];
        let view = View {
            key: key(),
            multi: multi(&["m1"], &["m2"], json!({})),
            clusters,
            spaces: spaces(),
            collected: one(json!({})),
            dispatched: vec![],
        };
        assert_eq!(words(&decide(&view)), ["APIIncompatible"], "it does not know slices");
        let clusters = ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", json!({})))).into();
        let joined = View { clusters, spaces: BTreeSet::from(["m1".to_owned()]), ..view };
        let told = ["SyncServiceFailed"];
        assert_eq!(words(&decide(&joined)), told, "it has no execution namespace yet");
    }

    /// All of three clusters provide and consume.
    fn everywhere(collected: Vec<Arc<Work>>) -> View {
        View {
            key: key(),
            multi: multi(&[], &[], json!({})),
            clusters: ["m1", "m2", "m3"].map(|name| Arc::new(cluster(name, "True", json!({})))).into(),
            spaces: spaces(),
            collected,
            dispatched: vec![],
        }
    }

    #[test]
    fn consumers_of_any_number_that_are_unknown_make_a_bounded_number_of_events() {
        let names: Vec<String> = (0..MOST_WARNINGS + 2).map(|number| format!("gone{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let view = View { multi: multi(&["m1"], &names, json!({})), ..everywhere(vec![]) };
        assert_eq!(decide(&view).warnings.len(), MOST_WARNINGS + 1);
    }

    #[test]
    fn what_is_told_of_a_consumer_that_gets_nothing() {
        let lacks = json!({ "status": {
            "apiEnablements": [{ "groupVersion": "v1", "resources": [] }],
            "conditions": [{ "type": "CompleteAPIEnablements", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] } });
        let told = |name: &str, ready: &str, otherwise: Value, space: bool| {
            let mut view = View { multi: multi(&["m1"], &[name], json!({})), ..everywhere(vec![]) };
            view.clusters[1] = Arc::new(cluster("m2", ready, otherwise));
            if !space {
                view.spaces.remove("m2");
            }
            decide(&view).warnings.into_iter().map(|(_, message)| message).collect::<Vec<_>>()
        };
        let away = "Consumer cluster m2 is not ready, it gets the endpoints when it is";
        let joins = "Consumer cluster m2 gets the endpoints when it has an execution namespace";
        assert_eq!(told("m2", "True", json!({}), true), [""; 0]);
        assert_eq!(told("m2", "False", json!({}), true), [away]);
        assert_eq!(told("m2", "True", json!({}), false), [joins]);
        assert_eq!(told("m2", "", lacks, true), ["Consumer cluster m2 does not support EndpointSlice"]);
        assert_eq!(told("m9", "True", json!({}), true), ["Consumer cluster m9 is not found"]);
    }

    #[test]
    fn a_slice_that_was_brought_from_elsewhere_is_not_brought_further() {
        let brought = json!({ "metadata": { "annotations": { PROVISION_CLUSTER: "m3" } } });
        let collected = vec![held("m1", &[Token::MultiClusterService], brought)];
        assert_eq!(words(&decide(&everywhere(collected))), Vec::<String>::new());
    }

    #[test]
    fn a_slice_that_cannot_be_brought_is_told_and_keeps_no_other_back() {
        let mut deep = Work::clone(&held("m1", &[Token::MultiClusterService], json!({})));
        deep.spec.workload.manifests[0]["ports"] = (0..200).fold(json!([]), |inside, _| json!([inside]));
        let good = held("m2", &[Token::MultiClusterService], json!({}));
        let plan = decide(&everywhere(vec![Arc::new(deep), good]));
        assert_eq!(words(&plan), ["+m1", "+m3"]);
        assert_eq!(plan.errors.len(), 2, "for each consumer: {:?}", plan.errors);
    }

    #[test]
    fn when_the_condition_is_written() {
        let said = |kind: &str| {
            json!({ "status": { "conditions": [{
                "type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] } })
        };
        let one = || vec![held("m1", &[Token::MultiClusterService], json!({}))];
        let cases = [
            ("there is a slice", json!({}), one(), true),
            ("there was never one", json!({}), vec![], false),
            ("there was one", said("EndpointSliceDispatched"), vec![], true),
            ("another condition is there", said("ServiceApplied"), vec![], false),
            ("it goes", merged(said("EndpointSliceDispatched"), deleting()), one(), false),
        ];
        for (name, otherwise, collected, expected) in cases {
            let view = View {
                key: key(),
                multi: multi(&["m1"], &["m2"], otherwise),
                clusters: ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", json!({})))).into(),
                spaces: spaces(),
                collected,
                dispatched: vec![],
            };
            assert_eq!(decide(&view).tells, expected, "{name}");
        }
    }

    #[test]
    fn a_slice_of_another_family_is_taken_away_before_it_is_brought() {
        let brought_as = |family: &str, port: i32| {
            let mut old = Work::clone(&brought("m1", "m2"));
            old.spec.workload.manifests[0]["addressType"] = family.into();
            old.spec.workload.manifests[0]["ports"][0]["port"] = port.into();
            old
        };
        let clusters: Vec<_> = ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", json!({})))).into();
        for (what, old, expected) in [
            ("it is as wanted", brought_as("IPv6", 8080), vec![]),
            ("it has another port", brought_as("IPv6", 80), vec!["~m2"]),
            ("it has other addresses", brought_as("IPv4", 8080), vec!["-m2"]),
        ] {
            let view = View {
                key: key(),
                multi: multi(&["m1"], &["m2"], json!({})),
                clusters: clusters.clone(),
                spaces: spaces(),
                collected: vec![held("m1", &[Token::MultiClusterService], json!({}))],
                dispatched: vec![Arc::new(old)],
            };
            assert_eq!(words(&decide(&view)), expected, "{what}");
        }
    }

    #[test]
    fn a_cluster_has_no_say_in_other_namespaces_and_not_about_any_number_of_slices() {
        let view = |collected: Vec<Arc<Work>>| View {
            key: key(),
            multi: multi(&["m1"], &["m2"], json!({})),
            clusters: ["m1", "m2"].map(|name| Arc::new(cluster(name, "True", json!({})))).into(),
            spaces: spaces(),
            collected,
            dispatched: vec![],
        };
        let elsewhere = json!({ "spec": { "workload": { "manifests": [{ "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice", "metadata": { "name": "a", "namespace": "kube-system" } }] } } });
        let plan = decide(&view(vec![held("m1", &[Token::MultiClusterService], elsewhere)]));
        assert_eq!(words(&plan), Vec::<String>::new());
        let many = (0..=MOST_SLICES).map(|number| {
            let named = json!({ "metadata": { "name": format!("w{number}") } });
            held("m1", &[Token::MultiClusterService], named)
        });
        let plan = decide(&view(many.collect()));
        assert_eq!((plan.steps.len(), plan.warnings.len()), (MOST_SLICES, 1));
        let told = "Provider cluster m1 has 1001 EndpointSlices of the Service, 1000 of them are dispatched";
        assert_eq!(plan.warnings[0].1, told);
        let most = (0..MOST_SLICES).map(|number| {
            let named = json!({ "metadata": { "name": format!("w{number}") } });
            held("m1", &[Token::MultiClusterService], named)
        });
        let plan = decide(&view(most.collect()));
        assert_eq!((plan.steps.len(), plan.warnings.len()), (MOST_SLICES, 0), "so many are fine");
    }

    /// Minutes if each pair of slice and consumer looked through all Works.
    #[test]
    fn a_thousand_slices_in_fifty_clusters_are_compared_at_once() {
        let names: Vec<String> = (0..=50).map(|number| format!("m{number}")).collect();
        let mut slices = Vec::new();
        let mut works = Vec::new();
        for number in 0..MOST_SLICES {
            let slice = slice(&format!("s{number}"));
            let tokens = BTreeSet::from([Token::MultiClusterService]);
            let wanted = collected("m0", &slice, &key(), &tokens).unwrap();
            slices.push(stored(&wanted));
            for consumer in &names[1..] {
                let wanted = dispatched(&key(), &slice, "m0", consumer).unwrap();
                works.push(stored(&wanted));
            }
        }
        let gone = works.pop().unwrap();
        let view = View {
            key: key(),
            multi: multi(&["m0"], &[], json!({})),
            clusters: names.iter().map(|name| Arc::new(cluster(name, "True", json!({})))).collect(),
            spaces: names.iter().cloned().collect(),
            collected: slices,
            dispatched: works,
        };
        let began = std::time::Instant::now();
        let plan = decide(&view);
        assert_eq!(words(&plan), [format!("+{}", cluster_of_work(&gone))], "only one is missing");
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
    }

    #[test]
    fn what_is_stuck_holds_the_slices_of_its_own_cluster() {
        let deletes = Step::Delete(brought("m1", "m2"));
        assert_eq!(deletes.takes_from().as_deref(), Some("m1"));
        assert_eq!(Step::Update(brought("m1", "m2"), Box::default()).takes_from(), None);
        let free_of = |stuck: &[&str]| -> Vec<String> {
            let works = ["m1", "m3"].map(|name| held(name, &[Token::MultiClusterService], json!({})));
            let stuck = stuck.iter().map(|name| (*name).to_owned()).collect();
            free(works.into(), &stuck).iter().map(|work| cluster_of_work(work)).collect()
        };
        assert_eq!(free_of(&[]), ["m1", "m3"]);
        assert_eq!(free_of(&["m1"]), ["m3"]);
        assert_eq!(free_of(&[""]), Vec::<String>::new());
    }

    #[test]
    fn what_is_told_of_an_attempt() {
        let told = |status: &'static str, reason: &'static str, event: &'static str, message: &str| {
            Some(Told { condition: Some((status, reason)), event, message: message.to_owned() })
        };
        let failed = |message: &str| {
            told("False", "EndpointSliceDispatchedFailed", "DispatchEndpointSliceFailed", message)
        };
        let cases = [
            (
                "it worked",
                Ok(()),
                told("True", "EndpointSliceDispatchedSucceed", "DispatchEndpointSliceSucceed", DONE),
            ),
            ("it was refused", Err(refused(500)), failed("why")),
            ("others were faster", Err(refused(409)), None),
            (
                "others were faster, and one slice cannot be dispatched",
                Error::join(vec![refused(409), Error::Several(vec!["too deep".to_owned()])]),
                failed("why; too deep"),
            ),
        ];
        for (name, result, expected) in cases {
            assert_eq!(conclude(&result), expected, "{name}");
        }
    }

    #[test]
    fn a_dispatched_slice_has_its_endpoints_and_nothing_else_of_its_source() {
        let work = brought("m1", "m2");
        assert_eq!(work.spec.suspend_dispatching, None);
        assert_eq!(work.metadata.finalizers.clone().unwrap(), ["karmada.io/execution-controller"]);
        let manifest = &work.spec.workload.manifests[0];
        assert_eq!(manifest["metadata"]["name"], "m1-a");
        assert_eq!(manifest["addressType"], "IPv6");
        assert_eq!(manifest["endpoints"], slice("a")["endpoints"]);
        assert_eq!(manifest["ports"], slice("a")["ports"]);
        assert_eq!(manifest["metadata"]["labels"]["kubernetes.io/service-name"], "web");
        assert_eq!(manifest["metadata"]["labels"].get("x"), None);
        assert_ne!(work.metadata.name, brought("m3", "m2").metadata.name, "slices of one name do not meet");
    }
}
