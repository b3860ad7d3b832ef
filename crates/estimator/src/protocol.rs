//! Karmada's gRPC contract, message by message. Field numbers are the protocol; names are upstream's.
//!
//! Quantities, node selectors and tolerations travel as Kubernetes' own protobuf messages, without an envelope. Up to v1.17 they are
//! fields of these types, since v1.18 byte fields with numbers of their own. We write both and read whichever is there, so that each
//! side may be of either version.

use std::collections::HashMap;

use api::work;
use apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use prost::Message;

/// The service's full name.
pub const SERVICE: &str = "github.com.karmada_io.karmada.pkg.estimator.service.Estimator";
pub const MAX_AVAILABLE_REPLICAS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/MaxAvailableReplicas";
pub const MAX_AVAILABLE_COMPONENT_SETS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/MaxAvailableComponentSets";
pub const GET_UNSCHEDULABLE_REPLICAS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/GetUnschedulableReplicas";

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableReplicasRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, optional, tag = "2")]
    pub replica_requirements: Option<ReplicaRequirements>,
    #[prost(message, repeated, tag = "3")]
    pub assumed_workloads: Vec<AssumedWorkload>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableReplicasResponse {
    #[prost(int32, tag = "1")]
    pub max_replicas: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableComponentSetsRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, repeated, tag = "2")]
    pub components: Vec<Component>,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub assumed_workloads: Vec<AssumedWorkload>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableComponentSetsResponse {
    #[prost(int32, tag = "1")]
    pub max_sets: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnschedulableReplicasRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, optional, tag = "2")]
    pub resource: Option<ObjectReference>,
    /// In nanoseconds.
    #[prost(int64, tag = "3")]
    pub unschedulable_threshold: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnschedulableReplicasResponse {
    #[prost(int32, tag = "1")]
    pub unschedulable_replicas: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReplicaRequirements {
    #[prost(message, optional, tag = "1")]
    pub node_claim: Option<NodeClaim>,
    /// Up to v1.17.
    #[prost(map = "string, bytes", tag = "2")]
    pub resource_request: HashMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub priority_class_name: String,
    /// Since v1.18.
    #[prost(map = "string, bytes", tag = "5")]
    pub resource_request_bytes: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ComponentReplicaRequirements {
    #[prost(message, optional, tag = "1")]
    pub node_claim: Option<NodeClaim>,
    /// Up to v1.17.
    #[prost(map = "string, bytes", tag = "2")]
    pub resource_request: HashMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    pub priority_class_name: String,
    /// Since v1.18.
    #[prost(map = "string, bytes", tag = "4")]
    pub resource_request_bytes: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeClaim {
    /// Up to v1.17.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub node_affinity: Option<Vec<u8>>,
    #[prost(map = "string, string", tag = "2")]
    pub node_selector: HashMap<String, String>,
    /// Up to v1.17.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub tolerations: Vec<Vec<u8>>,
    /// Since v1.18, as the next one.
    #[prost(bytes = "vec", tag = "4")]
    pub node_affinity_bytes: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub tolerations_bytes: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Component {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub replica_requirements: Option<ComponentReplicaRequirements>,
    #[prost(int32, tag = "3")]
    pub replicas: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct AssumedWorkload {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(message, repeated, tag = "2")]
    pub components: Vec<Component>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ObjectReference {
    #[prost(string, tag = "1")]
    pub api_version: String,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
}

/// Kubernetes' Quantity.
#[derive(Clone, PartialEq, Message)]
struct QuantityMessage {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
}

/// Kubernetes' NodeSelector.
#[derive(Clone, PartialEq, Message)]
struct NodeSelectorMessage {
    #[prost(message, repeated, tag = "1")]
    terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeSelectorTerm {
    #[prost(message, repeated, tag = "1")]
    match_expressions: Vec<NodeSelectorRequirement>,
    #[prost(message, repeated, tag = "2")]
    match_fields: Vec<NodeSelectorRequirement>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeSelectorRequirement {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(string, optional, tag = "2")]
    operator: Option<String>,
    #[prost(string, repeated, tag = "3")]
    values: Vec<String>,
}

/// Kubernetes' Toleration.
#[derive(Clone, PartialEq, Message)]
struct TolerationMessage {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(string, optional, tag = "2")]
    operator: Option<String>,
    #[prost(string, optional, tag = "3")]
    value: Option<String>,
    #[prost(string, optional, tag = "4")]
    effect: Option<String>,
    #[prost(int64, optional, tag = "5")]
    toleration_seconds: Option<i64>,
}

impl From<&work::ReplicaRequirements> for ReplicaRequirements {
    fn from(needs: &work::ReplicaRequirements) -> Self {
        let amounts = quantities(&needs.resource_request);
        Self {
            node_claim: needs.node_claim.as_ref().map(NodeClaim::from),
            resource_request: amounts.clone(),
            namespace: needs.namespace.clone(),
            priority_class_name: needs.priority_class_name.clone(),
            resource_request_bytes: amounts,
        }
    }
}

impl From<&work::ObjectReference> for ObjectReference {
    fn from(resource: &work::ObjectReference) -> Self {
        Self {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            namespace: resource.namespace.clone(),
            name: resource.name.clone(),
        }
    }
}

impl From<&work::Component> for Component {
    fn from(component: &work::Component) -> Self {
        let needs = component.replica_requirements.as_ref();
        Self {
            name: component.name.clone(),
            replica_requirements: needs.map(|needs| {
                let amounts = quantities(&needs.resource_request);
                ComponentReplicaRequirements {
                    node_claim: needs.node_claim.as_ref().map(NodeClaim::from),
                    resource_request: amounts.clone(),
                    priority_class_name: needs.priority_class_name.clone(),
                    resource_request_bytes: amounts,
                }
            }),
            replicas: component.replicas,
        }
    }
}

impl From<&work::NodeClaim> for NodeClaim {
    fn from(claim: &work::NodeClaim) -> Self {
        let affinity = claim.hard_node_affinity.as_ref().map(|affinity| {
            let terms = affinity.node_selector_terms.iter().map(NodeSelectorTerm::from).collect();
            NodeSelectorMessage { terms }.encode_to_vec()
        });
        let tolerations: Vec<Vec<u8>> = claim.tolerations.iter().map(toleration).collect();
        Self {
            node_affinity: affinity.clone(),
            node_selector: claim.node_selector.clone().into_iter().collect(),
            tolerations: tolerations.clone(),
            node_affinity_bytes: affinity.unwrap_or_default(),
            tolerations_bytes: tolerations,
        }
    }
}

impl From<&core::NodeSelectorTerm> for NodeSelectorTerm {
    fn from(term: &core::NodeSelectorTerm) -> Self {
        let requirements = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
            let list = list.iter().flatten();
            list.map(|one| NodeSelectorRequirement {
                key: Some(one.key.clone()),
                operator: Some(one.operator.clone()),
                values: one.values.clone().unwrap_or_default(),
            })
            .collect()
        };
        Self {
            match_expressions: requirements(&term.match_expressions),
            match_fields: requirements(&term.match_fields),
        }
    }
}

/// Go writes every field of a Toleration but the seconds, also an empty one.
fn toleration(toleration: &core::Toleration) -> Vec<u8> {
    let text = |text: &Option<String>| Some(text.clone().unwrap_or_default());
    TolerationMessage {
        key: text(&toleration.key),
        operator: text(&toleration.operator),
        value: text(&toleration.value),
        effect: text(&toleration.effect),
        toleration_seconds: toleration.toleration_seconds,
    }
    .encode_to_vec()
}

impl ReplicaRequirements {
    /// Returns the amounts that are asked for.
    pub fn request(&self) -> api::policy::ResourceList {
        amounts(&self.resource_request, &self.resource_request_bytes)
    }
}

impl ComponentReplicaRequirements {
    /// Returns the amounts that are asked for.
    pub fn request(&self) -> api::policy::ResourceList {
        amounts(&self.resource_request, &self.resource_request_bytes)
    }
}

impl NodeClaim {
    /// Returns what it says. An affinity that cannot be read fits no node, and a toleration that cannot be read tolerates nothing.
    pub fn read(&self) -> work::NodeClaim {
        let requirements = |list: Vec<NodeSelectorRequirement>| {
            let read = |one: NodeSelectorRequirement| core::NodeSelectorRequirement {
                key: one.key.unwrap_or_default(),
                operator: one.operator.unwrap_or_default(),
                values: Some(one.values),
            };
            (!list.is_empty()).then(|| list.into_iter().map(read).collect())
        };
        let newer = Some(&self.node_affinity_bytes).filter(|bytes| !bytes.is_empty());
        let affinity = newer.or(self.node_affinity.as_ref()).map(|bytes| {
            let read = NodeSelectorMessage::decode(bytes.as_slice()).unwrap_or_default();
            let term = |term: NodeSelectorTerm| core::NodeSelectorTerm {
                match_expressions: requirements(term.match_expressions),
                match_fields: requirements(term.match_fields),
            };
            core::NodeSelector { node_selector_terms: read.terms.into_iter().map(term).collect() }
        });
        let toleration = |bytes: &Vec<u8>| {
            let read = TolerationMessage::decode(bytes.as_slice()).ok()?;
            Some(core::Toleration {
                key: read.key,
                operator: read.operator,
                value: read.value,
                effect: read.effect,
                toleration_seconds: read.toleration_seconds,
            })
        };
        let tolerations =
            if self.tolerations_bytes.is_empty() { &self.tolerations } else { &self.tolerations_bytes };
        work::NodeClaim {
            hard_node_affinity: affinity,
            node_selector: self.node_selector.clone().into_iter().collect(),
            tolerations: tolerations.iter().filter_map(toleration).collect(),
        }
    }
}

fn amounts(older: &HashMap<String, Vec<u8>>, newer: &HashMap<String, Vec<u8>>) -> api::policy::ResourceList {
    let bytes = if newer.is_empty() { older } else { newer };
    let read = |bytes: &[u8]| QuantityMessage::decode(bytes).ok()?.text;
    let amounts = bytes.iter().filter_map(|(name, bytes)| Some((name.clone(), Amount(read(bytes)?))));
    amounts.collect()
}

/// Text that is not a quantity is sent as it is: the service will say so.
fn quantities(list: &api::policy::ResourceList) -> HashMap<String, Vec<u8>> {
    let encode = |text: &str| {
        let text = Quantity::canonical(text).unwrap_or_else(|_| text.to_owned());
        QuantityMessage { text: Some(text) }.encode_to_vec()
    };
    list.iter().map(|(name, quantity)| (name.clone(), encode(&quantity.0))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_travel_as_kubernetes_messages_in_canonical_text() {
        let needs: work::ReplicaRequirements =
            serde_json::from_value(json!({"resourceRequest": {"cpu": "1000m"}, "namespace": "ns"})).unwrap();
        let message = ReplicaRequirements::from(&needs);
        assert_eq!(message.resource_request_bytes["cpu"], [0x0a, 1, b'1']);
        assert_eq!(message.request()["cpu"].0, "1");
        // The amount is there twice, once for each version.
        let expected = b"\x12\x0a\x0a\x03cpu\x12\x03\x0a\x011\x1a\x02ns\x2a\x0a\x0a\x03cpu\x12\x03\x0a\x011";
        assert_eq!(message.encode_to_vec(), expected);
    }

    /// What v1.17 sends has the older fields alone.
    #[test]
    fn either_version_is_read() {
        let older = ReplicaRequirements::decode(&b"\x12\x0a\x0a\x03cpu\x12\x03\x0a\x012"[..]).unwrap();
        assert_eq!(older.request()["cpu"].0, "2");
        let newer = ReplicaRequirements::decode(&b"\x2a\x0a\x0a\x03cpu\x12\x03\x0a\x013"[..]).unwrap();
        assert_eq!(newer.request()["cpu"].0, "3");
        let older =
            ComponentReplicaRequirements::decode(&b"\x12\x0a\x0a\x03cpu\x12\x03\x0a\x012"[..]).unwrap();
        assert_eq!(older.request()["cpu"].0, "2");
        let affinity = b"\x0a\x0c\x0a\x0a\x0a\x01z\x12\x02In\x1a\x01a".to_vec();
        let toleration = b"\x0a\x01k\x12\x06Exists".to_vec();
        let older = NodeClaim {
            node_affinity: Some(affinity.clone()),
            tolerations: vec![toleration.clone()],
            ..NodeClaim::default()
        };
        let newer = NodeClaim {
            node_affinity_bytes: affinity,
            tolerations_bytes: vec![toleration],
            ..NodeClaim::default()
        };
        assert_eq!(older.read(), newer.read());
        assert_eq!(older.read().tolerations.len(), 1);
        assert!(older.read().hard_node_affinity.is_some());
        let none = NodeClaim { node_affinity: Some(Vec::new()), ..NodeClaim::default() };
        assert!(none.read().hard_node_affinity.is_some(), "one without terms fits no node");
    }

    #[test]
    fn node_claims_keep_selectors_affinity_and_tolerations() {
        let claim: work::NodeClaim = serde_json::from_value(json!({
            "nodeSelector": {"disk": "ssd"},
            "hardNodeAffinity": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]},
            "tolerations": [{"key": "k", "operator": "Exists"}],
        }))
        .unwrap();
        let message = NodeClaim::from(&claim);
        assert_eq!(message.node_selector["disk"], "ssd");
        assert_eq!(message.node_affinity_bytes, b"\x0a\x0c\x0a\x0a\x0a\x01z\x12\x02In\x1a\x01a");
        assert_eq!(message.tolerations_bytes, [b"\x0a\x01k\x12\x06Exists\x1a\x00\x22\x00".to_vec()]);
        assert_eq!(message.node_affinity.as_ref(), Some(&message.node_affinity_bytes));
        assert_eq!(message.tolerations, message.tolerations_bytes);
        let read = message.read();
        assert_eq!(
            (&read.node_selector, &read.hard_node_affinity),
            (&claim.node_selector, &claim.hard_node_affinity)
        );
        assert_eq!(read.tolerations[0].key.as_deref(), Some("k"));
        let broken = NodeClaim { node_affinity_bytes: vec![0xff], ..NodeClaim::default() }.read();
        assert_eq!(broken.hard_node_affinity.map(|affinity| affinity.node_selector_terms), Some(Vec::new()));
    }
}
