//! Takes over an object from another API server unchanged: uid, times, generation, status, finalizers, a deletion in progress.
//! Used by [`crate::internal::Actor::adopt`] when a whole control plane moves; no request leads here.
//!
//! There is no admission and no preparation: the other server has done both. If the uid changed, its dependents, its bindings and
//! its copies in members would no longer refer to it.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use super::decode;
use super::together::{Commit, Put};
use super::write::{Target, check_depth, commit_failure};
use crate::admission::Operation;
use crate::allocator;
use crate::conversion;
use crate::object;

/// The result of taking over an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    Created,
    /// It replaced another object with this name.
    Replaced,
    /// The same object already existed.
    Unchanged,
}

impl Target<'_> {
    /// Stores an object unchanged. An existing one with the same name is replaced only if `replace` is set.
    pub(crate) async fn adopt(&self, mut object: Value, replace: bool) -> Result<Adopted, Status> {
        self.settle_namespace(&mut object)?;
        let name = object.name().to_owned();
        if name.is_empty() || object.meta("uid").is_empty() {
            return Err(Status::bad_request("an object that is taken over needs its name and its uid"));
        }
        for field in ["resourceVersion", "selfLink"] {
            object.metadata_mut().remove(field);
        }
        decode::validate_type(self.kind, &object)?;
        check_depth(&object, None)?;
        let encoded = conversion::encode(self.server, self.kind, &object).await?;
        loop {
            let key = object::join_key(self.namespace, &name);
            let present = self.server.store.get(&self.kind.collection, &key);
            let expect = match &present {
                None => store::Expect::Absent,
                Some(entry) if entry.value == encoded.body => {
                    if self.unchanged(entry).await? {
                        return Ok(Adopted::Unchanged);
                    }
                    continue;
                }
                Some(entry) if replace => store::Expect::Revision(entry.modified),
                Some(_) => return Err(Status::already_exists(&self.kind.resource, &name)),
            };
            let write = self.write(&Commit {
                operation: Operation::Create,
                name: &name,
                object: None,
                old: None,
                expect,
                change: Put::Encoded { value: encoded.body.clone(), schema: encoded.schema },
                held: None,
            });
            let addresses = if self.kind.holds_addresses() {
                allocator::adopt(&self.server.store, self.namespace, &name, &object)
            } else {
                Vec::new()
            };
            match self.server.store.commit_with(write, addresses).await {
                Ok(_) if present.is_some() => return Ok(Adopted::Replaced),
                Ok(_) => return Ok(Adopted::Created),
                // Another write came first, so the object is read again.
                Err(store::CommitError::Conflict { .. } | store::CommitError::Overtaken { .. }) => {}
                Err(error) => return Err(commit_failure(error)),
            }
        }
    }
}
