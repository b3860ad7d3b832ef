//! Says whether a history is that of one store, in which each request happens at one moment between its start and its answer.
//!
//! In general that is a search through all orders. Here revisions give the order away: a write happened at its revision, and a read
//! can only have happened at the revisions at which the store was as the read says. What is left to find is one revision per request
//! that is allowed by its answer and not below those of the requests that had been answered before it began. All bounds are lower
//! bounds, so that the least choice is the best one: each request gets the first allowed revision that is not below its floor, in
//! order of their beginnings. Where there is none, no order explains the history. It takes n log n, across all objects at once.
//!
//! A write that was never answered may have happened at any later time, or never: its values are unique, so that etcd's history tells.
//! Watches are compared with the history, change by change.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
};

use super::{
    Change, Fields, Freshness, History, Operation, Outcome, Request, Revision, Shown, Version, Watch,
};

/// What no single store can have answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A read shows what had been overwritten or deleted, or misses what had been made, before it began.
    StaleRead(String),
    /// A write was made upon another version than it was conditional on, or took something else along.
    LostUpdate(String),
    /// An acknowledged write is not in the history.
    LostWrite(String),
    /// A write that was refused has been made, or one was made twice, or by nobody.
    UnexplainedChange(String),
    /// A read shows something that never was.
    Phantom(String),
    /// A refusal that nothing justifies.
    UnjustifiedRefusal(String),
    /// A write got a revision that had been seen before it began, or a server went back in time.
    RevisionWentBack(String),
    WatchGap(String),
    WatchRepetition(String),
    /// A change was shown as something else.
    WatchWrong(String),
    /// A watch was ended although the history reached back to its place.
    WatchLost(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Returns what is wrong with a history; nothing if one store explains it.
pub fn judge(history: &History) -> Vec<Violation> {
    let past = Past::new(&history.changes);
    let mut found = Vec::new();
    operations(&past, &history.operations, &mut found);
    explained(&past, &history.operations, &mut found);
    server_order(&history.operations, &mut found);
    for watch in &history.watches {
        found.extend(watched(&past, watch, history.compacted));
    }
    found
}

/// What really happened.
struct Past<'a> {
    changes: &'a [Change],
    by_name: HashMap<&'a str, Vec<&'a Change>>,
    /// At which revisions a value came.
    brought: HashMap<&'a str, Vec<Revision>>,
    /// When the object with a uid was deleted.
    deletions: HashMap<&'a str, Revision>,
}

impl<'a> Past<'a> {
    fn new(changes: &'a [Change]) -> Self {
        let mut past =
            Self { changes, by_name: HashMap::new(), brought: HashMap::new(), deletions: HashMap::new() };
        for change in changes {
            let before = past.by_name.entry(&change.name).or_default();
            let previous = before.last().and_then(|change| change.now.as_ref());
            before.push(change);
            match (&change.now, previous) {
                (Some(now), previous) => {
                    for (field, value) in &now.fields {
                        if previous.and_then(|previous| previous.fields.get(field)) != Some(value) {
                            past.brought.entry(value).or_default().push(change.revision);
                        }
                    }
                }
                (None, Some(previous)) => drop(past.deletions.insert(&previous.uid, change.revision)),
                (None, None) => {}
            }
        }
        past
    }

    fn of(&self, name: &str) -> &[&'a Change] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the object as it was at a revision.
    fn at(&self, name: &str, revision: Revision) -> Option<&'a Version> {
        let changes = self.of(name);
        let next = changes.partition_point(|change| change.revision <= revision);
        changes[..next].last()?.now.as_ref()
    }

    /// Returns the first revision from `floor` on at which the object was so.
    fn first(
        &self,
        name: &str,
        floor: Revision,
        wanted: impl Fn(Option<&Version>) -> bool,
    ) -> Option<Revision> {
        if wanted(self.at(name, floor)) {
            return Some(floor);
        }
        let changes = self.of(name);
        let next = changes.partition_point(|change| change.revision <= floor);
        changes[next..].iter().find(|change| wanted(change.now.as_ref())).map(|change| change.revision)
    }

    fn all_at(&self, revision: Revision) -> BTreeMap<String, Version> {
        let alive = self.by_name.keys().filter_map(|name| {
            let version = self.at(name, revision)?;
            Some(((*name).to_owned(), version.clone()))
        });
        alive.collect()
    }
}

