//! The agent's end: opens a tunnel to every server, serves its streams, and opens it again whenever it ends.
//!
//! A tunnel is renewed before the control plane ends it: the next one is opened first, then the old one takes no new streams,
//! and those that are open go on. Failed attempts wait longer and longer, by chance more or less, so that the agents of a
//! control plane that comes back do not all come at once. When to ask for which tunnel, `roster` decides.

use std::convert::Infallible;
use std::sync::Arc;

use futures::future::BoxFuture;
use hyper::rt::{Read, Write};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::Limits;
use crate::connect::{self, Closed, Reached};
use crate::inward::Inward;
use crate::metrics::AGENT;
use crate::roster::{Ending, Kept, Missed, Next, Roster, Told, after, spread};
use crate::servers::Names;

/// The two servers that an agent stands between. Asked again for every tunnel: credentials are renewed.
pub trait Ends: Send + Sync + 'static {
    /// Returns how the control plane is reached, with the agent's own certificate.
    fn control(&self) -> BoxFuture<'_, Result<Config, BoxError>>;

    /// Returns how the member is reached, with the account for the tunnel.
    fn member(&self) -> BoxFuture<'_, Result<Reached, BoxError>>;
}

/// Keeps the tunnels of a cluster open until told to stop.
pub async fn keep(cluster: &str, ends: &impl Ends, limits: Limits, stop: CancellationToken) {
    let mut tunnels = JoinSet::new();
    let news = Arc::new(Notify::new());
    let mut roster = Roster::new(Instant::now());
    let mut said = String::new();
    loop {
        for server in roster.reap(Instant::now(), rand::random()) {
            tracing::warn!(cluster, server, "the tunnel has ended");
        }
        let next = roster.next(Instant::now(), rand::random());
        let (open_now, known) = roster.count();
        AGENT.is_up(open_now, known);
        if let Next::Rest(until) = next {
            let rest = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rest => {}
                Some(_) = tunnels.join_next() => {}
                () = news.notified() => {}
                () = stop.cancelled() => break,
            }
            continue;
        }
        let held = roster.held(Instant::now());
        let opened = tokio::select! {
            opened = open(cluster, ends, &limits, &held, &news) => opened,
            () = stop.cancelled() => break,
        };
        let now = Instant::now();
        match opened {
            Ok((io, server, inward)) => {
                AGENT.tried("opened");
                tracing::info!(cluster, server, "the tunnel is open");
                said.clear();
                let (ending, told) = (Ending::default(), inward.told.clone());
                tunnels.spawn(serve(io, inward, ending.clone()));
                let renewal = after(now, spread(limits.renewal, rand::random()));
                let kept = Kept { ending, told, renewal };
                if let Some(old) = roster.opened(server, kept, now, rand::random()) {
                    old.ending.farewell.cancel();
                }
            }
            Err(Closed::Held) => {
                AGENT.tried("held");
                if roster.missed(Missed::Known, now, rand::random()) {
                    let servers = roster.missing().map(String::as_str).collect::<Vec<_>>().join(", ");
                    tracing::warn!(
                        cluster,
                        servers,
                        "some servers of the control plane are never met, and cannot reach this cluster: whatever spreads \
                         connections over the servers must not send all of one client to the same server"
                    );
                }
            }
            Err(closed) => {
                let refused = matches!(closed, Closed::Unknown(_) | Closed::Refused { .. });
                AGENT.tried(if refused { "refused" } else { "failed" });
                // The same news again and again is none.
                let text = chain(&closed);
                if text == said {
                    tracing::debug!(cluster, "no tunnel: {text}");
                } else {
                    tracing::warn!(cluster, "no tunnel: {text}");
                    said = text;
                }
                let why = if refused { Missed::Refused } else { Missed::Failed };
                roster.missed(why, now, rand::random());
            }
        }
    }
    AGENT.is_up(0, 0);
    // Dropping the tunnels cuts them.
}

/// Opens a tunnel to a server that is not among those who have one. Returns also who the server is; a server that does not say so
/// has an empty name.
async fn open(
    cluster: &str,
    ends: &impl Ends,
    limits: &Limits,
    held: &Names,
    news: &Arc<Notify>,
) -> Result<(Upgraded, String, Inward), Closed> {
    let opening = async {
        let member = ends.member().await.map_err(Closed::Member)?;
        let control = ends.control().await.map_err(Closed::Credentials)?;
        let (io, server) = connect::open(&control, cluster, held).await?;
        let slots = Arc::new(Semaphore::new(limits.streams as usize));
        let inward = Inward { member, limits: *limits, slots, told: Told::new(news) };
        Ok((io, server.unwrap_or_default(), inward))
    };
    tokio::time::timeout(limits.opening, opening).await.unwrap_or(Err(Closed::Silent))
}

/// Serves the streams of a tunnel until it ends.
async fn serve<I>(io: I, inward: Inward, ending: Ending)
where
    I: Read + Write + Unpin + Send + 'static,
{
    let _over = ending.over.drop_guard();
    let limits = inward.limits;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(limits.announced_streams())
        .initial_stream_window_size(limits.window)
        .initial_connection_window_size(limits.connection_window())
        .max_send_buf_size(limits.window as usize)
        .max_header_list_size(limits.headers)
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong);
    let service = service_fn(move |request| {
        let inward = inward.clone();
        async move { Ok::<_, Infallible>(inward.answer(request).await) }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending.farewell.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.farewell, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = chain(&error), "the connection of the tunnel ended");
    }
}

/// Returns an error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}
