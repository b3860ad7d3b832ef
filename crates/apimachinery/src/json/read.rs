//! The JSON reader.
//!
//! One pass, recursive, bounded by [`MAX_DEPTH`]. The last of several equal keys wins, and each repetition is
//! reported with the path that strict field validation prints.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

use crate::depth::{MAX_DEPTH, TooDeep};
use crate::go;

/// No more repeated keys than this are reported, as upstream.
const MAX_REPORTS: usize = 100;

/// How many bytes are spent on paths of keys. A path repeats all keys above: one long key with many inside of it would make
/// hundreds of gigabytes of a body of 3 MiB. What is beyond is not reported, or not put into order.
const MAX_PATHS: usize = 4 << 20;

/// A value and what was odd about its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    pub value: Value,
    /// Paths of keys that occur more than once in one object, in document order, each once.
    pub duplicates: Vec<String>,
}

impl Document {
    /// Returns the strict decoding complaints: `duplicate field "spec.bar"`.
    pub fn complaints(&self) -> Vec<String> {
        self.duplicates.iter().map(|path| format!("duplicate field {}", go::quote(path))).collect()
    }
}

/// Why bytes are not JSON, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {} {context}", go::quote_byte(*.byte))]
    Syntax { byte: u8, context: &'static str },
    #[error(transparent)]
    Depth(#[from] TooDeep),
    #[error("json: cannot unmarshal number {0} into Go value of type float64")]
    Number(String),
}

/// Reads one JSON document; anything but blanks behind it is an error.
pub fn read(bytes: &[u8]) -> Result<Document, Error> {
    let mut reader = Reader::new(bytes);
    let value = reader.value(0)?;
    match reader.next_token() {
        None => Ok(Document { value, duplicates: reader.duplicates }),
        Some(byte) => Err(Error::Syntax { byte, context: "after top-level value" }),
    }
}

/// Puts complaints about keys (`unknown field "a"`, `duplicate field "b"`) into the order in which the document gives rise
/// to them: the first occurrence of an unknown key, the second of a repeated one. Others stay behind.
pub fn sort_complaints(bytes: &[u8], complaints: &mut [String]) {
    if complaints.len() < 2 {
        return;
    }
    let mut reader = Reader { keys: Some(Vec::new()), ..Reader::new(bytes) };
    if reader.value(0).is_err() {
        return;
    }
    // Where a key occurs first, and where again.
    let mut places: HashMap<String, (usize, usize)> = HashMap::new();
    for (place, key) in reader.keys.unwrap_or_default().into_iter().enumerate() {
        places
            .entry(go::quote(&key))
            .and_modify(|(_, again)| *again = place.min(*again))
            .or_insert((place, usize::MAX));
    }
    complaints.sort_by_cached_key(|complaint| match complaint.split_once(" field ") {
        Some(("duplicate", path)) => places.get(path).map_or(usize::MAX, |(_, again)| *again),
        Some((_, path)) => places.get(path).map_or(usize::MAX, |(first, _)| *first),
        None => usize::MAX,
    });
}

/// Reads one JSON document for callers that do not ask about repeated keys.
pub fn read_value(bytes: &[u8]) -> Result<Value, Error> {
    read(bytes).map(|document| document.value)
}

/// Returns the number that a float becomes: an integer if it has no fraction and fits 64 bits.
pub(crate) fn from_float(float: f64) -> Option<Number> {
    // 2^63 itself is representable as a float but not as an i64, hence the strict bound.
    if float.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float) {
        return Some(Number::from(float as i64));
    }
    Number::from_f64(float)
}

