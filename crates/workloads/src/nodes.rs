//! Which node a pod goes to, or in kube-scheduler's words why it goes to none.
//!
//! In: the pod, the nodes with what is taken on them, the other pods' places. Out: a node's name, or the message.
//! Filters are upstream's, in upstream's order; the choice among fitting nodes is simpler: fewest pods of the same owner, then
//! the emptiest, then by name. No preemption.

use std::collections::{BTreeMap, HashMap};

use apimachinery::object::Object;
use apimachinery::pointer::{flag, list, text};
use apimachinery::quantity::Quantity;
use apimachinery::selector::LabelSelector;
use serde_json::Value;

/// What a pod asks for or a node has, by resource: CPU in thousandths, everything else in whole units.
pub type Amounts = BTreeMap<String, i64>;

/// A node as the scheduler sees it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    pub name: String,
    pub labels: Value,
    taints: Vec<Value>,
    unschedulable: bool,
    allocatable: Amounts,
}

/// A pod that has a place.
#[derive(Debug, Clone)]
pub struct Placed {
    pub node: String,
    pub namespace: String,
    pub labels: Value,
    pub owner: String,
    pub asks: Amounts,
    ports: Vec<(i64, String)>,
}

/// The places of all pods, by `namespace/name`, and the sums that follow from them.
#[derive(Debug, Default)]
pub struct Places {
    pods: HashMap<String, Placed>,
    used: HashMap<String, Amounts>,
    /// Pods per node and owner.
    of_owner: HashMap<(String, String), usize>,
}

impl Node {
    pub fn read(node: &Value) -> Self {
        let allocatable = node.pointer("/status/allocatable").and_then(Value::as_object);
        Self {
            name: node.name().to_owned(),
            labels: node.labels().clone(),
            taints: list(node, "/spec/taints").to_vec(),
            unschedulable: flag(node, "/spec/unschedulable"),
            allocatable: allocatable
                .into_iter()
                .flatten()
                .map(|(resource, amount)| (resource.clone(), parse(resource, amount)))
                .collect(),
        }
    }

    /// Returns the labels a pod inherits from its node.
    pub fn topology(&self) -> Value {
        let keys = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];
        keys.iter()
            .filter_map(|key| Some(((*key).to_owned(), self.labels.get(key)?.clone())))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

impl Placed {
    /// Returns `None` for a pod without a node and for one that has finished.
    pub fn read(pod: &Value) -> Option<Self> {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() || is_finished(pod) {
            return None;
        }
        Some(Self {
            node: node.to_owned(),
            namespace: pod.namespace().to_owned(),
            labels: pod.labels().clone(),
            owner: pod.controller().map(|owner| text(owner, "/uid").to_owned()).unwrap_or_default(),
            asks: asks(pod),
            ports: host_ports(pod),
        })
    }
}

impl Places {
    /// Notes where a pod is now; `None` if it has no place any more.
    pub fn set(&mut self, key: &str, placed: Option<Placed>) {
        if let Some(old) = self.pods.remove(key) {
            let used = self.used.entry(old.node.clone()).or_default();
            for (resource, amount) in &old.asks {
                *used.entry(resource.clone()).or_default() -= amount;
            }
            let of_owner = (old.node, old.owner);
            if let Some(count) = self.of_owner.get_mut(&of_owner) {
                *count -= 1;
                if *count == 0 {
                    self.of_owner.remove(&of_owner);
                }
            }
        }
        if let Some(placed) = placed {
            let used = self.used.entry(placed.node.clone()).or_default();
            for (resource, amount) in &placed.asks {
                *used.entry(resource.clone()).or_default() += amount;
            }
            *self.of_owner.entry((placed.node.clone(), placed.owner.clone())).or_default() += 1;
            self.pods.insert(key.to_owned(), placed);
        }
    }

    /// Returns the keys of the pods on a node.
    pub fn on(&self, node: &str) -> Vec<String> {
        let mut keys: Vec<_> =
            self.pods.iter().filter(|(_, pod)| pod.node == node).map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys
    }

    fn used(&self, node: &str, resource: &str) -> i64 {
        self.used.get(node).and_then(|used| used.get(resource)).copied().unwrap_or(0)
    }

