//! What the Works of services across clusters look like, and what is written to make one be so. Pure.
//!
//! Three kinds: a *request* stands in the execution namespace of a provider and asks for the endpoints of a MultiClusterService;
//! a *collected* one holds an EndpointSlice of that cluster; a *dispatched* one brings such a slice to a consumer. The first two
//! are suspended for ever: they tell something and are never carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use api::labels::annotations::PROVISION_CLUSTER;
use api::labels::{
    ENDPOINT_SLICE_DISPATCH_CONTROLLER, ENDPOINT_SLICE_MANAGED_BY, ENDPOINT_SLICE_NAME,
    ENDPOINT_SLICE_NAMESPACE, ENDPOINT_SLICE_WORK_MANAGED_BY, MULTI_CLUSTER_SERVICE_NAME,
    MULTI_CLUSTER_SERVICE_NAMESPACE, MULTI_CLUSTER_SERVICE_PERMANENT_ID, WORK_PERMANENT_ID, finalizers,
};
use api::networking::MultiClusterService;
use api::work::Work;
use apimachinery::patch::merge::drop_nulls;
use propagation::Object;
use propagation::render::DesiredWork;
use runtime::Key;
use serde_json::{Value, json};

use super::SERVICE_NAME;
use crate::plane::works::identify;

/// The kind of object that wants an EndpointSlice to be collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Token {
    MultiClusterService,
    ServiceExport,
}

impl Token {
    pub(super) const ALL: [Self; 2] = [Self::MultiClusterService, Self::ServiceExport];

    fn name(self) -> &'static str {
        match self {
            Self::MultiClusterService => "MultiClusterService",
            Self::ServiceExport => "ServiceExport",
        }
    }

    /// Returns the labels that name the Service: its namespace and its name.
    pub(super) fn labels(self) -> [&'static str; 2] {
        match self {
            Self::MultiClusterService => [MULTI_CLUSTER_SERVICE_NAMESPACE, MULTI_CLUSTER_SERVICE_NAME],
            Self::ServiceExport => [ENDPOINT_SLICE_NAMESPACE, ENDPOINT_SLICE_NAME],
        }
    }

    /// Returns the finalizer of the controller that brings the slice further.
    pub(super) fn finalizer(self) -> &'static str {
        match self {
            Self::MultiClusterService => finalizers::MCS_ENDPOINT_SLICE_DISPATCH,
            Self::ServiceExport => finalizers::ENDPOINT_SLICE,
        }
    }
}

pub(super) fn label<'a>(work: &'a Work, key: &str) -> &'a str {
    work.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

pub(super) fn annotation<'a>(work: &'a Work, key: &str) -> &'a str {
    work.metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

/// Returns the Service that a Work names for this token, if it does.
pub(super) fn service_of(work: &Work, token: Token) -> Option<Key> {
    let [namespace, name] = token.labels().map(|key| label(work, key));
    (!name.is_empty()).then(|| Key::new(namespace, name))
}

/// Returns who wants the slice in a collected Work.
pub(super) fn tokens(work: &Work) -> BTreeSet<Token> {
    let named = label(work, ENDPOINT_SLICE_WORK_MANAGED_BY);
    let has = |token: &Token| named.split('.').any(|name| name == token.name());
    Token::ALL.into_iter().filter(has).collect()
}

pub(super) fn is_going(work: &Work) -> bool {
    work.metadata.deletion_timestamp.is_some()
}

/// Returns the manifest of this kind in a Work.
pub(super) fn manifest<'a>(work: &'a Work, kind: &str) -> Option<&'a Value> {
    work.spec.workload.manifests.iter().find(|manifest| manifest.kind() == kind)
}

/// As many slices of one Service are taken from one cluster. Kubernetes makes one for a hundred endpoints, so that this is a Service with
/// a hundred thousand; whoever has the rights to write slices in a member could make any number of them.
pub(super) const MOST_SLICES: usize = 1000;

/// Returns the slice in a collected Work, as far as it may be brought to other clusters.
///
/// A cluster offers endpoints of its own pods, for the Service that the Work names. It has no say in other namespaces: a slice of
/// another one is left out. Neither does it direct clients of another cluster to what is reached by every machine for itself: its own
/// loopback, or the link on which clouds serve their credentials. API servers refuse such addresses; not every member is honest.
pub(super) fn offered(work: &Work, service: &Key) -> Option<Value> {
    let slice = manifest(work, super::SLICE)?;
    if slice.namespace() != service.namespace {
        return None;
    }
    let mut slice = slice.clone();
    if let Some(endpoints) = slice.get_mut("endpoints").and_then(Value::as_array_mut) {
        endpoints.retain_mut(|endpoint| {
            let Some(addresses) = endpoint.get_mut("addresses").and_then(Value::as_array_mut) else {
                return true;
            };
            let before = addresses.len();
            addresses.retain(|address| address.as_str().is_none_or(is_of_a_pod));
            before == 0 || !addresses.is_empty()
        });
    }
    Some(slice)
}

