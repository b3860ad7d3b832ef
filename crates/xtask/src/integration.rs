//! `cargo xtask integration`: Kubernetes' own integration tests against our API server.
//!
//! Upstream's tests start a kube-apiserver inside their own process. They are compiled here with the files replaced that do so
//! or look into its etcd (`crates/xtask/integration`): what they get is our server in a process of its own (the example `alone` of
//! `apiserver`: Kubernetes' kinds and nothing of Karmada). Everything else is upstream's. Each test runs alone, so that one
//! that panics takes no other with it.
//!
//! A test leaves itself out when it asks for a server option or a feature gate that we do not have, and says which. Those
//! that are left out by name, and those that are known to fail, are in [`known`], each with its reason. The run fails for a
//! failure that is not listed and for a listed one that passes.

mod known;
mod outcome;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use clusters::toolchain::{ETCD, KUBERNETES_INTEGRATION, Substitute, Suite, Toolchain};
use outcome::{Outcome, Verdict};

use crate::workspace::{Workspace, cargo};

/// The packages and what they are about.
const PACKAGES: &[(&str, &str)] = &[
    ("server-side apply", "k8s.io/kubernetes/test/integration/apiserver/apply"),
    ("patch, field validation, CEL rules, tables", "k8s.io/kubernetes/test/integration/apiserver"),
    ("custom resources", "k8s.io/apiextensions-apiserver/test/integration"),
    ("conversion", "k8s.io/apiextensions-apiserver/test/integration/conversion"),
    ("dry run", "k8s.io/kubernetes/test/integration/dryrun"),
    ("discovery", "k8s.io/kubernetes/test/integration/apiserver/discovery"),
    ("RBAC, tokens, reviews", "k8s.io/kubernetes/test/integration/auth"),
    ("garbage collection", "k8s.io/kubernetes/test/integration/garbagecollector"),
    ("namespaces", "k8s.io/kubernetes/test/integration/namespace"),
    ("admission webhooks", "k8s.io/kubernetes/test/integration/apiserver/admissionwebhook"),
    ("scale", "k8s.io/kubernetes/test/integration/scale"),
    ("OpenAPI", "k8s.io/kubernetes/test/integration/apiserver/openapi"),
    ("clients", "k8s.io/kubernetes/test/integration/client"),
];

/// Files of our own that the replaced ones use.
const OWN: &[(&str, &str)] = &[
    ("launch/launch.go", include_str!("../integration/launch/launch.go")),
    ("launch/flags.go", include_str!("../integration/launch/flags.go")),
    ("launch/gates.go", include_str!("../integration/launch/gates.go")),
    ("launch/wrap.go", include_str!("../integration/launch/wrap.go")),
];

