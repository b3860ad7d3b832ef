//! Fleets end completely: by `down`, by being dropped, and by the death of their owner.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use clusters::{
    ClusterOptions, Fleet, FleetOptions, FleetState,
    toolchain::{MEMBER_RECIPES, Toolchain},
    until,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(180);

/// Says, loudly, that a test is left out where clusters cannot be had.
fn possible() -> bool {
    let possible = Toolchain::from_env().expect("a cache").can_provide(&MEMBER_RECIPES);
    if !possible {
        clusters::left_out("real clusters, and there is no Go toolchain to build them with");
    }
    possible
}

fn pids(state: &FleetState) -> Vec<u32> {
    let components = state.clusters.iter().flat_map(|cluster| &cluster.components);
    components.filter_map(|component| component.pid).chain([state.etcd_pid]).collect()
}

fn alive(pids: &[u32]) -> Vec<u32> {
    let running = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    pids.iter().copied().filter(running).collect()
}

fn command(verb: &str, dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_karmada-clusters"))
        .arg(verb)
        .arg("--dir")
        .arg(dir)
        .args(arguments)
        .output()
        .expect("the program runs")
}

fn succeed(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn state(dir: &Path) -> FleetState {
    let text =
        std::fs::read(dir.join("state.json")).expect("the state is written when the clusters are ready");
    serde_json::from_slice(&text).expect("the state is understood")
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a folder for the test");
    let dir = parent.path().join("fleet");
    (parent, dir)
}

#[test]
fn down_leaves_no_process_and_no_folder() {
    if !possible() {
        return;
    }
    let (_parent, dir) = place();
    succeed(&command("up", &dir, &["--members", "1", "--nodes", "1"]));
    let state = state(&dir);
    let mut everyone = pids(&state);
    everyone.push(state.owner);
    assert_eq!(alive(&everyone), everyone, "they outlive the command that started them");
    let shown = command("status", &dir, &[]);
    succeed(&shown);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("member1.kubeconfig"));

    succeed(&command("down", &dir, &[]));
    assert_eq!(alive(&everyone), Vec::<u32>::new());
    assert!(!dir.exists());
}

#[tokio::test]
async fn the_death_of_the_owner_ends_every_process() {
    if !possible() {
        return;
    }
    let (_parent, dir) = place();
    succeed(&command("up", &dir, &["--members", "0", "--api-server"]));
    let state = state(&dir);
    let everyone = pids(&state);
    Command::new("kill").args(["-KILL", &state.owner.to_string()]).status().expect("kill runs");
    until("the end of all processes", DEADLINE, async || match alive(&everyone)[..] {
        [] => Ok(()),
        ref left => Err(format!("{left:?}")),
    })
    .await
    .expect("nothing survives");

    // Nobody is left to clean up, so `down` does it, and `up` may use the folder again.
    assert!(dir.exists());
    succeed(&command("down", &dir, &[]));
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_dropped_fleet_leaves_no_process_and_no_folder() {
    if !possible() {
        return;
    }
    let fleet = Fleet::start(FleetOptions::of([ClusterOptions::api_server("bare")])).await.expect("start");
    let (everyone, dir) = (pids(fleet.state()), fleet.dir().to_path_buf());
    assert_eq!(alive(&everyone), everyone);
    drop(fleet);
    assert_eq!(alive(&everyone), Vec::<u32>::new());
    assert!(!dir.exists());
}

#[tokio::test]
async fn two_fleets_cannot_use_one_folder() {
    if !possible() {
        return;
    }
    let (_parent, dir) = place();
    let options = || FleetOptions::of([ClusterOptions::api_server("bare")]).dir(&dir);
    let fleet = Fleet::start(options()).await.expect("start");
    let error = Fleet::start(options()).await.expect_err("the folder is taken");
    assert!(error.to_string().contains("running"), "{error}");
    fleet
        .cluster("bare")
        .expect("a cluster")
        .client()
        .await
        .expect("client")
        .apiserver_version()
        .await
        .expect("unharmed");
    fleet.down().await.expect("down");
}

#[tokio::test]
async fn an_alien_folder_is_left_alone() {
    let parent = tempfile::tempdir().expect("a folder for the test");
    std::fs::write(parent.path().join("precious"), "").expect("write");
    if !possible() {
        return;
    }
    let options = FleetOptions::of([ClusterOptions::api_server("bare")]).dir(parent.path());
    Fleet::start(options).await.expect_err("the folder is somebody else's");
    assert!(!command("up", parent.path(), &["--members", "0"]).status.success());
    let _ = command("down", parent.path(), &[]);
    assert!(parent.path().join("precious").exists());
}

#[tokio::test]
async fn a_control_plane_deletes_namespaces_and_fills_tokens_but_has_no_nodes() {
    if !possible() {
        return;
    }
    let fleet =
        Fleet::start(FleetOptions::of([ClusterOptions::control_plane("karmada")])).await.expect("start");
    let client = fleet.cluster("karmada").expect("a cluster").client().await.expect("client");
    let nodes: Api<Node> = Api::all(client.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.expect("list").items.len(), 0);

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let post = PostParams::default();
    let made = |value| serde_json::from_value(value).expect("an object by construction");
    namespaces.create(&post, &made(json!({"metadata": {"name": "short-lived"}}))).await.expect("create");
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), "short-lived");
    let account =
        serde_json::from_value(json!({"metadata": {"name": "joiner"}})).expect("an account by construction");
    accounts.create(&post, &account).await.expect("create");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "short-lived");
    let token = serde_json::from_value(json!({
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "joiner"}},
        "type": "kubernetes.io/service-account-token",
    }))
    .expect("a Secret by construction");
    secrets.create(&post, &token).await.expect("create");
    until("a token", DEADLINE, async || {
        let secret = secrets.get("token").await.map_err(|error| error.to_string())?;
        let filled = secret.data.is_some_and(|data| data.contains_key("token"));
        if filled { Ok(()) } else { Err("no token yet".to_string()) }
    })
    .await
    .expect("the token controller runs");

    namespaces.delete("short-lived", &DeleteParams::default()).await.expect("delete");
    until("the namespace to be gone", DEADLINE, async || {
        match namespaces.get_opt("short-lived").await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(namespace) => Err(format!("{:?}", namespace.status)),
        }
    })
    .await
    .expect("the namespace controller runs");
}
