//! The peculiarities of single kinds, as questions that handlers ask about any kind.
//!
//! Handlers never compare the names of kinds: `cargo xtask ci --only hygiene` enforces this. A new peculiarity of a kind gets a
//! question here.

use std::time::Duration;

use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use base64::Engine as _;
use serde_json::Value;

use super::Kind;

/// How long Events live after their last change.
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// Returns whether a kind is the CustomResourceDefinition.
fn is_definition(gvk: &Gvk) -> bool {
    gvk.group == "apiextensions.k8s.io" && gvk.kind == "CustomResourceDefinition"
}

/// Returns the collections whose entries expire, and after how long.
pub fn limited() -> Vec<(&'static str, Duration)> {
    vec![("events", EVENT_TTL)]
}

/// Removes internal fields from an object's metadata where only the metadata is shown.
pub(crate) fn hide_in_metadata(object: &Value, metadata: &mut Value) {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or("");
    match (text("kind"), text("apiVersion")) {
        ("DaemonSet", "apps/v1") => native::prepare::hide_template_generation(metadata),
        ("HorizontalPodAutoscaler", "autoscaling/v1") => native::convert::hide_annotations(metadata),
        _ => {}
    }
}

impl Kind {
    fn is(&self, collection: &str) -> bool {
        !self.is_custom() && &*self.collection == collection
    }

    /// Namespaces belong to themselves, are deleted without a grace period, and have finalizers in their spec.
    pub fn is_namespace(&self) -> bool {
        self.is("namespaces")
    }

    /// Definitions of kinds have special validation, defaults and deletion.
    pub fn is_definition(&self) -> bool {
        is_definition(&self.gvk)
    }

    /// Returns whether an object gets a name if it is sent with neither a name nor a prefix.
    pub fn needs_no_name(&self) -> bool {
        self.is("limitranges")
    }

    /// Returns the group for error messages. Events of both groups are one kind internally.
    pub fn group_in_errors(&self) -> &str {
        if self.is("events") { "" } else { &self.gvk.group }
    }

    /// Returns how long objects live, if they expire.
    pub fn ttl(&self) -> Option<Duration> {
        self.is("events").then_some(EVENT_TTL)
    }

    /// Returns whether a deletion may wait for dependents or orphan them. Nothing depends on Events.
    pub fn has_dependents(&self) -> bool {
        !self.is("events")
    }

    /// Returns the default propagation policy of a deletion.
    pub fn default_propagation(&self) -> &'static str {
        if self.is("controllers") || self.is("jobs") { "Orphan" } else { "Background" }
    }

    /// Returns a warning for clients that delete an object without a propagation policy.
    pub fn orphan_warning(&self) -> Option<&'static str> {
        self.is("jobs").then_some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
        )
    }

    /// Returns whether a deletion always marks the object first, however short its grace period is, and so whether it may have
    /// one.
    pub fn is_marked_before_removal(&self) -> bool {
        self.is("pods")
    }

    /// Returns whether objects contain a certificate request, which its own key has signed.
    pub fn asks_for_a_certificate(&self) -> bool {
        self.is("certificatesigningrequests")
    }

    /// Returns whether objects name a priority class that becomes a number.
    pub fn has_priority(&self) -> bool {
        self.is("pods")
    }

    /// Returns whether objects hold addresses and ports from the server's ranges.
    pub fn holds_addresses(&self) -> bool {
        self.is("services/specs")
    }

    /// Returns whether objects grant rights, so that their writers need these rights.
    pub fn grants_rights(&self) -> bool {
        self.is_role() || self.is("rolebindings") || self.is("clusterrolebindings")
    }

    /// Returns whether objects list rights. Objects of other kinds refer to them to grant the rights.
    pub fn is_role(&self) -> bool {
        self.is("roles") || self.is("clusterroles")
    }

    /// Returns whether a new object is tainted until it is ready.
    pub fn is_tainted_at_first(&self) -> bool {
        self.is("minions")
    }

    /// Returns whether a subresource opens a connection. A websocket is opened with GET, but it allows more than reading.
    pub fn opens_connection(&self, subresource: &str) -> bool {
        self.is("pods") && matches!(subresource, "exec" | "attach" | "portforward")
    }

    /// Returns whether `spec.selector` is a map of labels and not a label selector.
    pub fn selects_by_map(&self) -> bool {
        self.is("controllers")
    }

    /// Returns an additional version in which stored objects may have been applied, besides this one and the storage version.
    pub fn another_applied_version(&self) -> Option<&'static str> {
        (!self.is_custom() && self.gvk.kind == "HorizontalPodAutoscaler").then_some("autoscaling/v1")
    }

    /// Returns whether the computed answers of this kind are lists that can be shown as a table.
    pub fn computes_tables(&self) -> bool {
        !self.is_custom() && self.resource.resource == "componentstatuses"
    }

    /// Returns the message for an unsupported field selector, if it differs from the usual one.
    pub fn unknown_field(&self, name: &str) -> Option<String> {
        self.is("jobs").then(|| format!("field label {name:?} not supported for Job"))
    }

    /// Returns the value of a selectable field that is not in the object: zero values that Go prints and JSON leaves out.
    pub fn zero_of_field(&self, name: &str) -> &'static str {
        match (self.gvk.kind.as_str(), name) {
            ("Pod", "spec.hostNetwork") | ("Node", "spec.unschedulable") => "false",
            ("Job", "status.successful") | ("ReplicationController", "status.replicas") => "0",
            _ => "",
        }
    }

    /// Returns whether a field may be selected by but, as upstream, has no value.
    pub fn is_field_without_value(&self, name: &str) -> bool {
        self.is("pods") && name == "status.podIPs"
    }

    /// Completes an object after it was read, with defaults that the tables of its kind cannot express.
    pub(crate) fn complete(gvk: &Gvk, object: &mut Value) {
        if is_definition(gvk) {
            apimachinery::crd::default(object);
        }
        if gvk.group.is_empty() && gvk.kind == "Secret" {
            merge_string_data(object);
        }
        if gvk.group == "apps" && gvk.kind == "DaemonSet" {
            native::prepare::show_template_generation(object);
        }
    }
}

