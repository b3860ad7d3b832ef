//! Counts how many clusters are lost and since when, and says whether there are implausibly many.
//!
//! A control plane that loses sight of most of its clusters at once has probably lost its own network. Moving everything to the
//! few clusters that are left would do more harm than waiting, so evictions stop, as Kubernetes stops them for a zone.
//!
//! Time is counted from when this process saw that a cluster was lost or tainted, with a clock that does not
//! jump. So a restart, a change of the leader or a correction of the system's time never counts as an outage
//! of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::cluster::Cluster;
use api::conditions::cluster::READY;
use k8s_openapi::api::core::v1::Taint;
use propagation::eviction::drives_out;
use tokio::time::Instant;

/// When too many clusters are lost. Both must be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) percent: u8,
    pub(super) clusters: usize,
}

/// What this process has seen of the clusters.
#[derive(Debug, Default)]
pub(super) struct Sight {
    clusters: BTreeMap<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    lost: bool,
    /// Lost, or not lost, since then; at the earliest since this process first saw the cluster.
    since: Instant,
    /// The NoExecute taints, by identity, and since when.
    taints: BTreeMap<TaintId, Instant>,
}

/// A taint that was removed and set again has another time, and starts again.
type TaintId = (String, String, Option<String>);

fn id(taint: &Taint) -> TaintId {
    let time = taint.time_added.as_ref().map(|time| time.0.to_string());
    (taint.key.clone(), taint.value.clone().unwrap_or_default(), time)
}

/// How many clusters are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) lost: usize,
    pub(super) all: usize,
}

impl Loss {
    /// Returns whether so many are lost that the control plane itself is probably at fault.
    pub(super) fn exceeds(self, limits: Limits) -> bool {
        self.lost >= limits.clusters.max(1)
            && self.lost.saturating_mul(100) >= self.all.saturating_mul(usize::from(limits.percent))
    }
}

/// Returns whether a cluster is lost. A cluster that is being removed, or has not reported yet, is not.
pub(super) fn is_lost(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none()
        && cluster.status.condition(READY).is_some_and(|ready| ready.status != "True")
}

impl Sight {
    /// Records a cluster; returns whether something changed that matters to evictions.
    pub(super) fn note(&mut self, name: &str, cluster: Option<&Cluster>, now: Instant) -> bool {
        let Some(cluster) = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) else {
            return self.clusters.remove(name).is_some();
        };
        let (known, lost) = (self.clusters.contains_key(name), is_lost(cluster));
        let seen = self.clusters.entry(name.to_owned()).or_insert_with(|| Seen {
            lost,
            since: now,
            taints: BTreeMap::new(),
        });
        let turned = seen.lost != lost;
        if turned {
            (seen.lost, seen.since) = (lost, now);
        }
        let before: BTreeSet<TaintId> = seen.taints.keys().cloned().collect();
        let taints = cluster.spec.taints.iter().filter(|taint| drives_out(taint)).map(id);
        seen.taints = taints
            .map(|id| {
                let since = seen.taints.get(&id).copied().unwrap_or(now);
                (id, since)
            })
            .collect();
        !known || turned || !before.iter().eq(seen.taints.keys())
    }

    /// Restarts all times. Observations made while too many clusters were lost are not reliable.
    pub(super) fn count_anew(&mut self, now: Instant) {
        for seen in self.clusters.values_mut() {
            seen.since = now;
            seen.taints.values_mut().for_each(|since| *since = now);
        }
    }

    /// Returns for how long a cluster has been lost, or not lost, as far as this process has seen it.
    pub(super) fn unchanged_for(&self, cluster: &str, now: Instant) -> Duration {
        let since = self.clusters.get(cluster).map(|seen| seen.since);
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Returns for how long a taint has been seen.
    pub(super) fn tainted_for(&self, cluster: &str, taint: &Taint, now: Instant) -> Duration {
        let since = self.clusters.get(cluster).and_then(|seen| seen.taints.get(&id(taint)));
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(*since))
    }

    pub(super) fn loss(&self) -> Loss {
        Loss { lost: self.clusters.values().filter(|seen| seen.lost).count(), all: self.clusters.len() }
    }

    /// Returns the names of the clusters that are lost.
    pub(super) fn lost(&self) -> Vec<String> {
        self.clusters.iter().filter(|(_, seen)| seen.lost).map(|(name, _)| name.clone()).collect()
    }
}

/// The clusters that have an event about the halt.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeSet<String>);

