//! Cuts Lua into tokens.
//!
//! Positions are those of Karmada's scanner: lines from one, the column of the last byte that was read.

use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Name,
    /// A reserved word, operator or separator.
    Sign,
    Number,
    Text,
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: Cow<'a, str>,
    /// What stands in the script: for strings with their quotes.
    pub(super) raw: &'a [u8],
    pub(super) line: usize,
    /// The column of the last byte.
    column: usize,
    /// Is it an opening parenthesis on a new line behind a closing one? Then a call and a new statement look alike.
    pub(super) after_closed_line: bool,
}

impl Token<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        self.kind == TokenKind::Sign && self.text == text
    }

    pub(super) fn fault(&self, message: &str) -> Fault {
        // Upstream's scanner keeps no text of a single dot.
        let text = if self.is(".") { String::new() } else { self.text.to_string() };
        let place = (self.kind != TokenKind::End).then_some((self.line, self.column, text));
        Fault { place, message: message.to_owned() }
    }

    /// Returns how tight an operator binds to the left and to the right.
    pub(super) fn binding(&self) -> Option<(u8, u8)> {
        if self.kind != TokenKind::Sign {
            return None;
        }
        Some(match self.text.as_ref() {
            "or" => (1, 1),
            "and" => (2, 2),
            "<" | ">" | "<=" | ">=" | "==" | "~=" => (3, 3),
            ".." => (5, 4),
            "+" | "-" => (6, 6),
            "*" | "/" | "%" => (7, 7),
            "^" => (10, 9),
            _ => return None,
        })
    }
}

/// Returns the bytes that a string in quotes or long brackets stands for.
pub(super) fn unquote(raw: &[u8]) -> Vec<u8> {
    match raw.first() {
        Some(b'[') => {
            let level = raw[1..].iter().take_while(|byte| **byte == b'=').count();
            let inner = raw.get(level + 2..raw.len().saturating_sub(level + 2)).unwrap_or_default();
            let mut lines = Reader { bytes: inner, at: 0 };
            let mut out = Vec::with_capacity(inner.len());
            while let Some(byte) = lines.read() {
                out.push(byte);
            }
            // A line break right behind the bracket does not count.
            if out.first() == Some(&b'\n') {
                out.remove(0);
            }
            out
        }
        _ => escaped(raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default()),
    }
}

fn escaped(inner: &[u8]) -> Vec<u8> {
    let mut reader = Reader { bytes: inner, at: 0 };
    let mut out = Vec::with_capacity(inner.len());
    while let Some(byte) = reader.read() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match reader.read() {
            Some(b'a') => out.push(7),
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'v') => out.push(11),
            Some(digit @ b'0'..=b'9') => {
                let mut code = u32::from(digit - b'0');
                for _ in 0..2 {
                    let Some(next) = reader.bytes.get(reader.at).filter(|byte| byte.is_ascii_digit()) else {
                        break;
                    };
                    code = code * 10 + u32::from(next - b'0');
                    reader.at += 1;
                }
                out.push(code.to_le_bytes()[0]);
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

/// Reads bytes with every kind of line break as one `\n`.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn read(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        if matches!(byte, b'\n' | b'\r') {
            if self.bytes.get(self.at).is_some_and(|next| matches!(next, b'\n' | b'\r') && *next != byte) {
                self.at += 1;
            }
            return Some(b'\n');
        }
        Some(byte)
    }
}

/// What is wrong, and where; without a place it is the end.
#[derive(Debug)]
pub(super) struct Fault {
    place: Option<(usize, usize, String)>,
    message: String,
}

impl Fault {
    pub(super) fn text(&self, source: &str) -> String {
        match &self.place {
            None => format!("{source} at EOF:   {}\n", self.message),
            Some((line, column, token)) => {
                format!("{source} line:{line}(column:{column}) near '{token}':   {}\n", self.message)
            }
        }
    }
}

