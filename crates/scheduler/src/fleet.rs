//! The member clusters, prepared for many decisions.
//!
//! In: Cluster objects, one by one as they change. Out: members sorted by name, with labels, taints, APIs and resources
//! as numbers. Building a member costs some string work once; a decision then compares integers.
//!
//! A `Fleet` is cheap to clone: clones share the members, so a decision can work on a snapshot while the next one is
//! being built. Numbers are good for the fleet they come from and its clones; another one may have others.

use std::collections::HashMap;
use std::sync::Arc;

use api::cluster::Cluster;

use crate::capacity::Capacity;
use crate::symbols::{Bits, Symbol, Symbols};
use crate::taints::Taint;

/// How many entries the tables must have before they are rebuilt: what a fleet of a hundred clusters needs, a few hundred
/// kilobytes. Less is not worth the work.
const WORTH_REBUILDING: usize = 4096;

/// The member clusters that workloads can go to.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// Sorted by name, so that comparing positions compares names.
    members: Vec<Arc<Member>>,
    /// The names alone, shared with diagnoses; rebuilt only when a cluster comes or goes.
    names: Arc<[Arc<str>]>,
    /// Entries are only added; `tidy` bounds how many are out of use.
    tables: Arc<Tables>,
    /// How many entries the tables had when all of them were in use.
    used: usize,
}

/// What members are described with.
#[derive(Debug, Clone, Default)]
struct Tables {
    symbols: Symbols,
    apis: HashMap<(Symbol, Symbol), u32>,
    taints: Vec<Taint>,
    taint_numbers: HashMap<Taint, u32>,
}

impl Tables {
    /// Returns how many entries there are.
    fn len(&self) -> usize {
        self.symbols.len() + self.apis.len() + self.taints.len()
    }
}

/// A member cluster.
#[derive(Debug)]
pub struct Member {
    pub(crate) name: Arc<str>,
    cluster: Arc<Cluster>,
    pub(crate) name_symbol: Symbol,
    /// Sorted by key.
    labels: Vec<(Symbol, Symbol)>,
    provider: Option<Symbol>,
    region: Option<Symbol>,
    pub(crate) zones: Vec<Symbol>,
    /// Taints that repel workloads, in the order of the spec.
    pub(crate) taints: Vec<u32>,
    apis: Bits,
    pub(crate) deleting: bool,
    pub(crate) capacity: Option<Capacity>,
}

impl Fleet {
    /// Builds a fleet of these clusters; of several with one name the last counts.
    pub fn new(clusters: impl IntoIterator<Item = Arc<Cluster>>) -> Self {
        let mut fleet = Self::default();
        let mut by_name: std::collections::BTreeMap<Arc<str>, Arc<Member>> =
            std::collections::BTreeMap::new();
        let tables = Arc::make_mut(&mut fleet.tables);
        for cluster in clusters {
            let member = Arc::new(Member::new(cluster, tables));
            by_name.insert(member.name.clone(), member);
        }
        fleet.members = by_name.into_values().collect();
        fleet.used = fleet.tables.len();
        fleet.rename();
        fleet
    }

    /// Adds a cluster or replaces the one of the same name.
    pub fn upsert(&mut self, cluster: Arc<Cluster>) {
        let position = self.search(name_of(&cluster));
        if let Ok(position) = position
            && Arc::ptr_eq(&self.members[position].cluster, &cluster)
        {
            return;
        }
        let member = Arc::new(Member::new(cluster, Arc::make_mut(&mut self.tables)));
        match position {
            Ok(position) => self.members[position] = member,
            Err(position) => {
                self.members.insert(position, member);
                self.rename();
            }
        }
        self.tidy();
    }

    /// Builds everything anew when the tables have doubled since all of their entries were in use: labels, kinds and taints
    /// come and go, and whoever writes a Cluster chooses them. A rebuild costs as much as all members do, and there is
    /// none before as many entries have come, so that it costs each of them little.
    fn tidy(&mut self) {
        if self.tables.len() > WORTH_REBUILDING.max(self.used.saturating_mul(2)) {
            *self = Self::new(self.members.iter().map(|member| Arc::clone(&member.cluster)));
        }
    }

