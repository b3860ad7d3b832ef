//! What third-party kinds say where the recorded cases (`original.rs`) have none, or an older version of the original
//! answered. Expected is what the scripts of Karmada v1.19 do.

use api::work::AggregatedStatusItem;
use interpreter::{Rulebook as _, ThirdParty};
use jiff::Timestamp;
use serde_json::{Value, json};

fn object(api_version: &str, kind: &str, spec: Value, status: Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": "thing", "namespace": "shop", "generation": 1}, "spec": spec,
    });
    if !status.is_null() {
        object["status"] = status;
    }
    object
}

/// Returns the status that is made of those of m1, m2 and so on; null is a member that has reported nothing.
fn aggregated(object: Value, statuses: &[Value]) -> Value {
    let items: Vec<AggregatedStatusItem> = (1..)
        .zip(statuses)
        .map(|(number, status)| AggregatedStatusItem {
            cluster_name: format!("m{number}"),
            status: (!status.is_null()).then(|| status.clone()),
            ..AggregatedStatusItem::default()
        })
        .collect();
    let made = ThirdParty::default().aggregate_status(object, &items, Timestamp::UNIX_EPOCH);
    made.expect("well-formed reports")["status"].clone()
}

fn healthy(object: &Value) -> bool {
    ThirdParty::default().interpret_health(object).expect("a verdict")
}

#[test]
fn what_no_member_and_no_template_says_about_a_flux_release_stays_absent() {
    let condition = |cluster: &str| json!([{"type": "Ready", "message": format!("{cluster}ok")}]);
    let reported = json!({"conditions": condition("")});
    for (api_version, kind) in [
        ("helm.toolkit.fluxcd.io/v2beta1", "HelmRelease"),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization"),
    ] {
        let release = |status: Value| object(api_version, kind, json!({}), status);
        let conditions = condition("m1=");
        assert_eq!(
            aggregated(release(Value::Null), std::slice::from_ref(&reported)),
            json!({"observedGeneration": 0, "conditions": conditions}),
            "{kind}"
        );
        assert_eq!(
            aggregated(
                release(json!({"lastAppliedRevision": "1", "lastAttemptedRevision": "1"})),
                &[reported.clone(), json!({"lastAppliedRevision": "2", "lastAttemptedRevision": ""})]
            ),
            json!({
                "observedGeneration": 0, "conditions": conditions,
                "lastAppliedRevision": "2", "lastAttemptedRevision": "1",
            }),
            "{kind}"
        );
        assert_eq!(aggregated(release(Value::Null), &[])["lastAppliedRevision"], "", "{kind}");
    }
}

#[test]
fn the_longest_duration_of_a_volcano_job_is_found_to_the_fraction() {
    let job = object("batch.volcano.sh/v1alpha1", "Job", json!({}), Value::Null);
    let durations = ["17.123456789s", "2m3.5s", "2m3s"].map(|duration| json!({"runningDuration": duration}));
    assert_eq!(aggregated(job, &durations), json!({"runningDuration": "2m3.5s"}));
}

#[test]
fn a_flink_deployment_without_status_is_unhealthy() {
    assert!(!healthy(&object("flink.apache.org/v1beta1", "FlinkDeployment", json!({}), Value::Null)));
}

#[test]
fn the_status_of_a_flink_deployment_is_emptied_when_no_member_has_one() {
    let old = json!({"error": "x", "jobStatus": {"state": "RUNNING"}, "other": 1});
    let deployment = object("flink.apache.org/v1beta1", "FlinkDeployment", json!({}), old);
    assert_eq!(
        aggregated(deployment, &[Value::Null, Value::Null]),
        json!({
            "error": "", "jobManagerDeploymentStatus": "", "lifecycleState": "", "observedGeneration": 0, "other": 1,
        })
    );
}

#[test]
fn affinity_does_not_count_for_a_flink_deployment() {
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "Exists"}]}]});
    let pod = |selector: Value| {
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let spec = json!({"podTemplate": {"spec": {"affinity": affinity, "nodeSelector": selector}}});
        object("flink.apache.org/v1beta1", "FlinkDeployment", spec, Value::Null)
    };
    for (selector, expected) in
        [(json!({"disk": "ssd"}), json!({"nodeSelector": {"disk": "ssd"}})), (Value::Null, Value::Null)]
    {
        let deployment = pod(selector);
        let replicas = ThirdParty::default().get_replicas(&deployment).expect("replicas");
        assert_eq!(json!(replicas.requirements.expect("needs").node_claim), expected);
        for component in ThirdParty::default().get_components(&deployment).expect("components") {
            assert_eq!(json!(component.replica_requirements.expect("needs").node_claim), expected);
        }
    }
}

