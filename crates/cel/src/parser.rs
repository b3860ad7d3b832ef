//! From words to an expression, by recursive descent. Macros are recognised in [`crate::macros`].

use crate::CompileError;
use crate::ast::{Expr, Kind};
use crate::lexer::{self, Token, error};
use crate::macros;
use crate::value::Value;

/// Deep enough for anything a person writes, far from the end of a stack.
const MAX_DEPTH: usize = 200;

/// What an expression may begin with, as cel-go lists it.
const BEGINNINGS: &str = "'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER";

pub(crate) fn parse(source: &str) -> Result<Expr, CompileError> {
    let mut parser = Parser { tokens: lexer::split(source)?, at: 0, depth: 0 };
    let expr = parser.condition()?;
    if *parser.peek() != Token::End {
        return Err(parser.unexpected());
    }
    Ok(expr)
}

/// Returns the name that a chain of plain selections spells.
fn dotted(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.clone()),
        Kind::Select { of, field, optional: false } => Some(format!("{}.{field}", dotted(of)?)),
        _ => None,
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn position(&self) -> usize {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(known) if *known == sign);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), CompileError> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> CompileError {
        self.mismatched(BEGINNINGS)
    }

    fn mismatched(&self, expected: &str) -> CompileError {
        let shown = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::Ident(name) => name.clone(),
            Token::Int(n) => n.to_string(),
            other => format!("{other:?}"),
        };
        error(self.position(), format!("Syntax error: mismatched input '{shown}' expecting {{{expected}}}"))
    }

    fn deeper<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, CompileError>,
    ) -> Result<T, CompileError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(error(self.position(), "expression recursion limit exceeded: 250"));
        }
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn condition(&mut self) -> Result<Expr, CompileError> {
        self.deeper(|this| {
            let test = this.or()?;
            let at = this.position();
            if !this.take("?") {
                return Ok(test);
            }
            let yes = this.or()?;
            this.expect(":")?;
            let no = this.condition()?;
            Ok(Expr { kind: Kind::Condition(Box::new(test), Box::new(yes), Box::new(no)), at })
        })
    }

    fn or(&mut self) -> Result<Expr, CompileError> {
        let mut left = self.and()?;
        while matches!(self.peek(), Token::Sign("||")) {
            let at = self.position();
            self.next();
            let right = self.and()?;
            left = Expr { kind: Kind::Or(Box::new(left), Box::new(right)), at };
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr, CompileError> {
        let mut left = self.binary(0)?;
        while matches!(self.peek(), Token::Sign("&&")) {
            let at = self.position();
            self.next();
            let right = self.binary(0)?;
            left = Expr { kind: Kind::And(Box::new(left), Box::new(right)), at };
        }
        Ok(left)
    }

    /// Relations, then sums, then products.
    fn binary(&mut self, level: usize) -> Result<Expr, CompileError> {
        const LEVELS: [&[&str]; 3] =
            [&["==", "!=", "<=", ">=", "<", ">", "in"], &["+", "-"], &["*", "/", "%"]];
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let sign = match self.peek() {
                Token::Sign(sign) => signs.iter().find(|known| *known == sign),
                Token::Ident(word) if word == "in" => signs.iter().find(|known| **known == "in"),
                _ => None,
            };
            let Some(sign) = sign else { return Ok(left) };
            let at = self.position();
            self.next();
            let right = self.binary(level + 1)?;
            let name = format!("_{sign}_");
            left = Expr { kind: Kind::Call { target: None, name, args: vec![left, right] }, at };
        }
    }

    fn unary(&mut self) -> Result<Expr, CompileError> {
        let at = self.position();
        if self.take("!") {
            let inner = self.deeper(Self::unary)?;
            return Ok(Expr {
                kind: Kind::Call { target: None, name: "!_".to_owned(), args: vec![inner] },
                at,
            });
        }
        if self.take("-") {
            if *self.peek() == Token::MinInt {
                self.next();
                return Ok(Expr { kind: Kind::Literal(Value::Int(i64::MIN)), at });
            }
            let literal = match self.peek() {
                Token::Int(n) => Some(Value::Int(-n)),
                Token::Double(n) => Some(Value::Double(-n)),
                _ => None,
            };
            if let Some(literal) = literal {
                self.next();
                return self.member(Expr { kind: Kind::Literal(literal), at });
            }
            let inner = self.deeper(Self::unary)?;
            return Ok(Expr {
                kind: Kind::Call { target: None, name: "-_".to_owned(), args: vec![inner] },
                at,
            });
        }
        let primary = self.primary()?;
        self.member(primary)
    }

    fn member(&mut self, mut expr: Expr) -> Result<Expr, CompileError> {
        loop {
            let at = self.position();
            if self.take(".") {
                let optional = self.take("?");
                let Token::Ident(name) = self.next() else { return Err(self.unexpected()) };
                let open = self.position();
                if !optional && self.take("(") {
                    let args = self.list(")")?;
                    // cel-go finds a call at its bracket and a selection at its dot.
                    expr = macros::member(expr, name, args, open)?;
                } else {
                    expr = Expr { kind: Kind::Select { of: Box::new(expr), field: name, optional }, at };
                }
            } else if self.take("[") {
                let optional = self.take("?");
                let index = self.condition()?;
                self.expect("]")?;
                expr =
                    Expr { kind: Kind::Index { of: Box::new(expr), index: Box::new(index), optional }, at };
            } else if *self.peek() == Token::Sign("{")
                && let Some(name) = dotted(&expr)
            {
                self.next();
                expr = Expr { kind: Kind::Struct { name, fields: self.fields()? }, at };
            } else {
                return Ok(expr);
            }
        }
    }

    fn fields(&mut self) -> Result<Vec<(String, Expr, bool)>, CompileError> {
        let mut fields = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let Token::Ident(name) = self.next() else { return Err(self.unexpected()) };
            self.expect(":")?;
            fields.push((name, self.condition()?, optional));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(fields)
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expr>, CompileError> {
        let mut list = Vec::new();
        if self.take(end) {
            return Ok(list);
        }
        if *self.peek() == Token::End {
            return Err(self.mismatched(&BEGINNINGS.replacen("'('", &format!("'(', '{end}'"), 1)));
        }
        loop {
            list.push(self.condition()?);
            if !self.take(",") {
                self.expect(end)?;
                return Ok(list);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr, CompileError> {
        let at = self.position();
        let kind = match self.peek().clone() {
            Token::Int(n) => Kind::Literal(Value::Int(n)),
            Token::Uint(n) => Kind::Literal(Value::Uint(n)),
            Token::Double(n) => Kind::Literal(Value::Double(n)),
            Token::Text(text) => Kind::Literal(Value::String(text.into())),
            Token::Bytes(bytes) => Kind::Literal(Value::Bytes(bytes.into())),
            Token::Ident(name) => return self.name(name, at),
            Token::Sign(".") => {
                self.next();
                let Token::Ident(name) = self.peek().clone() else { return Err(self.unexpected()) };
                return self.name(name, at);
            }
            Token::Sign("(") => {
                self.next();
                let inner = self.condition()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => {
                self.next();
                let mut items = Vec::new();
                while !self.take("]") {
                    let optional = self.take("?");
                    items.push((self.condition()?, optional));
                    if !self.take(",") {
                        self.expect("]")?;
                        break;
                    }
                }
                return Ok(Expr { kind: Kind::List(items), at });
            }
            Token::Sign("{") => {
                self.next();
                return Ok(Expr { kind: Kind::Map(self.entries()?), at });
            }
            _ => return Err(self.unexpected()),
        };
        self.next();
        Ok(Expr { kind, at })
    }

    fn entries(&mut self) -> Result<Vec<(Expr, Expr, bool)>, CompileError> {
        let mut entries = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.condition()?;
            self.expect(":")?;
            entries.push((key, self.condition()?, optional));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(entries)
    }

    fn name(&mut self, name: String, at: usize) -> Result<Expr, CompileError> {
        self.next();
        let literal = match name.as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "null" => Some(Value::Null),
            _ => None,
        };
        if let Some(literal) = literal {
            return Ok(Expr { kind: Kind::Literal(literal), at });
        }
        if name == "in" {
            return Err(self.unexpected());
        }
        let open = self.position();
        if self.take("(") {
            let args = self.list(")")?;
            return macros::global(name, args, open);
        }
        Ok(Expr { kind: Kind::Ident(name), at })
    }
}
