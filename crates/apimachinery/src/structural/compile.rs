//! From the JSON of a schema to the arena.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::{Additional, Allowed, Kind, ListType, Node, NodeId, Pattern, Rules, Schema};

pub(super) fn compile(schema: &Value) -> Result<Schema, String> {
    let mut nodes = Vec::new();
    add(schema, &mut nodes)?;
    Ok(Schema { nodes })
}

fn add(schema: &Value, nodes: &mut Vec<Node>) -> Result<NodeId, String> {
    let empty = Map::new();
    let fields = schema.as_object().unwrap_or(&empty);
    refuse_unsupported(fields)?;
    let id = nodes.len();
    nodes.push(Node::default());
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or(false);
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut node = Node {
        kind: match text("type") {
            "object" => Some(Kind::Object),
            "array" => Some(Kind::Array),
            "string" => Some(Kind::String),
            "integer" => Some(Kind::Integer),
            "number" => Some(Kind::Number),
            "boolean" => Some(Kind::Boolean),
            _ => None,
        },
        nullable: flag("nullable"),
        int_or_string: flag("x-kubernetes-int-or-string"),
        preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        default: fields.get("default").filter(|value| !value.is_null()).cloned(),
        list: match text("x-kubernetes-list-type") {
            "set" => ListType::Set,
            "map" => ListType::Map,
            _ => ListType::Atomic,
        },
        list_keys: strings(fields.get("x-kubernetes-list-map-keys")),
        atomic_map: text("x-kubernetes-map-type") == "atomic",
        validations: fields
            .get("x-kubernetes-validations")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
        ..Node::default()
    };
    if let Some(Value::Object(properties)) = fields.get("properties") {
        // The map is ordered by key, so the list is sorted.
        for (name, property) in properties {
            let added = add(property, nodes)?;
            if nodes.get(added).is_some_and(|node| node.default.is_some()) {
                node.defaulted.push(node.properties.len());
            }
            node.properties.push((name.clone(), added));
        }
    }
    match fields.get("additionalProperties") {
        Some(Value::Bool(allowed)) => node.additional = Some(Additional::Allowed(*allowed)),
        Some(schema @ Value::Object(_)) => node.additional = Some(Additional::Schema(add(schema, nodes)?)),
        _ => {}
    }
    match fields.get("items") {
        Some(Value::Array(_)) => {
            return Err("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
        }
        Some(schema @ Value::Object(_)) => node.items = Some(add(schema, nodes)?),
        _ => {}
    }
    node.rules = rules(fields, nodes)?;
    if let Some(place) = nodes.get_mut(id) {
        *place = node;
    }
    Ok(id)
}

fn rules(fields: &Map<String, Value>, nodes: &mut Vec<Node>) -> Result<Option<Box<Rules>>, String> {
    const NAMES: [&str; 19] = [
        "format",
        "maximum",
        "minimum",
        "multipleOf",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxProperties",
        "minProperties",
        "required",
        "enum",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "exclusiveMaximum",
    ];
    if !NAMES.iter().any(|name| fields.contains_key(*name)) {
        return Ok(None);
    }
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or(false);
    let number = |name: &str| fields.get(name).and_then(Value::as_f64);
    let integer = |name: &str| fields.get(name).and_then(Value::as_i64);
    let mut clauses = |name: &str| -> Result<Vec<NodeId>, String> {
        let list = fields.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|clause| add(clause, nodes)).collect()
    };
    let (all_of, any_of, one_of) = (clauses("allOf")?, clauses("anyOf")?, clauses("oneOf")?);
    let not = match fields.get("not") {
        Some(clause @ Value::Object(_)) => Some(add(clause, nodes)?),
        _ => None,
    };
    let pattern = fields.get("pattern").and_then(Value::as_str).filter(|pattern| !pattern.is_empty());
    Ok(Some(Box::new(Rules {
        format: fields.get("format").and_then(Value::as_str).unwrap_or_default().to_owned(),
        maximum: number("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        minimum: number("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        multiple_of: number("multipleOf"),
        max_length: integer("maxLength"),
        min_length: integer("minLength"),
        pattern: pattern.map(|source| Pattern { source: source.to_owned(), compiled: OnceLock::new() }),
        max_items: integer("maxItems"),
        min_items: integer("minItems"),
        unique_items: flag("uniqueItems"),
        max_properties: integer("maxProperties"),
        min_properties: integer("minProperties"),
        required: strings(fields.get("required")),
        allowed: Allowed::new(fields.get("enum").and_then(Value::as_array).map_or(&[], Vec::as_slice)),
        all_of,
        any_of,
        one_of,
        not,
    })))
}

fn refuse_unsupported(fields: &Map<String, Value>) -> Result<(), String> {
    let filled = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    };
    for (key, shown) in [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ] {
        if fields.get(key).is_some_and(filled) {
            return Err(format!("OpenAPIV3Schema '{shown}' is not supported"));
        }
    }
    if fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Err(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned()
        );
    }
    Ok(())
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
