//! From the JSON that a script returned to what was asked for.

use api::config::DependentObjectReference;
use api::work::{Component, ReplicaRequirements};
use apimachinery::quantity::Quantity;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::convert::repair;

/// How upstream begins to say that a table is not what was asked for.
const UNREADABLE: &str = "json unmarshal obj failed";
/// As much of a table is told in a message.
const SHOWN_MAX: usize = 1024;

/// A result without any content is an empty object where an object is wanted.
pub(super) fn object_where_empty(json: &mut Json) {
    if matches!(json, Json::Array(items) if items.is_empty()) {
        *json = Json::Object(Map::new());
    }
}

/// Returns the object that a script made of `references`.
pub(crate) fn object(mut json: Json, references: &[&Json]) -> Result<Json, String> {
    if matches!(&json, Json::Array(items) if items.is_empty()) {
        return Err(format!("{UNREADABLE}: Object 'Kind' is missing in '{{}}'"));
    }
    repair(&mut json, references);
    match &json {
        Json::Object(fields) => match fields.get("kind").and_then(Json::as_str) {
            Some(kind) if !kind.is_empty() => Ok(json),
            _ => Err(format!("{UNREADABLE}: Object 'Kind' is missing in '{}'", shown(&json))),
        },
        _ => Err(format!(
            "{UNREADABLE}: json: cannot unmarshal array into Go value of type map[string]interface {{}}"
        )),
    }
}

/// Returns the text of what a script made, as much as fits into a message.
fn shown(json: &Json) -> String {
    struct Cut(Vec<u8>);

    impl std::io::Write for Cut {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let left = SHOWN_MAX.saturating_sub(self.0.len());
            if left == 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(&bytes[..bytes.len().min(left)]);
            Ok(bytes.len().min(left))
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut cut = Cut(Vec::new());
    let whole = serde_json::to_writer(&mut cut, json).is_ok();
    let text = String::from_utf8_lossy(&cut.0);
    if whole { text.into_owned() } else { format!("{text}…") }
}

/// Returns the status that a script reports.
pub(crate) fn status(mut json: Json) -> Json {
    if matches!(&json, Json::Array(items) if items.is_empty()) {
        return Json::Object(Map::new());
    }
    repair(&mut json, &[]);
    json
}

pub(crate) fn requirements(mut json: Json) -> Result<ReplicaRequirements, String> {
    object_where_empty(&mut json);
    repair(&mut json, &[]);
    canonical_request(&mut json)?;
    typed(json)
}

pub(crate) fn components(mut json: Json) -> Result<Vec<Component>, String> {
    repair(&mut json, &[]);
    if let Json::Array(items) = &mut json {
        for item in items {
            if let Some(requirements) = item.get_mut("replicaRequirements") {
                canonical_request(requirements)?;
            }
        }
    }
    typed(json)
}

pub(crate) fn dependencies(mut json: Json) -> Result<Vec<DependentObjectReference>, String> {
    repair(&mut json, &[]);
    typed(json)
}

/// Quantities may be numbers; stored is their canonical text.
fn canonical_request(requirements: &mut Json) -> Result<(), String> {
    let Some(Json::Object(request)) = requirements.get_mut("resourceRequest") else { return Ok(()) };
    for amount in request.values_mut() {
        let text = match &amount {
            Json::String(text) => text.clone(),
            Json::Number(number) => number.to_string(),
            Json::Null => "0".to_owned(),
            _ => continue,
        };
        let quantity = Quantity::parse(&text).map_err(|error| format!("{UNREADABLE}: {error}"))?;
        *amount = Json::String(quantity.to_string());
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(json: Json) -> Result<T, String> {
    serde_json::from_value(json).map_err(|error| format!("{UNREADABLE}: {error}"))
}

/// Returns a count of replicas: without its fraction; what does not fit becomes the least, as in Go.
#[expect(clippy::cast_possible_truncation, reason = "that is what upstream does")]
pub(crate) fn count(number: f64) -> i32 {
    let fits = number > -2_147_483_649.0 && number < 2_147_483_648.0;
    if fits { number as i32 } else { i32::MIN }
}
