//! FederatedResourceQuotas: how much a namespace may use, in single clusters and over all of them together.
//!
//! `sync` sends each cluster its share, `status` collects what clusters report, `enforcement` counts what
//! bindings use. The limit itself is enforced by admission, when a binding is written (`admission::usage`).

pub(crate) mod enforcement;
#[cfg(test)]
mod on_server;
pub(crate) mod status;
pub(crate) mod sync;

use std::collections::BTreeSet;

use api::labels::{FEDERATED_RESOURCE_QUOTA_NAME, FEDERATED_RESOURCE_QUOTA_NAMESPACE};
use api::work::Work;
use parking_lot::Mutex;
use runtime::Key;

/// Quotas that users have changed and that get an event even if nothing has to be written. After a restart
/// there are none.
type Awaited = Mutex<BTreeSet<Key>>;

/// How events and logs name a quota.
fn named(key: &Key) -> String {
    format!("FederatedResourceQuota({key})")
}

/// Returns the quota that a Work belongs to, according to its labels.
pub(super) fn quota_of(work: &Work) -> Option<Key> {
    let labels = work.metadata.labels.as_ref()?;
    Some(Key::new(
        labels.get(FEDERATED_RESOURCE_QUOTA_NAMESPACE)?,
        labels.get(FEDERATED_RESOURCE_QUOTA_NAME)?,
    ))
}
