//! Tests on a server of how users may act in a member under their own names.

use api::work::Work;
use http::Method;
use kube::api::ListParams;
use runtime::Key;

use super::*;
use crate::world::World;

struct Test {
    world: World,
    authenticator: Arc<Authenticator>,
    cluster: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        let authenticator = subscribed(&world.plane);
        let secret =
            json!({ "spec": { "impersonatorSecretRef": { "namespace": "karmada-cluster", "name": "s" } } });
        let cluster = world.cluster("m1", secret).await;
        Self { world, authenticator, cluster }
    }

    /// Has a role and a binding be known that let a user through the proxy.
    fn let_in(&self, user: &str, reach: Reach, version: &str) {
        let key = Key::new("", "role");
        self.authenticator.roles.put(&key, version, Arc::new(reach));
        let bound = Bound { role: "role".to_owned(), subjects: vec![("User".to_owned(), user.to_owned())] };
        self.authenticator.bindings.put(&key, version, Arc::new(bound));
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.authenticator.as_ref(), &self.cluster).await
    }

    async fn roles(&self) -> Vec<Value> {
        let api = self.world.api::<Work>(&api::names::execution_space(&self.cluster));
        let works = api.list(&ListParams::default()).await.expect("the server answers").items;
        let manifests = works.into_iter().flat_map(|work| work.spec.workload.manifests);
        manifests.filter(|manifest| manifest["kind"] == "ClusterRole").collect()
    }

    fn drain(&self) -> Vec<String> {
        let stop = tokio_util::sync::CancellationToken::new();
        let (queue, mut taken) = (&self.authenticator.queue, Vec::new());
        while let Some(Some(turn)) =
            futures::FutureExt::now_or_never(runtime::Turns::next(queue.as_ref(), &stop))
        {
            taken.push(<Queue<String> as runtime::Turns>::key(&turn));
            runtime::Turns::done(queue.as_ref(), turn, Outcome::Done);
        }
        taken
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

#[tokio::test]
async fn a_panic_is_told_on_the_cluster() {
    let test = Test::new().await;
    let told = test.world.panicked(&test.authenticator.queue, test.cluster.clone()).await;
    assert_eq!(told, "unified-auth-controller panicked and tries again later: by accident");
    test.end().await;
}

#[tokio::test]
async fn a_cluster_learns_who_may_come_and_who_may_not_any_more() {
    let test = Test::new().await;
    test.let_in("alice", Reach::All, "1");
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), ["POST karmada-es-*-m1/works"; 2]);
    assert_eq!(test.roles().await[0]["rules"][0]["resourceNames"], json!(["alice"]));
    assert_eq!(
        test.world.event("SyncImpersonationConfigSucceed").await,
        "Sync impersonation config succeed."
    );
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);

    test.authenticator.roles.remove(&Key::new("", "role"), 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes().len(), 1);
    assert_eq!(test.roles().await[0]["rules"], Value::Null);
    test.end().await;
}

#[tokio::test]
async fn what_is_refused_is_told_and_tried_again() {
    let test = Test::new().await;
    test.world.refuse(Method::POST, "/works", 500, "InternalError");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.world.event("SyncImpersonationConfigFailed").await, "refused: InternalError");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.roles().await.len(), 1);
    test.end().await;
}

#[tokio::test]
async fn whom_a_change_concerns() {
    let test = Test::new().await;
    assert_eq!(test.drain(), std::slice::from_ref(&test.cluster), "it is new");
    let named = |names: &[&str]| Reach::Named(names.iter().map(|name| (*name).to_owned()).collect());
    test.let_in("alice", named(&["m8"]), "1");
    assert_eq!(test.drain(), ["m8"], "the clusters that the role names");
    test.let_in("alice", named(&["m8"]), "2");
    assert_eq!(test.drain(), [""; 0], "nothing changed");
    test.let_in("bob", named(&["m9"]), "3");
    assert_eq!(test.drain(), ["m8", "m9"], "what it reached, and what it reaches");
    test.let_in("bob", Reach::All, "4");
    let all = test.drain();
    assert!(all.contains(&"m9".to_owned()) && all.contains(&test.cluster), "{all:?}");

    let mirrors = &test.world.environment.mirrors;
    let cluster = mirrors.clusters.get("", &test.cluster).expect("known");
    mirrors.clusters.note(test.world.patch(cluster.as_ref(), json!({ "spec": { "region": "eu" } })).await);
    assert_eq!(test.drain(), [""; 0]);
    let other = json!({ "spec": { "impersonatorSecretRef": { "name": "other" } } });
    mirrors.clusters.note(test.world.patch(cluster.as_ref(), other).await);
    assert_eq!(test.drain(), std::slice::from_ref(&test.cluster), "another impersonator");
    assert_eq!(test.once().await, Outcome::Done);
    let work = mirrors.works.all().remove(0);
    mirrors.works.remove(&Key::of(work.as_ref()), 0);
    assert_eq!(test.drain(), std::slice::from_ref(&test.cluster), "a Work that vanished comes back");
    let cluster = mirrors.clusters.get("", &test.cluster).expect("known");
    mirrors
        .clusters
        .note(test.world.patch(cluster.as_ref(), json!({ "spec": { "syncMode": "Pull" } })).await);
    test.drain();
    let work = mirrors.works.all().remove(0);
    mirrors.works.remove(&Key::of(work.as_ref()), 0);
    assert_eq!(test.drain(), [""; 0], "in pull mode not at once: `unregister` waits until there is none");
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while test.drain() != std::slice::from_ref(&test.cluster) {
        assert!(tokio::time::Instant::now() < deadline, "but it comes back");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    mirrors.clusters.remove(&Key::new("", &test.cluster), 0);
    assert_eq!(test.drain(), [""; 0]);
    assert_eq!(test.once().await, Outcome::Done, "gone");
    test.end().await;
}
