//! Random members and random questions about them. The same number gives the same world.
//!
//! Every world has marks, by which one sees that an estimator knows it: a node, a pod on it, a quota and a Deployment that no other
//! world has.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The namespaces of all worlds.
pub(crate) const NAMESPACES: [&str; 4] = ["a", "b", "free", "marks"];

/// A member, and what is asked about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct World {
    pub(crate) number: u64,
    /// When it was made, in seconds: pods have been waiting since some time before.
    pub(crate) now: i64,
    pub(crate) nodes: Vec<Value>,
    pub(crate) deployments: Vec<Value>,
    pub(crate) sets: Vec<Value>,
    /// Owners are named by the names of the objects in the place of their identifiers.
    pub(crate) pods: Vec<Value>,
    pub(crate) quotas: Vec<Value>,
    pub(crate) questions: Vec<Question>,
    /// What the original said.
    #[serde(default)]
    pub(crate) answers: Vec<Answer>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Question {
    /// How many replicas with these needs.
    Replicas(Value),
    /// How many sets of these components.
    Sets { namespace: String, components: Value },
    /// How many replicas of a Deployment have found no node for so many seconds.
    Unschedulable { name: String, seconds: i64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    Number(i32),
    /// With its words.
    Error(String),
}

struct Chance(StdRng);

impl Chance {
    fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.0.random_range(0..from.len())]
    }

    fn number(&mut self, to: usize) -> usize {
        self.0.random_range(0..=to)
    }

    /// Amounts of resources, each of them there in so many of a hundred cases.
    fn amounts(&mut self, from: &[(&str, u32, &[&str])]) -> Value {
        let mut amounts = Map::new();
        for (name, percent, choices) in from {
            if self.percent(*percent) {
                amounts.insert((*name).to_owned(), self.pick(choices).into());
            }
        }
        amounts.into()
    }
}

/// The resource that only this world has.
fn mark(number: u64) -> String {
    format!("example.com/world-{number}")
}

impl World {
    pub(crate) fn new(seed: u64, number: u64, now: i64) -> Self {
        let mut chance = Chance(StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number)));
        let count = chance.number(7);
        let mut nodes: Vec<Value> = (0..count).map(|index| node(&mut chance, index)).collect();
        let mut pods: Vec<Value> =
            (0..chance.number(20)).map(|index| pod(&mut chance, index, count)).collect();
        let (mut deployments, mut sets) = (Vec::new(), Vec::new());
        for index in 0..2 {
            workload(&mut chance, index, now, &mut deployments, &mut sets, &mut pods);
        }
        let quotas = (0..chance.number(3)).map(|index| quota(&mut chance, index));
        let mut quotas: Vec<Value> = quotas.collect();
        let mut questions: Vec<Question> =
            (0..6).map(|_| Question::Replicas(needs(&mut chance, true))).collect();
        questions.push(Question::Replicas(Value::Null));
        questions.extend((0..3).map(|_| Question::Sets {
            namespace: chance.pick(&["a", "b", "free"]).to_owned(),
            components: components(&mut chance),
        }));
        for name in ["web-0", "web-1"] {
            let seconds = *[300, 0, -5, 7_200, 30].get(chance.number(4)).expect("one of five");
            questions.push(Question::Unschedulable { name: name.to_owned(), seconds });
        }
        if chance.percent(10) {
            questions.push(Question::Unschedulable { name: "missing".to_owned(), seconds: 0 });
        }

        let mark = mark(number);
        nodes.push(json!({"metadata": {"name": format!("zz-{number}")}, "spec": {"taints": [{"key": "marks", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"pods": "9", mark.clone(): "7"}}}));
        let amount = json!({mark.clone(): "1"});
        pods.push(json!({"metadata": {"name": format!("zz-{number}"), "namespace": "marks"},
            "spec": {"nodeName": format!("zz-{number}"), "containers": [container(0, &amount)]}, "status": {"phase": "Running"}}));
        let hard = json!({format!("requests.{mark}"): "5"});
        let used = json!({format!("requests.{mark}"): "2"});
        quotas.push(json!({"metadata": {"name": format!("zz-{number}"), "namespace": "marks"},
            "spec": {"hard": hard.clone()}, "status": {"hard": hard, "used": used}}));
        let name = format!("zz-{number}");
        deployments.push(deployment(&name, "marks"));
        sets.push(set(&name, &name, "marks", "new"));
        pods.push(waiting(&name, "marks", &format!("{name}-waits"), &name, now - 3600, "Unschedulable"));
        Self { number, now, nodes, deployments, sets, pods, quotas, questions, answers: Vec::new() }
    }

    /// Questions with answers that only an estimator gives that knows all of this world.
    pub(crate) fn marks(&self) -> Vec<(Question, Answer)> {
        let ask = |namespace: &str| {
            Question::Replicas(json!({"namespace": namespace, "resourceRequest": {mark(self.number): "1"},
                "nodeClaim": {"tolerations": [{"key": "marks", "operator": "Exists"}]}}))
        };
        let waits = Question::Unschedulable { name: format!("zz-{}", self.number), seconds: 0 };
        vec![(ask("free"), Answer::Number(6)), (ask("marks"), Answer::Number(3)), (waits, Answer::Number(1))]
    }
}

