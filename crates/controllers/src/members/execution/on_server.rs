//! The execution controller on a server that is control plane and member at once: what is created, kept,
//! refused and deleted.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use propagation::render::DesiredWork;
use runtime::Outcome;

use super::*;
use crate::fixtures::{merged, read};
use crate::world::World;

struct Test {
    world: World,
    controller: Controller,
    cluster: String,
}

const MAP: &str = "*/configmaps/web";
const STATUS: &str = "PATCH karmada-es-*-m1/works/web/status";

impl Test {
    async fn new() -> Self {
        let world = World::agent().await;
        let cluster = world.cluster("m1", json!({})).await;
        let shared = world.members(&["execution"]);
        shared.members.adopt(&cluster, shared.client());
        drop(wire(&shared));
        Self { controller: Controller(shared), world, cluster }
    }

    /// Creates a Work that brings a ConfigMap to the member.
    async fn work(&self, otherwise: Value) -> Arc<Work> {
        let manifest = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "k": "v" },
            "metadata": { "name": "web", "namespace": self.world.namespace, "uid": "t" },
        });
        let desired =
            DesiredWork::new(&self.cluster, manifest, BTreeMap::new(), BTreeMap::new()).expect("a Work");
        let mut work = serde_json::to_value(desired.create()).expect("a tree");
        work["metadata"]["name"] = "web".into();
        let manifest = &mut work["spec"]["workload"]["manifests"][0]["metadata"]["annotations"];
        manifest["work.karmada.io/name"] = "web".into();
        work.as_object_mut().expect("an object").remove("status");
        self.world.put(&self.world.environment.mirrors.works, merged(work, otherwise)).await
    }

    async fn once(&self, work: &Work) -> Outcome {
        self.world.once(&self.controller, &Key::of(work)).await
    }

    async fn map(&self) -> Option<ConfigMap> {
        self.world.api(&self.world.namespace).get_opt("web").await.expect("the member answers")
    }

    /// Creates an object of the same name, as a user of the member would.
    async fn theirs(&self, otherwise: Value) -> ConfigMap {
        let base = json!({ "metadata": { "name": "web", "namespace": self.world.namespace }, "data": { "k": "theirs" } });
        self.world.create(merged(base, otherwise)).await
    }

    async fn condition(&self, work: &Work, kind: &str) -> (String, String) {
        let stored = self.world.stored(work).await.expect("it exists");
        let all = stored.status.conditions.into_iter();
        let mut matching = all.filter(|condition| condition.type_ == kind);
        matching.next().map(|condition| (condition.status, condition.message)).unwrap_or_default()
    }

    /// Deletes a Work on the server and updates the mirror.
    async fn tell_to_go(&self, work: &Work) {
        let api = self.world.api::<Work>(&names::execution_space(&self.cluster));
        api.delete("web", &DeleteParams::default()).await.expect("told to go");
        let going = self.world.stored(work).await.expect("it is held");
        self.world.environment.mirrors.works.note(going);
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn value(map: &ConfigMap) -> Option<&str> {
    map.data.as_ref()?.get("k").map(String::as_str)
}

#[tokio::test]
async fn what_a_work_says_is_made_once() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    assert_eq!(test.controller.0.executions.waiting(), [Key::of(work.as_ref())], "a new Work is queued");
    test.world.writes();
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST */configmaps", STATUS]);
    assert_eq!(test.map().await.as_ref().and_then(value), Some("v"));
    assert_eq!(test.condition(&work, "Applied").await.0, "True");
    assert_eq!(test.condition(&work, "Dispatching").await.0, "True");
    assert!(test.world.event("SyncSucceed").await.starts_with("S"));
    test.world.writes();
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn what_somebody_changed_in_the_member_is_put_right() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    let made = test.map().await.expect("it exists");
    test.world.patch(&made, json!({ "data": { "k": "changed" } })).await;
    let repaired = async {
        // The mirror of the member's objects shows it a moment later.
        while test.map().await.as_ref().and_then(value) != Some("v") {
            assert_eq!(test.once(&work).await, Outcome::Done);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), repaired).await.expect("it is put right");
    test.end().await;
}

