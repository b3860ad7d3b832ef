//! Every way to divide replicas on three real members: placed as expected, then following scale up, scale down, a
//! cluster that joins, a label that changes, a taint that comes and goes.

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use testkit::check::{self, Site, check};
use testkit::{Server, client, object, resource, run, until};

use crate::start;

/// Names of this test's own: other tests of the run may join the same clusters.
const NAMES: [&str; 3] = ["sched-e2e-one", "sched-e2e-two", "sched-e2e-three"];
const ACCOUNTS: [&str; 2] = ["--cluster-namespace", "sched-e2e-accounts"];

/// The control plane, its members and a namespace.
struct Plane {
    client: kube::Client,
    /// What the control plane has done, and what was done to each member.
    logs: (Vec<PathBuf>, Vec<PathBuf>),
    control: String,
    clusters: Api<DynamicObject>,
    templates: Api<Deployment>,
    policies: Api<DynamicObject>,
    bindings: Api<DynamicObject>,
    members: Vec<Api<Deployment>>,
    kubeconfigs: Vec<String>,
}

impl Plane {
    async fn new(server: &Server, members: &[clusters::Cluster]) -> Self {
        let plane = server.client().await;
        let namespace = format!("sched-e2e-{}", std::process::id());
        let namespaces: Api<DynamicObject> =
            Api::all_with(plane.clone(), &resource("", "v1", "Namespace", "namespaces"));
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        namespaces.create(&PostParams::default(), &object(made)).await.expect("a namespace");
        let policy = resource("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
        let binding = resource("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
        let cluster = resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
        let mut apis = Vec::new();
        for member in members {
            apis.push(Api::namespaced(client(member.kubeconfig()).await, &namespace));
        }
        Self {
            client: plane.clone(),
            logs: (server.audit_logs(), members.iter().map(clusters::Cluster::audit_log).collect()),
            control: server.kubeconfig().to_string_lossy().into_owned(),
            clusters: Api::all_with(plane.clone(), &cluster),
            templates: Api::namespaced(plane.clone(), &namespace),
            policies: Api::namespaced_with(plane.clone(), &namespace, &policy),
            bindings: Api::namespaced_with(plane.clone(), &namespace, &binding),
            members: apis,
            kubeconfigs: members
                .iter()
                .map(|member| member.kubeconfig().to_string_lossy().into_owned())
                .collect(),
        }
    }

    fn karmada(&self, verb: &str, index: usize, further: &[&str]) {
        let control = ["--kubeconfig", &self.control, "--cluster-kubeconfig", &self.kubeconfigs[index]];
        let arguments = [&[verb, NAMES[index]], &control[..], &ACCOUNTS[..], further].concat();
        run(env!("CARGO_BIN_EXE_karmada"), &arguments);
    }

    /// Registers a member and waits until workloads can go there.
    async fn join(&self, index: usize) {
        self.karmada("join", index, &[]);
        until(&self.clusters, NAMES[index], "a joined cluster is ready", |cluster| {
            let data = cluster.map(|cluster| &cluster.data).unwrap_or(&Value::Null);
            let status = &data["status"];
            let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
            conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
                && status["apiEnablements"].as_array().is_some_and(|list| !list.is_empty())
                && status["resourceSummary"]["allocatable"]["pods"].is_string()
                && data["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
        })
        .await;
    }

    /// Waits until no pod that an earlier test left in a member counts any more.
    async fn until_empty(&self, index: usize) {
        until(&self.clusters, NAMES[index], "no pod takes room", |cluster| {
            let data = cluster.map(|cluster| &cluster.data).unwrap_or(&Value::Null);
            let pods = &data["status"]["resourceSummary"]["allocated"]["pods"];
            pods.is_null() || pods == "0"
        })
        .await;
    }

    /// Fails unless the control plane and its members keep the laws of every world.
    async fn check(&self) {
        let members = NAMES.iter().zip(&self.members).zip(&self.logs.1);
        let member = |((name, api), log): ((&&str, &Api<Deployment>), &PathBuf)| {
            // Other tests use the same members.
            Site::member(name, api.clone().into_client(), vec![log.clone()]).about("sched-e2e")
        };
        let plane = Site::plane(self.client.clone(), check::CONTROLLERS, self.logs.0.clone());
        let world =
            check::World { plane, members: members.map(member).collect(), controllers: "*".to_owned() };
        check(&world).await;
    }

    async fn change_cluster(&self, index: usize, patch: Value) {
        let patch = Patch::Merge(patch);
        self.clusters.patch(NAMES[index], &PatchParams::default(), &patch).await.expect("a changed cluster");
    }

    /// Creates a Deployment and the policy that places it.
    async fn deploy(&self, name: &str, replicas: i32, placement: Value) {
        let template: Deployment = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": "nginx"}]}}}}))
        .expect("a Deployment");
        self.templates.create(&PostParams::default(), &template).await.expect("a template");
        let selectors = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}]);
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": name}, "spec": {"resourceSelectors": selectors, "placement": placement}});
        self.policies.create(&PostParams::default(), &object(policy)).await.expect("a policy");
    }

