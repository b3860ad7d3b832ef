//! WorkloadRebalancer: how many workloads one of them may name.
//!
//! Each workload comes back in the status, with its result. What is accepted here must leave room for that, or the result could never
//! be written.

use apimachinery::field::{Error, Path};
use serde_json::Value;

use api::apps::WorkloadRebalancerSpec;

use crate::request::{Denial, Request, deny_if_any, encode, spec, too_many};

/// So many workloads may one request name. A result takes up to 60 bytes besides the workload, together 300 KB.
const WORKLOADS_MAX: usize = 5_000;

/// So many bytes may they take, in spec and status each. With the results, that is less than the 1.5 MiB of an object.
const WORKLOADS_MAX_BYTES: usize = 512 * 1024;

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let wanted: WorkloadRebalancerSpec = spec(object)?;
    let at = Path::new("spec").child("workloads");
    deny_if_any(too_many(request, object, &at, wanted.workloads.len(), WORKLOADS_MAX).as_slice())?;
    let bytes = encode(&wanted.workloads).to_string().len();
    let too_long = too_many(request, object, &at, bytes, WORKLOADS_MAX_BYTES);
    deny_if_any(too_long.map(|_| Error::too_long(&at, WORKLOADS_MAX_BYTES)).as_slice())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Operation, Settings};

    fn judge(old: Option<&Value>, object: &Value) -> Result<(), String> {
        let request = Request {
            operation: if old.is_some() { Operation::Update } else { Operation::Create },
            group: "apps.karmada.io",
            version: "v1alpha1",
            kind: "WorkloadRebalancer",
            namespace: "",
            old,
        };
        crate::validate(&request, object, &Settings::default(), &[]).map_err(|denial| denial.message)
    }

    fn rebalancer(count: usize, name: &str) -> Value {
        let workload =
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": name });
        json!({ "metadata": { "name": "r" }, "spec": { "workloads": vec![workload; count] } })
    }

    #[test]
    fn finding_25_a_request_names_no_more_workloads_than_its_status_has_room_for() {
        assert_eq!(judge(None, &rebalancer(WORKLOADS_MAX, "w")), Ok(()));
        let long = rebalancer(WORKLOADS_MAX + 1, "w");
        let message = "spec.workloads: Too many: 5001: must have at most 5000 items";
        assert_eq!(judge(None, &long), Err(message.to_owned()));
        let large = rebalancer(WORKLOADS_MAX, &"w".repeat(100));
        let message = "spec.workloads: Too long: may not be more than 524288 bytes";
        assert_eq!(judge(None, &large), Err(message.to_owned()));
        for stored in [long, large] {
            let mut changed = stored.clone();
            changed["metadata"]["finalizers"] = json!([]);
            assert_eq!(judge(Some(&stored), &changed), Ok(()), "its finalizers may go");
        }
    }
}
