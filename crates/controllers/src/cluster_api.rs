//! Joins the clusters that a management cluster of cluster-api has provisioned, and unjoins them when they are deleted there.
//!
//! Watches: `clusters.cluster.x-k8s.io` of the management cluster; Clusters that come and go.
//! Reads: from the management cluster, the Secret with the kubeconfig of a cluster to join, the definition of
//! its clusters, and its identity.
//! Writes: Cluster with its two Secrets; accounts and a role in the new member; Events in the management
//! cluster.
//!
//! Runs only with `--cluster-api-kubeconfig`, and has no name in `--controllers`, as in upstream. What a
//! cluster was joined for is in an annotation ([`Origin`]), and only such a cluster is ever unjoined:
//! upstream unjoins any cluster with the name of an object that is gone. A cached collection does not prove
//! that an object is gone. So before a cluster is unjoined, the management cluster itself has to say that the
//! object is gone, and it has to be the same management cluster as when the cluster was joined. Nothing is
//! unjoined if it does not answer, or if its definition of clusters is missing, being deleted or newer than
//! the join.
//!
//! The kubeconfig of a cluster is untrusted input: [`member::kubeconfig`] says which parts of it are used.

mod decide;
#[cfg(test)]
mod on_server;
mod origin;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::Cluster;
use api::constants::NAMESPACE_CLUSTER;
use api::labels::annotations::JOINED_FOR;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind, Status};
use kube::runtime::watcher;
use member::credentials::{Reported, prepare_member};
use member::kubeconfig::{Access, limited_client};
use member::registration;
use parking_lot::Mutex;
use runtime::room::Budget;
use runtime::{Change, Error, Events, Key, Mirror, Outcome, Queue, Reconcile, controller, place};

use crate::environment::Environment;
use crate::mirrors::Watch;
use decide::{Definition, Plan, Seen, Unjoin, View, decide};
use origin::Origin;

const COMPONENT: &str = "cluster-api-detector";
/// Upstream's name of the queue.
const QUEUE: &str = "cluster-api cluster detector";
/// As upstream. A key that waits for a cluster gives its place to others meanwhile.
const WORKERS: usize = 3;

const GROUP: &str = "cluster.x-k8s.io";
const VERSION: &str = "v1beta1";
const DEFINITION: &str = "clusters.cluster.x-k8s.io";

/// What the management cluster is called in messages.
const MANAGEMENT: &str = "the management cluster of cluster-api";
/// How much of the management cluster is cached: its Clusters have a few KiB each.
const COPY_LIMIT: usize = 64 << 20;
/// How long it may take to answer a question.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a join may take: it waits for two tokens, for half a minute each at most.
const JOINING: Duration = Duration::from_secs(120);
/// After this time a refused cluster is tried again. Its Secret is not watched: that would need the right to
/// read all Secrets.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long the first list may take before a warning says that it is missing.
const LISTING: Duration = Duration::from_secs(30);

/// Reasons of events in the management cluster. Upstream writes none.
const JOINED: &str = "JoinedToKarmada";
const NOT_JOINED: &str = "NotJoinedToKarmada";

/// Follows a management cluster. Called before the mirrors are followed.
pub(crate) fn start(environment: &Arc<Environment>, management: &Client) {
    let (discovery, queue) = subscribed(environment, management);
    let supervisor = &environment.supervisor;
    let (mirror, stop) = (discovery.provisioned.clone(), supervisor.token().clone());
    let api = Api::<DynamicObject>::all_with(management.clone(), &resource());
    supervisor.keep("mirror/cluster-api", move || {
        let (mirror, stop, api) = (mirror.clone(), stop.clone(), api.clone());
        let convert = |object: DynamicObject| Seen::of(&object);
        async move { mirror.follow(api, watcher::Config::default(), stop, convert).await }
    });
    let stop = supervisor.token().clone();
    supervisor.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = discovery.complete() => {
                controller::run(&discovery, &queue, WORKERS, &discovery.environment.supervisor);
            }
        }
    });
}

fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, "Cluster"), "clusters")
}

