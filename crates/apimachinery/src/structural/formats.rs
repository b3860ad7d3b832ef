//! The string formats that the API enforces; others are ignored.

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use regex::Regex;

use super::Kind;
use crate::{duration, names};

const STRING_FORMATS: [&str; 28] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "date-time",
    "k8sshortname",
    "k8slongname",
    "",
];

/// Returns the format if it means something for the type, and nothing otherwise.
pub(super) fn enforced(kind: Option<Kind>, format: &str) -> &str {
    let known = match kind {
        None | Some(Kind::String) => STRING_FORMATS.contains(&format.replace('-', "").as_str()),
        Some(Kind::Integer) => matches!(format, "int32" | "int64"),
        Some(Kind::Number) => matches!(format, "float" | "double"),
        Some(_) => false,
    };
    if known { format } else { "" }
}

/// Tells whether a text is of the format; a format that is not enforced accepts everything.
pub(super) fn accepts(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "ipv4" => text.contains('.') && is_sloppy_ip(text),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(address, length)| {
            let most = if address.contains(':') { 128 } else { 32 };
            is_sloppy_ip(address)
                && !length.is_empty()
                && length.bytes().all(|byte| byte.is_ascii_digit())
                && length.parse::<u32>().is_ok_and(|length| length <= most)
        }),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => SSN.is_match(text),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        }
        "rgbcolor" => RGB.captures(text).is_some_and(|parts| {
            (1..=3).all(|index| {
                parts
                    .get(index)
                    .is_some_and(|part| part.as_str().parse::<u16>().is_ok_and(|value| value <= 255))
            })
        }),
        "byte" => is_base64(text),
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        "k8sshortname" => names::dns1123_label(text).is_empty(),
        "k8slongname" => names::dns1123_subdomain(text).is_empty(),
        _ => true,
    }
}

static SSN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").expect("a literal"));
static RGB: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^rgb\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)$").expect("a literal")
});
static HOSTNAME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$")
        .expect("a literal")
});
static WORD_DURATION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)[0-9]+\s*(ns|us|µs|ms|s|m|h|d|w|nano|micro|milli|sec|second|min|minute|hour|day|week)")
        .expect("a literal")
});

fn is_uri(text: &str) -> bool {
    if text.starts_with('/') {
        return !text.contains(|character: char| character.is_control() || character == ' ');
    }
    match text.split_once(':') {
        Some((scheme, rest)) => {
            let mut bytes = scheme.bytes();
            bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
                && !rest.is_empty()
                && !rest.contains(|character: char| character.is_control() || character == ' ')
        }
        None => false,
    }
}

fn is_email(text: &str) -> bool {
    let bracketed = text.strip_suffix('>').and_then(|body| body.split_once('<'));
    let address = bracketed.map_or(text, |(_, address)| address);
    match address.rsplit_once('@') {
        Some((local, domain)) => {
            let bad = |character: char| character.is_whitespace() || "<>,;:@".contains(character);
            !local.is_empty()
                && !local.starts_with('.')
                && !local.ends_with('.')
                && !local.contains("..")
                && !local.contains(bad)
                && !domain.is_empty()
                && !domain.starts_with('.')
                && !domain.ends_with('.')
                && !domain.contains(bad)
        }
        None => false,
    }
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && HOSTNAME.is_match(text) && text.split('.').all(|part| part.len() <= 63)
}

/// Leading zeros are tolerated here, other than in the API's own fields.
fn is_sloppy_ip(text: &str) -> bool {
    let complaints = names::ip(text);
    complaints.first().is_none_or(|first| !first.starts_with("must be a valid IP"))
}

fn is_mac(text: &str) -> bool {
    let groups: Vec<&str> = text.split([':', '-']).collect();
    let hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    if matches!(groups.len(), 6 | 8 | 20) && groups.iter().all(|group| group.len() == 2 && hex(group)) {
        return true;
    }
    let quads: Vec<&str> = text.split('.').collect();
    matches!(quads.len(), 3 | 4 | 10) && quads.iter().all(|group| group.len() == 4 && hex(group))
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut digits = String::with_capacity(32);
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        match rest.get(..length) {
            Some(group) if group.bytes().all(|byte| byte.is_ascii_hexdigit()) => digits.push_str(group),
            _ => return false,
        }
        rest = &rest[length..];
    }
    let digit = |index: usize| digits.as_bytes().get(index).map(u8::to_ascii_lowercase);
    rest.is_empty()
        && version.is_none_or(|version| digit(12) == Some(version as u8))
        && (!matches!(version, Some('4' | '5'))
            || digit(16).is_some_and(|variant| b"89ab".contains(&variant)))
}

