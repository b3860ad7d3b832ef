//! OverridePolicy and ClusterOverridePolicy.
//!
//! A single policy may have no more rules and overriders than may apply to one object, and no more operations than one patch.
//!
//! As upstream, the deprecated single-rule form, plain patches and image values are not looked at.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::patch::json::MAX_OPERATIONS;
use serde_json::Value;

use ::propagation::overrides::{MAX_ENTRIES, MAX_RULES, entries};
use api::policy::{
    FieldOverrider, OverrideSpec, OverriderOperator, Overriders, PatchOperation, RuleWithCluster,
};

use crate::placement;
use crate::request::{Denial, Request, deny_if_any, encode, invalid, set_spec, spec, too_many};

/// All annotations of an object together may take this many bytes.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

/// Fills the namespace of selectors. Only the namespaced kind comes here.
pub(crate) fn mutate(request: &Request<'_>, object: &mut Value) -> Result<(), Denial> {
    let mut policy: OverrideSpec = spec(object)?;
    for selector in &mut policy.resource_selectors {
        if selector.namespace.is_empty() {
            selector.namespace = request.namespace.to_owned();
        }
    }
    set_spec(object, &policy);
    drop_unset_values(&mut object["spec"]);
    Ok(())
}

/// Takes the `value: null` of operations without a value out again: it does not survive upstream's patch either.
fn drop_unset_values(spec: &mut Value) {
    match spec {
        Value::Object(fields) => {
            let is_operation = fields.contains_key("operator");
            fields.retain(|key, value| !(is_operation && key == "value" && value.is_null()));
            fields.values_mut().for_each(drop_unset_values);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_unset_values),
        _ => {}
    }
}

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let policy: OverrideSpec = spec(object)?;
    // Before anything that looks at each of them.
    deny_if_any(&check_size(request, object, &policy))?;
    // An empty list counts as rules too. The namespaced kind has lost it by now, the other one has not.
    let has_rules = object["spec"].get("overrideRules").is_some_and(Value::is_array);
    deny_if_any(&check(&policy, has_rules, request.namespace))
}

/// Rules of a policy can all apply to the same object, and so do its overriders.
fn check_size(request: &Request<'_>, object: &Value, policy: &OverrideSpec) -> Errors {
    let path = Path::new("spec");
    let all = || {
        policy.override_rules.iter().map(|rule| &rule.overriders).chain(std::iter::once(&policy.overriders))
    };
    let fields = all().flat_map(|overriders| &overriders.field_overrider);
    let operations: usize = fields.map(|field| field.json.len().saturating_add(field.yaml.len())).sum();
    let limits = [
        (path.child("overrideRules"), policy.override_rules.len(), MAX_RULES, "rules"),
        (path.clone(), all().map(entries).sum(), MAX_ENTRIES, "overriders in all rules"),
        (path.clone(), operations, MAX_OPERATIONS, "operations of field overriders in all rules"),
    ];
    limits
        .into_iter()
        .filter_map(|(at, count, most, what)| {
            let mut error = too_many(request, object, &at, count, most)?;
            error.detail = format!("must have at most {most} {what}");
            Some(error)
        })
        .collect()
}

fn check(policy: &OverrideSpec, has_rules: bool, namespace: &str) -> Errors {
    let path = Path::new("spec");
    let target = path.child("targetCluster");
    let mut errors = placement::affinity(policy.target_cluster.as_ref(), &target);
    if let (Some(cluster), true) = (&policy.target_cluster, has_rules) {
        errors.push(invalid(&target, cluster, "overrideRules and targetCluster can't co-exist"));
    }
    if has_rules && changes_something(&policy.overriders) {
        errors.push(invalid(
            &path.child("overriders"),
            &policy.overriders,
            "overrideRules and overriders can't co-exist",
        ));
    }
    for (index, rule) in policy.override_rules.iter().enumerate() {
        errors.extend(check_rule(rule, &path.child("overrideRules").index(index)));
    }
    errors.extend(placement::selectors(
        &policy.resource_selectors,
        namespace,
        &path.child("resourceSelectors"),
    ));
    errors
}

/// Field overriders do not count: upstream forgot them when they were added, and users rely on what is accepted.
fn changes_something(overriders: &Overriders) -> bool {
    !(overriders.plaintext.is_empty()
        && overriders.image_overrider.is_empty()
        && overriders.command_overrider.is_empty()
        && overriders.args_overrider.is_empty()
        && overriders.labels_overrider.is_empty()
        && overriders.annotations_overrider.is_empty())
}

