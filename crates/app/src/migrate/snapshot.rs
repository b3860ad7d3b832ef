//! Reads the whole content of a control plane once: its kinds by discovery, then the objects of each.
//!
//! In: a client. Out: a [`Snapshot`] of what moves with a control plane, and a count of what does not (`scope`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use apimachinery::object::Object as _;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use serde_json::Value;

use super::scope;

/// How many objects one page of a list has, as in kubectl.
const PAGE: usize = 500;
/// How many lists are read at once.
const AT_ONCE: usize = 8;

/// The groups that every Karmada server has.
const KARMADA: [&str; 3] = ["policy.karmada.io", "work.karmada.io", "cluster.karmada.io"];

/// A kind as a server serves it, in the preferred version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    /// Its status is written separately.
    pub(crate) status: bool,
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the path of all objects, or of those in a namespace.
    pub(crate) fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let place =
            if namespace.is_empty() { String::new() } else { format!("/namespaces/{}", escape(namespace)) };
        format!("{root}/{}{place}/{}", self.api_version(), self.plural)
    }

    /// Returns the path of one object.
    pub(crate) fn path_of(&self, key: &Key) -> String {
        format!("{}/{}", self.path(&key.namespace), escape(&key.name))
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

/// Escapes characters that a path must not contain: names of roles have colons and possibly others.
fn escape(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// The identity of an object; the version does not matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(out, "{}{dot}{} {}{slash}{}", self.plural, self.group, self.namespace, self.name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) resource: Arc<Resource>,
    pub(crate) object: Value,
}

impl Item {
    pub(crate) fn key(&self) -> Key {
        Key {
            group: self.resource.group.clone(),
            plural: self.resource.plural.clone(),
            namespace: self.object.namespace().to_owned(),
            name: self.object.name().to_owned(),
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.object.meta("uid")
    }
}

/// The content of a control plane.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// All kinds, in all versions; the preferred version of each comes first.
    pub(crate) served: Vec<Arc<Resource>>,
    /// Groups of unavailable servers: their objects are unknown.
    pub(crate) unreadable: BTreeSet<String>,
    pub(crate) items: BTreeMap<Key, Item>,
    /// How many objects do not move, by reason.
    pub(crate) left_out: BTreeMap<&'static str, usize>,
    /// The uids of objects that do not move.
    pub(crate) left_out_uids: BTreeSet<String>,
}

impl Snapshot {
    /// Reads everything, in the versions of `like` if they are served, otherwise in the server's preferred ones.
    pub(crate) async fn take(client: &Client, like: Option<&Self>) -> anyhow::Result<Self> {
        let (served, unreadable) = discover(client).await?;
        let served: Vec<Arc<Resource>> = served.into_iter().map(Arc::new).collect();
        let missing: Vec<&str> = KARMADA
            .into_iter()
            .filter(|group| !served.iter().any(|resource| resource.group == *group))
            .collect();
        if !missing.is_empty() {
            bail!(
                "this is not a Karmada: it does not serve {}; hint: the kubeconfig must lead to Karmada's API server, \
                 not to the cluster that it runs on",
                missing.join(", ")
            );
        }
        let mut snapshot = Self { served, unreadable, ..Self::default() };
        let wanted = snapshot.each_once(like);
        let lists = futures::stream::iter(wanted)
            .map(|resource| async move { Ok::<_, anyhow::Error>((list(client, &resource).await?, resource)) })
            .buffer_unordered(AT_ONCE);
        let lists: Vec<(Vec<Value>, Arc<Resource>)> = lists.try_collect().await?;
        for (objects, resource) in lists {
            for object in objects {
                snapshot.add(Item { resource: resource.clone(), object });
            }
        }
        Ok(snapshot)
    }

    /// Adds an object, unless it does not move.
    pub(crate) fn add(&mut self, mut item: Item) {
        match scope::left_out(&item.resource, &item.object) {
            Some(reason) => {
                *self.left_out.entry(reason).or_default() += 1;
                self.left_out_uids.insert(item.uid().to_owned());
            }
            None => {
                scope::trim(&item.resource, &mut item.object);
                self.items.insert(item.key(), item);
            }
        }
    }

    /// Returns whether a kind is served in this version.
    pub(crate) fn serves(&self, resource: &Resource) -> bool {
        let same = |served: &Arc<Resource>| {
            served.is(&resource.group, &resource.plural) && served.version == resource.version
        };
        self.served.iter().any(same)
    }

    /// Returns the kinds to read, each in one version.
    fn each_once(&self, like: Option<&Self>) -> Vec<Arc<Resource>> {
        let mut chosen: Vec<Arc<Resource>> = Vec::new();
        for resource in self.served.iter().filter(|resource| scope::is_read(resource)) {
            if chosen.iter().any(|known| known.is(&resource.group, &resource.plural)) {
                continue;
            }
            let same = |other: &&Arc<Resource>| other.is(&resource.group, &resource.plural);
            let other = like.and_then(|like| like.served.iter().find(same));
            let other = other.filter(|other| self.serves(other));
            chosen.push(other.unwrap_or(resource).clone());
        }
        chosen
    }
}

/// Returns the served kinds, a group's preferred version first, and the groups of servers that are known to be unavailable.
///
/// Any other failure is an error: if a kind were mistaken for one without objects, `--prune` would remove its objects from the
/// target.
async fn discover(client: &Client) -> anyhow::Result<(Vec<Resource>, BTreeSet<String>)> {
    let unreachable = "the control plane does not answer";
    let core = get(client, "/api/v1").await.context(unreachable)?;
    let groups = get(client, "/apis").await.context(unreachable)?;
    let (mut found, mut unreadable) = (read_resources("", "v1", &core), BTreeSet::new());
    for group in groups["groups"].as_array().into_iter().flatten() {
        let name = group["name"].as_str().unwrap_or_default();
        let preferred = group["preferredVersion"]["version"].as_str().unwrap_or_default();
        let versions = group["versions"].as_array().into_iter().flatten();
        let versions = versions.filter_map(|version| version["version"].as_str());
        let mut order = vec![preferred];
        order.extend(versions.filter(|version| *version != preferred));
        for version in order {
            let resources = match get(client, &format!("/apis/{name}/{version}")).await {
                Ok(list) => read_resources(name, version, &list),
                Err(_) if !scope::moves(name) => continue,
                Err(error) => {
                    // None of Karmada's groups may be missing.
                    if KARMADA.contains(&name) || !is_away(client, name, version).await? {
                        return Err(error.context(format!("{name}/{version} does not answer")));
                    }
                    tracing::warn!("{name}/{version} is not available and is passed over: {error:#}");
                    unreadable.insert(name.to_owned());
                    continue;
                }
            };
            found.extend(resources);
        }
    }
    Ok((found, unreadable))
}

/// Returns whether the server itself says that another one, which has this group version, is unavailable.
async fn is_away(client: &Client, group: &str, version: &str) -> anyhow::Result<bool> {
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}");
    let registration =
        get(client, &path).await.with_context(|| format!("{group}/{version} does not answer"))?;
    let conditions = registration["status"]["conditions"].as_array();
    let says = |condition: &Value| condition["type"] == "Available" && condition["status"] == "False";
    Ok(!registration["spec"]["service"].is_null() && conditions.into_iter().flatten().any(says))
}

