//! Controllers and scheduler of Karmada v1.17.1 on a server of ours whose own controllers are off: what they cost, on the same members.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use clusters::toolchain::{KARMADA, Toolchain};

use super::programs::Running;

/// What a column with them is called.
pub(crate) const NAME: &str = "Karmada v1.17.1";

/// The flags of a server that leaves the work to them.
pub(crate) const IDLE_SERVER: [&str; 2] = ["--controllers", ""];

/// The two programs; they end with the benchmark.
pub(crate) struct Originals(Vec<Running>);

impl Originals {
    /// Starts them on a server. Their logs go into the folder. They may ask as often as they want: their own limits would be all that is
    /// measured.
    pub(crate) fn start(kubeconfig: &Path, folder: &Path, manager_flags: &[&str]) -> Result<Self> {
        let limits = ["--cluster-api-qps=1000", "--cluster-api-burst=1000"];
        let mut originals = Self(Vec::new());
        originals.add(
            "karmada-controller-manager",
            &[manager_flags, &limits].concat(),
            kubeconfig,
            folder,
        )?;
        originals.add("karmada-scheduler", &["--enable-scheduler-estimator=false"], kubeconfig, folder)?;
        Ok(originals)
    }

    fn add(&mut self, name: &str, flags: &[&str], kubeconfig: &Path, folder: &Path) -> Result<()> {
        let program = Toolchain::from_env()?.ensure_program(&KARMADA, name)?;
        let log = std::fs::File::create(folder.join(format!("{name}.log")))?;
        let mut command = Command::new(program);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0"])
            .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
            .args(flags)
            .stdout(Stdio::null())
            .stderr(log);
        self.0.push(Running::start(&mut command)?);
        Ok(())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Running::id).collect()
    }
}
