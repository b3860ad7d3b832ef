//! The Works of the control plane, findable by the binding or quota they belong to, and how one is written.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::ClusterSyncMode;
use api::labels::{
    CLUSTER_RESOURCE_BINDING_PERMANENT_ID, RESOURCE_BINDING_PERMANENT_ID, WORK_PERMANENT_ID, annotations,
};
use api::names::cluster_of_execution_space;
use api::work::{Binding, Work};
use parking_lot::Mutex;
use propagation::render::{DesiredWork, stamp};
use runtime::{Change, Key, Mirror, Queue};

use super::bindings::key;
use super::quotas::quota_of;
use super::{BindingKey, Plane};
use runtime::{Error, Guard, Writer};

pub(crate) struct Works {
    pub(crate) mirror: Arc<Mirror<Work>>,
    by_binding: Mutex<HashMap<String, BTreeSet<Key>>>,
    by_quota: Mutex<HashMap<Key, BTreeSet<Key>>>,
}

impl Plane {
    /// Keeps the index of Works in step with the mirror. Registered before any controller.
    pub(super) fn follow_works(self: &Arc<Self>) {
        let plane = Arc::clone(self);
        self.mirrors.works.subscribe(move |change: &Change<Work>| {
            let id = |work: &Option<Arc<Work>>| work.as_deref().and_then(id).map(str::to_owned);
            file(&plane.works.by_binding, change.key, id(&change.old), id(&change.new));
            let quota = |work: &Option<Arc<Work>>| work.as_deref().and_then(quota_of);
            file(&plane.works.by_quota, change.key, quota(&change.old), quota(&change.new));
        });
    }
}

/// How long to wait before a Work that was deleted in pull mode is written again; shorter in tests.
const AWAY: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(10) };

impl Plane {
    /// Enqueues the owner of a deleted Work, which writes it again. In pull mode this waits: the original's
    /// `unregister` deletes a cluster's Works, polls once a second until there are none, and only then
    /// deletes the Cluster.
    pub(super) fn bring_back(&self, work: &Work, queue: &Arc<Queue<String>>, key: String) {
        let cluster = work.metadata.namespace.as_deref().and_then(cluster_of_execution_space);
        let cluster = cluster.and_then(|name| self.mirrors.clusters.get("", name));
        if cluster.is_none_or(|cluster| cluster.spec.sync_mode != ClusterSyncMode::Pull) {
            queue.push(key);
            return;
        }
        let (queue, stop) = (Arc::clone(queue), self.supervisor.token().clone());
        self.supervisor.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(AWAY) => queue.push(key),
            }
        });
    }
}

/// Moves a Work from one place of an index to another.
fn file<I: Eq + Hash>(index: &Mutex<HashMap<I, BTreeSet<Key>>>, work: &Key, old: Option<I>, new: Option<I>) {
    if old == new {
        return;
    }
    let mut index = index.lock();
    if let Some(place) = old
        && let Some(works) = index.get_mut(&place)
    {
        works.remove(work);
        if works.is_empty() {
            index.remove(&place);
        }
    }
    if let Some(place) = new {
        index.entry(place).or_default().insert(work.clone());
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

/// Returns the binding that a Work names.
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
        Self { mirror, by_binding: Mutex::default(), by_quota: Mutex::default() }
    }

    /// Returns the Works of a binding: those with its permanent id, except Works that name another binding. Whoever may write
    /// bindings chooses their ids, and must not reach the Works of others with them.
    pub(crate) fn of<B: Binding>(&self, binding: &B) -> Vec<Arc<Work>> {
        let own = key(binding);
        let mut works = self.with_id(binding.permanent_id());
        works.retain(|work| binding_of(work).is_none_or(|named| named == own));
        works
    }

    fn with_id(&self, binding_id: &str) -> Vec<Arc<Work>> {
        // The lock is released before the mirror is read: the mirror holds its own lock while it notifies
        // subscribers.
        let keys: Vec<Key> = self.by_binding.lock().get(binding_id).into_iter().flatten().cloned().collect();
        keys.iter().filter_map(|key| self.mirror.find(key)).collect()
    }

    /// Returns the Works of this FederatedResourceQuota.
    pub(super) fn of_quota(&self, quota: &Key) -> Vec<Arc<Work>> {
        let keys: Vec<Key> = self.by_quota.lock().get(quota).into_iter().flatten().cloned().collect();
        keys.iter().filter_map(|key| self.mirror.find(key)).collect()
    }

    /// Creates or updates a Work as wanted; returns whether anything had to be written.
    pub(super) async fn ensure(&self, writer: &Writer, desired: &DesiredWork) -> Result<bool, Error> {
        let existing = self.mirror.get(&desired.namespace, &desired.name);
        let step = judge(existing, desired).map_err(Error::decision)?;
        self.carry_out(writer, step).await
    }

    /// Writes a Work; returns whether anything had to be written.
    async fn carry_out(&self, writer: &Writer, step: Step) -> Result<bool, Error> {
        match step {
            Step::Leave(_) => Ok(false),
            // In the mirror at once: a binding that is deleted right after its Works were created must find them.
            Step::Create(work) => writer.create(&self.mirror, &identified(*work)).await.map(|()| true),
            Step::Update { from, to } => {
                writer.update_mirrored(&self.mirror, from.as_ref(), &to, Guard::Fields).await
            }
        }
    }
}

