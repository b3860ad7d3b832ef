//! Declarations: a type together with how large its values may get, which the estimate of costs needs.
//!
//! In: a schema. Out: what it declares. Whatever is not known is `dyn`, which goes with everything.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value as Json;

use crate::schema::escape;
use crate::types::Type;

/// The largest body of a request, which bounds everything that says no bounds of its own.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// What keys of maps are: nobody says how long they may be, and kube-apiserver takes that for nothing.
static KEY: LazyLock<Decl> = LazyLock::new(|| simple(Type::String, 0, 2));

/// A declared type and how large its values may get.
#[derive(Debug)]
pub struct Decl {
    shape: Shape,
    /// Characters of a text, items of a list, entries of a map.
    pub(crate) max: u64,
    /// The smallest size in bytes a value of the type can be written in.
    min_size: u64,
}

#[derive(Debug)]
enum Shape {
    Simple(Type),
    List(Arc<Decl>),
    Map(Arc<Decl>),
    Object { name: String, fields: BTreeMap<String, Arc<Decl>> },
}

/// Finds the schema that a `$ref` names.
pub(crate) type Resolve<'a> = &'a dyn Fn(&str) -> Option<Json>;

impl Decl {
    /// Returns what a schema declares; `None` where it declares nothing. `name` is what its objects are called.
    pub fn of_schema(schema: &Json, root: bool, name: &str, resolve: Resolve<'_>) -> Option<Arc<Self>> {
        read(schema, root, name, resolve, &mut Vec::new()).map(Arc::new)
    }

    /// Returns an object type with the given fields.
    pub fn object<S: Into<String>>(
        name: &str,
        fields: impl IntoIterator<Item = (S, Arc<Self>)>,
    ) -> Arc<Self> {
        let fields = fields.into_iter().map(|(name, decl)| (name.into(), decl)).collect();
        Arc::new(Self { shape: Shape::Object { name: name.to_owned(), fields }, max: 0, min_size: 2 })
    }

    /// Returns a list of values of a type.
    pub fn list(inner: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { shape: Shape::List(inner.clone()), max: MAX_REQUEST - 2, min_size: 2 })
    }

    /// Returns a map from texts to values of a type.
    pub fn map(inner: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self { shape: Shape::Map(inner.clone()), max: MAX_REQUEST - 2, min_size: 2 })
    }

    /// Returns a type without parts.
    pub fn simple(ty: Type) -> Arc<Self> {
        Arc::new(Self { shape: Shape::Simple(ty), max: MAX_REQUEST - 2, min_size: 1 })
    }

    pub(crate) fn name(&self) -> &str {
        match &self.shape {
            Shape::Object { name, .. } => name,
            _ => "object",
        }
    }

    /// Returns the type of values of this declaration.
    pub fn ty(self: &Arc<Self>) -> Type {
        match &self.shape {
            Shape::Simple(ty) => ty.clone(),
            Shape::List(inner) => Type::List(Arc::new(inner.ty())),
            Shape::Map(inner) => Type::Map(Arc::new(Type::String), Arc::new(inner.ty())),
            Shape::Object { .. } => Type::Object(self.clone()),
        }
    }

    /// Returns a field of an object, or the entry of a map.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Self>> {
        match &self.shape {
            Shape::Object { fields, .. } => fields.get(name),
            _ => None,
        }
    }

    /// Follows a path of fields, `@items`, `@values` and `@keys`.
    pub(crate) fn at(&self, path: &[String]) -> Option<&Self> {
        path.iter().try_fold(self, |decl, part| match (part.as_str(), &decl.shape) {
            ("@items" | "@values", Shape::List(inner) | Shape::Map(inner)) => Some(&**inner),
            ("@keys", Shape::Map(_)) => Some(&*KEY),
            (_, Shape::Object { fields, .. }) => fields.get(part).map(|field| &**field),
            _ => None,
        })
    }

    /// Returns how many values of this type a request has room for.
    pub fn most_in_a_request(&self) -> u64 {
        MAX_REQUEST / (self.min_size + 1)
    }
}

fn number(schema: &Json, field: &str) -> Option<u64> {
    schema.get(field).and_then(Json::as_i64).map(|number| u64::try_from(number).unwrap_or(0))
}

fn simple(ty: Type, max: u64, min_size: u64) -> Decl {
    Decl { shape: Shape::Simple(ty), max, min_size }
}

