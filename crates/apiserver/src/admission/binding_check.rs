//! Validates the parts that policies and their bindings share: which resources they match, and which parameters they take.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::pointer;
use apimachinery::selector::label;
use serde_json::{Value, json};

use super::policies::list;

/// Checks the `spec` of a binding.
pub(super) fn check(spec: &Value, path: &Path, validating: bool, errors: &mut Errors) {
    let (policy, at) = (pointer::owned(spec, "/policyName"), path.child("policyName"));
    if policy.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        let wrong = names::dns1123_subdomain(&policy).into_iter();
        errors.extend(wrong.map(|wrong| Error::invalid(&at, policy.clone(), wrong)));
    }
    if spec["paramRef"].is_object() {
        param_ref(errors, &spec["paramRef"], &path.child("paramRef"));
    }
    if spec["matchResources"].is_object() {
        let at = path.child("matchResources");
        match_resources(errors, &spec["matchResources"], &at);
        if !validating {
            changeable(errors, &spec["matchResources"], &at);
        }
    }
    if validating {
        actions(errors, spec, &path.child("validationActions"));
    }
}

/// Checks that a text is one of the allowed words.
pub(super) fn one_of(errors: &mut Errors, at: &Path, value: &str, supported: &[&str]) {
    if value.is_empty() {
        errors.push(Error::required(at, ""));
    } else if !supported.contains(&value) {
        errors.push(Error::not_supported(at, value, supported));
    }
}

/// Checks `matchConstraints` or `matchResources`.
pub(super) fn match_resources(errors: &mut Errors, given: &Value, path: &Path) {
    one_of(
        errors,
        &path.child("matchPolicy"),
        &pointer::owned(given, "/matchPolicy"),
        &["Equivalent", "Exact"],
    );
    for field in ["namespaceSelector", "objectSelector"] {
        if given[field].is_object() {
            errors.extend(label::validate_object(&given[field], &path.child(field)));
        } else {
            errors.push(Error::required(&path.child(field), ""));
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in list(given, field).enumerate() {
            let at = path.child(field).index(index);
            let mut seen: HashSet<&str> = HashSet::new();
            for (index, name) in list(rule, "resourceNames").filter_map(Value::as_str).enumerate() {
                let at = at.child("resourceNames").index(index);
                let wrong = names::path_segment(name).into_iter();
                errors.extend(wrong.map(|wrong| Error::invalid(&at, name, wrong)));
                if !seen.insert(name) {
                    errors.push(Error::duplicate(&at, name));
                }
            }
            errors.extend(native::validation::admission_rule(rule, &at));
        }
    }
}

/// Finds operations that leave nothing to mutate.
pub(super) fn changeable(errors: &mut Errors, given: &Value, path: &Path) {
    let at = path.child("resourceRules").child("operations");
    let supported = ["*", "CONNECT", "CREATE", "UPDATE"];
    for rule in list(given, "resourceRules") {
        for operation in list(rule, "operations").filter_map(Value::as_str) {
            if !supported.contains(&operation) {
                errors.push(Error::not_supported(&at, operation, &supported));
            }
        }
    }
}

fn param_ref(errors: &mut Errors, given: &Value, path: &Path) {
    let (name, selected) = (pointer::owned(given, "/name"), given["selector"].is_object());
    let exclusive = "name and selector are mutually exclusive";
    if !name.is_empty() {
        let at = path.child("name");
        let wrong = names::path_segment(&name).into_iter();
        errors.extend(wrong.map(|wrong| Error::invalid(&at, name.clone(), wrong)));
        if selected {
            errors.push(Error::forbidden(&at, exclusive));
        }
    }
    if selected {
        let at = path.child("selector");
        errors.extend(label::validate_object(&given["selector"], &at));
        if !name.is_empty() {
            errors.push(Error::forbidden(&at, exclusive));
        }
    }
    if name.is_empty() && !selected {
        errors.push(Error::required(path, "one of name or selector must be specified"));
    }
    let action = pointer::owned(given, "/parameterNotFoundAction");
    one_of(errors, &path.child("parameterNotFoundAction"), &action, &["Deny", "Allow"]);
}

fn actions(errors: &mut Errors, spec: &Value, at: &Path) {
    let actions: Vec<&str> = list(spec, "validationActions").filter_map(Value::as_str).collect();
    let mut seen = HashSet::new();
    for (index, action) in actions.iter().enumerate() {
        let supported = ["Audit", "Deny", "Warn"];
        if !supported.contains(action) {
            errors.push(Error::not_supported(&at.index(index), *action, &supported));
        }
        if !seen.insert(action) {
            errors.push(Error::duplicate(&at.index(index), *action));
        }
    }
    if actions.contains(&"Deny") && actions.contains(&"Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(Error::invalid(at, json!(actions), detail));
    }
    if actions.is_empty() {
        errors.push(Error::required(at, "at least one validation action is required"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(spec: Value) -> Vec<String> {
        let mut errors = Errors::new();
        check(&spec, &Path::new("spec"), true, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parameters_have_a_name_or_a_selector() {
        let spec = |reference: Value| json!({"policyName": "p", "validationActions": ["Deny"], "paramRef": reference});
        assert!(wrong(spec(json!({"name": "a", "parameterNotFoundAction": "Deny"}))).is_empty());
        let both = json!({"name": "a/b", "selector": {}, "parameterNotFoundAction": "Shrug"});
        assert_eq!(
            wrong(spec(both)),
            [
                "spec.paramRef.name: Invalid value: \"a/b\": may not contain '/'",
                "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
                "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
                "spec.paramRef.parameterNotFoundAction: Unsupported value: \"Shrug\": supported values: \"Deny\", \"Allow\"",
            ]
        );
    }

    #[test]
    fn a_resource_is_named_once() {
        let rule = json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/*", "pods/status"],
            "resourceNames": ["a", "a"]});
        let resources = json!({"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [rule]});
        assert_eq!(
            wrong(json!({"policyName": "p", "validationActions": ["Deny"], "matchResources": resources})),
            [
                "spec.matchResources.resourceRules[0].resourceNames[1]: Duplicate value: \"a\"",
                "spec.matchResources.resourceRules[0].resources[1]: Invalid value: \"pods/status\": if 'pods/*' is present, must not specify pods/status",
            ]
        );
    }
}
