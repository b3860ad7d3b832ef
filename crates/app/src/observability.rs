//! Metrics and health of a process that is not an API server.
//!
//! Plain HTTP without credentials, as in upstream's components; therefore off unless an address is given.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::bail;
use apiserver::http::listener::{self, Guest, Host, Settings};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

/// What an address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    Metrics,
    Health,
}

/// Parses an address as Go writes it: `:8080` is this port on all interfaces, `0` is none.
pub(crate) fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "0" || text.is_empty() {
        return Ok(None);
    }
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse()
        .map(Some)
        .map_err(|_| format!("{text:?} is not an address such as 127.0.0.1:8080, :8080 or 0"))
}

/// Serves the topics until it is stopped; two of them may share an address.
pub(crate) async fn serve(
    wanted: &[(Topic, Option<SocketAddr>)],
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut listeners: Vec<(SocketAddr, Vec<Topic>)> = Vec::new();
    for (topic, address) in wanted {
        let Some(address) = address else { continue };
        // Port 0 is a different port each time.
        match listeners.iter_mut().find(|(known, _)| known == address && address.port() != 0) {
            Some((_, topics)) => topics.push(*topic),
            None => listeners.push((*address, vec![*topic])),
        }
    }
    for (address, topics) in listeners {
        let listener = listener::bind(address).await?;
        let Ok(bound) = listener.local_addr() else { bail!("the listener on {address} has no address") };
        tracing::info!(address = %bound, ?topics, "answers without credentials");
        let host = Arc::new(Topics(topics));
        tokio::spawn(listener::run(listener, None, host, Settings::for_probes(), stop.clone()));
    }
    Ok(())
}

/// The topics of one address.
struct Topics(Vec<Topic>);

impl Host for Topics {
    type Peer = ();
    type Body = Full<Bytes>;

    fn meet(&self, _: Option<&rustls::ServerConnection>, _: &Arc<Guest>) {}

    async fn answer(&self, (): (), request: Request<Incoming>) -> Response<Full<Bytes>> {
        answer(request.uri().path(), &self.0)
    }
}

fn answer(path: &str, topics: &[Topic]) -> Response<Full<Bytes>> {
    let (code, text, kind) = match path {
        "/metrics" if topics.contains(&Topic::Metrics) => {
            let text = format!("{}# EOF\n", runtime::metrics::render());
            (StatusCode::OK, text, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        }
        "/healthz" | "/healthz/ping" if topics.contains(&Topic::Health) => {
            (StatusCode::OK, "ok".to_owned(), "text/plain; charset=utf-8")
        }
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned(), "text/plain; charset=utf-8"),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_writes_them() {
        assert_eq!(address("0"), Ok(None));
        assert_eq!(address(":8080"), Ok(Some(([0, 0, 0, 0], 8080).into())));
        assert_eq!(address("127.0.0.1:1"), Ok(Some(([127, 0, 0, 1], 1).into())));
        assert!(address("nowhere").is_err());
    }

    #[test]
    fn an_address_answers_its_own_topics_alone() {
        assert_eq!(answer("/healthz/ping", &[Topic::Health]).status(), StatusCode::OK);
        assert_eq!(answer("/metrics", &[Topic::Health]).status(), StatusCode::NOT_FOUND);
        assert_eq!(answer("/metrics", &[Topic::Metrics]).status(), StatusCode::OK);
    }
}
