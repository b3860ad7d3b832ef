//! The general estimator: how many replicas, or sets of components, a cluster can still hold by its own report.
//!
//! In: the capacity of a cluster, what is asked for, and workloads that were placed there but are not yet visible in
//! the report. Out: a count.
//!
//! Counts are cut to 32 bits where upstream cuts them, so that absurd capacities give the same absurd answers.

use super::simulate::{Request, Simulator};
use super::{Amount, Capacity, Demand, Dimension, Models, Part};
use crate::symbols::Symbols;

/// A workload that was placed on a cluster but is not yet visible in the cluster's report.
pub(crate) type Assumed = Vec<Part>;

/// What the estimate may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Gate CustomizedClusterResourceModeling.
    pub(crate) models: bool,
}

/// A demand looked up in one fleet, ready to be divided into many capacities.
pub(crate) struct Query<'a> {
    demand: Option<&'a Demand>,
    request: Option<Request>,
    /// Amounts per replica with the symbol under which clusters know the resource.
    items: Vec<(Option<crate::symbols::Symbol>, Dimension, Amount)>,
}

impl<'a> Query<'a> {
    pub(crate) fn new(demand: Option<&'a Demand>, symbols: &Symbols) -> Self {
        let items = demand.iter().flat_map(|demand| &demand.items);
        Self {
            demand,
            request: demand.map(|demand| Request::new(demand, symbols)),
            items: items.map(|item| (symbols.find(&item.name), item.dimension, item.amount)).collect(),
        }
    }

    /// Returns how many replicas the cluster can still hold.
    pub(crate) fn replicas(
        &self,
        capacity: Option<&Capacity>,
        assumed: &[Assumed],
        options: Options,
        symbols: &Symbols,
    ) -> i64 {
        let Some(capacity) = capacity else { return 0 };
        let pods = (capacity.pods - assumed_pods(assumed, true)).max(0);
        if pods <= 0 {
            return 0;
        }
        let Some(request) = &self.request else { return cut(pods) };
        if let (true, Models::Nodes(classes)) = (options.models, &capacity.models) {
            let fit = if assumed.is_empty() {
                // One replica at a time, first fit: every node ends up filled as far as it goes.
                let per_class =
                    classes.iter().map(|class| class.count.saturating_mul(request.fits_into(&class.room)));
                per_class.fold(0_i64, i64::saturating_add).min(i32::MAX.into())
            } else {
                let mut nodes = Simulator::new(classes);
                for workload in assumed.iter().filter(|parts| !parts.is_empty()) {
                    nodes.place(workload, 1, symbols);
                }
                let single = [Part { replicas: 1, demand: self.demand.cloned().unwrap_or_default() }];
                nodes.place(&single, i32::MAX.into(), symbols)
            };
            return cut(pods.min(fit));
        }
        cut(pods.min(self.by_summary(capacity, assumed)))
    }

    fn by_summary(&self, capacity: &Capacity, assumed: &[Assumed]) -> i64 {
        let mut most = i64::MAX;
        for (index, (name, dimension, want)) in self.items.iter().enumerate() {
            if want.value <= 0 {
                continue;
            }
            let Some(free) = capacity.free(*name) else { return 0 };
            let (mut have, want) = match dimension {
                Dimension::Cpu => (free.milli, want.milli),
                _ => (free.value, want.value),
            };
            if !assumed.is_empty() {
                let demand = self.demand.expect("items come from the demand");
                have = have.saturating_sub(assumed_amount(assumed, &demand.items[index].name));
            }
            // Rounding up keeps the sign, so "nothing left" is the same in thousandths and in whole units.
            if have <= 0 {
                return 0;
            }
            most = most.min(have / want);
        }
        most
    }
}

