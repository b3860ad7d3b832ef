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
///
/// What the control plane says of a kind counts for all members. A kind that it does not have is looked up in the member, and that answer
/// counts there only: otherwise one member would say under which path objects are written and deleted in the others.
#[derive(Debug, Default)]
pub struct Kinds {
    known: RwLock<HashMap<Name, Known>>,
}

/// Whose answer it is, the version and the kind. The control plane has no name.
type Name = (String, String, String);

/// The control plane as the source of an answer.
const PLANE: &str = "";

fn name(source: &str, api_version: &str, kind: &str) -> Name {
    (source.to_owned(), api_version.to_owned(), kind.to_owned())
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
        let (before, is_due) = self.recall_for(member.name(), api_version, kind, Instant::now());
        if let Some(before) = &before
            && !is_due
        {
            return Ok(before.clone());
        }
        match (look(control, member, api_version, kind).await, before) {
            (Ok((found, source)), _) => {
                self.keep(name(source, api_version, kind), found.clone(), Instant::now());
                Ok(found)
            }
            // No server answers, or the definition was removed before the last Work.
            (Err(_), Some(before)) => Ok(before),
            (Err(error), None) => Err(error),
        }
    }

    fn keep(&self, name: Name, kind: Kind, at: Instant) {
        self.known.write().insert(name, Known { kind, at });
    }

    /// As [`Self::recall`], for a member.
    fn recall_for(&self, member: &str, api_version: &str, kind: &str, now: Instant) -> (Option<Kind>, bool) {
        match self.recall(&name(PLANE, api_version, kind), now) {
            (None, _) => self.recall(&name(member, api_version, kind), now),
            known => known,
        }
    }

    /// Returns the cached resource of a kind, and whether it must be looked up. If it is cached, only the first caller must do
    /// that.
    fn recall(&self, key: &Name, now: Instant) -> (Option<Kind>, bool) {
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

/// Returns what a kind is, and who says so.
async fn look<'a>(
    control: &Client,
    member: &'a Member,
    api_version: &str,
    kind: &str,
) -> Result<(Kind, &'a str)> {
    let unknown = || Error::UnknownKind { kind: kind.to_owned(), version: api_version.to_owned() };
    let named = Gvk::from_api_version(api_version, kind);
    // The client writes it into a path as it is.
    if !named.is_plain() {
        return Err(unknown());
    }
    let gvk = GroupVersionKind::gvk(&named.group, &named.version, &named.kind);
    match find(control, &gvk).await {
        Ok(Some(found)) => Ok((found, PLANE)),
        Ok(None) => {
            let found = find(member.client(), &gvk).await.map_err(|error| Error::of(member.name(), error))?;
            found.map(|found| (found, member.name())).ok_or_else(unknown)
        }
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
        let (kinds, key) = (Kinds::default(), name(PLANE, "example.io/v1", "App"));
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

    #[test]
    fn finding_25_what_a_member_says_of_a_kind_counts_there_only() {
        let (kinds, now, version) = (Kinds::default(), Instant::now(), "example.io/v1");
        let app = |plural: &str| {
            let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.io", "v1", "App"));
            resource.plural = plural.to_owned();
            Kind { resource, namespaced: true }
        };
        kinds.keep(name("m1", version, "App"), app("others"), now);
        assert_eq!(kinds.recall_for("m1", version, "App", now), (Some(app("others")), false));
        assert_eq!(kinds.recall_for("m2", version, "App", now), (None, true));
        kinds.keep(name(PLANE, version, "App"), app("apps"), now);
        for member in ["m1", "m2"] {
            assert_eq!(kinds.recall_for(member, version, "App", now), (Some(app("apps")), false));
        }
    }
}
