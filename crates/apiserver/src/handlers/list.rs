//! GET of one object and of collections: selectors, revisions, pages, representations.

use std::borrow::Cow;
use std::io::Write as _;
use std::ops::Bound;
use std::sync::Arc;

use apimachinery::field::{self, Path};
use apimachinery::pointer;
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::status::Status;
use base64::Engine;
use bytes::Bytes;
use flate2::write::GzEncoder;
use http::Response;
use native::resources::FieldLabels;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::context::Context;
use super::table;
use crate::conversion;
use crate::head::Head;
use crate::http::body::{self, Body};
use crate::http::negotiate::{Accepted, Media, Offer, Shape};
use crate::http::respond;
use crate::limits::Work;
use crate::object::{self, Entry};
use crate::registry::{Kind, Source};
use crate::server::Server;

/// Lists are sent in pieces of about this size, so that no list is completely in memory.
const PIECE: usize = 64 * 1024;

/// From this size on, a list that is built as a whole is built on the thread that yields to all others.
const LARGE: usize = 512 * 1024;

/// The old watch path names one object, and the caller was authorised for that object only. A selector must name the same one.
fn within_name(context: &Context, fields: FieldSelector) -> Result<FieldSelector, Status> {
    let name = context.info.name.as_str();
    if context.info.verb != "watch" || name.is_empty() {
        return Ok(fields);
    }
    let asked = FieldSelector::parse(context.query.text("fieldSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    if !asked.is_empty() && asked.required_value("metadata.name") != Some(name) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    let named = fields.required_value("metadata.name") == Some(name);
    Ok(if named { fields } else { fields.and("metadata.name", name) })
}

/// The objects of a collection that a request selects.
#[derive(Debug, Clone)]
pub struct Selection {
    pub namespace: String,
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn parse(context: &Context, kind: &Kind, namespace: &str) -> Result<Self, Status> {
        let labels = LabelSelector::parse(context.query.text("labelSelector"))
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(&context.field_selector())
            .map_err(|error| Status::bad_request(error.to_string()))?;
        for term in fields.terms() {
            check_field(kind, &term.field)?;
        }
        let fields = within_name(context, fields)?;
        Ok(Self { namespace: namespace.to_owned(), labels, fields })
    }

    /// Returns whether everything in the namespace (or everywhere) is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    pub fn in_namespace(&self, key: &str) -> bool {
        self.namespace.is_empty() || object::split_key(key).0 == self.namespace
    }

    /// Returns whether the selection depends on more than names and labels.
    pub fn reads_bodies(&self) -> bool {
        self.fields.terms().iter().any(|term| !matches!(&*term.field, "metadata.name" | "metadata.namespace"))
    }

    /// Returns whether an object can be selected, as far as namespace and labels are concerned.
    pub fn matches_head(&self, entry: &Entry) -> bool {
        self.in_namespace(&entry.name) && self.labels.matches(&entry.head)
    }

    pub fn matches(&self, kind: &Kind, entry: &Entry) -> bool {
        if !self.matches_head(entry) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        self.matches_fields(kind, object::split_key(&entry.name), || {
            // An unreadable object has no fields to select by.
            let Ok(mut object) = object::decode(&kind.api_version, &kind.gvk.kind, entry) else {
                return Value::Null;
            };
            if !kind.serves_as_stored(entry) {
                kind.present(entry, &mut object);
            }
            object
        })
    }

    /// Returns whether the fields of an object are selected. The object is read only for fields other than its names.
    pub fn matches_fields(
        &self,
        kind: &Kind,
        (namespace, name): (&str, &str),
        read: impl FnOnce() -> Value,
    ) -> bool {
        let mut read = Some(read);
        let mut parsed: Option<Value> = None;
        self.fields.matches(|field| match field {
            "metadata.name" => Cow::Borrowed(name),
            "metadata.namespace" => Cow::Borrowed(namespace),
            other => {
                let object = parsed.get_or_insert_with(|| read.take().map_or(Value::Null, |read| read()));
                Cow::Owned(selectable_value(kind, object, other))
            }
        })
    }

    /// Takes the selected objects up to a limit (0 for none). Returns whether there are more.
    fn choose<'a>(
        &self,
        kind: &Kind,
        candidates: impl Iterator<Item = &'a Arc<Entry>>,
        limit: usize,
    ) -> (Vec<Arc<Entry>>, bool) {
        let everything = self.is_everything();
        let mut chosen: Vec<Arc<Entry>> = Vec::new();
        for entry in candidates {
            if !everything && !self.matches(kind, entry) {
                continue;
            }
            if limit > 0 && chosen.len() == limit {
                return (chosen, true);
            }
            chosen.push(entry.clone());
        }
        (chosen, false)
    }

    /// Walks the part of a snapshot that can contain selected objects, after `start`.
    fn walk<'a>(
        &self,
        snapshot: &'a store::Snapshot<Head>,
        start: Option<&str>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Entry>> + Send + 'a> {
        if let Some(name) = self.fields.required_value("metadata.name")
            && !self.namespace.is_empty()
        {
            let key = object::join_key(&self.namespace, name);
            let wanted = start.is_none_or(|start| *key > *start);
            return Box::new(snapshot.get(&key).filter(|_| wanted).into_iter());
        }
        let prefix = if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) };
        let from = match start {
            Some(start) => Bound::Excluded(start.to_owned()),
            None => Bound::Included(prefix.clone()),
        };
        let borrowed = match &from {
            Bound::Excluded(text) => Bound::Excluded(text.as_str()),
            Bound::Included(text) => Bound::Included(text.as_str()),
            Bound::Unbounded => Bound::Unbounded,
        };
        Box::new(
            snapshot
                .range(borrowed, Bound::Unbounded)
                .take_while(move |entry| entry.name.starts_with(&prefix)),
        )
    }
}

