//! Compares embedded databases on the store's own job: small durable transactions that replace 1 KB values.
//!
//! Many writers wait each for its own write; one committer takes whatever has gathered, writes it as one
//! transaction, syncs, and answers. That is how the store uses its database, so it is what counts here; reads do
//! not matter, as the store never reads from disk except when it is opened.
//!
//! `cargo run --release -p store --features compare --example compare [seconds per run]`

use std::{
    fs,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use redb::{ReadableDatabase, ReadableTable};
use store::{Expect, Options, Store, Write};

const NAMES: u64 = 10_000;
const WRITERS: [usize; 3] = [1, 16, 256];

type Item = (String, Vec<u8>);

trait Engine: Sized {
    const NAME: &'static str;
    fn open(dir: &Path) -> Self;
    /// Writes the batch and returns after it is on disk.
    fn commit(&mut self, batch: &[Item]);
    /// Reads everything, returning how many entries there are.
    fn scan(&mut self) -> usize;
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(3.0);
    let time = Duration::from_secs_f64(seconds);
    println!(
        "| engine | writers | commits/s | writes per sync | CPU per commit | file | reopen and read all |"
    );
    println!("|---|---|---|---|---|---|---|");
    for writers in WRITERS {
        run::<Redb>(writers, time);
        run::<Fjall>(writers, time);
        run::<Sqlite>(writers, time);
        run_store(writers, time);
    }
}

fn run<E: Engine>(writers: usize, time: Duration) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut engine = E::open(dir.path());
    fill(|batch| engine.commit(batch));

    let (queue, gathered) = mpsc::channel::<(Item, mpsc::Sender<()>)>();
    let end = Instant::now() + time;
    let (cpu, started) = (cpu_time(), Instant::now());
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let queue = queue.clone();
            thread::spawn(move || {
                let (done, wait) = mpsc::channel();
                let mut dice = Dice(writer as u64 * 7_919 + 1);
                while Instant::now() < end {
                    queue.send((dice.item(), done.clone())).expect("the committer is there");
                    wait.recv().expect("the committer answers");
                }
            })
        })
        .collect();
    drop(queue);
    let (mut commits, mut syncs) = (0, 0);
    while let Ok(first) = gathered.recv() {
        let (batch, waiting): (Vec<Item>, Vec<_>) =
            std::iter::once(first).chain(gathered.try_iter().take(1_023)).unzip();
        engine.commit(&batch);
        commits += batch.len();
        syncs += 1;
        for done in waiting {
            // A writer whose time is over is gone.
            let _ = done.send(());
        }
    }
    let (took, cpu) = (started.elapsed(), cpu_time() - cpu);
    for thread in threads {
        thread.join().expect("writers do not panic");
    }
    drop(engine);
    report(E::NAME, writers, commits, syncs, took, cpu, dir.path(), || E::open(dir.path()).scan());
}

/// The store itself on the same job: sequencing, memory, history and all.
fn run_store(writers: usize, time: Duration) {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let open = || Store::<()>::open(Options::file(dir.path())).expect("opens");
    let store = open();
    fill(|batch| {
        runtime.block_on(async {
            for item in batch {
                store.commit(put(item.clone()).buffered()).await.expect("unconditional");
            }
        });
    });
    let before = store.stats();
    let end = Instant::now() + time;
    let (cpu, started) = (cpu_time(), Instant::now());
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..writers {
            let store = store.clone();
            tasks.spawn(async move {
                let mut dice = Dice(writer as u64 * 7_919 + 1);
                while Instant::now() < end {
                    store.commit(put(dice.item())).await.expect("unconditional");
                }
            });
        }
        tasks.join_all().await;
    });
    let (took, cpu) = (started.elapsed(), cpu_time() - cpu);
    let after = store.stats();
    runtime.block_on(store.close());
    drop(store);
    let commits = usize::try_from(after.writes - before.writes).expect("fits");
    let syncs = usize::try_from(after.syncs - before.syncs).expect("fits");
    report("**store on redb**", writers, commits, syncs, took, cpu, dir.path(), || open().stats().entries);
}

fn put((name, value): Item) -> Write<()> {
    Write::put("things", name, Expect::Any, value.into(), ())
}

