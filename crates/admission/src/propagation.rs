//! PropagationPolicy and ClusterPropagationPolicy.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use ::propagation::eviction::older_purge_mode;
use api::Kind;
use api::policy::{
    ApplicationFailoverBehavior, FailoverBehavior, PreemptionBehavior, Propagation, PropagationSpec,
    PurgeMode, ReplicaDivisionPreference, ReplicaSchedulingType, SpreadFieldValue, StatePreservation,
};

use crate::placement;
use crate::request::{
    Denial, Means, Operation, Request, add_finalizer, deny_if_any, invalid, label, set_label, set_spec_with,
    spec,
};

/// How long a failover waits for the new copy unless told otherwise, in seconds.
const DEFAULT_GRACE_PERIOD: i32 = 600;

pub(crate) fn mutate<P: Propagation>(
    request: &Request<'_>,
    object: &mut Value,
    means: &mut Means<'_>,
) -> Result<(), Denial> {
    let mut policy: PropagationSpec = spec(object)?;
    rename_purge_modes(&mut policy, &mut means.warnings);
    fill(&mut policy, if <P as Kind>::NAMESPACED { request.namespace } else { "" });
    set_spec_with(object, &policy, &["resourceSelectors"]);
    if request.operation == Operation::Create {
        // A supplied ID is replaced: two policies with one ID would fight for the same resources.
        set_label(object, P::PERMANENT_ID, (means.fresh_id)());
        add_finalizer(object, P::FINALIZER);
    }
    Ok(())
}

/// Takes the purge modes of Karmada up to v1.18 as what they are called now, and says so.
fn rename_purge_modes(policy: &mut PropagationSpec, warnings: &mut Vec<String>) {
    let Some(failover) = &mut policy.failover else { return };
    let modes = [
        ("application", failover.application.as_mut().and_then(|behaviour| behaviour.purge_mode.as_mut())),
        ("cluster", failover.cluster.as_mut().and_then(|behaviour| behaviour.purge_mode.as_mut())),
    ];
    for (cause, mode) in modes {
        if let Some(mode) = mode
            && let Some(renamed) = older_purge_mode(mode.as_str())
        {
            warnings.push(format!(
                "spec.failover.{cause}.purgeMode: {mode} is deprecated and stored as {renamed}; use {renamed}"
            ));
            *mode = renamed;
        }
    }
}

/// Fills in what the user left to the system.
fn fill(policy: &mut PropagationSpec, namespace: &str) {
    for selector in &mut policy.resource_selectors {
        if selector.namespace.is_empty() {
            selector.namespace = namespace.to_owned();
        }
    }
    for constraint in &mut policy.placement.spread_constraints {
        if constraint.spread_by_field.is_none() && constraint.spread_by_label.is_empty() {
            constraint.spread_by_field = Some(SpreadFieldValue::Cluster);
        }
        if constraint.min_groups == 0 {
            constraint.min_groups = 1;
        }
    }
    // An imported Service is of no use without its endpoints.
    let imports_service = policy.resource_selectors.iter().any(|selector| {
        selector.api_version == "multicluster.x-k8s.io/v1alpha1" && selector.kind == "ServiceImport"
    });
    if imports_service {
        policy.propagate_deps = true;
    }
    if let Some(strategy) = &mut policy.placement.replica_scheduling
        && strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided)
        && strategy.replica_division_preference.is_none()
    {
        strategy.replica_division_preference = Some(ReplicaDivisionPreference::Weighted);
    }
    if let Some(application) = policy.failover.as_mut().and_then(|failover| failover.application.as_mut())
        && application.purge_mode == Some(PurgeMode::Gracefully)
    {
        application.grace_period_seconds.get_or_insert(DEFAULT_GRACE_PERIOD);
    }
}

pub(crate) fn validate<P: Propagation>(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let policy: PropagationSpec = spec(object)?;
    let at = Path::new("spec").child("placement");
    deny_if_any(&placement::too_long(request, object, &policy.placement, &at))?;
    if let (Operation::Update, Some(old)) = (request.operation, request.old) {
        if policy.scheduler_name != spec::<PropagationSpec>(old)?.scheduler_name {
            return Err(Denial::forbidden("the schedulerName should not be updated"));
        }
        let id = |object| label(object, P::PERMANENT_ID).unwrap_or_default();
        if id(object) != id(old) {
            return Err(Denial::forbidden(format!(
                "label {} is immutable, it can only be set by the system during creation",
                P::PERMANENT_ID
            )));
        }
    }
    if label(object, P::PERMANENT_ID).is_none() {
        return Err(Denial::forbidden(format!(
            "label {} is required, it should be set by the mutating admission webhook during creation",
            P::PERMANENT_ID
        )));
    }
    let namespace = if <P as Kind>::NAMESPACED { request.namespace } else { "" };
    deny_if_any(&check(&policy, namespace))
}

