//! What runs where, as one value: computed from mirrors of the control plane's objects whenever one of them changes.
//!
//! Out: a comparable [`Picture`], so that nothing is drawn twice.

use std::collections::BTreeMap;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;

use super::sample;

/// The fleet and the sample at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) rows: Vec<Row>,
    /// Ready and wanted replicas of the sample, according to the control plane's own Deployment.
    pub(super) total: Option<Count>,
}

/// One cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) cluster: String,
    pub(super) region: String,
    pub(super) health: Health,
    pub(super) nodes: Option<Count>,
    /// Replicas of the sample, if it runs there.
    pub(super) replicas: Option<Count>,
    /// The image of the sample, as it was sent to this cluster.
    pub(super) image: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// Nothing is known yet.
    Joining,
    Ready,
    /// It was ready before, or has reported that it is not.
    NotReady,
}

/// Ready and wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) ready: i64,
    pub(super) wanted: i64,
}

impl Picture {
    /// Returns whether all clusters are ready for scheduling.
    pub(super) fn fleet_is_ready(&self, members: usize) -> bool {
        self.rows.len() >= members
            && self.rows.iter().all(|row| row.health == Health::Ready && row.nodes.is_some())
    }

    /// Returns whether the sample runs everywhere it should and the control plane knows it.
    pub(super) fn sample_is_ready(&self) -> bool {
        self.total.is_some_and(|total| total.is_full())
            && self.rows.iter().any(|row| row.replicas.is_some())
            && self.rows.iter().all(|row| row.replicas.is_none_or(|count| count.is_full()))
    }
}

impl Count {
    pub(super) fn is_full(self) -> bool {
        self.ready == self.wanted
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.ready, self.wanted)
    }
}

/// Follows the control plane until the receiver is gone.
pub(super) fn follow(client: &Client) -> watch::Receiver<Picture> {
    let kinds = [
        ("cluster.karmada.io", "v1alpha1", "Cluster"),
        ("work.karmada.io", "v1alpha2", "ResourceBinding"),
        ("work.karmada.io", "v1alpha1", "Work"),
        ("apps", "v1", "Deployment"),
    ];
    let mut mirrors = Vec::new();
    let mut changes = Vec::new();
    for (group, version, kind) in kinds {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let writer = reflector::store::Writer::new(kind.clone());
        mirrors.push(writer.as_reader());
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let stream = watcher(objects, watcher::Config::default()).default_backoff().reflect(writer);
        changes.push(stream.boxed());
    }
    let (sender, receiver) = watch::channel(Picture::default());
    tokio::spawn(async move {
        let mut changes = futures::stream::select_all(changes);
        loop {
            tokio::select! {
                change = changes.next() => match change {
                    // Errors are ignored: the stream tries again by itself.
                    Some(Err(error)) => tracing::debug!(%error, "the picture waits"),
                    Some(Ok(_)) => {}
                    None => break,
                },
                () = sender.closed() => break,
            }
            let picture = picture(&mirrors);
            sender.send_if_modified(|shown| {
                let changed = *shown != picture;
                *shown = picture;
                changed
            });
        }
    });
    receiver
}

fn picture(mirrors: &[Store<DynamicObject>]) -> Picture {
    let objects = |index: usize| -> Vec<Value> {
        let all = mirrors.get(index).map(Store::state).unwrap_or_default();
        all.iter().filter_map(|object| serde_json::to_value(&**object).ok()).collect()
    };
    draw(&objects(0), &objects(1), &objects(2), &objects(3))
}

/// Computes the picture from clusters, bindings, works and deployments of the control plane.
fn draw(clusters: &[Value], bindings: &[Value], works: &[Value], deployments: &[Value]) -> Picture {
    let is_sample = |object: &&Value| {
        object["metadata"]["name"] == sample::NAME && object["metadata"]["namespace"] == sample::NAMESPACE
    };
    let template = deployments.iter().find(is_sample);
    let total = template.map(|template| Count {
        ready: template["status"]["readyReplicas"].as_i64().unwrap_or(0),
        wanted: template["spec"]["replicas"].as_i64().unwrap_or(0),
    });
    let of_sample = |binding: &&Value| {
        let resource = &binding["spec"]["resource"];
        resource["kind"] == "Deployment"
            && resource["name"] == sample::NAME
            && resource["namespace"] == sample::NAMESPACE
    };
    let replicas = bindings.iter().find(of_sample).map(replicas).unwrap_or_default();
    let images = images(works);
    let mut rows: Vec<Row> = clusters
        .iter()
        .map(|cluster| {
            let name = cluster["metadata"]["name"].as_str().unwrap_or_default();
            let summary = &cluster["status"]["nodeSummary"];
            Row {
                cluster: name.to_owned(),
                region: cluster["spec"]["region"].as_str().unwrap_or_default().to_owned(),
                health: health(&cluster["status"]["conditions"]),
                nodes: summary.is_object().then(|| Count {
                    ready: summary["readyNum"].as_i64().unwrap_or(0),
                    wanted: summary["totalNum"].as_i64().unwrap_or(0),
                }),
                replicas: replicas.get(name).copied(),
                image: images.get(name).cloned().unwrap_or_default(),
            }
        })
        .collect();
    rows.sort_by(|a, b| a.cluster.cmp(&b.cluster));
    Picture { rows, total }
}

