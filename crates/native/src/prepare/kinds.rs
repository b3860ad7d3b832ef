//! Preparation that single kinds need: generated labels, identities, mirrored fields.

use std::collections::BTreeMap;

use apimachinery::gvk::Gvk;
use serde_json::{Value, json};

use super::metadata::seconds;
use super::reset::keeps_metadata;
use super::{Context, qos, restore, service};
use crate::defaults::tree::{Object, below, ensure, has_items, is_set, put, text};
use crate::validation::node::{Node, same};

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Runs before the status is dropped.
pub(super) fn before_create(gvk: &Gvk, root: &mut Object, ctx: &Context<'_>) {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Secret") => merge_string_data(root),
        ("", "Namespace") => {
            namespace_finalizer(root);
            namespace_label(root);
        }
        ("", "PersistentVolumeClaim") => mirror_data_source(root),
        ("", "Service") => service::normalise(root, None),
        ("apps", "DaemonSet") => daemon_set_on_create(root),
        ("batch", "Job") => job_on_create(root, ctx),
        ("certificates.k8s.io", "CertificateSigningRequest") => csr_identity(root, ctx),
        _ => {}
    }
}

/// Fills the fresh status.
pub(super) fn after_create(gvk: &Gvk, root: &mut Object, ctx: &Context<'_>) {
    let status = match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Pod") => pod_status(root, ctx),
        ("", "PersistentVolume") => {
            json!({"phase": "Pending", "lastPhaseTransitionTime": seconds(ctx.now)})
        }
        ("apiregistration.k8s.io", "APIService") => api_service_status(root, ctx),
        _ => return,
    };
    root.insert("status".to_owned(), status);
}

pub(super) fn for_update(gvk: &Gvk, root: &mut Object, old: &Value) {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("", "Secret") => merge_string_data(root),
        ("", "Namespace") => {
            if let Some(spec) = ensure(root, "spec") {
                match old.get("spec").and_then(|spec| spec.get("finalizers")) {
                    Some(finalizers) => spec.insert("finalizers".to_owned(), finalizers.clone()),
                    None => spec.remove("finalizers"),
                };
            }
            namespace_label(root);
        }
        ("", "PersistentVolumeClaim") => mirror_data_source(root),
        ("", "Service") => {
            service::keep_allocated(root, old);
            service::normalise(root, Some(old));
            service::drop_what_the_type_lost(root, old);
        }
        ("apps", "DaemonSet") => daemon_set_on_update(root, old),
        ("certificates.k8s.io", "CertificateSigningRequest") => restore(root, old, "spec"),
        _ => {}
    }
}

pub(super) fn for_status_update(gvk: &Gvk, root: &mut Object, old: &Value, ctx: &Context<'_>) {
    let stored_metadata = |field: &str| old.get("metadata").and_then(|metadata| metadata.get(field)).cloned();
    if keeps_metadata(gvk) {
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            set_metadata(root, field, stored_metadata(field));
        }
    }
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment") => set_metadata(root, "labels", stored_metadata("labels")),
        ("", "Pod") => {
            for field in ["deletionTimestamp", "ownerReferences"] {
                set_metadata(root, field, stored_metadata(field));
            }
            let class = Node::from(old).dig(&["status", "qosClass"]).value();
            if let Some(status) = below(root, "status")
                && text(status, "qosClass").is_empty()
                && !class.is_null()
            {
                status.insert("qosClass".to_owned(), class);
            }
        }
        ("", "Namespace") => namespace_label(root),
        ("storage.k8s.io", "VolumeAttachment")
        | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration")
        | ("networking.k8s.io", "ServiceCIDR")
        | ("resource.k8s.io", "ResourceClaim")
        | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
        | ("apiregistration.k8s.io", "APIService") => {
            for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
                set_metadata(root, field, stored_metadata(field));
            }
        }
        ("", "PersistentVolume") => phase_transition_time(root, old, ctx),
        ("certificates.k8s.io", "CertificateSigningRequest") => csr_status(root, old, ctx),
        _ => {}
    }
}

/// Prepares an object for `/approval`: the conditions come from the caller, the certificate stays.
pub fn for_approval(object: &mut Value, old: &Value, ctx: &Context<'_>) {
    super::metadata::for_update(object, old);
    let Some(root) = object.as_object_mut() else { return };
    restore(root, old, "spec");
    let conditions = root.get("status").and_then(|status| status.get("conditions")).cloned();
    restore(root, old, "status");
    if let Some(status) = ensure(root, "status") {
        match conditions {
            Some(conditions) => status.insert("conditions".to_owned(), conditions),
            None => status.remove("conditions"),
        };
    }
    condition_times(root, old, ctx);
}

