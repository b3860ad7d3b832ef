//! The rules of `x-kubernetes-validations`: compiled with a definition, evaluated on its objects.
//!
//! A rule sees the value at its place as `self` and, on updates, the old value as `oldSelf`. For unchanged values, a failed rule
//! is only a warning, unless the rule uses the old value or cannot be evaluated.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::field::{Error, Errors, Path, PathBudget, Trail};
use apimachinery::pointer;
use apimachinery::status::MOST_ERRORS;
use cel::{Decl, Program, Scope, Type, Value as Cel, Variables};
use serde_json::Value;

use super::correlation::{Correlation, Counterparts};

/// The maximum cost of all rules of one object together.
const PER_OBJECT: u64 = 10_000_000;
/// The longest message that an expression may produce.
const MAX_MESSAGE: usize = 5 * 1024;

/// The rules of one version, by their place.
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
}

#[derive(Debug)]
struct Rule {
    source: String,
    program: Result<Program, String>,
    message: String,
    message_expression: Option<(String, Program)>,
    reason: String,
    /// Below the place of the rule.
    field_path: String,
    optional_old: bool,
}

/// The results of the rules of an object.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) errors: Errors,
    pub(super) warnings: Vec<String>,
}

/// Reports that rules did not run because the object does not match its schema.
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

    /// Checks an object, and the change if there is an old one.
    pub(super) fn validate(&self, object: &Value, old: Option<&Value>) -> Verdict {
        let (verdict, paths) = (Verdict::default(), PathBudget::default());
        let mut run = Run { budget: PER_OBJECT, verdict, over: false, paths };
        let correlation = Correlation::root(&self.root.schema, object, old);
        self.root.check(object, old, &correlation, &Trail::Root, &mut run);
        run.verdict
    }
}

struct Run {
    budget: u64,
    verdict: Verdict,
    /// The budget is used up, or there are too many errors: no further rule runs.
    over: bool,
    paths: PathBudget,
}

impl Run {
    /// Evaluates an expression; `None` if the budget for the whole object is used up.
    fn eval(&mut self, program: &Program, variables: &Variables<'_>) -> Option<Result<Cel, cel::EvalError>> {
        let done = program.run(variables, cel::PER_CALL);
        self.budget = self.budget.checked_sub(done.cost)?;
        Some(done.result)
    }

    /// Returns the path of a place. The whole object has none; its fields have one.
    fn path(&self, place: &Trail<'_>) -> Path {
        if place.is_empty() { Path::new("<nil>") } else { Path::new(&self.paths.path(place)) }
    }

    fn refuse(&mut self, error: Error) {
        self.verdict.errors.push(error);
        self.over |= self.verdict.errors.len() >= MOST_ERRORS;
    }
}

/// Why a message could not be produced.
enum NoMessage {
    /// There is no expression, or its result is not a message.
    Fallback,
    /// No further rule may run.
    TooDear(String),
}

impl Rule {
    fn read(rule: &Value, schema: &Value, decl: Option<&Arc<Decl>>) -> Self {
        let source = pointer::owned(rule, "/rule");
        let mut scope = Scope::of_names(&["self", "oldSelf"]);
        if let Some(decl) = decl {
            scope = scope.declare("self", decl);
            scope = if rule["optionalOldSelf"] == true {
                scope.typed("oldSelf", Type::Optional(Arc::new(decl.ty())))
            } else {
                scope.declare("oldSelf", decl)
            };
        }
        let expression = pointer::owned(rule, "/messageExpression");
        let message_expression = Some(expression).filter(|expression| !expression.is_empty());
        Self {
            program: Program::compile_in(&source, &scope).map_err(|error| error.report(&source)),
            message: pointer::owned(rule, "/message").trim().to_owned(),
            message_expression: message_expression.and_then(|expression| {
                let program = Program::compile_in(&expression, &scope).ok()?;
                Some((expression, program))
            }),
            reason: pointer::owned(rule, "/reason"),
            field_path: apimachinery::crd::rule_path(&pointer::owned(rule, "/fieldPath"), schema)
                .unwrap_or_default(),
            optional_old: rule["optionalOldSelf"] == true,
            source,
        }
    }

