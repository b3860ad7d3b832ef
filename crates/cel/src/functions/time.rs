//! Moments and lengths of time.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Outcome, bad, ok};
use crate::value::Value;

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (Some(Value::Timestamp(when)), _, []) => field(*when, name, &TimeZone::UTC),
        (Some(Value::Timestamp(when)), _, [Value::String(zone)]) => match self::zone(zone) {
            Some(zone) => field(*when, name, &zone),
            None => bad(match zone.split_once(':') {
                Some((hours, _)) if hours.parse::<i32>().is_err() => {
                    format!("strconv.Atoi: parsing {hours:?}: invalid syntax")
                }
                Some((_, minutes)) => format!("strconv.Atoi: parsing {minutes:?}: invalid syntax"),
                None => format!("unknown time zone {zone}"),
            }),
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
    if matches!(name, "UTC" | "") { Some(TimeZone::UTC) } else { TimeZone::get(name).ok() }
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

/// The moments that there are: the years 1 to 9999.
fn is_within(when: Timestamp) -> bool {
    (-62_135_596_800..=253_402_300_799).contains(&when.as_second())
}

/// Returns a moment, unless it is beyond those that there are.
pub(super) fn within(when: Result<Timestamp, jiff::Error>) -> Outcome {
    match when {
        Ok(when) if is_within(when) => ok(Value::Timestamp(when)),
        _ => bad("timestamp overflow"),
    }
}

/// Returns a length of time, unless it is longer than any that there is.
pub(super) fn length(length: Option<SignedDuration>) -> Outcome {
    match length {
        Some(length) if i64::try_from(length.as_nanos()).is_ok() => ok(Value::Duration(length)),
        _ => bad("integer overflow"),
    }
}

pub(super) fn of_seconds(seconds: i64) -> Option<Value> {
    Timestamp::from_second(seconds).ok().filter(|when| is_within(*when)).map(Value::Timestamp)
}

/// Reads an RFC 3339 time, as strictly as Go.
pub(crate) fn timestamp(text: &str) -> Option<Value> {
    let form = b"0000-00-00T00:00:00";
    let bytes = text.as_bytes();
    let fits = |(byte, form): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if bytes.len() <= form.len() || !bytes.iter().zip(form).all(fits) || &bytes[17..19] == b"60" {
        return None;
    }
    let zone = text[form.len()..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    let offset = zone.as_bytes();
    let numeric = offset.len() == 6 && matches!(offset[0], b'+' | b'-') && offset[3] == b':';
    if zone != "Z" && !(numeric && offset[1..3] <= b"24"[..] && offset[4..] < b"60"[..]) {
        return None;
    }
    // What is shorter than a billionth of a second is cut off.
    let whole = &text[..text.len() - zone.len()];
    let whole = whole.get(..form.len() + 10).unwrap_or(whole);
    format!("{whole}{zone}").parse().ok().filter(|when| is_within(*when)).map(Value::Timestamp)
}

/// Reads a duration as Go writes it: `1h2m3.5s`, `-10ms`.
pub(crate) fn duration(text: &str) -> Option<Value> {
    apimachinery::duration::nanos(text).ok().map(|nanos| Value::Duration(SignedDuration::from_nanos(nanos)))
}

/// Prints a duration in seconds, as `string()` does.
pub(super) fn show(length: SignedDuration) -> String {
    let seconds = length.as_secs() as f64 + f64::from(length.subsec_nanos()) / 1e9;
    format!("{seconds}s")
}
