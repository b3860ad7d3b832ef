//! Our agent on the original control plane: registered with a token, it carries a Deployment to its member and its status back, and
//! leaves again.
//!
//! Not run by default: the originals have to be built with Go first. `cargo xtask compare agent` does both.

use std::process::{Command, Stdio};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::json;
use testkit::process::Speaks;
use testkit::{Process, at, client, condition, eventually, object, resource, run, until, until_gone};

use crate::plane::Original;

const KARMADA: &str = env!("CARGO_BIN_EXE_karmada");
const NAME: &str = "pulled";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original programs; run `cargo xtask compare agent`"]
async fn our_agent_works_on_the_original_control_plane() {
    testkit::install_tls();
    let folder = tempfile::tempdir().expect("a folder for the test");
    let options = FleetOptions::members(1).and(ClusterOptions::control_plane("karmada-apiserver"));
    let fleet = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let plane = fleet.cluster("karmada-apiserver").expect("the control plane");
    let member = fleet.cluster("member1").expect("the member").kubeconfig().to_path_buf();
    let original = Original::start(&plane, folder.path()).await;

    let config = original.kubeconfig.display().to_string();
    let made = run(KARMADA, &["token", "create", "--print-register-command", "--kubeconfig", &config]);
    let line = String::from_utf8(made.stdout).expect("text");
    let own = folder.path().join("agent.kubeconfig").display().to_string();
    let mut command = Command::new(KARMADA);
    command.args(line.split_whitespace().skip(1)).args(["--cluster-name", NAME, "--run"]);
    command.args(["--agent-kubeconfig", &own, "--kubeconfig"]).arg(&member);
    let mut agent = Process::spawn(
        {
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        },
        Speaks::Stderr,
    );
    agent.line("agent runs");
    let clusters: Api<DynamicObject> = Api::all_with(
        original.client.clone(),
        &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"),
    );
    until(&clusters, NAME, "the registered cluster is ready", |found| {
        condition(found, "Ready") == Some("True")
    })
    .await;
    let cluster = clusters.get(NAME).await.expect("a cluster");
    assert_eq!(cluster.data["spec"]["syncMode"], "Pull");
    let leases: Api<DynamicObject> = Api::namespaced_with(
        original.client.clone(),
        "karmada-cluster",
        &resource("coordination.k8s.io", "v1", "Lease", "leases"),
    );
    until(&leases, NAME, "the agent shows that it is alive", |found| {
        at(found, "/spec/holderIdentity") == Some(json!(NAME))
    })
    .await;

    let api =
        |kind| -> Api<DynamicObject> { Api::namespaced_with(original.client.clone(), "default", &kind) };
    let templates = api(resource("apps", "v1", "Deployment", "deployments"));
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}});
    templates.create(&PostParams::default(), &object(web)).await.expect("a template");
    let policies = api(resource("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"));
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "web"},
        "spec": {"resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}],
            "placement": {"clusterAffinity": {"clusterNames": [NAME]}}}});
    policies.create(&PostParams::default(), &object(policy)).await.expect("a policy");
    let there: Api<Deployment> = Api::namespaced(client(&member).await, "default");
    let here: Api<Deployment> = Api::namespaced(original.client.clone(), "default");
    let ready = |found: Option<&Deployment>| found.and_then(|found| found.status.as_ref()?.ready_replicas);
    until(&there, "web", "the Deployment runs in the member", |found| ready(found) == Some(2)).await;
    until(&here, "web", "its status comes back", |found| ready(found) == Some(2)).await;
    let patch = kube::api::Patch::Merge(json!({"spec": {"replicas": 3}}));
    templates.patch("web", &Default::default(), &patch).await.expect("changed");
    until(&there, "web", "a change arrives", |found| ready(found) == Some(3)).await;
    until(&here, "web", "and its status comes back", |found| ready(found) == Some(3)).await;
    templates.delete("web", &DeleteParams::default()).await.expect("deleted");
    until_gone(&there, "web", "the Deployment leaves the member").await;

    // Out again. What the original keeps of a cluster goes with it.
    let member = member.display().to_string();
    eventually("it can be unregistered", async || {
        let arguments = ["unregister", NAME, "--cluster-kubeconfig", &member, "--karmada-config", &config];
        let output = Command::new(KARMADA).args(arguments).output().expect("the binary runs");
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    })
    .await;
    assert!(clusters.get_opt(NAME).await.expect("an answer").is_none(), "the cluster is gone");
    assert!(!agent.has_said("panicked"));
    drop((agent, original));
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}
