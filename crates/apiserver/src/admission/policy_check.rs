//! Validates an admission policy or its binding as written: missing and unsupported fields, and expressions that do not compile.
//! It also checks the conditions of webhooks.
//!
//! In: the object, and the one it replaces. Expressions are checked at every write; only unchanged conditions are skipped.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::gvk::Gvk;
use apimachinery::names;
use apimachinery::object::Object;
use apimachinery::pointer;
use cel::Type;
use serde_json::Value;

use super::binding_check::{match_resources, one_of};
use super::declarations::{Available, of_variable};
use super::policies::list;

/// The type that an expression must result in.
#[derive(Clone, Copy)]
enum Wanted {
    Anything,
    Bool,
    Text,
    TextOrNull,
    Object,
    Patch,
}

/// How many conditions one webhook or policy may have at most.
const MAX_CONDITIONS: usize = 64;
/// How many annotations a policy may produce at most.
const MAX_ANNOTATIONS: usize = 20;
/// How many variables a policy may have at most. Each expression is checked against all of them.
const MAX_VARIABLES: usize = 256;
/// The longest expression for an annotation, in bytes.
const MAX_ANNOTATION_LENGTH: usize = 5 * 1024;

/// Returns the faults of a policy, a binding or the conditions of webhooks; nothing for other kinds.
pub(crate) fn check(gvk: &Gvk, object: &Value, old: Option<&Value>) -> Errors {
    if gvk.group != "admissionregistration.k8s.io" {
        return Errors::new();
    }
    let (spec, path) = (&object["spec"], Path::new("spec"));
    let mut check = Check { errors: Errors::new(), params: spec["paramKind"].is_object(), variables: None };
    match gvk.kind.as_str() {
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            check.params = false;
            check.webhooks(object, old);
        }
        "ValidatingAdmissionPolicy" => {
            check.shared_fields(spec, &path);
            check.conditions_unless_same(spec, old, &path);
            if list(spec, "variables").next().is_some() {
                check.variables(spec, &path);
            }
            check.validations(object, spec, &path);
        }
        "MutatingAdmissionPolicy" => {
            check.shared_fields(spec, &path);
            check.operations(spec, &path);
            check.conditions_unless_same(spec, old, &path);
            check.variables(spec, &path);
            check.mutations(spec, &path);
        }
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => {
            super::binding_check::check(spec, &path, gvk.kind.starts_with("Validating"), &mut check.errors);
        }
        _ => {}
    }
    check.errors
}

/// Returns a warning about a name that is reserved for configurations in files.
pub(crate) fn warning(gvk: &Gvk, object: &Value) -> Option<String> {
    let reserved = object.name().ends_with(".static.k8s.io");
    (gvk.group == "admissionregistration.k8s.io" && reserved).then(|| {
        "metadata.name: names ending with \".static.k8s.io\" are reserved for static manifest-based configurations and cannot be managed via the API".to_owned()
    })
}

struct Check {
    errors: Errors,
    /// The policy has parameters.
    params: bool,
    /// The variables of the policy with their types, as far as they have been checked; `None` if expressions cannot use them.
    variables: Option<Vec<(String, Type)>>,
}

impl Check {
    fn required(&mut self, at: &Path, detail: &str) {
        self.errors.push(Error::required(at, detail));
    }

    /// Checks the conditions of webhooks, unless none of them has changed.
    fn webhooks(&mut self, object: &Value, old: Option<&Value>) {
        let conditions = |object: &Value| -> Vec<Value> {
            list(object, "webhooks").map(|hook| hook["matchConditions"].clone()).collect()
        };
        if old.is_some_and(|old| conditions(old) == conditions(object)) {
            return;
        }
        for (index, hook) in list(object, "webhooks").enumerate() {
            self.conditions(hook, &Path::new("webhooks").index(index).child("matchConditions"));
        }
    }

