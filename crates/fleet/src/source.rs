//! Requests to a member: pages of a list, and a watch. The member's client limits the answers.

use std::collections::VecDeque;
use std::ops::Range;

use apimachinery::weight::Weight;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use runtime::room::TooLarge;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Why a member's answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The version is too old: everything must be listed again.
    #[error("the member does not know what happened since")]
    Expired,
    /// Too many bytes at once; fewer objects may work.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("{code}: {message}")]
    Refused { code: u16, message: String },
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("its answer cannot be read: {0}")]
    Unreadable(String),
}

/// The memory that an object may take as parsed JSON; ordinary objects grow to twenty to thirty times their size.
const OBJECT_WEIGHT: usize = 64 << 20;
/// Objects up to this size are not estimated: none grows so much that it matters.
const SMALL: usize = 16 << 10;

/// A page of a list.
#[derive(Debug)]
pub struct Page {
    pub version: u64,
    /// The token for the next page; empty after the last.
    pub next: String,
    pub items: Items,
}

/// The objects of a page. Each is parsed when its turn comes: all of them at once would take several times the memory of their
/// text.
#[derive(Debug, Default)]
pub struct Items {
    body: Bytes,
    /// The position of the remaining objects in the body.
    parts: VecDeque<Range<usize>>,
}

impl Items {
    fn read(body: Bytes, parts: &[&RawValue]) -> Self {
        let place = |part: &&RawValue| {
            let start = (part.get().as_ptr() as usize).wrapping_sub(body.as_ptr() as usize);
            start..start.saturating_add(part.get().len())
        };
        let parts = parts.iter().map(place).collect();
        Self { body, parts }
    }
}

impl FromIterator<Value> for Items {
    fn from_iter<I: IntoIterator<Item = Value>>(objects: I) -> Self {
        let (mut body, mut parts) = (Vec::new(), VecDeque::new());
        for object in objects {
            let start = body.len();
            body.extend_from_slice(object.to_string().as_bytes());
            parts.push_back(start..body.len());
        }
        Self { body: body.into(), parts }
    }
}

impl Iterator for Items {
    type Item = Result<Value, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let part = self.body.get(self.parts.pop_front()?)?;
        if part.len() > SMALL && Weight::of(part) > OBJECT_WEIGHT {
            let limit = OBJECT_WEIGHT >> 20;
            let why = format!(
                "an object of {} bytes has so many parts that it becomes more than {limit} MiB",
                part.len()
            );
            return Some(Err(Error::Unreadable(why)));
        }
        Some(serde_json::from_slice(part).map_err(|error| Error::Unreadable(error.to_string())))
    }
}

/// An event of a watch.
#[derive(Debug, PartialEq)]
pub enum Event {
    Put(Value),
    Gone(Value),
    Progress(u64),
}

pub type Events = BoxStream<'static, Result<Event, Error>>;

/// A source of lists and watches.
pub trait Source: Send + Sync + 'static {
    fn list(&self, limit: u32, next: &str) -> BoxFuture<'_, Result<Page, Error>>;
    fn watch(&self, after: u64, seconds: u64) -> BoxFuture<'_, Result<Events, Error>>;
}

/// A collection of a member.
pub(crate) struct Collection {
    pub(crate) client: Client,
    pub(crate) path: String,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

impl Source for Collection {
    fn list(&self, limit: u32, next: &str) -> BoxFuture<'_, Result<Page, Error>> {
        let mut uri = format!("{}?limit={limit}", self.path);
        if !next.is_empty() {
            uri.push_str("&continue=");
            uri.push_str(&escaped(next));
        }
        Box::pin(async move {
            let body = self.send(&uri).await?.collect().await.map_err(broken)?.to_bytes();
            let list: List<'_> =
                serde_json::from_slice(&body).map_err(|error| Error::Unreadable(error.to_string()))?;
            let ListMeta { resource_version, next } = list.metadata;
            let version = resource_version.parse().map_err(|_| {
                Error::Unreadable(format!("its resource version {resource_version:?} is not a number"))
            })?;
            let parts = list.items.unwrap_or_default();
            Ok(Page { version, next, items: Items::read(body.clone(), &parts) })
        })
    }

