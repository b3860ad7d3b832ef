//! How much of something that costs others a lot one caller may have under way at once.
//!
//! The API server bounds requests, bytes and time of each user. A request here may stand for one to every member, which nobody
//! counts there. Administrators have no bound, as everywhere.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::auth::user::MASTERS;
use parking_lot::Mutex;

/// Counts what each caller has under way.
pub(crate) struct Shares {
    each: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// What a caller has taken, given back when dropped.
pub(crate) struct Share {
    user: String,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

impl Shares {
    pub(crate) fn new(each: usize) -> Self {
        Self { each, taken: Arc::default() }
    }

    /// Takes one; nothing is counted for administrators.
    ///
    /// # Errors
    /// If the caller has all it may have; it is told to come back.
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
