//! Schemas and objects in, objects and messages out.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::check as check_schema;
use super::*;
use crate::field::{Complaints, Trail};
use crate::server_side_apply::{FieldManager, Set, Types, typed};

fn spec_schema(spec: Value) -> Schema {
    Schema::compile(&json!({"type": "object", "properties": {"spec": spec}})).unwrap()
}

fn texts(errors: &[crate::field::Error]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Returns what a check tells about a place.
fn told(place: &str, check: impl FnOnce(&Trail<'_>, &mut Complaints)) -> Vec<String> {
    let mut complaints = Complaints::default();
    check(&Trail::Root.child(place), &mut complaints);
    texts(&complaints.errors)
}

/// Validates `{"spec": value}` and returns the messages.
fn invalid(spec: Value, value: Value) -> Vec<String> {
    texts(&spec_schema(spec).validate(&json!({"spec": value}), None))
}

#[test]
fn wrong_types_are_named_as_upstream_names_them() {
    for (schema, value, message) in [
        (
            json!({"type": "string"}),
            json!(1),
            r#"spec: Invalid value: "integer": spec in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "integer"}),
            json!("x"),
            r#"spec: Invalid value: "string": spec in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "boolean"}),
            json!([]),
            r#"spec: Invalid value: "array": spec in body must be of type boolean: "array""#,
        ),
        (
            json!({"type": "object"}),
            json!(null),
            r#"spec: Invalid value: "null": spec in body must be of type object: "null""#,
        ),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            r#"spec: Invalid value: "boolean": spec in body must be of type integer,string: "boolean""#,
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("nope"),
            r#"spec: Invalid value: "nope": spec in body must be of type date-time: "nope""#,
        ),
    ] {
        let errors = spec_schema(schema.clone()).validate(&json!({"spec": value}), None);
        assert_eq!(texts(&errors), [message], "{schema}");
        assert_eq!(errors[0].kind.reason(), "FieldValueTypeInvalid");
    }
    for (schema, value) in [
        (json!({"type": "number"}), json!(1)),
        (json!({"type": "integer"}), json!(1)),
        (json!({"type": "object", "nullable": true}), json!(null)),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%")),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), json!([1, {"a": null}])),
    ] {
        assert_eq!(invalid(schema.clone(), value), Vec::<String>::new(), "{schema}");
    }
}

#[test]
fn constraints_are_reported_in_upstreams_words() {
    for (schema, value, message) in [
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            "spec: Invalid value: 0: spec in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
            json!(1),
            "spec: Invalid value: 1: spec in body should be greater than 1",
        ),
        (
            json!({"type": "integer", "maximum": 3}),
            json!(4),
            "spec: Invalid value: 4: spec in body should be less than or equal to 3",
        ),
        (
            json!({"type": "number", "maximum": 0.5}),
            json!(0.75),
            "spec: Invalid value: 0.75: spec in body should be less than or equal to 0.5",
        ),
        (
            json!({"type": "integer", "multipleOf": 2}),
            json!(3),
            "spec: Invalid value: 3: spec in body should be a multiple of 2",
        ),
        (
            json!({"type": "string", "maxLength": 5}),
            json!("abcdef"),
            "spec: Too long: may not be more than 5 bytes",
        ),
        (
            json!({"type": "string", "minLength": 2}),
            json!("ä"),
            r#"spec: Invalid value: "ä": spec in body should be at least 2 chars long"#,
        ),
        (
            json!({"type": "string", "pattern": "^a"}),
            json!("b"),
            r#"spec: Invalid value: "b": spec in body should match '^a'"#,
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("x"),
            r#"spec: Unsupported value: "x": supported values: "a", "b""#,
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
            json!([1, 2, 3]),
            "spec: Too many: 3: must have at most 2 items",
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 1}),
            json!([]),
            "spec: Invalid value: 0: spec in body should have at least 1 items",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "spec: Invalid value: 0: spec in body should have at least 1 properties",
        ),
        (
            json!({"type": "object", "maxProperties": 0}),
            json!({"a": 1}),
            "spec: Too many: 1: must have at most 0 items",
        ),
        (json!({"type": "object", "required": ["a"]}), json!({}), "spec.a: Required value"),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"n": {"type": "string"}}}}),
            json!([{"n": "x"}, {"n": 1}]),
            r#"spec[1].n: Invalid value: "integer": spec[1].n in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"k": "x"}),
            r#"spec.k: Invalid value: "string": spec.k in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000i64),
            r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec"#,
        ),
    ] {
        assert_eq!(invalid(schema.clone(), value), [message], "{schema}");
    }
    assert_eq!(
        invalid(json!({"type": "integer"}), json!(1.5)),
        [
            r#"spec: Invalid value: "number": spec in body must be of type integer: "number""#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec"#,
        ]
    );
    assert_eq!(invalid(json!({"type": "string", "maxLength": 1}), json!("ä")), Vec::<String>::new());
}

