//! Which value of an older object is the past of which value of a newer one, and whether it has stayed the same.
//!
//! Fields have the past of their name, items of lists of type map that of their keys. Items of other lists have none, and count
//! as unchanged if the whole list is. What no schema describes counts as changed.

use serde_json::Value;

/// A place in an object on its way from an older to a newer version.
#[derive(Debug, Clone)]
pub(super) struct Correlation<'a> {
    /// Known here, unless this place has no past.
    here: Option<Pair<'a>>,
    /// The nearest place above that has a past.
    above: Option<Pair<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    schema: &'a Value,
    new: &'a Value,
    old: &'a Value,
}

impl<'a> Correlation<'a> {
    /// The whole object. One that is new has no past anywhere.
    pub(super) fn root(schema: &'a Value, new: &'a Value, old: Option<&'a Value>) -> Self {
        Self { here: old.map(|old| Pair { schema, new, old }), above: None }
    }

    /// A field, or an entry of a map.
    pub(super) fn key(&self, name: &str) -> Self {
        match self.here {
            None => self.clone(),
            // Both objects have been brought to the same version and kind.
            Some(_) if self.above.is_none() && matches!(name, "apiVersion" | "kind") => {
                Self { here: None, above: None }
            }
            Some(here) => Self { here: here.key(name), above: Some(here) },
        }
    }

    /// An item of a list.
    pub(super) fn index(&self, index: usize) -> Self {
        match self.here {
            None => self.clone(),
            Some(here) => Self { here: here.index(index), above: Some(here) },
        }
    }

    /// Says whether the value here, or what it is a part of, is as it was.
    pub(super) fn is_unchanged(&self) -> bool {
        self.here.or(self.above).is_some_and(Pair::is_unchanged)
    }
}

impl<'a> Pair<'a> {
    fn key(self, name: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        let property = self.schema.get("properties").and_then(|properties| properties.get(name));
        let additional = || self.schema.get("additionalProperties").filter(|schema| schema.is_object());
        Some(Self { schema: property.or_else(additional)?, new, old })
    }

    fn index(self, index: usize) -> Option<Self> {
        let new = self.new.as_array()?.get(index)?;
        let old = counterpart(self.schema, new, self.old)?;
        Some(Self { schema: self.schema.get("items")?, new, old })
    }

    fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new.keys().all(|name| self.key(name).is_some_and(Self::is_unchanged))
            }
            (Value::Array(new), Value::Array(old)) if is_map(self.schema) => {
                new.len() == old.len()
                    && (0..new.len()).all(|index| self.index(index).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

fn is_map(schema: &Value) -> bool {
    schema["x-kubernetes-list-type"] == "map"
}

/// Returns the item of an older list that has the keys of a newer one.
pub(super) fn counterpart<'a>(schema: &Value, item: &Value, old: &'a Value) -> Option<&'a Value> {
    let keys = schema.get("x-kubernetes-list-map-keys").filter(|_| is_map(schema))?.as_array()?;
    let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
    let scalar = |value: &&Value| !value.is_null() && !value.is_array() && !value.is_object();
    let key_of = |item: &'a Value, key: &str| item.get(key).filter(scalar);
    if keys.is_empty() || keys.iter().any(|key| item.get(key).filter(scalar).is_none()) {
        return None;
    }
    old.as_array()?.iter().find(|known| keys.iter().all(|key| key_of(known, key) == item.get(key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"properties": {"a": {"properties": {"b": {}}}, "free": {},
            "list": {"items": {"properties": {"k": {}, "v": {}}}},
            "map": {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"properties": {"k": {}, "v": {}}}}}})
    }

    fn unchanged(new: &Value, old: &Value, path: &[&str]) -> bool {
        let schema = schema();
        let mut at = Correlation::root(&schema, new, Some(old));
        for step in path {
            at = match step.parse() {
                Ok(index) => at.index(index),
                Err(_) => at.key(step),
            };
        }
        at.is_unchanged()
    }

    #[test]
    fn fields_and_entries_are_known_by_their_names() {
        let (old, new) = (json!({"a": {"b": 1}, "free": 1}), json!({"a": {"b": 1}, "free": 2}));
        assert!(unchanged(&new, &old, &["a"]) && unchanged(&new, &old, &["a", "b"]));
        assert!(!unchanged(&new, &old, &["free"]) && !unchanged(&new, &old, &[]));
        // What the schema does not know cannot be compared.
        let odd = json!({"a": {"b": 1, "c": 1}});
        assert!(!unchanged(&odd, &odd, &["a"]) && unchanged(&odd, &odd, &["a", "b"]));
        assert!(!unchanged(&odd, &odd, &["a", "c"]));
    }

    #[test]
    fn items_are_known_by_their_keys_or_not_at_all() {
        let old = json!({"map": [{"k": "x", "v": 1}, {"k": "y", "v": 2}], "list": [{"k": "x", "v": 1}]});
        let turned = json!({"map": [{"k": "y", "v": 2}, {"k": "x", "v": 1}], "list": [{"k": "x", "v": 1}]});
        assert!(unchanged(&turned, &old, &["map"]) && unchanged(&turned, &old, &["map", "0", "v"]));
        assert!(unchanged(&turned, &old, &["list", "0", "v"]), "the whole list is the same");
        let more = json!({"list": [{"k": "x", "v": 1}, {"k": "y", "v": 1}]});
        assert!(!unchanged(&more, &old, &["list", "0", "v"]));
        assert_eq!(counterpart(&schema()["properties"]["map"], &json!({"v": 1}), &old["map"]), None);
    }

    #[test]
    fn a_new_object_has_no_past() {
        let (schema, new) = (schema(), json!({"a": {"b": 1}}));
        assert!(!Correlation::root(&schema, &new, None).key("a").is_unchanged());
    }
}
