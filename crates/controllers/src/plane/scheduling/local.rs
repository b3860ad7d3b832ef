//! The accurate estimate of members whose nodes and pods this process watches: they need no estimator.
//!
//! It gives the answer that an estimator in the member would give (`estimator::estimate`), from the mirrors
//! from which the status of clusters is computed. Quotas count behind the gate ResourceQuotaEstimate; they
//! are read from the member when they are needed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::features;
use apimachinery::names;
use estimator::estimate::World;
use estimator::room::{self, Node, Room, Taken};
use estimator::{Question, Workload};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::ListParams;
use member::{Load, Member, Members, NodeRecord, PodRecord};
use parking_lot::Mutex;

use crate::plane::Plane;

/// While pods change, the free room of the nodes is counted no more often than this.
const REST: Duration = Duration::from_millis(100);
/// How long the first question about a member waits for its nodes and pods.
const FIRST: Duration = Duration::from_secs(2);
/// How many quotas of a namespace count.
const QUOTAS: u32 = 500;

pub(super) struct Local {
    members: Arc<Members>,
    /// Whether nodes and pods of members are followed at all.
    follows: bool,
    with_quotas: bool,
    protected: bool,
    rooms: Mutex<HashMap<String, Arc<Left>>>,
}

/// What is left of a member's nodes.
struct Left {
    load: Arc<Load>,
    /// A request has waited for them once; later ones do not wait.
    waited: AtomicBool,
    /// Nodes or pods have changed since it was counted.
    changed: AtomicBool,
    counted: Mutex<Option<(Instant, Arc<Vec<Node>>)>>,
}

impl Local {
    pub(super) fn new(plane: &Plane) -> Self {
        Self {
            members: plane.members.clone(),
            follows: plane.resource_modeling,
            with_quotas: plane.features.enabled(features::RESOURCE_QUOTA_ESTIMATE),
            protected: plane.features.enabled(features::SCHEDULING_OVERCOMMIT_PROTECTION),
            rooms: Mutex::default(),
        }
    }

    /// Returns whether this process is connected to a member and follows its nodes and pods.
    pub(super) fn knows(&self, cluster: &str) -> bool {
        self.follows && self.members.get(cluster).is_some()
    }

    /// Answers for all clusters of the question.
    ///
    /// # Errors
    /// If a member is gone, if its nodes and pods are not known in time, or if its quotas cannot be read.
    pub(super) async fn max_available(&self, question: &Question) -> Result<BTreeMap<String, i32>, String> {
        let answers = question.clusters.iter().map(|(cluster, assumed)| async move {
            Ok::<_, String>((cluster.clone(), self.answer(question, cluster, assumed).await?))
        });
        Ok(try_join_all(answers).await?.into_iter().collect())
    }

    async fn answer(&self, question: &Question, cluster: &str, assumed: &[Workload]) -> Result<i32, String> {
        let member = self.members.get(cluster).ok_or_else(|| format!("member {cluster} has gone"))?;
        let left = self.left(&member);
        // A member that was too slow the first time does not delay another decision.
        let patience = if left.waited.load(Ordering::SeqCst) { Duration::ZERO } else { FIRST };
        let known = left.load.wait(patience).await;
        left.waited.store(true, Ordering::SeqCst);
        if !known {
            return Err(format!("the nodes and pods of member {cluster} are not known yet"));
        }
        let quotas = self.quotas(&member, question.namespace()).await?;
        let nodes = left.count();
        let world = World { left: &nodes, quotas: quotas.as_deref(), protected: self.protected };
        Ok(world.answer(&question.request(cluster, assumed)))
    }

    async fn quotas(&self, member: &Member, namespace: &str) -> Result<Option<Vec<ResourceQuota>>, String> {
        if !self.with_quotas || !can_have_quotas(namespace) {
            return Ok(None);
        }
        let api: Api<ResourceQuota> = Api::namespaced(member.client().clone(), namespace);
        let listed = api.list(&ListParams::default().limit(QUOTAS)).await;
        let told =
            |error| format!("member {} does not tell the quotas of {namespace}: {error}", member.name());
        listed.map(|list| Some(list.items)).map_err(told)
    }

