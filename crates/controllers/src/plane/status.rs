//! Aggregates the reports of Works into the binding's status, and from there into the template's.
//!
//! Watches: Works (their status and deletion), bindings (a changed template has an outdated status). Writes:
//! the binding's `aggregatedStatus` and `FullyApplied` condition; the template's status, as the interpreter
//! aggregates it.

#[cfg(test)]
mod on_server;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::conditions::work as conditions;
use api::events as reasons;
use api::work::{ClusterResourceBinding, ResourceBinding, Work};
use interpreter::Operation;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::{Binding, Object, check_scope};
use runtime::writer::tree_difference;
use runtime::{Change, Error, Guard, Mirror, Outcome, Reconcile, Throttle};
use serde_json::{Value, json};

use crate::interpretation::on_lessons;

use super::bindings::key;
use super::both::{self, Bindings};
use super::templates::TemplateKey;
use super::works::binding_of;
use super::{BindingKey, Plane, Start, StoredBinding};
use runtime::events::about;

const WORKERS: usize = 8;
/// How long the first report of a binding waits for those of its other clusters. Short enough not to be
/// noticed, long enough for clusters that are written to at the same time.
const GATHER: Duration = Duration::from_millis(100);

struct Controller<B> {
    bindings: Bindings<B>,
    /// Bindings with reports from some clusters and others still to come: since when.
    since: Mutex<HashMap<BindingKey, Instant>>,
    /// When each was last written.
    throttle: Throttle<BindingKey>,
}

impl<B> Deref for Controller<B> {
    type Target = Bindings<B>;

    fn deref(&self) -> &Bindings<B> {
        &self.bindings
    }
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (namespaced, cluster) = subscribed(plane);
    Box::new(move || both::run(&namespaced, &cluster, WORKERS))
}

type Both = (Arc<Controller<ResourceBinding>>, Arc<Controller<ClusterResourceBinding>>);

fn subscribed(plane: &Arc<Plane>) -> Both {
    let namespaced = Controller::<ResourceBinding>::new(plane);
    let cluster = Controller::<ClusterResourceBinding>::new(plane);
    let queues = (namespaced.queue.clone(), cluster.queue.clone());
    plane.mirrors.works.subscribe(move |change| {
        let work = change.new.as_ref().or(change.old.as_ref());
        if is_news(change)
            && let Some(binding) = work.and_then(|work| binding_of(work))
        {
            let queue = if binding.namespace.is_empty() { &queues.1 } else { &queues.0 };
            queue.push(binding);
        }
    });
    (namespaced, cluster)
}

/// Returns whether a change of a Work may change what its binding reports.
fn is_news(change: &Change<'_, Work>) -> bool {
    let deleting = |work: &Work| work.metadata.deletion_timestamp.is_some();
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.status != new.status || deleting(old) != deleting(new),
        // A new Work has nothing to report yet, unless it existed before the start of this process.
        (None, Some(_)) => change.initial,
        _ => true,
    }
}

impl<B: StoredBinding> Controller<B> {
    fn new(plane: &Arc<Plane>) -> Arc<Self> {
        let bindings = Bindings::<B>::new(plane, component::<B>(), component::<B>());
        bindings.push_on({
            let plane = plane.clone();
            move |change| {
                let has_works = |binding: &B| !plane.works.of(binding.permanent_id()).is_empty();
                let (old, new) = (change.old.as_deref(), change.new.as_deref());
                new.is_some_and(|new| is_outdated(old, new, has_works))
            }
        });
        let (from, pushed) = (bindings.mirror.clone(), bindings.queue.clone());
        on_lessons(&plane.mirrors, move |lesson| {
            for binding in lesson.bindings(&from, &[Operation::AggregateStatus]) {
                pushed.push(key(binding.as_ref()));
            }
        });
        Arc::new(Self { bindings, since: Mutex::default(), throttle: Throttle::default() })
    }
}

/// Returns whether the status of a changed binding is, or may be, out of date.
fn is_outdated<B: Binding>(old: Option<&B>, new: &B, has_works: impl Fn(&B) -> bool) -> bool {
    let placed = |binding: &B| binding.status().last_scheduled_time.is_some();
    let moved = old.is_none_or(|old| {
        old.metadata().generation != new.metadata().generation || placed(old) != placed(new)
    });
    moved && (placed(new) || has_works(new))
}

/// Returns whether Works of a binding have not been applied yet. Suspended and failed Works do not count.
fn more_to_come(works: &[Arc<Work>]) -> bool {
    works.iter().any(|work| {
        work.metadata.deletion_timestamp.is_none()
            && work.spec.suspend_dispatching != Some(true)
            && !work.status.conditions.iter().any(|condition| condition.type_ == conditions::APPLIED)
    })
}

