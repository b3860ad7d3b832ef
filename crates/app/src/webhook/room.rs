//! Limits the memory that all reviews take together, since anybody who reaches the server may send some.
//!
//! Bytes are counted while they are read. If there is no room for more, the sender gets 429: a sender that waited would hold the room that
//! it has already. Before a review becomes a tree, the size of that tree is estimated, and the review waits until it fits. Callers that are
//! known have rooms of their own, so that strangers cannot take them.

use std::sync::Arc;

use apimachinery::weight::Weight;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Body;
use runtime::room::Budget;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How large reviews may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// One review. An object is at most 3 MiB, and an update carries two.
    pub(super) body: usize,
    /// All reviews that are being read.
    pub(super) bodies: usize,
    /// What one review becomes: some twenty times its size, unless it is made to be more.
    pub(super) tree: usize,
    /// What all reviews that are being judged have become. A rule that changes an object copies it, so this is about half of the memory
    /// that they take.
    pub(super) trees: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body: 7 << 20, bodies: 64 << 20, tree: 192 << 20, trees: 256 << 20 }
    }
}

#[derive(Debug)]
pub(super) struct Room {
    limits: Limits,
    bodies: Arc<Budget>,
    /// In KiB.
    trees: Arc<Semaphore>,
}

/// A review that was read.
pub(super) struct Read {
    pub(super) body: Bytes,
    /// Given back when the review has been answered.
    _bodies: Taken,
    _trees: OwnedSemaphorePermit,
}

struct Taken {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Taken {
    fn more(&mut self, bytes: usize) -> bool {
        let after = self.bytes.saturating_add(bytes);
        let fits = self.budget.exchange(self.bytes, after);
        if fits {
            self.bytes = after;
        }
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.exchange(self.bytes, 0);
    }
}

/// Why a review is not read.
pub(super) type Refused = (StatusCode, &'static str);

const TOO_LARGE: Refused = (StatusCode::PAYLOAD_TOO_LARGE, "the review is too large or was cut off");
const TOO_DENSE: Refused = (StatusCode::PAYLOAD_TOO_LARGE, "the review has too many parts");
const FULL: Refused = (StatusCode::TOO_MANY_REQUESTS, "too many reviews are being read");

impl Room {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bodies: Arc::new(Budget::new(limits.bodies)),
            trees: Arc::new(Semaphore::new(limits.trees >> 10)),
        }
    }

    /// Reads a review; the room that it takes is given back when what is returned is dropped.
    pub(super) async fn read(&self, mut body: impl Body<Data = Bytes> + Unpin) -> Result<Read, Refused> {
        let mut taken = Taken { budget: self.bodies.clone(), bytes: 0 };
        let (mut read, mut weight) = (BytesMut::new(), Weight::default());
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Err(TOO_LARGE) };
            let Ok(piece) = frame.into_data() else { continue };
            if read.len().saturating_add(piece.len()) > self.limits.body {
                return Err(TOO_LARGE);
            }
            weight.add(&piece);
            if weight.total() > self.limits.tree {
                return Err(TOO_DENSE);
            }
            if !taken.more(piece.len()) {
                return Err(FULL);
            }
            read.extend_from_slice(&piece);
        }
        let kib = u32::try_from(weight.total() >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let trees = self.trees.clone().acquire_many_owned(kib).await.map_err(|_| FULL)?;
        Ok(Read { body: read.freeze(), _bodies: taken, _trees: trees })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::Full;

    use super::*;

    const SMALL: Limits = Limits { body: 10_000, bodies: 19_500, tree: 700 << 10, trees: 1_500 << 10 };

    async fn read(room: &Room, text: String) -> Result<Read, Refused> {
        room.read(Full::new(Bytes::from(text))).await
    }

    #[tokio::test]
    async fn finding_16_a_review_of_many_small_parts_is_refused_before_it_becomes_a_tree() {
        let room = Room::new(SMALL);
        let dense = format!("[{}0]", r#"{"":0},"#.repeat(1_400));
        assert!(dense.len() < SMALL.body);
        assert_eq!(read(&room, dense.clone()).await.err(), Some(TOO_DENSE), "it would become a megabyte");
        // The same bytes as a text are nothing special.
        let text = format!("\"{}\"", dense.replace('"', ""));
        assert!(read(&room, text).await.is_ok());
        assert_eq!(read(&room, "x".repeat(10_001)).await.err(), Some(TOO_LARGE));
        assert_eq!(room.bodies.used(), 0, "what was refused holds nothing");
    }

    #[tokio::test]
    async fn finding_16_reviews_together_have_a_limit_and_give_their_room_back() {
        let room = Room::new(SMALL);
        let first = read(&room, "x".repeat(10_000)).await.expect("there is room");
        assert_eq!(read(&room, "x".repeat(10_000)).await.err(), Some(FULL));
        drop(first);
        assert!(read(&room, "x".repeat(10_000)).await.is_ok());
        // Trees wait for each other.
        let large = || format!("[{}0]", r#"{"":0},"#.repeat(900));
        let held = [read(&room, large()).await.unwrap(), read(&room, large()).await.unwrap()];
        let mut third = std::pin::pin!(read(&room, large()));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut third).await.is_err(), "it waits");
        drop(held);
        assert!(third.await.is_ok());
    }
}
