//! Keeps a Cluster's execution namespace, finalizer and readiness taints, and removes them when the cluster
//! leaves.
//!
//! Watches: Cluster (root), execution namespaces; reads Works (those of a cluster that leaves). `monitor`, which runs with it, reads
//!          Leases.
//! Writes:  the execution namespace; the Cluster's finalizer and the two taints that tell of its readiness; when a cluster leaves, the
//!          finalizer of Works that its agent will never remove, and bindings that no policy is behind, or whose scheduling is
//!          suspended: they forget the cluster. `monitor` writes the Ready condition of clusters whose agents are silent.
//!
//! `cluster-controller` in events, `cluster` in `--controllers`. A cluster that leaves keeps its finalizer until its
//! execution namespace is gone, and with it its Works, and until no binding names it any more. Works are let go of in the name of those
//! who never will: an agent that is dead, and controllers of services that do not run. The scheduler takes the cluster out of bindings;
//! of those that it does not look at, since their policy was deleted or they are suspended, we do: upstream waits for them.

#[cfg(test)]
mod on_server;

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
use kube::api::ListParams;
use propagation::status::whole_seconds;
use runtime::{Error, Guard, Key, Outcome, Reconcile, UNLIMITED, controller};
use scheduler::trigger::{is_backed, is_suspended};

use super::monitor::Monitor;
use super::{Enabled, Shared, Start, is_leaving};
use crate::plane::StoredBinding;

const COMPONENT: &str = "cluster-controller";

/// How long to wait before checking again for progress that causes no event; as upstream for namespaces,
/// shorter for bindings.
const NAMESPACE_WAIT: Duration = Duration::from_secs(10);
const BINDING_WAIT: Duration = Duration::from_secs(2);

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    shared.tell_panics_by_name(&shared.registrations, COMPONENT, &shared.mirrors.clusters);
    shared.mirrors.clusters.subscribe({
        let shared = shared.clone();
        move |change| {
            if change.new.is_some() {
                shared.registrations.push(change.key.name.clone());
            }
        }
    });
    // Enqueues the cluster of an execution namespace that appears, vanishes or is being deleted.
    shared.mirrors.namespaces.subscribe({
        let shared = shared.clone();
        move |change| {
            if let Some(cluster) = api::names::cluster_of_execution_space(&change.key.name) {
                shared.registrations.push(cluster.to_owned());
            }
        }
    });
    Box::new({
        let (shared, monitor) = (shared.clone(), Monitor::subscribed(shared));
        move || {
            monitor.run();
            controller::run(
                &Arc::new(Controller(shared.clone())),
                &shared.registrations,
                UNLIMITED,
                &shared.supervisor,
            );
        }
    })
}

/// What is known of a cluster.
pub(crate) struct View {
    cluster: Arc<Cluster>,
    space: Space,
    /// The execution namespace itself, of a cluster that leaves.
    namespace: Option<Namespace>,
    /// The Works in its execution namespace that are held for the member.
    held: Vec<Arc<Work>>,
    /// Those that are being deleted and wait for controllers that do not run here, with their finalizers.
    abandoned: Vec<(Arc<Work>, &'static str)>,
    /// The bindings that name it; read only when that matters.
    bound: Bound,
}

/// Bindings that name a cluster.
#[derive(Debug, Default)]
struct Bound {
    /// There are some from which the scheduler will remove it.
    scheduled: bool,
    /// Those that it does not look at.
    left: Vec<ResourceBinding>,
    left_in_cluster: Vec<ClusterResourceBinding>,
}

/// The state of an execution namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    Missing,
    Present,
    Going,
}

impl Space {
    fn of(namespace: Option<&Namespace>) -> Self {
        match namespace.map(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
            None => Self::Missing,
            Some(false) => Self::Present,
            Some(true) => Self::Going,
        }
    }
}

