//! Members that are imitated where they are asked: lists in pages and watches of pods over HTTP, made on the fly, so that a hundred
//! thousand pods in twenty clusters cost next to nothing beside what is measured.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// Namespaces of a member; the pods are divided over them.
pub(crate) const NAMESPACES: usize = 20;

/// A member with so many pods.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: String,
    shared: Arc<Shared>,
}

/// The revision of a pod, and what was written into it.
type Changed = HashMap<usize, (u64, u128)>;

struct Shared {
    number: usize,
    pods: usize,
    /// The newest revision, and the pods that are not as they were in the beginning.
    state: Mutex<(u64, Changed)>,
    updates: broadcast::Sender<(u64, Bytes)>,
}

impl Member {
    pub(crate) async fn start(number: usize, pods: usize) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let state = Mutex::new((pods as u64 + 1, Changed::new()));
        let shared = Arc::new(Shared { number, pods, state, updates: broadcast::Sender::new(4096) });
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = serving.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let answer = answer(&shared, &request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { name: format!("member{number:02}"), address, shared })
    }

    /// Changes a pod; `sent` is written into it.
    pub(crate) fn update(&self, pod: usize, sent: u128) {
        let mut state = self.shared.state.lock();
        state.0 += 1;
        let revision = state.0;
        state.1.insert(pod, (revision, sent));
        let line = format!(
            "{{\"type\":\"MODIFIED\",\"object\":{}}}\n",
            object(self.shared.number, pod, revision, sent)
        );
        let _ = self.shared.updates.send((revision, line.into()));
    }
}

/// Returns the namespace and name of a pod.
pub(crate) fn names(pod: usize) -> (String, String) {
    (format!("team-{}", pod % NAMESPACES), format!("checkout-6f7d9c5b8-{pod:05}"))
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn answer(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let query: HashMap<String, String> = form(request.uri().query().unwrap_or("")).into_iter().collect();
    let value = |name: &str| query.get(name).map_or("", String::as_str);
    match path.strip_prefix("/api/v1/").and_then(|rest| rest.strip_suffix("pods")) {
        Some(_) if value("sendInitialEvents") == "true" => json(
            422,
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"no streaming lists"}"#,
        ),
        Some(_) if matches!(value("watch"), "true" | "1") => {
            watch(shared, value("resourceVersion").parse().unwrap_or(0))
        }
        Some(within) => json(200, &list(shared, within, value("limit"), value("continue"))),
        None if path.contains("/pods/") => {
            let name = path.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            json(200, &shared.pod(name))
        }
        None if path.ends_with("subjectaccessreviews") => json(201, r#"{"status":{"allowed":true}}"#),
        None if path == "/readyz" || path == "/healthz" => json(200, "ok"),
        None => json(
            404,
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"not here"}"#,
        ),
    }
}

fn form(query: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    };
    query.split('&').map(pair).collect()
}

fn json(code: u16, text: &str) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

impl Shared {
    fn pod(&self, number: usize) -> String {
        let (revision, sent) = self.state.lock().1.get(&number).copied().unwrap_or((number as u64 + 1, 0));
        object(self.number, number, revision, sent)
    }
}

