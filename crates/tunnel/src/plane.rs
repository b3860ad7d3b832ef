//! The control plane's end: the live tunnels, one per cluster.
//!
//! A newer tunnel replaces the older one of its cluster, which takes no new requests; those that are on their way go on.
//! Whoever asks for a client ([`Tunnels::through`]) need not know whether a tunnel is open: each request takes the one
//! that is open at that moment. Agents are greeted when a tunnel opens, and again when other servers come or go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::{HeaderValue, Request};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::PLANE;
use crate::servers::{SERVERS, Servers};
use crate::wire::Wire;
use crate::{Error, GREETING, Limits, Through};

/// How long a cluster whose tunnel has gone counts as one that is reached by a tunnel.
const REMEMBERED: std::time::Duration = std::time::Duration::from_secs(600);
/// Tunnels of one cluster that may say farewell at once; the oldest is cut for the next.
const FAREWELLS: usize = 4;

/// What happened to the tunnel of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It is open; before, there was none.
    Up,
    /// There is none any more.
    Down,
}

type Observer = Box<dyn Fn(&str, News) + Send + Sync>;

/// The live tunnels of a control plane. Clones are the same.
#[derive(Clone)]
pub struct Tunnels(Arc<All>);

struct All {
    pub(crate) limits: Limits,
    clusters: Mutex<HashMap<String, Cluster>>,
    streams: Arc<Semaphore>,
    next: AtomicU64,
    observer: OnceLock<Observer>,
    servers: watch::Sender<Servers>,
}

#[derive(Default)]
struct Cluster {
    live: Option<Arc<Tunnel>>,
    /// Those that were replaced, with what cuts them; oldest first.
    leaving: Vec<(u64, CancellationToken)>,
    lost: Option<Instant>,
}

/// One open tunnel.
pub(crate) struct Tunnel {
    pub(crate) id: u64,
    pub(crate) sender: SendRequest<Body>,
    /// Places for requests.
    pub(crate) slots: Arc<Semaphore>,
    replaced: CancellationToken,
    cut: CancellationToken,
}

/// Two are equal if they are the same.
impl PartialEq for Tunnels {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tunnels {}

impl Default for Tunnels {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl std::fmt::Debug for Tunnels {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.0.clusters.lock().keys()).finish()
    }
}

