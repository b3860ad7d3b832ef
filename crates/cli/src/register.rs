//! `register`: registers a cluster with a control plane in pull mode, run inside the cluster's network.
//!
//! It needs only a bootstrap token. It finds the control plane (`discovery`), gets a certificate for the agent, creates its roles
//! in the control plane, and starts the agent itself: in the member (`member`), or as a local process. If a step fails,
//! everything is undone. If a local agent gives up when it starts, the next registration replaces what it left.

mod discovery;
mod member;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::member::credentials::{ensure, system};
use admission::agents;
use anyhow::{Context, bail};
use api::cluster::{Cluster, ClusterSyncMode};
use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_SYSTEM};
use api::features::Features;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

pub(crate) use self::member::{ACCOUNT, AGENT, KUBECONFIG, delete, remove as remove_agent};
use crate::certificates::{Pair, Wanted, ask, suffix};
use crate::clients::{self, duration};
use crate::join::{install_service_definitions, service_definitions};
use crate::output;
use discovery::{Discovered, Discovery};

/// Part of the control plane's message about a cluster that is registered under another name.
const REGISTERED_OTHERWISE: &str = "has been registered with name";
/// How long the certificate is valid with which an agent's roles are written, in seconds.
const GENERATOR_LIFETIME: Duration = Duration::from_secs(600);

/// Register a cluster in pull mode: an agent in the cluster reaches out to the control plane.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Register this cluster; the whole command is what `karmadactl token create --print-register-command` prints
  karmadactl register 192.0.2.1:5443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:1234...

  # Run the agent as a process right here instead of in the cluster
  karmadactl register 192.0.2.1:5443 --token ... --discovery-token-ca-cert-hash sha256:1234... --run")]
pub struct Arguments {
    /// Where the control plane answers, as HOST:PORT.
    #[arg(value_name = "HOST:PORT", default_value = "", hide_default_value = true)]
    pub endpoint: String,
    /// Kubeconfig of the cluster that is registered; by default KUBECONFIG or the file in the home directory.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Bootstrap token, as `token create` prints it.
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    pub token: String,
    /// Hashes of the control plane's certificate authority, as in sha256:1234...; one of them has to fit.
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Trust whoever answers, as long as it knows the token.
    #[arg(long)]
    pub discovery_token_unsafe_skip_ca_verification: bool,
    /// A kubeconfig that tells the control plane's address and certificate authority, instead of asking for them.
    #[arg(long, value_name = "FILE")]
    pub discovery_file: Option<PathBuf>,
    /// How long to wait for the control plane, for a certificate, and for the agent to run.
    #[arg(long, value_name = "DURATION", default_value = "5m0s")]
    pub discovery_timeout: String,
    /// Name of the cluster in the control plane; by default that of the cluster in the context.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub cluster_name: String,
    /// Namespace of the cluster's Secrets in the control plane, and of the accounts in the cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE_CLUSTER)]
    pub cluster_namespace: String,
    /// Namespace of the agent in the cluster.
    #[arg(long, short = 'n', value_name = "NAMESPACE", default_value = NAMESPACE_SYSTEM)]
    pub namespace: String,
    /// Provider of the cluster.
    #[arg(long, value_name = "PROVIDER", default_value = "", hide_default_value = true)]
    pub cluster_provider: String,
    /// Region of the cluster.
    #[arg(long, value_name = "REGION", default_value = "", hide_default_value = true)]
    pub cluster_region: String,
    /// Zones of the cluster.
    #[arg(long, value_name = "ZONE", value_delimiter = ',')]
    pub cluster_zones: Vec<String>,
    /// Proxy by which the cluster can be reached.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub proxy_server_address: String,
    /// Image of the agent; it holds this program.
    #[arg(long, value_name = "IMAGE", default_value = concat!("ghcr.io/karmada-rs/karmada:v", env!("CARGO_PKG_VERSION")))]
    pub karmada_agent_image: String,
    /// How many agents run in the cluster; one of them acts.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub karmada_agent_replicas: u32,
    /// How long the agent's certificate is valid, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 31_536_000, value_parser = clap::value_parser!(i32).range(600..))]
    pub cert_expiration_seconds: i32,
    /// Have the agent renew its certificate before it ends.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_cert_rotation: bool,
    /// Features of the agent to switch on or off, as in `MultiClusterService=true`.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    pub feature_gates: String,
    /// Also install the definitions of ServiceExport and ServiceImport into the cluster. Without them, a policy has to bring
    /// them there before services can be exported from it or imported into it.
    #[arg(long)]
    pub install_mcs_crds: bool,
    /// Stop after the checks in the cluster.
    #[arg(long)]
    pub dry_run: bool,
    /// Only print what would be created in the cluster.
    #[arg(long)]
    pub print: bool,
    /// Run the agent as a process right here, instead of in the cluster.
    #[arg(long, conflicts_with = "print")]
    pub run: bool,
    /// Where --run keeps the agent's kubeconfig; by default karmada-agent-NAME.kubeconfig in this directory.
    #[arg(long, value_name = "FILE", requires = "run")]
    pub agent_kubeconfig: Option<PathBuf>,
}

