//! Clients that say nothing, read nothing, or send for ever: they must not keep others out, nor fill the memory.

use std::sync::Arc;
use std::time::Duration;

use apiserver::auth::User;
use apiserver::handlers::context::Context;
use apiserver::http::listener::Settings;
use apiserver::http::{Query, RequestInfo};
use apiserver::{Budgets, Handle, Options, Peer, serve};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::start_with;
use crate::support::{Answer, Api, Call, DEADLINE};

const MAPS: &str = "api/v1/namespaces/default/configmaps";
/// What an HTTP/2 client says first: the preface, and settings without any.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Starts a server with three users who may do everything, but are not administrators.
async fn start(options: Options) -> (Handle, Api) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tokens.csv");
    let tokens: String =
        ["ann", "bob", "cid"].map(|user| format!("{user},{user},{user},\"team\"\n")).concat();
    std::fs::write(&file, tokens).expect("a file");
    let (handle, api) = start_with(Options { token_file: Some(file), ..options }).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "team"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "team"}]});
    api.post("apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    (handle, api)
}

/// Opens a connection by hand: no client would be so rude.
async fn connect(handle: &Handle, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(handle.pki.ca.cert.as_bytes()).expect("a certificate");
    roots.add(authority).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("usual protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(handle.address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Reads until the other side closes the connection.
async fn closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
    // A reset is an end, too.
    let _ = end.expect("the server closes the connection");
}

/// Sends the head of a request, and what is given of its body.
async fn say(stream: &mut (impl AsyncWrite + Unpin), method: &str, path: &str, user: &str, rest: &str) {
    let head =
        format!("{method} /{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {user}\r\n{rest}");
    stream.write_all(head.as_bytes()).await.expect("the server reads");
    stream.flush().await.expect("the server reads");
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.push(stream.read_u8().await.expect("the head of an answer"));
    }
    String::from_utf8_lossy(&seen).into_owned()
}

async fn ask(api: &Api, user: &str, path: &str) -> u16 {
    let call = Call { bearer: Some(user.to_owned()), ..Call::new("GET", path) };
    api.send(&call).await.code
}

/// A client that reads next to nothing.
struct Lazy {
    sender: hyper::client::conn::http2::SendRequest<Empty<Bytes>>,
}

impl Lazy {
    async fn connect(handle: &Handle) -> Self {
        let stream = connect(handle, "h2").await.expect("a connection");
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(16)
            .handshake(TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender }
    }

