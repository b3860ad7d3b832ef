//! Members whose pods are real: a Deployment travels there, and what kubectl and our own commands do with pods works through the control
//! plane's cluster proxy.
//!
//! The short test is part of CI. The long one, which also lets an autoscaler act on load and measures, is run by `cargo xtask pods`.

mod dying;
mod pull;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use clusters::toolchain::{KUBERNETES, Toolchain};
use clusters::{Fleet, FleetOptions};
use serde_json::json;
use testkit::process::Speaks;
use testkit::{Kind, Process, eventually, install_tls, until};
use tokio::sync::{Mutex, MutexGuard};

use crate::members::Place;
use crate::plane::ControlPlane;
use crate::world::World;

/// Real pods take much of a machine, so one test at a time.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// Members with real pods and their control plane. What ends last is declared last.
struct Stage {
    world: World,
    fleet: Fleet,
    /// How long it took until every member had run a Deployment.
    seconds: f32,
    _machine: MutexGuard<'static, ()>,
}

impl Stage {
    /// None, after saying so, where there can be no real pods.
    async fn new(members: usize) -> Option<Self> {
        Self::with(members, || ControlPlane::server("*")).await
    }

    /// The same, with this control plane.
    async fn with(members: usize, control: impl FnOnce() -> ControlPlane) -> Option<Self> {
        install_tls();
        if let Some(needs) = clusters::pods_missing_for_tests() {
            clusters::left_out(&needs);
            return None;
        }
        let machine = MACHINE.lock().await;
        let started = Instant::now();
        let fleet = Fleet::start(FleetOptions::pods(members)).await;
        let fleet = fleet.unwrap_or_else(|error| panic!("{}", error.chain()));
        let seconds = started.elapsed().as_secs_f32();
        let place = |cluster: clusters::Cluster| Place {
            kubeconfig: cluster.kubeconfig().to_path_buf(),
            // These members keep none.
            audit_log: None,
        };
        let places: Vec<Place> = fleet.clusters().map(place).collect();
        let world = World::new("pods", control(), &places).await;
        Some(Self { world, fleet, seconds, _machine: machine })
    }

