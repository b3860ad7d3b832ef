//! Roles that a control plane of Karmada has from the start, besides those of Kubernetes, and the ConfigMap for joining clusters.
//!
//! In: a client that may do everything, and the address of the control plane. Out: missing roles are created, and
//! `kube-public/cluster-info` is correct. An administrator's changes to the roles are kept.

use admission::agents::{AGENTS, BOOTSTRAP_GROUP, GENERATOR};
use anyhow::Context as _;
use api::labels::{SYSTEM, TRUE};
use base64::Engine as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use runtime::writer::Stored;
use serde_json::{Value, json};

/// The administrator's group may do everything. A member, however, must also know the user name before it accepts it through the
/// cluster proxy.
const PROXY_ADMIN: &str = "cluster-proxy-admin";
const RBAC: &str = "rbac.authorization.k8s.io";
const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const INFO_READER: &str = "system:karmada:bootstrap-signer-clusterinfo";

/// Creates the missing roles, and publishes the address of the control plane.
pub(crate) async fn ensure(client: &Client, url: &str, authority: &str) -> anyhow::Result<()> {
    let (roles, bindings) = (cluster_roles(), cluster_role_bindings());
    let mut writes: Vec<futures::future::BoxFuture<'_, Result<(), Error>>> = Vec::new();
    for role in roles {
        writes.push(Box::pin(create::<ClusterRole>(client, "", role)));
    }
    for binding in bindings {
        writes.push(Box::pin(create::<ClusterRoleBinding>(client, "", binding)));
    }
    writes.push(Box::pin(create::<Role>(client, PUBLIC, info_role())));
    writes.push(Box::pin(create::<RoleBinding>(client, PUBLIC, info_binding())));
    writes.push(Box::pin(tell(client, url, authority)));
    futures::future::try_join_all(writes).await.context("cannot create Karmada's roles")?;
    Ok(())
}

/// Upstream's roles: who may use the cluster proxy, and who may register a cluster. The latter are limited by
/// `admission::agents`.
fn cluster_roles() -> Vec<Value> {
    let requests = |right: &str| {
        json!([{ "apiGroups": ["certificates.k8s.io"], "resources": [format!("certificatesigningrequests/{right}")],
            "verbs": ["create"] }])
    };
    let proxy =
        json!([{ "apiGroups": [api::cluster::GROUP], "resources": ["clusters/proxy"], "verbs": ["*"] }]);
    let everything = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    [
        (PROXY_ADMIN, proxy),
        ("system:karmada:agent-rbac-generator", everything),
        ("system:karmada:certificatesigningrequest:autoapprover", requests("clusteragent")),
        ("system:karmada:certificatesigningrequest:selfautoapprover", requests("selfclusteragent")),
    ]
    .into_iter()
    .map(|(name, rules)| json!({ "metadata": metadata(name), "rules": rules }))
    .collect()
}

fn cluster_role_bindings() -> Vec<Value> {
    [
        (PROXY_ADMIN, PROXY_ADMIN, "User", "system:admin"),
        ("system:karmada:agent-rbac-generator", "system:karmada:agent-rbac-generator", "User", GENERATOR),
        ("system:karmada:agent-bootstrap", "system:node-bootstrapper", "Group", BOOTSTRAP_GROUP),
        (
            "system:karmada:agent-autoapprove-bootstrap",
            "system:karmada:certificatesigningrequest:autoapprover",
            "Group",
            BOOTSTRAP_GROUP,
        ),
        (
            "system:karmada:agent-autoapprove-certificate-rotation",
            "system:karmada:certificatesigningrequest:selfautoapprover",
            "Group",
            AGENTS,
        ),
    ]
    .into_iter()
    .map(|(name, role, kind, subject)| {
        json!({
            "metadata": metadata(name),
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": RBAC, "kind": kind, "name": subject }],
        })
    })
    .collect()
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "labels": { SYSTEM: TRUE } })
}

fn info_role() -> Value {
    json!({
        "metadata": { "name": INFO_READER },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CLUSTER_INFO], "verbs": ["get"] }],
    })
}

fn info_binding() -> Value {
    json!({
        "metadata": { "name": INFO_READER },
        "roleRef": { "apiGroup": RBAC, "kind": "Role", "name": INFO_READER },
        "subjects": [{ "apiGroup": RBAC, "kind": "User", "name": "system:anonymous" }],
    })
}

async fn create<K: Stored>(client: &Client, namespace: &str, object: Value) -> Result<(), Error> {
    let object: K = serde_json::from_value(object).map_err(Error::SerdeError)?;
    let api = runtime::Writer::new(client.clone()).api::<K>(namespace);
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes the address of the control plane and the authority of its certificate into `cluster-info`.
async fn tell(client: &Client, url: &str, authority: &str) -> Result<(), Error> {
    let encoded = base64::engine::general_purpose::STANDARD.encode(authority);
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {encoded}\n    server: {url}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n"
    );
    let wanted = json!({ "metadata": { "name": CLUSTER_INFO }, "data": { "kubeconfig": kubeconfig } });
    create::<ConfigMap>(client, PUBLIC, wanted).await?;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), PUBLIC);
    let known = maps.get(CLUSTER_INFO).await?.data.unwrap_or_default();
    if known.get("kubeconfig") != Some(&kubeconfig) {
        let patch = Patch::Merge(json!({ "data": { "kubeconfig": kubeconfig } }));
        maps.patch(CLUSTER_INFO, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}
