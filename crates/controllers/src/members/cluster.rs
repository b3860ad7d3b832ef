//! Keeps a Cluster's execution namespace, finalizer and readiness taints, and takes them away when it leaves.
//!
//! Watches: Cluster (root), execution namespaces.
//! Writes:  the execution namespace; the Cluster's finalizer and the two taints that tell of its readiness.
//!
//! `cluster-controller` in events, `cluster` in `--controllers`. A cluster that leaves keeps its finalizer until its
//! execution namespace is gone, and with it its Works, and until no binding names it any more.

use std::sync::Arc;
use std::time::Duration;

use api::cluster::{Cluster, ClusterSyncMode};
use api::conditions::cluster::READY;
use api::constants::{EFFECT_NO_SCHEDULE, TAINT_NOT_READY, TAINT_UNREACHABLE};
use api::events;
use api::labels::finalizers;
use api::work::{ClusterResourceBinding, ResourceBinding, Work};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use runtime::{Outcome, UNLIMITED};

use super::{Shared, Start, is_leaving, is_ready, monitor};

const COMPONENT: &str = "cluster-controller";

/// How long to wait for somebody who does not tell us when he is done; as upstream for namespaces, shorter for bindings.
const NAMESPACE_WAIT: Duration = Duration::from_secs(10);
const BINDING_WAIT: Duration = Duration::from_secs(2);

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let of = shared.clone();
    shared.mirrors.clusters.subscribe(move |change| {
        if change.new.is_some() {
            of.registrations.push(change.key.name.clone());
        }
    });
    // An execution namespace that appears, vanishes or begins to is ours to look after.
    let of = shared.clone();
    shared.mirrors.namespaces.subscribe(move |change| {
        if let Some(cluster) = api::names::cluster_of_execution_space(&change.key.name) {
            of.registrations.push(cluster.to_owned());
        }
    });
    let of = shared.clone();
    Box::new(move || {
        let (supervisor, queue) = (of.supervisor.clone(), of.registrations.clone());
        let watching = of.clone();
        supervisor.keep("cluster-monitor", move || monitor::run(watching.clone()));
        queue.spawn(UNLIMITED, &supervisor, move |name: String| {
            let of = of.clone();
            async move { reconcile(&of, &name).await }
        });
    })
}

async fn reconcile(shared: &Arc<Shared>, name: &str) -> Outcome {
    let Some(cluster) = shared.cluster(name) else { return Outcome::Done };
    let result = if is_leaving(&cluster) {
        leave(shared, &cluster, name).await
    } else {
        register(shared, &cluster, name).await
    };
    match result {
        Ok(outcome) => outcome,
        Err(kube::Error::Api(status)) if status.code == 409 => Outcome::Retry,
        Err(error) => {
            tracing::warn!(controller = COMPONENT, cluster = name, %error, "cannot bring the cluster up to date");
            Outcome::Retry
        }
    }
}

async fn register(shared: &Arc<Shared>, cluster: &Cluster, name: &str) -> Result<Outcome, kube::Error> {
    if !ensure_space(shared, cluster, name).await? {
        return Ok(Outcome::After(NAMESPACE_WAIT));
    }
    let taints = taints(cluster, Timestamp::now());
    let retained = cluster.metadata.finalizers.clone().unwrap_or_default();
    let mut patch = json!({ "metadata": { "resourceVersion": cluster.metadata.resource_version } });
    let mut changed = false;
    if !retained.iter().any(|finalizer| finalizer == finalizers::CLUSTER) {
        let all: Vec<String> = retained.into_iter().chain([finalizers::CLUSTER.to_owned()]).collect();
        patch["metadata"]["finalizers"] = json!(all);
        changed = true;
    }
    if let Some(taints) = &taints {
        patch["spec"] = json!({ "taints": taints });
        changed = true;
    }
    if !changed {
        return Ok(Outcome::Done);
    }
    match write(shared, name, &patch).await {
        Ok(()) => {
            if let Some(taints) = taints {
                let message = format!("Taint cluster succeed: {}.", taints_message(&taints));
                shared.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_SUCCEED, message);
            }
            Ok(Outcome::Done)
        }
        Err(error) => {
            let conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
            if taints.is_some() && !conflict {
                shared.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_FAILED, error.to_string());
            }
            Err(error)
        }
    }
}

