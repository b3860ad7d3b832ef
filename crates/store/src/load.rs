//! Turning what was read from disk into entries.

use std::{num::NonZero, sync::Arc, thread};

use crate::{Entry, Head, disk::RawEntry};

/// Below this, starting threads costs more than it saves.
const PARALLEL_FROM: usize = 1_000;

/// Parses the heads of all entries of a collection, keeping their order.
pub(crate) fn parse_heads<H: Head>(collection: &str, raw: Vec<RawEntry>) -> Vec<Arc<Entry<H>>> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    if raw.len() <= PARALLEL_FROM || cores == 1 {
        return raw.into_iter().map(|raw| parse(collection, raw)).collect();
    }
    let share = raw.len().div_ceil(cores);
    let mut shares = Vec::with_capacity(cores);
    let mut rest = raw.into_iter();
    loop {
        let part: Vec<RawEntry> = rest.by_ref().take(share).collect();
        if part.is_empty() {
            break;
        }
        shares.push(part);
    }
    thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .map(|part| scope.spawn(move || part.into_iter().map(|raw| parse(collection, raw)).collect()))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| -> Vec<_> {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

fn parse<H: Head>(collection: &str, raw: RawEntry) -> Arc<Entry<H>> {
    let head = H::parse(collection, &raw.name, &raw.value);
    Arc::new(Entry {
        name: raw.name,
        created: raw.created,
        modified: raw.modified,
        expires_ms: raw.expires_ms,
        value: raw.value,
        head,
    })
}
