//! A campaign of trouble on real members: each way in which a member or the control plane fails, with each way of leaving a cluster.
//!
//! While it lasts, a watch on every member, past the broken network, counts the replicas that are ready, and the copies. At the end the
//! laws of every world are held against the members' audit logs. One case is part of CI; `cargo xtask trouble` runs all, or those
//! of the troubles that it is told.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::{FutureExt, StreamExt};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use testkit::{Kind, at, eventually, until, until_gone};

use crate::clock::Clock;
use crate::failover::{
    ALL, QUICK, bindings, deployment, deployments, placed, policies, policy, ready, taint_the_lost, tasks,
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
    /// The member comes back without any data: what it was given is gone, and so is the account of the control plane.
    Emptied,
    /// The member comes back from a snapshot: it has what it had some time ago, and revisions that are as low as then.
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
/// The troubles that are wanted, by their names.
const CHOSEN: &str = "KARMADA_RS_TROUBLE";

/// Counts copies and their ready replicas in all members.
struct Count {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Debug, Clone)]
struct Seen {
    /// Ready replicas by member; none where there is no copy.
    now: Vec<Option<i64>>,
    /// The fewest that were ready at the same time, once all had been.
    least: Option<i64>,
    /// The most copies at the same time.
    copies: usize,
}

impl Seen {
    fn note(&mut self, member: usize, replicas: Option<i64>) {
        self.now[member] = replicas;
        let sum = self.now.iter().flatten().sum();
        if self.least.is_some() || sum >= REPLICAS {
            self.least = Some(self.least.map_or(sum, |least| least.min(sum)));
        }
        self.copies = self.copies.max(self.now.iter().flatten().count());
    }
}

impl Count {
    /// Starts with what is there.
    async fn start(clients: Vec<kube::Client>, namespace: &str) -> Self {
        let seen = Seen { now: vec![None; clients.len()], least: None, copies: 0 };
        let seen = Arc::new(Mutex::new(seen));
        let follow = |(index, client): (usize, kube::Client)| {
            let api: Api<DynamicObject> = deployments().api(client, namespace);
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut events = watcher(api, watcher::Config::default().fields("metadata.name=web"))
                    .default_backoff()
                    .boxed();
                while let Some(event) = events.next().await {
                    let now = match event {
                        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                            Some(ready(Some(&object)))
                        }
                        Ok(watcher::Event::Delete(_)) => None,
                        // Nothing is known of a server that is down; what runs there does not stop for that.
                        _ => continue,
                    };
                    seen.lock().expect("no panic").note(index, now);
                }
            })
        };
        let tasks = clients.into_iter().enumerate().map(follow).collect();
        let count = Self { seen, tasks };
        eventually("the replicas are counted", async || {
            let seen = count.seen();
            if seen.least.is_none() { Err(format!("{seen:?}")) } else { Ok(()) }
        })
        .await;
        count
    }

    fn seen(&self) -> Seen {
        self.seen.lock().expect("no panic").clone()
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

    /// What happens to the member's data while nobody reaches it.
    async fn tamper(&self, trouble: Trouble) {
        match trouble {
            Trouble::Emptied => self.victim().restart_empty().await,
            Trouble::Restored => self.victim().restart_from_snapshot().await,
            _ => Ok(()),
        }
        .unwrap_or_else(|error| panic!("{trouble:?}: {}", error.chain()));
    }

    /// Gives the control plane an account in a member that has lost it, as its administrator would.
    async fn readmit(&self, world: &World) {
        let (name, namespace) = (&world.members[self.victim].name, format!("accounts-{}", world.tag));
        let account = api::names::service_account(name);
        let role = api::names::cluster_role(&account);
        let member = self.victim().direct_client().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let apply = async |kind: &Kind, object: Value| {
            let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
            let params = PatchParams::apply("administrator").force();
            let api = kind.api(member.clone(), &namespace);
            api.patch(&name, &params, &Patch::Apply(object)).await.expect("applied");
        };
        let namespaces = Kind::cluster("", "v1", "Namespace", "namespaces");
        apply(&namespaces, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}))
            .await;
        let accounts = Kind::namespaced("", "v1", "ServiceAccount", "serviceaccounts");
        apply(
            &accounts,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}),
        )
        .await;
        let bindings =
            Kind::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings");
        let all =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
        let account_itself = json!({"kind": "ServiceAccount", "name": account, "namespace": namespace});
        apply(
            &bindings,
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": role}, "roleRef": all, "subjects": [account_itself]}),
        )
        .await;
        let secrets = Kind::namespaced("", "v1", "Secret", "secrets");
        apply(
            &secrets,
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": account, "annotations": {"kubernetes.io/service-account.name": account}}}),
        )
        .await;
        let issued = until(&secrets.api(member.clone(), &namespace), &account, "a token", |found| {
            at(found, "/data/token").is_some()
        })
        .await;
        let token = at(issued.as_ref(), "/data/token").expect("a token");
        let secret = secrets.api(world.plane.clone(), &namespace);
        let change = Patch::Merge(json!({"data": {"token": token}}));
        secret.patch(name, &PatchParams::default(), &change).await.expect("the Secret of the cluster");
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

