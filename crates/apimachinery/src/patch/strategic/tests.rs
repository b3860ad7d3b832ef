//! Cases: original, patch, result. The type used has one field of every sort.

use serde_json::json;

use super::*;

/// A small type language for the cases: every object type has the same fields.
#[derive(Debug, Clone)]
struct Sample;

impl Schema for Sample {
    fn field(&self, name: &str) -> Option<Field<Self>> {
        let field = |strategy, merge_key: Option<&str>| {
            Some(Field { schema: Some(Sample), strategy, merge_key: merge_key.map(str::to_owned) })
        };
        match name {
            "spec" | "obj" | "union" => field(Strategy::Default, None),
            "labels" => Some(Field { schema: None, strategy: Strategy::Default, merge_key: None }),
            "replaced" => field(Strategy::Replace, None),
            "atomic" | "command" => field(Strategy::Default, None),
            "containers" | "env" => field(Strategy::Merge, Some("name")),
            "ports" => field(Strategy::Merge, Some("port")),
            "volumes" => field(Strategy::Merge, Some("name")),
            "finalizers" => field(Strategy::Merge, None),
            "keyless" => field(Strategy::Merge, None),
            _ => None,
        }
    }
}

fn patched(original: &Value, patch: &Value) -> Result<Value, Error> {
    let map = |value: &Value| value.as_object().expect("cases are objects").clone();
    apply(&map(original), &map(patch), &Sample).map(Value::Object)
}

fn check(cases: Vec<(Value, Value, Value)>) {
    for (original, patch, result) in cases {
        assert_eq!(patched(&original, &patch), Ok(result), "{original} patched with {patch}");
    }
}

fn refuse(original: Value, patch: Value, code: u16, message: &str) {
    let error = patched(&original, &patch).expect_err(message);
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (code, message),
        "{original} patched with {patch}"
    );
}

#[test]
fn scalars_and_objects_merge_like_a_merge_patch() {
    check(vec![
        (json!({}), json!({}), json!({})),
        (json!({"a": 1}), json!({}), json!({"a": 1})),
        (json!({"a": 1}), json!({"a": 2}), json!({"a": 2})),
        (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
        (json!({"a": 1}), json!({"a": null}), json!({})),
        (json!({"a": 1}), json!({"b": null}), json!({"a": 1})),
        (json!({"a": 1}), json!({"a": "x"}), json!({"a": "x"})),
        (json!({"a": 1}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
        (json!({"obj": {"a": 1, "b": 2}}), json!({"obj": {"b": 3}}), json!({"obj": {"a": 1, "b": 3}})),
        (json!({"obj": {"a": 1}}), json!({"obj": null}), json!({})),
        (json!({"obj": {"a": 1}}), json!({"obj": {"a": null}}), json!({"obj": {}})),
        (
            json!({"obj": {"obj": {"a": 1}}}),
            json!({"obj": {"obj": {"b": 2}}}),
            json!({"obj": {"obj": {"a": 1, "b": 2}}}),
        ),
        (
            json!({"labels": {"x": "1"}}),
            json!({"labels": {"y": "2"}}),
            json!({"labels": {"x": "1", "y": "2"}}),
        ),
        (json!({"labels": {"x": "1"}}), json!({"labels": {"x": null}}), json!({"labels": {}})),
        (json!({}), json!({"obj": {"a": null}}), json!({"obj": {}})),
        (json!({}), json!({"obj": {"l": [{"a": null, "b": 1}]}}), json!({"obj": {"l": [{"b": 1}]}})),
        (json!({"obj": 1}), json!({"obj": {"a": 1}}), json!({"obj": {"a": 1}})),
        (json!({"obj": {"a": 1}}), json!({"obj": 1}), json!({"obj": 1})),
    ]);
}

#[test]
fn lists_without_merge_strategy_are_replaced() {
    check(vec![
        (json!({"atomic": [1, 2]}), json!({"atomic": [3]}), json!({"atomic": [3]})),
        (json!({"atomic": [1, 2]}), json!({"atomic": []}), json!({"atomic": []})),
        (
            json!({"atomic": [{"name": "a", "x": 1}]}),
            json!({"atomic": [{"name": "a"}]}),
            json!({"atomic": [{"name": "a"}]}),
        ),
        (json!({"atomic": [1]}), json!({"atomic": null}), json!({})),
        (json!({"replaced": {"a": 1}}), json!({"replaced": {"b": 2}}), json!({"replaced": {"b": 2}})),
        (json!({"labels": {"l": [1]}}), json!({"labels": {"l": [2]}}), json!({"labels": {"l": [2]}})),
    ]);
}

#[test]
fn lists_of_objects_merge_by_key() {
    check(vec![
        (
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "b"}]}),
            json!({"containers": [{"name": "b"}, {"name": "a"}]}),
        ),
        (
            json!({"containers": [{"name": "a", "x": 1}]}),
            json!({"containers": [{"name": "a", "x": null}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (
            json!({"containers": []}),
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (json!({}), json!({"containers": [{"name": "a"}]}), json!({"containers": [{"name": "a"}]})),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": []}),
            json!({"containers": [{"name": "a"}]}),
        ),
        (json!({"containers": []}), json!({"containers": []}), json!({"containers": []})),
        (
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "3"}]}]}),
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 90, "x": 1}]}),
            json!({"ports": [{"port": 90, "x": 2}]}),
            json!({"ports": [{"port": 80}, {"port": 90, "x": 2}]}),
        ),
        (
            json!({"containers": [{"name": "a", "command": ["x", "y"]}]}),
            json!({"containers": [{"name": "a", "command": ["z"]}]}),
            json!({"containers": [{"name": "a", "command": ["z"]}]}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c", "x": 1}, {"name": "a", "x": 1}]}),
            json!({"containers": [{"name": "b"}, {"name": "c", "x": 1}, {"name": "a", "x": 1}]}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "n"}, {"name": "b", "x": 1}]}),
            json!({"containers": [{"name": "n"}, {"name": "a"}, {"name": "b", "x": 1}]}),
        ),
    ]);
}

