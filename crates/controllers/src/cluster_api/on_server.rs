//! The discovery of cluster-api's clusters on a server: what it asks the management cluster, and what it writes.

use std::collections::BTreeMap;

use http::{Request, Response};
use kube::client::Body;
use runtime::Turns;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::world::World;

/// A management cluster that gives the answers that a test sets, by path. All other paths are not found.
#[derive(Clone, Default)]
struct Management(Arc<Mutex<BTreeMap<String, (u16, Value)>>>);

impl Management {
    /// One with this UID.
    fn new(uid: &str) -> Self {
        let management = Self::default();
        management.answers("/api/v1/namespaces/kube-system", 200, json!({ "metadata": { "uid": uid } }));
        management.answers(DEFINED, 200, definition(json!({ "name": DEFINITION })));
        management
    }

    fn answers(&self, path: &str, code: u16, body: Value) {
        self.0.lock().insert(path.to_owned(), (code, body));
    }

    fn client(&self) -> Client {
        let answers = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let found = answers.lock().get(request.uri().path()).cloned();
            async move {
                let (code, text) = match found {
                    Some((code, body)) => (code, body.to_string()),
                    None => (404, "404 page not found\n".to_owned()),
                };
                let answer = Response::builder().status(code).body(Body::from(text.into_bytes()));
                answer.map_err(|error| error.to_string())
            }
        });
        Client::new(service, "default")
    }
}

/// Where the definition is.
const DEFINED: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusters.cluster.x-k8s.io";

/// The definition as it is asked for: its metadata.
fn definition(metadata: Value) -> Value {
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
}

struct Test {
    world: World,
    discovery: Arc<Discovery>,
    queue: Arc<Queue<Key>>,
    management: Management,
    key: Key,
}

impl Test {
    /// A control plane and the management cluster `k`.
    async fn new() -> Self {
        let world = World::new().await;
        let management = Management::new("k");
        let (discovery, queue) = subscribed(&world.environment, &management.client());
        let key = Key::new("capi", world.own("m1"));
        Self { world, discovery, queue, management, key }
    }

    /// Registers the Cluster as one that was joined for an object of a management cluster.
    async fn joined_from(&self, management: &str) {
        let origin = Origin { management: management.to_owned(), key: self.key.clone(), uid: "u".to_owned() };
        let noted = json!({ "metadata": { "annotations": { JOINED_FOR: origin.to_string() } } });
        self.world.cluster("m1", noted).await;
        self.world.writes();
    }

    /// Returns where the management cluster has the object.
    fn path(&self) -> String {
        format!("/apis/cluster.x-k8s.io/v1beta1/namespaces/capi/clusters/{}", self.key.name)
    }

    /// Makes the management cluster answer that the object is gone.
    fn is_deleted(&self) {
        let details = json!({ "name": self.key.name, "group": GROUP, "kind": "clusters" });
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "not found", "details": details,
        });
        self.management.answers(&self.path(), 404, status);
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.discovery.as_ref(), &self.key).await
    }

    /// Returns the keys that wait in the queue.
    fn drain(&self) -> Vec<Key> {
        let stop = CancellationToken::new();
        let mut taken = Vec::new();
        while let Some(Some(turn)) = futures::FutureExt::now_or_never(Turns::next(self.queue.as_ref(), &stop))
        {
            taken.push(<Queue<Key> as Turns>::key(&turn));
            Turns::done(self.queue.as_ref(), turn, Outcome::Done);
        }
        taken
    }

    fn see(&self, version: &str, phase: &str) {
        let seen = Seen { uid: "u".to_owned(), phase: phase.to_owned(), is_deleting: false };
        self.discovery.provisioned.put(&self.key, version, Arc::new(seen));
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn a_cluster_leaves_once_its_management_cluster_says_that_its_object_is_gone() {
    let test = Test::new().await;
    test.joined_from("k").await;
    test.is_deleted();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["DELETE clusters/*-m1"]);
    assert!(test.world.api::<Cluster>("").get_opt(&test.key.name).await.expect("an answer").is_none());
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "a second look writes nothing");
    test.end().await;
}

