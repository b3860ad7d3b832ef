//! Patches a JSON or YAML document that is embedded as text in a field, as in a ConfigMap.

use api::policy::{FieldOverrider, PatchOperation};
use indexmap::IndexMap;
use serde_json::Value;

use super::budget::Budget;
use super::document::Document;
use super::{Error, patch, yaml};

pub(super) fn apply(
    object: &mut Value,
    overriders: &[FieldOverrider],
    budget: &mut Budget,
) -> Result<(), Error> {
    for (path, changes) in by_field(overriders) {
        let field = find(object, path)?;
        let Value::String(text) = field else { return Err(Error::NotText { path: path.to_owned() }) };
        for change in changes {
            budget.bytes(text.len())?;
            *text = match change {
                Change::Yaml(operations) => patch_yaml(text, path, &operations, budget)?,
                Change::Json(operations) => patch_json(text, path, &operations, budget)?,
                Change::Clear => String::new(),
            };
            budget.bytes(text.len())?;
        }
    }
    Ok(())
}

/// What is done to the text of a field, for which it is read and printed once.
enum Change<'a> {
    Yaml(Vec<patch::Operation<'a>>),
    Json(Vec<patch::Operation<'a>>),
    /// The overrider has no operations; admission refuses it.
    Clear,
}

/// Returns what a rule does to each field, in the order in which the fields come first. The overriders of a field are done together,
/// since reading and printing a large text for each of them would take minutes; those of one field do not touch another.
fn by_field(overriders: &[FieldOverrider]) -> IndexMap<&str, Vec<Change<'_>>> {
    let mut fields: IndexMap<&str, Vec<Change<'_>>> = IndexMap::new();
    for overrider in overriders {
        let changes = fields.entry(&overrider.field_path).or_default();
        // Both lists at once are refused by admission; without it, YAML counts.
        match (overrider.yaml.as_slice(), overrider.json.as_slice(), changes.last_mut()) {
            ([], [], _) => changes.push(Change::Clear),
            ([], entries, Some(Change::Json(earlier))) => earlier.extend(operations(entries)),
            ([], entries, _) => changes.push(Change::Json(operations(entries).collect())),
            (entries, _, Some(Change::Yaml(earlier))) => earlier.extend(operations(entries)),
            (entries, _, _) => changes.push(Change::Yaml(operations(entries).collect())),
        }
    }
    fields
}

fn find<'a>(object: &'a mut Value, path: &str) -> Result<&'a mut Value, Error> {
    let fail = |reason: String| Error::FieldPath { path: path.to_owned(), reason };
    if path.is_empty() {
        return Ok(object);
    }
    let mut tokens = path.split('/');
    if tokens.next() != Some("") {
        return Err(fail("JSON pointer must be empty or start with a \"/\"".into()));
    }
    let mut current = object;
    for token in tokens {
        let token = apimachinery::patch::json::unescape(token);
        current = match current {
            Value::Object(map) => {
                map.get_mut(&token).ok_or_else(|| fail(format!("object has no key {token:?}")))?
            }
            Value::Array(items) => {
                let index: usize = token.parse().map_err(|_| fail(format!("{token:?} is not an index")))?;
                items.get_mut(index).ok_or_else(|| fail(format!("index {index} is out of range")))?
            }
            _ => return Err(fail(format!("{token:?} is looked up in a scalar"))),
        };
    }
    Ok(current)
}

fn operations(entries: &[PatchOperation]) -> impl Iterator<Item = patch::Operation<'_>> {
    entries.iter().map(|entry| patch::Operation {
        operator: &entry.operator,
        path: &entry.sub_path,
        value: entry.value.as_ref(),
    })
}

fn patch_yaml(
    text: &str,
    path: &str,
    operations: &[patch::Operation<'_>],
    budget: &mut Budget,
) -> Result<String, Error> {
    let unreadable = |reason: String| Error::Embedded { path: path.to_owned(), reason };
    let mut document = apimachinery::yaml::read(text).map_err(|error| unreadable(error.to_string()))?.value;
    patch::apply(&mut document, operations, &mut budget.patches)?;
    Ok(yaml::write(&document))
}

fn patch_json(
    text: &str,
    path: &str,
    operations: &[patch::Operation<'_>],
    budget: &mut Budget,
) -> Result<String, Error> {
    // The Go library hands an empty document back untouched.
    if text.is_empty() {
        return Ok(String::new());
    }
    let unreadable = |reason: String| Error::Embedded { path: path.to_owned(), reason };
    let mut document = Document::parse(text).map_err(|error| unreadable(error.to_string()))?;
    patch::apply(&mut document, operations, &mut budget.patches)?;
    Ok(document.print())
}
