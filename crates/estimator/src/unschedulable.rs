//! How many replicas of a Deployment cannot be scheduled in a cluster.
//!
//! [`count`] decides from the Deployment, its ReplicaSets and its pods; [`replicas`] reads these from the cluster. The estimator's
//! service and the descheduler share both.

use std::time::Duration;

use api::work::ObjectReference;
use apimachinery::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::core::Selector;
use kube::{Client, Resource};

use crate::RUNNING;

/// How many objects are read at once, and how many at the most: a cluster must not fill our memory.
const PAGE: u32 = 500;
const MOST: usize = 50_000;
/// The label by which a Deployment tells the pods of its ReplicaSets apart.
const HASH: &str = "pod-template-hash";

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("kind({kind}) of workload({name}) is not supported")]
    Kind { kind: String, name: String },
    #[error("the selector of Deployment {0} cannot be used: {1}")]
    Selector(String, String),
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Asks a cluster how many replicas of a Deployment have been waiting for a node for longer than `threshold`. A Deployment that
/// does not exist has none.
///
/// # Errors
/// For every other kind, and if the cluster does not answer.
pub async fn replicas(
    client: &Client,
    resource: &ObjectReference,
    threshold: Duration,
    now: Timestamp,
) -> Result<i32, Error> {
    let ObjectReference { kind, namespace, name, .. } = resource;
    if kind != "Deployment" {
        return Err(Error::Kind { kind: kind.clone(), name: format!("{namespace}/{name}") });
    }
    // Users write it into bindings, and the client writes it into a path as it is. There is no Deployment with such a name.
    if !names::is_path_segment(namespace) || !names::is_path_segment(name) {
        return Ok(0);
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let Some(deployment) = deployments.get_opt(name).await? else { return Ok(0) };
    let selector = deployment.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|error| Error::Selector(format!("{namespace}/{name}"), error.to_string()))?;
    let (sets, pods) = tokio::try_join!(
        all(Api::<ReplicaSet>::namespaced(client.clone(), namespace), &selector, None),
        all(Api::<Pod>::namespaced(client.clone(), namespace), &selector, Some(RUNNING)),
    )?;
    Ok(count(&deployment, &sets, &pods, threshold, now))
}

async fn all<K>(api: Api<K>, selector: &Selector, fields: Option<&str>) -> Result<Vec<K>, Error>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut parameters = ListParams::default().labels_from(selector).limit(PAGE);
    parameters.field_selector = fields.map(str::to_owned);
    let mut found = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if found.len() < MOST => parameters = parameters.continue_token(&token),
            _ => return Ok(found),
        }
    }
}

/// Returns how many pods of the Deployment's newest ReplicaSet have been waiting for a node for longer than `threshold`.
pub fn count(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    pods: &[Pod],
    threshold: Duration,
    now: Timestamp,
) -> i32 {
    let wanted = deployment.spec.as_ref().map(|spec| comparable(&spec.template));
    let mut owned: Vec<&ReplicaSet> =
        sets.iter().filter(|set| is_controlled_by(&set.metadata, &deployment.metadata)).collect();
    owned.sort_by_key(|set| set.metadata.creation_timestamp.as_ref().map(|time| time.0));
    let newest = owned.into_iter().find(|set| {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.map(comparable) == wanted
    });
    let Some(newest) = newest else { return 0 };
    let patience = SignedDuration::try_from(threshold).unwrap_or(SignedDuration::MAX);
    let waits = |pod: &&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        is_controlled_by(&pod.metadata, &newest.metadata)
            && conditions.into_iter().flatten().any(|condition| {
                let since = condition.last_transition_time.as_ref().map(|time| time.0);
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.reason.as_deref() == Some("Unschedulable")
                    && since.is_some_and(|since| now.duration_since(since) > patience)
            })
    };
    i32::try_from(pods.iter().filter(waits).count()).unwrap_or(i32::MAX)
}

/// Returns a template without what a ReplicaSet adds to it.
fn comparable(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let metadata = template.metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().remove(HASH);
    template
}

