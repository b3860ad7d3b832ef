//! A question about an object and the answer to it, as values: what a layer outside of this crate is asked.

use api::config::DependentObjectReference;
use api::work::{AggregatedStatusItem, Component};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::chain::kind_of;
use crate::{Error, Operation, Replicas, Result, Rulebook};

/// What is asked, with everything that the answer depends on. It is owned, so that it can be answered on another thread or in
/// another process.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    Replicas { object: Value },
    Components { object: Value },
    Revise { object: Value, replicas: i64 },
    Retain { desired: Value, observed: Value },
    Aggregate { object: Value, items: Vec<AggregatedStatusItem>, now: Timestamp },
    Status { object: Value },
    Health { object: Value },
    Dependencies { object: Value },
}

/// What was answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Replicas(Replicas),
    Components(Vec<Component>),
    /// The object as it should be: revised, retained, or with its status summed up.
    Object(Value),
    Status(Option<Value>),
    Health(bool),
    Dependencies(Vec<DependentObjectReference>),
}

impl Question {
    pub fn operation(&self) -> Operation {
        match self {
            Self::Replicas { .. } => Operation::InterpretReplica,
            Self::Components { .. } => Operation::InterpretComponent,
            Self::Revise { .. } => Operation::ReviseReplica,
            Self::Retain { .. } => Operation::Retain,
            Self::Aggregate { .. } => Operation::AggregateStatus,
            Self::Status { .. } => Operation::InterpretStatus,
            Self::Health { .. } => Operation::InterpretHealth,
            Self::Dependencies { .. } => Operation::InterpretDependency,
        }
    }

    /// Returns the object that the question is about; for retention, the desired one.
    pub fn object(&self) -> &Value {
        match self {
            Self::Replicas { object }
            | Self::Components { object }
            | Self::Revise { object, .. }
            | Self::Aggregate { object, .. }
            | Self::Status { object }
            | Self::Health { object }
            | Self::Dependencies { object } => object,
            Self::Retain { desired, .. } => desired,
        }
    }

    /// Returns the kind of that object.
    pub fn kind(&self) -> Gvk {
        kind_of(self.object())
    }

    /// Lets a rulebook answer.
    pub fn put_to(self, rulebook: &dyn Rulebook) -> Result<Answer> {
        Ok(match self {
            Self::Replicas { object } => Answer::Replicas(rulebook.get_replicas(&object)?),
            Self::Components { object } => Answer::Components(rulebook.get_components(&object)?),
            Self::Revise { object, replicas } => Answer::Object(rulebook.revise_replica(object, replicas)?),
            Self::Retain { desired, observed } => Answer::Object(rulebook.retain(desired, &observed)?),
            Self::Aggregate { object, items, now } => {
                Answer::Object(rulebook.aggregate_status(object, &items, now)?)
            }
            Self::Status { object } => Answer::Status(rulebook.reflect_status(&object)?),
            Self::Health { object } => Answer::Health(rulebook.interpret_health(&object)?),
            Self::Dependencies { object } => Answer::Dependencies(rulebook.get_dependencies(&object)?),
        })
    }
}

/// A layer that answers another question than it was asked is broken.
fn mismatch<T>() -> Result<T> {
    Err(Error::Layer("the layer answered another question".to_owned()))
}

impl Answer {
    pub fn into_replicas(self) -> Result<Replicas> {
        if let Self::Replicas(replicas) = self { Ok(replicas) } else { mismatch() }
    }

    pub fn into_components(self) -> Result<Vec<Component>> {
        if let Self::Components(components) = self { Ok(components) } else { mismatch() }
    }

    pub fn into_object(self) -> Result<Value> {
        if let Self::Object(object) = self { Ok(object) } else { mismatch() }
    }

    pub fn into_status(self) -> Result<Option<Value>> {
        if let Self::Status(status) = self { Ok(status) } else { mismatch() }
    }

    pub fn into_health(self) -> Result<bool> {
        if let Self::Health(healthy) = self { Ok(healthy) } else { mismatch() }
    }

    pub fn into_dependencies(self) -> Result<Vec<DependentObjectReference>> {
        if let Self::Dependencies(dependencies) = self { Ok(dependencies) } else { mismatch() }
    }
}
