//! Sums up what a member's nodes offer and its pods ask for.
//!
//! In: records of nodes and pods, the classes of node sizes. Out: the summaries in the Cluster's status. It
//! keeps two oddities of Karmada, because schedulers compare the numbers: the request of an init container is
//! compared with the running total instead of its own pod, and the first node without room for a pod ends the
//! counting of classes.

use std::collections::BTreeMap;

use api::cluster::{AllocatableModeling, NodeSummary, ResourceModel, ResourceSummary};
use apimachinery::quantity::{Format, Quantity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use member::{NodeRecord, PodRecord};

type ResourceList = BTreeMap<String, Text>;

/// Counts the nodes.
pub(super) fn nodes<'a>(nodes: impl IntoIterator<Item = &'a NodeRecord>) -> NodeSummary {
    let mut summary = NodeSummary::default();
    for node in nodes {
        summary.total_num += 1;
        summary.ready_num += i32::from(node.ready);
    }
    summary
}

/// Sums up resources; `nodes` by name, sorted.
pub(super) fn resources(
    nodes: &BTreeMap<String, NodeRecord>,
    pods: &[PodRecord],
    models: &[ResourceModel],
) -> ResourceSummary {
    let waiting = pods.iter().filter(|pod| pod.node.is_empty());
    let running = pods.iter().filter(|pod| !pod.node.is_empty() && !pod.finished);
    ResourceSummary {
        allocatable: allocatable(nodes.values()),
        allocating: Totals::of(waiting).into_list(),
        allocated: Totals::of(running).into_list(),
        allocatable_modelings: modelings(nodes, pods, models),
    }
}

fn allocatable<'a>(nodes: impl IntoIterator<Item = &'a NodeRecord>) -> ResourceList {
    let mut sums: BTreeMap<&str, Quantity> = BTreeMap::new();
    for (name, amount) in nodes.into_iter().flat_map(|node| &node.allocatable) {
        let amount = quantity(amount);
        sums.entry(name).and_modify(|sum| *sum += amount).or_insert(amount);
    }
    sums.into_iter().map(|(name, sum)| (name.to_owned(), Text(sum.to_string()))).collect()
}

/// An unreadable amount counts as zero.
fn quantity(text: &Text) -> Quantity {
    Quantity::parse(&text.0).unwrap_or(Quantity::ZERO)
}

/// Requests of pods, in the units in which Karmada counts them.
#[derive(Debug, Default)]
struct Totals {
    amounts: BTreeMap<String, i64>,
    pods: i64,
}

impl Totals {
    fn of<'a>(pods: impl IntoIterator<Item = &'a PodRecord>) -> Self {
        let mut totals = Self::default();
        for pod in pods {
            for requests in &pod.containers {
                totals.each(requests, |sum, amount| sum.saturating_add(amount));
            }
            for requests in &pod.init_containers {
                totals.each(requests, i64::max);
            }
            totals.each(&pod.overhead, |sum, amount| sum.saturating_add(amount));
            totals.pods += 1;
        }
        totals
    }

    fn each(&mut self, requests: &ResourceList, combine: impl Fn(i64, i64) -> i64) {
        for (name, amount) in requests.iter().filter(|(name, _)| counts(name)) {
            let amount = quantity(amount);
            let amount = if name == "cpu" { amount.milli_value() } else { amount.value() };
            let sum = self.amounts.entry(name.clone()).or_insert(0);
            *sum = combine(*sum, amount);
        }
    }

    fn amount(&self, name: &str) -> Quantity {
        let amount = self.amounts.get(name).copied().unwrap_or(0);
        match name {
            "cpu" => Quantity::from_milli(amount, Format::DecimalSi),
            "memory" | "ephemeral-storage" => Quantity::new(amount, Format::BinarySi),
            name if name.starts_with("hugepages-") => Quantity::new(amount, Format::BinarySi),
            _ => Quantity::new(amount, Format::DecimalSi),
        }
    }

    fn into_list(self) -> ResourceList {
        let mut list: ResourceList = self
            .amounts
            .iter()
            .filter(|(_, amount)| **amount != 0)
            .map(|(name, _)| (name.clone(), Text(self.amount(name).to_string())))
            .collect();
        if self.pods != 0 {
            list.insert("pods".to_owned(), Text(self.pods.to_string()));
        }
        list
    }
}

/// Returns whether requests for a resource are counted: the three native ones, and what has a domain or a prefix that
/// Kubernetes reserves for scalars.
fn counts(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || name.contains('/')
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
}

fn modelings(
    nodes: &BTreeMap<String, NodeRecord>,
    pods: &[PodRecord],
    models: &[ResourceModel],
) -> Vec<AllocatableModeling> {
    let Some(first) = models.first() else { return Vec::new() };
    let mut counts = vec![0i64; models.len()];
    let mut by_node: BTreeMap<&str, Vec<&PodRecord>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.node.is_empty() && !pod.finished) {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    for (name, node) in nodes {
        let pods = by_node.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let totals = Totals::of(pods.iter().copied());
        let room = node.allocatable.get("pods").map(|pods| quantity(pods).value()).unwrap_or(0) - totals.pods;
        if room <= 0 {
            break;
        }
        let free = |resource: &str| {
            node.allocatable
                .get(resource)
                .map_or(Quantity::ZERO, |all| quantity(all) - totals.amount(resource))
        };
        let grade = first.ranges.iter().map(|range| class_of(models, &range.name, free(&range.name))).min();
        if let Some(Some(index)) = grade {
            counts[index] += 1;
        }
    }
    models
        .iter()
        .zip(counts)
        .map(|(model, count)| AllocatableModeling { grade: model.grade, count })
        .collect()
}

