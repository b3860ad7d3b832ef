//! Scales workloads by the metrics of their pods in all clusters.
//!
//! Watches: FederatedHPAs, ResourceBindings, Clusters; in members, the objects that are scaled and their
//! pods. Reconciles every autoscaler once per `Settings::sync_period`.
//! Writes:  `spec.replicas` of the template through its scale; the status of FederatedHPAs.
//!
//! Metrics come from the control plane's own APIs, which ask all members. The scale of a Deployment,
//! StatefulSet or ReplicaSet in a member is read from the mirror that exists anyway; for any other kind the
//! scale subresource is read. Members in pull mode, to which this process has no connection, are reached
//! through the cluster proxy. Recent recommendations and scalings are in memory, as upstream: after a restart
//! the windows start again.

pub(super) mod decide;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use api::autoscaling::{CrossVersionObjectReference, FederatedHPA, MetricSpec};
use api::cluster::{Cluster, ClusterSyncMode};
use api::conditions::federated_hpa as conditions;
use api::events;
use api::labels::{CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID};
use api::work::ResourceBinding;
use apimachinery::selector::LabelSelector;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use member::{Member, Members, through_proxy};
use parking_lot::Mutex;
use runtime::{Change, Error, Key, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};
use workloads::autoscaling::{History, Pod};

use super::metrics;
use super::pods::{Pods, Record};
use super::scale::{self, Scale, Scales, gvk};
use super::telemetry::METRICS;
use crate::members::Shared;
use crate::table::Start;
use decide::{Fault, Measured, Plan, Target, View};

const COMPONENT: &str = "federatedHPA-controller";
/// Many, because each waits for members most of the time.
const WORKERS: usize = 16;

struct Controller {
    shared: Arc<Shared>,
    /// Members in pull mode.
    pulling: Arc<Members>,
    scales: Scales,
    pods: Pods,
    memory: Mutex<HashMap<Key, Memory>>,
}

/// What is known of an autoscaler besides its stored object.
#[derive(Default)]
struct Memory {
    history: Option<History>,
    /// Which pods it selects.
    selector: Option<LabelSelector>,
    /// How often in a row something went wrong.
    failures: u32,
    /// When the current reconcile began.
    begun: Option<Instant>,
}

pub(crate) fn wire(shared: &Arc<Shared>) -> Start {
    let (controller, queue) = subscribed(shared);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.shared.supervisor))
}

fn subscribed(shared: &Arc<Shared>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    let mirror = &shared.mirrors.federated_hpas;
    shared.tell_panics(&queue, COMPONENT, mirror);
    let pushed = queue.clone();
    mirror.subscribe(move |change| {
        if is_news(change) {
            pushed.push(change.key.clone());
        }
    });
    let pulling = Arc::new(Members::new(shared.supervisor.clone()));
    let left = pulling.clone();
    shared.mirrors.clusters.subscribe(move |change| {
        if !change.new.as_deref().is_some_and(pulls) {
            left.remove(&change.key.name);
        }
    });
    let controller = Controller {
        shared: shared.clone(),
        pulling,
        scales: Scales::default(),
        pods: Pods::new(shared.supervisor.clone()),
        memory: Mutex::default(),
    };
    (Arc::new(controller), queue)
}

fn is_news(change: &Change<'_, FederatedHPA>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.spec != new.spec || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        }
        _ => true,
    }
}

fn pulls(cluster: &Cluster) -> bool {
    cluster.spec.sync_mode == ClusterSyncMode::Pull
}

/// What one member has of the workload.
struct Part {
    scale: Scale,
    /// Pods, or what is wrong with the selector, with the reason of the event.
    pods: Result<Vec<Arc<Record>>, (&'static str, String)>,
    cluster: String,
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let found = self.shared.mirrors.federated_hpas.find(key);
        let Some(scaler) = found.filter(|scaler| scaler.metadata.deletion_timestamp.is_none()) else {
            self.memory.lock().remove(key);
            return Ok(None);
        };
        self.memory.lock().entry(key.clone()).or_default().begun = Some(Instant::now());
        let target = self.target(key, &scaler).await;
        let history = self.memory.lock().get(key).and_then(|memory| memory.history.clone());
        Ok(Some(View { scaler, target, history, settings: self.shared.autoscaling.clone() }))
    }

    fn decide(view: &View, now: Timestamp) -> Plan {
        decide::decide(view, now)
    }

