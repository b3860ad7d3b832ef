//! Forwards a request to a remote server: streamed both ways, in the caller's name, upgrades included.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, LOCATION, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;

use super::Remote;
use crate::auth::User;
use crate::http::body::{self, Body};
use crate::http::{pass, respond};
use crate::outbound::SentBody;
use crate::serve::timed_out;
use crate::server::Server;

/// A client would follow the redirect with the credentials it has for this server (CVE-2022-3172).
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// Sends a request to a remote server and returns its answer. The answer must begin before the deadline. It must also end before
/// it, unless the request stays open.
#[expect(clippy::too_many_arguments, reason = "all of a request")]
pub(crate) async fn forward<B>(
    server: &Arc<Server>,
    remote: &Remote,
    user: &User,
    parts: &http::request::Parts,
    body: B,
    upgrade: Option<OnUpgrade>,
    long: bool,
    deadline: Instant,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if !remote.available {
        return respond::text(503, "service unavailable\n");
    }
    if remote.service.resolve(server).is_err() {
        return respond::text(503, "service unavailable\n");
    }
    let upgrading = parts.headers.get(UPGRADE).cloned().filter(|_| upgrade.is_some());
    if let Err(status) = pass::check_path(parts.uri.path()) {
        return respond::error(&status);
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(body.map_err(Into::into).boxed_unsync() as SentBody);
    *request.method_mut() = parts.method.clone();
    let Ok(uri) = path.parse() else { return respond::text(400, "bad path\n") };
    *request.uri_mut() = uri;
    *request.headers_mut() = match headers(&parts.headers, user) {
        Ok(headers) => headers,
        Err(status) => return respond::error(&status),
    };
    if let Ok(host) = HeaderValue::from_str(&remote.endpoint.address.authority()) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(protocol) = &upgrading {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        request.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let sent = server.outbound.send(server, &remote.endpoint, request);
    let response = match tokio::time::timeout_at(deadline, sent).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return respond::text(503, format!("error trying to reach service: {error}\n")),
        Err(_) => return timed_out(),
    };
    if response.status().is_redirection() && response.headers().contains_key(LOCATION) {
        return respond::text(StatusCode::BAD_GATEWAY.as_u16(), REDIRECTED);
    }
    match upgrade {
        Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            pass::relay(server, client, response)
        }
        _ if long => pass::stream(response),
        _ => pass::stream(response).map(|body| body::until(body, deadline)),
    }
}

/// Returns the client's headers without credentials and with the caller's name.
fn headers(given: &HeaderMap, user: &User) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let text = name.as_str();
        if pass::is_hop_by_hop(text)
            || text == "authorization"
            || text == "host"
            || text.starts_with("x-remote-")
            || text.starts_with("impersonate-")
        {
            continue;
        }
        headers.append(name.clone(), value.clone());
    }
    headers.append("x-remote-user", pass::identity("user name", &user.name)?);
    if !user.uid.is_empty() {
        headers.append("x-remote-uid", pass::identity("uid", &user.uid)?);
    }
    for group in &user.groups {
        headers.append("x-remote-group", pass::identity("group", group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::from_bytes(format!("x-remote-extra-{}", escape(key)).as_bytes());
        let name = name.map_err(|_| {
            Status::bad_request(format!("the extra {key:?} of the user cannot be the name of a header"))
        })?;
        for value in values {
            headers.append(name.clone(), pass::identity("user's extra", value)?);
        }
    }
    Ok(headers)
}

/// Escapes a key for the name of a header: characters that a name must not contain are percent-encoded.
fn escape(key: &str) -> String {
    let mut out = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_name_somebody_else() {
        let mut given = HeaderMap::new();
        given.insert("x-remote-user", HeaderValue::from_static("admin"));
        given.insert("authorization", HeaderValue::from_static("Bearer secret"));
        given.insert("accept", HeaderValue::from_static("application/json"));
        let mut user = User { name: "jane".to_owned(), groups: vec!["dev".to_owned()], ..User::default() };
        user.extra.insert("example.com/team x".to_owned(), vec!["a".to_owned()]);
        let headers = headers(&given, &user).unwrap();
        assert_eq!(headers.get_all("x-remote-user").iter().collect::<Vec<_>>(), ["jane"]);
        assert!(!headers.contains_key("authorization"));
        assert_eq!(headers["accept"], "application/json");
        assert_eq!(headers["x-remote-extra-example.com%2fteam%20x"], "a");
    }

    #[test]
    fn no_part_of_an_identity_is_dropped() {
        let user = User { name: "jörg".to_owned(), ..User::default() };
        let sent = headers(&HeaderMap::new(), &user).unwrap();
        assert_eq!(sent["x-remote-user"].as_bytes(), "jörg".as_bytes());
        let odd = || "two\nlines".to_owned();
        let refused = [
            User { name: odd(), ..User::default() },
            User { uid: odd(), ..user.clone() },
            User { groups: vec![odd()], ..user.clone() },
            User { extra: [("team".to_owned(), vec![odd()])].into(), ..user },
        ];
        for user in refused {
            assert_eq!(headers(&HeaderMap::new(), &user).unwrap_err().code, 400, "{user:?}");
        }
    }
}
