//! `cargo xtask e2e`: Karmada's own end-to-end suite, unchanged, against our control plane on real members.
//!
//! Builds what is missing (the suite, the official `karmadactl`, the members' programs, our binary), starts three members of
//! one node each and `karmada server`, joins the members with the official `karmadactl`, runs the chosen files of the suite in
//! several processes, and prints what passed, failed and was left out, file by file, with reasons. Everything it starts ends
//! with it.
//!
//! Specs that are known to fail are left out by name; `docs/compatibility.md` has the same list.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use clusters::toolchain::{KARMADA, KARMADA_E2E, Toolchain};

use crate::{
    ci::fleet::{Fleet, Programs},
    clusters::PROGRAM,
    workspace::{Workspace, cargo},
};

/// Propagation, overrides, status collection, namespaces, dependencies, preemption, suspension. The slash in front keeps
/// longer names out.
const FILES: &[&str] = &[
    "/(cluster)?propagationpolicy_test.go",
    "/clusterresourcebinding_test.go",
    "/lazy_activation_policy_test.go",
    "/preemption_test.go",
    "/dependenciesdistributor_test.go",
    "/migration_and_rollback_test.go",
    "/porting_workloads_test.go",
    "/resource_deletion_protection_test.go",
    "/namespace_test.go",
    "/(cluster)?overridepolicy_test.go",
    "/resource_test.go",
];

/// Specs that fail, and why; `docs/compatibility.md` lists them too.
const KNOWN: &[(&str, &str)] = &[
    ("Delete the namespace after the protection has been removed", SLOW_NAMESPACES),
    ("Delete the no protected namespace, the deployment is protected", SLOW_NAMESPACES),
];
const SLOW_NAMESPACES: &str = "counts on namespaces whose deletion takes its time";
/// The label of specs that make clusters.
const MAKES_CLUSTERS: &str = "needCreateCluster";

const MEMBERS: [&str; 3] = ["member1", "member2", "member3"];
const START_DEADLINE: Duration = Duration::from_secs(120);
/// How often the user hears that the suite is still at it.
const NEWS_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files of the suite to run, as regular expressions on their paths; by default those about propagation.
    #[arg(long = "file", value_name = "REGEX")]
    files: Vec<String>,
    /// Specs to run, as a regular expression on their names.
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Processes that run specs side by side.
    #[arg(long, value_name = "N", default_value_t = 6)]
    processes: usize,
    /// Also run the specs that are known to fail.
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    let toolchain = Toolchain::from_env()?;
    let programs = Programs::build_in_background(false);
    toolchain.ensure(&[&KARMADA_E2E])?;
    let karmadactl = toolchain.ensure_program(&KARMADA, "karmadactl")?;
    build(&["--package", "app", "--bin", "karmada"])?;
    build(&["--package", "clusters", "--bin", PROGRAM])?;

    let Some(fleet) = Fleet::of(&workspace, &programs, &["--members", "3", "--nodes", "1"])? else {
        bail!("there is no Go toolchain to build the members with");
    };
    let lab = workspace.target.join("e2e");
    // What an earlier run left would be taken for a control plane with members.
    let _ = fs::remove_dir_all(&lab);
    fs::create_dir_all(lab.join("gopath/bin")).context("cannot make a folder for the run")?;
    fs::copy(&karmadactl, lab.join("gopath/bin/karmadactl")).context("cannot copy karmadactl")?;
    let server = Server::start(&workspace.program("karmada"), &lab)?;
    for member in MEMBERS {
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
    specs(arguments, &toolchain, &lab, &server.kubeconfig)?;
    report(&lab.join("report.json"))
}

fn build(what: &[&str]) -> Result<()> {
    let built = cargo().arg("build").args(what).status().context("cannot run cargo build")?;
    if !built.success() {
        bail!("{} does not compile", what.join(" "));
    }
    Ok(())
}

