//! Clusters in pull mode: registered with a token, looked after by an agent, cut off and back again.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use testkit::check::{self, AUDIT_POLICY, CONTROLLERS, Site, audit_policy_with_reads, check};
use testkit::process::Speaks;
use testkit::{Kind, Process, Server, at, client, condition, install_tls, until, until_gone};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::members::{Access, Members, Place};
use crate::plane::KARMADA;

/// Has agents noticed soon when they are silent.
pub(crate) const HASTY: [&str; 2] = ["--cluster-monitor-period=200ms", "--cluster-monitor-grace-period=3s"];

pub(crate) fn clusters() -> Kind {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
}

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

/// What an agent is registered with.
pub(crate) struct Newcomer {
    /// Where the control plane is, as the agent sees it.
    pub(crate) address: String,
    pub(crate) name: String,
    /// The member's kubeconfig, with an account of the agent's own.
    pub(crate) member: PathBuf,
    /// Where the agent's kubeconfig is kept.
    pub(crate) kubeconfig: PathBuf,
}

impl Newcomer {
    pub(crate) fn new(server: &Server, name: &str, member: &Path, folder: &Path) -> Self {
        Self {
            address: server.address().expect("an address"),
            name: name.to_owned(),
            member: account(member, name, folder),
            kubeconfig: folder.join(format!("{name}.kubeconfig")),
        }
    }

    fn command(&self, token: &[String], further: &[&str]) -> Command {
        let mut command = Command::new(KARMADA);
        command.args(["register", &self.address]).args(token).args(["--cluster-name", &self.name]);
        command.arg("--kubeconfig").arg(&self.member).args(further).stdin(Stdio::null());
        command
    }

    /// Registers the member and runs its agent.
    pub(crate) fn register(&self, token: &[String]) -> Process {
        self.register_with(token, &[])
    }

    /// As [`Self::register`], with further flags.
    pub(crate) fn register_with(&self, token: &[String], flags: &[&str]) -> Process {
        let mut command = self.command(token, &[flags, &["--run", "--agent-kubeconfig"]].concat());
        command.arg(&self.kubeconfig).stdout(Stdio::null());
        let mut process = Process::spawn(command, Speaks::Stderr);
        process.line("agent runs");
        process
    }

    /// Tries to register the member, which fails; returns what is said about it.
    fn refused(&self, token: &[String]) -> String {
        let output = self.command(token, &["--discovery-timeout", "4s"]).output().expect("it runs");
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = text.lines().filter(|line| line.starts_with("error: ")).map(str::to_owned).next_back();
        last.unwrap_or_else(|| panic!("{text}"))
    }

    /// Runs the agent of a member that is registered.
    fn run(&self) -> Process {
        let (plane, member) = (self.kubeconfig.to_string_lossy(), self.member.to_string_lossy());
        let flags = ["--karmada-kubeconfig", &plane, "--kubeconfig", &member, "--cluster-name", &self.name];
        Process::start(KARMADA, &[&["agent", "--leader-elect=false"][..], &flags].concat(), "agent runs")
    }
}

fn account_of(cluster: &str) -> String {
    format!("agent-of-{cluster}")
}

/// The namespace of agents' accounts in members.
const ACCOUNTS: &str = "default";

/// Makes an account for the agent of a cluster, unless it has one. Agents that run in their members have one, too, and by its name the
/// member's log tells what the agent writes from what the test does. Returns its kubeconfig.
pub(crate) fn account(member: &Path, cluster: &str, folder: &Path) -> PathBuf {
    let file = folder.join(format!("{cluster}-member.kubeconfig"));
    if file.exists() {
        return file;
    }
    let (account, place) = (account_of(cluster), member.to_string_lossy());
    let there = ["--kubeconfig", &place];
    let made = |arguments: &[&str]| text(&[&["create"], arguments, &there].concat());
    made(&["serviceaccount", &account, "--namespace", ACCOUNTS]);
    let subject = format!("--serviceaccount={ACCOUNTS}:{account}");
    made(&["clusterrolebinding", &account, "--clusterrole=cluster-admin", &subject]);
    let token = made(&["token", &account, "--namespace", ACCOUNTS, "--duration=24h"]);
    let mut config =
        serde_json::to_value(Kubeconfig::read_from(member).expect("a kubeconfig")).expect("JSON");
    for user in config["users"].as_array_mut().into_iter().flatten() {
        user["user"] = json!({"token": token.trim()});
    }
    std::fs::write(&file, config.to_string()).expect("a kubeconfig");
    file
}

/// Takes the account of an agent out of its member.
pub(crate) fn remove_account(member: &Path, cluster: &str) {
    let (account, place) = (account_of(cluster), member.to_string_lossy());
    let there = ["--kubeconfig", &place];
    text(&[&["delete", "serviceaccount", &account, "--namespace", ACCOUNTS], &there[..]].concat());
    text(&[&["delete", "clusterrolebinding", &account], &there[..]].concat());
}

