//! An ordered map whose copies are free: a copy-on-write B+tree of shared entries.
//!
//! In: entries with a string key inside ([`Keyed`]). Out: lookups, ordered ranges, ranks.
//! `clone` copies one pointer; a change then copies only the nodes on its path, and only those that
//! another copy still holds. So a snapshot costs nothing and writers never wait for its readers.
//!
//! Why our own: leaves are arrays of pointers to entries that exist anyway, about 12 bytes per entry; a
//! persistent red-black tree (`rpds`) needs, by its node layout, roughly 100 more. Counts in the inner nodes answer "how many are
//! left after this page" in O(log n). Not here: revisions and history, which belong to `shard`.

use std::{cmp::Ordering, ops::Bound, sync::Arc};

/// Something that carries its own key.
pub(crate) trait Keyed {
    fn key(&self) -> &str;
}

/// Children or entries per node. 64 pointers are 8 cache lines: short enough to copy on a write, long enough
/// that a million entries are four levels.
const MAX: usize = 64;
const MIN: usize = MAX / 4;

pub(crate) struct Tree<T> {
    root: Arc<Node<T>>,
}

enum Node<T> {
    Leaf(Vec<Arc<T>>),
    Inner(Inner<T>),
}

struct Inner<T> {
    /// `firsts[i]` is a lower bound for the keys of `children[i]` and greater than all keys before it.
    firsts: Vec<Arc<str>>,
    children: Vec<Arc<Node<T>>>,
    len: usize,
}

impl<T> Clone for Tree<T> {
    fn clone(&self) -> Self {
        Self { root: Arc::clone(&self.root) }
    }
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Self {
        match self {
            // The copy is about to be changed: leave room for one more.
            Self::Leaf(entries) => Self::Leaf(copy_with_room(entries)),
            Self::Inner(inner) => Self::Inner(Inner {
                firsts: copy_with_room(&inner.firsts),
                children: copy_with_room(&inner.children),
                len: inner.len,
            }),
        }
    }
}

fn copy_with_room<E: Clone>(from: &[E]) -> Vec<E> {
    let mut copy = Vec::with_capacity(from.len() + 1);
    copy.extend_from_slice(from);
    copy
}

impl<T: Keyed> Default for Tree<T> {
    fn default() -> Self {
        Self { root: Arc::new(Node::Leaf(Vec::new())) }
    }
}

impl<T: Keyed> Tree<T> {
    /// Builds the tree from entries in strictly ascending order of their keys.
    pub(crate) fn from_sorted(entries: Vec<Arc<T>>) -> Self {
        debug_assert!(entries.is_sorted_by(|a, b| a.key() < b.key()));
        // Three quarters full: later inserts do not split at once.
        let fill = MAX * 3 / 4;
        let mut level: Vec<Arc<Node<T>>> =
            even_chunks(entries, fill).into_iter().map(|chunk| Arc::new(Node::Leaf(chunk))).collect();
        while level.len() > 1 {
            level = even_chunks(level, fill)
                .into_iter()
                .map(|children| Arc::new(Node::Inner(Inner::over(children))))
                .collect();
        }
        level.pop().map_or_else(Self::default, |root| Self { root })
    }

