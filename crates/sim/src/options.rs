//! The options of simulated clusters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::trouble::Trouble;

/// All options for the start of a fleet. Begin with [`Options::new`] and change the ones that should differ.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where kubeconfigs, keys and state are kept; `None` keeps everything in memory.
    pub data_dir: Option<PathBuf>,
    /// With a policy, each member keeps an audit log beside its kubeconfig in the data directory.
    pub audit_policy: Option<PathBuf>,
    /// Keep objects in the data directory, so that a later start finds them again. Without it only keys and ports are kept.
    pub persist: bool,
    pub bind: IpAddr,
    /// The port of the first member, the others follow; 0 picks free ones (the same as last time where possible).
    pub port: u16,
    pub members: Vec<MemberOptions>,
    pub delays: Delays,
    /// The troubles from the start.
    pub troubles: Vec<(String, Trouble)>,
}

/// One cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberOptions {
    pub name: String,
    pub nodes: Vec<NodeOptions>,
    /// Nodes and pods have an IPv6 address behind their IPv4 address, and Services may have one.
    pub dual_stack: bool,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOptions {
    pub name: String,
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    /// In addition to the host name, which every node has.
    pub labels: BTreeMap<String, String>,
}

/// How long operations take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// From the moment a pod has a node until it is ready; each pod takes between this and twice this.
    pub start: Duration,
    /// From the moment a pod of a Job runs until it has succeeded.
    pub work: Duration,
    /// How often a node's lease is renewed.
    pub lease: Duration,
    /// How often autoscalers look at the load.
    pub autoscale: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            start: Duration::from_millis(200),
            work: Duration::from_millis(500),
            lease: Duration::from_secs(30),
            autoscale: Duration::from_secs(15),
        }
    }
}

/// The regions of the first members; further ones repeat them with a number appended.
const REGIONS: [&str; 6] = ["eu-west", "us-east", "ap-south", "eu-north", "us-west", "sa-east"];

impl Options {
    /// Returns a fleet of `clusters` members called `member1`, `member2`, …, each in a different region, with `nodes` nodes of 32
    /// CPUs and 128 GiB called `node1`, `node2`, … in three zones.
    pub fn new(clusters: usize, nodes: usize) -> Self {
        let members = (1..=clusters)
            .map(|number| MemberOptions::new(&format!("member{number}"), &region(number - 1), nodes))
            .collect();
        Self {
            data_dir: None,
            audit_policy: None,
            persist: false,
            bind: IpAddr::from([127, 0, 0, 1]),
            port: 0,
            members,
            delays: Delays::default(),
            troubles: Vec::new(),
        }
    }
}

fn region(index: usize) -> String {
    let (name, round) = (REGIONS[index % REGIONS.len()], index / REGIONS.len());
    if round == 0 { name.to_owned() } else { format!("{name}-{}", round + 1) }
}

impl MemberOptions {
    /// Returns a cluster with nodes spread over three zones of a region.
    pub fn new(name: &str, region: &str, nodes: usize) -> Self {
        let nodes = (1..=nodes)
            .map(|number| {
                let zone = ["a", "b", "c"][(number - 1) % 3];
                NodeOptions::new(&format!("node{number}"))
                    .label("topology.kubernetes.io/region", region)
                    .label("topology.kubernetes.io/zone", &format!("{region}-{zone}"))
            })
            .collect();
        Self { name: name.to_owned(), nodes, dual_stack: false }
    }
}

impl NodeOptions {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            cpu: "32".to_owned(),
            memory: "128Gi".to_owned(),
            pods: 110,
            labels: BTreeMap::new(),
        }
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_members_share_a_region() {
        let options = Options::new(20, 1);
        let regions: std::collections::BTreeSet<_> = options
            .members
            .iter()
            .map(|member| &member.nodes[0].labels["topology.kubernetes.io/region"])
            .collect();
        assert_eq!(regions.len(), 20);
    }
}
