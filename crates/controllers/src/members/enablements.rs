//! Which APIs a member serves.
//!
//! Asks for the aggregated discovery document (two requests); a server that does not have it is asked group by group.

use api::cluster::{APIEnablement, APIResource};
use kube::Client;
use kube::core::discovery::v2::APIGroupDiscoveryList;

/// What discovery found.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Enablements {
    /// Sorted by group version, resources by name.
    pub(super) apis: Vec<APIEnablement>,
    /// Some group could not be asked.
    pub(super) partial: bool,
}

/// Asks a member. An error means that nothing could be found out.
pub(super) async fn discover(client: &Client) -> Result<Enablements, kube::Error> {
    let aggregated =
        tokio::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated());
    match aggregated {
        Ok((core, groups)) if !core.items.is_empty() || !groups.items.is_empty() => {
            Ok(of_documents([core, groups]))
        }
        _ => one_by_one(client).await,
    }
}

fn of_documents(documents: impl IntoIterator<Item = APIGroupDiscoveryList>) -> Enablements {
    let mut found = Enablements::default();
    for group in documents.into_iter().flat_map(|document| document.items) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        for version in group.versions {
            found.partial |= version.freshness.as_deref() == Some("Stale");
            let number = version.version.unwrap_or_default();
            let resources = version.resources.into_iter().filter_map(|resource| {
                Some(APIResource { name: resource.resource?, kind: resource.response_kind?.kind? })
            });
            let group_version = if name.is_empty() { number } else { format!("{name}/{number}") };
            found.add(group_version, resources);
        }
    }
    found.sorted()
}

async fn one_by_one(client: &Client) -> Result<Enablements, kube::Error> {
    let mut found = Enablements::default();
    for version in client.list_core_api_versions().await?.versions {
        match client.list_core_api_resources(&version).await {
            Ok(list) => found.add(version, resources(list.resources)),
            Err(_) => found.partial = true,
        }
    }
    for group in client.list_api_groups().await?.groups {
        for version in group.versions {
            match client.list_api_group_resources(&version.group_version).await {
                Ok(list) => found.add(version.group_version, resources(list.resources)),
                Err(_) => found.partial = true,
            }
        }
    }
    Ok(found.sorted())
}

fn resources(
    list: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource>,
) -> impl Iterator<Item = APIResource> {
    // `pods/log` and the like are not resources of their own.
    list.into_iter()
        .filter(|resource| !resource.name.contains('/'))
        .map(|resource| APIResource { name: resource.name, kind: resource.kind })
}

impl Enablements {
    fn add(&mut self, group_version: String, resources: impl Iterator<Item = APIResource>) {
        let mut resources: Vec<APIResource> = resources.collect();
        resources.sort_by(|left, right| left.name.cmp(&right.name));
        if !resources.is_empty() {
            self.apis.push(APIEnablement { group_version, resources });
        }
    }

    fn sorted(mut self) -> Self {
        self.apis.sort_by(|left, right| left.group_version.cmp(&right.group_version));
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_belongs_to_a_resource_is_none_of_its_own() {
        let listed = |name: &str, kind: &str| k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ..Default::default()
        };
        let found =
            resources(vec![listed("pods", "Pod"), listed("pods/log", "Pod"), listed("nodes", "Node")]);
        let found: Vec<(String, String)> = found.map(|resource| (resource.name, resource.kind)).collect();
        assert_eq!(
            found,
            [("pods", "Pod"), ("nodes", "Node")].map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        );
    }

    #[test]
    fn groups_are_sorted_and_a_stale_one_makes_the_list_partial() {
        let document = |freshness: &str| -> APIGroupDiscoveryList {
            serde_json::from_value(json!({ "items": [
                { "metadata": { "name": "batch" }, "versions": [{ "version": "v1", "freshness": freshness, "resources": [
                    { "resource": "jobs", "responseKind": { "kind": "Job" }, "scope": "Namespaced" },
                    { "resource": "cronjobs", "responseKind": { "kind": "CronJob" }, "scope": "Namespaced" },
                ] }] },
                { "metadata": { "name": "apps" }, "versions": [{ "version": "v1", "resources": [
                    { "resource": "deployments", "responseKind": { "kind": "Deployment" }, "scope": "Namespaced" },
                ] }] },
            ] }))
            .unwrap()
        };
        let found = of_documents([document("Current")]);
        let texts: Vec<String> = found
            .apis
            .iter()
            .map(|api| {
                let names: Vec<&str> = api.resources.iter().map(|resource| resource.name.as_str()).collect();
                format!("{}: {}", api.group_version, names.join(" "))
            })
            .collect();
        assert_eq!(texts, ["apps/v1: deployments", "batch/v1: cronjobs jobs"]);
        assert!(!found.partial);
        assert!(of_documents([document("Stale")]).partial);
    }
}
