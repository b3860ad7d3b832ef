//! Structural schemas as types for server-side apply.
//!
//! Objects are granular, lists atomic, unless the schema says otherwise; below `x-kubernetes-preserve-unknown-fields`
//! everything is deduced. Metadata has the server's own type.

use std::sync::Arc;

use serde_json::Value;

use super::{Additional, Kind, ListType, Node, NodeId, Schema};
use crate::server_side_apply::{List, Member, Scalar, Topology, TypeSchema};

/// A level of a schema, or a type that the schema implies.
#[derive(Debug, Clone)]
pub struct SchemaType {
    schema: Arc<Schema>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A node; `root` marks a whole object with metadata of its own.
    Node {
        id: NodeId,
        root: bool,
    },
    Deduced,
    Metadata,
    Text,
    AnyScalar,
    Number,
    TextMap,
    TextSet,
    AtomicList,
    Owners,
    Owner,
}

impl SchemaType {
    /// Returns the type of whole objects of a schema.
    pub fn root(schema: Arc<Schema>) -> Self {
        Self { schema, place: Place::Node { id: 0, root: true } }
    }

    fn at(&self, place: Place) -> Self {
        Self { schema: Arc::clone(&self.schema), place }
    }

    fn node(&self) -> Option<(&Node, bool)> {
        match self.place {
            Place::Node { id, root } => {
                let node = self.schema.node(id);
                Some((node, root || node.embedded))
            }
            _ => None,
        }
    }

    fn child(&self, id: NodeId) -> Self {
        self.at(Place::Node { id, root: false })
    }

    /// A level without a type of which everything is kept.
    fn is_deduced(&self) -> bool {
        match self.place {
            Place::Deduced => true,
            Place::Node { id, root } => {
                let node = self.schema.node(id);
                !root && node.kind.is_none() && !node.int_or_string && node.properties.is_empty()
            }
            _ => false,
        }
    }
}

impl TypeSchema for SchemaType {
    fn scalar(&self) -> Option<Scalar> {
        if self.is_deduced() {
            return Some(Scalar::Any);
        }
        match self.place {
            Place::Text => Some(Scalar::String),
            Place::Number => Some(Scalar::Numeric),
            Place::AnyScalar => Some(Scalar::Any),
            Place::Node { id, .. } => {
                let node = self.schema.node(id);
                if node.int_or_string {
                    return Some(Scalar::Any);
                }
                match node.kind? {
                    Kind::String => Some(Scalar::String),
                    Kind::Integer | Kind::Number => Some(Scalar::Numeric),
                    Kind::Boolean => Some(Scalar::Boolean),
                    Kind::Object | Kind::Array => None,
                }
            }
            _ => None,
        }
    }

    fn list(&self) -> Option<List<Self>> {
        if self.is_deduced() {
            return Some(List::Atomic(Some(self.at(Place::Deduced))));
        }
        match self.place {
            Place::TextSet => Some(List::Set(self.at(Place::Text))),
            Place::AtomicList => Some(List::Atomic(Some(self.at(Place::Deduced)))),
            Place::Owners => Some(List::Map { keys: vec!["uid".to_owned()], element: self.at(Place::Owner) }),
            Place::Node { id, .. } => {
                let node = self.schema.node(id);
                if node.kind != Some(Kind::Array) {
                    return None;
                }
                let element = node.items.map(|id| self.child(id));
                Some(match (node.list, element) {
                    (ListType::Set, Some(element)) => List::Set(element),
                    (ListType::Map, Some(element)) => List::Map { keys: node.list_keys.clone(), element },
                    (_, element) => List::Atomic(Some(element.unwrap_or_else(|| self.at(Place::Deduced)))),
                })
            }
            _ => None,
        }
    }

    fn map(&self) -> Option<Topology> {
        if self.is_deduced() {
            return Some(Topology::Granular);
        }
        match self.place {
            Place::Metadata | Place::TextMap => Some(Topology::Granular),
            Place::Owner => Some(Topology::Atomic),
            Place::Node { id, root } => {
                let node = self.schema.node(id);
                if !root && node.kind != Some(Kind::Object) && node.properties.is_empty() {
                    return None;
                }
                Some(if node.atomic_map && !root { Topology::Atomic } else { Topology::Granular })
            }
            _ => None,
        }
    }

    fn member(&self, name: &str) -> Option<Member<Self>> {
        let declared = |schema| Some(Member { schema, declared: true });
        let free = |schema| Some(Member { schema, declared: false });
        if self.is_deduced() {
            return free(self.at(Place::Deduced));
        }
        match self.place {
            Place::Metadata => declared(self.at(match name {
                "labels" | "annotations" => Place::TextMap,
                "finalizers" => Place::TextSet,
                "ownerReferences" => Place::Owners,
                "managedFields" => Place::AtomicList,
                "generation" | "deletionGracePeriodSeconds" => Place::Number,
                "creationTimestamp" | "deletionTimestamp" => Place::AnyScalar,
                "name" | "generateName" | "namespace" | "selfLink" | "uid" | "resourceVersion" => Place::Text,
                _ => return None,
            })),
            Place::TextMap => free(self.at(Place::Text)),
            Place::Owner => declared(self.at(Place::Deduced)),
            Place::Node { .. } => {
                let (node, has_metadata) = self.node()?;
                if has_metadata {
                    match name {
                        "metadata" => return declared(self.at(Place::Metadata)),
                        "apiVersion" | "kind" => return declared(self.at(Place::Text)),
                        _ => {}
                    }
                }
                if let Some(id) = node.property(name) {
                    return declared(self.child(id));
                }
                match &node.additional {
                    Some(Additional::Schema(id)) => free(self.child(*id)),
                    Some(Additional::Allowed(true)) => free(self.at(Place::Deduced)),
                    _ if node.preserve_unknown => free(self.at(Place::Deduced)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn default_of(&self, name: &str) -> Option<Value> {
        let Place::Node { id, .. } = self.place else { return None };
        let field = self.schema.node(id).property(name)?;
        self.schema.node(field).default.clone()
    }

    fn is_untyped_map(&self) -> bool {
        if self.is_deduced() {
            return true;
        }
        self.node().is_some_and(|(node, root)| !root && node.preserve_unknown && node.properties.is_empty())
    }
}
