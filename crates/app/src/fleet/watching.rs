//! Watches over the fleet.
//!
//! A reader of the kind's log ([`fleet::watch`]) for each watch. Its output waits in the same queue as that of the server's own
//! watches and is charged to its user. Nothing is written before there is room for it: a client that does not read delays only
//! itself, costs no more than its user's budget, must list again when it falls behind the log, and loses the watch when its user
//! is over the budget. Each event has a version to resume from, which contains the object's own. The caller's rights are checked
//! again every minute: when they have changed, the watch ends, and the client lists again.

use std::sync::Arc;
use std::time::Duration;

use ::fleet::entry::Shown;
use ::fleet::version::Around;
use ::fleet::watch::Told;
use ::fleet::{Cache, Entry, Place, Start, Versions, Watch};
use apimachinery::pointer;
use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::handlers::list::{Selection, check_options, object_offer};
use apiserver::handlers::table;
use apiserver::handlers::watch::{self, Outbox};
use apiserver::http::Body;
use apiserver::http::negotiate::{Accepted, Media, Offer, Shape};
use apiserver::registry::Kind;
use apiserver::server::Server;
use http::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::reading::{add_clusters, is_selected};
use super::rights::{Access, Rights, Seen};
use super::{Asked, Endpoints};

/// How often an idle watch gets a bookmark, and how often rights are checked again.
const MINUTE: Duration = Duration::from_secs(60);
const LONGEST: u64 = 365 * 24 * 3600;

impl Endpoints {
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
        let answered = Watch::begin(&asked.cache, start.clone()).await;
        let bookmarks = query.flag("allowWatchBookmarks");
        let (outbox, response) = watch::answer(asked.server, asked.outer, accepted.media);
        let writer = Writer {
            server: asked.server.clone(),
            accepted,
            include,
            buffer: Vec::new(),
            first_table: true,
            kind: kind.clone(),
            cache: asked.cache.clone(),
            selection,
            seen,
        };
        let rights = Again {
            rights: self.rights.clone(),
            fleet: self.fleet.clone(),
            user: asked.outer.user.clone(),
            access: asked.access("watch"),
        };
        let mut stream = Stream {
            rights,
            writer,
            outbox,
            bookmarks,
            // Only clients that asked for it get the mark at the end of the initial objects.
            mark_end: bookmarks && start == Start::Everything,
            ends: in_future(lasts),
        };
        match answered {
            Ok(watch) => {
                asked.server.watches.spawn(async move {
                    // An error means that the client is gone.
                    let _ = stream.run(watch).await;
                });
            }
            Err(lost) => stream.end(&lost.to_string()),
        }
        Ok(response)
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

/// Returns the moment after a duration from now.
fn in_future(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}

/// The rights of the caller, to be checked again.
struct Again {
    rights: Arc<Rights>,
    fleet: Arc<::fleet::Fleet>,
    user: Arc<User>,
    access: Access,
}

/// The client has gone.
struct Closed;

struct Stream {
    rights: Again,
    writer: Writer,
    outbox: Outbox,
    bookmarks: bool,
    mark_end: bool,
    ends: Instant,
}

impl Stream {
    async fn run(mut self, mut watch: Watch) -> Result<(), Closed> {
        let (stop, cache) = (self.writer.server.stop.clone(), self.writer.cache.clone());
        let mut next_bookmark = in_future(MINUTE);
        let mut next_look = in_future(MINUTE);
        let last_bookmark = self.ends.checked_sub(Duration::from_secs(2)).unwrap_or(self.ends);
        let mut last_sent = last_bookmark <= Instant::now();
        let mut text = Text::default();
        loop {
            let bookmark_at = if last_sent { next_bookmark } else { next_bookmark.min(last_bookmark) };
            if self.mark_end && watch.has_begun() {
                self.mark_end = false;
                self.room().await?;
                self.bookmark(&mut watch, true);
            }
            tokio::select! {
                biased;
                // Before any other event: a client may have paused the watch for long.
                () = tokio::time::sleep_until(next_look) => {
                    let Again { rights, fleet, user, access } = &self.rights;
                    if rights.seen(fleet, user, &cache.clusters(), access).await != self.writer.seen {
                        self.room().await?;
                        self.end("what you may see of the fleet has changed: list again");
                        return Ok(());
                    }
                    next_look = in_future(MINUTE);
                }
                () = tokio::time::sleep_until(self.ends) => return Ok(()),
                () = self.outbox.closed() => return Err(Closed),
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                    self.room().await?;
                    self.bookmark(&mut watch, false);
                    last_sent |= Instant::now() >= last_bookmark;
                    next_bookmark = in_future(MINUTE);
                }
                () = watch.ready() => {
                    self.room().await?;
                    if Instant::now() < next_look && !self.tell(&mut watch, &mut text) {
                        return Ok(());
                    }
                    // There may be many events that the watch does not select.
                    tokio::task::yield_now().await;
                }
                // The deletions after the last registry was removed have been sent.
                () = cache.closed.cancelled() => return Ok(()),
            }
        }
    }

