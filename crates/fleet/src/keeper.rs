//! Keeps the caches in step with the plan, and reports the result in each registry's status.
//!
//! Watches: ResourceRegistry, Cluster. Writes: the condition `Cached` of ResourceRegistries (Karmada's controller writes no
//! status).
//!
//! Every registered kind has a cache, even if no cluster matches. Each place of a kind has one follower. The followers of a
//! cluster share a client, which is replaced when the route to the cluster changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::cluster::Cluster;
use api::search::{OpenSearchConfig, ResourceRegistry};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use member::Connection;
use parking_lot::{Mutex, RwLock};
use runtime::room::Budget;
use runtime::{Mirror, Supervisor};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Place, Stale};
use crate::follow::{Backoff, Follower, in_future};
use crate::plan::{Kind, Plan, SELECTORS, plan};
use crate::source::Collection;

/// How long changes are collected before the plan is computed again.
const GATHER: Duration = Duration::from_millis(50);
/// How often the plan is computed again without a change: definitions are created, Secrets change.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How often the status of registries is updated.
const TELL: Duration = Duration::from_secs(1);
/// How long requests wait for the first plan after a start.
const FIRST_PLAN: Duration = Duration::from_secs(10);
/// How many problems a condition names.
const COMPLAINTS: usize = 5;

/// Returns how the control plane serves a kind, by its `apiVersion` and name.
pub type Resolve = Arc<dyn Fn(&str, &str) -> Option<Kind> + Send + Sync>;

/// Finds the control plane's route to a cluster.
pub type FindWay = Arc<dyn Fn(Arc<Cluster>) -> BoxFuture<'static, member::Result<Connection>> + Send + Sync>;

/// A registry whose objects are also sent to OpenSearch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    pub registry: String,
    pub store: OpenSearchConfig,
    pub kinds: BTreeMap<Kind, BTreeSet<Place>>,
}

