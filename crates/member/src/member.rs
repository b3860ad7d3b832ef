//! One member: its client, its in-flight limit, the copies of what we manage there, and requests for objects of any
//! kind.
//!
//! Reads and writes carry a deadline, so that a frozen member only occupies its own in-flight slots.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::{names, pointer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{DeleteParams, DynamicObject, GetParams, ListParams, PostParams, Preconditions};
use kube::core::Request;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use runtime::{Change, Key, Mirror, Supervisor};

use crate::limit::{Budget, COPY_LIMIT};
use crate::members::Observers;
use crate::{Connection, Error, Kind, Load, ObservedChange, Observer, Result};

/// As long as Karmada gives a member.
const DEADLINE: Duration = Duration::from_secs(32);

/// How many objects are processed in one member at once. API servers take a few hundred requests in flight
/// from all their clients; a tenth of that keeps the pipe full without crowding others out.
const IN_FLIGHT: usize = 32;

/// A member cluster.
pub struct Member {
    name: String,
    client: Client,
    pub(crate) way: Way,
    permits: Arc<Semaphore>,
    observers: Arc<Observers>,
    stop: CancellationToken,
    supervisor: Supervisor,
    copies: Mutex<HashMap<Watched, Arc<Mirror<Value>>>>,
    load: OnceLock<Arc<Load>>,
    /// Our last write: a fingerprint of the desired object and the resulting resource version. If the member's defaults make an
    /// object differ from the desired one for ever, this shows that there is nothing to do. Only for objects that are in a copy:
    /// an entry is dropped when its object leaves the copy.
    written: Arc<Mutex<Written>>,
    /// The memory budget of all copies together.
    budget: Arc<Budget>,
}

/// The content of one copy.
type Watched = (Kind, Selection);

type Written = HashMap<(Kind, Key), (u64, String)>;

impl std::fmt::Debug for Member {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Member").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The objects of a kind that a copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selection {
    /// Those that the control plane manages.
    Managed,
    /// Those that this label selector matches, managed or not; all if it is empty.
    Matching(&'static str),
}

impl Selection {
    fn selector(self) -> String {
        match self {
            Self::Managed => format!("{}={}", api::labels::MANAGED, api::labels::TRUE),
            Self::Matching(selector) => selector.to_owned(),
        }
    }
}

/// The route to a member. Equal routes need no new connection.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// By its Cluster and Secret.
    Secret(Box<Connection>),
    /// By an existing client of this process.
    Own,
}

/// The state of an object in a copy.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The copy is not complete yet and has not seen it.
    Unknown,
    /// The complete copy does not have it: it does not exist, or is not ours.
    Missing,
    Found(Arc<Value>),
}

impl Member {
    pub(crate) fn new(
        name: String,
        client: Client,
        way: Way,
        observers: Arc<Observers>,
        supervisor: Supervisor,
    ) -> Self {
        Self {
            name,
            client,
            way,
            permits: Arc::new(Semaphore::new(IN_FLIGHT)),
            observers,
            stop: supervisor.token().child_token(),
            supervisor,
            copies: Mutex::default(),
            load: OnceLock::new(),
            written: Arc::default(),
            budget: Arc::new(Budget::new(COPY_LIMIT)),
        }
    }

