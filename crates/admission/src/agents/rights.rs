//! Which requests somebody with bounds may make.

use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_SYSTEM};
use api::names::execution_space;

use super::{Facts, GENERATOR_REQUEST, Who, cluster_of_role, holds_secrets, owns_secret};
use crate::agents::is_cluster_name;

/// A request, as an authorizer sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Set for paths that are not resources.
    pub path: Option<&'a str>,
}

/// What roles have to say before a request is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// That this very request is allowed.
    Role,
    /// That the agent is known: that it may read its own Cluster. All that is its own follows.
    Known,
}

/// What may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    pub needs: Needs,
    /// A list or a watch reaches only as far as this field selector.
    pub only: Option<String>,
}

/// Where something has to be so that it is somebody's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The Cluster of the agent.
    Cluster,
    /// A new object: what it may be is checked when it is written.
    New,
    /// All Clusters, of which the agent sees its own.
    Clusters,
    /// The execution space.
    Space,
    /// The Leases of the agent.
    Lease,
    /// The Secrets of the agent.
    Secret,
    /// A new Secret where agents have theirs.
    NewSecret,
    /// Namespaces that the agent is in.
    Namespace,
    /// What is there for everybody.
    Shared,
    /// Services of the system, at which interpreters answer.
    Service,
    /// All Services, of which the agent sees those of the system.
    Services,
    /// A certificate request of one's own.
    Request,
    /// The request for the generator's own certificate.
    GeneratorRequest,
    /// The roles of a cluster that is not registered.
    FreeRole,
    /// As `FreeRole`, in a namespace.
    FreeNamespacedRole,
    /// A Cluster that does not exist.
    FreeCluster,
    /// What tells newcomers where the control plane is.
    ClusterInfo,
}

/// One kind of thing and what may be done with it.
struct Row {
    group: &'static str,
    /// `resource` or `resource/subresource`.
    resource: &'static str,
    verbs: &'static [&'static str],
    place: Place,
    needs: Needs,
}

const fn own(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    place: Place,
) -> Row {
    Row { group, resource, verbs, place, needs: Needs::Known }
}

const fn granted(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    place: Place,
) -> Row {
    Row { group, resource, verbs, place, needs: Needs::Role }
}

const CLUSTERS: &str = "cluster.karmada.io";
const WORKS: &str = "work.karmada.io";
const CONFIG: &str = "config.karmada.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";

const AGENT: &[Row] = &[
    own(CLUSTERS, "clusters", &["get", "update", "patch", "delete"], Place::Cluster),
    own(CLUSTERS, "clusters", &["create"], Place::New),
    own(CLUSTERS, "clusters", &["list", "watch"], Place::Clusters),
    own(CLUSTERS, "clusters/status", &["get", "update", "patch"], Place::Cluster),
    own(CLUSTERS, "clusters/tunnel", &["get", "create"], Place::Cluster),
    own(WORKS, "works", &["get", "list", "watch", "create", "update", "patch", "delete"], Place::Space),
    own(WORKS, "works/status", &["get", "update", "patch"], Place::Space),
    own("coordination.k8s.io", "leases", &["get", "update", "patch"], Place::Lease),
    own("coordination.k8s.io", "leases", &["create"], Place::New),
    granted("", "secrets", &["get", "update", "patch"], Place::Secret),
    granted("", "secrets", &["create"], Place::NewSecret),
    own("", "namespaces", &["get"], Place::Namespace),
    // What they are about is checked when they are written.
    own("", "events", &["create", "update", "patch"], Place::Shared),
    own("events.k8s.io", "events", &["create", "update", "patch"], Place::Shared),
    own(CONFIG, "resourceinterpretercustomizations", &["get", "list", "watch"], Place::Shared),
    own(CONFIG, "resourceinterpreterwebhookconfigurations", &["get", "list", "watch"], Place::Shared),
    own("", "services", &["get"], Place::Service),
    own("", "services", &["list", "watch"], Place::Services),
    own(CERTIFICATES, "certificatesigningrequests", &["create"], Place::New),
    own(CERTIFICATES, "certificatesigningrequests", &["get"], Place::Request),
    granted(CERTIFICATES, "certificatesigningrequests/selfclusteragent", &["create"], Place::Shared),
];

const GENERATOR: &[Row] = &[
    granted(CLUSTERS, "clusters", &["get"], Place::FreeCluster),
    granted(RBAC, "clusterroles", &["create"], Place::New),
    granted(RBAC, "clusterroles", &["delete"], Place::FreeRole),
    granted(RBAC, "clusterrolebindings", &["create"], Place::New),
    granted(RBAC, "clusterrolebindings", &["delete"], Place::FreeRole),
    granted(RBAC, "roles", &["create"], Place::New),
    granted(RBAC, "roles", &["delete"], Place::FreeNamespacedRole),
    granted(RBAC, "rolebindings", &["create"], Place::New),
    granted(RBAC, "rolebindings", &["delete"], Place::FreeNamespacedRole),
    granted("", "namespaces", &["create"], Place::New),
    granted(CERTIFICATES, "certificatesigningrequests", &["delete"], Place::GeneratorRequest),
];

