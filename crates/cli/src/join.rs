//! `join`: registers a member in push mode.
//!
//! In the member: a namespace, two service accounts with tokens, and a role for the one that the control plane acts
//! through. In the control plane: the two tokens as Secrets, and the Cluster. What exists already is left as it is, so
//! that a join that was interrupted can simply be repeated; a cluster that is registered is refused. Secrets that an
//! earlier join left in the control plane get the new credentials.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use api::cluster::{Cluster, ClusterSpec, ClusterSyncMode, LocalSecretReference};
use api::constants::{
    NAMESPACE_CLUSTER, NAMESPACE_KUBE_SYSTEM, NAMESPACE_SYSTEM, SECRET_CA_BUNDLE, SECRET_TOKEN,
};
use api::names;
use clap::Args;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::clients::{self, ControlArguments};

/// Register a cluster in push mode: the control plane reaches out to it.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Join cluster member1 whose kubeconfig lies beside
  karmadactl join member1 --cluster-kubeconfig=member1.kubeconfig")]
pub struct JoinArguments {
    /// Name of the cluster.
    #[arg(value_name = "CLUSTER_NAME", default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub control: ControlArguments,
    /// Path to the kubeconfig file of the cluster that joins; used during this command only.
    #[arg(long, value_name = "FILE")]
    pub cluster_kubeconfig: Option<PathBuf>,
    /// Name of the context in the kubeconfig file of the cluster; by default the current one.
    #[arg(long, value_name = "CONTEXT")]
    pub cluster_context: Option<String>,
    /// Namespace of the service accounts in the cluster and of the secrets in the control plane.
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE_CLUSTER)]
    pub cluster_namespace: String,
    /// Provider of the cluster.
    #[arg(long, value_name = "PROVIDER")]
    pub cluster_provider: Option<String>,
    /// Region of the cluster.
    #[arg(long, value_name = "REGION")]
    pub cluster_region: Option<String>,
    /// Zones of the cluster.
    #[arg(long, value_name = "ZONE", value_delimiter = ',')]
    pub cluster_zones: Vec<String>,
    /// Also install the definitions of ServiceExport and ServiceImport into the cluster. Without them, a policy has to bring
    /// them there before services can be exported from it or imported into it.
    #[arg(long)]
    pub install_mcs_crds: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// Registers a member.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "commands talk to their user")]
pub async fn join(arguments: JoinArguments) -> anyhow::Result<()> {
    if arguments.cluster_namespace == NAMESPACE_SYSTEM {
        eprintln!("warning: {NAMESPACE_SYSTEM} is the system's own namespace; better take another one");
    }
    enrol(&arguments, |progress| eprintln!("{progress}")).await?;
    let name = &arguments.name;
    if arguments.dry_run {
        println!("cluster({name}) would be joined (dry run)");
    } else {
        println!("cluster({name}) is joined successfully");
    }
    Ok(())
}

/// Registers a member without a word of its own; `say` is told how it goes.
pub async fn enrol(arguments: &JoinArguments, say: impl Fn(&str)) -> anyhow::Result<()> {
    let name = &arguments.name;
    clients::check_name(name)?;
    let control = arguments.control.client().await?;
    let member_config =
        clients::config(arguments.cluster_kubeconfig.as_deref(), arguments.cluster_context.as_deref())
            .await?;
    let member = Client::try_from(member_config.clone()).context("cannot make a client for the cluster")?;

    let id = Api::<Namespace>::all(member.clone())
        .get(NAMESPACE_KUBE_SYSTEM)
        .await
        .with_context(|| format!("cannot read namespace {NAMESPACE_KUBE_SYSTEM} of cluster {name}"))?
        .metadata
        .uid
        .unwrap_or_default();
    refuse_registered(&control, name, &id).await?;
    if arguments.dry_run {
        return Ok(());
    }

    let credentials = prepare_member(&member, name, &arguments.cluster_namespace).await?;
    say(&format!("cluster({name}): accounts and credentials are in place"));
    if arguments.install_mcs_crds {
        install_service_definitions(&member).await?;
        say(&format!("cluster({name}): ServiceExport and ServiceImport are defined"));
    }
    let spec = ClusterSpec {
        id,
        sync_mode: ClusterSyncMode::Push,
        api_endpoint: member_config.cluster_url.to_string().trim_end_matches('/').to_owned(),
        insecure_skip_tls_verification: member_config.accept_invalid_certs,
        proxy_url: member_config.proxy_url.map(|url| url.to_string()).unwrap_or_default(),
        provider: arguments.cluster_provider.clone().unwrap_or_default(),
        region: arguments.cluster_region.clone().unwrap_or_default(),
        zones: arguments.cluster_zones.clone(),
        ..ClusterSpec::default()
    };
    register(&control, name, &arguments.cluster_namespace, credentials, spec).await
}

async fn refuse_registered(control: &Client, name: &str, id: &str) -> anyhow::Result<()> {
    let clusters = Api::<Cluster>::all(control.clone())
        .list(&ListParams::default())
        .await
        .context("cannot list the clusters of the control plane")?;
    let taken = clusters
        .items
        .iter()
        .any(|cluster| cluster.spec.id == id || cluster.metadata.name.as_deref() == Some(name));
    if taken {
        bail!("the cluster ID {id} or the cluster name {name} has been registered");
    }
    Ok(())
}

/// What the control plane needs to reach the member.
struct Credentials {
    impersonator_token: ByteString,
    token: ByteString,
    certificates: ByteString,
}

