//! `karmada up`: a control plane, three simulated members and a sample application in one process, for the first five minutes and
//! for rehearsals.
//!
//! Everything is in one directory, and the next start continues from there. The user's own kubeconfig is neither read nor
//! written; real members are read from the files that `--members` names.

mod agents;
mod directory;
mod kubeconfig;
mod members;
mod picture;
mod sample;
mod screen;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use controllers::Selection;
use tokio::sync::watch;

use self::directory::{Directory, LOG, Memory};
use self::kubeconfig::combine;
use self::members::Members;
use self::picture::Picture;
use self::screen::{Below, Screen};
use crate::controllers::Chosen;
use crate::plane::{Plane, SEARCH_CACHE, Setup};
use crate::signals::Signals;

/// Start a control plane with three simulated clusters and a sample application, and show what runs where.
///
/// Everything is kept in the data directory; the next start goes on from there. Ctrl-C ends it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Where everything is kept; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "karmada-data", env = "KARMADA_DATA_DIR")]
    data_dir: PathBuf,
    /// Forget what an earlier start left in the data directory, and start over.
    #[arg(long)]
    fresh: bool,
    /// Kubeconfigs of real clusters to use instead of simulated ones; the current context of each. They stay joined.
    #[arg(long, value_name = "KUBECONFIG", value_delimiter = ',')]
    members: Vec<PathBuf>,
    /// How many nodes each simulated cluster has; 3 if nothing is said.
    #[arg(long, value_name = "N", conflicts_with = "members", value_parser = clap::value_parser!(u16).range(1..=1000))]
    nodes: Option<u16>,
    /// Address and port of the control plane; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5443")]
    bind: SocketAddr,
    /// How many of the simulated clusters are in pull mode, the last ones: an agent beside each looks after it.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "members", value_parser = clap::value_parser!(u8).range(0..=3))]
    pull: u8,
    /// Leave the sample application out.
    #[arg(long)]
    no_sample: bool,
    /// Move workloads away from clusters that fail, within seconds; see the guide to failover.
    #[arg(long)]
    failover: bool,
    /// Features to switch on or off, as `karmada server --feature-gates`.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    feature_gates: String,
    /// Controllers that run, as `karmada server --controllers`.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true, value_parser = Selection::parse)]
    controllers: Selection,
}

/// The settings of `--failover`: the flags that a server needs for it, and thresholds for a rehearsal.
const FAILOVER: [&str; 6] = [
    "--feature-gates=Failover=true,StatefulFailoverInjection=true",
    "--enable-no-execute-taint-eviction",
    "--cluster-status-update-frequency=2s",
    "--cluster-success-threshold=4s",
    "--cluster-failure-threshold=4s",
    "--cluster-monitor-period=2s",
];

/// How long a start waits for members or pods before it continues without them: real clusters may be slow or away.
const PATIENCE: Duration = Duration::from_secs(60);
/// The minimum time between two drawings of the table: faster than people read, slow enough not to flicker.
const FRAME: Duration = Duration::from_millis(50);

pub(crate) async fn run(arguments: Arguments, log: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut screen = Screen::new();
    let shown = arguments.data_dir.display().to_string();
    screen.line(&format!("karmada {}: starting, everything is kept in {shown}", env!("CARGO_PKG_VERSION")));
    let asked = asked(&arguments)?;
    let directory = Directory::open(&arguments.data_dir, arguments.fresh)?;
    write_log(&directory, log)?;
    let mut signals = Signals::listen()?;
    let mut running = Running::default();
    let outcome = tokio::select! {
        outcome = live(&arguments, asked, &directory, &mut running, &mut screen, started) => outcome,
        _ = signals.next() => {
            screen.keep();
            screen.line("\nstopping");
            Ok(())
        }
    };
    signals.end(running.stop()).await;
    if outcome.is_ok() {
        let command = Command::new(&arguments.data_dir);
        screen.line(&format!("stopped; `{} up{}` goes on from here", command.program, command.data_dir));
    }
    outcome
}

