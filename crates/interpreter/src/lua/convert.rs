//! Values of scripts and JSON, both ways, with upstream's rules.
//!
//! Null is nil, which an array cannot hold, so it is left out. Lua knows one kind of table, so an empty one is a list
//! at first; [`repair`] looks at the objects that went in to find out whether it was meant to be an object.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::collections::HashSet;

use serde_json::{Map, Number, Value as Json};

use super::machine::{Machine, Ran};
use super::numbers;
use super::value::{Heap, TableId, Value};

/// Tables nested deeper than this are refused: whoever reads the result walks it recursively.
const DEPTH_MAX: usize = 200;

/// Returns a value of the machine for a value of JSON.
pub(super) fn from_json(machine: &mut Machine<'_>, json: &Json) -> Ran<Value> {
    from_json_at(machine, json, 0)
}

fn from_json_at(machine: &mut Machine<'_>, json: &Json, depth: usize) -> Ran<Value> {
    machine.spend(1)?;
    if depth > DEPTH_MAX {
        return Err(machine.raise("the object is nested too deep"));
    }
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or(0.0)),
        Json::String(text) => {
            machine.spend(text.len() / 16)?;
            machine.heap.text(text.as_bytes())?
        }
        Json::Array(items) => {
            let table = machine.heap.table()?;
            let mut place = 0_usize;
            for item in items {
                let value = from_json_at(machine, item, depth.saturating_add(1))?;
                if !value.is_nil() {
                    machine.heap.set_at(table, place, value)?;
                    place = place.saturating_add(1);
                }
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = machine.heap.table()?;
            for (name, field) in fields {
                let value = from_json_at(machine, field, depth.saturating_add(1))?;
                if !value.is_nil() {
                    let name = machine.heap.text(name.as_bytes())?;
                    machine.heap.set(table, name, value)?;
                }
            }
            Value::Table(table)
        }
    })
}

/// Returns the JSON of a table; the error is told in upstream's words.
pub(super) fn to_json(heap: &Heap, table: TableId) -> Result<Json, String> {
    let mut seen = HashSet::new();
    table_to_json(heap, table, &mut seen, 0)
}

fn table_to_json(
    heap: &Heap,
    id: TableId,
    seen: &mut HashSet<TableId>,
    depth: usize,
) -> Result<Json, String> {
    if !seen.insert(id) {
        return Err("cannot encode recursively nested tables to JSON".into());
    }
    if depth > DEPTH_MAX {
        return Err(format!("cannot encode tables nested more than {DEPTH_MAX} deep to JSON"));
    }
    let mut pairs = heap.at(id).pairs().peekable();
    match pairs.peek() {
        None => Ok(Json::Array(Vec::new())),
        Some((Value::Number(_), _)) => {
            let mut items = Vec::new();
            for (key, value) in pairs {
                let expected = items.len().saturating_add(1) as f64;
                match key {
                    Value::Number(place) if place == expected => {}
                    Value::Number(_) => return Err("cannot encode sparse array".into()),
                    _ => return Err("cannot encode mixed or invalid key types".into()),
                }
                items.push(value_to_json(heap, value, seen, depth)?);
            }
            Ok(Json::Array(items))
        }
        Some((Value::Text(_), _)) => {
            let mut fields = Map::new();
            for (key, value) in pairs {
                let Value::Text(name) = key else {
                    return Err("cannot encode mixed or invalid key types".into());
                };
                fields.insert(name.lossy(), value_to_json(heap, value, seen, depth)?);
            }
            Ok(Json::Object(fields))
        }
        Some(_) => Err("cannot encode mixed or invalid key types".into()),
    }
}

fn value_to_json(
    heap: &Heap,
    value: &Value,
    seen: &mut HashSet<TableId>,
    depth: usize,
) -> Result<Json, String> {
    match value {
        Value::Nil => Ok(Json::Null),
        Value::Boolean(value) => Ok(Json::Bool(*value)),
        Value::Number(number) => number_to_json(*number),
        Value::Text(text) => Ok(Json::String(text.lossy())),
        Value::Table(table) => table_to_json(heap, *table, seen, depth.saturating_add(1)),
        other => Err(format!("cannot encode {} to JSON", other.type_name())),
    }
}

fn number_to_json(number: f64) -> Result<Json, String> {
    if numbers::is_integer(number) {
        return Ok(Json::from(numbers::to_int(number)));
    }
    match Number::from_f64(number) {
        Some(number) => Ok(Json::Number(number)),
        None => Err(format!("json: unsupported value: {}", numbers::text(number))),
    }
}

/// Decides what the empty lists in `result` were meant to be: what the references have at the same path, places in
/// lists left aside; what no reference has is deleted.
pub(crate) fn repair(result: &mut Json, references: &[&Json]) {
    let mut known = Known::default();
    for reference in references {
        known.collect(reference, &mut Vec::new());
    }
    known.apply(result, &mut Vec::new());
}

#[derive(Default)]
struct Known {
    objects: HashSet<Vec<String>>,
    lists: HashSet<Vec<String>>,
}

impl Known {
    fn collect(&mut self, json: &Json, path: &mut Vec<String>) {
        match json {
            Json::Object(fields) if fields.is_empty() => {
                self.objects.insert(path.clone());
            }
            Json::Array(items) if items.is_empty() => {
                self.lists.insert(path.clone());
            }
            Json::Object(fields) => {
                for (name, field) in fields {
                    path.push(name.clone());
                    self.collect(field, path);
                    path.pop();
                }
            }
            Json::Array(items) => items.iter().for_each(|item| self.collect(item, path)),
            _ => {}
        }
    }

    fn apply(&self, json: &mut Json, path: &mut Vec<String>) {
        match json {
            Json::Object(fields) => {
                fields.retain(|name, field| {
                    path.push(name.clone());
                    let keep = self.keep(field, path);
                    path.pop();
                    keep
                });
            }
            Json::Array(items) => items.retain_mut(|item| self.keep(item, path)),
            _ => {}
        }
    }

    fn keep(&self, json: &mut Json, path: &mut Vec<String>) -> bool {
        if !matches!(json, Json::Array(items) if items.is_empty()) {
            self.apply(json, path);
            return true;
        }
        if self.objects.contains(path) {
            *json = Json::Object(Map::new());
            return true;
        }
        self.lists.contains(path)
    }
}
