//! `karmada sim`: simulated member clusters, and trouble for them.

mod day;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::sim::{self as sim, Answer, Load, Options, Request, Trouble, Troubles};
use anyhow::{Context, bail};
use apimachinery::duration;
use clap::{Args, Subcommand};

use crate::signals::Signals;

/// Run simulated member clusters, or make trouble for those that run.
///
/// Every cluster is an API server with nodes and controllers that behave like a cluster; no container is started.
/// DIR/member1.kubeconfig, DIR/member2.kubeconfig, … are for the administrator. Ctrl-C ends them all.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Args)]
struct Run {
    /// Where kubeconfigs, keys and the control socket are kept; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "karmada-sim", env = "KARMADA_SIM_DIR")]
    data_dir: PathBuf,
    /// How many clusters.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    clusters: u16,
    /// How many nodes each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(0..=5000))]
    nodes: u16,
    /// Give nodes and pods an IPv6 address besides their IPv4 address; Services get both if they ask for it.
    #[arg(long)]
    dual_stack: bool,
    /// Address to serve on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// Port of the first cluster, the others follow; 0 picks free ones.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Keep objects in the data directory, so that the next start finds them again.
    #[arg(long)]
    persist: bool,
    /// How long pods take to become ready, at least; twice this at most.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration::parse)]
    pod_start: Duration,
    /// How long pods of Jobs run.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration::parse)]
    job_work: Duration,
    /// Trouble from the start: `member1:api-down`, `member1:slow=200ms`, `member1:node=node1`,
    /// `member1:pods-failing=app=web`. May be repeated.
    #[arg(long = "trouble", value_name = "MEMBER:TROUBLE", value_parser = trouble)]
    troubles: Vec<(String, Trouble)>,
    /// File with trouble from the start: by member, `api-down: true`, `slow-ms: 200`, `nodes: [node1]`,
    /// `pods-failing: ["app=web"]`, as JSON or YAML.
    #[arg(long, value_name = "FILE")]
    trouble_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Break something in a running cluster.
    Break(Target),
    /// Mend what was broken; without flags everything.
    Heal(Target),
    /// Put pods under load, for autoscalers and metrics.
    Load(LoadTarget),
    Day(day::Arguments),
    /// Show the clusters and what is wrong with them.
    Status(Place),
}

#[derive(Debug, Args)]
struct Place {
    /// The data directory of the running clusters.
    #[arg(long, value_name = "DIR", default_value = "karmada-sim", env = "KARMADA_SIM_DIR")]
    data_dir: PathBuf,
}

#[derive(Debug, Args)]
struct Target {
    /// The cluster.
    #[arg(value_name = "MEMBER")]
    member: String,
    /// Nobody reaches the API server.
    #[arg(long)]
    api_down: bool,
    /// A node vanishes. May be repeated.
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Every request waits this long.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, num_args = 0..=1, default_missing_value = "0ms")]
    slow: Option<Duration>,
    /// Pods with these labels crash. May be repeated.
    #[arg(long, value_name = "SELECTOR")]
    pods_failing: Vec<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct LoadTarget {
    /// The cluster.
    #[arg(value_name = "MEMBER")]
    member: String,
    /// Pods with these labels; all if left out.
    #[arg(long, short = 'l', value_name = "SELECTOR", default_value = "")]
    selector: String,
    /// CPU of these pods together, in thousandths of a core.
    #[arg(long, value_name = "N", default_value_t = 0)]
    milli_cpu: u64,
    /// Memory of these pods together, in MiB.
    #[arg(long, value_name = "N", default_value_t = 0)]
    memory_mib: u64,
    #[command(flatten)]
    place: Place,
}

impl Target {
    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        if self.api_down {
            troubles.push(Trouble::ApiDown);
        }
        troubles.extend(self.slow.map(|delay| Trouble::Slow(milliseconds(delay))));
        troubles.extend(self.nodes.iter().cloned().map(Trouble::Node));
        troubles.extend(self.pods_failing.iter().cloned().map(Trouble::PodsFailing));
        troubles
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        None => simulate(arguments.run).await,
        Some(Command::Day(arguments)) => day::run(&arguments),
        Some(Command::Break(target)) => {
            let troubles = target.troubles();
            if troubles.is_empty() {
                bail!(
                    "say what to break: --api-down, --node NAME, --slow DURATION or --pods-failing SELECTOR"
                );
            }
            ask(&target.place, Request::Break { member: target.member, troubles }).await
        }
        Some(Command::Heal(target)) => {
            let troubles = target.troubles();
            ask(&target.place, Request::Heal { member: target.member, troubles }).await
        }
        Some(Command::Load(target)) => {
            let LoadTarget { member, selector, milli_cpu, memory_mib, place } = target;
            ask(&place, Request::Load { member, load: Load { selector, milli_cpu, memory_mib } }).await
        }
        Some(Command::Status(place)) => ask(&place, Request::Status).await,
    }
}

