//! Keys that several servers on one store share: the authorities, and the key that signs service account tokens.
//!
//! The first server puts them into the store, the others read them there. A data directory with other keys belongs to another
//! control plane, and is refused before anything is written.

use std::path::Path;

use serde::{Deserialize, Serialize};
use store::{CommitError, Expect, Store, Write};

use super::pki::{self, Pair, Pki};
use crate::head::Head;

/// This is not a collection of a kind: no API shows it.
const COLLECTION: &str = "server-keys";
const NAME: &str = "keys";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("cannot read or write the keys in the store: {0}")]
    Store(String),
    #[error("the keys in the store cannot be read: {0}")]
    Damaged(#[from] serde_json::Error),
    #[error(
        "{path} is not the {name} of the control plane in the store: this data directory belongs to another one; \
         use another --data-dir or another --etcd-prefix"
    )]
    Foreign { path: std::path::PathBuf, name: &'static str },
}

#[derive(Serialize, Deserialize)]
struct Keys {
    ca: StoredPair,
    front_proxy_ca: StoredPair,
    service_account_key: String,
}

#[derive(Serialize, Deserialize)]
struct StoredPair {
    cert: String,
    key: String,
}

impl From<Pair> for StoredPair {
    fn from(Pair { cert, key }: Pair) -> Self {
        Self { cert, key }
    }
}

/// Ensures that the directory has the keys in the store, or, if the store has none, that the store gets those of the directory.
pub async fn agree(store: &Store<Head>, dir: &Path) -> Result<(), Error> {
    let keys = match load(store)? {
        Some(keys) => keys,
        None => offer(store, dir).await?,
    };
    for (name, pair) in [(pki::CA.0, keys.ca), (pki::FRONT_PROXY_CA.0, keys.front_proxy_ca)] {
        let key = dir.join(format!("{name}.key"));
        match pki::read(&key)? {
            // One side may have a renewed certificate; the key identifies the authority.
            Some(known) if known == pair.key => {}
            Some(_) => return Err(Error::Foreign { path: key, name: "authority" }),
            None => pki::write_pair(dir, name, &Pair { cert: pair.cert, key: pair.key })?,
        }
    }
    let path = dir.join(pki::SERVICE_ACCOUNT_KEY);
    match pki::read(&path)? {
        Some(known) if known == keys.service_account_key => Ok(()),
        Some(_) => Err(Error::Foreign { path, name: "key for service accounts" }),
        None => Ok(pki::write_private(&path, keys.service_account_key.as_bytes())?),
    }
}

fn load(store: &Store<Head>) -> Result<Option<Keys>, Error> {
    let entry = store.get(COLLECTION, NAME);
    Ok(entry.map(|entry| serde_json::from_slice(&entry.value)).transpose()?)
}

/// Offers the keys of this directory, or new ones. Returns the keys that are in the store afterwards.
async fn offer(store: &Store<Head>, dir: &Path) -> Result<Keys, Error> {
    // New keys are written to the directory only once it is known that no other server was faster.
    let own = if pki::has_authority(dir)? { Some(dir) } else { None };
    let Pki { ca, front_proxy_ca, service_account_key, .. } = Pki::load_or_create(own, &[])?;
    let keys = Keys { ca: ca.into(), front_proxy_ca: front_proxy_ca.into(), service_account_key };
    let write =
        Write::put(COLLECTION, NAME, Expect::Absent, serde_json::to_vec(&keys)?.into(), Head::default());
    match store.commit(write).await {
        Ok(_) => Ok(keys),
        Err(CommitError::Conflict { current: Some(entry) }) => Ok(serde_json::from_slice(&entry.value)?),
        Err(error) => Err(Error::Store(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store<Head> {
        Store::open(store::Options::memory()).expect("a store in memory")
    }

    fn keys(dir: &Path) -> Vec<String> {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("a key");
        ["ca.key", "ca.crt", "front-proxy-ca.key", "sa.key"].map(read).into()
    }

    #[tokio::test]
    async fn servers_that_start_in_any_order_have_the_same_keys() {
        let (store, one, other) = (store(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = tokio::join!(agree(&store, one.path()), agree(&store, other.path()));
        first.and(second).expect("they agree");
        assert_eq!(keys(one.path()), keys(other.path()));
        agree(&store, one.path()).await.expect("again");
    }

    #[tokio::test]
    async fn a_control_plane_takes_its_keys_along_into_an_empty_store() {
        let (store, dir) = (store(), tempfile::tempdir().unwrap());
        let before = Pki::load_or_create(Some(dir.path()), &[]).expect("keys");
        agree(&store, dir.path()).await.expect("it takes them over");
        let stored = load(&store).expect("readable").expect("there");
        assert_eq!((stored.ca.key, stored.service_account_key), (before.ca.key, before.service_account_key));
    }

    #[tokio::test]
    async fn a_directory_of_another_control_plane_is_refused_and_left_alone() {
        let (store, one, other) = (store(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        agree(&store, one.path()).await.expect("the first");
        Pki::load_or_create(Some(other.path()), &[]).expect("keys of its own");
        let before = keys(other.path());
        let refused = agree(&store, other.path()).await.expect_err("not this one's");
        assert!(refused.to_string().contains("belongs to another one"), "{refused}");
        assert_eq!(keys(other.path()), before);
    }
}