fn node(chance: &mut Chance, index: usize) -> Value {
    let mut labels = Map::new();
    for (name, values) in [
        ("disk", &["ssd", "hdd"][..]),
        ("rank", &["1", "7", "12", "high"][..]),
        ("topology.kubernetes.io/zone", &["z1", "z2", "z3"][..]),
        ("topology.kubernetes.io/region", &["r1", "r2"][..]),
    ] {
        if chance.percent(60) {
            labels.insert(name.to_owned(), chance.pick(values).into());
        }
    }
    if chance.percent(8) {
        labels.insert("failure-domain.beta.kubernetes.io/zone".to_owned(), chance.pick(&["z1", "z9"]).into());
    }
    let taints: Vec<Value> = [
        json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}),
        json!({"key": "leaving", "effect": "NoExecute"}),
        json!({"key": "avoid", "effect": "PreferNoSchedule"}),
    ]
    .into_iter()
    .filter(|_| chance.percent(15))
    .collect();
    let allocatable = chance.amounts(&[
        ("cpu", 95, &["500m", "1", "2", "3900m", "4", "8", "16", "250m"]),
        ("memory", 95, &["512Mi", "2Gi", "4Gi", "8000M", "16Gi", "7945676Ki", "1500000k"]),
        ("pods", 95, &["1", "3", "10", "30", "110"]),
        ("ephemeral-storage", 60, &["10Gi", "100G", "1Ti"]),
        ("example.com/gpu", 40, &["1", "2", "8"]),
        ("hugepages-2Mi", 20, &["64Mi", "1Gi"]),
    ]);
    let mut spec = json!({"taints": taints});
    if chance.percent(12) {
        spec["unschedulable"] = true.into();
    }
    json!({"metadata": {"name": format!("n{index}"), "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}})
}

fn container(index: usize, requests: &Value) -> Value {
    // What cannot be shared has to be limited to what is asked for.
    let whole = |name: &str| name.contains('/') || name.starts_with("hugepages-");
    let limits: Map<String, Value> = requests
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| whole(name))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    json!({"name": format!("c{index}"), "image": "i", "resources": {"requests": requests, "limits": limits}})
}

fn pod(chance: &mut Chance, index: usize, nodes: usize) -> Value {
    let requests = |chance: &mut Chance| {
        chance.amounts(&[
            ("cpu", 70, &["10m", "100m", "250m", "1", "1500m", "0.1"]),
            ("memory", 60, &["64Mi", "128M", "1Gi", "100000k"]),
            ("ephemeral-storage", 20, &["1Gi", "500M"]),
            ("example.com/gpu", 10, &["1", "2"]),
        ])
    };
    let containers: Vec<Value> =
        (0..=chance.number(2)).map(|index| container(index, &requests(chance))).collect();
    let first = chance.number(2).saturating_sub(1);
    let init: Vec<Value> = (0..first).map(|index| container(index + 9, &requests(chance))).collect();
    let mut spec = json!({"containers": containers, "initContainers": init});
    match chance.number(9) {
        0 => {}
        1 => spec["nodeName"] = "gone".into(),
        _ if nodes > 0 => spec["nodeName"] = format!("n{}", chance.number(nodes - 1)).into(),
        _ => {}
    }
    let phase = chance.pick(&["Running", "Running", "Running", "Pending", "Succeeded", "Failed"]);
    json!({"metadata": {"name": format!("p{index}"), "namespace": chance.pick(&["a", "b"])}, "spec": spec, "status": {"phase": phase}})
}

fn template(name: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

fn deployment(name: &str, namespace: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(name, "new")}})
}