const WORDS: [&str; 22] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    column: usize,
    /// Was the last token a closing parenthesis?
    closed: bool,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(script: &'a str) -> Self {
        Self { bytes: script.as_bytes(), at: 0, line: 1, column: 0, closed: false }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn read(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        if matches!(byte, b'\n' | b'\r') {
            self.line += 1;
            self.column = 0;
            // Both together are one line break.
            if self.peek().is_some_and(|next| matches!(next, b'\n' | b'\r') && next != byte) {
                self.at += 1;
            }
            return Some(b'\n');
        }
        self.column += 1;
        Some(byte)
    }

    fn fault<T>(&self, near: &str, message: &str) -> Result<T, Fault> {
        let place = (self.at < self.bytes.len() || !near.is_empty())
            .then(|| (self.line, self.column, near.to_owned()));
        Err(Fault { place, message: message.to_owned() })
    }

    fn at_end<T>(&self, message: &str) -> Result<T, Fault> {
        Err(Fault { place: None, message: message.to_owned() })
    }

    /// Returns the next token.
    pub(super) fn next(&mut self) -> Result<Token<'a>, Fault> {
        let closed = std::mem::take(&mut self.closed);
        let mut new_line = false;
        loop {
            match self.peek() {
                Some(b' ' | b'\t') => {
                    self.read();
                }
                Some(b'\n' | b'\r') => {
                    new_line = true;
                    self.read();
                }
                Some(b'-') if self.bytes.get(self.at + 1) == Some(&b'-') => self.comment()?,
                _ => break,
            }
        }
        let start = self.at;
        let Some(byte) = self.read() else {
            let (line, column) = (self.line, self.column);
            let text = Cow::Borrowed("");
            let raw = &[];
            return Ok(Token { kind: TokenKind::End, text, raw, line, column, after_closed_line: false });
        };
        let line = self.line;
        let kind = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                    self.read();
                }
                if WORDS.contains(&self.text(start).as_ref()) { TokenKind::Sign } else { TokenKind::Name }
            }
            b'0'..=b'9' => self.number(byte, start)?,
            b'.' if self.peek().is_some_and(|byte| byte.is_ascii_digit()) => self.number(byte, start)?,
            b'"' | b'\'' => self.quoted(byte)?,
            b'[' if matches!(self.peek(), Some(b'[' | b'=')) => self.bracketed()?,
            b'.' => {
                while self.at - start < 3 && self.peek() == Some(b'.') {
                    self.read();
                }
                TokenKind::Sign
            }
            b'=' | b'<' | b'>' | b'~' => {
                if self.peek() == Some(b'=') {
                    self.read();
                } else if byte == b'~' {
                    return self.fault("~", "Invalid '~' token");
                }
                TokenKind::Sign
            }
            b':' => {
                if self.peek() == Some(b':') {
                    self.read();
                }
                TokenKind::Sign
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'^' | b'#' | b'(' | b')' | b'{' | b'}' | b']' | b';'
            | b',' | b'[' => TokenKind::Sign,
            _ => {
                let near = self.text(start).into_owned();
                return self.fault(&near, "Invalid token");
            }
        };
        self.closed = byte == b')';
        let text = self.text(start);
        let after_closed_line = closed && new_line && byte == b'(';
        let raw = &self.bytes[start..self.at];
        Ok(Token { kind, text, raw, line, column: self.column, after_closed_line })
    }

    fn text(&self, start: usize) -> Cow<'a, str> {
        String::from_utf8_lossy(&self.bytes[start..self.at])
    }

    fn comment(&mut self) -> Result<(), Fault> {
        self.read();
        self.read();
        if self.peek() == Some(b'[') && matches!(self.bytes.get(self.at + 1), Some(b'[' | b'=')) {
            self.read();
            return self.bracketed().map(|_| ()).or_else(|_| self.at_end("invalid multiline comment"));
        }
        while self.peek().is_some_and(|byte| !matches!(byte, b'\n' | b'\r')) {
            self.read();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.read();
        }
    }

    fn number(&mut self, first: u8, start: usize) -> Result<TokenKind, Fault> {
        if first == b'0' && matches!(self.peek(), Some(b'x' | b'X')) {
            self.read();
            let before = self.at;
            while self.peek().is_some_and(|byte| byte.is_ascii_hexdigit()) {
                self.read();
            }
            if self.at == before {
                let near = self.text(start).into_owned();
                return self.fault(&near, "illegal hexadecimal number");
            }
            return Ok(TokenKind::Number);
        }
        self.digits();
        if first != b'.' && self.peek() == Some(b'.') {
            self.read();
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.read();
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.read();
            }
            self.digits();
        }
        Ok(TokenKind::Number)
    }

    fn quoted(&mut self, quote: u8) -> Result<TokenKind, Fault> {
        let start = self.at;
        loop {
            match self.read() {
                None => return self.at_end("unterminated string"),
                Some(b'\n') => {
                    let near = String::from_utf8_lossy(&self.bytes[start..self.at]).trim_end().to_owned();
                    return self.fault(&near, "unterminated string");
                }
                // Whatever is escaped does not end the string.
                Some(b'\\') => {
                    self.read();
                }
                Some(byte) if byte == quote => return Ok(TokenKind::Text),
                Some(_) => {}
            }
        }
    }

    /// Reads `[==[ … ]==]` behind its first bracket.
    fn bracketed(&mut self) -> Result<TokenKind, Fault> {
        let mut level = 0;
        while self.peek() == Some(b'=') {
            self.read();
            level += 1;
        }
        match self.read() {
            Some(b'[') => {}
            Some(other) => return self.fault(&char::from(other).to_string(), "invalid multiline string"),
            None => return self.at_end("invalid multiline string"),
        }
        let mut end = vec![b'='; level + 2];
        end[0] = b']';
        end[level + 1] = b']';
        loop {
            if self.bytes[self.at..].starts_with(&end) {
                for _ in 0..end.len() {
                    self.read();
                }
                return Ok(TokenKind::Text);
            }
            if self.read().is_none() {
                return self.at_end("unterminated multiline string");
            }
        }
    }
}
