//! `kill -9` at random points: what was acknowledged is there, and no revision is used twice.
//!
//! The test starts itself as a child process that writes as fast as it can and reports every acknowledgement on
//! its standard output. `STORE_CRASH_ROUNDS` raises the number of rounds.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use store::{EtcdOptions, Expect, Options, Store};

use crate::support::{Dice, Mark, delete, put, set};

const WRITERS: u64 = 5;
/// Writes what nobody waits for, then waits until it is on disk, as whoever finds that nothing is to be changed.
const WAITER: u64 = 5;
const PLACE: &str = "STORE_CRASH_PLACE";

/// Where the child's store is.
enum Place {
    Dir(PathBuf),
    Etcd(String),
}

impl Place {
    fn parse(text: &str) -> Self {
        if text.starts_with("http:") { Self::Etcd(text.to_owned()) } else { Self::Dir(text.into()) }
    }

    fn text(&self) -> String {
        match self {
            Self::Dir(dir) => dir.display().to_string(),
            Self::Etcd(endpoint) => endpoint.clone(),
        }
    }

    fn store(&self) -> Store<Mark> {
        let options = match self {
            Self::Dir(dir) => Options::file(dir),
            Self::Etcd(endpoint) => Options::etcd(EtcdOptions::new([endpoint.clone()])),
        };
        Store::open(options).expect("opens after a crash")
    }
}

/// One acknowledged step of one writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    number: u64,
    revision: u64,
}

/// What the parent was told, over all rounds.
#[derive(Default)]
struct Ledger {
    /// By writer: its last acknowledged step.
    durable: BTreeMap<u64, Step>,
    /// Every revision that anybody was told, and the step it belongs to.
    used: BTreeMap<u64, String>,
}

impl Ledger {
    fn take(&mut self, line: &str, round: u64) {
        // The test harness of the child prints too.
        let Some(report) = line.strip_prefix("ack ") else { return };
        let fields: Vec<u64> = report.split(' ').map(|field| field.parse().expect("a number")).collect();
        let [writer, number, revision] = fields[..] else { panic!("odd report {report:?}") };
        let step = format!("round {round} writer {writer} step {number}");
        // 0: the step was found to have been made by the last child.
        if revision != 0
            && let Some(other) = self.used.insert(revision, step.clone())
        {
            panic!("revision {revision} of {other} was used again by {step}");
        }
        // Writer 0 is the buffered one: only its revisions count.
        if writer > 0 {
            self.durable.insert(writer, Step { number, revision });
        }
    }
}

#[tokio::test]
async fn finding_25_an_acknowledged_write_survives_kill_9_and_no_revision_is_reused() {
    let rounds: u64 = std::env::var("STORE_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let dir = tempfile::tempdir().unwrap();
    let place = Place::Dir(dir.path().to_owned());
    let mut dice = Dice::new(42);
    let mut ledger = Ledger::default();
    for round in 0..rounds {
        kill_a_writer(&place, &mut ledger, &mut dice, round);
        verify(&place, &mut ledger, round).await;
    }
    assert!(ledger.used.len() as u64 > rounds * 10, "only {} writes in {rounds} rounds", ledger.used.len());
}

/// On etcd the server dies, or etcd does after it, or both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_write_on_etcd_survives_kill_9_of_server_and_etcd() {
    let rounds = 12;
    let dir = tempfile::tempdir().unwrap();
    let Some(mut etcd) = clusters::Etcd::alone(dir.path()).await.expect("etcd starts") else { return };
    let place = Place::Etcd(etcd.endpoint.clone());
    let mut dice = Dice::new(43);
    let mut ledger = Ledger::default();
    for round in 0..rounds {
        kill_a_writer(&place, &mut ledger, &mut dice, round);
        if round % 3 == 2 {
            etcd.kill();
            etcd.start_again().await.expect("it starts again");
        }
        verify(&place, &mut ledger, round).await;
    }
    assert!(ledger.used.len() as u64 > rounds * 10, "only {} writes in {rounds} rounds", ledger.used.len());
}

