//! Starts, shows, troubles and ends clusters from the command line. `cargo xtask clusters …` calls this program.
//!
//! `up` starts a supervisor in the background (this program again, with `supervise`), shows its progress and returns when the clusters are
//! ready. The supervisor owns every process: when it ends, in whatever way, they end.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clusters::{
    Cluster, ClusterOptions, Fleet, FleetOptions, Network, SUPERVISOR_LOG,
    toolchain::{KARMADA, KUBERNETES, MEMBER_RECIPES, POD_PACKAGES, POD_RECIPES, Toolchain},
};

/// Real Kubernetes clusters as plain processes, without containers.
#[derive(Parser)]
#[command(name = "clusters", bin_name = "cargo xtask clusters")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start clusters in the background and wait until they are ready.
    Up(Wanted),
    /// End the clusters and remove their folder.
    Down(Place),
    /// Show what runs, and how to reach it.
    Status(Place),
    /// Show a log: `supervisor`, `etcd`, `member1` (its API server) or `member1/kwok`.
    Logs {
        name: String,
        /// Keep showing what is added.
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Make trouble for a cluster, or end it.
    Trouble {
        cluster: String,
        #[arg(value_enum)]
        kind: Trouble,
        /// Latency for `slow`, in milliseconds per direction.
        #[arg(long, default_value_t = 500)]
        delay_ms: u64,
        /// The pod for `stop-pod`, as NAMESPACE/NAME.
        #[arg(long)]
        pod: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Build the programs without starting anything.
    Build {
        /// Also Karmada's own programs.
        #[arg(long)]
        karmada: bool,
        /// Also what members with real pods need.
        #[arg(long)]
        pods: bool,
    },
    /// Start clusters and stay in the foreground; Ctrl-C ends them.
    Supervise(Wanted),
}

#[derive(Args, Clone)]
struct Place {
    /// Folder of the clusters; by default `run/default` in the cache.
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Wanted {
    /// Number of member clusters: member1, member2, …
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// One member with this name instead.
    #[arg(long, value_name = "NAME", conflicts_with = "members")]
    member: Option<String>,
    /// Where clients reach that member, such as 127.0.0.2:6443.
    #[arg(long, value_name = "IP:PORT", requires = "member")]
    address: Option<SocketAddr>,
    /// Members look as if kind had made them: one node called MEMBER-control-plane, etcd, coredns and kube-proxy in kube-system, and
    /// pods of the image fake/nginx:1.19.0 that never get ready.
    #[arg(long)]
    like_kind: bool,
    /// Nodes per member; a member with real pods has one.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Members run real pods: each has namespaces, a kubelet and a container runtime of its own. Needs root.
    #[arg(long)]
    pods: bool,
    /// An image for real pods, made of a program of this machine, as in docker.io/karmada/karmada-agent=target/debug/karmada.
    #[arg(long = "image", value_name = "NAME=PROGRAM", requires = "pods", value_parser = image)]
    images: Vec<(String, PathBuf)>,
    /// An address of this machine that real pods reach, too; none of the loopback network.
    #[arg(long, value_name = "IP:PORT", requires = "pods")]
    way_out: Option<SocketAddr>,
    /// Also a control plane for Karmada's controllers, called `karmada-apiserver`.
    #[arg(long)]
    control_plane: bool,
    /// Also a bare API server, called `apiserver`.
    #[arg(long)]
    api_server: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, ValueEnum)]
enum Trouble {
    /// Refuse connections.
    CutOff,
    /// Swallow everything without closing connections.
    Blackhole,
    /// Delay every byte.
    Slow,
    /// Undo cut-off, blackhole and slow.
    Heal,
    /// Freeze the API server.
    Pause,
    /// Undo pause.
    Resume,
    /// Kill the API server and keep it down.
    Kill,
    /// Start the API server again.
    Restart,
    /// Serve with an expired certificate.
    ExpireCertificate,
    /// Serve with a good certificate again.
    RenewCertificate,
    /// Start the cluster afresh, without any data.
    RestartEmpty,
    /// Keep the cluster's data as they are now.
    Snapshot,
    /// Start the cluster again with the data that were kept.
    RestartFromSnapshot,
    /// Kill the node's kubelet and keep it down; only with real pods.
    KillKubelet,
    /// Start the kubelet again.
    RestartKubelet,
    /// Kill the processes of a real pod, which `--pod` names; its kubelet starts them again.
    StopPod,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    match verb {
        Verb::Up(wanted) => up(&wanted),
        Verb::Build { karmada, pods } => build(karmada, pods),
        Verb::Logs { name, follow, place } => logs(&place.dir()?, &name, follow),
        Verb::Supervise(wanted) => in_runtime(supervise(wanted)),
        Verb::Down(place) => in_runtime(async move {
            let dir = place.dir()?;
            clusters::end(&dir).await?;
            eprintln!("clusters: down, {} is gone", dir.display());
            Ok(())
        }),
        Verb::Status(place) => in_runtime(async move { status(&place.dir()?).await }),
        Verb::Trouble { cluster, kind, delay_ms, pod, place } => in_runtime(async move {
            let cluster = Fleet::attach(&place.dir()?).await?.cluster(&cluster)?;
            if let Trouble::StopPod = kind {
                let pod = pod.context("say which pod to stop: --pod NAMESPACE/NAME")?;
                let (namespace, name) = pod.split_once('/').unwrap_or(("default", &pod));
                let count = cluster.stop_pod(namespace, name).await?;
                eprintln!("clusters: {count} processes of {namespace}/{name} killed");
                return Ok(());
            }
            kind.make(&cluster, delay_ms).await?;
            Ok(())
        }),
    }
}

fn in_runtime(work: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?
        .block_on(work)
}

fn build(karmada: bool, pods: bool) -> Result<()> {
    let toolchain = Toolchain::from_env()?;
    toolchain.ensure(&MEMBER_RECIPES)?;
    if karmada {
        toolchain.ensure(&[&KARMADA])?;
    }
    if pods {
        toolchain.ensure(&POD_RECIPES)?;
        toolchain.ensure_packages(POD_PACKAGES)?;
    }
    eprintln!("clusters: all programs are in {}", toolchain.root().join("bin").display());
    Ok(())
}

/// Starts the supervisor and shows what it says until the clusters are ready.
fn up(wanted: &Wanted) -> Result<()> {
    // In the foreground, where the user sees the progress of a first build.
    let toolchain = Toolchain::from_env()?;
    if wanted.pods {
        if let Some(what) = clusters::pods_missing() {
            bail!("members with real pods cannot run here: they need {what}");
        }
        toolchain.ensure(&POD_RECIPES)?;
        toolchain.ensure_packages(POD_PACKAGES)?;
    } else {
        toolchain.ensure(&MEMBER_RECIPES)?;
    }
    let dir = wanted.place.dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    if dir.join("state.json").exists()
        && in_runtime(async { Ok(Fleet::attach(&dir).await.map(|_| ())?) }).is_ok()
    {
        bail!("clusters are running in {} already; end them with `cargo xtask clusters down`", dir.display());
    }
    let _ = fs::remove_file(dir.join("state.json")); // of a fleet that died
    let log = dir.join(SUPERVISOR_LOG);
    // The log comes before the lock, by which a folder is known as ours; so an alien folder must be refused here.
    let ours =
        dir.join("lock").exists() || fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none());
    if !ours {
        bail!("{} holds other things; name an empty folder", dir.display());
    }
    fs::write(dir.join("lock"), "").context("cannot write the lock file")?;
    let output = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let also = output.try_clone().context("cannot open the log twice")?;
    let mut supervisor = Command::new(std::env::current_exe().context("cannot find this program")?)
        .arg("supervise")
        .args(wanted.arguments())
        .arg("--dir")
        .arg(&dir)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(also)
        .spawn()
        .context("cannot start the supervisor")?;
    let mut shown = 0;
    loop {
        let ended = supervisor.try_wait().context("cannot watch the supervisor")?;
        let told = show(&log, shown, &mut std::io::stderr());
        if let Some(status) = ended {
            // Killed, it had no time for words; and the log may be gone with the folder.
            bail!(
                "the clusters did not start: their supervisor ended ({status}); logs, if there are any, are in {}",
                dir.display()
            );
        }
        shown = told?;
        if dir.join("state.json").exists() {
            return in_runtime(status(&dir));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Set for a supervisor in the background: it leaves the terminal's session, so that closing the terminal does not end it.
const DETACHED: &str = "KARMADA_RS_DETACHED";

async fn supervise(wanted: Wanted) -> Result<()> {
    if std::env::var_os(DETACHED).is_some() {
        rustix::process::setsid().context("cannot leave the session")?;
    }
    Ok(clusters::supervise(wanted.options()?).await?)
}

async fn status(dir: &Path) -> Result<()> {
    let fleet = Fleet::attach(dir).await?;
    let kubectl = Toolchain::from_env()?.path(&KUBERNETES.program("kubectl"));
    println!("folder   {}", dir.display());
    println!("kubectl  {}", kubectl.display());
    println!("etcd     {} (pid {})", fleet.state().etcd, fleet.state().etcd_pid);
    for cluster in fleet.clusters() {
        let state = cluster.state().await?;
        println!("\n{} ({:?}) {}, network {:?}", state.name, state.flavour, state.server, state.network);
        println!("  kubeconfig  {}", state.kubeconfig.display());
        for component in state.components {
            let pid = component.pid.map_or("stopped".to_string(), |pid| format!("pid {pid}"));
            let paused = if component.paused { ", paused" } else { "" };
            let restarts = if component.restarts > 0 {
                format!(", {} restarts", component.restarts)
            } else {
                String::new()
            };
            println!("  {:<24}{pid}{paused}{restarts}", component.name);
        }
    }
    Ok(())
}

fn logs(dir: &Path, name: &str, follow: bool) -> Result<()> {
    let path = match name.split_once('/') {
        Some((cluster, component)) => dir.join(cluster).join(format!("{component}.log")),
        None if name == "supervisor" => dir.join(SUPERVISOR_LOG),
        None if name == "etcd" => dir.join("etcd/etcd.log"),
        None => dir.join(name).join("kube-apiserver.log"),
    };
    if !path.exists() {
        bail!("there is no log {}", path.display());
    }
    let mut shown = show(&path, 0, &mut std::io::stdout())?;
    while follow && path.exists() {
        thread::sleep(Duration::from_millis(200));
        shown = show(&path, shown, &mut std::io::stdout())?;
    }
    Ok(())
}

/// Writes what `path` holds beyond `from`; returns the new end.
fn show(path: &Path, from: u64, to: &mut dyn Write) -> Result<u64> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    to.write_all(&text)?;
    to.flush()?;
    Ok(from + text.len() as u64)
}

/// Reads the argument of `--image`.
fn image(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, program)| name.contains('/') && !program.is_empty());
    let (name, program) = parts.ok_or("say REGISTRY/NAME=PROGRAM")?;
    let program = std::path::absolute(program).map_err(|error| error.to_string())?;
    Ok((name.to_string(), program))
}

