//! URLs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Outcome, bad, ok};
use crate::value::{Key, Value};

/// A URL in its parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    pub(crate) text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

impl Url {
    /// Reads an absolute URL or a path, as Kubernetes' `url()` takes them.
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.chars().any(|c| c.is_control() || c == ' ') {
            return None;
        }
        let body = text.split('#').next().unwrap_or("");
        let (body, query) = body.split_once('?').unwrap_or((body, ""));
        if body.starts_with('/') {
            return valid_escapes(body).then(|| Self {
                text: text.to_owned(),
                scheme: String::new(),
                host: String::new(),
                path: body.to_owned(),
                query: query.to_owned(),
            });
        }
        let (scheme, rest) = body.split_once("://")?;
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if scheme.is_empty()
            || !scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            || !scheme.chars().all(letters)
        {
            return None;
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let port = match host.rfind(']') {
            Some(end) => host[end + 1..].strip_prefix(':'),
            None => host.rsplit_once(':').map(|(_, port)| port),
        };
        if port.is_some_and(|port| !port.bytes().all(|byte| byte.is_ascii_digit())) || !valid_escapes(path) {
            return None;
        }
        Some(Self {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        })
    }

    fn split_host(&self) -> (&str, &str) {
        if let Some(end) = self.host.rfind(']') {
            return (self.host[..end].trim_start_matches('['), self.host[end + 1..].trim_start_matches(':'));
        }
        self.host.rsplit_once(':').unwrap_or((&self.host, ""))
    }

    fn query(&self) -> Value {
        let mut map: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.entry(Key::String(unescape(key).into())).or_default().push(Value::text(unescape(value)));
        }
        Value::Map(Arc::new(map.into_iter().map(|(key, values)| (key, Value::list(values))).collect()))
    }
}

fn valid_escapes(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "isURL", [Value::String(text)]) => ok(Value::Bool(Url::parse(text).is_some())),
        (None, "url", [Value::String(text)]) => match Url::parse(text) {
            Some(url) => ok(Value::Url(Arc::new(url))),
            None => bad(format!(
                "URL parse error during conversion from string: parse {text:?}: invalid URI for request"
            )),
        },
        (Some(Value::Url(url)), _, []) => ok(match name {
            "getScheme" => Value::text(url.scheme.as_str()),
            "getHost" => Value::text(url.host.as_str()),
            "getHostname" => Value::text(url.split_host().0),
            "getPort" => Value::text(url.split_host().1),
            "getEscapedPath" => Value::text(url.path.as_str()),
            "getQuery" => url.query(),
            _ => return None,
        }),
        _ => None,
    }
}
