//! Why a binding is where it is, or nowhere: the condition, the event, the diagnosis with every cluster, and what
//! operators measure. The clusters are only described; nobody has to reach them.

use http::{Request, StatusCode};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use scheduler::Explanation;
use scheduler::diagnosis::ClusterVerdict;
use scheduler::trigger::Trigger;
use serde_json::{Value, json};

use testkit::check::{self, CONTROLLERS, Site, check};
use testkit::{DEADLINE, Server, eventually, object, resource, until};

use crate::start;

const NAMESPACE: &str = "default";

/// A control plane with four clusters: two that fit, one with a taint, one that does not know Deployments.
struct Plane {
    client: kube::Client,
    clusters: Api<DynamicObject>,
    bindings: Api<DynamicObject>,
    server: Server,
}

impl Plane {
    async fn start() -> Self {
        let server = start("scheduler");
        let client = server.client().await;
        let kind = resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
        let binding = resource("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
        let plane = Self {
            clusters: Api::all_with(client.clone(), &kind),
            bindings: Api::namespaced_with(client.clone(), NAMESPACE, &binding),
            client,
            server,
        };
        let taint = json!([{"key": "maintenance", "effect": "NoSchedule"}]);
        for (name, pods, taints, kinds) in [
            ("m1", "8", json!([]), json!([{"name": "deployments", "kind": "Deployment"}])),
            ("m2", "4", json!([]), json!([{"name": "deployments", "kind": "Deployment"}])),
            ("m3", "90", taint, json!([{"name": "deployments", "kind": "Deployment"}])),
            ("m4", "90", json!([]), json!([])),
        ] {
            let cluster = json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": name}, "spec": {"syncMode": "Push", "taints": taints}});
            plane.clusters.create(&PostParams::default(), &object(cluster)).await.expect("a cluster");
            let status = json!({"status": {
                "apiEnablements": [{"groupVersion": "apps/v1", "resources": kinds}],
                "resourceSummary": {"allocatable": {"pods": pods}}}});
            let patch = Patch::Merge(status);
            let patched = plane.clusters.patch_status(name, &PatchParams::default(), &patch).await;
            patched.expect("the status of a cluster");
        }
        plane
    }

    /// Fails unless the control plane keeps the laws of every world.
    async fn check(&self) {
        let plane = Site::plane(self.client.clone(), CONTROLLERS, self.server.audit_logs());
        check(&check::World { plane, members: Vec::new(), controllers: "scheduler".to_owned() }).await;
    }

    async fn bind(&self, name: &str, replicas: i64, placement: Value) {
        let binding = json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
            "metadata": {"name": name, "labels": {"propagationpolicy.karmada.io/permanent-id": "test"}},
            "spec": {
                "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": NAMESPACE, "name": name},
                "replicas": replicas, "placement": placement,
            },
        });
        self.bindings.create(&PostParams::default(), &object(binding)).await.expect("a binding");
    }

    /// Waits for the condition `Scheduled` with this reason and message.
    async fn scheduled(&self, name: &str, reason: &str, message: &str) {
        until(&self.bindings, name, &format!("{name}: {reason}: {message}"), |binding| {
            let conditions = binding.and_then(|binding| binding.data["status"]["conditions"].as_array());
            conditions
                .into_iter()
                .flatten()
                .any(|one| one["type"] == "Scheduled" && one["reason"] == reason && one["message"] == message)
        })
        .await;
    }

    /// Waits for an event with this message about an object.
    async fn told(&self, kind: &str, name: &str, reason: &str, message: &str) {
        let events: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), NAMESPACE, &resource("", "v1", "Event", "events"));
        let mut stream = std::pin::pin!(watcher(events, watcher::Config::default()).applied_objects());
        let seen = async {
            while let Some(event) =
                futures::TryStreamExt::try_next(&mut stream).await.expect("the watch holds")
            {
                let event = event.data;
                let about = &event["involvedObject"];
                if about["kind"] == kind
                    && about["name"] == name
                    && event["reason"] == reason
                    && event["message"] == message
                {
                    return;
                }
            }
        };
        let seen = tokio::time::timeout(DEADLINE, seen).await;
        seen.unwrap_or_else(|_| panic!("no event {reason} about {kind} {name}: {message}"));
    }

    async fn get(&self, path: &str, accept: &str) -> Result<String, kube::Error> {
        let request = Request::get(path).header("accept", accept).body(Vec::new()).expect("a request");
        self.client.request_text(request).await
    }

    /// Returns the diagnosis of a binding, as data and as text.
    async fn diagnosis(&self, name: &str) -> (Explanation, String) {
        let path = diagnosis_of(name);
        let data = self.get(&path, "application/json").await.expect("a diagnosis");
        let text = self.get(&path, "text/plain").await.expect("a diagnosis as text");
        (serde_json::from_str(&data).expect("an explanation"), text)
    }
}

