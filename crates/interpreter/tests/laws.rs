//! Laws that hold for any object.

use api::work::AggregatedStatusItem;
use interpreter::native::Native;
use interpreter::{Rulebook as _, prune};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

fn labels() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "app",
        "controller-uid",
        "batch.kubernetes.io/controller-uid",
        "job-name",
        "batch.kubernetes.io/job-name",
        "deployment.kubernetes.io/revision",
        "volume.kubernetes.io/selected-node",
        "kubernetes.io/service-account.uid",
    ]);
    prop::collection::btree_map(keys, "[a-z]{0,3}", 0..5).prop_map(|map| json!(map))
}

fn object() -> impl Strategy<Value = Value> {
    let kinds =
        ["Deployment", "Job", "Secret", "ServiceAccount", "Service", "PersistentVolumeClaim", "Gadget"];
    let secrets = prop::collection::vec(prop::sample::select(vec!["x-token-1", "x-token-2", "other"]), 0..4);
    (
        prop::sample::select(kinds.to_vec()),
        labels(),
        labels(),
        secrets,
        prop::option::of(any::<bool>()),
        prop::sample::select(vec!["10.0.0.1", "None", ""]),
    )
        .prop_map(|(kind, labels, annotations, secrets, manual, ip)| {
            let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
            json!({
                "apiVersion": "v1", "kind": kind, "type": "kubernetes.io/service-account-token",
                "metadata": {
                    "name": "x", "uid": "u", "resourceVersion": "1", "generation": 1, "finalizers": ["f"],
                    "labels": labels, "annotations": annotations,
                },
                "secrets": secrets,
                "data": {"token": "dA=="},
                "spec": {
                    "manualSelector": manual, "clusterIP": ip, "clusterIPs": [ip], "ttlSecondsAfterFinished": 5,
                    "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}},
                },
                "status": {"x": 1},
            })
        })
}

fn report() -> impl Strategy<Value = Option<Value>> {
    let counters = (0..5_i64, 0..5_i64, 0..5_i64, 0..3_i64, 0..3_i64, 0..3_i64);
    prop::option::of(counters.prop_map(|(replicas, ready, active, generation, observed, template)| {
        json!({
            "replicas": replicas, "readyReplicas": ready, "active": active, "currentHealthy": ready,
            "generation": generation, "observedGeneration": observed, "resourceTemplateGeneration": template,
            "loadBalancer": {"ingress": [{"ip": format!("10.0.0.{replicas}"), "ports": [
                {"port": ready, "protocol": "TCP"},
            ]}]},
        })
    }))
}

fn items(reports: Vec<Option<Value>>) -> Vec<AggregatedStatusItem> {
    reports
        .into_iter()
        .enumerate()
        .map(|(index, status)| AggregatedStatusItem {
            cluster_name: format!("m{index}"),
            status,
            ..AggregatedStatusItem::default()
        })
        .collect()
}

fn kinds() -> Vec<Value> {
    [
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("batch/v1", "Job"),
        ("v1", "Service"),
        ("networking.k8s.io/v1", "Ingress"),
        ("policy/v1", "PodDisruptionBudget"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
    ]
    .into_iter()
    .map(|(api_version, kind)| {
        json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"generation": 2},
            "spec": {"type": "LoadBalancer"},
        })
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn pruning_twice_is_pruning_once(mut object in object()) {
        prune(&mut object).expect("the object is well-formed");
        let once = object.clone();
        prune(&mut object).expect("the object is well-formed");
        prop_assert_eq!(object, once);
    }

    #[test]
    fn sums_do_not_depend_on_the_order_of_clusters(reports in prop::collection::vec(report(), 0..5)) {
        let native = Native::default();
        let forward = items(reports);
        let mut backward = forward.clone();
        backward.reverse();
        for template in kinds() {
            let aggregate = |items: &[AggregatedStatusItem]| {
                native.aggregate_status(template.clone(), items, Timestamp::UNIX_EPOCH).expect("well-formed reports")
            };
            prop_assert_eq!(aggregate(&forward), aggregate(&backward));
        }
    }

    #[test]
    fn aggregating_again_changes_nothing(reports in prop::collection::vec(report(), 0..5)) {
        let native = Native::default();
        let items = items(reports);
        for template in kinds() {
            let aggregate = |object: Value| {
                native.aggregate_status(object, &items, Timestamp::UNIX_EPOCH).expect("well-formed reports")
            };
            let once = aggregate(template);
            prop_assert_eq!(aggregate(once.clone()), once);
        }
    }

    #[test]
    fn retaining_again_changes_nothing(desired in object(), observed in object()) {
        let native = Native::default();
        for kind in ["ServiceAccount", "Service", "Secret", "PersistentVolumeClaim"] {
            let (mut desired, mut observed) = (desired.clone(), observed.clone());
            for object in [&mut desired, &mut observed] {
                object["kind"] = kind.into();
            }
            let once = native.retain(desired, &observed).expect("well-formed objects");
            let twice = native.retain(once.clone(), &observed).expect("well-formed objects");
            prop_assert_eq!(twice, once);
        }
    }
}
