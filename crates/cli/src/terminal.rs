//! The user's terminal: raw while a remote program uses it, and its size as it changes.

use std::borrow::Cow;
use std::io::{IsTerminal, Read};
use std::sync::OnceLock;

use anyhow::Context;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The terminal in raw mode: every key goes to the other side. Dropping it restores the previous mode.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("cannot set the terminal's mode")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Columns and rows.
pub(crate) type Size = (u16, u16);

fn size() -> Option<Size> {
    let size = tcgetwinsize(std::io::stdout()).or_else(|_| tcgetwinsize(std::io::stdin())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Returns the size now and after every change.
pub(crate) fn sizes() -> anyhow::Result<mpsc::Receiver<Size>> {
    let mut changes = signal(SignalKind::window_change()).context("cannot follow the terminal's size")?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        loop {
            if let Some(size) = size()
                && sender.send(size).await.is_err()
            {
                return;
            }
            if changes.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Returns typed or piped input; it ends with the input.
///
/// A separate thread reads: the program may end while no input arrives.
pub(crate) fn input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(count) = stdin.read(&mut buffer) {
            if count == 0 || sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

pub(crate) fn is_typed() -> bool {
    std::io::stdin().is_terminal()
}

/// Whether output may be coloured: on a terminal, unless `NO_COLOR` says otherwise.
pub(crate) fn coloured() -> bool {
    static COLOURED: OnceLock<bool> = OnceLock::new();
    *COLOURED.get_or_init(|| {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        std::io::stdout().is_terminal() && !refused && !dumb
    })
}

/// Returns a text in which what would steer the terminal can be seen: objects and messages come from members and their tenants, whose
/// escape sequences could hide or forge what an administrator reads (CVE-2021-25743). Lines and columns stay; escape and carriage return
/// look as in kubectl.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{1b}' => out.push_str("^["),
            '\r' => out.push_str("\\r"),
            other if steers(other) => out.extend(other.escape_default()),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// Bright and readable on dark and light ground, in an order in which neighbours differ.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// Returns the text in the colour of the `index`-th cluster.
pub(crate) fn paint(text: &str, index: usize) -> String {
    if coloured() { colour(text, index) } else { text.to_owned() }
}

fn colour(text: &str, index: usize) -> String {
    format!("\u{1b}[{}m{text}\u{1b}[0m", COLOURS[index % COLOURS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_and_not_obeyed() {
        for (text, shown) in [
            ("as it is: ü\t\n", "as it is: ü\t\n"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "^[[2J^[]0;title\\u{7}"),
            ("fine\rFINE", "fine\\rFINE"),
            ("\u{9b}31m\u{8}\u{7f}", "\\u{9b}31m\\u{8}\\u{7f}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn neighbours_have_different_colours() {
        assert_eq!(colour("a", 0), "\u{1b}[36ma\u{1b}[0m");
        assert_ne!(colour("a", 1), colour("a", 2));
        assert_eq!(colour("a", 0), colour("a", COLOURS.len()));
    }
}
