//! What is known about a running fleet, as written to `<dir>/state.json` and answered over the control socket.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{error::Error, options::Flavour, proxy::Network};

/// A running fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetState {
    /// The process whose end is the fleet's end.
    pub owner: u32,
    /// Whether the owner exists for the fleet alone and ends with it.
    pub supervised: bool,
    /// The address of the shared etcd.
    pub etcd: String,
    pub etcd_pid: u32,
    pub clusters: Vec<ClusterState>,
}

/// A running cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    pub name: String,
    pub flavour: Flavour,
    /// Where clients connect: the proxy.
    pub server: String,
    /// For clients; goes through the proxy.
    pub kubeconfig: PathBuf,
    /// Past the proxy, so that a test can look into a cluster that it has cut off.
    pub direct_kubeconfig: PathBuf,
    /// Logs, keys and pid files.
    pub folder: PathBuf,
    pub network: Network,
    /// The control group of a member with real pods.
    #[serde(default)]
    pub cgroup: Option<String>,
    pub components: Vec<ComponentState>,
}

/// One process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentState {
    pub name: String,
    /// None while it is stopped on purpose.
    pub pid: Option<u32>,
    pub paused: bool,
    /// How often it ended by itself and was started again.
    pub restarts: u32,
    pub log: PathBuf,
}

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

impl FleetState {
    pub(crate) fn read(dir: &Path) -> Result<Self, Error> {
        let path = path(dir);
        let text = fs::read(&path).map_err(|_| Error::NotRunning { dir: dir.to_path_buf() })?;
        serde_json::from_slice(&text).map_err(|source| Error::State { path, source })
    }

    /// Writes the state in one step: readers see all of the file or nothing.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Error> {
        let (path, fresh) = (path(dir), dir.join("state.json.new"));
        let text = serde_json::to_vec_pretty(self).expect("plain data is always JSON");
        fs::write(&fresh, text).map_err(Error::io("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(Error::io("write", &path))
    }
}
