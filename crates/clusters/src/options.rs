//! What a fleet shall look like: plain values, built by chaining.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

/// A fleet to be: its clusters and where its files go.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    pub clusters: Vec<ClusterOptions>,
    /// Folder for state, keys and logs; by default a fresh one under the cache, removed when the fleet ends.
    pub dir: Option<PathBuf>,
    /// Let etcd skip fsync: several times faster to start, and nobody misses the data of a test cluster after a power cut.
    pub unsafe_no_fsync: bool,
    /// Further images for real pods.
    pub images: Vec<Image>,
    /// An address and port of this machine that real pods reach, too.
    pub way_out: Option<SocketAddr>,
    /// Set by a process that exists for this fleet alone and ends with it.
    pub(crate) supervised: bool,
}

impl FleetOptions {
    /// Returns options for `count` members called `member1`, `member2`, …
    pub fn members(count: usize) -> Self {
        Self::of((1..=count).map(|number| ClusterOptions::member(format!("member{number}"))))
    }

    /// Returns options for `count` members with real pods, called `member1`, `member2`, …
    pub fn pods(count: usize) -> Self {
        Self::of((1..=count).map(|number| ClusterOptions::pods(format!("member{number}"))))
    }

    /// Returns options for exactly these clusters.
    pub fn of(clusters: impl IntoIterator<Item = ClusterOptions>) -> Self {
        Self {
            clusters: clusters.into_iter().collect(),
            dir: None,
            unsafe_no_fsync: true,
            images: Vec::new(),
            way_out: None,
            supervised: false,
        }
    }

    /// Adds a cluster.
    pub fn and(mut self, cluster: ClusterOptions) -> Self {
        self.clusters.push(cluster);
        self
    }

    /// Lets real pods run the image `name`, such as `docker.io/karmada/karmada-agent` whatever the tag, which holds `program`.
    pub fn image(mut self, name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        self.images.push(Image { name: name.into(), program: program.into() });
        self
    }

    /// Lets real pods reach `address`, which has to be one of this machine, and none of the loopback network: that is a pod's own.
    pub fn way_out(mut self, address: SocketAddr) -> Self {
        self.way_out = Some(address);
        self
    }

    /// Keeps files in `dir`.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
}

/// An image made of one program and the libraries it is linked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// With the registry in front and without a tag.
    pub name: String,
    pub program: PathBuf,
}

/// How much of a cluster is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// A whole cluster: workloads become pods, pods become Ready.
    Member,
    /// A whole cluster in namespaces of its own, with one node whose kubelet runs real containers. Needs root.
    Pods,
    /// kube-apiserver with the flags of a karmada-apiserver, and kube-controller-manager with the few controllers that
    /// Karmada runs. No nodes, no pods.
    ControlPlane,
    /// kube-apiserver alone: nothing reacts to what is written. For comparing API servers.
    ApiServer,
}

/// One cluster of a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterOptions {
    pub name: String,
    pub flavour: Flavour,
    pub nodes: NodeOptions,
    /// Where clients reach the API server; by default 127.0.0.1 and a free port.
    pub address: Option<SocketAddr>,
    /// Objects to be created before the cluster counts as ready.
    pub objects: Vec<serde_json::Value>,
    /// Appended to kube-apiserver's flags; a later flag beats an earlier one.
    pub apiserver_args: Vec<String>,
    /// A kwok configuration (stages); replaces the built-in stages of the kinds it names.
    pub kwok_config: Option<String>,
}

/// The nodes of a member, all alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeOptions {
    pub names: Vec<String>,
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    pub region: String,
}

impl ClusterOptions {
    /// Returns a member with three nodes of 32 CPUs, 128 GiB and 110 pods, in three zones.
    pub fn member(name: impl Into<String>) -> Self {
        Self::new(name, Flavour::Member).nodes(3)
    }

    /// Returns a member whose one node, called as kind calls it, runs real pods.
    pub fn pods(name: impl Into<String>) -> Self {
        let member = Self::new(name, Flavour::Pods);
        let node = format!("{}-control-plane", member.name);
        member.node_names([node])
    }

    /// Returns a control plane for Karmada's controllers or ours.
    pub fn control_plane(name: impl Into<String>) -> Self {
        Self::new(name, Flavour::ControlPlane)
    }

    /// Returns a bare API server.
    pub fn api_server(name: impl Into<String>) -> Self {
        Self::new(name, Flavour::ApiServer)
    }

    /// Sets the number of nodes, named `<cluster>-node-1` and so on.
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes.names = (1..=count).map(|number| format!("{}-node-{number}", self.name)).collect();
        self
    }

    /// Gives the nodes these names.
    pub fn node_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.nodes.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets what each node offers.
    pub fn node_capacity(mut self, cpu: &str, memory: &str, pods: u32) -> Self {
        self.nodes.cpu = cpu.to_string();
        self.nodes.memory = memory.to_string();
        self.nodes.pods = pods;
        self
    }

    /// Lets clients reach the API server at `address`, which must be one of this machine.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Adds a flag to kube-apiserver.
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// Runs kwok with this configuration.
    pub fn kwok_config(mut self, text: impl Into<String>) -> Self {
        self.kwok_config = Some(text.into());
        self
    }

    fn new(name: impl Into<String>, flavour: Flavour) -> Self {
        Self {
            name: name.into(),
            flavour,
            nodes: NodeOptions {
                names: Vec::new(),
                cpu: "32".to_string(),
                memory: "128Gi".to_string(),
                pods: 110,
                region: "region-1".to_string(),
            },
            address: None,
            objects: Vec::new(),
            apiserver_args: Vec::new(),
            kwok_config: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_numbered_and_so_are_their_nodes() {
        let options = FleetOptions::members(2);
        assert_eq!(options.clusters[1].name, "member2");
        assert_eq!(options.clusters[1].nodes.names, ["member2-node-1", "member2-node-2", "member2-node-3"]);
    }

    #[test]
    fn a_control_plane_has_no_nodes() {
        assert!(ClusterOptions::control_plane("karmada").nodes.names.is_empty());
    }
}
