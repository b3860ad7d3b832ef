//! A house: mount, network, process, host name and IPC namespaces with a first process that only reaps. Its end is the end of all within.
//!
//! The first process dies with `unshare`, and `unshare` with the thread that owns the fleet, both by the kernel's parent-death signal; so a
//! house cannot outlive its owner. A program inside is started through `nsenter`, and dies with it in turn.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use super::{HUB_ADDRESS, node_address, pod_range};
use crate::{
    error::Error,
    nodes::START_DEADLINE,
    process::{Launch, Process, alive},
    wait::until,
};

/// What the first process of each house does at the end: wait, and reap whoever is left to it.
const STAY: &str = "touch \"$2/ready\"; while :; do sleep 86400 & wait $!; done";

/// Its own folders over the places that kubelet, containerd and the CNI plugins use, and files over the settings of the
/// kernel that a kubelet writes: they count for the whole machine, which must not notice.
const MEMBER: &str = r#"set -e
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns "$2/settings"
for place in /var/lib /var/log; do
  mkdir -p "$2/root$place"
  mount --bind "$2/root$place" "$place"
done
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e "/proc/sys/$setting" ] || continue
  file="$2/settings/$(basename "$setting")"
  cat "/proc/sys/$setting" > "$file"
  mount --bind "$file" "/proc/sys/$setting"
done
hostname "$1"
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
"#;

const HUB: &str = r#"set -e
ip link set lo up
# An address of its own: otherwise it would change whenever a link comes or goes, and members would lose their way for a while.
ip link add name hub address 02:00:0a:3c:00:01 type bridge
ip address add "$3/24" dev hub
ip link set hub up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects
echo 0 > /proc/sys/net/ipv4/conf/hub/send_redirects
"#;

#[derive(Debug)]
pub(crate) struct House {
    process: Process,
    room: Room,
}

/// The inside of a house, as others refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// The first process, as the machine numbers it.
    first: u32,
}

