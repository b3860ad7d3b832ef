//! Counts what an evaluation really costs.
//!
//! As cel-go's tracker it keeps the values that nodes have come to on a stack of its own, and finds the arguments of a call there
//! by the numbers of their nodes: a call whose arguments were not all evaluated costs nothing. What it costs then depends on the
//! sizes of the values; the numbers are kube-apiserver's.

use crate::ast::Id;
use crate::calls::{CHARACTER, CHECK, COMPARISONS, PATTERN, STEPS};
use crate::functions::formats;
use crate::value::Value;

#[derive(Debug)]
pub(crate) struct Tracker {
    pub(crate) cost: u64,
    limit: u64,
    /// Values by node; `None` for errors.
    stack: Vec<(Id, Option<Value>)>,
    /// Where the values of a node stand on the stack, the last one last: loops leave much there that nobody asks for again.
    places: Vec<Vec<usize>>,
}

/// The limit is exceeded: everything ends here.
pub(crate) struct Exceeded;

impl Tracker {
    pub(crate) fn new(limit: u64) -> Self {
        Self { cost: 0, limit, stack: Vec::new(), places: Vec::new() }
    }

    pub(crate) fn spend(&mut self, cost: u64) {
        self.cost = self.cost.wrapping_add(cost);
    }

    /// Takes back what was counted for a test that costs nothing.
    pub(crate) fn refund(&mut self) {
        self.cost = self.cost.wrapping_sub(1);
    }

    /// Notes the value of a node, after its cost was counted.
    pub(crate) fn push(&mut self, id: Id, value: Option<&Value>) -> Result<(), Exceeded> {
        if self.places.len() <= id {
            self.places.resize_with(id + 1, Vec::new);
        }
        self.places[id].push(self.stack.len());
        self.stack.push((id, value.cloned()));
        if self.cost > self.limit { Err(Exceeded) } else { Ok(()) }
    }

    /// Forgets the last value of a node, and everything after it.
    pub(crate) fn drop(&mut self, id: Id) {
        self.pop(id);
    }

    /// Takes the last value of a node, and forgets everything after it.
    fn pop(&mut self, id: Id) -> Option<Option<Value>> {
        let at = *self.places.get(id)?.last()?;
        let mut found = None;
        while self.stack.len() > at
            && let Some((id, value)) = self.stack.pop()
        {
            self.places[id].pop();
            found = Some(value);
        }
        found
    }

    /// Takes the values of arguments; `None` if one of them was not evaluated.
    pub(crate) fn take(&mut self, ids: impl DoubleEndedIterator<Item = Id>) -> Option<Vec<Option<Value>>> {
        let mut values = Vec::new();
        for id in ids.rev() {
            values.push(self.pop(id)?);
        }
        values.reverse();
        Some(values)
    }
}

/// Returns what a call has cost.
pub(crate) fn cost(function: &str, overload: &str, args: &[Option<Value>], result: Option<&Value>) -> u64 {
    lists(overload, args, result)
        .or_else(|| library(function, overload, args, result))
        .unwrap_or_else(|| language(overload, args))
}

/// Returns the size of a value: what has none counts as one.
fn size(value: Option<&Value>) -> u64 {
    match value {
        Some(Value::String(text)) => text.chars().count() as u64,
        Some(Value::Bytes(bytes)) => bytes.len() as u64,
        Some(Value::List(list)) => list.len() as u64,
        Some(Value::Map(map)) => map.len() as u64,
        Some(Value::Ip(ip)) => {
            if ip.is_ipv4() {
                4
            } else {
                16
            }
        }
        Some(Value::Cidr(cidr)) => u64::from(cidr.prefix_len()).div_ceil(8),
        _ => 1,
    }
}

fn at(args: &[Option<Value>], index: usize) -> u64 {
    size(args.get(index).and_then(Option::as_ref))
}

fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

fn pattern(text: u64, pattern: u64) -> u64 {
    let text = ((1.0 + text as f64) * CHARACTER).ceil() as u64;
    text.wrapping_mul(scaled(pattern, PATTERN))
}

