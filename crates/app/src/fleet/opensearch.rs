//! Sends the objects of registries with an OpenSearch backend to OpenSearch, with Karmada's index names and documents.
//!
//! A worker for each registry and kind reads the kind's log like any watch, collects the events, and sends them in bulk. It waits
//! for OpenSearch, but nothing waits for the worker: if it falls behind the log, it starts over and deletes documents of objects
//! that are gone. Documents that OpenSearch refuses because it is busy are sent again, after growing pauses; those that it
//! refuses for good are logged and left out. If it refuses the credentials, they are read again.
//!
//! Tested against an imitation of the protocol below, not against a real OpenSearch.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ::fleet::entry::Shown;
use ::fleet::keeper::Backend;
use ::fleet::watch::Told;
use ::fleet::{Cache, Entry, Fleet, Kind, Place, Start, Versions, Watch};
use anyhow::{Context, bail};
use apimachinery::names;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use runtime::Supervisor;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// How many documents, and about how many bytes, one request has at most.
const BULK: usize = 500;
const BULK_BYTES: usize = 4 << 20;
/// The time limit of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// The pauses after failures: doubled each time, up to the second value.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How much of an answer or of an error in it is shown.
const SHOWN: usize = 1 << 10;

/// Follows the registries, and keeps a worker for each that wants one.
pub(crate) fn start(fleet: &Arc<Fleet>, control: &Client, supervisor: &Supervisor) {
    let (fleet, control, tasks) = (fleet.clone(), control.clone(), supervisor.clone());
    supervisor.keep("fleet/opensearch", move || {
        let (fleet, control, tasks) = (fleet.clone(), control.clone(), tasks.clone());
        async move { follow(&fleet, &control, &tasks).await }
    });
}

