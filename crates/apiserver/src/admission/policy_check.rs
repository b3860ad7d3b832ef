//! What is wrong with an admission policy or its binding as written: what is missing, what is not supported, which
//! expressions do not compile. And the same about the conditions of webhooks.
//!
//! In: the object, and the one it replaces. Expressions that stood there before are not compiled again.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::gvk::Gvk;
use apimachinery::names;
use cel::{Program, Type};
use serde_json::{Value, json};

use super::expressions;
use super::policies::{list, text};

/// What an expression has to result in.
#[derive(Clone, Copy)]
enum Wanted {
    Anything,
    Bool,
    Text,
    TextOrNull,
    Object,
    Patch,
}

/// The most conditions that one webhook or policy may have.
const MAX_CONDITIONS: usize = 64;

/// Returns what is wrong with a policy, a binding or the conditions of webhooks; nothing for other kinds.
pub(crate) fn check(gvk: &Gvk, object: &Value, old: Option<&Value>) -> Errors {
    if gvk.group != "admissionregistration.k8s.io" {
        return Errors::new();
    }
    if matches!(gvk.kind.as_str(), "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") {
        return check_webhooks(object, old);
    }
    let known = old.map(|old| old["spec"].to_string()).unwrap_or_default();
    let params = object["spec"]["paramKind"].is_object();
    let mut check = Check { errors: Errors::new(), known, params, variables: Vec::new(), found: Type::Dyn };
    let (spec, path) = (&object["spec"], Path::new("spec"));
    match gvk.kind.as_str() {
        "ValidatingAdmissionPolicy" => {
            check.common(spec, &path);
            check.variables(spec, &path, false);
            check.validations(object, spec, &path);
        }
        "MutatingAdmissionPolicy" => {
            check.common(spec, &path);
            check.variables(spec, &path, true);
            check.mutations(spec, &path);
        }
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => {
            check.binding(spec, &path, gvk.kind == "ValidatingAdmissionPolicyBinding");
        }
        _ => {}
    }
    check.errors
}

/// Checks the conditions of webhooks, unless none of them has changed.
fn check_webhooks(object: &Value, old: Option<&Value>) -> Errors {
    let conditions = |object: &Value| -> Vec<Value> {
        list(object, "webhooks").map(|hook| hook["matchConditions"].clone()).collect()
    };
    if old.is_some_and(|old| conditions(old) == conditions(object)) {
        return Errors::new();
    }
    let known = old.map(|old| old["webhooks"].to_string()).unwrap_or_default();
    let mut check =
        Check { errors: Errors::new(), known, params: false, variables: Vec::new(), found: Type::Dyn };
    for (index, hook) in list(object, "webhooks").enumerate() {
        check.conditions(hook, &Path::new("webhooks").index(index).child("matchConditions"));
    }
    check.errors
}

struct Check {
    errors: Errors,
    known: String,
    /// The policy has parameters.
    params: bool,
    /// Its variables so far, and of what types they are.
    variables: Vec<(String, Type)>,
    /// The type of the expression that was looked at last.
    found: Type,
}

impl Check {
    fn required(&mut self, at: &Path, detail: &str) {
        self.errors.push(Error::required(at, detail));
    }