fn lists(overload: &str, args: &[Option<Value>], result: Option<&Value>) -> Option<u64> {
    // A depth below zero is an enormous one, for a moment.
    let made = |factor: f64, size: u64| {
        let cost = size as f64 * factor;
        Some((if cost < 0.0 { cost as i64 as u64 } else { cost as u64 }).wrapping_add(11))
    };
    let compared = |list: Option<&Value>| {
        let count = size(list);
        let first = if let Some(Value::List(list)) = list { list.first() } else { None };
        let factor = if matches!(first, Some(Value::String(_) | Value::Bytes(_))) { 2.1 } else { 2.0 };
        made(factor, count.wrapping_mul(count))
    };
    let arg = |index: usize| args.get(index).and_then(Option::as_ref);
    match overload {
        "list_slice" | "lists_range" | "list_reverse" => made(1.0, size(result)),
        "list_flatten" => made(1.0, at(args, 0)),
        "list_flatten_int" => {
            let depth = if let Some(Value::Int(depth)) = arg(1) { *depth as f64 } else { 1.0 };
            made(depth, at(args, 0))
        }
        "list_distinct" => compared(arg(0)),
        "list_sets_contains_list" | "list_sets_intersects_list" => {
            Some(at(args, 0).wrapping_mul(at(args, 1)).wrapping_add(1))
        }
        "list_sets_equivalent_list" => {
            Some(at(args, 0).wrapping_mul(at(args, 1)).wrapping_mul(2).wrapping_add(1))
        }
        _ if overload.ends_with("_sort") => compared(arg(0)),
        _ if overload.ends_with("_sortByAssociatedKeys") => compared(arg(1)),
        _ => None,
    }
}

fn library(function: &str, overload: &str, args: &[Option<Value>], result: Option<&Value>) -> Option<u64> {
    let walk = |index: usize, factor: f64| Some(scaled(at(args, index), factor));
    match function {
        "check" => Some(CHECK),
        "fieldSelector" | "labelSelector" if args.len() > 1 => {
            let length = at(args, 1);
            Some(10 + scaled(length, CHARACTER) + scaled(scaled(length, 0.5), 50.0))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            Some(args.first().map_or(0, |value| value.as_ref().map_or(1, traversal)))
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => walk(0, CHARACTER),
        "ip" if overload == "cidr_ip" => Some(1),
        "ip" => walk(0, CHARACTER),
        "replace" | "split" | "ip.isCanonical" => walk(0, 2.0 * CHARACTER),
        "join" => Some(scaled(size(result), 2.0 * CHARACTER)),
        "find" | "findAll" if args.len() > 1 => Some(pattern(at(args, 0), at(args, 1))),
        "containsIP" | "containsCIDR" if args.len() > 1 => {
            let mut cost = scaled(at(args, 0) * 2, CHARACTER);
            if function == "containsCIDR" {
                cost += scaled(at(args, 0), CHARACTER) + 1;
            }
            if matches!(overload, "cidr_contains_ip_string" | "cidr_contains_cidr_string") {
                cost += scaled(at(args, 1), CHARACTER);
            }
            Some(cost)
        }
        "validate" => match args.first().and_then(Option::as_ref) {
            Some(Value::Format(name)) => Some(pattern(at(args, 1), formats::pattern_size(name))),
            _ => None,
        },
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name"
        | "allowed" | "reason" | "error" | "errored" => Some(1),
        name if STEPS.contains(&name) => Some(1),
        "_==_" => match args.first().and_then(Option::as_ref) {
            Some(
                Value::Quantity(_)
                | Value::Ip(_)
                | Value::Cidr(_)
                | Value::Format(_)
                | Value::Url(_)
                | Value::Semver(_)
                | Value::Authorizer(_)
                | Value::Decision(..),
            ) => Some(1),
            _ => None,
        },
        _ => None,
    }
}

/// Returns what it costs to look at all of a value.
fn traversal(value: &Value) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * CHARACTER) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * CHARACTER) as u64,
        Value::List(list) => list.iter().map(traversal).sum(),
        Value::Map(map) => map.iter().map(|(key, value)| traversal(&key.to_value()) + traversal(value)).sum(),
        _ => 1,
    }
}

fn language(overload: &str, args: &[Option<Value>]) -> u64 {
    // An optional value is as large as what it holds, but only here.
    let at = |index: usize| {
        let mut value = args.get(index).and_then(Option::as_ref);
        while let Some(Value::Optional(Some(inner))) = value {
            value = Some(&**inner);
        }
        size(value)
    };
    match overload {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string"
        | "strings_quote" | "string_format" => scaled(at(0), CHARACTER),
        "in_list" => at(1),
        id if COMPARISONS.contains(&id) => scaled(at(0).min(at(1)), CHARACTER),
        "add_string" | "add_bytes" => scaled(at(0) + at(1), CHARACTER),
        "matches_string" => pattern(at(0), at(1)),
        "contains_string" => scaled(at(0), CHARACTER).wrapping_mul(scaled(at(1), CHARACTER)),
        _ => 1,
    }
}
