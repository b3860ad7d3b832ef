//! A program that runs until the test ends. The end of its log is shown when the test fails.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use rustix::process::{Pid, Signal, kill_process};

use super::{DEADLINE, client};

/// As much as one wants to read below a failed assertion.
const SHOWN: usize = 60;

/// Returns the binary under test.
pub(crate) fn karmada() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_karmada"))
}

/// Runs a command of the binary to its end, which has to be a good one.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let output = Command::new(karmada()).args(arguments).output().expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A running program.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: Arc<Mutex<VecDeque<String>>>,
    /// The line of the log that said it is ready.
    pub(crate) ready: String,
}

impl Process {
    /// Starts the binary; returns once its log has a line with the words `ready`.
    pub(crate) fn start(arguments: &[&str], ready: &'static str) -> Self {
        Self::of(karmada(), arguments, ready)
    }

    /// Starts a program; returns once its log has a line with the words `ready`.
    pub(crate) fn of(program: &Path, arguments: &[&str], ready: &'static str) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let lines = BufReader::new(child.stderr.take().expect("a piped log")).lines();
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (tell, told) = mpsc::channel();
        let kept = log.clone();
        // Read to the end, so that the program never waits for a reader.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains(ready) {
                    let _ = tell.send(line.clone());
                }
                let mut kept = kept.lock().expect("a log");
                if kept.len() == SHOWN {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        let name = format!("{} {}", program.file_name().unwrap_or_default().display(), arguments[0]);
        let mut process = Self { child, name, log, ready: String::new() };
        match told.recv_timeout(DEADLINE) {
            Ok(line) => process.ready = line,
            Err(_) => panic!("{} is not ready", process.name),
        }
        process
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as Ctrl-C or an operator would, and waits: it has to end well.
    pub(crate) fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{} did not end in order: {status}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log.lock().map(|log| Vec::from(log.clone()).join("\n"));
            eprintln!("the log of {} ends with:\n{}", self.name, log.unwrap_or_default());
        }
    }
}

/// `karmada server` with data of its own on a free port.
pub(crate) struct Server {
    pub(crate) kubeconfig: PathBuf,
    _process: Process,
    _dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(further: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        let place = data.display().to_string();
        let arguments = [&["server", "--bind", "127.0.0.1:0", "--data-dir", &place], further].concat();
        let process = Process::start(&arguments, "ready");
        Self { kubeconfig: data.join("karmada.kubeconfig"), _process: process, _dir: dir }
    }

    pub(crate) async fn client(&self) -> kube::Client {
        client(&self.kubeconfig).await
    }
}
