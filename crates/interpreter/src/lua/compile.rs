//! Turns the tree of a function into instructions.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Binary, Block, Expression, Function, Item, Source, Statement, Suffix, Unary, VariableId};
use super::code::{Captured, Count, OPEN, Op, Prototype};
use super::library::Global;
use super::value::{Text, Value};

/// Returns the instructions of a function and of all functions inside of it.
///
/// # Errors
/// Says so when a function is larger than the counters of the machine.
pub(super) fn compile(function: &Function) -> Result<Arc<Prototype>, String> {
    let mut compiler = Compiler::new(function);
    for parameter in &function.parameters {
        if function.variables[*parameter].captured {
            compiler.emit(Op::Capture(function.variables[*parameter].slot), function.line);
        }
    }
    compiler.block(&function.body)?;
    compiler.emit(Op::Return(0), compiler.last_line);
    Ok(Arc::new(compiler.finish(function)))
}

/// Labels with their places, and jumps with the label that they wait for.
type Labels = (HashMap<String, usize>, Vec<(usize, String)>);

struct Compiler<'a> {
    function: &'a Function,
    code: Vec<Op>,
    lines: Vec<u32>,
    constants: Vec<Value>,
    texts: HashMap<Vec<u8>, u32>,
    numbers: HashMap<u64, u32>,
    globals: Vec<(Text, Option<Global>)>,
    known_globals: HashMap<String, u32>,
    inner: Vec<Arc<Prototype>>,
    calls: Vec<(u32, String)>,
    /// For each open loop the jumps that leave it.
    breaks: Vec<Vec<usize>>,
    /// For each open block its labels and the jumps that wait for one.
    blocks: Vec<Labels>,
    last_line: u32,
}

type Compiled<T = ()> = Result<T, String>;

fn too_large() -> String {
    "function or expression needs too many registers".to_owned()
}

fn small(count: usize) -> Compiled<u16> {
    // Counts are signed in the machine.
    u16::try_from(count).ok().filter(|count| *count < 0x7fff).ok_or_else(too_large)
}

fn counted(count: usize) -> Compiled<Count> {
    Count::try_from(count).map_err(|_| too_large())
}

fn wide(count: usize) -> Compiled<u32> {
    u32::try_from(count).map_err(|_| too_large())
}

impl<'a> Compiler<'a> {
    fn new(function: &'a Function) -> Self {
        Self {
            function,
            code: Vec::new(),
            lines: Vec::new(),
            constants: Vec::new(),
            texts: HashMap::new(),
            numbers: HashMap::new(),
            globals: Vec::new(),
            known_globals: HashMap::new(),
            inner: Vec::new(),
            calls: Vec::new(),
            breaks: Vec::new(),
            blocks: Vec::new(),
            last_line: function.line,
        }
    }

    fn finish(self, function: &Function) -> Prototype {
        Prototype {
            code: self.code,
            lines: self.lines,
            constants: self.constants,
            globals: self.globals,
            inner: self.inner,
            upvalues: Vec::new(),
            parameters: u16::try_from(function.parameters.len()).unwrap_or(u16::MAX),
            vararg: function.vararg,
            slots: function.slots,
            calls: self.calls,
        }
    }

    fn emit(&mut self, op: Op, line: u32) -> usize {
        self.last_line = line;
        self.code.push(op);
        self.lines.push(line);
        self.code.len() - 1
    }

    fn here(&self) -> usize {
        self.code.len()
    }

    /// Points the jump at `at` to the next instruction.
    fn land(&mut self, at: usize) -> Compiled {
        self.land_at(at, self.here())
    }

