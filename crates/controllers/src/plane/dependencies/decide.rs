//! What becomes of a binding that brings others along, and of those. Pure.

use std::sync::Arc;

use api::labels::finalizers::BINDING_DEPENDENCIES;
use api::labels::{DEPENDED_BY_PREFIX, RESOURCE_BINDING_PERMANENT_ID};
use api::work::ResourceBinding;
use propagation::{Binding, Object, check_scope, dependencies};
use serde_json::Value;

/// What becomes of a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// It brings nothing along any more: what is attached is detached, and the binding is no longer held.
    LetGo,
    Nothing(&'static str),
    Wait(String),
    /// What its template needs follows it.
    Distribute,
}

pub(super) fn next(binding: &ResourceBinding) -> Next {
    if !binding.spec.propagate_deps || binding.metadata.deletion_timestamp.is_some() {
        return Next::LetGo;
    }
    // Upstream waits for the first placement, too.
    if binding.spec.clusters.is_empty() && !is_held(binding) {
        return Next::Nothing("it has no clusters to follow");
    }
    if !dependencies::distributes(binding) {
        let name = binding.metadata.name.as_deref().unwrap_or("");
        return Next::Wait(format!("for the permanent id of binding {name}"));
    }
    if check_scope(binding).is_err() {
        return Next::Nothing("it is out of scope, which the binding controller tells");
    }
    Next::Distribute
}

/// Returns whether the binding waits for us before it goes.
pub(super) fn is_held(binding: &ResourceBinding) -> bool {
    binding.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == BINDING_DEPENDENCIES)
}

/// Returns whether a binding is there because others need it.
pub(super) fn is_attached(binding: &ResourceBinding) -> bool {
    let mut labels = binding.metadata.labels.iter().flat_map(|labels| labels.keys());
    labels.any(|label| label.starts_with(DEPENDED_BY_PREFIX))
}

/// Returns whether a binding that changed has to be looked at.
pub(super) fn is_news(old: Option<&ResourceBinding>, new: &ResourceBinding) -> bool {
    let concerns = |binding: &ResourceBinding| binding.spec.propagate_deps || is_held(binding);
    match old {
        Some(old) => old.metadata.generation != new.metadata.generation && (concerns(old) || concerns(new)),
        None => concerns(new),
    }
}