fn subscribed(environment: &Arc<Environment>, management: &Client) -> (Arc<Discovery>, Arc<Queue<Key>>) {
    let queue: Arc<Queue<Key>> = Queue::new(QUEUE);
    let provisioned =
        Arc::new(Mirror::<Seen>::default().within(MANAGEMENT, Arc::new(Budget::new(COPY_LIMIT))));
    let pushed = queue.clone();
    provisioned.subscribe(move |change: &Change<'_, Seen>| {
        // Conditions of the cluster change all the time and do not matter here.
        if change.old != change.new {
            pushed.push(change.key.clone());
        }
    });
    environment.mirrors.clusters.subscribe({
        let (pushed, provisioned) = (queue.clone(), provisioned.clone());
        move |change| {
            let cluster = match (&change.old, &change.new) {
                (None, Some(cluster)) | (Some(cluster), None) => cluster,
                _ => return,
            };
            // The object that it was joined for may have been deleted while no controller ran,
            if let Some(origin) = Origin::of(cluster) {
                pushed.push(origin.key);
            }
            // and another cluster may have waited for a name that is now free.
            for key in provisioned.keys(|key| key.name == change.key.name) {
                pushed.push(key);
            }
        }
    });
    let discovery = Arc::new(Discovery {
        environment: environment.clone(),
        management: management.clone(),
        provisioned,
        events: Events::new(management.clone(), &environment.supervisor),
        refusals: Mutex::default(),
    });
    (discovery, queue)
}

struct Discovery {
    environment: Arc<Environment>,
    management: Client,
    /// The clusters of the management cluster.
    provisioned: Arc<Mirror<Seen>>,
    /// Those of the management cluster.
    events: Events,
    /// The last reason why each cluster was not joined: the same reason is reported only once.
    refusals: Mutex<HashMap<Key, String>>,
}

/// An answer that does not allow a decision.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Undecided(String);

