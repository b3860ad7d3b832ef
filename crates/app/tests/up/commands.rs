//! The CLI under the name `karmadactl`, on a running control plane with simulated members.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Up;

/// The program and the kubeconfig that it is told to use.
struct Terminal {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Terminal {
    fn new(folder: &Path, kubeconfig: PathBuf) -> Self {
        let program = folder.join("karmadactl");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_karmada"), &program).expect("a link");
        Self { program, kubeconfig }
    }

    /// Runs a command; returns its status and what it said on either channel. Flags come first, as scripts put them.
    fn run(&self, line: &str) -> (Option<i32>, String, String) {
        let output = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(line.split_whitespace())
            .output()
            .expect("karmadactl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn ok(&self, line: &str) -> String {
        let (status, out, error) = self.run(line);
        assert_eq!(status, Some(0), "{line}:\n{out}{error}");
        out
    }

    fn refused(&self, line: &str) -> String {
        let (status, out, error) = self.run(line);
        assert_eq!(status, Some(1), "{line}:\n{out}{error}");
        error
    }
}

/// An editor that is typed into: at a pseudo-terminal, a word is read and put where another one is.
fn edited(terminal: &Terminal) {
    let line = format!(
        "KUBE_EDITOR='read word; f() {{ sed -i \"s/note: hi/note: $word/\" \"$1\"; }}; f' {} --kubeconfig {} edit cm motd",
        terminal.program.display(),
        terminal.kubeconfig.display()
    );
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("script, of util-linux, runs");
    std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), b"typed\n").expect("typed");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("configmap/motd edited"), "{said}");
    assert_eq!(terminal.ok("get cm motd -o jsonpath={.metadata.annotations.note}"), "typed");
    // An editor that changes nothing ends it quietly.
    let quiet = Command::new(&terminal.program)
        .arg("--kubeconfig")
        .arg(&terminal.kubeconfig)
        .args(["edit", "cm", "motd"])
        .env("KUBE_EDITOR", "true")
        .output()
        .expect("it runs");
    assert!(quiet.status.success());
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "Edit cancelled, no changes made.\n");
}

/// The commands beyond upstream's: several clusters at once, by name, glob and label.
fn reached(terminal: &Terminal) {
    let eu = terminal.ok("get deploy -s members -C topology.kubernetes.io/region=eu-west --no-headers");
    assert!(eu.lines().count() == 1 && eu.contains("member1"), "{eu}");
    assert!(terminal.refused("top pod -C membre1").contains("did you mean member1?"));
    assert!(terminal.refused("describe deploy -s members -C member*").contains("this command takes one"));
    let ready = terminal.ok("wait deploy/hello --for=condition=Available -C member1,member2 --timeout=60s");
    assert_eq!(ready.lines().count(), 2, "{ready}");
    assert!(ready.contains("member1: deployment.apps/hello condition met\n"), "{ready}");
    assert!(
        terminal
            .refused("wait deploy/hello --for=condition=Nothing --timeout=0s")
            .contains("timed out waiting")
    );
    let done = terminal.ok("rollout status deploy/hello -C member*");
    assert_eq!(done.matches("deployment \"hello\" successfully rolled out").count(), 3, "{done}");
    assert_eq!(terminal.ok("scale deploy/hello --replicas=7"), "deployment.apps/hello scaled\n");
    assert_eq!(terminal.ok("get deploy hello -o jsonpath={.spec.replicas}"), "7");
    let wrong = terminal.refused("scale deploy/hello --replicas=9 --current-replicas=1");
    assert!(wrong.contains("Expected replicas to be 1, was 7"), "{wrong}");
    assert!(terminal.ok("top pod").lines().count() > 1 && terminal.ok("top node").contains("member3"));
    let folder = terminal.kubeconfig.parent().expect("a folder");
    let file = folder.join("diff.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: motd}\ndata: {a: changed}\n")
        .expect("a file");
    let (status, out, _) = terminal.run(&format!("diff -f {}", file.display()));
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("-  a: one\n") && out.contains("+  a: changed\n"), "{out}");
    assert_eq!(terminal.ok("get cm motd -o jsonpath={.data.a}"), "one", "nothing changed");
    assert!(terminal.ok("explain pp.spec.placement").contains("clusterAffinity"));
}

const MANIFEST: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: motd}\ndata: {a: one, b: two}\n";