fn read(
    schema: &Json,
    root: bool,
    name: &str,
    resolve: Resolve<'_>,
    above: &mut Vec<String>,
) -> Option<Decl> {
    let reference = schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref")).and_then(Json::as_str);
    if let Some(reference) = reference {
        // A type that contains itself ends where it begins again.
        if above.iter().any(|known| known == reference) {
            return Some(simple(Type::Dyn, MAX_REQUEST - 2, 1));
        }
        above.push(reference.to_owned());
        let target = resolve(reference);
        let decl = target.and_then(|target| read(&target, root, name, resolve, above));
        above.pop();
        return decl;
    }
    if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
        let max = number(schema, "maxLength").map_or(MAX_REQUEST - 2, |length| length * 4);
        return Some(simple(Type::Dyn, max, 1));
    }
    let flag = |schema: &Json, field: &str| schema[field] == true;
    let below = |schema: &Json, part: &str, above: &mut Vec<String>| {
        let name = format!("{name}.{part}");
        read(schema, flag(schema, "x-kubernetes-embedded-resource"), &name, resolve, above).map(Arc::new)
    };
    match schema["type"].as_str() {
        Some("array") => {
            let items = below(schema.get("items")?, "@idx", above)?;
            let most = (MAX_REQUEST - 2) / (items.min_size + 1);
            let max = number(schema, "maxItems").unwrap_or(most);
            Some(Decl { shape: Shape::List(items), max, min_size: 2 })
        }
        Some("object") => {
            if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
                let values = below(values, "@elem", above)?;
                let most = (MAX_REQUEST - 2) / (values.min_size + 6);
                let max = number(schema, "maxProperties").unwrap_or(most);
                return Some(Decl { shape: Shape::Map(values), max, min_size: 2 });
            }
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
            let mut min_size = 2;
            let mut fields = BTreeMap::new();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let escaped = escape(name);
                let Some(field) = below(property, escaped.as_deref().unwrap_or(name), above) else {
                    continue;
                };
                if required.contains(&name.as_str()) && property.get("default").is_none() {
                    min_size += name.len() as u64 + field.min_size + 4;
                }
                if let Some(escaped) = escaped {
                    fields.insert(escaped, field);
                }
            }
            if root {
                let text = || Arc::new(simple(Type::String, MAX_REQUEST - 2, 2));
                let known =
                    ["kind", "apiVersion", "metadata"].into_iter().all(|name| fields.contains_key(name))
                        && fields["metadata"].field("name").is_some()
                        && fields["metadata"].field("generateName").is_some();
                if !known {
                    fields.insert("kind".to_owned(), text());
                    fields.insert("apiVersion".to_owned(), text());
                    let metadata = Decl::object(
                        &format!("{name}.metadata"),
                        [("name", text()), ("generateName", text())],
                    );
                    fields.insert("metadata".to_owned(), metadata);
                }
            }
            Some(Decl { shape: Shape::Object { name: name.to_owned(), fields }, max: 0, min_size })
        }
        Some("string") => {
            let length = number(schema, "maxLength");
            Some(match schema["format"].as_str() {
                Some("byte") => simple(Type::Bytes, length.unwrap_or(MAX_REQUEST - 2), 2),
                Some("duration") => simple(Type::Duration, 32, 3),
                Some("date") => simple(Type::Timestamp, 12, 12),
                Some("date-time") => simple(Type::Timestamp, 32, 21),
                _ => {
                    let words = schema["enum"].as_array().into_iter().flatten().filter_map(Json::as_str);
                    let longest = words.map(|word| word.len() as u64).max();
                    let max = length.map(|length| length * 4).or(longest).unwrap_or(MAX_REQUEST - 2);
                    simple(Type::String, max, 2)
                }
            })
        }
        Some("boolean") => Some(simple(Type::Bool, 0, 4)),
        Some("number") => Some(simple(Type::Double, 0, 1)),
        Some("integer") => Some(simple(Type::Int, 0, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decl(schema: Json) -> Arc<Decl> {
        Decl::of_schema(&schema, false, "self", &|_| None).unwrap()
    }

    #[test]
    fn bounds_come_from_the_schema_or_from_the_size_of_a_request() {
        assert_eq!(decl(json!({"type": "string", "maxLength": 10})).max, 40);
        assert_eq!(decl(json!({"type": "string", "enum": ["a", "abc"]})).max, 3);
        assert_eq!(decl(json!({"type": "string"})).max, MAX_REQUEST - 2);
        let list = decl(json!({"type": "array", "items": {"type": "integer"}}));
        assert_eq!(list.max, (MAX_REQUEST - 2) / 2);
        assert_eq!(decl(json!({"type": "array", "maxItems": 5, "items": {"type": "integer"}})).max, 5);
    }

    #[test]
    fn types_print_as_messages_name_them() {
        let list = decl(
            json!({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}}),
        );
        assert_eq!(list.ty().to_string(), "list(map(string, int))");
    }

    #[test]
    fn a_type_that_contains_itself_ends_somewhere() {
        let node =
            json!({"type": "object", "properties": {"next": {"$ref": "node"}, "n": {"type": "integer"}}});
        let decl = Decl::of_schema(&json!({"$ref": "node"}), false, "self", &|_| Some(node.clone())).unwrap();
        assert!(matches!(decl.field("next").unwrap().ty(), Type::Dyn));
    }
}
