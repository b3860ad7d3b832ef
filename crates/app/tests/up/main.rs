//! `karmada up` as a user runs it, without a terminal: the whole picture, its end, the next start, a fresh one, and what is
//! said when it cannot be. Besides, a server that is killed.

mod commands;
mod examples;
mod histories;
mod killed;
mod original;
mod process;
mod quotas;
mod servers;
mod terminal;

use std::net::TcpListener;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

use process::Up;
use testkit::check::{self, Site};
use testkit::{install_tls, until_gone};

/// Clusters, replicas and images of the sample, as `examples/hello.yaml` wants them.
const WANTED: [(&str, i32, &str); 3] = [
    ("member1", 3, "nginx:1.29"),
    ("member2", 2, "nginx:1.29"),
    ("member3", 1, "registry.ap-south.example/nginx:1.29"),
];

fn kubeconfig(up: &Up) -> Kubeconfig {
    Kubeconfig::read_from(up.data_dir().join("karmada.kubeconfig")).expect("a kubeconfig")
}

async fn client(up: &Up, context: Option<&str>) -> kube::Client {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig(up), &options).await.expect("a usable context");
    kube::Client::try_from(config).expect("a client")
}

async fn deployments(up: &Up, context: Option<&str>) -> Api<Deployment> {
    Api::namespaced(client(up, context).await, "default")
}

/// Says whether a context leads to a member, rather than to the control plane or to all members as one cluster.
fn is_member(context: &str) -> bool {
    context.starts_with("member")
}

/// Fails unless the control plane and its members keep the laws of every world. There are no audit logs to look into.
async fn check(up: &Up) {
    let mut members = Vec::new();
    for context in kubeconfig(up).contexts.iter().filter(|context| is_member(&context.name)) {
        let client = client(up, Some(&context.name)).await;
        members.push(Site::member(&context.name, client, Vec::new()));
    }
    let plane = Site::plane(client(up, None).await, check::CONTROLLERS, Vec::new());
    check::check(&check::World { plane, members, controllers: "*".to_owned() }).await;
}

/// Follows the sample until it is as wanted.
async fn until(api: &Api<Deployment>, what: &str, wanted: impl Fn(&Deployment) -> bool) -> Deployment {
    until_named(api, "hello", what, wanted).await
}

/// As [`until`], for a copy of the sample under another name.
async fn until_named(
    api: &Api<Deployment>,
    name: &str,
    what: &str,
    wanted: impl Fn(&Deployment) -> bool,
) -> Deployment {
    let found = testkit::until(api, name, what, |found| found.is_some_and(&wanted)).await;
    found.expect("it was wanted to exist")
}

/// Creates the sample under another name, the policies first.
async fn create_sample(up: &Up, name: &str) {
    let text = include_str!("../../../../examples/hello.yaml").replace("hello", name);
    let documents = apimachinery::yaml::read_all(&text).expect("YAML");
    let client = client(up, None).await;
    for document in documents.into_iter().rev() {
        let object: DynamicObject = serde_json::from_value(document.value).expect("an object");
        let types = object.types.clone().expect("a kind");
        let (group, version) = types.api_version.split_once('/').expect("a group");
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
        api.create(&PostParams::default(), &object).await.expect("created");
    }
}

fn ready(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
}

