//! The whole original control plane, v1.17.1: its aggregated API server, controller manager, scheduler and webhook server on a
//! kube-apiserver, prepared as `karmadactl init` prepares one, so that clusters can be registered with tokens.
//!
//! The programs have to be built beforehand (`cargo xtask compare agent`). Used by the comparison of agents and by `bench pull`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use clusters::toolchain::{ETCD, KARMADA, Toolchain};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use testkit::process::Speaks;
use testkit::{Process, client, condition, eventually, object, resource, until};

const SYSTEM: &str = "karmada-system";
const GROUP: &str = "system:bootstrappers:karmada:default-cluster-token";
const RBAC: &str = "rbac.authorization.k8s.io";

/// A control plane that ends when it is dropped; its kube-apiserver belongs to whoever started it.
pub(crate) struct Original {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) client: Client,
    _processes: Vec<Process>,
}

/// Starts a program that ends with the test.
fn start(program: &Path, arguments: &[String]) -> Process {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    Process::spawn(command, Speaks::Stderr)
}

/// Returns the path of an original program.
pub(crate) fn program(name: &str) -> PathBuf {
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    toolchain.ensure_program(&KARMADA, name).expect("the original is built");
    toolchain.path(&KARMADA.program(name))
}

impl Original {
    /// Starts the original on a kube-apiserver of flavour [`clusters::Flavour::ControlPlane`]. `folder` is for its files.
    pub(crate) async fn start(cluster: &clusters::Cluster, folder: &Path) -> Self {
        let kubeconfig = cluster.direct_kubeconfig().to_path_buf();
        let client = client(&kubeconfig).await;
        let read = kube::config::Kubeconfig::read_from(&kubeconfig).expect("a kubeconfig");
        let place = read.clusters[0].cluster.clone().expect("a cluster");
        let url = place.server.expect("an address");
        let plane = Plane { client: &client };
        plane.prepare(&url, cluster).await;
        let config = format!("--kubeconfig={}", kubeconfig.display());
        let mut processes = plane.aggregated(&kubeconfig, folder).await;
        processes.push(plane.webhook(&config, folder).await);
        let quiet = ["--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0"];
        let arguments = |further: &[&str]| -> Vec<String> {
            quiet.iter().chain(further).map(|text| (*text).to_owned()).chain([config.clone()]).collect()
        };
        processes.push(start(
            &program("karmada-controller-manager"),
            &arguments(&["--controllers=*", "--cluster-status-update-frequency=10s"]),
        ));
        processes
            .push(start(&program("karmada-scheduler"), &arguments(&["--enable-scheduler-estimator=false"])));
        Self { kubeconfig, client, _processes: processes }
    }
}

struct Plane<'a> {
    client: &'a Client,
}

