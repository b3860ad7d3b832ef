//! The functions without a library before their name.

use super::{Call, Library, Native, display};
use crate::lua::Throw;
use crate::lua::machine::Ran;
use crate::lua::numbers;
use crate::lua::value::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    Assert,
    Error,
    Ipairs,
    IpairsNext,
    Next,
    Pairs,
    PairsNext,
    Pcall,
    Print,
    Require,
    Select,
    ToNumber,
    ToString,
    Type,
    Unpack,
    Xpcall,
    LoadLib,
    /// One of those that Karmada takes away; the number is its place in [`DISABLED`].
    Disabled(u8),
}

const DISABLED: [&str; 14] = [
    "collectgarbage",
    "dofile",
    "getfenv",
    "getmetatable",
    "load",
    "loadfile",
    "loadstring",
    "rawequal",
    "rawget",
    "rawset",
    "setfenv",
    "setmetatable",
    "module",
    "newproxy",
];

pub(super) const MEMBERS: &[(&str, Native)] = &[
    ("assert", Native::Base(Function::Assert)),
    ("error", Native::Base(Function::Error)),
    ("ipairs", Native::Base(Function::Ipairs)),
    ("next", Native::Base(Function::Next)),
    ("pairs", Native::Base(Function::Pairs)),
    ("pcall", Native::Base(Function::Pcall)),
    ("print", Native::Base(Function::Print)),
    ("require", Native::Base(Function::Require)),
    ("select", Native::Base(Function::Select)),
    ("tonumber", Native::Base(Function::ToNumber)),
    ("tostring", Native::Base(Function::ToString)),
    ("type", Native::Base(Function::Type)),
    ("unpack", Native::Base(Function::Unpack)),
    ("xpcall", Native::Base(Function::Xpcall)),
    (DISABLED[0], Native::Base(Function::Disabled(0))),
    (DISABLED[1], Native::Base(Function::Disabled(1))),
    (DISABLED[2], Native::Base(Function::Disabled(2))),
    (DISABLED[3], Native::Base(Function::Disabled(3))),
    (DISABLED[4], Native::Base(Function::Disabled(4))),
    (DISABLED[5], Native::Base(Function::Disabled(5))),
    (DISABLED[6], Native::Base(Function::Disabled(6))),
    (DISABLED[7], Native::Base(Function::Disabled(7))),
    (DISABLED[8], Native::Base(Function::Disabled(8))),
    (DISABLED[9], Native::Base(Function::Disabled(9))),
    (DISABLED[10], Native::Base(Function::Disabled(10))),
    (DISABLED[11], Native::Base(Function::Disabled(11))),
    (DISABLED[12], Native::Base(Function::Disabled(12))),
    (DISABLED[13], Native::Base(Function::Disabled(13))),
];

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    match function {
        Function::Assert => {
            if !call.get(1).truthy() {
                let message = match call.get(2) {
                    Value::Nil => "assertion failed!".to_owned(),
                    _ => call.text(2)?.lossy(),
                };
                return Err(call.raise(&message));
            }
            call.all(1).into_iter().try_for_each(|value| call.push(value))
        }
        Function::Error => error(call),
        Function::Ipairs => {
            let table = call.table(1)?;
            call.push(Value::Native(Native::Base(Function::IpairsNext)))?;
            call.push(Value::Table(table))?;
            call.push_number(0.0)
        }
        Function::IpairsNext => {
            let table = call.table(1)?;
            let place = call.integer(2)?.saturating_add(1);
            let value = usize::try_from(place - 1)
                .ok()
                .and_then(|at| call.machine.heap.at(table).array.get(at).cloned())
                .unwrap_or(Value::Nil);
            if value.is_nil() {
                return Ok(());
            }
            call.push_number(place as f64)?;
            call.push(value)
        }
        Function::Pairs => {
            let table = call.table(1)?;
            call.push(Value::Native(Native::Base(Function::PairsNext)))?;
            call.push(Value::Table(table))?;
            call.push(Value::Nil)
        }
        Function::Next | Function::PairsNext => {
            let table = call.table(1)?;
            let (next, looked) = call.machine.heap.at(table).next(call.get(2));
            call.spend(looked)?;
            match next {
                Some((key, value)) => {
                    call.push(key)?;
                    call.push(value)
                }
                None if function == Function::Next => call.push(Value::Nil),
                None => Ok(()),
            }
        }
        Function::Pcall => {
            let function = call.any(1)?;
            if !matches!(function, Value::Closure(_) | Value::Native(_)) {
                let text = format!("attempt to call a {} value", function.type_name());
                call.push(Value::Boolean(false))?;
                return call.push_text(text.as_bytes());
            }
            let arguments = call.all(2);
            let outcome = call.machine.protected(function, &arguments)?;
            push_outcome(call, outcome)
        }
        Function::Xpcall => {
            let function = call.function(1)?;
            let handler = call.function(2)?;
            match call.machine.protected(function, &[])? {
                Ok(results) => push_outcome(call, Ok(results)),
                Err(value) => {
                    let handled = call.machine.protected(handler, &[value])?;
                    let value = handled.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
                    let (Ok(value) | Err(value)) = value;
                    push_outcome(call, Err(value))
                }
            }
        }
        // Upstream prints into the log of the component; a guest has nothing to say there.
        Function::Print => Ok(()),
        Function::Require => require(call),
        Function::Select => select(call),
        Function::ToNumber => to_number(call),
        Function::ToString => {
            let value = call.any(1)?;
            match value {
                Value::Text(_) => call.push(value),
                other => call.push_text(&display(&other)),
            }
        }
        Function::Type => {
            let name = call.any(1)?.type_name();
            call.push_text(name.as_bytes())
        }
        Function::Unpack => unpack(call),
        Function::LoadLib => Err(call.raise("loadlib is not supported")),
        Function::Disabled(at) => {
            let name = DISABLED[usize::from(at)];
            let text =
                format!("call function {name} is not supported in karmada customized resourceinterpreter.");
            Err(call.raise(&text))
        }
    }
}

