//! Decides which remote APIServices can be reached, writes their `Available` condition, and puts them into the registry. Watches
//! APIServices, Services and their endpoints. It also checks every half minute, since a server can stop answering without a
//! change of any object.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::conditions;
use apimachinery::object::Object;
use futures::future::join_all;
use jiff::Timestamp;
use serde_json::Value;

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
        conditions::set(&mut new["status"], condition, &second(now)).then_some(new)
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
    let (mut all_up, mut known) = (true, None);
    loop {
        // Most changes of definitions concern groups that are already known.
        if known.is_none_or(|known| known != local::groups(&server)) {
            local::register(&actor).await;
            all_up = settle(&actor).await;
        }
        let groups = local::groups(&server);
        let pause = if all_up { EVERY } else { EVERY_WHEN_DOWN };
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
            () = tokio::time::sleep(pause) => false,
        };
        known = None;
        if lost {
            return;
        }
    }
}

/// Checks all remote APIServices. Returns whether all of them are available.
async fn settle(actor: &Actor) -> bool {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("apiregistration.k8s.io", "v1", "apiservices").cloned() else {
        return true;
    };
    let objects: Vec<Value> = server
        .store
        .snapshot(COLLECTION)
        .iter()
        .filter_map(|entry| server.read_or_warn(&kind, entry))
        .collect();
    announce(server, &objects);
    let looked = join_all(objects.iter().filter_map(|service| {
        let remote = Remote::read(service)?;
        let known = registry.remote(&remote.group, &remote.version);
        Some(async move { (service, look(server, remote, known).await) })
    }));
    let looked = looked.await;
    let mut remotes = Vec::new();
    let mut conditions = Vec::new();
    for (service, (mut remote, condition)) in looked {
        remote.available = condition.available;
        remotes.push(remote);
        conditions.push((service, condition));
    }
    let settled = remotes.iter().all(|remote| remote.fresh);
    if registry.remotes() != remotes.as_slice() {
        serve(server, remotes);
    }
    let all_up = settled && conditions.iter().all(|(_, condition)| condition.available);
    let now = Timestamp::now();
    for (service, condition) in conditions {
        let change = |old: &Value| condition.written_to(old, now);
        if change(service).is_some()
            && let Err(status) = actor.update(&kind, "", service.name(), "status", change).await
        {
            tracing::debug!(error = %status, "cannot write the condition of an APIService");
        }
    }
    all_up
}

/// Adds the group versions of new APIServices and removes those of old ones, before any server is asked, since asking may take a
/// while.
fn announce(server: &Server, objects: &[Value]) {
    let registry = server.registry.load_full();
    let known = |remote: &Remote| registry.remotes().iter().find(|known| known.name == remote.name).cloned();
    let remotes: Vec<Remote> = objects.iter().filter_map(Remote::read).collect();
    let names = |remotes: &[Remote]| remotes.iter().map(|remote| remote.name.clone()).collect::<Vec<_>>();
    if names(&remotes) != names(registry.remotes()) {
        let remotes = remotes.into_iter().map(|remote| known(&remote).unwrap_or(remote)).collect();
        serve(server, remotes);
    }
}

/// Asks a remote server. While it is away, the last known answer remains.
async fn look(server: &Arc<Server>, mut remote: Remote, known: Option<&Remote>) -> (Remote, Condition) {
    if let Some(known) = known {
        remote.resources.clone_from(&known.resources);
        remote.openapi.clone_from(&known.openapi);
    }
    if let Some(condition) = obstacle(server, &remote.service) {
        return (remote, condition);
    }
    // Its discovery counts even while it is not available.
    let (probed, resources) =
        tokio::join!(discovery::probe(server, &remote), discovery::resources(server, &remote));
    let resources = resources.map(Arc::new);
    // If the resources are unchanged, so are their documents.
    if remote.openapi.is_none() || resources != remote.resources {
        remote.openapi = discovery::openapi(server, &remote).await.map(Arc::new);
    }
    remote.fresh = resources.is_some();
    remote.resources = resources.or(remote.resources);
    let condition = match probed {
        Ok(()) => Condition::new(true, "Passed", "all checks passed"),
        Err(why) => Condition::new(false, "FailedDiscoveryCheck", why),
    };
    (remote, condition)
}

/// Returns what is missing before the server can be called at all.
fn obstacle(server: &Server, wanted: &ServicePort) -> Option<Condition> {
    let ServicePort { namespace, name, port } = wanted;
    let Some(entry) = server.store.get("services/specs", &object::join_key(namespace, name)) else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Condition::new(false, "ServiceNotFound", message));
    };
    let service: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    if service["spec"]["type"] != "ClusterIP" {
        return None;
    }
    let ports = service["spec"]["ports"].as_array();
    let Some(found) = ports.into_iter().flatten().find(|candidate| candidate["port"] == *port) else {
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

    use super::*;

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
