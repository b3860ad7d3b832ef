//! What the agent lets through to the member: requests in the name of a caller, and nothing that could mean anybody else.
//!
//! In: the head of a stream. Out: the head of the request to the member, or why there is none. Pure. The agent does not
//! trust the other end to have removed what is dangerous: a control plane that was taken over must not get more than the
//! rights of those whose names the account may take on.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Uri};

use crate::{HELLO, METHOD};

const IMPERSONATE_USER: &str = "impersonate-user";
const IMPERSONATE_GROUP: &str = "impersonate-group";
/// Kubernetes takes a token from here, too.
const PROTOCOLS: HeaderName = http::header::SEC_WEBSOCKET_PROTOCOL;
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// What a stream asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// Whether an agent is there.
    Hello,
    Member(Head),
}

/// The head of a request to the member.
#[derive(Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) target: PathAndQuery,
    pub(crate) headers: HeaderMap,
    /// The protocol to switch to.
    pub(crate) switch: Option<HeaderValue>,
}

/// Reads the head of a stream. `protocol` is what an extended CONNECT names; `account` is who we are in the member.
///
/// # Errors
/// Says why the stream is refused.
pub(crate) fn read(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    protocol: Option<&str>,
    account: Option<&str>,
) -> Result<Asked, &'static str> {
    let target = uri.path_and_query().filter(|target| target.path().starts_with('/'));
    let target = target.cloned().ok_or("it has no path")?;
    if method == Method::GET && target.path() == HELLO {
        return Ok(Asked::Hello);
    }
    let (method, switch) = match (method, protocol) {
        (&Method::CONNECT, Some(protocol)) => {
            let carried = single(headers, METHOD)?.ok_or("it does not say which method it carries")?;
            let carried =
                Method::from_bytes(carried.as_bytes()).map_err(|_| "it carries an unknown method")?;
            let protocol = HeaderValue::from_str(protocol).ok().filter(|protocol| !protocol.is_empty());
            (carried, Some(protocol.ok_or("it names no protocol to switch to")?))
        }
        (&Method::CONNECT, None) => return Err("it wants a connection to somewhere"),
        (method, _) => (method.clone(), None),
    };
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    if !known.contains(&method) {
        return Err("the API has no such method");
    }
    let user = single(headers, IMPERSONATE_USER)?.ok_or("it does not say in whose name it is made")?;
    // An empty name is none to Kubernetes, which would then take the request for the account's own.
    if user.as_bytes().trim_ascii().is_empty() {
        return Err("the name in which it is made is empty");
    }
    if account.is_some_and(|account| account.as_bytes() == user.as_bytes().trim_ascii()) {
        return Err("it is made in the name of the tunnel's own account");
    }
    let mut kept = HeaderMap::new();
    for (name, value) in headers {
        let text = name.as_str();
        if text.starts_with("impersonate-") && ![IMPERSONATE_USER, IMPERSONATE_GROUP].contains(&text) {
            return Err("it takes on more of an identity than a name and groups");
        }
        if text == IMPERSONATE_GROUP && value.as_bytes().trim_ascii().is_empty() {
            return Err("it names an empty group");
        }
        if is_for_this_end(text) {
            continue;
        }
        if *name == PROTOCOLS {
            if let Some(value) = without_tokens(value) {
                kept.append(name.clone(), value);
            }
            continue;
        }
        kept.append(name.clone(), value.clone());
    }
    Ok(Asked::Member(Head { method, target, headers: kept, switch }))
}

/// Says whether a header is about credentials, about one connection, or about the tunnel.
fn is_for_this_end(name: &str) -> bool {
    const DROPPED: [&str; 14] = [
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    DROPPED.contains(&name) || name.starts_with("x-remote-") || name.starts_with("karmada-tunnel-")
}

/// Returns the subprotocols of a websocket without those that are credentials.
fn without_tokens(value: &HeaderValue) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let kept: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty() && !protocol.starts_with(TOKEN_PROTOCOL))
        .collect();
    if kept.is_empty() { None } else { HeaderValue::from_str(&kept.join(", ")).ok() }
}

