//! The frame around every handler: identity, limits, authorisation, warnings, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apimachinery::duration;
use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, WARNING};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use tracing::Instrument;

use crate::account::{Account, Reading};
use crate::aggregation::{Remote, proxy};
use crate::audit::{Origin, Record};
use crate::auth::bounds::Reach;
use crate::auth::rbac::Attributes;
use crate::auth::user::MASTERS;
use crate::auth::x509::Verdict;
use crate::auth::{User, bearer, front_proxy, headers, impersonation};
use crate::endpoints;
use crate::handlers::{self, context::Context};
use crate::http::body::{self, Body};
use crate::http::listener::Guest;
use crate::http::sending::{Manner, Recipient};
use crate::http::{Query, RequestInfo, respond};
use crate::limits::{Permit, Work};
use crate::local::Terms;
use crate::metrics::{DurationLabels, KindLabels, RequestLabels};
use crate::registry::Registry;
use crate::server::Server;

/// Only watches and proxies may take longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// A written definition must also be served: the total cost is this many times the cost of the write.
const SETTLING: u32 = 3;
static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The client at the other end of a connection.
#[derive(Debug, Clone)]
pub enum Peer {
    /// A TLS client, and the verdict about its certificate.
    Remote { verdict: Arc<Verdict>, guest: Arc<Guest> },
    /// A component of this process with an identity.
    Local(Arc<User>),
    /// A client whose name and rights a component of this process has checked.
    Vouched(Arc<User>),
    /// A client whose request a component of this process answers with the answer to another one.
    Onward(Onward),
}

/// The client of a request within another one: see [`Context::client`].
#[derive(Debug, Clone)]
pub struct Onward {
    pub(crate) user: Arc<User>,
    /// The client that gets the answer to the first request.
    pub(crate) recipient: Recipient,
}

impl Peer {
    fn is_remote(&self) -> bool {
        matches!(self, Self::Remote { .. })
    }

    /// Returns whether users at the other end have a share of places and memory. Only components of this process have none; those
    /// that come through another server have theirs, whoever opened the connection.
    fn is_limited(&self) -> bool {
        !matches!(self, Self::Local(_))
    }

    fn is_within_another(&self) -> bool {
        matches!(self, Self::Onward(_))
    }
}

