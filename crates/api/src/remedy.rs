//! `remedy.karmada.io/v1alpha1`: what is to be done about clusters in a certain condition.

use crate::wire::{choice, kind, record};

/// The API group of this module.
pub const GROUP: &str = "remedy.karmada.io";

/// The one action that is defined: no traffic is sent to the cluster.
pub const TRAFFIC_CONTROL: &str = "TrafficControl";

kind! {
    /// Says what is to be done about clusters in a certain condition.
    pub struct Remedy in "remedy.karmada.io" / "v1alpha1" as "remedies", Cluster {
        /// Which clusters, which conditions, which actions.
        "spec" required spec: RemedySpec;
    }
}

choice! {
    /// How a condition's status relates to a value.
    pub enum ClusterConditionOperator {
        /// It is that value.
        Equal = "Equal",
        /// It is another value.
        NotEqual = "NotEqual",
    }
}

record! {
    /// Which clusters, which conditions, which actions.
    #[derive(Eq)]
    pub struct RemedySpec {
        /// The clusters this is about; absent means all.
        "clusterAffinity" optional cluster_affinity: Option<ClusterAffinity>;
        /// When to act: any of these is enough; absent means always, an empty list never.
        "decisionMatches" optional decision_matches: Option<Vec<DecisionMatch>>;
        /// What to do. TrafficControl is the only action: it takes traffic away from the cluster.
        "actions" optional actions: Vec<String>;
    }
}

record! {
    /// The clusters that a Remedy is about.
    #[derive(Eq)]
    pub struct ClusterAffinity {
        /// Names of clusters; an empty list means none.
        "clusterNames" optional cluster_names: Vec<String>;
    }
}

record! {
    /// One reason to act.
    #[derive(Eq)]
    pub struct DecisionMatch {
        /// A condition of the cluster.
        "clusterConditionMatch" optional cluster_condition_match: Option<ClusterConditionRequirement>;
    }
}

record! {
    /// A requirement on a condition of a cluster.
    #[derive(Eq)]
    pub struct ClusterConditionRequirement {
        /// The type of the condition, for example ServiceDomainNameResolutionReady.
        "conditionType" required condition_type: String;
        /// Whether the status must be equal to conditionStatus or different from it.
        "operator" required operator: ClusterConditionOperator;
        /// The status to compare with: True, False or Unknown.
        "conditionStatus" required condition_status: String;
    }
}
