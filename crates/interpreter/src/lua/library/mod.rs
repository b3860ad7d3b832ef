//! What scripts can call: the parts of Lua's library that Karmada leaves them, and `kube`.
//!
//! A library function takes its arguments from the machine's stack and pushes its results. Messages about wrong
//! arguments are gopher-lua's.

mod base;
mod format;
mod kube;
mod maths;
mod os;
mod patterns;
mod strings;
mod tables;

use super::Throw;
use super::machine::{Machine, Ran};
use super::numbers;
use super::value::{TableId, Text, Value};

/// A table of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    Globals,
    String,
    Table,
    Math,
    Os,
    Package,
    Kube,
}

impl Library {
    pub(super) const COUNT: usize = 7;
}

/// What a global name means as long as the script does not say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    Native(Native),
    Library(Library),
    Version,
}

impl Global {
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::all().find(|(known, _)| *known == name).map(|(_, global)| global)
    }

    pub(super) fn all() -> impl Iterator<Item = (&'static str, Self)> {
        let natives = base::MEMBERS.iter().map(|(name, native)| (*name, Self::Native(*native)));
        let libraries = [
            ("_G", Library::Globals),
            ("string", Library::String),
            ("table", Library::Table),
            ("math", Library::Math),
            ("os", Library::Os),
            ("package", Library::Package),
        ];
        natives
            .chain(libraries.into_iter().map(|(name, library)| (name, Self::Library(library))))
            .chain([("_VERSION", Self::Version)])
    }
}

/// A library function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Native {
    Base(base::Function),
    String(strings::Function),
    Table(tables::Function),
    Math(maths::Function),
    Os(os::Function),
    Kube(kube::Function),
}

/// Returns what a library consists of.
pub(super) fn members(library: Library) -> Vec<(&'static str, Value)> {
    fn natives<F: Copy>(named: &[(&'static str, F)], wrap: fn(F) -> Native) -> Vec<(&'static str, Value)> {
        named.iter().map(|(name, function)| (*name, Value::Native(wrap(*function)))).collect()
    }
    match library {
        Library::Globals => Vec::new(),
        Library::String => natives(strings::MEMBERS, Native::String),
        Library::Table => natives(tables::MEMBERS, Native::Table),
        Library::Math => {
            let mut members = natives(maths::MEMBERS, Native::Math);
            members.push(("pi", Value::Number(std::f64::consts::PI)));
            members.push(("huge", Value::Number(f64::MAX)));
            members
        }
        Library::Os => natives(os::MEMBERS, Native::Os),
        Library::Package => natives(&[("loadlib", base::Function::LoadLib)], Native::Base),
        Library::Kube => natives(kube::MEMBERS, Native::Kube),
    }
}

/// Calls a library function whose `count` arguments lie at `at`; returns how many results it pushed.
pub(super) fn call(machine: &mut Machine<'_>, native: Native, at: usize, count: usize) -> Ran<usize> {
    let mut call = Call { machine, at, count };
    let before = call.machine.stack.len();
    match native {
        Native::Base(function) => base::call(&mut call, function)?,
        Native::String(function) => strings::call(&mut call, function)?,
        Native::Table(function) => tables::call(&mut call, function)?,
        Native::Math(function) => maths::call(&mut call, function)?,
        Native::Os(function) => os::call(&mut call, function)?,
        Native::Kube(function) => kube::call(&mut call, function)?,
    }
    Ok(machine.stack.len() - before)
}

/// The text that scripts see of a value.
pub(super) fn display(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"nil".to_vec(),
        Value::Boolean(true) => b"true".to_vec(),
        Value::Boolean(false) => b"false".to_vec(),
        Value::Number(number) => numbers::text(*number).into_bytes(),
        Value::Text(text) => text.bytes().to_vec(),
        // Upstream prints an address, which differs from run to run; messages must not.
        Value::Table(id) => format!("table: 0x{:08x}", id.0).into_bytes(),
        Value::Closure(id) => format!("function: 0x{:08x}", id.0).into_bytes(),
        Value::Native(_) => b"function: builtin".to_vec(),
        Value::Cell(_) | Value::Matches(_) => b"userdata: 0x00000000".to_vec(),
    }
}

/// A call of a library function: its arguments, counted from one as in messages.
pub(super) struct Call<'m, 'a> {
    pub(super) machine: &'m mut Machine<'a>,
    at: usize,
    pub(super) count: usize,
}

impl Call<'_, '_> {
    pub(super) fn get(&self, argument: usize) -> &Value {
        if argument == 0 || argument > self.count {
            return &Value::Nil;
        }
        &self.machine.stack[self.at + argument - 1]
    }

    pub(super) fn all(&self, from: usize) -> Vec<Value> {
        (from..=self.count).map(|argument| self.get(argument).clone()).collect()
    }

    pub(super) fn push(&mut self, value: Value) -> Ran {
        self.machine.push(value)
    }

    pub(super) fn push_number(&mut self, number: f64) -> Ran {
        self.machine.push(Value::Number(number))
    }

    pub(super) fn push_text(&mut self, text: &[u8]) -> Ran {
        let text = self.machine.heap.text(text)?;
        self.machine.push(text)
    }

    pub(super) fn raise(&mut self, message: &str) -> Throw {
        self.machine.raise(message)
    }

    pub(super) fn bad(&mut self, argument: usize, message: &str) -> Throw {
        let called = self.machine.called();
        self.raise(&format!("bad argument #{argument} to {called} ({message})"))
    }

    fn wrong(&mut self, argument: usize, expected: &str) -> Throw {
        let found = self.get(argument).type_name();
        self.bad(argument, &format!("{expected} expected, got {found}"))
    }

    pub(super) fn any(&mut self, argument: usize) -> Ran<Value> {
        if argument > self.count {
            return Err(self.bad(argument, "value expected"));
        }
        Ok(self.get(argument).clone())
    }

    pub(super) fn table(&mut self, argument: usize) -> Ran<TableId> {
        match self.get(argument) {
            Value::Table(table) => Ok(*table),
            _ => Err(self.wrong(argument, "table")),
        }
    }

    pub(super) fn function(&mut self, argument: usize) -> Ran<Value> {
        match self.get(argument) {
            function @ (Value::Closure(_) | Value::Native(_)) => Ok(function.clone()),
            _ => Err(self.wrong(argument, "function")),
        }
    }

    pub(super) fn number(&mut self, argument: usize) -> Ran<f64> {
        let number = match self.get(argument) {
            Value::Number(number) => Some(*number),
            Value::Text(text) => numbers::parse(text.bytes()),
            _ => None,
        };
        number.ok_or_else(|| self.wrong(argument, "number"))
    }

    pub(super) fn integer(&mut self, argument: usize) -> Ran<i64> {
        match self.get(argument) {
            Value::Number(number) => Ok(numbers::to_int(*number)),
            _ => Err(self.wrong(argument, "number")),
        }
    }

    pub(super) fn integer_or(&mut self, argument: usize, default: i64) -> Ran<i64> {
        match self.get(argument) {
            Value::Nil => Ok(default),
            Value::Number(number) => Ok(numbers::to_int(*number)),
            _ => Err(self.wrong(argument, "number")),
        }
    }

    pub(super) fn text(&mut self, argument: usize) -> Ran<Text> {
        match self.get(argument) {
            Value::Text(text) => Ok(text.clone()),
            Value::Number(number) => Ok(Text::constant(numbers::text(*number).as_bytes())),
            _ => Err(self.wrong(argument, "string")),
        }
    }

    pub(super) fn spend(&mut self, steps: usize) -> Ran {
        self.machine.spend(steps)
    }
}
