//! Impersonation: acting as another user, if the caller may.
//!
//! The right to impersonate has several modes, from narrow to wide; the first one that grants it counts. A narrow mode is for one
//! kind of identity and asks two questions: may the caller take on this identity (`impersonate:<mode>`), and may the caller
//! perform this request under it (`impersonate-on:<mode>:<verb>`, on the resource of the request)? The wide mode is the plain
//! verb `impersonate`, for all identities and all requests.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use apimachinery::field::{self, Path};
use apimachinery::status::Status;
use apimachinery::{go, names};
use http::HeaderMap;
use parking_lot::Mutex;

use super::rbac::{Attributes, Rbac, forbidden};
use super::user::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use super::{User, headers};
use crate::server::Server;

const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Acts as the node that the caller's token names.
const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";
const NODES: &str = "system:nodes";
/// If at least this many values are impersonated, the right to all of them is checked first.
const MANY: usize = 4;
/// The mode that worked last is cached for this many callers.
const CALLERS: usize = 10_000;

/// In the order in which the modes are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    /// Any identity, for anything.
    Wide,
}

const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Wide];

impl Mode {
    /// The verb that allows taking on the identity.
    fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Wide => "impersonate",
        }
    }

    fn is_narrow(self) -> bool {
        self != Self::Wide
    }

    /// Returns whether this mode applies to the caller and the identity.
    fn is_for(self, identity: &User, caller: &User) -> bool {
        let bare = identity.uid.is_empty() && identity.groups.is_empty() && identity.extra.is_empty();
        let (node, account) = (node(&identity.name), account(&identity.name));
        match self {
            Self::AssociatedNode => {
                let of_token = caller.extra.get(NODE_OF_TOKEN).map(Vec::as_slice);
                let is_his = matches!((node, of_token), (Some(node), Some([own])) if node == own);
                bare && is_his && self::account(&caller.name).is_some()
            }
            Self::ArbitraryNode => bare && node.is_some(),
            Self::ServiceAccount => bare && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Wide => true,
        }
    }
}

/// The mode that last worked for a caller. It is tried first, so that the error comes from it.
#[derive(Debug, Default)]
pub struct Impersonators {
    hasher: RandomState,
    modes: Mutex<HashMap<u64, Mode>>,
}

impl Impersonators {
    fn usual(&self, caller: &User) -> Option<Mode> {
        self.modes.lock().get(&self.hasher.hash_one(&caller.name)).copied()
    }

    fn worked(&self, caller: &User, mode: Mode) {
        let mut modes = self.modes.lock();
        if modes.len() >= CALLERS {
            modes.clear();
        }
        modes.insert(self.hasher.hash_one(&caller.name), mode);
    }
}

/// Returns the identity under which the request runs, if it is not the caller's own, and the narrow right that allowed it.
pub fn impersonate(
    server: &Server,
    caller: &User,
    headers: &HeaderMap,
    wanted: &Attributes<'_>,
) -> Result<Option<(User, &'static str)>, Status> {
    let Some(identity) = asked_for(headers)? else { return Ok(None) };
    let usual = server.impersonators.usual(caller);
    let others = MODES.into_iter().filter(|mode| Some(*mode) != usual);
    let modes: Vec<Mode> =
        usual.into_iter().chain(others).filter(|mode| mode.is_for(&identity, caller)).collect();
    let attempt = || {
        let mut refusal = None;
        for mode in &modes {
            let asking = Asking { rbac: &server.rbac, caller, mode: *mode };
            match asking.all(&identity, wanted) {
                Ok(()) => return Ok(*mode),
                Err(refused) => refusal = refusal.or(Some(refused)),
            }
        }
        Err(refusal.expect("the wide mode is for everybody"))
    };
    // A right takes effect as soon as its binding is acknowledged.
    let mode = match attempt() {
        Err(_) if server.rbac.catch_up(&server.store) => attempt(),
        done => done,
    }?;
    server.impersonators.worked(caller, mode);
    Ok(Some((complete(identity, mode), if mode.is_narrow() { mode.verb() } else { "" })))
}