    async fn get(&self, user: &str, path: &str, accept: &str) -> hyper::Result<hyper::Response<Incoming>> {
        let request = hyper::Request::get(format!("https://localhost/{path}"))
            .header("authorization", format!("Bearer {user}"))
            .header("accept", accept)
            .body(Empty::new())
            .expect("a request");
        self.sender.clone().send_request(request).await
    }
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn fill(api: &Api, count: usize, size: usize) {
    for number in 0..count {
        let map =
            json!({"metadata": {"name": format!("map-{number}")}, "data": {"filling": "x".repeat(size)}});
        api.post(MAPS, &map).await.expect(201);
    }
}

#[tokio::test]
async fn finding_3_what_clients_make_up_does_not_become_a_label() {
    let (handle, api) = start(Options::default()).await;
    let stranger = Api::stranger(&handle.kubeconfig).await;
    for path in ["apis/made-up-group/v1/things", "api/v1/made-up-things", "api/made-up-version/pods"] {
        stranger.get(path).await.expect(403);
    }
    stranger.get("api/v1/namespaces/default/pods/x/made-up-subresource").await.expect(403);
    let odd = stranger.send(&Call::new("MADE-UP-VERB", "api/v1/pods")).await;
    assert!(matches!(odd.code, 403 | 405), "{}", odd.code);
    // A request is counted when its answer is on its way, which the client may have seen before.
    let counted = |answer: &Answer| {
        answer.text().contains("resource=\"other\"") && answer.text().contains("subresource=\"other\"")
    };
    let metrics = api.until("metrics", counted).await.text().to_lowercase();
    assert!(!metrics.contains("made-up"), "{metrics}");
    handle.stop().await;
}

#[tokio::test]
async fn finding_4_silent_connections_are_closed_at_every_stage() {
    // Those who speak have to be in time, too.
    let short = testkit::slowed(Duration::from_millis(500));
    let settings = Settings { handshake: short, first_request: short, idle: short, ..Settings::default() };
    let (handle, _) = start(Options { connections: Some(settings), ..Options::default() }).await;
    let mut raw = TcpStream::connect(handle.address).await.expect("a connection");
    let mut silent = connect(&handle, "http/1.1").await.expect("a connection");
    let mut silent_http2 = connect(&handle, "h2").await.expect("a connection");
    let mut preface = connect(&handle, "h2").await.expect("a connection");
    preface.write_all(PREFACE).await.expect("the server reads");
    let mut half_a_head = connect(&handle, "http/1.1").await.expect("a connection");
    say(&mut half_a_head, "GET", "version", "ann", "").await;
    let mut idle = connect(&handle, "http/1.1").await.expect("a connection");
    say(&mut idle, "GET", "version", "ann", "\r\n").await;
    assert!(head(&mut idle).await.starts_with("HTTP/1.1 200"));
    closed(&mut raw).await;
    for stream in [&mut silent, &mut silent_http2, &mut preface, &mut half_a_head, &mut idle] {
        closed(stream).await;
    }
    handle.stop().await;
}

#[tokio::test]
async fn finding_4_what_is_on_its_way_keeps_a_connection_open() {
    // The requests before it have to be in time, too.
    let short = testkit::slowed(Duration::from_millis(200));
    let settings = Settings { first_request: short, idle: short, goodbye: short, ..Settings::default() };
    let (handle, api) = start(Options { connections: Some(settings), ..Options::default() }).await;
    let mut watch =
        api.open(&format!("{MAPS}?watch=1&resourceVersion=1&fieldSelector=metadata.name%3Dlate")).await;
    tokio::time::sleep(short * 5).await;
    api.post(MAPS, &json!({"metadata": {"name": "late"}})).await.expect(201);
    assert_eq!(watch.step().await, ("ADDED".to_owned(), "late".to_owned()));
    handle.stop().await;
}

#[tokio::test]
async fn finding_25_silent_connections_shut_nobody_out() {
    let settings = Settings { connections: 16, per_address: 8, ..Settings::default() };
    let (handle, api) = start(Options { connections: Some(settings), ..Options::default() }).await;
    let mut silent = Vec::new();
    for number in 0..80 {
        let mut stream = connect(&handle, "h2").await.expect("a connection");
        if number % 2 == 0 {
            stream.write_all(PREFACE).await.expect("the server reads");
        }
        silent.push(stream);
    }
    let stranger = Api::stranger(&handle.kubeconfig).await;
    assert_eq!(ask(&stranger, "ann", MAPS).await, 200);
    api.get(MAPS).await.expect(200);
    closed(&mut silent[0]).await;
    handle.stop().await;
}

#[tokio::test]
async fn finding_4_administrators_get_in_when_all_connections_are_busy() {
    let settings = Settings { connections: 2, per_address: 2, reserve: 1, ..Settings::default() };
    let (handle, api) = start(Options { connections: Some(settings), ..Options::default() }).await;
    drop(api);
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(&handle, "http/1.1").await.expect("a connection");
        say(&mut stream, "GET", &format!("{MAPS}?watch=1"), "ann", "\r\n").await;
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
        busy.push(stream);
    }
    if let Ok(mut refused) = connect(&handle, "http/1.1").await {
        closed(&mut refused).await;
    }
    Api::from_kubeconfig(&handle.kubeconfig).await.get(MAPS).await.expect(200);
    drop(busy);
    handle.stop().await;
}

#[tokio::test]
async fn finding_9_a_stalled_watch_ends_when_its_user_has_too_much_unread() {
    let budgets = Budgets { unsent: 512 * 1024, ..Budgets::default() };
    let (handle, api) = start(Options { budgets, ..Options::default() }).await;
    let stranger = Api::stranger(&handle.kubeconfig).await;
    let lazy = Lazy::connect(&handle).await;
    let mut stalled = Vec::new();
    for _ in 0..10 {
        let watch = lazy.get("bob", &format!("{MAPS}?watch=1&resourceVersion=1"), "application/json").await;
        stalled.push(watch.expect("an answer"));
    }
    let open = |count: usize| {
        move |answer: &Answer| {
            let text = answer.text();
            let mut lines = text.lines().filter(|line| line.starts_with("apiserver_longrunning_requests{"));
            let line = lines.find(|line| line.contains("resource=\"configmaps\"")).unwrap_or("0");
            line.rsplit(' ').next().and_then(|number| number.parse().ok()) == Some(count)
        }
    };
    api.until("metrics", open(10)).await;
    let healthy = Call { bearer: Some("ann".to_owned()), ..Call::new("GET", format!("{MAPS}?limit=1")) };
    // None of them holds too much; all together do.
    fill(&api, 3, 50_000).await;
    // One after the other, until the user is within the budget: the others may go on.
    api.until("metrics", |answer| !open(10)(answer)).await;
    stranger.send(&healthy).await.expect(200);
    // Whoever reads again learns how the watch ended; those that did not end go on.
    let told = async |response: hyper::Response<Incoming>| {
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while let Some(Ok(frame)) = body.frame().await {
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        let last = String::from_utf8_lossy(&text).lines().last().unwrap_or_default().to_owned();
        let event: Value = serde_json::from_str(&last).expect("an event");
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(429)), "{event}");
    };
    let all = stalled.into_iter().map(|response| Box::pin(told(response)));
    tokio::time::timeout(DEADLINE, futures::future::select_all(all)).await.expect("one has ended");
    handle.stop().await;
}