#[tokio::test]
async fn what_the_member_refuses_is_said_and_tried_again() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    test.world.refuse(Method::POST, "/configmaps", 403, "Forbidden");
    assert_eq!(test.once(&work).await, Outcome::Retry);
    let (status, message) = test.condition(&work, "Applied").await;
    assert_eq!(status, "False");
    assert!(
        message.starts_with("Failed to apply all manifests (0/1): ") && message.contains("refused"),
        "{message}"
    );
    assert!(test.world.event("SyncFailed").await.contains("refused: Forbidden"));
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.condition(&work, "Applied").await.0, "True");
    test.end().await;
}

#[tokio::test]
async fn what_is_not_ours_is_left_alone_unless_the_user_says_otherwise() {
    let test = Test::new().await;
    test.theirs(json!({})).await;
    let work = test.work(json!({})).await;
    assert_eq!(test.once(&work).await, Outcome::Retry);
    assert_eq!(test.map().await.as_ref().and_then(value), Some("theirs"));
    assert_eq!(test.condition(&work, "Applied").await.0, "False");
    let mut manifest = work.spec.workload.manifests[0].clone();
    manifest["metadata"]["annotations"]["work.karmada.io/conflict-resolution"] = "overwrite".into();
    let overwrite = json!({ "spec": { "workload": { "manifests": [manifest] } } });
    test.world.environment.mirrors.works.note(test.world.patch(work.as_ref(), overwrite).await);
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.map().await.as_ref().and_then(value), Some("v"));
    test.end().await;
}

#[tokio::test]
async fn a_work_that_goes_takes_its_object_out_and_is_let_go() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    test.tell_to_go(&work).await;
    test.world.writes();
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [format!("DELETE {MAP}"), "PATCH karmada-es-*-m1/works/web".to_owned()]);
    assert!(test.map().await.is_none() && test.world.stored(work.as_ref()).await.is_none());
    assert_eq!(test.once(&work).await, Outcome::Done, "once more is fine");
    test.end().await;
}

#[tokio::test]
async fn a_work_that_goes_leaves_what_is_not_its_own() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    test.theirs(json!({})).await;
    test.tell_to_go(&work).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.map().await.as_ref().and_then(value), Some("theirs"));
    assert!(test.world.stored(work.as_ref()).await.is_none(), "the Work itself is let go");
    test.end().await;
}

#[tokio::test]
async fn a_deletion_that_the_member_refuses_keeps_the_work() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    test.tell_to_go(&work).await;
    test.world.refuse(Method::DELETE, "/configmaps/web", 500, "InternalError");
    assert_eq!(test.once(&work).await, Outcome::Retry);
    assert!(test.map().await.is_some() && test.world.stored(work.as_ref()).await.is_some());
    assert!(test.world.event("SyncFailed").await.contains("Failed to sync work"));
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert!(test.map().await.is_none());
    test.end().await;
}

#[tokio::test]
async fn what_is_to_be_kept_loses_only_our_marks() {
    let test = Test::new().await;
    let work = test.work(json!({ "spec": { "preserveResourcesOnDeletion": true } })).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    test.tell_to_go(&work).await;
    assert_eq!(test.once(&work).await, Outcome::Done);
    let kept = test.map().await.expect("it stays");
    let labels = kept.metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("karmada.io/managed"), "{labels:?}");
    assert!(test.world.stored(work.as_ref()).await.is_none());
    test.end().await;
}

/// A Work with an object of a kind that nobody has.
fn of_a_gone_kind(preserve: bool) -> Value {
    let manifest = json!({ "apiVersion": "gone.example/v1", "kind": "App", "metadata": { "name": "a", "namespace": "x" } });
    json!({ "spec": { "preserveResourcesOnDeletion": preserve, "workload": { "manifests": [manifest] } } })
}