    /// Returns what is known of a member's nodes; a new connection has new mirrors.
    fn left(&self, member: &Member) -> Arc<Left> {
        let load = member.load();
        let mut rooms = self.rooms.lock();
        rooms.retain(|name, _| self.members.get(name).is_some());
        if let Some(known) = rooms.get(member.name()).filter(|known| Arc::ptr_eq(&known.load, &load)) {
            return known.clone();
        }
        let left = Arc::new(Left {
            load: load.clone(),
            waited: AtomicBool::new(false),
            changed: AtomicBool::new(true),
            counted: Mutex::default(),
        });
        // The mirrors live as long as the connection; their subscribers must not keep them alive.
        let told = Arc::downgrade(&left);
        let note = move || _ = told.upgrade().map(|left| left.changed.store(true, Ordering::SeqCst));
        load.nodes.subscribe({
            let note = note.clone();
            move |_| note()
        });
        load.pods.subscribe(move |_| note());
        rooms.insert(member.name().to_owned(), left.clone());
        left
    }
}

impl Left {
    fn count(&self) -> Arc<Vec<Node>> {
        let mut counted = self.counted.lock();
        let resting = counted.as_ref().is_some_and(|(at, _)| at.elapsed() < REST);
        if let Some((_, nodes)) = counted.as_ref()
            && (resting || !self.changed.load(Ordering::SeqCst))
        {
            return nodes.clone();
        }
        self.changed.store(false, Ordering::SeqCst);
        let nodes = self.load.nodes.entries().into_iter().map(|(key, record)| node(key.name, &record));
        let pods = self.load.pods.all();
        let nodes = Arc::new(room::left(nodes, pods.iter().filter_map(|pod| taken(pod))));
        *counted = Some((Instant::now(), nodes.clone()));
        nodes
    }
}

fn node(name: String, record: &NodeRecord) -> Node {
    Node {
        name,
        labels: record.labels.clone(),
        taints: record.taints.clone(),
        unschedulable: record.unschedulable,
        room: Room::from(&record.allocatable),
    }
}

/// Returns what a pod takes, if it has a node and has not ended.
fn taken(pod: &PodRecord) -> Option<Taken> {
    let takes = !pod.finished && !pod.node.is_empty();
    takes.then(|| Taken::new(&pod.node, &pod.containers, &pod.init_containers, Some(&pod.overhead)))
}

/// Returns whether a namespace can exist. Whoever writes a binding by hand names it, and the client writes it into a path as it is: a
/// watch without end would be read in the member.
fn can_have_quotas(namespace: &str) -> bool {
    !namespace.is_empty() && names::is_path_segment(namespace)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1 as core;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
        serde_json::from_value(value.clone()).expect("an object")
    }

    #[test]
    fn finding_25_a_namespace_that_is_more_than_a_name_has_no_quotas() {
        assert!(can_have_quotas("shop"));
        for odd in ["", "shop/secrets?watch=true&a=", "shop#", "..", "a%2fb"] {
            assert!(!can_have_quotas(odd), "{odd}");
        }
    }

    /// The result here equals what an estimator counts from the objects themselves.
    #[test]
    fn nodes_and_pods_count_as_for_an_estimator() {
        let object = json!({ "metadata": { "name": "n1", "labels": { "disk": "ssd" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "k", "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": "4", "memory": "1Gi", "pods": "7", "example.com/gpu": "2" } } });
        let record = NodeRecord::from(read::<core::Node>(&object));
        assert_eq!(node("n1".to_owned(), &record), Node::from(read::<core::Node>(&object)));

        let requests = |cpu: &str| json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "example.com/gpu": "1" } } });
        let pod = |node: &str, phase: &str| {
            json!({ "spec": { "nodeName": node, "overhead": { "cpu": "10m" },
                "containers": [requests("1"), requests("500m")], "initContainers": [requests("3")] }, "status": { "phase": phase } })
        };
        let running = pod("n1", "Running");
        let counted = taken(&PodRecord::from(read::<core::Pod>(&running)));
        assert_eq!(counted, Some(Taken::from(read::<core::Pod>(&running))));
        assert_eq!(counted.map(|taken| taken.room.milli_cpu), Some(3_010));
        for object in [pod("", "Pending"), pod("n1", "Succeeded"), pod("n1", "Failed")] {
            assert_eq!(taken(&PodRecord::from(read::<core::Pod>(&object))), None, "{object}");
        }
    }
}
