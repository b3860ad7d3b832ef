//! Control planes as processes of their own, ended with the test.

use std::path::{Path, PathBuf};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::Value;

use crate::testkit::client;
use crate::testkit::follow::until;
use crate::testkit::process::{Process, run};
use crate::world::definition;

/// A control plane, and where to reach it.
pub(crate) struct ControlPlane {
    pub(crate) kubeconfig: PathBuf,
    role: Role,
    process: Option<Process>,
    /// Kept alive: the kube-apiserver, if it is this control plane's own.
    #[expect(dead_code, reason = "dropping it ends the processes")]
    fleet: Option<Fleet>,
    dir: tempfile::TempDir,
}

/// What runs where a member has several control planes: all but what it would have to share. They would forever undo each
/// other's list of who may be impersonated.
const SHARING: &str = "*,-unifiedAuth";

/// Which `karmada` it takes.
#[derive(Clone, Copy)]
enum Role {
    /// The server with these controllers.
    Server(&'static str),
    /// The controllers, on a kube-apiserver.
    Controllers,
}

impl ControlPlane {
    /// Starts `karmada server` for members that may belong to others, too.
    pub(crate) fn ours() -> Self {
        Self::server(SHARING)
    }

    /// Starts `karmada server` with the controllers of a list.
    pub(crate) fn server(controllers: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        let mut plane = Self {
            kubeconfig: data.join("karmada.kubeconfig"),
            role: Role::Server(controllers),
            process: None,
            fleet: None,
            dir,
        };
        plane.start();
        plane
    }

    /// Starts kube-apiserver and etcd, gives them Karmada's definitions, and runs `karmada controllers` on them.
    pub(crate) async fn kubernetes() -> Self {
        let options = FleetOptions::of([ClusterOptions::control_plane("karmada-apiserver")]);
        let fleet = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let cluster = fleet.cluster("karmada-apiserver").expect("the control plane");
        Self { fleet: Some(fleet), ..Self::on(&cluster).await }
    }

    /// Gives a kube-apiserver Karmada's definitions, and runs `karmada controllers` on it.
    pub(crate) async fn on(cluster: &clusters::Cluster) -> Self {
        let kubeconfig = cluster.kubeconfig().to_path_buf();
        define(&kubeconfig).await;
        let dir = tempfile::tempdir().expect("a folder for the test");
        let mut plane = Self { kubeconfig, role: Role::Controllers, process: None, fleet: None, dir };
        plane.start();
        plane
    }

    /// Starts the process, at first or again.
    pub(crate) fn start(&mut self) {
        let kubeconfig = self.kubeconfig.to_string_lossy().into_owned();
        let data = self.dir.path().join("data").to_string_lossy().into_owned();
        self.process = Some(match self.role {
            Role::Server(controllers) => {
                let chosen = ["--controllers", controllers];
                let place = ["server", "--bind", &self.address(), "--data-dir", &data];
                Process::start(&[&place[..], &chosen].concat(), "ready")
            }
            Role::Controllers => {
                // There is no other, and after a kill nobody shall wait for the lease to run out.
                let alone = ["controllers", "--leader-elect=false", "--controllers", SHARING];
                let there = ["--kubeconfig", &kubeconfig];
                Process::start(&[&alone[..], &there].concat(), "controllers run")
            }
        });
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Returns the address to serve on: that of the first start, if there was one, for clients to find it again.
    fn address(&self) -> String {
        let Ok(file) = kube::config::Kubeconfig::read_from(&self.kubeconfig) else {
            return "127.0.0.1:0".to_owned();
        };
        let server = file.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
        server.expect("a server in the kubeconfig").trim_start_matches("https://").to_owned()
    }
}

/// Creates Karmada's definitions and waits until they are served.
async fn define(kubeconfig: &Path) {
    let client = client(kubeconfig).await;
    let definitions: Api<DynamicObject> = Api::all_with(client, &definition());
    let printed = run(&["crds", "--aggregated"]);
    let text = String::from_utf8(printed.stdout).expect("text");
    for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
        let object: DynamicObject = serde_json::from_str(document).expect("a definition");
        definitions.create(&PostParams::default(), &object).await.expect("the definition is accepted");
        let name = object.metadata.name.expect("a name");
        until(&definitions, &name, "a definition is established", |found| {
            let conditions = found.and_then(|found| found.data["status"]["conditions"].as_array());
            conditions
                .into_iter()
                .flatten()
                .any(|c: &Value| c["type"] == "Established" && c["status"] == "True")
        })
        .await;
    }
}
