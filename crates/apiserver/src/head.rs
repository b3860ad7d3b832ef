//! The parsed part of each stored object that the server keeps beside it: enough for selectors, ownership and deletion without
//! reading the body again.

use std::collections::BTreeMap;

use apimachinery::selector::label::Labels;
use serde::Deserialize;

/// The small parsed part of a stored object.
#[derive(Debug, Default, Clone)]
pub struct Head {
    pub uid: Box<str>,
    /// Sorted by key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    pub owners: Box<[Owner]>,
    pub deleting: bool,
    pub finalizers: bool,
    /// The schema under which the object was written, see [`crate::registry::Kind::fingerprint`]; 0 if unknown.
    pub schema: u32,
}

/// An owner reference, as the garbage collector needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub uid: Box<str>,
    pub api_version: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub block_deletion: bool,
}

impl Head {
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .binary_search_by(|(k, _)| (**k).cmp(key))
            .ok()
            .and_then(|index| self.labels.get(index))
            .map(|(_, value)| &**value)
    }
}

/// Labels are found by binary search: a selector and an object can each have tens of thousands.
impl Labels for Head {
    fn label(&self, key: &str) -> Option<&str> {
        Self::label(self, key)
    }
}

impl store::Head for Head {
    /// An unreadable value gives an empty head: the object remains visible and can be deleted.
    fn parse(_collection: &str, _name: &str, value: &[u8]) -> Self {
        let Ok(raw) = serde_json::from_slice::<RawObject>(value) else { return Self::default() };
        raw.metadata.into()
    }
}

#[derive(Deserialize, Default)]
struct RawObject {
    #[serde(default)]
    metadata: RawMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    uid: String,
    labels: BTreeMap<Box<str>, Box<str>>,
    owner_references: Vec<RawOwner>,
    deletion_timestamp: Option<String>,
    finalizers: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawOwner {
    uid: Box<str>,
    api_version: Box<str>,
    kind: Box<str>,
    name: Box<str>,
    block_owner_deletion: Option<bool>,
}

impl From<RawMeta> for Head {
    fn from(raw: RawMeta) -> Self {
        Self {
            uid: raw.uid.into(),
            labels: raw.labels.into_iter().collect(),
            owners: raw
                .owner_references
                .into_iter()
                .map(|owner| Owner {
                    uid: owner.uid,
                    api_version: owner.api_version,
                    kind: owner.kind,
                    name: owner.name,
                    block_deletion: owner.block_owner_deletion.unwrap_or(false),
                })
                .collect(),
            deleting: raw.deletion_timestamp.is_some(),
            finalizers: !raw.finalizers.is_empty(),
            schema: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::selector::LabelSelector;
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn many_labels_are_selected_by_as_many_requirements() {
        const MANY: usize = 100_000;
        let labels: Map<String, Value> = (0..MANY).map(|number| (format!("k{number}"), json!("v"))).collect();
        let object = json!({"metadata": {"labels": labels}}).to_string();
        let head = <Head as store::Head>::parse("", "", object.as_bytes());
        let mut wanted: Vec<String> = (0..MANY).map(|number| format!("k{number}=v")).collect();
        // A linear search of all labels for each of them would take many minutes.
        assert!(LabelSelector::parse(&wanted.join(",")).unwrap().matches(&head));
        wanted.push("absent".to_owned());
        assert!(!LabelSelector::parse(&wanted.join(",")).unwrap().matches(&head));
    }
}