/// Reads one page of discovery; resources that cannot be listed and created are dropped.
fn read_resources(group: &str, version: &str, list: &Value) -> Vec<Resource> {
    let all: Vec<&Value> = list["resources"].as_array().into_iter().flatten().collect();
    let named = |name: &str| all.iter().any(|resource| resource["name"] == name);
    let can = |resource: &Value, verb: &str| {
        resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|known| known == verb))
    };
    all.iter()
        .filter(|resource| ["list", "create", "get", "update"].iter().all(|verb| can(resource, verb)))
        .filter_map(|resource| {
            let plural = resource["name"].as_str()?.to_owned();
            Some(Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                status: named(&format!("{plural}/status")),
                kind: resource["kind"].as_str()?.to_owned(),
                namespaced: resource["namespaced"].as_bool().unwrap_or(false),
                plural,
            })
        })
        .filter(|resource| !resource.plural.contains('/'))
        .collect()
}

/// Reads all objects of a kind, page by page.
async fn list(client: &Client, resource: &Resource) -> anyhow::Result<Vec<Value>> {
    let path = resource.path("");
    let mut objects = Vec::new();
    let mut next = String::new();
    loop {
        let continued = if next.is_empty() { String::new() } else { format!("&continue={}", escape(&next)) };
        let mut page = get(client, &format!("{path}?limit={PAGE}{continued}"))
            .await
            .with_context(|| format!("cannot list {}", path.trim_start_matches('/')))?;
        next = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        let Value::Array(items) = page["items"].take() else { return Ok(objects) };
        for mut object in items {
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.clone().into();
            objects.push(object);
        }
        if next.is_empty() {
            return Ok(objects);
        }
    }
}

