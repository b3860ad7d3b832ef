//! `metrics.k8s.io`, `custom.metrics.k8s.io` and `external.metrics.k8s.io` over all members: the role of upstream's metrics
//! adapter.
//!
//! In: a request that the server has authorised for these paths. Out: the answers of all ready members, merged (`merge`). Members
//! are queried live and all at once, over the connections of the controllers or, in pull mode, through their tunnels. Each has an
//! in-flight limit, a deadline and a limit on the size of its answer. A failing member is left out, and the caller gets a
//! warning. The RBAC of the control plane decides whether the caller may ask: members are queried with the control plane's
//! credentials. The number of such requests of one caller is limited, and so is the memory of all answers together.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod merge;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::cluster::Cluster;
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::pointer;
use apimachinery::status::Status;
use apimachinery::weight::Weight;
use apiserver::handlers::context::Context;
use apiserver::http::negotiate::{Offer, Shape};
use apiserver::http::{Body, pass, respond};
use apiserver::registry::{ANY, Kind, Rules, Source};
use apiserver::server::Server;
use futures::future::join_all;
use http::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use member::limit::{Budget, Listing, TooLarge};
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
/// How many such requests one caller may have in progress: each goes to every member.
const AT_ONCE: usize = 8;
/// The limit for members' parsed answers to all requests, 768 MiB: those of 170,000 Pods.
const ROOM: usize = 768 << 20;
/// How many of the members that are left out are named to the caller.
const WARNINGS: usize = 5;

/// Returns the kinds that a control plane serves in addition to the definitions and the native kinds.
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

/// A member that can be queried.
struct Reached {
    cluster: String,
    client: Client,
    /// The client whose in-flight limit counts; a tunnel has a separate one.
    member: Option<Arc<Member>>,
    held: Held,
}

/// The memory of one member's answers to a request, counted until the request is answered.
struct Held {
    room: Arc<Budget>,
    taken: AtomicUsize,
}

impl Held {
    fn new(room: &Arc<Budget>) -> Self {
        Self { room: room.clone(), taken: AtomicUsize::new(0) }
    }

