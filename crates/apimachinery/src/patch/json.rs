//! JSON patch (RFC 6902), for kube-apiserver's clients and for Karmada's overriders.
//!
//! Follows the two versions of the Go library that those use where the RFC leaves room ([`Dialect`]): negative array
//! indices count from the end, text before the first slash of a path is passed over, a `test` of an absent member
//! against null succeeds. The work is done on a copy, so a failing patch changes nothing.
//!
//! A small patch must not blow up an object. The bytes of all copies add up to a limit, and an operation whose value
//! would lie deeper than [`MAX_DEPTH`] is refused before anything is cloned or moved: a deep tree never exists.

use serde_json::{Map, Value};

use crate::depth::{self, MAX_DEPTH, TooDeep};
use crate::go;

/// More operations than this are refused.
pub const MAX_OPERATIONS: usize = 10_000;

/// The bytes that all copies of one patch may add.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// By so many places may all operations of one patch shift the items of lists. An operation at the front of a list shifts all others:
/// without an end, 10,000 of them on a list of a million items would take minutes. As many suffice to empty a list of 10,000 from its
/// front.
const MAX_SHIFTED: usize = 64 << 20;

/// The bytes that one patch may move to deeper places, each time looking at all of them for their depth.
const MAX_DEEPENED_BYTES: usize = 64 << 20;

/// What patches have cost so far. Patches that change one object one after the other share it, so that its limits hold for all of them
/// together: work that one patch may not do cannot be cut into many.
#[derive(Debug, Default)]
pub struct Spent {
    operations: usize,
    /// The bytes that copies have added.
    copied: usize,
    /// By how many places items of lists were shifted.
    shifted: usize,
    /// The bytes that were moved to deeper places.
    deepened: usize,
}

/// Why a patch was refused; the variant decides the HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The document is not a list of operations: 400.
    #[error("error decoding patch: {0}")]
    Decode(String),
    /// 413.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// An operation does not apply: 422.
    #[error("{0}")]
    Rejected(String),
    /// The result would nest too deep: 422.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
}

/// Where the versions of the Go library differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Version 4, which kube-apiserver uses: `replace` adds a member that an object does not have, and a whole
    /// document may become a scalar.
    Server,
    /// Version 5, which Karmada's overriders use: both are errors.
    Overrider,
}

/// One operation. An omitted value counts as null.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    pub op: &'a str,
    pub path: Option<&'a str>,
    pub from: Option<&'a str>,
    pub value: Option<&'a Value>,
}

/// What a patch needs to know of a document. Documents embedded in text keep the order of their members, which objects
/// of ours do not have, so they are trees of another type.
pub trait Tree: Clone + PartialEq {
    fn from_value(value: &Value) -> Self;
    fn is_object(&self) -> bool;
    fn member(&self, key: &str) -> Option<&Self>;
    fn member_mut(&mut self, key: &str) -> Option<&mut Self>;
    /// Sets a member of an object.
    fn insert(&mut self, key: String, value: Self);
    fn remove(&mut self, key: &str) -> Option<Self>;
    /// Returns how many members are shifted when this one is removed. Only those shift any that keep their order.
    fn shifted_without(&self, _key: &str) -> usize {
        0
    }
    fn items(&self) -> Option<&Vec<Self>>;
    fn items_mut(&mut self) -> Option<&mut Vec<Self>>;
    /// Returns how many arrays and objects lie inside each other.
    fn depth(&self) -> usize;
    /// Returns the length of the printed text.
    fn size(&self) -> usize;
}

impl Tree for Value {
    fn from_value(value: &Value) -> Self {
        value.clone()
    }

    fn is_object(&self) -> bool {
        Value::is_object(self)
    }

    fn member(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    fn member_mut(&mut self, key: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(key)
    }

    fn insert(&mut self, key: String, value: Self) {
        if let Some(entries) = self.as_object_mut() {
            Map::insert(entries, key, value);
        }
    }

    fn remove(&mut self, key: &str) -> Option<Self> {
        self.as_object_mut()?.remove(key)
    }

    fn items(&self) -> Option<&Vec<Self>> {
        self.as_array()
    }

    fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        self.as_array_mut()
    }

