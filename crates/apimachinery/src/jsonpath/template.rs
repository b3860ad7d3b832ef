//! JSONPath templates: text with paths in braces, and `range` … `end` around parts that repeat.
//!
//! In: `{range .items[*]}{.metadata.name}{"\n"}{end}` and an object. Out: text as kubectl prints it.

use serde_json::Value;

use super::{Error, Fuel, Path};

/// How many ranges may be inside of each other.
const MAX_RANGES: usize = 16;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path { path: Path, from_root: bool },
    Range { path: Path, from_root: bool, parts: Vec<Part> },
}

/// Why a template cannot be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfilled {
    /// A path finds nothing.
    Missing,
    /// It asks for too much.
    TooMuch,
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, Error> {
        // kubectl takes `.metadata.name` and `metadata.name` as well.
        let relaxed = if text.contains('{') { text.to_owned() } else { format!("{{{text}}}") };
        let mut rest = relaxed.as_str();
        let parts = sequence(&mut rest, 0)?;
        Ok(Self { parts })
    }

    /// Prints an object. What a path does not find is left out.
    pub fn print(&self, object: &Value) -> String {
        let mut filling = Filling { root: object, fuel: &Fuel::endless(), strict: false, out: String::new() };
        // Without a limit, and where nothing has to be found, nothing can fail.
        let _ = filling.fill(&self.parts, object);
        filling.out
    }

    /// Prints an object of which every path has to find something, as far as the fuel lasts.
    ///
    /// # Errors
    /// If a path finds nothing, or the fuel is used up.
    pub fn fill(&self, object: &Value, fuel: &Fuel) -> Result<String, Unfilled> {
        let mut filling = Filling { root: object, fuel, strict: true, out: String::new() };
        filling.fill(&self.parts, object)?;
        Ok(filling.out)
    }

    /// Returns the values themselves, without the text between them.
    pub fn find(&self, object: &Value) -> Vec<Value> {
        let mut found = Vec::new();
        find(&self.parts, object, object, &mut found);
        found
    }
}

/// Reads parts until the end of the text, or of the range that they are inside of.
fn sequence(rest: &mut &str, ranges: usize) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let Some((text, after)) = rest.split_once('{') else {
            parts.push(Part::Text(std::mem::take(rest).to_owned()));
            break;
        };
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        let close = closing(after).ok_or_else(|| Error("unclosed action".to_owned()))?;
        let (action, after) = after.split_at(close);
        *rest = after.strip_prefix('}').unwrap_or_default();
        let action = action.trim();
        if action == "end" {
            if ranges == 0 {
                return Err(Error("not in range, nothing to end".to_owned()));
            }
            return Ok(parts);
        }
        if let Some(path) = action.strip_prefix("range ") {
            if ranges >= MAX_RANGES {
                return Err(Error(format!("more than {MAX_RANGES} ranges inside of each other")));
            }
            let (path, from_root) = parse(path.trim())?;
            parts.push(Part::Range { path, from_root, parts: sequence(rest, ranges.saturating_add(1))? });
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
    if ranges > 0 {
        return Err(Error("unterminated range".to_owned()));
    }
    Ok(parts)
}

fn parse(text: &str) -> Result<(Path, bool), Error> {
    let from_root = text.starts_with('$');
    let text = text.trim_start_matches(['@', '$']);
    let path = if text.is_empty() { "." } else { text };
    let path = Path::parse(path).map_err(|error| Error(format!("error parsing jsonpath {text}, {error}")))?;
    Ok((path, from_root))
}

/// Returns where the brace before the text is closed; quotes hide braces.
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
            (None, '[' | '(') => depth = depth.saturating_add(1),
            (None, ']' | ')') => depth = depth.saturating_sub(1),
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
    let mut characters = text.get(1..).unwrap_or_default().trim_end_matches(['"', '\'']).chars();
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

/// A template that is being filled.
struct Filling<'a> {
    root: &'a Value,
    fuel: &'a Fuel,
    /// Every path has to find something.
    strict: bool,
    out: String,
}

impl<'a> Filling<'a> {
    fn fill(&mut self, parts: &[Part], here: &'a Value) -> Result<(), Unfilled> {
        for part in parts {
            match part {
                Part::Text(text) => self.push(text)?,
                Part::Path { path, from_root } => {
                    let found = self.follow(path, *from_root, here)?;
                    if found.is_empty() && self.strict {
                        return Err(Unfilled::Missing);
                    }
                    for (place, value) in found.into_iter().enumerate() {
                        if place > 0 {
                            self.push(" ")?;
                        }
                        self.push(&super::print(value))?;
                    }
                }
                Part::Range { path, from_root, parts } => {
                    for value in self.follow(path, *from_root, here)? {
                        self.fill(parts, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn follow(&self, path: &Path, from_root: bool, here: &'a Value) -> Result<Vec<&'a Value>, Unfilled> {
        path.find_within(if from_root { self.root } else { here }, self.fuel).ok_or(Unfilled::TooMuch)
    }

    fn push(&mut self, text: &str) -> Result<(), Unfilled> {
        if !self.fuel.burn(text.len()) {
            return Err(Unfilled::TooMuch);
        }
        self.out.push_str(text);
        Ok(())
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
            let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            assert_eq!(parsed.print(&object), text, "{template}");
        }
        let deep = "{range .a}".repeat(100_000);
        for bad in ["{.a", "{range .a}", "{end}", deep.as_str()] {
            assert!(Template::parse(bad).is_err(), "{}", bad.get(..20).unwrap_or(bad));
        }
    }

    #[test]
    fn a_template_can_be_held_to_find_everything_and_not_too_much() {
        let object = json!({"a": 1, "b": "x", "list": [1, 2, 3], "deep": [{"a": {"a": {"a": {"a": {}}}}}]});
        let fill = |template: &str| {
            let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
            parsed.fill(&object, &Fuel::new(1000))
        };
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(fill("{.a}-{.b}"), text("1-x"));
        assert_eq!(fill("v{.a}"), text("v1"));
        assert_eq!(fill("{range .list[*]}{@},{end}"), text("1,2,3,"));
        assert_eq!(fill("{.a}-{.gone}"), Err(Unfilled::Missing));
        assert_eq!(fill(&"..".repeat(30)), Err(Unfilled::TooMuch));
        assert_eq!(fill(&format!("{{.list[?(@{})]}}", "..".repeat(30))), text("1 2 3"));
        assert_eq!(fill(&format!("{{.deep[?(@{})]}}", "..".repeat(30))), Err(Unfilled::TooMuch));
        let many = format!("{}x{}", "{range $.list[*]}".repeat(8), "{end}".repeat(8));
        assert_eq!(fill(&many), Err(Unfilled::TooMuch));
        assert_eq!(fill(&"x".repeat(2000)), Err(Unfilled::Missing));
        assert_eq!(fill(&format!("{{.a}}{}", "x".repeat(2000))), Err(Unfilled::TooMuch));
    }
}