fn health(conditions: &Value) -> Health {
    let ready = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready");
    match ready {
        None => Health::Joining,
        Some(condition) if condition["status"] == "True" => Health::Ready,
        Some(_) => Health::NotReady,
    }
}

/// Returns how many replicas each cluster should have and how many are ready.
fn replicas(binding: &Value) -> BTreeMap<String, Count> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let states = list(&binding["status"]["aggregatedStatus"]);
    let ready = |cluster: &Value| {
        let state = states.iter().find(|state| state["clusterName"] == *cluster)?;
        state["status"]["readyReplicas"].as_i64()
    };
    list(&binding["spec"]["clusters"])
        .iter()
        .filter_map(|target| {
            let wanted = target["replicas"].as_i64().unwrap_or(0);
            let count = Count { ready: ready(&target["name"]).unwrap_or(0), wanted };
            Some((target["name"].as_str()?.to_owned(), count))
        })
        .collect()
}

/// Returns the image of the sample in each cluster.
fn images(works: &[Value]) -> BTreeMap<String, String> {
    let prefix = api::names::execution_space("");
    let image = |work: &Value| {
        let cluster = work["metadata"]["namespace"].as_str()?.strip_prefix(&prefix)?.to_owned();
        let manifests = work["spec"]["workload"]["manifests"].as_array()?;
        let sample = manifests.iter().find(|manifest| {
            manifest["kind"] == "Deployment"
                && manifest["metadata"]["name"] == sample::NAME
                && manifest["metadata"]["namespace"] == sample::NAMESPACE
        })?;
        let image = sample["spec"]["template"]["spec"]["containers"][0]["image"].as_str()?;
        Some((cluster, image.to_owned()))
    };
    works.iter().filter_map(image).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(name: &str, ready: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"region": "eu"}, "status": {
            "conditions": [{"type": "Ready", "status": ready}], "nodeSummary": {"totalNum": 3, "readyNum": 2}}})
    }

    fn deployment(ready: i64) -> Value {
        json!({"metadata": {"name": "hello", "namespace": "default"}, "spec": {"replicas": 3},
            "status": {"readyReplicas": ready}})
    }

    fn binding(ready: i64) -> Value {
        json!({"spec": {"resource": {"kind": "Deployment", "name": "hello", "namespace": "default"},
                "clusters": [{"name": "m1", "replicas": 3}]},
            "status": {"aggregatedStatus": [{"clusterName": "m1", "status": {"readyReplicas": ready}}]}})
    }

    #[test]
    fn a_picture_tells_clusters_replicas_and_images() {
        let work = json!({"metadata": {"namespace": "karmada-es-m1", "name": "w"}, "spec": {"workload": {
            "manifests": [{"kind": "Deployment", "metadata": {"name": "hello", "namespace": "default"},
                "spec": {"template": {"spec": {"containers": [{"image": "near/nginx"}]}}}}]}}});
        let drawn =
            draw(&[cluster("m2", "False"), cluster("m1", "True")], &[binding(2)], &[work], &[deployment(2)]);
        let [m1, m2] = drawn.rows.as_slice() else { panic!("{drawn:?}") };
        assert_eq!((m1.cluster.as_str(), m1.health, m1.image.as_str()), ("m1", Health::Ready, "near/nginx"));
        assert_eq!(
            (m1.nodes, m1.replicas),
            (Some(Count { ready: 2, wanted: 3 }), Some(Count { ready: 2, wanted: 3 }))
        );
        assert_eq!((m2.health, m2.replicas, m2.image.as_str()), (Health::NotReady, None, ""));
        assert!(!drawn.fleet_is_ready(2) && !drawn.sample_is_ready());
    }

    #[test]
    fn the_sample_is_ready_when_members_and_control_plane_agree() {
        let fleet = [cluster("m1", "True")];
        assert!(draw(&fleet, &[binding(3)], &[], &[deployment(3)]).sample_is_ready());
        assert!(!draw(&fleet, &[binding(3)], &[], &[deployment(2)]).sample_is_ready());
        assert!(!draw(&fleet, &[binding(2)], &[], &[deployment(3)]).sample_is_ready());
        assert!(!draw(&fleet, &[], &[], &[deployment(3)]).sample_is_ready());
    }

    #[test]
    fn a_fleet_is_ready_when_all_that_were_asked_for_are() {
        let fleet = [cluster("m1", "True")];
        assert!(draw(&fleet, &[], &[], &[]).fleet_is_ready(1));
        assert!(!draw(&fleet, &[], &[], &[]).fleet_is_ready(2));
    }
}
