//! How components in the same process write without a request: through the same path as all clients, under their own name. The
//! server's own controllers and those of a simulated cluster use this.

use std::sync::Arc;

use apimachinery::status::Status;
use http::{HeaderMap, Method};
use serde_json::Value;

use crate::auth::User;
use crate::handlers::adopt::Adopted;
use crate::handlers::context::{Context, FieldValidation, WriteOptions};
use crate::handlers::decode;
use crate::handlers::delete::{self, DeleteOptions, Deleted};
use crate::handlers::write::{Change, Outcome, Target};
use crate::http::{Query, RequestInfo};
use crate::registry::Kind;
use crate::server::Server;

/// A component of the server that writes.
#[derive(Debug)]
pub struct Actor {
    server: Arc<Server>,
    context: Context,
    options: WriteOptions,
}

impl Actor {
    pub fn new(server: &Arc<Server>, name: &str) -> Self {
        let context = Context::new(
            Method::PUT,
            RequestInfo::default(),
            Query::default(),
            HeaderMap::new(),
            Arc::new(User::system(name)),
        );
        let options = WriteOptions {
            dry_run: false,
            field_validation: FieldValidation::Ignore,
            field_manager: name.rsplit(':').next().unwrap_or(name).to_owned(),
            force: None,
            document: Value::Null,
        };
        Self { server: server.clone(), context, options }
    }

    /// For components that can repeat their writes from other stored objects: the writes are acknowledged before they are on
    /// disk.
    pub fn relaxed(mut self) -> Self {
        self.context.terms.durability = store::Durability::Buffered;
        self
    }

    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    pub(crate) fn target<'a>(
        &'a self,
        kind: &'a Arc<Kind>,
        namespace: &'a str,
        name: &'a str,
        subresource: &'a str,
    ) -> Target<'a> {
        Target {
            server: &self.server,
            context: &self.context,
            kind,
            namespace,
            name,
            subresource,
            scale: false,
            options: &self.options,
        }
    }

    /// Creates an object.
    pub async fn create(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        mut object: Value,
    ) -> Result<Value, Status> {
        decode::canonicalise(kind, &kind.gvk, &mut object)
            .map_err(|error| decode::cannot_handle(&kind.gvk, &kind.gvk, &error))?;
        Ok(self.target(kind, namespace, "", "").create(object).await?.object)
    }

    /// Takes over an object from another API server with its uid, times, status and all other fields; see
    /// [`handlers::adopt`](crate::handlers::adopt). An existing one with the same name is replaced only if `replace` is set.
    pub async fn adopt(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        mut object: Value,
        replace: bool,
    ) -> Result<Adopted, Status> {
        decode::canonicalise(kind, &kind.gvk, &mut object)
            .map_err(|error| decode::cannot_handle(&kind.gvk, &kind.gvk, &error))?;
        self.target(kind, namespace, "", "").adopt(object, replace).await
    }

    /// Changes an object; the closure returns `None` to leave it unchanged.
    pub async fn update(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        subresource: &str,
        change: impl Fn(&Value) -> Option<Value> + Send + Sync,
    ) -> Result<Outcome, Status> {
        let change = Edit { kind, change };
        self.target(kind, namespace, name, subresource).update(&change).await
    }

    pub async fn delete(
        &self,
        kind: &Arc<Kind>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        delete::delete(&self.target(kind, namespace, name, ""), options).await
    }
}

struct Edit<'a, F> {
    kind: &'a Kind,
    change: F,
}

impl<F: Fn(&Value) -> Option<Value> + Send + Sync> Change for Edit<'_, F> {
    fn new_object(&self, old: &Value) -> Result<Option<Value>, Status> {
        let Some(mut new) = (self.change)(old) else { return Ok(None) };
        decode::canonicalise(self.kind, &self.kind.gvk, &mut new)
            .map_err(|error| decode::cannot_handle(&self.kind.gvk, &self.kind.gvk, &error))?;
        Ok(Some(new))
    }

    fn is_patch(&self) -> bool {
        true
    }
}
