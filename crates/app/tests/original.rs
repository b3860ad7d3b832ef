//! The original Karmada on our API server: its controller manager, its scheduler and its aggregated API server run
//! beside a `karmada server` whose own controllers are off, and carry a Deployment to a real member.
//!
//! Not run by default: the originals have to be built with Go first. `cargo xtask compare server` does both. Admission is
//! ours: it is part of the server.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clusters::toolchain::{ETCD, KARMADA, Toolchain};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Five programs start at once on a machine that may have two processors.
const DEADLINE: Duration = Duration::from_secs(300);

/// A program that ends with the test; what it says is kept in a file.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(dir: &Path, name: &str, program: &Path, arguments: &[String]) -> Self {
        let log = dir.join(format!("{name}.log"));
        let file = File::create(&log).expect("a log file");
        let also = file.try_clone().expect("a log file");
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(also)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { child, log }
    }

    /// Returns the end of the log.
    fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts our server without controllers and returns it with its kubeconfig.
fn server(dir: &Path) -> (Child, PathBuf) {
    let data = dir.join("data");
    let mut child = Command::new(env!("CARGO_BIN_EXE_karmada"))
        .args(["server", "--bind", "127.0.0.1:0", "--controllers", "", "--data-dir"])
        .arg(&data)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
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
    (child, data.join("karmada.kubeconfig"))
}

struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn client(kubeconfig: &Path) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("a usable kubeconfig");
    kube::Client::try_from(config).expect("a client")
}

fn dynamic(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

async fn apply(api: &Api<DynamicObject>, value: Value) {
    let name = value["metadata"]["name"].as_str().expect("a name").to_owned();
    let parameters = PatchParams::apply("original-test").force();
    api.patch(&name, &parameters, &Patch::Apply(object(value)))
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Follows an object until it is as wanted.
async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    running: &[&Running],
    wanted: impl Fn(Option<&K>) -> bool,
) where
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
        Ok(Ok(_)) => {}
        outcome => {
            let shown = serde_json::to_string_pretty(&api.get_opt(name).await.ok()).unwrap_or_default();
            let logs: Vec<String> =
                running.iter().map(|one| format!("{}:\n{}", one.log.display(), one.tail())).collect();
            panic!(
                "{what}: {}; last seen: {shown}\n{}",
                if outcome.is_err() { "not in time" } else { "watch failed" },
                logs.join("\n")
            );
        }
    }
}

fn condition(object: Option<&DynamicObject>, kind: &str) -> bool {
    let conditions =
        object.and_then(|object| object.data["status"]["conditions"].as_array().cloned()).unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original programs; run `cargo xtask compare server`"]
async fn the_original_controllers_propagate_a_deployment_through_our_server() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    let program = |name: &str| toolchain.path(&KARMADA.program(name));
    for name in ["karmada-controller-manager", "karmada-scheduler", "karmada-aggregated-apiserver"] {
        toolchain.ensure_program(&KARMADA, name).expect("the original is built");
    }
    toolchain.ensure(&[&ETCD]).expect("etcd is built");
    let Some(members) = clusters::shared(1).await else { panic!("no member cluster") };
    let member = members.iter().next().expect("the member that was asked for");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let (child, kubeconfig) = server(dir.path());
    let _server = Kill(child);
    let plane = client(&kubeconfig).await;
    let config = kubeconfig.to_string_lossy().into_owned();
    let strings = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();

    // The original's aggregated server keeps Clusters in an etcd of its own.
    let [etcd_port, peer_port, secure_port] = clusters::free_ports(3).expect("free ports")[..] else {
        unreachable!("as many as were asked for")
    };
    let etcd_url = format!("http://127.0.0.1:{etcd_port}");
    let peer_url = format!("http://127.0.0.1:{peer_port}");
    let etcd_data = dir.path().join("etcd").to_string_lossy().into_owned();
    let etcd = Running::start(
        dir.path(),
        "etcd",
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
    let aggregated = Running::start(
        dir.path(),
        "aggregated-apiserver",
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
        Api::namespaced_with(plane.clone(), "karmada-system", &dynamic("", "v1", "Service", "services"));
    apply(&services, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "karmada-aggregated-apiserver", "namespace": "karmada-system"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": secure_port}]}})).await;
    let registrations: Api<DynamicObject> =
        Api::all_with(plane.clone(), &dynamic("apiregistration.k8s.io", "v1", "APIService", "apiservices"));
    let registration = "v1alpha1.cluster.karmada.io";
    apply(&registrations, json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": registration},
        "spec": {"group": "cluster.karmada.io", "version": "v1alpha1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 2000, "versionPriority": 10,
            "service": {"name": "karmada-aggregated-apiserver", "namespace": "karmada-system", "port": secure_port}}})).await;
    until(
        &registrations,
        registration,
        "the original server is available through ours",
        &[&etcd, &aggregated],
        |service| {
            let conditions = service.map(|service| &service.data["status"]["conditions"]);
            let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
            // For a group of its own, the server gives another reason.
            conditions.into_iter().any(|one| one["type"] == "Available" && one["reason"] == "Passed")
        },
    )
    .await;

    let manager = Running::start(
        dir.path(),
        "controller-manager",
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
    let scheduler = Running::start(
        dir.path(),
        "scheduler",
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
    let running = [&etcd, &aggregated, &manager, &scheduler];
    let member_config = member.kubeconfig().to_string_lossy().into_owned();
    let join = Command::new(env!("CARGO_BIN_EXE_karmada"))
        .args(["join", "original-one", "--kubeconfig", &config, "--cluster-kubeconfig", &member_config])
        .args(["--cluster-namespace", "original-accounts"])
        .output()
        .expect("the binary runs");
    assert!(join.status.success(), "join: {}", String::from_utf8_lossy(&join.stderr));
    let clusters: Api<DynamicObject> =
        Api::all_with(plane.clone(), &dynamic("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"));
    until(&clusters, "original-one", "the joined cluster is ready", &running, |cluster| {
        condition(cluster, "Ready")
    })
    .await;

    let namespace = format!("original-{}", std::process::id());
    let namespaces: Api<DynamicObject> =
        Api::all_with(plane.clone(), &dynamic("", "v1", "Namespace", "namespaces"));
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces.create(&PostParams::default(), &object(made)).await.expect("a namespace");
    let templates: Api<DynamicObject> =
        Api::namespaced_with(plane.clone(), &namespace, &dynamic("apps", "v1", "Deployment", "deployments"));
    apply(&templates, json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})).await;
    let policies: Api<DynamicObject> = Api::namespaced_with(
        plane.clone(),
        &namespace,
        &dynamic("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
    );
    apply(&policies, json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}],
            "placement": {"clusterAffinity": {"clusterNames": ["original-one"]}}}})).await;
    let there: Api<Deployment> = Api::namespaced(client(member.kubeconfig()).await, &namespace);
    until(&there, "web", "the Deployment runs in the member", &running, |deployment| {
        deployment.and_then(|deployment| deployment.status.as_ref()?.ready_replicas) == Some(2)
    })
    .await;
    let here: Api<Deployment> = Api::namespaced(plane.clone(), &namespace);
    until(&here, "web", "its status comes back", &running, |deployment| {
        deployment.and_then(|deployment| deployment.status.as_ref()?.ready_replicas) == Some(2)
    })
    .await;
    templates.delete("web", &Default::default()).await.expect("the template can be deleted");
    until(&there, "web", "the Deployment leaves the member", &running, |deployment: Option<&Deployment>| {
        deployment.is_none()
    })
    .await;
}
