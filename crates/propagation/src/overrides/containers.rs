//! Changes the command or the arguments of containers by name.

use std::collections::HashSet;

use api::policy::{CommandArgsOverrider, OverriderOperator};
use serde_json::Value;

use super::budget::Budget;
use super::{Error, pod_spec_path};
use crate::Object;

/// Applies the overriders to `field` (`command` or `args`). Names that match no container are ignored; touching
/// an absent field creates it, even if empty.
pub(super) fn apply(
    object: &mut Value,
    field: &str,
    overriders: &[CommandArgsOverrider],
    budget: &mut Budget,
) -> Result<(), Error> {
    let Some(path) = pod_spec_path(object.kind()) else { return Ok(()) };
    let Some(Value::Array(containers)) = object.pointer_mut(&format!("{path}/containers")) else {
        return Ok(());
    };
    for overrider in overriders {
        budget.steps(containers.len())?;
        let values: HashSet<&str> = overrider.value.iter().map(String::as_str).collect();
        for container in
            containers.iter_mut().filter(|container| container["name"] == *overrider.container_name)
        {
            let Value::Object(container) = container else { continue };
            let mut list = match container.get_mut(field) {
                Some(Value::Array(list)) => std::mem::take(list),
                _ => Vec::new(),
            };
            budget.steps(list.len().saturating_add(overrider.value.len()))?;
            match overrider.operator {
                OverriderOperator::Add => {
                    list.extend(overrider.value.iter().map(|value| value.as_str().into()))
                }
                OverriderOperator::Remove => {
                    list.retain(|item| !item.as_str().is_some_and(|item| values.contains(item)))
                }
                _ => {}
            }
            container.insert(field.to_owned(), Value::Array(list));
        }
    }
    Ok(())
}
