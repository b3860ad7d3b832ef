//! Decides how much would be removed at once, whether a binding may remove its copies, and when a policy's
//! note is deleted. Pure.
//!
//! `propagation::withdrawal` says what counts as removed, and how much is too much.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::cluster::Cluster;
use api::policy::Placement;
use api::work::ResourceBindingSpec;
use jiff::Timestamp;
use propagation::withdrawal::{self, AtStake, Leftover, Limits, Losses, State, Verdict};
use propagation::{directly_purged_clusters, expected_clusters};
use runtime::Key;
use scheduler::affinity::is_wanted;

/// What would be removed, by policy; the key of a cluster-wide policy has no namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// How many copies there are of everything.
    pub(super) copies: usize,
    pub(super) losses: BTreeMap<Key, Losses>,
    pub(super) clusters: BTreeMap<Key, BTreeSet<String>>,
}

impl Survey {
    pub(super) fn at_stake(&self, policy: &Key) -> AtStake {
        let losses = self.losses.get(policy);
        AtStake {
            templates: losses.map_or(0, BTreeMap::len),
            copies: losses.map_or(0, |losses| losses.values().sum()),
            clusters: self.clusters.get(policy).cloned().unwrap_or_default(),
        }
    }
}

/// The copies of one binding.
pub(super) struct Copies<'a> {
    /// The binding, as losses name it.
    pub(super) template: String,
    pub(super) spec: &'a ResourceBindingSpec,
    /// The policy that the binding names.
    pub(super) policy: Key,
    /// Where that policy now wants copies. A deleted policy leaves its bindings as they are.
    pub(super) placement: Option<&'a Placement>,
    /// The clusters that have a copy which is not going already.
    pub(super) places: Vec<(String, Option<Arc<Cluster>>)>,
}

/// Counts what would be removed, binding by binding.
#[derive(Default)]
pub(super) struct Count {
    survey: Survey,
    /// Whether a policy wants a cluster: the same for all its bindings.
    wanted: HashMap<(Key, String), bool>,
}

impl Count {
    pub(super) fn finish(self) -> Survey {
        self.survey
    }

    pub(super) fn add(&mut self, copies: &Copies<'_>) {
        let Copies { spec, policy, places, .. } = copies;
        self.survey.copies += places.len();
        let Some(own) = spec.placement.as_ref() else { return };
        let placement = copies.placement.unwrap_or(own);
        let (expected, purged) = (expected_clusters(spec), directly_purged_clusters(spec));
        let mut lost = 0;
        for (name, cluster) in places {
            let judge = || cluster.as_ref().is_none_or(|cluster| is_wanted(cluster, placement));
            let wanted = match copies.placement {
                Some(_) => *self.wanted.entry((policy.clone(), name.clone())).or_insert_with(judge),
                None => judge(),
            };
            // The policy has changed, but the binding does not show that yet.
            if wanted && expected.contains(name.as_str()) {
                continue;
            }
            let leftover = Leftover {
                cluster: cluster.as_deref(),
                placement: Some(placement),
                found_none: expected.is_empty(),
                purged: purged.contains(name.as_str()),
                needed: false,
            };
            if withdrawal::judge(&leftover) == Verdict::Limited {
                lost += 1;
                self.survey.clusters.entry(policy.clone()).or_default().insert(name.clone());
            }
        }
        if lost > 0 {
            self.survey.losses.entry(policy.clone()).or_default().insert(copies.template.clone(), lost);
        }
    }
}

/// Returns whether so much could be removed that everything has to be counted. With few objects this is not
/// needed.
pub(super) fn needs_survey(limits: Limits, works: usize, recent: &Losses) -> bool {
    works + recent.len() > limits.templates
}

/// The facts that decide whether a binding may remove copies.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The binding, as losses name it.
    pub(super) template: String,
    /// The policy that it names.
    pub(super) policy: Option<Key>,
    pub(super) limits: Limits,
    /// What was removed recently.
    pub(super) recent: Losses,
    /// What would be removed; none if there are too few objects to count.
    pub(super) survey: Option<Arc<Survey>>,
    /// The annotations of the policies concerned, as far as these exist.
    pub(super) states: BTreeMap<Key, State>,
}

#[cfg(test)]
impl Request {
    /// The case of a binding without a policy, with nothing else to remove.
    pub(crate) fn of_nobody(template: &str, limits: Limits) -> Self {
        let (recent, states) = (Losses::new(), BTreeMap::new());
        let survey = Some(Arc::default());
        Self { template: template.to_owned(), policy: None, limits, recent, survey, states }
    }
}

