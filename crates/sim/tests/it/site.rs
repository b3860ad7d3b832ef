//! A cluster under test, real or simulated, through nothing but its API.

use std::time::Duration;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

pub(crate) use testkit::DEADLINE;

/// The kinds that are looked at: group, version, kind, plural.
pub(crate) const KINDS: [(&str, &str, &str, &str); 17] = [
    ("", "v1", "Pod", "pods"),
    ("", "v1", "Service", "services"),
    ("", "v1", "Endpoints", "endpoints"),
    ("", "v1", "ConfigMap", "configmaps"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("", "v1", "ResourceQuota", "resourcequotas"),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("", "v1", "ReplicationController", "replicationcontrollers"),
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "ControllerRevision", "controllerrevisions"),
    ("batch", "v1", "Job", "jobs"),
    ("batch", "v1", "CronJob", "cronjobs"),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
];

pub(crate) struct Site {
    pub(crate) client: Client,
}

pub(crate) fn resource(kind: &str) -> ApiResource {
    let (group, version, kind, plural) = KINDS
        .into_iter()
        .find(|(_, _, known, _)| *known == kind)
        .or_else(|| (kind == "Namespace").then_some(("", "v1", "Namespace", "namespaces")))
        .or_else(|| (kind == "Node").then_some(("", "v1", "Node", "nodes")))
        .or_else(|| {
            let scaler = ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers");
            (kind == scaler.2).then_some(scaler)
        })
        .unwrap_or_else(|| panic!("{kind} is not among the kinds of this test"));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

impl Site {
    pub(crate) async fn simulated(member: &sim::Member) -> Self {
        Self::at(&member.kubeconfig).await
    }

    pub(crate) async fn real(member: &clusters::Cluster) -> Self {
        Self::at(&std::fs::read_to_string(member.kubeconfig()).expect("a kubeconfig")).await
    }

    async fn at(kubeconfig: &str) -> Self {
        let mut config = testkit::config(kubeconfig).await;
        // A refusal is what a test wants to see.
        config.default_retry = false;
        Self { client: Client::try_from(config).expect("a client") }
    }

    pub(crate) fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    pub(crate) async fn create(&self, namespace: &str, object: Value) {
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let made = self.api(&kind, namespace).create(&Default::default(), &object).await;
        made.unwrap_or_else(|error| panic!("{kind} in {namespace}: {error}"));
    }

    pub(crate) async fn patch(&self, kind: &str, namespace: &str, name: &str, patch: Value) {
        let patch = kube::api::Patch::Merge(patch);
        self.api(kind, namespace).patch(name, &Default::default(), &patch).await.expect("patched");
    }

    /// Makes a namespace that is ready for pods.
    pub(crate) async fn namespace(&self, name: &str) {
        self.create("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        self.until("ServiceAccount", name, "default", "exist", |_| true).await;
        self.until("ConfigMap", name, "kube-root-ca.crt", "exist", |_| true).await;
    }

    /// Follows an object until it is as wanted; shows it when time runs out.
    pub(crate) async fn until(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let value = |object: &DynamicObject| serde_json::to_value(object).expect("an object is plain data");
        let what = format!("{kind} in {namespace} shall {what}");
        let reached = |found: Option<&DynamicObject>| found.is_some_and(|found| wanted(&value(found)));
        let found = testkit::until(&self.api(kind, namespace), name, what, reached).await;
        value(&found.expect("it was wanted to exist"))
    }

    /// Follows all objects of a kind until one of them is as wanted.
    pub(crate) async fn until_any(
        &self,
        kind: &str,
        namespace: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let config = watcher::Config::default();
        let mut changes =
            watcher(self.api(kind, namespace), config).default_backoff().applied_objects().boxed();
        let mut last = Value::Null;
        let found = tokio::time::timeout(DEADLINE, async {
            while let Some(change) = changes.next().await {
                let Ok(object) = change else { continue };
                last = serde_json::to_value(&object).expect("an object is plain data");
                if wanted(&last) {
                    return;
                }
            }
        })
        .await;
        assert!(found.is_ok(), "{kind} in {namespace}: none does {what}; the last one seen: {last:#}");
        last
    }

    /// Waits until nothing has changed for a while in any of the kinds, in namespaces that begin like this. What others do
    /// in the same cluster meanwhile does not count.
    pub(crate) async fn settle(&self, prefix: &str, quiet: Duration) {
        let streams = KINDS.iter().map(|(_, _, kind, _)| {
            watcher(self.api(kind, ""), watcher::Config::default())
                .default_backoff()
                .touched_objects()
                .boxed()
        });
        let mut changes = futures::stream::select_all(streams);
        let mut until = tokio::time::Instant::now() + quiet;
        let settled = tokio::time::timeout(DEADLINE, async {
            while let Ok(Some(change)) = tokio::time::timeout_at(until, changes.next()).await {
                let ours = change.is_ok_and(|object| {
                    object.metadata.namespace.is_some_and(|namespace| namespace.starts_with(prefix))
                });
                if ours {
                    until = tokio::time::Instant::now() + quiet;
                }
            }
        });
        assert!(settled.await.is_ok(), "the cluster does not come to rest");
    }

    pub(crate) async fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        let list = self.api(kind, namespace).list(&Default::default()).await.expect("a list");
        list.items.into_iter().map(|item| serde_json::to_value(item).expect("plain data")).collect()
    }

    pub(crate) async fn delete_namespace(&self, name: &str) {
        let _ = self.api("Namespace", "").delete(name, &Default::default()).await;
    }
}
