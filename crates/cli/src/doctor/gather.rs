//! Reads the state of a Service from the control plane and the members.
//!
//! Anything that cannot be read is reported in words beside the rest: an unavailable member, a kind that is not served, a missing
//! right. Nothing is written.

use api::labels::{
    ENDPOINT_SLICE_NAME, ENDPOINT_SLICE_NAMESPACE, MULTI_CLUSTER_SERVICE_NAME,
    MULTI_CLUSTER_SERVICE_NAMESPACE,
};
use api::names;
use futures::{StreamExt, stream};
use serde_json::Value;

use crate::failure;
use crate::server::{Plane, Server, query, segment};

/// How many members are queried at once.
const AT_ONCE: usize = 16;
/// How many nodes of a member are checked for the address ranges of their pods.
const NODES: usize = 500;
/// The label with the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The state that was read.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) service: Option<Value>,
    pub(super) multi: Option<Value>,
    pub(super) export: Option<Value>,
    pub(super) import: Option<Value>,
    /// The Works that concern the Service: requests, collected slices, dispatched slices.
    pub(super) works: Vec<Value>,
    pub(super) clusters: Vec<ClusterFacts>,
    /// Whether some clusters were left out on purpose.
    pub(super) partial: bool,
    /// What could not be read in the control plane.
    pub(super) unreadable: Vec<String>,
}

#[derive(Debug)]
pub(super) struct ClusterFacts {
    pub(super) name: String,
    /// The Cluster.
    pub(super) object: Value,
    /// The state of the member, or why it could not be queried.
    pub(super) member: Result<MemberFacts, String>,
}

/// The state of a member.
#[derive(Debug, Default)]
pub(super) struct MemberFacts {
    pub(super) service: bool,
    pub(super) derived: bool,
    pub(super) export: bool,
    /// Whether the member serves ServiceExports at all.
    pub(super) knows_exports: bool,
    /// Of the Service and of the derived one.
    pub(super) slices: Vec<Value>,
    /// Address ranges of its pods.
    pub(super) networks: Vec<String>,
    /// What could not be read.
    pub(super) unreadable: Vec<String>,
}

pub(super) async fn gather(
    plane: &Plane,
    namespace: &str,
    name: &str,
    words: &[String],
) -> anyhow::Result<Facts> {
    let server = &plane.server;
    let chosen = plane.select(words).await?;
    let list = server.get("/apis/cluster.karmada.io/v1alpha1/clusters").await?;
    let all = list["items"].as_array().map_or(0, Vec::len);
    let mut facts = Facts {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        partial: chosen.len() < all,
        ..Facts::default()
    };
    let object = |group: &str, plural: &str| {
        format!("{group}/namespaces/{}/{plural}/{}", segment(namespace), segment(name))
    };
    let mut unreadable = Vec::new();
    facts.service = optional(server, &object("/api/v1", "services"), "the Service", &mut unreadable).await;
    let multi = object("/apis/networking.karmada.io/v1alpha1", "multiclusterservices");
    facts.multi = optional(server, &multi, "the MultiClusterService", &mut unreadable).await;
    let group = "/apis/multicluster.x-k8s.io/v1alpha1";
    facts.export =
        optional(server, &object(group, "serviceexports"), "the ServiceExport", &mut unreadable).await;
    facts.import =
        optional(server, &object(group, "serviceimports"), "the ServiceImport", &mut unreadable).await;
    for [in_namespace, called] in [
        [MULTI_CLUSTER_SERVICE_NAMESPACE, MULTI_CLUSTER_SERVICE_NAME],
        [ENDPOINT_SLICE_NAMESPACE, ENDPOINT_SLICE_NAME],
    ] {
        let selector = query(&format!("{in_namespace}={namespace},{called}={name}"));
        let path = format!("/apis/work.karmada.io/v1alpha1/works?labelSelector={selector}");
        for work in listed(server, &path, "Works", &mut unreadable).await {
            // A slice that both ways need is in one Work.
            let same = |other: &Value| other["metadata"]["uid"] == work["metadata"]["uid"];
            if !facts.works.iter().any(same) {
                facts.works.push(work);
            }
        }
    }
    unreadable.dedup();
    facts.unreadable = unreadable;
    let known = list["items"].as_array().cloned().unwrap_or_default();
    let known = known.into_iter().filter(|cluster| {
        cluster["metadata"]["name"].as_str().is_some_and(|name| chosen.iter().any(|each| each == name))
    });
    let asked = known.map(|cluster| async move {
        let called = cluster["metadata"]["name"].as_str().unwrap_or("").to_owned();
        let member = ask(&plane.known_member(&called), namespace, name).await;
        ClusterFacts { name: called, object: cluster, member: member.map_err(|error| format!("{error:#}")) }
    });
    facts.clusters = stream::iter(asked).buffered(AT_ONCE).collect().await;
    Ok(facts)
}

