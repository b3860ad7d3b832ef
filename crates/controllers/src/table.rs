//! The table of all controllers: which run, what each watches and writes.
//!
//! This one table drives which controllers start, what `--controllers` takes, the help text, the page
//! `docs/reference/controllers.md` and the warnings about kinds that no controller acts on. Names are
//! upstream's.

use api::features::{self, Features, Gate};

use crate::autoscaling;
use crate::failover;
use crate::members::{self, Shared};
use crate::mirrors::Watch;
use crate::plane::{self, Plane};
use crate::services;
use std::sync::Arc;

/// Starts the workers of a controller whose subscriptions are made.
pub(crate) type Start = Box<dyn FnOnce() + Send>;

/// The declaration of a controller.
pub struct Declaration {
    /// Its name in `--controllers`.
    pub name: &'static str,
    /// What it keeps true.
    pub about: &'static str,
    /// Whether it runs when `*` is chosen.
    pub default: bool,
    /// It runs only if this feature is on.
    pub gate: Option<Gate>,
    /// What it watches; the file says which keys follow from each.
    pub watches: &'static [Watch],
    /// What it writes.
    pub writes: &'static str,
    /// The file of this crate that it is in.
    pub file: &'static str,
    pub wire: Wire,
}

/// How a controller subscribes to what it watches.
#[derive(Clone, Copy)]
pub enum Wire {
    #[expect(private_interfaces, reason = "only this crate wires controllers")]
    Plane(fn(&Arc<Plane>) -> Start),
    #[expect(private_interfaces, reason = "only this crate wires controllers")]
    Members(fn(&Arc<Shared>) -> Start),
}

