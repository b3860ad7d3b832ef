//! What the heartbeat writes, on a server that records every request.

use http::Method;
use serde_json::json;

use super::*;
use crate::world::World;

const RENEWED: &str = "PUT karmada-cluster/leases/*-m1";
const MADE: &str = "POST karmada-cluster/leases";

#[tokio::test]
async fn a_lease_is_made_then_renewed_without_being_read() {
    let world = World::agent().await;
    world.namespace(NAMESPACE_CLUSTER).await;
    let name = world.cluster("m1", json!({ "spec": { "syncMode": "Pull" } })).await;
    let heartbeat = Heartbeat::new(&world.members(&[]));
    heartbeat.begin(&name);
    heartbeat.begin(&name);
    assert_eq!(heartbeat.queue.waiting(), std::slice::from_ref(&name), "it begins once");
    world.writes();
    let once = || world.once(heartbeat.as_ref(), &name);
    let Outcome::After(interval) = once().await else { panic!("it goes on") };
    assert!(interval >= Duration::from_secs(10) && interval < Duration::from_millis(10_401), "{interval:?}");
    assert_eq!(world.writes(), [MADE]);
    assert!(matches!(once().await, Outcome::After(_)));
    assert_eq!(world.writes(), [RENEWED]);

    // Another client wrote it: it is read, and then renewed.
    let leases = world.api::<Lease>(NAMESPACE_CLUSTER);
    let theirs = kube::api::Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    leases.patch(&name, &kube::api::PatchParams::default(), &theirs).await.expect("written");
    assert!(matches!(once().await, Outcome::Failed { conflict: true, .. }));
    assert!(matches!(once().await, Outcome::After(_)));
    assert_eq!(world.writes(), [RENEWED, RENEWED]);

    // What fails is tried again, from what the server has, and no later than the next renewal would be.
    assert_eq!(heartbeat.queue.longest_rest(), Duration::from_secs(10));
    world.refuse(Method::PUT, &format!("/leases/{name}"), 500, "InternalError");
    assert!(matches!(once().await, Outcome::Failed { conflict: false, .. }));
    assert!(matches!(once().await, Outcome::After(_)));

    // Without its Cluster it ends, and may begin again.
    world.environment.mirrors.clusters.remove(&runtime::Key::new("", &name), 0);
    world.writes();
    assert_eq!(once().await, Outcome::Done);
    assert_eq!(world.writes(), [""; 0]);
    assert!(!heartbeat.begun.load(Ordering::Relaxed));
    world.supervisor.stop().await;
}
