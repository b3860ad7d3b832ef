//! Registers a cluster in push mode as a member: finds its identity, checks whether it is already known, and
//! writes its Cluster object. `join` does this for a user, the discovery of cluster-api's clusters for a
//! management cluster.
//!
//! Existing objects are left alone, so that an interrupted registration can simply be repeated.

use api::cluster::{Cluster, ClusterSpec, ClusterSyncMode, LocalSecretReference};
use api::constants::NAMESPACE_KUBE_SYSTEM;
use api::names;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::json;

use crate::credentials::{Credentials, Error, Result, ensure, system};

/// Returns the identity of a cluster: the UID of a namespace that lives as long as the cluster. Errors call
/// the cluster `name`.
pub async fn id_of(cluster: &Client, name: &str) -> Result<String> {
    let namespace =
        Api::<Namespace>::all(cluster.clone()).get(NAMESPACE_KUBE_SYSTEM).await.map_err(|source| {
            Error::api(format!("read namespace {NAMESPACE_KUBE_SYSTEM} of cluster {name}"), source)
        })?;
    let id = namespace.metadata.uid.filter(|uid| !uid.is_empty());
    id.ok_or_else(|| Error::NoId { cluster: name.to_owned() })
}

/// Refuses a cluster whose id or name the control plane already has, or whose Secrets in `namespace` would collide with those of
/// another one: the impersonator's Secret of `m1` has the name of the other Secret of `m1-impersonator`.
pub async fn refuse_registered(control: &Client, name: &str, id: &str, namespace: &str) -> Result<()> {
    let clusters = Api::<Cluster>::all(control.clone())
        .list(&ListParams::default())
        .await
        .map_err(|source| Error::api("list the clusters of the control plane", source))?;
    refuse(&clusters.items, name, id, namespace)
}

fn refuse(clusters: &[Cluster], name: &str, id: &str, namespace: &str) -> Result<()> {
    let secrets = [name.to_owned(), names::impersonation_secret(name)];
    for cluster in clusters {
        let (spec, known) = (&cluster.spec, cluster.metadata.name.as_deref().unwrap_or(""));
        if spec.id == id || known == name {
            return Err(Error::Registered { id: id.to_owned(), name: name.to_owned() });
        }
        let used = [&spec.secret_ref, &spec.impersonator_secret_ref];
        let clash =
            |used: &&LocalSecretReference| used.namespace == namespace && secrets.contains(&used.name);
        if let Some(used) = used.into_iter().flatten().find(clash) {
            let secret = format!("{}/{}", used.namespace, used.name);
            return Err(Error::SecretInUse { secret, cluster: known.to_owned() });
        }
    }
    Ok(())
}

/// Returns the specification of a cluster in push mode that is reached with `config`.
pub fn push(id: String, config: &Config) -> ClusterSpec {
    ClusterSpec {
        id,
        sync_mode: ClusterSyncMode::Push,
        api_endpoint: config.cluster_url.to_string().trim_end_matches('/').to_owned(),
        insecure_skip_tls_verification: config.accept_invalid_certs,
        proxy_url: config.proxy_url.as_ref().map(ToString::to_string).unwrap_or_default(),
        ..ClusterSpec::default()
    }
}

/// Writes a Cluster into the control plane, with the credentials that reach it in Secrets of `namespace`; returns it as it was
/// written. The caller has set its name and its whole specification, except the references to the credentials.
pub async fn enter(
    control: &Client,
    credentials: &Credentials,
    namespace: &str,
    mut cluster: Cluster,
) -> Result<Cluster> {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    ensure::<Namespace>(&Api::all(control.clone()), json!({ "metadata": system(namespace) })).await?;
    credentials.store(control, &name, namespace, None).await?;
    cluster.spec = credentials.refer(cluster.spec, &name, namespace);
    let cluster = Api::<Cluster>::all(control.clone())
        .create(&PostParams::default(), &cluster)
        .await
        .map_err(|source| Error::api(format!("create cluster {name} in the control plane"), source))?;
    credentials.belong_to(control, &cluster, namespace).await?;
    Ok(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_registered_once_and_takes_nobodys_secrets() {
        let reference = |name: &str| json!({ "namespace": "karmada-cluster", "name": name });
        let known: Cluster = serde_json::from_value(json!({
            "metadata": { "name": "m1" },
            "spec": {
                "syncMode": "Push", "id": "1",
                "secretRef": reference("m1"), "impersonatorSecretRef": reference("m1-impersonator"),
            },
        }))
        .expect("a cluster");
        let registered = "the cluster ID 1 or the cluster name m2 has been registered";
        let clash = "Secret karmada-cluster/m1-impersonator would be overwritten, by which cluster m1 is reached; \
                     hint: choose another name";
        for (what, name, id, namespace, expected) in [
            ("another one", "m2", "2", "karmada-cluster", ""),
            ("the same member", "m2", "1", "karmada-cluster", registered),
            ("its Secret is another one's", "m1-impersonator", "2", "karmada-cluster", clash),
            ("in another namespace", "m1-impersonator", "2", "elsewhere", ""),
        ] {
            let told = refuse(std::slice::from_ref(&known), name, id, namespace).err();
            assert_eq!(told.map(|error| error.to_string()).unwrap_or_default(), expected, "{what}");
        }
        assert!(matches!(refuse(&[known], "m1", "2", "karmada-cluster"), Err(Error::Registered { .. })));
    }
}
