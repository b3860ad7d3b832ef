//! The rules of `x-kubernetes-validations`: compiled with a definition, run over its objects.
//!
//! A rule sees the value it stands at as `self` and, on updates, the value that was there as `oldSelf`. What an update
//! leaves as it was is not held against it, unless the rule is about the change itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::field::{Error, Errors, Path};
use cel::{Decl, Program, Scope, Type, Value as Cel, Variables};
use serde_json::Value;

/// What all rules of one object may cost together.
const PER_OBJECT: u64 = 10_000_000;
/// The error of a rule that was one too many for that.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";
/// The longest message that an expression may make.
const MAX_MESSAGE: usize = 5 * 1024;

/// The rules of one version, by the place they stand at.
#[derive(Debug)]
pub struct Rules {
    root: Node,
}

#[derive(Debug)]
struct Node {
    rules: Vec<Rule>,
    schema: Value,
    properties: BTreeMap<String, Node>,
    items: Option<Box<Node>>,
    additional: Option<Box<Node>>,
    /// The keys of a list of type map, by which items of two versions are the same one.
    keys: Option<Vec<String>>,
}

#[derive(Debug)]
struct Rule {
    source: String,
    program: Result<Program, String>,
    message: String,
    message_expression: Option<Program>,
    reason: String,
    /// Below the value the rule stands at.
    field_path: String,
    optional_old: bool,
}

/// Tells that rules did not run since the object does not even fit its schema.
pub(super) fn unchecked() -> Error {
    let text = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    let mut error = Error::invalid(&Path::new("<nil>"), Value::Null, text);
    error.field = "<nil>".to_owned();
    error
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none.
    pub(super) fn compile(schema: &Value) -> Option<Self> {
        Node::compile(schema, true).map(|root| Self { root })
    }

    /// Checks an object, and the change if there was one before.
    pub(super) fn validate(&self, object: &Value, old: Option<&Value>) -> Errors {
        let mut run = Run { budget: PER_OBJECT, errors: Errors::new(), over: false };
        self.root.check(object, old, old.is_some_and(|old| old == object), &Path::default(), &mut run);
        run.errors
    }
}

struct Run {
    budget: u64,
    errors: Errors,
    /// The budget is used up: nothing further runs.
    over: bool,
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
}

impl Rule {
    fn read(rule: &Value, decl: Option<&Arc<Decl>>) -> Self {
        let source = text(rule, "rule");
        let expression = text(rule, "messageExpression");
        let mut scope = Scope::of_names(&["self", "oldSelf"]);
        if let Some(decl) = decl {
            scope = scope.declare("self", decl);
            scope = if rule["optionalOldSelf"] == true {
                scope.typed("oldSelf", Type::Optional(Arc::new(decl.ty())))
            } else {
                scope.declare("oldSelf", decl)
            };
        }
        Self {
            program: Program::compile_in(&source, &scope).map_err(|error| error.report(&source)),
            message: text(rule, "message").trim().to_owned(),
            message_expression: Program::compile_in(&expression, &scope)
                .ok()
                .filter(|_| !expression.is_empty()),
            reason: text(rule, "reason"),
            field_path: text(rule, "fieldPath"),
            optional_old: rule["optionalOldSelf"] == true,
            source,
        }
    }

    /// How a rule is called in messages about it.
    fn shown(&self) -> &str {
        if self.message.is_empty() { self.source.trim() } else { &self.message }
    }

    fn uses_old(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses("oldSelf"))
    }

    /// Returns what is wrong, or nothing.
    fn run(
        &self,
        node: &Node,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
        run: &mut Run,
    ) -> Option<Error> {
        let kind = text(&node.schema, "type");
        let invalid = |detail: String| Some(Error::invalid(path, kind.clone(), detail));
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => return invalid(format!("rule compile error: compilation failed: {why}")),
        };
        let mut variables = Variables::new().set("self", cel::from_json_with(value, &node.schema));
        let old = old.map(|old| cel::from_json_with(old, &node.schema));
        match (old, self.optional_old) {
            (Some(old), false) => variables = variables.set("oldSelf", old),
            (Some(old), true) => variables = variables.set("oldSelf", Cel::some(old)),
            (None, true) => variables = variables.set("oldSelf", Cel::Optional(None)),
            (None, false) => {}
        }
        let done = program.run(&variables, cel::PER_CALL);
        let Some(left) = run.budget.checked_sub(done.cost) else {
            run.over = true;
            return invalid(OUT_OF_BUDGET.to_owned());
        };
        run.budget = left;
        match done.result {
            Ok(Cel::Bool(true)) => None,
            Ok(_) => {
                let detail = self.detail(&variables, run);
                let at =
                    if self.field_path.is_empty() { path.clone() } else { below(path, &self.field_path) };
                Some(match self.reason.as_str() {
                    "FieldValueForbidden" => Error::forbidden(&at, detail),
                    "FieldValueRequired" => Error::required(&at, detail),
                    "FieldValueDuplicate" => Error::duplicate(&at, value.clone()),
                    _ if matches!(kind.as_str(), "object" | "array") => Error::invalid_unshown(&at, detail),
                    _ => Error::invalid(&at, value.clone(), detail),
                })
            }
            Err(error) if error.0 == cel::CANCELLED => {
                run.over = true;
                invalid(format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    self.shown()
                ))
            }
            Err(error) if error.0.starts_with("no such overload") => invalid(format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                self.shown()
            )),
            Err(error) => invalid(format!("{error} evaluating rule: {}", self.shown())),
        }
    }

    fn detail(&self, variables: &Variables<'_>, run: &mut Run) -> String {
        let made = self.message_expression.as_ref().and_then(|expression| {
            let done = expression.run(variables, cel::PER_CALL);
            run.budget = run.budget.saturating_sub(done.cost);
            match done.result {
                Ok(Cel::String(text)) => Some(text.trim().to_owned()),
                _ => None,
            }
        });
        let usable = |text: &String| !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE;
        made.filter(usable).unwrap_or_else(|| {
            if self.message.is_empty() {
                format!("failed rule: {}", self.source.trim())
            } else {
                self.message.clone()
            }
        })
    }
}

