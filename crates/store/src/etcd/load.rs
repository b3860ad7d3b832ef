//! Reading everything, page by page, as of one revision.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use tonic::{Code, Status};

use super::{
    client::Client,
    compaction,
    keys::{Keys, Names},
    protocol::{RANGE, RangeRequest, RangeResponse},
};
use crate::{Revision, disk::RawEntry};

/// Entries per page: few enough for a page of large objects.
const PAGE: i64 = 500;
/// How often everything is begun anew because of a compaction meanwhile. These are minutes apart.
const ATTEMPTS: usize = 3;

/// Everything as of a revision.
pub(super) struct Everything {
    pub(super) revision: Revision,
    /// The newest revision at that time: memory has to get there before anybody may read.
    pub(super) newest: Revision,
    /// Entries in order of their names.
    pub(super) collections: HashMap<Arc<str>, Vec<RawEntry>>,
}

/// Reads everything as of the last compaction that was noted, so that the history since can be followed. It has to be after a revision
/// that is known. Where etcd compacts by itself nobody notes it, and everything is read as it is now.
pub(super) async fn with_history(
    client: &Client,
    keys: &Keys,
    after: Revision,
) -> Result<Everything, Status> {
    let last = async || Ok(compaction::last(client).await?.filter(|compacted| *compacted > after));
    match as_of_compaction(last, async |compacted| at(client, keys, compacted).await).await? {
        Some(everything) => Ok(everything),
        None => now(client, keys).await,
    }
}

/// Reads as of the last compaction; nothing if there was none, or if others compact more quickly than this reads.
async fn as_of_compaction<T>(
    last: impl AsyncFn() -> Result<Option<Revision>, Status>,
    at: impl AsyncFn(Revision) -> Result<T, Status>,
) -> Result<Option<T>, Status> {
    for _ in 0..ATTEMPTS {
        let Some(compacted) = last().await? else { return Ok(None) };
        match at(compacted).await {
            // Somebody has compacted further since. What is left of the history is still there: a server that gave it up would end
            // watches that the others keep.
            Err(status) if status.code() == Code::OutOfRange => {}
            other => return other.map(Some),
        }
    }
    Ok(None)
}

/// Reads everything as it is now.
async fn now(client: &Client, keys: &Keys) -> Result<Everything, Status> {
    at(client, keys, 0).await
}

async fn at(client: &Client, keys: &Keys, revision: Revision) -> Result<Everything, Status> {
    let (start, end) = keys.range();
    let mut names = Names::default();
    let mut collections: HashMap<Arc<str>, Vec<RawEntry>> = HashMap::new();
    let (mut next, mut as_of, mut newest) = (start, revision, 0);
    loop {
        let request = RangeRequest {
            key: next,
            range_end: end.clone(),
            limit: PAGE,
            revision: signed(as_of),
            count_only: false,
        };
        let page: RangeResponse = client.call(RANGE, request, true).await?;
        newest = unsigned(page.header.as_ref().map_or(0, |header| header.revision)).max(newest);
        if as_of == 0 {
            as_of = newest;
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            let Some((collection, name)) = keys.parts(&kv.key) else { continue };
            collections.entry(names.intern(collection)).or_default().push(RawEntry {
                name: name.into(),
                created: unsigned(kv.create_revision),
                modified: unsigned(kv.mod_revision),
                expires_ms: None,
                // A copy of its own: otherwise one entry would keep its whole page in memory.
                value: Bytes::copy_from_slice(&kv.value),
            });
        }
        match last {
            Some(last) if page.more => next = [&last[..], &[0]].concat().into(),
            _ => break,
        }
    }
    Ok(Everything { revision: as_of, newest, collections })
}

/// etcd's numbers are signed and never negative.
pub(super) fn unsigned(number: i64) -> Revision {
    Revision::try_from(number).unwrap_or(0)
}

pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads while others compact; what was noted last is `noted` in turn, and nothing before `compacted` can be read.
    async fn read(noted: &[Revision], compacted: Revision) -> Option<Revision> {
        let asked = Cell::new(0);
        let last = async || {
            let now = noted.get(asked.get()).or(noted.last()).copied();
            asked.set(asked.get() + 1);
            Ok(now)
        };
        let at = async |revision: Revision| {
            if revision < compacted { Err(Status::out_of_range("compacted")) } else { Ok(revision) }
        };
        as_of_compaction(last, at).await.expect("etcd answers")
    }

    #[tokio::test]
    async fn a_compaction_meanwhile_does_not_cost_the_history() {
        assert_eq!(read(&[], 0).await, None);
        assert_eq!(read(&[10], 10).await, Some(10));
        assert_eq!(read(&[10, 20], 20).await, Some(20), "what is left is read");
        assert_eq!(read(&[10, 20, 30, 40], 40).await, None, "there is an end to it");
    }
}
