//! Passes another server's answer on to a client: streamed or, once both sides have switched protocols, by joining the two
//! connections.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{HeaderValue, LOCATION};
use http::{HeaderMap, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{self, Body};
use super::request::percent_decode;
use crate::server::Server;

/// Headers that concern one connection, not the request.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Returns whether a header, in lower case, concerns one connection and must not be passed on.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.contains(&name)
}

/// Passes an answer on as it arrives, no faster than the client reads. If the other server breaks it off, the client's stream is
/// broken off, too. If the client disconnects, the other server's answer is dropped.
pub fn stream<B>(response: Response<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    let (parts, incoming) = response.into_parts();
    let mut answer = Response::new(body::passed(incoming));
    *answer.status_mut() = parts.status;
    for (name, value) in &parts.headers {
        if !is_hop_by_hop(name.as_str()) {
            answer.headers_mut().append(name.clone(), value.clone());
        }
    }
    answer
}

/// Returns whether an answer redirects the client to another host. The client would follow with its credentials for this server
/// (CVE-2022-3172). A path leads back to this server, so servers may send one, as those behind a proxy of a Pod do.
pub fn redirects_elsewhere(status: StatusCode, headers: &HeaderMap) -> bool {
    // Clients interpret `//host` and `/\host` as a host, and remove tabs before they look.
    let is_path = |location: &HeaderValue| {
        let location = location.as_bytes();
        let plain = location.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'\\');
        plain && location.starts_with(b"/") && !location.starts_with(b"//")
    };
    status.is_redirection() && !headers.get_all(LOCATION).iter().all(is_path)
}

/// Refuses a path with `.` or `..` segments, escaped or not: the next server could read it as a path other than the authorised
/// one.
pub fn check_path(path: &str) -> Result<(), Status> {
    let decoded = percent_decode(path, false);
    if decoded.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
        return Err(Status::bad_request(format!(
            "invalid path {path:?}: segments \".\" and \"..\" are not passed on"
        )));
    }
    Ok(())
}

/// Returns a part of the caller's identity as the value of a header. A value that a header cannot carry unchanged is an error:
/// without it, the other server would mistake the caller for another user.
pub fn identity(what: &str, text: &str) -> Result<HeaderValue, Status> {
    let unchanged = !text.is_empty() && text.trim_matches([' ', '\t']) == text;
    HeaderValue::from_bytes(text.as_bytes()).ok().filter(|_| unchanged).ok_or_else(|| {
        Status::bad_request(format!(
            "the {what} {text:?} cannot be passed on: empty values, control characters and spaces at either end do not \
             survive in a header"
        ))
    })
}

/// Joins the two connections once both sides have switched protocols.
pub fn relay<B>(server: &Arc<Server>, client: OnUpgrade, mut response: Response<B>) -> Response<Body> {
    let far = hyper::upgrade::on(&mut response);
    let stop = server.stop.clone();
    tokio::spawn(async move {
        let (Ok(near), Ok(far)) = tokio::join!(client, far) else { return };
        let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut near, &mut far) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "an upgraded connection ended");
                }
            }
            () = stop.cancelled() => {}
        }
    });
    let mut answer = Response::new(body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = response.headers().clone();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_24_dot_segments_are_not_passed_on_however_they_are_written() {
        for path in ["/..", "/a/../b", "/a/%2e%2E/b", "/a/.%2e", "/a/./b", "/a%2F..%2Fb", "/a/..%5cb", "/%2e"]
        {
            assert_eq!(check_path(path).unwrap_err().code, 400, "{path}");
        }
        for path in ["/", "", "/api/v1/a%2Fb/", "/a..b/...", "/api/v1/%252e%252e", "/a//b"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn finding_13_a_location_that_names_a_host_is_not_a_path() {
        let elsewhere = |code: u16, locations: &[&str]| {
            let mut headers = HeaderMap::new();
            for location in locations {
                headers.append(LOCATION, HeaderValue::from_bytes(location.as_bytes()).unwrap());
            }
            redirects_elsewhere(StatusCode::from_u16(code).unwrap(), &headers)
        };
        for host in [
            "https://evil.example/",
            "HTTP://evil",
            "//evil/",
            "/\\evil",
            "\\\\evil",
            "/\t/evil",
            "javascript:x",
            "",
            "/ö",
        ] {
            assert!(elsewhere(302, &[host]) && elsewhere(307, &["/a", host]), "{host:?}");
        }
        assert!(!elsewhere(302, &["/api/v1/namespaces/a/pods/b/proxy/?c=d//e"]));
        assert!(!elsewhere(304, &[]), "not modified");
        assert!(!elsewhere(201, &["https://evil.example/"]), "nobody follows what was made");
    }

    #[test]
    fn an_identity_is_passed_on_unchanged_or_not_at_all() {
        assert_eq!(identity("user", "jörg").unwrap().as_bytes(), "jörg".as_bytes());
        assert_eq!(identity("user", "a b").unwrap(), "a b");
        for odd in ["", " admin", "admin ", "admin\t", "a\nb", "a\u{0}", "\u{7f}"] {
            let refused = identity("user", odd).unwrap_err();
            assert!(refused.code == 400 && refused.message.contains("user"), "{odd:?}: {}", refused.message);
        }
    }
}