/// A ReplicaSet of a Deployment.
fn set(name: &str, deployment: &str, namespace: &str, image: &str) -> Value {
    let mut template = template(deployment, image);
    template["metadata"]["labels"]["pod-template-hash"] = name.into();
    json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": deployment}, "ownerReferences": [owner("Deployment", deployment)]},
        "spec": {"selector": {"matchLabels": {"app": deployment, "pod-template-hash": name}}, "template": template}})
}

fn owner(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true})
}

fn waiting(app: &str, namespace: &str, name: &str, set: &str, since: i64, reason: &str) -> Value {
    let since = jiff::Timestamp::from_second(since).expect("a time").to_string();
    let status = if reason.is_empty() { "True" } else { "False" };
    let condition =
        json!({"type": "PodScheduled", "status": status, "reason": reason, "lastTransitionTime": since});
    json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": app}, "ownerReferences": [owner("ReplicaSet", set)]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending", "conditions": [condition]}})
}

/// A Deployment in the namespace `a` with ReplicaSets and pods, some of which wait for a node.
fn workload(
    chance: &mut Chance,
    index: usize,
    now: i64,
    deployments: &mut Vec<Value>,
    sets: &mut Vec<Value>,
    pods: &mut Vec<Value>,
) {
    let name = format!("web-{index}");
    deployments.push(deployment(&name, "a"));
    for number in 0..chance.number(2) {
        let own = format!("{name}-{number}");
        let image = chance.pick(&["new", "new", "old"]);
        sets.push(set(&own, &name, "a", image));
        for pod in 0..chance.number(3) {
            let since = now - [3600, 120, 60, 9000][chance.number(3)];
            let reason = chance.pick(&["Unschedulable", "Unschedulable", "", "SchedulingGated"]);
            pods.push(waiting(&name, "a", &format!("{own}-{pod}"), &own, since, reason));
        }
    }
}

fn quota(chance: &mut Chance, index: usize) -> Value {
    let scopes = match chance.number(5) {
        0 => json!({"scopes": ["PriorityClass"]}),
        1 => json!({"scopes": ["NotTerminating"]}),
        2 => {
            let operator = chance.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
            let values = if matches!(operator, "In" | "NotIn") { json!(["high"]) } else { json!([]) };
            json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
        }
        _ => json!({}),
    };
    let names = [
        ("cpu", &["1", "4", "10500m"][..]),
        ("memory", &["1Gi", "4G", "16Gi"][..]),
        ("requests.cpu", &["2", "5"][..]),
        ("requests.memory", &["2Gi", "8Gi"][..]),
        ("limits.cpu", &["1"][..]),
        ("pods", &["1", "50"][..]),
        ("requests.example.com/gpu", &["1", "6"][..]),
    ];
    let (mut hard, mut used) = (Map::new(), Map::new());
    for (name, amounts) in names {
        if chance.percent(45) {
            hard.insert(name.to_owned(), chance.pick(amounts).into());
            if chance.percent(92) {
                let amount = if name.ends_with("memory") { ["0", "100Mi", "3Gi"] } else { ["0", "1", "3"] };
                used.insert(name.to_owned(), chance.pick(&amount).into());
            }
        }
    }
    let mut spec = scopes;
    spec["hard"] = hard.clone().into();
    json!({"metadata": {"name": format!("q{index}"), "namespace": chance.pick(&["a", "b"])}, "spec": spec,
        "status": {"hard": hard, "used": used}})
}

