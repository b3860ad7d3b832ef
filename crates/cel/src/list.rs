//! Lists, and what their order means: a schema may say that a list is a set, or a map by the keys of its items.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::schema::escape;
use crate::value::{Key, Value};

/// A list of values.
#[derive(Debug, Clone, Default)]
pub struct List {
    items: Vec<Value>,
    order: Order,
}

/// What makes two lists equal.
#[derive(Debug, Clone, Default)]
enum Order {
    /// The same items in the same order.
    #[default]
    Given,
    /// The same items.
    Set,
    /// The same items, which are recognised by these fields.
    Keys(Arc<[Arc<str>]>),
}

impl Deref for List {
    type Target = Vec<Value>;

    fn deref(&self) -> &Self::Target {
        &self.items
    }
}

impl DerefMut for List {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.items
    }
}

impl From<Vec<Value>> for List {
    fn from(items: Vec<Value>) -> Self {
        Self { items, order: Order::Given }
    }
}

/// By what an item is recognised.
type Mark = Vec<Option<Key>>;

impl List {
    /// Returns a list of the type that a schema says.
    pub(crate) fn of_schema(items: Vec<Value>, schema: &Json) -> Self {
        let order = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Order::Set,
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
                let names = keys.filter_map(Json::as_str);
                Order::Keys(
                    names.map(|name| escape(name).unwrap_or_else(|| name.to_owned()).into()).collect(),
                )
            }
            _ => Order::Given,
        };
        Self { items, order }
    }

    /// Says whether another list is equal; this one decides by what.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        match &self.order {
            Order::Given => self.iter().zip(other.iter()).all(|(a, b)| a.equals(b)),
            Order::Set => {
                let known: BTreeSet<Option<Key>> = self.iter().map(Key::of).collect();
                other.iter().all(|item| known.contains(&Key::of(item)))
            }
            Order::Keys(keys) => {
                let known: BTreeMap<Mark, &Value> =
                    self.iter().map(|item| (mark(item, keys), item)).collect();
                other.iter().all(|item| known.get(&mark(item, keys)).is_some_and(|own| own.equals(item)))
            }
        }
    }

    /// Returns the list with the items of another one added: sets get what they do not have, maps replace what they do.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        match &self.order {
            Order::Given => sum.items.extend(other.iter().cloned()),
            Order::Set => {
                let mut known: BTreeSet<Option<Key>> = self.iter().map(Key::of).collect();
                sum.items.extend(other.iter().filter(|item| known.insert(Key::of(item))).cloned());
            }
            Order::Keys(keys) => {
                let places: BTreeMap<Mark, usize> =
                    self.iter().enumerate().map(|(at, item)| (mark(item, keys), at)).collect();
                for item in other.iter() {
                    match places.get(&mark(item, keys)) {
                        Some(at) => sum.items[*at] = item.clone(),
                        None => sum.items.push(item.clone()),
                    }
                }
            }
        }
        sum
    }
}

fn mark(item: &Value, keys: &[Arc<str>]) -> Mark {
    let Value::Map(fields) = item else { return Vec::new() };
    keys.iter().map(|key| fields.get(&Key::String(key.clone())).and_then(Key::of)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::from_json;

    fn list(items: Json, schema: Json) -> List {
        let Value::List(list) = from_json(&items) else { panic!("a list") };
        List::of_schema(list.to_vec(), &schema)
    }

    #[test]
    fn sets_and_maps_do_not_care_about_order() {
        let set = json!({"x-kubernetes-list-type": "set"});
        assert!(list(json!([1, 2]), set.clone()).equals(&list(json!([2, 1]), json!({}))));
        assert!(!list(json!([1, 2]), json!({})).equals(&list(json!([2, 1]), set.clone())));
        assert_eq!(list(json!([1, 2]), set).plus(&list(json!([2, 3]), json!({}))).len(), 3);
        let map = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
        let (a, b) = (json!([{"k": 1, "v": 1}, {"k": 2}]), json!([{"k": 2}, {"k": 1, "v": 1}]));
        assert!(list(a.clone(), map.clone()).equals(&list(b, json!({}))));
        let sum = list(a, map).plus(&list(json!([{"k": 1, "v": 5}, {"k": 3}]), json!({})));
        assert!(sum.equals(&list(json!([{"k": 1, "v": 5}, {"k": 2}, {"k": 3}]), json!({}))));
    }
}