#[tokio::test]
async fn finding_9_a_deleted_collection_is_answered_as_its_list_is() {
    let (handle, api) = start(Options::default()).await;
    fill(&api, 10, 100_000).await;
    let list = api.get(MAPS).await.expect(200).json();
    // Again and again: nothing is deleted.
    for accept in ["application/json", "application/yaml", TABLE] {
        let call = Call::new("DELETE", format!("{MAPS}?dryRun=All")).accept(accept);
        let tried = api.send(&call).await.expect(200);
        for number in 0..10 {
            assert!(tried.text().contains(&format!("map-{number}")), "{accept}: {number} is missing");
        }
        if accept == "application/json" {
            assert_eq!(tried.json()["items"], list["items"]);
            assert!(!tried.headers.contains_key("content-length"), "it comes in pieces");
        }
    }
    api.delete(MAPS).await.expect(200);
    assert!(!api.get(MAPS).await.expect(200).text().contains("map-"));
    handle.stop().await;
}

#[tokio::test]
async fn fields_of_a_large_collection_are_looked_at_in_turn() {
    const SECRETS: &str = "api/v1/namespaces/default/secrets";
    let (handle, api) = start(Options::default()).await;
    for number in 0..10 {
        let kind = if number % 2 == 0 { "example.com/even" } else { "example.com/odd" };
        let secret = json!({"metadata": {"name": format!("s-{number}")}, "type": kind,
            "stringData": {"filling": "x".repeat(100_000)}});
        api.post(SECRETS, &secret).await.expect(201);
    }
    let stranger = Api::stranger(&handle.kubeconfig).await;
    let ask = async |rest: &str| {
        let path = format!("{SECRETS}?fieldSelector=type%3Dexample.com/odd{rest}");
        let call = Call { bearer: Some("ann".to_owned()), ..Call::new("GET", path) };
        let list = stranger.send(&call).await.expect(200).json();
        let items = list["items"].as_array().expect("a list").iter();
        let names: Vec<String> =
            items.map(|item| item["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect();
        (names, list["metadata"]["continue"].as_str().unwrap_or("").to_owned())
    };
    assert_eq!(ask("").await.0, ["s-1", "s-3", "s-5", "s-7", "s-9"]);
    let (first, token) = ask("&limit=3").await;
    assert_eq!(first, ["s-1", "s-3", "s-5"]);
    assert_eq!(ask(&format!("&limit=3&continue={token}")).await.0, ["s-7", "s-9"]);
    handle.stop().await;
}

#[tokio::test]
async fn finding_25_an_answer_that_nobody_reads_is_broken_off() {
    let budgets = Budgets { stall: Duration::from_millis(300), ..Budgets::default() };
    let (handle, api) = start(Options { budgets, ..Options::default() }).await;
    fill(&api, 10, 100_000).await;
    let lazy = Lazy::connect(&handle).await;
    for accept in ["application/yaml", "application/json"] {
        // A look reads on, so each needs an answer of its own. A busy server takes its time to notice.
        let mut patience = budgets.stall * 5;
        loop {
            let unread = lazy.get("bob", MAPS, accept).await.expect("an answer");
            assert_eq!(unread.status(), 200);
            tokio::time::sleep(patience).await;
            let read = tokio::time::timeout(DEADLINE, unread.into_body().collect()).await;
            if read.expect("an end").is_err() {
                break;
            }
            assert!(patience < DEADLINE / 2, "a part passes for the whole ({accept})");
            patience *= 4;
        }
    }
    let stranger = Api::stranger(&handle.kubeconfig).await;
    assert_eq!(ask(&stranger, "bob", &format!("{MAPS}/map-1")).await, 200);
    handle.stop().await;
}

/// Waits until an answer within this process that nobody reads is taken back.
async fn is_broken_off(handle: &Handle, stall: Duration, peer: &Peer) {
    let mut patience = stall * 5;
    loop {
        let request = hyper::Request::get(format!("/{MAPS}"))
            .header("accept", "application/yaml")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let unread = serve(handle.server.clone(), request, peer.clone()).await;
        assert_eq!(unread.status(), 200);
        tokio::time::sleep(patience).await;
        if unread.into_body().collect().await.is_err() {
            break;
        }
        assert!(patience < DEADLINE / 2, "nobody takes it back");
        patience *= 4;
    }
}

#[tokio::test]
async fn finding_25_an_unread_answer_to_a_caller_behind_another_server_is_broken_off() {
    let budgets = Budgets { stall: Duration::from_millis(300), ..Budgets::default() };
    let (handle, api) = start(Options { budgets, ..Options::default() }).await;
    fill(&api, 10, 100_000).await;
    // As `karmada aggregated` has a user of the API server in front answered.
    let user = Arc::new(User { name: "ann".to_owned(), ..User::default() });
    is_broken_off(&handle, budgets.stall, &Peer::Vouched(user)).await;
    handle.stop().await;
}

#[tokio::test]
async fn finding_25_an_unread_answer_to_a_request_within_another_is_broken_off() {
    let budgets = Budgets { stall: Duration::from_millis(300), ..Budgets::default() };
    let (handle, api) = start(Options { budgets, ..Options::default() }).await;
    fill(&api, 10, 100_000).await;
    // As the proxy of the search asks the control plane itself.
    let user = User { name: "ann".to_owned(), groups: vec!["team".to_owned()], ..User::default() };
    let (method, headers) = (hyper::Method::GET, hyper::HeaderMap::new());
    let first = Context::new(method, RequestInfo::default(), Query::default(), headers, Arc::new(user));
    is_broken_off(&handle, budgets.stall, &first.client()).await;
    handle.stop().await;
}

#[tokio::test]
async fn finding_25_unread_answers_hold_up_nobody_but_their_user() {
    let budgets = Budgets { unsent: 2 << 20, stall: Duration::from_secs(3600), ..Budgets::default() };
    let (handle, api) = start(Options { budgets, ..Options::default() }).await;
    fill(&api, 10, 100_000).await;
    let lazy = Lazy::connect(&handle).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        // If it takes long to build them, the connection is taken back before the last one.
        answers.push(lazy.get("bob", MAPS, "application/yaml").await);
    }
    let stranger = Api::stranger(&handle.kubeconfig).await;
    assert_eq!(ask(&stranger, "ann", MAPS).await, 200);
    // Within the patience for stalled answers of a user over the budget, or told to come back until then.
    let served = async { while ask(&stranger, "bob", MAPS).await != 200 {} };
    tokio::time::timeout(DEADLINE, served).await.expect("the user is served again");
    let mut broken = 0;
    for response in answers {
        let read = async { response?.into_body().collect().await };
        let read = tokio::time::timeout(DEADLINE, read).await;
        broken += usize::from(read.expect("an end").is_err());
    }
    assert!(broken > 0, "the user was over the budget, and nothing was taken back");
    let call = Call { bearer: Some("cid".to_owned()), ..Call::new("GET", MAPS) }.accept(TABLE);
    stranger.send(&call).await.expect(200);
    handle.stop().await;
}

#[tokio::test]
async fn finding_25_slow_bodies_take_no_places() {
    let (handle, _) = start(Options { max_writes: 4, ..Options::default() }).await;
    let mut slow = Vec::new();
    for user in ["ann", "bob"] {
        for _ in 0..15 {
            let mut stream = connect(&handle, "http/1.1").await.expect("a connection");
            let rest = "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"metadata\"";
            say(&mut stream, "POST", MAPS, user, rest).await;
            slow.push(stream);
        }
    }
    let stranger = Api::stranger(&handle.kubeconfig).await;
    for user in ["cid", "ann"] {
        let call = Call { bearer: Some(user.to_owned()), ..Call::new("POST", MAPS) };
        stranger.send(&call.json(&json!({"metadata": {"name": user}}))).await.expect(201);
    }
    drop(slow);
    handle.stop().await;
}