/// Reads the impersonated identity from the headers. A header that is unreadable or unknown is refused: without it, the request
/// would run under a different identity.
fn asked_for(headers: &HeaderMap) -> Result<Option<User>, Status> {
    for name in headers.keys().map(http::HeaderName::as_str).filter(|name| name.starts_with(PREFIX)) {
        if !matches!(name, USER | UID | GROUP) && !name.starts_with(EXTRA) {
            return Err(Status::bad_request(format!(
                "the header {name} is unknown; use {USER}, {UID}, {GROUP} or {EXTRA}<key>"
            )));
        }
    }
    let name = headers::one(headers, USER)?;
    let identity = User {
        name: name.unwrap_or("").to_owned(),
        uid: headers::one(headers, UID)?.unwrap_or("").to_owned(),
        groups: headers::all(headers, GROUP)?,
        extra: headers::extra(headers, EXTRA)?,
    };
    if !identity.name.is_empty() {
        return Ok(Some(identity));
    }
    if identity == User::default() {
        return match name {
            Some(_) => Err(Status::bad_request(format!("the header {USER} names nobody"))),
            None => Ok(None),
        };
    }
    let shown = go_syntax(&identity.uid, &identity.groups, &identity.extra);
    Err(Status::bad_request(format!("requested {shown} without impersonating a user name")))
}

/// The questions that one mode asks.
struct Asking<'a> {
    rbac: &'a Rbac,
    caller: &'a User,
    mode: Mode,
}

impl Asking<'_> {
    fn all(&self, identity: &User, wanted: &Attributes<'_>) -> Result<(), Status> {
        if let Some(mode) = self.mode.verb().strip_prefix("impersonate:") {
            let verb = format!("impersonate-on:{mode}:{}", wanted.verb);
            self.may(&Attributes { verb: &verb, ..*wanted })?;
        }
        self.name(&identity.name)?;
        if !identity.uid.is_empty() {
            self.may(&self.of(AUTHENTICATION, "uids", &identity.uid))?;
        }
        self.groups(&identity.groups)?;
        self.extra(&identity.extra)
    }

    fn name(&self, name: &str) -> Result<(), Status> {
        let group = self.group();
        if let Some((namespace, account)) = account(name) {
            return self.may(&Attributes { namespace, ..self.of(group, "serviceaccounts", account) });
        }
        match node(name).filter(|_| self.mode.is_narrow()) {
            // The right is for the node that the caller runs on.
            Some(_) if self.mode == Mode::AssociatedNode => self.may(&self.of(group, "nodes", "*")),
            Some(node) => self.may(&self.of(group, "nodes", node)),
            None => self.may(&self.of(group, "users", name)),
        }
    }

    fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let attributes = |name| self.of(self.group(), "groups", name);
        if self.mode.is_narrow() {
            let never = |name, why: &str| Err(forbidden(self.caller, &attributes(name), why));
            if groups.iter().any(String::is_empty) {
                return never("", "impersonating the empty string group is not allowed");
            }
            if groups.iter().any(|group| group == MASTERS) {
                return never(MASTERS, "impersonating the system:masters group is not allowed");
            }
            if groups.len() >= MANY && self.may(&attributes("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.may(&attributes(group)))
    }

    fn extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        let attributes =
            |subresource, name| Attributes { subresource, ..self.of(AUTHENTICATION, "userextras", name) };
        if self.mode.is_narrow() && !extra.is_empty() {
            strict_extra(extra).map_err(|why| forbidden(self.caller, &attributes("", ""), &why))?;
            let count = extra.values().map(Vec::len).sum::<usize>();
            if count >= MANY && self.may(&attributes("*", "*")).is_ok() {
                return Ok(());
            }
        }
        let pairs = extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        pairs.into_iter().try_for_each(|(key, value)| self.may(&attributes(key, value)))
    }

    /// The API group of the resources for names and groups.
    fn group(&self) -> &'static str {
        if self.mode.is_narrow() { AUTHENTICATION } else { "" }
    }

    fn of<'b>(&self, group: &'b str, resource: &'b str, name: &'b str) -> Attributes<'b> {
        Attributes { verb: self.mode.verb(), group, version: "v1", resource, name, ..Attributes::default() }
    }

    fn may(&self, wanted: &Attributes<'_>) -> Result<(), Status> {
        if self.rbac.allows(self.caller, wanted) { Ok(()) } else { Err(forbidden(self.caller, wanted, "")) }
    }
}