/// Answers one request.
pub async fn serve<B>(server: Arc<Server>, request: Request<B>, peer: Peer) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut parts, body) = request.into_parts();
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    // Only callers in this process have any.
    let terms = parts.extensions.remove::<Terms>();
    let query = Query::parse(parts.uri.query());
    let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
    let span = tracing::debug_span!("request", verb = info.verb, path = %parts.uri.path());
    async move {
        let started = Instant::now();
        let labels = Labels::of(&info, &server.registry.load());
        let audit_id = audit_id(&parts.headers);
        let long = info.is_long_running();
        let bodiless = parts.method == http::Method::HEAD;
        let given_up = started.checked_add(deadline(&query)).unwrap_or(started);
        let deadline = (!long).then_some(given_up);
        let (mut record, admitted) = admit(&server, &parts, &info, &query, &peer, &audit_id).await;
        let mut notes = BTreeMap::new();
        let mut recipient =
            Recipient { alone: parts.version < http::Version::HTTP_2, ..Recipient::default() };
        let answered = async {
            let (user, reach) = admitted?;
            let account = peer.is_limited().then(|| server.limits.account(&user)).flatten();
            recipient.account = account.clone();
            match &peer {
                Peer::Remote { guest, .. } => recipient.guest = Some(guest.clone()),
                Peer::Onward(first) => {
                    recipient.guest = first.recipient.guest.clone();
                    recipient.alone = first.recipient.alone;
                }
                Peer::Local(_) | Peer::Vouched(_) => {}
            }
            if let Some(account) = &account {
                server.limits.write(account).await?;
            }
            if let Some(remote) = remote(&server, &info) {
                let permit = place(&server, &peer, &user, &info, true).await?;
                let until = given_up.into();
                let answer =
                    Box::pin(proxy::forward(&server, &remote, &user, &parts, body, upgrade, long, until));
                return Ok(keep(answer.await, permit));
            }
            // The body is read before a place is taken, so that a slow sender does not block others.
            // Within another request it is charged already, and would wait for itself.
            let charged = account.as_deref().filter(|_| !peer.is_within_another());
            let body = receive(&server, &user, charged, body);
            let body = tokio::time::timeout_at(given_up.into(), body).await;
            let Ok(body) = body else { return Ok(timed_out()) };
            let (body, reading) = body?;
            let permit = place(&server, &peer, &user, &info, false).await?;
            let inflight = labels.begin(&server, long);
            let terms = terms.unwrap_or_else(|| usual_terms(&info, &user));
            let context = Context::new(parts.method, info, query, parts.headers, user)
                .with_upgrade(upgrade)
                .with_deadline(deadline)
                .with_terms(terms)
                .within(reach)
                .vouched(matches!(peer, Peer::Vouched(_)))
                .with_recipient(recipient.clone());
            let context = Arc::new(context);
            let answer = answer(&server, &context, body, record.as_mut());
            let mut response = match deadline {
                None => answer.await,
                Some(deadline) => {
                    tokio::time::timeout_at(deadline.into(), answer).await.unwrap_or_else(|_| timed_out())
                }
            };
            drop(reading);
            add_warnings(&mut response, context.take_warnings());
            notes = context.take_annotations();
            if record.as_ref().is_some_and(Record::wants_request) {
                notes.append(&mut context.take_request_annotations());
            }
            drop(inflight);
            // A request that stays open keeps its place until it ends.
            Ok(if long { keep(response, permit) } else { response })
        };
        let answered: Result<_, Status> = answered.await;
        let mut response = match answered {
            Ok(response) => response,
            Err(status) => {
                if status.code == 429 {
                    server.metrics.dropped.inc();
                }
                respond::error(&status)
            }
        };
        if let Some(record) = record {
            response = record.finish(response, long, notes).await;
        }
        if bodiless {
            *response.body_mut() = body::empty();
        }
        let manner = response.extensions_mut().remove::<Manner>();
        if manner != Some(Manner::Counted) {
            let lasting = long && manner.is_none();
            response = response.map(|body| server.sendings.send(body, recipient, lasting));
        }
        if peer.is_within_another() {
            // It must not be charged again with the answer to the first request.
            response.extensions_mut().insert(Manner::Counted);
        }
        response.headers_mut().insert(AUDIT_ID.clone(), audit_id);
        labels.end(&server, response.status().as_u16(), started.elapsed());
        tracing::debug!(code = response.status().as_u16(), "answered");
        response
    }
    .instrument(span)
    .await
}

/// Returns the server that answers a request instead of this one.
fn remote(server: &Server, info: &RequestInfo) -> Option<Remote> {
    let registry = server.registry.load();
    if registry.remotes().is_empty() {
        return None;
    }
    if info.is_resource {
        return registry.remote(&info.group, &info.version).cloned();
    }
    let mut segments = info.path.trim_start_matches('/').split('/');
    match (segments.next(), segments.next(), segments.next()) {
        (Some("apis"), Some(group), Some(version)) => registry.remote(group, version).cloned(),
        (Some("openapi"), Some("v3"), Some("apis")) => {
            registry.remote(segments.next()?, segments.next()?).cloned()
        }
        _ => None,
    }
}

/// Identifies the caller, waits for a place, and checks the caller's rights. The audit log may record the request as soon as the
/// caller is known.
async fn admit(
    server: &Server,
    parts: &http::request::Parts,
    info: &RequestInfo,
    query: &Query,
    peer: &Peer,
    audit_id: &HeaderValue,
) -> (Option<Record>, Result<(Arc<User>, Reach), Status>) {
    let caller = match valid_timeout(query) {
        Ok(()) => authenticate(server, &parts.headers, peer).await,
        Err(status) => Err(status),
    };
    let mut record = server.audit.as_ref().and_then(|audit| {
        let address = match peer {
            Peer::Remote { guest, .. } => Some(guest.address()),
            Peer::Local(_) | Peer::Vouched(_) | Peer::Onward(_) => None,
        };
        let origin = Origin { uri: &parts.uri, headers: &parts.headers, address };
        let nobody = User::default();
        let user = caller.as_deref().unwrap_or(&nobody);
        Record::begin(audit, audit_id.to_str().unwrap_or(""), info, user, &origin)
    });
    let admitted = match caller {
        Ok(caller) => may(server, parts, info, peer, caller, record.as_mut()).await,
        Err(status) => Err(status),
    };
    (record, admitted)
}

