//! Aggregates the reports of Works into the binding's status, and from there into the template's.
//!
//! Watches: Works (their status and deletion), bindings (a changed template has an outdated status). Writes:
//! the binding's `aggregatedStatus` and `FullyApplied` condition; the template's status, as the interpreter
//! aggregates it.
//!
//! `decide` says when reports are summed up, and what is then written.

mod decide;
#[cfg(test)]
mod on_server;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use api::events as reasons;
use api::work::{AggregatedStatusItem, ClusterResourceBinding, ObjectReference, ResourceBinding, Work};
use interpreter::Operation;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::Binding;
use runtime::{Change, Error, Outcome, Reconcile, Throttle};

use crate::interpretation::on_lessons;

use super::bindings::key;
use super::both::{self, Bindings};
use super::templates::TemplateKey;
use super::works::binding_of;
use super::{BindingKey, Plane, Start, StoredBinding};
use decide::{OfBinding, OfTemplate, Plan, Template, View};
use runtime::events::about;

const WORKERS: usize = 8;

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
                let has_works = |binding: &B| !plane.works.of(binding).is_empty();
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

impl<B: StoredBinding> Reconcile for Controller<B> {
    type Key = BindingKey;
    type View = View<B>;
    type Plan = Plan;

    async fn observe(&self, key: &BindingKey) -> Result<Option<View<B>>, Error> {
        let Some(binding) = self.mirror.find(key) else {
            self.since.lock().remove(key);
            return Ok(None);
        };
        let works = self.plane.works.of(binding.as_ref());
        let gathering = self.since.lock().get(key).map(Instant::elapsed);
        let kind = TemplateKey::of_reference(&binding.spec().resource).kind;
        let aggregates = self.plane.interpreter.supports(&kind, Operation::AggregateStatus);
        let mut view = View::new(binding, &works, self.throttle.wait(key), gathering, aggregates);
        if let Some(items) = view.for_template() {
            view.template = self.read(&view.binding.spec().resource, items).await;
        }
        Ok(Some(view))
    }

    fn decide(view: &View<B>, now: Timestamp) -> Plan {
        decide::decide(view, now)
    }

    async fn apply(&self, key: &BindingKey, view: View<B>, plan: Plan) -> Result<Outcome, Error> {
        match plan {
            Plan::Nothing(_) => Ok(Outcome::Done),
            Plan::Wait(left, _) => {
                self.since.lock().entry(key.clone()).or_insert_with(Instant::now);
                Ok(Outcome::After(left))
            }
            Plan::Report(report) => {
                self.since.lock().remove(key);
                for why in &report.passed_over {
                    tracing::warn!(controller = component::<B>(), binding = %key, why, "a Work is passed over");
                }
                let noted = self.write_binding(&view.binding, report.binding).await?;
                let shown = self.write_template(&view, report.template).await?;
                if noted || shown {
                    self.throttle.wrote(key);
                }
                Ok(Outcome::Done)
            }
        }
    }
}

impl<B: StoredBinding> Controller<B> {
    /// Reads a template, and asks the interpreter for the status that it has if the clusters report this.
    async fn read(&self, resource: &ObjectReference, items: &[AggregatedStatusItem]) -> Template {
        let template = match self.plane.templates.fetch(resource).await {
            Ok(Some(template)) => template,
            Ok(None) => return Template::Absent,
            Err(error) => return Template::Unreadable(error),
        };
        if !both::stands_for(resource, &template) {
            return Template::Another;
        }
        let (interpreter, now) = (&self.plane.interpreter, Timestamp::now());
        let updated = propagation::status::update_template(&template, items, interpreter, now).await;
        Template::Read { template, updated }
    }

    /// Returns whether anything was written.
    async fn write_binding(&self, binding: &Arc<B>, step: OfBinding) -> Result<bool, Error> {
        let OfBinding::Write(summary) = step else { return Ok(false) };
        let (events, subject) = (&self.plane.events, about(binding.as_ref()));
        let change = |binding: &mut B| {
            summary.update(binding);
            Ok(())
        };
        match self.plane.writer.change_status(binding.as_ref(), change).await {
            Ok(Some(current)) => {
                let message = "Update binding with AggregatedStatus successfully.";
                events.normal(component::<B>(), &subject, reasons::AGGREGATE_STATUS_SUCCEED, message);
                self.mirror.note(current);
                Ok(true)
            }
            // The binding is gone, or somebody else has written the same.
            Ok(None) => Ok(false),
            Err(error) => {
                if !error.is_conflict() {
                    let message = error.to_string();
                    events.warning(component::<B>(), &subject, reasons::AGGREGATE_STATUS_FAILED, message);
                }
                Err(error)
            }
        }
    }

    /// Returns whether anything was written.
    async fn write_template(&self, view: &View<B>, step: OfTemplate) -> Result<bool, Error> {
        let result = match step {
            OfTemplate::Leave(_) => return Ok(false),
            OfTemplate::Unreadable(why) => return Err(Error::Decision(why.into())),
            OfTemplate::Fail(why) => Err(Error::Decision(why.into())),
            OfTemplate::Patch(patch) => {
                let key = TemplateKey::of_reference(&view.binding.spec().resource);
                self.plane.templates.patch_status(&key, patch).await
            }
        };
        let (events, Template::Read { template, .. }) = (&self.plane.events, &view.template) else {
            return result.map(|()| true);
        };
        match &result {
            Ok(()) => {
                let message = "Update Resource with AggregatedStatus successfully.";
                let reason = reasons::AGGREGATE_STATUS_SUCCEED;
                events.normal(component::<B>(), template.as_ref(), reason, message);
            }
            Err(error) if !error.is_conflict() => {
                let (reason, message) = (reasons::AGGREGATE_STATUS_FAILED, error.to_string());
                events.warning(component::<B>(), template.as_ref(), reason, message);
            }
            Err(_) => {}
        }
        result.map(|()| true)
    }
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
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{self, deleting, merged, work};

    fn applied(status: &str) -> Value {
        json!({ "status": { "conditions": [{
            "type": "Applied", "status": status, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } })
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
}
