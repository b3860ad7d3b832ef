//! The things that make a Service reachable from other clusters come and go in every order. Whatever the order, nothing is left behind and
//! nothing is missing.
//!
//! Three kinds of order. A *walk* creates or deletes one thing at a time and waits; the long one takes every possible step from
//! every combination of things. A *burst* creates all objects at once and deletes them at once; the long one has every order of
//! creation and every order of deletion, and in some of them a cluster joins and leaves at each place. In CI both are short, by
//! chance. The long ones are run by name:
//! `cargo test -p app --test propagation services::orders::long -- --ignored --nocapture`.

use std::time::Instant;

use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::{Kind, eventually, until_gone};

use super::{
    CONTROLLERS, QUICK, deployment, deployments, export, exports, import, imports, multi, policies, service,
    services, slices,
};
use crate::members::{Access, Members, on_real_and_simulated_members};
use crate::plane::ControlPlane;
use crate::world::World;

on_real_and_simulated_members! {
    whatever_the_order_nothing_is_left_behind_and_nothing_is_missing(Exclusive, 3);
}

/// How many steps, or rounds, share a control plane: its audit log is read as a whole after each of them.
const WALKED: usize = 32;
const BURSTS: usize = 12;
/// In one of so many bursts a cluster joins and leaves.
const JOINING: usize = 4;

/// What comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Service,
    Export,
    Import,
    Multi,
    Policy,
    /// The first member.
    Cluster,
}

const THINGS: [Thing; 6] =
    [Thing::Service, Thing::Export, Thing::Import, Thing::Multi, Thing::Policy, Thing::Cluster];
/// Those that are objects of the control plane and nothing else.
const OBJECTS: [Thing; 5] = [Thing::Service, Thing::Export, Thing::Import, Thing::Multi, Thing::Policy];

/// What there should be: which things are there, and where the Service has been brought.
#[derive(Debug)]
struct Model {
    there: Vec<Thing>,
    /// The members where the Service is, while it exists. What a policy or a MultiClusterService has placed stays when they go.
    placed: Vec<usize>,
}

impl Model {
    /// Nothing but all clusters.
    fn new() -> Self {
        Self { there: vec![Thing::Cluster], placed: Vec::new() }
    }

    fn has(&self, thing: Thing) -> bool {
        self.there.contains(&thing)
    }

    fn flip(&mut self, thing: Thing) -> bool {
        let comes = !self.has(thing);
        if comes {
            self.there.push(thing);
        } else {
            self.there.retain(|other| *other != thing);
        }
        if !self.has(Thing::Service) {
            self.placed.clear();
        } else if self.has(Thing::Multi) {
            self.placed = vec![0, 1, 2];
        } else if self.has(Thing::Policy) {
            self.placed = vec![0, 1];
        } else if !self.has(Thing::Cluster) {
            // Nobody is behind its binding, so that it loses a cluster that leaves and does not get it back.
            self.placed.retain(|index| *index != 0);
        }
        comes
    }

    /// The members whose endpoints the third one should have, for the derived Service and for the Service itself.
    fn reached(&self) -> [Vec<usize>; 2] {
        let joined = |index: &usize| *index != 0 || self.has(Thing::Cluster);
        let placed = || self.placed.iter().copied().filter(|index| *index < 2).filter(joined);
        let derived = self.has(Thing::Export) && self.has(Thing::Import);
        let shared = self.has(Thing::Multi) && self.has(Thing::Service);
        [placed().filter(|_| derived).collect(), placed().filter(|_| shared).collect()]
    }
}

/// How members are looked after.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Push,
    Pull,
}

/// A world with everything but the things, and what there should be in it.
struct Stage {
    world: World,
    model: Model,
}

