//! The native types as patches and server-side apply see them.
//!
//! One handle serves both: strategic merge asks for merge keys and strategies (Go's struct tags), server-side apply for
//! the topology of lists and maps (the extensions of the OpenAPI document, with the defaults of its conversion: lists
//! are atomic, objects granular).

use apimachinery::gvk::Gvk;
use apimachinery::patch::strategic;
use apimachinery::server_side_apply::{self, List, Member, Scalar, Topology, TypeSchema};
use serde_json::Value;

use crate::types::{self, Field, Kind, TypeId};
use crate::{convert, shape};

/// Returns the schema of a native kind.
pub fn schema(gvk: &Gvk) -> Option<Schema> {
    types::for_kind(&gvk.group, &gvk.version, &gvk.kind).map(|ty| Schema::Type { ty, field: None })
}

/// A native type, or what lies below one that is free-form.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// `field` is the struct field through which the type was reached; it may override how lists and maps behave.
    Type { ty: TypeId, field: Option<&'static Field> },
    /// Free-form and owned as a whole: embedded raw objects.
    Atomic,
    /// Free-form, with separately owned entries: CRD schema literals.
    Free,
}

/// Follows pointers, which neither patches nor apply notice.
fn pointee(ty: TypeId) -> TypeId {
    match ty.get().kind {
        Kind::Pointer(to) => pointee(to),
        _ => ty,
    }
}

impl Schema {
    fn of(ty: TypeId, field: Option<&'static Field>) -> Self {
        let ty = pointee(ty);
        match ty.get().kind {
            Kind::RawExtension => Self::Atomic,
            Kind::Json | Kind::SchemaOrArray(_) | Kind::SchemaOrBool(_) | Kind::SchemaOrStringArray(_) => {
                Self::Free
            }
            _ => Self::Type { ty, field },
        }
    }
}

impl strategic::Schema for Schema {
    fn field(&self, name: &str) -> Option<strategic::Field<Self>> {
        let Self::Type { ty, .. } = *self else {
            return Some(strategic::Field {
                schema: None,
                strategy: strategic::Strategy::Default,
                merge_key: None,
            });
        };
        match ty.get().kind {
            Kind::Struct => {
                let field = ty.get().member(name)?.field();
                let strategies = || field.patch_strategy.split(',');
                let strategy = if strategies().any(|one| one == "merge") {
                    strategic::Strategy::Merge
                } else if strategies().any(|one| one == "replace") {
                    strategic::Strategy::Replace
                } else {
                    strategic::Strategy::Default
                };
                let merge_key = (!field.merge_key.is_empty()).then(|| field.merge_key.to_string());
                Some(strategic::Field { schema: below(field.ty), strategy, merge_key })
            }
            Kind::Map(elem) => Some(strategic::Field {
                schema: below(elem),
                strategy: strategic::Strategy::Default,
                merge_key: None,
            }),
            _ => Some(strategic::Field {
                schema: None,
                strategy: strategic::Strategy::Default,
                merge_key: None,
            }),
        }
    }
}

/// Returns the type that a strategic merge meets below a field: of the elements, if it is a list.
fn below(ty: TypeId) -> Option<Schema> {
    let ty = pointee(ty);
    match ty.get().kind {
        Kind::List { elem, .. } => below(elem),
        Kind::Struct | Kind::Map(_) => Some(Schema::Type { ty, field: None }),
        _ => None,
    }
}

impl TypeSchema for Schema {
    fn scalar(&self) -> Option<Scalar> {
        let Self::Type { ty, .. } = self else { return Some(Scalar::Any) };
        match ty.get().kind {
            Kind::String | Kind::Bytes | Kind::Time | Kind::MicroTime | Kind::Duration => {
                Some(Scalar::String)
            }
            Kind::Bool => Some(Scalar::Boolean),
            Kind::Int32 | Kind::Int64 | Kind::Uint8 | Kind::Float64 => Some(Scalar::Numeric),
            Kind::Quantity | Kind::IntOrString => Some(Scalar::Any),
            _ => None,
        }
    }

