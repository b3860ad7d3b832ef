//! Failover: evicts workloads from clusters that have failed, or in which the workloads have failed.
//!
//! Code map: `settings` holds the flags · `taint_manager` evicts what does not tolerate the taints of its
//! cluster, `throttle` limits how fast that happens · `application` evicts what stays unhealthy · `graceful` ends
//! evictions · `halt` stops all three while too many clusters are lost at once, `outage` counts them ·
//! `taint_policy` taints clusters by their conditions, `remedy` says what else to do about them ·
//! `rebalancer` has workloads placed afresh, `descheduler` those that find no node · `metrics` has the
//! metrics.

pub(crate) mod application;
pub(crate) mod descheduler;
pub(crate) mod graceful;
mod halt;
mod metrics;
mod outage;
pub(crate) mod rebalancer;
pub(crate) mod remedy;
mod settings;
pub(crate) mod taint_manager;
pub(crate) mod taint_policy;
mod throttle;

use std::ops::Deref;
use std::sync::Arc;

use api::work::{ClusterResourceBinding, GracefulEvictionTask, ResourceBinding};
use propagation::Binding;
use propagation::eviction;
use runtime::events::about;
use runtime::{Error, Events, Guard, Key, Reconcile};

use crate::plane::StoredBinding;
use crate::plane::both::{self, Bindings};
use crate::table::Start;

pub(crate) use halt::Halt;

pub use descheduler::Settings as Descheduler;
pub use settings::Settings;

/// Returns what starts a controller of both kinds of bindings that stands still while too many clusters are lost.
fn start<N, C>(namespaced: Arc<N>, cluster: Arc<C>, workers: usize) -> Start
where
    N: Reconcile<Key = Key> + Deref<Target = Bindings<ResourceBinding>>,
    C: Reconcile<Key = Key> + Deref<Target = Bindings<ClusterResourceBinding>>,
{
    Box::new(move || {
        namespaced.plane.halt().review();
        both::run(&namespaced, &cluster, workers);
    })
}

/// The reason of the event about the start of an eviction. Upstream reports only the end.
const EVICTING: &str = "EvictingWorkloadFromCluster";

/// Starts the eviction of a workload from clusters, and emits an event about it, or about the failed write.
async fn evict<B: StoredBinding>(
    bindings: &Bindings<B>,
    component: &'static str,
    binding: &B,
    tasks: &[GracefulEvictionTask],
) -> Result<(), Error> {
    let (plane, mut evicted) = (&bindings.plane, binding.clone());
    for task in tasks {
        eviction::evict(evicted.spec_mut(), task.clone());
    }
    let result = plane.writer.update_mirrored(&bindings.mirror, binding, &evicted, Guard::Version).await;
    for task in tasks {
        match &result {
            Ok(_) => {
                tracing::info!(
                    controller = component, object = %Key::of(binding), cluster = task.from_cluster,
                    why = task.message, "evicted"
                );
                tell_begin(&plane.events, component, binding, task);
            }
            Err(error) => tell_end(&plane.events, component, binding, &task.from_cluster, Err(error)),
        }
    }
    result.map(drop)
}

/// Tells users that a workload begins to leave a cluster, and why.
fn tell_begin<B: Binding>(
    events: &Events,
    component: &'static str,
    binding: &B,
    task: &GracefulEvictionTask,
) {
    let message = format!("Evicting from cluster {}: {}.", task.from_cluster, task.message);
    events.normal(component, &about(binding), EVICTING, message.clone());
    events.normal(component, &binding.spec().resource, EVICTING, message);
}

/// Tells users how an eviction ended, or that it could not be written.
fn tell_end<B: Binding>(
    events: &Events,
    component: &'static str,
    binding: &B,
    cluster: &str,
    result: Result<&str, &Error>,
) {
    use api::events::{EVICT_WORKLOAD_FROM_CLUSTER_FAILED, EVICT_WORKLOAD_FROM_CLUSTER_SUCCEED, event_type};
    let (reason, message) = match result {
        Ok(why) => {
            (EVICT_WORKLOAD_FROM_CLUSTER_SUCCEED, format!("Evict from cluster {cluster} succeed: {why}."))
        }
        Err(error) if error.is_conflict() => return,
        Err(error) => {
            (EVICT_WORKLOAD_FROM_CLUSTER_FAILED, format!("Evict from cluster {cluster} failed: {error}."))
        }
    };
    events.emit(component, &about(binding), event_type(reason), reason, message.clone());
    events.emit(component, &binding.spec().resource, event_type(reason), reason, message);
}
