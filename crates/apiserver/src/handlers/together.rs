//! Commits a write together with other writes that plug-ins want.
//!
//! In: a write that is ready to be committed. Out: the result of the store. A plug-in may want to change the status of other
//! objects if and only if the write happens: for example, what a binding uses is counted in the quotas of its namespace. All of
//! it is one commit, so that neither a lost race nor a crash leaves one without the other.
//!
//! Such a change of a status is the server's own: it is prepared and validated like any write of a status, but there is no
//! admission. If one of those objects has changed meanwhile, the plug-ins are asked again. The write itself starts over only if
//! its own object has changed. A new object is written only if its namespace and its definition are still as they were read: with
//! several servers, memory alone does not show whether another one has begun to delete them.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use native::prepare::service::Allocation;
use serde_json::Value;

use super::decode;
use super::write::{Target, commit_failure};
use crate::admission::{Attributes, Companion, Operation};
use crate::allocator;
use crate::conversion;
use crate::head::Head;
use crate::internal::Actor;
use crate::object;
use crate::registry::Kind;

/// The name under which the status of a companion is written.
const NAME: &str = "system:admission";

type Write = store::Write<Head>;

/// A write that is about to be committed.
pub struct Commit<'a> {
    pub operation: Operation,
    pub name: &'a str,
    pub object: Option<&'a mut Value>,
    pub old: Option<&'a Value>,
    pub expect: store::Expect,
    pub change: Put,
    /// The addresses and ports that it takes, and those that it gives back. A deletion gives back all of them.
    pub held: Option<&'a Allocation>,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The revision; `None` for a dry run.
    Written(Option<u64>),
    /// The object has changed since it was read.
    Lost,
    /// Another Service has taken an address or a port meanwhile.
    Taken,
}

/// What happens to the object.
pub enum Put {
    Encoded { value: bytes::Bytes, schema: u32 },
    Nothing,
}

impl Target<'_> {
    pub async fn commit(&self, mut commit: Commit<'_>) -> Result<Done, Status> {
        let admission = &self.server.admission;
        let alone = !admission.accompanies(commit.operation, self.kind, self.subresource);
        loop {
            // The plug-ins hold their reservations until the commit is done.
            let together = if alone {
                None
            } else {
                let attributes = Attributes {
                    operation: commit.operation,
                    kind: self.kind,
                    namespace: self.namespace,
                    name: commit.name,
                    subresource: self.subresource,
                    user: &self.context.user,
                    dry_run: self.options.dry_run,
                    object: commit.object.as_deref_mut(),
                    old: commit.old,
                    warnings: Vec::new(),
                };
                Some(admission.together(&attributes).await?)
            };
            let write = self.write(&commit);
            if self.options.dry_run {
                let exists = self.server.store.get(&write.collection, &write.name).is_some();
                let lost = matches!(commit.expect, store::Expect::Absent) && exists;
                return Ok(if lost { Done::Lost } else { Done::Written(None) });
            }
            let mut companions = Vec::new();
            // First in the list: if several fail, the store may name the first.
            let ranges = self.ranges(&commit);
            let wanted = together.iter().flat_map(|together| &together.writes);
            for companion in wanted {
                companions.push(self.compose(companion).await?);
            }
            // A companion that has changed meanwhile is shown to its plug-in again.
            let Some(companions) = companions.into_iter().collect::<Option<Vec<_>>>() else { continue };
            let companions = ranges.into_iter().chain(companions.into_iter().flatten()).collect();
            // Checked again after every lost race: it may be terminating by now.
            let grounds = match commit.operation {
                Operation::Create => self.grounds(commit.name)?,
                Operation::Update | Operation::Delete => Vec::new(),
            };
            match self.server.store.commit_while(write, companions, grounds).await {
                Ok(committed) => return Ok(Done::Written(Some(committed.revision))),
                Err(store::CommitError::Conflict { .. }) => return Ok(Done::Lost),
                Err(store::CommitError::Overtaken { collection, .. }) if allocator::is_range(&collection) => {
                    return Ok(Done::Taken);
                }
                Err(store::CommitError::Overtaken { .. }) => {}
                Err(error) => return Err(commit_failure(error)),
            }
        }
    }

    /// Returns the writes for the addresses and ports of a Service.
    fn ranges(&self, commit: &Commit<'_>) -> Vec<Write> {
        let (store, namespace) = (&self.server.store, self.namespace);
        match (&commit.change, commit.held, commit.old) {
            (Put::Encoded { .. }, Some(held), _) => allocator::writes(store, namespace, commit.name, held),
            (Put::Nothing, _, Some(last)) if self.kind.holds_addresses() => {
                allocator::release(store, namespace, commit.name, last)
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn write(&self, commit: &Commit<'_>) -> Write {
        let (collection, key) = (self.kind.collection.clone(), object::join_key(self.namespace, commit.name));
        let (change, ttl) = match &commit.change {
            Put::Nothing => (store::Change::Delete, None),
            Put::Encoded { value, schema } => {
                let mut head = <Head as store::Head>::parse(&collection, &key, value);
                head.schema = *schema;
                (store::Change::Put { value: value.clone(), head }, self.kind.ttl())
            }
        };
        let expect = commit.expect;
        store::Write { collection, name: key, expect, change, durability: self.durability(), ttl }
    }

    /// Returns the write of a companion if there is a difference; `None` if it is no longer as the plug-in saw it.
    async fn compose(&self, companion: &Companion) -> Result<Option<Option<Write>>, Status> {
        let gvk = &companion.kind;
        let registry = self.server.registry.load_full();
        let Some(kind): Option<&Arc<Kind>> = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind) else {
            return Ok(None);
        };
        let (namespace, name) = (companion.object.namespace(), companion.object.name());
        let actor = Actor::new(self.server, NAME);
        let target = actor.target(kind, namespace, name, "status");
        let Some(entry) = self.server.store.get(&kind.collection, &object::join_key(namespace, name)) else {
            return Ok(None);
        };
        if entry.modified.to_string() != companion.object.resource_version() {
            return Ok(None);
        }
        let shown = conversion::entry(self.server, kind, entry.clone()).await?;
        let old = self.server.read(kind, &shown)?;
        let mut new = old.clone();
        pointer::set(&mut new, "status", companion.object.get("status").cloned().unwrap_or_default());
        decode::canonicalise(kind, &kind.gvk, &mut new)
            .map_err(|error| decode::cannot_handle(&kind.gvk, &kind.gvk, &error))?;
        crate::field_ownership::track(&target, Some(&old), &mut new);
        target.prepare_update(&mut new, &old)?;
        decode::validate_type(kind, &new)?;
        let errors = target.validate_update(&new, &old);
        if !errors.is_empty() {
            return Err(target.invalid(name, &errors));
        }
        new = apimachinery::server_side_apply::keep_times_if_equal(&old, new);
        let encoded = conversion::encode(self.server, kind, &new).await?;
        if encoded.body == entry.value {
            return Ok(Some(None));
        }
        let commit = Commit {
            operation: Operation::Update,
            name,
            object: None,
            old: None,
            expect: store::Expect::Revision(entry.modified),
            change: Put::Encoded { value: encoded.body, schema: encoded.schema },
            held: None,
        };
        Ok(Some(Some(target.write(&commit))))
    }
}
