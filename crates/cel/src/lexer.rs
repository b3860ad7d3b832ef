//! Words of an expression, cut as ANTLR cuts them by cel-go's grammar: the longest match wins, and what fits nothing is
//! reported and skipped, so that one odd character does not hide the next mistake.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use crate::Issue;

/// A word: what it is, and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: u8,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The words of an expression, in order.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    source: &'a str,
    tokens: Vec<Token>,
}

impl<'a> Words<'a> {
    /// Returns the word at a place. Behind the last word there is only the end.
    pub(crate) fn at(&self, place: usize) -> Token {
        let end = Token { kind: kind::EOF, start: self.source.len(), end: self.source.len() };
        self.tokens.get(place).copied().unwrap_or(end)
    }

    /// Returns the place so many words further, at most the end.
    pub(crate) fn further(&self, place: usize, by: usize) -> usize {
        place.saturating_add(by).min(self.tokens.len())
    }

    /// Returns the source from the beginning of one word to the end of another.
    pub(crate) fn text(&self, first: Token, last: Token) -> &'a str {
        self.source.get(first.start..last.end).unwrap_or_default()
    }

    /// Returns what stands between two words.
    pub(crate) fn between(&self, first: Token, second: Token) -> &'a str {
        self.source.get(first.end..second.start).unwrap_or_default()
    }
}

/// Kinds of words, numbered as in cel-go's grammar: messages list what was expected in this order.
pub(crate) mod kind {
    pub(crate) const EOF: u8 = 0;
    pub(crate) const EQUALS: u8 = 1;
    pub(crate) const NOT_EQUALS: u8 = 2;
    pub(crate) const IN: u8 = 3;
    pub(crate) const LESS: u8 = 4;
    pub(crate) const LESS_EQUALS: u8 = 5;
    pub(crate) const GREATER_EQUALS: u8 = 6;
    pub(crate) const GREATER: u8 = 7;
    pub(crate) const AND: u8 = 8;
    pub(crate) const OR: u8 = 9;
    pub(crate) const LBRACKET: u8 = 10;
    pub(crate) const RBRACKET: u8 = 11;
    pub(crate) const LBRACE: u8 = 12;
    pub(crate) const RBRACE: u8 = 13;
    pub(crate) const LPAREN: u8 = 14;
    pub(crate) const RPAREN: u8 = 15;
    pub(crate) const DOT: u8 = 16;
    pub(crate) const COMMA: u8 = 17;
    pub(crate) const MINUS: u8 = 18;
    pub(crate) const NOT: u8 = 19;
    pub(crate) const QUESTION: u8 = 20;
    pub(crate) const COLON: u8 = 21;
    pub(crate) const PLUS: u8 = 22;
    pub(crate) const STAR: u8 = 23;
    pub(crate) const SLASH: u8 = 24;
    pub(crate) const PERCENT: u8 = 25;
    pub(crate) const TRUE: u8 = 26;
    pub(crate) const FALSE: u8 = 27;
    pub(crate) const NULL: u8 = 28;
    pub(crate) const FLOAT: u8 = 31;
    pub(crate) const INT: u8 = 32;
    pub(crate) const UINT: u8 = 33;
    pub(crate) const STRING: u8 = 34;
    pub(crate) const BYTES: u8 = 35;
    pub(crate) const IDENT: u8 = 36;
    pub(crate) const ESCAPED_IDENT: u8 = 37;
}

/// Signs, the longer ones first.
const SIGNS: [(&str, u8); 24] = [
    ("==", kind::EQUALS),
    ("!=", kind::NOT_EQUALS),
    ("<=", kind::LESS_EQUALS),
    (">=", kind::GREATER_EQUALS),
    ("&&", kind::AND),
    ("||", kind::OR),
    ("<", kind::LESS),
    (">", kind::GREATER),
    ("[", kind::LBRACKET),
    ("]", kind::RBRACKET),
    ("{", kind::LBRACE),
    ("}", kind::RBRACE),
    ("(", kind::LPAREN),
    (")", kind::RPAREN),
    (".", kind::DOT),
    (",", kind::COMMA),
    ("-", kind::MINUS),
    ("!", kind::NOT),
    ("?", kind::QUESTION),
    (":", kind::COLON),
    ("+", kind::PLUS),
    ("*", kind::STAR),
    ("/", kind::SLASH),
    ("%", kind::PERCENT),
];

