//! Gives pods the priority of their class, like kube-apiserver's plug-in `Priority`.
//!
//! Off by default: a control plane that passes pods on to other clusters must not decide which priority they have there.

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use serde_json::{Value, json};

use super::Operation;
use crate::registry::Kind;
use crate::server::Server;

const COLLECTION: &str = "priorityclasses";

/// The values that a class gives to a pod.
#[derive(Debug, PartialEq, Eq)]
struct Class {
    /// Empty if no class is the default.
    name: String,
    value: i64,
    preemption: Option<String>,
}

impl Class {
    fn read(class: &Value) -> Self {
        Self {
            name: class.name().to_owned(),
            value: class["value"].as_i64().unwrap_or(0),
            preemption: class["preemptionPolicy"].as_str().map(str::to_owned),
        }
    }
}

/// Sets or keeps the priority of a pod; leaves everything else alone.
pub(crate) fn mutate(
    server: &Server,
    kind: &Kind,
    operation: Operation,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if !kind.has_priority() {
        return Ok(());
    }
    match (operation, old) {
        (Operation::Create, _) => {
            let wanted = pointer::owned(object, "/spec/priorityClassName");
            let classes = server.store.snapshot(COLLECTION);
            let classes = classes.iter().filter_map(|entry| serde_json::from_slice(&entry.value).ok());
            find(&wanted, classes)
                .and_then(|class| apply(object, &class))
                .map_err(|why| Status::forbidden(&kind.resource, object.name(), &why))
        }
        (_, Some(old)) => {
            keep(object, old);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the class with a name; without a name, the default class with the lowest value.
fn find(wanted: &str, mut classes: impl Iterator<Item = Value>) -> Result<Class, String> {
    if !wanted.is_empty() {
        let found = classes.find(|class| class.name() == wanted);
        return found
            .map(|class| Class::read(&class))
            .ok_or_else(|| format!("no PriorityClass with name {wanted} was found"));
    }
    let defaults = classes.filter(|class| class["globalDefault"] == true).map(|class| Class::read(&class));
    Ok(defaults.min_by_key(|class| class.value).unwrap_or_else(|| Class {
        name: String::new(),
        value: 0,
        preemption: Some("PreemptLowerPriority".to_owned()),
    }))
}

/// Writes the values of the class. A pod with other values is refused.
fn apply(pod: &mut Value, class: &Class) -> Result<(), String> {
    let spec = &mut pod["spec"];
    if !class.name.is_empty() {
        spec["priorityClassName"] = json!(class.name);
    }
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != class.value) {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
            class.value
        ));
    }
    spec["priority"] = json!(class.value);
    if let Some(computed) = &class.preemption {
        if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| given != computed) {
            return Err(format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
            ));
        }
        spec["preemptionPolicy"] = json!(computed);
    }
    Ok(())
}

/// Restores the fields that an update leaves out.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"].get(field).is_none_or(Value::is_null)
            && let Some(old) = old["spec"].get(field).filter(|old| !old.is_null())
        {
            pointer::set(pointer::object_at(pod, "spec"), field, old.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes() -> impl Iterator<Item = Value> {
        let class = |name: &str, value: i64, default: bool| {
            json!({"metadata": {"name": name}, "value": value, "globalDefault": default,
                "preemptionPolicy": "PreemptLowerPriority"})
        };
        [class("low", 1, false), class("usual", 5, true), class("other", 7, true)].into_iter()
    }

    #[test]
    fn a_pod_has_the_priority_of_its_class() {
        let mut pod = json!({"spec": {"priorityClassName": "low"}});
        apply(&mut pod, &find("low", classes()).unwrap()).unwrap();
        assert_eq!(
            pod["spec"],
            json!({"priorityClassName": "low", "priority": 1, "preemptionPolicy": "PreemptLowerPriority"})
        );
        pod["spec"]["priority"] = json!(9);
        let wrong = apply(&mut pod, &find("low", classes()).unwrap()).unwrap_err();
        assert!(wrong.starts_with("the integer value of priority (9) must not be provided"), "{wrong}");
    }

    #[test]
    fn a_pod_without_a_class_gets_the_lowest_default() {
        assert_eq!(find("", classes()).unwrap().name, "usual");
        assert_eq!(find("", std::iter::empty()).unwrap().value, 0);
        assert_eq!(find("no", classes()), Err("no PriorityClass with name no was found".to_owned()));
    }

    #[test]
    fn an_update_does_not_lose_it() {
        let mut pod = json!({"spec": {}});
        keep(&mut pod, &json!({"spec": {"priority": 3}}));
        assert_eq!(pod, json!({"spec": {"priority": 3}}));
    }
}