    async fn apply(&self, key: &Key, view: View, mut plan: Plan) -> Result<Outcome, Error> {
        let (shared, scaler) = (&self.shared, view.scaler.as_ref());
        if let (Some((replicas, reason)), Ok(target)) = (plan.rescale.take(), &view.target) {
            let written = match plan.is_written {
                true => self.rescale(key, scaler, &target.template, replicas).await,
                false => Ok(()),
            };
            match written {
                Ok(()) => {
                    let message = format!("New size: {replicas}; reason: {reason}");
                    plan.events.push((events::SUCCESSFUL_RESCALE, message));
                    if let Some(history) = &mut plan.history {
                        decide::scaled(&view, history, replicas, Timestamp::now());
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    let message = format!("New size: {replicas}; reason: {reason}; error: {error}");
                    plan.events.push((events::FAILED_RESCALE, message));
                    plan.status = decide::refused(&view, &plan, &error, Timestamp::now());
                    plan.error = Some(error);
                }
            }
        }
        for (reason, message) in plan.events {
            let kind = if reason == events::SUCCESSFUL_RESCALE { "Normal" } else { "Warning" };
            shared.events.emit(COMPONENT, &runtime::events::about(scaler), kind, reason, message);
        }
        // The whole status is written: one that was never written lacks fields that its schema requires.
        let written = if plan.status == scaler.status {
            Ok(None)
        } else {
            shared.writer.patch_status(scaler, json!({ "status": plan.status })).await.map(Some)
        };
        match written {
            Ok(written) => written.into_iter().for_each(|it| shared.mirrors.federated_hpas.note(it)),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let about = runtime::events::about(scaler);
                shared.events.warning(COMPONENT, &about, events::FAILED_UPDATE_STATUS, error.to_string());
                plan.error = Some(error.to_string());
            }
        }
        let period = shared.autoscaling.sync_period;
        let mut memory = self.memory.lock();
        let memory = memory.entry(key.clone()).or_default();
        memory.history = plan.history;
        if let Some(begun) = memory.begun.take() {
            METRICS.autoscaled(begun, plan.error.is_none());
        }
        let Some(error) = plan.error else {
            memory.failures = 0;
            return Ok(Outcome::After(period));
        };
        tracing::debug!(controller = COMPONENT, object = %key, error, "not scaled as it should be");
        let wait = decide::pause(memory.failures, period);
        memory.failures = memory.failures.saturating_add(1);
        Ok(Outcome::After(wait))
    }
}

impl Controller {
    /// Writes the replicas of the template into the scale that they were decided on: a conflict if it was written meanwhile.
    async fn rescale(
        &self,
        key: &Key,
        scaler: &FederatedHPA,
        template: &Scale,
        replicas: i32,
    ) -> Result<(), Error> {
        let (client, target) = (self.shared.client(), &scaler.spec.scale_target_ref);
        self.scales.set(client, &key.namespace, target, template, replicas).await
    }

    /// Finds the scale target in the control plane and in all clusters. Missing parts are reported in
    /// upstream's order.
    async fn target(&self, key: &Key, scaler: &FederatedHPA) -> Result<Target, Fault> {
        let (client, reference) = (self.shared.client(), &scaler.spec.scale_target_ref);
        let missing = |error: Error| Fault {
            event: events::FAILED_GET_SCALE_TARGET_REF,
            condition: conditions::REASON_FAILED_GET_SCALE_TARGET_REF,
            what: "get the target reference object",
            error: error.to_string(),
        };
        let unscalable = |error: String| Fault {
            event: events::FAILED_GET_SCALE,
            condition: conditions::REASON_FAILED_GET_SCALE,
            what: "get the target's current scale",
            error,
        };
        if reference.api_version.matches('/').count() > 1 {
            return Err(unscalable(format!("unexpected GroupVersion string: {}", reference.api_version)));
        }
        scale::check_name(&reference.name).map_err(missing)?;
        let kind = gvk(reference);
        let resource = self.scales.resource(client, &kind).await.map_err(missing)?;
        let objects = Api::<DynamicObject>::namespaced_with(client.clone(), &key.namespace, &resource);
        let template = objects.get_metadata(&reference.name).await;
        let template = template.map_err(|error| missing(self.scales.doubt(&kind, error.into())))?;
        let binding = self.binding(key, reference, &template.metadata.labels.unwrap_or_default())?;
        let clusters = self.clusters(&binding)?;
        let parts = join_all(clusters.iter().map(|name| self.part(key, name, &resource, &reference.name)));
        let mut target = Target::default();
        let mut labels = Vec::new();
        for part in parts.await.into_iter().flatten() {
            target.wanted = target.wanted.saturating_add(part.scale.wanted.unwrap_or(0));
            target.running = target.running.saturating_add(part.scale.running);
            if target.selector.is_empty() {
                target.selector = part.scale.selector;
            }
            match part.pods {
                Err(fault) => target.faults.push(fault),
                Ok(pods) => {
                    for record in pods {
                        let name = metrics::name(&part.cluster, &record.pod.name);
                        target.pods.push(Pod { name, ..record.pod.clone() });
                        labels.push(record);
                    }
                }
            }
        }
        if target.wanted == 0 {
            let error =
                "failed to get replicas in any of clusters, possibly because all of clusters are not ready";
            return Err(unscalable(error.to_owned()));
        }
        let template = scale::get(client, &key.namespace, &resource, &reference.name).await;
        target.template = template.map_err(|error| unscalable(error.to_string()))?;
        target.replicas = target.template.wanted.unwrap_or(0);
        if View::asks_metrics(scaler, target.replicas) {
            target.scalers = self.scalers(key, &target.selector, &labels);
            if target.scalers.len() <= 1 {
                let each = scaler.spec.metrics.iter().map(|spec| self.measure(key, &target.selector, spec));
                target.measured = few_at_once(each.collect()).await;
            }
        }
        Ok(target)
    }

