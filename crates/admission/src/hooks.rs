//! The one table of all rules: which writes they see, under which name and path they are known, what they do.
//!
//! Names and paths are those of Karmada's webhook server. The plug-in of our API server finds the rules for a write
//! here; the webhook server serves every path of the table and prints the configuration objects from it.

use serde_json::Value;

use api::labels;
use api::policy::{ClusterPropagationPolicy, PropagationPolicy};
use api::work::{ClusterResourceBinding, ResourceBinding};

use crate::request::{Denial, Means, Operation, Request, Settings, label};
use crate::rights::{self, Reading};
use crate::{
    autoscaling, bindings, cluster, cron, customizations, ingress, interpreters, overrides, propagation,
    quotas, rebalancers, registries, services, taints, works,
};

/// A rule, or all rules of a kind at one moment of a write.
pub struct Hook {
    /// The name of the webhook, which refusals show.
    pub name: &'static str,
    /// The path under which the webhook server answers.
    pub path: &'static str,
    /// The API group; `*` for all.
    pub group: &'static str,
    /// The plural name of the kind; `*` for all.
    pub resource: &'static str,
    /// The kind; `*` for all.
    pub kind: &'static str,
    /// Where its objects live.
    pub scope: Scope,
    /// The writes it sees.
    pub operations: &'static [Operation],
    /// How long an API server waits for the answer.
    pub timeout_seconds: u8,
    /// What else it needs to know, or does.
    pub wants: Wants,
    /// What the writer must be allowed to read.
    pub(crate) rights: Option<Rights>,
    /// Where the rule lives in Karmada: refusals of compiled-in rules do not name a webhook.
    pub home: Home,
    /// What it does.
    pub act: Act,
}

/// Where the objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
    Any,
}

/// What a rule needs to see besides the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    Nothing,
    /// All ResourceInterpreterCustomizations.
    Customizations,
    /// Nothing to judge the object, but the FederatedResourceQuotas of its namespace are [charged](crate::charge) for it.
    Quotas,
}

/// Where Karmada keeps a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In its webhook server.
    Webhook,
    /// In the API server of the kind itself. On a kube-apiserver that serves the kind from a definition, a webhook
    /// takes its place.
    ApiServer,
}

/// What a rule does.
#[derive(Clone, Copy)]
pub enum Act {
    /// Changes the object.
    Mutate(Mutate),
    /// Lets it pass or refuses it.
    Validate(Validate),
}

/// Returns what the writer of an object must be allowed to read. Those who may do everything are not asked.
pub(crate) type Rights = fn(&Request<'_>, &Value) -> Result<Vec<Reading>, Denial>;

type Mutate = fn(&Request<'_>, &mut Value, &mut Means<'_>) -> Result<(), Denial>;
type Validate = fn(&Request<'_>, &Value, &Settings, &[Value]) -> Result<(), Denial>;

impl std::fmt::Debug for Hook {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} ({})", self.name, self.path)
    }
}

impl Hook {
    /// Says whether the rule sees a write.
    pub fn sees(&self, operation: Operation, group: &str, kind: &str) -> bool {
        let fits = |wanted: &str, found: &str| wanted == "*" || wanted == found;
        // Protection against deletion does not reach the kinds that have their own API server.
        let reachable = self.home == Home::ApiServer || !OWN_SERVERS.contains(&group);
        fits(self.group, group) && fits(self.kind, kind) && self.operations.contains(&operation) && reachable
    }

    /// Says whether the rule changes objects.
    pub fn mutates(&self) -> bool {
        matches!(self.act, Act::Mutate(_))
    }

    /// Returns the label that an object must have for the rule to see it.
    pub fn selects_label(&self) -> Option<&'static str> {
        (self.resource == "*").then_some(labels::DELETION_PROTECTED)
    }

    /// Returns what the writer of an object must be allowed to read. Those who may do everything need not be asked.
    pub fn rights(&self, request: &Request<'_>, object: &Value) -> Result<Vec<Reading>, Denial> {
        self.rights.map_or_else(|| Ok(Vec::new()), |rights| rights(request, object))
    }

    /// Says whether the control plane is asked before the rule answers, for other objects or for the rights of the writer. From the
    /// answer, whoever sends a request of their own making would learn what others may read.
    pub fn asks_control_plane(&self) -> bool {
        self.rights.is_some() || self.wants != Wants::Nothing
    }

    /// Says whether the rule writes something itself.
    pub fn has_side_effects(&self) -> bool {
        self.wants == Wants::Quotas
    }
}

