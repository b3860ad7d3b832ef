//! From what metrics ask for to what is done: within the limits, not faster than allowed, and not back and forth.

use jiff::{SignedDuration, Timestamp};

/// What was asked for and done lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    pub(crate) recommendations: Vec<Change>,
    pub(crate) ups: Vec<Change>,
    pub(crate) downs: Vec<Change>,
}

/// A number of replicas, or by how many it changed, at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub replicas: i32,
    pub time: Timestamp,
}

/// How fast to scale in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behavior {
    pub up: Rules,
    pub down: Rules,
}

/// How fast to scale in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// For how long earlier recommendations count.
    pub window: SignedDuration,
    pub select: Select,
    pub policies: Vec<Policy>,
}

/// Which of several policies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    Max,
    Min,
    Disabled,
}

/// A limit on the change within a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub amount: Amount,
    pub period: SignedDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Pods(i32),
    Percent(i32),
}

/// The limits of an autoscaler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub least: i32,
    pub most: i32,
}

/// A reason as programs read it, and as people do.
pub type Reason = (&'static str, &'static str);

/// What is done, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub replicas: i32,
    /// Whether earlier recommendations held it back.
    pub stabilized: Reason,
    /// Whether a limit held it back.
    pub limited: bool,
    pub limit: Reason,
}

const FREE: Reason = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: Reason = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: Reason = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: Reason = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Reason =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Reason =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_FAST_UP: Reason =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: Reason =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl History {
    /// Returns a history that begins with what there is.
    pub fn since(replicas: i32, time: Timestamp) -> Self {
        Self { recommendations: vec![Change { replicas, time }], ..Self::default() }
    }

    /// Returns a history of these recommendations and of these changes, up and down.
    pub fn of(recommendations: Vec<Change>, ups: Vec<Change>, downs: Vec<Change>) -> Self {
        Self { recommendations, ups, downs }
    }

    /// Notes that the number of replicas was changed.
    pub fn scaled(&mut self, behavior: Option<&Behavior>, from: i32, to: i32, now: Timestamp) {
        let Some(behavior) = behavior else { return };
        let (changes, rules) =
            if to > from { (&mut self.ups, &behavior.up) } else { (&mut self.downs, &behavior.down) };
        let longest = rules.policies.iter().map(|policy| policy.period).max().unwrap_or(SignedDuration::ZERO);
        changes.retain(|change| change.time >= before(now, longest));
        changes.push(Change { replicas: to.saturating_sub(from).saturating_abs(), time: now });
    }

    /// Dates what lies ahead of the clock to now. A clock that was set back would keep it in its window for too long.
    fn put_right(&mut self, now: Timestamp) {
        for change in self.recommendations.iter_mut().chain(&mut self.ups).chain(&mut self.downs) {
            change.time = change.time.min(now);
        }
    }

    fn recommend(&mut self, replicas: i32, longest: SignedDuration, now: Timestamp) {
        self.recommendations.retain(|change| change.time >= before(now, longest));
        self.recommendations.push(Change { replicas, time: now });
    }
}

/// Returns the next number of replicas by the rules that count where an autoscaler says nothing: what was asked for within
/// `window` holds replicas, and they at most double, but may always become four.
pub fn plain(
    history: &mut History,
    current: i32,
    wish: i32,
    bounds: Bounds,
    window: SignedDuration,
    now: Timestamp,
) -> Verdict {
    history.put_right(now);
    let cutoff = before(now, window);
    let recent = history.recommendations.iter().filter(|change| change.time >= cutoff);
    let stable = recent.map(|change| change.replicas).fold(wish, i32::max);
    history.recommend(wish, window, now);
    let fastest = current.saturating_mul(2).max(4);
    let (most, reason) = if bounds.most > fastest { (fastest, TOO_FAST_UP) } else { (bounds.most, TOO_MANY) };
    let (replicas, limit) = match stable {
        stable if stable < bounds.least => (bounds.least, TOO_FEW),
        stable if stable > most => (most, reason),
        stable => (stable, WITHIN),
    };
    let stabilized = if stable == wish { FREE } else { DOWN_STABILIZED };
    Verdict { replicas, stabilized, limited: replicas != stable, limit }
}

