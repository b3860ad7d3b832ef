//! Validation of objects against a schema, with upstream's words.
//!
//! The checks at each level run in upstream's order: type, combinations, strings, formats, numbers, lists, enums,
//! objects. A wrong type does not stop the others; they look at the value they find.
//!
//! On update, whatever is unchanged from the stored object is not checked again: a schema that became stricter must
//! not lock up old objects. Fields correspond by name, items of map lists by key, other items not at all. A field that
//! the schema does not specify corresponds to nothing, so that an object with one always counts as changed.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{Additional, Kind, ListType, Node, NodeId, Rules, Schema, formats};
use crate::field::{Complaints, Error, Errors, Path, PathBudget, Trail};
use crate::go;
use crate::status::MOST_ERRORS;

impl Schema {
    /// Checks an object; with the stored object given, only what differs from it.
    pub fn validate(&self, object: &Value, stored: Option<&Value>) -> Errors {
        self.validate_value(object, stored, 0, None)
    }

    /// Checks the status of an object alone, as a write of the status does; the rest may be as invalid as it is.
    pub fn validate_status(&self, object: &Value, stored: &Value) -> Errors {
        match (object.get("status"), self.node(0).property("status")) {
            (Some(status), Some(id)) => {
                self.validate_value(status, stored.get("status"), id, Some(&Trail::Root.child("status")))
            }
            _ => Errors::new(),
        }
    }

    fn validate_value(
        &self,
        value: &Value,
        stored: Option<&Value>,
        id: NodeId,
        prefix: Option<&Trail<'_>>,
    ) -> Errors {
        self.validate_within(&PathBudget::default(), value, stored, id, prefix)
    }

    /// Checks a value of a level of the schema; errors are reported below a place.
    pub(super) fn validate_below(
        &self,
        value: &Value,
        id: NodeId,
        place: &Trail<'_>,
        errors: &mut Complaints,
    ) {
        let found = self.validate_within(errors.paths(), value, None, id, Some(place));
        errors.extend(found);
    }

    fn validate_within(
        &self,
        paths: &PathBudget,
        value: &Value,
        stored: Option<&Value>,
        id: NodeId,
        prefix: Option<&Trail<'_>>,
    ) -> Errors {
        let mut outcome = Outcome::default();
        let validator = Validator { schema: self, prefix, paths, texts: Cell::new(0), steps: Cell::new(0) };
        validator.node(id, value, stored, &Trail::Root, &mut outcome);
        if validator.steps.get() > MOST_STEPS {
            outcome.errors.truncate(MOST_ERRORS.saturating_sub(1));
            let message = format!("to check it against the schema takes more than {MOST_STEPS} steps");
            outcome.errors.push(Error::invalid_unshown(&validator.at(""), message));
        }
        outcome.errors
    }

    /// Checks that set and map lists hold no item twice.
    pub fn validate_lists(&self, object: &Value) -> Errors {
        let mut complaints = Complaints::default();
        Lists { schema: self }.node(0, object, &Trail::Root, &mut complaints);
        complaints.errors
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
                if items.len() != before.len() {
                    return false;
                }
                // The order of a map list means nothing.
                let known = Known::of(node, stored);
                items.iter().all(|item| {
                    known.find(item).is_some_and(|before| self.is_unchanged(item_schema, item, before))
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
        let room = MOST_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(other.errors.into_iter().take(room));
        self.matches = self.matches.saturating_add(other.matches);
    }
}

/// A schema of many alternatives and an object of many items are each small enough to be sent, and take hours together. As many steps
/// take a second or two.
const MOST_STEPS: usize = 10_000_000;

/// From here on, what a schema gives for an error to tell is long: an enumeration, a pattern.
const LONG_TEXT: usize = 1 << 10;

/// The bytes of long texts that are told. Each of a thousand errors may tell one.
const MOST_TEXTS: usize = 4 << 20;

struct Validator<'a> {
    schema: &'a Schema,
    prefix: Option<&'a Trail<'a>>,
    paths: &'a PathBudget,
    /// The bytes of long texts so far.
    texts: Cell<usize>,
    steps: Cell<usize>,
}

impl Validator<'_> {
    /// Notes an error, which is made of the field and of the walked path. What nobody would be told is not made.
    fn tell(&self, path: &Trail<'_>, out: &mut Outcome, error: impl FnOnce(&Path, &str) -> Error) {
        if out.errors.len() < MOST_ERRORS {
            let path = self.paths.path(path);
            out.errors.push(error(&self.at(&path), &path));
        }
    }

