//! Limits the memory for members' answers to requests for all clusters.
//!
//! The answer of a member, with all its pages, may have the size of the largest page of a list. There is a limit for all members
//! in one request, and one for all requests together. The data of a request counts until its answer has been sent.

use std::sync::Arc;

use apimachinery::status::Status;
use apiserver::auth::User;
use member::limit::{Budget, PAGE_LIMIT};

use crate::shares::{Share, Shares};

/// How much is read from one member for one request.
const MEMBER: usize = PAGE_LIMIT;
/// How much is read for one request.
const REQUEST: usize = 64 << 20;
/// How much is read for all requests at the same time.
const ALL: usize = 128 << 20;
/// How many such requests one caller may have in progress: each goes to every member.
const AT_ONCE: usize = 8;

/// The room for all requests.
pub(super) struct Room {
    all: Arc<Budget>,
    shares: Shares,
}

impl Default for Room {
    fn default() -> Self {
        Self { all: Arc::new(Budget::new(ALL)), shares: Shares::new(AT_ONCE) }
    }
}

impl Room {
    /// Admits a request.
    ///
    /// # Errors
    /// If the caller already has the maximum number in progress.
    pub(super) fn enter(&self, user: &User) -> Result<Reading, Status> {
        let share = self.shares.take(user)?;
        Ok(Reading { own: Budget::new(REQUEST), all: self.all.clone(), _share: share })
    }
}

/// The data that one request has read, counted until this is dropped.
pub(super) struct Reading {
    own: Budget,
    all: Arc<Budget>,
    _share: Option<Share>,
}

impl Reading {
    /// Starts to count a member's answer.
    pub(super) fn of(&self, cluster: &str) -> Member<'_> {
        Member { cluster: cluster.to_owned(), reading: self, bytes: 0 }
    }

    fn give_back(&self, bytes: usize) {
        self.own.exchange(bytes, 0);
        self.all.exchange(bytes, 0);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.all.exchange(self.own.used(), 0);
    }
}

/// Why a member's answer is not read any further.
#[derive(Debug, PartialEq)]
pub(super) enum Stop {
    /// The member is left out, for this reason.
    TooLarge(String),
    /// The server has no room at the moment.
    NoRoom,
}

/// One member's answer to a request; its room is freed unless it is [kept](Self::keep).
pub(super) struct Member<'a> {
    cluster: String,
    reading: &'a Reading,
    bytes: usize,
}

impl Member<'_> {
    /// Counts received bytes.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Stop> {
        let mib = |limit: usize| limit >> 20;
        let sum = self.bytes.saturating_add(bytes);
        if sum > MEMBER {
            let cluster = &self.cluster;
            let why = format!("cluster {cluster} sent a list of more than {} MiB", mib(MEMBER));
            return Err(Stop::TooLarge(why));
        }
        if !self.reading.own.exchange(0, bytes) {
            let cluster = &self.cluster;
            let why = format!("cluster {cluster}: all lists together have more than {} MiB", mib(REQUEST));
            return Err(Stop::TooLarge(why));
        }
        if !self.reading.all.exchange(0, bytes) {
            self.reading.own.exchange(bytes, 0);
            return Err(Stop::NoRoom);
        }
        self.bytes = sum;
        Ok(())
    }

    /// Returns the size of the answer, which counts until the request is answered.
    pub(super) fn keep(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.reading.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn someone() -> User {
        User { name: "someone".to_owned(), ..User::default() }
    }

    fn too_large(result: Result<(), Stop>) -> String {
        match result {
            Err(Stop::TooLarge(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn finding_16_members_requests_and_all_together_have_a_limit() {
        let room = Room::default();
        let first = room.enter(&someone()).unwrap();
        let mut endless = first.of("m1");
        for _ in 0..32 {
            endless.add(MIB).unwrap();
        }
        assert_eq!(too_large(endless.add(1)), "cluster m1 sent a list of more than 32 MiB");
        drop(endless);
        assert_eq!(room.all.used(), 0, "whoever is left out takes nothing from others");

        let read = |reading: &Reading, cluster: &str| {
            let mut member = reading.of(cluster);
            let added = member.add(32 * MIB);
            added.map(|()| assert_eq!(member.keep(), 32 * MIB))
        };
        read(&first, "m1").unwrap();
        read(&first, "m2").unwrap();
        assert_eq!(too_large(read(&first, "m3")), "cluster m3: all lists together have more than 64 MiB");
        let second = room.enter(&someone()).unwrap();
        read(&second, "m1").unwrap();
        read(&second, "m2").unwrap();
        let third = room.enter(&someone()).unwrap();
        assert_eq!(read(&third, "m1"), Err(Stop::NoRoom));
        drop(first);
        read(&third, "m1").unwrap();
        drop((second, third));
        assert_eq!(room.all.used(), 0);
    }

    #[test]
    fn one_caller_has_only_so_many_requests_under_way() {
        let room = Room::default();
        let held: Vec<Reading> = (0..AT_ONCE).map(|_| room.enter(&someone()).unwrap()).collect();
        assert_eq!(room.enter(&someone()).err().map(|status| status.code), Some(429));
        drop(held);
        assert!(room.enter(&someone()).is_ok());
    }
}
