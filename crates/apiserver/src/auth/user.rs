//! An authenticated identity.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const ANONYMOUS: &str = "system:anonymous";

/// A user, a service account or the anonymous one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Returns an identity that may do everything: the server itself, on behalf of its own controllers.
    pub fn system(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Adds the group of all authenticated users.
    pub fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Returns namespace and name if this is a service account.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// Returns the identity of a service account, with the groups it always has.
    pub fn for_service_account(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            extra: BTreeMap::new(),
        }
    }

    /// Returns the `userInfo` of reviews.
    pub fn to_value(&self) -> Value {
        let mut value = Map::new();
        value.insert("username".to_owned(), json!(self.name));
        if !self.uid.is_empty() {
            value.insert("uid".to_owned(), json!(self.uid));
        }
        if !self.groups.is_empty() {
            value.insert("groups".to_owned(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            value.insert("extra".to_owned(), json!(self.extra));
        }
        value.into()
    }
}
