//! The original Karmada on our API server: its controller manager, its scheduler and its aggregated API server run
//! beside a `karmada server` whose own controllers are off, and carry a Deployment to a real member.
//!
//! Not run by default: the originals have to be built with Go first. `cargo xtask compare server` does both. Admission is
//! ours: it is part of the server.

mod agent;
mod plane;

use std::path::Path;
use std::process::{Command, Stdio};

use clusters::toolchain::{ETCD, KARMADA, Toolchain};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::process::Speaks;
use testkit::{Process, Server, client, condition, object, resource, until};

/// Starts a program that ends with the test.
fn start(program: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(command, Speaks::Stderr)
}

async fn apply(api: &Api<DynamicObject>, value: Value) {
    let name = value["metadata"]["name"].as_str().expect("a name").to_owned();
    let parameters = PatchParams::apply("original-test").force();
    api.patch(&name, &parameters, &Patch::Apply(object(value)))
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original programs; run `cargo xtask compare server`"]
async fn the_original_controllers_propagate_a_deployment_through_our_server() {
    testkit::install_tls();
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    let program = |name: &str| toolchain.path(&KARMADA.program(name));
    for name in ["karmada-controller-manager", "karmada-scheduler", "karmada-aggregated-apiserver"] {
        toolchain.ensure_program(&KARMADA, name).expect("the original is built");
    }
    toolchain.ensure(&[&ETCD]).expect("etcd is built");
    let Some(members) = clusters::shared(1).await else { panic!("no member cluster") };
    let member = members.iter().next().expect("the member that was asked for");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let server = Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
    let (plane, kubeconfig) = (server.client().await, server.kubeconfig());
    let config = kubeconfig.to_string_lossy().into_owned();
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();

    // The original's aggregated server keeps Clusters in an etcd of its own.
    let [etcd_port, peer_port, secure_port] = clusters::free_ports(3).expect("free ports")[..] else {
        unreachable!("as many as were asked for")
    };
    let etcd_url = format!("http://127.0.0.1:{etcd_port}");
    let peer_url = format!("http://127.0.0.1:{peer_port}");
    let etcd_data = dir.path().join("etcd").to_string_lossy().into_owned();
    let _etcd = start(
        &toolchain.path(&ETCD.program("etcd")),
        &strings(&[
            "--data-dir",
            &etcd_data,
            "--listen-client-urls",
            &etcd_url,
            "--advertise-client-urls",
            &etcd_url,
            "--listen-peer-urls",
            &peer_url,
            "--initial-advertise-peer-urls",
            &peer_url,
            "--initial-cluster",
            &format!("default={peer_url}"),
        ]),
    );
    let certificates = dir.path().join("aggregated").to_string_lossy().into_owned();
    let _aggregated = start(
        &program("karmada-aggregated-apiserver"),
        &strings(&[
            "--kubeconfig",
            &config,
            "--authentication-kubeconfig",
            &config,
            "--authorization-kubeconfig",
            &config,
            "--etcd-servers",
            &etcd_url,
            "--secure-port",
            &secure_port.to_string(),
            "--cert-dir",
            &certificates,
            "--bind-address",
            "127.0.0.1",
        ]),
    );
    let services: Api<DynamicObject> =
        Api::namespaced_with(plane.clone(), "karmada-system", &resource("", "v1", "Service", "services"));
    apply(&services, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "karmada-aggregated-apiserver", "namespace": "karmada-system"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": secure_port}]}})).await;
    let registrations: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("apiregistration.k8s.io", "v1", "APIService", "apiservices"));
    let registration = "v1alpha1.cluster.karmada.io";
    apply(&registrations, json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": registration},
        "spec": {"group": "cluster.karmada.io", "version": "v1alpha1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 2000, "versionPriority": 10,
            "service": {"name": "karmada-aggregated-apiserver", "namespace": "karmada-system", "port": secure_port}}})).await;
    until(&registrations, registration, "the original server is available through ours", |service| {
        let conditions = service.map(|service| &service.data["status"]["conditions"]);
        let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
        // For a group of its own, the server gives another reason.
        conditions.into_iter().any(|one| one["type"] == "Available" && one["reason"] == "Passed")
    })
    .await;

    let _manager = start(
        &program("karmada-controller-manager"),
        &strings(&[
            "--kubeconfig",
            &config,
            "--leader-elect=false",
            "--cluster-status-update-frequency=5s",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            "--controllers=*",
        ]),
    );
    let _scheduler = start(
        &program("karmada-scheduler"),
        &strings(&[
            "--kubeconfig",
            &config,
            "--leader-elect=false",
            "--enable-scheduler-estimator=false",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
        ]),
    );
    let member_config = member.kubeconfig().to_string_lossy().into_owned();
    let join = Command::new(env!("CARGO_BIN_EXE_karmada"))
        .args(["join", "original-one", "--kubeconfig", &config, "--cluster-kubeconfig", &member_config])
        .args(["--cluster-namespace", "original-accounts"])
        .output()
        .expect("the binary runs");
    assert!(join.status.success(), "join: {}", String::from_utf8_lossy(&join.stderr));
    let clusters: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    until(&clusters, "original-one", "the joined cluster is ready", |cluster| {
        condition(cluster, "Ready") == Some("True")
    })
    .await;

    let namespace = format!("original-{}", std::process::id());
    let namespaces: Api<DynamicObject> =
        Api::all_with(plane.clone(), &resource("", "v1", "Namespace", "namespaces"));
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces.create(&PostParams::default(), &object(made)).await.expect("a namespace");
    let templates: Api<DynamicObject> =
        Api::namespaced_with(plane.clone(), &namespace, &resource("apps", "v1", "Deployment", "deployments"));
    apply(&templates, json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})).await;
    let policies: Api<DynamicObject> = Api::namespaced_with(
        plane.clone(),
        &namespace,
        &resource("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    );
    apply(&policies, json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}],
            "placement": {"clusterAffinity": {"clusterNames": ["original-one"]}}}})).await;
    let there: Api<Deployment> = Api::namespaced(client(member.kubeconfig()).await, &namespace);
    until(&there, "web", "the Deployment runs in the member", |deployment| {
        deployment.and_then(|deployment| deployment.status.as_ref()?.ready_replicas) == Some(2)
    })
    .await;
    let here: Api<Deployment> = Api::namespaced(plane.clone(), &namespace);
    until(&here, "web", "its status comes back", |deployment| {
        deployment.and_then(|deployment| deployment.status.as_ref()?.ready_replicas) == Some(2)
    })
    .await;
    templates.delete("web", &Default::default()).await.expect("the template can be deleted");
    until(&there, "web", "the Deployment leaves the member", |deployment: Option<&Deployment>| {
        deployment.is_none()
    })
    .await;
}
