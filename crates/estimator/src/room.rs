//! What nodes can still hold. Pure: nodes, pods and questions in, numbers out.
//!
//! The units are upstream's: `cpu` counts in thousandths, everything else in whole units rounded up. A pod takes the sum of its
//! containers, or its largest init container, and its overhead.

use std::collections::BTreeMap;

use api::work::{NodeClaim, ResourceList};
use apimachinery::names;
use apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;

/// Amounts of the resources that nodes have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources, huge pages, attachable volumes, by name.
    pub scalars: BTreeMap<String, i64>,
}

impl Room {
    /// Returns the amounts of a list; what is not a resource of nodes is left out.
    pub fn of<'a>(list: impl IntoIterator<Item = (&'a String, &'a str)>) -> Self {
        let mut room = Self::default();
        for (name, text) in list {
            let Ok(amount) = Quantity::parse(text) else { continue };
            match name.as_str() {
                "cpu" => room.milli_cpu = amount.milli_value(),
                "memory" => room.memory = amount.value(),
                "ephemeral-storage" => room.ephemeral_storage = amount.value(),
                "pods" => room.pods = amount.value(),
                _ if is_scalar(name) => {
                    room.scalars.insert(name.clone(), amount.value());
                }
                _ => {}
            }
        }
        room
    }

    fn each(&mut self, other: &Self, change: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = change(self.milli_cpu, other.milli_cpu);
        self.memory = change(self.memory, other.memory);
        self.ephemeral_storage = change(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            let own = self.scalars.entry(name.clone()).or_default();
            *own = change(*own, *amount);
        }
    }

    fn add(&mut self, other: &Self) {
        self.each(other, i64::saturating_add);
    }

    /// Returns how many times a request fits, within the pods that are left.
    fn holds(&self, request: &Self) -> i64 {
        let mut fit = self.pods;
        let mut limit = |have: i64, want: i64| {
            if want > 0
                && let Some(times) = have.checked_div(want)
            {
                fit = fit.min(times);
            }
        };
        limit(self.milli_cpu, request.milli_cpu);
        limit(self.memory, request.memory);
        limit(self.ephemeral_storage, request.ephemeral_storage);
        for (name, want) in &request.scalars {
            limit(self.scalars.get(name).copied().unwrap_or(0), *want);
        }
        fit.max(0)
    }

    fn take(&mut self, request: &Self, times: i64) {
        self.each(request, |have, want| have.saturating_sub(want.saturating_mul(times)).max(0));
        self.pods = self.pods.saturating_sub(times).max(0);
    }
}

/// Returns whether a resource is counted by its name: extended resources, huge pages, attachable volumes.
pub(crate) fn is_scalar(name: &str) -> bool {
    is_extended(name)
        || name.starts_with("hugepages-")
        || name.contains("kubernetes.io/")
        || name.starts_with("attachable-volumes-")
}

/// Returns whether somebody outside of Kubernetes has invented a resource.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// What counts of a pod: where it is, and what it takes there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taken {
    pub node: String,
    pub room: Room,
}

/// Amounts by resource, as objects have them.
type Amounts = BTreeMap<String, Amount>;

impl Taken {
    /// Returns what a pod takes whose containers, containers that run before these, and overhead ask for so much.
    pub fn new<'a>(
        node: &str,
        containers: impl IntoIterator<Item = &'a Amounts>,
        init_containers: impl IntoIterator<Item = &'a Amounts>,
        overhead: Option<&'a Amounts>,
    ) -> Self {
        let mut room = Room::default();
        for requests in containers {
            room.add(&Room::from(requests));
        }
        for requests in init_containers {
            room.each(&Room::from(requests), i64::max);
        }
        overhead.into_iter().for_each(|overhead| room.add(&Room::from(overhead)));
        Self { node: node.to_owned(), room }
    }
}

