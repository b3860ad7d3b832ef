//! What the machine does with operators: coercion, joining, comparing.

use std::cmp::Ordering;

use super::code::Op;
use super::library;
use super::machine::{Machine, Ran};
use super::numbers;
use super::value::Value;

impl Machine<'_> {
    pub(super) fn coerced(&mut self, op: Op, left: &Value, right: &Value) -> Ran<f64> {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            Value::Text(text) => numbers::parse(text.bytes()),
            _ => None,
        };
        if let (Some(left), Some(right)) = (number(left), number(right)) {
            return Ok(arithmetic(op, left, right));
        }
        let name = match op {
            Op::Add => "add",
            Op::Subtract => "sub",
            Op::Multiply => "mul",
            Op::Divide => "div",
            Op::Modulo => "mod",
            _ => "pow",
        };
        // A string that is a number counts as one in the message too.
        let kind = |value: &Value| if number(value).is_some() { "number" } else { value.type_name() };
        Err(self.raise(&format!(
            "cannot perform {name} operation between {} and {}",
            kind(left),
            kind(right)
        )))
    }

    pub(super) fn concat(&mut self, parts: usize) -> Ran {
        let start = self.stack.len() - parts;
        let joins = |value: &Value| matches!(value, Value::Text(_) | Value::Number(_));
        for at in (start..self.stack.len() - 1).rev() {
            let (left, right) = (&self.stack[at], &self.stack[at + 1]);
            if !joins(left) || !joins(right) {
                // What stands right was joined to a string already, unless it is the last.
                let joined = at + 2 < self.stack.len();
                let right = if joined { "string" } else { right.type_name() };
                let text =
                    format!("cannot perform concat operation between {} and {right}", left.type_name());
                return Err(self.raise(&text));
            }
        }
        let mut length = 0;
        for value in &self.stack[start..] {
            length += if let Value::Text(text) = value { text.bytes().len() } else { 24 };
        }
        self.spend(length / 16)?;
        self.heap.charge(length)?;
        let mut joined = Vec::with_capacity(length);
        for value in &self.stack[start..] {
            joined.extend_from_slice(&library::display(value));
        }
        self.stack.truncate(start);
        let text = self.heap.text_from(joined, length)?;
        self.push(text)
    }

    /// Compares two numbers or two strings.
    pub(super) fn compare(&mut self, left: &Value, right: &Value) -> Ran<Option<Ordering>> {
        match (left, right) {
            (Value::Number(left), Value::Number(right)) => Ok(left.partial_cmp(right)),
            (Value::Text(left), Value::Text(right)) => {
                self.spend(left.bytes().len().min(right.bytes().len()) / 32)?;
                Ok(Some(left.bytes().cmp(right.bytes())))
            }
            _ => {
                let text = format!("attempt to compare {} with {}", left.type_name(), right.type_name());
                Err(self.raise(&text))
            }
        }
    }
}

pub(super) fn arithmetic(op: Op, left: f64, right: f64) -> f64 {
    match op {
        Op::Add => left + right,
        Op::Subtract => left - right,
        Op::Multiply => left * right,
        Op::Divide => left / right,
        Op::Modulo => modulo(left, right),
        _ => left.powf(right),
    }
}

/// The remainder with the sign of the divisor.
pub(super) fn modulo(left: f64, right: f64) -> f64 {
    let rest = left % right;
    if (right > 0.0 && rest < 0.0) || (right < 0.0 && rest > 0.0) { rest + right } else { rest }
}