fn valid_timeout(query: &Query) -> Result<(), Status> {
    match query.get("timeout").filter(|value| !value.is_empty()) {
        Some(timeout) if duration::parse(timeout).is_err() => Err(Status::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration {timeout:?}"
        ))),
        _ => Ok(()),
    }
}

async fn may(
    server: &Server,
    parts: &http::request::Parts,
    info: &RequestInfo,
    peer: &Peer,
    caller: Arc<User>,
    mut record: Option<&mut Record>,
) -> Result<(Arc<User>, Reach), Status> {
    let wanted = Attributes::of(info);
    if let Peer::Remote { guest, .. } = peer
        && !caller.is_anonymous()
    {
        guest.is_known();
    }
    if let Peer::Vouched(user) = peer {
        if let Some(record) = record {
            record.authorized(true, "");
        }
        return Ok((user.clone(), Reach::Asked));
    }
    let impersonated = || impersonation::impersonate(server, &caller, &parts.headers, &wanted);
    let user = match with_newest(server, &caller, impersonated).await? {
        Some((user, constraint)) => {
            if let Some(record) = &mut record {
                record.impersonated(&user, constraint);
            }
            Arc::new(user)
        }
        None => caller,
    };
    if peer.is_remote() {
        server.gate.delay().await;
    }
    let allowed = with_newest(server, &user, || server.rbac.reach(&server.store, &user, &wanted)).await;
    if let Some(record) = record {
        let reason = if allowed.is_ok() { server.rbac.reason(&user, &wanted) } else { String::new() };
        record.authorized(allowed.is_ok(), &reason);
    }
    allowed.map(|reach| (user, reach))
}

/// Decides from memory, and checks once more before a known user is refused: another server may have just granted the right.
async fn with_newest<T>(
    server: &Server,
    user: &User,
    decide: impl Fn() -> Result<T, Status>,
) -> Result<T, Status> {
    let seen = server.store.revision();
    let refusal = match decide() {
        Err(refusal) if server.store.is_on_etcd() && !user.is_anonymous() => refusal,
        decided => return decided,
    };
    match server.store.catch_up().await {
        Ok(now) if now > seen => decide(),
        _ => Err(refusal),
    }
}

/// Waits for a place among the requests in progress. Components of this process need none.
async fn place(
    server: &Server,
    peer: &Peer,
    user: &User,
    info: &RequestInfo,
    elsewhere: bool,
) -> Result<Option<Permit>, Status> {
    if peer.is_limited() { server.limits.enter(user, info, elsewhere).await } else { Ok(None) }
}

/// Reads the body of a request, within the client's memory budget.
async fn receive<B>(
    server: &Server,
    user: &User,
    account: Option<&Account>,
    body: B,
) -> Result<(Bytes, Option<Reading>), Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return Ok((Bytes::new(), None));
    }
    let announced = body.size_hint().upper().and_then(|size| usize::try_from(size).ok());
    let wanted = announced.unwrap_or(usize::MAX).min(handlers::MAX_BODY);
    let mut reading = match account {
        Some(account) => Some(server.limits.read(account, wanted).await?),
        None => None,
    };
    let body = read(server, user, account.zip(reading.as_mut()), body).await?;
    if let (Some(account), Some(reading)) = (account, &mut reading) {
        reading.shrink(body.len());
        server.limits.handle(account, reading, &body).await?;
    }
    Ok((body, reading))
}

/// Keeps a place until the answer has been sent or the client has gone.
fn keep(response: Response<Body>, permit: Option<Permit>) -> Response<Body> {
    match permit {
        Some(permit) => response.map(|body| body::holding(body, permit)),
        None => response,
    }
}

