//! Regular expressions: Go's dialect into ours.
//!
//! Both are finite automata with nearly one syntax. The differences that patterns of real CRDs touch: `\d`, `\w`,
//! `\s` and `\b` are ASCII in Go; a brace that starts no repetition is a plain character; brackets and doubled
//! operators inside a class mean themselves.

use regex::{Regex, RegexBuilder};

/// Compiles a Go regular expression.
pub(crate) fn compile(source: &str) -> Result<Regex, regex::Error> {
    // Counted repetitions of Unicode classes are large; Go has no such limit.
    RegexBuilder::new(&translate(source)).size_limit(64 << 20).build()
}

fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len().saturating_add(16));
    let mut rest = source;
    let mut in_class = false;
    let mut class_start = false;
    while let Some(character) = rest.chars().next() {
        let mut taken = character.len_utf8();
        let at_class_start = class_start;
        class_start = false;
        match character {
            '\\' => {
                let escaped = rest[1..].chars().next();
                taken = taken.saturating_add(escaped.map_or(0, char::len_utf8));
                // \p{Lu} and \x{41} carry their own braces.
                if let Some('p' | 'P' | 'x') = escaped
                    && let Some(end) = rest[2..].strip_prefix('{').and_then(|body| body.find('}'))
                {
                    taken = end.saturating_add(4);
                    out.push_str(&rest[..taken]);
                    rest = &rest[taken..];
                    continue;
                }
                match (escaped, in_class) {
                    (Some('d'), false) => out.push_str("[0-9]"),
                    (Some('w'), false) => out.push_str("[0-9A-Za-z_]"),
                    (Some('s'), false) => out.push_str(r"[\t\n\x0C\r ]"),
                    (Some('d'), true) => out.push_str("0-9"),
                    (Some('w'), true) => out.push_str("0-9A-Za-z_"),
                    (Some('s'), true) => out.push_str(r"\t\n\x0C\r\x20"),
                    (Some('D'), _) => out.push_str("[^0-9]"),
                    (Some('W'), _) => out.push_str("[^0-9A-Za-z_]"),
                    (Some('S'), _) => out.push_str(r"[^\t\n\x0C\r ]"),
                    (Some('b'), false) => out.push_str(r"(?-u:\b)"),
                    (Some('B'), false) => out.push_str(r"(?-u:\B)"),
                    (Some('<'), _) => out.push_str(r"\x3C"),
                    (Some('>'), _) => out.push_str(r"\x3E"),
                    (Some(other), _) => {
                        out.push('\\');
                        out.push(other);
                    }
                    (None, _) => out.push('\\'),
                }
            }
            '[' if !in_class => {
                in_class = true;
                class_start = true;
                out.push('[');
                if rest[1..].starts_with('^') {
                    out.push('^');
                    taken = taken.saturating_add(1);
                }
            }
            '[' => {
                // A named class such as [:alpha:] stays; any other bracket is a plain character here.
                match rest.strip_prefix("[:").and_then(|body| body.find(":]")) {
                    Some(end) => {
                        taken = end.saturating_add(4);
                        out.push_str(&rest[..taken]);
                    }
                    None => out.push_str(r"\["),
                }
            }
            ']' if in_class && at_class_start => out.push_str(r"\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(character);
            }
            '-' if in_class && rest.starts_with("--") => out.push_str(r"\-"),
            '{' if !in_class && !is_repetition(rest) => out.push_str(r"\{"),
            '}' if !in_class && !closes_repetition(&source[..source.len().saturating_sub(rest.len())]) => {
                out.push_str(r"\}")
            }
            other => out.push(other),
        }
        rest = &rest[taken..];
    }
    out
}

/// `{3}`, `{3,}`, `{3,5}`
fn is_repetition(text: &str) -> bool {
    let Some(end) = text.find('}') else { return false };
    let body = &text[1..end];
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match body.split_once(',') {
        Some((least, most)) => digits(least) && (most.is_empty() || digits(most)),
        None => digits(body),
    }
}

/// True if the text before a closing brace ends in the open part of a repetition.
fn closes_repetition(before: &str) -> bool {
    let Some(open) = before.rfind('{') else { return false };
    is_repetition(&format!("{}}}", &before[open..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_patterns_match_as_in_go() {
        for (source, matching, failing) in [
            (r"^\d+$", "12", "\u{0661}"),
            (r"^\w+$", "a_1", "ä"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^{.*}$", "{x}", "x"),
            (r"^a{2,3}$", "aaa", "a"),
            (r"^[]a]+$", "]a", "b"),
            (r"^[a[]+$", "a[", "]"),
            (r"^[[:alpha:]]+$", "abc", "1"),
            (r"^[a&&b]+$", "a&b", "c"),
            (r"^\/v1$", "/v1", "v1"),
            (r"^\p{Lu}$", "Ä", "ä"),
            (r"^[^\s]+$", "a", " "),
            (r"^((100|[0-9]{1,2})%|[0-9]+)$", "50%", "x"),
            (r"^(\d+(\.\d+)?h)?(\d+m)?$", "1.5h3m", "x"),
        ] {
            let regex = compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
            assert!(regex.is_match(matching), "{source} should match {matching}");
            assert!(!regex.is_match(failing), "{source} should not match {failing}");
        }
        assert!(compile("a(").is_err());
        assert!(compile("(?=a)").is_err());
    }
}
