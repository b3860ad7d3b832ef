//! `cargo xtask e2e`: Karmada's own end-to-end suite, unchanged, against our control plane on real members.
//!
//! Builds what is missing (the suite, the official `karmadactl`, the members' programs, our binary), starts members as kind would
//! make them, `karmada server` (`plane`) and what else specs expect to find (`fixtures`), joins the members with the official
//! `karmadactl`, or with ours, which specs then call, too, runs the chosen files of the suite in several processes, and prints
//! what passed, failed and was left out, file by file, with reasons. Clusters that specs make with kind come from `kind`.
//! Everything it starts ends with it. With real pods it runs in a network of its own (`network`), where pods reach the control
//! plane.
//!
//! What specs need, and which are known to fail, is in `specs`; the table in `docs/guides/real-clusters.md` is made from it.

mod fixtures;
mod kind;
mod network;
mod plane;
mod report;
mod specs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use clusters::toolchain::{KARMADA, KARMADA_E2E, Toolchain};

use self::{fixtures::Workshop, network::ForPods, plane::Plane, report::Chosen};
use crate::{
    ci::fleet::{Fleet, Programs},
    clusters::PROGRAM,
    workspace::{Workspace, cargo},
};

/// Propagation, overrides, status collection, namespaces, dependencies, preemption, suspension, rescheduling: the quick part of the
/// suite. The slash in front keeps longer names out.
const PROPAGATION: &[&str] = &[
    "/(cluster)?propagationpolicy_test.go",
    "/clusterresourcebinding_test.go",
    "/lazy_activation_policy_test.go",
    "/preemption_test.go",
    "/dependenciesdistributor_test.go",
    "/migration_and_rollback_test.go",
    "/porting_workloads_test.go",
    "/resource_deletion_protection_test.go",
    "/rescheduling_test.go",
    "/namespace_test.go",
    "/(cluster)?overridepolicy_test.go",
    "/resource_test.go",
];

/// Real pods take processor time, and no spec asks for a third member.
const MEMBERS: [&str; 3] = ["member1", "member2", "member3"];
const MEMBERS_WITH_PODS: usize = 2;

/// The page with the table of all specs.
const PAGE: &str = "docs/guides/real-clusters.md";

/// The program of `testkit` that spreads requests over several servers.
const BALANCER: &str = "balancer";

