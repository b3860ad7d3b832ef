//! `'…'.format([…])`: values put into a text, when it is evaluated; and, where the text is known before, what is wrong with it.

use crate::functions::convert;
use crate::value::Value;

/// The digits behind the point, unless a clause says otherwise.
const PRECISION: usize = 6;

/// One clause: what it does, and with how many digits behind the point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clause {
    pub(crate) verb: char,
    precision: Option<usize>,
}

/// What a text to be filled in consists of.
enum Piece {
    Text(char),
    Clause(Clause),
}

/// Fills in a text.
pub(crate) fn format(text: &str, values: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    walk(text, values.len(), false, &mut |index, piece| {
        match piece {
            Piece::Text(c) => out.push(c),
            Piece::Clause(clause) => out.push_str(&fill(clause, &values[index])?),
        }
        Ok(())
    })?;
    Ok(out)
}

/// Goes through the clauses of a text that `count` values are for; returns how many it asks for.
pub(crate) fn clauses(
    text: &str,
    count: usize,
    check: &mut dyn FnMut(usize, Clause) -> Result<(), String>,
) -> Result<usize, String> {
    walk(text, count, true, &mut |index, piece| match piece {
        Piece::Text(_) => Ok(()),
        Piece::Clause(clause) => check(index, clause),
    })
}

/// Before the evaluation, the end of the text is noticed first; later, that a value is missing.
fn walk(
    text: &str,
    count: usize,
    before: bool,
    visit: &mut dyn FnMut(usize, Piece) -> Result<(), String>,
) -> Result<usize, String> {
    let mut index = 0;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '%' {
            visit(index, Piece::Text(c))?;
            continue;
        }
        if let Some(behind) = rest.strip_prefix('%') {
            rest = behind;
            visit(index, Piece::Text('%'))?;
            continue;
        }
        if rest.is_empty() && (before || index < count) {
            return Err("unexpected end of string".to_owned());
        }
        if index >= count {
            return Err(format!("index {index} out of range"));
        }
        let (clause, behind) =
            clause(rest).map_err(|why| format!("could not parse formatting clause: {why}"))?;
        rest = behind;
        visit(index, Piece::Clause(clause)).map_err(|why| format!("error during formatting: {why}"))?;
        index += 1;
    }
    Ok(index)
}

fn clause(text: &str) -> Result<(Clause, &str), String> {
    let (mut rest, mut precision) = (text, None);
    if let Some(behind) = text.strip_prefix('.') {
        let end = behind.find(|c: char| !c.is_ascii_digit());
        let Some(end) = end else {
            return Err("error while parsing precision: could not find end of precision specifier".to_owned());
        };
        let digits = &behind[..end];
        precision = Some(digits.parse().map_err(|_| {
            format!(
                "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {digits:?}: invalid syntax"
            )
        })?);
        rest = &behind[end..];
    }
    let verb = rest.chars().next().unwrap_or(' ');
    if !matches!(verb, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
        // Upstream looks at bytes here.
        let shown = char::from(rest.as_bytes().first().copied().unwrap_or(b' '));
        return Err(format!("unrecognized formatting clause \"{shown}\""));
    }
    Ok((Clause { verb, precision }, &rest[verb.len_utf8()..]))
}

/// Says that a clause does not go with a type.
pub(crate) fn unfit(verb: char, type_name: &str) -> String {
    let what = match verb {
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'x' | 'X' => "only integers, byte buffers, and strings can be formatted as hex",
        'o' => "octal clause can only be used on integers",
        _ => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
    };
    format!("{what}, was given {type_name}")
}

