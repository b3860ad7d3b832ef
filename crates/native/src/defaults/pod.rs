//! Defaults of pods and pod templates, their containers, probes and volumes.

use serde_json::{Value, json};

use super::quantities;
use super::tree::{Object, below, each, ensure, is_set, put, put_nonzero, text};

/// Defaults of a Pod object: those of every pod spec, and the ones that only ever show on Pods, since adding
/// them to templates would have changed every workload on upgrade.
pub(super) fn pod(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    pod_spec(spec);
    for list in ["containers", "initContainers"] {
        each(spec, list, requests_from_limits);
    }
    quantities::pod_level(spec);
    put(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            each(spec, list, |container| {
                each(container, "ports", |port| {
                    if let Some(number) = port.get("containerPort").cloned() {
                        put_nonzero(port, "hostPort", number);
                    }
                });
            });
        }
    }
    if let Some(status) = below(root, "status") {
        for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            each(status, list, |container| {
                quantities::round(container, &["allocatedResources"]);
            });
        }
    }
}

/// Defaults of the pod template below `key`.
pub(super) fn template(owner: &mut Object, key: &str) {
    if let Some(spec) = below(owner, key).and_then(|template| ensure(template, "spec")) {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Object) {
    put_nonzero(spec, "dnsPolicy", "ClusterFirst");
    put_nonzero(spec, "restartPolicy", "Always");
    put(spec, "securityContext", Object::new());
    put(spec, "terminationGracePeriodSeconds", 30);
    put_nonzero(spec, "schedulerName", "default-scheduler");
    service_account(spec);
    quantities::round(spec, &["overhead"]);
    if let Some(resources) = below(spec, "resources") {
        quantities::round(resources, &["limits", "requests"]);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    each(spec, "volumes", volume);
}

/// The deprecated alias and the real field always show the same name; the real field wins.
fn service_account(spec: &mut Object) {
    let name = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount"),
        name => name,
    };
    if !name.is_empty() {
        let name = Value::from(name);
        spec.insert("serviceAccount".to_owned(), name.clone());
        spec.insert("serviceAccountName".to_owned(), name);
    }
}

fn container(container: &mut Object) {
    let policy = super::image::pull_policy(text(container, "image"));
    put_nonzero(container, "imagePullPolicy", policy);
    put_nonzero(container, "terminationMessagePath", "/dev/termination-log");
    put_nonzero(container, "terminationMessagePolicy", "File");
    if let Some(resources) = ensure(container, "resources") {
        quantities::round(resources, &["limits", "requests"]);
    }
    each(container, "ports", |port| put_nonzero(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        if let Some(source) = below(variable, "valueFrom") {
            field_and_resource_refs(source);
        }
    });
    for probe_name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe_object) = below(container, probe_name) {
            probe(probe_object);
        }
    }
    if let Some(lifecycle) = below(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(http) = below(lifecycle, hook).and_then(|handler| below(handler, "httpGet")) {
                http_get(http);
            }
        }
    }
}

fn probe(probe: &mut Object) {
    put_nonzero(probe, "timeoutSeconds", 1);
    put_nonzero(probe, "periodSeconds", 10);
    put_nonzero(probe, "successThreshold", 1);
    put_nonzero(probe, "failureThreshold", 3);
    if let Some(http) = below(probe, "httpGet") {
        http_get(http);
    }
    if let Some(grpc) = below(probe, "grpc") {
        put(grpc, "service", "");
    }
}

fn http_get(http: &mut Object) {
    put_nonzero(http, "path", "/");
    put_nonzero(http, "scheme", "HTTP");
}

fn field_and_resource_refs(source: &mut Object) {
    if let Some(field) = below(source, "fieldRef") {
        put_nonzero(field, "apiVersion", "v1");
    }
    if let Some(resource) = below(source, "resourceFieldRef") {
        put(resource, "divisor", "0");
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = below(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if limits.is_empty() {
        return;
    }
    if let Some(requests) = ensure(resources, "requests") {
        for (name, quantity) in limits {
            requests.entry(name).or_insert(quantity);
        }
    }
}

fn volume(volume: &mut Object) {
    if volume.iter().all(|(key, value)| key == "name" || value.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = below(volume, source) {
            put(source, "defaultMode", 420);
        }
    }
    if let Some(downward) = below(volume, "downwardAPI") {
        each(downward, "items", field_and_resource_refs);
    }
    if let Some(projected) = below(volume, "projected") {
        each(projected, "sources", |source| {
            if let Some(downward) = below(source, "downwardAPI") {
                each(downward, "items", field_and_resource_refs);
            }
            if let Some(token) = below(source, "serviceAccountToken") {
                put(token, "expirationSeconds", 3600);
            }
        });
    }
    if let Some(image) = below(volume, "image") {
        let policy = super::image::pull_policy(text(image, "reference"));
        put_nonzero(image, "pullPolicy", policy);
    }
    if let Some(claim) =
        below(volume, "ephemeral").and_then(|ephemeral| below(ephemeral, "volumeClaimTemplate"))
    {
        put(claim, "metadata", Object::new());
        if let Some(spec) = ensure(claim, "spec") {
            super::storage::claim_spec(spec);
        }
    }
    volume_source(volume);
}

/// Defaults shared by the sources of pod volumes and of persistent volumes.
pub(super) fn volume_source(source: &mut Object) {
    if let Some(host_path) = below(source, "hostPath") {
        put(host_path, "type", "");
    }
    if let Some(iscsi) = below(source, "iscsi") {
        put_nonzero(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = below(source, "rbd") {
        put_nonzero(rbd, "pool", "rbd");
        put_nonzero(rbd, "user", "admin");
        put_nonzero(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = below(source, "azureDisk") {
        put(disk, "cachingMode", "ReadWrite");
        put(disk, "fsType", "ext4");
        put(disk, "readOnly", false);
        put(disk, "kind", "Shared");
    }
    if let Some(scale_io) = below(source, "scaleIO") {
        put_nonzero(scale_io, "storageMode", "ThinProvisioned");
        put_nonzero(scale_io, "fsType", "xfs");
    }
}

/// Is this map set and not empty? Used where Go distinguishes nil labels from some.
pub(super) fn labels_of_template(spec: &Object) -> Option<Value> {
    let metadata = spec.get("template")?.get("metadata")?.as_object()?;
    is_set(metadata, "labels").then(|| metadata["labels"].clone())
}
