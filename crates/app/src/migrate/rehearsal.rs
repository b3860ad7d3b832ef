//! A rehearsal of the switch: our controllers on a copy of the control plane in memory, with the real members. Members are read;
//! writes to them are held back and reported.
//!
//! In: the future content of the control plane. Out: a [`Rehearsal`]: every write to a member that the controllers attempted. A
//! write that is held back is answered as if it had been made, so that the controllers continue and show the next one.
//!
//! If the original's controllers will act, the report also contains what these send again at every start without a change
//! ([`repeated`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::controllers::Fleet;
use anyhow::Context as _;
use api::names;
use api::work::Work;
use apimachinery::object::Object as _;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::api::{Api, DynamicObject, ListParams};
use kube::client::Body;
use kube::{Client, Resource as _};
use member::{Kinds, Lookup, Member};
use parking_lot::Mutex;
use propagation::delivery;
use runtime::Writer;
use serde_json::{Value, json};

use super::snapshot::{self, Item};
use super::takeover;
use crate::controllers::{self, Chosen};
use crate::plane::{Plane, SEARCH_CACHE, Setup};

/// The controllers must have attempted nothing new for this long.
const QUIET: Duration = Duration::from_secs(6);
const AT_MOST: Duration = Duration::from_secs(300);

/// A write to a member that was held back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub(crate) struct Touch {
    pub(crate) cluster: String,
    /// `create`, `update`, `patch` or `delete`.
    pub(crate) verb: &'static str,
    pub(crate) path: String,
}

#[derive(Debug, Default, serde::Serialize)]
pub(crate) struct Rehearsal {
    /// The object that would be written, and which of its fields.
    pub(crate) touches: BTreeMap<Touch, BTreeSet<String>>,
    /// What the original's controllers send again when they start, although it changes nothing.
    pub(crate) repeated: BTreeSet<Touch>,
    /// Members that took part.
    pub(crate) members: Vec<String>,
    /// Members that could not be reached, or whose agents act instead of us.
    pub(crate) absent: Vec<String>,
    pub(crate) seconds: u64,
    /// Whether the controllers came to rest.
    pub(crate) complete: bool,
}

/// Whose controllers will act after the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acting {
    Ours,
    /// Possibly those of the original.
    Original,
}

/// Rehearses what the controllers would do with these objects.
pub(crate) async fn rehearse(items: Vec<Item>, chosen: &Chosen, acting: Acting) -> anyhow::Result<Rehearsal> {
    let started = Instant::now();
    let setup = Setup {
        server: apiserver::Options::default(),
        rules: admission::Settings { features: chosen.features()?, ..admission::Settings::default() },
        chosen: Chosen::by(&["--controllers", ""]),
        search_cache_bytes: SEARCH_CACHE,
        oldest_tls: member::OldestTls::V1_3,
    };
    let plane = Plane::start(setup).await.context("cannot start a control plane to rehearse with")?;
    let outcome = play(&plane, items, chosen, acting, started).await;
    plane.stop().await;
    outcome
}

async fn play(
    plane: &Plane,
    items: Vec<Item>,
    chosen: &Chosen,
    who: Acting,
    started: Instant,
) -> anyhow::Result<Rehearsal> {
    let clusters: Vec<String> = items
        .iter()
        .filter(|item| item.resource.is("cluster.karmada.io", "clusters"))
        .map(|item| item.object.name().to_owned())
        .collect();
    takeover::adopt(plane.server(), items).await.context("cannot copy the control plane into memory")?;
    let record = Record::default();
    let behind = record.clone();
    let between: member::Between = Arc::new(move |cluster, client| behind.hold_back(cluster, client));
    let acting = Instant::now();
    // Longer than the period of health checks, so that every controller has seen its members.
    let at_least = chosen.status_period().mul_f32(1.5);
    let (tasks, fleet) = controllers::rehearse(Writer::new(plane.client.clone()), chosen, between)?;
    let complete = loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let quiet = record.last().is_none_or(|last| last.elapsed() > QUIET);
        if acting.elapsed() > at_least && quiet && queued() == 0 {
            break true;
        }
        if acting.elapsed() > AT_MOST {
            break false;
        }
    };
    let members: Vec<String> =
        tasks.ready_members().unwrap_or_default().iter().map(|member| member.name().to_owned()).collect();
    let repeated = match &fleet {
        Some(fleet) if who == Acting::Original => repeated(&plane.client, fleet).await,
        _ => Ok(BTreeSet::new()),
    };
    tasks.stop().await;
    let mut repeated = repeated.context("cannot tell what the original sends when it starts")?;
    let absent = clusters.into_iter().filter(|cluster| !members.contains(cluster)).collect();
    let touches = std::mem::take(&mut record.0.lock().touches);
    repeated.retain(|touch| !touches.contains_key(touch));
    Ok(Rehearsal { touches, repeated, members, absent, seconds: started.elapsed().as_secs(), complete })
}

