//! Clusters and workloads fail: what has to move moves, what may stay stays, and a control plane that has lost sight moves
//! nothing.

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testkit::{Kind, at, eventually, until, until_gone};

use crate::members::{Access, Members, on_real_and_simulated_members};
use crate::plane::ControlPlane;
use crate::world::World;

on_real_and_simulated_members! {
    a_dead_cluster_is_left_for_good_by_those_who_do_not_tolerate_it(Exclusive, 3);
}

/// Everything about clusters happens within seconds. A cluster is not lost before three looks in a row have failed: on a busy machine one
/// may fail by itself, after five seconds if nobody takes the connection, or after ten if nobody answers.
pub(crate) const QUICK: [&str; 10] = [
    "--feature-gates=Failover=true,StatefulFailoverInjection=true",
    "--enable-no-execute-taint-eviction",
    "--allow-no-execute-taint-policy",
    "--cluster-status-update-frequency=1s",
    "--cluster-success-threshold=1s",
    "--cluster-failure-threshold=12s",
    "--cluster-monitor-period=5s",
    "--graceful-eviction-timeout=1h",
    "--descheduling-interval=1s",
    "--unschedulable-threshold=5s",
];

/// Everything but what several control planes of one member would fight about, and the descheduler.
pub(crate) const ALL: &str = "*,-unifiedAuth,descheduler";

pub(crate) fn deployments() -> Kind {
    Kind::namespaced("apps", "v1", "Deployment", "deployments")
}

pub(crate) fn policies() -> Kind {
    Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies")
}

pub(crate) fn bindings() -> Kind {
    Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings")
}

fn events() -> Kind {
    Kind::namespaced("", "v1", "Event", "events")
}

fn clusters() -> Kind {
    Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters")
}

fn taint_policies() -> Kind {
    Kind::cluster("policy.karmada.io", "v1alpha1", "ClusterTaintPolicy", "clustertaintpolicies")
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}})
}

/// A policy for the Deployment of the same name: one cluster, and what else is said.
pub(crate) fn policy(name: &str, otherwise: Value) -> Value {
    let one = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]);
    let mut policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": {"name": name}, "spec": {
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}],
            "placement": {"spreadConstraints": one}}});
    apimachinery::patch::merge::apply(&mut policy, json!({"spec": otherwise}));
    policy
}

/// Clusters that are not ready drive out what does not tolerate it.
pub(crate) async fn taint_the_lost(world: &World) {
    let ready = |values: Value| json!([{"conditionType": "Ready", "operator": "In", "statusValues": values}]);
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterTaintPolicy",
        "metadata": {"name": "lost"}, "spec": {
            "addOnConditions": ready(json!(["False", "Unknown"])), "removeOnConditions": ready(json!(["True"])),
            "taints": [{"key": "cluster.karmada.io/not-ready", "effect": "NoExecute"}]}});
    let policies = taint_policies().api(world.plane.clone(), "");
    let policy: DynamicObject = serde_json::from_value(policy).expect("a policy");
    policies.create(&PostParams::default(), &policy).await.expect("a policy");
}

pub(crate) fn placed(binding: Option<&DynamicObject>) -> Vec<String> {
    let targets = at(binding, "/spec/clusters").unwrap_or_default();
    let name = |target: &Value| target["name"].as_str().unwrap_or("").to_owned();
    targets.as_array().into_iter().flatten().map(name).collect()
}

pub(crate) fn tasks(binding: Option<&DynamicObject>) -> Vec<Value> {
    let tasks = at(binding, "/spec/gracefulEvictionTasks").unwrap_or_default();
    tasks.as_array().cloned().unwrap_or_default()
}

pub(crate) fn ready(found: Option<&DynamicObject>) -> i64 {
    at(found, "/status/readyReplicas").and_then(|ready| ready.as_i64()).unwrap_or(0)
}

fn is_tainted(cluster: Option<&DynamicObject>) -> bool {
    let taints = at(cluster, "/spec/taints").unwrap_or_default();
    taints.as_array().into_iter().flatten().any(|taint| taint["effect"] == "NoExecute")
}

impl World {
    /// Waits until a Deployment runs, and returns the number of the member that it is in.
    pub(crate) async fn until_placed(&self, name: &str) -> usize {
        let binding = api::names::binding("Deployment", name);
        let found = until(&self.in_plane(&bindings()), &binding, "it is placed", |found| {
            placed(found).len() == 1 && tasks(found).is_empty()
        })
        .await;
        let member = self.number(&placed(found.as_ref())[0]);
        let there = self.in_member(member, &deployments());
        until(&there, name, "it runs in its cluster", |found| ready(found) == 2).await;
        member
    }