impl Arguments {
    fn patience(&self) -> anyhow::Result<Duration> {
        duration(&self.discovery_timeout)
    }

    /// Returns how to find and trust the control plane.
    fn discovery(&self) -> anyhow::Result<Discovery> {
        if self.endpoint.is_empty() {
            bail!(
                "the address of the control plane is required, as HOST:PORT; hint: `token create --print-register-command` prints the whole command"
            );
        }
        if self.token.is_empty() {
            bail!("--token is required; hint: `karmada token create` makes one");
        }
        let pinned = !self.discovery_token_ca_cert_hash.is_empty();
        let ways = [pinned, self.discovery_token_unsafe_skip_ca_verification, self.discovery_file.is_some()];
        if !ways.contains(&true) {
            bail!(
                "need to verify CACertHashes, or set --discovery-token-unsafe-skip-ca-verification=true; hint: \
                 `karmada token create --print-register-command` prints --discovery-token-ca-cert-hash"
            );
        }
        Discovery::new(
            &self.endpoint,
            &self.token,
            &self.discovery_token_ca_cert_hash,
            self.discovery_file.as_deref(),
            self.patience()?,
        )
    }

    /// Returns the command line of the agent, without the program's name.
    fn agent_flags(&self, name: &str, endpoint: &str, kubeconfig: &str) -> Vec<String> {
        let controllers = if self.enable_cert_rotation { "*,certRotation" } else { "*" };
        let mut flags = vec![
            "agent".to_owned(),
            format!("--karmada-kubeconfig={kubeconfig}"),
            format!("--cluster-name={name}"),
            format!("--cluster-api-endpoint={endpoint}"),
            format!("--controllers={controllers}"),
            format!("--cluster-namespace={}", self.cluster_namespace),
            format!("--karmada-kubeconfig-namespace={}", self.namespace),
            "--cluster-status-update-frequency=10s".to_owned(),
        ];
        for (flag, value) in [
            ("cluster-provider", self.cluster_provider.clone()),
            ("cluster-region", self.cluster_region.clone()),
            ("cluster-zones", self.cluster_zones.join(",")),
            ("proxy-server-address", self.proxy_server_address.clone()),
            ("feature-gates", self.feature_gates.clone()),
        ] {
            if !value.is_empty() {
                flags.push(format!("--{flag}={value}"));
            }
        }
        flags
    }
}

/// Registers a cluster.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = clients::config(arguments.kubeconfig.as_deref(), arguments.context.as_deref()).await?;
    let name = cluster_name(&arguments)?;
    clients::check_name(&name)?;
    Features::parse(&arguments.feature_gates).context("--feature-gates cannot be understood")?;
    let endpoint = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    if arguments.print {
        for object in printed(&arguments, &name, &endpoint) {
            output::print(&format!("---\n{}", apimachinery::yaml::write(&object)));
        }
        return Ok(());
    }
    let discovery = arguments.discovery()?;
    let member = crate::retries::client(config).context("cannot make a client for the cluster")?;
    output::line("[preflight] Running pre-flight checks");
    preflight(&arguments, &member, &name, discovery.url()).await?;
    output::line("[preflight] All pre-flight checks were passed");
    if arguments.dry_run {
        return Ok(());
    }
    output::line("[karmada-agent-start] Waiting to perform the TLS Bootstrap");
    let found = discovery.discover().await?;
    let registration = Registration { arguments: &arguments, name: &name, found: &found, member: &member };
    let (kubeconfig, roles) = registration.register().await?;
    let started = if arguments.run {
        run_here(&registration, &endpoint, &kubeconfig).await
    } else {
        member::install(&member, &arguments, &name, &endpoint, &kubeconfig).await
    };
    if let Err(error) = started {
        output::warn("register failed; what it made in the control plane is removed again");
        roles.remove().await;
        return Err(error);
    }
    output::line(&format!("\ncluster({name}) is joined successfully"));
    define_services(&arguments, &member).await
}

