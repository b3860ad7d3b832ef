//! FederatedResourceQuotas: how much a namespace may use, in single clusters and over all of them together.
//!
//! `sync` brings the shares of clusters there, `status` collects what they report, `enforcement` counts what bindings use. The
//! limit itself is enforced by admission, when a binding is written (`admission::usage`).

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

/// Quotas whose users have changed something and wait for a word, also if nothing has to be written. Nobody waits after a restart.
type Awaited = Mutex<BTreeSet<Key>>;

/// How events and logs name a quota.
fn named(key: &Key) -> String {
    format!("FederatedResourceQuota({key})")
}

/// Returns the quota that a Work belongs to, as its labels say.
pub(super) fn quota_of(work: &Work) -> Option<Key> {
    let labels = work.metadata.labels.as_ref()?;
    Some(Key::new(
        labels.get(FEDERATED_RESOURCE_QUOTA_NAMESPACE)?,
        labels.get(FEDERATED_RESOURCE_QUOTA_NAME)?,
    ))
}
