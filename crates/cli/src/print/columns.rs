//! `-o custom-columns`: a header and a JSONPath for each column.

use anyhow::{anyhow, bail};
use apimachinery::jsonpath::{self, Path};
use serde_json::Value;

use super::table::align;

#[derive(Debug, Clone)]
pub(crate) struct Columns {
    columns: Vec<(String, Path)>,
    no_headers: bool,
}

impl Columns {
    /// Parses `NAME:.metadata.name,IMAGE:.spec.image`.
    pub(crate) fn parse(text: &str, no_headers: bool) -> anyhow::Result<Self> {
        if text.is_empty() {
            bail!("custom-columns format specified but no custom columns given");
        }
        let mut columns = Vec::new();
        for part in split(text) {
            let Some((header, path)) = part.split_once(':') else {
                bail!("unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>");
            };
            columns.push((header.to_owned(), path_of(path)?));
        }
        Ok(Self { columns, no_headers })
    }

    /// Reads a file with headers in the first line and paths in the second.
    pub(crate) fn from_file(text: &str, no_headers: bool) -> anyhow::Result<Self> {
        let mut lines = text.lines();
        let (Some(headers), Some(paths)) = (lines.next(), lines.next()) else {
            bail!("malformed custom-columns file: one line of headers and one of paths are needed");
        };
        let (headers, paths): (Vec<_>, Vec<_>) =
            (headers.split_whitespace().collect(), paths.split_whitespace().collect());
        if headers.len() != paths.len() {
            bail!(
                "number of headers ({}) and field specifications ({}) don't match",
                headers.len(),
                paths.len()
            );
        }
        let columns =
            headers.iter().zip(paths).map(|(header, path)| Ok(((*header).to_owned(), path_of(path)?)));
        Ok(Self { columns: columns.collect::<anyhow::Result<_>>()?, no_headers })
    }

    pub(crate) fn print<'a>(&self, objects: impl Iterator<Item = &'a Value>) -> anyhow::Result<String> {
        let mut rows = Vec::new();
        if !self.no_headers {
            rows.push(self.columns.iter().map(|(header, _)| header.clone()).collect());
        }
        for object in objects {
            let cell = |path: &Path| {
                let found: Vec<String> = path.find(object).into_iter().map(jsonpath::print).collect();
                if found.is_empty() { "<none>".to_owned() } else { found.join(",") }
            };
            rows.push(self.columns.iter().map(|(_, path)| cell(path)).collect());
        }
        Ok(align(&rows))
    }
}

fn path_of(text: &str) -> anyhow::Result<Path> {
    Path::parse(text).map_err(|error| anyhow!("error parsing jsonpath {text}, {error}"))
}

/// Splits at commas outside of brackets.
pub(crate) fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in text.chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_come_from_a_flag_or_a_file() {
        let object = json!({"a": {"b": [1, 2]}, "c": "x"});
        let columns = Columns::parse("ONE:.a.b[0,1],TWO:{.c}", false).expect("good");
        assert_eq!(columns.print([&object].into_iter()).expect("printed"), "ONE   TWO\n1,2   x\n");
        let columns = Columns::from_file("ONE TWO\n.c .d\n", true).expect("good");
        assert_eq!(columns.print([&object].into_iter()).expect("printed"), "x     <none>\n");
        assert!(Columns::parse("ONE", false).is_err() && Columns::parse("", false).is_err());
        assert!(Columns::from_file("A B\n.a\n", false).is_err());
    }
}
