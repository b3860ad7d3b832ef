//! Which servers share this one's store: each announces itself with a Lease, as kube-apiservers do.
//!
//! In: the identity of this server. Out: its own Lease, renewed while it runs and deleted when it shuts down, and the names of
//! all servers, which [`Tunnels`] gets so that agents open one to each. A server counts as running while its Lease changes, by
//! this server's clock: clocks of different machines are never compared. Leases of servers that are long gone are deleted.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt as _};
use runtime::Supervisor;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnels;

/// The namespace of kube-apiservers' Leases, their prefix, and their label.
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "apiserver-";
const LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
const MANAGER: &str = "karmada-server";

/// How often a server renews its Lease, and looks for others.
const RENEWED: Duration = Duration::from_secs(5);
/// A server whose Lease has not changed for this long does not count.
const LASTS: Duration = Duration::from_secs(20);
/// A Lease that has not changed for this long is deleted: a server that comes back creates a new one.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Announces this server, and finds the others, until the returned supervisor is stopped.
pub(crate) fn start(client: &Client, own: &str, tunnels: &Tunnels) -> Supervisor {
    let supervisor = Supervisor::default();
    let stop = supervisor.token().clone();
    let (client, own, tunnels) = (client.clone(), own.to_owned(), tunnels.clone());
    supervisor.keep("servers", move || {
        let peers = Peers { leases: Api::namespaced(client.clone(), NAMESPACE), own: own.clone() };
        peers.run(tunnels.clone(), stop.clone())
    });
    supervisor
}

struct Peers {
    leases: Api<Lease>,
    own: String,
}

impl Peers {
    async fn run(self, tunnels: Tunnels, stop: CancellationToken) {
        let (mut seen, mut well) = (Seen::default(), true);
        while !stop.is_cancelled() {
            let round = tokio::time::timeout(RENEWED, async {
                self.announce().await?;
                self.look(&mut seen).await
            });
            let failure = match round.await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("no answer in time".to_owned()),
            };
            // The store's own checks give the details; this is logged once.
            if let Some(error) = failure.as_deref().filter(|_| well) {
                tracing::warn!(error, "this server cannot show the others that it is there");
            }
            well = failure.is_none();
            tunnels.know_servers(&self.own, seen.there(Instant::now()));
            tokio::select! {
                () = tokio::time::sleep(RENEWED) => {}
                () = stop.cancelled() => break,
            }
        }
        let (name, parameters) = (self.name(), DeleteParams::default());
        let gone = tokio::time::timeout(RENEWED, self.leases.delete(&name, &parameters));
        if !matches!(gone.await, Ok(Ok(_))) {
            tracing::debug!("the other servers will notice by themselves that this one has ended");
        }
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}", self.own)
    }

    /// Writes this server's Lease.
    async fn announce(&self) -> kube::Result<()> {
        let name = self.name();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "labels": {LABEL.0: LABEL.1}},
            "spec": {
                "holderIdentity": format!("karmada-server_{}", self.own),
                "leaseDurationSeconds": LASTS.as_secs(),
                "renewTime": MicroTime(Timestamp::now()),
            },
        });
        self.leases.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(lease)).await?;
        Ok(())
    }

    /// Reads all Leases, from this server's memory, which need not be the newest state.
    async fn look(&self, seen: &mut Seen) -> kube::Result<()> {
        let all = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1)).match_any();
        let leases = self.leases.list(&all).await?.items;
        for lease in seen.note(&leases, Instant::now()) {
            let Some(version) = lease.resource_version() else { continue };
            let unchanged = Preconditions { resource_version: Some(version), uid: lease.uid() };
            let parameters = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default() };
            match self.leases.delete(&lease.name_any(), &parameters).await {
                Ok(_) => tracing::info!(lease = lease.name_any(), "a server that is long gone is forgotten"),
                // Another server was faster, or that server has come back.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The Leases of servers: which version was seen last, and since when.
#[derive(Debug, Default)]
struct Seen(BTreeMap<String, (Option<String>, Instant)>);

impl Seen {
    /// Records the existing Leases. Returns those that can be deleted.
    fn note<'a>(&mut self, leases: &'a [Lease], now: Instant) -> Vec<&'a Lease> {
        let servers: BTreeMap<String, &Lease> = leases
            .iter()
            .filter_map(|lease| Some((lease.name_any().strip_prefix(PREFIX)?.to_owned(), lease)))
            .collect();
        self.0.retain(|server, _| servers.contains_key(server));
        let mut old = Vec::new();
        for (server, lease) in servers {
            let entry = self.0.entry(server).or_insert_with(|| (lease.resource_version(), now));
            if entry.0 != lease.resource_version() {
                *entry = (lease.resource_version(), now);
            }
            if now.saturating_duration_since(entry.1) > FORGOTTEN {
                old.push(lease);
            }
        }
        old
    }

    /// Returns the running servers.
    fn there(&self, now: Instant) -> BTreeSet<String> {
        let is_there = |since: Instant| now.saturating_duration_since(since) <= LASTS;
        self.0.iter().filter(|(_, (_, since))| is_there(*since)).map(|(server, _)| server.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: &str, version: u32) -> Lease {
        let value = json!({"metadata": {"name": name, "resourceVersion": version.to_string()}});
        serde_json::from_value(value).expect("a Lease")
    }

    #[test]
    fn a_server_is_there_while_its_lease_changes_and_forgotten_long_after() {
        let start = Instant::now();
        let mut seen = Seen::default();
        let there = |seen: &Seen, now| seen.there(now).into_iter().collect::<Vec<_>>().join(" ");
        let both = [lease("apiserver-a", 1), lease("apiserver-b", 2), lease("somebody", 3)];
        assert!(seen.note(&both, start).is_empty());
        assert_eq!(there(&seen, start), "a b");
        // Only b continues.
        let later = start + LASTS + RENEWED;
        let mut now = [lease("apiserver-a", 1), lease("apiserver-b", 7)];
        assert!(seen.note(&now, later).is_empty());
        assert_eq!(there(&seen, later), "b");
        let long_after = start + FORGOTTEN + RENEWED;
        now[1] = lease("apiserver-b", 8);
        let old: Vec<String> = seen.note(&now, long_after).iter().map(|old| old.name_any()).collect();
        assert_eq!(old, ["apiserver-a"]);
        // It comes back, with the same name.
        now[0] = lease("apiserver-a", 9);
        assert!(seen.note(&now, long_after).is_empty());
        assert_eq!(there(&seen, long_after), "a b");
        // A server that shut down is gone at once.
        assert!(seen.note(&now[..1], long_after).is_empty());
        assert_eq!(there(&seen, long_after), "a");
    }
}
