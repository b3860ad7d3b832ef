//! Writes the replicas that autoscalers in the members chose back into the template of a Deployment.
//!
//! Watches: templates (Deployments that keep the replicas of their members), ResourceBindings.
//! Writes:  `spec.replicas` of the Deployment.
//!
//! Off by default. Only for divided replicas: a duplicated Deployment has its own number in each member.
//! Nothing is written before every member has reported its current replicas: a number that is still on its
//! way to a member must not come back as a new wish.

use std::sync::Arc;

use api::labels::{RETAIN_REPLICAS, TRUE};
use api::policy::ReplicaSchedulingType;
use api::work::{ObjectReference, ResourceBinding};
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use propagation::Object;
use runtime::{Change, Error, Guard, Key, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use crate::plane::Plane;
use crate::plane::templates::TemplateKey;
use crate::table::Start;

const COMPONENT: &str = "deployment-replicas-syncer";
const WORKERS: usize = 5;
const KIND: &str = "Deployment";
const API_VERSION: &str = "apps/v1";

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(COMPONENT);
    plane.tell_panics_of_templates(&queue, COMPONENT, template);
    let pushed = queue.clone();
    plane.templates.subscribe(move |change: &Change<'_, Value>| {
        if let Some(deployment) = change.new.as_deref().filter(|new| keeps(new)) {
            pushed.push(Key::new(deployment.namespace(), deployment.name()));
        }
    });
    let pushed = queue.clone();
    plane.mirrors.bindings.subscribe(move |change| {
        let resource = change.new.as_ref().map(|binding| &binding.spec.resource);
        if let Some(resource) = resource.filter(|it| it.kind == KIND && it.api_version == API_VERSION) {
            pushed.push(Key::new(resource.namespace.clone(), resource.name.clone()));
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

/// Returns whether an object is a Deployment that keeps the replicas of its members.
fn keeps(object: &Value) -> bool {
    let kind = object.gvk();
    (kind.group.as_str(), kind.kind.as_str()) == ("apps", KIND)
        && object["metadata"]["labels"][RETAIN_REPLICAS] == TRUE
}

/// A Deployment and its binding.
pub(crate) struct View {
    deployment: Arc<Value>,
    binding: Arc<ResourceBinding>,
}

/// What is to be done, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// As many as there are.
    Set(i64),
    /// The numbers agree.
    Right,
    /// It does not keep the replicas of its members, or each of them has a number of its own.
    NotOurs,
    /// Not everything has arrived: wait for this.
    Wait(&'static str),
}

fn decide(view: &View) -> Plan {
    let (spec, status) = (&view.binding.spec, &view.binding.status);
    let strategy = spec.placement.as_ref().and_then(|placement| placement.replica_scheduling.as_ref());
    let divided = strategy
        .is_some_and(|strategy| strategy.replica_scheduling_type == Some(ReplicaSchedulingType::Divided));
    if !divided || !keeps(&view.deployment) || view.deployment["metadata"].get("deletionTimestamp").is_some()
    {
        return Plan::NotOurs;
    }
    let Some(wanted) = view.deployment["spec"]["replicas"].as_i64() else { return Plan::Wait("replicas") };
    let running = view.deployment["status"]["replicas"].as_i64().unwrap_or(0);
    if wanted == running {
        return Plan::Right;
    }
    if wanted != i64::from(spec.replicas) {
        return Plan::Wait("the binding");
    }
    if view.binding.metadata.generation.unwrap_or(0) != status.scheduler_observed_generation {
        return Plan::Wait("the scheduler");
    }
    if status.aggregated_status.len() != spec.clusters.len() {
        return Plan::Wait("all clusters");
    }
    let each = status.aggregated_status.iter().map(|item| {
        // An autoscaler never scales to zero, so a zero is a number that has not arrived yet.
        item.status.as_ref().and_then(|status| status.get("replicas")?.as_i64()).filter(|count| *count > 0)
    });
    match each.sum::<Option<i64>>() {
        None => Plan::Wait("the replicas of each cluster"),
        Some(sum) if sum != running => Plan::Wait("the status of the Deployment"),
        Some(sum) => Plan::Set(sum),
    }
}

impl Reconcile for Controller {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let name = api::names::binding(KIND, &key.name);
        let Some(binding) = self.plane.mirrors.bindings.get(&key.namespace, &name) else { return Ok(None) };
        let template = template(key);
        // A head is enough to see that it is not ours.
        let Some(head) = self.plane.templates.get(&template).filter(|head| keeps(head)) else {
            return Ok(None);
        };
        let reference = ObjectReference {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            resource_version: head.resource_version().to_owned(),
            ..ObjectReference::default()
        };
        let deployment = self.plane.templates.fetch(&reference).await?;
        Ok(deployment.map(|deployment| View { deployment, binding }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let Plan::Set(replicas) = plan else { return Ok(Outcome::Done) };
        let mut wanted = view.deployment.as_ref().clone();
        wanted["spec"]["replicas"] = json!(replicas);
        let Some(patch) = runtime::writer::tree_difference(&view.deployment, &wanted, Guard::Version) else {
            return Ok(Outcome::Done);
        };
        self.plane.templates.patch(&template(key), patch).await.map(|_| Outcome::Done)
    }
}

fn template(key: &Key) -> TemplateKey {
    TemplateKey {
        kind: Gvk::from_api_version(API_VERSION, KIND),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;

    use super::*;
    use crate::fixtures::{binding, deleting, merged};
    use crate::world::World;

    fn deployment(wanted: i64, running: i64, otherwise: Value) -> Value {
        merged(
            json!({
                "apiVersion": API_VERSION, "kind": KIND,
                "metadata": { "name": "web", "namespace": "default", "labels": {
                    RETAIN_REPLICAS: "true", api::labels::PROPAGATION_POLICY_PERMANENT_ID: "id",
                } },
                "spec": { "replicas": wanted }, "status": { "replicas": running },
            }),
            otherwise,
        )
    }

    fn bound(replicas: i32, reported: &[Option<i64>], otherwise: Value) -> Value {
        let names = ["m1", "m2", "m3"];
        let items = reported.iter().zip(names).map(|(count, name)| match count {
            Some(count) => json!({ "clusterName": name, "status": { "replicas": count } }),
            None => json!({ "clusterName": name }),
        });
        merged(
            json!({
                "metadata": { "generation": 4 },
                "spec": {
                    "replicas": replicas, "clusters": [{ "name": "m1" }, { "name": "m2" }],
                    "placement": { "replicaScheduling": { "replicaSchedulingType": "Divided" } },
                },
                "status": { "schedulerObservedGeneration": 4, "aggregatedStatus": items.collect::<Vec<_>>() },
            }),
            otherwise,
        )
    }

    #[test]
    fn replicas_come_back_once_everything_has_arrived() {
        let both = [Some(3), Some(3)];
        let duplicated = json!({ "spec": { "placement": { "replicaScheduling": { "replicaSchedulingType": "Duplicated" } } } });
        let free = json!({ "metadata": { "labels": { RETAIN_REPLICAS: null } } });
        let undivided = json!({ "spec": { "placement": { "replicaScheduling": null } } });
        let unplaced = json!({ "spec": { "placement": null } });
        let cases = [
            ("members have more", deployment(4, 6, json!({})), bound(4, &both, json!({})), Plan::Set(6)),
            (
                "somebody asked for more",
                deployment(10, 6, json!({})),
                bound(10, &both, json!({})),
                Plan::Set(6),
            ),
            ("they agree", deployment(6, 6, json!({})), bound(4, &both, json!({})), Plan::Right),
            (
                "each has its own number",
                deployment(4, 6, json!({})),
                bound(4, &both, duplicated),
                Plan::NotOurs,
            ),
            (
                "nothing says how it is divided",
                deployment(4, 6, json!({})),
                bound(4, &both, undivided),
                Plan::NotOurs,
            ),
            ("it has no placement", deployment(4, 6, json!({})), bound(4, &both, unplaced), Plan::NotOurs),
            (
                "a Deployment of another group",
                deployment(4, 6, json!({ "apiVersion": "example.com/v1" })),
                bound(4, &both, json!({})),
                Plan::NotOurs,
            ),
            (
                "it is to have none, and has said nothing",
                deployment(0, 6, json!({ "status": null })),
                bound(0, &both, json!({})),
                Plan::Right,
            ),
            (
                "it says no number",
                deployment(4, 6, json!({ "spec": { "replicas": null } })),
                bound(4, &both, json!({})),
                Plan::Wait("replicas"),
            ),
            (
                "it has not reported, and none is wanted",
                deployment(0, 6, json!({ "status": null })),
                bound(0, &both, json!({})),
                Plan::Right,
            ),
            (
                "a cluster too many has reported",
                deployment(4, 9, json!({})),
                bound(4, &[Some(3), Some(3), Some(3)], json!({})),
                Plan::Wait("all clusters"),
            ),
            ("it is not marked", deployment(4, 6, free), bound(4, &both, json!({})), Plan::NotOurs),
            ("it goes", deployment(4, 6, deleting()), bound(4, &both, json!({})), Plan::NotOurs),
            (
                "the binding is behind",
                deployment(4, 6, json!({})),
                bound(3, &both, json!({})),
                Plan::Wait("the binding"),
            ),
            (
                "the scheduler is behind",
                deployment(4, 6, json!({})),
                bound(4, &both, json!({ "metadata": { "generation": 5 } })),
                Plan::Wait("the scheduler"),
            ),
            (
                "a cluster is missing",
                deployment(4, 3, json!({})),
                bound(4, &[Some(3)], json!({})),
                Plan::Wait("all clusters"),
            ),
            (
                "a cluster has told nothing",
                deployment(4, 3, json!({})),
                bound(4, &[Some(3), None], json!({})),
                Plan::Wait("the replicas of each cluster"),
            ),
            (
                "a cluster has none yet",
                deployment(4, 3, json!({})),
                bound(4, &[Some(3), Some(0)], json!({})),
                Plan::Wait("the replicas of each cluster"),
            ),
            (
                "the Deployment is behind",
                deployment(4, 5, json!({})),
                bound(4, &both, json!({})),
                Plan::Wait("the status of the Deployment"),
            ),
        ];
        for (name, deployment, otherwise, expected) in cases {
            let view = View { deployment: Arc::new(deployment), binding: Arc::new(binding(otherwise)) };
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn the_number_is_written_once_and_never_over_a_newer_one() {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        world.plane.templates.learn("apps", "v1", KIND, true);
        let space = json!({ "metadata": { "namespace": world.namespace } });
        let more = json!({ "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": {
            "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
        } } });
        let made = world
            .create::<Deployment>(merged(merged(deployment(4, 6, json!({})), space.clone()), more))
            .await;
        world.know(made.clone());
        let resource = json!({ "spec": { "resource": {
            "apiVersion": API_VERSION, "kind": KIND, "namespace": world.namespace, "name": "web",
        } }, "metadata": { "name": "web-deployment", "generation": null } });
        let mut wanted = merged(bound(4, &[Some(3), Some(3)], space), resource);
        wanted["status"]["schedulerObservedGeneration"] = json!(1);
        world.binding(wanted).await;
        let key = Key::new(world.namespace.clone(), "web");
        assert_eq!(queue.waiting(), std::slice::from_ref(&key), "both bring it up");
        world.writes();
        world.patch(&made, json!({ "spec": { "replicas": 5 } })).await;
        let outcome = world.once(controller.as_ref(), &key).await;
        assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
        let newer = world.patch(&made, json!({ "spec": { "replicas": 4 } })).await;
        world.know(newer);
        world.writes();
        assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
        assert_eq!(world.durable_writes(), ["PATCH */deployments/web"], "it is on disk before the next step");
        let stored = world.stored(&made).await.expect("it is there");
        assert_eq!(stored.spec.as_ref().and_then(|spec| spec.replicas), Some(6));
        world.know(stored);
        assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
        assert_eq!(world.writes(), Vec::<String>::new(), "a second look writes nothing");
        let told = world.panicked(&queue, key).await;
        assert_eq!(told, "deployment-replicas-syncer panicked and tries again later: by accident");
        world.supervisor.stop().await;
    }
}
