//! etcd's own account of what happened, read from etcd itself: by its JSON gateway, so that no line of what is judged has a part in it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Change, Fields, Revision, Version};

/// Follows all changes below a prefix of keys, for as long as it lives.
pub struct Truth {
    told: Arc<Mutex<Told>>,
    endpoints: Vec<String>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Told {
    changes: Vec<Change>,
    /// Set when etcd gave up changes that had not been read.
    lost: Option<Revision>,
}

impl Truth {
    /// Follows from a revision on, at whichever endpoint answers. Names are what the keys have behind the prefix.
    pub fn follow(endpoints: &[String], prefix: &str, from: Revision) -> Self {
        let told = Arc::new(Mutex::new(Told::default()));
        let task = tokio::spawn(follow(endpoints.to_vec(), prefix.to_owned(), from, Arc::clone(&told)));
        Self { told, endpoints: endpoints.to_vec(), task }
    }

    /// Returns what has been told so far.
    ///
    /// # Panics
    ///
    /// If etcd had given up what was not read yet: then nothing can be judged.
    pub fn changes(&self) -> Vec<Change> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(told.lost.is_none(), "etcd compacted up to {:?} before it was read", told.lost);
        told.changes.clone()
    }

    /// Returns the revision up to which servers had etcd give up the past.
    pub async fn compacted(&self) -> Revision {
        let request = json!({"key": BASE64_STANDARD.encode("compact_rev_key")});
        let answer = self.ask("/v3/kv/range", &request).await;
        let value = answer.pointer("/kvs/0/value").and_then(Value::as_str).map(decoded);
        value.and_then(|value| String::from_utf8(value).ok()?.parse().ok()).unwrap_or(0)
    }

    /// Returns etcd's newest revision.
    pub async fn newest(&self) -> Revision {
        let request = json!({"key": BASE64_STANDARD.encode("compact_rev_key")});
        number(self.ask("/v3/kv/range", &request).await.pointer("/header/revision"))
    }

    async fn ask(&self, path: &str, request: &Value) -> Value {
        crate::eventually("etcd answers", async || {
            let mut seen = String::new();
            for endpoint in &self.endpoints {
                let client = client(endpoint);
                let answer = client.request::<Value>(post(path, request));
                match tokio::time::timeout(Duration::from_secs(5), answer).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    other => seen = format!("{endpoint}: {other:?}"),
                }
            }
            Err(seen)
        })
        .await
    }
}

impl Drop for Truth {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(endpoints: Vec<String>, prefix: String, mut from: Revision, told: Arc<Mutex<Told>>) {
    let mut end = prefix.clone().into_bytes();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    for endpoint in endpoints.iter().cycle() {
        let create = json!({"create_request": {
            "key": BASE64_STANDARD.encode(&prefix), "range_end": BASE64_STANDARD.encode(&end),
            "start_revision": from.to_string(), "progress_notify": true,
        }});
        let stream = client(endpoint);
        let opened =
            tokio::time::timeout(Duration::from_secs(5), stream.request_stream(post("/v3/watch", &create)));
        if let Ok(Ok(lines)) = opened.await {
            let mut lines = std::pin::pin!(lines.lines());
            // A paused etcd says nothing; another one may have what is new.
            while let Ok(Some(Ok(line))) = tokio::time::timeout(Duration::from_secs(5), lines.next()).await {
                let Ok(Line { result }) = serde_json::from_str(&line) else { break };
                let lost = result.compact_revision.and_then(|revision| revision.parse::<Revision>().ok());
                if let Some(lost) = lost.filter(|revision| *revision > 0) {
                    told.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(lost);
                    return;
                }
                for event in result.events {
                    let Some(change) = event.change(&prefix) else { continue };
                    from = change.revision + 1;
                    told.lock().unwrap_or_else(PoisonError::into_inner).changes.push(change);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[derive(Deserialize)]
struct Line {
    result: Answer,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    events: Vec<Event>,
    compact_revision: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    kv: Entry,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    mod_revision: String,
    #[serde(default)]
    value: String,
}

impl Event {
    fn change(&self, prefix: &str) -> Option<Change> {
        let key = String::from_utf8(decoded(&self.kv.key)).ok()?;
        let revision = self.kv.mod_revision.parse().ok()?;
        let name = key.strip_prefix(prefix)?.to_owned();
        let now = (self.kind != "DELETE").then(|| {
            let object: Value = serde_json::from_slice(&decoded(&self.kv.value)).unwrap_or_default();
            version(&object, revision)
        });
        Some(Change { revision, name, now })
    }
}

/// Returns what is compared of an object.
pub fn version(object: &Value, revision: Revision) -> Version {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or("").to_owned();
    let data = object.get("data").and_then(Value::as_object);
    let fields: Fields = data
        .into_iter()
        .flatten()
        .map(|(field, value)| (field.clone(), value.as_str().unwrap_or("").to_owned()))
        .collect();
    Version { uid, revision, fields }
}

fn decoded(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap_or_default()
}

fn number(value: Option<&Value>) -> Revision {
    value.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn client(endpoint: &str) -> Client {
    crate::install_tls();
    let mut config = kube::Config::new(endpoint.parse().expect("an address"));
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

fn post(path: &str, body: &Value) -> http::Request<Vec<u8>> {
    http::Request::post(path)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a request")
}
