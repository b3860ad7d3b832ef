//! Programs that run until the test ends, and `karmada server` among them. When a test fails, the end of each log is shown.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::net::TcpSocket;

use crate::DEADLINE;
use crate::check::AUDIT_POLICY;

/// As much as one wants to read below a failed assertion.
const SHOWN: usize = 60;
/// Enough to find any line that a test waits for; a chatty program must not fill the memory.
const KEPT: usize = 10_000;

/// Runs a program to its end, which has to be a good one.
pub fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    let output = Command::new(program.as_ref()).args(arguments).output().expect("the program runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Which of its outputs a program speaks on. The other one goes where that of the test goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Stdout,
    Stderr,
}

/// A running program. Killed when dropped.
pub struct Process {
    child: Child,
    name: String,
    log: Arc<Log>,
    /// How many lines have been taken notice of.
    heard: usize,
    /// The line that said it is ready; empty where no such line was waited for.
    pub ready: String,
}

#[derive(Default)]
struct Log {
    state: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    /// How many lines came before those that are kept.
    dropped: usize,
    ended: bool,
}

impl Process {
    /// Starts a program; returns once its log (standard error) has a line with the words `ready`.
    pub fn start(program: impl AsRef<Path>, arguments: &[&str], ready: &str) -> Self {
        let mut command = Command::new(program.as_ref());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Self::spawn(command, Speaks::Stderr);
        process.ready = process.line(ready);
        process
    }

