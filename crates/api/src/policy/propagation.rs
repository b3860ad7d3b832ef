//! PropagationPolicy and ClusterPropagationPolicy: which resources go to which clusters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{FailoverBehavior, Placement};
use crate::labels;
use crate::wire::{Kind, choice, kind, record};

kind! {
    /// Says which resources of its namespace go to which clusters.
    pub struct PropagationPolicy in "policy.karmada.io" / "v1alpha1" as "propagationpolicies", Namespaced {
        /// What is propagated, where to and how.
        "spec" required spec: PropagationSpec;
    }
}

kind! {
    /// Says which cluster-scoped resources, and which resources of any namespace, go to which clusters. Does not
    /// reach into the namespaces that the control plane keeps for itself.
    pub struct ClusterPropagationPolicy in "policy.karmada.io" / "v1alpha1"
        as "clusterpropagationpolicies", Cluster
    {
        /// What is propagated, where to and how.
        "spec" required spec: PropagationSpec;
    }
}

choice! {
    /// Whether a policy may take resources from another one.
    pub enum PreemptionBehavior {
        /// It takes over what weaker policies have claimed.
        Always = "Always",
        /// It leaves claimed resources alone.
        Never = "Never",
    }
}

choice! {
    /// What to do when a member cluster already has an object of that name which is not ours.
    pub enum ConflictResolution {
        /// Leave it alone and report the conflict.
        Abort = "Abort",
        /// Take it over.
        Overwrite = "Overwrite",
    }
}

choice! {
    /// When a change of a policy takes effect.
    pub enum ActivationPreference {
        /// With the next change of the resource itself.
        Lazy = "Lazy",
    }
}

choice! {
    /// Where a priority class is looked up.
    pub enum PriorityClassSource {
        /// A `PriorityClass` of `scheduling.k8s.io/v1` in the control plane.
        KubePriorityClass = "KubePriorityClass",
        /// The priority class named in the pod template. Declared upstream, not implemented.
        PodPriorityClass = "PodPriorityClass",
        /// A priority class of the federation. Declared upstream, not implemented.
        FederatedPriorityClass = "FederatedPriorityClass",
    }
}

record! {
    /// What is propagated, where to and how.
    pub struct PropagationSpec {
        /// The resources this policy is for. A resource that matches any of the selectors is propagated.
        "resourceSelectors" required resource_selectors: Vec<ResourceSelector> { min_items(1) };
        /// Without effect; kept for old manifests. Use propagateDeps.
        "association" optional association: bool;
        /// Also propagates what the resource refers to, such as ConfigMaps, Secrets or ServiceAccounts, to the same
        /// clusters.
        "propagateDeps" optional propagate_deps: bool;
        /// The clusters the resources go to and how replicas are shared out.
        "placement" always placement: Placement;
        /// Which policy wins when several select the same resource: the higher number. May be negative.
        "priority" optional priority: Option<i32> { defaults_to(0) };
        /// Whether this policy takes over resources that weaker policies have already claimed.
        "preemption" optional preemption: Option<PreemptionBehavior> { defaults_to("Never") };
        /// Names of override policies that must exist before anything is propagated: OverridePolicies of the same
        /// namespace for a PropagationPolicy, ClusterOverridePolicies for a ClusterPropagationPolicy.
        "dependentOverrides" optional dependent_overrides: Vec<String>;
        /// The scheduler that places the resources. Cannot be changed later.
        "schedulerName" optional scheduler_name: String { defaults_to("default-scheduler") };
        /// What happens when a workload or its cluster fails. Absent means no failover.
        "failover" optional failover: Option<FailoverBehavior>;
        /// What to do when a member cluster already has an object of that name that is not managed from here: Abort
        /// leaves it alone, Overwrite takes it over.
        "conflictResolution" optional conflict_resolution: Option<ConflictResolution> { defaults_to("Abort") };
        /// When a change of this policy takes effect: Lazy waits for the next change of the resource, absent means at
        /// once.
        "activationPreference" optional activation_preference: Option<ActivationPreference>;
        /// Pauses the dispatching of changes to member clusters.
        "suspension" optional suspension: Option<Suspension>;
        /// Keeps the objects in member clusters when the resource is deleted here. Deleting the policy never removes
        /// them.
        "preserveResourcesOnDeletion" optional preserve_resources_on_deletion: Option<bool>;
        /// The priority of the resources in the scheduling queue.
        "schedulePriority" optional schedule_priority: Option<SchedulePriority>;
    }
}