    fn depth(&self) -> usize {
        depth::depth(self)
    }

    fn size(&self) -> usize {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, self).expect("counting does not fail");
        counter.0
    }
}

/// A writer that counts.
struct Counter(usize);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Applies a patch document as kube-apiserver does and returns the changed object.
pub fn apply(target: &Value, patch: &Value) -> Result<Value, Error> {
    run(target, &decode(patch)?, Dialect::Server)
}

/// Applies operations and returns the changed document.
pub fn run<T: Tree>(target: &T, operations: &[Operation<'_>], dialect: Dialect) -> Result<T, Error> {
    run_within(target, operations, dialect, &mut Spent::default())
}

/// As [`run`], within what earlier patches have left of the limits.
pub fn run_within<T: Tree>(
    target: &T,
    operations: &[Operation<'_>],
    dialect: Dialect,
    spent: &mut Spent,
) -> Result<T, Error> {
    spent.operations = spent.operations.saturating_add(operations.len());
    if spent.operations > MAX_OPERATIONS {
        return Err(Error::TooMany(spent.operations));
    }
    if target.depth() > MAX_DEPTH {
        return Err(TooDeep.into());
    }
    let mut patcher = Patcher { document: target.clone(), dialect, spent };
    for operation in operations {
        patcher.step(operation)?;
    }
    Ok(patcher.document)
}

/// Reads the operations of a patch document.
pub fn decode(patch: &Value) -> Result<Vec<Operation<'_>>, Error> {
    let type_error = |found: &Value, expected: &str| {
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Error::Decode(format!("json: cannot unmarshal {found} into Go value of type {expected}"))
    };
    let items = match patch {
        Value::Array(items) => items,
        // Go decodes null into an empty list.
        Value::Null => return Ok(Vec::new()),
        other => return Err(type_error(other, "[]handlers.jsonPatchOp")),
    };
    items
        .iter()
        .map(|item| {
            let entries = match item {
                Value::Object(entries) => Some(entries),
                // To Go, null is an operation that says nothing.
                Value::Null => None,
                _ => return Err(type_error(item, "handlers.jsonPatchOp")),
            };
            let get = |name: &str| entries.and_then(|entries| entries.get(name));
            let text = |name: &str| match get(name) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.as_str())),
                Some(other) => Err(type_error(other, "string")),
            };
            Ok(Operation {
                op: text("op")?.unwrap_or("unknown"),
                path: text("path")?,
                from: text("from")?,
                value: get("value"),
            })
        })
        .collect()
}

/// A document under way. It is never deeper than [`MAX_DEPTH`].
struct Patcher<'a, T> {
    document: T,
    dialect: Dialect,
    spent: &'a mut Spent,
}

