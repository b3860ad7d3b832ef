//! Labels workloads that a HorizontalPodAutoscaler in the members scales, so that the template does not
//! overwrite the replicas that it chose.
//!
//! Watches: templates (HorizontalPodAutoscalers).
//! Writes:  the label `resourcetemplate.karmada.io/retain-replicas` of the workload.
//!
//! Off by default. An autoscaler counts from the moment when a policy propagates it until it is gone or names
//! another workload. It still counts when it loses its policy, since its copies in members may still exist.
//! Upstream removes the label with the first autoscaler that is deleted, even if another one still scales the
//! workload; here it stays until the last is gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::labels::{
    CLUSTER_PROPAGATION_POLICY_PERMANENT_ID, PROPAGATION_POLICY_PERMANENT_ID, RETAIN_REPLICAS, TRUE,
};
use api::work::ObjectReference;
use apimachinery::gvk::Gvk;
use jiff::Timestamp;
use parking_lot::Mutex;
use propagation::Object;
use runtime::{Change, Error, Key, Outcome, Queue, Reconcile, controller};
use serde_json::{Value, json};

use crate::plane::Plane;
use crate::plane::templates::TemplateKey;
use crate::table::Start;

const COMPONENT: &str = "hpa-scale-target-marker";
const WORKERS: usize = 5;
const GROUP: &str = "autoscaling";
const KIND: &str = "HorizontalPodAutoscaler";

/// What each autoscaler scales, as far as a policy has propagated it. If no policy claims an autoscaler, the
/// mirror has only its head.
type Scaled = HashMap<Key, TemplateKey>;

struct Controller {
    plane: Arc<Plane>,
    scaled: Arc<Mutex<Scaled>>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<TemplateKey>>) {
    let queue: Arc<Queue<TemplateKey>> = Queue::new(COMPONENT);
    plane.tell_panics_of_templates(&queue, COMPONENT, TemplateKey::clone);
    let scaled: Arc<Mutex<Scaled>> = Arc::default();
    let (pushed, known) = (queue.clone(), scaled.clone());
    plane.templates.subscribe(move |change| {
        for target in concerned(&mut known.lock(), change) {
            pushed.push(target);
        }
    });
    (Arc::new(Controller { plane: plane.clone(), scaled }), queue)
}

/// Records a change of an autoscaler; returns the workloads whose label may change.
fn concerned(scaled: &mut Scaled, change: &Change<'_, Value>) -> BTreeSet<TemplateKey> {
    if !change.new.as_deref().or(change.old.as_deref()).is_some_and(is_autoscaler) {
        return BTreeSet::new();
    }
    let (before, now) = match &change.new {
        None => (scaled.remove(change.key), None),
        Some(scaler) => match target(scaler) {
            Some(now) => (scaled.insert(change.key.clone(), now.clone()), Some(now)),
            None => (None, None),
        },
    };
    before.into_iter().chain(now).collect()
}

fn is_autoscaler(object: &Value) -> bool {
    let kind = object.gvk();
    kind.group == GROUP && kind.kind == KIND
}

/// Returns what an autoscaler scales, if a policy propagates it.
fn target(scaler: &Value) -> Option<TemplateKey> {
    let propagated = [PROPAGATION_POLICY_PERMANENT_ID, CLUSTER_PROPAGATION_POLICY_PERMANENT_ID]
        .iter()
        .any(|label| scaler["metadata"]["labels"].get(label).is_some());
    if !propagated {
        return None;
    }
    let text = |field: &str| scaler["spec"]["scaleTargetRef"][field].as_str();
    Some(TemplateKey {
        kind: Gvk::from_api_version(text("apiVersion").unwrap_or(""), text("kind")?),
        namespace: scaler.namespace().to_owned(),
        name: text("name")?.to_owned(),
    })
}

/// A workload, and whether an autoscaler scales it.
pub(crate) struct View {
    labels: Value,
    scaled: bool,
}

