//! Time arithmetic with numbers from outside: sums stay within the range of a timestamp.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Returns the moment this many seconds after (or, if negative, before) another one, or the last (first) possible one.
pub(crate) fn after(moment: Timestamp, seconds: i64) -> Timestamp {
    let limit = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    moment.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(limit)
}

/// Returns the instant after a wait of this length; the given instant if the clock does not reach that far.
pub(crate) fn in_future(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_5_no_number_of_seconds_is_too_large() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(after(now, 30).to_string(), "2026-01-01T00:00:30Z");
        assert_eq!(after(now, i64::MAX), Timestamp::MAX);
        assert_eq!(after(now, i64::MIN), Timestamp::MIN);
    }
}
