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
