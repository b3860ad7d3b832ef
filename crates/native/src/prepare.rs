//! What a write gets from the server besides defaults: system metadata, generated labels, kept status,
//! generations, the caller's identity, Service addresses, and the warnings that travel in headers.
//!
//! In: the object after decoding, defaulting and mutating admission; the stored one for updates; who writes
//! and when. Out: the object ready for validation. Defaults themselves live in [`crate::defaults`]; addresses
//! and node ports come from [`service::allocate`], which runs between preparation and validation.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod kinds;
mod metadata;
mod qos;
mod reset;
pub mod service;
mod status;
pub mod warnings;

use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::defaults::tree::{Object, ensure};
use crate::validation::node::{Node, same};

pub use kinds::{for_approval, hide_template_generation, show_template_generation};
pub use metadata::{for_create as metadata_for_create, for_update as metadata_for_update};
pub use reset::reset_fields;
pub use status::{empty as empty_status, has_subresource as has_status};
pub use warnings::{on_create as warnings, on_update as warnings_on_update};

/// The writer, the time, and the uid of a created object.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub user: &'a str,
    pub user_uid: &'a str,
    pub groups: &'a [String],
    /// The caller's extra attributes: a map of text lists, or `None`.
    pub extra: Option<&'a Value>,
    pub now: Timestamp,
    /// The new object's uid; unused by updates.
    pub uid: &'a str,
}

/// Prepares an object for creation.
///
/// *Assumptions*: a name has been generated where only a generateName was given.
pub fn for_create(gvk: &Gvk, object: &mut Value, ctx: &Context<'_>) {
    metadata::for_create(object, ctx.uid, ctx.now);
    let Some(root) = object.as_object_mut() else { return };
    kinds::before_create(gvk, root, ctx);
    if status::has_subresource(gvk) && !status::kept_on_create(gvk) {
        root.insert("status".to_owned(), status::empty(gvk));
    }
    kinds::after_create(gvk, root, ctx);
    if has_generation(gvk)
        && let Some(metadata) = ensure(root, "metadata")
    {
        metadata.insert("generation".to_owned(), 1.into());
    }
    // Upstream decodes what it stored before answering, so that defaults follow from what was generated: a Job
    // without labels gets those of its template, including the generated ones.
    crate::defaults::apply(gvk, object);
}

/// Prepares an object for replacing the stored one through the main resource: the stored status stays,
/// system metadata is restored, and the generation moves when the spec did.
pub fn for_update(gvk: &Gvk, object: &mut Value, old: &Value, _ctx: &Context<'_>) {
    metadata::for_update(object, old);
    let Some(root) = object.as_object_mut() else { return };
    if status::has_subresource(gvk) {
        restore(root, old, "status");
    }
    if gvk.group == "autoscaling" && gvk.version == "v1" {
        crate::convert::restore_status_annotations(root, old);
    }
    kinds::for_update(gvk, root, old);
    if has_generation(gvk) && spec_changed(gvk, old, object) {
        bump_generation(object, old);
    }
}

/// Prepares an object for replacing the stored one through `/status`: only the status (and the metadata that
/// upstream lets through) comes from the caller. The generation never moves here.
pub fn for_status_update(gvk: &Gvk, object: &mut Value, old: &Value, ctx: &Context<'_>) {
    metadata::for_update(object, old);
    let Some(root) = object.as_object_mut() else { return };
    let kept: Vec<String> = root
        .keys()
        .chain(old.as_object().into_iter().flat_map(|old| old.keys()))
        .filter(|key| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
        .cloned()
        .collect();
    for key in kept {
        restore(root, old, &key);
    }
    kinds::for_status_update(gvk, root, old, ctx);
}

/// Has what counts as the object's wish changed, so that its generation must move?
pub fn spec_changed(gvk: &Gvk, old: &Value, new: &Value) -> bool {
    let (old, new) = (Node::from(old), Node::from(new));
    let differs = |key: &str| !same(old.at(key), new.at(key));
    match gvk.kind.as_str() {
        // Rollouts read annotations of the Deployment, so they count as its spec.
        "Deployment" => {
            differs("spec")
                || !same(old.dig(&["metadata", "annotations"]), new.dig(&["metadata", "annotations"]))
        }
        "PodTemplate" => differs("template"),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => differs("webhooks"),
        // Everything but the metadata, and the labels.
        "EndpointSlice" => {
            ["addressType", "endpoints", "ports"].into_iter().any(differs)
                || !same(old.dig(&["metadata", "labels"]), new.dig(&["metadata", "labels"]))
        }
        // Set to 1 on creation and never moved.
        "PriorityClass" => false,
        _ => differs("spec"),
    }
}

/// Do objects of this native kind carry a generation that the server maintains?
pub fn has_generation(gvk: &Gvk) -> bool {
    matches!(
        (gvk.group.as_str(), gvk.kind.as_str()),
        ("", "Pod" | "PodTemplate" | "ReplicationController")
            | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
            | ("batch", "Job" | "CronJob")
            | ("networking.k8s.io", "Ingress" | "IngressClass" | "NetworkPolicy")
            | ("policy", "PodDisruptionBudget")
            | ("discovery.k8s.io", "EndpointSlice")
            | ("scheduling.k8s.io", "PriorityClass")
            | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration")
            | (
                "admissionregistration.k8s.io",
                "ValidatingWebhookConfiguration"
                    | "MutatingWebhookConfiguration"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
                    | "MutatingAdmissionPolicy"
                    | "MutatingAdmissionPolicyBinding"
            )
            | ("resource.k8s.io", "DeviceClass" | "ResourceSlice")
            | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

fn bump_generation(object: &mut Value, old: &Value) {
    let next = Node::from(old).dig(&["metadata", "generation"]).int().saturating_add(1);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("generation".to_owned(), next.into());
    }
}

/// Puts back the stored value of a top-level field, absence included.
fn restore(root: &mut Object, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => root.insert(key.to_owned(), value.clone()),
        None => root.remove(key),
    };
}
