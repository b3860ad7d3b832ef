//! The types that a server serves, and the type that a word on the command line means.
//!
//! In: the aggregated discovery documents, or the older ones of servers without these. Out: resource types in the server's order,
//! which decides between types with the same name.

use anyhow::bail;
use serde_json::Value;

use crate::server::{Server, segment};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// One type that a server serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) verbs: Vec<String>,
    pub(crate) namespaced: bool,
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, `pods`.
    pub(crate) fn full_name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `deployment.apps`, `pod`: the prefix of names, before the slash.
    pub(crate) fn prefix(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.group.is_empty() { kind } else { format!("{kind}.{}", self.group) }
    }

    /// Go's text of the type; tables of several types are ordered by it.
    pub(crate) fn go_text(&self) -> String {
        format!("{}/{}, Resource={}", self.group, self.version, self.plural)
    }

    /// The path of the collection; without a namespace, of all objects.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        match namespace.filter(|namespace| self.namespaced && !namespace.is_empty()) {
            Some(namespace) => format!("{root}/namespaces/{}/{}", segment(namespace), self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    pub(crate) fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), segment(name))
    }
}

/// All types of a server.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// In the server's order; the preferred version of a group first.
    pub(crate) resources: Vec<Resource>,
    /// `apps/v1`, `v1`.
    pub(crate) versions: Vec<String>,
}

impl Discovery {
    pub(crate) async fn fetch(server: &Server) -> anyhow::Result<Self> {
        let (core, groups) =
            tokio::try_join!(server.get_as("/api", AGGREGATED), server.get_as("/apis", AGGREGATED))?;
        if core["kind"] == "APIGroupDiscoveryList" && groups["kind"] == "APIGroupDiscoveryList" {
            let mut discovery = Self::default();
            discovery.add(&core);
            discovery.add(&groups);
            return Ok(discovery);
        }
        Self::piecewise(server, &core, &groups).await
    }

    fn add(&mut self, list: &Value) {
        for group in each(&list["items"]) {
            let name = text(&group["metadata"]["name"]);
            for version in each(&group["versions"]) {
                let version_name = text(&version["version"]);
                self.versions.push(join(&name, &version_name));
                for resource in each(&version["resources"]) {
                    let kind = &resource["responseKind"];
                    self.resources.push(Resource {
                        group: name.clone(),
                        version: version_name.clone(),
                        kind: text(&kind["kind"]),
                        plural: text(&resource["resource"]),
                        singular: text(&resource["singularResource"]),
                        short_names: texts(&resource["shortNames"]),
                        categories: texts(&resource["categories"]),
                        verbs: texts(&resource["verbs"]),
                        namespaced: resource["scope"] == "Namespaced",
                    });
                }
            }
        }
    }

    async fn piecewise(server: &Server, core: &Value, groups: &Value) -> anyhow::Result<Self> {
        let mut versions: Vec<(String, String)> =
            texts(&core["versions"]).into_iter().map(|version| (String::new(), version)).collect();
        for group in each(&groups["groups"]) {
            let name = text(&group["name"]);
            let preferred = text(&group["preferredVersion"]["version"]);
            let mut own: Vec<String> =
                each(&group["versions"]).map(|version| text(&version["version"])).collect();
            own.sort_by_key(|version| *version != preferred);
            versions.extend(own.into_iter().map(|version| (name.clone(), version)));
        }
        let lists = versions.iter().map(|(group, version)| async move {
            let path =
                if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            server.get(&path).await
        });
        let lists = futures::future::join_all(lists).await;
        let mut discovery = Self::default();
        for ((group, version), list) in versions.into_iter().zip(lists) {
            discovery.versions.push(join(&group, &version));
            // A group whose server is unavailable has no types; the others do.
            let Ok(list) = list else { continue };
            for resource in each(&list["resources"]) {
                let plural = text(&resource["name"]);
                if plural.contains('/') {
                    continue;
                }
                discovery.resources.push(Resource {
                    group: group.clone(),
                    version: version.clone(),
                    kind: text(&resource["kind"]),
                    singular: text(&resource["singularName"]),
                    short_names: texts(&resource["shortNames"]),
                    categories: texts(&resource["categories"]),
                    verbs: texts(&resource["verbs"]),
                    namespaced: resource["namespaced"] == true,
                    plural,
                });
            }
        }
        Ok(discovery)
    }

