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
    ///
    /// *Errors*: says what is wrong, in Go's words.
    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || "invalid URI for request".to_owned();
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() {
            return Err("empty url".to_owned());
        }
        let (scheme, rest) = scheme(text)?;
        let body = rest.split('#').next().unwrap_or("");
        let (body, query) = body.split_once('?').unwrap_or((body, ""));
        let url = |host: &str, path: &str| Self {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        };
        if !body.starts_with('/') {
            // Something like a mail address: it has no parts.
            return if scheme.is_empty() { Err(invalid()) } else { Ok(url("", "")) };
        }
        let (host, path) = match body.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (authority.rsplit_once('@').map_or(authority, |(_, host)| host), path)
            }
            None => ("", body),
        };
        check_host(host)?;
        check_escapes(path)?;
        Ok(url(host, &escaped(path)))
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

/// Splits off the scheme, if there is one.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        &host[end + 1..]
    } else {
        &host[host.rfind(':').unwrap_or(host.len())..]
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !is_port {
        return Err(format!("invalid port {port:?} after host"));
    }
    check_escapes(host)?;
    let odd = host.chars().find(|c| matches!(c, ' ' | '\\' | '^' | '`' | '{' | '|' | '}'));
    odd.map_or(Ok(()), |odd| Err(format!("invalid character {:?} in host name", odd.to_string())))
}

fn check_escapes(text: &str) -> Result<(), String> {
    for rest in text.split('%').skip(1) {
        if !(rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())) {
            let shown: String = rest.chars().take(2).collect();
            return Err(format!("invalid URL escape {:?}", format!("%{shown}")));
        }
    }
    Ok(())
}

/// Escapes what cannot stand in a path; what is escaped stays so.
fn escaped(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@'
            | b'%' => out.push(char::from(byte)),
            b'!' | b'\'' | b'(' | b')' | b'*' | b'[' | b']' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
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

/// Says why a text is not a URL, if so.
pub(super) fn complaint(text: &str) -> Option<String> {
    Url::parse(text).err().map(|why| format!("parse {text:?}: {why}"))
}

pub(super) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Outcome {
    match (target, name, args) {
        (None, "isURL", [Value::String(text)]) => ok(Value::Bool(complaint(text).is_none())),
        (None, "url", [Value::String(text)]) => match Url::parse(text) {
            Ok(url) => ok(Value::Url(Arc::new(url))),
            Err(why) => bad(format!("URL parse error during conversion from string: parse {text:?}: {why}")),
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
