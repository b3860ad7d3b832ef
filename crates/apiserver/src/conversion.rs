//! Objects between the versions of their kind.

use std::sync::Arc;

use apimachinery::status::Status;
use serde_json::{Value, json};

use crate::registry::{Kind, Source};
use crate::server::Server;

/// Returns an object of one served version in another one of the same kind.
pub(crate) async fn between(
    _server: &Arc<Server>,
    from: &Kind,
    to: &Kind,
    mut object: Value,
) -> Result<Value, Status> {
    match &from.source {
        Source::Native => {
            let revision = object.pointer("/metadata/resourceVersion").cloned();
            let mut converted =
                native::convert::convert(object, &from.gvk, &to.gvk).map_err(Status::internal)?;
            if let Some(revision) = revision {
                crate::object::meta_mut(&mut converted).insert("resourceVersion".to_owned(), revision);
            }
            converted["apiVersion"] = json!(to.api_version);
            converted["kind"] = json!(to.gvk.kind);
            Ok(converted)
        }
        Source::Custom(_) => {
            object["apiVersion"] = json!(to.api_version);
            Ok(object)
        }
    }
}