fn check_field(kind: &Kind, name: &str) -> Result<(), Status> {
    let known = match &kind.source {
        Source::Native => match field_labels(kind) {
            FieldLabels::Default => vec!["metadata.name".to_owned(), "metadata.namespace".to_owned()],
            FieldLabels::Own(labels) => labels.iter().map(|label| label.label.to_owned()).collect(),
        },
        Source::Custom(custom) => {
            let mut known = vec!["metadata.name".to_owned()];
            if kind.namespaced {
                known.push("metadata.namespace".to_owned());
            }
            known.extend(custom.selectable_fields(&kind.gvk.version));
            known
        }
    };
    if known.iter().any(|field| field == name) {
        return Ok(());
    }
    if let Some(why) = kind.unknown_field(name) {
        return Err(Status::bad_request(why));
    }
    let default_set = !kind.is_custom() && field_labels(kind) == FieldLabels::Default;
    Err(Status::bad_request(if default_set {
        format!("{name:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {name}")
    }))
}

/// Returns the value of a selectable field; absent is empty.
fn selectable_value(kind: &Kind, object: &Value, name: &str) -> String {
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    let at = |path: &str| object.pointer(&format!("/{}", path.replace('.', "/")));
    if kind.is_field_without_value(name) {
        return String::new();
    }
    let FieldLabels::Own(labels) = field_labels(kind) else { return text(at(name)) };
    let Some(label) = labels.iter().find(|label| label.label == name) else { return text(at(name)) };
    let found = label.paths.iter().map(|path| text(at(path))).find(|found| !found.is_empty());
    found.unwrap_or_else(|| kind.zero_of_field(name).to_owned())
}

fn field_labels(kind: &Kind) -> FieldLabels {
    native::resources::find(&kind.gvk.group, &kind.gvk.version, &kind.resource.resource)
        .map_or(FieldLabels::Default, |resource| resource.fields)
}

/// The state that a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Latest,
    NotOlderThan(u64),
    Exactly(u64),
}