/// Lets a child write for a while, and kills it.
fn kill_a_writer(place: &Place, ledger: &mut Ledger, dice: &mut Dice, round: u64) {
    let before = ledger.used.len();
    let kill_after = usize::try_from(dice.below(120)).expect("small");
    let mut child = start_writer(place, &ledger.durable);
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for line in lines.by_ref() {
        ledger.take(&line.expect("text"), round);
        if ledger.used.len() >= before + kill_after {
            break;
        }
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    // What was reported before the end counts as well.
    for line in lines.map_while(Result::ok) {
        ledger.take(&line, round);
    }
    assert!(ledger.used.len() >= before + kill_after, "round {round}: the child ended by itself");
}

async fn verify(place: &Place, ledger: &mut Ledger, round: u64) {
    let store = place.store();
    for (writer, step) in &ledger.durable {
        let found = store.get("durable", &format!("w{writer}"));
        let number = found.as_ref().map(|entry| entry.head.value.trim_end_matches('.').parse().unwrap());
        // The step after the acknowledged one may have been made, too: it was under way.
        let expected = [after(step.number), after(step.number + 1)];
        assert!(
            expected.contains(&number),
            "round {round}: writer {writer} was at {step:?}, found {number:?} instead of one of {expected:?}"
        );
        if let Some(entry) = found.filter(|_| number == after(step.number)) {
            assert_eq!(entry.modified, step.revision, "round {round}: writer {writer}");
        }
    }
    let newest = ledger.used.last_key_value().map_or(0, |(revision, _)| *revision);
    let next = set(&store, "checks", "round", &round.to_string()).await.revision;
    assert!(next > newest, "round {round}: revision {next} after {newest}");
    ledger.used.insert(next, format!("check of round {round}"));
    store.close().await;
}

/// What a writer's entry shows after a step: every fifth one deletes it.
fn after(number: u64) -> Option<u64> {
    (!number.is_multiple_of(5)).then_some(number)
}

fn start_writer(place: &Place, durable: &BTreeMap<u64, Step>) -> Child {
    let starts: Vec<String> = (0..=WRITERS)
        .map(|writer| durable.get(&writer).map_or(1, |step| step.number + 1).to_string())
        .collect();
    Command::new(std::env::current_exe().expect("we run"))
        .args(["crash::the_child_writes_until_it_is_killed", "--exact", "--ignored", "--nocapture"])
        .env(PLACE, place.text())
        .env("STORE_CRASH_STARTS", starts.join(","))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test can start itself")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child process of the crash test"]
async fn the_child_writes_until_it_is_killed() {
    let Ok(place) = std::env::var(PLACE) else { return };
    let starts = std::env::var("STORE_CRASH_STARTS").expect("given with the directory");
    let store = Place::parse(&place).store();
    let mut writers = tokio::task::JoinSet::new();
    for (writer, start) in starts.split(',').enumerate() {
        let (store, start) = (store.clone(), start.parse().expect("a number"));
        writers.spawn(async move { write_forever(&store, writer as u64, start).await });
    }
    writers.join_all().await;
}

async fn write_forever(store: &Store<Mark>, writer: u64, start: u64) {
    let name = format!("w{writer}");
    for number in start.. {
        let write = if writer == 0 {
            put("buffered", &name, Expect::Any, &number.to_string()).buffered()
        } else if let Some(number) = after(number) {
            // Of very different lengths, so that pages split and merge.
            let padding = ".".repeat(usize::try_from(number * 37 % 9_000).expect("short"));
            let write = put("durable", &name, Expect::Any, &format!("{number}{padding}"));
            match writer {
                1 => write.patient(),
                WAITER => write.buffered(),
                _ => write,
            }
        } else {
            delete("durable", &name, Expect::Any)
        };
        let revision = match store.commit(write).await {
            Ok(committed) => committed.revision,
            // The step before was under way when the last child died: the deletion has been made already.
            Err(store::CommitError::NotFound) => 0,
            Err(other) => panic!("{other}"),
        };
        if writer == WAITER {
            store.wait_until_durable(revision).await.expect("the disk is fine");
        }
        // One call per line, so that lines do not mix.
        let line = format!("ack {writer} {number} {revision}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).expect("the parent listens");
        if writer == 0 {
            // It never waits for the disk, so it would drown the others.
            store.wait_for(revision + 3).await;
        }
    }
}
