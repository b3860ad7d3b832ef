//! The output of `karmada up`: steps that remain, and below them a table that is redrawn in place.
//!
//! On a terminal, the table and the text below it are one block that is overwritten. Otherwise every change is a line, and the
//! block is printed once. Colour only repeats what the text says.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use rustix::termios::{Winsize, tcgetwinsize};

use super::picture::{Count, Health, Picture, Row};
use super::sample;

/// The screen and its content.
pub(super) struct Screen {
    terminal: bool,
    colour: bool,
    /// The number of terminal rows that the block takes, from the cursor upwards.
    rows: usize,
    shown: Picture,
}

/// The text below the table.
#[derive(Debug, Clone, Default)]
pub(super) struct Below(pub(super) Vec<String>);

impl Screen {
    pub(super) fn new() -> Self {
        let out = std::io::stdout();
        let terminal = out.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { terminal, colour: terminal && !plain, rows: 0, shown: Picture::default() }
    }

    /// Prints a line that remains.
    pub(super) fn line(&mut self, text: &str) {
        print(&format!("{}{text}\n", self.back()));
        self.rows = 0;
    }

    /// Leaves the block as it is; further output comes below.
    pub(super) fn keep(&mut self) {
        self.rows = 0;
    }

    /// Reports that a step of the start is done.
    pub(super) fn step(&mut self, what: &str, details: &str, after: Duration) {
        let mark = paint(self.colour, GREEN, "ok");
        self.line(&format!("  {mark}  {what:<14} {details}  ({:.1} s)", after.as_secs_f64()));
    }

    /// Shows a picture: in place on a terminal, otherwise what has changed.
    pub(super) fn show(&mut self, picture: &Picture, below: &Below) {
        if self.terminal {
            self.block(picture, below);
        } else {
            for line in changes(&self.shown, picture) {
                print(&format!("{line}\n"));
            }
        }
        self.shown = picture.clone();
    }

    /// Shows a picture and everything below it, also without a terminal.
    pub(super) fn show_all(&mut self, picture: &Picture, below: &Below) {
        self.show(picture, below);
        if !self.terminal {
            let text = block(picture, below, false).join("\n");
            print(&format!("\n{text}\n"));
        }
    }

    fn block(&mut self, picture: &Picture, below: &Below) {
        let size = tcgetwinsize(std::io::stdout()).ok();
        let lines = block(picture, below, self.colour);
        let rows = rows(&lines, size.as_ref());
        let mut text = self.back();
        text.push_str(&lines.join("\n"));
        text.push('\n');
        print(&text);
        // Lines that have scrolled out of the window cannot be overwritten; then the next block is printed below.
        let height = size.map_or(usize::MAX, |size| usize::from(size.ws_row));
        self.rows = if rows < height { rows } else { 0 };
    }

    /// Returns the control sequence that moves the cursor to the block's beginning and clears it.
    fn back(&self) -> String {
        match self.rows {
            0 => String::new(),
            rows => format!("\x1b[{rows}A\r\x1b[J"),
        }
    }
}

fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    // The clusters go on when nobody reads the output any more.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";
const BOLD: &str = "1";

fn paint(colour: bool, code: &str, text: &str) -> String {
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Returns the number of terminal rows that lines take; long ones are wrapped.
fn rows(lines: &[String], size: Option<&Winsize>) -> usize {
    let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0).unwrap_or(usize::MAX);
    lines.iter().map(|line| visible(line).div_ceil(width).max(1)).sum()
}

/// Returns the number of columns of a line: colours take none.
fn visible(line: &str) -> usize {
    let mut inside = false;
    line.chars()
        .filter(|c| {
            let shown = !inside && *c != '\x1b';
            inside = *c == '\x1b' || (inside && *c != 'm');
            shown
        })
        .count()
}

fn block(picture: &Picture, below: &Below, colour: bool) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(table(picture, colour));
    lines.extend(below.0.iter().map(|line| match line.strip_prefix("# ") {
        Some(title) => paint(colour, BOLD, title),
        None => line.clone(),
    }));
    lines
}

