//! A backup put into etcd.
//!
//! In: the entries of a backup, and a prefix under which etcd has nothing. Out: the entries under that prefix, with etcd's revisions.
//! All history is compacted at the end, so that a client of the lost store who names an old revision is told to list again, and not
//! shown what other writers did at that revision.
//!
//! A mark under the prefix says that the work is not done yet, the compaction included: no store opens there until it is, and the same
//! backup can be put there again, which goes on where it was interrupted.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};

use super::{
    EtcdError, EtcdOptions,
    client::Client,
    keys::Keys,
    leases::Leases,
    load::{signed, unsigned},
    protocol::{
        COMPACT, CompactionRequest, Compare, DeleteRangeRequest, Ignored, PutRequest, RANGE, RangeRequest,
        RangeResponse, Request, RequestOp, TXN, TxnRequest, TxnResponse,
    },
};
use crate::{Revision, disk::LoadedCollection};

/// Where the mark is.
const MARK: (&str, &str) = ("unfinished-restore", "backup");
/// Operations in one transaction: etcd takes 128 by default, and the mark is one of the comparisons.
const OPERATIONS: usize = 100;
/// Bytes in one transaction: etcd takes 1.5 MiB by default.
const BYTES: usize = 1 << 20;
/// A request of etcd may have this much if nobody has told it otherwise.
const MOST: usize = (3 << 19) - 4096;

/// Writes all entries and returns the revision after the last one. `backup` tells one backup from others.
pub(crate) async fn restore(
    options: &EtcdOptions,
    backup: String,
    collections: &[LoadedCollection],
    now_ms: u64,
) -> Result<Revision, EtcdError> {
    let client = Client::new(options)?;
    let keys = Keys::new(&options.prefix);
    let told = |status: Status| super::follower::refusal(&client, &status);
    let mark = keys.key(MARK.0, MARK.1).expect("a collection without slashes");
    begin(&client, &keys, &mark, backup, options).await?;
    let leases = Leases::default();
    let mut batch = Batch::default();
    for collection in collections {
        for entry in &collection.entries {
            let name = || format!("{} {}", collection.name, entry.name);
            let key = keys.key(&collection.name, &entry.name).ok_or_else(|| {
                EtcdError::Refused(format!("{} of the backup cannot be a key in etcd", name()))
            })?;
            if entry.value.len() > MOST {
                let size = entry.value.len();
                return Err(EtcdError::Refused(format!(
                    "{} of the backup has {size} bytes, more than etcd takes",
                    name()
                )));
            }
            let lease = match entry.expires_ms.map(std::num::NonZeroU64::get) {
                Some(expires) if expires <= now_ms => continue,
                Some(expires) => {
                    let left = Duration::from_millis(expires.saturating_sub(now_ms));
                    leases.lease(&client, left).await.map_err(told)?
                }
                None => 0,
            };
            if !batch.fits(&entry.value) {
                batch.send(&client, &mark).await?;
            }
            batch.add(PutRequest { key, value: entry.value.clone(), lease });
        }
    }
    batch.send(&client, &mark).await?;
    // Before the mark goes: a store that opened in between would show the history of others as its own.
    forget_past(&client, &mark).await.map_err(told)?;
    let done = TxnRequest {
        success: vec![Request::Delete(DeleteRangeRequest { key: mark }).into()],
        ..TxnRequest::default()
    };
    let answer: TxnResponse = client.call(TXN, done, true).await.map_err(told)?;
    Ok(unsigned(answer.header.map_or(0, |header| header.revision)))
}

/// Compacts everything up to now, and notes that.
async fn forget_past(client: &Client, mark: &Bytes) -> Result<(), Status> {
    let request = RangeRequest { key: mark.clone(), count_only: true, ..RangeRequest::default() };
    let answer: RangeResponse = client.call(RANGE, request, true).await?;
    let revision = unsigned(answer.header.map_or(0, |header| header.revision));
    match client.call::<_, Ignored>(COMPACT, CompactionRequest { revision: signed(revision) }, true).await {
        // Somebody else has compacted further already.
        Err(status) if status.code() != Code::OutOfRange => return Err(status),
        _ => {}
    }
    super::compaction::note(client, revision).await
}

/// Says whether somebody has begun to put a backup here and has not finished.
pub(super) async fn is_unfinished(client: &Client, keys: &Keys) -> Result<bool, Status> {
    let key = keys.key(MARK.0, MARK.1).unwrap_or_default();
    let found: RangeResponse =
        client.call(RANGE, RangeRequest { key, ..RangeRequest::default() }, true).await?;
    Ok(!found.kvs.is_empty())
}

/// Puts the mark, if there is nothing under the prefix or the mark of the same backup.
async fn begin(
    client: &Client,
    keys: &Keys,
    mark: &Bytes,
    backup: String,
    options: &EtcdOptions,
) -> Result<(), EtcdError> {
    let told = |status: Status| super::follower::refusal(client, &status);
    let request = RangeRequest { key: mark.clone(), ..RangeRequest::default() };
    let present: RangeResponse = client.call(RANGE, request, true).await.map_err(told)?;
    match present.kvs.first() {
        Some(other) if other.value != backup => {
            return Err(EtcdError::Refused(format!(
                "another backup was put under {} and not finished; finish that one, or delete all keys under the prefix",
                options.prefix
            )));
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let (key, range_end) = keys.range();
    let request = RangeRequest { key, range_end, limit: 1, ..RangeRequest::default() };
    let first: RangeResponse = client.call(RANGE, request, true).await.map_err(told)?;
    if !first.kvs.is_empty() {
        return Err(EtcdError::Occupied { prefix: options.prefix.clone() });
    }
    let put = PutRequest { key: mark.clone(), value: backup.into(), lease: 0 };
    let request = TxnRequest {
        compare: vec![Compare::absent(mark.clone())],
        success: vec![Request::Put(put).into()],
        ..TxnRequest::default()
    };
    let answer: TxnResponse = client.call(TXN, request, false).await.map_err(told)?;
    if answer.succeeded { Ok(()) } else { Err(EtcdError::Occupied { prefix: options.prefix.clone() }) }
}

/// Entries that go to etcd together.
#[derive(Default)]
struct Batch {
    puts: Vec<RequestOp>,
    bytes: usize,
}

impl Batch {
    fn fits(&self, value: &Bytes) -> bool {
        self.puts.is_empty()
            || self.puts.len() < OPERATIONS && self.bytes.saturating_add(value.len()) <= BYTES
    }

    fn add(&mut self, put: PutRequest) {
        self.bytes = self.bytes.saturating_add(put.key.len()).saturating_add(put.value.len());
        self.puts.push(Request::Put(put).into());
    }

    /// Writes the entries; only while the mark is there, and as often as it takes.
    async fn send(&mut self, client: &Client, mark: &Bytes) -> Result<(), EtcdError> {
        let Self { puts, .. } = std::mem::take(self);
        if puts.is_empty() {
            return Ok(());
        }
        let request = TxnRequest {
            compare: vec![Compare::present(mark.clone())],
            success: puts,
            ..TxnRequest::default()
        };
        let answer: TxnResponse = client
            .call(TXN, request, true)
            .await
            .map_err(|status| super::follower::refusal(client, &status))?;
        if answer.succeeded {
            Ok(())
        } else {
            Err(EtcdError::Refused("somebody else has ended this restore".to_owned()))
        }
    }
}