    fn of_owner(&self, node: &str, owner: &str) -> usize {
        if owner.is_empty() {
            return 0;
        }
        self.of_owner.get(&(node.to_owned(), owner.to_owned())).copied().unwrap_or(0)
    }
}

/// Says whether a pod has run to its end: it takes no room any more.
pub fn is_finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Returns the amount of a resource in the unit of [`Amounts`].
fn parse(resource: &str, amount: &Value) -> i64 {
    let Some(text) = amount.as_str() else { return amount.as_i64().unwrap_or(0) };
    match Quantity::parse(text) {
        Ok(quantity) if resource == "cpu" => quantity.milli_value(),
        Ok(quantity) => quantity.value(),
        Err(_) => 0,
    }
}

/// Returns what a pod asks for: its containers together, or its largest init container, and one place.
pub fn asks(pod: &Value) -> Amounts {
    let mut sum = Amounts::new();
    let add = |sum: &mut Amounts, requests: Option<&Value>| {
        for (resource, amount) in requests.and_then(Value::as_object).into_iter().flatten() {
            *sum.entry(resource.clone()).or_default() += parse(resource, amount);
        }
    };
    for container in list(pod, "/spec/containers") {
        add(&mut sum, container.pointer("/resources/requests"));
    }
    for container in list(pod, "/spec/initContainers") {
        if container["restartPolicy"] == "Always" {
            add(&mut sum, container.pointer("/resources/requests"));
            continue;
        }
        let mut own = Amounts::new();
        add(&mut own, container.pointer("/resources/requests"));
        for (resource, amount) in own {
            let most = sum.entry(resource).or_default();
            *most = (*most).max(amount);
        }
    }
    add(&mut sum, pod.pointer("/spec/overhead"));
    sum.insert("pods".to_owned(), 1);
    sum
}

fn host_ports(pod: &Value) -> Vec<(i64, String)> {
    list(pod, "/spec/containers")
        .iter()
        .flat_map(|container| list(container, "/ports"))
        .filter_map(|port| {
            let number = port["hostPort"].as_i64().filter(|number| *number > 0)?;
            Some((number, port["protocol"].as_str().unwrap_or("TCP").to_owned()))
        })
        .collect()
}

/// Says whether a toleration of the pod covers a taint.
pub fn tolerates<'a>(pod: &'a Value, taint: &Value) -> Option<&'a Value> {
    list(pod, "/spec/tolerations").iter().find(|toleration| {
        let effect = text(toleration, "/effect");
        let key = text(toleration, "/key");
        (effect.is_empty() || taint["effect"] == effect)
            && (key.is_empty() || taint["key"] == key)
            && match text(toleration, "/operator") {
                "" | "Equal" => text(toleration, "/value") == text(taint, "/value"),
                "Exists" => true,
                _ => false,
            }
    })
}

/// Says whether a node matches the pod's selector and required node affinity.
pub fn wants_node(pod: &Value, node: &Node) -> bool {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    if selector.into_iter().flatten().any(|(key, value)| node.labels.get(key) != Some(value)) {
        return false;
    }
    let required =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    if pod.pointer(required).is_none() {
        return true;
    }
    list(pod, required).iter().any(|term| {
        let (expressions, fields) = (list(term, "/matchExpressions"), list(term, "/matchFields"));
        !(expressions.is_empty() && fields.is_empty())
            && expressions
                .iter()
                .all(|each| satisfies(each, node.labels.get(text(each, "/key")).and_then(Value::as_str)))
            && fields.iter().all(|each| satisfies(each, Some(node.name.as_str())))
    })
}

fn satisfies(expression: &Value, value: Option<&str>) -> bool {
    let values = list(expression, "/values");
    let among = value.is_some_and(|value| values.iter().any(|each| each == value));
    let compare = |greater: bool| {
        let own: Option<i64> = value.and_then(|value| value.parse().ok());
        let other: Option<i64> = values.first().and_then(Value::as_str).and_then(|text| text.parse().ok());
        matches!((own, other), (Some(own), Some(other)) if if greater { own > other } else { own < other })
    };
    match text(expression, "/operator") {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(true),
        "Lt" => compare(false),
        _ => false,
    }
}

/// Why a node does not take a pod.
struct Refusal {
    reasons: Vec<String>,
    /// Evicting other pods could help.
    resolvable: bool,
}

