//! Where the cases run: our server, or a kube-apiserver with a webhook server behind it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use clusters::{ClusterOptions, Fleet, FleetOptions};
use serde_json::{Value, json};
use testkit::{Process, client, eventually};

use super::cases::{Case, File};

/// The binary under test.
const KARMADA: &str = env!("CARGO_BIN_EXE_karmada");

const NAMESPACE: &str = "golden";
const GATES: &str = "FederatedQuotaEnforcement=true,MultiplePodTemplatesScheduling=true";

/// The name that kube-apiserver shows to webhook servers.
const CALLER: &str = "golden-apiserver";
/// How often an object is written that controllers write as well.
const TRIES: usize = 20;

/// Writes what makes a kube-apiserver show a certificate to webhook servers. Returns the file of the authority.
fn certificates_for_calls(dir: &Path) -> String {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("an authority").pem();
    let issuer = Issuer::from_ca_cert_pem(&authority, key).expect("an issuer");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, CALLER);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (certificate, key) = (write("calls.crt", &certificate), write("calls.key", &key.serialize_pem()));
    let user = json!({ "name": "*", "user": { "client-certificate": certificate, "client-key": key } });
    let users = json!({ "apiVersion": "v1", "kind": "Config", "users": [user] });
    let users = write("calls.kubeconfig", &users.to_string());
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(|name| {
        json!({ "name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": users,
        } })
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins,
    });
    write("admission.yaml", &configuration.to_string());
    write("calls-ca.crt", &authority)
}

pub(crate) enum Webhook {
    Ours,
    Original,
}

pub(crate) struct Target {
    client: kube::Client,
    // In the order in which they end: the webhook server, the API server, their files.
    _processes: Vec<Process>,
    fleet: Option<Fleet>,
    _dir: tempfile::TempDir,
}

