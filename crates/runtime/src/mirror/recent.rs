//! The objects of a packed copy that were read last, in their parsed form.
//!
//! One change of an object is read several times within milliseconds, by all controllers that it concerns. Without this, each
//! of them parses it again. What is here is always what the copy has: it is put in and taken out together with the text, under
//! the lock of the copy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Key;

/// How much text the objects have together. Parsed they take about ten times as much, and a change of a Work with one
/// Deployment has 4 KB: this is for the last hundred.
const LIMIT: usize = 512 * 1024;

pub(super) struct Recent<T> {
    objects: HashMap<Key, (usize, Arc<T>)>,
    /// In the order in which they came; those that were taken out may still be here.
    order: VecDeque<Key>,
    size: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { objects: HashMap::new(), order: VecDeque::new(), size: 0 }
    }
}

impl<T> Recent<T> {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.objects.get(key).map(|(_, object)| object.clone())
    }

    /// Remembers an object whose text has this size, in place of an older version.
    pub(super) fn put(&mut self, key: &Key, size: usize, object: Arc<T>) {
        if size > LIMIT {
            self.take(key);
            return;
        }
        match self.objects.insert(key.clone(), (size, object)) {
            Some((before, _)) => self.size = self.size.saturating_sub(before),
            None => self.order.push_back(key.clone()),
        }
        self.size = self.size.saturating_add(size);
        while self.size > LIMIT || self.order.len() > self.objects.len().saturating_mul(2).saturating_add(16)
        {
            let Some(oldest) = self.order.pop_front() else { return };
            self.take(&oldest);
        }
    }

    /// Forgets an object, and returns it.
    pub(super) fn take(&mut self, key: &Key) -> Option<Arc<T>> {
        let (size, object) = self.objects.remove(key)?;
        self.size = self.size.saturating_sub(size);
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new("space", number.to_string())
    }

    /// Checks what must hold after every step.
    fn check(recent: &Recent<usize>) {
        assert_eq!(recent.size, recent.objects.values().map(|(size, _)| size).sum::<usize>());
        assert!(recent.size <= LIMIT);
        // What was taken out since the last `put` may still be in the order.
        assert!(recent.order.len() <= 2 * (recent.objects.len() + 1) + 16);
        assert!(recent.objects.keys().all(|key| recent.order.contains(key)));
    }

    #[test]
    fn the_last_objects_are_remembered_within_the_limit() {
        let mut recent = Recent::default();
        for number in 0..300 {
            recent.put(&key(number), LIMIT / 100, Arc::new(number));
            check(&recent);
        }
        assert_eq!(recent.get(&key(299)).as_deref(), Some(&299));
        assert_eq!(recent.get(&key(250)).as_deref(), Some(&250));
        assert_eq!(recent.get(&key(100)), None, "older ones are forgotten");
    }

    #[test]
    fn a_newer_version_replaces_an_older_one() {
        let mut recent = Recent::default();
        recent.put(&key(1), 10, Arc::new(1));
        recent.put(&key(1), 20, Arc::new(2));
        check(&recent);
        assert_eq!(recent.get(&key(1)).as_deref(), Some(&2));
        recent.put(&key(1), LIMIT + 1, Arc::new(3));
        check(&recent);
        assert_eq!(recent.get(&key(1)), None, "what is too large is not remembered, nor what it replaces");
    }

    #[test]
    fn coming_and_going_leaves_nothing_behind() {
        let mut recent = Recent::default();
        for round in 0..1000 {
            recent.put(&key(round % 7), 100, Arc::new(round));
            recent.take(&key(round % 5));
            recent.put(&key(1000 + round), 100, Arc::new(round));
            recent.take(&key(1000 + round));
            check(&recent);
        }
        for number in 0..7 {
            recent.take(&key(number));
        }
        assert_eq!((recent.objects.len(), recent.size), (0, 0));
    }
}
