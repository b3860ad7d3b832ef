//! What is wrong with an object of a native kind, in kube-apiserver's words.
//!
//! In: an object in Go shape, defaulted and prepared; for updates also the stored one. Out: field errors in the
//! order upstream reports them, all of them, not just the first. Rules
//! that only matter where an object runs are left to the member cluster that gets it; `COVERAGE.md` lists them, area by area.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

mod admission;
mod autoscaling;
mod certificates;
mod check;
mod config;
mod containers;
mod cron;
mod events;
mod flowcontrol;
mod jobs;
pub mod meta;
mod networking;
pub(crate) mod node;
mod pem;
mod pod;
mod policy;
mod probes;
mod rbac;
mod scheduling;
mod security;
pub(crate) mod service;
mod status;
mod storage;
mod volumes;
mod workloads;

use apimachinery::field::{Errors, Path};
use apimachinery::gvk::Gvk;
use serde_json::Value;

use meta::Finalizers;
pub use meta::NameRule;
use node::Node;
pub use policy::QUOTA_NAMES;

/// Returns what is wrong with a new object.
///
/// *Assumptions*: names, addresses and node ports have been generated and allocated.
pub fn create(gvk: &Gvk, object: &Value) -> Errors {
    let mut errors = metadata(gvk, object);
    let root = Node::from(object);
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => pod::create(&mut errors, root),
        ("apps", "StatefulSet") => workloads::stateful_set(&mut errors, root, false),
        ("batch", "Job") => jobs::job(&mut errors, root),
        ("batch", "CronJob") => jobs::cron_job(&mut errors, root, None),
        ("" | "events.k8s.io", "Event") => {
            let is_core = gvk.group.is_empty();
            let metadata = std::mem::take(&mut errors);
            events::event(&mut errors, root, is_core);
            if !is_core {
                errors.extend(metadata);
                events::strict(&mut errors, root);
            } else if errors.is_empty() {
                errors = metadata;
            }
        }
        _ => both(gvk, root, &mut errors),
    }
    errors
}

/// Rules that hold for new and for changed objects alike.
fn both(gvk: &Gvk, root: Node<'_>, errors: &mut Errors) {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "PodTemplate") => pod::template(errors, root.at("template"), &Path::new("template")),
        ("", "ReplicationController") => workloads::replication_controller(errors, root),
        ("apps", "Deployment") => workloads::deployment(errors, root),
        ("apps", "ReplicaSet") => workloads::replica_set(errors, root),
        ("apps", "DaemonSet") => workloads::daemon_set(errors, root),
        ("apps", "ControllerRevision") => workloads::controller_revision(errors, root),
        ("", "Service") => service::service(errors, root),
        ("", "Endpoints") => networking::endpoints(errors, root),
        ("discovery.k8s.io", "EndpointSlice") => networking::endpoint_slice(errors, root),
        ("networking.k8s.io", "Ingress") => networking::ingress(errors, root),
        ("networking.k8s.io", "IngressClass") => networking::ingress_class(errors, root),
        ("networking.k8s.io", "NetworkPolicy") => networking::network_policy(errors, root),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler(errors, root),
        ("policy", "PodDisruptionBudget") => policy::disruption_budget(errors, root),
        ("", "ConfigMap") => config::config_map(errors, root),
        ("", "Secret") => config::secret(errors, root),
        ("", "Namespace") => policy::namespace(errors, root),
        ("", "ResourceQuota") => policy::resource_quota(errors, root),
        ("", "LimitRange") => policy::limit_range(errors, root),
        ("", "PersistentVolume") => storage::persistent_volume(errors, root),
        ("", "PersistentVolumeClaim") => storage::claim(errors, root),
        ("storage.k8s.io", "StorageClass") => storage::storage_class(errors, root),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment(errors, root),
        ("storage.k8s.io", "CSIStorageCapacity") => storage::capacity(errors, root),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flowcontrol::flow_schema(errors, root),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => {
            flowcontrol::priority_level(errors, root);
        }
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class(errors, root),
        ("node.k8s.io", "RuntimeClass") => policy::runtime_class(errors, root),
        ("coordination.k8s.io", "Lease") => policy::lease(errors, root),
        ("rbac.authorization.k8s.io", "Role") => rbac::role(errors, root, true),
        ("rbac.authorization.k8s.io", "ClusterRole") => rbac::role(errors, root, false),
        ("rbac.authorization.k8s.io", "RoleBinding") => rbac::binding(errors, root, true),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => rbac::binding(errors, root, false),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificates::request(errors, root, None),
        ("apiregistration.k8s.io", "APIService") => admission::api_service(errors, root),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => {
            admission::webhooks(errors, root, false);
        }
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => {
            admission::webhooks(errors, root, true);
        }
        _ => {}
    }
}