    /// Checks the fields that validating and mutating policies share.
    fn shared_fields(&mut self, spec: &Value, path: &Path) {
        let policy = pointer::owned(spec, "/failurePolicy");
        one_of(&mut self.errors, &path.child("failurePolicy"), &policy, &["Fail", "Ignore"]);
        if self.params {
            self.param_kind(&spec["paramKind"], &path.child("paramKind"));
        }
        let at = path.child("matchConstraints");
        if spec["matchConstraints"].is_object() {
            match_resources(&mut self.errors, &spec["matchConstraints"], &at);
            if list(&spec["matchConstraints"], "resourceRules").next().is_none() {
                self.required(&at.child("resourceRules"), "");
            }
        } else {
            self.required(&at, "");
        }
    }

    /// Checks the conditions of a policy if they changed, or if it changed whether they may use parameters.
    fn conditions_unless_same(&mut self, spec: &Value, old: Option<&Value>, path: &Path) {
        let old = old.map(|old| &old["spec"]);
        let same = |field: &str| old.is_some_and(|old| old[field] == spec[field]);
        if !same("paramKind") || !same("matchConditions") {
            self.conditions(spec, &path.child("matchConditions"));
        }
    }

    /// Checks the `matchConditions` of a policy or webhook. They cannot use the variables of a policy.
    fn conditions(&mut self, holder: &Value, path: &Path) {
        let count = list(holder, "matchConditions").count();
        if count > MAX_CONDITIONS {
            self.errors.push(Error::too_many(path, count, MAX_CONDITIONS));
        }
        let mut seen: HashSet<String> = HashSet::new();
        for (index, condition) in list(holder, "matchConditions").take(MAX_CONDITIONS).enumerate() {
            let at = path.index(index);
            let source = pointer::owned(condition, "/expression");
            if source.trim().is_empty() {
                self.required(&at.child("expression"), "");
            } else {
                let available = Available { params: self.params, authorizer: true, ..Available::default() };
                self.expression(&at.child("expression"), source.trim(), Wanted::Bool, available);
            }
            let (name, at) = (pointer::owned(condition, "/name"), at.child("name"));
            if name.is_empty() {
                self.required(&at, "");
                continue;
            }
            for wrong in names::qualified_name(&name) {
                self.errors.push(Error::invalid(&at, name.clone(), wrong));
            }
            if !seen.insert(name.clone()) {
                self.errors.push(Error::duplicate(&at, name));
            }
        }
    }

    fn param_kind(&mut self, kind: &Value, at: &Path) {
        let (api_version, name) = (pointer::owned(kind, "/apiVersion"), pointer::owned(kind, "/kind"));
        self.api_version(&api_version, &at.child("apiVersion"));
        if name.is_empty() {
            self.required(&at.child("kind"), "");
        } else {
            let wrong = names::dns1035_label(&name.to_lowercase());
            if !wrong.is_empty() {
                let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                self.errors.push(Error::invalid(&at.child("kind"), name, detail));
            }
        }
    }

    fn api_version(&mut self, given: &str, at: &Path) {
        if given.is_empty() {
            return self.required(at, "");
        }
        let (group, version) = match given.split('/').collect::<Vec<_>>()[..] {
            [version] => ("", version),
            [group, version] => (group, version),
            _ => {
                let detail = format!("unexpected GroupVersion string: {given}");
                return self.errors.push(Error::invalid(at, given, detail));
            }
        };
        if !group.is_empty() {
            let wrong = names::dns1123_subdomain(group);
            if !wrong.is_empty() {
                self.errors.push(Error::invalid(at, group, wrong.join(",")));
            }
        }
        let wrong = names::dns1035_label(version);
        if version.is_empty() {
            self.errors.push(Error::invalid(at, given, "version must be specified"));
        } else if !wrong.is_empty() {
            self.errors.push(Error::invalid(at, version, wrong.join(",")));
        }
    }