const SUBSTITUTES: &[Substitute] = &[
    Substitute {
        module: "k8s.io/kubernetes",
        path: "cmd/kube-apiserver/app/testing/testserver.go",
        text: include_str!("../integration/testserver.go"),
    },
    Substitute {
        module: "k8s.io/kubernetes",
        path: "test/integration/framework/test_server.go",
        text: include_str!("../integration/framework.go"),
    },
    Substitute {
        module: "k8s.io/apiextensions-apiserver",
        path: "test/integration/fixtures/server.go",
        text: include_str!("../integration/fixtures.go"),
    },
    Substitute {
        module: "k8s.io/apiextensions-apiserver",
        path: "test/integration/storage/objectreader.go",
        text: include_str!("../integration/objectreader.go"),
    },
];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Packages to run: those whose path contains this.
    #[arg(long, value_name = "TEXT")]
    package: Option<String>,
    /// Tests to run: those whose name contains this.
    #[arg(long, value_name = "TEXT")]
    test: Option<String>,
    /// Tests that run side by side.
    #[arg(long, value_name = "N", default_value_t = 2)]
    processes: usize,
    /// Compile the tests, and end.
    #[arg(long)]
    build_only: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::load()?;
    let toolchain = Toolchain::from_env()?;
    let wanted: Vec<&'static str> = PACKAGES
        .iter()
        .map(|(_, package)| *package)
        .filter(|package| arguments.package.as_ref().is_none_or(|text| package.contains(text)))
        .collect();
    let suites = toolchain.compile_tests(&KUBERNETES_INTEGRATION, OWN, SUBSTITUTES, &wanted)?;
    if arguments.build_only {
        return Ok(());
    }
    let etcd = toolchain.ensure_program(&ETCD, "etcd")?;
    let built = cargo()
        .args(["build", "--workspace", "--example", "alone"])
        .status()
        .context("cannot run cargo build")?;
    if !built.success() {
        bail!("the server does not compile");
    }
    let lab = Lab::new(&workspace, &etcd)?;
    let mut jobs = Vec::new();
    for suite in &suites {
        for test in lab.tests(suite)? {
            if arguments.test.as_ref().is_none_or(|text| test.contains(text)) {
                jobs.push((suite, test));
            }
        }
    }
    println!("{} tests of {} packages; logs are in {}", jobs.len(), suites.len(), lab.folder.display());
    let outcomes = lab.run(jobs, arguments.processes);
    let partial = arguments.package.is_some() || arguments.test.is_some();
    report(&lab.folder, &outcomes, partial)
}

/// Where tests run and their logs lie.
struct Lab {
    folder: PathBuf,
    program: PathBuf,
    search_path: std::ffi::OsString,
}

impl Lab {
    fn new(workspace: &Workspace, etcd: &Path) -> Result<Self> {
        let folder = workspace.target.join("integration");
        let _ = fs::remove_dir_all(&folder);
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).context("cannot make a folder for the run")?;
        // A copy, so that a build in the meantime does not change what is tested.
        let program = bin.join("alone");
        fs::copy(workspace.program("examples/alone"), &program).context("cannot copy the server")?;
        // Upstream's frame starts an etcd before the first test, whoever uses it.
        std::os::unix::fs::symlink(etcd, bin.join("etcd")).context("cannot link etcd")?;
        let mut paths = vec![bin];
        paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let search_path = std::env::join_paths(paths).context("the PATH cannot be extended")?;
        Ok(Self { folder, program, search_path })
    }

    fn command(&self, suite: &Suite) -> Command {
        let mut command = Command::new(self.program_of(suite));
        command
            .current_dir(&suite.folder)
            .env("PATH", &self.search_path)
            .env("APISERVER_PROGRAM", &self.program)
            .stdin(Stdio::null());
        command
    }

    /// Returns the program under the name that `go test` gives it: some tests expect it among their managers of fields.
    fn program_of(&self, suite: &Suite) -> PathBuf {
        let package = suite.package;
        let folder = self.folder.join("bin").join(short(package).replace('/', "-"));
        let link = folder.join(format!("{}.test", package.rsplit('/').next().unwrap_or(package)));
        let made = fs::create_dir_all(&folder).and_then(|()| match link.exists() {
            true => Ok(()),
            false => std::os::unix::fs::symlink(&suite.program, &link),
        });
        // Another thread may have made it meanwhile.
        if made.is_ok() || link.exists() { link } else { suite.program.clone() }
    }

    /// Asks the program for the names of its tests.
    fn tests(&self, suite: &Suite) -> Result<Vec<String>> {
        let output =
            self.command(suite).args(["-test.list", "^Test"]).output().context("cannot list tests")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter(|line| line.starts_with("Test")).map(str::to_string).collect())
    }

    fn run(&self, jobs: Vec<(&Suite, String)>, processes: usize) -> Vec<Outcome> {
        let queue = Mutex::new(jobs.into_iter());
        let outcomes = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..processes.max(1) {
                scope.spawn(|| {
                    loop {
                        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((suite, test)) = job else { return };
                        let outcome = self.one(suite, &test);
                        println!("{outcome}");
                        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    }
                });
            }
        });
        let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcomes.sort_by(|a, b| (a.package, &a.test).cmp(&(b.package, &b.test)));
        outcomes
    }

    fn one(&self, suite: &Suite, test: &str) -> Outcome {
        if let Some(reason) = known::left_out(suite.package, test) {
            return Outcome::left_out(suite.package, test, reason);
        }
        let log = self.folder.join(format!("{}-{test}.log", short(suite.package).replace('/', "-")));
        let skip = known::cases_left_out(suite.package, test);
        let ran = fs::File::create(&log)
            .and_then(|file| {
                self.command(suite)
                    .args(["-test.v", "-test.timeout=6m", "-test.run", &format!("^{test}$")])
                    .args(skip.iter().flat_map(|skip| ["-test.skip", skip]))
                    .stdout(file.try_clone()?)
                    .stderr(file)
                    .spawn()
            })
            .and_then(|child| until_told(child, &log));
        let text = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match (ran, text) {
            (Ok(()), Ok(text)) => Outcome::read(suite.package, test, &text),
            (Err(error), _) | (_, Err(error)) => {
                Outcome::failed(suite.package, test, format!("cannot be run: {error}"))
            }
        }
    }
}