    /// Finds the type that a word means: `deploy`, `deployments.apps`, `deployments.v1.apps`, `Deployment`.
    pub(crate) fn resolve(&self, word: &str) -> anyhow::Result<&Resource> {
        let lower = word.to_lowercase();
        let (name, rest) = lower.split_once('.').unwrap_or((&lower, ""));
        let (version, group) = rest.split_once('.').unwrap_or((rest, ""));
        let named = |resource: &&Resource, name: &str| {
            resource.plural == name
                || resource.singular == name
                || resource.kind.to_lowercase() == name
                || resource.short_names.iter().any(|short| short == name)
        };
        let all = || self.resources.iter();
        let found = if rest.is_empty() {
            // A full name takes precedence over another type's short name.
            all()
                .find(|resource| resource.plural == name || resource.singular == name)
                .or_else(|| all().find(|r| named(r, name)))
        } else {
            all()
                .find(|r| named(r, name) && r.version == version && r.group == group)
                .or_else(|| all().find(|r| named(r, name) && r.group == rest))
                // A prefix of the group is enough: `deploy.apps`, `clusters.cluster`.
                .or_else(|| all().find(|r| named(r, name) && r.group.starts_with(&format!("{rest}."))))
        };
        match found {
            Some(resource) => Ok(resource),
            None => bail!("the server doesn't have a resource type {}", apimachinery::go::quote(word)),
        }
    }

    /// Returns the types that a word means: those of a category such as `all`, or one.
    pub(crate) fn expand(&self, word: &str) -> anyhow::Result<Vec<&Resource>> {
        let mut members: Vec<&Resource> = Vec::new();
        for resource in self.resources.iter().filter(|r| r.categories.iter().any(|category| category == word))
        {
            if !members.iter().any(|m| m.group == resource.group && m.plural == resource.plural) {
                members.push(resource);
            }
        }
        if members.is_empty() { Ok(vec![self.resolve(word)?]) } else { Ok(members) }
    }

    /// Finds an object's type.
    pub(crate) fn of(&self, object: &Value) -> anyhow::Result<&Resource> {
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let found = self.resources.iter().find(|r| r.kind == kind && r.api_version() == api_version);
        match found {
            Some(resource) => Ok(resource),
            None => bail!(
                "resource mapping not found for name: {} namespace: {}: no matches for kind {} in version {}\nensure \
                 CRDs are installed first",
                apimachinery::go::quote(&text(&object["metadata"]["name"])),
                apimachinery::go::quote(&text(&object["metadata"]["namespace"])),
                apimachinery::go::quote(&kind),
                apimachinery::go::quote(&api_version)
            ),
        }
    }
}

fn join(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_owned()
}

fn texts(list: &Value) -> Vec<String> {
    each(list).map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Discovery {
        let resource = |plural: &str, singular: &str, kind: &str, short: &[&str]| {
            json!({"resource": plural, "singularResource": singular, "responseKind": {"kind": kind},
                "scope": "Namespaced", "shortNames": short, "categories": ["all"], "verbs": ["get"]})
        };
        let mut discovery = Discovery::default();
        discovery.add(&json!({"items": [
            {"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [resource("pods", "pod", "Pod", &["po"])]}]},
        ]}));
        discovery.add(&json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v1", "resources": [resource("deployments", "deployment", "Deployment", &["deploy"])]},
                {"version": "v1beta1", "resources": [resource("deployments", "deployment", "Deployment", &["deploy"])]}]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [
                {"version": "v1beta1", "resources": [resource("pods", "pod", "PodMetrics", &[])]}]},
        ]}));
        discovery
    }

    #[test]
    fn a_word_means_the_type_that_kubectl_would_take() {
        let discovery = sample();
        for (word, type_) in [
            ("po", "v1 pods"),
            ("Pod", "v1 pods"),
            ("deploy", "apps/v1 deployments"),
            ("deployments.apps", "apps/v1 deployments"),
            ("deploy.v1beta1.apps", "apps/v1beta1 deployments"),
            ("pods.metrics", "metrics.k8s.io/v1beta1 pods"),
            ("pods.metrics.k8s.io", "metrics.k8s.io/v1beta1 pods"),
        ] {
            let found = discovery.resolve(word).unwrap_or_else(|error| panic!("{word}: {error}"));
            assert_eq!(format!("{} {}", found.api_version(), found.plural), type_, "{word}");
        }
        let error = discovery.resolve("nothing").expect_err("unknown").to_string();
        assert_eq!(error, "the server doesn't have a resource type \"nothing\"");
        let all: Vec<String> =
            discovery.expand("all").expect("a category").iter().map(|r| r.full_name()).collect();
        assert_eq!(all, ["pods", "deployments.apps", "pods.metrics.k8s.io"]);
    }

    #[test]
    fn paths_name_the_namespace_of_namespaced_types_only() {
        let discovery = sample();
        let deployments = discovery.resolve("deploy").expect("known");
        assert_eq!(deployments.path("a", "b"), "/apis/apps/v1/namespaces/a/deployments/b");
        assert_eq!(deployments.collection(None), "/apis/apps/v1/deployments");
        let node = Resource { version: "v1".into(), plural: "nodes".into(), ..Resource::default() };
        assert_eq!(node.path("a", "b"), "/api/v1/nodes/b");
    }
}