fn image(deployment: &Deployment) -> Option<&str> {
    deployment.spec.as_ref()?.template.spec.as_ref()?.containers.first()?.image.as_deref()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_the_sample_stops_goes_on_and_starts_over() {
    install_tls();
    let folder = tempfile::tempdir().expect("a folder for the test");
    let data = folder.path().join("data");

    let mut up = Up::start(&data, &[]);
    let said = up.until_it_says("Try, in another terminal");
    for (cluster, wanted, image) in WANTED {
        let line = said.iter().rev().find(|line| line.trim_start().starts_with(&format!("{cluster} ")));
        let line = line.unwrap_or_else(|| panic!("no line of the table for {cluster}: {said:#?}"));
        let count = format!(" {wanted}/{wanted} ");
        assert!(line.contains(&count) && line.ends_with(image) && line.contains(" ready "), "{line}");
    }
    let template = deployments(&up, None).await;
    let first = until(&template, "the status of all members on the template", |d| ready(d) == 6).await;
    for (cluster, wanted, expected) in WANTED {
        let member = deployments(&up, Some(cluster)).await;
        let found = until(&member, "the member's part", |d| ready(d) == wanted).await;
        assert_eq!((replicas(&found), image(&found)), (wanted, Some(expected)), "{cluster}");
    }

    // Whoever starts it twice is told so, and nothing happens to the first.
    let (code, error) = Up::fail(&data, &["--bind", "127.0.0.1:0"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("is in use by another karmada process"), "{error}");

    let scaled = Patch::Merge(json!({"spec": {"replicas": 12}}));
    template.patch("hello", &PatchParams::default(), &scaled).await.expect("scaled");
    until(&template, "all twelve replicas", |d| replicas(d) == 12 && ready(d) == 12).await;
    check(&up).await;
    let said = up.interrupt();
    assert!(said.last().is_some_and(|line| line.contains("goes on from here")), "{said:#?}");

    let mut up = Up::start(&data, &[]);
    up.until_it_says("Try, in another terminal");
    let template = deployments(&up, None).await;
    let resumed = until(&template, "what was there before", |d| ready(d) == 12).await;
    assert_eq!(resumed.metadata.uid, first.metadata.uid, "the same object as before");
    let pods = deployments(&up, Some("member1")).await;
    until(&pods, "the member's part as before", |d| replicas(d) == 6 && ready(d) == 6).await;
    up.interrupt();

    std::fs::write(data.join("notes.txt"), "mine").expect("a file of the user's");
    let mut up = Up::start(&data, &["--fresh"]);
    up.until_it_says("Try, in another terminal");
    let template = deployments(&up, None).await;
    let fresh = until(&template, "the sample anew", |d| replicas(d) == 6 && ready(d) == 6).await;
    assert_ne!(fresh.metadata.uid, first.metadata.uid, "another object");
    assert!(data.join("notes.txt").exists(), "what is not ours stays");
    check(&up).await;
    up.interrupt();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_the_clusters_alone_if_asked() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut up = Up::start(&folder.path().join("data"), &["--no-sample", "--nodes", "5"]);
    let said = up.until_it_says("Try, in another terminal");
    let rows: Vec<_> =
        said.iter().filter(|line| line.ends_with(" 5/5") && line.contains(" ready ")).collect();
    assert_eq!(rows.len(), 3, "{said:#?}");
    assert!(!said.iter().any(|line| line.contains("hello")), "{said:#?}");
    check(&up).await;
    up.interrupt();
}

#[test]
fn it_says_in_one_sentence_why_it_cannot_start() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let data = folder.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, error) = Up::fail(&data, &["--bind", &address]);
    assert_eq!(code, Some(1));
    assert_eq!(
        error.trim_end(),
        format!("error: another program listens on {address}; hint: --bind 127.0.0.1:0 picks a free port")
    );

    let bad = folder.path().join("bad.kubeconfig");
    std::fs::write(&bad, "kind: Config\n").expect("a file");
    let other = folder.path().join("other");
    let (code, error) = Up::fail(&other, &["--bind", "127.0.0.1:0", "--members", &bad.to_string_lossy()]);
    assert_eq!(code, Some(1));
    assert!(error.contains("bad.kubeconfig cannot be used: it has no current context"), "{error}");
    assert!(!other.exists(), "nothing is created for members that cannot be used");
    let (code, error) = Up::fail(&other, &["--bind", "127.0.0.1:0", "--members", "/nope"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("/nope"), "{error}");
    assert!(!other.exists(), "nothing is created for members that do not exist");

    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).expect("a folder");
    std::fs::write(foreign.join("thesis.tex"), "years of work").expect("a file");
    let (code, error) = Up::fail(&foreign, &["--fresh"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("was not made by `karmada up`"), "{error}");
    assert!(foreign.join("thesis.tex").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_real_clusters_instead_and_leaves_them_joined() {
    install_tls();
    let Some(members) = clusters::shared(2).await else { return };
    let folder = tempfile::tempdir().expect("a folder for the test");
    let data = folder.path().join("data");
    let kubeconfigs: Vec<_> =
        members.iter().map(|member| member.kubeconfig().to_string_lossy().into_owned()).collect();
    let before: Vec<_> = kubeconfigs.iter().map(|path| std::fs::read(path).expect("a file")).collect();

    // Others use these members as well, maybe in the same way, so nothing in them may have the name of the sample itself.
    let sample = format!("hello-{}", std::process::id());
    let mut up = Up::start(&data, &["--no-sample", "--members", &kubeconfigs.join(",")]);
    up.until_it_says("Try, in another terminal");
    create_sample(&up, &sample).await;
    let template = deployments(&up, None).await;
    let all_ready = |d: &Deployment| ready(d) == 6;
    let first =
        until_named(&template, &sample, "the status of both members on the template", all_ready).await;
    let names: Vec<String> = kubeconfig(&up)
        .contexts
        .into_iter()
        .map(|context| context.name)
        .filter(|name| is_member(name))
        .collect();
    assert_eq!(names.len(), 2, "a context for each member: {names:?}");
    for name in &names {
        let member = deployments(&up, Some(name)).await;
        let half = |d: &Deployment| replicas(d) == 3 && ready(d) == 3;
        until_named(&member, &sample, "half of it in each", half).await;
    }
    check(&up).await;
    up.interrupt();
    let after: Vec<_> = kubeconfigs.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    assert!(before == after, "the user's kubeconfigs are as they were");

    // The next start knows them; and what was propagated is taken back, for the sake of other tests.
    let mut up = Up::start(&data, &["--no-sample"]);
    up.until_it_says("Try, in another terminal");
    let template = deployments(&up, None).await;
    let resumed = until_named(&template, &sample, "what was there before", all_ready).await;
    assert_eq!(resumed.metadata.uid, first.metadata.uid, "the same object as before");
    template.delete(&sample, &DeleteParams::default()).await.expect("deleted");
    for name in &names {
        let member = deployments(&up, Some(name)).await;
        until_gone(&member, &sample, "it leaves the members").await;
    }
    check(&up).await;
    up.interrupt();
}
