//! The whole way on real members: the binary as users start it, two clusters joined, an application propagated,
//! divided, overridden, scaled, repaired, moved and removed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Generous: the machine may be busy with everything else.
const DEADLINE: Duration = Duration::from_secs(180);

/// The control plane as a process of its own, ended with the test.
struct Server {
    child: Child,
    kubeconfig: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        let mut child = Command::new(env!("CARGO_BIN_EXE_karmada"))
            .args(["server", "--bind", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        // The log says when it is ready; it is read on, so that the server never waits for a reader.
        let log = BufReader::new(child.stderr.take().expect("a piped log"));
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if line.contains("ready") {
                    let _ = ready.send(());
                }
            }
        });
        is_ready.recv_timeout(DEADLINE).expect("the server is ready in time");
        let kubeconfig = data.join("karmada.kubeconfig");
        Self { child, kubeconfig, _dir: dir }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn client(kubeconfig: &Path) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    kube::Client::try_from(config).expect("a client")
}

fn karmada(arguments: &[&str]) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_karmada")).args(arguments).output().expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Follows an object until it is as wanted; shows what it is when time runs out.
async fn until<K>(api: &Api<K>, name: &str, what: &str, wanted: impl Fn(Option<&K>) -> bool)
where
    K: kube::Resource
        + Clone
        + std::fmt::Debug
        + Send
        + serde::de::DeserializeOwned
        + serde::Serialize
        + 'static,
{
    let reached = kube::runtime::wait::await_condition(api.clone(), name, |found: Option<&K>| wanted(found));
    match tokio::time::timeout(DEADLINE, reached).await {
        Ok(result) => drop(result.unwrap_or_else(|error| panic!("{what}: {error}"))),
        Err(_) => {
            let shown = serde_json::to_string_pretty(&api.get_opt(name).await.ok()).unwrap_or_default();
            panic!("{what}: not within {DEADLINE:?}; last seen: {shown}");
        }
    }
}

fn replicas(deployment: Option<&Deployment>) -> Option<i32> {
    deployment?.spec.as_ref()?.replicas
}

fn ready(deployment: Option<&Deployment>) -> i32 {
    deployment.and_then(|d| d.status.as_ref()?.ready_replicas).unwrap_or(0)
}

