//! Reads a Lua program into a tree.
//!
//! The language is that of Karmada's interpreter: Lua 5.1 with `goto`. In: the text. Out: the tree, or the first fault,
//! placed and worded as Karmada's parser does, since users search for those words. Names are resolved on the way: a
//! local variable becomes a slot of its function, one of an outer function an upvalue.
//!
//! A fault is reported at the end of the token that cannot follow what stands before it.

use std::collections::BTreeSet;

use super::ast::{
    Binary, Block, Expression, Function, Item, Source, Statement, Suffix, Unary, Variable, VariableId,
};
use super::numbers;
use super::scanner::{Scanner, Token, TokenKind, unquote};

/// The name under which scripts are compiled.
pub(super) const SOURCE: &str = "<string>";
/// Nesting beyond this is refused: it could only be meant to exhaust the stack.
const DEPTH_MAX: usize = 200;
/// As many variables may live at one time in a function; more than a script can sensibly have.
const SLOTS_MAX: u16 = 2000;
const UNARY_BINDING: u8 = 8;

/// Returns the main function of a script.
pub(super) fn parse(script: &str) -> Parsed<Function> {
    Parser::new(script).and_then(|mut parser| parser.chunk())
}

type Parsed<T = ()> = Result<T, String>;

/// What a function needs to know while its body is read.
#[derive(Default)]
struct Scope {
    vararg: bool,
    /// How many loops are open; a `break` needs one.
    loops: usize,
    /// Open blocks from outer to inner: labels seen and jumps still to be matched.
    blocks: Vec<Labels>,
    variables: Vec<Variable>,
    /// The names that can be seen, from outer to inner.
    visible: Vec<(String, VariableId)>,
    upvalues: Vec<(String, Source)>,
    /// The next slot that is not in use.
    free: u16,
    slots: u16,
}

#[derive(Default)]
struct Labels {
    labels: BTreeSet<String>,
    jumps: Vec<(String, usize)>,
    visible: usize,
    free: u16,
}

/// What stood at the end of an expression that may begin a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Variable,
    Call,
    Other,
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    token: Token<'a>,
    ahead: Option<Token<'a>>,
    scopes: Vec<Scope>,
    depth: usize,
}

fn line_of(token: &Token<'_>) -> u32 {
    u32::try_from(token.line).unwrap_or(u32::MAX)
}