    fn land_at(&mut self, at: usize, place: usize) -> Compiled {
        let place = wide(place)?;
        match &mut self.code[at] {
            Op::Jump(target) | Op::JumpIfFalse(target) | Op::JumpOr(target) | Op::JumpAnd(target) => {
                *target = place
            }
            Op::CountPrepare { target, .. } | Op::CountNext { target, .. } | Op::EachTest { target, .. } => {
                *target = place;
            }
            other => unreachable!("{other:?} does not jump"),
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Compiled<u32> {
        if let Some(known) = self.texts.get(text) {
            return Ok(*known);
        }
        let at = wide(self.constants.len())?;
        self.constants.push(Value::Text(Text::constant(text)));
        self.texts.insert(text.to_vec(), at);
        Ok(at)
    }

    fn number(&mut self, number: f64) -> Compiled<u32> {
        if let Some(known) = self.numbers.get(&number.to_bits()) {
            return Ok(*known);
        }
        let at = wide(self.constants.len())?;
        self.constants.push(Value::Number(number));
        self.numbers.insert(number.to_bits(), at);
        Ok(at)
    }

    fn global(&mut self, name: &str) -> Compiled<u32> {
        if let Some(known) = self.known_globals.get(name) {
            return Ok(*known);
        }
        let at = wide(self.globals.len())?;
        self.globals.push((Text::constant(name.as_bytes()), Global::named(name)));
        self.known_globals.insert(name.to_owned(), at);
        Ok(at)
    }

    fn slot(&self, variable: VariableId) -> u16 {
        self.function.variables[variable].slot
    }

    fn captured(&self, variable: VariableId) -> bool {
        self.function.variables[variable].captured
    }

    /// Pops the first value of a new variable.
    fn declare(&mut self, variable: VariableId, line: u32) {
        let slot = self.slot(variable);
        self.emit(if self.captured(variable) { Op::NewCell(slot) } else { Op::SetLocal(slot) }, line);
    }

    fn block(&mut self, block: &Block) -> Compiled {
        self.blocks.push((HashMap::new(), Vec::new()));
        self.statements(block)?;
        self.close_block()
    }

    fn statements(&mut self, block: &Block) -> Compiled {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    fn close_block(&mut self) -> Compiled {
        let (labels, jumps) = self.blocks.pop().expect("it was pushed when the block began");
        for (at, label) in jumps {
            match labels.get(&label) {
                Some(place) => self.land_at(at, *place)?,
                // The parser has made sure that some block around has the label.
                None => {
                    if let Some((_, outer)) = self.blocks.last_mut() {
                        outer.push((at, label));
                    }
                }
            }
        }
        Ok(())
    }

    fn looped(&mut self, body: &Block) -> Compiled {
        self.breaks.push(Vec::new());
        self.block(body)
    }

    fn end_loop(&mut self) -> Compiled {
        let breaks = self.breaks.pop().expect("it was pushed when the loop began");
        breaks.into_iter().try_for_each(|at| self.land(at))
    }

    fn statement(&mut self, statement: &Statement) -> Compiled {
        match statement {
            Statement::Local { variables, values, line } => {
                self.adjusted(values, variables.len(), *line)?;
                for variable in variables.iter().rev() {
                    self.declare(*variable, *line);
                }
            }
            Statement::LocalFunction { variable, function, line } => {
                if self.captured(*variable) {
                    self.emit(Op::Nil, *line);
                    self.declare(*variable, *line);
                }
                self.closure(function)?;
                self.store_local(*variable, *line);
            }
            Statement::Assign { targets, values, line } => self.assign(targets, values, *line)?,
            Statement::Call(call) => {
                self.expression(call)?;
                self.emit(Op::Pop(1), self.last_line);
            }
            Statement::Do(body) => self.block(body)?,
            Statement::While { condition, body, line } => {
                self.last_line = *line;
                let start = wide(self.here())?;
                self.expression(condition)?;
                let out = self.emit(Op::JumpIfFalse(0), self.last_line);
                self.looped(body)?;
                self.emit(Op::Jump(start), self.last_line);
                self.land(out)?;
                self.end_loop()?;
            }
            Statement::Repeat { body, condition } => {
                let start = wide(self.here())?;
                self.breaks.push(Vec::new());
                self.blocks.push((HashMap::new(), Vec::new()));
                self.statements(body)?;
                self.expression(condition)?;
                self.emit(Op::JumpIfFalse(start), self.last_line);
                self.close_block()?;
                self.end_loop()?;
            }
            Statement::If { arms, otherwise } => self.conditional(arms, otherwise.as_ref())?,
            Statement::Count { slot, variable, start, limit, step, body, line } => {
                self.expression(start)?;
                self.expression(limit)?;
                match step {
                    Some(step) => self.expression(step)?,
                    None => {
                        let one = self.number(1.0)?;
                        self.emit(Op::Constant(one), *line);
                    }
                }
                for hidden in (0..3).rev() {
                    self.emit(Op::SetLocal(slot + hidden), *line);
                }
                let prepare = self.emit(Op::CountPrepare { slot: *slot, target: 0 }, *line);
                let body_start = wide(self.here())?;
                self.declare(*variable, *line);
                self.looped(body)?;
                self.land(prepare)?;
                self.emit(Op::CountNext { slot: *slot, target: body_start }, *line);
                self.end_loop()?;
            }
            Statement::Each { slot, variables, values, body, line } => {
                self.adjusted(values, 3, *line)?;
                for hidden in (0..3).rev() {
                    self.emit(Op::SetLocal(slot + hidden), *line);
                }
                let start = wide(self.here())?;
                for hidden in 0..3 {
                    self.emit(Op::Local(slot + hidden), *line);
                }
                let results = counted(variables.len())?;
                self.emit(Op::Call { arguments: 2, results }, *line);
                let results = small(variables.len())?;
                let test = self.emit(Op::EachTest { slot: *slot, results, target: 0 }, *line);
                for variable in variables.iter().rev() {
                    self.declare(*variable, *line);
                }
                self.looped(body)?;
                self.emit(Op::Jump(start), *line);
                self.land(test)?;
                self.end_loop()?;
            }
            Statement::Return { values, line } => self.returned(values, *line)?,
            Statement::Break => {
                let at = self.emit(Op::Jump(0), self.last_line);
                self.breaks.last_mut().expect("the parser refuses a break outside of loops").push(at);
            }
            Statement::Goto(label) => {
                let at = self.emit(Op::Jump(0), self.last_line);
                self.blocks.last_mut().expect("statements stand in blocks").1.push((at, label.clone()));
            }
            Statement::Label(label) => {
                let here = self.here();
                self.blocks.last_mut().expect("statements stand in blocks").0.insert(label.clone(), here);
            }
        }
        Ok(())
    }

    fn conditional(&mut self, arms: &[(Expression, Block)], otherwise: Option<&Block>) -> Compiled {
        let mut ends = Vec::new();
        for (at, (condition, body)) in arms.iter().enumerate() {
            self.expression(condition)?;
            let skip = self.emit(Op::JumpIfFalse(0), self.last_line);
            self.block(body)?;
            if at + 1 < arms.len() || otherwise.is_some() {
                ends.push(self.emit(Op::Jump(0), self.last_line));
            }
            self.land(skip)?;
        }
        if let Some(body) = otherwise {
            self.block(body)?;
        }
        ends.into_iter().try_for_each(|at| self.land(at))
    }

    fn returned(&mut self, values: &[Expression], line: u32) -> Compiled {
        if let [Expression::Suffixed { head, suffixes }] = values
            && let Some((last @ (Suffix::Call { .. } | Suffix::Method { .. }), before)) =
                suffixes.split_last()
        {
            self.suffixed(head, before)?;
            let (arguments, name, line) = self.prepare_call(last)?;
            self.calls.push((wide(self.here())?, name));
            self.emit(Op::TailCall { arguments }, line);
            return Ok(());
        }
        let count = self.open_list(values)?;
        self.emit(Op::Return(count), line);
        Ok(())
    }

    fn store_local(&mut self, variable: VariableId, line: u32) {
        let slot = self.slot(variable);
        self.emit(if self.captured(variable) { Op::SetCell(slot) } else { Op::SetLocal(slot) }, line);
    }

    fn store_name(&mut self, target: &Expression, line: u32) -> Compiled {
        match target {
            Expression::Local(variable) => self.store_local(*variable, line),
            Expression::Upvalue(at) => {
                self.emit(Op::SetUpvalue(*at), line);
            }
            Expression::Global(name, _) => {
                let name = self.global(name)?;
                self.emit(Op::SetGlobal(name), line);
            }
            _ => unreachable!("fields are stored by their own instructions"),
        }
        Ok(())
    }

    fn assign(&mut self, targets: &[Expression], values: &[Expression], line: u32) -> Compiled {
        if let ([target], [value]) = (targets, values) {
            if let Expression::Suffixed { head, suffixes } = target
                && let Some((Suffix::Index(key, at), before)) = suffixes.split_last()
            {
                self.suffixed(head, before)?;
                if let Expression::Text(name) = key {
                    self.expression(value)?;
                    let name = self.text(name)?;
                    self.emit(Op::SetField(name), *at);
                } else {
                    self.expression(key)?;
                    self.expression(value)?;
                    self.emit(Op::SetIndex, *at);
                }
                return Ok(());
            }
            self.expression(value)?;
            return self.store_name(target, line);
        }
        // Objects and keys first, then the values; stored from the last to the first.
        let mut indexed = 0;
        for target in targets {
            if let Expression::Suffixed { head, suffixes } = target
                && let Some((Suffix::Index(key, _), before)) = suffixes.split_last()
            {
                self.suffixed(head, before)?;
                self.expression(key)?;
                indexed += 1;
            }
        }
        self.adjusted(values, targets.len(), line)?;
        let mut pair = indexed;
        for (at, target) in targets.iter().enumerate().rev() {
            if matches!(target, Expression::Suffixed { .. }) {
                pair -= 1;
                // Below the value are the other values and the pairs behind this one.
                let below = at + 2 * (indexed - pair);
                self.emit(Op::SetBelow(small(below)?), line);
            } else {
                self.store_name(target, line)?;
            }
        }
        if indexed > 0 {
            self.emit(Op::Pop(small(2 * indexed)?), line);
        }
        Ok(())
    }

    /// Pushes exactly `wanted` values.
    fn adjusted(&mut self, values: &[Expression], wanted: usize, line: u32) -> Compiled {
        for (at, value) in values.iter().enumerate() {
            let missing = wanted.saturating_sub(at);
            if at + 1 == values.len() && missing > 1 {
                return self.several(value, counted(missing)?);
            }
            self.expression(value)?;
            if missing == 0 {
                self.emit(Op::Pop(1), line);
            }
        }
        for _ in values.len()..wanted {
            self.emit(Op::Nil, line);
        }
        Ok(())
    }

    /// Pushes all values; [`OPEN`] when their number is only known when the script runs.
    fn open_list(&mut self, values: &[Expression]) -> Compiled<Count> {
        let Some((last, before)) = values.split_last() else { return Ok(0) };
        for value in before {
            self.expression(value)?;
        }
        if is_multiple(last) {
            self.several(last, OPEN)?;
            // The fixed ones before it count too; the machine is told by the negative number how many they are.
            return Ok(-1 - counted(before.len())?);
        }
        self.expression(last)?;
        counted(values.len())
    }

    /// Pushes `count` values of an expression that may have several.
    fn several(&mut self, expression: &Expression, count: Count) -> Compiled {
        match expression {
            Expression::Vararg(line) => {
                self.emit(Op::Vararg(count), *line);
            }
            Expression::Suffixed { head, suffixes }
                if matches!(suffixes.last(), Some(Suffix::Call { .. } | Suffix::Method { .. })) =>
            {
                let (last, before) = suffixes.split_last().expect("there is a last one");
                self.suffixed(head, before)?;
                self.call(last, count)?;
            }
            single => {
                self.expression(single)?;
                for _ in 1..count {
                    self.emit(Op::Nil, self.last_line);
                }
            }
        }
        Ok(())
    }

    fn closure(&mut self, function: &Function) -> Compiled {
        let prototype = compile(function)?;
        let mut prototype = Arc::into_inner(prototype).expect("nobody else has it yet");
        prototype.upvalues = function
            .upvalues
            .iter()
            .map(|source| match source {
                Source::Local(variable) => Captured::Slot(self.slot(*variable)),
                Source::Upvalue(at) => Captured::Upvalue(*at),
            })
            .collect();
        let at = wide(self.inner.len())?;
        self.inner.push(Arc::new(prototype));
        self.emit(Op::Closure(at), function.line);
        Ok(())
    }

    /// Pushes one value.
    fn expression(&mut self, expression: &Expression) -> Compiled {
        match expression {
            Expression::Nil => {
                self.emit(Op::Nil, self.last_line);
            }
            Expression::Boolean(value) => {
                self.emit(if *value { Op::True } else { Op::False }, self.last_line);
            }
            Expression::Number(number) => {
                let at = self.number(*number)?;
                self.emit(Op::Constant(at), self.last_line);
            }
            Expression::Text(text) => {
                let at = self.text(text)?;
                self.emit(Op::Constant(at), self.last_line);
            }
            Expression::Vararg(line) => {
                self.emit(Op::Vararg(1), *line);
            }
            Expression::Function(function) => self.closure(function)?,
            Expression::Local(variable) => {
                let slot = self.slot(*variable);
                self.emit(
                    if self.captured(*variable) { Op::Cell(slot) } else { Op::Local(slot) },
                    self.last_line,
                );
            }
            Expression::Upvalue(at) => {
                self.emit(Op::Upvalue(*at), self.last_line);
            }
            Expression::Global(name, line) => {
                let name = self.global(name)?;
                self.emit(Op::Global(name), *line);
            }
            Expression::Single(inner) => self.expression(inner)?,
            Expression::Suffixed { head, suffixes } => self.suffixed(head, suffixes)?,
            Expression::Unary(operator, operand, line) => {
                self.expression(operand)?;
                let op = match operator {
                    Unary::Not => Op::Not,
                    Unary::Negate => Op::Negate,
                    Unary::Length => Op::Length,
                };
                self.emit(op, *line);
            }
            Expression::Chain { first, rest } => self.chain(first, rest)?,
            Expression::Table(items, line) => self.table(items, *line)?,
        }
        Ok(())
    }

    fn chain(&mut self, first: &Expression, rest: &[(Binary, Expression, u32)]) -> Compiled {
        self.expression(first)?;
        for (operator, right, line) in rest {
            let op = match operator {
                Binary::And | Binary::Or => {
                    let jump = if *operator == Binary::And { Op::JumpAnd(0) } else { Op::JumpOr(0) };
                    let at = self.emit(jump, *line);
                    self.expression(right)?;
                    self.land(at)?;
                    continue;
                }
                Binary::Concat => {
                    let parts = 1 + self.concat_parts(right)?;
                    self.emit(Op::Concat(small(parts)?), *line);
                    continue;
                }
                Binary::Add => Op::Add,
                Binary::Subtract => Op::Subtract,
                Binary::Multiply => Op::Multiply,
                Binary::Divide => Op::Divide,
                Binary::Modulo => Op::Modulo,
                Binary::Power => Op::Power,
                Binary::Equal => Op::Equal,
                Binary::NotEqual => Op::NotEqual,
                Binary::Less => Op::Less,
                Binary::LessEqual => Op::LessEqual,
                Binary::Greater => Op::Greater,
                Binary::GreaterEqual => Op::GreaterEqual,
            };
            self.expression(right)?;
            self.emit(op, *line);
        }
        Ok(())
    }

    /// Pushes the parts of `a .. b .. c` that stand right of the first sign, so that one instruction joins them all.
    fn concat_parts(&mut self, right: &Expression) -> Compiled<usize> {
        if let Expression::Chain { first, rest } = right
            && let Some(((Binary::Concat, last, _), before)) = rest.split_last()
        {
            self.chain(first, before)?;
            return Ok(1 + self.concat_parts(last)?);
        }
        self.expression(right)?;
        Ok(1)
    }

    fn suffixed(&mut self, head: &Expression, suffixes: &[Suffix]) -> Compiled {
        self.expression(head)?;
        for suffix in suffixes {
            match suffix {
                Suffix::Index(Expression::Text(name), line) => {
                    let name = self.text(name)?;
                    self.emit(Op::Field(name), *line);
                }
                Suffix::Index(key, line) => {
                    self.expression(key)?;
                    self.emit(Op::Index, *line);
                }
                call => self.call(call, 1)?,
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Suffix, results: Count) -> Compiled {
        let (arguments, name, line) = self.prepare_call(call)?;
        self.calls.push((wide(self.here())?, name));
        self.emit(Op::Call { arguments, results }, line);
        Ok(())
    }

    /// With the function on the stack, pushes what it is called with.
    fn prepare_call(&mut self, call: &Suffix) -> Compiled<(Count, String, u32)> {
        match call {
            Suffix::Call { arguments, name, line } => Ok((self.open_list(arguments)?, name.clone(), *line)),
            Suffix::Method { name, arguments, line } => {
                let key = self.text(name.as_bytes())?;
                self.emit(Op::Method(key), *line);
                let count = self.open_list(arguments)?;
                // The object itself is one more.
                Ok((if count < 0 { count - 1 } else { count + 1 }, name.clone(), *line))
            }
            Suffix::Index(..) => unreachable!("an index is not a call"),
        }
    }

    fn table(&mut self, items: &[Item], line: u32) -> Compiled {
        self.emit(Op::Table, line);
        let mut place = 0;
        for (at, item) in items.iter().enumerate() {
            match item {
                Item::Keyed(Expression::Text(name), value) => {
                    self.expression(value)?;
                    let name = self.text(name)?;
                    self.emit(Op::ItemField(name), line);
                }
                Item::Keyed(key, value) => {
                    self.expression(key)?;
                    self.expression(value)?;
                    self.emit(Op::Item, line);
                }
                Item::Positional(value) if at + 1 == items.len() && is_multiple(value) => {
                    self.several(value, OPEN)?;
                    self.emit(Op::ItemsFrom(wide(place)?), line);
                }
                Item::Positional(value) => {
                    self.expression(value)?;
                    self.emit(Op::ItemAt(wide(place)?), line);
                    place += 1;
                }
            }
        }
        Ok(())
    }
}

/// Returns whether an expression may have several values.
fn is_multiple(expression: &Expression) -> bool {
    match expression {
        Expression::Vararg(_) => true,
        Expression::Suffixed { suffixes, .. } => {
            matches!(suffixes.last(), Some(Suffix::Call { .. } | Suffix::Method { .. }))
        }
        _ => false,
    }
}
