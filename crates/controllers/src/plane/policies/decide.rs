//! Decides about the templates of a policy. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use propagation::policies::{Policy, Preemption};
use serde_json::Value;

use crate::plane::BindingKey;
use crate::plane::templates::TemplateKey;

/// What is known of a policy and its templates.
pub(crate) struct View<P> {
    pub(super) policy: Arc<P>,
    /// It has a permanent id, without which it cannot claim.
    pub(super) has_identity: bool,
    /// The bindings that carry its claim, with their templates as far as they are known.
    pub(super) bound: Vec<(BindingKey, Option<Arc<Value>>)>,
    /// The templates of the kinds it selects that carry its claim. Searched for only if the policy is lazy or
    /// being deleted.
    pub(super) claimed: Vec<Arc<Value>>,
    /// Unclaimed templates that it selects.
    pub(super) waiting: Vec<TemplateKey>,
    /// The templates it names, and whether it takes them over; empty unless it may.
    pub(super) named: Vec<(TemplateKey, Preemption)>,
}

/// What to do, in this order, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) why: &'static str,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Give it what admission would have given it: its permanent id and its finalizer.
    Introduce,
    /// Remove its claim from a template and its binding.
    Release(TemplateKey),
    /// Remove its claim from a binding.
    ReleaseBinding(BindingKey),
    /// Enqueue a template: the policy may now say something else about it.
    Look(TemplateKey),
    /// Take a template over from a policy that ranks lower.
    Take(TemplateKey),
    /// Remove the policy's finalizer.
    LetGo,
}

/// Why something is done.
const GOES: &str = "the policy goes, and takes its claims along";
const UNKNOWN: &str = "the policy has no permanent id to claim with";
const SELECTS: &str = "the policy may say something else about these templates";
const SETTLED: &str = "the policy has no templates, and none waits for it";

pub(super) fn decide<P: Policy>(view: &View<P>) -> Plan {
    let (policy, mut steps) = (view.policy.as_ref(), Vec::new());
    // A policy may select any number of templates.
    let mut added = HashSet::new();
    let mut add = |step: Step| {
        if added.insert(step.clone()) {
            steps.push(step);
        }
    };
    if policy.is_deleting() {
        if view.has_identity {
            view.claimed.iter().for_each(|template| add(Step::Release(TemplateKey::of(template))));
            for (key, template) in &view.bound {
                // A template of a kind that is no longer among the selectors still carries the claim. It is
                // released first: once the binding is released, the template can no longer be found.
                template.iter().for_each(|template| add(Step::Release(TemplateKey::of(template))));
                add(Step::ReleaseBinding(key.clone()));
            }
        }
        add(Step::LetGo);
        return Plan { why: GOES, steps };
    }
    if !view.has_identity {
        return Plan { why: UNKNOWN, steps: vec![Step::Introduce] };
    }
    // A template that is not mirrored yet is enqueued when it is mirrored.
    for template in view.bound.iter().filter_map(|(_, template)| template.as_ref()) {
        let key = TemplateKey::of(template);
        add(if policy.selects(template) { Step::Look(key) } else { Step::Release(key) });
    }
    // A lazy policy claims without binding.
    for template in view.claimed.iter().filter(|template| policy.is_lazy() && !policy.selects(template)) {
        add(Step::Release(TemplateKey::of(template)));
    }
    view.waiting.iter().for_each(|key| add(Step::Look(key.clone())));
    let taken = view.named.iter().filter(|(_, preemption)| *preemption == Preemption::Take);
    taken.for_each(|(key, _)| add(Step::Take(key.clone())));
    Plan { why: if steps.is_empty() { SETTLED } else { SELECTS }, steps }
}

#[cfg(test)]
mod tests {
    use api::policy::PropagationPolicy;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{deleting, merged, read};