impl<T: Tree> Patcher<'_, T> {
    fn step(&mut self, operation: &Operation<'_>) -> Result<(), Error> {
        let undecoded =
            |what: &str| Error::Rejected(format!("{} operation failed to decode {what}", operation.op));
        let path = || operation.path.ok_or_else(|| undecoded("path"));
        let from = || operation.from.ok_or_else(|| undecoded("from"));
        let value = operation.value.unwrap_or(&Value::Null);
        match operation.op {
            "add" => {
                let path = path()?;
                fits(path, value)?;
                self.add(path, T::from_value(value), "add")
            }
            "remove" => self.remove(path()?, "remove").map(drop),
            "replace" => {
                let path = path()?;
                fits(path, value)?;
                self.replace(path, T::from_value(value))
            }
            "move" => {
                let (from, path) = (from()?, path()?);
                let value = self.remove(from, "move")?;
                // What is moved up or aside fits as it did before.
                if tokens(path).count() > tokens(from).count() {
                    let size = value.size();
                    spend(
                        &mut self.spent.deepened,
                        size,
                        MAX_DEEPENED_BYTES,
                        "the size of what is moved deeper",
                    )?;
                    fits(path, &value)?;
                }
                self.add(path, value, "move")
            }
            "copy" => self.copy(from()?, path()?),
            "test" => self.test(path()?, value),
            unknown => Err(Error::Rejected(format!("Unexpected kind: {unknown}"))),
        }
    }

    fn add(&mut self, path: &str, value: T, op: &str) -> Result<(), Error> {
        if path.is_empty() {
            return self.replace_document(value, op);
        }
        let (parent, key) = locate(&mut self.document, path, op)?;
        if parent.is_object() {
            parent.insert(key, value);
            return Ok(());
        }
        let Some(items) = parent.items_mut() else { return Err(missing_path(op, path)) };
        if key == "-" {
            items.push(value);
            return Ok(());
        }
        // One past the end may be named, and for insertion -1 is that place.
        let index = index(&key, items.len().saturating_add(1)).ok_or_else(|| bad_index(op, path, &key))?;
        spend(
            &mut self.spent.shifted,
            items.len().saturating_sub(index),
            MAX_SHIFTED,
            "the shifting of list items",
        )?;
        items.insert(index, value);
        Ok(())
    }

    fn remove(&mut self, path: &str, op: &str) -> Result<T, Error> {
        let (parent, key) = locate(&mut self.document, path, op)?;
        if parent.is_object() {
            let shifted = parent.shifted_without(&key);
            spend(&mut self.spent.shifted, shifted, MAX_SHIFTED, "the shifting of members")?;
            return parent.remove(&key).ok_or_else(|| {
                Error::Rejected(format!(
                    "error in {op} for path: '{path}': unable to remove nonexistent key: {key}: missing value"
                ))
            });
        }
        let Some(items) = parent.items_mut() else { return Err(missing_path(op, path)) };
        let index = index(&key, items.len()).ok_or_else(|| bad_index(op, path, &key))?;
        spend(
            &mut self.spent.shifted,
            items.len().saturating_sub(index),
            MAX_SHIFTED,
            "the shifting of list items",
        )?;
        Ok(items.remove(index))
    }

    fn replace(&mut self, path: &str, value: T) -> Result<(), Error> {
        if path.is_empty() {
            return self.replace_document(value, "replace");
        }
        let adds = self.dialect == Dialect::Server;
        let missing_key = || {
            Error::Rejected(format!(
                "replace operation does not apply: doc is missing key: {path}: missing value"
            ))
        };
        let (parent, key) = locate(&mut self.document, path, "replace")?;
        if parent.is_object() {
            if !adds && parent.member(&key).is_none() {
                return Err(missing_key());
            }
            parent.insert(key, value);
            return Ok(());
        }
        let Some(items) = parent.items_mut() else { return Err(missing_path("replace", path)) };
        let index = index(&key, items.len()).ok_or_else(missing_key)?;
        *items.get_mut(index).ok_or_else(missing_key)? = value;
        Ok(())
    }

    fn replace_document(&mut self, value: T, op: &str) -> Result<(), Error> {
        if self.dialect == Dialect::Overrider && !value.is_object() && value.items().is_none() {
            return Err(Error::Rejected(format!("{op} operation value must be object or array")));
        }
        self.document = value;
        Ok(())
    }

    fn copy(&mut self, from: &str, path: &str) -> Result<(), Error> {
        let null = T::from_value(&Value::Null);
        let value = match find(&self.document, from) {
            Some(value) => value,
            // As kube-apiserver: a member that an object does not have is copied as null.
            None if parent(&self.document, from).is_some_and(T::is_object) => &null,
            None => return Err(missing_path("copy", from)),
        };
        self.spent.copied = self.spent.copied.saturating_add(value.size());
        if self.spent.copied > MAX_COPIED_BYTES {
            return Err(Error::Rejected(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit {MAX_COPIED_BYTES}",
                self.spent.copied
            )));
        }
        fits(path, value)?;
        let value = value.clone();
        self.add(path, value, "copy")
    }

    fn test(&self, path: &str, wanted: &Value) -> Result<(), Error> {
        let found = find(&self.document, path);
        let equal = match found {
            Some(found) => *found == T::from_value(wanted),
            None => wanted.is_null() && parent(&self.document, path).is_some(),
        };
        if equal { Ok(()) } else { Err(Error::Rejected(format!("testing value {path} failed: test failed"))) }
    }
}