#[tokio::test]
async fn a_work_whose_kind_is_gone_on_both_sides_is_let_go() {
    for preserve in [false, true] {
        let test = Test::new().await;
        let work = test.work(of_a_gone_kind(preserve)).await;
        test.tell_to_go(&work).await;
        assert_eq!(test.once(&work).await, Outcome::Done, "preserve: {preserve}");
        assert!(test.world.stored(work.as_ref()).await.is_none(), "preserve: {preserve}");
        test.end().await;
    }
}

#[tokio::test]
async fn a_member_that_does_not_say_whether_it_has_a_kind_keeps_the_work() {
    for preserve in [false, true] {
        let test = Test::new().await;
        let work = test.work(of_a_gone_kind(preserve)).await;
        test.tell_to_go(&work).await;
        // The control plane is asked first, and does not have it.
        test.world.refuse(Method::GET, "/apis/gone.example/v1", 404, "NotFound");
        test.world.refuse(Method::GET, "/apis/gone.example/v1", 500, "InternalError");
        assert_eq!(test.once(&work).await, Outcome::Retry, "preserve: {preserve}");
        assert!(test.world.stored(work.as_ref()).await.is_some(), "preserve: {preserve}");
        assert!(test.world.event("SyncFailed").await.contains("refused: InternalError"));
        assert_eq!(test.once(&work).await, Outcome::Done, "preserve: {preserve}");
        assert!(test.world.stored(work.as_ref()).await.is_none(), "preserve: {preserve}");
        test.end().await;
    }
}

#[tokio::test]
async fn what_is_suspended_is_said_and_not_carried_out() {
    let test = Test::new().await;
    let work = test.work(json!({ "spec": { "suspendDispatching": true } })).await;
    test.world.writes();
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS]);
    assert_eq!(test.condition(&work, "Dispatching").await.0, "False");
    assert!(test.map().await.is_none());
    assert!(test.world.event("WorkDispatching").await.contains("suspended"));
    test.end().await;
}

#[tokio::test]
async fn a_work_of_a_cluster_that_is_not_there_or_not_ours_waits() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    let other = test.world.cluster("m2", json!({})).await;
    test.world.writes();
    let elsewhere = Key::new(names::execution_space(&other), "web");
    for key in [elsewhere, Key::new("default", "web"), Key::new("karmada-es-nowhere", "web")] {
        assert_eq!(test.world.once(&test.controller, &key).await, Outcome::Done, "{key}");
    }
    test.world.environment.members.remove(&test.cluster);
    assert_eq!(test.once(&work).await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS], "that it waits is told");
    assert!(test.map().await.is_none());
    test.end().await;
}

#[tokio::test]
async fn which_changes_of_a_work_count() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    let queue = &test.controller.0.executions;
    let drain = || {
        let stop = tokio_util::sync::CancellationToken::new();
        let mut count = 0;
        while let Some(Some(turn)) =
            futures::FutureExt::now_or_never(runtime::Turns::next(queue.as_ref(), &stop))
        {
            runtime::Turns::done(queue.as_ref(), turn, Outcome::Done);
            count += 1;
        }
        count
    };
    let mirror = &test.world.environment.mirrors.works;
    assert_eq!(drain(), 1);
    mirror.note(test.world.patch(work.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await);
    assert_eq!(drain(), 0, "a label is not for the member");
    let manifest: Value =
        read(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "else" } }));
    mirror.note(
        test.world.patch(work.as_ref(), json!({ "spec": { "workload": { "manifests": [manifest] } } })).await,
    );
    assert_eq!(drain(), 1, "its manifest");
    test.tell_to_go(&work).await;
    assert_eq!(drain(), 1, "it goes");
    mirror.remove(&Key::of(work.as_ref()), 0);
    assert_eq!(drain(), 0, "gone");
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_of_the_work() {
    let test = Test::new().await;
    let work = test.work(json!({})).await;
    let told = test.world.panicked(&test.controller.0.executions, Key::of(work.as_ref())).await;
    assert!(told.contains("by accident"), "{told}");
    test.end().await;
}
