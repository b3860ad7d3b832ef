//! Feature gates: what can be switched on and off with `--feature-gates=Name=true,Other=false`.
//!
//! Gates change behaviour, never schemas: a gated field is always accepted and stored.

use std::collections::BTreeMap;

/// How far a feature has matured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May change or go away; off unless asked for.
    Alpha,
    /// Well tested; its default may still change.
    Beta,
}

impl Stage {
    /// Returns the stage as it stands in help texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
        }
    }
}

/// A feature that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The name on the command line.
    pub name: &'static str,
    /// Whether it is on unless told otherwise.
    pub default: bool,
    /// How far it has matured.
    pub stage: Stage,
    /// What it controls, for help texts.
    pub about: &'static str,
}

macro_rules! gates {
    ($($constant:ident = $name:literal, $default:literal, $stage:ident, $about:literal;)+) => {
        $(
            #[doc = concat!("The gate `", $name, "`: ", $about, ".")]
            pub const $constant: Gate =
                Gate { name: $name, default: $default, stage: Stage::$stage, about: $about };
        )+

        /// Every gate.
        pub const ALL: &[Gate] = &[$($constant),+];
    };
}

gates! {
    FAILOVER = "Failover", false, Beta, "moving workloads away from failed clusters";
    GRACEFUL_EVICTION = "GracefulEviction", true, Beta, "keeping the old copy until the new one is healthy";
    PROPAGATE_DEPS = "PropagateDeps", true, Beta, "propagating what a resource refers to";
    CUSTOMIZED_CLUSTER_RESOURCE_MODELING = "CustomizedClusterResourceModeling", true, Beta,
        "counting free nodes by size, and estimating with it";
    POLICY_PREEMPTION = "PropagationPolicyPreemption", false, Alpha, "policies that take resources from others";
    MULTI_CLUSTER_SERVICE = "MultiClusterService", false, Alpha, "the MultiClusterService controllers";
    RESOURCE_QUOTA_ESTIMATE = "ResourceQuotaEstimate", false, Alpha, "quotas in the accurate estimator";
    STATEFUL_FAILOVER_INJECTION = "StatefulFailoverInjection", false, Alpha,
        "handing state to the new copy on failover";
    PRIORITY_BASED_SCHEDULING = "PriorityBasedScheduling", true, Beta, "priorities in the scheduling queue";
    FEDERATED_QUOTA_ENFORCEMENT = "FederatedQuotaEnforcement", false, Alpha,
        "refusing schedules that exceed a FederatedResourceQuota";
    LOGGING_ALPHA_OPTIONS = "LoggingAlphaOptions", false, Alpha, "accepted for compatibility, without effect";
    LOGGING_BETA_OPTIONS = "LoggingBetaOptions", true, Beta, "accepted for compatibility, without effect";
    CONTEXTUAL_LOGGING = "ContextualLogging", true, Beta, "accepted for compatibility, without effect";
    MULTIPLE_POD_TEMPLATES_SCHEDULING = "MultiplePodTemplatesScheduling", false, Alpha,
        "workloads with several pod templates";
    CONTROLLER_PRIORITY_QUEUE = "ControllerPriorityQueue", true, Beta,
        "letting changes overtake the initial listing in controllers";
    WORKLOAD_AFFINITY = "WorkloadAffinity", false, Alpha, "rules between workloads";
    SCHEDULING_OVERCOMMIT_PROTECTION = "SchedulingOvercommitProtection", false, Alpha,
        "counting decisions that are still on their way";
}

/// Name that stands for every alpha gate at once.
pub const ALL_ALPHA: &str = "AllAlpha";
/// Name that stands for every beta gate at once.
pub const ALL_BETA: &str = "AllBeta";

/// Why a `--feature-gates` value was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An entry without an equals sign.
    #[error("missing bool value for {0}")]
    MissingValue(String),
    /// A value that is not a boolean.
    #[error("invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    InvalidValue {
        /// The gate.
        name: String,
        /// What was given for it.
        value: String,
    },
    /// A name that is not a gate.
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
}

