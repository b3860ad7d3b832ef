//! What names, keys and values may look like, and the words that say so.
//!
//! Every check returns the list of complaints, empty when the value is fine; the words are the ones that
//! Kubernetes prints, so callers put them behind `Invalid value: …` unchanged.

use std::net::{Ipv4Addr, Ipv6Addr};

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// DNS-1123 label: at most 63 lower-case letters, digits and hyphens.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 63 {
        complaints.push(max_length(63));
    }
    if !matches_label(value) {
        complaints.push(if matches_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            pattern(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_FORMAT,
                &["my-name", "123-abc"],
            )
        });
    }
    complaints
}

/// DNS-1123 subdomain: labels joined by dots, at most 253 characters.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    subdomain(value, max_length(253))
}

fn subdomain(value: &str, too_long: String) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 253 {
        complaints.push(too_long);
    }
    if !matches_subdomain(value) {
        complaints.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    complaints
}

/// `*.` and a DNS-1123 subdomain.
pub fn wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 253 {
        complaints.push(max_length(253));
    }
    if !value.strip_prefix("*.").is_some_and(matches_subdomain) {
        complaints.push(pattern(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!(r"\*\.{SUBDOMAIN_FORMAT}"),
            &["*.example.com"],
        ));
    }
    complaints
}