    /// Counts another answer. Returns whether there is room for it.
    fn add(&self, weight: usize) -> bool {
        let fits = self.room.exchange(0, weight);
        if fits {
            self.taken.fetch_add(weight, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.exchange(self.taken.load(Ordering::Relaxed), 0);
    }
}

/// The access to all members' metrics.
pub(crate) struct Metrics {
    tasks: Tasks,
    tunnels: Tunnels,
    /// For members that are reached through tunnels.
    clients: Mutex<HashMap<String, Client>>,
    shares: Shares,
    room: Arc<Budget>,
}

impl Metrics {
    pub(crate) fn new(tasks: Tasks, tunnels: Tunnels) -> Self {
        let (shares, room) = (Shares::new(AT_ONCE), Arc::new(Budget::new(ROOM)));
        Self { tasks, tunnels, clients: Mutex::default(), shares, room }
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

    /// Returns all ready members; `None` if this process is not connected to members.
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
            held: Held::new(&self.room),
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
            sources.push(Reached { cluster, client, member: None, held: Held::new(&self.room) });
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
    // Members are queried with the rights of the control plane: no part of the path may lead elsewhere.
    pass::check_path(&context.info.path)?;
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
    let mut parts = vec![kind.resource.resource.as_str()];
    if !info.namespace.is_empty() {
        parts.splice(..0, ["namespaces", info.namespace.as_str()]);
    }
    let single = info.verb == "get";
    let items = if single {
        parts.push(&info.name);
        let answers = ask(members, context, &path(&kind.api_version, &parts), "").await;
        let resource = GroupResource::new("", kind.resource.resource.as_str());
        vec![merge::single(&resource, &info.name, answers)?]
    } else {
        let answers = ask(members, context, &path(&kind.api_version, &parts), context.query.raw()).await;
        merge::listed(answers)
    };
    let document = match accepted.shape {
        Shape::Table { beta } => sim::metrics_table(&items, beta),
        _ if single => {
            let mut item = items.into_iter().next().unwrap_or_default();
            pointer::set(&mut item, "apiVersion", json!(kind.api_version));
            pointer::set(&mut item, "kind", json!(kind.gvk.kind));
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
    let metric = match info.subresource.as_str() {
        // `namespaces/<name>/metrics/<metric>` concerns the namespace itself.
        "" => info.name.as_str(),
        metric => metric,
    };
    if metric.is_empty() {
        return Err(Status::no_such_route());
    }
    let mut parts = vec![info.resource.as_str(), info.name.as_str()];
    if !info.namespace.is_empty() {
        parts.splice(..0, ["namespaces", info.namespace.as_str()]);
    }
    if !info.subresource.is_empty() {
        parts.push(metric);
    }
    let below = |version: &str| path(&format!("{CUSTOM}/{version}"), &parts);
    // Each member in its newest version.
    let each = members.iter().map(|member| async {
        let newest = get(member, &below("v1beta2"), query).await;
        let found = match newest {
            Err(newest) => get(member, &below("v1beta1"), query).await.map_err(|older| newest.or(older)),
            found => found,
        };
        (member.cluster.clone(), found)
    });
    let answers = told(context, join_all(each).await).into_iter().map(|(_, answer)| answer).collect();
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
    let version = format!("{EXTERNAL}/v1beta1");
    let path = path(&version, &["namespaces", &info.namespace, &info.resource]);
    let answers = ask(members, context, &path, query).await.into_iter().map(|(_, answer)| answer).collect();
    json!({
        "kind": "ExternalMetricValueList", "apiVersion": version, "metadata": {},
        "items": merge::external(answers),
    })
}

/// Returns a path of a group and version. Its parts were decoded for authorisation, and must mean the same to the member.
fn path(api_version: &str, parts: &[&str]) -> String {
    let mut path = format!("/apis/{api_version}");
    for part in parts {
        path.push('/');
        for byte in part.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'*' | b':' => {
                    path.push(char::from(byte));
                }
                _ => path.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    path
}

/// Why a member has no part in an answer.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    /// It does not have the requested metric.
    Nothing,
    Trouble(String),
}

impl Missing {
    /// Returns the error that is more useful to the caller.
    fn or(self, other: Self) -> Self {
        if self == Self::Nothing { other } else { self }
    }
}

/// Queries all members at once; those without an answer are left out.
async fn ask(members: &[Reached], context: &Context, path: &str, query: &str) -> Vec<(String, Value)> {
    let each =
        members.iter().map(|member| async move { (member.cluster.clone(), get(member, path, query).await) });
    told(context, join_all(each).await)
}

/// Returns the answers, and warns the caller about missing ones.
fn told(context: &Context, answers: Vec<(String, Result<Value, Missing>)>) -> Vec<(String, Value)> {
    let (mut there, mut troubles) = (Vec::new(), Vec::new());
    for (cluster, answer) in answers {
        match answer {
            Ok(answer) => there.push((cluster, answer)),
            Err(Missing::Nothing) => {}
            Err(Missing::Trouble(why)) => troubles.push(format!("cluster {cluster} is left out: {why}")),
        }
    }
    let more = troubles.len().saturating_sub(WARNINGS);
    for warning in troubles.into_iter().take(WARNINGS) {
        context.warn(warning);
    }
    if more > 0 {
        context.warn(format!("and {more} more clusters are left out"));
    }
    there
}

async fn get(member: &Reached, path: &str, query: &str) -> Result<Value, Missing> {
    let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let request = http::Request::get(uri).extension(Listing).body(Vec::new());
    let request = request.map_err(|error| Missing::Trouble(error.to_string()))?;
    let asked = async {
        let _slot = match &member.member {
            Some(member) => Some(member.permit().await),
            None => None,
        };
        member.client.request_text(request).await
    };
    let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
        tracing::debug!(cluster = member.cluster, path, "left out of the metrics: no answer in time");
        return Err(Missing::Trouble(format!("it did not answer within {} s", PATIENCE.as_secs())));
    };
    let answer = answer.map_err(|error| {
        let why = match &error {
            kube::Error::Api(status) if status.code == 404 => return Missing::Nothing,
            kube::Error::Api(status) => format!("it answered with {}", status.code),
            other => match TooLarge::within(other) {
                Some(large) => large.to_string(),
                None => "it cannot be reached".to_owned(),
            },
        };
        tracing::debug!(cluster = member.cluster, %error, path, "left out of the metrics");
        Missing::Trouble(why)
    })?;
    if !member.held.add(Weight::of(answer.as_bytes())) {
        return Err(Missing::Trouble("too many metrics are being read at the moment".to_owned()));
    }
    serde_json::from_str(&answer).map_err(|_| Missing::Trouble("its answer cannot be read".to_owned()))
}

#[cfg(test)]
mod tests {
    use apiserver::http::{Query, RequestInfo};
    use http::{HeaderMap, Method, Request};

    use super::*;

    type Asked = Arc<Mutex<Vec<String>>>;

    /// A member that answers everything with one code, and the requests that it got.
    fn member(cluster: &str, code: u16) -> (Reached, Asked) {
        saying(cluster, code, json!({"kind": "Status", "code": code, "items": []}))
    }

    fn saying(cluster: &str, code: u16, said: Value) -> (Reached, Asked) {
        let asked = Asked::default();
        let noted = asked.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            noted.lock().push(request.uri().to_string());
            let body = kube::client::Body::from(said.to_string().into_bytes());
            async move {
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).expect("an answer"))
            }
        });
        let client = Client::new(service, "default");
        let held = Held::new(&Arc::new(Budget::new(ROOM)));
        (Reached { cluster: cluster.to_owned(), client, member: None, held }, asked)
    }

