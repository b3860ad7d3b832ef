//! The order in which bindings are scheduled, and when a failed one is tried again.
//!
//! In: keys with priorities, results of attempts, the time. Out: the next key. A plain data structure: the controller
//! owns the clock, the lock and the waiting.
//!
//! Three places: *active* bindings wait for their turn, by priority, then by age; bindings that failed wait in *backoff*
//! (1 s, 2 s, 4 s, 8 s, then 10 s) and come back by themselves; *unschedulable* ones lack room and wait until something
//! changes, at most five minutes. A key is in one place only. What is pushed while its key is being worked on comes up
//! again afterwards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::outcome::Retry;

const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// How long a binding that lacks room waits when nothing changes.
pub const UNSCHEDULABLE_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Bindings that wait to be scheduled.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// Keys that wait for their turn, in order.
    active: BTreeSet<Turn>,
    /// Keys that have to come up, whether in `active` or after the attempt that is under way.
    dirty: BTreeMap<String, Item>,
    processing: BTreeMap<String, Item>,
    backoff: Waiting,
    unschedulable: Waiting,
}

/// Items that wait until a time, found by key and by time.
#[derive(Debug, Clone, Default)]
struct Waiting {
    items: BTreeMap<String, (Timestamp, Item)>,
    times: BTreeSet<(Timestamp, String)>,
}

impl Waiting {
    fn insert(&mut self, until: Timestamp, item: Item) {
        self.remove(&item.key);
        self.times.insert((until, item.key.clone()));
        self.items.insert(item.key.clone(), (until, item));
    }

    fn remove(&mut self, key: &str) {
        if let Some((until, item)) = self.items.remove(key) {
            self.times.remove(&(until, item.key));
        }
    }

    fn contains(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    fn first(&self) -> Option<Timestamp> {
        self.times.first().map(|(until, _)| *until)
    }

    /// Takes out what has waited long enough, in the order in which it will become active.
    fn take(&mut self, now: Timestamp) -> Vec<Item> {
        let mut taken = Vec::new();
        while self.first().is_some_and(|until| until <= now)
            && let Some((_, key)) = self.times.pop_first()
        {
            taken.extend(self.items.remove(&key).map(|(_, item)| item));
        }
        taken.sort_by_key(turn);
        taken
    }
}

/// Higher priority first, then the older one; the key makes the order total.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: Reverse<i32>,
    since: Timestamp,
    key: String,
}

/// A binding in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub key: String,
    pub priority: i32,
    /// When it last became active.
    pub since: Timestamp,
    /// When it first became active since the last event.
    pub first: Timestamp,
    /// How many attempts have been made since the last event.
    pub attempts: u32,
}

impl Queue {
    /// Adds a binding because of an event; attempts start anew. A key that waits already keeps its place and priority.
    pub fn push(&mut self, key: &str, priority: i32, now: Timestamp) {
        self.backoff.remove(key);
        self.unschedulable.remove(key);
        self.activate(Item { key: key.to_owned(), priority, since: now, first: now, attempts: 0 }, now);
    }

    fn activate(&mut self, mut item: Item, now: Timestamp) {
        if self.dirty.contains_key(&item.key) {
            return;
        }
        item.since = now;
        if !self.processing.contains_key(&item.key) {
            self.active.insert(turn(&item));
        }
        self.dirty.insert(item.key.clone(), item);
    }

    /// Takes the binding whose turn it is; [`Queue::done`] must follow.
    pub fn pop(&mut self) -> Option<Item> {
        let next = self.active.pop_first()?;
        let mut item = self.dirty.remove(&next.key).expect("what is active is dirty");
        item.attempts += 1;
        self.processing.insert(item.key.clone(), item.clone());
        Some(item)
    }

    /// Ends the attempt of a binding that was popped and puts it where it belongs.
    pub fn done(&mut self, item: Item, retry: Retry, now: Timestamp) {
        self.processing.remove(&item.key);
        let waits_already = self.dirty.contains_key(&item.key);
        match retry {
            Retry::Never => {
                self.backoff.remove(&item.key);
            }
            _ if waits_already => {}
            Retry::Unschedulable if !self.backoff.contains(&item.key) => {
                self.unschedulable.insert(given_up_at(&item), item.clone());
            }
            Retry::Backoff if !self.unschedulable.contains(&item.key) => {
                self.backoff.insert(ready_at(&item), item.clone());
            }
            Retry::Unschedulable | Retry::Backoff => {}
        }
        if waits_already {
            // Upstream re-inserts the item of the finished attempt, with its priority and attempts.
            let again = Item { since: now, ..item };
            self.active.insert(turn(&again));
            self.dirty.insert(again.key.clone(), again);
        }
    }

    /// Makes everything active whose time has come.
    pub fn tick(&mut self, now: Timestamp) {
        let rested = self.backoff.take(now);
        let expired = self.unschedulable.take(now);
        for item in rested.into_iter().chain(expired) {
            self.activate(item, now);
        }
    }

    /// Returns when [`Queue::tick`] has something to do next.
    pub fn next_tick(&self) -> Option<Timestamp> {
        [self.backoff.first(), self.unschedulable.first()].into_iter().flatten().min()
    }

