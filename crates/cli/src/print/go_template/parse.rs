//! Parses a template's text.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use serde_json::Value;

use super::{Command, Part, Pipe, Word, WordKind, functions};

/// The maximum nesting of parentheses and blocks.
const DEPTH: usize = 100;

type Named = BTreeMap<String, Vec<Part>>;

pub(super) fn parse(text: &str) -> anyhow::Result<(Vec<Part>, Named)> {
    let mut parser = Parser {
        items: lex(text)?,
        at: 0,
        text,
        named: Named::new(),
        variables: vec!["$".to_owned()],
        loops: 0,
        depth: 0,
    };
    let (parts, end) = parser.list()?;
    match end {
        End::Text => Ok((parts, parser.named)),
        End::Close => Err(parser.fault("unexpected {{end}}")),
        End::Otherwise => Err(parser.fault("unexpected {{else}}")),
    }
}

/// The text between two pairs of braces, or outside of them.
#[derive(Debug)]
enum Item {
    Text(String),
    Action(Vec<Token>),
}

#[derive(Debug, Clone)]
struct Token {
    kind: TokenKind,
    place: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum TokenKind {
    Space,
    /// `.name`
    Field(String),
    /// `$name`
    Variable(String),
    Identifier(String),
    Dot,
    Constant {
        value: Value,
        text: String,
    },
    Open,
    Close,
    Bar,
    Comma,
    Declare,
    Assign,
    /// A character without a meaning here.
    Character(char),
}

fn line(text: &str, place: usize) -> usize {
    1 + text[..place].matches('\n').count()
}

fn fault(text: &str, place: usize, said: &str) -> anyhow::Error {
    anyhow!("template: output:{}: {said}", line(text, place))
}

/// Splits text and actions; a minus beside braces removes the white space next to it.
fn lex(text: &str) -> anyhow::Result<Vec<Item>> {
    let mut items = Vec::new();
    let (mut at, mut trims) = (0, false);
    loop {
        let rest = &text[at..];
        let open = rest.find("{{");
        let mut plain = &rest[..open.unwrap_or(rest.len())];
        if trims {
            plain = plain.trim_start_matches([' ', '\t', '\r', '\n']);
        }
        let inner = open.map(|open| at + open + 2);
        let trims_before = inner.is_some_and(|inner| {
            text[inner..].starts_with('-') && text[inner + 1..].starts_with([' ', '\t', '\r', '\n'])
        });
        if trims_before {
            plain = plain.trim_end_matches([' ', '\t', '\r', '\n']);
        }
        if !plain.is_empty() {
            items.push(Item::Text(plain.to_owned()));
        }
        let Some(mut inner) = inner else { return Ok(items) };
        if trims_before {
            inner += 2;
        }
        if text[inner..].starts_with("/*") {
            let end = text[inner..].find("*/").ok_or_else(|| fault(text, inner, "unclosed comment"))?;
            let rest = &text[inner + end + 2..];
            let after = if let Some(after) = rest.strip_prefix("}}") {
                trims = false;
                after
            } else if let Some(after) = rest.strip_prefix(" -}}") {
                trims = true;
                after
            } else {
                return Err(fault(text, inner, "comment ends before closing delimiter"));
            };
            at = text.len() - after.len();
            continue;
        }
        let mut tokens = Vec::new();
        loop {
            let rest = &text[inner..];
            if let Some(after) = rest.strip_prefix("}}") {
                (at, trims) = (text.len() - after.len(), false);
                break;
            }
            if rest.starts_with([' ', '\t', '\r', '\n']) && rest[1..].starts_with("-}}") {
                (at, trims) = (inner + 4, true);
                break;
            }
            if rest.is_empty() {
                return Err(fault(text, inner, "unclosed action"));
            }
            let (token, length) = token(text, inner)?;
            tokens.push(Token { kind: token, place: inner });
            inner += length;
        }
        items.push(Item::Action(tokens));
    }
}

fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Reads one token; also returns its length in bytes.
fn token(text: &str, place: usize) -> anyhow::Result<(TokenKind, usize)> {
    let rest = &text[place..];
    let first = rest.chars().next().unwrap_or(' ');
    Ok(match first {
        ' ' | '\t' | '\r' | '\n' => {
            let next = rest.find(|c| !matches!(c, ' ' | '\t' | '\r' | '\n')).unwrap_or(rest.len());
            // The last space may belong to the closing braces.
            let trims = next > 1 && rest[next..].starts_with("-}}");
            (TokenKind::Space, if trims { next - 1 } else { next })
        }
        '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => match word_length(&rest[1..]) {
            0 => (TokenKind::Dot, 1),
            length => (TokenKind::Field(rest[1..=length].to_owned()), length + 1),
        },
        '$' => {
            let length = 1 + word_length(&rest[1..]);
            (TokenKind::Variable(rest[..length].to_owned()), length)
        }
        '(' => (TokenKind::Open, 1),
        ')' => (TokenKind::Close, 1),
        '|' => (TokenKind::Bar, 1),
        ',' => (TokenKind::Comma, 1),
        ':' if rest.starts_with(":=") => (TokenKind::Declare, 2),
        ':' => return Err(fault(text, place, "expected :=")),
        '=' => (TokenKind::Assign, 1),
        '"' => quoted(text, place)?,
        '`' => {
            let end =
                rest[1..].find('`').ok_or_else(|| fault(text, place, "unterminated raw quoted string"))?;
            let whole = &rest[..end + 2];
            (TokenKind::Constant { value: rest[1..=end].into(), text: whole.to_owned() }, whole.len())
        }
        '\'' => character(text, place)?,
        '+' | '-' | '.' | '0'..='9' => number(text, place)?,
        c if c.is_alphanumeric() || c == '_' => {
            let length = word_length(rest);
            (TokenKind::Identifier(rest[..length].to_owned()), length)
        }
        c => (TokenKind::Character(c), c.len_utf8()),
    })
}

