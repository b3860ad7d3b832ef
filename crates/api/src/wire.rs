//! How the fields of Karmada's kinds look on the wire, and the macros that declare the kinds.
//!
//! Karmada's API was born as Go structs, and Go decides which zero values appear in JSON: a scalar, list or
//! map marked `omitempty` disappears when empty, a struct never does, a required field never does. Clients
//! compare encoded objects (the scheduler's applied-placement annotation, for one), so we reproduce it.
//! Three macros declare everything once, and derive the Rust type, its encoding and its schema from it:
//!
//! - `record!` a struct. Each field says its JSON name, its presence, its type and, in
//!   braces, the limits that go into the schema. Doc comments become the descriptions.
//! - `choice!` a string with known values. Unknown ones survive a round trip, because a
//!   single odd object must not make a whole list undecodable.
//! - `kind!` a top-level kind, usable with `kube::Api`.
//!
//! Presence is one of: `required` (always written, key demanded by the schema), `optional` (omitted when
//! zero), `always` (optional in the schema, but written even when empty, as Go does for structs), `demanded`
//! (omitted when zero although the schema demands it; upstream has one such field), `inline`.
//!
//! Reading is as forgiving as Go: absent and `null` both mean the zero value. An `optional` choice is a plain string in
//! Go, never a pointer: `""` means absent as well.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::schema::Schema;

/// A type that can stand in a field: it knows its schema, when Go would omit it, and how Go writes it.
pub trait Wire: Serialize {
    /// Whether Go declares an optional field of this type as a plain value and not as a pointer: its zero value and an
    /// absent field are the same.
    const ZERO_IS_ABSENT: bool = false;

    /// Returns the schema of a field of this type, without description.
    fn schema() -> Schema;

    /// Returns whether `omitempty` would drop this value.
    fn is_zero(&self) -> bool;

    /// Writes the value with its keys in the order of the Go struct. Only types whose own `Serialize` has another
    /// order need to say anything here.
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize(serializer)
    }

    /// Returns the value of an optional field as Go has it after reading.
    fn settled(self) -> Self
    where
        Self: Sized,
    {
        self
    }
}

/// Returns the JSON text that Go's encoder writes for a value: same key order, same escapes.
///
/// Needed where encoded objects are stored as text and others compare it, as in the annotations
/// `policy.karmada.io/applied-placement` and `policy.karmada.io/applied-overrides`.
pub fn go_json<T: Wire>(value: &T) -> String {
    let text = serde_json::to_string(&InGoOrder(value)).expect("API types have string keys only");
    // These five characters can only stand inside strings, so that replacing them in the text is safe.
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// Serializes through [`Wire::encode`], so that order survives inside lists, maps and options.
struct InGoOrder<'a, T>(&'a T);

impl<T: Wire> Serialize for InGoOrder<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.encode(serializer)
    }
}

/// Writes a field of a record; the counterpart of [`lenient`].
pub(crate) fn in_go_order<S: Serializer, T: Wire>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.encode(serializer)
}

/// A top-level kind of the API: what discovery and a CRD need to know besides the schema.
pub trait Kind: kube_core::Resource<DynamicType = ()> {
    /// The API group.
    const GROUP: &'static str;
    /// The API version within the group.
    const VERSION: &'static str;
    /// Group and version as they stand in `apiVersion`.
    const API_VERSION: &'static str;
    /// The kind's name.
    const KIND: &'static str;
    /// The resource name in URLs.
    const PLURAL: &'static str;
    /// Whether objects live in namespaces.
    const NAMESPACED: bool;

    /// Returns the schema of the whole object, `apiVersion`, `kind` and `metadata` included.
    fn root_schema() -> Schema;
}

/// Reads a value, taking `null` for the zero value as Go does.
pub(crate) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads an optional field of a record: as [`lenient`], and a choice that is the empty string is absent.
pub(crate) fn optional<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Wire + Default + Deserialize<'de>,
{
    Ok(lenient::<D, T>(deserializer)?.settled())
}

impl Wire for String {
    fn schema() -> Schema {
        Schema::of_type("string")
    }
    fn is_zero(&self) -> bool {
        self.is_empty()
    }
}

impl Wire for bool {
    fn schema() -> Schema {
        Schema::of_type("boolean")
    }
    fn is_zero(&self) -> bool {
        !self
    }
}

impl Wire for i32 {
    fn schema() -> Schema {
        Schema::of_type("integer").format("int32")
    }
    fn is_zero(&self) -> bool {
        *self == 0
    }
}

