//! The discovery documents: all groups, versions and resources, in the old form (one document for each group version) and the
//! aggregated one.

use std::collections::HashMap;

use apimachinery::pointer;
use base64::Engine;
use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};

use super::{ANY, Group, Kind, Registry};
use crate::aggregation::Remote;

/// All documents, ready to be sent.
#[derive(Debug)]
pub struct Documents {
    pub groups: Bytes,
    /// By `apis/<group>`.
    pub group: HashMap<String, Bytes>,
    /// By (group, version).
    pub resources: HashMap<(String, String), Bytes>,
    pub core: Aggregated,
    pub named: Aggregated,
}

/// An aggregated document and its entity tag.
#[derive(Debug)]
pub struct Aggregated {
    pub bytes: Bytes,
    pub etag: String,
}

impl Documents {
    pub(super) fn build(registry: &Registry) -> Self {
        let named: Vec<&Group> = registry.groups().iter().filter(|group| !group.name.is_empty()).collect();
        let mut resources = HashMap::new();
        let mut items = Vec::new();
        for group in registry.groups() {
            let mut versions = Vec::new();
            for version in &group.versions {
                if let Some(remote) = registry.remote(&group.name, version) {
                    versions.push(remote_version(remote));
                    continue;
                }
                let mut kinds = registry.kinds_of(&group.name, version);
                kinds.retain(|kind| kind.resource.resource != ANY);
                let list: Vec<Value> = kinds.iter().flat_map(|kind| legacy_resources(kind)).collect();
                let group_version =
                    if group.name.is_empty() { version.clone() } else { format!("{}/{version}", group.name) };
                let mut document =
                    json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
                if !group.name.is_empty() {
                    pointer::set(&mut document, "apiVersion", json!("v1"));
                }
                resources.insert((group.name.clone(), version.clone()), line(&document));
                let list: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind)).collect();
                versions.push(json!({"version": version, "resources": list, "freshness": "Current"}));
            }
            let mut metadata = json!({});
            if !group.name.is_empty() {
                metadata = json!({"name": group.name, "creationTimestamp": null});
            }
            metadata.as_object_mut().expect("made as an object").remove("creationTimestamp");
            items.push((group.name.is_empty(), json!({"metadata": metadata, "versions": versions})));
        }
        let pick = |core: bool| -> Vec<Value> {
            items.iter().filter(|(is_core, _)| *is_core == core).map(|(_, item)| item.clone()).collect()
        };
        let group_list = json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": named.iter().map(|group| legacy_group(group)).collect::<Vec<_>>(),
        });
        let group = named
            .iter()
            .map(|group| {
                let mut document = legacy_group(group);
                pointer::set(&mut document, "kind", json!("APIGroup"));
                pointer::set(&mut document, "apiVersion", json!("v1"));
                (group.name.clone(), line(&document))
            })
            .collect();
        Self {
            groups: line(&group_list),
            group,
            resources,
            core: aggregated(pick(true), "v2"),
            named: aggregated(pick(false), "v2"),
        }
    }
}

fn line(document: &Value) -> Bytes {
    let mut text = document.to_string();
    text.push('\n');
    text.into()
}

fn aggregated(items: Vec<Value>, version: &str) -> Aggregated {
    let document = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    let bytes = line(&document);
    let etag = format!("\"{}\"", hex::encode_upper(Sha512::digest(&bytes)));
    Aggregated { bytes, etag }
}

/// A version that another server serves: it is current as long as that server reports its resources, whether it counts as
/// available or not.
fn remote_version(remote: &Remote) -> Value {
    let freshness = if remote.fresh { "Current" } else { "Stale" };
    let mut document = json!({"version": remote.version, "freshness": freshness});
    let known = remote.resources.as_deref();
    if let Some(resources) = known.filter(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
        pointer::set(&mut document, "resources", resources.clone());
    }
    document
}

fn legacy_group(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{}/{version}", group.name), "version": version}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn legacy_resources(kind: &Kind) -> Vec<Value> {
    let mut entry = json!({
        "name": kind.resource.resource,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.gvk.kind,
        "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        pointer::set(&mut entry, "shortNames", json!(kind.short_names));
    }
    if !kind.categories.is_empty() {
        pointer::set(&mut entry, "categories", json!(kind.categories));
    }
    if !kind.rules.computed {
        pointer::set(&mut entry, "storageVersionHash", json!(storage_version_hash(kind)));
    }
    let mut list = Vec::new();
    // A few kinds exist only through their subresources, or have no verbs themselves.
    if !kind.verbs.is_empty() {
        list.push(entry);
    }
    for subresource in &kind.subresources {
        let mut entry = json!({
            "name": format!("{}/{}", kind.resource.resource, subresource.name),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": subresource.gvk.kind,
            "verbs": subresource.verbs,
        });
        if is_foreign(kind, subresource) {
            pointer::set(&mut entry, "group", json!(subresource.gvk.group));
            pointer::set(&mut entry, "version", json!(subresource.gvk.version));
        }
        list.push(entry);
    }
    list
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind = |group: &str, version: &str, name: &str, foreign: bool| {
        let (group, version) = if kind.is_custom() || foreign { (group, version) } else { ("", "") };
        json!({"group": group, "version": version, "kind": name})
    };
    let mut entry = json!({
        "resource": kind.resource.resource,
        "responseKind": response_kind(&kind.gvk.group, &kind.gvk.version, &kind.gvk.kind, false),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        pointer::set(&mut entry, "shortNames", json!(kind.short_names));
    }
    if !kind.categories.is_empty() {
        pointer::set(&mut entry, "categories", json!(kind.categories));
    }
    if !kind.subresources.is_empty() {
        let list: Vec<Value> = kind
            .subresources
            .iter()
            .map(|subresource| {
                let foreign = is_foreign(kind, subresource);
                let gvk = &subresource.gvk;
                json!({
                    "subresource": subresource.name,
                    "responseKind": response_kind(&gvk.group, &gvk.version, &gvk.kind, foreign),
                    "verbs": subresource.verbs,
                })
            })
            .collect();
        pointer::set(&mut entry, "subresources", list.into());
    }
    entry
}

fn is_foreign(kind: &Kind, subresource: &super::Subresource) -> bool {
    !subresource.gvk.version.is_empty()
        && (subresource.gvk.group != kind.gvk.group || subresource.gvk.version != kind.gvk.version)
}

/// Returns the short digest that shows clients when the storage version changes.
fn storage_version_hash(kind: &Kind) -> String {
    let storage = &kind.storage;
    let digest = Sha256::digest(format!("{}/{}/{}", storage.group, storage.version, storage.kind));
    base64::engine::general_purpose::STANDARD.encode(digest.get(..8).unwrap_or(&digest))
}