    fn watch(&self, after: u64, seconds: u64) -> BoxFuture<'_, Result<Events, Error>> {
        let uri = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={after}&timeoutSeconds={seconds}",
            self.path
        );
        Box::pin(async move {
            let body = self.send(&uri).await?;
            let state = (body, BytesMut::new(), false);
            let lines = futures::stream::unfold(state, |(mut body, mut buffer, ended)| async move {
                // A long line arrives in many frames: the part that has been searched is not searched again.
                let mut searched = 0;
                loop {
                    let rest = buffer.get(searched..).unwrap_or_default();
                    if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                        let line = buffer.split_to(searched.saturating_add(end).saturating_add(1)).freeze();
                        return Some((read(&line), (body, buffer, ended)));
                    }
                    if ended {
                        return None;
                    }
                    searched = buffer.len();
                    match body.frame().await {
                        None => return None,
                        Some(Err(error)) => return Some((Err(broken(error)), (body, BytesMut::new(), true))),
                        Some(Ok(frame)) => {
                            if let Ok(data) = frame.into_data() {
                                buffer.extend_from_slice(&data);
                            }
                        }
                    }
                }
            });
            Ok(lines.boxed())
        })
    }
}

impl Collection {
    async fn send(&self, uri: &str) -> Result<kube::client::Body, Error> {
        let request = Request::get(uri).body(kube::client::Body::empty());
        let request = request.map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = self.client.send(request).await.map_err(broken)?;
        let code = response.status().as_u16();
        if code == 200 {
            return Ok(response.into_body());
        }
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        Err(refused(code, &body))
    }
}

fn refused(code: u16, body: &[u8]) -> Error {
    if code == 410 {
        return Error::Expired;
    }
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
    Error::Refused { code, message: message.chars().take(512).collect() }
}

fn broken(error: impl std::error::Error + 'static) -> Error {
    if let Some(found) = TooLarge::within(&error) {
        return Error::TooLarge(found.clone());
    }
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Error::Unreachable(cause.to_string())
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    what: String,
    object: Value,
}

fn read(line: &Bytes) -> Result<Event, Error> {
    let Line { what, object } =
        serde_json::from_slice(line).map_err(|error| Error::Unreadable(error.to_string()))?;
    match what.as_str() {
        "ADDED" | "MODIFIED" => Ok(Event::Put(object)),
        "DELETED" => Ok(Event::Gone(object)),
        "BOOKMARK" => {
            let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or("");
            let parsed =
                version.parse().map_err(|_| Error::Unreadable(format!("a bookmark at {version:?}")))?;
            Ok(Event::Progress(parsed))
        }
        "ERROR" => {
            let code = object.get("code").and_then(Value::as_u64);
            let code = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            Err(refused(code, object.to_string().as_bytes()))
        }
        other => Err(Error::Unreadable(format!("an event of type {other:?}"))),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Event, Error> {
        read(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_of_a_watch_are_read_or_refused() {
        assert!(matches!(line(r#"{"type":"ADDED","object":{"a":1}}"#), Ok(Event::Put(_))));
        assert!(matches!(line(r#"{"type":"DELETED","object":{}}"#), Ok(Event::Gone(_))));
        let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#;
        assert!(matches!(line(bookmark), Ok(Event::Progress(7))));
        assert!(matches!(line(r#"{"type":"ERROR","object":{"code":410}}"#), Err(Error::Expired)));
        let refused = line(r#"{"type":"ERROR","object":{"code":403,"message":"no"}}"#).unwrap_err();
        assert_eq!(refused.to_string(), "403: no");
        for odd in ["", "{}", "[]", r#"{"type":"NEWS","object":{}}"#, r#"{"type":"BOOKMARK","object":{}}"#] {
            assert!(matches!(line(odd), Err(Error::Unreadable(_))), "{odd}");
        }
    }

    #[test]
    fn finding_16_an_object_of_small_parts_is_not_made() {
        let small = format!(r#"{{"a":[{}0]}}"#, r#"{"":0},"#.repeat(1 << 17));
        let body = Bytes::from(format!("[{small}]"));
        let parts: Vec<&RawValue> = serde_json::from_slice(&body).unwrap();
        let mut items = Items::read(body.clone(), &parts);
        let Some(Err(Error::Unreadable(why))) = items.next() else { panic!("it is made") };
        assert!(why.contains("becomes more than 64 MiB"), "{why}");
        let mut items: Items = [serde_json::json!({"a": "{,[".repeat(1 << 20)})].into_iter().collect();
        assert!(matches!(items.next(), Some(Ok(_))), "text is what it is");
    }

    #[test]
    fn tokens_are_escaped() {
        assert_eq!(escaped("aZ09-._~"), "aZ09-._~");
        assert_eq!(escaped("a+b/c=&"), "a%2Bb%2Fc%3D%26");
    }
}