/// Counts what an operation costs, and refuses what is beyond the limit for one patch.
fn spend(spent: &mut usize, cost: usize, most: usize, what: &str) -> Result<(), Error> {
    *spent = spent.saturating_add(cost);
    if *spent > most {
        return Err(Error::Rejected(format!(
            "Unable to complete the patch, {what} exceeds the limit {most}"
        )));
    }
    Ok(())
}

/// Checks that a value may stand at a path.
fn fits<T: Tree>(path: &str, value: &T) -> Result<(), TooDeep> {
    if tokens(path).count().saturating_add(value.depth()) > MAX_DEPTH { Err(TooDeep) } else { Ok(()) }
}

/// Returns the escaped tokens of a path. What stands before the first slash is passed over.
fn tokens(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    let body = path.split_once('/').map(|(_, body)| body);
    body.into_iter().flat_map(|body| body.split('/'))
}

/// Resolves the escapes of a token: `~1` is a slash, `~0` a tilde.
pub fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

fn child<'a, T: Tree>(tree: &'a T, token: &str) -> Option<&'a T> {
    if tree.is_object() {
        return tree.member(&unescape(token));
    }
    let items = tree.items()?;
    items.get(index(token, items.len())?)
}

/// Returns the value at a path; without a slash only the empty one leads anywhere.
fn find<'a, T: Tree>(document: &'a T, path: &str) -> Option<&'a T> {
    if !path.is_empty() && !path.contains('/') {
        return None;
    }
    tokens(path).try_fold(document, child)
}

/// Returns what would hold the value at a path, if that is there.
fn parent<'a, T: Tree>(document: &'a T, path: &str) -> Option<&'a T> {
    let mut parents = tokens(path);
    parents.next_back()?;
    parents.try_fold(document, child)
}

/// Returns the container that holds the last token of the path, and that token.
fn locate<'a, T: Tree>(document: &'a mut T, path: &str, op: &str) -> Result<(&'a mut T, String), Error> {
    let mut parents = tokens(path);
    let last = parents.next_back().ok_or_else(|| missing_path(op, path))?;
    let mut current = document;
    for token in parents {
        let next = if current.is_object() {
            current.member_mut(&unescape(token))
        } else {
            current.items_mut().and_then(|items| {
                let index = index(token, items.len())?;
                items.get_mut(index)
            })
        };
        current = next.ok_or_else(|| missing_path(op, path))?;
    }
    if !current.is_object() && current.items().is_none() {
        return Err(missing_path(op, path));
    }
    Ok((current, unescape(last)))
}

/// Returns the place that a token names among so many: a number, or a negative one counting from the end.
fn index(token: &str, places: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let places = i64::try_from(places).ok()?;
    let index = if index < 0 { index.checked_add(places)? } else { index };
    (0..places).contains(&index).then(|| usize::try_from(index).ok())?
}

fn missing_path(op: &str, path: &str) -> Error {
    let path = if op == "replace" { path.to_owned() } else { go::quote(path) };
    Error::Rejected(format!("{op} operation does not apply: doc is missing path: {path}: missing value"))
}

