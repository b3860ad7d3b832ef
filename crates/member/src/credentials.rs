//! What a member gives to the control plane so that it can be reached: accounts, roles and tokens in the
//! member, and Secrets in the control plane. `join` and the discovery of cluster-api's clusters report all of
//! it; an agent reports as much as its flags say.

use std::collections::BTreeMap;
use std::time::Duration;

use api::cluster::{Cluster, ClusterSpec, LocalSecretReference};
use api::constants::{SECRET_CA_BUNDLE, SECRET_TOKEN};
use api::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::limit::shortened;

/// How long a member may take to issue a token.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a cluster could not be made a member.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the two sides refused a request, or was not reached.
    #[error("cannot {doing}")]
    Api { doing: String, source: kube::Error },
    #[error("an object of ours is malformed")]
    Malformed(#[from] serde_json::Error),
    #[error(
        "the cluster did not issue a token for service account {account} within {} s; hint: its controller \
         manager does that",
        PATIENCE.as_secs()
    )]
    NoToken { account: String },
    #[error("the new cluster has no UID")]
    NoUid,
    #[error("namespace kube-system of cluster {cluster} has no UID, by which clusters are told apart")]
    NoId { cluster: String },
    #[error("the cluster ID {id} or the cluster name {name} has been registered")]
    Registered { id: String, name: String },
    #[error(
        "Secret {secret} would be overwritten, by which cluster {cluster} is reached; hint: choose another name"
    )]
    SecretInUse { secret: String, cluster: String },
    #[error(
        "Secret {namespace}/{name} exists in the control plane and is not the system's; hint: delete it, or choose \
         another --cluster-namespace"
    )]
    ForeignSecret { namespace: String, name: String },
}

/// The result of making a cluster a member.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn api(doing: impl Into<String>, source: kube::Error) -> Self {
        Self::Api { doing: doing.into(), source }
    }

    /// Returns the error and its cause in one line of bounded length, because the cause may come from a
    /// foreign cluster.
    pub fn brief(&self) -> String {
        let cause = match self {
            Self::Api { source: kube::Error::Api(status), .. } => status.message.clone(),
            Self::Api { source, .. } => root(source).to_string(),
            Self::Malformed(source) => source.to_string(),
            _ => return self.to_string(),
        };
        format!("{self}: {}", shortened(cause))
    }
}

/// Returns the innermost cause of an error, which says why a connection failed.
fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// Which credentials a member gives to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Those of an account that may do everything.
    pub credentials: bool,
    /// Those of an account that may impersonate others, as far as it is allowed to.
    pub impersonator: bool,
}

impl Reported {
    /// All of them, as a member in push mode gives them.
    pub const ALL: Self = Self { credentials: true, impersonator: true };
    /// None at all: the control plane cannot reach the member.
    pub const NONE: Self = Self { credentials: false, impersonator: false };
}

/// The credentials with which the control plane reaches the member; those that are not reported are missing.
pub struct Credentials {
    impersonator: Option<ByteString>,
    own: Option<Own>,
}

struct Own {
    token: ByteString,
    certificates: ByteString,
}

/// Creates accounts, role and tokens in the member, as far as they are reported.
pub async fn prepare_member(
    member: &Client,
    name: &str,
    namespace: &str,
    reported: Reported,
) -> Result<Credentials> {
    let mut credentials = Credentials { impersonator: None, own: None };
    if reported == Reported::NONE {
        return Ok(credentials);
    }
    ensure::<Namespace>(&Api::all(member.clone()), json!({ "metadata": system(namespace) })).await?;
    let accounts = Api::<ServiceAccount>::namespaced(member.clone(), namespace);
    let secrets = Api::<Secret>::namespaced(member.clone(), namespace);

    if reported.impersonator {
        let account = names::IMPERSONATOR_SERVICE_ACCOUNT;
        ensure(&accounts, json!({ "metadata": system(account) })).await?;
        let mut data = token_of(&secrets, account).await?.data.unwrap_or_default();
        credentials.impersonator = Some(data.remove("token").unwrap_or_default());
    }
    if reported.credentials {
        let account = names::service_account(name);
        ensure(&accounts, json!({ "metadata": system(&account) })).await?;
        own_role(member, &account, namespace).await?;
        let mut data = token_of(&secrets, &account).await?.data.unwrap_or_default();
        credentials.own = Some(Own {
            token: data.remove("token").unwrap_or_default(),
            certificates: data.remove("ca.crt").unwrap_or_default(),
        });
    }
    Ok(credentials)
}

