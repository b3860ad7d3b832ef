//! Values of scripts and JSON, both ways, with upstream's rules.
//!
//! Null is nil, which an array cannot hold, so it is left out. Lua knows one kind of table, so an empty one is a list
//! at first; [`repair`] looks at the objects that went in to find out whether it was meant to be an object.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Number, Value as Json};

use super::Throw;
use super::machine::{Machine, Ran};
use super::numbers;
use super::value::{Heap, TableId, Text, Value};

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
            let mut place = 0;
            for item in items {
                let value = from_json_at(machine, item, depth + 1)?;
                if !value.is_nil() {
                    machine.heap.set_at(table, place, value)?;
                    place += 1;
                }
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = machine.heap.table()?;
            for (name, field) in fields {
                let value = from_json_at(machine, field, depth + 1)?;
                if !value.is_nil() {
                    let name = machine.heap.text(name.as_bytes())?;
                    machine.heap.set(table, name, value)?;
                }
            }
            Value::Table(table)
        }
    })
}

/// The JSON of a table and how much memory was charged for it; or, in upstream's words, why there is none.
pub(super) type Encoded = Result<(Json, usize), String>;

/// Returns the JSON of a table.
///
/// A script may put one long text into a table many times. JSON has a copy for each, so every copy is charged like
/// memory of the script, before it is made. The one who drops the JSON while the script still runs gives the charge
/// back with [`Heap::release`].
pub(super) fn to_json(machine: &mut Machine<'_>, table: TableId) -> Ran<Encoded> {
    let mut encoder = Encoder { heap: &machine.heap, seen: HashSet::new(), charged: 0 };
    let outcome = encoder.table(table, 0);
    let charged = encoder.charged;
    machine.spend(charged / 64)?;
    match outcome {
        Ok(json) => Ok(Ok((json, charged))),
        Err(Refused::Why(why)) => {
            machine.heap.release(charged);
            Ok(Err(why))
        }
        Err(Refused::Throw(throw)) => Err(throw),
    }
}

/// Why a value has no JSON.
enum Refused {
    Why(String),
    Throw(Throw),
}

impl From<Throw> for Refused {
    fn from(throw: Throw) -> Self {
        Self::Throw(throw)
    }
}

struct Encoder<'h> {
    heap: &'h Heap,
    seen: HashSet<TableId>,
    charged: usize,
}

impl Encoder<'_> {
    fn table(&mut self, id: TableId, depth: usize) -> Result<Json, Refused> {
        let why = |why: &str| Err(Refused::Why(why.to_owned()));
        if !self.seen.insert(id) {
            return why("cannot encode recursively nested tables to JSON");
        }
        if depth > DEPTH_MAX {
            return why(&format!("cannot encode tables nested more than {DEPTH_MAX} deep to JSON"));
        }
        let heap = self.heap;
        let mut pairs = heap.at(id).pairs().peekable();
        match pairs.peek() {
            None => Ok(Json::Array(Vec::new())),
            Some((Value::Number(_), _)) => {
                let mut items = Vec::new();
                for (key, value) in pairs {
                    let expected = (items.len() + 1) as f64;
                    match key {
                        Value::Number(place) if place == expected => {}
                        Value::Number(_) => return why("cannot encode sparse array"),
                        _ => return why("cannot encode mixed or invalid key types"),
                    }
                    items.push(self.value(value, depth)?);
                }
                Ok(Json::Array(items))
            }
            Some((Value::Text(_), _)) => {
                let mut fields = Map::new();
                for (key, value) in pairs {
                    let Value::Text(name) = key else {
                        return why("cannot encode mixed or invalid key types");
                    };
                    let name = self.text(&name)?;
                    fields.insert(name, self.value(value, depth)?);
                }
                Ok(Json::Object(fields))
            }
            Some(_) => why("cannot encode mixed or invalid key types"),
        }
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<Json, Refused> {
        // A list has room for as many again.
        self.charge(2 * size_of::<Json>())?;
        match value {
            Value::Nil => Ok(Json::Null),
            Value::Boolean(value) => Ok(Json::Bool(*value)),
            Value::Number(number) => number_to_json(*number).map_err(Refused::Why),
            Value::Text(text) => Ok(Json::String(self.text(text)?)),
            Value::Table(table) => self.table(*table, depth + 1),
            other => Err(Refused::Why(format!("cannot encode {} to JSON", other.type_name()))),
        }
    }

    fn text(&mut self, text: &Text) -> Result<String, Throw> {
        // Each byte that is not UTF-8 becomes a character of three.
        let bytes = text.bytes().len() * if std::str::from_utf8(text.bytes()).is_ok() { 1 } else { 3 };
        self.charge(bytes + size_of::<String>())?;
        Ok(text.lossy())
    }

    fn charge(&mut self, bytes: usize) -> Result<(), Throw> {
        self.heap.charge(bytes)?;
        self.charged += bytes;
        Ok(())
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
        known.collect(reference);
    }
    apply(result, Some(&known));
}

/// What the references have at a path. A tree, so that finding a field costs its own name and not its whole path.
#[derive(Default)]
struct Known<'a> {
    object: bool,
    list: bool,
    fields: HashMap<&'a str, Known<'a>>,
}

impl<'a> Known<'a> {
    fn collect(&mut self, json: &'a Json) {
        match json {
            Json::Object(fields) => {
                self.object |= fields.is_empty();
                for (name, field) in fields {
                    self.fields.entry(name).or_default().collect(field);
                }
            }
            Json::Array(items) => {
                self.list |= items.is_empty();
                items.iter().for_each(|item| self.collect(item));
            }
            _ => {}
        }
    }
}

fn apply(json: &mut Json, known: Option<&Known<'_>>) {
    match json {
        Json::Object(fields) => fields.retain(|name, field| {
            let known = known.and_then(|known| known.fields.get(name.as_str()));
            keep(field, known)
        }),
        Json::Array(items) => items.retain_mut(|item| keep(item, known)),
        _ => {}
    }
}

fn keep(json: &mut Json, known: Option<&Known<'_>>) -> bool {
    if !matches!(json, Json::Array(items) if items.is_empty()) {
        apply(json, known);
        return true;
    }
    if known.is_some_and(|known| known.object) {
        *json = Json::Object(Map::new());
        return true;
    }
    known.is_some_and(|known| known.list)
}
