//! ResourceBinding and ClusterResourceBinding, v1alpha2: one resource, its policy, and the chosen clusters.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::labels;
use crate::policy::{self, ConflictResolution, FailoverBehavior, Placement, PurgeMode, ResourceList};
use crate::schema::REASON_PATTERN;
use crate::wire::{Kind, choice, kind, record};

kind! {
    /// Binds a namespaced resource to the clusters it goes to.
    pub struct ResourceBinding in "work.karmada.io" / "v1alpha2" as "resourcebindings", Namespaced {
        /// The resource, what its policy says, and where it was placed.
        "spec" required spec: ResourceBindingSpec;
        /// How far placing and applying have come.
        "status" always status: ResourceBindingStatus;
    }
}

kind! {
    /// Binds a cluster-scoped resource to the clusters it goes to.
    pub struct ClusterResourceBinding in "work.karmada.io" / "v1alpha2" as "clusterresourcebindings", Cluster {
        /// The resource, what its policy says, and where it was placed.
        "spec" required spec: ResourceBindingSpec;
        /// How far placing and applying have come.
        "status" always status: ResourceBindingStatus;
    }
}

choice! {
    /// Whether a resource works, as far as its interpreter can tell.
    pub enum ResourceHealth {
        /// It works.
        Healthy = "Healthy",
        /// It does not work.
        Unhealthy = "Unhealthy",
        /// Nobody can tell.
        Unknown = "Unknown",
    }
}

record! {
    /// A resource, what its policy says, and where it was placed.
    pub struct ResourceBindingSpec {
        /// The resource that is bound.
        "resource" required resource: ObjectReference;
        /// Also propagates what the resource refers to.
        "propagateDeps" optional propagate_deps: bool;
        /// What one replica needs.
        "replicaRequirements" optional replica_requirements: Option<ReplicaRequirements>;
        /// The number of replicas that the resource asks for.
        "replicas" optional replicas: i32;
        /// The parts of a workload that has several pod templates; stands in for replicas and replicaRequirements.
        "components" optional components: Vec<Component>;
        /// The clusters that the scheduler has chosen.
        "clusters" optional clusters: Vec<TargetCluster>;
        /// Where the resource may go, copied from its policy.
        "placement" optional placement: Option<Placement>;
        /// Clusters that the resource is leaving.
        "gracefulEvictionTasks" optional graceful_eviction_tasks: Vec<GracefulEvictionTask>;
        /// The bindings whose resources need this one.
        "requiredBy" optional required_by: Vec<BindingSnapshot>;
        /// The scheduler in charge, copied from the policy.
        "schedulerName" optional scheduler_name: String;
        /// What happens on failure, copied from the policy.
        "failover" optional failover: Option<FailoverBehavior>;
        /// What to do when a member cluster already has an object of that name that is not managed from here, copied
        /// from the policy.
        "conflictResolution" optional conflict_resolution: Option<ConflictResolution> { defaults_to("Abort") };
        /// When somebody asked for a fresh schedule; honoured when later than status.lastScheduledTime.
        "rescheduleTriggeredAt" optional reschedule_triggered_at: Option<Time>;
        /// Pauses dispatching or scheduling.
        "suspension" optional suspension: Option<Suspension>;
        /// Keeps the objects in member clusters when the resource is deleted here, copied from the policy.
        "preserveResourcesOnDeletion" optional preserve_resources_on_deletion: Option<bool>;
        /// The priority in the scheduling queue.
        "schedulePriority" optional schedule_priority: Option<SchedulePriority>;
        /// The groups that the resource belongs to for rules between workloads.
        "workloadAffinityGroups" optional workload_affinity_groups: Option<WorkloadAffinityGroups>;
    }
}

record! {
    /// The resource that a binding is about.
    #[derive(Eq)]
    pub struct ObjectReference {
        /// The API version of the resource.
        "apiVersion" required api_version: String;
        /// The kind of the resource.
        "kind" required kind: String;
        /// The namespace of the resource; empty for cluster-scoped ones.
        "namespace" optional namespace: String;
        /// The name of the resource.
        "name" required name: String;
        /// The UID of the resource.
        "uid" optional uid: String;
        /// The version of the resource that was last taken over.
        "resourceVersion" optional resource_version: String;
    }
}

record! {
    /// What one replica of a workload needs.
    pub struct ReplicaRequirements {
        /// Which nodes it can run on.
        "nodeClaim" optional node_claim: Option<NodeClaim>;
        /// The resources it asks for.
        "resourceRequest" optional resource_request: ResourceList;
        /// The namespace of the workload, so that estimates can respect its quotas.
        "namespace" optional namespace: String;
        /// The priority class of its pods.
        "priorityClassName" optional priority_class_name: String;
    }
}

