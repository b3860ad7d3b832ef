//! Members in pull mode that the control plane cannot reach, and the tunnel by which it does.
//!
//! The control plane knows an address of the member at which nobody answers, and none of its credentials. What goes into the
//! member goes through the connection that the agent has made, and in the name of whoever asks.

use std::path::{Path, PathBuf};

use http::header::{CONNECTION, UPGRADE};
use http::{Request, StatusCode};
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use testkit::check::{AUDIT_POLICY, CONTROLLERS, Site};
use testkit::{Kind, Process, Server, client, eventually, install_tls, object};

use crate::members::{Access, Members, Place};
use crate::plane::{ControlPlane, KARMADA};
use crate::pull::{account, keeps_laws};

/// Nobody answers there.
const NOWHERE: &str = "https://127.0.0.1:1";
const NAME: &str = "remote";

/// A control plane with users of a file, a simulated member, and its agent.
struct Stage {
    control: ControlPlane,
    plane: Client,
    member: Client,
    place: Place,
    agent: Option<Process>,
    arguments: Vec<String>,
    dir: tempfile::TempDir,
    _members: Members,
}

impl Stage {
    async fn new(further: &[&str]) -> Self {
        install_tls();
        let members = Members::simulated(Access::Exclusive, 1).await.expect("simulated members");
        let place = members.places().remove(0);
        let dir = tempfile::tempdir().expect("a folder for the test");
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, users()).expect("tokens");
        let control = ControlPlane::with("*", &["--token-auth-file", &tokens.display().to_string()]);
        let plane = client(&control.kubeconfig).await;
        create(&plane, &bindings(), agents_role()).await;
        let own = kubeconfig(dir.path(), &control.kubeconfig, NAME);
        let arguments = agent_arguments(&own, &account(&place.kubeconfig, NAME, dir.path()));
        let arguments = arguments.into_iter().chain(further.iter().map(|&flag| flag.to_owned())).collect();
        let member = client(&place.kubeconfig).await;
        let mut stage =
            Self { control, plane, member, place, agent: None, arguments, dir, _members: members };
        stage.start_agent();
        stage
    }

    fn start_agent(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.agent = Some(Process::start(KARMADA, &arguments, "agent runs"));
    }

    /// Somebody of the file, or the administrator.
    async fn user(&self, name: Option<&str>) -> Client {
        match name {
            None => self.plane.clone(),
            Some(name) => client(&kubeconfig(self.dir.path(), &self.control.kubeconfig, name)).await,
        }
    }

    /// Somebody who looks into the member.
    async fn inside(&self, name: Option<&str>) -> Client {
        let file = match name {
            None => self.control.kubeconfig.clone(),
            Some(name) => kubeconfig(self.dir.path(), &self.control.kubeconfig, name),
        };
        inside(&file).await
    }

    async fn until_reached(&self) {
        until_reached(&self.inside(None).await).await;
    }

    /// Fails unless the control plane and the member keep the laws of every world.
    async fn check(&self) {
        keeps_laws(self.control.site(self.plane.clone()), NAME, &self.place).await;
    }
}

/// The name and the groups that a token stands for.
fn users() -> String {
    let agent = |name: &str| format!("{name},system:karmada:agent:{name},{name},\"system:karmada:agents\"\n");
    [agent(NAME), agent("other"), "jane,jane,jane\n".to_owned()].concat()
}

fn agents_role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "agents"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:karmada:agents"}],
    })
}

/// Returns the command line of an agent whose member nobody else can reach.
fn agent_arguments(control: &Path, member: &Path) -> Vec<String> {
    let arguments = [
        "agent",
        "--karmada-kubeconfig",
        &control.display().to_string(),
        "--kubeconfig",
        &member.display().to_string(),
        "--cluster-name",
        NAME,
        "--cluster-api-endpoint",
        NOWHERE,
        "--report-secrets",
        "None",
        "--leader-elect=false",
    ];
    arguments.map(str::to_owned).to_vec()
}

