//! The objects of a kind as they were at a version that the log still reaches: later pages of a list are answered from this.
//!
//! The log keeps the old object of each change, so that the changes since a version can be undone, the newest first. Nothing else
//! is kept for paged lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::{Place, State, What};
use crate::entry::Entry;
use crate::index::Index;
use crate::version::Versions;
use crate::watch::Lost;

/// The old objects of a place that have changed since the version; `None` for those that have been added since.
pub(crate) type Before = BTreeMap<Box<str>, Option<Arc<Entry>>>;

/// Returns, for each place in a version, what has changed since.
///
/// # Errors
/// If the log does not reach back that far, or a place has been replaced.
pub(crate) fn before(state: &State, versions: &Versions) -> Result<BTreeMap<Place, Before>, Lost> {
    let mut places = BTreeMap::new();
    for (place, asked) in versions.iter() {
        let shard = state.shards.get(place).ok_or_else(|| Lost::Gone(place.clone()))?;
        let known = shard.at.unwrap_or(0);
        if asked < shard.floor {
            return Err(Lost::Behind(place.clone()));
        }
        if asked > known {
            return Err(Lost::Ahead { place: place.clone(), asked, known });
        }
        places.insert(place.clone(), Before::new());
    }
    let mut done = BTreeSet::new();
    for event in state.log.iter().rev() {
        let Some(asked) = versions.get(&event.place) else { continue };
        if done.contains(&event.place) {
            continue;
        }
        match &event.what {
            What::Changed { old, new } if event.at > asked => {
                let key = old.as_ref().or(new.as_ref()).map(|entry| entry.key());
                if let (Some(key), Some(before)) = (key, places.get_mut(&event.place)) {
                    before.insert(key.into(), old.clone());
                }
            }
            What::Changed { .. } => {}
            // Earlier events belong to a place that was removed, or to versions that were undone.
            What::Came | What::Went(_) | What::WentBack => {
                done.insert(event.place.clone());
            }
        }
    }
    Ok(places)
}

/// Walks the objects that a place had, like [`Index::walk`] walks its current ones.
pub(crate) fn walk<'a>(
    index: &'a Index,
    before: &'a Before,
    namespace: &str,
    after: Option<&'a str>,
) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
    let mut same = index.walk(namespace, after).filter(|entry| !before.contains_key(entry.key())).peekable();
    let namespace = namespace.to_owned();
    let mut other = before
        .values()
        .flatten()
        .filter(move |entry| namespace.is_empty() || entry.namespace() == namespace)
        .filter(move |entry| after.is_none_or(|after| entry.key() > after))
        .peekable();
    std::iter::from_fn(move || match (same.peek(), other.peek()) {
        (Some(one), Some(two)) if two.key() < one.key() => other.next(),
        (Some(_), _) => same.next(),
        (None, _) => other.next(),
    })
}

#[cfg(test)]
mod tests {
    use runtime::room::Budget;
    use serde_json::json;

    use crate::cache::{Cache, Listed, Place, Take};
    use crate::entry::Entry;
    use crate::plan::Kind;
    use crate::version::Versions;
    use crate::watch::Lost;

    fn kind() -> Kind {
        Kind::test("", "v1", "ConfigMap", "configmaps")
    }

    fn entry(key: &str, revision: u64) -> Entry {
        let (namespace, name) = key.split_once('/').unwrap();
        let object = json!({"metadata": {"name": name, "namespace": namespace, "uid": key, "resourceVersion": revision.to_string()}});
        Entry::new(&kind(), object).unwrap()
    }

    fn cache(log: usize) -> Cache {
        Cache::new(kind(), Budget::new(1 << 20).into()).with_log(log, 1 << 20)
    }

    fn bring(cache: &Cache, place: &str, at: u64, keys: &[&str]) {
        let place = Place::parse(place);
        cache.expect(&place);
        cache.replace(&place, at, keys.iter().map(|key| entry(key, at)).collect()).unwrap();
    }

    fn shown(listed: &Listed) -> Vec<String> {
        let one = |found: &crate::cache::Found| {
            format!("{}:{}@{}", found.place.cluster, found.entry.key(), found.entry.revision)
        };
        listed.found.iter().map(one).collect()
    }