#[test]
fn how_a_broadcast_job_ended_carries_over_to_members_that_say_nothing() {
    let job = || object("apps.kruise.io/v1alpha1", "BroadcastJob", json!({}), Value::Null);
    let ended = |kinds: &[&str]| {
        let conditions: Vec<Value> =
            kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        json!({"conditions": conditions})
    };
    let counters = |phase: &str, conditions: Value| json!({"active": 0, "succeeded": 0, "failed": 0, "desired": 0, "phase": phase, "conditions": conditions});
    let failed = |clusters: &str| {
        json!([{
            "type": "Failed", "status": "True", "reason": "JobFailed",
            "message": format!("Job executed failed in member clusters: {clusters}"),
        }])
    };
    let completed =
        json!([{"type": "Completed", "status": "True", "reason": "Completed", "message": "Job completed"}]);
    let cases = [
        (vec![ended(&["Failed"]), Value::Null], counters("", failed("m1, m2"))),
        (vec![ended(&["Complete"]), Value::Null], counters("", completed)),
        // The first condition that is true decides.
        (vec![ended(&["Failed", "Complete"])], counters("", failed("m1"))),
    ];
    for (statuses, expected) in cases {
        assert_eq!(aggregated(job(), &statuses), expected, "{statuses:?}");
    }
    let phases = aggregated(job(), &[json!({"phase": "running"}), json!({"phase": ""}), Value::Null]);
    assert_eq!(phases["phase"], "", "the last phase counts, also an empty one");
}

#[test]
fn the_workers_of_a_ray_service_are_divided_as_upstream_rounds() {
    for (groups, replicas, expected) in [
        (json!([{"replicas": 7}, {"replicas": 3}]), 46, json!([{"replicas": 31}, {"replicas": 14}])),
        (json!([{}, null, {}]), 4, json!([{"replicas": 2}, {"replicas": 1}])),
        (json!([{"replicas": 7}]), 0, json!([{"replicas": 0}])),
    ] {
        let spec = json!({"rayClusterConfig": {"workerGroupSpecs": groups}});
        let service = object("ray.io/v1", "RayService", spec, Value::Null);
        let revised = ThirdParty::default().revise_replica(service, replicas).expect("a revised service");
        assert_eq!(revised["spec"]["rayClusterConfig"]["workerGroupSpecs"], expected, "{replicas}");
    }
}

#[test]
fn a_counter_that_is_missing_is_zero() {
    let notebook = |terminated: Value| {
        let status = json!({"containerState": {"terminated": terminated}});
        object("kubeflow.org/v1", "Notebook", json!({}), status)
    };
    let sidecars = |status: Value| object("apps.kruise.io/v1alpha1", "SidecarSet", json!({}), status);
    for (object, expected) in [
        (notebook(json!({"reason": "Completed"})), true),
        (notebook(json!({"reason": "Completed", "exitCode": 0})), true),
        (notebook(json!({"reason": "Completed", "exitCode": 1})), false),
        (notebook(json!({"reason": "Error"})), false),
        (sidecars(json!({"updatedPods": 3})), true),
        (sidecars(json!({"matchedPods": 3})), false),
        (sidecars(json!({"matchedPods": 3, "updatedPods": 3})), true),
    ] {
        assert_eq!(healthy(&object), expected, "{}", object["status"]);
    }
}

#[test]
fn a_condition_of_an_mpi_job_without_a_time_is_left_out() {
    let job = object("kubeflow.org/v2beta1", "MPIJob", json!({}), Value::Null);
    let created = |time: &str| json!({"type": "Created", "lastUpdateTime": time});
    let statuses = [
        json!({"conditions": [{"type": "Running"}, created("2024-01-01T00:00:00Z")]}),
        json!({"conditions": [created(""), created("2024-01-02T00:00:00Z")]}),
    ];
    assert_eq!(aggregated(job, &statuses), json!({"conditions": [created("2024-01-02T00:00:00Z")]}));
}
