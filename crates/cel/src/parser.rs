//! From words to an expression, by recursive descent.
//!
//! In: the source. Out: the expression, or everything that is wrong with its form. Where the words do not follow the grammar,
//! this parser only notices it: [`crate::syntax`] finds the words that cel-go has for it. Macros are in [`crate::macros`].

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use crate::Issue;
use crate::ast::{Ast, Entry, Expr, Field, Id, Kind};
use crate::lexer::{self, Token, Words, kind};
use crate::literals;
use crate::macros;
use crate::syntax;
use crate::value::Value;

/// How many selections, calls on values and operators may be nested in each other.
const MAX_DEPTH: usize = 250;
/// How deep rules of the grammar may be nested. Upstream allows 250, and has stacks that grow: ours must hold what the longest way
/// through the rules takes, in a build without optimizations as well.
const MAX_NESTING: usize = 100;
/// The longest expression, in characters.
const MAX_SIZE: usize = 100_000;

/// Words that cannot be names of variables or functions.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub(crate) fn parse(source: &str) -> Result<Ast, Vec<Issue>> {
    let size = source.chars().count();
    if size > MAX_SIZE {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {MAX_SIZE}");
        return Err(vec![Issue::nowhere(message)]);
    }
    let mut issues = Vec::new();
    let words = lexer::split(source, &mut issues);
    let mut parser =
        Parser { words, at: 0, depths: Depths::default(), offsets: Vec::new(), issues: Vec::new() };
    let parsed = parser
        .condition()
        .and_then(|built| if parser.peek() == kind::EOF { Ok(built) } else { Err(Stop::Syntax) });
    match parsed {
        Ok(built) => {
            issues.extend(parser.issues);
            if issues.is_empty() {
                return Ok(Ast { root: built.expr, offsets: parser.offsets });
            }
        }
        Err(Stop::Syntax) => syntax::explain(&parser.words, &mut issues),
        Err(Stop::TooDeep(message)) => {
            issues.extend(parser.issues);
            issues.push(Issue::nowhere(message));
        }
    }
    Err(issues)
}

/// Why parsing cannot go on.
pub(crate) enum Stop {
    Syntax,
    TooDeep(String),
}

/// An expression, and how many selections, calls on values and operators are nested in it.
struct Built {
    expr: Expr,
    depth: usize,
}

type Parsed = Result<Built, Stop>;

/// Rules of the grammar whose nesting is counted: one of them is always the deepest.
#[derive(Clone, Copy)]
enum Rule {
    Expression,
    Relation,
    Sum,
}

/// How deep it is in each of them.
#[derive(Default)]
struct Depths {
    expression: usize,
    relation: usize,
    sum: usize,
}

impl Depths {
    fn of(&mut self, rule: Rule) -> &mut usize {
        match rule {
            Rule::Expression => &mut self.expression,
            Rule::Relation => &mut self.relation,
            Rule::Sum => &mut self.sum,
        }
    }
}

pub(crate) struct Parser<'a> {
    words: Words<'a>,
    at: usize,
    depths: Depths,
    offsets: Vec<usize>,
    issues: Vec<Issue>,
}

