//! A control plane for tests inside this crate: a real API server, what controllers share, and a record of
//! all requests.
//!
//! One server serves all tests of the binary; each test has its own namespace and prefix. Mirrors do not
//! watch the server: a test puts objects into them. So they can be out of date, which is how tests produce
//! conflicts and vanished objects. Behind the cluster proxy is the server itself, whatever the name of the
//! cluster.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use api::features::Features;
use api::labels::{RESOURCE_BINDING_PERMANENT_ID, annotations};
use api::work::{ResourceBinding, Work};
use apiserver::auth::User;
use estimator::server::Estimator;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use parking_lot::Mutex;
use runtime::writer::Stored;
use runtime::{Key, Mirror, Outcome, Queue, Reconcile, Supervisor, Turns, Writer, controller};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::environment::Environment;
use crate::fixtures::{merged, read};
use crate::members::Shared;
use crate::plane::Plane;
use crate::{Context, MyClusters, Settings};

const DEADLINE: Duration = Duration::from_secs(60);

/// The client of a server that lives as long as the process, on threads of its own.
static SERVER: LazyLock<Client> = LazyLock::new(|| {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let options = apiserver::Options {
                definitions: api::crd::all().into_iter().chain(api::crd::aggregated()).collect(),
                ..apiserver::Options::default()
            };
            let handle = apiserver::start(options).await.expect("the server starts");
            let client = apiserver::local::client(&handle.server, User::system("system:admin"));
            sender.send(client).expect("somebody waits");
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().expect("the server starts")
});

/// A request that was made.
#[derive(Debug, Clone)]
struct Call {
    method: Method,
    path: String,
    body: Value,
    /// It may be answered before it is on disk.
    derived: bool,
}

/// All requests that were made, and those that have to fail.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    calls: Vec<Call>,
    refusals: Vec<Refusal>,
}

/// Requests of a method to a path that ends like this are answered with a status, this often.
struct Refusal {
    method: Method,
    path: String,
    times: usize,
    status: Value,
}

impl Calls {
    /// Records a request; returns the answer to give if the request has to fail.
    fn see(&self, call: Call) -> Option<Value> {
        let mut recorded = self.0.lock();
        let fits = |refusal: &&mut Refusal| {
            refusal.times > 0 && refusal.method == call.method && call.path.ends_with(&refusal.path)
        };
        let answer = recorded.refusals.iter_mut().find(fits).map(|refusal| {
            refusal.times -= 1;
            refusal.status.clone()
        });
        recorded.calls.push(call);
        answer
    }
}

/// A client whose requests are recorded, as durable ones or as derived ones.
fn recording(calls: &Calls, derived: bool) -> Client {
    let calls = calls.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let calls = calls.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            let call = Call {
                method: parts.method.clone(),
                path: parts.uri.path().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
                derived,
            };
            if let Some(status) = calls.see(call) {
                let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                let answer =
                    Response::builder().status(code).body(Body::from(status.to_string().into_bytes()));
                return answer.map_err(|error| error.to_string());
            }
            if let Some((_, path)) = parts.uri.to_string().split_once("/proxy/") {
                parts.uri = format!("/{path}").parse().map_err(|_| "not a path".to_owned())?;
            }
            SERVER
                .clone()
                .send(Request::from_parts(parts, Body::from(body.to_vec())))
                .await
                .map_err(|error| error.to_string())
        }
    });
    Client::new(service, "default")
}

