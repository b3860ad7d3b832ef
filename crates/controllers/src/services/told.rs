//! What users are told of an attempt to serve a MultiClusterService: a condition in its status, and an event.

use api::networking::MultiClusterService;
use jiff::Timestamp;
use propagation::status::{condition, set_condition};
use runtime::{Error, Key};

use crate::plane::Plane;

/// What users are told of an attempt.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    /// Status and reason of the condition. One that goes gets none.
    pub(super) condition: Option<(&'static str, &'static str)>,
    pub(super) event: &'static str,
    pub(super) message: String,
}

/// Sets the condition `kind` of a MultiClusterService, and writes the event if that changed the condition, or if the attempt `wrote`
/// anything else.
pub(super) async fn tell(
    plane: &Plane,
    component: &'static str,
    multi: &MultiClusterService,
    kind: &str,
    told: Told,
    wrote: bool,
) -> Result<(), Error> {
    let changed = match told.condition {
        Some((status, reason)) => set(plane, multi, kind, (status, reason, &told.message)).await?,
        None => true,
    };
    if wrote || changed {
        plane.events.say(component, multi, told.event, told.message);
    }
    Ok(())
}

/// Sets a condition of a MultiClusterService; returns whether it has changed.
async fn set(
    plane: &Plane,
    multi: &MultiClusterService,
    kind: &str,
    (status, reason, message): (&str, &str, &str),
) -> Result<bool, Error> {
    let now = Timestamp::now();
    let mirror = &plane.mirrors.multi_cluster_services;
    let newest = mirror.find(&Key::of(multi));
    let multi = newest.as_deref().unwrap_or(multi);
    let change = |service: &mut MultiClusterService| {
        set_condition(&mut service.status.conditions, condition(kind, status, reason, message, now));
        Ok(())
    };
    match plane.writer.change_status(multi, change).await {
        Ok(Some(answer)) => {
            mirror.note(answer);
            Ok(true)
        }
        Ok(None) => Ok(false),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}
