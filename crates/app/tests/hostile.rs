//! One client that does everything wrong, and another one that must not notice.
//!
//! The hostile one opens a thousand watches and leaves them idle, opens others and stops reading them, sends bodies of
//! 100 MB and JSON that is nested without end, and makes one definition after the other. Meanwhile the other one reads
//! and writes as ever. Measured are the memory of the server and how long the other one waits.
//!
//! The hostile one is a process of its own that yields to all others, since such a client has machines of its own: what it
//! computes itself must not take time from the server and the other client here.
//!
//! Rounds in which a virtual machine is held up from outside do not count.
//!
//! Not run by default, since it measures: `cargo test --release -p app --test hostile -- --ignored --nocapture` on a machine that has
//! nothing else to do.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::convert::Infallible>;
type Sender = hyper::client::conn::http2::SendRequest<Body>;

const IDLE_WATCHES: usize = 1_000;
const STUCK_WATCHES: usize = 100;
const LARGE_BODIES: usize = 20;
const LARGE: usize = 100 * 1024 * 1024;
const DEFINITIONS: usize = 500;
const SAMPLES: usize = 1_500;
/// On either side of the attack.
const CALM_ROUNDS: usize = 5;
/// How many rounds it may take until as many count.
const PATIENCE: usize = 40;
/// A round does not count if the machine below this one took more than this of its time.
const STOLEN_PERCENT: u64 = 3;
/// What the server may have at most, whatever anybody does: about four times what it needs for the objects here.
const MEMORY_LIMIT_MIB: u64 = 512;

struct Server {
    process: testkit::Server,
    address: String,
    /// Holds the tokens.
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, "good,worker,1,\"workers\"\nbad,intruder,2,\"workers\"\n").expect("a file");
        let further = ["--controllers", "", "--token-auth-file", &tokens.display().to_string()];
        let process = testkit::Server::start(env!("CARGO_BIN_EXE_karmada"), &further);
        let address = process.address().expect("an address in the kubeconfig");
        Self { process, address, _dir: dir }
    }

    fn memory_mib(&self) -> u64 {
        let id = self.process.process().id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
    }

    /// Opens a connection of its own; several requests share it.
    async fn connect(&self) -> Sender {
        connect(&self.address, &self.authority()).await
    }

    fn authority(&self) -> PathBuf {
        self.process.data().join("pki/ca.crt")
    }
}

async fn connect(address: &str, ca: &Path) -> Sender {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("the authority")).expect("a usable authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("usual protocol versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
    // Or a request with a body waits for an acknowledgement that the other side delays by 40 ms.
    stream.set_nodelay(true).expect("a socket");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let stream =
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("a handshake");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

fn request(token: &str, method: &str, path: &str, body: Body) -> hyper::Request<Body> {
    hyper::Request::builder()
        .method(method)
        .uri(format!("https://server/{path}"))
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json")
        .body(body)
        .expect("a request")
}

async fn send(
    sender: &Sender,
    token: &str,
    method: &str,
    path: &str,
    body: impl Into<Bytes>,
) -> (u16, Bytes) {
    let answer = sender.clone().send_request(request(token, method, path, full(body))).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(_) => return (0, Bytes::new()),
    };
    let code = answer.status().as_u16();
    (code, answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default())
}

fn map(name: &str, value: usize) -> Vec<u8> {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"value": value.to_string(), "filling": "x".repeat(800)}})
    .to_string()
    .into_bytes()
}

/// Returns how much processor time others than this machine have had, and how much there was altogether.
fn stolen() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().unwrap_or("").split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = ticks.filter_map(|ticks| ticks.parse().ok()).collect();
    (ticks.last().copied().unwrap_or(0), ticks.iter().sum())
}

/// Works as a controller does, and returns how long its requests took; nothing if the machine, being a virtual one, was held up
/// meanwhile.
async fn work(server: &Server) -> Vec<Duration> {
    let before = stolen();
    let times = work_once(server).await;
    let after = stolen();
    let held_up = (after.0 - before.0) * 100 > (after.1 - before.1) * STOLEN_PERCENT;
    if held_up { Vec::new() } else { times }
}

async fn work_once(server: &Server) -> Vec<Duration> {
    let sender = server.connect().await;
    let maps = "api/v1/namespaces/default/configmaps";
    let mut times = Vec::with_capacity(SAMPLES);
    for number in 0..SAMPLES {
        let name = format!("work-{}", number % 50);
        let began = Instant::now();
        let (code, _) = match number % 3 {
            0 => send(&sender, "good", "POST", maps, map(&name, number)).await,
            1 => send(&sender, "good", "GET", &format!("{maps}/{name}"), "").await,
            _ => send(&sender, "good", "PUT", &format!("{maps}/{name}"), map(&name, number)).await,
        };
        times.push(began.elapsed());
        assert!(matches!(code, 200 | 201 | 404 | 409), "a modest client is answered with {code}");
    }
    times
}

