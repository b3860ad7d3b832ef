//! Everything this server serves at one moment: an immutable table that is swapped as a whole when a
//! CustomResourceDefinition comes, changes or goes.

pub mod custom;
pub mod discovery;
pub mod kind;
mod natives;
mod rule_check;
pub(crate) mod rules;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::aggregation::Remote;

pub use custom::Custom;
pub use kind::{Kind, Rules, Source, Subresource};

/// The served resources and the documents derived from them.
#[derive(Debug)]
pub struct Registry {
    kinds: HashMap<(String, String, String), Arc<Kind>>,
    groups: Vec<Group>,
    /// By name of the definition.
    definitions: HashMap<String, Arc<Custom>>,
    /// What other servers serve; for these group versions our own kinds do not count.
    remotes: Arc<Vec<Remote>>,
    documents: OnceLock<discovery::Documents>,
}

/// An API group with its versions, the preferred one first.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
    pub priority: i32,
    pub native: bool,
}

impl Registry {
    /// Returns the table of the native kinds alone; all servers of a process share it.
    pub fn natives() -> Arc<Self> {
        static NATIVES: LazyLock<Arc<Registry>> = LazyLock::new(|| {
            Arc::new(Registry::build(natives::kinds(), Vec::new(), HashMap::new(), Arc::default()))
        });
        NATIVES.clone()
    }

    /// Returns the native kinds with computed ones of somebody else's, which an extension answers for.
    pub fn with_computed(computed: Vec<Arc<Kind>>) -> Arc<Self> {
        let kinds = natives::kinds().into_iter().chain(computed).collect();
        Arc::new(Self::build(kinds, Vec::new(), HashMap::new(), Arc::default()))
    }

    /// Returns a table with the given definitions instead of the present ones.
    pub fn with_definitions(&self, definitions: HashMap<String, Arc<Custom>>) -> Self {
        self.rebuilt(definitions, self.remotes.clone())
    }

    /// Returns a table with the given remote group versions instead of the present ones.
    pub fn with_remotes(&self, remotes: Arc<Vec<Remote>>) -> Self {
        self.rebuilt(self.definitions.clone(), remotes)
    }

    /// Builds a table like this one; the kinds of definitions that stay the same are taken over.
    fn rebuilt(&self, definitions: HashMap<String, Arc<Custom>>, remotes: Arc<Vec<Remote>>) -> Self {
        let mut natives = Vec::new();
        let mut known: HashMap<*const Custom, Vec<Arc<Kind>>> = HashMap::new();
        for kind in self.kinds.values() {
            match kind.custom() {
                Some(custom) => known.entry(Arc::as_ptr(custom)).or_default().push(kind.clone()),
                None => natives.push(kind.clone()),
            }
        }
        let kinds = |custom: &Arc<Custom>| {
            known.get(&Arc::as_ptr(custom)).cloned().unwrap_or_else(|| Custom::kinds(custom))
        };
        let customs = definitions.values().flat_map(kinds).collect();
        Self::build(natives, customs, definitions, remotes)
    }