impl Target {
    /// Our server, with its admission inside.
    pub(crate) async fn ours() -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        let data_text = data.display().to_string();
        let arguments = [
            "server",
            "--bind",
            "127.0.0.1:0",
            "--controllers",
            "",
            "--feature-gates",
            GATES,
            "--data-dir",
            &data_text,
        ];
        let process = Process::start(KARMADA, &arguments, "ready");
        let client = client(&data.join("karmada.kubeconfig")).await;
        let target = Self { client, _processes: vec![process], fleet: None, _dir: dir };
        target.post("/api/v1/namespaces", &json!({ "metadata": { "name": NAMESPACE } })).await;
        target
    }

    /// A kube-apiserver with our definitions and a webhook server; none where it cannot be had.
    pub(crate) async fn kube_apiserver(webhook: Webhook) -> Option<Self> {
        let toolchain = clusters::toolchain::Toolchain::from_env().expect("a place for the cache");
        if !toolchain.can_provide(&clusters::toolchain::MEMBER_RECIPES) {
            clusters::left_out("a kube-apiserver, and there is no Go toolchain to build it with");
            return None;
        }
        let dir = tempfile::tempdir().expect("a folder for the test");
        let client_ca = certificates_for_calls(dir.path());
        let calls =
            format!("--admission-control-config-file={}", dir.path().join("admission.yaml").display());
        let options = FleetOptions::of([ClusterOptions::api_server("golden").apiserver_arg(&calls)]);
        let fleet = Fleet::start(options).await.expect("a kube-apiserver");
        let cluster = fleet.cluster("golden").expect("the cluster");
        let kubeconfig = cluster.kubeconfig().to_path_buf();
        let client = client(&kubeconfig).await;
        let certificates = dir.path().join("certs").display().to_string();
        let kubeconfig = kubeconfig.display().to_string();
        // Makes the certificates, for either webhook server.
        print_configuration(&certificates, "https://unused");
        let (process, url) = match webhook {
            Webhook::Ours => {
                let arguments = [
                    "webhook",
                    "--bind-address",
                    "127.0.0.1",
                    "--secure-port",
                    "0",
                    "--health-probe-bind-address",
                    "0",
                    "--cert-dir",
                    &certificates,
                    "--kubeconfig",
                    &kubeconfig,
                    "--feature-gates",
                    GATES,
                    "--client-ca-file",
                    &client_ca,
                    "--client-allowed-names",
                    CALLER,
                ];
                let process = Process::start(KARMADA, &arguments, "address");
                let address =
                    process.ready.split_once("127.0.0.1:").map(|(_, rest)| rest).expect("an address");
                let port: String = address.chars().take_while(char::is_ascii_digit).collect();
                (process, format!("https://127.0.0.1:{port}"))
            }
            Webhook::Original => {
                let port = clusters::free_ports(1).expect("a free port")[0];
                let program = original(toolchain.root());
                let arguments = [
                    format!("--kubeconfig={kubeconfig}"),
                    "--bind-address=127.0.0.1".to_owned(),
                    format!("--secure-port={port}"),
                    format!("--cert-dir={certificates}"),
                    "--metrics-bind-address=0".to_owned(),
                    "--health-probe-bind-address=0".to_owned(),
                    format!("--feature-gates={GATES}"),
                ];
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let process = Process::start(&program, &arguments, "Serving webhook server");
                (process, format!("https://127.0.0.1:{port}"))
            }
        };
        let target = Self { client, _processes: vec![process], fleet: Some(fleet), _dir: dir };
        target.post("/api/v1/namespaces", &json!({ "metadata": { "name": NAMESPACE } })).await;
        let objects = print_configuration(&certificates, &url);
        let ca =
            objects[0]["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned();
        target.define(&format!("{url}/convert"), &ca).await;
        for mut object in objects {
            if matches!(webhook, Webhook::Original) {
                let hooks = object["webhooks"].as_array_mut().expect("a list of hooks");
                let own = ["cluster.karmada.io", "resourceregistry.karmada.io"];
                // A rule of ours alone: it asks what the writer may read.
                let ours = "/validate-clusterresourcebinding";
                let is_ours = |hook: &Value| {
                    hook["clientConfig"]["url"].as_str().is_some_and(|url| url.ends_with(ours))
                };
                hooks.retain(|hook| !own.iter().any(|name| hook["name"] == *name) && !is_ours(hook));
            }
            let plural = object["kind"].as_str().unwrap_or_default().to_lowercase() + "s";
            target.post(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &object).await;
        }
        target.until_judged().await;
        Some(target)
    }

    pub(crate) async fn end(self) {
        drop(self._processes);
        if let Some(fleet) = self.fleet {
            fleet.down().await.expect("the fleet ends");
        }
    }

    /// Installs the definitions and waits until they are served.
    async fn define(&self, convert: &str, ca: &str) {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let mut names = Vec::new();
        for mut definition in api::crd::all().into_iter().chain(api::crd::aggregated()) {
            if definition["spec"]["versions"].as_array().is_some_and(|versions| versions.len() > 1) {
                definition = api::crd::with_conversion_webhook(definition, convert, ca);
            }
            names.push(definition["metadata"]["name"].as_str().unwrap_or_default().to_owned());
            // Groups under k8s.io need a word of approval, which the definition has.
            self.post(definitions, &definition).await;
        }
        for name in names {
            eventually(format!("{name} is served"), async || {
                let (_, found) = self.send("GET", &format!("{definitions}/{name}"), None).await;
                let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let served = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
                if served { Ok(()) } else { Err(found.to_string()) }
            })
            .await;
        }
    }

    /// Waits until the API server has noticed the configurations. It does not say when, so it is asked.
    async fn until_judged(&self) {
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterTaintPolicy",
            "metadata": { "name": "probe" }, "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] },
        });
        let binding = json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding", "metadata": { "name": "probe" },
            "spec": { "resource": { "apiVersion": "v1", "kind": "Pod", "name": "p" } },
        });
        eventually("the webhooks are called", async || {
            let path = "/apis/policy.karmada.io/v1alpha1/clustertaintpolicies?dryRun=All";
            let (refused, _) = self.send("POST", path, Some(&policy)).await;
            let path =
                format!("/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings?dryRun=All");
            let (_, stored) = self.send("POST", &path, Some(&binding)).await;
            let called = refused == 403 && stored["metadata"]["labels"].is_object();
            if called { Ok(()) } else { Err(format!("{refused} {stored}")) }
        })
        .await;
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(bytes)
            .expect("a request");
        match self.client.request::<Value>(request).await {
            Ok(value) => (200, value),
            Err(kube::Error::Api(status)) => {
                let body = json!({ "message": status.message, "reason": status.reason, "code": status.code });
                (status.code, body)
            }
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    async fn post(&self, path: &str, object: &Value) {
        let (code, answer) = self.send("POST", path, Some(object)).await;
        assert!(matches!(code, 200 | 409), "POST {path}: {answer}");
    }

    /// Creates what exists before the cases of a file.
    pub(crate) async fn prepare(&self, file: &File) {
        for object in &file.before {
            self.post(&collection(object), object).await;
            if let Some(status) = object.get("status") {
                self.set_status(object, status).await;
            }
        }
    }

    async fn set_status(&self, object: &Value, status: &Value) {
        let path = path_of(object);
        let change = |stored: &mut Value| stored["status"] = status.clone();
        let (code, answer) = self.replace(&path, &format!("{path}/status"), change).await;
        assert_eq!(code, 200, "{path}/status: {answer}");
    }

    /// Reads an object, changes it and writes it back; once more if a controller has written it meanwhile.
    async fn replace(&self, path: &str, to: &str, change: impl Fn(&mut Value)) -> (u16, Value) {
        let mut tries = 0;
        loop {
            let (_, mut object) = self.send("GET", path, None).await;
            change(&mut object);
            let (code, answer) = self.send("PUT", to, Some(&object)).await;
            tries += 1;
            if code != 409 || tries == TRIES {
                return (code, answer);
            }
        }
    }

    /// Carries out a case and returns what came of it.
    pub(crate) async fn outcome(&self, file: &File, case: &Case) -> Value {
        let (code, created) = self.send("POST", &collection(&case.object), Some(&case.object)).await;
        let mut outcome = if code != 200 {
            refused(file, &created)
        } else {
            let path = path_of(&created);
            if let Some(status) = &case.status {
                self.set_status(&created, status).await;
            }
            if let Some(patch) = &case.update {
                let change = |object: &mut Value| apimachinery::patch::merge::apply(object, patch.clone());
                let (code, answer) = self.replace(&path, &path, change).await;
                if code == 200 { stored(answer) } else { refused(file, &answer) }
            } else if case.delete {
                let (code, answer) = self.send("DELETE", &path, None).await;
                if code == 200 { json!({ "deleted": true }) } else { refused(file, &answer) }
            } else {
                stored(created)
            }
        };
        if let Some(name) = &case.look {
            let path = format!(
                "/apis/policy.karmada.io/v1alpha1/namespaces/{NAMESPACE}/federatedresourcequotas/{name}"
            );
            let (_, quota) = self.send("GET", &path, None).await;
            outcome["used"] = quota["status"]["overallUsed"].clone();
        }
        outcome
    }
}

