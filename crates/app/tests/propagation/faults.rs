//! Members that die, lie, are slow or say too much, seen through the doors to the fleet: others are shown as before, and what
//! is old says so.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{AsyncBufReadExt as _, Stream, StreamExt as _};
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use testkit::check::{self, CONTROLLERS, Site, check};
use testkit::{Kind, Server, eventually, install_tls};
use tokio::sync::watch;

use crate::plane::KARMADA;

const LIST: &str = "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/configmaps";
/// A list of this size is a lie.
const HUGE: usize = 200 << 20;

/// How a member behaves. Whenever that changes, its watches end and cannot be resumed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manner {
    /// Says that its only object has this value; the revision grows with it.
    Honest(u64),
    /// Every connection is closed.
    Dead,
    /// Nothing is ever answered.
    Slow,
    /// So many lists are empty, or of an older time, and then it is honest.
    Lies { older: bool, left: u8, value: u64 },
    /// Lists have no end worth waiting for.
    Huge,
    /// What it says is not JSON.
    Nonsense,
}

struct Member {
    address: String,
    manner: watch::Sender<Manner>,
    /// How many watches it has granted.
    watched: watch::Sender<usize>,
}

impl Member {
    async fn start(name: &'static str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let (manner, watched) = (watch::Sender::new(Manner::Honest(1)), watch::Sender::new(0));
        let (now, counts) = (manner.clone(), watched.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if *now.borrow() == Manner::Dead {
                    continue;
                }
                let (now, counts) = (now.clone(), counts.clone());
                tokio::spawn(async move {
                    let mut changed = now.subscribe();
                    changed.borrow_and_update();
                    let service = hyper::service::service_fn(move |request| {
                        let (now, counts) = (now.clone(), counts.clone());
                        let uri = Request::<Incoming>::uri(&request).clone();
                        async move { Ok::<_, Infallible>(answer(name, &now, &counts, &uri).await) }
                    });
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // When it changes, it does so on all connections at once.
                    tokio::select! {
                        _ = builder.serve_connection(TokioIo::new(stream), service) => {}
                        _ = changed.changed() => {}
                    }
                });
            }
        });
        Self { address, manner, watched }
    }

    fn becomes(&self, manner: Manner) {
        self.watched.send_replace(0);
        self.manner.send_replace(manner);
    }

    /// Waits until it is watched again, after everything that it had to list.
    async fn until_watched(&self) {
        let mut watched = self.watched.subscribe();
        let waiting = watched.wait_for(|count| *count > 0);
        tokio::time::timeout(testkit::DEADLINE, waiting).await.expect("a watch").expect("a count");
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn said(code: u16, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a code");
    response
}

async fn answer(
    name: &str,
    now: &watch::Sender<Manner>,
    watched: &watch::Sender<usize>,
    uri: &Uri,
) -> Response<Body> {
    let query = uri.query().unwrap_or("");
    let manner = *now.borrow();
    let list = |version: u64, items: Value| {
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}, "items": items});
        said(200, list.to_string())
    };
    let object = |value: u64| json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": (value * 100).to_string()}, "data": {"v": value.to_string()}});
    if uri.path() != "/api/v1/configmaps" {
        return said(404, r#"{"kind":"Status","code":404,"message":"not here"}"#);
    }
    let known = |value: u64| query.contains(&format!("resourceVersion={}&", value * 100));
    match manner {
        Manner::Honest(value) if query.contains("watch=true") && known(value) => {
            watched.send_modify(|count| *count += 1);
            let silence = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            Response::new(StreamBody::new(silence).boxed_unsync())
        }
        Manner::Honest(_) | Manner::Lies { .. } if query.contains("watch=true") => {
            said(410, r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#)
        }
        Manner::Honest(value) => list(value * 100, json!([object(value)])),
        Manner::Lies { older, left, value } => {
            // Whoever only looks whether the revisions have gone back does not count.
            if query.contains("limit=500") {
                let next = if left > 1 {
                    Manner::Lies { older, left: left - 1, value }
                } else {
                    Manner::Honest(value)
                };
                now.send_if_modified(|now| {
                    *now = next;
                    false
                });
            }
            list(if older { 1 } else { value * 100 }, json!([]))
        }
        Manner::Slow | Manner::Dead => std::future::pending().await,
        Manner::Nonsense => said(200, "<html>"),
        Manner::Huge => {
            let piece = Bytes::from(vec![b'x'; 1 << 20]);
            let start = Bytes::from_static(
                br#"{"kind":"ConfigMapList","metadata":{"resourceVersion":"9"},"items":[{"data":{"a":""#,
            );
            let pieces = std::iter::once(start).chain(std::iter::repeat_n(piece, HUGE >> 20));
            let pieces = futures::stream::iter(pieces.map(|piece| Ok(Frame::data(piece))));
            Response::new(StreamBody::new(pieces.boxed()).boxed_unsync())
        }
    }
}

struct Stage {
    server: Server,
    plane: kube::Client,
    honest: Member,
    other: Member,
}

impl Stage {
    async fn new(flags: &[&str]) -> Self {
        install_tls();
        let server = Server::audited(KARMADA, &[&["--controllers", ""], flags].concat());
        let plane = server.client().await;
        let (honest, other) = (Member::start("honest").await, Member::start("other").await);
        let stage = Self { server, plane, honest, other };
        let secrets =
            Kind::namespaced("", "v1", "Secret", "secrets").api(stage.plane.clone(), "karmada-cluster");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "way"}, "stringData": {"token": "t", "caBundle": "c"}});
        make(&secrets, secret).await;
        let clusters = Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
            .api(stage.plane.clone(), "");
        for (name, member) in [("honest", &stage.honest), ("other", &stage.other)] {
            let spec = json!({"syncMode": "Push", "apiEndpoint": member.address, "insecureSkipTLSVerification": true,
                "secretRef": {"namespace": "karmada-cluster", "name": "way"}});
            make(&clusters, json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": spec})).await;
        }
        let spec =
            json!({"targetCluster": {}, "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]});
        make(&stage.registries(), json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "all"}, "spec": spec})).await;
        stage
    }

    /// Fails unless the control plane keeps the laws of every world. Its members are nothing but answers of this test, which nobody
    /// writes to, so that there is nothing in them to look at.
    async fn check(&self) {
        let plane = Site::plane(self.plane.clone(), CONTROLLERS, self.server.audit_logs());
        check(&check::World { plane, members: Vec::new(), controllers: String::new() }).await;
    }

    /// Returns how much memory the server has had at most, in MiB.
    fn peak(&self) -> u64 {
        let path = format!("/proc/{}/status", self.server.process().id());
        let status = std::fs::read_to_string(path).expect("a process");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    }

    fn registries(&self) -> Api<DynamicObject> {
        let kind = Kind::cluster("search.karmada.io", "v1alpha1", "ResourceRegistry", "resourceregistries");
        kind.api(self.plane.clone(), "")
    }

    /// Returns what is shown: `honest=1 other=1!`, with a mark on what is said to be old.
    async fn shown(&self) -> String {
        let request = Request::get(LIST).body(Vec::new()).expect("a request");
        let list: Value = self.plane.request(request).await.expect("a list");
        let one = |item: &Value| {
            let stale = item.pointer("/metadata/annotations/search.karmada.io~1stale-since").is_some();
            let text = |path: &str| item.pointer(path).and_then(Value::as_str).unwrap_or("?").to_owned();
            format!("{}={}{}", text("/metadata/name"), text("/data/v"), if stale { "!" } else { "" })
        };
        list["items"].as_array().expect("items").iter().map(one).collect::<Vec<_>>().join(" ")
    }

    async fn until_shown(&self, wanted: &str, what: &str) {
        eventually(format!("{what}: {wanted}"), async || {
            let shown = self.shown().await;
            if shown == wanted { Ok(()) } else { Err(shown) }
        })
        .await;
    }

    /// Watches from what is there.
    async fn watch(&self) -> impl Stream<Item = Value> + Unpin {
        let request = Request::get(format!("{LIST}?watch=true")).body(Vec::new()).expect("a request");
        let lines = self.plane.request_stream(request).await.expect("a watch").lines();
        Box::pin(lines.map(|line| serde_json::from_str::<Value>(&line.expect("an event")).expect("JSON")))
    }

    /// Waits until the registry says that all is followed, or not, and why.
    async fn until_told(&self, status: &str, why: &str) {
        eventually(format!("the registry tells {status} {why}"), async || {
            let registry = self.registries().get("all").await.map_err(|error| error.to_string())?;
            let condition = &registry.data["status"]["conditions"][0];
            let message = condition["message"].as_str().unwrap_or("");
            let told =
                condition["type"] == "Cached" && condition["status"] == status && message.contains(why);
            if told { Ok(()) } else { Err(condition.to_string()) }
        })
        .await;
    }
}

