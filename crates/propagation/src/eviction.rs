//! Evicts a workload from a cluster: the eviction task, and the preserved state.
//!
//! An eviction removes the cluster from `spec.clusters` and adds a task to `spec.gracefulEvictionTasks`. The scheduler finds a
//! replacement; until the task is gone the old copy stays, unless it is to be purged directly.

use std::collections::BTreeMap;

use api::labels::annotations::APPLIED_PLACEMENT;
use api::policy::{Placement, PurgeMode, StatePreservation};
use api::work::{AggregatedStatusItem, GracefulEvictionTask, ResourceBindingSpec};
use apimachinery::jsonpath::{Fuel, Template, Unfilled};

use crate::Binding;

pub use placement::taints::{Stay, drives_out, print, stay};

/// The longest message that a task can have, in characters.
const MESSAGE_LIMIT: usize = 1024;
/// How many values and bytes all rules of a preserved state may look at and print: a label has 63 characters, and a status some
/// thousand values.
const STATE_LIMIT: usize = 1_000_000;

/// Why the state of the old copy cannot be handed to the new one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("the status of the resource in cluster {0} has not been collected yet")]
    NoStatus(String),
    #[error("the JSONPath {path} of statePreservation cannot be read: {why}")]
    Path { path: String, why: String },
    #[error("the JSONPath {path} of statePreservation finds nothing in the status of cluster {cluster}")]
    NotFound { path: String, cluster: String },
    #[error("the JSONPath {path} of statePreservation asks for too much of the status of cluster {cluster}")]
    TooMuch { path: String, cluster: String },
}

/// Evicts a workload from `task.from_cluster`. Returns whether anything changed: a workload that is not in the cluster is
/// left alone, and a cluster has at most one task.
pub fn evict(spec: &mut ResourceBindingSpec, mut task: GracefulEvictionTask) -> bool {
    let Some(index) = spec.clusters.iter().position(|target| target.name == task.from_cluster) else {
        return false;
    };
    let target = spec.clusters.remove(index);
    let exists = spec.graceful_eviction_tasks.iter().any(|one| one.from_cluster == task.from_cluster);
    if !exists {
        task.replicas = (target.replicas > 0).then_some(target.replicas);
        if let Some((limit, _)) = task.message.char_indices().nth(MESSAGE_LIMIT) {
            task.message.truncate(limit);
        }
        spec.graceful_eviction_tasks.push(task);
    }
    true
}

/// Returns what becomes of the old copy. Up to v1.18 Karmada called the modes `Immediately` and `Graciously`; what is stored may
/// still say so.
pub fn purge_mode(said: Option<&PurgeMode>) -> PurgeMode {
    match said {
        None => PurgeMode::Gracefully,
        Some(PurgeMode::Other(older)) => older_purge_mode(older).unwrap_or(PurgeMode::Gracefully),
        Some(mode) => mode.clone(),
    }
}

/// Returns whether the old copy is to be gone before another one is made.
pub fn purges_directly(task: &GracefulEvictionTask) -> bool {
    purge_mode(task.purge_mode.as_ref()) == PurgeMode::Directly
}

/// Returns what a mode of Karmada up to v1.18 is called now; nothing for any other text.
pub fn older_purge_mode(text: &str) -> Option<PurgeMode> {
    match text {
        "Immediately" => Some(PurgeMode::Directly),
        "Graciously" => Some(PurgeMode::Gracefully),
        _ => None,
    }
}

/// Returns the placement by which a binding was placed last; if that cannot be read, the one it has now.
pub fn applied_placement<B: Binding>(binding: &B) -> Option<Placement> {
    let annotations = binding.metadata().annotations.as_ref();
    let applied = annotations.and_then(|all| all.get(APPLIED_PLACEMENT));
    let applied = applied.and_then(|text| serde_json::from_str(text).ok());
    applied.or_else(|| binding.spec().placement.clone())
}