impl From<core::Pod> for Taken {
    fn from(pod: core::Pod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let requests = |container: &'_ core::Container| {
            container.resources.as_ref().and_then(|all| all.requests.clone())
        };
        let containers: Vec<Amounts> = spec.containers.iter().filter_map(requests).collect();
        let first: Vec<Amounts> = spec.init_containers.iter().flatten().filter_map(requests).collect();
        Self::new(&spec.node_name.unwrap_or_default(), &containers, &first, spec.overhead.as_ref())
    }
}

impl From<&Amounts> for Room {
    fn from(amounts: &Amounts) -> Self {
        Self::of(amounts.iter().map(|(name, amount)| (name, amount.0.as_str())))
    }
}

/// What counts of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<core::Taint>,
    pub unschedulable: bool,
    pub room: Room,
}

impl From<core::Node> for Node {
    fn from(node: core::Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        Self {
            name: node.metadata.name.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or(false),
            room: Room::from(&allocatable),
        }
    }
}

/// The nodes with what their pods have left of them, in the order in which they are filled: one of each zone in turn.
pub fn left(nodes: impl IntoIterator<Item = Node>, taken: impl IntoIterator<Item = Taken>) -> Vec<Node> {
    let mut used: BTreeMap<String, (Room, i64)> = BTreeMap::new();
    for Taken { node, room } in taken {
        let (sum, pods) = used.entry(node).or_default();
        sum.add(&room);
        *pods = pods.saturating_add(1);
    }
    let mut zones: Vec<(String, Vec<Node>)> = Vec::new();
    for mut node in nodes {
        if let Some((sum, pods)) = used.get(&node.name) {
            node.room.each(sum, |have, used| have.saturating_sub(used).max(0));
            node.room.pods = node.room.pods.saturating_sub(*pods).max(0);
        }
        let label = |what: &str| {
            // The older names count first, where there are any.
            let older = node.labels.get(&format!("failure-domain.beta.kubernetes.io/{what}"));
            older
                .or_else(|| node.labels.get(&format!("topology.kubernetes.io/{what}")))
                .map_or("", String::as_str)
        };
        let zone = format!("{}:{}", label("region"), label("zone"));
        match zones.iter_mut().find(|(name, _)| *name == zone) {
            Some((_, nodes)) => nodes.push(node),
            None => zones.push((zone, vec![node])),
        }
    }
    let mut zones: Vec<_> = zones.into_iter().map(|(_, nodes)| nodes.into_iter()).collect();
    let mut ordered = Vec::new();
    loop {
        let before = ordered.len();
        ordered.extend(zones.iter_mut().filter_map(Iterator::next));
        if ordered.len() == before {
            return ordered;
        }
    }
}

/// A part of a workload: so many replicas with these needs.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub replicas: i64,
    pub request: Room,
    pub claim: NodeClaim,
}

impl Part {
    pub fn new(replicas: i32, request: &ResourceList, claim: Option<&NodeClaim>) -> Self {
        let mut request = Room::from(request);
        request.pods = 0;
        Self { replicas: replicas.into(), request, claim: claim.cloned().unwrap_or_default() }
    }
}

/// Returns how many replicas of one part fit into the nodes.
pub fn replicas(nodes: &[Node], part: &Part) -> i32 {
    let fitting = nodes.iter().filter(|node| suits(node, &part.claim));
    let sum = fitting.fold(0_i64, |sum, node| sum.saturating_add(node.room.holds(&part.request)));
    i32::try_from(sum).unwrap_or(i32::MAX)
}

/// Places complete sets of the parts until one does not fit, at most `bound` of them; returns how many went in. What was taken
/// for a set that does not fit is not given back, as upstream.
pub fn sets(nodes: &mut [Node], parts: &[Part], bound: i32) -> i32 {
    // Upstream counts on for two billion rounds when there is nothing to place.
    if parts.iter().all(|part| part.replicas <= 0) {
        return bound;
    }
    // A node that has no room for a part now will never have any: each part goes on where it stopped.
    let mut next = vec![0; parts.len()];
    let mut place = |part: &Part, next: &mut usize| {
        let mut remaining = part.replicas;
        while remaining > 0 {
            let Some(node) = nodes.get_mut(*next) else { return false };
            let fit =
                if suits(node, &part.claim) { node.room.holds(&part.request).min(remaining) } else { 0 };
            if fit == 0 {
                *next = next.saturating_add(1);
                continue;
            }
            node.room.take(&part.request, fit);
            remaining = remaining.saturating_sub(fit);
        }
        true
    };
    let mut count = 0_i32;
    while count < bound && parts.iter().zip(&mut next).all(|(part, next)| place(part, next)) {
        count = count.saturating_add(1);
    }
    count
}

