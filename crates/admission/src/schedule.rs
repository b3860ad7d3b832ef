//! The syntax of cron schedules that CronFederatedHPA accepts.
//!
//! Five to seven fields: `[second] minute hour day-of-month month day-of-week [year]`. Upstream's library checks a
//! schedule against the current time and lets malformed parts through that happen not to be looked at; here every
//! part counts, at any time. All forms that are documented there are accepted.

/// The fields in their order, with the least and the largest number.
const FIELDS: [(i64, i64); 7] = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (1, 9999)];
const DAY_OF_MONTH: usize = 3;
const MONTH: usize = 4;
const DAY_OF_WEEK: usize = 5;

const ALIASES: [&str; 12] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@hourly",
    "@always",
    "@5minutes",
    "@10minutes",
    "@15minutes",
    "@30minutes",
    "@everysecond",
];

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Says whether a text is a schedule.
pub fn is_valid(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    if ALIASES.contains(&text.to_lowercase().as_str()) {
        return true;
    }
    let text = text.to_uppercase();
    let parts: Vec<&str> = text.split_whitespace().collect();
    // With six fields, the last is a year if it looks like one; otherwise the first is the second.
    let has_seconds = match parts.len() {
        5 => false,
        6 => !parts.last().is_some_and(|last| contains_year(last)),
        7 => true,
        _ => return false,
    };
    let first = if has_seconds { 0 } else { 1 };
    parts.iter().zip(first..).all(|(part, field)| part.split(',').all(|item| is_item(item, field)))
}

fn contains_year(part: &str) -> bool {
    part.as_bytes().windows(4).any(|window| window.iter().all(u8::is_ascii_digit))
}

/// Says whether one element of a list is valid in a field.
fn is_item(item: &str, field: usize) -> bool {
    if matches!(item, "*" | "?") {
        return true;
    }
    if let Some((range, step)) = item.split_once('/') {
        let stepped = step.parse::<u32>().is_ok_and(|step| step > 0);
        return stepped && (range == "*" || (range == "0" && field != DAY_OF_WEEK) || is_range(range, field));
    }
    match field {
        DAY_OF_MONTH if item == "L" => true,
        DAY_OF_MONTH if item.ends_with('W') => is_numbered(item, 'W', field),
        DAY_OF_WEEK if item.len() > 1 && item.ends_with('L') => is_numbered(item, 'L', field),
        DAY_OF_WEEK if item.contains('#') => item.split_once('#').is_some_and(|(day, nth)| {
            number(day, field).is_some() && nth.parse::<u8>().is_ok_and(|nth| (1..=5).contains(&nth))
        }),
        _ => is_range(item, field),
    }
}

/// Says whether a text is a number with a letter after it.
fn is_numbered(item: &str, letter: char, field: usize) -> bool {
    item.strip_suffix(letter).is_some_and(|text| number(text, field).is_some())
}

/// Says whether a text is a number or a range of numbers that does not run backwards.
fn is_range(text: &str, field: usize) -> bool {
    match text.split_once('-') {
        None => number(text, field).is_some(),
        Some((start, end)) => {
            let (Some(start), Some(end)) = (number(start, field), number(end, field)) else { return false };
            // A week may begin with the Sunday that is a 7.
            let start = if field == DAY_OF_WEEK && start == 7 { 0 } else { start };
            start <= end
        }
    }
}

/// Returns the number that a text means in a field, if the field can have it.
fn number(text: &str, field: usize) -> Option<i64> {
    let named = |names: &[&str], first: i64| {
        names.iter().zip(first..).find(|(name, _)| **name == text).map(|(_, at)| at)
    };
    let number = match field {
        MONTH => named(&MONTHS, 1),
        DAY_OF_WEEK => named(&WEEKDAYS, 0),
        _ => None,
    };
    let digits = || {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<i64>().ok()).flatten()
    };
    let (least, most) = FIELDS.get(field)?;
    number.or_else(digits).filter(|number| (least..=most).contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_forms_are_accepted() {
        for good in [
            "* * * * *",
            "*/5 * * * *",
            "0/15 0-8 ? JAN-mar MON-FRI",
            "0 0 1 1 *",
            "30 8 * * 1-5",
            "0 0 L * *",
            "0 0 15W * *",
            "0 0 * * 5L",
            "0 0 * * 2#3",
            "0 0 * * 7",
            "0 0 * * 7-3",
            "1,2,3 * * * *",
            "10-40/5 * * * *",
            "0 30 8 * * 1-5",
            "0 0 1 1 * 2030",
            "0 0 0 1 1 * 2030-2035",
            "@yearly",
            "@Daily",
            "  0   0\t* * *  ",
        ] {
            assert!(is_valid(good), "{good}");
        }
    }

    #[test]
    fn everything_else_is_refused_at_any_time() {
        for bad in [
            "",
            "* * * *",
            "* * * * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * * * 8",
            "*/0 * * * *",
            "*/x * * * *",
            "5-1 * * * *",
            "0,nonsense * * * *",
            "a b c d e",
            "* * * * 1#6",
            "* * W * *",
            "-1 * * * *",
            "@never",
            "0 0 1 1 * 20300",
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