/// Makes the execution namespace; returns whether it is there to stay.
async fn ensure_space(shared: &Shared, cluster: &Cluster, name: &str) -> Result<bool, kube::Error> {
    let space = api::names::execution_space(name);
    if let Some(existing) = shared.mirrors.namespaces.get("", &space) {
        return Ok(existing.metadata.deletion_timestamp.is_none());
    }
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(space.clone());
    namespace.metadata.labels =
        Some([(api::labels::SYSTEM.to_owned(), api::labels::TRUE.to_owned())].into_iter().collect());
    match Api::<Namespace>::all(shared.client().clone()).create(&PostParams::default(), &namespace).await {
        Ok(_) => {
            let message = format!("Created execution space({space}) for cluster({name}).");
            shared.events.say(COMPONENT, cluster, events::CREATE_EXECUTION_SPACE_SUCCEED, message);
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(true),
        Err(error) => {
            shared.events.say(COMPONENT, cluster, events::CREATE_EXECUTION_SPACE_FAILED, error.to_string());
            Err(error)
        }
    }
}

async fn leave(shared: &Arc<Shared>, cluster: &Cluster, name: &str) -> Result<Outcome, kube::Error> {
    let retained = cluster.metadata.finalizers.clone().unwrap_or_default();
    if !retained.iter().any(|finalizer| finalizer == finalizers::CLUSTER) {
        return Ok(Outcome::Done);
    }
    let space = api::names::execution_space(name);
    if cluster.spec.sync_mode == ClusterSyncMode::Pull && !is_ready(cluster) {
        // Its agent is presumed dead and will not let go of the Works.
        release_works(shared, &space).await?;
    }
    let namespaces = Api::<Namespace>::all(shared.client().clone());
    if let Some(namespace) = namespaces.get_opt(&space).await? {
        if namespace.metadata.deletion_timestamp.is_none() {
            match namespaces.delete(&space, &DeleteParams::default()).await {
                Ok(_) => {
                    let message = format!("Removed execution space for cluster({name}).");
                    shared.events.say(COMPONENT, cluster, events::REMOVE_EXECUTION_SPACE_SUCCEED, message);
                }
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => {
                    let reason = events::REMOVE_EXECUTION_SPACE_FAILED;
                    shared.events.say(COMPONENT, cluster, reason, error.to_string());
                    return Err(error);
                }
            }
        }
        // Its disappearance wakes us earlier.
        return Ok(Outcome::After(NAMESPACE_WAIT));
    }
    if is_bound(shared, name).await? {
        return Ok(Outcome::After(BINDING_WAIT));
    }
    let rest: Vec<String> =
        retained.into_iter().filter(|finalizer| finalizer != finalizers::CLUSTER).collect();
    let patch = json!({ "metadata": {
        "resourceVersion": cluster.metadata.resource_version, "finalizers": rest,
    } });
    match Api::<Cluster>::all(shared.client().clone())
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(Outcome::Done),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Outcome::Done),
        Err(error) => Err(error),
    }
}