/// Returns what is wrong with replacing `old` by `object` through the main resource.
///
/// *Assumptions*: the object went through `prepare::for_update`.
pub fn update(gvk: &Gvk, object: &Value, old: &Value) -> Errors {
    let mut errors = update_metadata(gvk, object, old);
    let (new, stored) = (Node::from(object), Node::from(old));
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => {
            pod::update(&mut errors, new, stored);
            return errors;
        }
        ("apps", "StatefulSet") => {
            workloads::stateful_set(&mut errors, new, true);
            workloads::stateful_set_update(&mut errors, new, stored);
        }
        ("batch", "Job") => {
            jobs::job(&mut errors, new);
            jobs::job_update(&mut errors, new, stored);
        }
        ("batch", "CronJob") => jobs::cron_job(&mut errors, new, Some(stored)),
        ("", "Event") => events::event(&mut errors, new, true),
        ("events.k8s.io", "Event") => {
            events::event(&mut errors, new, false);
            errors.extend(meta::update(object, old, finalizers(gvk)));
            events::strict_update(&mut errors, new, stored);
        }
        ("", "Service") => {
            service::update(&mut errors, new, stored);
            both(gvk, new, &mut errors);
        }
        ("", "Secret") => {
            check::immutable(&mut errors, &Path::new("type"), new.at("type"), stored.at("type"));
            config::immutable_update(&mut errors, new, stored);
            both(gvk, new, &mut errors);
        }
        ("", "ConfigMap") => {
            config::immutable_update(&mut errors, new, stored);
            both(gvk, new, &mut errors);
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            certificates::update(&mut errors, new, stored, "");
        }
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class_update(&mut errors, new, stored),
        ("storage.k8s.io", "StorageClass") => storage::storage_class_update(&mut errors, new, stored),
        ("storage.k8s.io", "CSIStorageCapacity") => storage::capacity_update(&mut errors, new, stored),
        _ => {
            both(gvk, new, &mut errors);
            after_both(gvk, new, stored, &mut errors);
        }
    }
    errors
}

/// What must not change, for kinds whose new state is judged first.
fn after_both(gvk: &Gvk, new: Node<'_>, old: Node<'_>, errors: &mut Errors) {
    let mut immutable = |keys: &[&str]| {
        let path = keys.iter().fold(Path::default(), |path, key| path.child(key));
        check::immutable(errors, &path, new.dig(keys), old.dig(keys));
    };
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => immutable(&["spec", "selector"]),
        ("apps", "ControllerRevision") => immutable(&["data"]),
        ("discovery.k8s.io", "EndpointSlice") => immutable(&["addressType"]),
        ("networking.k8s.io", "IngressClass") => immutable(&["spec", "controller"]),
        ("node.k8s.io", "RuntimeClass") => immutable(&["handler"]),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding_update(errors, new, old);
        }
        ("", "PersistentVolume") => storage::persistent_volume_update(errors, new, old),
        ("storage.k8s.io", "VolumeAttachment") => immutable(&["spec"]),
        ("", "PersistentVolumeClaim") => storage::claim_update(errors, new, old),
        ("", "ResourceQuota") => policy::resource_quota_update(errors, new, old),
        _ => {}
    }
}