    pub(crate) fn len(&self) -> usize {
        self.root.len()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<T>> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    return entries.binary_search_by(|e| e.key().cmp(key)).ok().map(|at| &entries[at]);
                }
                Node::Inner(inner) => node = &inner.children[inner.child_for(key)],
            }
        }
    }

    /// Puts the entry in, returning the one it replaces.
    pub(crate) fn insert(&mut self, entry: Arc<T>) -> Option<Arc<T>> {
        let (replaced, split) = insert(&mut self.root, entry);
        if let Some(right) = split {
            let left = Arc::clone(&self.root);
            self.root = Arc::new(Node::Inner(Inner::over(vec![left, right])));
        }
        replaced
    }

    /// Takes the entry out.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Arc<T>> {
        // Looking first avoids copying a path for nothing.
        self.get(key)?;
        let removed = remove(&mut self.root, key);
        while let Node::Inner(inner) = &*self.root {
            if inner.children.len() > 1 {
                break;
            }
            let only = Arc::clone(&inner.children[0]);
            self.root = only;
        }
        removed
    }

    /// Returns how many keys are smaller than `key`.
    pub(crate) fn rank(&self, key: &str) -> usize {
        let mut node = &*self.root;
        let mut before = 0;
        loop {
            match node {
                Node::Leaf(entries) => return before + entries.partition_point(|e| e.key() < key),
                Node::Inner(inner) => {
                    let at = inner.child_for(key);
                    before += inner.children[..at].iter().map(|child| child.len()).sum::<usize>();
                    node = &inner.children[at];
                }
            }
        }
    }

    /// Returns the entries between the bounds in ascending order.
    pub(crate) fn range<'a>(&'a self, from: Bound<&str>, to: Bound<&'a str>) -> Range<'a, T> {
        let mut range = Range { path: Vec::new(), leaf: [].iter(), to };
        range.seek(&self.root, from);
        range
    }

    pub(crate) fn iter(&self) -> Range<'_, T> {
        self.range(Bound::Unbounded, Bound::Unbounded)
    }

    /// Recomputes every invariant of the structure from scratch.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        fn visit<T: Keyed>(node: &Node<T>, root: bool) -> (usize, usize) {
            match node {
                Node::Leaf(entries) => {
                    assert!(entries.is_sorted_by(|a, b| a.key() < b.key()), "leaf out of order");
                    assert!(
                        entries.len() <= MAX && (root || entries.len() >= MIN),
                        "leaf of {}",
                        entries.len()
                    );
                    (entries.len(), 1)
                }
                Node::Inner(inner) => {
                    let fanout = inner.children.len();
                    assert_eq!(inner.firsts.len(), fanout);
                    assert!(fanout <= MAX && fanout >= if root { 2 } else { MIN }, "inner node of {fanout}");
                    let seen: Vec<_> = inner.children.iter().map(|child| visit(child, false)).collect();
                    assert!(seen.iter().all(|(_, depth)| *depth == seen[0].1), "leaves at different depths");
                    let total = seen.iter().map(|(len, _)| len).sum();
                    assert_eq!(inner.len, total, "wrong count");
                    for (at, child) in inner.children.iter().enumerate() {
                        assert!(&*inner.firsts[at] <= child.first(), "separator above its child");
                        if at > 0 {
                            assert!(inner.children[at - 1].last() < &*inner.firsts[at], "separator too low");
                        }
                    }
                    (total, seen[0].1 + 1)
                }
            }
        }
        visit(&self.root, true);
    }
}

impl<T: Keyed> Node<T> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(inner) => inner.len,
        }
    }

    /// Entries of a leaf, children of an inner node.
    fn fanout(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    /// A lower bound for the keys below: exact for leaves.
    fn first(&self) -> &str {
        match self {
            Self::Leaf(entries) => entries.first().map_or("", |e| e.key()),
            Self::Inner(inner) => &inner.firsts[0],
        }
    }

    #[cfg(test)]
    fn last(&self) -> &str {
        match self {
            Self::Leaf(entries) => entries.last().map_or("", |e| e.key()),
            Self::Inner(inner) => inner.children.last().expect("inner nodes have children").last(),
        }
    }

    /// Cuts an overfull node in half, keeping the left part.
    fn split_off_right(&mut self) -> Self {
        match self {
            Self::Leaf(entries) => Self::Leaf(entries.split_off(entries.len() / 2)),
            Self::Inner(inner) => {
                let at = inner.children.len() / 2;
                let children = inner.children.split_off(at);
                let firsts = inner.firsts.split_off(at);
                let len = children.iter().map(|child| child.len()).sum();
                inner.len -= len;
                Self::Inner(Inner { firsts, children, len })
            }
        }
    }

    /// Appends the contents of the right neighbour.
    fn append(&mut self, right: &Self) {
        match (self, right) {
            (Self::Leaf(left), Self::Leaf(right)) => left.extend_from_slice(right),
            (Self::Inner(left), Self::Inner(right)) => {
                left.firsts.extend_from_slice(&right.firsts);
                left.children.extend_from_slice(&right.children);
                left.len += right.len;
            }
            _ => unreachable!("neighbours are at the same depth"),
        }
    }
}

impl<T: Keyed> Inner<T> {
    fn over(children: Vec<Arc<Node<T>>>) -> Self {
        let firsts = children.iter().map(|child| Arc::from(child.first())).collect();
        let len = children.iter().map(|child| child.len()).sum();
        Self { firsts, children, len }
    }

    fn child_for(&self, key: &str) -> usize {
        self.firsts.partition_point(|first| **first <= *key).saturating_sub(1)
    }

