//! ClusterTaintPolicy: no taints that drive workloads away, unless allowed; no taint twice.

use std::collections::HashMap;

use apimachinery::field::{Error, Errors, Path};
use serde_json::Value;

use api::constants::EFFECT_NO_EXECUTE;
use api::policy::{ClusterTaintPolicySpec, Taint};

use crate::request::{Denial, Settings, deny_if_any, spec};

pub(crate) fn validate(object: &Value, settings: &Settings) -> Result<(), Denial> {
    let policy: ClusterTaintPolicySpec = spec(object)?;
    deny_if_any(&check(&policy.taints, settings.allow_no_execute_taint_policy))
}

fn check(taints: &[Taint], allow_no_execute: bool) -> Errors {
    let mut errors = Errors::new();
    // Where each taint comes last.
    let last: HashMap<(&str, &str), usize> = taints
        .iter()
        .enumerate()
        .map(|(index, taint)| ((taint.key.as_str(), taint.effect.as_str()), index))
        .collect();
    for (index, taint) in taints.iter().enumerate() {
        let at = Path::new("spec").child("taints").index(index);
        if !allow_no_execute && taint.effect == EFFECT_NO_EXECUTE {
            errors.push(Error::forbidden(
                &at,
                "Configuring taint with NoExecute effect is not allowed, this capability must be explicitly enabled by \
                 administrators through command-line flags",
            ));
        }
        let again = last.get(&(taint.key.as_str(), taint.effect.as_str()));
        if again.is_some_and(|again| *again > index) {
            errors.push(Error::duplicate(
                &at,
                format!(
                    "Duplicate taint with the same key({}) and effect({}) is not allowed",
                    taint.key, taint.effect
                ),
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), effect: effect.into(), value: String::new() }
    }

    #[test]
    fn no_execute_needs_permission() {
        let taints = [taint("a", "NoExecute"), taint("a", "NoSchedule")];
        assert_eq!(check(&taints, false).len(), 1);
        assert!(check(&taints, true).is_empty());
    }

    #[test]
    fn finding_25_very_many_taints_are_compared_in_linear_time() {
        let mut taints: Vec<Taint> =
            (0..100_000).map(|index| taint(&format!("t{index}"), "NoSchedule")).collect();
        assert!(check(&taints, false).is_empty());
        taints.push(taint("t5", "NoSchedule"));
        assert_eq!(check(&taints, false).len(), 1);
    }

    #[test]
    fn a_taint_that_comes_again_is_reported_where_it_comes_first() {
        let taints = [taint("a", "NoSchedule"), taint("b", "NoSchedule"), taint("a", "NoSchedule")];
        let errors = check(&taints, false);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "spec.taints[0]");
    }
}
