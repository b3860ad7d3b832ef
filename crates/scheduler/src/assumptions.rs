//! Placements that clusters do not report yet, so that many decisions in a row do not promise the same room twice.
//!
//! In: results as they are written, health as it comes back, the time. Out: per cluster, the workloads that estimates
//! have to deduct. Behind the gate SchedulingOvercommitProtection, for namespaced bindings only.

use std::collections::BTreeMap;

use api::work::{Component, ComponentReplicaRequirements, ResourceBindingSpec, TargetCluster};
use jiff::{SignedDuration, Timestamp};

use crate::capacity::Part;

/// How long a placement is assumed when the workload never turns healthy.
const TIME_TO_LIVE: SignedDuration = SignedDuration::from_mins(5);

/// A workload that was placed on a cluster but is not yet visible in the cluster's report.
#[derive(Debug, Clone, PartialEq)]
pub struct AssumedWorkload {
    pub namespace: String,
    pub components: Vec<Component>,
}

/// Placements that clusters do not report yet.
#[derive(Debug, Clone, Default)]
pub struct Assumptions {
    bindings: BTreeMap<String, Assumption>,
}

#[derive(Debug, Clone)]
struct Assumption {
    expires: Timestamp,
    clusters: BTreeMap<String, (AssumedWorkload, Vec<Part>)>,
}

impl Assumptions {
    /// Remembers a result: clusters that were left are forgotten, those of the result are assumed to be in use.
    pub fn assume(
        &mut self,
        binding: &str,
        spec: &ResourceBindingSpec,
        result: &[TargetCluster],
        now: Timestamp,
    ) {
        for left in spec.clusters.iter().filter(|old| !result.iter().any(|new| new.name == old.name)) {
            self.release(binding, &left.name);
        }
        if !spec.is_workload() || result.is_empty() {
            return;
        }
        let assumption = self
            .bindings
            .entry(binding.to_owned())
            .or_insert_with(|| Assumption { expires: now, clusters: BTreeMap::new() });
        assumption.expires = now + TIME_TO_LIVE;
        for target in result {
            let components = if spec.components.is_empty() {
                vec![single(spec, target.replicas)]
            } else {
                spec.components.clone()
            };
            let parts = components.iter().map(Part::of).collect();
            let workload = AssumedWorkload { namespace: spec.resource.namespace.clone(), components };
            assumption.clusters.insert(target.name.clone(), (workload, parts));
        }
    }

    /// Forgets one cluster of a binding: the workload is healthy there, or gone.
    pub fn release(&mut self, binding: &str, cluster: &str) {
        if let Some(assumption) = self.bindings.get_mut(binding) {
            assumption.clusters.remove(cluster);
            if assumption.clusters.is_empty() {
                self.bindings.remove(binding);
            }
        }
    }

    /// Forgets a deleted binding.
    pub fn forget(&mut self, binding: &str) {
        self.bindings.remove(binding);
    }

    /// Drops what has expired; returns how many bindings that were.
    ///
    /// After a clock was set back, what was assumed before lasts no longer than what is assumed now.
    pub fn collect_garbage(&mut self, now: Timestamp) -> usize {
        let before = self.bindings.len();
        for assumption in self.bindings.values_mut() {
            assumption.expires = assumption.expires.min(now + TIME_TO_LIVE);
        }
        self.bindings.retain(|_, assumption| assumption.expires >= now);
        before - self.bindings.len()
    }

    /// Returns what is assumed on a cluster, of all bindings; what has expired does not count.
    pub fn on(&self, cluster: &str, now: Timestamp) -> Vec<&AssumedWorkload> {
        self.valid(now)
            .filter_map(|assumption| assumption.clusters.get(cluster))
            .map(|(workload, _)| workload)
            .collect()
    }

    pub(crate) fn parts_on(&self, cluster: &str, now: Timestamp) -> Vec<Vec<Part>> {
        let found = self.valid(now).filter_map(|assumption| assumption.clusters.get(cluster));
        found.map(|(_, parts)| parts.clone()).collect()
    }

    fn valid(&self, now: Timestamp) -> impl Iterator<Item = &Assumption> {
        self.bindings.values().filter(move |assumption| assumption.expires >= now)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }
}

/// Describes a workload with one pod template as a component.
fn single(spec: &ResourceBindingSpec, replicas: i32) -> Component {
    let needs = spec.replica_requirements.as_ref().map(|needs| ComponentReplicaRequirements {
        node_claim: needs.node_claim.clone(),
        resource_request: needs.resource_request.clone(),
        priority_class_name: needs.priority_class_name.clone(),
    });
    Component { name: spec.resource.name.clone(), replicas, replica_requirements: needs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("in range")
    }

    fn spec(clusters: &[&str]) -> ResourceBindingSpec {
        let mut spec = ResourceBindingSpec { replicas: 4, clusters: targets(clusters), ..Default::default() };
        spec.resource.name = "web".into();
        spec
    }

    fn targets(names: &[&str]) -> Vec<TargetCluster> {
        names
            .iter()
            .map(|name| TargetCluster { name: (*name).into(), replicas: 2, components: vec![] })
            .collect()
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_nothing_for_longer() {
        let mut assumptions = Assumptions::default();
        assumptions.assume("ns/web", &spec(&[]), &targets(&["m1"]), at(7200));
        assert_eq!(assumptions.collect_garbage(at(0)), 0);
        assert_eq!(assumptions.on("m1", at(300)).len(), 1);
        assert!(assumptions.on("m1", at(301)).is_empty());
    }

    #[test]
    fn a_result_is_assumed_until_it_expires() {
        let mut assumptions = Assumptions::default();
        assumptions.assume("ns/web", &spec(&[]), &targets(&["m1", "m2"]), at(0));
        let assumed = assumptions.on("m1", at(300));
        assert_eq!(assumed[0].components[0].name, "web");
        assert_eq!(assumed[0].components[0].replicas, 2);
        assert!(assumptions.on("m1", at(301)).is_empty());
        assert_eq!(assumptions.collect_garbage(at(300)), 0);
        assert_eq!(assumptions.collect_garbage(at(301)), 1);
    }

    #[test]
    fn clusters_that_were_left_or_turned_healthy_are_forgotten() {
        let mut assumptions = Assumptions::default();
        assumptions.assume("ns/web", &spec(&[]), &targets(&["m1", "m2"]), at(0));
        assumptions.assume("ns/web", &spec(&["m1", "m2"]), &targets(&["m2", "m3"]), at(10));
        assert!(assumptions.on("m1", at(10)).is_empty());
        assumptions.release("ns/web", "m2");
        assert!(assumptions.on("m2", at(10)).is_empty());
        assert_eq!(assumptions.on("m3", at(310)).len(), 1);
        assumptions.forget("ns/web");
        assert!(assumptions.is_empty());
    }
}
