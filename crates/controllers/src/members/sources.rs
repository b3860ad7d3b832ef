//! Where work comes from: the watches on the control plane and what each change sets in motion.

use std::sync::{Arc, Weak};

use api::cluster::Cluster;
use api::conditions;
use api::labels::annotations::{WORK_NAME, WORK_NAMESPACE};
use api::work::Work;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::runtime::watcher;
use member::{Change, Key, ObservedChange};
use propagation::{Object, apply};
use tokio_util::sync::CancellationToken;

use super::figures::FIGURES;
use super::{Shared, cluster_status, is_leaving, is_push, is_ready};
use crate::queue::Outcome;

/// Starts the watches.
pub(super) fn start(shared: &Arc<Shared>) {
    // The members must not keep alive what keeps them alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe(Arc::new(move |change| {
        if let Some(shared) = Weak::upgrade(&weak) {
            member_changed(&shared, change);
        }
    }));
    let config = watcher::Config::default();
    let of = shared.clone();
    shared.clusters.subscribe(move |change| cluster_changed(&of, change));
    let of = shared.clone();
    shared.works.subscribe(move |change| work_changed(&of, change));
    let of = shared.clone();
    shared.namespaces.subscribe(move |change| namespace_changed(&of, change));
    let (of, all) = (shared.clone(), config.clone());
    shared.tasks.spawn(async move {
        let api = Api::<Cluster>::all(of.client.clone());
        of.clusters.follow(api, all, of.stop.clone(), |cluster| cluster).await;
    });
    let (of, all) = (shared.clone(), config.clone());
    shared.tasks.spawn(async move {
        let api = Api::<Work>::all(of.client.clone());
        of.works.follow(api, all, of.stop.clone(), |work| work).await;
    });
    let of = shared.clone();
    let system = config.labels(&format!("{}={}", api::labels::SYSTEM, api::labels::TRUE));
    shared.tasks.spawn(async move {
        let api = Api::<Namespace>::all(of.client.clone());
        of.namespaces.follow(api, system, of.stop.clone(), |namespace| namespace).await;
    });
}

/// Keeps the connection to a member up to date with its Cluster and Secret.
pub(super) async fn link(shared: &Arc<Shared>, name: &str) -> Outcome {
    let Some(cluster) = shared.cluster(name).filter(|cluster| is_push(cluster)) else {
        shared.members.remove(name);
        return Outcome::Done;
    };
    match shared.members.refresh(&shared.client, &cluster).await {
        Ok((_, new)) => {
            if new {
                tracing::info!(cluster = name, "connected");
                shared.enqueue_works_of(name);
            }
            Outcome::Done
        }
        // Join writes the Secret before the Cluster, others may do it the other way round.
        Err(error) => {
            tracing::debug!(cluster = name, %error, "no connection");
            Outcome::Retry
        }
    }
}

/// Sets in motion what a change of a Cluster asks for.
fn cluster_changed(shared: &Arc<Shared>, change: &Change<'_, Cluster>) {
    let name = &change.key.name;
    let old = change.old.as_deref();
    let Some(new) = change.new.as_deref() else {
        shared.links.push(name.clone());
        if let Some(probe) = shared.probes.lock().remove(name) {
            probe.stop.cancel();
        }
        FIGURES.forget(name);
        return;
    };
    let same = |look: fn(&Cluster) -> bool| old.map(look) == Some(look(new));
    if old.is_none_or(|old| old.spec != new.spec) {
        shared.links.push(name.clone());
    }
    shared.registrations.push(name.clone());
    if (is_ready(new) && !same(is_ready)) || !same(is_leaving) {
        shared.enqueue_works_of(name);
    }
    if shared.enabled.cluster_status {
        watch_over(shared, name, old, new);
    }
}

/// Starts, prods or ends the status loop of a cluster.
fn watch_over(shared: &Arc<Shared>, name: &str, old: Option<&Cluster>, new: &Cluster) {
    let wanted = is_push(new) && new.spec.secret_ref.is_some();
    let mut probes = shared.probes.lock();
    match (probes.get(name), wanted) {
        (Some(probe), true) => {
            let news = old.is_none_or(|old| {
                old.metadata.finalizers != new.metadata.finalizers
                    || old.metadata.generation != new.metadata.generation
            });
            if news {
                probe.prod.notify_one();
            }
        }
        (Some(_), false) => {
            if let Some(probe) = probes.remove(name) {
                probe.stop.cancel();
            }
        }
        (None, true) => {
            let probe = Probe { stop: CancellationToken::new(), prod: Arc::default() };
            let running = cluster_status::run(shared.clone(), name.to_owned(), probe.clone());
            probes.insert(name.to_owned(), probe);
            shared.tasks.spawn(running);
        }
        (None, false) => {}
    }
}

/// The reins of a status loop.
#[derive(Clone)]
pub(super) struct Probe {
    pub(super) stop: CancellationToken,
    /// Ends the wait for the next look.
    pub(super) prod: Arc<tokio::sync::Notify>,
}

/// Sets in motion what a change of a Work asks for.
fn work_changed(shared: &Shared, change: &Change<'_, Work>) {
    let Some(new) = change.new.as_deref() else { return };
    let old = change.old.as_deref();
    // Status and marks of a Work are not for the member; only a new generation is.
    let news = old.is_none_or(|old| {
        old.metadata.generation != new.metadata.generation
            || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
    });
    if shared.enabled.execution && news {
        shared.executions.push(change.key.clone());
    }
    if shared.enabled.work_status && is_applied(new) && !old.is_some_and(is_applied) {
        shared.reports.push(change.key.clone());
    }
}

pub(super) fn is_applied(work: &Work) -> bool {
    work.status
        .conditions
        .iter()
        .any(|condition| condition.type_ == conditions::work::APPLIED && condition.status == "True")
}

/// An execution namespace that appears, vanishes or begins to is the cluster controller's business.
fn namespace_changed(shared: &Shared, change: &Change<'_, Namespace>) {
    if let Some(cluster) = api::names::cluster_of_execution_space(&change.key.name) {
        shared.registrations.push(cluster.to_owned());
    }
}

/// Sets in motion what a change of a managed object in a member asks for: its status is collected, and what somebody
/// else changed or deleted is repaired.
fn member_changed(shared: &Shared, change: &ObservedChange<'_>) {
    // The old object tells whose it is: the new one may have lost its marks.
    let Some(object) = change.old.or(change.new) else { return };
    let (Some(namespace), Some(name)) = (object.annotation(WORK_NAMESPACE), object.annotation(WORK_NAME))
    else {
        return;
    };
    if namespace != api::names::execution_space(change.cluster) {
        return;
    }
    let key = Key::new(namespace, name);
    if shared.enabled.work_status && change.new.is_some() {
        shared.reports.push(key.clone());
    }
    let drifted = match (change.old, change.new) {
        (Some(old), Some(new)) => apply::drifted(old, new),
        (Some(_), None) => true,
        // What is new to us is compared when its Work is looked at, which happens anyway.
        (None, _) => false,
    };
    if shared.enabled.execution && drifted && !change.ours {
        shared.executions.push(key);
    }
}