/// Returns the objects that would be created in the cluster.
fn printed(arguments: &Arguments, name: &str, endpoint: &str) -> Vec<Value> {
    let mut objects = member::manifests(arguments, name, endpoint, "<the agent's kubeconfig>");
    if arguments.install_mcs_crds {
        objects.extend(service_definitions());
    }
    objects
}

/// Installs the definitions for services in the cluster, if requested. This comes last, since definitions are not undone.
async fn define_services(arguments: &Arguments, member: &Client) -> anyhow::Result<()> {
    if arguments.install_mcs_crds {
        install_service_definitions(member)
            .await
            .context("ServiceExport and ServiceImport are not defined in the cluster")?;
        output::line("[karmada-agent-start] ServiceExport and ServiceImport are defined in the cluster");
    }
    Ok(())
}

/// Becomes the agent; returns only if that fails, and leaves no file then.
async fn run_here(registration: &Registration<'_>, endpoint: &str, kubeconfig: &str) -> anyhow::Result<()> {
    let Registration { arguments, name, member, found } = registration;
    let file = keep_here(arguments, name, &found.url, kubeconfig)?;
    let failed = match define_services(arguments, member).await {
        Ok(()) => become_agent(arguments, name, endpoint, &file),
        failed => failed,
    };
    let _ = std::fs::remove_file(&file);
    failed
}

/// Refuses a cluster that already has an agent.
async fn preflight(arguments: &Arguments, member: &Client, name: &str, url: &str) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    if arguments.run {
        let file = kept(arguments, name);
        // If there are leftovers, the control plane decides whether their cluster is registered.
        if file.exists() && !is_leftover(&file, name, url) {
            wrong.push(format!(
                "{} already exists and is not of an agent of {name} at {url}; hint: choose another --agent-kubeconfig",
                file.display()
            ));
        }
        // This also shows whether the cluster can be reached at all.
        let found =
            Api::<Namespace>::all(member.clone()).get_opt(api::constants::NAMESPACE_KUBE_SYSTEM).await;
        found.context("cannot reach the cluster that is to be registered; hint: check its kubeconfig")?;
    } else {
        wrong.extend(member::present(member, &arguments.namespace).await?);
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let list: String = wrong.iter().map(|one| format!("\n\t[ERROR]: {one}")).collect();
    bail!(
        "[preflight] Some fatal errors occurred:{list}\nhint: `karmada unregister {name}` removes an agent that is there"
    )
}

fn cluster_name(arguments: &Arguments) -> anyhow::Result<String> {
    if !arguments.cluster_name.is_empty() {
        return Ok(arguments.cluster_name.clone());
    }
    let read = match &arguments.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let file = read.context("cannot read the kubeconfig; hint: say --cluster-name")?;
    let chosen = arguments.context.clone().or(file.current_context).unwrap_or_default();
    let found = file.contexts.into_iter().find(|known| known.name == chosen);
    found
        .and_then(|known| Some(known.context?.cluster))
        .with_context(|| format!("context {chosen:?} has no cluster; hint: say --cluster-name"))
}

/// A registration in progress.
struct Registration<'a> {
    arguments: &'a Arguments,
    name: &'a str,
    found: &'a Discovered,
    member: &'a Client,
}

/// The agent's roles in the control plane, and a client that may remove them.
struct Roles {
    client: Client,
    objects: Vec<Value>,
}

