//! Decides which slices of a Service are collected, and for which controller. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::work::Work;
use propagation::Object;
use runtime::Guard;
use serde_json::Value;

use super::super::ServiceKey;
use super::super::works::{Ensure, MOST_SLICES, Token, collected, is_going, manifest, released, tokens};
use super::SLICE;

/// What is known of a Service in a member.
pub(crate) struct View {
    pub(super) key: ServiceKey,
    /// Whether the member has a ServiceExport; `None` if that is not known, or not our responsibility.
    pub(super) exported: Option<bool>,
    /// Whether a MultiClusterService asks for its endpoints; `None` if that is not our responsibility.
    pub(super) requested: Option<bool>,
    /// The member's own slices of the Service, if they are wanted and the member can be asked.
    pub(super) slices: Option<Vec<Arc<Value>>>,
    /// The Works that hold its slices.
    pub(super) collected: Vec<Arc<Work>>,
    /// The cluster is being removed, and its Works with it.
    pub(super) leaves: bool,
}

impl View {
    /// Returns whether a slice was collected for this one.
    pub(super) fn has(&self, token: Token) -> bool {
        self.collected.iter().any(|work| tokens(work).contains(&token))
    }

    fn wish(&self, token: Token) -> Option<bool> {
        match token {
            Token::ServiceExport => self.exported,
            Token::MultiClusterService => self.requested,
        }
    }

    /// Returns which controllers want a slice, given which wanted it before: unknown answers stay as they
    /// were.
    fn wanting(&self, before: &BTreeSet<Token>) -> BTreeSet<Token> {
        let wants = |token: &Token| self.wish(*token).unwrap_or_else(|| before.contains(token));
        Token::ALL.into_iter().filter(wants).collect()
    }
}

/// What is to be done, and what cannot be.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) errors: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Without an identity: it gets one when it is written.
    Create(Box<Work>),
    Update {
        from: Arc<Work>,
        to: Box<Work>,
        guard: Guard,
    },
    Delete(Arc<Work>),
}

impl Step {
    /// The labels of a Work tell who wants it. A MultiClusterService may release it at the same moment, so they are changed only in the
    /// version that was seen.
    fn update(from: &Arc<Work>, to: Work) -> Self {
        let same = from.metadata.labels == to.metadata.labels;
        let guard = if same { Guard::Fields } else { Guard::Version };
        Self::Update { from: Arc::clone(from), to: Box::new(to), guard }
    }
}

pub(super) fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    if view.leaves {
        return plan;
    }
    let name_of = |work: &Work| manifest(work, SLICE).map(|slice| slice.name().to_owned());
    let mut seen = BTreeSet::new();
    let mut slices: Vec<&Arc<Value>> = view.slices.iter().flatten().collect();
    if slices.len() > MOST_SLICES {
        slices.sort_by_key(|slice| slice.name());
        plan.errors.push(format!(
            "cluster {} has {} EndpointSlices of the Service {}; {MOST_SLICES} of them are collected",
            view.key.cluster,
            slices.len(),
            view.key.service
        ));
        slices.truncate(MOST_SLICES);
    }
    for slice in slices {
        let existing = view.collected.iter().find(|work| name_of(work).as_deref() == Some(slice.name()));
        let before = existing.map(|work| tokens(work)).unwrap_or_default();
        let wanting = view.wanting(&before);
        if wanting.is_empty() {
            continue;
        }
        seen.insert(slice.name().to_owned());
        let wanted = match collected(&view.key.cluster, slice, &view.key.service, &wanting) {
            Ok(wanted) => wanted,
            Err(error) => {
                plan.errors.push(error.to_string());
                continue;
            }
        };
        match (wanted.ensure(existing.map(AsRef::as_ref)), existing) {
            (Ensure::Create(work), _) => plan.steps.push(Step::Create(work)),
            (Ensure::Update(work), Some(existing)) => plan.steps.push(Step::update(existing, *work)),
            // It is created again when the old one is gone.
            _ => {}
        }
    }
    for work in view.collected.iter().filter(|work| !is_going(work)) {
        if name_of(work).is_some_and(|name| seen.contains(&name)) {
            continue;
        }
        let before = tokens(work);
        let mut left = view.wanting(&before);
        // If the member's slices are known, this one no longer exists.
        if view.slices.is_some() {
            left.retain(|token| view.wish(*token).is_none());
        }
        left.retain(|token| before.contains(token));
        if left == before {
            continue;
        }
        plan.steps.push(match released(work, &left) {
            Some(released) => Step::update(work, released),
            None => Step::Delete(Arc::clone(work)),
        });
    }
    plan
}