/// Returns whether pods with these claims may be put on a node.
fn suits(node: &Node, claim: &NodeClaim) -> bool {
    let tolerated = |key: &str, value: &str, effect: &str| {
        claim.tolerations.iter().any(|toleration| tolerates(toleration, key, value, effect))
    };
    if node.unschedulable && !tolerated("node.kubernetes.io/unschedulable", "", "NoSchedule") {
        return false;
    }
    let repels = |taint: &&core::Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut repelling = node.taints.iter().filter(repels);
    if !repelling.all(|taint| tolerated(&taint.key, taint.value.as_deref().unwrap_or(""), &taint.effect)) {
        return false;
    }
    if claim.node_selector.iter().any(|(name, value)| node.labels.get(name) != Some(value)) {
        return false;
    }
    claim.hard_node_affinity.as_ref().is_none_or(|wanted| {
        let terms = wanted.node_selector_terms.iter();
        let given = terms.filter(|term| {
            term.match_expressions.as_ref().is_some_and(|all| !all.is_empty())
                || term.match_fields.as_ref().is_some_and(|all| !all.is_empty())
        });
        given.into_iter().any(|term| {
            let labels = term.match_expressions.iter().flatten();
            let fields = term.match_fields.iter().flatten();
            labels.into_iter().all(|one| holds(one, node.labels.get(&one.key).map(String::as_str)))
                && fields.into_iter().all(|one| field_holds(one, &node.name))
        })
    })
}

fn tolerates(toleration: &core::Toleration, key: &str, value: &str, effect: &str) -> bool {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let (of_key, of_effect) = (given(&toleration.key), given(&toleration.effect));
    if (!of_effect.is_empty() && of_effect != effect) || (!of_key.is_empty() && of_key != key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => given(&toleration.value) == value,
        "Exists" => true,
        _ => false,
    }
}

/// The only field that there is is the name; one value is compared.
fn field_holds(requirement: &core::NodeSelectorRequirement, name: &str) -> bool {
    let found = if requirement.key == "metadata.name" { name } else { "" };
    match (requirement.operator.as_str(), requirement.values.as_deref().unwrap_or_default()) {
        ("In", [value]) => value == found,
        ("NotIn", [value]) => value != found,
        _ => false,
    }
}