    /// Returns the binding of a template with these labels: the one that carries the same policy.
    fn binding(
        &self,
        key: &Key,
        reference: &CrossVersionObjectReference,
        labels: &BTreeMap<String, String>,
    ) -> Result<Arc<ResourceBinding>, Fault> {
        let fault = |error: &str| Fault {
            event: events::FAILED_GET_BINDINGS,
            condition: conditions::REASON_FAILED_GET_BINDING,
            what: "get the binding by scaleTargetRef",
            error: error.to_owned(),
        };
        if labels.is_empty() {
            return Err(fault("target resource has no label"));
        }
        let ids = [PROPAGATION_POLICY_PERMANENT_ID, CLUSTER_PROPAGATION_POLICY_PERMANENT_ID];
        let Some((label, id)) = ids.into_iter().find_map(|label| Some((label, labels.get(label)?))) else {
            return Err(fault("no label of policy permanent-id found"));
        };
        let name = api::names::binding(&reference.kind, &reference.name);
        let found = self.shared.mirrors.bindings.get(&key.namespace, &name).filter(|binding| {
            let bound = &binding.spec.resource;
            (&bound.name, &bound.kind, &bound.api_version)
                == (&reference.name, &reference.kind, &reference.api_version)
                && binding.metadata.labels.as_ref().and_then(|labels| labels.get(label)) == Some(id)
        });
        found.ok_or_else(|| fault("no binding matches the target resource"))
    }

    /// Returns the clusters of a binding that are ready.
    fn clusters(&self, binding: &ResourceBinding) -> Result<Vec<String>, Fault> {
        let unknown = |error: String| Fault {
            event: events::FAILED_GET_TARGET_CLUSTERS,
            condition: conditions::REASON_FAILED_GET_TARGET_CLUSTERS,
            what: "get the target clusters from binding",
            error,
        };
        if binding.spec.clusters.is_empty() {
            return Err(unknown("binding has no schedulable clusters".to_owned()));
        }
        let mut ready = Vec::new();
        for target in &binding.spec.clusters {
            let cluster =
                self.shared.mirrors.clusters.get("", &target.name).ok_or_else(|| {
                    unknown(format!("clusters.cluster.karmada.io {:?} not found", target.name))
                })?;
            if cluster.status.is_ready() {
                ready.push(target.name.clone());
            }
        }
        Ok(ready)
    }

    /// Returns the member of a cluster, if this process can reach it.
    fn member(&self, cluster: &str) -> Option<Arc<Member>> {
        let known = self.shared.members.get(cluster).or_else(|| self.pulling.get(cluster));
        known.or_else(|| {
            self.shared.mirrors.clusters.get("", cluster).filter(|cluster| pulls(cluster))?;
            Some(self.pulling.adopt(cluster, &through_proxy(self.shared.client(), cluster)).0)
        })
    }

    /// Returns what a member has of a workload; nothing if it cannot be asked.
    async fn part(&self, key: &Key, cluster: &str, resource: &ApiResource, name: &str) -> Option<Part> {
        let member = self.member(cluster)?;
        let scale = match self.member_scale(key, &member, resource, name).await {
            Ok(scale) => scale,
            Err(error) => {
                tracing::debug!(controller = COMPONENT, cluster, object = %key, %error, "left out");
                return None;
            }
        };
        if scale.selector.is_empty() {
            let fault = (events::SELECTOR_REQUIRED, "selector is required".to_owned());
            return Some(Part { scale, pods: Err(fault), cluster: cluster.to_owned() });
        }
        let selector = match LabelSelector::parse(&scale.selector) {
            Ok(selector) => selector,
            Err(error) => {
                let fault = format!(
                    "couldn't convert selector into a corresponding internal selector object: {error}"
                );
                let pods = Err((events::INVALID_SELECTOR, fault));
                return Some(Part { scale, pods, cluster: cluster.to_owned() });
            }
        };
        let pods = self.pods.select(&member, &key.namespace, &selector).await?;
        Some(Part { scale, pods: Ok(pods), cluster: cluster.to_owned() })
    }