#[test]
fn combinations_explain_the_best_alternative() {
    let object = |clauses: Value| {
        let mut schema =
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
        for (name, clause) in clauses.as_object().unwrap() {
            schema[name] = clause.clone();
        }
        schema
    };
    let one_of = object(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}));
    assert_eq!(invalid(one_of.clone(), json!({"a": 1})), Vec::<String>::new());
    assert_eq!(
        invalid(one_of.clone(), json!({"a": 1, "b": 1})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]
    );
    assert_eq!(
        invalid(one_of, json!({})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.a: Required value",
        ]
    );
    assert_eq!(
        invalid(object(json!({"anyOf": [{"required": ["a"]}]})), json!({})),
        [
            r#"<nil>: Invalid value: "": "spec" must validate at least one schema (anyOf)"#,
            "spec.a: Required value"
        ]
    );
    assert_eq!(
        invalid(object(json!({"allOf": [{"required": ["a"]}]})), json!({})),
        [
            "spec.a: Required value",
            r#"<nil>: Invalid value: "": "spec" must validate all the schemas (allOf). None validated"#,
        ]
    );
    assert_eq!(
        invalid(object(json!({"not": {"required": ["a"]}})), json!({"a": 1})),
        [r#"<nil>: Invalid value: "": "spec" must not validate the schema (not)"#]
    );
}

#[test]
fn unchanged_values_are_not_checked_again() {
    let schema = spec_schema(json!({
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 1},
            "l": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}},
            },
        },
    }));
    let old = json!({"spec": {"s": "long", "l": [{"name": "a", "v": "long"}, {"name": "b", "v": "x"}]}});
    let mut new = old.clone();
    new["spec"]["l"] =
        json!([{"name": "b", "v": "x"}, {"name": "a", "v": "long"}, {"name": "c", "v": "long"}]);
    assert_eq!(
        texts(&schema.validate(&new, Some(&old))),
        ["spec.l[2].v: Too long: may not be more than 1 bytes"]
    );
    assert_eq!(schema.validate(&new, None).len(), 3);
}