/// Finds a moment for each operation.
fn operations(past: &Past<'_>, all: &[Operation], found: &mut Vec<Violation>) {
    let mut by_start: Vec<&Operation> = all.iter().collect();
    by_start.sort_by_key(|operation| operation.invoked);
    // Those whose moment is known, by their ends.
    let mut ends: std::collections::BinaryHeap<std::cmp::Reverse<(u64, Revision)>> = Default::default();
    let mut floor = 0;
    let mut deleted = HashSet::new();
    for operation in by_start {
        while let Some(std::cmp::Reverse((completed, revision))) = ends.peek().copied()
            && completed < operation.invoked
        {
            ends.pop();
            floor = floor.max(revision);
        }
        match moment(past, operation, floor, &mut deleted) {
            Ok(Some(revision)) if !matches!(operation.outcome, Outcome::Unknown(_)) => {
                ends.push(std::cmp::Reverse((operation.completed, revision)));
            }
            Ok(_) => {}
            Err(violation) => found.push(violation),
        }
    }
}

/// Returns the first revision at which the operation can have happened; nothing if it says nothing about that.
fn moment<'a>(
    past: &Past<'_>,
    operation: &'a Operation,
    floor: Revision,
    deleted: &mut HashSet<&'a str>,
) -> Result<Option<Revision>, Violation> {
    let told = |what: &str| format!("{what}, after revision {floor} was seen: {operation:?}");
    let refusal = |justified: Option<Revision>| {
        justified.map(Some).ok_or_else(|| Violation::UnjustifiedRefusal(told("nothing justifies it")))
    };
    match (&operation.request, &operation.outcome) {
        (request, Outcome::Unknown(_)) => {
            // What it may have written must not have been there before it began.
            for value in values(request) {
                if let Some(revision) = past.brought.get(value).and_then(|all| all.first())
                    && *revision <= floor
                {
                    return Err(Violation::RevisionWentBack(told(&format!("it happened at {revision}"))));
                }
            }
            Ok(None)
        }
        (Request::Get { name, freshness }, Outcome::Object(version)) => {
            exists(past, name, version).map_err(|what| Violation::Phantom(told(&what)))?;
            let from = fresh(*freshness, floor).max(version.revision);
            if past.at(name, from).map(|at| at.revision) != Some(version.revision)
                && *freshness != Freshness::Any
            {
                return Err(Violation::StaleRead(told("it had been changed or deleted")));
            }
            Ok((*freshness == Freshness::Newest).then_some(from))
        }
        (Request::Get { name, freshness }, Outcome::NotFound) => match freshness {
            Freshness::Newest => {
                let absent = past.first(name, floor, |version| version.is_none());
                absent.map(Some).ok_or_else(|| Violation::StaleRead(told("it was there")))
            }
            _ => Ok(None),
        },
        (Request::List { freshness }, Outcome::List { revision, objects }) => {
            let wanted = past.all_at(*revision);
            let from = fresh(*freshness, floor);
            if *revision < from {
                return Err(Violation::StaleRead(told(&format!("it is older than {from}"))));
            }
            if let Freshness::Exactly(exactly) = freshness
                && revision != exactly
            {
                return Err(Violation::Phantom(told("it is of another revision than was asked for")));
            }
            if wanted != *objects {
                return Err(Violation::Phantom(told(&format!("the store had {wanted:?}"))));
            }
            Ok((*freshness == Freshness::Newest).then_some(*revision))
        }
        (Request::Create { name, fields }, Outcome::Object(version)) => {
            let before = written(past, name, version, floor).map_err(|error| error.with(&told))?;
            if before.is_some() || version.fields != *fields {
                return Err(Violation::LostUpdate(told(&format!("before it there was {before:?}"))));
            }
            Ok(Some(version.revision))
        }
        (Request::Update { name, fields, expected }, Outcome::Object(version)) => {
            let before = written(past, name, version, floor).map_err(|error| error.with(&told))?;
            let fits = before
                .is_some_and(|before| expected.is_none_or(|expected| expected == before.revision))
                && version.fields == *fields;
            if !fits {
                return Err(Violation::LostUpdate(told(&format!("before it there was {before:?}"))));
            }
            Ok(Some(version.revision))
        }
        (Request::Patch { name, field, value }, Outcome::Object(version)) => {
            let before = written(past, name, version, floor).map_err(|error| error.with(&told))?;
            let wanted = before.map(|before| {
                let mut fields: Fields = before.fields.clone();
                fields.insert(field.clone(), value.clone());
                fields
            });
            if wanted.as_ref() != Some(&version.fields) {
                return Err(Violation::LostUpdate(told(&format!("before it there was {before:?}"))));
            }
            Ok(Some(version.revision))
        }
        (Request::Delete { name, expected }, Outcome::Deleted { uid }) => {
            let Some(revision) = past.deletions.get(uid.as_str()) else {
                return Err(Violation::LostWrite(told("it was not deleted")));
            };
            if !deleted.insert(uid) {
                return Err(Violation::UnexplainedChange(told("somebody else was told that he deleted it")));
            }
            if *revision <= floor {
                return Err(Violation::RevisionWentBack(told(&format!("it was deleted at {revision}"))));
            }
            let before = past.at(name, *revision - 1).map(|before| before.revision);
            if expected.is_some() && before != *expected {
                return Err(Violation::LostUpdate(told(&format!("it deleted revision {before:?}"))));
            }
            Ok(Some(*revision))
        }
        (
            Request::Update { name, .. } | Request::Patch { name, .. } | Request::Delete { name, .. },
            Outcome::NotFound,
        ) => refusal(past.first(name, floor, |version| version.is_none())),
        (Request::Create { name, .. }, Outcome::AlreadyExists) => {
            refusal(past.first(name, floor, |version| version.is_some()))
        }
        (
            Request::Update { name, expected: Some(expected), .. }
            | Request::Delete { name, expected: Some(expected) },
            Outcome::Conflict,
        ) => refusal(
            past.first(name, floor, |version| version.is_none_or(|version| version.revision != *expected)),
        ),
        // A server that was started again may know less than etcd; clients then list the newest.
        (Request::List { freshness: Freshness::Exactly(_) }, Outcome::Expired) => Ok(None),
        _ => Err(Violation::UnjustifiedRefusal(told("this does not answer that"))),
    }
}