#[derive(Debug, Serialize, Deserialize)]
struct ContinueToken {
    v: String,
    rv: i64,
    start: String,
}

/// Answers a list.
pub async fn list(
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
        metadata_list: true,
        native: !kind.is_custom(),
    })?;
    let is_table = matches!(accepted.shape, Shape::Table { .. });
    let page = page(server, context, kind, namespace, is_table).await?;
    send(server, context, kind, page, accepted).await
}

/// Answers with the content of a list: in pieces if possible, otherwise as a whole, for which the user is charged.
pub async fn send(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    Page { entries, metadata }: Page,
    accepted: Accepted,
) -> Result<Response<Body>, Status> {
    if accepted.media == Media::Json
        && accepted.shape == Shape::Object
        && !accepted.pretty
        && entries.iter().all(|entry| kind.serves_as_stored(entry))
    {
        let gzip = super::wants_gzip(context);
        return Ok(stream_items(kind, metadata, entries, gzip));
    }
    let size: usize = entries.iter().map(|entry| entry.value.len()).sum();
    let include = match accepted.shape {
        Shape::Table { .. } => table::Include::parse(context)?,
        Shape::Metadata { .. } => return Err(table::is_a_list(kind)),
        _ => table::Include::None,
    };
    let (own, kind) = (server.clone(), kind.clone());
    let whole = move || {
        let document = document(&own, &kind, &entries, metadata, include, accepted.shape)?;
        Ok(respond::value(200, &document, accepted))
    };
    if size < LARGE {
        return whole();
    }
    self::whole(server, context, size, whole).await
}

/// Runs long work for the caller when it is the caller's turn, and charges it.
pub async fn off_the_workers<T: Send + 'static>(
    server: &Server,
    context: &Context,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    server.limits.in_background(Work::List, &context.user, 1, async move { make() }).await
}

/// Builds a large answer that cannot be sent in pieces. This takes a while, and as much memory as the answer has bytes, so the
/// user is charged before. Other answers of the same user may have been built since this one was admitted.
pub async fn whole(
    server: &Server,
    context: &Context,
    size: usize,
    make: impl FnOnce() -> Result<Response<Body>, Status> + Send + 'static,
) -> Result<Response<Body>, Status> {
    let account = context.recipient.account.clone();
    let made = move || {
        let held = match account {
            Some(account) => Some(account.hold(size).ok_or_else(too_much_unsent)?),
            None => None,
        };
        Ok(make()?.map(|body| body::holding(body, held)))
    };
    off_the_workers(server, context, made).await?
}

/// The answer for a user with too many unread answers.
pub(crate) fn too_much_unsent() -> Status {
    Status::too_many_requests("too many bytes are waiting to be read by this user", 1)
}

/// Builds a list as a whole.
fn document(
    server: &Server,
    kind: &Kind,
    entries: &[Arc<Entry>],
    metadata: Value,
    include: table::Include,
    shape: Shape,
) -> Result<Value, Status> {
    Ok(match shape {
        Shape::Object => {
            let items: Vec<Value> = entries
                .iter()
                .map(|entry| {
                    let mut object = server.read(kind, entry)?;
                    if !kind.is_custom()
                        && let Some(fields) = object.as_object_mut()
                    {
                        fields.remove("apiVersion");
                        fields.remove("kind");
                    }
                    Ok(object)
                })
                .collect::<Result<_, Status>>()?;
            json!({"kind": kind.list_kind, "apiVersion": kind.api_version, "metadata": metadata, "items": items})
        }
        Shape::Table { beta } => table::list(server, kind, entries, metadata, include, beta)?,
        Shape::Metadata { beta } | Shape::MetadataList { beta } => {
            let objects: Vec<Value> =
                entries.iter().map(|entry| server.read(kind, entry)).collect::<Result<_, _>>()?;
            table::partial_list(objects.into_iter(), metadata, beta)
        }
    })
}

