//! Which slices go to which consumers. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::cluster::Cluster;
use api::events as reasons;
use api::labels::annotations::PROVISION_CLUSTER;
use api::networking::MultiClusterService;
use api::work::Work;
use runtime::Key;

use super::super::index::cluster_of;
use super::super::works::{Ensure, Token, annotation, dispatched, is_going, manifest, service_of};
use super::super::{SLICE, is_cross_cluster, is_ready, lacks_slices, meant};

/// What is known of a MultiClusterService and its slices.
pub(crate) struct View {
    pub(super) key: Key,
    pub(super) multi: Option<Arc<MultiClusterService>>,
    pub(super) clusters: Vec<Arc<Cluster>>,
    /// The Works that hold slices of its Service, whoever wants them.
    pub(super) collected: Vec<Arc<Work>>,
    /// The Works that bring them to consumers.
    pub(super) dispatched: Vec<Arc<Work>>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Collected Works that are let go afterwards.
    pub(super) release: Vec<Arc<Work>>,
    /// What is told about single clusters: reason and message.
    pub(super) warnings: Vec<(&'static str, String)>,
    pub(super) errors: Vec<String>,
    /// There is something to tell in the status of the MultiClusterService.
    pub(super) tells: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create(Box<Work>),
    Update(Arc<Work>, Box<Work>),
    Delete(Arc<Work>),
}

pub(super) fn decide(view: &View, fresh_id: impl Fn() -> String) -> Plan {
    let mut plan = Plan::default();
    let live = view
        .multi
        .as_deref()
        .filter(|multi| multi.metadata.deletion_timestamp.is_none() && is_cross_cluster(multi));
    let mut wanted_keys = BTreeSet::new();
    if let Some(multi) = live {
        let providers = meant(&multi.spec.provider_clusters, &view.clusters);
        let consumers = consumers(view, multi, &mut plan);
        for work in view.collected.iter().filter(|work| offers(view, work, &providers)) {
            plan.tells = true;
            let source = cluster_of_work(work);
            let Some(slice) = manifest(work, SLICE) else { continue };
            for consumer in consumers.iter().filter(|consumer| **consumer != source) {
                let wanted = match dispatched(&view.key, slice, &source, consumer) {
                    Ok(wanted) => wanted,
                    Err(error) => {
                        plan.errors.push(error.to_string());
                        continue;
                    }
                };
                wanted_keys.insert(wanted.key());
                let existing = view.dispatched.iter().find(|work| Key::of(work.as_ref()) == wanted.key());
                match (wanted.ensure(existing.map(AsRef::as_ref), &fresh_id), existing) {
                    (Ensure::Create(work), _) => plan.steps.push(Step::Create(work)),
                    (Ensure::Update(work), Some(old)) => plan.steps.push(Step::Update(Arc::clone(old), work)),
                    // An old one that goes brings this up again when it is gone.
                    _ => {}
                }
            }
        }
    }
    let left = view
        .dispatched
        .iter()
        .filter(|work| !is_going(work) && !wanted_keys.contains(&Key::of(work.as_ref())));
    plan.steps.extend(left.map(|work| Step::Delete(Arc::clone(work))));
    // Without anything collected there is nothing to say, unless something was said before.
    plan.tells |= live.is_some_and(|multi| {
        let mut said = multi.status.conditions.iter();
        said.any(|said| said.type_ == api::conditions::multi_cluster_service::ENDPOINT_SLICE_DISPATCHED)
    });
    plan.release = view.collected.iter().filter(|work| is_let_go(work)).cloned().collect();
    plan
}

/// Returns the consumers that slices can be brought to. One that is not ready gets them when it is back.
fn consumers(view: &View, multi: &MultiClusterService, plan: &mut Plan) -> Vec<String> {
    let mut found = Vec::new();
    for consumer in meant(&multi.spec.consumer_clusters, &view.clusters) {
        let named = |cluster: &&Arc<Cluster>| cluster.metadata.name.as_ref() == Some(&consumer);
        let Some(cluster) = view.clusters.iter().find(named) else {
            plan.warnings
                .push((reasons::CLUSTER_NOT_FOUND, format!("Consumer cluster {consumer} is not found")));
            continue;
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if lacks_slices(cluster) {
            let message = format!("Consumer cluster {consumer} does not support EndpointSlice");
            plan.warnings.push((reasons::API_INCOMPATIBLE, message));
            continue;
        }
        if !is_ready(cluster) {
            let message =
                format!("Consumer cluster {consumer} is not ready, it gets the endpoints when it is");
            plan.warnings.push((reasons::SYNC_SERVICE_FAILED, message));
        }
        found.push(consumer);
    }
    found
}

/// Returns whether a collected slice has endpoints for others: it is wanted, and its cluster is a provider that is ready.
fn offers(view: &View, work: &Work, providers: &BTreeSet<String>) -> bool {
    let source = cluster_of_work(work);
    let cluster = view.clusters.iter().find(|cluster| cluster.metadata.name.as_ref() == Some(&source));
    !is_going(work)
        && service_of(work, Token::MultiClusterService).as_ref() == Some(&view.key)
        && annotation(work, PROVISION_CLUSTER).is_empty()
        && providers.contains(&source)
        && cluster.is_some_and(|cluster| is_ready(cluster) && cluster.metadata.deletion_timestamp.is_none())
}

/// Returns whether our finalizer on a collected Work has served its purpose.
fn is_let_go(work: &Work) -> bool {
    let held =
        work.metadata.finalizers.iter().flatten().any(|held| held == Token::MultiClusterService.finalizer());
    held && (is_going(work) || service_of(work, Token::MultiClusterService).is_none())
}

fn cluster_of_work(work: &Work) -> String {
    cluster_of(&Key::of(work)).to_owned()
}