/// Returns the updates that the original sends for Works that are already applied.
async fn repeated(plane: &Client, fleet: &Fleet) -> anyhow::Result<BTreeSet<Touch>> {
    let members: BTreeMap<String, Arc<Member>> =
        fleet.ready().into_iter().map(|member| (names::execution_space(member.name()), member)).collect();
    let (kinds, works) = (Kinds::default(), Api::<Work>::all(plane.clone()));
    let mut found = BTreeSet::new();
    for work in works.list(&ListParams::default()).await? {
        let Some(member) = work.metadata.namespace.as_ref().and_then(|name| members.get(name)) else {
            continue;
        };
        if work.metadata.deletion_timestamp.is_some() || work.spec.suspend_dispatching == Some(true) {
            continue;
        }
        for manifest in &work.spec.workload.manifests {
            let (version, kind) = (manifest.api_version(), manifest.kind());
            // What we cannot interpret, the original cannot either.
            let Ok(kind) = kinds.resolve(plane, member, version, kind).await else { continue };
            let namespace = if kind.namespaced { manifest.namespace() } else { "" };
            let key = runtime::Key::new(namespace, manifest.name());
            let Lookup::Found(observed) = member.look_up(&kind, &key).await else { continue };
            let judged = delivery::upstream_repeats(manifest, &observed, fleet.interpreter()).await;
            if judged.unwrap_or(false) {
                let place =
                    DynamicObject::url_path(&kind.resource, Some(namespace).filter(|it| !it.is_empty()));
                let (cluster, path) = (member.name().to_owned(), format!("{place}/{}", manifest.name()));
                found.insert(Touch { cluster, verb: "update", path });
            }
        }
    }
    Ok(found)
}

/// Returns the length of the controllers' queues.
fn queued() -> u64 {
    let text = runtime::metrics::render();
    let depths = text.lines().filter(|line| line.starts_with("workqueue_depth{"));
    depths.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// The writes that were held back.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    touches: BTreeMap<Touch, BTreeSet<String>>,
    last: Option<Instant>,
}

impl Record {
    fn last(&self) -> Option<Instant> {
        self.0.lock().last
    }

    fn note(&self, touch: Touch, fields: BTreeSet<String>) {
        let mut recorded = self.0.lock();
        let new = !recorded.touches.contains_key(&touch);
        recorded.touches.entry(touch).or_default().extend(fields);
        if new {
            recorded.last = Some(Instant::now());
        }
    }

    /// Returns a client that reads like `client` but writes nothing.
    fn hold_back(&self, cluster: &str, client: Client) -> Client {
        let (record, cluster) = (self.clone(), cluster.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (record, cluster, client) = (record.clone(), cluster.clone(), client.clone());
            async move {
                if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
                    return client.send(request).await.map_err(|error| error.to_string());
                }
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
                record.answer(&cluster, &client, &parts, &body).await
            }
        });
        Client::new(service, "default")
    }

    /// Records a write and answers as if it had been made.
    async fn answer(
        &self,
        cluster: &str,
        client: &Client,
        parts: &http::request::Parts,
        body: &Bytes,
    ) -> Result<Response<Body>, String> {
        let wish: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut path = parts.uri.path().to_owned();
        let (verb, code) = match parts.method {
            Method::POST => ("create", 201),
            Method::PUT => ("update", 200),
            Method::PATCH => ("patch", 200),
            _ => ("delete", 200),
        };
        if verb == "create" && !wish.name().is_empty() {
            path = format!("{path}/{}", wish.name());
        }
        let present = match verb {
            "update" | "patch" => snapshot::get(client, &path).await.unwrap_or_default(),
            _ => Value::Null,
        };
        let mut fields = BTreeSet::new();
        match verb {
            "update" => differences(&present, &wish, "", &mut fields),
            "patch" => leaves(&wish, "", &mut fields),
            _ => {}
        }
        self.note(Touch { cluster: cluster.to_owned(), verb, path }, fields);
        let answer = match verb {
            "delete" => json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
            "patch" => present,
            _ => stored(wish),
        };
        Response::builder()
            .status(code)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Body::from(answer.to_string().into_bytes()))
            .map_err(|error| error.to_string())
    }
}

