//! Durations as `kubectl` users know them: two units where the second still matters, one beyond.

use jiff::{SignedDuration, Timestamp};

/// Returns how long before `now` an RFC 3339 time was: `95s`, `5m3s`, `3h25m`, `2d4h`, `2y10d`.
/// An absent or unreadable time is `<unknown>`.
pub fn age(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => duration(now.duration_since(then)),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Prints a duration. Clocks of two machines may differ by a second; more than that is `<invalid>`.
pub fn duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..-1 => return "<invalid>".to_owned(),
        -1 => return "0s".to_owned(),
        0..120 => return format!("{seconds}s"),
        _ => {}
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |first: i64, unit: char, second: i64, smaller: char| {
        if second == 0 { format!("{first}{unit}") } else { format!("{first}{unit}{second}{smaller}") }
    };
    match (minutes, hours, days) {
        (..10, _, _) => two(minutes, 'm', seconds % 60, 's'),
        (..180, _, _) => format!("{minutes}m"),
        (_, ..8, _) => two(hours, 'h', minutes % 60, 'm'),
        (_, ..48, _) => format!("{hours}h"),
        (_, ..192, _) => two(days, 'd', hours % 24, 'h'),
        (_, _, ..730) => format!("{days}d"),
        (_, _, ..2920) => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_two_units_as_long_as_the_second_matters() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (95, "95s"),
            (119, "119s"),
            (120, "2m"),
            (303, "5m3s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60 + 59, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 25 * 60, "3h25m"),
            (8 * 3600 + 25 * 60, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (52 * 3600, "2d4h"),
            (8 * 86_400 + 3600, "8d"),
            (729 * 86_400, "729d"),
            (730 * 86_400, "2y"),
            (740 * 86_400, "2y10d"),
            (8 * 365 * 86_400 + 86_400, "8y"),
        ] {
            assert_eq!(duration(SignedDuration::from_secs(seconds)), text, "{seconds}");
        }
    }

    #[test]
    fn a_missing_time_is_unknown() {
        assert_eq!(age("", Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(age("1969-12-31T23:58:00Z", Timestamp::UNIX_EPOCH), "2m");
    }
}