const BOOTSTRAP: &[Row] = &[
    granted(CERTIFICATES, "certificatesigningrequests", &["create"], Place::New),
    granted(CERTIFICATES, "certificatesigningrequests", &["get"], Place::Request),
    granted(CERTIFICATES, "certificatesigningrequests/clusteragent", &["create"], Place::Shared),
    granted("", "configmaps", &["get"], Place::ClusterInfo),
];

/// What everybody may ask about himself.
const ONESELF: &[Row] = &[
    granted("authorization.k8s.io", "selfsubjectaccessreviews", &["create"], Place::Shared),
    granted("authorization.k8s.io", "selfsubjectrulesreviews", &["create"], Place::Shared),
    granted("authentication.k8s.io", "selfsubjectreviews", &["create"], Place::Shared),
];

/// Paths that tell what is served, and whether.
const PATHS: &[&str] = &["/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz"];

/// Decides about a request.
///
/// # Errors
/// If it may not be; with a reason for the user.
pub fn may(who: Who<'_>, user: &str, wanted: &Wanted<'_>, facts: &dyn Facts) -> Result<Right, String> {
    let right = |needs, only| Ok(Right { needs, only });
    if let Some(path) = wanted.path {
        let is_open = |known: &str| {
            path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        return match PATHS.iter().any(|known| is_open(known)) && wanted.verb == "get" {
            true => right(Needs::Role, None),
            false => Err(refusal(who)),
        };
    }
    let rows = match who {
        Who::Agent(_) => AGENT,
        Who::Generator => GENERATOR,
        Who::Bootstrap(_) => BOOTSTRAP,
        Who::Nobody => &[],
    };
    let matching = rows.iter().chain(ONESELF).filter(|row| row.is_about(wanted));
    let cluster = match who {
        Who::Agent(cluster) => cluster,
        _ => "",
    };
    for row in matching {
        if let Some(only) = row.place.reaches(cluster, user, wanted, facts) {
            return right(row.needs, only);
        }
    }
    Err(refusal(who))
}

fn refusal(who: Who<'_>) -> String {
    match who {
        Who::Agent(cluster) => format!("the agent of cluster {cluster:?} may only touch what belongs to it"),
        Who::Generator => "only the roles of a cluster that is not registered yet may be written".to_owned(),
        Who::Bootstrap(_) => "a bootstrap token may only ask for a certificate".to_owned(),
        Who::Nobody => "this is the agent of no cluster".to_owned(),
    }
}

impl Row {
    fn is_about(&self, wanted: &Wanted<'_>) -> bool {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        self.group == wanted.group
            && resource == wanted.resource
            && subresource == wanted.subresource
            && self.verbs.contains(&wanted.verb)
    }
}

impl Place {
    /// Returns whether a request is about this place, and to which part of a list it is narrowed.
    fn reaches(
        self,
        cluster: &str,
        user: &str,
        wanted: &Wanted<'_>,
        facts: &dyn Facts,
    ) -> Option<Option<String>> {
        let (namespace, name) = (wanted.namespace, wanted.name);
        let whole = |fits: bool| fits.then_some(None);
        match self {
            Self::Cluster => whole(name == cluster),
            Self::New | Self::Shared => whole(true),
            // A question about another one by name is refused; an empty list would hide why.
            Self::Clusters => {
                (name.is_empty() || name == cluster).then(|| Some(format!("metadata.name={cluster}")))
            }
            Self::Space => whole(namespace == execution_space(cluster)),
            Self::Lease => whole(is_lease_of(cluster, namespace, name)),
            Self::Secret => {
                whole(holds_secrets(namespace, facts) && owns_secret(cluster, namespace, name, facts))
            }
            Self::NewSecret => whole(holds_secrets(namespace, facts)),
            Self::Namespace => whole(name == execution_space(cluster) || holds_secrets(name, facts)),
            Self::Service => whole(namespace == NAMESPACE_SYSTEM),
            Self::Services => (namespace.is_empty() || namespace == NAMESPACE_SYSTEM)
                .then(|| Some(format!("metadata.namespace={NAMESPACE_SYSTEM}"))),
            Self::Request => whole(facts.requester(name).as_deref() == Some(user)),
            Self::GeneratorRequest => whole(name.starts_with(GENERATOR_REQUEST)),
            Self::FreeRole => {
                whole(cluster_of_role(name, "agent").is_some_and(|free| !facts.is_registered(free)))
            }
            Self::FreeNamespacedRole => {
                let free_cluster =
                    |ending| cluster_of_role(name, ending).filter(|free| !facts.is_registered(free));
                whole(
                    free_cluster("agent-work").is_some_and(|free| namespace == execution_space(free))
                        || (free_cluster("agent-secret").is_some() && holds_secrets(namespace, facts)),
                )
            }
            Self::FreeCluster => whole(is_cluster_name(name) && !facts.is_registered(name)),
            Self::ClusterInfo => whole(namespace == "kube-public" && name == "cluster-info"),
        }
    }
}

/// Returns whether a Lease is a cluster's: its sign of life, or the one by which several agents take turns.
pub(super) fn is_lease_of(cluster: &str, namespace: &str, name: &str) -> bool {
    match namespace == NAMESPACE_CLUSTER {
        true => name == cluster,
        false => name.strip_prefix("karmada-agent-") == Some(cluster),
    }
}
