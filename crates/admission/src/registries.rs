//! ResourceRegistry: the rules that Karmada compiles into the API server of the search group.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use api::search::ResourceRegistrySpec;

use crate::cluster::Url;
use crate::placement;
use crate::request::{Denial, spec};

pub(crate) fn validate(object: &Value) -> Result<(), Denial> {
    let errors = check(&spec(object)?, &Path::new("spec"));
    if errors.is_empty() { Ok(()) } else { Err(Denial::invalid(errors)) }
}

fn check(registry: &ResourceRegistrySpec, path: &Path) -> Errors {
    let mut errors = placement::affinity(Some(&registry.target_cluster), &path.child("targetCluster"));
    for (index, selector) in registry.resource_selectors.iter().enumerate() {
        let path = path.child("resourceSelectors").index(index);
        if selector.api_version.matches('/').count() > 1 {
            let text = selector.api_version.as_str();
            let fault = format!("unexpected GroupVersion string: {text}");
            errors.push(Error::invalid(&path.child("apiVersion"), text, fault));
        }
        if !selector.namespace.is_empty() {
            let text = selector.namespace.as_str();
            let faults = names::dns1123_label(text);
            let at = path.child("namespace");
            errors.extend(faults.into_iter().map(|fault| Error::invalid(&at, text, fault)));
        }
    }
    let search = registry.backend_store.as_ref().and_then(|store| store.open_search.as_ref());
    for (index, address) in search.iter().flat_map(|search| &search.addresses).enumerate() {
        let at = path.child("backendStore").child("openSearch").child("addresses").index(index);
        match Url::parse(address) {
            Err(fault) => errors.push(Error::invalid(&at, address.as_str(), fault)),
            Ok(url) => {
                if !matches!(url.scheme.as_str(), "http" | "https") {
                    errors.push(Error::invalid(&at, address.as_str(), "scheme must be http or https"));
                }
                if url.host.is_empty() {
                    errors.push(Error::invalid(&at, address.as_str(), "host must be provided"));
                }
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(spec: Value) -> Vec<String> {
        check(&serde_json::from_value(spec).unwrap(), &Path::new("spec"))
            .into_iter()
            .map(|error| error.field)
            .collect()
    }

    #[test]
    fn an_empty_registry_is_accepted() {
        assert_eq!(fields(json!({})), Vec::<String>::new());
    }

    #[test]
    fn selectors_and_addresses_are_checked() {
        assert_eq!(
            fields(json!({
                "targetCluster": { "fieldSelector": { "matchExpressions": [{ "key": "color", "operator": "In" }] } },
                "resourceSelectors": [{ "apiVersion": "a/b/c", "kind": "X", "namespace": "Not" }],
                "backendStore": { "openSearch": {
                    "addresses": ["ftp://host", "https://", "https://ok:9200"],
                    "secretRef": { "namespace": "n", "name": "s" },
                } },
            })),
            [
                "spec.targetCluster.fieldSelector",
                "spec.resourceSelectors[0].apiVersion",
                "spec.resourceSelectors[0].namespace",
                "spec.backendStore.openSearch.addresses[0]",
                "spec.backendStore.openSearch.addresses[1]",
            ]
        );
    }
}
