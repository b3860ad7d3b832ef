//! `karmada --licenses`: the licences of this program and of everything in it.
//!
//! `cargo xtask licenses` writes the file; `cargo xtask ci` notices if it is out of date.

use std::io::Write as _;
use std::process::ExitCode;

const OWN: &str = include_str!("../../../NOTICE");
const OTHERS: &str = include_str!("../data/licenses.txt");

pub(crate) fn print() -> ExitCode {
    // A reader that stops early, such as `head`, is not a failure.
    let _ = writeln!(std::io::stdout().lock(), "{OWN}\n{OTHERS}");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_of_what_is_inside_are_told() {
        for words in
            ["Apache License", "hyper ", "Permission is hereby granted", "mimalloc", "zstd-sys ", "ring "]
        {
            assert!(OTHERS.contains(words), "{words}");
        }
        assert!(OWN.contains("Kubernetes") && OWN.contains("Karmada"));
        assert!(OTHERS.len() < 300_000, "{} bytes in every binary", OTHERS.len());
    }
}