/// Returns the next number of replicas by the rules of an autoscaler.
pub fn behaving(
    history: &mut History,
    current: i32,
    wish: i32,
    bounds: Bounds,
    behavior: &Behavior,
    now: Timestamp,
) -> Verdict {
    history.put_right(now);
    let within = |change: &&Change, rules: &Rules| change.time > before(now, rules.window);
    let recommended = &history.recommendations;
    let up = recommended.iter().filter(|change| within(change, &behavior.up)).map(|change| change.replicas);
    let up = up.fold(wish, i32::min);
    let down =
        recommended.iter().filter(|change| within(change, &behavior.down)).map(|change| change.replicas);
    let down = down.fold(wish, i32::max);
    let stable = current.max(up).min(down);
    history.recommend(wish, behavior.up.window.max(behavior.down.window), now);
    let stabilized = match stable {
        stable if stable == wish => FREE,
        _ if wish >= current => UP_STABILIZED,
        _ => DOWN_STABILIZED,
    };
    let (replicas, limit) = if stable > current {
        let fastest = fastest_up(history, current, &behavior.up, now).max(current);
        let (most, reason) =
            if bounds.most > fastest { (fastest, TOO_FAST_UP) } else { (bounds.most, TOO_MANY) };
        if stable > most { (most, reason) } else { (stable, WITHIN) }
    } else if stable < current {
        let fastest = fastest_down(history, current, &behavior.down, now).min(current);
        let (least, reason) =
            if bounds.least < fastest { (fastest, TOO_FAST_DOWN) } else { (bounds.least, TOO_FEW) };
        if stable < least { (least, reason) } else { (stable, WITHIN) }
    } else {
        (stable, WITHIN)
    };
    Verdict { replicas, stabilized, limited: replicas != stable, limit }
}

/// Returns the largest number that the policies allow now.
fn fastest_up(history: &History, current: i32, rules: &Rules, now: Timestamp) -> i32 {
    let proposals = rules.policies.iter().map(|policy| {
        let start = at_start(history, current, policy.period, now);
        match policy.amount {
            Amount::Pods(pods) => start.saturating_add(pods),
            // Rounded up, or a small number would never grow.
            Amount::Percent(percent) => (f64::from(start) * (1.0 + f64::from(percent) / 100.0)).ceil() as i32,
        }
    });
    match rules.select {
        Select::Disabled => current,
        Select::Min => proposals.min().unwrap_or(i32::MAX),
        Select::Max => proposals.max().unwrap_or(i32::MIN),
    }
}

/// Returns the smallest number that the policies allow now.
fn fastest_down(history: &History, current: i32, rules: &Rules, now: Timestamp) -> i32 {
    let proposals = rules.policies.iter().map(|policy| {
        let start = at_start(history, current, policy.period, now);
        match policy.amount {
            Amount::Pods(pods) => start.saturating_sub(pods),
            Amount::Percent(percent) => (f64::from(start) * (1.0 - f64::from(percent) / 100.0)) as i32,
        }
    });
    match rules.select {
        Select::Disabled => current,
        Select::Min => proposals.max().unwrap_or(i32::MIN),
        Select::Max => proposals.min().unwrap_or(i32::MAX),
    }
}

/// Returns the replicas at the start of a period that ends now.
fn at_start(history: &History, current: i32, period: SignedDuration, now: Timestamp) -> i32 {
    let cutoff = before(now, period);
    let sum = |changes: &[Change]| {
        let recent = changes.iter().filter(|change| change.time > cutoff);
        recent.fold(0_i32, |sum, change| sum.saturating_add(change.replicas))
    };
    current.saturating_sub(sum(&history.ups)).saturating_add(sum(&history.downs))
}

fn before(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.saturating_sub(by).unwrap_or(Timestamp::MIN)
}