/// Every controller, in the order of upstream's list; those that upstream cannot switch off come last.
pub const TABLE: &[Declaration] = &[
    Declaration {
        name: "cluster",
        about: "a Cluster has its execution namespace, its finalizer and the taints that tell of its readiness; silent agents are noticed",
        default: true,
        gate: None,
        watches: &[Watch::Clusters, Watch::SystemNamespaces, Watch::Works, Watch::Leases],
        writes: "Namespace; finalizer, taints and the Ready condition of Cluster; when it leaves, bindings that the scheduler does not look at, and the finalizer of Works whose agent is dead",
        file: "members/cluster.rs",
        wire: Wire::Members(members::cluster::wire),
    },
    Declaration {
        name: "clusterStatus",
        about: "a Cluster's status tells the health, version, APIs, nodes and resources of the member",
        default: true,
        gate: None,
        watches: &[Watch::Clusters, Watch::MemberHealth],
        writes: "status of Cluster; in an agent the Lease of the cluster",
        file: "members/cluster_status.rs",
        wire: Wire::Members(members::cluster_status::wire),
    },
    Declaration {
        name: "binding",
        about: "a binding has one Work in each of its clusters",
        default: true,
        gate: None,
        watches: &[
            Watch::Bindings,
            Watch::ClusterBindings,
            Watch::Works,
            Watch::Clusters,
            Watch::OverridePolicies,
            Watch::ClusterOverridePolicies,
            Watch::Templates,
            Watch::Policies,
            Watch::ClusterPolicies,
            Watch::Customizations,
            Watch::InterpreterWebhooks,
        ],
        writes: "Work; finalizer of the binding; annotations of policies whose removals are held",
        file: "plane/bindings.rs",
        wire: Wire::Plane(plane::bindings::wire),
    },
    Declaration {
        name: "bindingStatus",
        about: "what the Works report is in the binding, and from there in the template",
        default: true,
        gate: None,
        watches: &[
            Watch::Bindings,
            Watch::ClusterBindings,
            Watch::Works,
            Watch::Templates,
            Watch::Customizations,
            Watch::InterpreterWebhooks,
        ],
        writes: "status of the binding; status of the template",
        file: "plane/status.rs",
        wire: Wire::Plane(plane::status::wire),
    },
    Declaration {
        name: "execution",
        about: "what a Work contains exists in the member as wanted, and is gone when the Work is",
        default: true,
        gate: None,
        watches: &[
            Watch::Works,
            Watch::Clusters,
            Watch::MemberObjects,
            Watch::Customizations,
            Watch::InterpreterWebhooks,
        ],
        writes: "objects in the member; conditions and finalizer of Work",
        file: "members/execution.rs",
        wire: Wire::Members(members::execution::wire),
    },
    Declaration {
        name: "workStatus",
        about: "a Work reports the state of its objects in the member",
        default: true,
        gate: None,
        watches: &[
            Watch::Works,
            Watch::Clusters,
            Watch::MemberObjects,
            Watch::Customizations,
            Watch::InterpreterWebhooks,
        ],
        writes: "status.manifestStatuses of Work",
        file: "members/work_status.rs",
        wire: Wire::Members(members::work_status::wire),
    },
    Declaration {
        name: "namespace",
        about: "every namespace exists in every cluster",
        default: true,
        gate: None,
        watches: &[
            Watch::Templates,
            Watch::Clusters,
            Watch::ClusterOverridePolicies,
            Watch::OverridePolicies,
            Watch::Works,
        ],
        writes: "Work",
        file: "plane/namespaces.rs",
        wire: Wire::Plane(plane::namespaces::wire),
    },
    Declaration {
        name: "serviceExport",
        about: "the EndpointSlices of a Service that a member exports are in Works of its cluster",
        default: true,
        gate: None,
        watches: &[Watch::Works, Watch::Clusters, Watch::MemberEndpoints],
        writes: "Work",
        file: "services/collection.rs",
        wire: Wire::Members(services::collection::wire_exports),
    },
    Declaration {
        name: "endpointSlice",
        about: "EndpointSlices that were collected for ServiceExports are in the control plane while their cluster is ready",
        default: true,
        gate: None,
        watches: &[Watch::Works, Watch::Bindings, Watch::Clusters, Watch::ImportedSlices],
        writes: "EndpointSlice; finalizer of Work",
        file: "services/imported.rs",
        wire: Wire::Plane(services::imported::wire),
    },
    Declaration {
        name: "serviceImport",
        about: "a ServiceImport has a Service `derived-<name>`, which follows it",
        default: true,
        gate: None,
        watches: &[Watch::ServiceImports, Watch::Templates],
        writes: "Service and its status",
        file: "services/import.rs",
        wire: Wire::Plane(services::import::wire),
    },
    Declaration {
        name: "unifiedAuth",
        about: "those who may use the cluster proxy may act in the members under their own names",
        default: true,
        gate: None,
        watches: &[Watch::Clusters, Watch::Works, Watch::Roles],
        writes: "Work",
        file: "plane/unified_auth.rs",
        wire: Wire::Plane(plane::unified_auth::wire),
    },
    Declaration {
        name: "federatedResourceQuotaSync",
        about: "every cluster has the ResourceQuota that a FederatedResourceQuota assigns to it",
        default: true,
        gate: None,
        watches: &[Watch::Quotas, Watch::Clusters, Watch::Works],
        writes: "Work",
        file: "plane/quotas/sync.rs",
        wire: Wire::Plane(plane::quotas::sync::wire),
    },
    Declaration {
        name: "federatedResourceQuotaStatus",
        about: "a FederatedResourceQuota tells what the clusters use of their shares",
        default: true,
        gate: None,
        watches: &[Watch::Quotas, Watch::Works],
        writes: "status of FederatedResourceQuota",
        file: "plane/quotas/status.rs",
        wire: Wire::Plane(plane::quotas::status::wire),
    },
    Declaration {
        name: "federatedResourceQuotaEnforcement",
        about: "a FederatedResourceQuota tells what the bindings of its namespace use over all clusters",
        default: true,
        gate: Some(features::FEDERATED_QUOTA_ENFORCEMENT),
        watches: &[Watch::Quotas, Watch::Bindings],
        writes: "status.overall and status.overallUsed of FederatedResourceQuota",
        file: "plane/quotas/enforcement.rs",
        wire: Wire::Plane(plane::quotas::enforcement::wire),
    },
    Declaration {
        name: "gracefulEviction",
        about: "a workload that leaves a cluster is taken out once its replacement is healthy, or has been waited for long enough",
        default: true,
        gate: None,
        watches: &[Watch::Bindings, Watch::ClusterBindings, Watch::Clusters],
        writes: "spec.gracefulEvictionTasks of the binding",
        file: "failover/graceful.rs",
        wire: Wire::Plane(failover::graceful::wire),
    },
    Declaration {
        name: "applicationFailover",
        about: "a workload leaves a cluster in which it stays unhealthy for longer than its policy tolerates",
        default: true,
        gate: None,
        watches: &[Watch::Bindings, Watch::ClusterBindings, Watch::Clusters],
        writes: "spec.clusters and spec.gracefulEvictionTasks of the binding",
        file: "failover/application.rs",
        wire: Wire::Plane(failover::application::wire),
    },
    Declaration {
        name: "federatedHorizontalPodAutoscaler",
        about: "a workload has as many replicas as the load on its pods in all clusters needs",
        default: true,
        gate: None,
        watches: &[
            Watch::FederatedHpas,
            Watch::Bindings,
            Watch::Clusters,
            Watch::MemberObjects,
            Watch::MemberHealth,
        ],
        writes: "the scale of workloads; status of FederatedHPA",
        file: "autoscaling/hpa.rs",
        wire: Wire::Members(autoscaling::hpa::wire),
    },
    Declaration {
        name: "cronFederatedHorizontalPodAutoscaler",
        about: "workloads and FederatedHPAs are scaled when the rules of a CronFederatedHPA say so",
        default: true,
        gate: None,
        watches: &[Watch::CronFederatedHpas],
        writes: "the scale of workloads; limits of FederatedHPA; status of CronFederatedHPA",
        file: "autoscaling/cron.rs",
        wire: Wire::Plane(autoscaling::cron::wire),
    },
    Declaration {
        name: "hpaScaleTargetMarker",
        about: "a workload that a propagated HorizontalPodAutoscaler scales keeps the replicas that it has in each member",
        default: false,
        gate: None,
        watches: &[Watch::Templates],
        writes: "a label of the template",
        file: "autoscaling/marker.rs",
        wire: Wire::Plane(autoscaling::marker::wire),
    },
    Declaration {
        name: "deploymentReplicasSyncer",
        about: "a Deployment whose replicas members choose has as many replicas as they have together",
        default: false,
        gate: None,
        watches: &[Watch::Templates, Watch::Bindings],
        writes: "spec.replicas of the Deployment",
        file: "autoscaling/syncer.rs",
        wire: Wire::Plane(autoscaling::syncer::wire),
    },
    Declaration {
        name: "multiclusterservice",
        about: "the Service of a MultiClusterService is in its providers and consumers, and the providers are asked for its endpoints",
        default: true,
        gate: Some(features::MULTI_CLUSTER_SERVICE),
        watches: &[
            Watch::MultiClusterServices,
            Watch::Templates,
            Watch::Clusters,
            Watch::SystemNamespaces,
            Watch::Works,
            Watch::Bindings,
        ],
        writes: "labels and annotations of the Service; ResourceBinding; Work; finalizer and the ServiceApplied condition of MultiClusterService",
        file: "services/multi_cluster.rs",
        wire: Wire::Plane(services::multi_cluster::wire),
    },
    Declaration {
        name: "endpointsliceCollect",
        about: "the EndpointSlices that a MultiClusterService asks a provider for are in Works of its cluster",
        default: true,
        gate: Some(features::MULTI_CLUSTER_SERVICE),
        watches: &[Watch::Works, Watch::Clusters, Watch::MemberEndpoints],
        writes: "Work",
        file: "services/collection.rs",
        wire: Wire::Members(services::collection::wire_multi_cluster),
    },
    Declaration {
        name: "endpointsliceDispatch",
        about: "EndpointSlices that were collected for a MultiClusterService are in its consumers while their cluster is ready",
        default: true,
        gate: Some(features::MULTI_CLUSTER_SERVICE),
        watches: &[Watch::MultiClusterServices, Watch::Works, Watch::Clusters, Watch::SystemNamespaces],
        writes: "Work; finalizer of Work; the EndpointSliceDispatched condition of MultiClusterService",
        file: "services/dispatch.rs",
        wire: Wire::Plane(services::dispatch::wire),
    },
    Declaration {
        name: "remedy",
        about: "a Cluster's status has the actions that its conditions call for, as Remedies say",
        default: true,
        gate: None,
        watches: &[Watch::Clusters, Watch::Remedies],
        writes: "status.remedyActions of Cluster",
        file: "failover/remedy.rs",
        wire: Wire::Plane(failover::remedy::wire),
    },
    Declaration {
        name: "workloadRebalancer",
        about: "workloads that a WorkloadRebalancer names are placed afresh once, and the WorkloadRebalancer goes when its time is over",
        default: true,
        gate: None,
        watches: &[Watch::Rebalancers, Watch::Bindings, Watch::ClusterBindings],
        writes: "spec.rescheduleTriggeredAt of the binding; status of WorkloadRebalancer, and its deletion",
        file: "failover/rebalancer.rs",
        wire: Wire::Plane(failover::rebalancer::wire),
    },
    Declaration {
        name: "agentcsrapproving",
        about: "a certificate request of an agent that may have one is approved",
        default: true,
        gate: None,
        watches: &[Watch::CertificateRequests],
        writes: "condition Approved of CertificateSigningRequest",
        file: "plane/agent_requests.rs",
        wire: Wire::Plane(plane::agent_requests::wire),
    },
    Declaration {
        name: "clustertaintpolicy",
        about: "a Cluster has the taints that ClusterTaintPolicies give it for its conditions",
        default: true,
        gate: Some(features::FAILOVER),
        watches: &[Watch::Clusters, Watch::TaintPolicies],
        writes: "taints of Cluster",
        file: "failover/taint_policy.rs",
        wire: Wire::Plane(failover::taint_policy::wire),
    },
    Declaration {
        name: "resource-detector",
        about: "a template that a policy selects is claimed by it and has a binding",
        default: true,
        gate: None,
        watches: &[
            Watch::Templates,
            Watch::Policies,
            Watch::ClusterPolicies,
            Watch::OverridePolicies,
            Watch::ClusterOverridePolicies,
            Watch::Bindings,
            Watch::ClusterBindings,
            Watch::Customizations,
            Watch::InterpreterWebhooks,
        ],
        writes: "labels and annotations of the template; ResourceBinding, ClusterResourceBinding; permanent id and finalizer of the policy",
        file: "plane/detector.rs",
        wire: Wire::Plane(plane::detector::wire),
    },
    Declaration {
        name: "dependencies-distributor",
        about: "what a template refers to follows it into its clusters",
        default: true,
        gate: Some(features::PROPAGATE_DEPS),
        watches: &[Watch::Bindings, Watch::Templates, Watch::Customizations, Watch::InterpreterWebhooks],
        writes: "attached ResourceBindings; annotations and finalizer of the ResourceBinding",
        file: "plane/dependencies.rs",
        wire: Wire::Plane(plane::dependencies::wire),
    },
    Declaration {
        name: "multiClusterIngress",
        about: "a MultiClusterIngress has an Ingress in its entry clusters, whose back ends are the Services that were imported there",
        default: false,
        gate: None,
        watches: &[
            Watch::MultiClusterIngresses,
            Watch::Templates,
            Watch::ServiceImports,
            Watch::Works,
            Watch::Bindings,
            Watch::Clusters,
        ],
        writes: "Ingress; ResourceBinding; status of MultiClusterIngress",
        file: "services/ingress.rs",
        wire: Wire::Plane(services::ingress::wire),
    },
    Declaration {
        name: "scheduler",
        about: "a binding has the clusters and replicas that its placement asks for",
        default: true,
        gate: None,
        watches: &[Watch::Bindings, Watch::ClusterBindings, Watch::Clusters],
        writes: "spec.clusters and the Scheduled condition of the binding",
        file: "plane/scheduling.rs",
        wire: Wire::Plane(plane::scheduling::wire),
    },
    Declaration {
        name: "taint-manager",
        about: "a workload leaves a cluster whose NoExecute taints it does not tolerate, with `--enable-no-execute-taint-eviction`",
        default: true,
        gate: Some(features::FAILOVER),
        watches: &[Watch::Clusters, Watch::Bindings, Watch::ClusterBindings],
        writes: "spec.clusters and spec.gracefulEvictionTasks of the binding",
        file: "failover/taint_manager.rs",
        wire: Wire::Plane(failover::taint_manager::wire),
    },
    Declaration {
        name: "descheduler",
        about: "replicas that find no node in a cluster are placed in another one",
        default: false,
        gate: None,
        watches: &[Watch::Bindings, Watch::Clusters],
        writes: "spec.clusters of the ResourceBinding",
        file: "failover/descheduler.rs",
        wire: Wire::Members(failover::descheduler::wire),
    },
];

