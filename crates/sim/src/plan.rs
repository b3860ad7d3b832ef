//! The controllers' decisions, as data: comparable, printable, testable without a server.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, text};

/// The component that writes: the field manager and the source of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Component {
    ControllerManager,
    Scheduler,
    Kubelet,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Create {
        kind: Kind,
        object: Value,
        /// The events after a creation, and after a failed one.
        tell: Option<Tell>,
    },
    /// Replaces everything but the status.
    Update {
        kind: Kind,
        object: Value,
    },
    /// Replaces the status of the object with the uid.
    Status {
        kind: Kind,
        namespace: String,
        name: String,
        uid: String,
        status: Value,
        /// Annotations that change along with it, which does not count as a new generation.
        annotations: Option<Value>,
        by: Component,
    },
    Delete {
        kind: Kind,
        namespace: String,
        name: String,
        uid: String,
        grace: Option<i64>,
        tell: Option<Tell>,
    },
    /// Binds a pod to a node, with labels that it gets from there.
    Bind {
        namespace: String,
        name: String,
        uid: String,
        node: String,
        labels: Value,
    },
    Event(Event),
    /// Reconciles the same object again after a while.
    Again(Duration),
}

/// The event about another object that reports the result of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tell {
    pub(crate) about: Value,
    pub(crate) source: &'static str,
    /// `{}` stands for the name of the object.
    pub(crate) success: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) about: Value,
    pub(crate) source: &'static str,
    pub(crate) warning: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Step {
    pub(crate) fn status(kind: Kind, object: &Value, status: Value) -> Self {
        Self::Status {
            kind,
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            status,
            annotations: None,
            by: if kind == Kind::Pod { Component::Kubelet } else { Component::ControllerManager },
        }
    }

    pub(crate) fn delete(kind: Kind, object: &Value) -> Self {
        Self::Delete {
            kind,
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            grace: None,
            tell: None,
        }
    }

    pub(crate) fn event(about: &Value, source: &'static str, reason: &str, message: String) -> Self {
        Self::Event(Event {
            about: reference(about),
            source,
            warning: false,
            reason: reason.to_owned(),
            message,
        })
    }

    pub(crate) fn warning(about: &Value, source: &'static str, reason: &str, message: String) -> Self {
        Self::Event(Event {
            about: reference(about),
            source,
            warning: true,
            reason: reason.to_owned(),
            message,
        })
    }

    /// Reconciles again shortly after a moment.
    pub(crate) fn again_at(moment: Timestamp, now: Timestamp) -> Self {
        let left = moment.as_millisecond().saturating_sub(now.as_millisecond());
        Self::Again(Duration::from_millis(u64::try_from(left).unwrap_or(0) + 1))
    }
}

impl Tell {
    pub(crate) fn new(about: &Value, source: &'static str, success: &str) -> Self {
        Self { about: reference(about), source, success: success.to_owned() }
    }
}

/// Returns the name of an object in an event.
pub(crate) fn reference(object: &Value) -> Value {
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "name": object.name(),
        "namespace": object.namespace(),
        "uid": object.uid(),
        "resourceVersion": text(object, "/metadata/resourceVersion"),
    })
}