impl Parser<'_> {
    /// Makes a number for a node at a place in the source.
    pub(crate) fn id(&mut self, offset: usize) -> Id {
        let id = self.offsets.len();
        self.offsets.push(offset);
        id
    }

    pub(crate) fn offset(&self, id: Id) -> usize {
        self.offsets.get(id).copied().unwrap_or_default()
    }

    pub(crate) fn node(&mut self, offset: usize, kind: Kind) -> Expr {
        Expr { id: self.id(offset), kind }
    }

    /// Notes what is wrong; returns something to go on with.
    pub(crate) fn complain(&mut self, offset: usize, message: impl Into<String>) -> Expr {
        self.issues.push(Issue::at(offset, message));
        self.node(offset, Kind::Literal(Value::Null))
    }

    fn ahead(&self, by: usize) -> Token {
        self.words.at(self.words.further(self.at, by))
    }

    fn peek(&self) -> u8 {
        self.ahead(0).kind
    }

    fn next(&mut self) -> Token {
        let token = self.ahead(0);
        self.at = self.words.further(self.at, 1);
        token
    }

    fn take(&mut self, kind: u8) -> Option<Token> {
        (self.peek() == kind).then(|| self.next())
    }

    fn expect(&mut self, kind: u8) -> Result<Token, Stop> {
        self.take(kind).ok_or(Stop::Syntax)
    }

    fn text(&self, token: Token) -> &str {
        self.words.text(token, token)
    }

    /// One more selection, call on a value or operator around what was built.
    fn around(&self, expr: Expr, inside: usize) -> Parsed {
        if inside >= MAX_DEPTH {
            return Err(Stop::TooDeep("max recursion depth exceeded".to_owned()));
        }
        Ok(Built { expr, depth: inside.saturating_add(1) })
    }

    fn deeper(&mut self, rule: Rule, run: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        let depth = self.depths.of(rule);
        *depth = depth.saturating_add(1);
        if *depth > MAX_NESTING {
            return Err(Stop::TooDeep(format!("expression recursion limit exceeded: {MAX_DEPTH}")));
        }
        let built = run(self);
        let depth = self.depths.of(rule);
        *depth = depth.saturating_sub(1);
        built
    }

    fn condition(&mut self) -> Parsed {
        self.deeper(Rule::Expression, Self::ternary)
    }

    fn ternary(&mut self) -> Parsed {
        let test = self.logic(kind::OR, "_||_")?;
        let Some(question) = self.take(kind::QUESTION) else { return Ok(test) };
        let yes = self.logic(kind::OR, "_||_")?;
        self.expect(kind::COLON)?;
        let no = self.condition()?;
        let depth = test.depth.max(yes.depth).max(no.depth);
        let kind = call("_?_:_", vec![test.expr, yes.expr, no.expr]);
        let expr = self.node(question.start, kind);
        self.around(expr, depth)
    }

    /// `||` and, below it, `&&`: long chains become balanced trees.
    fn logic(&mut self, sign: u8, function: &str) -> Parsed {
        let operand = |this: &mut Self| {
            if sign == kind::OR {
                this.logic(kind::AND, "_&&_")
            } else {
                this.deeper(Rule::Relation, |this| this.relation(false))
            }
        };
        let first = operand(self)?;
        let mut depth = first.depth;
        let (mut terms, mut signs) = (vec![first.expr], Vec::new());
        while let Some(token) = self.take(sign) {
            let next = operand(self)?;
            depth = depth.max(next.depth);
            terms.push(next.expr);
            signs.push(self.id(token.start));
        }
        let expr = balanced(function, &mut terms.into_iter(), &signs);
        Ok(Built { expr, depth })
    }

    fn relation(&mut self, is_right: bool) -> Parsed {
        let mut left = self.deeper(Rule::Sum, |this| this.sum(0))?;
        if is_right {
            return Ok(left);
        }
        loop {
            let function = match self.peek() {
                kind::EQUALS => "_==_",
                kind::NOT_EQUALS => "_!=_",
                kind::IN => "@in",
                kind::LESS => "_<_",
                kind::LESS_EQUALS => "_<=_",
                kind::GREATER_EQUALS => "_>=_",
                kind::GREATER => "_>_",
                _ => return Ok(left),
            };
            let token = self.next();
            let right = self.deeper(Rule::Relation, |this| this.relation(true))?;
            left = self.binary(function, token, left, right)?;
        }
    }

    fn binary(&mut self, function: &str, token: Token, left: Built, right: Built) -> Parsed {
        let depth = left.depth.max(right.depth);
        let expr = self.node(token.start, call(function, vec![left.expr, right.expr]));
        self.around(expr, depth)
    }

    /// Sums and, at the level above, products.
    fn sum(&mut self, level: usize) -> Parsed {
        let operand = |this: &mut Self| if level == 0 { this.sum(1) } else { this.unary() };
        let mut left = operand(self)?;
        loop {
            let function = match (level, self.peek()) {
                (0, kind::PLUS) => "_+_",
                (0, kind::MINUS) => "_-_",
                (1, kind::STAR) => "_*_",
                (1, kind::SLASH) => "_/_",
                (1, kind::PERCENT) => "_%_",
                _ => return Ok(left),
            };
            let token = self.next();
            let right = self.deeper(Rule::Sum, operand)?;
            left = self.binary(function, token, left, right)?;
        }
    }

    fn unary(&mut self) -> Parsed {
        let first = self.ahead(0);
        let is_literal = |this: &Self| matches!(this.ahead(1).kind, kind::INT | kind::FLOAT);
        let function = match first.kind {
            kind::NOT => "!_",
            kind::MINUS if !is_literal(self) => "-_",
            _ => return self.member(),
        };
        let mut even = true;
        while self.take(first.kind).is_some() {
            even = !even;
        }
        let Built { expr, depth } = self.member()?;
        if even {
            return Ok(Built { expr, depth });
        }
        let expr = self.node(first.start, call(function, vec![expr]));
        Ok(Built { expr, depth })
    }

    fn member(&mut self) -> Parsed {
        let mut built = self.primary()?;
        loop {
            let sign = self.ahead(0);
            let inside = built.depth;
            let (expr, depth) = if self.take(kind::DOT).is_some() {
                let optional = self.take(kind::QUESTION).is_some();
                let word = self.next();
                let name = match word.kind {
                    kind::IDENT => self.text(word).to_owned(),
                    kind::ESCAPED_IDENT => {
                        self.complain(word.start, "unsupported syntax: '`'");
                        String::new()
                    }
                    _ => return Err(Stop::Syntax),
                };
                if optional {
                    let field = self.node(word.start, Kind::Literal(Value::text(name)));
                    (self.node(sign.start, call("_?._", vec![built.expr, field])), inside)
                } else if word.kind == kind::IDENT
                    && let Some(open) = self.take(kind::LPAREN)
                {
                    let (args, depth) = self.arguments()?;
                    (macros::member(self, open.start, built.expr, name, args), inside.max(depth))
                } else {
                    let kind = Kind::Select { operand: Box::new(built.expr), field: name, test: false };
                    (self.node(sign.start, kind), inside)
                }
            } else if self.take(kind::LBRACKET).is_some() {
                let function = if self.take(kind::QUESTION).is_some() { "_[?_]" } else { "_[_]" };
                let index = self.condition()?;
                self.expect(kind::RBRACKET)?;
                (self.node(sign.start, call(function, vec![built.expr, index.expr])), inside.max(index.depth))
            } else {
                return Ok(built);
            };
            built = self.around(expr, depth)?;
        }
    }

    /// Reads arguments up to the closing bracket.
    fn arguments(&mut self) -> Result<(Vec<Expr>, usize), Stop> {
        let (mut args, mut depth) = (Vec::new(), 0);
        if self.take(kind::RPAREN).is_some() {
            return Ok((args, depth));
        }
        loop {
            let arg = self.condition()?;
            depth = depth.max(arg.depth);
            args.push(arg.expr);
            if self.take(kind::COMMA).is_none() {
                self.expect(kind::RPAREN)?;
                return Ok((args, depth));
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        let token = self.ahead(0);
        match token.kind {
            kind::LPAREN => {
                self.next();
                let inner = self.condition()?;
                self.expect(kind::RPAREN)?;
                Ok(inner)
            }
            kind::LBRACKET => self.list(),
            kind::LBRACE => self.map(),
            kind::DOT | kind::IDENT => self.name(),
            _ => self.literal(),
        }
    }

    fn literal(&mut self) -> Parsed {
        let start = self.ahead(0).start;
        let sign = self.take(kind::MINUS).map_or("", |_| "-");
        let token = self.next();
        let text = self.text(token).to_owned();
        let value = match token.kind {
            kind::INT => literals::int(sign, &text),
            kind::FLOAT => literals::double(sign, &text),
            kind::UINT => literals::uint(&text),
            kind::STRING => literals::text(&text),
            kind::BYTES => literals::bytes(&text),
            kind::TRUE => Ok(Value::Bool(true)),
            kind::FALSE => Ok(Value::Bool(false)),
            kind::NULL => Ok(Value::Null),
            _ => return Err(Stop::Syntax),
        };
        let expr = match value {
            Ok(value) => self.node(start, Kind::Literal(value)),
            Err(message) => self.complain(start, message),
        };
        Ok(Built { expr, depth: 0 })
    }

    /// A variable, a function or the type of an object that is put together.
    fn name(&mut self) -> Parsed {
        let start = self.ahead(0).start;
        let dot = if self.take(kind::DOT).is_some() { "." } else { "" };
        let word = self.expect(kind::IDENT)?;
        let (mut length, mut last) = (0_usize, word);
        while self.ahead(length).kind == kind::DOT
            && let part = self.ahead(length.saturating_add(1))
            && part.kind == kind::IDENT
        {
            (length, last) = (length.saturating_add(2), part);
        }
        if self.ahead(length).kind == kind::LBRACE {
            let words: String = self.words.text(word, last).chars().filter(|c| !c.is_whitespace()).collect();
            self.at = self.words.further(self.at, length);
            return self.object(format!("{dot}{words}"));
        }
        let text = self.text(word).to_owned();
        let name = format!("{dot}{text}");
        let open = self.take(kind::LPAREN);
        if RESERVED.contains(&text.as_str()) {
            let depth = if open.is_some() { self.arguments()?.1 } else { 0 };
            let expr = self.complain(start, format!("reserved identifier: {text}"));
            return Ok(Built { expr, depth });
        }
        let Some(open) = open else {
            return Ok(Built { expr: self.node(word.start, Kind::Ident(name)), depth: 0 });
        };
        let (args, depth) = self.arguments()?;
        Ok(Built { expr: macros::global(self, open.start, name, args), depth })
    }

    /// Says whether another item follows. A comma may end a list, even an empty one.
    fn goes_on(&mut self, end: u8, items: usize) -> bool {
        if items == 0 {
            return self.peek() != end && self.peek() != kind::COMMA;
        }
        self.ahead(1).kind != end && self.take(kind::COMMA).is_some()
    }

    fn list(&mut self) -> Parsed {
        let open = self.next();
        let (mut items, mut depth) = (Vec::new(), 0);
        while self.goes_on(kind::RBRACKET, items.len()) {
            let optional = self.take(kind::QUESTION).is_some();
            let item = self.condition()?;
            depth = depth.max(item.depth);
            items.push((item.expr, optional));
        }
        self.take(kind::COMMA);
        self.expect(kind::RBRACKET)?;
        Ok(Built { expr: self.node(open.start, Kind::List(items)), depth })
    }

    fn map(&mut self) -> Parsed {
        let open = self.next();
        let (mut entries, mut depth) = (Vec::new(), 0);
        while self.goes_on(kind::RBRACE, entries.len()) {
            let optional = self.take(kind::QUESTION).is_some();
            let key = self.condition()?;
            self.expect(kind::COLON)?;
            let value = self.condition()?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push(Entry { key: key.expr, value: value.expr, optional });
        }
        self.take(kind::COMMA);
        self.expect(kind::RBRACE)?;
        Ok(Built { expr: self.node(open.start, Kind::Map(entries)), depth })
    }

    fn object(&mut self, name: String) -> Parsed {
        let open = self.expect(kind::LBRACE)?;
        let (mut fields, mut depth) = (Vec::new(), 0);
        while self.goes_on(kind::RBRACE, fields.len()) {
            let optional = self.take(kind::QUESTION).is_some();
            let word = self.next();
            if word.kind == kind::ESCAPED_IDENT {
                self.complain(word.start, "unsupported syntax: '`'");
            } else if word.kind != kind::IDENT {
                return Err(Stop::Syntax);
            }
            let field = self.text(word).to_owned();
            let colon = self.expect(kind::COLON)?;
            let id = self.id(colon.start);
            let value = self.condition()?;
            depth = depth.max(value.depth);
            fields.push(Field { id, name: field, value: value.expr, optional });
        }
        self.take(kind::COMMA);
        self.expect(kind::RBRACE)?;
        Ok(Built { expr: self.node(open.start, Kind::Struct { name, fields }), depth })
    }
}

pub(crate) fn call(function: &str, args: Vec<Expr>) -> Kind {
    Kind::Call { target: None, function: function.to_owned(), args }
}

/// Puts terms together by signs, of which there is one less: the sign in the middle is the root.
fn balanced(function: &str, terms: &mut impl Iterator<Item = Expr>, signs: &[Id]) -> Expr {
    let (left, rest) = signs.split_at(signs.len() / 2);
    let Some((sign, right)) = rest.split_first() else {
        return terms.next().expect("there is one term more than signs");
    };
    let left = balanced(function, terms, left);
    let right = balanced(function, terms, right);
    Expr { id: *sign, kind: call(function, vec![left, right]) }
}
