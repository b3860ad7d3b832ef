//! `init`, `addons` and `deinit` against a real cluster as the host: everything is applied, waited for, changed and removed.
//!
//! The host runs no containers, so the last step of `init`, which asks the control plane for its kubeconfig, has nobody to ask: it says so.

use std::path::Path;
use std::process::{Command, Stdio};

use kube::api::{Api, DynamicObject, ListParams};
use testkit::{Kind, client, install_tls, until, until_gone};

const NAMESPACE: &str = "karmada-host";

/// Runs a command of the CLI on the host; returns whether it is content, and what it said on either channel.
fn run(kubeconfig: &Path, line: &str, typed: &str) -> (bool, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_karmada"))
        .args(line.split_whitespace())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--namespace", NAMESPACE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), typed.as_bytes()).expect("typed");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn ok(kubeconfig: &Path, line: &str, typed: &str) -> String {
    let (good, out, error) = run(kubeconfig, line, typed);
    assert!(good, "{line}:\n{out}{error}");
    out
}

fn arguments(set: &DynamicObject) -> Vec<&str> {
    let args = set.data["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    args.into_iter().flatten().filter_map(|argument| argument.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_is_installed_changed_and_removed() {
    install_tls();
    let Some(members) = clusters::shared(1).await else { return };
    let kubeconfig = members[0].kubeconfig().to_path_buf();
    let host = client(&kubeconfig).await;
    let sets: Api<DynamicObject> =
        Kind::namespaced("apps", "v1", "StatefulSet", "statefulsets").api(host.clone(), NAMESPACE);
    let folder = tempfile::tempdir().expect("a folder for the test");
    let init = format!(
        "init --karmada-apiserver-advertise-address=192.0.2.7 --port=32451 --etcd-storage-mode=emptyDir --karmada-data={}",
        folder.path().display()
    );

    let (good, out, error) = run(&kubeconfig, &init, "");
    for line in [
        "namespace/karmada-host applied",
        "serviceaccount/karmada-apiserver applied",
        "statefulset.apps/karmada-apiserver applied",
    ] {
        assert!(out.contains(line), "{out}{error}");
    }
    assert!(
        !good && error.contains("the control plane runs, but its kubeconfig could not be read"),
        "{out}{error}"
    );
    let set = until(&sets, "karmada-apiserver", "its pod", |set| {
        set.is_some_and(|set| set.data["status"]["readyReplicas"] == 1)
    })
    .await
    .expect("it was wanted to exist");
    assert!(arguments(&set).contains(&"--cert-extra-sans=192.0.2.7"), "{set:?}");
    let (good, _, error) = run(&kubeconfig, &init.replace("--namespace", "-n").replace("32451", "80"), "");
    assert!(!good && error.contains("not a port of nodes"), "{error}");

    // The descheduler, which is a part of the control plane.
    let missing = "--karmada-kubeconfig=/nowhere";
    let listed = ok(&kubeconfig, &format!("addons list {missing}"), "");
    assert!(listed.contains("| karmada-descheduler         | disabled |"), "{listed}");
    ok(&kubeconfig, "addons enable karmada-descheduler", "");
    let set = sets.get("karmada-apiserver").await.expect("still there");
    assert!(arguments(&set).contains(&"--controllers=*,descheduler"), "{set:?}");
    assert!(ok(&kubeconfig, "addons enable karmada-descheduler", "").contains("already enabled"));
    let listed = ok(&kubeconfig, &format!("addons list {missing}"), "");
    assert!(listed.contains("| karmada-descheduler         | enabled  |"), "{listed}");
    assert_eq!(
        ok(&kubeconfig, "addons disable karmada-descheduler", "n\n"),
        "Please type (y)es or (n)o and then press enter:"
    );
    ok(&kubeconfig, "addons disable karmada-descheduler --force", "");
    let set = sets.get("karmada-apiserver").await.expect("still there");
    assert!(!arguments(&set).iter().any(|argument| argument.starts_with("--controllers")), "{set:?}");

    // What is removed, and what a rehearsal leaves.
    let services: Api<DynamicObject> =
        Kind::namespaced("", "v1", "Service", "services").api(host.clone(), NAMESPACE);
    let rehearsed = ok(&kubeconfig, "deinit --dry-run --force", "");
    assert!(rehearsed.contains("delete StatefulSet \"karmada-apiserver\""), "{rehearsed}");
    assert_eq!(services.list(&ListParams::default()).await.expect("a list").items.len(), 2);
    ok(&kubeconfig, "deinit", "no\n");
    assert_eq!(services.list(&ListParams::default()).await.expect("a list").items.len(), 2);
    ok(&kubeconfig, "deinit --purge-namespace", "maybe\ny\n");
    until_gone(&sets, "karmada-apiserver", "the end of the control plane").await;
    until_gone(
        &Kind::cluster("", "v1", "Namespace", "namespaces").api(host, NAMESPACE),
        NAMESPACE,
        "the end of its namespace",
    )
    .await;
    let (good, _, error) = run(&kubeconfig, "addons enable karmada-descheduler", "");
    assert!(!good && error.contains("there is no control plane in namespace karmada-host"), "{error}");
}