/// Appends `.a['b']` to a path.
fn below(path: &Path, field_path: &str) -> Path {
    let mut at = path.clone();
    for part in field_path.split(['.', '[']).filter(|part| !part.is_empty()) {
        match part.strip_suffix("']").and_then(|part| part.strip_prefix('\'')) {
            Some(key) => at = at.child(key),
            None => at = at.child(part),
        }
    }
    at
}

impl Node {
    fn compile(schema: &Value, root: bool) -> Option<Self> {
        let decl = schema
            .get("x-kubernetes-validations")
            .and_then(|_| Decl::of_schema(schema, root, "selfType", &|_| None));
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        let rules: Vec<Rule> = rules.map(|rule| Rule::read(rule, decl.as_ref())).collect();
        let below = |schema: &Value| Self::compile(schema, schema["x-kubernetes-embedded-resource"] == true);
        let properties: BTreeMap<String, Self> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(name, schema)| Some((name.clone(), below(schema)?)))
            .collect();
        let part =
            |field: &str| schema.get(field).filter(|part| part.is_object()).and_then(below).map(Box::new);
        let (items, additional) = (part("items"), part("additionalProperties"));
        if rules.is_empty() && properties.is_empty() && items.is_none() && additional.is_none() {
            return None;
        }
        let keys = (schema["x-kubernetes-list-type"] == "map").then(|| {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            keys.filter_map(Value::as_str).map(str::to_owned).collect()
        });
        Some(Self { rules, schema: schema.clone(), properties, items, additional, keys })
    }

    /// Runs the rules of this place and below. `same` says whether the value, or what it is a part of, is as before.
    fn check(&self, value: &Value, old: Option<&Value>, same: bool, path: &Path, run: &mut Run) {
        if value.is_null() || run.over {
            return;
        }
        let same = old.map_or(same, |old| old == value);
        for rule in &self.rules {
            let transition = rule.uses_old();
            if transition && old.is_none() && !rule.optional_old {
                continue;
            }
            if let Some(error) = rule.run(self, value, old, path, run)
                && (transition || !same)
            {
                run.errors.push(error);
            }
            if run.over {
                return;
            }
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let before = old.and_then(|old| old.get(name));
                    if let Some(node) = self.properties.get(name) {
                        node.check(value, before, same, &path.child(name), run);
                    } else if let Some(node) = &self.additional {
                        node.check(value, before, same, &path.key(name), run);
                    }
                }
            }
            Value::Array(list) => {
                let Some(node) = &self.items else { return };
                for (index, item) in list.iter().enumerate() {
                    node.check(item, self.counterpart(item, old), same, &path.index(index), run);
                }
            }
            _ => {}
        }
    }

    /// Returns the item with the same keys in the old list.
    fn counterpart<'a>(&self, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
        let keys = self.keys.as_ref()?;
        old?.as_array()?.iter().find(|known| keys.iter().all(|key| known.get(key) == item.get(key)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.min <= self.max", "message": "min must not exceed max"},
                {"rule": "!has(oldSelf.fixed) || self.fixed == oldSelf.fixed", "reason": "FieldValueForbidden", "fieldPath": ".fixed"},
            ],
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "fixed": {"type": "string"},
                "names": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
                    "type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string",
                        "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}}}}}})
    }

    fn check(object: Value, old: Option<Value>) -> Vec<String> {
        let rules = Rules::compile(&schema()).unwrap();
        rules.validate(&object, old.as_ref()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_speaks_about_the_value_it_stands_at() {
        assert!(check(json!({"spec": {"min": 1, "max": 2}}), None).is_empty());
        assert_eq!(
            check(json!({"spec": {"min": 3, "max": 2}}), None),
            ["spec: Invalid value: min must not exceed max"]
        );
        assert_eq!(
            check(json!({"spec": {"min": 3}}), None),
            ["spec: Invalid value: \"object\": no such key: max evaluating rule: min must not exceed max"]
        );
    }

    #[test]
    fn transitions_are_checked_where_values_can_be_matched() {
        let old = json!({"spec": {"min": 1, "max": 2, "fixed": "a", "names": [{"k": "x", "v": "1"}, {"k": "y", "v": "2"}]}});
        let mut new = old.clone();
        new["spec"]["fixed"] = json!("b");
        let refused = check(new.clone(), Some(old.clone()));
        assert_eq!(
            refused,
            ["spec.fixed: Forbidden: failed rule: !has(oldSelf.fixed) || self.fixed == oldSelf.fixed"]
        );
        new["spec"]["fixed"] = json!("a");
        new["spec"]["names"] = json!([{"k": "y", "v": "3"}, {"k": "z", "v": "9"}]);
        assert_eq!(
            check(new, Some(old)),
            ["spec.names[0].v: Invalid value: \"3\": failed rule: self == oldSelf"]
        );
    }

    #[test]
    fn what_stays_as_it_was_is_not_held_against_an_update() {
        let old = json!({"spec": {"min": 3, "max": 2}, "other": 1});
        let mut new = old.clone();
        new["other"] = json!(2);
        assert!(check(new.clone(), Some(old.clone())).is_empty());
        new["spec"]["min"] = json!(4);
        assert_eq!(check(new, Some(old)).len(), 1);
    }
}
