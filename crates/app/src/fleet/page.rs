//! Reads a page of a list from a cache in small pieces, so that writers of the cache never wait for a long list.
//!
//! All pieces show the same version. Objects that must be parsed to be selected are parsed between the pieces.

use std::sync::Arc;

use ::fleet::cache::{Found, Listed, Take};
use ::fleet::{Cache, Lost, Place, Versions};
use apiserver::handlers::list::Selection;
use apiserver::registry::Kind;

use super::reading::{has_fields, has_labels};
use super::rights::Seen;

/// How many objects are checked in one piece.
const PIECE: usize = 4096;

/// The requested part of a list.
pub(super) struct Wanted {
    pub(super) cache: Arc<Cache>,
    pub(super) kind: Arc<Kind>,
    pub(super) namespace: String,
    pub(super) selection: Selection,
    pub(super) seen: Seen,
    /// 0 means all.
    pub(super) limit: usize,
    /// Where the previous page ended.
    pub(super) after: Option<(Place, String)>,
    /// The version; `None` for the present.
    pub(super) at: Option<Versions>,
}

impl Wanted {
    /// Returns whether objects must be parsed to be selected.
    pub(super) fn is_costly(&self) -> bool {
        let named = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        !self.selection.fields.terms().iter().all(|term| named(&term.field))
    }

    /// Reads the page.
    ///
    /// # Errors
    /// If its version is too old.
    pub(super) fn read(mut self) -> Result<Listed, Lost> {
        let mut found: Vec<Found> = Vec::new();
        loop {
            let (piece, last) = self.piece()?;
            let selected = |found: &Found| {
                has_fields(&self.kind, &self.cache.kind, &self.selection, &found.place.cluster, &found.entry)
            };
            let versions = piece.versions;
            for one in piece.found.into_iter().filter(selected) {
                if self.limit > 0 && found.len() == self.limit {
                    return Ok(Listed { versions, found, rest: true });
                }
                found.push(one);
            }
            match last.filter(|_| piece.rest) {
                None => return Ok(Listed { versions, found, rest: false }),
                last => {
                    self.after = last;
                    self.at = Some(versions);
                }
            }
        }
    }

    /// Reads the next piece. Returns the objects found and where it ended.
    fn piece(&self) -> Result<(Listed, Option<(Place, String)>), Lost> {
        let (mut looked_at, mut last) = (0_usize, None);
        let take = |place: &Place, entry: &Arc<::fleet::Entry>| {
            if looked_at == PIECE {
                return Take::Enough;
            }
            looked_at = looked_at.saturating_add(1);
            if looked_at == PIECE {
                last = Some((place.clone(), entry.key().to_owned()));
            }
            let wanted = self.seen.has(&place.cluster) && has_labels(&self.selection, entry);
            if wanted { Take::Yes } else { Take::No }
        };
        let after = self.after.as_ref().map(|(place, key)| (place, key.as_str()));
        let listed = match &self.at {
            Some(at) => self.cache.list_at(at, &self.namespace, after, take)?,
            None => self.cache.list(&self.namespace, after, take),
        };
        Ok((listed, last))
    }
}