/// Lets the control plane's account do everything in the member.
async fn own_role(member: &Client, account: &str, namespace: &str) -> Result<()> {
    let role = names::cluster_role(account);
    ensure::<ClusterRole>(
        &Api::all(member.clone()),
        json!({
            "metadata": system(&role),
            "rules": [
                { "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] },
                { "nonResourceURLs": ["*"], "verbs": ["get"] },
            ],
        }),
    )
    .await?;
    ensure::<ClusterRoleBinding>(
        &Api::all(member.clone()),
        json!({
            "metadata": system(&role),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
        }),
    )
    .await
}

/// Creates a token Secret and waits until the member has filled it.
async fn token_of(secrets: &Api<Secret>, account: &str) -> Result<Secret> {
    ensure(
        secrets,
        json!({
            "metadata": { "name": account, "annotations": { "kubernetes.io/service-account.name": account } },
            "type": "kubernetes.io/service-account-token",
        }),
    )
    .await?;
    let filled = async {
        let mut wait = Duration::from_millis(20);
        loop {
            let secret = secrets.get(account).await?;
            if secret
                .data
                .as_ref()
                .and_then(|data| data.get("token"))
                .is_some_and(|token| !token.0.is_empty())
            {
                return Ok::<_, kube::Error>(secret);
            }
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2).min(Duration::from_secs(1));
        }
    };
    tokio::time::timeout(PATIENCE, filled)
        .await
        .map_err(|_| Error::NoToken { account: account.to_owned() })?
        .map_err(|source| Error::api(format!("read secret {account} of the cluster"), source))
}

impl Credentials {
    /// Stores them in Secrets of the control plane. `owner` is their Cluster, if it exists already.
    pub async fn store(
        &self,
        control: &Client,
        name: &str,
        namespace: &str,
        owner: Option<&Cluster>,
    ) -> Result<()> {
        let owner = owner.and_then(|cluster| cluster.metadata.uid.as_deref());
        let secrets = Api::<Secret>::namespaced(control.clone(), namespace);
        if let Some(token) = &self.impersonator {
            let data = BTreeMap::from([(SECRET_TOKEN.to_owned(), token.clone())]);
            put_secret(&secrets, namespace, &names::impersonation_secret(name), data, owner).await?;
        }
        if let Some(own) = &self.own {
            let data = BTreeMap::from([
                (SECRET_CA_BUNDLE.to_owned(), own.certificates.clone()),
                (SECRET_TOKEN.to_owned(), own.token.clone()),
            ]);
            put_secret(&secrets, namespace, name, data, owner).await?;
        }
        Ok(())
    }

    /// Returns the specification of a Cluster that refers to these Secrets.
    pub fn refer(&self, spec: ClusterSpec, name: &str, namespace: &str) -> ClusterSpec {
        let reference =
            |secret: &str| LocalSecretReference { namespace: namespace.to_owned(), name: secret.to_owned() };
        ClusterSpec {
            secret_ref: self.own.as_ref().map(|_| reference(name)),
            impersonator_secret_ref: self
                .impersonator
                .as_ref()
                .map(|_| reference(&names::impersonation_secret(name))),
            ..spec
        }
    }