/// The position of the closing quote for the quote that opens the text.
fn closing(rest: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if std::mem::take(&mut escaped) => {}
            '\\' => escaped = true,
            '\n' => return None,
            c if c == quote => return Some(i),
            _ => {}
        }
    }
    None
}

fn quoted(text: &str, place: usize) -> anyhow::Result<(TokenKind, usize)> {
    let rest = &text[place..];
    let end = closing(rest, '"').ok_or_else(|| fault(text, place, "unterminated quoted string"))?;
    let value = unescape(&rest[1..end]).ok_or_else(|| fault(text, place, "invalid syntax"))?;
    Ok((TokenKind::Constant { value: value.into(), text: rest[..=end].to_owned() }, end + 1))
}

fn character(text: &str, place: usize) -> anyhow::Result<(TokenKind, usize)> {
    let rest = &text[place..];
    let end = closing(rest, '\'').ok_or_else(|| fault(text, place, "unterminated character constant"))?;
    let whole = &rest[..=end];
    let value = unescape(&rest[1..end]).filter(|value| value.chars().count() == 1);
    let Some(value) = value.and_then(|value| value.chars().next()) else {
        return Err(fault(text, place, &format!("malformed character constant: {whole}")));
    };
    Ok((TokenKind::Constant { value: u32::from(value).into(), text: whole.to_owned() }, end + 1))
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let digits = |rest: &mut std::str::Chars<'_>, count: usize, base: u32, first: u32| {
            let mut number = first;
            for _ in 0..count {
                number = number.checked_mul(base)?.checked_add(rest.next()?.to_digit(base)?)?;
            }
            char::from_u32(number)
        };
        out.push(match rest.next()? {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => digits(&mut rest, 2, 16, 0)?,
            'u' => digits(&mut rest, 4, 16, 0)?,
            'U' => digits(&mut rest, 8, 16, 0)?,
            c @ '0'..='7' => digits(&mut rest, 2, 8, c.to_digit(8)?)?,
            c @ ('\\' | '"' | '\'') => c,
            _ => return None,
        });
    }
    Some(out)
}