fn check(policy: &PropagationSpec, namespace: &str) -> Errors {
    let path = Path::new("spec");
    let mut errors = placement::placement(&policy.placement, &path.child("placement"));
    let fails_over = policy.failover.as_ref().is_some_and(|failover| failover.application.is_some());
    if fails_over && !policy.propagate_deps {
        errors.push(Error::invalid(
            &path.child("propagateDeps"),
            policy.propagate_deps,
            "application failover is set, propagateDeps must be true",
        ));
    }
    if let Some(behaviour) = &policy.failover {
        errors.extend(failover(behaviour, &path.child("failover")));
    }
    let selectors = path.child("resourceSelectors");
    errors.extend(placement::selectors(&policy.resource_selectors, namespace, &selectors));
    if policy.preemption == Some(PreemptionBehavior::Always) {
        for (index, selector) in policy.resource_selectors.iter().enumerate() {
            if selector.name.is_empty() {
                errors.push(Error::invalid(
                    &selectors.index(index).child("name"),
                    "",
                    "name cannot be empty if preemption is Always, the empty name may cause unexpected resources \
                     preemption",
                ));
            }
        }
    }
    if let Some(suspension) = &policy.suspension {
        let some_clusters = suspension
            .dispatching_on_clusters
            .as_ref()
            .is_some_and(|clusters| !clusters.cluster_names.is_empty());
        if suspension.dispatching == Some(true) && some_clusters {
            // The doubled path is upstream's.
            errors.push(invalid(
                &path.child("suspension").child("suspension"),
                suspension,
                "suspension dispatching cannot co-exist with dispatchingOnClusters.clusterNames",
            ));
        }
    }
    errors
}

fn failover(behaviour: &FailoverBehavior, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(application) = &behaviour.application {
        errors.extend(application_failover(application, &path.child("application")));
    }
    if let Some(cluster) = &behaviour.cluster {
        errors.extend(preserved_state(cluster.state_preservation.as_ref(), &path.child("cluster")));
    }
    errors
}

fn application_failover(application: &ApplicationFailoverBehavior, path: &Path) -> Errors {
    let mut errors = Errors::new();
    if let Some(seconds) = application.decision_conditions.toleration_seconds.filter(|seconds| *seconds < 0) {
        errors.push(Error::invalid(
            &path.child("decisionConditions").child("tolerationSeconds"),
            seconds,
            "must be greater than or equal to 0",
        ));
    }
    let grace = path.child("gracePeriodSeconds");
    let gracefully = application.purge_mode == Some(PurgeMode::Gracefully);
    match application.grace_period_seconds {
        Some(seconds) if !gracefully => {
            errors.push(Error::invalid(&grace, seconds, "only takes effect when purgeMode is gracefully"));
        }
        None if gracefully => {
            errors.push(Error::invalid(
                &grace,
                Value::Null,
                "should not be empty when purgeMode is gracefully",
            ));
        }
        _ => {}
    }
    if let Some(seconds) = application.grace_period_seconds.filter(|seconds| *seconds <= 0) {
        errors.push(Error::invalid(&grace, seconds, "must be greater than 0"));
    }
    errors.extend(preserved_state(application.state_preservation.as_ref(), path));
    errors
}

