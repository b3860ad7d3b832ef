//! Which names of resources mean what to Kubernetes, and their amounts.

use apimachinery::names;
use apimachinery::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use native::validation::QUOTA_NAMES;

/// What is counted, not measured.
const INTEGER: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Returns the amount that a text names. The schema has checked it; what slipped through counts as nothing.
pub(crate) fn amount(text: &Amount) -> Quantity {
    Quantity::parse(&text.0).unwrap_or_default()
}

pub(crate) fn is_standard_for_quota(name: &str) -> bool {
    QUOTA_NAMES.contains(&name) || name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

pub(crate) fn is_standard(name: &str) -> bool {
    name == "storage" || is_standard_for_quota(name)
}

pub(crate) fn is_integer(name: &str) -> bool {
    INTEGER.contains(&name) || is_extended(name)
}

/// Says whether a resource is of somebody else's domain, such as `nvidia.com/gpu`.
pub(crate) fn is_extended(name: &str) -> bool {
    name.contains('/')
        && !is_prefixed_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

pub(crate) fn is_prefixed_native(name: &str) -> bool {
    name.contains("kubernetes.io/")
}