/// Returns what is stored, without what differs from run to run.
fn stored(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
            metadata.remove(field);
        }
    }
    mask(&mut object);
    json!({ "stored": object })
}

/// Replaces IDs and the time of this run.
fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(text) if key.ends_with("permanent-id") && text.len() == 36 => {
                        *text = "<uuid>".to_owned();
                    }
                    Value::String(text) if key == "timeAdded" => *text = "<time>".to_owned(),
                    other => mask(other),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(mask),
        _ => {}
    }
}

fn refused(file: &File, status: &Value) -> Value {
    let mut status = status.clone();
    let message = status["message"].as_str().unwrap_or_default();
    // A rule that Karmada compiles into an API server names no webhook; behind kube-apiserver ours has to.
    for own in ["cluster", "resourceregistry"] {
        let prefix = format!("admission webhook \"{own}.karmada.io\" denied the request: ");
        if file.name == own
            && let Some(rest) = message.strip_prefix(&prefix)
        {
            status["message"] = rest.into();
            break;
        }
    }
    json!({ "refused": status })
}

struct Kind {
    group: String,
    kind: String,
    plural: String,
    namespaced: bool,
}

/// Karmada's kinds.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    api::crd::all()
        .into_iter()
        .chain(api::crd::aggregated())
        .map(|definition| Kind {
            group: text(&definition["spec"]["group"]),
            kind: text(&definition["spec"]["names"]["kind"]),
            plural: text(&definition["spec"]["names"]["plural"]),
            namespaced: definition["spec"]["scope"] == "Namespaced",
        })
        .collect()
});

/// Returns the path of the collection an object belongs to.
fn collection(object: &Value) -> String {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let known = KINDS.iter().find(|known| known.group == group && known.kind == kind);
    let (plural, namespaced) = match known {
        Some(known) => (known.plural.clone(), known.namespaced),
        None => (format!("{}s", kind.to_lowercase()), kind != "Namespace"),
    };
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespaced { format!("{root}/namespaces/{NAMESPACE}/{plural}") } else { format!("{root}/{plural}") }
}

fn path_of(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap_or_default())
}

fn print_configuration(certificates: &str, url: &str) -> Vec<Value> {
    let output = Command::new(KARMADA)
        .args(["webhook", "--print-configuration", "--cert-dir", certificates, "--url", url])
        // Callers show certificates, and the original knows no paths with passwords.
        .args(["--client-ca-file", "none"])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let documents = apimachinery::yaml::read_all(&text).expect("YAML");
    documents.into_iter().map(|document| document.value).collect()
}

/// The original webhook server, which has been built beforehand.
fn original(cache: &Path) -> PathBuf {
    let program = clusters::toolchain::KARMADA.program("karmada-webhook");
    let path = cache.join("bin").join(format!("{}-{}", program.name, program.version));
    assert!(
        path.is_file(),
        "{} does not exist; docs/guides/real-clusters.md tells how to build it",
        path.display()
    );
    path
}