async fn ask(member: &Server, namespace: &str, name: &str) -> anyhow::Result<MemberFacts> {
    let derived = names::derived_service(name);
    let mut facts = MemberFacts::default();
    let mut unreadable = Vec::new();
    let spaced = format!("/namespaces/{}", segment(namespace));
    // The first request shows whether the member answers at all.
    let path = format!("/api/v1{spaced}/services/{}", segment(name));
    facts.service = match member.get(&path).await {
        Ok(_) => true,
        Err(error) if failure::is_not_found(&error) => false,
        Err(error) => return Err(error),
    };
    let path = format!("/api/v1{spaced}/services/{}", segment(&derived));
    facts.derived = optional(member, &path, "the derived Service", &mut unreadable).await.is_some();
    let path = format!("/apis/multicluster.x-k8s.io/v1alpha1{spaced}/serviceexports/{}", segment(name));
    (facts.export, facts.knows_exports) = match member.get(&path).await {
        Ok(_) => (true, true),
        Err(error) if is_missing(&error) => (false, is_about_an_object(&error)),
        Err(error) => {
            unreadable.push(format!("the ServiceExport: {error:#}"));
            (false, true)
        }
    };
    let selector = query(&format!("{SERVICE_NAME} in ({name},{derived})"));
    let path = format!("/apis/discovery.k8s.io/v1{spaced}/endpointslices?labelSelector={selector}");
    facts.slices = listed(member, &path, "EndpointSlices", &mut unreadable).await;
    let nodes = listed(member, &format!("/api/v1/nodes?limit={NODES}"), "Nodes", &mut unreadable).await;
    for node in nodes {
        let ranges = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
        let ranges: Vec<&str> = ranges.chain([&node["spec"]["podCIDR"]]).filter_map(Value::as_str).collect();
        facts.networks.extend(ranges.into_iter().map(str::to_owned));
    }
    facts.networks.sort();
    facts.networks.dedup();
    facts.unreadable = unreadable;
    Ok(facts)
}

/// Returns whether an object or its whole kind is missing; servers report a missing kind in plain text.
fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<failure::Refusal>().is_some_and(|refusal| refusal.code == 404)
}

/// Returns whether only an object is missing, and not its whole kind.
fn is_about_an_object(error: &anyhow::Error) -> bool {
    let refusal = error.downcast_ref::<failure::Refusal>();
    refusal.is_some_and(|refusal| {
        refusal.status["details"]["name"].as_str().is_some_and(|name| !name.is_empty())
    })
}

async fn optional(server: &Server, path: &str, what: &str, unreadable: &mut Vec<String>) -> Option<Value> {
    match server.get(path).await {
        Ok(found) => Some(found),
        Err(error) if is_missing(&error) => None,
        Err(error) => {
            unreadable.push(format!("{what}: {error:#}"));
            None
        }
    }
}

async fn listed(server: &Server, path: &str, what: &str, unreadable: &mut Vec<String>) -> Vec<Value> {
    match server.get(path).await {
        Ok(mut list) => match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        },
        Err(error) => {
            unreadable.push(format!("{what}: {error:#}"));
            Vec::new()
        }
    }
}