fn table(picture: &Picture, colour: bool) -> Vec<String> {
    let with_sample = picture.total.is_some();
    let mut titles = vec!["CLUSTER", "REGION", "STATUS", "NODES"];
    let sample = sample::NAME.to_uppercase();
    if with_sample {
        titles.extend([sample.as_str(), "IMAGE"]);
    }
    let mut cells: Vec<Vec<(String, &str)>> =
        vec![titles.into_iter().map(|title| (title.to_owned(), BOLD)).collect()];
    for row in &picture.rows {
        let (word, code) = health(row.health);
        let mut line = vec![
            (row.cluster.clone(), ""),
            (dash(&row.region), ""),
            (word.to_owned(), code),
            (count(row.nodes), shade(row.nodes)),
        ];
        if with_sample {
            line.extend([(count(row.replicas), shade(row.replicas)), (dash(&row.image), "")]);
        }
        cells.push(line);
    }
    if let Some(total) = picture.total {
        let empty = || (String::new(), "");
        cells.push(vec![
            ("all".to_owned(), ""),
            empty(),
            empty(),
            empty(),
            (total.to_string(), shade(Some(total))),
            ("as the control plane's Deployment says".to_owned(), ""),
        ]);
    }
    let columns = cells.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells.iter().map(|line| line[column].0.chars().count()).max().unwrap_or(0))
        .collect();
    cells
        .iter()
        .map(|line| {
            let padded = line.iter().zip(&widths).map(|((text, code), width)| {
                let padded = format!("{text:<width$}");
                if code.is_empty() { padded } else { paint(colour, code, &padded) }
            });
            format!("  {}", padded.collect::<Vec<_>>().join("   ")).trim_end().to_owned()
        })
        .collect()
}

fn health(health: Health) -> (&'static str, &'static str) {
    match health {
        Health::Joining => ("joining", YELLOW),
        Health::Ready => ("ready", GREEN),
        Health::NotReady => ("not ready", RED),
    }
}

fn shade(count: Option<Count>) -> &'static str {
    match count {
        Some(count) if count.is_full() => GREEN,
        Some(_) => YELLOW,
        None => "",
    }
}

fn count(count: Option<Count>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Returns a line for each change.
fn changes(before: &Picture, now: &Picture) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &now.rows {
        let old = before.rows.iter().find(|old| old.cluster == row.cluster);
        if old != Some(row) {
            lines.push(describe(row));
        }
    }
    for old in &before.rows {
        if !now.rows.iter().any(|row| row.cluster == old.cluster) {
            lines.push(format!("  {}: has left", old.cluster));
        }
    }
    if before.total != now.total {
        match now.total {
            Some(total) => lines.push(format!("  all: {} {total}", sample::NAME)),
            None => lines.push(format!("  all: {} is gone", sample::NAME)),
        }
    }
    lines
}

fn describe(row: &Row) -> String {
    let mut words = vec![health(row.health).0.to_owned()];
    words.extend(row.nodes.map(|nodes| format!("nodes {nodes}")));
    words.extend(row.replicas.map(|replicas| format!("{} {replicas}", sample::NAME)));
    if row.replicas.is_some() && !row.image.is_empty() {
        words.push(format!("image {}", row.image));
    }
    format!("  {}: {}", row.cluster, words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cluster: &str, ready: i64) -> Row {
        Row {
            cluster: cluster.to_owned(),
            region: "eu".to_owned(),
            health: Health::Ready,
            nodes: Some(Count { ready: 3, wanted: 3 }),
            replicas: Some(Count { ready, wanted: 2 }),
            image: "nginx".to_owned(),
        }
    }

    fn picture(rows: Vec<Row>) -> Picture {
        let ready = rows.iter().filter_map(|row| row.replicas).map(|count| count.ready).sum();
        Picture { rows, total: Some(Count { ready, wanted: 4 }) }
    }

    #[test]
    fn the_table_has_a_line_per_cluster_and_one_for_all() {
        let text = table(&picture(vec![row("m1", 2), row("member2", 1)]), false).join("\n");
        assert_eq!(
            text,
            "  CLUSTER   REGION   STATUS   NODES   HELLO   IMAGE\n  \
               m1        eu       ready    3/3     2/2     nginx\n  \
               member2   eu       ready    3/3     1/2     nginx\n  \
               all                                 3/4     as the control plane's Deployment says"
        );
    }

    #[test]
    fn without_the_sample_the_table_tells_of_clusters_alone() {
        let text = table(&Picture { rows: vec![row("m1", 2)], total: None }, false).join("\n");
        assert_eq!(text, "  CLUSTER   REGION   STATUS   NODES\n  m1        eu       ready    3/3");
    }

    #[test]
    fn without_a_terminal_a_change_is_a_line() {
        let before = picture(vec![row("m1", 2), row("m2", 1)]);
        let now = picture(vec![row("m1", 2), row("m2", 2)]);
        assert_eq!(
            changes(&before, &now),
            ["  m2: ready, nodes 3/3, hello 2/2, image nginx", "  all: hello 4/4"]
        );
        assert!(changes(&now, &now).is_empty());
        assert_eq!(changes(&now, &picture(vec![row("m1", 2)]))[0], "  m2: has left");
    }

    #[test]
    fn a_wrapped_line_takes_several_rows_and_colours_take_none() {
        let size = Winsize { ws_row: 24, ws_col: 10, ws_xpixel: 0, ws_ypixel: 0 };
        let lines = [String::new(), paint(true, GREEN, "0123456789"), "0123456789a".to_owned()];
        assert_eq!(rows(&lines, Some(&size)), 1 + 1 + 2);
        assert_eq!(rows(&lines, None), 3);
    }
}
