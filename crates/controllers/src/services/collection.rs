//! Collects the EndpointSlices of Services that are offered to other clusters: each is in a Work of its cluster's execution
//! namespace, which is suspended, so that it is never carried out.
//!
//! Watches: Works (requests of MultiClusterServices, Works that bring ServiceExports, collected ones), ServiceExports and the
//!          member's own EndpointSlices in the members.
//! Writes:  collected Works.
//!
//! Two controllers: `serviceExport` (`service-export-controller`) collects what a ServiceExport in the member
//! asks for, `endpointsliceCollect` (`endpointslice-collect-controller`) what a MultiClusterService asks for.
//! They share the Works, so they also share one reconcile and one decision per Service and cluster. A
//! controller that does not run leaves its part as it is.
//!
//! Both belong to the member side: an agent runs them for its own cluster.

mod decide;
#[cfg(test)]
mod on_server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::cluster::{APIEnablementStatus, Cluster};
use futures::future::join_all;
use jiff::Timestamp;
use member::{Kind, Member, Selection};
use parking_lot::Mutex;
use propagation::Object;
use runtime::{Error, Outcome, Queue, Reconcile, UNLIMITED, controller};
use serde_json::Value;

use super::index::{Role, cluster_of, roles};
use super::works::Token;
use super::{SERVICE_NAME, SLICE, SLICE_API, ServiceKey};
use crate::members::Shared;
use crate::plane::works::identified;
use crate::table::Start;
use decide::{Plan, Step, View};

const COMPONENT: &str = "endpointslice-collect";
const EXPORT_API: &str = "multicluster.x-k8s.io/v1alpha1";
const EXPORT: &str = "ServiceExport";

const ALL: Selection = Selection::Matching("");
/// The slices that a member made itself. Slices of a propagated Service also have its labels, including
/// `karmada.io/managed`, so only the label that names the slice's manager distinguishes them from slices that
/// we dispatched.
const OWN_SLICES: Selection = Selection::Matching(
    "endpointslice.kubernetes.io/managed-by notin \
     (endpointslice-controller.karmada.io,endpointslice-dispatch-controller.karmada.io)",
);

/// How long to wait for a new mirror of a member's objects before the reconcile is postponed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which of the two controllers run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Enabled {
    pub(crate) exports: bool,
    pub(crate) multi_cluster: bool,
}

impl Enabled {
    fn has(self, token: Token) -> bool {
        match token {
            Token::ServiceExport => self.exports,
            Token::MultiClusterService => self.multi_cluster,
        }
    }
}

/// The queue of Services, for both controllers.
pub(crate) struct Collection {
    pub(crate) queue: Arc<Queue<ServiceKey>>,
    pub(crate) enabled: Enabled,
    /// The clusters whose ServiceExports could not be listed in time, such as those without the kind.
    slow: Mutex<BTreeSet<String>>,
}

impl Collection {
    pub(crate) fn new(enabled: Enabled) -> Self {
        Self { queue: Queue::new(COMPONENT), enabled, slow: Mutex::default() }
    }
}

/// Wires `serviceExport`.
pub(crate) fn wire_exports(shared: &Arc<Shared>) -> Start {
    wire(shared, Token::ServiceExport)
}

/// Wires `endpointsliceCollect`.
pub(crate) fn wire_multi_cluster(shared: &Arc<Shared>) -> Start {
    wire(shared, Token::MultiClusterService)
}

fn wire(shared: &Arc<Shared>, token: Token) -> Start {
    // The first call does it for both.
    let first = Token::ALL.into_iter().find(|token| shared.collection.enabled.has(*token));
    if first != Some(token) {
        return Box::new(|| {});
    }
    subscribe(shared);
    tell_panics(shared);
    let shared = shared.clone();
    Box::new(move || {
        let controller = Arc::new(Controller(shared.clone()));
        controller::run(&controller, &shared.collection.queue, UNLIMITED, &shared.supervisor);
    })
}