    #[tokio::test]
    async fn finding_16_answers_to_all_requests_have_room_together() {
        let said = json!({"kind": "NodeMetricsList", "items": vec![json!({"a": 0}); 1000]});
        let room = Arc::new(Budget::new(1_000_000));
        let ask = async || {
            let (mut member, _) = saying("m1", 200, said.clone());
            member.held = Held::new(&room);
            (get(&member, "/apis/metrics.k8s.io/v1beta1/nodes", "").await, member)
        };
        let (first, held) = ask().await;
        assert!(first.is_ok() && room.used() > 500_000, "{}", room.used());
        let (second, _) = ask().await;
        let why = "too many metrics are being read at the moment".to_owned();
        assert_eq!(second.unwrap_err(), Missing::Trouble(why));
        drop(held);
        assert!(ask().await.0.is_ok());
        assert_eq!(room.used(), 0);
    }

    fn context(target: &str) -> Context {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = Query::parse(Some(query));
        let info = RequestInfo::parse(&Method::GET, path, &query);
        Context::new(Method::GET, info, query, HeaderMap::new(), Arc::default())
    }

    fn kind_of(context: &Context) -> Arc<Kind> {
        let fits = |kind: &&Arc<Kind>| {
            let resource = &kind.resource.resource;
            kind.gvk.group == context.info.group && (resource == ANY || *resource == context.info.resource)
        };
        kinds().iter().find(fits).expect("it is served").clone()
    }

    #[tokio::test]
    async fn members_are_asked_for_what_was_authorised_and_nothing_else() {
        let check = async |target: &str, code: u16, paths: &[&str]| {
            let (member, asked) = member("m1", 200);
            let context = context(target);
            let answer = answer(&[member], &context, &kind_of(&context)).await;
            assert_eq!(answer.map_or_else(|status| status.code, |answer| answer.status().as_u16()), code);
            assert_eq!(*asked.lock(), paths, "{target}");
        };
        let (pods, custom) =
            ("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods", "/apis/custom.metrics.k8s.io");
        check(pods, 200, &[pods]).await;
        check(&format!("{pods}/x"), 200, &[&format!("{pods}/x")]).await;
        check(&format!("{pods}/x%2Fy%3Fz"), 200, &[&format!("{pods}/x%2Fy%3Fz")]).await;
        let load = format!("{custom}/v1beta2/namespaces/a/pods/*/load");
        check(&load, 404, &[&load]).await;
        let space = format!("{custom}/v1beta2/namespaces/a/metrics/load");
        check(&space, 404, &[&space]).await;
        for path in [
            format!("{pods}/..%2F..%2F..%2F..%2F..%2F..%2Fapi%2Fv1%2Fsecrets"),
            "/apis/metrics.k8s.io/v1beta1/namespaces/%2e%2e/pods".to_owned(),
            format!("{custom}/v1beta2/namespaces/a/pods/x/..%2F..%2Fload"),
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/a/..%2Fload".to_owned(),
        ] {
            check(&path, 400, &[]).await;
        }
    }

    #[tokio::test]
    async fn a_member_whose_answer_is_no_object_ends_no_request() {
        for said in [json!(7), json!("x"), json!([]), Value::Null] {
            let (member, _) = saying("m1", 200, said.clone());
            let context = context("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/x");
            let answer = answer(&[member], &context, &kind_of(&context)).await.expect("an answer");
            assert_eq!(answer.status().as_u16(), 200, "{said}");
        }
    }

    #[tokio::test]
    async fn the_caller_is_warned_of_members_that_are_left_out() {
        let members: Vec<Reached> = [("m1", 200), ("m2", 404), ("m3", 503)]
            .map(|(cluster, code)| member(cluster, code).0)
            .into_iter()
            .chain((4..12).map(|number| member(&format!("n{number:02}"), 500).0))
            .collect();
        let context = context("/apis/metrics.k8s.io/v1beta1/nodes");
        answer(&members, &context, &kind_of(&context)).await.expect("an answer");
        let warnings = context.take_warnings();
        assert_eq!(warnings.len(), WARNINGS + 1, "{warnings:?}");
        assert_eq!(warnings[0], "cluster m3 is left out: it answered with 503");
        assert_eq!(warnings[WARNINGS], "and 4 more clusters are left out");
    }
}
