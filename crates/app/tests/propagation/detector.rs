//! Names of Services cannot be resolved in a member: its detectors say so, and a Remedy and a ClusterTaintPolicy react.

use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use testkit::process::Signal;
use testkit::{Kind, Process, at, condition, until};

use crate::failover::{ALL, QUICK};
use crate::members::{Access, Members};
use crate::plane::{ControlPlane, KARMADA};
use crate::world::World;

const CONDITION: &str = "ServiceDomainNameResolutionReady";
const RESOLVES: &str = "localhost";
const FAILS: &str = "nowhere.invalid";

/// The detectors of a member, one for each node.
struct Detectors<'a> {
    world: &'a World,
    member: String,
    nodes: Vec<String>,
    running: Vec<Option<Process>>,
}

impl Detectors<'_> {
    /// Starts the detector of a node again; it looks this name up.
    fn start(&mut self, node: usize, name: &str) {
        if let Some(before) = self.running[node].take() {
            before.end(Signal::TERM);
        }
        let (plane, cluster) = (self.world.control.kubeconfig.to_string_lossy(), &self.world.members[0].name);
        let there = ["detector", "--karmada-kubeconfig", &plane, "--kubeconfig", &self.member];
        let about = ["--cluster-name", cluster, "--host-name", &self.nodes[node], "--service-name", name];
        let quick = [
            "--coredns-detect-period=300ms",
            "--coredns-success-threshold=1s",
            "--coredns-failure-threshold=1s",
            "--leader-elect-lease-duration=3s",
            "--leader-elect-renew-deadline=2s",
            "--leader-elect-retry-period=500ms",
        ];
        let process = Process::start(KARMADA, &[&there[..], &about, &quick].concat(), "detector runs");
        self.running[node] = Some(process);
    }
}

fn clusters() -> Kind {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
}

async fn create(world: &World, kind: &Kind, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    kind.api(world.plane.clone(), "").create(&PostParams::default(), &object).await.expect("it is created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remedy_acts_where_names_cannot_be_resolved() {
    testkit::install_tls();
    let Some(members) = Members::simulated(Access::Exclusive, 1).await else { return };
    let world = World::new("detector", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    let remedies = Kind::cluster("remedy.karmada.io", "v1alpha1", "Remedy", "remedies");
    let fails = json!({"clusterConditionMatch": {"conditionType": CONDITION, "operator": "Equal", "conditionStatus": "False"}});
    create(
        &world,
        &remedies,
        json!({"apiVersion": "remedy.karmada.io/v1alpha1", "kind": "Remedy",
        "metadata": {"name": "names"}, "spec": {"decisionMatches": [fails], "actions": ["TrafficControl"]}}),
    )
    .await;
    let taints = Kind::cluster("policy.karmada.io", "v1alpha1", "ClusterTaintPolicy", "clustertaintpolicies");
    let says =
        |status: &str| json!([{"conditionType": CONDITION, "operator": "In", "statusValues": [status]}]);
    create(
        &world,
        &taints,
        json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterTaintPolicy",
        "metadata": {"name": "names"}, "spec": {
            "addOnConditions": says("False"), "removeOnConditions": says("True"),
            "taints": [{"key": "names", "effect": "NoSchedule"}]}}),
    )
    .await;

    let cluster = clusters().api(world.plane.clone(), "");
    let name = world.members[0].name.clone();
    let nodes: Api<DynamicObject> =
        Kind::cluster("", "v1", "Node", "nodes").api(world.members[0].client.clone(), "");
    let listed = nodes.list(&ListParams::default()).await.expect("nodes").items;
    let listed: Vec<String> = listed.into_iter().filter_map(|node| node.metadata.name).collect();
    assert!(listed.len() >= 2, "{listed:?}");
    let running = listed.iter().map(|_| None).collect();
    let member = members.places()[0].kubeconfig.display().to_string();
    let mut detectors = Detectors { world: &world, member, nodes: listed, running };
    let last = detectors.nodes.len() - 1;

    // All but one node fail: that is what the nodes say, and as long as the last one is silent nothing is said about the cluster.
    for node in 0..last {
        detectors.start(node, FAILS);
    }
    for node in 0..last {
        until(&nodes, &detectors.nodes[node], "the node tells", |found| {
            condition(found, CONDITION) == Some("False")
        })
        .await;
    }
    let found = cluster.get(&name).await.expect("a cluster");
    assert_eq!(condition(Some(&found), CONDITION), None, "one node has told nothing");

    // One node is enough.
    detectors.start(last, RESOLVES);
    until(&cluster, &name, "the cluster counts as able to", |found| {
        condition(found, CONDITION) == Some("True")
    })
    .await;
    let found = cluster.get(&name).await.expect("a cluster");
    assert_eq!(at(Some(&found), "/status/remedyActions"), None);

    // None can.
    detectors.start(last, FAILS);
    let reacted = |found: Option<&DynamicObject>| {
        condition(found, CONDITION) == Some("False")
            && at(found, "/status/remedyActions") == Some(json!(["TrafficControl"]))
            && at(found, "/spec/taints").unwrap_or_default().to_string().contains("\"names\"")
    };
    until(&cluster, &name, "Remedy and ClusterTaintPolicy react", reacted).await;
    let found = cluster.get(&name).await.expect("a cluster");
    let conditions = at(Some(&found), "/status/conditions").unwrap_or_default();
    let told = conditions.as_array().into_iter().flatten().find(|one| one["type"] == CONDITION).cloned();
    let told = told.expect("the condition");
    assert_eq!(told["reason"], "ServiceDomainNameResolutionFailed");
    assert_eq!(told["message"], "service domain name resolution is unready");
    assert_eq!(condition(Some(&found), "Ready"), Some("True"), "that is another matter");

    // And again, whoever holds the Lease by now.
    for node in 0..=last {
        detectors.start(node, RESOLVES);
    }
    let healed = |found: Option<&DynamicObject>| {
        condition(found, CONDITION) == Some("True")
            && at(found, "/status/remedyActions")
                .is_none_or(|actions| actions == json!([]) || actions.is_null())
            && !at(found, "/spec/taints").unwrap_or_default().to_string().contains("\"names\"")
    };
    until(&cluster, &name, "both take back what they did", healed).await;
    drop(detectors);
    world.leave().await;
}