record! {
    /// Which nodes a replica can run on.
    pub struct NodeClaim {
        /// The node affinity that pods require.
        "hardNodeAffinity" optional hard_node_affinity: Option<NodeSelector>;
        /// Labels that a node must have.
        "nodeSelector" optional node_selector: BTreeMap<String, String>;
        /// Node taints that pods tolerate.
        "tolerations" optional tolerations: Vec<Toleration>;
    }
}

record! {
    /// A part of a workload with its own pod template.
    pub struct Component {
        /// The name of the part, unique within the workload.
        "name" required name: String { max_length(32) };
        /// The number of replicas of the part.
        "replicas" required replicas: i32;
        /// What one replica of the part needs.
        "replicaRequirements" optional replica_requirements: Option<ComponentReplicaRequirements>;
    }
}

record! {
    /// What one replica of a part needs.
    pub struct ComponentReplicaRequirements {
        /// Which nodes it can run on.
        "nodeClaim" optional node_claim: Option<NodeClaim>;
        /// The resources it asks for.
        "resourceRequest" optional resource_request: ResourceList;
        /// The priority class of its pods.
        "priorityClassName" optional priority_class_name: String;
    }
}

record! {
    /// A cluster that was chosen.
    #[derive(Eq)]
    pub struct TargetCluster {
        /// The name of the cluster.
        "name" required name: String;
        /// The number of replicas it gets.
        "replicas" optional replicas: i32;
        /// What it gets of each part of the workload.
        "components" optional components: Vec<TargetComponent>;
    }
}

record! {
    /// What a cluster gets of one part of a workload.
    #[derive(Eq)]
    pub struct TargetComponent {
        /// The name of the part.
        "name" required name: String;
        /// The number of replicas.
        "replicas" required replicas: i32;
    }
}

record! {
    /// A cluster that a resource is leaving.
    #[derive(Eq)]
    pub struct GracefulEvictionTask {
        /// The cluster that is being left.
        "fromCluster" required from_cluster: String;
        /// What happens to the copy there.
        "purgeMode" optional purge_mode: Option<PurgeMode>;
        /// The number of replicas that are leaving.
        "replicas" optional replicas: Option<i32>;
        /// Why the resource leaves, as a word for programs.
        "reason" required reason: String { min_length(1), max_length(32), pattern(REASON_PATTERN) };
        /// Why the resource leaves, for humans.
        "message" optional message: String { max_length(1024) };
        /// The controller that asked for it.
        "producer" required producer: String;
        /// How long to wait for the replacement before the copy is removed anyway; absent means the controller's own
        /// setting.
        "gracePeriodSeconds" optional grace_period_seconds: Option<i32>;
        /// True keeps the copy until somebody decides, false removes it now. Excludes gracePeriodSeconds.
        "suppressDeletion" optional suppress_deletion: Option<bool>;
        /// Labels that hand state of the old copy to the new one.
        "preservedLabelState" optional preserved_label_state: BTreeMap<String, String>;
        /// When the task was accepted.
        "creationTimestamp" optional creation_timestamp: Option<Time>;
        /// The clusters that the resource ran in before.
        "clustersBeforeFailover" optional clusters_before_failover: Vec<String>;
    }
}

record! {
    /// Another binding and the clusters it goes to.
    #[derive(Eq)]
    pub struct BindingSnapshot {
        /// The namespace of that binding; empty for a ClusterResourceBinding.
        "namespace" optional namespace: String;
        /// The name of that binding.
        "name" required name: String;
        /// The clusters it goes to.
        "clusters" optional clusters: Vec<TargetCluster>;
    }
}

record! {
    /// Pauses dispatching or scheduling of a binding.
    #[derive(Eq)]
    pub struct Suspension {
        /// What the policy pauses.
        inline policy: policy::Suspension;
        /// Keeps the scheduler away from the binding. Meant to be set by other controllers when the binding is
        /// created.
        "scheduling" optional scheduling: Option<bool>;
    }
}

record! {
    /// The priority of a binding in the scheduling queue.
    #[derive(Eq)]
    pub struct SchedulePriority {
        /// Bindings with a higher number are scheduled first.
        "priority" optional priority: i32 { defaults_to(0) };
    }
}

