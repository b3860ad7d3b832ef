//! Acting as somebody else, for those who may.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::status::Status;
use apimachinery::{go, names};
use http::HeaderMap;

use super::User;
use super::rbac::Attributes;
use crate::http::request::percent_decode;
use crate::server::Server;

const EXTRA: &str = "impersonate-extra-";

/// Returns the identity the request is to be answered for.
pub fn impersonate(server: &Server, caller: Arc<User>, headers: &HeaderMap) -> Result<Arc<User>, Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let name = text("impersonate-user");
    let uid = text("impersonate-uid");
    let mut groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            let key = percent_decode(key, false).to_lowercase();
            extra.entry(key).or_default().push(value.to_str().unwrap_or("").to_owned());
        }
    }
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(caller);
        }
        let shown = go_syntax(&uid, &groups, &extra);
        return Err(Status::bad_request(format!("requested {shown} without impersonating a user name")));
    }
    let may = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes {
            verb: "impersonate",
            group,
            version: "v1",
            resource,
            subresource,
            namespace,
            name,
            path: None,
        };
        server.rbac.check(&server.store, &caller, &attributes)
    };
    // What only looks like an account is an ordinary name.
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')).filter(
        |(namespace, name)| {
            names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty()
        },
    );
    match account {
        Some((namespace, account)) => may("", "serviceaccounts", "", namespace, account)?,
        None => may("", "users", "", "", &name)?,
    }
    for group in &groups {
        may("", "groups", "", "", group)?;
    }
    if !uid.is_empty() {
        may("authentication.k8s.io", "uids", "", "", &uid)?;
    }
    for (key, values) in &extra {
        for value in values {
            may("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    if let (Some((namespace, _)), true) = (account, groups.is_empty()) {
        groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let user = User { name, uid, groups, extra };
    Ok(Arc::new(if user.is_anonymous() {
        let mut user = user;
        user.groups.push(super::user::UNAUTHENTICATED.to_owned());
        user
    } else {
        user.authenticated()
    }))
}

/// Shows who was asked for as Go shows such a structure.
fn go_syntax(uid: &str, groups: &[String], extra: &BTreeMap<String, Vec<String>>) -> String {
    let list = |items: &[String]| {
        let quoted: Vec<String> = items.iter().map(|item| go::quote(item)).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if groups.is_empty() { "[]string(nil)".to_owned() } else { list(groups) };
    let extra = if extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let entries: Vec<String> =
            extra.iter().map(|(key, values)| format!("{}:{}", go::quote(key), list(values))).collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    format!("&user.DefaultInfo{{Name:\"\", UID:{}, Groups:{groups}, Extra:{extra}}}", go::quote(uid))
}

#[test]
fn who_names_no_user_is_shown_what_was_asked_for() {
    let extra = BTreeMap::from([("a".to_owned(), vec!["x".to_owned()])]);
    assert_eq!(
        go_syntax("", &["g".to_owned()], &extra),
        r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string{"a":[]string{"x"}}}"#
    );
}
