//! Objects of any kind: how they are addressed, read and counted.

use std::collections::BTreeMap;

use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::discovery::{Discovery, verbs};
use serde_json::{Value, json};

use crate::eventually;

/// A kind and how it is addressed.
#[derive(Debug, Clone)]
pub struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
}

impl Kind {
    pub fn namespaced(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self { resource: resource(group, version, kind, plural), namespaced: true }
    }

    pub fn cluster(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self { namespaced: false, ..Self::namespaced(group, version, kind, plural) }
    }

    pub fn work() -> Self {
        Self::namespaced("work.karmada.io", "v1alpha1", "Work", "works")
    }

    pub fn definition() -> Self {
        Self::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
    }

    /// Returns the objects of the kind; `namespace` does not matter where the kind has none.
    pub fn api(&self, client: kube::Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client, namespace, &self.resource)
        } else {
            Api::all_with(client, &self.resource)
        }
    }
}

pub fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

/// Returns the status of a condition.
pub fn condition<'a>(object: Option<&'a DynamicObject>, kind: &str) -> Option<&'a str> {
    let conditions = object?.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
}

/// Returns what an object has at a JSON pointer; metadata lies apart from the rest.
pub fn at(object: Option<&DynamicObject>, path: &str) -> Option<Value> {
    let object = object?;
    match path.strip_prefix("/metadata/annotations/") {
        Some(key) => object.metadata.annotations.as_ref()?.get(key).map(|text| json!(text)),
        None => object.data.pointer(path).cloned(),
    }
}

/// Objects of all kinds, as `Kind namespace/name`, with their uids: what was deleted and made again has another one.
pub type Inventory = BTreeMap<String, String>;

/// Returns all objects of a cluster that are chosen, whatever their kind. Events, Leases and what is measured come and go by themselves.
pub async fn inventory(
    client: &kube::Client,
    selection: &ListParams,
    chosen: impl Fn(&PartialObjectMeta<DynamicObject>) -> bool,
) -> Inventory {
    let mut found = Inventory::new();
    for resource in listable(client).await.expect("discovery") {
        if resource.group == "metrics.k8s.io" {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        // A kind may be gone since discovery told of it, or have a list that does not consist of objects. One that cannot be listed at
        // the moment has objects all the same.
        let list = eventually(format!("a list of {}", resource.plural), async || {
            match api.list_metadata(selection).await {
                Ok(list) => Ok(Some(list)),
                Err(kube::Error::Api(status)) if status.code != 429 && status.code < 500 => Ok(None),
                Err(kube::Error::SerdeError(_)) => Ok(None),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        let Some(list) = list else { continue };
        for object in list.items.into_iter().filter(|object| chosen(object)) {
            let metadata = object.metadata;
            let (space, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
            found.insert(format!("{} {space}/{name}", resource.kind), metadata.uid.unwrap_or_default());
        }
    }
    found
}

/// Returns all kinds that can be listed but Events and Leases.
pub(crate) async fn listable(client: &kube::Client) -> Result<Vec<ApiResource>, kube::Error> {
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    // Not the recommended version of a group alone: Works are in another one than bindings.
    let all = discovery.groups().flat_map(|group| group.resources_by_stability());
    let wanted = all.filter(|(resource, capabilities)| {
        capabilities.supports_operation(verbs::LIST) && !["Event", "Lease"].contains(&resource.kind.as_str())
    });
    Ok(wanted.map(|(resource, _)| resource).collect())
}

/// Fails for every object of `before` that is gone or was made again, unless it was expected to go.
pub fn assert_kept(before: &Inventory, after: &Inventory, expected: impl Fn(&str) -> bool, when: &str) {
    let lost: Vec<_> =
        before.iter().filter(|(key, uid)| !expected(key) && after.get(*key) != Some(uid)).collect();
    assert!(lost.is_empty(), "{when}, these were deleted or made again: {lost:#?}\nafterwards: {after:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_deleted_and_made_again_is_noticed() {
        let inventory = |uid: &str| Inventory::from([("ConfigMap a/b".to_owned(), uid.to_owned())]);
        assert_kept(&inventory("1"), &inventory("1"), |_| false, "at rest");
        let again = std::panic::catch_unwind(|| {
            assert_kept(&inventory("1"), &inventory("2"), |_| false, "made again")
        });
        assert!(again.is_err());
    }
}
