//! The agent in a Kubernetes member: installed by `register` as upstream does, with our image.

use std::time::Duration;

use ::member::credentials::ensure;
use anyhow::{Context, bail};
use api::labels::{SYSTEM, TRUE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Arguments;
use crate::output;

/// The Secret with the agent's kubeconfig, and its key.
pub(crate) const KUBECONFIG: &str = "karmada-kubeconfig";
pub(crate) const ACCOUNT: &str = "karmada-agent-sa";
/// The agent's Deployment, and its roles in the member.
pub(crate) const AGENT: &str = "karmada-agent";

/// Returns what prevents a new agent in the member.
pub(super) async fn present(member: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let spaces = Api::<Namespace>::all(member.clone());
    let found = spaces.get_opt(namespace).await;
    if found
        .context("cannot reach the cluster that is to be registered; hint: check its kubeconfig")?
        .is_none()
    {
        return Ok(Vec::new());
    }
    let mut present = Vec::new();
    let secret = Api::<Secret>::namespaced(member.clone(), namespace).get_metadata_opt(KUBECONFIG).await?;
    let account =
        Api::<ServiceAccount>::namespaced(member.clone(), namespace).get_metadata_opt(ACCOUNT).await?;
    let deployment = Api::<Deployment>::namespaced(member.clone(), namespace).get_metadata_opt(AGENT).await?;
    for (kind, name, found) in [
        ("Secret", KUBECONFIG, secret.is_some()),
        ("ServiceAccount", ACCOUNT, account.is_some()),
        ("Deployment", AGENT, deployment.is_some()),
    ] {
        if found {
            present.push(format!("{namespace}/{name} {kind} already exists"));
        }
    }
    Ok(present)
}

/// Returns the objects that are created in the member, in this order.
pub(super) fn manifests(arguments: &Arguments, name: &str, endpoint: &str, kubeconfig: &str) -> Vec<Value> {
    let namespace = &arguments.namespace;
    let labels = json!({ SYSTEM: TRUE });
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": labels } }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": { "name": KUBECONFIG, "namespace": namespace, "labels": labels },
            "data": { KUBECONFIG: STANDARD.encode(kubeconfig) },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": AGENT, "labels": labels },
            "rules": [
                { "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] },
                { "nonResourceURLs": ["*"], "verbs": ["get"] },
            ],
        }),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": ACCOUNT, "namespace": namespace, "labels": labels },
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": AGENT, "labels": labels },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT },
            "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace }],
        }),
        deployment(arguments, name, endpoint),
    ]
}

fn deployment(arguments: &Arguments, name: &str, endpoint: &str) -> Value {
    let labels = json!({ "app": AGENT, SYSTEM: TRUE });
    let mut command = vec!["karmada".to_owned()];
    command.extend(arguments.agent_flags(name, endpoint, "/etc/kubeconfig/karmada-kubeconfig"));
    command.push(format!("--leader-elect-resource-namespace={}", arguments.namespace));
    let alone = arguments.karmada_agent_replicas <= 1;
    // A single agent needs no leader election, and then resumes its watches after it was cut off.
    command.push(format!("--leader-elect={}", !alone));
    command.push("--metrics-bind-address=:8080".to_owned());
    command.push("--health-probe-bind-address=0.0.0.0:10357".to_owned());
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": AGENT, "namespace": arguments.namespace, "labels": labels },
        "spec": {
            "replicas": arguments.karmada_agent_replicas,
            "selector": { "matchLabels": { "app": AGENT } },
            "strategy": { "type": if alone { "Recreate" } else { "RollingUpdate" } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": ACCOUNT,
                    "containers": [{
                        "name": AGENT,
                        "image": arguments.karmada_agent_image,
                        "command": command,
                        "ports": [{ "name": "metrics", "containerPort": 8080, "protocol": "TCP" }],
                        "livenessProbe": { "httpGet": { "path": "/healthz", "port": 10357 }, "periodSeconds": 15 },
                        "volumeMounts": [{ "name": "kubeconfig", "mountPath": "/etc/kubeconfig", "readOnly": true }],
                    }],
                    "volumes": [{ "name": "kubeconfig", "secret": { "secretName": KUBECONFIG } }],
                    "tolerations": [{ "key": "node-role.kubernetes.io/master", "operator": "Exists" }],
                },
            },
        },
    })
}

