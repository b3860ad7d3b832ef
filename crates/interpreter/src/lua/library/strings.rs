//! `string`, as Karmada restricts it: some functions are missing, and strings may be a million bytes long.

use super::patterns::{Capture, Match, Pattern};
use super::{Call, Native, format};
use crate::lua::machine::Ran;
use crate::lua::value::{Text, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    Byte,
    Char,
    Find,
    Format,
    Gmatch,
    GmatchNext,
    Len,
    Lower,
    Match,
    Reverse,
    Sub,
    Upper,
    Dump,
    Gsub,
    Rep,
}

pub(super) const MEMBERS: &[(&str, Function)] = &[
    ("byte", Function::Byte),
    ("char", Function::Char),
    ("dump", Function::Dump),
    ("find", Function::Find),
    ("format", Function::Format),
    ("gfind", Function::Gmatch),
    ("gmatch", Function::Gmatch),
    ("gsub", Function::Gsub),
    ("len", Function::Len),
    ("lower", Function::Lower),
    ("match", Function::Match),
    ("rep", Function::Rep),
    ("reverse", Function::Reverse),
    ("sub", Function::Sub),
    ("upper", Function::Upper),
];

const LENGTH_MAX: usize = 1_000_000;

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    match function {
        Function::Byte => byte(call),
        Function::Char => {
            let mut bytes = Vec::with_capacity(call.count);
            for argument in 1..=call.count {
                bytes.push(call.integer(argument)?.to_le_bytes()[0]);
            }
            call.push_text(&bytes)
        }
        Function::Find => find(call),
        Function::Format => format::call(call),
        Function::Gmatch => gmatch(call),
        Function::GmatchNext => match *call.get(1) {
            Value::Matches(id) => {
                let row = call.machine.heap.next_match(id).unwrap_or_default();
                row.into_iter().try_for_each(|value| call.push(value))
            }
            _ => Err(call.wrong(1, "userdata")),
        },
        Function::Len => {
            let text = call.text(1)?;
            call.push_number(text.bytes().len() as f64)
        }
        Function::Lower => cased(call, |char| char.to_lowercase().next().unwrap_or(char)),
        Function::Upper => cased(call, |char| {
            // Letters that become several (ß) stay, as in Go.
            let mut upper = char.to_uppercase();
            match (upper.next(), upper.next()) {
                (Some(one), None) => one,
                _ => char,
            }
        }),
        Function::Match => matched(call),
        Function::Reverse => {
            let text = bounded(call, 1)?;
            let reversed: Vec<u8> = text.bytes().iter().rev().copied().collect();
            call.push_text(&reversed)
        }
        Function::Sub => sub(call),
        Function::Dump => unsupported(call, "dump"),
        Function::Gsub => unsupported(call, "gsub"),
        Function::Rep => unsupported(call, "rep"),
    }
}

fn unsupported(call: &mut Call<'_, '_>, name: &str) -> Ran {
    Err(call.raise(&format!(
        "The Lua function string.{name} is not supported by Karmada. If you believe this function is essential for \
         your use case, please submit an issue to let us know why you need it."
    )))
}