async fn follow(fleet: &Arc<Fleet>, control: &Client, tasks: &Supervisor) {
    let stop = tasks.token().clone();
    let mut backends = fleet.backends();
    let mut running: HashMap<String, (Backend, CancellationToken)> = HashMap::new();
    loop {
        let wanted = backends.borrow_and_update().clone();
        running.retain(|name, (backend, stop)| {
            let stays = wanted.iter().any(|wanted| wanted == backend && wanted.registry == *name);
            if !stays {
                stop.cancel();
            }
            stays
        });
        for backend in wanted {
            if running.contains_key(&backend.registry) {
                continue;
            }
            let ended = stop.child_token();
            running.insert(backend.registry.clone(), (backend.clone(), ended.clone()));
            for (kind, places) in &backend.kinds {
                let Some(cache) = fleet.cache(&kind.group, &kind.version, &kind.plural) else { continue };
                let (control, store) = (control.clone(), backend.store.clone());
                let (registry, places) = (backend.registry.clone(), places.clone());
                let task = format!("fleet/opensearch/{registry}/{}", kind.plural);
                let until = ended.clone();
                tasks.keep_until(task, ended.clone(), move || {
                    let (control, store, cache) = (control.clone(), store.clone(), cache.clone());
                    let (places, until) = (places.clone(), until.clone());
                    async move {
                        let (namespace, name) = (store.secret_ref.namespace, store.secret_ref.name);
                        let read: ReadCredentials = Box::new(move || {
                            let (control, namespace, name) =
                                (control.clone(), namespace.clone(), name.clone());
                            Box::pin(async move { credentials(&control, &namespace, &name).await })
                        });
                        let wire = Wire::new(store.addresses, read).await;
                        tokio::select! {
                            () = until.cancelled() => {}
                            () = cache.closed.cancelled() => until.cancelled().await,
                            () = work(&cache, &places, &wire) => {}
                        }
                    }
                });
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = backends.changed() => if changed.is_err() { return },
        }
    }
}

/// Returns the credentials for OpenSearch; none without a Secret, as in Karmada. The key of the name is spelt in two ways.
async fn credentials(control: &Client, namespace: &str, name: &str) -> Option<String> {
    // Users write both, and the client writes them into a path as they are. There is no Secret with such a name.
    let can_exist = |part: &str| !part.is_empty() && names::is_path_segment(part);
    if !can_exist(namespace) || !can_exist(name) {
        return None;
    }
    let secret = Api::<Secret>::namespaced(control.clone(), namespace).get(name).await;
    let data =
        secret.inspect_err(|error| tracing::warn!(%error, "no credentials for OpenSearch")).ok()?.data?;
    let text = |key: &str| data.get(key).and_then(|value| String::from_utf8(value.0.clone()).ok());
    let user = text("username").or_else(|| text("userName"))?;
    let password = text("password").unwrap_or_default();
    Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

/// A change of a document.
#[derive(Debug, Clone)]
struct Step {
    id: Box<str>,
    /// `None` deletes it.
    document: Option<String>,
}

/// Sends the objects of a kind, for ever.
async fn work(cache: &Arc<Cache>, places: &BTreeSet<Place>, wire: &Wire) {
    let index = format!("kubernetes-{}", cache.kind.kind.to_lowercase());
    let mut patience = Patience::default();
    while let Err(error) = wire.create_index(&index).await {
        patience.after(&error).await;
    }
    // The objects that have been sent.
    let mut there: HashSet<Box<str>> = HashSet::new();
    loop {
        let Ok(mut watch) = Watch::begin(cache, Start::Everything).await else { continue };
        let mut gone = there.clone();
        let mut begun = false;
        loop {
            let mut steps = Vec::new();
            let told = watch.next(|told: Told, _: &Versions| steps.extend(step(&cache.kind, places, &told)));
            // A start without objects produces no event, so check from time to time.
            let lost = match tokio::time::timeout(Duration::from_secs(1), told).await {
                Ok(told) => told.is_err(),
                Err(_) => false,
            };
            for step in &steps {
                gone.remove(&step.id);
                if step.document.is_some() {
                    there.insert(step.id.clone())
                } else {
                    there.remove(&step.id)
                };
            }
            if !begun && !lost && watch.has_begun() {
                begun = true;
                steps.extend(gone.drain().map(|id| Step { id, document: None }));
            }
            wire.send(&index, steps).await;
            if lost {
                break;
            }
        }
    }
}

/// Returns the changes of documents that an event causes.
fn step(kind: &Kind, places: &BTreeSet<Place>, told: &Told) -> Option<Step> {
    let entry = told.new.as_ref().or(told.old.as_ref())?;
    let own = |place: &Place| {
        place.cluster == told.place.cluster
            && place.namespace.as_deref().is_none_or(|name| name == entry.namespace())
    };
    if !places.iter().any(own) || entry.facts.uid.is_empty() {
        return None;
    }
    let document = told.new.as_ref().map(|entry| document(kind, &told.place.cluster, entry).to_string());
    Some(Step { id: entry.facts.uid.clone(), document })
}

/// Returns a document in Karmada's form: the parts below `spec` and `status` are text.
fn document(kind: &Kind, cluster: &str, entry: &Entry) -> Value {
    let version = entry.revision.to_string();
    let object = entry.to_value(kind, &Shown { cluster, version: &version, stale: None });
    let metadata = |field: &str| object.get("metadata").and_then(|metadata| metadata.get(field));
    let text = |field: &str| object.get(field).unwrap_or(&Value::Null).to_string();
    json!({
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": metadata("name"),
            "namespace": metadata("namespace").and_then(Value::as_str).unwrap_or(""),
            "creationTimestamp": metadata("creationTimestamp"),
            "labels": metadata("labels"),
            "annotations": metadata("annotations"),
            "deletionTimestamp": metadata("deletionTimestamp"),
        },
        "spec": text("spec"),
        "status": text("status"),
    })
}

/// Reads the credentials.
type ReadCredentials = Box<dyn Fn() -> BoxFuture<'static, Option<String>> + Send + Sync>;

/// The connection to OpenSearch.
struct Wire {
    addresses: Vec<String>,
    credentials: Mutex<Option<String>>,
    /// Read again when OpenSearch refuses them: the Secret may have been created or changed since.
    read: ReadCredentials,
}

/// Growing pauses between attempts.
struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(FIRST_REST)
    }
}

impl Patience {
    async fn after(&mut self, error: &anyhow::Error) {
        tracing::warn!(error = format!("{error:#}"), "OpenSearch does not take what is sent");
        tokio::time::sleep(self.0.mul_f64(rand::random_range(1.0..1.2))).await;
        self.0 = self.0.saturating_mul(2).min(LONGEST_REST);
    }
}

impl Wire {
    async fn new(addresses: Vec<String>, read: ReadCredentials) -> Self {
        let credentials = Mutex::new(read().await);
        Self { addresses, credentials, read }
    }

