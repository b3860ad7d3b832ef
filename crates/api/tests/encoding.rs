//! What Go writes, we write: which zero values appear, in which order, with which escapes.

use api::{autoscaling, networking, policy, work};
use serde_json::{Value, json};

fn encode(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn structs_appear_even_when_empty() {
    assert_eq!(
        encode(policy::PropagationPolicy::default()),
        json!({
            "apiVersion": "policy.karmada.io/v1alpha1",
            "kind": "PropagationPolicy",
            "metadata": {},
            "spec": { "placement": {}, "resourceSelectors": [] },
        })
    );
    assert_eq!(encode(policy::OverrideSpec::default()), json!({ "overriders": {} }));
    assert_eq!(encode(work::Work::default())["spec"], json!({ "workload": {} }));
    assert_eq!(encode(work::Work::default())["status"], json!({}));
    assert_eq!(
        encode(networking::MultiClusterService::default())["spec"],
        json!({ "types": [], "range": {} })
    );
    assert_eq!(encode(networking::MultiClusterService::default())["status"], json!({ "loadBalancer": {} }));
    assert_eq!(encode(networking::MultiClusterIngress::default())["spec"], json!({}));
    assert_eq!(encode(networking::IngressServiceBackend::default()), json!({ "name": "", "port": {} }));
}

#[test]
fn the_empty_status_of_an_autoscaler_is_as_odd_as_upstream() {
    assert_eq!(
        encode(autoscaling::HPAStatus::default()),
        json!({ "desiredReplicas": 0, "currentMetrics": null })
    );
}

#[test]
fn an_unset_operand_is_written_as_null_and_null_is_read_as_unset() {
    let remove: policy::PlaintextOverrider =
        serde_json::from_value(json!({ "path": "/a", "operator": "remove", "value": null })).unwrap();
    assert_eq!(remove.value, None);
    assert_eq!(encode(&remove), json!({ "path": "/a", "operator": "remove", "value": null }));
}

#[test]
fn optional_scalars_lists_and_maps_disappear_when_empty() {
    let spec: work::ResourceBindingSpec = serde_json::from_value(json!({
        "resource": { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": "" },
        "replicas": 0, "propagateDeps": false, "clusters": [], "schedulerName": "",
    }))
    .unwrap();
    assert_eq!(encode(spec), json!({ "resource": { "apiVersion": "v1", "kind": "ConfigMap", "name": "c" } }));
    let target = work::TargetCluster { name: "m1".into(), ..Default::default() };
    assert_eq!(encode(target), json!({ "name": "m1" }));
}

#[test]
fn a_pointer_to_zero_stays() {
    let spec = policy::PropagationSpec { priority: Some(0), ..Default::default() };
    assert_eq!(encode(spec)["priority"], 0);
    let spec = work::WorkSpec { suspend_dispatching: Some(false), ..Default::default() };
    assert_eq!(encode(spec)["suspendDispatching"], false);
}

#[test]
fn an_unknown_value_of_a_choice_survives() {
    let behaviour: policy::ClusterFailoverBehavior =
        serde_json::from_value(json!({ "purgeMode": "Immediately" })).unwrap();
    assert_eq!(behaviour.purge_mode, Some(policy::PurgeMode::Other("Immediately".into())));
    assert_eq!(encode(behaviour), json!({ "purgeMode": "Immediately" }));
}

#[test]
fn an_empty_choice_is_absent_unless_it_is_required() {
    let strategy: policy::ReplicaSchedulingStrategy = serde_json::from_value(json!({
        "replicaSchedulingType": "", "replicaDivisionPreference": "", "weightPreference": { "dynamicWeight": "" },
    }))
    .unwrap();
    assert_eq!(strategy.replica_division_preference, None);
    assert_eq!(encode(strategy), json!({ "weightPreference": {} }));
    let remove: policy::PlaintextOverrider =
        serde_json::from_value(json!({ "path": "/a", "operator": "", "value": null })).unwrap();
    assert_eq!(encode(&remove), json!({ "path": "/a", "operator": "", "value": null }));
}

#[test]
fn a_placement_is_written_in_the_order_of_the_go_struct() {
    let placement: policy::Placement = serde_json::from_value(json!({
        "workloadAffinity": { "affinity": { "groupByLabelKey": "app" } },
        "replicaScheduling": { "weightPreference": { "dynamicWeight": "AvailableReplicas" },
            "replicaDivisionPreference": "Weighted", "replicaSchedulingType": "Divided" },
        "spreadConstraints": [{ "minGroups": 1, "maxGroups": 2, "spreadByField": "cluster" }],
        "clusterTolerations": [{ "effect": "NoExecute", "key": "a", "operator": "Equal", "value": "<b>",
            "tolerationSeconds": 30 }],
        "clusterAffinities": [{
            "affinityName": "g",
            "labelSelector": { "matchExpressions": [{ "key": "k", "operator": "In", "values": ["x&y"] }],
                "matchLabels": { "z": "1", "a": "2" } },
            "overflowAffinities": [{ "affinityName": "o", "clusterNames": ["m2"] }],
            "exclude": ["m9"], "clusterNames": ["m1"],
        }],
    }))
    .unwrap();
    let expected = concat!(
        r#"{"clusterAffinities":[{"affinityName":"g","labelSelector":{"matchLabels":{"a":"2","z":"1"},"#,
        r#""matchExpressions":[{"key":"k","operator":"In","values":["x\u0026y"]}]},"clusterNames":["m1"],"#,
        r#""exclude":["m9"],"overflowAffinities":[{"affinityName":"o","clusterNames":["m2"]}]}],"#,
        r#""clusterTolerations":[{"key":"a","operator":"Equal","value":"\u003cb\u003e","effect":"NoExecute","#,
        r#""tolerationSeconds":30}],"spreadConstraints":[{"spreadByField":"cluster","maxGroups":2,"#,
        r#""minGroups":1}],"replicaScheduling":{"replicaSchedulingType":"Divided","#,
        r#""replicaDivisionPreference":"Weighted","weightPreference":{"dynamicWeight":"AvailableReplicas"}},"#,
        r#""workloadAffinity":{"affinity":{"groupByLabelKey":"app"}}}"#,
    );
    assert_eq!(api::go_json(&placement), expected);
}

#[test]
fn quantities_may_come_as_numbers() {
    let quota: policy::FederatedResourceQuotaSpec =
        serde_json::from_value(json!({ "overall": { "cpu": 4, "memory": "1Gi" } })).unwrap();
    assert_eq!(quota.overall["cpu"].0, "4");
    assert_eq!(quota.overall["memory"].0, "1Gi");
}

#[test]
fn inlined_structs_have_no_key_of_their_own() {
    let suspension = work::Suspension {
        policy: policy::Suspension { dispatching: Some(true), ..Default::default() },
        scheduling: Some(false),
    };
    let json = json!({ "dispatching": true, "scheduling": false });
    assert_eq!(encode(&suspension), json);
    assert_eq!(serde_json::from_value::<work::Suspension>(json).unwrap(), suspension);
}

#[test]
fn kinds_know_their_urls() {
    use kube_core::Resource as _;
    assert_eq!(
        work::ResourceBinding::url_path(&(), Some("default")),
        "/apis/work.karmada.io/v1alpha2/namespaces/default/resourcebindings"
    );
    assert_eq!(api::cluster::Cluster::url_path(&(), None), api::constants::PATH_CLUSTERS);
}
