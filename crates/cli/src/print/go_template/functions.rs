//! The functions of templates: those of Go's `text/template`, and kubectl's `exists` and `base64decode`.

use base64::Engine as _;
use serde_json::Value;

pub(super) const NAMES: &[&str] = &[
    "and",
    "base64decode",
    "call",
    "eq",
    "exists",
    "ge",
    "gt",
    "html",
    "index",
    "js",
    "le",
    "len",
    "lt",
    "ne",
    "not",
    "or",
    "print",
    "printf",
    "println",
    "slice",
    "urlquery",
];

/// Why a function failed.
pub(super) enum Refusal {
    /// It got too many or too few arguments.
    Count(String),
    /// Its first argument should have been text.
    Type(String),
    Failed(String),
}

/// Returns whether a value is true in a condition: false is a missing value, zero, or an empty value.
pub(super) fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// The text of a value in place of an action.
pub(super) fn printed(value: &Value) -> String {
    if value.is_null() { "<no value>".to_owned() } else { verbose(value) }
}

pub(super) use apimachinery::go::type_name;

/// A float as `%v` prints it: with the fewest digits, and with an exponent if there are more than six places.
fn float(number: f64) -> String {
    general(number, 'e')
}

fn general(number: f64, letter: char) -> String {
    let text = format!("{number:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{number}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{letter}{sign}{:02}", exponent.abs())
}