#[test]
fn lists_of_scalars_merge_as_sets() {
    check(vec![
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["c"]}),
            json!({"finalizers": ["c", "a", "b"]}),
        ),
        (json!({"finalizers": ["a", "b"]}), json!({"finalizers": ["b"]}), json!({"finalizers": ["a", "b"]})),
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "a"]}),
            json!({"finalizers": ["b", "a"]}),
        ),
        (json!({"finalizers": ["a"]}), json!({"finalizers": []}), json!({"finalizers": ["a"]})),
        (json!({"finalizers": ["a", "a"]}), json!({"finalizers": ["b"]}), json!({"finalizers": ["b", "a"]})),
        (
            json!({"finalizers": [1, 2, 3]}),
            json!({"finalizers": [4, 2]}),
            json!({"finalizers": [4, 1, 2, 3]}),
        ),
        (
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b"]}),
            json!({"finalizers": ["a", "c"]}),
        ),
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["x"]}),
            json!({"finalizers": ["a", "b"]}),
        ),
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a", "b"]}),
            json!({"finalizers": []}),
        ),
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            json!({"finalizers": ["c", "b"]}),
        ),
        (json!({}), json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), json!({})),
        (
            json!({"atomic": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/atomic": ["a"]}),
            json!({"atomic": ["b"]}),
        ),
    ]);
}

