//! Decides which remote APIServices can be reached, writes their `Available` condition, and puts them into the registry. Watches
//! APIServices, Services and their endpoints. It also checks every half minute, since a server can stop answering without a
//! change of any object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::conditions;
use apimachinery::pointer;
use jiff::Timestamp;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use super::{COLLECTION, Remote, discovery, local};
use crate::handlers::write::second;
use crate::internal::Actor;
use crate::object;
use crate::outbound::{Address, ServicePort};
use crate::server::Server;

const EVERY: Duration = Duration::from_secs(30);
/// How often unavailable APIServices are checked.
const EVERY_WHEN_DOWN: Duration = Duration::from_secs(2);

/// The `Available` condition.
pub(super) struct Condition {
    available: bool,
    reason: &'static str,
    message: String,
}

impl Condition {
    pub(super) fn new(available: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { available, reason, message: message.into() }
    }

    /// Returns the APIService with this condition; `None` if it already has it.
    pub(super) fn written_to(&self, service: &Value, now: Timestamp) -> Option<Value> {
        let status = if self.available { "True" } else { "False" };
        let mut new = service.clone();
        let condition = conditions::condition("Available", status, self.reason, self.message.as_str());
        conditions::set(pointer::object_at(&mut new, "status"), condition, &second(now)).then_some(new)
    }
}

/// Puts the stored remote APIServices into the registry, with their last known availability.
pub(crate) fn load(server: &Server) {
    let remotes: Vec<Remote> = server
        .store
        .snapshot(COLLECTION)
        .iter()
        .filter_map(|entry| Remote::read(&serde_json::from_slice(&entry.value).ok()?))
        .collect();
    if !remotes.is_empty() {
        serve(server, remotes);
    }
}

fn serve(server: &Server, remotes: Vec<Remote>) {
    let remotes = Arc::new(remotes);
    server.registry.rcu(|registry| registry.with_remotes(remotes.clone()));
}

pub(crate) async fn run(server: Arc<Server>) {
    let actor = Actor::new(&server, "system:kube-aggregator");
    let revision = server.store.revision();
    let watch = |collection: &str| server.store.watch(collection, revision);
    let (Ok(mut services), Ok(mut slices), Ok(mut endpoints), Ok(mut registrations), Ok(mut definitions)) = (
        watch("services/specs"),
        watch("endpointslices"),
        watch("services/endpoints"),
        watch(COLLECTION),
        watch(crate::controllers::definitions::COLLECTION),
    ) else {
        return;
    };
    let mut looks = Looks::default();
    // Which servers are asked when something has happened, and which groups were known when they were asked last.
    let (mut whom, mut known) = (Whom::All, None);
    loop {
        // Most changes of definitions concern groups that are already known.
        if known.is_none_or(|known| known != local::groups(&server)) {
            local::register(&actor).await;
            let remotes = announced(&server);
            looks.start(&remotes, whom, Instant::now(), |remote| look(server.clone(), remote));
        }
        let groups = local::groups(&server);
        whom = Whom::All;
        let due = looks.due(Instant::now());
        let lost = tokio::select! {
            batch = services.next() => batch.is_err(),
            batch = slices.next() => batch.is_err(),
            batch = endpoints.next() => batch.is_err(),
            batch = registrations.next() => batch.is_err(),
            batch = definitions.next() => {
                known = Some(groups);
                if batch.is_err() {
                    return;
                }
                continue;
            }
            looked = looks.next(Instant::now) => {
                settle(&actor, looked).await;
                known = Some(groups);
                continue;
            }
            () = tokio::time::sleep_until(due) => {
                whom = Whom::Due;
                false
            }
        };
        known = None;
        if lost {
            return;
        }
    }
}