/// Groups that Karmada serves by API servers of their own.
const OWN_SERVERS: [&str; 2] = [api::cluster::GROUP, api::search::GROUP];

const CREATE: &[Operation] = &[Operation::Create];
const WRITE: &[Operation] = &[Operation::Create, Operation::Update];
const DELETE: &[Operation] = &[Operation::Delete];

/// Returns the rule for a kind as most of them are.
const fn rule(name: &'static str, path: &'static str, kind: Kind, act: Act) -> Hook {
    let Kind(group, resource, kind, scope) = kind;
    Hook {
        name,
        path,
        group,
        resource,
        kind,
        scope,
        operations: WRITE,
        timeout_seconds: 3,
        wants: Wants::Nothing,
        rights: None,
        home: Home::Webhook,
        act,
    }
}

/// Group, plural, name and scope of a kind.
#[derive(Clone, Copy)]
struct Kind(&'static str, &'static str, &'static str, Scope);

const POLICY: &str = api::policy::GROUP;
const WORK: &str = api::work::GROUP;
const NETWORKING: &str = api::networking::GROUP;
const AUTOSCALING: &str = api::autoscaling::GROUP;
const APPS: &str = api::apps::GROUP;
const CONFIG: &str = api::config::GROUP;

const PROPAGATION: Kind = Kind(POLICY, "propagationpolicies", "PropagationPolicy", Scope::Namespaced);
const CLUSTER_PROPAGATION: Kind =
    Kind(POLICY, "clusterpropagationpolicies", "ClusterPropagationPolicy", Scope::Cluster);
const OVERRIDE: Kind = Kind(POLICY, "overridepolicies", "OverridePolicy", Scope::Namespaced);
const CLUSTER_OVERRIDE: Kind =
    Kind(POLICY, "clusteroverridepolicies", "ClusterOverridePolicy", Scope::Cluster);
const QUOTA: Kind = Kind(POLICY, "federatedresourcequotas", "FederatedResourceQuota", Scope::Namespaced);
const TAINT: Kind = Kind(POLICY, "clustertaintpolicies", "ClusterTaintPolicy", Scope::Cluster);
const BINDING: Kind = Kind(WORK, "resourcebindings", "ResourceBinding", Scope::Namespaced);
const CLUSTER_BINDING: Kind = Kind(WORK, "clusterresourcebindings", "ClusterResourceBinding", Scope::Cluster);
const WORKS: Kind = Kind(WORK, "works", "Work", Scope::Namespaced);
const HPA: Kind = Kind(AUTOSCALING, "federatedhpas", "FederatedHPA", Scope::Namespaced);
const CRON: Kind = Kind(AUTOSCALING, "cronfederatedhpas", "CronFederatedHPA", Scope::Namespaced);
const REBALANCER: Kind = Kind(APPS, "workloadrebalancers", "WorkloadRebalancer", Scope::Cluster);
const SERVICE: Kind = Kind(NETWORKING, "multiclusterservices", "MultiClusterService", Scope::Namespaced);
const INGRESS: Kind = Kind(NETWORKING, "multiclusteringresses", "MultiClusterIngress", Scope::Namespaced);
const INTERPRETER: Kind = Kind(
    CONFIG,
    "resourceinterpreterwebhookconfigurations",
    "ResourceInterpreterWebhookConfiguration",
    Scope::Cluster,
);
const CUSTOMIZATION: Kind =
    Kind(CONFIG, "resourceinterpretercustomizations", "ResourceInterpreterCustomization", Scope::Cluster);
const ANYTHING: Kind = Kind("*", "*", "*", Scope::Any);
const MEMBER: Kind = Kind(api::cluster::GROUP, "clusters", "Cluster", Scope::Cluster);
const REGISTRY: Kind = Kind(api::search::GROUP, "resourceregistries", "ResourceRegistry", Scope::Cluster);

/// All rules, those that change objects first.
pub static HOOKS: [Hook; 27] = [
    rule(
        "propagationpolicy.karmada.io",
        "/mutate-propagationpolicy",
        PROPAGATION,
        Act::Mutate(|request, object, means| {
            propagation::mutate::<PropagationPolicy>(request, object, means)
        }),
    ),
    rule(
        "clusterpropagationpolicy.karmada.io",
        "/mutate-clusterpropagationpolicy",
        CLUSTER_PROPAGATION,
        Act::Mutate(|request, object, means| {
            propagation::mutate::<ClusterPropagationPolicy>(request, object, means)
        }),
    ),
    rule(
        "overridepolicy.karmada.io",
        "/mutate-overridepolicy",
        OVERRIDE,
        Act::Mutate(|request, object, _| overrides::mutate(request, object)),
    ),
    Hook {
        operations: CREATE,
        ..rule(
            "resourcebinding.karmada.io",
            "/mutate-resourcebinding",
            BINDING,
            Act::Mutate(|request, object, means| {
                bindings::mutate::<ResourceBinding>(request, object, means.fresh_id)
            }),
        )
    },
    Hook {
        operations: CREATE,
        ..rule(
            "clusterresourcebinding.karmada.io",
            "/mutate-clusterresourcebinding",
            CLUSTER_BINDING,
            Act::Mutate(|request, object, means| {
                bindings::mutate::<ClusterResourceBinding>(request, object, means.fresh_id)
            }),
        )
    },
    rule(
        "work.karmada.io",
        "/mutate-work",
        WORKS,
        Act::Mutate(|_, object, means| works::mutate(object, means.fresh_id)),
    ),
    rule(
        "autoscaling.karmada.io",
        "/mutate-federatedhpa",
        HPA,
        Act::Mutate(|_, object, _| autoscaling::mutate(object)),
    ),
    rule(
        "multiclusterservice.karmada.io",
        "/mutate-multiclusterservice",
        SERVICE,
        Act::Mutate(|_, object, means| services::mutate(object, means.fresh_id)),
    ),
    Hook {
        home: Home::ApiServer,
        ..rule("cluster.karmada.io", "/mutate-cluster", MEMBER, Act::Mutate(cluster::mutate))
    },
    rule(
        "propagationpolicy.karmada.io",
        "/validate-propagationpolicy",
        PROPAGATION,
        Act::Validate(|request, object, _, _| propagation::validate::<PropagationPolicy>(request, object)),
    ),
    rule(
        "clusterpropagationpolicy.karmada.io",
        "/validate-clusterpropagationpolicy",
        CLUSTER_PROPAGATION,
        Act::Validate(|request, object, _, _| {
            propagation::validate::<ClusterPropagationPolicy>(request, object)
        }),
    ),
    rule(
        "overridepolicy.karmada.io",
        "/validate-overridepolicy",
        OVERRIDE,
        Act::Validate(|request, object, _, _| overrides::validate(request, object)),
    ),
    rule(
        "clusteroverridepolicy.karmada.io",
        "/validate-clusteroverridepolicy",
        CLUSTER_OVERRIDE,
        Act::Validate(|request, object, _, _| overrides::validate(request, object)),
    ),
    rule(
        "config.karmada.io",
        "/validate-resourceinterpreterwebhookconfiguration",
        INTERPRETER,
        Act::Validate(|_, object, _, _| interpreters::validate(object)),
    ),
    Hook {
        timeout_seconds: 10,
        wants: Wants::Customizations,
        ..rule(
            "resourceinterpretercustomization.karmada.io",
            "/validate-resourceinterpretercustomization",
            CUSTOMIZATION,
            Act::Validate(|_, object, _, others| customizations::validate(object, others)),
        )
    },
    rule(
        "federatedresourcequota.karmada.io",
        "/validate-federatedresourcequota",
        QUOTA,
        Act::Validate(|_, object, _, _| quotas::validate(object)),
    ),
    rule(
        "multiclusteringress.karmada.io",
        "/validate-multiclusteringress",
        INGRESS,
        Act::Validate(|request, object, _, _| ingress::validate(request, object)),
    ),
    rule(
        "federatedhpa.karmada.io",
        "/validate-federatedhpa",
        HPA,
        Act::Validate(|request, object, _, _| autoscaling::validate(request, object)),
    ),
    rule(
        "cronfederatedhpa.karmada.io",
        "/validate-cronfederatedhpa",
        CRON,
        Act::Validate(|request, object, _, _| cron::validate(request, object)),
    ),
    rule(
        "multiclusterservice.karmada.io",
        "/validate-multiclusterservice",
        SERVICE,
        Act::Validate(|request, object, _, _| services::validate(request, object)),
    ),
    Hook {
        operations: DELETE,
        ..rule(
            "resourcedeletionprotection.karmada.io",
            "/validate-resourcedeletionprotection",
            ANYTHING,
            Act::Validate(|request, _, _, _| protect(request)),
        )
    },
    Hook {
        wants: Wants::Quotas,
        rights: Some(rights::of_binding),
        ..rule(
            "resourcebinding.karmada.io",
            "/validate-resourcebinding",
            BINDING,
            Act::Validate(bindings::validate),
        )
    },
    // Not a rule of Karmada: it is here for the rights alone.
    Hook {
        rights: Some(rights::of_binding),
        ..rule(
            "clusterresourcebinding.karmada.io",
            "/validate-clusterresourcebinding",
            CLUSTER_BINDING,
            Act::Validate(|_, _, _, _| Ok(())),
        )
    },
    rule(
        "clustertaintpolicy.karmada.io",
        "/validate-clustertaintpolicy",
        TAINT,
        Act::Validate(|_, object, settings, _| taints::validate(object, settings)),
    ),
    // Not a rule of Karmada: it limits how much one request asks for.
    rule(
        "workloadrebalancer.karmada.io",
        "/validate-workloadrebalancer",
        REBALANCER,
        Act::Validate(|request, object, _, _| rebalancers::validate(request, object)),
    ),
    Hook {
        home: Home::ApiServer,
        rights: Some(rights::of_cluster),
        ..rule(
            "cluster.karmada.io",
            "/validate-cluster",
            MEMBER,
            Act::Validate(|_, object, _, _| cluster::validate(object)),
        )
    },
    Hook {
        home: Home::ApiServer,
        rights: Some(rights::of_registry),
        ..rule(
            "resourceregistry.karmada.io",
            "/validate-resourceregistry",
            REGISTRY,
            Act::Validate(|_, object, _, _| registries::validate(object)),
        )
    },
];

/// Refuses the deletion of an object whose label says so. What counts is the stored object.
fn protect(request: &Request<'_>) -> Result<(), Denial> {
    let stored = request.old.and_then(|old| label(old, labels::DELETION_PROTECTED));
    if stored == Some(labels::DELETION_PROTECTION_ALWAYS) {
        return Err(Denial::forbidden(format!(
            "This resource is protected, please make sure to remove the label: {}",
            labels::DELETION_PROTECTED
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_path_is_served_once_and_says_what_its_rule_does() {
        let paths: BTreeSet<&str> = HOOKS.iter().map(|hook| hook.path).collect();
        assert_eq!(paths.len(), HOOKS.len());
        for hook in &HOOKS {
            let verb = if hook.mutates() { "/mutate-" } else { "/validate-" };
            assert!(hook.path.starts_with(verb), "{hook:?}");
        }
    }

    #[test]
    fn finding_17_rules_that_ask_the_control_plane_are_known() {
        let asking: Vec<&str> =
            HOOKS.iter().filter(|hook| hook.asks_control_plane()).map(|hook| hook.path).collect();
        assert_eq!(
            asking,
            [
                "/validate-resourceinterpretercustomization",
                "/validate-resourcebinding",
                "/validate-clusterresourcebinding",
                "/validate-cluster",
                "/validate-resourceregistry",
            ]
        );
    }

    #[test]
    fn kinds_of_the_table_are_kinds_of_the_api() {
        let known: BTreeSet<(String, String, String, bool)> = api::crd::all()
            .into_iter()
            .chain(api::crd::aggregated())
            .map(|definition| {
                let spec = &definition["spec"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (
                    text(&spec["group"]),
                    text(&spec["names"]["plural"]),
                    text(&spec["names"]["kind"]),
                    spec["scope"] == "Namespaced",
                )
            })
            .collect();
        for hook in HOOKS.iter().filter(|hook| hook.kind != "*") {
            let namespaced = hook.scope == Scope::Namespaced;
            let entry = (hook.group.into(), hook.resource.into(), hook.kind.into(), namespaced);
            assert!(known.contains(&entry), "{hook:?}");
        }
    }

    #[test]
    fn protection_against_deletion_covers_everything_but_kinds_with_their_own_server() {
        let sees =
            |group: &str, kind: &str| HOOKS.iter().any(|hook| hook.sees(Operation::Delete, group, kind));
        assert!(sees("", "Namespace") && sees("apps", "Deployment") && sees("policy.karmada.io", "Anything"));
        assert!(!sees("cluster.karmada.io", "Cluster") && !sees("search.karmada.io", "ResourceRegistry"));
    }
}