    fn build(
        natives: Vec<Arc<Kind>>,
        customs: Vec<Arc<Kind>>,
        definitions: HashMap<String, Arc<Custom>>,
        remotes: Arc<Vec<Remote>>,
    ) -> Self {
        let mut kinds: HashMap<_, _> = HashMap::new();
        let mut versions: HashMap<String, Vec<String>> = HashMap::new();
        let built_in: HashSet<(String, String)> = natives
            .iter()
            .filter(|kind| natives::priority(&kind.gvk.group).is_some())
            .map(|kind| (kind.gvk.group.clone(), kind.gvk.version.clone()))
            .collect();
        // What is built in is not served by anybody else: there, definitions do not count.
        let customs = customs
            .into_iter()
            .filter(|kind| !built_in.contains(&(kind.gvk.group.clone(), kind.gvk.version.clone())));
        for kind in natives.into_iter().chain(customs) {
            let known = versions.entry(kind.gvk.group.clone()).or_default();
            if !known.contains(&kind.gvk.version) {
                known.push(kind.gvk.version.clone());
            }
            let key = (kind.gvk.group.clone(), kind.gvk.version.clone(), kind.resource.resource.clone());
            kinds.insert(key, kind);
        }
        for remote in remotes.iter() {
            let known = versions.entry(remote.group.clone()).or_default();
            if !known.contains(&remote.version) {
                known.push(remote.version.clone());
            }
        }
        let remote = |group: &str, version: &str| {
            remotes.iter().find(|remote| remote.group == group && remote.version == version)
        };
        let mut groups: Vec<Group> = versions
            .into_iter()
            .map(|(name, mut versions)| {
                // Without an APIService of their own, versions have the priority of definitions.
                let priority =
                    |version: &str| remote(&name, version).map_or(100, |remote| remote.version_priority);
                versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then_with(|| version_order(a, b)));
                let native = natives::priority(&name);
                let asked = versions
                    .iter()
                    .filter_map(|version| remote(&name, version))
                    .map(|remote| remote.group_priority);
                let local = versions.iter().any(|version| remote(&name, version).is_none()).then_some(1000);
                let priority = native.or_else(|| asked.chain(local).max()).unwrap_or(1000);
                Group { native: native.is_some(), priority, name, versions }
            })
            .collect();
        groups.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
        Self { kinds, groups, definitions, remotes, documents: OnceLock::new() }
    }

    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Kind>> {
        // The key type owns its strings; a lookup per request is cheap enough beside everything else.
        self.kinds.get(&(group.to_owned(), version.to_owned(), resource.to_owned()))
    }

    /// Returns the resource that serves a kind, in the version asked for.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.kinds.values().find(|k| k.gvk.kind == kind && k.gvk.group == group && k.gvk.version == version)
    }

    pub fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// Returns the server that serves a group version instead of this one.
    pub fn remote(&self, group: &str, version: &str) -> Option<&Remote> {
        self.remotes.iter().find(|remote| remote.group == group && remote.version == version)
    }

    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }

    /// Returns one entry per stored resource, in its preferred served version.
    pub fn stored_kinds(&self) -> Vec<Arc<Kind>> {
        let mut by_collection: HashMap<&str, &Arc<Kind>> = HashMap::new();
        for kind in self.kinds.values().filter(|kind| !kind.rules.computed) {
            by_collection
                .entry(&kind.collection)
                .and_modify(|known| {
                    let better = (kind.gvk == kind.storage) && (known.gvk != known.storage);
                    if better {
                        *known = kind;
                    }
                })
                .or_insert(kind);
        }
        let mut kinds: Vec<_> = by_collection.into_values().cloned().collect();
        kinds.sort_by(|a, b| a.collection.cmp(&b.collection));
        kinds
    }

    pub fn kinds_of(&self, group: &str, version: &str) -> Vec<Arc<Kind>> {
        if self.remote(group, version).is_some() {
            return Vec::new();
        }
        let mut kinds: Vec<_> = self
            .kinds
            .values()
            .filter(|kind| kind.gvk.group == group && kind.gvk.version == version)
            .cloned()
            .collect();
        kinds.sort_by(|a, b| a.resource.resource.cmp(&b.resource.resource));
        kinds
    }

    pub fn definitions(&self) -> &HashMap<String, Arc<Custom>> {
        &self.definitions
    }

    /// Returns the discovery documents, which are made at the first request for one.
    pub fn documents(&self) -> &discovery::Documents {
        self.documents.get_or_init(|| discovery::Documents::build(self))
    }
}

/// Orders versions as Kubernetes prefers them: GA before beta before alpha, higher numbers first, odd names last.
pub fn version_order(a: &str, b: &str) -> std::cmp::Ordering {
    version_rank(b).cmp(&version_rank(a)).then_with(|| a.cmp(b))
}

/// `v2` → (3, 2, 0), `v1beta2` → (2, 1, 2), `v1alpha1` → (1, 1, 1), anything else → (0, 0, 0).
fn version_rank(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else { return (0, 0, 0) };
    let suffix = &rest[digits..];
    if suffix.is_empty() {
        return (3, major, 0);
    }
    for (word, stage) in [("beta", 2), ("alpha", 1)] {
        if let Some(number) = suffix.strip_prefix(word) {
            return number.parse().map_or((0, 0, 0), |number| (stage, major, number));
        }
    }
    (0, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = vec!["v1alpha1", "foo", "v2", "v1beta1", "v1", "v11", "v2beta1", "v1beta2"];
        versions.sort_by(|a, b| version_order(a, b));
        assert_eq!(versions, ["v11", "v2", "v1", "v2beta1", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }
}
