//! The standard cron format: five fields or a descriptor such as `@daily`. Only judged, not computed.

use apimachinery::duration;

/// Returns what is wrong with a schedule, in the words of the parser that Kubernetes uses.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    let schedule = match schedule.strip_prefix("TZ=").or_else(|| schedule.strip_prefix("CRON_TZ=")) {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest.trim()),
        None => schedule,
    };
    if let Some(descriptor) = schedule.strip_prefix('@') {
        return check_descriptor(descriptor, schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    let bounds =
        [(0, 59, &[][..]), (0, 23, &[][..]), (1, 31, &[][..]), (1, 12, &MONTHS[..]), (0, 6, &DAYS[..])];
    for (field, (least, most, names)) in fields.into_iter().zip(bounds) {
        for part in field.split(',') {
            check_range(part, least, most, names)?;
        }
    }
    Ok(())
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

fn check_descriptor(descriptor: &str, schedule: &str) -> Result<(), String> {
    if matches!(descriptor, "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly") {
        return Ok(());
    }
    match descriptor.strip_prefix("every ") {
        Some(text) => match duration::nanos(text) {
            Ok(_) => Ok(()),
            Err(why) => Err(format!("failed to parse duration {schedule}: {why}")),
        },
        None => Err(format!("unrecognized descriptor: {schedule}")),
    }
}

/// `*`, `?`, `5`, `1-5`, `*/15`, `3-59/5`, names for months and days.
fn check_range(part: &str, least: u32, most: u32, names: &[&str]) -> Result<(), String> {
    let pieces: Vec<&str> = part.split('/').collect();
    let ends: Vec<&str> = part.split('/').next().unwrap_or(part).split('-').collect();
    let single = ends.len() == 1;
    let (start, mut end) = match ends[..] {
        ["*" | "?"] => (least, most),
        [only] => {
            let number = number(only, names, least)?;
            (number, number)
        }
        [first, last] => (number(first, names, least)?, number(last, names, least)?),
        _ => return Err(format!("too many hyphens: {part}")),
    };
    let step = match pieces[..] {
        [_] => 1,
        [_, step] => {
            if single {
                end = most;
            }
            number(step, &[], 0)?
        }
        _ => return Err(format!("too many slashes: {part}")),
    };
    if start < least {
        return Err(format!("beginning of range ({start}) below minimum ({least}): {part}"));
    }
    if end > most {
        return Err(format!("end of range ({end}) above maximum ({most}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    Ok(())
}

fn number(text: &str, names: &[&str], first: u32) -> Result<u32, String> {
    let lower = text.to_lowercase();
    if let Some(position) = names.iter().position(|name| *name == lower) {
        return Ok(first.saturating_add(u32::try_from(position).expect("a dozen names at most")));
    }
    match text.parse::<i64>() {
        Ok(negative @ ..0) => Err(format!("negative number ({negative}) not allowed: {text}")),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => {
            Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_schedules_pass() {
        for schedule in
            ["* * * * *", "*/15 0-6 1,15 jan-mar MON", "@daily", "@every 1h30m", "0 0 ? * 0", "5/10 * * * *"]
        {
            assert_eq!(check(schedule), Ok(()), "{schedule}");
        }
    }

    #[test]
    fn bad_schedules_say_why() {
        for (schedule, text) in [
            ("x", "expected exactly 5 fields, found 1: [x]"),
            ("61 * * * *", "end of range (61) above maximum (59): 61"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(check(schedule), Err(text.to_owned()), "{schedule}");
        }
    }
}
