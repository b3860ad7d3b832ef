//! Rules between workloads: run where others of a group run (affinity), or where none of them does (anti-affinity).
//!
//! [`Groups`] knows which bindings belong to which group and where they are; the two plug-ins ask it. Groups are per
//! namespace. The first workload of an affinity group may go anywhere. A cluster that already runs the resource always
//! passes.
//!
//! A placement that was just written may not have come back through the watch yet. Such bindings are kept as
//! *assigning*, and whichever copy is newer counts.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use api::work::{ResourceBinding, ResourceBindingSpec};

use super::{Context, Filter, Plugin, Reason};
use crate::fleet::{Fleet, Member};
use crate::symbols::Bits;

/// Which bindings belong to which group, and where they are.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// As seen by the watch.
    seen: BTreeMap<Key, Entry>,
    /// As written by us and not yet fully applied.
    assigning: BTreeMap<Key, Entry>,
    by_group: BTreeMap<(Kind, String), BTreeSet<Key>>,
}

/// Namespace and name of a binding.
type Key = (String, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Affinity,
    AntiAffinity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    version: String,
    affinity: String,
    anti_affinity: String,
    clusters: Vec<String>,
}

impl Entry {
    fn new(binding: &ResourceBinding) -> Self {
        let groups = binding.spec.workload_affinity_groups.clone().unwrap_or_default();
        Self {
            version: binding.metadata.resource_version.clone().unwrap_or_default(),
            affinity: groups.affinity_group,
            anti_affinity: groups.anti_affinity_group,
            clusters: binding.spec.clusters.iter().map(|target| target.name.clone()).collect(),
        }
    }

    fn group(&self, kind: Kind) -> &str {
        match kind {
            Kind::Affinity => &self.affinity,
            Kind::AntiAffinity => &self.anti_affinity,
        }
    }
}

fn key_of(binding: &ResourceBinding) -> Key {
    let metadata = &binding.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

impl Groups {
    /// Takes over what the watch says about a binding, and forgets the assigning copy once that is outdated or the
    /// placement is fully applied.
    pub fn see(&mut self, binding: &ResourceBinding) {
        let key = key_of(binding);
        self.unlink(&key);
        let entry = Entry::new(binding);
        for kind in [Kind::Affinity, Kind::AntiAffinity] {
            if !entry.group(kind).is_empty() {
                self.by_group.entry((kind, entry.group(kind).to_owned())).or_default().insert(key.clone());
            }
        }
        if let Some(written) = self.assigning.get(&key)
            && !matches!(compare(&written.version, &entry.version), Some(Ordering::Greater))
        {
            if is_fully_applied(binding) {
                self.assigning.remove(&key);
            } else {
                self.assigning.insert(key.clone(), entry.clone());
            }
        }
        self.seen.insert(key, entry);
    }

    /// Remembers a binding as it was just written.
    pub fn assign(&mut self, binding: &ResourceBinding) {
        self.assigning.insert(key_of(binding), Entry::new(binding));
    }

    /// Forgets a deleted binding.
    pub fn forget(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.unlink(&key);
        self.seen.remove(&key);
        self.assigning.remove(&key);
    }

    fn unlink(&mut self, key: &Key) {
        let Some(entry) = self.seen.get(key) else { return };
        for kind in [Kind::Affinity, Kind::AntiAffinity] {
            let group = (kind, entry.group(kind).to_owned());
            if let Some(members) = self.by_group.get_mut(&group) {
                members.remove(key);
                if members.is_empty() {
                    self.by_group.remove(&group);
                }
            }
        }
    }

    /// Returns what the other members of the binding's group demand, in the order of their names.
    fn others(&self, kind: Kind, group: &str, spec: &ResourceBindingSpec, fleet: &Fleet) -> Vec<Other> {
        let own_name = api::names::binding(&spec.resource.kind, &spec.resource.name);
        let mut others = Vec::new();
        for key in self.by_group.get(&(kind, group.to_owned())).into_iter().flatten() {
            let seen = &self.seen[key];
            let mut entry = seen;
            if let Some(written) = self.assigning.get(key) {
                match compare(&written.version, &seen.version) {
                    None => {
                        others.push(Other::Incomparable);
                        continue;
                    }
                    Some(Ordering::Greater) => entry = written,
                    Some(_) => {}
                }
            }
            if key.0 != spec.resource.namespace || entry.group(kind) != group || key.1 == own_name {
                continue;
            }
            if kind == Kind::Affinity && entry.clusters.is_empty() {
                continue;
            }
            let mut clusters = Bits::default();
            for position in entry.clusters.iter().filter_map(|name| fleet.position(name)) {
                clusters.insert(position);
            }
            others.push(Other::On(clusters));
        }
        others
    }
}

/// Another workload of the group.
enum Other {
    On(Bits),
    /// Its two copies have versions that cannot be compared.
    Incomparable,
}

/// Compares resource versions as the API server's: numbers without leading zeros. Returns none for anything else.
fn compare(left: &str, right: &str) -> Option<Ordering> {
    let well_formed = |text: &str| {
        !text.is_empty() && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    (well_formed(left) && well_formed(right))
        .then(|| left.len().cmp(&right.len()).then_with(|| left.cmp(right)))
}

fn is_fully_applied(binding: &ResourceBinding) -> bool {
    let conditions = &binding.status.conditions;
    conditions.iter().any(|condition| condition.type_ == "FullyApplied" && condition.status == "True")
}

pub(super) struct WorkloadAntiAffinity;
pub(super) struct WorkloadAffinity;

impl Plugin for WorkloadAntiAffinity {
    fn name(&self) -> &'static str {
        "WorkloadAntiAffinity"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let group = &context.spec.workload_affinity_groups.as_ref()?.anti_affinity_group;
        check(context, Kind::AntiAffinity, group)
    }
}

impl Plugin for WorkloadAffinity {
    fn name(&self) -> &'static str {
        "WorkloadAffinity"
    }

    fn filter<'a>(&'a self, context: &Context<'a>) -> Option<Box<dyn Filter + 'a>> {
        let group = &context.spec.workload_affinity_groups.as_ref()?.affinity_group;
        check(context, Kind::Affinity, group)
    }
}

