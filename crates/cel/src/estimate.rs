//! Arithmetic of estimates: at least this, at most that, and never more than a number can hold.

/// A range of costs or sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Range {
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    pub(crate) const ZERO: Self = Self::exactly(0);

    pub(crate) const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    pub(crate) const fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplies by a factor and rounds up.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        // Conversion of a float that is too large ends at the largest number.
        let scale = |value: u64| (value as f64 * factor).ceil() as u64;
        Self { min: scale(self.min), max: scale(self.max) }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

#[test]
fn estimates_do_not_overflow() {
    let much = Range::UNKNOWN;
    assert_eq!(much.plus(Range::exactly(1)).max, u64::MAX);
    assert_eq!(much.times(Range::exactly(2)).max, u64::MAX);
    assert_eq!(Range::exactly(11).scaled(0.1), Range::exactly(2));
    assert_eq!(much.scaled(2.0).max, u64::MAX);
}