/// All caches.
pub struct Fleet {
    caches: RwLock<BTreeMap<(String, String, String), Arc<Cache>>>,
    clients: RwLock<HashMap<String, Client>>,
    budget: Arc<Budget>,
    planned: tokio::sync::watch::Sender<u64>,
    backends: tokio::sync::watch::Sender<Vec<Backend>>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Fleet").field("caches", &self.caches.read().len()).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Returns a fleet whose objects may take this many bytes of memory.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            caches: RwLock::default(),
            clients: RwLock::default(),
            budget: Arc::new(Budget::new(limit)),
            planned: tokio::sync::watch::Sender::new(0),
            backends: tokio::sync::watch::Sender::default(),
        })
    }

    /// Returns the cache of a resource, if a registry names its kind.
    pub fn cache(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Cache>> {
        self.caches.read().get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    pub fn caches(&self) -> Vec<Arc<Cache>> {
        self.caches.read().values().cloned().collect()
    }

    /// Returns a client with the credentials of the followers, if the cluster is followed.
    pub fn client(&self, cluster: &str) -> Option<Client> {
        self.clients.read().get(cluster).cloned()
    }

    /// Waits a limited time until the registered kinds are known.
    pub async fn planned(&self) {
        let mut planned = self.planned.subscribe();
        let _ = tokio::time::timeout(FIRST_PLAN, planned.wait_for(|count| *count > 0)).await;
    }

    /// Returns how many bytes the caches hold, and their limit.
    pub fn memory(&self) -> (usize, usize) {
        (self.budget.used(), self.budget.limit())
    }

    /// Returns the registries whose objects are also sent to OpenSearch, and notifies about changes.
    pub fn backends(&self) -> tokio::sync::watch::Receiver<Vec<Backend>> {
        self.backends.subscribe()
    }

    /// Adds the cache of a kind, or returns the existing one.
    pub fn add(&self, kind: &Kind) -> Arc<Cache> {
        let key = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
        let mut caches = self.caches.write();
        caches.entry(key).or_insert_with(|| Arc::new(Cache::new(kind.clone(), self.budget.clone()))).clone()
    }

    /// Removes everything that is no longer in the plan, even if no follower runs for it any more: a cluster may have got another
    /// route at the same moment.
    fn keep_only(&self, kinds: &BTreeMap<Kind, BTreeSet<Place>>) {
        self.caches.write().retain(|_, cache| {
            let planned = kinds.get(&cache.kind);
            for (place, ..) in cache.places() {
                if planned.is_none_or(|places| !places.contains(&place)) {
                    cache.forget(&place);
                }
            }
            if planned.is_none() {
                cache.closed.cancel();
            }
            planned.is_some()
        });
    }

    /// Keeps the caches in step until it is stopped.
    pub fn start(
        self: &Arc<Self>,
        control: Client,
        resolve: Resolve,
        find_way: FindWay,
        supervisor: &Supervisor,
    ) {
        let keeper = Arc::new(Keeper {
            fleet: self.clone(),
            control: control.clone(),
            resolve,
            find_way,
            registries: Arc::default(),
            clusters: Arc::default(),
            followed: Mutex::default(),
            ways: Mutex::default(),
            changed: Arc::default(),
            supervisor: supervisor.clone(),
        });
        let stop = supervisor.token().clone();
        let changed = keeper.changed.clone();
        keeper.registries.subscribe(move |change| {
            // A change of only the status is our own.
            let spec = |registry: &Option<Arc<ResourceRegistry>>| {
                registry.as_ref().map(|registry| registry.spec.clone())
            };
            if spec(&change.old) != spec(&change.new) {
                changed.notify_one();
            }
        });
        let changed = keeper.changed.clone();
        keeper.clusters.subscribe(move |change| {
            if facts(change.old.as_deref()) != facts(change.new.as_deref()) {
                changed.notify_one();
            }
        });
        let (registries, client, ended) = (keeper.registries.clone(), control.clone(), stop.clone());
        supervisor.keep("fleet/registries", move || {
            let (registries, api, ended) = (registries.clone(), Api::<ResourceRegistry>::all(client.clone()), ended.clone());
            async move { registries.follow(api, watcher::Config::default(), ended, |registry| registry).await }
        });
        let (clusters, client, ended) = (keeper.clusters.clone(), control, stop.clone());
        supervisor.keep("fleet/clusters", move || {
            let (clusters, api, ended) =
                (clusters.clone(), Api::<Cluster>::all(client.clone()), ended.clone());
            async move { clusters.follow(api, watcher::Config::default(), ended, |cluster| cluster).await }
        });
        supervisor.keep("fleet/keeper", move || {
            let (keeper, stop) = (keeper.clone(), stop.clone());
            async move { keeper.run(&stop).await }
        });
    }
}

/// The facts about a cluster that determine its part in the plan and the route to it.
fn facts(cluster: Option<&Cluster>) -> Option<serde_json::Value> {
    let cluster = cluster?;
    let going = cluster.metadata.deletion_timestamp.is_some();
    Some(json!([cluster.metadata.labels, cluster.spec, cluster.status.api_enablements, going]))
}

struct Keeper {
    fleet: Arc<Fleet>,
    control: Client,
    resolve: Resolve,
    find_way: FindWay,
    registries: Arc<Mirror<ResourceRegistry>>,
    clusters: Arc<Mirror<Cluster>>,
    followed: Mutex<HashMap<(Kind, Place), CancellationToken>>,
    /// The route to each cluster that is followed, or why there is none.
    ways: Mutex<HashMap<String, Result<Connection, String>>>,
    changed: Arc<Notify>,
    supervisor: Supervisor,
}

impl Keeper {
    async fn run(&self, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = async { tokio::join!(self.registries.complete(), self.clusters.complete()); } => {}
        }
        let mut tell = tokio::time::interval(TELL);
        let mut look = tokio::time::Instant::now();
        let mut complaints = BTreeMap::new();
        loop {
            if tokio::time::Instant::now() >= look {
                complaints = self.carry_out().await;
                look = in_future(LOOK_AGAIN);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed.notified() => {
                    tokio::time::sleep(GATHER).await;
                    look = tokio::time::Instant::now();
                }
                () = tokio::time::sleep_until(look) => {}
                _ = tell.tick() => self.tell(&complaints).await,
            }
        }
    }

    /// Computes the plan and carries it out. Returns the problems of each registry.
    async fn carry_out(&self) -> BTreeMap<String, BTreeSet<String>> {
        let registries = self.registries.all();
        let clusters = self.clusters.all();
        let known: Vec<&Cluster> = clusters.iter().map(|cluster| &**cluster).collect();
        let Plan { kinds, complaints } =
            plan(registries.iter().map(|registry| &**registry), &known, &*self.resolve);
        let needed: BTreeSet<&str> = kinds.values().flatten().map(|place| &*place.cluster).collect();
        self.find_ways(&needed, &clusters).await;
        // Removals come first: a place that becomes part of another one must not take the other's objects along.
        let mut followed = self.followed.lock();
        followed.retain(|(kind, place), stop| {
            let stays = kinds.get(kind).is_some_and(|places| places.contains(place));
            if !stays {
                stop.cancel();
            }
            stays
        });
        self.fleet.keep_only(&kinds);
        for (kind, places) in &kinds {
            let cache = self.fleet.add(kind);
            for place in places {
                let entry = followed.entry((kind.clone(), place.clone()));
                if let std::collections::hash_map::Entry::Vacant(vacant) = entry {
                    cache.expect(place);
                    vacant.insert(self.follow(&cache, place));
                }
            }
        }
        let backends: Vec<Backend> = registries
            .iter()
            .filter_map(|registry| {
                let store = registry.spec.backend_store.as_ref()?.open_search.clone()?;
                let kinds = plan([&**registry], &known, &*self.resolve).kinds;
                Some(Backend { registry: registry.metadata.name.clone().unwrap_or_default(), store, kinds })
            })
            .collect();
        self.fleet.backends.send_if_modified(|now| {
            let changed = *now != backends;
            *now = backends;
            changed
        });
        self.fleet.planned.send_modify(|count| *count = count.wrapping_add(1));
        complaints
    }

    /// Finds the routes to the clusters. Clusters whose route has changed are followed anew, from where they were.
    async fn find_ways(&self, needed: &BTreeSet<&str>, clusters: &[Arc<Cluster>]) {
        let mut found = HashMap::new();
        for cluster in clusters {
            let name = cluster.metadata.name.clone().unwrap_or_default();
            if needed.contains(name.as_str()) {
                let way = (self.find_way)(cluster.clone()).await;
                found.insert(name, way.map_err(|error| error.to_string()));
            }
        }
        let mut clients = HashMap::new();
        for (name, way) in &found {
            let same = self.ways.lock().get(name) == Some(way);
            let client = match (same, self.fleet.client(name), way) {
                (true, known, _) => known,
                (false, _, Ok(way)) => way.limited_client().await.ok(),
                (false, _, Err(_)) => None,
            };
            if let Some(client) = client {
                clients.insert(name.clone(), client);
            }
            if !same {
                // The followers of the old route end; the caches keep what they knew.
                self.followed.lock().retain(|(_, place), stop| {
                    let stays = *place.cluster != **name;
                    if !stays {
                        stop.cancel();
                    }
                    stays
                });
            }
        }
        *self.ways.lock() = found;
        *self.fleet.clients.write() = clients;
    }

    /// Starts a follower. Returns the handle that ends it.
    fn follow(&self, cache: &Arc<Cache>, place: &Place) -> CancellationToken {
        let stop = self.supervisor.token().child_token();
        let Some(client) = self.fleet.client(&place.cluster) else {
            let way = self.ways.lock().get(&*place.cluster).cloned();
            let why = way.and_then(Result::err).unwrap_or_else(|| "there is no way to it".to_owned());
            let since = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string();
            cache.mark(place, Some(Stale { since: since.into(), why }));
            return stop;
        };
        let path = cache.kind.path(place.namespace.as_deref());
        let follower = Arc::new(Follower {
            cache: cache.clone(),
            place: place.clone(),
            source: Box::new(Collection { client, path }),
            backoff: Backoff::default(),
        });
        let task = format!("fleet/{place}/{}", cache.kind.plural);
        let ended = stop.clone();
        self.supervisor.keep_until(task, stop.clone(), move || {
            let (follower, ended) = (follower.clone(), ended.clone());
            async move { follower.run(&ended).await }
        });
        stop
    }

    /// Writes the conditions of registries that have changed.
    async fn tell(&self, complaints: &BTreeMap<String, BTreeSet<String>>) {
        let troubles = self.troubles();
        for registry in self.registries.all() {
            let name = registry.metadata.name.clone().unwrap_or_default();
            let mut all = complaints.get(&name).cloned().unwrap_or_default();
            for selector in registry.spec.resource_selectors.iter().take(SELECTORS) {
                let Some(kind) = (self.resolve)(&selector.api_version, &selector.kind) else { continue };
                let meant = |cluster: &str| {
                    let cluster = self.clusters.get("", cluster);
                    cluster.is_some_and(|cluster| {
                        placement::affinity::cluster_matches(&cluster, &registry.spec.target_cluster)
                    })
                };
                let own =
                    troubles.iter().filter(|((other, place), _)| *other == kind && meant(&place.cluster));
                all.extend(own.map(|((kind, place), why)| {
                    format!("cluster {}: {}: {why}", place.cluster, kind.plural)
                }));
            }
            let old = registry.status.conditions.iter().find(|condition| condition.type_ == CACHED);
            let Some(condition) = condition(&all, old, registry.metadata.generation) else { continue };
            let others = registry.status.conditions.iter().filter(|condition| condition.type_ != CACHED);
            let conditions: Vec<_> = others.cloned().chain([condition]).collect();
            let patch = json!({"status": {"conditions": conditions}});
            let api = Api::<ResourceRegistry>::all(self.control.clone());
            if let Err(error) = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                tracing::debug!(registry = name, %error, "cannot write the status");
            }
        }
    }

    /// Returns the places that are stale or have not been listed yet.
    fn troubles(&self) -> BTreeMap<(Kind, Place), String> {
        let mut troubles = BTreeMap::new();
        for cache in self.fleet.caches() {
            for (place, listed, stale) in cache.places() {
                let why = match stale {
                    Some(stale) => stale.why,
                    None if !listed => "not listed yet".to_owned(),
                    None => continue,
                };
                troubles.insert((cache.kind.clone(), place), why);
            }
        }
        troubles
    }
}

