//! The kinds the simulation works with.

/// A kind, in the version the simulation reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Namespace,
    Node,
    Pod,
    Service,
    Endpoints,
    Event,
    Claim,
    Volume,
    Quota,
    ReplicationController,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    ControllerRevision,
    Job,
    CronJob,
    Autoscaler,
    DisruptionBudget,
    EndpointSlice,
    Lease,
    StorageClass,
    PriorityClass,
}

impl Kind {
    pub(crate) const ALL: [Self; 23] = [
        Self::Namespace,
        Self::Node,
        Self::Pod,
        Self::Service,
        Self::Endpoints,
        Self::Event,
        Self::Claim,
        Self::Volume,
        Self::Quota,
        Self::ReplicationController,
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::ControllerRevision,
        Self::Job,
        Self::CronJob,
        Self::Autoscaler,
        Self::DisruptionBudget,
        Self::EndpointSlice,
        Self::Lease,
        Self::StorageClass,
        Self::PriorityClass,
    ];

    /// Returns group, version and the plural name.
    pub(crate) fn resource(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Namespace => ("", "v1", "namespaces"),
            Self::Node => ("", "v1", "nodes"),
            Self::Pod => ("", "v1", "pods"),
            Self::Service => ("", "v1", "services"),
            Self::Endpoints => ("", "v1", "endpoints"),
            Self::Event => ("", "v1", "events"),
            Self::Claim => ("", "v1", "persistentvolumeclaims"),
            Self::Volume => ("", "v1", "persistentvolumes"),
            Self::Quota => ("", "v1", "resourcequotas"),
            Self::ReplicationController => ("", "v1", "replicationcontrollers"),
            Self::Deployment => ("apps", "v1", "deployments"),
            Self::ReplicaSet => ("apps", "v1", "replicasets"),
            Self::StatefulSet => ("apps", "v1", "statefulsets"),
            Self::DaemonSet => ("apps", "v1", "daemonsets"),
            Self::ControllerRevision => ("apps", "v1", "controllerrevisions"),
            Self::Job => ("batch", "v1", "jobs"),
            Self::CronJob => ("batch", "v1", "cronjobs"),
            Self::Autoscaler => ("autoscaling", "v2", "horizontalpodautoscalers"),
            Self::DisruptionBudget => ("policy", "v1", "poddisruptionbudgets"),
            Self::EndpointSlice => ("discovery.k8s.io", "v1", "endpointslices"),
            Self::Lease => ("coordination.k8s.io", "v1", "leases"),
            Self::StorageClass => ("storage.k8s.io", "v1", "storageclasses"),
            Self::PriorityClass => ("scheduling.k8s.io", "v1", "priorityclasses"),
        }
    }

    /// Returns the kind as objects name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::Endpoints => "Endpoints",
            Self::Event => "Event",
            Self::Claim => "PersistentVolumeClaim",
            Self::Volume => "PersistentVolume",
            Self::Quota => "ResourceQuota",
            Self::ReplicationController => "ReplicationController",
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::ControllerRevision => "ControllerRevision",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Autoscaler => "HorizontalPodAutoscaler",
            Self::DisruptionBudget => "PodDisruptionBudget",
            Self::EndpointSlice => "EndpointSlice",
            Self::Lease => "Lease",
            Self::StorageClass => "StorageClass",
            Self::PriorityClass => "PriorityClass",
        }
    }

    pub(crate) fn api_version(self) -> String {
        let (group, version, _) = self.resource();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    pub(crate) fn of(api_version: &str, name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name && kind.api_version() == api_version)
    }
}