impl Wire for u32 {
    fn schema() -> Schema {
        // Kubernetes' OpenAPI has no unsigned format; upstream publishes Go's uint as int32.
        Schema::of_type("integer").format("int32")
    }
    fn is_zero(&self) -> bool {
        *self == 0
    }
}

impl Wire for i64 {
    fn schema() -> Schema {
        Schema::of_type("integer").format("int64")
    }
    fn is_zero(&self) -> bool {
        *self == 0
    }
}

impl<T: Wire> Wire for Option<T> {
    fn schema() -> Schema {
        T::schema()
    }
    fn is_zero(&self) -> bool {
        self.is_none()
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => value.encode(serializer),
            None => serializer.serialize_none(),
        }
    }
    fn settled(self) -> Self {
        self.filter(|value| !(T::ZERO_IS_ABSENT && value.is_zero()))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn schema() -> Schema {
        Schema::list(T::schema())
    }
    fn is_zero(&self) -> bool {
        self.is_empty()
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(InGoOrder))
    }
}

impl<T: Wire> Wire for BTreeMap<String, T> {
    fn schema() -> Schema {
        Schema::map(T::schema())
    }
    fn is_zero(&self) -> bool {
        self.is_empty()
    }
    fn encode<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(key, value)| (key, InGoOrder(value))))
    }
}

impl Wire for Value {
    fn schema() -> Schema {
        Schema::any()
    }
    fn is_zero(&self) -> bool {
        self.is_null()
    }
}

impl Wire for Quantity {
    fn schema() -> Schema {
        Schema::quantity()
    }
    fn is_zero(&self) -> bool {
        false // a struct in Go: never omitted
    }
}

impl Wire for Time {
    fn schema() -> Schema {
        Schema::of_type("string").format("date-time")
    }
    fn is_zero(&self) -> bool {
        false
    }
}

impl Wire for ByteString {
    fn schema() -> Schema {
        Schema::of_type("string").format("byte")
    }
    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
}

/// Declares a struct of the API with its encoding and schema; see the module documentation.
macro_rules! record {
    ($(#[doc = $doc:literal])+ $(#[derive($($derive:ident),+)])? pub struct $name:ident { $($body:tt)* }) => {
        $crate::wire::record!(@next [$($doc)+] [$($($derive)+)?] $name {} {} $($body)*);
    };

    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        $(#[doc = $doc:literal])+ $json:literal required $field:ident : $ty:ty
        $({ $($method:ident ( $($arg:expr),* )),+ })? ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {
            $($fields)*
            $(#[doc = $doc])+
            #[serde(
                rename = $json,
                deserialize_with = "crate::wire::lenient",
                serialize_with = "crate::wire::in_go_order"
            )]
            pub $field: $ty,
        } {
            $($schema)* .field($json, true, concat!($($doc, " "),+), <$ty as $crate::wire::Wire>::schema()$($(.$method($($arg),*))+)?)
        } $($rest)*);
    };

    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        $(#[doc = $doc:literal])+ $json:literal optional $field:ident : $ty:ty
        $({ $($method:ident ( $($arg:expr),* )),+ })? ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {
            $($fields)*
            $(#[doc = $doc])+
            #[serde(
                rename = $json,
                deserialize_with = "crate::wire::optional",
                serialize_with = "crate::wire::in_go_order",
                skip_serializing_if = "crate::wire::Wire::is_zero"
            )]
            pub $field: $ty,
        } {
            $($schema)* .field($json, false, concat!($($doc, " "),+), <$ty as $crate::wire::Wire>::schema()$($(.$method($($arg),*))+)?)
        } $($rest)*);
    };

    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        $(#[doc = $doc:literal])+ $json:literal always $field:ident : $ty:ty
        $({ $($method:ident ( $($arg:expr),* )),+ })? ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {
            $($fields)*
            $(#[doc = $doc])+
            #[serde(
                rename = $json,
                deserialize_with = "crate::wire::lenient",
                serialize_with = "crate::wire::in_go_order"
            )]
            pub $field: $ty,
        } {
            $($schema)* .field($json, false, concat!($($doc, " "),+), <$ty as $crate::wire::Wire>::schema()$($(.$method($($arg),*))+)?)
        } $($rest)*);
    };

    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        $(#[doc = $doc:literal])+ $json:literal demanded $field:ident : $ty:ty
        $({ $($method:ident ( $($arg:expr),* )),+ })? ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {
            $($fields)*
            $(#[doc = $doc])+
            #[serde(
                rename = $json,
                deserialize_with = "crate::wire::lenient",
                serialize_with = "crate::wire::in_go_order",
                skip_serializing_if = "crate::wire::Wire::is_zero"
            )]
            pub $field: $ty,
        } {
            $($schema)* .field($json, true, concat!($($doc, " "),+), <$ty as $crate::wire::Wire>::schema()$($(.$method($($arg),*))+)?)
        } $($rest)*);
    };

    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        $(#[doc = $doc:literal])+ inline $field:ident : $ty:ty ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {
            $($fields)*
            $(#[doc = $doc])+
            #[serde(flatten)]
            pub $field: $ty,
        } {
            $($schema)* .inline(<$ty as $crate::wire::Wire>::schema())
        } $($rest)*);
    };

    // A constraint on the record itself, e.g. `self { atomic_map() };`.
    (@next $docs:tt $derives:tt $name:ident {$($fields:tt)*} {$($schema:tt)*}
        self { $($method:ident ( $($arg:expr),* )),+ } ; $($rest:tt)*) => {
        $crate::wire::record!(@next $docs $derives $name {$($fields)*} {
            $($schema)* $(.$method($($arg),*))+
        } $($rest)*);
    };

    (@next [$($doc:literal)+] [$($derive:ident)*] $name:ident {$($fields:tt)*} {$($schema:tt)*}) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize $(, $derive)*)]
        #[serde(default)]
        pub struct $name {
            $($fields)*
        }

        impl $crate::wire::Wire for $name {
            fn schema() -> $crate::schema::Schema {
                $crate::schema::Schema::record(stringify!($name)) $($schema)*
            }
            fn is_zero(&self) -> bool {
                false // a struct: Go never omits it
            }
        }
    };
}
pub(crate) use record;