    /// Removes a cluster; tells whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let Ok(position) = self.search(name) else { return false };
        self.members.remove(position);
        self.rename();
        true
    }

    fn search(&self, name: &str) -> Result<usize, usize> {
        self.members.binary_search_by(|member| (*member.name).cmp(name))
    }

    fn rename(&mut self) {
        self.names = self.members.iter().map(|member| member.name.clone()).collect();
    }

    /// Returns the number of clusters, deleting ones included.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns a member by name.
    pub fn get(&self, name: &str) -> Option<&Member> {
        Some(&self.members[self.search(name).ok()?])
    }

    /// Returns the members in the order of their names.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.iter().map(|member| &**member)
    }

    pub(crate) fn position(&self, name: &str) -> Option<u32> {
        self.search(name).ok().map(|position| position as u32)
    }

    pub(crate) fn at(&self, position: u32) -> &Member {
        &self.members[position as usize]
    }

    pub(crate) fn names(&self) -> &Arc<[Arc<str>]> {
        &self.names
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.tables.symbols
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        &self.tables.taints
    }

    /// Returns the number of an API; `None` means that no cluster serves it.
    pub(crate) fn api(&self, api_version: &str, kind: &str) -> Option<u32> {
        let symbols = self.symbols();
        self.tables.apis.get(&(symbols.find(api_version)?, symbols.find(kind)?)).copied()
    }

    /// Recomputes everything from the Cluster objects and tells whether it is what was maintained step by step.
    pub fn check(&self) -> bool {
        let fresh = Self::new(self.members.iter().map(|member| member.cluster.clone()));
        let describe = |fleet: &Self| -> Vec<String> {
            fleet.members.iter().map(|member| format!("{:?}", Described { member, fleet })).collect()
        };
        fresh.names == self.names && describe(&fresh) == describe(self)
    }
}

/// A member in words instead of numbers, which depend on the order in which clusters came.
struct Described<'a> {
    member: &'a Member,
    fleet: &'a Fleet,
}

impl std::fmt::Debug for Described<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |symbol: &Symbol| self.fleet.symbols().text(*symbol).to_owned();
        let mut labels: Vec<_> =
            self.member.labels.iter().map(|(key, value)| (text(key), text(value))).collect();
        labels.sort();
        let taints: Vec<String> =
            self.member.taints.iter().map(|taint| self.fleet.taints()[*taint as usize].to_string()).collect();
        let served = self.fleet.tables.apis.iter().filter(|(_, number)| self.member.apis.contains(**number));
        let mut apis: Vec<_> = served.map(|((version, kind), _)| (text(version), text(kind))).collect();
        apis.sort();
        out.debug_struct(self.member.name())
            .field("labels", &labels)
            .field("taints", &taints)
            .field("apis", &apis)
            .field("provider", &self.member.provider.as_ref().map(text))
            .field("region", &self.member.region.as_ref().map(text))
            .field("zones", &self.member.zones.iter().map(text).collect::<Vec<_>>())
            .field("deleting", &self.member.deleting)
            .field("capacity", &self.member.capacity.as_ref().map(|all| all.describe(self.fleet.symbols())))
            .finish()
    }
}

fn name_of(cluster: &Cluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

impl Member {
    fn new(cluster: Arc<Cluster>, tables: &mut Tables) -> Self {
        let symbols = &mut tables.symbols;
        let mut labels: Vec<(Symbol, Symbol)> = cluster
            .metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| (symbols.intern(key), symbols.intern(value)))
            .collect();
        labels.sort_unstable();
        let mut apis = Bits::default();
        for enablement in &cluster.status.api_enablements {
            let version = symbols.intern(&enablement.group_version);
            for resource in &enablement.resources {
                let next = tables.apis.len() as u32;
                apis.insert(*tables.apis.entry((version, symbols.intern(&resource.kind))).or_insert(next));
            }
        }
        let mut taints = Vec::new();
        for taint in cluster.spec.taints.iter().filter(|taint| Taint::repels(&taint.effect)) {
            let taint = Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            };
            let next = tables.taints.len() as u32;
            let number = *tables.taint_numbers.entry(taint.clone()).or_insert(next);
            if number == next {
                tables.taints.push(taint);
            }
            taints.push(number);
        }
        let mut property = |text: &str| (!text.is_empty()).then(|| symbols.intern(text));
        let (provider, region) = (property(&cluster.spec.provider), property(&cluster.spec.region));
        // The keys by which fieldSelector addresses the two.
        symbols.intern("provider");
        symbols.intern("region");
        Self {
            name: name_of(&cluster).into(),
            name_symbol: symbols.intern(name_of(&cluster)),
            labels,
            provider,
            region,
            zones: cluster.spec.zones.iter().map(|zone| symbols.intern(zone)).collect(),
            taints,
            apis,
            deleting: cluster.metadata.deletion_timestamp.is_some(),
            capacity: Capacity::of(&cluster, symbols),
            cluster,
        }
    }

    /// Returns the cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the object that the member was made from, for plug-ins that look at more than this crate does.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub(crate) fn label(&self, key: Symbol) -> Option<Symbol> {
        self.labels.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// Returns the field that a field selector calls by this key; empty fields are absent.
    pub(crate) fn field(&self, key: Symbol, symbols: &Symbols) -> Option<Symbol> {
        match symbols.text(key) {
            "provider" => self.provider,
            "region" => self.region,
            _ => None,
        }
    }

    pub(crate) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    /// Returns the region, empty if the cluster has none.
    pub fn region(&self) -> &str {
        &self.cluster.spec.region
    }

    pub(crate) fn serves(&self, api: u32) -> bool {
        self.apis.contains(api)
    }
}