impl Registration<'_> {
    /// Writes the agent's roles and gets its certificate; returns its kubeconfig.
    async fn register(&self) -> anyhow::Result<(String, Roles)> {
        let patience = self.arguments.patience()?;
        let (name, token) = (self.name, self.found.with_token()?);
        let request = format!("agent-rbac-generator-{name}{}", suffix());
        let wanted = Wanted {
            request: request.clone(),
            common_name: agents::GENERATOR,
            lifetime: GENERATOR_LIFETIME,
            patience,
        };
        let explain = |error| explain_token(error, &self.found.url);
        let pair = ask(&token, &wanted).await.map_err(explain)?;
        let generator = self.found.with_pair(&pair)?;
        let roles = self.write_roles(&generator).await;
        let requests = Api::<CertificateSigningRequest>::all(generator.clone());
        if let Err(error) = requests.delete(&request, &DeleteParams::default()).await {
            output::warn(&format!("signing request {request} is left behind: {error}"));
        }
        let roles = roles?;
        output::line("[karmada-agent-start] Waiting to construct karmada-agent kubeconfig");
        let wanted = Wanted {
            request: format!("{name}-{}", suffix()),
            common_name: &format!("{}{name}", agents::AGENT_PREFIX),
            lifetime: Duration::from_secs(self.arguments.cert_expiration_seconds.unsigned_abs().into()),
            patience,
        };
        let certified = async {
            let pair = ask(&token, &wanted).await.map_err(explain)?;
            self.try_agent(&self.found.with_pair(&pair)?).await?;
            anyhow::Ok(pair)
        };
        match certified.await {
            Ok(pair) => Ok((self.found.kubeconfig(name, &pair), roles)),
            Err(error) => {
                roles.remove().await;
                Err(error)
            }
        }
    }

    /// First tries what the agent does, as a dry run: a member that is registered under another name is refused now, not when the
    /// agent runs elsewhere. The agent itself finds all other errors.
    async fn try_agent(&self, agent: &Client) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.member.clone());
        let space = namespaces.get(api::constants::NAMESPACE_KUBE_SYSTEM).await;
        let space = space.context("cannot reach the cluster that is to be registered")?;
        let mut cluster = Cluster::default();
        cluster.metadata.name = Some(self.name.to_owned());
        cluster.spec.sync_mode = ClusterSyncMode::Pull;
        cluster.spec.id = space.metadata.uid.unwrap_or_default();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        match Api::<Cluster>::all(agent.clone()).create(&dry, &cluster).await {
            Err(kube::Error::Api(status)) if status.message.contains(REGISTERED_OTHERWISE) => {
                bail!("{}", status.message)
            }
            _ => Ok(()),
        }
    }

    async fn write_roles(&self, generator: &Client) -> anyhow::Result<Roles> {
        output::line("[karmada-agent-start] Waiting to check cluster exists");
        let name = self.name;
        let taken = || {
            format!(
                "a cluster named {name} is registered already; hint: choose another --cluster-name, or unregister that one"
            )
        };
        match Api::<Cluster>::all(generator.clone()).get_opt(name).await {
            Ok(None) => {}
            Ok(Some(_)) => bail!(taken()),
            // Our server does not show existing clusters.
            Err(kube::Error::Api(status)) if status.code == 403 => bail!(taken()),
            Err(error) => return Err(error).context("cannot see whether the name is free"),
        }
        output::line("[karmada-agent-start] Assign the necessary RBAC permissions to the agent");
        let namespace = &self.arguments.cluster_namespace;
        let roles = Roles { client: generator.clone(), objects: agents::roles(name, namespace) };
        let written = async {
            for space in [namespace, &api::names::execution_space(name)] {
                ensure::<Namespace>(&Api::all(generator.clone()), json!({ "metadata": system(space) }))
                    .await?;
            }
            roles.write().await
        };
        match written.await {
            Ok(()) => Ok(roles),
            Err(error) => {
                roles.remove().await;
                Err(error)
            }
        }
    }
}

impl Roles {
    async fn write(&self) -> anyhow::Result<()> {
        for object in &self.objects {
            let (client, object) = (self.client.clone(), object.clone());
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
            match object["kind"].as_str().unwrap_or("") {
                "ClusterRole" => ensure::<ClusterRole>(&Api::all(client), object).await,
                "ClusterRoleBinding" => ensure::<ClusterRoleBinding>(&Api::all(client), object).await,
                "Role" => ensure::<Role>(&Api::namespaced(client, &namespace), object).await,
                _ => ensure::<RoleBinding>(&Api::namespaced(client, &namespace), object).await,
            }?;
        }
        Ok(())
    }

    async fn remove(&self) {
        if let Err(error) = remove_roles(&self.client, &self.objects).await {
            output::warn(&format!("{error:#}"));
        }
    }
}

