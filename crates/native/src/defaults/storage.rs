//! Defaults of volumes, claims, storage classes and CSI drivers.

use serde_json::json;

use super::pod::volume_source;
use super::quantities;
use super::tree::{Object, below, ensure, has_items, put, put_nonzero};

pub(super) fn persistent_volume(root: &mut Object) {
    if let Some(status) = ensure(root, "status") {
        put_nonzero(status, "phase", "Pending");
    }
    let Some(spec) = ensure(root, "spec") else { return };
    put_nonzero(spec, "persistentVolumeReclaimPolicy", "Retain");
    put(spec, "volumeMode", "Filesystem");
    quantities::round(spec, &["capacity"]);
    volume_source(spec);
}

pub(super) fn persistent_volume_claim(root: &mut Object) {
    if let Some(status) = ensure(root, "status") {
        put_nonzero(status, "phase", "Pending");
        quantities::round(status, &["capacity", "allocatedResources"]);
    }
    if let Some(spec) = ensure(root, "spec") {
        claim_spec(spec);
    }
}

pub(super) fn claim_spec(spec: &mut Object) {
    put(spec, "volumeMode", "Filesystem");
    if let Some(resources) = below(spec, "resources") {
        quantities::round(resources, &["limits", "requests"]);
    }
}

pub(super) fn storage_class(root: &mut Object) {
    put(root, "reclaimPolicy", "Delete");
    put(root, "volumeBindingMode", "Immediate");
}

pub(super) fn csi_driver(root: &mut Object) {
    let Some(spec) = ensure(root, "spec") else { return };
    put(spec, "attachRequired", true);
    put(spec, "podInfoOnMount", false);
    put(spec, "storageCapacity", false);
    put(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if !has_items(spec, "volumeLifecycleModes") {
        spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
    }
    put(spec, "requiresRepublish", false);
    put(spec, "seLinuxMount", false);
}