/// Returns what has to be known of a member whose agent has an account of its own.
pub(crate) fn site(cluster: &str, client: kube::Client, logs: Vec<PathBuf>) -> Site {
    Site::member(cluster, client, logs).written_by(&format!(":{}", account_of(cluster)))
}

/// Fails unless a control plane with all controllers and its only member, which has an agent, keep the laws of every world.
pub(crate) async fn keeps_laws(plane: Site, cluster: &str, member: &Place) {
    let logs = member.audit_log.iter().cloned().collect();
    let members = vec![site(cluster, client(&member.kubeconfig).await, logs)];
    check(&check::World { plane, members, controllers: "*".to_owned() }).await;
}

/// Returns the flags of a new token.
pub(crate) fn token(server: &Server) -> Vec<String> {
    token_of(&server.kubeconfig())
}

/// Returns the flags of a new token for the control plane of a kubeconfig.
pub(crate) fn token_of(kubeconfig: &Path) -> Vec<String> {
    let there = kubeconfig.to_string_lossy();
    let line = text(&["token", "create", "--print-register-command", "--kubeconfig", &there]);
    line.split_whitespace().skip(3).map(str::to_owned).collect()
}

fn text(arguments: &[&str]) -> String {
    String::from_utf8(testkit::run(KARMADA, arguments).stdout).expect("text")
}

/// A control plane's side of a test.
pub(crate) struct Plane {
    pub(crate) client: kube::Client,
}

impl Plane {
    async fn new(server: &Server) -> Self {
        Self { client: server.client().await }
    }

    pub(crate) async fn until_ready(&self, cluster: &str, status: &str, what: &str) {
        let all = clusters().api(self.client.clone(), "");
        until(&all, cluster, what, |found| condition(found, "Ready") == Some(status)).await;
    }

    pub(crate) async fn create(&self, kind: &Kind, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let api = kind.api(self.client.clone(), "default");
        api.create(&PostParams::default(), &object).await.expect("created");
    }

    /// Has these ConfigMaps in all members.
    async fn propagate(&self, names: &[&str]) {
        let selectors: Vec<Value> =
            names.iter().map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name})).collect();
        let kind =
            Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "all"}, "spec": {"resourceSelectors": selectors, "placement": {}}});
        self.create(&kind, policy).await;
    }

    async fn make(&self, name: &str) {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
        self.create(&config_maps(), map).await;
    }

    async fn change(&self, name: &str, to: &str) {
        let patch = Patch::Merge(json!({"data": {"a": to}}));
        let maps = config_maps().api(self.client.clone(), "default");
        maps.patch(name, &PatchParams::default(), &patch).await.expect("changed");
    }
}

async fn has(inside: &Api<DynamicObject>, name: &str, wanted: &str, what: &str) {
    until(inside, name, what, |found| at(found, "/data/a") == Some(json!(wanted))).await;
}

