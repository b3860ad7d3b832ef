//! The client against a small service in the same process, and what happens when something is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use api::work::ObjectReference;
use estimator::{Client, Error, Options, Question, Want};
use serde_json::json;

use crate::service::{Estimator, control_plane, serve};

pub(crate) fn question(clusters: &[&str], want: Want) -> Question {
    Question {
        resource: ObjectReference {
            kind: "Deployment".into(),
            namespace: "ns".into(),
            name: "web".into(),
            ..Default::default()
        },
        want,
        clusters: clusters.iter().map(|name| ((*name).to_owned(), Vec::new())).collect(),
    }
}

pub(crate) fn half_a_core() -> Want {
    Want::Replicas(Some(serde_json::from_value(json!({"resourceRequest": {"cpu": "0.5"}})).unwrap()))
}

/// Gives up soon those who never answer, and not those who merely wait for a busy machine.
fn hasty() -> Options {
    Options { timeout: testkit::slowed(Duration::from_millis(500)), ..Options::default() }
}

#[tokio::test]
async fn all_clusters_are_asked_and_told_about_the_workload() {
    let estimator = Estimator::default();
    let client = Client::new(Options::default(), control_plane(serve(estimator.clone(), None).await));
    for cluster in ["m1", "m2"] {
        client.connect(cluster).await.unwrap();
    }
    let answers = client.max_available(&question(&["m1", "m2"], half_a_core())).await.unwrap();
    assert_eq!(answers, BTreeMap::from([("m1".to_owned(), 1), ("m2".to_owned(), 2)]));
    assert_eq!(estimator.objects.lock().unwrap()[0], "kind=Deployment, name=ns/web");
    let components: Vec<api::work::Component> =
        serde_json::from_value(json!([{"name": "a", "replicas": 1}, {"name": "b", "replicas": 2}])).unwrap();
    let answers = client.max_available(&question(&["m1"], Want::Sets(components))).await.unwrap();
    assert_eq!(answers["m1"], 2);
}

#[tokio::test]
async fn one_cluster_that_cannot_be_asked_spoils_the_answer() {
    let client = Client::new(Options::default(), control_plane(serve(Estimator::default(), None).await));
    client.connect("m1").await.unwrap();
    let error = client.max_available(&question(&["m1", "m2"], half_a_core())).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected(cluster) if cluster == "m2"));
    let error = client.max_available(&question(&["m1"], Want::Replicas(None))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the estimator of cluster m1 does not answer: the request was not understood"
    );
    client.disconnect("m1");
    assert!(!client.is_connected("m1"));
}

#[tokio::test]
async fn one_deadline_holds_for_all_clusters() {
    let client = Client::new(hasty(), control_plane(serve(Estimator::default(), None).await));
    for cluster in ["m1", "slow"] {
        client.connect(cluster).await.unwrap();
    }
    // Either our own clock runs out first, or the one that the call carries with it.
    let error = client.max_available(&question(&["m1", "slow"], half_a_core())).await.unwrap_err();
    assert!(
        matches!(&error, Error::TooSlow(_))
            || matches!(&error, Error::Call { cluster, .. } if cluster == "slow"),
        "{error}"
    );
    // A slow cluster that is not asked delays nobody.
    assert_eq!(client.max_available(&question(&["m1"], half_a_core())).await.unwrap()["m1"], 1);
}

#[tokio::test]
async fn an_estimator_that_cannot_tell_says_minus_one() {
    let client = Client::new(Options::default(), control_plane(serve(Estimator::default(), None).await));
    for cluster in ["m1", "unsure"] {
        client.connect(cluster).await.unwrap();
    }
    // It is handed on: whoever weighs answers against each other knows what it means.
    let answers = client.max_available(&question(&["m1", "unsure"], half_a_core())).await.unwrap();
    assert_eq!(answers, BTreeMap::from([("m1".to_owned(), 1), ("unsure".to_owned(), -1)]));
}

#[tokio::test]
async fn a_cluster_is_asked_for_replicas_that_find_no_node() {
    let client = Client::new(hasty(), control_plane(serve(Estimator::default(), None).await));
    for cluster in ["m2", "slow"] {
        client.connect(cluster).await.unwrap();
    }
    let deployment = question(&[], half_a_core()).resource;
    let asked = |cluster: &'static str| client.unschedulable(cluster, &deployment, Duration::from_secs(300));
    assert_eq!(asked("m2").await.unwrap(), 2);
    assert!(matches!(asked("m1").await.unwrap_err(), Error::NotConnected(cluster) if cluster == "m1"));
    assert!(asked("slow").await.is_err(), "nobody waits for ever");
}

#[tokio::test]
async fn a_service_that_leads_nowhere_is_named() {
    let client = Client::new(Options::default(), control_plane(1));
    let error = client.connect("nobody").await.unwrap_err();
    assert_eq!(error.to_string(), "the estimator of cluster nobody cannot be found");
    // Nobody listens on port 1.
    assert!(matches!(client.connect("m1").await.unwrap_err(), Error::Dial { .. }));
}
