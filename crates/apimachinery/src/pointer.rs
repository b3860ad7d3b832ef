//! Reading trees by JSON pointer, with Go's zero values for what is absent or of another type; and writing fields of whatever is
//! there, without a panic if that is not an object.

use serde_json::{Map, Value};

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The same for whoever keeps it.
pub fn owned(value: &Value, pointer: &str) -> String {
    text(value, pointer).to_owned()
}

/// Returns the texts in a list; what is none is passed over.
pub fn texts(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
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

/// Sets a field. Anything but an object becomes one.
pub fn set(value: &mut Value, field: &str, content: Value) {
    fields(value).insert(field.to_owned(), content);
}

/// Returns the object in a field. Anything but an object becomes one.
pub fn object_at<'a>(value: &'a mut Value, field: &str) -> &'a mut Value {
    let found = fields(value).entry(field).or_insert(Value::Null);
    fields(found);
    found
}

fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let Value::Object(fields) = value else { unreachable!("it was made an object") };
    fields
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_absent_or_of_another_type_is_nothing() {
        let value = json!({"a": {"text": "x", "number": 3, "flag": true, "list": [1]}});
        assert_eq!((text(&value, "/a/text"), text(&value, "/a/number"), text(&value, "/b/c")), ("x", "", ""));
        assert_eq!(owned(&value, "/a/text"), "x");
        assert_eq!(texts(&json!(["x", 1, "y"]), ""), ["x", "y"]);
        assert_eq!((number(&value, "/a/number"), number(&value, "/a/text")), (Some(3), None));
        assert!(flag(&value, "/a/flag") && !flag(&value, "/a/text"));
        assert_eq!((list(&value, "/a/list").len(), list(&value, "/a/text").len()), (1, 0));
    }

    #[test]
    fn fields_are_set_whatever_was_there() {
        let mut value = json!({"status": null, "spec": 3, "a": {"b": 1}});
        for field in ["status", "spec", "a", "new"] {
            set(object_at(&mut value, field), "x", json!(2));
        }
        assert_eq!(
            value,
            json!({"status": {"x": 2}, "spec": {"x": 2}, "a": {"b": 1, "x": 2}, "new": {"x": 2}})
        );
        let mut text = json!("text");
        set(&mut text, "x", json!(1));
        assert_eq!(text, json!({"x": 1}));
    }
}