async fn authenticate(server: &Server, headers: &HeaderMap, peer: &Peer) -> Result<Arc<User>, Status> {
    let verdict = match peer {
        Peer::Local(user) | Peer::Vouched(user) | Peer::Onward(Onward { user, .. }) => {
            return Ok(user.clone());
        }
        Peer::Remote { verdict, .. } => verdict.now(),
    };
    if verdict.front_proxy
        && let Some(user) = front_proxy::identify(headers)?
    {
        return Ok(Arc::new(user));
    }
    if let Some(user) = verdict.user {
        return Ok(user);
    }
    let given = headers::one(headers, AUTHORIZATION.as_str())?.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match given {
        Some(token) if !token.is_empty() => {
            let audiences = std::slice::from_ref(&server.identity.issuer);
            let seen = server.store.revision();
            let mut found = bearer::identify(server, token, audiences).await;
            // Another server may have just created the object behind the token.
            if found.is_err()
                && server.store.is_on_etcd()
                && server.store.catch_up().await.is_ok_and(|now| now > seen)
            {
                found = bearer::identify(server, token, audiences).await;
            }
            found.map(|(user, _)| Arc::new(user)).map_err(|_| Status::unauthorized())
        }
        // A certificate that we do not trust is a failed credential, not a missing one.
        _ if verdict.shown => Err(Status::unauthorized()),
        _ => Ok(Arc::new(User::anonymous())),
    }
}

async fn answer(
    server: &Arc<Server>,
    context: &Arc<Context>,
    body: Bytes,
    record: Option<&mut Record>,
) -> Response<Body> {
    if let Some(record) = record {
        record.request(&body);
    }
    let seen = server.store.revision();
    let tried = server.store.is_on_etcd() && may_be_tried(context);
    if !tried
        && needs_newest(context, seen)
        && let Err(error) = server.store.catch_up().await
    {
        return respond::error(&handlers::write::commit_failure(error));
    }
    if takes_long(&context.info) {
        let (own, asked) = (server.clone(), context.clone());
        let answer = async move { handlers::resource(&own, &asked, body).await };
        // Rare, and twice as large as everything else: boxed, so that other requests do not carry it.
        let answer = Box::pin(server.limits.in_background(Work::Definition, &context.user, SETTLING, answer));
        answer.await.unwrap_or_else(|status| respond::error(&status))
    } else if context.info.is_resource {
        let answer = handlers::resource(server, context, body.clone()).await;
        if !tried || !may_be_outdated(answer.status()) {
            return answer;
        }
        match server.store.catch_up().await {
            Ok(now) if now > seen => {
                context.take_warnings();
                // Rare: boxed, as above.
                Box::pin(handlers::resource(server, context, body)).await
            }
            Ok(_) => answer,
            Err(error) => respond::error(&handlers::write::commit_failure(error)),
        }
    } else {
        endpoints::answer(server, context).await
    }
}

/// Returns whether a request must see everything that any server has acknowledged: it changes something, or it reads without
/// naming a revision that is already known.
fn needs_newest(context: &Context, now: store::Revision) -> bool {
    let reads = matches!(context.info.verb, "get" | "list" | "watch");
    let named: Option<store::Revision> =
        context.query.get("resourceVersion").and_then(|revision| revision.parse().ok());
    context.info.is_resource && !(reads && named.is_some_and(|revision| revision <= now))
}

/// Returns whether a request may be tried on the state in memory, although other servers write as well: it changes one object,
/// and etcd accepts the change only if memory had its newest version. So a write is one request to etcd. Only a refusal could
/// rest on outdated state: see [`may_be_outdated`].
fn may_be_tried(context: &Context) -> bool {
    let info = &context.info;
    let changes_one = matches!(info.verb, "create" | "update" | "patch" | "delete");
    let stored = matches!(info.subresource.as_str(), "" | "status" | "scale" | "finalize");
    // Computed answers are not compared with anything, nor is a dry run.
    let compared = !matches!(&*info.group, "authorization.k8s.io" | "authentication.k8s.io");
    info.is_resource
        && changes_one
        && stored
        && compared
        && context.query.get("dryRun").is_none()
        && !takes_long(info)
}

