//! Requests to place workloads afresh, on a server.

use http::Method;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain};

const STATUS: &str = "PATCH workloadrebalancers/*-r/status";
const WEB: &str = "PATCH */resourcebindings/web-configmap";

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<String>>,
    name: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        let name = world.own("r");
        Self { world, controller, queue, name }
    }

    /// A request for these workloads.
    async fn request(&self, workloads: &[Value], otherwise: Value) -> Arc<WorkloadRebalancer> {
        let base = json!({ "metadata": { "name": self.name }, "spec": { "workloads": workloads } });
        self.world.put(&self.world.environment.mirrors.rebalancers, merged(base, otherwise)).await
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.name).await
    }

    fn map(&self, name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": self.world.namespace, "name": name })
    }

    /// The binding of another ConfigMap than `web`, on the server only.
    async fn binding_of(&self, name: &str) -> ResourceBinding {
        let binding = json!({
            "metadata": { "name": format!("{name}-configmap"), "namespace": self.world.namespace },
            "spec": { "resource": self.map(name) },
        });
        self.world.create(binding).await
    }

    /// The binding of a ClusterRole, which the mirror knows.
    async fn cluster_binding(&self) -> Arc<ClusterResourceBinding> {
        let binding = json!({
            "metadata": { "name": self.world.own("reader-clusterrole") }, "spec": { "resource": self.role() },
        });
        self.world.put(&self.world.environment.mirrors.cluster_bindings, binding).await
    }

    fn role(&self) -> Value {
        let name = self.world.own("reader");
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": name })
    }

    fn known(&self) -> Arc<WorkloadRebalancer> {
        self.world.environment.mirrors.rebalancers.get("", &self.name).expect("the mirror knows it")
    }

    async fn stored(&self) -> Option<WorkloadRebalancer> {
        self.world.api::<WorkloadRebalancer>("").get_opt(&self.name).await.expect("the server answers")
    }

    /// What has become of each workload, as the server has it, and whether the request is finished.
    async fn results(&self) -> (Vec<String>, bool) {
        let status = self.stored().await.expect("it exists").status;
        let one = |one: &ObservedWorkload| {
            let result = one.result.as_ref().map_or("open", |result| result.as_str());
            let name = one.workload.name.replace(&self.world.namespace, "*");
            format!("{name} {result} {}", one.reason).trim_end().to_owned()
        };
        (status.observed_workloads.iter().map(one).collect(), status.finish_time.is_some())
    }

    /// Whether the server has this binding, placed afresh by the request.
    async fn is_asked<B: StoredBinding>(&self, binding: &B) -> bool {
        let stored = self.world.stored(binding).await.expect("it exists");
        let created = self.known().metadata.creation_timestamp.clone();
        created.is_some() && stored.spec().reschedule_triggered_at == created
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn finished(results: &[&str]) -> (Vec<String>, bool) {
    (results.iter().map(|result| (*result).to_owned()).collect(), true)
}

#[tokio::test]
async fn workloads_of_both_scopes_are_placed_afresh_once() {
    let test = Test::new().await;
    let (web, reader) = (test.world.binding(json!({})).await, test.cluster_binding().await);
    test.request(&[test.map("web"), test.map("gone"), test.role()], json!({})).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let reader_written = "PATCH clusterresourcebindings/*-reader-clusterrole";
    assert_eq!(test.world.writes(), [reader_written, WEB, STATUS]);
    assert!(test.is_asked(web.as_ref()).await && test.is_asked(reader.as_ref()).await);
    let results = ["*-reader Successful", "gone Failed ReferencedBindingNotFound", "web Successful"];
    assert_eq!(test.results().await, finished(&results));
    assert_eq!(test.known().status, test.stored().await.expect("it exists").status, "the mirror knows");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "once is enough");
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_the_mirror_does_not_know_yet_is_found() {
    let test = Test::new().await;
    let fresh = test.binding_of("fresh").await;
    test.request(&[test.map("fresh"), test.map("gone")], json!({})).await;
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.is_asked(&fresh).await);
    let results = ["fresh Successful", "gone Failed ReferencedBindingNotFound"];
    assert_eq!(test.results().await, finished(&results));
    let asked = |name: &str| test.world.reads().iter().any(|path| path.ends_with(name));
    assert!(asked("/resourcebindings/gone-configmap"), "\"not found\" is final, so the server said it");
    test.end().await;
}