/// What becomes of the binding of an object that another one needs.
#[derive(Debug, PartialEq)]
pub(super) enum Attach {
    Nothing(&'static str),
    Create(Box<ResourceBinding>),
    /// It exists; this is how it is to be, if anything changes, and on what the policies behind it disagree.
    Existing {
        update: Option<Box<ResourceBinding>>,
        disagreement: Option<String>,
    },
}

/// Decides about the binding of an object that `binding` needs. `referrers` are the bindings that need it, as far as they are
/// known.
pub(super) fn attach(
    object: &Value,
    skipped: bool,
    mut wanted: ResourceBinding,
    existing: Option<&ResourceBinding>,
    referrers: &[Arc<ResourceBinding>],
    fresh_id: impl FnOnce() -> String,
) -> propagation::Result<Attach> {
    if object.is_deleting() {
        return Ok(Attach::Nothing("the object goes"));
    }
    if skipped {
        return Ok(Attach::Nothing("the object is not propagated"));
    }
    check_scope(&wanted)?;
    let find = |namespace: &str, name: &str| find(referrers, namespace, name);
    let Some(existing) = existing else {
        let built = wanted.clone();
        dependencies::attach(&mut wanted, &built, find)?;
        let labels = wanted.metadata.labels.get_or_insert_default();
        labels.insert(RESOURCE_BINDING_PERMANENT_ID.to_owned(), fresh_id());
        return Ok(Attach::Create(Box::new(wanted)));
    };
    let mut updated = existing.clone();
    let (changed, disagreement) = dependencies::attach(&mut updated, &wanted, find)?;
    Ok(Attach::Existing { update: changed.then(|| Box::new(updated)), disagreement })
}

/// Returns how an attached binding is to be when `from` no longer needs it; nothing if it is so already.
pub(super) fn detach(
    attached: &ResourceBinding,
    from: &ResourceBinding,
    referrers: &[Arc<ResourceBinding>],
) -> propagation::Result<Option<ResourceBinding>> {
    let namespace = from.metadata.namespace.as_deref().unwrap_or("");
    let name = from.metadata.name.as_deref().unwrap_or("");
    let mut updated = attached.clone();
    let find = |namespace: &str, name: &str| find(referrers, namespace, name);
    Ok(dependencies::detach(&mut updated, namespace, name, find)?.then_some(updated))
}

fn find<'a>(
    referrers: &'a [Arc<ResourceBinding>],
    namespace: &str,
    name: &str,
) -> Option<&'a ResourceBinding> {
    referrers.iter().map(AsRef::as_ref).find(|known| {
        let metadata = Binding::metadata(*known);
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, deleting, merged};

    fn app(otherwise: Value) -> ResourceBinding {
        let base = json!({ "metadata": { "name": "app-deployment" }, "spec": {
            "propagateDeps": true, "clusters": [{ "name": "m1" }],
            "resource": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "app", "uid": "d" },
        } });
        fixtures::binding(merged(base, otherwise))
    }

    #[test]
    fn what_becomes_of_a_binding() {
        let held = || json!({ "metadata": { "finalizers": [BINDING_DEPENDENCIES] } });
        let alone = || json!({ "spec": { "propagateDeps": false } });
        let nowhere = || json!({ "spec": { "clusters": [] } });
        let cases = [
            ("it brings others along", json!({}), Next::Distribute),
            ("it stopped bringing others along", alone(), Next::LetGo),
            ("it goes", merged(held(), deleting()), Next::LetGo),
            ("it is not placed yet", nowhere(), Next::Nothing("it has no clusters to follow")),
            ("it lost its clusters", merged(nowhere(), held()), Next::Distribute),
            (
                "it stands for an object of another namespace",
                json!({ "spec": { "resource": { "namespace": "other" } } }),
                Next::Nothing("it is out of scope, which the binding controller tells"),
            ),
        ];
        for (name, otherwise, expected) in cases {
            assert_eq!(next(&app(otherwise)), expected, "{name}");
        }
        let mut nameless = app(json!({}));
        nameless.metadata.labels = None;
        assert_eq!(next(&nameless), Next::Wait("for the permanent id of binding app-deployment".to_owned()));
    }

    #[test]
    fn which_changes_count() {
        let alone = || json!({ "spec": { "propagateDeps": false } });
        let later = |otherwise: Value| merged(json!({ "metadata": { "generation": 2 } }), otherwise);
        let held = || json!({ "metadata": { "finalizers": [BINDING_DEPENDENCIES] } });
        let cases = [
            ("it is new", None, json!({}), true),
            ("it is new, and alone", None, alone(), false),
            ("it is new, alone and held", None, merged(alone(), held()), true),
            ("its spec changed", Some(json!({})), later(json!({})), true),
            ("its status changed", Some(json!({})), json!({}), false),
            ("it begins to bring others along", Some(alone()), later(json!({})), true),
            ("it stops", Some(json!({})), later(alone()), true),
            ("alone before and after", Some(alone()), later(alone()), false),
        ];
        for (name, old, new, expected) in cases {
            let old = old.map(app);
            assert_eq!(is_news(old.as_ref(), &app(new)), expected, "{name}");
        }
        assert!(!is_attached(&app(json!({}))));
        let label = format!("{DEPENDED_BY_PREFIX}abc");
        assert!(is_attached(&app(json!({ "metadata": { "labels": { label: "id" } } }))));
    }

    fn map(otherwise: Value) -> Value {
        let base = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "web", "namespace": "default", "uid": "t" },
        });
        merged(base, otherwise)
    }

    fn attached(
        object: &Value,
        existing: Option<&ResourceBinding>,
        skipped: bool,
    ) -> propagation::Result<Attach> {
        let app = app(json!({}));
        let wanted = dependencies::build_attached(&app, object);
        attach(object, skipped, wanted, existing, &[Arc::new(app)], || "fresh".to_owned())
    }

    fn made() -> ResourceBinding {
        match attached(&map(json!({})), None, false) {
            Ok(Attach::Create(binding)) => *binding,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_an_object_that_is_needed_gets() {
        let made = made();
        assert_eq!(made.permanent_id(), "fresh");
        assert_eq!(made.spec.required_by[0].clusters[0].name, "m1");
        let again = attached(&map(json!({})), Some(&made), false);
        assert!(matches!(again, Ok(Attach::Existing { update: None, disagreement: None })), "{again:?}");
        let mut stale = made.clone();
        stale.spec.required_by[0].clusters.clear();
        let update = attached(&map(json!({})), Some(&stale), false);
        let Ok(Attach::Existing { update: Some(update), .. }) = update else { panic!("{update:?}") };
        assert_eq!(update.spec.required_by, made.spec.required_by);
        let going = attached(&map(deleting()), None, false);
        assert!(matches!(going, Ok(Attach::Nothing("the object goes"))), "{going:?}");
        let skipped = attached(&map(json!({})), None, true);
        assert!(matches!(skipped, Ok(Attach::Nothing("the object is not propagated"))), "{skipped:?}");
    }

    #[test]
    fn the_binding_of_an_earlier_object_is_waited_for() {
        let mut old = made();
        let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "old", "controller": true }]);
        old.metadata.owner_references = Some(fixtures::read(owner));
        assert!(matches!(
            attached(&map(json!({})), Some(&old), false),
            Err(propagation::Error::ForeignOwner { .. })
        ));
    }

    #[test]
    fn what_is_no_longer_needed_is_detached_once() {
        let (app, made) = (app(json!({})), made());
        let detached = detach(&made, &app, &[]).unwrap().expect("it changes");
        assert!(detached.spec.required_by.is_empty() && !is_attached(&detached));
        assert_eq!(detach(&detached, &app, &[]).unwrap(), None);
    }
}
