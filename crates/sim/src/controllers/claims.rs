//! PersistentVolumeClaims: bound to a matching volume, or to a new one if the storage class provisions volumes.

use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, annotation, is_finished, list, map_at, text};
use crate::plan::Step;
use crate::view::{Objects, View};

/// The provisioner of the storage class that every simulated cluster has.
pub(crate) const PROVISIONER: &str = "sim.karmada.io/nothing";
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SOURCE: &str = "persistentvolume-controller";

pub(crate) fn decide(view: &View<'_>, claim: &Value) -> Vec<Step> {
    if claim.is_deleting() {
        return if claim.has_finalizer(PROTECTION) && !is_used(view, claim) {
            vec![release(claim)]
        } else {
            Vec::new()
        };
    }
    let bound = text(claim, "/spec/volumeName");
    if !bound.is_empty() {
        return match view.get(Kind::Volume, "", bound) {
            Some(volume) => bind(claim, &volume),
            None => Vec::new(),
        };
    }
    let mut volumes = view.objects.list(Kind::Volume, "");
    volumes.retain(|volume| fits(claim, volume));
    volumes.sort_by_key(|volume| (amount(text(volume, "/spec/capacity/storage")), volume.name().to_owned()));
    // A volume that was provisioned or reserved for this claim comes first.
    let reserved = volumes.iter().find(|volume| text(volume, "/spec/claimRef/name") == claim.name());
    if let Some(volume) = reserved.or(volumes.first()) {
        return bind(claim, volume);
    }
    let class = text(claim, "/spec/storageClassName");
    if class.is_empty() {
        if text(claim, "/status/phase").is_empty() {
            return vec![Step::status(Kind::Claim, claim, json!({"phase": "Pending"}))];
        }
        return Vec::new();
    }
    match view.get(Kind::StorageClass, "", class) {
        Some(class) if text(&class, "/provisioner") == PROVISIONER => vec![provision(claim, &class)],
        _ => Vec::new(),
    }
}

/// Decides about a volume: releases or removes it when its claim is gone.
pub(crate) fn decide_volume(view: &View<'_>, volume: &Value) -> Vec<Step> {
    if volume.is_deleting() {
        return Vec::new();
    }
    let wanted = text(volume, "/spec/claimRef/uid");
    let claim =
        view.get(Kind::Claim, text(volume, "/spec/claimRef/namespace"), text(volume, "/spec/claimRef/name"));
    let phase = match claim {
        _ if wanted.is_empty() => "Available",
        Some(claim) if claim.uid() == wanted => "Bound",
        _ if text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete"
            && text(volume, "/metadata/annotations/pv.kubernetes.io~1provisioned-by") == PROVISIONER =>
        {
            return vec![Step::delete(Kind::Volume, volume)];
        }
        _ => "Released",
    };
    if text(volume, "/status/phase") == phase {
        return Vec::new();
    }
    let mut status = if volume["status"].is_object() { volume["status"].clone() } else { json!({}) };
    status["phase"] = json!(phase);
    vec![Step::status(Kind::Volume, volume, status)]
}

/// Returns why a pod's claims prevent its scheduling.
pub(crate) fn unbound(objects: &dyn Objects, pod: &Value) -> Option<String> {
    for volume in list(pod, "/spec/volumes") {
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        if claim.is_empty() {
            continue;
        }
        match objects.get(Kind::Claim, pod.namespace(), claim) {
            None => return Some(format!("persistentvolumeclaim {claim:?} not found. not found")),
            Some(claim) if annotation(&claim, COMPLETED).is_empty() => {
                return Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
            }
            Some(_) => {}
        }
    }
    None
}

fn amount(text: &str) -> i64 {
    apimachinery::quantity::Quantity::parse(text).map_or(0, |quantity| quantity.value())
}

fn fits(claim: &Value, volume: &Value) -> bool {
    let reserved = text(volume, "/spec/claimRef/name");
    let free = reserved.is_empty()
        || reserved == claim.name()
            && text(volume, "/spec/claimRef/namespace") == claim.namespace()
            && ["", claim.uid()].contains(&text(volume, "/spec/claimRef/uid"));
    let modes = list(volume, "/spec/accessModes");
    free && !volume.is_deleting()
        && text(volume, "/spec/storageClassName") == text(claim, "/spec/storageClassName")
        && list(claim, "/spec/accessModes").iter().all(|mode| modes.contains(mode))
        && amount(text(volume, "/spec/capacity/storage"))
            >= amount(text(claim, "/spec/resources/requests/storage"))
}

