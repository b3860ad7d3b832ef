//! The plug-ins: what may reject a cluster for a binding, and what prefers one.
//!
//! A [`Plugin`] is asked once per decision for its filter and its score; what it prepares then (tolerated taints, a
//! compiled affinity) serves for every cluster. A plug-in without anything to say about a binding returns none and
//! costs nothing.
//!
//! Karmada runs filters in random order, so which reason a cluster failing several of them is reported with is random
//! there. Ours run in the order of the registry: the in-tree ones as listed in [`Registry::in_tree`], then others in
//! the order in which they were registered.

mod affinity;
mod api_enablement;
mod eviction;
mod locality;
mod spread_properties;
mod taint_toleration;
pub mod workloads;

use std::sync::Arc;

use api::policy::ClusterAffinityTerm;
use api::work::ResourceBindingSpec;

use crate::fleet::{Fleet, Member};
use crate::gates::Gates;
use crate::symbols::Bits;

/// Something that filters or scores clusters.
pub trait Plugin: Send + Sync {
    /// Returns the name by which `--plugins` enables and disables it.
    fn name(&self) -> &'static str;

    /// Returns the filter for this binding, or none if every cluster may pass.
    fn filter<'a>(&'a self, _context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        None
    }

    /// Returns the score for this binding, or none if every cluster would get 0.
    fn score<'a>(&'a self, _context: &Context<'a>) -> Option<Box<dyn Score + 'a>> {
        None
    }
}

/// Decides about one cluster after the other.
pub trait Filter {
    /// Returns why the cluster is rejected, or none if it passes. `position` is the member's place in the fleet.
    fn reject(&self, position: u32, member: &Member) -> Option<Reason>;
}

/// Rates one cluster after the other.
pub trait Score {
    /// Returns a number from 0 to 100, more is better.
    ///
    /// # Errors
    /// A text ends the attempt: scoring must not fail for some clusters only.
    fn score(&self, position: u32, member: &Member) -> Result<i64, String>;

    /// Brings the scores of all feasible clusters into proportion, in place.
    fn normalize(&self, _scores: &mut [i64]) {}
}

/// Why a cluster was rejected. Texts are counted and shown to users: keep them the same for all clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    Fixed(&'static str),
    /// The number of a taint in the fleet.
    Taint(u32),
    Texts(Arc<[String]>),
}

/// What plug-ins see of a decision.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub fleet: &'a Fleet,
    pub spec: &'a ResourceBindingSpec,
    /// The affinity term that is being tried, empty without `clusterAffinities`.
    pub affinity_name: &'a str,
    /// That term itself.
    pub affinity_term: Option<&'a ClusterAffinityTerm>,
    /// Other workloads, for the rules between them.
    pub workloads: &'a workloads::Groups,
    pub(crate) targets: &'a Bits,
}

impl Context<'_> {
    /// Tells whether the binding is already on the cluster at this position.
    pub fn is_target(&self, position: u32) -> bool {
        self.targets.contains(position)
    }
}

/// A plug-in of that name is there already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a plugin named {0} already exists")]
pub struct Duplicate(pub String);

/// The plug-ins that exist, in the order in which they run.
#[derive(Clone)]
pub struct Registry {
    plugins: Vec<Arc<dyn Plugin>>,
}

impl Registry {
    /// Returns the plug-ins of this crate.
    pub fn in_tree(gates: Gates) -> Self {
        let mut plugins: Vec<Arc<dyn Plugin>> = vec![
            Arc::new(api_enablement::ApiEnablement),
            Arc::new(taint_toleration::TaintToleration),
            Arc::new(affinity::ClusterAffinity),
            Arc::new(spread_properties::SpreadConstraint),
            Arc::new(locality::ClusterLocality),
            Arc::new(eviction::ClusterEviction),
        ];
        if gates.workload_affinity {
            plugins.push(Arc::new(workloads::WorkloadAntiAffinity));
            plugins.push(Arc::new(workloads::WorkloadAffinity));
        }
        Self { plugins }
    }

    /// Adds a plug-in behind those that are there.
    pub fn register(&mut self, plugin: Arc<dyn Plugin>) -> Result<(), Duplicate> {
        if self.plugins.iter().any(|known| known.name() == plugin.name()) {
            return Err(Duplicate(plugin.name().to_owned()));
        }
        self.plugins.push(plugin);
        Ok(())
    }

    /// Keeps the plug-ins that a `--plugins` list enables.
    ///
    /// `*` anywhere enables all; then the list is read from left to right: a name enables a plug-in, a name behind
    /// dashes disables it if anything is enabled at that point; unknown names are ignored. So `foo,-foo` enables
    /// nothing and `-foo,*` means the same as `*,-foo`.
    pub fn enable<S: AsRef<str>>(&self, list: &[S]) -> Self {
        let all = list.iter().any(|item| item.as_ref() == "*");
        let mut enabled = vec![all; self.plugins.len()];
        for item in list.iter().map(AsRef::as_ref) {
            let find = |name: &str| self.plugins.iter().position(|plugin| plugin.name() == name);
            if let Some(index) = find(item) {
                enabled[index] = true;
            } else if item.starts_with('-')
                && enabled.contains(&true)
                && let Some(index) = find(item.trim_start_matches('-'))
            {
                enabled[index] = false;
            }
        }
        let kept = self.plugins.iter().zip(enabled).filter(|(_, enabled)| *enabled);
        Self { plugins: kept.map(|(plugin, _)| plugin.clone()).collect() }
    }

    /// Returns the names in running order.
    pub fn names(&self) -> Vec<&'static str> {
        self.plugins.iter().map(|plugin| plugin.name()).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Plugin> {
        self.plugins.iter().map(|plugin| &**plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled(list: &str) -> Vec<&'static str> {
        Registry::in_tree(Gates::default()).enable(&list.split(',').collect::<Vec<_>>()).names()
    }

    const ALL: [&str; 6] = [
        "APIEnablement",
        "TaintToleration",
        "ClusterAffinity",
        "SpreadConstraint",
        "ClusterLocality",
        "ClusterEviction",
    ];

    #[test]
    fn a_star_enables_all_and_a_dash_takes_one_away() {
        assert_eq!(enabled("*"), ALL);
        let without_taints: Vec<&str> = ALL.into_iter().filter(|name| *name != "TaintToleration").collect();
        assert_eq!(enabled("*,-TaintToleration"), without_taints);
        assert_eq!(enabled("-TaintToleration,*"), without_taints);
        assert_eq!(enabled("*,---TaintToleration"), without_taints);
    }

    #[test]
    fn names_enable_one_by_one_and_unknown_ones_are_ignored() {
        assert_eq!(enabled("ClusterEviction,APIEnablement"), ["APIEnablement", "ClusterEviction"]);
        assert!(enabled("APIEnablement,-APIEnablement").is_empty());
        assert_eq!(enabled("-APIEnablement,APIEnablement"), ["APIEnablement"]);
        assert!(enabled("unknown,-unknown").is_empty());
    }

    #[test]
    fn the_filters_between_workloads_exist_behind_their_gate() {
        let gates = Gates { workload_affinity: true, ..Gates::default() };
        let names = Registry::in_tree(gates).names();
        assert_eq!(names[6..], ["WorkloadAntiAffinity", "WorkloadAffinity"]);
    }

    #[test]
    fn a_name_can_be_registered_once() {
        let mut registry = Registry::in_tree(Gates::default());
        let error = registry.register(Arc::new(eviction::ClusterEviction)).unwrap_err();
        assert_eq!(error.to_string(), "a plugin named ClusterEviction already exists");
    }
}
