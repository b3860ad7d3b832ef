//! Measures what entries cost in memory, how fast a store is opened, and what a lookup costs.
//!
//! `cargo run --release -p store --example footprint [entries]`
//!
//! Times are CPU time of this process, so that a busy machine does not distort them.

use std::{fs, time::Duration};

use store::{Expect, History, Options, Store, Write};

const VALUE: usize = 1_024;
const LOOKUPS: usize = 3_000_000;

#[tokio::main]
async fn main() {
    let entries: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    println!("{entries} entries of {VALUE} bytes");

    // In memory, so that the database's own cache does not count.
    let short = History { events: 1, age: Duration::ZERO, ..History::default() };
    let before = resident_bytes();
    let without_history = filled(Options { history: short, ..Options::memory() }, entries).await;
    let between = resident_bytes();
    let with_history = filled(Options::memory(), entries).await;
    let after = resident_bytes();
    let beyond = |bytes: u64| (bytes / entries) as i64 - VALUE as i64;
    println!("memory beyond the value: {} bytes per entry", beyond(between - before));
    println!("the same with the history of its creation: {} bytes per entry", beyond(after - between));
    drop((without_history, with_history));

    let dir = tempfile::tempdir().expect("a directory");
    filled(Options::file(dir.path()), entries).await.close().await;
    let started = cpu_time();
    let store = Store::<()>::open(Options::file(dir.path())).expect("opens");
    let (took, stats) = (cpu_time() - started, store.stats());
    assert_eq!(stats.entries as u64, entries);
    println!("open: {} ms, file {:.1} MB", took.as_millis(), stats.file_bytes as f64 / 1e6);

    let snapshot = store.snapshot("things");
    let names: Vec<_> = snapshot.iter().map(|entry| entry.name.clone()).collect();
    let started = cpu_time();
    for n in 0..LOOKUPS {
        assert!(store.get("things", &names[n * 7 % names.len()]).is_some());
    }
    println!("get: {} ns", (cpu_time() - started).as_nanos() / LOOKUPS as u128);
    store.close().await;
}

async fn filled(options: Options, entries: u64) -> Store<()> {
    let store = Store::<()>::open(options).expect("opens");
    for n in 0..entries {
        let name = format!("namespace-{}/name-{n:07}", n % 17);
        let write = Write::put("things", name, Expect::Absent, vec![7; VALUE].into(), ()).buffered();
        store.commit(write).await.expect("absent");
    }
    store
}

/// Memory in use by this process; zero where there is no `/proc`.
fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

/// User and system time of this process so far; zero where there is no `/proc`.
fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 =
        after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