impl Discovery {
    /// Waits until the mirrors of both sides are complete.
    async fn complete(&self) {
        self.environment.mirrors.complete(&[Watch::Clusters]).await;
        while !self.provisioned.wait(LISTING).await {
            let clusters = Api::<DynamicObject>::all_with(self.management.clone(), &resource());
            let first = ListParams::default().limit(1);
            let listed = clusters.list_metadata(&first);
            let error = match tokio::time::timeout(LISTING, listed).await {
                Ok(Ok(_)) => continue,
                Ok(Err(error)) => Error::from(error).to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            tracing::warn!(
                controller = COMPONENT,
                error,
                "cannot list clusters.{GROUP}/{VERSION} of {MANAGEMENT}; nothing is joined or unjoined"
            );
        }
    }

    /// Asks the management cluster for the object that a Cluster was joined for; `None` only if it says that
    /// this very object does not exist.
    async fn look(&self, key: &Key) -> Result<Option<Seen>, Error> {
        let api = Api::<DynamicObject>::namespaced_with(self.management.clone(), &key.namespace, &resource());
        match api.get(&key.name).await {
            Ok(object) => Ok(Some(Seen::of(&object))),
            Err(kube::Error::Api(status)) if is_gone(&status, &key.name) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what is known of the definition of cluster-api's clusters; it fails if there is none.
    async fn definition(&self) -> Result<Definition, Error> {
        let definitions = Api::<CustomResourceDefinition>::all(self.management.clone());
        match definitions.get_metadata(DEFINITION).await {
            Ok(definition) => Ok(Definition::of(&definition.metadata)),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Definition::Unreadable),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what tells the management cluster from all others.
    async fn identity(&self) -> Result<String, Error> {
        let id = registration::id_of(&self.management, MANAGEMENT).await;
        id.map_err(|error| Error::decision(Undecided(error.brief())))
    }

    /// Returns the kubeconfig of a cluster, if there is one.
    async fn kubeconfig(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let secrets = Api::<Secret>::namespaced(self.management.clone(), &key.namespace);
        let secret = secrets.get_opt(&decide::secret_of(&key.name)).await?;
        Ok(secret.and_then(|secret| secret.data?.remove("value")).map(|value| value.0))
    }

    /// Registers a cluster.
    ///
    /// # Errors
    /// The reason in one line of bounded length, because part of it may come from the cluster.
    async fn join(&self, origin: &Origin, access: &Access) -> Result<Cluster, String> {
        let (name, control) = (&origin.key.name, self.environment.client());
        let config = access.config(name).await.map_err(|error| error.to_string())?;
        let member = limited_client(&config, name).map_err(|error| error.to_string())?;
        let joined = async {
            let id = registration::id_of(&member, name).await?;
            registration::refuse_registered(control, name, &id, NAMESPACE_CLUSTER).await?;
            let credentials = prepare_member(&member, name, NAMESPACE_CLUSTER, Reported::ALL).await?;
            let mut cluster = Cluster::default();
            cluster.metadata.name = Some(name.clone());
            cluster.metadata.annotations = Some([(JOINED_FOR.to_owned(), origin.to_string())].into());
            cluster.spec = registration::push(id, &config);
            registration::enter(control, &credentials, NAMESPACE_CLUSTER, cluster).await
        };
        match tokio::time::timeout(JOINING, joined).await {
            Ok(joined) => joined.map_err(|error| error.brief()),
            Err(_) => Err(format!("cluster {name} could not be joined within {} s", JOINING.as_secs())),
        }
    }

    /// Deletes a Cluster if it is still the one that was joined for the object that is gone.
    async fn unjoin(&self, origin: &Origin) -> Result<Outcome, Error> {
        let name = &origin.key.name;
        let clusters = self.environment.writer.api::<Cluster>("");
        let this_one = match decide::unjoin(clusters.get_opt(name).await?.as_ref(), origin) {
            Unjoin::Leave(why) => {
                tracing::debug!(controller = COMPONENT, cluster = name, object = %origin.key, why, "not unjoined");
                return Ok(Outcome::Done);
            }
            Unjoin::Delete { uid, resource_version } => Preconditions { uid, resource_version },
        };
        let parameters = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
        match clusters.delete(name, &parameters).await {
            Ok(_) => {
                tracing::info!(controller = COMPONENT, cluster = name, object = %origin.key, "unjoined: its object is gone");
                Ok(Outcome::Done)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    /// Reports why a cluster is not joined, once for each reason.
    fn tell(&self, key: &Key, seen: Option<&Seen>, why: String) {
        let told = self.refusals.lock().insert(key.clone(), why.clone());
        if told.as_ref() == Some(&why) {
            return;
        }
        tracing::warn!(controller = COMPONENT, object = %key, why, "a provisioned cluster is not joined");
        self.events.warning(COMPONENT, &reference(key, seen), NOT_JOINED, why);
    }
}

/// Waits for an answer of the management cluster, with a timeout, and without blocking other keys.
async fn answer<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answered = place::outside(tokio::time::timeout(ANSWER, asked)).await;
    answered.unwrap_or_else(|_| Err(Error::Waiting(format!("for {MANAGEMENT}, which does not answer"))))
}

/// Returns whether an answer says that an object does not exist. A missing definition is also answered with
/// 404, and so is a request that a proxy cannot route.
fn is_gone(status: &Status, name: &str) -> bool {
    let details = status.details.as_ref();
    let is_named = details.is_some_and(|details| details.group == GROUP && details.name == name);
    status.code == 404 && status.reason == "NotFound" && is_named
}

/// Returns the reference by which events name an object of the management cluster.
fn reference(key: &Key, seen: Option<&Seen>) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("Cluster".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: seen.map(|seen| seen.uid.clone()),
        ..ObjectReference::default()
    }
}

impl Reconcile for Discovery {
    type Key = Key;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &Key) -> Result<Option<View>, Error> {
        let cluster = self.environment.mirrors.clusters.get("", &key.name);
        let mut view = View::new(key.clone(), self.provisioned.find(key), cluster);
        if view.may_unjoin() {
            view.seen = answer(self.look(key)).await?.map(Arc::new);
        }
        // After the objects: if a deletion of the definition removed them, that is visible by then.
        if view.may_unjoin() {
            view.definition = answer(self.definition()).await?;
        }
        if view.may_join() {
            view.kubeconfig = answer(self.kubeconfig(key)).await?;
        }
        if view.may_join() || view.may_unjoin() {
            view.management = answer(self.identity()).await?;
        }
        Ok(Some(view))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, key: &Key, view: View, plan: Plan) -> Result<Outcome, Error> {
        let seen = view.seen.as_deref();
        match plan {
            Plan::Nothing(why) => {
                self.refusals.lock().remove(key);
                tracing::debug!(controller = COMPONENT, object = %key, why, "nothing to do");
                Ok(Outcome::Done)
            }
            Plan::Undecided(why) => Err(Error::decision(Undecided(why))),
            Plan::Refuse(why) => {
                self.tell(key, seen, why);
                Ok(Outcome::After(LOOK_AGAIN))
            }
            Plan::Join(origin, access) => match place::outside(self.join(&origin, &access)).await {
                Ok(cluster) => {
                    self.refusals.lock().remove(key);
                    tracing::info!(controller = COMPONENT, cluster = key.name, object = %key, "joined");
                    self.events.normal(
                        COMPONENT,
                        &reference(key, seen),
                        JOINED,
                        format!("joined as member cluster {}", key.name),
                    );
                    self.environment.mirrors.clusters.note(cluster);
                    Ok(Outcome::Done)
                }
                Err(why) => {
                    self.tell(key, seen, why);
                    Ok(Outcome::Retry)
                }
            },
            Plan::Unjoin(origin) => self.unjoin(&origin).await,
        }
    }
}