fn dynamic(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_is_divided_overridden_repaired_moved_and_removed() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(members) = clusters::shared(2).await else { return };
    let server = Server::start();
    let control = server.kubeconfig.to_string_lossy().into_owned();
    // Other tests of the run may join the same clusters: names and namespace are this test's own.
    let names = ["app-e2e-one", "app-e2e-two"];
    for (name, member) in names.iter().zip(members.iter()) {
        let kubeconfig = member.kubeconfig().to_string_lossy().into_owned();
        let accounts = ["--cluster-namespace", "app-e2e-accounts"];
        let join = ["join", name, "--kubeconfig", &control, "--cluster-kubeconfig", &kubeconfig];
        karmada(&[&join[..], &accounts[..]].concat());
    }
    let plane = client(&server.kubeconfig).await;
    let clusters: Api<DynamicObject> =
        Api::all_with(plane.clone(), &dynamic("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    // A binding that is placed does not move when another cluster comes: both have to be there first.
    for name in names {
        until(&clusters, name, "a joined cluster is ready", |cluster| {
            let status = cluster.map(|cluster| &cluster.data["status"]).unwrap_or(&Value::Null);
            let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
                && status["apiEnablements"].as_array().is_some_and(|list| !list.is_empty())
        })
        .await;
    }
    let namespace = format!("app-e2e-{}", std::process::id());
    let namespaces: Api<DynamicObject> =
        Api::all_with(plane.clone(), &dynamic("", "v1", "Namespace", "namespaces"));
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces.create(&PostParams::default(), &object(made)).await.expect("a namespace");

    let templates: Api<Deployment> = Api::namespaced(plane.clone(), &namespace);
    let template: Deployment = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}}))
    .expect("a Deployment");
    templates.create(&PostParams::default(), &template).await.expect("a template");
    let policy_kind = dynamic("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let policies: Api<DynamicObject> = Api::namespaced_with(plane.clone(), &namespace, &policy_kind);
    let selectors = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}]);
    let weight =
        |name: &str, weight: i64| json!({"targetCluster": {"clusterNames": [name]}, "weight": weight});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": "web"}, "spec": {"resourceSelectors": selectors, "placement": {
            "replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
                "weightPreference": {"staticWeightList": [weight(names[0], 3), weight(names[1], 1)]}}}}});
    policies.create(&PostParams::default(), &object(policy)).await.expect("a policy");
    let override_kind = dynamic("policy.karmada.io", "v1alpha1", "OverridePolicy", "overridepolicies");
    let overrides: Api<DynamicObject> = Api::namespaced_with(plane.clone(), &namespace, &override_kind);
    let rule = json!({"targetCluster": {"clusterNames": [names[1]]},
        "overriders": {"labelsOverrider": [{"operator": "add", "value": {"where": "two"}}]}});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
        "metadata": {"name": "web"}, "spec": {"resourceSelectors": selectors, "overrideRules": [rule]}});
    overrides.create(&PostParams::default(), &object(policy)).await.expect("an override");

    let one: Api<Deployment> = Api::namespaced(client(members[0].kubeconfig()).await, &namespace);
    let two: Api<Deployment> = Api::namespaced(client(members[1].kubeconfig()).await, &namespace);
    until(&one, "web", "three of four replicas in the first member", |d| {
        replicas(d) == Some(3) && ready(d) == 3
    })
    .await;
    until(&two, "web", "one replica and a label of its own in the second", |d| {
        let label = d.and_then(|d| d.metadata.labels.as_ref()?.get("where").cloned());
        replicas(d) == Some(1) && ready(d) == 1 && label.as_deref() == Some("two")
    })
    .await;
    until(&templates, "web", "the status of both on the template", |d| ready(d) == 4).await;

    let scaled = Patch::Merge(json!({"spec": {"replicas": 8}}));
    templates.patch("web", &PatchParams::default(), &scaled).await.expect("scaled");
    until(&one, "web", "six replicas after scaling", |d| replicas(d) == Some(6)).await;
    until(&two, "web", "two replicas after scaling", |d| replicas(d) == Some(2)).await;

    let drift = Patch::Merge(json!({"spec": {"replicas": 1}}));
    one.patch("web", &PatchParams::default(), &drift).await.expect("changed in the member");
    until(&one, "web", "the change in the member undone", |d| replicas(d) == Some(6)).await;
    one.delete("web", &DeleteParams::default()).await.expect("deleted in the member");
    until(&one, "web", "the deletion in the member undone", |d| replicas(d) == Some(6) && ready(d) == 6)
        .await;

    let moved =
        Patch::Merge(json!({"spec": {"placement": {"clusterAffinity": {"clusterNames": [names[1]]}}}}));
    policies.patch("web", &PatchParams::default(), &moved).await.expect("moved");
    until(&two, "web", "all replicas in the second member", |d| replicas(d) == Some(8) && ready(d) == 8)
        .await;
    until(&one, "web", "nothing left in the first member", |d| d.is_none()).await;

    let work_kind = dynamic("work.karmada.io", "v1alpha1", "Work", "works");
    let works: Api<DynamicObject> = Api::all_with(plane.clone(), &work_kind);
    let all = works.list(&ListParams::default()).await.expect("the Works");
    templates.delete("web", &DeleteParams::default()).await.expect("the template is deleted");
    until(&two, "web", "nothing left in the second member", |d| d.is_none()).await;
    for work in all.items.iter().filter(|w| w.metadata.name.as_deref().is_some_and(|n| n.starts_with("web-")))
    {
        let space = work.metadata.namespace.as_deref().expect("a Work has a namespace");
        let here: Api<DynamicObject> = Api::namespaced_with(plane.clone(), space, &work_kind);
        until(&here, work.metadata.name.as_deref().expect("a name"), "no Work is left", |w| w.is_none())
            .await;
    }
    for (name, member) in names.iter().zip(members.iter()) {
        let kubeconfig = member.kubeconfig().to_string_lossy().into_owned();
        let accounts = ["--cluster-namespace", "app-e2e-accounts"];
        // Unlike `join`, `unjoin` takes the cluster's name for the context's unless told otherwise.
        let file = kube::config::Kubeconfig::read_from(member.kubeconfig()).expect("a kubeconfig");
        let context = file.current_context.expect("a current context");
        let mut unjoin = vec!["unjoin", name, "--kubeconfig", &control, "--cluster-kubeconfig", &kubeconfig];
        unjoin.extend(["--cluster-context", &context]);
        karmada(&[&unjoin[..], &accounts[..]].concat());
    }
}
