//! All members this process is connected to.

use std::collections::HashMap;
use std::sync::Arc;

use api::cluster::Cluster;
use kube::Client;
use parking_lot::RwLock;
use runtime::Supervisor;
use serde_json::Value;

use crate::member::Way;
use crate::{Connection, Member, Result};

/// A change of an object in a member.
#[derive(Debug)]
pub struct ObservedChange<'a> {
    pub cluster: &'a str,
    pub old: Option<&'a Value>,
    pub new: Option<&'a Value>,
    /// We wrote it ourselves.
    pub ours: bool,
}

/// Called for every change of a watched object in a member. It must be quick: the watch waits for it.
pub type Observer = Arc<dyn Fn(&ObservedChange<'_>) + Send + Sync>;

/// The subscribers to changes in members.
#[derive(Default)]
pub(crate) struct Observers {
    /// Of managed objects.
    pub(crate) managed: RwLock<Vec<Observer>>,
    /// Of objects in all other copies.
    pub(crate) others: RwLock<Vec<Observer>>,
}

/// Wraps the connection to a member: gets its name and client, returns the client to use.
pub type Between = Arc<dyn Fn(&str, Client) -> Client + Send + Sync>;

/// The members by name.
#[derive(Default)]
pub struct Members {
    members: RwLock<HashMap<String, Arc<Member>>>,
    observers: Arc<Observers>,
    /// Supervises the watches.
    supervisor: Supervisor,
    /// A layer between this process and its members, for rehearsals.
    between: Option<Between>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.members.read().keys()).finish()
    }
}

impl Members {
    /// Returns an empty set; `supervisor` runs the watches of members that are added.
    pub fn new(supervisor: Supervisor) -> Self {
        Self { supervisor, ..Self::default() }
    }

    /// As [`new`](Self::new), with a wrapper around the connection to every member.
    pub fn behind(supervisor: Supervisor, between: Between) -> Self {
        Self { supervisor, between: Some(between), ..Self::default() }
    }

    /// Adds a subscriber to changes of managed objects in members.
    pub fn observe(&self, observer: Observer) {
        self.observers.managed.write().push(observer);
    }

    /// Adds a subscriber to changes in the copies that also have unmanaged objects.
    pub fn observe_others(&self, observer: Observer) {
        self.observers.others.write().push(observer);
    }

    /// Returns a connected member.
    pub fn get(&self, name: &str) -> Option<Arc<Member>> {
        self.members.read().get(name).cloned()
    }

    /// Returns all connected members.
    pub fn all(&self) -> Vec<Arc<Member>> {
        self.members.read().values().cloned().collect()
    }

    /// Connects to a member, or reconnects if its address or credentials have changed. Returns the member and whether the
    /// connection is new.
    ///
    /// A new connection watches the same kinds as the one it replaces.
    pub async fn refresh(&self, control: &Client, cluster: &Cluster) -> Result<(Arc<Member>, bool)> {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let connection = Connection::read(control, cluster).await?;
        if let Some(member) = self.get(&name).filter(|member| member.is_reached_by(&connection)) {
            return Ok((member, false));
        }
        let client = connection.limited_client().await?;
        let client = match &self.between {
            Some(between) => between(&name, client),
            None => client,
        };
        Ok(self.insert(name, client, Way::Secret(Box::new(connection))))
    }

    /// Adds a member that is reached by a client of this process, as an agent reaches its own cluster: no Secret is needed.
    pub fn adopt(&self, name: &str, client: &Client) -> (Arc<Member>, bool) {
        match self.get(name) {
            Some(member) => (member, false),
            None => self.insert(name.to_owned(), client.clone(), Way::Own),
        }
    }

    fn insert(&self, name: String, client: Client, way: Way) -> (Arc<Member>, bool) {
        let observers = self.observers.clone();
        let member = Arc::new(Member::new(name.clone(), client, way, observers, self.supervisor.clone()));
        let replaced = {
            let mut members = self.members.write();
            // Another task was faster: one connection is enough.
            if let Some(other) = members.get(&name).filter(|other| other.way == member.way) {
                return (other.clone(), false);
            }
            members.insert(name, member.clone())
        };
        if let Some(old) = replaced {
            old.stopped().cancel();
            for (kind, selection) in old.watched() {
                member.copy(&kind, selection);
            }
        }
        (member, true)
    }

    /// Removes a member that has left; its watches end.
    pub fn remove(&self, name: &str) {
        if let Some(member) = self.members.write().remove(name) {
            member.stopped().cancel();
        }
    }
}