/// The content of a list: the objects, and its metadata about the rest.
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    pub metadata: Value,
}

/// Finds the content of a list with the options of this request.
pub async fn page(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    is_table: bool,
) -> Result<Page, Status> {
    let selection = Selection::parse(context, kind, namespace)?;
    let limit = number(context, "limit")?.unwrap_or(0).max(0) as usize;
    let (at, start) = page_start(server, context, kind, namespace, limit)?;
    let snapshot = match at {
        At::Latest => server.store.snapshot(&kind.collection),
        At::NotOlderThan(revision) => {
            server.wait_for(revision).await?;
            server.store.snapshot(&kind.collection)
        }
        At::Exactly(revision) => {
            if revision > server.store.revision() {
                server.wait_for(revision).await?;
            }
            server.store.snapshot_at(&kind.collection, revision).map_err(|error| match error {
                store::AtError::Future { current } => Status::too_large_resource_version(revision, current),
                _ => match start.as_deref() {
                    None => expired(),
                    Some(start) => expired_page(continue_token(-1, start, namespace)),
                },
            })?
        }
    };
    let revision = snapshot.revision();
    let everything = selection.is_everything();
    // Fields are selected in the requested version, so objects that a webhook converts must be converted first.
    let converted = if selection.reads_bodies() && kind.is_converted() {
        let candidates: Vec<Arc<Entry>> = selection
            .walk(&snapshot, start.as_deref())
            .filter(|entry| selection.matches_head(entry))
            .cloned()
            .collect();
        Some(conversion::entries(server, kind, candidates).await?)
    } else {
        None
    };
    let candidates: Box<dyn Iterator<Item = &Arc<Entry>> + Send> = match &converted {
        Some(converted) => Box::new(converted.iter()),
        None => selection.walk(&snapshot, start.as_deref()),
    };
    let read: usize = if selection.reads_bodies() {
        selection.walk(&snapshot, start.as_deref()).map(|entry| entry.value.len()).sum()
    } else {
        0
    };
    let (mut entries, rest) = if read < LARGE {
        selection.choose(kind, candidates, limit)
    } else {
        // Every object is decoded for its fields, and other requests must not wait for that.
        let candidates: Vec<Arc<Entry>> = candidates.cloned().collect();
        let (selection, kind) = (selection.clone(), kind.clone());
        off_the_workers(server, context, move || selection.choose(&kind, candidates.iter(), limit)).await?
    };
    entries = conversion::entries(server, kind, entries).await?;
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if rest {
        let last = entries.last().map(|entry| entry.name.to_string()).unwrap_or_default();
        if everything {
            let remaining = selection.walk(&snapshot, Some(&last)).count();
            pointer::set(&mut metadata, "remainingItemCount", json!(remaining));
        }
        pointer::set(&mut metadata, "continue", json!(continue_token(revision as i64, &last, namespace)));
    } else if kind.is_custom() && !is_table {
        pointer::set(&mut metadata, "continue", json!(""));
    }
    Ok(Page { entries, metadata })
}

fn number(context: &Context, key: &str) -> Result<Option<i64>, Status> {
    match context.query.get(key) {
        None | Some("") => Ok(None),
        Some(value) => value
            .parse()
            .map(Some)
            .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))),
    }
}

