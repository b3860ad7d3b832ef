//! Headers that name a user. Names may be any UTF-8, as in Go; unreadable ones are refused. No such header is ever dropped
//! silently, since the request would then run with the rights of another user.

use std::collections::BTreeMap;

use apimachinery::status::Status;
use http::{HeaderMap, HeaderValue};

/// Returns the value of a header that may occur only once.
pub(crate) fn one<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Status> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(|value| text(name, value)).transpose()?;
    if values.next().is_some() {
        return Err(Status::bad_request(format!("the header {name} may be sent only once")));
    }
    Ok(first)
}

/// Returns all values of a header.
pub(crate) fn all(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Status> {
    headers.get_all(name).iter().map(|value| text(name, value).map(str::to_owned)).collect()
}

/// Returns the values of all headers that start with `prefix`, keyed by the rest of their names, unescaped.
pub(crate) fn extra(headers: &HeaderMap, prefix: &str) -> Result<BTreeMap<String, Vec<String>>, Status> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(prefix) else { continue };
        let key = unescape(key).ok_or_else(|| {
            Status::bad_request(format!(
                "the name of the header {name} is not valid UTF-8 once it is unescaped"
            ))
        })?;
        extra.entry(key).or_default().push(text(name.as_str(), value)?.to_owned());
    }
    Ok(extra)
}

fn text<'a>(name: &str, value: &'a HeaderValue) -> Result<&'a str, Status> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| Status::bad_request(format!("the value of the header {name} is not valid UTF-8")))
}

/// Decodes `%XX`; broken escapes stay unchanged. Returns `None` if the result is not UTF-8.
fn unescape(key: &str) -> Option<String> {
    let mut out = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let byte = escaped
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .filter(|hex| hex.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn names_are_any_utf8_and_nothing_else() {
        assert_eq!(one(&headers(&[("u", "jörg".as_bytes())]), "u").unwrap(), Some("jörg"));
        assert_eq!(one(&headers(&[]), "u").unwrap(), None);
        assert_eq!(one(&headers(&[("u", b"j\xf6rg")]), "u").unwrap_err().code, 400);
        assert_eq!(all(&headers(&[("g", b"a"), ("g", b"\xff")]), "g").unwrap_err().code, 400);
        assert_eq!(extra(&headers(&[("x-a", b"\xff")]), "x-").unwrap_err().code, 400);
        assert_eq!(extra(&headers(&[("x-%ff", b"a")]), "x-").unwrap_err().code, 400);
    }

    #[test]
    fn a_header_that_comes_once_is_not_chosen_from_two() {
        assert_eq!(one(&headers(&[("u", b"a"), ("u", b"b")]), "u").unwrap_err().code, 400);
    }

    #[test]
    fn keys_are_unescaped() {
        for (escaped, plain) in [("a%2fb", "a/b"), ("%zz%2", "%zz%2"), ("%+1", "%+1"), ("j%C3%B6rg", "jörg")]
        {
            assert_eq!(unescape(escaped).as_deref(), Some(plain));
        }
    }
}