    /// Checks the variables in order: each may use earlier ones.
    fn variables(&mut self, spec: &Value, path: &Path) {
        self.variables = Some(Vec::new());
        let count = list(spec, "variables").count();
        if count > MAX_VARIABLES {
            self.errors.push(Error::too_many(&path.child("variables"), count, MAX_VARIABLES));
        }
        for (index, variable) in list(spec, "variables").take(MAX_VARIABLES).enumerate() {
            let at = path.child("variables").index(index);
            let (name, source) = (pointer::owned(variable, "/name"), pointer::owned(variable, "/expression"));
            if name.trim().is_empty() {
                self.required(&at.child("name"), "name is not specified");
            } else if !is_identifier(&name) {
                let detail = "must be a valid CEL identifier";
                self.errors.push(Error::invalid(&at.child("name"), name.clone(), detail));
            }
            if source.trim().is_empty() {
                self.required(&at.child("expression"), "expression is not specified");
                continue;
            }
            let known = self.variables.take();
            let available = Available { variables: known.as_deref(), ..self.available() };
            let ty = self.expression(&at.child("expression"), &source, Wanted::Anything, available);
            let mut known = known.unwrap_or_default();
            known.retain(|(other, _)| *other != name);
            known.push((name, of_variable(&ty)));
            self.variables = Some(known);
        }
    }

