//! The laws on real servers: what is read from them reaches every law.

use apiserver::auth::User;
use apiserver::{Options, audit};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};

use super::*;
use crate::embedded::{self, Embedded};
use crate::{Kind, object};

const ACCOUNT: &str = "system:serviceaccount:karmada-cluster:karmada-m1";
const AGENT: &str = "system:karmada:agent:m1";

/// A control plane without controllers, and a member. The test writes in the names of all of them.
struct Stage {
    plane: Embedded,
    member: Embedded,
    directory: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Self {
        crate::install_tls();
        let directory = tempfile::tempdir().expect("a folder");
        let options = |name: &str| Options {
            audit: Some(embedded::audit(&directory.path().join(name))),
            ..Options::default()
        };
        let plane = Embedded::control_plane(options("plane.log")).await;
        let member = Embedded::member("m1", options("member.log")).await;
        Self { plane, member, directory }
    }

    fn world(&self) -> World {
        let log = |name: &str| vec![self.directory.path().join(name)];
        let plane = Site::plane(self.plane.client.clone(), CONTROLLERS, log("plane.log"));
        let member = Site::member("m1", self.member.client.clone(), log("member.log"));
        World { plane, members: vec![member], controllers: "*".to_owned() }
    }

    fn in_plane(&self, user: &str) -> kube::Client {
        apiserver::local::client(&self.plane.handle.server, User::system(user))
    }

    fn in_member(&self, user: &str) -> kube::Client {
        apiserver::local::client(&self.member.handle.server, User::system(user))
    }

    /// Waits until exactly these complaints are made about what happened, in words that they have.
    async fn told(&self, world: &World, expected: &[&str]) {
        eventually("the logs tell", async || is_told(&read_and_judge(world), expected)).await;
    }

    async fn stop(self) {
        self.plane.stop().await;
        self.member.stop().await;
    }
}

fn is_told(found: &[String], expected: &[&str]) -> Result<(), String> {
    let alike = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.contains(expected));
    if alike { Ok(()) } else { Err(format!("{found:#?}")) }
}

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

fn maps(client: kube::Client) -> Api<DynamicObject> {
    config_maps().api(client, "default")
}

fn map(name: &str, space: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", "labels": {(MANAGED): "true"},
        "annotations": {(annotations::WORK_NAMESPACE): space, (annotations::WORK_NAME): "work"}}})
}

async fn create(client: kube::Client, kind: &Kind, namespace: &str, mut made: Value) {
    made["apiVersion"] = kind.resource.api_version.clone().into();
    made["kind"] = kind.resource.kind.clone().into();
    let made = kind.api(client, namespace).create(&PostParams::default(), &object(made)).await;
    made.expect("created");
}

