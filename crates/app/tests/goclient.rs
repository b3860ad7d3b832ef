//! Programs as people write them in Go, on our server: a program with current client-go and controller-runtime (its source is
//! in `goclient/`) runs typed, dynamic and metadata informers, plain watches, a leader election and a reconciler through heavy churn,
//! while this test kills the server, ends it in order and starts it again, with a compaction every second. The program knows
//! every write that was acknowledged, and says what was missed, doubled, invented or out of order. The same program follows the objects of
//! several members through the control plane's door to the fleet.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clusters::toolchain::{Toolchain, go_present};
use testkit::Server;

/// Generous: the machine may be busy with everything else, and the first build takes minutes.
const DEADLINE: Duration = Duration::from_secs(600);
const ROUNDS: usize = 4;
/// By each of nine writers, in each round.
const WRITES: usize = 150;

/// In which a member, the control plane, the other member and nothing is restarted.
const FLEET_ROUNDS: usize = 4;

/// How the server ends in a round.
#[derive(Debug, Clone, Copy)]
enum End {
    Killed,
    InOrder,
}

/// The Go program at work.
struct Program {
    child: Child,
    orders: ChildStdin,
    told: Receiver<String>,
    errors: Receiver<String>,
}

impl Program {
    fn start(path: &Path, kubeconfig: &Path) -> Self {
        let rounds = [ROUNDS.to_string(), WRITES.to_string()];
        Self::with(path, &[kubeconfig.as_os_str(), rounds[0].as_ref(), rounds[1].as_ref()])
    }

    fn with(path: &Path, arguments: &[&OsStr]) -> Self {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        Self {
            orders: child.stdin.take().expect("a piped stdin"),
            told: lines(child.stdout.take().expect("a piped stdout")),
            errors: lines(child.stderr.take().expect("a piped stderr")),
            child,
        }
    }

    /// Waits until the program says this.
    fn says(&mut self, wanted: &str) {
        loop {
            match self.told.recv_timeout(DEADLINE) {
                Ok(line) if line == wanted => return,
                Ok(line) => println!("{line}"),
                Err(_) => self.fail(wanted),
            }
        }
    }

    fn fail(&mut self, wanted: &str) -> ! {
        let _ = self.child.kill();
        let said: Vec<String> = self.errors.iter().collect();
        panic!("the program did not say {wanted:?}:\n{}", said.join("\n"));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Read on when nobody listens any more, so that the writer is never stuck.
            let _ = to.send(line);
        }
    });
    lines
}

#[test]
fn go_clients_miss_and_repeat_nothing_through_churn_restarts_and_compactions() {
    if !go_present() {
        clusters::left_out("a Go toolchain to build the client with");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goclient");
    let program =
        Toolchain::from_env().and_then(|t| t.build_own("goclient", &source)).expect("the client compiles");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let data = dir.path().join("data");
    let further = ["--compaction-interval", "1", "--controllers", ""];
    let mut server = Server::at(env!("CARGO_BIN_EXE_karmada"), &data, &further);
    let mut program = Program::start(&program, &data.join("karmada.kubeconfig"));
    for round in 0..ROUNDS {
        program.says(&format!("churning {round}"));
        // In the middle of the writing, as far as one can tell from outside; the last round has no restart.
        if round + 1 < ROUNDS {
            for end in [End::Killed, End::InOrder] {
                std::thread::sleep(Duration::from_millis(150 * (round as u64 + 1)));
                match end {
                    End::Killed => server.kill(),
                    End::InOrder => server.end(),
                }
                server.restart();
            }
        }
        program.says(&format!("churned {round}"));
        writeln!(program.orders, "go on").expect("the program listens");
        program.says(&format!("settled {round}"));
    }
    program.says("all promises held");
    assert!(program.child.wait().expect("a process of ours").success());
}

#[test]
fn informers_on_the_fleet_miss_and_repeat_nothing_while_members_and_server_are_restarted() {
    if !go_present() {
        clusters::left_out("a Go toolchain to build the client with");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goclient");
    let program =
        Toolchain::from_env().and_then(|t| t.build_own("goclient", &source)).expect("the client compiles");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let karmada = env!("CARGO_BIN_EXE_karmada");
    let start = |name: &str| Server::at(karmada, &dir.path().join(name), &["--controllers", ""]);
    let (mut plane, mut one, mut two) = (start("plane"), start("m1"), start("m2"));
    let config = |name: &str| dir.path().join(name).join("karmada.kubeconfig");
    let (control, members) = (config("plane"), [config("m1"), config("m2")]);
    for (name, member) in ["m1", "m2"].iter().zip(&members) {
        let (control, member) = (control.to_string_lossy(), member.to_string_lossy());
        testkit::run(karmada, &["join", name, "--kubeconfig", &control, "--cluster-kubeconfig", &member]);
    }
    let registry = dir.path().join("registry.yaml");
    std::fs::write(
        &registry,
        "apiVersion: search.karmada.io/v1alpha1\nkind: ResourceRegistry\nmetadata: {name: maps}\n\
         spec: {targetCluster: {}, resourceSelectors: [{apiVersion: v1, kind: ConfigMap}]}\n",
    )
    .expect("a file");
    testkit::run(
        karmada,
        &["apply", "--kubeconfig", &control.to_string_lossy(), "-f", &registry.to_string_lossy()],
    );
    let rounds = FLEET_ROUNDS.to_string();
    let arguments = [
        "fleet".as_ref(),
        control.as_os_str(),
        rounds.as_ref(),
        "200".as_ref(),
        members[0].as_os_str(),
        members[1].as_os_str(),
    ];
    let mut program = Program::with(&program, &arguments);
    for round in 0..FLEET_ROUNDS {
        program.says(&format!("churning {round}"));
        let restarted = match round {
            0 => Some(&mut one),
            1 => Some(&mut plane),
            2 => Some(&mut two),
            _ => None,
        };
        if let Some(server) = restarted {
            std::thread::sleep(Duration::from_millis(200));
            server.kill();
            server.restart();
            std::thread::sleep(Duration::from_millis(200));
            server.end();
            server.restart();
        }
        program.says(&format!("churned {round}"));
        writeln!(program.orders, "go on").expect("the program listens");
        program.says(&format!("settled {round}"));
    }
    program.says("all promises held");
    assert!(program.child.wait().expect("a process of ours").success());
}
