//! Agents that fall silent, on a server.

use std::sync::LazyLock;

use http::Method;
use runtime::Key;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{at, cluster};
use crate::world::World;
use crate::{Settings, Timing};

/// When second 0 was on the clock that does not jump.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn view(ready: &str, renewed: Result<Option<i64>, String>, signs: Option<Signs>, second: u64) -> View {
    let pull = json!({ "spec": { "syncMode": "Pull" }, "metadata": { "creationTimestamp": "1970-01-01T00:00:00Z" } });
    let grace = Grace { startup: Duration::from_secs(60), monitor: Duration::from_secs(40) };
    View {
        cluster: Arc::new(cluster("m1", ready, pull)),
        renewed: renewed.map(|second| second.map(at)),
        signs,
        grace,
        at: *BEGAN + Duration::from_secs(second),
    }
}

#[test]
fn what_follows_from_a_look() {
    let seen = |ready: &str, renewed: Option<i64>, second: u32| {
        let view = view(ready, Ok(renewed), None, second.into());
        let Plan::Note { signs, .. } = decide(&view, at(second.into())) else { panic!("signs") };
        Some(signs)
    };
    // Ready, renewed, what was seen before, now; then: the reason of the verdict.
    let cases = [
        ("the first look", "True", Ok(None), None, 500_u32, Some(None)),
        ("it never reported, and is young", "", Ok(None), None, 60, Some(None)),
        ("it never reported", "", Ok(None), None, 61, Some(Some("ClusterStatusNeverUpdated"))),
        ("silent, not for long", "True", Ok(Some(0)), seen("True", Some(0), 0), 40, Some(None)),
        ("silent", "True", Ok(Some(0)), seen("True", Some(0), 0), 41, Some(Some("ClusterStatusUnknown"))),
        ("renewed meanwhile", "True", Ok(Some(39)), seen("True", Some(0), 0), 41, Some(None)),
        (
            "renewed, by a clock that was set back",
            "True",
            Ok(Some(20)),
            seen("True", Some(90), 0),
            41,
            Some(None),
        ),
        (
            "the Lease has gone",
            "True",
            Ok(None),
            seen("True", Some(0), 0),
            41,
            Some(Some("ClusterStatusUnknown")),
        ),
        ("its condition moved", "False", Ok(Some(0)), seen("True", Some(0), 0), 41, Some(None)),
        ("known to be unknown", "Unknown", Ok(Some(0)), seen("Unknown", Some(0), 0), 500, Some(None)),
        ("the Lease cannot be read", "True", Err("e".to_owned()), seen("True", Some(0), 0), 500, None),
    ];
    for (name, ready, renewed, signs, second, expected) in cases {
        let found = match decide(&view(ready, renewed, signs, u64::from(second)), at(second.into())) {
            Plan::Nothing(_) => None,
            Plan::Note { verdict, .. } => Some(verdict.map(|verdict| verdict.reason)),
        };
        let expected = expected.map(|verdict: Option<&str>| verdict.map(str::to_owned));
        assert_eq!(found, expected, "{name}");
    }
}

struct Test {
    world: World,
    monitor: Arc<Monitor>,
    name: String,
}

impl Test {
    /// A cluster whose agent is given no time at all.
    async fn new(otherwise: Value) -> Self {
        let timing = Timing {
            monitor_grace_period: Duration::from_nanos(1),
            startup_grace_period: Duration::from_nanos(1),
            ..Timing::default()
        };
        let world = World::with(Settings { timing, ..Settings::default() }).await;
        let monitor = Monitor::subscribed(&world.members(&[]));
        let name = world.cluster("m1", otherwise).await;
        Self { world, monitor, name }
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.monitor.as_ref(), &self.name).await
    }

    async fn ready(&self) -> String {
        let stored = self.world.api::<Cluster>("").get(&self.name).await.expect("it exists");
        stored
            .status
            .condition(conditions::READY)
            .map(|condition| condition.status.clone())
            .unwrap_or_default()
    }
}

#[tokio::test]
async fn a_silent_agent_is_noticed_and_told_once() {
    let test = Test::new(json!({ "spec": { "syncMode": "Pull" } })).await;
    let again = Outcome::After(Timing::default().monitor_period);
    assert_eq!(test.monitor.queue.waiting(), std::slice::from_ref(&test.name));
    test.world.writes();
    assert_eq!(test.once().await, again, "the first look");
    assert_eq!(test.world.writes(), [""; 0]);
    // A Lease that cannot be read is not silence.
    test.world.refuse(Method::GET, &format!("/leases/{}", test.name), 500, "InternalError");
    assert_eq!(test.once().await, again);
    assert_eq!(test.world.writes(), [""; 0]);
    // Somebody changed the cluster: the verdict is for the next look.
    let cluster = test.world.environment.mirrors.clusters.get("", &test.name).expect("known");
    let changed = test.world.patch(cluster.as_ref(), json!({ "metadata": { "labels": { "a": "b" } } })).await;
    assert_eq!(test.once().await, again);
    assert_eq!(test.ready().await, "True");
    test.world.environment.mirrors.clusters.note(changed);
    assert_eq!(test.once().await, again);
    assert_eq!(test.ready().await, "Unknown");
    let known = test.world.environment.mirrors.clusters.get("", &test.name).expect("known");
    let known = known.status.condition(conditions::READY).expect("a condition").status.clone();
    assert_eq!(known, "Unknown", "the mirror knows of our own write at once");
    assert_eq!(test.world.writes(), ["PATCH clusters/*-m1/status", "PATCH clusters/*-m1/status"]);
    assert_eq!(test.once().await, again, "its condition moved, which is a sign");
    assert_eq!(test.once().await, again);
    assert_eq!(test.world.writes(), [""; 0], "it is known");
    test.world.environment.mirrors.clusters.remove(&Key::new("", &test.name), 0);
    assert!(test.monitor.signs.lock().is_empty(), "nothing is remembered of a cluster that is gone");
    assert_eq!(test.once().await, Outcome::Done);
    test.world.supervisor.stop().await;
}

#[tokio::test]
async fn clusters_in_push_mode_are_left_alone() {
    let test = Test::new(json!({})).await;
    assert!(test.monitor.queue.waiting().is_empty());
    assert_eq!(test.once().await, Outcome::Done);
    let cluster = test.world.environment.mirrors.clusters.get("", &test.name).expect("known");
    let pulls = test.world.patch(cluster.as_ref(), json!({ "spec": { "syncMode": "Pull" } })).await;
    test.world.environment.mirrors.clusters.note(pulls);
    assert_eq!(test.monitor.queue.waiting(), std::slice::from_ref(&test.name), "it changed its mode");
    test.world.supervisor.stop().await;
}
