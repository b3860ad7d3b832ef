//! The control plane's collections that controllers read: one watch and one copy of each, shared by all.
//!
//! A mirror is declared here, once. It is started if the declaration of a running controller names it, and
//! that controller starts once the mirror is complete: an object that has not been seen yet must not look as
//! if it did not exist.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::apps::WorkloadRebalancer;
use api::autoscaling::{CronFederatedHPA, FederatedHPA};
use api::cluster::Cluster;
use api::config::{ResourceInterpreterCustomization, ResourceInterpreterWebhookConfiguration};
use api::multicluster::ServiceImport;
use api::networking::{MultiClusterIngress, MultiClusterService};
use api::policy::{
    ClusterOverridePolicy, ClusterPropagationPolicy, ClusterTaintPolicy, FederatedResourceQuota,
    OverridePolicy, PropagationPolicy,
};
use api::remedy::Remedy;
use api::work::{ClusterResourceBinding, ResourceBinding, Work};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, Client};
use runtime::writer::Stored;
use runtime::{Mirror, Supervisor, Witness};

use crate::MyClusters;

/// A collection and which part of it is watched.
type Part<K> = (Api<K>, watcher::Config);

macro_rules! mirrors {
    ($($(#[$doc:meta])* $watch:ident, $words:literal, $field:ident: $kind:ty = $mirror:expr, $part:expr;)*) => {
        /// What a controller watches. The variants without a mirror in `Mirrors` are watched elsewhere.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Watch {
            $($(#[$doc])* $watch,)*
            /// Objects of every kind that can be propagated.
            Templates,
            /// ClusterRoles and ClusterRoleBindings of the control plane.
            Roles,
            /// The managed objects in the members.
            MemberObjects,
            /// Health, APIs, nodes and pods of the members.
            MemberHealth,
            /// ServiceExports and EndpointSlices in the members.
            MemberEndpoints,
            /// Leases of the agents.
            Leases,
        }

        impl Watch {
            /// Returns its name in documents.
            pub fn words(self) -> &'static str {
                match self {
                    $(Self::$watch => $words,)*
                    Self::Templates => "templates",
                    Self::Roles => "ClusterRole, ClusterRoleBinding",
                    Self::MemberObjects => "managed objects in members",
                    Self::MemberHealth => "health, APIs, nodes and pods of members",
                    Self::MemberEndpoints => "ServiceExports and EndpointSlices in members",
                    Self::Leases => "Lease",
                }
            }
        }

        /// The mirrors by the names of their fields.
        #[cfg(test)]
        pub(crate) const MIRRORED: &[(&str, Watch)] = &[$((stringify!($field), Watch::$watch),)*];

        pub(crate) struct Mirrors {
            $(pub(crate) $field: Arc<Mirror<$kind>>,)*
        }

        impl Default for Mirrors {
            fn default() -> Self {
                Self { $($field: Arc::new($mirror),)* }
            }
        }

        impl Mirrors {
            /// Starts the watches. All controllers have subscribed by then, so that each of them gets the
            /// first list.
            pub(crate) fn follow(
                &self,
                watches: &BTreeSet<Watch>,
                client: &Client,
                mine: &MyClusters,
                supervisor: &Supervisor,
            ) {
                $(if watches.contains(&Watch::$watch) {
                    let part: fn(Client, &MyClusters) -> Part<$kind> = $part;
                    follow(&self.$field, $words, part(client.clone(), mine), supervisor);
                })*
            }

            /// Lets watches resume where they were cut if the witness confirms that the control plane was not
            /// restored.
            pub(crate) fn rely_on(&self, witness: &Arc<dyn Witness>) {
                $(self.$field.rely_on(witness.clone());)*
            }

            /// Lists everything again, because the control plane was restored to an older state.
            pub(crate) fn went_back(&self) {
                $(self.$field.went_back();)*
            }

            /// Waits until these mirrors are complete.
            pub(crate) async fn complete(&self, watches: &[Watch]) {
                for watch in watches {
                    match watch {
                        $(Watch::$watch => self.$field.complete().await,)*
                        _ => {}
                    }
                }
            }
        }
    };
}

mirrors! {
    Clusters, "Cluster", clusters: Cluster = Mirror::default(), |client, mine| (Api::all(client), mine.clusters());
    // There are many Works, each with whole manifests, and each is read only a few times.
    Works, "Work", works: Work = Mirror::packed().recalling(), |client, mine| (mine.works(client), watcher::Config::default());
    /// Execution namespaces and other namespaces of the system.
    SystemNamespaces, "execution namespaces", namespaces: Namespace = Mirror::default(), |client, _| {
        let label = format!("{}={}", api::labels::SYSTEM, api::labels::TRUE);
        (Api::all(client), watcher::Config::default().labels(&label))
    };
    Policies, "PropagationPolicy", policies: PropagationPolicy = Mirror::default(), all;
    ClusterPolicies, "ClusterPropagationPolicy", cluster_policies: ClusterPropagationPolicy = Mirror::default(), all;
    OverridePolicies, "OverridePolicy", override_policies: OverridePolicy = Mirror::default(), all;
    ClusterOverridePolicies, "ClusterOverridePolicy", cluster_override_policies: ClusterOverridePolicy = Mirror::default(), all;
    TaintPolicies, "ClusterTaintPolicy", taint_policies: ClusterTaintPolicy = Mirror::default(), all;
    Rebalancers, "WorkloadRebalancer", rebalancers: WorkloadRebalancer = Mirror::default(), all;
    FederatedHpas, "FederatedHPA", federated_hpas: FederatedHPA = Mirror::default(), all;
    CronFederatedHpas, "CronFederatedHPA", cron_federated_hpas: CronFederatedHPA = Mirror::default(), all;
    Remedies, "Remedy", remedies: Remedy = Mirror::default(), all;
    Quotas, "FederatedResourceQuota", quotas: FederatedResourceQuota = Mirror::default(), all;
    Bindings, "ResourceBinding", bindings: ResourceBinding = Mirror::default(), all;
    ClusterBindings, "ClusterResourceBinding", cluster_bindings: ClusterResourceBinding = Mirror::default(), all;
    MultiClusterServices, "MultiClusterService", multi_cluster_services: MultiClusterService = Mirror::default(), all;
    MultiClusterIngresses, "MultiClusterIngress", multi_cluster_ingresses: MultiClusterIngress = Mirror::default(), all;
    ServiceImports, "ServiceImport", service_imports: ServiceImport = Mirror::default(), all;
    /// EndpointSlices that were derived from collected ones.
    ImportedSlices, "imported EndpointSlices", imported_slices: EndpointSlice = Mirror::packed(), |client, _| {
        let label = format!("{}={}", api::labels::ENDPOINT_SLICE_MANAGED_BY, api::labels::ENDPOINT_SLICE_CONTROLLER);
        (Api::all(client), watcher::Config::default().labels(&label))
    };
    Customizations, "ResourceInterpreterCustomization",
        customizations: ResourceInterpreterCustomization = Mirror::default(), all;
    CertificateRequests, "CertificateSigningRequest",
        certificate_requests: CertificateSigningRequest = Mirror::default(), all;
    InterpreterWebhooks, "ResourceInterpreterWebhookConfiguration",
        interpreter_webhooks: ResourceInterpreterWebhookConfiguration = Mirror::default(), all;
}

fn all<K: Stored>(client: Client, _: &MyClusters) -> Part<K> {
    (Api::all(client), watcher::Config::default())
}

fn follow<K: Stored + 'static>(mirror: &Arc<Mirror<K>>, name: &str, part: Part<K>, supervisor: &Supervisor) {
    let (mirror, stop) = (mirror.clone(), supervisor.token().clone());
    supervisor.keep(format!("mirror/{name}"), move || {
        let (mirror, stop, (api, config)) = (mirror.clone(), stop.clone(), part.clone());
        async move { mirror.follow(api, config, stop, |object| object).await }
    });
}
