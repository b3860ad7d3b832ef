//! Tables: columns as wide as their widest cell, with three spaces between them, as kubectl prints them.

use std::borrow::Cow;

use crate::terminal::visible;

/// Between two columns.
const GAP: usize = 3;
/// A column with its gap.
const NARROWEST: usize = 6;

/// Formats rows; the last column is not padded.
pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let rows = &harmless(rows);
    lay(rows, &widths(rows), false, &|_, cell| cell.to_owned())
}

/// Formats rows with spaces after the last column too, as `top` does.
pub(crate) fn align_wide(rows: &[Vec<String>]) -> String {
    let rows = &harmless(rows);
    lay(rows, &widths(rows), true, &|_, cell| cell.to_owned())
}

/// Returns the rows without anything that steers a terminal.
fn harmless(rows: &[Vec<String>]) -> Cow<'_, [Vec<String>]> {
    let is_harmless = |cell: &String| matches!(visible(cell), Cow::Borrowed(_));
    if rows.iter().flatten().all(is_harmless) {
        return Cow::Borrowed(rows);
    }
    let row = |row: &Vec<String>| row.iter().map(|cell| visible(cell).into_owned()).collect();
    Cow::Owned(rows.iter().map(row).collect())
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |text: &str| text.chars().count();
    (0..columns)
        .map(|i| rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell)).max().unwrap_or(0))
        .collect()
}

/// `paint` may colour a cell, by its column; its additions take no width.
fn lay(
    rows: &[Vec<String>],
    widths: &[usize],
    to_the_end: bool,
    paint: &dyn Fn(usize, &str) -> String,
) -> String {
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            out.push_str(&paint(i, cell));
            if to_the_end || i + 1 < row.len() {
                let width = (widths.get(i).copied().unwrap_or(0) + GAP).max(NARROWEST);
                out.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
            }
        }
        out.push('\n');
    }
    out
}

/// A growing table, as watches print it: a row is never narrower than earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Growing {
    widths: Vec<usize>,
}

impl Growing {
    /// Adds rows; `paint` colours cells by their column.
    pub(crate) fn add(&mut self, rows: &[Vec<String>], paint: &dyn Fn(usize, &str) -> String) -> String {
        let rows = &harmless(rows);
        for row in rows.iter() {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        lay(rows, &self.widths, false, paint)
    }
}

/// One line of text, whatever a cell contains.
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
    use crate::terminal::paint;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_aligned_with_three_spaces() {
        assert_eq!(align(&[row(&["NAME", "AGE"]), row(&["longer", "1s"])]), "NAME     AGE\nlonger   1s\n");
        let mut growing = Growing::default();
        let plain = |_: usize, cell: &str| cell.to_owned();
        assert_eq!(growing.add(&[row(&["abc", "x"])], &plain), "abc   x\n");
        assert_eq!(growing.add(&[row(&["a", "y"])], &plain), "a     y\n");
        let loud = |i: usize, cell: &str| if i == 0 { format!("<{cell}>") } else { cell.to_owned() };
        assert_eq!(
            growing.add(&[row(&["ab", "y"])], &loud),
            "<ab>    y\n",
            "what dresses a cell takes no room"
        );
        assert_eq!(growing.add(&[row(&["abcdef", "y"])], &plain), "abcdef   y\n");
        assert_eq!(align_wide(&[row(&["a", "b"])]), "a     b     \n");
    }

    #[test]
    fn finding_30_a_cell_of_a_member_does_not_steer_the_terminal() {
        let rows = [row(&["NAME", "STATUS"]), row(&["\u{1b}[2Jweb", "x"])];
        let expected = "NAME       STATUS\n^[[2Jweb   x\n";
        assert_eq!(align(&rows), expected);
        assert!(!align_wide(&rows).contains('\u{1b}'));
        let painted =
            Growing::default().add(&rows, &|i, cell| if i == 1 { paint(cell, 0) } else { cell.to_owned() });
        assert!(painted.contains("^[[2Jweb") && painted.contains(&paint("x", 0)), "{painted:?}");
    }

    #[test]
    fn a_cell_is_one_line() {
        assert_eq!(cell(&json!("a\nb")), "a...");
        assert_eq!((cell(&json!(3)), cell(&json!(null))), ("3".to_owned(), String::new()));
    }
}
