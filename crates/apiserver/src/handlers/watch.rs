//! Watches: every event of the selected objects, in order, each exactly once.
//!
//! A watch is a cursor into the store's history, so a slow client costs only its connection. Failures after the request was
//! understood are reported inside the stream, as reflectors expect.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::pointer;
use apimachinery::status::Status;
use bytes::Bytes;
use futures::FutureExt;
use http::Response;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::Context;
use super::list::{Selection, check_options};
use super::table;
use crate::clock;
use crate::conversion;
use crate::head::Head;
use crate::http::body::Body;
use crate::http::negotiate::{Accepted, Media, Offer, Shape};
use crate::http::respond;
use crate::http::sending::Manner;
pub use crate::http::sending::Outbox;
use crate::metrics::DurationLabels;
use crate::object::{self, Entry};
use crate::registry::Kind;
use crate::server::Server;

/// The longest watch. Clients may ask for longer ones, but clocks do not reach that far.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Events are combined into pieces of up to this size.
const PIECE: usize = 64 * 1024;
/// The minimum time, for each watch of a kind, between two batches of events: if a kind has many watches and changes all the
/// time, events are sent less often, and in larger batches.
const TURN: Duration = Duration::from_micros(400);
/// Up to this many watches get every event immediately.
const AT_ONCE: i64 = 10;
/// The approximate maximum of the wait.
const AT_MOST: Duration = Duration::from_millis(500);
/// How often an idle watch gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// All existing objects first, no older than this revision.
    Everything { at_least: u64 },
    /// Changes after this revision.
    After(u64),
    /// Changes from now on.
    Now { at_least: u64 },
}

/// Answers a watch.
pub async fn watch(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept(Offer {
        protobuf: !kind.is_custom(),
        yaml: true,
        table: true,
        metadata: true,
        metadata_list: false,
        native: !kind.is_custom(),
    })?;
    if accepted.media == Media::Yaml {
        return Err(Status::not_acceptable(
            "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
        ));
    }
    check_options(context, true)?;
    let selection = Selection::parse(context, kind, namespace)?;
    let start = parse_start(context)?;
    let include = match accepted.shape {
        Shape::Table { .. } => table::Include::parse(context)?,
        _ => table::Include::None,
    };
    let deadline = clock::in_future(timeout(context)?);
    // A full queue only holds the cursor back; no event is lost.
    let (outbox, response) = answer(server, context, accepted.media);
    let stream = Stream {
        server: server.clone(),
        kind: kind.clone(),
        selection,
        accepted,
        include,
        bookmarks: context.query.flag("allowWatchBookmarks"),
        deadline,
        outbox,
        buffer: Vec::new(),
        first_table: true,
    };
    server.watches.spawn(stream.run(start));
    Ok(response)
}

/// Returns the answer to a watch and the queue that feeds it. The queue's content is charged to the user of the answer. If that
/// is too much, unread watches end.
pub fn answer(server: &Server, context: &Context, media: Media) -> (Outbox, Response<Body>) {
    let (farewell, content_type): (fn() -> Bytes, _) = match media {
        Media::Protobuf => (|| farewell(Media::Protobuf), "application/vnd.kubernetes.protobuf;stream=watch"),
        _ => (|| farewell(Media::Json), "application/json"),
    };
    let (outbox, body) = server.sendings.queue(context.recipient.clone(), farewell);
    let mut response = respond::stream(200, body, content_type);
    response.extensions_mut().insert(Manner::Counted);
    (outbox, response)
}

fn parse_start(context: &Context) -> Result<Start, Status> {
    let version = context.query.text("resourceVersion");
    let revision = if version.is_empty() {
        0
    } else {
        version.parse::<u64>().map_err(|_| {
            Status::bare_internal(format!(
                "resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing {version:?}: invalid syntax"
            ))
        })?
    };
    Ok(match context.query.get("sendInitialEvents").filter(|value| !value.is_empty()) {
        Some(_) if context.query.flag("sendInitialEvents") => Start::Everything { at_least: revision },
        Some(_) if revision == 0 => Start::Now { at_least: 0 },
        Some(_) => Start::After(revision),
        None if revision == 0 => Start::Everything { at_least: 0 },
        None => Start::After(revision),
    })
}

