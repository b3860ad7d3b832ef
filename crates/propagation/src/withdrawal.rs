//! Decides which copies of an object are removed from their clusters, and when removals are held.
//!
//! A copy that its binding no longer asks for is removed, with two exceptions. First, the reason counts: if
//! no cluster is left, only those clusters lose their copies that the policy does not want; a cluster that
//! cannot be used or judged at the moment keeps its copy. Second, [the limit](Limits): if one change would
//! remove more than a share of everything, nothing is removed until a user confirms it. Objects that users
//! delete themselves, such as templates, are never limited here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use api::cluster::Cluster;
use api::labels::annotations::{ALLOW_REMOVALS, REMOVALS_HELD};
use api::policy::Placement;
use jiff::{SignedDuration, Timestamp};
use placement::affinity::is_wanted;

use crate::status::whole_seconds;

/// What to do with a copy that the binding does not ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is removed.
    Remove,
    /// It is removed unless too many others would be removed at the same time.
    Limited,
}

/// A copy that the binding does not ask for.
#[derive(Debug, Clone, Copy)]
pub struct Leftover<'a> {
    /// The cluster it is in, if that is known.
    pub cluster: Option<&'a Cluster>,
    /// Where the policy wants copies; a dependency has no placement of its own.
    pub placement: Option<&'a Placement>,
    /// No cluster at all was found for the binding.
    pub found_none: bool,
    /// The cluster has to remove its copy before another one is created.
    pub purged: bool,
    /// It is a dependency, and the object that needs it still has a copy in this cluster.
    pub needed: bool,
}

/// Decides about a copy.
pub fn judge(leftover: &Leftover<'_>) -> Verdict {
    let Leftover { cluster, placement, found_none, purged, needed } = *leftover;
    if purged {
        return Verdict::Remove;
    }
    let Some(placement) = placement else {
        return if needed { Verdict::Keep } else { Verdict::Remove };
    };
    let Some(cluster) = cluster else {
        // It cannot be judged; and if it is gone, so is the copy.
        return if found_none { Verdict::Keep } else { Verdict::Remove };
    };
    if found_none && is_wanted(cluster, placement) {
        return Verdict::Keep;
    }
    // Workloads leave broken clusters in numbers, and must.
    if is_failing(cluster) { Verdict::Remove } else { Verdict::Limited }
}

/// Returns whether workloads have a reason of their own to leave the cluster.
fn is_failing(cluster: &Cluster) -> bool {
    let drives_away = |effect: &str| effect == api::constants::EFFECT_NO_EXECUTE;
    cluster.metadata.deletion_timestamp.is_some()
        || !cluster.status.is_ready()
        || cluster.spec.taints.iter().any(|taint| drives_away(&taint.effect))
}

/// How much may be removed at once. Removals are held if both are exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Templates that lose copies.
    pub templates: usize,
    /// The share of all copies.
    pub percent: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self { templates: 50, percent: 50 }
    }
}

/// Removals within this time count together.
pub const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// Templates, and how many copies each of them loses.
pub type Losses = BTreeMap<String, usize>;

impl Limits {
    /// Returns whether losses are too many. `copies` is how many copies there are of everything, those that were removed
    /// lately included.
    pub fn exceeded(self, losses: &Losses, copies: usize) -> bool {
        let lost: usize = losses.values().sum();
        losses.len() > self.templates
            && lost.saturating_mul(100) > copies.saturating_mul(usize::from(self.percent))
    }
}

/// What was removed recently.
#[derive(Debug, Clone, Default)]
pub struct Recent(VecDeque<(Timestamp, String, usize)>);

impl Recent {
    pub fn note(&mut self, template: String, copies: usize, now: Timestamp) {
        self.forget(now);
        self.0.push_back((now, template, copies));
    }

    /// Returns the losses of the last minute.
    pub fn losses(&mut self, now: Timestamp) -> Losses {
        self.forget(now);
        let mut losses = Losses::new();
        for (_, template, copies) in &self.0 {
            let lost = losses.entry(template.clone()).or_default();
            *lost = lost.saturating_add(*copies);
        }
        losses
    }

    /// What was noted later than now was noted before a clock was set back; it counts for one more window, not until the clock has
    /// caught up.
    fn forget(&mut self, now: Timestamp) {
        for (at, ..) in &mut self.0 {
            *at = now.min(*at);
        }
        while self.0.front().is_some_and(|(at, ..)| now.duration_since(*at) > WINDOW) {
            self.0.pop_front();
        }
    }
}