/// Runs the suite; whether specs failed is for the report to say.
fn specs(arguments: &Arguments, toolchain: &Toolchain, lab: &Path, kubeconfig: &Path) -> Result<()> {
    // The program wants the suite's name to end in `.test`.
    let suite = lab.join("base.test");
    fs::copy(toolchain.path(&KARMADA_E2E.program("karmada-e2e")), &suite).context("cannot copy the suite")?;
    let log = lab.join("suite.log");
    let file = fs::File::create(&log).context("cannot make a log")?;
    let mut command = Command::new(toolchain.path(&KARMADA_E2E.program("ginkgo")));
    command
        .args(["-v", "--no-color", "--timeout=2h", "--json-report=report.json"])
        .arg(format!("--procs={}", arguments.processes))
        .arg(format!("--output-dir={}", lab.display()))
        .arg(format!("--label-filter=!{MAKES_CLUSTERS}"));
    let files: Vec<&str> = match arguments.files.as_slice() {
        [] => FILES.to_vec(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    command.args(files.iter().map(|file| format!("--focus-file={file}")));
    command.args(arguments.focus.iter().map(|focus| format!("--focus={focus}")));
    if !arguments.all {
        command.args(KNOWN.iter().map(|(spec, _)| format!("--skip={spec}")));
    }
    println!("running the suite; its log is {}", log.display());
    let mut child = command
        .arg(&suite)
        .args(["--", "--karmada-context=karmada-apiserver", "--host-context=karmada-apiserver"])
        // How often specs look, and how long they hope. The suite's own five seconds between looks are most of its time.
        .args(["--poll-interval=1s", "--poll-timeout=120s"])
        .env("KUBECONFIG", kubeconfig)
        .env("GOPATH", lab.join("gopath"))
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "")
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
    Ok(())
}

/// What became of the specs of one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Specs that were not run, with the reason.
    left_out: Vec<(String, &'static str)>,
}

/// Prints what passed and fails unless everything did.
fn report(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path)
        .context("the suite wrote no report: it ended before the first spec; see its log")?;
    let report: serde_json::Value = serde_json::from_str(&text).context("the report is not readable")?;
    let tallies = tally(&report);
    println!("{:<44} {:>6} {:>6} {:>8}", "file", "passed", "failed", "left out");
    for (file, tally) in &tallies {
        println!("{file:<44} {:>6} {:>6} {:>8}", tally.passed, tally.failed.len(), tally.left_out.len());
    }
    let passed: usize = tallies.values().map(|tally| tally.passed).sum();
    let failed: Vec<String> = each(&tallies, |tally| tally.failed.clone());
    let left_out = each(&tallies, |tally| {
        tally.left_out.iter().map(|(spec, reason)| format!("{spec} ({reason})")).collect()
    });
    println!("{passed} of {} specs passed, {} left out", passed + failed.len(), left_out.len());
    if !left_out.is_empty() {
        println!("left out:\n  {}", left_out.join("\n  "));
    }
    if !failed.is_empty() {
        bail!("failed:\n  {}", failed.join("\n  "));
    }
    if passed == 0 {
        bail!("no spec was run");
    }
    Ok(())
}

fn each(tallies: &BTreeMap<String, Tally>, specs: impl Fn(&Tally) -> Vec<String>) -> Vec<String> {
    let of_file = |(file, tally)| specs(tally).into_iter().map(move |spec| format!("{file}: {spec}"));
    tallies.iter().flat_map(of_file).collect()
}