/// A requirement that makes no sense does not hold.
fn holds(requirement: &core::NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || found.is_some_and(|found| values.iter().any(|value| value == found));
    let compared = |is: fn(i64, i64) -> bool| {
        let found = found.and_then(|found| found.parse().ok());
        let wanted = match values {
            [wanted] => wanted.parse().ok(),
            _ => None,
        };
        found.zip(wanted).is_some_and(|(found, wanted): (i64, i64)| is(found, wanted))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !values.is_empty() && !listed(),
        "Exists" => values.is_empty() && found.is_some(),
        "DoesNotExist" => values.is_empty() && found.is_none(),
        "Gt" => compared(|found, wanted| found > wanted),
        "Lt" => compared(|found, wanted| found < wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn node(name: &str, cpu: &str, otherwise: Value) -> Node {
        let mut base = json!({ "metadata": { "name": name, "labels": {} },
            "status": { "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "10", "example.com/gpu": "2" } } });
        apimachinery::patch::merge::apply(&mut base, otherwise);
        Node::from(read::<core::Node>(base))
    }

    fn part(replicas: i32, request: Value, claim: Value) -> Part {
        Part::new(replicas, &read(request), Some(&read(claim)))
    }

    #[test]
    fn pods_take_room() {
        let pod: core::Pod = read(json!({ "spec": {
            "nodeName": "n1", "overhead": { "cpu": "50m" },
            "containers": [
                { "name": "a", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } } },
                { "name": "b", "resources": { "requests": { "cpu": "200m", "example.com/gpu": "1", "storage": "1Gi" } } },
            ],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "900m", "memory": "1Mi" } } }],
        } }));
        let taken = Taken::from(pod);
        assert_eq!((taken.room.milli_cpu, taken.room.memory), (950, 1 << 30));
        assert_eq!(taken.room.scalars, [("example.com/gpu".to_owned(), 1)].into());
        let left = left([node("n1", "4", json!({})), node("n2", "1", json!({}))], [taken.clone(), taken]);
        assert_eq!((left[0].room.milli_cpu, left[0].room.pods, left[1].room.pods), (2100, 8, 10));
        assert_eq!(left[0].room.scalars["example.com/gpu"], 0);
    }

    #[test]
    fn no_number_of_a_member_is_too_large_or_too_small() {
        let pod: core::Pod = read(json!({ "spec": { "nodeName": "n1", "containers": [
            { "name": "a", "resources": { "requests": { "cpu": "9223372036854775807", "memory": "9223372036854775807" } } }] } }));
        let least = json!({ "status": { "allocatable": { "pods": "-9223372036854775808", "memory": "-9223372036854775808" } } });
        let left =
            left([node("n1", "-9223372036854775808", least)], [Taken::from(pod.clone()), Taken::from(pod)]);
        assert_eq!((left[0].room.milli_cpu, left[0].room.memory, left[0].room.pods), (0, 0, 0));
        assert_eq!(replicas(&left, &part(0, json!({ "cpu": "1m" }), json!({}))), 0);
    }

    #[test]
    fn zones_take_turns() {
        let in_zone = |name: &str, zone: &str| {
            node(name, "1", json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } }))
        };
        let all = [in_zone("a1", "a"), in_zone("a2", "a"), in_zone("b1", "b"), in_zone("a3", "a")];
        let names: Vec<String> = left(all, []).into_iter().map(|node| node.name).collect();
        assert_eq!(names, ["a1", "b1", "a2", "a3"]);
        let both =
            json!({ "topology.kubernetes.io/zone": "a", "failure-domain.beta.kubernetes.io/zone": "b" });
        let older = node("n", "1", json!({ "metadata": { "labels": both } }));
        let all = [in_zone("a1", "a"), in_zone("b1", "b"), in_zone("b2", "b"), older];
        let names: Vec<String> = left(all, []).into_iter().map(|node| node.name).collect();
        assert_eq!(names, ["a1", "b1", "b2", "n"]);
    }

    #[test]
    fn how_many_replicas_fit() {
        let nodes = [node("n1", "4", json!({})), node("n2", "2", json!({}))];
        let cases = [
            ("by CPU", json!({ "cpu": "500m" }), 12),
            ("the scarcest counts", json!({ "cpu": "500m", "example.com/gpu": "1" }), 4),
            ("places count, too", json!({ "cpu": "1m" }), 20),
            ("nothing is asked for", json!({}), 20),
            ("more than a node has", json!({ "cpu": "5" }), 0),
            ("what no node has", json!({ "example.com/tpu": "1" }), 0),
            ("what is not a resource of nodes", json!({ "storage": "1Ti" }), 20),
        ];
        for (name, request, expected) in cases {
            assert_eq!(replicas(&nodes, &part(0, request, json!({}))), expected, "{name}");
        }
    }

    #[test]
    fn which_nodes_suit() {
        let plain = || node("n1", "4", json!({ "metadata": { "labels": { "disk": "ssd", "rank": "7" } } }));
        let tainted = |effect: &str| {
            node("n1", "4", json!({ "spec": { "taints": [{ "key": "k", "value": "v", "effect": effect }] } }))
        };
        let cordoned = || node("n1", "4", json!({ "spec": { "unschedulable": true } }));
        let terms = |terms: Value| json!({ "hardNodeAffinity": { "nodeSelectorTerms": terms } });
        let on = |key: &str, operator: &str, values: Value| {
            terms(json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]))
        };
        let tolerating = |toleration: Value| json!({ "tolerations": [toleration] });
        let cordon = json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" });
        let field = |key: &str, operator: &str, values: Value| {
            terms(json!([{ "matchFields": [{ "key": key, "operator": operator, "values": values }] }]))
        };
        let named = |name: &str| {
            terms(
                json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [name] }] }]),
            )
        };
        let cases = [
            ("no claim", plain(), json!({}), true),
            ("label", plain(), json!({ "nodeSelector": { "disk": "ssd" } }), true),
            ("another label", plain(), json!({ "nodeSelector": { "disk": "hdd" } }), false),
            ("in", plain(), on("disk", "In", json!(["ssd", "nvme"])), true),
            ("not in", plain(), on("disk", "NotIn", json!(["ssd"])), false),
            ("not in, missing", plain(), on("gone", "NotIn", json!(["ssd"])), true),
            ("exists", plain(), on("disk", "Exists", json!([])), true),
            ("does not exist", plain(), on("disk", "DoesNotExist", json!([])), false),
            ("greater", plain(), on("rank", "Gt", json!(["6"])), true),
            ("not greater", plain(), on("rank", "Gt", json!(["7"])), false),
            ("less", plain(), on("rank", "Lt", json!(["8"])), true),
            ("not a number", plain(), on("disk", "Lt", json!(["8"])), false),
            ("an operator that is not known", plain(), on("disk", "Like", json!(["s"])), false),
            ("no terms", plain(), terms(json!([])), false),
            ("an empty term", plain(), terms(json!([{}])), false),
            ("by name", plain(), named("n1"), true),
            ("by another name", plain(), named("n2"), false),
            ("not in nothing", plain(), on("disk", "NotIn", json!([])), false),
            ("exists with a value", plain(), on("disk", "Exists", json!(["ssd"])), false),
            ("does not exist with a value", plain(), on("gone", "DoesNotExist", json!(["ssd"])), false),
            ("a field without a value", plain(), field("metadata.name", "NotIn", json!([])), false),
            ("not by another name", plain(), field("metadata.name", "NotIn", json!(["n2"])), true),
            ("a field that nodes do not have", plain(), field("metadata.uid", "In", json!(["n1"])), false),
            ("not such a field", plain(), field("metadata.uid", "NotIn", json!(["n1"])), true),
            ("tainted", tainted("NoSchedule"), json!({}), false),
            ("driven out", tainted("NoExecute"), json!({}), false),
            ("avoided", tainted("PreferNoSchedule"), json!({}), true),
            ("tolerated", tainted("NoSchedule"), tolerating(json!({ "key": "k", "value": "v" })), true),
            (
                "another value is tolerated",
                tainted("NoSchedule"),
                tolerating(json!({ "key": "k", "value": "w" })),
                false,
            ),
            ("cordoned", cordoned(), json!({}), false),
            ("cordoned and tolerated", cordoned(), tolerating(cordon), true),
        ];
        for (name, node, claim, expected) in cases {
            assert_eq!(suits(&node, &read(claim)), expected, "{name}");
        }
    }

    #[test]
    fn how_many_sets_fit() {
        let nodes = || vec![node("n1", "4", json!({})), node("n2", "2", json!({}))];
        let leader = || part(1, json!({ "cpu": "1" }), json!({}));
        let worker = || part(2, json!({ "cpu": "500m" }), json!({}));
        assert_eq!(sets(&mut nodes(), &[leader(), worker()], i32::MAX), 3);
        assert_eq!(sets(&mut nodes(), &[leader(), worker()], 2), 2);
        assert_eq!(sets(&mut nodes(), &[part(0, json!({}), json!({}))], 5), 5);
        assert_eq!(sets(&mut nodes(), &[part(1, json!({ "cpu": "9" }), json!({}))], 5), 0);
        assert_eq!(sets(&mut [], &[leader()], 5), 0);
        // Each replica takes one of ten places on each node.
        assert_eq!(sets(&mut nodes(), &[part(5, json!({ "cpu": "1m" }), json!({}))], i32::MAX), 4);
    }
}
