//! Values of the language.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use jiff::{SignedDuration, Timestamp};

use crate::Question;
use crate::list::List;

/// A value.
#[derive(Debug, Clone)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<List>),
    Map(Arc<BTreeMap<Key, Value>>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    Type(Arc<str>),
    Optional(Option<Box<Value>>),
    Quantity(Box<Quantity>),
    Ip(IpAddr),
    Cidr(ipnet::IpNet),
    Url(Arc<crate::functions::urls::Url>),
    Semver(Arc<crate::functions::semver::Version>),
    /// A named format, such as `dns1123Label`.
    Format(&'static str),
    /// A question about rights that is still being put together.
    Authorizer(Arc<Question>),
    /// Its answer.
    Decision(bool, Arc<str>),
    /// An object or a patch that an expression has put together.
    Object(Arc<Object>),
    /// A variable whose fields are computed when they are asked for.
    Lazy(Arc<str>),
}

/// An object with a type of its own: what `Object.spec{…}` makes.
#[derive(Debug, Clone)]
pub struct Object {
    pub name: Arc<str>,
    pub fields: BTreeMap<String, Value>,
}

impl Object {
    /// Says which objects inside do not have the type that their place asks for.
    pub fn misplaced(&self) -> Vec<String> {
        fn walk(value: &Value, path: &str, wrong: &mut Vec<String>) {
            match value {
                Value::Object(object) => {
                    if *object.name != *path {
                        wrong.push(format!(
                            "unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
                            object.name
                        ));
                    }
                    for (name, field) in &object.fields {
                        walk(field, &format!("{path}.{name}"), wrong);
                    }
                }
                Value::List(list) => list.iter().for_each(|item| walk(item, path, wrong)),
                Value::Map(map) => map.values().for_each(|item| walk(item, path, wrong)),
                _ => {}
            }
        }
        let mut wrong = Vec::new();
        for (name, field) in &self.fields {
            walk(field, &format!("{}.{name}", self.name), &mut wrong);
        }
        wrong
    }
}

/// A key of a map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

impl Key {
    /// Returns the key that a value is; whole numbers of any type are the same key.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(n) => Some(Self::Int(*n)),
            Value::Uint(n) => Some(i64::try_from(*n).map_or(Self::Uint(*n), Self::Int)),
            Value::Double(n) if n.fract() == 0.0 && n.abs() < 9e18 => Some(Self::Int(*n as i64)),
            Value::String(text) => Some(Self::String(text.clone())),
            _ => None,
        }
    }

    pub fn to_value(&self) -> Value {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(n) => Value::Int(*n),
            Self::Uint(n) => Value::Uint(*n),
            Self::String(text) => Value::String(text.clone()),
        }
    }
}

impl Value {
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(text.into())
    }

    pub fn list(items: Vec<Value>) -> Self {
        Self::List(Arc::new(items.into()))
    }

    pub fn some(value: Value) -> Self {
        Self::Optional(Some(Box::new(value)))
    }

    /// Returns the name of the type, as `type()` and messages show it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) | Self::Lazy(_) => "map",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Object(object) if &*object.name == "JSONPatch" => "JSONPatch",
            Self::Object(_) => "Object",
            Self::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Self::Decision(..) => "kubernetes.authorization.Decision",
        }
    }

    /// Says whether it can be compared with another value: those of Kubernetes' own types only know each other.
    pub(crate) fn knows(&self, other: &Self) -> bool {
        let own = matches!(
            self,
            Self::Quantity(_)
                | Self::Ip(_)
                | Self::Cidr(_)
                | Self::Url(_)
                | Self::Semver(_)
                | Self::Format(_)
        );
        !own || matches!(other, Self::Null) || std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Says whether two values are equal; values of different types are not, numbers are compared by value.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::List(a), Self::List(b)) => a.equals(b),
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| value.equals(other)))
            }
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (None, None) => true,
                _ => false,
            },
            (Self::Quantity(a), Self::Quantity(b)) => a.cmp(b) == Ordering::Equal,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Semver(a), Self::Semver(b)) => a.compare(b) == Ordering::Equal,
            (Self::Format(a), Self::Format(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => {
                a.name == b.name
                    && a.fields.len() == b.fields.len()
                    && a.fields
                        .iter()
                        .all(|(name, value)| b.fields.get(name).is_some_and(|other| value.equals(other)))
            }
            (a, b) => a.is_number() && b.is_number() && a.compare(b) == Some(Ordering::Equal),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Uint(_) | Self::Double(_))
    }

    /// Orders two values of types that have an order.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Self::Uint(b)) => Some(a.cmp(b)),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            (Self::Int(a), Self::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Self::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Double(a), Self::Int(b)) => a.partial_cmp(&(*b as f64)),
            (Self::Int(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::Double(a), Self::Uint(b)) => a.partial_cmp(&(*b as f64)),
            (Self::Uint(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}
