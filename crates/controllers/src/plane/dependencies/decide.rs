//! Decides about a binding with dependencies, and about the bindings of those. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::config::DependentObjectReference;
use api::labels::DEPENDED_BY_PREFIX;
use api::labels::finalizers::BINDING_DEPENDENCIES;
use api::work::{ObjectReference, ResourceBinding};
use propagation::{Binding, Object, check_scope, dependencies};
use serde_json::Value;

use crate::plane::templates::TemplateKey;

/// What the binding itself says about its dependencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// It propagates no dependencies any more: attached bindings are detached, and the binding is no longer
    /// held.
    LetGo,
    Nothing(&'static str),
    Wait(String),
    /// The dependencies of its template follow it.
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

/// Returns whether the deletion of the binding waits for us.
pub(super) fn is_held(binding: &ResourceBinding) -> bool {
    binding.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == BINDING_DEPENDENCIES)
}

/// Returns whether a binding exists because others need it.
pub(super) fn is_attached(binding: &ResourceBinding) -> bool {
    let mut labels = binding.metadata.labels.iter().flat_map(|labels| labels.keys());
    labels.any(|label| label.starts_with(DEPENDED_BY_PREFIX))
}

/// Returns whether a changed binding has to be reconciled.
pub(super) fn is_news(old: Option<&ResourceBinding>, new: &ResourceBinding) -> bool {
    let concerns = |binding: &ResourceBinding| binding.spec.propagate_deps || is_held(binding);
    match old {
        Some(old) => old.metadata.generation != new.metadata.generation && (concerns(old) || concerns(new)),
        None => concerns(new),
    }
}

/// What is known of a binding that may have dependencies.
pub(crate) struct View {
    pub(super) binding: Arc<ResourceBinding>,
    /// Its template; read only if dependencies have to be distributed.
    pub(super) template: Option<Arc<Value>>,
    /// What the template needs.
    pub(super) wanted: Wanted,
    /// The bindings that are attached to it.
    pub(super) attached: Vec<Attached>,
    /// The objects that are needed and exist.
    pub(super) needed: Vec<Needed>,
    /// Why some could not be looked for.
    pub(super) failures: Vec<String>,
}

/// What a template needs, as far as the interpreter can tell.
#[derive(Debug)]
pub(super) enum Wanted {
    /// The interpreter has no rule for this kind.
    Unsupported,
    /// The answer, by reference.
    These(Vec<DependentObjectReference>),
    /// The interpreter failed: its message, and the same message with the object's name.
    Failed { message: String, error: String },
}

impl Wanted {
    /// Returns whether objects of this one's kind are needed by their labels, so that it takes the object itself to tell whether
    /// it is still needed.
    pub(super) fn selects(&self, resource: &ObjectReference) -> bool {
        let Self::These(wanted) = self else { return false };
        wanted.iter().any(|dependency| {
            dependency.name.is_empty()
                && dependency.api_version == resource.api_version
                && dependency.kind == resource.kind
        })
    }
}

/// A binding that is attached to another one.
pub(super) struct Attached {
    pub(super) binding: Arc<ResourceBinding>,
    /// Its object, if that still exists.
    pub(super) object: Option<Arc<Value>>,
    /// All bindings that require it, as far as they exist.
    pub(super) referrers: Vec<Arc<ResourceBinding>>,
}

