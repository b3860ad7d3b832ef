//! Limits how many expensive requests one caller may have in progress.
//!
//! The API server limits requests, bytes and time of each user. A request here may cause one request to every member, which the
//! API server does not count. Administrators have no limit, as everywhere.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::auth::user::MASTERS;
use parking_lot::Mutex;

/// Counts the requests of each caller.
pub(crate) struct Shares {
    each: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// A caller's place; it is free again when this is dropped.
pub(crate) struct Share {
    user: String,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

impl Shares {
    pub(crate) fn new(each: usize) -> Self {
        Self { each, taken: Arc::default() }
    }

    /// Takes a place; administrators are not counted.
    ///
    /// # Errors
    /// If the caller already has the maximum; the answer is 429.
    pub(crate) fn take(&self, user: &User) -> Result<Option<Share>, Status> {
        if user.in_group(MASTERS) {
            return Ok(None);
        }
        let mut taken = self.taken.lock();
        let count = taken.entry(user.name.clone()).or_insert(0);
        if *count >= self.each {
            return Err(Status::too_many_requests("Too many requests, please try again later.", 1));
        }
        *count += 1;
        Ok(Some(Share { user: user.name.clone(), taken: self.taken.clone() }))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_has_so_many_and_others_have_theirs() {
        let shares = Shares::new(2);
        let user = |name: &str| User { name: name.to_owned(), ..User::default() };
        let held = [shares.take(&user("greedy")).unwrap(), shares.take(&user("greedy")).unwrap()];
        assert_eq!(shares.take(&user("greedy")).err().map(|status| status.code), Some(429));
        assert!(shares.take(&user("modest")).is_ok());
        for _ in 0..5 {
            assert!(shares.take(&User::system("admin")).unwrap().is_none());
        }
        drop(held);
        assert!(shares.taken.lock().is_empty(), "whoever has nothing is forgotten");
        assert!(shares.take(&user("greedy")).is_ok());
    }
}
