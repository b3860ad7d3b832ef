//! Requests by way of a proxy that has found out who asks, such as another API server in front of this one: the proxy
//! shows its certificate and names the user in headers.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::User;
use crate::http::request::percent_decode;

/// The names that a front proxy's certificate may carry.
pub const ALLOWED_NAMES: [&str; 1] = ["front-proxy-client"];
const EXTRA: &str = "x-remote-extra-";

/// Returns the user that a front proxy names; nothing if it names none.
pub fn identify(headers: &HeaderMap) -> Option<User> {
    let text =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| !text.is_empty());
    let name = text("x-remote-user")?.to_owned();
    let groups = headers.get_all("x-remote-group").iter().filter_map(|value| value.to_str().ok());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            let key = percent_decode(key, false).to_lowercase();
            extra.entry(key).or_default().push(value.to_str().unwrap_or("").to_owned());
        }
    }
    let uid = text("x-remote-uid").unwrap_or("").to_owned();
    let user = User { name, uid, groups: groups.map(str::to_owned).collect(), extra };
    Some(if user.is_anonymous() { user } else { user.authenticated() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user() {
        let mut headers = HeaderMap::new();
        assert_eq!(identify(&headers), None);
        for (name, value) in [
            ("x-remote-user", "jane"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-scopes%2Fall", "a"),
            ("x-remote-uid", "7"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = identify(&headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!(user.extra["scopes/all"], ["a"]);
    }
}
