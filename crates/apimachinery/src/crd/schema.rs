//! The schema rules of a definition, beyond being structural.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{MOST_SHOWING_A_LIST, Schema, flag, list, structural, text};
use crate::field::{Complaints, Error, Trail};

/// Items of a list are told apart by the values of all keys, a million items in the largest body. Two keys are usual.
const MOST_MAP_KEYS: usize = 16;
/// The default of a key is copied for each item without it.
const LONGEST_KEY: usize = 1 << 10;

/// Checks `{"openAPIV3Schema": …}` of a version.
pub(super) fn check_part(part: &Value, status_enabled: bool, path: &Trail<'_>, errors: &mut Complaints) {
    let Some(schema) = part.get("openAPIV3Schema").filter(|schema| !schema.is_null()) else { return };
    let path = path.child("openAPIV3Schema");
    let before = errors.errors.len();
    if status_enabled {
        check_root(schema, &path, errors);
    }
    if flag(schema, "nullable") {
        errors
            .tell(&path.child("nullable"), |at| Error::forbidden(at, "nullable cannot be true at the root"));
    }
    let mut problem = None;
    match Schema::compile(schema) {
        Err(message) => problem = Some(message),
        Ok(compiled) => {
            if structural::check(schema, &path, errors) {
                compiled.check_defaults(&path, errors);
            }
        }
    }
    Walker { errors: &mut *errors }.level(
        schema,
        &path,
        Context { root: true, in_meta: false, no_defaults: None },
    );
    // What keeps a schema from compiling has usually been reported above, with its place.
    if errors.errors.len() == before
        && let Some(message) = problem
    {
        errors.tell(&path, |at| Error::invalid(at, "", message));
    }
}

/// With a status subresource the root may only hold what does not reach into `status`.
fn check_root(schema: &Value, path: &Trail<'_>, errors: &mut Complaints) {
    const ALLOWED: [&str; 22] = [
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
        "required",
        "items",
        "properties",
        "externalDocs",
        "example",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    let kind = text(schema, "type");
    if !kind.is_empty() && kind != "object" {
        let message = r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        errors.tell(&path.child("type"), |at| Error::invalid(at, kind, message));
        return;
    }
    let empty = Map::new();
    let odd = schema.as_object().unwrap_or(&empty).iter().any(|(name, value)| {
        !ALLOWED.contains(&name.as_str()) && !matches!(value, Value::Null | Value::Bool(false))
    });
    if odd {
        let message = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled";
        errors.tell(path, |at| Error::invalid(at, schema.clone(), message));
    }
}

#[derive(Clone, Copy)]
struct Context {
    root: bool,
    /// Inside `metadata`, `apiVersion` or `kind`.
    in_meta: bool,
    no_defaults: Option<&'static str>,
}

struct Walker<'a> {
    errors: &'a mut Complaints,
}

