//! Programs that run beside a benchmark: they end with it, and clusters are joined by them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Hundreds of simulated clusters take a while until the last one has written its kubeconfig.
const DEADLINE: Duration = Duration::from_secs(300);

/// A process that ends with the benchmark.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let started = command.stdin(Stdio::null()).spawn();
        let program = command.get_program().display();
        Ok(Self(started.with_context(|| format!("cannot start {program}"))?))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// What it writes to its standard error, if that is a pipe.
    pub(crate) fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.0.stderr.take()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts simulated clusters, which write their kubeconfigs into the folder: `member1.kubeconfig` and so on.
pub(crate) fn simulate(program: &Path, folder: &Path, clusters: usize, flags: &[&str]) -> Result<Running> {
    eprintln!("{clusters} simulated clusters …");
    let mut command = Command::new(program);
    command.args(["--log", "warn", "sim", "--clusters", &clusters.to_string()]).args(flags);
    Running::start(command.arg("--data-dir").arg(folder).stdout(Stdio::null()))
}

/// Joins a cluster to a control plane, as soon as its kubeconfig is there.
pub(crate) fn join(program: &Path, plane: &Path, name: &str, member: &Path) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !member.exists() {
        if Instant::now() > deadline {
            bail!("{name} did not start");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = Command::new(program)
        .args(["--log", "warn", "join", name, "--kubeconfig"])
        .arg(plane)
        .arg("--cluster-kubeconfig")
        .arg(member)
        .output()
        .context("cannot run karmada join")?;
    if !output.status.success() {
        bail!("karmada join {name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
