//! Watches over the fleet.
//!
//! A reader of the kind's log ([`fleet::watch`]) for each watch; what is written waits in a channel of a few pieces, so that a slow client
//! holds up nobody but itself and is told to list again when it falls out of the log. What waits is charged to its user, and whoever
//! lets too much wait loses watches that are not read. Each event carries a version to go on from. What
//! the caller may see is asked again every minute: when that has changed, the watch ends, and the client lists anew.

use std::sync::Arc;
use std::time::Duration;

use ::fleet::entry::Shown;
use ::fleet::watch::Told;
use ::fleet::{Cache, Entry, Start, Versions, Watch};
use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::handlers::context::Charge;
use apiserver::handlers::list::{Selection, check_options, object_offer};
use apiserver::handlers::table;
use apiserver::http::negotiate::{Accepted, Media, Offer, Shape};
use apiserver::http::{Body, body, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::reading::{add_clusters, is_selected};
use super::rights::{Rights, Seen, Wish};
use super::{Asked, Doors};

/// How many pieces wait for a client.
const WAITING: usize = 4;
/// Events are put into one piece up to this size.
const PIECE: usize = 64 * 1024;
/// How often an idle watch is told how far it has come, and how often rights are asked for again.
const MINUTE: Duration = Duration::from_secs(60);
const LONGEST: u64 = 365 * 24 * 3600;

impl Doors {
    pub(super) async fn watch(&self, asked: &Asked<'_>) -> Result<Response<Body>, Status> {
        let kind = &asked.kind;
        let accepted = asked.inner.accept(Offer { metadata_list: false, ..object_offer(kind) })?;
        if accepted.media == Media::Yaml {
            return Err(Status::not_acceptable(
                "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            ));
        }
        check_options(&asked.inner, true)?;
        let selection = Selection::parse(&asked.inner, kind, &asked.namespace)?;
        let include = match accepted.shape {
            Shape::Table { .. } => table::Include::parse(&asked.inner)?,
            _ => table::Include::None,
        };
        let query = &asked.inner.query;
        let versions = Versions::parse(query.text("resourceVersion"));
        let initial = query.get("sendInitialEvents").filter(|text| !text.is_empty());
        let start = match initial {
            Some(_) if query.flag("sendInitialEvents") => Start::Everything,
            Some(_) if versions.is_empty() => Start::Now,
            None if versions.is_empty() => Start::Everything,
            _ => Start::After(versions),
        };
        let lasts = lasts(query.text("timeoutSeconds"))?;
        asked.cache.ready().await;
        let seen = self.seen(asked, "watch").await;
        if seen.is_refused() {
            return Err(asked.forbidden("watch"));
        }
        asked.warn(&seen);
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = Writer {
            server: asked.server.clone(),
            accepted,
            include,
            buffer: Vec::new(),
            first_table: true,
            kind: kind.clone(),
            fleet_kind: asked.cache.kind.clone(),
        };
        let answered = Watch::begin(&asked.cache, start.clone()).await;
        let bookmarks = query.flag("allowWatchBookmarks");
        // Only whoever asked for it is told where the beginning ends.
        let mark_end = bookmarks && start == Start::Everything;
        let rights = Again {
            rights: self.rights.clone(),
            fleet: self.fleet.clone(),
            user: asked.outer.user.clone(),
            wish: asked.wish("watch"),
        };
        let cache = asked.cache.clone();
        let ends = Instant::now() + lasts;
        let charge = asked.outer.charge();
        let stream =
            Stream { cache, selection, seen, rights, writer, sender, charge, bookmarks, mark_end, ends };
        match answered {
            Ok(watch) => {
                asked.server.watches.spawn(async move {
                    // An error means that nobody is listening any more.
                    let _ = stream.run(watch).await;
                });
            }
            Err(lost) => {
                let Stream { mut writer, sender, .. } = stream;
                writer.frame("ERROR", &Status::expired(lost.to_string()).to_value());
                let _ = sender.try_send(writer.buffer.into());
            }
        }
        let pieces = futures::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async {
            let piece = receiver.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(Frame::data(piece)), receiver))
        });
        let content_type = match accepted.media {
            Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
            _ => "application/json",
        };
        Ok(respond::stream(200, body::passed(StreamBody::new(pieces)), content_type))
    }
}

