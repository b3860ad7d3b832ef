//! JSONPath templates: text with paths in braces, and `range` … `end` around parts that repeat.
//!
//! In: `{range .items[*]}{.metadata.name}{"\n"}{end}` and an object. Out: text as kubectl prints it.

use anyhow::{anyhow, bail};
use apimachinery::jsonpath::{self, Path};
use serde_json::Value;

/// A parsed template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Path { path: Path, from_root: bool },
    Range { path: Path, from_root: bool, parts: Vec<Part> },
}

impl Template {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        // kubectl takes `.metadata.name` and `metadata.name` as well.
        let relaxed = if text.contains('{') { text.to_owned() } else { format!("{{{text}}}") };
        let mut rest = relaxed.as_str();
        let parts = sequence(&mut rest, false)?;
        Ok(Self { parts })
    }

    pub(crate) fn print(&self, object: &Value) -> anyhow::Result<String> {
        let mut out = String::new();
        print(&self.parts, object, object, &mut out);
        Ok(out)
    }

    /// Returns the values themselves, without the text between them.
    pub(crate) fn find(&self, object: &Value) -> anyhow::Result<Vec<Value>> {
        let mut found = Vec::new();
        find(&self.parts, object, object, &mut found);
        Ok(found)
    }
}

fn sequence(rest: &mut &str, inside: bool) -> anyhow::Result<Vec<Part>> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let Some(open) = rest.find('{') else {
            parts.push(Part::Text(std::mem::take(rest).to_owned()));
            break;
        };
        if open > 0 {
            parts.push(Part::Text(rest[..open].to_owned()));
        }
        let close = closing(&rest[open..]).ok_or_else(|| anyhow!("unclosed action"))?;
        let action = rest[open + 1..open + close].trim();
        *rest = &rest[open + close + 1..];
        if action == "end" {
            if !inside {
                bail!("not in range, nothing to end");
            }
            return Ok(parts);
        }
        if let Some(path) = action.strip_prefix("range ") {
            let (path, from_root) = parse(path.trim())?;
            parts.push(Part::Range { path, from_root, parts: sequence(rest, true)? });
            continue;
        }
        // One action may hold several values side by side: {.a "\t" .b}
        for word in words(action) {
            parts.push(match word.chars().next() {
                Some('"' | '\'') => Part::Text(unquote(&word)),
                _ => {
                    let (path, from_root) = parse(&word)?;
                    Part::Path { path, from_root }
                }
            });
        }
    }
    if inside {
        bail!("unterminated range");
    }
    Ok(parts)
}

fn parse(text: &str) -> anyhow::Result<(Path, bool)> {
    let from_root = text.starts_with('$');
    let text = text.trim_start_matches(['@', '$']);
    let path = if text.is_empty() { "." } else { text };
    Ok((Path::parse(path).map_err(|error| anyhow!("error parsing jsonpath {text}, {error}"))?, from_root))
}

/// Returns where the brace that opens the text is closed; quotes hide braces.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match (quote, c) {
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '}') => return Some(i),
            _ => {}
        }
    }
    None
}

/// Splits at spaces outside of quotes, brackets and parentheses.
fn words(action: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut depth, mut quote, mut escaped) = (String::new(), 0_i32, None, false);
    for c in action.chars() {
        if std::mem::take(&mut escaped) {
            word.push(c);
            continue;
        }
        match (quote, c) {
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => depth -= 1,
            (None, c) if c.is_whitespace() && depth == 0 => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn unquote(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text[1..].trim_end_matches(['"', '\'']).chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => {}
            },
            c => out.push(c),
        }
    }
    out
}

fn print(parts: &[Part], root: &Value, here: &Value, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Path { path, from_root } => {
                let found = path.find(if *from_root { root } else { here });
                let texts: Vec<String> = found.into_iter().map(jsonpath::print).collect();
                out.push_str(&texts.join(" "));
            }
            Part::Range { path, from_root, parts } => {
                for value in path.find(if *from_root { root } else { here }) {
                    print(parts, root, value, out);
                }
            }
        }
    }
}

fn find(parts: &[Part], root: &Value, here: &Value, out: &mut Vec<Value>) {
    for part in parts {
        match part {
            Part::Text(_) => {}
            Part::Path { path, from_root } => {
                out.extend(path.find(if *from_root { root } else { here }).into_iter().cloned());
            }
            Part::Range { path, from_root, parts } => {
                for value in path.find(if *from_root { root } else { here }) {
                    find(parts, root, value, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_print_what_kubectl_prints() {
        let object = json!({"kind": "List", "n": 2, "items": [
            {"name": "a", "ports": [1, 2]}, {"name": "b", "ports": [], "x": {"y": "}"}}]});
        for (template, text) in [
            ("{.kind}", "List"),
            (".kind", "List"),
            ("kind", "List"),
            ("{.items[*].name}", "a b"),
            ("{range .items[*]}{.name}{\"\\t\"}{.ports}{\"\\n\"}{end}", "a\t[1,2]\nb\t[]\n"),
            ("{.items[?(@.name==\"b\")].x.y}", "}"),
            ("kind={.kind}, n={.n}", "kind=List, n=2"),
            ("{range .items[*]}[{@.name}:{range .ports[*]}{@},{end}]{end}", "[a:1,2,][b:]"),
            ("{.kind .n}", "List2"),
            ("{.missing}", ""),
            ("{range .items[*]}{$.kind}{.name} {end}", "Lista Listb "),
        ] {
            let printed = Template::parse(template).and_then(|parsed| parsed.print(&object));
            assert_eq!(printed.unwrap_or_else(|error| panic!("{template}: {error}")), text, "{template}");
        }
        for bad in ["{.a", "{range .a}", "{end}"] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