/// Fails unless the control plane goes by a clock that is a day ahead.
async fn assert_the_clock_is_wrong(world: &World) {
    let template = world.in_plane(&deployments()).get("web").await.expect("the template");
    let written = template.metadata.managed_fields.iter().flatten().filter_map(|fields| fields.time.as_ref());
    let latest = written.map(|time| time.0).max().expect("a time");
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(DAY / 2);
    assert!(latest > soon, "the control plane does not see the clock move: {latest}");
}

/// A workload that is everywhere and does not tolerate a loss: when it has left, others could have.
const CANARY: &str = "canary";

async fn until_the_canary_has_left(world: &World, cluster: &str) {
    let binding = api::names::binding("Deployment", CANARY);
    until(&world.in_plane(&bindings()), &binding, "others leave the lost cluster", |found| {
        let places = placed(found);
        !places.is_empty() && !places.iter().any(|place| place == cluster)
    })
    .await;
}

/// Changes the template after the snapshot that the member will be restored from.
async fn go_on_after_a_snapshot(world: &World, lab: &Lab<'_>) {
    let image = |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
    let there = world.in_member(lab.victim, &deployments());
    for (value, then) in [("older", true), ("nginx", false)] {
        world.patch(&deployments(), "web", &image(value)).await;
        until(&there, "web", "the image arrives", |found| {
            let now = at(found, "/spec/template/spec/containers/0/image");
            let updated = at(found, "/status/updatedReplicas").and_then(|updated| updated.as_i64());
            now == Some(json!(value)) && ready(found) == REPLICAS && updated == Some(REPLICAS)
        })
        .await;
        if then {
            lab.victim().snapshot().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        }
    }
}

/// Waits until every member issues tokens: its controllers look for what has changed only now and then after their API server was away,
/// and whoever joins a member waits for a token for half a minute only.
async fn until_in_order(members: &clusters::Members) {
    let (accounts, secrets) = (
        Kind::namespaced("", "v1", "ServiceAccount", "serviceaccounts"),
        Kind::namespaced("", "v1", "Secret", "secrets"),
    );
    for member in members.iter() {
        let client = member.direct_client().await.unwrap_or_else(|error| panic!("{}", error.chain()));
        let create = async |kind: &Kind, object: Value| {
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            let api = kind.api(client.clone(), "default");
            api.create(&PostParams::default(), &object).await.expect("created");
            api
        };
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "proof"}});
        let account = create(&accounts, account).await;
        let token = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": "proof", "annotations": {"kubernetes.io/service-account.name": "proof"}}});
        let token = create(&secrets, token).await;
        until(&token, "proof", "the member issues tokens", |found| at(found, "/data/token").is_some()).await;
        account.delete("proof", &DeleteParams::default()).await.expect("deleted");
        until_gone(&token, "proof", "and takes them back").await;
        until_gone(&account, "proof", "with their account").await;
    }
}