/// How often the user hears that the suite is still at it.
const NEWS_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files of the suite to run, as regular expressions on their paths; by default all.
    #[arg(long = "file", value_name = "REGEX")]
    files: Vec<String>,
    /// Run only the files about propagation, which takes a few minutes.
    #[arg(long, conflicts_with = "files")]
    propagation: bool,
    /// Specs to run, as a regular expression on their names.
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Also run the specs that are known to fail; many of them wait for seven minutes before they do.
    #[arg(long)]
    known: bool,
    /// Members run real pods. Needs root.
    #[arg(long)]
    pods: bool,
    /// The last member is in pull mode: it is registered with our `register`, and our agent looks after it.
    #[arg(long)]
    pull: bool,
    /// The suite and the members' joining use our program as `karmadactl`, not the official one.
    #[arg(long)]
    our_karmadactl: bool,
    /// The control plane is this many servers on one etcd, behind a balancer that gives each request to the next one.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "pods", value_parser = clap::value_parser!(u8).range(1..=9))]
    servers: u8,
    /// The control plane is a kube-apiserver with `karmada aggregated`, `karmada webhook` and `karmada controllers` beside it.
    #[arg(long, conflicts_with_all = ["pods", "pull", "servers"])]
    existing: bool,
    /// Processes that run specs side by side.
    #[arg(long, value_name = "N", default_value_t = 6)]
    processes: usize,
    /// Run nothing; write the table of all specs into the docs.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    let toolchain = Toolchain::from_env()?;
    let programs = Programs::build_in_background(arguments.pods);
    toolchain.ensure(&[&KARMADA_E2E])?;
    // Beside a run that goes on, if need be.
    let lab = workspace.target.join(if arguments.list { "e2e-list" } else { "e2e" });
    // What an earlier run left would be taken for a control plane with members.
    let _ = fs::remove_dir_all(&lab);
    fs::create_dir_all(lab.join("gopath/bin")).context("cannot make a folder for the run")?;
    // The program that runs it wants the suite's name to end in `.test`.
    let suite = lab.join("base.test");
    fs::copy(toolchain.path(&KARMADA_E2E.program("karmada-suite")), &suite)
        .context("cannot copy the suite")?;
    if arguments.list {
        return report::write_table(&list(&suite, &lab)?, &workspace.root.join(PAGE));
    }
    build(&["--workspace", "--bin", "karmada"])?;
    build(&["--workspace", "--bin", PROGRAM])?;
    if arguments.servers > 1 {
        build(&["--workspace", "--bin", BALANCER])?;
    }
    // Our program is the CLI alone under this name.
    let source = if arguments.our_karmadactl {
        workspace.program("karmada")
    } else {
        toolchain.ensure_program(&KARMADA, "karmadactl")?
    };
    let karmadactl = lab.join("gopath/bin/karmadactl");
    fs::copy(&source, &karmadactl).context("cannot copy karmadactl")?;
    // Each `karmadactl` installs the agent that belongs to it.
    let agent = match arguments.pods {
        true if arguments.our_karmadactl => network::without_symbols(&source, &lab),
        true => toolchain.ensure_program(&KARMADA, "karmada-agent")?,
        false => PathBuf::new(),
    };
    if arguments.pods && !network::inside() {
        programs.wait()?;
        return network::run_inside();
    }
    let for_pods = if arguments.pods { ForPods::with_agent(&agent) } else { ForPods::default() };

    let members = &MEMBERS[..if arguments.pods { MEMBERS_WITH_PODS } else { MEMBERS.len() }];
    let count = members.len().to_string();
    let mut wanted = vec!["--members", &count, "--like-kind"];
    wanted.extend(for_pods.arguments());
    wanted.extend(arguments.existing.then_some("--control-plane"));
    let Some(fleet) = Fleet::of(&workspace, &programs, &wanted)? else {
        bail!("there is no Go toolchain to build the members with");
    };
    let programs = plane::Programs {
        toolchain: &toolchain,
        karmada: &workspace.program("karmada"),
        balancer: &workspace.program(BALANCER),
    };
    let bind = if arguments.pods { network::PLANE } else { plane::LOOPBACK };
    let server = if arguments.existing {
        Plane::on_existing(&programs, &lab, fleet.dir().join("karmada-apiserver.kubeconfig"))?
    } else {
        Plane::start(&programs, &lab, arguments.servers, bind)?
    };
    let workshop = Workshop {
        toolchain: &toolchain,
        lab: &lab,
        kubeconfig: &server.kubeconfig,
        fleet: fleet.dir(),
        members,
    };
    // Before the members join: what they serve is looked at then, and from then on every few seconds only.
    let _interpreter = workshop.interpreter()?;
    let (pushed, pulled) = members.split_at(members.len() - usize::from(arguments.pull));
    let mut agents = Vec::new();
    for member in pulled {
        agents.push(workshop.agent(&workspace.program("karmada"), member)?);
    }
    for member in pushed {
        let kubeconfig = fleet.dir().join(format!("{member}.kubeconfig"));
        let joined = Command::new(&karmadactl)
            .args(["join", member, "--karmada-context", "karmada-apiserver", "--kubeconfig"])
            .arg(&server.kubeconfig)
            .arg("--cluster-kubeconfig")
            .arg(kubeconfig)
            .status()
            .context("cannot run karmadactl")?;
        if !joined.success() {
            bail!("karmadactl could not join {member}");
        }
    }
    let _estimators = workshop.estimators(&workspace.program("karmada"))?;
    // In the fleet's folder, whose path is short: a socket's may have 108 bytes.
    let socket = fleet.dir().join("kind.sock");
    kind::serve(&socket, workspace, for_pods)?;
    let pulled: Vec<String> = pulled
        .iter()
        .map(|member| format!("{member}:{}", fleet.dir().join(format!("{member}.kubeconfig")).display()))
        .collect();
    run_specs(arguments, &toolchain, &lab, &server.kubeconfig, &socket, &pulled.join(";"))?;
    let all = arguments.files.is_empty() && !arguments.propagation;
    let chosen = Chosen { pods: arguments.pods, all };
    report::judge(&report::read(&lab.join("report.json"))?, chosen)
}