    /// Starts a program as the command says, and reads what it says.
    pub fn spawn(mut command: Command, speaks: Speaks) -> Self {
        match speaks {
            Speaks::Stdout => command.stdout(Stdio::piped()),
            Speaks::Stderr => command.stderr(Stdio::piped()),
        };
        let program = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        let first = command.get_args().next().unwrap_or_default().display().to_string();
        let name = format!("{program} {first}");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let output: Box<dyn Read + Send> = match speaks {
            Speaks::Stdout => Box::new(child.stdout.take().expect("a piped output")),
            Speaks::Stderr => Box::new(child.stderr.take().expect("a piped log")),
        };
        let log = Arc::new(Log::default());
        let writer = Arc::clone(&log);
        // Read to the end, so that the program never waits for a reader.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                writer.push(line);
            }
            writer.lines().ended = true;
            writer.changed.notify_all();
        });
        Self { child, name, log, heard: 0, ready: String::new() }
    }

    /// Waits for the next line with these words, and returns everything that was said up to it.
    pub fn says(&mut self, words: &str) -> Vec<String> {
        let until = Instant::now() + DEADLINE;
        let mut said = Vec::new();
        let mut lines = self.log.lines();
        loop {
            while let Some(line) = lines.get(self.heard) {
                self.heard += 1;
                said.push(line.to_owned());
                if line.contains(words) {
                    return said;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            let why = match (lines.ended, left.is_zero()) {
                (true, _) => "and has ended",
                (_, true) => "in time",
                _ => {
                    lines = self.log.changed.wait_timeout(lines, left).expect("a log").0;
                    continue;
                }
            };
            drop(lines);
            panic!("{} did not say {words:?} {why}, but {said:#?}", self.name);
        }
    }

    /// Waits for the next line with these words, and returns it.
    pub fn line(&mut self, words: &str) -> String {
        self.says(words).pop().expect("the line with the words")
    }

    /// Whether it has said these words since it was last listened to.
    pub fn has_said(&mut self, words: &str) -> bool {
        let lines = self.log.lines();
        let mut said = false;
        while let Some(line) = lines.get(self.heard) {
            self.heard += 1;
            said |= line.contains(words);
        }
        said
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its standard input, if the command had piped it.
    pub fn stdin(&mut self) -> Option<&mut ChildStdin> {
        self.child.stdin.as_mut()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap_or_else(|e| panic!("{}: {e}", self.name));
    }

    /// Whether it has ended, by itself or not.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended by itself, and has been read to the end.
    pub fn ended(&mut self) -> ExitStatus {
        let (lines, waited) = self
            .log
            .changed
            .wait_timeout_while(self.log.lines(), DEADLINE, |lines| !lines.ended)
            .expect("a log");
        drop(lines);
        assert!(!waited.timed_out(), "{} did not end", self.name);
        self.child.wait().expect("it has ended")
    }

    /// Ends it as Ctrl-C or an operator would, and waits: it has to end well. Returns what it still said.
    pub fn end(mut self, signal: Signal) -> Vec<String> {
        self.signal(signal);
        let status = self.ended();
        assert!(status.success(), "{} did not end in order: {status}", self.name);
        let lines = self.log.lines();
        (self.heard..).map_while(|number| lines.get(number).map(str::to_owned)).collect()
    }
}

impl Log {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.state.lock().expect("a log")
    }

    fn push(&self, line: String) {
        let mut lines = self.lines();
        if lines.kept.len() == KEPT {
            lines.kept.pop_front();
            lines.dropped += 1;
        }
        lines.kept.push_back(line);
        self.changed.notify_all();
    }
}

impl Lines {
    /// Returns a line by its number; of lines that are not kept any more, the first one that is.
    fn get(&self, number: usize) -> Option<&str> {
        self.kept.get(number.saturating_sub(self.dropped)).map(String::as_str)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Ok(lines) = self.log.state.lock()
        {
            let end = lines.kept.iter().skip(lines.kept.len().saturating_sub(SHOWN));
            let end: Vec<&str> = end.map(String::as_str).collect();
            eprintln!("the log of {} ends with:\n{}", self.name, end.join("\n"));
        }
    }
}

/// `karmada server` with its data, which outlives the process. It serves on a free port, and on the same one after a
/// restart, so that clients find it again.
pub struct Server {
    program: PathBuf,
    data: PathBuf,
    arguments: Vec<String>,
    process: Option<Process>,
    /// Where audit logs go, one per start, if they are wanted.
    audit: Option<PathBuf>,
    starts: usize,
    /// Holds the address from the first end on, so that no other program is given its port until the next start.
    place: Option<TcpSocket>,
    /// Holds the data, unless the test has a place for them.
    _dir: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts the binary with data of its own.
    pub fn start(program: impl AsRef<Path>, further: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let data = dir.path().join("data");
        Self::run(program.as_ref(), data, None, further, Some(dir))
    }

    /// As [`Server::start`], with an audit log of every write, for [`crate::check::check`].
    pub fn audited(program: impl AsRef<Path>, further: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        let (data, logs) = (dir.path().join("data"), dir.path().join("audit"));
        prepare(&logs, AUDIT_POLICY);
        Self::run(program.as_ref(), data, Some(logs), further, Some(dir))
    }

    /// Starts the binary with data that the test keeps.
    pub fn at(program: impl AsRef<Path>, data: &Path, further: &[&str]) -> Self {
        Self::run(program.as_ref(), data.to_owned(), None, further, None)
    }

    /// As [`Server::at`], with audit logs beside the data, which tell what the policy says.
    pub fn audited_at(program: impl AsRef<Path>, data: &Path, policy: &str, further: &[&str]) -> Self {
        let logs = data.with_extension("audit");
        prepare(&logs, policy);
        Self::run(program.as_ref(), data.to_owned(), Some(logs), further, None)
    }

    fn run(
        program: &Path,
        data: PathBuf,
        audit: Option<PathBuf>,
        further: &[&str],
        dir: Option<tempfile::TempDir>,
    ) -> Self {
        let arguments = further.iter().map(|&argument| argument.to_owned()).collect();
        let program = program.to_owned();
        // Data that the test keeps may have had another server, with logs of its own.
        let logged = |folder: &PathBuf| (1..).take_while(|number| log_of(folder, *number).exists()).count();
        let starts = audit.as_ref().map_or(0, logged);
        let mut server =
            Self { program, data, arguments, process: None, audit, starts, place: None, _dir: dir };
        server.restart();
        server
    }

    /// Starts the process again with the same data, after [`Server::kill`] or [`Server::end`].
    pub fn restart(&mut self) {
        self.launch();
        let process = self.process.as_mut().expect("it was just started");
        process.ready = process.line("ready");
    }

    /// As [`Server::restart`], without waiting until it is ready, which it may not become: see [`Server::is_running`].
    pub fn launch(&mut self) {
        let data = self.data.display().to_string();
        self.keep_place();
        let place = self.address().unwrap_or_else(|| "127.0.0.1:0".to_owned());
        let mut arguments: Vec<String> =
            ["server", "--bind", &place, "--data-dir", &data].map(str::to_owned).to_vec();
        self.starts += 1;
        if let Some(folder) = &self.audit {
            let policy = folder.join("policy.json").display().to_string();
            let log = log_of(folder, self.starts).display().to_string();
            // All of a run is in one file, however large: whoever judges it reads one.
            let whole = ["--audit-log-maxsize", "0"].map(str::to_owned);
            arguments.extend(["--audit-policy-file".to_owned(), policy, "--audit-log-path".to_owned(), log]);
            arguments.extend(whole);
        }
        arguments.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        self.process = Some(Process::spawn(command, Speaks::Stderr));
    }

    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.has_ended())
    }

    /// How many times it has been started, with the same audit logs.
    pub fn starts(&self) -> usize {
        self.starts
    }

    /// Ends the process as a crash would.
    pub fn kill(&mut self) {
        self.process = None;
        self.keep_place();
    }

    /// Ends the process in order.
    pub fn end(&mut self) {
        self.process.take().expect("a running server").end(Signal::TERM);
        self.keep_place();
    }

    /// Keeps the port until the next start.
    fn keep_place(&mut self) {
        let Some(address) = self.address().and_then(|address| address.parse::<SocketAddr>().ok()) else {
            return;
        };
        if self.place.is_none() {
            self.place = keep_address(address);
        }
    }

    /// Returns the running process.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("a running server")
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data.join("karmada.kubeconfig")
    }

    pub async fn client(&self) -> kube::Client {
        crate::client(&self.kubeconfig()).await
    }

    /// Returns the audit logs of all its starts.
    pub fn audit_logs(&self) -> Vec<PathBuf> {
        let Some(folder) = &self.audit else { return Vec::new() };
        (1..=self.starts).map(|number| log_of(folder, number)).collect()
    }

    /// Returns host and port, once it has been started.
    pub fn address(&self) -> Option<String> {
        let file = kube::config::Kubeconfig::read_from(self.kubeconfig()).ok()?;
        let server = file.clusters.first()?.cluster.as_ref()?.server.clone()?;
        Some(server.trim_start_matches("https://").to_owned())
    }
}