fn check_rule(rule: &RuleWithCluster, path: &Path) -> Errors {
    let mut errors = Errors::new();
    let here = path.child("overriders");
    for (index, overrider) in rule.overriders.annotations_overrider.iter().enumerate() {
        let at = here.child("annotationsOverrider").index(index).child("value");
        let mut size = 0_usize;
        for (key, value) in &overrider.value {
            for fault in names::qualified_name(&key.to_lowercase()) {
                errors.push(Error::invalid(&at, key.as_str(), fault));
            }
            size = size.saturating_add(key.len()).saturating_add(value.len());
        }
        if size > ANNOTATIONS_MAX_BYTES {
            errors.push(Error::too_long(&at, ANNOTATIONS_MAX_BYTES));
        }
    }
    for (index, overrider) in rule.overriders.labels_overrider.iter().enumerate() {
        let at = here.child("labelsOverrider").index(index).child("value");
        for (key, value) in &overrider.value {
            for fault in names::qualified_name(key) {
                errors.push(Error::invalid(&at, key.as_str(), fault));
            }
            for fault in names::label_value(value) {
                errors.push(Error::invalid(&at, value.as_str(), fault));
            }
        }
    }
    for (index, overrider) in rule.overriders.image_overrider.iter().enumerate() {
        if let Some(predicate) = &overrider.predicate {
            let at = here.child("imageOverrider").index(index).child("predicate").child("path");
            errors.extend(pointer(&predicate.path, &at));
        }
    }
    for (index, overrider) in rule.overriders.field_overrider.iter().enumerate() {
        errors.extend(check_field(overrider, &here.child("fieldOverrider").index(index)));
    }
    errors.extend(placement::affinity(rule.target_cluster.as_ref(), &path.child("targetCluster")));
    errors
}

fn check_field(overrider: &FieldOverrider, path: &Path) -> Errors {
    let mut errors = Errors::new();
    match (overrider.json.is_empty(), overrider.yaml.is_empty()) {
        (false, false) => errors.push(invalid(
            path,
            overrider,
            "FieldOverrider has both YAML and JSON set. Only one is allowed",
        )),
        (true, true) => {
            errors.push(Error::required(path, "FieldOverrider must have either JSON or YAML set"));
        }
        _ => {}
    }
    errors.extend(pointer(&overrider.field_path, &path.child("fieldPath")));
    for (name, operations) in [("json", &overrider.json), ("yaml", &overrider.yaml)] {
        for (index, operation) in operations.iter().enumerate() {
            errors.extend(check_operation(operation, &path.child(name).index(index)));
        }
    }
    errors
}

fn check_operation(operation: &PatchOperation, path: &Path) -> Errors {
    let mut errors = pointer(&operation.sub_path, &path.child("subPath"));
    let at = path.child("value");
    let value = encode(&operation.value);
    match operation.operator {
        OverriderOperator::Add | OverriderOperator::Replace if operation.value.is_none() => {
            errors.push(Error::invalid(&at, value, "value is required for add or replace operation"));
        }
        OverriderOperator::Remove if operation.value.is_some() => {
            errors.push(Error::invalid(&at, value, "value is not allowed for remove operation"));
        }
        _ => {}
    }
    errors
}

