//! The `karmada` binary: reads arguments, sets up logging, runs a role.

mod access;
mod agent;
mod agents;
mod aggregated;
mod autoscaling;
mod backup;
mod chart;
mod cluster_api;
mod cluster_proxy;
mod controllers;
mod crds;
mod detector;
mod environment;
mod estimator;
mod etcd;
mod extension;
mod failover;
mod fleet;
mod fleet_metrics;
mod licenses;
mod memory;
mod migrate;
mod observability;
#[cfg(test)]
mod pages;
mod peers;
mod plane;
mod plugin;
mod roles;
mod scheduling;
mod server;
mod shares;
mod signals;
mod sim;
mod tunnels;
mod unneeded;
mod up;
mod webhook;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

// Many small long-lived allocations: the default allocator keeps about twice as much memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Manages many Kubernetes clusters as one.
#[derive(Debug, Parser)]
// If a flag is given twice, the last one counts, as in Go's programs.
#[command(name = "karmada", version, propagate_version = true, args_override_self = true)]
struct Arguments {
    /// What to log to stderr: error, warn, info, debug, trace, or a filter such as `apiserver=debug`.
    #[arg(long, global = true, env = "KARMADA_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// Print the terms of this program and of everything inside of it, and end.
    #[arg(long, exclusive = true)]
    licenses: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Arguments),
    Server(Box<server::Arguments>),
    Controllers(Box<controllers::Arguments>),
    Agent(Box<agent::Arguments>),
    Sim(sim::Arguments),
    Webhook(webhook::Arguments),
    Aggregated(Box<aggregated::Arguments>),
    Estimator(Box<estimator::Arguments>),
    Detector(Box<detector::Arguments>),
    Backup(backup::Arguments),
    Migrate(Box<migrate::Arguments>),
    Crds(crds::Arguments),
    #[command(flatten)]
    Cli(cli::Command),
}

fn main() -> ExitCode {
    memory::keep_little();
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_stem().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    if matches!(name, "karmadactl" | "kubectl-karmada") {
        return cli::alone(name, std::env::args_os());
    }
    let root = command();
    let is_agent = name == "karmada-agent";
    let words =
        if is_agent { as_agent(std::env::args_os().collect()) } else { std::env::args_os().collect() };
    let words = cli::normalize(words.into_iter(), &root);
    let parsed = root.clone().try_get_matches_from(&words);
    let arguments = match parsed.and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches)) {
        Ok(arguments) => arguments,
        // The CLI's commands, and unknown ones, report errors in the same way under all names; the roles use the parser's words.
        Err(error)
            if error.kind() == clap::error::ErrorKind::InvalidSubcommand
                || words.get(1).and_then(|word| word.to_str()).is_some_and(cli::is_command) =>
        {
            return cli::refuse(&error, &root, &words, "karmada");
        }
        Err(error) => error.exit(),
    };
    // Roles run for long, and do not need the description of all commands.
    drop((root, words));
    let Some(command) = arguments.command else {
        if arguments.licenses {
            return licenses::print();
        }
        let wanted = "a command is needed; `karmada --help` lists them";
        Arguments::command().error(clap::error::ErrorKind::MissingSubcommand, wanted).exit()
    };
    // `up` controls the screen: its log is a file in its directory.
    let to_stderr = !matches!(command, Command::Up(_));
    // Commands report their own errors; the client's messages would repeat them.
    let quiet = matches!(command, Command::Cli(_)) && arguments.log == "info";
    let filter = if quiet { "info,kube_client=off" } else { arguments.log.as_str() };
    if to_stderr && let Err(error) = logging(filter, std::io::stderr, Colours::Allowed) {
        eprintln!("error: {error:#}");
        return ExitCode::from(2);
    }
    // One provider for all TLS in this process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let executor = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(executor) => executor,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = executor.block_on(async {
        match command {
            Command::Up(up) => up::run(up, &arguments.log).await,
            Command::Server(arguments) => server::run(*arguments).await,
            Command::Controllers(arguments) => controllers::run(*arguments).await,
            Command::Agent(arguments) => agent::run(*arguments).await,
            Command::Sim(arguments) => sim::run(arguments).await,
            Command::Webhook(arguments) => webhook::run(arguments).await,
            Command::Aggregated(arguments) => aggregated::run(*arguments).await,
            Command::Estimator(arguments) => estimator::run(*arguments).await,
            Command::Detector(arguments) => detector::run(*arguments).await,
            Command::Backup(arguments) => backup::run(arguments).await,
            Command::Migrate(arguments) => migrate::run(*arguments).await,
            Command::Crds(arguments) => crds::run(arguments),
            Command::Cli(command) => {
                cli::run(command, if is_agent { "karmada-agent" } else { "karmada" }).await
            }
        }
    });
    // Tasks that ended in time are gone by now; the others are not waited for.
    executor.shutdown_timeout(std::time::Duration::from_secs(1));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (text, status) = cli::told(&error);
            if !text.is_empty() {
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            ExitCode::from(status)
        }
    }
}

/// Returns the arguments for the name that Karmada's own manifests call: with our image they run our agent. Its only command
/// prints its version.
fn as_agent(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| word != "version") {
        words.insert(words.len().min(1), "agent".into());
    }
    words
}

/// The program's commands; their examples call it by this name.
fn command() -> clap::Command {
    cli::renamed(Arguments::command(), "karmada")
}

/// Whether log output may be coloured, if the environment does not say otherwise.
enum Colours {
    Allowed,
    Never,
}

/// Returns the log filter. It always excludes the client library's messages about unreadable answers: they contain the whole
/// answer, which may be as large as a member likes and contain any secrets.
fn log_filter(wanted: &str) -> anyhow::Result<tracing_subscriber::EnvFilter> {
    let filter = tracing_subscriber::EnvFilter::try_new(wanted)
        .map_err(|error| anyhow::anyhow!("--log {wanted:?} is not a log filter: {error}"))?;
    Ok(filter.add_directive("kube_client::client=off".parse()?))
}

fn logging<W>(filter: &str, writer: W, colours: Colours) -> anyhow::Result<()>
where
    W: for<'a> tracing_subscriber::fmt::MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = log_filter(filter)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    match colours {
        Colours::Allowed => log.init(),
        Colours::Never => log.with_ansi(false).init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn karmadas_name_for_the_agent_runs_it_or_tells_its_version() {
        let command = |line: &[&str]| {
            let words = as_agent(line.iter().map(OsString::from).collect());
            let matches = command().try_get_matches_from(words).expect("it is understood");
            Arguments::from_arg_matches(&matches).expect("it is understood").command
        };
        let flags = ["karmada-agent", "--karmada-kubeconfig=k", "--cluster-name=m1"];
        assert!(matches!(command(&flags), Some(Command::Agent(_))));
        let version = command(&["karmada-agent", "version"]);
        assert!(matches!(version, Some(Command::Cli(cli::Command::Version(_)))));
        assert_eq!(as_agent(vec!["karmada-agent".into()]), ["karmada-agent", "agent"]);
    }

    #[test]
    fn answers_that_cannot_be_read_are_not_logged_whatever_is_wanted() {
        for wanted in ["info", "debug", "trace,kube_client=trace"] {
            let filter = log_filter(wanted).expect("a filter").to_string();
            assert!(filter.split(',').any(|directive| directive == "kube_client::client=off"), "{filter}");
        }
        let error = log_filter("=[").expect_err("none").to_string();
        assert!(error.contains("is not a log filter"), "{error}");
    }
}