/// Returns what is wrong with replacing `old` by `object` through a subresource: `status`, `approval`.
pub fn status_update(gvk: &Gvk, object: &Value, old: &Value, subresource: &str) -> Errors {
    let mut errors = update_metadata(gvk, object, old);
    let root = Node::from(object);
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Namespace") => policy::namespace_status(&mut errors, root),
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            certificates::update(&mut errors, root, Node::from(old), subresource);
        }
        ("flowcontrol.apiserver.k8s.io", _) => flowcontrol::conditions(&mut errors, root),
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment_status(&mut errors, root),
        _ => status::counts(&mut errors, gvk, root, Node::from(old)),
    }
    errors
}

fn metadata(gvk: &Gvk, object: &Value) -> Errors {
    let namespaced = is_namespaced(gvk);
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apiregistration.k8s.io", "APIService") => {
            let root = Node::from(object);
            meta::create_with(object, namespaced, finalizers(gvk), |name, _| {
                admission::api_service_name(root, name)
            })
        }
        _ => meta::create(object, namespaced, name_rule(gvk), finalizers(gvk)),
    }
}

/// Kinds outside Kubernetes' own tree of validators only ask for qualified finalizers.
fn finalizers(gvk: &Gvk) -> Finalizers {
    match gvk.group.as_str() {
        "apiextensions.k8s.io" | "apiregistration.k8s.io" => Finalizers::Qualified,
        _ => Finalizers::StandardOrDomain,
    }
}

/// Upstream looks at the metadata twice, once for every kind and once with the kind's own rules, so that
/// causes come doubled while the message shows each once. The names are not judged again: they cannot change.
fn update_metadata(gvk: &Gvk, object: &Value, old: &Value) -> Errors {
    let mut errors = meta::create(object, is_namespaced(gvk), NameRule::PathSegment, Finalizers::Qualified);
    errors.extend(meta::update(object, old, Finalizers::Qualified));
    if gvk.kind != "Event" {
        errors.extend(meta::update(object, old, finalizers(gvk)));
    }
    errors
}

/// Returns what is wrong with a rule that says what a webhook or a policy is about.
pub fn admission_rule(rule: &Value, path: &Path) -> Errors {
    let mut errors = Errors::new();
    admission::rule(&mut errors, Node::from(rule), path);
    errors
}

/// Returns the DER of a certificate signing request, if it is in the envelope it should be in.
pub fn signing_request(pem: &[u8]) -> Option<Vec<u8>> {
    certificates::body(pem)
}

/// Returns which names objects of a native kind may have.
pub fn name_rule(gvk: &Gvk) -> NameRule {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Namespace" | "Service") | ("apps", "StatefulSet") => NameRule::Label,
        ("", "Event")
        | ("rbac.authorization.k8s.io", _)
        | ("policy", "PodDisruptionBudget")
        | ("certificates.k8s.io", "CertificateSigningRequest") => NameRule::PathSegment,
        ("networking.k8s.io", "IPAddress") => NameRule::Address,
        _ => NameRule::Subdomain,
    }
}

/// Do objects of this native kind live in namespaces?
pub fn is_namespaced(gvk: &Gvk) -> bool {
    !matches!(
        (gvk.group.as_str(), gvk.kind.as_str()),
        ("", "Namespace" | "Node" | "PersistentVolume" | "ComponentStatus")
            | ("rbac.authorization.k8s.io", "ClusterRole" | "ClusterRoleBinding")
            | ("networking.k8s.io", "IngressClass" | "IPAddress" | "ServiceCIDR")
            | (
                "storage.k8s.io",
                "StorageClass" | "CSIDriver" | "CSINode" | "VolumeAttachment" | "VolumeAttributesClass"
            )
            | ("resource.k8s.io", "DeviceClass" | "ResourceSlice")
            | (
                "scheduling.k8s.io"
                    | "node.k8s.io"
                    | "certificates.k8s.io"
                    | "admissionregistration.k8s.io"
                    | "apiextensions.k8s.io"
                    | "apiregistration.k8s.io"
                    | "flowcontrol.apiserver.k8s.io",
                _
            )
    )
}
