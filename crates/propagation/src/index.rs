//! Finds the selectors that may pick an object without looking at all of them.
//!
//! A selector is filed under its kind and, below that, under its namespace and name, an absent one being filed
//! under the empty string. An object is then looked up under the four combinations of its own namespace and name
//! with the empty string; what is found there is matched exactly. With thousands of policies, most of which name
//! what they select, a lookup touches a handful.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::policy::ResourceSelector;
use serde_json::Value;

use crate::Object;
use crate::selector::{ImplicitPriority, Selector};

/// Selectors by owner. `K` identifies the owner, for example a policy's namespace and name.
#[derive(Debug, Clone)]
pub struct SelectorIndex<K> {
    owners: BTreeMap<K, Vec<Selector>>,
    kinds: HashMap<(String, String), Filed<K>>,
    /// Owners without selectors, when having none means everything.
    unrestricted: BTreeSet<K>,
}

type Filed<K> = HashMap<(String, String), BTreeSet<K>>;

impl<K> Default for SelectorIndex<K> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), kinds: HashMap::new(), unrestricted: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> SelectorIndex<K> {
    /// Files the selectors of `owner`, replacing those it had.
    pub fn insert(&mut self, owner: K, selectors: &[ResourceSelector]) {
        self.remove(&owner);
        let selectors: Vec<Selector> = selectors.iter().map(Selector::new).collect();
        if selectors.is_empty() {
            self.unrestricted.insert(owner.clone());
        }
        for selector in &selectors {
            self.kinds
                .entry((selector.api_version.clone(), selector.kind.clone()))
                .or_default()
                .entry((selector.namespace.clone(), selector.name.clone()))
                .or_default()
                .insert(owner.clone());
        }
        self.owners.insert(owner, selectors);
    }

    /// Takes the selectors of `owner` out; returns whether there were any.
    pub fn remove(&mut self, owner: &K) -> bool {
        let Some(selectors) = self.owners.remove(owner) else { return false };
        self.unrestricted.remove(owner);
        for selector in selectors {
            let kind = (selector.api_version, selector.kind);
            let Some(filed) = self.kinds.get_mut(&kind) else { continue };
            let place = (selector.namespace, selector.name);
            if let Some(owners) = filed.get_mut(&place) {
                owners.remove(owner);
                if owners.is_empty() {
                    filed.remove(&place);
                }
            }
            if filed.is_empty() {
                self.kinds.remove(&kind);
            }
        }
        true
    }

    /// Returns the owners with a selector that picks the object, in the owners' order, each with its most
    /// specific match.
    pub fn matching(&self, object: &Value) -> Vec<(&K, ImplicitPriority)> {
        let mut found = BTreeSet::new();
        let kind = (object.api_version().to_owned(), object.kind().to_owned());
        if let Some(filed) = self.kinds.get(&kind) {
            let none = String::new();
            let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
            for namespace in [&namespace, &none] {
                for name in [&name, &none] {
                    // The two lookups coincide for cluster-scoped objects; the set takes care of it.
                    found.extend(filed.get(&(namespace.clone(), name.clone())).into_iter().flatten());
                }
            }
        }
        found
            .into_iter()
            .filter_map(|owner| {
                let selectors = self.owners.get(owner)?;
                Some((owner, selectors.iter().filter_map(|selector| selector.matches(object)).max()?))
            })
            .collect()
    }

    /// Returns the owners that have no selector at all.
    pub fn unrestricted(&self) -> impl Iterator<Item = &K> {
        self.unrestricted.iter()
    }

    /// Returns whether the owner's selectors pick the object.
    pub fn is_match(&self, owner: &K, object: &Value) -> bool {
        self.owners
            .get(owner)
            .is_some_and(|selectors| selectors.iter().any(|selector| selector.matches(object).is_some()))
    }

    pub fn len(&self) -> usize {
        self.owners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Recomputes the index from scratch and compares; for tests.
    pub fn check(&self) -> bool {
        let mut fresh = Self::default();
        for (owner, selectors) in &self.owners {
            for selector in selectors {
                fresh
                    .kinds
                    .entry((selector.api_version.clone(), selector.kind.clone()))
                    .or_default()
                    .entry((selector.namespace.clone(), selector.name.clone()))
                    .or_default()
                    .insert(owner.clone());
            }
            if selectors.is_empty() {
                fresh.unrestricted.insert(owner.clone());
            }
        }
        fresh.kinds == self.kinds && fresh.unrestricted == self.unrestricted
    }
}

/// Objects that no policy matched yet, so that a new policy finds them without listing everything.
#[derive(Debug, Clone, Default)]
pub struct WaitingSet {
    by_kind: HashMap<(String, String), BTreeSet<(String, String)>>,
}

impl WaitingSet {
    /// Adds the object; returns false when it was waiting already.
    pub fn insert(&mut self, object: &Value) -> bool {
        self.by_kind
            .entry((object.api_version().into(), object.kind().into()))
            .or_default()
            .insert((object.namespace().into(), object.name().into()))
    }

    pub fn remove(&mut self, api_version: &str, kind: &str, namespace: &str, name: &str) -> bool {
        let key = (api_version.to_owned(), kind.to_owned());
        let Some(objects) = self.by_kind.get_mut(&key) else { return false };
        let removed = objects.remove(&(namespace.to_owned(), name.to_owned()));
        if objects.is_empty() {
            self.by_kind.remove(&key);
        }
        removed
    }

    /// Returns those waiting that a selector may pick, as far as kind, namespace and name tell; labels are for
    /// the caller to check on the live object.
    pub fn candidates<'a>(
        &'a self,
        selector: &'a ResourceSelector,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.by_kind
            .get(&(selector.api_version.clone(), selector.kind.clone()))
            .into_iter()
            .flatten()
            .map(|(namespace, name)| (namespace.as_str(), name.as_str()))
            .filter(|(namespace, name)| {
                (selector.namespace.is_empty() || selector.namespace == *namespace)
                    && (selector.name.is_empty() || selector.name == *name)
            })
    }

    pub fn len(&self) -> usize {
        self.by_kind.values().map(BTreeSet::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.by_kind.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn waiting_objects_are_found_by_kind_namespace_and_name() {
        let object = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}});
        let mut waiting = WaitingSet::default();
        assert!(waiting.insert(&object("n1", "a")));
        assert!(!waiting.insert(&object("n1", "a")), "it waits already");
        waiting.insert(&object("n1", "b"));
        waiting.insert(&object("n2", "a"));
        let check = |waiting: &WaitingSet, namespace: &str, name: &str, expected: &[(&str, &str)]| {
            let selector = ResourceSelector {
                api_version: "v1".into(),
                kind: "Secret".into(),
                namespace: namespace.into(),
                name: name.into(),
                ..ResourceSelector::default()
            };
            assert_eq!(waiting.candidates(&selector).collect::<Vec<_>>(), expected);
        };
        check(&waiting, "", "", &[("n1", "a"), ("n1", "b"), ("n2", "a")]);
        check(&waiting, "n1", "", &[("n1", "a"), ("n1", "b")]);
        check(&waiting, "", "a", &[("n1", "a"), ("n2", "a")]);
        check(&waiting, "n2", "b", &[]);
        assert!(waiting.remove("v1", "Secret", "n1", "a"));
        assert!(!waiting.remove("v1", "Secret", "n1", "a"));
        assert_eq!(waiting.len(), 2);
    }
}
