//! Names that are computed: bindings, Works, execution namespaces, and the hash in them.
//!
//! Every component of the control plane, and every tool of the users, computes these names on its own and has to
//! arrive at the same bytes.

/// The prefix of execution namespaces.
pub const EXECUTION_SPACE_PREFIX: &str = "karmada-es-";

/// The ServiceAccount in a member cluster through which users are impersonated.
pub const IMPERSONATOR_SERVICE_ACCOUNT: &str = "karmada-impersonator";

/// The default prefix of the names of estimator Services and Deployments.
pub const ESTIMATOR_PREFIX: &str = "karmada-scheduler-estimator";

/// Returns the 32-bit FNV-1a hash of a text or of bytes.
pub fn fnv1a_32(input: impl AsRef<[u8]>) -> u32 {
    input.as_ref().iter().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619))
}

/// Returns the letters and digits that stand for the hash of a text or of bytes in names.
///
/// The decimal form of the hash, with every digit replaced by a character that cannot form words; so
/// `default-nginx-deployment`, hash 2439396529, becomes `687f7fb96f`.
pub fn hash(input: impl AsRef<[u8]>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    fnv1a_32(input)
        .to_string()
        .bytes()
        .map(|c| char::from(ALPHABET[usize::from(c) % ALPHABET.len()]))
        .collect()
}

/// Returns the namespace that holds the Works of a cluster.
pub fn execution_space(cluster: &str) -> String {
    format!("{EXECUTION_SPACE_PREFIX}{cluster}")
}

/// Returns the cluster whose Works live in this namespace, if it is an execution namespace.
pub fn cluster_of_execution_space(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(EXECUTION_SPACE_PREFIX)
}

/// Returns the name of the binding of a resource. Its namespace is the resource's own.
///
/// The API group does not enter, so resources of equal kind and name in different groups share a binding name.
pub fn binding(kind: &str, name: &str) -> String {
    lower(&format!("{}-{kind}", without_colons(name)))
}

/// Returns the name of the Work of an object; pass an empty namespace for cluster-scoped objects.
pub fn work(kind: &str, name: &str, namespace: &str) -> String {
    let name = lower(&without_colons(name));
    let key =
        if namespace.is_empty() { format!("{name}-{kind}") } else { format!("{namespace}-{name}-{kind}") };
    format!("{name}-{}", hash(lower(&key)))
}

/// Returns the hash that ends the label `resourcebinding.karmada.io/depended-by-…` of an attached binding.
pub fn depended_by_hash(namespace: &str, name: &str) -> String {
    hash(namespaced_key(namespace, name))
}

/// Returns the name of a policy that `promote` or `apply` creates for an object.
///
/// `gvk` is the object's type as Go prints it, see [`go_gvk`].
pub fn generated_policy(namespace: &str, name: &str, gvk: &str) -> String {
    lower(&format!("{}-{}", without_colons(name), hash(format!("{namespace}{gvk}"))))
}

/// Returns a type as Go prints it: `apps/v1, Kind=Deployment`, or `/v1, Kind=Pod` for the core group.
pub fn go_gvk(group: &str, version: &str, kind: &str) -> String {
    format!("{group}/{version}, Kind={kind}")
}

/// Returns the name of the ServiceAccount in a member cluster through which the control plane acts.
pub fn service_account(cluster: &str) -> String {
    format!("karmada-{cluster}")
}

/// Returns the name of the ClusterRole, and of its binding, for a ServiceAccount in a member cluster.
pub fn cluster_role(service_account: &str) -> String {
    format!("karmada-controller-manager:{service_account}")
}

/// Returns the name of the Secret with the credentials for impersonation.
pub fn impersonation_secret(cluster: &str) -> String {
    format!("{cluster}-impersonator")
}

/// Returns the name of an EndpointSlice that was imported for a ServiceImport.
pub fn imported_endpoint_slice(cluster: &str, slice: &str) -> String {
    format!("imported-{cluster}-{slice}")
}

/// Returns the name of the Service that is derived from a ServiceImport.
pub fn derived_service(name: &str) -> String {
    format!("derived-{name}")
}

