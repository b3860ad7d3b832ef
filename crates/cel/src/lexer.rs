//! Words of an expression.

use crate::CompileError;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Ident(String),
    Int(i64),
    /// A number too large for a positive one: only right after a minus.
    MinInt,
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 26] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")",
    "[", "]", "{", "}", "=", "|",
];

/// Splits an expression into words with their positions.
pub(crate) fn split(source: &str) -> Result<Vec<(Token, usize)>, CompileError> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if source[at..].starts_with("//") {
            at += source[at..].find('\n').unwrap_or(source.len() - at);
        } else if let Some((token, next)) = text(source, at)? {
            tokens.push((token, at));
            at = next;
        } else if byte.is_ascii_digit() || byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
            let (token, next) = number(source, at)?;
            tokens.push((token, at));
            at = next;
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let end = at
                + source[at..]
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(source.len() - at);
            tokens.push((Token::Ident(source[at..end].to_owned()), at));
            at = end;
        } else if byte == b'`' {
            let end =
                source[at + 1..].find('`').ok_or_else(|| error(at, "Syntax error: unclosed identifier"))?;
            tokens.push((Token::Ident(source[at + 1..at + 1 + end].to_owned()), at));
            at += end + 2;
        } else if let Some(sign) = SIGNS.iter().find(|sign| source[at..].starts_with(**sign)) {
            tokens.push((Token::Sign(sign), at));
            at += sign.len();
        } else {
            let odd = source[at..].chars().next().unwrap_or(' ');
            return Err(error(at, format!("Syntax error: token recognition error at: '{odd}'")));
        }
    }
    tokens.push((Token::End, source.len()));
    Ok(tokens)
}

pub(crate) fn error(at: usize, message: impl Into<String>) -> CompileError {
    CompileError { message: message.into(), at }
}

fn number(source: &str, at: usize) -> Result<(Token, usize), CompileError> {
    let bytes = source.as_bytes();
    let bad = || error(at, "invalid int literal");
    if source[at..].starts_with("0x") || source[at..].starts_with("0X") {
        let end =
            at + 2 + source[at + 2..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(source.len() - at - 2);
        if matches!(bytes.get(end), Some(b'u' | b'U')) {
            let value = u64::from_str_radix(&source[at + 2..end], 16).map_err(|_| bad())?;
            return Ok((Token::Uint(value), end + 1));
        }
        return Ok((Token::Int(i64::from_str_radix(&source[at + 2..end], 16).map_err(|_| bad())?), end));
    }
    let digits = |from: usize| {
        from + source[from..].find(|c: char| !c.is_ascii_digit()).unwrap_or(source.len() - from)
    };
    let mut end = digits(at);
    let mut is_double = false;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        is_double = true;
        end = digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            is_double = true;
            end = digits(end + 1 + sign);
        }
    }
    let text = &source[at..end];
    if is_double {
        return Ok((Token::Double(text.parse().map_err(|_| error(at, "invalid double literal"))?), end));
    }
    if matches!(bytes.get(end), Some(b'u' | b'U')) {
        return Ok((Token::Uint(text.parse().map_err(|_| error(at, "invalid uint literal"))?), end + 1));
    }
    if text == "9223372036854775808" {
        return Ok((Token::MinInt, end));
    }
    Ok((Token::Int(text.parse().map_err(|_| bad())?), end))
}

/// Reads a string or bytes literal, raw or not, with one or three quotes.
fn text(source: &str, at: usize) -> Result<Option<(Token, usize)>, CompileError> {
    let mut start = at;
    let (mut raw, mut bytes) = (false, false);
    for _ in 0..2 {
        match source.as_bytes().get(start) {
            Some(b'r' | b'R') if !raw => raw = true,
            Some(b'b' | b'B') if !bytes => bytes = true,
            _ => break,
        }
        start += 1;
    }
    let rest = &source[start..];
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| rest.starts_with(quote));
    let Some(quote) = quote else { return Ok(None) };
    let mut out: Vec<u8> = Vec::new();
    let mut chars = source[start + quote.len()..].char_indices();
    let unclosed = || error(at, "Syntax error: token recognition error at: unclosed string");
    loop {
        let Some((offset, c)) = chars.next() else { return Err(unclosed()) };
        let here = start + quote.len() + offset;
        if source[here..].starts_with(quote) {
            let end = here + quote.len();
            if bytes {
                return Ok(Some((Token::Bytes(out), end)));
            }
            let text = String::from_utf8(out).map_err(|_| error(at, "invalid UTF-8 in a string"))?;
            return Ok(Some((Token::Text(text), end)));
        }
        if c == '\n' && quote.len() == 1 {
            return Err(unclosed());
        }
        if c != '\\' || raw {
            out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let Some((_, escape)) = chars.next() else { return Err(unclosed()) };
        let bad = || error(here, format!("unable to unescape string: \\{escape}"));
        let mut code = |length: usize, radix: u32, first: &str| -> Result<u32, CompileError> {
            let mut digits = first.to_owned();
            for _ in 0..length {
                digits.push(chars.next().ok_or_else(bad)?.1);
            }
            u32::from_str_radix(&digits, radix).map_err(|_| bad())
        };
        match escape {
            'a' => out.push(7),
            'b' => out.push(8),
            'f' => out.push(12),
            'n' => out.push(b'\n'),
            'r' => out.push(b'\r'),
            't' => out.push(b'\t'),
            'v' => out.push(11),
            '\\' | '\'' | '"' | '`' | '?' => out.push(escape as u8),
            'x' | 'X' => push(&mut out, code(2, 16, "")?, bytes).ok_or_else(bad)?,
            'u' => push(&mut out, code(4, 16, "")?, false).ok_or_else(bad)?,
            'U' => push(&mut out, code(8, 16, "")?, false).ok_or_else(bad)?,
            '0'..='3' => push(&mut out, code(2, 8, &escape.to_string())?, bytes).ok_or_else(bad)?,
            _ => return Err(bad()),
        }
    }
}

fn push(out: &mut Vec<u8>, code: u32, as_byte: bool) -> Option<()> {
    if as_byte {
        out.push(u8::try_from(code).ok()?);
    } else {
        out.extend(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(())
}