    async fn create_index(&self, index: &str) -> anyhow::Result<()> {
        let keyword =
            json!({"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}});
        let (text, unread) = (json!({"type": "text"}), json!({"type": "object", "enabled": false}));
        let body = json!({
            "settings": {"index": {"number_of_shards": 1, "number_of_replicas": 0}},
            "mappings": {"properties": {
                "apiVersion": text, "kind": text,
                "metadata": {"properties": {
                    "annotations": unread, "labels": unread, "creationTimestamp": text, "deletionTimestamp": text,
                    "name": keyword, "namespace": keyword, "ownerReferences": text, "resourceVersion": keyword,
                }},
                "spec": unread, "status": unread,
            }},
        });
        let (code, answer) =
            self.ask(Method::PUT, &format!("/{index}"), "application/json", body.to_string()).await?;
        if code >= 300 && !answer.contains("resource_already_exists_exception") {
            bail!("cannot create the index {index}: {code}: {}", shown(&answer));
        }
        Ok(())
    }

    /// Sends changes in pieces, each until it is accepted.
    async fn send(&self, index: &str, mut steps: Vec<Step>) {
        while !steps.is_empty() {
            let mut size = 0_usize;
            let fits = |step: &Step| {
                size = size.saturating_add(step.document.as_ref().map_or(0, String::len));
                size <= BULK_BYTES
            };
            let count = steps
                .iter()
                .take(BULK)
                .take_while({
                    let mut fits = fits;
                    move |step| fits(step)
                })
                .count()
                .max(1);
            let mut piece: Vec<Step> = steps.drain(..count).collect();
            while !piece.is_empty() {
                let mut patience = Patience::default();
                let again = loop {
                    match self.bulk(index, &piece).await {
                        Ok(again) => break again,
                        Err(error) => patience.after(&error).await,
                    }
                };
                if !again.is_empty() {
                    tokio::time::sleep(FIRST_REST).await;
                }
                piece = again;
            }
        }
    }

    /// Sends changes. Returns those to send again.
    async fn bulk(&self, index: &str, steps: &[Step]) -> anyhow::Result<Vec<Step>> {
        let mut body = String::new();
        for step in steps {
            let target = json!({"_index": index, "_id": step.id});
            match &step.document {
                Some(document) => body.push_str(&format!("{}\n{document}\n", json!({"index": target}))),
                None => body.push_str(&format!("{}\n", json!({"delete": target}))),
            }
        }
        let (code, answer) = self.ask(Method::POST, "/_bulk", "application/x-ndjson", body).await?;
        if code >= 300 {
            bail!("{code}: {}", shown(&answer));
        }
        Ok(again(steps, &answer))
    }

    /// Sends a request to the first address that answers.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: String,
    ) -> anyhow::Result<(u16, String)> {
        let mut last = anyhow::anyhow!("the registry names no address of OpenSearch");
        for address in &self.addresses {
            let asked = self.ask_one(address, &method, path, kind, body.clone());
            match tokio::time::timeout(DEADLINE, asked).await {
                Ok(Ok(answer)) => {
                    if matches!(answer.0, 401 | 403) {
                        let credentials = (self.read)().await;
                        *self.credentials.lock() = credentials;
                    }
                    return Ok(answer);
                }
                Ok(Err(error)) => last = error.context(format!("cannot reach {address}")),
                Err(_) => last = anyhow::anyhow!("{address} did not answer within {DEADLINE:?}"),
            }
        }
        Err(last)
    }

    async fn ask_one(
        &self,
        address: &str,
        method: &Method,
        path: &str,
        kind: &str,
        body: String,
    ) -> anyhow::Result<(u16, String)> {
        let client = Client::try_from(kube::Config::new(address.parse().context("it is not a URL")?))?;
        let mut request = Request::builder().method(method).uri(path).header("content-type", kind);
        if let Some(credentials) = &*self.credentials.lock() {
            request = request.header("authorization", credentials);
        }
        let answer = client.send(request.body(kube::client::Body::from(body.into_bytes()))?).await?;
        let code = answer.status().as_u16();
        let body = member::answer::read(answer.into_body()).await?;
        Ok((code, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// Returns the changes that OpenSearch did not accept for now. The answer is a tree only in here, where nobody waits for anything:
/// there are as many workers as registries have kinds.
fn again(steps: &[Step], answer: &str) -> Vec<Step> {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let items = answer.get("items").and_then(Value::as_array);
    let mut again = Vec::new();
    for (step, item) in steps.iter().zip(items.into_iter().flatten()) {
        let outcome = item.as_object().and_then(|item| item.values().next()).unwrap_or(&Value::Null);
        match outcome.get("status").and_then(Value::as_u64).unwrap_or(200) {
            429 | 500.. => again.push(step.clone()),
            // A missing document need not be deleted.
            404 if step.document.is_none() => {}
            400.. => {
                let error = outcome.get("error").unwrap_or(&Value::Null).to_string();
                tracing::warn!(id = &*step.id, error = shown(&error), "OpenSearch refuses a document")
            }
            _ => {}
        }
    }
    again
}

/// Returns the beginning of a text.
fn shown(text: &str) -> &str {
    text.get(..text.floor_char_boundary(SHOWN)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use apimachinery::gvk::Gvk;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn finding_25_a_secret_whose_name_is_more_than_a_name_is_not_read() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let nobody = tower::service_fn(move |request: Request<kube::client::Body>| {
            noted.lock().push(request.uri().path().to_owned());
            async { Err::<http::Response<kube::client::Body>, _>("nobody answers") }
        });
        let control = Client::new(nobody, "default");
        for (namespace, name) in [("n", "a/b"), ("n/secrets", "a"), ("n", "a?b"), ("n#", "a"), ("n", "..")] {
            assert_eq!(credentials(&control, namespace, name).await, None);
        }
        assert_eq!(*asked.lock(), Vec::<String>::new());
        assert_eq!(credentials(&control, "n", "a").await, None);
        assert_eq!(*asked.lock(), ["/api/v1/namespaces/n/secrets/a"], "what can exist is asked for");
    }

    /// An imitation of OpenSearch: its documents, by index and id, its requests, how many more times it is busy, and what it answers
    /// to everything.
    #[derive(Default)]
    struct Imitation {
        documents: Mutex<BTreeMap<String, Value>>,
        asked: Mutex<Vec<String>>,
        busy: Mutex<u32>,
        always: Mutex<Option<(u16, String)>>,
    }

    impl Imitation {
        async fn start() -> (Arc<Self>, String) {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = format!("http://{}", listener.local_addr().expect("an address"));
            let own = Arc::new(Self::default());
            let serving = own.clone();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let own = serving.clone();
                    tokio::spawn(async move {
                        let mut read = Vec::new();
                        loop {
                            let Some((head, body, length)) = complete(&read) else {
                                let mut buffer = [0; 65536];
                                match stream.read(&mut buffer).await {
                                    Ok(count) if count > 0 => read.extend_from_slice(&buffer[..count]),
                                    _ => return,
                                }
                                continue;
                            };
                            let always = own.always.lock().clone();
                            let (code, answer) = always.unwrap_or_else(|| {
                                let (code, answer) = own.answer(&head, &body);
                                (code, answer.to_string())
                            });
                            let text = format!(
                                "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
                                answer.len()
                            );
                            if stream.write_all(text.as_bytes()).await.is_err() {
                                return;
                            }
                            read.drain(..length);
                        }
                    });
                }
            });
            (own, address)
        }

        fn answer(&self, head: &str, body: &str) -> (u16, Value) {
            let line = head.lines().next().unwrap_or("").trim_end_matches(" HTTP/1.1").to_owned();
            self.asked.lock().push(line.clone());
            if !head.to_lowercase().contains("authorization: basic dxnlcjpwyxnz") {
                return (401, json!({"error": "no credentials"}));
            }
            if line.starts_with("PUT ") {
                return (400, json!({"error": {"type": "resource_already_exists_exception"}}));
            }
            let mut busy = self.busy.lock();
            if *busy > 1 {
                *busy -= 1;
                return (503, json!({"error": "busy"}));
            }
            let (mut items, mut lines) = (Vec::new(), body.lines());
            while let Some(action) = lines.next() {
                let action: Value = serde_json::from_str(action).expect("an action");
                let (what, target) =
                    action.as_object().and_then(|all| all.iter().next()).expect("one action");
                let id = format!(
                    "{}/{}",
                    target["_index"].as_str().unwrap_or(""),
                    target["_id"].as_str().unwrap_or("")
                );
                let document = (what == "index").then(|| lines.next().expect("a document"));
                // The last busy answer concerns only one document.
                if *busy == 1 {
                    *busy = 0;
                    items.push(json!({what.as_str(): {"status": 429, "error": "busy"}}));
                    continue;
                }
                match document {
                    Some(text) => self.documents.lock().insert(id, serde_json::from_str(text).expect("JSON")),
                    None => self.documents.lock().remove(&id),
                };
                items.push(json!({what.as_str(): {"status": 200}}));
            }
            (200, json!({"errors": false, "items": items}))
        }
    }

    /// Returns head, body and length of the first request, once it is complete.
    fn complete(read: &[u8]) -> Option<(String, String, usize)> {
        let text = String::from_utf8_lossy(read);
        let end = text.find("\r\n\r\n")?;
        let head = text[..end].to_owned();
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = end + 4 + length.unwrap_or(0);
        (read.len() >= length).then(|| (head, text[end + 4..length].to_owned(), length))
    }

    fn entry(kind: &Kind, name: &str, revision: u64) -> Entry {
        let object = json!({"metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"),
            "resourceVersion": revision.to_string(), "labels": {"a": "b"}}, "spec": {"x": 1}});
        Entry::new(kind, object).expect("an entry")
    }