/// What to do with the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    Keep,
    Put,
    Take,
}

fn decide(view: &View) -> Plan {
    let mark = view.labels.get(RETAIN_REPLICAS);
    match (view.scaled, mark) {
        (true, Some(mark)) if mark == TRUE => Plan::Keep,
        (true, _) => Plan::Put,
        (false, Some(_)) => Plan::Take,
        (false, None) => Plan::Keep,
    }
}

impl Reconcile for Controller {
    type Key = TemplateKey;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &TemplateKey) -> Result<Option<View>, Error> {
        let templates = &self.plane.templates;
        let reference = ObjectReference {
            api_version: key.kind.api_version(),
            kind: key.kind.kind.clone(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            ..ObjectReference::default()
        };
        let workload = match templates.get(key) {
            Some(workload) => Some(workload),
            None => templates.fetch(&reference).await?,
        };
        let Some(workload) = workload else { return Ok(None) };
        let scaled = self.scaled.lock().values().any(|target| target == key);
        Ok(Some(View { labels: workload["metadata"]["labels"].clone(), scaled }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &TemplateKey, _: View, plan: Plan) -> Result<Outcome, Error> {
        let mark = match plan {
            Plan::Keep => return Ok(Outcome::Done),
            Plan::Put => json!(TRUE),
            Plan::Take => Value::Null,
        };
        let patch = json!({ "metadata": { "labels": { RETAIN_REPLICAS: mark } } });
        self.plane.templates.patch(key, patch).await.map(|_| Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::merged;
    use crate::world::World;

    fn scaler(otherwise: Value) -> Value {
        merged(
            json!({
                "apiVersion": "autoscaling/v2", "kind": KIND,
                "metadata": { "name": "h", "namespace": "n", "labels": { PROPAGATION_POLICY_PERMANENT_ID: "id" } },
                "spec": { "maxReplicas": 3, "scaleTargetRef": { "apiVersion": "v1", "kind": "ConfigMap", "name": "web" } },
            }),
            otherwise,
        )
    }

    #[test]
    fn the_mark_follows_the_autoscaler() {
        let marked = || json!({ RETAIN_REPLICAS: "true" });
        for (name, labels, scaled, expected) in [
            ("it is scaled and not marked", json!({}), true, Plan::Put),
            ("it has no labels", Value::Null, true, Plan::Put),
            ("it is marked", marked(), true, Plan::Keep),
            ("it is marked with something else", json!({ RETAIN_REPLICAS: "false" }), true, Plan::Put),
            ("it is scaled no more", marked(), false, Plan::Take),
            ("it was never scaled", json!({}), false, Plan::Keep),
        ] {
            assert_eq!(decide(&View { labels, scaled }), expected, "{name}");
        }
    }

    #[test]
    fn which_workloads_a_change_concerns() {
        let key = Key::new("n", "h");
        let mine = || Some(scaler(json!({})));
        let other = || Some(scaler(json!({ "spec": { "scaleTargetRef": { "name": "other" } } })));
        let free = || Some(scaler(json!({ "metadata": { "labels": null }, "spec": null })));
        let by_cluster_policy = json!({ "metadata": { "labels": {
            PROPAGATION_POLICY_PERMANENT_ID: null, CLUSTER_PROPAGATION_POLICY_PERMANENT_ID: "id",
        } } });
        for (name, states, expected) in [
            ("a new one", vec![mine()], vec!["web"]),
            ("one that nobody propagates", vec![free()], vec![]),
            ("another target", vec![mine(), other()], vec!["other", "web"]),
            ("it is propagated now", vec![free(), mine()], vec!["web"]),
            ("it is propagated no more", vec![mine(), free()], vec![]),
            ("it is propagated again", vec![mine(), free(), mine()], vec!["web"]),
            ("propagated again, to another target", vec![mine(), free(), other()], vec!["other", "web"]),
            ("it is gone", vec![mine(), None], vec!["web"]),
            ("it is gone after its policy", vec![mine(), free(), None], vec!["web"]),
            ("one that nobody propagated is gone", vec![free(), None], vec![]),
            ("another kind", vec![Some(scaler(json!({ "kind": "Other" })))], vec![]),
            (
                "the kind of another group",
                vec![Some(scaler(json!({ "apiVersion": "example.com/v1" })))],
                vec![],
            ),
            (
                "one that no policy has claimed",
                vec![Some(scaler(json!({ "metadata": { "labels": null } })))],
                vec![],
            ),
            ("one that a cluster policy has claimed", vec![Some(scaler(by_cluster_policy))], vec!["web"]),
        ] {
            let (mut scaled, mut old, mut found) = (Scaled::new(), None, BTreeSet::new());
            for new in states {
                let new = new.map(Arc::new);
                let change = Change { key: &key, old, new: new.clone(), ours: false, initial: false };
                found = concerned(&mut scaled, &change);
                old = new;
            }
            let names: Vec<&str> = found.iter().map(|target| target.name.as_str()).collect();
            assert_eq!(names, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn the_mark_is_put_once_and_stays_until_the_last_autoscaler_is_gone() {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        world.plane.templates.learn("autoscaling", "v2", KIND, true);
        let space = json!({ "metadata": { "namespace": world.namespace, "resourceVersion": "1" } });
        world.template("web", json!({})).await;
        let one = scaler(space.clone());
        let two = scaler(merged(space, json!({ "metadata": { "name": "h2" } })));
        world.plane.templates.note(&one);
        world.plane.templates.note(&two);
        let key = target(&one).expect("a target");
        assert_eq!(queue.waiting(), std::slice::from_ref(&key));
        let mark = || async {
            world.once(controller.as_ref(), &key).await;
            let writes = world.durable_writes();
            let stored =
                world.api::<k8s_openapi::api::core::v1::ConfigMap>(&world.namespace).get("web").await;
            let stored = world.know(stored.expect("it is there"));
            (writes, stored["metadata"]["labels"].get(RETAIN_REPLICAS).is_some())
        };
        let patch = || vec!["PATCH */configmaps/web".to_owned()];
        world.writes();
        assert_eq!(mark().await, (patch(), true));
        assert_eq!(mark().await, (vec![], true), "a second look writes nothing");
        world.plane.templates.forget(&one);
        assert_eq!(mark().await, (vec![], true), "another one scales it");
        let free = merged(two.clone(), json!({ "metadata": { "labels": null, "resourceVersion": "2" } }));
        world.plane.templates.note(&free);
        assert_eq!(mark().await, (vec![], true), "that it has no policy any more changes nothing in members");
        world.plane.templates.forget(&two);
        assert_eq!(mark().await, (patch(), false));
        let nowhere = TemplateKey { name: "nowhere".to_owned(), ..key.clone() };
        assert_eq!(world.once(controller.as_ref(), &nowhere).await, Outcome::Done);
        world.supervisor.stop().await;
    }

    #[tokio::test]
    async fn finding_25_what_has_no_namespace_gets_no_mark() {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        world.plane.templates.learn("autoscaling", "v2", KIND, true);
        let reference = json!({ "apiVersion": "v1", "kind": "Namespace", "name": world.namespace });
        let one = scaler(json!({
            "metadata": { "namespace": world.namespace, "resourceVersion": "1" },
            "spec": { "scaleTargetRef": reference },
        }));
        world.plane.templates.note(&one);
        let key = target(&one).expect("a target");
        assert_eq!(queue.waiting(), std::slice::from_ref(&key));
        world.writes();
        assert_eq!(world.once(controller.as_ref(), &key).await, Outcome::Done);
        assert_eq!(world.writes(), Vec::<String>::new());
        world.supervisor.stop().await;
    }
}
