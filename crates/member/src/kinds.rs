//! Finds the resource (plural, scope) of a kind.
//!
//! As in Karmada the control plane's discovery decides, so that a kind means the same in every member; only when the
//! control plane does not know a kind (its definition was removed before the last Work) the member is asked.

use std::collections::HashMap;

use kube::Client;
use kube::core::GroupVersionKind;
use kube::core::discovery::{ApiResource, Scope};
use parking_lot::RwLock;

use crate::{Error, Member, Result};

/// A kind and how it is addressed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
}

/// The kinds seen so far.
#[derive(Debug, Default)]
pub struct Kinds {
    known: RwLock<HashMap<(String, String), Kind>>,
}

impl Kinds {
    /// Returns how a kind is addressed. Found kinds are cached; missing ones are looked up again.
    pub async fn resolve(
        &self,
        control: &Client,
        member: &Member,
        api_version: &str,
        kind: &str,
    ) -> Result<Kind> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(found) = self.known.read().get(&key) {
            return Ok(found.clone());
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let found = match find(control, &gvk).await {
            Ok(Some(found)) => found,
            Ok(None) => find(member.client(), &gvk)
                .await
                .map_err(|error| Error::of(member.name(), error))?
                .ok_or_else(|| Error::UnknownKind {
                kind: kind.to_owned(),
                version: api_version.to_owned(),
            })?,
            Err(error) => return Err(Error::of("control plane", error)),
        };
        self.known.write().insert(key, found.clone());
        Ok(found)
    }
}

async fn find(client: &Client, gvk: &GroupVersionKind) -> std::result::Result<Option<Kind>, kube::Error> {
    let found = kube::discovery::pinned_kind(client, gvk).await;
    match found {
        Ok((resource, capabilities)) => {
            Ok(Some(Kind { resource, namespaced: capabilities.scope == Scope::Namespaced }))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(kube::Error::Discovery(_)) => Ok(None),
        Err(other) => Err(other),
    }
}