/// Returns the stored remote APIServices as they are declared, and brings the registry up to date with them, before any server is
/// asked, since asking may take a while. What is known about one remains.
fn announced(server: &Server) -> Vec<Remote> {
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("apiregistration.k8s.io", "v1", "apiservices") else { return Vec::new() };
    let snapshot = server.store.snapshot(COLLECTION);
    let objects = snapshot.iter().filter_map(|entry| server.read_or_warn(kind, entry));
    let remotes: Vec<Remote> = objects.filter_map(|service| Remote::read(&service)).collect();
    let known: HashMap<&str, &Remote> =
        registry.remotes().iter().map(|known| (known.name.as_str(), known)).collect();
    let remotes: Vec<Remote> = remotes
        .into_iter()
        .map(|remote| match known.get(remote.name.as_str()) {
            Some(known) => remote.with_what_is_known(known),
            None => remote,
        })
        .collect();
    if registry.remotes() != remotes.as_slice() {
        serve(server, remotes.clone());
    }
    remotes
}

/// Writes down what servers answered: in the registry, and as the condition of their APIServices.
async fn settle(actor: &Actor, looked: Vec<Looked>) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("apiregistration.k8s.io", "v1", "apiservices").cloned() else { return };
    let mut remotes = registry.remotes().to_vec();
    for Looked { remote, .. } in &looked {
        // One that was declared anew is asked anew.
        let same = remotes.iter_mut().find(|known| known.is_declared_as(remote));
        if let Some(known) = same {
            *known = remote.clone();
        }
    }
    if registry.remotes() != remotes.as_slice() {
        serve(server, remotes);
    }
    let now = Timestamp::now();
    for Looked { remote, condition } in looked {
        let change = |old: &Value| {
            let declared = Remote::read(old).filter(|declared| declared.is_declared_as(&remote));
            declared.and_then(|_| condition.written_to(old, now))
        };
        let stored = server.store.get(COLLECTION, &remote.name);
        let stored = stored.and_then(|entry| server.read_or_warn(&kind, &entry));
        if stored.is_some_and(|stored| change(&stored).is_some())
            && let Err(status) = actor.update(&kind, "", &remote.name, "status", change).await
        {
            tracing::debug!(error = %status, "cannot write the condition of an APIService");
        }
    }
}

/// What a remote server answered.
struct Looked {
    remote: Remote,
    condition: Condition,
}

impl Looked {
    /// Returns when it is asked again.
    fn pause(&self) -> Duration {
        if self.condition.available && self.remote.fresh { EVERY } else { EVERY_WHEN_DOWN }
    }
}

/// Which servers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    All,
    /// Those that have not been asked for a while.
    Due,
}

/// The servers that are being asked. None waits for another one: a slow one keeps only itself waiting.
#[derive(Default)]
struct Looks {
    running: JoinSet<Looked>,
    /// By the name of the APIService.
    states: HashMap<String, State>,
}

struct State {
    declared: Remote,
    /// Set while the server is asked.
    task: Option<AbortHandle>,
    /// Something has happened meanwhile.
    again: bool,
    due: Instant,
}

impl Looks {
    /// Asks servers that are not being asked yet, and no longer those that are gone or have moved.
    fn start<F>(&mut self, remotes: &[Remote], whom: Whom, now: Instant, look: impl Fn(Remote) -> F)
    where
        F: Future<Output = Looked> + Send + 'static,
    {
        let mut before = std::mem::take(&mut self.states);
        for remote in remotes {
            let known = before.remove(&remote.name);
            let (same, moved) = match known {
                Some(state) if state.declared.is_declared_as(remote) => (Some(state), None),
                other => (None, other),
            };
            moved.iter().for_each(State::stop);
            let state = match same {
                Some(mut state) if state.task.is_some() => {
                    state.again |= whom == Whom::All;
                    state
                }
                Some(state) if whom == Whom::Due && state.due > now => state,
                _ => {
                    let task = self.running.spawn(look(remote.clone()));
                    State { declared: remote.clone(), task: Some(task), again: false, due: now }
                }
            };
            self.states.insert(remote.name.clone(), state);
        }
        before.values().for_each(State::stop);
    }

