//! Giving up the past, in turn with the other servers on the same etcd, kube-apiservers included.
//!
//! The key and the protocol are kube-apiserver's: the key's version counts rounds. Whoever raises it first compacts to the
//! revision that etcd was at one round ago; the others take note and wait for the next round.

use bytes::Bytes;
use tonic::{Code, Status};

use super::{
    client::Client,
    load::{signed, unsigned},
    protocol::{
        COMPACT, CompactionRequest, Compare, Ignored, PutRequest, RANGE, RangeRequest, RangeResponse,
        Request, Response, TXN, TxnRequest, TxnResponse,
    },
};
use crate::Revision;

const KEY: Bytes = Bytes::from_static(b"compact_rev_key");

/// What one server knows of the rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rounds {
    version: i64,
    /// Where etcd was at the last round; 0 before the first.
    revision: Revision,
}

/// Returns the revision of the last compaction.
pub(super) async fn last(client: &Client) -> Result<Option<Revision>, Status> {
    let request = RangeRequest { key: KEY, ..RangeRequest::default() };
    let answer: RangeResponse = client.call(RANGE, request, true).await?;
    let text = answer.kvs.first().and_then(|kv| std::str::from_utf8(&kv.value).ok());
    Ok(text.and_then(|text| text.parse().ok()).filter(|revision| *revision > 0))
}

/// Notes that everything before a revision has been given up, so that nobody reads as of an older one.
pub(super) async fn note(client: &Client, revision: Revision) -> Result<(), Status> {
    let put = PutRequest { key: KEY, value: revision.to_string().into(), lease: 0 };
    let request = TxnRequest { success: vec![Request::Put(put).into()], ..TxnRequest::default() };
    client.call::<_, TxnResponse>(TXN, request, true).await.map(drop)
}

/// Plays one round. Returns what to know at the next one.
pub(super) async fn round(client: &Client, known: Rounds) -> Result<Rounds, Status> {
    let value = known.revision.to_string();
    let request = TxnRequest {
        compare: vec![Compare::version(KEY, known.version)],
        success: vec![Request::Put(PutRequest { key: KEY, value: value.into(), lease: 0 }).into()],
        failure: vec![Request::Range(RangeRequest { key: KEY, ..RangeRequest::default() }).into()],
    };
    let answer: TxnResponse = client.call(TXN, request, false).await?;
    let revision = unsigned(answer.header.map_or(0, |header| header.revision));
    if !answer.succeeded {
        let version = answer.responses.into_iter().find_map(|op| match op.response {
            Some(Response::Range(range)) => range.kvs.first().map(|kv| kv.version),
            _ => None,
        });
        return Ok(Rounds { version: version.unwrap_or(0), revision });
    }
    if known.revision > 0 {
        let request = CompactionRequest { revision: signed(known.revision) };
        match client.call::<_, Ignored>(COMPACT, request, true).await {
            // Out of range: it was compacted further already.
            Err(status) if status.code() != Code::OutOfRange => return Err(status),
            _ => tracing::debug!(revision = known.revision, "etcd's past has been compacted"),
        }
    }
    Ok(Rounds { version: known.version + 1, revision })
}
