//! Which fields an endpoint does not write, whatever a caller sends: nobody comes to own them by asking for them.

use apimachinery::gvk::Gvk;

use super::status::has_subresource;

/// Returns the paths that a write through `subresource` (empty for the object itself) leaves as they are.
pub fn reset_fields(gvk: &Gvk, subresource: &str) -> &'static [&'static [&'static str]] {
    let csr = gvk.group == "certificates.k8s.io" && gvk.kind == "CertificateSigningRequest";
    match subresource {
        "" if csr => &[&["spec"], &["status"]],
        "" if has_subresource(gvk) => &[&["status"]],
        "status" if csr => &[&["spec"], &["status", "conditions"]],
        "approval" => &[&["spec"], &["status", "certificate"]],
        "status" if keeps_metadata(gvk) => &[&["metadata"], &["spec"]],
        "status" => match (gvk.group.as_str(), gvk.kind.as_str()) {
            ("apps", "Deployment") => &[&["metadata", "labels"], &["spec"]],
            ("", "Pod") => &[&["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"], &["spec"]],
            _ => &[&["spec"]],
        },
        "finalize" => &[&["status"]],
        _ => &[],
    }
}

/// Does `/status` leave the metadata alone? Older kinds let labels, annotations and finalizers through.
pub(super) fn keeps_metadata(gvk: &Gvk) -> bool {
    matches!(
        (gvk.group.as_str(), gvk.kind.as_str()),
        ("networking.k8s.io", "ServiceCIDR")
            | ("storage.k8s.io", "VolumeAttachment")
            | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration")
            | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
            | ("apiregistration.k8s.io", "APIService")
            | ("resource.k8s.io", "ResourceClaim")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_does_not_own_what_another_one_writes() {
        let deployment = Gvk::new("apps", "v1", "Deployment");
        assert_eq!(reset_fields(&deployment, ""), [&["status"][..]]);
        assert_eq!(reset_fields(&deployment, "status"), [&["metadata", "labels"][..], &["spec"]]);
        assert!(reset_fields(&Gvk::new("", "v1", "ConfigMap"), "").is_empty());
        assert!(keeps_metadata(&Gvk::new("storage.k8s.io", "v1", "VolumeAttachment")));
    }
}