/// Declares a string type with known values; see the module documentation.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])+
        pub enum $name:ident { $($(#[doc = $variant_doc:literal])+ $variant:ident = $text:literal,)+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
            /// A value this version does not know; empty means unset.
            Other(String),
        }

        impl $name {
            /// All known values as they stand in JSON.
            pub const VALUES: &'static [&'static str] = &[$($text),+];

            /// Returns the value as it stands in JSON.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(text) => text,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(text.as_str()))
            }
        }

        impl $crate::wire::Wire for $name {
            const ZERO_IS_ABSENT: bool = true;

            fn schema() -> $crate::schema::Schema {
                $crate::schema::Schema::of_type("string").one_of(Self::VALUES)
            }
            fn is_zero(&self) -> bool {
                self.as_str().is_empty()
            }
        }
    };
}
pub(crate) use choice;

/// Declares a top-level kind; see the module documentation.
macro_rules! kind {
    (
        $(#[doc = $doc:literal])+
        pub struct $name:ident in $group:literal / $version:literal as $plural:literal, $scope:ident {
            $($(#[doc = $field_doc:literal])+ $json:literal $presence:ident $field:ident : $ty:ty ;)*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// Name, namespace, labels and the rest of what every Kubernetes object has.
            #[serde(deserialize_with = "crate::wire::lenient")]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $(
                $(#[doc = $field_doc])+
                #[serde(rename = $json, deserialize_with = "crate::wire::lenient")]
                pub $field: $ty,
            )*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct as _;
                let fields = 3 $(+ { let _ = $json; 1 })*;
                let mut out = serializer.serialize_struct(stringify!($name), fields)?;
                out.serialize_field("apiVersion", <Self as $crate::Kind>::API_VERSION)?;
                out.serialize_field("kind", <Self as $crate::Kind>::KIND)?;
                out.serialize_field("metadata", &self.metadata)?;
                $(out.serialize_field($json, &self.$field)?;)*
                out.end()
            }
        }

        impl $crate::Kind for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $crate::wire::kind!(@namespaced $scope);

            fn root_schema() -> $crate::schema::Schema {
                $crate::kubernetes::root(stringify!($name), concat!($($doc, " "),+))
                    $(.field(
                        $json,
                        $crate::wire::kind!(@required $presence),
                        concat!($($field_doc, " "),+),
                        <$ty as $crate::wire::Wire>::schema(),
                    ))*
            }
        }

        impl kube_core::Resource for $name {
            type DynamicType = ();
            type Scope = $crate::wire::kind!(@scope $scope);

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                <Self as $crate::Kind>::KIND.into()
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                <Self as $crate::Kind>::GROUP.into()
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                <Self as $crate::Kind>::VERSION.into()
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                <Self as $crate::Kind>::PLURAL.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
    (@required required) => { true };
    (@required always) => { false };
    (@namespaced Namespaced) => { true };
    (@namespaced Cluster) => { false };
    (@scope Namespaced) => { kube_core::NamespaceResourceScope };
    (@scope Cluster) => { kube_core::ClusterResourceScope };
}
pub(crate) use kind;
