//! Places replicas on virtual nodes, first fit, and counts how many complete sets go in.
//!
//! In: nodes with room, the parts of a set. Out: the number of complete sets. A set that does not fit completely ends
//! the count, and what was already taken for it is not given back, as upstream.
//!
//! Upstream walks all nodes for every replica. A node that has no room for a part now will never have any, so each part
//! remembers where to go on; that changes no result.

use super::{Demand, Dimension, NodeClass, Part, Room};
use crate::symbols::{Symbol, Symbols};

/// How many nodes of one cluster are filled at most. It says itself how many it has, and may say anything; Kubernetes supports 5,000.
const NODES: usize = 100_000;

/// Virtual nodes that are being filled.
pub(crate) struct Simulator {
    nodes: Vec<Room>,
}

impl Simulator {
    pub(crate) fn new(classes: &[NodeClass]) -> Self {
        let nodes = classes
            .iter()
            .flat_map(|class| std::iter::repeat_n(&class.room, usize::try_from(class.count).unwrap_or(0)))
            .take(NODES)
            .cloned()
            .collect();
        Self { nodes }
    }

    /// Places sets until one does not fit, at most `bound` of them; returns how many went in.
    pub(crate) fn place(&mut self, parts: &[Part], bound: i64, symbols: &Symbols) -> i64 {
        let mut parts: Vec<Filler> = parts.iter().map(|part| Filler::new(part, symbols)).collect();
        // Upstream counts on for two billion rounds when there is nothing to place.
        if parts.iter().all(|part| part.replicas <= 0) {
            return bound;
        }
        let mut sets = 0;
        while sets < bound && parts.iter_mut().all(|part| part.place(&mut self.nodes)) {
            sets += 1;
        }
        sets
    }
}

/// A part with the first node that may still have room for it.
struct Filler {
    replicas: i64,
    request: Request,
    next: usize,
}

impl Filler {
    fn new(part: &Part, symbols: &Symbols) -> Self {
        Self { replicas: part.replicas, request: Request::new(&part.demand, symbols), next: 0 }
    }

    /// Places one set's worth of replicas; tells whether all went in.
    fn place(&mut self, nodes: &mut [Room]) -> bool {
        let mut remaining = self.replicas;
        while remaining > 0 {
            let Some(node) = nodes.get_mut(self.next) else { return false };
            let fit = self.request.fits_into(node).min(remaining);
            if fit == 0 {
                self.next += 1;
                continue;
            }
            self.request.take_from(node, fit);
            remaining -= fit;
        }
        true
    }
}

/// What one replica takes from a node.
pub(crate) struct Request {
    milli_cpu: i64,
    memory: i64,
    ephemeral_storage: i64,
    scalars: Vec<(Option<Symbol>, i64)>,
}

impl Request {
    pub(crate) fn new(demand: &Demand, symbols: &Symbols) -> Self {
        let mut request = Self { milli_cpu: 0, memory: 0, ephemeral_storage: 0, scalars: Vec::new() };
        for item in &demand.items {
            match item.dimension {
                Dimension::Cpu => request.milli_cpu = item.amount.milli,
                Dimension::Memory => request.memory = item.amount.value,
                Dimension::EphemeralStorage => request.ephemeral_storage = item.amount.value,
                Dimension::Scalar => request.scalars.push((symbols.find(&item.name), item.amount.value)),
                Dimension::Ignored => {}
            }
        }
        request
    }

    /// Returns how many replicas fit into what the node has left.
    pub(crate) fn fits_into(&self, room: &Room) -> i64 {
        let mut fit = room.pods;
        let mut limit = |have: i64, want: i64| {
            if want > 0 {
                fit = fit.min(have / want);
            }
        };
        limit(room.milli_cpu, self.milli_cpu);
        limit(room.memory, self.memory);
        limit(room.ephemeral_storage, self.ephemeral_storage);
        for (name, want) in &self.scalars {
            limit(room.scalar(*name), *want);
        }
        fit
    }

    fn take_from(&self, room: &mut Room, replicas: i64) {
        let take = |have: &mut i64, want: i64| *have = (*have - want.saturating_mul(replicas)).max(0);
        take(&mut room.milli_cpu, self.milli_cpu);
        take(&mut room.memory, self.memory);
        take(&mut room.ephemeral_storage, self.ephemeral_storage);
        take(&mut room.pods, 1);
        for (name, want) in &self.scalars {
            if let Some((_, have)) = room.scalars.iter_mut().find(|(known, _)| Some(*known) == *name) {
                take(have, *want);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_claims_to_have_any_number_of_nodes_costs_little() {
        let class = |count| NodeClass { count, room: Room::default() };
        assert_eq!(Simulator::new(&[class(3), class(-1), class(2)]).nodes.len(), 5);
        assert_eq!(Simulator::new(&[class(i64::MAX), class(i64::MAX)]).nodes.len(), NODES);
    }
}