/// What is to be done, in this order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Works with a finalizer that nobody else will remove.
    release: Vec<(Key, &'static str)>,
    space: Option<SpaceStep>,
    /// Finalizer and taints of the Cluster.
    mark: Option<Mark>,
    /// Take the cluster out of the bindings that the scheduler does not look at.
    forget: bool,
    /// Remove the Cluster's finalizer.
    let_go: bool,
    /// Look again after this time, for this reason.
    again: Option<(Duration, &'static str)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceStep {
    Create,
    Delete,
}

/// What a Cluster lacks.
#[derive(Debug, PartialEq)]
struct Mark {
    finalizer: bool,
    taints: Option<Vec<Taint>>,
}

fn decide(view: &View, now: Timestamp) -> Plan {
    if is_leaving(&view.cluster) { leave(view) } else { register(view, now) }
}

fn is_held(cluster: &Cluster) -> bool {
    cluster.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::CLUSTER)
}

fn register(view: &View, now: Timestamp) -> Plan {
    if view.space == Space::Going {
        // The cluster was removed and joined again; the deletion of its old namespace enqueues it earlier.
        return Plan { again: Some((NAMESPACE_WAIT, "the old execution namespace goes")), ..Plan::default() };
    }
    let mark = Mark { finalizer: !is_held(&view.cluster), taints: taints(&view.cluster, now) };
    Plan {
        space: (view.space == Space::Missing).then_some(SpaceStep::Create),
        mark: (mark.finalizer || mark.taints.is_some()).then_some(mark),
        ..Plan::default()
    }
}

/// A cluster that leaves keeps its finalizer until its execution namespace is gone, and with it its Works, and until no
/// binding names it any more.
fn leave(view: &View) -> Plan {
    let cluster = &view.cluster;
    if !is_held(cluster) {
        return Plan::default();
    }
    let agent_is_dead = cluster.spec.sync_mode == ClusterSyncMode::Pull && !cluster.status.is_ready();
    let held = view.held.iter().filter(|_| agent_is_dead).map(|work| (work, finalizers::EXECUTION));
    let abandoned = view.abandoned.iter().map(|(work, finalizer)| (work, *finalizer));
    let release = held.chain(abandoned).map(|(work, finalizer)| (Key::of(work.as_ref()), finalizer));
    let plan = Plan { release: release.collect(), ..Plan::default() };
    let space_goes = Some((NAMESPACE_WAIT, "the execution namespace goes"));
    match view.space {
        Space::Present => Plan { space: Some(SpaceStep::Delete), again: space_goes, ..plan },
        Space::Going => Plan { again: space_goes, ..plan },
        Space::Missing => {
            let bound = &view.bound;
            let forget = !(bound.left.is_empty() && bound.left_in_cluster.is_empty());
            let wait = (BINDING_WAIT, "a binding still names the cluster");
            Plan { forget, let_go: !bound.scheduled, again: bound.scheduled.then_some(wait), ..plan }
        }
    }
}

struct Controller(Arc<Shared>);

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let shared = &self.0;
        let Some(cluster) = shared.cluster(name) else { return Ok(None) };
        let space = api::names::execution_space(name);
        if !is_leaving(&cluster) {
            let space = Space::of(shared.mirrors.namespaces.get("", &space).as_deref());
            let (namespace, held, abandoned) = (None, Vec::new(), Vec::new());
            let bound = Bound::default();
            return Ok(Some(View { cluster, space, namespace, held, abandoned, bound }));
        }
        // An object that is not in the mirror may still exist, so the server is asked before the finalizer is
        // removed.
        let namespace = Api::<Namespace>::all(shared.client().clone()).get_opt(&space).await?;
        let keys = shared.mirrors.works.keys(|key| key.namespace == space);
        let works: Vec<_> = keys.iter().filter_map(|key| shared.mirrors.works.find(key)).collect();
        let absent = absent(shared.enabled);
        let abandoned = works.iter().flat_map(|work| waits_for(work, &absent)).collect();
        let held = works.into_iter().filter(|work| has_finalizer(work, finalizers::EXECUTION)).collect();
        let space = Space::of(namespace.as_ref());
        let bound = if space == Space::Missing { bound(shared, name).await? } else { Bound::default() };
        Ok(Some(View { cluster, space, namespace, held, abandoned, bound }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide(view, now)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let shared = &self.0;
        for (key, finalizer) in &plan.release {
            // As it is now: the release of one finalizer makes a new version of the Work.
            if let Some(work) = shared.mirrors.works.find(key) {
                shared.writer.release(&shared.mirrors.works, work.as_ref(), finalizer).await?;
            }
        }
        match plan.space {
            Some(SpaceStep::Create) => create_space(shared, &view.cluster, name).await?,
            Some(SpaceStep::Delete) => {
                if let Some(namespace) = &view.namespace {
                    delete_space(shared, &view.cluster, namespace, name).await?;
                }
            }
            None => {}
        }
        if let Some(mark) = plan.mark {
            write_mark(shared, &view.cluster, mark).await?;
        }
        if plan.forget {
            forget(shared, &view.bound.left, name).await?;
            forget(shared, &view.bound.left_in_cluster, name).await?;
        }
        if plan.let_go {
            let clusters = &shared.mirrors.clusters;
            shared.writer.release(clusters, view.cluster.as_ref(), finalizers::CLUSTER).await?;
        }
        Ok(plan.again.map_or(Outcome::Done, |(after, _)| Outcome::After(after)))
    }
}

