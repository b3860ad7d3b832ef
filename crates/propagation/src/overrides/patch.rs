//! JSON patches with the semantics of the Go library that Karmada uses: `add`, `remove` and `replace`, all or
//! nothing.
//!
//! Where it differs from RFC 6902: negative indices count from the end, and text before the first `/` of a path is
//! ignored (`spec/replicas` means `/replicas`). Runs on any tree, since embedded documents must keep the order of
//! their members, which objects of ours do not have.

use api::policy::OverriderOperator;
use serde_json::{Map, Value};

use super::Error;

/// One operation; an omitted value counts as null.
pub(super) struct Operation<'a> {
    pub(super) operator: &'a OverriderOperator,
    pub(super) path: &'a str,
    pub(super) value: Option<&'a Value>,
}

/// What a patch needs to know of a tree.
pub(super) trait Tree: Clone {
    fn from_value(value: &Value) -> Self;
    fn member(&mut self, key: &str) -> Option<&mut Self>;
    fn is_object(&self) -> bool;
    fn insert(&mut self, key: &str, value: Self);
    fn remove(&mut self, key: &str) -> bool;
    fn items(&mut self) -> Option<&mut Vec<Self>>;
}

impl Tree for Value {
    fn from_value(value: &Value) -> Self {
        value.clone()
    }

    fn member(&mut self, key: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(key)
    }

    fn is_object(&self) -> bool {
        Value::is_object(self)
    }

    fn insert(&mut self, key: &str, value: Self) {
        if let Some(map) = self.as_object_mut() {
            Map::insert(map, key.to_owned(), value);
        }
    }

    fn remove(&mut self, key: &str) -> bool {
        self.as_object_mut().is_some_and(|map| map.remove(key).is_some())
    }

    fn items(&mut self) -> Option<&mut Vec<Self>> {
        self.as_array_mut()
    }
}

/// Applies the operations; on error the tree is as it was.
pub(super) fn apply<T: Tree>(tree: &mut T, operations: &[Operation<'_>]) -> Result<(), Error> {
    if operations.is_empty() {
        return Ok(());
    }
    let mut work = tree.clone();
    for operation in operations {
        let value = || operation.value.map_or_else(|| T::from_value(&Value::Null), T::from_value);
        match operation.operator {
            OverriderOperator::Add => add(&mut work, operation.path, value())?,
            OverriderOperator::Remove => remove(&mut work, operation.path)?,
            OverriderOperator::Replace => replace(&mut work, operation.path, value())?,
            OverriderOperator::Other(_) => return Err(Error::UnsupportedOperator),
        }
    }
    *tree = work;
    Ok(())
}

fn add<T: Tree>(tree: &mut T, path: &str, value: T) -> Result<(), Error> {
    if path.is_empty() {
        return replace_document(tree, value, "add");
    }
    let (parent, key) = locate(tree, path, "add")?;
    if parent.is_object() {
        parent.insert(&key, value);
        return Ok(());
    }
    let Some(items) = parent.items() else { return Err(missing_path("add", path)) };
    if key == "-" {
        items.push(value);
        return Ok(());
    }
    // One past the end may be named, and for insertion -1 is that place.
    let index = index(&key, items.len() + 1).ok_or_else(|| bad_index("add", path, &key))?;
    items.insert(index, value);
    Ok(())
}

fn remove<T: Tree>(tree: &mut T, path: &str) -> Result<(), Error> {
    let (parent, key) = locate(tree, path, "remove")?;
    if parent.is_object() {
        return if parent.remove(&key) { Ok(()) } else { Err(nothing_to_remove(path, &key)) };
    }
    let Some(items) = parent.items() else { return Err(missing_path("remove", path)) };
    let index = index(&key, items.len()).ok_or_else(|| bad_index("remove", path, &key))?;
    items.remove(index);
    Ok(())
}

fn replace<T: Tree>(tree: &mut T, path: &str, value: T) -> Result<(), Error> {
    if path.is_empty() {
        return replace_document(tree, value, "replace");
    }
    let (parent, key) = locate(tree, path, "replace")?;
    if parent.is_object() {
        let Some(member) = parent.member(&key) else { return Err(missing_key(path)) };
        *member = value;
        return Ok(());
    }
    let Some(items) = parent.items() else { return Err(missing_path("replace", path)) };
    let index = index(&key, items.len()).ok_or_else(|| missing_key(path))?;
    items[index] = value;
    Ok(())
}

fn replace_document<T: Tree>(tree: &mut T, mut value: T, operator: &str) -> Result<(), Error> {
    if !value.is_object() && value.items().is_none() {
        return Err(Error::Patch(format!("{operator} operation value must be object or array")));
    }
    *tree = value;
    Ok(())
}

/// Returns the container that holds the last token of the path, and that token.
fn locate<'a, T: Tree>(tree: &'a mut T, path: &str, operator: &str) -> Result<(&'a mut T, String), Error> {
    let tokens: Vec<&str> = path.split('/').skip(1).collect();
    let Some((last, parents)) = tokens.split_last() else { return Err(missing_path(operator, path)) };
    let mut current = tree;
    for token in parents {
        let token = decode(token);
        let next = if current.is_object() {
            current.member(&token)
        } else {
            current.items().and_then(|items| {
                let index = index(&token, items.len())?;
                items.get_mut(index)
            })
        };
        current = next.ok_or_else(|| missing_path(operator, path))?;
    }
    if !current.is_object() && current.items().is_none() {
        return Err(missing_path(operator, path));
    }
    Ok((current, decode(last)))
}

pub(super) fn decode(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

fn index(token: &str, places: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let places = i64::try_from(places).ok()?;
    let index = if index < 0 { index + places } else { index };
    (0..places).contains(&index).then(|| usize::try_from(index).ok())?
}

fn missing_path(operator: &str, path: &str) -> Error {
    let path = if operator == "replace" { path.to_owned() } else { apimachinery::go::quote(path) };
    Error::Patch(format!("{operator} operation does not apply: doc is missing path: {path}: missing value"))
}

fn missing_key(path: &str) -> Error {
    Error::Patch(format!("replace operation does not apply: doc is missing key: {path}: missing value"))
}

fn nothing_to_remove(path: &str, key: &str) -> Error {
    Error::Patch(format!(
        "error in remove for path: '{path}': unable to remove nonexistent key: {key}: missing value"
    ))
}

fn bad_index(operator: &str, path: &str, key: &str) -> Error {
    let reason = match key.parse::<i64>() {
        Ok(index) => format!("Unable to access invalid index: {index}: invalid index referenced"),
        Err(_) => {
            let quoted = apimachinery::go::quote(key);
            format!(
                "value was not a proper array index: '{key}': strconv.Atoi: parsing {quoted}: invalid syntax"
            )
        }
    };
    Error::Patch(format!("error in {operator} for path: '{path}': {reason}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(document: Value, operator: &str, path: &str, value: Value, expected: Result<Value, &str>) {
        let mut tree = document.clone();
        let operation = Operation { operator: &OverriderOperator::from(operator), path, value: Some(&value) };
        let result = apply(&mut tree, &[operation]);
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
        assert!(apply(&mut tree, &[operation("/a"), operation("/b")]).is_err());
        assert_eq!(tree, json!({"a": 1}));
    }
}
