//! Schedules of CronFederatedHPAs and CronJobs: whoever may write one of these writes the input.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use workloads::cron::{self, Schedule};

/// A search goes through the days of five years at most.
const STEPS_MAX: usize = 2_500;
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Lines: the schedule, the zone, the second of the clock.
pub(super) fn run(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (text, zone, second) = (line(), line(), line());
    // What admission says about it is another grammar, as upstream's is; it only has to answer.
    let admitted = admission::schedule::is_valid(text);
    let zone = cron::zone(zone).unwrap_or(TimeZone::UTC);
    let after = second.trim().parse().ok().and_then(|second| Timestamp::from_second(second).ok());
    let after = after.unwrap_or(Timestamp::UNIX_EPOCH);
    let schedule = match Schedule::parse(text) {
        Ok(schedule) => schedule,
        Err(error) => {
            assert!(error.len() <= 16 * text.len() + 200, "{} bytes", error.len());
            return format!("{admitted} {error}");
        }
    };
    let (found, steps) = schedule.search(after, &zone);
    assert!(steps <= STEPS_MAX, "{text:?}: {steps} steps");
    let Some(found) = found else { return format!("{admitted} never") };
    assert!(found > after, "{text:?} after {after}: {found}");
    assert_eq!(found.subsec_nanosecond(), 0, "{text:?}");
    if text.contains('@') {
        return format!("{admitted} a word");
    }
    // Nothing comes between: whoever asks later, but before that moment, is told the same moment.
    let between = found.duration_since(after);
    for earlier in [between / 2, between / 7 * 6, between - SignedDuration::from_nanos(1)] {
        let asked = after.checked_add(earlier).expect("it is before a moment that exists");
        assert_eq!(schedule.next(asked, &zone), Some(found), "{text:?} after {asked}");
    }
    let (fields, zone) = match text.trim().strip_prefix("CRON_TZ=").or(text.trim().strip_prefix("TZ=")) {
        Some(rest) => match rest.split_once(' ') {
            Some((name, fields)) => (fields, cron::zone(name).expect("it was understood before")),
            None => unreachable!("something follows the zone of a schedule"),
        },
        None => (text, zone),
    };
    assert!(matches(fields, &found.to_zoned(zone)), "{text:?}: {found}");
    format!("{admitted} comes")
}

/// Reads the fields once more, in the simplest way, and says whether they mean a moment.
fn matches(text: &str, moment: &jiff::Zoned) -> bool {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minutes, hours, days, months, weekdays] = fields.as_slice() else { return false };
    let is = |field: &str, value: i8, most: i8, names: &[&str], first: i8| {
        let number = |text: &str| {
            let named = (0..).zip(names).find(|(_, name)| name.eq_ignore_ascii_case(text));
            named.map(|(at, _): (i8, _)| at + first).or_else(|| text.parse().ok())
        };
        field.split(',').filter(|part| !part.is_empty()).any(|part| {
            let (range, step) = part.split_once('/').unwrap_or((part, ""));
            let (from, to) = match range.split_once('-') {
                _ if matches!(range, "*" | "?") => (Some(first), Some(most)),
                Some((from, to)) => (number(from), number(to)),
                None if step.is_empty() => (number(range), number(range)),
                None => (number(range), Some(most)),
            };
            let (Some(from), Some(to)) = (from, to) else { return false };
            let step: i64 = if step.is_empty() { 1 } else { step.parse().unwrap_or(0) };
            (from..=to).contains(&value) && step > 0 && i64::from(value - from) % step == 0
        })
    };
    let open = |field: &str| {
        field.split(',').any(|part| {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            matches!(range, "*" | "?") && step.parse() == Ok(1)
        })
    };
    let day = is(days, moment.day(), 31, &[], 1);
    let weekday = is(weekdays, moment.weekday().to_sunday_zero_offset(), 6, &WEEKDAYS, 0);
    let both = open(days) || open(weekdays);
    let is_day = if both { day && weekday } else { day || weekday };
    let is_time = is(minutes, moment.minute(), 59, &[], 0) && is(hours, moment.hour(), 23, &[], 0);
    is_day && is_time && is(months, moment.month(), 12, &MONTHS, 1) && moment.second() == 0
}
