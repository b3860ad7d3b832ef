//! The original scheduler asks our estimators, and our scheduler the original's, over mutual TLS: both place by what they are told.
//!
//! `cargo xtask compare estimator` runs it. The two clusters report the same room; that one has less on its nodes, only its estimator
//! knows.

use std::path::{Path, PathBuf};

use clusters::toolchain::{KARMADA_ESTIMATING, Toolchain};
use kube::api::{Api, Patch, PatchParams, PostParams};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use testkit::embedded::Embedded;
use testkit::process::{Process, Speaks};
use testkit::{Kind, Server};

use crate::bindings::NAMESPACE;
use crate::sides::Side;

const KARMADA_RS: &str = env!("CARGO_BIN_EXE_karmada");
/// The clusters, and the cores of their only nodes.
const CLUSTERS: [(&str, &str); 2] = [("m1", "1500m"), ("m2", "4500m")];

/// Certificates in a folder: `ca.pem`, and for each name `<name>.pem` and `<name>.key`.
fn certificates(folder: &Path, names: &[&str]) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    std::fs::write(folder.join("ca.pem"), authority.pem()).expect("a file");
    for name in names {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![(*name).to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("a file");
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("a file");
    }
}

/// A member with one node, and its kubeconfig.
async fn member(folder: &Path, name: &str, cores: &str) -> (Embedded, PathBuf) {
    let member = Embedded::member(name, apiserver::Options::default()).await;
    let nodes = Kind::cluster("", "v1", "Node", "nodes").api(member.client.clone(), "");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let node = serde_json::from_value(node).expect("a node");
    nodes.create(&PostParams::default(), &node).await.expect("a node");
    // The server taints new nodes until somebody says that they are ready.
    let free = Patch::Merge(json!({"spec": {"taints": null}}));
    nodes.patch("n1", &PatchParams::default(), &free).await.expect("no taint");
    let room = json!({"status": {"allocatable": {"cpu": cores, "memory": "64Gi", "pods": "110"}}});
    nodes.patch_status("n1", &PatchParams::default(), &Patch::Merge(room)).await.expect("room");
    let kubeconfig = folder.join(format!("{name}.kubeconfig"));
    std::fs::write(&kubeconfig, &member.handle.kubeconfig).expect("a kubeconfig");
    (member, kubeconfig)
}

/// Starts a member's estimator; returns it with its port.
fn estimator(program: &[&str], cluster: &str, kubeconfig: &Path, certificates: &Path) -> (Process, u16) {
    let port = clusters::free_ports(1).expect("a port")[0];
    let file = |name: &str| certificates.join(name);
    let mut command = std::process::Command::new(program[0]);
    command
        .args(&program[1..])
        .args(["--cluster-name", cluster, "--server-port", &port.to_string()])
        .args(["--metrics-bind-address=0", "--health-probe-bind-address=0", "--kubeconfig"])
        .arg(kubeconfig)
        .arg("--grpc-auth-cert-file")
        .arg(file("localhost.pem"))
        .arg("--grpc-auth-key-file")
        .arg(file("localhost.key"))
        .arg("--grpc-client-ca-file")
        .arg(file("ca.pem"))
        .stdin(std::process::Stdio::null());
    (Process::spawn(command, Speaks::Stderr), port)
}

fn cluster(name: &str) -> Value {
    let amounts = json!({"cpu": "100", "memory": "100Gi", "pods": "1000"});
    json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}, "spec": {"syncMode": "Push"},
    "status": {
        "apiEnablements": [{"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}],
        "resourceSummary": {"allocatable": amounts},
    }})
}

fn binding() -> Value {
    json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
    "metadata": {"name": "web-deployment", "namespace": NAMESPACE,
        "labels": {"propagationpolicy.karmada.io/permanent-id": "compare"}},
    "spec": {
        "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": NAMESPACE, "name": "web"},
        "replicas": 8,
        "replicaRequirements": {"resourceRequest": {"cpu": "500m"}},
        "placement": {"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
            "weightPreference": {"dynamicWeight": "AvailableReplicas"}}},
    }})
}

