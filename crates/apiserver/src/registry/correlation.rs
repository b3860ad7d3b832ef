//! Finds the old value for each value of a changed object, and whether it is unchanged.
//!
//! A field corresponds to the old field of the same name, an item of a list of type map to the old item with the same keys. Items
//! of other lists correspond to nothing, and count as unchanged if the whole list is. Values without a schema count as changed.

use std::collections::HashMap;

use serde_json::Value;

/// A place in an object, in its old and its new version.
#[derive(Debug, Clone)]
pub(super) struct Correlation<'a> {
    /// Known, unless this place has no old value.
    here: Option<Pair<'a>>,
    /// The nearest place above with an old value.
    above: Option<Pair<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct Pair<'a> {
    schema: &'a Value,
    new: &'a Value,
    old: &'a Value,
}

impl<'a> Correlation<'a> {
    /// The whole object. A new object has no old values at all.
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

    /// The items of a list.
    pub(super) fn items(&self) -> Items<'a> {
        let past = self.here.and_then(|here| Counterparts::of(here.schema, here.old));
        Items { list: self.clone(), past }
    }

    /// Returns whether the value here, or the value that contains it, is unchanged.
    pub(super) fn is_unchanged(&self) -> bool {
        self.here.or(self.above).is_some_and(Pair::is_unchanged)
    }
}

/// The items of a list, in its old and its new version.
pub(super) struct Items<'a> {
    list: Correlation<'a>,
    past: Option<Counterparts<'a>>,
}

impl<'a> Items<'a> {
    pub(super) fn index(&self, index: usize) -> Correlation<'a> {
        match self.list.here {
            None => self.list.clone(),
            Some(here) => Correlation { here: here.item(index, self.past.as_ref()), above: Some(here) },
        }
    }
}

impl<'a> Pair<'a> {
    fn key(self, name: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?.get(name)?, self.old.as_object()?.get(name)?);
        let property = self.schema.get("properties").and_then(|properties| properties.get(name));
        let additional = || self.schema.get("additionalProperties").filter(|schema| schema.is_object());
        Some(Self { schema: property.or_else(additional)?, new, old })
    }

    fn item(self, index: usize, past: Option<&Counterparts<'a>>) -> Option<Self> {
        let new = self.new.as_array()?.get(index)?;
        let old = past?.find(new)?;
        Some(Self { schema: self.schema.get("items")?, new, old })
    }

    fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new.keys().all(|name| self.key(name).is_some_and(Self::is_unchanged))
            }
            (Value::Array(new), Value::Array(old)) if is_map(self.schema) => {
                if new.len() != old.len() {
                    return false;
                }
                let past = Counterparts::of(self.schema, self.old);
                (0..new.len()).all(|index| self.item(index, past.as_ref()).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

fn is_map(schema: &Value) -> bool {
    schema["x-kubernetes-list-type"] == "map"
}

/// The items of an old list of type map, by their keys. A linear search for each item of the new list would take minutes for
/// lists that fit into an object.
pub(super) struct Counterparts<'a> {
    keys: Vec<&'a str>,
    items: HashMap<Vec<&'a Value>, &'a Value>,
}

impl<'a> Counterparts<'a> {
    /// Reads an old list; `None` if its items cannot be distinguished.
    pub(super) fn of(schema: &'a Value, old: &'a Value) -> Option<Self> {
        let keys = schema.get("x-kubernetes-list-map-keys").filter(|_| is_map(schema))?.as_array()?;
        let keys: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
        if keys.is_empty() {
            return None;
        }
        let mut items = HashMap::new();
        for item in old.as_array()? {
            if let Some(identity) = identity(&keys, item) {
                items.entry(identity).or_insert(item);
            }
        }
        Some(Self { keys, items })
    }

    /// Returns the item with the same keys as a new one.
    pub(super) fn find(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&identity(&self.keys, item)?).copied()
    }
}

/// Returns the values of the keys, if the item has all of them.
fn identity<'a>(keys: &[&str], item: &'a Value) -> Option<Vec<&'a Value>> {
    let scalar = |value: &&Value| !value.is_null() && !value.is_array() && !value.is_object();
    keys.iter().map(|key| item.get(key).filter(scalar)).collect()
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
                Ok(index) => at.items().index(index),
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
        // Fields outside the schema cannot be compared.
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
        let schema = schema();
        let known = Counterparts::of(&schema["properties"]["map"], &old["map"]).expect("a list of type map");
        assert_eq!(known.find(&json!({"v": 1})), None);
        assert_eq!(known.find(&json!({"k": "y"})), Some(&json!({"k": "y", "v": 2})));
    }

    #[test]
    fn a_new_object_has_no_past() {
        let (schema, new) = (schema(), json!({"a": {"b": 1}}));
        assert!(!Correlation::root(&schema, &new, None).key("a").is_unchanged());
    }
}
