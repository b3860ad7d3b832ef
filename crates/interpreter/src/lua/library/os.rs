//! `os`: only the time. There is no local time here; everything is UTC.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::Call;
use crate::lua::machine::Ran;
use crate::lua::numbers;
use crate::lua::value::{TableId, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lua) enum Function {
    Date,
    Time,
}

pub(super) const MEMBERS: &[(&str, Function)] = &[("date", Function::Date), ("time", Function::Time)];

/// Formats beyond this length are refused: one letter becomes at most nine.
const FORMAT_MAX: usize = 10_000;

pub(super) fn call(call: &mut Call<'_, '_>, function: Function) -> Ran {
    match function {
        Function::Time => time(call),
        Function::Date => date(call),
    }
}

fn time(call: &mut Call<'_, '_>) -> Ran {
    let seconds = match *call.get(1) {
        Value::Nil => call.machine.now().as_second(),
        Value::Table(table) => {
            let field =
                |call: &Call<'_, '_>, key: &str, default: i64| integer_field(call, table, key, default);
            let (year, month, day) =
                (field(call, "year", -1), field(call, "month", -1), field(call, "day", -1));
            let (hour, min, sec) = (field(call, "hour", 12), field(call, "min", 0), field(call, "sec", 0));
            // Months, days and the like beyond their range carry over, as in Go.
            let months = year.saturating_mul(12).saturating_add(month).saturating_sub(1);
            let first = i16::try_from(months.div_euclid(12))
                .ok()
                .zip(i8::try_from(months.rem_euclid(12) + 1).ok())
                .and_then(|(year, month)| DateTime::new(year, month, 1, 0, 0, 0, 0).ok())
                .and_then(|first| first.to_zoned(TimeZone::UTC).ok());
            let Some(first) = first else { return Err(call.raise("time out of range")) };
            let days = day.saturating_sub(1).saturating_mul(86_400);
            let within = hour.saturating_mul(3600).saturating_add(min.saturating_mul(60)).saturating_add(sec);
            first.timestamp().as_second().saturating_add(days).saturating_add(within)
        }
        _ => return Err(call.wrong(1, "table")),
    };
    call.push_number(seconds as f64)
}

fn integer_field(call: &Call<'_, '_>, table: TableId, key: &str, default: i64) -> i64 {
    match call.machine.heap.at(table).get_text(key.as_bytes()) {
        Value::Number(number) => numbers::to_int(number),
        Value::Text(text) => {
            let text = text.lossy();
            let digits = text.trim_start_matches(' ').trim_start_matches('0');
            match numbers::parse(digits.as_bytes()) {
                Some(number) => numbers::to_int(number),
                None if digits.is_empty() && !text.trim().is_empty() => 0,
                None => default,
            }
        }
        _ => default,
    }
}

fn date(call: &mut Call<'_, '_>) -> Ran {
    let mut format = b"%c".to_vec();
    if call.count >= 1 {
        format = call.text(1)?.bytes().to_vec();
    }
    if format.len() > FORMAT_MAX {
        return Err(call.raise("the format of os.date is too long"));
    }
    let format: Vec<u8> = format.iter().copied().skip_while(|byte| *byte == b'!').collect();
    let time = match call.count {
        0 | 1 => call.machine.now(),
        _ => {
            let seconds = call.integer(2)?;
            let Ok(time) = Timestamp::from_second(seconds) else {
                return Err(call.raise("time out of range"));
            };
            time
        }
    };
    let time = time.to_zoned(TimeZone::UTC);
    if format.starts_with(b"*t") {
        let table = call.machine.heap.table()?;
        let parts = [
            ("year", f64::from(time.year())),
            ("month", f64::from(time.month())),
            ("day", f64::from(time.day())),
            ("hour", f64::from(time.hour())),
            ("min", f64::from(time.minute())),
            ("sec", f64::from(time.second())),
            ("wday", f64::from(time.weekday().to_sunday_one_offset())),
            ("yday", 0.0),
        ];
        for (name, number) in parts {
            let name = call.machine.heap.text(name.as_bytes())?;
            call.machine.heap.set(table, name, Value::Number(number))?;
        }
        let name = call.machine.heap.text(b"isdst")?;
        call.machine.heap.set(table, name, Value::Boolean(false))?;
        return call.push(Value::Table(table));
    }
    let text = formatted(&time, &format);
    call.push_text(&text)
}

/// Replaces the flags of a format; unknown ones stay as they are.
fn formatted(time: &Zoned, format: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(format.len() * 2);
    let mut bytes = format.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let Some(flag) = bytes.next() else {
            out.push(b'%');
            break;
        };
        match flag {
            b'%' => out.push(b'%'),
            // Upstream hands Go the word `mon`, which means nothing to it.
            b'a' => out.extend_from_slice(b"mon"),
            b'w' => out.extend_from_slice(time.weekday().to_sunday_zero_offset().to_string().as_bytes()),
            other => {
                let pattern = match other {
                    b'A' => "%A",
                    b'b' => "%b",
                    b'B' => "%B",
                    b'c' => "%d %b %y %H:%M UTC",
                    b'd' => "%d",
                    b'F' => "%Y-%m-%d",
                    b'H' => "%H",
                    b'I' => "%I",
                    b'm' => "%m",
                    b'M' => "%M",
                    b'p' => "%p",
                    b'P' => "%P",
                    b'S' => "%S",
                    // Upstream's layout has hours where it means months.
                    b'x' => "%H/%M/%S",
                    b'X' => "%H:%M:%S",
                    b'y' => "%y",
                    b'Y' => "%Y",
                    b'z' => "+0000",
                    b'Z' => "UTC",
                    unknown => {
                        out.extend_from_slice(&[b'%', unknown]);
                        continue;
                    }
                };
                out.extend_from_slice(time.strftime(pattern).to_string().as_bytes());
            }
        }
    }
    out
}