    /// Restores the minimum fill of child `at` with the help of a neighbour.
    fn mend(&mut self, at: usize) {
        if self.children[at].fanout() >= MIN || self.children.len() == 1 {
            return;
        }
        let left = if at == 0 { 0 } else { at - 1 };
        let right = self.children.remove(left + 1);
        self.firsts.remove(left + 1);
        let joined = Arc::make_mut(&mut self.children[left]);
        joined.append(&right);
        if joined.fanout() > MAX {
            let half = joined.split_off_right();
            self.firsts.insert(left + 1, Arc::from(half.first()));
            self.children.insert(left + 1, Arc::new(half));
        }
    }
}

/// Returns the replaced entry and, if the node had to be split, its new right neighbour.
fn insert<T: Keyed>(node: &mut Arc<Node<T>>, entry: Arc<T>) -> (Option<Arc<T>>, Option<Arc<Node<T>>>) {
    let node = Arc::make_mut(node);
    let replaced = match node {
        Node::Leaf(entries) => match entries.binary_search_by(|e| e.key().cmp(entry.key())) {
            Ok(at) => Some(std::mem::replace(&mut entries[at], entry)),
            Err(at) => {
                entries.insert(at, entry);
                None
            }
        },
        Node::Inner(inner) => {
            let at = inner.child_for(entry.key());
            if at == 0 && entry.key() < &*inner.firsts[0] {
                inner.firsts[0] = Arc::from(entry.key());
            }
            let (replaced, split) = insert(&mut inner.children[at], entry);
            if let Some(right) = split {
                inner.firsts.insert(at + 1, Arc::from(right.first()));
                inner.children.insert(at + 1, right);
            }
            if replaced.is_none() {
                inner.len += 1;
            }
            replaced
        }
    };
    let split = (node.fanout() > MAX).then(|| Arc::new(node.split_off_right()));
    (replaced, split)
}

fn remove<T: Keyed>(node: &mut Arc<Node<T>>, key: &str) -> Option<Arc<T>> {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            let at = entries.binary_search_by(|e| e.key().cmp(key)).ok()?;
            Some(entries.remove(at))
        }
        Node::Inner(inner) => {
            let at = inner.child_for(key);
            let removed = remove(&mut inner.children[at], key)?;
            inner.len -= 1;
            inner.mend(at);
            Some(removed)
        }
    }
}

/// Cuts `items` into runs of about `size`, none shorter than half of it unless there is only one.
fn even_chunks<E>(items: Vec<E>, size: usize) -> Vec<Vec<E>> {
    let runs = items.len().div_ceil(size);
    let total = items.len();
    let mut items = items.into_iter();
    (0..runs)
        .map(|run| {
            let len = total * (run + 1) / runs - total * run / runs;
            items.by_ref().take(len).collect()
        })
        .collect()
}

/// An ascending walk over a part of a tree.
pub(crate) struct Range<'a, T> {
    /// The children still to visit on each level, outermost first.
    path: Vec<std::slice::Iter<'a, Arc<Node<T>>>>,
    leaf: std::slice::Iter<'a, Arc<T>>,
    to: Bound<&'a str>,
}

impl<'a, T: Keyed> Range<'a, T> {
    fn seek(&mut self, root: &'a Arc<Node<T>>, from: Bound<&str>) {
        let mut node = &**root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let skip = match from {
                        Bound::Unbounded => 0,
                        Bound::Included(key) => entries.partition_point(|e| e.key() < key),
                        Bound::Excluded(key) => entries.partition_point(|e| e.key() <= key),
                    };
                    self.leaf = entries[skip..].iter();
                    return;
                }
                Node::Inner(inner) => {
                    let at = match from {
                        Bound::Unbounded => 0,
                        Bound::Included(key) | Bound::Excluded(key) => inner.child_for(key),
                    };
                    self.path.push(inner.children[at + 1..].iter());
                    node = &inner.children[at];
                }
            }
        }
    }

    fn next_leaf(&mut self) -> Option<()> {
        let mut node = loop {
            match self.path.last_mut()?.next() {
                Some(node) => break node,
                None => {
                    self.path.pop();
                }
            }
        };
        loop {
            match &**node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return Some(());
                }
                Node::Inner(inner) => {
                    let mut children = inner.children.iter();
                    node = children.next()?;
                    self.path.push(children);
                }
            }
        }
    }
}

