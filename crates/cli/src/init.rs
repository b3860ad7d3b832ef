//! `init`: installs the control plane into a Kubernetes cluster, or prints what would be installed.
//!
//! In: upstream's flags, as far as they make sense for one program with its own store. Out: a namespace, an account without
//! rights, two Services and a StatefulSet in the host cluster, and the administrator's kubeconfig here. The control plane itself
//! creates its keys, which stay in its volume; the kubeconfig is requested from it once it runs. With `--on-existing`, the API
//! server of the host cluster becomes the control plane's, and three programs are installed beside it (`existing`).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use serde_json::Value;

use crate::failure;
use crate::output;
use crate::server::{Connection, Server, segment};
use crate::session::{self, From, Sources, Target};

mod existing;
mod manifests;
mod upstream;

pub(crate) use existing::marked;
pub(crate) use manifests::LABEL;

const NAME: &str = "karmada-apiserver";
const MANAGER: &str = "karmada-init";
/// The directory inside the pod in which the control plane keeps everything.
const DATA: &str = "/var/lib/karmada";

/// The host cluster.
#[derive(Debug, Clone, Default, Args)]
#[group(id = "host")]
pub struct Host {
    /// Path to the kubeconfig file of the host cluster.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Namespace of the control plane in the host cluster.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "karmada-system")]
    pub namespace: String,
}

impl Host {
    pub(crate) async fn server(&self) -> anyhow::Result<Server> {
        let connection = Connection {
            kubeconfig: self.kubeconfig.clone(),
            karmada_context: self.context.clone(),
            ..Connection::default()
        };
        Ok(connection.plane().await?.server)
    }
}

/// Install the Karmada control plane in a Kubernetes cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Show what would be installed
  karmadactl init --print

  # Install it, reachable at port 32443 of a node
  karmadactl init --karmada-apiserver-advertise-address=192.0.2.7 --karmada-data=./karmada

  # With a volume of a storage class
  karmadactl init --etcd-storage-mode=PVC --storage-classes-name=fast --etcd-pvc-size=10Gi --print

  # On the host cluster's own API server: the controllers, the webhooks and an aggregated API server
  karmadactl init --on-existing --etcd-storage-mode=PVC --storage-classes-name=fast --print")]