fn lasts(seconds: &str) -> Result<Duration, Status> {
    let chance = || Duration::from_secs(rand::random_range(1800..3600));
    if seconds.is_empty() {
        return Ok(chance());
    }
    let bad = |_| Status::bad_request(format!("strconv.ParseInt: parsing {seconds:?}: invalid syntax"));
    let number: i64 = seconds.parse().map_err(bad)?;
    Ok(match u64::try_from(number) {
        Err(_) | Ok(0) => chance(),
        Ok(number) => Duration::from_secs(number.min(LONGEST)),
    })
}

/// What the caller may see, to be asked again.
struct Again {
    rights: Arc<Rights>,
    fleet: Arc<::fleet::Fleet>,
    user: Arc<User>,
    wish: Wish,
}

/// The client has gone.
struct Closed;

struct Stream {
    cache: Arc<Cache>,
    selection: Selection,
    seen: Seen,
    rights: Again,
    writer: Writer,
    sender: mpsc::Sender<Bytes>,
    charge: Charge,
    bookmarks: bool,
    mark_end: bool,
    ends: Instant,
}

impl Stream {
    async fn run(mut self, mut watch: Watch) -> Result<(), Closed> {
        let stop = self.writer.server.stop.clone();
        let mut next_bookmark = Instant::now() + MINUTE;
        let mut next_look = Instant::now() + MINUTE;
        let last_bookmark = self.ends.checked_sub(Duration::from_secs(2)).unwrap_or(self.ends);
        let mut last_sent = last_bookmark <= Instant::now();
        let mut text = Text::default();
        loop {
            let bookmark_at = if last_sent { next_bookmark } else { next_bookmark.min(last_bookmark) };
            if self.mark_end && watch.has_begun() {
                self.mark_end = false;
                self.bookmark(&mut watch, true);
                self.flush().await?;
            }
            let mut told = Vec::new();
            tokio::select! {
                outcome = watch.next(|event, versions| told.push((event, text.of(versions)))) => {
                    for (event, version) in told {
                        self.event(&event, &version);
                        if self.writer.buffer.len() > PIECE {
                            self.flush().await?;
                        }
                    }
                    if let Err(lost) = outcome {
                        self.writer.frame("ERROR", &Status::expired(lost.to_string()).to_value());
                        return self.flush().await;
                    }
                    self.flush().await?;
                }
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                    self.bookmark(&mut watch, false);
                    self.flush().await?;
                    last_sent |= Instant::now() >= last_bookmark;
                    next_bookmark = Instant::now() + MINUTE;
                }
                () = tokio::time::sleep_until(next_look) => {
                    let Again { rights, fleet, user, wish } = &self.rights;
                    if rights.seen(fleet, user, &self.cache.clusters(), wish).await != self.seen {
                        let why = "what you may see of the fleet has changed: list again";
                        self.writer.frame("ERROR", &Status::expired(why).to_value());
                        return self.flush().await;
                    }
                    next_look = Instant::now() + MINUTE;
                }
                () = tokio::time::sleep_until(self.ends) => return Ok(()),
                () = self.sender.closed() => return Err(Closed),
                () = stop.cancelled() => return Ok(()),
                () = self.cache.closed.cancelled() => {
                    // What has gone with the last registry is still told.
                    let mut told = Vec::new();
                    let _ = watch.tell_ready(&mut |event, versions: &Versions| told.push((event, text.of(versions))));
                    for (event, version) in told {
                        self.event(&event, &version);
                    }
                    return self.flush().await;
                }
            }
        }
    }

    /// Writes what an event means to this watch: objects come into its selection, change in it, or leave it.
    fn event(&mut self, told: &Told, version: &str) {
        let cluster = &told.place.cluster;
        if !self.seen.has(cluster) {
            return;
        }
        let (kind, fleet_kind) = (self.writer.kind.clone(), &self.cache.kind);
        let selected = |entry: &&Arc<Entry>| is_selected(&kind, fleet_kind, &self.selection, cluster, entry);
        let (before, after) = (told.old.as_ref().filter(selected), told.new.as_ref().filter(selected));
        match (before, after) {
            (None, Some(entry)) => self.writer.object("ADDED", cluster, entry, version),
            (Some(_), Some(entry)) => self.writer.object("MODIFIED", cluster, entry, version),
            (Some(entry), None) => self.writer.object("DELETED", cluster, entry, version),
            (None, None) => {}
        }
    }

    fn bookmark(&mut self, watch: &mut Watch, initial_end: bool) {
        let version = watch.progress().to_string();
        self.writer.bookmark(&version, initial_end);
    }

    /// Sends what is written, once there is room.
    async fn flush(&mut self) -> Result<(), Closed> {
        if self.writer.buffer.is_empty() {
            return Ok(());
        }
        if self.charge.is_over() && self.sender.capacity() < WAITING {
            let why =
                "the watch ended: it was not read, and too many bytes are waiting to be read by this user";
            self.writer.buffer.clear();
            self.writer.frame("ERROR", &Status::too_many_requests(why, 1).to_value());
            let _ = self.sender.try_send(std::mem::take(&mut self.writer.buffer).into());
            return Err(Closed);
        }
        let piece = self.charge.of(std::mem::take(&mut self.writer.buffer).into());
        tokio::select! {
            sent = self.sender.send(piece) => sent.map_err(|_| Closed),
            () = tokio::time::sleep_until(self.ends) => Err(Closed),
            () = self.writer.server.stop.cancelled() => Err(Closed),
        }
    }
}

