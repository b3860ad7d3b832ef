//! The `fieldPath` of a rule: where below the rule's own place a fault is reported.

use serde_json::Value;

use crate::field::Path;

/// Returns `.a['b'].c` as messages write it: names of fields after dots, keys of maps in brackets. `None` for what does not lead to a
/// field of the schema.
pub fn rule_path(given: &str, schema: &Value) -> Option<String> {
    let (mut rest, mut schema) = (given, schema);
    let mut path = Path::default();
    while !rest.is_empty() {
        let name = if let Some(after) = rest.strip_prefix("['") {
            let (name, after) = after.split_once("']")?;
            rest = after;
            name.replace("\\'", "'")
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            rest = &after[end..];
            after[..end].to_owned()
        };
        schema = if let Some(properties) = schema["properties"].as_object() {
            path = path.child(&name);
            properties.get(&name)?
        } else {
            path = path.key(&name);
            schema.get("additionalProperties")?
        };
    }
    Some(path.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_below_a_rule_is_written_as_messages_write_it() {
        let schema = json!({"properties": {"a": {"additionalProperties": {"properties": {"b-c": {}}}}}});
        assert_eq!(rule_path(".a['x'].b-c", &schema).as_deref(), Some("a[x].b-c"));
        assert_eq!(rule_path("['a'].x['b-c']", &schema).as_deref(), Some("a[x].b-c"));
        for wrong in [".nowhere", "a", " ", ".a[x]"] {
            assert_eq!(rule_path(wrong, &schema), None, "{wrong}");
        }
    }
}