fn diagnosis_of(name: &str) -> String {
    format!("/apis/work.karmada.io/v1alpha2/namespaces/{NAMESPACE}/resourcebindings/{name}/diagnosis")
}

fn by_room() -> Value {
    json!({"replicaScheduling": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_can_be_asked_for_its_reasons() {
    let plane = Plane::start().await;

    plane.bind("fits", 6, by_room()).await;
    plane.scheduled("fits", "Success", "Binding has been scheduled successfully.").await;
    let message = "Binding has been scheduled successfully. Result: {m1:4, m2:2}";
    plane.told("ResourceBinding", "fits", "ScheduleBindingSucceed", message).await;
    plane.told("Deployment", "fits", "ScheduleBindingSucceed", message).await;
    let (explanation, text) = plane.diagnosis("fits").await;
    assert_eq!((explanation.status.as_str(), explanation.trigger), ("True", Trigger::PlacementChanged));
    let rejected = |name: &str| {
        let cluster = explanation.report.clusters.iter().find(|cluster| cluster.name == name);
        match &cluster.expect("every cluster is listed").verdict {
            ClusterVerdict::Rejected { plugin, reasons } => Some((plugin.clone(), reasons.clone())),
            _ => None,
        }
    };
    let taint = "cluster(s) had untolerated taint {maintenance:NoSchedule}".to_owned();
    let no_api = "cluster(s) did not have the API resource".to_owned();
    assert_eq!(rejected("m3"), Some(("TaintToleration".to_owned(), vec![taint])));
    assert_eq!(rejected("m4"), Some(("APIEnablement".to_owned(), vec![no_api])));
    let (first, rest) = text.split_once('\n').expect("several lines");
    assert!(first.ends_with("because the placement is new or changed"), "{text}");
    assert_eq!(
        rest,
        "Scheduled is True (Success): Binding has been scheduled successfully.\n\
         selection: every feasible cluster, there are no spread constraints\n\
         division: 6 more replicas by room: m1 8, m2 4\n\
         m1: 4 replicas (score 0, room for 8, with its own 8)\n\
         m2: 2 replicas (score 0, room for 4, with its own 4)\n\
         m3: rejected by TaintToleration: cluster(s) had untolerated taint {maintenance:NoSchedule}\n\
         m4: rejected by APIEnablement: cluster(s) did not have the API resource\n"
    );

    // The last decision is what is told.
    let more = Patch::Merge(json!({"spec": {"replicas": 9}}));
    plane.bindings.patch("fits", &PatchParams::default(), &more).await.expect("scaled up");
    let scaled = "Binding has been scheduled successfully. Result: {m1:6, m2:3}";
    plane.told("ResourceBinding", "fits", "ScheduleBindingSucceed", scaled).await;
    let (explanation, _) = plane.diagnosis("fits").await;
    assert_eq!(explanation.trigger, Trigger::ReplicasChanged);
    plane.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nothing_fits_everybody_is_told_why() {
    let plane = Plane::start().await;

    let nowhere = json!({"clusterAffinity": {"clusterNames": ["m3", "m4"]}});
    plane.bind("nowhere", 1, nowhere).await;
    let message = "0/4 clusters are available: 1 cluster(s) did not have the API resource, \
        1 cluster(s) had untolerated taint {maintenance:NoSchedule}, \
        2 cluster(s) did not match the placement cluster affinity constraint.";
    plane.scheduled("nowhere", "NoClusterFit", message).await;
    plane.told("ResourceBinding", "nowhere", "ScheduleBindingFailed", message).await;
    plane.told("Deployment", "nowhere", "ScheduleBindingFailed", message).await;
    let (explanation, text) = plane.diagnosis("nowhere").await;
    assert_eq!((explanation.reason.as_str(), explanation.message.as_str()), ("NoClusterFit", message));
    let rejections = explanation.report.clusters.iter();
    assert_eq!(
        rejections.filter(|one| matches!(one.verdict, ClusterVerdict::Rejected { .. })).count(),
        4,
        "{text}"
    );

    plane.bind("large", 99, by_room()).await;
    let message = "failed to assign replicas: failed to scale up: \
        Clusters available replicas 12 are not enough to schedule.";
    plane.scheduled("large", "Unschedulable", message).await;
    plane.told("ResourceBinding", "large", "ScheduleBindingFailed", message).await;
    let (_, text) = plane.diagnosis("large").await;
    assert!(text.contains("m1: selected (score 0, room for 8, with its own 8)\n"), "{text}");

    // Each group that was tried is told about, and which one did it.
    let groups = json!({"clusterAffinities": [
        {"affinityName": "best", "clusterNames": ["m3"]}, {"affinityName": "next", "clusterNames": ["m1"]}]});
    plane.bind("groups", 1, groups).await;
    plane.scheduled("groups", "Success", "Binding has been scheduled successfully.").await;
    let first = "failed to schedule ResourceBinding(default/groups) with clusterAffiliates index(0): \
        0/4 clusters are available: 1 cluster(s) did not have the API resource, \
        1 cluster(s) had untolerated taint {maintenance:NoSchedule}, \
        2 cluster(s) did not match the placement cluster affinity constraint.";
    plane.told("ResourceBinding", "groups", "ScheduleBindingFailed", first).await;
    let success = "Binding has been scheduled successfully. Result: {m1:1}";
    plane.told("ResourceBinding", "groups", "ScheduleBindingSucceed", success).await;
    let (explanation, text) = plane.diagnosis("groups").await;
    assert_eq!((explanation.report.affinity_name.as_str(), explanation.failed_terms.len()), ("next", 1));
    assert!(text.contains("affinity term 0 failed: 0/4 clusters are available: "), "{text}");
    plane.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_are_for_whoever_may_read_them_and_attempts_are_counted() {
    let plane = Plane::start().await;
    plane.bind("fits", 6, by_room()).await;
    plane.bind("large", 99, by_room()).await;
    plane
        .told(
            "ResourceBinding",
            "fits",
            "ScheduleBindingSucceed",
            "Binding has been scheduled successfully. Result: {m1:4, m2:2}",
        )
        .await;
    plane.scheduled("large", "Unschedulable", "failed to assign replicas: failed to scale up: Clusters available replicas 12 are not enough to schedule.").await;

    let unknown = plane.get(&diagnosis_of("nobody"), "application/json").await;
    let code = |result: Result<String, kube::Error>| match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(unknown), StatusCode::NOT_FOUND.as_u16());
    let other = diagnosis_of("fits").replace("/diagnosis", "/other");
    assert_eq!(code(plane.get(&other, "application/json").await), StatusCode::NOT_FOUND.as_u16());
    let request = Request::get(diagnosis_of("fits"))
        .header("impersonate-user", "somebody")
        .body(Vec::new())
        .expect("a request");
    assert_eq!(code(plane.client.request_text(request).await), StatusCode::FORBIDDEN.as_u16());

    let expected = [
        r#"karmada_scheduler_schedule_attempts_total{result="scheduled",schedule_type="ReconcileSchedule"} "#,
        r#"karmada_scheduler_schedule_attempts_total{result="error",schedule_type="ReconcileSchedule"} "#,
        r#"karmada_scheduler_e2e_scheduling_duration_seconds_bucket{le="0.001",result="scheduled",schedule_type="ReconcileSchedule"} "#,
        r#"karmada_scheduler_scheduling_algorithm_duration_seconds_count{schedule_step="Filter"} "#,
        r#"karmada_scheduler_scheduling_algorithm_duration_seconds_count{schedule_step="Score"} "#,
        r#"karmada_scheduler_scheduling_algorithm_duration_seconds_count{schedule_step="Select"} "#,
        r#"karmada_scheduler_scheduling_algorithm_duration_seconds_count{schedule_step="AssignReplicas"} "#,
        r#"karmada_scheduler_queue_incoming_bindings_total{event="BindingAdd"} "#,
        r#"karmada_scheduler_queue_incoming_bindings_total{event="ScheduleAttemptFailure"} "#,
        r#"karmada_scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter",result="Success"} "#,
        r#"karmada_scheduler_framework_extension_point_duration_seconds_count{extension_point="Score",result="Success"} "#,
        r#"karmada_scheduler_plugin_execution_duration_seconds_count{plugin="APIEnablement",extension_point="Filter",result="Success"} "#,
        r#"scheduler_pending_bindings{queue="unschedulable"} 1"#,
        r#"apiserver_request_total{"#,
    ];
    // An attempt is counted when it is over, a moment after its last write is seen.
    let metrics = eventually("the attempts are counted", async || {
        let metrics = plane.get("/metrics", "*/*").await.expect("metrics");
        let missing: Vec<&str> = expected.into_iter().filter(|line| !metrics.contains(line)).collect();
        if missing.is_empty() { Ok(metrics) } else { Err(format!("{missing:?} are missing in\n{metrics}")) }
    })
    .await;
    assert!(metrics.ends_with("# EOF\n") && metrics.matches("# EOF").count() == 1, "{metrics}");
    plane.check().await;
}