/// Returns how many complete sets of the parts the cluster can still hold.
pub(crate) fn sets(
    capacity: Option<&Capacity>,
    parts: &[Part],
    assumed: &[Assumed],
    options: Options,
    symbols: &Symbols,
) -> i64 {
    let Some(capacity) = capacity else { return 0 };
    if capacity.pods <= 0 {
        return 0;
    }
    let pods = capacity.pods - assumed_pods(assumed, false);
    if pods <= 0 {
        return 0;
    }
    let pods_per_set: i64 = parts.iter().map(|part| part.replicas).sum();
    if pods_per_set <= 0 {
        return cut(pods);
    }
    let mut bound = cut(pods / pods_per_set);
    for (name, want) in per_set(parts) {
        if want <= 0 {
            continue;
        }
        let free = capacity.free(symbols.find(name)).map_or(0, |free| free.milli);
        let have = free.saturating_sub(assumed_milli(assumed, name));
        if have <= 0 {
            return 0;
        }
        bound = bound.min(cut(have / want));
    }
    if let (true, Models::Nodes(classes)) = (options.models, &capacity.models) {
        let mut nodes = Simulator::new(classes);
        for workload in assumed.iter().filter(|parts| !parts.is_empty()) {
            nodes.place(workload, 1, symbols);
        }
        bound = bound.min(nodes.place(parts, bound, symbols));
    }
    bound
}

/// Returns what one set takes of each resource, in thousandths.
///
/// Upstream counts thousandths of what is written with a decimal suffix and whole units of what is written with a binary one, also
/// when request and capacity are written differently: then memory of `50000000` bytes does not fit into `65Gi`.
fn per_set(parts: &[Part]) -> std::collections::BTreeMap<&str, i64> {
    let mut sums = std::collections::BTreeMap::new();
    for part in parts {
        for item in &part.demand.items {
            let sum: &mut i64 = sums.entry(item.name.as_str()).or_default();
            *sum = sum.saturating_add(item.amount.milli.saturating_mul(part.replicas));
        }
    }
    sums
}

/// Cuts a count to 32 bits as a Go conversion does.
fn cut(count: i64) -> i64 {
    i64::from(count as i32)
}

fn parts(assumed: &[Assumed]) -> impl Iterator<Item = &Part> {
    assumed.iter().flatten()
}

fn assumed_pods(assumed: &[Assumed], positive_only: bool) -> i64 {
    parts(assumed).map(|part| part.replicas).filter(|replicas| !positive_only || *replicas > 0).sum()
}

/// Returns what the assumed workloads take of a resource: thousandths of cpu, whole units of everything else.
fn assumed_amount(assumed: &[Assumed], name: &str) -> i64 {
    let mut sum = 0i64;
    for part in parts(assumed).filter(|part| part.replicas > 0) {
        for item in part.demand.items.iter().filter(|item| item.name == name) {
            let each = if item.dimension == Dimension::Cpu { item.amount.milli } else { item.amount.value };
            sum = sum.saturating_add(each.saturating_mul(part.replicas));
        }
    }
    sum
}

