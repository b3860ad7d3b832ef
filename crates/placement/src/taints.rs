//! Taints of clusters, the tolerations of a placement, and how long a workload may stay in a tainted cluster.

use std::time::Duration;

use api::constants::EFFECT_NO_EXECUTE;
use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Returns whether a toleration tolerates a taint with this key, value and effect.
pub fn tolerates(toleration: &Toleration, key: &str, value: &str, effect: &str) -> bool {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    let (of_key, of_effect) = (given(&toleration.key), given(&toleration.effect));
    if (!of_effect.is_empty() && of_effect != effect) || (!of_key.is_empty() && of_key != key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => given(&toleration.value) == value,
        "Exists" => true,
        // Comparison operators exist in Kubernetes behind a gate that Karmada does not open.
        _ => false,
    }
}

/// Returns a taint as Kubernetes prints it: `key=value:Effect`.
pub fn print(taint: &Taint) -> String {
    match taint.value.as_deref().unwrap_or("") {
        "" => format!("{}:{}", taint.key, taint.effect),
        value => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

/// Returns whether a taint drives out what does not tolerate it.
pub fn drives_out(taint: &Taint) -> bool {
    taint.effect == EFFECT_NO_EXECUTE
}

/// How long a workload may stay in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stay {
    /// Nothing drives it out.
    Forever,
    /// It tolerates what drives it out for this much longer.
    For(Duration),
    /// It has to go, for this reason.
    Over(String),
}

/// Decides how long a workload may stay. `taints` are those that [drive out](drives_out), each with the time that counts
/// against the tolerations. Of several tolerations that fit a taint, the first counts.
pub fn stay<'a>(taints: impl IntoIterator<Item = (&'a Taint, Duration)>, tolerations: &[Toleration]) -> Stay {
    let mut left: Option<Duration> = None;
    for (taint, elapsed) in taints {
        let value = taint.value.as_deref().unwrap_or("");
        let fits = |toleration: &&Toleration| tolerates(toleration, &taint.key, value, &taint.effect);
        let Some(toleration) = tolerations.iter().find(fits) else {
            return Stay::Over(format!(
                "it has the taint {}, which the placement does not tolerate",
                print(taint)
            ));
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        match allowed.checked_sub(elapsed).filter(|left| !left.is_zero()) {
            Some(this) => left = Some(left.map_or(this, |left| left.min(this))),
            None => {
                let taint = print(taint);
                return Stay::Over(format!(
                    "it has the taint {taint}, which the placement tolerates for {}s only",
                    allowed.as_secs()
                ));
            }
        }
    }
    left.map_or(Stay::Forever, Stay::For)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str) -> Taint {
        Taint {
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| value.to_owned()),
            effect: EFFECT_NO_EXECUTE.to_owned(),
            time_added: None,
        }
    }

    fn toleration(key: &str, seconds: Option<i64>) -> Toleration {
        Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            toleration_seconds: seconds,
            ..Toleration::default()
        }
    }

    #[test]
    fn how_long_a_workload_may_stay() {
        let secs = Duration::from_secs;
        let over = |text: &str| Stay::Over(text.to_owned());
        let untolerated = "it has the taint a=1:NoExecute, which the placement does not tolerate";
        let for_so_long = "it has the taint a:NoExecute, which the placement tolerates for 30s only";
        let zero = "it has the taint a:NoExecute, which the placement tolerates for 0s only";
        let cases = [
            ("no taint", vec![], vec![], Stay::Forever),
            ("not tolerated", vec![(taint("a", "1"), 0)], vec![toleration("b", None)], over(untolerated)),
            ("tolerated", vec![(taint("a", ""), 900)], vec![toleration("a", None)], Stay::Forever),
            ("for a while", vec![(taint("a", ""), 10)], vec![toleration("a", Some(30))], Stay::For(secs(20))),
            ("at its end", vec![(taint("a", ""), 30)], vec![toleration("a", Some(30))], over(for_so_long)),
            ("not even a second", vec![(taint("a", ""), 0)], vec![toleration("a", Some(0))], over(zero)),
            ("negative counts as 0", vec![(taint("a", ""), 0)], vec![toleration("a", Some(-5))], over(zero)),
            (
                "the shortest counts",
                vec![(taint("a", ""), 10), (taint("b", ""), 0)],
                vec![toleration("a", Some(30)), toleration("b", Some(5))],
                Stay::For(secs(5)),
            ),
            (
                "the first that fits counts",
                vec![(taint("a", ""), 10)],
                vec![toleration("a", None), toleration("a", Some(5))],
                Stay::Forever,
            ),
            (
                "one that counts for another taint does not count for one that is tolerated for ever",
                vec![(taint("a", ""), 900), (taint("b", ""), 10)],
                vec![toleration("a", None), toleration("", Some(30))],
                Stay::For(secs(20)),
            ),
            (
                "one that is not tolerated is enough",
                vec![(taint("b", ""), 0), (taint("a", "1"), 0)],
                vec![toleration("b", Some(60))],
                over(untolerated),
            ),
        ];
        for (name, taints, tolerations, expected) in cases {
            let taints = taints.iter().map(|(taint, elapsed)| (taint, secs(*elapsed)));
            assert_eq!(stay(taints, &tolerations), expected, "{name}");
        }
    }
}
