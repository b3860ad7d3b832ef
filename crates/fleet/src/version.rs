//! Resource versions and continue tokens over several clusters.
//!
//! A version is the base64 of a JSON map from places to the members' own versions, in Karmada's form:
//! `{"m1":"105","m2":"88"}`, sorted, without spaces, so that equal ones are equal as text. A place is a cluster; where only some
//! namespaces of a cluster are kept, each is followed on its own and is a place of its own: `m1/shop`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::cache::Place;

/// The longest version that is read: a thousand clusters with long names.
const LONGEST: usize = 128 << 10;

/// How far each place is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions(BTreeMap<Place, u64>);

impl Versions {
    /// Reads a version. What cannot be read counts as none, as in Karmada; `0` is read by whoever asks.
    pub fn parse(text: &str) -> Self {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
            let map: BTreeMap<String, String> = serde_json::from_slice(&bytes).ok()?;
            let entries =
                map.into_iter().map(|(place, version)| Some((Place::parse(&place), version.parse().ok()?)));
            entries.collect::<Option<BTreeMap<Place, u64>>>()
        };
        if text.is_empty() || text.len() > LONGEST {
            Self::default()
        } else {
            Self(read().unwrap_or_default())
        }
    }

    /// Returns the version of one object of one place.
    pub fn of(place: &Place, revision: u64) -> Self {
        Self(BTreeMap::from([(place.clone(), revision)]))
    }

    pub fn get(&self, place: &Place) -> Option<u64> {
        self.0.get(place).copied()
    }

    /// Returns the version of a cluster, whichever of its places it is known by.
    pub fn of_cluster(&self, cluster: &str) -> Option<u64> {
        self.0.iter().filter(|(place, _)| *place.cluster == *cluster).map(|(_, at)| *at).max()
    }

    /// Notes how far a place is known. It does not go back.
    pub fn advance(&mut self, place: &Place, at: u64) {
        match self.0.get_mut(place) {
            Some(known) => *known = at.max(*known),
            None => {
                self.0.insert(place.clone(), at);
            }
        }
    }

    /// What stands for a place whose objects are being told as a whole, and of which only a part has been told. Members begin with 1.
    pub(crate) const IN_PART: u64 = 0;

    /// Notes that a place is known in part, so that nobody goes on from here.
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

/// As clients see it; nothing known is the empty text.
impl std::fmt::Display for Versions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(self.0.len() * 24);
        for (place, at) in &self.0 {
            text.push_str(if text.is_empty() { "{" } else { "," });
            // Neither clusters nor namespaces have characters that JSON escapes, but members are not trusted with that.
            text.push_str(&serde_json::to_string(&place.to_string()).unwrap_or_default());
            text.push_str(":\"");
            text.push_str(&at.to_string());
            text.push('"');
        }
        text.push('}');
        out.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

/// Where the next page of a list begins. In Karmada's form; its `continue` is the name after which we go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    /// The version of the first page, which all pages show: whoever watches after the last page starts there and misses nothing.
    /// Empty if the reader has been told that the pages do not fit together any more and goes on nevertheless.
    #[serde(default)]
    pub rv: String,
    /// The place of the last object that was read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub after: String,
}

impl Continue {
    /// Reads a token; `None` if it is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > 2 * LONGEST {
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
        assert_eq!(versions.of_cluster("m1"), Some(105));
        assert_eq!((versions.get(&Place::parse("m2")), versions.of_cluster("m3")), (Some(88), None));
    }

    #[test]
    fn what_cannot_be_read_counts_as_nothing() {
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
