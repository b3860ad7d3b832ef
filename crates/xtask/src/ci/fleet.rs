//! The real clusters of a CI run: built in the background, started once, shared by all test binaries, ended with the run.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use clusters::toolchain::{KARMADA, MEMBER_RECIPES, POD_PACKAGES, POD_RECIPES, Toolchain};

use crate::{clusters::PROGRAM, workspace::Workspace};

/// Tells test binaries where the clusters are; the `clusters` crate reads it.
pub(super) const CLUSTERS_VARIABLE: &str = "KARMADA_RS_CLUSTERS";

const MEMBERS: &str = "3";

/// A machine that compiles at the same time may be slow; a start that hangs must end some day.
const START_DEADLINE: Duration = Duration::from_secs(600);

/// The programs that clusters consist of, being built or not.
pub(crate) struct Programs {
    /// Taken by the first who waits.
    build: RefCell<Option<JoinHandle<Result<(), clusters::toolchain::Error>>>>,
    available: bool,
}

impl Programs {
    /// Starts the build, if there is anything to build and a Go toolchain to do it; `pods` adds what real pods need.
    pub(crate) fn build_in_background(pods: bool) -> Self {
        let Ok(toolchain) = Toolchain::from_env() else { return Self::unwanted() };
        if !toolchain.can_provide(&MEMBER_RECIPES) {
            return Self::unwanted();
        }
        let build = thread::spawn(move || {
            toolchain.ensure(&MEMBER_RECIPES)?;
            if pods {
                toolchain.ensure(&POD_RECIPES)?;
                toolchain.ensure_packages(POD_PACKAGES)?;
            }
            Ok(())
        });
        Self { build: RefCell::new(Some(build)), available: true }
    }

    /// Goes on with what a test needs only late, while the first ones run; the test waits for it, or builds it itself.
    pub(super) fn build_karmadactl_meanwhile(&self) {
        if self.available
            && let Ok(toolchain) = Toolchain::from_env()
        {
            // If it fails, the test tells why.
            thread::spawn(move || toolchain.ensure_program(&KARMADA, "karmadactl"));
        }
    }

    pub(super) fn unwanted() -> Self {
        Self { build: RefCell::new(None), available: false }
    }

    /// Waits for the end of the build, if it goes on.
    pub(crate) fn wait(&self) -> Result<()> {
        let Some(build) = self.build.borrow_mut().take() else { return Ok(()) };
        build.join().map_err(|_| anyhow!("the build of the cluster programs panicked"))??;
        Ok(())
    }
}

/// Running clusters. Dropping ends them.
pub(crate) struct Fleet {
    supervisor: Child,
    dir: PathBuf,
}

impl Fleet {
    /// Starts the clusters; None, after saying so loudly, where there is no Go toolchain.
    pub(super) fn start(workspace: &Workspace, programs: &Programs) -> Result<Option<Self>> {
        Self::of(workspace, programs, &["--members", MEMBERS])
    }

    /// As `start`, with other clusters than the usual ones.
    pub(crate) fn of(workspace: &Workspace, programs: &Programs, wanted: &[&str]) -> Result<Option<Self>> {
        Self::at(workspace, programs, wanted, &format!("ci-{}", std::process::id()))
    }

    /// As `of`, in the folder called `folder`: a program that has several fleets needs several.
    pub(crate) fn at(
        workspace: &Workspace,
        programs: &Programs,
        wanted: &[&str],
        folder: &str,
    ) -> Result<Option<Self>> {
        if !programs.available {
            eprintln!("********************************************************************************");
            eprintln!("** No Go toolchain: tests that need real clusters are LEFT OUT.               **");
            eprintln!("********************************************************************************");
            return Ok(None);
        }
        programs.wait()?;
        // A socket's path may have 108 bytes, so not somewhere deep in the target folder.
        let dir = Toolchain::from_env()?.root().join("run").join(folder);
        // The supervisor gets SIGTERM when we die, however that happens, and then takes the clusters and the folder with it.
        let supervisor = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--"])
            .arg(workspace.program(PROGRAM))
            .arg("supervise")
            .args(wanted)
            .arg("--dir")
            .arg(&dir)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the clusters")?;
        let mut fleet = Self { supervisor, dir };
        let started = Instant::now();
        while !fleet.dir.join("state.json").exists() {
            if let Some(status) = fleet.supervisor.try_wait().context("cannot watch the clusters")? {
                bail!("the clusters did not start ({status}); logs are in {}", fleet.dir.display());
            }
            if started.elapsed() > START_DEADLINE {
                bail!("the clusters were not ready after {} s", START_DEADLINE.as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Some(fleet))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // `kill` as a program: sending a signal is the only thing we would need a crate for.
        let _ = Command::new("kill").args(["-TERM", &self.supervisor.id().to_string()]).status();
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(30) {
            if !matches!(self.supervisor.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}