fn fill(clause: Clause, value: &Value) -> Result<String, String> {
    let unfit = || unfit(clause.verb, value.type_name());
    let digits = clause.precision.unwrap_or(PRECISION);
    let signed = |n: i64, show: fn(u64) -> String| {
        format!("{}{}", if n < 0 { "-" } else { "" }, show(n.unsigned_abs()))
    };
    let radix: fn(u64) -> String = match clause.verb {
        'b' => |n| format!("{n:b}"),
        'o' => |n| format!("{n:o}"),
        'X' => |n| format!("{n:X}"),
        _ => |n| format!("{n:x}"),
    };
    let hex = |bytes: &[u8]| -> String {
        let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if clause.verb == 'X' { lower.to_uppercase() } else { lower }
    };
    match (clause.verb, value) {
        ('s', _) => string(value),
        ('d', Value::Int(n)) => Ok(n.to_string()),
        ('d', Value::Uint(n)) => Ok(n.to_string()),
        ('f' | 'e', Value::Double(_) | Value::String(_)) => {
            let number = match value {
                Value::Double(number) => *number,
                Value::String(text) if &**text == "NaN" => f64::NAN,
                Value::String(text) if &**text == "Infinity" => f64::INFINITY,
                Value::String(text) if &**text == "-Infinity" => f64::NEG_INFINITY,
                _ => return Err(unfit()),
            };
            Ok(if clause.verb == 'f' { fixed(number, digits) } else { scientific(number, digits) })
        }
        ('b' | 'o' | 'x' | 'X', Value::Int(n)) => Ok(signed(*n, radix)),
        ('b' | 'o' | 'x' | 'X', Value::Uint(n)) => Ok(radix(*n)),
        ('b', Value::Bool(b)) => Ok(u8::from(*b).to_string()),
        ('x' | 'X', Value::String(text)) => Ok(hex(text.as_bytes())),
        ('x' | 'X', Value::Bytes(bytes)) => Ok(hex(bytes)),
        _ => Err(unfit()),
    }
}

/// The whole part is grouped by thousands, as in American English.
fn fixed(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        return special(number);
    }
    let text = format!("{:.digits$}", number.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

/// Upstream takes the precision for a width here, so that six digits are written in any case.
fn scientific(number: f64, width: usize) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if !number.is_finite() {
        return format!("{:>width$}", special(number));
    }
    let text = format!("{number:.6e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(("", power), |power| ("⁻", power));
    let raised: String =
        power.chars().filter_map(|c| c.to_digit(10)).map(|digit| RAISED[digit as usize]).collect();
    format!("{digits}×10{sign}{raised:⁰>2}")
}

fn special(number: f64) -> String {
    match number {
        n if n.is_nan() => "NaN".to_owned(),
        n if n > 0.0 => "∞".to_owned(),
        _ => "-∞".to_owned(),
    }
}

fn string(value: &Value) -> Result<String, String> {
    match value {
        Value::List(list) => {
            let items: Result<Vec<String>, String> = list.iter().map(inside).collect();
            Ok(format!("[{}]", items?.join(", ")))
        }
        Value::Map(map) => {
            let mut entries = Vec::new();
            for (key, value) in map.iter() {
                entries.push((inside(&key.to_value())?, inside(value)?));
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            Ok(format!("{{{}}}", entries.join(", ")))
        }
        Value::Null => Ok("null".to_owned()),
        Value::Type(name) => Ok(name.to_string()),
        Value::Ip(_) | Value::Cidr(_) => Err(unfit('s', value.type_name())),
        other => convert::string(other).ok_or_else(|| unfit('s', other.type_name())),
    }
}

/// Shows a value inside a list or map, as it would be written in an expression.
fn inside(value: &Value) -> Result<String, String> {
    let quote = apimachinery::go::quote;
    match value {
        Value::String(text) => Ok(quote(text)),
        Value::Bytes(bytes) => Ok(format!("b{}", quote(&String::from_utf8_lossy(bytes)))),
        Value::Double(number) if !number.is_finite() => {
            let name = if number.is_nan() {
                "NaN"
            } else if *number > 0.0 {
                "+Inf"
            } else {
                "-Inf"
            };
            Ok(quote(name))
        }
        Value::Double(number) => Ok(format!("{number:.PRECISION$}")),
        Value::Timestamp(_) => {
            Ok(format!("timestamp({})", quote(&convert::string(value).unwrap_or_default())))
        }
        Value::Duration(_) => Ok(format!("duration({})", quote(&convert::string(value).unwrap_or_default()))),
        Value::List(_)
        | Value::Map(_)
        | Value::Null
        | Value::Type(_)
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_) => string(value),
        other => Err(format!("no formatting function for {}", other.type_name())),
    }
}