    async fn scale(&self, name: &str, replicas: i32) {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.templates.patch(name, &PatchParams::default(), &patch).await.expect("scaled");
    }

    /// Waits until the members run exactly this many replicas; none means that the Deployment is not there.
    async fn runs(&self, name: &str, what: &str, expected: [Option<i32>; 3]) {
        for (member, (expected, at)) in self.members.iter().zip(expected.into_iter().zip(NAMES)) {
            let what = format!("{name}, {what}: {expected:?} in {at}");
            until(member, name, &what, |found| {
                found.and_then(|deployment| deployment.spec.as_ref()?.replicas) == expected
            })
            .await;
        }
    }

    /// Waits until the binding has this many replicas on some single cluster, and returns which.
    async fn gathered(&self, name: &str, replicas: i64) -> usize {
        let binding = format!("{name}-deployment");
        let place = |binding: &DynamicObject| -> Option<String> {
            match binding.data["spec"]["clusters"].as_array()?.as_slice() {
                [only] if only["replicas"] == replicas => Some(only["name"].as_str()?.to_owned()),
                _ => None,
            }
        };
        let what = format!("{name}: {replicas} replicas on one cluster");
        // What was seen counts: by the time of another look it may be somewhere else.
        let seen = std::cell::RefCell::new(None);
        until(&self.bindings, &binding, &what, |found| {
            *seen.borrow_mut() = found.and_then(place);
            seen.borrow().is_some()
        })
        .await;
        let at = seen.into_inner().expect("just seen");
        NAMES.iter().position(|name| *name == at).expect("a cluster of ours")
    }
}

fn weighted(preference: Value) -> Value {
    json!({"replicaScheduling": {"replicaSchedulingType": "Divided",
        "replicaDivisionPreference": "Weighted", "weightPreference": preference}})
}