pub(crate) async fn get(client: &Client, path: &str) -> anyhow::Result<Value> {
    let request = http::Request::get(path).body(Vec::new()).context("not a path")?;
    Ok(client.request(request).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn listable_and_creatable_kinds_are_read_with_their_status() {
        let all = json!(["create", "delete", "get", "list", "update"]);
        let list = json!({ "resources": [
            { "name": "works", "kind": "Work", "namespaced": true, "verbs": all },
            { "name": "works/status", "kind": "Work", "namespaced": true, "verbs": ["get", "update"] },
            { "name": "bindings", "kind": "Binding", "namespaced": true, "verbs": ["create"] },
        ] });
        let found = read_resources("work.karmada.io", "v1alpha1", &list);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].plural.as_str(), found[0].status), ("works", true));
        assert_eq!(
            found[0].path("karmada-es-m1"),
            "/apis/work.karmada.io/v1alpha1/namespaces/karmada-es-m1/works"
        );
    }

    /// A control plane that answers only these paths.
    fn serving(answers: &[(&'static str, Value)]) -> Client {
        let answers: BTreeMap<&str, Value> = answers.iter().cloned().collect();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let found = answers.get(request.uri().path()).cloned();
            let code: u16 = if found.is_some() { 200 } else { 503 };
            let body =
                found.unwrap_or(json!({ "kind": "Status", "code": 503, "message": "away" })).to_string();
            let response =
                http::Response::builder().status(code).body(kube::client::Body::from(body.into_bytes()));
            std::future::ready(response)
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn only_what_is_known_to_be_away_is_passed_over() {
        let group = |name: &str| json!({ "name": name, "preferredVersion": { "version": "v1" }, "versions": [{ "version": "v1" }] });
        let groups =
            |names: &[&str]| json!({ "groups": names.iter().map(|name| group(name)).collect::<Vec<_>>() });
        let registration = |service: Value, available: &str| {
            let conditions = json!([{ "type": "Available", "status": available }]);
            json!({ "spec": { "service": service }, "status": { "conditions": conditions } })
        };
        let at = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
        let service = json!({ "name": "x" });
        let cases = [
            (Some(registration(service.clone(), "False")), true),
            // It says that the server is available: only this request has failed.
            (Some(registration(service, "True")), false),
            // Not served by another server: a definition.
            (Some(registration(Value::Null, "False")), false),
            (None, false),
        ];
        for (registration, passed_over) in cases {
            let mut answers = vec![("/api/v1", json!({})), ("/apis", groups(&["example.com"]))];
            answers.extend(registration.clone().map(|registration| (at, registration)));
            let found = discover(&serving(&answers)).await.map(|(_, unreadable)| unreadable);
            match found {
                Ok(unreadable) => {
                    assert!(passed_over && unreadable.contains("example.com"), "{registration:?}");
                }
                Err(error) => {
                    assert!(!passed_over && error.to_string().contains("example.com/v1"), "{error:#}")
                }
            }
        }
    }

    #[test]
    fn names_are_safe_in_paths() {
        assert_eq!(escape("system:node/a b"), "system:node%2Fa%20b");
    }
}
