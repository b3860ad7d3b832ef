//! `multicluster.x-k8s.io/v1alpha1`: exporting and importing Services, as in the Multi-Cluster Services API 0.1.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::wire::{choice, kind, record};

/// The API group of this module.
pub const GROUP: &str = "multicluster.x-k8s.io";

kind! {
    /// Offers the Service of the same name and namespace to other clusters.
    pub struct ServiceExport in "multicluster.x-k8s.io" / "v1alpha1" as "serviceexports", Namespaced {
        /// Whether the Service is offered.
        "status" always status: ServiceExportStatus;
    }
}

kind! {
    /// A Service that comes from other clusters.
    pub struct ServiceImport in "multicluster.x-k8s.io" / "v1alpha1" as "serviceimports", Namespaced {
        /// How the Service is used here.
        "spec" always spec: ServiceImportSpec;
        /// Where the Service comes from.
        "status" always status: ServiceImportStatus;
    }
}

choice! {
    /// How an imported Service is reached.
    pub enum ServiceImportType {
        /// By one address for the whole set of clusters.
        ClusterSetIP = "ClusterSetIP",
        /// By the addresses of its pods.
        Headless = "Headless",
    }
}

record! {
    /// Whether a Service is offered to other clusters.
    pub struct ServiceExportStatus {
        /// Conditions of the export, such as Valid and Conflict.
        "conditions" optional conditions: Vec<Condition> { list_map("type") };
    }
}

record! {
    /// How an imported Service is used.
    #[derive(Eq)]
    pub struct ServiceImportSpec {
        /// The ports of the Service.
        "ports" required ports: Vec<ServicePort> { atomic_list() };
        /// The address of the Service for type ClusterSetIP.
        "ips" optional ips: Vec<String> { max_items(1) };
        /// How the Service is reached: ClusterSetIP or Headless.
        "type" required type_: ServiceImportType;
        /// Whether a client stays with one back end: ClientIP or None. Ignored for Headless.
        "sessionAffinity" optional session_affinity: String;
        /// Details of the session affinity.
        "sessionAffinityConfig" optional session_affinity_config: Option<SessionAffinityConfig>;
    }
}

record! {
    /// A port of an imported Service.
    #[derive(Eq)]
    pub struct ServicePort {
        /// The name of the port, needed when there are several.
        "name" optional name: String;
        /// The protocol of the port: TCP, which is the default, UDP or SCTP.
        "protocol" optional protocol: String;
        /// The application protocol of the port.
        "appProtocol" optional app_protocol: Option<String>;
        /// The port number.
        "port" required port: i32;
    }
}

record! {
    /// Details of the session affinity.
    #[derive(Eq)]
    pub struct SessionAffinityConfig {
        /// Details of affinity by client address.
        "clientIP" optional client_ip: Option<ClientIPConfig>;
    }
}

record! {
    /// Details of affinity by client address.
    #[derive(Eq)]
    pub struct ClientIPConfig {
        /// How long a client stays with one back end, in seconds, up to a day.
        "timeoutSeconds" optional timeout_seconds: Option<i32>;
    }
}

record! {
    /// Where an imported Service comes from.
    #[derive(Eq)]
    pub struct ServiceImportStatus {
        /// The clusters that export the Service.
        "clusters" optional clusters: Vec<ClusterStatus> { list_map("cluster") };
    }
}

record! {
    /// A cluster that exports the Service.
    #[derive(Eq)]
    pub struct ClusterStatus {
        /// The name of the cluster.
        "cluster" required cluster: String;
    }
}
