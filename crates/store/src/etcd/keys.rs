//! Where entries are in etcd: `PREFIX/COLLECTION//NAME`.
//!
//! The double slash ends the collection, so that both parts may contain single ones and all entries of a collection lie together.

use std::sync::Arc;

use bytes::Bytes;

const END: &str = "//";

/// The part of etcd that belongs to this store.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    /// Ends with a slash.
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: format!("/{}/", prefix.trim_matches('/')) }
    }

    /// Returns the key of an entry; nothing if the collection cannot be told from the name again.
    pub(crate) fn key(&self, collection: &str, name: &str) -> Option<Bytes> {
        if collection.contains(END) || collection.ends_with('/') || collection.starts_with('/') {
            return None;
        }
        Some(format!("{}{collection}{END}{name}", self.prefix).into())
    }

    /// Returns collection and name; nothing for a key that is not ours.
    pub(crate) fn parts<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        key.strip_prefix(&self.prefix)?.split_once(END)
    }

    /// Returns the first key and the one behind the last.
    pub(crate) fn range(&self) -> (Bytes, Bytes) {
        let mut end = self.prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1; // the slash becomes a zero
        }
        (self.prefix.clone().into(), end.into())
    }
}

/// Keeps one copy of every collection's name.
#[derive(Debug, Default)]
pub(crate) struct Names(std::collections::HashSet<Arc<str>>);

impl Names {
    pub(crate) fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.0.insert(Arc::clone(&name));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_its_collection_and_its_name() {
        let keys = Keys::new("/karmada/");
        for (collection, name) in [("pods", "default/web"), ("apps/deployments", "a//b"), ("c", "/x")] {
            let key = keys.key(collection, name).expect("a key");
            assert_eq!(keys.parts(&key), Some((collection, name)), "{key:?}");
        }
        assert_eq!(keys.key("pods", "default/web").as_deref(), Some(&b"/karmada/pods//default/web"[..]));
    }

    #[test]
    fn what_could_be_taken_for_another_collection_has_no_key() {
        let keys = Keys::new("karmada");
        for collection in ["a//b", "a/", "/a"] {
            assert_eq!(keys.key(collection, "x"), None, "{collection}");
        }
    }

    #[test]
    fn other_peoples_keys_are_not_ours() {
        let keys = Keys::new("karmada");
        for key in [&b"/registry/pods//x"[..], b"/karmada/pods", b"/karmada2/pods//x", b"\xff"] {
            assert_eq!(keys.parts(key), None, "{key:?}");
        }
        let (start, end) = keys.range();
        assert_eq!((&start[..], &end[..]), (&b"/karmada/"[..], &b"/karmada0"[..]));
    }
}
