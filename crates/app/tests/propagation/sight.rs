//! "Cannot see" is not "is gone": watches that are lost, lists that are empty and revisions that are too old delete nothing
//! that is wanted, and what happened meanwhile is made good.

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use testkit::{Kind, at, client, install_tls, until, until_gone};

use crate::liar::{Liar, Mode};
use crate::members::Place;
use crate::plane::ControlPlane;

use crate::world::World;

const NAMES: [&str; 3] = ["kept", "drifted", "deleted"];

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

async fn has(inside: &Api<DynamicObject>, name: &str, wanted: &str, what: &str) {
    until(inside, name, what, |found| at(found, "/data/a") == Some(json!(wanted))).await;
}

async fn uid(inside: &Api<DynamicObject>, name: &str) -> Option<String> {
    inside.get(name).await.unwrap_or_else(|error| panic!("{name}: {error}")).metadata.uid
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_not_deleted() {
    install_tls();
    let Some(members) = clusters::shared(1).await else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let liar = Liar::before(members[0].kubeconfig(), folder.path()).await;
    // The liar passes everything on in its own name, so that the member's log does not tell what is ours.
    let place = Place { kubeconfig: liar.kubeconfig.clone(), audit_log: None };
    let world = World::new("sight", ControlPlane::ours(), &[place]).await;
    let truth = client(members[0].kubeconfig()).await;
    let inside = config_maps().api(truth, &world.namespace);
    let selectors: Vec<Value> =
        NAMES.iter().map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name})).collect();
    let policies =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": "all"},
        "spec": {"resourceSelectors": selectors, "placement": {}}});
    world.create(&policies, policy).await;
    for name in NAMES {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
        world.create(&config_maps(), map).await;
    }
    for name in NAMES {
        has(&inside, name, "1", "it arrives").await;
    }
    let kept = uid(&inside, "kept").await;
    let drifted = uid(&inside, "drifted").await;

    // A watch is lost, and somebody else is busy in the member meanwhile. When it comes back, all is made good.
    liar.set(Mode::NoWatches);
    liar.told(1).await;
    let change = Patch::Merge(json!({"data": {"a": "somebody else's"}}));
    inside.patch("drifted", &PatchParams::default(), &change).await.expect("changed in the member");
    inside.delete("deleted", &DeleteParams::default()).await.expect("deleted in the member");
    liar.set(Mode::Honest);
    has(&inside, "drifted", "1", "a change that nobody saw is undone").await;
    has(&inside, "deleted", "1", "a deletion that nobody saw is undone").await;
    assert_eq!((uid(&inside, "kept").await, uid(&inside, "drifted").await), (kept.clone(), drifted.clone()));

    // The member's lists are empty. What is wanted still reaches it, and stays in it.
    let deleted = uid(&inside, "deleted").await;
    liar.set(Mode::EmptyLists);
    liar.told(1).await;
    for name in NAMES {
        world.patch(&config_maps(), name, &json!({"data": {"a": "2"}})).await;
        has(&inside, name, "2", "a change arrives although the member seems empty").await;
    }

    // Revisions are too old whenever a watch begins: lists are all there is.
    liar.set(Mode::Gone);
    liar.told(2).await;
    for name in NAMES {
        world.patch(&config_maps(), name, &json!({"data": {"a": "3"}})).await;
        has(&inside, name, "3", "a change arrives without watches").await;
    }
    liar.set(Mode::Honest);
    let now = (uid(&inside, "kept").await, uid(&inside, "drifted").await, uid(&inside, "deleted").await);
    assert_eq!(now, (kept, drifted, deleted), "everything is what it was");
    assert_eq!(liar.deletions(), 0, "nobody asked for a deletion");

    // What is really to go, goes, and is counted.
    world.in_plane(&config_maps()).delete("kept", &DeleteParams::background()).await.expect("deleted");
    until_gone(&inside, "kept", "a template that is deleted leaves the member").await;
    assert_eq!(liar.deletions(), 1);
    world.leave().await;
}
