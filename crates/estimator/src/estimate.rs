//! The estimate: nodes, pods and quotas of a member and a question in, a number out. Pure.
//!
//! Two plug-ins answer each question, and the smaller number counts: the room on the nodes ([`crate::room`]) and what quotas allow
//! ([`crate::quota`]). The service and whoever has copies of a member's nodes and pods share it.

use k8s_openapi::api::core::v1 as core;

use crate::client::Request;
use crate::protocol::{self, AssumedWorkload, MaxAvailableComponentSetsRequest, MaxAvailableReplicasRequest};
use crate::quota::{self, Need};
use crate::room::{self, Node, Part};

/// How many components a request may have, those of assumed workloads among them: each is tried on every node.
pub const COMPONENTS: usize = 10_000;

/// What is known of a member.
#[derive(Debug, Clone, Copy, Default)]
pub struct World<'a> {
    /// The nodes with what their pods have left of them, see [`room::left`].
    pub left: &'a [Node],
    /// The quotas of the namespace that is asked about; nothing where quotas do not count (the gate ResourceQuotaEstimate).
    pub quotas: Option<&'a [core::ResourceQuota]>,
    /// Whether workloads that are on their way count (the gate SchedulingOvercommitProtection).
    pub protected: bool,
}

impl World<'_> {
    /// Answers a question.
    pub fn answer(&self, request: &Request) -> i32 {
        match request {
            Request::Replicas(request) => self.replicas(request),
            Request::Sets(request) => self.sets(request),
        }
    }

    /// Returns how many replicas fit.
    pub fn replicas(&self, request: &MaxAvailableReplicasRequest) -> i32 {
        let nodes = self.nodes(&request.assumed_workloads);
        if nodes.is_empty() {
            return 0;
        }
        let Some(needs) = &request.replica_requirements else {
            return room::replicas(&nodes, &Part::default());
        };
        let list = needs.request();
        let claim = needs.node_claim.as_ref().map(protocol::NodeClaim::read);
        let fit = room::replicas(&nodes, &Part::new(1, &list, claim.as_ref()));
        let need = Need {
            replicas: 1,
            request: Some(list.into_iter().map(|(name, amount)| (name, amount.0)).collect()),
            priority_class: needs.priority_class_name.clone(),
        };
        fit.min(self.allowed(&needs.namespace, &[need], &request.assumed_workloads))
    }

    /// Returns how many complete sets of the components fit.
    pub fn sets(&self, request: &MaxAvailableComponentSetsRequest) -> i32 {
        let mut nodes = self.nodes(&request.assumed_workloads);
        if nodes.is_empty() {
            return 0;
        }
        if request.components.is_empty() {
            return i32::MAX;
        }
        let fit = room::sets(&mut nodes, &parts(&request.components), i32::MAX);
        let needs: Vec<Need> = request.components.iter().map(need).collect();
        fit.min(self.allowed(&request.namespace, &needs, &request.assumed_workloads))
    }

    /// Returns the nodes with what is left of them, after those who are on their way.
    fn nodes(&self, assumed: &[AssumedWorkload]) -> Vec<Node> {
        let mut left = self.left.to_vec();
        if self.protected {
            for workload in assumed {
                room::sets(&mut left, &parts(&workload.components), 1);
            }
        }
        left
    }

    /// Returns what the quotas of a namespace allow.
    fn allowed(&self, namespace: &str, needs: &[Need], assumed: &[AssumedWorkload]) -> i32 {
        let Some(quotas) = self.quotas else { return i32::MAX };
        if namespace.is_empty() || needs.is_empty() {
            return i32::MAX;
        }
        let here = assumed.iter().filter(|workload| self.protected && workload.namespace == namespace);
        let coming: Vec<Need> = here.flat_map(|workload| workload.components.iter().map(need)).collect();
        let quotas: Vec<&core::ResourceQuota> =
            quotas.iter().filter(|quota| quota.metadata.namespace.as_deref() == Some(namespace)).collect();
        let allowed = quota::allowed(&quotas, needs, &coming);
        allowed.and_then(|allowed| i32::try_from(allowed).ok()).unwrap_or(i32::MAX)
    }
}

/// Returns how many components a question has, if there are too many to be answered.
pub fn too_many(components: &[protocol::Component], assumed: &[AssumedWorkload]) -> Option<usize> {
    let coming: usize = assumed.iter().map(|workload| workload.components.len().max(1)).sum();
    Some(components.len().saturating_add(coming)).filter(|count| *count > COMPONENTS)
}

fn parts(components: &[protocol::Component]) -> Vec<Part> {
    let part = |component: &protocol::Component| {
        let needs = component.replica_requirements.as_ref();
        let claim = needs.and_then(|needs| needs.node_claim.as_ref()).map(protocol::NodeClaim::read);
        let list = needs.map(protocol::ComponentReplicaRequirements::request).unwrap_or_default();
        Part::new(component.replicas, &list, claim.as_ref())
    };
    components.iter().map(part).collect()
}

fn need(component: &protocol::Component) -> Need {
    let needs = component.replica_requirements.as_ref();
    let list = |needs: &protocol::ComponentReplicaRequirements| {
        needs.request().into_iter().map(|(name, amount)| (name, amount.0)).collect()
    };
    Need {
        replicas: component.replicas.into(),
        request: needs.map(list),
        priority_class: needs.map(|needs| needs.priority_class_name.clone()).unwrap_or_default(),
    }
}
