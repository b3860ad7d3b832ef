//! Durations as Go reads and prints them: `300ms`, `1h15m`, `-2.5s`.
//!
//! Everybody who takes a duration from a user or an object reads it here, so that all accept the same texts. What Go
//! refuses is refused in Go's words.

use std::time::Duration;

use crate::go::quote;

/// Reads a duration that cannot be negative, such as a time limit.
///
/// # Errors
/// Go's sentence, or that the duration is negative.
pub fn parse(text: &str) -> Result<Duration, String> {
    let nanos = u64::try_from(nanos(text)?).map_err(|_| format!("{} must not be negative", quote(text)))?;
    Ok(Duration::from_nanos(nanos))
}

/// Reads a duration into nanoseconds, as `time.ParseDuration` does.
///
/// # Errors
/// Go's sentence.
pub fn nanos(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    // The lower end is one further away than the upper one.
    let most = i128::from(i64::MAX).saturating_add(i128::from(negative));
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(number);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale: i128 = match unit {
            "" => return Err(format!("time: missing unit in duration {}", quote(text))),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            unit => {
                return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text)));
            }
        };
        // What does not fit into 64 bits is too long in any unit.
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total = total.saturating_add(i128::from(whole).saturating_mul(scale));
        // Eighteen digits are more than nanoseconds can show.
        let fraction = &fraction[..fraction.len().min(18)];
        if !fraction.is_empty() {
            let parts: i128 = fraction.parse().map_err(|_| invalid())?;
            let whole = 10_i128.pow(u32::try_from(fraction.len()).unwrap_or(18));
            total = total.saturating_add(parts.saturating_mul(scale).checked_div(whole).unwrap_or(0));
        }
        if total > most {
            return Err(invalid());
        }
        rest = tail;
    }
    i64::try_from(if negative { total.saturating_neg() } else { total }).map_err(|_| invalid())
}

/// Prints nanoseconds as Go prints a duration: `1m0s`, `1.5s`, `20ms`, `0s`.
pub fn text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let total = nanos.unsigned_abs();
    let fraction = |value: u64, scale: u64| {
        let digits = scale.ilog10() as usize;
        let (whole, rest) =
            (value.checked_div(scale).unwrap_or(value), value.checked_rem(scale).unwrap_or(0));
        let text = format!("{rest:0digits$}");
        let text = text.trim_end_matches('0');
        if text.is_empty() { whole.to_string() } else { format!("{whole}.{text}") }
    };
    match total {
        0 => "0s".into(),
        1..1_000 => format!("{sign}{total}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", fraction(total, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", fraction(total, 1_000_000)),
        _ => {
            let minutes = total / 60_000_000_000;
            let seconds = fraction(total % 60_000_000_000, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_as_in_go() {
        let cases = [
            ("1h15m30.918s", "1h15m30.918s"),
            ("90m", "1h30m0s"),
            ("0", "0s"),
            ("-1.5s", "-1.5s"),
            ("1500ms", "1.5s"),
            ("20us", "20µs"),
            ("7ns", "7ns"),
            (".5h", "30m0s"),
            ("100ms", "100ms"),
        ];
        for (given, printed) in cases {
            assert_eq!(nanos(given).map(text), Ok(printed.to_owned()), "{given}");
        }
        assert_eq!(nanos(""), Err("time: invalid duration \"\"".into()));
        assert_eq!(nanos("3"), Err("time: missing unit in duration \"3\"".into()));
        assert_eq!(nanos("3d"), Err("time: unknown unit \"d\" in duration \"3d\"".into()));
        assert_eq!(nanos("x"), Err("time: invalid duration \"x\"".into()));
    }

    #[test]
    fn a_time_limit_is_not_negative() {
        assert_eq!(parse("1h15m"), Ok(Duration::from_secs(4500)));
        assert_eq!(parse("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(parse("2.5s"), Ok(Duration::from_millis(2500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(parse("-1s"), Err("\"-1s\" must not be negative".to_owned()));
        for bad in ["", "x", "5", "1x", "s", "1.5.1s", ".s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_number_is_too_long_to_be_refused() {
        let long = "9".repeat(38);
        for bad in [
            format!("{long}h"),
            format!("-{long}h"),
            "9223372036854775808ns".to_owned(),
            "2562048h".to_owned(),
        ] {
            assert_eq!(nanos(&bad), Err(format!("time: invalid duration \"{bad}\"")));
        }
        assert_eq!(nanos("-9223372036854775808ns"), Ok(i64::MIN));
        assert_eq!(nanos(&format!("0.{long}s")), Ok(999_999_999), "digits beyond nanoseconds are cut off");
    }
}