/// Sorts the specs of a report by file. Files of which nothing was run are not part of it.
fn tally(report: &serde_json::Value) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for spec in report[0]["SpecReports"].as_array().into_iter().flatten() {
        let file = spec["LeafNodeLocation"]["FileName"].as_str().unwrap_or("");
        let file = file.rsplit('/').next().unwrap_or(file).to_string();
        let name = spec["LeafNodeText"].as_str().unwrap_or("");
        let setup = spec["LeafNodeType"] != "It";
        let named = if setup { spec["LeafNodeType"].as_str().unwrap_or("") } else { name };
        match spec["State"].as_str() {
            Some("passed") if setup => {}
            Some("passed") => tallies.entry(file).or_default().passed += 1,
            Some("skipped" | "pending") | None if setup => {}
            Some("skipped" | "pending") | None => {
                let reason = reason(spec, name);
                tallies.entry(file).or_default().left_out.push((name.to_string(), reason));
            }
            Some(_) => tallies.entry(file).or_default().failed.push(named.to_string()),
        }
    }
    tallies.retain(|_, tally| tally.passed > 0 || !tally.failed.is_empty());
    tallies
}

/// Says why a spec was not run.
fn reason(spec: &serde_json::Value, name: &str) -> &'static str {
    let labels = [&spec["LeafNodeLabels"], &spec["ContainerHierarchyLabels"]];
    if labels.iter().any(|labels| labels.to_string().contains(MAKES_CLUSTERS)) {
        return "makes a cluster with kind, which needs containers";
    }
    match KNOWN.iter().find(|(known, _)| name.contains(known)) {
        Some((_, reason)) => reason,
        None => "not asked for",
    }
}

/// Our control plane, ended when dropped.
struct Server {
    child: Child,
    kubeconfig: PathBuf,
}

impl Server {
    fn start(program: &Path, lab: &Path) -> Result<Self> {
        let (data, log) = (lab.join("data"), lab.join("server.log"));
        let child = Command::new(program)
            .args(["server", "--bind", "127.0.0.1:0", "--allow-no-execute-taint-policy"])
            .args(["--feature-gates", "AllAlpha=true,AllBeta=true", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).context("cannot make a log")?)
            .spawn()
            .context("cannot start karmada server")?;
        let mut server = Self { child, kubeconfig: data.join("karmada.kubeconfig") };
        let started = Instant::now();
        while !fs::read_to_string(&log).unwrap_or_default().contains("ready") {
            if let Some(status) = server.child.try_wait().context("cannot watch the server")? {
                bail!("karmada server ended at once ({status}); see {}", log.display());
            }
            if started.elapsed() > START_DEADLINE {
                bail!("karmada server was not ready after {} s", START_DEADLINE.as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(file: &str, kind: &str, name: &str, state: &str, labels: &[&str]) -> serde_json::Value {
        json!({
            "LeafNodeLocation": {"FileName": format!("/suite/{file}")},
            "LeafNodeType": kind, "LeafNodeText": name, "State": state, "LeafNodeLabels": labels,
        })
    }

    #[test]
    fn specs_are_sorted_by_file_and_outcome_with_reasons() {
        let report = json!([{"SpecReports": [
            spec("suite_test.go", "SynchronizedBeforeSuite", "", "passed", &[]),
            spec("a_test.go", "It", "works", "passed", &[]),
            spec("a_test.go", "It", "fails", "failed", &[]),
            spec("a_test.go", "It", KNOWN[0].0, "skipped", &[]),
            spec("a_test.go", "It", "grows", "skipped", &[MAKES_CLUSTERS]),
            spec("other_test.go", "It", "elsewhere", "skipped", &[]),
        ]}]);
        let tallies = tally(&report);
        assert_eq!(tallies.keys().collect::<Vec<_>>(), ["a_test.go"]);
        let a = &tallies["a_test.go"];
        assert_eq!((a.passed, a.failed.as_slice()), (1, ["fails".to_string()].as_slice()));
        assert_eq!(a.left_out[0].1, KNOWN[0].1);
        assert!(a.left_out[1].1.contains("kind"));
    }

    #[test]
    fn a_suite_that_fails_at_its_end_has_failed() {
        let report = json!([{"SpecReports": [
            spec("a_test.go", "It", "works", "passed", &[]),
            spec("suite_test.go", "SynchronizedAfterSuite", "", "timedout", &[]),
        ]}]);
        assert_eq!(tally(&report)["suite_test.go"].failed, ["SynchronizedAfterSuite"]);
    }
}
