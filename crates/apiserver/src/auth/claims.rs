//! The right to write into the status of a ResourceClaim, and which parts of it.
//!
//! The right to write the status is not enough. A user who binds a claim needs `resourceclaims/binding` in the whole cluster. A
//! user who reports on devices needs `resourceclaims/driver` for each of their drivers; its verb says whether this covers only a
//! claim bound to the caller's node (`associated-node:update`) or any claim (`arbitrary-node:update`).

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{self, Path};
use serde_json::Value;

use super::User;
use super::rbac::Attributes;
use crate::handlers::write::Target;

/// The extra field of a service account's token that names the node of its pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Returns the rights that are missing for a change of a status, as errors of the object.
pub fn check_status(target: &Target<'_>, new: &Value, old: &Value) -> field::Errors {
    let kind = target.kind;
    if kind.gvk.group != "resource.k8s.io"
        || kind.gvk.kind != "ResourceClaim"
        || target.subresource != "status"
    {
        return field::Errors::new();
    }
    let mut errors: field::Errors = binding(target, new, old).into_iter().collect();
    // Without an allocation, reports on devices are dropped, whatever was sent.
    if new.pointer("/status/allocation").is_some_and(Value::is_object) {
        errors.extend(drivers(target, new, old));
    }
    errors
}

/// Returns which of the rights in `wanted` are missing.
fn missing(target: &Target<'_>, wanted: &Attributes<'_>) -> Option<String> {
    let user = &target.context.user;
    target.server.rbac.check(&target.server.store, user, wanted).err().map(|status| status.message)
}

fn binding(target: &Target<'_>, new: &Value, old: &Value) -> Option<field::Error> {
    let unchanged = |field: &str| new.pointer(field) == old.pointer(field);
    if unchanged("/status/allocation") && unchanged("/status/reservedFor") {
        return None;
    }
    let base = Attributes::of(&target.context.info);
    let wanted = Attributes { subresource: "binding", namespace: "", name: "", ..base };
    let verb = wanted.verb;
    let why = missing(target, &wanted)?;
    Some(field::Error::forbidden(
        &Path::new("status").child("allocation"),
        format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {why}"
        ),
    ))
}

fn drivers(target: &Target<'_>, new: &Value, old: &Value) -> field::Errors {
    let verb = target.context.info.verb;
    let mut verbs = vec![format!("arbitrary-node:{verb}")];
    if is_beside(&target.context.user, new) {
        verbs.insert(0, format!("associated-node:{verb}"));
    }
    let refused = |driver: &&str| {
        let mut reasons = Vec::new();
        for verb in &verbs {
            let base = Attributes::of(&target.context.info);
            let wanted = Attributes { verb, subresource: "driver", name: driver, ..base };
            reasons.push(missing(target, &wanted)?);
        }
        reasons.into_iter().next()
    };
    let changed = changed_drivers(new, old);
    changed
        .iter()
        .filter_map(refused)
        .map(|why| {
            field::Error::forbidden(
                &Path::new("status").child("devices"),
                format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                    verbs.join(" ")
                ),
            )
        })
        .collect()
}

/// Returns the drivers of devices whose reports differ from the old ones.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    fn devices(object: &Value) -> BTreeMap<[&str; 4], &Value> {
        let list = object.pointer("/status/devices").and_then(Value::as_array).into_iter().flatten();
        list.map(|device| {
            let key = ["driver", "pool", "device", "shareID"]
                .map(|field| device.get(field).and_then(Value::as_str).unwrap_or(""));
            (key, device)
        })
        .collect()
    }
    let (after, before) = (devices(new), devices(old));
    let keys = after.keys().chain(before.keys());
    keys.filter(|key| after.get(*key) != before.get(*key)).map(|key| key[0]).collect()
}

/// Returns whether the caller is a service account on the one node to which a claim is bound.
fn is_beside(user: &User, claim: &Value) -> bool {
    let Some(node) = node_of(claim) else { return false };
    let at = user.extra.get(NODE_NAME).map(Vec::as_slice);
    user.service_account().is_some() && matches!(at, Some([name]) if name == node)
}

fn node_of(claim: &Value) -> Option<&str> {
    let terms = claim.pointer("/status/allocation/nodeSelector/nodeSelectorTerms")?.as_array()?;
    let [term] = terms.as_slice() else { return None };
    if term.get("matchExpressions").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        return None;
    }
    let [field] = term.get("matchFields")?.as_array()?.as_slice() else { return None };
    let [name] = field.get("values")?.as_array()?.as_slice() else { return None };
    let by_name = field["key"] == "metadata.name" && field["operator"] == "In";
    name.as_str().filter(|name| by_name && apimachinery::names::dns1123_subdomain(name).is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_is_asked_about_when_one_of_its_devices_comes_changes_or_goes() {
        let device =
            |driver: &str, name: &str, data: i32| json!({"driver": driver, "device": name, "data": data});
        let claim = |devices: Vec<Value>| json!({"status": {"devices": devices}});
        let old = claim(vec![device("a", "1", 0), device("b", "1", 0), device("c", "1", 0)]);
        let new = claim(vec![device("a", "1", 0), device("b", "1", 1), device("d", "1", 0)]);
        assert_eq!(changed_drivers(&new, &old).into_iter().collect::<Vec<_>>(), ["b", "c", "d"]);
    }

    #[test]
    fn only_a_claim_on_one_node_has_a_node() {
        let field = |values: Value| json!({"key": "metadata.name", "operator": "In", "values": values});
        let claim =
            |term: Value| json!({"status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": [term]}}}});
        assert_eq!(node_of(&claim(json!({"matchFields": [field(json!(["n"]))]}))), Some("n"));
        assert_eq!(node_of(&claim(json!({"matchFields": [field(json!(["n", "m"]))]}))), None);
        assert_eq!(
            node_of(&claim(json!({"matchExpressions": [{}], "matchFields": [field(json!(["n"]))]}))),
            None
        );
        assert_eq!(node_of(&json!({"status": {"allocation": {}}})), None);
    }
}