async fn uid(inside: &Api<DynamicObject>, name: &str) -> Option<String> {
    inside.get(name).await.unwrap_or_else(|error| panic!("{name}: {error}")).metadata.uid
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (kind, target) = (entry.file_type().expect("a kind"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_looks_after_its_cluster_through_restarts_and_a_restored_backup() {
    use std::os::unix::fs::PermissionsExt as _;
    install_tls();
    let members = Members::simulated(Access::Exclusive, 1).await.expect("a member");
    let folder = tempfile::tempdir().expect("a folder");
    let (data, backup) = (folder.path().join("data"), folder.path().join("backup"));
    let mut server = Server::audited_at(KARMADA, &data, AUDIT_POLICY, &[]);
    let place = &members.places()[0];
    let newcomer = Newcomer::new(&server, "m1", &place.kubeconfig, folder.path());
    let inside = config_maps().api(client(&place.kubeconfig).await, "default");

    let agent = newcomer.register(&token(&server));
    let mode = std::fs::metadata(&newcomer.kubeconfig).expect("a kubeconfig").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads it");
    let plane = Plane::new(&server).await;
    plane.until_ready("m1", "True", "a registered cluster is ready").await;
    let cluster = clusters().api(plane.client.clone(), "").get("m1").await.expect("a cluster");
    assert_eq!(cluster.data["spec"]["syncMode"], "Pull");
    assert_eq!(cluster.data["spec"]["impersonatorSecretRef"]["name"], "m1-impersonator");
    let leases = Kind::namespaced("coordination.k8s.io", "v1", "Lease", "leases");
    let leases = leases.api(plane.client.clone(), "karmada-cluster");
    until(&leases, "m1", "the agent shows that it is alive", |found| {
        at(found, "/spec/holderIdentity") == Some(json!("m1"))
    })
    .await;
    plane.propagate(&["hello", "later"]).await;
    plane.make("hello").await;
    has(&inside, "hello", "1", "it arrives").await;

    // The control plane restarts, then the agent.
    server.end();
    copy(&data, &backup);
    server.restart();
    let plane = Plane::new(&server).await;
    plane.change("hello", "2").await;
    has(&inside, "hello", "2", "a change arrives after the control plane was away").await;
    drop(agent);
    plane.change("hello", "3").await;
    let mut agent = newcomer.run();
    has(&inside, "hello", "3", "a change arrives after the agent was away").await;
    plane.make("later").await;
    has(&inside, "later", "1", "it arrives").await;
    let (hello, later) = (uid(&inside, "hello").await, uid(&inside, "later").await);

    // A backup is restored, which knows nothing of what came later.
    server.end();
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&backup, &data);
    server.restart();
    let plane = Plane::new(&server).await;
    plane.change("hello", "4").await;
    has(&inside, "hello", "4", "a change arrives after the control plane was restored").await;
    let now = async || (uid(&inside, "hello").await, uid(&inside, "later").await);
    assert_eq!(now().await, (hello.clone(), later.clone()), "nothing was deleted");
    // What it knows nothing of belongs to nobody there, until it is wanted once more.
    plane.make("later").await;
    let site = |server: &Server| Site::plane(plane.client.clone(), CONTROLLERS, server.audit_logs());
    keeps_laws(site(&server), "m1", place).await;
    assert_eq!(now().await, (hello, later), "it is taken over as it is");
    assert!(!agent.has_said("panicked"));

    // What cannot be registered is told in one sentence, and leaves nothing in the member.
    let taken = newcomer.refused(&token(&server));
    assert!(taken.starts_with("error: a cluster named m1 is registered already; hint: "), "{taken}");
    let again = Newcomer::new(&server, "m1-again", &place.kubeconfig, folder.path());
    let known = again.refused(&token(&server));
    assert!(known.contains("has been registered with name \"m1\""), "{known}");
    let mut wrong = token(&server);
    wrong[1] = "abcdef.0123456789abcdef".to_owned();
    let unknown = newcomer.refused(&wrong);
    assert!(unknown.contains("does not know a token with the id \"abcdef\"; hint: "), "{unknown}");
    let mut wrong = token(&server);
    wrong[3] = format!("sha256:{}", "0".repeat(64));
    let other = newcomer.refused(&wrong);
    assert!(other.contains("is not the expected one") && other.contains("hint: "), "{other}");
    let nowhere = Newcomer { address: "127.0.0.1:1".to_owned(), ..newcomer };
    let unreachable = nowhere.refused(&token(&server));
    assert!(unreachable.contains("cannot reach the control plane at https://127.0.0.1:1 within 4 s; hint: "));
    let namespaces =
        Kind::cluster("", "v1", "Namespace", "namespaces").api(client(&nowhere.member).await, "");
    assert!(namespaces.get_opt("karmada-system").await.expect("an answer").is_none(), "nothing is half done");

    // And out again, with what runs there.
    let (there, here) = (server.kubeconfig(), place.kubeconfig.clone());
    let control = ["--karmada-config", &there.to_string_lossy()].map(str::to_owned);
    let arguments =
        ["unregister", "m1", "--cluster-kubeconfig", &here.to_string_lossy(), &control[0], &control[1]]
            .map(str::to_owned);
    text(&arguments.each_ref().map(String::as_str));
    assert!(clusters().api(plane.client.clone(), "").get_opt("m1").await.expect("an answer").is_none());
    until_gone(&inside, "hello", "what ran there is gone").await;
    let roles = Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
    let roles = roles.api(plane.client.clone(), "");
    assert!(roles.get_opt("system:karmada:m1:agent").await.expect("an answer").is_none());
    keeps_laws(site(&server), "m1", place).await;
}

/// A way between an agent and its control plane that can be cut.
struct Way {
    address: SocketAddr,
    open: Arc<AtomicBool>,
    cut: Arc<parking_lot::Mutex<CancellationToken>>,
}

impl Way {
    async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (open, cut) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let way = Self { address, open, cut };
        let (open, cut) = (way.open.clone(), way.cut.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if !open.load(Ordering::SeqCst) {
                    continue;
                }
                let (target, cut) = (target.clone(), cut.lock().clone());
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
        });
        way
    }

    fn cut(&self) {
        self.open.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    fn heal(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_cut_off_catches_up_and_deletes_nothing_that_is_wanted() {
    install_tls();
    let members = Members::simulated(Access::Exclusive, 1).await.expect("a member");
    let folder = tempfile::tempdir().expect("a folder");
    let policy = audit_policy_with_reads(&json!({"users": [AGENT]}));
    let server = Server::audited_at(KARMADA, &folder.path().join("data"), &policy, &HASTY);
    let log = server.audit_logs().remove(0);
    let way = Way::to(server.address().expect("an address")).await;
    let place = &members.places()[0];
    let newcomer = Newcomer::new(&server, "m1", &place.kubeconfig, folder.path());
    let newcomer = Newcomer { address: way.address.to_string(), ..newcomer };
    let inside = config_maps().api(client(&place.kubeconfig).await, "default");
    let _agent = newcomer.register(&token(&server));
    let plane = Plane::new(&server).await;
    plane.until_ready("m1", "True", "a registered cluster is ready").await;
    plane.propagate(&["kept", "changed", "gone", "new"]).await;
    for name in ["kept", "changed", "gone"] {
        plane.make(name).await;
    }
    for name in ["kept", "changed", "gone"] {
        has(&inside, name, "1", "it arrives").await;
    }
    let before = [uid(&inside, "kept").await, uid(&inside, "changed").await];

    way.cut();
    plane.until_ready("m1", "Unknown", "the silence is noticed").await;
    let cluster = clusters().api(plane.client.clone(), "");
    until(&cluster, "m1", "workloads are kept away", |found| {
        let taints = at(found, "/spec/taints").unwrap_or_default().to_string();
        taints.contains("cluster.karmada.io/unreachable")
    })
    .await;
    plane.change("changed", "2").await;
    let maps = config_maps().api(plane.client.clone(), "default");
    maps.delete("gone", &DeleteParams::default()).await.expect("deleted");
    for name in ["kept", "changed", "gone"] {
        has(&inside, name, "1", "a member that is cut off keeps what it has").await;
    }
    let seen = asked_by_agent(&log).len();

    way.heal();
    has(&inside, "changed", "2", "what changed meanwhile arrives").await;
    until_gone(&inside, "gone", "what is not wanted any more goes").await;
    plane.until_ready("m1", "True", "it is back").await;
    assert_eq!([uid(&inside, "kept").await, uid(&inside, "changed").await], before, "nothing was made anew");
    let after = asked_by_agent(&log).split_off(seen);
    assert!(after.iter().any(|entry| entry["verb"] == "watch"), "it watches again");
    // Its Lease is as it wrote it, so nothing was restored: it goes on where it was.
    let lists = after.iter().filter(|entry| entry["verb"] == "list").count();
    assert_eq!(lists, 0, "{lists} lists");
    println!("{} requests after the return, {lists} of them lists", after.len());
    let site = Site::plane(plane.client.clone(), CONTROLLERS, server.audit_logs());
    keeps_laws(site, "m1", place).await;
}

/// What an agent used in its member is cleaned away while it runs: its Deployment goes last, and its Pod takes a while to end.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_outlives_its_cluster_brings_nothing_back() {
    const ACCOUNTS: &str = "accounts";
    install_tls();
    let members = Members::simulated(Access::Exclusive, 1).await.expect("a member");
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::audited_at(KARMADA, &folder.path().join("data"), AUDIT_POLICY, &[]);
    let way = Way::to(server.address().expect("an address")).await;
    let member = &members.places()[0].kubeconfig;
    let newcomer = Newcomer::new(&server, "m1", member, folder.path());
    let newcomer = Newcomer { address: way.address.to_string(), ..newcomer };
    let mut agent = newcomer.register_with(&token(&server), &["--cluster-namespace", ACCOUNTS]);
    let plane = Plane::new(&server).await;
    plane.until_ready("m1", "True", "a registered cluster is ready").await;
    let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces").api(client(member).await, "");
    assert!(namespaces.get_opt(ACCOUNTS).await.expect("an answer").is_some(), "it has an account");

    let (there, here) = (server.kubeconfig(), member.to_string_lossy());
    let unregister = ["unregister", "m1", "--cluster-kubeconfig", &here, "--wait=3m"];
    let control = ["--karmada-config", &there.to_string_lossy(), "--cluster-namespace", ACCOUNTS];
    text(&[&unregister[..], &control[..]].concat());
    // It connects anew, if only now.
    way.cut();
    way.heal();
    agent.line("whether the control plane knows the cluster");
    until_gone(&namespaces, ACCOUNTS, "its account stays away").await;
    // The member is nobody's any more, and its agent asks in vain, in the same words each time: the control plane alone is judged.
    let plane = Site::plane(plane.client.clone(), CONTROLLERS, server.audit_logs());
    check(&check::World { plane, members: Vec::new(), controllers: "*".to_owned() }).await;
}

/// The name of the agent of m1 in the control plane.
pub(crate) const AGENT: &str = "system:karmada:agent:m1";

/// Returns what the agent of m1 has asked the control plane for, by its log.
pub(crate) fn asked_by_agent(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).expect("a log");
    // The last line may be on its way.
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries.filter(|entry| entry["user"]["username"] == AGENT).collect()
}
