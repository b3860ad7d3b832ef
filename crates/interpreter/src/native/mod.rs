//! The rules for Kubernetes' own kinds, one file per operation.

mod aggregate;
mod dependencies;
mod health;
pub(crate) mod kinds;
mod reflect;
mod replicas;
mod retain;
mod revise;

use api::config::DependentObjectReference;
use api::work::AggregatedStatusItem;
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use serde_json::Value;

use crate::chain::kind_of;
use crate::pods::PriorityClass;
use crate::{Error, Operation, Replicas, Result, Rulebook};
use kinds::Kind;

/// The last layer of every chain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Native {
    pub priority_class: PriorityClass,
}

impl Rulebook for Native {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        // The whole `.status` can be reported of any kind.
        if operation == Operation::InterpretStatus {
            return true;
        }
        let Some(kind) = Kind::find(kind) else { return false };
        match operation {
            Operation::InterpretReplica => replicas::supports(kind),
            Operation::ReviseReplica => revise::supports(kind),
            Operation::Retain => retain::supports(kind),
            Operation::AggregateStatus => aggregate::supports(kind),
            Operation::InterpretHealth => health::supports(kind),
            Operation::InterpretDependency => dependencies::supports(kind),
            Operation::InterpretStatus => true,
            Operation::InterpretComponent => false,
        }
    }

    fn get_replicas(&self, object: &Value) -> Result<Replicas> {
        replicas::get(known(object, Operation::InterpretReplica)?, object, self.priority_class)
    }

    fn revise_replica(&self, object: Value, replicas: i64) -> Result<Value> {
        revise::revise(known(&object, Operation::ReviseReplica)?, object, replicas)
    }

    fn retain(&self, desired: Value, observed: &Value) -> Result<Value> {
        retain::retain(known(&desired, Operation::Retain)?, desired, observed)
    }

    fn aggregate_status(
        &self,
        object: Value,
        items: &[AggregatedStatusItem],
        now: Timestamp,
    ) -> Result<Value> {
        aggregate::aggregate(known(&object, Operation::AggregateStatus)?, object, items, now)
    }

    fn reflect_status(&self, object: &Value) -> Result<Option<Value>> {
        reflect::reflect(Kind::find(&kind_of(object)), object)
    }

    fn interpret_health(&self, object: &Value) -> Result<bool> {
        health::interpret(known(object, Operation::InterpretHealth)?, object)
    }

    fn get_dependencies(&self, object: &Value) -> Result<Vec<DependentObjectReference>> {
        let kind = Kind::find(&kind_of(object)).ok_or(Error::NoDependencyRule)?;
        dependencies::get(kind, object)
    }
}

fn known(object: &Value, operation: Operation) -> Result<Kind> {
    let kind = kind_of(object);
    Kind::find(&kind).ok_or(Error::NoRule { operation, kind })
}
