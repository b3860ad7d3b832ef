//! Control groups of members with real pods: one per member and hierarchy, directly under the root.
//!
//! Both layouts of Linux work: one hierarchy per controller (version 1), and one for all (version 2), where the controllers that a kubelet
//! needs must be switched on for the root's children, as systemd does it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::error::Error;

const ROOT: &str = "/sys/fs/cgroup";
const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// The groups of one member. Dropping removes them; nothing may run in them any more.
#[derive(Debug)]
pub(crate) struct Cgroup {
    name: String,
}

impl Cgroup {
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let group = Self { name: name.to_string() };
        for hierarchy in hierarchies() {
            let path = hierarchy.join(name);
            match fs::create_dir(&path) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::Io { action: "create", path, source });
                }
                _ => {}
            }
            // A new group of this controller is useless until it is told which processors and memory it has.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (hierarchy.join(file), path.join(file));
                if !is_unified(&hierarchy) && to.exists() {
                    let all = fs::read(&from).map_err(Error::io("read", &from))?;
                    fs::write(&to, all).map_err(Error::io("write", &to))?;
                }
            }
            if is_unified(&hierarchy) && hierarchy == Path::new(ROOT) {
                let switch = path.join("cgroup.subtree_control");
                fs::write(&switch, "+cpu +cpuset +memory +pids").map_err(Error::io("write", &switch))?;
            }
        }
        Ok(group)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The group's path as a kubelet wants it.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_all(&self.name);
    }
}

/// Returns what is missing on this machine.
pub(super) fn missing() -> Option<String> {
    let root = Path::new(ROOT);
    if is_unified(root) {
        let on = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
        let off: Vec<_> =
            NEEDED.into_iter().filter(|name| !on.split_whitespace().any(|word| word == *name)).collect();
        if !off.is_empty() {
            return Some(format!(
                "the cgroup controllers {}, which the root does not pass on",
                off.join(", ")
            ));
        }
    } else {
        let off: Vec<_> = NEEDED.into_iter().filter(|name| !root.join(name).join("tasks").exists()).collect();
        if !off.is_empty() {
            return Some(format!("cgroups, and {ROOT} lacks {}", off.join(", ")));
        }
    }
    let probe = format!("karmada-rs-probe-{}-{:08x}", std::process::id(), rand::random::<u32>());
    match Cgroup::create(&probe) {
        Ok(_) => None,
        Err(error) => {
            remove_all(&probe);
            Some(format!("cgroups that can be written: {}", error.chain()))
        }
    }
}

/// Removes every group whose name begins with `prefix`, from the innermost outwards. Processes that are just dying hold theirs
/// for a moment.
pub(super) fn remove_all(prefix: &str) {
    if prefix.is_empty() {
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut left = false;
        for hierarchy in hierarchies() {
            for group in folders(&hierarchy).filter(|path| named(path, prefix)) {
                left |= !remove(&group);
            }
        }
        if !left || Instant::now() > deadline {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the process ids in every group called `name` below the member's groups.
pub(crate) fn processes(group: &str, name: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for hierarchy in hierarchies() {
        let mut places = vec![hierarchy.join(group)];
        while let Some(place) = places.pop() {
            if named(&place, name) {
                let listed = fs::read_to_string(place.join("cgroup.procs")).unwrap_or_default();
                found.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
            }
            places.extend(folders(&place));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn remove(group: &Path) -> bool {
    folders(group).for_each(|inner| _ = remove(&inner));
    fs::remove_dir(group).is_ok() || !group.exists()
}

fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(ROOT);
    if is_unified(&root) {
        return vec![root];
    }
    // `cpu,cpuacct` may have links as short names; each hierarchy counts once.
    folders(&root).filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists()).collect()
}

fn is_unified(hierarchy: &Path) -> bool {
    hierarchy.join("cgroup.controllers").exists()
}

fn named(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}