#[test]
fn the_order_of_a_map_list_is_no_change_and_unspecified_fields_are() {
    let item =
        json!({"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}});
    let schema = spec_schema(json!({"type": "object", "properties": {
        "list": {"type": "array", "maxItems": 1, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"], "items": item},
        "free": {"type": "object", "maxProperties": 1, "x-kubernetes-preserve-unknown-fields": true},
        "other": {"type": "string"},
    }}));
    let object = |list: Value, other: &str| json!({"spec": {"list": list, "other": other}});
    let stored = object(json!([{"name": "a", "size": 1}, {"name": "b", "size": 2}]), "x");
    let turned = object(json!([{"name": "b", "size": 2}, {"name": "a", "size": 1}]), "y");
    assert_eq!(texts(&schema.validate(&turned, Some(&stored))), Vec::<String>::new());
    let changed = object(json!([{"name": "b", "size": 3}, {"name": "a", "size": 1}]), "x");
    assert_eq!(schema.validate(&changed, Some(&stored)).len(), 1);
    // Nobody can tell whether what has no schema is the same.
    let free = json!({"spec": {"free": {"a": 1, "b": 2}}});
    assert_eq!(schema.validate(&free, Some(&free)).len(), 1);
}

#[test]
fn the_version_is_checked_even_if_nothing_changed() {
    let schema = Schema::compile(&json!({"type": "object", "properties": {
        "apiVersion": {"type": "string", "pattern": "^g/v1$"}, "spec": {"type": "object", "maxProperties": 0}}}))
    .unwrap();
    let object = json!({"apiVersion": "g/v2", "metadata": {}, "spec": {}});
    let errors = texts(&schema.validate(&object, Some(&object)));
    assert_eq!(errors, [r#"apiVersion: Invalid value: "g/v2": apiVersion in body should match '^g/v1$'"#]);
}

#[test]
fn a_status_is_checked_alone_and_named_from_there() {
    let limited = json!({"type": "object", "properties": {"num": {"type": "integer", "maximum": 10}}});
    let schema =
        Schema::compile(&json!({"type": "object", "properties": {"spec": limited, "status": limited}}))
            .unwrap();
    let (old, new) = (json!({"spec": {"num": 15}}), json!({"spec": {"num": 15}, "status": {"num": 15}}));
    let errors = texts(&schema.validate_status(&new, &old));
    assert_eq!(errors, ["status.num: Invalid value: 15: num in body should be less than or equal to 10"]);
    assert!(schema.validate_status(&old, &new).is_empty());
}

#[test]
fn a_list_that_was_broken_may_stay_so() {
    let list = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
    let schema = spec_schema(list);
    let (broken, whole) = (json!({"spec": [1, 1]}), json!({"spec": [1, 2]}));
    assert_eq!(schema.validate_lists_update(&broken, &whole).len(), 1);
    assert!(schema.validate_lists_update(&broken, &broken).is_empty());
}

#[test]
fn defaults_lose_what_metadata_does_not_have() {
    let metadata = json!({"name": "Bar", "unknown": "unknown"});
    let embedded = |metadata: Value| json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": metadata}});
    let text = |default: &str| json!({"type": "string", "default": default});
    let mut whole = embedded(json!({"type": "object"}));
    whole["default"] = json!({"apiVersion": "v1", "kind": "K", "metadata": metadata});
    let mut schema = Schema::compile(&json!({"type": "object", "properties": {
        "fields": embedded(json!({"type": "object", "properties": {"name": text("Bar"), "unknown": text("x")}})),
        "full": embedded(json!({"type": "object", "default": metadata})),
        "whole": whole,
    }}))
    .unwrap();
    assert_eq!(told("schema", |path, errors| schema.check_defaults(path, errors)), Vec::<String>::new());
    schema.prune_defaults();
    let mut object = json!({"fields": {"metadata": {}}, "full": {}});
    schema.default(&mut object).unwrap();
    for at in ["/fields/metadata", "/full/metadata", "/whole/metadata"] {
        assert_eq!(object.pointer(at), Some(&json!({"name": "Bar"})), "{at}");
    }
}

#[test]
fn a_default_makes_metadata_of_the_right_types() {
    let schema = Schema::compile(&json!({"type": "object", "properties": {"o": {"type": "object",
        "x-kubernetes-embedded-resource": true,
        "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "integer", "default": 1}}}}}}}))
    .unwrap();
    let errors = told("s", |path, errors| schema.check_defaults(path, errors));
    assert!(errors[0].contains("default: Invalid value: 1: must result in valid metadata: "), "{errors:?}");
}

#[test]
fn set_and_map_lists_refuse_repeated_items() {
    let set =
        spec_schema(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}));
    assert_eq!(
        texts(&set.validate_lists(&json!({"spec": ["a", "b", "a", "a"]}))),
        [r#"spec[2]: Duplicate value: "a""#]
    );
    let map = spec_schema(json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}}},
    }));
    assert_eq!(
        texts(&map.validate_lists(&json!({"spec": [{"k": "1"}, {"k": "1", "x": 2}]}))),
        [r#"spec[1]: Duplicate value: {"k":"1"}"#]
    );
    let free = spec_schema(json!({
        "type": "object",
        "additionalProperties": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
    }));
    assert_eq!(
        texts(&free.validate_lists(&json!({"spec": {"m": [1, 1]}}))),
        ["spec[m][1]: Duplicate value: 1"]
    );
}

#[test]
fn unspecified_fields_are_pruned_and_named() {
    let schema = Schema::compile(&json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
                "free": {"type": "object", "additionalProperties": {"type": "object", "properties": {"n": {"type": "integer"}}}},
                "keep": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"o": {"type": "object"}}},
                "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
            }},
        },
    }))
    .unwrap();
    let mut object = json!({
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "x"}, "extra": 1,
        "spec": {
            "a": 1, "b": 2,
            "list": [{"n": 1, "x": 2}],
            "free": {"k": {"n": 1, "x": 2}},
            "keep": {"any": {"thing": 1}, "o": {"gone": 1}},
            "embedded": {"apiVersion": "v1", "kind": "P", "metadata": {"x": 1}, "spec": {"gone": 1}, "gone": 1},
        },
    });
    assert_eq!(
        schema.prune(&mut object),
        [
            "extra",
            "spec.b",
            "spec.embedded.gone",
            "spec.embedded.spec.gone",
            "spec.free.k.x",
            "spec.keep.o.gone",
            "spec.list[0].x",
        ]
    );
    assert_eq!(
        object,
        json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "x"},
            "spec": {
                "a": 1, "list": [{"n": 1}], "free": {"k": {"n": 1}}, "keep": {"any": {"thing": 1}, "o": {}},
                "embedded": {"apiVersion": "v1", "kind": "P", "metadata": {"x": 1}, "spec": {}},
            },
        })
    );
    let mut again = object.clone();
    assert!(schema.prune(&mut again).is_empty());
    assert_eq!(again, object);
}

