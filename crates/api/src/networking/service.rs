//! MultiClusterService: a Service that is reachable from clusters it does not run in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::PortStatus;
use crate::wire::{choice, kind, record};

kind! {
    /// Makes the Service of the same name reachable from other clusters.
    pub struct MultiClusterService in "networking.karmada.io" / "v1alpha1" as "multiclusterservices", Namespaced {
        /// How the Service is exposed, from where and to where.
        "spec" required spec: MultiClusterServiceSpec;
        /// How the Service is reached.
        "status" always status: ServiceStatus;
    }
}

choice! {
    /// How a Service is exposed.
    pub enum ExposureType {
        /// Inside the consumer clusters.
        CrossCluster = "CrossCluster",
        /// Through a load balancer in front of the clusters.
        LoadBalancer = "LoadBalancer",
    }
}

record! {
    /// How a Service is exposed, from where and to where.
    #[derive(Eq)]
    pub struct MultiClusterServiceSpec {
        /// How the Service is exposed: CrossCluster or LoadBalancer, not both. Cannot be changed later.
        "types" required types: Vec<ExposureType> { any_text() };
        /// The ports to expose; empty means all ports of the Service.
        "ports" optional ports: Vec<ExposurePort>;
        /// Deprecated and without effect, use providerClusters and consumerClusters.
        "range" always range: ExposureRange;
        /// Deprecated and without effect, use providerClusters.
        "serviceProvisionClusters" optional service_provision_clusters: Vec<String>;
        /// Deprecated and without effect, use consumerClusters.
        "serviceConsumptionClusters" optional service_consumption_clusters: Vec<String>;
        /// The clusters where the back ends run; empty means all.
        "providerClusters" optional provider_clusters: Vec<ClusterSelector>;
        /// The clusters from which the Service can be reached; empty means all.
        "consumerClusters" optional consumer_clusters: Vec<ClusterSelector>;
    }
}

record! {
    /// A cluster.
    #[derive(Eq)]
    pub struct ClusterSelector {
        /// The name of the cluster.
        "name" required name: String;
    }
}

record! {
    /// A port to expose.
    #[derive(Eq)]
    pub struct ExposurePort {
        /// The name of the port in the Service.
        "name" optional name: String;
        /// The number of the port in the Service.
        "port" required port: i32;
    }
}

record! {
    /// Clusters, in the deprecated form.
    #[derive(Eq)]
    pub struct ExposureRange {
        /// Names of clusters.
        "clusterNames" optional cluster_names: Vec<String>;
    }
}

record! {
    /// How a Service is reached.
    pub struct ServiceStatus {
        /// The addresses of the load balancer.
        "loadBalancer" always load_balancer: LoadBalancerStatus;
        /// Whether the Service and its endpoints have been brought to the clusters.
        "conditions" optional conditions: Vec<Condition> { list_map("type") };
    }
}

record! {
    /// The addresses of a load balancer.
    #[derive(Eq)]
    pub struct LoadBalancerStatus {
        /// The addresses.
        "ingress" optional ingress: Vec<LoadBalancerIngress> { atomic_list() };
    }
}

record! {
    /// One address of a load balancer.
    #[derive(Eq)]
    pub struct LoadBalancerIngress {
        /// The IP address.
        "ip" optional ip: String;
        /// The host name.
        "hostname" optional hostname: String;
        /// How the address behaves: VIP or Proxy.
        "ipMode" optional ip_mode: Option<String>;
        /// The state of the ports.
        "ports" optional ports: Vec<PortStatus> { atomic_list() };
    }
}