#[tokio::test]
async fn a_later_request_of_somebody_else_is_not_undone() {
    let test = Test::new().await;
    let later = json!({ "spec": { "rescheduleTriggeredAt": "2999-01-01T00:00:00Z" } });
    let binding = test.world.binding(later).await;
    test.request(&[test.map("web")], json!({})).await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS], "it is placed afresh anyhow");
    assert!(!test.is_asked(binding.as_ref()).await);
    assert_eq!(test.results().await, finished(&["web Successful"]));
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_somebody_changed_meanwhile_stays_open() {
    let test = Test::new().await;
    let binding = test.world.binding(json!({})).await;
    test.request(&[test.map("web")], json!({})).await;
    // The scheduler places it, of which the mirror has not heard yet.
    let placed = json!({ "spec": { "clusters": [{ "name": "m1" }] } });
    let changed = test.world.patch(binding.as_ref(), placed).await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(test.results().await, (vec!["web open".to_owned()], false));
    test.world.environment.mirrors.bindings.note(changed);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [WEB, STATUS]);
    assert!(test.is_asked(binding.as_ref()).await);
    let stored = test.world.stored(binding.as_ref()).await.expect("it exists");
    assert_eq!(stored.spec.clusters.len(), 1, "the placement is not ours");
    assert_eq!(test.results().await, finished(&["web Successful"]));
    test.end().await;
}

#[tokio::test]
async fn one_binding_that_is_refused_holds_up_no_other() {
    let test = Test::new().await;
    let (web, other) = (test.world.binding(json!({})).await, test.binding_of("other").await);
    // With a time to live, which does not begin before all are done.
    let brief = json!({ "spec": { "ttlSecondsAfterFinished": 0 } });
    test.request(&[test.map("web"), test.map("other")], brief).await;
    test.world.refuse(Method::PATCH, "/resourcebindings/web-configmap", 403, "Forbidden");
    let refused = Outcome::Failed { error: "refused: Forbidden".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    assert!(test.is_asked(&other).await && !test.is_asked(web.as_ref()).await);
    let (results, is_finished) = test.results().await;
    assert_eq!((results, is_finished), (vec!["other Successful".to_owned(), "web open".to_owned()], false));
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    let gone = "DELETE workloadrebalancers/*-r";
    assert_eq!(test.world.writes(), [WEB, STATUS, gone], "the other one is not asked again");
    assert!(test.is_asked(web.as_ref()).await);
    assert!(test.stored().await.is_none());
    test.end().await;
}

#[tokio::test]
async fn a_binding_that_vanishes_meanwhile_is_told_as_missing() {
    let test = Test::new().await;
    let binding = test.world.binding(json!({})).await;
    test.request(&[test.map("web")], json!({})).await;
    let api = test.world.api::<ResourceBinding>(&test.world.namespace);
    api.delete("web-configmap", &DeleteParams::default()).await.expect("it goes");
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: false, .. }), "{outcome:?}");
    assert_eq!(test.results().await, (vec!["web open".to_owned()], false));
    test.world.environment.mirrors.bindings.remove(&Key::of(binding.as_ref()), 0);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.results().await, finished(&["web Failed ReferencedBindingNotFound"]));
    test.end().await;
}

#[tokio::test]
async fn a_status_that_is_refused_is_written_by_the_next_look() {
    let test = Test::new().await;
    test.world.binding(json!({})).await;
    test.request(&[test.map("web")], json!({})).await;
    test.world.refuse(Method::PATCH, &format!("/{}/status", test.name), 500, "InternalError");
    let refused = Outcome::Failed { error: "refused: InternalError".to_owned(), conflict: false };
    assert_eq!(test.once().await, refused);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS], "the binding has been asked");
    assert_eq!(test.results().await, finished(&["web Successful"]));
    test.end().await;
}