#[test]
fn unknown_fields_below_a_long_key_do_not_become_as_many_long_paths() {
    let schema = spec_schema(json!({
        "type": "object",
        "additionalProperties": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }));
    let fields: serde_json::Map<String, Value> =
        (0..100).map(|number| (format!("f{number}"), json!(0))).collect();
    let mut object = json!({"spec": {"k".repeat(1 << 20): fields}});
    let told = schema.prune(&mut object);
    assert!(!told.is_empty() && told.len() < 10, "{} paths of a megabyte", told.len());
    let left = object["spec"].as_object().and_then(|map| map.values().next());
    assert_eq!(left, Some(&json!({})), "all of them are gone, told or not");
}

#[test]
fn errors_below_a_long_key_do_not_become_as_many_long_paths() {
    const MANY: usize = 200_000;
    let flexible =
        json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true});
    let schema = spec_schema(json!({
        "type": "object",
        "additionalProperties": {"type": "object", "properties": {
            "numbers": {"type": "object", "additionalProperties": {"type": "integer"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "set", "items": flexible},
            "names": {"type": "array", "items": {"type": "string", "minLength": 1}}}},
    }));
    let object = |inside: Value| json!({"spec": {"k".repeat(1 << 20): inside}});
    let size = |errors: &[crate::field::Error]| -> usize {
        errors.iter().map(|error| error.field.len() + error.detail.len()).sum()
    };
    // With a path for each of them, hundreds of gigabytes would be written.
    let numbers: serde_json::Map<String, Value> =
        (0..MANY).map(|number| (format!("f{number}"), json!("x"))).collect();
    let errors = schema.validate(&object(json!({"numbers": numbers})), None);
    assert!(
        errors.len() == 1000 && size(&errors) < 20 << 20,
        "{} errors, {} bytes",
        errors.len(),
        size(&errors)
    );
    let ports: Vec<String> = (0..MANY).map(|number| format!("p{}", number / 2)).collect();
    let names = vec!["a"; MANY];
    let object = object(json!({"ports": ports, "names": names}));
    assert!(schema.validate(&object, None).is_empty());
    let errors = schema.validate_lists(&object);
    assert!(
        errors.len() == 1000 && size(&errors) < 20 << 20,
        "{} errors, {} bytes",
        errors.len(),
        size(&errors)
    );
}

