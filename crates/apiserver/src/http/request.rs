//! The target of a request, read only from its method, path and query.

use apimachinery::names;
use apimachinery::selector::{FieldSelector, LabelSelector};
use http::Method;
use std::borrow::Cow;

/// The decoded query, in the order of the request. Later duplicates are kept: Kubernetes uses the first of each.
#[derive(Debug, Default, Clone)]
pub struct Query {
    pairs: Vec<(String, String)>,
    raw: Box<str>,
}

impl Query {
    pub fn parse(raw: Option<&str>) -> Self {
        let pairs = raw
            .unwrap_or("")
            .split('&')
            .filter(|part| !part.is_empty())
            .map(|part| {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                (percent_decode(key, true).into_owned(), percent_decode(value, true).into_owned())
            })
            .collect();
        Self { pairs, raw: raw.unwrap_or("").into() }
    }

    /// Returns the query as it was sent, for forwarding.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Returns the value; a missing one is empty.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or("")
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Reads a boolean like Kubernetes' query conversion: a present value other than `false` and `0` is true.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    }
}

/// Decodes `%XX` (and `+` in queries). Broken escapes stay unchanged.
pub fn percent_decode(text: &str, plus_is_space: bool) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte == b'%' || (plus_is_space && byte == b'+')) {
        return Cow::Borrowed(text);
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut rest = text.as_bytes();
    let mut out = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, tail @ ..]) => {
                digit(high).zip(digit(low)).map(|(high, low)| (high << 4 | low, tail))
            }
            _ => None,
        };
        let (byte, tail) = escaped.unwrap_or((*first, after));
        out.push(if escaped.is_none() && plus_is_space && byte == b'+' { b' ' } else { byte });
        rest = tail;
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// A request's target, for authorisation and routing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub path: String,
    pub is_resource: bool,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the lower-case method for
    /// non-resource paths.
    pub verb: &'static str,
    /// `api` or `apis`.
    pub prefix: &'static str,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// The path after the subresource, for proxies.
    pub rest: String,
}

impl RequestInfo {
    /// Reads the target from method, path and query.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let mut info = Self { path: path.to_owned(), verb: method_verb(method), ..Self::default() };
        let segments: Vec<Cow<'_, str>> =
            path.trim_matches('/').split('/').map(|part| percent_decode(part, false)).collect();
        let mut parts = segments.iter().map(AsRef::as_ref);
        let (group, version) = match parts.next() {
            Some("api") => {
                info.prefix = "api";
                ("", parts.next())
            }
            Some("apis") => {
                info.prefix = "apis";
                (parts.next().unwrap_or(""), parts.next())
            }
            _ => return info,
        };
        let Some(version) = version else { return info };
        let parts: Vec<&str> = parts.collect();
        let mut rest = parts.as_slice();
        if matches!(rest, [] | [""]) {
            return info;
        }
        info.is_resource = true;
        info.group = group.to_owned();
        info.version = version.to_owned();
        info.verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD => "get",
            _ => "",
        };
        let mut deprecated_watch = false;
        if let ["watch", after @ ..] = rest
            && !after.is_empty()
        {
            deprecated_watch = true;
            rest = after;
        }
        if let ["namespaces", namespace, after @ ..] = rest {
            info.namespace = (*namespace).to_owned();
            // `namespaces/x/status` and `/finalize` are parts of the Namespace itself.
            if !matches!(after, [] | ["status" | "finalize", ..]) {
                rest = after;
            }
        }
        let part = |place: usize| rest.get(place).copied().unwrap_or_default().to_owned();
        (info.resource, info.name, info.subresource) = (part(0), part(1), part(2));
        info.rest = rest.get(3..).unwrap_or_default().join("/");
        if info.resource == "namespaces" {
            info.namespace = info.name.clone();
        }
        if info.name.is_empty() {
            if info.verb == "get" {
                info.verb = "list";
            } else if info.verb == "delete" {
                info.verb = "deletecollection";
            }
        }
        // The old path is authorised as a watch, whatever the method is; only GET is answered.
        if deprecated_watch {
            info.verb = "watch";
        } else if info.verb == "list" {
            // A list that selects one name is authorised for that name, so that resourceNames works for it.
            info.name = single_name(query).unwrap_or_default();
            if query.flag("watch") {
                info.verb = "watch";
            }
        }
        info
    }

    /// Returns whether the request stays open: such requests do not count against limits and have no deadline.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || matches!(self.subresource.as_str(), "proxy" | "log" | "exec" | "attach" | "portforward")
    }

    /// Returns `resource` or `resource/subresource`.
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