impl<'a, T: Keyed> Iterator for Range<'a, T> {
    type Item = &'a Arc<T>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.leaf.next() {
                let inside = match self.to {
                    Bound::Unbounded => true,
                    Bound::Included(to) => entry.key().cmp(to) != Ordering::Greater,
                    Bound::Excluded(to) => entry.key() < to,
                };
                if !inside {
                    self.path.clear();
                    self.leaf = [].iter();
                    return None;
                }
                return Some(entry);
            }
            self.next_leaf()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    struct Item(String, u32);

    impl Keyed for Item {
        fn key(&self) -> &str {
            &self.0
        }
    }

    fn contents(tree: &Tree<Item>) -> Vec<(String, u32)> {
        tree.iter().map(|item| (item.0.clone(), item.1)).collect()
    }

    fn of_model(model: &BTreeMap<String, u32>) -> Vec<(String, u32)> {
        model.iter().map(|(k, v)| (k.clone(), *v)).collect()
    }

    #[test]
    fn an_empty_tree_answers_nothing() {
        let mut tree = Tree::<Item>::default();
        assert_eq!(tree.len(), 0);
        assert!(tree.get("a").is_none());
        assert!(tree.remove("a").is_none());
        assert_eq!(tree.iter().count(), 0);
        assert_eq!(tree.rank("a"), 0);
        assert_eq!(Tree::<Item>::from_sorted(Vec::new()).len(), 0);
    }

    #[test]
    fn ten_thousand_entries_come_and_go_in_any_order() {
        let mut tree = Tree::default();
        let name = |i: u32| format!("n{:05}", i.wrapping_mul(7919) % 10_000);
        for i in 0..10_000 {
            assert!(tree.insert(Arc::new(Item(name(i), i))).is_none());
        }
        tree.check();
        assert_eq!(tree.len(), 10_000);
        let kept = tree.clone();
        for i in 0..10_000 {
            assert_eq!(tree.remove(&name(i)).map(|item| item.1), Some(i));
            if i % 500 == 0 {
                tree.check();
            }
        }
        assert_eq!(tree.len(), 0);
        kept.check();
        assert_eq!(kept.iter().count(), 10_000, "a copy keeps what was there");
    }

    #[derive(Debug, Clone)]
    enum Op {
        Insert(u16),
        Remove(u16),
        Keep,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (0u16..600).prop_map(Op::Insert),
            5 => (0u16..600).prop_map(Op::Remove),
            1 => Just(Op::Keep),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_tree_is_a_btreemap_and_its_copies_never_change(
            start in 0usize..400,
            ops in prop::collection::vec(op(), 1..600),
            from in 0u16..600, to in 0u16..600,
        ) {
            let key = |n: u16| format!("k{n:03}");
            let mut model: BTreeMap<String, u32> = (0..start).map(|n| (key(n as u16), 0)).collect();
            let mut tree =
                Tree::from_sorted(model.iter().map(|(k, v)| Arc::new(Item(k.clone(), *v))).collect());
            tree.check();
            let mut kept = Vec::new();
            for (step, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Insert(n) => {
                        let before = tree.insert(Arc::new(Item(key(n), step as u32))).map(|item| item.1);
                        prop_assert_eq!(before, model.insert(key(n), step as u32));
                    }
                    Op::Remove(n) => {
                        prop_assert_eq!(tree.remove(&key(n)).map(|item| item.1), model.remove(&key(n)));
                    }
                    Op::Keep => kept.push((tree.clone(), of_model(&model))),
                }
            }
            tree.check();
            prop_assert_eq!(tree.len(), model.len());
            prop_assert_eq!(contents(&tree), of_model(&model));
            for (copy, expected) in &kept {
                copy.check();
                prop_assert_eq!(&contents(copy), expected);
            }
            let (from, to) = (key(from.min(to)), key(from.max(to)));
            prop_assert_eq!(tree.rank(&from), model.range(..from.clone()).count());
            for low in [Bound::Included(&*from), Bound::Excluded(&*from), Bound::Unbounded] {
                for high in [Bound::Included(&*to), Bound::Excluded(&*to), Bound::Unbounded] {
                    if from == to && matches!((low, high), (Bound::Excluded(_), Bound::Excluded(_))) {
                        continue; // BTreeMap panics on this empty range.
                    }
                    let ours: Vec<_> = tree.range(low, high).map(|item| item.0.as_str()).collect();
                    let theirs: Vec<_> = model.range::<str, _>((low, high)).map(|(k, _)| k.as_str()).collect();
                    prop_assert_eq!(ours, theirs);
                }
            }
        }
    }
}