fn has_finalizer(work: &Work, finalizer: &str) -> bool {
    work.metadata.finalizers.iter().flatten().any(|held| held == finalizer)
}

/// Returns the finalizers of the controllers of services that do not run here, such as those behind a gate that was switched off. What
/// they collected is still there, and would keep the cluster for ever.
fn absent(enabled: Enabled) -> Vec<&'static str> {
    let mut absent = Vec::new();
    if !enabled.dispatch {
        absent.push(finalizers::MCS_ENDPOINT_SLICE_DISPATCH);
    }
    if !enabled.import {
        absent.push(finalizers::ENDPOINT_SLICE);
    }
    absent
}

/// Returns a Work that is being deleted with each finalizer that nobody removes. Should another process run that controller: it also takes
/// back the slices of Works that are gone.
fn waits_for(work: &Arc<Work>, absent: &[&'static str]) -> Vec<(Arc<Work>, &'static str)> {
    let is_going = work.metadata.deletion_timestamp.is_some();
    let held = absent.iter().filter(|finalizer| is_going && has_finalizer(work, finalizer));
    held.map(|finalizer| (Arc::clone(work), *finalizer)).collect()
}

async fn create_space(shared: &Shared, cluster: &Cluster, name: &str) -> Result<(), Error> {
    let space = api::names::execution_space(name);
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(space.clone());
    namespace.metadata.labels =
        Some([(api::labels::SYSTEM.to_owned(), api::labels::TRUE.to_owned())].into_iter().collect());
    match shared.writer.create(&shared.mirrors.namespaces, &namespace).await {
        Ok(()) => {
            let message = format!("Created execution space({space}) for cluster({name}).");
            shared.events.say(COMPONENT, cluster, events::CREATE_EXECUTION_SPACE_SUCCEED, message);
            Ok(())
        }
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => {
            shared.events.say(COMPONENT, cluster, events::CREATE_EXECUTION_SPACE_FAILED, error.to_string());
            Err(error)
        }
    }
}

async fn delete_space(
    shared: &Shared,
    cluster: &Cluster,
    namespace: &Namespace,
    name: &str,
) -> Result<(), Error> {
    match shared.writer.delete(namespace).await {
        Ok(()) => {
            let message = format!("Removed execution space for cluster({name}).");
            shared.events.say(COMPONENT, cluster, events::REMOVE_EXECUTION_SPACE_SUCCEED, message);
            Ok(())
        }
        // It is being deleted already, or another one has its name by now: the next look shows which.
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => {
            shared.events.say(COMPONENT, cluster, events::REMOVE_EXECUTION_SPACE_FAILED, error.to_string());
            Err(error)
        }
    }
}

async fn write_mark(shared: &Shared, cluster: &Cluster, mark: Mark) -> Result<(), Error> {
    let mut marked = cluster.clone();
    if mark.finalizer {
        marked.metadata.finalizers.get_or_insert_default().push(finalizers::CLUSTER.to_owned());
    }
    if let Some(taints) = &mark.taints {
        marked.spec.taints = taints.clone();
    }
    let written = shared.writer.update_mirrored(&shared.mirrors.clusters, cluster, &marked, Guard::Version);
    match (written.await, &mark.taints) {
        (Ok(_), Some(taints)) => {
            let message = format!("Taint cluster succeed: {}.", taints_message(taints));
            shared.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_SUCCEED, message);
            Ok(())
        }
        (Ok(_), None) => Ok(()),
        (Err(error), taints) => {
            if taints.is_some() && !error.is_conflict() {
                shared.events.say(COMPONENT, cluster, events::TAINT_CLUSTER_FAILED, error.to_string());
            }
            Err(error)
        }
    }
}

