//! What the rules of several kinds have in common.

use api::config::DependentObjectReference;
use api::labels::annotations::TEMPLATE_GENERATION;
use api::work::{Component, ComponentReplicaRequirements, NodeClaim, ReplicaRequirements};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::Items;
use crate::pods::PriorityClass;
use crate::{Error, Replicas, Result, fields, pods};

/// Returns the value at a path; null counts as absent.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let mut current = value;
    for key in path {
        current = current.get(key)?;
    }
    Some(current).filter(|value| !value.is_null())
}

/// Returns a value that the rule cannot do without.
pub(super) fn need<'a>(value: &'a Value, path: &[&str]) -> Result<&'a Value> {
    at(value, path).ok_or_else(|| missing(path))
}

pub(super) fn missing(path: &[&str]) -> Error {
    Error::Missing(path.join("."))
}

/// Says that something is a scalar or a list where the rule must set a field of it.
pub(super) fn not_an_object(path: &[&str]) -> Error {
    Error::Layer(format!("{} is not an object", path.join(".")))
}

pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path).and_then(Value::as_str)
}

/// Returns a text that says something.
pub(super) fn some_text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    text(value, path).filter(|text| !text.is_empty())
}

pub(super) fn number(value: &Value, path: &[&str]) -> Option<f64> {
    at(value, path).and_then(Value::as_f64)
}

pub(super) fn need_number(value: &Value, path: &[&str]) -> Result<f64> {
    number(value, path).ok_or_else(|| missing(path))
}

pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the JSON of a number: an integer where it is one.
pub(super) fn json_number(number: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "only where nothing is lost")]
    if number.fract() == 0.0 && number.abs() < 9e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "counts of replicas are cut off, as upstream")]
pub(super) fn count(number: f64) -> i32 {
    number as i64 as i32
}

/// Removes null everywhere: scripts do not have it.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, field| !field.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(drop_nulls);
        }
        _ => {}
    }
}

/// Removes null and what is empty, once: what becomes empty by that stays.
pub(super) fn drop_empty(value: &mut Value) {
    drop_nulls(value);
    fn inner(value: &mut Value) {
        let empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        match value {
            Value::Object(map) => {
                map.retain(|_, field| !empty(field));
                map.values_mut().for_each(inner);
            }
            Value::Array(items) => {
                items.retain(|item| !empty(item));
                items.iter_mut().for_each(inner);
            }
            _ => {}
        }
    }
    inner(value);
}

/// Removes zeros, empty texts, `0s` and what is empty or becomes so; says whether anything is left.
pub(super) fn prune_zeros(value: &mut Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(_) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s"),
        Value::Array(items) => {
            items.retain_mut(prune_zeros);
            !items.is_empty()
        }
        Value::Object(map) => {
            map.retain(|_, field| prune_zeros(field));
            !map.is_empty()
        }
    }
}

pub(super) fn status(object: &mut Value) -> &mut Map<String, Value> {
    let Value::Object(fields) = object else { unreachable!("objects are maps") };
    let status = fields.entry("status").or_insert_with(|| json!({}));
    if !status.is_object() {
        *status = json!({});
    }
    status.as_object_mut().expect("it was just made one")
}

pub(super) fn set_status(object: &mut Value, status: Value) {
    if let Value::Object(fields) = object {
        fields.insert("status".into(), status);
    }
}

/// The statuses that members report, with the names of their clusters.
pub(super) fn statuses<'a>(items: Items<'a>) -> impl Iterator<Item = (&'a str, &'a Value)> {
    items.iter().filter_map(|item| {
        let status = item.status.as_ref().filter(|status| !status.is_null())?;
        Some((item.cluster_name.as_str(), status))
    })
}

pub(super) fn sum(items: Items<'_>, field: &str) -> f64 {
    statuses(items).filter_map(|(_, status)| number(status, &[field])).sum()
}

/// Returns the value of the last member that has one that says something.
pub(super) fn last(items: Items<'_>, field: &str) -> Option<Value> {
    statuses(items)
        .filter_map(|(_, status)| at(status, &[field]))
        .filter(|value| value.as_str() != Some(""))
        .last()
        .cloned()
}

