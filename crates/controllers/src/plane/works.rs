//! The Works of the control plane, findable by the binding they belong to, and how one is written.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::labels::{
    CLUSTER_RESOURCE_BINDING_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, WORK_PERMANENT_ID, annotations,
};
use api::work::Work;
use parking_lot::Mutex;
use propagation::render::{DesiredWork, stamp};
use runtime::{Change, Key, Mirror};

use super::{BindingKey, Plane};
use runtime::{Error, Guard, Writer};

pub(crate) struct Works {
    pub(crate) mirror: Arc<Mirror<Work>>,
    by_binding: Mutex<HashMap<String, BTreeSet<Key>>>,
}

impl Plane {
    /// Keeps the index of Works in step with the mirror. Wired before any controller.
    pub(super) fn follow_works(self: &Arc<Self>) {
        let plane = Arc::clone(self);
        self.mirrors.works.subscribe(move |change: &Change<Work>| {
            let (old, new) = (change.old.as_deref().and_then(id), change.new.as_deref().and_then(id));
            if old == new {
                return;
            }
            let mut by_binding = plane.works.by_binding.lock();
            if let Some(id) = old
                && let Some(keys) = by_binding.get_mut(id)
            {
                keys.remove(change.key);
                if keys.is_empty() {
                    by_binding.remove(id);
                }
            }
            if let Some(id) = new {
                by_binding.entry(id.to_owned()).or_default().insert(change.key.clone());
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
    pub(super) fn new(mirror: Arc<Mirror<Work>>) -> Self {
        Self { mirror, by_binding: Mutex::default() }
    }

    /// Returns the Works of the binding with this permanent id.
    pub(super) fn of(&self, binding_id: &str) -> Vec<Arc<Work>> {
        // Not held while the mirror is asked: the mirror holds its own lock while it tells of changes.
        let keys: Vec<Key> = self.by_binding.lock().get(binding_id).into_iter().flatten().cloned().collect();
        keys.iter().filter_map(|key| self.mirror.find(key)).collect()
    }

    /// Makes a Work be as wanted; returns whether anything had to be written.
    pub(super) async fn ensure(&self, writer: &Writer, desired: &DesiredWork) -> Result<bool, Error> {
        if let Some(existing) = self.mirror.get(&desired.namespace, &desired.name) {
            let mut wanted = (*existing).clone();
            if !desired.update(&mut wanted).map_err(Error::decision)? {
                return Ok(false);
            }
            return writer.update_mirrored(&self.mirror, &existing, &wanted, Guard::Fields).await;
        }
        let mut work = desired.create();
        // Admission would give it an identity; control planes without our admission have Works, too.
        let work_id = uuid::Uuid::new_v4().to_string();
        for manifest in &mut work.spec.workload.manifests {
            stamp(manifest, Some(&work_id));
        }
        work.metadata.labels.get_or_insert_default().insert(WORK_PERMANENT_ID.to_owned(), work_id);
        // In the mirror at once: a binding that is deleted right after its Works were created must find them.
        writer.create(&self.mirror, &work).await?;
        Ok(true)
    }
}
