//! The schemas against a table of every field, written down independently of the Rust declarations.
//!
//! `testdata/fields.txt` says what each kind looks like. From it the test builds the schema that should come out and
//! compares it with the one that does, exactly: a missing field, an extra limit, a wrong list type all show.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

struct Field {
    name: String,
    type_: String,
    required: bool,
    limits: String,
}

#[derive(Default)]
struct Tables {
    kinds: BTreeMap<(String, String), Vec<Field>>,
    records: BTreeMap<String, (bool, Vec<Field>)>,
}

fn tables() -> Tables {
    let mut tables = Tables::default();
    let mut headings: Vec<(String, String)> = Vec::new();
    let mut record = None;
    for line in include_str!("../testdata/fields.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(rest) = line.strip_prefix("kind ") {
            let mut words = rest.split(' ');
            let version = words.next().unwrap();
            headings = words.map(|kind| (kind.to_owned(), version.to_owned())).collect();
            record = None;
        } else if let Some(rest) = line.strip_prefix("record ") {
            let (name, atomic) = rest.split_once(' ').map_or((rest, false), |(name, _)| (name, true));
            assert!(
                tables.records.insert(name.to_owned(), (atomic, Vec::new())).is_none(),
                "{name} is there twice"
            );
            record = Some(name.to_owned());
        } else {
            let cells: Vec<&str> =
                line.trim().splitn(4, " | ").map(|c| c.trim().trim_end_matches(" |")).collect();
            let field = || Field {
                name: cells[0].to_owned(),
                type_: cells[1].to_owned(),
                required: cells.get(2).is_some_and(|cell| cell.trim_end_matches('|').trim() == "required"),
                limits: cells.get(3).map(|cell| cell.trim().to_owned()).unwrap_or_default(),
            };
            match &record {
                Some(name) => tables.records.get_mut(name).unwrap().1.push(field()),
                None => {
                    for heading in &headings {
                        tables.kinds.entry(heading.clone()).or_default().push(field());
                    }
                }
            }
        }
    }
    tables
}

impl Tables {
    fn object(&self, fields: &[Field], atomic: bool) -> Map<String, Value> {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in fields {
            if field.name == "inline" {
                let inlined = self.record(&field.type_);
                properties.extend(inlined["properties"].as_object().unwrap().clone());
                required.extend(strings(&inlined, "required"));
                continue;
            }
            let mut schema = self.type_schema(&field.type_);
            apply_limits(&mut schema, &field.limits);
            properties.insert(field.name.clone(), schema);
            if field.required {
                required.push(field.name.clone());
            }
        }
        let mut out = Map::new();
        out.insert("type".into(), "object".into());
        out.insert("properties".into(), properties.into());
        if atomic {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if !required.is_empty() {
            required.sort();
            out.insert("required".into(), json!(required));
        }
        out
    }

    fn record(&self, name: &str) -> Value {
        let (atomic, fields) = self.records.get(name).unwrap_or_else(|| panic!("no record {name}"));
        self.object(fields, *atomic).into()
    }

    fn type_schema(&self, name: &str) -> Value {
        if let Some(item) = name.strip_prefix("[]") {
            return json!({ "type": "array", "items": self.type_schema(item) });
        }
        if let Some(value) = name.strip_prefix("map<string,") {
            return json!({ "type": "object", "additionalProperties": self.type_schema(value.trim_end_matches('>')) });
        }
        match name {
            "string" => json!({ "type": "string" }),
            "bool" => json!({ "type": "boolean" }),
            "int" => json!({ "type": "integer" }),
            "int32" | "uint32" => json!({ "type": "integer", "format": "int32" }),
            "int64" => json!({ "type": "integer", "format": "int64" }),
            "time" => json!({ "type": "string", "format": "date-time" }),
            "any" => json!({ "x-kubernetes-preserve-unknown-fields": true }),
            "object" => json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
            "quantity" => json!({
                "anyOf": [{ "type": "integer" }, { "type": "string" }],
                "pattern": QUANTITY_PATTERN,
                "x-kubernetes-int-or-string": true,
            }),
            record => self.record(record),
        }
    }
}

fn strings(schema: &Value, key: &str) -> Vec<String> {
    schema[key].as_array().into_iter().flatten().map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn apply_limits(schema: &mut Value, limits: &str) {
    let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("not a number: {text}"));
    for limit in limits.split("; ").filter(|limit| !limit.is_empty()) {
        let (word, rest) = limit.split_once(' ').unwrap_or((limit, ""));
        match word {
            "default" => {
                schema["default"] = match schema["type"].as_str() {
                    Some("integer") => number(rest).into(),
                    Some("boolean") => (rest == "true").into(),
                    _ => rest.into(),
                }
            }
            "enum" => schema["enum"] = rest.split(", ").collect(),
            "min" => schema["minimum"] = number(rest).into(),
            "max" => schema["maximum"] = number(rest).into(),
            "minLen" => schema["minLength"] = number(rest).into(),
            "maxLen" => schema["maxLength"] = number(rest).into(),
            "minItems" => schema["minItems"] = number(rest).into(),
            "maxItems" => schema["maxItems"] = number(rest).into(),
            "pattern" => schema["pattern"] = rest.trim_matches('`').into(),
            "format" => schema["format"] = rest.into(),
            "preserve" | "items" => {} // already said by the types `any` and `object`
            "list" => match rest.split_once(", key ") {
                Some(("map", key)) => {
                    schema["x-kubernetes-list-type"] = "map".into();
                    schema["x-kubernetes-list-map-keys"] = json!([key]);
                }
                _ => schema["x-kubernetes-list-type"] = rest.into(),
            },
            other => panic!("unknown limit {other:?}"),
        }
    }
}

/// Removes descriptions and sorts enums, whose order means nothing.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut out = Map::new();
            for (key, field) in fields {
                match key.as_str() {
                    "properties" => {
                        let inner =
                            field.as_object().unwrap().iter().map(|(k, v)| (k.clone(), bare(v))).collect();
                        out.insert(key.clone(), Value::Object(inner));
                    }
                    "description" => {}
                    "enum" => {
                        let mut values = strings(value, "enum");
                        values.sort();
                        out.insert(key.clone(), json!(values));
                    }
                    _ => {
                        out.insert(key.clone(), bare(field));
                    }
                }
            }
            out.into()
        }
        other => other.clone(),
    }
}