    /// Counts steps. Returns whether there are any left.
    fn step(&self, count: usize) -> bool {
        self.steps.set(self.steps.get().saturating_add(count));
        self.steps.get() <= MOST_STEPS
    }

    /// Returns whether a text of the schema may be told once more.
    fn may_tell(&self, size: usize) -> bool {
        let told = self.texts.get().saturating_add(size);
        let may = size <= LONG_TEXT || told <= MOST_TEXTS;
        if may && size > LONG_TEXT {
            self.texts.set(told);
        }
        may
    }

    /// The field of an error: the walked path, behind the prefix if there is one.
    fn at(&self, path: &str) -> Path {
        let path = path.trim_start_matches('.');
        match self.prefix {
            Some(prefix) if path.is_empty() => Path::new(&self.paths.path(prefix)),
            Some(prefix) => Path::new(&self.paths.path(&prefix.child(path))),
            None if path.is_empty() => Path::new("<nil>"),
            None => Path::new(path),
        }
    }

    /// Errors without a place of their own are reported at the prefix.
    fn placeless(&self, message: String) -> Error {
        Error::invalid(&self.at(""), "", message)
    }

    fn node(&self, id: NodeId, value: &Value, stored: Option<&Value>, path: &Trail<'_>, out: &mut Outcome) {
        if !self.step(1) {
            return;
        }
        if stored.is_some_and(|stored| self.schema.is_unchanged(id, value, stored)) {
            out.matches = out.matches.saturating_add(1);
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
        out.matches = out.matches.saturating_add(1);
    }

    fn check_type(&self, node: &Node, value: &Value, path: &Trail<'_>, out: &mut Outcome) {
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
            self.tell(path, out, |at, path| {
                let message = format!("{path} in body must be of type {expected}: {}", go::quote(found));
                Error::type_invalid(at, found, message)
            });
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
        out.matches = out.matches.saturating_add(1);
    }

    fn check_combinations(&self, rules: &Rules, value: &Value, path: &Trail<'_>, out: &mut Outcome) {
        // Once anything has changed here, combinations are held against all of it.
        let run = |id: NodeId| {
            let mut outcome = Outcome::default();
            self.node(id, value, None, path, &mut outcome);
            outcome
        };
        let complain = |out: &mut Outcome, words: &str| {
            self.tell(path, out, |_, path| self.placeless(format!("{} {words}", go::quote(path))));
        };
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
                    complain(out, "must validate at least one schema (anyOf)");
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
                complain(out, &format!("must validate one and only one schema (oneOf). {how}"));
                out.merge(best.unwrap_or_default());
            }
        }
        if !rules.all_of.is_empty() {
            let mut valid = 0;
            for id in &rules.all_of {
                let outcome = run(*id);
                valid = usize::from(outcome.errors.is_empty()).saturating_add(valid);
                out.merge(outcome);
            }
            if valid != rules.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                complain(out, &format!("must validate all the schemas (allOf){none}"));
            }
        }
        if let Some(id) = rules.not
            && run(id).errors.is_empty()
        {
            complain(out, "must not validate the schema (not)");
        }
    }

    fn check_string(&self, node: &Node, rules: &Rules, text: &str, path: &Trail<'_>, out: &mut Outcome) {
        let length = || i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let complain = |out: &mut Outcome, words: &str| {
            self.tell(path, out, |at, path| Error::invalid(at, text, format!("{path} in body {words}")));
        };
        if let Some(most) = rules.max_length.filter(|most| length() > *most) {
            self.tell(path, out, |at, _| Error::too_long(at, usize::try_from(most).unwrap_or(0)));
        } else if let Some(least) = rules.min_length.filter(|least| length() < *least) {
            complain(out, &format!("should be at least {least} chars long"));
        } else if let Some(pattern) = &rules.pattern {
            let source = &pattern.source;
            let regex = pattern.regex();
            if !regex.is_some_and(|regex| regex.is_match(text)) {
                self.tell(path, out, |at, path| {
                    let words = match regex {
                        _ if !self.may_tell(source.len()) => {
                            "should match a pattern too long to be told".to_owned()
                        }
                        Some(_) => format!("should match '{source}'"),
                        None => format!("should match '{source}, but pattern is invalid'"),
                    };
                    Error::invalid(at, text, format!("{path} in body {words}"))
                });
            }
        }
        let format = formats::enforced(node.kind, &rules.format);
        if !formats::accepts(format, text) {
            self.tell(path, out, |at, path| {
                let message = format!("{path} in body must be of type {format}: {}", go::quote(text));
                Error::type_invalid(at, text, message)
            });
        }
    }

    /// Says, besides what is said about its type, that a number is not one of those that its type and format can hold.
    fn check_range(&self, node: &Node, format: &str, value: &Value, path: &Trail<'_>, out: &mut Outcome) {
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
            self.tell(path, out, |_, path| {
                self.placeless(format!("Checked value must be of type {kind} {format} in {path}"))
            });
        }
    }

    fn check_number(&self, node: &Node, rules: &Rules, value: &Value, path: &Trail<'_>, out: &mut Outcome) {
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
            self.tell(path, out, |at, path| {
                Error::invalid(at, value.clone(), format!("{path} in body {words}"))
            });
        };
        if let Some(factor) = rules.multiple_of {
            let multiple = match whole {
                Some(number) if factor as i64 > 0 => number.checked_rem(factor as i64) == Some(0),
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
        path: &Trail<'_>,
        out: &mut Outcome,
    ) {
        if let Some(id) = node.items {
            let known = stored.map(|stored| Known::of(node, stored));
            for (index, item) in items.iter().enumerate() {
                let before = known.as_ref().and_then(|known| known.find(item));
                self.node(id, item, before, &Trail::Item(path, index), out);
            }
        }
        let Some(rules) = &node.rules else { return };
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(least) = rules.min_items.filter(|least| size < *least) {
            self.tell(path, out, |at, path| {
                Error::invalid(at, size, format!("{path} in body should have at least {least} items"))
            });
        }
        if let Some(most) = rules.max_items.filter(|most| size > *most) {
            let most = usize::try_from(most).unwrap_or(0);
            self.tell(path, out, |at, _| Error::too_many(at, items.len(), most));
        }
        let mut seen: HashSet<&Value> = HashSet::new();
        if rules.unique_items && !items.iter().all(|item| seen.insert(item)) {
            self.tell(path, out, |at, path| {
                Error::invalid(at, "", format!("{path} in body shouldn't contain duplicates"))
            });
        }
    }

    fn check_enum(&self, rules: &Rules, value: &Value, path: &Trail<'_>, out: &mut Outcome) {
        let allowed = &rules.allowed;
        if allowed.list.is_empty() || allowed.contains(value) {
            return;
        }
        self.tell(path, out, |at, _| {
            if !self.may_tell(allowed.size) {
                let mut error = Error::not_supported(at, value.clone(), &[]);
                error.detail = "supported values: too many to be told".to_owned();
                return error;
            }
            let name = |allowed: &Value| match allowed {
                Value::String(text) => text.clone(),
                other => crate::json::write(other),
            };
            let names: Vec<String> = allowed.list.iter().map(name).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Error::not_supported(at, value.clone(), &names)
        });
    }

    fn check_object(
        &self,
        node: &Node,
        entries: &Map<String, Value>,
        stored: Option<&Value>,
        path: &Trail<'_>,
        out: &mut Outcome,
    ) {
        let size = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        if let Some(rules) = &node.rules {
            if let Some(least) = rules.min_properties.filter(|least| size < *least) {
                self.tell(path, out, |at, path| {
                    Error::invalid(
                        at,
                        size,
                        format!("{path} in body should have at least {least} properties"),
                    )
                });
            }
            if let Some(most) = rules.max_properties.filter(|most| size > *most) {
                let most = usize::try_from(most).unwrap_or(0);
                self.tell(path, out, |at, _| Error::too_many(at, entries.len(), most));
            }
        }
        for (name, value) in entries {
            let below = Trail::Field(path, name);
            // Versions are told apart by these two alone: an unchanged one may be invalid in this version.
            let is_type = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
            let before = stored.filter(|_| !is_type).and_then(|stored| stored.get(name));
            match (node.property(name), &node.additional) {
                (Some(id), _) => self.node(id, value, before, &below, out),
                (None, Some(Additional::Schema(id))) => self.node(*id, value, before, &below, out),
                (None, Some(Additional::Allowed(false))) => {
                    self.tell(path, out, |at, path| {
                        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                        Error::invalid(at, name.as_str(), format!("{below} in body is a forbidden property"))
                    });
                }
                _ => {}
            }
        }
        if let Some(rules) = &node.rules {
            if !self.step(rules.required.len()) {
                return;
            }
            for name in rules.required.iter().filter(|name| !entries.contains_key(*name)) {
                self.tell(path, out, |_, path| Error::required(&self.at(&format!("{path}.{name}")), ""));
            }
        }
    }
}

