//! JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces.
//!
//! Beyond the RFC, members of objects inside of lists that are null are left out, as kube-apiserver does. (It keeps them where a list takes
//! the place of an object, so that the same patch would do something else the second time; here they always go.)

use serde_json::{Map, Value};

/// Applies the patch in place.
pub fn apply(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        drop_nulls(target);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(entries) = target else { unreachable!("made an object above") };
    for (key, value) in patch {
        if value.is_null() {
            entries.remove(&key);
        } else {
            apply(entries.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Leaves out the members of objects that are null, also those of objects inside of lists. Items of lists stay: others are counted by them.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|_, value| !value.is_null());
            entries.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Returns the smallest merge patch that turns one value into the other; `None` when there is nothing to do.
///
/// Objects that hold nulls cannot be expressed by this format; the nulls are taken as absent.
pub fn diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return (!equal(from, to)).then(|| to.clone());
    };
    let mut patch = Map::new();
    for key in from.keys() {
        if !to.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    for (key, wanted) in to {
        match from.get(key) {
            Some(present) => {
                if let Some(change) = diff(present, wanted) {
                    patch.insert(key.clone(), change);
                }
            }
            None if wanted.is_null() => {}
            None => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Compares values that replace each other as a whole.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter().all(|(key, value)| equal(value, other.get(key).unwrap_or(&Value::Null)))
                && other.iter().all(|(key, value)| one.contains_key(key) || value.is_null())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc_hold() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut changed = target.clone();
            apply(&mut changed, patch.clone());
            assert_eq!(changed, result, "{target} patched with {patch}");
        }
    }

    #[test]
    fn null_members_inside_of_lists_are_left_out_and_null_items_stay() {
        let patch = json!({"a": [{"b": null, "c": [{"d": null, "e": 1}]}, null]});
        let result = json!({"a": [{"c": [{"e": 1}]}, null]});
        for target in [json!({}), json!({"a": [1]}), json!({"a": {"b": 1}}), json!({"a": 1}), result.clone()]
        {
            let mut changed = target.clone();
            apply(&mut changed, patch.clone());
            assert_eq!(changed, result, "{target}");
        }
    }

    #[test]
    fn a_null_is_no_difference_to_what_is_absent() {
        for (from, to) in [
            (json!({}), json!({"a": null})),
            (json!({"a": [{"b": 1}]}), json!({"a": [{"b": 1, "c": null}]})),
            (json!({"a": [{"b": 1, "c": null}]}), json!({"a": [{"b": 1}]})),
            (json!({"a": [{"b": [{}]}]}), json!({"a": [{"b": [{"c": null}]}]})),
        ] {
            assert_eq!(diff(&from, &to), None, "{from} to {to}");
        }
        for (from, to, patch) in [
            (json!({"a": 1}), json!({"a": null}), json!({"a": null})),
            (json!({"a": [null]}), json!({"a": []}), json!({"a": []})),
            (json!({"a": [{"b": 1}]}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
            (json!({"a": [{}]}), json!({"a": [{"b": 1}]}), json!({"a": [{"b": 1}]})),
        ] {
            assert_eq!(diff(&from, &to), Some(patch), "{from} to {to}");
        }
    }

    fn object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i8>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::btree_map("[a-d]", inner.clone(), 0..3)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
                proptest::collection::vec(inner, 0..3).prop_map(Value::Array),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn a_diff_leads_from_one_to_the_other(from in object(), to in object()) {
            let mut patched = from.clone();
            if let Some(patch) = diff(&from, &to) {
                apply(&mut patched, patch);
            }
            prop_assert_eq!(patched, to);
        }

        #[test]
        fn applying_twice_is_applying_once(target in object(), patch in object()) {
            let mut once = target;
            apply(&mut once, patch.clone());
            let mut twice = once.clone();
            apply(&mut twice, patch);
            prop_assert_eq!(once, twice);
        }
    }
}
