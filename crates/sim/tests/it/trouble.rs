//! Members that are broken on purpose, and healed.

use serde_json::json;
use sim::{Answer, Request, Trouble};

use crate::site::Site;

async fn fleet() -> (tempfile::TempDir, sim::Fleet, Site) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = sim::Options::new(2, 2);
    options.data_dir = Some(dir.path().join("sim"));
    let fleet = sim::start(options).await.expect("simulated members");
    let site = Site::simulated(&fleet.members()[0]).await;
    (dir, fleet, site)
}

fn ready(object: &serde_json::Value) -> &serde_json::Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions
        .iter()
        .find(|each| each["type"] == "Ready")
        .map_or(&serde_json::Value::Null, |each| &each["status"])
}

#[tokio::test]
async fn a_member_that_is_down_answers_nobody_and_comes_back() {
    let (_dir, fleet, site) = fleet().await;
    site.namespace("test").await;
    fleet.trouble("member1", &Trouble::ApiDown).expect("a member");
    assert!(site.client.apiserver_version().await.is_err());
    let other = Site::simulated(&fleet.members()[1]).await;
    other.client.apiserver_version().await.expect("the other one is well");
    fleet.heal("member1", &Trouble::ApiDown).expect("a member");
    site.client.apiserver_version().await.expect("it is back");
    fleet.stop().await;
}

#[tokio::test]
async fn a_lost_node_is_not_ready_and_its_pods_are_not_either() {
    let (_dir, fleet, site) = fleet().await;
    site.namespace("test").await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "p"}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "node2"}, "containers": [{"name": "c", "image": "i"}]}});
    site.create("test", pod).await;
    site.until("Pod", "test", "p", "become ready", |pod| ready(pod) == "True").await;
    let lost = Trouble::Node("node2".to_owned());
    fleet.trouble("member1", &lost).expect("a node");
    site.until("Node", "", "node2", "be lost", |node| ready(node) == "Unknown").await;
    site.until("Pod", "test", "p", "be unready", |pod| ready(pod) == "False").await;
    fleet.heal("member1", &lost).expect("a node");
    site.until("Node", "", "node2", "come back", |node| ready(node) == "True").await;
    site.until("Pod", "test", "p", "come back", |pod| ready(pod) == "True").await;
    assert!(fleet.trouble("member1", &Trouble::Node("nowhere".to_owned())).is_err());
    assert!(fleet.trouble("nobody", &Trouble::ApiDown).is_err());
    fleet.stop().await;
}

#[tokio::test]
async fn the_owner_breaks_and_heals_over_the_socket() {
    let (dir, fleet, site) = fleet().await;
    site.namespace("test").await;
    let data = dir.path().join("sim");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "p"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    site.create("test", pod).await;
    site.until("Pod", "test", "p", "become ready", |pod| ready(pod) == "True").await;
    let troubles = vec![Trouble::PodsFailing("app=p".to_owned()), Trouble::Slow(1)];
    let broken = Request::Break { member: "member1".to_owned(), troubles };
    assert_eq!(sim::ask(&data, &broken).await.expect("an answer"), Answer::Done);
    site.until("Pod", "test", "p", "crash", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })
    .await;
    let healed = Request::Heal { member: "member1".to_owned(), troubles: vec![] };
    assert_eq!(sim::ask(&data, &healed).await.expect("an answer"), Answer::Done);
    site.until("Pod", "test", "p", "recover", |pod| ready(pod) == "True").await;
    let Answer::Status(members) = sim::ask(&data, &Request::Status).await.expect("an answer") else {
        panic!("no status")
    };
    assert!(members.iter().all(|(_, _, troubles)| *troubles == sim::Troubles::default()));
    let wrong = Request::Break { member: "nobody".to_owned(), troubles: vec![Trouble::ApiDown] };
    assert!(matches!(sim::ask(&data, &wrong).await.expect("an answer"), Answer::Failed(_)));
    use std::os::unix::fs::PermissionsExt;
    for file in [data.join(sim::SOCKET), data.join("member1.kubeconfig")] {
        let mode = std::fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", file.display());
    }
    fleet.stop().await;
}
