//! Time limits: etcd deletes what belongs to a lease when that ends.
//!
//! Leases are shared, as kube-apiserver does it: entries written within a twentieth of their time, a minute at most, end
//! together. That saves a request per entry, and they live at most that much longer.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use tonic::Status;

use super::{
    client::Client,
    protocol::{LEASE_GRANT, LeaseGrantRequest, LeaseGrantResponse},
};

const MAX_SHARED: Duration = Duration::from_secs(60);
/// Entries that end together are deleted in one step; this bounds it.
const MAX_ENTRIES: usize = 1_000;

#[derive(Default)]
pub(super) struct Leases {
    /// By the time in seconds.
    shared: Mutex<HashMap<u64, Shared>>,
}

struct Shared {
    id: i64,
    until: Instant,
    entries: usize,
}

impl Leases {
    /// Returns a lease that lasts at least as long.
    pub(super) async fn lease(&self, client: &Client, ttl: Duration) -> Result<i64, Status> {
        let seconds = ttl.as_millis().div_ceil(1_000).max(1);
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        if let Some(id) = self.take(seconds, Instant::now()) {
            return Ok(id);
        }
        let together = (Duration::from_secs(seconds) / 20).min(MAX_SHARED);
        let longer = seconds.saturating_add(together.as_secs());
        let request = LeaseGrantRequest { ttl: i64::try_from(longer).unwrap_or(i64::MAX) };
        // Granted twice, it ends unused.
        let answer: LeaseGrantResponse = client.call(LEASE_GRANT, request, true).await?;
        let shared = Shared { id: answer.id, until: Instant::now() + together, entries: 1 };
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(seconds, shared);
        Ok(answer.id)
    }

    fn take(&self, seconds: u64, now: Instant) -> Option<i64> {
        let mut all = self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|_, shared| shared.until > now);
        let shared = all.get_mut(&seconds).filter(|shared| shared.entries < MAX_ENTRIES)?;
        shared.entries += 1;
        Some(shared.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_shared_for_a_while_and_by_so_many() {
        let leases = Leases::default();
        let now = Instant::now();
        let fresh = |entries| Shared { id: 7, until: now + Duration::from_secs(3), entries };
        leases.shared.lock().unwrap().insert(60, fresh(1));
        assert_eq!(leases.take(60, now), Some(7));
        assert_eq!(leases.take(61, now), None, "another time");
        assert_eq!(leases.take(60, now + Duration::from_secs(3)), None, "too late");
        leases.shared.lock().unwrap().insert(60, fresh(MAX_ENTRIES));
        assert_eq!(leases.take(60, now), None, "full");
    }
}