/// An object that a template needs.
pub(super) struct Needed {
    pub(super) object: Arc<Value>,
    /// Its existing binding.
    pub(super) existing: Option<Arc<ResourceBinding>>,
    /// The other bindings that require it, as far as they exist.
    pub(super) referrers: Vec<Arc<ResourceBinding>>,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Plan {
    Nothing(&'static str),
    Wait(String),
    /// What is attached is detached, and the binding is no longer held.
    LetGo(Detachments),
    /// The dependencies of the template are unknown; an event says so.
    Refuse {
        message: String,
        error: String,
    },
    Distribute(Box<Distribution>),
}

/// Bindings that are no longer needed: as they are, and as they should be.
#[derive(Debug, Default)]
pub(crate) struct Detachments {
    pub(super) updates: Vec<(Arc<ResourceBinding>, ResourceBinding)>,
    /// Why others stay.
    pub(super) errors: Vec<String>,
}

/// What follows from a binding whose template needs others.
#[derive(Debug)]
pub(crate) struct Distribution {
    /// The binding with the record of what its template needs, held until it is let go.
    pub(super) recorded: ResourceBinding,
    pub(super) detach: Detachments,
    pub(super) attach: Vec<Attach>,
    /// Why some objects are not propagated.
    pub(super) errors: Vec<String>,
}

pub(super) fn decide(view: &View) -> Plan {
    match next(&view.binding) {
        Next::LetGo => Plan::LetGo(detach_all(&view.attached, &view.binding, |_| Ok(true))),
        Next::Nothing(why) => Plan::Nothing(why),
        Next::Wait(what) => Plan::Wait(what),
        Next::Distribute if view.template.is_none() => {
            let name = view.binding.metadata.name.as_deref().unwrap_or("");
            Plan::Wait(format!("for the template of binding {name}"))
        }
        Next::Distribute => match &view.wanted {
            Wanted::Unsupported => Plan::Nothing("nobody knows what its kind needs"),
            Wanted::Failed { message, error } => {
                Plan::Refuse { message: message.clone(), error: error.clone() }
            }
            Wanted::These(wanted) => Plan::Distribute(Box::new(distribute(view, wanted))),
        },
    }
}

fn distribute(view: &View, wanted: &[DependentObjectReference]) -> Distribution {
    let recorded = record(&view.binding, wanted);
    let orphan = |attached: &Attached| {
        dependencies::is_orphan(&attached.binding.spec.resource, wanted, attached.object.as_deref())
    };
    let detach = detach_all(&view.attached, &recorded, orphan);
    let (mut attach, mut errors, mut seen) = (Vec::new(), view.failures.clone(), BTreeSet::new());
    for needed in &view.needed {
        let planned = self::attach(&recorded, needed);
        match planned {
            // A name and a selector may refer to the same object.
            Ok(Attach::Nothing(_)) => {}
            Ok(planned) if seen.insert(TemplateKey::of(&needed.object)) => attach.push(planned),
            Ok(_) => {}
            Err(error) => errors.push(error.to_string()),
        }
    }
    Distribution { recorded, detach, attach, errors }
}

/// Returns the binding with the record of what its template needs, and held until it is let go.
fn record(binding: &ResourceBinding, wanted: &[DependentObjectReference]) -> ResourceBinding {
    let mut recorded = binding.clone();
    dependencies::record(&mut recorded, wanted);
    if !is_held(&recorded) {
        recorded.metadata.finalizers.get_or_insert_default().push(BINDING_DEPENDENCIES.to_owned());
    }
    recorded
}

/// What to do with the binding of an object that another one needs.
#[derive(Debug, PartialEq)]
pub(crate) enum Attach {
    Nothing(&'static str),
    /// It gets one, with a permanent id.
    Create(Box<ResourceBinding>),
    /// It has one; this is the new version, if anything changes, and on what the policies behind it disagree.
    Existing {
        existing: Arc<ResourceBinding>,
        update: Option<Box<ResourceBinding>>,
        disagreement: Option<String>,
    },
}

/// Decides about the binding of an object that `binding` needs.
fn attach(binding: &ResourceBinding, needed: &Needed) -> propagation::Result<Attach> {
    if needed.object.is_deleting() {
        return Ok(Attach::Nothing("the object goes"));
    }
    let mut wanted = dependencies::build_attached(binding, &needed.object);
    check_scope(&wanted)?;
    let known = std::iter::once(binding).chain(needed.referrers.iter().map(AsRef::as_ref));
    let known: Vec<&ResourceBinding> = known.collect();
    let find = |namespace: &str, name: &str| find(&known, namespace, name);
    let Some(existing) = &needed.existing else {
        let built = wanted.clone();
        dependencies::attach(&mut wanted, &built, find)?;
        return Ok(Attach::Create(Box::new(wanted)));
    };
    let mut updated = existing.as_ref().clone();
    let (changed, disagreement) = dependencies::attach(&mut updated, &wanted, find)?;
    let update = changed.then(|| Box::new(updated));
    Ok(Attach::Existing { existing: existing.clone(), update, disagreement })
}

/// Returns the new versions of the attached bindings that `from` no longer needs.
fn detach_all(
    attached: &[Attached],
    from: &ResourceBinding,
    goes: impl Fn(&Attached) -> propagation::Result<bool>,
) -> Detachments {
    let mut all = Detachments::default();
    for one in attached {
        match goes(one).and_then(|goes| if goes { detach(one, from) } else { Ok(None) }) {
            Ok(None) => {}
            Ok(Some(updated)) => all.updates.push((one.binding.clone(), updated)),
            Err(error) => all.errors.push(error.to_string()),
        }
    }
    all
}

/// Returns the new version of an attached binding that `from` no longer needs; nothing if it is unchanged.
fn detach(attached: &Attached, from: &ResourceBinding) -> propagation::Result<Option<ResourceBinding>> {
    let namespace = from.metadata.namespace.as_deref().unwrap_or("");
    let name = from.metadata.name.as_deref().unwrap_or("");
    let mut updated = attached.binding.as_ref().clone();
    let known: Vec<&ResourceBinding> = attached.referrers.iter().map(AsRef::as_ref).collect();
    let find = |namespace: &str, name: &str| find(&known, namespace, name);
    Ok(dependencies::detach(&mut updated, namespace, name, find)?.then_some(updated))
}

fn find<'a>(known: &[&'a ResourceBinding], namespace: &str, name: &str) -> Option<&'a ResourceBinding> {
    known.iter().copied().find(|known| {
        let metadata = Binding::metadata(*known);
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{self, deleting, merged};

    #[test]
    fn a_binding_is_found_by_its_name_in_its_own_namespace() {
        let named = |namespace: &str| {
            fixtures::binding(
                json!({ "metadata": { "namespace": namespace, "name": "web", "uid": namespace } }),
            )
        };
        let (one, other) = (named("a"), named("b"));
        let uid = |namespace: &str, name: &str| {
            find(&[&one, &other], namespace, name).and_then(|found| found.metadata.uid.clone())
        };
        assert_eq!([uid("a", "web"), uid("b", "web")], ["a", "b"].map(|uid| Some(uid.to_owned())));
        assert_eq!([uid("c", "web"), uid("a", "other")], [None, None]);
    }

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

    fn needed(object: Value, existing: Option<&ResourceBinding>) -> Needed {
        Needed { object: Arc::new(object), existing: existing.cloned().map(Arc::new), referrers: Vec::new() }
    }

    fn attached(object: Value, existing: Option<&ResourceBinding>) -> propagation::Result<Attach> {
        attach(&app(json!({})), &needed(object, existing))
    }

    fn made() -> ResourceBinding {
        match attached(map(json!({})), None) {
            Ok(Attach::Create(binding)) => *binding,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_an_object_that_is_needed_gets() {
        let made = made();
        assert_eq!(made.spec.required_by[0].clusters[0].name, "m1");
        let again = attached(map(json!({})), Some(&made));
        assert!(matches!(again, Ok(Attach::Existing { update: None, disagreement: None, .. })), "{again:?}");
        let mut stale = made.clone();
        stale.spec.required_by[0].clusters.clear();
        let update = attached(map(json!({})), Some(&stale));
        let Ok(Attach::Existing { update: Some(update), .. }) = update else { panic!("{update:?}") };
        assert_eq!(update.spec.required_by, made.spec.required_by);
        let going = attached(map(deleting()), None);
        assert!(matches!(going, Ok(Attach::Nothing("the object goes"))), "{going:?}");
        let elsewhere = attached(map(json!({ "metadata": { "namespace": "other" } })), None);
        assert!(elsewhere.is_err(), "objects of other namespaces are not brought along: {elsewhere:?}");
    }

    #[test]
    fn policies_that_disagree_are_told_of() {
        let other = app(json!({
            "metadata": { "name": "other-deployment" },
            "spec": { "conflictResolution": "Overwrite", "clusters": [{ "name": "m2" }] },
        }));
        let Ok(Attach::Create(first)) = attach(&other, &needed(map(json!({})), None)) else { panic!("made") };
        let second = Needed { referrers: vec![Arc::new(other)], ..needed(map(json!({})), Some(&first)) };
        let Ok(Attach::Existing { update: Some(update), disagreement: Some(told), .. }) =
            attach(&app(json!({})), &second)
        else {
            panic!("both need it, and disagree")
        };
        assert!(told.contains("ConflictResolution conflicted"), "{told}");
        let clusters: Vec<&str> =
            update.spec.required_by.iter().map(|by| by.clusters[0].name.as_str()).collect();
        assert_eq!(clusters.len(), 2, "{clusters:?}");
        let unknown = Needed { referrers: Vec::new(), ..second };
        assert!(
            matches!(attach(&app(json!({})), &unknown), Err(propagation::Error::NoReferrer { .. })),
            "one that is not known yet is waited for"
        );
    }

    #[test]
    fn the_binding_of_an_earlier_object_is_waited_for() {
        let mut old = made();
        let owner = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": "old", "controller": true }]);
        old.metadata.owner_references = Some(fixtures::read(owner));
        assert!(matches!(attached(map(json!({})), Some(&old)), Err(propagation::Error::ForeignOwner { .. })));
    }

    fn alone(binding: ResourceBinding) -> Attached {
        Attached { binding: Arc::new(binding), object: Some(Arc::new(map(json!({})))), referrers: Vec::new() }
    }

    #[test]
    fn what_is_no_longer_needed_is_detached_once() {
        let (app, made) = (app(json!({})), made());
        let detached = detach(&alone(made), &app).unwrap().expect("it changes");
        assert!(detached.spec.required_by.is_empty() && !is_attached(&detached));
        assert_eq!(detach(&alone(detached), &app).unwrap(), None);
    }

    fn reference(name: &str) -> DependentObjectReference {
        fixtures::read(
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": name }),
        )
    }

    #[test]
    fn where_it_takes_the_object_to_tell_whether_it_is_needed() {
        let reference_to = |api_version: &str, kind: &str| ObjectReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: "web".to_owned(),
            ..ObjectReference::default()
        };
        let selected = || Wanted::These(vec![reference("web"), reference("")]);
        let cases = [
            ("its kind is selected", selected(), reference_to("v1", "ConfigMap"), true),
            ("another kind is", selected(), reference_to("v1", "Secret"), false),
            ("another group is", selected(), reference_to("example.io/v1", "ConfigMap"), false),
            (
                "only names are wanted",
                Wanted::These(vec![reference("web")]),
                reference_to("v1", "ConfigMap"),
                false,
            ),
            ("nothing is wanted", Wanted::Unsupported, reference_to("v1", "ConfigMap"), false),
        ];
        for (name, wanted, resource, expected) in cases {
            assert_eq!(wanted.selects(&resource), expected, "{name}");
        }
    }

    fn view(otherwise: Value, wanted: Wanted) -> View {
        View {
            binding: Arc::new(app(otherwise)),
            template: Some(Arc::new(json!({ "apiVersion": "apps/v1", "kind": "Deployment" }))),
            wanted,
            attached: Vec::new(),
            needed: Vec::new(),
            failures: Vec::new(),
        }
    }

    fn words(plan: &Plan) -> String {
        match plan {
            Plan::Nothing(why) => format!("nothing: {why}"),
            Plan::Wait(what) => format!("wait {what}"),
            Plan::LetGo(all) => format!("let go, detach {}, {} errors", all.updates.len(), all.errors.len()),
            Plan::Refuse { message, error } => format!("refuse: {message} ({error})"),
            Plan::Distribute(all) => format!(
                "detach {}, attach {}, {} errors",
                all.detach.updates.len(),
                all.attach.len(),
                all.detach.errors.len() + all.errors.len()
            ),
        }
    }

    #[test]
    fn what_follows_from_what_a_template_needs() {
        let these = |names: &[&str]| Wanted::These(names.iter().map(|name| reference(name)).collect());
        let failed = || Wanted::Failed { message: "m".to_owned(), error: "e".to_owned() };
        let letting_go = || json!({ "spec": { "propagateDeps": false } });
        let foreign = || map(json!({ "metadata": { "namespace": "other" } }));
        let cases = [
            ("nothing", view(json!({}), these(&[])), "detach 0, attach 0, 0 errors"),
            (
                "nobody knows",
                view(json!({}), Wanted::Unsupported),
                "nothing: nobody knows what its kind needs",
            ),
            ("the interpreter failed", view(json!({}), failed()), "refuse: m (e)"),
            (
                "the template is not there",
                View { template: None, ..view(json!({}), these(&["web"])) },
                "wait for the template of binding app-deployment",
            ),
            (
                "one that exists",
                View { needed: vec![needed(map(json!({})), None)], ..view(json!({}), these(&["web"])) },
                "detach 0, attach 1, 0 errors",
            ),
            (
                "the same one twice",
                View {
                    needed: vec![needed(map(json!({})), None), needed(map(json!({})), None)],
                    ..view(json!({}), these(&["web", "web"]))
                },
                "detach 0, attach 1, 0 errors",
            ),
            (
                "one that goes is not brought along",
                View { needed: vec![needed(map(deleting()), None)], ..view(json!({}), these(&["web"])) },
                "detach 0, attach 0, 0 errors",
            ),
            (
                "one that must not be brought along does not keep others back",
                View {
                    needed: vec![needed(foreign(), None), needed(map(json!({})), None)],
                    ..view(json!({}), these(&["web"]))
                },
                "detach 0, attach 1, 1 errors",
            ),
            (
                "neither does one that could not be looked for",
                View {
                    needed: vec![needed(map(json!({})), None)],
                    failures: vec!["kind X is not known".to_owned()],
                    ..view(json!({}), these(&["web"]))
                },
                "detach 0, attach 1, 1 errors",
            ),
            (
                "one that is still needed stays attached",
                View { attached: vec![alone(made())], ..view(json!({}), these(&["web"])) },
                "detach 0, attach 0, 0 errors",
            ),
            (
                "one that is no longer needed is detached",
                View { attached: vec![alone(made())], ..view(json!({}), these(&["else"])) },
                "detach 1, attach 0, 0 errors",
            ),
            (
                "all are detached when nothing is brought along any more",
                View { attached: vec![alone(made())], ..view(letting_go(), these(&["web"])) },
                "let go, detach 1, 0 errors",
            ),
            (
                "what was detached before is left alone",
                View {
                    attached: vec![alone(
                        detach(&alone(made()), &app(json!({}))).unwrap().expect("it changes"),
                    )],
                    ..view(letting_go(), Wanted::Unsupported)
                },
                "let go, detach 0, 0 errors",
            ),
            (
                "it has no clusters to follow",
                view(json!({ "spec": { "clusters": [] } }), these(&["web"])),
                "nothing: it has no clusters to follow",
            ),
        ];
        for (name, view, expected) in cases {
            assert_eq!(words(&decide(&view)), expected, "{name}");
        }
    }

    #[test]
    fn what_a_template_needs_is_recorded_and_the_binding_held() {
        let plan = decide(&view(json!({}), Wanted::These(vec![reference("web")])));
        let Plan::Distribute(all) = plan else { panic!("{plan:?}") };
        assert!(is_held(&all.recorded));
        assert_eq!(dependencies::parse(&all.recorded).unwrap(), [reference("web")]);
        let again = record(&all.recorded, &[reference("web")]);
        assert_eq!(again, all.recorded, "held once");
    }
}