/// Returns whether a refusal may turn into success with writes of other servers.
fn may_be_outdated(code: http::StatusCode) -> bool {
    matches!(code.as_u16(), 403 | 404 | 409 | 422)
}

/// Returns whether a request concerns a definition, whose schema is large and must be checked and compiled.
fn takes_long(info: &RequestInfo) -> bool {
    let changes = matches!(info.verb, "create" | "update" | "patch");
    changes && info.group == "apiextensions.k8s.io" && info.resource == "customresourcedefinitions"
}

/// Returns the terms for clients from outside: definitions of clients that are not administrators are written to disk together
/// with other writes, so that those seldom wait for it.
fn usual_terms(info: &RequestInfo, user: &User) -> Terms {
    if takes_long(info) && !user.in_group(MASTERS) {
        Terms { durability: store::Durability::Patient, ..Terms::default() }
    } else {
        Terms::default()
    }
}

/// Reads a body completely, up to the limit, no faster than its user may send, and only while there is room for what arrives.
async fn read<B>(
    server: &Server,
    user: &User,
    mut charged: Option<(&Account, &mut Reading)>,
    body: B,
) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = std::pin::pin!(body);
    let (mut first, mut all) = (Bytes::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Status::bad_request(format!("cannot read the request body: {}", error.into()))
        })?;
        let Ok(piece) = frame.into_data() else { continue };
        let size = first.len().saturating_add(all.len()).saturating_add(piece.len());
        if size > handlers::MAX_BODY {
            return Err(Status::too_large(format!(
                "Request entity too large: limit is {}",
                handlers::MAX_BODY
            )));
        }
        if let Some((account, reading)) = &mut charged {
            server.limits.arrive(account, reading, piece.len()).await?;
        }
        let pause = server.limits.sent(user, piece.len());
        // Most bodies arrive in one piece, which need not be copied.
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(if all.is_empty() { first } else { all.into() })
}

/// Returns how long a request may take: as long as the client wants to wait, within our limit.
fn deadline(query: &Query) -> Duration {
    let asked =
        query.get("timeout").and_then(|asked| duration::parse(asked).ok()).filter(|asked| !asked.is_zero());
    asked.map_or(DEADLINE, |asked| asked.min(DEADLINE))
}

/// The answer to a request that took too long. As upstream, it has no media type: clients rely on the code, which says that the
/// request may still have been carried out.
pub fn timed_out() -> Response<Body> {
    let status = Status::new(504, "Timeout", "request did not complete within the allotted timeout")
        .with_details(Default::default());
    let mut response = respond::error(&status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn audit_id(headers: &HeaderMap) -> HeaderValue {
    headers.get(&AUDIT_ID).filter(|value| value.len() <= 64).cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a uuid is a valid header value")
    })
}

/// Adds `Warning` headers, within the size that proxies accept.
fn add_warnings(response: &mut Response<Body>, warnings: Vec<String>) {
    const BUDGET: usize = 4096;
    const CUT: usize = 256;
    let total: usize = warnings.iter().map(|warning| warning.chars().count()).sum();
    let mut spent: usize = 0;
    for warning in warnings {
        let text: String = if total > BUDGET { warning.chars().take(CUT).collect() } else { warning };
        spent = spent.saturating_add(text.chars().count());
        if spent > BUDGET {
            return;
        }
        let quoted: String = text
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| if matches!(c, '"' | '\\') { vec!['\\', c] } else { vec![c] })
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// The label for everything that is not served: clients must not invent labels.
const OTHER: &str = "other";

/// The labels of a request in the metrics: names of served resources, and fixed words.
struct Labels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    reading: bool,
    counted: bool,
}

