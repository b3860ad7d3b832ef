//! The schema rules of a definition, beyond being structural.

use serde_json::{Map, Value};

use super::{Schema, flag, list, structural, text};
use crate::field::{Error, Errors, Path};

/// Checks `{"openAPIV3Schema": …}` of a version.
pub(super) fn check_part(part: &Value, status_enabled: bool, path: &Path, errors: &mut Errors) {
    let Some(schema) = part.get("openAPIV3Schema").filter(|schema| !schema.is_null()) else { return };
    let path = path.child("openAPIV3Schema");
    let before = errors.len();
    if status_enabled {
        check_root(schema, &path, errors);
    }
    if flag(schema, "nullable") {
        errors.push(Error::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut problem = None;
    match Schema::compile(schema) {
        Err(message) => problem = Some(Error::invalid(&path, "", message)),
        Ok(compiled) => {
            let found = structural::check(schema, &path);
            if found.is_empty() {
                errors.extend(compiled.check_defaults(&path));
            } else {
                errors.extend(found);
            }
        }
    }
    Walker { errors }.level(schema, &path, Context { root: true, in_meta: false, no_defaults: None });
    // What keeps a schema from compiling has usually been reported above, with its place.
    if errors.len() == before {
        errors.extend(problem);
    }
}

/// With a status subresource the root may only hold what does not reach into `status`.
fn check_root(schema: &Value, path: &Path, errors: &mut Errors) {
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
        errors.push(Error::invalid(&path.child("type"), kind, message));
        return;
    }
    let empty = Map::new();
    let odd = schema.as_object().unwrap_or(&empty).iter().any(|(name, value)| {
        !ALLOWED.contains(&name.as_str()) && !matches!(value, Value::Null | Value::Bool(false))
    });
    if odd {
        let message = "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are allowed at the root of the schema if the status subresource is enabled";
        errors.push(Error::invalid(path, schema.clone(), message));
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
    errors: &'a mut Errors,
}

impl Walker<'_> {
    fn level(&mut self, schema: &Value, path: &Path, context: Context) {
        self.standard(schema, path, context);
        if flag(schema, "uniqueItems") {
            let message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(Error::forbidden(&path.child("uniqueItems"), message));
        }
        let below = Context { root: false, ..context };
        let properties = schema.get("properties").and_then(Value::as_object);
        if let Some(additional) = schema.get("additionalProperties") {
            let path = path.child("additionalProperties");
            if properties.is_some_and(|properties| !properties.is_empty()) && *additional != Value::Bool(true)
            {
                let message = "additionalProperties and properties are mutual exclusive";
                self.errors.push(Error::forbidden(&path, message));
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

    fn standard(&mut self, schema: &Value, path: &Path, context: Context) {
        const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
        let kind = text(schema, "type");
        if !kind.is_empty() && !TYPES.contains(&kind) {
            self.errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
        }
        let given = |name: &str| schema.get(name).is_some_and(|value| !value.is_null());
        if given("default")
            && let Some(reason) = context.no_defaults
        {
            self.errors.push(Error::forbidden(&path.child("default"), format!("must not be set {reason}")));
        }
        for name in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            if given(name) {
                self.errors.push(Error::forbidden(&path.child(name), format!("{name} is not supported")));
            }
        }
        if kind == "null" {
            let message = "type cannot be set to null, use nullable as an alternative";
            self.errors.push(Error::forbidden(&path.child("type"), message));
        }
        if schema.get("items").is_some_and(Value::is_array) {
            let message = "items must be a schema object and not an array";
            self.errors.push(Error::forbidden(&path.child("items"), message));
        }
        if context.in_meta && flag(schema, "x-kubernetes-embedded-resource") {
            let message = "must not be used inside of resource meta";
            self.errors.push(Error::forbidden(&path.child("x-kubernetes-embedded-resource"), message));
        }
    }

    fn extensions(&mut self, schema: &Value, path: &Path) {
        let kind = text(schema, "type");
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            let path = path.child("x-kubernetes-preserve-unknown-fields");
            self.errors.push(Error::invalid(&path, false, "must be true or undefined"));
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
                self.errors.push(if kind.is_empty() {
                    Error::required(&path.child("type"), message)
                } else {
                    Error::invalid(&path.child("type"), kind, message)
                });
            }
            if !allowed.contains(&value) {
                self.errors.push(Error::not_supported(&path.child(name), value, allowed));
            }
        }
        self.lists(schema, path);
    }

    fn lists(&mut self, schema: &Value, path: &Path) {
        let list_type = text(schema, "x-kubernetes-list-type");
        let keys: Vec<&str> =
            list(schema, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str).collect();
        let keys_path = path.child("x-kubernetes-list-map-keys");
        if !keys.is_empty() && list_type != "map" {
            let path = path.child("x-kubernetes-list-type");
            let message = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(if list_type.is_empty() {
                Error::required(&path, message)
            } else {
                Error::invalid(&path, list_type, message)
            });
        }
        let items_path = path.child("items");
        let items = schema.get("items").filter(|items| items.is_object());
        if let Some(items) = items
            && matches!(list_type, "set" | "map")
            && flag(items, "nullable")
        {
            let message = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
            self.errors.push(Error::forbidden(&items_path.child("nullable"), message));
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
                self.errors.push(Error::invalid(&items_path.child(name), value, message));
            }
        }
        if list_type != "map" {
            return;
        }
        if keys.is_empty() {
            let message = "must not be empty if x-kubernetes-list-type is map";
            self.errors.push(Error::required(&keys_path, message));
        }
        let Some(items) = items else {
            let message = "must have a schema if x-kubernetes-list-type is map";
            self.errors.push(Error::required(&items_path, message));
            return;
        };
        let kind = text(items, "type");
        if kind != "object" {
            let message = "must be object if parent array's x-kubernetes-list-type is map";
            self.errors.push(Error::invalid(&items_path.child("type"), kind, message));
            return;
        }
        let shown = || Value::from(keys.clone());
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].contains(key) {
                self.errors.push(Error::invalid(&keys_path, shown(), "must not contain duplicate entries"));
            }
            let Some(property) = items.get("properties").and_then(|properties| properties.get(*key)) else {
                let message = "entries must all be names of item properties";
                self.errors.push(Error::invalid(&keys_path, shown(), message));
                continue;
            };
            let path = items_path.child("properties").key(key);
            if matches!(text(property, "type"), "array" | "object") {
                let message = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.push(Error::invalid(&path.child("type"), kind, message));
            }
            let required = list(items, "required").iter().any(|name| name.as_str() == Some(key));
            if !required && property.get("default").is_none() {
                let message = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.errors.push(Error::required(&path.child("default"), message));
            }
            if flag(property, "nullable") {
                let message = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.errors.push(Error::forbidden(&path.child("nullable"), message));
            }
        }
    }

    /// The shape of validation rules; whether they compile is not known here.
    fn validations(&mut self, schema: &Value, path: &Path) {
        const REASONS: [&str; 4] =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        for (index, rule) in list(schema, "x-kubernetes-validations").iter().enumerate() {
            let path = path.child("x-kubernetes-validations").index(index);
            let (expression, message) = (text(rule, "rule").trim(), text(rule, "message"));
            if expression.is_empty() {
                self.errors.push(Error::required(&path.child("rule"), "rule is not specified"));
            } else if !message.is_empty() && message.trim().is_empty() {
                let path = path.child("message");
                self.errors.push(Error::invalid(&path, message, "must be non-empty if specified"));
            } else if message.trim().contains(['\n', '\r']) {
                self.errors.push(Error::invalid(
                    &path.child("message"),
                    message,
                    "must not contain line breaks",
                ));
            } else if expression.contains(['\n', '\r']) && message.trim().is_empty() {
                let words = "message must be specified if rule contains line breaks";
                self.errors.push(Error::required(&path.child("message"), words));
            }
            let made = text(rule, "messageExpression");
            if !made.is_empty() && made.trim().is_empty() {
                let words = "messageExpression must be non-empty if specified";
                self.errors.push(Error::required(&path.child("messageExpression"), words));
            }
            let reason = text(rule, "reason");
            if !reason.is_empty() && !REASONS.contains(&reason) {
                self.errors.push(Error::not_supported(&path.child("reason"), reason, &REASONS));
            }
            let (below, path) = (text(rule, "fieldPath"), path.child("fieldPath"));
            if !below.is_empty() && below.trim().is_empty() {
                self.errors.push(Error::invalid(&path, below, "must be non-empty if specified"));
            }
            if below.contains(['\n', '\r']) {
                self.errors.push(Error::invalid(&path, below, "must not contain line breaks"));
            }
            if !below.is_empty() && super::rule_path(below, schema).is_none() {
                self.errors.push(Error::invalid(&path, below, "must be a valid path"));
            }
        }
    }
}
