//! Validation of objects against a schema, with upstream's words.
//!
//! The checks at each level run in upstream's order: type, combinations, strings, formats, numbers, lists, enums,
//! objects. A wrong type does not stop the others; they look at the value they find.
//!
//! On update, whatever is unchanged from the stored object is not checked again: a schema that became stricter must
//! not lock up old objects. Fields correspond by name, items of map lists by key, other items not at all. A field that
//! the schema does not specify corresponds to nothing, so that an object with one always counts as changed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Additional, Kind, ListType, Node, NodeId, Rules, Schema, formats};
use crate::field::{Error, Errors, Path};
use crate::go;

impl Schema {
    /// Checks an object; with the stored object given, only what differs from it.
    pub fn validate(&self, object: &Value, stored: Option<&Value>) -> Errors {
        self.validate_value(object, stored, 0, None)
    }

    /// Checks the status of an object alone, as a write of the status does; the rest may be as invalid as it is.
    pub fn validate_status(&self, object: &Value, stored: &Value) -> Errors {
        match (object.get("status"), self.node(0).property("status")) {
            (Some(status), Some(id)) => {
                self.validate_value(status, stored.get("status"), id, Some(&Path::new("status")))
            }
            _ => Errors::new(),
        }
    }

    /// Checks a value of a level of the schema; errors are reported below `prefix`.
    pub(super) fn validate_value(
        &self,
        value: &Value,
        stored: Option<&Value>,
        id: NodeId,
        prefix: Option<&Path>,
    ) -> Errors {
        let mut outcome = Outcome::default();
        Validator { schema: self, prefix }.node(id, value, stored, "", &mut outcome);
        outcome.errors
    }

    /// Checks that set and map lists hold no item twice.
    pub fn validate_lists(&self, object: &Value) -> Errors {
        let mut errors = Errors::new();
        Lists { schema: self }.node(0, object, &Path::default(), &mut errors);
        errors
    }

    /// As [`Schema::validate_lists`], for a changed object: one that was broken already may stay so.
    pub fn validate_lists_update(&self, object: &Value, stored: &Value) -> Errors {
        let errors = self.validate_lists(object);
        if errors.is_empty() || !self.validate_lists(stored).is_empty() { Errors::new() } else { errors }
    }

    /// Says whether a value is the stored one, as far as the schema can tell.
    fn is_unchanged(&self, id: NodeId, value: &Value, stored: &Value) -> bool {
        let node = self.node(id);
        match (value, stored) {
            (Value::Array(items), Value::Array(before)) => {
                let Some(item_schema) = node.items.filter(|_| node.list == ListType::Map) else {
                    return items == before;
                };
                // The order of a map list means nothing.
                items.len() == before.len()
                    && items.iter().all(|item| {
                        correlated(node, item, stored)
                            .is_some_and(|before| self.is_unchanged(item_schema, item, before))
                    })
            }
            (Value::Object(entries), Value::Object(before)) => {
                entries.len() == before.len()
                    && entries.iter().all(|(name, value)| match (node.field(name), before.get(name)) {
                        (Some(field), Some(before)) => self.is_unchanged(field, value, before),
                        _ => false,
                    })
            }
            (value, stored) => value == stored,
        }
    }
}

/// Errors and how much matched; the latter picks the alternative whose errors are shown.
#[derive(Default)]
struct Outcome {
    errors: Errors,
    matches: i64,
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.matches += other.matches;
    }
}

struct Validator<'a> {
    schema: &'a Schema,
    prefix: Option<&'a Path>,
}