async fn ask(place: &Place, request: Request) -> anyhow::Result<()> {
    let answer = sim::ask(&place.data_dir, &request).await.with_context(|| {
        format!(
            "no simulated clusters run on {}; --data-dir names the directory that `karmada sim` was given",
            place.data_dir.display()
        )
    })?;
    match answer {
        Answer::Done => Ok(()),
        Answer::Failed(why) => bail!("{why}"),
        Answer::Status(members) => {
            for (name, url, troubles) in members {
                println!("{name:<16} {url:<32} {}", describe(&troubles));
            }
            Ok(())
        }
    }
}

fn describe(troubles: &Troubles) -> String {
    let mut words = Vec::new();
    if troubles.api_down {
        words.push("api-down".to_owned());
    }
    if troubles.slow_ms > 0 {
        words.push(format!("slow={}ms", troubles.slow_ms));
    }
    words.extend(troubles.nodes.iter().map(|node| format!("node={node}")));
    words.extend(troubles.pods_failing.iter().map(|selector| format!("pods-failing={selector}")));
    if words.is_empty() { "well".to_owned() } else { words.join(" ") }
}

async fn simulate(arguments: Run) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut options = Options::new(usize::from(arguments.clusters), usize::from(arguments.nodes));
    options.data_dir = Some(arguments.data_dir.clone());
    options.members.iter_mut().for_each(|member| member.dual_stack = arguments.dual_stack);
    options.persist = arguments.persist;
    options.bind = arguments.bind;
    options.port = arguments.port;
    options.delays.start = arguments.pod_start;
    options.delays.work = arguments.job_work;
    options.troubles = arguments.troubles;
    if let Some(file) = &arguments.trouble_file {
        options.troubles.extend(read(file)?);
    }
    let signals = Signals::listen()?;
    let fleet = sim::start(options).await.context("cannot start the simulated clusters")?;
    for member in fleet.members() {
        let kubeconfig = member.kubeconfig_path.as_deref().unwrap_or(Path::new("")).display().to_string();
        tracing::debug!(member = member.name, url = member.url, kubeconfig, "ready");
    }
    tracing::info!(
        clusters = arguments.clusters,
        nodes = arguments.nodes,
        data_dir = %arguments.data_dir.display(),
        milliseconds = started.elapsed().as_millis(),
        "ready"
    );
    signals.run(fleet.stop()).await;
    Ok(())
}

/// Reads a file with trouble for each member.
fn read(file: &Path) -> anyhow::Result<Vec<(String, Trouble)>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let members: BTreeMap<String, Troubles> = apimachinery::yaml::from_str(&text)
        .with_context(|| format!("cannot understand {}", file.display()))?;
    let mut troubles = Vec::new();
    for (member, wrong) in members {
        let mut add = |trouble| troubles.push((member.clone(), trouble));
        if wrong.api_down {
            add(Trouble::ApiDown);
        }
        if wrong.slow_ms > 0 {
            add(Trouble::Slow(wrong.slow_ms));
        }
        wrong.nodes.into_iter().map(Trouble::Node).for_each(&mut add);
        wrong.pods_failing.into_iter().map(Trouble::PodsFailing).for_each(&mut add);
    }
    Ok(troubles)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Parses `member1:api-down`, `member1:slow=200ms`, `member1:node=node1`, `member1:pods-failing=app=web`.
fn trouble(text: &str) -> Result<(String, Trouble), String> {
    let (member, what) =
        text.split_once(':').ok_or_else(|| format!("{text:?} has no `:` behind the member"))?;
    let trouble = match what.split_once('=').unwrap_or((what, "")) {
        ("api-down", "") => Trouble::ApiDown,
        ("slow", delay) => Trouble::Slow(milliseconds(duration::parse(delay)?)),
        ("node", node) if !node.is_empty() => Trouble::Node(node.to_owned()),
        ("pods-failing", selector) if !selector.is_empty() => Trouble::PodsFailing(selector.to_owned()),
        _ => return Err(format!("{what:?} is not a kind of trouble; see --help")),
    };
    Ok((member.to_owned(), trouble))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_read_from_flags() {
        assert_eq!(trouble("m1:api-down"), Ok(("m1".to_owned(), Trouble::ApiDown)));
        assert_eq!(trouble("m1:slow=1.5s"), Ok(("m1".to_owned(), Trouble::Slow(1500))));
        assert_eq!(
            trouble("m1:pods-failing=app=web"),
            Ok(("m1".to_owned(), Trouble::PodsFailing("app=web".to_owned())))
        );
        for wrong in ["api-down", "m1:", "m1:node=", "m1:slow=fast", "m1:explode"] {
            assert!(trouble(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn troubles_are_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "member1: {api-down: true}\nmember2:\n  nodes: [node1]\n")
            .expect("written");
        assert_eq!(
            read(file.path()).expect("understood"),
            [
                ("member1".to_owned(), Trouble::ApiDown),
                ("member2".to_owned(), Trouble::Node("node1".to_owned()))
            ]
        );
    }
}