fn fill(mut commit: impl FnMut(&[Item])) {
    let all: Vec<Item> = (0..NAMES).map(|n| (name(n), value(n))).collect();
    all.chunks(1_000).for_each(&mut commit);
}

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
fn report(
    engine: &str,
    writers: usize,
    commits: usize,
    syncs: usize,
    took: Duration,
    cpu: Duration,
    dir: &Path,
    reopen: impl FnOnce() -> usize,
) {
    let size = fs::read_dir(dir).map_or(0, |files| files.map(size_of_entry).sum::<u64>());
    let started = Instant::now();
    let entries = reopen();
    let reopened = started.elapsed();
    assert_eq!(entries as u64, NAMES, "{engine} lost entries");
    println!(
        "| {engine} | {writers} | {:.0} | {:.1} | {:.0} µs | {:.1} MB | {:.0} ms |",
        commits as f64 / took.as_secs_f64(),
        commits as f64 / syncs.max(1) as f64,
        cpu.as_secs_f64() * 1e6 / commits.max(1) as f64,
        size as f64 / 1e6,
        reopened.as_secs_f64() * 1e3,
    );
}

fn size_of_entry(entry: std::io::Result<fs::DirEntry>) -> u64 {
    let entry = entry.expect("the directory is ours");
    let meta = entry.metadata().expect("the directory is ours");
    if meta.is_dir() {
        fs::read_dir(entry.path()).map_or(0, |files| files.map(size_of_entry).sum())
    } else {
        // What is really used: some engines allocate ahead.
        blocks(&meta)
    }
}

#[cfg(unix)]
fn blocks(meta: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(meta) * 512
}

#[cfg(not(unix))]
fn blocks(meta: &fs::Metadata) -> u64 {
    meta.len()
}

/// User and system time of this process so far; zero where there is no `/proc`.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 =
        after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

struct Dice(u64);

impl Dice {
    fn item(&mut self) -> Item {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (name(self.0 % NAMES), value(self.0))
    }
}

fn name(n: u64) -> String {
    format!("namespace-{}/name-{n:05}", n % 17)
}

/// 1 KB that does not compress to nothing.
fn value(seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..128)
        .flat_map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x.to_le_bytes()
        })
        .collect()
}

struct Redb(redb::Database);

const TABLE: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("t");

impl Engine for Redb {
    const NAME: &'static str = "redb 4.4";

    fn open(dir: &Path) -> Self {
        let cache = 16 << 20;
        Self(redb::Database::builder().set_cache_size(cache).create(dir.join("db")).expect("opens"))
    }

    fn commit(&mut self, batch: &[Item]) {
        let write = self.0.begin_write().expect("begins");
        {
            let mut table = write.open_table(TABLE).expect("the table");
            for (name, value) in batch {
                table.insert(name.as_str(), value.as_slice()).expect("inserts");
            }
        }
        write.commit().expect("commits");
    }

    fn scan(&mut self) -> usize {
        let read = self.0.begin_read().expect("begins");
        let table = read.open_table(TABLE).expect("the table");
        table.iter().expect("reads").map(|item| item.expect("reads").1.value().to_vec()).count()
    }
}

struct Fjall {
    database: fjall::Database,
    items: fjall::Keyspace,
}

impl Engine for Fjall {
    const NAME: &'static str = "fjall 3.1";

    fn open(dir: &Path) -> Self {
        let database = fjall::Database::builder(dir).open().expect("opens");
        let items = database.keyspace("t", fjall::KeyspaceCreateOptions::default).expect("the keyspace");
        Self { database, items }
    }

    fn commit(&mut self, batch: &[Item]) {
        let mut write = self.database.batch().durability(Some(fjall::PersistMode::SyncData));
        for (name, value) in batch {
            write.insert(&self.items, name.as_str(), value.as_slice());
        }
        write.commit().expect("commits");
    }

    fn scan(&mut self) -> usize {
        self.items.iter().map(|item| item.value().expect("reads").to_vec()).count()
    }
}

struct Sqlite(rusqlite::Connection);

impl Engine for Sqlite {
    const NAME: &'static str = "SQLite (WAL, FULL)";

    fn open(dir: &Path) -> Self {
        let connection = rusqlite::Connection::open(dir.join("db")).expect("opens");
        let setup = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
            CREATE TABLE IF NOT EXISTS t (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;";
        connection.execute_batch(setup).expect("sets up");
        Self(connection)
    }

    fn commit(&mut self, batch: &[Item]) {
        let write = self.0.transaction().expect("begins");
        {
            let mut put = write.prepare_cached("REPLACE INTO t VALUES (?1, ?2)").expect("prepares");
            for (name, value) in batch {
                put.execute((name, value)).expect("inserts");
            }
        }
        write.commit().expect("commits");
    }

    fn scan(&mut self) -> usize {
        let mut all = self.0.prepare("SELECT value FROM t").expect("prepares");
        let rows = all.query_map((), |row| row.get::<_, Vec<u8>>(0)).expect("reads");
        rows.map(|row| row.expect("reads")).count()
    }
}
