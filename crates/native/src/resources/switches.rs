//! The per-kind switches of the generic paths, as the strategies of kube-apiserver 1.36 set them.
//!
//! All functions take the group and the plural; versions of one resource never differ in these.

use super::{Deletion, FieldLabel, FieldLabels};

const ADMISSION: &str = "admissionregistration.k8s.io";
const STORAGE: &str = "storage.k8s.io";

/// Returns the key prefix below `/registry/`. Both event groups share one prefix, so an event written through
/// either is seen through both.
pub(super) fn storage(group: &str, plural: &str) -> &'static str {
    match (group, plural) {
        ("", "bindings" | "componentstatuses") => "",
        ("authentication.k8s.io" | "authorization.k8s.io", _) => "",
        ("", "services") => "services/specs",
        ("", "endpoints") => "services/endpoints",
        ("", "nodes") => "minions",
        ("", "replicationcontrollers") => "controllers",
        ("networking.k8s.io", "ingresses") => "ingress",
        ("apiextensions.k8s.io", _) => "apiextensions.k8s.io/customresourcedefinitions",
        ("apiregistration.k8s.io", _) => "apiregistration.k8s.io/apiservices",
        _ => PLAIN.iter().find(|known| **known == plural).copied().unwrap_or(""),
    }
}

/// Resources stored under their plural. Listed rather than derived, so that a resource of a later version cannot
/// appear under a prefix that nobody compared with kube-apiserver's.
const PLAIN: &[&str] = &[
    "certificatesigningrequests",
    "clusterrolebindings",
    "clusterroles",
    "configmaps",
    "controllerrevisions",
    "cronjobs",
    "csidrivers",
    "csinodes",
    "csistoragecapacities",
    "daemonsets",
    "deployments",
    "deviceclasses",
    "endpointslices",
    "events",
    "flowschemas",
    "horizontalpodautoscalers",
    "ingressclasses",
    "ipaddresses",
    "jobs",
    "leases",
    "limitranges",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
    "namespaces",
    "networkpolicies",
    "persistentvolumeclaims",
    "persistentvolumes",
    "poddisruptionbudgets",
    "pods",
    "podtemplates",
    "priorityclasses",
    "prioritylevelconfigurations",
    "replicasets",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourcequotas",
    "resourceslices",
    "rolebindings",
    "roles",
    "runtimeclasses",
    "secrets",
    "serviceaccounts",
    "servicecidrs",
    "statefulsets",
    "storageclasses",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
    "volumeattachments",
    "volumeattributesclasses",
];

pub(super) fn has_generation(group: &str, plural: &str) -> bool {
    match group {
        "" => matches!(plural, "pods" | "podtemplates" | "replicationcontrollers"),
        "apps" => plural != "controllerrevisions",
        "networking.k8s.io" => matches!(plural, "ingresses" | "ingressclasses" | "networkpolicies"),
        "resource.k8s.io" => matches!(plural, "deviceclasses" | "resourceslices"),
        "batch"
        | "policy"
        | "discovery.k8s.io"
        | "scheduling.k8s.io"
        | "flowcontrol.apiserver.k8s.io"
        | "apiextensions.k8s.io"
        | ADMISSION => true,
        _ => false,
    }
}

pub(super) fn unconditional_update(group: &str, plural: &str) -> bool {
    match group {
        "apiextensions.k8s.io"
        | "apiregistration.k8s.io"
        | "coordination.k8s.io"
        | "policy"
        | "node.k8s.io"
        | ADMISSION => false,
        STORAGE => {
            !matches!(plural, "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments")
        }
        _ => true,
    }
}

pub(super) fn create_on_update(group: &str, plural: &str) -> bool {
    match group {
        "" => matches!(plural, "services" | "endpoints" | "events" | "limitranges"),
        "events.k8s.io" | "coordination.k8s.io" | "rbac.authorization.k8s.io" | "node.k8s.io" => true,
        _ => false,
    }
}

pub(super) fn default_deletion(group: &str, plural: &str) -> Deletion {
    match (group, plural) {
        ("", "replicationcontrollers") | ("batch", "jobs") => Deletion::Orphan,
        ("" | "events.k8s.io", "events") => Deletion::Unsupported,
        _ => Deletion::Background,
    }
}

/// Every group has one version but autoscaling, whose objects are stored as v2.
pub(super) fn storage_version(group: &str, version: &str) -> bool {
    group != "autoscaling" || version == "v2"
}

macro_rules! labels {
    ($($label:literal $(=> $($path:literal)|+)?),* $(,)?) => {
        FieldLabels::Own(&[$(labels!(@one $label $($($path)+)?)),*])
    };
    (@one $label:literal) => { FieldLabel { label: $label, paths: &[$label] } };
    (@one $label:literal $($path:literal)+) => { FieldLabel { label: $label, paths: &[$($path),+] } };
}

pub(super) fn fields(group: &str, plural: &str) -> FieldLabels {
    match (group, plural) {
        ("", "pods") => labels![
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.host" => "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs" => "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "events") => labels![
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source" => "source.component" | "reportingComponent",
            "type",
        ],
        ("events.k8s.io", "events") => labels![
            "metadata.name",
            "metadata.namespace",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "secrets") => labels!["metadata.name", "metadata.namespace", "type"],
        ("", "namespaces") => labels!["metadata.name", "status.phase"],
        ("", "nodes") => labels!["metadata.name", "spec.unschedulable"],
        ("", "services") => labels!["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => labels!["metadata.name", "metadata.namespace", "status.replicas"],
        ("batch", "jobs") => {
            labels!["metadata.name", "metadata.namespace", "status.successful" => "status.succeeded"]
        }
        ("certificates.k8s.io", "certificatesigningrequests") => labels!["metadata.name", "spec.signerName"],
        ("resource.k8s.io", "resourceslices") => labels!["metadata.name", "spec.nodeName", "spec.driver"],
        _ => FieldLabels::Default,
    }
}

pub(super) fn returns_deleted(group: &str, plural: &str) -> bool {
    match group {
        "" => matches!(
            plural,
            "pods"
                | "services"
                | "serviceaccounts"
                | "namespaces"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "podtemplates"
                | "resourcequotas"
        ),
        STORAGE => plural != "csistoragecapacities",
        "resource.k8s.io" => true,
        _ => false,
    }
}