/// Has a scheduler place the binding; the estimators are those of this program, if any.
async fn placed(
    name: &'static str,
    scheduler: (&Path, &[&'static str]),
    estimators: Option<&[&str]>,
    folder: &Path,
) -> Value {
    let server = Server::start(KARMADA_RS, &["--controllers", ""]);
    let kubeconfig = server.kubeconfig();
    let plane = server.client().await;
    let side = Side::new(name, &kubeconfig, scheduler.0, scheduler.1, folder).await;
    side.prepare(&[]).await;
    let (mut running, mut members) = (Vec::new(), Vec::new());
    for (cluster, cores) in CLUSTERS {
        let Some(program) = estimators else { break };
        let (member, member_kubeconfig) = member(folder, cluster, cores).await;
        let (process, port) = estimator(program, cluster, &member_kubeconfig, folder);
        testkit::eventually("the estimator listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .await;
        let services: Api<k8s_openapi::api::core::v1::Service> =
            Api::namespaced(plane.clone(), "karmada-system");
        let service = json!({"metadata": {"name": format!("karmada-scheduler-estimator-{cluster}")}, "spec": {
            "type": "ExternalName", "externalName": "localhost", "ports": [{"port": 10352, "targetPort": port}]}});
        let service = serde_json::from_value(service).expect("a Service");
        services.create(&PostParams::default(), &service).await.expect("a Service");
        running.push(process);
        members.push(member);
    }
    side.put_clusters(&CLUSTERS.map(|(name, _)| cluster(name))).await;
    side.put_bindings(&[binding()]).await;
    let file =
        |flag: &str, name: &str| format!("--scheduler-estimator-{flag}-file={}", folder.join(name).display());
    let files =
        [file("ca", "ca.pem"), file("cert", "karmada-scheduler.pem"), file("key", "karmada-scheduler.key")];
    let mut flags: Vec<&str> = files.iter().map(String::as_str).collect();
    flags.push(if estimators.is_some() {
        "--enable-scheduler-estimator=true"
    } else {
        "--enable-scheduler-estimator=false"
    });
    let found = side.schedule(&flags, 1).await;
    for member in members {
        member.stop().await;
    }
    let mut clusters = found["web-deployment"]["spec"]["clusters"].clone();
    if let Some(all) = clusters.as_array_mut() {
        all.sort_by_key(|target| target["name"].to_string());
    }
    clusters
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the originals; run `cargo xtask compare estimator`"]
async fn each_scheduler_asks_the_estimators_of_the_other() {
    testkit::install_tls();
    let toolchain = Toolchain::from_env().expect("a cache");
    let program = |name: &str| toolchain.ensure_program(&KARMADA_ESTIMATING, name).expect("an original");
    let (their_scheduler, their_estimator) =
        (program("karmada-estimating-scheduler"), program("karmada-estimating-estimator"));
    let flags = ["--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0"];
    let theirs = (their_scheduler.as_path(), &flags[..]);
    let ours = (Path::new(KARMADA_RS), &["controllers", "--controllers", "scheduler"][..]);
    let (our_estimators, their_estimators) =
        ([KARMADA_RS, "estimator"], [their_estimator.to_str().expect("a path")]);
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path(), &["localhost", "karmada-scheduler"]);

    let evenly = json!([{"name": "m1", "replicas": 4}, {"name": "m2", "replicas": 4}]);
    let by_nodes = json!([{"name": "m1", "replicas": 2}, {"name": "m2", "replicas": 6}]);
    let cases = [
        ("original-alone", theirs, None, &evenly),
        ("original-asks-ours", theirs, Some(&our_estimators[..]), &by_nodes),
        ("ours-asks-original", ours, Some(&their_estimators[..]), &by_nodes),
        ("ours-asks-ours", ours, Some(&our_estimators[..]), &by_nodes),
    ];
    for (name, scheduler, estimators, expected) in cases {
        let found = placed(name, scheduler, estimators, folder.path()).await;
        assert_eq!(&found, expected, "{name}");
        eprintln!("{name}: {found}");
    }
}