/// Returns the least or the greatest text: times of one format sort like texts.
pub(super) fn latest(items: Items<'_>, field: &str) -> Option<String> {
    statuses(items).filter_map(|(_, status)| some_text(status, &[field])).max().map(str::to_owned)
}

pub(super) fn earliest(items: Items<'_>, field: &str) -> Option<String> {
    statuses(items).filter_map(|(_, status)| some_text(status, &[field])).min().map(str::to_owned)
}

/// With exactly one member its status is the answer.
pub(super) fn only(object: &mut Value, items: Items<'_>) -> bool {
    let [item] = items else { return false };
    match &item.status {
        Some(status) if !status.is_null() => set_status(object, status.clone()),
        _ => {
            if let Value::Object(fields) = object {
                fields.remove("status");
            }
        }
    }
    true
}

fn template_generation(object: &Value) -> f64 {
    number(object, &["metadata", "generation"]).unwrap_or(0.0)
}

/// Returns whether every member has seen the template as it is.
fn all_current(object: &Value, items: Items<'_>) -> bool {
    let wanted = template_generation(object);
    let current = statuses(items)
        .filter(|(_, status)| {
            let field = |name| number(status, &[name]).unwrap_or(0.0);
            field("resourceTemplateGeneration") == wanted
                && field("generation") == field("observedGeneration")
        })
        .count();
    current == items.len()
}

pub(super) fn aggregate_generation(object: &mut Value, items: Items<'_>) {
    let old = number(object, &["status", "observedGeneration"]).unwrap_or(0.0);
    let observed = if all_current(object, items) { template_generation(object) } else { old };
    status(object).insert("observedGeneration".into(), json_number(observed));
}

/// Returns the given fields of a status; nothing for an object without status.
pub(super) fn picked(object: &Value, names: &[&str]) -> Option<Map<String, Value>> {
    let status = at(object, &["status"])?;
    let field = |name: &&str| at(status, &[name]).map(|value| ((*name).to_owned(), value.clone()));
    Some(names.iter().filter_map(field).collect())
}

/// Adds what the aggregation needs to know which template a member has seen.
pub(super) fn with_generation(object: &Value, names: &[&str]) -> Map<String, Value> {
    let Some(mut status) = picked(object, names) else { return Map::new() };
    if let Some(generation) = at(object, &["metadata", "generation"]) {
        status.insert("generation".into(), generation.clone());
    }
    let annotation = text(object, &["metadata", "annotations", TEMPLATE_GENERATION]);
    if let Some(generation) = annotation.and_then(|text| text.trim().parse::<i64>().ok()) {
        status.insert("resourceTemplateGeneration".into(), Value::from(generation));
    }
    status
}

/// Unites the conditions of all members: messages say where they come from, equal conditions become one.
pub(super) fn united_conditions(items: Items<'_>) -> Result<Vec<Value>> {
    let mut united: Vec<Value> = Vec::new();
    for (cluster, status) in statuses(items) {
        for condition in list(status, &["conditions"]) {
            let message = text(condition, &["message"]).ok_or_else(|| missing(&["conditions", "message"]))?;
            let message = format!("{cluster}={message}");
            let alike = |other: &&mut Value| {
                ["type", "status", "reason"]
                    .iter()
                    .all(|field| at(other, &[field]) == at(condition, &[field]))
            };
            match united.iter_mut().find(alike) {
                Some(known) => {
                    let before = text(known, &["message"]).unwrap_or_default();
                    known["message"] = Value::from(format!("{before}, {message}"));
                }
                None => {
                    let mut new = condition.clone();
                    new["message"] = Value::from(message);
                    united.push(new);
                }
            }
        }
    }
    Ok(united)
}

/// Returns the condition of a type.
pub(super) fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    list(status, &["conditions"]).iter().find(|condition| text(condition, &["type"]) == Some(kind))
}

pub(super) fn is_true(status: &Value, kind: &str) -> bool {
    list(status, &["conditions"])
        .iter()
        .any(|each| text(each, &["type"]) == Some(kind) && text(each, &["status"]) == Some("True"))
}