/// What is known of a binding and of its Works.
pub(crate) struct View<B> {
    binding: Arc<B>,
    works: Vec<Arc<Work>>,
    /// How long to wait after the last write.
    pause: Option<Duration>,
    /// Since when some of its clusters have reported and others are about to.
    gathering: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Nothing(&'static str),
    /// More reports are about to come, or the last write was a moment ago.
    Wait(Duration),
    /// Sum up what the Works report.
    Report,
}

fn decide<B: Binding>(view: &View<B>) -> Plan {
    if view.binding.metadata().deletion_timestamp.is_some() {
        return Plan::Nothing("the binding goes");
    }
    if let Some(pause) = view.pause {
        return Plan::Wait(pause);
    }
    let waited = view.gathering.unwrap_or_default();
    match GATHER.checked_sub(waited).filter(|left| !left.is_zero()) {
        Some(left) if more_to_come(&view.works) => Plan::Wait(left),
        _ => Plan::Report,
    }
}

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = BindingKey;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &BindingKey) -> Result<Option<View<B>>, Error> {
        let Some(binding) = self.mirror.find(key) else {
            self.since.lock().remove(key);
            return Ok(None);
        };
        let works = self.plane.works.of(binding.permanent_id());
        let gathering = self.since.lock().get(key).map(Instant::elapsed);
        Ok(Some(View { binding, works, pause: self.throttle.wait(key), gathering }))
    }

    fn decide(view: &View<B>, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &BindingKey, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        match plan {
            Plan::Nothing(_) => Ok(Outcome::Done),
            Plan::Wait(left) => {
                self.since.lock().entry(key.clone()).or_insert_with(Instant::now);
                Ok(Outcome::After(left))
            }
            Plan::Report => {
                self.since.lock().remove(key);
                if bring_back(&self.plane, &self.mirror, &view.binding, &view.works).await? {
                    self.throttle.wrote(key);
                }
                Ok(Outcome::Done)
            }
        }
    }
}

/// Returns whether anything was written.
async fn bring_back<B: StoredBinding>(
    plane: &Plane,
    mirror: &Mirror<B>,
    binding: &Arc<B>,
    works: &[Arc<Work>],
) -> Result<bool, Error> {
    let (now, component) = (Timestamp::now(), component::<B>());
    let reports = propagation::status::aggregate(works.iter().map(AsRef::as_ref), &binding.spec().resource);
    for why in &reports.skipped {
        tracing::warn!(controller = component, binding = %key(binding.as_ref()), %why, "a Work is passed over");
    }
    let change = |binding: &mut B| {
        propagation::status::update_binding(binding, &reports.items, now);
        Ok(())
    };
    let written = plane.writer.change_status(binding.as_ref(), change).await;
    let wrote = matches!(written, Ok(Some(_)));
    let current = match written {
        Ok(Some(current)) => {
            let message = "Update binding with AggregatedStatus successfully.";
            let subject = about(binding.as_ref());
            plane.events.normal(component, &subject, reasons::AGGREGATE_STATUS_SUCCEED, message);
            mirror.note(current.clone());
            current
        }
        Ok(None) => {
            // There was nothing to write, or the binding is gone; in both cases the computed status is the
            // current one.
            let mut current = (**binding).clone();
            change(&mut current)?;
            current
        }
        Err(error) => {
            if !error.is_conflict() {
                let (subject, message) = (about(binding.as_ref()), error.to_string());
                plane.events.warning(component, &subject, reasons::AGGREGATE_STATUS_FAILED, message);
            }
            return Err(error);
        }
    };
    Ok(update_template(plane, &current, component, now).await? || wrote)
}

async fn update_template<B: StoredBinding>(
    plane: &Plane,
    binding: &B,
    component: &'static str,
    now: Timestamp,
) -> Result<bool, Error> {
    // The binding controller reports it.
    if check_scope(binding).is_err() {
        return Ok(false);
    }
    let resource = &binding.spec().resource;
    let template_key = TemplateKey::of_reference(resource);
    if !plane.interpreter.supports(&template_key.kind, Operation::AggregateStatus) {
        return Ok(false);
    }
    let Some(template) = plane.templates.fetch(resource).await? else { return Ok(false) };
    // A binding that was made by hand may leave it open.
    if !resource.uid.is_empty() && template.uid() != resource.uid {
        return Ok(false);
    }
    let items = &binding.status().aggregated_status;
    let result = async {
        let updated = propagation::status::update_template(&template, items, &plane.interpreter, now)
            .await
            .map_err(Error::decision)?;
        let Some(updated) = updated else { return Ok(false) };
        let Some(patch) = status_patch(&template, &updated) else { return Ok(false) };
        plane.templates.patch_status(&template_key, patch).await?;
        Ok(true)
    }
    .await;
    match result {
        Ok(true) => {
            let message = "Update Resource with AggregatedStatus successfully.";
            plane.events.normal(component, template.as_ref(), reasons::AGGREGATE_STATUS_SUCCEED, message);
            Ok(true)
        }
        Ok(false) => Ok(false),
        Err(error) => {
            let error: Error = error;
            if !error.is_conflict() {
                let message = error.to_string();
                plane.events.warning(component, template.as_ref(), reasons::AGGREGATE_STATUS_FAILED, message);
            }
            Err(error)
        }
    }
}