impl Stage {
    async fn new(tag: &str, mode: Mode, members: &Members) -> Self {
        let world = match mode {
            Mode::Push => World::of_services(tag, members).await,
            Mode::Pull => {
                let control = ControlPlane::with(CONTROLLERS, &QUICK);
                let flags = &["--install-mcs-crds", "--feature-gates=MultiClusterService=true"];
                let world = World::registered(tag, control, &members.places(), flags).await;
                world.until_they_know_exports().await;
                world
            }
        };
        world.policy("workload", ("apps/v1", "Deployment"), &[0, 1]).await;
        world.policy("exports", ("multicluster.x-k8s.io/v1alpha1", "ServiceExport"), &[0, 1]).await;
        world.policy("imports", ("multicluster.x-k8s.io/v1alpha1", "ServiceImport"), &[2]).await;
        world.create(&deployments(), deployment(1)).await;
        world.until_running(0, 1).await;
        world.until_running(1, 1).await;
        Self { world, model: Model::new() }
    }

    fn object(&self, thing: Thing) -> (Kind, &'static str, Value) {
        let names = |members: &[usize]| -> Vec<&str> {
            members.iter().map(|index| self.world.members[*index].name.as_str()).collect()
        };
        match thing {
            Thing::Service => (services(), "web", service(json!({}))),
            Thing::Export => (exports(), "web", export()),
            Thing::Import => (imports(), "web", import()),
            Thing::Multi => {
                let made = json!({"apiVersion": "networking.karmada.io/v1alpha1", "kind": "MultiClusterService",
                    "metadata": {"name": "web"}, "spec": {"types": ["CrossCluster"],
                        "consumerClusters": [{"name": names(&[2])[0]}]}});
                (multi(), "web", made)
            }
            Thing::Policy => {
                let made = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
                    "metadata": {"name": "services"}, "spec": {
                        "resourceSelectors": [{"apiVersion": "v1", "kind": "Service", "name": "web"}],
                        "placement": {"clusterAffinity": {"clusterNames": names(&[0, 1])}}}});
                (policies(), "services", made)
            }
            Thing::Cluster => unreachable!("a cluster is joined, not created"),
        }
    }

    /// Lets a thing come or go, and does not wait for what follows from it.
    async fn flip(&mut self, thing: Thing) {
        let comes = self.model.flip(thing);
        println!("{} {thing:?}", if comes { "+" } else { "-" });
        let world = &self.world;
        if thing == Thing::Cluster {
            if comes {
                world.until_left(0).await;
                world.join(0);
                world.until_ready(&world.members[0].name).await;
                world.until_running(0, 1).await;
            } else {
                world.unjoin(0);
            }
            return;
        }
        let (kind, name, made) = self.object(thing);
        let objects = world.in_plane(&kind);
        if comes {
            // One of the last round may be on its way out.
            until_gone(&objects, name, "the last one is gone").await;
            let object: DynamicObject = serde_json::from_value(made).expect("an object");
            objects.create(&PostParams::default(), &object).await.expect("it is created");
        } else {
            objects.delete(name, &DeleteParams::default()).await.expect("it is deleted");
        }
    }

    /// Waits until the third member has what it should have, and the world keeps all laws.
    async fn settle(&self) {
        for thing in OBJECTS.into_iter().filter(|thing| !self.model.has(*thing)) {
            let (kind, name, _) = self.object(thing);
            until_gone(&self.world.in_plane(&kind), name, "what was deleted goes").await;
        }
        let [derived, shared] = self.model.reached();
        self.world.until_reached(2, "derived-web", &derived, 1).await;
        self.world.until_reached(2, "web", &shared, 1).await;
        self.world.check().await;
    }

    async fn step(&mut self, thing: Thing) {
        self.flip(thing).await;
        self.settle().await;
    }

    /// Fails if anything is left of the Service, in the control plane or in a member.
    async fn is_empty(&self) {
        let world = &self.world;
        for member in 0..3 {
            for name in ["web", "derived-web"] {
                assert_eq!(world.slices(member, name, true).await, [], "{name} in member {member}");
                until_gone(&world.in_member(member, &services()), name, "no Service is left").await;
            }
        }
        for name in ["web", "derived-web"] {
            until_gone(&world.in_plane(&services()), name, "no Service is left in the control plane").await;
        }
        let left = world.in_plane(&slices()).list(&ListParams::default()).await.expect("slices").items;
        assert!(left.is_empty(), "{left:?}");
        eventually("no Work is left of the Service", async || {
            let works = kube::Api::<DynamicObject>::all_with(world.plane.clone(), &Kind::work().resource);
            let mut left = Vec::new();
            for label in ["multiclusterservice.karmada.io/name=web", "endpointslice.karmada.io/name=web"] {
                let found = works.list(&ListParams::default().labels(label)).await.expect("Works");
                left.extend(found.items.into_iter().filter_map(|work| work.metadata.name));
            }
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }

    /// Lets everything go that is there, in an order of chance, and ends.
    async fn end(mut self, random: &mut StdRng) {
        let mut order = OBJECTS;
        order.shuffle(random);
        for thing in order {
            if self.model.has(thing) {
                self.step(thing).await;
            }
        }
        if !self.model.has(Thing::Cluster) {
            self.step(Thing::Cluster).await;
        }
        self.is_empty().await;
        self.world.leave().await;
    }

    /// All objects come in one order, and go in another, with no pause between them. If a cluster is among them, it is away before and
    /// comes back afterwards.
    async fn burst(&mut self, coming: &[Thing], going: &[Thing]) {
        if coming.contains(&Thing::Cluster) {
            self.step(Thing::Cluster).await;
        }
        for thing in coming {
            self.flip(*thing).await;
        }
        self.settle().await;
        for thing in going {
            self.flip(*thing).await;
        }
        self.settle().await;
        if !self.model.has(Thing::Cluster) {
            self.step(Thing::Cluster).await;
        }
        self.is_empty().await;
    }
}

fn chance() -> StdRng {
    let seed = std::env::var("KARMADA_RS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("KARMADA_RS_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Steps of chance, and bursts of chance.
async fn whatever_the_order_nothing_is_left_behind_and_nothing_is_missing(members: Members) {
    let mut random = chance();
    let mut stage = Stage::new("orders", Mode::Push, &members).await;
    let (mut coming, mut going) = (OBJECTS, OBJECTS);
    coming.shuffle(&mut random);
    going.shuffle(&mut random);
    stage.burst(&coming, &going).await;
    let mut order = THINGS.to_vec();
    order.shuffle(&mut random);
    order.extend((0..4).map(|_| THINGS[random.random_range(0..THINGS.len())]));
    for thing in order {
        stage.step(thing).await;
    }
    stage.end(&mut random).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_leave_nothing_behind_either() {
    testkit::install_tls();
    let Some(members) = Members::simulated(Access::Exclusive, 3).await else { return };
    let mut random = chance();
    let mut stage = Stage::new("pull", Mode::Pull, &members).await;
    let (mut coming, mut going) = (OBJECTS, OBJECTS);
    coming.shuffle(&mut random);
    going.shuffle(&mut random);
    stage.burst(&coming, &going).await;
    for thing in [Thing::Service, Thing::Multi, Thing::Cluster, Thing::Cluster] {
        stage.step(thing).await;
    }
    stage.end(&mut random).await;
}

/// Every order of creation once, and every order of deletion once.
async fn every_burst(mode: Mode, members: Members) {
    let rounds = permutations(&OBJECTS);
    let (count, started) = (rounds.len(), Instant::now());
    let mut random = chance();
    for (number, chunk) in (0..count).collect::<Vec<_>>().chunks(BURSTS).enumerate() {
        let mut stage = Stage::new(&format!("burst{number}"), mode, &members).await;
        for index in chunk {
            // Seven and the number of orders have no divisor in common, so that each comes once.
            let (mut coming, mut going) = (rounds[*index].clone(), rounds[(index * 7 + 3) % count].clone());
            // Joining takes seconds, so that it is not in all of them; but it is at every place.
            if index % JOINING == 0 {
                let place = index / JOINING % THINGS.len();
                coming.insert(place, Thing::Cluster);
                going.insert(OBJECTS.len() - place, Thing::Cluster);
            }
            println!("burst {index}: {coming:?}, {going:?}");
            stage.burst(&coming, &going).await;
        }
        stage.end(&mut random).await;
        println!(
            "{} of {count} orders, {} s",
            chunk.last().map_or(0, |last| last + 1),
            started.elapsed().as_secs()
        );
    }
}

/// Every step from every combination of things.
async fn every_step(mode: Mode, members: Members) {
    let walk = tour(THINGS.len());
    let (count, started) = (walk.len(), Instant::now());
    let mut random = chance();
    let mut done = 0;
    let mut there = vec![Thing::Cluster];
    for (number, chunk) in walk.chunks(WALKED).enumerate() {
        let mut stage = Stage::new(&format!("walk{number}"), mode, &members).await;
        // The last control plane ended here.
        for thing in OBJECTS.into_iter().filter(|thing| there.contains(thing)) {
            stage.flip(thing).await;
        }
        if !there.contains(&Thing::Cluster) {
            stage.flip(Thing::Cluster).await;
        }
        stage.settle().await;
        for index in chunk {
            stage.step(THINGS[*index]).await;
            done += 1;
        }
        there = stage.model.there.clone();
        println!("{done} of {count} steps, {} s", started.elapsed().as_secs());
        stage.end(&mut random).await;
    }
}

/// Returns all orders of some things.
fn permutations(things: &[Thing]) -> Vec<Vec<Thing>> {
    let [first, rest @ ..] = things else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for place in 0..=shorter.len() {
            let mut longer = shorter.clone();
            longer.insert(place, *first);
            all.push(longer);
        }
    }
    all
}

/// Returns a closed walk over all subsets of so many things, which takes every step (one thing comes or goes) from every subset
/// once. It begins where the last thing is there alone.
fn tour(things: usize) -> Vec<usize> {
    let start = 1_usize << (things - 1);
    let mut left: Vec<Vec<usize>> = (0..1_usize << things).map(|_| (0..things).collect()).collect();
    // Every subset has as many ways out as ways in, so that a walk that cannot go on is back at its start, and walks can be joined.
    let (mut stack, mut walk) = (vec![(start, None)], Vec::new());
    while let Some((at, by)) = stack.last().copied() {
        match left[at].pop() {
            Some(step) => stack.push((at ^ (1 << step), Some(step))),
            None => {
                stack.pop();
                walk.extend(by);
            }
        }
    }
    walk.reverse();
    walk
}

#[test]
fn a_tour_takes_every_step_once() {
    let walk = tour(THINGS.len());
    assert_eq!(walk.len(), 64 * 6);
    let (mut at, mut taken) = (32_usize, std::collections::BTreeSet::new());
    for step in walk {
        assert!(taken.insert((at, step)), "it is taken twice");
        at ^= 1 << step;
    }
    assert_eq!((at, permutations(&OBJECTS).len()), (32, 120));
}

/// The long ones: real members in push and in pull mode, and simulated ones.
mod long {
    use super::*;

    async fn real() -> Option<Members> {
        testkit::install_tls();
        Members::real(Access::Exclusive, 3).await
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes many minutes"]
    async fn every_burst_in_push_mode() {
        let Some(members) = real().await else { return };
        every_burst(Mode::Push, members).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes many minutes"]
    async fn every_burst_in_pull_mode() {
        let Some(members) = real().await else { return };
        every_burst(Mode::Pull, members).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes many minutes"]
    async fn every_step_in_push_mode() {
        let Some(members) = real().await else { return };
        every_step(Mode::Push, members).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "takes many minutes"]
    async fn every_step_in_pull_mode() {
        let Some(members) = real().await else { return };
        every_step(Mode::Pull, members).await;
    }
}