#[test]
fn metadata_of_embedded_objects_below_a_long_key_do_not_become_as_many_long_paths() {
    let schema = spec_schema(json!({
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true}},
    }));
    const MANY: usize = 100_000;
    let embedded = json!({"metadata": {"odd": 1, "labels": {"-": "x"}}});
    let mut object = json!({"spec": {"k".repeat(1 << 20): vec![embedded; MANY]}});
    // With a path for each of them, hundreds of gigabytes would be written.
    let unknown = schema.coerce_metadata(&mut object, Malformed::Refuse).unwrap();
    assert!(!unknown.is_empty() && unknown.len() < 10, "{} paths of a megabyte", unknown.len());
    let errors = schema.validate_embedded(&object);
    let size: usize = errors.iter().map(|error| error.field.len()).sum();
    assert!(errors.len() == 1000 && size < 20 << 20, "{} errors, {size} bytes", errors.len());
}

#[test]
fn long_map_lists_are_compared_by_their_keys() {
    const MANY: usize = 200_000;
    let schema = spec_schema(json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}},
    }));
    let item = |number: usize| json!({"k": number.to_string(), "v": 2});
    let stored: Vec<Value> = (0..MANY).map(item).collect();
    let mut turned: Vec<Value> = stored.iter().rev().cloned().collect();
    let stored = json!({"spec": stored});
    // Looking for each item in the other list would take hours.
    assert!(schema.validate(&json!({"spec": turned}), Some(&stored)).is_empty());
    turned.push(json!({"k": "new", "v": 3}));
    let errors = texts(&schema.validate(&json!({"spec": turned}), Some(&stored)));
    assert_eq!(
        errors,
        ["spec[200000].v: Invalid value: 3: spec[200000].v in body should be less than or equal to 1"]
    );
}

#[test]
fn defaults_cannot_make_an_object_larger_than_what_can_be_stored() {
    let schema = spec_schema(json!({
        "type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "object", "properties": {
            "a": {"type": "string", "default": "x".repeat(100_000)},
        }}}},
    }));
    let with_items = |count: usize| json!({"spec": {"l": vec![json!({}); count]}});
    assert_eq!(schema.default(&mut with_items(20)), Ok(()));
    assert_eq!(schema.default(&mut with_items(20_000)), Err(TooManyDefaults));
}

#[test]
fn defaults_fill_missing_keys_and_refused_nulls() {
    let schema = spec_schema(json!({
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 1},
            "n": {"type": "integer", "nullable": true, "default": 2},
            "o": {"type": "object", "properties": {"x": {"type": "string", "default": "d"}}},
            "p": {"type": "object", "default": {}, "properties": {"y": {"type": "string", "default": "e"}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "integer", "default": 3}}}},
            "q": {"type": "string"},
        },
    }));
    let defaulted = |spec: Value| {
        let mut object = json!({"spec": spec});
        schema.prune_nulls(&mut object);
        schema.default(&mut object).unwrap();
        object["spec"].clone()
    };
    assert_eq!(defaulted(json!({})), json!({"a": 1, "n": 2, "p": {"y": "e"}}));
    assert_eq!(
        defaulted(json!({"a": null, "n": null, "q": null})),
        json!({"a": 1, "n": null, "p": {"y": "e"}})
    );
    assert_eq!(
        defaulted(json!({"a": 5, "n": 6, "o": {}, "p": {"y": "f"}, "l": [{}, {"z": 4}]})),
        json!({"a": 5, "n": 6, "o": {"x": "d"}, "p": {"y": "f"}, "l": [{"z": 3}, {"z": 4}]})
    );
    let mut without_spec = json!({});
    schema.default(&mut without_spec).unwrap();
    assert_eq!(without_spec, json!({}));
}

