//! ResourceBinding and ClusterResourceBinding: the permanent ID, recorded dependencies, quotas, names of components.

use apimachinery::field::{Error, Errors, Path};
use serde_json::Value;

use api::config::DependentObjectReference;
use api::features::{FEDERATED_QUOTA_ENFORCEMENT, MULTIPLE_POD_TEMPLATES_SCHEDULING};
use api::labels::annotations::DEPENDENCIES;
use api::work::{Binding, Component, ResourceBindingSpec};

use crate::request::{
    Denial, Operation, Request, Settings, canonical, deny_if_any, label, set_label, set_spec, spec,
};
use crate::usage::{self, Charge};

/// Gives a new binding its permanent ID; one that is supplied is kept.
pub(crate) fn mutate<B: Binding>(
    request: &Request<'_>,
    object: &mut Value,
    fresh_id: &mut dyn FnMut() -> String,
) -> Result<(), Denial> {
    if request.operation != Operation::Create {
        return Ok(());
    }
    // As upstream, where the rules know the stored version only.
    if request.version != B::VERSION {
        return Err(Denial::unreadable(format!(
            "unable to decode {}/{}, Kind={} into *{}.{}",
            request.group,
            request.version,
            request.kind,
            B::VERSION,
            request.kind
        )));
    }
    let mut binding: ResourceBindingSpec = spec(object)?;
    let needs = binding.replica_requirements.iter_mut().map(|needs| &mut needs.resource_request);
    let components = binding.components.iter_mut().filter_map(|component| {
        component.replica_requirements.as_mut().map(|needs| &mut needs.resource_request)
    });
    needs.chain(components).flat_map(|request| request.values_mut()).for_each(canonical);
    set_spec(object, &binding);
    if label(object, B::PERMANENT_ID).unwrap_or_default().is_empty() {
        set_label(object, B::PERMANENT_ID, fresh_id());
    }
    Ok(())
}

/// Returns whether quotas have to be asked for this write: the change in usage is not nothing.
pub(crate) fn asks_quotas(request: &Request<'_>, object: &Value, settings: &Settings) -> bool {
    settings.features.enabled(FEDERATED_QUOTA_ENFORCEMENT)
        && delta(request, object).is_ok_and(|delta| !delta.is_empty())
}

fn delta(request: &Request<'_>, object: &Value) -> Result<usage::Usage, Denial> {
    let old: Option<ResourceBindingSpec> = match (request.operation, request.old) {
        (Operation::Update | Operation::Delete, Some(old)) => Some(spec(old)?),
        _ => None,
    };
    let new = if request.operation == Operation::Delete { None } else { Some(spec(object)?) };
    Ok(usage::change(old.as_ref(), new.as_ref()))
}

/// Returns the quotas to be charged for a write of a binding, or its removal. `bindings` are those of the namespace as stored,
/// if a quota [was not counted yet](must_count).
pub(crate) fn charge(
    request: &Request<'_>,
    object: &Value,
    quotas: &[Value],
    bindings: &[Value],
) -> Result<Vec<Charge>, Denial> {
    let bindings = bindings.iter().map(spec).collect::<Result<Vec<ResourceBindingSpec>, Denial>>()?;
    usage::charge(&delta(request, object)?, quotas, &usage::total(&bindings))
}

/// Says whether what the quotas say of their usage cannot be relied on.
pub(crate) fn must_count(quotas: &[Value]) -> bool {
    !quotas.iter().all(usage::is_counted)
}

/// Checks a binding, apart from quotas.
pub(crate) fn validate(
    _: &Request<'_>,
    object: &Value,
    settings: &Settings,
    _: &[Value],
) -> Result<(), Denial> {
    let binding: ResourceBindingSpec = spec(object)?;
    deny_if_any(&check_dependencies(object))?;
    if settings.features.enabled(MULTIPLE_POD_TEMPLATES_SCHEDULING) {
        deny_if_any(&check_components(&binding.components))?;
    }
    Ok(())
}

fn check_dependencies(object: &Value) -> Errors {
    let annotations = object["metadata"].get("annotations");
    let Some(text) = annotations.and_then(|all| all.get(DEPENDENCIES)).and_then(Value::as_str) else {
        return Errors::new();
    };
    match serde_json::from_str::<Option<Vec<DependentObjectReference>>>(text) {
        Ok(_) => Errors::new(),
        Err(_) => vec![Error::invalid(
            &Path::new("metadata").child("annotations").child(DEPENDENCIES),
            text,
            "annotation value must be a valid JSON",
        )],
    }
}

