//! What a cluster can still hold, as plain integers.
//!
//! In: the resource summary and the resource models of a Cluster, the requests of a workload. Out: [`Capacity`] and
//! [`Demand`], which [`general`] divides into replicas and [`simulate`] places on virtual nodes.
//!
//! Quantities are parsed once, when a cluster or a binding changes. The units are upstream's: `cpu` counts in
//! thousandths, everything else in whole units rounded up.

pub(crate) mod general;
pub(crate) mod simulate;

use std::collections::BTreeMap;

use api::cluster::{Cluster, ResourceSummary};
use api::work::{Component, ResourceList};
use apimachinery::names;
use apimachinery::quantity::Quantity;

use crate::symbols::{Symbol, Symbols};

/// Pods that a virtual node of a resource model holds: the limit that Kubernetes recommends.
const PODS_PER_NODE: i64 = 110;

/// What a cluster can still hold.
#[derive(Debug, Clone)]
pub(crate) struct Capacity {
    /// Free pod slots, not negative.
    pods: i64,
    /// Free amounts of every allocatable resource, sorted by symbol.
    free: Vec<(Symbol, Amount)>,
    models: Models,
}

/// One amount in the units in which it may be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Amount {
    /// Whole units, rounded up.
    value: i64,
    /// Thousandths, rounded up.
    milli: i64,
}

impl Amount {
    fn new(quantity: Quantity) -> Self {
        Self { value: quantity.value(), milli: quantity.milli_value() }
    }
}

/// Virtual nodes of a cluster.
#[derive(Debug, Clone)]
pub(crate) enum Models {
    /// The cluster reports no counts, or models and counts do not go together: the summary decides.
    Unusable,
    /// Classes of nodes in ascending grade.
    Nodes(Vec<NodeClass>),
}

/// Equal virtual nodes.
#[derive(Debug, Clone)]
pub(crate) struct NodeClass {
    count: i64,
    room: Room,
}

/// What one node can still hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    milli_cpu: i64,
    memory: i64,
    ephemeral_storage: i64,
    pods: i64,
    scalars: Vec<(Symbol, i64)>,
}

impl Capacity {
    /// Returns `None` when the cluster reports no summary: then nothing fits.
    pub(crate) fn of(cluster: &Cluster, symbols: &mut Symbols) -> Option<Self> {
        let summary = cluster.status.resource_summary.as_ref()?;
        let pods = |list: &ResourceList| quantity_of(list, "pods").map_or(0, |pods| pods.value());
        let mut free: Vec<(Symbol, Amount)> = summary
            .allocatable
            .keys()
            .filter_map(|name| Some((symbols.intern(name), Amount::new(free_of(summary, name)?))))
            .collect();
        free.sort_unstable_by_key(|(name, _)| *name);
        Some(Self {
            pods: (pods(&summary.allocatable) - pods(&summary.allocated) - pods(&summary.allocating)).max(0),
            free,
            models: models_of(cluster, summary, symbols),
        })
    }

    /// Returns the capacity in words, independent of the numbers that names happen to have.
    pub(crate) fn describe(&self, symbols: &Symbols) -> String {
        let free: BTreeMap<&str, Amount> =
            self.free.iter().map(|(name, amount)| (symbols.text(*name), *amount)).collect();
        let nodes: Vec<String> = match &self.models {
            Models::Unusable => Vec::new(),
            Models::Nodes(classes) => classes
                .iter()
                .map(|NodeClass { count, room }| {
                    let scalars: BTreeMap<&str, i64> =
                        room.scalars.iter().map(|(name, amount)| (symbols.text(*name), *amount)).collect();
                    let Room { milli_cpu, memory, ephemeral_storage, pods, .. } = room;
                    format!("{count} × {milli_cpu} {memory} {ephemeral_storage} {pods} {scalars:?}")
                })
                .collect(),
        };
        format!("{} {free:?} {nodes:?}", self.pods)
    }

    fn free(&self, name: Option<Symbol>) -> Option<Amount> {
        let index = self.free.binary_search_by_key(&name?, |(name, _)| *name).ok()?;
        Some(self.free[index].1)
    }
}

/// Returns allocatable − allocated − allocating, `None` when the cluster does not offer the resource.
fn free_of(summary: &ResourceSummary, name: &str) -> Option<Quantity> {
    let mut free = quantity_of(&summary.allocatable, name)?;
    for taken in [&summary.allocated, &summary.allocating] {
        if let Some(taken) = quantity_of(taken, name) {
            free -= taken;
        }
    }
    Some(free)
}

