//! The interpreter with the layers that users configure: scripts and webhooks come before the built-in rules.
//!
//! One interpreter serves all controllers of a process. Its layers follow the mirrors of
//! ResourceInterpreterCustomization and ResourceInterpreterWebhookConfiguration. A slow or faulty layer
//! affects only the key whose object it is asked about: scripts run on separate threads ([`pool`]), waiting
//! for a webhook takes no thread, and a key that waits for either gives up its place in the queue and at the
//! member ([`runtime::place`]).
//!
//! A change of a configuration is a [`Lesson`]: controllers reconcile the objects that it concerns.

mod pool;
mod scripts;
mod transport;
mod webhooks;

use std::sync::Arc;

use api::config::{
    InterpreterOperation, ResourceInterpreterCustomization, ResourceInterpreterWebhookConfiguration, Rule,
    RuleWithOperations,
};
use api::features::{self, Features};
use apimachinery::gvk::Gvk;
use interpreter::pods::PriorityClass;
use interpreter::{Interpreter, Layer, Operation};
use kube::Client;
use propagation::Binding;
use runtime::{Change, Mirror};

use crate::mirrors::Mirrors;

/// Returns the interpreter of a process: configured rules from the mirrors come before built-in ones.
pub(crate) fn interpreter(mirrors: &Mirrors, client: Client, features: &Features) -> Interpreter {
    let class = if features.enabled(features::RESOURCE_QUOTA_ESTIMATE) {
        PriorityClass::Needed
    } else {
        PriorityClass::Ignored
    };
    let scripts: Arc<dyn Layer> = Arc::new(scripts::Scripts::new(&mirrors.customizations, class));
    let webhooks: Arc<dyn Layer> = Arc::new(webhooks::Webhooks::new(&mirrors.interpreter_webhooks, client));
    Interpreter::built_in([scripts, webhooks]).with_priority_class(class)
}

/// The kinds and operations whose rules have changed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lesson(Vec<RuleWithOperations>);

impl Lesson {
    /// Returns whether one of these operations may be answered differently for a kind from now on.
    pub(crate) fn concerns(&self, kind: &Gvk, operations: &[Operation]) -> bool {
        operations
            .iter()
            .any(|operation| self.0.iter().any(|rule| interpreter::webhook::matches(rule, kind, *operation)))
    }

    /// Returns the bindings whose templates it concerns.
    pub(crate) fn bindings<B: Binding>(&self, mirror: &Mirror<B>, operations: &[Operation]) -> Vec<Arc<B>> {
        let mut all = mirror.all();
        all.retain(|binding| {
            let resource = &binding.spec().resource;
            self.concerns(&Gvk::from_api_version(&resource.api_version, &resource.kind), operations)
        });
        all
    }

    fn of_customization(change: &Change<'_, ResourceInterpreterCustomization>) -> Option<Self> {
        let rules = [&change.old, &change.new].map(|version| version.as_deref().map(|it| &it.spec));
        if change.initial || rules[0] == rules[1] {
            return None;
        }
        let taught = rules.into_iter().flatten().map(|spec| {
            let target = Gvk::from_api_version(&spec.target.api_version, &spec.target.kind);
            let scripts = interpreter::scripts(&spec.customizations).into_iter();
            let operations = scripts
                .filter(|(_, script)| script.is_some())
                .map(|(operation, _)| InterpreterOperation::from(operation.as_str()))
                .collect();
            let (api_groups, api_versions) = (vec![target.group], vec![target.version]);
            RuleWithOperations {
                operations,
                rule: Rule { api_groups, api_versions, kinds: vec![target.kind] },
            }
        });
        Some(Self(taught.collect()))
    }

    fn of_webhooks(change: &Change<'_, ResourceInterpreterWebhookConfiguration>) -> Option<Self> {
        let hooks = [&change.old, &change.new].map(|version| version.as_deref().map(|it| &it.webhooks));
        if change.initial || hooks[0] == hooks[1] {
            return None;
        }
        Some(Self(hooks.into_iter().flatten().flatten().flat_map(|hook| hook.rules.clone()).collect()))
    }
}

