//! Text with tabs, formatted in columns like Go's `text/tabwriter`, which kubectl uses for all descriptions.
//!
//! A cell ends with a tab. Adjacent lines with a cell in the same column share the column's width; a line without one ends the
//! column. The text after the last tab of a line is not padded.

use crate::terminal::visible;

/// Between two columns.
const GAP: usize = 2;

/// Formats text.
pub(crate) fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> = vec![Vec::new(); lines.len()];
    measure(&lines, &mut widths, 0, lines.len(), 0);
    let mut out = String::new();
    for (line, widths) in lines.iter().zip(&widths) {
        for (i, cell) in line.iter().enumerate() {
            out.push_str(cell);
            if let Some(width) = widths.get(i) {
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
            }
        }
        out.push('\n');
    }
    out
}

/// Finds the width of a column in every run of lines that have it, and then of the columns inside the run.
fn measure(lines: &[Vec<&str>], widths: &mut [Vec<usize>], from: usize, to: usize, column: usize) {
    let has = |line: &Vec<&str>| column + 1 < line.len();
    let mut at = from;
    while at < to {
        if !has(&lines[at]) {
            at += 1;
            continue;
        }
        let end = (at..to).find(|i| !has(&lines[*i])).unwrap_or(to);
        let widest = lines[at..end].iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        for width in &mut widths[at..end] {
            width.push(widest + GAP);
        }
        measure(lines, widths, at, end, column + 1);
        at = end;
    }
}

/// Lines with tabs, each with its indentation.
#[derive(Debug, Default)]
pub(crate) struct Text(String);

impl Text {
    /// Adds a line, indented by two spaces for each level.
    pub(crate) fn line(&mut self, level: usize, text: impl AsRef<str>) {
        self.0.extend(std::iter::repeat_n("  ", level));
        self.0.push_str(&visible(text.as_ref()));
        self.0.push('\n');
    }

    /// Adds a name and its value.
    pub(crate) fn pair(&mut self, level: usize, name: &str, value: impl std::fmt::Display) {
        self.line(level, format!("{name}:\t{value}"));
    }

    pub(crate) fn finish(self) -> String {
        align(&self.0)
    }

    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_30_an_event_of_a_member_does_not_steer_the_terminal() {
        let mut text = Text::default();
        text.line(1, "Warning\tBackOff\t5s\tkubelet\t\u{1b}[1A\u{1b}[2Kall is well\r");
        text.pair(0, "Name", "\u{1b}[31mweb");
        assert_eq!(
            text.finish(),
            "  Warning  BackOff  5s  kubelet  ^[[1A^[[2Kall is well\\r\nName:      ^[[31mweb\n"
        );
    }

    #[test]
    fn columns_are_as_wide_as_their_run_of_lines() {
        assert_eq!(align("Name:\tx\nNamespace:\ty\n"), "Name:       x\nNamespace:  y\n");
        // A line without a tab ends the column.
        assert_eq!(align("A:\t1\nTitle:\nLonger:\t2\n"), "A:  1\nTitle:\nLonger:  2\n");
        // Inner columns belong to their runs.
        assert_eq!(align("a\tb\tc\nlonger\tbb\nx\ty\tz\n"), "a       b  c\nlonger  bb\nx       y  z\n");
        assert_eq!(align("\tb\nabc\tb\n"), "     b\nabc  b\n");
    }
}
