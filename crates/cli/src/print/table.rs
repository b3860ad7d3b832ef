//! Tables: columns as wide as their widest cell, three spaces between, as kubectl prints them.

/// Between two columns.
const GAP: usize = 3;
/// A column with its gap.
const NARROWEST: usize = 6;

/// Lays rows out; the last column is as long as it is.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |text: &str| text.chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell)).max().unwrap_or(0))
        .collect();
    lay(rows, &widths)
}

fn lay(rows: &[Vec<String>], widths: &[usize]) -> String {
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            out.push_str(cell);
            if i + 1 < row.len() {
                let width = (widths.get(i).copied().unwrap_or(0) + GAP).max(NARROWEST);
                out.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
            }
        }
        out.push('\n');
    }
    out
}

/// A table that grows, as watches print it: a row is never narrower than those before.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    widths: Vec<usize>,
}

impl Growing {
    pub(crate) fn add(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        lay(rows, &self.widths)
    }
}

/// One line of text, whatever a cell holds.
pub(crate) fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        other => {
            let text = apimachinery::jsonpath::print(other);
            match text.find(['\n', '\r', '\u{c}']) {
                Some(end) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_aligned_with_three_spaces() {
        assert_eq!(align(&[row(&["NAME", "AGE"]), row(&["longer", "1s"])]), "NAME     AGE\nlonger   1s\n");
        let mut growing = Growing::default();
        assert_eq!(growing.add(&[row(&["abc", "x"])]), "abc   x\n");
        assert_eq!(growing.add(&[row(&["a", "y"])]), "a     y\n");
        assert_eq!(growing.add(&[row(&["abcdef", "y"])]), "abcdef   y\n");
    }

    #[test]
    fn a_cell_is_one_line() {
        assert_eq!(cell(&json!("a\nb")), "a...");
        assert_eq!((cell(&json!(3)), cell(&json!(null))), ("3".to_owned(), String::new()));
    }
}
