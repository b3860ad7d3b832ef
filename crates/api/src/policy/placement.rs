//! Where a workload may run: candidate clusters, tolerations, spreading, and how replicas are shared out.
//!
//! The order of fields in [`Placement`] is part of the contract: its JSON is recorded in the annotation
//! `policy.karmada.io/applied-placement` and compared byte by byte to find out whether a placement changed.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::wire::{choice, record};

record! {
    /// Where a resource goes and how its replicas are divided among the clusters.
    pub struct Placement {
        /// The one group of candidate clusters. Excludes clusterAffinities. With neither of them set, every
        /// cluster is a candidate.
        "clusterAffinity" optional cluster_affinity: Option<ClusterAffinity>;
        /// Several groups of candidate clusters, in order of preference; the scheduler takes the first group that
        /// can hold the workload. Excludes clusterAffinity.
        "clusterAffinities" optional cluster_affinities: Vec<ClusterAffinityTerm>;
        /// Cluster taints that the workload tolerates.
        "clusterTolerations" optional cluster_tolerations: Vec<Toleration>;
        /// How many groups of clusters the workload has to be spread over.
        "spreadConstraints" optional spread_constraints: Vec<SpreadConstraint>;
        /// How replicas are distributed when a workload runs in more than one cluster. Absent means that every
        /// cluster gets the full count.
        "replicaScheduling" optional replica_scheduling: Option<ReplicaSchedulingStrategy>;
        /// Rules between workloads: which ones must share clusters and which ones must not.
        "workloadAffinity" optional workload_affinity: Option<WorkloadAffinity>;
    }
}

record! {
    /// A choice of clusters by label, field and name. What is set must all match; nothing set means every
    /// cluster.
    pub struct ClusterAffinity {
        /// Selects clusters by the labels of their Cluster objects.
        "labelSelector" optional label_selector: Option<LabelSelector>;
        /// Selects clusters by the fields provider, region and zone of their Cluster objects.
        "fieldSelector" optional field_selector: Option<FieldSelector>;
        /// Selects clusters by name; empty means any name.
        "clusterNames" optional cluster_names: Vec<String>;
        /// Names of clusters that are never selected, whatever the other criteria say.
        "exclude" optional exclude: Vec<String>;
    }
}

record! {
    /// A selection by fields of the Cluster object.
    pub struct FieldSelector {
        /// Requirements on the keys provider, region and zone with operator In or NotIn; all of them must hold.
        "matchExpressions" optional match_expressions: Vec<NodeSelectorRequirement>;
    }
}

record! {
    /// A named group of candidate clusters.
    pub struct ClusterAffinityTerm {
        /// The name of the group, unique among the groups of the placement.
        "affinityName" required affinity_name: String { min_length(1), max_length(32) };
        /// The clusters of the group.
        inline affinity: ClusterAffinity;
        /// Further tiers of clusters that are added, in order, when the group lacks capacity, and released in
        /// reverse order.
        "overflowAffinities" optional overflow_affinities: Vec<OverflowClusterAffinity>;
    }
}

record! {
    /// A tier of clusters that extends a group when its capacity runs out.
    pub struct OverflowClusterAffinity {
        /// The name of the tier, unique among the tiers of the group and different from the group's own name.
        "affinityName" required affinity_name: String { min_length(1), max_length(32) };
        /// The clusters of the tier. A cluster counts only in the first tier that lists it.
        inline affinity: ClusterAffinity;
    }
}

choice! {
    /// A field of the Cluster object by which clusters can be grouped.
    pub enum SpreadFieldValue {
        /// Every cluster is a group of its own.
        Cluster = "cluster",
        /// Clusters of one region form a group.
        Region = "region",
        /// Clusters of one zone form a group.
        Zone = "zone",
        /// Clusters of one provider form a group.
        Provider = "provider",
    }
}

record! {
    /// A limit on the number of cluster groups a workload is spread over.
    pub struct SpreadConstraint {
        /// Groups clusters by this field. Excludes spreadByLabel; with neither set, cluster is assumed.
        "spreadByField" optional spread_by_field: Option<SpreadFieldValue>;
        /// Groups clusters by the value of this label. Excludes spreadByField.
        "spreadByLabel" optional spread_by_label: String;
        /// The largest number of groups to select; absent or 0 selects none.
        "maxGroups" optional max_groups: i64 { no_format() };
        /// The smallest number of groups to select; set to 1 when absent.
        "minGroups" optional min_groups: i64 { no_format() };
    }
}

choice! {
    /// Whether clusters get copies or shares of a workload's replicas.
    pub enum ReplicaSchedulingType {
        /// Every cluster runs the full number of replicas.
        Duplicated = "Duplicated",
        /// The replicas are divided among the clusters.
        Divided = "Divided",
    }
}

choice! {
    /// How divided replicas are laid out.
    pub enum ReplicaDivisionPreference {
        /// As few clusters as capacity allows.
        Aggregated = "Aggregated",
        /// In proportion to the weights of the clusters.
        Weighted = "Weighted",
    }
}

choice! {
    /// What a dynamic weight is computed from.
    pub enum DynamicWeightFactor {
        /// The number of further replicas that fit into the cluster.
        AvailableReplicas = "AvailableReplicas",
    }
}

record! {
    /// How the replicas of a workload are distributed over the selected clusters.
    pub struct ReplicaSchedulingStrategy {
        /// Duplicated gives every cluster all replicas, Divided shares them out.
        "replicaSchedulingType" optional replica_scheduling_type: Option<ReplicaSchedulingType> { defaults_to("Divided") };
        /// For Divided only: Aggregated packs replicas into few clusters, Weighted splits them by weight.
        "replicaDivisionPreference" optional replica_division_preference: Option<ReplicaDivisionPreference>;
        /// The weights for Weighted. Absent means that all clusters weigh the same.
        "weightPreference" optional weight_preference: Option<ClusterPreferences>;
    }
}

record! {
    /// Weights of clusters.
    pub struct ClusterPreferences {
        /// Fixed weights.
        "staticWeightList" optional static_weight_list: Vec<StaticClusterWeight>;
        /// Computes the weights at scheduling time; when set, the fixed weights are ignored.
        "dynamicWeight" optional dynamic_weight: Option<DynamicWeightFactor>;
    }
}

record! {
    /// The weight of some clusters.
    pub struct StaticClusterWeight {
        /// The clusters that have this weight.
        "targetCluster" required target_cluster: ClusterAffinity;
        /// The weight of each of these clusters.
        "weight" required weight: i64 { minimum(1) };
    }
}

record! {
    /// Rules between workloads that are grouped by a label.
    pub struct WorkloadAffinity {
        /// Run only where another workload of the same group runs. The first workload of a group is not
        /// restricted.
        "affinity" optional affinity: Option<WorkloadAffinityTerm>;
        /// Do not run where another workload of the same group runs.
        "antiAffinity" optional anti_affinity: Option<WorkloadAffinityTerm>;
    }
}

record! {
    /// How workloads are put into groups.
    #[derive(Eq)]
    pub struct WorkloadAffinityTerm {
        /// The label key of the resource template whose value names the group. Groups do not reach across
        /// namespaces.
        "groupByLabelKey" required group_by_label_key: String;
    }
}
