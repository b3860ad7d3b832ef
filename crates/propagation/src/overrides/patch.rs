//! The patches of overriders: `add`, `remove` and `replace`, all or nothing.
//!
//! The mechanics and their limits are in [`apimachinery::patch::json`], which knows how the Go library that Karmada uses
//! differs from kube-apiserver's.

use api::policy::OverriderOperator;
use apimachinery::patch::json::{self, Dialect, Spent, Tree};
use serde_json::Value;

use super::Error;

/// One operation; an omitted value counts as null.
pub(super) struct Operation<'a> {
    pub(super) operator: &'a OverriderOperator,
    pub(super) path: &'a str,
    pub(super) value: Option<&'a Value>,
}

/// Applies the operations; on error the tree is as it was.
pub(super) fn apply<T: Tree>(
    tree: &mut T,
    operations: &[Operation<'_>],
    spent: &mut Spent,
) -> Result<(), Error> {
    if operations.is_empty() {
        return Ok(());
    }
    let operations: Vec<json::Operation<'_>> = operations
        .iter()
        .map(|operation| {
            let op = match operation.operator {
                OverriderOperator::Add => "add",
                OverriderOperator::Remove => "remove",
                OverriderOperator::Replace => "replace",
                OverriderOperator::Other(_) => return Err(Error::UnsupportedOperator),
            };
            Ok(json::Operation { op, path: Some(operation.path), from: None, value: operation.value })
        })
        .collect::<Result<_, _>>()?;
    *tree = json::run_within(tree, &operations, Dialect::Overrider, spent)
        .map_err(|error| Error::Patch(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(document: Value, operator: &str, path: &str, value: Value, expected: Result<Value, &str>) {
        let mut tree = document.clone();
        let operation = Operation { operator: &OverriderOperator::from(operator), path, value: Some(&value) };
        let result = apply(&mut tree, &[operation], &mut Spent::default());
        match expected {
            Ok(expected) => {
                result.expect("the patch applies");
                assert_eq!(tree, expected);
            }
            Err(message) => {
                assert_eq!(result.map_err(|error| error.to_string()), Err(message.to_owned()));
                assert_eq!(tree, document, "a failing patch changes nothing");
            }
        }
    }

    #[test]
    fn members_and_items_are_added_replaced_and_removed() {
        let document = json!({"a": {"b": 1}, "l": [1, 2, 3], "x/y": {"m~n": 1}});
        let with = |path: &[&str], value: Value| {
            let mut changed = document.clone();
            let (last, parents) = path.split_last().expect("a path");
            let mut place = &mut changed;
            for key in parents {
                place = &mut place[*key];
            }
            place[*last] = value;
            changed
        };
        check(document.clone(), "add", "/a/c", json!(2), Ok(with(&["a"], json!({"b": 1, "c": 2}))));
        check(document.clone(), "add", "/a/b", json!(null), Ok(with(&["a", "b"], json!(null))));
        check(document.clone(), "replace", "/a/b", json!(2), Ok(with(&["a", "b"], json!(2))));
        check(document.clone(), "remove", "/a/b", json!(9), Ok(with(&["a"], json!({}))));
        check(document.clone(), "add", "/l/-", json!(4), Ok(with(&["l"], json!([1, 2, 3, 4]))));
        check(document.clone(), "add", "/l/-1", json!(4), Ok(with(&["l"], json!([1, 2, 3, 4]))));
        check(document.clone(), "add", "/l/0", json!(4), Ok(with(&["l"], json!([4, 1, 2, 3]))));
        check(document.clone(), "add", "/l/3", json!(4), Ok(with(&["l"], json!([1, 2, 3, 4]))));
        check(document.clone(), "replace", "/l/-1", json!(9), Ok(with(&["l"], json!([1, 2, 9]))));
        check(document.clone(), "remove", "/l/1", json!(9), Ok(with(&["l"], json!([1, 3]))));
        check(document.clone(), "replace", "/x~1y/m~0n", json!(2), Ok(with(&["x/y", "m~n"], json!(2))));
        check(document.clone(), "replace", "ignored/a/b", json!(2), Ok(with(&["a", "b"], json!(2))));
        check(document.clone(), "replace", "", json!({"n": 1}), Ok(json!({"n": 1})));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let document = json!({"a": {"b": 1}, "l": [1]});
        let check = |operator: &str, path: &str, message: &str| {
            check(document.clone(), operator, path, json!(1), Err(message))
        };
        check("replace", "/a/x", "replace operation does not apply: doc is missing key: /a/x: missing value");
        check(
            "replace",
            "/x/y",
            "replace operation does not apply: doc is missing path: /x/y: missing value",
        );
        check("add", "/x/y", "add operation does not apply: doc is missing path: \"/x/y\": missing value");
        check(
            "remove",
            "/x/y",
            "remove operation does not apply: doc is missing path: \"/x/y\": missing value",
        );
        check(
            "add",
            "nopath",
            "add operation does not apply: doc is missing path: \"nopath\": missing value",
        );
        check(
            "add",
            "/a/b/c",
            "add operation does not apply: doc is missing path: \"/a/b/c\": missing value",
        );
        let key = "error in remove for path: '/a/x': unable to remove nonexistent key: x: missing value";
        check("remove", "/a/x", key);
        let index = "Unable to access invalid index: 5: invalid index referenced";
        check("add", "/l/5", &format!("error in add for path: '/l/5': {index}"));
        check("remove", "/l/5", &format!("error in remove for path: '/l/5': {index}"));
        check("replace", "/l/5", "replace operation does not apply: doc is missing key: /l/5: missing value");
        check("replace", "", "replace operation value must be object or array");
        check("test", "/a/b", "unsupported operation");
    }

    #[test]
    fn all_operations_of_a_call_apply_or_none() {
        let mut tree = json!({"a": 1});
        let (replace, value) = (OverriderOperator::Replace, json!(2));
        let operation = |path| Operation { operator: &replace, path, value: Some(&value) };
        assert!(apply(&mut tree, &[operation("/a"), operation("/b")], &mut Spent::default()).is_err());
        assert_eq!(tree, json!({"a": 1}));
    }
}
