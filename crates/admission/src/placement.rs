//! Checks on placements, cluster affinities and resource selectors that several kinds share.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;

use api::policy::{
    ClusterAffinity, ClusterAffinityTerm, FieldSelector, Placement, ReplicaDivisionPreference,
    ReplicaSchedulingStrategy, ReplicaSchedulingType, ResourceSelector, SpreadConstraint, SpreadFieldValue,
    WorkloadAffinity,
};

use api::go_json;
use serde_json::Value;

use crate::request::{Request, invalid, too_many};

/// So many affinity terms may a placement have. They are tried one after the other in one decision, and users have two or three.
pub(crate) const MAX_TERMS: usize = 100;

/// So many overflow tiers may a term have: each is looked at for each cluster.
pub(crate) const MAX_TIERS: usize = 100;

/// Returns the lists of a placement that are longer than our limits allow.
pub(crate) fn too_long(request: &Request<'_>, object: &Value, placement: &Placement, path: &Path) -> Errors {
    let terms = &placement.cluster_affinities;
    let at = path.child("clusterAffinities");
    if let Some(error) = too_many(request, object, &at, terms.len(), MAX_TERMS) {
        return vec![error];
    }
    let tiers = terms.iter().enumerate().filter_map(|(index, term)| {
        let at = at.index(index).child("overflowAffinities");
        too_many(request, object, &at, term.overflow_affinities.len(), MAX_TIERS)
    });
    tiers.collect()
}

/// Returns what is wrong with a placement.
pub(crate) fn placement(placement: &Placement, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if placement.cluster_affinity.is_some() && !placement.cluster_affinities.is_empty() {
        errors.push(invalid(path, placement, "clusterAffinities cannot co-exist with clusterAffinity"));
    }
    let overflow_allowed = allows_overflow(placement.replica_scheduling.as_ref());
    let terms = path.child("clusterAffinities");
    for (index, term) in placement.cluster_affinities.iter().enumerate() {
        if !term.overflow_affinities.is_empty() && !overflow_allowed {
            errors.push(invalid(
                &terms.index(index).child("overflowAffinities"),
                &term.overflow_affinities,
                "overflowAffinities can only be used together with dynamic weight or aggregated scheduling",
            ));
        }
    }
    errors.extend(affinity(placement.cluster_affinity.as_ref(), &path.child("clusterAffinity")));
    errors.extend(affinity_terms(&placement.cluster_affinities, &terms));
    errors.extend(spread(&placement.spread_constraints, &path.child("spreadConstraints")));
    if let Some(rules) = &placement.workload_affinity {
        errors.extend(workload_affinity(rules, &path.child("workloadAffinity")));
    }
    for (index, toleration) in placement.cluster_tolerations.iter().enumerate() {
        if let Some(operator @ ("Lt" | "Gt")) = toleration.operator.as_deref() {
            errors.push(Error::not_supported(
                &path.child("clusterTolerations").index(index).child("operator"),
                operator,
                &["", "Exists", "Equal"],
            ));
        }
    }
    errors
}

/// Tiers are filled by capacity, which only these two ways of dividing look at.
fn allows_overflow(strategy: Option<&ReplicaSchedulingStrategy>) -> bool {
    let Some(strategy) = strategy else { return false };
    if strategy.replica_scheduling_type != Some(ReplicaSchedulingType::Divided) {
        return false;
    }
    match strategy.replica_division_preference {
        Some(ReplicaDivisionPreference::Aggregated) => true,
        Some(ReplicaDivisionPreference::Weighted) => {
            strategy.weight_preference.as_ref().is_some_and(|weights| weights.dynamic_weight.is_some())
        }
        _ => false,
    }
}

/// Returns what is wrong with a cluster affinity. Label selectors and names are not looked at, as upstream.
pub(crate) fn affinity(affinity: Option<&ClusterAffinity>, path: &Path) -> Errors {
    let Some(selector) = affinity.and_then(|affinity| affinity.field_selector.as_ref()) else {
        return Errors::new();
    };
    match field_selector_fault(selector) {
        Some(fault) => vec![invalid(&path.child("fieldSelector"), selector, fault)],
        None => Errors::new(),
    }
}

/// Returns the first fault of a field selector.
fn field_selector_fault(selector: &FieldSelector) -> Option<String> {
    selector.match_expressions.iter().find_map(|expression| {
        if !matches!(expression.key.as_str(), "provider" | "region" | "zone") {
            return Some(format!("unsupported key {:?}, must be provider, region, or zone", expression.key));
        }
        if !matches!(expression.operator.as_str(), "In" | "NotIn") {
            return Some(format!("unsupported operator {:?}, must be In or NotIn", expression.operator));
        }
        None
    })
}

fn affinity_terms(terms: &[ClusterAffinityTerm], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let (mut seen, mut repeated) = (BTreeSet::new(), false);
    for (index, term) in terms.iter().enumerate() {
        let here = path.index(index);
        for fault in names::qualified_name(&term.affinity_name) {
            errors.push(Error::invalid(&here, term.affinity_name.as_str(), fault));
        }
        // Told once, since it tells the whole list.
        if !seen.insert(term.affinity_name.as_str()) && !std::mem::replace(&mut repeated, true) {
            let fault = "each affinity term in a policy must have a unique name";
            errors.push(invalid(path, &terms.to_vec(), fault));
        }
        errors.extend(affinity(Some(&term.affinity), &here));
        errors.extend(overflow(term, &here.child("overflowAffinities")));
    }
    errors
}