    /// Creates a Deployment in the control plane that goes to every member, and waits until all of it is ready.
    async fn propagate(&self) {
        let kind = Kind::namespaced("apps", "v1", "Deployment", "deployments");
        let namespace = &self.world.namespace;
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "web", "image": "nginx:1.19.0"}]},
            }},
        });
        self.world.create(&kind, deployment).await;
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {
                "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}],
                "placement": {"clusterAffinity": {"clusterNames": self.world.members.iter().map(|m| &m.name).collect::<Vec<_>>()}},
            },
        });
        let policies =
            Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
        self.world.create(&policies, policy).await;
        let wanted = self.world.members.len();
        until(&self.world.in_plane(&kind), "web", "a ready pod in every member", |found| {
            found.is_some_and(|web| web.data["status"]["readyReplicas"] == wanted)
        })
        .await;
    }

    fn kubectl(&self, member: usize, arguments: &[&str]) -> Command {
        let (world, name) = (&self.world, &self.world.members[member].name);
        kubectl(&world.control.kubeconfig, name, &world.namespace, arguments)
    }

    /// Runs it to its end; `Err` is what it complained about.
    fn ask(&self, member: usize, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl(member, arguments).output().expect("kubectl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn ok(&self, member: usize, arguments: &[&str]) -> String {
        self.ask(member, arguments).unwrap_or_else(|said| panic!("kubectl {arguments:?}: {said}"))
    }

    /// Runs a command in the first pod of the Deployment.
    fn inside(&self, member: usize, command: &str) -> Result<String, String> {
        self.ask(member, &["exec", "deployment/web", "--", "sh", "-c", command])
    }

    /// One of our own commands, with flags first, as scripts put them.
    fn ours(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_karmada"));
        command
            .arg(format!("--kubeconfig={}", self.world.control.kubeconfig.display()))
            .arg(format!("--namespace={}", self.world.namespace))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end; `Err` is its status and what it complained about.
    fn ask_ours(&self, arguments: &[&str]) -> Result<String, (Option<i32>, String)> {
        let output = self.ours(arguments).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err((output.status.code(), text(&output.stderr)))
        }
    }

    fn pod(&self, member: usize, field: &str) -> String {
        self.ok(member, &["get", "pods", "--selector=app=web", &format!("-o=jsonpath={{.items[0].{field}}}")])
    }

    /// Ends everything; the next test has the machine to itself.
    async fn end(self) {
        self.world.leave().await;
        self.fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_runs_in_real_pods_and_its_logs_come_through_the_control_plane() {
    let Some(stage) = Stage::new(1).await else { return };
    stage.propagate().await;
    eventually("a line of the log", async || {
        let log = stage.ask(0, &["logs", "deployment/web"])?;
        if log.contains("alive for") { Ok(()) } else { Err(log) }
    })
    .await;
    our_commands(&stage);
    stage.end().await;
}

/// Our logs, exec, attach, cp and port-forward on the pod of the first member.
fn our_commands(stage: &Stage) {
    let (member, name) = (stage.world.members[0].name.as_str(), stage.pod(0, "metadata.name"));
    let inside = ["-s", "members", "-C", member];
    let ok = |arguments: &[&str]| {
        stage.ask_ours(arguments).unwrap_or_else(|said| panic!("{arguments:?}: {said:?}"))
    };

    assert!(ok(&["logs", "deploy/web", "-C", member, "--tail=1"]).contains("alive for"));
    let exec = |command: &[&str]| stage.ask_ours(&[&["exec", &name], &inside[..], &["--"], command].concat());
    assert_eq!(exec(&["echo", "hello"]).as_deref(), Ok("hello\n"));
    let (status, said) =
        exec(&["sh", "-c", "echo no >&2; exit 3"]).expect_err("it tells how the command ended");
    assert!(status == Some(3) && said.contains("no\n"), "{status:?} {said}");
    let (_, said) = exec(&["no-such-program"]).expect_err("there is none");
    assert!(said.contains("no-such-program"), "{said}");

    let folder = tempfile::tempdir().expect("a folder for the test");
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    // More than fits into one frame, and not only text.
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&there, &bytes).expect("write");
    let copy = |from: &str, to: &str| ok(&[&["cp", from, to], &inside[..]].concat());
    copy(&there.display().to_string(), &format!("{name}:/tmp/ours"));
    copy(&format!("{name}:/tmp/ours"), &back.display().to_string());
    assert!(fs::read(&back).expect("it came back") == bytes, "cp changed the bytes");

    let attach = [&["attach", &name], &inside[..]].concat();
    let mut attached = Process::spawn(stage.ours(&attach), Speaks::Stdout);
    attached.line("alive for");
    drop(attached);

    let forward = [&["port-forward", "--address=127.0.0.1", &name, ":80"], &inside[..]].concat();
    let mut forwarding = Process::spawn(stage.ours(&forward), Speaks::Stdout);
    let line = forwarding.line("Forwarding from");
    let local = line.split_whitespace().nth(2).expect("an address").to_owned();
    // Two at once, and one after the other.
    let answers: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| get(&local))).collect();
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    for answer in answers.into_iter().chain([get(&local)]) {
        assert!(answer.contains(&format!("this is {name}")), "{answer}");
    }
}