#[test]
fn patch_directives_replace_and_delete() {
    check(vec![
        (json!({"obj": {"a": 1}}), json!({"obj": {"$patch": "replace", "b": 2}}), json!({"obj": {"b": 2}})),
        (json!({"obj": {"a": 1}}), json!({"obj": {"$patch": "delete"}}), json!({"obj": {}})),
        (json!({"a": 1}), json!({"$patch": "replace", "b": 2}), json!({"b": 2})),
        (json!({"a": 1}), json!({"$patch": "delete"}), json!({})),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "x", "$patch": "delete"}]}),
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}, {"name": "b"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}),
            json!({"containers": [{"name": "c"}]}),
        ),
        (
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"$patch": "replace"}]}),
            json!({"containers": []}),
        ),
        (
            json!({"containers": [{"name": "a", "x": 1, "y": 2}]}),
            json!({"containers": [{"name": "a", "$patch": "replace", "x": 3}]}),
            json!({"containers": []}),
        ),
        (json!({}), json!({"containers": [{"name": "a", "$patch": "delete"}]}), json!({"containers": []})),
        (json!({}), json!({"obj": {"$patch": "delete"}}), json!({})),
        (json!({}), json!({"obj": {"obj": {"$patch": "replace", "a": 1}}}), json!({"obj": {}})),
        (
            json!({"containers": [{"name": "a", "env": [{"name": "X"}, {"name": "Y"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "Y"}]}]}),
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 80, "x": 1}, {"port": 90}]}),
            json!({"ports": [{"port": 80, "$patch": "delete"}]}),
            json!({"ports": [{"port": 90}]}),
        ),
    ]);
}

#[test]
fn the_element_order_directive_sets_the_order() {
    let abc = || json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
    check(vec![
        (
            abc(),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}),
        ),
        (
            abc(),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}),
            json!({"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]}),
        ),
        (
            abc(),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}], "containers": [{"name": "n"}]}),
            json!({"containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}, {"name": "c"}]}),
        ),
        (
            abc(),
            json!({"$setElementOrder/containers": [{"name": "a"}, {"name": "c"}], "containers": [{"name": "b", "$patch": "delete"}]}),
            json!({"containers": [{"name": "a"}, {"name": "c"}]}),
        ),
        (
            abc(),
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "a", "x": 1}]}),
            json!({"containers": [{"name": "b"}, {"name": "c"}, {"name": "a", "x": 1}]}),
        ),
        (
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$setElementOrder/finalizers": ["c", "b", "a"]}),
            json!({"finalizers": ["c", "b", "a"]}),
        ),
        (
            json!({"finalizers": ["a", "b"]}),
            json!({"$setElementOrder/finalizers": ["n", "b", "a"], "finalizers": ["n"]}),
            json!({"finalizers": ["n", "b", "a"]}),
        ),
        (
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$setElementOrder/finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"]}),
            json!({"finalizers": ["c", "a"]}),
        ),
        (json!({}), json!({"$setElementOrder/containers": [{"name": "a"}]}), json!({})),
        (
            json!({}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b"}, {"name": "a"}]}),
            json!({"containers": [{"name": "b"}, {"name": "a"}]}),
        ),
        (
            json!({"obj": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"obj": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            json!({"obj": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        ),
    ]);
}

#[test]
fn retain_keys_clears_the_others() {
    check(vec![
        (
            json!({"union": {"a": 1, "b": 2}}),
            json!({"union": {"$retainKeys": ["b"], "b": 3}}),
            json!({"union": {"b": 3}}),
        ),
        (
            json!({"union": {"a": 1, "b": 2}}),
            json!({"union": {"$retainKeys": ["a"]}}),
            json!({"union": {"a": 1}}),
        ),
        (json!({"union": {"a": 1}}), json!({"union": {"$retainKeys": []}}), json!({"union": {}})),
        (
            json!({"union": {"a": 1, "b": 2}}),
            json!({"union": {"$retainKeys": ["c"], "c": {"x": 1}, "a": null}}),
            json!({"union": {"c": {"x": 1}}}),
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        ),
    ]);
}

#[test]
fn broken_patches_say_what_is_wrong() {
    refuse(json!({}), json!({"$patch": "bogus"}), 500, "unknown patch type: bogus in map: map[$patch:bogus]");
    refuse(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"image": "x"}]}),
        500,
        "map: map[image:x] does not contain declared merge key: name",
    );
    refuse(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"$patch": "delete"}]}),
        500,
        "map: map[$patch:delete] does not contain declared merge key: name",
    );
    refuse(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "a", "$patch": "merge"}]}),
        500,
        "merging lists cannot yet be specified in the patch",
    );
    refuse(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "a", "$patch": "x"}]}),
        500,
        "unknown patch type: x in map: map[$patch:x name:a]",
    );
    refuse(
        json!({"finalizers": ["a"]}),
        json!({"finalizers": [1]}),
        500,
        "list element types are not identical: [[a] [1]]",
    );
    refuse(
        json!({"finalizers": [["a"]]}),
        json!({"finalizers": [["b"]]}),
        422,
        "lists of lists are not supported",
    );
    refuse(
        json!({"keyless": [{"a": 1}]}),
        json!({"keyless": [{"a": 2}]}),
        500,
        "cannot merge lists without merge key for struct",
    );
    refuse(
        json!({"nosuch": {"a": 1}}),
        json!({"nosuch": {"a": 2}}),
        500,
        "unable to find api field \"nosuch\"",
    );
    refuse(
        json!({}),
        json!({"$deleteFromPrimitiveList": [1]}),
        400,
        "invalid patch format of primitive list",
    );
    refuse(json!({}), json!({"$setElementOrder": []}), 400, "invalid patch format of setElementOrder list");
    refuse(
        json!({"finalizers": ["a"]}),
        json!({"$setElementOrder/finalizers": "x"}),
        500,
        "expected a []interface {}, but received a string",
    );
    refuse(json!({"a": 1}), json!({"$retainKeys": ["b"], "a": 1}), 400, "invalid patch format of retainKeys");
    refuse(json!({"a": 1}), json!({"$retainKeys": "a"}), 400, "invalid patch format of retainKeys");
    refuse(
        json!({"finalizers": ["a", "b"]}),
        json!({"$setElementOrder/finalizers": ["a", "b"], "finalizers": ["b", "a"]}),
        500,
        "The order in patch list:\n[b a]\n doesn't match $setElementOrder list:\n[a b]\n",
    );
}

