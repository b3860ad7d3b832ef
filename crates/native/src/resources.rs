//! The resources a stock server offers: names, scope, verbs, subresources, where they are stored, and the few
//! per-kind switches of the generic create, update and delete paths.
//!
//! Names and verbs are recorded discovery; the switches are short lists below.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::data;

/// Returns every resource in the order of discovery.
pub fn all() -> &'static [Resource] {
    &CATALOGUE.resources
}

/// Returns one resource by the names a URL has; the core group is the empty string.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    let at = CATALOGUE.by_plural.get(&(group, version, plural))?;
    Some(&CATALOGUE.resources[*at])
}

/// Returns the resource of a kind, the one that holds objects rather than a subresource.
pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    let at = CATALOGUE.by_kind.get(&(group, version, kind))?;
    Some(&CATALOGUE.resources[*at])
}

/// Returns the groups in order of priority, each with its versions in order of preference.
pub fn groups() -> &'static [Group] {
    &CATALOGUE.groups
}

/// An API group with its versions, the preferred one first.
#[derive(Debug)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
}

/// A resource in one version of its group.
#[derive(Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<Subresource>,
    /// Key prefix below `/registry/`, shared with kube-apiserver's layout: `configmaps`, `services/specs`; empty for
    /// resources that are never stored (the reviews, bindings, component statuses).
    pub storage: &'static str,
    /// Objects carry `metadata.generation`, counted by the server.
    pub has_generation: bool,
    /// A PUT may leave out `metadata.resourceVersion`.
    pub unconditional_update: bool,
    /// A PUT of a missing object creates it.
    pub create_on_update: bool,
    pub has_status: bool,
    /// DELETE answers with the deleted object instead of a `Status`.
    pub returns_deleted: bool,
    /// What a plain DELETE does with dependents.
    pub default_deletion: Deletion,
    pub fields: FieldLabels,
    /// This version is the one that is stored.
    pub storage_version: bool,
    /// As discovery prints it; empty for resources that are never stored.
    pub storage_version_hash: String,
}

impl Resource {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn gvk(&self) -> apimachinery::gvk::Gvk {
        apimachinery::gvk::Gvk::new(&*self.group, &*self.version, &*self.kind)
    }

    pub fn is_stored(&self) -> bool {
        !self.storage.is_empty()
    }

    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

/// A subresource; group, version and kind are those of its body, filled in also where discovery leaves them out.
#[derive(Debug)]
pub struct Subresource {
    pub name: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub verbs: Vec<String>,
}

/// What deleting an object does with its dependents if the request does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    Background,
    Orphan,
    /// Events: garbage collection does not apply.
    Unsupported,
}

/// Which labels a field selector may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldLabels {
    /// `metadata.name` and `metadata.namespace`; others are refused by naming these two.
    Default,
    /// Exactly these (with `metadata.name` among them); others are refused as `field label not supported`.
    Own(&'static [FieldLabel]),
}

/// A field label and the path of its value in this version of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldLabel {
    pub label: &'static str,
    /// Where the value stands, dot-separated; usually the label itself. The first of several non-empty ones counts.
    pub paths: &'static [&'static str],
}

mod switches;

