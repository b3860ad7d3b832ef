//! Of several `karmada controllers` on one control plane one acts, and the next takes over when it dies, ends or is
//! robbed of its Lease.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::plane::ControlPlane;
use crate::testkit::follow::until;
use crate::testkit::{DEADLINE, client, install_tls};
use crate::world::Kind;

/// One of the processes, read line by line.
struct Candidate {
    child: Child,
    lines: Receiver<String>,
}

impl Candidate {
    fn start(kubeconfig: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_karmada"))
            .args(["controllers", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s"])
            .args(["--leader-elect-retry-period=500ms", "--metrics-bind-address=127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let log = BufReader::new(child.stderr.take().expect("a piped log"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Returns the next line with these words.
    fn says(&self, words: &str) -> String {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => said.push(line),
                Err(why) => panic!("it does not say {words:?} ({why}), but {said:#?}"),
            }
        }
    }

    /// Returns whether it has not said these words so far.
    fn is_silent_about(&self, words: &str) -> bool {
        !self.lines.try_iter().any(|line| line.contains(words))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("a process of ours")
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the value of `name=` in a line of a log.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.split_whitespace().next().unwrap_or("").trim_matches('"')
}

/// Waits until the metrics have all of these lines: they follow what happens, in their own time, and no line of the log
/// speaks for them.
async fn until_metrics(address: &str, wanted: &[&str]) {
    let began = std::time::Instant::now();
    loop {
        let figures = metrics(address);
        let missing: Vec<_> = wanted.iter().filter(|line| !figures.contains(**line)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(began.elapsed() < DEADLINE, "{missing:?} are missing in\n{figures}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn metrics(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// Sends a template on its way; when it has a binding, the controllers act.
async fn is_bound(plane: &kube::Client, name: &str) {
    let (maps, policies, bindings) = (
        Kind::namespaced("", "v1", "ConfigMap", "configmaps"),
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies"),
        Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings"),
    );
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name}], "placement": {}}});
    for (kind, object) in [(&maps, map), (&policies, policy)] {
        let object = serde_json::from_value(object).expect("an object");
        kind.api(plane.clone(), "default").create(&Default::default(), &object).await.expect("created");
    }
    let api = bindings.api(plane.clone(), "default");
    until(&api, &format!("{name}-configmap"), "the controllers act", |found| found.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_acts_and_the_next_takes_over() {
    install_tls();
    let control = ControlPlane::server("");
    let plane = client(&control.kubeconfig).await;
    let leases: Api<Lease> = Api::namespaced(plane.clone(), "karmada-system");
    let lease = "karmada-controller-manager";
    let holder = |found: Option<&Lease>| found.and_then(|found| found.spec.as_ref()?.holder_identity.clone());

    let mut first = Candidate::start(&control.kubeconfig);
    let address = field(&first.says("answers without credentials"), "address").to_owned();
    let identity = field(&first.says("waiting for the lease"), "identity").to_owned();
    first.says("controllers run");
    assert_eq!(holder(Some(&leases.get(lease).await.expect("a lease"))), Some(identity));
    is_bound(&plane, "by-the-first").await;
    let wanted = [
        r#"leader_election_master_status{name="karmada-controller-manager"} 1"#,
        r#"policy_apply_attempts_total{result="success"}"#,
        "workqueue_queue_duration_seconds_sum",
        r#"controller_runtime_reconcile_total{controller="resource detector",result="success"}"#,
    ];
    until_metrics(&address, &wanted).await;

    // The second waits as long as the first lives.
    let mut second = Candidate::start(&control.kubeconfig);
    let waiting = field(&second.says("answers without credentials"), "address").to_owned();
    let identity = field(&second.says("waiting for the lease"), "identity").to_owned();
    until_metrics(&waiting, &[r#"leader_election_master_status{name="karmada-controller-manager"} 0"#]).await;
    is_bound(&plane, "still-by-the-first").await;
    assert!(second.is_silent_about("controllers run"));
    first.signal(Signal::KILL);
    first.end();
    second.says("controllers run");
    let taken = leases.get(lease).await.expect("a lease");
    assert_eq!(holder(Some(&taken)), Some(identity));
    assert_eq!(taken.spec.and_then(|spec| spec.lease_transitions), Some(1));
    is_bound(&plane, "by-the-second").await;

    // Robbed of the lease, it ends by itself and says why.
    let robbed = json!({"spec": {"holderIdentity": "somebody", "renewTime": "2026-01-01T00:00:00.000000Z"}});
    leases.patch(lease, &PatchParams::default(), &Patch::Merge(robbed)).await.expect("robbed");
    second.says("the lease is held by somebody else");
    second.says("leader election lost");
    assert!(!second.end().success());

    // One that ends in peace gives it back, so that the next need not wait.
    let mut third = Candidate::start(&control.kubeconfig);
    third.says("controllers run");
    third.signal(Signal::TERM);
    assert!(third.end().success());
    let free = leases.get(lease).await.expect("a lease");
    assert_eq!(holder(Some(&free)).as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controllers_of_a_server_hold_the_lease_and_a_restart_takes_it_at_once() {
    install_tls();
    let mut control = ControlPlane::server("*");
    let plane = client(&control.kubeconfig).await;
    let leases: Api<Lease> = Api::namespaced(plane.clone(), "karmada-system");
    let holder = |found: Option<&Lease>| found.and_then(|found| found.spec.as_ref()?.holder_identity.clone());
    let lease = "karmada-controller-manager";
    let held =
        |found: Option<&Lease>| holder(found).is_some_and(|holder| holder.starts_with("karmada-server_"));
    until(&leases, lease, "the server holds the lease", held).await;
    is_bound(&plane, "by-the-server").await;

    // A second process waits as long as the server acts.
    let second = Candidate::start(&control.kubeconfig);
    second.says("waiting for the lease");
    is_bound(&plane, "still-by-the-server").await;
    assert!(second.is_silent_about("controllers run"));
    drop(second);

    // After a crash the same server goes on at once, by its own old lease, and nobody has taken over.
    let before = leases.get(lease).await.expect("a lease").spec.expect("a spec");
    control.kill();
    control.start();
    let plane = client(&control.kubeconfig).await;
    is_bound(&plane, "by-the-server-again").await;
    let after = Api::<Lease>::namespaced(plane, "karmada-system").get(lease).await.expect("a lease");
    let after = after.spec.expect("a spec");
    assert_eq!(
        (after.holder_identity, after.lease_transitions),
        (before.holder_identity, before.lease_transitions)
    );
}

#[test]
fn a_controller_that_does_not_exist_is_refused_in_one_sentence() {
    for command in ["server", "controllers"] {
        let output = Command::new(env!("CARGO_BIN_EXE_karmada"))
            .args([command, "--controllers", "*,-nonsense"])
            .stdin(Stdio::null())
            .output()
            .expect("the binary starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(
            text.contains(r#""nonsense" is not a controller; known are cluster, clusterStatus, binding"#),
            "{text}"
        );
    }
}
