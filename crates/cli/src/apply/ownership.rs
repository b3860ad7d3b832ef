//! Field ownership when the server applies objects that clients applied before.
//!
//! A client-side apply leaves its manager as the owner of all fields that it set. When the server applies the object from then
//! on, the new manager takes these fields over, as with kubectl. Otherwise a field that is gone from a file would never be
//! removed.

use serde_json::{Map, Value, json};

use super::LAST_APPLIED;
use crate::failure::Refusal;
use crate::server::Server;

/// Owns the annotation with the client-side configuration once the server applies the object.
const ANNOTATION_OWNER: &str = "kubectl-last-applied";

/// How often a change is tried again after a lost race.
const TRIES: usize = 5;

/// Keeps the client-side annotation from being removed with its owner.
pub(super) async fn keep_annotation(server: &Server, path: &str, live: &Value) -> anyhow::Result<()> {
    let Some(annotation) = live["metadata"]["annotations"][LAST_APPLIED].as_str() else { return Ok(()) };
    if !owners(live, "Apply").is_empty() {
        return Ok(());
    }
    let mut object = json!({
        "apiVersion": live["apiVersion"], "kind": live["kind"],
        "metadata": { "name": live["metadata"]["name"], "annotations": { LAST_APPLIED: annotation } },
    });
    if live["metadata"]["namespace"].is_string() {
        object["metadata"]["namespace"] = live["metadata"]["namespace"].clone();
    }
    let path = format!("{path}?fieldManager={ANNOTATION_OWNER}&force=false");
    server.patch(&path, "application/apply-patch+yaml", &object).await.map(drop)
}

/// Gives `manager` the fields of the managers of client-side applies; returns whether there were any.
pub(super) async fn hand_over(
    server: &Server,
    path: &str,
    live: &Value,
    manager: &str,
) -> anyhow::Result<bool> {
    let clients = owners(live, "Update");
    let mut live = live.clone();
    for attempt in 1.. {
        let Some(fields) = handed_over(&live, &clients, manager) else { return Ok(false) };
        let patch = json!([
            { "op": "replace", "path": "/metadata/managedFields", "value": fields },
            { "op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"] },
        ]);
        match server.patch(path, "application/json-patch+json", &patch).await {
            Ok(_) => break,
            Err(error)
                if attempt < TRIES
                    && error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == 409) =>
            {
                live = server.get(path).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The managers that own the client-side annotation by this operation.
fn owners(object: &Value, operation: &str) -> Vec<String> {
    let field = format!("f:{LAST_APPLIED}");
    entries(object)
        .filter(|entry| entry["operation"] == operation)
        .filter(|entry| entry["fieldsV1"]["f:metadata"]["f:annotations"].get(&field).is_some())
        .filter_map(|entry| entry["manager"].as_str().map(str::to_owned))
        .collect()
}

fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["managedFields"].as_array().into_iter().flatten()
}

/// Returns the entries in which `manager` has the fields of `clients`, too; `None` if nothing changes.
fn handed_over(object: &Value, clients: &[String], manager: &str) -> Option<Vec<Value>> {
    let mut fields: Vec<Value> = entries(object).cloned().collect();
    for client in clients {
        let whole = |entry: &Value| entry["subresource"].as_str().unwrap_or("").is_empty();
        let is_client =
            |entry: &Value| entry["manager"] == *client && entry["operation"] == "Update" && whole(entry);
        let is_own =
            |entry: &Value| entry["manager"] == *manager && entry["operation"] == "Apply" && whole(entry);
        let target = match fields.iter().position(is_own) {
            Some(place) => place,
            None => {
                let Some(place) = fields.iter().position(is_client) else { continue };
                fields[place]["manager"] = manager.into();
                fields[place]["operation"] = "Apply".into();
                place
            }
        };
        let version = fields[target]["apiVersion"].clone();
        let given = fields.iter().find(|entry| is_client(entry) && entry["apiVersion"] == version).cloned();
        if let (Some(given), Some(own)) = (given, fields[target]["fieldsV1"].as_object_mut()) {
            unite(own, &given["fieldsV1"]);
        }
        fields.retain(|entry| !is_client(entry));
    }
    let before: Vec<&Value> = entries(object).collect();
    (before != fields.iter().collect::<Vec<_>>()).then_some(fields)
}

/// Adds the fields of another set.
fn unite(own: &mut Map<String, Value>, other: &Value) {
    for (key, value) in other.as_object().into_iter().flatten() {
        match own.get_mut(key).and_then(Value::as_object_mut) {
            Some(inner) => unite(inner, value),
            None => {
                own.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields})
    }

    fn annotated() -> Value {
        json!({"f:metadata": {"f:annotations": {format!("f:{LAST_APPLIED}"): {}}}, "f:data": {"f:a": {}}})
    }

    fn object(fields: Vec<Value>) -> Value {
        json!({"metadata": {"managedFields": fields}})
    }

    #[test]
    fn what_clients_applied_becomes_the_servers() {
        let own = entry("kubectl", "Apply", json!({"f:data": {"f:b": {}}}));
        let other = entry("else", "Update", json!({"f:data": {"f:c": {}}}));
        let live =
            object(vec![entry("kubectl-client-side-apply", "Update", annotated()), own, other.clone()]);
        let clients = owners(&live, "Update");
        assert_eq!(clients, ["kubectl-client-side-apply"]);
        let fields = handed_over(&live, &clients, "kubectl").expect("changed");
        let mut united = annotated();
        united["f:data"]["f:b"] = json!({});
        assert_eq!(fields, [entry("kubectl", "Apply", united), other]);
    }

    #[test]
    fn without_an_entry_of_its_own_the_manager_takes_that_of_the_client() {
        let live = object(vec![entry("client", "Update", annotated())]);
        let fields = handed_over(&live, &owners(&live, "Update"), "kubectl").expect("changed");
        assert_eq!(fields, [entry("kubectl", "Apply", annotated())]);
    }

    #[test]
    fn managers_that_did_not_apply_keep_their_fields() {
        let live = object(vec![entry("else", "Update", json!({"f:data": {"f:c": {}}}))]);
        assert_eq!(handed_over(&live, &owners(&live, "Update"), "kubectl"), None);
    }
}