struct Catalogue {
    resources: Vec<Resource>,
    groups: Vec<Group>,
    by_plural: HashMap<(&'static str, &'static str, &'static str), usize>,
    by_kind: HashMap<(&'static str, &'static str, &'static str), usize>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(load);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    groups: Vec<GroupRow>,
    storage_version_hashes: HashMap<String, String>,
}

#[derive(Deserialize)]
struct GroupRow {
    metadata: MetadataRow,
    versions: Vec<VersionRow>,
}

#[derive(Deserialize)]
struct MetadataRow {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionRow {
    version: String,
    resources: Vec<ResourceRow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceRow {
    resource: String,
    response_kind: KindRow,
    scope: String,
    singular_resource: String,
    verbs: Vec<String>,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    subresources: Vec<SubresourceRow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubresourceRow {
    subresource: String,
    response_kind: Option<KindRow>,
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct KindRow {
    group: String,
    version: String,
    kind: String,
}

fn load() -> Catalogue {
    let file: File = data::read(data::DISCOVERY);
    let mut resources = Vec::new();
    let mut groups = Vec::new();
    for group in file.groups {
        let name = group.metadata.name;
        groups.push(Group {
            name: name.clone(),
            versions: group.versions.iter().map(|version| version.version.clone()).collect(),
        });
        for version in group.versions {
            for row in version.resources {
                resources.push(resource(&name, &version.version, row, &file.storage_version_hashes));
            }
        }
    }
    // The catalogue lives as long as the process; leaking the few names lets lookups borrow from the caller.
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let by_plural = resources
        .iter()
        .enumerate()
        .map(|(at, r)| ((leak(&r.group), leak(&r.version), leak(&r.plural)), at))
        .collect();
    let by_kind = resources
        .iter()
        .enumerate()
        .map(|(at, r)| ((leak(&r.group), leak(&r.version), leak(&r.kind)), at))
        .collect();
    Catalogue { resources, groups, by_plural, by_kind }
}

fn resource(group: &str, version: &str, row: ResourceRow, hashes: &HashMap<String, String>) -> Resource {
    let plural = row.resource;
    let hash = if group.is_empty() {
        hashes.get(&format!("{version}/{plural}"))
    } else {
        hashes.get(&format!("{group}/{version}/{plural}"))
    };
    let subresources: Vec<_> = row
        .subresources
        .into_iter()
        .map(|sub| {
            let kind = sub.response_kind.unwrap_or(KindRow {
                group: String::new(),
                version: String::new(),
                kind: row.response_kind.kind.clone(),
            });
            // Empty group and version mean those of the parent, also for the core group.
            let own = kind.version.is_empty();
            Subresource {
                name: sub.subresource,
                group: if own { group.to_owned() } else { kind.group },
                version: if own { version.to_owned() } else { kind.version },
                kind: kind.kind,
                verbs: sub.verbs,
            }
        })
        .collect();
    let kind = row.response_kind.kind;
    Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        list_kind: format!("{kind}List"),
        storage: switches::storage(group, &plural),
        has_generation: switches::has_generation(group, &plural),
        unconditional_update: switches::unconditional_update(group, &plural),
        create_on_update: switches::create_on_update(group, &plural),
        has_status: subresources.iter().any(|sub| sub.name == "status"),
        returns_deleted: switches::returns_deleted(group, &plural),
        default_deletion: switches::default_deletion(group, &plural),
        fields: switches::fields(group, &plural),
        storage_version: switches::storage_version(group, version),
        storage_version_hash: hash.cloned().unwrap_or_default(),
        kind,
        plural,
        singular: row.singular_resource,
        short_names: row.short_names,
        categories: row.categories,
        namespaced: row.scope == "Namespaced",
        verbs: row.verbs,
        subresources,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_that_can_be_listed_is_stored_somewhere() {
        for resource in all() {
            let listable = resource.allows("list") && resource.plural != "componentstatuses";
            assert_eq!(listable, resource.is_stored(), "{}/{}", resource.group, resource.plural);
            assert_eq!(
                !resource.storage_version_hash.is_empty(),
                resource.is_stored(),
                "{}",
                resource.plural
            );
        }
        assert_eq!(all().len(), 68);
    }

    #[test]
    fn prefixes_are_shared_by_the_two_event_resources_and_autoscaler_versions_only() {
        let mut seen: HashMap<&str, Vec<&str>> = HashMap::new();
        for resource in all().iter().filter(|resource| resource.is_stored()) {
            seen.entry(resource.storage).or_default().push(&resource.kind);
        }
        let mut shared: Vec<_> =
            seen.iter().filter(|(_, kinds)| kinds.len() > 1).map(|(prefix, _)| *prefix).collect();
        shared.sort_unstable();
        assert_eq!(shared, ["events", "horizontalpodautoscalers"]);
        assert_eq!(find("", "v1", "nodes").expect("served").storage, "minions");
    }

    #[test]
    fn every_kind_has_a_type() {
        for resource in all() {
            let known = |kind: &str, group: &str, version: &str| {
                crate::types::for_kind(group, version, kind).is_some()
            };
            assert!(known(&resource.kind, &resource.group, &resource.version), "{}", resource.kind);
            if resource.allows("list") {
                assert!(
                    known(&resource.list_kind, &resource.group, &resource.version),
                    "{}",
                    resource.list_kind
                );
            }
            for sub in &resource.subresources {
                assert!(
                    known(&sub.kind, &sub.group, &sub.version),
                    "{}/{}: {}",
                    resource.plural,
                    sub.name,
                    sub.kind
                );
            }
        }
    }

    #[test]
    fn foreign_kinds_of_subresources_keep_their_group() {
        let deployments = find("apps", "v1", "deployments").expect("served");
        let scale = deployments.subresource("scale").expect("has one");
        assert_eq!((&*scale.group, &*scale.version, &*scale.kind), ("autoscaling", "v1", "Scale"));
        let status = deployments.subresource("status").expect("has one");
        assert_eq!((&*status.group, &*status.kind), ("apps", "Deployment"));
        let token = find("", "v1", "serviceaccounts").and_then(|r| r.subresource("token")).expect("has one");
        assert_eq!((&*token.group, &*token.kind), ("authentication.k8s.io", "TokenRequest"));
    }

    #[test]
    fn generation_is_tracked_where_kubernetes_tracks_it() {
        let tracked = |group: &str, plural: &str| find(group, "v1", plural).expect("served").has_generation;
        for (group, plural) in
            [("", "pods"), ("apps", "deployments"), ("batch", "jobs"), ("policy", "poddisruptionbudgets")]
        {
            assert!(tracked(group, plural), "{plural}");
        }
        for (group, plural) in [
            ("", "services"),
            ("", "configmaps"),
            ("apps", "controllerrevisions"),
            ("networking.k8s.io", "ipaddresses"),
        ] {
            assert!(!tracked(group, plural), "{plural}");
        }
    }

    #[test]
    fn the_switches_of_update_and_delete_follow_the_kind() {
        let lease = find("coordination.k8s.io", "v1", "leases").expect("served");
        assert!(lease.create_on_update && !lease.unconditional_update && !lease.returns_deleted);
        let pod = find("", "v1", "pods").expect("served");
        assert!(!pod.create_on_update && pod.unconditional_update && pod.returns_deleted);
        assert_eq!(find("batch", "v1", "jobs").expect("served").default_deletion, Deletion::Orphan);
        assert_eq!(
            find("events.k8s.io", "v1", "events").expect("served").default_deletion,
            Deletion::Unsupported
        );
    }
}