#[cfg(test)]
mod tests {
    use runtime::Key;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{deleting, merged, read};
    use crate::plane::works::identify;

    fn key() -> ServiceKey {
        ServiceKey { cluster: "m1".to_owned(), service: Key::new("shop", "web") }
    }

    fn slice(name: &str, address: &str) -> Arc<Value> {
        Arc::new(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": "shop", "uid": "u", "labels": { "kubernetes.io/service-name": "web" } },
            "endpoints": [{ "addresses": [address] }], "ports": [{ "name": "http", "port": 80 }],
        }))
    }

    fn work(name: &str, tokens: &[Token], otherwise: Value) -> Arc<Work> {
        let wanted =
            collected("m1", &slice(name, "10.0.0.1"), &key().service, &tokens.iter().copied().collect());
        let Ensure::Create(mut work) = wanted.unwrap().ensure(None) else { panic!("it is made") };
        identify(&mut work, "id");
        Arc::new(read(merged(serde_json::to_value(work).unwrap(), otherwise)))
    }

    fn words(plan: &Plan) -> Vec<String> {
        let about = |work: &Work| {
            let labels = work.metadata.labels.clone().unwrap_or_default();
            let by = labels.get("endpointslice.karmada.io/managed-by").cloned().unwrap_or_default();
            let named: Vec<&str> = ["multiclusterservice.karmada.io/name", "endpointslice.karmada.io/name"]
                .into_iter()
                .filter(|key| labels.contains_key(*key))
                .map(|key| key.split('.').next().unwrap_or(""))
                .collect();
            format!("{by} {}", named.join("+"))
        };
        let step = |step: &Step| match step {
            Step::Create(work) => format!("create {}", about(work)),
            Step::Update { to, .. } => format!("update {}", about(to)),
            Step::Delete(_) => "delete".to_owned(),
        };
        plan.steps.iter().map(step).collect()
    }

    #[test]
    fn what_is_collected_and_for_whom() {
        use Token::{MultiClusterService as M, ServiceExport as E};
        let one = || Some(vec![slice("a", "10.0.0.1")]);
        let moved = || Some(vec![slice("a", "10.0.0.2")]);
        let none: fn() -> Option<Vec<Arc<Value>>> = || Some(Vec::new());
        let (yes, no) = (Some(true), Some(false));
        let has = |tokens: &[Token]| vec![work("a", tokens, json!({}))];
        let both = "MultiClusterService.ServiceExport multiclusterservice+endpointslice";
        // Name; whether it is exported and asked for; the member's slices; what is collected; then: what happens.
        type Slices = Option<Vec<Arc<Value>>>;
        type Case<'a> = (&'a str, Option<bool>, Option<bool>, Slices, Vec<Arc<Work>>, Vec<String>);
        let cases: Vec<Case<'_>> = vec![
            ("exported", yes, no, one(), vec![], vec!["create ServiceExport endpointslice".into()]),
            (
                "asked for",
                no,
                yes,
                one(),
                vec![],
                vec!["create MultiClusterService multiclusterservice".into()],
            ),
            ("both", yes, yes, one(), vec![], vec![format!("create {both}")]),
            ("as it should be", yes, no, one(), has(&[E]), vec![]),
            ("both, as it should be", yes, yes, one(), has(&[E, M]), vec![]),
            (
                "its endpoints changed",
                yes,
                no,
                moved(),
                has(&[E]),
                vec!["update ServiceExport endpointslice".into()],
            ),
            ("the second one comes", yes, yes, one(), has(&[E]), vec![format!("update {both}")]),
            ("one goes", yes, no, one(), has(&[E, M]), vec!["update ServiceExport endpointslice".into()]),
            (
                "the other goes",
                no,
                yes,
                one(),
                has(&[E, M]),
                vec!["update MultiClusterService multiclusterservice".into()],
            ),
            ("both go", no, no, None, has(&[E, M]), vec!["delete".into()]),
            ("the slice is gone", yes, yes, none(), has(&[E, M]), vec!["delete".into()]),
            (
                "one is not ours to judge",
                None,
                no,
                None,
                has(&[E, M]),
                vec!["update ServiceExport endpointslice".into()],
            ),
            (
                "the slice is gone, and one is not ours to judge",
                None,
                yes,
                none(),
                has(&[E, M]),
                vec!["update ServiceExport endpointslice".into()],
            ),
            ("nothing is known", None, None, None, has(&[E, M]), vec![]),
            ("the member is away", None, yes, None, has(&[M]), vec![]),
            ("the old one goes", yes, no, one(), vec![work("a", &[E], deleting())], vec![]),
            ("nobody wants it", no, no, None, vec![], vec![]),
            ("nobody wants what the member has", no, no, one(), vec![], vec![]),
            ("nobody wants it, and it goes already", no, no, None, vec![work("a", &[E], deleting())], vec![]),
            ("the member is away, and one more asks", None, yes, None, has(&[E]), vec![]),
            (
                "another slice comes",
                yes,
                no,
                Some(vec![slice("a", "10.0.0.1"), slice("b", "10.0.0.2")]),
                has(&[E]),
                vec!["create ServiceExport endpointslice".into()],
            ),
        ];
        for (name, exported, requested, slices, collected, expected) in cases {
            let view = View { key: key(), exported, requested, slices, collected, leaves: false };
            assert_eq!(words(&decide(&view)), expected, "{name}");
        }
        let leaving = View {
            key: key(),
            exported: no,
            requested: no,
            slices: None,
            collected: has(&[E]),
            leaves: true,
        };
        assert_eq!(words(&decide(&leaving)), Vec::<String>::new(), "the cluster leaves");
    }

    #[test]
    fn of_too_many_slices_some_are_collected_and_the_rest_is_told_of() {
        let plan = |count: usize| {
            // In any order.
            let slices = (0..count).rev().map(|number| slice(&format!("s{number:05}"), "10.0.0.1"));
            decide(&View {
                key: key(),
                exported: Some(true),
                requested: None,
                slices: Some(slices.collect()),
                collected: Vec::new(),
                leaves: false,
            })
        };
        let most = plan(MOST_SLICES);
        assert_eq!((most.steps.len(), most.errors.len()), (MOST_SLICES, 0), "so many are fine");
        let plan = plan(MOST_SLICES + 1);
        assert_eq!(plan.steps.len(), MOST_SLICES);
        let is_last = |step: &Step| {
            let Step::Create(work) = step else { panic!("{step:?}") };
            manifest(work, SLICE).is_some_and(|slice| slice.name() == "s01000")
        };
        assert!(!plan.steps.iter().any(is_last), "the same ones each time: the last one by name is left out");
        let told = "cluster m1 has 1001 EndpointSlices of the Service shop/web; 1000 of them are collected";
        assert_eq!(plan.errors, [told]);
    }

    #[test]
    fn a_slice_that_does_not_fit_into_a_work_is_told_and_keeps_no_other_back() {
        let mut deep = Value::clone(&slice("a", "10.0.0.1"));
        deep["ports"] = (0..200).fold(json!([]), |inside, _| json!([inside]));
        let plan = decide(&View {
            key: key(),
            exported: Some(true),
            requested: None,
            slices: Some(vec![Arc::new(deep), slice("b", "10.0.0.2")]),
            collected: vec![work("a", &[Token::ServiceExport], json!({}))],
            leaves: false,
        });
        assert_eq!(words(&plan), ["create ServiceExport endpointslice"], "what was collected before stays");
        assert_eq!(plan.errors.len(), 1, "{:?}", plan.errors);
    }

    #[test]
    fn who_wants_a_slice_is_changed_only_in_the_version_that_was_seen() {
        use Token::{MultiClusterService as M, ServiceExport as E};
        let guard = |requested: bool, address: &str| {
            let view = View {
                key: key(),
                exported: Some(true),
                requested: Some(requested),
                slices: Some(vec![slice("a", address)]),
                collected: vec![work("a", &[E, M], json!({}))],
                leaves: false,
            };
            match decide(&view).steps.pop() {
                Some(Step::Update { guard, .. }) => guard,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(guard(true, "10.0.0.2"), Guard::Fields, "only its endpoints changed");
        assert_eq!(guard(false, "10.0.0.1"), Guard::Version);
        assert_eq!(guard(false, "10.0.0.2"), Guard::Version);
    }

    #[test]
    fn a_collected_work_is_never_carried_out_and_is_held_by_those_who_bring_it_further() {
        let made = work("a", &[Token::ServiceExport, Token::MultiClusterService], json!({}));
        assert_eq!(made.spec.suspend_dispatching, Some(true));
        assert_eq!(
            made.metadata.finalizers.clone().unwrap(),
            ["karmada.io/mcs-endpointslice-dispatch-controller", "karmada.io/endpointslice-controller"]
        );
        assert_eq!(
            made.metadata.name.as_deref(),
            Some(api::names::work("EndpointSlice", "a", "shop").as_str())
        );
    }
}
