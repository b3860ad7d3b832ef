//! `metrics.k8s.io`, `custom.metrics.k8s.io` and `external.metrics.k8s.io` over all members: what upstream has a metrics adapter for.
//!
//! In: a request that the server has authorised for these paths. Out: what all ready members say, merged (`merge`). Members are asked
//! at once and live, over the connections that controllers have anyway or, in pull mode, through their tunnels, each within its in-flight
//! limit, a deadline and the bound on the size of answers; one that fails is left out. Whether the caller may ask is for the RBAC
//! of the control plane: members are asked with the credentials of the control plane. One caller has only so many such
//! requests under way.

mod merge;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::Cluster;
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::negotiate::{Offer, Shape};
use apiserver::http::{Body, respond};
use apiserver::registry::{ANY, Kind, Rules, Source};
use apiserver::server::Server;
use futures::future::join_all;
use http::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use member::{Connection, Member};
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tunnel::Tunnels;

use crate::controllers::Tasks;
use crate::shares::Shares;

const RESOURCE: &str = "metrics.k8s.io";
const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";

/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many requests of one caller may be under way: each asks every member.
const AT_ONCE: usize = 8;

/// Returns what a control plane serves beside the definitions and the native kinds.
pub(crate) fn kinds() -> Vec<Arc<Kind>> {
    vec![
        served(RESOURCE, "v1beta1", "pods", "PodMetrics", true),
        served(RESOURCE, "v1beta1", "nodes", "NodeMetrics", false),
        served(CUSTOM, "v1beta1", ANY, "MetricValueList", true),
        served(CUSTOM, "v1beta2", ANY, "MetricValueList", true),
        served(EXTERNAL, "v1beta1", ANY, "ExternalMetricValueList", true),
    ]
}

/// Returns whether requests for this group are answered here.
pub(crate) fn serves(group: &str) -> bool {
    matches!(group, RESOURCE | CUSTOM | EXTERNAL)
}