fn set_metadata(root: &mut Object, field: &str, value: Option<Value>) {
    if let Some(metadata) = ensure(root, "metadata") {
        match value {
            Some(value) => metadata.insert(field.to_owned(), value),
            None => metadata.remove(field),
        };
    }
}

/// `stringData` is a write-only convenience: it wins over `data` key by key and is never stored.
fn merge_string_data(root: &mut Object) {
    use base64::Engine as _;
    let Some(Value::Object(texts)) = root.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    if let Some(data) = ensure(root, "data") {
        for (key, value) in texts {
            let bytes = value.as_str().unwrap_or_default().as_bytes();
            let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
            data.insert(key, encoded.into());
        }
    }
}

/// The namespace controller removes this finalizer once the namespace is empty.
fn namespace_finalizer(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "finalizers", json!([]));
    if let Some(finalizers) = spec.get_mut("finalizers").and_then(Value::as_array_mut)
        && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
    {
        finalizers.push("kubernetes".into());
    }
}

fn namespace_label(root: &mut Object) {
    let Some(metadata) = below(root, "metadata") else { return };
    let name = text(metadata, "name").to_owned();
    if let Some(labels) = ensure(metadata, "labels") {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

/// The old and the new spelling of a claim's source show the same thing, unless the new one reaches into
/// another namespace, which the old one cannot express.
fn mirror_data_source(root: &mut Object) {
    let Some(spec) = below(root, "spec") else { return };
    let (source, reference) = (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned());
    match (source.filter(|value| !value.is_null()), reference.filter(|value| !value.is_null())) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(reference)) if Node::from(&reference).at("namespace").is_empty() => {
            spec.insert("dataSource".to_owned(), reference);
        }
        _ => {}
    }
}

fn template_generation(root: Node<'_>) -> i64 {
    root.dig(&["metadata", "annotations", TEMPLATE_GENERATION]).text().parse().unwrap_or(0)
}

fn set_template_generation(root: &mut Object, generation: i64) {
    if let Some(annotations) = ensure(root, "metadata").and_then(|metadata| ensure(metadata, "annotations")) {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
    }
}

/// Shows the generation of a DaemonSet's template, which is a field inside upstream and an annotation outside: it is always
/// there, whoever left it out wrote 0.
pub fn show_template_generation(object: &mut Value) {
    let sent = template_generation(Node::from(&*object));
    if let Some(root) = object.as_object_mut() {
        set_template_generation(root, sent);
    }
}

/// Takes the generation out of the metadata of a DaemonSet where they stand alone: there, as in tables, upstream shows what is inside.
pub fn hide_template_generation(metadata: &mut Value) {
    let Some(fields) = metadata.as_object_mut() else { return };
    let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    annotations.remove(TEMPLATE_GENERATION);
    if annotations.is_empty() {
        fields.remove("annotations");
    }
}

fn daemon_set_on_create(root: &mut Object) {
    let sent = root.get("metadata").map_or(0, |metadata| {
        Node::from(metadata).dig(&["annotations", TEMPLATE_GENERATION]).text().parse().unwrap_or(0)
    });
    set_template_generation(root, sent.max(1));
}

fn daemon_set_on_update(root: &mut Object, old: &Value) {
    let old = Node::from(old);
    let template = Node(root.get("spec")).at("template");
    let moved = !same(template, old.dig(&["spec", "template"]));
    set_template_generation(root, template_generation(old).saturating_add(i64::from(moved)));
}

/// Labels by which a Job finds its pods: its name and uid, in the old and the new spelling.
fn job_on_create(root: &mut Object, ctx: &Context<'_>) {
    let name = root.get("metadata").map(|metadata| text_of(metadata, "name")).unwrap_or_default();
    let Some(spec) = ensure(root, "spec") else { return };
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    // When the Job's own labels were defaulted from the template, Go shares one map between both, so that the
    // generated labels show up in both places.
    let template_labels = Node(spec.get("template")).dig(&["metadata", "labels"]).value();
    let generated = [
        ("batch.kubernetes.io/controller-uid", ctx.uid),
        ("batch.kubernetes.io/job-name", name.as_str()),
        ("controller-uid", ctx.uid),
        ("job-name", name.as_str()),
    ];
    let labels = ensure(spec, "template")
        .and_then(|template| ensure(template, "metadata"))
        .and_then(|metadata| ensure(metadata, "labels"));
    if let Some(labels) = labels {
        for (key, value) in generated {
            put(labels, key, value);
        }
    }
    let matched = ensure(spec, "selector").and_then(|selector| ensure(selector, "matchLabels"));
    if let Some(matched) = matched {
        put(matched, "batch.kubernetes.io/controller-uid", ctx.uid);
    }
    let all = Node(spec.get("template")).dig(&["metadata", "labels"]).value();
    if let Some(metadata) = below(root, "metadata")
        && !template_labels.is_null()
        && metadata.get("labels") == Some(&template_labels)
    {
        metadata.insert("labels".to_owned(), all);
    }
}