/// Returns the name of an EndpointSlice that a MultiClusterService brings to a consumer.
pub fn dispatched_endpoint_slice(provider_cluster: &str, slice: &str) -> String {
    format!("{provider_cluster}-{slice}")
}

/// Returns the name of the estimator's Service and Deployment for a cluster.
pub fn estimator(prefix: &str, cluster: &str) -> String {
    format!("{prefix}-{cluster}")
}

/// Returns namespace and name as they stand in logs and queues.
pub fn namespaced_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// RBAC names may hold colons, object names in general may not.
fn without_colons(name: &str) -> String {
    name.replace(':', ".")
}

/// Lower-cases each character on its own, as Go does. Rust's `str::to_lowercase` looks at the neighbours of a
/// capital sigma and turns `İ` into two characters; Go does neither.
fn lower(text: &str) -> String {
    text.chars()
        .map(|c| {
            let mut lowered = c.to_lowercase();
            lowered.next().unwrap_or(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_that_upstream_computes() {
        assert_eq!(fnv1a_32("default-nginx-deployment"), 2_439_396_529);
        assert_eq!(fnv1a_32("uid-a"), 0x80c4_a5d3);
        assert_eq!(fnv1a_32("uid-b"), 0x81c4_a766);
        assert_eq!(hash("default-nginx-deployment"), "687f7fb96f");
    }

    #[test]
    fn work_names_are_those_that_upstream_computes() {
        assert_eq!(work("Deployment", "nginx", "default"), "nginx-687f7fb96f");
        assert_eq!(work("Namespace", "test", ""), "test-69fd499b4c");
        assert_eq!(work("ClusterRole", "system:foo", ""), "system.foo-5f7d88f69");
    }

    #[test]
    fn binding_names_are_those_that_upstream_computes() {
        assert_eq!(binding("Role", "system:controller:tom"), "system.controller.tom-role");
        assert_eq!(binding("Deployment", "nginx"), "nginx-deployment");
    }

    #[test]
    fn depended_by_hashes_are_those_that_upstream_computes() {
        assert_eq!(depended_by_hash("default", "nginx-deployment"), "5bdc5c4dcf");
        assert_eq!(depended_by_hash("", "foo-clusterrole"), "846f98bd4d");
        assert_eq!(depended_by_hash("test", "test-binding"), "5dbb6dc9c8");
    }

    #[test]
    fn generated_policy_names_are_those_that_upstream_computes() {
        assert_eq!(generated_policy("ns-foo", "foo", "rand"), "foo-b4978784");
        assert_eq!(generated_policy("ns-foo", "system:foo", "rand"), "system.foo-b4978784");
        assert_eq!(go_gvk("apps", "v1", "Deployment"), "apps/v1, Kind=Deployment");
        assert_eq!(go_gvk("", "v1", "Pod"), "/v1, Kind=Pod");
    }

    #[test]
    fn an_execution_namespace_names_its_cluster_and_others_name_none() {
        assert_eq!(execution_space("member1"), "karmada-es-member1");
        assert_eq!(cluster_of_execution_space("karmada-es-member1"), Some("member1"));
        assert_eq!(cluster_of_execution_space("karmada-system"), None);
        assert_eq!(cluster_of_execution_space("default"), None);
    }

    #[test]
    fn names_in_member_clusters_follow_their_cluster() {
        assert_eq!(service_account("m1"), "karmada-m1");
        assert_eq!(cluster_role("karmada-m1"), "karmada-controller-manager:karmada-m1");
        assert_eq!(impersonation_secret("m1"), "m1-impersonator");
        assert_eq!(imported_endpoint_slice("m1", "web-x2"), "imported-m1-web-x2");
        assert_eq!(derived_service("web"), "derived-web");
        assert_eq!(dispatched_endpoint_slice("m1", "web-x2"), "m1-web-x2");
        assert_eq!(estimator(ESTIMATOR_PREFIX, "m1"), "karmada-scheduler-estimator-m1");
    }

    #[test]
    fn lowering_goes_character_by_character() {
        assert_eq!(lower("ΑΣ"), "ασ");
        assert_eq!(lower("Straße-İ"), "straße-i");
    }
}
