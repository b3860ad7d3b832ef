//! The sample application: a Deployment, a policy that divides it, an override. The text is `examples/hello.yaml`.

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

/// The manifests of the sample, as users would write them.
const YAML: &str = include_str!("../../../../examples/hello.yaml");

/// The registry for the context `fleet`.
const FLEET: &str = include_str!("../../../../examples/fleet.yaml");

/// Namespace and name of all objects in the sample.
pub(super) const NAMESPACE: &str = "default";
pub(super) const NAME: &str = "hello";

/// Returns whether the sample's Deployment exists.
pub(super) async fn exists(client: &Client) -> anyhow::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let found = deployments.get_metadata_opt(NAME).await.context("cannot look for the sample application")?;
    Ok(found.is_some())
}

/// Creates missing objects. The policies are last in the file but created first, so that the Deployment is propagated once,
/// already overridden.
pub(super) async fn create(client: &Client) -> anyhow::Result<()> {
    create_all(client, objects(YAML)?).await
}

/// Creates the registry for the context `fleet`.
pub(super) async fn register(client: &Client) -> anyhow::Result<()> {
    create_all(client, objects(FLEET)?).await
}

async fn create_all(client: &Client, objects: Vec<DynamicObject>) -> anyhow::Result<()> {
    for object in objects.into_iter().rev() {
        let types = object.types.clone().unwrap_or_default();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", types.api_version.as_str()));
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create the sample's {}", types.kind));
            }
        }
    }
    Ok(())
}

fn objects(yaml: &str) -> anyhow::Result<Vec<DynamicObject>> {
    yaml.split("\n---\n")
        .map(|document| apimachinery::yaml::from_str(document).context("the sample is malformed"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_a_deployment_a_policy_and_an_override() {
        let kinds: Vec<_> = objects(YAML)
            .expect("well formed")
            .into_iter()
            .map(|object| {
                assert_eq!(object.metadata.namespace.as_deref(), Some(NAMESPACE));
                assert_eq!(object.metadata.name.as_deref(), Some(NAME));
                object.types.expect("a kind").kind
            })
            .collect();
        assert_eq!(kinds, ["Deployment", "PropagationPolicy", "OverridePolicy"]);
    }
}
