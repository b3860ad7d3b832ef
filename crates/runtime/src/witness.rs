//! Says whether a server's history is still the one that was seen, which decides whether a watch may resume
//! where it was cut.
//!
//! A server that was restored from a backup counts its revisions from the backup on: a watch that resumes at
//! the last one it saw would miss whatever happened up to there. Revisions alone do not show the difference.
//! A witness does: it knows an object that only it writes, and checks whether the server still has that
//! object as it was last written.

use std::time::Instant;

use futures::future::BoxFuture;

/// The verdict about the history of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vouched {
    /// Up to this revision, it is the history that was seen.
    Until(u64),
    /// It may be a different history.
    Nothing,
    /// The server did not answer.
    Unreachable,
}

/// Confirms the history of a server.
pub trait Witness: Send + Sync {
    /// Returns the verdict about the server's history at a moment after `since`.
    fn vouch(&self, since: Instant) -> BoxFuture<'_, Vouched>;
}