    /// Sends the next piece. Returns whether the watch continues.
    fn tell(&mut self, watch: &mut Watch, text: &mut Text) -> bool {
        let writer = &mut self.writer;
        let told = watch.tell_ready(&mut |event, versions: &Versions| writer.event(&event, versions, text));
        if let Err(lost) = told {
            self.end(&lost.to_string());
            return false;
        }
        self.flush();
        true
    }

    /// Sends the last event: the client must list again.
    fn end(&mut self, why: &str) {
        self.writer.frame("ERROR", &Status::expired(why).to_value());
        self.flush();
    }

    fn bookmark(&mut self, watch: &mut Watch, initial_end: bool) {
        let version = watch.progress().to_string();
        self.writer.bookmark(&version, initial_end);
        self.flush();
    }

    /// Waits until there is room for more.
    async fn room(&self) -> Result<(), Closed> {
        if self.outbox.has_room() {
            return Ok(());
        }
        tokio::select! {
            biased;
            () = self.outbox.closed() => Err(Closed),
            () = self.outbox.room() => Ok(()),
            () = tokio::time::sleep_until(self.ends) => Err(Closed),
            () = self.writer.server.stop.cancelled() => Err(Closed),
        }
    }

    fn flush(&mut self) {
        if !self.writer.buffer.is_empty() {
            self.outbox.push(std::mem::take(&mut self.writer.buffer).into());
        }
    }
}

/// The text around the versions of objects, rebuilt only when it changes: initial objects rarely change it.
#[derive(Default)]
struct Text {
    versions: Versions,
    place: Option<Place>,
    around: Around,
}

impl Text {
    fn of(&mut self, versions: &Versions, place: &Place) -> &Around {
        if self.place.as_ref() != Some(place) || self.versions != *versions {
            self.versions = versions.clone();
            self.place = Some(place.clone());
            self.around = versions.around(place);
        }
        &self.around
    }
}

/// Writes events in the form that the client accepts.
struct Writer {
    server: Arc<Server>,
    kind: Arc<Kind>,
    cache: Arc<Cache>,
    selection: Selection,
    seen: Seen,
    accepted: Accepted,
    include: table::Include,
    buffer: Vec<u8>,
    first_table: bool,
}

impl Writer {
    /// Writes what an event means for this watch: objects enter its selection, change in it, or leave it.
    fn event(&mut self, told: &Told, versions: &Versions, text: &mut Text) {
        let cluster = &told.place.cluster;
        if !self.seen.has(cluster) {
            return;
        }
        let selected =
            |entry: &&Arc<Entry>| is_selected(&self.kind, &self.cache.kind, &self.selection, cluster, entry);
        let (before, after) = (told.old.as_ref().filter(selected), told.new.as_ref().filter(selected));
        let (what, entry) = match (before, after) {
            (None, Some(entry)) => ("ADDED", entry),
            (Some(_), Some(entry)) => ("MODIFIED", entry),
            (Some(entry), None) => ("DELETED", entry),
            (None, None) => return,
        };
        let around = text.of(versions, &told.place);
        let version =
            if after.is_some() { around.there(entry.revision) } else { around.gone(entry.revision) };
        self.object(what, cluster, entry, &version);
    }

    fn object(&mut self, what: &str, cluster: &str, entry: &Entry, version: &str) {
        let shown = Shown { cluster, version, stale: None };
        if self.accepted.media == Media::Json && self.accepted.shape == Shape::Object {
            self.buffer.extend_from_slice(b"{\"type\":\"");
            self.buffer.extend_from_slice(what.as_bytes());
            self.buffer.extend_from_slice(b"\",\"object\":");
            entry.write(&mut self.buffer, &self.cache.kind, &shown);
            self.buffer.extend_from_slice(b"}\n");
            return;
        }
        let object = entry.to_value(&self.cache.kind, &shown);
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
            pointer::set(&mut metadata, "annotations", json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        let document = match self.accepted.shape {
            Shape::Table { beta } => {
                let mut table =
                    table::event(&self.server, &self.kind, object.clone(), self.include, beta, false);
                pointer::set(&mut table, "rows", json!([{"cells": [], "object": object}]));
                table
            }
            _ => object,
        };
        self.frame("BOOKMARK", &document);
    }

    fn frame(&mut self, what: &str, document: &Value) {
        watch::frame(&mut self.buffer, self.accepted.media, what, document);
    }
}
