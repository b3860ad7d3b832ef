//! The rights of agents, as bounds of the server and as a plug-in that checks their writes.
//!
//! `admission::agents` decides what they may do. This file reads the facts that it needs from the server's store. Before the
//! server runs, users with bounds may do nothing.

use std::sync::{Arc, OnceLock, Weak};

use admission::agents::{self, Facts, Named, Needs, Secret, Wanted, Who};
use apimachinery::status::Status;
use apiserver::admission::{Admit, Attributes as Admitted, Operation as Doing};
use apiserver::auth::User;
use apiserver::auth::bounds::{Bounds, Reach};
use apiserver::auth::rbac::Attributes;
use apiserver::registry::Kind;
use apiserver::server::Server;
use futures::future::BoxFuture;
use serde_json::Value;

/// How long the certificate is valid with which `register` writes roles, in seconds: the shortest duration that is signed.
/// Upstream requests a year.
const GENERATOR_LIFETIME: u32 = 600;

/// Knows agents and the users who register them; all clones share their state.
#[derive(Clone, Default)]
pub(crate) struct Agents(Arc<OnceLock<Weak<Server>>>);

impl Agents {
    fn server(&self) -> Option<Arc<Server>> {
        self.0.get()?.upgrade()
    }

    fn stored(
        &self,
        group: &str,
        version: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        let server = self.server()?;
        let kind = server.registry.load().find(group, version, resource).cloned()?;
        server.stored(&kind, namespace, name)
    }

    /// Returns the names of the Clusters whose specification matches. It reads all of them, so it is only for checks when an
    /// agent starts.
    fn clusters_where(&self, fits: impl Fn(&Value) -> bool) -> Vec<String> {
        let Some(server) = self.server() else { return Vec::new() };
        let Some(kind) = server.registry.load().find(api::cluster::GROUP, "v1alpha1", "clusters").cloned()
        else {
            return Vec::new();
        };
        let all = server.store.snapshot(&kind.collection);
        let read = all.iter().filter_map(|entry| Some((entry, server.read_or_warn(&kind, entry)?)));
        read.filter(|(_, cluster)| fits(&cluster["spec"])).map(|(entry, _)| entry.name.to_string()).collect()
    }
}

impl Facts for Agents {
    fn is_registered(&self, cluster: &str) -> bool {
        // An unknown name counts as taken, so it is not given out.
        self.server().is_none()
            || self.stored(api::cluster::GROUP, "v1alpha1", "clusters", "", cluster).is_some()
    }

    fn registered_with(&self, id: &str) -> Vec<String> {
        self.clusters_where(|spec| spec["id"] == id)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        let found = self.stored("", "v1", "secrets", namespace, name)?;
        let owners = found.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        // Other groups have a kind with this name, too.
        let is_cluster = |owner: &&Value| {
            let version = owner["apiVersion"].as_str().unwrap_or("");
            owner["kind"] == "Cluster"
                && version.split_once('/').is_some_and(|(group, _)| group == api::cluster::GROUP)
        };
        let owners = owners.into_iter().flatten().filter(is_cluster);
        Some(Secret {
            owners: owners.filter_map(|owner| owner["name"].as_str()).map(str::to_owned).collect(),
            is_labelled: found["metadata"]["labels"][api::labels::SYSTEM] == api::labels::TRUE,
        })
    }

    fn users_of_secret(&self, namespace: &str, name: &str) -> Vec<String> {
        let names = |reference: &Value| reference["namespace"] == namespace && reference["name"] == name;
        self.clusters_where(|spec| names(&spec["secretRef"]) || names(&spec["impersonatorSecretRef"]))
    }

    fn requester(&self, request: &str) -> Option<String> {
        let found = self.stored("certificates.k8s.io", "v1", "certificatesigningrequests", "", request)?;
        found["spec"]["username"].as_str().map(str::to_owned)
    }

    fn is_propagated(&self, cluster: &str, object: Named<'_>) -> bool {
        let name = api::names::binding(object.kind, object.name);
        let resource = match object.namespace {
            "" => "clusterresourcebindings",
            _ => "resourcebindings",
        };
        let stored = self.stored(api::work::GROUP, "v1alpha2", resource, object.namespace, &name);
        let Some(binding) = stored else { return false };
        let spec = &binding["spec"];
        let all = |list: &Value, field: &str| -> bool {
            list.as_array().into_iter().flatten().any(|item| item[field] == cluster)
        };
        let required = spec["requiredBy"].as_array().into_iter().flatten();
        (spec["resource"]["kind"] == object.kind && spec["resource"]["name"] == object.name)
            && (all(&spec["clusters"], "name")
                || all(&spec["gracefulEvictionTasks"], "fromCluster")
                || required.into_iter().any(|by| all(&by["clusters"], "name")))
    }