    /// The name of a rule in messages.
    fn shown(&self) -> &str {
        if self.message.is_empty() { self.source.trim() } else { &self.message }
    }

    fn uses_old(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses("oldSelf"))
    }

    /// Evaluates the rule and adds its errors.
    fn run(
        &self,
        node: &Node,
        value: &Value,
        old: Option<&Value>,
        correlation: &Correlation<'_>,
        place: &Trail<'_>,
        run: &mut Run,
    ) {
        let kind = pointer::owned(&node.schema, "/type");
        let invalid = |path: &Path, detail: String| Error::invalid(path, kind.clone(), detail);
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => {
                let detail = format!("rule compile error: compilation failed: {why}");
                return run.refuse(invalid(&run.path(place), detail));
            }
        };
        let shown = Variables::new().set("self", cel::from_json_with(value, &node.schema));
        let before = old.map(|old| cel::from_json_with(old, &node.schema));
        // Messages see the old value itself, whatever the rule sees.
        let plain = |variables: Variables<'static>| match &before {
            Some(before) => variables.set("oldSelf", before.clone()),
            None => variables,
        };
        let variables = match (&before, self.optional_old) {
            (Some(before), true) => shown.set("oldSelf", Cel::some(before.clone())),
            (None, true) => shown.set("oldSelf", Cel::Optional(None)),
            (_, false) => plain(shown),
        };
        let Some(result) = run.eval(program, &variables) else {
            run.over = true;
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            return run.refuse(invalid(&run.path(place), detail.to_owned()));
        };
        let failed = match result {
            Ok(Cel::Bool(true)) => return,
            Ok(_) => None,
            Err(error) if error.0 == cel::CANCELLED => {
                run.over = true;
                Some(format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    self.shown()
                ))
            }
            Err(error) if error.0.starts_with("no such overload") => Some(format!(
                "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                self.shown()
            )),
            Err(error) => Some(format!("{error} evaluating rule: {}", self.shown())),
        };
        if let Some(detail) = failed {
            return run.refuse(invalid(&run.path(place), detail));
        }
        let at = if self.field_path.is_empty() {
            run.path(place)
        } else {
            run.path(&Trail::Field(place, &self.field_path))
        };
        let told = Variables::new().set("self", cel::from_json_with(value, &node.schema));
        let error = match self.made_message(&plain(told), run) {
            Err(NoMessage::TooDear(detail)) => {
                run.over = true;
                invalid(&at, detail)
            }
            made => self.error(&at, value, &kind, made.unwrap_or_else(|_| self.default_message())),
        };
        if !self.uses_old() && correlation.is_unchanged() {
            run.verdict.warnings.push(error.to_string());
        } else {
            run.refuse(error);
        }
    }

    fn error(&self, at: &Path, value: &Value, kind: &str, detail: String) -> Error {
        match self.reason.as_str() {
            "FieldValueForbidden" => Error::forbidden(at, detail),
            "FieldValueRequired" => Error::required(at, detail),
            "FieldValueDuplicate" => Error::duplicate(at, value.clone()),
            _ if matches!(kind, "object" | "array") => Error::invalid_unshown(at, detail),
            _ => Error::invalid(at, value.clone(), detail),
        }
    }

    fn default_message(&self) -> String {
        if self.message.is_empty() {
            format!("failed rule: {}", self.source.trim())
        } else {
            self.message.clone()
        }
    }

    fn made_message(&self, variables: &Variables<'_>, run: &mut Run) -> Result<String, NoMessage> {
        let Some((source, program)) = &self.message_expression else { return Err(NoMessage::Fallback) };
        match run.eval(program, variables) {
            None => Err(NoMessage::TooDear(
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                    .to_owned(),
            )),
            Some(Err(error)) if error.0 == cel::CANCELLED => {
                Err(NoMessage::TooDear(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
                )))
            }
            Some(Ok(Cel::String(text))) => {
                let text = text.trim();
                let usable = !text.is_empty() && !text.contains('\n') && text.len() <= MAX_MESSAGE;
                if usable { Ok(text.to_owned()) } else { Err(NoMessage::Fallback) }
            }
            Some(_) => Err(NoMessage::Fallback),
        }
    }
}

