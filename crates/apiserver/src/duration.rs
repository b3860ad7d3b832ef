//! Durations as Go writes them: `300ms`, `1h15m`, `2.5s`.

use std::time::Duration;

/// Parses a duration; negative ones count as none.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_understood() {
        assert_eq!(parse("1h15m"), Some(Duration::from_secs(4500)));
        assert_eq!(parse("300ms"), Some(Duration::from_millis(300)));
        assert_eq!(parse("2.5s"), Some(Duration::from_millis(2500)));
        assert_eq!(parse("0"), Some(Duration::ZERO));
        for bad in ["", "x", "5", "1x", "-1s", "s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
