//! MultiClusterIngress: an Ingress whose back ends live in several clusters.
//!
//! The spec is that of a `networking.k8s.io/v1` Ingress, field by field.

use crate::schema::CONDITION_TYPE_PATTERN;
use crate::wire::{kind, record};

kind! {
    /// An Ingress whose back ends live in several clusters.
    pub struct MultiClusterIngress in "networking.karmada.io" / "v1alpha1" as "multiclusteringresses", Namespaced {
        /// The rules, as in an Ingress of networking.k8s.io/v1.
        "spec" always spec: IngressSpec;
        /// How the Ingress is reached and where its back ends are.
        "status" always status: MultiClusterIngressStatus;
    }
}

record! {
    /// The rules of an Ingress.
    #[derive(Eq)]
    pub struct IngressSpec {
        /// The name of the IngressClass, which says who implements the Ingress.
        "ingressClassName" optional ingress_class_name: Option<String>;
        /// The back end of requests that no rule matches.
        "defaultBackend" optional default_backend: Option<IngressBackend>;
        /// The certificates, by host.
        "tls" optional tls: Vec<IngressTLS> { atomic_list() };
        /// The rules, by host.
        "rules" optional rules: Vec<IngressRule> { atomic_list() };
    }
}

record! {
    /// Where requests go: to a Service or to another resource.
    #[derive(Eq)]
    pub struct IngressBackend {
        /// A Service in the namespace of the Ingress. Excludes resource.
        "service" optional service: Option<IngressServiceBackend>;
        /// Another object in the namespace of the Ingress. Excludes service.
        "resource" optional resource: Option<TypedLocalObjectReference>;
    }
}

record! {
    /// A Service as a back end.
    #[derive(Eq)]
    pub struct IngressServiceBackend {
        /// The name of the Service.
        "name" required name: String;
        /// The port of the Service.
        "port" always port: ServiceBackendPort;
    }
}

record! {
    /// The port of a Service, by name or by number.
    #[derive(Eq)]
    pub struct ServiceBackendPort {
        self { atomic_map() };
        /// The name of the port. Excludes number.
        "name" optional name: String;
        /// The number of the port. Excludes name.
        "number" optional number: i32;
    }
}

record! {
    /// An object in the same namespace.
    #[derive(Eq)]
    pub struct TypedLocalObjectReference {
        self { atomic_map() };
        /// The API group of the object; absent for the core group.
        "apiGroup" optional api_group: Option<String>;
        /// The kind of the object.
        "kind" required kind: String;
        /// The name of the object.
        "name" required name: String;
    }
}

record! {
    /// A certificate and the hosts it is for.
    #[derive(Eq)]
    pub struct IngressTLS {
        /// The hosts in the certificate.
        "hosts" optional hosts: Vec<String> { atomic_list() };
        /// The Secret with the certificate.
        "secretName" optional secret_name: String;
    }
}

record! {
    /// The rules of one host.
    #[derive(Eq)]
    pub struct IngressRule {
        /// The host, possibly with a wildcard as its first label; empty means every host.
        "host" optional host: String;
        /// The paths of the host.
        "http" optional http: Option<HTTPIngressRuleValue>;
    }
}

record! {
    /// The paths of a host.
    #[derive(Eq)]
    pub struct HTTPIngressRuleValue {
        /// Paths and their back ends.
        "paths" required paths: Vec<HTTPIngressPath> { atomic_list() };
    }
}

record! {
    /// A path and its back end.
    #[derive(Eq)]
    pub struct HTTPIngressPath {
        /// The path.
        "path" optional path: String;
        /// How the path is matched: Exact, Prefix or ImplementationSpecific.
        "pathType" required path_type: Option<String>;
        /// Where requests for the path go.
        "backend" required backend: IngressBackend;
    }
}

record! {
    /// How an Ingress is reached and where its back ends are.
    #[derive(Eq)]
    pub struct MultiClusterIngressStatus {
        /// The addresses of the load balancer.
        "loadBalancer" always load_balancer: IngressLoadBalancerStatus;
        /// Clusters whose back ends must not get traffic.
        "trafficBlockClusters" optional traffic_block_clusters: Vec<String>;
        /// The clusters where the back ends are.
        "serviceLocations" optional service_locations: Vec<ServiceLocation>;
    }
}

record! {
    /// The addresses of a load balancer for an Ingress.
    #[derive(Eq)]
    pub struct IngressLoadBalancerStatus {
        /// The addresses.
        "ingress" optional ingress: Vec<IngressLoadBalancerIngress> { atomic_list() };
    }
}

record! {
    /// One address of a load balancer for an Ingress.
    #[derive(Eq)]
    pub struct IngressLoadBalancerIngress {
        /// The IP address.
        "ip" optional ip: String;
        /// The host name.
        "hostname" optional hostname: String;
        /// The state of the ports.
        "ports" optional ports: Vec<PortStatus> { atomic_list() };
    }
}

record! {
    /// The state of a port of a load balancer.
    #[derive(Eq)]
    pub struct PortStatus {
        /// The port number.
        "port" required port: i32;
        /// The protocol: TCP, UDP or SCTP.
        "protocol" required protocol: String;
        /// What is wrong with the port, as a word for programs.
        // Upstream's schema demands the key although its clients omit it when all is well.
        "error" demanded error: Option<String> { max_length(316), pattern(CONDITION_TYPE_PATTERN) };
    }
}

record! {
    /// The clusters where a back end is.
    #[derive(Eq)]
    pub struct ServiceLocation {
        /// The name of the Service, in the namespace of the Ingress.
        "name" required name: String;
        /// The clusters that have it.
        "clusters" optional clusters: Vec<String>;
    }
}