async fn next(events: &mut (impl Stream<Item = Value> + Unpin)) -> Value {
    let event = tokio::time::timeout(testkit::DEADLINE, events.next()).await.expect("an event in time");
    event.expect("the watch goes on")
}

async fn make(api: &Api<DynamicObject>, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_in_trouble_is_shown_as_it_was_and_holds_up_nobody() {
    let stage = Stage::new(&[]).await;
    stage.until_shown("honest=1 other=1", "everything is cached").await;
    stage.until_told("True", "everything that is registered is followed").await;
    let (mut value, before) = (1, stage.peak());
    for (manner, why) in [
        (Manner::Dead, "it cannot be reached"),
        (Manner::Slow, "it does not answer"),
        (Manner::Huge, "a page of a list of more than 32 MiB"),
        (Manner::Nonsense, "its answer cannot be read"),
    ] {
        stage.other.becomes(manner);
        value += 1;
        stage.honest.becomes(Manner::Honest(value));
        let old = value - 1;
        stage.until_shown(&format!("honest={value} other={old}!"), &format!("{manner:?}")).await;
        stage.until_told("False", why).await;
        stage.other.becomes(Manner::Honest(value));
        stage.until_shown(&format!("honest={value} other={value}"), &format!("after {manner:?}")).await;
        stage.until_told("True", "").await;
    }
    assert!(stage.peak() < before + 150, "{} MiB for a list of 200 MB, {before} before", stage.peak());

    // An empty list is not believed at once, nor is one of an older time. Whoever watches would be told of what is believed for a moment,
    // so the next event is that of the honest member, whose change comes last.
    let mut mark = value;
    for (older, left) in [(false, 1), (true, 2)] {
        let mut events = stage.watch().await;
        for _ in ["honest", "other"] {
            let event = next(&mut events).await;
            assert_eq!(event["type"], "ADDED", "{event}");
        }
        stage.other.becomes(Manner::Lies { older, left, value });
        stage.other.until_watched().await;
        assert_eq!(*stage.other.manner.borrow(), Manner::Honest(value), "the lies were told");
        // That it is up to date again may be noticed a moment after the watch was granted.
        let wanted = format!("honest={mark} other={value}");
        assert_eq!(stage.shown().await.replace('!', ""), wanted, "older: {older}");
        stage.until_shown(&wanted, &format!("older: {older}")).await;
        mark += 1;
        stage.honest.becomes(Manner::Honest(mark));
        let event = next(&mut events).await;
        let told = (&event["type"], &event["object"]["data"]["v"]);
        assert_eq!(told, (&json!("MODIFIED"), &json!(mark.to_string())), "older: {older}: {event}");
    }
    stage.check().await;
}