impl Node {
    fn compile(schema: &Value, root: bool) -> Option<Self> {
        let decl = schema
            .get("x-kubernetes-validations")
            .and_then(|_| Decl::of_schema(schema, root, "selfType", &|_| None));
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        let rules: Vec<Rule> = rules.map(|rule| Rule::read(rule, schema, decl.as_ref())).collect();
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
        Some(Self { rules, schema: schema.clone(), properties, items, additional })
    }

    /// Runs the rules of this place and below.
    fn check(
        &self,
        value: &Value,
        old: Option<&Value>,
        correlation: &Correlation<'_>,
        place: &Trail<'_>,
        run: &mut Run,
    ) {
        if value.is_null() || run.over {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        for rule in &self.rules {
            if rule.uses_old() && old.is_none() && !rule.optional_old {
                continue;
            }
            rule.run(self, value, old, correlation, place, run);
            if run.over {
                return;
            }
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let before = old.and_then(|old| old.get(name));
                    if let Some(node) = self.properties.get(name) {
                        node.check(value, before, &correlation.key(name), &Trail::Field(place, name), run);
                    } else if let Some(node) = &self.additional {
                        node.check(value, before, &correlation.key(name), &Trail::Key(place, name), run);
                    }
                }
            }
            Value::Array(list) => {
                let Some(node) = &self.items else { return };
                let past = old.and_then(|old| Counterparts::of(&self.schema, old));
                let items = correlation.items();
                for (index, item) in list.iter().enumerate() {
                    let before = past.as_ref().and_then(|past| past.find(item));
                    node.check(item, before, &items.index(index), &Trail::Item(place, index), run);
                }
            }
            _ => {}
        }
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
        rules.validate(&object, old.as_ref()).errors.iter().map(ToString::to_string).collect()
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
    fn faults_in_unchanged_values_do_not_refuse_an_update() {
        let old = json!({"spec": {"min": 3, "max": 2}, "other": 1});
        let mut new = old.clone();
        new["other"] = json!(2);
        let rules = Rules::compile(&schema()).unwrap();
        let verdict = rules.validate(&new, Some(&old));
        assert!(verdict.errors.is_empty(), "{verdict:?}");
        assert_eq!(verdict.warnings, ["spec: Invalid value: min must not exceed max"]);
        new["spec"]["min"] = json!(4);
        assert_eq!(check(new, Some(old)).len(), 1);
    }

    #[test]
    fn rules_of_long_lists_are_run_in_linear_time() {
        const MANY: usize = 100_000;
        let list = |value: &str, turned: bool| {
            let mut list: Vec<Value> =
                (0..MANY).map(|number| json!({"k": number.to_string(), "v": value})).collect();
            if turned {
                list.reverse();
            }
            json!({"spec": {"min": 1, "max": 2, "names": list}})
        };
        // Searching the old list for each item would take hours.
        assert!(check(list("a", true), Some(list("a", false))).is_empty());
        let refused = check(list("b", true), Some(list("a", false)));
        assert_eq!(refused.len(), MOST_ERRORS, "no more than can be told");
        assert_eq!(refused[0], "spec.names[0].v: Invalid value: \"b\": failed rule: self == oldSelf");
    }

    #[test]
    fn a_rule_that_cannot_be_evaluated_is_held_against_any_update() {
        let old = json!({"spec": {"min": 3}});
        assert_eq!(check(old.clone(), Some(old)).len(), 1);
    }
}
