//! Lua for guests: the language and library of Karmada's customizations, in a machine that cannot be harmed by them.
//!
//! In: a script, the name of one of its functions, JSON. Out: what the function returned, or an error in gopher-lua's
//! words with the line of the script. The machine is our own and small, because none of the usual ones fits: Karmada's
//! scripts are Lua 5.1 with `goto`, with Go's numbers and Go's texts of errors, without metatables, coroutines and
//! most of the library; and a guest must be stopped within a bound of steps and bytes, inside library functions too.
//!
//! Scripts are compiled once and shared. Each run has globals of its own, unlike upstream, where what one script
//! leaves behind another one finds.
//!
//! Way of a script: `scanner` → `parser` (→ `ast`) → `compile` (→ `code`) → `machine`, with `value` for what it works
//! on, `library` for what it can call, `convert` and `decode` for what goes in and comes out.

mod ast;
mod code;
mod compile;
pub(crate) mod convert;
pub(crate) mod decode;
mod library;
mod machine;
mod numbers;
mod operators;
mod parser;
mod scanner;
mod value;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value as Json;

use code::Prototype;
use machine::Machine;
use value::{Text, Value};

use crate::pods::PriorityClass;

/// Returns the first fault of a script, in the words of Karmada's parser.
pub fn fault(script: &str) -> Option<String> {
    Script::compile(script).err()
}

/// What a run may take at most, and what it is told.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// Instructions; library functions count by what they look at.
    pub steps: u64,
    pub bytes: usize,
    pub time: SignedDuration,
    /// What time it is: for the limit above and for scripts that ask.
    pub clock: &'a (dyn Fn() -> Timestamp + Sync),
    /// For scripts that ask what a pod needs.
    pub priority_class: PriorityClass,
}

impl<'a> Limits<'a> {
    /// One second, as upstream, and 64 MiB.
    ///
    /// The steps take less than the second on any machine; they are there so that a script which is too expensive
    /// fails every time and not only on a busy day.
    pub fn usual(clock: &'a (dyn Fn() -> Timestamp + Sync)) -> Self {
        Self {
            steps: 20_000_000,
            bytes: 64 << 20,
            time: SignedDuration::from_secs(1),
            clock,
            priority_class: PriorityClass::default(),
        }
    }
}

/// Why a run ended early.
#[derive(Debug)]
enum Throw {
    /// An error of the script; it may catch it.
    Error(Value),
    Deadline,
    Memory,
}

/// A script that can be run: immutable, cheap to clone, shared between threads.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    main: Arc<Prototype>,
}

/// What a function is called with.
pub(crate) enum Argument<'a> {
    Json(&'a Json),
    Number(f64),
    Nil,
}

/// One value that a function returned.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) type_name: &'static str,
    pub(crate) type_number: u8,
    pub(crate) value: ReturnedValue,
}

#[derive(Debug)]
pub(crate) enum ReturnedValue {
    Nil,
    Boolean(bool),
    Number(f64),
    /// Strings and functions: nobody asks for them.
    Other,
    /// A table as JSON, or why it cannot be that.
    Table(Result<Json, String>),
}

impl Script {
    /// Compiles a script, on a stack with room for scripts that nest.
    pub(crate) fn compile(script: &str) -> Result<Self, String> {
        let compiled = apimachinery::stack::with_room(|| Self::compile_here(script));
        compiled
            .unwrap_or_else(|| Err("there is no room to compile the script now; try again later".to_owned()))
    }

    fn compile_here(script: &str) -> Result<Self, String> {
        let main = parser::parse(script)?;
        compile::compile(&main)
            .map(|main| Self { main })
            .map_err(|fault| format!("compile error near line(0) {}: {fault}", parser::SOURCE))
    }

    /// Runs the script, then calls one of its functions and returns its first `results` values.
    pub(crate) fn call(
        &self,
        function: &str,
        arguments: &[Argument<'_>],
        results: usize,
        limits: &Limits<'_>,
    ) -> Result<Vec<Returned>, String> {
        let mut machine = Machine::new(limits).map_err(|_| out_of_memory(limits))?;
        let outcome = self.call_in(&mut machine, function, arguments, results);
        outcome.map_err(|throw| match throw {
            Failure::Throw(Throw::Error(value)) => bounded(&library::display(&value)),
            Failure::Throw(Throw::Deadline) => placed(&machine, "context deadline exceeded"),
            Failure::Throw(Throw::Memory) => placed(&machine, &out_of_memory(limits)),
            Failure::Text(text) => text,
        })
    }

    fn call_in(
        &self,
        machine: &mut Machine<'_>,
        name: &str,
        arguments: &[Argument<'_>],
        results: usize,
    ) -> Result<Vec<Returned>, Failure> {
        machine.run(&self.main)?;
        let function = machine.global(&Text::constant(name.as_bytes()), library::Global::named(name))?;
        match function {
            Value::Nil => return Err(Failure::Text(format!("not found function {name}"))),
            Value::Closure(_) | Value::Native(_) => {}
            other => {
                return Err(Failure::Text(format!("{name} is not a function: {}", other.type_name())));
            }
        }
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(match argument {
                Argument::Json(json) => convert::from_json(machine, json)?,
                Argument::Number(number) => Value::Number(*number),
                Argument::Nil => Value::Nil,
            });
        }
        let mut returned = machine.call(function, &values)?;
        returned.resize(results, Value::Nil);
        Ok(returned.into_iter().map(|value| describe(machine, &value)).collect::<Result<_, Throw>>()?)
    }
}

enum Failure {
    Throw(Throw),
    Text(String),
}

impl From<Throw> for Failure {
    fn from(throw: Throw) -> Self {
        Self::Throw(throw)
    }
}

fn describe(machine: &mut Machine<'_>, value: &Value) -> Result<Returned, Throw> {
    let found = match value {
        Value::Nil => ReturnedValue::Nil,
        Value::Boolean(value) => ReturnedValue::Boolean(*value),
        Value::Number(number) => ReturnedValue::Number(*number),
        Value::Table(table) => {
            let json = convert::to_json(machine, *table)?.map(|(json, _)| json);
            ReturnedValue::Table(json.map_err(|why| format!("encode lua result to json failed: {why}")))
        }
        _ => ReturnedValue::Other,
    };
    Ok(Returned { type_name: value.type_name(), type_number: value.type_number(), value: found })
}

/// Puts the line that runs before a message; when the function has returned, none does.
fn placed(machine: &Machine<'_>, message: &str) -> String {
    format!("{} {message}", machine.place(1)).trim_start().to_owned()
}

fn out_of_memory(limits: &Limits<'_>) -> String {
    format!("the script needs more than {} MiB of memory", limits.bytes >> 20)
}

/// Errors end up in events and conditions, so what a script says is cut.
pub(crate) fn bounded(message: &[u8]) -> String {
    const MESSAGE_MAX: usize = 2048;
    let text = String::from_utf8_lossy(&message[..message.len().min(MESSAGE_MAX)]);
    if message.len() > MESSAGE_MAX { format!("{text}…") } else { text.into_owned() }
}