/// Starts everything and shows it until it is stopped.
async fn live(
    arguments: &Arguments,
    asked: Option<Members>,
    directory: &Directory,
    running: &mut Running,
    screen: &mut Screen,
    started: Instant,
) -> anyhow::Result<()> {
    let mut memory = plan(arguments, asked.as_ref(), directory)?;
    let real = match memory.members.as_slice() {
        [] => None,
        remembered => Some(asked.map_or_else(|| Members::real(remembered), Ok)?),
    };
    directory.remember(&memory)?;
    let nodes = memory.nodes;
    let start_members = async {
        match real {
            Some(members) => Ok(members),
            None => Members::simulate(directory, nodes).await,
        }
    };
    let (plane, members) = tokio::join!(start_plane(arguments), start_members);
    // Whatever did start is shut down in order, even if the other part did not.
    let plane = plane.map(|plane| running.plane.insert(plane));
    let members = members.inspect(|members| running.fleet = members.fleet.clone());
    let (plane, members) = (plane?, members?);
    screen.step("control plane", &plane.url, started.elapsed());

    let entries: Vec<_> = members.list.iter().map(|member| member.entry.clone()).collect();
    let control = std::fs::read_to_string(&plane.kubeconfig).context("cannot read our own kubeconfig")?;
    directory.write("karmada.kubeconfig", combine(&control, &entries)?.as_bytes())?;
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let kind = if members.fleet.is_some() { "simulated" } else { "real" };
    screen.step("members", &format!("{}, {kind}", names.join(", ")), started.elapsed());

    let pulled = agents::chosen(directory, &names, arguments.pull);
    for member in members.list.iter().filter(|member| pulled.contains(&member.entry.name)) {
        running.agents.push(agents::start(plane, directory, member, &arguments.feature_gates).await?);
    }
    members.join(&plane.client, &plane.kubeconfig, &pulled).await?;
    screen.step("joined", &format!("{} clusters", names.len()), started.elapsed());

    let mut pictures = picture::follow(&plane.client);
    let mut complete = until(&mut pictures, screen, |picture| picture.fleet_is_ready(names.len())).await?;
    if !complete {
        screen.line("  not all clusters are ready; going on with those that are");
    }
    if !memory.fleet {
        sample::register(&plane.client).await?;
        memory.fleet = true;
        directory.remember(&memory)?;
    }
    if !arguments.no_sample && !memory.sample {
        sample::create(&plane.client).await?;
        memory.sample = true;
        directory.remember(&memory)?;
    }
    // It may have been deleted since an earlier start. This asks the server rather than the picture, which gets new objects a
    // moment later.
    if memory.sample && sample::exists(&plane.client).await? {
        complete &= until(&mut pictures, screen, Picture::sample_is_ready).await?;
    }
    let first = if complete {
        format!("# All of it runs after {:.1} s.", started.elapsed().as_secs_f64())
    } else {
        "# Not all of it runs yet; the table goes on.".to_owned()
    };
    let below = Below(farewell(&arguments.data_dir, &members, memory.sample, &first));
    let now = pictures.borrow_and_update().clone();
    screen.show_all(&now, &below);
    loop {
        tokio::select! {
            changed = pictures.changed() => changed.context("the control plane has ended")?,
            failure = plane.failure() => return Err(failure),
        }
        let now = pictures.borrow_and_update().clone();
        screen.show(&now, &below);
        tokio::time::sleep(FRAME).await;
    }
}

/// Reads the requested real members before anything is created, deleted or recorded: an unusable kubeconfig leaves everything
/// unchanged.
fn asked(arguments: &Arguments) -> anyhow::Result<Option<Members>> {
    if arguments.members.is_empty() {
        return Ok(None);
    }
    let paths = arguments
        .members
        .iter()
        .map(|path| std::path::absolute(path).with_context(|| format!("{} is not a path", path.display())))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Members::real(&paths).map(Some)
}

/// Decides what to start, from the flags and the recorded state.
fn plan(arguments: &Arguments, asked: Option<&Members>, directory: &Directory) -> anyhow::Result<Memory> {
    let asked: Vec<PathBuf> = asked.map(Members::kubeconfigs).unwrap_or_default();
    let Some(mut memory) = directory.recall()? else {
        return Ok(Memory {
            members: asked,
            nodes: arguments.nodes.unwrap_or(3),
            sample: false,
            fleet: false,
        });
    };
    if !asked.is_empty() {
        if memory.members.is_empty() {
            bail!(
                "{} holds simulated clusters, which --members would leave behind; hint: --fresh, or another --data-dir",
                directory.path.display()
            );
        }
        memory.members = asked;
    }
    if let Some(nodes) = arguments.nodes {
        memory.nodes = nodes;
    }
    Ok(memory)
}

async fn start_plane(arguments: &Arguments) -> anyhow::Result<Plane> {
    let chosen = if arguments.failover { Chosen::by(&FAILOVER) } else { Chosen::default() };
    let chosen =
        chosen.with_features(&arguments.feature_gates).with_controllers(arguments.controllers.clone());
    let setup = Setup {
        server: apiserver::Options {
            data_dir: Some(arguments.data_dir.clone()),
            bind: arguments.bind,
            ..apiserver::Options::default()
        },
        rules: admission::Settings {
            features: chosen.features()?,
            allow_no_execute_taint_policy: arguments.failover,
        },
        chosen,
        search_cache_bytes: SEARCH_CACHE,
        oldest_tls: member::OldestTls::V1_3,
    };
    Plane::start(setup).await.map_err(|error| {
        let in_use = matches!(error.downcast_ref(), Some(apiserver::Error::Listen(error))
            if error.kind() == std::io::ErrorKind::AddrInUse);
        if in_use {
            anyhow::anyhow!(
                "another program listens on {}; hint: --bind 127.0.0.1:0 picks a free port",
                arguments.bind
            )
        } else {
            error
        }
    })
}