/// Has users see on the Cluster that the work on one of its Services panicked: the Service is in the member.
fn tell_panics(shared: &Arc<Shared>) {
    // The queue is part of what is shared.
    let weak = Arc::downgrade(shared);
    shared.collection.queue.tell_panics(move |key, panic| {
        let Some(shared) = weak.upgrade() else { return };
        let cluster = runtime::Key::new("", key.cluster.as_str());
        shared.tell_panic(COMPONENT, &shared.mirrors.clusters, &cluster, panic);
    });
}

fn subscribe(shared: &Arc<Shared>) {
    shared.mirrors.works.subscribe({
        let shared = shared.clone();
        move |change| {
            let cluster = cluster_of(change.key);
            for work in [change.old.as_deref(), change.new.as_deref()].into_iter().flatten() {
                // Slices that were dispatched to a cluster are not collected there, and our own writes need no
                // reconcile.
                let mine = roles(work).into_iter().filter(|(_, role)| match role {
                    Role::Dispatched => false,
                    Role::Collected => !change.ours,
                    Role::Request | Role::Export => true,
                });
                for (service, _) in mine {
                    shared.collection.queue.push(ServiceKey { cluster: cluster.to_owned(), service });
                }
            }
        }
    });
    shared.mirrors.clusters.subscribe({
        let shared = shared.clone();
        move |change| {
            let (Some(old), Some(new)) = (change.old.as_deref(), change.new.as_deref()) else { return };
            if lacks_exports(old) != lacks_exports(new) {
                for service in shared.services.of_cluster(&change.key.name) {
                    shared.collection.queue.push(service);
                }
            }
        }
    });
    // A weak reference: the members must not keep their own owner alive.
    let weak = Arc::downgrade(shared);
    shared.members.observe_others(Arc::new(move |change| {
        let Some(shared) = weak.upgrade() else { return };
        let Some(object) = change.new.or(change.old) else { return };
        let services = match object.kind() {
            SLICE => shared.services.note_slice(change.cluster, change.old, change.new),
            EXPORT => {
                let service = runtime::Key::new(object.namespace(), object.name());
                vec![ServiceKey { cluster: change.cluster.to_owned(), service }]
            }
            _ => return,
        };
        for service in services {
            shared.collection.queue.push(service);
        }
    }));
}

struct Controller(Arc<Shared>);

impl Reconcile for Controller {
    type Key = ServiceKey;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, key: &ServiceKey) -> Result<Option<View>, Error> {
        let shared = &self.0;
        let Some(cluster) = shared.my_cluster(&key.cluster) else { return Ok(None) };
        let (mut collected, mut exports, mut requested) = (Vec::new(), false, false);
        for (name, role) in shared.services.works(&key.service) {
            if cluster_of(&name) != key.cluster {
                continue;
            }
            let Some(work) = shared.mirrors.works.find(&name) else { continue };
            match role {
                Role::Collected => collected.push(work),
                Role::Request => requested |= work.metadata.deletion_timestamp.is_none(),
                Role::Export => exports = true,
                Role::Dispatched => {}
            }
        }
        let enabled = shared.collection.enabled;
        let requested = enabled.multi_cluster.then_some(requested);
        // A member that is unreachable is reconciled when it is back.
        let member = shared.members.get(&key.cluster).filter(|_| cluster.status.is_ready());
        let mut view = View {
            key: key.clone(),
            exported: None,
            requested,
            slices: None,
            collected,
            leaves: is_going(&cluster),
        };
        let Some(member) = member else { return Ok(Some(view)) };
        if enabled.exports {
            let asked = exports || view.has(Token::ServiceExport);
            view.exported = self.exported(&member, &cluster, key, asked).await?;
        }
        if view.exported == Some(true) || view.requested == Some(true) {
            view.slices = Some(self.slices(&member, key).await?);
        }
        Ok(Some(view))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide::decide(view)
    }

    async fn apply(&self, _: &ServiceKey, _: View, plan: Plan) -> Result<Outcome, Error> {
        let mut errors: Vec<Error> =
            plan.errors.into_iter().map(|error| Error::Several(vec![error])).collect();
        let results = join_all(plan.steps.into_iter().map(|step| self.carry_out(step))).await;
        errors.extend(results.into_iter().filter_map(Result::err));
        Error::join(errors)?;
        Ok(Outcome::Done)
    }
}