fn fresh(freshness: Freshness, floor: Revision) -> Revision {
    match freshness {
        Freshness::Newest => floor,
        Freshness::Any => 0,
        Freshness::NotOlderThan(revision) | Freshness::Exactly(revision) => revision,
    }
}

/// Why a write that was acknowledged cannot have happened.
enum Unwritten {
    Lost,
    Back,
}

impl Unwritten {
    fn with(self, told: &impl Fn(&str) -> String) -> Violation {
        match self {
            Self::Lost => Violation::LostWrite(told("the history does not have it")),
            Self::Back => Violation::RevisionWentBack(told("its revision had been seen before it began")),
        }
    }
}

/// Returns what was there before an acknowledged write.
fn written<'a>(
    past: &Past<'a>,
    name: &str,
    version: &Version,
    floor: Revision,
) -> Result<Option<&'a Version>, Unwritten> {
    if exists(past, name, version).is_err() {
        return Err(Unwritten::Lost);
    }
    if version.revision <= floor {
        return Err(Unwritten::Back);
    }
    Ok(past.at(name, version.revision - 1))
}

fn exists(past: &Past<'_>, name: &str, version: &Version) -> Result<(), String> {
    match past.at(name, version.revision) {
        Some(known) if known == version => Ok(()),
        other => Err(format!("the store had {other:?}")),
    }
}

/// The unique values that a request writes.
fn values(request: &Request) -> Vec<&str> {
    match request {
        Request::Create { fields, .. } | Request::Update { fields, .. } => {
            fields.values().map(String::as_str).collect()
        }
        Request::Patch { value, .. } => vec![value],
        Request::Get { .. } | Request::List { .. } | Request::Delete { .. } => Vec::new(),
    }
}