    pub(crate) fn number(&self, name: &str) -> usize {
        self.members.iter().position(|member| member.name == name).expect("a member")
    }

    pub(crate) async fn until_tainted(&self, member: usize, tainted: bool) {
        let all = clusters().api(self.plane.clone(), "");
        let what = if tainted { "it gets the taint" } else { "it loses the taint" };
        until(&all, &self.members[member].name, what, |found| is_tainted(found) == tainted).await;
    }

    /// Waits for an event about an object of a namespace; returns what it says.
    async fn until_told(&self, namespace: &str, name: &str, reason: &str) -> String {
        let all = events().api(self.plane.clone(), namespace);
        eventually(format!("event {reason} of {name}"), async || {
            let found = all.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let about = |event: &&DynamicObject| {
                event.data["reason"] == reason && event.data["involvedObject"]["name"] == name
            };
            let event = found.items.iter().find(about).ok_or("not yet")?;
            Ok(event.data["message"].as_str().unwrap_or("").to_owned())
        })
        .await
    }

    /// Waits until the control plane has looked at its members so many times more. It does so every second, and what it saw is acted
    /// upon after six.
    pub(crate) async fn until_looked_at(&self, times: usize) {
        let looks = async || -> Result<f64, String> {
            let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
            let text = self.plane.request_text(request).await.map_err(|error| error.to_string())?;
            let counts =
                text.lines().filter(|line| line.starts_with("cluster_sync_status_duration_seconds_count"));
            Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
        };
        let enough = looks().await.expect("metrics") + (times * self.members.len()) as f64;
        eventually("every member is looked at", async || {
            let now = looks().await?;
            if now >= enough { Ok(()) } else { Err(format!("{now} looks of {enough}")) }
        })
        .await;
    }

    pub(crate) async fn uid(&self, member: usize, name: &str) -> Option<String> {
        let found = self.in_member(member, &deployments()).get_opt(name).await.expect("an answer");
        found.and_then(|found| found.metadata.uid)
    }

    async fn generation(&self, name: &str) -> Option<i64> {
        let binding = api::names::binding("Deployment", name);
        self.in_plane(&bindings()).get(&binding).await.expect("a binding").metadata.generation
    }
}

