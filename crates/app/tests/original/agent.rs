//! Our agent on the original control plane, and the original agent on ours: registered with a token, it carries a Deployment to its
//! member and its status back, and leaves again. Registered by the program that belongs to the agent.
//!
//! Not run by default: the originals have to be built with Go first. `cargo xtask compare agent` does both.

use std::process::{Command, Stdio};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use testkit::process::Speaks;
use testkit::{Process, Server, at, client, condition, eventually, object, resource, run, until, until_gone};

use crate::plane::{Original, program};

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
    is_looked_after(&original.client).await;
    carries_a_deployment(&original.client, &client(&member).await).await;

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
    let left = clusters(&original.client).get_opt(NAME).await.expect("an answer");
    assert!(left.is_none(), "the cluster is gone");
    assert!(!agent.has_said("panicked"));
    drop((agent, original));
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original programs; run `cargo xtask compare agent`"]
async fn the_original_agent_works_on_our_control_plane() {
    testkit::install_tls();
    let folder = tempfile::tempdir().expect("a folder for the test");
    let fleet =
        Fleet::start(FleetOptions::members(1)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let member = fleet.cluster("member1").expect("the member").kubeconfig().display().to_string();
    // Whatever the agent asks for is written down.
    let (policy, log) = (folder.path().join("policy.json"), folder.path().join("audit.log"));
    let rules = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [format!("system:karmada:agent:{NAME}")]}, {"level": "None"}]});
    std::fs::write(&policy, rules.to_string()).expect("a policy");
    let (policy, written) = (policy.display().to_string(), log.display().to_string());
    let server = Server::start(KARMADA, &["--audit-policy-file", &policy, "--audit-log-path", &written]);
    let (plane, config) = (server.client().await, server.kubeconfig().display().to_string());

    let karmadactl = program("karmadactl");
    let made = run(&karmadactl, &["token", "create", "--print-register-command", "--kubeconfig", &config]);
    let line = String::from_utf8(made.stdout).expect("text");
    let mut arguments: Vec<&str> = line.split_whitespace().skip(1).collect();
    arguments.extend(["--cluster-name", NAME, "--kubeconfig", &member]);
    run(&karmadactl, &arguments);

    // It has put the agent into the member, where pods run only in name. So the agent runs here, as it would run there.
    let inside = client(member.as_ref()).await;
    let secret = Api::<Secret>::namespaced(inside.clone(), "karmada-system").get("karmada-kubeconfig").await;
    let secret = secret.expect("a Secret").data.and_then(|mut data| data.remove("karmada-kubeconfig"));
    let own = folder.path().join("agent.kubeconfig");
    std::fs::write(&own, secret.expect("a kubeconfig").0).expect("a file");
    let deployment =
        Api::<Deployment>::namespaced(inside.clone(), "karmada-system").get("karmada-agent").await;
    let pod = deployment.expect("a Deployment").spec.and_then(|spec| spec.template.spec).expect("a pod");
    let command = pod.containers[0].command.clone().expect("a command");
    let (there, here) =
        (["--karmada-kubeconfig=", "--metrics-bind-address=", "--health-probe-bind-address="], own.display());
    let kept = command.iter().skip(1).filter(|flag| !there.iter().any(|start| flag.starts_with(start)));
    let mut agent = Command::new(program("karmada-agent"));
    agent.args(kept).arg(format!("--karmada-kubeconfig={here}")).arg(format!("--kubeconfig={member}"));
    agent.args(["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    agent.stdin(Stdio::null()).stdout(Stdio::null());
    let mut agent = Process::spawn(agent, Speaks::Stderr);
    is_looked_after(&plane).await;
    carries_a_deployment(&plane, &inside).await;

    // It tells of what it does, and asks for nothing that it may not have.
    let events: Api<Event> = Api::namespaced(plane.clone(), &format!("karmada-es-{NAME}"));
    eventually("events of the agent", async || {
        let events = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let told = events.iter().filter(|event| event.involved_object.kind.as_deref() == Some("Work"));
        let reasons: Vec<&str> = told.filter_map(|event| event.reason.as_deref()).collect();
        if reasons.contains(&"WorkDispatching") || reasons.contains(&"SyncSucceed") {
            Ok(())
        } else {
            Err(format!("{reasons:?}"))
        }
    })
    .await;
    let lines = std::fs::read_to_string(&log).expect("a log");
    let asked: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect();
    let refused = |entry: &&Value| matches!(entry["responseStatus"]["code"].as_u64(), Some(401 | 403));
    let refused: Vec<String> = asked
        .iter()
        .filter(refused)
        .map(|entry| {
            format!("{} {}: {}", entry["verb"], entry["requestURI"], entry["responseStatus"]["message"])
        })
        .collect();
    println!("{} requests of the original agent, {} refused", asked.len(), refused.len());
    assert!(asked.len() > 20 && refused.is_empty(), "{} requests, refused: {refused:#?}", asked.len());

    let arguments = ["unregister", NAME, "--cluster-kubeconfig", &member, "--karmada-config", &config];
    run(&karmadactl, &arguments);
    assert!(clusters(&plane).get_opt(NAME).await.expect("an answer").is_none(), "the cluster is gone");
    assert!(!agent.has_said("panic"));
    drop((agent, server));
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}

fn clusters(plane: &Client) -> Api<DynamicObject> {
    Api::all_with(plane.clone(), &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"))
}

/// Waits until the registered cluster is ready and its agent shows that it is alive.
async fn is_looked_after(plane: &Client) {
    let clusters = clusters(plane);
    until(&clusters, NAME, "the registered cluster is ready", |found| {
        condition(found, "Ready") == Some("True")
    })
    .await;
    let cluster = clusters.get(NAME).await.expect("a cluster");
    assert_eq!(cluster.data["spec"]["syncMode"], "Pull");
    let leases: Api<DynamicObject> = Api::namespaced_with(
        plane.clone(),
        "karmada-cluster",
        &resource("coordination.k8s.io", "v1", "Lease", "leases"),
    );
    until(&leases, NAME, "the agent shows that it is alive", |found| {
        at(found, "/spec/holderIdentity") == Some(json!(NAME))
    })
    .await;
}

/// Has a Deployment go to the member, change there and leave it again.
async fn carries_a_deployment(plane: &Client, member: &Client) {
    let api = |kind| -> Api<DynamicObject> { Api::namespaced_with(plane.clone(), "default", &kind) };
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
    let there: Api<Deployment> = Api::namespaced(member.clone(), "default");
    let here: Api<Deployment> = Api::namespaced(plane.clone(), "default");
    let ready = |found: Option<&Deployment>| found.and_then(|found| found.status.as_ref()?.ready_replicas);
    until(&there, "web", "the Deployment runs in the member", |found| ready(found) == Some(2)).await;
    until(&here, "web", "its status comes back", |found| ready(found) == Some(2)).await;
    let patch = kube::api::Patch::Merge(json!({"spec": {"replicas": 3}}));
    templates.patch("web", &Default::default(), &patch).await.expect("changed");
    until(&there, "web", "a change arrives", |found| ready(found) == Some(3)).await;
    until(&here, "web", "and its status comes back", |found| ready(found) == Some(3)).await;
    templates.delete("web", &DeleteParams::default()).await.expect("deleted");
    until_gone(&there, "web", "the Deployment leaves the member").await;
}