    /// Waits until a server has answered; returns all that have by then.
    async fn next(&mut self, now: impl Fn() -> Instant) -> Vec<Looked> {
        let mut answered = Vec::new();
        while answered.is_empty() {
            match self.running.join_next().await {
                Some(result) => answered.extend(self.end(result, now())),
                None => std::future::pending().await,
            }
        }
        while let Some(result) = self.running.try_join_next() {
            answered.extend(self.end(result, now()));
        }
        answered
    }

    /// Returns the answer, unless nobody waits for it any more.
    fn end(&mut self, result: Result<Looked, JoinError>, now: Instant) -> Option<Looked> {
        let looked = match result {
            Ok(looked) => looked,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return None,
        };
        let state = self.states.get_mut(&looked.remote.name)?;
        // It may have been stopped too late.
        if !state.declared.is_declared_as(&looked.remote) {
            return None;
        }
        state.task = None;
        state.due = if state.again { now } else { after(now, looked.pause()) };
        Some(looked)
    }

    /// Returns when a server is to be asked again, or our own APIServices are looked at.
    fn due(&self, now: Instant) -> Instant {
        let idle = self.states.values().filter(|state| state.task.is_none());
        idle.map(|state| state.due).fold(after(now, EVERY), Instant::min)
    }
}

fn after(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or(now)
}

impl State {
    fn stop(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Asks a remote server. While it is away, the last known answer remains.
async fn look(server: Arc<Server>, mut remote: Remote) -> Looked {
    if let Some(condition) = obstacle(&server, &remote.service) {
        remote.available = false;
        remote.fresh = false;
        return Looked { remote, condition };
    }
    // Its discovery counts even while it is not available.
    let (probed, resources) =
        tokio::join!(discovery::probe(&server, &remote), discovery::resources(&server, &remote));
    let resources = resources.map(Arc::new);
    // If the resources are unchanged, so are their documents.
    if remote.openapi.is_none() || resources != remote.resources {
        remote.openapi = discovery::openapi(&server, &remote).await.map(Arc::from);
    }
    remote.fresh = resources.is_some();
    remote.resources = resources.or(remote.resources);
    let condition = match probed {
        Ok(()) => Condition::new(true, "Passed", "all checks passed"),
        Err(why) => Condition::new(false, "FailedDiscoveryCheck", why),
    };
    remote.available = condition.available;
    Looked { remote, condition }
}

/// Returns what is missing before the server can be called at all.
fn obstacle(server: &Server, wanted: &ServicePort) -> Option<Condition> {
    let ServicePort { namespace, name, port } = wanted;
    let Some(entry) = server.store.get("services/specs", &object::join_key(namespace, name)) else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Condition::new(false, "ServiceNotFound", message));
    };
    let service: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    if pointer::text(&service, "/spec/type") != "ClusterIP" {
        return None;
    }
    let ports = pointer::list(&service, "/spec/ports");
    let Some(found) = ports.iter().find(|candidate| candidate["port"] == *port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Condition::new(false, "ServicePortError", message));
    };
    let (any, active) = endpoints(server, wanted, found["name"].as_str().unwrap_or(""));
    if !any {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Condition::new(false, "EndpointsNotFound", message));
    }
    if !active {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {:?}",
            found["name"].as_str().unwrap_or("")
        );
        return Some(Condition::new(false, "MissingEndpoints", message));
    }
    None
}

