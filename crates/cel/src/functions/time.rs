//! Moments and lengths of time.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Outcome, bad, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "timestamp", [Value::Timestamp(_)]) | (None, "duration", [Value::Duration(_)]) => {
            ok(args[0].clone())
        }
        (None, "timestamp", [Value::Int(seconds)]) => match Timestamp::from_second(*seconds) {
            Ok(when) => ok(Value::Timestamp(when)),
            Err(_) => bad("timestamp overflow"),
        },
        (None, "timestamp", [Value::String(text)]) => match timestamp(text) {
            Some(value) => ok(value),
            None => bad(format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse")),
        },
        (None, "duration", [Value::String(text)]) => match duration(text) {
            Some(value) => ok(value),
            None => bad(format!("time: invalid duration {text:?}")),
        },
        (Some(Value::Timestamp(when)), _, []) => field(*when, name, &TimeZone::UTC),
        (Some(Value::Timestamp(when)), _, [Value::String(zone)]) => match self::zone(zone) {
            Some(zone) => field(*when, name, &zone),
            None => bad(format!("unknown time zone {zone}")),
        },
        (Some(Value::Duration(length)), _, []) => {
            let seconds = length.as_secs();
            ok(Value::Int(match name {
                "getHours" => seconds / 3600,
                "getMinutes" => seconds / 60,
                "getSeconds" => seconds,
                "getMilliseconds" => i64::try_from(length.as_millis()).unwrap_or(i64::MAX),
                _ => return None,
            }))
        }
        _ => None,
    }
}

fn zone(name: &str) -> Option<TimeZone> {
    if let Some((hours, minutes)) = name.split_once(':') {
        let negative = hours.starts_with('-');
        let hours: i32 = hours.trim_start_matches(['-', '+']).parse().ok()?;
        let seconds = (hours * 60 + minutes.parse::<i32>().ok()?) * 60;
        return jiff::tz::Offset::from_seconds(if negative { -seconds } else { seconds })
            .ok()
            .map(TimeZone::fixed);
    }
    if name == "UTC" { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() }
}

fn field(when: Timestamp, name: &str, zone: &TimeZone) -> Outcome {
    let time = when.to_zoned(zone.clone());
    ok(Value::Int(i64::from(match name {
        "getFullYear" => i32::from(time.year()),
        "getMonth" => i32::from(time.month()) - 1,
        "getDayOfYear" => i32::from(time.day_of_year()) - 1,
        "getDayOfMonth" => i32::from(time.day()) - 1,
        "getDate" => i32::from(time.day()),
        "getDayOfWeek" => i32::from(time.weekday().to_sunday_zero_offset()),
        "getHours" => i32::from(time.hour()),
        "getMinutes" => i32::from(time.minute()),
        "getSeconds" => i32::from(time.second()),
        "getMilliseconds" => i32::from(time.millisecond()),
        _ => return None,
    })))
}

/// Reads an RFC 3339 time.
pub(crate) fn timestamp(text: &str) -> Option<Value> {
    text.parse().ok().map(Value::Timestamp)
}

/// Reads a duration as Go writes it: `1h2m3.5s`, `-10ms`.
pub(crate) fn duration(text: &str) -> Option<Value> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(Value::Duration(SignedDuration::ZERO));
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number = &rest[..end];
        let unit_end =
            rest[end..].find(|c: char| c.is_ascii_digit() || c == '.').map_or(rest.len(), |at| end + at);
        let unit: i128 = match &rest[end..unit_end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        if !whole.is_empty() {
            total += whole.parse::<i128>().ok()?.checked_mul(unit)?;
        }
        if !fraction.is_empty() {
            let scale = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            total += fraction.parse::<i128>().ok()? * unit / scale;
        }
        rest = &rest[unit_end..];
    }
    let total = i64::try_from(if negative { -total } else { total }).ok()?;
    Some(Value::Duration(SignedDuration::from_nanos(total)))
}

/// Prints a duration in seconds, as `string()` does.
pub(super) fn show(length: SignedDuration) -> String {
    let nanos = length.as_nanos();
    let (sign, nanos) = if nanos < 0 { ("-", -nanos) } else { ("", nanos) };
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let fraction = format!("{rest:09}");
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { format!("{sign}{seconds}s") } else { format!("{sign}{seconds}.{fraction}s") }
}
