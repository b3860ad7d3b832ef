//! Kubernetes' own kinds, as this server serves them.

use std::sync::Arc;

use apimachinery::gvk::{GroupResource, Gvk};

use super::kind::{Kind, Rules, Source, Subresource};

/// The order of groups in `/apis`: upstream's group priorities. A group that is not listed comes from definitions.
const PRIORITIES: &[(&str, i32)] = &[
    ("", 18000),
    // Above every priority that an APIService can request, which is 20,000 at most.
    ("apiregistration.k8s.io", 20001),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("admissionregistration.k8s.io", 16700),
    ("apiextensions.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("resource.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
];

/// Kinds whose deletion answers with the deleted object.
const RETURNS_DELETED: &[&str] = &[
    "pods",
    "podtemplates",
    "namespaces",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourcequotas",
    "services",
    "serviceaccounts",
    "deviceclasses",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourceslices",
    "csidrivers",
    "csinodes",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
];

pub(super) fn priority(group: &str) -> Option<i32> {
    PRIORITIES.iter().find(|(name, _)| *name == group).map(|(_, priority)| *priority)
}

/// Returns all native kinds.
pub(super) fn kinds() -> Vec<Arc<Kind>> {
    native::resources::all().iter().filter(|resource| priority(&resource.group).is_some()).map(kind).collect()
}

fn kind(resource: &'static native::resources::Resource) -> Arc<Kind> {
    let gvk = Gvk::new(&resource.group, &resource.version, &resource.kind);
    let storage = match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("events.k8s.io", "Event") => Gvk::new("", "v1", "Event"),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            Gvk::new("autoscaling", "v2", "HorizontalPodAutoscaler")
        }
        _ => gvk.clone(),
    };
    let name = resource.plural.as_str();
    let computed = !resource.verbs.iter().any(|verb| verb == "list") && !resource.verbs.is_empty();
    let subresources = resource
        .subresources
        .iter()
        .map(|subresource| Subresource {
            name: subresource.name.clone(),
            gvk: Gvk::new(&subresource.group, &subresource.version, &subresource.kind),
            verbs: subresource.verbs.clone(),
        })
        .collect();
    Arc::new(Kind {
        api_version: gvk.api_version(),
        list_kind: format!("{}List", resource.kind),
        resource: GroupResource::new(&resource.group, name),
        singular: resource.singular.clone(),
        short_names: resource.short_names.clone(),
        categories: resource.categories.clone(),
        namespaced: resource.namespaced,
        verbs: resource.verbs.clone(),
        subresources,
        collection: Arc::from(resource.storage),
        source: Source::Native,
        rules: Rules {
            generation: resource.has_generation,
            unconditional_update: resource.unconditional_update,
            create_on_update: resource.create_on_update,
            status: resource.has_status,
            computed: computed || name == "componentstatuses",
            delete_returns_object: RETURNS_DELETED.contains(&name),
            buffered: matches!(name, "events" | "leases"),
        },
        storage,
        gvk,
    })
}
