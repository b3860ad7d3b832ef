//! Reading trees by JSON pointer, with Go's zero values for what is absent or of another type.

use serde_json::Value;

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// Returns a number, `None` where none is: zero often means something else than nothing.
pub fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

pub fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
}

pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_absent_or_of_another_type_is_nothing() {
        let value = json!({"a": {"text": "x", "number": 3, "flag": true, "list": [1]}});
        assert_eq!((text(&value, "/a/text"), text(&value, "/a/number"), text(&value, "/b/c")), ("x", "", ""));
        assert_eq!((number(&value, "/a/number"), number(&value, "/a/text")), (Some(3), None));
        assert!(flag(&value, "/a/flag") && !flag(&value, "/a/text"));
        assert_eq!((list(&value, "/a/list").len(), list(&value, "/a/text").len()), (1, 0));
    }
}