pub struct Arguments {
    #[command(flatten)]
    pub host: Host,
    /// Print the manifests instead of applying them.
    #[arg(long)]
    pub print: bool,
    /// Port of every node that leads to the control plane.
    #[arg(short, long, value_name = "PORT", default_value_t = 32443)]
    pub port: u16,
    /// Address of a node or load balancer that clients are told to connect to; by default that of the first node.
    #[arg(long, value_name = "IP", default_value = "")]
    pub karmada_apiserver_advertise_address: String,
    /// Directory that the administrator's kubeconfig is written to, as karmada-apiserver.config.
    #[arg(short = 'd', long, value_name = "DIRECTORY", default_value = "/etc/karmada")]
    pub karmada_data: PathBuf,
    /// DNS domain of the host cluster.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub host_cluster_domain: String,
    /// Further addresses the serving certificate is valid for, separated by commas.
    #[arg(long, value_name = "IPS", value_delimiter = ',')]
    pub cert_external_ip: Vec<String>,
    /// Further names the serving certificate is valid for, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub cert_external_dns: Vec<String>,
    /// Image of the control plane.
    #[arg(long, value_name = "IMAGE", default_value = "")]
    pub karmada_apiserver_image: String,
    /// Further arguments of the control plane, such as --feature-gates=Failover=true; may be repeated.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub karmada_apiserver_extra_args: Vec<String>,
    /// Priority class of the control plane's pod.
    #[arg(long, value_name = "CLASS", default_value = "system-node-critical")]
    pub karmada_apiserver_priority_class: String,
    /// Registry that the image is pulled from instead of its own.
    #[arg(long, value_name = "REGISTRY", default_value = "")]
    pub private_image_registry: String,
    /// When the image is pulled: Always, Never or IfNotPresent.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    pub image_pull_policy: String,
    /// Secrets to pull the image with, separated by commas.
    #[arg(long, value_name = "SECRETS", value_delimiter = ',')]
    pub image_pull_secrets: Vec<String>,
    /// Where the store lies: emptyDir, hostPath or PVC.
    #[arg(long, value_name = "MODE", default_value = "hostPath")]
    pub etcd_storage_mode: String,
    /// With hostPath, the directory on the node.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/karmada-etcd")]
    pub etcd_data: String,
    /// With hostPath, labels of the node, separated by commas.
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub etcd_node_selector_labels: String,
    /// With PVC, the size of the volume.
    #[arg(long, value_name = "SIZE", default_value = "5Gi")]
    pub etcd_pvc_size: String,
    /// With PVC, the storage class of the volume.
    #[arg(long, value_name = "CLASS", default_value = "")]
    pub storage_classes_name: String,
    /// Seconds to wait for the control plane to be ready; 0 waits forever.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, allow_negative_numbers = true)]
    pub wait_component_ready_timeout: i64,
    #[command(flatten)]
    pub existing: existing::Flags,
    #[command(flatten)]
    pub upstream: upstream::Flags,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    arguments.check()?;
    for sentence in arguments.upstream.sentences() {
        output::warn(&format!("warning: {sentence}"));
    }
    if arguments.existing.on_existing {
        return on_existing(&arguments).await;
    }
    let objects = manifests::all(&arguments)?;
    if arguments.print {
        print(&objects);
        return Ok(());
    }
    let host = arguments.host.server().await?;
    arguments.port_is_free(&host).await?;
    apply(&host, &objects).await?;
    ready(&arguments.host, &host, arguments.patience()).await?;
    let config = kubeconfig(&arguments, &host).await.inspect_err(|_| {
        output::warn(&format!(
            "the control plane runs, but its kubeconfig could not be read; once the host cluster allows `exec` into {}/{NAME}-0, \
             the same command goes on from here",
            arguments.host.namespace
        ));
    })?;
    let file = arguments.karmada_data.join("karmada-apiserver.config");
    write(&file, &config).with_context(|| format!("cannot write {}", file.display()))?;
    output::line(&told(&file.display().to_string(), crate::program::shown()));
    Ok(())
}

fn print(objects: &[Value]) {
    for (i, object) in objects.iter().enumerate() {
        output::print(&format!("{}{}", if i == 0 { "" } else { "---\n" }, apimachinery::yaml::write(object)));
    }
}

async fn apply(host: &Server, objects: &[Value]) -> anyhow::Result<()> {
    let discovery = host.discovery().await?;
    for object in objects {
        let resource = discovery.of(object)?;
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or("").to_owned();
        let path =
            format!("{}?fieldManager={MANAGER}&force=true", resource.path(&text("namespace"), &text("name")));
        host.patch(&path, "application/apply-patch+yaml", object).await?;
        output::line(&format!("{}/{} applied", resource.prefix(), text("name")));
    }
    Ok(())
}