    fn one_of(&mut self, at: &Path, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(at, "");
        } else if !supported.contains(&value) {
            self.errors.push(Error::not_supported(at, value, supported));
        }
    }

    fn common(&mut self, spec: &Value, path: &Path) {
        self.one_of(&path.child("failurePolicy"), &text(spec, "failurePolicy"), &["Fail", "Ignore"]);
        if self.params {
            self.param_kind(&spec["paramKind"], &path.child("paramKind"));
        }
        let at = path.child("matchConstraints");
        if spec["matchConstraints"].is_object() {
            if list(&spec["matchConstraints"], "resourceRules").next().is_none() {
                self.required(&at.child("resourceRules"), "");
            }
        } else {
            self.required(&at, "");
        }
        self.conditions(spec, &path.child("matchConditions"));
    }

    /// Checks the `matchConditions` of a policy or webhook.
    fn conditions(&mut self, holder: &Value, path: &Path) {
        let count = list(holder, "matchConditions").count();
        if count > MAX_CONDITIONS {
            self.errors.push(Error::too_many(path, count, MAX_CONDITIONS));
        }
        let mut seen: Vec<String> = Vec::new();
        for (index, condition) in list(holder, "matchConditions").enumerate() {
            let at = path.index(index);
            let source = text(condition, "expression");
            if source.trim().is_empty() {
                self.required(&at.child("expression"), "");
            } else {
                self.expression(&at.child("expression"), source.trim(), Wanted::Bool, false, &[]);
            }
            let (name, at) = (text(condition, "name"), at.child("name"));
            if name.is_empty() {
                self.required(&at, "");
                continue;
            }
            for wrong in names::qualified_name(&name) {
                self.errors.push(Error::invalid(&at, name.clone(), wrong));
            }
            if seen.contains(&name) {
                self.errors.push(Error::duplicate(&at, name.clone()));
            }
            seen.push(name);
        }
    }

    fn param_kind(&mut self, kind: &Value, at: &Path) {
        let (api_version, name) = (text(kind, "apiVersion"), text(kind, "kind"));
        if api_version.is_empty() {
            self.required(&at.child("apiVersion"), "");
        }
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

    fn variables(&mut self, spec: &Value, path: &Path, mutation: bool) {
        for (index, variable) in list(spec, "variables").enumerate() {
            let at = path.child("variables").index(index);
            let (name, source) = (text(variable, "name"), text(variable, "expression"));
            let is_name = |name: &str| {
                name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            if name.trim().is_empty() {
                self.required(&at.child("name"), "name is not specified");
            } else if !is_name(&name) {
                let detail = "must be a valid CEL identifier";
                self.errors.push(Error::invalid(&at.child("name"), name, detail));
            }
            if source.trim().is_empty() {
                self.required(&at.child("expression"), "expression is not specified");
            } else {
                self.expression(&at.child("expression"), &source, Wanted::Anything, mutation, &["variables"]);
                self.variables.push((text(variable, "name"), self.found.clone()));
            }
        }
    }

    fn validations(&mut self, policy: &Value, spec: &Value, path: &Path) {
        if list(spec, "validations").next().is_none() && list(spec, "auditAnnotations").next().is_none() {
            let detail = "validations or auditAnnotations must contain at least one item";
            self.required(&path.child("validations"), detail);
            self.required(&path.child("auditAnnotations"), detail);
            return;
        }
        for (index, validation) in list(spec, "validations").enumerate() {
            let at = path.child("validations").index(index);
            let source = text(validation, "expression");
            if source.trim().is_empty() {
                self.required(&at.child("expression"), "expression is not specified");
            } else {
                self.expression(&at.child("expression"), &source, Wanted::Bool, false, &["variables"]);
            }
            let message_expression = text(validation, "messageExpression");
            if !message_expression.trim().is_empty() {
                let at = at.child("messageExpression");
                self.expression(&at, &message_expression, Wanted::Text, false, &["variables"]);
            } else if !message_expression.is_empty() {
                let detail = "must be non-empty if specified";
                self.errors.push(Error::invalid(&at.child("messageExpression"), message_expression, detail));
            }
            let message = text(validation, "message");
            if !message.is_empty() && message.trim().is_empty() {
                let detail = "must be non-empty if specified";
                self.errors.push(Error::invalid(&at.child("message"), message, detail));
            } else if message.trim().contains(['\n', '\r']) {
                self.errors.push(Error::invalid(
                    &at.child("message"),
                    message,
                    "must not contain line breaks",
                ));
            }
            let reason = text(validation, "reason");
            let supported = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
            if !reason.is_empty() && !supported.contains(&reason.as_str()) {
                self.errors.push(Error::not_supported(&at.child("reason"), reason, &supported));
            }
        }
        for (index, annotation) in list(spec, "auditAnnotations").enumerate() {
            let at = path.child("auditAnnotations").index(index);
            let key = format!("{}/{}", crate::object::meta_str(policy, "name"), text(annotation, "key"));
            for wrong in names::qualified_name(&key) {
                self.errors.push(Error::invalid(&at.child("key"), key.clone(), wrong));
            }
            let source = text(annotation, "valueExpression");
            if source.trim().is_empty() {
                self.required(&at.child("valueExpression"), "valueExpression is not specified");
            } else {
                let at = at.child("valueExpression");
                self.expression(&at, source.trim(), Wanted::TextOrNull, false, &["variables"]);
            }
        }
    }

    fn mutations(&mut self, spec: &Value, path: &Path) {
        let at = path.child("matchConstraints").child("resourceRules").child("operations");
        for rule in list(&spec["matchConstraints"], "resourceRules") {
            for operation in list(rule, "operations").filter_map(Value::as_str) {
                let supported = ["*", "CREATE", "UPDATE"];
                if !supported.contains(&operation) {
                    self.errors.push(Error::not_supported(&at, operation, &supported));
                }
            }
        }
        if list(spec, "mutations").next().is_none() {
            self.required(&path.child("mutations"), "mutations must contain at least one item");
        }
        for (index, mutation) in list(spec, "mutations").enumerate() {
            let at = path.child("mutations").index(index);
            let kind = text(mutation, "patchType");
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
                let source = text(&mutation[field], "expression");
                if source.trim().is_empty() {
                    self.required(&at, "expression is not specified");
                } else {
                    self.expression(&at, &source, wanted, true, &["variables"]);
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
        let policy = text(spec, "reinvocationPolicy");
        self.one_of(&path.child("reinvocationPolicy"), &policy, &["IfNeeded", "Never"]);
    }

    fn binding(&mut self, spec: &Value, path: &Path, validating: bool) {
        let policy = text(spec, "policyName");
        if policy.is_empty() {
            self.required(&path.child("policyName"), "");
        } else {
            for wrong in names::dns1123_subdomain(&policy) {
                self.errors.push(Error::invalid(&path.child("policyName"), policy.clone(), wrong));
            }
        }
        if spec["paramRef"].is_object() {
            let at = path.child("paramRef");
            let named = !text(&spec["paramRef"], "name").is_empty();
            let selected = spec["paramRef"]["selector"].is_object();
            let detail = "name and selector are mutually exclusive";
            if named && selected {
                self.errors.push(Error::forbidden(&at.child("name"), detail));
                self.errors.push(Error::forbidden(&at.child("selector"), detail));
            }
            if !named && !selected {
                self.required(&at, "one of name or selector must be specified");
            }
            let action = text(&spec["paramRef"], "parameterNotFoundAction");
            let at = at.child("parameterNotFoundAction");
            self.one_of(&at, &action, &["Deny", "Allow"]);
        }
        if !validating {
            return;
        }
        let at = path.child("validationActions");
        let actions: Vec<&str> = list(spec, "validationActions").filter_map(Value::as_str).collect();
        if actions.is_empty() {
            self.required(&at, "at least one validation action is required");
        }
        for (index, action) in actions.iter().enumerate() {
            let supported = ["Audit", "Deny", "Warn"];
            if !supported.contains(action) {
                self.errors.push(Error::not_supported(&at.index(index), *action, &supported));
            }
            if actions[..index].contains(action) {
                self.errors.push(Error::duplicate(&at.index(index), *action));
            }
        }
        if actions.contains(&"Deny") && actions.contains(&"Warn") {
            let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
            self.errors.push(Error::invalid(&at, json!(actions), detail));
        }
    }

    fn expression(&mut self, at: &Path, source: &str, wanted: Wanted, mutation: bool, also: &[&str]) {
        self.found = Type::Dyn;
        if !self.known.is_empty() && self.known.contains(&json!(source).to_string()) {
            return;
        }
        let is_message = matches!(wanted, Wanted::Text);
        let mut scope = if is_message { expressions::message_scope() } else { expressions::scope() };
        if self.params {
            scope = scope.typed("params", Type::Dyn);
        }
        if mutation {
            scope = scope.making_objects();
        }
        if also.contains(&"variables") {
            scope = expressions::with_variables(scope, &self.variables);
        }
        let wrong = match Program::compile_in(source, &scope) {
            Err(error) => Some(format!("compilation failed: {}", error.report(source))),
            Ok(program) => match program.unusable() {
                Some(error) => Some(format!("program instantiation failed: {error}")),
                None => {
                    self.found = program.ty().clone();
                    unwanted(wanted, program.ty())
                }
            },
        };
        if let Some(detail) = wrong {
            self.errors.push(Error::invalid(at, source, detail));
        }
    }
}

fn unwanted(wanted: Wanted, ty: &Type) -> Option<String> {
    let is = |ty: &Type, wanted: &str| matches!(ty, Type::Opaque(name) if &**name == wanted);
    let detail = match (wanted, ty) {
        (Wanted::Anything, _) => return None,
        (Wanted::Bool, Type::Bool) | (Wanted::Text | Wanted::TextOrNull, Type::String) => return None,
        (Wanted::TextOrNull, Type::Null) => return None,
        (Wanted::Object, ty) if is(ty, "Object") => return None,
        (Wanted::Patch, Type::List(of)) if is(of, "JSONPatch") => return None,
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
    use super::*;

    fn wrong(kind: &str, spec: Value) -> Vec<String> {
        let gvk = Gvk::new("admissionregistration.k8s.io", "v1", kind);
        let object = json!({"metadata": {"name": "p"}, "spec": spec});
        check(&gvk, &object, None).iter().map(ToString::to_string).collect()
    }

    fn policy(expression: &str) -> Value {
        json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"operations": ["CREATE"]}]},
            "validations": [{"expression": expression}]})
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
