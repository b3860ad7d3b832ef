//! The arithmetic of a HorizontalPodAutoscaler: from metrics to replicas.
//!
//! In: how a metric stands to its target, the limits, when the number changed last. Out: the next number of replicas. Does not
//! know where metrics come from.

use jiff::{SignedDuration, Timestamp};

/// Nothing happens within a tenth of the target.
pub const TOLERANCE: f64 = 0.1;

/// How long the number must not have changed before it may go down, in seconds, unless the autoscaler says otherwise.
pub const SCALE_DOWN_WINDOW: i64 = 300;

/// Returns the replicas that a metric asks for. `ratio` is its value to its target, measured on `pods` pods.
pub fn wanted(ratio: f64, pods: usize, current: i64) -> i64 {
    if (ratio - 1.0).abs() <= TOLERANCE { current } else { (ratio * pods as f64).ceil() as i64 }
}

/// What the limits of an autoscaler do to a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Within,
    TooMany,
    TooFew,
}

/// Returns a wish within its limits. Where the limits contradict each other, the lower one counts.
pub fn limited(wish: i64, least: i64, most: i64) -> (i64, Limit) {
    let limit = match wish {
        wish if wish > most => Limit::TooMany,
        wish if wish < least => Limit::TooFew,
        _ => Limit::Within,
    };
    (wish.clamp(least, most.max(least)), limit)
}

/// Returns the next number of replicas: going up is free, going down waits until the number has not changed for `window`
/// seconds.
pub fn next(current: i64, wish: i64, last_change: Option<Timestamp>, window: i64, now: Timestamp) -> i64 {
    let window = SignedDuration::from_secs(window);
    let may_shrink = last_change.is_none_or(|last| now.duration_since(last) >= window);
    if wish < current && !may_shrink { current } else { wish }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_follow_the_load_beyond_a_tenth() {
        assert_eq!(wanted(2.0, 2, 2), 4);
        assert_eq!(wanted(1.09, 20, 20), 20);
        assert_eq!(wanted(1.11, 10, 10), 12);
        assert_eq!(wanted(0.9, 10, 10), 10);
        assert_eq!(wanted(0.5, 10, 10), 5);
        assert_eq!(wanted(0.0, 3, 3), 0);
    }

    #[test]
    fn limits_hold_and_are_told() {
        assert_eq!(limited(3, 1, 5), (3, Limit::Within));
        assert_eq!(limited(9, 1, 5), (5, Limit::TooMany));
        assert_eq!(limited(0, 1, 5), (1, Limit::TooFew));
        assert_eq!(limited(4, 6, 5), (6, Limit::TooFew), "the limits contradict each other");
    }

    #[test]
    fn only_going_down_waits() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().expect("a time");
        let at = |text: &str| Some(text.parse().expect("a time"));
        assert_eq!(next(5, 7, at("2026-01-01T00:04:59Z"), 300, now), 7);
        assert_eq!(next(5, 3, at("2026-01-01T00:00:01Z"), 300, now), 5);
        assert_eq!(next(5, 3, at("2026-01-01T00:00:00Z"), 300, now), 3);
        assert_eq!(next(5, 3, None, 300, now), 3);
        assert_eq!(next(5, 3, at("2026-01-01T00:00:00Z"), i64::MAX, now), 5, "a window that never ends");
    }
}
