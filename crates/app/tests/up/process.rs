//! A running `karmada up`, read line by line, ended with the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::Process;
use testkit::process::{Signal, Speaks};

pub(crate) struct Up {
    process: Option<Process>,
    data: PathBuf,
}

impl Up {
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut command = command(data);
        command.args(["--bind", "127.0.0.1:0"]).args(arguments);
        Self { process: Some(Process::spawn(command, Speaks::Stdout)), data: data.to_owned() }
    }

    /// Runs one that cannot start; returns its exit code and what it complains about.
    pub(crate) fn fail(data: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        let output = command(data).args(arguments).output().expect("the binary runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data
    }

    /// Returns everything it said up to a line with these words.
    pub(crate) fn until_it_says(&mut self, words: &str) -> Vec<String> {
        self.process.as_mut().expect("it runs").says(words)
    }

    /// Presses Ctrl-C and waits for the end; returns what it still said.
    pub(crate) fn interrupt(mut self) -> Vec<String> {
        self.process.take().expect("it runs").end(Signal::INT)
    }
}

/// What it shows is not all it knows.
impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.data.join("karmada.log")).unwrap_or_default());
        }
    }
}

fn command(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_karmada"));
    command.arg("up").arg("--data-dir").arg(data).stdin(Stdio::null());
    command
}