async fn a_dead_cluster_is_left_for_good_by_those_who_do_not_tolerate_it(members: Members) {
    let mut world = World::new("dead", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    taint_the_lost(&world).await;
    world.create(&deployments(), deployment("web")).await;
    world.create(&policies(), policy("web", json!({}))).await;
    let first = world.until_placed("web").await;
    // Another one in the same cluster can wait for an hour.
    let patient = json!({"placement": {
        "clusterAffinity": {"clusterNames": [world.members[first].name]},
        "clusterTolerations": [{"key": "cluster.karmada.io/not-ready", "operator": "Exists", "tolerationSeconds": 3600}]}});
    world.create(&deployments(), deployment("patient")).await;
    world.create(&policies(), policy("patient", patient)).await;
    assert_eq!(world.until_placed("patient").await, first);
    let (kept, generation) = (world.uid(first, "patient").await, world.generation("patient").await);

    members.cut_off(first).await;
    world.until_tainted(first, true).await;
    let binding = api::names::binding("Deployment", "web");
    let left = world.members[first].name.clone();
    until(
        &world.in_plane(&bindings()),
        &binding,
        "it is placed elsewhere",
        |found| matches!(placed(found).as_slice(), [there] if *there != left),
    )
    .await;
    let second = world.until_placed("web").await;
    let why = world.until_told(&world.namespace, "web", "EvictingWorkloadFromCluster").await;
    let taint =
        "it has the taint cluster.karmada.io/not-ready:NoExecute, which the placement does not tolerate";
    assert_eq!(why, format!("Evicting from cluster {left}: {taint}."));
    let end = world.until_told(&world.namespace, "web", "EvictWorkloadFromClusterSucceed").await;
    assert_eq!(end, format!("Evict from cluster {left} succeed: its replacement is healthy."));

    // A control plane that is started again knows nothing of the time before.
    world.control.kill();
    world.control.start();
    members.heal(first).await;
    world.until_tainted(first, false).await;
    until_gone(&world.in_member(first, &deployments()), "web", "the old copy goes").await;
    assert_eq!(world.until_placed("web").await, second, "and does not come back");
    assert_eq!(world.until_placed("patient").await, first);
    assert_eq!((world.uid(first, "patient").await, world.generation("patient").await), (kept, generation));
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_has_lost_sight_of_most_clusters_evicts_nothing() {
    testkit::install_tls();
    let members = Members::simulated(Access::Exclusive, 5).await.expect("simulated members");
    let world = World::new("blind", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    taint_the_lost(&world).await;
    world.create(&deployments(), deployment("web")).await;
    world.create(&policies(), policy("web", json!({}))).await;
    let place = world.until_placed("web").await;
    let (kept, generation) = (world.uid(place, "web").await, world.generation("web").await);
    // It sees one of five, and not the one where the workload is.
    let lost: Vec<usize> = (0..5).filter(|member| (place + 1) % 5 != *member).collect();
    for member in &lost {
        members.cut_off(*member).await;
    }
    for member in &lost {
        world.until_tainted(*member, true).await;
    }
    world.until_looked_at(10).await;
    assert_eq!(world.generation("web").await, generation, "nobody has touched the binding");
    for member in &lost {
        let told = world.until_told("default", &world.members[*member].name, "EvictionsHalted").await;
        let (three, four) = (
            "3 of 5 clusters are lost at once: evictions stop",
            "4 of 5 clusters are lost at once: evictions stop",
        );
        assert!(told.starts_with(three) || told.starts_with(four), "{told}");
    }
    for member in &lost {
        members.heal(*member).await;
    }
    for member in &lost {
        world.until_tainted(*member, false).await;
    }
    world.until_told("default", &world.members[place].name, "EvictionsResumed").await;
    assert_eq!(world.until_placed("web").await, place);
    assert_eq!((world.uid(place, "web").await, world.generation("web").await), (kept, generation));
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_stays_unhealthy_moves_with_its_state() {
    testkit::install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("simulated members");
    let world = World::new("ill", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    world.create(&deployments(), deployment("web")).await;
    // Where its pods start, it is unhealthy as well, on a busy machine for seconds.
    let state = json!({"rules": [{"aliasLabelName": "replicas-before", "jsonPath": "{.replicas}"}]});
    let failover = json!({"application": {
        "decisionConditions": {"tolerationSeconds": 10}, "purgeMode": "Immediately", "statePreservation": state}});
    world.create(&policies(), policy("web", json!({"propagateDeps": true, "failover": failover}))).await;
    let policy = world.in_plane(&policies()).get("web").await.expect("the policy");
    assert_eq!(
        policy.data["spec"]["failover"]["application"]["purgeMode"], "Directly",
        "the older name is taken"
    );
    let first = world.until_placed("web").await;
    let second = 1 - first;

    members.fail_pods(first, "app=web");
    let there = world.in_member(second, &deployments());
    let found = until(&there, "web", "it runs in the other cluster", |found| ready(found) == 2).await;
    let label = found.and_then(|found| found.metadata.labels?.get("replicas-before").cloned());
    assert_eq!(label.as_deref(), Some("2"));
    until_gone(&world.in_member(first, &deployments()), "web", "the old copy is gone").await;
    let why = world.until_told(&world.namespace, "web", "EvictingWorkloadFromCluster").await;
    assert!(why.ends_with("it has been unhealthy there for longer than 10s."), "{why}");
    // When the eviction is over, the label goes, too.
    assert_eq!(world.until_placed("web").await, second);
    until(&there, "web", "the label of the state goes", |found| {
        let labels = found.and_then(|found| found.metadata.labels.as_ref());
        labels.is_some_and(|labels| !labels.contains_key("replicas-before"))
    })
    .await;
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_placed_afresh_on_request_and_clusters_get_remedies() {
    testkit::install_tls();
    let members = Members::simulated(Access::Exclusive, 1).await.expect("simulated members");
    let world = World::new("asked", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    world.create(&deployments(), deployment("web")).await;
    world.create(&policies(), policy("web", json!({}))).await;
    world.until_placed("web").await;

    let kind = Kind::cluster("apps.karmada.io", "v1alpha1", "WorkloadRebalancer", "workloadrebalancers");
    let all: Api<DynamicObject> = kind.api(world.plane.clone(), "");
    let workload = |name: &str| json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": world.namespace, "name": name});
    let request = json!({"apiVersion": "apps.karmada.io/v1alpha1", "kind": "WorkloadRebalancer",
        "metadata": {"name": "again"}, "spec": {"workloads": [workload("web"), workload("missing")]}});
    let request: DynamicObject = serde_json::from_value(request).expect("a request");
    let created = all.create(&PostParams::default(), &request).await.expect("a request");
    let asked = created.metadata.creation_timestamp.expect("a time").0;
    let done =
        until(&all, "again", "it is finished", |found| at(found, "/status/finishTime").is_some()).await;
    let results: Vec<Value> = at(done.as_ref(), "/status/observedWorkloads")
        .and_then(|all| all.as_array().cloned())
        .unwrap_or_default()
        .into_iter()
        .map(|one| json!([one["workload"]["name"], one["result"], one["reason"]]))
        .collect();
    let expected =
        [json!(["missing", "Failed", "ReferencedBindingNotFound"]), json!(["web", "Successful", null])];
    assert_eq!(results, expected);
    let binding = api::names::binding("Deployment", "web");
    until(&world.in_plane(&bindings()), &binding, "it is placed afresh", |found| {
        let time = |path: &str| at(found, path)?.as_str()?.parse::<jiff::Timestamp>().ok();
        time("/spec/rescheduleTriggeredAt") == Some(asked) && time("/status/lastScheduledTime") >= Some(asked)
    })
    .await;
    let ttl = Patch::Merge(json!({"spec": {"ttlSecondsAfterFinished": 1}}));
    all.patch("again", &PatchParams::default(), &ttl).await.expect("changed");
    until_gone(&all, "again", "its time is over").await;

    let kind = Kind::cluster("remedy.karmada.io", "v1alpha1", "Remedy", "remedies");
    let remedies: Api<DynamicObject> = kind.api(world.plane.clone(), "");
    let remedy = json!({"apiVersion": "remedy.karmada.io/v1alpha1", "kind": "Remedy", "metadata": {"name": "dns"},
        "spec": {"actions": ["TrafficControl"], "decisionMatches": [{"clusterConditionMatch":
            {"conditionType": "Ready", "operator": "Equal", "conditionStatus": "True"}}]}});
    let remedy: DynamicObject = serde_json::from_value(remedy).expect("a remedy");
    remedies.create(&PostParams::default(), &remedy).await.expect("a remedy");
    let (all, name) = (clusters().api(world.plane.clone(), ""), &world.members[0].name);
    let actions = |found: Option<&DynamicObject>| at(found, "/status/remedyActions");
    until(&all, name, "the action is asked for", |found| actions(found) == Some(json!(["TrafficControl"])))
        .await;
    remedies.delete("dns", &DeleteParams::default()).await.expect("deleted");
    until(&all, name, "the action is withdrawn", |found| actions(found).is_none_or(|all| all == json!([])))
        .await;
    world.leave().await;
}

/// Has the nodes of a member take no pods; the summary of its resources does not tell.
async fn cordon(world: &World, member: usize) {
    let nodes = Kind::cluster("", "v1", "Node", "nodes").api(world.members[member].client.clone(), "");
    for node in nodes.list(&ListParams::default()).await.expect("nodes").items {
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        let name = node.metadata.name.expect("a name");
        nodes.patch(&name, &PatchParams::default(), &cordon).await.expect("cordoned");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_in_push_mode_are_estimated_without_an_estimator() {
    testkit::install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("simulated members");
    let flags = [&QUICK[..], &["--enable-scheduler-estimator"]].concat();
    let world =
        World::new("estimated", ControlPlane::with("*,-unifiedAuth", &flags), &members.places()).await;
    cordon(&world, 0).await;
    world.create(&deployments(), deployment("web")).await;
    world.patch(&deployments(), "web", &json!({"spec": {"replicas": 8}})).await;
    let by_room = json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"}});
    let placement = json!({"placement": {"spreadConstraints": null, "replicaScheduling": by_room}});
    world.create(&policies(), policy("web", placement)).await;
    let there = world.in_member(1, &deployments());
    until(&there, "web", "all of it runs where nodes take pods", |found| ready(found) == 8).await;
    let binding = api::names::binding("Deployment", "web");
    let binding = world.in_plane(&bindings()).get(&binding).await.expect("a binding");
    assert_eq!(placed(Some(&binding)), [world.members[1].name.as_str()], "from the start");
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_find_no_node_move_to_another_cluster() {
    testkit::install_tls();
    let members = Members::simulated(Access::Exclusive, 2).await.expect("simulated members");
    let world = World::new("stuck", ControlPlane::with(ALL, &QUICK), &members.places()).await;
    cordon(&world, 0).await;
    world.create(&deployments(), deployment("web")).await;
    world.patch(&deployments(), "web", &json!({"spec": {"replicas": 8}})).await;
    let by_room = json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"}});
    let placement = json!({"placement": {"spreadConstraints": null, "replicaScheduling": by_room}});
    world.create(&policies(), policy("web", placement)).await;
    let there = world.in_member(1, &deployments());
    until(&there, "web", "more than its part runs in the other cluster", |found| ready(found) > 4).await;
    let told = world.until_told(&world.namespace, "web", "DescheduleBindingSucceed").await;
    let stuck = &world.members[0].name;
    assert!(told.contains(&format!("replica(s) in cluster({stuck})")), "{told}");
    world.patch(&deployments(), "web", &json!({"spec": {"replicas": 0}})).await;
    until(&there, "web", "nothing runs any more", |found| ready(found) == 0).await;
    world.leave().await;
}