/// Deletes an agent's roles from the control plane; missing ones are ignored.
pub(crate) async fn remove_roles(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    for object in objects {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        let (name, namespace) = (text("name"), text("namespace"));
        let parameters = DeleteParams::default();
        let client = client.clone();
        let kind = object["kind"].as_str().unwrap_or("");
        let deleted = match kind {
            "ClusterRole" => Api::<ClusterRole>::all(client).delete(&name, &parameters).await.map(drop),
            "ClusterRoleBinding" => {
                Api::<ClusterRoleBinding>::all(client).delete(&name, &parameters).await.map(drop)
            }
            "Role" => Api::<Role>::namespaced(client, &namespace).delete(&name, &parameters).await.map(drop),
            _ => {
                Api::<RoleBinding>::namespaced(client, &namespace).delete(&name, &parameters).await.map(drop)
            }
        };
        match deleted {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            other => other.with_context(|| format!("cannot delete {kind} {name} of the control plane"))?,
        }
    }
    Ok(())
}

/// Explains a refused token, or that no server answers: with --discovery-file this is the first request.
fn explain_token(error: anyhow::Error, url: &str) -> anyhow::Error {
    let known = error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>());
    match known {
        Some(kube::Error::Api(status)) if status.code == 401 => anyhow::anyhow!(
            "the control plane does not accept the token; hint: it is wrong or has expired, `karmada token create` makes a new one"
        ),
        Some(kube::Error::Api(status)) if status.code == 403 => {
            anyhow::anyhow!(
                "{}; hint: choose another --cluster-name, or ask for a token for agents",
                status.message
            )
        }
        Some(kube::Error::HyperError(_) | kube::Error::Service(_)) => error.context(format!(
            "cannot reach the control plane at {url}; hint: check address, port and firewall, and whether --discovery-file is of this \
             control plane"
        )),
        _ => error,
    }
}

fn kept(arguments: &Arguments, name: &str) -> PathBuf {
    arguments.agent_kubeconfig.clone().unwrap_or_else(|| format!("karmada-agent-{name}.kubeconfig").into())
}

/// Returns whether a file is the kubeconfig of an agent for this cluster and this control plane, as [`Discovered::kubeconfig`]
/// writes it.
fn is_leftover(file: &Path, name: &str, url: &str) -> bool {
    let Ok(kubeconfig) = Kubeconfig::read_from(file) else { return false };
    let servers = kubeconfig.clusters.iter().map(|known| known.cluster.as_ref()?.server.as_deref());
    kubeconfig.current_context == Some(context_of(name)) && servers.eq([Some(url)])
}

/// Saves the agent's kubeconfig to a file that only its owner can read. A file of an agent that could not start, or whose cluster
/// was unregistered, is replaced: by now the control plane has confirmed that the name is free.
fn keep_here(arguments: &Arguments, name: &str, url: &str, kubeconfig: &str) -> anyhow::Result<PathBuf> {
    let file = kept(arguments, name);
    let written = || {
        if is_leftover(&file, name, url) {
            let shown = file.display();
            output::line(&format!("[karmada-agent-start] {shown} of an earlier registration is replaced"));
            std::fs::remove_file(&file)?;
        }
        let mut new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
        new.write_all(kubeconfig.as_bytes())?;
        new.sync_all()?;
        file.canonicalize()
    };
    written().with_context(|| format!("cannot write {}", file.display()))
}

/// Prints how the agent can run as a service, and becomes the agent.
fn become_agent(arguments: &Arguments, name: &str, endpoint: &str, file: &Path) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let program = std::env::current_exe().context("cannot find this program")?;
    let flags = flags_here(arguments, name, endpoint, file, std::env::home_dir());
    output::line(&format!("\ncluster({name}) is joined successfully"));
    output::line("\nThe agent runs here until it is stopped. As a service of systemd it would be:\n");
    output::line(&unit(name, &program, &flags));
    let error = std::process::Command::new(&program).arg0("karmada").args(&flags).exec();
    Err(error).context("cannot run the agent")
}

/// Returns the command line of a local agent. It always names the cluster's kubeconfig, even the one in the home directory: the
/// agent needs it together with a context, and a service has another home directory or none.
fn flags_here(
    arguments: &Arguments,
    name: &str,
    endpoint: &str,
    file: &Path,
    home: Option<PathBuf>,
) -> Vec<String> {
    let mut flags = arguments.agent_flags(name, endpoint, &file.display().to_string());
    flags.push("--leader-elect=false".to_owned());
    let usual = home.map(|home| home.join(".kube").join("config")).filter(|usual| usual.exists());
    // Without one, the account of the pod is used, which has no contexts.
    if let Some(kubeconfig) = arguments.kubeconfig.clone().or(usual) {
        let kubeconfig = kubeconfig.canonicalize().unwrap_or(kubeconfig);
        flags.push(format!("--kubeconfig={}", kubeconfig.display()));
        flags.extend(arguments.context.iter().map(|context| format!("--context={context}")));
    }
    flags
}

