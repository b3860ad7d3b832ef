//! Times in Kubernetes' two layouts, read as Go's `time.Parse` reads them and with its words when it does not.
//!
//! `Time` takes RFC 3339 with any fraction and prints whole seconds in UTC; `MicroTime` takes and prints exactly six
//! digits of fraction. The zero time of Go (year 1) is printed as null.

use serde_json::Value;

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Seconds since 1970 of Go's zero time, 0001-01-01T00:00:00Z.
const GO_ZERO: i64 = -62_135_596_800;

/// Returns how a `Time` is printed again.
///
/// # Errors
/// Go's sentence.
pub fn canonical_seconds(text: &str) -> Result<Value, String> {
    let (seconds, nanos) = parse(text, SECONDS, false)?;
    Ok(print_seconds(seconds, nanos))
}

/// Returns how a `MicroTime` is printed again.
///
/// # Errors
/// Go's sentence.
pub fn canonical_micros(text: &str) -> Result<Value, String> {
    let (seconds, nanos) = parse(text, MICROS, true)?;
    Ok(print_micros(seconds, nanos))
}

/// Returns seconds since 1970 of a printed `Time`; `None` if it is not one.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    parse(text, SECONDS, false).ok().map(|(seconds, _)| seconds)
}

/// Returns seconds since 1970 and nanoseconds of a printed `MicroTime`; `None` if it is not one.
pub(crate) fn micros(text: &str) -> Option<(i64, i64)> {
    parse(text, MICROS, true).ok()
}

pub(crate) fn print_seconds(seconds: i64, nanos: i64) -> Value {
    if seconds == GO_ZERO && nanos == 0 {
        return Value::Null;
    }
    let (year, month, day, hour, minute, second) = civil(seconds);
    Value::String(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

pub(crate) fn print_micros(seconds: i64, nanos: i64) -> Value {
    if seconds == GO_ZERO && nanos == 0 {
        return Value::Null;
    }
    let (year, month, day, hour, minute, second) = civil(seconds);
    let micros = nanos / 1_000;
    Value::String(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"))
}

/// Reads a time; `micros` asks for exactly six digits of fraction.
fn parse(text: &str, layout: &str, micros: bool) -> Result<(i64, i64), String> {
    use apimachinery::go::quote;
    let cannot = |rest: &str, element: &str| {
        format!(
            "parsing time {} as {}: cannot parse {} as {}",
            quote(text),
            quote(layout),
            quote(rest),
            quote(element)
        )
    };
    let out_of_range = |what: &str| format!("parsing time {}: {what} out of range", quote(text));
    let mut rest = text;
    let number = |rest: &mut &str, digits: usize, element: &str| -> Result<i64, String> {
        let Some(head) = rest.get(..digits).filter(|head| head.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            return Err(cannot(rest, element));
        };
        *rest = &rest[digits..];
        Ok(head.parse().expect("a few digits are a number"))
    };
    let literal = |rest: &mut &str, expected: &str| -> Result<(), String> {
        *rest = rest.strip_prefix(expected).ok_or_else(|| cannot(rest, expected))?;
        Ok(())
    };

    let year = number(&mut rest, 4, "2006")?;
    literal(&mut rest, "-")?;
    let month = number(&mut rest, 2, "01")?;
    if !(1..=12).contains(&month) {
        return Err(out_of_range("month"));
    }
    literal(&mut rest, "-")?;
    let day = number(&mut rest, 2, "02")?;
    literal(&mut rest, "T")?;
    let hour = number(&mut rest, 2, "15")?;
    if hour >= 24 {
        return Err(out_of_range("hour"));
    }
    literal(&mut rest, ":")?;
    let minute = number(&mut rest, 2, "04")?;
    if minute >= 60 {
        return Err(out_of_range("minute"));
    }
    literal(&mut rest, ":")?;
    let second = number(&mut rest, 2, "05")?;
    if second >= 60 {
        return Err(out_of_range("second"));
    }
    let mut nanos = 0;
    if micros {
        let digits = rest.strip_prefix(['.', ',']).and_then(|tail| tail.get(..6));
        match digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
            Some(digits) => {
                nanos = digits.parse::<i64>().expect("six digits are a number") * 1_000;
                rest = &rest[7..];
            }
            None => return Err(cannot(rest, ".000000")),
        }
    } else if let Some(tail) = rest.strip_prefix(['.', ',']) {
        // The layout has no fraction, but Go takes one after the seconds.
        let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 {
            let shown = &tail[..digits.min(9)];
            nanos = shown.parse::<i64>().expect("nine digits are a number")
                * 10_i64.pow(9 - u32::try_from(shown.len()).expect("at most nine"));
            rest = &tail[digits..];
        }
    }
    let offset = if let Some(tail) = rest.strip_prefix('Z') {
        rest = tail;
        0
    } else {
        let zone = rest;
        let sign = match zone.as_bytes().first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(cannot(zone, "Z07:00")),
        };
        let part = |from: usize| -> Option<i64> {
            let digits = zone.get(from..from + 2)?;
            digits
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| digits.parse().expect("two digits are a number"))
        };
        let (Some(hours), Some(b':'), Some(minutes)) = (part(1), zone.as_bytes().get(3), part(4)) else {
            return Err(cannot(zone, "Z07:00"));
        };
        if hours > 24 {
            return Err(out_of_range("time zone offset hour"));
        }
        if minutes >= 60 {
            return Err(out_of_range("time zone offset minute"));
        }
        rest = &zone[6..];
        sign * (hours * 3_600 + minutes * 60)
    };
    if !rest.is_empty() {
        return Err(format!("parsing time {}: extra text: {}", quote(text), quote(rest)));
    }
    if day < 1 || day > days_in(year, month) {
        return Err(out_of_range("day"));
    }
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Ok((seconds, nanos))
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar, counting years from March so that leap days come last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`], with the time of day.
fn civil(seconds: i64) -> (i64, i64, i64, i64, i64, i64) {
    let days = seconds.div_euclid(86_400) + 719_468;
    let time = seconds.rem_euclid(86_400);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day, time / 3_600, time / 60 % 60, time % 60)
}