/// Which features are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    chosen: BTreeMap<&'static str, bool>,
}

impl Features {
    /// Parses the value of `--feature-gates`, such as `Failover=true,WorkloadAffinity=true`.
    ///
    /// A group (`AllAlpha`, `AllBeta`) gives way to what is said about a single gate, whatever the order.
    ///
    /// # Errors
    /// On an unknown gate, a missing or a non-boolean value.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut features = Self::default();
        features.set(text)?;
        Ok(features)
    }

    /// Applies a further `--feature-gates` value on top of what was said before.
    ///
    /// # Errors
    /// As [`Features::parse`]; nothing is changed then.
    pub fn set(&mut self, text: &str) -> Result<(), Error> {
        let mut single = BTreeMap::new();
        let mut grouped = Vec::new();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let (name, value) =
                entry.split_once('=').ok_or_else(|| Error::MissingValue(entry.trim().to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            let on = parse_bool(value)
                .ok_or_else(|| Error::InvalidValue { name: name.to_owned(), value: value.to_owned() })?;
            match name {
                ALL_ALPHA => grouped.push((Stage::Alpha, on)),
                ALL_BETA => grouped.push((Stage::Beta, on)),
                _ => {
                    let gate = find(name).ok_or_else(|| Error::Unknown(name.to_owned()))?;
                    single.insert(gate.name, on);
                }
            }
        }
        for (stage, on) in grouped {
            for gate in ALL.iter().filter(|gate| gate.stage == stage) {
                // What was said earlier about a single gate outlives a later group.
                self.chosen.entry(gate.name).or_insert(on);
            }
        }
        self.chosen.extend(single);
        Ok(())
    }

    /// Returns whether a feature is on.
    pub fn enabled(&self, gate: Gate) -> bool {
        self.chosen.get(gate.name).copied().unwrap_or(gate.default)
    }

    /// Returns these features with one switched, for tests and embedding.
    pub fn with(mut self, gate: Gate, on: bool) -> Self {
        self.chosen.insert(gate.name, on);
        self
    }
}

/// Returns the gate of this name.
pub fn find(name: &str) -> Option<Gate> {
    ALL.iter().copied().find(|gate| gate.name == name)
}

/// Accepts what Go's `strconv.ParseBool` accepts.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_until_something_else_is_said() {
        let features = Features::default();
        assert!(!features.enabled(FAILOVER));
        assert!(features.enabled(GRACEFUL_EVICTION));
        assert!(features.enabled(PRIORITY_BASED_SCHEDULING));
        let features = Features::parse("Failover=true,GracefulEviction=false").unwrap();
        assert!(features.enabled(FAILOVER));
        assert!(!features.enabled(GRACEFUL_EVICTION));
    }

    #[test]
    fn a_group_gives_way_to_a_single_gate_in_any_order() {
        for text in ["AllAlpha=true,WorkloadAffinity=false", "WorkloadAffinity=false,AllAlpha=true"] {
            let features = Features::parse(text).unwrap();
            assert!(features.enabled(MULTI_CLUSTER_SERVICE));
            assert!(!features.enabled(WORKLOAD_AFFINITY));
            assert!(!features.enabled(FAILOVER), "a beta gate is not touched by AllAlpha");
        }
    }

    #[test]
    fn bad_input_is_refused_by_name() {
        assert_eq!(Features::parse("Nope=true"), Err(Error::Unknown("Nope".into())));
        assert_eq!(Features::parse("Failover"), Err(Error::MissingValue("Failover".into())));
        assert_eq!(
            Features::parse("Failover=maybe"),
            Err(Error::InvalidValue { name: "Failover".into(), value: "maybe".into() })
        );
        assert!(Features::parse("PriorityBasedPreemptiveScheduling=true").is_err());
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut features = Features::parse("Failover=true").unwrap();
        let before = features.clone();
        assert!(features.set("Failover=false,Nope=true").is_err());
        assert_eq!(features, before);
    }

    #[test]
    fn seventeen_gates_with_unique_names() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|gate| gate.name).collect();
        assert_eq!(names.len(), 17);
    }
}
