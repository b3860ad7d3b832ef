//! Taints of clusters and who tolerates them.

use std::fmt;

use k8s_openapi::api::core::v1::Toleration;

/// A taint that can keep workloads away.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Taint {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) effect: String,
}

impl Taint {
    /// Tells whether the scheduler heeds taints of this effect; PreferNoSchedule means nothing to clusters.
    pub(crate) fn repels(effect: &str) -> bool {
        matches!(effect, "NoSchedule" | "NoExecute")
    }

    pub(crate) fn tolerated_by(&self, toleration: &Toleration) -> bool {
        placement::taints::tolerates(toleration, &self.key, &self.value, &self.effect)
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value.is_empty(), self.effect.is_empty()) {
            (true, true) => write!(out, "{}", self.key),
            (true, false) => write!(out, "{}:{}", self.key, self.effect),
            (false, _) => write!(out, "{}={}:{}", self.key, self.value, self.effect),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into() }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: some(key),
            operator: some(operator),
            value: some(value),
            effect: some(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn a_taint_prints_as_kubernetes_prints_it() {
        assert_eq!(taint("k", "v", "NoSchedule").to_string(), "k=v:NoSchedule");
        assert_eq!(taint("k", "", "NoExecute").to_string(), "k:NoExecute");
        assert_eq!(taint("k", "", "").to_string(), "k");
        assert_eq!(taint("k", "v", "").to_string(), "k=v:");
    }

    #[test]
    fn toleration_compares_effect_key_and_value() {
        let subject = taint("k", "v", "NoSchedule");
        for yes in [
            toleration("k", "", "v", ""),
            toleration("k", "Equal", "v", "NoSchedule"),
            toleration("k", "Exists", "", ""),
            toleration("", "Exists", "", ""),
            toleration("", "", "v", ""),
        ] {
            assert!(subject.tolerated_by(&yes), "{yes:?}");
        }
        for no in [
            toleration("k", "", "", ""),
            toleration("k", "Equal", "w", ""),
            toleration("j", "Exists", "", ""),
            toleration("k", "Exists", "", "NoExecute"),
            toleration("k", "Gt", "0", ""),
            toleration("k", "Lt", "9", ""),
        ] {
            assert!(!subject.tolerated_by(&no), "{no:?}");
        }
    }
}