#[test]
fn the_commands_of_the_cli_work_on_a_running_control_plane() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let mut up = Up::start(&folder.path().join("data"), &[]);
    up.until_it_says("Try, in another terminal");
    let terminal = Terminal::new(folder.path(), up.data_dir().join("karmada.kubeconfig"));

    // Scopes, formats, and what is not there.
    let karmada = terminal.ok("get deploy hello");
    assert!(karmada.starts_with("NAME    CLUSTER   READY"), "{karmada}");
    assert!(karmada.contains("Karmada") && !karmada.contains("member"), "{karmada}");
    let all = terminal.ok("get deploy -s all");
    assert!(["Karmada", "member1", "member2", "member3"].iter().all(|name| all.contains(name)), "{all}");
    let members = terminal.ok("get deploy -s members -C member1,*3 --no-headers").lines().count();
    assert_eq!(members, 2, "a name and a glob");
    assert_eq!(terminal.ok("get deploy hello -o jsonpath={.metadata.name}"), "hello");
    assert_eq!(terminal.ok("get deploy -o name -s members -C member?"), "deployment.apps/hello\n".repeat(3));
    assert_eq!(terminal.refused("get pods x"), "error: cluster(Karmada): pods \"x\" not found\n");
    assert!(terminal.refused("get pods x -n nowhere").contains("namespaces \"nowhere\" not found"));
    assert!(terminal.refused("get nothing").contains("the server doesn't have a resource type \"nothing\""));
    assert!(terminal.refused("get pods -s members -C membre1").contains("did you mean member1?"));

    // Objects come, change and go.
    let file = folder.path().join("motd.yaml");
    std::fs::write(&file, MANIFEST).expect("a manifest");
    let apply = format!("apply -f {}", file.display());
    let said = terminal.ok(&format!("{apply} -C member1"));
    assert!(said.starts_with("configmap/motd created\npropagationpolicy.policy.karmada.io/motd-"), "{said}");
    std::fs::write(&file, MANIFEST.replace(", b: two", "")).expect("a manifest");
    assert!(terminal.ok(&apply).starts_with("configmap/motd configured"));
    assert_eq!(
        terminal.ok("get cm motd -o jsonpath={.data}"),
        "{\"a\":\"one\"}",
        "what was applied before is removed"
    );
    assert_eq!(terminal.ok("label cm motd tier=web"), "configmap/motd labeled\n");
    assert!(terminal.refused("label cm motd tier=db").contains("--overwrite is false"));
    assert_eq!(terminal.ok("annotate cm motd note=hi"), "configmap/motd annotated\n");
    assert_eq!(
        terminal.ok("patch cm motd --type=merge -p {\"data\":{\"c\":\"z\"}}"),
        "configmap/motd patched\n"
    );
    assert_eq!(terminal.ok("get cm -l tier=web -o jsonpath={.items[*].data.c}"), "z");
    assert!(terminal.ok("describe cm motd").starts_with("Name:         motd\n"));
    edited(&terminal);
    reached(&terminal);
    assert_eq!(terminal.ok("delete cm motd"), "configmap \"motd\" deleted from default namespace\n");
    assert!(terminal.refused("delete cm motd").contains("configmaps \"motd\" not found"));

    // Clusters are closed and opened.
    assert_eq!(terminal.ok("cordon member1"), "member1 cluster cordoned\n");
    assert_eq!(terminal.ok("cordon member1"), "member1 cluster already cordoned\n");
    assert_eq!(terminal.ok("uncordon member1"), "member1 cluster uncordoned\n");
    assert_eq!(terminal.ok("taint clusters member2 a=b:NoSchedule"), "cluster/member2 tainted\n");
    assert!(terminal.refused("taint clusters member2 a=c:NoSchedule").contains("already has a taint(s)"));
    assert_eq!(terminal.ok("taint clusters member2 a-"), "cluster/member2 untainted\n");
    assert!(
        terminal
            .refused("taint clusters x a=b:NoSchedule")
            .contains("clusters.cluster.karmada.io \"x\" not found")
    );

    // Tokens.
    let token = terminal.ok("token create").trim().to_owned();
    assert!(terminal.ok("token list").contains(&token));
    let id = token.split('.').next().unwrap_or("");
    assert_eq!(terminal.ok(&format!("token delete {id}")), format!("bootstrap token \"{id}\" deleted\n"));

    // What is served, and the program itself.
    assert!(terminal.ok("api-versions").lines().any(|line| line == "policy.karmada.io/v1alpha1"));
    assert!(terminal.ok("api-resources -s members --cluster member1").contains("deployments"));
    assert!(terminal.ok("version").starts_with("karmadactl version: version.Info{GitVersion:\"v"));
    assert!(terminal.ok("options").starts_with("The following options can be passed to any command"));
    assert!(terminal.ok("").contains("Cluster Management Commands:\n  cordon"));
    assert!(terminal.refused("token list --invalidflag").starts_with("error: unknown flag: --invalidflag\n"));
    assert!(terminal.refused("gte").contains("Did you mean this?\n\tget"));
    up.interrupt();
}

/// Manifests that were written for Karmada's agent call `/bin/karmada-agent` with flags alone.
#[test]
fn under_the_name_of_karmadas_agent_it_is_the_agent() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let program = folder.path().join("karmada-agent");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_karmada"), &program).expect("a link");
    let ended = Command::new(&program)
        .args(["--karmada-kubeconfig=nowhere", "--cluster-name=edge", "--cluster-zones=", "--v=4"])
        .args(["--controllers=*", "--cluster-status-update-frequency=10s", "--metrics-bind-address=:0"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && said.contains("nowhere"), "{said}");
}
