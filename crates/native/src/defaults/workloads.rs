//! Defaults of the kinds that own pods, and of the autoscaler that scales them.

use serde_json::{Value, json};

use super::pod;
use super::storage::persistent_volume_claim;
use super::tree::{Object, below, each, ensure, has_items, is_set, put, put_nonzero, text};

pub(super) fn deployment(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "replicas", 1);
    if let Some(strategy) = ensure(spec, "strategy") {
        put_nonzero(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = ensure(strategy, "rollingUpdate")
        {
            put(rolling, "maxUnavailable", "25%");
            put(rolling, "maxSurge", "25%");
        }
    }
    put(spec, "revisionHistoryLimit", 10);
    put(spec, "progressDeadlineSeconds", 600);
    pod::template(spec, "template");
}

pub(super) fn replica_set(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "replicas", 1);
    pod::template(spec, "template");
}

pub(super) fn replication_controller(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "replicas", 1);
    pod::template(spec, "template");
    let labels = pod::labels_of_template(spec);
    if let Some(labels) = labels {
        if !has_items(spec, "selector") {
            spec.insert("selector".to_owned(), labels.clone());
        }
        labels_when_none(root, labels);
    }
}

fn labels_when_none(root: &mut Object, labels: Value) {
    if let Some(metadata) = ensure(root, "metadata")
        && !has_items(metadata, "labels")
    {
        metadata.insert("labels".to_owned(), labels);
    }
}

pub(super) fn stateful_set(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put_nonzero(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = ensure(spec, "updateStrategy") {
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), "RollingUpdate".into());
            ensure(strategy, "rollingUpdate");
        }
        let rolls = text(strategy, "type") == "RollingUpdate";
        if let Some(rolling) = below(strategy, "rollingUpdate") {
            // The gate MaxUnavailableStatefulSet is off, so the field is not kept.
            rolling.remove("maxUnavailable");
            if rolls {
                put(rolling, "partition", 0);
            }
        }
    }
    if let Some(retention) = ensure(spec, "persistentVolumeClaimRetentionPolicy") {
        put_nonzero(retention, "whenDeleted", "Retain");
        put_nonzero(retention, "whenScaled", "Retain");
    }
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    pod::template(spec, "template");
    each(spec, "volumeClaimTemplates", |claim| {
        put_nonzero(claim, "apiVersion", "v1");
        put_nonzero(claim, "kind", "PersistentVolumeClaim");
        persistent_volume_claim(claim);
    });
}

pub(super) fn daemon_set(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    if let Some(strategy) = ensure(spec, "updateStrategy") {
        put_nonzero(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = ensure(strategy, "rollingUpdate")
        {
            put(rolling, "maxUnavailable", 1);
            put(rolling, "maxSurge", 0);
        }
    }
    put(spec, "revisionHistoryLimit", 10);
    pod::template(spec, "template");
}

pub(super) fn job(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    if !is_set(spec, "completions") && !is_set(spec, "parallelism") {
        put(spec, "completions", 1);
    }
    put(spec, "parallelism", 1);
    let limit = if is_set(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    put(spec, "backoffLimit", limit);
    put(spec, "completionMode", "NonIndexed");
    put(spec, "suspend", false);
    let replacement = if is_set(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    put(spec, "podReplacementPolicy", replacement);
    put(spec, "manualSelector", false);
    pod_failure_policy(spec);
    pod::template(spec, "template");
    if let Some(labels) = pod::labels_of_template(spec) {
        labels_when_none(root, labels);
    }
}

fn pod_failure_policy(spec: &mut Object) {
    if let Some(policy) = below(spec, "podFailurePolicy") {
        each(policy, "rules", |rule| {
            each(rule, "onPodConditions", |pattern| put_nonzero(pattern, "status", "True"));
        });
    }
}

/// Only the pod template inside the job template is defaulted; the Job gets the rest when it is created.
pub(super) fn cron_job(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put_nonzero(spec, "concurrencyPolicy", "Allow");
    put(spec, "suspend", false);
    put(spec, "successfulJobsHistoryLimit", 3);
    put(spec, "failedJobsHistoryLimit", 1);
    if let Some(job) = below(spec, "jobTemplate").and_then(|template| ensure(template, "spec")) {
        pod_failure_policy(job);
        pod::template(job, "template");
    }
}

pub(super) fn autoscaler(version: &str, root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "minReplicas", 1);
    if version == "v1" {
        return;
    }
    if !has_items(spec, "metrics") {
        let cpu = json!([{
            "type": "Resource",
            "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
        }]);
        spec.insert("metrics".to_owned(), cpu);
    }
    if let Some(behavior) = below(spec, "behavior") {
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        if let Some(up) = ensure(behavior, "scaleUp") {
            put(up, "stabilizationWindowSeconds", 0);
            put(up, "selectPolicy", "Max");
            put(up, "policies", json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, percent.clone()]));
        }
        if let Some(down) = ensure(behavior, "scaleDown") {
            put(down, "selectPolicy", "Max");
            put(down, "policies", json!([percent]));
        }
    }
}