impl Labels {
    fn of(info: &RequestInfo, registry: &Registry) -> Self {
        let scope = if !info.is_resource {
            ""
        } else if !info.name.is_empty() {
            "resource"
        } else if !info.namespace.is_empty() {
            "namespace"
        } else {
            "cluster"
        };
        let known = |known: bool, text: &str| if known { text.to_owned() } else { OTHER.to_owned() };
        let kind = registry.find(&info.group, &info.version, &info.resource);
        let remote = registry.remote(&info.group, &info.version);
        let told = remote.and_then(|remote| remote.resource(&info.resource));
        let place = kind.is_some() || remote.is_some();
        let subresource = info.subresource.is_empty()
            || kind.is_some_and(|kind| kind.subresource(&info.subresource).is_some())
            || told.is_some_and(|told| Remote::has_subresource(told, &info.subresource));
        Self {
            verb: known(!info.verb.is_empty(), info.verb).to_ascii_uppercase(),
            group: known(place, &info.group),
            version: known(place, &info.version),
            resource: known(kind.is_some() || told.is_some(), &info.resource),
            subresource: known(subresource, &info.subresource),
            scope,
            reading: matches!(info.verb, "get" | "list" | "watch"),
            counted: info.is_resource,
        }
    }

    fn duration(&self) -> DurationLabels {
        DurationLabels {
            verb: self.verb.clone(),
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
        }
    }

    /// Counts the request until the returned guard is dropped.
    fn begin(&self, server: &Arc<Server>, long: bool) -> impl Drop + use<> {
        struct Guard(Option<prometheus_client::metrics::gauge::Gauge>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if let Some(gauge) = &self.0 {
                    gauge.dec();
                }
            }
        }
        let gauge = (!long).then(|| {
            let request_kind = if self.reading { "readOnly" } else { "mutating" }.to_owned();
            server.metrics.inflight.get_or_create(&KindLabels { request_kind }).clone()
        });
        if let Some(gauge) = &gauge {
            gauge.inc();
        }
        Guard(gauge)
    }

    fn end(&self, server: &Server, code: u16, elapsed: Duration) {
        if !self.counted || code == 404 {
            return;
        }
        // Other servers may return any code.
        let known = http::StatusCode::from_u16(code).is_ok_and(|code| code.canonical_reason().is_some());
        let labels = RequestLabels {
            verb: self.verb.clone(),
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            subresource: self.subresource.clone(),
            scope: self.scope.to_owned(),
            code: if known { code.to_string() } else { OTHER.to_owned() },
        };
        server.metrics.requests.get_or_create(&labels).inc();
        server.metrics.durations.get_or_create(&self.duration()).observe(elapsed.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_administrators_definition_goes_to_the_disk_by_itself() {
        let durability = |method: http::Method, path: &str, user: &User| {
            usual_terms(&RequestInfo::parse(&method, path, &Query::default()), user).durability
        };
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let someone = User { name: "someone".to_owned(), ..User::default() };
        let administrator = User::system("admin");
        assert_eq!(durability(http::Method::POST, definitions, &someone), store::Durability::Patient);
        assert_eq!(durability(http::Method::POST, definitions, &administrator), store::Durability::Durable);
        let maps = "/api/v1/namespaces/default/configmaps";
        assert_eq!(durability(http::Method::POST, maps, &someone), store::Durability::Durable);
    }

    #[test]
    fn labels_come_from_what_is_served() {
        let registry = Registry::natives();
        let labels = |path: &str| {
            let info = RequestInfo::parse(&http::Method::GET, path, &Query::default());
            let labels = Labels::of(&info, &registry);
            [labels.verb, labels.group, labels.version, labels.resource, labels.subresource]
        };
        assert_eq!(labels("/apis/apps/v1/deployments"), ["LIST", "apps", "v1", "deployments", ""]);
        let scale = "/apis/apps/v1/namespaces/a/deployments/b/scale";
        assert_eq!(labels(scale), ["GET", "apps", "v1", "deployments", "scale"]);
        assert_eq!(labels("/apis/made/up/things"), ["LIST", OTHER, OTHER, OTHER, ""]);
        assert_eq!(labels("/api/v1/made-up"), ["LIST", OTHER, OTHER, OTHER, ""]);
        let made_up = "/api/v1/namespaces/a/pods/b/made-up";
        assert_eq!(labels(made_up), ["GET", "", "v1", "pods", OTHER]);
        let info = RequestInfo::parse(
            &http::Method::from_bytes(b"MADE-UP").unwrap(),
            "/api/v1/pods",
            &Query::default(),
        );
        assert_eq!(Labels::of(&info, &registry).verb, "OTHER");
    }
}
