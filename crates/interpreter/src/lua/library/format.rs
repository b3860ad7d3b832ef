//! `string.format`: Go's verbs and not C's, since upstream hands the format to Go.

use super::{Call, display};
use crate::lua::machine::Ran;
use crate::lua::numbers;
use crate::lua::value::Value;

/// Go takes no larger widths.
const WIDTH_MAX: usize = 1_000_000;

#[derive(Default, Clone, Copy)]
struct Spec {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

pub(super) fn call(call: &mut Call<'_, '_>) -> Ran {
    let format = call.text(1)?;
    let format = format.bytes();
    call.spend(format.len())?;
    call.machine.heap.charge(format.len())?;
    let mut charged = format.len();
    // Upstream passes on as many arguments as there are signs.
    let signs = format.iter().filter(|byte| **byte == b'%').count();
    let escaped = count_escaped(format);
    let arguments = call.all(2);
    let arguments = &arguments[..arguments.len().min(signs.saturating_sub(escaped))];
    let mut next = 0;
    let mut out = Vec::with_capacity(format.len());
    let mut at = 0;
    while let Some(byte) = format.get(at) {
        at += 1;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let mut spec = Spec::default();
        let mut written = Vec::new();
        at = read_flags(format, at, &mut spec);
        if format.get(at) == Some(&b'*') {
            // Numbers of scripts are not integers of Go.
            next += 1;
            at += 1;
            written.extend_from_slice(b"%!(BADWIDTH)");
        } else {
            at = read_number(format, at, &mut spec.width);
        }
        if format.get(at) == Some(&b'.') {
            spec.precision = Some(0);
            at = read_number(format, at + 1, &mut spec.precision);
        }
        let verb =
            String::from_utf8_lossy(&format[at.min(format.len())..(at + 4).min(format.len())]).chars().next();
        at += verb.map_or(0, char::len_utf8);
        match verb {
            None => written.extend_from_slice(b"%!(NOVERB)"),
            Some('%') => written.push(b'%'),
            Some(verb) => {
                match arguments.get(next) {
                    Some(value) => {
                        let room = spec.width.unwrap_or(0).max(spec.precision.unwrap_or(0));
                        let room =
                            room + if let Value::Text(text) = value { text.bytes().len() * 4 } else { 0 };
                        call.spend(room / 16)?;
                        call.machine.heap.charge(room)?;
                        charged += room;
                        written.extend(one(value, verb, &spec));
                    }
                    None => written.extend(format!("%!{verb}(MISSING)").into_bytes()),
                }
                next += 1;
            }
        }
        out.extend_from_slice(&written);
    }
    let text = call.machine.heap.text_from(out, charged)?;
    call.push(text)
}

fn count_escaped(format: &[u8]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at + 1 < format.len() {
        if format[at] == b'%' && format[at + 1] == b'%' {
            count += 1;
            at += 1;
        }
        at += 1;
    }
    count
}

fn read_flags(format: &[u8], mut at: usize, spec: &mut Spec) -> usize {
    while let Some(byte) = format.get(at) {
        match byte {
            b'+' => spec.plus = true,
            b'-' => spec.minus = true,
            b'#' => spec.sharp = true,
            b' ' => spec.space = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        at += 1;
    }
    at
}

fn read_number(format: &[u8], mut at: usize, number: &mut Option<usize>) -> usize {
    while let Some(digit) = format.get(at).filter(|byte| byte.is_ascii_digit()) {
        let value = number.unwrap_or(0) * 10 + usize::from(digit - b'0');
        *number = Some(value.min(WIDTH_MAX));
        at += 1;
    }
    at
}

fn one(value: &Value, verb: char, spec: &Spec) -> Vec<u8> {
    match value {
        Value::Number(number) => match verb {
            'q' | 's' => text(numbers::text(*number).as_bytes(), verb, spec),
            'b' | 'c' | 'd' | 'o' | 'x' | 'X' | 'U' => integer(numbers::to_int(*number), verb, spec),
            'i' => integer(numbers::to_int(*number), 'd', spec),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => float(*number, verb, spec),
            'v' if numbers::is_integer(*number) => integer(numbers::to_int(*number), 'd', spec),
            'v' => float(*number, 'g', spec),
            other if numbers::is_integer(*number) => {
                wrong(other, "int64", &integer(numbers::to_int(*number), 'd', spec))
            }
            other => wrong(other, "float64", &float(*number, 'g', spec)),
        },
        Value::Text(bytes) => match verb {
            // Upstream has the two cases the wrong way round.
            'd' | 'i' if numbers::parse(bytes.bytes()).is_some() => text(bytes.bytes(), 's', spec),
            'd' | 'i' => integer(0, 'd', spec),
            's' | 'v' | 'q' | 'x' | 'X' => text(bytes.bytes(), verb, spec),
            other => wrong(other, "string", &text(bytes.bytes(), 's', spec)),
        },
        Value::Boolean(_) => match verb {
            't' | 'v' | 's' | 'q' => text(&display(value), if verb == 'q' { 'q' } else { 's' }, spec),
            other => wrong(other, "lua.LBool", &display(value)),
        },
        Value::Nil => match verb {
            's' | 'v' | 'q' | 'x' | 'X' => text(b"nil", verb, spec),
            _ => b"&{}".to_vec(),
        },
        other => text(&display(other), if verb == 'q' { 'q' } else { 's' }, spec),
    }
}

fn wrong(verb: char, kind: &str, value: &[u8]) -> Vec<u8> {
    let mut out = format!("%!{verb}({kind}=").into_bytes();
    out.extend_from_slice(value);
    out.push(b')');
    out
}

fn text(bytes: &[u8], verb: char, spec: &Spec) -> Vec<u8> {
    let cut = match spec.precision {
        Some(precision) if !matches!(verb, 'x' | 'X') => {
            let string = String::from_utf8_lossy(bytes);
            let end = string.char_indices().nth(precision).map_or(bytes.len(), |(end, _)| end);
            &bytes[..end.min(bytes.len())]
        }
        Some(precision) => &bytes[..precision.min(bytes.len())],
        None => bytes,
    };
    let body = match verb {
        'q' => quoted(cut),
        'x' => cut.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect(),
        'X' => cut.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect(),
        _ => cut.to_vec(),
    };
    padded(body, spec, false)
}

/// Go's quoted string.
fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![b'"'];
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            let escape = match char {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\u{7}' => "\\a".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\n' => "\\n".to_owned(),
                '\r' => "\\r".to_owned(),
                '\t' => "\\t".to_owned(),
                '\u{b}' => "\\v".to_owned(),
                control if control.is_ascii_control() => format!("\\x{:02x}", u32::from(control)),
                control if control.is_control() => format!("\\u{:04x}", u32::from(control)),
                other => other.to_string(),
            };
            out.extend_from_slice(escape.as_bytes());
        }
        for byte in chunk.invalid() {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
    out.push(b'"');
    out
}

fn integer(number: i64, verb: char, spec: &Spec) -> Vec<u8> {
    let magnitude = number.unsigned_abs();
    let digits = match verb {
        'b' => format!("{magnitude:b}"),
        'o' => format!("{magnitude:o}"),
        'x' => format!("{magnitude:x}"),
        'X' => format!("{magnitude:X}"),
        'c' => {
            let char =
                u32::try_from(number).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            return padded(char.to_string().into_bytes(), spec, false);
        }
        'U' => return padded(format!("U+{magnitude:04X}").into_bytes(), spec, false),
        _ => magnitude.to_string(),
    };
    let digits = match spec.precision {
        Some(precision) => format!("{digits:0>precision$}"),
        None => digits,
    };
    let prefix = match verb {
        'x' if spec.sharp => "0x",
        'X' if spec.sharp => "0X",
        'o' if spec.sharp => "0",
        'b' if spec.sharp => "0b",
        _ => "",
    };
    let body = format!("{}{prefix}{digits}", sign(number < 0, spec));
    let mut spec = *spec;
    // A precision says how many zeros there are.
    spec.zero &= spec.precision.is_none();
    padded(body.into_bytes(), &spec, true)
}

fn float(number: f64, verb: char, spec: &Spec) -> Vec<u8> {
    let text = numbers::formatted(number, verb, spec.precision);
    let body = match text.strip_prefix(['-', '+']) {
        Some(_) => text,
        None => format!("{}{text}", sign(false, spec)),
    };
    let mut spec = *spec;
    spec.zero &= number.is_finite();
    padded(body.into_bytes(), &spec, true)
}

fn sign(negative: bool, spec: &Spec) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

fn padded(body: Vec<u8>, spec: &Spec, numeric: bool) -> Vec<u8> {
    let length = String::from_utf8_lossy(&body).chars().count();
    let missing = spec.width.unwrap_or(0).saturating_sub(length);
    if missing == 0 {
        return body;
    }
    if spec.minus {
        return [body, vec![b' '; missing]].concat();
    }
    if !spec.zero {
        return [vec![b' '; missing], body].concat();
    }
    let signs = usize::from(numeric && matches!(body.first(), Some(b'-' | b'+' | b' ')));
    [&body[..signs], &vec![b'0'; missing], &body[signs..]].concat()
}
