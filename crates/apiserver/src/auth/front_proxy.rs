//! Requests through a proxy that has authenticated the user, such as another API server in front of this one. The proxy shows its
//! certificate and names the user in headers.

use apimachinery::status::Status;
use http::HeaderMap;

use super::{User, headers};

/// The names that a front proxy's certificate may have.
pub const ALLOWED_NAMES: [&str; 1] = ["front-proxy-client"];
const EXTRA: &str = "x-remote-extra-";

/// Returns the user that a front proxy names; `None` if it names none.
pub fn identify(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let Some(name) = headers::one(headers, "x-remote-user")? else { return Ok(None) };
    if name.is_empty() {
        return Err(Status::bad_request("the header x-remote-user names nobody"));
    }
    let groups = headers::all(headers, "x-remote-group")?;
    let user = User {
        name: name.to_owned(),
        uid: headers::one(headers, "x-remote-uid")?.unwrap_or("").to_owned(),
        groups: groups.into_iter().filter(|group| !group.is_empty()).collect(),
        extra: headers::extra(headers, EXTRA)?,
    };
    Ok(Some(if user.is_anonymous() { user } else { user.authenticated() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user() {
        let mut headers = HeaderMap::new();
        assert_eq!(identify(&headers).unwrap(), None);
        for (name, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-scopes%2Fall", "a"),
            ("x-remote-uid", "7"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = identify(&headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["scopes/all"], ["a"]);
    }
    #[test]
    fn a_name_that_cannot_be_read_is_not_left_out() {
        for (name, value) in [
            ("x-remote-user", &b"j\xf6rg"[..]),
            ("x-remote-user", b""),
            ("x-remote-group", b"\xff"),
            ("x-remote-uid", b"\xff"),
            ("x-remote-extra-a", b"\xff"),
        ] {
            let mut headers = HeaderMap::new();
            if name != "x-remote-user" {
                headers.insert("x-remote-user", "jane".parse().unwrap());
            }
            headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
            assert_eq!(identify(&headers).unwrap_err().code, 400, "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", http::HeaderValue::from_bytes("jörg".as_bytes()).unwrap());
        assert_eq!(identify(&headers).unwrap().unwrap().name, "jörg");
    }
}
