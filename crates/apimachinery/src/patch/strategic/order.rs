//! The order of merged lists.
//!
//! Items named by the patch and items that only the server has are sorted by their own orders and then woven
//! together: a server item goes before the first named item that stood behind it in the live list.
//! `[a b c d]` with `$setElementOrder [d a]` gives `[d a b c]`… but `[b d a c]` never: the relative order of each
//! side always wins over the live list.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{DIRECTIVE, Error};

/// What identifies an element: its merge key's value, or the scalar itself.
fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) if item.is_object() => item.get(key),
        _ => Some(item),
    }
}

/// Where each element of a list stands first. Looking for every element of one list in another would take hours for lists that
/// fit into a patch.
struct Places<'a> {
    places: HashMap<Option<&'a Value>, usize>,
    key: Option<&'a str>,
}

impl<'a> Places<'a> {
    fn of(list: &'a [Value], key: Option<&'a str>) -> Self {
        let mut places = HashMap::with_capacity(list.len());
        for (place, item) in list.iter().enumerate() {
            places.entry(identity(item, key)).or_insert(place);
        }
        Self { places, key }
    }

    fn place(&self, item: &Value) -> Option<usize> {
        self.places.get(&identity(item, self.key)).copied()
    }
}

/// Returns the scalars of two lists, each once.
pub(super) fn united(one: &[Value], other: &[Value]) -> Vec<Value> {
    let mut seen: HashSet<&Value> = HashSet::with_capacity(one.len().saturating_add(other.len()));
    one.iter().chain(other).filter(|item| seen.insert(*item)).cloned().collect()
}

/// Splits the items into those that the list names and the others.
pub(super) fn partition(
    items: Vec<Value>,
    names: &[Value],
    key: Option<&str>,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    if let Some(key) = key {
        for item in &items {
            check_key(item, key)?;
        }
    }
    let names = Places::of(names, key);
    Ok(items.into_iter().partition(|item| names.place(item).is_some()))
}

fn check_key(item: &Value, key: &str) -> Result<(), Error> {
    match item {
        Value::Object(entries) if entries.contains_key(key) => Ok(()),
        Value::Object(entries) => Err(Error::no_merge_key(entries, key)),
        other => Err(Error::bad_type("map[string]interface {}", other)),
    }
}

/// Returns the final list: `named` in the order of `wanted`, `others` in the order of `server`, woven together.
pub(super) fn arrange(
    mut named: Vec<Value>,
    mut others: Vec<Value>,
    wanted: &[Value],
    server: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Error> {
    if let Some(key) = key {
        for item in wanted.iter().chain(server) {
            check_key(item, key)?;
        }
    }
    let (wanted, server) = (Places::of(wanted, key), Places::of(server, key));
    named.sort_by_cached_key(|item| wanted.place(item));
    others.sort_by_cached_key(|item| server.place(item));
    let mut woven = Vec::with_capacity(named.len().saturating_add(others.len()));
    let mut named = named.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    loop {
        match (others.peek(), named.peek()) {
            (Some(other), Some(name)) => {
                let before = match (server.place(other), server.place(name)) {
                    (Some(other), Some(name)) => other < name,
                    _ => false,
                };
                woven.extend(if before { others.next() } else { named.next() });
            }
            (Some(_), None) => woven.extend(others.next()),
            (None, Some(_)) => woven.extend(named.next()),
            (None, None) => return Ok(woven),
        }
    }
}

/// The patch's items must stand in the order that the directive gives, deletions aside.
pub(super) fn check_subsequence(patch: &[Value], wanted: &[Value], key: Option<&str>) -> Result<(), Error> {
    if patch.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let mut rest = wanted.iter();
    for item in patch {
        if item.get(DIRECTIVE).is_some() {
            continue;
        }
        if let Some(key) = key {
            check_key(item, key)?;
        }
        loop {
            let Some(candidate) = rest.next() else {
                return Err(Error::Other(format!(
                    "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                    crate::go::verbose(&Value::Array(patch.to_vec())),
                    crate::go::verbose(&Value::Array(wanted.to_vec())),
                )));
            };
            if let Some(key) = key {
                check_key(candidate, key)?;
            }
            if identity(candidate, key) == identity(item, key) {
                break;
            }
        }
    }
    Ok(())
}
