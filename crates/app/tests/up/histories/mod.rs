//! Clients of three servers on three etcds, while servers and etcds are killed, frozen and cut off: what they saw was one store.
//!
//! What is done and what goes wrong follows from a seed; how long each takes does not. One short round is part of CI;
//! `cargo xtask histories --minutes N --seed S` runs many. A history that no store explains is written to a file.

mod clients;
mod faults;
mod rolling;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusters::{Etcd, Network, Peers, Way};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use testkit::history::truth::Truth;
use testkit::history::{Change, History, Outcome, judge};
use testkit::{Server, eventually, install_tls};

use clients::{Crowd, Place};
use faults::{Act, Fault};

const SERVERS: usize = 3;
const CLIENTS: usize = 10;
const WATCHERS: usize = 3;
/// What the round in CI follows, and how long it lasts.
const SEED: u64 = 1;
const SHORT: Duration = Duration::from_secs(6);

/// Three etcds with a network between them, three servers, and a network of its own for each server.
struct World {
    etcds: Vec<Etcd>,
    peers: Peers,
    servers: Vec<Server>,
    /// By server and etcd.
    ways: Vec<Vec<Way>>,
    /// Servers that have to run.
    wanted: Vec<bool>,
    place: Arc<Place>,
}

impl World {
    async fn start(dir: &Path) -> Option<Self> {
        let (etcds, peers) = Etcd::several_apart(dir, SERVERS).await.expect("etcd starts")?;
        let mut ways = Vec::new();
        for _ in 0..SERVERS {
            let mut own = Vec::new();
            for etcd in &etcds {
                own.push(etcd.way().await.expect("a way to etcd that can be cut"));
            }
            ways.push(own);
        }
        let endpoints: Vec<String> = (0..SERVERS)
            .map(|server| {
                // Each starts with another etcd.
                let own = (0..SERVERS).map(|at| ways[server][(server + at) % SERVERS].endpoint.clone());
                own.collect::<Vec<_>>().join(",")
            })
            .collect();
        let servers: Vec<Server> = std::thread::scope(|scope| {
            let starts: Vec<_> = endpoints
                .iter()
                .enumerate()
                .map(|(number, etcd)| {
                    let data = dir.join(format!("server-{number}"));
                    scope.spawn(move || {
                        let flags =
                            ["--store", "etcd", "--etcd-servers", etcd, "--etcd-compaction-interval", "10"];
                        Server::at(env!("CARGO_BIN_EXE_karmada"), &data, &flags)
                    })
                })
                .collect();
            starts.into_iter().map(|start| start.join().expect("it starts")).collect()
        });
        let mut clients = Vec::new();
        for server in &servers {
            let mut config = super::servers::config(server).await;
            config.default_retry = false;
            config.connect_timeout = Some(Duration::from_secs(2));
            clients.push(Client::try_from(config).expect("a client"));
        }
        let place = Arc::new(Place::new(clients, clients::HASTY));
        Some(Self { etcds, peers, servers, ways, wanted: vec![true; SERVERS], place })
    }

    /// Begins or ends a fault.
    async fn act(&mut self, act: Act) {
        match act {
            Act::Begin(fault) => match fault {
                Fault::KillServer(at) => {
                    self.wanted[at] = false;
                    self.servers[at].kill();
                }
                Fault::EndServer(at) => {
                    self.wanted[at] = false;
                    self.signal(at, testkit::process::Signal::TERM);
                }
                Fault::FreezeServer(at) => self.signal(at, testkit::process::Signal::STOP),
                Fault::CutServer(at, network) => {
                    for way in &mut self.ways[at] {
                        way.set(network).await;
                    }
                }
                Fault::CutWay(at, etcd, network) => self.ways[at][etcd].set(network).await,
                Fault::KillEtcd(at) => self.etcds[at].kill(),
                Fault::FreezeEtcd(at) => self.etcds[at].pause(),
                Fault::CutEtcd(..) | Fault::CutOthers(..) => self.between_etcds(fault, false),
            },
            Act::End(fault) => match fault {
                Fault::KillServer(at) | Fault::EndServer(at) => {
                    // One that has not ended by now is not waited for.
                    self.servers[at].kill();
                    self.wanted[at] = true;
                    self.launch(at);
                }
                Fault::FreezeServer(at) => self.signal(at, testkit::process::Signal::CONT),
                Fault::CutServer(at, _) => {
                    for way in &mut self.ways[at] {
                        way.set(Network::Open).await;
                    }
                }
                Fault::CutWay(at, etcd, _) => self.ways[at][etcd].set(Network::Open).await,
                Fault::KillEtcd(at) => self.etcds[at].launch_again().expect("etcd starts"),
                Fault::FreezeEtcd(at) => self.etcds[at].resume(),
                Fault::CutEtcd(..) | Fault::CutOthers(..) => self.between_etcds(fault, true),
            },
        }
    }

    fn between_etcds(&self, fault: Fault, healed: bool) {
        let (pairs, network) = fault.between_etcds().unwrap_or((Vec::new(), Network::Open));
        for (one, other) in pairs {
            self.peers.set(one, other, if healed { Network::Open } else { network });
        }
    }

    fn signal(&mut self, at: usize, signal: testkit::process::Signal) {
        if self.servers[at].is_running() {
            self.servers[at].process().signal(signal);
        }
    }

    fn launch(&mut self, at: usize) {
        self.servers[at].launch();
        self.place.started(at);
    }