fn check_components(components: &[Component]) -> Errors {
    let mut errors = Errors::new();
    let mut seen = std::collections::BTreeSet::new();
    for (index, component) in components.iter().enumerate() {
        let at = Path::new("spec").child("components").index(index).child("name");
        let name = component.name.as_str();
        if name.is_empty() {
            errors.push(Error::invalid(&at, name, "component names must be non-empty"));
        } else if !seen.insert(name) {
            errors.push(Error::invalid(&at, name, "component names must be unique"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use api::features::Features;
    use api::labels::{CLUSTER_RESOURCE_BINDING_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID};

    use super::*;
    use crate::request::means;

    fn request(operation: Operation, kind: &str) -> Request<'_> {
        Request { operation, group: "work.karmada.io", version: "v1alpha2", kind, namespace: "ns", old: None }
    }

    #[test]
    fn a_new_binding_gets_an_id_unless_it_brings_one() {
        let mut fresh = || "fresh".to_owned();
        let mut object = json!({ "metadata": { "name": "b" } });
        crate::mutate(&request(Operation::Create, "ResourceBinding"), &mut object, &mut means(&mut fresh))
            .unwrap();
        assert_eq!(object["metadata"]["labels"][RESOURCE_BINDING_PERMANENT_ID], "fresh");
        let mut object =
            json!({ "metadata": { "labels": { CLUSTER_RESOURCE_BINDING_PERMANENT_ID: "mine" } } });
        crate::mutate(
            &request(Operation::Create, "ClusterResourceBinding"),
            &mut object,
            &mut means(&mut fresh),
        )
        .unwrap();
        assert_eq!(object["metadata"]["labels"][CLUSTER_RESOURCE_BINDING_PERMANENT_ID], "mine");
        let mut object = json!({ "metadata": {} });
        crate::mutate(&request(Operation::Update, "ResourceBinding"), &mut object, &mut means(&mut fresh))
            .unwrap();
        assert_eq!(object, json!({ "metadata": {} }), "updates are left alone");
    }

    #[test]
    fn an_empty_choice_counts_as_absent() {
        let mut object = json!({ "metadata": { "name": "b" }, "spec": {
            "resource": { "apiVersion": "v1", "kind": "ConfigMap", "name": "c" }, "conflictResolution": "",
        } });
        let request = request(Operation::Create, "ResourceBinding");
        crate::mutate(&request, &mut object, &mut means(&mut || "fresh".to_owned())).unwrap();
        assert_eq!(
            object["spec"],
            json!({ "resource": { "apiVersion": "v1", "kind": "ConfigMap", "name": "c" } })
        );
    }

    #[test]
    fn recorded_dependencies_must_be_a_list_of_references() {
        let judge = |text: &str| {
            let object = json!({ "metadata": { "annotations": { DEPENDENCIES: text } } });
            crate::validate(
                &request(Operation::Update, "ResourceBinding"),
                &object,
                &Settings::default(),
                &[],
            )
        };
        assert_eq!(judge(r#"[{"apiVersion":"v1","kind":"Secret","name":"s"}]"#), Ok(()));
        assert_eq!(judge("null"), Ok(()));
        for bad in ["", "{}", "[1]", "nonsense"] {
            assert!(judge(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn component_names_are_checked_when_the_feature_is_on() {
        let object =
            json!({ "metadata": {}, "spec": { "components": [{ "name": "a" }, { "name": "a" }, {}] } });
        let request = request(Operation::Create, "ResourceBinding");
        assert!(crate::validate(&request, &object, &Settings::default(), &[]).is_ok());
        let settings = Settings {
            features: Features::default().with(MULTIPLE_POD_TEMPLATES_SCHEDULING, true),
            ..Settings::default()
        };
        let denial = crate::validate(&request, &object, &settings, &[]).unwrap_err();
        assert!(denial.message.contains("spec.components[1].name"), "{}", denial.message);
        assert!(denial.message.contains("spec.components[2].name"), "{}", denial.message);
    }
}
