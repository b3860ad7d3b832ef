//! The two processes, and what the system says they cost.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::support::programs::Running;
use crate::support::{cpu_seconds, megabytes};

/// A debug build of a thousand clusters on a busy machine is slow.
const DEADLINE: Duration = Duration::from_secs(600);

/// A `karmada` that runs until it is dropped.
pub(crate) struct Process(Running);

/// What a process has used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cost {
    pub(crate) cpu_seconds: f64,
    /// At the end, not in between.
    pub(crate) megabytes: String,
}

impl Process {
    /// Starts it and waits until it says that it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_karmada"));
        command.args(["--log", "warn,karmada=info"]).args(arguments).stderr(Stdio::piped());
        let mut process = Self(Running::start(&mut command)?);
        let log = BufReader::new(process.0.take_stderr().context("a piped log")?);
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                // Anything else at this level is worth seeing.
                if line.contains("ready") {
                    let _ = tell.send(());
                } else {
                    eprintln!("    {line}");
                }
            }
        });
        if told.recv_timeout(DEADLINE).is_err() {
            bail!("karmada {} was not ready in time", arguments.join(" "));
        }
        Ok(process)
    }

    /// Returns what it has used up to now.
    pub(crate) fn cost(&self) -> Cost {
        let pid = [self.0.id()];
        Cost { cpu_seconds: cpu_seconds(&pid), megabytes: megabytes(&pid) }
    }
}
