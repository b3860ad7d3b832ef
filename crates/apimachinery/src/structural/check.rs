//! Is a schema structural? The rules, in upstream's words.
//!
//! Two questions: do the values' shapes stand outside of `allOf`, `anyOf`, `oneOf` and `not` (so that pruning and
//! defaulting need not guess), and is everything that those mention also described outside of them?

use serde_json::{Map, Value, json};

use super::pattern;
use crate::field::{Complaints, Error, Trail};

/// Tells what keeps a schema from being structural, sorted by text. Returns whether nothing does.
pub fn check(schema: &Value, path: &Trail<'_>, errors: &mut Complaints) -> bool {
    let before = errors.errors.len();
    level(schema, Level::Root, path, errors);
    completeness(schema, Some(schema), path, path, errors);
    let found = errors.errors.split_at_mut(before).1;
    found.sort_by_cached_key(ToString::to_string);
    found.is_empty()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn list<'a>(schema: &'a Value, name: &str) -> &'a [Value] {
    schema.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn level(schema: &Value, at: Level, path: &Trail<'_>, errors: &mut Complaints) {
    let kind = text(schema, "type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = flag(schema, "x-kubernetes-int-or-string");
    match schema.get("items") {
        Some(items) => level(items, Level::Item, &path.child("items"), errors),
        None if kind == "array" => {
            errors.tell(&path.child("items"), |place| Error::required(place, "must be specified"))
        }
        None => {}
    }
    for (name, property) in properties(schema) {
        level(property, Level::Field, &path.child("properties").key(name), errors);
    }
    let additional = schema.get("additionalProperties");
    if let Some(additional) = additional {
        let path = path.child("additionalProperties");
        if at == Level::Root {
            errors.tell(&path, |place| Error::forbidden(place, "must not be used at the root"));
        }
        if additional.is_object() {
            level(additional, Level::Field, &path, errors);
        }
        if embedded {
            errors.tell(&path, |place| {
                Error::forbidden(place, "must not be used if x-kubernetes-embedded-resource is set")
            });
        }
    }
    for (name, set) in
        [("x-kubernetes-preserve-unknown-fields", preserve), ("x-kubernetes-embedded-resource", embedded)]
    {
        if int_or_string && set {
            let message = "must be false if x-kubernetes-int-or-string is true";
            errors.tell(&path.child(name), |place| Error::invalid(place, true, message));
        }
    }
    let skip_any_of = is_int_or_string(schema.get("anyOf"));
    let skip_first_all_of =
        list(schema, "allOf").first().is_some_and(|first| is_int_or_string(first.get("anyOf")));
    rules(schema, skip_any_of, skip_first_all_of, path, errors);

    let type_path = path.child("type");
    if embedded && kind != "object" {
        let message = "must be object if x-kubernetes-embedded-resource is true";
        errors.tell(&type_path, |place| match kind {
            "" => Error::required(place, message),
            _ => Error::invalid(place, kind, message),
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let message = match at {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.tell(&type_path, |place| Error::required(place, message));
    }
    if at == Level::Root && !kind.is_empty() && kind != "object" {
        errors.tell(&type_path, |place| Error::invalid(place, kind, "must be object at the root"));
    }
    let has_metadata = at == Level::Root || embedded;
    let property = |name: &str| schema.get("properties").and_then(|properties| properties.get(name));
    let properties_path = path.child("properties");
    if has_metadata {
        for name in ["kind", "apiVersion"] {
            if let Some(schema) = property(name)
                && text(schema, "type") != "string"
            {
                let path = properties_path.key(name);
                errors.tell(&path.child("type"), |place| {
                    Error::invalid(place, text(schema, "type"), "must be string")
                });
            }
        }
    }
    if let Some(metadata) = property("metadata") {
        let path = properties_path.key("metadata");
        if has_metadata && text(metadata, "type") != "object" {
            errors.tell(&path.child("type"), |place| {
                Error::invalid(place, text(metadata, "type"), "must be object")
            });
        }
        if at == Level::Root && !is_plain_metadata(metadata) {
            let message = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.tell(&path, |place| Error::forbidden(place, message));
        }
    }
    if embedded && !preserve && properties(schema).next().is_none() {
        let message = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.tell(&properties_path, |place| Error::required(place, message));
    }
}

/// Root metadata may restrict `name` and `generateName` and nothing else.
fn is_plain_metadata(metadata: &Value) -> bool {
    let empty = Map::new();
    metadata.as_object().unwrap_or(&empty).iter().all(|(name, value)| match name.as_str() {
        "type" | "default" => true,
        "properties" => {
            value.as_object().unwrap_or(&empty).keys().all(|name| name == "name" || name == "generateName")
        }
        _ => matches!(value, Value::Null) || *value == json!(false) || *value == json!(""),
    })
}

fn is_int_or_string(any_of: Option<&Value>) -> bool {
    any_of == Some(&json!([{"type": "integer"}, {"type": "string"}]))
}

fn rules(
    schema: &Value,
    skip_any_of: bool,
    skip_first_all_of: bool,
    path: &Trail<'_>,
    errors: &mut Complaints,
) {
    if !skip_any_of {
        for (index, clause) in list(schema, "anyOf").iter().enumerate() {
            nested(clause, false, &path.child("anyOf").index(index), errors);
        }
    }
    for (index, clause) in list(schema, "allOf").iter().enumerate() {
        nested(clause, skip_first_all_of && index == 0, &path.child("allOf").index(index), errors);
    }
    for (index, clause) in list(schema, "oneOf").iter().enumerate() {
        nested(clause, false, &path.child("oneOf").index(index), errors);
    }
    if let Some(clause) = schema.get("not") {
        nested(clause, false, &path.child("not"), errors);
    }
    let source = text(schema, "pattern");
    if !source.is_empty()
        && let Err(error) = pattern::compile(source)
    {
        let reason = error.to_string().lines().last().unwrap_or_default().to_owned();
        let message = format!("must be a valid regular expression, but isn't: {reason}");
        errors.tell(&path.child("pattern"), |at| Error::invalid(at, source, message));
    }
}

/// Inside a combination only constraints on values may stand.
fn nested(schema: &Value, skip_any_of: bool, path: &Trail<'_>, errors: &mut Complaints) {
    rules(schema, skip_any_of, false, path, errors);
    if let Some(items) = schema.get("items") {
        nested(items, false, &path.child("items"), errors);
    }
    for (name, property) in properties(schema) {
        nested(property, false, &path.child("properties").key(name), errors);
    }
    for (name, words) in [
        ("type", "must be empty to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("default", "must be undefined to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ] {
        let set = match schema.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        };
        if set {
            errors.tell(&path.child(name), |at| Error::forbidden(at, words));
        }
    }
    if schema.get("properties").is_some_and(|properties| properties.get("metadata").is_some()) {
        let message = "must not be specified in a nested context";
        errors.tell(&path.child("properties").key("metadata"), |at| Error::forbidden(at, message));
    }
}

/// Checks that what combinations mention is described by the schema itself.
fn completeness(
    clause: &Value,
    schema: Option<&Value>,
    schema_path: &Trail<'_>,
    clause_path: &Trail<'_>,
    errors: &mut Complaints,
) {
    let mut one = |clause: &Value, clause_path: &Trail<'_>| {
        nested_completeness(clause, schema, schema_path, clause_path, errors);
    };
    if let Some(clause) = clause.get("not") {
        one(clause, &clause_path.child("not"));
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, clause) in list(clause, name).iter().enumerate() {
            one(clause, &clause_path.child(name).index(index));
        }
    }
}

fn nested_completeness(
    clause: &Value,
    schema: Option<&Value>,
    schema_path: &Trail<'_>,
    clause_path: &Trail<'_>,
    errors: &mut Complaints,
) {
    let Some(schema) = schema else {
        let message = format!("because it is defined in {}", errors.paths().path(clause_path));
        errors.tell(schema_path, |at| Error::required(at, message));
        return;
    };
    completeness(clause, Some(schema), schema_path, clause_path, errors);
    if let Some(items) = clause.get("items") {
        nested_completeness(
            items,
            schema.get("items"),
            &schema_path.child("items"),
            &clause_path.child("items"),
            errors,
        );
    }
    for (name, property) in properties(clause) {
        let described = schema.get("properties").and_then(|properties| properties.get(name));
        nested_completeness(
            property,
            described,
            &schema_path.child("properties").key(name),
            &clause_path.child("properties").key(name),
            errors,
        );
    }
}