#[tokio::test]
async fn a_request_goes_when_its_time_is_over_unless_it_was_changed() {
    let test = Test::new().await;
    let gone =
        json!({ "workload": test.map("gone"), "result": "Failed", "reason": "ReferencedBindingNotFound" });
    let over = json!({
        "spec": { "ttlSecondsAfterFinished": 5 },
        "status": {
            "observedWorkloads": [gone], "observedGeneration": 1, "finishTime": "2020-01-01T00:00:00Z",
        },
    });
    let request = test.request(&[test.map("gone")], over).await;
    // Somebody looks after it, of which the mirror has not heard yet.
    let kept = json!({ "metadata": { "labels": { "kept": "" } } });
    let changed = test.world.patch(request.as_ref(), kept).await;
    test.world.writes();
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    assert_eq!(test.world.writes(), ["DELETE workloadrebalancers/*-r"]);
    assert!(test.stored().await.is_some());
    test.world.environment.mirrors.rebalancers.note(changed);
    assert_eq!(test.once().await, Outcome::Done);
    assert!(test.stored().await.is_none());
    assert_eq!(test.once().await, Outcome::Done, "the mirror still has it, and deleting it again is fine");
    test.world.environment.mirrors.rebalancers.remove(&Key::new("", &test.name), 0);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_request_with_time_left_waits_for_its_end() {
    let test = Test::new().await;
    test.world.binding(json!({})).await;
    test.request(&[test.map("web")], json!({ "spec": { "ttlSecondsAfterFinished": 3600 } })).await;
    let waits = |outcome: Outcome| match outcome {
        Outcome::After(left) => left > Duration::from_secs(3500) && left <= Duration::from_secs(3600),
        _ => false,
    };
    assert!(waits(test.once().await));
    test.world.writes();
    assert!(waits(test.once().await), "it counts from the end, not from the last look");
    assert_eq!(test.world.writes(), [""; 0]);
    assert!(test.stored().await.is_some());
    test.end().await;
}

#[tokio::test]
async fn a_request_that_is_being_deleted_asks_for_nothing() {
    let test = Test::new().await;
    let binding = test.world.binding(json!({})).await;
    let held = json!({ "metadata": { "finalizers": ["example.io/held"] } });
    let request = test.request(&[test.map("web")], held).await;
    test.world.environment.mirrors.rebalancers.note(test.world.let_go(request.as_ref()).await);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    assert!(!test.is_asked(binding.as_ref()).await);
    test.end().await;
}

#[tokio::test]
async fn what_brings_a_request_up() {
    let test = Test::new().await;
    let request = test.request(&[test.map("web")], json!({})).await;
    let mirror = &test.world.environment.mirrors.rebalancers;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.name), "it is new");
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(drain(&test.queue), [""; 0], "our own status");
    test.world.binding(json!({})).await;
    assert_eq!(drain(&test.queue), [""; 0], "a binding that comes later is not placed afresh");
    let more = json!({ "spec": { "workloads": [test.map("web"), test.map("more")] } });
    mirror.note(test.world.patch(request.as_ref(), more).await);
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.name), "it asks for more");
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [STATUS], "what failed is not tried again, as upstream");
    mirror.remove(&Key::new("", &test.name), 0);
    assert_eq!(drain(&test.queue), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_on_the_request() {
    let test = Test::new().await;
    test.request(&[test.map("web")], json!({})).await;
    drain(&test.queue);
    let told = test.world.panicked(&test.queue, test.name.clone()).await;
    assert_eq!(told, "workload-rebalancer panicked and tries again later: by accident");
    test.end().await;
}

#[tokio::test]
async fn finding_25_a_namespace_that_is_a_path_is_not_asked_for() {
    let test = Test::new().await;
    let path = format!("{}/resourcebindings?watch=true&a=", test.world.namespace);
    let workload = json!({ "apiVersion": "v1", "kind": "ConfigMap", "namespace": path, "name": "odd" });
    test.request(&[workload], json!({})).await;
    // It would be a watch of all bindings, for hours, and keep the worker.
    let ended = tokio::time::timeout(Duration::from_secs(30), test.once()).await;
    assert_eq!(ended.expect("an end"), Outcome::Done);
    assert_eq!(test.results().await, finished(&["odd Failed ReferencedBindingNotFound"]));
    test.end().await;
}