pub(crate) struct World {
    pub(crate) environment: Arc<Environment>,
    pub(crate) plane: Arc<Plane>,
    /// The test's own namespace.
    pub(crate) namespace: String,
    pub(crate) supervisor: Supervisor,
    calls: Calls,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        Self::make(settings, |_, _| MyClusters::Push).await
    }

    /// A world in which this process is responsible only for cluster `m1`, which is the server itself.
    pub(crate) async fn agent() -> Self {
        Self::agent_with(Settings::default()).await
    }

    /// As [`Self::agent`], with other settings.
    pub(crate) async fn agent_with(settings: Settings) -> Self {
        let one = |namespace: &str, client: &Client| MyClusters::One {
            name: format!("{namespace}-m1"),
            client: client.clone(),
        };
        Self::make(settings, one).await
    }

    async fn make(settings: Settings, mine: impl FnOnce(&str, &Client) -> MyClusters) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("world-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let (calls, supervisor) = (Calls::default(), Supervisor::default());
        let client = recording(&calls, false);
        let clusters = mine(&namespace, &client);
        let writer = Writer::with_derived(client.clone(), recording(&calls, true));
        let context = Context { settings, clusters, writer, ..Context::new(client, supervisor.clone()) };
        let environment = Arc::new(Environment::new(&context));
        let plane = Plane::new(&environment, &context.settings);
        for (group, kind) in [("", "ConfigMap"), ("", "Secret"), ("apps", "Deployment")] {
            plane.templates.learn(group, "v1", kind, true);
        }
        plane.templates.learn("", "v1", "Namespace", false);
        let world = Self { environment, plane, namespace, supervisor, calls };
        world.namespace(&world.namespace).await;
        world
    }

    /// Returns what the controllers of the member side share, if these run.
    pub(crate) fn members(&self, chosen: &[&str]) -> Arc<Shared> {
        Shared::new(&self.environment, &chosen.iter().copied().collect())
    }

    /// Returns a name that no other test has.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub(crate) async fn namespace(&self, name: &str) {
        let namespace: Namespace = read(json!({ "metadata": { "name": name } }));
        Api::all(SERVER.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    }

    /// Returns the objects of a kind, without recording the request.
    pub(crate) fn api<K: Stored>(&self, namespace: &str) -> Api<K> {
        Writer::new(SERVER.clone()).api(namespace)
    }

    /// Creates an object with its status on the server, but not in the mirror.
    pub(crate) async fn create<K: Stored>(&self, object: Value) -> K {
        let status = object.get("status").cloned();
        let object: K = read(object);
        let api = self.api::<K>(object.meta().namespace.as_deref().unwrap_or(""));
        let created = api.create(&PostParams::default(), &object).await.expect("it is accepted");
        match status {
            None => created,
            Some(status) => {
                let patch = Patch::Merge(json!({ "status": status }));
                let name = object.meta().name.as_deref().unwrap_or("");
                api.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is accepted")
            }
        }
    }

    /// Creates an object on the server and in the mirror.
    pub(crate) async fn put<K: Stored>(&self, mirror: &Mirror<K>, object: Value) -> Arc<K> {
        let created = self.create::<K>(object).await;
        let key = Key::of(&created);
        mirror.note(created);
        mirror.find(&key).expect("the mirror knows it")
    }

    /// Creates the binding of ConfigMap `web` in the test's namespace, and the mirror knows it.
    pub(crate) async fn binding(&self, otherwise: Value) -> Arc<ResourceBinding> {
        let base = json!({
            "metadata": {
                "name": "web-configmap", "namespace": self.namespace,
                "labels": { RESOURCE_BINDING_PERMANENT_ID: format!("id-{}", self.namespace) },
            },
            "spec": { "resource": {
                "apiVersion": "v1", "kind": "ConfigMap", "namespace": self.namespace, "name": "web", "uid": "t",
            } },
        });
        self.put(&self.environment.mirrors.bindings, merged(base, otherwise)).await
    }

    /// Registers a ready cluster with its execution namespace, and the mirror knows it; returns its name.
    pub(crate) async fn cluster(&self, name: &str, otherwise: Value) -> String {
        let name = self.own(name);
        self.namespace(&api::names::execution_space(&name)).await;
        let base = json!({
            "metadata": { "name": name }, "spec": { "syncMode": "Push" },
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "apiEnablements": [
                    { "groupVersion": "v1", "resources": [{ "name": "configmaps", "kind": "ConfigMap" }] },
                    { "groupVersion": "apps/v1", "resources": [{ "name": "deployments", "kind": "Deployment" }] },
                ],
            },
        });
        self.put(&self.environment.mirrors.clusters, merged(base, otherwise)).await;
        name
    }

    /// Serves the estimator of a cluster, where clients with these options find it. It knows the nodes and pods of the server itself.
    pub(crate) async fn serve_estimator(&self, cluster: &str, options: &estimator::Options) {
        let client = self.environment.client().clone();
        let estimator = Estimator::new(cluster, client, Features::default(), &self.supervisor);
        estimator.complete().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(estimator.serve(listener, None, self.supervisor.token().clone()));
        // Other tests have theirs in the same namespace.
        let namespace = read(json!({ "metadata": { "name": options.namespace } }));
        let made = self.api::<Namespace>("").create(&PostParams::default(), &namespace).await;
        assert!(
            made.is_ok() || matches!(&made, Err(kube::Error::Api(status)) if status.code == 409),
            "{made:?}"
        );
        let name = format!("{}-{cluster}", options.prefix);
        let ports = json!([{ "port": options.port, "targetPort": port }]);
        let service = json!({
            "metadata": { "name": name, "namespace": options.namespace },
            "spec": { "type": "ExternalName", "externalName": "127.0.0.1", "ports": ports },
        });
        self.create::<Service>(service).await;
    }

    /// Creates a Work of that binding in a cluster, and the mirror knows it.
    pub(crate) async fn work(&self, cluster: &str, otherwise: Value) -> Arc<Work> {
        let base = json!({
            "metadata": {
                "name": "web-1", "namespace": api::names::execution_space(cluster),
                "labels": { RESOURCE_BINDING_PERMANENT_ID: format!("id-{}", self.namespace) },
                "annotations": {
                    annotations::RESOURCE_BINDING_NAME: "web-configmap",
                    annotations::RESOURCE_BINDING_NAMESPACE: self.namespace,
                },
                "finalizers": ["karmada.io/execution-controller"],
            },
            "spec": { "workload": { "manifests": [
                { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "web", "namespace": self.namespace } },
            ] } },
        });
        self.put(&self.environment.mirrors.works, merged(base, otherwise)).await
    }

    /// Creates a ConfigMap and has the templates know it, whole or as a head.
    pub(crate) async fn template(&self, name: &str, otherwise: Value) -> Value {
        let base = json!({ "metadata": { "name": name, "namespace": self.namespace }, "data": { "k": "v" } });
        let made = self.create::<ConfigMap>(merged(base, otherwise)).await;
        self.know(made)
    }

    /// Has the templates know an object as the server answered it.
    pub(crate) fn know<K: Stored>(&self, object: K) -> Value {
        let mut template = serde_json::to_value(object).expect("a tree");
        template["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        self.plane.templates.note(&template);
        template
    }

    /// Changes an object on the server, but not in the mirror.
    pub(crate) async fn patch<K: Stored>(&self, object: &K, patch: Value) -> K {
        let name = object.meta().name.as_deref().unwrap_or("");
        let api = self.api::<K>(object.meta().namespace.as_deref().unwrap_or(""));
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is accepted")
    }

    /// Changes the status of an object on the server, but not in the mirror.
    pub(crate) async fn patch_status<K: Stored>(&self, object: &K, status: Value) -> K {
        let name = object.meta().name.as_deref().unwrap_or("");
        let api = self.api::<K>(object.meta().namespace.as_deref().unwrap_or(""));
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is accepted")
    }

    /// Tells the server to delete an object that a finalizer holds; returns the object as it then is.
    pub(crate) async fn let_go<K: Stored>(&self, object: &K) -> K {
        let name = object.meta().name.as_deref().unwrap_or("");
        let api = self.api::<K>(object.meta().namespace.as_deref().unwrap_or(""));
        api.delete(name, &DeleteParams::default()).await.expect("told to go");
        self.stored(object).await.expect("it is held")
    }

    /// Has a mirror know what the server has in a namespace, as its watch would.
    pub(crate) async fn catch_up<K: Stored>(&self, mirror: &Mirror<K>, namespace: &str) {
        let stored = self.all::<K>(namespace).await;
        let there: BTreeSet<Key> = stored.iter().map(Key::of).collect();
        for gone in mirror.keys(|key| key.namespace == namespace && !there.contains(key)) {
            mirror.remove(&gone, 0);
        }
        stored.into_iter().for_each(|object| mirror.note(object));
    }

    /// Returns all objects of a kind in a namespace, as the server has them.
    pub(crate) async fn all<K: Stored>(&self, namespace: &str) -> Vec<K> {
        self.api::<K>(namespace).list(&ListParams::default()).await.expect("the server answers").items
    }

    /// Returns an object as the server has it.
    pub(crate) async fn stored<K: Stored>(&self, object: &K) -> Option<K> {
        let name = object.meta().name.as_deref().unwrap_or("");
        let api = self.api::<K>(object.meta().namespace.as_deref().unwrap_or(""));
        api.get_opt(name).await.expect("the server answers")
    }

    /// Has the next request of a method to a path that ends like this answered with an error.
    pub(crate) fn refuse(&self, method: Method, path: &str, code: u16, reason: &str) {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": format!("refused: {reason}"),
        });
        let refusal = Refusal { method, path: path.to_owned(), times: 1, status };
        self.calls.0.lock().refusals.push(refusal);
    }

    /// Returns the paths that were read, and keeps them.
    pub(crate) fn reads(&self) -> Vec<String> {
        let recorded = self.calls.0.lock();
        recorded
            .calls
            .iter()
            .filter(|call| call.method == Method::GET)
            .map(|call| call.path.clone())
            .collect()
    }

    /// Returns what was written since the last time: method and path from the collection on. Events are left out.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.written(|_| true)
    }

    /// As [`Self::writes`], and forgets the others: those that are on disk before they are answered.
    pub(crate) fn durable_writes(&self) -> Vec<String> {
        self.written(|call| !call.derived)
    }

    fn written(&self, counts: impl Fn(&Call) -> bool) -> Vec<String> {
        let is_event = |call: &Call| call.path.contains("/events");
        let mut recorded = self.calls.0.lock();
        let (events, calls) = std::mem::take(&mut recorded.calls).into_iter().partition(is_event);
        recorded.calls = events;
        drop(recorded);
        let calls: Vec<Call> = calls;
        let writes = calls.iter().filter(|call| call.method != Method::GET && counts(call));
        let short = |call: &Call| {
            let path = call.path.split_once("/namespaces/").map_or(call.path.as_str(), |(_, rest)| rest);
            let path = path.rsplit_once("/v1alpha1/").map_or(path, |(_, rest)| rest);
            let path = path.rsplit_once("/v1alpha2/").map_or(path, |(_, rest)| rest);
            format!("{} {}", call.method, path.replace(&self.namespace, "*"))
        };
        writes.map(short).collect()
    }

    /// Waits for an event with this reason; returns its message.
    pub(crate) async fn event(&self, reason: &str) -> String {
        let found = || {
            let recorded = self.calls.0.lock();
            let mut events = recorded.calls.iter().filter(|call| call.path.contains("/events"));
            let event = events.find(|call| call.body["reason"] == reason)?;
            event.body["message"].as_str().map(str::to_owned)
        };
        let waiting = async {
            loop {
                if let Some(message) = found() {
                    return message;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("no event {reason}"))
    }

    /// Waits for so many events with this reason; returns the kinds that they are about, in order.
    pub(crate) async fn told_of(&self, reason: &str, count: usize) -> Vec<String> {
        let found = || {
            let recorded = self.calls.0.lock();
            let events = recorded.calls.iter().filter(|call| call.path.contains("/events"));
            let events = events.filter(|call| call.body["reason"] == reason);
            let kinds =
                events.filter_map(|call| call.body["involvedObject"]["kind"].as_str().map(str::to_owned));
            kinds.collect::<Vec<_>>()
        };
        let waiting = async {
            loop {
                let found = found();
                if found.len() >= count {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("too few events {reason}"))
    }

    /// Returns whether an event with this reason has been written. Events are written in order, so wait for a later one first.
    pub(crate) fn was_told(&self, reason: &str) -> bool {
        let recorded = self.calls.0.lock();
        recorded.calls.iter().any(|call| call.path.contains("/events") && call.body["reason"] == reason)
    }

    /// Has the work on a key panic; returns what is told of it.
    pub(crate) async fn panicked<K>(&self, queue: &Queue<K>, key: K) -> String
    where
        K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    {
        queue.push(key);
        let stop = CancellationToken::new();
        let turn = Turns::next(queue, &stop).await.expect("a turn");
        Turns::done(queue, turn, Outcome::Panicked("by accident".to_owned()));
        self.event("ReconcilePanicked").await
    }

    /// Goes through the three steps of a controller, once.
    pub(crate) async fn once<C: Reconcile>(&self, controller: &C, key: &C::Key) -> Outcome {
        controller::reconcile(controller, key).await
    }

    /// Reconciles until no key is due any more. Before each look, `hear` brings the mirrors up to date.
    pub(crate) async fn settle<C: Reconcile>(
        &self,
        controller: &C,
        queue: &Queue<C::Key>,
        hear: impl AsyncFn(),
    ) {
        for _ in 0..10 {
            hear().await;
            let due = drain(queue);
            if due.is_empty() {
                return;
            }
            for key in due {
                self.once(controller, &key).await;
            }
        }
        panic!("it goes on and on");
    }
}

/// Returns all orders of so many things.
pub(crate) fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for order in orders(last) {
        for place in 0..=order.len() {
            let mut longer = order.clone();
            longer.insert(place, last);
            all.push(longer);
        }
    }
    all
}

/// Takes everything out of a queue that is due, as if it were done; returns the keys.
pub(crate) fn drain<K>(queue: &Queue<K>) -> Vec<K>
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
{
    let stop = CancellationToken::new();
    let mut taken = Vec::new();
    while let Some(Some(turn)) = futures::FutureExt::now_or_never(Turns::next(queue, &stop)) {
        taken.push(<Queue<K> as Turns>::key(&turn));
        Turns::done(queue, turn, Outcome::Done);
    }
    taken
}