impl<'a> Parser<'a> {
    fn new(script: &'a str) -> Parsed<Self> {
        let mut scanner = Scanner::new(script);
        let token = scanner.next().map_err(|fault| fault.text(SOURCE))?;
        Ok(Self { scanner, token, ahead: None, scopes: Vec::new(), depth: 0 })
    }

    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("the main function stays while its body is read")
    }

    fn line(&self) -> u32 {
        line_of(&self.token)
    }

    fn advance(&mut self) -> Parsed<Token<'a>> {
        let next = match self.ahead.take() {
            Some(token) => token,
            None => self.scanner.next().map_err(|fault| fault.text(SOURCE))?,
        };
        Ok(std::mem::replace(&mut self.token, next))
    }

    fn fail<T>(&self, message: &str) -> Parsed<T> {
        Err(self.token.fault(message).text(SOURCE))
    }

    fn is(&self, text: &str) -> bool {
        self.token.is(text)
    }

    fn accept(&mut self, text: &str) -> Parsed<bool> {
        let found = self.is(text);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, text: &str) -> Parsed {
        if self.accept(text)? { Ok(()) } else { self.fail("syntax error") }
    }

    fn name(&mut self) -> Parsed<String> {
        if self.token.kind == TokenKind::Name {
            Ok(self.advance()?.text.into_owned())
        } else {
            self.fail("syntax error")
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH_MAX {
            return self.fail("chunk has too many syntax levels");
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn chunk(&mut self) -> Parsed<Function> {
        self.scopes.push(Scope { vararg: true, ..Scope::default() });
        let body = self.block()?;
        if self.token.kind != TokenKind::End {
            return self.fail("syntax error");
        }
        Ok(self.close(Vec::new(), body, 0))
    }

    /// Ends the innermost function.
    fn close(&mut self, parameters: Vec<VariableId>, body: Block, line: u32) -> Function {
        let scope = self.scopes.pop().expect("it was pushed before its body was read");
        Function {
            parameters,
            vararg: scope.vararg,
            body,
            variables: scope.variables,
            upvalues: scope.upvalues.into_iter().map(|(_, source)| source).collect(),
            slots: scope.slots,
            line,
        }
    }

    fn reserve(&mut self, count: u16) -> Parsed<u16> {
        let slot = self.scope().free;
        if slot + count > SLOTS_MAX {
            return self.fail("too many local variables");
        }
        let scope = self.scope();
        scope.free += count;
        scope.slots = scope.slots.max(scope.free);
        Ok(slot)
    }

    /// Makes a variable that cannot be seen yet.
    fn variable(&mut self) -> Parsed<VariableId> {
        let slot = self.reserve(1)?;
        let scope = self.scope();
        scope.variables.push(Variable { slot, captured: false });
        Ok(scope.variables.len() - 1)
    }

    fn show(&mut self, name: String, variable: VariableId) {
        self.scope().visible.push((name, variable));
    }

    fn resolve(&mut self, name: String, line: u32) -> Expression {
        let innermost = self.scopes.len() - 1;
        match self.find(innermost, &name) {
            Some(Source::Local(variable)) => Expression::Local(variable),
            Some(Source::Upvalue(at)) => Expression::Upvalue(at),
            None => Expression::Global(name, line),
        }
    }

    /// Finds a name as the function at `level` sees it; every function between makes it an upvalue of its own.
    /// The functions are walked from the outside, so that deep nesting costs no stack.
    fn find(&mut self, level: usize, name: &str) -> Option<Source> {
        let owner = (0..=level).rev().find_map(|at| {
            let visible = self.scopes[at].visible.iter().rev().find(|(known, _)| known == name);
            visible.map(|(_, variable)| (at, *variable))
        });
        let (owner, variable) = owner?;
        let mut source = Source::Local(variable);
        if owner == level {
            return Some(source);
        }
        self.scopes[owner].variables[variable].captured = true;
        for scope in &mut self.scopes[owner + 1..=level] {
            // The same name may mean different variables at different places, so the source counts.
            let known = scope.upvalues.iter().position(|(_, from)| *from == source);
            let at = known.unwrap_or_else(|| {
                scope.upvalues.push((name.to_owned(), source));
                scope.upvalues.len() - 1
            });
            source = Source::Upvalue(u16::try_from(at).unwrap_or(u16::MAX));
        }
        Some(source)
    }

    fn open_block(&mut self) {
        let scope = self.scope();
        let (visible, free) = (scope.visible.len(), scope.free);
        scope.blocks.push(Labels { visible, free, ..Labels::default() });
    }

    fn close_block(&mut self) -> Parsed {
        let scope = self.scope();
        let block = scope.blocks.pop().expect("it was pushed when the block began");
        scope.visible.truncate(block.visible);
        scope.free = block.free;
        for (label, line) in block.jumps {
            if block.labels.contains(&label) {
                continue;
            }
            match self.scope().blocks.last_mut() {
                Some(outer) => outer.jumps.push((label, line)),
                None => return Err(compile_fault(line, &format!("no visible label '{label}' for goto"))),
            }
        }
        Ok(())
    }

    /// Reads statements up to one that no statement can follow, or up to a token that cannot begin one.
    fn block(&mut self) -> Parsed<Block> {
        self.open_block();
        let statements = self.nested(Self::statements)?;
        self.close_block()?;
        Ok(statements)
    }

    fn statements(&mut self) -> Parsed<Block> {
        let mut statements = Vec::new();
        loop {
            if self.accept(";")? {
                continue;
            }
            if self.is("return") {
                let line = line_of(&self.advance()?);
                let ends = self.token.kind == TokenKind::End
                    || ["end", "else", "elseif", "until", ";"].into_iter().any(|word| self.is(word));
                let values = if ends { Vec::new() } else { self.expressions()? };
                self.accept(";")?;
                statements.push(Statement::Return { values, line });
                return Ok(statements);
            }
            if self.is("break") {
                let line = self.advance()?.line;
                if self.scope().loops == 0 {
                    return Err(compile_fault(line, "no loop to break"));
                }
                self.accept(";")?;
                statements.push(Statement::Break);
                return Ok(statements);
            }
            if self.token.kind == TokenKind::End
                || ["end", "else", "elseif", "until"].into_iter().any(|word| self.is(word))
            {
                return Ok(statements);
            }
            statements.push(self.statement()?);
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let line = self.line();
        if self.accept("do")? {
            let body = self.block()?;
            self.expect("end")?;
            return Ok(Statement::Do(body));
        }
        if self.accept("while")? {
            let condition = self.expression(0)?;
            self.expect("do")?;
            let body = self.looped()?;
            self.expect("end")?;
            return Ok(Statement::While { condition, body, line });
        }
        if self.accept("repeat")? {
            return self.repeat();
        }
        if self.accept("if")? {
            return self.conditional();
        }
        if self.accept("for")? {
            return self.for_loop(line);
        }
        if self.accept("function")? {
            return self.function_statement(line);
        }
        if self.accept("local")? {
            return self.local(line);
        }
        if self.is("goto") {
            let line = self.advance()?.line;
            let label = self.name()?;
            self.labels().jumps.push((label.clone(), line));
            return Ok(Statement::Goto(label));
        }
        if self.accept("::")? {
            let line = self.token.line;
            let label = self.name()?;
            if !self.labels().labels.insert(label.clone()) {
                return Err(compile_fault(line, &format!("label '{label}' already defined")));
            }
            self.expect("::")?;
            return Ok(Statement::Label(label));
        }
        self.assignment_or_call(line)
    }

    fn labels(&mut self) -> &mut Labels {
        self.scope().blocks.last_mut().expect("statements stand in blocks")
    }

    fn looped(&mut self) -> Parsed<Block> {
        self.scope().loops += 1;
        let body = self.block()?;
        self.scope().loops -= 1;
        Ok(body)
    }

    /// The condition sees the variables of the body.
    fn repeat(&mut self) -> Parsed<Statement> {
        self.scope().loops += 1;
        self.open_block();
        let body = self.nested(Self::statements)?;
        self.scope().loops -= 1;
        self.expect("until")?;
        let condition = self.expression(0)?;
        self.close_block()?;
        Ok(Statement::Repeat { body, condition })
    }

    fn conditional(&mut self) -> Parsed<Statement> {
        let mut arms = Vec::new();
        let mut otherwise = None;
        let condition = self.expression(0)?;
        self.expect("then")?;
        arms.push((condition, self.block()?));
        while self.accept("elseif")? {
            let condition = self.expression(0)?;
            self.expect("then")?;
            arms.push((condition, self.block()?));
        }
        if self.accept("else")? {
            otherwise = Some(self.block()?);
        }
        self.expect("end")?;
        Ok(Statement::If { arms, otherwise })
    }

    fn for_loop(&mut self, line: u32) -> Parsed<Statement> {
        let mut names = vec![self.name()?];
        if self.accept("=")? {
            let start = self.expression(0)?;
            self.expect(",")?;
            let limit = self.expression(0)?;
            let step = if self.accept(",")? { Some(self.expression(0)?) } else { None };
            self.expect("do")?;
            self.open_block();
            let slot = self.reserve(3)?;
            let variable = self.variable()?;
            self.show(names.remove(0), variable);
            let body = self.looped()?;
            self.close_block()?;
            self.expect("end")?;
            return Ok(Statement::Count { slot, variable, start, limit, step, body, line });
        }
        while self.accept(",")? {
            names.push(self.name()?);
        }
        self.expect("in")?;
        let values = self.expressions()?;
        self.expect("do")?;
        self.open_block();
        let slot = self.reserve(3)?;
        let mut variables = Vec::new();
        for name in names {
            let variable = self.variable()?;
            self.show(name, variable);
            variables.push(variable);
        }
        let body = self.looped()?;
        self.close_block()?;
        self.expect("end")?;
        Ok(Statement::Each { slot, variables, values, body, line })
    }

    fn function_statement(&mut self, line: u32) -> Parsed<Statement> {
        let name = self.name()?;
        let head = self.resolve(name, line);
        let mut path = Vec::new();
        while self.accept(".")? {
            path.push(self.name()?);
        }
        let method = self.accept(":")?;
        if method {
            path.push(self.name()?);
        }
        let function = self.body(method, line)?;
        let target = if path.is_empty() {
            head
        } else {
            let index = |name: String| Suffix::Index(Expression::Text(name.into_bytes()), line);
            Expression::Suffixed { head: Box::new(head), suffixes: path.into_iter().map(index).collect() }
        };
        let values = vec![Expression::Function(Box::new(function))];
        Ok(Statement::Assign { targets: vec![target], values, line })
    }

    fn local(&mut self, line: u32) -> Parsed<Statement> {
        if self.accept("function")? {
            let name = self.name()?;
            let variable = self.variable()?;
            self.show(name, variable);
            let function = Box::new(self.body(false, line)?);
            return Ok(Statement::LocalFunction { variable, function, line });
        }
        let mut names = vec![self.name()?];
        while self.accept(",")? {
            names.push(self.name()?);
        }
        let values = if self.accept("=")? { self.expressions()? } else { Vec::new() };
        let mut variables = Vec::new();
        for name in names {
            let variable = self.variable()?;
            self.show(name, variable);
            variables.push(variable);
        }
        Ok(Statement::Local { variables, values, line })
    }

    fn assignment_or_call(&mut self, line: u32) -> Parsed<Statement> {
        let (mut target, mut ending) = self.prefixed()?;
        if !self.is("=") && !self.is(",") {
            return if ending == Ending::Call {
                Ok(Statement::Call(target))
            } else {
                self.fail("parse error")
            };
        }
        let mut targets = Vec::new();
        loop {
            if ending != Ending::Variable {
                return self.fail("syntax error");
            }
            targets.push(target);
            if !self.accept(",")? {
                break;
            }
            (target, ending) = self.prefixed()?;
        }
        self.expect("=")?;
        let values = self.expressions()?;
        Ok(Statement::Assign { targets, values, line })
    }

    fn expressions(&mut self) -> Parsed<Vec<Expression>> {
        let mut expressions = vec![self.expression(0)?];
        while self.accept(",")? {
            expressions.push(self.expression(0)?);
        }
        Ok(expressions)
    }

    /// Reads an expression whose operators bind tighter than `least`.
    fn expression(&mut self, least: u8) -> Parsed<Expression> {
        self.nested(|parser| {
            let line = parser.line();
            let unary = [("not", Unary::Not), ("-", Unary::Negate), ("#", Unary::Length)]
                .into_iter()
                .find(|(sign, _)| parser.is(sign));
            let first = if let Some((_, operator)) = unary {
                parser.advance()?;
                let operand = parser.expression(UNARY_BINDING)?;
                Expression::Unary(operator, Box::new(operand), line)
            } else {
                parser.operand()?
            };
            parser.operators(first, least, line)
        })
    }

    fn operators(&mut self, first: Expression, least: u8, line: u32) -> Parsed<Expression> {
        let mut rest = Vec::new();
        while let Some((left, right)) = self.token.binding() {
            if left <= least {
                break;
            }
            let sign = self.advance()?;
            let operator = Binary::from_sign(&sign.text).expect("what binds is an operator");
            rest.push((operator, self.expression(right)?, line));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expression::Chain { first: Box::new(first), rest })
    }

    fn operand(&mut self) -> Parsed<Expression> {
        let kind = self.token.kind;
        match kind {
            TokenKind::Number => {
                let token = self.advance()?;
                // A leading zero is dropped once: 010 is ten. What Go cannot read is not a number there either.
                let digits = match token.raw {
                    [b'0', rest @ ..] if rest.first().is_some_and(u8::is_ascii_digit) => rest,
                    raw => raw,
                };
                Ok(Expression::Number(numbers::parse(digits).unwrap_or(f64::NAN)))
            }
            TokenKind::Text => Ok(Expression::Text(unquote(self.advance()?.raw))),
            _ if self.accept("nil")? => Ok(Expression::Nil),
            _ if self.accept("true")? => Ok(Expression::Boolean(true)),
            _ if self.accept("false")? => Ok(Expression::Boolean(false)),
            _ if self.is("...") => {
                let line = self.token.line;
                if !self.scope().vararg {
                    return Err(compile_fault(line, "cannot use '...' outside a vararg function"));
                }
                Ok(Expression::Vararg(line_of(&self.advance()?)))
            }
            _ if self.is("function") => {
                let line = line_of(&self.advance()?);
                Ok(Expression::Function(Box::new(self.body(false, line)?)))
            }
            _ if self.is("{") => self.table(),
            _ => self.prefixed().map(|(expression, _)| expression),
        }
    }

    /// Reads a variable, a call, or something in parentheses, with all that hangs behind it.
    fn prefixed(&mut self) -> Parsed<(Expression, Ending)> {
        let line = self.line();
        let mut called = "?".to_owned();
        let (head, mut ending) = if self.token.kind == TokenKind::Name {
            let name = self.name()?;
            called.clone_from(&name);
            (self.resolve(name, line), Ending::Variable)
        } else if self.accept("(")? {
            let (inner, call) = self.parenthesised()?;
            self.expect(")")?;
            (Expression::Single(Box::new(inner)), if call { Ending::Call } else { Ending::Other })
        } else {
            return self.fail("syntax error");
        };
        let mut suffixes = Vec::new();
        loop {
            if self.accept("[")? {
                let key = self.expression(0)?;
                self.expect("]")?;
                called = match &key {
                    Expression::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    _ => "?".to_owned(),
                };
                suffixes.push(Suffix::Index(key, line));
                ending = Ending::Variable;
            } else if self.accept(".")? {
                let name = self.name()?;
                called.clone_from(&name);
                suffixes.push(Suffix::Index(Expression::Text(name.into_bytes()), line));
                ending = Ending::Variable;
            } else if self.accept(":")? {
                let name = self.name()?;
                let Some(arguments) = self.arguments()? else { return self.fail("syntax error") };
                suffixes.push(Suffix::Method { name, arguments, line });
                called = "?".to_owned();
                ending = Ending::Call;
            } else if let Some(arguments) = self.arguments()? {
                let name = std::mem::replace(&mut called, "?".to_owned());
                suffixes.push(Suffix::Call { arguments, name, line });
                ending = Ending::Call;
            } else {
                break;
            }
        }
        let whole =
            if suffixes.is_empty() { head } else { Expression::Suffixed { head: Box::new(head), suffixes } };
        Ok((whole, ending))
    }

    /// Reads what stands in parentheses and says whether it is a call and nothing else.
    fn parenthesised(&mut self) -> Parsed<(Expression, bool)> {
        let may_be_call = self.token.kind == TokenKind::Name || self.is("(");
        if !may_be_call {
            return Ok((self.expression(0)?, false));
        }
        let line = self.line();
        let (first, ending) = self.nested(Self::prefixed)?;
        if self.is(")") {
            return Ok((first, ending == Ending::Call));
        }
        // It was the left operand of something larger.
        let whole = self.nested(|parser| parser.operators(first, 0, line))?;
        Ok((whole, false))
    }

    /// Reads the arguments of a call, if there are any.
    fn arguments(&mut self) -> Parsed<Option<Vec<Expression>>> {
        if self.token.kind == TokenKind::Text {
            return Ok(Some(vec![Expression::Text(unquote(self.advance()?.raw))]));
        }
        if self.is("{") {
            return Ok(Some(vec![self.table()?]));
        }
        if !self.is("(") {
            return Ok(None);
        }
        if self.token.after_closed_line {
            return self.fail("ambiguous syntax (function call x new statement)");
        }
        self.advance()?;
        let arguments = if self.is(")") { Vec::new() } else { self.expressions()? };
        self.expect(")")?;
        Ok(Some(arguments))
    }

    fn table(&mut self) -> Parsed<Expression> {
        let line = self.line();
        self.expect("{")?;
        let items = self.nested(|parser| {
            let mut items = Vec::new();
            while !parser.is("}") {
                items.push(if parser.accept("[")? {
                    let key = parser.expression(0)?;
                    parser.expect("]")?;
                    parser.expect("=")?;
                    Item::Keyed(key, parser.expression(0)?)
                } else if parser.token.kind == TokenKind::Name && parser.next_is("=")? {
                    let key = Expression::Text(parser.name()?.into_bytes());
                    parser.advance()?;
                    Item::Keyed(key, parser.expression(0)?)
                } else {
                    Item::Positional(parser.expression(0)?)
                });
                if !parser.accept(",")? && !parser.accept(";")? {
                    break;
                }
                // Behind the first field separators may pile up, as upstream.
                while parser.accept(",")? || parser.accept(";")? {}
            }
            Ok(items)
        })?;
        self.expect("}")?;
        Ok(Expression::Table(items, line))
    }

    fn next_is(&mut self, text: &str) -> Parsed<bool> {
        if self.ahead.is_none() {
            self.ahead = Some(self.scanner.next().map_err(|fault| fault.text(SOURCE))?);
        }
        Ok(self.ahead.as_ref().is_some_and(|token| token.is(text)))
    }

    /// Reads the parameters and the block of a function; a method has `self` before them.
    fn body(&mut self, method: bool, line: u32) -> Parsed<Function> {
        self.expect("(")?;
        let mut names = Vec::new();
        if method {
            names.push("self".to_owned());
        }
        let mut vararg = false;
        if !self.is(")") {
            loop {
                if self.accept("...")? {
                    vararg = true;
                    break;
                }
                names.push(self.name()?);
                if !self.accept(",")? {
                    break;
                }
            }
        }
        self.expect(")")?;
        self.scopes.push(Scope { vararg, ..Scope::default() });
        let mut parameters = Vec::new();
        for name in names {
            let variable = self.variable()?;
            self.show(name, variable);
            parameters.push(variable);
        }
        let body = self.block()?;
        let function = self.close(parameters, body, line);
        self.expect("end")?;
        Ok(function)
    }
}

fn compile_fault(line: usize, message: &str) -> String {
    format!("compile error near line({line}) {SOURCE}: {message}")
}

#[cfg(test)]
mod tests;
