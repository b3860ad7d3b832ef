//! Objects can be created only in namespaces that exist and are not being deleted. Some namespaces can never be deleted.

use std::sync::Arc;

use apimachinery::gvk::GroupResource;
use apimachinery::status::{Cause, Status};

use crate::object::Entry;
use crate::registry::Kind;
use crate::server::Server;

/// Namespaces that may not be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that an object of `kind` may be created in `namespace`. Returns the namespace, if the kind has one.
pub fn check_create(
    server: &Server,
    kind: &Kind,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Entry>>, Status> {
    if namespace.is_empty() || !kind.namespaced || kind.rules.computed {
        return Ok(None);
    }
    match server.store.get("namespaces", namespace) {
        None => Err(Status::not_found(&GroupResource::new("", "namespaces"), namespace)),
        Some(entry) if entry.head.deleting => {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            let mut status = Status::forbidden(&kind.resource, name, &why);
            if let Some(details) = &mut status.details {
                details.causes.push(Cause {
                    reason: "NamespaceTerminating".to_owned(),
                    message: format!("namespace {namespace} is being terminated"),
                    field: "metadata.namespace".to_owned(),
                });
            }
            Err(status)
        }
        Some(entry) => Ok(Some(entry)),
    }
}

/// Checks that an object may be deleted.
pub fn check_delete(kind: &Kind, name: &str) -> Result<(), Status> {
    if kind.is_namespace() && IMMORTAL.contains(&name) {
        return Err(Status::forbidden(&kind.resource, name, "this namespace may not be deleted"));
    }
    Ok(())
}
