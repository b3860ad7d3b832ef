//! Validates the rules of a definition before they run on any object: whether they compile, can work, and may get too expensive.
//!
//! In: a definition, and the one it replaces. The cost of a single rule is not checked in unchanged schemas.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::pointer;
use cel::{Decl, Program, Scope, Type};
use serde_json::Value;

/// The maximum cost of one rule, counted for every place where it can apply.
const PER_RULE: u64 = 10_000_000;
/// The maximum cost of all rules of a schema together.
const PER_SCHEMA: u64 = 100_000_000;
/// How many rules are named when all together are too expensive.
const NAMED: usize = 4;

/// Returns the faults in the rules of a definition.
pub(super) fn check_definition(definition: &Value, old: Option<&Value>) -> Errors {
    let spec = Path::new("spec");
    let versions = pointer::list(definition, "/spec/versions");
    let mut errors = Errors::new();
    let shared =
        versions.windows(2).all(|pair| matches!(pair, [one, next] if one["schema"] == next["schema"]));
    for (index, version) in versions.iter().enumerate() {
        let path = if shared {
            spec.child("validation").child("openAPIV3Schema")
        } else {
            spec.child("versions").index(index).child("schema").child("openAPIV3Schema")
        };
        let unchanged = old
            .is_some_and(|old| schema_of(old, &pointer::owned(version, "/name")) == Some(&version["schema"]));
        let mut check = Check { unchanged, errors: Errors::new(), total: 0, dearest: Vec::new() };
        let schema = &version["schema"];
        check.schema(&schema["openAPIV3Schema"], &path, Place { root: true, ..Place::default() });
        errors.extend(check.finish(&path));
        if shared {
            break;
        }
    }
    errors
}

fn schema_of<'a>(definition: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = definition.pointer("/spec/versions")?.as_array()?;
    versions.iter().find(|known| known["name"] == version).map(|known| &known["schema"])
}

/// The place of a rule in a schema.
#[derive(Debug, Clone)]
struct Place {
    /// It applies to a whole object, with kind and metadata.
    root: bool,
    /// How many values can be here; `None` if this is unbounded.
    count: Option<u64>,
    /// The list above, if its items cannot be matched with those of an older version.
    unrecognisable: Option<Path>,
}

impl Default for Place {
    fn default() -> Self {
        Self { root: false, count: Some(1), unrecognisable: None }
    }
}

struct Check {
    /// The schema is unchanged: the costs of its single rules have already been accepted.
    unchanged: bool,
    errors: Errors,
    total: u64,
    dearest: Vec<(u64, Path)>,
}

