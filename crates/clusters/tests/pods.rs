//! Members with real pods: containers run, log, answer and reach each other; and whatever way their owner ends, the machine is as before.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use clusters::{
    FleetState,
    toolchain::{KUBERNETES, Toolchain},
    until,
};
use tokio::sync::{Mutex, MutexGuard};

const DEADLINE: Duration = Duration::from_secs(240);

/// The tests look at the whole machine, so one at a time.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// Returns the machine for one test, or None, after saying so loudly, where there can be no real pods.
async fn machine() -> Option<MutexGuard<'static, ()>> {
    if let Some(needs) = clusters::pods_missing_for_tests() {
        clusters::left_out(&needs);
        return None;
    }
    Some(MACHINE.lock().await)
}

/// What a fleet could leave on the machine.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    links: BTreeSet<String>,
    routes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    settings: Vec<(String, String)>,
    /// Those of all processes: a process that is left has one of its own.
    networks: BTreeSet<PathBuf>,
}

impl Traces {
    fn of_the_machine() -> Self {
        let names = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
        };
        let lines = |path: &str, column: usize| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines().filter_map(|line| line.split_whitespace().nth(column).map(String::from)).collect()
        };
        let mut cgroups = BTreeSet::new();
        for hierarchy in names("/sys/fs/cgroup").into_iter().chain([".".to_string()]) {
            let groups = names(&format!("/sys/fs/cgroup/{hierarchy}"));
            let ours = groups.into_iter().filter(|name| name.starts_with("karmada-rs-"));
            cgroups.extend(ours.map(|name| format!("{hierarchy}/{name}")));
        }
        let settings = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"]
            .into_iter()
            .chain(["kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward"])
            .chain(["net/netfilter/nf_conntrack_max"])
            .map(|name| {
                (name.to_string(), fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default())
            })
            .collect();
        let processes = names("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
        let networks = processes.filter_map(|id| fs::read_link(format!("/proc/{id}/ns/net")).ok()).collect();
        let links = names("/sys/class/net");
        Self {
            links,
            routes: lines("/proc/net/route", 1),
            mounts: lines("/proc/self/mounts", 1),
            cgroups,
            settings,
            networks,
        }
    }

    /// Returns what is there now and was not before.
    fn added_since(&self, before: &Self) -> Vec<String> {
        let mut added: Vec<String> = Vec::new();
        for (now, then) in [
            (&self.links, &before.links),
            (&self.routes, &before.routes),
            (&self.mounts, &before.mounts),
            (&self.cgroups, &before.cgroups),
        ] {
            added.extend(now.difference(then).cloned());
        }
        added.extend(self.networks.difference(&before.networks).map(|path| path.display().to_string()));
        let changed = self.settings.iter().filter(|setting| !before.settings.contains(setting));
        added.extend(changed.map(|(name, value)| format!("{name} = {value}")));
        added
    }
}

fn run(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect("the program runs")
}

fn clusters(verb: &str, dir: &Path, arguments: &[&str]) -> String {
    let mut all = vec![verb, "--dir", dir.to_str().expect("a path of ASCII")];
    all.extend_from_slice(arguments);
    let output = run(env!("CARGO_BIN_EXE_karmada-clusters"), &all);
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs kubectl against a member; `Err` is what it said.
fn kubectl(dir: &Path, member: &str, arguments: &[&str]) -> Result<String, String> {
    let program = Toolchain::from_env().expect("a cache").path(&KUBERNETES.program("kubectl"));
    let config = format!("--kubeconfig={}", dir.join(format!("{member}.kubeconfig")).display());
    let mut all = vec![config.as_str(), "--request-timeout=30s"];
    all.extend_from_slice(arguments);
    let output = run(program, &all);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn start_kubectl(dir: &Path, member: &str, arguments: &[&str]) -> Child {
    let program = Toolchain::from_env().expect("a cache").path(&KUBERNETES.program("kubectl"));
    Command::new(program)
        .arg(format!("--kubeconfig={}", dir.join(format!("{member}.kubeconfig")).display()))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("kubectl runs")
}

fn read_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it speaks");
    line
}

/// Returns the first line of a kubectl that does not end by itself, and ends it.
fn first_line(dir: &Path, member: &str, arguments: &[&str]) -> String {
    let mut child = start_kubectl(dir, member, arguments);
    let line = read_line(&mut child);
    let _ = (child.kill(), child.wait());
    line
}

/// Asks a pod's web server through a forwarded port.
fn forward(dir: &Path, member: &str, pod: &str) -> String {
    let mut child = start_kubectl(dir, member, &["port-forward", "--address=127.0.0.1", pod, ":80"]);
    // Forwarding from 127.0.0.1:40000 -> 80
    let line = read_line(&mut child);
    let address = line.split_whitespace().nth(2).unwrap_or_default();
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{line}: {error}"));
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let _ = (child.kill(), child.wait());
    answer
}

fn state(dir: &Path) -> FleetState {
    let text = fs::read(dir.join("state.json")).expect("the state is written when the clusters are ready");
    serde_json::from_slice(&text).expect("the state is understood")
}

/// Ends the clusters of a test that failed. A test that passed has done it already.
struct Place {
    parent: tempfile::TempDir,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let parent = tempfile::tempdir().expect("a folder for the test");
        let dir = parent.path().join("fleet");
        Self { parent, dir }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.dir.exists() {
            let _ = run(
                env!("CARGO_BIN_EXE_karmada-clusters"),
                &["down", "--dir", &self.dir.display().to_string()],
            );
        }
    }
}

