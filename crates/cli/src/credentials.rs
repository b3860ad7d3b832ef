//! What a member gives to the control plane so that it can be reached: accounts, roles and tokens in the member, and
//! Secrets in the control plane. `join` reports all of it; an agent as much as `--report-secrets` says.

use std::time::Duration;

use anyhow::{Context, bail};
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
use serde_json::{Value, json};

/// Which credentials a member gives to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Those of an account that may do everything.
    pub credentials: bool,
    /// Those of an account that may act in the name of others, as far as it is allowed to.
    pub impersonator: bool,
}

impl Reported {
    /// All of them, as a member in push mode gives them.
    pub const ALL: Self = Self { credentials: true, impersonator: true };
    /// None at all: nobody reaches in.
    pub const NONE: Self = Self { credentials: false, impersonator: false };
}

/// What the control plane needs to reach the member; what is not reported is missing.
pub struct Credentials {
    impersonator: Option<ByteString>,
    own: Option<Own>,
}

struct Own {
    token: ByteString,
    certificates: ByteString,
}

/// Makes accounts, role and tokens in the member, as far as they are reported.
pub async fn prepare_member(
    member: &Client,
    name: &str,
    namespace: &str,
    reported: Reported,
) -> anyhow::Result<Credentials> {
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
async fn own_role(member: &Client, account: &str, namespace: &str) -> anyhow::Result<()> {
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

/// Makes a token Secret and waits until the member has filled it.
async fn token_of(secrets: &Api<Secret>, account: &str) -> anyhow::Result<Secret> {
    const PATIENCE: Duration = Duration::from_secs(30);
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
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    };
    tokio::time::timeout(PATIENCE, filled)
        .await
        .with_context(|| {
            format!(
                "the cluster did not issue a token for service account {account} within {} s; hint: its controller \
                 manager does that",
                PATIENCE.as_secs()
            )
        })?
        .with_context(|| format!("cannot read secret {account} of the cluster"))
}

impl Credentials {
    /// Puts them into Secrets of the control plane. `owner` is the Cluster that they belong to, if it exists already.
    pub async fn store(
        &self,
        control: &Client,
        name: &str,
        namespace: &str,
        owner: Option<&Cluster>,
    ) -> anyhow::Result<()> {
        let owner = owner.and_then(|cluster| cluster.metadata.uid.as_deref());
        let secrets = Api::<Secret>::namespaced(control.clone(), namespace);
        if let Some(token) = &self.impersonator {
            let data = json!({ SECRET_TOKEN: token });
            put_secret(&secrets, namespace, &names::impersonation_secret(name), data, owner).await?;
        }
        if let Some(own) = &self.own {
            let data = json!({ SECRET_CA_BUNDLE: own.certificates, SECRET_TOKEN: own.token });
            put_secret(&secrets, namespace, name, data, owner).await?;
        }
        Ok(())
    }

    /// Returns the specification of a Cluster that names these Secrets.
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

    /// Lets the Secrets disappear with the Cluster.
    pub async fn belong_to(
        &self,
        control: &Client,
        cluster: &Cluster,
        namespace: &str,
    ) -> anyhow::Result<()> {
        let name = cluster.metadata.name.as_deref().unwrap_or("");
        let secrets = Api::<Secret>::namespaced(control.clone(), namespace);
        let owner = cluster.controller_owner_ref(&()).context("the new cluster has no UID")?;
        let patch = json!({ "metadata": { "ownerReferences": [owner_with_block(&owner)] } });
        let impersonation = names::impersonation_secret(name);
        let impersonation = self.impersonator.as_ref().map(|_| impersonation.as_str());
        for secret in impersonation.into_iter().chain(self.own.as_ref().map(|_| name)) {
            let known =
                secrets.get_metadata(secret).await.with_context(|| format!("cannot read Secret {secret}"))?;
            if is_owned(&known.metadata, &owner.uid) {
                continue;
            }
            secrets
                .patch(secret, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .with_context(|| format!("cannot make cluster {name} the owner of secret {secret}"))?;
        }
        Ok(())
    }
}

/// Makes a Secret have this data and nothing else. One of this name that is not the system's is left alone: it is
/// somebody's.
async fn put_secret(
    secrets: &Api<Secret>,
    namespace: &str,
    name: &str,
    data: Value,
    owner: Option<&str>,
) -> anyhow::Result<()> {
    let wanted: Secret = serde_json::from_value(json!({ "metadata": system(name), "data": data }))
        .context("an object of ours is malformed")?;
    match secrets.create(&PostParams::default(), &wanted).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create Secret {name}")),
    }
    let old = secrets.get(name).await.with_context(|| format!("cannot read Secret {name}"))?;
    let labels = old.metadata.labels.clone().unwrap_or_default();
    if labels.get(api::labels::SYSTEM).map(String::as_str) != Some(api::labels::TRUE) {
        bail!(
            "Secret {namespace}/{name} exists in the control plane and is not the system's; hint: delete it, or choose \
             another --cluster-namespace"
        );
    }
    let keeps_owner = owner.is_some_and(|owner| is_owned(&old.metadata, owner));
    if keeps_owner && old.data == wanted.data {
        return Ok(());
    }
    let mut entries = data;
    for key in old.data.unwrap_or_default().into_keys() {
        if entries.get(&key).is_none() {
            entries[key] = Value::Null;
        }
    }
    let mut patch = json!({ "data": entries });
    if !keeps_owner {
        // Without its old owner: the garbage collector would remove it together with the Cluster that is gone.
        patch["metadata"] = json!({ "ownerReferences": null });
    }
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("cannot update Secret {name}"))?;
    Ok(())
}

fn is_owned(metadata: &ObjectMeta, uid: &str) -> bool {
    metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

fn owner_with_block(owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference) -> Value {
    let mut owner = json!(owner);
    owner["blockOwnerDeletion"] = true.into();
    owner
}

/// The metadata of the system's own objects.
pub(crate) fn system(name: &str) -> Value {
    json!({ "name": name, "labels": { api::labels::SYSTEM: api::labels::TRUE } })
}

/// Creates an object unless it exists.
pub(crate) async fn ensure<K>(objects: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let object: K = serde_json::from_value(object).context("an object of ours is malformed")?;
    match objects.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot create {} {name}", K::kind(&()))),
    }
}