/// Returns a client that looks into the member through a control plane.
async fn inside(control: &Path) -> Client {
    let file = Kubeconfig::read_from(control).expect("a kubeconfig");
    let mut config =
        Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("usable");
    let proxy = format!("{}apis/cluster.karmada.io/v1alpha1/clusters/{NAME}/proxy", config.cluster_url);
    config.cluster_url = proxy.parse().expect("an address");
    // A client that tries again by itself would hide that nobody can be reached.
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

async fn until_reached(inside: &Client) {
    let maps = maps(inside.clone());
    eventually("the member is reached", async || {
        maps.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// Writes the kubeconfig of a user with a token.
fn kubeconfig(folder: &Path, source: &Path, token: &str) -> PathBuf {
    let mut file = Kubeconfig::read_from(source).expect("a kubeconfig");
    for user in &mut file.auth_infos {
        user.auth_info = Some(AuthInfo::default());
    }
    let mut value = serde_json::to_value(&file).expect("a kubeconfig");
    value["users"][0]["user"] = json!({ "token": token });
    let path = folder.join(format!("{token}.kubeconfig"));
    std::fs::write(&path, value.to_string()).expect("a kubeconfig");
    path
}

fn bindings() -> Kind {
    Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings")
}

fn maps(client: Client) -> Api<DynamicObject> {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps").api(client, "default")
}

async fn create(client: &Client, kind: &Kind, value: Value) {
    let created = kind.api(client.clone(), "default").create(&PostParams::default(), &object(value)).await;
    created.unwrap_or_else(|error| panic!("{}: {error}", kind.resource.kind));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_route_is_reached_through_its_agent_and_in_the_callers_name() {
    let mut stage = Stage::new(&[]).await;
    stage.until_reached().await;

    // What is written there is in the member.
    let note =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"a": "b"}});
    let inside = stage.inside(None).await;
    create(&inside, &Kind::namespaced("", "v1", "ConfigMap", "configmaps"), note).await;
    assert_eq!(maps(stage.member.clone()).get("note").await.expect("it is there").data["data"]["a"], "b");

    // Jane may use the proxy, and nothing in the member: the member says so, to her.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "proxy"},
        "rules": [{"apiGroups": ["cluster.karmada.io"], "resources": ["clusters/proxy"], "resourceNames": [NAME], "verbs": ["*"]}],
    });
    let roles = Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
    create(&stage.plane, &roles, role).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "proxy"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    create(&stage.plane, &bindings(), binding).await;
    let jane = maps(stage.inside(Some("jane")).await);
    eventually("the member knows Jane", async || match jane.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.message.contains("User \"jane\" cannot list resource") => {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    })
    .await;

    // A watch goes on until the agent dies, and then it breaks.
    let request = Request::get("/api/v1/namespaces/default/configmaps?watch=true").body(Body::empty());
    let response = inside.send(request.expect("a request")).await.expect("a watch");
    assert_eq!(response.status(), StatusCode::OK);
    let mut watch = response.into_body();
    let first = next(&mut watch).await.expect("what is there");
    assert!(String::from_utf8_lossy(&first).contains("ADDED"), "{first:?}");
    stage.agent = None;
    let broken = async { while next(&mut watch).await.is_ok() {} };
    tokio::time::timeout(std::time::Duration::from_secs(120), broken).await.expect("the watch ends");
    let gone = eventually("its end is noticed", async || match maps(inside.clone()).get("note").await {
        Err(kube::Error::Api(status)) if status.code == 503 => Ok(status),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(gone.reason, "ServiceUnavailable");
    assert!(
        gone.message
            .starts_with(&format!("the agent of cluster {NAME} has no tunnel to this control plane;"))
            || gone.message == format!("the tunnel to cluster {NAME} ended before the answer came"),
        "{}",
        gone.message
    );

    stage.start_agent();
    stage.until_reached().await;
    let events = Kind::namespaced("", "v1", "Event", "events").api(stage.plane.clone(), "default");
    eventually("events tell of it", async || {
        let about = ListParams::default().fields(&format!("involvedObject.name={NAME}"));
        let events = events.list(&about).await.map_err(|error| error.to_string())?;
        let reasons: Vec<&str> = events.iter().filter_map(|event| event.data["reason"].as_str()).collect();
        let told = ["TunnelOpened", "TunnelClosed"].iter().all(|reason| reasons.contains(reason));
        if told { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
    stage.check().await;
}

/// Reads the next piece of a stream that has to go on, or to end, within a while.
async fn next(body: &mut Body) -> Result<bytes::Bytes, String> {
    use http_body_util::BodyExt as _;
    let frame = tokio::time::timeout(std::time::Duration::from_secs(120), body.frame());
    match frame.await.expect("a piece or an end") {
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the end".to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_its_own_agent_opens_the_tunnel_of_a_cluster() {
    let stage = Stage::new(&["--tunnel=false"]).await;
    // Nobody has opened one, and nobody reaches in.
    let inside = maps(stage.inside(None).await);
    match inside.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 503, "{}", status.message),
        other => panic!("{other:?}"),
    }
    let pushed = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "other"},
        "spec": {"syncMode": "Push", "apiEndpoint": NOWHERE},
    });
    let clusters = Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
    create(&stage.plane, &clusters, pushed).await;
    let asked = async |user: Option<&str>, cluster: &str, protocol: &str| {
        let request =
            Request::get(tunnel::path(cluster)).header(CONNECTION, "Upgrade").header(UPGRADE, protocol);
        let client = stage.user(user).await;
        let response = client.send(request.body(Body::empty()).expect("a request")).await.expect("an answer");
        response.status().as_u16()
    };
    for (user, cluster, protocol, code) in [
        (Some("other"), NAME, tunnel::PROTOCOL, 403),
        (Some("jane"), NAME, tunnel::PROTOCOL, 403),
        (Some("stranger"), NAME, tunnel::PROTOCOL, 401),
        // Not even the administrator is the member.
        (None, NAME, tunnel::PROTOCOL, 403),
        (Some(NAME), "other", tunnel::PROTOCOL, 403),
        (Some(NAME), NAME, "websocket", 400),
        (Some("other"), "other", tunnel::PROTOCOL, 400),
        (Some(NAME), NAME, tunnel::PROTOCOL, 101),
    ] {
        assert_eq!(asked(user, cluster, protocol).await, code, "{user:?} {cluster} {protocol}");
    }
    stage.check().await;
}

/// Asks the control plane as its administrator.
async fn ask(stage: &Stage, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request =
        Request::builder().method(method).uri(path).header("content-type", "application/merge-patch+json");
    stage.plane.request(request.body(body).expect("a request")).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_route_is_searched_and_measured_through_its_tunnel() {
    const PROXY: &str =
        "/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy/api/v1/namespaces/default/configmaps";
    let mut stage = Stage::new(&[]).await;
    let note =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"a": "b"}});
    create(&stage.member, &Kind::namespaced("", "v1", "ConfigMap", "configmaps"), note).await;
    let registry = json!({"apiVersion": "search.karmada.io/v1alpha1", "kind": "ResourceRegistry", "metadata": {"name": "maps"},
        "spec": {"targetCluster": {}, "resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}]}});
    let registries = Kind::cluster("search.karmada.io", "v1alpha1", "ResourceRegistry", "resourceregistries");
    create(&stage.plane, &registries, registry).await;
    let shown = async |stage: &Stage, wanted: &str, stale: bool| {
        eventually(format!("the note is {wanted}, stale: {stale}"), async || {
            let list = ask(stage, "GET", PROXY, &Value::Null).await?;
            let note = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|item| item["metadata"]["name"] == "note");
            let note = note.ok_or_else(|| list.to_string())?;
            let marks = &note["metadata"]["annotations"];
            let right = marks["resource.karmada.io/cached-from-cluster"] == NAME
                && note["data"]["a"] == wanted
                && marks["search.karmada.io/stale-since"].is_string() == stale;
            if right { Ok(()) } else { Err(note.to_string()) }
        })
        .await;
    };
    shown(&stage, "b", false).await;

    // One object and a change of it, all clusters at once, and metrics go the same way.
    let one = format!("{PROXY}/note");
    eventually("a change is handed on", async || {
        ask(&stage, "PATCH", &one, &json!({"data": {"a": "c"}})).await.map(drop)
    })
    .await;
    assert_eq!(maps(stage.member.clone()).get("note").await.expect("it is there").data["data"]["a"], "c");
    shown(&stage, "c", false).await;
    assert_eq!(ask(&stage, "GET", &one, &Value::Null).await.expect("the note")["data"]["a"], "c");
    let star = "/apis/cluster.karmada.io/v1alpha1/clusters/*/proxy/api/v1/namespaces/default/configmaps/note";
    assert_eq!(ask(&stage, "GET", star, &Value::Null).await.expect("the note")["data"]["a"], "c");
    eventually("its nodes are measured", async || {
        let nodes = ask(&stage, "GET", "/apis/metrics.k8s.io/v1beta1/nodes", &Value::Null).await?;
        let from = nodes.pointer("/items/0/metadata/annotations/resource.karmada.io~1query-from-cluster");
        if from == Some(&json!(NAME)) { Ok(()) } else { Err(nodes.to_string()) }
    })
    .await;

    // Without its agent it is shown as it was; with it, as it is.
    stage.agent = None;
    shown(&stage, "c", true).await;
    let patch = kube::api::Patch::Merge(json!({"data": {"a": "d"}}));
    maps(stage.member.clone())
        .patch("note", &kube::api::PatchParams::default(), &patch)
        .await
        .expect("changed");
    stage.start_agent();
    shown(&stage, "d", false).await;
    stage.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_reached_through_every_server_on_one_etcd() {
    install_tls();
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(etcd) = clusters::Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let members = Members::simulated(Access::Exclusive, 1).await.expect("simulated members");
    let place = members.places().remove(0);
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, users()).expect("tokens");
    let tokens = tokens.display().to_string();
    let flags = ["--store", "etcd", "--etcd-servers", &etcd.endpoint, "--token-auth-file", &tokens];
    let mut servers: Vec<Server> = (0..3)
        .map(|number| {
            let data = dir.path().join(format!("server-{number}"));
            Server::audited_at(KARMADA, &data, AUDIT_POLICY, &flags)
        })
        .collect();
    let address = |server: &Server| server.address().expect("it has been started");
    let addresses = servers.iter().map(|server| address(server).parse().expect("an address"));
    let balancer = testkit::balancer::of_connections(addresses.collect()).await;
    create(&servers[0].client().await, &bindings(), agents_role()).await;

    // The agent knows one address. Whoever asks a server for the member does so at that server.
    let own = kubeconfig(dir.path(), &servers[0].kubeconfig(), NAME);
    let text = std::fs::read_to_string(&own).expect("a kubeconfig");
    std::fs::write(&own, text.replace(&address(&servers[0]), &balancer.to_string())).expect("a kubeconfig");
    let arguments = agent_arguments(&own, &account(&place.kubeconfig, NAME, dir.path()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut agent = Process::start(KARMADA, &arguments, "agent runs");
    let mut doors = Vec::new();
    for server in &servers {
        let door = inside(&server.kubeconfig()).await;
        until_reached(&door).await;
        doors.push(door);
    }

    // What goes through one of them does not depend on the others, whether they die or come back.
    let request = Request::get("/api/v1/namespaces/default/configmaps?watch=true").body(Body::empty());
    let response = doors[1].send(request.expect("a request")).await.expect("a watch");
    assert_eq!(response.status(), StatusCode::OK);
    let mut watch = response.into_body();
    servers[0].kill();
    for door in &doors[1..] {
        maps(door.clone()).list(&ListParams::default()).await.expect("its own tunnel is open");
    }
    // It waits for the process, and must not hold up the member.
    tokio::task::block_in_place(|| servers[0].restart());
    until_reached(&inside(&servers[0].kubeconfig()).await).await;
    for door in &doors[1..] {
        maps(door.clone()).list(&ListParams::default()).await.expect("its own tunnel is open");
    }
    let note = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}});
    create(&client(&place.kubeconfig).await, &Kind::namespaced("", "v1", "ConfigMap", "configmaps"), note)
        .await;
    let mut seen = String::new();
    while !seen.contains("\"note\"") {
        seen += &String::from_utf8_lossy(&next(&mut watch).await.expect("the watch goes on"));
    }
    assert!(!agent.has_said("panicked"));
    let logs = servers.iter().flat_map(Server::audit_logs).collect();
    let plane = Site::plane(servers[1].client().await, CONTROLLERS, logs).of_several_servers();
    keeps_laws(plane, NAME, &place).await;
}