/// A step from the root to the place being read; only looked at when a repeated key is found.
enum Step {
    Key(String),
    Index(usize),
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    path: Vec<Step>,
    duplicates: Vec<String>,
    /// Paths of all keys in document order, where somebody asked for them.
    keys: Option<Vec<String>>,
    /// Bytes of all paths that were made so far.
    path_bytes: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, path: Vec::new(), duplicates: Vec::new(), keys: None, path_bytes: 0 }
    }
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    /// Goes one byte on.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "called behind a byte that was seen: never beyond the length of the bytes"
    )]
    fn advance(&mut self) {
        self.position += 1;
    }

    /// Returns the bytes from a place that was passed up to here.
    fn since(&self, start: usize) -> &[u8] {
        self.bytes.get(start..self.position).unwrap_or_default()
    }

    fn next_token(&mut self) -> Option<u8> {
        while let Some(byte) = self.peek() {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.advance();
        }
        None
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        match self.next_token().ok_or(Error::End)? {
            b'{' => self.object(depth.saturating_add(1)),
            b'[' => self.array(depth.saturating_add(1)),
            b'"' => self.string().map(Value::String),
            b't' => self.literal("true", Value::Bool(true)),
            b'f' => self.literal("false", Value::Bool(false)),
            b'n' => self.literal("null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            byte => Err(Error::Syntax { byte, context: "looking for beginning of value" }),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > MAX_DEPTH {
            return Err(TooDeep.into());
        }
        self.advance();
        let mut entries = Map::new();
        if self.next_token().ok_or(Error::End)? == b'}' {
            self.advance();
            return Ok(Value::Object(entries));
        }
        loop {
            match self.next_token().ok_or(Error::End)? {
                b'"' => {}
                byte => {
                    return Err(Error::Syntax {
                        byte,
                        context: "looking for beginning of object key string",
                    });
                }
            }
            let key = self.string()?;
            match self.next_token().ok_or(Error::End)? {
                b':' => self.advance(),
                byte => return Err(Error::Syntax { byte, context: "after object key" }),
            }
            if entries.contains_key(&key) {
                self.report(&key);
            }
            let path = if self.keys.is_some() { self.path_of(&key) } else { None };
            if let (Some(keys), Some(path)) = (&mut self.keys, path) {
                keys.push(path);
            }
            self.path.push(Step::Key(key));
            let value = self.value(depth)?;
            let Some(Step::Key(key)) = self.path.pop() else { unreachable!("the step pushed above") };
            entries.insert(key, value);
            match self.next_token().ok_or(Error::End)? {
                b',' => self.advance(),
                b'}' => {
                    self.advance();
                    return Ok(Value::Object(entries));
                }
                byte => return Err(Error::Syntax { byte, context: "after object key:value pair" }),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > MAX_DEPTH {
            return Err(TooDeep.into());
        }
        self.advance();
        let mut items = Vec::new();
        if self.next_token().ok_or(Error::End)? == b']' {
            self.advance();
            return Ok(Value::Array(items));
        }
        loop {
            self.path.push(Step::Index(items.len()));
            let value = self.value(depth)?;
            self.path.pop();
            items.push(value);
            match self.next_token().ok_or(Error::End)? {
                b',' => self.advance(),
                b']' => {
                    self.advance();
                    return Ok(Value::Array(items));
                }
                byte => return Err(Error::Syntax { byte, context: "after array element" }),
            }
        }
    }

    fn report(&mut self, key: &str) {
        if self.duplicates.len() >= MAX_REPORTS {
            return;
        }
        let Some(path) = self.path_of(key) else { return };
        if !self.duplicates.contains(&path) {
            self.duplicates.push(path);
        }
    }

    /// Returns the path of a key, unless the paths before it were too much already.
    fn path_of(&mut self, key: &str) -> Option<String> {
        if self.path_bytes > MAX_PATHS {
            return None;
        }
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(key);
                }
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        self.path_bytes = self.path_bytes.saturating_add(path.len());
        Some(path)
    }

    fn literal(&mut self, word: &'static str, value: Value) -> Result<Value, Error> {
        for (index, expected) in word.bytes().enumerate() {
            let byte = self.peek().ok_or(Error::End)?;
            if byte != expected {
                return Err(Error::Syntax { byte, context: literal_context(word, index) });
            }
            self.advance();
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, Error> {
        let start = self.position;
        let mut integral = true;
        if self.peek() == Some(b'-') {
            self.advance();
        }
        match self.peek().ok_or(Error::End)? {
            b'0' => self.advance(),
            b'1'..=b'9' => self.digits(),
            byte => return Err(Error::Syntax { byte, context: "in numeric literal" }),
        }
        if self.peek() == Some(b'.') {
            integral = false;
            self.advance();
            self.expect_digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            integral = false;
            self.advance();
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.advance();
            }
            self.expect_digit("in exponent of numeric literal")?;
            self.digits();
        }
        let text = std::str::from_utf8(self.since(start)).expect("digits and signs are ASCII");
        if integral && let Ok(integer) = text.parse::<i64>() {
            return Ok(Value::from(integer));
        }
        let float: f64 = text.parse().map_err(|_| Error::Number(text.to_owned()))?;
        from_float(float).map(Value::Number).ok_or_else(|| Error::Number(text.to_owned()))
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.advance();
        }
    }

    fn expect_digit(&self, context: &'static str) -> Result<(), Error> {
        match self.peek().ok_or(Error::End)? {
            b'0'..=b'9' => Ok(()),
            byte => Err(Error::Syntax { byte, context }),
        }
    }

    /// Reads a string; the position is at its opening quote.
    fn string(&mut self) -> Result<String, Error> {
        self.advance();
        let mut text: Vec<u8> = Vec::new();
        let mut start = self.position;
        loop {
            match self.peek().ok_or(Error::End)? {
                b'"' => {
                    text.extend_from_slice(self.since(start));
                    self.advance();
                    // Bytes that are not UTF-8 become the replacement character, as in Go.
                    return Ok(match String::from_utf8(text) {
                        Ok(text) => text,
                        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
                    });
                }
                b'\\' => {
                    text.extend_from_slice(self.since(start));
                    self.advance();
                    let character = self.escape()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    start = self.position;
                }
                byte if byte < b' ' => return Err(Error::Syntax { byte, context: "in string literal" }),
                _ => self.advance(),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let byte = self.peek().ok_or(Error::End)?;
        self.advance();
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.hex()?;
                if let Some(character) = char::from_u32(u32::from(unit)) {
                    return Ok(character);
                }
                // A surrogate needs its other half; a lone one becomes the replacement character.
                let rest = self.bytes.get(self.position..).unwrap_or_default();
                if rest.starts_with(b"\\u") {
                    let before = self.position;
                    self.advance();
                    self.advance();
                    let low = self.hex()?;
                    if let Some(Ok(character)) = char::decode_utf16([unit, low]).next() {
                        return Ok(character);
                    }
                    self.position = before;
                }
                char::REPLACEMENT_CHARACTER
            }
            byte => return Err(Error::Syntax { byte, context: "in string escape code" }),
        })
    }

    fn hex(&mut self) -> Result<u16, Error> {
        let mut value: u16 = 0;
        for _ in 0..4 {
            let byte = self.peek().ok_or(Error::End)?;
            let digit = char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
            let digit =
                digit.ok_or(Error::Syntax { byte, context: "in \\u hexadecimal character escape" })?;
            value = value << 4 | digit;
            self.advance();
        }
        Ok(value)
    }
}

