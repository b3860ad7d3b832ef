//! The Go types behind Kubernetes' kinds: which fields a struct has, what they are called in JSON and protobuf,
//! when Go leaves them out, how patches and server-side apply treat them.
//!
//! The table is one embedded file, read on first use (a few milliseconds, about a megabyte); afterwards every lookup
//! is an index. Types refer to each other by [`TypeId`], since schemas are recursive.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

mod rows;

/// Returns the type of a kind. Kinds of `meta/v1` (`Status`, `DeleteOptions`, `ListOptions` …) are known in every
/// group and version, as every Go scheme registers them so.
pub fn for_kind(group: &str, version: &str, kind: &str) -> Option<TypeId> {
    let table = &*TABLE;
    let own = table.kinds.get(&(group.into(), version.into(), kind.into()) as &Key);
    own.or_else(|| table.kinds.get(&("meta.k8s.io".into(), "v1".into(), kind.into()) as &Key)).copied()
}

/// Returns every described kind as (group, version, kind), sorted; `meta/v1` stands under `meta.k8s.io`.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let mut names: Vec<_> = TABLE.kinds.keys().map(|(g, v, k)| (&**g, &**v, &**k)).collect();
    names.sort_unstable();
    names.into_iter()
}

/// Names a type of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(u32);

impl TypeId {
    /// Returns what the table says about this type.
    pub fn get(self) -> &'static Type {
        &TABLE.types[self.0 as usize]
    }
}

/// One Go type.
#[derive(Debug)]
pub struct Type {
    /// As Go's reflection prints it, which decoding errors show: `v1.Pod`, `[]v1.Container`, `map[string]string`.
    pub go: Box<str>,
    pub kind: Kind,
    /// The fields of a struct in Go's order, inlined structs as one field; empty for all other kinds.
    pub fields: Box<[Field]>,
    /// Name in the OpenAPI documents, for structs that have one.
    pub model: Box<str>,
    /// `atomic` if server-side apply treats the whole struct as one value.
    pub map_type: Option<Box<str>>,
    /// The fields as JSON sees them, sorted by name; inlined structs are dissolved.
    members: Box<[Member]>,
}

/// What a Go type is, as far as its encodings care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    String,
    Bool,
    Int32,
    Int64,
    Uint8,
    Float64,
    /// A byte slice, base64 in JSON.
    Bytes,
    Pointer(TypeId),
    /// `message` lists are a protobuf message of their own (`items = 1`), others a repeated field.
    List {
        elem: TypeId,
        message: bool,
    },
    Map(TypeId),
    Struct,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    RawExtension,
    FieldsV1,
    /// Any JSON value (CRD schema literals).
    Json,
    /// The three unions of CRD schemas; the type is that of the schema.
    SchemaOrArray(TypeId),
    SchemaOrBool(TypeId),
    SchemaOrStringArray(TypeId),
}

/// A field of a Go struct.
#[derive(Debug)]
pub struct Field {
    /// JSON name; empty for an inlined struct.
    pub name: Box<str>,
    pub go_name: Box<str>,
    pub ty: TypeId,
    /// Protobuf field number; 0 for fields that protobuf does not carry.
    pub number: u32,
    pub wire: Wire,
    pub omit_empty: bool,
    pub omit_zero: bool,
    pub inline: bool,
    /// Comma-separated strategies of strategic merge: `merge`, `retainKeys`, `replace`; empty for none.
    pub patch_strategy: Box<str>,
    pub merge_key: Box<str>,
    /// `atomic`, `set` or `map`.
    pub list_type: Option<Box<str>>,
    pub list_map_keys: Box<[Box<str>]>,
    pub map_type: Option<Box<str>>,
    /// The default of the OpenAPI document; server-side apply needs it for keys of list entries.
    pub default: Option<Value>,
}

/// How protobuf writes a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    None,
    Varint,
    Bytes,
    Fixed64,
}

/// A field as JSON sees it: reached directly or through inlined structs.
#[derive(Debug)]
pub struct Member {
    owner: TypeId,
    position: u32,
    /// Go names of the inlined structs on the way, outermost first.
    pub through: Box<[Box<str>]>,
    /// Protobuf carries the field; it does not carry the type names of an object.
    pub on_wire: bool,
}

impl Member {
    pub fn field(&self) -> &'static Field {
        &self.owner.get().fields[self.position as usize]
    }
}

impl Type {
    /// Returns the fields as JSON sees them, sorted by name.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the field with this JSON name, looking into inlined structs.
    pub fn member(&self, name: &str) -> Option<&Member> {
        let at = self.members.binary_search_by(|member| (*member.field().name).cmp(name)).ok()?;
        Some(&self.members[at])
    }

    /// Returns the name of the type without its package, as Go's `Type.Name()`.
    pub fn short_name(&self) -> &str {
        self.go.rsplit('.').next().unwrap_or(&self.go)
    }
}

type Key = (Box<str>, Box<str>, Box<str>);

struct Table {
    types: Vec<Type>,
    kinds: HashMap<Key, TypeId>,
}

static TABLE: LazyLock<Table> = LazyLock::new(rows::load);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_has_the_fields_of_its_go_type() {
        let deployment = for_kind("apps", "v1", "Deployment").expect("served").get();
        assert_eq!(&*deployment.go, "v1.Deployment");
        let spec = deployment.member("spec").expect("has a spec").field();
        assert_eq!((spec.number, spec.wire), (2, Wire::Bytes));
        let replicas = spec.ty.get().member("replicas").expect("has replicas").field();
        assert!(matches!(replicas.ty.get().kind, Kind::Pointer(to) if to.get().kind == Kind::Int32));
    }

    #[test]
    fn fields_of_inlined_structs_are_members_of_the_outer_one() {
        let pod = for_kind("", "v1", "Pod").expect("served").get();
        let volumes = pod
            .member("spec")
            .and_then(|f| f.field().ty.get().member("volumes"))
            .expect("has volumes")
            .field();
        assert_eq!((&*volumes.merge_key, &*volumes.patch_strategy), ("name", "merge,retainKeys"));
        assert_eq!(volumes.list_type.as_deref(), Some("map"));
        let Kind::List { elem, .. } = volumes.ty.get().kind else { panic!("volumes are a list") };
        let secret = elem.get().member("secret").expect("inlined from VolumeSource");
        assert_eq!(&*secret.through, &["VolumeSource".into()]);
    }

    #[test]
    fn kinds_of_meta_are_known_in_every_group() {
        assert_eq!(for_kind("", "v1", "DeleteOptions"), for_kind("policy", "v1", "DeleteOptions"));
        assert!(for_kind("", "v1", "Status").is_some());
        assert_eq!(for_kind("", "v1", "Deployment"), None);
    }
}