/// The controllers of an agent, which is responsible for one cluster and runs inside it. All are on by default.
pub const AGENT: &[&str] =
    &["clusterStatus", "execution", "workStatus", "serviceExport", "endpointsliceCollect"];

/// Renews the certificate of an agent. It is not in [`TABLE`], since only an agent has it and it watches nothing; off by default, as
/// in upstream.
pub const CERT_ROTATION: &str = "certRotation";

impl Declaration {
    /// Returns whether the gate lets it run.
    pub fn is_open(&self, features: &Features) -> bool {
        self.gate.is_none_or(|gate| features.enabled(gate))
    }
}

/// Kinds that nothing acts on unless it is asked for: the group, the kind, and the only controller, which is off by default. `None`
/// stands for a kind that has no controller yet.
const OPTIONAL: &[(&str, &str, Option<&str>)] =
    &[("networking.karmada.io", "MultiClusterIngress", Some("multiClusterIngress"))];

/// Returns what users are told who create an object that nothing acts on by default.
pub fn warning_for(group: &str, kind: &str) -> Option<String> {
    let found = OPTIONAL.iter().find(|(optional_group, name, _)| (*optional_group, *name) == (group, kind));
    found.map(|(_, kind, controller)| warning(kind, *controller))
}

fn warning(kind: &str, controller: Option<&str>) -> String {
    match controller {
        Some(controller) => {
            format!("nothing acts on {kind} unless --controllers names {controller}, which is off by default")
        }
        None => format!("nothing acts on {kind} yet"),
    }
}