/// Returns whether a Service has endpoints at all, and whether one of them is ready.
fn endpoints(server: &Server, wanted: &ServicePort, _port_name: &str) -> (bool, bool) {
    let slices = server.store.snapshot("endpointslices");
    let sliced = slices.iter().any(|entry| {
        object::split_key(&entry.name).0 == wanted.namespace
            && entry.head.label("kubernetes.io/service-name") == Some(wanted.name.as_str())
    });
    let plain =
        server.store.get("services/endpoints", &object::join_key(&wanted.namespace, &wanted.name)).is_some();
    (sliced || plain, Address::Service(wanted.clone()).has_endpoints(server))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::Notify;

    use super::*;

    fn remote(name: &str, port: u16) -> Remote {
        let service = json!({"metadata": {"name": name}, "spec": {"group": name, "version": "v1",
            "service": {"name": name, "namespace": "default", "port": port}}});
        Remote::read(&service).unwrap()
    }

    fn passed(mut remote: Remote) -> Looked {
        (remote.available, remote.fresh) = (true, true);
        Looked { remote, condition: Condition::new(true, "Passed", "") }
    }

    fn names(looked: &[Looked]) -> Vec<&str> {
        looked.iter().map(|looked| looked.remote.name.as_str()).collect()
    }

    #[tokio::test]
    async fn finding_13_a_slow_server_delays_no_other() {
        let answers = Arc::new(Notify::new());
        let look = |remote: Remote| {
            let answers = answers.clone();
            async move {
                if remote.name == "slow" {
                    answers.notified().await;
                }
                passed(remote)
            }
        };
        let now = Instant::now();
        let mut looks = Looks::default();
        let remotes = [remote("slow", 1), remote("quick", 1)];
        looks.start(&remotes, Whom::All, now, look);
        for _ in 0..3 {
            assert_eq!(names(&looks.next(|| now).await), ["quick"]);
            // It is looked at again, although the slow one has not answered yet.
            looks.start(&remotes, Whom::All, now, look);
            assert_eq!(looks.running.len(), 2, "nobody is asked twice at the same time");
        }
        assert_eq!(names(&looks.next(|| now).await), ["quick"]);
        assert_eq!(looks.due(now), after(now, EVERY), "nothing is due while the slow one is asked");
        answers.notify_one();
        assert_eq!(names(&looks.next(|| now).await), ["slow"]);
        // Something has happened since it was asked, so it is due at once; the other one is not.
        assert_eq!(looks.due(now), now);
        looks.start(&remotes, Whom::Due, now, look);
        assert_eq!(looks.running.len(), 1);
        assert!(looks.states["slow"].task.is_some());
    }

    #[tokio::test]
    async fn a_server_that_moved_is_asked_at_its_new_place() {
        let look = |remote: Remote| async move {
            if remote.service.port == 1 {
                std::future::pending::<()>().await;
            }
            passed(remote)
        };
        let now = Instant::now();
        let mut looks = Looks::default();
        looks.start(&[remote("a", 1), remote("b", 1)], Whom::All, now, look);
        // One has moved, the other one is gone.
        looks.start(&[remote("a", 2)], Whom::Due, now, look);
        let looked = looks.next(|| now).await;
        assert_eq!((names(&looked), looked[0].remote.service.port), (vec!["a"], 2));
        assert_eq!(looks.states.len(), 1);
        while let Some(result) = looks.running.join_next().await {
            assert!(result.is_err_and(|error| error.is_cancelled()), "nobody else is asked any more");
        }
        assert_eq!(looks.due(now), after(now, EVERY));
        looks.start(&[remote("a", 2)], Whom::Due, after(now, EVERY), look);
        assert_eq!(looks.running.len(), 1, "it is asked again after a while");
    }

    #[test]
    fn a_condition_that_stays_is_not_written_again() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let later: Timestamp = "2026-01-02T04:04:05Z".parse().unwrap();
        let down = Condition::new(false, "ServiceNotFound", "gone");
        let first = down.written_to(&json!({"spec": {}}), now).unwrap();
        assert_eq!(down.written_to(&first, later), None);
        let other = Condition::new(false, "MissingEndpoints", "none").written_to(&first, later).unwrap();
        assert_eq!(other["status"]["conditions"][0]["lastTransitionTime"], "2026-01-02T03:04:05Z");
        let up = Condition::new(true, "Passed", "all checks passed").written_to(&other, later).unwrap();
        assert_eq!(up["status"]["conditions"][0]["lastTransitionTime"], "2026-01-02T04:04:05Z");
    }
}