/// Whether copies may be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Permit {
    /// A user has confirmed.
    Agreed,
    /// This many copies are within the limit, and now count as recently removed.
    Within(usize),
    /// They wait for a user to confirm.
    Held,
    /// They are held from now on.
    Hold {
        /// The policies that get a note of what waits, the one that asks first.
        policies: Vec<(Key, AtStake)>,
        /// There is no policy on which a user could confirm.
        unowned: bool,
    },
}

impl Permit {
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, Self::Agreed | Self::Within(_))
    }
}

/// Decides whether a binding may now remove this many copies.
pub(crate) fn permit(request: &Request, copies: usize, now: Timestamp) -> Permit {
    let asking = request.policy.as_ref();
    let state = asking.and_then(|policy| request.states.get(policy));
    match state {
        Some(State::Allowed) => return Permit::Agreed,
        Some(State::Held { .. }) => return Permit::Held,
        Some(State::Free) | None => {}
    }
    let Some(survey) = &request.survey else { return Permit::Within(copies) };
    let mut losses = request.recent.clone();
    let all = losses.values().sum::<usize>() + survey.copies;
    for (policy, lost) in &survey.losses {
        if request.states.get(policy).is_none_or(|state| state.is_news(now)) {
            for (template, count) in lost {
                *losses.entry(template.clone()).or_default() += count;
            }
        }
    }
    let own = losses.entry(request.template.clone()).or_default();
    *own = (*own).max(copies);
    if !request.limits.exceeded(&losses, all) {
        return Permit::Within(copies);
    }
    let others = survey.losses.keys().filter(|policy| Some(*policy) != asking);
    let free = |policy: &&Key| request.states.get(*policy) == Some(&State::Free);
    let policies = asking.into_iter().chain(others).filter(free);
    Permit::Hold {
        policies: policies.map(|policy| (policy.clone(), survey.at_stake(policy))).collect(),
        unowned: state.is_none(),
    }
}

/// What is known of a policy that may have a note.
#[derive(Debug)]
pub(crate) struct Note {
    pub(super) state: State,
    /// How many copies it would remove; counted only if it has a note.
    pub(super) copies: usize,
}

/// What to do with the note of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing(&'static str),
    /// Copies still wait: look again later.
    Later,
    /// Nothing waits any more: the change was undone or carried out. The note is deleted.
    Clear,
}