fn assumed_milli(assumed: &[Assumed], name: &str) -> i64 {
    let mut sum = 0i64;
    for part in parts(assumed) {
        for item in part.demand.items.iter().filter(|item| item.name == name) {
            sum = sum.saturating_add(item.amount.milli.saturating_mul(part.replicas));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use api::cluster::Cluster;
    use serde_json::json;

    use super::*;

    const WITH_MODELS: Options = Options { models: true };

    fn capacity(spec: serde_json::Value, summary: serde_json::Value) -> (Option<Capacity>, Symbols) {
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m"},
            "spec": spec, "status": {"resourceSummary": summary},
        }))
        .unwrap();
        let mut symbols = Symbols::default();
        (Capacity::of(&cluster, &mut symbols), symbols)
    }

    fn demand(list: serde_json::Value) -> Demand {
        Demand::of(&serde_json::from_value(list).unwrap())
    }

    fn graded() -> (serde_json::Value, serde_json::Value) {
        // Example E17: nodes with 0, 1, 1 and 2 cores.
        let grade = |grade: u32, min: &str, max: &str| json!({"grade": grade, "ranges": [{"name": "cpu", "min": min, "max": max}]});
        let spec = json!({"syncMode": "Push", "resourceModels": [grade(0, "0", "1"), grade(1, "1", "2"), grade(2, "2", "99")]});
        let summary = json!({
            "allocatable": {"cpu": "6", "pods": "50"}, "allocated": {"cpu": "100m"},
            "allocatableModelings": [{"grade": 0, "count": 1}, {"grade": 1, "count": 2}, {"grade": 2, "count": 1}],
        });
        (spec, summary)
    }

    #[test]
    fn models_count_what_fits_on_single_nodes() {
        let (spec, summary) = graded();
        let (capacity, symbols) = capacity(spec, summary);
        let demand = demand(json!({"cpu": "600m"}));
        let query = Query::new(Some(&demand), &symbols);
        assert_eq!(query.replicas(capacity.as_ref(), &[], WITH_MODELS, &symbols), 5);
        assert_eq!(query.replicas(capacity.as_ref(), &[], Options { models: false }, &symbols), 9);
    }

    #[test]
    fn assumed_workloads_take_their_place_first() {
        let (spec, summary) = graded();
        let (capacity, symbols) = capacity(spec, summary);
        let demand = demand(json!({"cpu": "600m"}));
        let query = Query::new(Some(&demand), &symbols);
        // Two assumed replicas of 900m fill both one-core nodes; three of ours are left on the two-core node.
        let assumed = vec![vec![Part { replicas: 2, demand: self::demand(json!({"cpu": "900m"})) }]];
        assert_eq!(query.replicas(capacity.as_ref(), &assumed, WITH_MODELS, &symbols), 3);
        // By the summary 5.9 − 1.8 = 4.1 cores are left.
        assert_eq!(query.replicas(capacity.as_ref(), &assumed, Options { models: false }, &symbols), 6);
    }

    #[test]
    fn a_resource_the_cluster_lacks_means_nothing_fits() {
        let (capacity, symbols) =
            capacity(json!({"syncMode": "Push"}), json!({"allocatable": {"cpu": "6", "pods": "50"}}));
        let gpu = demand(json!({"cpu": "1", "nvidia.com/gpu": "1"}));
        assert_eq!(
            Query::new(Some(&gpu), &symbols).replicas(capacity.as_ref(), &[], WITH_MODELS, &symbols),
            0
        );
        let nothing = demand(json!({"nvidia.com/gpu": "0"}));
        assert_eq!(
            Query::new(Some(&nothing), &symbols).replicas(capacity.as_ref(), &[], WITH_MODELS, &symbols),
            50
        );
        assert_eq!(Query::new(None, &symbols).replicas(capacity.as_ref(), &[], WITH_MODELS, &symbols), 50);
        assert_eq!(Query::new(None, &symbols).replicas(None, &[], WITH_MODELS, &symbols), 0);
    }

    #[test]
    fn sets_are_bounded_by_pods_and_every_resource() {
        let (capacity, symbols) = capacity(
            json!({"syncMode": "Push"}),
            json!({"allocatable": {"cpu": "6", "memory": "8Gi", "pods": "20"}}),
        );
        let part = |replicas, cpu: &str, memory: &str| Part {
            replicas,
            demand: demand(json!({"cpu": cpu, "memory": memory})),
        };
        let parts = [part(1, "500m", "1Gi"), part(2, "250m", "256Mi")];
        // Pods: 20/3 = 6, cpu: 6/1 = 6, memory: 8/1.5 = 5.
        assert_eq!(sets(capacity.as_ref(), &parts, &[], WITH_MODELS, &symbols), 5);
        assert_eq!(sets(capacity.as_ref(), &[part(0, "1", "1Gi")], &[], WITH_MODELS, &symbols), 20);
        // However amounts are written: 8Gi / 2G = 4.
        assert_eq!(sets(capacity.as_ref(), &[part(1, "1", "2G")], &[], WITH_MODELS, &symbols), 4);
        assert_eq!(sets(capacity.as_ref(), &[part(1, "1", "2000000000")], &[], WITH_MODELS, &symbols), 4);
    }
}