/// Checks options that are valid only in certain combinations.
pub fn check_options(context: &Context, watching: bool) -> Result<(), Status> {
    let version = context.query.text("resourceVersion");
    let matching = context.query.text("resourceVersionMatch");
    let initial = context.query.get("sendInitialEvents").filter(|value| !value.is_empty());
    let path = Path::new("resourceVersionMatch");
    let mut errors = Vec::new();
    if watching {
        if initial.is_some() && matching != "NotOlderThan" {
            errors.push(field::Error::forbidden(
                &path,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if !matching.is_empty() && initial.is_none() {
            errors.push(field::Error::forbidden(
                &path,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if !matching.is_empty() && matching != "NotOlderThan" {
            errors.push(field::Error::not_supported(&path, matching, &["NotOlderThan"]));
        }
        if !matching.is_empty() && !context.query.text("continue").is_empty() {
            errors.push(field::Error::forbidden(
                &path,
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
    } else {
        if !matching.is_empty() {
            if version.is_empty() {
                errors.push(field::Error::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !context.query.text("continue").is_empty() {
                errors.push(field::Error::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            match matching {
                "NotOlderThan" => {}
                "Exact" if version == "0" => errors.push(field::Error::forbidden(
                    &path,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                )),
                "Exact" => {}
                other => {
                    errors.push(field::Error::not_supported(&path, other, &["Exact", "NotOlderThan", ""]));
                }
            }
        }
        if initial.is_some() {
            errors.push(field::Error::forbidden(
                &Path::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors)) }
}

/// Finds the start of a list: at which revision, after which name.
fn page_start(
    server: &Server,
    context: &Context,
    kind: &Kind,
    namespace: &str,
    limit: usize,
) -> Result<(At, Option<String>), Status> {
    check_options(context, false)?;
    let version = context.query.text("resourceVersion");
    let token = context.query.text("continue");
    if !token.is_empty() {
        if !version.is_empty() && version != "0" {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let (revision, start) = parse_token(token, namespace)?;
        let at = if revision < 0 { At::Latest } else { At::Exactly(revision as u64) };
        return Ok((at, Some(start)));
    }
    if version.is_empty() || version == "0" {
        return Ok((At::Latest, None));
    }
    let revision = version.parse::<u64>().map_err(|_| {
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing \
             {version:?}: invalid syntax"
        ))
    })?;
    let _ = (server, kind);
    let at = match context.query.text("resourceVersionMatch") {
        "Exact" => At::Exactly(revision),
        "" if limit > 0 => At::Exactly(revision),
        _ => At::NotOlderThan(revision),
    };
    Ok((at, None))
}

/// The version of a list is too old.
pub fn expired() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// The version of the pages of a list is too old; the token can be used to continue anyway.
pub fn expired_page(token: String) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.continue_token = Some(token);
    status
}

/// Returns the token for the page after the object called `last` in its collection.
fn continue_token(revision: i64, last: &str, namespace: &str) -> String {
    let relative =
        if namespace.is_empty() { last } else { last.split_once('/').map_or(last, |(_, name)| name) };
    let token =
        ContinueToken { v: "meta.k8s.io/v1".to_owned(), rv: revision, start: format!("/{relative}\u{0}") };
    let text = serde_json::to_vec(&token).expect("a token is plain data");
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
}

fn parse_token(text: &str, namespace: &str) -> Result<(i64, String), Status> {
    let bad = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(text.trim_end_matches('='))
        .map_err(|error| bad(&error.to_string()))?;
    let token: ContinueToken = serde_json::from_slice(&bytes).map_err(|error| bad(&error.to_string()))?;
    if token.v != "meta.k8s.io/v1" {
        return Err(bad(&format!("server does not recognize this encoded version {:?}", token.v)));
    }
    if token.rv == 0 {
        return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    }
    if token.start.is_empty() {
        return Err(bad("encoded start key empty (version meta.k8s.io/v1)"));
    }
    if token.start.split('/').any(|part| part.trim_end_matches('\u{0}') == "..") {
        return Err(bad(&token.start));
    }
    let relative = token.start.trim_start_matches('/').trim_end_matches('\u{0}');
    let start = if namespace.is_empty() { relative.to_owned() } else { format!("{namespace}/{relative}") };
    Ok((token.rv, start))
}

/// Sends a list in pieces; the items are the stored bytes.
fn stream_items(kind: &Arc<Kind>, metadata: Value, entries: Vec<Arc<Entry>>, gzip: bool) -> Response<Body> {
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        kind.list_kind, kind.api_version
    );
    let size: usize = entries.iter().map(|entry| entry.value.len().saturating_add(64)).sum();
    let pieces =
        ItemPieces { kind: kind.clone(), entries: entries.into_iter(), first: true, state: Some(head) };
    if gzip && size > super::GZIP_FROM {
        let mut response = respond::stream(200, body::pieces(Compressed::new(pieces)), "application/json");
        super::mark_gzip(&mut response);
        return response;
    }
    if size <= PIECE {
        let all: Vec<u8> = pieces.flat_map(|piece| piece.to_vec()).collect();
        return respond::bytes_of(200, all, "application/json");
    }
    respond::stream(200, body::pieces(pieces), "application/json")
}

struct ItemPieces {
    kind: Arc<Kind>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    first: bool,
    /// The beginning of the document until it is sent; `None` after the end.
    state: Option<String>,
}

impl Iterator for ItemPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let head = self.state.take()?;
        let mut out = Vec::with_capacity(PIECE + 4096);
        out.extend_from_slice(head.as_bytes());
        for entry in self.entries.by_ref() {
            if !self.first {
                out.push(b',');
            }
            self.first = false;
            if self.kind.is_custom() {
                object::write_full(
                    &mut out,
                    &self.kind.api_version,
                    &self.kind.gvk.kind,
                    &entry,
                    entry.modified,
                );
            } else {
                object::write_bare(&mut out, &entry, entry.modified);
            }
            if out.len() >= PIECE {
                self.state = Some(String::new());
                return Some(out.into());
            }
        }
        out.extend_from_slice(b"]}\n");
        Some(out.into())
    }
}

/// Pieces of a document, compressed while they are sent: a list of any size takes the memory of a few pieces, and the client does
/// not wait until the whole list is compressed.
struct Compressed<I> {
    pieces: I,
    /// `None` after the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl<I> Compressed<I> {
    /// After this many pieces something is sent, however small it is.
    const AT_ONCE: usize = 8;

    fn new(pieces: I) -> Self {
        Self { pieces, encoder: Some(GzEncoder::new(Vec::new(), flate2::Compression::fast())) }
    }
}

impl<I: Iterator<Item = Bytes>> Iterator for Compressed<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut encoder = self.encoder.take()?;
        for _ in 0..Self::AT_ONCE {
            let Some(piece) = self.pieces.next() else {
                return Some(encoder.finish().expect("memory takes what is written").into());
            };
            encoder.write_all(&piece).expect("memory takes what is written");
            if encoder.get_ref().len() >= PIECE {
                break;
            }
        }
        if encoder.get_ref().is_empty() {
            // An empty piece could be mistaken for the end.
            encoder.flush().expect("memory takes what is written");
        }
        let sent = std::mem::take(encoder.get_mut());
        self.encoder = Some(encoder);
        Some(sent.into())
    }
}

/// Answers a GET of one object.
pub async fn get(
    server: &Arc<Server>,
    context: &Context,
    kind: &Arc<Kind>,
    namespace: &str,
    name: &str,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept(object_offer(kind))?;
    if context.query.get("export").is_some_and(|value| !matches!(value, "false" | "0")) {
        return Err(Status::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        ));
    }
    let version = context.query.text("resourceVersion");
    if !version.is_empty() && version != "0" {
        let revision = version.parse::<u64>().map_err(|_| {
            Status::bare_internal(format!(
                "resourceVersion: Invalid value: {version:?}: strconv.ParseUint: parsing {version:?}: invalid syntax"
            ))
        })?;
        server.wait_for(revision).await?;
    }
    let key = object::join_key(namespace, name);
    let Some(entry) = server.store.get(&kind.collection, &key) else {
        return Err(Status::not_found(&kind.resource, name));
    };
    if accepted == Accepted::JSON && kind.serves_as_stored(&entry) {
        let mut out = Vec::with_capacity(entry.value.len().saturating_add(128));
        object::write_full(&mut out, &kind.api_version, &kind.gvk.kind, &entry, entry.modified);
        out.push(b'\n');
        return Ok(respond::bytes_of(200, out, "application/json"));
    }
    let entry = conversion::entry(server, kind, entry).await?;
    let object = server.read(kind, &entry)?;
    answer(server, context, kind, 200, object, accepted)
}

/// The representations that endpoints of one object offer.
pub fn object_offer(kind: &Kind) -> Offer {
    Offer {
        protobuf: !kind.is_custom(),
        yaml: true,
        table: true,
        metadata: true,
        metadata_list: true,
        native: !kind.is_custom(),
    }
}

/// Answers with an object in the accepted representation.
pub fn answer(
    server: &Server,
    context: &Context,
    kind: &Kind,
    code: u16,
    object: Value,
    accepted: Accepted,
) -> Result<Response<Body>, Status> {
    let is_status = object.get("kind").and_then(Value::as_str) == Some("Status");
    let document = match accepted.shape {
        _ if is_status => object,
        Shape::Object => object,
        Shape::Table { beta } => {
            let include = table::Include::parse(context)?;
            table::single(server, kind, object, include, beta)
        }
        Shape::Metadata { beta } => table::partial(&object, beta),
        Shape::MetadataList { .. } => return Err(table::not_a_list(kind)),
    };
    Ok(respond::value(code, &document, accepted))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::auth::User;
    use crate::http::{Query, RequestInfo};

    #[test]
    fn a_list_is_compressed_piece_by_piece() {
        use std::io::Read as _;
        // Text that compresses to almost nothing, and noise that does not compress at all.
        let mut noise = 1_u64;
        let mut next = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        };
        for compressible in [true, false] {
            let pieces: Vec<Bytes> = (0..40)
                .map(|_| {
                    (0..PIECE).map(|_| if compressible { b'a' } else { next() }).collect::<Vec<u8>>().into()
                })
                .collect();
            let sent: Vec<Bytes> = Compressed::new(pieces.iter().cloned()).collect();
            assert!(sent.len() > 4, "{} pieces", sent.len());
            assert!(sent.iter().all(|piece| !piece.is_empty() && piece.len() < 4 * PIECE));
            let mut read = Vec::new();
            let together: Vec<u8> = sent.iter().flatten().copied().collect();
            flate2::read::GzDecoder::new(&together[..]).read_to_end(&mut read).unwrap();
            assert!(read.iter().eq(pieces.iter().flatten()), "what was sent is what there was");
        }
    }

    #[test]
    fn a_watch_of_one_name_selects_nothing_else() {
        let check = |target: &str, expected: Result<&str, &str>| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let query = Query::parse(Some(query));
            let fields = FieldSelector::parse(query.text("fieldSelector")).unwrap();
            let info = RequestInfo::parse(&Method::GET, path, &query);
            let context =
                Context::new(Method::GET, info, query, HeaderMap::new(), Arc::new(User::anonymous()));
            let selected = within_name(&context, fields).map(|fields| fields.to_string());
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(selected.map_err(|status| status.message), expected, "{target}");
        };
        check("/api/v1/watch/pods", Ok(""));
        check("/api/v1/watch/pods?fieldSelector=metadata.name%3Dy", Ok("metadata.name=y"));
        check("/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dy", Ok("metadata.name=y"));
        check("/api/v1/watch/namespaces/a/pods/x", Ok("metadata.name=x"));
        check("/api/v1/watch/namespaces/a/pods/x?fieldSelector=metadata.name%3Dx", Ok("metadata.name=x"));
        let other = Err("fieldSelector metadata.name doesn't match requested name");
        check("/api/v1/watch/namespaces/a/pods/x?fieldSelector=metadata.name%3Dy", other);
        check("/api/v1/watch/namespaces/a/pods/x?fieldSelector=spec.nodeName%3Dy", other);
    }
}
