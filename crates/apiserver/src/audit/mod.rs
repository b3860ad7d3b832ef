//! The audit log: who requested what, when, and with which result, as `audit.k8s.io/v1` events, one JSON line each.
//!
//! The `policy` decides which requests are recorded, and in how much detail. Lines are written in the background (see `log`). A
//! log that cannot keep up loses lines and counts them; it delays requests only if it is configured to.

mod log;
mod policy;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use apimachinery::pointer;
use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, USER_AGENT};
use http::{Response, Uri};
use http_body_util::BodyExt;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};

use crate::auth::User;
use crate::http::RequestInfo;
use crate::http::body::{self, Body};
pub use log::Rotation;
use policy::{Level, Policy, Stage};

/// Larger bodies are left out of the log, as upstream leaves out what it cannot hold.
const MAX_OBJECT: usize = 1_500_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the audit policy {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the audit policy {path} is not valid: {reason}")]
    Policy { path: PathBuf, reason: String },
    #[error("cannot write the audit log {path}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// Where audit events go, and which ones are recorded.
#[derive(Debug, Clone)]
pub struct Options {
    /// A policy as for kube-apiserver; without one, all requests are recorded, without their content.
    pub policy: Option<PathBuf>,
    /// The file to write to; `-` is the standard output.
    pub path: PathBuf,
    pub rotation: Rotation,
    /// Answers a request only after it has been recorded, as kube-apiserver does by default. Otherwise lines are written in the
    /// background, and a slow disk delays no request.
    pub blocking: bool,
}

/// The audit log of a server.
#[derive(Debug)]
pub struct Audit {
    policy: Policy,
    log: log::Log,
    blocking: bool,
}

impl Audit {
    pub fn open(options: &Options, lost: Counter<u64, AtomicU64>) -> Result<Self, Error> {
        let policy = match &options.policy {
            None => Policy::metadata(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| Error::Read { path: path.clone(), source })?;
                Policy::parse(&text).map_err(|reason| Error::Policy { path: path.clone(), reason })?
            }
        };
        let log = log::Log::open(&options.path, options.rotation, lost)
            .map_err(|source| Error::Write { path: options.path.clone(), source })?;
        Ok(Self { policy, log, blocking: options.blocking })
    }
}

/// The record of one request; `None` if the policy skips it.
pub(crate) struct Record {
    audit: Arc<Audit>,
    level: Level,
    rule: policy::Decision,
    event: Value,
    /// For the next line, if the answer must not wait until it is written.
    place: Option<log::Place>,
}

/// Where a request comes from.
pub(crate) struct Origin<'a> {
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) address: Option<std::net::IpAddr>,
}

