//! The discovery documents of a remote server.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::header::{ACCEPT, HOST};
use serde_json::{Map, Value, json};

use super::Remote;
use crate::outbound::{self, reply};
use crate::server::Server;

/// As upstream: a server that does not answer discovery in this time is not available.
const PATIENCE: Duration = Duration::from_secs(5);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// Requests the document that every aggregated server must have.
pub(super) async fn probe(server: &Arc<Server>, remote: &Remote) -> Result<(), String> {
    let url = format!("https://{}{}", remote.endpoint.address.authority(), remote.path());
    let failed = |why: String| format!("failing or missing response from {url}: {why}");
    match get(server, remote, &remote.path(), None).await {
        Ok((code, _)) if (200..300).contains(&code) => Ok(()),
        Ok((code, _)) => Err(failed(format!("bad status from {url}: {code}"))),
        Err(why) => Err(failed(format!("Get {url:?}: {why}"))),
    }
}

/// Returns the resources of the group version in the form of aggregated discovery.
pub(super) async fn resources(server: &Arc<Server>, remote: &Remote) -> Option<Value> {
    if let Ok((200, document)) = get(server, remote, "/apis", Some(AGGREGATED)).await
        && document["kind"] == "APIGroupDiscoveryList"
    {
        return Some(with_kinds(listed(&document, &remote.group, &remote.version)));
    }
    let (_, document) = get(server, remote, &remote.path(), Some("application/json")).await.ok()?;
    Some(from_legacy(document["resources"].as_array()?, &remote.group, &remote.version))
}

/// Returns the resources of a group version from an aggregated document; `None` if the document does not have the group version.
fn listed(document: &Value, group: &str, version: &str) -> Value {
    let mut groups = document["items"].as_array().into_iter().flatten();
    let group = groups.find(|item| item["metadata"]["name"] == group);
    let mut versions = group.and_then(|group| group["versions"].as_array()).into_iter().flatten();
    let version = versions.find(|known| known["version"] == version);
    version.and_then(|version| version.get("resources")).cloned().unwrap_or_else(|| json!([]))
}

/// Returns the part of the server's OpenAPI v2 document that concerns the group version.
pub(super) async fn openapi(server: &Arc<Server>, remote: &Remote) -> Option<Value> {
    let (code, document) = get(server, remote, "/openapi/v2", Some("application/json")).await.ok()?;
    (code == 200).then(|| below(&document, &remote.path()))
}

/// Cuts an OpenAPI document down to the paths of a group version.
fn below(document: &Value, path: &str) -> Value {
    let prefix = format!("{path}/");
    let paths = document["paths"].as_object().into_iter().flatten();
    let paths: Map<String, Value> = paths
        .filter(|(path, _)| path.starts_with(&prefix))
        .map(|(path, item)| (path.clone(), item.clone()))
        .collect();
    json!({"paths": paths, "definitions": document["definitions"]})
}

/// Fills in the kinds that a server left out: clients expect the field, even if it is empty.
fn with_kinds(mut resources: Value) -> Value {
    let fill = |entry: &mut Value| {
        if !entry["responseKind"].is_object() {
            entry["responseKind"] = json!({"group": "", "version": "", "kind": ""});
        }
    };
    for resource in resources.as_array_mut().into_iter().flatten() {
        fill(resource);
        let below = resource.get_mut("subresources").and_then(Value::as_array_mut);
        below.into_iter().flatten().for_each(fill);
    }
    resources
}

/// Returns a document of the remote server, requested in the aggregator's own name.
pub(crate) async fn get(
    server: &Arc<Server>,
    remote: &Remote,
    path: &str,
    accept: Option<&str>,
) -> Result<(u16, Value), String> {
    let mut request = Request::get(path);
    if let Some(accept) = accept {
        request = request.header(ACCEPT, accept);
    }
    let request = request
        .header(HOST, remote.endpoint.address.authority())
        .header("X-Remote-User", "system:kube-aggregator")
        .header("X-Remote-Group", "system:masters")
        .body(outbound::full(""))
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = server.outbound.send(server, &remote.endpoint, request).await?;
        let code = response.status().as_u16();
        Ok::<_, outbound::Error>((code, reply::read(response.into_body()).await?))
    };
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(Ok((code, body))) => Ok((code, serde_json::from_slice(&body).unwrap_or_default())),
        Ok(Err(error)) => Err(error.0),
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}

fn from_legacy(resources: &[Value], group: &str, version: &str) -> Value {
    let kind_of = |resource: &Value| {
        let text = |field: &str, otherwise: &str| {
            resource[field].as_str().filter(|text| !text.is_empty()).unwrap_or(otherwise).to_owned()
        };
        json!({"group": text("group", group), "version": text("version", version), "kind": text("kind", "")})
    };
    let mut list: Vec<Value> = Vec::new();
    for resource in resources {
        let name = resource["name"].as_str().unwrap_or("");
        if name.contains('/') {
            continue;
        }
        let mut entry = json!({
            "resource": name,
            "responseKind": kind_of(resource),
            "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": resource["singularName"].as_str().unwrap_or(""),
            "verbs": resource["verbs"],
        });
        for field in ["shortNames", "categories"] {
            if let Some(value) = resource.get(field) {
                entry[field] = value.clone();
            }
        }
        let prefix = format!("{name}/");
        let below: Vec<Value> = resources
            .iter()
            .filter_map(|sub| {
                let subresource = sub["name"].as_str()?.strip_prefix(&prefix)?;
                Some(json!({"subresource": subresource, "responseKind": kind_of(sub), "verbs": sub["verbs"]}))
            })
            .collect();
        if !below.is_empty() {
            entry["subresources"] = below.into();
        }
        list.push(entry);
    }
    list.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_paths_of_the_group_version_are_kept() {
        let whole = json!({"paths": {"/apis/g/v1/": {}, "/apis/g/v1/things": {}, "/apis/g/v10/": {}, "/version": {}}});
        let paths = below(&whole, "/apis/g/v1")["paths"].clone();
        assert_eq!(paths, json!({"/apis/g/v1/": {}, "/apis/g/v1/things": {}}));
    }

    #[test]
    fn kinds_that_are_not_told_are_empty() {
        let told = with_kinds(json!([{"resource": "jobs", "subresources": [{"subresource": "status"}]}]));
        let empty = json!({"group": "", "version": "", "kind": ""});
        assert_eq!(told[0]["responseKind"], empty);
        assert_eq!(told[0]["subresources"][0]["responseKind"], empty);
    }

    #[test]
    fn the_old_form_becomes_the_new_one() {
        let old = [
            json!({"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"]}),
            json!({"name": "things/proxy", "namespaced": true, "kind": "ThingOptions", "verbs": ["create"]}),
        ];
        let new = from_legacy(&old, "g", "v1");
        assert_eq!(new[0]["scope"], "Namespaced");
        assert_eq!(new[0]["responseKind"], json!({"group": "g", "version": "v1", "kind": "Thing"}));
        assert_eq!(new[0]["subresources"][0]["subresource"], "proxy");
    }
}