impl Check {
    fn schema(&mut self, schema: &Value, path: &Path, place: Place) {
        let bound = |field: &str| schema.get(field).and_then(Value::as_u64);
        let times = |most: Option<u64>| place.count.zip(most).map(|(count, most)| count.saturating_mul(most));
        let embedded = |schema: &Value| schema["x-kubernetes-embedded-resource"] == true;
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
            let count = times(bound("maxProperties"));
            let below = Place { root: embedded(values), count, ..place.clone() };
            self.schema(values, &path.child("additionalProperties"), below);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let below = Place { root: embedded(property), ..place.clone() };
            self.schema(property, &path.child("properties").key(name), below);
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            let mut unrecognisable = place.unrecognisable.clone();
            if schema["x-kubernetes-list-type"] != "map" && unrecognisable.is_none() {
                unrecognisable = Some(path.clone());
            }
            let below = Place { root: embedded(items), count: times(bound("maxItems")), unrecognisable };
            self.schema(items, &path.child("items"), below);
        }
        let rules = schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rules.is_empty() {
            return;
        }
        let decl = Decl::of_schema(schema, place.root, "selfType", &|_| None);
        for (index, rule) in rules.iter().enumerate() {
            let at = path.child("x-kubernetes-validations").index(index);
            self.rule(rule, &at, decl.as_ref(), &place);
        }
    }

    fn rule(&mut self, rule: &Value, at: &Path, decl: Option<&std::sync::Arc<Decl>>, place: &Place) {
        let source = pointer::owned(rule, "/rule");
        if source.trim().is_empty() {
            return;
        }
        let mut scope = Scope::of_names(&["self", "oldSelf"]);
        if let Some(decl) = decl {
            scope = scope.declare("self", decl);
            scope = if rule["optionalOldSelf"] == true {
                scope.typed("oldSelf", Type::Optional(std::sync::Arc::new(decl.ty())))
            } else {
                scope.declare("oldSelf", decl)
            };
        }
        let here = at.child("rule");
        let program = match compile(&source, &scope) {
            Ok((program, ty, cost)) => {
                // For a value without a schema, the type is unknown.
                if !matches!(ty, Type::Bool) && decl.is_some() {
                    let detail = "cel expression must evaluate to a bool";
                    self.errors.push(Error::invalid(&here, Value::Null, detail).showing(as_go(rule)));
                    return self.needs_old(rule, at);
                }
                let places = place.count.unwrap_or_else(|| decl.map_or(1, |decl| decl.most_in_a_request()));
                self.charge(&here, "estimated rule cost", cost.saturating_mul(places));
                program
            }
            Err(detail) => {
                self.errors.push(Error::invalid(&here, Value::Null, detail).showing(as_go(rule)));
                return self.needs_old(rule, at);
            }
        };
        let expression = pointer::owned(rule, "/messageExpression");
        if !expression.is_empty() {
            let here = at.child("messageExpression");
            let wrong = match compile(&expression, &scope) {
                Ok((_, ty, cost)) if matches!(ty, Type::String) || decl.is_none() => {
                    self.charge(&here, "estimated messageExpression cost", cost);
                    None
                }
                Ok(_) => Some("messageExpression must evaluate to a string".to_owned()),
                Err(why) => Some(format!("messageExpression {}", why.trim_start_matches("program "))),
            };
            if let Some(detail) = wrong {
                self.errors.push(Error::invalid(&here, Value::Null, detail).showing(as_go(rule)));
            }
        }
        if program.uses("oldSelf") {
            if let Some(list) = &place.unrecognisable {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                self.errors.push(Error::invalid(&here, source, detail));
            }
        } else {
            self.needs_old(rule, at);
        }
    }

    /// Reports `optionalOldSelf` on a rule that does not use the old value, or does not work.
    fn needs_old(&mut self, rule: &Value, at: &Path) {
        if let Some(given) = rule.get("optionalOldSelf").filter(|given| given.is_boolean()) {
            let detail = "may not be set if oldSelf is not used in rule";
            self.errors.push(Error::invalid(&at.child("optionalOldSelf"), given.clone(), detail));
        }
    }

    /// Adds the cost of an expression, and refuses it if it is too high.
    fn charge(&mut self, at: &Path, what: &str, cost: u64) {
        if cost > PER_RULE && !self.unchanged {
            self.errors.push(Error::forbidden(at, too_much(what, cost, PER_RULE)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= PER_SCHEMA / 100 {
            self.dearest.push((cost, at.clone()));
            self.dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
            self.dearest.truncate(NAMED);
        }
    }

    fn finish(mut self, path: &Path) -> Errors {
        if self.total > PER_SCHEMA {
            let detail =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.extend(self.dearest.iter().map(|(_, at)| Error::forbidden(at, detail)));
            let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
            self.errors.push(Error::forbidden(path, too_much(what, self.total, PER_SCHEMA)));
        }
        self.errors
    }
}

fn too_much(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Formats a rule like Go prints the structure.
fn as_go(rule: &Value) -> String {
    let text = |field: &str| rule.get(field).filter(|value| !value.is_null()).cloned().unwrap_or("".into());
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        rule.get("reason").unwrap_or(&Value::Null),
        text("fieldPath"),
        rule.get("optionalOldSelf").unwrap_or(&Value::Null),
    )
}

/// Compiles a rule. Returns it with the type of its result and its cost, or its errors.
fn compile(source: &str, scope: &Scope) -> Result<(Program, Type, u64), String> {
    let program = Program::compile_in(source, scope)
        .map_err(|error| format!("compilation failed: {}", error.report(source)))?;
    if let Some(error) = program.unusable() {
        return Err(format!("program instantiation failed: {error}"));
    }
    let (ty, cost) = (program.ty().clone(), program.cost());
    Ok((program, ty, cost))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(rule: Value, properties: Value) -> Value {
        let spec = json!({"type": "object", "x-kubernetes-validations": [rule], "properties": properties});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}})
    }

    fn wrong(rule: Value, properties: Value) -> Vec<String> {
        check_definition(&definition(rule, properties), None).iter().map(ToString::to_string).collect()
    }

    const AT: &str = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";

    #[test]
    fn a_rule_that_cannot_work_is_refused() {
        let properties = json!({"min": {"type": "integer"}});
        assert!(wrong(json!({"rule": "self.min > 0"}), properties.clone()).is_empty());
        let found = wrong(json!({"rule": "self.mni > 0"}), properties.clone());
        assert!(
            found[0].starts_with(&format!("{AT}.rule: Invalid value: {{\"Rule\":\"self.mni > 0\"")),
            "{found:?}"
        );
        assert!(found[0].contains("undefined field 'mni'"), "{found:?}");
        assert!(wrong(json!({"rule": "self.min"}), properties)[0].ends_with("must evaluate to a bool"));
    }

    #[test]
    fn rules_of_all_sorts_are_accepted() {
        for rule in [
            "!has(self.min) || !has(self.max) || self.min <= self.max",
            "!has(self.names) || self.names.all(n, n.startsWith('a'))",
            "!has(self.ratio) || self.ratio < 1.0",
            "!has(self.a__dash__b) || self.a__dash__b != 'bad'",
            "!has(self.__namespace__) || self.__namespace__.matches('^[a-z]+$')",
            "!has(self.amount) || quantity(self.amount).isLessThan(quantity('2Gi'))",
            "!has(self.wait) || self.wait > duration('1s')",
            "!has(self.when) || self.when.getFullYear() > 2000",
            "!has(self.any) || (type(self.any) == int ? self.any > 0 : self.any == 'x')",
            "!has(self.labels) || self.labels.all(k, self.labels[k].size() < 4)",
            "self.?max.orValue(1) != 13",
            "!has(oldSelf.fixed) || has(self.fixed)",
            "self.names.exists_one(n, n == 'x') && self.names.map(n, size(n)).sum() < 9",
            "self.?max.optMap(m, m > 1).orValue(true) && self.names.filter(n, n != '').size() in [1, 2]",
            "self.names == [] || self.names[0].lowerAscii() == 'x'",
        ] {
            let properties = json!({
                "min": {"type": "integer"}, "max": {"type": "integer"}, "ratio": {"type": "number"},
                "names": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 10}},
                "a-b": {"type": "string", "maxLength": 10}, "namespace": {"type": "string", "maxLength": 20},
                "amount": {"type": "string", "maxLength": 10}, "wait": {"type": "string", "format": "duration"},
                "when": {"type": "string", "format": "date-time"}, "any": {"x-kubernetes-int-or-string": true},
                "labels": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 20}},
                "fixed": {"type": "string", "maxLength": 10},
            });
            assert_eq!(wrong(json!({"rule": rule}), properties), Vec::<String>::new(), "{rule}");
        }
    }

    #[test]
    fn the_cost_of_an_unchanged_rule_is_not_checked_again() {
        let properties = json!({"a": {"type": "string", "maxLength": 40_000}});
        let old = definition(json!({"rule": "self.a.contains(self.a)"}), properties.clone());
        assert_eq!(
            check_definition(&old, None)[0].detail.split(" by ").next(),
            Some("estimated rule cost exceeds budget")
        );
        assert!(check_definition(&old, Some(&old)).len() < check_definition(&old, None).len());
        let other = definition(json!({"rule": "self.b == 1"}), properties);
        assert_eq!(
            check_definition(&other, Some(&other)).len(),
            1,
            "whatever cannot work is found each time"
        );
    }

    #[test]
    fn a_rule_that_may_get_too_expensive_is_refused() {
        let free = json!({"list": {"type": "array", "items": {"type": "string"}}});
        let rule = json!({"rule": "self.list.all(a, self.list.all(b, a == b))"});
        let found = wrong(rule.clone(), free);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].contains("estimated rule cost exceeds budget by factor of more than 100x"),
            "{found:?}"
        );
        assert!(found[1].contains("contributed to estimated rule cost total"), "{found:?}");
        let bounded =
            json!({"list": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}}});
        assert!(wrong(rule, bounded).is_empty());
    }

    #[test]
    fn items_that_cannot_be_recognised_have_no_past() {
        let properties = json!({"list": {"type": "array", "maxItems": 3, "items": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}});
        let found = wrong(json!({"rule": "true"}), properties);
        assert!(found[0].contains("oldSelf cannot be used on the uncorrelatable portion"), "{found:?}");
    }
}
