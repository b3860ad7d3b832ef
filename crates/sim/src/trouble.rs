//! Possible troubles of a member, and its load.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apimachinery::selector::LabelSelector;
use serde::{Deserialize, Serialize};

/// One trouble.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// The API server cannot be reached; workloads keep running.
    ApiDown,
    /// Every request waits this long, in milliseconds.
    Slow(u64),
    /// A node has vanished: its kubelet reports no more.
    Node(String),
    /// Pods with these labels (`app=web`) crash and are not ready.
    PodsFailing(String),
}

/// How much the pods with certain labels use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// A label selector, such as `app=web`; empty for all pods.
    pub selector: String,
    /// CPU of all these pods together, in thousandths of a core.
    pub milli_cpu: u64,
    /// Memory of all these pods together, in MiB.
    pub memory_mib: u64,
}

/// All troubles of one member at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Troubles {
    pub api_down: bool,
    pub slow_ms: u64,
    pub nodes: BTreeSet<String>,
    pub pods_failing: BTreeSet<String>,
    /// By selector.
    pub loads: BTreeMap<String, Load>,
}

impl Troubles {
    /// Adds a trouble.
    pub fn add(&mut self, trouble: &Trouble) {
        match trouble {
            Trouble::ApiDown => self.api_down = true,
            Trouble::Slow(ms) => self.slow_ms = *ms,
            Trouble::Node(name) => {
                self.nodes.insert(name.clone());
            }
            Trouble::PodsFailing(selector) => {
                self.pods_failing.insert(selector.clone());
            }
        }
    }

    /// Removes a trouble; delays of any length are the same trouble.
    pub fn remove(&mut self, trouble: &Trouble) {
        match trouble {
            Trouble::ApiDown => self.api_down = false,
            Trouble::Slow(_) => self.slow_ms = 0,
            Trouble::Node(name) => {
                self.nodes.remove(name);
            }
            Trouble::PodsFailing(selector) => {
                self.pods_failing.remove(selector);
            }
        }
    }

    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.slow_ms)
    }

    /// Returns whether pods with these labels should fail.
    pub fn fails(&self, labels: &serde_json::Value) -> bool {
        self.pods_failing
            .iter()
            .any(|text| LabelSelector::parse(text).is_ok_and(|selector| selector.matches(labels)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn troubles_can_be_healed() {
        let mut troubles = Troubles::default();
        for trouble in [Trouble::ApiDown, Trouble::Slow(200), Trouble::Node("node1".to_owned())] {
            troubles.add(&trouble);
            assert_ne!(troubles, Troubles::default());
            troubles.remove(&trouble);
            assert_eq!(troubles, Troubles::default());
        }
    }

    #[test]
    fn pods_fail_by_their_labels() {
        let mut troubles = Troubles::default();
        troubles.add(&Trouble::PodsFailing("app=web,tier!=gold".to_owned()));
        assert!(troubles.fails(&json!({"app": "web"})));
        assert!(!troubles.fails(&json!({"app": "web", "tier": "gold"})));
        assert!(!troubles.fails(&json!({"app": "db"})));
    }
}