fn overflow(term: &ClusterAffinityTerm, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if term.overflow_affinities.is_empty() {
        return errors;
    }
    let ClusterAffinity { label_selector, field_selector, cluster_names, exclude } = &term.affinity;
    if label_selector.is_none() && field_selector.is_none() && cluster_names.is_empty() && exclude.is_empty()
    {
        errors.push(invalid(
            path,
            &term.overflow_affinities,
            "overflowAffinities can only be used together with the inline ClusterAffinity",
        ));
    }
    let mut seen = BTreeSet::from([term.affinity_name.as_str()]);
    for (index, tier) in term.overflow_affinities.iter().enumerate() {
        let name = path.index(index).child("affinityName");
        for fault in names::qualified_name(&tier.affinity_name) {
            errors.push(Error::invalid(&name, tier.affinity_name.as_str(), fault));
        }
        if !seen.insert(tier.affinity_name.as_str()) {
            errors.push(Error::invalid(
                &name,
                tier.affinity_name.as_str(),
                "overflow affinity name must be unique and must not duplicate the primary group's affinityName",
            ));
        }
        errors.extend(affinity(Some(&tier.affinity), &path.index(index)));
    }
    errors
}

fn spread(constraints: &[SpreadConstraint], path: &Path) -> Errors {
    let mut errors = Errors::new();
    let mut complain = |at: &Path, shown: String, fault: &str| {
        errors.push(Error::invalid(at, Value::Null, fault).showing(shown));
    };
    // How often each field is used; a field is complained about once, at its second use.
    let mut uses: BTreeMap<&SpreadFieldValue, usize> = BTreeMap::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let here = path.index(index);
        let field = constraint.spread_by_field.as_ref();
        if field.is_some() && !constraint.spread_by_label.is_empty() {
            complain(&here, go_json(constraint), "spreadByLabel should not co-exist with spreadByField");
        }
        if constraint.min_groups < 0 {
            complain(&here, go_json(constraint), "minGroups lower than 0 is not allowed");
        }
        if constraint.max_groups < 0 {
            complain(&here, go_json(constraint), "maxGroups lower than 0 is not allowed");
        }
        if constraint.max_groups > 0 && constraint.max_groups < constraint.min_groups {
            complain(&here, go_json(constraint), "maxGroups lower than minGroups is not allowed");
        }
        if let Some(field) = field {
            let count = uses.entry(field).or_insert(0_usize);
            *count = count.saturating_add(1);
            if *count == 2 {
                let fault = format!("multiple {field} spread constraints are not allowed");
                complain(path, go_json(&constraints.to_vec()), &fault);
            }
        }
    }
    if !uses.is_empty() && !uses.contains_key(&SpreadFieldValue::Cluster) {
        complain(
            path,
            go_json(&constraints.to_vec()),
            "the cluster spread constraint must be enabled in one of the constraints in case of SpreadByField is \
             enabled",
        );
    }
    errors
}

fn workload_affinity(rules: &WorkloadAffinity, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (name, term) in [("affinity", &rules.affinity), ("antiAffinity", &rules.anti_affinity)] {
        let Some(term) = term else { continue };
        for fault in names::qualified_name(&term.group_by_label_key) {
            let at = path.child(name).child("groupByLabelKey");
            errors.push(Error::invalid(&at, term.group_by_label_key.as_str(), fault));
        }
    }
    if let (Some(together), Some(apart)) = (&rules.affinity, &rules.anti_affinity)
        && together.group_by_label_key == apart.group_by_label_key
    {
        let fault = "affinity and antiAffinity must not use the same groupByLabelKey";
        errors.push(invalid(path, rules, fault));
    }
    errors
}

