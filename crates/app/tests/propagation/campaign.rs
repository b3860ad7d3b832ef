//! A campaign of trouble on real members: each way in which a member or the control plane fails, with each way of leaving a cluster.
//!
//! While it lasts, a watch on every member, past the broken network, counts the replicas that are ready. At the end the laws of every world
//! are held against the members' audit logs. One case is part of CI; `cargo xtask trouble` runs all.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use testkit::{Kind, eventually, until, until_gone};

use crate::clock::Clock;
use crate::failover::{
    ALL, QUICK, bindings, deployment, deployments, placed, policies, policy, ready, taint_the_lost,
};
use crate::members::{Access, Members};
use crate::plane::ControlPlane;
use crate::world::World;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Nobody reaches the member; what runs there runs on.
    Cut,
    /// The member's API server dies, and is started again later.
    Killed,
    /// The member's API server is frozen: connections stay, nothing is answered.
    Frozen,
    /// The control plane dies in the middle of the eviction.
    PlaneKilled,
    /// Every answer of the member is late.
    Slow,
    /// The member comes back without anything that it was given.
    Emptied,
    /// The member comes back with what it had some time ago.
    Restored,
    /// The clock of the control plane jumps ahead by a day, and back.
    ClockMoved,
}

/// How the workload leaves a cluster that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Gracefully,
    Directly,
    /// It tolerates the loss.
    Never,
}

const TROUBLES: [Trouble; 8] = [
    Trouble::Cut,
    Trouble::Killed,
    Trouble::Frozen,
    Trouble::PlaneKilled,
    Trouble::Slow,
    Trouble::Emptied,
    Trouble::Restored,
    Trouble::ClockMoved,
];
const DAY: i64 = 24 * 3600;
const LEAVINGS: [Leaving; 3] = [Leaving::Gracefully, Leaving::Directly, Leaving::Never];
const REPLICAS: i64 = 2;

/// Counts ready replicas in all members.
struct Count {
    /// By member, and the least sum that was seen.
    state: Arc<Mutex<(Vec<i64>, i64)>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Count {
    /// Starts with what is there.
    async fn start(clients: Vec<kube::Client>, namespace: &str) -> Self {
        let state = Arc::new(Mutex::new((vec![0; clients.len()], i64::MAX)));
        let follow = |(index, client): (usize, kube::Client)| {
            let api: Api<DynamicObject> = deployments().api(client, namespace);
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                let mut events = watcher(api, watcher::Config::default().fields("metadata.name=web"))
                    .default_backoff()
                    .boxed();
                while let Some(event) = events.next().await {
                    let now = match event {
                        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                            ready(Some(&object))
                        }
                        Ok(watcher::Event::Delete(_)) => 0,
                        // Nothing is known of a server that is down; what runs there does not stop for that.
                        _ => continue,
                    };
                    let mut state = state.lock().expect("no panic");
                    state.0[index] = now;
                    let sum = state.0.iter().sum();
                    if state.1 != i64::MAX || sum >= REPLICAS {
                        state.1 = state.1.min(sum);
                    }
                }
            })
        };
        let tasks = clients.into_iter().enumerate().map(follow).collect();
        let count = Self { state, tasks };
        eventually("the replicas are counted", async || {
            let (by_member, least) = count.state.lock().expect("no panic").clone();
            if least == i64::MAX { Err(format!("{by_member:?}")) } else { Ok(()) }
        })
        .await;
        count
    }

    fn least(&self) -> i64 {
        self.state.lock().expect("no panic").1
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// The members, and what can be done to one of them.
struct Lab<'a> {
    members: &'a clusters::Members,
    victim: usize,
    clock: Option<Clock>,
}