/// Returns the faults of extra fields, in modes that check them.
fn strict_extra(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".to_owned());
        }
        let errors = field::domain_prefixed_path(&Path::new("extra").child("key"), key);
        if !errors.is_empty() {
            let errors = field::aggregate(&errors);
            return Err(format!("impersonating an invalid key in extra is not allowed: {errors}"));
        }
        if *key != key.to_lowercase() {
            let key = go::quote(key);
            return Err(format!("impersonating a non-lowercase key in extra is not allowed: {key}"));
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".to_owned());
        }
    }
    Ok(())
}

/// Adds the groups that an identity always has.
fn complete(mut identity: User, mode: Mode) -> User {
    if mode.is_narrow() && node(&identity.name).is_some() {
        identity.groups = vec![NODES.to_owned()];
    }
    if let (Some((namespace, _)), true) = (account(&identity.name), identity.groups.is_empty()) {
        let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        identity.groups = groups.into();
    }
    let everybody = match identity.is_anonymous() {
        true => Some(UNAUTHENTICATED),
        false => (!identity.in_group(UNAUTHENTICATED)).then_some(AUTHENTICATED),
    };
    if let Some(group) = everybody.filter(|group| !identity.in_group(group)) {
        identity.groups.push(group.to_owned());
    }
    identity
}

/// Returns namespace and name of a service account. A name that only resembles one is an ordinary user.
fn account(name: &str) -> Option<(&str, &str)> {
    let account = name.strip_prefix("system:serviceaccount:")?.split_once(':');
    account.filter(|(namespace, name)| {
        names::dns1123_label(namespace).is_empty() && names::dns1123_subdomain(name).is_empty()
    })
}

fn node(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|name| names::dns1123_subdomain(name).is_empty())
}

/// Formats the impersonated identity like Go prints the structure.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(list: &[(&'static str, &[u8])]) -> Result<Option<User>, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, http::HeaderValue::from_bytes(value).unwrap());
        }
        asked_for(&headers).map_err(|status| status.code)
    }

    #[test]
    fn a_name_beyond_ascii_is_a_name_and_what_cannot_be_read_is_refused() {
        assert_eq!(ask(&[]), Ok(None));
        assert_eq!(ask(&[(USER, "jörg".as_bytes())]).unwrap().unwrap().name, "jörg");
        let groups = ask(&[(USER, b"a"), (GROUP, "größe".as_bytes())]).unwrap().unwrap().groups;
        assert_eq!(groups, ["größe"]);
        for refused in [
            &[(USER, &b"j\xf6rg"[..])][..],
            &[(USER, b"")],
            &[(USER, b"a"), (USER, b"b")],
            &[(USER, b"a"), (GROUP, b"\xff")],
            &[(USER, b"a"), (UID, b"\xff")],
            &[(USER, b"a"), ("impersonate-extra-k", b"\xff")],
            &[(USER, b"a"), ("impersonate-groups", b"g")],
        ] {
            assert_eq!(ask(refused), Err(400), "{refused:?}");
        }
    }

    #[test]
    fn groups_and_extras_without_a_user_are_shown_as_go_shows_them() {
        let extra = BTreeMap::from([("a".to_owned(), vec!["x".to_owned()])]);
        assert_eq!(
            go_syntax("", &["g".to_owned()], &extra),
            r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string{"a":[]string{"x"}}}"#
        );
    }
}
