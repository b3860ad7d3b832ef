//! Everything that this server currently serves: an immutable table that is replaced as a whole when a CustomResourceDefinition
//! is created, changed or deleted.

mod correlation;
pub mod custom;
pub mod discovery;
pub mod kind;
mod natives;
mod rule_check;
pub(crate) mod rules;
mod special;
pub(crate) use special::hide_in_metadata;
pub use special::limited;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::aggregation::Remote;

pub use custom::Custom;
pub use kind::{ANY, Kind, Rules, Source, Subresource};

/// The served resources and the documents derived from them.
#[derive(Debug)]
pub struct Registry {
    /// By group, version and resource.
    kinds: Vec<Arc<Kind>>,
    groups: Vec<Group>,
    /// By name of the definition.
    definitions: Definitions,
    /// What other servers serve; for these group versions, our own kinds do not count.
    remotes: Arc<Vec<Remote>>,
    documents: OnceLock<discovery::Documents>,
}

/// Custom resource definitions, by their names.
pub type Definitions = HashMap<Arc<str>, Arc<Custom>>;

/// An API group with its versions, the preferred one first.
#[derive(Debug, Clone)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
    pub priority: i32,
    pub native: bool,
}

impl Registry {
    /// Returns the table of only the native kinds; all servers of a process share it.
    pub fn natives() -> Arc<Self> {
        static NATIVES: LazyLock<Arc<Registry>> = LazyLock::new(|| {
            Arc::new(Registry::build(natives::kinds(), Vec::new(), HashMap::new(), Arc::default()))
        });
        NATIVES.clone()
    }

    /// Returns the native kinds with additional computed ones, which an extension answers.
    pub fn with_computed(computed: Vec<Arc<Kind>>) -> Arc<Self> {
        let kinds = natives::kinds().into_iter().chain(computed).collect();
        Arc::new(Self::build(kinds, Vec::new(), HashMap::new(), Arc::default()))
    }

    /// Returns a table with the given definitions instead of the current ones.
    pub fn with_definitions(&self, definitions: Definitions) -> Self {
        self.rebuilt(definitions, self.remotes.clone())
    }

    /// Returns a table with the given remote group versions instead of the current ones.
    pub fn with_remotes(&self, remotes: Arc<Vec<Remote>>) -> Self {
        self.rebuilt(self.definitions.clone(), remotes)
    }

    /// Builds a modified table; the kinds of unchanged definitions are reused.
    fn rebuilt(&self, definitions: Definitions, remotes: Arc<Vec<Remote>>) -> Self {
        let stays = |custom: &Arc<Custom>| {
            definitions.get(custom.name.as_str()).is_some_and(|now| Arc::ptr_eq(now, custom))
        };
        let (mut natives, mut customs) = (Vec::new(), Vec::with_capacity(self.kinds.len()));
        for kind in &self.kinds {
            match kind.custom() {
                None => natives.push(kind.clone()),
                Some(custom) if stays(custom) => customs.push(kind.clone()),
                Some(_) => {}
            }
        }
        for (name, custom) in &definitions {
            if !self.definitions.get(name).is_some_and(|before| Arc::ptr_eq(before, custom)) {
                customs.extend(Custom::kinds(custom));
            }
        }
        Self::build(natives, customs, definitions, remotes)
    }

    fn build(
        natives: Vec<Arc<Kind>>,
        customs: Vec<Arc<Kind>>,
        definitions: Definitions,
        remotes: Arc<Vec<Remote>>,
    ) -> Self {
        let built_in: HashSet<(&str, &str)> = natives
            .iter()
            .map(|kind| (kind.gvk.group.as_str(), kind.gvk.version.as_str()))
            .filter(|(group, _)| natives::priority(group).is_some())
            .collect();
        // Other servers cannot serve built-in groups, and definitions do not count there.
        let counts = |kind: &Arc<Kind>| !built_in.contains(&(&kind.gvk.group, &kind.gvk.version));
        let mut kinds: Vec<Arc<Kind>> =
            natives.iter().cloned().chain(customs.into_iter().filter(counts)).collect();
        kinds.sort_by(|a, b| key(a).cmp(&key(b)));
        kinds.dedup_by(|next, kept| {
            // The later one counts.
            let same = key(next) == key(kept);
            if same {
                std::mem::swap(next, kept);
            }
            same
        });
        let mut versions: HashMap<String, Vec<String>> = HashMap::new();
        for same in kinds.chunk_by(|a, b| a.gvk.group == b.gvk.group && a.gvk.version == b.gvk.version) {
            let Some(first) = same.first() else { continue };
            versions.entry(first.gvk.group.clone()).or_default().push(first.gvk.version.clone());
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
                // Without a separate APIService, versions have the priority of definitions.
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
        let at = self.kinds.binary_search_by(|kind| key(kind).cmp(&(group, version, resource))).ok()?;
        self.kinds.get(at)
    }

    /// Returns the resource that serves a kind, in the given version.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.range(group, version).iter().find(|k| k.gvk.kind == kind)
    }

    /// Returns the resources of a group version.
    fn range(&self, group: &str, version: &str) -> &[Arc<Kind>] {
        let group_version = |kind: &Arc<Kind>| {
            let (own_group, own_version, _) = key(kind);
            (own_group, own_version).cmp(&(group, version))
        };
        let from = self.kinds.partition_point(|kind| group_version(kind).is_lt());
        let to = self.kinds.partition_point(|kind| group_version(kind).is_le());
        self.kinds.get(from..to).unwrap_or_default()
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
        self.kinds.iter()
    }

    /// Returns one entry for each stored resource, in its preferred served version.
    pub fn stored_kinds(&self) -> Vec<Arc<Kind>> {
        let mut by_collection: HashMap<&str, &Arc<Kind>> = HashMap::new();
        for kind in self.kinds.iter().filter(|kind| !kind.rules.computed) {
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
        self.range(group, version).to_vec()
    }

    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Returns the discovery documents, which are built on first use.
    pub fn documents(&self) -> &discovery::Documents {
        self.documents.get_or_init(|| discovery::Documents::build(self))
    }
}

/// The index of kinds.
fn key(kind: &Kind) -> (&str, &str, &str) {
    (&kind.gvk.group, &kind.gvk.version, &kind.resource.resource)
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