/// Shows pictures until one satisfies the condition. Returns false if that takes too long.
async fn until(
    pictures: &mut watch::Receiver<Picture>,
    screen: &mut Screen,
    wanted: impl Fn(&Picture) -> bool,
) -> anyhow::Result<bool> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let now = pictures.borrow_and_update().clone();
        screen.show(&now, &Below::default());
        if wanted(&now) {
            return Ok(true);
        }
        tokio::select! {
            changed = pictures.changed() => changed.context("the control plane has ended")?,
            () = tokio::time::sleep_until(deadline) => return Ok(false),
        }
        tokio::time::sleep(FRAME).await;
    }
}

/// The commands to try next.
fn farewell(data_dir: &Path, members: &Members, sample: bool, first: &str) -> Vec<String> {
    let Command { program, data_dir: at } = Command::new(data_dir);
    let kubeconfig = quote(&data_dir.join("karmada.kubeconfig"));
    let name_of = |index: usize| members.list.get(index).map(|member| member.entry.name.as_str());
    let one = name_of(0).unwrap_or_default();
    let other = name_of(1).unwrap_or(one);
    let name = sample::NAME;
    let mut tries: Vec<(&str, Vec<String>)> = Vec::new();
    if sample {
        tries.push((
            "Look at the application here, and at its pods in one cluster",
            vec![format!("kubectl get deployment {name}; kubectl --context {one} get pods")],
        ));
        tries.push((
            "Look at the pods of all clusters as if they were one",
            vec![format!("kubectl --context {} get pods -A", kubeconfig::FLEET)],
        ));
        tries.push((
            "Scale it, and see every cluster get its part",
            vec![format!("kubectl scale deployment {name} --replicas=12")],
        ));
    } else {
        tries.push(("Look at the clusters", vec!["kubectl get clusters".to_owned()]));
        tries.push(("Look into one of them", vec![format!("kubectl --context {one} get nodes")]));
    }
    if members.fleet.is_some() {
        let (what, harm) = if sample {
            ("Let its pods crash in one cluster, and heal it", format!("--pods-failing app={name}"))
        } else {
            ("Lose a node, and heal it", "--node node1".to_owned())
        };
        let commands = vec![
            format!("{program} sim break {other} {harm}{at}"),
            format!("{program} sim heal {other}{at}"),
        ];
        tries.push((what, commands));
    } else {
        tries.push((
            "Take a cluster out, with what was sent there",
            vec![format!("{program} unjoin {one} --kubeconfig {kubeconfig}")],
        ));
    }
    let mut lines = vec![
        String::new(),
        format!("{first} Try, in another terminal:"),
        String::new(),
        format!("  export KUBECONFIG={kubeconfig}"),
    ];
    for (index, (what, commands)) in tries.into_iter().enumerate() {
        lines.push(format!("  {}. {what}", index + 1));
        lines.extend(commands.into_iter().map(|command| format!("     {command}")));
    }
    lines.extend([String::new(), "Ctrl-C ends it; the next start goes on from here.".to_owned()]);
    if members.fleet.is_none() {
        lines.push("The clusters stay joined, and what runs in them goes on running.".to_owned());
    }
    lines
}

/// The command line of this program, for copying.
struct Command {
    program: String,
    /// ` --data-dir DIR`.
    data_dir: String,
}

impl Command {
    fn new(data_dir: &Path) -> Self {
        let program =
            std::env::args_os().next().map_or_else(|| "karmada".to_owned(), |path| quote(Path::new(&path)));
        Self { program, data_dir: format!(" --data-dir {}", quote(data_dir)) }
    }
}

/// Quotes a path for a shell, if necessary.
fn quote(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Everything that must be stopped.
#[derive(Default)]
struct Running {
    /// Separate processes; they end with this one.
    agents: Vec<agents::Agent>,
    plane: Option<Plane>,
    fleet: Option<sim::Fleet>,
}

impl Running {
    /// The agents first, then the control plane: it is a client of the members.
    async fn stop(self) {
        for agent in self.agents {
            agent.stop().await;
        }
        if let Some(plane) = self.plane {
            plane.stop().await;
        }
        if let Some(fleet) = self.fleet {
            fleet.stop().await;
        }
    }
}

/// The screen shows the picture; the log goes into a file of this run.
fn write_log(directory: &Directory, filter: &str) -> anyhow::Result<()> {
    directory.write(LOG, b"")?;
    let path = directory.path.join(LOG);
    let file = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    crate::logging(filter, Mutex::new(file), crate::Colours::Never)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quote(Path::new("target/release/karmada")), "target/release/karmada");
        assert_eq!(quote(Path::new("my data")), "'my data'");
        assert_eq!(quote(Path::new("it's")), "'it'\\''s'");
    }
}
