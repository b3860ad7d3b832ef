//! Cases for the typed operations on the sample type, and the laws that hold for all of them.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::server_side_apply::sample::{Sample, objects};
use crate::server_side_apply::set::Set;

fn fields(value: Value) -> Value {
    field_set(&Sample::Object, &value).to_fields_v1()
}

#[test]
fn applied_objects_own_leaves_items_and_free_keys() {
    for (value, owned) in [
        (json!({}), json!({})),
        (json!({"n": 1}), json!({"f:n": {}})),
        (json!({"n": null}), json!({"f:n": {}})),
        (json!({"obj": {"n": 1}}), json!({"f:obj": {"f:n": {}}})),
        (json!({"obj": {}}), json!({"f:obj": {}})),
        (json!({"labels": {"a": "1"}}), json!({"f:labels": {"f:a": {}}})),
        (json!({"atomicMap": {"a": "1"}}), json!({"f:atomicMap": {}})),
        (json!({"list": [1, 2]}), json!({"f:list": {}})),
        (json!({"set": ["x", 1]}), json!({"f:set": {"v:\"x\"": {}, "v:1": {}}})),
        (json!({"set": []}), json!({})),
        (
            json!({"items": [{"name": "x", "n": 1}]}),
            json!({"f:items": {"k:{\"name\":\"x\"}": {".": {}, "f:n": {}, "f:name": {}}}}),
        ),
        (
            json!({"ports": [{"port": 80}]}),
            json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}),
        ),
        (
            json!({"items": [{"name": "x", "n": 1}, {"name": "x", "n": 2}]}),
            json!({"f:items": {"k:{\"name\":\"x\"}": {}}}),
        ),
        (
            json!({"any": {"x": [1], "y": {"z": 1}}}),
            json!({"f:any": {"f:x": {}, "f:y": {".": {}, "f:z": {}}}}),
        ),
    ] {
        assert_eq!(fields(value.clone()), owned, "{value}");
    }
}

#[test]
fn a_long_key_is_not_looked_up_for_each_field_below_it() {
    const MANY: usize = 100_000;
    let inner: serde_json::Map<String, Value> =
        (0..MANY).map(|number| (format!("f{number}"), json!(1))).collect();
    // From the root to each of the fields, terabytes of keys would be compared.
    let value = json!({"any": {"k".repeat(16 << 20): inner}});
    assert!(field_set(&Sample::Object, &value).len() >= MANY);
    let compared = compare(&Sample::Object, &json!({}), &value).unwrap();
    assert!(compared.added.len() >= MANY && compared.removed.is_empty() && compared.modified.is_empty());
    let compared = compare(&Sample::Object, &value, &json!({})).unwrap();
    assert!(compared.removed.len() >= MANY && compared.added.is_empty() && compared.modified.is_empty());
}

#[test]
fn misfits_below_a_long_key_do_not_become_as_many_long_paths() {
    let mut found = Mismatches::default();
    (0..100_000).for_each(|number| found.add(Mismatches::one(format!("odd {number}"))));
    let told = found.below(&PathElement::field(&"k".repeat(1 << 20)));
    assert!((1..10).contains(&told.0.len()), "{} paths of a megabyte", told.0.len());
}