/// Returns the page of the reference that lists the controllers.
pub fn page() -> String {
    let mut text = String::from(
        "# Controllers\n\n\
         Generated from `crates/controllers/src/table.rs`; do not edit. To refresh it: `cargo test -p controllers --lib` with\n\
         `KARMADA_RS_REFRESH=1`.\n\n\
         `--controllers` takes these names, as upstream's flag: `*` for all that are on by default, `name` to switch one on,\n\
         `-name` to switch one off. The last six have no name in upstream, where they cannot be switched.\n\n\
         ## What runs\n\n\
         | Name | Default | Keeps true | Watches | Writes | Gate | File |\n|---|---|---|---|---|---|---|\n",
    );
    for declaration in TABLE {
        let watches: Vec<&str> = declaration.watches.iter().map(|watch| watch.words()).collect();
        text.push_str(&format!(
            "| `{}` | {} | {} | {} | {} | {} | `{}` |\n",
            declaration.name,
            if declaration.default { "on" } else { "off" },
            declaration.about,
            watches.join(", "),
            declaration.writes,
            gate(declaration),
            declaration.file,
        ));
    }
    let agent: Vec<String> = AGENT.iter().map(|name| format!("`{name}`")).collect();
    text.push_str(&format!(
        "\n## In an agent\n\n\
         `karmada agent` has {}, which are on by default, and\n\
         `{CERT_ROTATION}`, which is off by default: it renews the certificate of the agent (`crates/app/src/agent/certificate.rs`).\n",
        agent.join(", "),
    ));
    text
}

