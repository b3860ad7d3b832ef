//! Runs instructions.
//!
//! Calls from script to script take an entry of `frames` and nothing of the thread's stack. Only library functions
//! that call back (`pcall`, `table.sort`) nest on it, and how deep they may is bounded. Every instruction costs a step,
//! library functions cost what they look at; the clock is asked now and then.

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::Timestamp;

use super::code::{Captured, Count, OPEN, Op, Prototype};
use super::library::{self, Global, Library};
use super::numbers;
use super::operators::arithmetic;
use super::parser::SOURCE;
use super::value::{Closure, ClosureId, Heap, TableId, Text, Value};
use super::{Limits, Throw};
use crate::pods::PriorityClass;

/// As many calls may be under way, as in gopher-lua.
const FRAMES_MAX: usize = 256;
/// As many values may be on the stack. gopher-lua has 5120 places, counted a little differently.
const STACK_MAX: usize = 16_384;
/// As many library functions may be calling back at one time: each takes some of the thread's stack.
const NESTED_MAX: usize = 60;
/// The clock is asked when so many steps were made.
const STEPS_PER_LOOK: u64 = 8192;

pub(super) type Ran<T = ()> = Result<T, Throw>;

struct Frame {
    prototype: Arc<Prototype>,
    closure: ClosureId,
    /// Where its variables begin on the stack; the function itself lies right below.
    base: usize,
    /// The next instruction.
    at: usize,
    results: Count,
    extra: Vec<Value>,
}

pub(super) struct Machine<'a> {
    pub(super) heap: Heap,
    pub(super) stack: Vec<Value>,
    frames: Vec<Frame>,
    globals: TableId,
    libraries: [Option<TableId>; Library::COUNT],
    /// How many values the last open expression pushed.
    open: usize,
    steps: u64,
    look: u64,
    nested: usize,
    /// Was the library function that runs called by a script? Then messages know its name.
    from_script: bool,
    limits: &'a Limits<'a>,
    deadline: Timestamp,
    random: u64,
}