    /// A server that finds no etcd when it starts ends: somebody has to start it again.
    fn tend(&mut self) {
        for at in 0..SERVERS {
            if self.wanted[at] && !self.servers[at].is_running() {
                self.launch(at);
            }
        }
    }

    /// Plays a schedule to its end, which heals everything.
    async fn play(&mut self, acts: Vec<(Duration, Act)>) {
        let start = Instant::now();
        for (at, act) in acts {
            while start.elapsed() < at {
                tokio::time::sleep((at - start.elapsed()).min(Duration::from_millis(300))).await;
                self.tend();
            }
            self.act(act).await;
        }
    }

    /// Waits until all servers answer, starting them again where they have ended.
    async fn recover(&mut self) {
        for at in 0..SERVERS {
            let client = self.place.clients[at].clone();
            eventually(format!("server {at} answers again"), async || {
                self.tend();
                let namespaces: Api<Namespace> = Api::all(client.clone());
                let asked = tokio::time::timeout(Duration::from_secs(5), namespaces.get("default")).await;
                asked.map_err(|_| "no answer".to_owned())?.map(drop).map_err(|error| error.to_string())
            })
            .await;
        }
    }
}

/// What one round came to.
#[derive(Default)]
struct Tally {
    rounds: u64,
    operations: usize,
    answered: usize,
    unknown: BTreeMap<String, usize>,
    watches: usize,
    shown: usize,
    changes: usize,
    faults: BTreeMap<&'static str, usize>,
}

async fn round(world: &mut World, seed: u64, number: u64, length: Duration, tally: &mut Tally) {
    let namespace = format!("histories-{number}");
    let namespaces: Api<Namespace> = Api::all(world.place.clients[0].clone());
    let new = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
    let made = namespaces.create(&PostParams::default(), &new).await.expect("it is new");
    let from = made.resource_version().and_then(|revision| revision.parse().ok()).expect("a revision");
    let endpoints: Vec<String> = world.etcds.iter().map(|etcd| etcd.endpoint.clone()).collect();
    let truth = Truth::follow(&endpoints, &format!("/karmada/configmaps//{namespace}/"), from);

    let schedule = faults::schedule(seed, number, length);
    for (_, act) in &schedule {
        if let Act::Begin(fault) = act {
            *tally.faults.entry(fault.name()).or_default() += 1;
        }
    }
    let crowd = Crowd::start(&world.place, &namespace, (seed, number), CLIENTS, WATCHERS);
    world.play(schedule).await;
    world.recover().await;
    let (operations, watches) = crowd.end().await;
    let last = operations
        .iter()
        .filter_map(|operation| match &operation.outcome {
            Outcome::List { revision, .. } => Some(*revision),
            _ => None,
        })
        .max()
        .unwrap_or(0);
    let newest = clients::newest_written(&operations);
    let changes: Vec<Change> = eventually("etcd's own account has everything", async || {
        let changes = truth.changes();
        let told = changes.last().map_or(0, |change| change.revision);
        if told >= newest { Ok(changes) } else { Err(format!("it is at {told} of {newest}")) }
    })
    .await;
    let changes = changes.into_iter().filter(|change| clients::is_ours(&change.name)).collect();
    let history = History { changes, operations, watches, compacted: truth.compacted().await };
    let violations = judge(&history);
    tally.rounds += 1;
    tally.operations += history.operations.len();
    for operation in &history.operations {
        match &operation.outcome {
            Outcome::Unknown(why) => *tally.unknown.entry(clients::in_short(why)).or_default() += 1,
            _ => tally.answered += 1,
        }
    }
    tally.watches += history.watches.len();
    tally.shown += history.watches.iter().map(|watch| watch.shown.len()).sum::<usize>();
    tally.changes += history.changes.len();
    eprintln!(
        "round {number}: {} operations, {} changes, {} watches, {} violations, revision {last}",
        history.operations.len(),
        history.changes.len(),
        history.watches.len(),
        violations.len()
    );
    if !violations.is_empty() {
        let file = std::env::temp_dir().join(format!("karmada-history-{seed}-{number}.json"));
        std::fs::write(&file, serde_json::to_vec(&history).expect("a history")).expect("a file");
        let first: Vec<String> = violations.iter().take(5).map(ToString::to_string).collect();
        panic!(
            "no store explains what clients saw in round {number} of seed {seed} ({} violations, the history is in {}):\n{}",
            violations.len(),
            file.display(),
            first.join("\n")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_clients_of_three_servers_see_is_one_store() {
    install_tls();
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("KARMADA_RS_HISTORIES_SEED").unwrap_or(SEED);
    let minutes = number("KARMADA_RS_HISTORIES_MINUTES");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let Some(mut world) = World::start(dir.path()).await else { return };
    let start = Instant::now();
    let mut tally = Tally::default();
    let length = if minutes.is_some() { Duration::from_secs(30) } else { SHORT };
    loop {
        round(&mut world, seed, tally.rounds, length, &mut tally).await;
        if start.elapsed() >= Duration::from_secs(60 * minutes.unwrap_or(0)) {
            break;
        }
    }
    eprintln!(
        "seed {seed}: {} rounds in {:?}: {} operations ({} answered), {} changes, {} watches that showed {} events, no violation\n\
         faults: {:?}\nwithout an answer: {:?}",
        tally.rounds,
        start.elapsed(),
        tally.operations,
        tally.answered,
        tally.changes,
        tally.watches,
        tally.shown,
        tally.faults,
        tally.unknown
    );
    assert!(tally.answered > 0 && tally.shown > 0, "nothing was seen");
}