fn literal_context(word: &'static str, index: usize) -> &'static str {
    match (word, index) {
        ("true", 1) => "in literal true (expecting 'r')",
        ("true", 2) => "in literal true (expecting 'u')",
        ("true", _) => "in literal true (expecting 'e')",
        ("false", 1) => "in literal false (expecting 'a')",
        ("false", 2) => "in literal false (expecting 'l')",
        ("false", 3) => "in literal false (expecting 's')",
        ("false", _) => "in literal false (expecting 'e')",
        (_, 1) => "in literal null (expecting 'u')",
        _ => "in literal null (expecting 'l')",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        read_value(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn documents_become_values() {
        assert_eq!(
            value(r#" {"a": [1, -2.5, "x\né𝄞", true, false, null], "b": {}} "#),
            json!({"a": [1, -2.5, "x\né𝄞", true, false, null], "b": {}})
        );
    }

    #[test]
    fn numbers_are_integers_where_possible() {
        assert_eq!(value("9223372036854775807"), json!(i64::MAX));
        assert_eq!(value("-9223372036854775808"), json!(i64::MIN));
        assert_eq!(value("9223372036854775808"), json!(9223372036854775808.0));
        assert_eq!(value("1.0"), json!(1));
        assert_eq!(value("1e3"), json!(1000));
        assert_eq!(value("-0"), json!(0));
        assert_eq!(value("0.5"), json!(0.5));
        assert_eq!(
            read_value(b"1e999").unwrap_err().to_string(),
            "json: cannot unmarshal number 1e999 into Go value of type float64"
        );
    }

    #[test]
    fn floats_are_the_same_when_they_come_back_from_the_store() {
        let number = value("9223372065536337000000000000.5e1");
        let stored: Value = serde_json::from_str(&number.to_string()).unwrap();
        assert_eq!(stored, number);
        let number = value("92233720655363370000000000000");
        let stored: Value = serde_json::from_str(&number.to_string()).unwrap();
        assert_eq!(stored, number);
    }

    #[test]
    fn syntax_errors_read_as_gos() {
        for (text, message) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (r#"{"a""#, "unexpected end of JSON input"),
            (r#""abc"#, "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{}x", "invalid character 'x' after top-level value"),
            ("{a}", "invalid character 'a' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("tru", "unexpected end of JSON input"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("nul1", "invalid character '1' in literal null (expecting 'l')"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            (r#""\x""#, "invalid character 'x' in string escape code"),
            (r#""\u12x4""#, r"invalid character 'x' in \u hexadecimal character escape"),
            ("'a'", r"invalid character '\'' looking for beginning of value"),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn repeated_keys_are_reported_with_their_path() {
        let document =
            read(br#"{"spec":{"bar":1,"bar":2,"bar":3,"l":[{"x":1},{"x":1,"x":2}]},"spec":{"a":1}}"#)
                .unwrap();
        assert_eq!(document.value, json!({"spec": {"a": 1}}));
        assert_eq!(
            document.complaints(),
            [
                r#"duplicate field "spec.bar""#,
                r#"duplicate field "spec.l[1].x""#,
                r#"duplicate field "spec""#
            ]
        );
    }

    #[test]
    fn hostile_depth_is_refused() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(read(deep.as_bytes()), Err(Error::Depth(TooDeep)));
        let fine = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(read(fine.as_bytes()).is_ok());
    }

    #[test]
    fn broken_unicode_is_replaced() {
        assert_eq!(value(r#""\ud800x""#), json!("\u{fffd}x"));
        assert_eq!(value(r#""\ud800\u0041""#), json!("\u{fffd}A"));
        assert_eq!(read_value(b"\"\xff\"").unwrap(), json!("\u{fffd}"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn reading_agrees_with_serde_json(text in r#"[\[\]{}:,"a0-9.eE\-tru nl\\]{0,24}"#) {
            let ours = read(text.as_bytes()).is_ok();
            let theirs = serde_json::from_str::<Value>(&text).is_ok();
            // serde_json refuses lone surrogates; the alphabet above cannot spell one.
            prop_assert_eq!(ours, theirs, "{}", text);
        }
    }

    #[test]
    fn complaints_come_in_the_order_of_the_document() {
        let text = br#"{"z": 1, "a": 1, "b": {"x": 1, "x": 2}, "a": 2}"#;
        let mut complaints: Vec<String> = [
            r#"duplicate field "b.x""#,
            r#"duplicate field "a""#,
            r#"unknown field "b.x""#,
            r#"unknown field "z""#,
        ]
        .map(str::to_owned)
        .into();
        sort_complaints(text, &mut complaints);
        assert_eq!(
            complaints,
            [
                r#"unknown field "z""#,
                r#"unknown field "b.x""#,
                r#"duplicate field "b.x""#,
                r#"duplicate field "a""#
            ]
        );
    }

    #[test]
    fn a_long_key_with_many_inside_of_it_does_not_become_as_many_long_paths() {
        let long = "k".repeat(1 << 20);
        let fields = |name: fn(usize) -> String| {
            let all: Vec<String> = (0..1000).map(|number| format!("\"{}\": 0", name(number))).collect();
            format!(r#"{{"{long}": {{{}}}}}"#, all.join(", "))
        };
        let distinct = fields(|number| format!("f{number}"));
        let mut reader = Reader { keys: Some(Vec::new()), ..Reader::new(distinct.as_bytes()) };
        reader.value(0).expect("it is JSON");
        let kept: usize = reader.keys.iter().flatten().map(String::len).sum();
        assert!(kept <= MAX_PATHS + 2 * long.len(), "{kept} bytes of paths");
        // The same field again and again makes no path each time either.
        let repeated = fields(|_| "f".to_owned());
        let mut reader = Reader::new(repeated.as_bytes());
        reader.value(0).expect("it is JSON");
        assert_eq!(reader.duplicates.len(), 1);
        assert!(reader.path_bytes <= MAX_PATHS + 2 * long.len(), "{} bytes of paths", reader.path_bytes);
        let pairs = fields(|number| format!("f{}", number / 2));
        let found = read(pairs.as_bytes()).expect("it is JSON").duplicates;
        assert!(!found.is_empty() && found.len() < 10, "{} paths of a megabyte", found.len());
    }
}