    pub(crate) fn is_reached_by(&self, connection: &Connection) -> bool {
        matches!(&self.way, Way::Secret(known) if **known == *connection)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Cancelled when the member has left or has a new connection.
    pub fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// Waits for one of the member's in-flight slots.
    pub async fn permit(&self) -> OwnedSemaphorePermit {
        self.permits.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Returns the copy of the managed objects of a kind; the first call starts its watch.
    pub fn managed(&self, kind: &Kind) -> Arc<Mirror<Value>> {
        self.copy(kind, Selection::Managed)
    }

    /// Returns the copy of the objects of a kind; the first call starts its watch.
    pub fn copy(&self, kind: &Kind, selection: Selection) -> Arc<Mirror<Value>> {
        let mut copies = self.copies.lock();
        let key = (kind.clone(), selection);
        if let Some(copy) = copies.get(&key) {
            return copy.clone();
        }
        let copy = Arc::new(Mirror::packed().within(&self.name, self.budget.clone()));
        copies.insert(key, copy.clone());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &kind.resource);
        let config = watcher::Config::default().labels(&selection.selector());
        let (told, cluster) = (self.observers.clone(), self.name.clone());
        let (written, watched) = (self.written.clone(), kind.clone());
        copy.subscribe(move |change: &Change<'_, Value>| {
            if selection != Selection::Managed {
                return tell(&told.others.read(), &cluster, change);
            }
            if change.new.is_none() {
                written.lock().remove(&(watched.clone(), change.key.clone()));
            }
            tell(&told.managed.read(), &cluster, change);
        });
        let (following, stop, resource) = (copy.clone(), self.stop.clone(), kind.resource.clone());
        let task = format!("mirror/{}/{}", self.name, kind.resource.plural);
        self.supervisor.keep_until(task, self.stop.clone(), move || {
            let (following, stop, resource) = (following.clone(), stop.clone(), resource.clone());
            let (api, config) = (api.clone(), config.clone());
            async move {
                let convert = |object| {
                    let mut value = serde_json::to_value(&object).unwrap_or_default();
                    pointer::set(&mut value, "apiVersion", resource.api_version.clone().into());
                    pointer::set(&mut value, "kind", resource.kind.clone().into());
                    slim(value)
                };
                following.follow(api, config, stop, convert).await;
            }
        });
        copy
    }

    /// Returns the copy of the objects of a kind if there is one.
    pub fn existing_copy(&self, kind: &Kind, selection: Selection) -> Option<Arc<Mirror<Value>>> {
        self.copies.lock().get(&(kind.clone(), selection)).cloned()
    }

    /// Returns what is watched.
    pub(crate) fn watched(&self) -> Vec<Watched> {
        self.copies.lock().keys().cloned().collect()
    }

    /// Returns what the copy knows of an object, after giving a new copy a moment to fill.
    pub async fn look_up(&self, kind: &Kind, key: &Key) -> Lookup {
        let copy = self.managed(kind);
        if let Some(found) = copy.find(key) {
            return Lookup::Found(found);
        }
        // A list takes milliseconds; if it takes longer, requesting the one object is quicker.
        if !copy.wait(Duration::from_secs(2)).await {
            return Lookup::Unknown;
        }
        copy.find(key).map_or(Lookup::Missing, Lookup::Found)
    }

    /// Returns nodes and pods; the first call starts their watches.
    pub fn load(&self) -> Arc<Load> {
        self.load
            .get_or_init(|| {
                let load = Arc::new(Load::within(&self.name, &self.budget));
                let (following, client, stop) = (load.clone(), self.client.clone(), self.stop.clone());
                self.supervisor.keep_until(format!("load/{}", self.name), self.stop.clone(), move || {
                    let (following, client, stop) = (following.clone(), client.clone(), stop.clone());
                    async move { following.follow(client, stop).await }
                });
                load
            })
            .clone()
    }

    /// Restarts all watches, because the member answers again.
    pub fn revive(&self) {
        for copy in self.copies.lock().values() {
            copy.revive();
        }
        if let Some(load) = self.load.get() {
            load.nodes.revive();
            load.pods.revive();
        }
    }

    /// Checks whether the member's revisions have gone back, as after a restore from a backup, and lists the
    /// kinds concerned again. An API server may accept a watch from a revision that it has not reached, and
    /// then it sends nothing.
    ///
    /// Kinds may be in separate stores, so only a list of the kind itself shows its revision for sure.
    pub async fn notice_restore(&self) -> Result<()> {
        let now = self.revision_of("/api/v1/namespaces", "").await?;
        let mut suspects: Vec<(Watched, Arc<Mirror<Value>>)> = {
            let copies = self.copies.lock();
            copies.iter().map(|(key, copy)| (key.clone(), copy.clone())).collect()
        };
        suspects.retain(|(_, copy)| copy.is_synced() && copy.newest() > now);
        let mut restored = false;
        for ((kind, selection), copy) in suspects {
            // Read before the member is asked: events that arrive meanwhile do not count.
            let known = copy.newest();
            let path = DynamicObject::url_path(&kind.resource, None);
            if self.revision_of(&path, &selection.selector()).await? < known {
                copy.went_back();
                restored = true;
            }
        }
        if restored {
            tracing::warn!(cluster = self.name, "revisions have gone back; everything is listed anew");
            if let Some(load) = self.load.get() {
                load.nodes.went_back();
                load.pods.went_back();
            }
        }
        Ok(())
    }

