//! Resource versions and continue tokens over several clusters.
//!
//! A version is the base64 of a JSON map from places to the members' own versions, in Karmada's form: `{"m1":"105","m2":"88"}`,
//! sorted, without spaces, so that equal versions are equal as text. A place is a cluster. If only some namespaces of a cluster
//! are kept, each is followed separately and is a place of its own: `m1/shop`.
//!
//! The version of an object in a watch says two things: the known version of each place, from which a client can resume, and the
//! object's own version, which an update sends back. Usually both are the same number. If they differ (for an initial object, or
//! a member that was listed again), the place has the object's version, and its known version follows separately:
//! `{"m1":"7","m1#":"105"}`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::cache::Place;

/// The longest accepted version: a thousand clusters with long names.
const LONGEST: usize = 128 << 10;
/// The suffix of the key for the known version of a place, if the place itself has the version of an object. No name contains it.
const POSITION: char = '#';

/// The known version of each place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions(BTreeMap<Place, u64>);

impl Versions {
    /// Parses a version. An unreadable one counts as none, as in Karmada; callers handle `0`.
    pub fn parse(text: &str) -> Self {
        let read = || {
            let map = entries(text)?;
            let mut places = BTreeMap::new();
            for (key, version) in &map {
                let (place, version) = match key.strip_suffix(POSITION) {
                    // The place is not known at all.
                    Some(_) if version.is_empty() => continue,
                    Some(place) => (place, version),
                    None if map.contains_key(&format!("{key}{POSITION}")) => continue,
                    None => (key.as_str(), version),
                };
                if place.ends_with(POSITION) {
                    return None;
                }
                places.insert(Place::parse(place), version.parse().ok()?);
            }
            Some(places)
        };
        Self(read().unwrap_or_default())
    }

    /// Returns the member's own version of an object from the version in the object. When the object was shown, other namespaces
    /// of its cluster may have been kept than now.
    pub fn of_object(text: &str, place: &Place, namespace: &str) -> Option<u64> {
        let map = entries(text)?;
        let kept = |place: &Place| map.get(&place.to_string())?.parse::<u64>().ok();
        let of_cluster = || {
            let own = map
                .iter()
                .filter(|(key, _)| !key.ends_with(POSITION) && Place::parse(key).cluster == place.cluster);
            own.filter_map(|(_, version)| version.parse::<u64>().ok()).max()
        };
        let found = kept(place)
            .or_else(|| kept(&Place::namespace(&place.cluster, namespace)))
            .or_else(|| kept(&Place::cluster(&place.cluster)))
            .or_else(of_cluster);
        // For a member, 0 would mean any version.
        found.filter(|version| *version != Self::IN_PART)
    }

    /// Returns the version of one object of one place.
    pub fn of(place: &Place, revision: u64) -> Self {
        Self(BTreeMap::from([(place.clone(), revision)]))
    }

    pub fn get(&self, place: &Place) -> Option<u64> {
        self.0.get(place).copied()
    }

    /// Sets the known version of a place. It never goes back.
    pub fn advance(&mut self, place: &Place, at: u64) {
        match self.0.get_mut(place) {
            Some(known) => *known = at.max(*known),
            None => {
                self.0.insert(place.clone(), at);
            }
        }
    }

    /// Stands for a place whose objects are being sent as a whole, when only a part has been sent. Members' versions begin with
    /// 1.
    pub(crate) const IN_PART: u64 = 0;

    /// Notes that a place is only partially known, so that no client resumes from here.
    pub(crate) fn break_off(&mut self, place: &Place) {
        if self.get(place) != Some(Self::IN_PART) {
            self.0.insert(place.clone(), Self::IN_PART);
        }
    }

    pub fn remove(&mut self, place: &Place) {
        self.0.remove(place);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.0.iter().map(|(place, at)| (place, *at))
    }
}

impl Versions {
    /// Returns the text around the version of an object of a place, for objects of one place that are sent one after the other.
    pub fn around(&self, place: &Place) -> Around {
        let (mut before, mut after) = (String::from("{"), String::new());
        for (other, at) in &self.0 {
            match other.cmp(place) {
                std::cmp::Ordering::Less => {
                    pair(&mut before, &other.to_string(), at);
                    before.push(',');
                }
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => {
                    after.push(',');
                    pair(&mut after, &other.to_string(), at);
                }
            }
        }
        after.push('}');
        Around { before, place: place.to_string(), at: self.get(place), after }
    }
}

/// A version without the place whose objects are shown.
#[derive(Debug, Clone, Default)]
pub struct Around {
    before: String,
    place: String,
    /// The known version of the place, if there is one.
    at: Option<u64>,
    after: String,
}

impl Around {
    /// Returns the version for an existing object.
    pub fn there(&self, revision: u64) -> String {
        let mut text = self.before.clone();
        pair(&mut text, &self.place, &revision);
        if self.at != Some(revision) {
            let at = self.at.map(|at| at.to_string()).unwrap_or_default();
            text.push(',');
            pair(&mut text, &format!("{}{POSITION}", self.place), &at);
        }
        text.push_str(&self.after);
        URL_SAFE_NO_PAD.encode(text)
    }

    /// Returns the version for a deleted object: that of its deletion, as members send it, too.
    pub fn gone(&self, revision: u64) -> String {
        self.there(self.at.filter(|at| *at != Versions::IN_PART).unwrap_or(revision))
    }
}

