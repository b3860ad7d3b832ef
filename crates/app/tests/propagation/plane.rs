//! Control planes as processes of their own, ended with the test.

use std::path::{Path, PathBuf};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::Value;
use testkit::check::{CONTROLLERS, Site};
use testkit::{Kind, Process, Server, client, run, until};

/// The binary under test.
pub(crate) const KARMADA: &str = env!("CARGO_BIN_EXE_karmada");

/// A control plane, and where to reach it.
pub(crate) struct ControlPlane {
    pub(crate) kubeconfig: PathBuf,
    role: Role,
    controllers: &'static str,
}

/// What runs where a member has several control planes: all but what it would have to share. They would forever undo each
/// other's list of who may be impersonated.
const SHARING: &str = "*,-unifiedAuth";

/// Which `karmada` it takes.
enum Role {
    /// The server with its controllers.
    Server(Server),
    /// The controllers, on a kube-apiserver.
    Controllers {
        process: Option<Process>,
        /// Kept alive: the kube-apiserver, if it is this control plane's own.
        fleet: Option<Fleet>,
    },
}

impl ControlPlane {
    /// Starts `karmada server` for members that may belong to others, too.
    pub(crate) fn ours() -> Self {
        Self::server(SHARING)
    }

    /// Starts `karmada server` with the controllers of a list.
    pub(crate) fn server(controllers: &'static str) -> Self {
        Self::with(controllers, &[])
    }

    /// Starts `karmada server` with the controllers of a list and further flags.
    pub(crate) fn with(controllers: &'static str, flags: &[&str]) -> Self {
        Self::of(KARMADA, controllers, flags)
    }

    /// The same, by another program than `karmada`.
    pub(crate) fn of(program: impl AsRef<Path>, controllers: &'static str, flags: &[&str]) -> Self {
        let server = Server::audited(program, &[&["--controllers", controllers], flags].concat());
        Self { kubeconfig: server.kubeconfig(), role: Role::Server(server), controllers }
    }

    /// Starts kube-apiserver and etcd, gives them Karmada's definitions, and runs `karmada controllers` on them.
    pub(crate) async fn kubernetes() -> Self {
        let options = FleetOptions::of([ClusterOptions::control_plane("karmada-apiserver")]);
        let started = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let cluster = started.cluster("karmada-apiserver").expect("the control plane");
        let mut plane = Self::on(&cluster).await;
        if let Role::Controllers { fleet, .. } = &mut plane.role {
            *fleet = Some(started);
        }
        plane
    }

    /// Gives a kube-apiserver Karmada's definitions, and runs `karmada controllers` on it.
    pub(crate) async fn on(cluster: &clusters::Cluster) -> Self {
        let kubeconfig = cluster.kubeconfig().to_path_buf();
        define(&kubeconfig).await;
        let role = Role::Controllers { process: None, fleet: None };
        let mut plane = Self { kubeconfig, role, controllers: SHARING };
        plane.start();
        plane
    }

    /// Returns which controllers run, as `--controllers` says it.
    pub(crate) fn controllers(&self) -> &'static str {
        self.controllers
    }

    /// Returns the server itself; there has to be one.
    pub(crate) fn process(&self) -> &Server {
        match &self.role {
            Role::Server(server) => server,
            Role::Controllers { .. } => panic!("this control plane is a kube-apiserver"),
        }
    }

    /// Returns what has to be known to check it at the end of a test. Controllers on a kube-apiserver write in the name of the
    /// administrator, as the test does, so that its log cannot tell who it was.
    pub(crate) fn site(&self, client: kube::Client) -> Site {
        match &self.role {
            Role::Server(server) => Site::plane(client, CONTROLLERS, server.audit_logs()),
            Role::Controllers { .. } => Site::plane(client, CONTROLLERS, Vec::new()),
        }
    }

    /// Starts the process again.
    pub(crate) fn start(&mut self) {
        match &mut self.role {
            Role::Server(server) => server.restart(),
            Role::Controllers { process, .. } => {
                // There is no other, and after a kill nobody shall wait for the lease to run out.
                let alone = ["controllers", "--leader-elect=false", "--controllers", self.controllers];
                let there = ["--kubeconfig", &self.kubeconfig.to_string_lossy()];
                *process = Some(Process::start(KARMADA, &[&alone[..], &there].concat(), "controllers run"));
            }
        }
    }

    /// Ends the process as a crash would.
    pub(crate) fn kill(&mut self) {
        match &mut self.role {
            Role::Server(server) => server.kill(),
            Role::Controllers { process, .. } => *process = None,
        }
    }
}

/// Creates Karmada's definitions and waits until they are served.
async fn define(kubeconfig: &Path) {
    let client = client(kubeconfig).await;
    let definitions: Api<DynamicObject> = Api::all_with(client, &Kind::definition().resource);
    let printed = run(KARMADA, &["crds", "--aggregated"]);
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
