//! From the JSON that a script returned to what was asked for.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use api::config::DependentObjectReference;
use api::work::{Component, ReplicaRequirements};
use apimachinery::quantity::Quantity;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::convert::repair;

/// How upstream begins to say that a table is not what was asked for.
const UNREADABLE: &str = "json unmarshal obj failed";

/// Returns how many values a tree has; working on it costs as many steps.
pub(super) fn size(json: &Json) -> usize {
    match json {
        Json::Array(items) => items.iter().map(size).fold(1, usize::saturating_add),
        Json::Object(fields) => fields.values().map(size).fold(1, usize::saturating_add),
        _ => 1,
    }
}

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
            _ => Err(format!("{UNREADABLE}: Object 'Kind' is missing in '{json}'")),
        },
        _ => Err(format!(
            "{UNREADABLE}: json: cannot unmarshal array into Go value of type map[string]interface {{}}"
        )),
    }
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