#[test]
fn misfits_are_named_with_their_path() {
    for (value, message) in [
        (json!({"x": 1}), ".x: field not declared in schema"),
        (json!({"obj": {"x": 1}}), ".obj.x: field not declared in schema"),
        (json!({"n": "1"}), ".n: expected numeric (int or float), got string"),
        (json!({"s": 1}), ".s: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"b": "x"}), ".b: expected boolean, got &{x}"),
        (json!({"obj": [1]}), ".obj: expected map, got &{[1]}"),
        (json!({"list": 1}), ".list: expected list, got &{1}"),
        (json!({"items": [{"name": "a"}, {"name": "a"}]}), r#".items: duplicate entries for key [name="a"]"#),
        (json!({"set": ["x", "x"]}), r#".set: duplicate entries for key [="x"]"#),
        (
            json!({"items": [{"n": 1}]}),
            ".items: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            json!({"items": [1]}),
            ".items: element 0: associative list with keys may not have non-map elements",
        ),
        (
            json!({"items": [null]}),
            ".items: element 0: associative list with keys may not have a null element",
        ),
        (
            json!({"set": [{}]}),
            ".set: element 0: associative list without keys has an element that's a map type",
        ),
        (json!({"items": [{"name": "a", "x": 1}]}), r#".items[name="a"].x: field not declared in schema"#),
        (
            json!({"n": "1", "s": 1}),
            "errors:\n  .n: expected numeric (int or float), got string\n  .s: expected string, got &value.valueUnstructured{Value:1}",
        ),
    ] {
        let error = validate(&Sample::Object, &value, Duplicates::Refused).unwrap_err();
        assert_eq!(error.to_string(), message, "{value}");
    }
    let twice = json!({"items": [{"name": "a"}, {"name": "a"}]});
    assert_eq!(validate(&Sample::Object, &twice, Duplicates::Allowed), Ok(()));
    assert_eq!(
        validate(&Sample::Object, &json!({"n": null, "obj": null, "list": null}), Duplicates::Refused),
        Ok(())
    );
}

#[test]
fn comparison_tells_removed_modified_and_added_paths() {
    let check = |left: Value, right: Value, removed: Value, modified: Value, added: Value| {
        let comparison = compare(&Sample::Object, &left, &right).unwrap();
        assert_eq!(comparison.removed.to_fields_v1(), removed, "removed: {left} {right}");
        assert_eq!(comparison.modified.to_fields_v1(), modified, "modified: {left} {right}");
        assert_eq!(comparison.added.to_fields_v1(), added, "added: {left} {right}");
    };
    let none = || json!({});
    check(json!({"n": 1}), json!({"n": 1}), none(), none(), none());
    check(json!({"n": 1}), json!({"n": 2}), none(), json!({"f:n": {}}), none());
    check(json!({}), json!({"n": 2}), none(), none(), json!({"f:n": {}}));
    check(json!({"n": 2}), json!({}), json!({"f:n": {}}), none(), none());
    check(json!({}), json!({"obj": {"n": 1}}), none(), none(), json!({"f:obj": {".": {}, "f:n": {}}}));
    check(json!({"list": [1]}), json!({"list": [1, 2]}), none(), json!({"f:list": {}}), none());
    check(
        json!({"atomicMap": {"a": "1"}}),
        json!({"atomicMap": {"a": "2"}}),
        none(),
        json!({"f:atomicMap": {}}),
        none(),
    );
    check(
        json!({"set": ["a"]}),
        json!({"set": ["b"]}),
        json!({"f:set": {"v:\"a\"": {}}}),
        none(),
        json!({"f:set": {"v:\"b\"": {}}}),
    );
    check(
        json!({"items": [{"name": "a", "n": 1}]}),
        json!({"items": [{"name": "b"}, {"name": "a", "n": 2}]}),
        none(),
        json!({"f:items": {"k:{\"name\":\"a\"}": {"f:n": {}}}}),
        json!({"f:items": {"k:{\"name\":\"b\"}": {".": {}, "f:name": {}}}}),
    );
    check(
        json!({"any": {"x": 1}}),
        json!({"any": 1}),
        json!({"f:any": {"f:x": {}}}),
        json!({"f:any": {}}),
        none(),
    );
    check(
        json!({"items": [{"name": "a"}, {"name": "a", "n": 1}]}),
        json!({"items": [{"name": "a"}, {"name": "a", "n": 2}]}),
        none(),
        json!({"f:items": {"k:{\"name\":\"a\"}": {}}}),
        none(),
    );
}

#[test]
fn merging_keeps_the_right_side_and_its_order() {
    let check = |left: Value, right: Value, merged: Value| {
        assert_eq!(merge(&Sample::Object, &left, &right), Ok(merged), "{left} with {right}");
    };
    check(json!({"n": 1, "s": "x"}), json!({"n": 2}), json!({"n": 2, "s": "x"}));
    check(json!({"obj": {"n": 1}}), json!({"obj": {"m": 2}}), json!({"obj": {"n": 1, "m": 2}}));
    check(json!({"list": [1, 2]}), json!({"list": [3]}), json!({"list": [3]}));
    check(
        json!({"atomicMap": {"a": "1"}}),
        json!({"atomicMap": {"b": "2"}}),
        json!({"atomicMap": {"b": "2"}}),
    );
    check(json!({"set": ["a", "b", "c"]}), json!({"set": ["c", "a"]}), json!({"set": ["b", "c", "a"]}));
    check(json!({"set": ["a", "b", "c"]}), json!({"set": ["d", "a"]}), json!({"set": ["d", "a", "b", "c"]}));
    check(json!({"set": ["a", "b"]}), json!({"set": ["c"]}), json!({"set": ["a", "b", "c"]}));
    check(
        json!({"items": [{"name": "a", "n": 1}, {"name": "b"}]}),
        json!({"items": [{"name": "a", "m": 2}]}),
        json!({"items": [{"name": "a", "n": 1, "m": 2}, {"name": "b"}]}),
    );
    check(json!({"any": {"x": 1}}), json!({"any": {"y": 2}}), json!({"any": {"x": 1, "y": 2}}));
    check(json!({"any": {"x": 1}}), json!({"any": [1]}), json!({"any": [1]}));
    check(json!({"n": 1}), json!({"n": null}), json!({"n": null}));
    check(json!({"obj": {"n": 1}}), json!({"obj": {}}), json!({"obj": {"n": 1}}));
    check(
        json!({"ports": [{"port": 80, "s": "x"}]}),
        json!({"ports": [{"port": 80, "protocol": "TCP"}]}),
        json!({"ports": [{"port": 80, "protocol": "TCP", "s": "x"}]}),
    );
}

#[test]
fn removing_and_extracting_are_complements() {
    let value = json!({"n": 1, "s": "x", "items": [{"name": "a", "n": 1}, {"name": "b"}], "list": [1]});
    let set = Set::from_fields_v1(&json!({
        "f:n": {},
        "f:items": {"k:{\"name\":\"a\"}": {"f:n": {}}, "k:{\"name\":\"b\"}": {}},
    }))
    .unwrap();
    assert_eq!(
        remove(&Sample::Object, &value, &set),
        json!({"s": "x", "items": [{"name": "a"}], "list": [1]})
    );
    assert_eq!(extract(&Sample::Object, &value, &set), json!({"n": 1, "items": [{"n": 1}, {"name": "b"}]}));
}

#[test]
fn sets_follow_a_type_that_became_atomic() {
    let stored = Set::from_fields_v1(&json!({
        "f:atomicMap": {"f:a": {}}, "f:list": {"i:0": {}}, "f:n": {}, "f:any": {"f:x": {"f:y": {}}},
    }))
    .unwrap();
    let reconciled = reconcile(&Sample::Object, &stored).unwrap();
    assert_eq!(
        reconciled.to_fields_v1(),
        json!({"f:atomicMap": {}, "f:list": {}, "f:n": {}, "f:any": {"f:x": {"f:y": {}}}})
    );
    assert_eq!(reconcile(&Sample::Object, &reconciled), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn merging_is_idempotent(left in objects(), right in objects()) {
        let once = merge(&Sample::Object, &left, &right).unwrap();
        prop_assert_eq!(merge(&Sample::Object, &once, &right).unwrap(), once.clone());
        prop_assert_eq!(merge(&Sample::Object, &left, &left).unwrap(), left);
    }

    #[test]
    fn everything_applied_is_in_the_merged_object(left in objects(), right in objects()) {
        let merged = merge(&Sample::Object, &left, &right).unwrap();
        let comparison = compare(&Sample::Object, &merged, &right).unwrap();
        prop_assert!(comparison.added.is_empty());
        prop_assert!(comparison.modified.is_empty(), "{:?}", comparison.modified);
    }

    #[test]
    fn comparison_is_empty_only_for_equal_contents(left in objects(), right in objects()) {
        prop_assert!(compare(&Sample::Object, &left, &left).unwrap().is_same());
        let forth = compare(&Sample::Object, &left, &right).unwrap();
        let back = compare(&Sample::Object, &right, &left).unwrap();
        prop_assert_eq!(forth.added, back.removed);
        prop_assert_eq!(forth.modified, back.modified);
    }
}
