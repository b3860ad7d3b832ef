//! Volumes, claims and storage classes.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::object::{child, fields};
use serde_json::Value;

use super::check::{self, complaints};
use super::node::{Node, same};
use super::{scheduling, volumes};

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Sources a persistent volume may have.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn access_modes(errors: &mut Errors, modes: Node<'_>, path: &Path) {
    let modes = modes.texts();
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(mode)) {
        errors.push(Error::not_supported(path, *mode, &ACCESS_MODES));
    }
    let alone = |mode: &&str| *mode == "ReadWriteOncePod";
    if modes.iter().any(alone) && modes.iter().any(|mode| !alone(mode) && ACCESS_MODES.contains(mode)) {
        errors.push(Error::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn class_name(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let class = spec.at("storageClassName").text();
    if !class.is_empty() {
        complaints(errors, &path.child("storageClassName"), class, names::dns1123_subdomain(class));
    }
}

pub(super) fn persistent_volume(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    if spec.at("accessModes").is_empty() {
        errors.push(Error::required(&path.child("accessModes"), ""));
    }
    access_modes(errors, spec.at("accessModes"), &path.child("accessModes"));
    let (capacity, at) = (spec.at("capacity"), path.child("capacity"));
    if capacity.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    if !capacity.at("storage").exists() || capacity.len() > 1 {
        errors.push(Error::not_supported(&at, capacity.value(), &["storage"]));
    }
    for (name, amount) in capacity.entries() {
        if check::quantity(amount).sign() <= 0 {
            errors.push(Error::invalid(&at.key(name), amount.text(), "must be greater than zero"));
        }
    }
    check::optional_enum(
        errors,
        &path.child("persistentVolumeReclaimPolicy"),
        spec.at("persistentVolumeReclaimPolicy"),
        &["Delete", "Recycle", "Retain"],
    );
    let affinity = spec.dig(&["nodeAffinity", "required"]);
    if affinity.exists() {
        scheduling::node_selector(errors, affinity, &path.child("nodeAffinity").child("required"));
    } else if spec.at("nodeAffinity").exists() {
        let at = path.child("nodeAffinity").child("required");
        errors.push(Error::required(&at, "must specify required node constraints"));
    }
    volume_source(errors, spec, &path);
    class_name(errors, spec, &path);
    check::optional_enum(errors, &path.child("volumeMode"), spec.at("volumeMode"), &VOLUME_MODES);
}

fn volume_source(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let mut found = false;
    for kind in SOURCES {
        let source = spec.at(kind);
        if !source.exists() {
            continue;
        }
        let at = path.child(kind);
        if found {
            errors.push(Error::forbidden(&at, "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        match kind {
            "hostPath" => volumes::host_path(errors, source, &at),
            "nfs" => {
                check::required(errors, &at.child("server"), source.at("server"));
                check::required(errors, &at.child("path"), source.at("path"));
            }
            "local" => {
                check::required(errors, &at.child("path"), source.at("path"));
                if !spec.dig(&["nodeAffinity", "required"]).exists() {
                    let text = "Local volume requires node affinity";
                    errors.push(Error::required(&path.child("nodeAffinity"), text));
                }
            }
            "csi" => {
                check::required(errors, &at.child("driver"), source.at("driver"));
                check::required(errors, &at.child("volumeHandle"), source.at("volumeHandle"));
            }
            _ => {}
        }
    }
    if !found {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

pub(super) fn persistent_volume_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let (new, old) = (new.at("spec"), old.at("spec"));
    if SOURCES.iter().any(|source| !same(new.at(source), old.at(source))) {
        let at = Path::new("spec").child("persistentvolumesource");
        errors.push(Error::forbidden(&at, "spec.persistentvolumesource is immutable after creation"));
    }
    check::immutable(errors, &Path::new("volumeMode"), new.at("volumeMode"), old.at("volumeMode"));
}

pub(super) fn claim(errors: &mut Errors, root: Node<'_>) {
    claim_spec(errors, root.at("spec"), &Path::new("spec"));
}

pub(super) fn claim_spec(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    if spec.at("accessModes").is_empty() {
        errors.push(Error::required(&path.child("accessModes"), "at least 1 access mode is required"));
    }
    check::selector(errors, &path.child("selector"), spec.at("selector"));
    access_modes(errors, spec.at("accessModes"), &path.child("accessModes"));
    let amount = spec.dig(&["resources", "requests", "storage"]);
    let at = path.child("resources").key("storage");
    if !amount.exists() {
        errors.push(Error::required(&at, ""));
    } else if check::quantity(amount).sign() <= 0 {
        errors.push(Error::invalid(&at, amount.text(), "must be greater than zero"));
    }
    class_name(errors, spec, path);
    check::optional_enum(errors, &path.child("volumeMode"), spec.at("volumeMode"), &VOLUME_MODES);
    data_source(errors, spec, path);
}

fn data_source(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    for field in ["dataSource", "dataSourceRef"] {
        let source = spec.at(field);
        if !source.exists() {
            continue;
        }
        let at = path.child(field);
        check::required(errors, &at.child("name"), source.at("name"));
        check::required(errors, &at.child("kind"), source.at("kind"));
        if source.at("apiGroup").is_empty() && source.at("kind").text() != "PersistentVolumeClaim" {
            let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Error::invalid(&at, source.at("kind").text(), text));
        }
    }
    let (source, reference) = (spec.at("dataSource"), spec.at("dataSourceRef"));
    if source.exists() && reference.exists() {
        if !reference.at("namespace").is_empty() {
            let text = "may not be specified when dataSourceRef.namespace is specified";
            errors.push(Error::invalid(path, "dataSource", text));
        } else if ["kind", "name", "apiGroup"]
            .iter()
            .any(|field| !same(source.at(field), reference.at(field)))
        {
            errors.push(Error::invalid(path, "dataSource", "must match dataSourceRef"));
        }
    }
}

/// A claim is a contract: once made, only the size of a bound one may grow.
pub(super) fn claim_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    let path = Path::new("spec");
    let bound = new.dig(&["status", "phase"]).text() == "Bound";
    let (spec, stored) = (new.at("spec"), old.at("spec"));
    let mut allowed = stored.value();
    if let Some(allowed) = allowed.as_object_mut() {
        let mut take = |field: &str| match spec.at(field).0 {
            Some(value) => allowed.insert(field.to_owned(), value.clone()),
            None => allowed.remove(field),
        };
        if stored.at("volumeName").is_empty() {
            take("volumeName");
        }
        if !stored.at("storageClassName").exists() && !bound {
            take("storageClassName");
        }
        if bound {
            take("volumeAttributesClassName");
        }
    }
    let new_size = spec.dig(&["resources", "requests", "storage"]);
    if bound && new_size.exists() {
        let requests = child(child(fields(&mut allowed), "resources"), "requests");
        requests.insert("storage".to_owned(), Value::from(new_size.text()));
    }
    if !same(spec, Node::from(&allowed)) {
        let text = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(Error::forbidden(&path, text));
    }
    let old_size = check::quantity(stored.dig(&["resources", "requests", "storage"]));
    let have = check::quantity(old.dig(&["status", "capacity", "storage"]));
    let size = check::quantity(new_size);
    // A failed expansion may be taken back, but not below what is already there.
    if size < old_size && size <= have {
        let at = path.child("resources").child("requests").child("storage");
        errors.push(Error::forbidden(&at, "field can not be less than status.capacity"));
    }
    check::immutable(errors, &Path::new("volumeMode"), spec.at("volumeMode"), stored.at("volumeMode"));
}

pub(super) fn storage_class(errors: &mut Errors, root: Node<'_>) {
    let (provisioner, path) = (root.at("provisioner").text(), Path::new("provisioner"));
    if provisioner.is_empty() {
        errors.push(Error::required(&path, ""));
    } else {
        let lower = provisioner.to_lowercase();
        complaints(errors, &path, &lower, names::qualified_name(&lower));
    }
    check::optional_enum(
        errors,
        &Path::new("reclaimPolicy"),
        root.at("reclaimPolicy"),
        &["Delete", "Retain"],
    );
    check::required_enum(
        errors,
        &Path::new("volumeBindingMode"),
        root.at("volumeBindingMode"),
        &["Immediate", "WaitForFirstConsumer"],
    );
}

pub(super) fn storage_class_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        check::immutable(errors, &Path::new(field), new.at(field), old.at(field));
    }
}

/// How much a driver may note about an attached volume.
const MAX_ATTACHMENT_METADATA: usize = 256 * 1024;
/// How long the message of a failure may be.
const MAX_ERROR_MESSAGE: usize = 1024;

pub(super) fn attachment(errors: &mut Errors, root: Node<'_>) {
    let (spec, path) = (root.at("spec"), Path::new("spec"));
    driver_name(errors, spec.at("attacher").text(), &path.child("attacher"));
    let (source, at) = (spec.at("source"), path.child("source"));
    let (inline, volume) = (source.at("inlineVolumeSpec"), source.at("persistentVolumeName"));
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline.exists(), volume.exists()) {
        (false, false) => errors.push(Error::required(&at, one)),
        (true, true) => errors.push(Error::forbidden(&at, one)),
        (false, true) if volume.is_empty() => errors.push(Error::required(
            &at.child("persistentVolumeName"),
            "must specify non empty persistentVolumeName",
        )),
        _ => {}
    }
    let node = spec.at("nodeName").text();
    complaints(errors, &path.child("nodeName"), node, names::dns1123_subdomain(node));
    attachment_status(errors, root);
    if let Some(name) = volume.opt_text() {
        let at = Path::new("spec.source.persistentVolumeName");
        complaints(errors, &at, name, names::dns1123_subdomain(name));
    }
}