fn served(group: &str, version: &str, plural: &str, kind: &str, namespaced: bool) -> Arc<Kind> {
    let gvk = Gvk::new(group, version, kind);
    Arc::new(Kind {
        api_version: gvk.api_version(),
        list_kind: format!("{kind}List"),
        resource: GroupResource::new(group, plural),
        singular: String::new(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: vec!["get".to_owned(), "list".to_owned()],
        subresources: Vec::new(),
        collection: Arc::from(format!("{group}/{version}/{plural}")),
        source: Source::Native,
        rules: Rules { computed: true, ..Rules::default() },
        storage: gvk.clone(),
        gvk,
    })
}

/// A member that can be asked.
struct Reached {
    cluster: String,
    client: Client,
    /// Whose in-flight limit counts; a tunnel has one of its own.
    member: Option<Arc<Member>>,
}

/// The way to all members' metrics.
pub(crate) struct Metrics {
    tasks: Tasks,
    tunnels: Tunnels,
    /// For members that are reached through tunnels.
    clients: Mutex<HashMap<String, Client>>,
    shares: Shares,
}

impl Metrics {
    pub(crate) fn new(tasks: Tasks, tunnels: Tunnels) -> Self {
        Self { tasks, tunnels, clients: Mutex::default(), shares: Shares::new(AT_ONCE) }
    }

    /// Answers a request for metrics.
    pub(crate) async fn answer(
        &self,
        server: &Server,
        context: &Context,
        kind: &Kind,
    ) -> Result<Response<Body>, Status> {
        let _share = self.shares.take(&context.user)?;
        let sources = self.sources(server).await.ok_or_else(|| {
            let hint = "no controllers run in this server, which keep the connections to members; start it with --controllers='*'";
            Status::unavailable(format!("metrics of members are not available: {hint}"))
        })?;
        answer(&sources, context, kind).await
    }

    /// Returns all ready members; nothing if nobody in this process is connected to members.
    async fn sources(&self, server: &Server) -> Option<Vec<Reached>> {
        let connected = self.tasks.ready_members();
        let tunnelled = self.tunnels.all_open();
        if connected.is_none() && tunnelled.is_empty() {
            return None;
        }
        let of_member = |member: Arc<Member>| Reached {
            cluster: member.name().to_owned(),
            client: member.client().clone(),
            member: Some(member),
        };
        let mut sources: Vec<Reached> = connected.into_iter().flatten().map(of_member).collect();
        self.clients.lock().retain(|name, _| tunnelled.binary_search(name).is_ok());
        for cluster in tunnelled {
            if !is_ready(server, &cluster) || sources.iter().any(|source| source.cluster == cluster) {
                continue;
            }
            let known = self.clients.lock().get(&cluster).cloned();
            let client = match known {
                Some(client) => client,
                None => {
                    let way = Connection::tunnelled(&cluster, &self.tunnels);
                    let Ok(client) = way.limited_client().await else { continue };
                    self.clients.lock().insert(cluster.clone(), client.clone());
                    client
                }
            };
            sources.push(Reached { cluster, client, member: None });
        }
        sources.sort_by(|one, other| one.cluster.cmp(&other.cluster));
        Some(sources)
    }
}

fn is_ready(server: &Server, name: &str) -> bool {
    let registry = server.registry.load();
    let kind = registry.find(api::cluster::GROUP, "v1alpha1", "clusters");
    let stored = kind.and_then(|kind| server.stored(kind, "", name));
    let Some(cluster) = stored.and_then(|object| Cluster::deserialize(object).ok()) else { return false };
    let ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
    cluster.status.conditions.iter().any(ready) && cluster.metadata.deletion_timestamp.is_none()
}

async fn answer(members: &[Reached], context: &Context, kind: &Kind) -> Result<Response<Body>, Status> {
    let offer = Offer {
        protobuf: false,
        yaml: true,
        table: true,
        metadata: false,
        metadata_list: false,
        native: false,
    };
    let accepted = context.accept(offer)?;
    let query = context.query.raw();
    let document = match kind.gvk.group.as_str() {
        RESOURCE => return resource(members, context, kind, accepted).await,
        CUSTOM => custom(members, context, kind, query).await?,
        _ => external(members, context, query).await,
    };
    Ok(respond::value(200, &document, accepted))
}

async fn resource(
    members: &[Reached],
    context: &Context,
    kind: &Kind,
    accepted: apiserver::http::negotiate::Accepted,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let path = match info.namespace.as_str() {
        "" => format!("/apis/{}/{}", kind.api_version, kind.resource.resource),
        space => format!("/apis/{}/namespaces/{space}/{}", kind.api_version, kind.resource.resource),
    };
    let single = info.verb == "get";
    let items = if single {
        let answers = ask(members, &format!("{path}/{}", info.name), "").await;
        let resource = GroupResource::new("", kind.resource.resource.as_str());
        vec![merge::single(&resource, &info.name, answers)?]
    } else {
        merge::listed(ask(members, &path, context.query.raw()).await)
    };
    let document = match accepted.shape {
        Shape::Table { beta } => sim::metrics_table(&items, beta),
        _ if single => {
            let mut item = items.into_iter().next().unwrap_or_default();
            item["apiVersion"] = json!(kind.api_version);
            item["kind"] = json!(kind.gvk.kind);
            item
        }
        _ => {
            json!({ "kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": {}, "items": items })
        }
    };
    Ok(respond::value(200, &document, accepted))
}

async fn custom(members: &[Reached], context: &Context, kind: &Kind, query: &str) -> Result<Value, Status> {
    let info = &context.info;
    let (object, metric) = match info.subresource.as_str() {
        // `namespaces/<name>/metrics/<metric>` is about the namespace itself.
        "" => (info.resource.clone(), info.name.clone()),
        metric => (format!("{}/{}", info.resource, info.name), metric.to_owned()),
    };
    if metric.is_empty() {
        return Err(Status::no_such_route());
    }
    let space = match info.namespace.as_str() {
        "" => String::new(),
        space => format!("namespaces/{space}/"),
    };
    let below = |version: &str| format!("/apis/{CUSTOM}/{version}/{space}{object}/{metric}");
    // Each member in the newest version that it has.
    let each = members.iter().map(|member| async {
        match get(member, &below("v1beta2"), query).await {
            Some(found) => Some(found),
            None => get(member, &below("v1beta1"), query).await,
        }
    });
    let answers = join_all(each).await.into_iter().flatten().collect();
    let items = merge::custom(answers).ok_or_else(|| {
        let resource = if info.subresource.is_empty() { "namespaces" } else { info.resource.as_str() };
        let mut status = Status::not_found(&GroupResource::new("", resource), &info.name);
        status.message = format!("the server could not find the metric {metric} for {resource}");
        status.details = None;
        status
    })?;
    let items: Vec<Value> =
        if kind.gvk.version == "v1beta1" { items.into_iter().map(merge::to_older).collect() } else { items };
    Ok(json!({ "kind": kind.gvk.kind, "apiVersion": kind.api_version, "metadata": {}, "items": items }))
}

async fn external(members: &[Reached], context: &Context, query: &str) -> Value {
    let info = &context.info;
    let path = format!("/apis/{EXTERNAL}/v1beta1/namespaces/{}/{}", info.namespace, info.resource);
    let answers = ask(members, &path, query).await.into_iter().map(|(_, answer)| answer).collect();
    json!({
        "kind": "ExternalMetricValueList", "apiVersion": format!("{EXTERNAL}/v1beta1"), "metadata": {},
        "items": merge::external(answers),
    })
}

/// Asks all members at once; those that have no answer are left out.
async fn ask(members: &[Reached], path: &str, query: &str) -> Vec<(String, Value)> {
    let each = members.iter().map(|member| async move {
        let found = get(member, path, query).await?;
        Some((member.cluster.clone(), found))
    });
    join_all(each).await.into_iter().flatten().collect()
}

async fn get(member: &Reached, path: &str, query: &str) -> Option<Value> {
    let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let request = http::Request::get(uri).body(Vec::new()).ok()?;
    let asked = async {
        let _slot = match &member.member {
            Some(member) => Some(member.permit().await),
            None => None,
        };
        member.client.request::<Value>(request).await
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(error)) => {
            let missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
            if !missing {
                tracing::debug!(cluster = member.cluster, %error, path, "left out of the metrics");
            }
            None
        }
        Err(_) => {
            tracing::debug!(cluster = member.cluster, path, "left out of the metrics: no answer in time");
            None
        }
    }
}