#[test]
fn applying_a_patch_twice_changes_nothing_more() {
    let original =
        json!({"obj": {"a": 1}, "containers": [{"name": "a"}, {"name": "b"}], "finalizers": ["x"]});
    for patch in [
        json!({"obj": {"b": 2}}),
        json!({"containers": [{"name": "c"}, {"name": "a", "image": "i"}]}),
        json!({"finalizers": ["y"]}),
        json!({"containers": [{"name": "b", "$patch": "delete"}]}),
        json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
    ] {
        let once = patched(&original, &patch).unwrap();
        assert_eq!(patched(&once, &patch), Ok(once.clone()), "{patch}");
    }
}

#[test]
fn long_lists_are_merged_in_linear_time() {
    // Comparing each with each would take hours.
    const MANY: usize = 100_000;
    let names = |from: usize| -> Vec<Value> { (from..from + MANY).map(|n| json!(format!("f{n}"))).collect() };
    let named = |from: usize, directive: bool| -> Vec<Value> {
        let item = |name: Value| match directive {
            true => json!({"name": name, "$patch": "delete"}),
            false => json!({"name": name, "value": "v"}),
        };
        names(from).into_iter().map(item).collect()
    };
    let length = |patched: Result<Value, Error>, field: &str| {
        patched.expect("it can be patched")[field].as_array().expect("a list").len()
    };
    let half = MANY / 2;
    let scalars = patched(&json!({"finalizers": names(0)}), &json!({"finalizers": names(half)}));
    assert_eq!(length(scalars, "finalizers"), MANY + half);
    let deletion = json!({"$deleteFromPrimitiveList/finalizers": names(half)});
    assert_eq!(length(patched(&json!({"finalizers": names(0)}), &deletion), "finalizers"), half);
    let objects = patched(&json!({"env": named(0, false)}), &json!({"env": named(half, false)}));
    assert_eq!(length(objects, "env"), MANY + half);
    let left = patched(&json!({"env": named(0, false)}), &json!({"env": named(half, true)}));
    assert_eq!(length(left, "env"), half);
}
