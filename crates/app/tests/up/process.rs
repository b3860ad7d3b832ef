//! A running `karmada up`, read line by line, ended with the test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::testkit::DEADLINE;
use crate::testkit::process::karmada;

pub(crate) struct Up {
    child: Child,
    lines: Receiver<String>,
    data: PathBuf,
}

impl Up {
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut child = command(data)
            .args(["--bind", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let out = BufReader::new(child.stdout.take().expect("a piped output"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines, data: data.to_owned() }
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
        let mut said = Vec::new();
        let until = Instant::now() + DEADLINE;
        while !said.last().is_some_and(|line: &String| line.contains(words)) {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => said.push(line),
                Err(why) => panic!("it did not say {words:?} ({why}), but {said:#?}\n{}", self.log()),
            }
        }
        said
    }

    /// Presses Ctrl-C and waits for the end; returns what it still said.
    pub(crate) fn interrupt(mut self) -> Vec<String> {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let mut said = Vec::new();
        let until = Instant::now() + DEADLINE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it did not end: {said:#?}\n{}", self.log()),
            }
        }
        let status = self.child.wait().expect("it has ended");
        assert!(status.success(), "{status}: {said:#?}\n{}", self.log());
        said
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.data.join("karmada.log")).unwrap_or_default()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(data: &Path) -> Command {
    let mut command = Command::new(karmada());
    command.arg("up").arg("--data-dir").arg(data).stdin(Stdio::null());
    command
}
