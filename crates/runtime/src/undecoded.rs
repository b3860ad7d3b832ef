//! An object from a watch whose name and revision are decoded, but not the rest.
//!
//! Most events of a watch repeat our own writes, whose answers have already been decoded.

use std::borrow::Cow;

use apimachinery::weight::Weight;
use kube::Resource;
use kube::core::{DynamicResourceScope, ObjectMeta};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

#[derive(Debug, Clone)]
pub(crate) struct Undecoded {
    /// Name, namespace and resource version; nothing else. Boxed, since it is large: a page of objects without content has many.
    metadata: Box<ObjectMeta>,
    text: Box<RawValue>,
}

impl Undecoded {
    /// Returns the length of its text.
    pub(crate) fn size(&self) -> usize {
        self.text.get().len()
    }

    /// Returns about how much memory its parsed form takes.
    pub(crate) fn weight(&self) -> usize {
        Weight::of(self.text.get().as_bytes())
    }

    /// Reads the whole object.
    pub(crate) fn read<K: DeserializeOwned>(&self) -> serde_json::Result<K> {
        serde_json::from_str(self.text.get())
    }
}

impl<'de> Deserialize<'de> for Undecoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            metadata: Names,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Names {
            name: Option<String>,
            namespace: Option<String>,
            resource_version: Option<String>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Head { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata: Box::new(metadata), text })
    }
}

/// The dynamic type says where the collection is.
impl Resource for Undecoded {
    type DynamicType = String;
    type Scope = DynamicResourceScope;

    fn kind(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn group(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn plural(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn url_path(path: &String, _: Option<&str>) -> String {
        path.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn map() -> serde_json::Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"},
            "metadata": {"name": "a", "namespace": "n", "resourceVersion": "7", "labels": {"l": "v"}}})
    }

    fn check(undecoded: &Undecoded) {
        let meta = undecoded.meta();
        assert_eq!(
            (meta.name.as_deref(), meta.namespace.as_deref(), meta.resource_version.as_deref()),
            (Some("a"), Some("n"), Some("7"))
        );
        let read: ConfigMap = undecoded.read().unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), map());
    }

    #[test]
    fn it_comes_in_events_and_in_lists() {
        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, map());
        match serde_json::from_str(&event).unwrap() {
            WatchEvent::Added(undecoded) => check(&undecoded),
            other => panic!("{other:?}"),
        }
        let list = format!(
            r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
            map()
        );
        let list: ObjectList<Undecoded> = serde_json::from_str(&list).unwrap();
        check(&list.items[0]);
    }

    #[test]
    fn an_object_of_another_kind_is_an_error_when_it_is_decoded() {
        let undecoded: Undecoded = serde_json::from_str(r#"{"metadata":{"name":"a"},"data":3}"#).unwrap();
        assert!(undecoded.read::<ConfigMap>().is_err());
    }
}