/// Returns whether an address may belong to a pod that others reach. What is not an IP address is judged by who reads it.
fn is_of_a_pod(address: &str) -> bool {
    let plain = |address: Ipv4Addr| {
        !(address.is_loopback()
            || address.is_link_local()
            || address.is_unspecified()
            || address.is_multicast()
            || address.is_broadcast())
    };
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => plain(address),
        Ok(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(inside) => plain(inside),
            None => {
                !(address.is_loopback()
                    || address.is_unspecified()
                    || address.is_multicast()
                    || address.is_unicast_link_local())
            }
        },
        Err(_) => true,
    }
}

/// A Work as it should be.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    work: DesiredWork,
    finalizers: Vec<&'static str>,
    /// Labels that it must not have.
    without: Vec<&'static str>,
}

/// What it takes to make a Work be as wanted.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ensure {
    /// Whoever writes it gives it an identity: [`crate::plane::works::identified`].
    Create(Box<Work>),
    Update(Box<Work>),
    Nothing,
    /// The old one has to go first.
    Wait,
}

impl Wanted {
    pub(super) fn key(&self) -> Key {
        Key::new(self.work.namespace.clone(), self.work.name.clone())
    }

    /// Returns what it takes to make the existing Work, if there is one, be as wanted.
    pub(super) fn ensure(&self, existing: Option<&Work>) -> Ensure {
        let mut made = self.work.create();
        made.metadata.finalizers = Some(self.finalizers.iter().map(|name| (*name).to_owned()).collect());
        let Some(existing) = existing else { return Ensure::Create(Box::new(made)) };
        if is_going(existing) {
            return Ensure::Wait;
        }
        identify(&mut made, label(existing, WORK_PERMANENT_ID));
        let mut work = existing.clone();
        let labels = work.metadata.labels.get_or_insert_default();
        labels.extend(made.metadata.labels.unwrap_or_default());
        labels.retain(|key, _| !self.without.contains(&key.as_str()));
        work.metadata
            .annotations
            .get_or_insert_default()
            .extend(made.metadata.annotations.unwrap_or_default());
        for finalizer in made.metadata.finalizers.unwrap_or_default() {
            let held = work.metadata.finalizers.get_or_insert_default();
            if !held.contains(&finalizer) {
                held.push(finalizer);
            }
        }
        work.spec = made.spec;
        let same = work.spec == existing.spec && {
            let (now, then) = (&work.metadata, &existing.metadata);
            let empty = BTreeMap::new();
            now.labels.as_ref() == Some(then.labels.as_ref().unwrap_or(&empty))
                && now.annotations.as_ref() == Some(then.annotations.as_ref().unwrap_or(&empty))
                && now.finalizers == then.finalizers
        };
        if same { Ensure::Nothing } else { Ensure::Update(Box::new(work)) }
    }
}

/// Returns the Work that asks a provider for the endpoints of a MultiClusterService.
pub(super) fn request(service: &MultiClusterService, cluster: &str) -> propagation::Result<Wanted> {
    let manifest = serde_json::to_value(service).unwrap_or_default();
    let Key { namespace, name } = Key::of(service);
    let id = service.metadata.labels.as_ref().and_then(|all| all.get(MULTI_CLUSTER_SERVICE_PERMANENT_ID));
    let labels = [
        (MULTI_CLUSTER_SERVICE_PERMANENT_ID, id.cloned().unwrap_or_default()),
        (MULTI_CLUSTER_SERVICE_NAMESPACE, namespace),
        (MULTI_CLUSTER_SERVICE_NAME, name),
    ];
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let work = DesiredWork::new(cluster, manifest, labels, BTreeMap::new())?.suspended(Some(true));
    Ok(Wanted { work, finalizers: Vec::new(), without: Vec::new() })
}

/// Returns the Work that holds a slice of a cluster for those who want it.
pub(super) fn collected(
    cluster: &str,
    slice: &Value,
    service: &Key,
    tokens: &BTreeSet<Token>,
) -> propagation::Result<Wanted> {
    let mut labels = BTreeMap::from([(ENDPOINT_SLICE_WORK_MANAGED_BY.to_owned(), joined(tokens))]);
    for token in tokens {
        let [namespace, name] = token.labels();
        labels.insert(namespace.to_owned(), service.namespace.clone());
        labels.insert(name.to_owned(), service.name.clone());
    }
    let without = Token::ALL.into_iter().filter(|token| !tokens.contains(token));
    let without = without.flat_map(Token::labels).collect();
    let work = DesiredWork::new(cluster, without_nulls(slice.clone()), labels, BTreeMap::new())?;
    let work = work.suspended(Some(true));
    Ok(Wanted { work, finalizers: tokens.iter().map(|token| token.finalizer()).collect(), without })
}

