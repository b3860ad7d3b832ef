//! Members with real pods: what they need from the machine, and which addresses they use.
//!
//! ```text
//!  the machine ── our proxy ──┐ (a socket opened inside of the member's network)
//!                             ▼
//!  hub: 10.60.0.1 ─ bridge ─┬─ member1: 10.60.0.10, pods 10.61.0.0/24
//!       registry :5000      └─ member2: 10.60.0.11, pods 10.62.0.0/24
//! ```
//!
//! The hub and each member are a [`House`]: namespaces of their own, ended by the end of their first process. No link, address, route or
//! mount exists outside of a house, and what a kubelet writes to the kernel's settings goes into files instead. So the death of the owner
//! ends everything but the control groups, which [`sweep`] removes.

mod cgroup;
mod house;
mod image;
mod objects;
mod registry;
mod settings;
mod way_out;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

pub(crate) use cgroup::{Cgroup, processes};
pub(crate) use house::{House, Hub, Line, Room, in_network, join, set_link};
pub(crate) use objects::{apply as apply_objects, create as create_objects};
pub(crate) use registry::Registry;
pub(crate) use settings::{Member, PAUSE_IMAGE, PROGRAMS, Part, api_server_flags, components};
pub(crate) use way_out::WayOut;

use crate::toolchain::{POD_PACKAGES, POD_RECIPES, PODS_VARIABLE, Toolchain};

/// More members than anybody starts on one machine, and fewer than there are ranges of addresses.
pub(crate) const MOST_MEMBERS: usize = 30;

/// Where members find the registry and each other.
pub(crate) const HUB_ADDRESS: &str = "10.60.0.1";

pub(crate) const REGISTRY_PORT: u16 = 5000;

pub(crate) fn node_address(index: usize) -> String {
    format!("10.60.0.{}", 10 + index)
}

pub(crate) fn pod_range(index: usize) -> String {
    format!("10.{}.0.0/24", 61 + index)
}

/// Returns what this machine lacks for members with real pods, as the end of a sentence that begins with "it needs".
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("root, to make namespaces and control groups".to_string());
    }
    for program in ["unshare", "nsenter", "setpriv", "ip", "mount", "sh"] {
        if !runs(Command::new(program).arg(if program == "ip" { "-V" } else { "--version" }), program) {
            return Some(format!("the program {program}, of util-linux or iproute2"));
        }
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "true"]);
    if !runs(&mut unshare, "unshare") {
        return Some(
            "namespaces, and the kernel or the container around us refuses to make them".to_string(),
        );
    }
    cgroup::missing()
}

/// Returns what a test on real pods lacks, for [`left_out`](crate::left_out()): what the machine lacks, or programs that are
/// not built yet and that nobody has asked for.
pub fn missing_for_tests() -> Option<String> {
    if let Some(what) = missing() {
        return Some(format!("real pods, and they need {what}"));
    }
    let Ok(toolchain) = Toolchain::from_env() else { return Some("a place for the cache".to_string()) };
    let built =
        POD_RECIPES.iter().all(|recipe| toolchain.has(recipe)) && toolchain.packages(POD_PACKAGES).is_some();
    if built {
        return None;
    }
    if std::env::var_os(PODS_VARIABLE).is_none() {
        return Some(
            "real pods, whose programs are not built yet; `cargo xtask ci --pods` builds them".to_string(),
        );
    }
    if !toolchain.can_provide(&POD_RECIPES) {
        return Some("real pods, and there is no Go toolchain to build their programs with".to_string());
    }
    let fetch = toolchain.can_fetch_packages(POD_PACKAGES);
    (!fetch).then(|| "real pods, and there is no apt-get to fetch Debian packages with".to_string())
}

/// Removes what the members with real pods of a dead fleet in `dir` have left on the machine, and waits for their last processes.
pub(crate) fn sweep(dir: &Path) {
    house::wait_for_ends(dir);
    if let Ok(prefix) = fs::read_to_string(dir.join(CGROUPS_FILE)) {
        cgroup::remove_all(prefix.trim());
    }
}

/// Holds what belongs to the hub, in the fleet's folder. No cluster can be called like this.
pub(crate) const HUB_FOLDER: &str = "hub.house";

/// Names the prefix of the fleet's control groups.
pub(crate) const CGROUPS_FILE: &str = "cgroups";

fn runs(command: &mut Command, program: &str) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    // A shell may not know `--version`; that it starts is enough.
    status.is_ok_and(|status| status.success() || program == "sh")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_addresses_of_their_own_that_no_service_has() {
        assert_ne!(node_address(0), node_address(1));
        assert_ne!(pod_range(0), pod_range(1));
        // Services have 10.96.0.0/12.
        assert_eq!(pod_range(MOST_MEMBERS), "10.91.0.0/24");
    }
}