impl Plane<'_> {
    async fn apply(&self, namespace: &str, plural: &str, value: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let resource = resource(group, version, &kind, plural);
        let api: Api<DynamicObject> = match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        let name = text(&value["metadata"]["name"]);
        let parameters = PatchParams::apply("original-test").force();
        eventually(format!("{kind} {name} is written"), async || {
            let applied = api.patch(&name, &parameters, &Patch::Apply(object(value.clone()))).await;
            applied.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Namespaces, definitions, and what newcomers may do, as `karmadactl init` makes them.
    async fn prepare(&self, url: &str, cluster: &clusters::Cluster) {
        for name in [SYSTEM, "karmada-cluster"] {
            let labels = json!({"karmada.io/system": "true"});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": labels}});
            self.apply("", "namespaces", namespace).await;
        }
        let authority = std::fs::read(cluster.folder().join("pki/ca.crt")).expect("an authority");
        let authority = base64::engine::general_purpose::STANDARD.encode(authority);
        let info = json!({"apiVersion": "v1", "kind": "Config", "clusters": [
            {"name": "", "cluster": {"certificate-authority-data": authority, "server": url}}]});
        let info = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"},
            "data": {"kubeconfig": info.to_string()}});
        self.apply("kube-public", "configmaps", info).await;
        let reader = "system:karmada:bootstrap-signer-clusterinfo";
        let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": {"name": reader},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}]});
        self.apply("kube-public", "roles", role).await;
        let bound = |kind: &str, name: &str, role: (&str, &str), subject: (&str, &str)| {
            json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
                "roleRef": {"apiGroup": RBAC, "kind": role.0, "name": role.1},
                "subjects": [{"apiGroup": RBAC, "kind": subject.0, "name": subject.1}]})
        };
        let binding = bound("RoleBinding", reader, ("Role", reader), ("User", "system:anonymous"));
        self.apply("kube-public", "rolebindings", binding).await;
        let requests = |right: &str| {
            json!([{"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
                "resources": [format!("certificatesigningrequests/{right}")]}])
        };
        let (generator, approver, renewer) = (
            "system:karmada:agent-rbac-generator",
            "system:karmada:certificatesigningrequest:autoapprover",
            "system:karmada:certificatesigningrequest:selfautoapprover",
        );
        let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let roles = [
            (generator, everything),
            (approver, requests("clusteragent")),
            (renewer, requests("selfclusteragent")),
        ];
        for (name, rules) in roles {
            let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
                "metadata": {"name": name}, "rules": rules});
            self.apply("", "clusterroles", role).await;
        }
        let bindings = [
            (generator, generator, ("User", "system:karmada:agent:rbac-generator")),
            ("system:karmada:agent-bootstrap", "system:node-bootstrapper", ("Group", GROUP)),
            ("system:karmada:agent-autoapprove-bootstrap", approver, ("Group", GROUP)),
            (
                "system:karmada:agent-autoapprove-certificate-rotation",
                renewer,
                ("Group", "system:karmada:agents"),
            ),
        ];
        for (name, role, subject) in bindings {
            let binding = bound("ClusterRoleBinding", name, ("ClusterRole", role), subject);
            self.apply("", "clusterrolebindings", binding).await;
        }
    }

    /// Starts the aggregated API server, which keeps Clusters in an etcd of its own, and waits until it is served.
    async fn aggregated(&self, kubeconfig: &Path, folder: &Path) -> Vec<Process> {
        let toolchain = Toolchain::from_env().expect("a place for the programs");
        let [client_port, peer_port, secure_port] = clusters::free_ports(3).expect("free ports")[..] else {
            unreachable!("as many as were asked for")
        };
        let (url, peer) =
            (format!("http://127.0.0.1:{client_port}"), format!("http://127.0.0.1:{peer_port}"));
        let etcd = start(
            &toolchain.path(&ETCD.program("etcd")),
            &[
                format!("--data-dir={}", folder.join("etcd").display()),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync=true".to_owned(),
            ],
        );
        let config = kubeconfig.display();
        let server = start(
            &program("karmada-aggregated-apiserver"),
            &[
                format!("--kubeconfig={config}"),
                format!("--authentication-kubeconfig={config}"),
                format!("--authorization-kubeconfig={config}"),
                format!("--etcd-servers={url}"),
                format!("--secure-port={secure_port}"),
                format!("--cert-dir={}", folder.join("aggregated").display()),
                "--bind-address=127.0.0.1".to_owned(),
            ],
        );
        let name = "karmada-aggregated-apiserver";
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": secure_port}]}});
        self.apply(SYSTEM, "services", service).await;
        let registration = "v1alpha1.cluster.karmada.io";
        let wanted = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": registration},
            "spec": {"group": "cluster.karmada.io", "version": "v1alpha1", "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 2000, "versionPriority": 10,
                "service": {"name": name, "namespace": SYSTEM, "port": secure_port}}});
        self.apply("", "apiservices", wanted).await;
        let registrations: Api<DynamicObject> = Api::all_with(
            self.client.clone(),
            &resource("apiregistration.k8s.io", "v1", "APIService", "apiservices"),
        );
        until(&registrations, registration, "Clusters are served", |service| {
            condition(service, "Available") == Some("True")
        })
        .await;
        vec![etcd, server]
    }

    /// Starts the webhook server, and installs the definitions and the configurations that name it.
    async fn webhook(&self, config: &str, folder: &Path) -> Process {
        let certificates = folder.join("webhook").display().to_string();
        let port = clusters::free_ports(1).expect("a free port")[0];
        let url = format!("https://127.0.0.1:{port}");
        // Makes the certificates as well.
        let objects = configuration(&certificates, &url);
        let authority = objects[0]["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default();
        let convert = format!("{url}/convert");
        for mut definition in api::crd::all() {
            if definition["spec"]["versions"].as_array().is_some_and(|versions| versions.len() > 1) {
                definition = api::crd::with_conversion_webhook(definition, &convert, authority);
            }
            self.apply("", "customresourcedefinitions", definition).await;
        }
        let server = start(
            &program("karmada-webhook"),
            &[
                config.to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--cert-dir={certificates}"),
                "--metrics-bind-address=0".to_owned(),
                "--health-probe-bind-address=0".to_owned(),
            ],
        );
        for mut object in objects.clone() {
            // Rules that the original has inside of its API server, or not at all.
            let hooks = object["webhooks"].as_array_mut().expect("a list of hooks");
            hooks.retain(|hook| {
                let url = hook["clientConfig"]["url"].as_str().unwrap_or_default();
                hook["name"] != "cluster.karmada.io"
                    && hook["name"] != "resourceregistry.karmada.io"
                    && !url.ends_with("/validate-clusterresourcebinding")
            });
            let plural = object["kind"].as_str().unwrap_or_default().to_lowercase() + "s";
            self.apply("", &plural, object).await;
        }
        // The API server does not say when it has noticed, so it is asked.
        let bindings: Api<DynamicObject> = Api::namespaced_with(
            self.client.clone(),
            "default",
            &resource("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings"),
        );
        let probe = object(json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "metadata": {"name": "probe"},
            "spec": {"resource": {"apiVersion": "v1", "kind": "Pod", "name": "p"}},
        }));
        let dry = kube::api::PostParams { dry_run: true, ..Default::default() };
        eventually("the webhooks are called", async || {
            let stored = bindings.create(&dry, &probe).await.map_err(|error| error.to_string())?;
            if stored.metadata.labels.is_some() { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        server
    }
}

/// The configurations that call a webhook server, as our program prints them.
fn configuration(certificates: &str, url: &str) -> Vec<Value> {
    // The original knows no paths with passwords, which are printed where callers show no certificates.
    let certified = ["--client-ca-file", "none"];
    let printed = ["webhook", "--print-configuration", "--cert-dir", certificates, "--url", url];
    let arguments = [&printed[..], &certified].concat();
    let output = testkit::run(env!("CARGO_BIN_EXE_karmada"), &arguments);
    let text = String::from_utf8(output.stdout).expect("text");
    let documents = apimachinery::yaml::read_all(&text).expect("YAML");
    documents.into_iter().map(|document| document.value).collect()
}
