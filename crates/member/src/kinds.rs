//! Finds the resource (plural, scope) of a kind.
//!
//! As in Karmada, the control plane's discovery decides, so that a kind means the same in every member. The member is asked only
//! if the control plane does not know a kind (its definition was removed before the last Work).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use apimachinery::gvk::Gvk;
use kube::Client;
use kube::core::GroupVersionKind;
use kube::core::discovery::{ApiResource, Scope};
use parking_lot::RwLock;

use crate::{Error, Member, Result};

/// How long the resource of a kind is cached: a definition may be created again with another plural or scope. Lookups are so rare
/// that they cost nothing.
const BELIEVED: Duration = Duration::from_secs(10 * 60);

/// A kind and its resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
}

/// The kinds seen so far.
#[derive(Debug, Default)]
pub struct Kinds {
    known: RwLock<HashMap<(String, String), Known>>,
}

#[derive(Debug)]
struct Known {
    kind: Kind,
    at: Instant,
}

impl Kinds {
    /// Returns the resource of a kind. Found kinds are cached for some minutes; missing ones are looked up again.
    pub async fn resolve(
        &self,
        control: &Client,
        member: &Member,
        api_version: &str,
        kind: &str,
    ) -> Result<Kind> {
        let key = (api_version.to_owned(), kind.to_owned());
        let (before, is_due) = self.recall(&key, Instant::now());
        if let Some(before) = &before
            && !is_due
        {
            return Ok(before.clone());
        }
        let found = match (look(control, member, api_version, kind).await, before) {
            (Ok(found), _) => found,
            // No server answers, or the definition was removed before the last Work.
            (Err(_), Some(before)) => before,
            (Err(error), None) => return Err(error),
        };
        self.known.write().insert(key, Known { kind: found.clone(), at: Instant::now() });
        Ok(found)
    }

    /// Returns the cached resource of a kind, and whether it must be looked up. If it is cached, only the first caller must do
    /// that.
    fn recall(&self, key: &(String, String), now: Instant) -> (Option<Kind>, bool) {
        let is_due = |known: &Known| now.saturating_duration_since(known.at) >= BELIEVED;
        if let Some(known) = self.known.read().get(key)
            && !is_due(known)
        {
            return (Some(known.kind.clone()), false);
        }
        let mut all = self.known.write();
        let Some(known) = all.get_mut(key) else { return (None, true) };
        let is_first = is_due(known);
        known.at = if is_first { now } else { known.at };
        (Some(known.kind.clone()), is_first)
    }
}

async fn look(control: &Client, member: &Member, api_version: &str, kind: &str) -> Result<Kind> {
    let unknown = || Error::UnknownKind { kind: kind.to_owned(), version: api_version.to_owned() };
    let named = Gvk::from_api_version(api_version, kind);
    // The client writes it into a path as it is.
    if !named.is_plain() {
        return Err(unknown());
    }
    let gvk = GroupVersionKind::gvk(&named.group, &named.version, &named.kind);
    match find(control, &gvk).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => find(member.client(), &gvk)
            .await
            .map_err(|error| Error::of(member.name(), error))?
            .ok_or_else(unknown),
        Err(error) => Err(Error::of("control plane", error)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_looked_up_again_by_one_after_a_while() {
        let (kinds, key) = (Kinds::default(), ("example.io/v1".to_owned(), "App".to_owned()));
        let begun = Instant::now();
        assert_eq!(kinds.recall(&key, begun), (None, true));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.io", "v1", "App"));
        let app = Kind { resource, namespaced: true };
        kinds.known.write().insert(key.clone(), Known { kind: app.clone(), at: begun });
        let later = begun + BELIEVED;
        for (now, is_due) in [(begun, false), (later, true), (later, false), (later + BELIEVED, true)] {
            assert_eq!(kinds.recall(&key, now), (Some(app.clone()), is_due));
        }
    }
}
