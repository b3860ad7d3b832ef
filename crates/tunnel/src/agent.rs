//! The agent's end: opens the tunnel, serves its streams, and opens it again whenever it ends.
//!
//! A tunnel is renewed before the control plane ends it: the next one is opened first, then the old one takes no new streams,
//! and those that are open go on. Failed attempts wait longer and longer, by chance more or less, so that the agents of a
//! control plane that comes back do not all come at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::rt::{Read, Write};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::Limits;
use crate::connect::{self, Closed, Reached};
use crate::inward::Inward;
use crate::metrics::AGENT;

/// The pause after the first failure, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause after the control plane said that it will not have a tunnel: that changes when somebody changes something.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// A tunnel that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(30);

/// The two servers that an agent stands between. Asked again for every tunnel: credentials are renewed.
pub trait Ends: Send + Sync + 'static {
    /// Returns how the control plane is reached, with the agent's own certificate.
    fn control(&self) -> BoxFuture<'_, Result<Config, BoxError>>;

    /// Returns how the member is reached, with the account for the tunnel.
    fn member(&self) -> BoxFuture<'_, Result<Reached, BoxError>>;
}

/// Keeps the tunnel of a cluster open until told to stop.
pub async fn keep(cluster: &str, ends: &impl Ends, limits: Limits, stop: CancellationToken) {
    let mut tunnels = JoinSet::new();
    let mut current: Option<Ending> = None;
    let mut failures = 0;
    let mut told = String::new();
    loop {
        let opened = tokio::select! {
            opened = open(cluster, ends, &limits) => opened,
            () = stop.cancelled() => break,
        };
        while tunnels.try_join_next().is_some() {}
        let pause = match opened {
            Ok((io, inward)) => {
                AGENT.tried("opened");
                tracing::info!(cluster, "the tunnel is open");
                told.clear();
                let ending = Ending::default();
                tunnels.spawn(serve(io, inward, ending.clone()));
                if let Some(old) = current.replace(ending.clone()) {
                    old.farewell.cancel();
                }
                let since = Instant::now();
                AGENT.up.set(1);
                let over = tokio::select! {
                    () = ending.over.cancelled() => true,
                    () = tokio::time::sleep(spread(limits.renewal, rand::random())) => false,
                    () = stop.cancelled() => break,
                };
                if !over {
                    tracing::debug!(cluster, "renewing the tunnel");
                    failures = 0;
                    continue;
                }
                AGENT.up.set(0);
                current = None;
                tracing::warn!(cluster, "the tunnel has ended");
                failures = if since.elapsed() >= GOOD { 1 } else { grown(failures) };
                pause(failures, rand::random())
            }
            Err(closed) => {
                let refused = matches!(closed, Closed::Unknown(_) | Closed::Refused { .. });
                AGENT.tried(if refused { "refused" } else { "failed" });
                failures = grown(failures);
                // The same news again and again is none.
                let news = chain(&closed);
                if news == told {
                    tracing::debug!(cluster, "no tunnel: {news}");
                } else {
                    tracing::warn!(cluster, "no tunnel: {news}");
                    told = news;
                }
                if refused { spread(REFUSED_PAUSE, rand::random()) } else { pause(failures, rand::random()) }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => break,
        }
    }
    AGENT.up.set(0);
    // Dropping the tunnels cuts them.
}

/// How a tunnel ends.
#[derive(Default, Clone)]
struct Ending {
    /// It shall take no new streams.
    farewell: CancellationToken,
    /// It has ended.
    over: CancellationToken,
}

async fn open(
    cluster: &str,
    ends: &impl Ends,
    limits: &Limits,
) -> Result<(hyper::upgrade::Upgraded, Inward), Closed> {
    let opening = async {
        let member = ends.member().await.map_err(Closed::Member)?;
        let control = ends.control().await.map_err(Closed::Credentials)?;
        let io = connect::open(&control, cluster).await?;
        let slots = Arc::new(Semaphore::new(limits.streams as usize));
        Ok((io, Inward { member, limits: *limits, slots }))
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

fn grown(failures: u32) -> u32 {
    failures.saturating_add(1)
}

/// Returns how long to wait after so many failures in a row: doubled each time, and between half and all of it by chance.
fn pause(failures: u32, chance: f64) -> Duration {
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    spread(FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE), chance)
}

/// Returns between half and all of a time.
fn spread(time: Duration, chance: f64) -> Duration {
    time.mul_f64(chance.clamp(0.0, 1.0).mul_add(0.5, 0.5))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ_by_chance() {
        assert_eq!(pause(1, 1.0), Duration::from_millis(500));
        assert_eq!(pause(1, 0.0), Duration::from_millis(250));
        assert_eq!(pause(4, 1.0), Duration::from_secs(4));
        for many in [8, 33, u32::MAX] {
            assert_eq!(pause(many, 1.0), LONGEST_PAUSE, "{many}");
            assert_eq!(pause(many, 0.0), LONGEST_PAUSE / 2, "{many}");
        }
    }
}