    /// Returns the revision of a collection; the highest number if it has none.
    async fn revision_of(&self, path: &str, selector: &str) -> Result<u64> {
        let parameters = ListParams::default().limit(1).labels(selector);
        let list: Revised = self.read(Request::new(path).list(&parameters)).await?;
        let revision = list.metadata.resource_version.and_then(|revision| revision.parse().ok());
        Ok(revision.unwrap_or(u64::MAX))
    }

    /// Reads an object from the member itself; `None` if the object, or its kind, does not exist there.
    pub async fn get(&self, kind: &Kind, key: &Key) -> Result<Option<Value>> {
        if !can_exist(kind, key) {
            return Ok(None);
        }
        let request = self.path(kind, key).get(&key.name, &GetParams::default());
        match self.send(request).await {
            Ok(object) => Ok(Some(slim(object))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object and puts it into the copy.
    pub async fn create(&self, kind: &Kind, key: &Key, object: &Value) -> Result<Arc<Value>> {
        let body = serde_json::to_vec(object).expect("a JSON tree can be encoded");
        self.check(kind, key)?;
        let created = self.send(self.path(kind, key).create(&PostParams::default(), body)).await?;
        Ok(self.remember(kind, key, created))
    }

    /// Replaces an object and puts it into the copy.
    pub async fn update(&self, kind: &Kind, key: &Key, object: &Value) -> Result<Arc<Value>> {
        let body = serde_json::to_vec(object).expect("a JSON tree can be encoded");
        self.check(kind, key)?;
        let updated =
            self.send(self.path(kind, key).replace(&key.name, &PostParams::default(), body)).await?;
        Ok(self.remember(kind, key, updated))
    }

    /// Deletes exactly the object with this UID. The caller decides whether it may be deleted.
    pub async fn delete(&self, kind: &Kind, key: &Key, uid: &str) -> Result<()> {
        if !can_exist(kind, key) {
            return Ok(());
        }
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            // Jobs would otherwise leave their pods behind.
            ..DeleteParams::background()
        };
        self.written.lock().remove(&(kind.clone(), key.clone()));
        match self.send(self.path(kind, key).delete(&key.name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Records that a desired object, given by its fingerprint, led to a resource version.
    pub fn note(&self, kind: &Kind, key: &Key, wish: u64, version: &str) {
        let mut written = self.written.lock();
        // Checked under the lock: an object that leaves the copy at this moment drops this record too.
        let copied = self.managed_copy(kind).is_some_and(|copy| copy.revision(&key.namespace, &key.name) > 0);
        if !copied {
            return;
        }
        written.insert((kind.clone(), key.clone()), (wish, version.to_owned()));
    }

    /// Returns whether this desired object was already written and led to exactly this resource version.
    pub fn has_written(&self, kind: &Kind, key: &Key, wish: u64, version: &str) -> bool {
        let written = self.written.lock();
        written
            .get(&(kind.clone(), key.clone()))
            .is_some_and(|(known, led_to)| *known == wish && led_to == version)
    }

    fn remember(&self, kind: &Kind, key: &Key, answer: Value) -> Arc<Value> {
        let object = Arc::new(slim(answer));
        let version = pointer::text(&object, "/metadata/resourceVersion");
        if let Some(copy) = self.managed_copy(kind) {
            copy.put(key, version, object.clone());
        }
        object
    }

    fn managed_copy(&self, kind: &Kind) -> Option<Arc<Mirror<Value>>> {
        self.existing_copy(kind, Selection::Managed)
    }

    /// Fails for a name that no object can have, as if the member had refused it.
    fn check(&self, kind: &Kind, key: &Key) -> Result<()> {
        if can_exist(kind, key) {
            return Ok(());
        }
        let message = format!("no {} can be called {:?}", kind.resource.kind, key.to_string());
        Err(Error::Refused { code: 400, reason: "BadRequest".to_owned(), message })
    }

    fn path(&self, kind: &Kind, key: &Key) -> Request {
        let namespace = kind.namespaced.then_some(key.namespace.as_str());
        Request::new(DynamicObject::url_path(&kind.resource, namespace))
    }

    async fn send(
        &self,
        request: std::result::Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Value> {
        self.read(request).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        request: std::result::Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T> {
        let request = request.map_err(|error| Error::of(&self.name, kube::Error::BuildRequest(error)))?;
        tokio::time::timeout(DEADLINE, self.client.request::<T>(request))
            .await
            .map_err(|_| Error::Timeout { cluster: self.name.clone(), after: DEADLINE })?
            .map_err(|error| Error::of(&self.name, error))
    }
}

/// The part that is parsed of a list when only its revision is needed. Its items are skipped: a member may send many tiny ones,
/// which would take far more memory than their text.
#[derive(Debug, Deserialize)]
struct Revised {
    #[serde(default)]
    metadata: ListMeta,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn tell(observers: &[Observer], cluster: &str, change: &Change<'_, Value>) {
    for observer in observers {
        observer(&ObservedChange {
            cluster,
            old: change.old.as_deref(),
            new: change.new.as_deref(),
            ours: change.ours,
        });
    }
}

/// Returns whether an object can be called so. Works carry names, and the client writes them into paths as they are.
fn can_exist(kind: &Kind, key: &Key) -> bool {
    names::is_path_segment(&key.name) && (!kind.namespaced || names::is_path_segment(&key.namespace))
}

/// Field ownership is often half of an object, and no controller reads it.
fn slim(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

#[cfg(test)]
mod tests {
    use kube::core::{ApiResource, GroupVersionKind};
    use serde_json::json;

    use super::*;

    /// No server listens there, so only our own writes get into a copy.
    async fn unreachable() -> Member {
        let cluster = serde_json::from_value(json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push",
            "apiEndpoint": "http://127.0.0.1:1", "insecureSkipTLSVerification": true}}));
        let secret = serde_json::from_value(json!({"data": {"token": "dA=="}}));
        let connection = Connection::new(&cluster.unwrap(), &secret.unwrap()).unwrap();
        let client = connection.client().await.unwrap();
        let way = Way::Secret(Box::new(connection));
        Member::new("m1".to_owned(), client, way, Arc::default(), Supervisor::default())
    }

    fn config_maps() -> Kind {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        Kind { resource, namespaced: true }
    }

    #[tokio::test]
    async fn finding_25_an_object_whose_name_is_more_than_a_name_is_neither_read_nor_written() {
        let (member, kind) = (unreachable().await, config_maps());
        for key in
            [Key::new("n", "a/b"), Key::new("n", "a?b=c"), Key::new("n/secrets", "a"), Key::new("n", "..")]
        {
            assert!(member.get(&kind, &key).await.expect("nothing is asked for").is_none(), "{key}");
            member.delete(&kind, &key, "u").await.expect("nothing is asked for");
            let object = json!({});
            for refused in
                [member.create(&kind, &key, &object).await, member.update(&kind, &key, &object).await]
            {
                let error = refused.expect_err("it cannot exist");
                let expected = format!("no ConfigMap can be called {:?}", key.to_string());
                assert_eq!(error.to_string(), expected);
            }
        }
        let error = member.get(&kind, &Key::new("n", "a")).await.expect_err("nobody listens");
        assert!(matches!(error, Error::Transport { .. }), "{error}");
    }

    #[tokio::test]
    async fn finding_24_what_was_written_is_forgotten_with_the_object() {
        let member = unreachable().await;
        let (kind, key) = (config_maps(), Key::new("default", "a"));
        member.note(&kind, &key, 1, "7");
        assert!(member.written.lock().is_empty(), "it is in no copy");
        let copy = member.managed(&kind);
        member.remember(&kind, &key, json!({"metadata": {"resourceVersion": "7"}}));
        member.note(&kind, &key, 1, "7");
        assert!(member.has_written(&kind, &key, 1, "7"));
        copy.remove(&key, 8);
        assert!(member.written.lock().is_empty(), "somebody deleted it in the member");
    }
}