/// Returns how messages call a kind of word.
pub(crate) fn name(kind: u8) -> String {
    match kind {
        kind::EOF => "<EOF>".to_owned(),
        kind::IN => "'in'".to_owned(),
        kind::TRUE => "'true'".to_owned(),
        kind::FALSE => "'false'".to_owned(),
        kind::NULL => "'null'".to_owned(),
        kind::FLOAT => "NUM_FLOAT".to_owned(),
        kind::INT => "NUM_INT".to_owned(),
        kind::UINT => "NUM_UINT".to_owned(),
        kind::STRING => "STRING".to_owned(),
        kind::BYTES => "BYTES".to_owned(),
        kind::IDENT => "IDENTIFIER".to_owned(),
        kind::ESCAPED_IDENT => "ESC_IDENTIFIER".to_owned(),
        sign => SIGNS
            .iter()
            .find(|(_, kind)| *kind == sign)
            .map_or(String::new(), |(sign, _)| format!("'{sign}'")),
    }
}

/// Splits an expression into words; adds the rest to the issues.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
pub(crate) fn split<'a>(source: &'a str, issues: &mut Vec<Issue>) -> Words<'a> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let blank = rest.len() - rest.trim_start_matches(['\t', ' ', '\r', '\n', '\u{c}']).len();
        if blank > 0 {
            at += blank;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if let Some((kind, length)) = longest(rest) {
            tokens.push(Token { kind, start: at, end: at + length });
            at += length;
        } else {
            // The character that did not fit any more belongs to what is reported, and is skipped with it.
            let mut end = (at + stuck(rest)).min(source.len());
            end += source.get(end..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            let odd = source.get(at..end).unwrap_or_default();
            let message = format!("Syntax error: token recognition error at: '{odd}'");
            issues.push(Issue::at(at, message));
            at = end;
        }
    }
    Words { source, tokens }
}

fn longest(rest: &str) -> Option<(u8, usize)> {
    let sign = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)).map(|(sign, kind)| (*kind, sign.len()));
    let candidates = [sign, word(rest), number(rest), text(rest), bytes(rest), escaped_word(rest)];
    // Of two that are equally long the first wins.
    candidates.into_iter().flatten().reduce(|best, next| if next.1 > best.1 { next } else { best })
}

