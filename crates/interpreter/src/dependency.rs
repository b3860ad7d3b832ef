//! The rules that every list of dependencies must pass, whichever layer produced it.

use api::config::DependentObjectReference;
use apimachinery::selector::LabelSelector;

use crate::{Error, Result};

/// Checks a list of dependencies; the first offence fails the whole list.
pub fn verify_dependencies(dependencies: &[DependentObjectReference]) -> Result<()> {
    for dependency in dependencies {
        if dependency.api_version.is_empty() {
            return refuse("dependency missing required apiVersion");
        }
        if dependency.kind.is_empty() {
            return refuse("dependency missing required kind");
        }
        if dependency.name.is_empty() && dependency.label_selector.is_none() {
            return refuse("dependency can not leave name and labelSelector all empty");
        }
        if let Some(selector) = &dependency.label_selector {
            let selector =
                serde_json::to_value(selector).map_err(|error| Error::Dependency(error.to_string()))?;
            LabelSelector::from_object(Some(&selector))
                .map_err(|error| Error::Dependency(error.to_string()))?;
        }
    }
    Ok(())
}

fn refuse(message: &str) -> Result<()> {
    Err(Error::Dependency(message.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(dependency: Value, expected: Result<()>) {
        let dependency = serde_json::from_value(dependency).expect("a reference");
        assert_eq!(verify_dependencies(&[dependency]), expected);
    }

    #[test]
    fn a_dependency_names_a_kind_and_an_object_or_a_valid_selector() {
        let refused = |message: &str| Err(Error::Dependency(message.into()));
        check(json!({"apiVersion": "v1", "kind": "Secret", "name": "a"}), Ok(()));
        check(json!({"apiVersion": "v1", "kind": "Secret", "labelSelector": {}}), Ok(()));
        check(json!({"kind": "Secret", "name": "a"}), refused("dependency missing required apiVersion"));
        check(json!({"apiVersion": "v1", "name": "a"}), refused("dependency missing required kind"));
        let empty = "dependency can not leave name and labelSelector all empty";
        check(json!({"apiVersion": "v1", "kind": "Secret"}), refused(empty));
        let odd = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        let odd = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Secret", "labelSelector": odd}));
        assert!(verify_dependencies(&[odd.expect("a reference")]).is_err());
    }
}
