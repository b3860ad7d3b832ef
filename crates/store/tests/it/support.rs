//! What all topics use.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use store::{Batch, Clock, CommitError, Committed, Expect, Head, Store, Write};

/// A head that shows it was made from the right value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Head for Mark {
    fn parse(collection: &str, name: &str, value: &[u8]) -> Self {
        Self { key: format!("{collection}/{name}"), value: String::from_utf8_lossy(value).into_owned() }
    }
}

pub(crate) fn put(collection: &str, name: &str, expect: Expect, value: &str) -> Write<Mark> {
    let head = Mark::parse(collection, name, value.as_bytes());
    Write::put(collection, name, expect, value.to_owned().into(), head)
}

pub(crate) fn delete(collection: &str, name: &str, expect: Expect) -> Write<Mark> {
    Write::delete(collection, name, expect)
}

/// Puts without conditions.
pub(crate) async fn set(store: &Store<Mark>, collection: &str, name: &str, value: &str) -> Committed<Mark> {
    store.commit(put(collection, name, Expect::Any, value)).await.expect("an unconditional put succeeds")
}

/// A deadline far beyond anything expected, so that a hang becomes a failure.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(180), future).await.expect("done within three minutes")
}

/// The whole collection as text: `name=value@created/modified`.
pub(crate) fn show(snapshot: &store::Snapshot<Mark>) -> Vec<String> {
    snapshot
        .iter()
        .map(|entry| {
            assert_eq!(entry.head.value.as_bytes(), &*entry.value, "the head belongs to the value");
            format!("{}={}@{}/{}", entry.name, entry.head.value, entry.created, entry.modified)
        })
        .collect()
}

/// Events as text: `revision name: before -> after`.
pub(crate) fn show_events(batch: &Batch<Mark>) -> Vec<String> {
    let value = |entry: &Option<Arc<store::Entry<Mark>>>| {
        entry.as_ref().map_or("-".to_owned(), |entry| entry.head.value.clone())
    };
    batch
        .iter()
        .map(|event| {
            format!(
                "{} {}: {} -> {}",
                event.revision,
                event.name(),
                value(&event.previous),
                value(&event.current)
            )
        })
        .collect()
}

pub(crate) fn is_read_only<T: std::fmt::Debug>(result: Result<T, CommitError<Mark>>) -> bool {
    matches!(result, Err(CommitError::ReadOnly { .. }))
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub(crate) struct ManualClock(AtomicU64);

impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).expect("short times in tests"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        1_000_000 + self.0.load(Ordering::SeqCst)
    }
}

/// Small, seeded, reproducible randomness.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