impl Controller {
    /// Returns whether the member has a ServiceExport for the Service; `None` if no controller asks for it.
    async fn exported(
        &self,
        member: &Member,
        cluster: &Cluster,
        key: &ServiceKey,
        asked: bool,
    ) -> Result<Option<bool>, Error> {
        let shared = &self.0;
        let kind = match shared.kinds.resolve(shared.client(), member, EXPORT_API, EXPORT).await {
            Ok(kind) => kind,
            // Without the kind there are no exports.
            Err(member::Error::UnknownKind { .. }) => return Ok(Some(false)),
            Err(error) => return Err(Error::decision(error)),
        };
        let known = member.existing_copy(&kind, ALL);
        let copy = match (known, asked) {
            (Some(copy), _) => copy,
            // Nothing was exported from this cluster, so ServiceExports are not watched there.
            (None, false) => return Ok(None),
            (None, true) => member.copy(&kind, ALL),
        };
        let (synced, slow) = (copy.is_synced(), &shared.collection.slow);
        if synced {
            slow.lock().remove(&key.cluster);
        }
        let seen = Seen {
            found: copy.find(&key.service).is_some(),
            synced,
            is_slow: slow.lock().contains(&key.cluster),
            lacks_kind: lacks_exports(cluster),
        };
        match seen.source(asked) {
            Source::Copy => return Ok(Some(seen.found)),
            Source::Nobody => return Ok(None),
            Source::CopyInTime => {
                if copy.wait(PATIENCE).await {
                    return Ok(Some(copy.find(&key.service).is_some()));
                }
                slow.lock().insert(key.cluster.clone());
            }
            Source::Member => {}
        }
        let found = member.get(&kind, &key.service).await.map_err(Error::decision)?;
        Ok(Some(found.is_some()))
    }

    async fn slices(&self, member: &Member, key: &ServiceKey) -> Result<Vec<Arc<Value>>, Error> {
        let shared = &self.0;
        let kind: Kind =
            shared.kinds.resolve(shared.client(), member, SLICE_API, SLICE).await.map_err(Error::decision)?;
        let copy = member.copy(&kind, OWN_SLICES);
        if !copy.wait(PATIENCE).await {
            return Err(Error::Waiting(format!("for the EndpointSlices of cluster {}", key.cluster)));
        }
        let found = shared.services.slices(key);
        let found = found.iter().filter_map(|slice| copy.find(slice));
        Ok(found.filter(|slice| slice.label(SERVICE_NAME) == Some(&key.service.name)).collect())
    }

    async fn carry_out(&self, step: Step) -> Result<(), Error> {
        let shared = &self.0;
        // Derived: everything can be collected again.
        let (writer, mirror) = (shared.writer.derived(), &shared.mirrors.works);
        match step {
            Step::Create(work) => {
                let key = runtime::Key::of(work.as_ref());
                match writer.create(mirror, &identified(*work)).await {
                    // The watch reports it, which enqueues the Service.
                    Err(error) if error.is_already_exists() => Err(Error::Waiting(format!("to see {key}"))),
                    result => result,
                }
            }
            Step::Update { from, to, guard } => {
                match writer.update_mirrored(mirror, from.as_ref(), &to, guard).await {
                    Err(error) if error.is_not_found() => Ok(()),
                    result => result.map(drop),
                }
            }
            Step::Delete(work) => writer.delete(work.as_ref()).await,
        }
    }
}

fn is_going(cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some()
}