/// What a web server answers.
fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the forwarded port");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; `cargo xtask pods` runs it"]
async fn what_kubectl_does_with_pods_works_through_the_control_plane() {
    let Some(stage) = Stage::new(2).await else { return };
    println!("two members, each with a Deployment that was available: {:.1} s", stage.seconds);
    for cluster in stage.fleet.clusters() {
        let state = cluster.state().await.expect("its state");
        println!("{}: {} MB in its processes", state.name, memory_mb(&state));
    }
    stage.propagate().await;
    let (name, address) = (stage.pod(0, "metadata.name"), stage.pod(1, "status.podIP"));

    let kubectl = |arguments: &[&str]| stage.kubectl(0, arguments);
    reach_into(&kubectl, &name).await;
    let across = stage.inside(0, &format!("curl -m 10 http://{address}/")).expect("pods reach each other");
    assert!(across.contains(&format!("this is {}", stage.pod(1, "metadata.name"))), "{across}");

    stage.ok(0, &["expose", "deployment", "web", "--port=80"]);
    let service = format!("curl -m 10 http://web.{}.svc.cluster.local/", stage.world.namespace);
    eventually("the Service under its name", async || stage.inside(0, &service)).await;
    eventually("usage of the pod", async || stage.ask(0, &["top", "pod", &name])).await;
    eventually("usage of the node", async || stage.ask(0, &["top", "node"])).await;
    our_commands(&stage);
    let names: Vec<&str> = stage.world.members.iter().map(|member| member.name.as_str()).collect();
    for what in [&["top", "pod", "-l", "app=web"][..], &["top", "pod", "--containers"]] {
        eventually("usage in both members", async || match stage.ask_ours(what) {
            Ok(said) if names.iter().all(|name| said.contains(name)) && said.contains("Mi") => Ok(()),
            other => Err(format!("{what:?}: {other:?}")),
        })
        .await;
    }

    // An autoscaler of the member acts on load that is real. What it scales is not the control plane's.
    stage.ok(0, &["create", "deployment", "busy", "--image=nginx:1.19.0"]);
    stage.ok(0, &["set", "resources", "deployment/busy", "--requests=cpu=50m"]);
    stage.ok(0, &["autoscale", "deployment", "busy", "--cpu=50%", "--min=1", "--max=3"]);
    stage.ok(0, &["rollout", "status", "deployment/busy", "--timeout=120s"]);
    let load = ["exec", "deployment/busy", "--", "sh", "-c", "curl -m 5 'http://127.0.0.1/load?s=120'"];
    let _load = stage.ask(0, &load); // it may answer before the load ends, or not at all
    let started = Instant::now();
    eventually("a second replica", async || {
        let replicas = stage.ask(0, &["get", "deployment", "busy", "-o=jsonpath={.spec.replicas}"])?;
        if replicas == "1" { Err(stage.ask(0, &["describe", "hpa", "busy"])?) } else { Ok(()) }
    })
    .await;
    println!("the autoscaler acted {} s after the load began", started.elapsed().as_secs());
    stage.end().await;
}

/// kubectl, on its way to a member through the control plane.
fn kubectl(kubeconfig: &Path, member: &str, namespace: &str, arguments: &[&str]) -> Command {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let server = file.clusters[0].cluster.as_ref().and_then(|cluster| cluster.server.clone());
    let mut command =
        Command::new(Toolchain::from_env().expect("a cache").path(&KUBERNETES.program("kubectl")));
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!(
            "--server={}/apis/cluster.karmada.io/v1alpha1/clusters/{member}/proxy",
            server.expect("an address").trim_end_matches('/')
        ))
        .arg(format!("--namespace={namespace}"))
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Does with a pod what kubectl can do: logs, exec, cp, attach, port-forward.
async fn reach_into(kubectl: &impl Fn(&[&str]) -> Command, pod: &str) {
    let ask = |arguments: &[&str]| {
        let output = kubectl(arguments).output().expect("kubectl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    eventually("a line of the log", async || {
        let log = ask(&["logs", pod])?;
        if log.contains("alive for") { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(ask(&["exec", pod, "--", "sh", "-c", "echo hello"]).expect("exec"), "hello\n");
    let failed =
        ask(&["exec", pod, "--", "sh", "-c", "exit 3"]).expect_err("exec tells how the command ended");
    assert!(failed.contains("exit code 3"), "{failed}");

    let folder = tempfile::tempdir().expect("a folder for the test");
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    // More than fits into one frame, and not only text.
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&there, &bytes).expect("write");
    ask(&["cp", &there.display().to_string(), &format!("{pod}:/tmp/note")]).expect("cp");
    ask(&["cp", &format!("{pod}:/tmp/note"), &back.display().to_string()]).expect("cp");
    assert!(fs::read(&back).expect("it came back") == bytes, "cp changed the bytes");

    let mut attached = Process::spawn(kubectl(&["attach", pod]), Speaks::Stdout);
    attached.line("alive for");
    drop(attached);

    let forward = ["port-forward", "--address=127.0.0.1", pod, ":80"];
    let mut forwarding = Process::spawn(kubectl(&forward), Speaks::Stdout);
    // Forwarding from 127.0.0.1:40000 -> 80
    let line = forwarding.line("Forwarding from");
    let local = line.split_whitespace().nth(2).expect("an address");
    let mut stream = TcpStream::connect(local).expect("the forwarded port");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains(&format!("this is {pod}")), "{answer}");
}

/// What the processes of a member hold for themselves, in megabytes; pages that they share count in parts.
fn memory_mb(state: &clusters::ClusterState) -> u64 {
    let group = state.components.iter().filter_map(|component| component.pid);
    let kilobytes: u64 = group.flat_map(descendants).map(proportional_kb).sum();
    kilobytes / 1024
}

/// Returns a process and all that it has started.
fn descendants(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(process) = all.get(at).copied() {
        at += 1;
        for task in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    all
}

fn proportional_kb(process: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