/// Makes accounts, role and tokens in the member.
async fn prepare_member(member: &Client, name: &str, namespace: &str) -> anyhow::Result<Credentials> {
    ensure::<Namespace>(&Api::all(member.clone()), json!({ "metadata": system(namespace) })).await?;
    let accounts = Api::<ServiceAccount>::namespaced(member.clone(), namespace);
    let secrets = Api::<Secret>::namespaced(member.clone(), namespace);

    let impersonator = names::IMPERSONATOR_SERVICE_ACCOUNT;
    ensure(&accounts, json!({ "metadata": system(impersonator) })).await?;
    let impersonator_secret = token_of(&secrets, impersonator).await?;

    let account = names::service_account(name);
    ensure(&accounts, json!({ "metadata": system(&account) })).await?;
    let role = names::cluster_role(&account);
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
    .await?;
    let mut secret = token_of(&secrets, &account).await?;
    let mut data = secret.data.take().unwrap_or_default();
    Ok(Credentials {
        impersonator_token: impersonator_secret
            .data
            .and_then(|mut data| data.remove("token"))
            .unwrap_or_default(),
        token: data.remove("token").unwrap_or_default(),
        certificates: data.remove("ca.crt").unwrap_or_default(),
    })
}

/// Defines ServiceExport and ServiceImport in a member. What is defined there already stays as it is.
pub(crate) async fn install_service_definitions(member: &Client) -> anyhow::Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(member.clone());
    let ours = |definition: &Value| definition["spec"]["group"] == api::multicluster::GROUP;
    for definition in api::crd::all().into_iter().filter(ours) {
        ensure(&definitions, definition).await?;
    }
    Ok(())
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

/// Makes Secrets and Cluster in the control plane.
async fn register(
    control: &Client,
    name: &str,
    namespace: &str,
    credentials: Credentials,
    spec: ClusterSpec,
) -> anyhow::Result<()> {
    ensure::<Namespace>(&Api::all(control.clone()), json!({ "metadata": system(namespace) })).await?;
    let secrets = Api::<Secret>::namespaced(control.clone(), namespace);
    let impersonation = names::impersonation_secret(name);
    let impersonator = [(SECRET_TOKEN.to_owned(), credentials.impersonator_token)];
    let own = [
        (SECRET_CA_BUNDLE.to_owned(), credentials.certificates),
        (SECRET_TOKEN.to_owned(), credentials.token),
    ];
    let encode = |data: &[(String, ByteString)]| -> Value {
        data.iter().map(|(key, value)| (key.clone(), json!(value))).collect::<serde_json::Map<_, _>>().into()
    };
    put_secret(&secrets, namespace, &impersonation, encode(&impersonator)).await?;
    put_secret(&secrets, namespace, name, encode(&own)).await?;

    let reference =
        |secret: &str| LocalSecretReference { namespace: namespace.to_owned(), name: secret.to_owned() };
    let mut cluster = Cluster::default();
    cluster.metadata.name = Some(name.to_owned());
    cluster.spec = ClusterSpec {
        secret_ref: Some(reference(name)),
        impersonator_secret_ref: Some(reference(&impersonation)),
        ..spec
    };
    let cluster = Api::<Cluster>::all(control.clone())
        .create(&PostParams::default(), &cluster)
        .await
        .with_context(|| format!("cannot create cluster {name} in the control plane"))?;

    // They are to disappear with the Cluster.
    let owner = cluster.controller_owner_ref(&()).context("the new cluster has no UID")?;
    let patch = json!({ "metadata": { "ownerReferences": [owner_with_block(&owner)] } });
    for secret in [impersonation.as_str(), name] {
        secrets
            .patch(secret, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .with_context(|| format!("cannot make cluster {name} the owner of secret {secret}"))?;
    }
    Ok(())
}

/// Makes a Secret have this data and nothing else. One of this name that is not the system's is left alone: it is
/// somebody's.
async fn put_secret(secrets: &Api<Secret>, namespace: &str, name: &str, data: Value) -> anyhow::Result<()> {
    let wanted: Secret = serde_json::from_value(json!({ "metadata": system(name), "data": data }))
        .context("an object of ours is malformed")?;
    match secrets.create(&PostParams::default(), &wanted).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create Secret {name}")),
    }
    let old = secrets.get(name).await.with_context(|| format!("cannot read Secret {name}"))?;
    let labels = old.metadata.labels.unwrap_or_default();
    if labels.get(api::labels::SYSTEM).map(String::as_str) != Some(api::labels::TRUE) {
        bail!(
            "Secret {namespace}/{name} exists in the control plane and is not the system's; hint: delete it, or choose \
             another --cluster-namespace"
        );
    }
    let mut entries = data;
    for key in old.data.unwrap_or_default().into_keys() {
        if entries.get(&key).is_none() {
            entries[key] = Value::Null;
        }
    }
    // Without its old owner: the garbage collector would remove it together with the Cluster that is gone.
    let patch = json!({ "metadata": { "ownerReferences": null }, "data": entries });
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("cannot update Secret {name}"))?;
    Ok(())
}

fn owner_with_block(owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference) -> Value {
    let mut owner = json!(owner);
    owner["blockOwnerDeletion"] = true.into();
    owner
}

/// The metadata of the system's own objects.
fn system(name: &str) -> Value {
    json!({ "name": name, "labels": { api::labels::SYSTEM: api::labels::TRUE } })
}

/// Creates an object unless it exists.
async fn ensure<K>(objects: &Api<K>, object: Value) -> anyhow::Result<()>
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
