//! Reads the type table from its embedded file; the rows there are what `gen/types.go` writes.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Field, Kind, Member, Table, Type, TypeId, Wire};
use crate::data;

#[derive(Deserialize)]
struct File {
    types: Vec<TypeRow>,
    kinds: HashMap<String, u32>,
}

#[derive(Deserialize)]
struct TypeRow {
    go: Box<str>,
    #[serde(rename = "k")]
    kind: String,
    #[serde(rename = "e", default)]
    elem: u32,
    #[serde(rename = "m", default)]
    message: bool,
    #[serde(rename = "f", default)]
    fields: Vec<FieldRow>,
    #[serde(rename = "o", default)]
    model: Box<str>,
    #[serde(rename = "mt", default)]
    map_type: Option<Box<str>>,
}

#[derive(Deserialize)]
struct FieldRow {
    #[serde(rename = "n", default)]
    name: Box<str>,
    #[serde(rename = "g")]
    go_name: Box<str>,
    #[serde(rename = "t")]
    ty: u32,
    #[serde(rename = "p", default)]
    number: u32,
    #[serde(rename = "w", default)]
    wire: Option<Box<str>>,
    #[serde(rename = "oe", default)]
    omit_empty: bool,
    #[serde(rename = "oz", default)]
    omit_zero: bool,
    #[serde(rename = "i", default)]
    inline: bool,
    #[serde(rename = "ps", default)]
    patch_strategy: Box<str>,
    #[serde(rename = "mk", default)]
    merge_key: Box<str>,
    #[serde(rename = "lt", default)]
    list_type: Option<Box<str>>,
    #[serde(rename = "lk", default)]
    list_map_keys: Vec<Box<str>>,
    #[serde(rename = "mt", default)]
    map_type: Option<Box<str>>,
    #[serde(rename = "d", default)]
    default: Option<Value>,
}

pub(super) fn load() -> Table {
    let file: File = data::read(data::TYPES);
    let mut types: Vec<Type> = file.types.into_iter().map(Type::from).collect();
    for at in 0..types.len() {
        let mut members = Vec::new();
        collect(&types, at, true, &mut Vec::new(), &mut members);
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        types[at].members = members.into_iter().map(|(_, member)| member).collect();
    }
    let kinds = file.kinds.into_iter().map(|(name, at)| {
        let mut parts = name.split('/').map(Box::<str>::from);
        let mut part = || parts.next().expect("kinds are written as group/version/kind");
        ((part(), part(), part()), TypeId(at))
    });
    Table { kinds: kinds.collect(), types }
}

/// Dissolves inlined structs; `through` holds the Go names of those passed so far.
fn collect(
    types: &[Type],
    at: usize,
    on_wire: bool,
    through: &mut Vec<Box<str>>,
    out: &mut Vec<(Box<str>, Member)>,
) {
    for (position, field) in types[at].fields.iter().enumerate() {
        let on_wire = on_wire && field.number != 0;
        if field.inline {
            through.push(field.go_name.clone());
            collect(types, field.ty.0 as usize, on_wire, through, out);
            through.pop();
        } else {
            let member = Member {
                owner: TypeId(u32::try_from(at).expect("the table is small")),
                position: u32::try_from(position).expect("structs are small"),
                through: through.clone().into(),
                on_wire,
            };
            out.push((field.name.clone(), member));
        }
    }
}

impl From<TypeRow> for Type {
    fn from(row: TypeRow) -> Self {
        let elem = TypeId(row.elem);
        let kind = match row.kind.as_str() {
            "string" => Kind::String,
            "bool" => Kind::Bool,
            "int32" => Kind::Int32,
            "int64" => Kind::Int64,
            "uint8" => Kind::Uint8,
            "float64" => Kind::Float64,
            "bytes" => Kind::Bytes,
            "ptr" => Kind::Pointer(elem),
            "list" => Kind::List { elem, message: row.message },
            "map" => Kind::Map(elem),
            "struct" => Kind::Struct,
            "time" => Kind::Time,
            "microtime" => Kind::MicroTime,
            "duration" => Kind::Duration,
            "quantity" => Kind::Quantity,
            "intorstring" => Kind::IntOrString,
            "rawextension" => Kind::RawExtension,
            "fieldsv1" => Kind::FieldsV1,
            "json" => Kind::Json,
            "schemaorarray" => Kind::SchemaOrArray(elem),
            "schemaorbool" => Kind::SchemaOrBool(elem),
            "schemaorstringarray" => Kind::SchemaOrStringArray(elem),
            other => unreachable!("the generator writes no kind {other}"),
        };
        Self {
            go: row.go,
            kind,
            fields: row.fields.into_iter().map(Field::from).collect(),
            model: row.model,
            map_type: row.map_type,
            members: Box::new([]),
        }
    }
}

impl From<FieldRow> for Field {
    fn from(row: FieldRow) -> Self {
        let wire = match row.wire.as_deref() {
            Some("v") => Wire::Varint,
            Some("b") => Wire::Bytes,
            Some("f") => Wire::Fixed64,
            _ => Wire::None,
        };
        Self {
            name: row.name,
            go_name: row.go_name,
            ty: TypeId(row.ty),
            number: row.number,
            wire,
            omit_empty: row.omit_empty,
            omit_zero: row.omit_zero,
            inline: row.inline,
            patch_strategy: row.patch_strategy,
            merge_key: row.merge_key,
            list_type: row.list_type,
            list_map_keys: row.list_map_keys.into(),
            map_type: row.map_type,
            default: row.default,
        }
    }
}