/// Returns a new Work with an identity. Admission would give it one; control planes without our admission have Works, too.
pub(crate) fn identified(mut work: Work) -> Work {
    identify(&mut work, &uuid::Uuid::new_v4().to_string());
    work
}

/// Marks a Work and its manifests with the identity of the Work, if it has one.
pub(crate) fn identify(work: &mut Work, id: &str) {
    for manifest in &mut work.spec.workload.manifests {
        stamp(manifest, Some(id));
    }
    if !id.is_empty() {
        work.metadata.labels.get_or_insert_default().insert(WORK_PERMANENT_ID.to_owned(), id.to_owned());
    }
}

/// The write that makes a Work as wanted.
#[derive(Debug, PartialEq)]
enum Step {
    /// Without an identity: it gets one when it is written.
    Create(Box<Work>),
    Update {
        from: Arc<Work>,
        to: Box<Work>,
    },
    /// Nothing, for this reason.
    Leave(&'static str),
}

/// Decides about one Work. Errors: the Work is being deleted, or is not ours.
fn judge(existing: Option<Arc<Work>>, desired: &DesiredWork) -> propagation::Result<Step> {
    if let Some(from) = existing {
        let mut to = from.as_ref().clone();
        let changed = desired.update(&mut to)?;
        return Ok(match changed {
            true => Step::Update { from, to: Box::new(to) },
            false => Step::Leave("it is as wanted"),
        });
    }
    Ok(Step::Create(Box::new(desired.create())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{deleting, merged, read, work};

    fn desired(data: &str) -> DesiredWork {
        let manifest = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "k": data },
            "metadata": { "name": "web", "namespace": "default", "uid": "t" },
        });
        DesiredWork::new("m1", manifest, BTreeMap::new(), BTreeMap::new()).expect("a Work")
    }

