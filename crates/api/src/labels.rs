//! Labels, annotations and finalizers that objects carry.
//!
//! A key may be a label in one place and an annotation in another (`multiclusterservice.karmada.io/name` is both),
//! hence one constant per key; its documentation says where it stands and what its value is.

/// On PropagationPolicies, the templates they claimed and the bindings of those: the UUID of the policy.
pub const PROPAGATION_POLICY_PERMANENT_ID: &str = "propagationpolicy.karmada.io/permanent-id";
/// On ClusterPropagationPolicies, the templates they claimed and the bindings of those: the UUID of the policy.
pub const CLUSTER_PROPAGATION_POLICY_PERMANENT_ID: &str = "clusterpropagationpolicy.karmada.io/permanent-id";
/// On ResourceBindings, their Works and the manifests in them: the UUID of the binding.
pub const RESOURCE_BINDING_PERMANENT_ID: &str = "resourcebinding.karmada.io/permanent-id";
/// On ClusterResourceBindings, their Works and the manifests in them: the UUID of the binding.
pub const CLUSTER_RESOURCE_BINDING_PERMANENT_ID: &str = "clusterresourcebinding.karmada.io/permanent-id";
/// On Works and the manifests in them: the UUID of the Work.
pub const WORK_PERMANENT_ID: &str = "work.karmada.io/permanent-id";
/// On MultiClusterServices, their Service, its binding and their Works: the UUID of the MultiClusterService.
pub const MULTI_CLUSTER_SERVICE_PERMANENT_ID: &str = "multiclusterservice.karmada.io/permanent-id";

/// Label on Works, annotation on the Service and its binding: the namespace of the MultiClusterService.
pub const MULTI_CLUSTER_SERVICE_NAMESPACE: &str = "multiclusterservice.karmada.io/namespace";
/// Label on Works, annotation on the Service and its binding: the name of the MultiClusterService.
pub const MULTI_CLUSTER_SERVICE_NAME: &str = "multiclusterservice.karmada.io/name";
/// On ResourceBindings that the MultiClusterService controller made; the value is `MultiClusterService`.
pub const BINDING_MANAGED_BY: &str = "binding.karmada.io/managed-by";
/// On templates that something other than a policy has claimed; any value keeps policies away.
pub const RESOURCE_TEMPLATE_CLAIMED_BY: &str = "resourcetemplate.karmada.io/claimed-by";
/// On attached ResourceBindings; followed by [`crate::names::depended_by_hash`]: the UUID of the binding served.
pub const DEPENDED_BY_PREFIX: &str = "resourcebinding.karmada.io/depended-by-";

/// On Works with an EndpointSlice that was collected for a ServiceExport: the namespace of the Service.
pub const ENDPOINT_SLICE_NAMESPACE: &str = "endpointslice.karmada.io/namespace";
/// On Works with an EndpointSlice that was collected for a ServiceExport: the name of the Service.
pub const ENDPOINT_SLICE_NAME: &str = "endpointslice.karmada.io/name";
/// On Works with a collected EndpointSlice: `ServiceExport`, `MultiClusterService`, or both joined by a dot.
pub const ENDPOINT_SLICE_WORK_MANAGED_BY: &str = "endpointslice.karmada.io/managed-by";
/// On EndpointSlices that the control plane writes; Kubernetes' own label.
pub const ENDPOINT_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The value of [`ENDPOINT_SLICE_MANAGED_BY`] on slices brought to a consumer cluster.
pub const ENDPOINT_SLICE_DISPATCH_CONTROLLER: &str = "endpointslice-dispatch-controller.karmada.io";
/// The value of [`ENDPOINT_SLICE_MANAGED_BY`] on slices derived from collected ones.
pub const ENDPOINT_SLICE_CONTROLLER: &str = "endpointslice-controller.karmada.io";

/// On Works with a ResourceQuota: the namespace of the FederatedResourceQuota.
pub const FEDERATED_RESOURCE_QUOTA_NAMESPACE: &str = "federatedresourcequota.karmada.io/namespace";
/// On Works with a ResourceQuota: the name of the FederatedResourceQuota.
pub const FEDERATED_RESOURCE_QUOTA_NAME: &str = "federatedresourcequota.karmada.io/name";