/// Each change has been made by one request that was not refused, and each request made one change at most.
fn explained(past: &Past<'_>, all: &[Operation], found: &mut Vec<Violation>) {
    let mut writers: HashMap<&str, &Operation> = HashMap::new();
    let mut deleters: HashSet<&str> = HashSet::new();
    for operation in all {
        for value in values(&operation.request) {
            writers.insert(value, operation);
        }
        if let (Request::Delete { name, .. }, Outcome::Deleted { .. } | Outcome::Unknown(_)) =
            (&operation.request, &operation.outcome)
        {
            deleters.insert(name);
        }
    }
    for (value, revisions) in &past.brought {
        let made = matches!(
            writers.get(value).map(|writer| &writer.outcome),
            Some(Outcome::Object(_) | Outcome::Unknown(_))
        );
        if !made || revisions.len() > 1 {
            let writer = writers.get(value);
            found.push(Violation::UnexplainedChange(format!("{value} came at {revisions:?} by {writer:?}")));
        }
    }
    for change in past.changes.iter().filter(|change| change.now.is_none()) {
        if !deleters.contains(change.name.as_str()) {
            found.push(Violation::UnexplainedChange(format!("nobody asked for {change:?}")));
        }
    }
}

/// What one start of a server shows, without being asked for the newest, never gets older.
fn server_order(all: &[Operation], found: &mut Vec<Violation>) {
    /// When it began and ended, and what it showed.
    type Listed = (u64, u64, Revision);
    let mut by_server: HashMap<(usize, usize), Vec<Listed>> = HashMap::new();
    for operation in all {
        if let (Request::List { freshness }, Outcome::List { revision, .. }) =
            (&operation.request, &operation.outcome)
            && !matches!(freshness, Freshness::Exactly(_))
        {
            let lists = by_server.entry(operation.server).or_default();
            lists.push((operation.invoked, operation.completed, *revision));
        }
    }
    for (server, mut lists) in by_server {
        lists.sort_unstable();
        let mut ends: Vec<(u64, Revision)> = lists.iter().map(|list| (list.1, list.2)).collect();
        ends.sort_unstable();
        let (mut next, mut newest) = (0, 0);
        for (invoked, _, revision) in lists {
            while next < ends.len() && ends[next].0 < invoked {
                newest = newest.max(ends[next].1);
                next += 1;
            }
            if revision < newest {
                let what = format!("server {server:?} showed revision {newest}, and then {revision}");
                found.push(Violation::RevisionWentBack(what));
            }
        }
    }
}

/// A watch shows each change after its start once, in order, as what it is.
fn watched(past: &Past<'_>, watch: &Watch, compacted: Revision) -> Option<Violation> {
    let told = |what: String| {
        format!("{what}, by client {} at {:?} from {}", watch.client, watch.server, watch.from)
    };
    let first = past.changes.partition_point(|change| change.revision <= watch.from);
    let mut next = first;
    let mut position = watch.from;
    for shown in &watch.shown {
        let (name, version) = match shown {
            Shown::Added(name, version) | Shown::Modified(name, version) | Shown::Deleted(name, version) => {
                (name, version)
            }
            Shown::Bookmark(revision) => {
                if let Some(change) = past.changes.get(next).filter(|change| change.revision <= *revision) {
                    let what = format!("it is said to be at {revision}, and has not shown {change:?}");
                    return Some(Violation::WatchGap(told(what)));
                }
                position = position.max(*revision);
                continue;
            }
            Shown::Expired => {
                return (position >= compacted).then(|| {
                    Violation::WatchLost(told(format!("at {position}, compacted up to {compacted}")))
                });
            }
        };
        if version.revision <= position {
            let what = format!("{shown:?} comes after revision {position}");
            return Some(Violation::WatchRepetition(told(what)));
        }
        let Some(change) = past.changes.get(next).filter(|change| change.revision <= version.revision) else {
            return Some(Violation::WatchWrong(told(format!("{shown:?} never happened"))));
        };
        if change.revision < version.revision {
            return Some(Violation::WatchGap(told(format!("{change:?} is missing before {shown:?}"))));
        }
        let before = past.at(&change.name, change.revision - 1);
        let wanted = match (&change.now, before) {
            (Some(now), None) => Shown::Added(change.name.clone(), now.clone()),
            (Some(now), Some(_)) => Shown::Modified(change.name.clone(), now.clone()),
            (None, Some(before)) => {
                let last = Version { revision: change.revision, ..before.clone() };
                Shown::Deleted(change.name.clone(), last)
            }
            (None, None) => return Some(Violation::WatchWrong(told(format!("{name} was not there")))),
        };
        if *shown != wanted {
            return Some(Violation::WatchWrong(told(format!("{shown:?} instead of {wanted:?}"))));
        }
        position = change.revision;
        next += 1;
    }
    None
}

#[cfg(test)]
mod tests;