#[cfg(test)]
mod tests {
    use api::work::ResourceBindingSpec;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Assumptions, Groups, Options, Scheduler, World};

    /// A cluster that has other labels, kinds, taints and resources in each round.
    fn cluster(name: &str, round: usize) -> Arc<Cluster> {
        let (key, value, resource) =
            (format!("key-{round}"), format!("value-{round}"), format!("example.io/{round}"));
        let kinds = (0..20).map(|number| format!("Kind{round}x{number}"));
        let kinds: Vec<Value> = kinds.map(|kind| json!({"name": "things", "kind": kind})).collect();
        let cluster = json!({
            "metadata": {"name": name, "labels": {"env": "prod", key: value}},
            "spec": {"syncMode": "Push", "region": "eu", "taints": [{"key": value, "effect": "NoSchedule"}]},
            "status": {
                "apiEnablements": [
                    {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]},
                    {"groupVersion": "example.io/v1", "resources": kinds},
                ],
                "resourceSummary": {"allocatable": {"cpu": "1", "pods": "10", resource: "1"}},
            },
        });
        Arc::new(serde_json::from_value(cluster).expect("a cluster"))
    }

    /// Returns which clusters pass the filters, for kinds, labels and taints of a round and of all rounds.
    fn feasible(fleet: &Fleet, round: usize) -> Vec<String> {
        let (key, value) = (format!("key-{round}"), format!("value-{round}"));
        let kinds = [("apps/v1", "Deployment".to_owned()), ("example.io/v1", format!("Kind{round}x7"))];
        let affinities = [json!({}), json!({"labelSelector": {"matchLabels": {key: value}}})];
        let tolerations =
            [json!([]), json!([{"key": value, "operator": "Exists"}]), json!([{"operator": "Exists"}])];
        let scheduler = Scheduler::new(Options::default());
        let (workloads, assumptions) = (Groups::default(), Assumptions::default());
        let now = Timestamp::UNIX_EPOCH;
        let world = World { fleet, workloads: &workloads, assumptions: &assumptions, estimators: &[], now };
        let mut answers = Vec::new();
        for (api_version, kind) in &kinds {
            for affinity in &affinities {
                for tolerations in &tolerations {
                    let spec: ResourceBindingSpec = serde_json::from_value(json!({
                        "resource": {"apiVersion": api_version, "kind": kind, "namespace": "n", "name": "web"},
                        "placement": {"clusterAffinity": affinity, "clusterTolerations": tolerations},
                    }))
                    .expect("a spec");
                    answers.push(scheduler.feasible(world, &spec, "").join(" "));
                }
            }
        }
        answers
    }

    #[test]
    fn tables_stay_small_however_often_clusters_change_and_answers_stay_the_same() {
        let mut fleet = Fleet::new(["m1", "m2", "m3"].map(|name| cluster(name, 0)));
        let (snapshot, at_first) = (fleet.clone(), feasible(&fleet, 0));
        assert!(
            at_first.contains(&"m1 m2 m3".to_owned()) && at_first.contains(&String::new()),
            "{at_first:?}"
        );
        let mut rebuilt = 0;
        for round in 1..=1_000 {
            let before = fleet.tables.len();
            fleet.upsert(cluster("m1", round));
            fleet.upsert(cluster("passing", round));
            assert!(fleet.remove("passing"));
            assert!(fleet.tables.len() <= WORTH_REBUILDING, "round {round}: {}", fleet.tables.len());
            let smaller = fleet.tables.len() < before;
            rebuilt += usize::from(smaller);
            if smaller || round % 100 == 0 {
                assert!(fleet.check(), "round {round}");
                let fresh = Fleet::new([cluster("m1", round), cluster("m2", 0), cluster("m3", 0)]);
                for asked in [0, round - 1, round] {
                    assert_eq!(
                        feasible(&fleet, asked),
                        feasible(&fresh, asked),
                        "round {round} about {asked}"
                    );
                }
            }
        }
        assert!((2..100).contains(&rebuilt), "{rebuilt} rebuilds");
        assert_eq!(feasible(&snapshot, 0), at_first, "whoever has a snapshot is not disturbed");
    }

    #[test]
    fn a_large_fleet_is_not_rebuilt_while_it_is_in_use() {
        let clusters =
            |round: usize| (0..200).map(move |number| cluster(&format!("m{number:03}"), number + round));
        let mut fleet = Fleet::new(clusters(0));
        let used = fleet.used;
        assert!(used > WORTH_REBUILDING, "{used}");
        for cluster in clusters(0) {
            fleet.upsert(cluster);
        }
        assert_eq!((fleet.used, fleet.tables.len()), (used, used), "nothing has come");
        for round in 1..20 {
            for cluster in clusters(round * 200) {
                fleet.upsert(cluster);
                assert!(fleet.tables.len() <= 2 * fleet.used.max(used));
            }
        }
        assert!(fleet.check());
    }
}
