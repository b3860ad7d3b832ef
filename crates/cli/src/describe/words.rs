//! The page on which a description is written, and elements that many kinds share.

use jiff::Timestamp;
use serde_json::Value;

use crate::apply::LAST_APPLIED;
use crate::print::tabs::Text;

/// Longer annotations get separate lines, and are cut.
const LONGEST: usize = 140;

/// A page in progress: the block that is being aligned, and the finished text.
#[derive(Debug, Default)]
pub(super) struct Page {
    done: String,
    text: Text,
}

impl Page {
    pub(super) fn line(&mut self, level: usize, text: impl AsRef<str>) {
        self.text.line(level, text);
    }

    pub(super) fn pair(&mut self, level: usize, name: &str, value: impl std::fmt::Display) {
        self.text.pair(level, name, value);
    }

    /// Later lines are not aligned with earlier ones.
    pub(super) fn flush(&mut self) {
        self.done.push_str(&std::mem::take(&mut self.text).finish());
    }

    pub(super) fn finish(mut self) -> String {
        self.flush();
        self.done
    }

    #[cfg(test)]
    pub(super) fn raw(&self) -> &str {
        self.text.as_str()
    }

    /// `Labels:  a=b`, one in each line.
    pub(super) fn labels(&mut self, title: &str, map: &Value) {
        let pairs: Vec<String> = sorted(map).iter().map(|(key, value)| format!("{key}={value}")).collect();
        self.list(title, &pairs);
    }

    /// One value per line, the first one after the title.
    pub(super) fn list(&mut self, title: &str, values: &[String]) {
        if values.is_empty() {
            self.pair(0, title, "<none>");
        }
        for (i, value) in values.iter().enumerate() {
            let title = if i == 0 { format!("{title}:") } else { indent(title) };
            self.line(0, format!("{title}\t{value}"));
        }
    }

    pub(super) fn annotations(&mut self, title: &str, map: &Value) {
        let mut lines = Vec::new();
        for (key, value) in sorted(map) {
            // The annotation of apply is redundant.
            if key == LAST_APPLIED {
                continue;
            }
            let value = value.strip_suffix('\n').unwrap_or(&value);
            if key.len() + value.len() + 2 > LONGEST || value.contains('\n') {
                lines.push(format!("{key}:"));
                lines.extend(value.split('\n').map(|line| format!("  {}", shortened(line, LONGEST - 2))));
            } else {
                lines.push(format!("{key}: {value}"));
            }
        }
        self.list(title, &lines);
    }
}

/// The leading spaces of a title.
fn indent(title: &str) -> String {
    title.chars().take_while(|c| *c == ' ').collect()
}

fn shortened(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// The entries of a map of texts, in order.
pub(super) fn sorted(map: &Value) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), apimachinery::jsonpath::print(value)))
        .collect();
    entries.sort();
    entries
}

/// `a=1,b=2`, or that there is none.
pub(super) fn joined(map: &Value) -> String {
    let pairs: Vec<String> = sorted(map).iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// A label selector in words.
pub(super) fn selector(object: &Value) -> String {
    match apimachinery::selector::label::Selector::from_object(Some(object)) {
        Ok(selector) if object.is_object() && !selector.is_everything() => selector.to_string(),
        _ => "<none>".to_owned(),
    }
}

/// `Tue, 17 Nov 2026 12:18:12 +0000`
pub(super) fn time(value: &Value) -> String {
    match value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(time) => time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string(),
        None => String::new(),
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

/// A number or a text, or the default.
pub(super) fn shown(value: &Value, default: &str) -> String {
    match value {
        Value::Null => default.to_owned(),
        other => apimachinery::jsonpath::print(other),
    }
}

pub(super) fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// `True` or `False`.
pub(super) fn yes(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// `ReplicaSet/web-1`: the controller of the object.
pub(super) fn controller(object: &Value) -> Option<String> {
    let owner = each(&object["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true)?;
    Some(format!("{}/{}", text(&owner["kind"]), text(&owner["name"])))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_annotations_stand_below_their_names() {
        let mut page = Page::default();
        page.annotations("Annotations", &json!({"a": "b", "c": "x".repeat(200), LAST_APPLIED: "{}"}));
        let text = page.finish();
        assert!(text.starts_with("Annotations:  a: b\n              c:\n                xxx"), "{text}");
        assert!(text.ends_with("x...\n") && !text.contains(LAST_APPLIED), "{text}");
    }

    #[test]
    fn times_are_written_out() {
        assert_eq!(time(&json!("2026-11-17T12:18:12Z")), "Tue, 17 Nov 2026 12:18:12 +0000");
        assert_eq!(time(&json!(null)), "");
    }

    #[test]
    fn lists_below_a_title_keep_its_indent() {
        let mut page = Page::default();
        page.labels("  Labels", &json!({"a": "1", "b": "2"}));
        assert_eq!(page.raw(), "  Labels:\ta=1\n  \tb=2\n");
    }
}