/// Returns whether a member is known not to serve ServiceExports.
fn lacks_exports(cluster: &Cluster) -> bool {
    cluster.status.api_enablement(EXPORT_API, EXPORT) == APIEnablementStatus::Disabled
}

/// What is known of the ServiceExport of a Service, before anybody is asked.
struct Seen {
    /// The copy has it.
    found: bool,
    /// The copy was complete at least once.
    synced: bool,
    /// The copy did not become complete in time, once.
    is_slow: bool,
    /// The cluster is known not to serve the kind.
    lacks_kind: bool,
}

/// Where it is looked up whether there is a ServiceExport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Copy,
    /// The copy, if it becomes complete soon.
    CopyInTime,
    /// The member itself.
    Member,
    /// It stays unknown. When the copy is complete, its objects enqueue their Services.
    Nobody,
}

impl Seen {
    /// Returns whom to believe; `asked` if somebody exported the Service here, as far as we know.
    fn source(&self, asked: bool) -> Source {
        match self {
            // The kind may have been removed while the member was away. Its objects cannot be listed since, so that the copy
            // keeps them.
            Self { found: true, lacks_kind: true, .. } => Source::Member,
            Self { found: true, .. } | Self { synced: true, .. } => Source::Copy,
            _ if !asked => Source::Nobody,
            // The member may not have the kind (yet), and then the copy never completes. All its Services would wait each time.
            Self { is_slow: true, .. } => Source::Member,
            _ => Source::CopyInTime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_tells_whether_a_service_is_exported() {
        let (found, synced, is_slow, lacks_kind) = (true, true, true, true);
        let new = || Seen { found: false, synced: false, is_slow: false, lacks_kind: false };
        // Name; what is known; who tells if somebody exported it, and if nobody did.
        let cases = [
            ("the copy is complete", Seen { synced, ..new() }, Source::Copy, Source::Copy),
            ("the copy has it", Seen { found, ..new() }, Source::Copy, Source::Copy),
            ("the copy is new", new(), Source::CopyInTime, Source::Nobody),
            (
                "the copy is not complete after a while",
                Seen { is_slow, ..new() },
                Source::Member,
                Source::Nobody,
            ),
            (
                "the kind is gone, and the copy is from before",
                Seen { found, synced, lacks_kind, ..new() },
                Source::Member,
                Source::Member,
            ),
            ("the kind is gone", Seen { synced, lacks_kind, ..new() }, Source::Copy, Source::Copy),
        ];
        for (name, seen, asked, unasked) in cases {
            assert_eq!((seen.source(true), seen.source(false)), (asked, unasked), "{name}");
        }
    }

    #[test]
    fn a_member_that_does_not_serve_exports_is_known_by_all_that_it_serves() {
        use crate::fixtures::cluster;
        use serde_json::json;
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": "r", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let complete = json!({ "status": { "conditions": [condition("CompleteAPIEnablements")] } });
        let serves = json!({ "status": {
            "conditions": [condition("CompleteAPIEnablements")],
            "apiEnablements": [{ "groupVersion": EXPORT_API, "resources": [{ "name": "serviceexports", "kind": EXPORT }] }],
        } });
        assert!(lacks_exports(&cluster("m1", "True", complete)));
        assert!(!lacks_exports(&cluster("m1", "True", serves)));
        assert!(!lacks_exports(&cluster("m1", "True", json!({}))), "it has not told yet");
    }

    #[test]
    fn slices_that_we_brought_are_not_collected_again() {
        use api::labels::{
            ENDPOINT_SLICE_CONTROLLER, ENDPOINT_SLICE_DISPATCH_CONTROLLER, ENDPOINT_SLICE_MANAGED_BY,
        };
        let expected = format!(
            "{ENDPOINT_SLICE_MANAGED_BY} notin ({ENDPOINT_SLICE_CONTROLLER},{ENDPOINT_SLICE_DISPATCH_CONTROLLER})"
        );
        assert_eq!(OWN_SLICES, Selection::Matching(Box::leak(expected.into_boxed_str())));
    }
}