fn word(rest: &str) -> Option<(u8, usize)> {
    if !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return None;
    }
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    let kind = match rest.get(..end).unwrap_or_default() {
        "in" => kind::IN,
        "true" => kind::TRUE,
        "false" => kind::FALSE,
        "null" => kind::NULL,
        _ => kind::IDENT,
    };
    Some((kind, end))
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn escaped_word(rest: &str) -> Option<(u8, usize)> {
    let end = escaped_end(rest)?;
    (end > 1 && rest.get(end..).is_some_and(|rest| rest.starts_with('`')))
        .then_some((kind::ESCAPED_IDENT, end + 1))
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn escaped_end(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('`')?;
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' ');
    Some(1 + inner.find(|c: char| !letter(c)).unwrap_or(inner.len()))
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn number(rest: &str) -> Option<(u8, usize)> {
    let bytes = rest.as_bytes();
    let digits = |from: usize, digit: fn(&u8) -> bool| {
        from + bytes.get(from..).unwrap_or_default().iter().take_while(|byte| digit(byte)).count()
    };
    let unsigned = |end: usize| match bytes.get(end) {
        Some(b'u' | b'U') => (kind::UINT, end + 1),
        _ => (kind::INT, end),
    };
    if rest.starts_with("0x") && digits(2, u8::is_ascii_hexdigit) > 2 {
        return Some(unsigned(digits(2, u8::is_ascii_hexdigit)));
    }
    let whole = digits(0, u8::is_ascii_digit);
    let mut end = whole;
    if bytes.get(whole) == Some(&b'.') && digits(whole + 1, u8::is_ascii_digit) > whole + 1 {
        end = digits(whole + 1, u8::is_ascii_digit);
    }
    if end == 0 {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let power = digits(end + 1 + sign, u8::is_ascii_digit);
        if power > end + 1 + sign {
            return Some((kind::FLOAT, power));
        }
    }
    Some(if end > whole { (kind::FLOAT, end) } else { unsigned(whole) })
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn bytes(rest: &str) -> Option<(u8, usize)> {
    let inner = rest.strip_prefix(['b', 'B'])?;
    text(inner).map(|(_, length)| (kind::BYTES, length + 1))
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn text(rest: &str) -> Option<(u8, usize)> {
    let (raw, start, body) = match rest.strip_prefix(['r', 'R']) {
        Some(body) => (true, 1, body),
        None => (false, 0, rest),
    };
    let mut best = None;
    for quote in ["\"", "'", "\"\"\"", "'''"] {
        if body.starts_with(quote)
            && let Ok(end) = closed(body, quote, raw)
        {
            best = best.max(Some(end));
        }
    }
    best.map(|end| (kind::STRING, start + end))
}

/// Finds the end of a text behind its closing quotes, or where it cannot go on.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn closed(body: &str, quote: &str, raw: bool) -> Result<usize, usize> {
    let mut at = quote.len();
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(quote) {
            return Ok(at + quote.len());
        }
        match rest.chars().next() {
            None => return Err(at),
            Some('\n' | '\r') if quote.len() == 1 => return Err(at),
            Some('\\') if !raw => at += escape(rest).map_err(|bad| at + bad)?,
            Some(c) => at += c.len_utf8(),
        }
    }
}

/// Returns the length of an escape sequence, or where it goes wrong.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of one text add up to less than that text"
)]
fn escape(rest: &str) -> Result<usize, usize> {
    const HEX: fn(&u8) -> bool = u8::is_ascii_hexdigit;
    const OCTAL: fn(&u8) -> bool = |byte| matches!(byte, b'0'..=b'7');
    let bytes = rest.as_bytes();
    let wants: &[fn(&u8) -> bool] = match bytes.get(1) {
        Some(b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`') => &[],
        Some(b'x' | b'X') => &[HEX; 2],
        Some(b'u') => &[HEX; 4],
        Some(b'U') => &[HEX; 8],
        Some(b'0'..=b'3') => &[OCTAL; 2],
        _ => return Err(1),
    };
    for (index, fits) in wants.iter().enumerate() {
        if !bytes.get(2 + index).is_some_and(fits) {
            return Err(2 + index);
        }
    }
    Ok(2 + wants.len())
}

/// Returns how far anything fitted where no word begins.
fn stuck(rest: &str) -> usize {
    match rest.chars().next() {
        Some('&' | '|' | '=') => 1,
        Some(quote @ ('"' | '\'')) => closed(rest, &quote.to_string(), false).err().unwrap_or(0),
        Some('`') => escaped_end(rest).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> (Vec<String>, Vec<String>) {
        let mut issues = Vec::new();
        let split = split(source, &mut issues);
        let words = split.tokens.iter().map(|token| split.text(*token, *token).to_owned()).collect();
        (words, issues.into_iter().map(|issue| issue.message).collect())
    }

    #[test]
    fn the_longest_word_wins() {
        assert_eq!(words("a<=b").0, ["a", "<=", "b"]);
        assert_eq!(words("1.5e3u 0x1fu .5 1.x").0, ["1.5e3", "u", "0x1fu", ".5", "1", ".", "x"]);
        assert_eq!(words("br'a' rb'a' '''a'b'''").0, ["br'a'", "rb", "'a'", "'''a'b'''"]);
    }

    #[test]
    fn what_is_no_word_is_skipped_with_the_character_behind_it() {
        let (left, issues) = words("a & b # 'x");
        assert_eq!(left, ["a", "b"]);
        let odd = |text: &str| format!("Syntax error: token recognition error at: '{text}'");
        assert_eq!(issues, [odd("& "), odd("#"), odd("'x")]);
        assert_eq!(words(r"'a\q'").1, [odd(r"'a\q"), odd("'")]);
    }
}