/// Returns the bindings that name the cluster.
async fn bound(shared: &Shared, name: &str) -> Result<Bound, Error> {
    let (scheduled, left) = named_by::<ResourceBinding>(shared, name).await?;
    let (also, left_in_cluster) = named_by::<ClusterResourceBinding>(shared, name).await?;
    Ok(Bound { scheduled: scheduled || also, left, left_in_cluster })
}

/// Returns whether any binding of a kind that the scheduler handles names the cluster, and the bindings that
/// it ignores.
async fn named_by<B: StoredBinding>(shared: &Shared, name: &str) -> Result<(bool, Vec<B>), Error> {
    let bindings = Api::<B>::all(shared.client().clone()).list(&ListParams::default()).await?;
    let names = |binding: &B| binding.spec().clusters.iter().any(|target| target.name == name);
    let named = bindings.items.into_iter().filter(names);
    let (scheduled, left): (Vec<B>, Vec<B>) =
        named.partition(|binding| is_backed(binding.metadata()) && !is_suspended(binding.spec()));
    Ok((!scheduled.is_empty(), left))
}

/// Removes a cluster that has left from bindings. Nothing runs there any more: its Works are gone.
async fn forget<B: StoredBinding>(shared: &Shared, bindings: &[B], name: &str) -> Result<(), Error> {
    for binding in bindings {
        let mut without = binding.clone();
        without.spec_mut().clusters.retain(|target| target.name != name);
        let mirror = B::mirror(&shared.mirrors);
        shared.writer.update_mirrored(mirror, binding, &without, Guard::Version).await?;
        let key = Key::of(binding);
        tracing::info!(controller = COMPONENT, cluster = name, binding = %key, "no scheduler looks at it: it loses the cluster");
    }
    Ok(())
}

/// Returns the taints a cluster should have by its Ready condition, or `None` if it has them.
///
/// Only NoSchedule: an unhealthy cluster alone does not cause evictions; those need a policy or an
/// administrator.
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
            time_added: Some(Time(whole_seconds(now))),
        });
    }
    (taints != cluster.spec.taints).then_some(taints)
}

