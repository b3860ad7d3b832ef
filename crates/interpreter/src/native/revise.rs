//! Sets the replica count of a native workload. A field that the template does not have is not invented.

use serde_json::Value;

use super::kinds::Kind;
use crate::fields;
use crate::{Error, Operation, Result};

pub(super) fn supports(kind: Kind) -> bool {
    field(kind).is_some()
}

fn field(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet => Some("replicas"),
        Kind::Job => Some("parallelism"),
        _ => None,
    }
}

pub(super) fn revise(kind: Kind, mut object: Value, replicas: i64) -> Result<Value> {
    let Some(field) = field(kind) else {
        let kind = crate::chain::kind_of(&object);
        return Err(Error::NoRule { operation: Operation::ReviseReplica, kind });
    };
    let path = ["spec", field];
    match fields::get(&object, &path)? {
        Some(value) if !value.is_i64() && !value.is_u64() => Err(fields::wrong_type(&path, value, "int64")),
        Some(_) => {
            fields::set(&mut object, &path, replicas.into())?;
            Ok(object)
        }
        None => Ok(object),
    }
}