fn plain_digits(text: &str) -> String {
    text.chars().filter(|character| !matches!(character, ' ' | '-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = plain_digits(text);
    let values: Option<Vec<u32>> = digits
        .chars()
        .enumerate()
        .map(|(index, digit)| if index == 9 && digit == 'X' { Some(10) } else { digit.to_digit(10) })
        .collect();
    values.is_some_and(|values| {
        values.len() == 10
            && (1_u32..=10).zip(&values).map(|(weight, value)| weight.saturating_mul(*value)).sum::<u32>()
                % 11
                == 0
    })
}

fn is_isbn13(text: &str) -> bool {
    let values: Option<Vec<u32>> = plain_digits(text).chars().map(|digit| digit.to_digit(10)).collect();
    values.is_some_and(|values| {
        let weigh =
            |(index, value): (usize, &u32)| if index % 2 == 0 { *value } else { value.saturating_mul(3) };
        values.len() == 13 && values.iter().enumerate().map(weigh).sum::<u32>() % 10 == 0
    })
}

fn is_credit_card(text: &str) -> bool {
    let values: Option<Vec<u32>> = plain_digits(text).chars().map(|digit| digit.to_digit(10)).collect();
    values.is_some_and(|values| {
        let luhn = values.iter().rev().enumerate().map(|(index, value)| match value.saturating_mul(2) {
            _ if index % 2 == 0 => *value,
            twice @ 10.. => twice.saturating_sub(9),
            twice => twice,
        });
        (12..=19).contains(&values.len()) && luhn.sum::<u32>() % 10 == 0
    })
}

fn is_base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    let padding = text.len().saturating_sub(body.len());
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && padding <= 2
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let dash = |index: usize| bytes.get(index) == Some(&b'-');
    if bytes.len() != 10 || !dash(4) || !dash(7) || !text.is_ascii() {
        return false;
    }
    let number = |range: std::ops::Range<usize>| {
        text[range.clone()]
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text[range].parse::<u32>().ok())
            .flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(0..4), number(5..7), number(8..10)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    static TIME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$")
            .expect("a literal")
    });
    let lower = text.to_lowercase();
    let Some((date, time)) = lower.split_once('t') else { return false };
    is_date(date)
        && TIME
            .captures(time)
            .is_some_and(|parts| &parts[1] <= "23" && &parts[2] <= "59" && &parts[3] <= "59")
}

/// Go's durations (`1h30m`), or words (`3 days`).
fn is_duration(text: &str) -> bool {
    duration::nanos(text).is_ok() || WORD_DURATION.is_match(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_and_refuse() {
        for (format, good, bad) in [
            ("uri", vec!["http://x/y", "/abs", "mailto:a@b"], vec!["x", "", "http://a b"]),
            ("email", vec!["a@b.c", "Bob <a@b.c>"], vec!["a", "@b", "a@"]),
            ("hostname", vec!["a.example", "localhost", "1a.com"], vec!["-a", "a..b", "a_b"]),
            ("ipv4", vec!["1.2.3.4", "010.1.1.1"], vec!["1.2.3", "::1"]),
            ("ipv6", vec!["::1"], vec!["1.2.3.4", "x:"]),
            ("cidr", vec!["10.0.0.1/8", "::/0"], vec!["10.0.0.0", "10.0.0.0/40"]),
            ("mac", vec!["01:23:45:67:89:ab", "0123.4567.89ab"], vec!["01:23", "zz:23:45:67:89:ab"]),
            ("uuid", vec!["123e4567-e89b-12d3-a456-426614174000"], vec!["123", ""]),
            (
                "uuid4",
                vec!["123e4567-e89b-42d3-a456-426614174000"],
                vec!["123e4567-e89b-12d3-a456-426614174000"],
            ),
            ("isbn10", vec!["0-306-40615-2"], vec!["0306406153"]),
            ("isbn13", vec!["978-0-306-40615-7"], vec!["9780306406158"]),
            ("creditcard", vec!["4111 1111 1111 1111"], vec!["4111 1111 1111 1112"]),
            ("ssn", vec!["111-22-3333"], vec!["1"]),
            ("hexcolor", vec!["#fff", "00ff00"], vec!["#ff", "x"]),
            ("rgbcolor", vec!["rgb(1, 2,3)"], vec!["rgb(256,1,1)", "1,2,3"]),
            ("byte", vec!["YQ=="], vec!["YQ=", "a b=", ""]),
            ("date", vec!["2024-02-29"], vec!["2023-02-29", "2024-2-1"]),
            (
                "date-time",
                vec!["2024-01-02T03:04:05Z", "2024-01-02t03:04:05.5+01:00"],
                vec!["nope", "2024-01-02", "2024-01-02T25:00:00Z"],
            ),
            ("duration", vec!["1h30m", "0", "-1.5s", "3 days"], vec!["x", "", "1"]),
            ("k8s-short-name", vec!["a-b"], vec!["a.b", "A"]),
            ("k8s-long-name", vec!["a.b"], vec!["A"]),
            ("bsonobjectid", vec!["507f1f77bcf86cd799439011"], vec!["x"]),
            ("password", vec!["anything"], vec![]),
            ("made-up", vec!["anything"], vec![]),
        ] {
            for text in good {
                assert!(accepts(format, text), "{format} should accept {text:?}");
            }
            for text in bad {
                assert!(!accepts(format, text), "{format} should refuse {text:?}");
            }
        }
    }

    #[test]
    fn formats_that_do_not_fit_the_type_are_ignored() {
        assert_eq!(enforced(Some(Kind::String), "date-time"), "date-time");
        assert_eq!(enforced(Some(Kind::String), "made-up"), "");
        assert_eq!(enforced(Some(Kind::Integer), "int32"), "int32");
        assert_eq!(enforced(Some(Kind::Integer), "date"), "");
        assert_eq!(enforced(Some(Kind::Object), "date"), "");
    }
}