/// The status of an attachment, which is as long as it may be.
pub(super) fn attachment_status(errors: &mut Errors, root: Node<'_>) {
    let (status, path) = (root.at("status"), Path::new("status"));
    let notes = status.at("attachmentMetadata").entries();
    let size: usize = notes.map(|(key, value)| key.len().saturating_add(value.text().len())).sum();
    if size > MAX_ATTACHMENT_METADATA {
        errors.push(Error::too_long(&path.child("attachmentMetadata"), MAX_ATTACHMENT_METADATA));
    }
    for field in ["attachError", "detachError"] {
        if status.dig(&[field, "message"]).len() > MAX_ERROR_MESSAGE {
            // Upstream names the other limit.
            errors.push(Error::too_long(&path.child(field).child("message"), MAX_ATTACHMENT_METADATA));
        }
    }
}

/// The name of a storage driver; upper and lower case are one to it.
fn driver_name(errors: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(Error::too_long(path, 63));
    }
    complaints(errors, path, name, names::dns1123_subdomain(&name.to_lowercase()));
}

pub(super) fn capacity(errors: &mut Errors, root: Node<'_>) {
    check::selector(errors, &Path::new("nodeTopology"), root.at("nodeTopology"));
    let class = root.at("storageClassName").text();
    complaints(errors, &Path::new("storageClassName"), class, names::dns1123_subdomain(class));
    if check::quantity(root.at("capacity")).sign() < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(Error::invalid(&Path::new("capacity"), root.at("capacity").text(), detail));
    }
}

pub(super) fn capacity_update(errors: &mut Errors, new: Node<'_>, old: Node<'_>) {
    for field in ["nodeTopology", "storageClassName"] {
        check::immutable(errors, &Path::new(field), new.at(field), old.at(field));
    }
}