/// DNS-1035 label: as a DNS-1123 label, but starting with a letter.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 63 {
        complaints.push(max_length(63));
    }
    if !(matches_label(value) && value.starts_with(|first: char| first.is_ascii_lowercase())) {
        complaints.push(pattern(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// Label and annotation keys, finalizers: an optional DNS prefix, a slash, a name part of at most 63 bytes.
pub fn qualified_name(value: &str) -> Vec<String> {
    const WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
    const EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
    let mut complaints = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_owned());
            } else {
                let wrong = subdomain(prefix, "must be no more than 253 bytes".to_owned());
                complaints.extend(wrong.iter().map(|words| format!("prefix part {words}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern(WORDS, QUALIFIED_FORMAT, &EXAMPLES)
            )];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        complaints.push("name part must be no more than 63 bytes".to_owned());
    }
    if !matches_qualified(name) {
        complaints.push(format!("name part {}", pattern(WORDS, QUALIFIED_FORMAT, &EXAMPLES)));
    }
    complaints
}

/// Label values: empty, or at most 63 bytes of a name part.
pub fn label_value(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 63 {
        complaints.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !matches_qualified(value) {
        complaints.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            &format!("({QUALIFIED_FORMAT})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

/// Keys of ConfigMaps and Secrets.
pub fn config_key(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 253 {
        complaints.push(max_length(253));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if value.is_empty() || !value.bytes().all(allowed) {
        complaints.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    complaints.extend(directory_prefix(value));
    complaints
}

/// Names of environment variables in the relaxed form that the API accepts: printable ASCII without `=`.
pub fn env_var_name(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.is_empty() {
        complaints.push("environment variable name must be non-empty".to_owned());
    }
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        complaints.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned(),
        );
    }
    complaints
}

/// Names that are stored as a segment of a path: roles, events.
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    path_segment_prefix(value)
}

/// Returns whether a value stays one segment of a path, also where a client writes it there as it is: clients do not escape names.
pub fn is_path_segment(value: &str) -> bool {
    path_segment(value).is_empty() && !value.contains(['?', '#', '\\'])
}

/// What may be the start of a path segment: `generateName` of those kinds.
pub fn path_segment_prefix(value: &str) -> Vec<String> {
    ["/", "%"]
        .into_iter()
        .filter(|bad| value.contains(bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

/// IANA service names, used for the ports of containers.
pub fn port_name(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 15 {
        complaints.push(max_length(15));
    }
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if value.is_empty() || !value.bytes().all(allowed) {
        complaints.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|byte| byte.is_ascii_lowercase()) {
        complaints.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        complaints.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        complaints.push("must not begin or end with a hyphen".to_owned());
    }
    complaints
}

pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

/// User and group ids.
pub fn unix_id(id: i64) -> Vec<String> {
    in_range(id, 0, i64::from(i32::MAX))
}

pub fn in_range(value: i64, least: i64, most: i64) -> Vec<String> {
    if (least..=most).contains(&value) {
        Vec::new()
    } else {
        vec![format!("must be between {least} and {most}, inclusive")]
    }
}

/// `50%`
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    vec![pattern(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

pub fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Vec::new();
    }
    vec![pattern(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

pub fn c_identifier(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let starts = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if starts && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Vec::new();
    }
    vec![pattern(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// An IP address of either family in a form without ambiguity: no leading zeros, no IPv4 inside IPv6.
pub fn ip(value: &str) -> Vec<String> {
    match parse_sloppy_ip(value) {
        None => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
        Some(Sloppy::LeadingZeros) => vec!["must not have leading 0s".to_owned()],
        Some(Sloppy::Mapped) => vec!["must not be an IPv4-mapped IPv6 address".to_owned()],
        Some(Sloppy::Clean) => Vec::new(),
    }
}

/// A network in CIDR notation, with the host bits zero.
pub fn cidr(value: &str) -> Vec<String> {
    const WRONG: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
    let wrong = || vec![WRONG.to_owned()];
    let Some((address, length)) = value.split_once('/') else { return wrong() };
    let Some(form) = parse_sloppy_ip(address) else { return wrong() };
    let bits: u32 = if address.contains(':') { 128 } else { 32 };
    if length.is_empty() || length.len() > 9 || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return wrong();
    }
    let Ok(prefix) = length.parse::<u32>() else { return wrong() };
    if prefix > bits {
        return wrong();
    }
    match form {
        Sloppy::LeadingZeros => return vec!["must not have leading 0s in IP or prefix length".to_owned()],
        Sloppy::Mapped => return vec!["must not have an IPv4-mapped IPv6 address".to_owned()],
        Sloppy::Clean => {}
    }
    if length.len() > 1 && length.starts_with('0') {
        return vec!["must not have leading 0s in IP or prefix length".to_owned()];
    }
    let beyond = if let Ok(address) = address.parse::<Ipv4Addr>() {
        prefix < 32 && address.to_bits() << prefix != 0
    } else if let Ok(address) = address.parse::<Ipv6Addr>() {
        prefix < 128 && address.to_bits() << prefix != 0
    } else {
        return wrong();
    };
    if beyond { vec!["must not have bits set beyond the prefix length".to_owned()] } else { Vec::new() }
}

enum Sloppy {
    Clean,
    LeadingZeros,
    Mapped,
}

/// Accepts what upstream's lenient parser accepts and says what is unusual about it.
fn parse_sloppy_ip(value: &str) -> Option<Sloppy> {
    if value.contains(':') {
        let address: Ipv6Addr = value.parse().ok()?;
        return Some(if address.to_ipv4_mapped().is_some() { Sloppy::Mapped } else { Sloppy::Clean });
    }
    if value.parse::<Ipv4Addr>().is_ok() {
        return Some(Sloppy::Clean);
    }
    let octets: Vec<&str> = value.split('.').collect();
    let plain = |octet: &&str| {
        !octet.is_empty()
            && octet.bytes().all(|byte| byte.is_ascii_digit())
            && octet.trim_start_matches('0').len() <= 3
            && octet.parse::<u64>().is_ok_and(|number| number <= 255)
    };
    (octets.len() == 4 && octets.iter().all(plain)).then_some(Sloppy::LeadingZeros)
}

/// Returns `<words> (e.g. 'a',  or 'b', regex used for validation is '<format>')`; the doubled blank is upstream's.
pub fn pattern(words: &str, format: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{words} (regex used for validation is '{format}')");
    }
    let mut text = format!("{words} (e.g. ");
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            text.push_str(" or ");
        }
        text.push_str(&format!("'{example}', "));
    }
    text.push_str(&format!("regex used for validation is '{format}')"));
    text
}

/// Returns `must be no more than N characters`.
pub fn max_length(characters: usize) -> String {
    format!("must be no more than {characters} characters")
}

fn directory_prefix(value: &str) -> Option<String> {
    match value {
        "." | ".." => Some(format!("must not be '{value}'")),
        _ if value.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

fn matches_label(value: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    match value.as_bytes() {
        [] => false,
        [one] => edge(*one),
        [first, middle @ .., last] => {
            edge(*first) && edge(*last) && middle.iter().all(|byte| edge(*byte) || *byte == b'-')
        }
    }
}

fn matches_subdomain(value: &str) -> bool {
    value.split('.').all(matches_label)
}

fn matches_qualified(value: &str) -> bool {
    match value.as_bytes() {
        [] => false,
        [one] => one.is_ascii_alphanumeric(),
        [first, middle @ .., last] => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && middle.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&str) -> Vec<String>;

    fn accepts(check: Check, values: &[&str]) {
        for value in values {
            assert_eq!(check(value), Vec::<String>::new(), "{value:?}");
        }
    }

    fn refuses(check: Check, values: &[&str]) {
        for value in values {
            assert!(!check(value).is_empty(), "{value:?} should be refused");
        }
    }

    #[test]
    fn dns_labels_are_lower_case_and_short() {
        accepts(dns1123_label, &["a", "0", "a-b", "1-2", &"a".repeat(63)]);
        refuses(dns1123_label, &["", "A", "-a", "a-", "a_b", "a.b", &"a".repeat(64), "ä"]);
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert_eq!(
            dns1123_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
    }

    #[test]
    fn subdomains_are_labels_joined_by_dots() {
        accepts(dns1123_subdomain, &["a", "a.b.c", "1.2", "a-b.c-d"]);
        refuses(dns1123_subdomain, &["", ".", "a..b", ".a", "a.", "a.-b", "A.b", &"a".repeat(254)]);
        assert_eq!(
            dns1123_subdomain("A"),
            [
                r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        accepts(wildcard_dns1123_subdomain, &["*.a", "*.a.b"]);
        refuses(wildcard_dns1123_subdomain, &["*", "a.b", "*.*.b", "*."]);
    }

    #[test]
    fn dns_1035_labels_start_with_a_letter() {
        accepts(dns1035_label, &["a", "a1", "a-1"]);
        refuses(dns1035_label, &["1a", "", "a-", "A"]);
    }

    #[test]
    fn qualified_names_have_an_optional_domain() {
        accepts(qualified_name, &["a", "A.b_c-1", "example.com/a", &"x".repeat(63)]);
        refuses(qualified_name, &["", "/a", "a/", "a/b/c", "Ex.com/a", "a b", "-a", &"x".repeat(64)]);
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name(&"x".repeat(64)), ["name part must be no more than 63 bytes"]);
        assert_eq!(
            qualified_name("a b"),
            [
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
        assert!(qualified_name("").contains(&"name part must be non-empty".to_owned()));
    }

    #[test]
    fn label_values_may_be_empty() {
        accepts(label_value, &["", "a", "A_b.c-1"]);
        refuses(label_value, &["-", "a ", "a/b", &"x".repeat(64)]);
        assert_eq!(
            label_value("a/b"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
    }

    #[test]
    fn config_keys_are_file_names_without_escape() {
        accepts(config_key, &["a", "a.b", "A_B-c", ".hidden"]);
        refuses(config_key, &["", ".", "..", "..a", "a/b", "a b"]);
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(config_key("..a"), ["must not start with '..'"]);
    }

    #[test]
    fn path_segments_only_avoid_what_breaks_paths() {
        accepts(path_segment, &["a", "system:controller", "A b", "..."]);
        assert_eq!(path_segment("."), ["may not be '.'"]);
        assert_eq!(path_segment("a/b%"), ["may not contain '/'", "may not contain '%'"]);
        accepts(path_segment_prefix, &["..", "."]);
        for plain in ["", "a", "system:controller", "a.b-c"] {
            assert!(is_path_segment(plain), "{plain:?}");
        }
        for odd in ["a/b", "a%2fb", "a?b", "a#b", "a\\b", ".", ".."] {
            assert!(!is_path_segment(odd), "{odd:?}");
        }
    }

    #[test]
    fn port_names_and_numbers_are_checked() {
        accepts(port_name, &["http", "a1-b", "1a"]);
        assert_eq!(port_name("1"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("a--b"), ["must not contain consecutive hyphens"]);
        assert_eq!(port_name("-a"), ["must not begin or end with a hyphen"]);
        assert_eq!(port_name("abcdefghijklmnop"), ["must be no more than 15 characters"]);
        assert_eq!(
            port_name("A1b"),
            ["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"]
        );
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert_eq!(unix_id(-1), ["must be between 0 and 2147483647, inclusive"]);
        assert!(port_number(80).is_empty());
    }

    #[test]
    fn addresses_are_strict() {
        accepts(ip, &["10.9.8.7", "::1", "2001:db8::ffff", "0.0.0.0"]);
        assert_eq!(ip("10.9.8"), ["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"]);
        assert_eq!(ip("010.1.1.1"), ["must not have leading 0s"]);
        assert_eq!(ip("::ffff:1.2.3.4"), ["must not be an IPv4-mapped IPv6 address"]);
        accepts(cidr, &["10.0.0.0/8", "2001:db8::/64", "0.0.0.0/0", "1.2.3.4/32"]);
        assert_eq!(cidr("10.0.0.0"), ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]);
        assert_eq!(cidr("10.0.0.1/8"), ["must not have bits set beyond the prefix length"]);
        refuses(cidr, &["10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/08"]);
    }

    #[test]
    fn small_vocabularies_are_checked() {
        accepts(percent, &["0%", "100%"]);
        refuses(percent, &["", "%", "1", "-1%", "1.5%"]);
        accepts(c_identifier, &["a", "_1", "A_b"]);
        refuses(c_identifier, &["", "1a", "a-b"]);
        accepts(http_header_name, &["X-A"]);
        refuses(http_header_name, &["", "X_A"]);
        accepts(env_var_name, &["A", "a b", "1"]);
        refuses(env_var_name, &["", "a=b", "ä"]);
    }
}
