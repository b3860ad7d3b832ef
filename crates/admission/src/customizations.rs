//! ResourceInterpreterCustomization: one script per question and kind of resource, and scripts that can be read.

use apimachinery::object::Object as _;
use serde_json::Value;

use api::config::{CustomizationRules, LuaScriptHolder, ResourceInterpreterCustomizationSpec};

use interpreter::lua;

use crate::request::{Denial, spec};

pub(crate) fn validate(object: &Value, others: &[Value]) -> Result<(), Denial> {
    let new: ResourceInterpreterCustomizationSpec = spec(object)?;
    let name = |object: &Value| object.name().to_owned();
    for other in others.iter().filter(|other| name(other) != name(object)) {
        let known: ResourceInterpreterCustomizationSpec = spec(other)?;
        if known.target != new.target {
            continue;
        }
        let both = scripts(&known.customizations).zip(scripts(&new.customizations));
        for ((operation, known), (_, new)) in both {
            // Dependencies of several customizations add up; anything else can have one answer only.
            if operation != "InterpretDependency" && known.is_some() && new.is_some() {
                return Err(Denial::forbidden(format!(
                    "conflicting with InterpreterOperation({operation}) of existing \
                     ResourceInterpreterCustomization({})",
                    name(other)
                )));
            }
        }
    }
    for (operation, script) in scripts(&new.customizations) {
        if let Some(fault) = script.and_then(lua::fault) {
            return Err(Denial::forbidden(format!(
                "InterpreterOperation({operation}) Lua script error: {fault}"
            )));
        }
    }
    Ok(())
}

/// Returns the scripts by operation, in the order in which they are judged.
fn scripts(rules: &CustomizationRules) -> impl Iterator<Item = (&'static str, Option<&str>)> {
    fn text(holder: &Option<LuaScriptHolder>) -> Option<&str> {
        holder.as_ref().map(|holder| holder.lua_script.as_str()).filter(|script| !script.is_empty())
    }
    [
        ("Retain", text(&rules.retention)),
        ("InterpretReplica", text(&rules.replica_resource)),
        ("InterpretComponent", text(&rules.component_resource)),
        ("ReviseReplica", text(&rules.replica_revision)),
        ("InterpretStatus", text(&rules.status_reflection)),
        ("AggregateStatus", text(&rules.status_aggregation)),
        ("InterpretHealth", text(&rules.health_interpretation)),
        ("InterpretDependency", text(&rules.dependency_interpretation)),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn customization(name: &str, kind: &str, rules: Value) -> Value {
        json!({
            "metadata": { "name": name },
            "spec": { "target": { "apiVersion": "apps/v1", "kind": kind }, "customizations": rules },
        })
    }

    fn judge(object: &Value, others: &[Value]) -> Result<(), String> {
        validate(object, others).map_err(|denial| denial.message)
    }

    #[test]
    fn two_customizations_may_not_answer_the_same_question() {
        let health = json!({ "healthInterpretation": { "luaScript": "return true" } });
        let known = customization("known", "Deployment", health.clone());
        let new = customization("new", "Deployment", health.clone());
        assert_eq!(
            judge(&new, std::slice::from_ref(&known)).unwrap_err(),
            "conflicting with InterpreterOperation(InterpretHealth) of existing ResourceInterpreterCustomization(known)"
        );
        assert_eq!(judge(&known, std::slice::from_ref(&known)), Ok(()), "itself does not count");
        let other = customization("new", "StatefulSet", health);
        assert_eq!(judge(&other, std::slice::from_ref(&known)), Ok(()));
        let depends = json!({ "dependencyInterpretation": { "luaScript": "return {}" } });
        let known = customization("known", "Deployment", depends.clone());
        assert_eq!(judge(&customization("new", "Deployment", depends), &[known]), Ok(()));
    }

    #[test]
    fn scripts_must_be_lua() {
        let bad = customization("new", "Pod", json!({ "retention": { "luaScript": "function (" } }));
        assert_eq!(
            judge(&bad, &[]).unwrap_err(),
            "InterpreterOperation(Retain) Lua script error: <string> line:1(column:10) near '(':   syntax error\n"
        );
    }
}