fn refuse(pod: &Value, asks: &Amounts, node: &Node, nodes: &[&Node], places: &Places) -> Option<Refusal> {
    let never = |reason: &str| Some(Refusal { reasons: vec![reason.to_owned()], resolvable: false });
    let perhaps = |reason: &str| Some(Refusal { reasons: vec![reason.to_owned()], resolvable: true });
    let cordon = serde_json::json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    if node.unschedulable && tolerates(pod, &cordon).is_none() {
        return never("node(s) were unschedulable");
    }
    let hard = |taint: &&Value| taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute";
    if node.taints.iter().filter(hard).any(|taint| tolerates(pod, taint).is_none()) {
        return never("node(s) had untolerated taint(s)");
    }
    if !wants_node(pod, node) {
        return never("node(s) didn't match Pod's node affinity/selector");
    }
    let taken = |port: &(i64, String)| {
        places.pods.values().any(|other| other.node == node.name && other.ports.contains(port))
    };
    if host_ports(pod).iter().any(taken) {
        return perhaps("node(s) didn't have free ports for the requested pod ports");
    }
    let mut reasons = Vec::new();
    let mut resolvable = true;
    for (resource, amount) in asks {
        let all = node.allocatable.get(resource).copied().unwrap_or(0);
        if *amount > 0 && places.used(&node.name, resource) + amount > all {
            let too_many = resource == "pods";
            reasons.push(if too_many {
                "Too many pods".to_owned()
            } else {
                format!("Insufficient {resource}")
            });
            resolvable &= *amount <= all;
        }
    }
    if !reasons.is_empty() {
        return Some(Refusal { reasons, resolvable });
    }
    if skewed(pod, node, nodes, places) {
        return perhaps("node(s) didn't match pod topology spread constraints");
    }
    let (affinity, anti) = neighbours(pod, node, nodes, places);
    if !affinity {
        return never("node(s) didn't match pod affinity rules");
    }
    if !anti {
        return perhaps("node(s) didn't match pod anti-affinity rules");
    }
    None
}

fn in_domain<'a>(
    node: &Node,
    key: &str,
    nodes: &'a [&'a Node],
    places: &'a Places,
) -> impl Iterator<Item = &'a Placed> + use<'a> {
    let value = node.labels.get(key).cloned();
    let names: Vec<&str> = nodes
        .iter()
        .filter(|other| value.is_some() && other.labels.get(key) == value.as_ref())
        .map(|other| other.name.as_str())
        .collect();
    places.pods.values().filter(move |pod| names.contains(&pod.node.as_str()))
}

fn skewed(pod: &Value, node: &Node, nodes: &[&Node], places: &Places) -> bool {
    list(pod, "/spec/topologySpreadConstraints").iter().any(|constraint| {
        if constraint["whenUnsatisfiable"] != "DoNotSchedule" {
            return false;
        }
        let key = text(constraint, "/topologyKey");
        let Some(domain) = node.labels.get(key) else { return true };
        let selector = LabelSelector::from_object(constraint.get("labelSelector"))
            .unwrap_or_else(|_| LabelSelector::nothing());
        let count = |value: &Value| {
            nodes
                .iter()
                .filter(|other| other.labels.get(key) == Some(value))
                .map(|other| {
                    let counts = |placed: &&Placed| {
                        placed.node == other.name
                            && placed.namespace == pod.namespace()
                            && selector.matches(&placed.labels)
                    };
                    places.pods.values().filter(counts).count()
                })
                .sum::<usize>()
        };
        let fewest = nodes
            .iter()
            .filter(|other| wants_node(pod, other))
            .filter_map(|other| other.labels.get(key))
            .map(&count)
            .min()
            .unwrap_or(0);
        let own = usize::from(selector.matches(pod.labels()));
        let most = constraint["maxSkew"].as_u64().unwrap_or(1) as usize;
        count(domain) + own > fewest + most
    })
}

/// Says whether required affinity and required anti-affinity are satisfied.
fn neighbours(pod: &Value, node: &Node, nodes: &[&Node], places: &Places) -> (bool, bool) {
    let matches = |term: &Value, placed: &Placed| {
        let spaces = list(term, "/namespaces");
        let here = if spaces.is_empty() {
            placed.namespace == pod.namespace()
        } else {
            spaces.iter().any(|space| *space == placed.namespace)
        };
        here && LabelSelector::from_object(term.get("labelSelector"))
            .is_ok_and(|selector| selector.matches(&placed.labels))
    };
    let required = |which: &str| {
        list(pod, &format!("/spec/affinity/{which}/requiredDuringSchedulingIgnoredDuringExecution"))
    };
    let affinity = required("podAffinity").iter().all(|term| {
        let key = text(term, "/topologyKey");
        if in_domain(node, key, nodes, places).any(|placed| matches(term, placed)) {
            return true;
        }
        // The first of its kind may go anywhere.
        let nobody = !places.pods.values().any(|placed| matches(term, placed));
        nobody
            && LabelSelector::from_object(term.get("labelSelector"))
                .is_ok_and(|selector| selector.matches(pod.labels()))
    });
    let anti = required("podAntiAffinity").iter().all(|term| {
        !in_domain(node, text(term, "/topologyKey"), nodes, places).any(|placed| matches(term, placed))
    });
    (affinity, anti)
}

