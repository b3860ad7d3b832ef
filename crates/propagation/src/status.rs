//! The way back: from the status of Works to the binding, and from there to the template.

use api::conditions::{binding as binding_conditions, work as work_conditions};
use api::work::{
    AggregatedStatusItem, ManifestStatus, ObjectReference, ResourceBindingSpec, ResourceHealth,
    ResourceIdentifier, Work,
};
use apimachinery::gvk::Gvk;
use apimachinery::object::{child, fields};
use apimachinery::patch::merge::drop_nulls;
use interpreter::{Interpreter, Operation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::Value;

use crate::binding::key;
use crate::{Binding, Error, Object, Reference as _, Result, expected_clusters};

const FULLY_APPLIED_MESSAGE: &str = "All works have been successfully applied";
const NOT_FULLY_APPLIED_MESSAGE: &str = "Failed to apply all works, see status.aggregatedStatus for details";

/// What the clusters report about an object.
#[derive(Debug, Default)]
pub struct Reports {
    /// One per cluster, sorted by its name.
    pub items: Vec<AggregatedStatusItem>,
    /// The Works that do not count, and why.
    pub skipped: Vec<Error>,
}

/// Sums up what Works report about the object: one Work for each cluster, the one that has the name that we give it if there
/// are several. Works that are being deleted no longer count.
///
/// An agent writes Works of its own cluster, with any label. One that does not fit is ignored: it must not
/// block what the other clusters report.
pub fn aggregate<'a>(works: impl IntoIterator<Item = &'a Work>, object: &ObjectReference) -> Reports {
    let ours = api::names::work(&object.kind, &object.name, &object.namespace);
    let rank = |work: &Work| (work.metadata.name.as_deref() != Some(&ours), work.metadata.name.clone());
    let mut works: Vec<&Work> =
        works.into_iter().filter(|work| work.metadata.deletion_timestamp.is_none()).collect();
    works.sort_by_cached_key(|work| (work.metadata.namespace.clone(), rank(work)));
    let (mut reports, mut last) = (Reports::default(), None::<&Work>);
    for work in works {
        let counted = last.filter(|last| last.metadata.namespace == work.metadata.namespace);
        match (item(work, object), counted) {
            (Err(error), _) => reports.skipped.push(error),
            (Ok(_), Some(counted)) => reports
                .skipped
                .push(Error::SecondWork { work: key(&work.metadata), counted: key(&counted.metadata) }),
            (Ok(item), None) => {
                reports.items.push(item);
                last = Some(work);
            }
        }
    }
    reports.items.sort_by(|left, right| left.cluster_name.cmp(&right.cluster_name));
    reports
}

fn item(work: &Work, object: &ObjectReference) -> Result<AggregatedStatusItem> {
    let ordinal = ordinal(work, object)?;
    let namespace = work.metadata.namespace.as_deref().unwrap_or("");
    let cluster = api::names::cluster_of_execution_space(namespace)
        .ok_or_else(|| Error::NotAnExecutionSpace { namespace: namespace.to_owned() })?;
    let mut item = AggregatedStatusItem {
        cluster_name: cluster.to_owned(),
        health: Some(ResourceHealth::Unknown),
        ..AggregatedStatusItem::default()
    };
    let applied = work.status.conditions.iter().find(|condition| condition.type_ == work_conditions::APPLIED);
    match applied {
        Some(condition) if condition.status == "True" => item.applied = true,
        Some(condition) => item.applied_message = condition.message.clone(),
        None => {}
    }
    if !item.applied {
        return Ok(item);
    }
    let identifier = identifier(ordinal, object);
    let same = |status: &&ManifestStatus| {
        // The plural resource name is left empty by some writers and is not part of the identity.
        ResourceIdentifier { resource: String::new(), ..status.identifier.clone() } == identifier
    };
    if let Some(status) = work.status.manifest_statuses.iter().find(same) {
        item.status = status.status.clone().map(without_nulls);
        item.health = status.health.clone();
    }
    Ok(item)
}

fn ordinal(work: &Work, object: &ObjectReference) -> Result<i64> {
    let index = work.spec.workload.manifests.iter().position(|manifest| {
        manifest.api_version() == object.api_version
            && manifest.kind() == object.kind
            && manifest.namespace() == object.namespace
            && manifest.name() == object.name
    });
    index.and_then(|index| i64::try_from(index).ok()).ok_or_else(|| Error::NoSuchManifest {
        work: key(&work.metadata),
        object: format!("{} {}", object.kind, api::names::namespaced_key(&object.namespace, &object.name)),
    })
}