fn needs(chance: &mut Chance, with_namespace: bool) -> Value {
    let request = chance.amounts(&[
        ("cpu", 75, &["1m", "100m", "250m", "0.5", "1", "1500m", "3", "0"]),
        ("memory", 65, &["64Mi", "128M", "1Gi", "3Gi", "100k", "1"]),
        ("ephemeral-storage", 15, &["1Gi", "20G"]),
        ("example.com/gpu", 15, &["1", "3"]),
        ("hugepages-2Mi", 5, &["2Mi", "128Mi"]),
        ("example.com/unknown", 4, &["1"]),
        ("storage", 5, &["1Ti"]),
        ("pods", 4, &["2"]),
    ]);
    let mut needs = json!({"resourceRequest": request});
    if with_namespace {
        needs["namespace"] = chance.pick(&["a", "a", "b", "free"]).into();
    }
    if chance.percent(40) {
        needs["priorityClassName"] = chance.pick(&["high", "low"]).into();
    }
    if chance.percent(60) {
        needs["nodeClaim"] = claim(chance);
    }
    needs
}

fn claim(chance: &mut Chance) -> Value {
    let mut claim = json!({});
    if chance.percent(30) {
        claim["nodeSelector"] = json!({"disk": chance.pick(&["ssd", "hdd", "tape"])});
    }
    if chance.percent(45) {
        let terms: Vec<Value> = (0..chance.number(2)).map(|_| term(chance)).collect();
        claim["hardNodeAffinity"] = json!({"nodeSelectorTerms": terms});
    }
    let tolerations = [
        json!({"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}),
        json!({"key": "dedicated", "value": "other"}),
        json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}),
        json!({"key": "leaving", "operator": "Exists", "tolerationSeconds": 30}),
        json!({"operator": "Exists"}),
        json!({"operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}),
        json!({"key": "dedicated", "operator": "Gt", "value": "1"}),
    ];
    let tolerations: Vec<Value> = tolerations.into_iter().filter(|_| chance.percent(12)).collect();
    claim["tolerations"] = tolerations.into();
    claim
}

fn term(chance: &mut Chance) -> Value {
    let expression = |chance: &mut Chance| {
        let key = chance.pick(&["disk", "rank", "topology.kubernetes.io/zone", "nobody"]);
        let operator = chance.pick(&["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"]);
        let values = match operator {
            "Gt" | "Lt" => vec![chance.pick(&["3", "7", "x"])],
            "Exists" | "DoesNotExist" if chance.percent(90) => Vec::new(),
            _ => ["ssd", "7", "z1", "z2"].into_iter().filter(|_| chance.percent(45)).collect(),
        };
        json!({"key": key, "operator": operator, "values": values})
    };
    let mut term = json!({});
    if chance.percent(85) {
        term["matchExpressions"] = (0..=chance.number(1)).map(|_| expression(chance)).collect();
    }
    if chance.percent(20) {
        let key = if chance.percent(90) { "metadata.name" } else { "metadata.namespace" };
        let operator = chance.pick(&["In", "NotIn", "Exists"]);
        let values: Vec<&str> = ["n0", "n1"].into_iter().filter(|_| chance.percent(60)).collect();
        term["matchFields"] = json!([{"key": key, "operator": operator, "values": values}]);
    }
    term
}

/// Components of a workload; one of them has replicas, since nobody counts sets of nothing.
fn components(chance: &mut Chance) -> Value {
    let count = chance.number(2);
    let one = |chance: &mut Chance, index: usize| {
        let replicas = if index == 0 { chance.number(3) + 1 } else { chance.number(5) };
        let mut component = json!({"name": format!("c{index}"), "replicas": replicas});
        if chance.percent(90) {
            component["replicaRequirements"] = needs(chance, false);
        }
        component
    };
    (0..=count).map(|index| one(chance, index)).collect()
}
