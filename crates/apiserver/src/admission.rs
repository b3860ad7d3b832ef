//! The last checks before a write: plug-ins that may change an object and may then refuse it.
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

use apimachinery::gvk::Gvk;
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
    /// The object as it would be stored; `None` for a deletion.
    pub object: Option<&'a mut Value>,
    pub old: Option<&'a Value>,
    pub warnings: Vec<String>,
}

/// A write that a plug-in wants in the same commit as an object.
#[derive(Default)]
pub struct Together {
    pub writes: Vec<Companion>,
    /// Dropped when the commit is done.
    pub held: Vec<Box<dyn Send + Sync>>,
}

/// An object whose status is written together with another object.
#[derive(Debug)]
pub struct Companion {
    pub kind: Gvk,
    /// The object as it was read, with its revision, and with the new status.
    pub object: Value,
}

/// An admission plug-in inside the process.
pub trait Admit: Send + Sync {
    fn name(&self) -> &'static str;

    /// Returns whether the plug-in has anything to do with a kind. Called before anything is copied.
    fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool;

    fn mutate<'a>(&'a self, _attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, _attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns whether the plug-in may want other writes together with a write of this kind. Called before anything else.
    fn accompanies(&self, _operation: Operation, _kind: &Kind, _subresource: &str) -> bool {
        false
    }

    /// Returns the writes for the same commit, or refuses. Called after everything else has agreed, and again when one of those
    /// writes lost a race. For a deletion, it is called when the object is really removed.
    fn together<'a>(&'a self, _attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<Together, Status>> {
        Box::pin(std::future::ready(Ok(Together::default())))
    }
}

/// The plug-ins, in the order in which they run.
#[derive(Clone, Default)]
pub struct Chain(Vec<Arc<dyn Admit>>);

impl Chain {
    pub fn new(plugins: Vec<Arc<dyn Admit>>) -> Self {
        Self(plugins)
    }

    /// Returns whether any plug-in wants to see a write.
    pub fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        self.0.iter().any(|plugin| plugin.handles(operation, kind, subresource))
    }

    /// Returns whether any plug-in may want other writes together with a write.
    pub fn accompanies(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        self.0.iter().any(|plugin| plugin.accompanies(operation, kind, subresource))
    }

    /// Collects the writes that plug-ins want in the same commit.
    pub async fn together(&self, attributes: &Attributes<'_>) -> Result<Together, Status> {
        let mut all = Together::default();
        for plugin in &self.0 {
            if plugin.accompanies(attributes.operation, attributes.kind, attributes.subresource) {
                let Together { writes, held } = plugin.together(attributes).await?;
                all.writes.extend(writes);
                all.held.extend(held);
            }
        }
        Ok(all)
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
