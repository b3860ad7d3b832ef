//! The discovery documents of a remote server.
//!
//! It is not trusted with the time and the memory of this one: documents have limits, what is kept of them has narrower ones, they
//! are read in linear time, and large ones on a thread of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::pointer;
use apimachinery::weight::Weight;
use http::Request;
use http::header::{ACCEPT, HOST};
use serde::de::{Deserializer as _, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Remote;
use crate::outbound;
use crate::outbound::reply::{Limits, Reply};
use crate::server::Server;

/// As upstream: a server that does not answer discovery in this time is not available.
const PATIENCE: Duration = Duration::from_secs(5);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
/// How many resources a group version may have, subresources included. Kubernetes' largest has 60.
const MOST_RESOURCES: usize = 10_000;
/// What the resources of a group version may become: they are kept as a tree. One becomes some 2 KiB.
const RESOURCES: usize = 32 << 20;
/// How many paths, or definitions, an OpenAPI document may have. Those of all of Kubernetes are less than 1,500.
const MOST_PIECES: usize = 20_000;
/// How long the part of an OpenAPI document that is kept may be, and what it may become when it is read: Kubernetes' own are 4 MB
/// for all groups together.
const OPENAPI: usize = 4 << 20;
const OPENAPI_TREE: usize = 64 << 20;
/// Documents up to this size are read at once, within a millisecond.
const SHORT: usize = 64 << 10;

/// Requests the document that every aggregated server must have.
pub(super) async fn probe(server: &Arc<Server>, remote: &Remote) -> Result<(), String> {
    let url = format!("https://{}{}", remote.endpoint.address.authority(), remote.path());
    let failed = |why: String| format!("failing or missing response from {url}: {why}");
    match get(server, remote, &remote.path(), None, Limits::of_text()).await {
        Ok(reply) if (200..300).contains(&reply.code) => Ok(()),
        Ok(reply) => Err(failed(format!("bad status from {url}: {}", reply.code))),
        Err(why) => Err(failed(format!("Get {url:?}: {why}"))),
    }
}

/// Returns the resources of the group version in the form of aggregated discovery.
pub(super) async fn resources(server: &Arc<Server>, remote: &Remote) -> Option<Value> {
    let aggregated = get(server, remote, "/apis", Some(AGGREGATED), Limits::default()).await;
    if let Some(reply) = aggregated.ok().filter(|reply| reply.code == 200) {
        let (group, version) = (remote.group.clone(), remote.version.clone());
        if let Some(listed) = read(reply, move |body| listed(body, &group, &version)).await? {
            return told(remote, listed);
        }
    }
    let reply =
        get(server, remote, &remote.path(), Some("application/json"), Limits::default()).await.ok()?;
    let (group, version) = (remote.group.clone(), remote.version.clone());
    told(remote, read(reply, move |body| from_legacy(body, &group, &version)).await??)
}

/// Tells the operator if a document has too much.
fn told<T>(remote: &Remote, document: Result<T, TooMuch>) -> Option<T> {
    let TooMuch(what) = match document {
        Ok(document) => return Some(document),
        Err(too_much) => too_much,
    };
    tracing::warn!(apiservice = remote.name, "a server has too many {what}; they are not used");
    None
}

/// A document has too many of these.
#[derive(Debug, PartialEq, Eq)]
struct TooMuch(&'static str);

/// Runs on the bytes of an answer, on a thread of its own if they are many: the caller's thread has more to do.
async fn read<T: Send + 'static>(reply: Reply, what: impl FnOnce(&[u8]) -> T + Send + 'static) -> Option<T> {
    if reply.body.len() <= SHORT {
        return Some(what(&reply.body));
    }
    tokio::task::spawn_blocking(move || what(&reply.body)).await.ok()
}

/// Returns the resources of a group version from an aggregated document, none if it does not have the group version; `None` if it is
/// another document.
fn listed(body: &[u8], group: &str, version: &str) -> Option<Result<Value, TooMuch>> {
    let mut document: Value = serde_json::from_slice(body).ok()?;
    if pointer::text(&document, "/kind") != "APIGroupDiscoveryList" {
        return None;
    }
    let mut groups = list_of(&mut document, "items");
    let group = groups.find(|item| item["metadata"].get("name").is_some_and(|name| name == group));
    let mut versions = group.map(|group| list_of(group, "versions")).into_iter().flatten();
    let version = versions.find(|known| known["version"] == version);
    let resources = version.and_then(|version| version.get_mut("resources")).map(Value::take);
    let mut resources = resources.unwrap_or_else(|| json!([]));
    fill_in_kinds(&mut resources);
    Some(bounded(resources))
}

fn list_of<'a>(object: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    object.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Refuses resources of which there are too many to be kept.
fn bounded(resources: Value) -> Result<Value, TooMuch> {
    let list = resources.as_array().map(Vec::as_slice).unwrap_or_default();
    let below = list.iter().filter_map(|resource| resource["subresources"].as_array()).map(Vec::len);
    let count = below.fold(list.len(), usize::saturating_add);
    if count > MOST_RESOURCES || Weight::of(resources.to_string().as_bytes()) > RESOURCES {
        return Err(TooMuch("resources"));
    }
    Ok(resources)
}

/// Returns the part of the server's OpenAPI v2 document that concerns the group version, as text.
pub(super) async fn openapi(server: &Arc<Server>, remote: &Remote) -> Option<String> {
    let reply = get(server, remote, "/openapi/v2", Some("application/json"), Limits::of_text()).await.ok()?;
    if reply.code != 200 {
        return None;
    }
    let path = remote.path();
    told(remote, read(reply, move |body| below(body, &path)).await??)
}

/// Cuts an OpenAPI document down to the paths of a group version and the definitions that they refer to, as upstream does; `None`
/// if it is not such a document. It never becomes a tree, since most of it may be about other groups.
fn below(document: &[u8], path: &str) -> Option<Result<String, TooMuch>> {
    #[derive(serde::Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        paths: Option<&'a RawValue>,
        #[serde(borrow)]
        definitions: Option<&'a RawValue>,
    }
    let document: Document<'_> = serde_json::from_slice(document).ok()?;
    let prefix = format!("{path}/");
    let paths = fields(document.paths, |path| path.starts_with(&prefix));
    let all = fields(document.definitions, |_| true);
    Some(match (paths, all) {
        (Ok(paths), Ok(all)) => joined(&paths, &all),
        (Err(too_much), _) | (_, Err(too_much)) => Err(too_much),
    })
}