impl Told {
    /// Returns the lost clusters that have no such event yet, and records that they get one now.
    pub(super) fn news(&mut self, halted: bool, lost: Vec<String>) -> BTreeSet<String> {
        let lost: BTreeSet<String> = if halted { lost.into_iter().collect() } else { BTreeSet::new() };
        let before = std::mem::replace(&mut self.0, lost);
        self.0.difference(&before).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{cluster, deleting};

    #[test]
    fn when_too_many_clusters_are_lost() {
        let limits = Limits { percent: 55, clusters: 3 };
        let cases = [
            (0, 0, false),
            (1, 2, false),
            (2, 2, false),
            (2, 3, false),
            (3, 3, true),
            (3, 5, true),
            (3, 6, false),
            (4, 5, true),
            (54, 100, false),
            (55, 100, true),
        ];
        for (lost, all, expected) in cases {
            assert_eq!(Loss { lost, all }.exceeds(limits), expected, "{lost} of {all}");
        }
        let hasty = Limits { percent: 0, clusters: 0 };
        assert!(!Loss { lost: 0, all: 5 }.exceeds(hasty), "nothing is lost");
    }

    #[test]
    fn whether_a_cluster_counts_as_lost() {
        for (name, ready, otherwise, expected) in [
            ("it is well", "True", json!({}), false),
            ("it is ill", "False", json!({}), true),
            ("it is silent", "Unknown", json!({}), true),
            ("it has not reported yet", "", json!({}), false),
            ("it leaves", "False", deleting(), false),
        ] {
            assert_eq!(is_lost(&cluster("m1", ready, otherwise)), expected, "{name}");
        }
    }

    #[test]
    fn what_matters_to_evictions_is_news() {
        let (mut sight, now) = (Sight::default(), Instant::now());
        let well = || cluster("m1", "True", json!({}));
        let mut note = |cluster: Option<Cluster>| sight.note("m1", cluster.as_ref(), now);
        assert!(note(Some(well())), "it is new");
        assert!(!note(Some(well())));
        assert!(note(Some(tainted("True", "2020-01-01T00:00:00Z"))), "a taint came");
        assert!(note(Some(well())), "it went");
        assert!(note(Some(cluster("m1", "False", json!({})))), "it is lost");
        assert!(note(None), "it is gone");
        assert!(!note(None));
    }

    fn tainted(ready: &str, time: &str) -> Cluster {
        let taint = json!({ "key": "k", "effect": "NoExecute", "timeAdded": time });
        cluster("m1", ready, json!({ "spec": { "taints": [taint, { "key": "k", "effect": "NoSchedule" }] } }))
    }

    #[test]
    fn time_counts_from_when_it_was_seen() {
        let (mut sight, start, secs) = (Sight::default(), Instant::now(), Duration::from_secs);
        let lost = tainted("False", "2020-01-01T00:00:00Z");
        assert!(sight.note("m1", Some(&lost), start));
        assert!(!sight.note("m1", Some(&lost), start + secs(5)), "nothing new");
        let taint = lost.spec.taints[0].clone();
        let seen = |sight: &Sight, taint: &Taint, at: Instant| {
            (sight.unchanged_for("m1", at), sight.tainted_for("m1", taint, at))
        };
        assert_eq!(seen(&sight, &taint, start + secs(7)), (secs(7), secs(7)));
        assert_eq!(sight.unchanged_for("m2", start + secs(7)), secs(0));
        // It comes back, and the taint stays.
        assert!(sight.note("m1", Some(&tainted("True", "2020-01-01T00:00:00Z")), start + secs(8)));
        assert_eq!(seen(&sight, &taint, start + secs(9)), (secs(1), secs(9)));
        // A taint that was set anew counts anew, and so does the loss.
        let again = tainted("Unknown", "2020-01-02T00:00:00Z");
        assert!(sight.note("m1", Some(&again), start + secs(10)));
        assert_eq!(seen(&sight, &again.spec.taints[0], start + secs(11)), (secs(1), secs(1)));
        sight.count_anew(start + secs(20));
        assert_eq!(seen(&sight, &again.spec.taints[0], start + secs(21)), (secs(1), secs(1)));
    }

    #[test]
    fn whoever_is_lost_is_told_once_that_evictions_stand_still() {
        let mut told = Told::default();
        let mut news = |halted: bool, lost: &[&str]| {
            let lost = lost.iter().map(ToString::to_string).collect();
            told.news(halted, lost).into_iter().collect::<Vec<String>>().join(" ")
        };
        assert_eq!(news(false, &["m1", "m2"]), "", "they are not too many");
        assert_eq!(news(true, &["m1", "m2", "m3"]), "m1 m2 m3");
        assert_eq!(news(true, &["m1", "m2", "m3"]), "");
        assert_eq!(news(true, &["m1", "m2", "m3", "m4"]), "m4", "one more");
        assert_eq!(news(true, &["m1", "m2", "m4"]), "");
        assert_eq!(news(true, &["m1", "m2", "m3", "m4"]), "m3", "it came back, and is lost again");
        assert_eq!(news(false, &["m1"]), "");
        assert_eq!(news(true, &["m1", "m2", "m3"]), "m1 m2 m3", "another time");
    }

    #[test]
    fn which_clusters_are_lost() {
        let mut sight = Sight::default();
        let clusters: [(&str, &str, Value); 5] = [
            ("well", "True", json!({})),
            ("unwell", "False", json!({})),
            ("silent", "Unknown", json!({})),
            ("new", "", json!({})),
            ("leaving", "False", deleting()),
        ];
        for (name, ready, otherwise) in clusters {
            sight.note(name, Some(&cluster(name, ready, otherwise)), Instant::now());
        }
        assert_eq!(sight.lost(), ["silent", "unwell"]);
        assert_eq!(sight.loss(), Loss { lost: 2, all: 4 });
        assert!(sight.note("silent", None, Instant::now()));
        assert_eq!(sight.loss(), Loss { lost: 1, all: 3 });
    }
}
