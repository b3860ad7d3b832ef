//! The instructions of the machine: a stack of values, with the variables of a function at its bottom.

use std::sync::Arc;

use super::library::Global;
use super::value::{Text, Value};

/// How many values: a number, or all there are ([`OPEN`]), counted when the last of them was pushed.
pub(super) type Count = i16;
pub(super) const OPEN: Count = -1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Pushes a constant.
    Constant(u32),
    Nil,
    True,
    False,
    /// Pushes a variable of the function.
    Local(u16),
    SetLocal(u16),
    /// The same for a variable that an inner function uses too.
    Cell(u16),
    SetCell(u16),
    /// Pops the first value of a variable that an inner function will use.
    NewCell(u16),
    /// Moves a parameter into a cell.
    Capture(u16),
    Upvalue(u16),
    SetUpvalue(u16),
    Global(u32),
    SetGlobal(u32),
    /// Pops key and object, pushes the field.
    Index,
    /// The same with a constant key.
    Field(u32),
    /// Pops value, key and object.
    SetIndex,
    /// Pops value and object.
    SetField(u32),
    /// Pops a value; object and key are that many places below it.
    SetBelow(u16),
    /// Pops an object, pushes its method and the object.
    Method(u32),
    Table,
    /// Pops value and key, the table stays.
    Item,
    ItemField(u32),
    /// Pops one value, or all that are open, into the array from this place on.
    ItemAt(u32),
    ItemsFrom(u32),
    Call {
        arguments: Count,
        results: Count,
    },
    TailCall {
        arguments: Count,
    },
    Return(Count),
    Vararg(Count),
    Closure(u32),
    Jump(u32),
    /// Pops a condition.
    JumpIfFalse(u32),
    /// Jumps and keeps the value, or pops it and goes on.
    JumpOr(u32),
    JumpAnd(u32),
    Not,
    Negate,
    Length,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Concat(u16),
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Checks the three hidden values of a counting loop and jumps to its end.
    CountPrepare {
        slot: u16,
        target: u32,
    },
    /// Counts; pushes the value and jumps to the body while the limit is not passed.
    CountNext {
        slot: u16,
        target: u32,
    },
    /// Looks at what an iterator returned: nil pops all of it and jumps; else it becomes the control value.
    EachTest {
        slot: u16,
        results: u16,
        target: u32,
    },
    Pop(u16),
}

/// A function as compiled: immutable and shared between runs.
#[derive(Debug)]
pub(super) struct Prototype {
    pub(super) code: Vec<Op>,
    /// The line of each instruction.
    pub(super) lines: Vec<u32>,
    pub(super) constants: Vec<Value>,
    pub(super) globals: Vec<(Text, Option<Global>)>,
    pub(super) inner: Vec<Arc<Prototype>>,
    pub(super) upvalues: Vec<Captured>,
    pub(super) parameters: u16,
    pub(super) vararg: bool,
    pub(super) slots: u16,
    /// How messages call the functions that are called: (instruction, name), ascending.
    pub(super) calls: Vec<(u32, String)>,
}

/// What a closure takes along when it is made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Captured {
    /// The cell in a slot of the function that makes it.
    Slot(u16),
    /// An upvalue of that function.
    Upvalue(u16),
}

impl Prototype {
    pub(super) fn line(&self, at: usize) -> u32 {
        self.lines.get(at).copied().unwrap_or(0)
    }

    pub(super) fn called(&self, at: usize) -> &str {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        self.calls.binary_search_by_key(&at, |(pc, _)| *pc).map_or("?", |found| &self.calls[found].1)
    }
}