impl Tunnels {
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(All {
            limits,
            clusters: Mutex::default(),
            streams: Arc::new(Semaphore::new(limits.all_streams)),
            next: AtomicU64::new(0),
            observer: OnceLock::new(),
            servers: watch::Sender::default(),
        }))
    }

    /// Has somebody told when tunnels come and go. There can be one; it must be quick.
    pub fn observe(&self, observer: impl Fn(&str, News) + Send + Sync + 'static) {
        let _ = self.0.observer.set(Box::new(observer));
    }

    /// Returns the way to a cluster through whichever tunnel is open when it is used.
    pub fn through(&self, cluster: &str) -> Through {
        Through::new(self.clone(), cluster)
    }

    /// Says whether a cluster's tunnel is open.
    pub fn is_open(&self, cluster: &str) -> bool {
        self.0.clusters.lock().get(cluster).is_some_and(|it| it.live.is_some())
    }

    /// Returns the clusters whose tunnels are open, sorted.
    pub fn all_open(&self) -> Vec<String> {
        let clusters = self.0.clusters.lock();
        let open = clusters.iter().filter(|(_, it)| it.live.is_some());
        let mut names: Vec<String> = open.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Says whether a cluster is one that is reached by a tunnel: it is open, or was a moment ago.
    pub fn is_known(&self, cluster: &str) -> bool {
        let clusters = self.0.clusters.lock();
        clusters
            .get(cluster)
            .is_some_and(|it| it.live.is_some() || it.lost.is_some_and(|lost| lost.elapsed() < REMEMBERED))
    }

    /// Returns the limits of all tunnels.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn live(&self, cluster: &str) -> Option<Arc<Tunnel>> {
        self.0.clusters.lock().get(cluster)?.live.clone()
    }

    pub(crate) fn all_streams(&self) -> &Arc<Semaphore> {
        &self.0.streams
    }

    pub(crate) fn servers(&self) -> &watch::Sender<Servers> {
        &self.0.servers
    }

    /// Takes a connection on which the agent of a cluster waits for requests, and uses it until it ends.
    ///
    /// `may_stay` is asked from time to time; a tunnel that may not is cut, and so are all when `stop` is cancelled or this
    /// future is dropped.
    ///
    /// # Errors
    /// If the other end does not behave like an agent.
    pub async fn serve<I>(
        &self,
        cluster: &str,
        io: I,
        may_stay: impl Fn() -> bool + Send,
        stop: &CancellationToken,
    ) -> Result<(), Error>
    where
        I: Read + Write + Unpin + Send + 'static,
    {
        let limits = self.0.limits;
        let (cut, gone) = (CancellationToken::new(), CancellationToken::new());
        let _cut_at_the_end = cut.clone().drop_guard();
        let wire = Wire::new(io, cut.clone(), gone.clone());
        let failed = |why: String| Error::Handshake { cluster: cluster.to_owned(), why };
        let mut servers = self.0.servers.subscribe();
        let greeting = hello(servers.borrow_and_update().greeting());
        let opening = tokio::time::timeout(limits.opening, open(wire, &limits, greeting));
        let sender = tokio::select! {
            opened = opening => match opened {
                Ok(Ok(sender)) => sender,
                Ok(Err(why)) => return Err(failed(why)),
                Err(_) => return Err(failed("it did not answer in time".to_owned())),
            },
            () = stop.cancelled() => return Ok(()),
        };
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let replaced = CancellationToken::new();
        let leaving = Leaving { tunnels: self, cluster, id };
        let tunnel = Arc::new(Tunnel {
            id,
            sender,
            slots: Arc::new(Semaphore::new(limits.streams as usize)),
            replaced: replaced.clone(),
            cut: cut.clone(),
        });
        // A tunnel that is not used any more may end.
        let used = Arc::downgrade(&tunnel);
        self.enter(cluster, tunnel);
        let until = tokio::time::sleep(limits.lifetime);
        let mut until = std::pin::pin!(until);
        let mut review = tokio::time::interval(limits.review);
        let mut farewell = false;
        loop {
            tokio::select! {
                () = gone.cancelled() => break,
                () = cut.cancelled() => break,
                () = stop.cancelled() => break,
                _ = review.tick() => {
                    if !may_stay() {
                        tracing::info!(cluster, "an agent may not have its tunnel any more");
                        break;
                    }
                }
                Ok(()) = servers.changed() => {
                    let greeting = hello(servers.borrow_and_update().greeting());
                    if let Some(mut sender) = used.upgrade().map(|tunnel| tunnel.sender.clone()) {
                        tokio::spawn(tokio::time::timeout(limits.opening, async move {
                            greet(&mut sender, greeting).await
                        }));
                    }
                }
                () = replaced.cancelled(), if !farewell => {
                    farewell = true;
                    until.as_mut().reset(at(limits.farewell));
                }
                () = until.as_mut() => {
                    if farewell {
                        break;
                    }
                    farewell = true;
                    self.retire(cluster, id);
                    until.as_mut().reset(at(limits.farewell));
                }
            }
        }
        drop(leaving);
        Ok(())
    }

    /// Makes a tunnel the one that is used.
    fn enter(&self, cluster: &str, tunnel: Arc<Tunnel>) {
        PLANE.opened.inc();
        let new = {
            let mut clusters = self.0.clusters.lock();
            let entry = clusters.entry(cluster.to_owned()).or_default();
            let older = entry.live.replace(tunnel);
            let new = older.is_none();
            if let Some(older) = older {
                entry.say_farewell(&older);
            }
            new
        };
        if new {
            PLANE.is_up(cluster, true);
            self.tell(cluster, News::Up);
        }
    }

    /// Stops using a tunnel that has been open for too long.
    fn retire(&self, cluster: &str, id: u64) {
        let down = {
            let mut clusters = self.0.clusters.lock();
            let Some(entry) = clusters.get_mut(cluster) else { return };
            let Some(old) = entry.live.take_if(|live| live.id == id) else { return };
            entry.lost = Some(Instant::now());
            entry.say_farewell(&old);
            true
        };
        if down {
            PLANE.is_up(cluster, false);
            self.tell(cluster, News::Down);
        }
    }

    /// Forgets a tunnel that has ended.
    fn leave(&self, cluster: &str, id: u64) {
        let down = {
            let mut clusters = self.0.clusters.lock();
            let Some(entry) = clusters.get_mut(cluster) else { return };
            entry.leaving.retain(|(other, _)| *other != id);
            let down = entry.live.take_if(|live| live.id == id).is_some();
            if down {
                entry.lost = Some(Instant::now());
            }
            // Clusters come and go; what is remembered of those that are gone is bounded by time.
            clusters.retain(|_, it| {
                it.live.is_some()
                    || !it.leaving.is_empty()
                    || it.lost.is_some_and(|lost| lost.elapsed() < REMEMBERED)
            });
            down
        };
        if down {
            PLANE.is_up(cluster, false);
            self.tell(cluster, News::Down);
        }
    }

    fn tell(&self, cluster: &str, news: News) {
        tracing::info!(cluster, ?news, "tunnel");
        if let Some(observer) = self.0.observer.get() {
            observer(cluster, news);
        }
    }
}

impl Cluster {
    fn say_farewell(&mut self, old: &Tunnel) {
        old.replaced.cancel();
        self.leaving.push((old.id, old.cut.clone()));
        while self.leaving.len() > FAREWELLS {
            self.leaving.remove(0).1.cancel();
        }
    }
}

/// Forgets the tunnel also if whoever serves it is dropped.
struct Leaving<'a> {
    tunnels: &'a Tunnels,
    cluster: &'a str,
    id: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.tunnels.leave(self.cluster, self.id);
    }
}

fn at(after: std::time::Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(after).unwrap_or(now)
}

/// Begins to speak HTTP/2 and makes sure that an agent answers.
async fn open<I>(io: I, limits: &Limits, hello: Request<Body>) -> Result<SendRequest<Body>, String>
where
    I: Read + Write + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits.window)
        .initial_connection_window_size(limits.connection_window())
        .max_send_buf_size(limits.window as usize)
        .max_header_list_size(limits.headers)
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong)
        .keep_alive_while_idle(true);
    let (mut sender, connection) =
        builder.handshake(io).await.map_err(|error| format!("no HTTP/2: {error}"))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection of a tunnel ended");
        }
    });
    greet(&mut sender, hello).await?;
    Ok(sender)
}

/// Returns the question whether an agent is there, which tells it of the servers that there are.
fn hello(servers: Option<HeaderValue>) -> Request<Body> {
    let mut hello = Request::new(Body::empty());
    *hello.uri_mut() = http::Uri::from_static(GREETING);
    hello.headers_mut().extend(servers.map(|servers| (SERVERS, servers)));
    hello
}

async fn greet(sender: &mut SendRequest<Body>, hello: Request<Body>) -> Result<(), String> {
    let answer = sender.send_request(hello).await.map_err(|error| format!("no answer: {error}"))?;
    if answer.status() != http::StatusCode::OK {
        return Err(format!("the answer to the greeting is {}", answer.status()));
    }
    Ok(())
}