    fn list(&self) -> Option<List<Self>> {
        let Self::Type { ty, field } = self else { return Some(List::Atomic(Some(Self::Atomic))) };
        let Kind::List { elem, .. } = ty.get().kind else { return None };
        let element = Self::of(elem, None);
        let Some(field) = field else { return Some(List::Atomic(Some(element))) };
        Some(match field.list_type.as_deref() {
            Some("set") => List::Set(element),
            Some("map") => {
                List::Map { keys: field.list_map_keys.iter().map(|key| key.to_string()).collect(), element }
            }
            _ => List::Atomic(Some(element)),
        })
    }

    fn map(&self) -> Option<Topology> {
        let (ty, field) = match self {
            Self::Type { ty, field } => (ty, field),
            Self::Atomic => return Some(Topology::Atomic),
            Self::Free => return Some(Topology::Granular),
        };
        if !matches!(ty.get().kind, Kind::Struct | Kind::Map(_) | Kind::FieldsV1) {
            return None;
        }
        let declared = field.and_then(|field| field.map_type.as_deref()).or(ty.get().map_type.as_deref());
        Some(if declared == Some("atomic") { Topology::Atomic } else { Topology::Granular })
    }

    fn member(&self, name: &str) -> Option<Member<Self>> {
        let Self::Type { ty, .. } = self else {
            return Some(Member { schema: *self, declared: false });
        };
        match ty.get().kind {
            Kind::Struct => {
                let field = ty.get().member(name)?.field();
                let schema = Self::of(field.ty, Some(field));
                Some(Member { schema, declared: true })
            }
            Kind::Map(elem) => Some(Member { schema: Self::of(elem, None), declared: false }),
            Kind::FieldsV1 => Some(Member { schema: Self::Free, declared: false }),
            _ => None,
        }
    }

    fn default_of(&self, name: &str) -> Option<Value> {
        let Self::Type { ty, .. } = self else { return None };
        let Kind::Struct = ty.get().kind else { return None };
        ty.get().member(name)?.field().default.clone()
    }

    fn is_untyped_map(&self) -> bool {
        match self {
            Self::Type { ty, .. } => ty.get().kind == Kind::FieldsV1,
            Self::Atomic | Self::Free => true,
        }
    }
}

/// The versions of a native kind, for managed fields written in different ones.
#[derive(Debug, Clone)]
pub struct Versions {
    pub gvk: Gvk,
}

impl server_side_apply::Types for Versions {
    type Type = Schema;

    fn type_of(&self, api_version: &str) -> Option<Schema> {
        schema(&Gvk::from_api_version(api_version, &self.gvk.kind))
    }