/// Calls `told` when rules change, but not for the first lists: no controller has used the interpreter before
/// they are complete.
pub(crate) fn on_lessons(mirrors: &Mirrors, told: impl Fn(&Lesson) + Send + Sync + 'static) {
    let told = Arc::new(told);
    let also = told.clone();
    mirrors.customizations.subscribe(move |change| {
        Lesson::of_customization(change).iter().for_each(|lesson| told(lesson));
    });
    mirrors.interpreter_webhooks.subscribe(move |change| {
        Lesson::of_webhooks(change).iter().for_each(|lesson| also(lesson));
    });
}

#[cfg(test)]
mod tests {
    use runtime::Key;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, read};

    fn customization(kind: &str, rules: Value) -> Option<Arc<ResourceInterpreterCustomization>> {
        Some(Arc::new(read(json!({ "metadata": { "name": "c" }, "spec": {
            "target": { "apiVersion": "apps/v1", "kind": kind }, "customizations": rules,
        } }))))
    }

    #[test]
    fn which_kinds_and_operations_a_change_concerns() {
        let key = Key::new("", "c");
        let script = |text: &str| json!({ "luaScript": text });
        let health =
            |text: &str| customization("Deployment", json!({ "healthInterpretation": script(text) }));
        let retain = || customization("Deployment", json!({ "retention": script("a") }));
        let other = || customization("StatefulSet", json!({ "healthInterpretation": script("a") }));
        let all = [Operation::InterpretHealth, Operation::Retain];
        let cases = [
            ("found by the first list", None, health("a"), true, vec![]),
            ("it is new", None, health("a"), false, vec!["Deployment InterpretHealth"]),
            ("it says the same", health("a"), health("a"), false, vec![]),
            ("it says something else", health("a"), health("b"), false, vec!["Deployment InterpretHealth"]),
            ("it is gone", health("a"), None, false, vec!["Deployment InterpretHealth"]),
            (
                "it answers something else",
                health("a"),
                retain(),
                false,
                vec!["Deployment InterpretHealth", "Deployment Retain"],
            ),
            (
                "it is about another kind",
                health("a"),
                other(),
                false,
                vec!["Deployment InterpretHealth", "StatefulSet InterpretHealth"],
            ),
        ];
        for (name, old, new, initial, expected) in cases {
            let lesson = Lesson::of_customization(&Change { key: &key, old, new, ours: false, initial });
            let mut found = Vec::new();
            for kind in ["Deployment", "StatefulSet"] {
                for operation in all {
                    let kind = Gvk::new("apps", "v1", kind);
                    if lesson.as_ref().is_some_and(|lesson| lesson.concerns(&kind, &[operation])) {
                        found.push(format!("{} {operation}", kind.kind));
                    }
                }
            }
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn bindings_are_found_by_the_kind_of_their_template() {
        let mirror = Mirror::default();
        mirror.put(&Key::new("default", "web-configmap"), "7", Arc::new(fixtures::binding(json!({}))));
        let key = Key::new("", "hooks");
        let configuration = |group: &str| {
            Some(Arc::new(read(json!({ "metadata": { "name": "hooks" }, "webhooks": [{
                "name": "a", "clientConfig": {}, "interpreterContextVersions": ["v1alpha1"], "rules": [{
                    "operations": ["Retain"], "apiGroups": [group], "apiVersions": ["*"], "kinds": ["ConfigMap"],
                }],
            }] }))))
        };
        for (group, operation, expected) in [
            ("", Operation::Retain, 1),
            ("*", Operation::Retain, 1),
            ("apps", Operation::Retain, 0),
            ("", Operation::InterpretHealth, 0),
        ] {
            let change =
                Change { key: &key, old: None, new: configuration(group), ours: false, initial: false };
            let lesson = Lesson::of_webhooks(&change).expect("something new");
            assert_eq!(lesson.bindings(&mirror, &[operation]).len(), expected, "{group:?} {operation}");
        }
    }
}