/// Returns the patch of the status alone, valid only for the template that was read.
fn status_patch(template: &Value, updated: &Value) -> Option<Value> {
    let only_status = |object: &Value| {
        json!({
            "metadata": {"resourceVersion": template.resource_version()},
            "status": object.get("status").cloned().unwrap_or_else(|| json!({})),
        })
    };
    tree_difference(&only_status(template), &only_status(updated), Guard::Version)
}

fn component<B: Binding>() -> &'static str {
    if B::NAMESPACED {
        "resource-binding-status-controller"
    } else {
        "cluster-resource-binding-status-controller"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, deleting, merged, work};

    fn applied(status: &str) -> Value {
        json!({ "status": { "conditions": [{
            "type": "Applied", "status": status, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } })
    }

    fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn when_a_binding_is_reported() {
        let wait = |left: u64| Plan::Wait(Duration::from_millis(left));
        let (done, coming) = (applied("True"), json!({}));
        let suspended = json!({ "spec": { "suspendDispatching": true } });
        let cases = [
            ("all have reported", json!({}), vec![done.clone()], None, None, Plan::Report),
            ("there are no Works", json!({}), vec![], None, None, Plan::Report),
            ("one is about to report", json!({}), vec![done.clone(), coming.clone()], None, None, wait(100)),
            ("it has been waited for", json!({}), vec![coming.clone()], None, millis(60), wait(40)),
            (
                "it was waited for long enough",
                json!({}),
                vec![coming.clone()],
                None,
                millis(100),
                Plan::Report,
            ),
            ("and longer", json!({}), vec![coming.clone()], None, millis(5000), Plan::Report),
            ("failed is reported, too", json!({}), vec![applied("False")], None, None, Plan::Report),
            ("what is suspended is not waited for", json!({}), vec![suspended], None, None, Plan::Report),
            ("what goes is not waited for", json!({}), vec![deleting()], None, None, Plan::Report),
            ("the last write was a moment ago", json!({}), vec![done.clone()], millis(150), None, wait(150)),
            ("pause before gathering", json!({}), vec![coming], millis(10), millis(100), wait(10)),
            ("the binding goes", deleting(), vec![done], None, None, Plan::Nothing("the binding goes")),
        ];
        for (name, binding, works, pause, gathering, expected) in cases {
            let works = works.into_iter().map(|otherwise| work("m1", otherwise)).collect();
            let view = View { binding: Arc::new(fixtures::binding(binding)), works, pause, gathering };
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    #[test]
    fn which_changes_of_works_count() {
        let key = BindingKey::new("karmada-es-m1", "web-1");
        let cases = [
            ("found by the first list", None, Some(json!({})), true, true),
            ("made by us", None, Some(json!({})), false, false),
            ("its status changed", Some(json!({})), Some(applied("True")), false, true),
            (
                "its spec changed",
                Some(json!({})),
                Some(json!({ "spec": { "suspendDispatching": true } })),
                false,
                false,
            ),
            ("it begins to go", Some(json!({})), Some(deleting()), false, true),
            ("it is gone", Some(json!({})), None, false, true),
        ];
        for (name, old, new, initial, expected) in cases {
            let made = |otherwise: Option<Value>| otherwise.map(|otherwise| work("m1", otherwise));
            let change = Change { key: &key, old: made(old), new: made(new), ours: false, initial };
            assert_eq!(is_news(&change), expected, "{name}");
        }
    }

    #[test]
    fn which_changes_of_bindings_count() {
        let placed = json!({ "status": { "lastScheduledTime": "2026-01-01T00:00:00Z" } });
        let next = json!({ "metadata": { "generation": 2 } });
        let both = merged(placed.clone(), next.clone());
        let cases = [
            ("it was there, placed", None, placed.clone(), false, true),
            ("it was there, with Works", None, json!({}), true, true),
            ("it is new", None, json!({}), false, false),
            ("it is placed for the first time", Some(json!({})), placed.clone(), false, true),
            ("its template changed", Some(placed.clone()), both, false, true),
            ("changed before it was placed", Some(json!({})), next, false, false),
            ("only its status changed", Some(placed.clone()), placed, false, false),
        ];
        for (name, old, new, has_works, expected) in cases {
            let old = old.map(fixtures::binding);
            let found = is_outdated(old.as_ref(), &fixtures::binding(new), |_| has_works);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn the_patch_of_a_template_has_its_status_alone_and_is_valid_once() {
        let template = |labels: Value, status: Value| json!({ "metadata": { "resourceVersion": "7", "labels": labels }, "status": status });
        let old = template(json!({}), json!({ "a": 1 }));
        assert_eq!(status_patch(&old, &old), None);
        let new = template(json!({ "l": "v" }), json!({ "a": 2 }));
        assert_eq!(
            status_patch(&old, &new),
            Some(json!({ "metadata": { "resourceVersion": "7" }, "status": { "a": 2 } }))
        );
    }
}