/// The condition of a registry: everything that it names is followed.
pub const CACHED: &str = "Cached";

/// Returns the condition if it differs from the old one.
fn condition(
    complaints: &BTreeSet<String>,
    old: Option<&Condition>,
    generation: Option<i64>,
) -> Option<Condition> {
    let (status, reason, message) = if complaints.is_empty() {
        ("True", "Followed", "everything that is registered is followed".to_owned())
    } else {
        let mut shown: Vec<_> = complaints.iter().take(COMPLAINTS).cloned().collect();
        if complaints.len() > COMPLAINTS {
            shown.push(format!("and {} more", complaints.len().saturating_sub(COMPLAINTS)));
        }
        ("False", "Stale", shown.join("; "))
    };
    let same = |old: &&Condition| {
        old.status == status
            && old.reason == reason
            && old.message == message
            && old.observed_generation == generation
    };
    if old.filter(same).is_some() {
        return None;
    }
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now());
    let since = old.filter(|old| old.status == status).map_or(now, |old| old.last_transition_time.clone());
    Some(Condition {
        type_: CACHED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;

    #[test]
    fn what_left_the_plan_is_forgotten_even_if_nobody_follows_it() {
        let (pods, maps) =
            (Kind::test("", "v1", "Pod", "pods"), Kind::test("", "v1", "ConfigMap", "configmaps"));
        let fleet = Fleet::new(1 << 20);
        let (m1, m2) = (Place::cluster("m1"), Place::cluster("m2"));
        for kind in [&pods, &maps] {
            let cache = fleet.add(kind);
            for place in [&m1, &m2] {
                let object = json!({"metadata": {"name": "x", "namespace": "a", "resourceVersion": "1"}});
                cache.expect(place);
                cache.replace(place, 7, vec![Entry::new(kind, object).unwrap()]).unwrap();
            }
        }
        let (kept, gone) = (fleet.add(&pods), fleet.add(&maps));
        fleet.keep_only(&BTreeMap::from([(pods, BTreeSet::from([m2.clone()]))]));
        assert_eq!(kept.get("a/x").iter().map(|found| &found.place).collect::<Vec<_>>(), [&m2]);
        assert!(gone.closed.is_cancelled() && gone.get("a/x").is_empty() && !kept.closed.is_cancelled());
        assert_eq!(fleet.caches().len(), 1);
    }

    #[test]
    fn a_condition_is_written_only_when_it_says_something_new() {
        let none = BTreeSet::new();
        let first = condition(&none, None, Some(1)).unwrap();
        assert_eq!((first.status.as_str(), first.reason.as_str()), ("True", "Followed"));
        assert!(condition(&none, Some(&first), Some(1)).is_none());
        let many: BTreeSet<String> = (0..7).map(|number| format!("cluster m{number}: away")).collect();
        let bad = condition(&many, Some(&first), Some(1)).unwrap();
        assert_eq!(bad.status, "False");
        assert!(bad.message.ends_with("cluster m4: away; and 2 more"), "{}", bad.message);
        assert!(condition(&many, Some(&bad), Some(1)).is_none());
        assert!(condition(&many, Some(&bad), Some(2)).is_some(), "another generation");
    }
}