/// Installs the three programs on the host cluster's own API server, or prints what would be installed.
async fn on_existing(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.print {
        let certificates = existing::Certificates::make(arguments, |_| None)?;
        let existing::Layout { programs, calls } = existing::layout(arguments, &certificates)?;
        print(&[programs, calls].concat());
        return Ok(());
    }
    let host = arguments.host.server().await?;
    // Running programs keep their certificates.
    let mut known = std::collections::BTreeMap::new();
    for name in [existing::WEBHOOK, existing::AGGREGATED].map(existing::secret_name) {
        let path = format!("/api/v1/namespaces/{}/secrets/{name}", segment(&arguments.host.namespace));
        match host.get(&path).await {
            Ok(secret) => drop(known.insert(name, secret)),
            Err(error) if failure::is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let certificates = existing::Certificates::make(arguments, |name| known.get(name).cloned())?;
    let existing::Layout { programs, calls } = existing::layout(arguments, &certificates)?;
    for wanted in calls.iter().filter(|object| object["kind"] == "APIService") {
        let name = wanted["metadata"]["name"].as_str().unwrap_or("");
        match host.get(&format!("/apis/apiregistration.k8s.io/v1/apiservices/{}", segment(name))).await {
            Ok(found) => existing::may_replace(&found, wanted, arguments.existing.serve_metrics)?,
            Err(error) if failure::is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    apply(&host, &programs).await?;
    for (name, plural) in existing::WORKLOADS {
        let path = format!("/apis/apps/v1/namespaces/{}/{plural}/{name}", segment(&arguments.host.namespace));
        becomes_ready(&host, &path, name, &arguments.host.namespace, arguments.patience()).await?;
    }
    // They must run before the API server calls them.
    apply(&host, &calls).await?;
    let program = crate::program::shown();
    output::line(&format!(
        "\nKarmada is installed on the API server of the host cluster.\n\nRegister a cluster that it can reach:\n  {program} join \
         CLUSTER_NAME --cluster-kubeconfig=FILE\n\nLook at the fleet:\n  {program} get clusters"
    ));
    Ok(())
}

impl Arguments {
    fn patience(&self) -> Duration {
        match self.wait_component_ready_timeout {
            0 => Duration::from_secs(365 * 24 * 3600),
            seconds => Duration::from_secs(seconds.unsigned_abs()),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        self.upstream.check()?;
        self.existing.check()?;
        if self.existing.on_existing && !self.karmada_apiserver_extra_args.is_empty() {
            bail!(
                "--karmada-apiserver-extra-args cannot be had with --on-existing: the API server is there already; use \
                 --karmada-controller-manager-extra-args, --karmada-webhook-extra-args or --karmada-aggregated-apiserver-extra-args"
            );
        }
        if self.wait_component_ready_timeout < 0 {
            bail!("wait-component-ready-timeout must be greater than or equal to 0");
        }
        let address = &self.karmada_apiserver_advertise_address;
        if !address.is_empty() && address.parse::<std::net::IpAddr>().is_err() {
            bail!("karmada apiserver advertise address is not valid: {address}");
        }
        if !(30000..=32767).contains(&self.port) {
            bail!("--port {} is not a port of nodes; these lie between 30000 and 32767", self.port);
        }
        if !matches!(self.image_pull_policy.as_str(), "Always" | "Never" | "IfNotPresent") {
            bail!(
                "image-pull-policy {} is not valid; it is Always, Never or IfNotPresent",
                self.image_pull_policy
            );
        }
        match self.etcd_storage_mode.as_str() {
            "hostPath" if self.etcd_data.is_empty() => {
                bail!("when etcd storage mode is hostPath, etcd-data must be set")
            }
            "PVC" if self.storage_classes_name.is_empty() => {
                bail!("when etcd storage mode is PVC, storage-classes-name must be set")
            }
            "emptyDir" | "hostPath" | "PVC" => Ok(()),
            other => bail!("unsupported etcd-storage-mode {other}; it is emptyDir, hostPath or PVC"),
        }
    }

    async fn port_is_free(&self, host: &Server) -> anyhow::Result<()> {
        for service in crate::select::list(host, "/api/v1/services", None, None).await? {
            let metadata = &service["metadata"];
            if metadata["name"] == NAME && metadata["namespace"] == *self.host.namespace {
                continue;
            }
            let taken =
                service["spec"]["ports"].as_array().into_iter().flatten().any(|p| p["nodePort"] == self.port);
            if taken {
                bail!(
                    "nodePort of karmada apiserver {} already exist in service {}",
                    self.port,
                    metadata["name"]
                );
            }
        }
        Ok(())
    }
}

/// The location of the control plane's StatefulSet in the host cluster.
pub(crate) fn path(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{}/statefulsets/{NAME}", segment(namespace))
}

/// The arguments of the control plane in a StatefulSet.
pub(crate) fn arguments_of(set: &Value) -> Vec<String> {
    let args = set["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    args.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Waits until the pod is ready and up to date with the StatefulSet.
pub(crate) async fn ready(place: &Host, host: &Server, patience: Duration) -> anyhow::Result<()> {
    becomes_ready(host, &path(&place.namespace), NAME, &place.namespace, patience).await
}

/// Waits until a pod of a workload is ready and up to date with the workload.
async fn becomes_ready(
    host: &Server,
    path: &str,
    name: &str,
    namespace: &str,
    patience: Duration,
) -> anyhow::Result<()> {
    output::line(&format!("waiting for {name} to be ready"));
    let waiting = async {
        loop {
            let found = host.get(path).await?;
            let status = &found["status"];
            // A StatefulSet names the revision of its pods, a Deployment the number of up-to-date ones.
            let newest = match status.get("updateRevision") {
                Some(revision) => status["currentRevision"] == *revision,
                None => status["updatedReplicas"].as_i64().unwrap_or(0) >= 1,
            };
            let observed = status["observedGeneration"] == found["metadata"]["generation"] && newest;
            if observed && status["readyReplicas"].as_i64().unwrap_or(0) >= 1 {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    match tokio::time::timeout(patience, waiting).await {
        Ok(result) => result,
        Err(_) => bail!(
            "{name} is not ready after {}s; `kubectl describe pods -n {namespace} -l app={name}` may tell why",
            patience.as_secs(),
        ),
    }
}

/// Requests the administrator's kubeconfig from the control plane, and inserts the address that clients use.
///
/// The program prints the file itself, since its image need not contain a shell.
async fn kubeconfig(arguments: &Arguments, host: &Server) -> anyhow::Result<String> {
    let file = format!("{DATA}/karmada.kubeconfig");
    let command: Vec<String> = [
        "karmada",
        "create",
        "configmap",
        "kubeconfig",
        "--dry-run=client",
        "--output=json",
        &format!("--from-file=config={file}"),
        &format!("--kubeconfig={file}"),
    ]
    .map(str::to_owned)
    .to_vec();
    let pod = format!("{NAME}-0");
    let target = Target {
        namespace: &arguments.host.namespace,
        pod: &pod,
        container: NAME,
        verb: "exec",
        command: &command,
        stdin: false,
        tty: false,
    };
    let mut said = Vec::new();
    let status = session::run(host, &target, Sources::default(), |from, bytes| {
        match from {
            From::Stdout => said.extend_from_slice(bytes),
            From::Stderr => output::warn_bytes(bytes),
        }
        Ok(())
    })
    .await?;
    session::ended(&status)?;
    let object: Value = serde_json::from_slice(&said).context("the control plane printed no kubeconfig")?;
    let config = object["data"]["config"]
        .as_str()
        .ok_or_else(|| anyhow!("the control plane printed no kubeconfig"))?;
    let address = match arguments.karmada_apiserver_advertise_address.as_str() {
        "" => node_address(host).await?,
        address => address.to_owned(),
    };
    Ok(readdressed(config, &address, arguments.port))
}

/// The address of a control plane node of the host cluster, or of any node.
async fn node_address(host: &Server) -> anyhow::Result<String> {
    for labels in ["node-role.kubernetes.io/master", "node-role.kubernetes.io/control-plane", ""] {
        let nodes = crate::select::list(host, "/api/v1/nodes", Some(labels), None).await?;
        let address = nodes.first().and_then(|node| node["status"]["addresses"][0]["address"].as_str());
        if let Some(address) = address {
            return Ok(address.to_owned());
        }
    }
    bail!("the host cluster has no node with an address; say one with --karmada-apiserver-advertise-address")
}

/// Replaces the server's address; everything else remains as the control plane wrote it.
fn readdressed(config: &str, address: &str, port: u16) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let line = |line: &str| match line.find("server: ") {
        Some(at) => format!("{}server: https://{host}:{port}\n", &line[..at]),
        None => format!("{line}\n"),
    };
    config.lines().map(line).collect()
}

/// Only its owner may read it.
fn write(file: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut open = std::fs::OpenOptions::new();
    let mut file = open.write(true).create(true).truncate(true).mode(0o600).open(file)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}

fn told(file: &str, program: &str) -> String {
    format!(
        "\nThe control plane is installed. Its kubeconfig is {file}.\n\nRegister a cluster that the control plane can reach:\n  \
         {program} --kubeconfig {file} join CLUSTER_NAME --cluster-kubeconfig=FILE\n\nLook at the fleet:\n  {program} --kubeconfig \
         {file} get clusters"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn read(line: &str) -> Arguments {
        Line::try_parse_from(std::iter::once("init").chain(line.split_whitespace())).expect(line).arguments
    }

    #[test]
    fn flags_have_rules() {
        assert!(read("").check().is_ok());
        for (line, complaint) in [
            ("--port 80", "lie between 30000 and 32767"),
            ("--karmada-apiserver-advertise-address x", "is not valid: x"),
            ("--etcd-storage-mode PVC", "storage-classes-name must be set"),
            ("--etcd-storage-mode x", "unsupported etcd-storage-mode x"),
            ("--etcd-replicas 3", "one process"),
            ("--karmada-webhook-replicas 2", "one process"),
            ("--config f", "not read"),
            ("--external-etcd-servers https://x", "store of its own"),
            ("--karmada-webhook-extra-args --log=debug", "one process"),
            ("--on-existing --karmada-webhook-extra-args log", "must look like --name=value"),
            ("--on-existing --karmada-webhook-replicas 0", "nobody"),
            ("--on-existing --karmada-apiserver-extra-args --log=debug", "is there already"),
        ] {
            let error = read(line).check().expect_err(line).to_string();
            assert!(error.contains(complaint), "{line}: {error}");
        }
    }

    #[test]
    fn each_flag_without_effect_gets_a_sentence() {
        assert_eq!(read("").upstream.sentences(), Vec::<String>::new());
        let told = read("--etcd-image x --crds y --karmada-webhook-image z").upstream.sentences();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("--crds means nothing here"), "{told:?}");
    }

    #[test]
    fn a_kubeconfig_gets_the_address_that_clients_use() {
        let config = "clusters:\n- cluster:\n    server: https://127.0.0.1:5443\n  name: x\n";
        let wanted = "clusters:\n- cluster:\n    server: https://192.0.2.7:32443\n  name: x\n";
        assert_eq!(readdressed(config, "192.0.2.7", 32443), wanted);
        assert!(readdressed(config, "2001:db8::1", 1).contains("https://[2001:db8::1]:1\n"));
    }

    #[test]
    fn three_programs_stand_beside_an_api_server() {
        let line = "--on-existing -n here --etcd-storage-mode emptyDir --karmada-webhook-replicas 3 --karmada-controller-manager-extra-args \
             --feature-gates=Failover=true";
        let arguments = read(line);
        arguments.check().expect("good");
        let certificates = existing::Certificates::make(&arguments, |_| None).expect("certificates");
        let existing::Layout { programs, calls } =
            existing::layout(&arguments, &certificates).expect("objects");
        let found = |kind: &str, name: &str| {
            let mut all = programs.iter().chain(&calls);
            let found = all.find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
            found.unwrap_or_else(|| panic!("{kind} {name} is missing"))
        };
        for (name, plural) in existing::WORKLOADS {
            let kind = if plural == "statefulsets" { "StatefulSet" } else { "Deployment" };
            let pod = &found(kind, name)["spec"]["template"]["spec"];
            assert_eq!(pod["serviceAccountName"], name);
            found("ServiceAccount", name);
            let role = found("ClusterRole", name);
            // No account may do everything, or impersonate others.
            for rule in role["rules"].as_array().expect("rules") {
                let verbs = rule["verbs"].as_array().expect("verbs");
                let great = ["*", "impersonate", "escalate", "bind", "deletecollection"];
                assert!(!verbs.iter().any(|verb| great.contains(&verb.as_str().unwrap_or(""))), "{rule}");
                let wide = rule["resources"] == serde_json::json!(["*"]);
                assert!(!wide || !verbs.iter().any(|verb| verb == "create" || verb == "delete"), "{rule}");
            }
        }
        let args =
            &found("Deployment", "karmada-controllers")["spec"]["template"]["spec"]["containers"][0]["args"];
        assert!(args.to_string().contains("--feature-gates=Failover=true"), "{args}");
        assert_eq!(found("Deployment", "karmada-webhook")["spec"]["replicas"], 3);
        // Every caller finds a Service, and trusts its certificate.
        let service = &found("APIService", "v1alpha1.cluster.karmada.io")["spec"]["service"];
        assert_eq!(
            *service,
            serde_json::json!({"name": "karmada-aggregated-apiserver", "namespace": "here", "port": 443})
        );
        assert_eq!(found("Service", "karmada-aggregated-apiserver")["spec"]["ports"][0]["targetPort"], 5444);
        // `deinit` finds the objects outside of the namespace by its labels, and none of another installation.
        let rights = programs.iter().filter(|one| one["apiVersion"] == "rbac.authorization.k8s.io/v1");
        for one in calls.iter().chain(rights) {
            let labels = one["metadata"]["labels"].as_object().expect("labels");
            let has = |wanted: &str| {
                let (name, value) = wanted.split_once('=').expect("a label");
                labels.get(name).is_some_and(|given| given == value)
            };
            assert!(marked("here").split(',').all(has), "{one}");
            assert!(!marked("elsewhere").split(',').all(has), "{one}");
        }
        assert!(
            !calls.iter().any(|one| one["metadata"]["name"] == "v1beta1.metrics.k8s.io"),
            "it is the host's"
        );
        // Existing objects are kept, and distinguished from those of others.
        let secret = found("Secret", "karmada-webhook-cert");
        let known = existing::serving(secret).expect("a certificate");
        assert_eq!(known.key, certificates.webhook.key);
        let again = existing::Certificates::make(&arguments, |name| Some(found("Secret", name).clone()));
        let again = again.expect("certificates");
        assert_eq!(again.password, certificates.password);
        let hooks = found("ValidatingWebhookConfiguration", "validating-config").to_string();
        assert!(hooks.contains(&format!("/validate-cluster/{}\"", certificates.password)), "{hooks}");
        let wanted = found("APIService", "v1alpha1.search.karmada.io");
        existing::may_replace(wanted, wanted, false).expect("it is ours");
        let mut other = wanted.clone();
        other["spec"]["service"]["namespace"] = "elsewhere".into();
        let refused = existing::may_replace(&other, wanted, false).expect_err("another's").to_string();
        assert!(refused.contains("elsewhere/karmada-aggregated-apiserver"), "{refused}");
    }

    #[test]
    fn the_store_lies_where_it_is_told_to() {
        let set = |line: &str| {
            let objects = manifests::all(&read(line)).expect("manifests");
            objects.into_iter().find(|object| object["kind"] == "StatefulSet").expect("a stateful set")
        };
        let host = set("--etcd-data /x --etcd-node-selector-labels a=b");
        assert_eq!(host["spec"]["template"]["spec"]["volumes"][0]["hostPath"]["path"], "/x");
        assert_eq!(host["spec"]["template"]["spec"]["nodeSelector"]["a"], "b");
        let claim = set("--etcd-storage-mode PVC --storage-classes-name fast --etcd-pvc-size 9Gi");
        assert_eq!(claim["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"], "fast");
        let image =
            &set("--private-image-registry r.example")["spec"]["template"]["spec"]["containers"][0]["image"];
        assert!(image.as_str().is_some_and(|image| image.starts_with("r.example/karmada:v")), "{image}");
        let args = &set("--cert-external-ip 1.2.3.4 --karmada-apiserver-extra-args --log=debug")["spec"]["template"]
            ["spec"]["containers"][0]["args"];
        let text = args.to_string();
        assert!(text.contains("1.2.3.4") && text.contains("\"--log=debug\""), "{text}");
    }
}