    /// Makes the Secrets disappear with the Cluster.
    pub async fn belong_to(&self, control: &Client, cluster: &Cluster, namespace: &str) -> Result<()> {
        let name = cluster.metadata.name.as_deref().unwrap_or("");
        let secrets = Api::<Secret>::namespaced(control.clone(), namespace);
        let mut owner = cluster.controller_owner_ref(&()).ok_or(Error::NoUid)?;
        owner.block_owner_deletion = Some(true);
        let patch = json!({ "metadata": { "ownerReferences": [owner] } });
        let impersonation = names::impersonation_secret(name);
        let impersonation = self.impersonator.as_ref().map(|_| impersonation.as_str());
        for secret in impersonation.into_iter().chain(self.own.as_ref().map(|_| name)) {
            let known = secrets
                .get_metadata(secret)
                .await
                .map_err(|source| Error::api(format!("read Secret {secret}"), source))?;
            if is_owned(&known.metadata, &owner.uid) {
                continue;
            }
            secrets.patch(secret, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(
                |source| Error::api(format!("make cluster {name} the owner of secret {secret}"), source),
            )?;
        }
        Ok(())
    }
}

/// Writes a Secret with exactly this data. An existing Secret of this name that does not belong to the system
/// is left alone.
async fn put_secret(
    secrets: &Api<Secret>,
    namespace: &str,
    name: &str,
    data: BTreeMap<String, ByteString>,
    owner: Option<&str>,
) -> Result<()> {
    let labels = BTreeMap::from([(api::labels::SYSTEM.to_owned(), api::labels::TRUE.to_owned())]);
    let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    let wanted = Secret { metadata, data: Some(data.clone()), ..Secret::default() };
    match secrets.create(&PostParams::default(), &wanted).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(source) => return Err(Error::api(format!("create Secret {name}"), source)),
    }
    let old = secrets.get(name).await;
    let old = old.map_err(|source| Error::api(format!("read Secret {name}"), source))?;
    let labels = old.metadata.labels.clone().unwrap_or_default();
    if labels.get(api::labels::SYSTEM).map(String::as_str) != Some(api::labels::TRUE) {
        return Err(Error::ForeignSecret { namespace: namespace.to_owned(), name: name.to_owned() });
    }
    let keeps_owner = owner.is_some_and(|owner| is_owned(&old.metadata, owner));
    if keeps_owner && old.data.as_ref() == Some(&data) {
        return Ok(());
    }
    let mut entries = Map::new();
    for key in old.data.unwrap_or_default().into_keys() {
        entries.insert(key, Value::Null);
    }
    for (key, value) in &data {
        entries.insert(key.clone(), json!(value));
    }
    let patch = if keeps_owner {
        json!({ "data": entries })
    } else {
        // Without its old owner: the garbage collector would remove it together with the deleted Cluster.
        json!({ "data": entries, "metadata": { "ownerReferences": null } })
    };
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(|source| Error::api(format!("update Secret {name}"), source))?;
    Ok(())
}

fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// The metadata of the system's own objects.
pub fn system(name: &str) -> Value {
    json!({ "name": name, "labels": { api::labels::SYSTEM: api::labels::TRUE } })
}

/// Creates an object unless it exists.
pub async fn ensure<K>(objects: &Api<K>, object: Value) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object)?;
    let name = object.meta().name.clone().unwrap_or_default();
    match objects.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(source) => Err(Error::api(format!("create {} {name}", K::kind(&())), source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_foreign_cluster_are_cut() {
        let said = kube::core::Status::failure(&"no".repeat(1 << 20), "Forbidden").with_code(403);
        let error = Error::api("create Namespace n", kube::Error::Api(said.boxed()));
        let brief = error.brief();
        assert!(
            brief.starts_with("cannot create Namespace n: nono") && brief.len() < 8 << 10,
            "{}",
            brief.len()
        );
        assert_eq!(Error::NoUid.brief(), "the new cluster has no UID");
    }
}
