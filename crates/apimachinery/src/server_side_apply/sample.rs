//! A type for tests: one field of every sort, the same at every level.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::manager::Types;
use super::schema::{List, Member, Scalar, Topology, TypeSchema};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sample {
    Object,
    FreeMap,
    AtomicMap,
    AtomicList,
    Set,
    ByName,
    ByPort,
    Number,
    Text,
    Flag,
    Unknown,
}

impl TypeSchema for Sample {
    fn scalar(&self) -> Option<Scalar> {
        match self {
            Self::Number => Some(Scalar::Numeric),
            Self::Text => Some(Scalar::String),
            Self::Flag => Some(Scalar::Boolean),
            Self::Unknown => Some(Scalar::Any),
            _ => None,
        }
    }

    fn list(&self) -> Option<List<Self>> {
        match self {
            Self::AtomicList => Some(List::Atomic(Some(Self::Unknown))),
            Self::Set => Some(List::Set(Self::Unknown)),
            Self::ByName => Some(List::Map { keys: vec!["name".to_owned()], element: Self::Object }),
            Self::ByPort => Some(List::Map {
                keys: vec!["port".to_owned(), "protocol".to_owned()],
                element: Self::Object,
            }),
            Self::Unknown => Some(List::Atomic(Some(Self::Unknown))),
            _ => None,
        }
    }

    fn map(&self) -> Option<Topology> {
        match self {
            Self::Object | Self::FreeMap | Self::Unknown => Some(Topology::Granular),
            Self::AtomicMap => Some(Topology::Atomic),
            _ => None,
        }
    }

    fn default_of(&self, name: &str) -> Option<Value> {
        (matches!(self, Self::Object) && name == "protocol").then(|| json!("TCP"))
    }

    fn member(&self, name: &str) -> Option<Member<Self>> {
        let free = |schema| Some(Member { schema, declared: false });
        let declared = |schema| Some(Member { schema, declared: true });
        match self {
            Self::FreeMap | Self::AtomicMap => free(Self::Text),
            Self::Unknown => free(Self::Unknown),
            Self::Object => match name {
                "metadata" | "spec" | "status" | "obj" => declared(Self::Object),
                "labels" | "annotations" => declared(Self::FreeMap),
                "atomicMap" => declared(Self::AtomicMap),
                "list" | "managedFields" => declared(Self::AtomicList),
                "set" => declared(Self::Set),
                "items" => declared(Self::ByName),
                "ports" => declared(Self::ByPort),
                "n" | "m" | "port" | "replicas" => declared(Self::Number),
                "s" | "t" | "protocol" | "name" | "namespace" | "uid" | "apiVersion" | "kind"
                | "resourceVersion" => declared(Self::Text),
                "b" => declared(Self::Flag),
                "any" => declared(Self::Unknown),
                _ => None,
            },
            _ => None,
        }
    }

    fn is_untyped_map(&self) -> bool {
        *self == Self::Unknown
    }
}

/// Serves `test/v1` and `test/v2` of the sample, which differ in nothing but the version.
pub(super) struct Samples;

impl Types for Samples {
    type Type = Sample;

    fn type_of(&self, api_version: &str) -> Option<Sample> {
        matches!(api_version, "test/v1" | "test/v2").then_some(Sample::Object)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, String> {
        let mut object = object.clone();
        object["apiVersion"] = json!(api_version);
        Ok(object)
    }
}

/// Objects of the sample type.
pub(super) fn objects() -> impl Strategy<Value = Value> {
    let number = any::<u8>().prop_map(Value::from);
    let text = "[a-c]{0,2}".prop_map(Value::from);
    let leaf = proptest::option::of((number, text)).prop_map(|pair| match pair {
        Some((number, text)) => json!({"n": number, "s": text}),
        None => json!({}),
    });
    leaf.prop_recursive(3, 16, 3, |inner| {
        (
            proptest::option::of(inner.clone()),
            proptest::option::of(proptest::collection::btree_map("[a-c]", inner, 0..3)),
            proptest::option::of(proptest::collection::btree_map("[a-c]", "[xy]", 0..3)),
            proptest::option::of(proptest::collection::btree_set("[a-e]", 0..4)),
            proptest::option::of(proptest::collection::vec(0u8..3, 0..3)),
        )
            .prop_map(|(obj, items, labels, set, list)| {
                let mut entries = Map::new();
                if let Some(obj) = obj {
                    entries.insert("obj".to_owned(), obj);
                }
                if let Some(items) = items {
                    let items = items.into_iter().map(|(name, mut item)| {
                        item["name"] = json!(name);
                        item
                    });
                    entries.insert("items".to_owned(), items.collect());
                }
                if let Some(labels) = labels {
                    entries.insert("labels".to_owned(), json!(labels));
                }
                if let Some(set) = set {
                    entries.insert("set".to_owned(), json!(set));
                }
                if let Some(list) = list {
                    entries.insert("list".to_owned(), json!(list));
                }
                Value::Object(entries)
            })
    })
}