fn bad_index(op: &str, path: &str, key: &str) -> Error {
    let reason = match key.parse::<i64>() {
        Ok(index) => format!("Unable to access invalid index: {index}: invalid index referenced"),
        Err(_) => {
            let quoted = go::quote(key);
            format!(
                "value was not a proper array index: '{key}': strconv.Atoi: parsing {quoted}: invalid syntax"
            )
        }
    };
    Error::Rejected(format!("error in {op} for path: '{path}': {reason}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(target: Value, patch: Value) -> Result<Value, Error> {
        apply(&target, &patch)
    }

    #[test]
    fn what_kube_apiserver_takes_beyond_the_rfc_is_taken() {
        for (target, patch, result) in [
            (json!({}), json!([{"op": "copy", "from": "/a", "path": "/b"}]), json!({"b": null})),
            (json!({}), json!([{"op": "add", "path": "any/b", "value": 1}]), json!({"b": 1})),
            (json!({"a": 1}), Value::Null, json!({"a": 1})),
        ] {
            assert_eq!(patched(target, patch.clone()).as_ref(), Ok(&result), "{patch}");
        }
        assert!(matches!(patched(json!({}), json!([null])), Err(Error::Rejected(_))));
        let below_nothing = json!([{"op": "copy", "from": "/a/b", "path": "/c"}]);
        assert!(matches!(patched(json!({}), below_nothing), Err(Error::Rejected(_))));
    }

    #[test]
    fn operations_do_what_the_rfc_says() {
        for (target, patch, result) in [
            (json!({"a": 1}), json!([{"op": "add", "path": "/b", "value": 2}]), json!({"a": 1, "b": 2})),
            (json!({"a": 1}), json!([{"op": "add", "path": "/a", "value": 2}]), json!({"a": 2})),
            (
                json!({"l": [1, 3]}),
                json!([{"op": "add", "path": "/l/1", "value": 2}]),
                json!({"l": [1, 2, 3]}),
            ),
            (json!({"l": [1]}), json!([{"op": "add", "path": "/l/-", "value": 2}]), json!({"l": [1, 2]})),
            (json!({"l": [1]}), json!([{"op": "add", "path": "/l/1", "value": 2}]), json!({"l": [1, 2]})),
            (json!({"a": 1}), json!([{"op": "remove", "path": "/a"}]), json!({})),
            (json!({"l": [1, 2]}), json!([{"op": "remove", "path": "/l/0"}]), json!({"l": [2]})),
            (json!({"l": [1, 2]}), json!([{"op": "remove", "path": "/l/-1"}]), json!({"l": [1]})),
            (json!({"a": 1}), json!([{"op": "replace", "path": "/a", "value": [2]}]), json!({"a": [2]})),
            (json!({}), json!([{"op": "replace", "path": "/a", "value": 1}]), json!({"a": 1})),
            (json!({"a": 1}), json!([{"op": "replace", "path": "", "value": {"b": 1}}]), json!({"b": 1})),
            (json!({"a": 1}), json!([{"op": "move", "from": "/a", "path": "/b"}]), json!({"b": 1})),
            (
                json!({"a": {"x": 1}}),
                json!([{"op": "copy", "from": "/a", "path": "/b"}]),
                json!({"a": {"x": 1}, "b": {"x": 1}}),
            ),
            (json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 1}]), json!({"a": 1})),
            (json!({"a": 1}), json!([{"op": "test", "path": "/b", "value": null}]), json!({"a": 1})),
            (
                json!({"a/b": {"m~n": 1}}),
                json!([{"op": "replace", "path": "/a~1b/m~0n", "value": 2}]),
                json!({"a/b": {"m~n": 2}}),
            ),
            (json!({"": 1}), json!([{"op": "replace", "path": "/", "value": 2}]), json!({"": 2})),
            (json!({"a": 1}), json!([{"op": "add", "path": "/b"}]), json!({"a": 1, "b": null})),
            (json!({"a": 1}), json!([]), json!({"a": 1})),
        ] {
            assert_eq!(patched(target.clone(), patch.clone()), Ok(result), "{target} {patch}");
        }
    }

    #[test]
    fn operations_that_do_not_apply_are_rejected() {
        for (target, patch) in [
            (json!({}), json!([{"op": "remove", "path": "/a"}])),
            (json!({}), json!([{"op": "replace", "path": "/a/b", "value": 1}])),
            (json!({"l": [1]}), json!([{"op": "replace", "path": "/l/1", "value": 1}])),
            (json!({}), json!([{"op": "add", "path": "/a/b", "value": 1}])),
            (json!({"l": []}), json!([{"op": "add", "path": "/l/1", "value": 1}])),
            (json!({"l": []}), json!([{"op": "add", "path": "/l/x", "value": 1}])),
            (json!({"l": [1]}), json!([{"op": "remove", "path": "/l/1"}])),
            (json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 2}])),
            (json!({"a": 1}), json!([{"op": "test", "path": "/b", "value": 2}])),
            (json!({"a": 1}), json!([{"op": "move", "from": "/x", "path": "/b"}])),
            (json!({"a": {}}), json!([{"op": "move", "from": "/a", "path": "/a/b"}])),
            (json!({"a": 1}), json!([{"op": "copy", "from": "/x/y", "path": "/b"}])),
            (json!({"a": 1}), json!([{"op": "frobnicate", "path": "/a"}])),
            (json!({"a": 1}), json!([{"path": "/a"}])),
            (json!({"a": 1}), json!([{"op": "remove"}])),
            (json!({"a": 1}), json!([{"op": "remove", "path": "a"}])),
            (json!({"a": 1}), json!([{"op": "add", "path": "/a/b", "value": 1}])),
        ] {
            let outcome = patched(target.clone(), patch.clone());
            assert!(matches!(outcome, Err(Error::Rejected(_))), "{target} {patch}: {outcome:?}");
        }
    }

    #[test]
    fn a_document_that_is_no_list_is_a_bad_request() {
        assert_eq!(
            patched(json!({}), json!({"op": "add"})).unwrap_err().to_string(),
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert!(matches!(patched(json!({}), json!(["x"])), Err(Error::Decode(_))));
    }

    #[test]
    fn limits_hold() {
        let many = Value::Array(vec![json!({"op": "test", "path": "/a", "value": 1}); MAX_OPERATIONS + 1]);
        assert_eq!(
            patched(json!({"a": 1}), many).unwrap_err().to_string(),
            "The allowed maximum operations in a JSON patch is 10000, got 10001"
        );
        let big = "x".repeat(1024 * 1024);
        let copies = json!([
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "copy", "from": "/a", "path": "/c"},
            {"op": "copy", "from": "/a", "path": "/d"},
        ]);
        assert!(matches!(patched(json!({"a": big}), copies), Err(Error::Rejected(_))));
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!([]), |inner, _| json!([inner]))
    }

    /// Returns the path to the innermost of so many arrays below `a`.
    fn innermost(levels: usize) -> String {
        format!("/a{}", "/0".repeat(levels))
    }

    #[test]
    fn finding_1_copies_into_the_own_innermost_array_are_refused() {
        // 50 levels, doubled by each copy of the whole into its own innermost array.
        let mut levels = 50;
        let mut operations = Vec::new();
        for _ in 0..12 {
            operations.push(json!({"op": "copy", "from": "/a", "path": format!("{}/-", innermost(levels))}));
            levels = 2 * levels + 1;
        }
        let target = json!({"a": nested(50)});
        assert_eq!(patched(target, Value::Array(operations)), Err(Error::TooDeep(TooDeep)));
    }

    #[test]
    fn finding_1_adding_level_by_level_ends_at_the_limit() {
        let operation =
            |level: usize| json!({"op": "add", "path": format!("{}/-", innermost(level)), "value": []});
        let fine: Vec<Value> = (0..MAX_DEPTH - 2).map(operation).collect();
        let result = patched(json!({"a": []}), Value::Array(fine.clone())).unwrap();
        assert_eq!(depth::depth(&result), MAX_DEPTH);
        let one_more = fine.into_iter().chain([operation(MAX_DEPTH - 2)]).collect();
        assert_eq!(patched(json!({"a": []}), Value::Array(one_more)), Err(Error::TooDeep(TooDeep)));
    }

    #[test]
    fn finding_1_every_operation_that_places_a_value_keeps_to_the_limit() {
        let target = json!({"a": nested(100), "b": nested(100)});
        let deep = innermost(100);
        for operation in [
            json!({"op": "add", "path": format!("{deep}/-"), "value": nested(50)}),
            json!({"op": "replace", "path": deep, "value": nested(50)}),
            json!({"op": "move", "from": "/b", "path": format!("{deep}/-")}),
            json!({"op": "copy", "from": "/b", "path": format!("{deep}/-")}),
            json!({"op": "add", "path": "", "value": nested(MAX_DEPTH)}),
        ] {
            let outcome = patched(target.clone(), json!([operation]));
            assert_eq!(outcome, Err(Error::TooDeep(TooDeep)), "{}", operation["op"]);
        }
    }

    #[test]
    fn finding_1_copies_that_double_each_time_are_refused() {
        let copies = vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 40];
        let outcome = patched(json!({"a": ["x".repeat(1000)]}), Value::Array(copies));
        // Doubling ends at the depth long before; doubling side by side ends at the bytes.
        assert!(outcome.is_err());
        let side_by_side: Vec<Value> = (0..40)
            .flat_map(|round| {
                let old = format!("/{round}");
                let new = format!("/{}", round + 1);
                [
                    json!({"op": "add", "path": new, "value": []}),
                    json!({"op": "copy", "from": old, "path": format!("{new}/-")}),
                    json!({"op": "copy", "from": old, "path": format!("{new}/-")}),
                ]
            })
            .collect();
        let outcome = patched(json!({"0": "x".repeat(1000)}), Value::Array(side_by_side)).unwrap_err();
        assert!(outcome.to_string().starts_with("Unable to complete the copy"), "{outcome}");
    }

    #[test]
    fn operations_at_the_front_of_a_long_list_end_at_a_limit() {
        let list = json!({"l": vec![0; 300_000]});
        for operation in
            [json!({"op": "add", "path": "/l/0", "value": 0}), json!({"op": "remove", "path": "/l/0"})]
        {
            let refused = patched(list.clone(), json!(vec![operation; MAX_OPERATIONS])).unwrap_err();
            assert!(refused.to_string().contains("the shifting of list items"), "{refused}");
        }
        // Nothing is shifted at the end, and a list of ordinary length may be emptied from its front.
        let appended = patched(list, json!(vec![json!({"op": "add", "path": "/l/-", "value": 0}); 1000]));
        assert_eq!(appended.unwrap()["l"].as_array().map(Vec::len), Some(301_000));
        let few = json!({"l": vec![0; MAX_OPERATIONS]});
        let emptied = patched(few, json!(vec![json!({"op": "remove", "path": "/l/0"}); MAX_OPERATIONS]));
        assert_eq!(emptied, Ok(json!({"l": []})));
    }

    #[test]
    fn moving_something_large_up_and_down_ends_at_a_limit() {
        let target = json!({"a": ["x".repeat(1_000_000)], "b": {}});
        let often =
            |pair: &[Value; 2]| -> Value { (0..MAX_OPERATIONS / 2).flat_map(|_| pair.clone()).collect() };
        let sideways = [
            json!({"op": "move", "from": "/a", "path": "/c"}),
            json!({"op": "move", "from": "/c", "path": "/a"}),
        ];
        let moved = patched(target.clone(), often(&sideways));
        assert_eq!(moved.as_ref(), Ok(&target), "what stays at its level is not looked at");
        let deeper = [
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "move", "from": "/b/a", "path": "/a"}),
        ];
        assert_eq!(patched(target.clone(), json!(deeper)).as_ref(), Ok(&target));
        let refused = patched(target, often(&deeper)).unwrap_err();
        assert!(refused.to_string().contains("what is moved deeper"), "{refused}");
    }

    #[test]
    fn the_dialects_differ_where_the_libraries_do() {
        let run = |target: Value, op, path, value: Value, dialect| {
            run(&target, &[Operation { op, path: Some(path), from: None, value: Some(&value) }], dialect)
        };
        let replace = |dialect| run(json!({}), "replace", "/a", json!(1), dialect);
        assert_eq!(replace(Dialect::Server), Ok(json!({"a": 1})));
        assert!(replace(Dialect::Overrider).is_err());
        let whole = |dialect| run(json!({}), "add", "", json!(1), dialect);
        assert_eq!(whole(Dialect::Server), Ok(json!(1)));
        assert!(whole(Dialect::Overrider).is_err());
    }
}
