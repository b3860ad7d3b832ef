//! Rows of volumes, claims, classes, CSI objects and device claims.

use serde_json::Value;

use super::{Row, or};
use crate::validation::node::Node;

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

fn access_modes(modes: Node<'_>) -> Value {
    let modes = modes.texts();
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let shown: Vec<&str> =
        short.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| *short).collect();
    shown.join(",").into()
}

fn class(row: Row<'_>) -> Value {
    row.meta("annotations")
        .at(CLASS_ANNOTATION)
        .opt_text()
        .unwrap_or(row.spec("storageClassName").text())
        .into()
}

fn phase(row: Row<'_>) -> Value {
    if row.is_deleted() { "Terminating".into() } else { row.status("phase").text().into() }
}

fn unset<'a>(node: Node<'a>) -> &'a str {
    node.opt_text().unwrap_or("<unset>")
}

pub(super) fn persistent_volume(row: Row<'_>) -> Vec<Value> {
    let claim = row.spec("claimRef");
    let claim = if claim.exists() {
        format!("{}/{}", claim.at("namespace").text(), claim.at("name").text())
    } else {
        String::new()
    };
    vec![
        row.name(),
        or(row.spec("capacity").at("storage").text(), "0").into(),
        access_modes(row.spec("accessModes")),
        row.spec("persistentVolumeReclaimPolicy").text().into(),
        phase(row),
        claim.into(),
        class(row),
        unset(row.spec("volumeAttributesClassName")).into(),
        row.status("reason").text().into(),
        row.age(),
        unset(row.spec("volumeMode")).into(),
    ]
}

pub(super) fn persistent_volume_claim(row: Row<'_>) -> Vec<Value> {
    let volume = row.spec("volumeName").text();
    let (capacity, modes) = if volume.is_empty() {
        ("".into(), "".into())
    } else {
        let capacity = or(row.status("capacity").at("storage").text(), "0");
        (capacity.into(), access_modes(row.status("accessModes")))
    };
    vec![
        row.name(),
        phase(row),
        volume.into(),
        capacity,
        modes,
        class(row),
        unset(row.spec("volumeAttributesClassName")).into(),
        row.age(),
        unset(row.spec("volumeMode")).into(),
    ]
}

pub(super) fn storage_class(row: Row<'_>) -> Vec<Value> {
    let annotations = row.meta("annotations");
    let is_default =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
            .iter()
            .any(|key| annotations.at(key).text() == "true");
    let name = row.meta("name").text();
    let name = if is_default { format!("{name} (default)") } else { name.to_owned() };
    vec![
        name.into(),
        row.root.at("provisioner").text().into(),
        row.root.at("reclaimPolicy").opt_text().unwrap_or("Delete").into(),
        row.root.at("volumeBindingMode").opt_text().unwrap_or("Immediate").into(),
        row.root.at("allowVolumeExpansion").flag().into(),
        row.age(),
    ]
}

pub(super) fn csi_driver(row: Row<'_>) -> Vec<Value> {
    let requests = row.spec("tokenRequests");
    let audiences = if requests.exists() {
        requests.items().map(|request| request.at("audience").text()).collect::<Vec<_>>().join(",")
    } else {
        "<unset>".to_owned()
    };
    vec![
        row.name(),
        row.spec("attachRequired").0.and_then(Value::as_bool).unwrap_or(true).into(),
        row.spec("podInfoOnMount").flag().into(),
        row.spec("storageCapacity").flag().into(),
        audiences.into(),
        row.spec("requiresRepublish").flag().into(),
        or(&row.spec("volumeLifecycleModes").texts().join(","), "<none>").into(),
        row.age(),
    ]
}

pub(super) fn csi_node(row: Row<'_>) -> Vec<Value> {
    vec![row.name(), row.spec("drivers").len().into(), row.age()]
}

pub(super) fn volume_attachment(row: Row<'_>) -> Vec<Value> {
    vec![
        row.name(),
        row.spec("attacher").text().into(),
        row.spec("source").at("persistentVolumeName").text().into(),
        row.spec("nodeName").text().into(),
        row.status("attached").flag().into(),
        row.age(),
    ]
}

pub(super) fn volume_attributes_class(row: Row<'_>) -> Vec<Value> {
    vec![row.name(), row.root.at("driverName").text().into(), row.age()]
}

pub(super) fn resource_claim(row: Row<'_>) -> Vec<Value> {
    let mut states = Vec::new();
    if row.is_deleted() {
        states.push("deleted");
    }
    if row.status("allocation").exists() {
        states.push("allocated");
        if !row.status("reservedFor").is_empty() {
            states.push("reserved");
        }
    } else if !row.is_deleted() {
        states.push("pending");
    }
    vec![row.name(), states.join(",").into(), row.age()]
}

pub(super) fn resource_slice(row: Row<'_>) -> Vec<Value> {
    vec![
        row.name(),
        row.spec("nodeName").text().into(),
        row.spec("driver").text().into(),
        row.spec("pool").at("name").text().into(),
        row.age(),
    ]
}