impl<'a> Machine<'a> {
    pub(super) fn new(limits: &'a Limits<'a>) -> Ran<Self> {
        let mut heap = Heap::new(limits.bytes);
        let globals = heap.table()?;
        Ok(Self {
            heap,
            stack: Vec::with_capacity(64),
            frames: Vec::with_capacity(8),
            globals,
            libraries: [None; Library::COUNT],
            open: 0,
            steps: limits.steps,
            look: limits.steps.saturating_sub(STEPS_PER_LOOK),
            nested: 0,
            from_script: false,
            deadline: (limits.clock)().saturating_add(limits.time).unwrap_or(Timestamp::MAX),
            limits,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.limits.clock)()
    }

    /// Returns the next of a row of numbers that look random and are the same in every run.
    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Runs a main function.
    pub(super) fn run(&mut self, main: &Arc<Prototype>) -> Ran {
        let closure = Closure { prototype: Arc::clone(main), upvalues: Box::default() };
        let main = self.heap.closure(closure)?;
        self.call(main, &[]).map(|_| ())
    }

    /// Calls a function from outside or from a library function; returns all of its results.
    pub(super) fn call(&mut self, function: Value, arguments: &[Value]) -> Ran<Vec<Value>> {
        if self.nested >= NESTED_MAX {
            return Err(self.raise("stack overflow"));
        }
        let bottom = self.stack.len();
        self.push(function)?;
        for argument in arguments {
            self.push(argument.clone())?;
        }
        let depth = self.frames.len();
        let from_script = std::mem::replace(&mut self.from_script, false);
        self.nested += 1;
        let outcome = self
            .begin(bottom, arguments.len(), OPEN)
            .and_then(|entered| if entered { self.execute(depth) } else { Ok(()) });
        self.nested -= 1;
        self.from_script = from_script;
        outcome?;
        Ok(self.stack.split_off(bottom))
    }

    /// The same for what may fail: an error leaves nothing behind but its value.
    pub(super) fn protected(
        &mut self,
        function: Value,
        arguments: &[Value],
    ) -> Ran<Result<Vec<Value>, Value>> {
        let (bottom, depth, nested) = (self.stack.len(), self.frames.len(), self.nested);
        let from_script = self.from_script;
        match self.call(function, arguments) {
            Ok(results) => Ok(Ok(results)),
            Err(Throw::Error(value)) => {
                self.stack.truncate(bottom);
                self.frames.truncate(depth);
                self.nested = nested;
                self.from_script = from_script;
                Ok(Err(value))
            }
            // What a run may not exceed, it may not survive either.
            Err(fatal) => Err(fatal),
        }
    }

    pub(super) fn push(&mut self, value: Value) -> Ran {
        if self.stack.len() >= STACK_MAX {
            return Err(self.raise("registry overflow"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Value {
        self.stack.pop().unwrap_or(Value::Nil)
    }

    /// Charges steps.
    pub(super) fn spend(&mut self, steps: usize) -> Ran {
        self.steps = self.steps.saturating_sub(steps as u64);
        if self.steps <= self.look { self.look_at_clock() } else { Ok(()) }
    }

    #[cold]
    fn look_at_clock(&mut self) -> Ran {
        if self.steps == 0 || (self.limits.clock)() > self.deadline {
            return Err(Throw::Deadline);
        }
        self.look = self.steps.saturating_sub(STEPS_PER_LOOK);
        Ok(())
    }

    pub(super) fn priority_class(&self) -> PriorityClass {
        self.limits.priority_class
    }

    /// Returns the place of the innermost line of the script that runs, as messages begin with it.
    pub(super) fn place(&self, level: usize) -> String {
        let frame = self.frames.len().checked_sub(level).or(self.frames.len().checked_sub(1));
        match frame.and_then(|at| self.frames.get(at)).or(self.frames.first()) {
            Some(frame) => format!("{SOURCE}:{}:", frame.prototype.line(frame.at.saturating_sub(1))),
            None => String::new(),
        }
    }

    /// Makes an error of a message, with its place before it.
    pub(super) fn raise(&mut self, message: &str) -> Throw {
        let text = format!("{} {message}", self.place(1));
        self.heap.text(text.as_bytes()).map_or_else(|fatal| fatal, Throw::Error)
    }

    /// How messages call the library function that runs.
    pub(super) fn called(&self) -> String {
        match self.frames.last() {
            Some(frame) if self.from_script => frame.prototype.called(frame.at.saturating_sub(1)).to_owned(),
            _ => "(anonymous)".to_owned(),
        }
    }

    /// Starts the call of what lies at `at` with `count` arguments above it. A library function runs at once; for a
    /// script's function a frame is made and `true` returned.
    fn begin(&mut self, at: usize, count: usize, results: Count) -> Ran<bool> {
        match self.stack[at] {
            Value::Closure(id) => {
                if self.frames.len() + self.nested >= FRAMES_MAX {
                    return Err(self.raise("stack overflow"));
                }
                let prototype = Arc::clone(&self.heap.closure_at(id).prototype);
                let extra = self.enter(&prototype, at + 1, count)?;
                self.frames.push(Frame { prototype, closure: id, base: at + 1, at: 0, results, extra });
                Ok(true)
            }
            Value::Native(native) => {
                let pushed = library::call(self, native, at + 1, count)?;
                let end = self.stack.len();
                let start = end - pushed;
                self.finish(at, start, results)?;
                Ok(false)
            }
            _ => Err(self.raise("attempt to call a non-function object")),
        }
    }

    /// Makes the arguments at `base` the variables of a function; returns those beyond its parameters.
    fn enter(&mut self, prototype: &Prototype, base: usize, count: usize) -> Ran<Vec<Value>> {
        let parameters = usize::from(prototype.parameters);
        let extra = if count > parameters {
            let extra = self.stack.split_off(base + parameters);
            if prototype.vararg { extra } else { Vec::new() }
        } else {
            Vec::new()
        };
        let end = base + usize::from(prototype.slots);
        if end >= STACK_MAX {
            return Err(self.raise("registry overflow"));
        }
        self.stack.resize(end.max(base + parameters), Value::Nil);
        Ok(extra)
    }

    /// Moves results that begin at `start` down to `to`, as many as are wanted.
    fn finish(&mut self, to: usize, start: usize, wanted: Count) -> Ran {
        self.stack.drain(to..start);
        match usize::try_from(wanted) {
            Ok(wanted) => self.stack.resize(to + wanted, Value::Nil),
            Err(_) => self.open = self.stack.len() - to,
        }
        if self.stack.len() > STACK_MAX {
            return Err(self.raise("registry overflow"));
        }
        Ok(())
    }

    /// Resolves a count of arguments: negative ones are fixed ones plus the open ones.
    fn count(&self, count: Count) -> usize {
        match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => usize::try_from(-1 - count).unwrap_or(0) + self.open,
        }
    }

    /// Runs until the frame above `depth` has returned.
    fn execute(&mut self, depth: usize) -> Ran {
        'frame: while self.frames.len() > depth {
            let top = self.frames.len() - 1;
            let frame = &self.frames[top];
            let (prototype, base, closure) = (Arc::clone(&frame.prototype), frame.base, frame.closure);
            let mut at = frame.at;
            loop {
                let op = prototype.code[at];
                at += 1;
                self.frames[top].at = at;
                self.steps = self.steps.saturating_sub(1);
                if self.steps <= self.look {
                    self.look_at_clock()?;
                }
                match op {
                    Op::Constant(constant) => self.push(prototype.constants[constant as usize].clone())?,
                    Op::Nil => self.push(Value::Nil)?,
                    Op::True => self.push(Value::Boolean(true))?,
                    Op::False => self.push(Value::Boolean(false))?,
                    Op::Local(slot) => {
                        let value = self.stack[base + usize::from(slot)].clone();
                        self.push(value)?;
                    }
                    Op::SetLocal(slot) => {
                        let value = self.pop();
                        self.stack[base + usize::from(slot)] = value;
                    }
                    Op::Cell(slot) => {
                        let value = match self.stack[base + usize::from(slot)] {
                            Value::Cell(cell) => self.heap.cell_value(cell).clone(),
                            // A jump forward has skipped the declaration.
                            _ => Value::Nil,
                        };
                        self.push(value)?;
                    }
                    Op::SetCell(slot) => {
                        let value = self.pop();
                        match self.stack[base + usize::from(slot)] {
                            Value::Cell(cell) => self.heap.set_cell(cell, value),
                            _ => {
                                self.stack[base + usize::from(slot)] = Value::Cell(self.heap.cell(value)?);
                            }
                        }
                    }
                    Op::NewCell(slot) => {
                        let value = self.pop();
                        self.stack[base + usize::from(slot)] = Value::Cell(self.heap.cell(value)?);
                    }
                    Op::Capture(slot) => {
                        let value = self.stack[base + usize::from(slot)].clone();
                        self.stack[base + usize::from(slot)] = Value::Cell(self.heap.cell(value)?);
                    }
                    Op::Upvalue(upvalue) => {
                        let cell = self.heap.closure_at(closure).upvalues[usize::from(upvalue)];
                        let value = self.heap.cell_value(cell).clone();
                        self.push(value)?;
                    }
                    Op::SetUpvalue(upvalue) => {
                        let value = self.pop();
                        let cell = self.heap.closure_at(closure).upvalues[usize::from(upvalue)];
                        self.heap.set_cell(cell, value);
                    }
                    Op::Global(name) => {
                        let (name, known) = &prototype.globals[name as usize];
                        let value = self.global(name, *known)?;
                        self.push(value)?;
                    }
                    Op::SetGlobal(name) => {
                        let value = self.pop();
                        let (name, known) = &prototype.globals[name as usize];
                        if known.is_some() && value.is_nil() {
                            self.all_globals()?;
                        }
                        self.heap.set(self.globals, Value::Text(name.clone()), value)?;
                    }
                    Op::Index => {
                        let key = self.pop();
                        let object = self.pop();
                        let value = self.index(&object, &key)?;
                        self.push(value)?;
                    }
                    Op::Field(key) => {
                        let object = self.pop();
                        let value = self.index(&object, &prototype.constants[key as usize])?;
                        self.push(value)?;
                    }
                    Op::SetIndex => {
                        let value = self.pop();
                        let key = self.pop();
                        let object = self.pop();
                        self.set_index(&object, key, value)?;
                    }
                    Op::SetField(key) => {
                        let value = self.pop();
                        let object = self.pop();
                        self.set_index(&object, prototype.constants[key as usize].clone(), value)?;
                    }
                    Op::SetBelow(below) => {
                        let value = self.pop();
                        let place = self.stack.len() - usize::from(below);
                        let (object, key) = (self.stack[place].clone(), self.stack[place + 1].clone());
                        self.set_index(&object, key, value)?;
                    }
                    Op::Method(key) => {
                        let object = self.pop();
                        let method = self.index(&object, &prototype.constants[key as usize])?;
                        self.push(method)?;
                        self.push(object)?;
                    }
                    Op::Table => {
                        let table = self.heap.table()?;
                        self.push(Value::Table(table))?;
                    }
                    Op::Item => {
                        let value = self.pop();
                        let key = self.pop();
                        let table = self.stack[self.stack.len() - 1].clone();
                        self.set_index(&table, key, value)?;
                    }
                    Op::ItemField(key) => {
                        let value = self.pop();
                        let table = self.stack[self.stack.len() - 1].clone();
                        self.set_index(&table, prototype.constants[key as usize].clone(), value)?;
                    }
                    Op::ItemAt(place) => {
                        let value = self.pop();
                        if let Value::Table(table) = self.stack[self.stack.len() - 1] {
                            self.heap.set_at(table, place as usize, value)?;
                        }
                    }
                    Op::ItemsFrom(place) => {
                        let values = self.stack.split_off(self.stack.len() - self.open);
                        if let Value::Table(table) = self.stack[self.stack.len() - 1] {
                            for (offset, value) in values.into_iter().enumerate() {
                                self.heap.set_at(table, place as usize + offset, value)?;
                            }
                        }
                    }
                    Op::Call { arguments, results } => {
                        let count = self.count(arguments);
                        let function = self.stack.len() - count - 1;
                        self.from_script = true;
                        if self.begin(function, count, results)? {
                            continue 'frame;
                        }
                    }
                    Op::TailCall { arguments } => {
                        let count = self.count(arguments);
                        let function = self.stack.len() - count - 1;
                        if let Value::Closure(id) = self.stack[function] {
                            self.stack.drain(base - 1..function);
                            let prototype = Arc::clone(&self.heap.closure_at(id).prototype);
                            let extra = self.enter(&prototype, base, count)?;
                            let frame = &mut self.frames[top];
                            (frame.prototype, frame.closure, frame.at, frame.extra) =
                                (prototype, id, 0, extra);
                        } else {
                            self.from_script = true;
                            self.begin(function, count, OPEN)?;
                            self.leave(function)?;
                        }
                        continue 'frame;
                    }
                    Op::Return(count) => {
                        let start = self.stack.len() - self.count(count);
                        self.leave(start)?;
                        continue 'frame;
                    }
                    Op::Vararg(count) => {
                        let extra = self.frames[top].extra.len();
                        let wanted = usize::try_from(count).unwrap_or(extra);
                        for place in 0..wanted {
                            let value = self.frames[top].extra.get(place).cloned().unwrap_or(Value::Nil);
                            self.push(value)?;
                        }
                        self.open = wanted;
                    }
                    Op::Closure(inner) => {
                        let inner = Arc::clone(&prototype.inner[inner as usize]);
                        let mut upvalues = Vec::with_capacity(inner.upvalues.len());
                        for captured in &inner.upvalues {
                            upvalues.push(match captured {
                                Captured::Upvalue(at) => {
                                    self.heap.closure_at(closure).upvalues[usize::from(*at)]
                                }
                                Captured::Slot(slot) => match self.stack[base + usize::from(*slot)] {
                                    Value::Cell(cell) => cell,
                                    _ => {
                                        let cell = self.heap.cell(Value::Nil)?;
                                        self.stack[base + usize::from(*slot)] = Value::Cell(cell);
                                        cell
                                    }
                                },
                            });
                        }
                        let made =
                            self.heap.closure(Closure { prototype: inner, upvalues: upvalues.into() })?;
                        self.push(made)?;
                    }
                    Op::Jump(target) => at = target as usize,
                    Op::JumpIfFalse(target) => {
                        if !self.pop().truthy() {
                            at = target as usize;
                        }
                    }
                    Op::JumpOr(target) => {
                        if self.stack[self.stack.len() - 1].truthy() {
                            at = target as usize;
                        } else {
                            self.stack.pop();
                        }
                    }
                    Op::JumpAnd(target) => {
                        if self.stack[self.stack.len() - 1].truthy() {
                            self.stack.pop();
                        } else {
                            at = target as usize;
                        }
                    }
                    Op::Not => {
                        let value = self.pop();
                        self.push(Value::Boolean(!value.truthy()))?;
                    }
                    Op::Negate => {
                        let number = match self.pop() {
                            Value::Number(number) => Some(number),
                            Value::Text(text) => numbers::parse(text.bytes()),
                            _ => None,
                        };
                        match number {
                            Some(number) => self.push(Value::Number(-number))?,
                            None => return Err(self.raise("__unm undefined")),
                        }
                    }
                    Op::Length => {
                        let length = match self.pop() {
                            Value::Text(text) => text.bytes().len(),
                            Value::Table(table) => {
                                let table = self.heap.at(table);
                                let (length, all) = (table.length(), table.array.len());
                                self.spend(all - length)?;
                                length
                            }
                            _ => return Err(self.raise("__len undefined")),
                        };
                        self.push(Value::Number(length as f64))?;
                    }
                    Op::Add | Op::Subtract | Op::Multiply | Op::Divide | Op::Modulo | Op::Power => {
                        let right = self.pop();
                        let left = self.pop();
                        let result = match (&left, &right) {
                            (Value::Number(left), Value::Number(right)) => arithmetic(op, *left, *right),
                            _ => self.coerced(op, &left, &right)?,
                        };
                        self.push(Value::Number(result))?;
                    }
                    Op::Concat(parts) => self.concat(usize::from(parts))?,
                    Op::Equal | Op::NotEqual => {
                        let right = self.pop();
                        let left = self.pop();
                        self.spend_on_key(&left)?;
                        self.push(Value::Boolean((left == right) == (op == Op::Equal)))?;
                    }
                    Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => {
                        let right = self.pop();
                        let left = self.pop();
                        let holds = match op {
                            Op::Less => self.compare(&left, &right)? == Some(Ordering::Less),
                            Op::LessEqual => self.compare(&left, &right)?.is_some_and(Ordering::is_le),
                            // The operands change places, also in messages.
                            Op::Greater => self.compare(&right, &left)? == Some(Ordering::Less),
                            _ => self.compare(&right, &left)?.is_some_and(Ordering::is_le),
                        };
                        self.push(Value::Boolean(holds))?;
                    }
                    Op::CountPrepare { slot, target } => {
                        let (counter, _, step) = self.counting(base + usize::from(slot), false)?;
                        self.stack[base + usize::from(slot)] = Value::Number(counter - step);
                        at = target as usize;
                    }
                    Op::CountNext { slot, target } => {
                        let (counter, limit, step) = self.counting(base + usize::from(slot), true)?;
                        let next = counter + step;
                        self.stack[base + usize::from(slot)] = Value::Number(next);
                        if (step > 0.0 && next <= limit) || (step <= 0.0 && next >= limit) {
                            self.push(Value::Number(next))?;
                            at = target as usize;
                        }
                    }
                    Op::EachTest { slot, results, target } => {
                        let first = self.stack.len() - usize::from(results);
                        if self.stack[first].is_nil() {
                            self.stack.truncate(first);
                            at = target as usize;
                        } else {
                            self.stack[base + usize::from(slot) + 2] = self.stack[first].clone();
                        }
                    }
                    Op::Pop(count) => self.stack.truncate(self.stack.len() - usize::from(count)),
                }
            }
        }
        Ok(())
    }

    /// Ends the innermost frame, with its results from `start` on.
    fn leave(&mut self, start: usize) -> Ran {
        if let Some(frame) = self.frames.pop() {
            self.finish(frame.base - 1, start, frame.results)?;
        }
        Ok(())
    }

    fn counting(&mut self, slot: usize, with_limit: bool) -> Ran<(f64, f64, f64)> {
        let part = |machine: &Self, at: usize| match machine.stack[slot + at] {
            Value::Number(number) => Some(number),
            _ => None,
        };
        let Some(counter) = part(self, 0) else {
            return Err(self.raise("for statement init must be a number"));
        };
        let limit = part(self, 1);
        if with_limit && limit.is_none() {
            return Err(self.raise("for statement limit must be a number"));
        }
        let Some(step) = part(self, 2) else { return Err(self.raise("for statement step must be a number")) };
        Ok((counter, limit.unwrap_or(0.0), step))
    }

    pub(super) fn global(&mut self, name: &Text, known: Option<Global>) -> Ran<Value> {
        let value = self.heap.at(self.globals).get(&Value::Text(name.clone()));
        match known {
            Some(known) if value.is_nil() && self.libraries[Library::Globals as usize].is_none() => {
                self.standard(known)
            }
            _ => Ok(value),
        }
    }

    fn standard(&mut self, known: Global) -> Ran<Value> {
        Ok(match known {
            Global::Native(native) => Value::Native(native),
            Global::Library(library) => Value::Table(self.library(library)?),
            Global::Version => self.heap.text(b"Lua 5.1")?,
        })
    }

    /// Writes all standard names into the table of globals: from now on only that counts.
    fn all_globals(&mut self) -> Ran {
        if self.libraries[Library::Globals as usize].is_some() {
            return Ok(());
        }
        for (name, known) in Global::all() {
            if self.heap.at(self.globals).get_text(name.as_bytes()).is_nil() {
                let value = match known {
                    Global::Library(Library::Globals) => Value::Table(self.globals),
                    other => self.standard(other)?,
                };
                let name = self.heap.text(name.as_bytes())?;
                self.heap.set(self.globals, name, value)?;
            }
        }
        self.libraries[Library::Globals as usize] = Some(self.globals);
        Ok(())
    }

    /// Returns the table of a library, made when it is first asked for.
    pub(super) fn library(&mut self, library: Library) -> Ran<TableId> {
        if let Some(made) = self.libraries[library as usize] {
            return Ok(made);
        }
        if library == Library::Globals {
            self.all_globals()?;
            return Ok(self.globals);
        }
        let table = self.heap.table()?;
        self.libraries[library as usize] = Some(table);
        for (name, value) in library::members(library) {
            let name = self.heap.text(name.as_bytes())?;
            self.heap.set(table, name, value)?;
        }
        Ok(table)
    }

    fn index(&mut self, object: &Value, key: &Value) -> Ran<Value> {
        self.spend_on_key(key)?;
        match object {
            Value::Table(table) => Ok(self.heap.at(*table).get(key)),
            Value::Text(_) => {
                let library = self.library(Library::String)?;
                Ok(self.heap.at(library).get(key))
            }
            other => Err(self.not_a_table(other, key)),
        }
    }

    /// Finding a key costs as much as it is long.
    fn spend_on_key(&mut self, key: &Value) -> Ran {
        match key {
            Value::Text(text) if text.bytes().len() > 128 => self.spend(text.bytes().len() / 8),
            _ => Ok(()),
        }
    }

    fn not_a_table(&mut self, object: &Value, key: &Value) -> Throw {
        let key = library::display(key);
        let text = format!(
            "attempt to index a non-table object({}) with key '{}'",
            object.type_name(),
            String::from_utf8_lossy(&key[..key.len().min(200)])
        );
        self.raise(&text)
    }

    fn set_index(&mut self, object: &Value, key: Value, value: Value) -> Ran {
        let Value::Table(table) = object else { return Err(self.not_a_table(object, &key)) };
        self.spend_on_key(&key)?;
        match key {
            Value::Nil => Err(self.raise("table index is nil")),
            Value::Number(number) if number.is_nan() => Err(self.raise("table index is NaN")),
            key => self.heap.set(*table, key, value),
        }
    }
}
