//! Roles that a control plane of Karmada has from the start, beside those of Kubernetes.
//!
//! In: a client that may do everything. Out: what is missing of them exists. What an administrator has changed stays as it is.

use anyhow::Context as _;
use api::labels::{SYSTEM, TRUE};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use serde_json::json;

/// The administrator is allowed everything by his group; a member, though, has to be told his name as well before it
/// believes the cluster proxy.
const PROXY_ADMIN: &str = "cluster-proxy-admin";

/// Creates the roles that are missing.
pub(crate) async fn ensure(client: &Client) -> anyhow::Result<()> {
    let metadata = json!({ "name": PROXY_ADMIN, "labels": { SYSTEM: TRUE } });
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": metadata,
        "rules": [{ "apiGroups": [api::cluster::GROUP], "resources": ["clusters/proxy"], "verbs": ["*"] }],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PROXY_ADMIN },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:admin" }],
    }))?;
    let (roles, bindings) = (Api::all(client.clone()), Api::all(client.clone()));
    let parameters = PostParams::default();
    let (role, binding) =
        tokio::join!(roles.create(&parameters, &role), bindings.create(&parameters, &binding));
    unless_there(role.map(drop)).and(unless_there(binding.map(drop))).context("cannot create Karmada's roles")
}

fn unless_there(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        result => result,
    }
}