impl Lab<'_> {
    fn victim(&self) -> &clusters::Cluster {
        &self.members[self.victim]
    }

    /// Breaks what the trouble breaks in the member.
    async fn harm(&self, trouble: Trouble) {
        let victim = self.victim();
        if let Some(clock) = &self.clock {
            clock.move_by(DAY);
            return;
        }
        match trouble {
            Trouble::Killed => victim.kill().await,
            Trouble::Frozen => victim.pause().await,
            Trouble::Slow => victim.network(clusters::Network::Slow { delay_ms: 300 }).await,
            _ => victim.cut_off().await,
        }
        .unwrap_or_else(|error| panic!("{trouble:?}: {}", error.chain()));
    }

    async fn mend(&self, trouble: Trouble) {
        let victim = self.victim();
        if let Some(clock) = &self.clock {
            clock.move_by(0);
            return;
        }
        match trouble {
            Trouble::Killed => victim.restart().await,
            Trouble::Frozen => victim.resume().await,
            _ => victim.heal().await,
        }
        .unwrap_or_else(|error| panic!("{trouble:?}: {}", error.chain()));
    }

    /// What happens to the member's objects while nobody reaches it.
    async fn tamper(&self, trouble: Trouble, namespace: &str) {
        let direct = self.victim().direct_client().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        match trouble {
            Trouble::Emptied => {
                let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces").api(direct, "");
                namespaces.delete(namespace, &DeleteParams::default()).await.expect("deleted");
                until_gone(&namespaces, namespace, "the member is empty").await;
            }
            Trouble::Restored => {
                let older = json!({"spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "web", "image": "older"}]}}}});
                let all = deployments().api(direct, namespace);
                all.patch("web", &PatchParams::default(), &Patch::Strategic(older)).await.expect("changed");
            }
            _ => {}
        }
    }
}

/// Whether the workload is expected to go somewhere else.
fn moves(trouble: Trouble, leaving: Leaving) -> bool {
    leaving != Leaving::Never
        && matches!(trouble, Trouble::Cut | Trouble::Killed | Trouble::Frozen | Trouble::PlaneKilled)
}

fn wish(leaving: Leaving, trouble: Trouble) -> Value {
    // Those who come back changed come back soon.
    let tolerates = leaving == Leaving::Never || matches!(trouble, Trouble::Emptied | Trouble::Restored);
    let tolerations = if tolerates {
        json!([{"key": "cluster.karmada.io/not-ready", "operator": "Exists"}])
    } else {
        json!([])
    };
    let mode = if leaving == Leaving::Directly { "Directly" } else { "Gracefully" };
    json!({"placement": {"clusterTolerations": tolerations}, "failover": {"cluster": {"purgeMode": mode}}})
}

/// Waits until the control plane, by a clock that is a day ahead, has looked at every member often enough to miss it.
async fn by_the_wrong_clock(world: &World) {
    let template = world.in_plane(&deployments()).get("web").await.expect("the template");
    let written = template.metadata.managed_fields.iter().flatten().filter_map(|fields| fields.time.as_ref());
    let latest = written.map(|time| time.0).max().expect("a time");
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(DAY / 2);
    assert!(latest > soon, "the control plane does not see the clock move: {latest}");
    let looks = async || -> Result<f64, String> {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        let text = world.plane.request_text(request).await.map_err(|error| error.to_string())?;
        let counts =
            text.lines().filter(|line| line.starts_with("cluster_sync_status_duration_seconds_count"));
        Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    };
    let before = looks().await.expect("metrics");
    let enough = before + 10.0 * world.members.len() as f64;
    eventually("every member is looked at", async || {
        let now = looks().await?;
        if now >= enough { Ok(()) } else { Err(format!("{now} looks of {enough}")) }
    })
    .await;
}

async fn case(members: &clusters::Members, number: usize, trouble: Trouble, leaving: Leaving) {
    let places: Vec<_> = members.iter().map(crate::members::Place::real).collect();
    let tag = format!("campaign{number}");
    let clock = (trouble == Trouble::ClockMoved).then(Clock::new);
    clock.iter().for_each(Clock::prove);
    let control = match &clock {
        Some(clock) => ControlPlane::of(clock.program(), ALL, &QUICK),
        None => ControlPlane::with(ALL, &QUICK),
    };
    let mut world = World::new(&tag, control, &places).await;
    taint_the_lost(&world).await;
    world.create(&deployments(), deployment("web")).await;
    world.create(&policies(), policy("web", wish(leaving, trouble))).await;
    let lab = Lab { members, victim: world.until_placed("web").await, clock };
    let kept = world.uid(lab.victim, "web").await;
    let mut clients = Vec::new();
    for member in members.iter() {
        clients.push(member.direct_client().await.unwrap_or_else(|error| panic!("{}", error.chain())));
    }
    let count = Count::start(clients, &world.namespace).await;

    lab.harm(trouble).await;
    let lost = !matches!(trouble, Trouble::Slow | Trouble::ClockMoved);
    if lost {
        world.until_tainted(lab.victim, true).await;
    }
    if trouble == Trouble::PlaneKilled {
        world.control.kill();
        world.control.start();
    }
    let left = world.members[lab.victim].name.clone();
    let binding = api::names::binding("Deployment", "web");
    let mut place = lab.victim;
    if moves(trouble, leaving) {
        let elsewhere =
            |found: Option<&DynamicObject>| matches!(placed(found).as_slice(), [there] if *there != left);
        until(&world.in_plane(&bindings()), &binding, "it is placed elsewhere", elsewhere).await;
        place = world.until_placed("web").await;
    }
    lab.tamper(trouble, &world.namespace).await;
    // Without an eviction, a change of the template arrives in the same copy; one that cannot arrive yet does so in the end.
    world.patch(&deployments(), "web", &json!({"metadata": {"labels": {"later": "yes"}}})).await;
    if trouble == Trouble::ClockMoved {
        by_the_wrong_clock(&world).await;
    }
    lab.mend(trouble).await;
    if lost {
        world.until_tainted(lab.victim, false).await;
    }
    until(&world.in_member(place, &deployments()), "web", "the later change, and all replicas", |found| {
        let labels = found.and_then(|found| found.metadata.labels.as_ref());
        ready(found) == REPLICAS && labels.is_some_and(|labels| labels.contains_key("later"))
    })
    .await;
    if moves(trouble, leaving) {
        until_gone(&world.in_member(lab.victim, &deployments()), "web", "the old copy goes").await;
    } else if trouble == Trouble::Emptied {
        assert_ne!(world.uid(place, "web").await, kept, "it is a new one");
    } else {
        assert_eq!(world.uid(place, "web").await, kept, "it was never deleted");
    }
    assert_eq!(world.until_placed("web").await, place, "and stays where it is");
    let images = world.in_member(place, &deployments()).get("web").await.expect("it is there");
    assert_eq!(images.data["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
    let least = count.least();
    // Whoever tampered with the member took them away, not we.
    let allowed = if matches!(trouble, Trouble::Emptied | Trouble::Restored) { 0 } else { REPLICAS };
    assert!(least >= allowed, "{trouble:?}, {leaving:?}: only {least} replicas were ready at some moment");
    println!("{trouble:?}, {leaving:?}: never fewer than {least} of {REPLICAS} replicas were ready");
    drop(count);
    world.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_dies_in_the_middle_of_an_eviction_loses_no_replica() {
    testkit::install_tls();
    let Some(Members::Real(members)) = Members::real(Access::Exclusive, 3).await else { return };
    case(&members, 0, Trouble::PlaneKilled, Leaving::Gracefully).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; `cargo xtask trouble` runs it"]
async fn no_trouble_loses_a_replica_however_clusters_are_left() {
    testkit::install_tls();
    let Some(Members::Real(members)) = Members::real(Access::Exclusive, 3).await else { return };
    let cases = TROUBLES.iter().flat_map(|trouble| LEAVINGS.map(|leaving| (*trouble, leaving)));
    for (number, (trouble, leaving)) in cases.enumerate() {
        case(&members, number + 1, trouble, leaving).await;
    }
}