fn identifier(ordinal: i64, object: &ObjectReference) -> ResourceIdentifier {
    let kind = Gvk::from_api_version(&object.api_version, &object.kind);
    ResourceIdentifier {
        ordinal,
        group: kind.group,
        version: kind.version,
        kind: kind.kind,
        resource: String::new(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    }
}

/// Returns the FullyApplied condition. True when every cluster that should have a Work applied it, and no other
/// one reports.
pub fn fully_applied(
    spec: &ResourceBindingSpec,
    items: &[AggregatedStatusItem],
    now: Timestamp,
) -> Condition {
    let expected = expected_clusters(spec);
    let complete = !expected.is_empty()
        && expected.len() == items.len()
        && items.iter().all(|item| item.applied && expected.contains(item.cluster_name.as_str()));
    let (status, reason, message) = if complete {
        ("True", binding_conditions::REASON_FULLY_APPLIED, FULLY_APPLIED_MESSAGE)
    } else {
        ("False", binding_conditions::REASON_NOT_FULLY_APPLIED, NOT_FULLY_APPLIED_MESSAGE)
    };
    condition(binding_conditions::FULLY_APPLIED, status, reason, message, now)
}

/// Returns a condition as of `now`.
pub fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(whole_seconds(now)),
        observed_generation: None,
    }
}

/// Kubernetes times have whole seconds; more would be cut on the way through the API and look like a change.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Sets a condition; returns whether anything changed. The transition time moves only with the status.
pub fn set_condition(conditions: &mut Vec<Condition>, new: Condition) -> bool {
    let Some(old) = conditions.iter_mut().find(|condition| condition.type_ == new.type_) else {
        conditions.push(new);
        return true;
    };
    let transition = if old.status == new.status {
        old.last_transition_time.clone()
    } else {
        new.last_transition_time.clone()
    };
    let new = Condition { last_transition_time: transition, ..new };
    let changed = *old != new;
    *old = new;
    changed
}

/// Writes what the clusters report into the binding's status; returns whether it changed.
pub fn update_binding<B: Binding>(binding: &mut B, items: &[AggregatedStatusItem], now: Timestamp) -> bool {
    let condition = fully_applied(binding.spec(), items, now);
    let status = binding.status_mut();
    let mut changed = status.aggregated_status != items;
    if changed {
        status.aggregated_status = items.to_vec();
    }
    changed |= set_condition(&mut status.conditions, condition);
    changed
}

/// Returns the template with the members' reports in its status, or `None` when its kind has no rule for that or
/// its status is right already.
pub async fn update_template(
    template: &Value,
    items: &[AggregatedStatusItem],
    interpreter: &Interpreter,
    now: Timestamp,
) -> Result<Option<Value>> {
    if !interpreter.supports(&template.gvk(), Operation::AggregateStatus) {
        return Ok(None);
    }
    let mut updated = interpreter
        .aggregate_status(template.clone(), items, now)
        .await
        .map_err(|source| Error::Interpret { object: template.describe(), source })?;
    keep_class(template, &mut updated);
    Ok((updated.get("status") != template.get("status")).then_some(updated))
}

/// Keeps the quality-of-service class of a Pod. No report has it, and the API server puts it back when a write takes it out: without this
/// every report would write the status again.
fn keep_class(template: &Value, updated: &mut Value) {
    let class = template["status"].get("qosClass").filter(|class| class.is_string());
    if let Some(class) = class
        && template.kind() == "Pod"
        && updated["status"].get("qosClass").is_none()
    {
        child(fields(updated), "status").insert("qosClass".to_owned(), class.clone());
    }
}

/// What a member object says about itself, for the Work's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub status: ManifestStatus,
    /// Why health is unknown, if interpreting it failed; worth an event.
    pub health_error: Option<String>,
}

/// Returns the status entry of a member object in its Work.
///
/// Errors: the status cannot be reflected, or the Work does not contain the object. A failing health
/// interpretation is not an error: health is then unknown.
pub async fn report(work: &Work, observed: &Value, interpreter: &Interpreter) -> Result<Report> {
    let object = observed.reference();
    let ordinal = ordinal(work, &object)?;
    let status = interpreter
        .reflect_status(observed)
        .await
        .map_err(|source| Error::Interpret { object: observed.describe(), source })?;
    let (health, health_error) = if interpreter.supports(&observed.gvk(), Operation::InterpretHealth) {
        match interpreter.interpret_health(observed).await {
            Ok(true) => (ResourceHealth::Healthy, None),
            Ok(false) => (ResourceHealth::Unhealthy, None),
            Err(error) => (ResourceHealth::Unknown, Some(error.to_string())),
        }
    } else {
        (ResourceHealth::Healthy, None)
    };
    let status = status.map(without_nulls);
    let status = ManifestStatus { identifier: identifier(ordinal, &object), status, health: Some(health) };
    Ok(Report { status, health_error })
}

/// Leaves out what is null. Reports stand in lists and are written by merge patches, which cannot carry nulls there: with them, what is
/// stored would never be what is wanted.
fn without_nulls(mut status: Value) -> Value {
    drop_nulls(&mut status);
    status
}

/// Puts a report into the Work's status; returns whether it changed. A Work has one manifest, so the report
/// replaces the list.
pub fn update_work(work: &mut Work, report: ManifestStatus) -> bool {
    let reports = vec![report];
    let changed = work.status.manifest_statuses != reports;
    work.status.manifest_statuses = reports;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_written_has_whole_seconds() {
        let whole = |millis: i64| {
            let time = Timestamp::from_millisecond(millis).expect("a time");
            whole_seconds(time).as_millisecond()
        };
        assert_eq!([whole(7_000), whole(7_999), whole(8_000)], [7_000, 7_000, 8_000]);
    }
}
