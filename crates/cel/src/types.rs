//! Types of values before there are values: what a schema declares, what an expression results in.
//!
//! A [`Decl`] is a type together with how large its values may get, which the estimate of costs needs. A [`Type`] is what
//! the checker compares. Whatever is not known is `dyn`, which goes with everything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::schema::escape;

/// The largest body of a request, which bounds everything that says no bounds of its own.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// The type of an expression.
#[derive(Debug, Clone)]
pub enum Type {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Optional(Arc<Type>),
    /// The type of a type.
    Type(Arc<Type>),
    Object(Arc<Decl>),
    /// A type that only functions know, such as a URL.
    Opaque(&'static str),
    /// A parameter of a function's signature.
    Param(&'static str),
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a == b,
            (Self::Type(_), Self::Type(_)) => true,
            (Self::Map(a, b), Self::Map(c, d)) => a == c && b == d,
            (Self::Object(a), Self::Object(b)) => a.name() == b.name(),
            (Self::Opaque(a), Self::Opaque(b)) | (Self::Param(a), Self::Param(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => out.write_str("dyn"),
            Self::Null => out.write_str("null"),
            Self::Bool => out.write_str("bool"),
            Self::Int => out.write_str("int"),
            Self::Uint => out.write_str("uint"),
            Self::Double => out.write_str("double"),
            Self::String => out.write_str("string"),
            Self::Bytes => out.write_str("bytes"),
            Self::Timestamp => out.write_str("timestamp"),
            Self::Duration => out.write_str("duration"),
            Self::List(of) => write!(out, "list({of})"),
            Self::Map(key, value) => write!(out, "map({key}, {value})"),
            Self::Optional(of) => write!(out, "optional_type({of})"),
            Self::Type(of) => write!(out, "type({of})"),
            Self::Object(decl) => out.write_str(decl.name()),
            Self::Opaque(name) | Self::Param(name) => out.write_str(name),
        }
    }
}

impl Type {
    /// Says whether values of the type are one step to look at.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Int | Self::Uint | Self::Double | Self::Timestamp | Self::Duration => true,
            Self::Optional(of) => of.is_scalar(),
            _ => false,
        }
    }
}

/// What the parameters of a signature stand for in one call.
#[derive(Debug, Default)]
pub(crate) struct Bindings(BTreeMap<&'static str, Type>);

impl Bindings {
    /// Says whether a value of type `given` can be used where `wanted` is asked for.
    pub(crate) fn fits(&mut self, wanted: &Type, given: &Type) -> bool {
        match (wanted, given) {
            (Type::Param(name), _) => match self.0.get(name).cloned() {
                None => {
                    self.0.insert(name, given.clone());
                    true
                }
                Some(Type::Dyn) => true,
                Some(known) => {
                    let fits = self.fits(&known, given) || self.fits(given, &known);
                    if fits && (matches!(given, Type::Dyn) || matches!(known, Type::Null)) {
                        self.0.insert(name, given.clone());
                    }
                    fits
                }
            },
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (
                Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Timestamp | Type::Duration,
                Type::Null,
            ) => true,
            (Type::List(wanted), Type::List(given)) | (Type::Optional(wanted), Type::Optional(given)) => {
                self.fits(wanted, given)
            }
            (Type::Type(_), Type::Type(_)) => true,
            (Type::Map(key, value), Type::Map(given_key, given_value)) => {
                self.fits(key, given_key) && self.fits(value, given_value)
            }
            _ => wanted == given,
        }
    }

    /// Puts in what the parameters stand for; what nothing is known about can be anything.
    pub(crate) fn fill(&self, ty: &Type) -> Type {
        match ty {
            Type::Param(name) => self.0.get(name).cloned().unwrap_or(Type::Dyn),
            Type::List(of) => Type::List(Arc::new(self.fill(of))),
            Type::Optional(of) => Type::Optional(Arc::new(self.fill(of))),
            Type::Type(of) => Type::Type(Arc::new(self.fill(of))),
            Type::Map(key, value) => Type::Map(Arc::new(self.fill(key)), Arc::new(self.fill(value))),
            other => other.clone(),
        }
    }
}

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
            Shape::List(of) => Type::List(Arc::new(of.ty())),
            Shape::Map(of) => Type::Map(Arc::new(Type::String), Arc::new(of.ty())),
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

    /// Returns what the items of a list, or the entries of a map, are.
    pub(crate) fn element(&self) -> Option<&Arc<Self>> {
        match &self.shape {
            Shape::List(of) | Shape::Map(of) => Some(of),
            _ => None,
        }
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

    #[test]
    fn a_parameter_stands_for_one_type() {
        let mut bindings = Bindings::default();
        assert!(bindings.fits(&Type::Param("A"), &Type::Int));
        assert!(!bindings.fits(&Type::Param("A"), &Type::String));
        assert!(bindings.fits(&Type::Param("A"), &Type::Dyn));
    }
}