/// Returns a string argument that is not too long, and charges for looking at it.
fn bounded(call: &mut Call<'_, '_>, argument: usize) -> Ran<Text> {
    let text = call.text(argument)?;
    let length = text.bytes().len();
    if length > LENGTH_MAX {
        return Err(call.raise(&format!(
            "string length {length} exceeds the maximum allowed input string length {LENGTH_MAX} in Karmada lua \
             string lib, please check your lua script."
        )));
    }
    call.spend(length / 16)?;
    Ok(text)
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Turns a position of Lua (from one; negative: from the end) into an offset, never before the start.
fn offset(length: usize, position: i64, is_start: bool) -> usize {
    let position = if is_start && position != 0 { position.saturating_sub(1) } else { position };
    let position =
        if position < 0 { signed(length).saturating_add(position).saturating_add(1) } else { position };
    let position = usize::try_from(position.max(0)).unwrap_or(usize::MAX);
    if is_start { position } else { position.min(length) }
}

fn byte(call: &mut Call<'_, '_>) -> Ran {
    let text = bounded(call, 1)?;
    let length = signed(text.bytes().len());
    let start = call.integer_or(2, 1)?.saturating_sub(1);
    let end = call.integer_or(3, -1)?;
    let start = if start < 0 { length.saturating_add(start).saturating_add(1) } else { start };
    let end = if end < 0 { length.saturating_add(end).saturating_add(1) } else { end };
    let (start, end) = if call.count == 2 {
        if start < 0 || start >= length {
            return Ok(());
        }
        (start, start + 1)
    } else {
        (start.max(0), end.min(length))
    };
    for at in start..end {
        let byte = usize::try_from(at).ok().and_then(|at| text.bytes().get(at).copied()).unwrap_or(0);
        call.push_number(f64::from(byte))?;
    }
    Ok(())
}

fn sub(call: &mut Call<'_, '_>) -> Ran {
    let text = bounded(call, 1)?;
    let length = text.bytes().len();
    let start = call.integer(2)?;
    let end = call.integer_or(3, -1)?;
    let (start, end) = (offset(length, start, true), offset(length, end, false));
    call.push_text(text.bytes().get(start..end).unwrap_or_default())
}

fn cased(call: &mut Call<'_, '_>, map: impl Fn(char) -> char) -> Ran {
    let text = bounded(call, 1)?;
    let mut out = String::with_capacity(text.bytes().len());
    for char in String::from_utf8_lossy(text.bytes()).chars() {
        out.push(map(char));
    }
    call.push_text(out.as_bytes())
}

fn pattern(call: &mut Call<'_, '_>, text: &Text) -> Ran<Pattern> {
    call.machine.heap.charge(text.bytes().len() * 8)?;
    Pattern::read(text.bytes()).map_err(|message| call.raise(&message))
}

fn capture(call: &mut Call<'_, '_>, text: &Text, found: &Match, index: usize) -> Ran<Value> {
    match found.capture(index) {
        Capture::Position(at) => Ok(Value::Number(at as f64)),
        Capture::Bytes(start, end) => {
            call.machine.heap.text(text.bytes().get(start..end).unwrap_or_default())
        }
    }
}

fn find(call: &mut Call<'_, '_>) -> Ran {
    let text = bounded(call, 1)?;
    let wanted = bounded(call, 2)?;
    if wanted.bytes().is_empty() {
        call.push_number(1.0)?;
        return call.push_number(0.0);
    }
    let start = call.integer_or(3, 1)?;
    let start = offset(text.bytes().len(), start, true);
    if call.count == 4 && call.get(4).truthy() {
        let rest = text.bytes().get(start..).unwrap_or_default();
        call.spend(rest.len())?;
        let found = search(call, rest, wanted.bytes())?;
        return match found {
            Some(at) => {
                call.push_number((start + at + 1) as f64)?;
                call.push_number((start + at + wanted.bytes().len()) as f64)
            }
            None => call.push(Value::Nil),
        };
    }
    let pattern = pattern(call, &wanted)?;
    let Some(found) = pattern.find(call, text.bytes(), start, 1)?.pop() else {
        return call.push(Value::Nil);
    };
    if let Capture::Bytes(from, to) = found.capture(0) {
        call.push_number((from + 1) as f64)?;
        call.push_number(to as f64)?;
    }
    for index in 1..found.captures() {
        let value = capture(call, &text, &found, index)?;
        call.push(value)?;
    }
    Ok(())
}

/// Finds bytes in bytes; what is compared is charged.
fn search(call: &mut Call<'_, '_>, text: &[u8], wanted: &[u8]) -> Ran<Option<usize>> {
    for at in 0..=text.len().saturating_sub(wanted.len()) {
        let rest = text.get(at..).unwrap_or_default();
        if rest.first() == wanted.first() {
            let equal = rest.iter().zip(wanted).take_while(|(left, right)| left == right).count();
            if equal == wanted.len() {
                return Ok(Some(at));
            }
            call.spend(equal / 4)?;
        }
    }
    Ok(None)
}

fn matched(call: &mut Call<'_, '_>) -> Ran {
    let text = bounded(call, 1)?;
    let wanted = bounded(call, 2)?;
    let start = call.integer_or(3, 1)?;
    let start =
        if start < 0 { signed(text.bytes().len()).saturating_add(start).saturating_add(1) } else { start };
    let start = usize::try_from(start.saturating_sub(1).max(0)).unwrap_or(usize::MAX);
    let pattern = pattern(call, &wanted)?;
    let Some(found) = pattern.find(call, text.bytes(), start, 1)?.pop() else { return Ok(()) };
    for value in row(call, &text, &found)? {
        call.push(value)?;
    }
    Ok(())
}

/// The captures of a match, or all of it where there are none.
fn row(call: &mut Call<'_, '_>, text: &Text, found: &Match) -> Ran<Vec<Value>> {
    let indexes = if found.captures() == 1 { 0..1 } else { 1..found.captures() };
    indexes.map(|index| capture(call, text, found, index)).collect()
}

fn gmatch(call: &mut Call<'_, '_>) -> Ran {
    let text = bounded(call, 1)?;
    let wanted = bounded(call, 2)?;
    let pattern = pattern(call, &wanted)?;
    let found = pattern.find(call, text.bytes(), 0, usize::MAX)?;
    let mut rows = Vec::with_capacity(found.len());
    for found in &found {
        call.spend(1)?;
        rows.push(row(call, &text, found)?);
    }
    let matches = call.machine.heap.matches(rows)?;
    call.push(Value::Native(Native::String(Function::GmatchNext)))?;
    call.push(matches)
}