/// The version beside an event as text, made when it is another one: what is there in the beginning has few.
#[derive(Default)]
struct Text {
    versions: Versions,
    text: Arc<str>,
}

impl Text {
    fn of(&mut self, versions: &Versions) -> Arc<str> {
        if self.versions != *versions {
            self.versions = versions.clone();
            self.text = versions.to_string().into();
        }
        self.text.clone()
    }
}

/// Writes events in the form that the client accepts.
struct Writer {
    server: Arc<Server>,
    kind: Arc<Kind>,
    fleet_kind: ::fleet::Kind,
    accepted: Accepted,
    include: table::Include,
    buffer: Vec<u8>,
    first_table: bool,
}

impl Writer {
    fn object(&mut self, what: &str, cluster: &str, entry: &Entry, version: &str) {
        let shown = Shown { cluster, version, stale: None };
        if self.accepted.media == Media::Json && self.accepted.shape == Shape::Object {
            self.buffer.extend_from_slice(b"{\"type\":\"");
            self.buffer.extend_from_slice(what.as_bytes());
            self.buffer.extend_from_slice(b"\",\"object\":");
            entry.write(&mut self.buffer, &self.fleet_kind, &shown);
            self.buffer.extend_from_slice(b"}\n");
            return;
        }
        let object = entry.to_value(&self.fleet_kind, &shown);
        let document = match self.accepted.shape {
            Shape::Object => object,
            Shape::Table { beta } => {
                let first = std::mem::take(&mut self.first_table);
                let mut table = table::event(&self.server, &self.kind, object, self.include, beta, first);
                add_clusters(&mut table, [cluster]);
                table
            }
            Shape::Metadata { beta } | Shape::MetadataList { beta } => table::partial(&object, beta),
        };
        self.frame(what, &document);
    }

    fn bookmark(&mut self, version: &str, initial_end: bool) {
        let (api_version, kind) = match self.accepted.shape {
            Shape::Metadata { beta } | Shape::MetadataList { beta } => {
                (table::version(beta), "PartialObjectMetadata")
            }
            _ => (self.kind.api_version.as_str(), self.kind.gvk.kind.as_str()),
        };
        let mut metadata = json!({"resourceVersion": version});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        let document = match self.accepted.shape {
            Shape::Table { beta } => {
                let mut table =
                    table::event(&self.server, &self.kind, object.clone(), self.include, beta, false);
                table["rows"] = json!([{"cells": [], "object": object}]);
                table
            }
            _ => object,
        };
        self.frame("BOOKMARK", &document);
    }

    fn frame(&mut self, what: &str, document: &Value) {
        if self.accepted.media == Media::Protobuf {
            match respond::encode(document, Accepted { media: Media::Protobuf, ..Accepted::JSON }) {
                Ok(bytes) => self.buffer.extend_from_slice(&native::proto::watch_frame(what, &bytes)),
                Err(error) => tracing::warn!(%error, "cannot encode a watch event"),
            }
            return;
        }
        self.buffer.extend_from_slice(b"{\"type\":\"");
        self.buffer.extend_from_slice(what.as_bytes());
        self.buffer.extend_from_slice(b"\",\"object\":");
        self.buffer.extend_from_slice(document.to_string().as_bytes());
        self.buffer.extend_from_slice(b"}\n");
    }
}
