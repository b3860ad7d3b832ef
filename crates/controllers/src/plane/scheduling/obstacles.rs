//! What unplaced bindings are waiting for, and which of them a change of a cluster may help.
//!
//! Upstream retries them periodically. Here the change that removes the obstacle enqueues them, and the
//! periodic retry is a safety net.

use std::collections::HashMap;

use api::cluster::Cluster;
use scheduler::Cause;

/// Bindings that could not be placed, by key, and why.
#[derive(Default)]
pub(super) struct Obstacles {
    waiting: HashMap<String, Cause>,
    /// The number of changes so far that might have helped a binding.
    changes: u64,
}

/// The number of changes of clusters that an attempt could have seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

/// In which respects a cluster changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct News {
    /// Labels, taints, regions, APIs, deletion: what filters look at.
    pub(super) shape: bool,
    /// What is free.
    pub(super) room: bool,
}

impl News {
    pub(super) fn between(old: Option<&Cluster>, new: &Cluster) -> Self {
        let Some(old) = old else { return Self { shape: true, room: true } };
        let complete = |cluster: &Cluster| {
            let all = cluster.status.conditions.iter();
            all.filter(|one| one.type_ == "CompleteAPIEnablements").any(|one| one.status == "True")
        };
        Self {
            shape: old.spec != new.spec
                || old.metadata.labels != new.metadata.labels
                || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
                || old.status.api_enablements != new.status.api_enablements
                || complete(old) != complete(new),
            room: old.spec.resource_models != new.spec.resource_models
                || old.status.resource_summary != new.status.resource_summary,
        }
    }
}

impl Obstacles {
    /// Returns the number of changes that an attempt that begins now can see.
    pub(super) fn seen(&self) -> Seen {
        Seen(self.changes)
    }

    /// Notes how an attempt ended. Returns whether it has to be repeated: it failed, and a cluster changed
    /// during the attempt, before the obstacle was recorded.
    pub(super) fn note(&mut self, key: String, failure: Option<Cause>, seen: Seen) -> bool {
        match failure {
            Some(cause) => {
                self.waiting.insert(key, cause);
                seen != self.seen()
            }
            None => {
                self.waiting.remove(&key);
                false
            }
        }
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.waiting.remove(key);
    }

    /// Returns the bindings that this change may help.
    pub(super) fn eased_by(&mut self, news: News) -> Vec<String> {
        self.changes += 1;
        let helps = |cause: Cause| match cause {
            Cause::NoClusterFit => news.shape,
            Cause::Unschedulable | Cause::Other => news.shape || news.room,
        };
        self.waiting.iter().filter(|(_, cause)| helps(**cause)).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(label: &str, cpu: &str) -> Cluster {
        serde_json::from_value(json!({
            "metadata": {"name": "m1", "labels": {"env": label}}, "spec": {"syncMode": "Push"},
            "status": {"resourceSummary": {"allocatable": {"cpu": cpu}}},
        }))
        .expect("a cluster")
    }

    #[test]
    fn a_heartbeat_is_no_news() {
        let mut later = cluster("prod", "1");
        later.metadata.resource_version = Some("2".to_owned());
        assert_eq!(News::between(Some(&cluster("prod", "1")), &later), News { shape: false, room: false });
    }

    #[test]
    fn in_which_respects_a_cluster_changed() {
        let changed = |otherwise: serde_json::Value| {
            let mut new = serde_json::to_value(cluster("prod", "1")).expect("a tree");
            apimachinery::patch::merge::apply(&mut new, otherwise);
            let new = serde_json::from_value(new).expect("a cluster");
            let news = News::between(Some(&cluster("prod", "1")), &new);
            (news.shape, news.room)
        };
        let complete = |status: &str| {
            json!({"status": {"conditions": [{"type": "CompleteAPIEnablements", "status": status, "reason": "r",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
        };
        let other_condition = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let apis = json!({"status": {"apiEnablements": [{"groupVersion": "v1", "resources": []}]}});
        let summary = json!({"status": {"resourceSummary": {"allocated": {"cpu": "1"}}}});
        let cases = [
            ("nothing", json!({}), (false, false)),
            ("its version", json!({"metadata": {"resourceVersion": "9"}}), (false, false)),
            ("a label", json!({"metadata": {"labels": {"env": "test"}}}), (true, false)),
            ("a taint", json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}), (true, false)),
            ("it goes", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), (true, false)),
            ("its APIs", apis, (true, false)),
            ("its APIs are known whole", complete("True"), (true, false)),
            ("its APIs are known in part, as before", complete("False"), (false, false)),
            ("what is in use", summary, (false, true)),
            ("another condition", other_condition, (false, false)),
            (
                "the classes of its nodes",
                json!({"spec": {"resourceModels": [{"grade": 0, "ranges": []}]}}),
                (true, true),
            ),
        ];
        for (name, otherwise, expected) in cases {
            assert_eq!(changed(otherwise), expected, "{name}");
        }
        let new = News::between(None, &cluster("prod", "1"));
        assert!(new.shape && new.room, "a new one may help all");
    }

    #[test]
    fn room_helps_those_who_lack_it_and_shape_helps_all() {
        let mut obstacles = Obstacles::default();
        let seen = obstacles.seen();
        assert!(!obstacles.note("fit".to_owned(), Some(Cause::NoClusterFit), seen));
        assert!(!obstacles.note("room".to_owned(), Some(Cause::Unschedulable), seen));
        let roomier = News::between(Some(&cluster("prod", "1")), &cluster("prod", "2"));
        assert_eq!(obstacles.eased_by(roomier), ["room"]);
        let relabelled = News::between(Some(&cluster("prod", "1")), &cluster("test", "1"));
        assert_eq!(obstacles.eased_by(relabelled).len(), 2);
        obstacles.note("fit".to_owned(), None, seen);
        obstacles.forget("room");
        assert!(obstacles.eased_by(relabelled).is_empty());
    }

    #[test]
    fn a_change_during_the_attempt_is_not_missed() {
        let mut obstacles = Obstacles::default();
        let seen = obstacles.seen();
        let roomier = News::between(Some(&cluster("prod", "1")), &cluster("prod", "2"));
        assert!(obstacles.eased_by(roomier).is_empty(), "nobody is known to wait yet");
        assert!(obstacles.note("late".to_owned(), Some(Cause::Unschedulable), seen));
        assert!(!obstacles.note("placed".to_owned(), None, seen), "who is placed waits for nothing");
        let seen = obstacles.seen();
        assert!(!obstacles.note("late".to_owned(), Some(Cause::Unschedulable), seen));
    }
}
