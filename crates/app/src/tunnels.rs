//! `clusters/<name>/tunnel`: where the agent of a cluster in pull mode opens the tunnel into its member.
//!
//! In: an authorised request to switch to [`tunnel::PROTOCOL`]. Out: a connection that is passed to [`Tunnels`]. Only the agent
//! of the cluster itself gets a tunnel, whatever roles say: for all users of the cluster proxy, the holder of the tunnel is the
//! member. The right is checked again while the tunnel is open. If several servers share a store, an agent that already has a
//! tunnel to this one gets an error, and looks for the others.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::sync::Arc;

use admission::agents::{AGENT_PREFIX, AGENTS};
use apimachinery::status::Status;
use apiserver::auth::User;
use apiserver::auth::rbac::Attributes;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, RequestInfo, body, respond};
use apiserver::registry::Kind;
use apiserver::server::Server;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use kube::Client;
use runtime::Supervisor;
use runtime::events::{Events, Subject as _};
use serde_json::Value;
use tunnel::{News, PROTOCOL, Tunnels};

/// The reporting component in the events.
const COMPONENT: &str = "tunnel";
const OPENED: &str = "TunnelOpened";
const CLOSED: &str = "TunnelClosed";

/// Opens the tunnel of a cluster.
pub(crate) fn open(
    tunnels: &Tunnels,
    server: &Arc<Server>,
    context: &Context,
    kind: &Kind,
) -> Result<Response<Body>, Status> {
    let name = &context.info.name;
    if context.info.verb != "get" || !context.info.rest.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if !is_agent_of(&context.user, name) {
        let why = format!("only its own agent, {AGENT_PREFIX}{name}, opens its tunnel");
        return Err(Status::forbidden(&kind.resource, name, &why));
    }
    let cluster = cluster(server, name).ok_or_else(|| Status::not_found(&kind.resource, name))?;
    if cluster.pointer("/spec/syncMode").and_then(Value::as_str) != Some("Pull") {
        return Err(Status::bad_request(format!("cluster {name} is in push mode and has no tunnel")));
    }
    if tunnels.has_already(name, &context.headers) {
        let why = "its agent has a tunnel to this server already";
        let mut answer = respond::error(&Status::conflict(&kind.resource, name, why));
        tunnels.introduce(answer.headers_mut());
        return Ok(answer);
    }
    let wished = context.header(UPGRADE).is_some_and(|wished| wished == PROTOCOL);
    let upgrade = context.take_upgrade().filter(|_| wished).ok_or_else(|| {
        Status::bad_request(format!(
            "a tunnel is opened with HTTP/1.1, \"Connection: Upgrade\" and \"Upgrade: {PROTOCOL}\""
        ))
    })?;
    let holder = Holder {
        server: server.clone(),
        info: context.info.clone(),
        user: context.user.clone(),
        uid: uid(&cluster).to_owned(),
    };
    let (all, stop) = (tunnels.clone(), server.stop.clone());
    tokio::spawn(async move {
        let Ok(io) = upgrade.await else { return };
        let name = &holder.info.name;
        if let Err(error) = all.serve(name, io, || holder.may_stay(), &stop).await {
            tracing::warn!(cluster = name, "{error}");
        }
    });
    let mut answer = Response::new(body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    tunnels.introduce(answer.headers_mut());
    Ok(answer)
}

fn is_agent_of(user: &User, cluster: &str) -> bool {
    user.name.strip_prefix(AGENT_PREFIX) == Some(cluster) && user.in_group(AGENTS)
}

fn cluster(server: &Server, name: &str) -> Option<Value> {
    let registry = server.registry.load();
    server.stored(registry.find(api::cluster::GROUP, "v1alpha1", "clusters")?, "", name)
}

fn uid(object: &Value) -> &str {
    object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or("")
}

/// The agent of an open tunnel.
struct Holder {
    server: Arc<Server>,
    info: RequestInfo,
    user: Arc<User>,
    /// A cluster that was registered later under the same name is a different one.
    uid: String,
}

impl Holder {
    fn may_stay(&self) -> bool {
        cluster(&self.server, &self.info.name).is_some_and(|cluster| uid(&cluster) == self.uid)
            && self.server.rbac.check(&self.server.store, &self.user, &Attributes::of(&self.info)).is_ok()
    }
}

/// Writes events of the Clusters when tunnels open and close, until the returned supervisor is stopped.
pub(crate) fn tell(tunnels: &Tunnels, server: &Arc<Server>, client: &Client) -> Supervisor {
    let supervisor = Supervisor::default();
    let events = Events::new(client.clone(), &supervisor);
    // The server holds the tunnels.
    let (server, own) = (Arc::downgrade(server), tunnels.server());
    let end = own.map_or_else(String::new, |own| format!(" to server {own}"));
    tunnels.observe(move |cluster, news| {
        let Some(server) = server.upgrade() else { return };
        let Some(object) = self::cluster(&server, cluster) else { return };
        let about = object.involved();
        match news {
            News::Up => {
                let message =
                    format!("The agent's tunnel{end} is open: the member can be reached through it.");
                events.normal(COMPONENT, &about, OPENED, message);
            }
            News::Down => {
                let message =
                    format!("The agent's tunnel{end} is closed: the member cannot be reached through it.");
                events.warning(COMPONENT, &about, CLOSED, message);
            }
        }
    });
    supervisor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_agent_is_the_agent_of_a_cluster() {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        };
        assert!(is_agent_of(&user("system:karmada:agent:m1", &[AGENTS]), "m1"));
        for (name, groups) in [
            ("system:karmada:agent:m2", &[AGENTS][..]),
            ("system:karmada:agent:m11", &[AGENTS]),
            ("system:karmada:agent:", &[AGENTS]),
            ("system:karmada:agent:m1", &[]),
            ("system:karmada:agent:m1", &["system:masters"]),
            ("m1", &[AGENTS]),
            ("admin", &["system:masters"]),
        ] {
            assert!(!is_agent_of(&user(name, groups), "m1"), "{name} {groups:?}");
        }
    }
}