/// Waits for the end of a test. Its frame looks for leaks after that, for minutes: of a configuration that is made and
/// never run, and not our concern, so that the program is ended once it has told the outcome.
fn until_told(mut child: Child, log: &Path) -> std::io::Result<()> {
    loop {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        let text = fs::read(log)?;
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
        if tail.lines().any(|line| line == "PASS" || line == "FAIL") {
            child.kill()?;
            child.wait()?;
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Prints what passed and what did not, writes the same as a page, and fails for surprises.
fn report(folder: &Path, outcomes: &[Outcome], partial: bool) -> Result<()> {
    let mut page = String::from("| Package | Passed | Failed | Left out |\n|---|---|---|---|\n");
    let mut by_package: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for outcome in outcomes {
        by_package.entry(outcome.package).or_default()[outcome.verdict.column()] += 1;
    }
    let mut sums = [0; 3];
    for (package, counts) in &by_package {
        let about = PACKAGES.iter().find(|(_, each)| each == package).map_or("", |(about, _)| about);
        writeln!(page, "| `{}` ({about}) | {} | {} | {} |", short(package), counts[0], counts[1], counts[2])?;
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    writeln!(page, "| **together** | **{}** | **{}** | **{}** |", sums[0], sums[1], sums[2])?;
    for (title, wanted) in [("failed", Verdict::Failed), ("left out", Verdict::LeftOut)] {
        writeln!(page, "\n{title}:")?;
        for outcome in outcomes.iter().filter(|outcome| outcome.verdict == wanted) {
            writeln!(page, "- `{}` `{}`: {}", short(outcome.package), outcome.test, outcome.reason)?;
        }
    }
    println!("\n{page}");
    fs::write(folder.join("summary.md"), &page).context("cannot write the summary")?;
    let surprises: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| {
            outcome.verdict == Verdict::Failed && known::fails(outcome.package, &outcome.test).is_none()
        })
        .map(|outcome| outcome.test.as_str())
        .collect();
    let mended: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| {
            outcome.verdict == Verdict::Passed && known::fails(outcome.package, &outcome.test).is_some()
        })
        .map(|outcome| outcome.test.as_str())
        .collect();
    if sums[0] == 0 && !partial {
        bail!("no test passed");
    }
    if !surprises.is_empty() || !mended.is_empty() {
        bail!("failures that are not known: {surprises:?}; known ones that pass: {mended:?}");
    }
    Ok(())
}

/// Returns a package's path without what all of them have in common.
fn short(package: &str) -> &str {
    package
        .strip_prefix("k8s.io/kubernetes/test/integration/")
        .unwrap_or_else(|| package.strip_prefix("k8s.io/").unwrap_or(package))
}