impl Validator<'_> {
    /// The field of an error: the walked path, behind the prefix if there is one.
    fn at(&self, path: &str) -> Path {
        let path = path.trim_start_matches('.');
        match self.prefix {
            Some(prefix) if path.is_empty() => prefix.clone(),
            Some(prefix) => prefix.child(path),
            None if path.is_empty() => Path::new("<nil>"),
            None => Path::new(path),
        }
    }

    /// Errors without a place of their own are reported at the prefix.
    fn placeless(&self, message: String) -> Error {
        Error::invalid(&self.at(""), "", message)
    }

    fn node(&self, id: NodeId, value: &Value, stored: Option<&Value>, path: &str, out: &mut Outcome) {
        if stored.is_some_and(|stored| self.schema.is_unchanged(id, value, stored)) {
            out.matches += 1;
            return;
        }
        let node = self.schema.node(id);
        self.check_type(node, value, path, out);
        if value.is_null() {
            if let Some(rules) = &node.rules {
                self.check_enum(rules, value, path, out);
            }
            return;
        }
        if node.rules.is_none() && value.is_number() {
            self.check_range(node, "", value, path, out);
        }
        if let Some(rules) = &node.rules {
            self.check_combinations(rules, value, path, out);
            match value {
                Value::String(text) => self.check_string(node, rules, text, path, out),
                Value::Number(_) => self.check_number(node, rules, value, path, out),
                _ => {}
            }
        }
        if let Value::Array(items) = value {
            self.check_array(node, items, stored, path, out);
        }
        if let Some(rules) = &node.rules {
            self.check_enum(rules, value, path, out);
        }
        if let Value::Object(entries) = value {
            self.check_object(node, entries, stored, path, out);
        }
        out.matches += 1;
    }

    fn check_type(&self, node: &Node, value: &Value, path: &str, out: &mut Outcome) {
        let types: &[&str] = if node.int_or_string {
            &["integer", "string"]
        } else {
            match node.kind {
                None => &[],
                Some(Kind::Object) => &["object"],
                Some(Kind::Array) => &["array"],
                Some(Kind::String) => &["string"],
                Some(Kind::Integer) => &["integer"],
                Some(Kind::Number) => &["number"],
                Some(Kind::Boolean) => &["boolean"],
            }
        };
        let format = node.rules.as_deref().map_or("", |rules| formats::enforced(node.kind, &rules.format));
        if types.is_empty() && format.is_empty() {
            return;
        }
        let mut wrong = |expected: &str, found: &str| {
            let message = format!("{path} in body must be of type {expected}: {}", go::quote(found));
            out.errors.push(Error::type_invalid(&self.at(path), found, message));
        };
        let (found, number_format) = match value {
            Value::Null => {
                if !types.is_empty() && !node.nullable {
                    wrong(&types.join(","), "null");
                }
                return;
            }
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Number(number) if number.is_f64() => ("number", "float64"),
            Value::Number(_) => ("integer", "int64"),
            Value::Array(_) => ("array", ""),
            Value::Object(_) => ("object", ""),
        };
        let integral = value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let fits = types.contains(&found)
            || (found == "number" && integral && types.contains(&"integer"))
            || (found == "integer" && types.contains(&"number"));
        let sequence = matches!(value, Value::String(_) | Value::Array(_));
        if !sequence && !format.is_empty() && !fits && number_format != format {
            wrong(format, number_format);
            return;
        }
        let numeric = types.contains(&"number") || types.contains(&"integer");
        if !numeric && !format.is_empty() && sequence {
            return;
        }
        if !fits {
            wrong(&types.join(","), found);
            return;
        }
        out.matches += 1;
    }

    fn check_combinations(&self, rules: &Rules, value: &Value, path: &str, out: &mut Outcome) {
        // Once anything has changed here, combinations are held against all of it.
        let run = |id: NodeId| {
            let mut outcome = Outcome::default();
            self.node(id, value, None, path, &mut outcome);
            outcome
        };
        let shown = go::quote(path);
        let better = |best: &Option<Outcome>, outcome: &Outcome| {
            best.as_ref().is_none_or(|best| outcome.matches > best.matches)
        };
        if !rules.any_of.is_empty() {
            let mut best: Option<Outcome> = None;
            let mut valid = None;
            for id in &rules.any_of {
                let outcome = run(*id);
                if outcome.errors.is_empty() {
                    valid = Some(outcome);
                    break;
                }
                if better(&best, &outcome) {
                    best = Some(outcome);
                }
            }
            match (valid, best) {
                (Some(outcome), _) => out.merge(outcome),
                (None, best) => {
                    let message = format!("{shown} must validate at least one schema (anyOf)");
                    out.errors.push(self.placeless(message));
                    out.merge(best.unwrap_or_default());
                }
            }
        }
        if !rules.one_of.is_empty() {
            let mut best: Option<Outcome> = None;
            let mut valid = Vec::new();
            for id in &rules.one_of {
                let outcome = run(*id);
                if outcome.errors.is_empty() {
                    best = None;
                    valid.push(outcome);
                } else if valid.is_empty() && better(&best, &outcome) {
                    best = Some(outcome);
                }
            }
            if valid.len() == 1 {
                valid.into_iter().for_each(|outcome| out.merge(outcome));
            } else {
                let how = match valid.len() {
                    0 => "Found none valid".to_owned(),
                    count => format!("Found {count} valid alternatives"),
                };
                let message = format!("{shown} must validate one and only one schema (oneOf). {how}");
                out.errors.push(self.placeless(message));
                out.merge(best.unwrap_or_default());
            }
        }
        if !rules.all_of.is_empty() {
            let mut valid = 0;
            for id in &rules.all_of {
                let outcome = run(*id);
                valid += usize::from(outcome.errors.is_empty());
                out.merge(outcome);
            }
            if valid != rules.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                out.errors
                    .push(self.placeless(format!("{shown} must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(id) = rules.not
            && run(id).errors.is_empty()
        {
            out.errors.push(self.placeless(format!("{shown} must not validate the schema (not)")));
        }
    }

    fn check_string(&self, node: &Node, rules: &Rules, text: &str, path: &str, out: &mut Outcome) {
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let at = || self.at(path);
        if let Some(most) = rules.max_length.filter(|most| length() > *most) {
            out.errors.push(Error::too_long(&at(), usize::try_from(most).unwrap_or(0)));
        } else if let Some(least) = rules.min_length.filter(|least| length() < *least) {
            let message = format!("{path} in body should be at least {least} chars long");
            out.errors.push(Error::invalid(&at(), text, message));
        } else if let Some(pattern) = &rules.pattern {
            let source = &pattern.source;
            let message = match pattern.regex() {
                Some(regex) if regex.is_match(text) => None,
                Some(_) => Some(format!("{path} in body should match '{source}'")),
                None => Some(format!("{path} in body should match '{source}, but pattern is invalid'")),
            };
            if let Some(message) = message {
                out.errors.push(Error::invalid(&at(), text, message));
            }
        }
        let format = formats::enforced(node.kind, &rules.format);
        if !formats::accepts(format, text) {
            let message = format!("{path} in body must be of type {format}: {}", go::quote(text));
            out.errors.push(Error::type_invalid(&at(), text, message));
        }
    }

    /// Says, besides what is said about its type, that a number is not one of those that its type and format can hold.
    fn check_range(&self, node: &Node, format: &str, value: &Value, path: &str, out: &mut Outcome) {
        let (kind, fits) = if node.kind == Some(Kind::Integer) {
            let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
            let whole = whole.or_else(|| {
                value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128)
            });
            let fits = whole.is_some_and(|number| match format {
                "int32" => i32::try_from(number).is_ok(),
                "uint32" => u32::try_from(number).is_ok(),
                "uint64" => u64::try_from(number).is_ok(),
                _ => i64::try_from(number).is_ok(),
            });
            ("integer", fits)
        } else {
            let short = matches!(format, "float" | "float32");
            let fits = value.as_f64().is_none_or(|number| !short || number.abs() <= f64::from(f32::MAX));
            (if node.kind == Some(Kind::Number) { "number" } else { "" }, fits)
        };
        if !fits {
            let format = if format.is_empty() {
                "(default format)".to_owned()
            } else {
                format!("with format {format}")
            };
            let message = format!("Checked value must be of type {kind} {format} in {path}");
            out.errors.push(self.placeless(message));
        }
    }

    fn check_number(&self, node: &Node, rules: &Rules, value: &Value, path: &str, out: &mut Outcome) {
        let Some(number) = value.as_f64() else { return };
        let whole = value.as_i64();
        self.check_range(node, &rules.format, value, path, out);
        // Integers are compared with the bound cut to an integer, as upstream does.
        let shown = |bound: f64| if whole.is_some() { (bound as i64).to_string() } else { go::float(bound) };
        let order = |bound: f64| match whole {
            Some(number) => Some(number.cmp(&(bound as i64))),
            None => number.partial_cmp(&bound),
        };
        let mut complain = |words: String| {
            out.errors.push(Error::invalid(&self.at(path), value.clone(), format!("{path} in body {words}")));
        };
        if let Some(factor) = rules.multiple_of {
            let multiple = match whole {
                Some(number) if factor as i64 > 0 => number % (factor as i64) == 0,
                _ => (number / factor).fract() == 0.0,
            };
            if !multiple {
                complain(format!("should be a multiple of {}", shown(factor)));
            }
        }
        if let Some(least) = rules.minimum {
            let order = order(least);
            if order.is_some_and(|order| order.is_lt() || (rules.exclusive_minimum && order.is_eq())) {
                let or_equal = if rules.exclusive_minimum { "" } else { "or equal to " };
                complain(format!("should be greater than {or_equal}{}", shown(least)));
            }
        }
        if let Some(most) = rules.maximum {
            let order = order(most);
            if order.is_some_and(|order| order.is_gt() || (rules.exclusive_maximum && order.is_eq())) {
                let or_equal = if rules.exclusive_maximum { "" } else { "or equal to " };
                complain(format!("should be less than {or_equal}{}", shown(most)));
            }
        }
    }

    fn check_array(
        &self,
        node: &Node,
        items: &[Value],
        stored: Option<&Value>,
        path: &str,
        out: &mut Outcome,
    ) {
        if let Some(id) = node.items {
            for (index, item) in items.iter().enumerate() {
                let before = stored.and_then(|stored| correlated(node, item, stored));
                self.node(id, item, before, &format!("{path}[{index}]"), out);
            }
        }
        let Some(rules) = &node.rules else { return };
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(least) = rules.min_items.filter(|least| size < *least) {
            let message = format!("{path} in body should have at least {least} items");
            out.errors.push(Error::invalid(&self.at(path), size, message));
        }
        if let Some(most) = rules.max_items.filter(|most| size > *most) {
            out.errors.push(Error::too_many(&self.at(path), items.len(), usize::try_from(most).unwrap_or(0)));
        }
        if rules.unique_items && items.iter().enumerate().any(|(index, item)| items[..index].contains(item)) {
            let message = format!("{path} in body shouldn't contain duplicates");
            out.errors.push(Error::invalid(&self.at(path), "", message));
        }
    }

    fn check_enum(&self, rules: &Rules, value: &Value, path: &str, out: &mut Outcome) {
        if rules.allowed.is_empty() || rules.allowed.contains(value) {
            return;
        }
        let names: Vec<String> = rules
            .allowed
            .iter()
            .map(|allowed| match allowed {
                Value::String(text) => text.clone(),
                other => crate::json::write(other),
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        out.errors.push(Error::not_supported(&self.at(path), value.clone(), &names));
    }

    fn check_object(
        &self,
        node: &Node,
        entries: &Map<String, Value>,
        stored: Option<&Value>,
        path: &str,
        out: &mut Outcome,
    ) {
        let size = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        if let Some(rules) = &node.rules {
            if let Some(least) = rules.min_properties.filter(|least| size < *least) {
                let message = format!("{path} in body should have at least {least} properties");
                out.errors.push(Error::invalid(&self.at(path), size, message));
            }
            if let Some(most) = rules.max_properties.filter(|most| size > *most) {
                out.errors.push(Error::too_many(
                    &self.at(path),
                    entries.len(),
                    usize::try_from(most).unwrap_or(0),
                ));
            }
        }
        for (name, value) in entries {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // Versions are told apart by these two alone: an unchanged one may be invalid in this version.
            let is_type = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
            let before = stored.filter(|_| !is_type).and_then(|stored| stored.get(name));
            match (node.property(name), &node.additional) {
                (Some(id), _) => self.node(id, value, before, &below, out),
                (None, Some(Additional::Schema(id))) => self.node(*id, value, before, &below, out),
                (None, Some(Additional::Allowed(false))) => {
                    let message = format!("{below} in body is a forbidden property");
                    out.errors.push(Error::invalid(&self.at(path), name.as_str(), message));
                }
                _ => {}
            }
        }
        if let Some(rules) = &node.rules {
            for name in rules.required.iter().filter(|name| !entries.contains_key(*name)) {
                out.errors.push(Error::required(&self.at(&format!("{path}.{name}")), ""));
            }
        }
    }
}

/// Returns the stored item that an item of a map list corresponds to.
fn correlated<'a>(node: &Node, item: &Value, stored: &'a Value) -> Option<&'a Value> {
    if node.list != ListType::Map {
        return None;
    }
    let same = |candidate: &&Value| node.list_keys.iter().all(|key| candidate.get(key) == item.get(key));
    stored.as_array()?.iter().find(same)
}

/// The check of set and map lists; its paths print free keys in brackets.
pub struct Lists<'a> {
    schema: &'a Schema,
}

impl Lists<'_> {
    fn node(&self, id: NodeId, value: &Value, path: &Path, errors: &mut Errors) {
        let node = self.schema.node(id);
        match value {
            Value::Object(entries) => {
                for (name, value) in entries {
                    if let Some(id) = node.property(name) {
                        self.node(id, value, &path.child(name), errors);
                    } else if let Some(Additional::Schema(id)) = &node.additional {
                        self.node(*id, value, &path.key(name), errors);
                    }
                }
            }
            Value::Array(items) => {
                match node.list {
                    ListType::Atomic => {}
                    ListType::Set => repeated(items.iter().cloned(), path, errors),
                    ListType::Map => {
                        let odd = items.iter().position(|item| !item.is_object() && !item.is_null());
                        if let Some(index) = odd {
                            errors.push(Error::invalid(
                                &path.index(index),
                                items[index].clone(),
                                "must be an object for an array of list-type map",
                            ));
                        } else {
                            let keys = items.iter().map(|item| {
                                let present =
                                    node.list_keys.iter().filter_map(|key| Some((key, item.get(key)?)));
                                json!(present.collect::<std::collections::BTreeMap<_, _>>())
                            });
                            repeated(keys, path, errors);
                        }
                    }
                }
                if let Some(id) = node.items {
                    for (index, item) in items.iter().enumerate() {
                        self.node(id, item, &path.index(index), errors);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Reports the second occurrence of each repeated value.
fn repeated(values: impl Iterator<Item = Value>, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    let mut reported = BTreeSet::new();
    for (index, value) in values.enumerate() {
        let text = crate::json::write(&value);
        if !seen.insert(text.clone()) && reported.insert(text) {
            errors.push(Error::duplicate(&path.index(index), value));
        }
    }
}
