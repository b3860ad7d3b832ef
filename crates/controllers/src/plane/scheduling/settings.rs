//! The settings of the scheduler, from upstream's flags.

use std::sync::Arc;

use api::constants::DEFAULT_SCHEDULER;
use scheduler::{Gates, Meter, Options, Registry, Scheduler};

use super::diagnoses::Diagnoses;
use super::estimating::Estimating;
use super::metrics::Stopwatch;

/// How the scheduler is set up.
#[derive(Clone)]
pub struct Settings {
    /// `--scheduler-name`: which bindings it schedules, and the source of its events.
    pub name: String,
    /// `--plugins`: which plug-ins run.
    pub plugins: Vec<String>,
    /// `--enable-empty-workload-propagation`: clusters without replicas are part of the result.
    pub propagate_empty: bool,
    /// `--enable-scheduler-estimator` and related flags; with `None`, estimators are not used.
    pub estimating: Option<Estimating>,
    /// How estimators are found: the descheduler asks those of clusters that it does not reach itself, as upstream's always does.
    pub estimators: estimator::Options,
    /// Where the last decisions can be read.
    pub diagnoses: Diagnoses,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: DEFAULT_SCHEDULER.to_owned(),
            plugins: vec!["*".to_owned()],
            propagate_empty: false,
            estimating: None,
            estimators: estimator::Options::default(),
            diagnoses: Diagnoses::default(),
        }
    }
}

impl Settings {
    pub(super) fn scheduler(&self, gates: Gates) -> Scheduler {
        let registry = Registry::in_tree(gates).enable(&self.plugins);
        let meter = Some(Arc::new(Stopwatch::new()) as Arc<dyn Meter>);
        Scheduler::new(Options { gates, registry, propagate_empty: self.propagate_empty, meter })
    }
}