fn list(shared: &Shared, within: &str, limit: &str, next: &str) -> String {
    let namespace = within.strip_prefix("namespaces/").map(|rest| rest.trim_end_matches('/'));
    let limit = limit.parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let from: usize = next.parse().unwrap_or(0);
    let wanted = |pod: &usize| namespace.is_none_or(|namespace| names(*pod).0 == namespace);
    let mut pods = (from..shared.pods).filter(wanted);
    let items: Vec<String> = pods.by_ref().take(limit).map(|pod| shared.pod(pod)).collect();
    let next = pods.next().map_or(String::new(), |next| next.to_string());
    let version = shared.state.lock().0;
    format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{next}"}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// What has happened since, and what happens.
fn watch(shared: &Arc<Shared>, after: u64) -> Response<Body> {
    let receiver = shared.updates.subscribe();
    let missed: Vec<(u64, Bytes)> = {
        let state = shared.state.lock();
        let mut missed: Vec<(usize, u64, u128)> = state
            .1
            .iter()
            .filter(|(_, (revision, _))| *revision > after)
            .map(|(pod, (revision, sent))| (*pod, *revision, *sent))
            .collect();
        missed.sort_by_key(|(_, revision, _)| *revision);
        let line = |(pod, revision, sent): (usize, u64, u128)| {
            let text = object(shared.number, pod, revision, sent);
            (revision, Bytes::from(format!("{{\"type\":\"MODIFIED\",\"object\":{text}}}\n")))
        };
        missed.into_iter().map(line).collect()
    };
    let last = missed.last().map_or(after, |(revision, _)| *revision);
    let later = futures::stream::unfold((receiver, last), |(mut receiver, last)| async move {
        loop {
            let (revision, line) = receiver.recv().await.ok()?;
            if revision > last {
                return Some((line, (receiver, revision)));
            }
        }
    });
    let lines = futures::stream::iter(missed.into_iter().map(|(_, line)| line)).chain(later);
    let mut response = Response::new(StreamBody::new(lines.map(|line| Ok(Frame::data(line)))).boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

/// Returns a pod of about 2.5 KB, as a cluster would send it.
fn object(cluster: usize, number: usize, revision: u64, sent: u128) -> String {
    let phase = if number.is_multiple_of(50) { "Pending" } else { "Running" };
    let (namespace, name) = names(number);
    let (node, version) = (number % 100, number % 3);
    let padding = "x".repeat(700);
    format!(
        concat!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"{namespace}","#,
            r#""uid":"{cluster:08x}-0000-4000-8000-{number:012x}","resourceVersion":"{revision}","creationTimestamp":"2026-01-01T00:00:00Z","#,
            r#""labels":{{"app":"checkout","pod-template-hash":"6f7d9c5b8","team":"{namespace}"}},"#,
            r#""annotations":{{"sent":"{sent}","checksum/config":"{padding}"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","#,
            r#""name":"checkout-6f7d9c5b8","uid":"11111111-2222-3333-4444-555555555555","controller":true,"blockOwnerDeletion":true}}]}},"#,
            r#""spec":{{"nodeName":"node-{node}","restartPolicy":"Always","serviceAccountName":"default","serviceAccount":"default","#,
            r#""schedulerName":"default-scheduler","dnsPolicy":"ClusterFirst","enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority","#,
            r#""priority":0,"terminationGracePeriodSeconds":30,"securityContext":{{}},"containers":[{{"name":"app","#,
            r#""image":"registry.example/checkout:v{version}","imagePullPolicy":"IfNotPresent","ports":[{{"containerPort":8080,"protocol":"TCP"}}],"#,
            r#""env":[{{"name":"A","value":"1"}}],"resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}},"#,
            r#""terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","#,
            r#""volumeMounts":[{{"name":"token","mountPath":"/var/run/secrets","readOnly":true}}]}},"#,
            r#"{{"name":"proxy","image":"registry.example/envoy:v1","resources":{{}}}}],"volumes":[{{"name":"token","projected":{{"sources":[]}}}}],"#,
            r#""tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}]}},"#,
            r#""status":{{"phase":"{phase}","podIP":"10.0.0.1","hostIP":"10.1.0.1","startTime":"2026-01-01T00:00:00Z","qosClass":"Burstable","#,
            r#""conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}},"#,
            r#"{{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}}],"#,
            r#""containerStatuses":[{{"name":"app","ready":true,"started":true,"restartCount":0,"image":"registry.example/checkout:v{version}","#,
            r#""imageID":"sha256:0","containerID":"containerd://0","state":{{"running":{{"startedAt":"2026-01-01T00:00:00Z"}}}}}}]}}}}"#
        ),
        name = name,
        namespace = namespace,
        cluster = cluster,
        number = number,
        revision = revision,
        sent = sent,
        padding = padding,
        node = node,
        version = version,
        phase = phase
    )
}
