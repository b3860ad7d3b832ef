//! Numbers and their texts, as Go reads and prints them: what scripts compare and what ends up in statuses.

/// Returns whether Go would see an integer: 64 bits, without a fraction.
pub(super) fn is_integer(number: f64) -> bool {
    truncated(number).is_some_and(|integer| integer as f64 == number)
}

/// Returns the integer part, if it fits.
pub(super) fn truncated(number: f64) -> Option<i64> {
    // 2^63 itself does not fit.
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number);
    #[expect(clippy::cast_possible_truncation, reason = "that is what it is for; the range was checked")]
    fits.then_some(number as i64)
}

/// Returns the integer part as Go converts it on the usual machines: what does not fit becomes the least integer.
pub(super) fn to_int(number: f64) -> i64 {
    truncated(number).unwrap_or(i64::MIN)
}

/// Returns the text of a number: integers without a fraction, others in the shortest form that reads back the same.
pub(super) fn text(number: f64) -> String {
    match truncated(number) {
        Some(integer) if integer as f64 == number => integer.to_string(),
        _ => shortest(number),
    }
}

/// Go's `%v` of a float64.
fn shortest(number: f64) -> String {
    formatted(number, 'g', None)
}

/// Splits a finite number into sign, its shortest digits, and the exponent of the first of them.
fn digits(number: f64) -> (&'static str, String, i32) {
    let text = format!("{:e}", number.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let sign = if number.is_sign_negative() { "-" } else { "" };
    (sign, mantissa.replace('.', ""), exponent.parse().unwrap_or(0))
}

fn scientific(digits: &str, exponent: i32, letter: char) -> String {
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{first}{point}{rest}{letter}{sign}{:02}", exponent.abs())
}

fn positional(digits: &str, exponent: i32) -> String {
    let Ok(whole) = usize::try_from(exponent) else {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        return format!("0.{}{digits}", "0".repeat(zeros));
    };
    match digits.len() {
        len if len <= whole + 1 => format!("{digits}{}", "0".repeat(whole + 1 - len)),
        _ => format!("{}.{}", &digits[..=whole], &digits[whole + 1..]),
    }
}

/// Go's `%e`, `%f` and `%g` with their precisions; the sign is a plain minus.
pub(super) fn formatted(number: f64, verb: char, precision: Option<usize>) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let letter = if verb.is_ascii_uppercase() { 'E' } else { 'e' };
    match verb.to_ascii_lowercase() {
        'f' => format!("{number:.*}", precision.unwrap_or(6)),
        'e' => {
            let text = format!("{:.*e}", precision.unwrap_or(6), number);
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}{letter}{sign}{:02}", exponent.abs())
        }
        _ => {
            let (sign, digits, exponent) = match precision {
                None => digits(number),
                Some(precision) => {
                    let text = format!("{:.*e}", precision.max(1) - 1, number.abs());
                    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                    let digits = mantissa.replace('.', "");
                    let digits = digits.trim_end_matches('0');
                    let digits = if digits.is_empty() { "0" } else { digits };
                    let sign = if number.is_sign_negative() { "-" } else { "" };
                    (sign, digits.to_owned(), exponent.parse().unwrap_or(0))
                }
            };
            let known = i32::try_from(digits.len()).unwrap_or(i32::MAX);
            let limit = match precision.map(|precision| i32::try_from(precision.max(1)).unwrap_or(i32::MAX)) {
                None => 6,
                Some(limit) if limit > known && known > exponent => known,
                Some(limit) => limit,
            };
            if exponent < -4 || exponent >= limit {
                return format!("{sign}{}", scientific(&digits, exponent, letter));
            }
            format!("{sign}{}", positional(&digits, exponent))
        }
    }
}

/// Reads a number as scripts write it and as strings become numbers in arithmetic.
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t', '\n']);
    match parse_int(text, 0) {
        Some(integer) => Some(integer as f64),
        None => parse_float(text),
    }
}

/// Go's `strconv.ParseInt` with 64 bits; base 0 means that the prefix says the base and that `_` may separate digits.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = if base != 0 {
        (base, lower)
    } else {
        let (base, rest, prefixed) = match lower.as_bytes() {
            [b'0', b'x', ..] => (16, &lower[2..], true),
            [b'0', b'b', ..] => (2, &lower[2..], true),
            [b'0', b'o', ..] => (8, &lower[2..], true),
            [b'0', _, ..] => (8, &lower[1..], true),
            _ => (10, lower.as_str(), false),
        };
        // An underscore stands between digits, or behind the prefix.
        let alone = rest.split('_').skip(usize::from(prefixed && rest.starts_with('_'))).any(str::is_empty);
        if rest.contains('_') && alone {
            return None;
        }
        (base, rest.replace('_', ""))
    };
    if digits.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(&digits, base).ok()?);
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Go's `strconv.ParseFloat`, without hexadecimal fractions.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let word = unsigned.to_ascii_lowercase();
    if matches!(word.as_str(), "inf" | "infinity" | "nan") {
        let value = if word == "nan" { f64::NAN } else { f64::INFINITY };
        return Some(if text.starts_with('-') { -value } else { value });
    }
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    // What is too large for a float is an error in Go.
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_go_prints_them() {
        for (number, expected) in [
            (0.0, "0"),
            (3.0, "3"),
            (-7.0, "-7"),
            (0.1, "0.1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000"),
            (9_007_199_254_740_993.0, "9007199254740992"),
            (1e20, "1e+20"),
            (1_234_567.5, "1.2345675e+06"),
            (1e21, "1e+21"),
            (1.5e300, "1.5e+300"),
            (0.00001, "1e-05"),
            (0.000_123, "0.000123"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(text(number), expected);
        }
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("12", Some(12.0)),
            (" 12\n", Some(12.0)),
            ("0x10", Some(16.0)),
            ("010", Some(8.0)),
            ("09", Some(9.0)),
            ("1e3", Some(1000.0)),
            (".5", Some(0.5)),
            ("1_000", Some(1000.0)),
            ("1__0", None),
            ("inf", Some(f64::INFINITY)),
            ("", None),
            ("abc", None),
            ("12abc", None),
            ("-5", Some(-5.0)),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
    }
}