async fn case(members: &clusters::Members, number: usize, trouble: Trouble, leaving: Leaving) {
    let started = Instant::now();
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
    world.create(&deployments(), deployment(CANARY)).await;
    world.create(&policies(), policy(CANARY, json!({"placement": {"spreadConstraints": null}}))).await;
    let lab = Lab { members, victim: world.until_placed("web").await, clock };
    let kept = world.uid(lab.victim, "web").await;
    until(&world.in_member(lab.victim, &deployments()), CANARY, "the canary runs", |found| {
        ready(found) == REPLICAS
    })
    .await;
    if trouble == Trouble::Restored {
        go_on_after_a_snapshot(&world, &lab).await;
    }
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
    let left = world.members[lab.victim].name.clone();
    let binding = api::names::binding("Deployment", "web");
    let moving = moves(trouble, leaving);
    if trouble == Trouble::PlaneKilled {
        if moving {
            until(&world.in_plane(&bindings()), &binding, "the eviction begins", |found| {
                !tasks(found).is_empty() || !placed(found).contains(&left)
            })
            .await;
        }
        world.control.kill();
        world.control.start();
    }
    let mut place = lab.victim;
    if moving {
        let elsewhere =
            |found: Option<&DynamicObject>| matches!(placed(found).as_slice(), [there] if *there != left);
        let found = until(&world.in_plane(&bindings()), &binding, "it is placed elsewhere", elsewhere).await;
        place = world.number(&placed(found.as_ref())[0]);
        // What must never run twice waits for the old copy to go.
        if leaving != Leaving::Directly {
            assert_eq!(world.until_placed("web").await, place);
        }
    } else if lost {
        until_the_canary_has_left(&world, &left).await;
    }
    lab.tamper(trouble).await;
    // Without an eviction, a change of the template arrives in the same copy; one that cannot arrive yet does so in the end.
    world.patch(&deployments(), "web", &json!({"metadata": {"labels": {"later": "yes"}}})).await;
    if trouble == Trouble::ClockMoved {
        assert_the_clock_is_wrong(&world).await;
    }
    if !lost {
        // Long enough to miss a member: there is a look every second at most, and a loss has to last for twelve.
        world.until_looked_at(20).await;
    }
    lab.mend(trouble).await;
    if trouble == Trouble::Emptied {
        lab.readmit(&world).await;
    }
    if lost {
        world.until_tainted(lab.victim, false).await;
    }
    until(&world.in_member(place, &deployments()), "web", "the later change, and all replicas", |found| {
        let labels = found.and_then(|found| found.metadata.labels.as_ref());
        ready(found) == REPLICAS && labels.is_some_and(|labels| labels.contains_key("later"))
    })
    .await;
    if moving {
        until_gone(&world.in_member(lab.victim, &deployments()), "web", "the old copy goes").await;
    } else if trouble == Trouble::Emptied {
        assert_ne!(world.uid(place, "web").await, kept, "it is a new one");
    } else {
        assert_eq!(world.uid(place, "web").await, kept, "it was never deleted");
    }
    assert_eq!(world.until_placed("web").await, place, "and stays where it is");
    let images = world.in_member(place, &deployments()).get("web").await.expect("it is there");
    assert_eq!(images.data["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
    let Seen { least, copies, .. } = count.seen();
    let least = least.expect("it was counted");
    // A copy that goes before the next one comes is what was asked for, and a member that lost its data has none.
    let none_for_a_while = trouble == Trouble::Emptied || (moving && leaving == Leaving::Directly);
    let allowed = if none_for_a_while { 0 } else { REPLICAS };
    assert!(least >= allowed, "{trouble:?}, {leaving:?}: only {least} replicas were ready at some moment");
    // A watch that was interrupted tells of a deletion too late.
    if leaving == Leaving::Directly && !matches!(trouble, Trouble::Killed | Trouble::Frozen) {
        assert_eq!(copies, 1, "{trouble:?}: it never runs twice");
    }
    drop(count);
    world.leave().await;
    println!(
        "{trouble:?}, {leaving:?}: never fewer than {least} of {REPLICAS} replicas were ready, at most {copies} copies; {:.0} s",
        started.elapsed().as_secs_f32()
    );
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
    let chosen = std::env::var(CHOSEN).unwrap_or_default().to_lowercase();
    let chosen: Vec<&str> = chosen.split_whitespace().collect();
    let is_chosen = |trouble: &Trouble| {
        chosen.is_empty() || chosen.contains(&format!("{trouble:?}").to_lowercase().as_str())
    };
    let known: Vec<String> = TROUBLES.iter().map(|trouble| format!("{trouble:?}").to_lowercase()).collect();
    for name in &chosen {
        assert!(known.iter().any(|known| known == name), "there is no trouble called {name}: {known:?}");
    }
    let cases = TROUBLES.into_iter().flat_map(|trouble| LEAVINGS.map(|leaving| (trouble, leaving)));
    let mut failed = Vec::new();
    for (number, (trouble, leaving)) in cases.enumerate().filter(|(_, (trouble, _))| is_chosen(trouble)) {
        // Members that were lent are put in order when they are given back.
        let Some(Members::Real(members)) = Members::real(Access::Exclusive, 3).await else { return };
        until_in_order(&members).await;
        let ended = AssertUnwindSafe(case(&members, number + 1, trouble, leaving)).catch_unwind().await;
        if ended.is_err() {
            println!("{trouble:?}, {leaving:?}: failed");
            failed.push((trouble, leaving));
        }
    }
    assert!(failed.is_empty(), "these failed: {failed:?}");
}