pub(super) fn next(note: &Note) -> Next {
    match note {
        Note { state: State::Free, .. } => Next::Nothing("it holds nothing"),
        Note { copies: 0, .. } => Next::Clear,
        _ => Next::Later,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, at, deleting, merged};

    fn key(name: &str) -> Key {
        Key::new("default", name)
    }

    fn placement(value: Value) -> Placement {
        fixtures::read(value)
    }

    fn clusters(names: &[&str]) -> Value {
        json!(names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>())
    }

    /// Counts one binding; returns how many copies there are, how many would be removed, and from where.
    fn counted(
        binding: Value,
        policy: Option<Value>,
        places: &[(&str, Value)],
    ) -> (usize, usize, Vec<String>) {
        let binding = fixtures::binding(binding);
        let policy = policy.map(placement);
        let place = |(name, otherwise): &(&str, Value)| {
            let cluster = match otherwise {
                Value::Null => None,
                otherwise => Some(Arc::new(fixtures::cluster(name, "True", otherwise.clone()))),
            };
            ((*name).to_owned(), cluster)
        };
        let mut count = Count::default();
        count.add(&Copies {
            template: "default/web".to_owned(),
            spec: &binding.spec,
            policy: key("p"),
            placement: policy.as_ref(),
            places: places.iter().map(place).collect(),
        });
        let survey = count.finish();
        let lost = survey.at_stake(&key("p"));
        assert_eq!(lost.templates, usize::from(lost.copies > 0));
        (survey.copies, lost.copies, lost.clusters.into_iter().collect())
    }

    #[test]
    fn what_counts_as_taken_away() {
        let placed = |names: &[&str]| json!({ "spec": { "placement": {}, "clusters": clusters(names) } });
        let only = |name: &str| Some(json!({ "clusterAffinity": { "clusterNames": [name] } }));
        let both = || vec![("m1", json!({})), ("m2", json!({}))];
        let purged = |from: &str| {
            json!({ "spec": { "gracefulEvictionTasks": [
                { "fromCluster": from, "purgeMode": "Directly", "reason": "r", "producer": "p" },
            ] } })
        };
        let failing = || json!({ "status": { "conditions": [] } });
        let nowhere = || placed(&[]);
        type Case = (
            &'static str,
            Value,
            Option<Value>,
            Vec<(&'static str, Value)>,
            (usize, &'static [&'static str]),
        );
        let cases: Vec<Case> = vec![
            ("all are wanted", placed(&["m1", "m2"]), Some(json!({})), both(), (2, &[])),
            ("one left the placement", placed(&["m1"]), Some(json!({})), both(), (2, &["m2"])),
            (
                "the policy left one, the binding does not know yet",
                placed(&["m1", "m2"]),
                only("m1"),
                both(),
                (2, &["m2"]),
            ),
            (
                "the policy is gone: the binding's own placement counts",
                placed(&["m1", "m2"]),
                None,
                both(),
                (2, &[]),
            ),
            ("the policy is gone, and one had left before", placed(&["m2"]), None, both(), (2, &["m1"])),
            (
                "no cluster was found: those that are wanted keep their copies",
                nowhere(),
                Some(json!({})),
                both(),
                (2, &[]),
            ),
            ("no cluster was found, one is not wanted", nowhere(), only("m1"), both(), (2, &["m2"])),
            (
                "one was purged: it goes whatever others do",
                merged(placed(&["m2"]), purged("m1")),
                Some(json!({})),
                both(),
                (2, &[]),
            ),
            (
                "one fails: workloads leave it in numbers",
                placed(&["m1"]),
                Some(json!({})),
                vec![("m2", failing())],
                (1, &[]),
            ),
            ("one goes", placed(&["m1"]), Some(json!({})), vec![("m2", deleting())], (1, &[])),
            ("one is not known", placed(&["m1"]), Some(json!({})), vec![("m2", Value::Null)], (1, &[])),
            ("a dependency has no placement", json!({}), Some(json!({})), both(), (2, &[])),
            ("no copies at all", placed(&["m1"]), Some(json!({})), vec![], (0, &[])),
        ];
        for (name, binding, policy, places, (copies, lost)) in cases {
            let lost: Vec<String> = lost.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(counted(binding, policy, &places), (copies, lost.len(), lost), "{name}");
        }
    }

    #[test]
    fn bindings_of_a_policy_count_together_and_policies_apart() {
        let binding =
            fixtures::binding(json!({ "spec": { "placement": {}, "clusters": clusters(&["m1"]) } }));
        let everywhere = placement(json!({}));
        let mut count = Count::default();
        for (template, policy) in [("default/a", "p"), ("default/b", "p"), ("default/c", "q")] {
            count.add(&Copies {
                template: template.to_owned(),
                spec: &binding.spec,
                policy: key(policy),
                placement: Some(&everywhere),
                places: ["m1", "m2", "m3"]
                    .map(|name| (name.to_owned(), Some(Arc::new(fixtures::cluster(name, "True", json!({}))))))
                    .into(),
            });
        }
        let survey = count.finish();
        let at_stake = |policy: &str| {
            let AtStake { templates, copies, clusters } = survey.at_stake(&key(policy));
            (templates, copies, clusters.into_iter().collect::<Vec<_>>())
        };
        let left = || vec!["m2".to_owned(), "m3".to_owned()];
        assert_eq!(survey.copies, 9);
        assert_eq!(at_stake("p"), (2, 4, left()));
        assert_eq!(at_stake("q"), (1, 2, left()));
        assert_eq!(at_stake("r"), (0, 0, vec![]));
    }

    #[test]
    fn few_objects_need_no_survey() {
        let limits = Limits { templates: 3, percent: 50 };
        let lost = |count: usize| (0..count).map(|number| (number.to_string(), 1)).collect();
        let cases = [(0, 0, false), (3, 0, false), (4, 0, true), (2, 1, false), (2, 2, true), (0, 4, true)];
        for (works, recent, expected) in cases {
            assert_eq!(needs_survey(limits, works, &lost(recent)), expected, "{works} Works, {recent} lost");
        }
    }

    /// Everything there is: `copies` in all; policy `p` would lose `p` templates, `q` would lose `q`, one copy each.
    fn survey(copies: usize, p: usize, q: usize) -> Arc<Survey> {
        let lost = |policy: &str, count: usize| -> Losses {
            (0..count).map(|number| (format!("default/{policy}{number}"), 1)).collect()
        };
        let losses = [("p", p), ("q", q)].into_iter().filter(|(_, count)| *count > 0);
        Arc::new(Survey {
            copies,
            losses: losses.map(|(policy, count)| (key(policy), lost(policy, count))).collect(),
            clusters: [(key("p"), BTreeSet::from(["m1".to_owned()]))].into(),
        })
    }

    fn held(second: i64) -> State {
        State::Held { since: Some(at(second)) }
    }

    /// The binding of template `p0` of policy `p` asks. The limits are three templates and half of all copies.
    fn request(survey: Option<Arc<Survey>>, p: Option<State>, q: Option<State>) -> Request {
        let states = [("p", p), ("q", q)].into_iter();
        Request {
            template: "default/p0".to_owned(),
            policy: Some(key("p")),
            limits: Limits { templates: 3, percent: 50 },
            recent: Losses::new(),
            survey,
            states: states.filter_map(|(name, state)| Some((key(name), state?))).collect(),
        }
    }

    fn words(permit: &Permit) -> String {
        match permit {
            Permit::Agreed => "agreed".to_owned(),
            Permit::Within(copies) => format!("within: {copies}"),
            Permit::Held => "held".to_owned(),
            Permit::Hold { policies, unowned } => {
                let noted: Vec<String> = policies
                    .iter()
                    .map(|(policy, at_stake)| format!("{} {}", policy.name, at_stake.copies))
                    .collect();
                format!("hold: {}{}", noted.join(", "), if *unowned { ", unowned" } else { "" })
            }
        }
    }

    #[test]
    fn whether_copies_may_go() {
        let (free, allowed) = (|| Some(State::Free), || Some(State::Allowed));
        let nobody = |survey| Request { policy: None, ..request(survey, free(), free()) };
        let recent = |templates: usize, request: Request| Request {
            recent: (0..templates).map(|number| (format!("default/r{number}"), 1)).collect(),
            ..request
        };
        let cases = [
            ("there is too little to count", request(None, free(), free()), "within: 1"),
            (
                "its policy was allowed to, whatever there is",
                request(Some(survey(8, 8, 0)), allowed(), free()),
                "agreed",
            ),
            ("its policy waits, however little it is", request(None, Some(held(0)), free()), "held"),
            ("few templates", request(Some(survey(4, 3, 0)), free(), free()), "within: 1"),
            ("many templates, a small share", request(Some(survey(8, 4, 0)), free(), free()), "within: 1"),
            ("many templates, a large share", request(Some(survey(7, 4, 0)), free(), free()), "hold: p 4"),
            ("two policies at once", request(Some(survey(7, 2, 2)), free(), free()), "hold: p 2, q 2"),
            (
                "the other one has waited for long",
                request(Some(survey(7, 2, 2)), free(), Some(held(30))),
                "within: 1",
            ),
            (
                "the other one began to wait just now",
                request(Some(survey(7, 2, 2)), free(), Some(held(40))),
                "hold: p 2",
            ),
            ("the other one was allowed to", request(Some(survey(7, 2, 2)), free(), allowed()), "within: 1"),
            (
                "the other policy is gone, its losses count",
                request(Some(survey(7, 2, 2)), free(), None),
                "hold: p 2",
            ),
            ("its own policy is gone", request(Some(survey(7, 2, 2)), None, free()), "hold: q 2, unowned"),
            ("it belongs to nobody", nobody(Some(survey(7, 2, 2))), "hold: p 2, q 2, unowned"),
            (
                "what went lately counts, too",
                recent(3, request(Some(survey(4, 1, 0)), free(), free())),
                "hold: p 1",
            ),
            (
                "and is a part of everything",
                recent(3, request(Some(survey(5, 1, 0)), free(), free())),
                "within: 1",
            ),
            (
                "its own loss counts though the survey does not know it yet",
                recent(3, request(Some(survey(4, 0, 0)), free(), free())),
                "hold: p 0",
            ),
        ];
        for (name, request, expected) in cases {
            let permit = permit(&request, 1, at(100));
            assert_eq!(words(&permit), expected, "{name}");
            assert_eq!(permit.is_granted(), !expected.starts_with("h"), "{name}");
        }
    }

    #[test]
    fn of_what_is_known_and_what_is_asked_the_larger_counts() {
        let lost = |copies: usize| {
            let asked = Request {
                recent: [("default/a", 1), ("default/b", 1), ("default/c", 1)]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into(),
                ..request(Some(survey(6, 1, 0)), Some(State::Free), None)
            };
            permit(&asked, copies, at(100)).is_granted()
        };
        // Three went, nine copies are the whole: 4 of 9 are fine, 5 of 9 are too many.
        assert!(lost(0), "one copy, as the survey says");
        assert!(lost(1));
        assert!(!lost(2));
    }

    #[test]
    fn when_a_note_comes_off() {
        let cases = [
            (State::Free, 0, Next::Nothing("it holds nothing")),
            (State::Free, 5, Next::Nothing("it holds nothing")),
            (held(0), 5, Next::Later),
            (held(0), 0, Next::Clear),
            (State::Allowed, 1, Next::Later),
            (State::Allowed, 0, Next::Clear),
        ];
        for (state, copies, expected) in cases {
            let note = Note { state, copies };
            assert_eq!(next(&note), expected, "{note:?}");
        }
    }
}