/// Returns the wanted fields of an object, as they are written.
fn fields(
    object: Option<&RawValue>,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, &RawValue>, TooMuch> {
    struct Wanted<F>(F);
    impl<'a, F: Fn(&str) -> bool> Visitor<'a> for Wanted<F> {
        type Value = BTreeMap<String, &'a RawValue>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("an object")
        }

        fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, &'a RawValue>()? {
                if self.0(&name) {
                    kept.insert(name, value);
                }
                if kept.len() > MOST_PIECES {
                    return Err(A::Error::custom("too many"));
                }
            }
            Ok(kept)
        }
    }
    let Some(object) = object.filter(|object| object.get().starts_with('{')) else {
        return Ok(BTreeMap::new());
    };
    let read = serde_json::Deserializer::from_str(object.get()).deserialize_map(Wanted(wanted));
    read.map_err(|_| TooMuch("paths or definitions"))
}

/// Joins paths with the definitions that they refer to, and those that these refer to.
fn joined(paths: &BTreeMap<String, &RawValue>, all: &BTreeMap<String, &RawValue>) -> Result<String, TooMuch> {
    let mut definitions: BTreeMap<&str, &RawValue> = BTreeMap::new();
    let mut open: Vec<&RawValue> = paths.values().copied().collect();
    let mut length = open.iter().map(|path| path.get().len()).fold(0, usize::saturating_add);
    while let Some(text) = open.pop() {
        for name in references(text.get()) {
            let Some((name, definition)) = all.get_key_value(name) else { continue };
            if definitions.insert(name, definition).is_none() {
                length = length.saturating_add(definition.get().len());
                open.push(definition);
            }
        }
    }
    let too_much = || TooMuch("paths or definitions");
    if length > OPENAPI {
        return Err(too_much());
    }
    // As a tree it also has a depth that everybody can read.
    let json = |part: &BTreeMap<&str, &RawValue>| serde_json::to_string(part).map_err(|_| too_much());
    let paths = paths.iter().map(|(path, item)| (path.as_str(), *item)).collect();
    let text = format!(r#"{{"paths":{},"definitions":{}}}"#, json(&paths)?, json(&definitions)?);
    if Weight::of(text.as_bytes()) > OPENAPI_TREE {
        return Err(too_much());
    }
    let tree: Value = serde_json::from_str(&text).map_err(|_| too_much())?;
    Ok(tree.to_string())
}

/// Returns the names of definitions in a text, also where they are only mentioned.
fn references(text: &str) -> BTreeSet<&str> {
    const PREFIX: &str = "#/definitions/";
    let places = text.match_indices(PREFIX);
    let rest = places.filter_map(|(place, prefix)| text.get(place.saturating_add(prefix.len())..));
    rest.filter_map(|rest| rest.split('"').next()).collect()
}

/// Fills in the kinds that a server left out: clients expect the field, even if it is empty.
fn fill_in_kinds(resources: &mut Value) {
    let fill = |entry: &mut Value| {
        if entry.is_object() && !entry["responseKind"].is_object() {
            entry["responseKind"] = json!({"group": "", "version": "", "kind": ""});
        }
    };
    for resource in resources.as_array_mut().into_iter().flatten() {
        fill(resource);
        list_of(resource, "subresources").for_each(fill);
    }
}

/// Returns a document of the remote server, requested in the aggregator's own name.
async fn get(
    server: &Arc<Server>,
    remote: &Remote,
    path: &str,
    accept: Option<&str>,
    limits: Limits,
) -> Result<Reply, String> {
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
    let exchange = server.outbound.exchange(server, &remote.endpoint, request, limits);
    match tokio::time::timeout(PATIENCE, exchange).await {
        Ok(reply) => reply.map_err(|error| error.0),
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}

/// Returns the resources of a document in the old form; `None` if it is another document.
fn from_legacy(body: &[u8], group: &str, version: &str) -> Option<Result<Value, TooMuch>> {
    let document: Value = serde_json::from_slice(body).ok()?;
    let resources = document.get("resources")?.as_array()?;
    if resources.len() > MOST_RESOURCES {
        return Some(Err(TooMuch("resources")));
    }
    Some(bounded(modern(resources, group, version)))
}

fn modern(resources: &[Value], group: &str, version: &str) -> Value {
    let kind_of = |resource: &Value| {
        let text = |field: &str, otherwise: &str| {
            resource[field].as_str().filter(|text| !text.is_empty()).unwrap_or(otherwise).to_owned()
        };
        json!({"group": text("group", group), "version": text("version", version), "kind": text("kind", "")})
    };
    let mut below: HashMap<&str, Vec<Value>> = HashMap::new();
    for sub in resources {
        let Some((parent, subresource)) = sub["name"].as_str().and_then(|name| name.split_once('/')) else {
            continue;
        };
        let sub = json!({"subresource": subresource, "responseKind": kind_of(sub), "verbs": sub["verbs"]});
        below.entry(parent).or_default().push(sub);
    }
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
                pointer::set(&mut entry, field, value.clone());
            }
        }
        // If a name is repeated, the first one has all of them.
        if let Some(below) = below.remove(name) {
            pointer::set(&mut entry, "subresources", below.into());
        }
        list.push(entry);
    }
    list.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(document: &Value) -> Result<Value, TooMuch> {
        let cut = below(document.to_string().as_bytes(), "/apis/g/v1").expect("a document");
        cut.map(|text| serde_json::from_str(&text).expect("JSON"))
    }

    #[test]
    fn only_the_paths_of_the_group_version_are_kept() {
        let whole = json!({"paths": {"/apis/g/v1/": {}, "/apis/g/v1/things": {}, "/apis/g/v10/": {}, "/version": {}}});
        let kept = json!({"paths": {"/apis/g/v1/": {}, "/apis/g/v1/things": {}}, "definitions": {}});
        assert_eq!(cut(&whole), Ok(kept));
        assert_eq!(below(b"no document", "/apis/g/v1"), None);
        assert_eq!(
            cut(&json!({"paths": 5, "definitions": [1]})),
            Ok(json!({"paths": {}, "definitions": {}}))
        );
    }

    #[test]
    fn finding_16_only_definitions_that_the_paths_refer_to_are_kept() {
        let refers = |name: &str| json!({"schema": {"$ref": format!("#/definitions/{name}")}});
        let whole = json!({"paths": {"/apis/g/v1/things": refers("io.Thing"), "/apis/other/v1/x": refers("io.Other")},
            "definitions": {"io.Thing": {"properties": {"spec": refers("io.Spec"), "gone": refers("io.Gone")}},
                "io.Spec": {"items": refers("io.Thing")}, "io.Other": {}, "io.Unused": {}}});
        let kept = cut(&whole).unwrap();
        let names: Vec<&String> = kept["definitions"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["io.Spec", "io.Thing"]);
        assert_eq!(kept["definitions"]["io.Thing"], whole["definitions"]["io.Thing"]);
        assert_eq!(kept["paths"], json!({"/apis/g/v1/things": refers("io.Thing")}));
    }

    #[test]
    fn finding_16_what_is_kept_of_an_openapi_document_has_a_limit() {
        let too_much = Err(TooMuch("paths or definitions"));
        let long = json!({"paths": {"/apis/g/v1/a": "x".repeat(OPENAPI + 1)}});
        assert_eq!(cut(&long), too_much);
        let elsewhere = json!({"paths": {"/apis/g/v10/a": "x".repeat(OPENAPI + 1)}, "definitions": {"a": "x".repeat(OPENAPI + 1)}});
        assert_eq!(cut(&elsewhere), Ok(json!({"paths": {}, "definitions": {}})), "the rest does not count");
        let dense: Vec<Value> = vec![json!({"": 0}); 200_000];
        assert_eq!(cut(&json!({"paths": {"/apis/g/v1/a": dense}})), too_much);
        let many: serde_json::Map<String, Value> =
            (0..=MOST_PIECES).map(|number| (number.to_string(), json!({}))).collect();
        assert_eq!(cut(&json!({"definitions": many})), too_much);
        let deep = format!(r#"{{"paths":{{"/apis/g/v1/a":{}{}}}}}"#, "[".repeat(5_000), "]".repeat(5_000));
        assert_eq!(below(deep.as_bytes(), "/apis/g/v1"), Some(Err(TooMuch("paths or definitions"))));
    }

    #[test]
    fn kubernetes_own_documents_are_within_the_limits() {
        let whole = native::openapi::v2();
        let cut = below(&whole, "/apis/apps/v1").unwrap().unwrap();
        assert!(
            cut.contains("io.k8s.api.core.v1.PodSpec") && !cut.contains("io.k8s.api.rbac"),
            "{}",
            cut.len()
        );
        let core = below(&whole, "/api/v1").unwrap().unwrap();
        assert!(core.len() < OPENAPI / 2, "{} bytes", core.len());
    }

    #[test]
    fn kinds_that_are_not_told_are_empty() {
        let mut told = json!([{"resource": "jobs", "subresources": [{"subresource": "status"}]}, 5]);
        fill_in_kinds(&mut told);
        let empty = json!({"group": "", "version": "", "kind": ""});
        assert_eq!(told[0]["responseKind"], empty);
        assert_eq!(told[0]["subresources"][0]["responseKind"], empty);
    }

    #[test]
    fn the_resources_of_one_group_version_are_listed() {
        let resource = json!({"resource": "things", "responseKind": {"kind": "Thing"}});
        let document = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": [resource]}, {"version": "v2"}]}]});
        let listed = |version: &str| listed(document.to_string().as_bytes(), "g", version);
        assert_eq!(listed("v1"), Some(Ok(json!([resource]))));
        assert_eq!(listed("v2"), Some(Ok(json!([]))));
        assert_eq!(listed("v3"), Some(Ok(json!([]))));
        assert_eq!(super::listed(br#"{"kind": "APIGroupList"}"#, "g", "v1"), None);
    }

    #[test]
    fn the_old_form_becomes_the_new_one() {
        let old = json!({"resources": [
            {"name": "things/status", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
            {"name": "things/proxy", "namespaced": true, "kind": "ThingOptions", "verbs": ["create"]},
            {"name": "thing", "kind": "Other", "verbs": []},
        ]});
        let new = from_legacy(old.to_string().as_bytes(), "g", "v1").unwrap().unwrap();
        assert_eq!(new[0]["scope"], "Namespaced");
        assert_eq!(new[0]["responseKind"], json!({"group": "g", "version": "v1", "kind": "Thing"}));
        assert_eq!(new[0]["subresources"][0]["subresource"], "status");
        assert_eq!(new[0]["subresources"][1]["subresource"], "proxy");
        assert_eq!(new[1]["resource"], "thing");
        assert_eq!(new[1].get("subresources"), None);
        assert_eq!(from_legacy(b"{}", "g", "v1"), None);
    }

    #[test]
    fn finding_13_a_long_discovery_document_is_read_in_linear_time() {
        let resource = |number: usize| json!({"name": format!("a{number}"), "verbs": []});
        let resources: Vec<Value> = (0..300_000).map(resource).collect();
        // Looking through all of them for each one would take hours.
        let new = modern(&resources, "g", "v1");
        assert_eq!(new.as_array().map(Vec::len), Some(300_000));
        // The same with as many subresources of names that are repeated.
        let parents = vec![json!({"name": "a"}); 5_000];
        let resources: Vec<Value> = parents.into_iter().chain(vec![json!({"name": "a/b"}); 5_000]).collect();
        let new = modern(&resources, "g", "v1");
        let below = |resource: &Value| resource["subresources"].as_array().map_or(0, Vec::len);
        assert_eq!(new.as_array().unwrap().iter().map(below).sum::<usize>(), 5_000);
    }

    #[test]
    fn finding_13_resources_have_a_limit() {
        let document = |count: usize| {
            let resources: Vec<Value> =
                (0..count).map(|number| json!({"name": format!("a{number}")})).collect();
            json!({"resources": resources}).to_string()
        };
        let read = |text: String| from_legacy(text.as_bytes(), "g", "v1").unwrap();
        assert!(read(document(5_000)).is_ok());
        assert_eq!(read(document(MOST_RESOURCES + 1)), Err(TooMuch("resources")));
        let dense: Vec<Value> = vec![json!({"": 0}); 60_000];
        let heavy = json!({"resources": [{"name": "a", "categories": dense}]}).to_string();
        assert_eq!(read(heavy), Err(TooMuch("resources")));
        let below = vec![json!({}); MOST_RESOURCES];
        let aggregated = json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "g"},
            "versions": [{"version": "v1", "resources": [{"resource": "a", "subresources": below}]}]}]});
        assert_eq!(listed(aggregated.to_string().as_bytes(), "g", "v1"), Some(Err(TooMuch("resources"))));
    }
}