/// The items of a stored list, by what identifies them. Only those of map lists can be found again. Looking through the whole list for
/// each item would take minutes for lists that fit into an object.
struct Known<'a> {
    keys: &'a [String],
    items: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Known<'a> {
    fn of(node: &'a Node, stored: &'a Value) -> Self {
        let mut known = Self { keys: &node.list_keys, items: HashMap::new() };
        if node.list == ListType::Map {
            for item in stored.as_array().into_iter().flatten() {
                let identity = known.identity(item);
                known.items.entry(identity).or_insert(item);
            }
        }
        known
    }

    fn identity<'b>(&self, item: &'b Value) -> Vec<Option<&'b Value>> {
        self.keys.iter().map(|key| item.get(key)).collect()
    }

    /// Returns the stored item that an item corresponds to.
    fn find(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&self.identity(item)).copied()
    }
}

/// The check of set and map lists; its paths print free keys in brackets.
pub struct Lists<'a> {
    schema: &'a Schema,
}

impl Lists<'_> {
    fn node(&self, id: NodeId, value: &Value, path: &Trail<'_>, complaints: &mut Complaints) {
        let node = self.schema.node(id);
        match value {
            Value::Object(entries) => {
                for (name, value) in entries {
                    if let Some(id) = node.property(name) {
                        self.node(id, value, &Trail::Field(path, name), complaints);
                    } else if let Some(Additional::Schema(id)) = &node.additional {
                        self.node(*id, value, &Trail::Key(path, name), complaints);
                    }
                }
            }
            Value::Array(items) => {
                match node.list {
                    ListType::Atomic => {}
                    ListType::Set => repeated(items.iter().cloned(), path, complaints),
                    ListType::Map => {
                        let mut places = items.iter().enumerate();
                        let odd = places.find(|(_, item)| !item.is_object() && !item.is_null());
                        if let Some((index, item)) = odd {
                            complaints.tell(&Trail::Item(path, index), |at| {
                                let text = "must be an object for an array of list-type map";
                                Error::invalid(at, item.clone(), text)
                            });
                        } else {
                            let keys = items.iter().map(|item| {
                                let present =
                                    node.list_keys.iter().filter_map(|key| Some((key, item.get(key)?)));
                                json!(present.collect::<std::collections::BTreeMap<_, _>>())
                            });
                            repeated(keys, path, complaints);
                        }
                    }
                }
                if let Some(id) = node.items {
                    for (index, item) in items.iter().enumerate() {
                        self.node(id, item, &Trail::Item(path, index), complaints);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Reports the second occurrence of each repeated value.
fn repeated(values: impl Iterator<Item = Value>, path: &Trail<'_>, complaints: &mut Complaints) {
    let mut seen = BTreeSet::new();
    let mut reported = BTreeSet::new();
    for (index, value) in values.enumerate() {
        let text = crate::json::write(&value);
        if !seen.insert(text.clone()) && reported.insert(text) {
            complaints.tell(&Trail::Item(path, index), |at| Error::duplicate(at, value));
        }
    }
}