    /// A Work as it is stored.
    fn made(data: &str) -> Work {
        match judge(None, &desired(data)) {
            Ok(Step::Create(mut work)) => {
                identify(&mut work, "fresh");
                *work
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_becomes_of_a_work() {
        let with = |otherwise: Value| {
            let tree = serde_json::to_value(made("a")).expect("a tree");
            Some(Arc::new(read::<Work>(merged(tree, otherwise))))
        };
        let suspended = || desired("a").suspended(Some(true));
        let cases = [
            ("there is none", None, desired("a"), "create"),
            ("it is as wanted", with(json!({})), desired("a"), "leave: it is as wanted"),
            ("it has another manifest", with(json!({})), desired("b"), "update"),
            ("it is to be suspended", with(json!({})), suspended(), "update"),
            (
                "it is suspended",
                with(json!({ "spec": { "suspendDispatching": true } })),
                suspended(),
                "leave: it is as wanted",
            ),
            (
                "members have reported",
                with(json!({ "status": { "conditions": [{
                    "type": "Applied", "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] } })),
                desired("a"),
                "leave: it is as wanted",
            ),
            ("it goes", with(deleting()), desired("a"), "refuse"),
        ];
        for (name, existing, desired, expected) in cases {
            let words = match judge(existing.clone(), &desired) {
                Ok(Step::Create(_)) => "create".to_owned(),
                Ok(Step::Update { from, to }) => {
                    assert_eq!(Some(&from), existing.as_ref(), "{name}: the difference to what was seen");
                    let again = judge(Some(Arc::from(to)), &desired);
                    assert!(matches!(again, Ok(Step::Leave(_))), "{name}: once is enough: {again:?}");
                    "update".to_owned()
                }
                Ok(Step::Leave(why)) => format!("leave: {why}"),
                Err(_) => "refuse".to_owned(),
            };
            assert_eq!(words, expected, "{name}");
        }
    }

    #[test]
    fn a_new_work_has_an_identity_of_its_own() {
        let id = |work: &Work| {
            work.metadata.labels.as_ref().and_then(|labels| labels.get(WORK_PERMANENT_ID).cloned())
        };
        let new = || identified(desired("a").create());
        assert!(id(&new()).is_some_and(|id| !id.is_empty()));
        assert_ne!(id(&new()), id(&new()));
        let mut without = desired("a").create();
        identify(&mut without, "");
        assert_eq!(id(&without), None, "an empty one is none");
        let work = made("a");
        assert_eq!(
            work.metadata.labels.as_ref().and_then(|labels| labels.get(WORK_PERMANENT_ID)).unwrap(),
            "fresh"
        );
        let manifest: &Value = &work.spec.workload.manifests[0];
        assert_eq!(manifest["metadata"]["labels"][WORK_PERMANENT_ID], "fresh");
        assert_eq!(
            work.metadata.finalizers.as_deref(),
            Some(&["karmada.io/execution-controller".to_owned()][..])
        );
    }

    #[test]
    fn a_work_that_is_as_wanted_is_left_alone() {
        let step = judge(Some(Arc::new(made("a"))), &desired("a"));
        assert!(matches!(step, Ok(Step::Leave("it is as wanted"))), "{step:?}");
    }

    #[test]
    fn a_work_that_differs_keeps_its_identity() {
        let existing = Some(Arc::new(made("a")));
        let Ok(Step::Update { to: work, .. }) = judge(existing, &desired("b")) else { panic!("an update") };
        assert_eq!(work.spec.workload.manifests[0]["data"]["k"], "b");
        assert_eq!(work.spec.workload.manifests[0]["metadata"]["labels"][WORK_PERMANENT_ID], "fresh");
    }

    #[test]
    fn a_work_that_is_going_is_waited_for() {
        let mut going = made("a");
        going.metadata.deletion_timestamp =
            read::<Work>(merged(json!({ "spec": { "workload": {} } }), deleting()))
                .metadata
                .deletion_timestamp;
        assert!(matches!(
            judge(Some(Arc::new(going)), &desired("b")),
            Err(propagation::Error::WorkBeingDeleted { .. })
        ));
    }

    #[test]
    fn a_work_says_which_binding_it_belongs_to() {
        let noted = |notes: Value| binding_of(&work("m1", json!({ "metadata": { "annotations": notes } })));
        let cases = [
            (json!({}), None),
            (
                json!({ "resourcebinding.karmada.io/name": "b", "resourcebinding.karmada.io/namespace": "n" }),
                Some(BindingKey::new("n", "b")),
            ),
            (json!({ "resourcebinding.karmada.io/name": "b" }), None),
            (json!({ "clusterresourcebinding.karmada.io/name": "b" }), Some(BindingKey::new("", "b"))),
        ];
        for (notes, expected) in cases {
            assert_eq!(noted(notes.clone()), expected, "{notes}");
        }
    }
}