/// Returns an amount of a list; one that is not a quantity counts as absent, since the API refuses such objects.
fn quantity_of(list: &ResourceList, name: &str) -> Option<Quantity> {
    Quantity::parse(&list.get(name)?.0).ok()
}

fn models_of(cluster: &Cluster, summary: &ResourceSummary, symbols: &mut Symbols) -> Models {
    let counts = &summary.allocatable_modelings;
    let models = &cluster.spec.resource_models;
    if counts.is_empty() || models.is_empty() || counts.iter().any(|count| count.count < 0) {
        return Models::Unusable;
    }
    let mut count_of: BTreeMap<u32, i64> = BTreeMap::new();
    for count in counts {
        let sum = count_of.entry(count.grade).or_default();
        *sum = sum.saturating_add(count.count);
    }
    // A node of a grade has at least the lower bounds of its ranges. Of several models with one grade the last counts.
    let by_grade: BTreeMap<u32, _> = models.iter().map(|model| (model.grade, &model.ranges)).collect();
    let classes = by_grade.into_iter().filter_map(|(grade, ranges)| {
        let count = count_of.get(&grade).copied().filter(|count| *count > 0)?;
        let list: ResourceList = ranges.iter().map(|range| (range.name.clone(), range.min.clone())).collect();
        Some(NodeClass { count, room: Room { pods: PODS_PER_NODE, ..Room::of(&Demand::of(&list), symbols) } })
    });
    Models::Nodes(classes.collect())
}

impl Room {
    fn of(list: &Demand, symbols: &mut Symbols) -> Self {
        let mut room = Self::default();
        for item in &list.items {
            match item.dimension {
                Dimension::Cpu => room.milli_cpu = item.amount.milli,
                Dimension::Memory => room.memory = item.amount.value,
                Dimension::EphemeralStorage => room.ephemeral_storage = item.amount.value,
                Dimension::Scalar => room.scalars.push((symbols.intern(&item.name), item.amount.value)),
                Dimension::Ignored => {}
            }
        }
        room
    }

    fn scalar(&self, name: Option<Symbol>) -> i64 {
        name.and_then(|name| self.scalars.iter().find(|(known, _)| *known == name))
            .map_or(0, |(_, room)| *room)
    }
}

/// What one replica asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    name: String,
    dimension: Dimension,
    amount: Amount,
}

/// How a resource counts on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dimension {
    Cpu,
    Memory,
    EphemeralStorage,
    /// Counted by name: extended resources, huge pages, attachable volumes.
    Scalar,
    /// Not a resource of nodes (`pods`, `storage`, unknown plain names).
    Ignored,
}

impl Dimension {
    fn of(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::EphemeralStorage,
            _ if is_scalar(name) => Self::Scalar,
            _ => Self::Ignored,
        }
    }
}

fn is_scalar(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    let extended = !native
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty();
    extended
        || name.starts_with("hugepages-")
        || name.contains("kubernetes.io/")
        || name.starts_with("attachable-volumes-")
}

impl Demand {
    pub(crate) fn of(list: &ResourceList) -> Self {
        let items = list.keys().filter_map(|name| {
            let amount = Amount::new(quantity_of(list, name)?);
            Some(Item { name: name.clone(), dimension: Dimension::of(name), amount })
        });
        Self { items: items.collect() }
    }
}

/// A part of a workload: so many replicas of one demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    replicas: i64,
    demand: Demand,
}

impl Part {
    pub(crate) fn of(component: &Component) -> Self {
        let demand = component.replica_requirements.as_ref().map(|needs| Demand::of(&needs.resource_request));
        Self { replicas: component.replicas.into(), demand: demand.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_of_nodes_are_told_apart_by_name() {
        for (name, dimension) in [
            ("cpu", Dimension::Cpu),
            ("memory", Dimension::Memory),
            ("ephemeral-storage", Dimension::EphemeralStorage),
            ("nvidia.com/gpu", Dimension::Scalar),
            ("hugepages-2Mi", Dimension::Scalar),
            ("attachable-volumes-csi", Dimension::Scalar),
            ("node.kubernetes.io/thing", Dimension::Scalar),
            ("requests.example.com/gpu", Dimension::Ignored),
            ("pods", Dimension::Ignored),
            ("storage", Dimension::Ignored),
            ("gpu", Dimension::Ignored),
        ] {
            assert_eq!(Dimension::of(name), dimension, "{name}");
        }
    }
}