/// Starts an nginx in `member`, waits until it is available, and returns its pod's name and address.
fn web(dir: &Path, member: &str) -> (String, String) {
    kubectl(dir, member, &["create", "deployment", "web", "--image=nginx:1.19.0", "--port=80"])
        .expect("create");
    let wait = ["rollout", "status", "deployment/web", "--timeout=240s", "--request-timeout=0"];
    kubectl(dir, member, &wait).expect("it becomes available");
    let of_the_pod = |path: &str| {
        let output = format!("-o=jsonpath={{.items[0].{path}}}");
        kubectl(dir, member, &["get", "pods", "--selector=app=web", &output]).expect("get")
    };
    (of_the_pod("metadata.name"), of_the_pod("status.podIP"))
}

#[tokio::test]
async fn real_pods_run_log_and_reach_each_other_and_down_leaves_nothing() {
    let Some(_machine) = machine().await else { return };
    let before = Traces::of_the_machine();
    let place = Place::new();
    let dir = &place.dir;
    clusters("up", dir, &["--pods", "--members", "2"]);

    let (first, _) = web(dir, "member1");
    let (second, address) = web(dir, "member2");
    until("a line in the log", DEADLINE, async || {
        let log = kubectl(dir, "member1", &["logs", &first])?;
        if log.contains("alive for") { Ok(()) } else { Err(log) }
    })
    .await
    .expect("it logs");
    let inside = |command: &str| kubectl(dir, "member1", &["exec", &first, "--", "sh", "-c", command]);
    let answer =
        inside(&format!("curl -m 10 http://{address}/")).expect("pods of two members reach each other");
    assert!(answer.contains(&format!("this is {second}")), "{answer}");
    let note = place.parent.path().join("note");
    fs::write(&note, "carried").expect("write");
    kubectl(dir, "member1", &["cp", &note.display().to_string(), &format!("{first}:/tmp/note")]).expect("cp");
    assert_eq!(inside("cat /tmp/note").expect("cat"), "carried");
    let attached = first_line(dir, "member1", &["attach", &first]);
    assert!(attached.contains("alive for"), "{attached}");
    let forwarded = forward(dir, "member1", &first);
    assert!(forwarded.contains(&format!("this is {first}")), "{forwarded}");
    kubectl(dir, "member1", &["expose", "deployment", "web", "--port=80"]).expect("expose");
    until("the Service under its name", DEADLINE, async || inside("curl -m 10 http://web.default/"))
        .await
        .expect("Services and names work");
    until("metrics", DEADLINE, async || kubectl(dir, "member1", &["top", "pod", &first]))
        .await
        .expect("the metrics server works");

    // Trouble: a pod whose process is killed is started again, and a member that is cut off is cut off for its pods too.
    clusters("trouble", dir, &["member1", "stop-pod", "--pod", &format!("default/{first}")]);
    until("a restart", DEADLINE, async || {
        let path = "-o=jsonpath={.status.containerStatuses[0].restartCount}";
        let count = kubectl(dir, "member1", &["get", "pod", &first, path])?;
        if count == "1" { Ok(()) } else { Err(count) }
    })
    .await
    .expect("the kubelet starts it again");
    clusters("trouble", dir, &["member2", "cut-off"]);
    until("silence", DEADLINE, async || match inside(&format!("curl -m 2 http://{address}/")) {
        Ok(answer) => Err(answer),
        Err(said) if said.contains("Client.Timeout") || said.contains("no route") => Ok(()),
        Err(said) => Err(said),
    })
    .await
    .expect("nothing passes");
    clusters("trouble", dir, &["member2", "heal"]);
    until("an answer", DEADLINE, async || inside(&format!("curl -m 10 http://{address}/")))
        .await
        .expect("healed");
    clusters("trouble", dir, &["member2", "slow", "--delay-ms", "300"]);
    let asked = Instant::now();
    inside(&format!("curl -m 60 http://{address}/")).expect("slow, but not cut off");
    // Two ways for the connection, and two for the question and its answer.
    assert!(asked.elapsed() >= Duration::from_millis(1200), "only {:?}", asked.elapsed());
    clusters("trouble", dir, &["member2", "heal"]);
    until("an answer", DEADLINE, async || inside(&format!("curl -m 10 http://{address}/")))
        .await
        .expect("healed again");

    clusters("down", dir, &[]);
    assert!(!dir.exists());
    gone(&before).await;
}

#[tokio::test]
async fn the_death_of_the_owner_and_down_leave_nothing_of_real_pods() {
    let Some(_machine) = machine().await else { return };
    let before = Traces::of_the_machine();
    let place = Place::new();
    let dir = &place.dir;
    clusters("up", dir, &["--pods", "--members", "1"]);
    web(dir, "member1");
    assert_ne!(
        Traces::of_the_machine().added_since(&before),
        Vec::<String>::new(),
        "there is something to leave"
    );

    assert!(run("kill", &["-KILL", &state(dir).owner.to_string()]).status.success());
    clusters("down", dir, &[]);
    assert!(!dir.exists());
    gone(&before).await;
}

/// Waits until the machine is as it was: the kernel takes a moment to remove a network that nobody uses any more.
async fn gone(before: &Traces) {
    until("the end of every trace", DEADLINE, async || match Traces::of_the_machine().added_since(before) {
        added if added.is_empty() => Ok(()),
        added => Err(format!("{added:?}")),
    })
    .await
    .expect("nothing is left");
}
