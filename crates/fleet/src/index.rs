//! The objects of one place, sorted by name, and indexed by the words that can be searched.
//!
//! A word (a status, a node, an image) is stored once for all objects that have it; the index keeps the words.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::sync::Arc;

use crate::entry::Entry;

/// An entry, sorted and found by its key.
#[derive(Debug, Clone)]
pub(crate) struct ByKey(pub(crate) Arc<Entry>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key().cmp(other.0.key())
    }
}

/// The fields whose words are indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Status,
    Node,
    Image,
}

type Postings = BTreeMap<Arc<str>, BTreeSet<ByKey>>;

#[derive(Debug, Default)]
pub(crate) struct Index {
    entries: BTreeSet<ByKey>,
    /// Indexes of statuses, nodes and images. Objects without a word are not in the index.
    words: [Postings; 3],
    /// The total size of all entries.
    pub(crate) cost: usize,
}

impl Index {
    fn postings(&self, field: Field) -> &Postings {
        let [statuses, nodes, images] = &self.words;
        match field {
            Field::Status => statuses,
            Field::Node => nodes,
            Field::Image => images,
        }
    }

    fn postings_mut(&mut self, field: Field) -> &mut Postings {
        let [statuses, nodes, images] = &mut self.words;
        match field {
            Field::Status => statuses,
            Field::Node => nodes,
            Field::Image => images,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key).map(|found| &found.0)
    }

    /// Inserts an object, with shared words. Returns it and the one that it replaces.
    pub(crate) fn insert(&mut self, mut entry: Entry) -> (Arc<Entry>, Option<Arc<Entry>>) {
        let old = self.remove(entry.key());
        let share = |words: &Postings, word: &mut Arc<str>| {
            if let Some((known, _)) = words.get_key_value(word) {
                *word = known.clone();
            }
        };
        let [statuses, nodes, images] = &self.words;
        share(statuses, &mut entry.facts.status);
        share(nodes, &mut entry.facts.node);
        for image in &mut entry.facts.images {
            share(images, image);
        }
        let entry = Arc::new(entry);
        self.cost = self.cost.saturating_add(entry.cost());
        for (field, word) in words(&entry) {
            self.postings_mut(field).entry(word.clone()).or_default().insert(ByKey(entry.clone()));
        }
        self.entries.insert(ByKey(entry.clone()));
        (entry, old)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Arc<Entry>> {
        let old = self.entries.take(key)?.0;
        self.cost = self.cost.saturating_sub(old.cost());
        for (field, word) in words(&old) {
            let postings = self.postings_mut(field);
            if let Some(set) = postings.get_mut(word) {
                set.remove(key);
                if set.is_empty() {
                    postings.remove(word);
                }
            }
        }
        Some(old)
    }

    /// Walks the objects of a namespace, or all, after a key.
    pub(crate) fn walk<'a>(
        &'a self,
        namespace: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let from = match after {
            Some(after) if after >= prefix.as_str() => Bound::Excluded(after),
            _ => Bound::Included(prefix.as_str()),
        };
        let found = self.entries.range::<str, _>((from, Bound::Unbounded));
        found.map(|found| &found.0).take_while(move |entry| entry.key().starts_with(&prefix))
    }

    /// Returns how many objects have one of the words that satisfy a condition.
    pub(crate) fn count(&self, field: Field, wanted: impl Fn(&str) -> bool) -> usize {
        let found = self.postings(field).iter().filter(|(word, _)| wanted(word));
        found.map(|(_, set)| set.len()).sum()
    }

