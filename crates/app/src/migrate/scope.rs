//! What moves with a control plane, and what each server creates for itself.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use api::labels::{BOOTSTRAPPING, SYSTEM, TRUE};
use apimachinery::object::Object as _;
use serde_json::Value;

use super::marker;
use super::snapshot::Resource;

/// Groups that describe the server itself, or a temporary state.
const GROUPS: &[(&str, &str)] = &[
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    ("flowcontrol.apiserver.k8s.io", SERVER),
    ("apiregistration.k8s.io", SERVER),
    ("internal.apiserver.k8s.io", SERVER),
    ("certificates.k8s.io", "certificate requests"),
    ("metrics.k8s.io", "metrics"),
    ("custom.metrics.k8s.io", "metrics"),
    ("external.metrics.k8s.io", "metrics"),
];

const SERVER: &str = "made by each API server for itself";
const ROLES: &str = "roles that each control plane has from the start";
const DEFINITIONS: &str = "definitions of Karmada's own kinds";

/// Objects that an API server creates for itself.
const OWN: &[(&str, &str, &str)] = &[
    ("services", "default", "kubernetes"),
    ("endpoints", "default", "kubernetes"),
    ("endpointslices", "default", "kubernetes"),
    ("configmaps", "kube-system", "extension-apiserver-authentication"),
    ("configmaps", "kube-system", "kube-apiserver-legacy-service-account-token-tracking"),
    ("configmaps", "kube-public", "cluster-info"),
    ("configmaps", marker::NAMESPACE, marker::NAME),
];

/// The type of Secrets with a token of the server that created them.
const TOKEN: &str = "kubernetes.io/service-account-token";

static OUR_DEFINITIONS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let all = api::crd::all().into_iter().chain(api::crd::aggregated());
    all.map(|definition| definition.name().to_owned()).collect()
});

/// Returns whether anything of a group can move.
pub(crate) fn moves(group: &str) -> bool {
    !GROUPS.iter().any(|(known, _)| group == *known)
}

/// Returns whether objects of a kind are read at all.
pub(crate) fn is_read(resource: &Resource) -> bool {
    moves(&resource.group)
        && !resource.is("", "events")
        && !resource.is("networking.k8s.io", "ipaddresses")
        && !resource.is("networking.k8s.io", "servicecidrs")
}

/// Returns why an object does not move, if it does not.
pub(crate) fn left_out(resource: &Resource, object: &Value) -> Option<&'static str> {
    if let Some((_, reason)) = GROUPS.iter().find(|(group, _)| resource.group == *group) {
        return Some(reason);
    }
    let (namespace, name) = (object.namespace(), object.name());
    let label = |name: &str| object.label(name);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "events") => return Some("events"),
        ("apiextensions.k8s.io", _) if name.ends_with(".karmada.io") || OUR_DEFINITIONS.contains(name) => {
            return Some(DEFINITIONS);
        }
        ("rbac.authorization.k8s.io", _)
            if label("kubernetes.io/bootstrapping").is_some() && !is_controllers(name)
                || label(BOOTSTRAPPING).is_some()
                || label(SYSTEM) == Some(TRUE) =>
        {
            return Some(ROLES);
        }
        ("admissionregistration.k8s.io", _) if matches!(name, "mutating-config" | "validating-config") => {
            return Some("Karmada's own webhooks");
        }
        ("scheduling.k8s.io", "priorityclasses") if name.starts_with("system-") => return Some(SERVER),
        ("", "configmaps") if name == "kube-root-ca.crt" => return Some(SERVER),
        ("", "serviceaccounts") if name == "default" => return Some("default service accounts"),
        ("networking.k8s.io", "ipaddresses" | "servicecidrs") => return Some(SERVER),
        _ => {}
    }
    let own = OWN.contains(&(resource.plural.as_str(), namespace, name));
    own.then_some(SERVER)
}

/// Returns whether a role is one that kube-apiserver has for the controllers beside it. Our server does not have these, but
/// members list the accounts in them among those who may be impersonated.
fn is_controllers(role: &str) -> bool {
    role.starts_with("system:controller:")
}

/// Removes the parts of an object that belong to its server: tokens are signed with a key that only that server has. The target
/// fills such a Secret with a token of its own.
pub(crate) fn trim(resource: &Resource, object: &mut Value) {
    if is_token(resource, object)
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("data");
    }
}

/// Returns whether an object contains a token of its server.
pub(crate) fn is_token(resource: &Resource, object: &Value) -> bool {
    resource.is("", "secrets") && object["type"] == TOKEN
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resource(group: &str, plural: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            kind: String::new(),
            namespaced: true,
            status: false,
        }
    }

    #[test]
    fn objects_that_a_server_creates_for_itself_stay_and_all_others_move() {
        let rbac = "rbac.authorization.k8s.io";
        let definitions = "apiextensions.k8s.io";
        let named = |name: &str| json!({ "metadata": { "name": name } });
        let stays = [
            (resource("", "events"), named("x")),
            (resource("coordination.k8s.io", "leases"), named("karmada-scheduler")),
            (resource(definitions, "customresourcedefinitions"), named("works.work.karmada.io")),
            (
                resource(definitions, "customresourcedefinitions"),
                named("serviceexports.multicluster.x-k8s.io"),
            ),
            (
                resource("", "services"),
                json!({ "metadata": { "name": "kubernetes", "namespace": "default" } }),
            ),
            (
                resource(rbac, "clusterroles"),
                json!({ "metadata": { "name": "edit", "labels": { "kubernetes.io/bootstrapping": "rbac-defaults" } } }),
            ),
            (resource("admissionregistration.k8s.io", "x"), named("mutating-config")),
        ];
        for (resource, object) in stays {
            assert!(left_out(&resource, &object).is_some(), "{resource:?} {object}");
        }
        let moves = [
            (resource("", "namespaces"), named("kube-system")),
            (resource("", "secrets"), named("m1")),
            (resource(definitions, "customresourcedefinitions"), named("gateways.example.com")),
            (resource(rbac, "clusterroles"), named("tenant")),
            (resource("", "services"), json!({ "metadata": { "name": "kubernetes", "namespace": "shop" } })),
            (resource("cluster.karmada.io", "clusters"), named("m1")),
        ];
        for (resource, object) in moves {
            assert_eq!(left_out(&resource, &object), None, "{resource:?} {object}");
        }
    }

    #[test]
    fn tokens_of_the_old_server_do_not_move() {
        let mut secret = json!({ "type": TOKEN, "data": { "token": "x" } });
        trim(&resource("", "secrets"), &mut secret);
        assert_eq!(secret, json!({ "type": TOKEN }));
        let mut credentials = json!({ "type": "Opaque", "data": { "token": "x" } });
        trim(&resource("", "secrets"), &mut credentials);
        assert_eq!(credentials["data"]["token"], "x", "credentials of members move");
    }
}