/// Parses the entries of a version.
fn entries(text: &str) -> Option<BTreeMap<String, String>> {
    if text.is_empty() || text.len() > LONGEST {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes an entry of a version.
fn pair(text: &mut String, key: &str, value: &impl std::fmt::Display) {
    // Neither clusters nor namespaces have characters that JSON escapes, but members are not trusted to guarantee this.
    text.push_str(&serde_json::to_string(key).unwrap_or_default());
    let _ = write!(text, ":\"{value}\"");
}

/// As clients see it; the empty text if nothing is known.
impl std::fmt::Display for Versions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(self.0.len().saturating_mul(24));
        for (place, at) in &self.0 {
            text.push(if text.is_empty() { '{' } else { ',' });
            pair(&mut text, &place.to_string(), at);
        }
        text.push('}');
        out.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

/// The start of the next page of a list, in Karmada's form; its `continue` is the name after which the page starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    /// The version of the first page, which all pages show: a client that watches after the last page starts there and misses
    /// nothing. Empty if the client was told that the pages no longer fit together and continues anyway.
    #[serde(default)]
    pub rv: String,
    /// The place of the last object that was read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub after: String,
}

impl Continue {
    /// Parses a token; `None` if it is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > LONGEST.saturating_mul(2) {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

impl std::fmt::Display for Continue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = serde_json::to_vec(self).expect("a token is plain data");
        out.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> String {
        String::from_utf8(URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
    }

    #[test]
    fn a_version_names_every_place_in_order_and_is_read_back() {
        let mut versions = Versions::default();
        assert_eq!(versions.to_string(), "");
        versions.advance(&Place::parse("m2"), 88);
        versions.advance(&Place::parse("m1/shop"), 7);
        versions.advance(&Place::parse("m1"), 105);
        versions.advance(&Place::parse("m1"), 100);
        let text = versions.to_string();
        assert_eq!(decoded(&text), r#"{"m1":"105","m1/shop":"7","m2":"88"}"#);
        assert_eq!(Versions::parse(&text), versions);
        assert_eq!((versions.get(&Place::parse("m2")), versions.get(&Place::parse("m3"))), (Some(88), None));
    }

    #[test]
    fn a_version_beside_an_object_is_one_to_go_on_from_and_has_the_objects_own() {
        let check = |versions: &str, place: &str, (gone, revision): (bool, u64), expected: &str| {
            let versions = Versions::parse(&URL_SAFE_NO_PAD.encode(versions));
            let place = Place::parse(place);
            let around = versions.around(&place);
            let text = if gone { around.gone(revision) } else { around.there(revision) };
            assert_eq!(decoded(&text), expected);
            assert_eq!(Versions::parse(&text), versions, "{expected}");
            let own = if gone { versions.get(&place).filter(|at| *at > 0) } else { None };
            assert_eq!(Versions::of_object(&text, &place, "a"), Some(own.unwrap_or(revision)), "{expected}");
        };
        let (there, gone) = (false, true);
        check(r#"{"m1":"105","m2":"88"}"#, "m1", (there, 105), r#"{"m1":"105","m2":"88"}"#);
        check(r#"{"m1":"105","m2":"88"}"#, "m1", (there, 7), r#"{"m1":"7","m1#":"105","m2":"88"}"#);
        check(r#"{"m1":"105","m2":"88"}"#, "m2", (gone, 7), r#"{"m1":"105","m2":"88"}"#);
        // Partially known, and not known at all.
        check(r#"{"m1":"105","m2":"0"}"#, "m2", (there, 7), r#"{"m1":"105","m2":"7","m2#":"0"}"#);
        check(r#"{"m1":"105","m2":"0"}"#, "m2", (gone, 7), r#"{"m1":"105","m2":"7","m2#":"0"}"#);
        check(r#"{"m1":"105"}"#, "m2", (gone, 7), r#"{"m1":"105","m2":"7","m2#":""}"#);
        check(r"{}", "m2", (gone, 7), r#"{"m2":"7","m2#":""}"#);
        check(
            r#"{"m1/bank":"900","m1/shop":"105"}"#,
            "m1/shop",
            (there, 103),
            r#"{"m1/bank":"900","m1/shop":"103","m1/shop#":"105"}"#,
        );
    }

    #[test]
    fn the_version_of_an_object_is_that_of_its_place() {
        let check = |text: &str, place: &str, expected: Option<u64>| {
            let text = URL_SAFE_NO_PAD.encode(text);
            assert_eq!(Versions::of_object(&text, &Place::parse(place), "shop"), expected, "{place}");
        };
        let two = r#"{"m1/bank":"900","m1/shop":"105","m2":"7"}"#;
        check(two, "m1/shop", Some(105));
        check(two, "m1", Some(105));
        check(two, "m2/shop", Some(7));
        check(two, "m3", None);
        check(r#"{"m1/bank":"900","m1/bank#":"1000"}"#, "m1", Some(900));
        // It would overwrite any existing object.
        check(r#"{"m1":"0"}"#, "m1", None);
        assert_eq!(Versions::of_object("105", &Place::cluster("m1"), ""), None);
    }

    #[test]
    fn an_unreadable_version_counts_as_none() {
        for odd in
            ["", "0", "105", "%%%", "e30", &URL_SAFE_NO_PAD.encode(r#"{"m1":"x"}"#), &"a".repeat(LONGEST + 1)]
        {
            assert!(Versions::parse(odd).is_empty(), "{odd}");
        }
    }

    #[test]
    fn a_token_is_read_back_and_leaves_out_what_is_empty() {
        let token =
            Continue { rv: "abc".to_owned(), cluster: "m1".to_owned(), after: "default/x".to_owned() };
        assert_eq!(Continue::parse(&token.to_string()), Some(token.clone()));
        assert_eq!(
            decoded(&Continue { after: String::new(), ..token }.to_string()),
            r#"{"rv":"abc","cluster":"m1"}"#
        );
        assert_eq!(Continue::parse("nonsense"), None);
    }
}