/// Returns how long the slowest hundredth took at least.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

/// Works until there are enough samples for a calm value.
async fn work_in_peace(server: &Server) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..PATIENCE {
        if times.len() < CALM_ROUNDS * SAMPLES {
            times.extend(work(server).await);
        }
    }
    assert!(!times.is_empty(), "the machine is held up all the time: measure later");
    times
}

/// Makes everybody with the group `workers` an administrator of everything, but not of the server.
async fn grant(server: &Server) {
    let kubeconfig = server.process.kubeconfig();
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    let client = kube::Client::try_from(config).expect("a client");
    let binding = json!({"metadata": {"name": "workers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "workers"}]});
    let request = http::Request::post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes())
        .expect("a request");
    client.request::<Value>(request).await.expect("the binding is made");
}

#[derive(Default)]
struct Attack {
    over: AtomicBool,
    large_refused: AtomicUsize,
    deep_refused: AtomicUsize,
    definitions: AtomicUsize,
}

async fn large_bodies(sender: Sender, attack: Arc<Attack>) {
    let piece = Bytes::from(vec![b' '; 1024 * 1024]);
    for _ in 0..LARGE_BODIES {
        let pieces = std::iter::repeat_n(piece.clone(), LARGE / piece.len());
        let body = StreamBody::new(futures::stream::iter(
            pieces.map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece))),
        ));
        let path = "api/v1/namespaces/default/configmaps";
        let answer = sender.clone().send_request(request("bad", "POST", path, body.boxed_unsync())).await;
        // Either it is told, or the stream is reset: both are refusals.
        if answer.map_or(true, |answer| answer.status() == 413) {
            attack.large_refused.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn deep_json(sender: Sender, attack: Arc<Attack>) {
    let depth = 500_000;
    let nested =
        format!("{{\"metadata\":{{\"name\":\"x\"}},\"data\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    while !attack.over.load(Ordering::SeqCst) {
        let path = "api/v1/namespaces/default/configmaps";
        let (code, _) = send(&sender, "bad", "POST", path, nested.clone()).await;
        assert!(matches!(code, 400 | 413 | 422 | 429), "nesting without end is answered with {code}");
        attack.deep_refused.fetch_add(1, Ordering::SeqCst);
    }
}

async fn definitions(sender: Sender, attack: Arc<Attack>) {
    for number in 0..DEFINITIONS {
        let properties: serde_json::Map<String, Value> = (0..100)
            .map(|field| (format!("field{field}"), json!({"type": "string", "description": "x".repeat(50)})))
            .collect();
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("floods{number}.flood.example.com")},
            "spec": {"group": "flood.example.com", "scope": "Namespaced",
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                    "properties": {"spec": {"type": "object", "properties": properties}}}}}],
                "names": {"plural": format!("floods{number}"), "singular": format!("flood{number}"),
                    "kind": format!("Flood{number}"), "listKind": format!("Flood{number}List")}}});
        let path = "apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (code, _) = send(&sender, "bad", "POST", path, definition.to_string()).await;
        if code == 201 {
            attack.definitions.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Asks for a document of some megabytes that changes with every definition.
async fn documents(sender: Sender, attack: Arc<Attack>) {
    while !attack.over.load(Ordering::SeqCst) {
        let _ = send(&sender, "bad", "GET", "openapi/v2", "").await;
    }
}

type Watch = (Sender, hyper::Response<hyper::body::Incoming>);

/// Opens the watches that nobody reads, or reads any more.
async fn open_watches(target: &Target) -> Vec<Watch> {
    let mut open = Vec::new();
    for _ in 0..IDLE_WATCHES / 250 {
        let sender = target.connect().await;
        for _ in 0..250 {
            let path = "api/v1/namespaces/kube-public/secrets?watch=true&resourceVersion=1";
            let answer = sender.clone().send_request(request("bad", "GET", path, full(""))).await;
            let answer = answer.expect("a watch opens");
            assert_eq!(answer.status(), 200);
            open.push((sender.clone(), answer));
        }
    }
    for _ in 0..STUCK_WATCHES {
        // A connection each, on which nobody reads: the window closes, then the socket fills.
        let sender = target.connect().await;
        let path = "api/v1/configmaps?watch=true&allowWatchBookmarks=true";
        let answer = sender.clone().send_request(request("bad", "GET", path, full(""))).await;
        let answer = answer.expect("a watch opens");
        assert_eq!(answer.status(), 200);
        open.push((sender.clone(), answer));
    }
    open
}

/// The server, as somebody else sees it.
struct Target {
    address: String,
    ca: PathBuf,
}

impl Target {
    async fn connect(&self) -> Sender {
        connect(&self.address, &self.ca).await
    }
}

/// What the hostile process is told about its target, and says about itself: a line of each kind, in this order.
const ADDRESS: &str = "HOSTILE_TO_ADDRESS";
const AUTHORITY: &str = "HOSTILE_TO_AUTHORITY";
const OPEN: &str = "hostile: watches open ";
const HALF: &str = "hostile: bodies and definitions sent";
const DONE: &str = "hostile: done ";

/// The hostile process. It goes on until its standard input is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other one"]
async fn the_hostile_client() {
    let (Ok(address), Ok(ca)) = (std::env::var(ADDRESS), std::env::var(AUTHORITY)) else {
        println!("nobody to attack: it is started by the other test of this file");
        return;
    };
    let target = Target { address, ca: ca.into() };
    let open = open_watches(&target).await;
    println!("\n{OPEN}{}", open.len());
    let attack = Arc::new(Attack::default());
    let sent = [
        tokio::spawn(large_bodies(target.connect().await, attack.clone())),
        tokio::spawn(definitions(target.connect().await, attack.clone())),
    ];
    let endless = [
        tokio::spawn(deep_json(target.connect().await, attack.clone())),
        tokio::spawn(documents(target.connect().await, attack.clone())),
    ];
    for task in sent {
        task.await.expect("the attack goes as planned");
    }
    println!("\n{HALF}");
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    told.await.expect("a thread").expect("standard input");
    attack.over.store(true, Ordering::SeqCst);
    for task in endless {
        let went = tokio::time::timeout(Duration::from_secs(60), task).await;
        went.expect("the attack ends").expect("the attack went as planned");
    }
    let counts = [&attack.large_refused, &attack.deep_refused, &attack.definitions];
    let [large, deep, definitions] = counts.map(|count| count.load(Ordering::SeqCst));
    println!("\n{DONE}{large} {deep} {definitions}");
    drop(open);
}

/// The hostile process, seen from here.
struct Hostile {
    child: Child,
    said: Receiver<String>,
}

impl Hostile {
    fn start(server: &Server) -> Self {
        let mut child = Command::new("chrt")
            .args(["--idle", "0"])
            .arg(std::env::current_exe().expect("a program"))
            .args(["--ignored", "--exact", "the_hostile_client", "--nocapture"])
            .env(ADDRESS, &server.address)
            .env(AUTHORITY, server.authority())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chrt, of util-linux, is needed");
        let lines = BufReader::new(child.stdout.take().expect("a piped output")).lines();
        let (say, said) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).filter(|line| line.starts_with("hostile: ")).for_each(|line| {
                let _ = say.send(line);
            });
        });
        Self { child, said }
    }

    /// Returns what it says next about something.
    fn wait(&self, what: &str) -> String {
        let line = self.said.recv_timeout(Duration::from_secs(180)).expect("the hostile client goes on");
        line.strip_prefix(what).expect("one thing after the other").to_owned()
    }

    fn has_sent(&self) -> bool {
        match self.said.try_recv() {
            Ok(line) => line == HALF,
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => panic!("the hostile client has died"),
        }
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "measures; run it alone, see the head of the file"]
async fn who_behaves_does_not_notice_who_does_not() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::start();
    grant(&server).await;
    work(&server).await;
    let mut peace = work_in_peace(&server).await;
    let before = server.memory_mib();

    let mut hostile = Hostile::start(&server);
    let open: usize = hostile.wait(OPEN).parse().expect("a number");
    let mut times = Vec::new();
    let mut most = 0;
    while !hostile.has_sent() {
        let round = work(&server).await;
        most = most.max(server.memory_mib());
        if !round.is_empty() {
            println!("a round: {:?}", p99(round.clone()));
        }
        times.extend(round);
    }
    assert!(!times.is_empty(), "the machine is held up all the time: measure later");
    let (rounds, attacked) = (times.len() / SAMPLES, p99(times));
    hostile.stop();
    let counts = hostile.wait(DONE);
    let counts: Vec<usize> = counts.split(' ').map(|count| count.parse().expect("a number")).collect();
    let [large, deep, definitions] = counts[..] else { panic!("three counts, not {counts:?}") };
    // The machine has moods; what is calm is measured on both sides of the attack.
    let first = p99(peace.clone());
    let second = work_in_peace(&server).await;
    let last = p99(second.clone());
    peace.extend(second);
    let calm = p99(peace);
    println!(
        "p99 calm {calm:?} ({first:?} before, {last:?} after), under attack {attacked:?} ({rounds} rounds), {:.2} times; \
         memory {before} MiB, at most {most} MiB; {open} watches open, {large} large and {deep} deep bodies refused, \
         {definitions} definitions made",
        attacked.as_secs_f64() / calm.as_secs_f64(),
    );
    assert_eq!((large, definitions), (LARGE_BODIES, DEFINITIONS));
    assert!(deep > 0, "no deep body was refused");
    assert!(most < MEMORY_LIMIT_MIB, "the server took {most} MiB");
    assert!(attacked <= calm * 2, "p99 was {calm:?} when calm and {attacked:?} under attack");
}
