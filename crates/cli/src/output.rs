//! The two output channels of a command. If the reader goes away (`| head`), the command ends quietly.

use std::io::Write;

use crate::terminal::visible;

/// Writes to stdout.
pub(crate) fn print(text: &str) {
    bytes(text.as_bytes());
}

/// Writes bytes to stdout, unchanged.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Writes a line to stdout.
pub(crate) fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Writes a line to stderr. What servers say in it steers no terminal.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", visible(text));
}

/// Writes bytes to stderr, unchanged.
pub(crate) fn warn_bytes(bytes: &[u8]) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}
