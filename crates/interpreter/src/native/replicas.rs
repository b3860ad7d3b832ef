//! How many replicas a native workload asks for.

use serde_json::Value;

use super::kinds::Kind;
use crate::fields::{self, wrong_type};
use crate::{Error, Operation, Replicas, Result, pods};

pub(super) fn supports(kind: Kind) -> bool {
    matches!(kind, Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet | Kind::Job | Kind::Pod)
}

pub(super) fn get(kind: Kind, object: &Value, class: pods::PriorityClass) -> Result<Replicas> {
    let (count, pod_spec): (i32, &[&str]) = match kind {
        Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet => {
            (count(object, "replicas")?.unwrap_or(0), &["spec", "template", "spec"])
        }
        Kind::Job => {
            let parallelism = count(object, "parallelism")?.unwrap_or(0);
            // No more pods run at once than completions are wanted.
            let completions = count(object, "completions")?.unwrap_or(parallelism);
            (parallelism.min(completions), &["spec", "template", "spec"])
        }
        Kind::Pod => (1, &["spec"]),
        _ => {
            let kind = crate::chain::kind_of(object);
            return Err(Error::NoRule { operation: Operation::InterpretReplica, kind });
        }
    };
    let requirements = match fields::present(object, pod_spec)? {
        Some(spec) => pods::requirements(spec, class)?,
        None => None,
    };
    Ok(Replicas { count, requirements })
}

fn count(object: &Value, field: &str) -> Result<Option<i32>> {
    let path = ["spec", field];
    fields::int(object, &path)?
        .map(|value| i32::try_from(value).map_err(|_| wrong_type(&path, &Value::from(value), "int32")))
        .transpose()
}