#[tokio::test(flavor = "multi_thread")]
async fn every_strategy_places_and_follows_what_changes() {
    // Pods of other tests would take room, and replicas are divided by room.
    let Some(members) = clusters::exclusive(3).await else { return };
    let server = start("*");
    let plane = Plane::new(&server, &members).await;
    plane.join(0).await;
    plane.join(1).await;
    plane.until_empty(0).await;
    plane.until_empty(1).await;
    // First, and alone: pods of the others would take room.
    let by_room = || weighted(json!({"dynamicWeight": "AvailableReplicas"}));
    plane.deploy("dynamic", 6, by_room()).await;
    plane.runs("dynamic", "placed evenly", [Some(3), Some(3), None]).await;
    plane.change_cluster(0, json!({"metadata": {"labels": {"site": "north"}}})).await;

    let rule = |index: usize, weight: i64| json!({"targetCluster": {"clusterNames": [NAMES[index]]}, "weight": weight});
    plane.deploy("duplicated", 2, json!({})).await;
    plane
        .deploy("static", 6, weighted(json!({"staticWeightList": [rule(0, 2), rule(1, 1), rule(2, 1)]})))
        .await;
    let gather = json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"});
    plane.deploy("aggregated", 5, json!({"replicaScheduling": gather})).await;
    let north = json!({"labelSelector": {"matchLabels": {"site": "north"}}});
    plane.deploy("labelled", 1, json!({"clusterAffinity": north.clone()})).await;
    let spread = json!([{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]);
    plane.deploy("spread", 2, json!({"spreadConstraints": spread})).await;
    let mut labelled_by_room = by_room();
    labelled_by_room["clusterAffinity"] = north.clone();
    plane.deploy("labelled-dynamic", 2, labelled_by_room).await;
    let group = |name: &str, index: usize| json!({"affinityName": name, "clusterNames": [NAMES[index]]});
    plane.deploy("grouped", 1, json!({"clusterAffinities": [group("best", 2), group("second", 0)]})).await;

    plane.runs("duplicated", "placed", [Some(2), Some(2), None]).await;
    plane.runs("static", "placed 2:1", [Some(4), Some(2), None]).await;
    plane.runs("labelled", "placed by label", [Some(1), None, None]).await;
    plane.runs("labelled-dynamic", "placed by label", [Some(2), None, None]).await;
    plane.runs("grouped", "the best cluster is not there yet", [Some(1), None, None]).await;
    let home = plane.gathered("aggregated", 5).await;
    let chosen = plane.gathered("spread", 2).await;

    for (name, replicas) in
        [("duplicated", 3), ("static", 9), ("dynamic", 8), ("aggregated", 7), ("spread", 4)]
    {
        plane.scale(name, replicas).await;
    }
    plane.runs("duplicated", "scaled up", [Some(3), Some(3), None]).await;
    plane.runs("static", "scaled up", [Some(6), Some(3), None]).await;
    plane.runs("dynamic", "scaled up", [Some(4), Some(4), None]).await;
    assert_eq!(plane.gathered("aggregated", 7).await, home, "what is gathered stays where it is");
    assert_eq!(plane.gathered("spread", 4).await, chosen, "the cluster in use is preferred");

    for (name, replicas) in [("duplicated", 1), ("static", 3), ("dynamic", 4), ("aggregated", 3)] {
        plane.scale(name, replicas).await;
    }
    plane.runs("duplicated", "scaled down", [Some(1), Some(1), None]).await;
    plane.runs("static", "scaled down", [Some(2), Some(1), None]).await;
    plane.runs("dynamic", "scaled down", [Some(2), Some(2), None]).await;
    assert_eq!(plane.gathered("aggregated", 3).await, home);

    plane.change_cluster(1, json!({"metadata": {"labels": {"site": "north"}}})).await;
    plane.runs("labelled", "a second cluster got the label", [Some(1), Some(1), None]).await;
    // A label moves nothing that is fully placed; what is added later goes by it.
    plane.scale("labelled-dynamic", 4).await;
    plane.runs("labelled-dynamic", "scaled with a second cluster", [Some(3), Some(1), None]).await;
    plane.change_cluster(0, json!({"metadata": {"labels": {"site": "south"}}})).await;
    plane.runs("labelled", "the first one lost it", [None, Some(1), None]).await;
    plane.runs("labelled-dynamic", "the first one lost it", [Some(3), Some(1), None]).await;
    plane.scale("labelled-dynamic", 5).await;
    plane.runs("labelled-dynamic", "scaled without the first one", [None, Some(5), None]).await;

    plane.join(2).await;
    plane.runs("duplicated", "a cluster joined", [Some(1), Some(1), Some(1)]).await;
    plane.scale("static", 8).await;
    plane.runs("static", "scaled with the new cluster", [Some(4), Some(2), Some(2)]).await;
    // What is fully placed was not moved by the newcomer, nor does anything go back to a better group by itself.
    plane.runs("dynamic", "a cluster joined", [Some(2), Some(2), None]).await;
    plane.runs("grouped", "a cluster joined", [Some(1), None, None]).await;
    plane.scale("dynamic", 10).await;
    plane.runs("dynamic", "scaled with the new cluster", [Some(4), Some(4), Some(2)]).await;
    assert_eq!(plane.gathered("aggregated", 3).await, home, "a newcomer moves nothing");
    plane.scale("aggregated", 5).await;
    assert_eq!(plane.gathered("aggregated", 5).await, home);

    let taint = json!([{"key": "maintenance", "effect": "NoSchedule"}]);
    plane.change_cluster(2, json!({"spec": {"taints": taint}})).await;
    plane.deploy("late", 1, json!({})).await;
    plane.deploy("late-dynamic", 4, by_room()).await;
    plane.deploy("late-static", 4, weighted(json!({"staticWeightList": [rule(1, 1), rule(2, 3)]}))).await;
    let third = json!({"clusterAffinity": {"clusterNames": [NAMES[2]]}});
    plane.deploy("blocked", 1, third).await;
    plane.runs("late", "a taint keeps new workloads away", [Some(1), Some(1), None]).await;
    plane.runs("late-dynamic", "a taint keeps new workloads away", [Some(2), Some(2), None]).await;
    plane.runs("late-static", "a taint keeps new workloads away", [None, Some(4), None]).await;
    plane.runs("duplicated", "a taint leaves what runs", [Some(1), Some(1), Some(1)]).await;
    until(&plane.bindings, "blocked-deployment", "the condition says why nothing fits", |binding| {
        let conditions = binding.and_then(|binding| binding.data["status"]["conditions"].as_array());
        conditions.into_iter().flatten().any(|one| {
            one["type"] == "Scheduled"
                && one["reason"] == "NoClusterFit"
                && one["message"]
                    == "0/3 clusters are available: \
                        1 cluster(s) had untolerated taint {maintenance:NoSchedule}, \
                        2 cluster(s) did not match the placement cluster affinity constraint."
        })
    })
    .await;
    plane.change_cluster(2, json!({"spec": {"taints": []}})).await;
    plane.runs("late", "the taint is gone", [Some(1), Some(1), Some(1)]).await;
    plane.runs("blocked", "the obstacle is gone", [None, None, Some(1)]).await;
    plane.scale("late-dynamic", 7).await;
    plane.runs("late-dynamic", "scaled without the taint", [Some(3), Some(3), Some(1)]).await;
    plane.scale("late-static", 8).await;
    plane.runs("late-static", "scaled without the taint", [None, Some(2), Some(6)]).await;

    plane.check().await;
    for name in [
        "duplicated",
        "static",
        "dynamic",
        "aggregated",
        "labelled",
        "labelled-dynamic",
        "grouped",
        "spread",
        "late",
        "late-dynamic",
        "late-static",
        "blocked",
    ] {
        plane.templates.delete(name, &Default::default()).await.expect("the template is deleted");
        plane.runs(name, "removed", [None, None, None]).await;
    }
    plane.check().await;
    for (index, member) in members.iter().enumerate() {
        let file = kube::config::Kubeconfig::read_from(member.kubeconfig()).expect("a kubeconfig");
        let context = file.current_context.expect("a current context");
        plane.karmada("unjoin", index, &["--cluster-context", &context]);
    }
}