impl Place {
    fn dir(&self) -> Result<PathBuf> {
        match &self.dir {
            Some(dir) => Ok(std::path::absolute(dir)?),
            None => Ok(clusters::default_dir()?),
        }
    }
}

impl Wanted {
    /// Returns the options again, as arguments for the supervisor.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--nodes".to_string(), self.nodes.to_string()];
        match &self.member {
            Some(name) => arguments.extend(["--member".to_string(), name.clone()]),
            None => arguments.extend(["--members".to_string(), self.members.to_string()]),
        }
        if let Some(address) = self.address {
            arguments.extend(["--address".to_string(), address.to_string()]);
        }
        for (name, program) in &self.images {
            arguments.extend(["--image".to_string(), format!("{name}={}", program.display())]);
        }
        if let Some(address) = self.way_out {
            arguments.extend(["--way-out".to_string(), address.to_string()]);
        }
        let switches = [
            (self.pods, "--pods"),
            (self.like_kind, "--like-kind"),
            (self.control_plane, "--control-plane"),
            (self.api_server, "--api-server"),
        ];
        arguments.extend(switches.iter().filter(|(on, _)| *on).map(|(_, name)| name.to_string()));
        arguments
    }

    fn options(&self) -> Result<FleetOptions> {
        let names = match &self.member {
            Some(name) => vec![name.clone()],
            None => (1..=self.members).map(|number| format!("member{number}")).collect(),
        };
        let mut options = FleetOptions::of(names.into_iter().map(|name| {
            let mut member = if self.pods {
                ClusterOptions::pods(name)
            } else {
                ClusterOptions::member(name).nodes(self.nodes)
            };
            member.address = self.address;
            if self.like_kind { member.like_kind() } else { member }
        }));
        if self.control_plane {
            options = options.and(ClusterOptions::control_plane("karmada-apiserver"));
        }
        if self.api_server {
            options = options.and(ClusterOptions::api_server("apiserver"));
        }
        for (name, program) in &self.images {
            options = options.image(name, program);
        }
        if let Some(address) = self.way_out {
            options = options.way_out(address);
        }
        Ok(options.dir(self.place.dir()?))
    }
}

impl Trouble {
    async fn make(self, cluster: &Cluster, delay_ms: u64) -> Result<(), clusters::Error> {
        match self {
            Self::CutOff => cluster.cut_off().await,
            Self::Blackhole => cluster.network(Network::Blackhole).await,
            Self::Slow => cluster.network(Network::Slow { delay_ms }).await,
            Self::Heal => cluster.heal().await,
            Self::Pause => cluster.pause().await,
            Self::Resume => cluster.resume().await,
            Self::Kill => cluster.kill().await,
            Self::Restart => cluster.restart().await,
            Self::ExpireCertificate => cluster.expire_certificate().await,
            Self::RenewCertificate => cluster.renew_certificate().await,
            Self::RestartEmpty => cluster.restart_empty().await,
            Self::Snapshot => cluster.snapshot().await,
            Self::RestartFromSnapshot => cluster.restart_from_snapshot().await,
            Self::KillKubelet => cluster.kill_kubelet().await,
            Self::RestartKubelet => cluster.restart_kubelet().await,
            Self::StopPod => Ok(()), // it needs to know which one
        }
    }
}