fn timeout(context: &Context) -> Result<Duration, Status> {
    let seconds = context.query.text("timeoutSeconds");
    if seconds.is_empty() {
        // Random, so that the watches of a restarted client do not end at the same time.
        return Ok(Duration::from_secs(rand::random_range(1800..3600)));
    }
    let seconds: i64 = seconds
        .parse()
        .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {seconds:?}: invalid syntax")))?;
    Ok(match u64::try_from(seconds) {
        Err(_) | Ok(0) => Duration::from_secs(rand::random_range(1800..3600)),
        Ok(seconds) => Duration::from_secs(seconds).min(LONGEST),
    })
}

/// The client has gone, or the stream has ended.
struct Closed;

struct Stream {
    server: Arc<Server>,
    kind: Arc<Kind>,
    selection: Selection,
    accepted: Accepted,
    include: table::Include,
    bookmarks: bool,
    deadline: Instant,
    outbox: Outbox,
    buffer: Vec<u8>,
    first_table: bool,
}

impl Stream {
    async fn run(mut self, start: Start) {
        let labels = DurationLabels {
            verb: "WATCH".to_owned(),
            group: self.kind.gvk.group.clone(),
            version: self.kind.gvk.version.clone(),
            resource: self.kind.resource.resource.clone(),
        };
        let open = self.server.metrics.long_running.get_or_create_owned(&labels);
        open.inc();
        // An error means that the client is gone.
        let _ = self.follow(start, &open).await;
        open.dec();
    }