/// Returns the node for a pod, or why there is none.
pub fn place(pod: &Value, nodes: &[&Node], places: &Places) -> Result<String, String> {
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let asks = asks(pod);
    let owner = pod.controller().map(|owner| text(owner, "/uid")).unwrap_or("");
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    let mut helpless = 0;
    let mut best: Option<(usize, i64, &str)> = None;
    for node in nodes {
        if let Some(refusal) = refuse(pod, &asks, node, nodes, places) {
            helpless += usize::from(!refusal.resolvable);
            for reason in refusal.reasons {
                *refusals.entry(reason).or_default() += 1;
            }
            continue;
        }
        // The fuller half counts, in thousandths.
        let share = |resource: &str| {
            let all = node.allocatable.get(resource).copied().unwrap_or(0).max(1);
            let used = places.used(&node.name, resource) + asks.get(resource).copied().unwrap_or(0);
            (i128::from(used) * 1000 / i128::from(all)) as i64
        };
        let fullness = share("cpu").max(share("memory")).max(share("pods"));
        let rank = (places.of_owner(&node.name, owner), fullness, node.name.as_str());
        if best.is_none_or(|best| rank < best) {
            best = Some(rank);
        }
    }
    match best {
        Some((_, _, node)) => Ok(node.to_owned()),
        None => Err(sorry(nodes.len(), &refusals, helpless)),
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). …`
fn sorry(nodes: usize, refusals: &BTreeMap<String, usize>, helpless: usize) -> String {
    let join = |reasons: &mut Vec<String>| {
        reasons.sort();
        reasons.join(", ")
    };
    let mut reasons: Vec<String> =
        refusals.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let mut preemption = Vec::new();
    if helpless > 0 {
        preemption.push(format!("{helpless} Preemption is not helpful for scheduling"));
    }
    if nodes > helpless {
        preemption.push(format!("{} No preemption victims found for incoming pod", nodes - helpless));
    }
    format!(
        "0/{nodes} nodes are available: {}. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {}.",
        join(&mut reasons),
        join(&mut preemption)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn placed(pod: &Value, nodes: &[Node], places: &Places) -> Result<String, String> {
        place(pod, &nodes.iter().collect::<Vec<_>>(), places)
    }

    fn node(name: &str, cpu: &str) -> Node {
        Node::read(
            &json!({"metadata": {"name": name, "labels": {"zone": name, "kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "2"}}}),
        )
    }

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "d", "labels": {"app": "p"}}, "spec": spec})
    }

    fn asking(cpu: &str) -> Value {
        pod(json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]}))
    }

    #[test]
    fn the_emptiest_node_is_taken() {
        let (nodes, mut places) = ([node("a", "4"), node("b", "4")], Places::default());
        let mut first = asking("1");
        assert_eq!(placed(&first, &nodes, &places), Ok("a".to_owned()));
        first["spec"]["nodeName"] = json!("a");
        places.set("d/p", Placed::read(&first));
        assert_eq!(placed(&asking("1"), &nodes, &places), Ok("b".to_owned()));
        places.set("d/p", None);
        assert_eq!(placed(&asking("1"), &nodes, &places), Ok("a".to_owned()));
    }

    #[test]
    fn a_pod_that_fits_nowhere_is_told_why() {
        let nodes = [node("a", "4"), node("b", "4")];
        assert_eq!(
            placed(&asking("900"), &nodes, &Places::default()).unwrap_err(),
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, \
             preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        );
        assert_eq!(
            placed(&asking("1"), &[], &Places::default()).unwrap_err(),
            "no nodes available to schedule pods"
        );
    }

    #[test]
    fn selectors_affinity_and_taints_count() {
        let mut nodes = [node("a", "4"), node("b", "4")];
        let picky = pod(json!({"nodeSelector": {"zone": "b"}}));
        assert_eq!(placed(&picky, &nodes, &Places::default()), Ok("b".to_owned()));
        let affine = pod(
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}}}}),
        );
        assert_eq!(placed(&affine, &nodes, &Places::default()), Ok("b".to_owned()));
        nodes[1].taints = vec![json!({"key": "k", "value": "v", "effect": "NoSchedule"})];
        assert!(placed(&picky, &nodes, &Places::default()).is_err());
        let mut tolerant = picky;
        tolerant["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
        assert_eq!(placed(&tolerant, &nodes, &Places::default()), Ok("b".to_owned()));
    }

    #[test]
    fn pods_that_avoid_each_other_never_share_a_node() {
        let nodes = [node("a", "4"), node("b", "4")];
        let mut shy =
            pod(json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "p"}}}]}}}));
        let mut places = Places::default();
        for (key, expected) in [("d/1", "a"), ("d/2", "b")] {
            let node = placed(&shy, &nodes, &places).expect("there is room");
            assert_eq!(node, expected);
            shy["spec"]["nodeName"] = json!(node);
            places.set(key, Placed::read(&shy));
        }
        let why = placed(&shy, &nodes, &places).unwrap_err();
        assert!(why.contains("2 node(s) didn't match pod anti-affinity rules"), "{why}");
    }
}