/// Installs the agent and waits until it runs; removes it again if it does not.
pub(super) async fn install(
    member: &Client,
    arguments: &Arguments,
    name: &str,
    endpoint: &str,
    kubeconfig: &str,
) -> anyhow::Result<()> {
    let namespace = &arguments.namespace;
    let installed = async {
        output::line("[karmada-agent-start] Waiting the necessary secret and RBAC");
        for object in manifests(arguments, name, endpoint, kubeconfig) {
            create(member, namespace, object).await?;
        }
        output::line("[karmada-agent-start] Waiting karmada-agent Deployment");
        rolled_out(member, namespace, arguments.patience()?).await
    };
    let result = installed.await;
    if result.is_err() {
        for error in remove(member, namespace).await {
            output::warn(&format!("{error:#}"));
        }
    }
    result
}

async fn create(member: &Client, namespace: &str, object: Value) -> anyhow::Result<()> {
    let client = member.clone();
    match object["kind"].as_str().unwrap_or("") {
        "Namespace" => Ok(ensure::<Namespace>(&Api::all(client), object).await?),
        "Secret" => put::<Secret>(&Api::namespaced(client, namespace), object).await,
        "ClusterRole" => put::<ClusterRole>(&Api::all(client), object).await,
        "ClusterRoleBinding" => Ok(ensure::<ClusterRoleBinding>(&Api::all(client), object).await?),
        "ServiceAccount" => Ok(ensure::<ServiceAccount>(&Api::namespaced(client, namespace), object).await?),
        _ => put::<Deployment>(&Api::namespaced(client, namespace), object).await,
    }
}

/// Creates an object, or replaces the existing one.
async fn put<K>(objects: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let object: K = serde_json::from_value(object).context("an object of ours is malformed")?;
    let result = match objects.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            objects.replace(&name, &PostParams::default(), &object).await
        }
        other => other,
    };
    result.map(drop).with_context(|| format!("cannot create {} {name} in the cluster", K::kind(&())))
}

async fn rolled_out(member: &Client, namespace: &str, patience: Duration) -> anyhow::Result<()> {
    let deployments = Api::<Deployment>::namespaced(member.clone(), namespace);
    let available = async {
        loop {
            let found = deployments.get(AGENT).await?;
            let wanted = found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let status = found.status.unwrap_or_default();
            let seen = status.observed_generation >= found.metadata.generation;
            if seen && status.available_replicas.unwrap_or(0) >= wanted {
                return Ok::<_, kube::Error>(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    match tokio::time::timeout(patience, available).await {
        Ok(result) => result.context("cannot read the agent's Deployment"),
        Err(_) => bail!(
            "the agent does not run within {} s; hint: `kubectl -n {namespace} describe pods -l app={AGENT}` of the cluster \
             tells why; can it pull the image?",
            patience.as_secs()
        ),
    }
}

/// Removes the agent from the member; returns the errors.
pub(crate) async fn remove(member: &Client, namespace: &str) -> Vec<anyhow::Error> {
    let client = || member.clone();
    let results = [
        delete(&Api::<Deployment>::namespaced(client(), namespace), AGENT).await,
        delete(&Api::<ServiceAccount>::namespaced(client(), namespace), ACCOUNT).await,
        delete(&Api::<ClusterRole>::all(client()), AGENT).await,
        delete(&Api::<ClusterRoleBinding>::all(client()), AGENT).await,
        delete(&Api::<Secret>::namespaced(client(), namespace), KUBECONFIG).await,
    ];
    results.into_iter().filter_map(Result::err).collect()
}

/// Deletes an object; a missing one is ignored.
pub(crate) async fn delete<K>(objects: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match objects.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("cannot delete {} {name} of the cluster", K::kind(&())))
        }
    }
}
