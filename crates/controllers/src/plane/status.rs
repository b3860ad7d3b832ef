//! Brings what the Works report to the binding, and from there to the template.
//!
//! Watches: Works (their status, and that they go), bindings (a template that changed has an outdated status).
//! Writes: the binding's `aggregatedStatus` and `FullyApplied` condition; the template's status, as the interpreter
//! has it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::conditions::work as conditions;
use api::events as reasons;
use api::work::Work;
use interpreter::Operation;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::{Binding, Object, check_scope};
use runtime::writer::tree_difference;
use runtime::{Change, Error, Guard, Mirror, Outcome, Queue, Throttle};
use serde_json::{Value, json};

use super::bindings::key;
use super::templates::TemplateKey;
use super::works::binding_of;
use super::{BindingKey, Plane, Start, StoredBinding};
use runtime::events::about;

const WORKERS: usize = 8;
/// How long the first news of a binding waits for that of its other clusters. Short enough not to be noticed, long enough
/// for clusters that are written to at the same time.
const GATHER: Duration = Duration::from_millis(100);

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let queue = Queue::new("resource-binding-status-controller");

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.mirrors.bindings.subscribe(move |change| push_changed(&of, &pushed, change));
    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.mirrors.cluster_bindings.subscribe(move |change| push_changed(&of, &pushed, change));

    let pushed = Arc::clone(&queue);
    plane.mirrors.works.subscribe(move |change| {
        let deleting = |work: &Work| work.metadata.deletion_timestamp.is_some();
        let news = match (&change.old, &change.new) {
            (Some(old), Some(new)) => old.status != new.status || deleting(old) != deleting(new),
            // A new Work has nothing to report yet, unless it was there before us.
            (None, Some(_)) => change.initial,
            _ => true,
        };
        let work = change.new.as_ref().or(change.old.as_ref());
        if news && let Some(binding) = work.and_then(|work| binding_of(work)) {
            pushed.push(binding);
        }
    });

    let (plane, gathering) = (Arc::clone(plane), Arc::new(Gathering::default()));
    let supervisor = plane.supervisor.clone();
    Box::new(move || {
        queue.spawn(WORKERS, &supervisor, move |key: BindingKey| {
            let (plane, gathering) = (Arc::clone(&plane), Arc::clone(&gathering));
            async move {
                if let Some(left) = gathering.throttle.wait(&key) {
                    return Outcome::After(left);
                }
                if key.namespace.is_empty() {
                    reconcile(&plane, &plane.mirrors.cluster_bindings, &key, &gathering).await
                } else {
                    reconcile(&plane, &plane.mirrors.bindings, &key, &gathering).await
                }
            }
        });
    })
}

/// When to write what, so that much news becomes one write.
#[derive(Default)]
struct Gathering {
    /// Bindings of whose clusters some have reported and others are about to: since when.
    since: Mutex<HashMap<BindingKey, Instant>>,
    throttle: Throttle<BindingKey>,
}

impl Gathering {
    /// Returns how much longer to wait for the rest; nothing if there is no rest or it has been waited for.
    fn wait(&self, key: &BindingKey, more_to_come: bool) -> Option<Duration> {
        let mut since = self.since.lock();
        if more_to_come {
            let first = *since.entry(key.clone()).or_insert_with(Instant::now);
            if let Some(left) = GATHER.checked_sub(first.elapsed()).filter(|left| !left.is_zero()) {
                return Some(left);
            }
        }
        since.remove(key);
        None
    }
}

/// Returns whether Works of a binding have not been carried out yet. What is suspended or failed is not waited for.
fn more_to_come(works: &[Arc<Work>]) -> bool {
    works.iter().any(|work| {
        work.metadata.deletion_timestamp.is_none()
            && work.spec.suspend_dispatching != Some(true)
            && !work.status.conditions.iter().any(|condition| condition.type_ == conditions::APPLIED)
    })
}

fn push_changed<B: Binding>(plane: &Plane, queue: &Queue<BindingKey>, change: &Change<B>) {
    let Some(new) = &change.new else { return };
    let moved = change.old.as_ref().is_none_or(|old| {
        old.metadata().generation != new.metadata().generation
            || old.status().last_scheduled_time.is_none() != new.status().last_scheduled_time.is_none()
    });
    let has_been_placed =
        new.status().last_scheduled_time.is_some() || !plane.works.of(new.permanent_id()).is_empty();
    if moved && has_been_placed {
        queue.push(key(new.as_ref()));
    }
}

async fn reconcile<B: StoredBinding>(
    plane: &Plane,
    mirror: &Mirror<B>,
    key: &BindingKey,
    gathering: &Gathering,
) -> Outcome {
    let Some(binding) = mirror.get(&key.namespace, &key.name) else { return Outcome::Done };
    if binding.metadata().deletion_timestamp.is_some() {
        return Outcome::Done;
    }
    let works = plane.works.of(binding.permanent_id());
    match gathering.wait(key, more_to_come(&works)) {
        Some(left) => Outcome::After(left),
        None => {
            let result = bring_back(plane, mirror, &binding, &works).await;
            if let Ok(true) = result {
                gathering.throttle.wrote(key);
            }
            result.map(drop).into()
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
    let now = Timestamp::now();
    let change = |binding: &mut B| {
        let works = works.iter().map(AsRef::as_ref);
        propagation::status::update_binding(binding, works, now).map_err(Error::decision)?;
        Ok(())
    };
    let written = plane.writer.change_status(binding.as_ref(), change).await;
    let component = component::<B>();
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
            // Nothing to write, or gone meanwhile; in both cases what we computed is what there is.
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
    // The binding controller tells of it.
    if check_scope(binding).is_err() {
        return Ok(false);
    }
    let resource = &binding.spec().resource;
    let template_key = TemplateKey::of_reference(resource);
    if !plane.interpreter.supports(&template_key.kind, Operation::AggregateStatus) {
        return Ok(false);
    }
    let Some(template) = plane.templates.fetch(resource).await? else { return Ok(false) };
    if template.uid() != resource.uid {
        return Ok(false);
    }
    let items = &binding.status().aggregated_status;
    let result = async {
        let updated = propagation::status::update_template(&template, items, &plane.interpreter, now)
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

/// Returns the patch of the status alone, valid only for the template that was looked at.
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

    #[test]
    fn news_waits_for_the_other_clusters_but_not_for_long() {
        let gathering = Gathering::default();
        let key = BindingKey { namespace: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(gathering.wait(&key, false), None, "all have reported");
        assert!(gathering.wait(&key, true).is_some_and(|left| left <= GATHER));
        let long_ago = Instant::now().checked_sub(GATHER).expect("the clock has run for a while");
        gathering.since.lock().insert(key.clone(), long_ago);
        assert_eq!(gathering.wait(&key, true), None);
        assert!(gathering.since.lock().is_empty(), "nothing is kept");
    }

    #[test]
    fn only_what_is_on_its_way_is_waited_for() {
        let mut work = Work::default();
        assert!(more_to_come(&[Arc::new(work.clone())]));
        work.spec.suspend_dispatching = Some(true);
        assert!(!more_to_come(&[Arc::new(work)]));
    }
}