pub(super) fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(super) fn set_spec(object: &mut Value, field: &str, value: Value) -> Result<()> {
    match object.get_mut("spec") {
        Some(Value::Object(spec)) => {
            spec.insert(field.to_owned(), value);
            Ok(())
        }
        _ => Err(missing(&["spec"])),
    }
}

/// Takes `spec.suspend` over from the member, where it was set.
pub(super) fn retain_suspend(desired: &mut Value, observed: &Value) -> Result<()> {
    need(observed, &["spec"])?;
    match at(observed, &["spec", "suspend"]) {
        Some(suspend) => set_spec(desired, "suspend", suspend.clone()),
        None => Ok(()),
    }
}

pub(super) fn requirements(template: &Value, class: PriorityClass) -> Result<Option<ReplicaRequirements>> {
    match at(template, &["spec"]) {
        Some(spec) => {
            let mut spec = spec.clone();
            drop_empty(&mut spec);
            pods::requirements(&spec, class)
        }
        None => Ok(None),
    }
}

/// Returns where pods may run, as plain fields say it.
pub(super) fn node_claim<'a>(
    parts: impl IntoIterator<Item = (&'a str, Option<&'a Value>)>,
) -> Result<Option<NodeClaim>> {
    let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty) || value == &json!([]);
    let said = parts.into_iter().filter_map(|(name, value)| {
        let value = value.filter(|value| !empty(value))?;
        Some((name.to_owned(), value.clone()))
    });
    let claim: Map<String, Value> = said.collect();
    if claim.is_empty() {
        return Ok(None);
    }
    serde_json::from_value(Value::Object(claim))
        .map(Some)
        .map_err(|error| Error::NodeClaim(error.to_string()))
}

/// The replicas at `spec.<field>` of pods like `spec.template`.
pub(super) fn template_replicas(
    object: &Value,
    field: &str,
    default: Option<f64>,
    class: PriorityClass,
) -> Result<Replicas> {
    need(object, &["spec"])?;
    let template = need(object, &["spec", "template"])?;
    let replicas = number(object, &["spec", field]).or(default).ok_or_else(|| missing(&["spec", field]))?;
    Ok(Replicas { count: count(replicas), requirements: requirements(template, class)? })
}

pub(super) fn component(name: &str, replicas: f64, requirements: Option<ReplicaRequirements>) -> Component {
    Component {
        name: name.to_owned(),
        replicas: count(replicas),
        replica_requirements: requirements.map(|requirements| ComponentReplicaRequirements {
            node_claim: requirements.node_claim,
            resource_request: requirements.resource_request,
            priority_class_name: requirements.priority_class_name,
        }),
    }
}

/// What the pods of a template refer to.
pub(super) fn template_dependencies(object: &Value, path: &[&str]) -> Result<Vec<DependentObjectReference>> {
    need(object, &["spec"])?;
    pod_dependencies(need(object, path)?, fields::namespace(object))
}

pub(super) fn pod_dependencies(template: &Value, namespace: &str) -> Result<Vec<DependentObjectReference>> {
    let namespace = if namespace.is_empty() { "default" } else { namespace };
    match at(template, &["spec"]) {
        Some(spec) => pods::references(spec, namespace),
        None => Ok(Vec::new()),
    }
}

pub(super) fn reference(object: &Value, kind: &str, name: &str) -> DependentObjectReference {
    DependentObjectReference {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: fields::namespace(object).into(),
        name: name.into(),
        label_selector: None,
    }
}

/// Adds a reference where a path names an object.
pub(super) fn refer(found: &mut Vec<DependentObjectReference>, object: &Value, kind: &str, path: &[&str]) {
    if let Some(name) = some_text(object, path) {
        found.push(reference(object, kind, name));
    }
}

/// An item is judged by its rank; the first of the highest rank wins.
pub(super) fn worst<'a, T>(ranked: impl Iterator<Item = (i32, T)> + 'a) -> Option<T>
where
    T: 'a,
{
    ranked
        .fold(None, |best: Option<(i32, T)>, next| match best {
            Some(best) if best.0 >= next.0 => Some(best),
            _ => Some(next),
        })
        .map(|(_, value)| value)
}