/// Binds claim and volume to each other, where they are not yet.
fn bind(claim: &Value, volume: &Value) -> Vec<Step> {
    let mut steps = Vec::new();
    if text(volume, "/spec/claimRef/uid") != claim.uid() {
        let mut volume = volume.clone();
        if text(&volume, "/spec/claimRef/name").is_empty() {
            map_at(&mut volume["metadata"], "annotations").insert(BY_CONTROLLER.to_owned(), json!("yes"));
        }
        volume["spec"]["claimRef"] = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace(), "name": claim.name(), "uid": claim.uid(),
            "resourceVersion": text(claim, "/metadata/resourceVersion")});
        steps.push(Step::Update { kind: Kind::Volume, object: volume });
    }
    if annotation(claim, COMPLETED).is_empty() || text(claim, "/spec/volumeName").is_empty() {
        let mut claim = claim.clone();
        let by_controller = text(&claim, "/spec/volumeName").is_empty();
        claim["spec"]["volumeName"] = json!(volume.name());
        let annotations = map_at(&mut claim["metadata"], "annotations");
        annotations.insert(COMPLETED.to_owned(), json!("yes"));
        if by_controller {
            annotations.insert(BY_CONTROLLER.to_owned(), json!("yes"));
        }
        steps.push(Step::Update { kind: Kind::Claim, object: claim });
    }
    let mut status = json!({"phase": "Bound", "accessModes": volume["spec"]["accessModes"],
        "capacity": {"storage": volume["spec"]["capacity"]["storage"]}});
    let attributes = text(volume, "/spec/volumeAttributesClassName");
    if !attributes.is_empty() {
        status["currentVolumeAttributesClassName"] = attributes.into();
    }
    if claim["status"] != status {
        steps.push(Step::status(Kind::Claim, claim, status));
    }
    steps
}

fn provision(claim: &Value, class: &Value) -> Step {
    let policy = match text(class, "/reclaimPolicy") {
        "" => "Delete",
        policy => policy,
    };
    let own = format!("pvc-{}", claim.uid());
    let volume = json!({
        "metadata": {"name": own, "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER}},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name(), "uid": claim.uid(),
                "resourceVersion": text(claim, "/metadata/resourceVersion")},
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": class.name(),
            "volumeMode": "Filesystem",
            "hostPath": {"path": format!("/nowhere/{own}"), "type": ""},
        },
    });
    let tell = crate::plan::Tell::new(claim, SOURCE, "Successfully provisioned volume {}");
    Step::Create { kind: Kind::Volume, object: volume, tell: Some(tell) }
}

fn is_used(view: &View<'_>, claim: &Value) -> bool {
    view.objects.list(Kind::Pod, claim.namespace()).iter().any(|pod| {
        !is_finished(pod)
            && list(pod, "/spec/volumes")
                .iter()
                .any(|volume| text(volume, "/persistentVolumeClaim/claimName") == claim.name())
    })
}

fn release(claim: &Value) -> Step {
    let mut claim = claim.clone();
    let rest: Vec<Value> =
        list(&claim, "/metadata/finalizers").iter().filter(|own| **own != PROTECTION).cloned().collect();
    claim["metadata"]["finalizers"] = rest.into();
    Step::Update { kind: Kind::Claim, object: claim }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn claim(size: &str) -> Value {
        json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "d", "uid": "claim"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}})
    }

    fn volume(name: &str, size: &str) -> Value {
        json!({"kind": "PersistentVolume", "metadata": {"name": name, "uid": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}}})
    }

    #[test]
    fn the_smallest_volume_that_fits_is_taken() {
        let volumes = vec![volume("large", "10Gi"), volume("small", "1Gi"), volume("fits", "5Gi")];
        let steps = with_view(volumes, |view| decide(view, &claim("2Gi")));
        let Some(Step::Update { object, .. }) = steps.first() else { panic!("{steps:?}") };
        assert_eq!(object.name(), "fits");
    }

    #[test]
    fn without_a_volume_a_claim_waits() {
        let steps = with_view(vec![volume("small", "1Gi")], |view| decide(view, &claim("2Gi")));
        assert!(
            matches!(steps.as_slice(), [Step::Status { status, .. }] if status["phase"] == "Pending"),
            "{steps:?}"
        );
    }
}
