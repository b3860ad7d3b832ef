//! Limits how much of another cluster is read and kept: a budget that several copies share, and the error for an answer that is
//! too large.

use std::sync::atomic::{AtomicUsize, Ordering};

/// An answer that was broken off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cluster {cluster} sent {what} of more than {} MiB, which is not read", limit >> 20)]
pub struct TooLarge {
    pub cluster: String,
    pub what: &'static str,
    pub limit: usize,
}

impl TooLarge {
    /// Finds it among the causes of an error.
    pub fn within<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            // An I/O error skips its inner error when it is asked for its source.
            let wrapped = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref());
            if let Some(found) = wrapped.and_then(|wrapped| Self::within(wrapped)) {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }
}

/// The memory budget, shared by all copies.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Takes `new` instead of `old` bytes; returns whether there is room. Shrinking always succeeds.
    pub fn exchange(&self, old: usize, new: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let after = used.saturating_sub(old).saturating_add(new);
            (new <= old || after <= self.limit).then_some(after)
        });
        taken.is_ok()
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}
