//! The Works of the control plane, findable by the binding they belong to, and how one is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::labels::{
    CLUSTER_RESOURCE_BINDING_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, WORK_PERMANENT_ID, annotations,
};
use api::work::Work;
use kube::{Api, Client};
use parking_lot::Mutex;
use propagation::render::{DesiredWork, stamp};

use super::mirror::{Change, Key, Mirror};
use super::write::{self, Error, Guard};
use super::{BindingKey, Plane};

#[derive(Default)]
pub(crate) struct Works {
    pub(crate) mirror: Mirror<Work>,
    index: Mutex<Index>,
}

#[derive(Default)]
struct Index {
    by_binding: HashMap<String, BTreeSet<Key>>,
    /// Works that were created but that the mirror has not shown yet. Without them, a binding that is deleted right
    /// after its Works were created would leave them behind.
    created: HashMap<Key, Arc<Work>>,
}

impl Plane {
    /// Keeps the index of Works in step with the mirror. Wired before any controller.
    pub(super) fn follow_works(self: &Arc<Self>) {
        let plane = Arc::clone(self);
        self.works.mirror.subscribe(move |change: &Change<Work>| {
            let mut index = plane.works.index.lock();
            index.created.remove(&change.key);
            let (old, new) = (change.old.as_deref().and_then(id), change.new.as_deref().and_then(id));
            if old == new {
                return;
            }
            if let Some(id) = old
                && let Some(keys) = index.by_binding.get_mut(id)
            {
                keys.remove(&change.key);
                if keys.is_empty() {
                    index.by_binding.remove(id);
                }
            }
            if let Some(id) = new {
                index.by_binding.entry(id.to_owned()).or_default().insert(change.key.clone());
            }
        });
    }
}

/// Returns the permanent id of the binding a Work belongs to.
fn id(work: &Work) -> Option<&str> {
    let labels = work.metadata.labels.as_ref()?;
    [RESOURCE_BINDING_PERMANENT_ID, CLUSTER_RESOURCE_BINDING_PERMANENT_ID]
        .into_iter()
        .find_map(|key| labels.get(key))
        .map(String::as_str)
        .filter(|id| !id.is_empty())
}

/// Returns the binding a Work belongs to, as it says itself.
pub(super) fn binding_of(work: &Work) -> Option<BindingKey> {
    let notes = work.metadata.annotations.as_ref()?;
    if let Some(name) = notes.get(annotations::RESOURCE_BINDING_NAME) {
        let namespace = notes.get(annotations::RESOURCE_BINDING_NAMESPACE)?.clone();
        return Some(BindingKey { namespace, name: name.clone() });
    }
    let name = notes.get(annotations::CLUSTER_RESOURCE_BINDING_NAME)?.clone();
    Some(BindingKey { namespace: String::new(), name })
}

impl Works {
    /// Returns the Works of the binding with this permanent id.
    pub(super) fn of(&self, binding_id: &str) -> Vec<Arc<Work>> {
        if binding_id.is_empty() {
            return Vec::new();
        }
        let index = self.index.lock();
        let mut works: BTreeMap<Key, Arc<Work>> = index
            .created
            .iter()
            .filter(|(_, work)| id(work) == Some(binding_id))
            .map(|(key, work)| (key.clone(), Arc::clone(work)))
            .collect();
        for key in index.by_binding.get(binding_id).into_iter().flatten() {
            if let Some(work) = self.mirror.get(&key.0, &key.1) {
                works.insert(key.clone(), work);
            }
        }
        works.into_values().collect()
    }

    /// Makes a Work be as wanted; returns whether anything had to be written.
    pub(super) async fn ensure(&self, client: &Client, desired: &DesiredWork) -> Result<bool, Error> {
        let api: Api<Work> = Api::namespaced(client.clone(), &desired.namespace);
        if let Some(existing) = self.mirror.get(&desired.namespace, &desired.name) {
            let mut wanted = (*existing).clone();
            if !desired.update(&mut wanted)? {
                return Ok(false);
            }
            return Ok(write::update(&api, &existing, &wanted, Guard::Fields).await?.is_some());
        }
        let mut work = desired.create();
        // Admission would give it an identity; control planes without our admission have Works, too.
        let work_id = uuid::Uuid::new_v4().to_string();
        for manifest in &mut work.spec.workload.manifests {
            stamp(manifest, Some(&work_id));
        }
        work.metadata.labels.get_or_insert_default().insert(WORK_PERMANENT_ID.to_owned(), work_id);
        let created = write::create(&api, &work).await?;
        let key = (desired.namespace.clone(), desired.name.clone());
        let mut index = self.index.lock();
        if self.mirror.get(&key.0, &key.1).is_none() {
            index.created.insert(key, Arc::new(created));
        }
        Ok(true)
    }

    /// Deletes a Work; that it is gone already is fine.
    pub(super) async fn delete(&self, client: &Client, work: &Work) -> Result<(), Error> {
        let namespace = work.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Work> = Api::namespaced(client.clone(), &namespace);
        write::delete(&api, &work.metadata).await?;
        let key = (namespace, work.metadata.name.clone().unwrap_or_default());
        self.index.lock().created.remove(&key);
        Ok(())
    }
}