record! {
    /// The groups a resource belongs to, each written as label key, equals sign, label value.
    #[derive(Eq)]
    pub struct WorkloadAffinityGroups {
        /// The group whose members share clusters.
        "affinityGroup" optional affinity_group: String;
        /// The group whose members avoid each other.
        "antiAffinityGroup" optional anti_affinity_group: String;
    }
}

record! {
    /// How far placing and applying a resource have come.
    pub struct ResourceBindingStatus {
        /// The generation of the binding that the scheduler has dealt with.
        "schedulerObservedGeneration" optional scheduler_observed_generation: i64;
        /// The name of the cluster group from which clusters were chosen.
        "schedulerObservingAffinityName" optional scheduler_observed_affinity_name: String;
        /// When clusters were last chosen with success.
        "lastScheduledTime" optional last_scheduled_time: Option<Time>;
        /// Whether the resource is Scheduled and FullyApplied.
        "conditions" optional conditions: Vec<Condition>;
        /// The state of the resource in each cluster.
        "aggregatedStatus" optional aggregated_status: Vec<AggregatedStatusItem>;
    }
}

record! {
    /// The state of a resource in one cluster.
    pub struct AggregatedStatusItem {
        /// The name of the cluster.
        "clusterName" required cluster_name: String;
        /// The status of the object there, as far as it is collected.
        "status" optional status: Option<Value> { free_object() };
        /// Whether the object was applied.
        "applied" optional applied: bool;
        /// Why it could not be applied.
        "appliedMessage" optional applied_message: String;
        /// Whether the object works there.
        "health" optional health: Option<ResourceHealth>;
    }
}

impl ResourceBindingSpec {
    /// Returns whether the bound resource runs pods, as opposed to being mere configuration.
    pub fn is_workload(&self) -> bool {
        self.replicas > 0 || self.replica_requirements.is_some() || !self.components.is_empty()
    }
}

/// What the two kinds of binding have in common, for code that serves both.
pub trait Binding:
    Kind + Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The label with the UUID of a binding, on itself, its Works and the manifests in them.
    const PERMANENT_ID: &'static str;
    /// The finalizer that keeps a binding until its Works are gone.
    const FINALIZER: &'static str;

    /// Returns the spec.
    fn spec(&self) -> &ResourceBindingSpec;
    /// Returns the spec for changing it.
    fn spec_mut(&mut self) -> &mut ResourceBindingSpec;
    /// Returns the status.
    fn status(&self) -> &ResourceBindingStatus;
    /// Returns the status for changing it.
    fn status_mut(&mut self) -> &mut ResourceBindingStatus;

    /// Returns the metadata.
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }

    /// Returns the metadata for changing it.
    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        self.meta_mut()
    }

    /// Returns the UUID that identifies the binding on itself, its Works and the objects in members.
    fn permanent_id(&self) -> &str {
        let labels = self.metadata().labels.as_ref();
        labels.and_then(|labels| labels.get(Self::PERMANENT_ID)).map_or("", String::as_str)
    }

    /// Returns the annotations by which Works and objects in members refer back to the binding.
    fn back_references(&self) -> Vec<(&'static str, String)> {
        let name = self.metadata().name.clone().unwrap_or_default();
        if Self::NAMESPACED {
            let namespace = self.metadata().namespace.clone().unwrap_or_default();
            vec![
                (labels::annotations::RESOURCE_BINDING_NAMESPACE, namespace),
                (labels::annotations::RESOURCE_BINDING_NAME, name),
            ]
        } else {
            vec![(labels::annotations::CLUSTER_RESOURCE_BINDING_NAME, name)]
        }
    }
}

macro_rules! binding {
    ($kind:ident, $permanent_id:path, $finalizer:path) => {
        impl Binding for $kind {
            const PERMANENT_ID: &'static str = $permanent_id;
            const FINALIZER: &'static str = $finalizer;

            fn spec(&self) -> &ResourceBindingSpec {
                &self.spec
            }
            fn spec_mut(&mut self) -> &mut ResourceBindingSpec {
                &mut self.spec
            }
            fn status(&self) -> &ResourceBindingStatus {
                &self.status
            }
            fn status_mut(&mut self) -> &mut ResourceBindingStatus {
                &mut self.status
            }
        }
    };
}

binding!(ResourceBinding, labels::RESOURCE_BINDING_PERMANENT_ID, labels::finalizers::BINDING);
binding!(
    ClusterResourceBinding,
    labels::CLUSTER_RESOURCE_BINDING_PERMANENT_ID,
    labels::finalizers::CLUSTER_RESOURCE_BINDING
);