/// Returns the one name to which a list is limited; `None` if the query cannot be read.
fn single_name(query: &Query) -> Option<String> {
    let selector = query.text("fieldSelector");
    if selector.is_empty() {
        return None;
    }
    let number = |key: &str| query.text(key).is_empty() || query.text(key).parse::<i64>().is_ok();
    if !number("limit") || !number("timeoutSeconds") {
        return None;
    }
    LabelSelector::parse(query.text("labelSelector")).ok()?;
    let fields = FieldSelector::parse(selector).ok()?;
    let name = fields.required_value("metadata.name")?;
    names::path_segment(name).is_empty().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, target: &str, verb: &str, resource: &str, namespace: &str, name: &str) {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse(&method, path, &Query::parse(query));
        assert_eq!(
            (info.verb, info.full_resource().as_str(), info.namespace.as_str(), info.name.as_str()),
            (verb, resource, namespace, name),
            "{target}"
        );
    }

    #[test]
    fn paths_map_to_verbs_and_resources() {
        check(Method::GET, "/api/v1/pods", "list", "pods", "", "");
        check(Method::GET, "/api/v1/namespaces/a/pods?watch=1", "watch", "pods", "a", "");
        check(Method::GET, "/api/v1/namespaces/a/pods?watch=false", "list", "pods", "a", "");
        check(Method::GET, "/api/v1/watch/namespaces/a/pods/x", "watch", "pods", "a", "x");
        check(Method::POST, "/api/v1/watch/namespaces/a/pods", "watch", "pods", "a", "");
        check(Method::PUT, "/api/v1/namespaces/a/finalize", "update", "namespaces/finalize", "a", "a");
        check(Method::GET, "/api/v1/namespaces/a", "get", "namespaces", "a", "a");
        check(
            Method::DELETE,
            "/apis/apps/v1/namespaces/a/deployments",
            "deletecollection",
            "deployments",
            "a",
            "",
        );
        check(
            Method::PATCH,
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            "patch",
            "deployments/scale",
            "a",
            "d",
        );
        check(Method::GET, "/api/v1/secrets?fieldSelector=metadata.name%3Dx", "list", "secrets", "", "x");
        check(
            Method::GET,
            "/api/v1/secrets?fieldSelector=type%3Dy,metadata.name%3D%3Dx",
            "list",
            "secrets",
            "",
            "x",
        );
        check(
            Method::GET,
            "/api/v1/secrets?fieldSelector=metadata.name%3Dx&watch=1",
            "watch",
            "secrets",
            "",
            "x",
        );
        for (what, query) in [
            ("another", "metadata.name%21%3Dx"),
            ("not to be read", "metadata.name%3D%3D%3Dx"),
            ("no name", "metadata.name%3Da%2Fb"),
            ("a bad number beside it", "metadata.name%3Dx&limit=many"),
            ("a bad selector beside it", "metadata.name%3Dx&labelSelector=%21%21"),
        ] {
            let target = format!("/api/v1/secrets?fieldSelector={query}");
            let info = RequestInfo::parse(
                &Method::GET,
                "/api/v1/secrets",
                &Query::parse(target.split_once('?').map(|(_, query)| query)),
            );
            assert_eq!((info.verb, info.name.as_str()), ("list", ""), "{what}");
        }
        let target = "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Dx";
        check(Method::DELETE, target, "deletecollection", "secrets", "a", "");
    }

    #[test]
    fn discovery_paths_are_no_resources() {
        for path in ["/", "/api", "/apis/apps", "/apis/apps/v1", "/healthz", "/version/"] {
            assert!(!RequestInfo::parse(&Method::GET, path, &Query::default()).is_resource, "{path}");
        }
    }

    #[test]
    fn broken_escapes_are_kept() {
        assert_eq!(percent_decode("a%2Fb%zz%2", false), "a/b%zz%2");
        assert_eq!(percent_decode("a+b", true), "a b");
        assert_eq!(percent_decode("%+1%2e%-1%2g+%", true), "% 1.%-1%2g %");
    }
}