fn error(call: &mut Call<'_, '_>) -> Ran {
    let value = call.any(1)?;
    let level = call.integer_or(2, 1)?;
    let Value::Text(text) = &value else { return Err(Throw::Error(value)) };
    let Some(level) = usize::try_from(level).ok().filter(|level| *level > 0) else {
        return Err(Throw::Error(value));
    };
    // As upstream the second level is the first once more.
    let mut message = call.machine.place(level.saturating_sub(1).max(1)).into_bytes();
    message.push(b' ');
    call.machine.heap.charge(text.bytes().len())?;
    message.extend_from_slice(text.bytes());
    let charged = text.bytes().len();
    Err(Throw::Error(call.machine.heap.text_from(message, charged)?))
}

fn push_outcome(call: &mut Call<'_, '_>, outcome: Result<Vec<Value>, Value>) -> Ran {
    match outcome {
        Ok(results) => {
            call.push(Value::Boolean(true))?;
            results.into_iter().try_for_each(|value| call.push(value))
        }
        Err(value) => {
            call.push(Value::Boolean(false))?;
            call.push(value)
        }
    }
}

fn require(call: &mut Call<'_, '_>) -> Ran {
    let name = call.text(1)?;
    let library = match name.bytes() {
        b"kube" => Library::Kube,
        b"string" => Library::String,
        b"table" => Library::Table,
        b"math" => Library::Math,
        b"os" => Library::Os,
        b"package" => Library::Package,
        b"_G" => Library::Globals,
        _ => {
            let name = name.lossy();
            let name = name.chars().take(200).collect::<String>();
            let text = format!("module {name} not found:\n\tno field package.preload['{name}'], ");
            return Err(call.raise(&text));
        }
    };
    let table = call.machine.library(library)?;
    call.push(Value::Table(table))
}

fn select(call: &mut Call<'_, '_>) -> Ran {
    match call.get(1).clone() {
        Value::Number(number) => {
            let all = i64::try_from(call.count).unwrap_or(i64::MAX);
            let index = numbers::to_int(number);
            let index = if index < 0 { all.saturating_add(index) } else { index.min(all) };
            let Some(skip) = usize::try_from(index).ok().filter(|index| *index > 0) else {
                return Err(call.bad(1, "index out of range"));
            };
            call.all(skip + 1).into_iter().try_for_each(|value| call.push(value))
        }
        Value::Text(text) if text.bytes() == b"#" => call.push_number((call.count - 1) as f64),
        Value::Text(text) => {
            let text = format!("invalid string '{}'", text.lossy().chars().take(200).collect::<String>());
            Err(call.bad(1, &text))
        }
        other => Err(call.bad(1, &format!("number or string expected, got {}", other.type_name()))),
    }
}

fn to_number(call: &mut Call<'_, '_>) -> Ran {
    let base = call.integer_or(2, 10)?;
    let plain = call.get(2).is_nil();
    let number = match call.any(1)? {
        Value::Number(number) => Some(number),
        Value::Text(text) => {
            call.spend(text.bytes().len() / 16)?;
            let text = String::from_utf8_lossy(text.bytes());
            let text = text.trim_matches([' ', '\n', '\t']);
            if text.contains('.') {
                numbers::parse_float(text)
            } else {
                let hexadecimal = text.get(..2).filter(|start| start.eq_ignore_ascii_case("0x")).is_some();
                let (base, digits) = if plain && hexadecimal { (16, &text[2..]) } else { (base, text) };
                let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
                base.and_then(|base| numbers::parse_int(digits, base)).map(|integer| integer as f64)
            }
        }
        _ => None,
    };
    call.push(number.map_or(Value::Nil, Value::Number))
}

fn unpack(call: &mut Call<'_, '_>) -> Ran {
    let table = call.table(1)?;
    let start = call.integer_or(2, 1)?;
    let length = call.machine.heap.at(table).length();
    call.spend(call.machine.heap.at(table).array.len() / 16)?;
    let end = call.integer_or(3, i64::try_from(length).unwrap_or(i64::MAX))?;
    for place in start..=end {
        let value = usize::try_from(place.saturating_sub(1))
            .ok()
            .and_then(|at| call.machine.heap.at(table).array.get(at).cloned())
            .unwrap_or(Value::Nil);
        call.push(value)?;
    }
    Ok(())
}