/// On objects in member clusters that are managed from the control plane; the value is `true`.
pub const MANAGED: &str = "karmada.io/managed";
/// On namespaces, Secrets and RBAC objects that the system made for itself; the value is `true`.
pub const SYSTEM: &str = "karmada.io/system";
/// On objects that installers made to bootstrap a control plane.
pub const BOOTSTRAPPING: &str = "karmada.io/bootstrapping";
/// On host nodes that hold etcd data.
pub const ETCD: &str = "karmada.io/etcd";
/// The value of [`MANAGED`] and [`SYSTEM`].
pub const TRUE: &str = "true";

/// On Namespaces, by users: `true`, in any case of letters, keeps the namespace out of member clusters.
pub const SKIP_AUTO_PROPAGATION: &str = "namespace.karmada.io/skip-auto-propagation";
/// On templates: `true` leaves the replica count of member objects alone.
pub const RETAIN_REPLICAS: &str = "resourcetemplate.karmada.io/retain-replicas";
/// On any object, by users: [`DELETION_PROTECTION_ALWAYS`] forbids deletion.
pub const DELETION_PROTECTED: &str = "resourcetemplate.karmada.io/deletion-protected";
/// The value of [`DELETION_PROTECTED`] that protects; every other value does not.
pub const DELETION_PROTECTION_ALWAYS: &str = "Always";

/// The annotations.
pub mod annotations {
    /// On templates and bindings claimed by a PropagationPolicy: its namespace.
    pub const PROPAGATION_POLICY_NAMESPACE: &str = "propagationpolicy.karmada.io/namespace";
    /// On templates and bindings claimed by a PropagationPolicy: its name.
    pub const PROPAGATION_POLICY_NAME: &str = "propagationpolicy.karmada.io/name";
    /// On templates and bindings claimed by a ClusterPropagationPolicy: its name.
    pub const CLUSTER_PROPAGATION_POLICY_NAME: &str = "clusterpropagationpolicy.karmada.io/name";
    /// On Works and manifests of a ResourceBinding: its namespace.
    pub const RESOURCE_BINDING_NAMESPACE: &str = "resourcebinding.karmada.io/namespace";
    /// On Works and manifests of a ResourceBinding: its name.
    pub const RESOURCE_BINDING_NAME: &str = "resourcebinding.karmada.io/name";
    /// On Works and manifests of a ClusterResourceBinding: its name.
    pub const CLUSTER_RESOURCE_BINDING_NAME: &str = "clusterresourcebinding.karmada.io/name";
    /// On manifests and derived EndpointSlices: the namespace of the Work.
    pub const WORK_NAMESPACE: &str = "work.karmada.io/namespace";
    /// On manifests and derived EndpointSlices: the name of the Work.
    pub const WORK_NAME: &str = "work.karmada.io/name";
    /// On templates (by users), Works and manifests: [`CONFLICT_OVERWRITE`] or [`CONFLICT_ABORT`].
    pub const CONFLICT_RESOLUTION: &str = "work.karmada.io/conflict-resolution";
    /// The value of [`CONFLICT_RESOLUTION`] that takes over unmanaged objects.
    pub const CONFLICT_OVERWRITE: &str = "overwrite";
    /// The value of [`CONFLICT_RESOLUTION`] that leaves unmanaged objects alone.
    pub const CONFLICT_ABORT: &str = "abort";
    /// On manifests: the UID of the template, by which events find it.
    pub const TEMPLATE_UID: &str = "resourcetemplate.karmada.io/uid";
    /// On manifests: the generation of the template, if it has one.
    pub const TEMPLATE_GENERATION: &str = "resourcetemplate.karmada.io/generation";
    /// On manifests: the label keys that come from the template, sorted and joined by commas.
    pub const MANAGED_LABELS: &str = "resourcetemplate.karmada.io/managed-labels";
    /// On manifests: the annotation keys that come from the template, sorted and joined by commas.
    pub const MANAGED_ANNOTATIONS: &str = "resourcetemplate.karmada.io/managed-annotations";
    /// On bindings: the placement that was last scheduled, as JSON.
    pub const APPLIED_PLACEMENT: &str = "policy.karmada.io/applied-placement";
    /// On Works: what OverridePolicies changed, as JSON.
    pub const APPLIED_OVERRIDES: &str = "policy.karmada.io/applied-overrides";
    /// On Works: what ClusterOverridePolicies changed, as JSON.
    pub const APPLIED_CLUSTER_OVERRIDES: &str = "policy.karmada.io/applied-cluster-overrides";
    /// On Clusters that were joined because cluster-api provisioned them, ours: the object they were joined for, as
    /// `<UID of kube-system of the management cluster>/<namespace>/<name>/<UID>`. Only such Clusters are unjoined when the
    /// object is gone; whoever takes the annotation off keeps the Cluster.
    pub const JOINED_FOR: &str = "clusterapi.karmada.io/joined-for";
    /// On policies, ours: which removals are held because there are too many at once, and how to let them go.
    pub const REMOVALS_HELD: &str = "policy.karmada.io/removals-held";
    /// On policies, ours: the id of the held removals that may go on.
    pub const ALLOW_REMOVALS: &str = "policy.karmada.io/allow-removals";
    /// On independent ResourceBindings: the references to what the resource needs, as JSON.
    pub const DEPENDENCIES: &str = "resourcebinding.karmada.io/dependencies";
    /// On dispatched EndpointSlices and their Works: the cluster they come from.
    pub const PROVISION_CLUSTER: &str = "endpointslice.karmada.io/provision-cluster";
    /// On MultiClusterIngresses, ours: the clusters that take traffic from outside, joined by commas.
    pub const ENTRY_CLUSTERS: &str = "networking.karmada.io/entry-clusters";
    /// On Ingresses of MultiClusterIngresses, ours: the annotations and labels that come from there, joined by commas.
    pub const COPIED_ANNOTATIONS: &str = "networking.karmada.io/copied-annotations";
    pub const COPIED_LABELS: &str = "networking.karmada.io/copied-labels";
    /// On objects from the search cache: the cluster they come from.
    pub const CACHED_FROM_CLUSTER: &str = "resource.karmada.io/cached-from-cluster";
    /// On objects from the metrics adapter: the cluster they come from.
    pub const QUERY_FROM_CLUSTER: &str = "resource.karmada.io/query-from-cluster";
    /// Inside the metrics adapter only: a selector on its way through.
    pub const INTERNAL_SELECTOR: &str = "internal.karmada.io/selector";
    /// Inside the metrics adapter only: a namespace on its way through.
    pub const INTERNAL_NAMESPACE: &str = "internal.karmada.io/namespace";
}

