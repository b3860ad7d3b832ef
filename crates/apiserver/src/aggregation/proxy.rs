//! Hands a request on to a remote server: streamed both ways, in the name of the caller, upgrades included.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;

use super::Remote;
use crate::auth::User;
use crate::http::body::Body;
use crate::http::{pass, respond};
use crate::outbound::SentBody;
use crate::server::Server;

/// Sends a request to a remote server and returns its answer.
pub(crate) async fn forward<B>(
    server: &Arc<Server>,
    remote: &Remote,
    user: &User,
    parts: &http::request::Parts,
    body: B,
    upgrade: Option<OnUpgrade>,
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
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::new(body.map_err(Into::into).boxed_unsync() as SentBody);
    *request.method_mut() = parts.method.clone();
    let Ok(uri) = path.parse() else { return respond::text(400, "bad path\n") };
    *request.uri_mut() = uri;
    let Some(headers) = headers(&parts.headers, user) else {
        return respond::text(400, "the caller's name cannot be written into a header\n");
    };
    *request.headers_mut() = headers;
    if let Ok(host) = HeaderValue::from_str(&remote.endpoint.address.authority()) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(protocol) = &upgrading {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        request.headers_mut().insert(UPGRADE, protocol.clone());
    }
    let response = match server.outbound.send(server, &remote.endpoint, request).await {
        Ok(response) => response,
        Err(error) => return respond::text(503, format!("error trying to reach service: {error}\n")),
    };
    match upgrade {
        Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            pass::relay(server, client, response)
        }
        _ => pass::stream(response),
    }
}

/// Returns the client's headers without credentials and with the caller's name; nothing if a part of that name cannot be
/// said in a header. Without it the request would be somebody else's.
fn headers(given: &HeaderMap, user: &User) -> Option<HeaderMap> {
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
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
        Some(())
    };
    add("x-remote-user", &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid)?;
    }
    for group in &user.groups {
        add("x-remote-group", group)?;
    }
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("x-remote-extra-{}", escape(key)), value)?;
        }
    }
    Some(headers)
}

/// Escapes a key for use in a header's name: percent signs for all that a name may not hold.
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
        let sent = headers(&given, &user).unwrap();
        assert_eq!(sent.get_all("x-remote-user").iter().collect::<Vec<_>>(), ["jane"]);
        assert!(!sent.contains_key("authorization"));
        assert_eq!(sent["accept"], "application/json");
        assert_eq!(sent["x-remote-extra-example.com%2fteam%20x"], "a");
        user.name = "jörg".to_owned();
        assert_eq!(headers(&given, &user).unwrap()["x-remote-user"], "jörg".as_bytes());
        user.name = "a\nb".to_owned();
        assert_eq!(headers(&given, &user), None, "nobody is asked in the name of nobody");
    }
}