/// A systemd unit for the agent.
fn unit(name: &str, program: &Path, flags: &[String]) -> String {
    // systemd's quotes work as in a shell, with escapes inside, but it also expands variables and specifiers in them.
    let quote =
        |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'").replace('%', "%%").replace('$', "$$");
    let quoted: Vec<String> = flags.iter().map(|flag| format!("    '{}'", quote(flag))).collect();
    format!(
        "[Unit]\nDescription=Karmada agent of cluster {name}\nWants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nExecStart={} \\\n{}\nRestart=always\nRestartSec=5\n\n[Install]\nWantedBy=multi-user.target\n",
        program.display(),
        quoted.join(" \\\n")
    )
}

/// The context in the kubeconfig of an agent.
fn context_of(name: &str) -> String {
    format!("{name}@karmada-apiserver")
}

impl Discovered {
    /// Returns a client that authenticates with the token.
    fn with_token(&self) -> anyhow::Result<Client> {
        let mut config = self.config()?;
        config.auth_info.token = Some(self.token.clone().into());
        crate::retries::client(config).context("cannot make a client for the control plane")
    }

    /// Returns a client that authenticates with a certificate.
    fn with_pair(&self, pair: &Pair) -> anyhow::Result<Client> {
        let mut config = self.config()?;
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&pair.certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(&pair.key).into());
        crate::retries::client(config).context("cannot make a client for the control plane")
    }

    fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::new(self.url.parse().context("the control plane has no address")?);
        config.root_cert = Some(discovery::certificates(&self.authority)?);
        Ok(config)
    }

    /// Returns the kubeconfig of an agent. JSON is valid YAML.
    fn kubeconfig(&self, name: &str, pair: &Pair) -> String {
        let (cluster, context) = ("karmada-apiserver", context_of(name));
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": cluster, "cluster": {
                "server": self.url, "certificate-authority-data": STANDARD.encode(&self.authority),
            } }],
            "contexts": [{ "name": context, "context": { "cluster": cluster, "user": name } }],
            "current-context": context,
            "users": [{ "name": name, "user": {
                "client-certificate-data": STANDARD.encode(&pair.certificate),
                "client-key-data": STANDARD.encode(&pair.key),
            } }],
        });
        format!("{kubeconfig:#}\n")
    }
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

    fn read(line: &[&str]) -> Arguments {
        Line::parse_from(["register"].iter().chain(line)).arguments
    }

    #[test]
    fn a_missing_argument_is_reported_with_a_remedy() {
        let error = |line: &[&str]| read(line).discovery().expect_err("refused").to_string();
        assert!(error(&[]).contains("HOST:PORT"));
        assert!(error(&["127.0.0.1:1"]).contains("--token is required; hint: `karmada token create`"));
        let token = ["127.0.0.1:1", "--token", "abcdef.0123456789abcdef"];
        assert!(error(&token).contains("--discovery-token-unsafe-skip-ca-verification=true"));
        let bad = ["127.0.0.1:1", "--token", "abc", "--discovery-token-unsafe-skip-ca-verification"];
        assert!(error(&bad).contains("is not a bootstrap token"));
        let hash = [&token[..], &["--discovery-token-ca-cert-hash", "md5:12"]].concat();
        assert!(error(&hash).contains("sha256:"), "{}", error(&hash));
        let good = [&token[..], &["--discovery-token-unsafe-skip-ca-verification"]].concat();
        assert!(read(&good).discovery().is_ok());
    }

    #[test]
    fn an_agent_that_runs_here_is_told_which_cluster_it_looks_after() {
        let home = tempfile::tempdir().expect("a directory");
        let home = home.path().canonicalize().expect("a directory");
        let flags = |line: &[&str]| {
            // Without the variable KUBECONFIG of the user who runs the tests.
            let mut arguments = read(&[&["h:1"][..], line].concat());
            arguments.kubeconfig =
                arguments.kubeconfig.filter(|_| line.iter().any(|word| word.starts_with("--kubeconfig")));
            let all = flags_here(&arguments, "m1", "https://m1", Path::new("/k"), Some(home.clone()));
            let about = |flag: &&String| flag.starts_with("--kubeconfig=") || flag.starts_with("--context=");
            all.iter().filter(about).cloned().collect::<Vec<_>>()
        };
        assert!(flags(&["--context=m1"]).is_empty(), "the account of the pod");
        let usual = home.join(".kube/config");
        std::fs::create_dir(home.join(".kube")).expect("a directory");
        std::fs::write(&usual, "").expect("a file");
        let usual = format!("--kubeconfig={}", usual.display());
        assert_eq!(flags(&[]), [usual.as_str()]);
        assert_eq!(flags(&["--context=m1"]), [usual.as_str(), "--context=m1"]);
        let given = ["--kubeconfig=/no/such/file", "--context=m1"];
        assert_eq!(flags(&given), given);
    }

    #[test]
    fn what_an_earlier_registration_left_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("agent.kubeconfig");
        let place = format!("--agent-kubeconfig={}", file.display());
        let arguments = read(&["h:1", "--run", &place]);
        let found =
            |url: &str| Discovered { url: url.to_owned(), authority: Vec::new(), token: String::new() };
        let pair = |text: &str| Pair { certificate: text.to_owned(), key: String::new() };
        let old = found("https://h:1").kubeconfig("m1", &pair("old"));
        let new = found("https://h:1").kubeconfig("m1", &pair("new"));
        for (what, there, replaced) in [
            ("nothing", None, true),
            ("its own", Some(old), true),
            ("that of another cluster", Some(found("https://h:1").kubeconfig("m2", &pair("old"))), false),
            (
                "that of another control plane",
                Some(found("https://h:2").kubeconfig("m1", &pair("old"))),
                false,
            ),
            ("something else", Some("no kubeconfig".to_owned()), false),
        ] {
            let _ = std::fs::remove_file(&file);
            if let Some(text) = &there {
                std::fs::write(&file, text).expect("a file");
            }
            assert_eq!(keep_here(&arguments, "m1", "https://h:1", &new).is_ok(), replaced, "{what}");
            let kept = std::fs::read_to_string(&file).expect("a file");
            assert_eq!(Some(&kept), if replaced { Some(&new) } else { there.as_ref() }, "{what}");
        }
    }

    #[test]
    fn a_control_plane_that_does_not_answer_is_told_with_a_remedy() {
        let nobody = kube::Error::Service(std::io::Error::other("nobody is there").into());
        let error = anyhow::Error::from(nobody).context("cannot ask for a certificate");
        let error = format!("{:#}", explain_token(error, "https://h:1"));
        assert!(
            error.starts_with("cannot reach the control plane at https://h:1; hint: check address"),
            "{error}"
        );
    }

    #[test]
    fn the_definitions_that_would_be_installed_are_printed() {
        let defined = |line: &[&str]| -> Vec<String> {
            let objects = printed(&read(line), "m1", "https://m1");
            assert!(objects.iter().any(|object| object["kind"] == "Deployment"), "the agent is there");
            let defined = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
            defined.filter_map(|object| object["spec"]["names"]["kind"].as_str().map(str::to_owned)).collect()
        };
        assert_eq!(defined(&["h:1", "--print"]), [""; 0]);
        let mut kinds = defined(&["h:1", "--print", "--install-mcs-crds"]);
        kinds.sort();
        assert_eq!(kinds, ["ServiceExport", "ServiceImport"]);
    }

    #[test]
    fn a_unit_runs_the_agent() {
        let arguments = read(&["h:1", "--cluster-region", "here", "--feature-gates", "A=true"]);
        let flags = arguments.agent_flags("m1", "https://m1", "/k");
        let unit = unit("m1", Path::new("/bin/karmada"), &flags);
        assert!(
            unit.contains("ExecStart=/bin/karmada \\\n    'agent' \\\n    '--karmada-kubeconfig=/k' \\\n"),
            "{unit}"
        );
        assert!(unit.contains("'--feature-gates=A=true'"), "{unit}");
        assert!(unit.contains("'--cluster-region=here'") && unit.contains("'--controllers=*,certRotation'"));
        let odd = super::unit("m1", Path::new("/bin/karmada"), &[r"--a=p%40s$s'\".to_owned()]);
        assert!(odd.contains(r"    '--a=p%%40s$$s\'\\'"), "{odd}");
    }
}
