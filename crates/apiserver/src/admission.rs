//! The last say before something is written: plug-ins that may change an object and then refuse it.
//!
//! Plug-ins run outside the store's critical section; an update that lost its race runs them again.

pub(crate) mod binding_check;
mod bound;
pub mod certificates;
pub(crate) mod declarations;
pub(crate) mod expressions;
pub mod mutations;
pub mod namespace;
pub mod nodes;
pub(crate) mod param_rights;
pub mod policies;
pub(crate) mod policy_check;
pub(crate) mod priority;
pub mod webhooks;

use std::sync::Arc;

use apimachinery::status::Status;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::auth::User;
use crate::registry::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    /// The name that rules and reviews use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// What a plug-in sees of a write.
#[derive(Debug)]
pub struct Attributes<'a> {
    pub operation: Operation,
    pub kind: &'a Kind,
    pub namespace: &'a str,
    /// Empty while a name is still to be generated.
    pub name: &'a str,
    pub subresource: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    /// The object as it would be stored; none when deleting.
    pub object: Option<&'a mut Value>,
    pub old: Option<&'a Value>,
    pub warnings: Vec<String>,
}

/// An admission plug-in inside the process.
pub trait Admit: Send + Sync {
    fn name(&self) -> &'static str;

    /// Says whether the plug-in has anything to do with a kind; asked before anything is copied.
    fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool;

    fn mutate<'a>(&'a self, _attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, _attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The plug-ins in their order.
#[derive(Clone, Default)]
pub struct Chain(Vec<Arc<dyn Admit>>);

impl Chain {
    pub fn new(plugins: Vec<Arc<dyn Admit>>) -> Self {
        Self(plugins)
    }

    /// Says whether any plug-in wants to see a write.
    pub fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        self.0.iter().any(|plugin| plugin.handles(operation, kind, subresource))
    }

    pub async fn mutate(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.0 {
            if plugin.handles(attributes.operation, attributes.kind, attributes.subresource) {
                plugin.mutate(attributes).await?;
            }
        }
        Ok(())
    }

    pub async fn validate(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.0 {
            if plugin.handles(attributes.operation, attributes.kind, attributes.subresource) {
                plugin.validate(attributes).await?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.0.iter().map(|plugin| plugin.name())).finish()
    }
}
