//! A frozen view of one collection.

use std::{ops::Bound, sync::Arc};

use crate::{
    Entry, Revision,
    tree::{self, Keyed, Tree},
};

impl<H> Keyed for Entry<H> {
    fn key(&self) -> &str {
        &self.name
    }
}

/// One collection exactly as it was at one revision. Taking, cloning and keeping it costs a pointer, plus the
/// memory of what has changed since.
pub struct Snapshot<H> {
    revision: Revision,
    tree: Tree<Entry<H>>,
}

impl<H> Clone for Snapshot<H> {
    fn clone(&self) -> Self {
        Self { revision: self.revision, tree: self.tree.clone() }
    }
}

impl<H> Snapshot<H> {
    pub(crate) fn new(revision: Revision, tree: Tree<Entry<H>>) -> Self {
        Self { revision, tree }
    }

    /// The revision of the store that this view shows. All changes up to it are in, none after it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn len(&self) -> usize {
        self.tree.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Entry<H>>> {
        self.tree.get(name)
    }

    /// Returns the entries between the bounds in the byte order of their names.
    pub fn range<'a>(&'a self, from: Bound<&str>, to: Bound<&'a str>) -> Range<'a, H> {
        Range(self.tree.range(from, to))
    }

    /// Returns all entries in the byte order of their names.
    pub fn iter(&self) -> Range<'_, H> {
        Range(self.tree.iter())
    }

    /// Returns how many names are smaller than `name`, without visiting them. The number of entries in a
    /// half-open range is the difference of two ranks.
    pub fn rank(&self, name: &str) -> usize {
        self.tree.rank(name)
    }
}

impl<'a, H> IntoIterator for &'a Snapshot<H> {
    type Item = &'a Arc<Entry<H>>;
    type IntoIter = Range<'a, H>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// An ordered walk over a [`Snapshot`].
pub struct Range<'a, H>(tree::Range<'a, Entry<H>>);

impl<'a, H> Iterator for Range<'a, H> {
    type Item = &'a Arc<Entry<H>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}