/// Lists the paths at which two schemas differ, for a message that can be read.
fn differences(path: &str, expected: &Value, actual: &Value, out: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                match (left.get(key), right.get(key)) {
                    (Some(l), Some(r)) => differences(&format!("{path}.{key}"), l, r, out),
                    (Some(_), None) => out.push(format!("{path}.{key} is missing")),
                    (None, _) => out.push(format!("{path}.{key} is not in the table")),
                }
            }
        }
        _ if expected == actual => {}
        _ => out.push(format!("{path}: {expected} in the table, {actual} in the schema")),
    }
}

/// The limits of aggregated kinds are not in the table, because nothing enforces them.
fn without_limits(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    fields.retain(|key, _| {
        matches!(
            key.as_str(),
            "type"
                | "format"
                | "properties"
                | "items"
                | "additionalProperties"
                | "required"
                | "anyOf"
                | "pattern"
                | "x-kubernetes-int-or-string"
        )
    });
    if fields.get("type") == Some(&json!("string")) {
        fields.remove("pattern");
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(without_limits);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = fields.get_mut(key) {
            without_limits(child);
        }
    }
}

#[test]
fn every_field_of_every_kind_is_as_the_table_says() {
    let mut tables = tables();
    let mut problems = Vec::new();
    for definition in api::crd::definitions() {
        for version in &definition.versions {
            let key = (definition.kind.to_owned(), version.name.to_owned());
            let fields = tables.kinds.remove(&key).unwrap_or_else(|| panic!("no table for {key:?}"));
            let mut expected = Value::Object(tables.object(&fields, false));
            for (name, type_) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
                expected["properties"][name] = json!({ "type": type_ });
            }
            let mut actual = version.schema.to_json();
            if definition.aggregated {
                without_limits(&mut expected);
                without_limits(&mut actual);
            }
            differences(&format!("{}/{}", key.0, key.1), &bare(&expected), &bare(&actual), &mut problems);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(tables.kinds.is_empty(), "kinds that do not exist: {:?}", tables.kinds.keys());
}

#[test]
fn references_to_dependencies_are_as_the_table_says() {
    use api::wire::Wire;
    let expected = tables().record("DependentObjectReference");
    let mut problems = Vec::new();
    let actual = api::config::DependentObjectReference::schema().to_json();
    differences("DependentObjectReference", &bare(&expected), &bare(&actual), &mut problems);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