/// The finalizers.
pub mod finalizers {
    /// On Clusters, until the execution namespace and its Works are gone.
    pub const CLUSTER: &str = "karmada.io/cluster-controller";
    /// On Works, until the objects in the member cluster are gone.
    pub const EXECUTION: &str = "karmada.io/execution-controller";
    /// On ResourceBindings, until their Works are gone.
    pub const BINDING: &str = "karmada.io/binding-controller";
    /// On ClusterResourceBindings, until their Works are gone.
    pub const CLUSTER_RESOURCE_BINDING: &str = "karmada.io/cluster-resource-binding-controller";
    /// On independent ResourceBindings, until attached bindings have been released.
    pub const BINDING_DEPENDENCIES: &str = "karmada.io/binding-dependencies-distributor";
    /// On PropagationPolicies, until the claimed templates have been released.
    pub const PROPAGATION_POLICY: &str = "karmada.io/propagation-policy-controller";
    /// On ClusterPropagationPolicies, until the claimed templates have been released.
    pub const CLUSTER_PROPAGATION_POLICY: &str = "karmada.io/cluster-propagation-policy-controller";
    /// On Works with an EndpointSlice collected for a ServiceExport, until derived slices are gone.
    pub const ENDPOINT_SLICE: &str = "karmada.io/endpointslice-controller";
    /// Declared upstream, set by nobody.
    pub const MCS_ENDPOINT_SLICE_COLLECT: &str = "karmada.io/mcs-endpointslice-collect-controller";
    /// On Works with an EndpointSlice collected for a MultiClusterService, until dispatched Works are gone.
    pub const MCS_ENDPOINT_SLICE_DISPATCH: &str = "karmada.io/mcs-endpointslice-dispatch-controller";
    /// On MultiClusterServices, until the Works of the Service are gone.
    pub const MULTI_CLUSTER_SERVICE: &str = "karmada.io/multiclusterservice-controller";
}
