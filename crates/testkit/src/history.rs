//! What clients of a store saw, and whether it can have been one store: recording, etcd's own account, and the judgement.
//!
//! Clients note each request with the time before it and after it ([`Operation`]), and each watch with what it showed ([`Watch`]).
//! etcd's own history ([`truth`]) says what really happened, revision by revision. [`judge`] holds one against the other.

mod judge;
pub mod truth;

use std::collections::BTreeMap;

use serde::Serialize;

pub use judge::{Violation, judge};

pub type Revision = u64;

/// The fields of an object that clients write.
pub type Fields = BTreeMap<String, String>;

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Version {
    pub uid: String,
    pub revision: Revision,
    pub fields: Fields,
}

/// One change, as etcd tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    pub revision: Revision,
    pub name: String,
    /// Nothing for a deletion.
    pub now: Option<Version>,
}

/// How new an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Freshness {
    /// It shows everything that was acknowledged before the request.
    Newest,
    /// Whatever the server has (`resourceVersion=0`).
    Any,
    NotOlderThan(Revision),
    Exactly(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Request {
    Get {
        name: String,
        freshness: Freshness,
    },
    List {
        freshness: Freshness,
    },
    Create {
        name: String,
        fields: Fields,
    },
    /// Replaces all fields; with a revision only if that is the newest.
    Update {
        name: String,
        fields: Fields,
        expected: Option<Revision>,
    },
    /// Sets one field and leaves the others.
    Patch {
        name: String,
        field: String,
        value: String,
    },
    Delete {
        name: String,
        expected: Option<Revision>,
    },
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The object as it is, or as it has become.
    Object(Version),
    List {
        revision: Revision,
        objects: BTreeMap<String, Version>,
    },
    /// It was deleted; the uid tells which one.
    Deleted {
        uid: String,
    },
    NotFound,
    AlreadyExists,
    Conflict,
    /// The server does not have this revision any more.
    Expired,
    /// Nobody knows: no answer, or one that leaves it open.
    Unknown(String),
}

/// A request and its answer. Times are nanoseconds of one clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    pub client: usize,
    /// Which server was asked, and how many times it had been started.
    pub server: (usize, usize),
    pub invoked: u64,
    pub completed: u64,
    pub request: Request,
    pub outcome: Outcome,
}

/// What a watch showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Shown {
    Added(String, Version),
    Modified(String, Version),
    /// The last version, under the revision of the deletion.
    Deleted(String, Version),
    Bookmark(Revision),
    /// The watch has lost its place.
    Expired,
}

/// A watch of all objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Watch {
    pub client: usize,
    pub server: (usize, usize),
    pub from: Revision,
    pub shown: Vec<Shown>,
}

/// Everything that is judged.
#[derive(Debug, Clone, Default, Serialize)]
pub struct History {
    /// By revision, complete from the first change on.
    pub changes: Vec<Change>,
    pub operations: Vec<Operation>,
    pub watches: Vec<Watch>,
    /// The past up to here has been given up.
    pub compacted: Revision,
}

/// Small, seeded, the same on every machine (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The parts name what is thrown for: seed, round, client, …
    pub fn new(parts: &[u64]) -> Self {
        let mut dice = Self(0);
        for part in parts {
            dice.0 ^= *part;
            dice.next();
        }
        dice
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let at = self.below(from.len() as u64);
        from.get(usize::try_from(at).unwrap_or(0))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_throws() {
        let throws = |parts: &[u64]| {
            let mut dice = Dice::new(parts);
            (0..8).map(|_| dice.below(1_000)).collect::<Vec<_>>()
        };
        assert_eq!(throws(&[1, 2]), throws(&[1, 2]));
        assert_ne!(throws(&[1, 2]), throws(&[2, 1]));
    }
}
