//! FederatedResourceQuota: names and amounts of resources, and whether the shares of clusters fit into the whole.

use std::collections::BTreeMap;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::object::Object as _;
use apimachinery::quantity::Quantity;
use serde_json::Value;

use api::policy::{FederatedResourceQuotaSpec, FederatedResourceQuotaStatus, ResourceList};

use crate::cluster::name_faults;
use crate::request::{Denial, deny_if_any, part, spec};
use crate::{resources, usage};

/// The name becomes the value of a label, which may be no longer.
const NAME_MAX_LENGTH: usize = 63;

pub(crate) fn validate(object: &Value) -> Result<(), Denial> {
    let mut errors = Errors::new();
    let name = object.name();
    if name.len() > NAME_MAX_LENGTH {
        let at = Path::new("metadata").child("name");
        errors.push(Error::invalid(&at, name, format!("must be no more than {NAME_MAX_LENGTH} characters")));
    }
    errors.extend(check_spec(&spec(object)?, &Path::new("spec")));
    errors.extend(check_status(&part(object, "status")?, &Path::new("status")));
    deny_if_any(&errors)
}

fn check_spec(quota: &FederatedResourceQuotaSpec, path: &Path) -> Errors {
    let mut errors = amounts(&quota.overall, &path.child("overall"));
    let assignments = path.child("staticAssignments");
    for (index, assignment) in quota.static_assignments.iter().enumerate() {
        let here = assignments.index(index);
        errors.extend(cluster_name(&assignment.cluster_name, &here));
        errors.extend(amounts(&assignment.hard, &here.child("hard")));
    }
    // Summed in one pass: a body has room for tens of thousands of names and as many assignments.
    let mut shares: BTreeMap<&str, Quantity> = BTreeMap::new();
    for (name, share) in quota.static_assignments.iter().flat_map(|assignment| &assignment.hard) {
        usage::add(shares.entry(name).or_default(), resources::amount(share));
    }
    for (name, overall) in &quota.overall {
        let assigned = shares.remove(name.as_str()).unwrap_or_default();
        let whole = resources::amount(overall);
        if whole < assigned {
            let at = path.child("overall").key(name);
            errors.push(Error::invalid(&at, whole.to_string(), "overall is less than assignments"));
        }
    }
    for (index, assignment) in quota.static_assignments.iter().enumerate() {
        let here = assignments.index(index).child("hard");
        for name in assignment.hard.keys().filter(|name| !quota.overall.contains_key(*name)) {
            let fault = "assignment resourceName is not exist in overall";
            errors.push(Error::invalid(&here.key(name), name.as_str(), fault));
        }
    }
    errors
}

/// A write to the object itself carries the stored status, and upstream looks at it again.
fn check_status(status: &FederatedResourceQuotaStatus, path: &Path) -> Errors {
    let mut errors = amounts(&status.overall, &path.child("overall"));
    errors.extend(amounts(&status.overall_used, &path.child("overallUsed")));
    for (index, cluster) in status.aggregated_status.iter().enumerate() {
        let here = path.child("aggregatedStatus").index(index);
        errors.extend(cluster_name(&cluster.cluster_name, &here));
        errors.extend(amounts(&cluster.hard, &here.child("hard")));
        errors.extend(amounts(&cluster.used, &here.child("used")));
    }
    errors
}

fn cluster_name(name: &str, path: &Path) -> Option<Error> {
    let faults = name_faults(name);
    (!faults.is_empty()).then(|| Error::invalid(&path.child("clusterName"), name, faults.join(",")))
}

