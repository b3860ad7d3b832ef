//! The status of workloads: counts that cannot be, alone or beside each other.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::gvk::Gvk;

use super::check;
use super::node::Node;

/// What is known of the counts in the status of a kind.
#[derive(Default)]
struct Counts {
    /// None of them is negative.
    all: &'static [&'static str],
    /// None of them is greater than `replicas`.
    within_replicas: &'static [&'static str],
    /// How the count is called in which those are that are ready for longer; empty if nobody looks.
    within_ready: &'static str,
    /// It has a count of collisions, which only grows.
    collisions: bool,
}

/// Checks the counts in the status of any kind that has some.
pub(super) fn counts(errors: &mut Errors, gvk: &Gvk, root: Node<'_>, old: Node<'_>) {
    let counts = of(gvk);
    let (status, stored, path) = (root.at("status"), old.at("status"), Path::new("status"));
    check::none_negative(errors, &path, status, counts.all);
    let number = |field: &str| status.at(field).int();
    for field in counts.within_replicas {
        if number(field) > number("replicas") {
            let detail = "cannot be greater than status.replicas";
            errors.push(Error::invalid(&path.child(field), number(field), detail));
        }
    }
    let available = number("availableReplicas");
    if !counts.within_ready.is_empty() && available > number("readyReplicas") {
        let detail = format!("cannot be greater than {}", counts.within_ready);
        errors.push(Error::invalid(&path.child("availableReplicas"), available, detail));
    }
    if counts.collisions {
        let count = |status: Node<'_>| status.at("collisionCount").opt_int();
        let shrunk = match (count(status), count(stored)) {
            (None, Some(_)) => true,
            (Some(new), Some(old)) => new < old,
            _ => false,
        };
        if shrunk {
            let new = number("collisionCount");
            errors.push(Error::invalid(&path.child("collisionCount"), new, "cannot be decremented"));
        }
    }
}

fn of(gvk: &Gvk) -> Counts {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment") => Counts {
            all: &[
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "terminatingReplicas",
                "collisionCount",
            ],
            within_replicas: &["updatedReplicas", "readyReplicas", "availableReplicas"],
            within_ready: "readyReplicas",
            collisions: true,
        },
        ("", "ReplicationController") | ("apps", "ReplicaSet") => Counts {
            all: &[
                "replicas",
                "fullyLabeledReplicas",
                "readyReplicas",
                "availableReplicas",
                "observedGeneration",
                "terminatingReplicas",
            ],
            within_replicas: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
            within_ready: "readyReplicas",
            collisions: false,
        },
        ("apps", "StatefulSet") => Counts {
            all: &[
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ],
            within_replicas: &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
            within_ready: "status.readyReplicas",
            collisions: true,
        },
        ("apps", "DaemonSet") => Counts {
            all: &[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ],
            collisions: true,
            ..Counts::default()
        },
        ("batch", "Job") => {
            Counts { all: &["active", "succeeded", "failed", "ready", "terminating"], ..Counts::default() }
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            Counts { all: &["currentReplicas", "desiredReplicas"], ..Counts::default() }
        }
        ("policy", "PodDisruptionBudget") => Counts {
            all: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
            ..Counts::default()
        },
        _ => Counts::default(),
    }
}