#[tokio::test]
async fn a_management_cluster_without_definitions_takes_nothing_away() {
    let test = Test::new().await;
    test.joined_from("k").await;
    assert!(matches!(test.once().await, Outcome::Failed { conflict: false, .. }), "it knows no such kind");
    let status = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" });
    test.management.answers(&test.path(), 404, status);
    assert!(matches!(test.once().await, Outcome::Failed { conflict: false, .. }), "it says 404 of nothing");
    test.management.answers(&test.path(), 403, json!({ "kind": "Status", "code": 403, "message": "no" }));
    assert!(matches!(test.once().await, Outcome::Failed { conflict: false, .. }), "it does not say");
    let object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
        "metadata": { "name": test.key.name, "namespace": "capi", "uid": "u" }, "status": { "phase": "Provisioned" },
    });
    test.management.answers(&test.path(), 200, object);
    assert_eq!(test.once().await, Outcome::Done, "it is there, and only the copy is behind");
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn clusters_that_go_with_their_definition_stay_members() {
    let test = Test::new().await;
    test.joined_from("k").await;
    test.is_deleted();
    let going = json!({ "name": DEFINITION, "deletionTimestamp": "2026-01-01T00:00:00Z" });
    test.management.answers(DEFINED, 200, definition(going));
    let why = "clusters.cluster.x-k8s.io of the management cluster of cluster-api is being deleted; nothing is unjoined";
    assert_eq!(test.once().await, Outcome::Failed { error: why.to_owned(), conflict: false });
    let newer = json!({ "name": DEFINITION, "creationTimestamp": "2999-01-01T00:00:00Z" });
    test.management.answers(DEFINED, 200, definition(newer));
    let why = "clusters.cluster.x-k8s.io of the management cluster of cluster-api was made after the cluster was joined; \
               nothing is unjoined";
    assert_eq!(test.once().await, Outcome::Failed { error: why.to_owned(), conflict: false });
    let gone = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone" });
    test.management.answers(DEFINED, 404, gone);
    assert_eq!(test.once().await, Outcome::Failed { error: "gone".to_owned(), conflict: false });
    assert_eq!(test.world.writes(), [""; 0]);
    test.management.answers(DEFINED, 403, json!({ "kind": "Status", "status": "Failure", "code": 403 }));
    assert_eq!(test.once().await, Outcome::Done, "who may not look does without");
    assert_eq!(test.world.writes(), ["DELETE clusters/*-m1"]);
    test.end().await;
}

#[tokio::test]
async fn another_management_cluster_behind_the_same_address_takes_nothing_away() {
    let test = Test::new().await;
    test.joined_from("the one before").await;
    test.is_deleted();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn whoever_takes_the_annotation_off_keeps_the_cluster() {
    let test = Test::new().await;
    test.joined_from("k").await;
    test.is_deleted();
    let known = test.world.environment.mirrors.clusters.get("", &test.key.name).expect("known");
    test.world.patch(known.as_ref(), json!({ "metadata": { "annotations": { JOINED_FOR: null } } })).await;
    assert_eq!(test.once().await, Outcome::Done, "the copy still has it");
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_used_is_told_once() {
    let test = Test::new().await;
    test.see("1", "Provisioned");
    let secret = format!("/api/v1/namespaces/capi/secrets/{}-kubeconfig", test.key.name);
    let missing = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
    test.management.answers(&secret, 404, missing);
    assert_eq!(test.once().await, Outcome::After(LOOK_AGAIN), "it has no Secret");
    let told = |test: &Test| test.discovery.refusals.lock().get(&test.key).cloned().unwrap_or_default();
    assert!(told(&test).contains("-kubeconfig with its kubeconfig"), "{}", told(&test));
    let text = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n\
                users: [{name: a, user: {exec: {command: touch, args: [/tmp/never]}}}]\n";
    let data = json!({ "value": k8s_openapi::ByteString(text.as_bytes().to_vec()) });
    test.management.answers(&secret, 200, json!({ "metadata": { "name": "s" }, "data": data }));
    assert_eq!(test.once().await, Outcome::After(LOOK_AGAIN));
    assert!(told(&test).contains("it wants a program to be run (exec)"), "{}", told(&test));
    assert_eq!(test.world.writes(), [""; 0]);
    test.see("2", "Failed");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(told(&test), "", "what is not to be joined is not refused");
    test.end().await;
}

#[tokio::test]
async fn who_brings_a_cluster_up() {
    let test = Test::new().await;
    test.see("1", "Provisioning");
    assert_eq!(test.drain(), std::slice::from_ref(&test.key), "it is new");
    test.see("2", "Provisioning");
    assert!(test.drain().is_empty(), "nothing that counts has changed");
    test.see("3", "Provisioned");
    assert_eq!(test.drain(), std::slice::from_ref(&test.key));
    test.joined_from("k").await;
    assert_eq!(test.drain(), std::slice::from_ref(&test.key), "its Cluster has come");
    let clusters = &test.world.environment.mirrors.clusters;
    let known = clusters.get("", &test.key.name).expect("known");
    clusters.note(test.world.patch(known.as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert!(test.drain().is_empty(), "what happens to it then does not count");
    test.discovery.provisioned.remove(&test.key, 0);
    assert_eq!(test.drain(), std::slice::from_ref(&test.key), "it is gone in the management cluster");
    clusters.remove(&Key::new("", &test.key.name), 0);
    assert_eq!(test.drain(), std::slice::from_ref(&test.key), "its Cluster is gone");
    test.world.cluster("m2", json!({})).await;
    assert!(test.drain().is_empty(), "other clusters do not count");
    test.end().await;
}