/// Makes a ConfigMap and sends the same patch twice.
async fn repeat(client: kube::Client, name: &str) {
    create(client.clone(), &config_maps(), "default", json!({"metadata": {"name": name}})).await;
    let maps = maps(client);
    for _ in 0..2 {
        let patch = Patch::Merge(json!({"data": {"a": "b"}}));
        maps.patch(name, &PatchParams::default(), &patch).await.expect("patched");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_read_of_the_control_plane_and_of_members() {
    let stage = Stage::new().await;
    let world = stage.world();
    let told = async |expected: &[&str]| {
        let found = state::complaints(&observe(&world).await.expect("all is read"));
        is_told(&found, expected).expect("the complaints");
    };
    told(&[]).await;
    for (name, space) in [("ours", "karmada-es-m1"), ("of-another-control-plane", "karmada-es-other")] {
        create(stage.in_member(ACCOUNT), &config_maps(), "default", map(name, space)).await;
    }
    let missing = "ConfigMap default/ours in m1 has no Work: there is no karmada-es-m1/work";
    told(&[missing]).await;
    let guarded = json!({"metadata": {"name": "guarded", "finalizers": ["karmada.io/unknown"]}});
    create(stage.plane.client.clone(), &config_maps(), "default", guarded).await;
    told(&[missing, "ConfigMap default/guarded has karmada.io/unknown, which no controller takes off"]).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_is_read_from_all_logs() {
    let stage = Stage::new().await;
    let world = stage.world();
    stage.told(&world, &[]).await;

    // Users may repeat themselves.
    repeat(stage.plane.client.clone(), "of-a-user").await;
    repeat(stage.member.client.clone(), "of-a-user").await;
    stage.told(&world, &[]).await;
    repeat(stage.in_plane(AGENT), "of-an-agent").await;
    repeat(stage.in_plane(CONTROLLERS), "of-controllers").await;
    repeat(stage.in_member(ACCOUNT), "of-an-account").await;
    let repeated = [
        "the control plane: patch of configmaps default/of-an-agent",
        "the control plane: patch of configmaps default/of-controllers",
        "m1: patch of configmaps default/of-an-account",
    ];
    stage.told(&world, &repeated).await;
    // In pull mode it is another account that writes, and this one is a user like others.
    let mut pulled = stage.world();
    pulled.members = pulled.members.into_iter().map(|member| member.written_by(":agent-of-m1")).collect();
    stage.told(&pulled, &repeated[..2]).await;

    maps(stage.in_member(ACCOUNT)).delete("of-an-account", &DeleteParams::default()).await.expect("deleted");
    let deleted = "m1: configmaps default/of-an-account was deleted at";
    stage.told(&world, &[repeated[0], repeated[1], deleted, repeated[2]]).await;

    let admin = || stage.plane.client.clone();
    let spaces = Kind::cluster("", "v1", "Namespace", "namespaces");
    create(admin(), &spaces, "", json!({"metadata": {"name": "karmada-es-m1"}})).await;
    let bindings = Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
    let resource = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "a"});
    let binding = json!({"metadata": {"name": "a-configmap"},
        "spec": {"resource": resource, "clusters": [{"name": "m1"}]}});
    create(admin(), &bindings, "default", binding).await;
    let notes = json!({(annotations::RESOURCE_BINDING_NAMESPACE): "default",
        (annotations::RESOURCE_BINDING_NAME): "a-configmap"});
    let work = json!({"metadata": {"name": "work", "annotations": notes},
        "spec": {"workload": {"manifests": [map("a", "karmada-es-m1")]}}});
    create(stage.in_plane(CONTROLLERS), &Kind::work(), "karmada-es-m1", work).await;
    let works = Kind::work().api(stage.in_plane(CONTROLLERS), "karmada-es-m1");
    works.delete("work", &DeleteParams::default()).await.expect("deleted");
    let given_up = "works karmada-es-m1/work was deleted at";
    stage.told(&world, &[given_up, repeated[0], repeated[1], deleted, repeated[2]]).await;
    stage.stop().await;
}

#[test]
fn an_excuse_covers_what_it_names_and_has_to_be_needed() {
    let complaints = || vec!["one is wrong".to_owned(), "two is wrong".to_owned()];
    let excuse = |complaint| Excuse { complaint, because: "it was killed" };
    assert_eq!(without_excused(complaints(), &[excuse("one is")]), ["two is wrong"]);
    assert_eq!(without_excused(complaints(), &[excuse("is wrong")]), Vec::<String>::new());
    let idle = "nothing needs the excuse three is, since it was killed";
    assert_eq!(without_excused(complaints(), &[excuse("three is"), excuse("wrong")]), [idle]);
}

/// A site with logs of these lines. Nobody can be asked there.
fn site(folder: &Path, logs: &[Vec<String>]) -> Site {
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
    let client = kube::Client::try_from(nowhere).expect("a client");
    let write = |(number, lines): (usize, &Vec<String>)| {
        let log = folder.join(format!("{number}.log"));
        std::fs::write(&log, lines.join("\n") + "\n").expect("a log");
        log
    };
    Site::plane(client, CONTROLLERS, logs.iter().enumerate().map(write).collect())
}

fn line(second: usize, user: &str, value: usize) -> String {
    json!({"requestURI": "/x", "verb": "patch", "user": {"username": user},
        "objectRef": {"resource": "configmaps", "namespace": "default", "name": "a"},
        "responseStatus": {"code": 200}, "requestObject": {"data": {"a": value}},
        "requestReceivedTimestamp": format!("2026-01-01T00:00:{second:02}.000000Z")})
    .to_string()
}

fn judged(plane: Site) -> usize {
    read_and_judge(&World { plane, members: Vec::new(), controllers: String::new() }).len()
}

#[tokio::test]
async fn logs_of_several_servers_are_judged_together_and_those_of_several_runs_apart() {
    crate::install_tls();
    let folder = tempfile::tempdir().expect("a folder");
    let site = |logs: &[Vec<String>]| site(folder.path(), logs);
    let twice = [vec![line(1, CONTROLLERS, 1)], vec![line(2, CONTROLLERS, 1)]];
    assert_eq!(judged(site(&twice)), 0, "a crash may have lost the first");
    assert_eq!(judged(site(&twice).of_several_servers()), 1);
    let between = [vec![line(1, CONTROLLERS, 1), line(3, CONTROLLERS, 1)], vec![line(2, "anna", 2)]];
    assert_eq!(judged(site(&between)), 1);
    assert_eq!(judged(site(&between).of_several_servers()), 0);
}

#[tokio::test]
async fn what_is_somebody_elses_or_past_is_not_judged_and_gaps_are() {
    crate::install_tls();
    let folder = tempfile::tempdir().expect("a folder");
    let repeated = [1, 2].map(|second| line(second, CONTROLLERS, 1)).to_vec();
    let gap = json!({"kind": "Event", "annotations": {"karmada.io/lost-audit-events": "3"}}).to_string();
    assert_eq!(judged(site(folder.path(), &[vec![gap]])), 1);
    let logs = [repeated];
    let site = || site(folder.path(), &logs);
    assert_eq!(judged(site()), 1);
    assert_eq!(judged(site().about("default")), 1);
    assert_eq!(judged(site().about("elsewhere")), 0);
    let later = site().from_now();
    let log = later.logs[0].clone();
    let append = |further: String| {
        let text = text_of(&log) + &further + "\n";
        std::fs::write(&log, text).expect("a log");
    };
    append(line(3, CONTROLLERS, 2));
    assert_eq!(judged(later), 0);
    let later = site().from_now();
    append(line(3, CONTROLLERS, 2));
    append(line(4, CONTROLLERS, 2));
    assert_eq!(judged(later), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_with_reads_tells_of_one_user_what_he_reads() {
    crate::install_tls();
    let directory = tempfile::tempdir().expect("a folder");
    let (policy, log) = (directory.path().join("policy.json"), directory.path().join("audit.log"));
    std::fs::write(&policy, audit_policy_with_reads(&json!({"users": [AGENT]}))).expect("a policy");
    let rotation = audit::Rotation { size: None, keep: 0 };
    let audit = audit::Options { policy: Some(policy), path: log.clone(), rotation, blocking: true };
    let plane = Embedded::control_plane(Options { audit: Some(audit), ..Options::default() }).await;
    for user in ["system:somebody", AGENT] {
        let client = apiserver::local::client(&plane.handle.server, User::system(user));
        maps(client.clone()).list(&ListParams::default()).await.expect("a list");
        repeat(client, user.rsplit(':').next().unwrap_or_default()).await;
    }
    plane.stop().await;
    let text = text_of(&log);
    let lists: Vec<&str> = text.lines().filter(|line| line.contains("\"verb\":\"list\"")).collect();
    assert!(lists.len() == 1 && lists[0].contains(AGENT), "{lists:#?}");
    let entries = Entry::read(&text);
    let told = |user: &str| history::repeated_writes("here", &entries.iter().collect::<Vec<_>>(), user).len();
    assert_eq!(["system:somebody", AGENT].map(told), [1, 1], "what is written is told with its content");
}