/// Returns the names of all controllers for a help text; those that are off by default say so.
pub fn names() -> String {
    let name = |one: &Declaration| {
        if one.default { one.name.to_owned() } else { format!("{} (off by default)", one.name) }
    };
    TABLE.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Returns the names of the controllers of an agent, in the same way.
pub fn agent_names() -> String {
    format!("{}, {CERT_ROTATION} (off by default)", AGENT.join(", "))
}

fn gate(declaration: &Declaration) -> String {
    declaration.gate.map_or_else(String::new, |gate| format!("`{}`", gate.name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_upstreams_and_each_stands_once() {
        let names: BTreeSet<&str> = TABLE.iter().map(|declaration| declaration.name).collect();
        assert_eq!(names.len(), TABLE.len());
        let upstream = [
            "agentcsrapproving",
            "applicationFailover",
            "binding",
            "bindingStatus",
            "cluster",
            "clusterStatus",
            "clustertaintpolicy",
            "cronFederatedHorizontalPodAutoscaler",
            "deploymentReplicasSyncer",
            "endpointSlice",
            "endpointsliceCollect",
            "endpointsliceDispatch",
            "execution",
            "federatedHorizontalPodAutoscaler",
            "federatedResourceQuotaEnforcement",
            "federatedResourceQuotaStatus",
            "federatedResourceQuotaSync",
            "gracefulEviction",
            "hpaScaleTargetMarker",
            "multiclusterservice",
            "namespace",
            "remedy",
            "serviceExport",
            "serviceImport",
            "unifiedAuth",
            "workStatus",
            "workloadRebalancer",
        ];
        let ours = [
            "dependencies-distributor",
            "descheduler",
            "multiClusterIngress",
            "resource-detector",
            "scheduler",
            "taint-manager",
        ];
        assert_eq!(names, upstream.into_iter().chain(ours).collect());
    }

    #[test]
    fn the_help_says_which_are_off_by_default() {
        let names = names();
        let listed: Vec<&str> = names.split(", ").collect();
        assert_eq!(listed.len(), TABLE.len());
        let off: Vec<&str> =
            listed.iter().filter_map(|name| name.strip_suffix(" (off by default)")).collect();
        let expected =
            ["hpaScaleTargetMarker", "deploymentReplicasSyncer", "multiClusterIngress", "descheduler"];
        assert_eq!(off, expected);
        assert!(listed.contains(&"cluster") && listed.contains(&"taint-manager"));
    }

    #[test]
    fn an_agent_has_controllers_of_the_table_and_one_of_its_own() {
        for name in AGENT {
            let found = TABLE.iter().find(|declaration| declaration.name == *name);
            assert!(found.is_some_and(|found| found.default), "{name} is on by default");
        }
        assert!(TABLE.iter().all(|declaration| declaration.name != CERT_ROTATION));
        assert_eq!(
            agent_names(),
            "clusterStatus, execution, workStatus, serviceExport, endpointsliceCollect, certRotation (off by default)"
        );
    }

    #[test]
    fn files_exist() {
        for declaration in TABLE {
            let file = declaration.file;
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
            assert!(path.exists(), "{} names {file}, which does not exist", declaration.name);
        }
    }

    #[test]
    fn each_stands_in_the_table_of_the_architecture() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
        let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
        for declaration in TABLE {
            let name = format!("`{}`", declaration.name);
            let listed = text.lines().any(|line| {
                let mut columns = line.split('|').skip(1);
                columns.next().is_some_and(|names| names.contains(&name)) && columns.count() >= 2
            });
            assert!(listed, "{name} is not in the table of controllers");
        }
    }

    #[test]
    fn users_are_warned_of_a_kind_that_nothing_acts_on_by_default() {
        for (_, kind, controller) in OPTIONAL {
            let is_off = |name: &str| TABLE.iter().any(|one| one.name == name && !one.default);
            assert!(controller.is_none_or(is_off), "{kind}: {controller:?} is not off by default");
        }
        assert_eq!(
            warning_for("networking.karmada.io", "MultiClusterIngress").as_deref(),
            Some(
                "nothing acts on MultiClusterIngress unless --controllers names multiClusterIngress, which is off by default"
            )
        );
        assert_eq!(warning("Thing", None), "nothing acts on Thing yet");
        assert_eq!(warning_for("multicluster.x-k8s.io", "ServiceExport"), None);
        assert_eq!(warning_for("search.karmada.io", "ResourceRegistry"), None);
        assert_eq!(warning_for("policy.karmada.io", "PropagationPolicy"), None);
        assert_eq!(warning_for("", "ConfigMap"), None);
    }

    #[test]
    fn every_kind_of_karmada_is_acted_on_or_has_a_warning() {
        let known: BTreeSet<(String, String)> = api::crd::all()
            .into_iter()
            .chain(api::crd::aggregated())
            .map(|definition| {
                let text = |pointer: &str| {
                    definition.pointer(pointer).and_then(|it| it.as_str()).unwrap_or("").to_owned()
                };
                (text("/spec/group"), text("/spec/names/kind"))
            })
            .collect();
        let acted_on = [
            "Cluster",
            "ClusterOverridePolicy",
            "ClusterPropagationPolicy",
            "ClusterResourceBinding",
            "ClusterTaintPolicy",
            "CronFederatedHPA",
            "FederatedHPA",
            "FederatedResourceQuota",
            "MultiClusterService",
            "OverridePolicy",
            "PropagationPolicy",
            "Remedy",
            "ResourceBinding",
            "ResourceInterpreterCustomization",
            "ResourceInterpreterWebhookConfiguration",
            "ResourceRegistry",
            "ServiceExport",
            "ServiceImport",
            "Work",
            "WorkloadRebalancer",
        ];
        for (group, kind) in known {
            let (without, acted_on) =
                (warning_for(&group, &kind).is_some(), acted_on.contains(&kind.as_str()));
            assert!(
                without != acted_on,
                "{group}/{kind}: does a controller act on it (`acted_on`), or not (`OPTIONAL`)?"
            );
        }
    }

    #[test]
    fn the_page_of_the_reference_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/controllers.md");
        if std::env::var_os("KARMADA_RS_REFRESH").is_some() {
            std::fs::write(&path, page()).expect("the page can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, page(), "run `KARMADA_RS_REFRESH=1 cargo test -p controllers --lib` to refresh it");
    }
}