/// Returns what is wrong with the selectors of a policy in this namespace; a cluster-scoped policy has none.
pub(crate) fn selectors(selectors: &[ResourceSelector], namespace: &str, path: &Path) -> Errors {
    if namespace.is_empty() {
        return Errors::new();
    }
    selectors
        .iter()
        .enumerate()
        .filter(|(_, selector)| selector.namespace != namespace)
        .map(|(index, selector)| {
            Error::invalid(
                &path.index(index).child("namespace"),
                selector.namespace.as_str(),
                "namespace of resource selector must be the same as the namespace of the policy",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Operation;

    fn check(value: Value, expected: &[&str]) {
        let value: Placement = serde_json::from_value(value).unwrap();
        let found: Vec<String> = placement(&value, &Path::new("spec.placement"))
            .iter()
            .map(|error| format!("{} {}", error.field, error.detail))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn finding_25_a_placement_has_only_so_many_terms_and_tiers() {
        let long = |terms: usize, tiers: usize, stored: bool| {
            let tiers: Vec<Value> =
                (0..tiers).map(|index| json!({ "affinityName": format!("o{index}") })).collect();
            let terms: Vec<Value> = (0..terms)
                .map(|index| json!({ "affinityName": format!("t{index}"), "overflowAffinities": tiers }))
                .collect();
            let object = json!({ "spec": { "placement": { "clusterAffinities": terms } } });
            let placement: Placement = serde_json::from_value(object["spec"]["placement"].clone()).unwrap();
            let request = Request {
                operation: Operation::Update,
                group: "policy.karmada.io",
                version: "v1alpha1",
                kind: "PropagationPolicy",
                namespace: "ns",
                old: stored.then_some(&object),
            };
            let errors = too_long(&request, &object, &placement, &Path::new("spec.placement"));
            errors.iter().map(ToString::to_string).collect::<Vec<String>>()
        };
        assert!(long(MAX_TERMS, MAX_TIERS, false).is_empty());
        assert_eq!(
            long(MAX_TERMS + 1, 0, false),
            ["spec.placement.clusterAffinities: Too many: 101: must have at most 100 items"]
        );
        assert_eq!(
            long(1, MAX_TIERS + 1, false),
            [
                "spec.placement.clusterAffinities[0].overflowAffinities: Too many: 101: must have at most 100 items"
            ]
        );
        assert!(long(MAX_TERMS + 1, 0, true).is_empty(), "it was stored before, and is not changed");
    }

    #[test]
    fn names_that_repeat_are_told_once() {
        let term = ClusterAffinityTerm { affinity_name: "a".to_owned(), ..ClusterAffinityTerm::default() };
        let errors = affinity_terms(&vec![term; 1000], &Path::new("spec"));
        assert_eq!(errors.len(), 1, "each tells the whole list");
    }

    #[test]
    fn a_plain_placement_is_fine() {
        check(json!({}), &[]);
        check(json!({ "clusterAffinity": { "clusterNames": ["m1"] } }), &[]);
    }

    #[test]
    fn one_group_and_several_groups_exclude_each_other() {
        check(
            json!({ "clusterAffinity": {}, "clusterAffinities": [{ "affinityName": "a" }] }),
            &["spec.placement clusterAffinities cannot co-exist with clusterAffinity"],
        );
    }

    #[test]
    fn field_selectors_know_three_keys_and_two_operators() {
        check(
            json!({ "clusterAffinity": { "fieldSelector": { "matchExpressions": [
                { "key": "provider", "operator": "Exists" },
                { "key": "planet", "operator": "In" },
            ] } } }),
            &[
                "spec.placement.clusterAffinity.fieldSelector unsupported operator \"Exists\", must be In or NotIn",
            ],
        );
    }

    #[test]
    fn a_field_is_used_once_and_clusters_are_always_counted() {
        check(
            json!({ "spreadConstraints": [
                { "spreadByField": "region", "minGroups": 1 },
                { "spreadByField": "region", "minGroups": 1 },
                { "spreadByField": "region", "minGroups": 3, "maxGroups": 2 },
            ] }),
            &[
                "spec.placement.spreadConstraints multiple region spread constraints are not allowed",
                "spec.placement.spreadConstraints[2] maxGroups lower than minGroups is not allowed",
                "spec.placement.spreadConstraints the cluster spread constraint must be enabled in one of the \
                 constraints in case of SpreadByField is enabled",
            ],
        );
    }

    #[test]
    fn overflow_needs_a_group_and_a_way_of_dividing_that_knows_capacity() {
        let term = json!([{ "affinityName": "a", "overflowAffinities": [{ "affinityName": "a" }] }]);
        check(
            json!({ "clusterAffinities": term.clone() }),
            &[
                "spec.placement.clusterAffinities[0].overflowAffinities overflowAffinities can only be used together \
                 with dynamic weight or aggregated scheduling",
                "spec.placement.clusterAffinities[0].overflowAffinities overflowAffinities can only be used together \
                 with the inline ClusterAffinity",
                "spec.placement.clusterAffinities[0].overflowAffinities[0].affinityName overflow affinity name must \
                 be unique and must not duplicate the primary group's affinityName",
            ],
        );
        check(
            json!({
                "clusterAffinities": [{
                    "affinityName": "a", "clusterNames": ["m1"], "overflowAffinities": [{ "affinityName": "b" }],
                }],
                "replicaScheduling": {
                    "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated",
                },
            }),
            &[],
        );
    }

    #[test]
    fn workloads_cannot_seek_and_avoid_the_same_group() {
        check(
            json!({ "workloadAffinity": {
                "affinity": { "groupByLabelKey": "app" }, "antiAffinity": { "groupByLabelKey": "app" },
            } }),
            &[
                "spec.placement.workloadAffinity affinity and antiAffinity must not use the same groupByLabelKey",
            ],
        );
    }

    #[test]
    fn cluster_taints_are_not_compared_as_numbers() {
        check(
            json!({ "clusterTolerations": [{ "key": "a", "operator": "Gt", "value": "1" }] }),
            &["spec.placement.clusterTolerations[0].operator supported values: \"\", \"Exists\", \"Equal\""],
        );
    }
}