    fn is_system_namespace(&self, name: &str) -> bool {
        let namespace = self.stored("", "v1", "namespaces", "", name).unwrap_or_default();
        namespace["metadata"]["labels"][api::labels::SYSTEM] == api::labels::TRUE
    }
}

impl Bounds for Agents {
    /// Connects the store. Agents reconnect as soon as a server listens again; a refusal would keep their tunnels away for a
    /// minute, and end agents that are starting.
    fn connect(&self, server: &Arc<Server>) {
        let _ = self.0.set(Arc::downgrade(server));
    }

    fn bound(
        &self,
        user: &User,
        wanted: &Attributes<'_>,
        roles: &dyn Fn(&Attributes<'_>) -> bool,
    ) -> Option<Result<Reach, String>> {
        let who = Who::of(&user.name, &user.groups)?;
        if self.server().is_none() {
            return Some(Err("the server is starting".to_owned()));
        }
        let asked = Wanted {
            verb: wanted.verb,
            group: wanted.group,
            resource: wanted.resource,
            subresource: wanted.subresource,
            namespace: wanted.namespace,
            name: wanted.name,
            path: wanted.path,
        };
        let decided = agents::may(who, &user.name, &asked, self).and_then(|right| {
            let known = || match who {
                Who::Agent(cluster) => roles(&Attributes {
                    verb: "get",
                    group: api::cluster::GROUP,
                    version: "*",
                    resource: "clusters",
                    name: cluster,
                    ..Attributes::default()
                }),
                _ => false,
            };
            if roles(wanted) || (right.needs == Needs::Known && known()) {
                Ok(right.only.map_or(Reach::Asked, Reach::Only))
            } else {
                Err("its roles do not allow it".to_owned())
            }
        });
        Some(decided)
    }
}

impl Admit for Agents {
    fn name(&self) -> &'static str {
        "Agents"
    }

    fn handles(&self, operation: Doing, kind: &Kind, subresource: &str) -> bool {
        operation != Doing::Delete
            && subresource.is_empty()
            && matches!(
                (kind.gvk.group.as_str(), kind.gvk.kind.as_str()),
                (api::cluster::GROUP, "Cluster")
                    | ("", "Secret" | "Namespace" | "Event")
                    | ("events.k8s.io", "Event")
                    | ("coordination.k8s.io", "Lease")
                    | ("certificates.k8s.io", "CertificateSigningRequest")
                    | ("rbac.authorization.k8s.io", _)
            )
    }

    fn mutate<'a>(&'a self, admitted: &'a mut Admitted<'_>) -> BoxFuture<'a, Result<(), Status>> {
        // The right to write roles is needed only for a moment; upstream requests it for as long as the agent's own certificate.
        let is_request = admitted.kind.gvk.kind == "CertificateSigningRequest";
        if is_request
            && Who::of(&admitted.user.name, &admitted.user.groups).is_some()
            && let Some(object) = admitted.object.as_deref_mut()
            && agents::CertificateRequest::read(object)
                .is_some_and(|read| read.common_name == agents::GENERATOR)
        {
            object["spec"]["expirationSeconds"] = GENERATOR_LIFETIME.into();
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, admitted: &'a mut Admitted<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(std::future::ready(self.check(admitted)))
    }
}

impl Agents {
    fn check(&self, admitted: &Admitted<'_>) -> Result<(), Status> {
        let Some(who) = Who::of(&admitted.user.name, &admitted.user.groups) else { return Ok(()) };
        let object = admitted.object.as_deref().unwrap_or(&Value::Null);
        let gvk = &admitted.kind.gvk;
        let named = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or(admitted.name);
        let write = agents::Write {
            operation: match admitted.operation {
                Doing::Create => admission::Operation::Create,
                Doing::Update => admission::Operation::Update,
                Doing::Delete => admission::Operation::Delete,
            },
            group: &gvk.group,
            kind: &gvk.kind,
            subresource: admitted.subresource,
            namespace: admitted.namespace,
            name: named,
            object,
            old: admitted.old,
        };
        agents::check(who, &write, self)
            .map_err(|why| Status::forbidden(&admitted.kind.resource, named, &why))
    }
}
