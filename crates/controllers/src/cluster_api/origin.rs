//! What a Cluster was joined for: the annotation by which the discovery recognises the Clusters that it
//! joined.

use std::fmt;

use api::cluster::Cluster;
use api::labels::annotations::JOINED_FOR;
use apimachinery::names;
use runtime::Key;

/// An object of a management cluster. As text: its parts, separated by slashes, which none of them can contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The UID of the namespace kube-system of the management cluster.
    pub(super) management: String,
    /// Namespace and name of the object; the Cluster has its name.
    pub(super) key: Key,
    /// The UID of the object.
    pub(super) uid: String,
}

impl Origin {
    /// Returns what a Cluster was joined for; nothing if it was not joined by the discovery.
    pub(super) fn of(cluster: &Cluster) -> Option<Self> {
        let text = cluster.metadata.annotations.as_ref()?.get(JOINED_FOR)?;
        let parts: Vec<&str> = text.split('/').collect();
        let [management, namespace, name, uid] = parts[..] else { return None };
        let is_whole = parts.iter().all(|part| !part.is_empty());
        // Whoever may write the Cluster writes this, and the management cluster is asked for it.
        let is_plain = [namespace, name].into_iter().all(names::is_path_segment);
        let is_its_own = cluster.metadata.name.as_deref() == Some(name);
        (is_whole && is_plain && is_its_own).then(|| Self {
            management: management.to_owned(),
            key: Key::new(namespace, name),
            uid: uid.to_owned(),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}/{}", self.management, self.key.namespace, self.key.name, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let origin = Origin { management: "k".into(), key: Key::new("capi", "m1"), uid: "u".into() };
        let cluster = |text: &str| {
            fixtures::cluster("m1", "True", json!({ "metadata": { "annotations": { JOINED_FOR: text } } }))
        };
        assert_eq!(Origin::of(&cluster(&origin.to_string())), Some(origin));
        for (name, text) in [
            ("nothing", ""),
            ("too little", "k/capi/m1"),
            ("too much", "k/capi/m1/u/x"),
            ("an empty part", "/capi/m1/u"),
            ("what is not a name", "k/capi?watch=true/m1/u"),
            ("a path", "k/capi%2Fclusters%2Fm2?/m1/u"),
            ("copied from another Cluster", "k/capi/m2/u"),
        ] {
            assert_eq!(Origin::of(&cluster(text)), None, "{name}");
        }
        assert_eq!(Origin::of(&fixtures::cluster("m1", "True", json!({}))), None);
    }
}
