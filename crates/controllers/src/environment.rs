//! What every controller works with.

use std::sync::Arc;

use api::features::Features;
use interpreter::Interpreter;
use member::Members;
use runtime::{Events, Supervisor, Writer};

use crate::mirrors::Mirrors;
use crate::plane::scheduling;
use crate::{Context, MyClusters, Timing};

pub(crate) struct Environment {
    pub(crate) writer: Writer,
    pub(crate) supervisor: Supervisor,
    pub(crate) events: Events,
    /// One for all controllers: what a resource means is the same for each of them.
    pub(crate) interpreter: Interpreter,
    pub(crate) features: Features,
    pub(crate) mirrors: Mirrors,
    pub(crate) members: Arc<Members>,
    pub(crate) mine: MyClusters,
    pub(crate) timing: Timing,
    pub(crate) scheduler: scheduling::Settings,
}

impl Environment {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            events: Events::new(context.writer.client().clone(), &context.supervisor),
            writer: context.writer.clone(),
            supervisor: context.supervisor.clone(),
            interpreter: context.interpreter.clone(),
            features: context.settings.features.clone(),
            mirrors: Mirrors::default(),
            members: context.members.clone(),
            mine: context.clusters.clone(),
            timing: context.settings.timing.clone(),
            scheduler: context.scheduler.clone(),
        }
    }

    /// Returns the client for reading.
    pub(crate) fn client(&self) -> &kube::Client {
        self.writer.client()
    }
}
