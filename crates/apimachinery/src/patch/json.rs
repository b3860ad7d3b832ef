//! JSON patch (RFC 6902).
//!
//! Follows the library that kube-apiserver uses where the RFC leaves room: negative array indices count from the
//! end, a `test` of an absent member against null succeeds, and the sizes of copies add up to a limit so that a
//! small patch cannot blow up an object. The work is done on a copy, so a failing patch changes nothing.

use serde_json::Value;

/// More operations than this are refused.
pub const MAX_OPERATIONS: usize = 10_000;

/// The bytes that all copies of one patch may add.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

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
}

/// Applies a patch document and returns the changed object.
pub fn apply(target: &Value, patch: &Value) -> Result<Value, Error> {
    let operations = decode(patch)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(Error::TooMany(operations.len()));
    }
    let mut document = target.clone();
    let mut copied = 0;
    for operation in operations {
        operation.run(&mut document, &mut copied)?;
    }
    Ok(document)
}

struct Operation<'a> {
    op: &'a str,
    path: Option<&'a str>,
    from: Option<&'a str>,
    value: Option<&'a Value>,
}

fn decode(patch: &Value) -> Result<Vec<Operation<'_>>, Error> {
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

impl Operation<'_> {
    fn run(&self, document: &mut Value, copied: &mut usize) -> Result<(), Error> {
        match self.op {
            "add" => add(document, self.path()?, self.value.cloned().unwrap_or(Value::Null), "add"),
            "remove" => remove(document, self.path()?, "remove").map(drop),
            "replace" => self.replace(document),
            "move" => {
                let from = self.from()?;
                let path = self.path()?;
                let value = remove(document, from, "move")?;
                add(document, path, value, "move")
            }
            "copy" => {
                let from = self.from()?;
                let value = match find(document, from) {
                    Some(value) => value.clone(),
                    // As kube-apiserver: what an object does not have is null to who copies it.
                    None if split_last(from)
                        .and_then(|(parent, _)| find(document, parent))
                        .is_some_and(Value::is_object) =>
                    {
                        Value::Null
                    }
                    None => return Err(rejected("copy", from, "doc is missing from path")),
                };
                *copied += value.to_string().len();
                if *copied > MAX_COPIED_BYTES {
                    return Err(Error::Rejected(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                    )));
                }
                add(document, self.path()?, value, "copy")
            }
            "test" => self.test(document),
            unknown => Err(Error::Rejected(format!("Unexpected kind: {unknown}"))),
        }
    }

    fn path(&self) -> Result<&str, Error> {
        let path = self.path.map(pointer);
        path.ok_or_else(|| Error::Rejected(format!("{} operation failed to decode path", self.op)))
    }

    fn from(&self) -> Result<&str, Error> {
        let from = self.from.map(pointer);
        from.ok_or_else(|| Error::Rejected(format!("{} operation failed to decode from", self.op)))
    }

    fn replace(&self, document: &mut Value) -> Result<(), Error> {
        let path = self.path()?;
        let value = self.value.cloned().unwrap_or(Value::Null);
        let missing = || rejected("replace", path, "doc is missing key");
        // As kube-apiserver, and unlike the standard: a key that an object does not have is added.
        if let Some((parent, last)) = split_last(path)
            && let Some(Value::Object(entries)) = find_mut(document, parent)
        {
            entries.insert(last, value);
            return Ok(());
        }
        *find_mut(document, path).ok_or_else(missing)? = value;
        Ok(())
    }

    fn test(&self, document: &Value) -> Result<(), Error> {
        let path = self.path()?;
        let wanted = self.value.unwrap_or(&Value::Null);
        match find(document, path) {
            Some(present) if present == wanted => Ok(()),
            None if wanted.is_null() && parent_exists(document, path) => Ok(()),
            _ => Err(Error::Rejected(format!("testing value {path} failed: test failed"))),
        }
    }
}

fn rejected(op: &str, path: &str, why: &str) -> Error {
    Error::Rejected(format!("{op} operation does not apply: {why}: {path}"))
}

fn unescape(segment: &str) -> String {
    segment.replace("~1", "/").replace("~0", "~")
}

/// Returns a path from its first slash on: as kube-apiserver, what stands before it is passed over.
fn pointer(path: &str) -> &str {
    path.find('/').map_or(path, |slash| &path[slash..])
}

/// Splits `/a/b/c` into `/a/b` and `c`; the root has no parent.
fn split_last(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, unescape(last)))
}

fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    segments(path)?.try_fold(document, |place, segment| match place {
        Value::Object(entries) => entries.get(&unescape(segment)),
        Value::Array(items) => items.get(index(segment, items.len())?),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    segments(path)?.try_fold(document, |place, segment| match place {
        Value::Object(entries) => entries.get_mut(&unescape(segment)),
        Value::Array(items) => {
            let position = index(segment, items.len())?;
            items.get_mut(position)
        }
        _ => None,
    })
}

fn parent_exists(document: &Value, path: &str) -> bool {
    split_last(path).and_then(|(parent, _)| find(document, parent)).is_some()
}

/// The segments of a pointer; one that is neither empty nor starts with a slash is no pointer.
fn segments(path: &str) -> Option<impl Iterator<Item = &str>> {
    let body = if path.is_empty() { None } else { Some(path.strip_prefix('/')?) };
    Some(body.into_iter().flat_map(|body| body.split('/')))
}

/// An existing element: a number below the length, or a negative one counting from the end.
fn index(segment: &str, length: usize) -> Option<usize> {
    let number: i64 = segment.parse().ok()?;
    if segment.starts_with('+') {
        return None;
    }
    let number = if number < 0 { number + i64::try_from(length).ok()? } else { number };
    usize::try_from(number).ok().filter(|position| *position < length)
}

fn add(document: &mut Value, path: &str, value: Value, op: &str) -> Result<(), Error> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    let missing = || rejected(op, path, "doc is missing path");
    let (parent, last) = split_last(path).ok_or_else(missing)?;
    match find_mut(document, parent).ok_or_else(missing)? {
        Value::Object(entries) => {
            entries.insert(last, value);
            Ok(())
        }
        Value::Array(items) if last == "-" => {
            items.push(value);
            Ok(())
        }
        Value::Array(items) => {
            // Adding may also happen right behind the last element.
            let position = index(&last, items.len() + 1)
                .ok_or_else(|| rejected(op, path, "Unable to access invalid index"))?;
            items.insert(position, value);
            Ok(())
        }
        _ => Err(missing()),
    }
}

fn remove(document: &mut Value, path: &str, op: &str) -> Result<Value, Error> {
    let missing = || rejected(op, path, "Unable to remove nonexistent key");
    let (parent, last) = split_last(path).ok_or_else(missing)?;
    match find_mut(document, parent).ok_or_else(missing)? {
        Value::Object(entries) => entries.remove(&last).ok_or_else(missing),
        Value::Array(items) => {
            let position = index(&last, items.len()).ok_or_else(missing)?;
            Ok(items.remove(position))
        }
        _ => Err(missing()),
    }
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
}