/// Returns the taints of a cluster as upstream shows them in events.
pub(crate) fn taints_message(taints: &[Taint]) -> String {
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
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{at, cluster, deleting, half_past, merged, work};

    fn tainted(ready: &str, taints: &[&str]) -> Cluster {
        let taints: Vec<Value> =
            taints.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" })).collect();
        cluster("m1", ready, json!({ "spec": { "taints": taints } }))
    }

    #[test]
    fn taints_follow_the_ready_condition() {
        /// Readiness, taints before, taints after if they change.
        type Case<'a> = (&'a str, &'a [&'a str], Option<&'a [&'a str]>);
        let cases: [Case<'_>; 10] = [
            ("", &[], Some(&[TAINT_NOT_READY])),
            ("", &[TAINT_NOT_READY], None),
            ("False", &[], Some(&[TAINT_NOT_READY])),
            ("False", &[TAINT_UNREACHABLE, "mine"], Some(&["mine", TAINT_NOT_READY])),
            ("False", &[TAINT_NOT_READY], None),
            ("Unknown", &[TAINT_NOT_READY], Some(&[TAINT_UNREACHABLE])),
            ("Unknown", &[TAINT_UNREACHABLE], None),
            ("True", &[TAINT_NOT_READY, "mine", TAINT_UNREACHABLE], Some(&["mine"])),
            ("True", &["mine"], None),
            ("True", &[], None),
        ];
        for (ready, before, after) in cases {
            let decided = taints(&tainted(ready, before), at(0));
            let keys = decided.map(|taints| taints.into_iter().map(|taint| taint.key).collect::<Vec<_>>());
            let after = after.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect());
            assert_eq!(keys, after, "{ready:?} with {before:?}");
        }
    }

    #[test]
    fn taints_of_others_with_another_effect_stay() {
        let evicting = json!({ "spec": { "taints": [{ "key": TAINT_NOT_READY, "effect": "NoExecute" }] } });
        assert_eq!(taints(&cluster("m1", "True", evicting), at(0)), None);
    }

    #[test]
    fn taints_are_told_as_upstream_tells_them() {
        let taint = |key: &str, value: Option<&str>| Taint {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        };
        assert_eq!(taints_message(&[]), "cluster now does not have taints");
        assert_eq!(
            taints_message(&[taint("a", None), taint("b", Some("v"))]),
            "cluster now has taints([{Key:a,Effect:NoSchedule},{Key:b,Value:v,Effect:NoSchedule}])"
        );
    }

    fn held() -> Value {
        json!({ "metadata": { "finalizers": [finalizers::CLUSTER] } })
    }

    fn view(ready: &str, otherwise: Value, space: Space, scheduled: bool) -> View {
        let held = vec![work("m1", json!({}))];
        let bound = Bound { scheduled, ..Bound::default() };
        let cluster = Arc::new(cluster("m1", ready, otherwise));
        View { cluster, space, namespace: None, held, abandoned: Vec::new(), bound }
    }

    #[test]
    fn what_a_cluster_that_stays_gets() {
        let lacks = |finalizer: bool| Some(Mark { finalizer, taints: None });
        let wait =
            Plan { again: Some((NAMESPACE_WAIT, "the old execution namespace goes")), ..Plan::default() };
        let cases = [
            (
                "it is new",
                view("True", json!({}), Space::Missing, false),
                Plan { space: Some(SpaceStep::Create), mark: lacks(true), ..Plan::default() },
            ),
            (
                "its namespace was deleted",
                view("True", held(), Space::Missing, false),
                Plan { space: Some(SpaceStep::Create), ..Plan::default() },
            ),
            (
                "its finalizer was taken off",
                view("True", json!({}), Space::Present, false),
                Plan { mark: lacks(true), ..Plan::default() },
            ),
            ("it has all", view("True", held(), Space::Present, false), Plan::default()),
            ("joined again too early", view("True", json!({}), Space::Going, false), wait),
        ];
        for (name, view, expected) in cases {
            assert_eq!(decide(&view, at(0)), expected, "{name}");
        }
        let unwell = decide(&view("False", held(), Space::Present, false), half_past(7));
        let taints = unwell.mark.and_then(|mark| mark.taints).expect("a taint");
        assert_eq!(
            (taints[0].key.as_str(), taints[0].time_added.as_ref().unwrap().0),
            (TAINT_NOT_READY, at(7)),
            "in whole seconds"
        );
    }

    #[test]
    fn works_that_go_wait_for_controllers_that_run_and_for_no_others() {
        let [dispatch, import] = [finalizers::MCS_ENDPOINT_SLICE_DISPATCH, finalizers::ENDPOINT_SLICE];
        let held = json!({ "metadata": { "finalizers": [dispatch, import] } });
        let (stays, goes) = (work("m1", held.clone()), work("m1", merged(held, deleting())));
        let names = |work: &Arc<Work>, absent: &[&'static str]| -> Vec<&'static str> {
            waits_for(work, absent).into_iter().map(|(_, finalizer)| finalizer).collect()
        };
        assert_eq!(names(&goes, &[dispatch, import]), [dispatch, import]);
        assert_eq!(names(&goes, &[import]), [import]);
        assert_eq!(names(&goes, &[]), [""; 0]);
        assert_eq!(names(&stays, &[dispatch, import]), [""; 0], "its slice is still there");
        assert_eq!(names(&work("m1", deleting()), &[dispatch, import]), [""; 0]);
    }

    #[test]
    fn which_controllers_of_services_are_absent() {
        let [slices, imports] = [finalizers::MCS_ENDPOINT_SLICE_DISPATCH, finalizers::ENDPOINT_SLICE];
        let enabled = |dispatch: bool, import: bool| Enabled { dispatch, import, ..Enabled::default() };
        assert_eq!(absent(enabled(true, true)), [""; 0]);
        assert_eq!(absent(enabled(false, true)), [slices]);
        assert_eq!(absent(enabled(true, false)), [imports]);
        assert_eq!(absent(enabled(false, false)), [slices, imports]);
    }

    #[test]
    fn how_a_cluster_leaves() {
        let leaving = |otherwise: Value| merged(merged(held(), deleting()), otherwise);
        let pull = || leaving(json!({ "spec": { "syncMode": "Pull" } }));
        let space_goes = Some((NAMESPACE_WAIT, "the execution namespace goes"));
        let works = || vec![(Key::new("karmada-es-m1", "web-1"), finalizers::EXECUTION)];
        let delete = Some(SpaceStep::Delete);
        let collected = |view: View| {
            let work = work("m1", json!({ "metadata": { "name": "slice" } }));
            View { abandoned: vec![(work, finalizers::ENDPOINT_SLICE)], ..view }
        };
        let left = |view: View| {
            let bound = Bound { left: vec![ResourceBinding::default()], ..view.bound };
            View { bound, ..view }
        };
        let left_in_cluster = |view: View| {
            let bound = Bound { left_in_cluster: vec![ClusterResourceBinding::default()], ..view.bound };
            View { bound, ..view }
        };
        let cases = [
            (
                "its namespace goes first",
                view("True", leaving(json!({})), Space::Present, false),
                Plan { space: delete, again: space_goes, ..Plan::default() },
            ),
            (
                "its namespace is going",
                view("True", leaving(json!({})), Space::Going, false),
                Plan { again: space_goes, ..Plan::default() },
            ),
            (
                "a binding names it",
                view("True", leaving(json!({})), Space::Missing, true),
                Plan { again: Some((BINDING_WAIT, "a binding still names the cluster")), ..Plan::default() },
            ),
            (
                "nothing is left",
                view("True", leaving(json!({})), Space::Missing, false),
                Plan { let_go: true, ..Plan::default() },
            ),
            (
                "a binding without a policy names it",
                left(view("True", leaving(json!({})), Space::Missing, false)),
                Plan { forget: true, let_go: true, ..Plan::default() },
            ),
            (
                "a binding of a cluster-scoped object without a policy names it",
                left_in_cluster(view("True", leaving(json!({})), Space::Missing, false)),
                Plan { forget: true, let_go: true, ..Plan::default() },
            ),
            (
                "one with a policy, too",
                left(view("True", leaving(json!({})), Space::Missing, true)),
                Plan {
                    forget: true,
                    again: Some((BINDING_WAIT, "a binding still names the cluster")),
                    ..Plan::default()
                },
            ),
            ("it is not held by us", view("True", deleting(), Space::Present, false), Plan::default()),
            (
                "unreachable in push mode: the execution controller lets go of the Works",
                view("False", leaving(json!({})), Space::Going, false),
                Plan { again: space_goes, ..Plan::default() },
            ),
            (
                "its agent is dead",
                view("Unknown", pull(), Space::Present, false),
                Plan { release: works(), space: delete, again: space_goes, ..Plan::default() },
            ),
            (
                "its agent is dead, and the namespace is going",
                view("False", pull(), Space::Going, false),
                Plan { release: works(), again: space_goes, ..Plan::default() },
            ),
            (
                "its agent is alive and lets go itself",
                view("True", pull(), Space::Present, false),
                Plan { space: delete, again: space_goes, ..Plan::default() },
            ),
            (
                "a collected slice waits for a controller that does not run",
                collected(view("True", leaving(json!({})), Space::Going, false)),
                Plan {
                    release: vec![(Key::new("karmada-es-m1", "slice"), finalizers::ENDPOINT_SLICE)],
                    again: space_goes,
                    ..Plan::default()
                },
            ),
        ];
        for (name, view, expected) in cases {
            assert_eq!(decide(&view, at(0)), expected, "{name}");
        }
    }
}
