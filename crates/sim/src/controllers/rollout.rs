//! The arithmetic of rollouts: how many replicas each ReplicaSet of a Deployment should have next.

use serde_json::Value;

use crate::objects::{annotation, int_or_percent, number};

/// Annotations in which a Deployment records the size that it last gave to its sets.
pub(crate) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(crate) const MAX: &str = "deployment.kubernetes.io/max-replicas";

pub(crate) fn replicas(set: &Value) -> i64 {
    number(set, "/spec/replicas").unwrap_or(1)
}

fn available(set: &Value) -> i64 {
    number(set, "/status/availableReplicas").unwrap_or(0)
}

fn rolling(deployment: &Value) -> bool {
    deployment.pointer("/spec/strategy/type").and_then(Value::as_str) != Some("Recreate")
}

/// Returns how many pods may exist beyond the desired number, and how many may be missing.
pub(crate) fn fenceposts(deployment: &Value) -> (i64, i64) {
    if !rolling(deployment) {
        return (0, 0);
    }
    let wanted = replicas(deployment);
    let field = |name: &str| deployment.pointer(&format!("/spec/strategy/rollingUpdate/{name}"));
    let surge = int_or_percent(field("maxSurge"), wanted, true).unwrap_or(0);
    let unavailable = int_or_percent(field("maxUnavailable"), wanted, false).unwrap_or(0);
    // With both at zero, a rollout could not progress.
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(wanted)) }
}

pub(crate) fn max_replicas(deployment: &Value) -> i64 {
    replicas(deployment) + fenceposts(deployment).0
}

/// Returns the size of the newest set, given the total size of all sets.
pub(crate) fn grow(deployment: &Value, new: i64, together: i64) -> i64 {
    let wanted = replicas(deployment);
    if !rolling(deployment) {
        return wanted;
    }
    let room = max_replicas(deployment) - together;
    if room <= 0 { new } else { new + room.min(wanted - new) }
}

/// Returns the next size of every old set, the oldest first: unhealthy pods are removed first, the others as far as enough stay
/// available.
pub(crate) fn shrink(deployment: &Value, new: &Value, old: &[&Value]) -> Vec<i64> {
    let mut sizes: Vec<i64> = old.iter().map(|set| replicas(set)).collect();
    let old_together: i64 = sizes.iter().sum();
    if old_together == 0 {
        return sizes;
    }
    let minimum = replicas(deployment) - fenceposts(deployment).1;
    let missing = replicas(new) - available(new);
    let mut most = old_together + replicas(new) - minimum - missing;
    if most <= 0 {
        return sizes;
    }
    for (size, set) in sizes.iter_mut().zip(old) {
        let unhealthy = (*size - available(set)).min(most).max(0);
        *size -= unhealthy;
        most -= unhealthy;
    }
    let together: i64 = available(new) + old.iter().map(|set| available(set)).sum::<i64>();
    let mut spare = together - minimum;
    for size in &mut sizes {
        let cut = (*size).min(spare).max(0);
        *size -= cut;
        spare -= cut;
    }
    sizes
}

/// Returns new sizes for the sets of a Deployment that is scaled during a rollout: in proportion. The sets are given in the order
/// in which leftovers are assigned.
pub(crate) fn proportional(deployment: &Value, sets: &[&Value]) -> Vec<i64> {
    let wanted = replicas(deployment);
    let allowed = if wanted > 0 { max_replicas(deployment) } else { 0 };
    let together: i64 = sets.iter().map(|set| replicas(set)).sum();
    let to_add = allowed - together;
    let mut added = 0;
    let mut sizes = Vec::new();
    for set in sets {
        let own = replicas(set);
        let before: i64 = annotation(set, MAX)
            .parse()
            .unwrap_or_else(|_| number(deployment, "/status/replicas").unwrap_or(together));
        let target = if wanted == 0 {
            0
        } else if before > 0 {
            (own as f64 * max_replicas(deployment) as f64 / before as f64).round() as i64
        } else {
            own
        };
        let left = to_add - added;
        let change =
            if to_add > 0 { (target - own).min(left).max(0) } else { (target - own).max(left).min(0) };
        sizes.push(own + change);
        added += change;
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    sizes
}

/// Returns whether the sets were last sized for another desired number than the current one.
pub(crate) fn is_scaling(deployment: &Value, sets: &[Value]) -> bool {
    sets.iter().filter(|set| replicas(set) > 0).any(|set| {
        annotation(set, DESIRED).parse::<i64>().is_ok_and(|desired| desired != replicas(deployment))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(replicas: i64, surge: Value, unavailable: Value) -> Value {
        json!({"spec": {"replicas": replicas, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}})
    }

    fn set(replicas: i64, available: i64) -> Value {
        json!({"spec": {"replicas": replicas}, "status": {"availableReplicas": available}})
    }

    #[test]
    fn a_rollout_that_may_do_nothing_may_miss_one() {
        assert_eq!(fenceposts(&deployment(3, json!("10%"), json!("10%"))), (1, 0));
        assert_eq!(fenceposts(&deployment(3, json!(0), json!("10%"))), (0, 1));
    }

    #[test]
    fn the_new_set_grows_into_the_surge() {
        let desired = deployment(10, json!("25%"), json!("25%"));
        assert_eq!(grow(&desired, 0, 10), 3);
        assert_eq!(grow(&desired, 3, 13), 3);
        assert_eq!(grow(&desired, 9, 9), 10);
    }

    #[test]
    fn old_sets_shrink_as_far_as_enough_stay_available() {
        let desired = deployment(10, json!(3), json!(2));
        assert_eq!(shrink(&desired, &set(3, 0), &[&set(10, 10)]), [8]);
        assert_eq!(shrink(&desired, &set(5, 3), &[&set(8, 8)]), [5]);
        assert_eq!(shrink(&desired, &set(5, 0), &[&set(8, 8)]), [8]);
        // The second one is unhealthy anyway.
        assert_eq!(shrink(&desired, &set(3, 0), &[&set(8, 8), &set(2, 0)]), [8, 0]);
    }

    #[test]
    fn scaling_in_the_middle_keeps_the_proportions() {
        let desired = deployment(20, json!(0), json!(2));
        let mut sets = [set(7, 7), set(3, 3)];
        for set in &mut sets {
            set["metadata"] = json!({"annotations": {MAX: "10"}});
        }
        let sizes = proportional(&desired, &[&sets[0], &sets[1]]);
        assert_eq!(sizes, [14, 6]);
    }
}
