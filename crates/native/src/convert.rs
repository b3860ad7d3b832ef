//! Conversion between the versions of the two native kinds that have more than one: autoscalers (autoscaling v1 and
//! v2) and events (core and events.k8s.io).
//!
//! Both directions lose nothing: what autoscaling/v1 cannot say travels in annotations. Objects go in and come out
//! in Go shape.

use apimachinery::gvk::Gvk;
use serde_json::Value;

use crate::shape;

mod autoscaler;
mod event;

pub use autoscaler::hide_annotations;
pub(crate) use autoscaler::restore_status_annotations;

/// Returns the kind under which objects of a native kind are stored.
pub fn storage_kind(gvk: &Gvk) -> Gvk {
    match (&*gvk.group, &*gvk.kind) {
        ("autoscaling", "HorizontalPodAutoscaler") => Gvk::new("autoscaling", "v2", &*gvk.kind),
        ("events.k8s.io", "Event") => Gvk::new("", "v1", "Event"),
        _ => gvk.clone(),
    }
}

/// Returns the object in another version; equal kinds return it unchanged.
///
/// # Errors
/// If there is no conversion between the two kinds.
pub fn convert(mut object: Value, from: &Gvk, to: &Gvk) -> Result<Value, Error> {
    if from == to {
        return Ok(object);
    }
    match (&*from.kind, &*from.group, &*from.version, &*to.kind, &*to.group, &*to.version) {
        ("HorizontalPodAutoscaler", "autoscaling", "v1", "HorizontalPodAutoscaler", "autoscaling", "v2") => {
            autoscaler::to_v2(&mut object);
        }
        ("HorizontalPodAutoscaler", "autoscaling", "v2", "HorizontalPodAutoscaler", "autoscaling", "v1") => {
            autoscaler::to_v1(&mut object);
        }
        ("Event", "", "v1", "Event", "events.k8s.io", "v1") => event::to_events_group(&mut object),
        ("Event", "events.k8s.io", "v1", "Event", "", "v1") => event::to_core(&mut object),
        _ => return Err(Error::NoConversion { from: from.to_string(), to: to.to_string() }),
    }
    object["apiVersion"] = to.api_version().into();
    // Fills in what the other version always prints.
    shape::canonicalise(to, &mut object).map_err(Error::Result)?;
    Ok(object)
}

/// Why an object cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no conversion from {from} to {to}")]
    NoConversion { from: String, to: String },
    #[error("the converted object does not decode")]
    Result(#[source] shape::DecodeError),
}

#[cfg(test)]
mod tests;