    /// Removes a binding that is gone.
    pub fn forget(&mut self, key: &str) {
        self.backoff.remove(key);
        self.unschedulable.remove(key);
        if let Some(item) = self.dirty.remove(key) {
            self.active.remove(&turn(&item));
        }
    }

    /// Returns how many bindings are active, in backoff and unschedulable, for the metric of pending bindings.
    pub fn pending(&self) -> (usize, usize, usize) {
        (self.active.len(), self.backoff.items.len(), self.unschedulable.items.len())
    }
}

fn turn(item: &Item) -> Turn {
    Turn { priority: Reverse(item.priority), since: item.since, key: item.key.clone() }
}

/// Returns when a failed binding is tried again; counted from when it became active, as upstream.
fn ready_at(item: &Item) -> Timestamp {
    item.since + backoff(item.attempts)
}

fn backoff(attempts: u32) -> SignedDuration {
    if attempts == 0 {
        return SignedDuration::ZERO;
    }
    let mut delay = FIRST_BACKOFF;
    for _ in 1..attempts {
        if delay > LONGEST_BACKOFF - delay {
            return LONGEST_BACKOFF;
        }
        delay += delay;
    }
    delay
}

/// Returns when a binding that lacks room is tried again though nothing has changed: after more than five minutes.
fn given_up_at(item: &Item) -> Timestamp {
    item.since + UNSCHEDULABLE_MAX + SignedDuration::from_nanos(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("in range")
    }

    fn pop(queue: &mut Queue) -> Option<String> {
        queue.pop().map(|item| item.key)
    }

    #[test]
    fn higher_priority_comes_first_then_the_older_one() {
        let mut queue = Queue::default();
        queue.push("old", 0, at(1));
        queue.push("young", 0, at(2));
        queue.push("urgent", 9, at(3));
        let order: Vec<String> = std::iter::from_fn(|| pop(&mut queue)).collect();
        assert_eq!(order, ["urgent", "old", "young"]);
    }

    #[test]
    fn a_key_that_waits_keeps_its_priority() {
        let mut queue = Queue::default();
        queue.push("a", 0, at(1));
        queue.push("b", 5, at(2));
        queue.push("a", 9, at(3));
        assert_eq!(pop(&mut queue).as_deref(), Some("b"));
        assert_eq!(pop(&mut queue).as_deref(), Some("a"));
        assert_eq!(pop(&mut queue), None);
    }

    #[test]
    fn what_is_pushed_during_its_attempt_comes_up_once_more() {
        let mut queue = Queue::default();
        queue.push("a", 1, at(1));
        let item = queue.pop().unwrap();
        queue.push("a", 7, at(2));
        assert_eq!(queue.pop(), None);
        queue.done(item, Retry::Backoff, at(3));
        assert_eq!(queue.pending(), (1, 0, 0));
        let again = queue.pop().unwrap();
        assert_eq!((again.priority, again.attempts, again.since), (1, 2, at(3)));
    }

    #[test]
    fn failures_wait_longer_and_longer() {
        assert_eq!(
            (0..7).map(|attempts| backoff(attempts).as_secs()).collect::<Vec<_>>(),
            [0, 1, 2, 4, 8, 10, 10]
        );
        let mut queue = Queue::default();
        queue.push("a", 0, at(0));
        let item = queue.pop().unwrap();
        queue.done(item, Retry::Backoff, at(0));
        assert_eq!(queue.next_tick(), Some(at(1)));
        queue.tick(at(0));
        assert_eq!(queue.pop(), None);
        queue.tick(at(1));
        let item = queue.pop().unwrap();
        assert_eq!((item.attempts, item.first), (2, at(0)));
        queue.done(item, Retry::Backoff, at(1));
        assert_eq!(queue.next_tick(), Some(at(3)));
    }

    #[test]
    fn lack_of_room_waits_for_an_event_or_five_minutes() {
        let mut queue = Queue::default();
        for key in ["a", "b"] {
            queue.push(key, 0, at(0));
            let item = queue.pop().unwrap();
            queue.done(item, Retry::Unschedulable, at(0));
        }
        queue.tick(at(300));
        assert_eq!(queue.pending(), (0, 0, 2));
        queue.push("a", 0, at(300));
        assert_eq!(pop(&mut queue).as_deref(), Some("a"));
        queue.tick(at(301));
        assert_eq!(pop(&mut queue).as_deref(), Some("b"));
    }

    #[test]
    fn an_event_ends_waiting_and_starts_attempts_anew() {
        let mut queue = Queue::default();
        queue.push("a", 0, at(0));
        let item = queue.pop().unwrap();
        queue.done(item, Retry::Unschedulable, at(0));
        queue.push("a", 3, at(5));
        assert_eq!(queue.pending(), (1, 0, 0));
        assert_eq!(queue.pop().unwrap().attempts, 1);
    }

    #[test]
    fn success_and_deletion_leave_nothing_behind() {
        let mut queue = Queue::default();
        queue.push("a", 0, at(0));
        let item = queue.pop().unwrap();
        queue.done(item, Retry::Never, at(0));
        queue.push("b", 0, at(0));
        queue.forget("b");
        assert_eq!(queue.pending(), (0, 0, 0));
        assert_eq!(queue.next_tick(), None);
    }
}