fn number(text: &str, place: usize) -> anyhow::Result<(TokenKind, usize)> {
    let rest = &text[place..];
    let mut before = ' ';
    let end = rest.find(|c: char| {
        let sign = matches!(c, '+' | '-') && matches!(before, ' ' | 'e' | 'E' | 'p' | 'P');
        before = c;
        !(c.is_alphanumeric() || c == '_' || c == '.' || sign)
    });
    let whole = &rest[..end.unwrap_or(rest.len())];
    let plain = whole.replace('_', "");
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let with_base = |prefixes: [&str; 2], base: u32| {
        let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix))?;
        i64::from_str_radix(digits, base).ok()
    };
    let integer = with_base(["0x", "0X"], 16)
        .or_else(|| with_base(["0b", "0B"], 2))
        .or_else(|| with_base(["0o", "0O"], 8))
        .or_else(|| with_base(["0", "0"], 8).filter(|_| digits.len() > 1))
        .or_else(|| digits.parse::<i64>().ok());
    let signed = |float: f64| if negative { -float } else { float };
    let value = match integer {
        Some(integer) => Some(Value::from(if negative { -integer } else { integer })),
        None => {
            digits.parse::<f64>().ok().filter(|_| !digits.starts_with(['i', 'n'])).map(|f| signed(f).into())
        }
    };
    match value {
        Some(value) => Ok((TokenKind::Constant { value, text: whole.to_owned() }, whole.len())),
        None => Err(fault(text, place, &format!("bad number syntax: {}", apimachinery::go::quote(whole)))),
    }
}

/// What ended a list of parts.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Text,
    Close,
    /// `else`; the parser is positioned before it.
    Otherwise,
}

struct Parser<'a> {
    items: Vec<Item>,
    at: usize,
    text: &'a str,
    named: Named,
    /// Names that are in scope.
    variables: Vec<String>,
    /// The number of enclosing loops.
    loops: usize,
    depth: usize,
}

