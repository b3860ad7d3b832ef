//! All members this process is connected to.

use std::collections::HashMap;
use std::sync::Arc;

use api::cluster::Cluster;
use kube::Client;
use parking_lot::RwLock;
use serde_json::Value;

use crate::{Connection, Member, Result};

/// What happened to a managed object in a member.
#[derive(Debug)]
pub struct ObservedChange<'a> {
    pub cluster: &'a str,
    pub old: Option<&'a Value>,
    pub new: Option<&'a Value>,
    /// We wrote it ourselves.
    pub ours: bool,
}

/// Told of every change of a managed object in a member. Must be quick: the watch waits for it.
pub type Observer = Arc<dyn Fn(&ObservedChange<'_>) + Send + Sync>;

/// The members by name.
#[derive(Default)]
pub struct Members {
    members: RwLock<HashMap<String, Arc<Member>>>,
    observer: RwLock<Option<Observer>>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.members.read().keys()).finish()
    }
}

impl Members {
    /// Says who is told of changes in members that are connected from now on.
    pub fn observe(&self, observer: Observer) {
        *self.observer.write() = Some(observer);
    }

    /// Returns a connected member.
    pub fn get(&self, name: &str) -> Option<Arc<Member>> {
        self.members.read().get(name).cloned()
    }

    /// Returns all connected members.
    pub fn all(&self) -> Vec<Arc<Member>> {
        self.members.read().values().cloned().collect()
    }

    /// Connects to a member, or connects anew if its address or credentials have changed. Returns the member and
    /// whether the connection is new.
    ///
    /// A new connection watches the same kinds as the one it replaces.
    pub async fn refresh(&self, control: &Client, cluster: &Cluster) -> Result<(Arc<Member>, bool)> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let connection = Connection::read(control, cluster).await?;
        if let Some(member) = self.get(&name).filter(|member| member.connection == connection) {
            return Ok((member, false));
        }
        let observer = self.observer.read().clone();
        let member = Arc::new(Member::connect(name.clone(), connection, observer).await?);
        let replaced = {
            let mut members = self.members.write();
            // Somebody else was quicker: one connection is enough.
            if let Some(other) = members.get(&name).filter(|other| other.connection == member.connection) {
                return Ok((other.clone(), false));
            }
            members.insert(name, member.clone())
        };
        if let Some(old) = replaced {
            old.stopped().cancel();
            for kind in old.watched() {
                member.managed(&kind);
            }
        }
        Ok((member, true))
    }

    /// Forgets a member that has left; its watches end.
    pub fn remove(&self, name: &str) {
        if let Some(member) = self.members.write().remove(name) {
            member.stopped().cancel();
        }
    }
}
