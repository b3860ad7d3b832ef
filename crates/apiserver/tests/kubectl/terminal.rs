//! A server with a data directory, and `kubectl` set up for it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use apiserver::{Handle, Options};
use clusters::toolchain::{KUBERNETES, Toolchain};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Long enough for a busy machine; nothing waits that long when all is well.
const DEADLINE: Duration = Duration::from_secs(180);

/// A place to type commands.
pub(crate) struct Terminal {
    kubectl: PathBuf,
    handle: Handle,
    folder: tempfile::TempDir,
}

/// What a command printed.
#[derive(Debug)]
pub(crate) struct Said {
    command: String,
    pub(crate) out: String,
    err: String,
}

impl Terminal {
    /// Starts a server. Returns `None`, after saying so loudly, where there is no `kubectl`.
    pub(crate) async fn open() -> Option<Self> {
        let toolchain = Toolchain::from_env().expect("a place for the programs");
        let kubectl = toolchain.path(&KUBERNETES.program("kubectl"));
        if !kubectl.is_file() {
            clusters::left_out(&format!("{}, which the tests with real clusters build", kubectl.display()));
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { data_dir: Some(folder.path().join("data")), ..Options::default() };
        let handle = apiserver::start(options).await.expect("the server starts");
        handle.write_kubeconfig("kubeconfig").expect("the kubeconfig is written");
        Some(Self { kubectl, handle, folder })
    }

    pub(crate) fn url(&self) -> &str {
        &self.handle.url
    }

    pub(crate) async fn close(self) {
        self.handle.stop().await;
    }

    /// Runs a command that has to succeed. Words are split at spaces; there is no quoting.
    pub(crate) fn run(&self, command: &str) -> impl Future<Output = Said> {
        self.finish(command, None, true)
    }

    /// Runs a command that has to fail.
    pub(crate) fn fails(&self, command: &str) -> impl Future<Output = Said> {
        self.finish(command, None, false)
    }

    /// Runs a command with a text on its standard input.
    pub(crate) fn with(&self, input: &str, command: &str) -> impl Future<Output = Said> {
        self.finish(command, Some(input), true)
    }

    pub(crate) fn with_failing(&self, input: &str, command: &str) -> impl Future<Output = Said> {
        self.finish(command, Some(input), false)
    }

    /// Starts a command and lets it run.
    pub(crate) fn follow(&self, command: &str) -> Follow {
        let mut child = self.command(command).stdin(Stdio::null()).spawn().expect("kubectl starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Follow { _child: child, lines, command: command.to_owned() }
    }

    fn command(&self, command: &str) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl
            .args(command.split(' '))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("data/kubeconfig"))
            .env("KUBE_EDITOR", "sed -i s/nginx:2.0/nginx:edited/")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        kubectl
    }

    async fn finish(&self, command: &str, input: Option<&str>, succeeds: bool) -> Said {
        let mut child = self.command(command).stdin(Stdio::piped()).spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(input.unwrap_or_default().as_bytes()).await.expect("kubectl takes its input");
        drop(stdin);
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("kubectl {command} does not end"))
            .expect("kubectl ends");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let said = Said { command: command.to_owned(), out: text(output.stdout), err: text(output.stderr) };
        assert_eq!(output.status.success(), succeeds, "{said:#?}");
        said
    }
}

impl Said {
    /// Checks the whole of standard output.
    #[track_caller]
    pub(crate) fn is(self, text: &str) -> Self {
        assert_eq!(self.out, text, "{self:#?}");
        self
    }

    /// Checks the one line of standard output.
    #[track_caller]
    pub(crate) fn says(self, line: &str) -> Self {
        assert_eq!(self.out.trim_end(), line, "{self:#?}");
        self
    }

    /// Checks a part of standard output.
    #[track_caller]
    pub(crate) fn has(self, part: &str) -> Self {
        assert!(self.out.contains(part), "no {part:?} in the output of {}:\n{}", self.command, self.out);
        self
    }

    /// Checks a part of standard error.
    #[track_caller]
    pub(crate) fn complains(self, part: &str) -> Self {
        assert!(self.err.contains(part), "no {part:?} in the errors of {}:\n{}", self.command, self.err);
        self
    }
}

/// A command that runs beside others; it ends with the value.
pub(crate) struct Follow {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    command: String,
}

impl Follow {
    /// Reads until a line comes.
    pub(crate) async fn until(&mut self, wanted: &str) {
        let read = async {
            while let Some(line) = self.lines.next_line().await.expect("the output is text") {
                if line == wanted {
                    return;
                }
            }
            panic!("kubectl {} ended without {wanted:?}", self.command);
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .unwrap_or_else(|_| panic!("kubectl {} did not print {wanted:?}", self.command));
    }
}
