//! Patches a JSON or YAML document that is embedded as text in a field, as in a ConfigMap.

use api::policy::{FieldOverrider, PatchOperation};
use serde_json::Value;

use super::document::Document;
use super::{Error, patch, yaml};

pub(super) fn apply(object: &mut Value, overriders: &[FieldOverrider]) -> Result<(), Error> {
    for overrider in overriders {
        let path = &overrider.field_path;
        let field = find(object, path)?;
        let Value::String(text) = field else { return Err(Error::NotText { path: path.clone() }) };
        // Both lists at once are refused by admission; without it, YAML counts.
        *text = if !overrider.yaml.is_empty() {
            patch_yaml(text, path, &overrider.yaml)?
        } else if !overrider.json.is_empty() {
            patch_json(text, path, &overrider.json)?
        } else {
            String::new()
        };
    }
    Ok(())
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

fn operations(entries: &[PatchOperation]) -> Vec<patch::Operation<'_>> {
    entries
        .iter()
        .map(|entry| patch::Operation {
            operator: &entry.operator,
            path: &entry.sub_path,
            value: entry.value.as_ref(),
        })
        .collect()
}

fn patch_yaml(text: &str, path: &str, entries: &[PatchOperation]) -> Result<String, Error> {
    let unreadable = |reason: String| Error::Embedded { path: path.to_owned(), reason };
    let mut document = apimachinery::yaml::read(text).map_err(|error| unreadable(error.to_string()))?.value;
    patch::apply(&mut document, &operations(entries))?;
    Ok(yaml::write(&document))
}

fn patch_json(text: &str, path: &str, entries: &[PatchOperation]) -> Result<String, Error> {
    // The Go library hands an empty document back untouched.
    if text.is_empty() {
        return Ok(String::new());
    }
    let unreadable = |reason: String| Error::Embedded { path: path.to_owned(), reason };
    let mut document = Document::parse(text).map_err(|error| unreadable(error.to_string()))?;
    patch::apply(&mut document, &operations(entries))?;
    Ok(document.print())
}
