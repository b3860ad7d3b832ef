//! A request that is forwarded to another server in the caller's name: its target and its headers.
//!
//! In: the path, query, headers and identity that this server has authorised. Out: the same for the other server, or an error.
//! Nothing that was authorised here may mean something else there. Does not send anything: see [`super::pass`] for the answer.

use apimachinery::status::Status;
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, UPGRADE};

use super::pass;
use super::request::{RequestInfo, percent_decode};
use crate::auth::User;

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// Groups that every server assigns itself.
const EVERYBODY: [&str; 2] = ["system:authenticated", "system:unauthenticated"];

/// Returns the target at the other server: the path after `/apis/<group>/<version>/<resource>/<name>/proxy`, and the query.
///
/// # Errors
/// If the path has another form, or segments that another server could read in another way.
pub fn target(info: &RequestInfo, query: &str) -> Result<String, Status> {
    let mut parts = info.path.trim_start_matches('/').splitn(7, '/');
    // Other paths also lead to a subresource of this name: those of objects in a namespace, and the old ones of watches. They
    // were authorised as something else, and the target begins at another position.
    let expected = [info.resource.as_str(), info.name.as_str(), "proxy"];
    let there = parts.by_ref().skip(3).take(3).map(|part| percent_decode(part, false));
    if !info.namespace.is_empty() || info.subresource != "proxy" || !there.eq(expected) {
        return Err(Status::no_such_route());
    }
    let rest = parts.next().unwrap_or("");
    pass::check_path(rest)?;
    Ok(match query {
        "" => format!("/{rest}"),
        query => format!("/{rest}?{query}"),
    })
}

/// Returns the caller's headers with the caller's name instead of credentials. A name or group that no header can carry is an
/// error: without it, the other server would mistake the caller for another user, or for the proxy.
///
/// # Errors
/// If a header cannot carry a part of the identity.
pub fn headers(given: &HeaderMap, user: &User, upgrading: bool) -> Result<HeaderMap, Status> {
    let mut headers = without_credentials(given, upgrading);
    headers.insert(IMPERSONATE_USER, pass::identity("user name", &user.name)?);
    for group in user.groups.iter().filter(|group| !EVERYBODY.contains(&group.as_str())) {
        headers.append(IMPERSONATE_GROUP, pass::identity("group", group)?);
    }
    Ok(headers)
}

/// Returns the caller's headers without those that identify the caller, and without those that concern only this connection.
pub fn without_credentials(given: &HeaderMap, upgrading: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let text = name.as_str();
        let credential = name == AUTHORIZATION
            || name == HOST
            || text.starts_with("x-remote-")
            || text.starts_with("impersonate-");
        // The client library sets the length of the body.
        if !credential && !pass::is_hop_by_hop(text) && text != "content-length" {
            headers.append(name.clone(), value.clone());
        }
    }
    if upgrading && let Some(protocol) = given.get(UPGRADE) {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::super::Query;
    use super::*;

    #[test]
    fn what_follows_the_proxy_is_asked_as_it_was_written() {
        let base = "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy";
        let target = |path: &str, query: &str| {
            let info = RequestInfo::parse(&http::Method::GET, path, &Query::parse(Some(query)));
            target(&info, query)
        };
        let asked = |rest: &str, query: &str| target(&format!("{base}{rest}"), query).unwrap();
        assert_eq!(asked("", ""), "/");
        assert_eq!(asked("/api/v1/pods", "watch=true&limit=5"), "/api/v1/pods?watch=true&limit=5");
        assert_eq!(asked("/api/v1/a%2Fb/", ""), "/api/v1/a%2Fb/");
        for rest in ["/..", "/api/v1/../../metrics", "/api/%2e%2e/metrics", "/api%2f..%2fmetrics"] {
            assert_eq!(target(&format!("{base}{rest}"), "").unwrap_err().code, 400, "{rest}");
        }
        assert_eq!(target("/apis/cluster.karmada.io/v1alpha1/clusters/m1/%70roxy/x", "").unwrap(), "/x");
        for other in [
            "watch/clusters/m1/proxy/x",
            "watch/x/proxy/proxy/x",
            "watch/namespaces/proxy/clusters/m1/proxy/x",
            "namespaces/a/clusters/m1/proxy/x",
            "namespaces/a/proxy/x",
            "clusters/m1/status/proxy",
            "clusters/m1",
            "clusters",
        ] {
            let path = format!("/apis/cluster.karmada.io/v1alpha1/{other}");
            assert_eq!(target(&path, "").unwrap_err().code, 404, "{other}");
        }
    }

    #[test]
    fn finding_7_no_part_of_an_identity_is_dropped() {
        let user = User { name: "jörg".to_owned(), groups: vec!["bücher".to_owned()], ..User::default() };
        let sent = headers(&HeaderMap::new(), &user, false).unwrap();
        assert_eq!(sent["impersonate-user"].as_bytes(), "jörg".as_bytes());
        assert_eq!(sent["impersonate-group"].as_bytes(), "bücher".as_bytes());
        for odd in ["", "two\nlines", "admin "] {
            let name = User { name: odd.to_owned(), ..User::default() };
            let group = User { groups: vec![odd.to_owned()], ..user.clone() };
            for user in [name, group] {
                assert_eq!(headers(&HeaderMap::new(), &user, false).unwrap_err().code, 400, "{user:?}");
            }
        }
    }

    #[test]
    fn headers_with_an_identity_are_not_forwarded() {
        let mut given = HeaderMap::new();
        for name in ["authorization", "impersonate-user", "x-remote-user", "connection", "accept"] {
            given.insert(name, HeaderValue::from_static("x"));
        }
        let sent = without_credentials(&given, false);
        assert_eq!(sent.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn the_other_server_sees_the_caller_and_none_of_the_credentials() {
        let mut given = HeaderMap::new();
        given.insert("authorization", HeaderValue::from_static("Bearer secret"));
        given.insert("impersonate-user", HeaderValue::from_static("admin"));
        given.insert("accept", HeaderValue::from_static("application/json"));
        given.insert("upgrade", HeaderValue::from_static("websocket"));
        let groups = vec!["dev".to_owned(), "system:authenticated".to_owned()];
        let user = User { name: "jane".to_owned(), groups, ..User::default() };
        let sent = headers(&given, &user, false).unwrap();
        assert!(!sent.contains_key("authorization") && !sent.contains_key("upgrade"));
        assert_eq!(sent.get_all("impersonate-user").iter().collect::<Vec<_>>(), ["jane"]);
        assert_eq!(sent.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["dev"]);
        assert_eq!(sent["accept"], "application/json");
        let switching = headers(&given, &user, true).unwrap();
        assert_eq!(
            (switching["connection"].as_bytes(), switching["upgrade"].as_bytes()),
            (&b"Upgrade"[..], &b"websocket"[..])
        );
    }
}
