//! A child process that cannot outlive us.
//!
//! Each child is started through `setpriv --pdeathsig KILL`, which asks the kernel to kill it when the *thread* that started
//! it ends, and then becomes the program (same pid). So a fleet's children die with the fleet's thread: by a panic, by Ctrl-C, by
//! `kill -9` or at the end of a test binary. It needs no code between fork and exec, hence no `unsafe`.
//! Each child leads a process group of its own: a Ctrl-C at the terminal reaches the owner, who then decides.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{error::Error, toolchain::tail};

/// What to start, and where its output and its pid go.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) cluster: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Holds `<name>.log` and `<name>.pid`.
    pub(crate) folder: PathBuf,
}

impl Launch {
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join(format!("{}.pid", self.name))
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        tail(&String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()), lines)
    }

    /// Starts the program. Its output is appended to the log, so that a restart does not hide what came before.
    pub(crate) fn start(&self) -> Result<Process, Error> {
        let open = || fs::OpenOptions::new().create(true).append(true).open(self.log());
        let out = open().map_err(Error::io("open", self.log()))?;
        let err = open().map_err(Error::io("open", self.log()))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.program)
            .args(&self.args)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => Error::NoSetpriv,
                _ => Error::Io { action: "start", path: self.program.clone(), source },
            })?;
        let process = Process { child, pid_file: self.pid_file() };
        fs::write(&process.pid_file, format!("{}\n", process.id()))
            .map_err(Error::io("write", &process.pid_file))?;
        Ok(process)
    }

    /// Returns the error for a process that ended although it should run.
    pub(crate) fn ended(&self, status: ExitStatus) -> Error {
        Error::Ended {
            process: self.name.clone(),
            cluster: self.cluster.clone(),
            status: status.to_string(),
            tail: self.log_tail(15),
        }
    }
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid_file: PathBuf,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, if it did.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Freezes it: connections stay open, nothing is answered.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it and its group, and waits until it is gone. A frozen process dies as well.
    pub(crate) fn kill(&mut self) {
        if self.exited().is_none() {
            if let Some(pid) = self.pid() {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_file(&self.pid_file);
    }

    fn signal(&self, signal: Signal) {
        // The group: a program inside of namespaces is a child of the one that brought it there.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, signal);
        }
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process and its group that stand still until this is dropped.
pub(crate) struct StandStill(Option<Pid>);

impl StandStill {
    pub(crate) fn of(process: u32) -> Self {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::STOP);
        }
        Self(pid)
    }
}

impl Drop for StandStill {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::CONT);
        }
    }
}

/// Says whether a process with this id exists (a zombie counts as gone).
pub(crate) fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    // The state follows the command's closing bracket; the command itself may contain anything.
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next())
        .is_some_and(|state| state != 'Z' && state != 'X')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path) -> Launch {
        Launch {
            name: "sleeper".to_string(),
            cluster: "test".to_string(),
            program: "/bin/sleep".into(),
            args: vec!["600".to_string()],
            folder: folder.to_path_buf(),
        }
    }

    #[test]
    fn a_dropped_process_is_gone_and_so_is_its_pid_file() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let process = sleeper(folder.path()).start().expect("start");
        let pid = process.id();
        assert!(alive(pid));
        assert!(folder.path().join("sleeper.pid").exists());
        drop(process);
        assert!(!alive(pid));
        assert!(!folder.path().join("sleeper.pid").exists());
    }

    #[test]
    fn a_frozen_process_can_be_killed() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut process = sleeper(folder.path()).start().expect("start");
        process.pause();
        process.kill();
        assert!(!alive(process.id()));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let launch = sleeper(folder.path());
        let mut process = std::thread::spawn(move || {
            let process = launch.start().expect("start");
            // The signal is armed once setpriv has become the program; only then may the thread end.
            let comm = format!("/proc/{}/comm", process.id());
            while fs::read_to_string(&comm).expect("still running").trim() != "sleep" {
                std::thread::yield_now();
            }
            process
        })
        .join()
        .expect("the thread ends well");
        let status = process.child.wait().expect("wait");
        assert!(!status.success(), "it ended by itself: {status}");
    }

    #[test]
    fn a_program_that_is_missing_is_reported_with_its_output() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let launch = Launch { program: "/no/such/program".into(), ..sleeper(folder.path()) };
        let mut process = launch.start().expect("setpriv itself starts");
        let status = process.child.wait().expect("wait");
        let error = launch.ended(status).to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