record! {
    /// A selection of resources of one kind.
    pub struct ResourceSelector {
        /// The API version of the resources, compared as text.
        "apiVersion" required api_version: String;
        /// The kind of the resources.
        "kind" required kind: String;
        /// The namespace of the resources. Empty means the policy's own namespace, or any namespace for the
        /// cluster-scoped policies.
        "namespace" optional namespace: String;
        /// The name of the one resource that is meant. When set, labelSelector is ignored.
        "name" optional name: String;
        /// Selects resources by label; used only without name.
        "labelSelector" optional label_selector: Option<LabelSelector>;
    }
}

record! {
    /// Pauses dispatching, everywhere or to some clusters.
    #[derive(Eq)]
    pub struct Suspension {
        /// Stops dispatching to every cluster.
        "dispatching" optional dispatching: Option<bool>;
        /// Stops dispatching to these clusters only.
        "dispatchingOnClusters" optional dispatching_on_clusters: Option<SuspendClusters>;
    }
}

record! {
    /// The clusters for which dispatching is paused.
    #[derive(Eq)]
    pub struct SuspendClusters {
        /// Names of clusters.
        "clusterNames" optional cluster_names: Vec<String>;
    }
}

record! {
    /// Where the priority in the scheduling queue comes from.
    #[derive(Eq)]
    pub struct SchedulePriority {
        /// Where the priority class is looked up. KubePriorityClass, a PriorityClass of scheduling.k8s.io/v1, is the
        /// only source.
        "priorityClassSource" required priority_class_source: PriorityClassSource {
            one_of(&["KubePriorityClass"])
        };
        /// The name of the priority class whose value becomes the priority.
        "priorityClassName" required priority_class_name: String;
    }
}

/// What the two kinds of propagation policy have in common, for code that serves both.
pub trait Propagation: Kind + Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The label with the UUID of a policy, on itself, the templates it claimed and their bindings.
    const PERMANENT_ID: &'static str;
    /// The finalizer that keeps a policy until its templates are released.
    const FINALIZER: &'static str;

    /// Returns the spec.
    fn spec(&self) -> &PropagationSpec;
    /// Returns the spec for changing it.
    fn spec_mut(&mut self) -> &mut PropagationSpec;
}

impl Propagation for PropagationPolicy {
    const PERMANENT_ID: &'static str = labels::PROPAGATION_POLICY_PERMANENT_ID;
    const FINALIZER: &'static str = labels::finalizers::PROPAGATION_POLICY;

    fn spec(&self) -> &PropagationSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut PropagationSpec {
        &mut self.spec
    }
}

impl Propagation for ClusterPropagationPolicy {
    const PERMANENT_ID: &'static str = labels::CLUSTER_PROPAGATION_POLICY_PERMANENT_ID;
    const FINALIZER: &'static str = labels::finalizers::CLUSTER_PROPAGATION_POLICY;

    fn spec(&self) -> &PropagationSpec {
        &self.spec
    }
    fn spec_mut(&mut self) -> &mut PropagationSpec {
        &mut self.spec
    }
}

impl PropagationSpec {
    /// Returns the priority that counts when several policies select a resource; absent means 0.
    pub fn explicit_priority(&self) -> i32 {
        self.priority.unwrap_or(0)
    }
}