/// What a policy's annotations say about its removals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing is held.
    Free,
    /// They wait, since then.
    Held { since: Option<Timestamp> },
    /// They waited, and a user has confirmed them.
    Allowed,
}

impl State {
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let get = |key: &str| annotations.and_then(|annotations| annotations.get(key));
        let Some(held) = get(REMOVALS_HELD) else { return Self::Free };
        let mut words = held.split_whitespace();
        let id = words.next().unwrap_or("");
        if get(ALLOW_REMOVALS).is_some_and(|allowed| allowed == id) {
            return Self::Allowed;
        }
        let since = words.next().and_then(|word| word.trim_end_matches(':').parse().ok());
        Self::Held { since }
    }

    /// Returns whether the policy's removals count as part of what is happening now.
    pub fn is_news(&self, now: Timestamp) -> bool {
        match self {
            Self::Free => true,
            Self::Held { since } => since.is_none_or(|since| now.duration_since(since) <= WINDOW),
            Self::Allowed => false,
        }
    }
}

/// What a policy would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtStake {
    pub templates: usize,
    pub copies: usize,
    pub clusters: BTreeSet<String>,
}

/// Returns what is written on a policy whose removals are held: the id to confirm, since when, and what is
/// waiting. `policy` is how kubectl names it, with its namespace.
pub fn held_note(id: &str, now: Timestamp, policy: &str, at_stake: &AtStake) -> String {
    const SHOWN: usize = 5;
    let AtStake { templates, copies, clusters } = at_stake;
    let mut names: Vec<&str> = clusters.iter().take(SHOWN).map(String::as_str).collect();
    if clusters.len() > SHOWN {
        names.push("…");
    }
    let since = whole_seconds(now);
    format!(
        "{id} {since}: {copies} copies of {templates} templates would be removed from {} clusters ({}) at once with \
         others, and are held; to remove them: kubectl annotate --overwrite {policy} {ALLOW_REMOVALS}={id}",
        clusters.len(),
        names.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(with: Value) -> Cluster {
        let mut cluster = json!({"metadata": {"name": "m1", "labels": {"env": "prod"}},
            "spec": {"syncMode": "Push", "region": "eu"},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        apimachinery::patch::merge::apply(&mut cluster, with);
        serde_json::from_value(cluster).expect("a cluster")
    }

    fn check(with: Value, placement: Value, found_none: bool) -> Verdict {
        let (cluster, placement) = (cluster(with), serde_json::from_value(placement).expect("a placement"));
        let placement: Placement = placement;
        judge(&Leftover {
            cluster: Some(&cluster),
            placement: Some(&placement),
            found_none,
            purged: false,
            needed: false,
        })
    }

    #[test]
    fn finding_22_the_reason_decides_whether_a_copy_is_taken_away_when_no_cluster_is_left() {
        let prod = json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"env": "prod"}}}});
        let test = json!({"clusterAffinity": {"labelSelector": {"matchLabels": {"env": "test"}}}});
        let unready = json!({"status": {"conditions": []}});
        let cases = [
            ("wanted, and not usable for another reason", json!({}), &prod, Verdict::Keep),
            ("not ready, and wanted", unready.clone(), &prod, Verdict::Keep),
            ("its label changed, or the policy's selector", json!({}), &test, Verdict::Limited),
            ("excluded", json!({}), &json!({"clusterAffinity": {"exclude": ["m1"]}}), Verdict::Limited),
            (
                "other names",
                json!({}),
                &json!({"clusterAffinity": {"clusterNames": ["m2"]}}),
                Verdict::Limited,
            ),
            (
                "a field that does not match",
                json!({}),
                &json!({"clusterAffinity": {"fieldSelector": {"matchExpressions": [
                    {"key": "region", "operator": "In", "values": ["us"]}]}}}),
                Verdict::Limited,
            ),
            (
                "spread by what it does not have",
                json!({}),
                &json!({"spreadConstraints": [{"spreadByField": "zone", "minGroups": 1, "maxGroups": 1}]}),
                Verdict::Limited,
            ),
            (
                "wanted by a later term",
                json!({}),
                &json!({"clusterAffinities": [{"affinityName": "a", "clusterNames": ["m2"]},
                    {"affinityName": "b", "clusterNames": ["m1"]}]}),
                Verdict::Keep,
            ),
            ("not ready, and not wanted", unready, &test, Verdict::Remove),
        ];
        for (what, with, placement, expected) in cases {
            assert_eq!(check(with, placement.clone(), true), expected, "{what}");
        }
    }

    #[test]
    fn a_copy_that_moved_elsewhere_goes() {
        assert_eq!(check(json!({}), json!({}), false), Verdict::Limited);
        let taint = json!({"spec": {"taints": [{"key": "down", "effect": "NoExecute"}]}});
        assert_eq!(check(taint, json!({}), false), Verdict::Remove, "failover is not limited");
        let leftover =
            Leftover { cluster: None, placement: None, found_none: false, purged: false, needed: true };
        assert_eq!(judge(&leftover), Verdict::Keep, "what is needed stays with what needs it");
        assert_eq!(judge(&Leftover { needed: false, ..leftover }), Verdict::Remove);
        assert_eq!(judge(&Leftover { purged: true, ..leftover }), Verdict::Remove);
        let placement = Placement::default();
        let unknown = Leftover { placement: Some(&placement), found_none: true, ..leftover };
        assert_eq!(judge(&unknown), Verdict::Keep, "an unknown cluster cannot be judged");
    }

    #[test]
    fn both_limits_must_be_exceeded() {
        let losses = |templates: usize, each: usize| -> Losses {
            (0..templates).map(|number| (number.to_string(), each)).collect()
        };
        let limits = Limits::default();
        for (templates, each, copies, exceeded) in [
            (50, 10, 500, false),
            (51, 1, 102, false),
            (51, 1, 101, true),
            (1_000, 1, 10_000, false),
            (1_000, 10, 10_000, true),
            (0, 0, 0, false),
        ] {
            assert_eq!(
                limits.exceeded(&losses(templates, each), copies),
                exceeded,
                "{templates} × {each} of {copies}"
            );
        }
    }

    #[test]
    fn what_was_taken_away_counts_for_a_minute() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut recent = Recent::default();
        recent.note("a".to_owned(), 2, at(0));
        recent.note("a".to_owned(), 1, at(30));
        recent.note("b".to_owned(), 1, at(30));
        assert_eq!(recent.losses(at(60)), [("a".to_owned(), 3), ("b".to_owned(), 1)].into());
        assert_eq!(recent.losses(at(61)), [("a".to_owned(), 1), ("b".to_owned(), 1)].into());
        assert!(recent.losses(at(91)).is_empty());
    }

    #[test]
    fn what_was_taken_away_before_a_clock_was_set_back_counts_for_a_minute_more() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut recent = Recent::default();
        recent.note("a".to_owned(), 2, at(7200));
        assert_eq!(recent.losses(at(0)), [("a".to_owned(), 2)].into());
        recent.note("b".to_owned(), 1, at(30));
        assert_eq!(recent.losses(at(61)), [("b".to_owned(), 1)].into());
    }

    #[test]
    fn the_note_says_how_to_let_removals_go_and_only_its_own_id_does() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let clusters = ["m1", "m2", "m3", "m4", "m5", "m6"].map(str::to_owned).into();
        let at_stake = AtStake { templates: 60, copies: 120, clusters };
        let note = held_note("3f2a", at(10), "propagationpolicy shop -n default", &at_stake);
        assert_eq!(
            note,
            "3f2a 1970-01-01T00:00:10Z: 120 copies of 60 templates would be removed from 6 clusters (m1, m2, m3, m4, m5, \
             …) at once with others, and are held; to remove them: kubectl annotate --overwrite propagationpolicy shop \
             -n default policy.karmada.io/allow-removals=3f2a"
        );
        let mut annotations = BTreeMap::from([(REMOVALS_HELD.to_owned(), note)]);
        assert_eq!(State::of(None), State::Free);
        let held = State::of(Some(&annotations));
        assert_eq!(held, State::Held { since: Some(at(10)) });
        assert!(held.is_news(at(70)) && !held.is_news(at(71)));
        annotations.insert(ALLOW_REMOVALS.to_owned(), "earlier".to_owned());
        assert_eq!(State::of(Some(&annotations)), held, "an agreement to something else");
        annotations.insert(ALLOW_REMOVALS.to_owned(), "3f2a".to_owned());
        assert_eq!(State::of(Some(&annotations)), State::Allowed);
    }
}