impl Parser<'_> {
    fn fault(&self, said: &str) -> anyhow::Error {
        let place = match self.items.get(self.at).or(self.items.last()) {
            Some(Item::Action(tokens)) => tokens.first().map_or(0, |token| token.place),
            _ => self.text.len(),
        };
        fault(self.text, if self.at >= self.items.len() { self.text.len() } else { place }, said)
    }

    /// Reads parts up to `end` or `else`, or to the end of the text.
    fn list(&mut self) -> anyhow::Result<(Vec<Part>, End)> {
        self.depth += 1;
        if self.depth > DEPTH {
            bail!("template: output: blocks nest deeper than {DEPTH}");
        }
        let scope = self.variables.len();
        let done = self.parts();
        self.variables.truncate(scope);
        self.depth -= 1;
        done
    }

    fn parts(&mut self) -> anyhow::Result<(Vec<Part>, End)> {
        let mut parts = Vec::new();
        while self.at < self.items.len() {
            let tokens = match &mut self.items[self.at] {
                Item::Text(text) => {
                    parts.push(Part::Text(std::mem::take(text)));
                    self.at += 1;
                    continue;
                }
                Item::Action(tokens) => tokens.clone(),
            };
            let mut words = Words { tokens, at: 0 };
            words.spaces();
            let keyword = match words.peek() {
                Some(TokenKind::Identifier(name)) => name.clone(),
                _ => String::new(),
            };
            if !["if", "range", "with", "end", "else", "define", "block", "template", "break", "continue"]
                .contains(&keyword.as_str())
            {
                let pipe = self.whole(&mut words, "command", false)?;
                self.at += 1;
                parts.push(Part::Action(pipe));
                continue;
            }
            words.at += 1;
            match keyword.as_str() {
                "end" => return Ok((parts, End::Close)),
                "else" => return Ok((parts, End::Otherwise)),
                "if" | "with" | "range" => {
                    let part = self.control(&keyword, words)?;
                    parts.push(part);
                }
                "break" | "continue" => {
                    if self.loops == 0 {
                        return Err(self.fault(&format!("{{{{{keyword}}}}} outside {{{{range}}}}")));
                    }
                    parts.push(if keyword == "break" { Part::Break } else { Part::Continue });
                    self.at += 1;
                }
                "define" => {
                    let (name, _) = self.name(&mut words, "define clause")?;
                    self.at += 1;
                    let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
                    let body = self.closed()?;
                    self.variables = variables;
                    self.named.insert(name, body);
                }
                "block" => {
                    let (name, place) = self.name(&mut words, "block clause")?;
                    let argument = self.whole(&mut words, "block clause", false)?;
                    self.at += 1;
                    let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
                    let body = self.closed()?;
                    self.variables = variables;
                    self.named.insert(name.clone(), body);
                    parts.push(Part::Call { name, argument: Some(argument), place });
                }
                _ => {
                    let (name, place) = self.name(&mut words, "template clause")?;
                    words.spaces();
                    let argument = words
                        .peek()
                        .is_some()
                        .then(|| self.whole(&mut words, "template clause", false))
                        .transpose()?;
                    self.at += 1;
                    parts.push(Part::Call { name, argument, place });
                }
            }
        }
        Ok((parts, End::Text))
    }

    /// Reads a list that only `end` may end.
    fn closed(&mut self) -> anyhow::Result<Vec<Part>> {
        let (parts, end) = self.list()?;
        match end {
            End::Close => {
                self.at += 1;
                Ok(parts)
            }
            End::Text => Err(self.fault("unexpected EOF")),
            End::Otherwise => Err(self.fault("unexpected {{else}}")),
        }
    }

    /// Reads the rest of `if`, `with` or `range`, including `else`.
    fn control(&mut self, keyword: &str, mut words: Words) -> anyhow::Result<Part> {
        let scope = self.variables.len();
        let pipe = self.whole(&mut words, keyword, keyword == "range")?;
        self.at += 1;
        self.loops += usize::from(keyword == "range");
        let (then, end) = self.list()?;
        self.loops -= usize::from(keyword == "range");
        let otherwise = match end {
            End::Text => return Err(self.fault("unexpected EOF")),
            End::Close => {
                self.at += 1;
                Vec::new()
            }
            End::Otherwise => self.otherwise(keyword)?,
        };
        self.variables.truncate(scope);
        Ok(match keyword {
            "if" => Part::If { condition: pipe, then, otherwise },
            "with" => Part::With { value: pipe, then, otherwise },
            _ => Part::Range { over: pipe, each: then, otherwise },
        })
    }

    /// Reads the part after `else`, which may be another condition.
    fn otherwise(&mut self, keyword: &str) -> anyhow::Result<Vec<Part>> {
        let Some(Item::Action(tokens)) = self.items.get(self.at) else { return Ok(Vec::new()) };
        let mut words = Words { tokens: tokens.clone(), at: 0 };
        words.spaces();
        words.at += 1;
        words.spaces();
        match words.peek() {
            None => {
                self.at += 1;
                self.closed()
            }
            Some(TokenKind::Identifier(next)) if next == keyword && keyword != "range" => {
                words.at += 1;
                self.depth += 1;
                if self.depth > DEPTH {
                    bail!("template: output: blocks nest deeper than {DEPTH}");
                }
                let part = self.control(keyword, words);
                self.depth -= 1;
                Ok(vec![part?])
            }
            Some(other) => {
                let said = format!("unexpected {} in input", show(other));
                Err(self.fault(&said))
            }
        }
    }

    fn name(&self, words: &mut Words, context: &str) -> anyhow::Result<(String, usize)> {
        words.spaces();
        match words.next() {
            Some(Token { kind: TokenKind::Constant { value: Value::String(name), .. }, place }) => {
                Ok((name, place))
            }
            Some(token) => Err(self.fault(&format!("unexpected {} in {context}", show(&token.kind)))),
            None => Err(self.fault(&format!("unexpected \"}}}}\" in {context}"))),
        }
    }

    /// Reads a pipeline up to the end of the action.
    fn whole(&mut self, words: &mut Words, context: &str, two: bool) -> anyhow::Result<Pipe> {
        let pipe = self.pipe(words, context, two)?;
        if words.peek().is_some() {
            return Err(self.fault("unexpected right paren"));
        }
        Ok(pipe)
    }

    /// Reads a pipeline up to the end of the action, or of the parentheses.
    fn pipe(&mut self, words: &mut Words, context: &str, two: bool) -> anyhow::Result<Pipe> {
        words.spaces();
        let place = words.place();
        let (variables, assigns) = self.declarations(words, two)?;
        let mut commands = Vec::new();
        loop {
            let (command, goes_on) = self.command(words, context)?;
            match command {
                Some(command) => commands.push(command),
                None if commands.is_empty() => {
                    return Err(self.fault(&format!("missing value for {context}")));
                }
                None => return Err(self.fault("missing value for command")),
            }
            if !goes_on {
                break;
            }
        }
        let is_value = |command: &Command| {
            matches!(command.words[0].kind, WordKind::Dot | WordKind::Nil | WordKind::Constant { .. })
        };
        if let Some(stage) = commands.iter().skip(1).position(is_value) {
            return Err(self.fault(&format!("non executable command in pipeline stage {}", stage + 2)));
        }
        if !assigns {
            self.variables.extend(variables.iter().cloned());
        }
        Ok(Pipe { variables, assigns, commands, place })
    }

    /// Reads `$x :=`, `$x =`, and with `two` also `$i, $x :=`.
    fn declarations(&self, words: &mut Words, two: bool) -> anyhow::Result<(Vec<String>, bool)> {
        let start = words.at;
        let mut names = Vec::new();
        while let Some(TokenKind::Variable(name)) = words.peek() {
            names.push(name.clone());
            words.at += 1;
            words.spaces();
            match words.peek() {
                Some(TokenKind::Comma) if two && names.len() == 1 => {
                    words.at += 1;
                    words.spaces();
                }
                Some(TokenKind::Declare) => {
                    words.at += 1;
                    return Ok((names, false));
                }
                Some(TokenKind::Assign) => {
                    if let Some(unknown) = names.iter().find(|name| !self.variables.contains(name)) {
                        return Err(self.fault(&format!("undefined variable \"{unknown}\"")));
                    }
                    words.at += 1;
                    return Ok((names, true));
                }
                _ => break,
            }
        }
        words.at = start;
        Ok((Vec::new(), false))
    }

    /// Reads words up to a bar or the end; returns whether a bar followed.
    fn command(&mut self, words: &mut Words, context: &str) -> anyhow::Result<(Option<Command>, bool)> {
        let mut found = Vec::new();
        loop {
            words.spaces();
            match words.peek() {
                None | Some(TokenKind::Close) => {
                    return Ok(((!found.is_empty()).then_some(Command { words: found }), false));
                }
                Some(TokenKind::Bar) => {
                    words.at += 1;
                    return Ok(((!found.is_empty()).then_some(Command { words: found }), true));
                }
                _ => {}
            }
            found.push(self.operand(words, context)?);
            match words.peek() {
                None | Some(TokenKind::Space | TokenKind::Bar | TokenKind::Close) => {}
                Some(other) => return Err(self.fault(&format!("unexpected {} in operand", show(other)))),
            }
        }
    }

    /// Reads one word and the fields after it.
    fn operand(&mut self, words: &mut Words, context: &str) -> anyhow::Result<Word> {
        let Some(token) = words.next() else { return Err(self.fault("unexpected EOF")) };
        let kind = match token.kind {
            TokenKind::Dot => WordKind::Dot,
            TokenKind::Field(name) => WordKind::Field(vec![name]),
            TokenKind::Variable(name) => {
                if !self.variables.contains(&name) {
                    return Err(self.fault(&format!("undefined variable \"{name}\"")));
                }
                WordKind::Variable(name, Vec::new())
            }
            TokenKind::Constant { value, text } => WordKind::Constant { value, text },
            TokenKind::Identifier(name) => match name.as_str() {
                "true" | "false" => WordKind::Constant { value: (name == "true").into(), text: name },
                "nil" => WordKind::Nil,
                known if functions::NAMES.contains(&known) => WordKind::Function(name),
                unknown => return Err(self.fault(&format!("function \"{unknown}\" not defined"))),
            },
            TokenKind::Open => {
                self.depth += 1;
                if self.depth > DEPTH {
                    return Err(self.fault(&format!("parentheses nest deeper than {DEPTH}")));
                }
                let pipe = self.pipe(words, "parenthesized pipeline", false)?;
                self.depth -= 1;
                match words.next() {
                    Some(Token { kind: TokenKind::Close, .. }) => {}
                    _ => return Err(self.fault("unclosed left paren")),
                }
                WordKind::Pipe(Box::new(pipe))
            }
            other => return Err(self.fault(&format!("unexpected {} in {context}", show(&other)))),
        };
        let (mut fields, mut place) = (Vec::new(), token.place);
        while let Some(TokenKind::Field(name)) = words.peek() {
            if fields.is_empty() {
                place = words.place();
            }
            fields.push(name.clone());
            words.at += 1;
        }
        if fields.is_empty() {
            return Ok(Word { kind, place });
        }
        let kind = match kind {
            WordKind::Field(mut names) => {
                names.extend(fields);
                WordKind::Field(names)
            }
            WordKind::Variable(name, _) => WordKind::Variable(name, fields),
            kind @ (WordKind::Pipe(_) | WordKind::Function(_) | WordKind::Dot) => {
                WordKind::Chain(Box::new(Word { kind, place: token.place }), fields)
            }
            kind => {
                let word = Word { kind, place };
                return Err(self.fault(&format!(
                    "unexpected . after term {}",
                    apimachinery::go::quote(&word.to_string())
                )));
            }
        };
        Ok(Word { kind, place })
    }
}

/// The tokens of one action.
struct Words {
    tokens: Vec<Token>,
    at: usize,
}

impl Words {
    fn peek(&self) -> Option<&TokenKind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn spaces(&mut self) {
        while self.peek() == Some(&TokenKind::Space) {
            self.at += 1;
        }
    }

    fn place(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.place)
    }
}

fn show(token: &TokenKind) -> String {
    match token {
        TokenKind::Space => "\" \"".to_owned(),
        TokenKind::Field(name) => format!("<.{name}>"),
        TokenKind::Variable(name) => format!("\"{name}\""),
        TokenKind::Identifier(name) => format!("<{name}>"),
        TokenKind::Dot => "<.>".to_owned(),
        TokenKind::Constant { text, .. } => apimachinery::go::quote(text),
        TokenKind::Open => "\"(\"".to_owned(),
        TokenKind::Close => "\")\"".to_owned(),
        TokenKind::Bar => "\"|\"".to_owned(),
        TokenKind::Comma => "\",\"".to_owned(),
        TokenKind::Character(c) => format!("\"{c}\""),
        TokenKind::Declare => "\":=\"".to_owned(),
        TokenKind::Assign => "\"=\"".to_owned(),
    }
}