async fn release_works(shared: &Shared, space: &str) -> Result<(), kube::Error> {
    let works = Api::<Work>::namespaced(shared.client().clone(), space);
    for key in shared.mirrors.works.keys(|key| key.namespace == space) {
        let Some(work) = shared.mirrors.works.find(&key) else { continue };
        let retained = work.metadata.finalizers.clone().unwrap_or_default();
        let rest: Vec<&String> =
            retained.iter().filter(|finalizer| *finalizer != finalizers::EXECUTION).collect();
        if rest.len() == retained.len() {
            continue;
        }
        let patch = json!({ "metadata": {
            "resourceVersion": work.metadata.resource_version, "finalizers": rest,
        } });
        match works.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns whether a binding still names the cluster.
async fn is_bound(shared: &Shared, name: &str) -> Result<bool, kube::Error> {
    let all = ListParams::default();
    let bindings = Api::<ResourceBinding>::all(shared.client().clone()).list(&all).await?;
    if bindings.items.iter().any(|binding| binding.spec.clusters.iter().any(|target| target.name == name)) {
        return Ok(true);
    }
    let bindings = Api::<ClusterResourceBinding>::all(shared.client().clone()).list(&all).await?;
    Ok(bindings.items.iter().any(|binding| binding.spec.clusters.iter().any(|target| target.name == name)))
}

async fn write(shared: &Arc<Shared>, name: &str, patch: &Value) -> Result<(), kube::Error> {
    let clusters = Api::<Cluster>::all(shared.client().clone());
    let answer = clusters.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    shared.mirrors.clusters.note(answer);
    Ok(())
}

/// Returns the taints a cluster should have by its Ready condition, or `None` if it has them.
///
/// Only NoSchedule: nobody is driven out of a cluster because it is unwell; that takes a policy or an administrator.
fn taints(cluster: &Cluster, now: Timestamp) -> Option<Vec<Taint>> {
    let ready = cluster.status.condition(READY).map(|condition| condition.status.as_str());
    let (wanted, unwanted): (Option<&str>, &[&str]) = match ready {
        None => (Some(TAINT_NOT_READY), &[]),
        Some("True") => (None, &[TAINT_NOT_READY, TAINT_UNREACHABLE]),
        Some("False") => (Some(TAINT_NOT_READY), &[TAINT_UNREACHABLE]),
        Some(_) => (Some(TAINT_UNREACHABLE), &[TAINT_NOT_READY]),
    };
    let is = |taint: &Taint, key: &str| taint.key == key && taint.effect == EFFECT_NO_SCHEDULE;
    let mut taints: Vec<Taint> = cluster.spec.taints.clone();
    taints.retain(|taint| !unwanted.iter().any(|key| is(taint, key)));
    if let Some(key) = wanted
        && !taints.iter().any(|taint| is(taint, key))
    {
        taints.push(Taint {
            key: key.to_owned(),
            effect: EFFECT_NO_SCHEDULE.to_owned(),
            value: None,
            time_added: Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
        });
    }
    (taints != cluster.spec.taints).then_some(taints)
}

fn taints_message(taints: &[Taint]) -> String {
    if taints.is_empty() {
        return "cluster now does not have taints".to_owned();
    }
    let texts: Vec<String> = taints
        .iter()
        .map(|taint| match taint.value.as_deref().unwrap_or("") {
            "" => format!("{{Key:{},Effect:{}}}", taint.key, taint.effect),
            value => format!("{{Key:{},Value:{value},Effect:{}}}", taint.key, taint.effect),
        })
        .collect();
    format!("cluster now has taints([{}])", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(ready: Option<&str>, taints: &[&str]) -> Cluster {
        let conditions: Vec<Value> = ready
            .map(|status| {
                json!({ "type": "Ready", "status": status, "reason": "r", "message": "",
                        "lastTransitionTime": "2024-01-01T00:00:00Z" })
            })
            .into_iter()
            .collect();
        let taints: Vec<Value> =
            taints.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" })).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "m1" },
            "spec": { "syncMode": "Push", "taints": taints },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[track_caller]
    fn check(ready: Option<&str>, before: &[&str], after: Option<&[&str]>) {
        let decided = taints(&cluster(ready, before), Timestamp::UNIX_EPOCH);
        let keys = decided.map(|taints| taints.into_iter().map(|taint| taint.key).collect::<Vec<_>>());
        assert_eq!(keys, after.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()));
    }

    #[test]
    fn taints_follow_the_ready_condition() {
        check(None, &[], Some(&[TAINT_NOT_READY]));
        check(Some("False"), &[TAINT_UNREACHABLE, "mine"], Some(&["mine", TAINT_NOT_READY]));
        check(Some("Unknown"), &[TAINT_NOT_READY], Some(&[TAINT_UNREACHABLE]));
        check(Some("True"), &[TAINT_NOT_READY, "mine", TAINT_UNREACHABLE], Some(&["mine"]));
    }

    #[test]
    fn taints_that_are_right_are_not_written_again() {
        check(Some("True"), &["mine"], None);
        check(Some("False"), &[TAINT_NOT_READY], None);
        check(Some("Unknown"), &[TAINT_UNREACHABLE], None);
    }
}
