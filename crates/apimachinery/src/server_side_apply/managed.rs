//! `metadata.managedFields`: reading, printing, sorting.
//!
//! An entry is identified by manager, operation, API version and subresource; for `Apply` the version is not part of
//! the identity, so a manager has one applied set however it spells its version.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::set::Set;
use crate::go;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// A writer; the order is the order in which conflicts are listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub manager: String,
    pub operation: Operation,
    /// Empty for `Apply`.
    pub api_version: String,
    pub subresource: String,
}

impl Identity {
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }
}

/// As conflicts name a manager: `"kubectl-edit" using apps/v1`.
impl std::fmt::Display for Identity {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&go::quote(&self.manager))?;
        if !self.subresource.is_empty() {
            write!(out, " with subresource {}", go::quote(&self.subresource))?;
        }
        if self.operation == Operation::Update {
            write!(out, " using {}", self.api_version)?;
        }
        Ok(())
    }
}

/// What one identity owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    pub set: Set,
    pub api_version: String,
    /// RFC 3339 in whole seconds, UTC; such texts sort like the times they mean.
    pub time: Option<String>,
}

/// All entries of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Managed(pub BTreeMap<Identity, Owned>);

impl Managed {
    /// Reads `metadata.managedFields`; none or null is empty.
    pub fn decode(entries: Option<&Value>) -> Result<Self, String> {
        let mut managed = Self::default();
        let entries = match entries {
            None | Some(Value::Null) => return Ok(managed),
            Some(Value::Array(entries)) => entries,
            Some(other) => {
                return Err(format!("expected a list of managed fields, got {}", go::type_name(other)));
            }
        };
        for (index, entry) in entries.iter().enumerate() {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err("apiVersion must not be empty".to_owned());
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
                other => {
                    return Err(format!(
                        "invalid fieldsType {} in managed fields entry {index}",
                        go::quote(other)
                    ));
                }
            }
            let set = match entry.get("fieldsV1") {
                None | Some(Value::Null) => Set::new(),
                Some(fields) => {
                    Set::from_fields_v1(fields).map_err(|error| format!("error decoding set: {error}"))?
                }
            };
            let identity = Identity {
                manager: text("manager").to_owned(),
                operation,
                api_version: if operation == Operation::Apply {
                    String::new()
                } else {
                    api_version.to_owned()
                },
                subresource: text("subresource").to_owned(),
            };
            let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
            managed.0.insert(identity, Owned { set, api_version: api_version.to_owned(), time });
        }
        Ok(managed)
    }

    /// Prints the entries in their canonical order: operation, time, manager, version, subresource.
    pub fn encode(&self) -> Vec<Value> {
        let mut entries: Vec<(&Identity, &Owned)> = self.0.iter().collect();
        entries.sort_by(|(left, left_owned), (right, right_owned)| {
            (left.operation, &left_owned.time, &left.manager, &left_owned.api_version, &left.subresource).cmp(
                &(
                    right.operation,
                    &right_owned.time,
                    &right.manager,
                    &right_owned.api_version,
                    &right.subresource,
                ),
            )
        });
        entries
            .into_iter()
            .map(|(identity, owned)| {
                let mut entry = Map::new();
                entry.insert("manager".to_owned(), json!(identity.manager));
                entry.insert("operation".to_owned(), json!(identity.operation.name()));
                entry.insert("apiVersion".to_owned(), json!(owned.api_version));
                if let Some(time) = &owned.time {
                    entry.insert("time".to_owned(), json!(time));
                }
                entry.insert("fieldsType".to_owned(), json!("FieldsV1"));
                entry.insert("fieldsV1".to_owned(), owned.set.to_fields_v1());
                if !identity.subresource.is_empty() {
                    entry.insert("subresource".to_owned(), json!(identity.subresource));
                }
                Value::Object(entry)
            })
            .collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the entries into an object; without any the field is absent.
    pub fn store(&self, object: &mut Value) {
        let Value::Object(object) = object else { return };
        if self.is_empty() {
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.remove("managedFields");
            }
            return;
        }
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            metadata.insert("managedFields".to_owned(), Value::Array(self.encode()));
        }
    }

    /// Folds the oldest updaters into `ancient-changes`, one bucket per version, until at most `most` remain.
    pub fn cap_updaters(&mut self, most: usize) {
        let mut updaters: Vec<(Option<String>, Identity)> = self
            .0
            .iter()
            .filter(|(identity, _)| identity.operation == Operation::Update)
            .map(|(identity, owned)| (owned.time.clone(), identity.clone()))
            .collect();
        let mut count = updaters.len();
        updaters.sort();
        let mut first_of_version: BTreeMap<String, Identity> = BTreeMap::new();
        for (_, identity) in updaters {
            if count <= most {
                return;
            }
            let Some(version) = self.0.get(&identity).map(|owned| owned.api_version.clone()) else {
                continue;
            };
            let Some(first) = first_of_version.get(&version) else {
                first_of_version.insert(version, identity);
                continue;
            };
            let bucket = Identity::new("ancient-changes", Operation::Update, &version, "");
            if !self.0.contains_key(&bucket)
                && let Some(owned) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), owned);
            }
            let Some(owned) = self.0.remove(&identity) else { continue };
            let merged = match self.0.get(&bucket) {
                Some(present) => present.set.union(&owned.set),
                None => owned.set.clone(),
            };
            // The bucket carries the time of the newest change in it.
            self.0.insert(bucket, Owned { set: merged, ..owned });
            count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, time: Option<&str>) -> Value {
        let mut entry = json!({
            "manager": manager, "operation": operation, "apiVersion": version,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {format!("f:{manager}"): {}}},
        });
        if let Some(time) = time {
            entry["time"] = json!(time);
        }
        entry
    }

    #[test]
    fn entries_are_sorted_by_operation_time_and_manager() {
        let list = json!([
            entry("b", "Update", "v1", Some("2024-01-01T00:00:00Z")),
            entry("a", "Update", "v1", Some("2024-01-02T00:00:00Z")),
            entry("z", "Update", "v1", None),
            entry("y", "Apply", "v1", Some("2025-01-01T00:00:00Z")),
        ]);
        let managed = Managed::decode(Some(&list)).unwrap();
        let order: Vec<Value> = managed.encode().iter().map(|entry| entry["manager"].clone()).collect();
        assert_eq!(order, [json!("y"), json!("z"), json!("b"), json!("a")]);
    }

    #[test]
    fn an_applier_has_one_entry_whatever_the_version() {
        let list = json!([entry("a", "Apply", "v1", None), entry("a", "Apply", "v2", None)]);
        let managed = Managed::decode(Some(&list)).unwrap();
        assert_eq!(managed.0.len(), 1);
        assert_eq!(managed.encode()[0]["apiVersion"], "v2");
    }

    #[test]
    fn broken_entries_say_what_is_wrong() {
        let mut broken = entry("a", "Update", "v1", None);
        broken["operation"] = json!("Touch");
        let decode = |entry: &Value| Managed::decode(Some(&json!([entry]))).unwrap_err();
        assert_eq!(decode(&broken), "operation must be `Apply` or `Update`");
        let mut broken = entry("a", "Update", "", None);
        assert_eq!(decode(&broken), "apiVersion must not be empty");
        broken["apiVersion"] = json!("v1");
        broken["fieldsType"] = json!("FieldsV2");
        assert_eq!(decode(&broken), r#"invalid fieldsType "FieldsV2" in managed fields entry 0"#);
    }

    #[test]
    fn the_oldest_updaters_become_ancient_changes() {
        let times: Vec<String> = (0..4).map(|day| format!("2024-01-0{}T00:00:00Z", day + 1)).collect();
        let list: Vec<Value> =
            (0..4).map(|index| entry(&format!("m{index}"), "Update", "v1", Some(&times[index]))).collect();
        let mut managed = Managed::decode(Some(&Value::Array(list))).unwrap();
        managed.cap_updaters(3);
        let entries = managed.encode();
        let names: Vec<&str> = entries.iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["ancient-changes", "m2", "m3"]);
        assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {"f:m0": {}, "f:m1": {}}}));
        assert_eq!(entries[0]["time"], times[1]);
    }
}