#[test]
fn metadata_is_the_servers_own() {
    let schema = spec_schema(
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
    );
    let mut object = json!({
        "metadata": {"name": "x", "bogus": 1, "labels": {}, "creationTimestamp": null, "generation": 0,
            "ownerReferences": [{"uid": "u", "odd": 1}]},
        "spec": {"apiVersion": "v1", "kind": "P", "metadata": {"odd": 1}},
    });
    let unknown = schema.coerce_metadata(&mut object, Malformed::Refuse).unwrap();
    assert_eq!(unknown, ["metadata.bogus", "metadata.ownerReferences[0].odd", "spec.metadata.odd"]);
    assert_eq!(
        object,
        json!({
            "metadata": {"name": "x", "ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": "u"}]},
            "spec": {"apiVersion": "v1", "kind": "P", "metadata": {}},
        })
    );
    let mut wrong = json!({"metadata": {"labels": {"a": 1}}});
    assert_eq!(
        schema.coerce_metadata(&mut wrong, Malformed::Refuse).unwrap_err().to_string(),
        r#"metadata: Invalid value: {"labels":{"a":1}}: json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"#
    );
    schema.coerce_metadata(&mut wrong, Malformed::Drop).unwrap();
    assert_eq!(wrong, json!({"metadata": {}}));
    assert_eq!(
        texts(&schema.validate_embedded(&json!({"spec": {"kind": "1-x", "metadata": {"name": "a/b"}}})))[..1],
        ["spec.apiVersion: Required value"]
    );
}

#[test]
fn schemas_that_are_not_structural_say_why() {
    let check = |schema: Value| {
        told("schema", |path, errors| {
            check_schema(&schema, path, errors);
        })
    };
    assert_eq!(
        check(json!({"type": "object", "properties": {"spec": {"type": "object"}}})),
        Vec::<String>::new()
    );
    for (schema, message) in [
        (json!({}), "schema.type: Required value: must not be empty at the root"),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            r#"schema.type: Invalid value: "array": must be object at the root"#,
        ),
        (
            json!({"type": "object", "additionalProperties": true}),
            "schema.additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            "schema.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "schema.properties[a].items: Required value: must be specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}),
            "schema.properties[a].items.type: Required value: must not be empty for specified array items",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [{"type": "string"}]}}}),
            "schema.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]}),
            "schema.properties[a]: Required value: because it is defined in schema.anyOf[0].properties[a]",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}}}),
            "schema.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
            r#"schema.properties[a].type: Invalid value: "string": must be object if x-kubernetes-embedded-resource is true"#,
        ),
    ] {
        assert_eq!(check(schema.clone()), [message], "{schema}");
    }
    let int_or_string =
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    assert_eq!(check(json!({"type": "object", "properties": {"a": int_or_string}})), Vec::<String>::new());
    let broken = check(json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}));
    assert!(broken[0].starts_with(
        "schema.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression"
    ));
}

#[test]
fn unsupported_constructs_do_not_compile() {
    for (schema, message) in [
        (json!({"$ref": "#/x"}), "OpenAPIV3Schema '$ref' is not supported"),
        (json!({"definitions": {"a": {}}}), "OpenAPIV3Schema 'definitions' is not supported"),
        (json!({"items": [{}]}), "OpenAPIV3Schema 'items' must be a schema, but is an array"),
    ] {
        assert_eq!(Schema::compile(&schema).unwrap_err(), message);
    }
}

struct Kinds(Arc<Schema>);

impl Types for Kinds {
    type Type = SchemaType;

    fn type_of(&self, api_version: &str) -> Option<SchemaType> {
        (api_version == "g/v1").then(|| SchemaType::root(Arc::clone(&self.0)))
    }

    fn convert(&self, object: &Value, _api_version: &str) -> Result<Value, String> {
        Ok(object.clone())
    }
}

