//! `table`: working on the array part of tables.

use super::{Call, display};
use crate::lua::machine::Ran;
use crate::lua::value::{TableId, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    Concat,
    Getn,
    Insert,
    Maxn,
    Remove,
    Sort,
}

pub(super) const MEMBERS: &[(&str, Function)] = &[
    ("concat", Function::Concat),
    ("getn", Function::Getn),
    ("insert", Function::Insert),
    ("maxn", Function::Maxn),
    ("remove", Function::Remove),
    ("sort", Function::Sort),
];

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    let table = call.table(1)?;
    match function {
        Function::Concat => concat(call, table),
        Function::Getn | Function::Maxn => {
            let length = length(call, table)?;
            call.push_number(length as f64)
        }
        Function::Insert => insert(call, table),
        Function::Remove => remove(call, table),
        Function::Sort => {
            let less = if call.count == 1 { None } else { Some(call.function(2)?) };
            sort(call, table, less.as_ref())
        }
    }
}

/// Looking for the end costs as many steps as there are empty places behind it.
fn length(call: &mut Call<'_, '_>, table: TableId) -> Ran<usize> {
    let found = call.machine.heap.at(table);
    let (length, all) = (found.length(), found.array.len());
    call.spend(all - length)?;
    Ok(length)
}

fn concat(call: &mut Call<'_, '_>, table: TableId) -> Ran {
    let separator = match call.get(2) {
        Value::Nil => Vec::new(),
        _ => call.text(2)?.bytes().to_vec(),
    };
    let length = i64::try_from(length(call, table)?).unwrap_or(i64::MAX);
    let from = call.integer_or(3, 1)?;
    let to = call.integer_or(4, length)?;
    if call.count == 3 && (from > length || from < 1) {
        return call.push_text(b"");
    }
    let (from, to) = (from.min(length).max(1), to.min(length));
    let mut joined = Vec::new();
    let mut charged = 0;
    for place in from..=to {
        let at = usize::try_from(place - 1).unwrap_or(0);
        let value = call.machine.heap.at(table).array.get(at).cloned().unwrap_or(Value::Nil);
        if !matches!(value, Value::Text(_) | Value::Number(_)) {
            let kind = value.type_name();
            return Err(call.raise(&format!("invalid value ({kind}) at index {place} in table for concat")));
        }
        let part = display(&value);
        let bytes = part.len() + separator.len();
        call.spend(1 + bytes / 16)?;
        call.machine.heap.charge(bytes)?;
        charged += bytes;
        joined.extend_from_slice(&part);
        if place != to {
            joined.extend_from_slice(&separator);
        }
    }
    let text = call.machine.heap.text_from(joined, charged)?;
    call.push(text)
}

fn insert(call: &mut Call<'_, '_>, table: TableId) -> Ran {
    if call.count == 1 {
        return Err(call.raise("wrong number of arguments"));
    }
    if call.count == 2 {
        let value = call.get(2).clone();
        if value.is_nil() {
            return Ok(());
        }
        let end = length(call, table)?;
        return call.machine.heap.set_at(table, end, value);
    }
    let place = call.integer(2)?;
    let value = call.any(3)?;
    let count = call.machine.heap.at(table).array.len();
    match usize::try_from(place) {
        Ok(place) if place > 0 && place <= count => {
            call.spend((count - place) / 8)?;
            // Grow by one, then move the rest up.
            call.machine.heap.set_at(table, count, Value::Nil)?;
            let array = call.machine.heap.array(table);
            array[place - 1..].rotate_right(1);
            array[place - 1] = value;
            Ok(())
        }
        _ => call.machine.heap.set(table, Value::Number(place as f64), value),
    }
}

fn remove(call: &mut Call<'_, '_>, table: TableId) -> Ran {
    let place = if call.count == 1 { -1 } else { call.integer(2)? };
    let array = call.machine.heap.array(table);
    let last = array.len();
    let value = match usize::try_from(place) {
        _ if last == 0 => Value::Nil,
        Ok(place) if place > last => Value::Nil,
        Ok(place) if place > 0 && place < last => array.remove(place - 1),
        _ => array.pop().unwrap_or(Value::Nil),
    };
    call.spend(last / 8 * usize::from(place > 0))?;
    call.push(value)
}

/// Sorts the array part. Up to twelve values are sorted exactly as Go does; beyond that only the order of values that
/// compare equal may differ, since Go's order of those is arbitrary. A comparison that contradicts itself gives some
/// order and no fault.
fn sort(call: &mut Call<'_, '_>, table: TableId, less: Option<&Value>) -> Ran {
    let mut values = std::mem::take(call.machine.heap.array(table));
    let outcome = if values.len() <= 12 {
        insertion_sort(call, &mut values, less)
    } else {
        merge_sort(call, &mut values, less)
    };
    // The comparison may have written to the table; what was sorted wins.
    *call.machine.heap.array(table) = values;
    outcome
}

fn is_less(call: &mut Call<'_, '_>, less: Option<&Value>, left: &Value, right: &Value) -> Ran<bool> {
    call.spend(1)?;
    match less {
        Some(less) => {
            let results = call.machine.call(less.clone(), &[left.clone(), right.clone()])?;
            Ok(results.first().is_some_and(Value::truthy))
        }
        None => Ok(call.machine.compare(left, right)? == Some(std::cmp::Ordering::Less)),
    }
}

fn insertion_sort(call: &mut Call<'_, '_>, values: &mut [Value], less: Option<&Value>) -> Ran {
    for start in 1..values.len() {
        let mut at = start;
        while at > 0 && is_less(call, less, &values[at], &values[at - 1])? {
            values.swap(at, at - 1);
            at -= 1;
        }
    }
    Ok(())
}

fn merge_sort(call: &mut Call<'_, '_>, values: &mut Vec<Value>, less: Option<&Value>) -> Ran {
    call.machine.heap.charge(values.len() * size_of::<Value>())?;
    let mut width = 1;
    while width < values.len() {
        let mut merged = Vec::with_capacity(values.len());
        for pair in values.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(first), Some(second)) = (left.first(), right.first()) {
                if is_less(call, less, second, first)? {
                    merged.push(second.clone());
                    right = &right[1..];
                } else {
                    merged.push(first.clone());
                    left = &left[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        *values = merged;
        width *= 2;
    }
    Ok(())
}
