//! Changes labels or annotations of the object itself, not of its pod template.

use api::policy::{LabelAnnotationOverrider, OverriderOperator};
use serde_json::Value;

use super::Error;
use crate::Object;

/// `replace` and `remove` ignore keys that are not there.
pub(super) fn apply(
    object: &mut Value,
    section: &str,
    overriders: &[LabelAnnotationOverrider],
) -> Result<(), Error> {
    let labels = section == "labels";
    for overrider in overriders {
        for (key, value) in &overrider.value {
            let exists = object["metadata"]
                .get(section)
                .and_then(|all| all.get(key))
                .is_some_and(|old| !old.is_null());
            match overrider.operator {
                OverriderOperator::Add => {}
                OverriderOperator::Replace if exists => {}
                OverriderOperator::Remove if exists => {
                    if let Some(Value::Object(entries)) = object.pointer_mut(&format!("/metadata/{section}"))
                    {
                        entries.remove(key);
                    }
                    continue;
                }
                _ => continue,
            }
            if labels {
                object.set_label(key, value);
            } else {
                object.set_annotation(key, value);
            }
        }
    }
    Ok(())
}
