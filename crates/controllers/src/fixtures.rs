//! Objects for tables of cases: a short base object, and the fields in which a case differs.

use std::sync::Arc;

use api::cluster::Cluster;
use api::labels::RESOURCE_BINDING_PERMANENT_ID;
use api::work::{ResourceBinding, Work};
use apimachinery::patch::merge;
use jiff::Timestamp;
use runtime::Error;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reads a typed object.
#[track_caller]
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

/// Returns `base` with `otherwise` merged into it.
pub(crate) fn merged(mut base: Value, otherwise: Value) -> Value {
    merge::apply(&mut base, otherwise);
    base
}

/// An answer of the server that refuses a write with this code, for the reason "why".
#[track_caller]
pub(crate) fn refused(code: u16) -> Error {
    let status = json!({ "status": "Failure", "message": "why", "reason": "r", "code": code });
    Error::Api(kube::Error::Api(Box::new(read(status))))
}

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

/// Half a second later than [`at`].
pub(crate) fn half_past(second: i64) -> Timestamp {
    Timestamp::from_millisecond(second * 1000 + 500).expect("a time")
}

/// A binding of ConfigMap `default/web` with a permanent id.
#[track_caller]
pub(crate) fn binding(otherwise: Value) -> ResourceBinding {
    let base = json!({
        "metadata": {
            "name": "web-configmap", "namespace": "default", "uid": "b", "generation": 1, "resourceVersion": "7",
            "labels": { RESOURCE_BINDING_PERMANENT_ID: "id" },
        },
        "spec": { "resource": {
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": "web", "uid": "t",
        } },
    });
    read(merged(base, otherwise))
}

/// A Work of that binding in a cluster.
#[track_caller]
pub(crate) fn work(cluster: &str, otherwise: Value) -> Arc<Work> {
    let base = json!({
        "metadata": {
            "name": "web-1", "namespace": format!("karmada-es-{cluster}"), "uid": format!("w-{cluster}"),
            "generation": 1, "finalizers": ["karmada.io/execution-controller"],
            "labels": { RESOURCE_BINDING_PERMANENT_ID: "id" },
        },
        "spec": { "workload": { "manifests": [
            { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "web", "namespace": "default" } },
        ] } },
    });
    Arc::new(read(merged(base, otherwise)))
}

/// A cluster in push mode whose Ready condition has this status; none if it is empty.
#[track_caller]
pub(crate) fn cluster(name: &str, ready: &str, otherwise: Value) -> Cluster {
    let conditions = match ready {
        "" => json!([]),
        ready => json!([{
            "type": "Ready", "status": ready, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]),
    };
    let base = json!({
        "metadata": { "name": name, "uid": format!("c-{name}"), "resourceVersion": "7" },
        "spec": { "syncMode": "Push" }, "status": { "conditions": conditions },
    });
    read(merged(base, otherwise))
}

/// The metadata of an object that is being deleted.
pub(crate) fn deleting() -> Value {
    json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })
}