/// Returns an object as a server would return it after storing it.
fn stored(mut object: Value) -> Value {
    let metadata = object.metadata_mut();
    let uid = uuid::Uuid::new_v4().to_string();
    metadata.entry("uid").or_insert_with(|| uid.into());
    metadata.entry("resourceVersion").or_insert_with(|| "1".into());
    object
}

/// Fields that change with every write.
const MOVING: [&str; 5] = [
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.creationTimestamp",
];

/// Collects the fields in which two objects differ.
fn differences(old: &Value, new: &Value, at: &str, found: &mut BTreeSet<String>) {
    if old == new || MOVING.contains(&at) {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let (before, after) = (old.get(name), new.get(name));
                let below = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                differences(before.unwrap_or(&Value::Null), after.unwrap_or(&Value::Null), &below, found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                differences(old, new, &format!("{at}[{index}]"), found);
            }
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

/// Collects the fields that a patch names.
fn leaves(patch: &Value, at: &str, found: &mut BTreeSet<String>) {
    match patch {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                leaves(value, &if at.is_empty() { name.clone() } else { format!("{at}.{name}") }, found);
            }
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_would_change_are_named() {
        let old = json!({ "metadata": { "resourceVersion": "1", "annotations": { "a": "1", "b": "2" } }, "spec": { "list": [1, 2] } });
        let new = json!({ "metadata": { "resourceVersion": "2", "annotations": { "a": "1", "b": "3" } }, "spec": { "list": [1, 3], "new": 1 } });
        let mut found = BTreeSet::new();
        differences(&old, &new, "", &mut found);
        let expected = ["metadata.annotations.b", "spec.list[1]", "spec.new"].map(str::to_owned);
        assert_eq!(found, BTreeSet::from(expected));
    }

    #[tokio::test]
    async fn members_are_read_and_never_written() {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = seen.clone();
        let member = tower::service_fn(move |request: Request<Body>| {
            log.lock().push(format!("{} {}", request.method(), request.uri().path()));
            let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "n" }, "data": { "k": "1" } });
            async move {
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
            }
        });
        let record = Record::default();
        let client = record.hold_back("m1", Client::new(member, "default"));
        let path = "/api/v1/namespaces/n/configmaps";
        let ask = |method: &str, path: &str, body: Value| {
            let request = Request::builder().method(method).uri(path).body(body.to_string().into_bytes());
            client.request::<Value>(request.expect("a request"))
        };
        let named = json!({ "metadata": { "name": "a", "namespace": "n" }, "data": { "k": "2" } });
        assert_eq!(ask("GET", &format!("{path}/a"), Value::Null).await.unwrap()["data"]["k"], "1");
        assert_eq!(ask("POST", path, named.clone()).await.unwrap()["data"]["k"], "2");
        ask("PUT", &format!("{path}/a"), named).await.unwrap();
        ask("DELETE", &format!("{path}/a"), Value::Null).await.unwrap();
        assert!(seen.lock().iter().all(|request| request.starts_with("GET ")), "{:?}", seen.lock());
        let touches: Vec<(&str, String)> =
            record.0.lock().touches.keys().map(|touch| (touch.verb, touch.path.clone())).collect();
        let at = format!("{path}/a");
        assert_eq!(touches, [("create", at.clone()), ("delete", at.clone()), ("update", at)]);
    }
}