/// Moves the plain text of a Secret to the encoded values: it is never stored, nor owned, as text.
fn merge_string_data(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|fields| fields.remove("stringData"))
    else {
        return;
    };
    if texts.is_empty() {
        return;
    }
    if !secret["data"].is_object() {
        secret["data"] = Value::Object(Default::default());
    }
    for (key, text) in texts {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or(""));
        pointer::set(pointer::object_at(secret, "data"), &key, encoded.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(group: &str, kind: &str) -> std::sync::Arc<Kind> {
        let all = super::super::natives::kinds();
        all.into_iter().find(|each| each.gvk.group == group && each.gvk.kind == kind).expect("a native kind")
    }

    #[test]
    fn every_question_is_answered_by_the_kind_it_is_about() {
        assert!(kind("", "Namespace").is_namespace());
        assert!(kind("apiextensions.k8s.io", "CustomResourceDefinition").is_definition());
        assert!(kind("", "LimitRange").needs_no_name());
        assert!(kind("", "Service").holds_addresses());
        for (name, is_role) in
            [("Role", true), ("ClusterRole", true), ("RoleBinding", false), ("ClusterRoleBinding", false)]
        {
            let granting = kind("rbac.authorization.k8s.io", name);
            assert_eq!((granting.grants_rights(), granting.is_role()), (true, is_role), "{name}");
        }
        assert!(kind("", "Node").is_tainted_at_first());
        assert!(kind("certificates.k8s.io", "CertificateSigningRequest").asks_for_a_certificate());
        assert!(kind("", "ReplicationController").selects_by_map());
        assert!(kind("", "ComponentStatus").computes_tables());
        let pods = kind("", "Pod");
        assert!(pods.is_marked_before_removal() && pods.has_priority() && pods.opens_connection("exec"));
        assert!(pods.is_field_without_value("status.podIPs"));
        for group in ["", "events.k8s.io"] {
            let events = kind(group, "Event");
            assert_eq!((events.ttl(), events.group_in_errors()), (Some(EVENT_TTL), ""));
            assert!(!events.has_dependents());
        }
        let jobs = kind("batch", "Job");
        assert!(jobs.orphan_warning().is_some() && jobs.unknown_field("x").is_some());
        assert_eq!((jobs.default_propagation(), jobs.zero_of_field("status.successful")), ("Orphan", "0"));
        let autoscalers = kind("autoscaling", "HorizontalPodAutoscaler");
        assert_eq!(autoscalers.another_applied_version(), Some("autoscaling/v1"));
    }

    #[test]
    fn an_ordinary_kind_has_no_peculiarity() {
        let plain = kind("", "ConfigMap");
        assert!(!plain.is_namespace() && !plain.is_definition() && !plain.needs_no_name());
        assert!(!plain.is_marked_before_removal() && !plain.has_priority() && !plain.holds_addresses());
        assert!(!plain.is_tainted_at_first() && !plain.opens_connection("exec") && !plain.selects_by_map());
        assert!(!plain.grants_rights() && !plain.is_role());
        assert!(plain.has_dependents() && plain.ttl().is_none() && plain.orphan_warning().is_none());
        assert_eq!(plain.default_propagation(), "Background");
        assert_eq!(kind("apps", "Deployment").group_in_errors(), "apps");
        assert_eq!(plain.zero_of_field("status.successful"), "");
    }

    #[test]
    fn the_text_of_a_secret_is_encoded_and_that_of_other_kinds_stays() {
        let sent = json!({"stringData": {"a": "x"}});
        let mut secret = sent.clone();
        Kind::complete(&Gvk::new("", "v1", "Secret"), &mut secret);
        assert_eq!(secret, json!({"data": {"a": "eA=="}}));
        let mut other = sent.clone();
        Kind::complete(&Gvk::new("g", "v1", "Secret"), &mut other);
        assert_eq!(other, sent);
    }
}