impl Walker<'_> {
    fn level(&mut self, schema: &Value, path: &Trail<'_>, context: Context) {
        self.standard(schema, path, context);
        if flag(schema, "uniqueItems") {
            let message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.tell(&path.child("uniqueItems"), |at| Error::forbidden(at, message));
        }
        let below = Context { root: false, ..context };
        let properties = schema.get("properties").and_then(Value::as_object);
        if let Some(additional) = schema.get("additionalProperties") {
            let path = path.child("additionalProperties");
            if properties.is_some_and(|properties| !properties.is_empty()) && *additional != Value::Bool(true)
            {
                let message = "additionalProperties and properties are mutual exclusive";
                self.errors.tell(&path, |at| Error::forbidden(at, message));
            }
            if additional.is_object() {
                let mut below = below;
                if context.in_meta {
                    below.no_defaults = Some("inside additionalProperties applying to object metadata");
                }
                self.level(additional, &path, below);
            }
        }
        for (name, property) in properties.into_iter().flatten() {
            let mut below = below;
            let meta = ["apiVersion", "kind", "metadata"].contains(&name.as_str());
            if meta && (context.root || flag(schema, "x-kubernetes-embedded-resource")) {
                below.in_meta = true;
                if context.root {
                    below.no_defaults = Some(match name.as_str() {
                        "apiVersion" => "in top-level apiVersion",
                        "kind" => "in top-level kind",
                        _ => "in top-level metadata",
                    });
                }
            }
            self.level(property, &path.child("properties").key(name), below);
        }
        if let Some(clause) = schema.get("not") {
            self.level(clause, &path.child("not"), below);
        }
        for name in ["allOf", "oneOf", "anyOf"] {
            for (index, clause) in list(schema, name).iter().enumerate() {
                self.level(clause, &path.child(name).index(index), below);
            }
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
            self.level(items, &path.child("items"), below);
        }
        self.extensions(schema, path);
        self.validations(schema, path);
    }

    fn standard(&mut self, schema: &Value, path: &Trail<'_>, context: Context) {
        const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
        let kind = text(schema, "type");
        if !kind.is_empty() && !TYPES.contains(&kind) {
            self.errors.tell(&path.child("type"), |at| Error::not_supported(at, kind, &TYPES));
        }
        let given = |name: &str| schema.get(name).is_some_and(|value| !value.is_null());
        if given("default")
            && let Some(reason) = context.no_defaults
        {
            self.errors
                .tell(&path.child("default"), |at| Error::forbidden(at, format!("must not be set {reason}")));
        }
        for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            if given(name) {
                self.errors
                    .tell(&path.child(name), |at| Error::forbidden(at, format!("{name} is not supported")));
            }
        }
        if kind == "null" {
            let message = "type cannot be set to null, use nullable as an alternative";
            self.errors.tell(&path.child("type"), |at| Error::forbidden(at, message));
        }
        if schema.get("items").is_some_and(Value::is_array) {
            let message = "items must be a schema object and not an array";
            self.errors.tell(&path.child("items"), |at| Error::forbidden(at, message));
        }
        if context.in_meta && flag(schema, "x-kubernetes-embedded-resource") {
            let message = "must not be used inside of resource meta";
            self.errors
                .tell(&path.child("x-kubernetes-embedded-resource"), |at| Error::forbidden(at, message));
        }
    }

    fn extensions(&mut self, schema: &Value, path: &Trail<'_>) {
        let kind = text(schema, "type");
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let path = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.tell(&path, |at| Error::invalid(at, false, "must be true or undefined"));
        }
        for (name, wanted, allowed) in [
            ("x-kubernetes-map-type", "object", ["atomic", "granular"].as_slice()),
            ("x-kubernetes-list-type", "array", &["atomic", "set", "map"]),
        ] {
            let value = text(schema, name);
            if value.is_empty() {
                continue;
            }
            if kind != wanted {
                let message = format!("must be {wanted} if {name} is specified");
                self.errors.tell(&path.child("type"), |at| match kind {
                    "" => Error::required(at, message),
                    _ => Error::invalid(at, kind, message),
                });
            }
            if !allowed.contains(&value) {
                self.errors.tell(&path.child(name), |at| Error::not_supported(at, value, allowed));
            }
        }
        self.lists(schema, path);
    }

    fn lists(&mut self, schema: &Value, path: &Trail<'_>) {
        let list_type = text(schema, "x-kubernetes-list-type");
        let keys: Vec<&str> =
            list(schema, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str).collect();
        let keys_path = path.child("x-kubernetes-list-map-keys");
        if !keys.is_empty() && list_type != "map" {
            let path = path.child("x-kubernetes-list-type");
            let message = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.tell(&path, |at| match list_type {
                "" => Error::required(at, message),
                _ => Error::invalid(at, list_type, message),
            });
        }
        let items_path = path.child("items");
        let items = schema.get("items").filter(|items| items.is_object());
        if let Some(items) = items
            && matches!(list_type, "set" | "map")
            && flag(items, "nullable")
        {
            let message = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            self.errors.tell(&items_path.child("nullable"), |at| Error::forbidden(at, message));
        }
        if list_type == "set"
            && let Some(items) = items
        {
            let message = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let (name, wrong) = match text(items, "type") {
                "array" => (
                    "x-kubernetes-list-type",
                    !matches!(text(items, "x-kubernetes-list-type"), "" | "atomic"),
                ),
                "object" => ("x-kubernetes-map-type", text(items, "x-kubernetes-map-type") != "atomic"),
                _ => ("", false),
            };
            if wrong {
                let value = items.get(name).cloned().unwrap_or(Value::Null);
                self.errors.tell(&items_path.child(name), |at| Error::invalid(at, value, message));
            }
        }
        if list_type != "map" {
            return;
        }
        if keys.is_empty() {
            let message = "must not be empty if x-kubernetes-list-type is map";
            self.errors.tell(&keys_path, |at| Error::required(at, message));
        }
        let Some(items) = items else {
            let message = "must have a schema if x-kubernetes-list-type is map";
            self.errors.tell(&items_path, |at| Error::required(at, message));
            return;
        };
        let kind = text(items, "type");
        if kind != "object" {
            let message = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.tell(&items_path.child("type"), |at| Error::invalid(at, kind, message));
            return;
        }
        if keys.len() > MOST_MAP_KEYS {
            self.errors.tell(&keys_path, |at| Error::too_many(at, keys.len(), MOST_MAP_KEYS));
            return;
        }
        // Each shows the whole list of keys, however long these are.
        let mut showing = 0..MOST_SHOWING_A_LIST;
        let mut show = |errors: &mut Complaints, message: &str| {
            if showing.next().is_some() {
                errors.tell(&keys_path, |at| Error::invalid(at, keys.as_slice(), message));
            }
        };
        let required: HashSet<&str> = list(items, "required").iter().filter_map(Value::as_str).collect();
        let properties_path = items_path.child("properties");
        let mut seen = HashSet::new();
        for key in &keys {
            if !seen.insert(key) {
                show(self.errors, "must not contain duplicate entries");
            }
            let Some(property) = items.get("properties").and_then(|properties| properties.get(*key)) else {
                show(self.errors, "entries must all be names of item properties");
                continue;
            };
            let path = properties_path.key(key);
            if matches!(text(property, "type"), "array" | "object") {
                let message = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.tell(&path.child("type"), |at| Error::invalid(at, kind, message));
            }
            if !required.contains(key) && property.get("default").is_none() {
                let message = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.errors.tell(&path.child("default"), |at| Error::required(at, message));
            }
            if property.get("default").and_then(Value::as_str).is_some_and(|text| text.len() > LONGEST_KEY) {
                self.errors.tell(&path.child("default"), |at| Error::too_long(at, LONGEST_KEY));
            }
            if flag(property, "nullable") {
                let message = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.errors.tell(&path.child("nullable"), |at| Error::forbidden(at, message));
            }
        }
    }

    /// The shape of validation rules; whether they compile is not known here.
    fn validations(&mut self, schema: &Value, path: &Trail<'_>) {
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        let path = path.child("x-kubernetes-validations");
        for (index, rule) in list(schema, "x-kubernetes-validations").iter().enumerate() {
            let path = path.index(index);
            let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
            if expression.is_empty() {
                self.errors.tell(&path.child("rule"), |at| Error::required(at, "rule is not specified"));
            } else if !message.is_empty() && message.trim().is_empty() {
                let path = path.child("message");
                self.errors.tell(&path, |at| Error::invalid(at, message, "must be non-empty if specified"));
            } else if message.trim().contains(['\n', '\r']) {
                self.errors.tell(&path.child("message"), |at| {
                    Error::invalid(at, message, "must not contain line breaks")
                });
            } else if expression.contains(['\n', '\r']) && message.trim().is_empty() {
                let words = "message must be specified if rule contains line breaks";
                self.errors.tell(&path.child("message"), |at| Error::required(at, words));
            }
            let made = text(rule, "messageExpression");
            if !made.is_empty() && made.trim().is_empty() {
                let words = "messageExpression must be non-empty if specified";
                self.errors.tell(&path.child("messageExpression"), |at| Error::required(at, words));
            }
            let reason = text(rule, "reason");
            if !reason.is_empty() && !REASONS.contains(&reason) {
                self.errors.tell(&path.child("reason"), |at| Error::not_supported(at, reason, &REASONS));
            }
            let (below, path) = (text(rule, "fieldPath"), path.child("fieldPath"));
            if !below.is_empty() && below.trim().is_empty() {
                self.errors.tell(&path, |at| Error::invalid(at, below, "must be non-empty if specified"));
            }
            if below.contains(['\n', '\r']) {
                self.errors.tell(&path, |at| Error::invalid(at, below, "must not contain line breaks"));
            }
            if !below.is_empty() && super::rule_path(below, schema).is_none() {
                self.errors.tell(&path, |at| Error::invalid(at, below, "must be a valid path"));
            }
        }
    }
}