fn check<'a>(context: &Context<'a>, kind: Kind, group: &str) -> Option<Box<dyn Filter + 'a>> {
    if group.is_empty() {
        return None;
    }
    let others = context.workloads.others(kind, group, context.spec, context.fleet);
    Some(Box::new(Check { context: *context, kind, others }))
}

struct Check<'a> {
    context: Context<'a>,
    kind: Kind,
    others: Vec<Other>,
}

impl Filter for Check<'_> {
    fn reject(&self, position: u32, _member: &Member) -> Option<Reason> {
        if self.context.is_target(position) {
            return None;
        }
        self.others.iter().find_map(|other| match (other, self.kind) {
            (Other::Incomparable, _) => {
                Some(Reason::Fixed("failed to compare resource versions for ResourceBinding"))
            }
            (Other::On(clusters), Kind::Affinity) => (!clusters.contains(position)).then_some(Reason::Fixed(
                "ResourceBinding with the same affinity group does not target this cluster",
            )),
            (Other::On(clusters), Kind::AntiAffinity) => clusters
                .contains(position)
                .then_some(Reason::Fixed("cluster already has workload with the same anti-affinity group")),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn binding(name: &str, version: &str, clusters: &[&str], applied: bool) -> ResourceBinding {
        let clusters: Vec<_> = clusters.iter().map(|name| json!({"name": name})).collect();
        let status = if applied { "True" } else { "False" };
        serde_json::from_value(json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
            "metadata": {"name": name, "namespace": "ns", "resourceVersion": version},
            "spec": {
                "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "ns", "name": name},
                "clusters": clusters, "workloadAffinityGroups": {"affinityGroup": "app=a"},
            },
            "status": {"conditions": [{"type": "FullyApplied", "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap()
    }

    fn places(groups: &Groups) -> Vec<Option<String>> {
        let key = ("ns".to_owned(), "x".to_owned());
        [groups.seen.get(&key), groups.assigning.get(&key)]
            .into_iter()
            .map(|entry| entry.map(|entry| entry.clusters.join(",")))
            .collect()
    }

    #[test]
    fn an_older_event_does_not_undo_what_was_written() {
        let mut groups = Groups::default();
        groups.assign(&binding("x", "10", &["m1"], false));
        groups.see(&binding("x", "9", &[], false));
        assert_eq!(places(&groups), [Some(String::new()), Some("m1".into())]);
    }

    #[test]
    fn a_newer_event_replaces_the_written_copy_until_it_is_applied() {
        let mut groups = Groups::default();
        groups.assign(&binding("x", "10", &["m1"], false));
        groups.see(&binding("x", "11", &["m2"], false));
        assert_eq!(places(&groups), [Some("m2".into()), Some("m2".into())]);
        groups.see(&binding("x", "12", &["m2"], true));
        assert_eq!(places(&groups), [Some("m2".into()), None]);
    }

    #[test]
    fn a_deleted_binding_leaves_no_trace() {
        let mut groups = Groups::default();
        groups.see(&binding("x", "1", &["m1"], false));
        groups.assign(&binding("x", "2", &["m1"], false));
        groups.forget("ns", "x");
        assert_eq!(places(&groups), [None, None]);
        assert!(groups.by_group.is_empty());
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(compare("9", "10"), Some(Ordering::Less));
        assert_eq!(compare("11", "11"), Some(Ordering::Equal));
        assert_eq!(compare("", "1"), None);
        assert_eq!(compare("01", "1"), None);
    }
}