    fn empty(&self, gvk: &Gvk) -> Value {
        let mut object = serde_json::json!({"apiVersion": gvk.api_version(), "kind": gvk.kind});
        // A kind without a table has nothing that is always printed.
        let _ = shape::canonicalise(gvk, &mut object);
        object
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Value, String> {
        let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let from = Gvk::from_api_version(text("apiVersion"), text("kind"));
        let to = Gvk::from_api_version(api_version, &self.gvk.kind);
        if from.version.is_empty() || from == to {
            let mut same = object.clone();
            same["apiVersion"] = api_version.into();
            return Ok(same);
        }
        let mut object = object.clone();
        // An applied object may be sparse; conversion expects what Go always prints.
        shape::canonicalise(&from, &mut object).map_err(|error| error.to_string())?;
        convert::convert(object, &from, &to).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(kind: &Gvk, original: Value, patch: Value) -> Value {
        let (Value::Object(original), Value::Object(patch)) = (original, patch) else { panic!("objects") };
        let schema = schema(kind).expect("a native kind");
        Value::Object(strategic::apply(&original, &patch, &schema).expect("a good patch"))
    }

    #[test]
    fn containers_merge_by_name_and_their_ports_by_number() {
        let deployment = Gvk::new("apps", "v1", "Deployment");
        let spec = |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let result = patched(
            &deployment,
            spec(
                json!([{"name": "a", "image": "1", "ports": [{"containerPort": 80}]}, {"name": "b", "image": "1"}]),
            ),
            spec(json!([{"name": "a", "image": "2", "ports": [{"containerPort": 81}]}])),
        );
        let containers = &result["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["image"], "2");
        assert_eq!(containers[0]["ports"], json!([{"containerPort": 81}, {"containerPort": 80}]));
        assert_eq!(containers[1]["name"], "b");
    }

    #[test]
    fn tolerations_are_replaced_and_finalizers_merged() {
        let pod = Gvk::new("", "v1", "Pod");
        let result = patched(
            &pod,
            json!({"metadata": {"finalizers": ["a"]}, "spec": {"tolerations": [{"key": "x"}]}}),
            json!({"metadata": {"finalizers": ["b"]}, "spec": {"tolerations": [{"key": "y"}]}}),
        );
        assert_eq!(result["spec"]["tolerations"], json!([{"key": "y"}]));
        assert_eq!(result["metadata"]["finalizers"], json!(["b", "a"]), "the patch's own first");
    }

    #[test]
    fn container_ports_are_keyed_by_number_and_protocol_whose_default_is_known() {
        let mut at = schema(&Gvk::new("", "v1", "Pod")).expect("a native kind");
        for name in ["spec", "containers"] {
            at = at.member(name).expect("a field").schema;
        }
        let Some(List::Map { keys, element }) = at.list() else { panic!("containers are a list map") };
        assert_eq!(keys, ["name"]);
        let ports = element.member("ports").expect("a field").schema;
        let Some(List::Map { keys, element }) = ports.list() else { panic!("ports are a list map") };
        assert_eq!(keys, ["containerPort", "protocol"]);
        assert_eq!(element.default_of("protocol"), Some(json!("TCP")));
    }

    #[test]
    fn selectors_are_atomic_and_labels_granular() {
        let service = schema(&Gvk::new("", "v1", "Service")).expect("a native kind");
        let selector =
            service.member("spec").expect("a field").schema.member("selector").expect("a field").schema;
        assert_eq!(selector.map(), Some(Topology::Atomic));
        let labels =
            service.member("metadata").expect("a field").schema.member("labels").expect("a field").schema;
        assert_eq!(labels.map(), Some(Topology::Granular));
        let deployment = schema(&Gvk::new("apps", "v1", "Deployment")).expect("a native kind");
        let selector =
            deployment.member("spec").expect("a field").schema.member("selector").expect("a field").schema;
        assert_eq!(selector.map(), Some(Topology::Atomic), "the struct itself is atomic");
    }

    /// The totals that a stock server's OpenAPI document shows, counted there over all reachable definitions.
    #[test]
    fn every_merge_strategy_of_the_document_is_in_the_table() {
        let document: Value = serde_json::from_slice(&crate::openapi::v2()).expect("recorded JSON");
        let mut missing = Vec::new();
        let mut seen = std::collections::BTreeMap::new();
        for (group, version, kind) in types::kinds() {
            let ty = types::for_kind(group, version, kind).expect("listed");
            collect(ty, &mut seen);
        }
        for (model, ty) in seen {
            let Some(properties) = document["definitions"][model]["properties"].as_object() else { continue };
            for (name, property) in properties {
                let Some(member) = ty.get().member(name) else {
                    missing.push(format!("{model}.{name}"));
                    continue;
                };
                let field = member.field();
                let text = |key: &str| property.get(key).and_then(Value::as_str).unwrap_or_default();
                if text("x-kubernetes-patch-strategy") != &*field.patch_strategy
                    || text("x-kubernetes-patch-merge-key") != &*field.merge_key
                    || text("x-kubernetes-list-type") != field.list_type.as_deref().unwrap_or_default()
                {
                    missing.push(format!("{model}.{name}: {property}"));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    fn collect(ty: TypeId, seen: &mut std::collections::BTreeMap<&'static str, TypeId>) {
        let described = ty.get();
        match described.kind {
            Kind::Pointer(elem) | Kind::List { elem, .. } | Kind::Map(elem) => collect(elem, seen),
            Kind::Struct if described.model.is_empty() || seen.insert(&described.model, ty).is_none() => {
                described.fields.iter().for_each(|field| collect(field.ty, seen));
            }
            _ => {}
        }
    }
}