/// Returns the labels that hand the state of the copy in a cluster to its replacement.
///
/// # Errors
/// If the status of the copy is not known, or lacks a value that a rule asks for.
pub fn preserved_state(
    preservation: &StatePreservation,
    cluster: &str,
    statuses: &[AggregatedStatusItem],
) -> Result<BTreeMap<String, String>, StateError> {
    let item = statuses.iter().find(|item| item.cluster_name == cluster);
    let status =
        item.and_then(|item| item.status.as_ref()).ok_or_else(|| StateError::NoStatus(cluster.to_owned()))?;
    let fuel = Fuel::new(STATE_LIMIT);
    let rule = |rule: &api::policy::StatePreservationRule| {
        let path = || rule.json_path.clone();
        let template = Template::parse(rule.json_path.trim())
            .map_err(|error| StateError::Path { path: path(), why: error.to_string() })?;
        let value = template.fill(status, &fuel).map_err(|why| match why {
            Unfilled::Missing => StateError::NotFound { path: path(), cluster: cluster.to_owned() },
            Unfilled::TooMuch => StateError::TooMuch { path: path(), cluster: cluster.to_owned() },
        })?;
        Ok((rule.alias_label_name.clone(), value))
    };
    preservation.rules.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(value: Value) -> ResourceBindingSpec {
        let mut base =
            json!({ "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" } });
        apimachinery::patch::merge::apply(&mut base, value);
        serde_json::from_value(base).expect("a spec")
    }

    fn task(cluster: &str) -> GracefulEvictionTask {
        GracefulEvictionTask {
            from_cluster: cluster.to_owned(),
            reason: "R".to_owned(),
            producer: "P".to_owned(),
            ..GracefulEvictionTask::default()
        }
    }

    #[test]
    fn an_eviction_moves_a_cluster_from_the_result_to_the_tasks() {
        let mut placed = spec(json!({ "clusters": [{ "name": "m1", "replicas": 3 }, { "name": "m2" }] }));
        assert!(evict(&mut placed, task("m1")));
        assert_eq!(placed.clusters.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["m2"]);
        assert_eq!(
            placed.graceful_eviction_tasks,
            [GracefulEvictionTask { replicas: Some(3), ..task("m1") }]
        );
        assert!(!evict(&mut placed, task("m1")), "it is not there any more");
        let mut long = task("m2");
        long.message = "ü".repeat(2000);
        assert!(evict(&mut placed, long));
        let second = &placed.graceful_eviction_tasks[1];
        assert_eq!((second.replicas, second.message.chars().count()), (None, 1024));
    }

    #[test]
    fn a_cluster_has_one_task() {
        let mut placed = spec(json!({
            "clusters": [{ "name": "m1", "replicas": 3 }],
            "gracefulEvictionTasks": [{ "fromCluster": "m1", "reason": "First", "producer": "P" }],
        }));
        assert!(evict(&mut placed, task("m1")));
        assert!(placed.clusters.is_empty());
        let reasons: Vec<&str> =
            placed.graceful_eviction_tasks.iter().map(|task| task.reason.as_str()).collect();
        assert_eq!(reasons, ["First"]);
    }

    #[test]
    fn the_placement_that_was_applied_counts() {
        let binding = |annotation: Option<&str>| {
            let placement = json!({ "clusterAffinity": { "clusterNames": ["now"] } });
            let spec = spec(json!({ "placement": placement }));
            let mut binding = api::work::ResourceBinding { spec, ..Default::default() };
            binding.metadata.annotations =
                annotation.map(|text| [(APPLIED_PLACEMENT.to_owned(), text.to_owned())].into());
            let affinity = applied_placement(&binding).and_then(|placement| placement.cluster_affinity);
            affinity.map_or_else(Vec::new, |affinity| affinity.cluster_names)
        };
        assert_eq!(binding(Some(r#"{"clusterAffinity":{"clusterNames":["then"]}}"#)), ["then"]);
        assert_eq!(binding(None), ["now"]);
        assert_eq!(binding(Some("{")), ["now"]);
    }

    #[test]
    fn state_becomes_labels() {
        let rules = |rules: &[(&str, &str)]| StatePreservation {
            rules: rules
                .iter()
                .map(|(label, path)| api::policy::StatePreservationRule {
                    alias_label_name: (*label).to_owned(),
                    json_path: (*path).to_owned(),
                })
                .collect(),
        };
        let statuses: Vec<AggregatedStatusItem> = serde_json::from_value(json!([
            { "clusterName": "m1", "status": { "replicas": 3, "job": { "id": "a" } } }, { "clusterName": "m2" },
        ]))
        .expect("items");
        let found = preserved_state(&rules(&[("n", "{.replicas}"), ("id", "{.job.id}")]), "m1", &statuses);
        assert_eq!(found, Ok([("n".to_owned(), "3".to_owned()), ("id".to_owned(), "a".to_owned())].into()));
        let state = |path: &str, cluster: &str| preserved_state(&rules(&[("n", path)]), cluster, &statuses);
        assert_eq!(state("{.replicas}", "m2"), Err(StateError::NoStatus("m2".to_owned())));
        assert_eq!(state("{.replicas}", "m3"), Err(StateError::NoStatus("m3".to_owned())));
        let value = |path: &str| state(path, "m1").map(|labels| labels["n"].clone());
        assert_eq!(value("{.replicas}-{.job.id}"), Ok("3-a".to_owned()), "text around paths");
        assert_eq!(value("v{.replicas}"), Ok("v3".to_owned()));
        assert_eq!(value(".replicas"), Ok("3".to_owned()), "braces are not needed");
        let endless = format!("{{{}}}", "..".repeat(1000));
        assert!(matches!(state(&endless, "m1"), Err(StateError::TooMuch { .. })));
        let missing = StateError::NotFound { path: "{.gone}".to_owned(), cluster: "m1".to_owned() };
        assert_eq!(state("{.gone}", "m1"), Err(missing));
        assert!(matches!(state("{.replicas", "m1"), Err(StateError::Path { .. })));
    }
}
