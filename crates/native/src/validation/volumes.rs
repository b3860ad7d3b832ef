//! Volumes of a pod.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use super::check::{self, complaints};
use super::containers::{VOLUME_FIELDS, field_ref, resource_ref};
use super::node::Node;

/// Every source there is, in the order upstream looks at them.
const SOURCES: [&str; 31] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
    "local",
];

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks all volumes and returns the names of the good ones: mounting a bad one is reported as not found too.
pub(super) fn check<'a>(errors: &mut Errors, volumes: Node<'a>, path: &Path) -> HashSet<&'a str> {
    let mut good: HashSet<&str> = HashSet::new();
    for (index, volume) in volumes.items().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        source(errors, volume, &path);
        let name = volume.at("name").text();
        if name.is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        } else {
            complaints(errors, &path.child("name"), name, names::dns1123_label(name));
        }
        if good.contains(&name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            good.insert(name);
        }
    }
    good
}

fn source(errors: &mut Errors, volume: Node<'_>, path: &Path) {
    let mut found = false;
    for kind in SOURCES {
        let source = volume.at(kind);
        if !source.exists() {
            continue;
        }
        let path = path.child(kind);
        if found {
            errors.push(Error::forbidden(&path, "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        one_source(errors, kind, source, &path);
    }
    if !found {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

fn one_source(errors: &mut Errors, kind: &str, source: Node<'_>, path: &Path) {
    match kind {
        "emptyDir" if check::quantity(source.at("sizeLimit")).sign() < 0 => {
            let text = "SizeLimit field must be a valid resource quantity";
            errors.push(Error::forbidden(&path.child("sizeLimit"), text));
        }
        "hostPath" => host_path(errors, source, path),
        "secret" => {
            check::required(errors, &path.child("secretName"), source.at("secretName"));
            mode(errors, source.at("defaultMode"), &path.child("defaultMode"));
            items(errors, source.at("items"), &path.child("items"));
        }
        "configMap" => {
            check::required(errors, &path.child("name"), source.at("name"));
            mode(errors, source.at("defaultMode"), &path.child("defaultMode"));
            items(errors, source.at("items"), &path.child("items"));
        }
        "downwardAPI" => {
            mode(errors, source.at("defaultMode"), &path.child("defaultMode"));
            downward(errors, source.at("items"), path);
        }
        "projected" => projected(errors, source, path),
        "persistentVolumeClaim" => check::required(errors, &path.child("claimName"), source.at("claimName")),
        "nfs" => {
            check::required(errors, &path.child("server"), source.at("server"));
            check::required(errors, &path.child("path"), source.at("path"));
            let target = source.at("path").text();
            if !target.is_empty() && !target.starts_with('/') {
                errors.push(Error::invalid(&path.child("path"), target, "must be an absolute path"));
            }
        }
        "csi" => check::required(errors, &path.child("driver"), source.at("driver")),
        "ephemeral" => {
            let template = source.at("volumeClaimTemplate");
            let path = path.child("volumeClaimTemplate");
            if template.exists() {
                super::storage::claim_spec(errors, template.at("spec"), &path.child("spec"));
            } else {
                errors.push(Error::required(&path, ""));
            }
        }
        "image" => {
            check::required(errors, &path.child("reference"), source.at("reference"));
            check::optional_enum(
                errors,
                &path.child("pullPolicy"),
                source.at("pullPolicy"),
                &["Always", "IfNotPresent", "Never"],
            );
        }
        _ => {}
    }
}

pub(super) fn host_path(errors: &mut Errors, source: Node<'_>, path: &Path) {
    let target = source.at("path").text();
    if target.is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
        return;
    }
    check::no_backsteps(errors, &path.child("path"), target);
    check::optional_enum(
        errors,
        &path.child("type"),
        source.at("type"),
        &[
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ],
    );
}

fn mode(errors: &mut Errors, mode: Node<'_>, path: &Path) {
    if let Some(bits) = mode.opt_int()
        && !(0..=0o777).contains(&bits)
    {
        errors.push(Error::invalid(path, bits, FILE_MODE));
    }
}

/// A path below the volume that does not hide Kubernetes' own `..data` links.
fn file_path(errors: &mut Errors, path: &Path, value: &str) {
    check::descending_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push(Error::invalid(path, value, "must not start with '..'"));
    }
}

fn items(errors: &mut Errors, items: Node<'_>, path: &Path) {
    for (index, item) in items.items().enumerate() {
        let path = path.index(index);
        check::required(errors, &path.child("key"), item.at("key"));
        check::required(errors, &path.child("path"), item.at("path"));
        file_path(errors, &path.child("path"), item.at("path").text());
        mode(errors, item.at("mode"), &path.child("mode"));
    }
}

fn downward(errors: &mut Errors, items: Node<'_>, path: &Path) {
    for item in items.items() {
        check::required(errors, &path.child("path"), item.at("path"));
        file_path(errors, &path.child("path"), item.at("path").text());
        let (field, resource) = (item.at("fieldRef"), item.at("resourceFieldRef"));
        if field.exists() {
            field_ref(errors, field, &VOLUME_FIELDS, &path.child("fieldRef"));
            if resource.exists() {
                let text = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(Error::invalid(path, "resource", text));
            }
        } else if resource.exists() {
            resource_ref(errors, resource, &path.child("resourceFieldRef"));
        } else {
            errors.push(Error::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
        mode(errors, item.at("mode"), &path.child("mode"));
    }
}

fn projected(errors: &mut Errors, source: Node<'_>, path: &Path) {
    mode(errors, source.at("defaultMode"), &path.child("defaultMode"));
    for (index, source) in source.at("sources").items().enumerate() {
        let path = path.child("sources").index(index);
        let mut found = 0_usize;
        for kind in [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ] {
            let part = source.at(kind);
            if !part.exists() {
                continue;
            }
            found = found.saturating_add(1);
            if found > 1 {
                errors.push(Error::forbidden(&path.child(kind), "may not specify more than 1 volume type"));
                continue;
            }
            let path = path.child(kind);
            match kind {
                "secret" | "configMap" => {
                    check::required(errors, &path.child("name"), part.at("name"));
                    items(errors, part.at("items"), &path.child("items"));
                }
                "downwardAPI" => downward(errors, part.at("items"), &path),
                "serviceAccountToken" => token(errors, part, &path),
                _ => {}
            }
        }
    }
}

fn token(errors: &mut Errors, token: Node<'_>, path: &Path) {
    let seconds = token.at("expirationSeconds").int();
    let at = path.child("expirationSeconds");
    if seconds < 600 {
        errors.push(Error::invalid(&at, seconds, "may not specify a duration less than 10 minutes"));
    } else if seconds > 1 << 32 {
        errors.push(Error::invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    if token.at("path").is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
    } else {
        file_path(errors, &path.child("path"), token.at("path").text());
    }
}
