//! Schedules in cron's language: five fields, names of months and days, lists, ranges, steps, and words such as `@hourly`.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// A schedule: a set of bits per field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
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

impl Schedule {
    /// Returns `None` for what is not a schedule.
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            text => text,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else { return None };
        let any = |field: &str| field.starts_with('*') || field.starts_with('?');
        Some(Self {
            minutes: bits(minutes, 0, 59, &[], 0)?,
            hours: bits(hours, 0, 23, &[], 0)?,
            days: bits(days, 1, 31, &[], 0)?,
            months: bits(months, 1, 12, &MONTHS, 1)?,
            weekdays: {
                let bits = bits(weekdays, 0, 7, &WEEKDAYS, 0)?;
                // Sunday is 0 and 7.
                (bits | bits >> 7) & 0x7f
            },
            either: !any(days) && !any(weekdays),
        })
    }

    fn matches(&self, date: Date) -> bool {
        let has = |bits: u64, at: i8| bits >> at & 1 == 1;
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.either { day || weekday } else { day && weekday }
    }

    /// Returns the first moment after another one, `None` if there is none within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = after.to_zoned(zone.clone()).datetime();
        let mut date = start.date();
        let mut from = start.time().hour() as i32 * 60 + i32::from(start.time().minute()) + 1;
        for _ in 0..5 * 366 {
            if self.matches(date) {
                for minute in from..24 * 60 {
                    let (hour, minute) = ((minute / 60) as i8, (minute % 60) as i8);
                    if self.hours >> hour & 1 == 1 && self.minutes >> minute & 1 == 1 {
                        let moment = DateTime::from_parts(date, Time::constant(hour, minute, 0, 0));
                        return moment.to_zoned(zone.clone()).ok().map(|zoned| zoned.timestamp());
                    }
                }
            }
            date = date.checked_add(1.day()).ok()?;
            from = 0;
        }
        None
    }
}

/// Reads one field: `*`, `5`, `1-5`, `*/10`, `mon,wed`, `8-18/2`.
fn bits(field: &str, least: u32, most: u32, names: &[&str], first: u32) -> Option<u64> {
    let value = |text: &str| -> Option<u32> {
        let named = names.iter().position(|name| text.eq_ignore_ascii_case(name));
        match named {
            Some(at) => Some(at as u32 + first),
            None => text.parse().ok(),
        }
        .filter(|value| (least..=most).contains(value))
    };
    let mut all = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (from, to) = if range == "*" || range == "?" {
            // A week has no eighth day.
            (least, if most == 7 { 6 } else { most })
        } else if let Some((from, to)) = range.split_once('-') {
            (value(from)?, value(to)?)
        } else {
            let from = value(range)?;
            (from, if part.contains('/') { most } else { from })
        };
        if from > to {
            return None;
        }
        for at in (from..=to).step_by(step as usize) {
            all |= 1 << at;
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let after = after.parse().expect("a time");
        schedule.next(after, &TimeZone::UTC).map(|moment| moment.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_next_moment_is_found() {
        // 2026-01-01 is a Thursday.
        assert_eq!(next("* * * * *", "2026-01-01T00:00:30Z"), "2026-01-01T00:01:00Z");
        assert_eq!(next("*/15 8-18 * * mon-fri", "2026-01-02T18:46:00Z"), "2026-01-05T08:00:00Z");
        assert_eq!(next("0 0 29 2 *", "2026-01-01T00:00:00Z"), "2028-02-29T00:00:00Z");
        assert_eq!(next("@weekly", "2026-01-01T00:00:00Z"), "2026-01-04T00:00:00Z");
        assert_eq!(next("0 0 * * 7", "2026-01-01T00:00:00Z"), "2026-01-04T00:00:00Z");
        assert_eq!(next("0 0 13 * fri", "2026-01-03T00:00:00Z"), "2026-01-09T00:00:00Z");
        assert_eq!(next("0 0 31 2 *", "2026-01-01T00:00:00Z"), "");
    }

    #[test]
    fn nonsense_is_no_schedule() {
        for text in ["", "* * * *", "60 * * * *", "5-1 * * * *", "*/0 * * * *", "x * * * *"] {
            assert_eq!(Schedule::parse(text), None, "{text}");
        }
    }
}