    async fn follow(&mut self, start: Start, open: &Gauge) -> Result<(), Closed> {
        let mut watch = match self.begin(start).await {
            Ok(watch) => watch,
            Err(status) => {
                self.error(&status);
                self.flush();
                return Ok(());
            }
        };
        self.flush();
        let stop = self.server.stop.clone();
        let definition = self.kind.custom().cloned();
        let retired = async {
            match &definition {
                Some(custom) => custom.retired.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(retired);
        // The last bookmark is sent shortly before the end, so that the client resumes where it stopped.
        let last_bookmark = self.deadline.checked_sub(Duration::from_secs(2)).unwrap_or(self.deadline);
        let mut last_sent = last_bookmark <= Instant::now();
        let mut next_bookmark = clock::in_future(jittered(BOOKMARK_EVERY));
        // The next batch is sent at this moment at the earliest.
        let mut rest = Instant::now();
        loop {
            let batch = async {
                tokio::time::sleep_until(rest).await;
                watch.next().await
            };
            let bookmark_at = if last_sent { next_bookmark } else { next_bookmark.min(last_bookmark) };
            tokio::select! {
                batch = batch => match batch {
                    Ok(batch) => {
                        rest = clock::in_future(turn(open.get()));
                        if self.batch(&batch).await?.is_break() {
                            return Ok(());
                        }
                    }
                    Err(store::Lost::Behind { oldest }) => {
                        self.error(&too_old(watch.progress(), oldest));
                        self.flush();
                        return Ok(());
                    }
                    Err(_) => return Ok(()),
                },
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                    self.room().await?;
                    self.bookmark(watch.progress(), false);
                    self.flush();
                    last_sent |= Instant::now() >= last_bookmark;
                    next_bookmark = clock::in_future(jittered(BOOKMARK_EVERY));
                }
                () = tokio::time::sleep_until(self.deadline) => return Ok(()),
                () = self.outbox.closed() => return Err(Closed),
                () = stop.cancelled() => return Ok(()),
                () = &mut retired => {
                    // Earlier events are still sent.
                    while let Some(Ok(batch)) = watch.next().now_or_never() {
                        if self.batch(&batch).await?.is_break() {
                            break;
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Sends a batch of events; an error is sent and then ends the stream.
    async fn batch(&mut self, events: &[Arc<store::Event<Head>>]) -> Result<ControlFlow<()>, Closed> {
        for event in events {
            if self.buffer.is_empty() {
                self.room().await?;
            }
            if let Err(status) = self.event(event).await {
                self.error(&status);
                self.flush();
                return Ok(ControlFlow::Break(()));
            }
            if self.buffer.len() > PIECE {
                self.flush();
            }
        }
        self.flush();
        Ok(ControlFlow::Continue(()))
    }

    /// Sends the existing objects and returns the cursor for the events after them.
    async fn begin(&mut self, start: Start) -> Result<store::Watch<Head>, Status> {
        let collection = self.kind.collection.clone();
        let after = match start {
            Start::After(revision) => {
                // A client cannot know a future revision, so this one is from a store that was lost, and the client would mistake
                // new changes for old ones.
                if self.server.wait_for(revision).await.is_err() {
                    return Err(ahead(revision, self.server.store.revision()));
                }
                revision
            }
            Start::Now { at_least } => at_least.max(self.server.store.revision()),
            Start::Everything { at_least } => {
                self.server.wait_for(at_least).await?;
                let snapshot = self.server.store.snapshot(&collection);
                if self.kind.is_converted() {
                    let selected = snapshot.iter().filter(|entry| self.selection.matches_head(entry));
                    let entries = selected.cloned().collect();
                    let entries = conversion::entries(&self.server, &self.kind, entries).await?;
                    self.send_all(entries.iter()).await?;
                } else {
                    self.send_all(snapshot.iter()).await?;
                }
                if self.bookmarks {
                    self.bookmark(snapshot.revision(), true);
                }
                snapshot.revision()
            }
        };
        self.server.store.watch(&collection, after).map_err(|compacted| too_old(after, compacted.oldest))
    }

    /// Sends those of the existing objects that are selected.
    async fn send_all(&mut self, entries: impl Iterator<Item = &Arc<Entry>> + Send) -> Result<(), Status> {
        for entry in entries {
            if self.selection.matches(&self.kind, entry) {
                if self.buffer.is_empty() && self.room().await.is_err() {
                    return Ok(());
                }
                self.send("ADDED", entry, entry.modified)?;
                if self.buffer.len() > PIECE {
                    self.flush();
                }
            }
        }
        Ok(())
    }

    /// Sends what an event means for this watch: objects enter its selection, change in it, or leave it.
    async fn event(&mut self, event: &store::Event<Head>) -> Result<(), Status> {
        let (mut before, mut after) = (event.previous.clone(), event.current.clone());
        if self.kind.is_converted() {
            for entry in [&mut before, &mut after].into_iter().flatten() {
                if self.selection.matches_head(entry) {
                    *entry = conversion::entry(&self.server, &self.kind, entry.clone()).await?;
                }
            }
        }
        let selected = |entry: &Arc<Entry>| self.selection.matches(&self.kind, entry);
        let (before, after) = (before.filter(selected), after.filter(selected));
        match (before, after) {
            (None, Some(entry)) => self.send("ADDED", &entry, event.revision),
            (Some(_), Some(entry)) => self.send("MODIFIED", &entry, event.revision),
            (Some(entry), None) => self.send("DELETED", &entry, event.revision),
            (None, None) => Ok(()),
        }
    }

    fn send(&mut self, what: &str, entry: &Entry, revision: u64) -> Result<(), Status> {
        if self.accepted.media == Media::Json
            && self.accepted.shape == Shape::Object
            && self.kind.serves_as_stored(entry)
        {
            self.buffer.extend_from_slice(b"{\"type\":\"");
            self.buffer.extend_from_slice(what.as_bytes());
            self.buffer.extend_from_slice(b"\",\"object\":");
            object::write_full(
                &mut self.buffer,
                &self.kind.api_version,
                &self.kind.gvk.kind,
                entry,
                revision,
            );
            self.buffer.extend_from_slice(b"}\n");
            return Ok(());
        }
        let mut object = self.server.read(&self.kind, entry)?;
        object::stamp(&mut object, &self.kind.api_version, &self.kind.gvk.kind, Some(revision));
        let document = match self.accepted.shape {
            Shape::Object => object,
            Shape::Table { beta } => {
                let first = std::mem::take(&mut self.first_table);
                table::event(&self.server, &self.kind, object, self.include, beta, first)
            }
            Shape::Metadata { beta } | Shape::MetadataList { beta } => table::partial(&object, beta),
        };
        self.frame(what, &document);
        Ok(())
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) {
        let (api_version, kind) = match self.accepted.shape {
            Shape::Metadata { beta } | Shape::MetadataList { beta } => {
                (table::version(beta), "PartialObjectMetadata")
            }
            _ => (self.kind.api_version.as_str(), self.kind.gvk.kind.as_str()),
        };
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            pointer::set(&mut metadata, "annotations", json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        let document = match self.accepted.shape {
            Shape::Table { beta } => {
                let custom = self.kind.is_custom();
                let mut table =
                    table::event(&self.server, &self.kind, object.clone(), self.include, beta, false);
                if custom {
                    pointer::set(&mut table, "rows", json!([{"cells": [], "object": object}]));
                } else if initial_end && self.include == table::Include::None {
                    // Without the marker, the client could not know where the initial events end.
                    if let Some(row) = table.pointer_mut("/rows/0") {
                        pointer::set(row, "object", table::partial(&object, beta));
                    }
                }
                table
            }
            _ => object,
        };
        self.frame("BOOKMARK", &document);
    }

    fn error(&mut self, status: &Status) {
        self.frame("ERROR", &status.to_value());
    }

    fn frame(&mut self, what: &str, document: &Value) {
        frame(&mut self.buffer, self.accepted.media, what, document);
    }

    /// Waits until there is room for more. Nothing is prepared before that, since prepared events take memory.
    async fn room(&mut self) -> Result<(), Closed> {
        if self.outbox.has_room() {
            return Ok(());
        }
        // A client that has stopped reading delays only itself, and only for the duration of its watch.
        tokio::select! {
            biased;
            () = self.outbox.closed() => Err(Closed),
            () = self.outbox.room() => Ok(()),
            () = tokio::time::sleep_until(self.deadline) => Err(Closed),
            () = self.server.stop.cancelled() => Err(Closed),
        }
    }

    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            self.outbox.push(std::mem::take(&mut self.buffer).into());
        }
    }
}

/// Writes an event.
pub fn frame(buffer: &mut Vec<u8>, media: Media, what: &str, document: &Value) {
    match media {
        Media::Protobuf => {
            match respond::encode(document, Accepted { media: Media::Protobuf, ..Accepted::JSON }) {
                Ok(enveloped) => buffer.extend_from_slice(&native::proto::watch_frame(what, &enveloped)),
                Err(error) => tracing::warn!(%error, "cannot encode a watch event"),
            }
        }
        _ => {
            // In this order: readers of a stream want to know the type before the object.
            buffer.extend_from_slice(b"{\"type\":\"");
            buffer.extend_from_slice(what.as_bytes());
            buffer.extend_from_slice(b"\",\"object\":");
            serde_json::to_writer(&mut *buffer, document).expect("a tree can be written to memory");
            buffer.extend_from_slice(b"}\n");
        }
    }
}

/// Returns the last event of a watch that ends because its client reads too slowly.
fn farewell(media: Media) -> Bytes {
    let status = Status::too_many_requests(
        "the watch ended: it was not read, and too many bytes are waiting to be read by this user",
        1,
    );
    let mut buffer = Vec::new();
    frame(&mut buffer, media, "ERROR", &status.to_value());
    buffer.into()
}

/// Returns how long a watch waits before it sends more, given the number of other watches. The waits differ, so that the watches
/// do not all send at once.
fn turn(watches: i64) -> Duration {
    let waiting = u32::try_from(watches.saturating_sub(AT_ONCE)).unwrap_or(0);
    TURN.saturating_mul(waiting).min(AT_MOST).mul_f64(rand::random_range(0.5..1.5))
}

fn too_old(asked: u64, oldest: u64) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The error for a watch from a revision that this store has not reached. Clients list again, as after a 410 for an old one.
fn ahead(asked: u64, current: u64) -> Status {
    Status::expired(format!(
        "resource version {asked} is ahead of the store, which is at {current}: list again"
    ))
}

fn jittered(period: Duration) -> Duration {
    period.saturating_add(Duration::from_millis(rand::random_range(0..1000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_watches_take_turns() {
        assert_eq!(turn(0), Duration::ZERO);
        assert_eq!(turn(AT_ONCE), Duration::ZERO);
        let of_hundred = turn(AT_ONCE + 100);
        assert!(of_hundred >= TURN * 50 && of_hundred <= TURN * 150, "{of_hundred:?}");
        assert!(turn(1_000_000) <= AT_MOST * 2);
    }
}