/// A value as `%v` prints it.
pub(super) fn verbose(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => number.as_f64().map(float).unwrap_or_default(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(verbose).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("{key}:{}", verbose(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => apimachinery::go::verbose(other),
    }
}

pub(super) fn call(name: &str, arguments: &[Value]) -> Result<Value, Refusal> {
    let (least, most) = match name {
        "ne" | "lt" | "le" | "gt" | "ge" => (2, 2),
        "not" | "len" | "base64decode" => (1, 1),
        "and" | "or" | "eq" | "index" | "exists" | "slice" | "printf" | "call" => (1, usize::MAX),
        _ => (0, usize::MAX),
    };
    if arguments.len() < least || arguments.len() > most {
        let wanted = if most == least { least.to_string() } else { format!("at least {least}") };
        return Err(Refusal::Count(format!(
            "wrong number of args for {name}: want {wanted} got {}",
            arguments.len()
        )));
    }
    if let ("printf" | "base64decode", Some(first)) =
        (name, arguments.first().filter(|first| !first.is_string()))
    {
        return Err(Refusal::Type(format!(
            "wrong type for value; expected string; got {}",
            type_name(first)
        )));
    }
    let failed = |said: String| Refusal::Failed(said);
    let join = || sprint(arguments);
    Ok(match name {
        "and" | "or" => {
            let decides = |value: &&Value| truth(value) == (name == "or");
            arguments.iter().find(decides).or(arguments.last()).cloned().unwrap_or(Value::Null)
        }
        "not" => (!truth(&arguments[0])).into(),
        "eq" => equal(arguments).map_err(failed)?.into(),
        "ne" => (!same(&arguments[0], &arguments[1]).map_err(failed)?).into(),
        "lt" => less(&arguments[0], &arguments[1]).map_err(failed)?.into(),
        "le" => {
            let (one, other) = (&arguments[0], &arguments[1]);
            (less(one, other).map_err(failed)? || same(one, other).map_err(failed)?).into()
        }
        "gt" => {
            let (one, other) = (&arguments[0], &arguments[1]);
            (!less(one, other).map_err(failed)? && !same(one, other).map_err(failed)?).into()
        }
        "ge" => (!less(&arguments[0], &arguments[1]).map_err(failed)?).into(),
        "len" => length(&arguments[0]).map_err(failed)?.into(),
        "index" => index(&arguments[0], &arguments[1..]).map_err(failed)?,
        // A function of kubectl: whether `index` would find it.
        "exists" => index(&arguments[0], &arguments[1..]).is_ok_and(|value| !value.is_null()).into(),
        "slice" => slice(&arguments[0], &arguments[1..]).map_err(failed)?,
        "base64decode" => decode(&arguments[0]).map_err(failed)?.into(),
        "print" => join().into(),
        "println" => {
            let texts: Vec<String> = arguments.iter().map(verbose).collect();
            (texts.join(" ") + "\n").into()
        }
        "printf" => printf(arguments[0].as_str().unwrap_or(""), &arguments[1..]).into(),
        "html" => html(&join()).into(),
        "js" => js(&join()).into(),
        "urlquery" => query(&join()).into(),
        // JSON values include no functions.
        _ => return Err(Refusal::Failed(format!("non-function of type {}", type_name(&arguments[0])))),
    })
}

/// Text as `fmt.Sprint` joins it: spaces between operands if neither is a string.
fn sprint(arguments: &[Value]) -> String {
    let mut out = String::new();
    for (i, value) in arguments.iter().enumerate() {
        if i > 0 && !value.is_string() && !arguments[i - 1].is_string() {
            out.push(' ');
        }
        out.push_str(&verbose(value));
    }
    out
}

/// The kinds of values that can be compared.
#[derive(PartialEq, Eq)]
enum Basic {
    Bool,
    Int,
    Float,
    Text,
}

fn basic(value: &Value) -> Result<Basic, String> {
    match value {
        Value::Bool(_) => Ok(Basic::Bool),
        Value::Number(number) if number.is_f64() => Ok(Basic::Float),
        Value::Number(_) => Ok(Basic::Int),
        Value::String(_) => Ok(Basic::Text),
        _ => Err("invalid type for comparison".to_owned()),
    }
}

fn incompatible(one: &Value, other: &Value) -> String {
    format!("incompatible types for comparison: {} and {}", type_name(one), type_name(other))
}

fn equal(arguments: &[Value]) -> Result<bool, String> {
    let Some((first, others)) = arguments.split_first() else { return Ok(false) };
    if others.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in others {
        if same(first, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn same(one: &Value, other: &Value) -> Result<bool, String> {
    if one.is_null() || other.is_null() {
        return Ok(one.is_null() && other.is_null());
    }
    match (basic(one), basic(other)) {
        (Ok(first), Ok(second)) if first == second => Ok(one == other),
        (Err(_), Err(_)) if type_name(one) == type_name(other) => Err(format!(
            "non-comparable type {}: {}",
            printf("%s", std::slice::from_ref(one)),
            type_name(one)
        )),
        _ => Err(incompatible(one, other)),
    }
}

fn less(one: &Value, other: &Value) -> Result<bool, String> {
    if basic(one)? != basic(other)? {
        return Err(incompatible(one, other));
    }
    match (one, other) {
        (Value::String(one), Value::String(other)) => Ok(one < other),
        (Value::Number(one), Value::Number(other)) => Ok(one.as_f64() < other.as_f64()),
        _ => Err("invalid type for comparison".to_owned()),
    }
}

fn length(value: &Value) -> Result<usize, String> {
    match value {
        Value::String(text) => Ok(text.len()),
        Value::Array(items) => Ok(items.len()),
        Value::Object(map) => Ok(map.len()),
        Value::Null => Err("len of nil pointer".to_owned()),
        other => Err(format!("len of type {}", type_name(other))),
    }
}

/// An index as a number, at most `limit`.
fn position(value: &Value, limit: usize) -> Result<usize, String> {
    let Value::Number(number) = value else {
        return Err(match value {
            Value::Null => "cannot index slice/array with nil".to_owned(),
            other => format!("cannot index slice/array with type {}", type_name(other)),
        });
    };
    let Some(number) = number.as_i64() else {
        return Err("cannot index slice/array with type float64".to_owned());
    };
    match usize::try_from(number) {
        Ok(index) if index <= limit => Ok(index),
        _ => Err(format!("index out of range: {number}")),
    }
}

fn index(value: &Value, keys: &[Value]) -> Result<Value, String> {
    if value.is_null() {
        return Err("index of untyped nil".to_owned());
    }
    let mut value = value.clone();
    for key in keys {
        value = match &value {
            Value::Array(items) => {
                let at = position(key, items.len().saturating_sub(1))?;
                items.get(at).cloned().ok_or_else(|| format!("index out of range: {at}"))?
            }
            Value::String(text) => {
                let at = position(key, text.len().saturating_sub(1))?;
                let byte = text.as_bytes().get(at).ok_or_else(|| format!("index out of range: {at}"))?;
                Value::from(*byte)
            }
            Value::Object(map) => match key {
                Value::String(key) => map.get(key).cloned().unwrap_or(Value::Null),
                Value::Null => return Err("value is nil; should be of type string".to_owned()),
                other => return Err(format!("value has type {}; should be string", type_name(other))),
            },
            Value::Null => return Err("index of nil pointer".to_owned()),
            other => return Err(format!("can't index item of type {}", type_name(other))),
        };
    }
    Ok(value)
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value, String> {
    let limit = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.len(),
        Value::Null => return Err("slice of untyped nil".to_owned()),
        other => return Err(format!("can't slice item of type {}", type_name(other))),
    };
    if bounds.len() > 3 {
        return Err(format!("too many slice indexes: {}", bounds.len()));
    }
    if bounds.len() == 3 && value.is_string() {
        return Err("cannot 3-index slice a string".to_owned());
    }
    let from = bounds.first().map_or(Ok(0), |bound| position(bound, limit))?;
    let to = bounds.get(1).map_or(Ok(limit), |bound| position(bound, limit))?;
    if from > to {
        return Err(format!("invalid slice index: {from} > {to}"));
    }
    Ok(match value {
        Value::String(text) => String::from_utf8_lossy(&text.as_bytes()[from..to]).into_owned().into(),
        Value::Array(items) => items[from..to].to_vec().into(),
        _ => Value::Null,
    })
}

fn decode(value: &Value) -> Result<String, String> {
    let text = value.as_str().unwrap_or("");
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|error| format!("base64 decode failed: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A parsed `%-10s`.
#[derive(Default)]
struct Verb {
    minus: bool,
    plus: bool,
    zero: bool,
    sharp: bool,
    space: bool,
    width: usize,
    precision: Option<usize>,
}

/// Larger widths and precisions are cut, so that a template cannot fill the memory.
const WIDEST: usize = 10_000;

impl Verb {
    fn pad(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if missing == 0 {
            return text;
        }
        if self.minus {
            return text + &" ".repeat(missing);
        }
        if self.zero {
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => (&text[..1], digits),
                None => ("", text.as_str()),
            };
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        " ".repeat(missing) + &text
    }

    fn signed(&self, text: String) -> String {
        match text.starts_with('-') {
            false if self.plus => format!("+{text}"),
            false if self.space => format!(" {text}"),
            _ => text,
        }
    }

    /// Returns `None` if the verb does not suit the value.
    fn format(&self, letter: char, value: &Value) -> Option<String> {
        let cut = |text: &str| match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_owned(),
        };
        Some(match (letter, value) {
            ('v', Value::Number(number)) => {
                self.signed(if number.is_f64() { float(number.as_f64()?) } else { number.to_string() })
            }
            ('v', Value::String(text)) if self.sharp => apimachinery::go::quote(text),
            ('v' | 's', Value::String(text)) => cut(text),
            ('v', other) => verbose(other),
            ('T', other) => type_name(other).to_owned(),
            ('t', Value::Bool(flag)) => flag.to_string(),
            ('q', Value::String(text)) => apimachinery::go::quote(&cut(text)),
            ('x', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('X', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
            (_, Value::Number(number)) if number.is_f64() => {
                let number = number.as_f64()?;
                let precision = self.precision.unwrap_or(6);
                self.signed(match letter {
                    'f' | 'F' => format!("{number:.precision$}"),
                    'e' | 'E' => exponent(&format!("{number:.precision$e}"), letter),
                    'g' | 'G' => general(number, if letter == 'g' { 'e' } else { 'E' }),
                    _ => return None,
                })
            }
            (_, Value::Number(number)) => {
                let number = number.as_i64()?;
                let sign = if number < 0 { "-" } else { "" };
                let digits = number.unsigned_abs();
                self.signed(match letter {
                    'd' => number.to_string(),
                    'x' => format!("{sign}{}{digits:x}", if self.sharp { "0x" } else { "" }),
                    'X' => format!("{sign}{}{digits:X}", if self.sharp { "0X" } else { "" }),
                    'o' => format!("{sign}{digits:o}"),
                    'b' => format!("{sign}{digits:b}"),
                    'q' => format!("'{}'", char::from_u32(u32::try_from(number).ok()?)?),
                    'c' => char::from_u32(u32::try_from(number).ok()?)?.to_string(),
                    _ => return None,
                })
            }
            // Lists and maps apply the verb to each of their values.
            ('s' | 'd' | 'q', Value::Array(items)) => {
                let plain = Self::default();
                let each = |item| plain.format(letter, item).unwrap_or_else(|| unsuited(letter, item));
                format!("[{}]", items.iter().map(each).collect::<Vec<_>>().join(" "))
            }
            ('s' | 'd' | 'q', Value::Object(map)) => {
                let plain = Self::default();
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| key.as_str());
                let each =
                    |value: &Value| plain.format(letter, value).unwrap_or_else(|| unsuited(letter, value));
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(key, value)| format!("{}:{}", each(&Value::from(key.as_str())), each(value)))
                    .collect();
                format!("map[{}]", entries.join(" "))
            }
            _ => return None,
        })
    }
}

/// At least two digits, and a sign.
fn exponent(text: &str, letter: char) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text.to_owned() };
    let number: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}{letter}{}{:02}", if number < 0 { '-' } else { '+' }, number.abs())
}

fn unsuited(letter: char, value: &Value) -> String {
    if value.is_null() {
        return format!("%!{letter}(<nil>)");
    }
    format!("%!{letter}({}={})", type_name(value), verbose(value))
}

fn printf(format: &str, arguments: &[Value]) -> String {
    let mut out = String::new();
    let mut next = arguments.iter();
    let mut rest = format.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut verb = Verb::default();
        while let Some(flag) = rest.next_if(|c| matches!(c, '-' | '+' | '0' | '#' | ' ')) {
            match flag {
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                '0' => verb.zero = true,
                '#' => verb.sharp = true,
                _ => verb.space = true,
            }
        }
        let mut number = |rest: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            if rest.next_if_eq(&'*').is_some() {
                let given = next.next().and_then(Value::as_u64).unwrap_or(0);
                return usize::try_from(given).unwrap_or(WIDEST).min(WIDEST);
            }
            let mut number = 0_usize;
            while let Some(digit) = rest.next_if(char::is_ascii_digit).and_then(|c| c.to_digit(10)) {
                number = (number * 10 + digit as usize).min(WIDEST);
            }
            number
        };
        verb.width = number(&mut rest);
        if rest.next_if_eq(&'.').is_some() {
            verb.precision = Some(number(&mut rest));
        }
        match rest.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(letter) => match next.next() {
                None => out.push_str(&format!("%!{letter}(MISSING)")),
                Some(value) => {
                    let text = verb.format(letter, value);
                    out.push_str(&text.map_or_else(|| unsuited(letter, value), |text| verb.pad(text)));
                }
            },
        }
    }
    let extra: Vec<String> = next
        .map(|value| {
            if value.is_null() {
                "<nil>".to_owned()
            } else {
                format!("{}={}", type_name(value), verbose(value))
            }
        })
        .collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

fn html(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

fn query(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