/// Returns the one value of a header; servers differ in which of several they believe.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a HeaderValue>, &'static str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err("a header that counts once stands there twice");
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(given: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn asked(
        method: &str,
        uri: &str,
        given: &[(&'static str, &'static str)],
        protocol: Option<&str>,
    ) -> Result<Asked, &'static str> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        read(&method, &uri.parse().unwrap(), &headers(given), protocol, Some("impersonator"))
    }

    const JANE: (&str, &str) = ("impersonate-user", "jane");

    #[test]
    fn a_request_goes_on_in_the_callers_name_and_without_credentials() {
        let given = [
            JANE,
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("authorization", "Bearer stolen"),
            ("x-remote-user", "admin"),
            ("cookie", "a=b"),
            ("host", "elsewhere"),
            ("accept", "application/json"),
            ("karmada-tunnel-method", "DELETE"),
        ];
        let Ok(Asked::Member(head)) = asked("GET", "https://m1/api/v1/pods?watch=true", &given, None) else {
            panic!("not let through")
        };
        assert_eq!((head.method, head.target.as_str()), (Method::GET, "/api/v1/pods?watch=true"));
        let kept = [
            JANE,
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("accept", "application/json"),
        ];
        assert_eq!(head.headers, headers(&kept));
        assert_eq!(head.switch, None);
    }

    #[test]
    fn nothing_is_asked_in_the_name_of_the_account() {
        let groups = ("impersonate-group", "system:masters");
        for (given, why) in [
            (&[][..], "it does not say in whose name it is made"),
            (&[groups][..], "it does not say in whose name it is made"),
            (&[("impersonate-user", "")][..], "the name in which it is made is empty"),
            (&[("impersonate-user", " \t"), groups][..], "the name in which it is made is empty"),
            (&[JANE, ("impersonate-user", "joe")][..], "a header that counts once stands there twice"),
            (
                &[("impersonate-user", "impersonator")][..],
                "it is made in the name of the tunnel's own account",
            ),
            (&[JANE, ("impersonate-uid", "1")][..], "it takes on more of an identity than a name and groups"),
            (
                &[JANE, ("impersonate-extra-scopes", "all")][..],
                "it takes on more of an identity than a name and groups",
            ),
            (&[JANE, ("impersonate-group", "")][..], "it names an empty group"),
        ] {
            assert_eq!(asked("GET", "https://m1/api", given, None), Err(why), "{given:?}");
        }
    }

    #[test]
    fn only_methods_of_the_api_pass() {
        for method in ["TRACE", "CONNECT", "MADE-UP"] {
            assert!(asked(method, "https://m1/api", &[JANE], None).is_err(), "{method}");
        }
        let connect = |given: &[(&'static str, &'static str)], protocol: &str| {
            asked("CONNECT", "https://m1/api/v1/x/exec", given, Some(protocol))
        };
        assert!(connect(&[JANE], "websocket").is_err(), "which method?");
        for method in ["TRACE", "CONNECT", "", "a b"] {
            assert!(connect(&[JANE, (METHOD, method)], "websocket").is_err(), "{method}");
        }
        assert!(connect(&[JANE, (METHOD, "POST")], "").is_err());
        assert!(connect(&[JANE, (METHOD, "POST")], "a\nb").is_err());
        assert!(connect(&[(METHOD, "POST")], "websocket").is_err(), "whose?");
        let Ok(Asked::Member(head)) = connect(&[JANE, (METHOD, "POST")], "SPDY/3.1") else {
            panic!("refused")
        };
        assert_eq!((head.method, head.switch), (Method::POST, Some(HeaderValue::from_static("SPDY/3.1"))));
        assert_eq!(head.headers, headers(&[JANE]));
    }

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_does_not_reach_the_member() {
        let offered = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io";
        let given = [JANE, ("sec-websocket-protocol", offered)];
        let Ok(Asked::Member(head)) = asked("GET", "https://m1/x", &given, None) else { panic!("refused") };
        assert_eq!(head.headers["sec-websocket-protocol"], "v5.channel.k8s.io, v4.channel.k8s.io");
        let given = [JANE, ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0")];
        let Ok(Asked::Member(head)) = asked("GET", "https://m1/x", &given, None) else { panic!("refused") };
        assert!(!head.headers.contains_key("sec-websocket-protocol"));
    }

    #[test]
    fn the_greeting_needs_no_name() {
        assert_eq!(asked("GET", "https://m1/.tunnel/hello", &[], None), Ok(Asked::Hello));
        assert!(asked("POST", "https://m1/.tunnel/hello", &[], None).is_err());
    }
}