/// Returns what is wrong with a list of resources, in the order of their names: Go's order changes from run to run.
fn amounts(list: &ResourceList, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (name, amount) in list {
        let at = path.key(name);
        let faults = names::qualified_name(name);
        let mut complain = |fault: &str| errors.push(Error::invalid(&at, name.as_str(), fault));
        faults.iter().for_each(|fault| complain(fault));
        if !name.contains('/') {
            if faults.is_empty() && !resources::is_standard(name) {
                complain("must be a standard resource type or fully qualified");
            }
            if !resources::is_standard_for_quota(name) {
                complain("must be a standard resource for quota");
            }
        }
        let amount = resources::amount(amount);
        if amount.sign() < 0 {
            let fault = "must be greater than or equal to 0";
            errors.push(Error::invalid(&at, amount.to_string(), fault));
        }
        if resources::is_integer(name) && amount.milli_value() % 1000 != 0 {
            errors.push(Error::invalid(&at, amount.to_string(), "must be an integer"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(spec: Value) -> Vec<String> {
        check_spec(&serde_json::from_value(spec).unwrap(), &Path::new("spec"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn shares_that_fit_into_the_whole_are_fine() {
        let spec = json!({
            "overall": { "cpu": "2", "requests.hugepages-2Mi": "1Gi", "example.com/gpu": "4" },
            "staticAssignments": [
                { "clusterName": "m1", "hard": { "cpu": "500m" } },
                { "clusterName": "m2", "hard": { "cpu": "1500m" } },
            ],
        });
        assert_eq!(faults(spec), Vec::<String>::new());
    }

    #[test]
    fn finding_25_very_many_names_and_shares_are_summed_in_one_pass() {
        let names: Vec<String> = (0..20_000).map(|index| format!("example.com/r{index}")).collect();
        let overall: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!("2"))).collect();
        let share = |index: usize| json!({ "clusterName": "m", "hard": { names[index % names.len()].as_str(): "1" } });
        let assignments: Vec<Value> = (0..names.len() * 2).map(share).collect();
        let mut spec = json!({ "overall": overall, "staticAssignments": assignments });
        assert_eq!(faults(spec.clone()), Vec::<String>::new());
        spec["overall"]["example.com/r7"] = json!("1500m");
        let found = faults(spec);
        assert!(
            found[0].contains("[example.com/r7]") && found[0].contains("must be an integer"),
            "{found:?}"
        );
        assert!(
            found[1].contains("[example.com/r7]") && found[1].ends_with("overall is less than assignments")
        );
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn shares_may_be_neither_larger_than_the_whole_nor_of_something_else() {
        let spec = json!({
            "overall": { "cpu": "1" },
            "staticAssignments": [
                { "clusterName": "m1", "hard": { "cpu": "1", "memory": "1Gi" } },
                { "clusterName": "M2", "hard": { "cpu": "1m" } },
            ],
        });
        let found = faults(spec);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("spec.staticAssignments[1].clusterName: Invalid value: \"M2\""));
        assert_eq!(found[1], "spec.overall[cpu]: Invalid value: \"1\": overall is less than assignments");
        assert_eq!(
            found[2],
            "spec.staticAssignments[0].hard[memory]: Invalid value: \"memory\": assignment resourceName is not exist in \
             overall"
        );
    }

    #[test]
    fn only_known_or_qualified_resources_in_whole_numbers_where_they_are_counted() {
        let spec = json!({ "overall": {
            "bananas": "1", "storage": "1Gi", "pods": "1500m", "cpu": "-1", "bad name": "1",
        } });
        let found = faults(spec);
        assert_eq!(found.len(), 8, "{found:?}");
        assert!(found[0].contains("bad name"), "{found:?}");
        assert!(found[1].ends_with("must be a standard resource for quota"), "{found:?}");
        assert!(found[2].ends_with("must be a standard resource type or fully qualified"), "{found:?}");
        assert!(found[3].ends_with("must be a standard resource for quota"), "{found:?}");
        assert_eq!(found[4], "spec.overall[cpu]: Invalid value: \"-1\": must be greater than or equal to 0");
        assert_eq!(found[5], "spec.overall[pods]: Invalid value: \"1500m\": must be an integer");
        assert!(found[6].starts_with("spec.overall[storage]"), "{found:?}");
        assert!(found[7].ends_with("overall is less than assignments"), "less than nothing: {found:?}");
    }
}
