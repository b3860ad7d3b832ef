//! Brings what the Works report to the binding, and from there to the template.
//!
//! Watches: Works (their status, and that they go), bindings (a template that changed has an outdated status).
//! Writes: the binding's `aggregatedStatus` and `FullyApplied` condition; the template's status, as the interpreter
//! has it.

use std::sync::Arc;

use api::events as reasons;
use interpreter::Operation;
use jiff::Timestamp;
use member::{Change, Mirror};
use propagation::{Binding, Object};
use serde_json::{Value, json};

use super::bindings::key;
use super::templates::TemplateKey;
use super::works::binding_of;
use super::write::{Error, Guard, Stored, tree_difference};
use super::{BindingKey, Plane, Start, write};
use crate::events::about;
use crate::queue::Queue;

const WORKERS: usize = 8;

pub(super) fn wire(plane: &Arc<Plane>) -> Start {
    let queue = Queue::new("resource-binding-status-controller");

    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.bindings.subscribe(move |change| push_changed(&of, &pushed, change));
    let (pushed, of) = (Arc::clone(&queue), Arc::clone(plane));
    plane.cluster_bindings.subscribe(move |change| push_changed(&of, &pushed, change));

    let pushed = Arc::clone(&queue);
    plane.works.mirror.subscribe(move |change| {
        let deleting = |work: &api::work::Work| work.metadata.deletion_timestamp.is_some();
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

    let plane = Arc::clone(plane);
    Box::new(move |tasks, stop| {
        queue.spawn(WORKERS, tasks, stop, move |key: BindingKey| {
            let plane = Arc::clone(&plane);
            async move {
                if key.namespace.is_empty() {
                    reconcile(&plane, &plane.cluster_bindings, &key).await
                } else {
                    reconcile(&plane, &plane.bindings, &key).await
                }
            }
        });
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

async fn reconcile<B: Stored>(plane: &Plane, mirror: &Mirror<B>, key: &BindingKey) -> Result<(), Error> {
    let Some(binding) = mirror.get(&key.namespace, &key.name) else { return Ok(()) };
    if binding.metadata().deletion_timestamp.is_some() {
        return Ok(());
    }
    let works = plane.works.of(binding.permanent_id());
    let api = B::api(&plane.client, &key.namespace);
    let now = Timestamp::now();
    let written = write::change_status(&api, binding.as_ref(), |binding| {
        propagation::status::update_binding(binding, works.iter().map(AsRef::as_ref), now)?;
        Ok(())
    })
    .await;
    let component = component::<B>();
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
            let mut current = (*binding).clone();
            propagation::status::update_binding(&mut current, works.iter().map(AsRef::as_ref), now)?;
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
    update_template(plane, &current, component, now).await
}

async fn update_template<B: Stored>(
    plane: &Plane,
    binding: &B,
    component: &'static str,
    now: Timestamp,
) -> Result<(), Error> {
    let resource = &binding.spec().resource;
    let template_key = TemplateKey::of_reference(resource);
    if !plane.interpreter.supports(&template_key.kind, Operation::AggregateStatus) {
        return Ok(());
    }
    let Some(template) = plane.templates.fetch(resource).await? else { return Ok(()) };
    if template.uid() != resource.uid {
        return Ok(());
    }
    let items = &binding.status().aggregated_status;
    let result = async {
        let updated = propagation::status::update_template(&template, items, &plane.interpreter, now)?;
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
            Ok(())
        }
        Ok(false) => Ok(()),
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
