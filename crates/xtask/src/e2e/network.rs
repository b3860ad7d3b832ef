//! The network of a run with real pods: one of its own, since it needs an address for the control plane that leads there from the machine
//! and from pods alike. The loopback address is not one of these, and the machine itself shall get no further address.
//!
//! The run starts itself again in a new network that has nothing but the loopback device; whatever has to be fetched was fetched
//! before. What the run starts is in that network, too.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

/// Where the control plane listens in that network.
pub(super) const PLANE: &str = "10.60.0.2:5443";

/// Set for the run in its network.
const INSIDE: &str = "KARMADA_RS_E2E_NETWORK";

/// The image of the agent that specs install.
const AGENT: &str = "docker.io/karmada/karmada-agent";

/// What members with real pods need beyond the usual, as arguments for those who start them.
#[derive(Debug, Clone, Default)]
pub(super) struct ForPods {
    arguments: Vec<String>,
}

impl ForPods {
    /// Lets pods run an agent, which is `agent`, and reach the control plane.
    pub(super) fn with_agent(agent: &Path) -> Self {
        let image = format!("{AGENT}={}", agent.display());
        Self { arguments: ["--pods", "--image", &image, "--way-out", PLANE].map(String::from).to_vec() }
    }

    pub(super) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().map(String::as_str)
    }
}

pub(super) fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this program again, as it was called, in a network of its own; ends with it.
pub(super) fn run_inside() -> Result<()> {
    let address = PLANE.split(':').next().unwrap_or(PLANE);
    let program = std::env::current_exe().context("cannot find this program")?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", "unshare", "--net", "--", "sh", "-c"])
        .arg("ip link set lo up && ip address add \"$0/32\" dev lo && exec \"$@\"")
        .arg(address)
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .context("cannot run unshare, of util-linux")?;
    // It has said what there is to say.
    std::process::exit(status.code().unwrap_or(1));
}

/// Returns a copy of `program` in `folder` without what only debuggers read: images of it are read and copied often. Where there is no
/// `strip`, the program itself.
pub(super) fn without_symbols(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap_or_default());
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&copy)
        .arg(program)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if stripped { copy } else { program.to_path_buf() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_without_pods_need_nothing_more() {
        assert_eq!(ForPods::default().arguments().count(), 0);
    }

    #[test]
    fn pods_get_the_agent_and_a_way_to_the_control_plane() {
        let pods = ForPods::with_agent(Path::new("/bin/karmada"));
        let told: Vec<&str> = pods.arguments().collect();
        assert!(told.contains(&"docker.io/karmada/karmada-agent=/bin/karmada"), "{told:?}");
        assert!(told.contains(&PLANE), "{told:?}");
    }
}