fn build(what: &[&str]) -> Result<()> {
    let built = cargo().arg("build").args(what).status().context("cannot run cargo build")?;
    if !built.success() {
        bail!("{} does not compile", what.join(" "));
    }
    Ok(())
}

/// Lets the suite name its specs, which needs no cluster.
fn list(suite: &Path, lab: &Path) -> Result<serde_json::Value> {
    let named = lab.join("specs.json");
    let output = Command::new(suite)
        .arg("--ginkgo.dry-run")
        .arg(format!("--ginkgo.json-report={}", named.display()))
        .current_dir(lab)
        .output()
        .context("cannot run the suite")?;
    if !output.status.success() {
        bail!("the suite cannot name its specs: {}", String::from_utf8_lossy(&output.stdout));
    }
    report::read(&named)
}

/// Runs the suite; whether specs failed is for the report to say.
fn run_specs(
    arguments: &Arguments,
    toolchain: &Toolchain,
    lab: &Path,
    kubeconfig: &Path,
    socket: &Path,
    pulled: &str,
) -> Result<()> {
    let log = lab.join("suite.log");
    let file = fs::File::create(&log).context("cannot make a log")?;
    let mut command = Command::new(toolchain.path(&KARMADA_E2E.program("ginkgo")));
    command
        .args(["-v", "--no-color", "--timeout=6h", "--json-report=report.json"])
        .arg(format!("--procs={}", arguments.processes))
        .arg(format!("--output-dir={}", lab.display()));
    let files: Vec<&str> = match arguments.files.as_slice() {
        _ if arguments.propagation => PROPAGATION.to_vec(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    command.args(files.iter().map(|file| format!("--focus-file={file}")));
    command.args(arguments.focus.iter().map(|focus| format!("--focus={focus}")));
    command.args(specs::left_out(arguments.known, arguments.pods));
    println!("running the suite; its log is {}", log.display());
    let mut child = command
        .arg("base.test")
        .args(["--", "--karmada-context=karmada-apiserver", "--host-context=karmada-apiserver"])
        // How often specs look, and how long they hope. The suite's own five seconds between looks are most of its time.
        .args(["--poll-interval=1s", "--poll-timeout=120s"])
        .env("KUBECONFIG", kubeconfig)
        .env("GOPATH", lab.join("gopath"))
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "")
        // Specs that make clusters write kubeconfigs there.
        .env("HOME", lab)
        .env(kind::SOCKET_VARIABLE, socket)
        // The members in pull mode, with their kubeconfigs.
        .env("PULL_BASED_CLUSTERS", pulled)
        .current_dir(lab)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot open the log")?)
        .stderr(file)
        .spawn()
        .context("cannot run ginkgo")?;
    let started = Instant::now();
    let mut next_news = NEWS_EVERY;
    while child.try_wait().context("cannot wait for ginkgo")?.is_none() {
        if started.elapsed() >= next_news {
            next_news += NEWS_EVERY;
            let done = fs::read_to_string(&log).unwrap_or_default();
            let done = done.lines().filter(|line| line.starts_with("• [")).count();
            println!("{done} specs done after {} s", started.elapsed().as_secs());
        }
        thread::sleep(Duration::from_millis(200));
    }
    println!("the suite ended after {} s", started.elapsed().as_secs());
    Ok(())
}
