//! ClusterTaintPolicy: taints that clusters get and lose as their conditions change.

use super::ClusterAffinity;
use crate::wire::{choice, kind, record};

kind! {
    /// Taints clusters according to their conditions. Taints stay when the policy is deleted or no longer matches.
    pub struct ClusterTaintPolicy in "policy.karmada.io" / "v1alpha1" as "clustertaintpolicies", Cluster {
        /// Which taints are set on which clusters, and when.
        "spec" required spec: ClusterTaintPolicySpec;
    }
}

choice! {
    /// How a condition's status relates to a set of values.
    pub enum MatchConditionOperator {
        /// It is one of them.
        In = "In",
        /// It is none of them.
        NotIn = "NotIn",
    }
}

record! {
    /// Which taints are set on which clusters, and when.
    pub struct ClusterTaintPolicySpec {
        /// The clusters this policy is for; absent means all.
        "targetClusters" optional target_clusters: Option<ClusterAffinity>;
        /// Adds the taints when all of these hold; empty means never.
        "addOnConditions" optional add_on_conditions: Vec<MatchCondition>;
        /// Removes the taints when all of these hold; looked at after addOnConditions; empty means never.
        "removeOnConditions" optional remove_on_conditions: Vec<MatchCondition>;
        /// The taints to add and remove. An existing taint with the same key and effect is not overwritten.
        "taints" required taints: Vec<Taint> { min_items(1) };
    }
}

record! {
    /// A requirement on a condition of the Cluster object. A condition that is missing never matches.
    #[derive(Eq)]
    pub struct MatchCondition {
        /// The type of the condition.
        "conditionType" required condition_type: String;
        /// How the status of the condition relates to the values: In or NotIn.
        "operator" required operator: MatchConditionOperator { any_text() };
        /// The values to compare with: True, False, Unknown.
        "statusValues" required status_values: Vec<String>;
    }
}

record! {
    /// A taint as a policy describes it.
    #[derive(Eq)]
    pub struct Taint {
        /// The name of the taint.
        "key" required key: String;
        /// What the taint does to workloads that do not tolerate it.
        "effect" required effect: String;
        /// A value that tolerations can ask for.
        "value" optional value: String;
    }
}