/// Returns the index of the last class whose lower bound is not above the amount.
fn class_of(models: &[ResourceModel], resource: &str, amount: Quantity) -> Option<usize> {
    models.iter().rposition(|model| {
        model.ranges.iter().any(|range| range.name == resource && quantity(&range.min) <= amount)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        entries.iter().map(|(name, amount)| ((*name).to_owned(), Text((*amount).to_owned()))).collect()
    }

    fn node(cpu: &str, memory: &str) -> NodeRecord {
        let allocatable = list(&[("cpu", cpu), ("memory", memory), ("pods", "110")]);
        NodeRecord { ready: true, allocatable, ..NodeRecord::default() }
    }

    fn pod(node: &str, cpu: &str, memory: &str) -> PodRecord {
        PodRecord {
            node: node.to_owned(),
            containers: vec![list(&[("cpu", cpu), ("memory", memory)])],
            ..PodRecord::default()
        }
    }

    #[track_caller]
    fn check(found: &ResourceList, expected: &[(&str, &str)]) {
        assert_eq!(found, &list(expected));
    }

    #[test]
    fn offers_and_requests_are_summed_up() {
        let fleet: BTreeMap<String, NodeRecord> =
            [("a".to_owned(), node("4", "8Gi")), ("b".to_owned(), node("2500m", "8Gi"))]
                .into_iter()
                .collect();
        let finished = PodRecord { finished: true, ..pod("a", "1", "1Gi") };
        let pods = [pod("a", "500m", "1Gi"), pod("", "1", "2Gi"), finished, pod("b", "250m", "512Mi")];
        let summary = resources(&fleet, &pods, &[]);
        check(&summary.allocatable, &[("cpu", "6500m"), ("memory", "16Gi"), ("pods", "220")]);
        check(&summary.allocated, &[("cpu", "750m"), ("memory", "1536Mi"), ("pods", "2")]);
        check(&summary.allocating, &[("cpu", "1"), ("memory", "2Gi"), ("pods", "1")]);
        assert!(summary.allocatable_modelings.is_empty());
    }

    #[test]
    fn what_a_pod_asks_for() {
        let containers = vec![
            list(&[("cpu", "1"), ("example.com/gpu", "1"), ("odd", "7")]),
            list(&[("cpu", "500m"), ("hugepages-2Mi", "4Mi"), ("attachable-volumes-x", "2")]),
        ];
        let init_containers = vec![list(&[("cpu", "2"), ("memory", "1Gi")]), list(&[("cpu", "1")])];
        let overhead = list(&[("cpu", "250m"), ("memory", "64Mi")]);
        let pod =
            PodRecord { node: "a".to_owned(), containers, init_containers, overhead, ..PodRecord::default() };
        // Init containers have ended when the others run; the pod's overhead is added to both.
        let expected = [
            ("cpu", "2250m"),
            ("memory", "1088Mi"),
            ("example.com/gpu", "1"),
            ("hugepages-2Mi", "4Mi"),
            ("attachable-volumes-x", "2"),
            ("pods", "1"),
        ];
        check(&resources(&BTreeMap::new(), &[pod], &[]).allocated, &expected);
    }

    #[test]
    fn a_node_that_takes_no_more_pods_has_no_class() {
        let full = |pods: &str| NodeRecord {
            allocatable: list(&[("cpu", "8"), ("memory", "64Gi"), ("pods", pods)]),
            ..node("8", "64Gi")
        };
        let models = api::cluster::default_resource_models();
        let counted = |pods: &str, all: &[PodRecord]| -> i64 {
            let fleet = [("a".to_owned(), full(pods))].into_iter().collect();
            resources(&fleet, all, &models).allocatable_modelings.iter().map(|each| each.count).sum()
        };
        let there = pod("a", "1", "1Gi");
        assert_eq!(counted("1", &[]), 1);
        assert_eq!(counted("1", std::slice::from_ref(&there)), 0, "it is full");
        assert_eq!(counted("2", std::slice::from_ref(&there)), 1);
        let over = PodRecord { finished: true, ..there.clone() };
        assert_eq!(counted("1", &[over]), 1, "what has finished takes no place");
        let waiting = PodRecord { node: String::new(), ..there };
        assert_eq!(counted("1", &[waiting]), 1, "nor does what has found no node");
    }

    #[test]
    fn nothing_asked_for_leaves_the_lists_empty() {
        let summary = resources(&BTreeMap::new(), &[], &api::cluster::default_resource_models());
        assert!(summary.allocated.is_empty() && summary.allocating.is_empty());
        assert!(summary.allocatable_modelings.iter().all(|modeling| modeling.count == 0));
    }

    #[test]
    fn a_node_belongs_to_the_class_of_its_scarcest_resource() {
        let fleet: BTreeMap<String, NodeRecord> =
            [("a".to_owned(), node("8", "4Gi")), ("b".to_owned(), node("3", "64Gi"))].into_iter().collect();
        let models = api::cluster::default_resource_models();
        let counts = |pods: &[PodRecord]| -> Vec<i64> {
            resources(&fleet, pods, &models).allocatable_modelings.iter().map(|each| each.count).collect()
        };
        assert_eq!(counts(&[]), [0, 1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(counts(&[pod("a", "1", "1Gi")]), [1, 0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn nodes_are_counted_and_the_ready_ones_apart() {
        let fleet = [node("1", "1Gi"), NodeRecord::default()];
        assert_eq!(nodes(&fleet), NodeSummary { total_num: 2, ready_num: 1 });
    }
}
