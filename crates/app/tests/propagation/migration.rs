//! `karmada migrate` from one control plane of ours to another, with simulated members: they notice nothing. What cannot be moved is
//! refused with a reason. The same with the original Karmada and real members: `cargo xtask compare migrate`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};
use testkit::check::{self, AUDIT_POLICY, CONTROLLERS, Site, check};
use testkit::{Kind, Server, client, condition, eventually, run, until};

use crate::members::{Access, Members, Place};
use crate::plane::KARMADA;

const OFTEN: [&str; 2] = ["--cluster-status-update-frequency", "2s"];
const TEMPLATES: usize = 10;

fn migrate(arguments: &[&str]) -> Output {
    let all = [&["migrate", "-o", "json"], arguments, &OFTEN].concat();
    Command::new(KARMADA).args(all).output().expect("the program runs")
}

/// Returns the report of a migration that succeeds.
fn report(arguments: &[&str]) -> Value {
    let output = migrate(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// Returns why a migration is refused.
fn refusal(arguments: &[&str]) -> String {
    let output = migrate(arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What the control planes have written into members, by the members' audit logs.
fn writes(logs: &[PathBuf]) -> Vec<String> {
    let mut found = Vec::new();
    for log in logs {
        for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
            let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
            let user = entry["user"]["username"].as_str().unwrap_or_default();
            let verb = entry["verb"].as_str().unwrap_or_default();
            if user.starts_with("system:serviceaccount:karmada-cluster:")
                && !["get", "list", "watch"].contains(&verb)
            {
                found.push(format!("{verb} {}", entry["requestURI"]));
            }
        }
    }
    found
}

/// Waits until nothing has been written for a while.
async fn quiet(logs: &[PathBuf]) -> Vec<String> {
    let mut last = (writes(logs), Instant::now());
    while last.1.elapsed() < testkit::slowed(Duration::from_secs(5)) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = writes(logs);
        if now.len() != last.0.len() {
            last = (now, Instant::now());
        }
    }
    last.0
}

async fn until_applied(client: &Client) {
    let kind = Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource);
    eventually("all bindings are carried out", async || {
        let list = all.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let done = |one: &&DynamicObject| condition(Some(one), "FullyApplied") == Some("True");
        let applied = list.items.iter().filter(done).count();
        if applied == TEMPLATES { Ok(()) } else { Err(format!("{applied} of {}", list.items.len())) }
    })
    .await;
}

/// Fails unless a control plane with all controllers and its members keep the laws of every world.
async fn keeps_laws(server: &Server, members: &[Place]) {
    let mut sites = Vec::new();
    for (number, place) in members.iter().enumerate() {
        let logs = place.audit_log.iter().cloned().collect();
        sites.push(Site::member(&format!("m{number}"), client(&place.kubeconfig).await, logs));
    }
    let plane = Site::plane(server.client().await, CONTROLLERS, server.audit_logs());
    check(&check::World { plane, members: sites, controllers: "*".to_owned() }).await;
}

/// The uids of everything that moves.
async fn uids(client: &Client) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for kind in [
        Kind::cluster("", "v1", "Namespace", "namespaces"),
        Kind::namespaced("apps", "v1", "Deployment", "deployments"),
        Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings"),
        Kind::work(),
        Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters"),
    ] {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource);
        for object in all.list(&ListParams::default()).await.expect("a list") {
            found.insert(format!(
                "{} {:?} {:?}",
                kind.resource.kind, object.metadata.name, object.metadata.uid
            ));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_moves_and_its_members_notice_nothing() {
    testkit::install_tls();
    let members = Members::simulated(Access::Shared, 2).await.expect("simulated members");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let at = |name: &str| dir.path().join(name);
    let text = |path: &Path| path.display().to_string();
    let mut source = Server::audited_at(KARMADA, &at("source"), AUDIT_POLICY, &OFTEN);
    let (from, plane) = (text(&source.kubeconfig()), source.client().await);
    let mut logs = Vec::new();
    for (number, place) in members.places().iter().enumerate() {
        let name = format!("m{number}");
        run(
            KARMADA,
            &["join", &name, "--kubeconfig", &from, "--cluster-kubeconfig", &text(&place.kubeconfig)],
        );
        logs.extend(place.audit_log.clone());
    }
    let create = async |kind: &Kind, object: Value| {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        kind.api(plane.clone(), &namespace)
            .create(&PostParams::default(), &object)
            .await
            .expect("it is accepted");
    };
    let policy =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    create(
        &policy,
        json!({ "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
        "metadata": { "name": "all", "namespace": "default" },
        "spec": { "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }],
            "placement": { "clusterAffinity": { "clusterNames": ["m0", "m1"] } } } }),
    )
    .await;
    let deployments = Kind::namespaced("apps", "v1", "Deployment", "deployments");
    for number in 0..TEMPLATES {
        let labels = json!({ "app": format!("web-{number}") });
        create(&deployments, json!({ "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": format!("web-{number}"), "namespace": "default" },
            "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "web", "image": "nginx" }] } } } })).await;
    }
    until_applied(&plane).await;
    quiet(&logs).await;

    // Refusals, each with a reason.
    let target = text(&at("target"));
    let nowhere = at("nowhere.kubeconfig");
    let unreachable = std::fs::read_to_string(&from).expect("a kubeconfig");
    let own = source.address().expect("an address");
    std::fs::write(&nowhere, unreachable.replace(&own, "127.0.0.1:1")).expect("a kubeconfig");
    let told = refusal(&["--from", &text(&nowhere), "--data-dir", &target, "--dry-run"]);
    assert!(told.contains("does not answer"), "{told}");
    let member = text(&members.places()[0].kubeconfig);
    let told = refusal(&["--from", &member, "--data-dir", &target, "--dry-run"]);
    assert!(told.contains("this is not a Karmada: it does not serve policy.karmada.io"), "{told}");
    let told = refusal(&["--from", &from, "--to", &from]);
    assert!(told.contains("lead to the same control plane"), "{told}");
    let told = refusal(&["--from", &from, "--data-dir", &target, "--no-rehearsal"]);
    assert!(told.contains("--no-rehearsal needs --accept-member-writes"), "{told}");
    let told = refusal(&["--from", &from, "--data-dir", &target, "--no-rehearsal", "--accept-member-writes"]);
    assert!(told.contains("karmada-controller-manager of the source still acts"), "{told}");

    // A report, while the source still acts.
    std::fs::remove_dir_all(at("target")).expect("what the refusal left");
    let before = quiet(&logs).await;
    let announced = report(&["--from", &from, "--data-dir", &target, "--dry-run"]);
    assert_eq!(announced["rehearsal"]["members"], json!(["m0", "m1"]));
    assert_eq!(announced["rehearsal"]["writes"], json!([]), "{announced:#}");
    assert!(!at("target").exists(), "a report leaves nothing behind");

    // The switch.
    keeps_laws(&source, &members.places()).await;
    source.end();
    let mut source = Server::at(KARMADA, &at("source"), &["--controllers", ""]);
    let from = text(&source.kubeconfig());
    let moved = uids(&source.client().await).await;
    let copy = ["--from", &from, "--data-dir", &target, "--no-rehearsal", "--accept-member-writes"];
    report(&copy);
    let again = report(&copy);
    assert_eq!(
        (&again["create"], &again["replace"]),
        (&json!(0), &json!(0)),
        "the second time there is nothing to do"
    );
    source.end();
    let mut ours = Server::audited_at(KARMADA, &at("target"), AUDIT_POLICY, &OFTEN);
    let plane = ours.client().await;
    assert_eq!(uids(&plane).await, moved, "objects keep their uids");
    let clusters =
        Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters").api(plane.clone(), "");
    for name in ["m0", "m1"] {
        until(&clusters, name, "it is ready", |found| condition(found, "Ready") == Some("True")).await;
    }
    until_applied(&plane).await;
    assert_eq!(quiet(&logs).await, before, "members were written to");
    keeps_laws(&ours, &members.places()).await;

    // A half copy is not acted upon.
    let maps = Kind::namespaced("", "v1", "ConfigMap", "configmaps").api(plane.clone(), "karmada-system");
    let half = json!({ "data": { "state": "copying" } });
    maps.patch("karmada-migration", &Default::default(), &kube::api::Patch::Merge(half))
        .await
        .expect("a mark");
    ours.end();
    let started = Command::new(KARMADA)
        .args(["server", "--bind", "127.0.0.1:0", "--data-dir", &target])
        .output()
        .expect("the program runs");
    let told = String::from_utf8_lossy(&started.stderr);
    assert!(
        !started.status.success() && told.contains("this control plane is an unfinished copy of"),
        "{told}"
    );
    drop(members);
}