/// Keeps an address whose server has ended from being given to another program, for as long as the result lives. A socket that
/// does not listen is in nobody's way: clients are refused, and the next server may listen there. As long as somebody listens, there is
/// nothing to keep.
pub fn keep_address(address: SocketAddr) -> Option<TcpSocket> {
    let keep = || -> std::io::Result<TcpSocket> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    keep().ok()
}

/// Makes a place for audit logs, with their policy.
fn prepare(logs: &Path, policy: &str) {
    std::fs::create_dir_all(logs).expect("a folder for the logs");
    std::fs::write(logs.join("policy.json"), policy).expect("a policy");
}

fn log_of(folder: &Path, start: usize) -> PathBuf {
    folder.join(format!("{start}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn(command, Speaks::Stdout)
    }

    #[test]
    fn what_is_said_is_heard_in_order() {
        let mut process = shell("echo one; echo two; echo three; echo four");
        assert_eq!(process.says("two"), ["one", "two"]);
        assert_eq!(process.line("three"), "three");
        assert!(process.ended().success());
        assert!(process.has_said("four") && !process.has_said("four"));
    }

    #[test]
    #[should_panic(expected = "did not say \"ready\" and has ended, but [\n    \"cannot start\"")]
    fn a_program_that_ends_too_early_is_not_waited_for() {
        shell("echo cannot start; exit 1").says("ready");
    }

    #[test]
    #[should_panic(expected = "did not end in order")]
    fn a_bad_end_is_noticed() {
        let mut process = shell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done");
        process.says("ready");
        process.end(Signal::TERM);
    }
}