    /// Returns everything that expressions of a policy may use, except its variables.
    fn available(&self) -> Available<'static> {
        Available { params: self.params, authorizer: true, ..Available::default() }
    }

    /// Checks an expression that may use the variables of the policy.
    fn composed(&mut self, at: &Path, source: &str, wanted: Wanted, available: Available<'_>) {
        let variables = self.variables.take();
        self.expression(at, source, wanted, Available { variables: variables.as_deref(), ..available });
        self.variables = variables;
    }

    fn validations(&mut self, policy: &Value, spec: &Value, path: &Path) {
        if list(spec, "validations").next().is_none() && list(spec, "auditAnnotations").next().is_none() {
            let detail = "validations or auditAnnotations must contain at least one item";
            self.required(&path.child("validations"), detail);
            self.required(&path.child("auditAnnotations"), detail);
            return;
        }
        for (index, validation) in list(spec, "validations").enumerate() {
            self.validation(validation, &path.child("validations").index(index));
        }
        let (annotations, at) = (list(spec, "auditAnnotations").count(), path.child("auditAnnotations"));
        if annotations > MAX_ANNOTATIONS {
            let detail = format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations");
            // Formatted like Go's structures.
            let shown: Vec<String> = list(spec, "auditAnnotations")
                .map(|entry| {
                    format!(r#"{{"Key":{},"ValueExpression":{}}}"#, entry["key"], entry["valueExpression"])
                })
                .collect();
            let error = Error::invalid(&at, Value::Null, detail);
            self.errors.push(error.showing(format!("[{}]", shown.join(","))));
        }
        let mut keys: HashSet<String> = HashSet::new();
        for (index, annotation) in list(spec, "auditAnnotations").take(MAX_ANNOTATIONS).enumerate() {
            let at = at.index(index);
            self.annotation(policy, annotation, &at);
            let key = pointer::owned(annotation, "/key");
            if !keys.insert(key.clone()) {
                self.errors.push(Error::duplicate(&at.child("key"), key));
            }
        }
    }

    fn validation(&mut self, validation: &Value, at: &Path) {
        let source = pointer::owned(validation, "/expression");
        if source.trim().is_empty() {
            self.required(&at.child("expression"), "expression is not specified");
        } else {
            self.composed(&at.child("expression"), &source, Wanted::Bool, self.available());
        }
        let message_expression = pointer::owned(validation, "/messageExpression");
        if !message_expression.trim().is_empty() {
            let available = Available { authorizer: false, ..self.available() };
            self.composed(&at.child("messageExpression"), &message_expression, Wanted::Text, available);
        } else if !message_expression.is_empty() {
            let detail = "must be non-empty if specified";
            self.errors.push(Error::invalid(&at.child("messageExpression"), message_expression, detail));
        }
        let message = pointer::owned(validation, "/message");
        if !message.is_empty() && message.trim().is_empty() {
            let detail = "must be non-empty if specified";
            self.errors.push(Error::invalid(&at.child("message"), message, detail));
        } else if message.trim().contains(['\n', '\r']) {
            self.errors.push(Error::invalid(&at.child("message"), message, "must not contain line breaks"));
        }
        let supported = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
        if let Some(reason) = validation["reason"].as_str().filter(|reason| !supported.contains(reason)) {
            self.errors.push(Error::not_supported(&at.child("reason"), reason, &supported));
        }
    }

    fn annotation(&mut self, policy: &Value, annotation: &Value, at: &Path) {
        let (name, key) = (policy.name(), pointer::owned(annotation, "/key"));
        if name.is_empty() {
            let detail = "requires metadata.name be non-empty";
            self.errors.push(Error::invalid(&at.child("key"), key, detail));
        } else {
            let key = format!("{name}/{key}");
            for wrong in names::qualified_name(&key) {
                self.errors.push(Error::invalid(&at.child("key"), key.clone(), wrong));
            }
        }
        let source = pointer::owned(annotation, "/valueExpression");
        let at = at.child("valueExpression");
        if source.trim().is_empty() {
            self.required(&at, "valueExpression is not specified");
        } else if source.trim().len() > MAX_ANNOTATION_LENGTH {
            self.required(&at, &format!("must not exceed {MAX_ANNOTATION_LENGTH} bytes in length"));
        } else {
            self.composed(&at, source.trim(), Wanted::TextOrNull, self.available());
        }
    }

    /// Deletions cannot be changed.
    fn operations(&mut self, spec: &Value, path: &Path) {
        if spec["matchConstraints"].is_object() {
            let at = path.child("matchConstraints");
            super::binding_check::changeable(&mut self.errors, &spec["matchConstraints"], &at);
        }
    }

    fn mutations(&mut self, spec: &Value, path: &Path) {
        if list(spec, "mutations").next().is_none() {
            self.required(&path.child("mutations"), "mutations must contain at least one item");
        }
        for (index, mutation) in list(spec, "mutations").enumerate() {
            let at = path.child("mutations").index(index);
            let kind = pointer::owned(mutation, "/patchType");
            let (field, other, wanted) = match kind.as_str() {
                "JSONPatch" => ("jsonPatch", "applyConfiguration", Wanted::Patch),
                "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Wanted::Object),
                "" => {
                    self.required(&at.child("patchType"), "");
                    continue;
                }
                _ => {
                    let supported = ["ApplyConfiguration", "JSONPatch"];
                    self.errors.push(Error::not_supported(&at.child("patchType"), kind, &supported));
                    continue;
                }
            };
            if mutation[field].is_object() {
                let at = at.child(field).child("expression");
                let source = pointer::owned(&mutation[field], "/expression");
                if source.trim().is_empty() {
                    self.required(&at, "");
                } else {
                    let available = Available { patches: true, ..self.available() };
                    self.composed(&at, source.trim(), wanted, available);
                }
            } else {
                let detail = format!("must be specified when patchType is {kind}");
                self.required(&at.child(field), &detail);
            }
            if mutation[other].is_object() {
                let detail = format!("must not be specified when patchType is {kind}");
                self.errors.push(Error::invalid(&at.child(other), format!("{{{other}}}"), detail));
            }
        }
        let (policy, at) = (pointer::owned(spec, "/reinvocationPolicy"), path.child("reinvocationPolicy"));
        one_of(&mut self.errors, &at, &policy, &["IfNeeded", "Never"]);
    }

    /// Checks an expression. Returns the type of its result, which is unknown if the expression does not compile.
    fn expression(&mut self, at: &Path, source: &str, wanted: Wanted, available: Available<'_>) -> Type {
        let (ty, wrong) = match available.judge(source) {
            Err(why) => (Type::Dyn, Some(why)),
            Ok(ty) => {
                let wrong = unwanted(wanted, &ty);
                (ty, wrong)
            }
        };
        if let Some(detail) = wrong {
            self.errors.push(Error::invalid(at, source, detail));
        }
        ty
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        // A name that escaping does not change is not a word of the language.
        && cel::escape(name).is_some_and(|escaped| escaped == name || name.contains("__"))
}

fn unwanted(wanted: Wanted, ty: &Type) -> Option<String> {
    // An empty list says nothing about the type of its items.
    let is = |ty: &Type, wanted: &str| matches!(ty, Type::Opaque(name) if &**name == wanted);
    let is_patch = |ty: &Type| is(ty, "JSONPatch") || *ty == Type::Dyn;
    let detail = match (wanted, ty) {
        (Wanted::Anything, _) => return None,
        (Wanted::Bool, Type::Bool) | (Wanted::Text | Wanted::TextOrNull, Type::String) => return None,
        (Wanted::TextOrNull, Type::Null) => return None,
        (Wanted::Object, ty) if is(ty, "Object") => return None,
        (Wanted::Patch, Type::List(item)) if is_patch(item) => return None,
        (Wanted::Bool, _) => "must evaluate to bool",
        (Wanted::Text, _) => "must evaluate to string",
        (Wanted::TextOrNull, _) => "must evaluate to one of [string null_type]",
        (Wanted::Object, _) => "must evaluate to Object",
        (Wanted::Patch, _) => "must evaluate to list(JSONPatch)",
    };
    Some(format!("{detail} but got {}", ty.runtime_name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(kind: &str, spec: Value) -> Vec<String> {
        let gvk = Gvk::new("admissionregistration.k8s.io", "v1", kind);
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        check(&gvk, &object, None).iter().map(ToString::to_string).collect()
    }

    fn policy(expression: &str) -> Value {
        let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        json!({"failurePolicy": "Fail", "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {},
            "objectSelector": {}, "resourceRules": [rule]}, "validations": [{"expression": expression}]})
    }

    #[test]
    fn an_expression_that_cannot_work_is_refused() {
        assert!(wrong("ValidatingAdmissionPolicy", policy("object.spec.replicas > 1")).is_empty());
        let found = wrong("ValidatingAdmissionPolicy", policy("objekt.spec == 1"));
        assert!(found[0].starts_with("spec.validations[0].expression: Invalid value: \"objekt.spec == 1\": compilation failed: ERROR"), "{found:?}");
        assert!(
            wrong("ValidatingAdmissionPolicy", policy("1 + 1"))[0]
                .ends_with("must evaluate to bool but got int")
        );
        assert!(
            wrong("ValidatingAdmissionPolicy", policy("params.x == 1"))[0]
                .contains("undeclared reference to 'params'")
        );
    }

    #[test]
    fn the_type_of_a_result_is_known_before() {
        let wrong = |expression: &str| wrong("ValidatingAdmissionPolicy", policy(expression));
        assert!(wrong("object.spec.paused")[0].ends_with("must evaluate to bool but got dyn"));
        assert!(wrong("request.user == ''")[0].contains("undefined field 'user'"));
        assert!(wrong("variables.a == 1")[0].contains("undeclared reference to 'variables'"));
        let mut spec = policy("variables.b");
        spec["variables"] = json!([{"name": "a", "expression": "1"}, {"name": "b", "expression": "variables.a == 1"},
            {"name": "in", "expression": "variables.c"}]);
        let found = check(
            &Gvk::new("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"),
            &json!({"metadata": {"name": "p"}, "spec": spec}),
            None,
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].detail, "must be a valid CEL identifier");
        assert!(found[1].detail.contains("undefined field 'c'"), "{found:?}");
    }

    #[test]
    fn finding_25_long_lists_of_a_policy_are_looked_at_in_linear_time() {
        const MANY: usize = 100_000;
        let named = |name: &str, value: &str| -> Vec<Value> {
            (0..MANY).map(|number| json!({name: format!("a{number}"), value: "true"})).collect()
        };
        let mut spec = policy("true");
        spec["matchConditions"] = named("name", "expression").into();
        spec["variables"] = named("name", "expression").into();
        spec["auditAnnotations"] = named("key", "valueExpression").into();
        spec["matchConstraints"]["resourceRules"][0]["resourceNames"] =
            (0..MANY).map(|number| format!("n{number}")).collect();
        let found = wrong("ValidatingAdmissionPolicy", spec);
        let told = |start: &str| found.iter().filter(|error| error.starts_with(start)).count();
        assert_eq!((told("spec.matchConditions: Too many"), told("spec.variables: Too many")), (1, 1));
        assert_eq!(told("spec.auditAnnotations"), 1 + MAX_ANNOTATIONS, "none of them is a text");
        let binding = json!({"policyName": "p", "validationActions": vec!["Deny"; MANY]});
        assert_eq!(wrong("ValidatingAdmissionPolicyBinding", binding).len(), MANY - 1, "repeated");
    }

    #[test]
    fn a_message_may_not_ask_about_rights() {
        let mut spec = policy("true");
        spec["validations"][0]["messageExpression"] =
            json!("authorizer.requestResource.check('get').reason()");
        let found = wrong("ValidatingAdmissionPolicy", spec);
        assert!(found[0].contains("undeclared reference to 'authorizer'"), "{found:?}");
    }

    #[test]
    fn conditions_of_webhooks_are_looked_at_when_they_change() {
        let gvk = Gvk::new("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
        let hook =
            |conditions: Value| json!({"webhooks": [{"name": "a.b.c", "matchConditions": conditions}]});
        let wrong = |object: &Value, old: Option<&Value>| -> Vec<String> {
            check(&gvk, object, old).iter().map(ToString::to_string).collect()
        };
        let fine = hook(json!([{"name": "a", "expression": "!('x' in request.userInfo.groups)"}]));
        assert!(wrong(&fine, None).is_empty());
        let broken = hook(json!([{"name": " a", "expression": "params == null"}, {"expression": " "}]));
        let found = wrong(&broken, None);
        let at = |index: usize, prefix: &str| assert!(found[index].starts_with(prefix), "{found:?}");
        at(
            0,
            "webhooks[0].matchConditions[0].expression: Invalid value: \"params == null\": compilation failed",
        );
        at(1, "webhooks[0].matchConditions[0].name: Invalid value: \" a\": ");
        at(2, "webhooks[0].matchConditions[1].expression: Required value");
        at(3, "webhooks[0].matchConditions[1].name: Required value");
        assert!(wrong(&broken, Some(&broken)).is_empty());
        let twice = json!({"name": "a", "expression": "true"});
        assert_eq!(
            wrong(&hook(json!([twice, twice])), None),
            ["webhooks[0].matchConditions[1].name: Duplicate value: \"a\""]
        );
        let many: Vec<Value> =
            (0..65).map(|n| json!({"name": format!("n{n}"), "expression": "true"})).collect();
        assert_eq!(
            wrong(&hook(json!(many)), None),
            ["webhooks[0].matchConditions: Too many: 65: must have at most 64 items"]
        );
    }

    #[test]
    fn a_mutation_makes_an_object_or_a_list_of_patches() {
        let spec = |kind: &str, field: &str, expression: &str| {
            let mut spec = policy("true");
            spec["reinvocationPolicy"] = json!("Never");
            spec["mutations"] = json!([{"patchType": kind, field: {"expression": expression}}]);
            spec
        };
        let apply = |source: &str| {
            wrong("MutatingAdmissionPolicy", spec("ApplyConfiguration", "applyConfiguration", source))
        };
        assert!(apply("Object{metadata: Object.metadata{labels: {'a': 'b'}}}").is_empty());
        assert!(apply("true")[0].ends_with("must evaluate to Object but got bool"));
        let patch = |source: &str| wrong("MutatingAdmissionPolicy", spec("JSONPatch", "jsonPatch", source));
        assert!(patch("[JSONPatch{op: 'add', path: '/a', value: 1}]").is_empty());
        assert!(patch("[JSONPatch{up: 'add'}]")[0].contains("expected type of field 'up' is ''"));
        assert_eq!(
            wrong("MutatingAdmissionPolicy", spec("", "x", "")),
            ["spec.mutations[0].patchType: Required value"]
        );
    }
}