impl Record {
    /// Starts the record of a request, if the policy wants one.
    pub(crate) fn begin(
        audit: &Arc<Audit>,
        id: &str,
        info: &RequestInfo,
        user: &User,
        origin: &Origin<'_>,
    ) -> Option<Self> {
        let rule = audit.policy.decide(user, info);
        if rule.level == Level::None {
            return None;
        }
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": rule.level.name(),
            "auditID": id,
            "requestURI": origin.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str),
            "verb": info.verb,
            "user": user.to_value(),
            "sourceIPs": sources(origin),
            "requestReceivedTimestamp": micros(Timestamp::now()),
        });
        if let Some(agent) = origin.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()) {
            pointer::set(&mut event, "userAgent", json!(agent));
        }
        if info.is_resource {
            pointer::set(&mut event, "objectRef", object_reference(info));
        }
        let record = Self { audit: audit.clone(), level: rule.level, rule, event, place: None };
        record.write(Stage::RequestReceived);
        Some(record)
    }

    /// Notes that the caller impersonates another user, and which narrow right allowed it, if it was one.
    pub(crate) fn impersonated(&mut self, user: &User, constraint: &str) {
        pointer::set(&mut self.event, "impersonatedUser", user.to_value());
        if !constraint.is_empty() {
            pointer::set(
                &mut self.event,
                "authenticationMetadata",
                json!({ "impersonationConstraint": constraint }),
            );
        }
    }

    /// Notes the result of the authorisation, and which binding allowed the request.
    pub(crate) fn authorized(&mut self, allowed: bool, reason: &str) {
        self.annotate("authorization.k8s.io/decision", if allowed { "allow" } else { "forbid" });
        self.annotate("authorization.k8s.io/reason", reason);
    }

    fn annotate(&mut self, key: &str, value: &str) {
        pointer::set(pointer::object_at(&mut self.event, "annotations"), key, json!(value));
    }

    /// Returns whether the content of the request is recorded.
    pub(crate) fn wants_request(&self) -> bool {
        self.level >= Level::Request
    }

    /// Notes what the client sent.
    pub(crate) fn request(&mut self, body: &Bytes) {
        if self.wants_request()
            && body.len() <= MAX_OBJECT
            && !body.is_empty()
            && let Some(object) = readable(body)
        {
            let object = self.presentable(object);
            pointer::set(&mut self.event, "requestObject", object);
        }
    }

    fn presentable(&self, mut object: Value) -> Value {
        if self.rule.omit_managed_fields {
            let strip = |object: &mut Value| {
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.remove("managedFields");
                }
            };
            strip(&mut object);
            for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                strip(item);
            }
        }
        object
    }

    /// Completes the record along with the answer. A request that stays open, like a watch, is recorded when it starts and when
    /// it ends.
    pub(crate) async fn finish(
        mut self,
        response: Response<Body>,
        long_running: bool,
        annotations: BTreeMap<String, String>,
    ) -> Response<Body> {
        let audit = self.audit.clone();
        if audit.blocking {
            self.place = audit.log.reserve().await;
        }
        let response = self.conclude(response, long_running, annotations).await;
        if audit.blocking {
            audit.log.written().await;
        }
        response
    }

    async fn conclude(
        mut self,
        response: Response<Body>,
        long_running: bool,
        annotations: BTreeMap<String, String>,
    ) -> Response<Body> {
        for (key, value) in &annotations {
            self.annotate(key, value);
        }
        let code = response.status().as_u16();
        pointer::set(&mut self.event, "responseStatus", json!({"metadata": {}, "code": code}));
        if long_running {
            self.write_answered(Stage::ResponseStarted, None).await;
            return response.map(|body| body::holding(body, Ending(self)));
        }
        let failed = code >= 400;
        if self.level < Level::RequestResponse && !failed {
            self.write_answered(Stage::ResponseComplete, None).await;
            return response;
        }
        let (parts, body) = response.into_parts();
        let bytes = match collect(body).await {
            Ok(bytes) => bytes,
            Err(body) => {
                self.write_answered(Stage::ResponseComplete, None).await;
                return Response::from_parts(parts, body);
            }
        };
        let object = readable(&bytes);
        if let Some(status) = object.as_ref().filter(|object| object["kind"] == "Status") {
            let mut status = status.clone();
            if let Some(fields) = status.as_object_mut() {
                fields.remove("kind");
                fields.remove("apiVersion");
                // A Status that reports success has none.
                fields.insert("code".to_owned(), code.into());
            }
            pointer::set(&mut self.event, "responseStatus", status);
        }
        let object = object.filter(|_| self.level >= Level::RequestResponse);
        let object = object.map(|object| self.presentable(object));
        self.write_answered(Stage::ResponseComplete, object).await;
        Response::from_parts(parts, body::full(bytes))
    }

    /// Writes the line of an answer, in the place that was reserved for it.
    async fn write_answered(&mut self, stage: Stage, response: Option<Value>) {
        let place = self.place.take();
        let Some(event) = self.event_at(stage, response) else { return };
        match place {
            Some(place) => self.audit.log.write_at(place, &event).await,
            None => self.audit.log.write(&event),
        }
    }

    fn write(&self, stage: Stage) {
        if let Some(event) = self.event_at(stage, None) {
            self.audit.log.write(&event);
        }
    }

    /// Returns the event at a stage, unless the policy leaves it out.
    fn event_at(&self, stage: Stage, response: Option<Value>) -> Option<Value> {
        if self.rule.omits(stage) {
            return None;
        }
        let mut event = self.event.clone();
        pointer::set(&mut event, "stage", json!(stage.name()));
        pointer::set(&mut event, "stageTimestamp", json!(micros(Timestamp::now())));
        if let Some(response) = response {
            pointer::set(&mut event, "responseObject", response);
        }
        Some(event)
    }
}

/// Collects a body if it is known to be small enough; otherwise returns it unchanged.
async fn collect(mut body: Body) -> Result<Bytes, Body> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(broken) => return Err(body::chained(bytes.freeze(), body::failing(broken))),
        };
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > MAX_OBJECT {
            return Err(body::chained(bytes.freeze(), body));
        }
    }
    Ok(bytes.freeze())
}

/// Returns an object as JSON, whatever its encoding is.
fn readable(body: &[u8]) -> Option<Value> {
    if !native::proto::is_enveloped(body) {
        return serde_json::from_slice(body).ok();
    }
    native::proto::decode(body).ok().map(|(_, object)| object)
}

/// Notifies the log that an answer has ended, or that the client has gone.
struct Ending(Record);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.write(Stage::ResponseComplete);
    }
}

fn object_reference(info: &RequestInfo) -> Value {
    let fields = [
        ("resource", &info.resource),
        ("namespace", &info.namespace),
        ("name", &info.name),
        ("apiGroup", &info.group),
        ("apiVersion", &info.version),
        ("subresource", &info.subresource),
    ];
    fields.into_iter().filter(|(_, text)| !text.is_empty()).map(|(key, text)| (key, json!(text))).collect()
}

/// The addresses that a request says it passed through, and the one that it actually came from.
fn sources(origin: &Origin<'_>) -> Vec<String> {
    let named = |header: &str| {
        let values = origin.headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
        values
            .flat_map(|value| value.split(','))
            .filter_map(|text| text.trim().parse().ok())
            .collect::<Vec<std::net::IpAddr>>()
    };
    let mut all = named("x-forwarded-for");
    all.extend(named("x-real-ip"));
    all.extend(origin.address);
    all.dedup();
    all.iter().map(ToString::to_string).collect()
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