    fn template(kind: &str, name: &str) -> Arc<Value> {
        Arc::new(json!({
            "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": "default", "uid": name },
        }))
    }

    fn key(kind: &str, name: &str) -> TemplateKey {
        TemplateKey::of(&template(kind, name))
    }

    #[test]
    fn finding_25_very_many_templates_of_a_policy_are_looked_at_in_linear_time() {
        const MANY: usize = 100_000;
        let waiting: Vec<TemplateKey> = (0..MANY)
            .map(|number| TemplateKey { name: format!("c{number}"), ..key("ConfigMap", "c") })
            .collect();
        let view = View { waiting: [waiting.clone(), waiting].concat(), ..view(json!({})) };
        // Looking for each among those before would take minutes.
        let steps = decide(&view).steps;
        assert_eq!((steps.len(), &steps[1]), (MANY, &Step::Look(key("ConfigMap", "c1"))), "each once");
    }

    fn binding(name: &str) -> BindingKey {
        BindingKey::new("default", name)
    }

    /// A policy that selects ConfigMaps.
    fn view(otherwise: Value) -> View<PropagationPolicy> {
        let base = json!({
            "metadata": { "name": "p", "namespace": "default" },
            "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "ConfigMap" }], "placement": {} },
        });
        View {
            policy: Arc::new(read(merged(base, otherwise))),
            has_identity: true,
            bound: Vec::new(),
            claimed: Vec::new(),
            waiting: Vec::new(),
            named: Vec::new(),
        }
    }

    #[test]
    fn what_becomes_of_the_templates_of_a_policy() {
        let lazy = || json!({ "spec": { "activationPreference": "Lazy" } });
        let both = || {
            vec![
                (binding("a"), Some(template("ConfigMap", "a"))),
                (binding("s"), Some(template("Secret", "s"))),
            ]
        };
        let claimed = || vec![template("ConfigMap", "a"), template("Secret", "s")];
        let cases = [
            ("nothing is known", view(json!({})), vec![]),
            (
                "it has no identity",
                View { has_identity: false, bound: both(), ..view(json!({})) },
                vec![Step::Introduce],
            ),
            (
                "what it selects is looked at, what it left is released",
                View { bound: both(), ..view(json!({})) },
                vec![Step::Look(key("ConfigMap", "a")), Step::Release(key("Secret", "s"))],
            ),
            (
                "a template that is not known yet",
                View { bound: vec![(binding("a"), None)], ..view(json!({})) },
                vec![],
            ),
            (
                "what a lazy policy claimed without binding it",
                View { claimed: claimed(), ..view(lazy()) },
                vec![Step::Release(key("Secret", "s"))],
            ),
            (
                "one that is not lazy has bindings for all",
                View { claimed: claimed(), ..view(json!({})) },
                vec![],
            ),
            (
                "once is enough",
                View { bound: both(), claimed: claimed(), ..view(lazy()) },
                vec![Step::Look(key("ConfigMap", "a")), Step::Release(key("Secret", "s"))],
            ),
            (
                "what waits is looked at",
                View { waiting: vec![key("ConfigMap", "w")], ..view(json!({})) },
                vec![Step::Look(key("ConfigMap", "w"))],
            ),
            (
                "what it may take it takes",
                View {
                    named: vec![
                        (key("ConfigMap", "a"), Preemption::Take),
                        (key("ConfigMap", "b"), Preemption::Outranked),
                        (key("ConfigMap", "c"), Preemption::Own),
                        (key("ConfigMap", "d"), Preemption::Unclaimed),
                        (key("ConfigMap", "e"), Preemption::HolderGone),
                    ],
                    ..view(json!({}))
                },
                vec![Step::Take(key("ConfigMap", "a"))],
            ),
            (
                "it goes",
                View {
                    bound: both(),
                    claimed: vec![template("ConfigMap", "c")],
                    waiting: vec![key("ConfigMap", "w")],
                    ..view(deleting())
                },
                vec![
                    Step::Release(key("ConfigMap", "c")),
                    Step::Release(key("ConfigMap", "a")),
                    Step::ReleaseBinding(binding("a")),
                    Step::Release(key("Secret", "s")),
                    Step::ReleaseBinding(binding("s")),
                    Step::LetGo,
                ],
            ),
            (
                "it goes, and some templates are not known",
                View { bound: vec![(binding("a"), None)], ..view(deleting()) },
                vec![Step::ReleaseBinding(binding("a")), Step::LetGo],
            ),
            (
                "it goes without ever having had an identity",
                View { has_identity: false, bound: both(), ..view(deleting()) },
                vec![Step::LetGo],
            ),
        ];
        for (name, view, expected) in cases {
            let why = match &expected[..] {
                _ if view.policy.is_deleting() => GOES,
                [] => SETTLED,
                [Step::Introduce] => UNKNOWN,
                _ => SELECTS,
            };
            assert_eq!(decide(&view), Plan { why, steps: expected }, "{name}");
        }
    }
}
