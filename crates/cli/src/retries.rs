//! Clients that wait only when the server asks them to.
//!
//! The client library repeats requests that get 429, 503 or 504 for minutes, without a word. kubectl repeats a request when the
//! answer has a `Retry-After`, ten times at most, and reports any other answer at once. So do ours.

use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, header::RETRY_AFTER};
use kube::client::Body;
use kube::{Client, Config};
use tower::Layer as _;
use tower::retry::{Policy, RetryLayer};

/// As client-go.
const MOST: u32 = 10;

/// The longest time that a server may ask for at once. Ours asks for a second.
const LONGEST: Duration = Duration::from_secs(30);

/// Makes a client for a configuration.
///
/// # Errors
/// If certificates, keys or addresses of the configuration cannot be used.
pub fn client(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let once = Client::try_from(config)?;
    let send = tower::service_fn(move |request| {
        let once = once.clone();
        async move { once.send(request).await }
    });
    let client = RetryLayer::new(WhenAsked { left: MOST }).layer(send);
    Ok(Client::new(client, namespace))
}

/// Repeats a request when the answer says after which time.
#[derive(Debug, Clone)]
struct WhenAsked {
    left: u32,
}

impl<Answer, Error> Policy<Request<Body>, Response<Answer>, Error> for WhenAsked {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<Response<Answer>, Error>,
    ) -> Option<Self::Future> {
        let response = result.as_ref().ok()?;
        let wait = asked_for(response.status(), response.headers())?;
        self.left = self.left.checked_sub(1)?;
        Some(tokio::time::sleep(wait))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let mut copy = Request::new(request.body().try_clone()?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
}

/// Returns how long the server asks the client to wait before it tries again, if it does.
fn asked_for(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tower::{Service as _, ServiceExt as _};

    use super::*;

    /// Gives one answer again and again, and counts the requests.
    async fn asked(status: u16, retry_after: Option<&str>) -> (u32, u16) {
        let count = Arc::new(AtomicU32::new(0));
        let (counter, retry_after) = (count.clone(), retry_after.map(str::to_owned));
        let server = tower::service_fn(move |_: Request<Body>| {
            counter.fetch_add(1, Ordering::Relaxed);
            let mut response = Response::builder().status(status);
            if let Some(seconds) = &retry_after {
                response = response.header(RETRY_AFTER, seconds);
            }
            std::future::ready(response.body(Body::empty()))
        });
        let mut client = RetryLayer::new(WhenAsked { left: MOST }).layer(server);
        let request = Request::get("/api").body(Body::empty()).expect("a request");
        let client = client.ready().await.expect("always ready");
        let answer = client.call(request).await.expect("an answer");
        (count.load(Ordering::Relaxed), answer.status().as_u16())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_final_unless_the_server_asks_for_another_try() {
        for (status, retry_after, requests) in [
            (200, Some("1"), 1),
            (404, Some("1"), 1),
            (503, None, 1),
            (503, Some("soon"), 1),
            (504, None, 1),
            (429, None, 1),
            (429, Some("1"), MOST + 1),
            (503, Some("18446744073709551615"), MOST + 1),
        ] {
            assert_eq!(asked(status, retry_after).await, (requests, status), "{status} {retry_after:?}");
        }
    }
}