    /// Returns the scale of a workload in a member.
    async fn member_scale(
        &self,
        key: &Key,
        member: &Member,
        resource: &ApiResource,
        name: &str,
    ) -> Result<Scale, Error> {
        if resource.api_version == "apps/v1" && KNOWN.contains(&resource.kind.as_str()) {
            let kind = member::Kind { resource: resource.clone(), namespaced: true };
            if let Some(object) = member.managed(&kind).get(&key.namespace, name) {
                return Ok(scale_of(&object));
            }
        }
        let _slot = member.permit().await;
        scale::get(member.client(), &key.namespace, resource, name).await
    }

    /// Returns all autoscalers that select one of these pods, after noting what this one selects.
    fn scalers(&self, key: &Key, selector: &str, pods: &[Arc<Record>]) -> Vec<(String, String)> {
        // An empty text would select everything, and be in the way of all autoscalers here. A workload that does not say has no pods.
        let named = Some(selector).filter(|text| !text.is_empty());
        let selector = named.and_then(|text| LabelSelector::parse(text).ok());
        let selector = selector.unwrap_or_else(LabelSelector::nothing);
        let mut memory = self.memory.lock();
        memory.entry(key.clone()).or_default().selector = Some(selector);
        let here = memory.iter().filter(|(other, _)| other.namespace == key.namespace);
        let found: BTreeSet<(String, String)> = here
            .filter(|(_, memory)| {
                let selects = |selector: &LabelSelector| pods.iter().any(|pod| selector.matches(&pod.labels));
                memory.selector.as_ref().is_some_and(selects)
            })
            .map(|(other, _)| (other.name.clone(), other.namespace.clone()))
            .collect();
        found.into_iter().collect()
    }

    async fn measure(&self, key: &Key, selector: &str, spec: &MetricSpec) -> Result<Measured, String> {
        let (client, space) = (self.shared.client(), key.namespace.as_str());
        let begun = Instant::now();
        let (kind, found) = match spec {
            MetricSpec { resource: Some(source), .. } if spec.type_ == "Resource" => {
                let found = metrics::of_resource(client, space, selector, &source.name, None).await;
                ("ResourceMetric", found.map(Measured::Pods))
            }
            MetricSpec { container_resource: Some(source), .. } if spec.type_ == "ContainerResource" => {
                let container = Some(source.container.as_str());
                let found = metrics::of_resource(client, space, selector, &source.name, container).await;
                ("ResourceMetric", found.map(Measured::Pods))
            }
            MetricSpec { pods: Some(source), .. } if spec.type_ == "Pods" => {
                let found = metrics::of_pods(client, space, selector, &source.metric).await;
                ("RawMetric", found.map(Measured::Pods))
            }
            MetricSpec { object: Some(source), .. } if spec.type_ == "Object" => {
                let object = &source.described_object;
                let found = metrics::of_object(client, &self.scales, space, object, &source.metric).await;
                ("ObjectMetric", found.map(Measured::Value))
            }
            MetricSpec { external: Some(source), .. } if spec.type_ == "External" => {
                let found = metrics::external(client, space, &source.metric).await;
                ("ExternalMetric", found.map(Measured::Value))
            }
            _ => return Err(format!("unknown metric source type {:?}", spec.type_)),
        };
        METRICS.pulled(kind, begun, found.is_ok());
        found
    }
}

/// Kinds of `apps/v1` whose scale can be read from the object itself.
const KNOWN: [&str; 3] = ["Deployment", "ReplicaSet", "StatefulSet"];

/// Returns the scale of an object of such a kind.
fn scale_of(object: &Value) -> Scale {
    let selector = LabelSelector::from_object(object.pointer("/spec/selector"));
    let selector = selector.map(|selector| selector.to_string()).unwrap_or_default();
    Scale::read(json!({
        "spec": { "replicas": object["spec"]["replicas"] },
        "status": { "replicas": object["status"]["replicas"], "selector": selector },
    }))
}

/// How many metrics of one autoscaler are asked for at once. Each asks all members, and an autoscaler may name any number of them.
const METRICS_AT_ONCE: usize = 4;

/// Waits for all, a few at a time; the results are in the order of what is waited for.
async fn few_at_once<F: Future>(all: Vec<F>) -> Vec<F::Output> {
    stream::iter(all).buffered(METRICS_AT_ONCE).collect().await
}

#[cfg(test)]
mod on_server;
#[cfg(test)]
mod original;
#[cfg(test)]
mod tests;
