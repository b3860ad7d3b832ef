//! The kinds that have native rules. The exact group and version count: `apps/v1beta1` is another kind.

use apimachinery::gvk::Gvk;

/// The type of a Secret that holds a service account's token, filled by the cluster it lives in.
pub(crate) const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Deployment,
    ReplicaSet,
    DaemonSet,
    StatefulSet,
    Job,
    CronJob,
    Pod,
    Service,
    ServiceAccount,
    Secret,
    PersistentVolume,
    PersistentVolumeClaim,
    Ingress,
    PodDisruptionBudget,
    HorizontalPodAutoscaler,
    ServiceImport,
}

impl Kind {
    pub(crate) fn find(kind: &Gvk) -> Option<Self> {
        Some(match (kind.group.as_str(), kind.version.as_str(), kind.kind.as_str()) {
            ("apps", "v1", "Deployment") => Self::Deployment,
            ("apps", "v1", "ReplicaSet") => Self::ReplicaSet,
            ("apps", "v1", "DaemonSet") => Self::DaemonSet,
            ("apps", "v1", "StatefulSet") => Self::StatefulSet,
            ("batch", "v1", "Job") => Self::Job,
            ("batch", "v1", "CronJob") => Self::CronJob,
            ("", "v1", "Pod") => Self::Pod,
            ("", "v1", "Service") => Self::Service,
            ("", "v1", "ServiceAccount") => Self::ServiceAccount,
            ("", "v1", "Secret") => Self::Secret,
            ("", "v1", "PersistentVolume") => Self::PersistentVolume,
            ("", "v1", "PersistentVolumeClaim") => Self::PersistentVolumeClaim,
            ("networking.k8s.io", "v1", "Ingress") => Self::Ingress,
            ("policy", "v1", "PodDisruptionBudget") => Self::PodDisruptionBudget,
            ("autoscaling", "v2", "HorizontalPodAutoscaler") => Self::HorizontalPodAutoscaler,
            ("multicluster.x-k8s.io", "v1alpha1", "ServiceImport") => Self::ServiceImport,
            _ => return None,
        })
    }
}