fn text_of(value: &Value, key: &str) -> String {
    Node::from(value).at(key).text().to_owned()
}

/// The requester is whom the authenticator names, never whom the request names.
fn csr_identity(root: &mut Object, ctx: &Context<'_>) {
    let Some(spec) = ensure(root, "spec") else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    for (field, value) in [("username", ctx.user), ("uid", ctx.user_uid)] {
        if !value.is_empty() {
            spec.insert(field.to_owned(), value.into());
        }
    }
    if !ctx.groups.is_empty() {
        spec.insert("groups".to_owned(), json!(ctx.groups));
    }
    if let Some(extra) = ctx.extra.filter(|extra| extra.as_object().is_some_and(|map| !map.is_empty())) {
        spec.insert("extra".to_owned(), extra.clone());
    }
}

/// Approval is decided at `/approval` alone: as long as none is added or taken away, which validation refuses, `/status` keeps
/// those conditions as they are stored.
fn csr_status(root: &mut Object, old: &Value, ctx: &Context<'_>) {
    for decision in ["Approved", "Denied"] {
        let is = |condition: &Value| condition.get("type").and_then(Value::as_str) == Some(decision);
        let stored: Vec<Value> = Node::from(old)
            .dig(&["status", "conditions"])
            .items()
            .map(Node::value)
            .filter(|condition| is(condition))
            .collect();
        let sent = below(root, "status").and_then(|status| status.get_mut("conditions")?.as_array_mut());
        let mut sent: Vec<&mut Value> =
            sent.into_iter().flatten().filter(|condition| is(condition)).collect();
        if sent.len() == stored.len() {
            sent.iter_mut().zip(stored).for_each(|(sent, stored)| **sent = stored);
        }
    }
    condition_times(root, old, ctx);
}

/// Conditions without times get them; an unchanged condition keeps its transition time.
fn condition_times(root: &mut Object, old: &Value, ctx: &Context<'_>) {
    let stored: BTreeMap<String, Value> = Node::from(old)
        .dig(&["status", "conditions"])
        .items()
        .map(|condition| (condition.at("type").text().to_owned(), condition.value()))
        .collect();
    let Some(status) = below(root, "status") else { return };
    let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        if !is_set(condition, "lastUpdateTime") {
            condition.insert("lastUpdateTime".to_owned(), seconds(ctx.now).into());
        }
        if !is_set(condition, "lastTransitionTime") {
            let before = stored.get(text(condition, "type"));
            let same_status = before.is_some_and(|before| before.get("status") == condition.get("status"));
            let time = match before.and_then(|before| before.get("lastTransitionTime")) {
                Some(time) if same_status => time.clone(),
                _ => seconds(ctx.now).into(),
            };
            condition.insert("lastTransitionTime".to_owned(), time);
        }
    }
}

fn phase_transition_time(root: &mut Object, old: &Value, ctx: &Context<'_>) {
    let old = Node::from(old).at("status");
    let Some(status) = below(root, "status") else { return };
    let same_phase = text(status, "phase") == old.at("phase").text();
    let sent = status.get("lastPhaseTransitionTime").filter(|time| !time.is_null()).cloned();
    let time = match (same_phase, sent) {
        (true, None) => old.at("lastPhaseTransitionTime").value(),
        (false, sent) if sent.is_none() || sent == Some(old.at("lastPhaseTransitionTime").value()) => {
            seconds(ctx.now).into()
        }
        _ => return,
    };
    if !time.is_null() {
        status.insert("lastPhaseTransitionTime".to_owned(), time);
    }
}

fn pod_status(root: &Object, ctx: &Context<'_>) -> Value {
    let spec = Node(root.get("spec"));
    let mut status = json!({"phase": "Pending", "qosClass": qos::class(spec)});
    if !spec.at("schedulingGates").is_empty()
        && let Some(fields) = status.as_object_mut()
    {
        let gated = json!({
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": seconds(ctx.now),
        });
        fields.insert("conditions".to_owned(), json!([gated]));
    }
    status
}

/// An APIService without a backend is served by this server and therefore always there.
fn api_service_status(root: &Object, ctx: &Context<'_>) -> Value {
    let spec = root.get("spec").and_then(Value::as_object);
    if spec.is_some_and(|spec| has_items(spec, "service")) {
        return json!({});
    }
    json!({"conditions": [{
        "type": "Available",
        "status": "True",
        "reason": "Local",
        "message": "Local APIServices are always available",
        "lastTransitionTime": seconds(ctx.now),
    }]})
}
