//! Random bindings of both scopes, and what may happen to them between two rounds: scaled up and down, another
//! placement, an eviction, a request to start afresh.

use serde_json::{Value, json};

use crate::random::Random;

pub(crate) const NAMESPACE: &str = "compare";
const UIDS: [&str; 5] = ["", "uid-a", "uid-b", "3f9c", "0b77-aa"];

pub(crate) fn binding(random: &mut Random, index: usize, names: &[String]) -> Value {
    let cluster_scoped = random.percent(12);
    let workload = !cluster_scoped && random.percent(88);
    let mut spec = if workload {
        let mut spec = json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": NAMESPACE, "name": format!("web-{index}")},
            "replicas": *random.pick(&[0, 1, 2, 3, 5, 8, 13, 21, 40, 80]),
        });
        if random.percent(75) {
            let mut request = json!({"cpu": *random.pick(&["100m", "250m", "1", "1500m", "3"])});
            if random.percent(50) {
                request["memory"] = (*random.pick(&["128Mi", "1Gi", "500M", "2Gi"])).into();
            }
            spec["replicaRequirements"] = json!({"resourceRequest": request});
        }
        spec
    } else if cluster_scoped {
        json!({"resource": {"apiVersion": "v1", "kind": "Namespace", "name": format!("space-{index}")}})
    } else {
        json!({"resource": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": NAMESPACE, "name": format!("web-{index}")}})
    };
    spec["resource"]["uid"] = (*random.pick(&UIDS)).into();
    spec["placement"] = placement(random, names);
    let mut metadata = json!({
        "name": format!("binding-{index:04}"),
        "labels": {"propagationpolicy.karmada.io/permanent-id": "compare"},
    });
    let kind = if cluster_scoped { "ClusterResourceBinding" } else { "ResourceBinding" };
    if !cluster_scoped {
        metadata["namespace"] = NAMESPACE.into();
    }
    json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": kind, "metadata": metadata, "spec": spec})
}

fn affinity(random: &mut Random, names: &[String]) -> Value {
    let mut affinity = json!({});
    if random.percent(40) {
        let count = random.between(1, 12) as usize;
        affinity["clusterNames"] = random.sample(names, count).into();
    }
    if random.percent(20) {
        affinity["exclude"] = random.sample(names, 1).into();
    }
    if random.percent(25) {
        affinity["labelSelector"] = match random.between(0, 3) {
            0 => json!({"matchLabels": {"env": "prod"}}),
            1 => {
                json!({"matchExpressions": [{"key": "env", "operator": *random.pick(&["In", "NotIn"]), "values": ["dev", "test"]}]})
            }
            2 => {
                json!({"matchExpressions": [{"key": "tier", "operator": *random.pick(&["Exists", "DoesNotExist"])}]})
            }
            _ => json!({}),
        };
    }
    if random.percent(20) {
        let (key, values) =
            random.pick(&[("region", ["r1", "r2"]), ("zone", ["z1", "z2"]), ("provider", ["aws", "ibm"])]);
        let operator = *random.pick(&["In", "NotIn"]);
        affinity["fieldSelector"] =
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    }
    affinity
}

fn placement(random: &mut Random, names: &[String]) -> Value {
    let mut placement = json!({});
    match random.between(0, 99) {
        0..=34 => placement["clusterAffinity"] = affinity(random, names),
        35..=59 => {
            let terms = random.between(1, 3);
            placement["clusterAffinities"] = (0..terms)
                .map(|term| {
                    let mut affinity = affinity(random, names);
                    affinity["affinityName"] = format!("t{term}").into();
                    affinity
                })
                .collect();
        }
        _ => {}
    }
    if random.percent(30) {
        placement["clusterTolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    }
    let weighted = |weights: Value| json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted", "weightPreference": weights});
    match random.between(0, 99) {
        0..=17 => {}
        18..=29 => placement["replicaScheduling"] = json!({"replicaSchedulingType": "Duplicated"}),
        30..=54 => placement["replicaScheduling"] = weighted(json!({"dynamicWeight": "AvailableReplicas"})),
        55..=79 => {
            placement["replicaScheduling"] =
                json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"});
        }
        80..=84 => {
            placement["replicaScheduling"] =
                json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"});
        }
        _ => {
            let rules = random.between(1, 4);
            let rule = |random: &mut Random| json!({"targetCluster": affinity(random, names), "weight": random.between(1, 5)});
            let rules: Vec<Value> = (0..rules).map(|_| rule(random)).collect();
            placement["replicaScheduling"] = weighted(json!({"staticWeightList": rules}));
        }
    }
    if random.percent(50) {
        let mut constraints = Vec::new();
        let groups = |random: &mut Random, field: &str, low: i64, more: i64| {
            let min = random.between(1, low);
            json!({"spreadByField": field, "minGroups": min, "maxGroups": min + random.between(0, more)})
        };
        if random.percent(60) {
            constraints.push(groups(random, "region", 4, 3));
        }
        if random.percent(10) {
            constraints.push(groups(random, "zone", 1, 2));
        }
        if random.percent(10) {
            constraints.push(groups(random, "provider", 1, 2));
        }
        if random.percent(90) {
            constraints.push(groups(random, "cluster", 6, 8));
        }
        let count = constraints.len();
        placement["spreadConstraints"] = random.sample(&constraints, count).into();
    }
    placement
}

/// Changes a binding as users, policies and other controllers do, and says how; `round` makes times differ.
pub(crate) fn change(
    random: &mut Random,
    binding: &mut Value,
    names: &[String],
    round: usize,
) -> &'static str {
    let spec = &mut binding["spec"];
    let replicas = spec["replicas"].as_i64();
    match (random.between(0, 99), replicas) {
        (0..=34, Some(replicas)) => {
            spec["replicas"] = (replicas + random.between(1, 30)).into();
            "scaled up"
        }
        (35..=59, Some(replicas)) => {
            spec["replicas"] = (replicas - random.between(1, 20)).max(0).into();
            "scaled down"
        }
        (60..=69, _) => {
            spec["placement"] = placement(random, names);
            "another placement"
        }
        (70..=79, _) => match evict(random, spec) {
            true => "evicted from a cluster",
            false => "none",
        },
        // Since v1.17.1, starting afresh also means to start with the first affinity term.
        (80..=89, _) if spec["placement"].get("clusterAffinities").is_none() => {
            spec["rescheduleTriggeredAt"] = format!("2026-02-{:02}T12:00:00Z", round + 1).into();
            "fresh start"
        }
        _ => "none",
    }
}

/// Takes the binding off one of its clusters, as the taint manager does, if it has any.
fn evict(random: &mut Random, spec: &mut Value) -> bool {
    let targets = spec.get_mut("clusters").and_then(Value::as_array_mut);
    let Some(targets) = targets.filter(|targets| !targets.is_empty()) else { return false };
    let gone = targets.remove(random.between(0, targets.len() as i64 - 1) as usize);
    let task = json!({"fromCluster": gone["name"], "reason": "TaintUntolerated", "producer": "TaintManager",
        "creationTimestamp": "2026-02-01T00:00:00Z"});
    match spec.get_mut("gracefulEvictionTasks").and_then(Value::as_array_mut) {
        Some(tasks) => tasks.push(task),
        None => spec["gracefulEvictionTasks"] = json!([task]),
    }
    true
}