    /// Reads a list in pages of one object, with changes before each page but the first.
    fn pages(cache: &Cache, namespace: &str, mut between: impl FnMut(usize)) -> Result<Vec<String>, Lost> {
        let versions = cache.versions();
        let (mut all, mut after) = (Vec::new(), None::<(Place, String)>);
        loop {
            let mut count = 0;
            let from = after.as_ref().map(|(place, key)| (place, key.as_str()));
            let page = cache.list_at(&versions, namespace, from, |_, _| {
                count += 1;
                if count > 1 { Take::Enough } else { Take::Yes }
            })?;
            all.extend(shown(&page));
            assert_eq!(page.versions, versions);
            match page.found.last().filter(|_| page.rest) {
                Some(last) => after = Some((last.place.clone(), last.entry.key().to_owned())),
                None => return Ok(all),
            }
            between(all.len());
        }
    }

    #[test]
    fn pages_show_what_was_there_when_the_first_was_read() {
        let cache = cache(100);
        bring(&cache, "m1", 10, &["a/b", "a/d", "a/f", "c/a"]);
        bring(&cache, "m2", 5, &["a/x", "a/y"]);
        let whole = shown(&cache.list("", None, |_, _| Take::Yes));
        let (one, two) = (Place::cluster("m1"), Place::cluster("m2"));
        let seen = pages(&cache, "", |page| match page {
            // Before, at and after the reader's position: new, changed, deleted, and created again.
            1 => {
                for (key, revision) in [("a/a", 11), ("a/c", 12), ("a/d", 13), ("a/d", 14)] {
                    cache.put(&one, entry(key, revision)).unwrap();
                }
                cache.remove(&one, &entry("a/b", 15));
                cache.remove(&one, &entry("a/f", 16));
            }
            2 => {
                cache.put(&one, entry("a/f", 17)).unwrap();
                // After a gap the member is listed anew.
                cache.replace(&two, 9, vec![entry("a/y", 5), entry("a/z", 8)]).unwrap();
                bring(&cache, "m0", 3, &["a/o"]);
                bring(&cache, "m3", 3, &["a/o"]);
            }
            _ => cache.remove(&one, &entry("c/a", 20)),
        });
        assert_eq!(seen.unwrap(), whole);
        let now = shown(&cache.list("", None, |_, _| Take::Yes));
        let expected = [
            "m0:a/o@3",
            "m1:a/a@11",
            "m1:a/c@12",
            "m1:a/d@14",
            "m1:a/f@17",
            "m2:a/y@5",
            "m2:a/z@8",
            "m3:a/o@3",
        ];
        assert_eq!(now, expected, "and the present is not touched");
        let spaces = pages(&cache, "a", |page| {
            cache.put(&one, entry("a/g", 20 + page as u64)).unwrap();
        });
        assert_eq!(spaces.unwrap(), expected);
    }

    #[test]
    fn pages_go_through_single_namespaces_in_the_order_of_places() {
        let cache = cache(100);
        // As text, `team-2/…` comes before `team/…`; as places it is the other way round.
        for (place, key) in [("m1/team", "team/x"), ("m1/team-2", "team-2/x"), ("m1/team-2", "team-2/y")] {
            let place = Place::parse(place);
            cache.expect(&place);
            let mut all: Vec<Entry> = Vec::new();
            all.extend(
                cache
                    .get("team-2/x")
                    .iter()
                    .filter(|found| found.place == place)
                    .map(|_| entry("team-2/x", 1)),
            );
            all.push(entry(key, 1));
            cache.replace(&place, 1, all).unwrap();
        }
        assert_eq!(pages(&cache, "", |_| {}).unwrap(), ["m1:team/x@1", "m1:team-2/x@1", "m1:team-2/y@1"]);
    }

    #[test]
    fn a_version_outside_of_the_log_is_an_error() {
        let cache = cache(3);
        let place = Place::cluster("m1");
        bring(&cache, "m1", 10, &["a/x"]);
        let at = |version: u64| cache.list_at(&Versions::of(&place, version), "", None, |_, _| Take::Yes);
        for revision in 11..15 {
            cache.put(&place, entry("a/x", revision)).unwrap();
        }
        assert_eq!(shown(&at(12).unwrap()), ["m1:a/x@12"]);
        assert_eq!(at(10).unwrap_err(), Lost::Behind(place.clone()));
        assert_eq!(at(20).unwrap_err(), Lost::Ahead { place: place.clone(), asked: 20, known: 14 });
        // Removed and added again, with changes from both periods in the log.
        cache.forget(&place);
        bring(&cache, "m1", 13, &["a/y"]);
        assert_eq!(shown(&at(13).unwrap()), ["m1:a/y@13"]);
        assert_eq!(at(12).unwrap_err(), Lost::Behind(place.clone()));
        cache.forget(&place);
        assert_eq!(at(13).unwrap_err(), Lost::Gone(place));
    }
}
