//! What the agents of clusters in pull mode may do, and those who register one: by name, and nothing beyond.
//!
//! In: who asks, what for, and a few [`Facts`] about what exists. Out: whether it may be, or a reason why not. Roles cannot widen
//! this. The agent of cluster X (`system:karmada:agent:X`) touches what belongs to X; a bootstrap token may ask to be registered
//! under a name that is free, or the one name that it was made for; `system:karmada:agent:rbac-generator`, in whose name
//! upstream's `register` writes an agent's roles, may write exactly those, for a name that is free.
//!
//! `rights` is about requests, `writes` about what is written, `roles` has the roles of an agent, `requests` reads certificate
//! requests.

mod requests;
mod rights;
mod roles;
mod writes;

pub use requests::CertificateRequest;
pub use rights::{Needs, Right, Wanted, may};
pub use roles::roles;
pub use writes::{Write, check};

/// The organization of all agents.
pub const AGENTS: &str = "system:karmada:agents";
/// What the name of an agent begins with; the name of its cluster follows.
pub const AGENT_PREFIX: &str = "system:karmada:agent:";
/// In whose name `register` writes the roles of an agent.
pub const GENERATOR: &str = "system:karmada:agent:rbac-generator";
/// What the request for the generator's certificate is named; the name of the cluster and five characters follow.
const GENERATOR_REQUEST: &str = "agent-rbac-generator-";
/// The group of the tokens with which clusters are registered.
pub const BOOTSTRAP_GROUP: &str = "system:bootstrappers:karmada:default-cluster-token";
/// What the group of tokens for one cluster begins with; the name of the cluster follows.
pub const BOOTSTRAP_CLUSTER_PREFIX: &str = "system:bootstrappers:karmada:cluster:";
/// What the names of bootstrap tokens begin with.
const BOOTSTRAP_PREFIX: &str = "system:bootstrap:";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Somebody whose rights have bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who<'a> {
    /// The agent of this cluster.
    Agent(&'a str),
    /// Whoever writes the roles of a new agent.
    Generator,
    /// A bootstrap token, and the one cluster that it is for, if there is one.
    Bootstrap(Option<&'a str>),
    /// In the group of agents, and the agent of no cluster.
    Nobody,
}

impl<'a> Who<'a> {
    /// Returns who this is; nothing for everybody whose rights are as wide as roles say.
    pub fn of(name: &'a str, groups: &'a [String]) -> Option<Self> {
        let in_group = |wanted: &str| groups.iter().any(|group| group == wanted);
        if name == GENERATOR {
            return Some(Self::Generator);
        }
        if let Some(cluster) = name.strip_prefix(AGENT_PREFIX) {
            return Some(if is_cluster_name(cluster) { Self::Agent(cluster) } else { Self::Nobody });
        }
        if in_group(AGENTS) {
            return Some(Self::Nobody);
        }
        let only = groups.iter().find_map(|group| group.strip_prefix(BOOTSTRAP_CLUSTER_PREFIX));
        (name.starts_with(BOOTSTRAP_PREFIX) || in_group(BOOTSTRAPPERS)).then_some(Self::Bootstrap(only))
    }
}

/// What exists, as far as it matters.
pub trait Facts {
    /// Whether there is a Cluster of this name.
    fn is_registered(&self, cluster: &str) -> bool;
    /// The Clusters whose `spec.id` this is: those that stand for one member.
    fn registered_with(&self, id: &str) -> Vec<String>;
    /// Returns to whom a Secret belongs; `None` if it does not exist.
    fn secret(&self, namespace: &str, name: &str) -> Option<Secret>;
    /// The Clusters that name a Secret as theirs.
    fn users_of_secret(&self, namespace: &str, name: &str) -> Vec<String>;
    /// Returns the user who made a certificate request.
    fn requester(&self, request: &str) -> Option<String>;
    /// Whether an object of users goes to a cluster, by its binding.
    fn is_propagated(&self, cluster: &str, object: Named<'_>) -> bool;
    /// Whether a namespace exists and has the system's label.
    fn is_system_namespace(&self, name: &str) -> bool;
}

/// What tells whose a Secret is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secret {
    /// The Clusters that it disappears with.
    pub owners: Vec<String>,
    /// Whether it has the system's label, as those have that agents make.
    pub is_labelled: bool,
}

/// An object of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    pub kind: &'a str,
    /// Empty for what is in no namespace.
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Returns whether a cluster can have this name.
fn is_cluster_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !name.is_empty()
        && name.len() <= api::constants::CLUSTER_NAME_MAX_LENGTH
        && name.starts_with(fits)
        && name.ends_with(fits)
        && name.chars().all(|c| fits(c) || c == '-')
}

/// Returns the cluster of an agent's role or binding by its name, such as `system:karmada:X:agent`.
fn cluster_of_role<'a>(name: &'a str, ending: &str) -> Option<&'a str> {
    let cluster = name.strip_prefix("system:karmada:")?.strip_suffix(ending)?.strip_suffix(':')?;
    is_cluster_name(cluster).then_some(cluster)
}

/// The names of an agent's Secrets.
fn secrets_of(cluster: &str) -> [String; 2] {
    [cluster.to_owned(), api::names::impersonation_secret(cluster)]
}

/// Returns whether a Secret is an agent's own: by its name, and because it belongs to its Cluster or an agent made it for one
/// that is to come.
///
/// A name alone says nothing, since whoever registers a cluster chooses it: `m1-creds` may be the Secret of a Cluster that
/// somebody made by hand, `db-password` that of a tenant. And the names of two clusters can lead to one Secret:
/// `a-impersonator` is a cluster's and the impersonator's of `a`. That the agent's Cluster names a Secret does not make it its
/// own: the agent writes that.
fn owns_secret(cluster: &str, namespace: &str, name: &str, facts: &dyn Facts) -> bool {
    if !secrets_of(cluster).iter().any(|own| own == name) {
        return false;
    }
    let Some(secret) = facts.secret(namespace, name) else { return true };
    let is_own = |found: &[String]| found.iter().all(|found| found == cluster);
    match secret.owners.as_slice() {
        [] => secret.is_labelled && is_own(&facts.users_of_secret(namespace, name)),
        owners => is_own(owners),
    }
}

/// Returns whether an agent's Secrets may be in a namespace: those of the system that hold nothing else.
fn holds_secrets(namespace: &str, facts: &dyn Facts) -> bool {
    use api::constants::{NAMESPACE_CLUSTER, NAMESPACE_SYSTEM};
    namespace == NAMESPACE_CLUSTER
        || (namespace != NAMESPACE_SYSTEM
            && !namespace.starts_with("kube-")
            && !namespace.starts_with(api::names::EXECUTION_SPACE_PREFIX)
            && facts.is_system_namespace(namespace))
}

#[cfg(test)]
mod tests;