fn preserved_state(state: Option<&StatePreservation>, path: &Path) -> Errors {
    let mut errors = Errors::new();
    for (index, rule) in state.into_iter().flat_map(|state| &state.rules).enumerate() {
        let at = path.child("statePreservation").child("rules").index(index).child("aliasLabelName");
        for fault in names::qualified_name(&rule.alias_label_name) {
            errors.push(Error::invalid(&at, rule.alias_label_name.as_str(), fault));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID as ID};

    use super::*;
    use crate::request::means;
    use crate::{Settings, mutate, validate};

    fn request<'a>(
        operation: Operation,
        kind: &'a str,
        namespace: &'a str,
        old: Option<&'a Value>,
    ) -> Request<'a> {
        Request { operation, group: "policy.karmada.io", version: "v1alpha1", kind, namespace, old }
    }

    fn created(kind: &str, namespace: &str, mut object: Value) -> Value {
        mutate(
            &request(Operation::Create, kind, namespace, None),
            &mut object,
            &mut means(&mut || "fresh".to_owned()),
        )
        .unwrap();
        object
    }

    fn policy(spec: Value) -> Value {
        json!({ "metadata": { "name": "p", "labels": { ID: "supplied", "mine": "kept" } }, "spec": spec })
    }

    fn verdict(object: &Value) -> String {
        match validate(
            &request(Operation::Create, "PropagationPolicy", "ns", None),
            object,
            &Settings::default(),
            &[],
        ) {
            Ok(_) => "allowed".to_owned(),
            Err(denial) => denial.message,
        }
    }

    #[test]
    fn creation_fills_what_the_user_left_open() {
        let object = created(
            "PropagationPolicy",
            "ns",
            policy(json!({
                "resourceSelectors": [{ "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport" }],
                "placement": {
                    "spreadConstraints": [{}],
                    "replicaScheduling": { "replicaSchedulingType": "Divided" },
                },
                "failover": { "application": { "decisionConditions": {}, "purgeMode": "Gracefully" } },
            })),
        );
        assert_eq!(object["metadata"]["labels"], json!({ ID: "fresh", "mine": "kept" }));
        assert_eq!(object["metadata"]["finalizers"], json!(["karmada.io/propagation-policy-controller"]));
        let spec = &object["spec"];
        assert_eq!(spec["resourceSelectors"][0]["namespace"], "ns");
        assert_eq!(spec["propagateDeps"], true);
        assert_eq!(
            spec["placement"]["spreadConstraints"],
            json!([{ "spreadByField": "cluster", "minGroups": 1 }])
        );
        assert_eq!(spec["placement"]["replicaScheduling"]["replicaDivisionPreference"], "Weighted");
        assert_eq!(spec["failover"]["application"]["gracePeriodSeconds"], 600);
        assert_eq!(verdict(&object), "allowed");
    }

    #[test]
    fn an_empty_choice_counts_as_absent() {
        let object = created(
            "PropagationPolicy",
            "ns",
            policy(json!({
                "resourceSelectors": [{ "apiVersion": "apps/v1", "kind": "Deployment" }],
                "preemption": "", "conflictResolution": "", "activationPreference": "",
                "placement": {
                    "spreadConstraints": [
                        { "spreadByField": "" },
                        { "spreadByField": "", "spreadByLabel": "team", "minGroups": 2 },
                    ],
                    "replicaScheduling": {
                        "replicaSchedulingType": "Divided", "replicaDivisionPreference": "",
                        "weightPreference": { "dynamicWeight": "" },
                    },
                },
                "failover": { "cluster": { "purgeMode": "" } },
            })),
        );
        let spec = &object["spec"];
        for field in ["preemption", "conflictResolution", "activationPreference"] {
            assert_eq!(spec.get(field), None, "{field}: the schema refuses it, or has a default for it");
        }
        assert_eq!(
            spec["placement"],
            json!({
                "spreadConstraints": [
                    { "spreadByField": "cluster", "minGroups": 1 },
                    { "spreadByLabel": "team", "minGroups": 2 },
                ],
                "replicaScheduling": {
                    "replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted",
                    "weightPreference": {},
                },
            })
        );
        assert_eq!(spec["failover"], json!({ "cluster": {} }));
        assert_eq!(verdict(&object), "allowed");

        let unknown = json!({ "resourceSelectors": [], "activationPreference": "Never" });
        let kept = created("PropagationPolicy", "ns", policy(unknown));
        assert_eq!(kept["spec"]["activationPreference"], "Never", "the schema refuses what it does not know");
    }

    #[test]
    fn a_cluster_policy_gets_no_namespaces_but_its_own_label() {
        let object = created(
            "ClusterPropagationPolicy",
            "",
            json!({ "metadata": { "name": "c" },
                "spec": { "resourceSelectors": [{ "apiVersion": "v1", "kind": "Pod" }] } }),
        );
        assert_eq!(object["metadata"]["labels"][CLUSTER_PROPAGATION_POLICY_PERMANENT_ID], "fresh");
        assert!(object["spec"]["resourceSelectors"][0].get("namespace").is_none());
        assert_eq!(object["spec"]["placement"], json!({}), "an empty placement is written out");
    }

    #[test]
    fn older_purge_modes_are_renamed_with_a_warning() {
        let older = |application: &str, cluster: &str| {
            let behaviour = json!({ "decisionConditions": {}, "purgeMode": application });
            let failover = json!({ "application": behaviour, "cluster": { "purgeMode": cluster } });
            let mut object = policy(json!({ "resourceSelectors": [], "failover": failover }));
            let request = request(Operation::Update, "PropagationPolicy", "ns", None);
            let mut fresh_id = || panic!("no ID is needed");
            let mut means = means(&mut fresh_id);
            mutate(&request, &mut object, &mut means).unwrap();
            let modes = ["application", "cluster"]
                .map(|cause| object["spec"]["failover"][cause]["purgeMode"].clone());
            (modes, object["spec"]["failover"]["application"]["gracePeriodSeconds"].clone(), means.warnings)
        };
        let (modes, grace, warnings) = older("Graciously", "Immediately");
        assert_eq!((modes, grace), ([json!("Gracefully"), json!("Directly")], json!(600)));
        assert_eq!(
            warnings,
            [
                "spec.failover.application.purgeMode: Graciously is deprecated and stored as Gracefully; use Gracefully",
                "spec.failover.cluster.purgeMode: Immediately is deprecated and stored as Directly; use Directly",
            ]
        );
        assert_eq!(older("Never", "Directly").2, [""; 0]);
    }

    #[test]
    fn an_update_keeps_the_label_and_adds_no_finalizer() {
        let mut object = policy(json!({ "resourceSelectors": [] }));
        let request = request(Operation::Update, "PropagationPolicy", "ns", None);
        mutate(&request, &mut object, &mut means(&mut || panic!("no ID is needed"))).unwrap();
        assert_eq!(object["metadata"]["labels"][ID], "supplied");
        assert!(object["metadata"].get("finalizers").is_none());
    }

    #[test]
    fn scheduler_and_permanent_id_cannot_be_changed() {
        let old = policy(json!({ "schedulerName": "default-scheduler" }));
        let request = request(Operation::Update, "PropagationPolicy", "ns", Some(&old));
        let judge = |object: &Value| {
            validate(&request, object, &Settings::default(), &[]).map(|_| ()).map_err(|d| d.message)
        };
        assert_eq!(judge(&old), Ok(()));
        let other = policy(json!({ "schedulerName": "mine" }));
        assert_eq!(judge(&other).unwrap_err(), "the schedulerName should not be updated");
        let mut other = old.clone();
        other["metadata"]["labels"][ID] = json!("else");
        assert!(judge(&other).unwrap_err().ends_with("it can only be set by the system during creation"));
    }

    #[test]
    fn rules_of_the_spec_are_checked_in_order() {
        let spec = json!({
            "resourceSelectors": [{ "apiVersion": "v1", "kind": "Pod", "namespace": "other" }],
            "preemption": "Always",
            "failover": { "application": {
                "decisionConditions": { "tolerationSeconds": -1 }, "purgeMode": "Directly", "gracePeriodSeconds": 0,
                "statePreservation": { "rules": [{ "aliasLabelName": "no good", "jsonPath": "{.x}" }] },
            } },
            "suspension": { "dispatching": true, "dispatchingOnClusters": { "clusterNames": ["m1"] } },
        });
        let fields: Vec<String> = check(&serde_json::from_value(spec).unwrap(), "ns")
            .iter()
            .map(|error| error.field.clone())
            .collect();
        assert_eq!(
            fields,
            [
                "spec.propagateDeps",
                "spec.failover.application.decisionConditions.tolerationSeconds",
                "spec.failover.application.gracePeriodSeconds",
                "spec.failover.application.gracePeriodSeconds",
                "spec.failover.application.statePreservation.rules[0].aliasLabelName",
                "spec.resourceSelectors[0].namespace",
                "spec.resourceSelectors[0].name",
                "spec.suspension.suspension",
            ]
        );
    }

    #[test]
    fn a_policy_without_permanent_id_is_refused() {
        assert!(
            verdict(&json!({ "metadata": { "name": "p" }, "spec": {} }))
                .starts_with("label propagationpolicy")
        );
    }
}
