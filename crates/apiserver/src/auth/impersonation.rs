//! Acting as somebody else, for those who may.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::status::Status;
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
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            serde_json::json!({"groups": groups, "uid": uid, "extra": extra})
        )));
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
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
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