/// A slice without pods has neither endpoints nor ports, and says so by nulls. API servers leave those out of what is patched, so that the
/// Work would never be as wanted.
fn without_nulls(mut manifest: Value) -> Value {
    drop_nulls(&mut manifest);
    manifest
}

fn joined(tokens: &BTreeSet<Token>) -> String {
    tokens.iter().map(|token| token.name()).collect::<Vec<_>>().join(".")
}

/// Returns a collected Work that fewer want than before; nothing if nobody does.
pub(super) fn released(work: &Work, left: &BTreeSet<Token>) -> Option<Work> {
    if left.is_empty() {
        return None;
    }
    let mut released = work.clone();
    let labels = released.metadata.labels.get_or_insert_default();
    labels.insert(ENDPOINT_SLICE_WORK_MANAGED_BY.to_owned(), joined(left));
    for token in Token::ALL.into_iter().filter(|token| !left.contains(token)) {
        for key in token.labels() {
            labels.remove(key);
        }
    }
    Some(released)
}

/// Returns the Work that brings a collected slice to a consumer.
///
/// Upstream gives it the name of the collected Work, so that slices of one name in two clusters get into each other's way.
/// Ours goes by the name that the slice has in the consumer.
pub(super) fn dispatched(
    service: &Key,
    slice: &Value,
    source: &str,
    consumer: &str,
) -> propagation::Result<Wanted> {
    let name = api::names::dispatched_endpoint_slice(source, slice.name());
    let manifest = json!({
        "apiVersion": super::SLICE_API, "kind": super::SLICE,
        "metadata": {
            "name": name, "namespace": slice.namespace(),
            "labels": {
                SERVICE_NAME: service.name, ENDPOINT_SLICE_MANAGED_BY: ENDPOINT_SLICE_DISPATCH_CONTROLLER,
            },
            "annotations": { PROVISION_CLUSTER: source },
        },
        "addressType": slice["addressType"], "endpoints": slice["endpoints"], "ports": slice["ports"],
    });
    let [namespace, name] = Token::MultiClusterService.labels();
    let labels = [(namespace, &service.namespace), (name, &service.name)];
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    let annotations = BTreeMap::from([(PROVISION_CLUSTER.to_owned(), source.to_owned())]);
    let work = DesiredWork::new(consumer, without_nulls(manifest), labels, annotations)?;
    Ok(Wanted { work, finalizers: vec![finalizers::EXECUTION], without: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deleting, merged, read, work};

    fn offering(namespace: &str, addresses: &[&[&str]]) -> Option<Vec<Value>> {
        let endpoints: Vec<Value> = addresses.iter().map(|all| json!({ "addresses": all })).collect();
        let work = work(
            "m1",
            json!({ "spec": { "workload": { "manifests": [{
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "web-1", "namespace": namespace }, "endpoints": endpoints }] } } }),
        );
        let slice = offered(&work, &Key::new("shop", "web"))?;
        Some(slice["endpoints"].as_array().cloned().unwrap_or_default())
    }

    #[test]
    fn a_slice_without_pods_is_as_wanted_after_a_server_has_left_out_its_nulls() {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "shop" }, "endpoints": null, "ports": null,
        });
        let (service, tokens) = (Key::new("shop", "web"), BTreeSet::from([Token::MultiClusterService]));
        let wanted = [collected("m1", &slice, &service, &tokens), dispatched(&service, &slice, "m1", "m2")];
        for wanted in wanted.map(|wanted| wanted.expect("a Work")) {
            let Ensure::Create(mut stored) = wanted.ensure(None) else { panic!("it is made") };
            identify(&mut stored, "id");
            stored.spec.workload.manifests.iter_mut().for_each(drop_nulls);
            assert_eq!(wanted.ensure(Some(&stored)), Ensure::Nothing, "{}", wanted.key());
        }
    }

    #[test]
    fn what_it_takes_to_make_a_work_be_as_wanted() {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": "web-1", "namespace": "shop" }, "endpoints": [{ "addresses": ["10.0.0.1"] }],
        });
        let (service, token) = (Key::new("shop", "web"), Token::ServiceExport);
        let wanted = collected("m1", &slice, &service, &BTreeSet::from([token])).expect("a Work");
        let Ensure::Create(mut stored) = wanted.ensure(None) else { panic!("it is made") };
        identify(&mut stored, "id");
        let changed = |change: Value| -> Work { read(merged(json!(stored), change)) };
        let metadata = |change: Value| changed(json!({ "metadata": change }));
        let whole = changed(json!({}));
        assert_eq!(wanted.ensure(Some(&whole)), Ensure::Nothing);
        assert_eq!(wanted.ensure(Some(&changed(deleting()))), Ensure::Wait, "it goes");
        let theirs = json!({ "labels": { "x": "y" }, "annotations": { "x": "y" }, "finalizers": [token.finalizer(), "x"] });
        assert_eq!(wanted.ensure(Some(&metadata(theirs))), Ensure::Nothing, "others have added to it");
        let [namespace, name] = token.labels();
        let [multi_namespace, multi_name] = Token::MultiClusterService.labels();
        for (what, change) in [
            ("the namespace of its Service", json!({ "labels": { namespace: "other" } })),
            ("the name of its Service", json!({ "labels": { name: null } })),
            ("its finalizer", json!({ "finalizers": null })),
            ("what it holds", json!({})),
            (
                "a label that it must not have",
                json!({ "labels": { multi_namespace: "shop", multi_name: "web" } }),
            ),
        ] {
            let mut old = metadata(change);
            if what == "what it holds" {
                old.spec.workload.manifests[0]["endpoints"] = json!([]);
            }
            let Ensure::Update(updated) = wanted.ensure(Some(&old)) else { panic!("{what} is put right") };
            assert_eq!(*updated, whole, "{what}");
        }
        let wanted = dispatched(&service, &slice, "m1", "m2").expect("a Work");
        let Ensure::Create(mut stored) = wanted.ensure(None) else { panic!("it is made") };
        identify(&mut stored, "id");
        let unmarked: Work = read(merged(json!(stored), json!({ "metadata": { "annotations": null } })));
        assert_eq!(wanted.ensure(Some(&unmarked)), Ensure::Update(stored), "where it is from");
    }

    #[test]
    fn a_request_holds_its_service_and_is_never_carried_out() {
        let multi = json!({
            "metadata": { "name": "web", "namespace": "shop", "labels": { MULTI_CLUSTER_SERVICE_PERMANENT_ID: "id" } },
            "spec": { "types": ["CrossCluster"] },
        });
        let Ensure::Create(work) = request(&read(multi), "m1").expect("a Work").ensure(None) else {
            panic!("it is made")
        };
        let manifest = &work.spec.workload.manifests[0];
        assert_eq!(manifest["apiVersion"], "networking.karmada.io/v1alpha1");
        assert_eq!(
            (manifest.kind(), manifest.namespace(), manifest.name()),
            ("MultiClusterService", "shop", "web")
        );
        assert_eq!(work.spec.suspend_dispatching, Some(true));
        assert_eq!(work.metadata.namespace.as_deref(), Some("karmada-es-m1"));
        assert!(work.metadata.finalizers.unwrap_or_default().is_empty());
        let labels = work.metadata.labels.unwrap_or_default();
        let value = |key: &str| labels.get(key).map(String::as_str);
        assert_eq!(value(MULTI_CLUSTER_SERVICE_PERMANENT_ID), Some("id"));
        assert_eq!(value("multiclusterservice.karmada.io/namespace"), Some("shop"));
        assert_eq!(value("multiclusterservice.karmada.io/name"), Some("web"));
    }

    #[test]
    fn endpoints_without_addresses_stay() {
        let endpoints = json!([{ "addresses": [] }, { "hostname": "web" }]);
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "web-1", "namespace": "shop" }, "endpoints": endpoints,
        });
        let work = work("m1", json!({ "spec": { "workload": { "manifests": [slice] } } }));
        assert_eq!(offered(&work, &Key::new("shop", "web")).expect("a slice")["endpoints"], endpoints);
    }

    #[test]
    fn a_cluster_offers_endpoints_of_its_own_pods_and_nothing_else() {
        let one = |address: &str| json!({ "addresses": [address] });
        let kept = offering("shop", &[&["10.0.0.1"], &["fd00::1"], &["pod.example.com"]]).expect("a slice");
        assert_eq!(kept, [one("10.0.0.1"), one("fd00::1"), one("pod.example.com")]);
        for hostile in [
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            let kept = offering("shop", &[&[hostile], &["10.0.0.1", hostile]]).expect("a slice");
            assert_eq!(kept, [one("10.0.0.1")], "{hostile}");
        }
        assert_eq!(offering("kube-system", &[&["10.0.0.1"]]), None, "it is of another namespace");
    }
}