impl House {
    async fn build(name: &str, folder: &Path, script: &str, extra: &[&str]) -> Result<Self, Error> {
        let ready = folder.join("ready");
        let _ = fs::remove_file(&ready);
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let mut args: Vec<String> =
            ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
                .map(String::from)
                .to_vec();
        args.extend(["sh".to_string(), "-c".to_string(), format!("{script}{STAY}"), "house".to_string()]);
        args.extend([name.to_string(), folder.display().to_string()]);
        args.extend(extra.iter().map(ToString::to_string));
        let launch = Launch {
            name: "namespaces".to_string(),
            cluster: name.to_string(),
            program: "unshare".into(),
            args,
            folder: folder.to_path_buf(),
        };
        let mut process = launch.start()?;
        let started = Instant::now();
        while !ready.exists() {
            if let Some(status) = process.exited() {
                return Err(launch.ended(status));
            }
            if started.elapsed() > START_DEADLINE {
                let what = format!("the namespaces of {name}");
                return Err(Error::Timeout { what, after: START_DEADLINE, seen: launch.log_tail(5) });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let first = until("the first process of a house", Duration::from_secs(10), async || {
            let id = process.id();
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            let children = children.map_err(|error| error.to_string())?;
            children.split_whitespace().next().and_then(|id| id.parse().ok()).ok_or("no child".to_string())
        })
        .await?;
        // For whoever cleans up behind a dead owner: which process to wait for, and that it is still the same one.
        let note = folder.join(NOTE);
        fs::write(&note, format!("{first} {}", start_time(first).unwrap_or_default()))
            .map_err(Error::io("write", &note))?;
        Ok(Self { process, room: Room { first } })
    }

    /// Makes the house of a member.
    pub(crate) async fn member(name: &str, folder: &Path) -> Result<Self, Error> {
        Self::build(name, folder, MEMBER, &[]).await
    }

    pub(crate) fn room(&self) -> Room {
        self.room
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.process.kill();
        // The kernel lets the first process go only after everybody else inside.
        wait_for_end(self.room.first);
    }
}

impl Room {
    /// Returns the program and arguments that run a program inside, with `environment` added to its own.
    pub(crate) fn enter(
        self,
        environment: &[String],
        program: &Path,
        args: &[String],
    ) -> (PathBuf, Vec<String>) {
        let mut all: Vec<String> = vec!["--target".to_string(), self.first.to_string()];
        all.extend(["--mount", "--uts", "--ipc", "--net", "--pid", "--"].map(String::from));
        all.extend(["setpriv", "--pdeathsig", "KILL", "--", "env"].map(String::from));
        all.extend_from_slice(environment);
        all.push(program.display().to_string());
        all.extend_from_slice(args);
        ("nsenter".into(), all)
    }

    /// Runs `ip` in the network inside.
    pub(super) fn network(self, program: &str, line: &str) -> Result<(), Error> {
        let output = Command::new("nsenter")
            .args(["--target", &self.first.to_string(), "--net", "--", program])
            .args(line.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("run", "nsenter"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        Err(Error::Command { command: format!("{program} {line}"), said })
    }
}

/// The house in the middle: a bridge that joins the members, and an address for the registry.
#[derive(Debug)]
pub(crate) struct Hub {
    house: House,
}

impl Hub {
    pub(crate) async fn build(folder: &Path) -> Result<Self, Error> {
        Ok(Self { house: House::build("hub", folder, HUB, &[HUB_ADDRESS]).await? })
    }

    pub(crate) fn room(&self) -> Room {
        self.house.room()
    }
}

/// Joins a member to the bridge, with the address and the range of pods that belong to its place in the fleet.
pub(crate) fn join(hub: Room, member: Room, index: usize) -> Result<(), Error> {
    let (port, node) = (port(index), node_address(index));
    let _ = hub.network("ip", &format!("link delete {port}")); // of an earlier life of this member
    hub.network("ip", &format!("link add {port} type veth peer name eth0 netns {}", member.first))?;
    hub.network("ip", &format!("link set {port} master hub up"))?;
    hub.network("ip", &format!("route replace {} via {node}", pod_range(index)))?;
    member.network("ip", &format!("address add {node}/24 dev eth0"))?;
    member.network("ip", "link set eth0 up")?;
    member.network("ip", &format!("route add default via {HUB_ADDRESS}"))
}

/// Cuts the member's link to the bridge, or joins it again.
pub(crate) fn set_link(hub: Room, index: usize, up: bool) -> Result<(), Error> {
    hub.network("ip", &format!("link set {} {}", port(index), if up { "up" } else { "down" }))
}

/// A long line between a member's link and the bridge: a program that passes every packet on late, in both directions. Not
/// every kernel has the queue that delays packets (`netem`); tap devices are more common. Dropping it ends the program, and the
/// member's link is cut until [`Line::remove`].
#[derive(Debug)]
pub(crate) struct Line {
    _process: Process,
}

impl Line {
    /// Leads the member's link over a new line.
    pub(crate) async fn lay(
        hub: Room,
        index: usize,
        delay_ms: u64,
        program: &Path,
        folder: &Path,
    ) -> Result<Self, Error> {
        if !Path::new(TUN).exists() {
            let said = format!("there is no {TUN}; packets of real pods cannot be delayed on this kernel");
            return Err(Error::Command { command: "slow".to_string(), said });
        }
        let (near, far, side) = (format!("late{index}a"), format!("late{index}b"), side_bridge(index));
        let args = ["delay", &delay_ms.to_string(), &near, &far].map(String::from);
        let (program, args) = hub.enter(&[], program, &args);
        let (name, cluster) = ("delay".to_string(), port(index));
        let launch = Launch { name, cluster, program, args, folder: folder.to_path_buf() };
        let mut process = launch.start()?;
        let started = Instant::now();
        while hub.network("ip", &format!("link show {far}")).is_err() {
            if let Some(status) = process.exited() {
                return Err(launch.ended(status));
            }
            if started.elapsed() > START_DEADLINE {
                let what = "a line that delays packets".to_string();
                return Err(Error::Timeout { what, after: START_DEADLINE, seen: launch.log_tail(5) });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        hub.network("ip", &format!("link add name {side} type bridge"))?;
        hub.network("ip", &format!("link set {side} up"))?;
        hub.network("ip", &format!("link set {near} master {side} up"))?;
        hub.network("ip", &format!("link set {far} master hub up"))?;
        hub.network("ip", &format!("link set {} master {side}", port(index)))?;
        Ok(Self { _process: process })
    }

    /// Joins the member's link to the bridge directly, whether there was a line or not.
    pub(crate) fn remove(line: Option<Self>, hub: Room, index: usize) -> Result<(), Error> {
        hub.network("ip", &format!("link set {} master hub", port(index)))?;
        drop(line);
        let _ = hub.network("ip", &format!("link delete {}", side_bridge(index))); // there may be none
        Ok(())
    }
}

/// Where tap devices come from.
const TUN: &str = "/dev/net/tun";

/// The bridge between a member's link and its line.
fn side_bridge(index: usize) -> String {
    format!("side{index}")
}

/// Runs `work` on a thread that is in the network of `room`. What it opens stays there, whoever uses it.
pub(crate) async fn in_network<T: Send + 'static>(
    room: Room,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    // A thread of its own: it cannot be used for anything else afterwards.
    thread::spawn(move || {
        let entered = fs::File::open(format!("/proc/{}/ns/net", room.first)).and_then(|network| {
            use std::os::fd::AsFd;
            Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
        });
        let _ = done.send(entered.and_then(|()| work()));
    });
    result.await.unwrap_or_else(|_| Err(io::Error::other("the thread ended")))
}

/// Waits for the ends of all houses that a dead fleet in `dir` had: their first processes are dying already.
pub(super) fn wait_for_ends(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let note = fs::read_to_string(entry.path().join(NOTE)).unwrap_or_default();
        let Some((id, started)) = note.split_once(' ') else { continue };
        if let Ok(id) = id.parse::<u32>()
            && start_time(id).is_some_and(|now| now == started)
        {
            wait_for_end(id);
        }
    }
}

/// Names the first process of a house and when it started.
const NOTE: &str = "first-process";

fn wait_for_end(id: u32) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while alive(id) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns when a process started, in the kernel's ticks.
fn start_time(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19).map(String::from)
}

fn port(index: usize) -> String {
    format!("member{index}")
}