fn is_controlled_by(object: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let owners = object.owner_references.iter().flatten();
    let mut controllers = owners.filter(|reference| reference.controller == Some(true));
    controllers.any(|reference| Some(&reference.uid) == owner.uid.as_ref())
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    #[tokio::test]
    async fn finding_25_a_workload_whose_name_is_more_than_a_name_is_not_read() {
        let nobody = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            Err::<http::Response<kube::client::Body>, _>(format!("{} was asked for", request.uri()))
        });
        let client = Client::new(nobody, "default");
        let count = async |namespace: &str, name: &str| {
            let resource = ObjectReference {
                kind: "Deployment".to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..ObjectReference::default()
            };
            replicas(&client, &resource, Duration::ZERO, Timestamp::UNIX_EPOCH).await
        };
        for (namespace, name) in [("n", "web?watch=true"), ("n/secrets", "web"), ("n", "web#"), ("n", "..")] {
            assert_eq!(count(namespace, name).await.expect("nothing is asked for"), 0, "{namespace}/{name}");
        }
        assert!(count("n", "web").await.is_err(), "what can exist is asked for");
    }

    fn template(image: &str, hash: Option<&str>) -> Value {
        let mut labels = json!({ "app": "web" });
        if let Some(hash) = hash {
            labels[HASH] = hash.into();
        }
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "image": image }] } })
    }

    fn deployment() -> Deployment {
        let selector = json!({ "matchLabels": { "app": "web" } });
        read(
            json!({ "metadata": { "name": "web", "uid": "d" }, "spec": { "selector": selector, "template": template("new", None) } }),
        )
    }

    fn owned(uid: &str, owner: &str, controller: bool) -> Value {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "K", "name": "o", "uid": owner, "controller": controller });
        json!({ "uid": uid, "ownerReferences": [owner] })
    }

    fn set(uid: &str, owner: &str, image: &str) -> ReplicaSet {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let template = template(image, Some(uid));
        read(
            json!({ "metadata": owned(uid, owner, true), "spec": { "selector": selector, "template": template } }),
        )
    }

    fn pod(owner: &str, controller: bool, kind: &str, status: &str, reason: &str, since: i64) -> Pod {
        let since = Timestamp::from_second(since).expect("a time").to_string();
        let condition =
            json!({ "type": kind, "status": status, "reason": reason, "lastTransitionTime": since });
        read(json!({ "metadata": owned("p", owner, controller), "status": { "conditions": [condition] } }))
    }

    #[test]
    fn which_pods_cannot_be_scheduled() {
        let sets = [set("old", "d", "old"), set("new", "d", "new"), set("other", "x", "new")];
        let waits =
            |owner: &str, since: i64| pod(owner, true, "PodScheduled", "False", "Unschedulable", since);
        let cases = [
            ("it has waited", waits("new", 100), 1),
            ("just as long as allowed", waits("new", 700), 0),
            ("not for long", waits("new", 701), 0),
            ("a pod of an older template", waits("old", 100), 0),
            ("a pod of another Deployment", waits("other", 100), 0),
            (
                "a pod without a controller",
                pod("new", false, "PodScheduled", "False", "Unschedulable", 100),
                0,
            ),
            ("it is scheduled", pod("new", true, "PodScheduled", "True", "", 100), 0),
            ("it is gated", pod("new", true, "PodScheduled", "False", "SchedulingGated", 100), 0),
            ("another condition", pod("new", true, "Ready", "False", "Unschedulable", 100), 0),
        ];
        let now = Timestamp::from_second(1000).expect("a time");
        for (name, pod, expected) in cases {
            let found = count(&deployment(), &sets, &[pod], Duration::from_secs(300), now);
            assert_eq!(found, expected, "{name}");
        }
        let both = [waits("new", 100), waits("new", 200)];
        assert_eq!(count(&deployment(), &sets, &both, Duration::from_secs(300), now), 2);
        assert_eq!(count(&deployment(), &[], &both, Duration::from_secs(300), now), 0, "no ReplicaSet yet");
    }
}