    /// Returns the objects that have one of the words that satisfy a condition, sorted by key, each once, after a key.
    pub(crate) fn with(
        &self,
        field: Field,
        wanted: impl Fn(&str) -> bool,
        after: Option<&str>,
    ) -> impl Iterator<Item = &Arc<Entry>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let found = self.postings(field).iter().filter(|(word, _)| wanted(word));
        let mut sets: Vec<_> =
            found.map(|(_, set)| set.range::<str, _>((from, Bound::Unbounded)).peekable()).collect();
        // The least key of each set: there may be as many sets as there are words, and only some of their objects are wanted.
        let mut next: BinaryHeap<Reverse<(&str, usize)>> = BinaryHeap::new();
        for (number, set) in sets.iter_mut().enumerate() {
            next.extend(set.peek().map(|found| Reverse((found.0.key(), number))));
        }
        let mut last = None;
        std::iter::from_fn(move || {
            while let Some(Reverse((key, number))) = next.pop() {
                let set = sets.get_mut(number)?;
                let found = set.next()?;
                next.extend(set.peek().map(|found| Reverse((found.0.key(), number))));
                if last.replace(key) != Some(key) {
                    return Some(&found.0);
                }
            }
            None
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.iter().map(|found| &found.0)
    }

    /// Recomputes everything and compares.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(self.cost, self.iter().map(|entry| entry.cost()).sum::<usize>());
        let expected: usize = self.iter().map(|entry| words(entry).count()).sum();
        let found: usize = self.words.iter().flat_map(|postings| postings.values()).map(BTreeSet::len).sum();
        assert_eq!(expected, found);
        for postings in &self.words {
            for (word, set) in postings {
                assert!(
                    !set.is_empty() && set.iter().all(|found| words(&found.0).any(|(_, own)| own == word))
                );
                assert!(
                    set.iter()
                        .all(|found| self.get(found.0.key()).is_some_and(|own| Arc::ptr_eq(own, &found.0)))
                );
            }
        }
    }
}

fn words(entry: &Entry) -> impl Iterator<Item = (Field, &Arc<str>)> {
    let facts = &entry.facts;
    let single = [(Field::Status, &facts.status), (Field::Node, &facts.node)];
    let images = facts.images.iter().map(|image| (Field::Image, image));
    single.into_iter().filter(|(_, word)| !word.is_empty()).chain(images)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Kind;

    fn pod(namespace: &str, name: &str, phase: &str, image: &str) -> Entry {
        let object = json!({"metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"},
            "spec": {"containers": [{"image": image}, {"image": "sidecar"}]}, "status": {"phase": phase}});
        Entry::new(&Kind::test("", "v1", "Pod", "pods"), object).unwrap()
    }

    fn keys<'a>(found: impl IntoIterator<Item = &'a Arc<Entry>>) -> Vec<String> {
        found.into_iter().map(|entry| entry.key().to_owned()).collect()
    }

    #[test]
    fn objects_are_found_by_name_namespace_and_word() {
        let mut index = Index::default();
        for entry in [
            pod("b", "x", "Running", "nginx:v1"),
            pod("a", "y", "Pending", "nginx:v2"),
            pod("a", "x", "Running", "nginx:v2"),
            pod("a-b", "x", "Failed", "redis"),
        ] {
            index.insert(entry);
            index.check();
        }
        assert_eq!(keys(index.walk("", None)), ["a-b/x", "a/x", "a/y", "b/x"]);
        assert_eq!(keys(index.walk("a", None)), ["a/x", "a/y"]);
        assert_eq!(keys(index.walk("a", Some("a/x"))), ["a/y"]);
        assert_eq!(keys(index.walk("", Some("a/x"))), ["a/y", "b/x"]);
        assert_eq!(keys(index.walk("a", Some("0"))), ["a/x", "a/y"]);
        assert_eq!(keys(index.with(Field::Status, |word| word == "Running", None)), ["a/x", "b/x"]);
        let several = |word: &str| word.starts_with("nginx") || word == "sidecar";
        assert_eq!(keys(index.with(Field::Image, several, None)), ["a-b/x", "a/x", "a/y", "b/x"]);
        assert_eq!(keys(index.with(Field::Image, several, Some("a/x"))), ["a/y", "b/x"]);
        assert_eq!(keys(index.with(Field::Image, |_| false, None)), Vec::<String>::new());
        assert_eq!(index.count(Field::Image, |word| word == "nginx:v2"), 2);
        index.insert(pod("a", "x", "Failed", "redis"));
        index.check();
        assert_eq!(keys(index.with(Field::Status, |word| word == "Running", None)), ["b/x"]);
        assert!(index.remove("b/x").is_some() && index.remove("b/x").is_none());
        index.check();
        assert_eq!((index.len(), index.count(Field::Status, |_| true)), (3, 3));
    }

    #[test]
    fn equal_words_are_kept_once() {
        let mut index = Index::default();
        let (one, _) = index.insert(pod("a", "x", "Running", "nginx"));
        let (two, _) = index.insert(pod("a", "y", "Running", "nginx"));
        assert!(Arc::ptr_eq(&one.facts.status, &two.facts.status));
        assert!(Arc::ptr_eq(&one.facts.images[0], &two.facts.images[0]));
    }
}