fn pointer(text: &str, path: &Path) -> Errors {
    if text.is_empty() || text.starts_with('/') {
        return Errors::new();
    }
    // Two errors of Go, joined by a line break as Go joins them; upstream forgot to close the quotation.
    let fault = "JSON pointer must be empty or start with a \"/\nJSON pointer error";
    vec![Error::invalid(path, text, fault)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::means;
    use crate::{Operation, Settings};

    fn judge(kind: &str, namespace: &str, spec: Value) -> Result<(), Denial> {
        let request = Request {
            operation: Operation::Create,
            group: "policy.karmada.io",
            version: "v1alpha1",
            kind,
            namespace,
            old: None,
        };
        let mut object = json!({ "metadata": { "name": "o" }, "spec": spec });
        crate::mutate(&request, &mut object, &mut means(&mut || panic!("override policies have no ID")))?;
        crate::validate(&request, &object, &Settings::default(), &[]).map(|_| ())
    }

    fn fields(spec: Value) -> Vec<String> {
        let policy = serde_json::from_value(spec).unwrap();
        check(&policy, true, "").into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn selectors_get_the_namespace_of_the_policy_and_may_not_leave_it() {
        let selector = json!({ "apiVersion": "v1", "kind": "Pod" });
        assert_eq!(judge("OverridePolicy", "ns", json!({ "resourceSelectors": [selector] })), Ok(()));
        let foreign = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "other" });
        let denial = judge("OverridePolicy", "ns", json!({ "resourceSelectors": [foreign] })).unwrap_err();
        assert!(denial.message.starts_with("spec.resourceSelectors[0].namespace: Invalid value: \"other\""));
        assert_eq!(judge("ClusterOverridePolicy", "", json!({ "resourceSelectors": [foreign] })), Ok(()));
    }

    #[test]
    fn an_empty_list_of_rules_counts_for_the_cluster_kind_only() {
        let spec = json!({ "targetCluster": {}, "overrideRules": [] });
        assert_eq!(judge("OverridePolicy", "ns", spec.clone()), Ok(()));
        let denial = judge("ClusterOverridePolicy", "", spec).unwrap_err();
        assert!(denial.message.ends_with("overrideRules and targetCluster can't co-exist"));
    }

    #[test]
    fn rules_and_the_old_form_exclude_each_other_except_for_field_overriders() {
        let rules = json!([{ "overriders": {} }]);
        assert_eq!(
            fields(
                json!({ "overrideRules": rules, "overriders": { "plaintext": [{ "path": "/a", "operator": "add" }] } })
            ),
            ["spec.overriders"]
        );
        let lenient =
            json!({ "overrideRules": rules, "overriders": { "fieldOverrider": [{ "fieldPath": "x" }] } });
        assert!(fields(lenient).is_empty());
    }

    #[test]
    fn finding_25_a_policy_has_only_so_many_rules_and_overriders() {
        let field = json!({ "fieldPath": "/data/x", "json": [{ "subPath": "/a", "operator": "remove" }] });
        let rule = |overriders: Value| json!({ "overriders": overriders });
        let entries = |count: usize| json!({ "fieldOverrider": vec![field.clone(); count] });
        let operation = json!({ "subPath": "/a", "operator": "remove" });
        let many = json!({ "fieldOverrider": [{ "fieldPath": "/data/x", "json": vec![operation; 10_001] }] });
        let cases = [
            (json!({ "overrideRules": vec![rule(json!({})); 1000] }), None),
            (
                json!({ "overrideRules": vec![rule(json!({})); 1001] }),
                Some("spec.overrideRules: Too many: 1001: must have at most 1000 rules"),
            ),
            (json!({ "overrideRules": [rule(entries(500)), rule(entries(500))] }), None),
            (
                json!({ "overrideRules": [rule(entries(500)), rule(entries(501))] }),
                Some("spec: Too many: 1001: must have at most 1000 overriders in all rules"),
            ),
            (
                json!({ "overriders": entries(1001) }),
                Some("spec: Too many: 1001: must have at most 1000 overriders in all rules"),
            ),
            (
                json!({ "overrideRules": [rule(many)] }),
                Some(
                    "spec: Too many: 10001: must have at most 10000 operations of field overriders in all rules",
                ),
            ),
        ];
        for (spec, expected) in cases {
            for (kind, namespace) in [("OverridePolicy", "ns"), ("ClusterOverridePolicy", "")] {
                let found = judge(kind, namespace, spec.clone()).map_err(|denial| denial.message);
                assert_eq!(found.as_ref().err().map(String::as_str), expected);
            }
        }
    }

    #[test]
    fn finding_25_a_policy_from_before_the_limits_can_still_be_deleted() {
        let rules = |count: usize| json!({ "overrideRules": vec![json!({ "overriders": {} }); count] });
        let stored = json!({ "metadata": { "name": "o", "finalizers": ["f"] }, "spec": rules(1001) });
        let update = |spec: Value| {
            let request = Request {
                operation: Operation::Update,
                group: "policy.karmada.io",
                version: "v1alpha1",
                kind: "ClusterOverridePolicy",
                namespace: "",
                old: Some(&stored),
            };
            validate(&request, &json!({ "metadata": { "name": "o" }, "spec": spec }))
        };
        assert_eq!(update(rules(1001)), Ok(()), "its finalizer goes");
        assert_eq!(update(rules(1000)), Ok(()));
        assert!(update(rules(1002)).is_err());
    }

    #[test]
    fn each_overrider_of_a_rule_is_checked_at_its_place() {
        let rule = json!({
            "targetCluster": { "fieldSelector": { "matchExpressions": [{ "key": "x", "operator": "In" }] } },
            "overriders": {
                "annotationsOverrider": [{ "operator": "add", "value": { "bad key": "v" } }],
                "labelsOverrider": [{ "operator": "add", "value": { "k": "bad value" } }],
                "imageOverrider": [{ "component": "Tag", "operator": "add", "predicate": { "path": "spec" } }],
                "fieldOverrider": [
                    { "fieldPath": "data" },
                    { "fieldPath": "/data/x", "json": [
                        { "subPath": "a", "operator": "add" },
                        { "subPath": "/a", "operator": "remove", "value": 1 },
                        { "subPath": "", "operator": "replace", "value": 0 },
                    ] },
                ],
            },
        });
        let at = "spec.overrideRules[0].overriders";
        assert_eq!(
            fields(json!({ "overrideRules": [rule] })),
            [
                format!("{at}.annotationsOverrider[0].value"),
                format!("{at}.labelsOverrider[0].value"),
                format!("{at}.imageOverrider[0].predicate.path"),
                format!("{at}.fieldOverrider[0]"),
                format!("{at}.fieldOverrider[0].fieldPath"),
                format!("{at}.fieldOverrider[1].json[0].subPath"),
                format!("{at}.fieldOverrider[1].json[0].value"),
                format!("{at}.fieldOverrider[1].json[1].value"),
                "spec.overrideRules[0].targetCluster.fieldSelector".to_owned(),
            ]
        );
    }
}