#[test]
fn schemas_drive_server_side_apply() {
    let schema = Arc::new(spec_schema(json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
            "ports": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}},
            },
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "raw": {"x-kubernetes-preserve-unknown-fields": true},
        },
    })));
    let root = SchemaType::root(Arc::clone(&schema));
    let object = json!({
        "apiVersion": "g/v1", "kind": "K",
        "metadata": {"name": "x", "labels": {"l": "1"}, "finalizers": ["f"], "ownerReferences": [{"uid": "u", "kind": "O"}]},
        "spec": {"n": 1, "atomic": {"a": "x"}, "ports": [{"port": 80}], "tags": ["t"], "raw": {"deep": {"x": [1]}}},
    });
    assert_eq!(
        typed::field_set(&root, &object)
            .difference(&Set::of_fields([["apiVersion"].as_slice(), &["kind"], &["metadata", "name"]]))
            .to_fields_v1(),
        json!({
            "f:metadata": {"f:finalizers": {"v:\"f\"": {}}, "f:labels": {"f:l": {}}, "f:ownerReferences": {"k:{\"uid\":\"u\"}": {}}},
            "f:spec": {
                "f:n": {}, "f:atomic": {}, "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:tags": {"v:\"t\"": {}}, "f:raw": {"f:deep": {".": {}, "f:x": {}}},
            },
        })
    );
    let gvk = crate::gvk::Gvk::new("g", "v1", "K");
    let (kinds, reset) = (Kinds(schema), BTreeMap::new());
    let manager = FieldManager { types: &kinds, gvk: &gvk, subresource: "", reset: &reset };
    let empty = json!({"apiVersion": "g/v1", "kind": "K"});
    let created = manager.apply(&empty, &object, "a", false, "2026-01-01T00:00:00Z").unwrap();
    let again = manager.apply(&created, &object, "a", false, "2026-01-02T00:00:00Z").unwrap();
    assert_eq!(created, again);
    let mut unknown = object;
    unknown["spec"]["nope"] = json!(1);
    assert_eq!(
        manager.apply(&empty, &unknown, "a", false, "2026-01-01T00:00:00Z").unwrap_err().to_string(),
        "failed to create typed patch object (/x; g/v1, Kind=K): .spec.nope: field not declared in schema"
    );
}

/// Schema and object are both small enough to be sent; looking at all of one for each part of the other would take hours.
#[test]
fn finding_25_a_large_schema_and_a_large_object_end_at_a_limit() {
    const MANY: usize = 50_000;
    let items = vec![json!({"a": 1}); MANY];
    let names = || (0..MANY).map(|number| format!("f{number}"));
    let list = |item: Value| spec_schema(json!({"type": "array", "items": item}));
    let alternatives: Vec<Value> =
        (0..MANY).map(|number| json!({"required": [format!("f{number}")]})).collect();
    for item in [
        json!({"type": "object", "anyOf": alternatives}),
        json!({"type": "object", "required": names().collect::<Vec<_>>()}),
    ] {
        let errors = list(item).validate(&json!({"spec": items}), None);
        let last = errors.last().map(ToString::to_string).unwrap_or_default();
        assert!(last.ends_with("to check it against the schema takes more than 10000000 steps"), "{last}");
        assert!(errors.len() <= 1000, "{} errors", errors.len());
    }
    let allowed = list(json!({"type": "string", "enum": names().collect::<Vec<_>>()}));
    assert_eq!(allowed.validate(&json!({"spec": names().collect::<Vec<_>>()}), None), []);
    let properties: serde_json::Map<String, Value> =
        names().map(|name| (name, json!({"type": "string"}))).collect();
    let mut object = json!({"spec": items});
    list(json!({"type": "object", "properties": properties})).default(&mut object).expect("there are none");
}

#[test]
fn finding_25_long_texts_of_a_schema_are_told_a_few_times() {
    let told = |item: Value| -> usize {
        let schema = spec_schema(json!({"type": "array", "items": item}));
        let errors = schema.validate(&json!({"spec": vec!["x"; 100_000]}), None);
        assert_eq!(errors.len(), 1000);
        errors.iter().map(|error| error.detail.len()).sum()
    };
    let allowed: Vec<String> = (0..100_000).map(|number| format!("f{number}")).collect();
    let size = told(json!({"type": "string", "enum": allowed}));
    assert!(size < 10 << 20, "{size} bytes");
    let size = told(json!({"type": "string", "pattern": format!("^[y{}]$", "z".repeat(1 << 16))}));
    assert!(size < 10 << 20, "{size} bytes");
    let short = spec_schema(json!({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}));
    let errors = short.validate(&json!({"spec": vec!["x"; 10]}), None);
    assert!(errors.iter().all(|error| error.detail == r#"supported values: "a", "b""#), "{errors:?}");
}
