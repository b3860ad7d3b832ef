//! Tests that cannot run where they are: they say so, and a run of all tests counts them.

use std::{fs::OpenOptions, io::Write as _};

/// Names the file in which tests note that they were left out; a run of all tests sets it.
pub const LEFT_OUT_VARIABLE: &str = "KARMADA_RS_LEFT_OUT";

/// Says loudly that the calling test, or the rest of it, is left out since it needs something that is not there.
///
/// To be called on the test's own thread, whose name is the test's.
pub fn left_out(needs: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    eprintln!("********************************************************************************");
    eprintln!("** LEFT OUT: {test}");
    eprintln!("** It needs {needs}.");
    eprintln!("********************************************************************************");
    let Some(file) = std::env::var_os(LEFT_OUT_VARIABLE) else { return };
    // One call, so that lines of other tests do not get in between.
    let line = format!("{test}: needs {needs}\n");
    let noted = OpenOptions::new().create(true).append(true).open(&file);
    if let Err(error) = noted.and_then(|mut file| file.write_all(line.as_bytes())) {
        panic!("cannot note in {} that {test} is left out: {error}", file.display());
    }
}