    async fn until(imitation: &Imitation, wanted: &[&str]) {
        let ready = async {
            loop {
                let there: Vec<String> = imitation.documents.lock().keys().cloned().collect();
                if there == wanted {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), ready).await;
        assert!(waited.is_ok(), "{wanted:?}: {:?}", imitation.documents.lock());
    }

    #[tokio::test]
    async fn finding_16_an_answer_of_opensearch_of_many_small_parts_is_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (imitation, address) = Imitation::start().await;
        let wire = Wire::new(vec![address], Box::new(|| Box::pin(std::future::ready(None)))).await;
        let steps = [Step { id: "a".into(), document: None }];
        let answered = async |code: u16, answer: String| {
            *imitation.always.lock() = Some((code, answer));
            wire.bulk("i", &steps).await.map(|again| again.len()).map_err(|error| format!("{error:#}"))
        };
        // A megabyte and a half of text would be 150 MiB as a tree.
        let parts = format!(r#"{{"items":[{}0]}}"#, r#"{"":0},"#.repeat(200_000));
        let refused = answered(200, parts).await.expect_err("it is too heavy");
        assert!(refused.contains("the answer becomes objects of more than 128 MiB"), "{refused}");
        let refused = answered(500, "x".repeat(1 << 20)).await.expect_err("it is a refusal");
        assert_eq!(refused, format!("500: {}", "x".repeat(SHOWN)), "a log shows the beginning");
        let item = r#"{"delete":{"status":429,"error":"busy"}}"#;
        assert_eq!(answered(200, format!(r#"{{"items":[{item},{item}]}}"#)).await, Ok(1));
    }

    #[tokio::test]
    async fn objects_become_documents_through_busy_times_and_nobody_waits_for_it() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (imitation, address) = Imitation::start().await;
        *imitation.busy.lock() = 3;
        let fleet = Fleet::new(1 << 20);
        let kind = Kind::new(&Gvk::new("apps", "v1", "Deployment"), "deployments", true);
        let cache = fleet.add(&kind);
        let (m1, m2) = (Place::cluster("m1"), Place::cluster("m2"));
        for place in [&m1, &m2] {
            cache.expect(place);
            cache.replace(place, 10, vec![entry(&kind, &format!("{}-web", place.cluster), 5)]).expect("room");
        }
        // The Secret is created after the registry.
        let tries = Mutex::new(0);
        let read: ReadCredentials = Box::new(move || {
            let mut tries = tries.lock();
            *tries += 1;
            let found = (*tries > 1).then(|| format!("Basic {}", STANDARD.encode("user:pass")));
            Box::pin(std::future::ready(found))
        });
        let wire = Wire::new(vec!["http://127.0.0.1:1".to_owned(), address], read).await;
        let own = BTreeSet::from([m1.clone()]);
        let working = tokio::spawn({
            let cache = cache.clone();
            async move { work(&cache, &own, &wire).await }
        });
        // While OpenSearch is busy, the cache continues.
        cache.put(&m1, entry(&kind, "m1-api", 11)).expect("room");
        until(&imitation, &["kubernetes-deployment/uid-m1-api", "kubernetes-deployment/uid-m1-web"]).await;
        let document = imitation.documents.lock()["kubernetes-deployment/uid-m1-web"].clone();
        assert_eq!(document["spec"], r#"{"x":1}"#, "text, as in Karmada");
        assert_eq!(document["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"], "m1");
        cache.remove(&m1, &entry(&kind, "m1-web", 12));
        cache.put(&m2, entry(&kind, "m2-api", 11)).expect("room");
        until(&imitation, &["kubernetes-deployment/uid-m1-api"]).await;
        assert_eq!(imitation.asked.lock()[0], "PUT /kubernetes-deployment");
        working.abort();
    }
}
