//! Random fleets of clusters, and what may happen to them between two rounds.
//!
//! Fleets keep to what v1.17.1 and later versions see alike. Resource models name every resource that bindings ask for,
//! and no virtual node has room for more than 110 of the smallest pods. Of a cluster in two zones, a selector `In z1, z2`
//! means either both or none: v1.17.1 wanted all zones of a cluster to be listed, since then one is enough.

use serde_json::{Value, json};

use crate::random::Random;

/// Keeps a cluster that is being deleted in sight.
pub(crate) const HOLD: &str = "compare.example.com/hold";

pub(crate) fn fleet(random: &mut Random, size: usize) -> Vec<Value> {
    let regions = random.between(1, 6);
    (0..size).map(|index| cluster(random, index, regions)).collect()
}

fn cluster(random: &mut Random, index: usize, regions: i64) -> Value {
    let name = format!("{}{index:02}", random.pick(&["m", "n", "x-"]));
    let mut spec = json!({"syncMode": "Push", "resourceModels": models()});
    if random.percent(80) {
        spec["region"] = format!("r{}", random.between(1, regions)).into();
    }
    if random.percent(60) {
        let pair = if random.percent(50) { ["z1", "z2"] } else { ["z3", "z4"] };
        let count = random.between(1, 2) as usize;
        spec["zones"] = random.sample(&pair, count).into();
    }
    if random.percent(60) {
        spec["provider"] = (*random.pick(&["aws", "gcp"])).into();
    }
    if random.percent(15) {
        spec["taints"] = taints(random);
    }
    json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "labels": labels(random), "finalizers": [HOLD]},
        "spec": spec,
        "status": status(random),
    })
}

fn labels(random: &mut Random) -> Value {
    let mut labels = json!({});
    if random.percent(60) {
        labels["env"] = (*random.pick(&["prod", "dev", "test"])).into();
    }
    if random.percent(30) {
        labels["tier"] = (*random.pick(&["1", "2", "3"])).into();
    }
    labels
}

fn taints(random: &mut Random) -> Value {
    let taint = |random: &mut Random, key: &str| {
        let effect = *random.pick(&["NoSchedule", "NoExecute"]);
        match random.percent(50) {
            true => json!({"key": key, "effect": effect}),
            false => json!({"key": key, "value": "v", "effect": effect}),
        }
    };
    let count = random.between(1, 2) as usize;
    random.sample(&["k", "j"], count).into_iter().map(|key| taint(random, key)).collect()
}

const GRADES: [(i64, i64); 5] = [(0, 0), (1, 4), (2, 16), (4, 32), (8, 64)];

fn models() -> Value {
    let grade = |(grade, (cpu, memory)): (usize, &(i64, i64))| {
        let next = GRADES.get(grade + 1);
        let max = |unit: &str, most: Option<i64>| match most {
            Some(most) => format!("{most}{unit}"),
            None => i64::MAX.to_string(),
        };
        json!({"grade": grade, "ranges": [
            {"name": "cpu", "min": cpu.to_string(), "max": max("", next.map(|next| next.0))},
            {"name": "memory", "min": format!("{memory}Gi"), "max": max("Gi", next.map(|next| next.1))},
        ]})
    };
    GRADES.iter().enumerate().map(grade).collect()
}

fn status(random: &mut Random) -> Value {
    let mut status = json!({});
    if !random.percent(8) {
        status["apiEnablements"] = json!([
            {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]},
            {"groupVersion": "v1", "resources": [{"name": "configmaps", "kind": "ConfigMap"}, {"name": "namespaces", "kind": "Namespace"}]},
        ]);
    } else if random.percent(50) {
        let complete = json!({"type": "CompleteAPIEnablements", "status": "True", "reason": "Complete",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        status["conditions"] = json!([complete]);
    }
    if !random.percent(6) {
        status["resourceSummary"] = summary(random);
    }
    status
}

fn summary(random: &mut Random) -> Value {
    let cpu = match random.percent(50) {
        true => random.between(0, 60).to_string(),
        false => format!("{}m", random.between(0, 60_000)),
    };
    let memory = match random.between(0, 2) {
        0 => format!("{}Gi", random.between(0, 128)),
        1 => format!("{}Mi", random.between(0, 90_000)),
        _ => format!("{}G", random.between(1, 90)),
    };
    let mut summary =
        json!({"allocatable": {"cpu": cpu, "memory": memory, "pods": random.between(0, 300).to_string()}});
    if random.percent(50) {
        summary["allocated"] = json!({"cpu": format!("{}m", random.between(0, 9_000)),
            "memory": format!("{}Mi", random.between(0, 9_000)), "pods": random.between(0, 60).to_string()});
    }
    if random.percent(20) {
        summary["allocating"] = json!({"cpu": format!("{}m", random.between(0, 2_000)), "pods": random.between(0, 9).to_string()});
    }
    if random.percent(30) {
        let counts = (0..GRADES.len()).map(|grade| json!({"grade": grade, "count": random.between(0, 3)}));
        summary["allocatableModelings"] = counts.collect();
    }
    summary
}

/// Changes labels, taints, room or APIs of some clusters.
pub(crate) fn change(random: &mut Random, clusters: &mut [Value]) {
    for cluster in clusters {
        if !random.percent(40) {
            continue;
        }
        match random.between(0, 3) {
            0 => cluster["metadata"]["labels"] = labels(random),
            1 if random.percent(50) => cluster["spec"]["taints"] = json!([]),
            1 => cluster["spec"]["taints"] = taints(random),
            _ => cluster["status"] = status(random),
        }
    }
}
