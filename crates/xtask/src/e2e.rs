//! `cargo xtask e2e`: Karmada's own end-to-end suite, unchanged, against our control plane on real members.
//!
//! Builds what is missing (the suite, the official `karmadactl`, the members' programs, our binary), starts two members of one
//! node each and `karmada server`, joins the members with the official `karmadactl`, runs the chosen files of the suite in
//! several processes, and prints what passed, file by file. Everything it starts ends with it.
//!
//! Specs that are known to fail are left out by name; `docs/compatibility.md` gives the reasons.

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

/// Specs that fail for a reason that is listed in `docs/compatibility.md`.
const KNOWN: &[&str] = &["Delete the namespace after the protection has been removed"];

const START_DEADLINE: Duration = Duration::from_secs(120);

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
    let programs = Programs::build_in_background();
    toolchain.ensure(&[&KARMADA_E2E])?;
    let karmadactl = toolchain.ensure_program(&KARMADA, "karmadactl")?;
    build(&["--package", "app", "--bin", "karmada"])?;
    build(&["--package", "clusters", "--bin", PROGRAM])?;

    let Some(fleet) = Fleet::of(&workspace, &programs, &["--members", "2", "--nodes", "1"])? else {
        bail!("there is no Go toolchain to build the members with");
    };
    let lab = workspace.target.join("e2e");
    // What an earlier run left would be taken for a control plane with members.
    let _ = fs::remove_dir_all(&lab);
    fs::create_dir_all(lab.join("gopath/bin")).context("cannot make a folder for the run")?;
    fs::copy(&karmadactl, lab.join("gopath/bin/karmadactl")).context("cannot copy karmadactl")?;
    let server = Server::start(&workspace.program("karmada"), &lab)?;
    for member in ["member1", "member2"] {
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
    let built = Command::new(cargo()).arg("build").args(what).status().context("cannot run cargo build")?;
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
        // These make clusters with kind.
        .arg("--label-filter=!needCreateCluster");
    let files: Vec<&str> = match arguments.files.as_slice() {
        [] => FILES.to_vec(),
        chosen => chosen.iter().map(String::as_str).collect(),
    };
    command.args(files.iter().map(|file| format!("--focus-file={file}")));
    command.args(arguments.focus.iter().map(|focus| format!("--focus={focus}")));
    if !arguments.all {
        command.args(KNOWN.iter().map(|spec| format!("--skip={spec}")));
    }
    println!("running the suite; its log is {}", log.display());
    command
        .arg(&suite)
        .args(["--", "--karmada-context=karmada-apiserver", "--host-context=karmada-apiserver"])
        .env("KUBECONFIG", kubeconfig)
        .env("GOPATH", lab.join("gopath"))
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "")
        .current_dir(lab)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot open the log")?)
        .stderr(file)
        .status()
        .context("cannot run ginkgo")?;
    Ok(())
}

/// Prints what passed and fails unless everything did.
fn report(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path)
        .context("the suite wrote no report: it ended before the first spec; see its log")?;
    let report: serde_json::Value = serde_json::from_str(&text).context("the report is not readable")?;
    let mut files: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut failures = Vec::new();
    for spec in report[0]["SpecReports"].as_array().into_iter().flatten() {
        let file = spec["LeafNodeLocation"]["FileName"].as_str().unwrap_or("");
        let file = file.rsplit('/').next().unwrap_or(file).to_string();
        let setup = spec["LeafNodeType"] != "It";
        match spec["State"].as_str() {
            Some("passed") if setup => {}
            Some("passed") => files.entry(file).or_default().0 += 1,
            Some("skipped" | "pending") | None => {}
            Some(_) => {
                files.entry(file.clone()).or_default().1 += 1;
                failures.push(format!("{file}: {}", spec["LeafNodeText"].as_str().unwrap_or("")));
            }
        }
    }
    let mut passed = 0;
    for (file, (good, bad)) in &files {
        println!("{file:<44} {good:>3} passed {bad:>3} failed");
        passed += good;
    }
    println!("{passed} of {} specs passed", passed + failures.len());
    if !failures.is_empty() {
        bail!("failed:\n  {}", failures.join("\n  "));
    }
    if passed == 0 {
        bail!("no spec was run");
    }
    Ok(())
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
