//! The endpoints of the fleet: `search/cache`, `proxying/<any>/proxy` and `query` of the group search.karmada.io.
//!
//! In: requests that the server has authorised for the path. Out: answers from the caches ([`reading`], [`page`], [`watching`],
//! [`search`]), from the member that has the object ([`writing`]), or from the control plane itself ([`own`]), in this order, as
//! in Karmada. The members themselves decide what a user may see of them ([`rights`]).

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub(crate) mod opensearch;
pub(crate) mod own;
mod page;
mod query;
mod reading;
mod rights;
mod search;
mod watching;
mod writing;

use std::sync::Arc;

use ::fleet::{Cache, Fleet};
use apimachinery::gvk::{GroupResource, Gvk};
use apimachinery::status::Status;
use apiserver::handlers::context::Context;
use apiserver::http::{Body, Query, RequestInfo, onward, respond};
use apiserver::registry::{Kind, Registry, Rules, Source};
use apiserver::server::Server;
use bytes::Bytes;
use http::Response;
use kube::Client;
use member::Connection;
use tunnel::Tunnels;

use self::rights::{Access, Rights, Seen};
use crate::cluster_proxy::ClusterProxy;

/// The state behind the endpoints.
pub(crate) struct Endpoints {
    pub(crate) fleet: Arc<Fleet>,
    rights: Arc<Rights>,
}

/// Returns the kinds that a control plane serves from the start: the native ones, the given ones, and these endpoints, so that
/// discovery lists them.
pub(crate) fn registry(others: Vec<Arc<Kind>>) -> Arc<Registry> {
    let (get, all) = (["get"], ["create", "delete", "get", "patch", "update"]);
    let endpoints = [
        ("search", "Search", get.as_slice()),
        ("proxying", "Proxying", all.as_slice()),
        ("query", "Query", get.as_slice()),
    ];
    let endpoints = endpoints.map(|(name, kind, verbs)| endpoint(name, kind, verbs));
    Registry::with_computed(others.into_iter().chain(endpoints).collect())
}

fn endpoint(name: &str, kind: &str, verbs: &[&str]) -> Arc<Kind> {
    let gvk = Gvk::new(api::search::GROUP, "v1alpha1", kind);
    Arc::new(Kind {
        api_version: gvk.api_version(),
        list_kind: format!("{kind}List"),
        resource: GroupResource::new(api::search::GROUP, name),
        singular: name.to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: false,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        subresources: Vec::new(),
        collection: Arc::from(format!("{}/{name}", api::search::GROUP)),
        source: Source::Native,
        rules: Rules { computed: true, ..Rules::default() },
        storage: gvk.clone(),
        gvk,
    })
}

/// Returns the function by which the fleet finds how a server serves a kind.
pub(crate) fn resolve(server: &Arc<Server>) -> ::fleet::keeper::Resolve {
    let server = server.clone();
    Arc::new(move |api_version, kind| {
        let gvk = Gvk::from_api_version(api_version, kind);
        let registry = server.registry.load();
        let found = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind)?;
        let followed = !found.rules.computed && found.allows("watch");
        followed.then(|| ::fleet::Kind::new(&found.gvk, &found.resource.resource, found.namespaced))
    })
}

/// Returns the routes by which members are followed.
pub(crate) fn find_way(control: &Client, tunnels: &Tunnels) -> ::fleet::keeper::FindWay {
    let (control, tunnels) = (control.clone(), tunnels.clone());
    Arc::new(move |cluster| {
        let (control, tunnels) = (control.clone(), tunnels.clone());
        Box::pin(async move { Connection::of_plane(&control, &cluster, &tunnels).await })
    })
}

/// A request for a cached kind.
struct Asked<'a> {
    server: &'a Arc<Server>,
    /// The original request.
    outer: &'a Context,
    /// The request to the fleet: its path is what follows the endpoint.
    inner: Context,
    kind: Arc<Kind>,
    cache: Arc<Cache>,
    namespace: String,
}

impl Endpoints {
    pub(crate) fn new(fleet: Arc<Fleet>) -> Self {
        Self { fleet, rights: Arc::default() }
    }

    /// Answers a request to one of the endpoints.
    pub(crate) async fn answer(
        &self,
        server: &Arc<Server>,
        context: &Context,
        kind: &Kind,
        proxy: &ClusterProxy,
        body: &Bytes,
    ) -> Option<Result<Response<Body>, Status>> {
        if kind.gvk.group != api::search::GROUP {
            return None;
        }
        match kind.resource.resource.as_str() {
            "search" => Some(self.search(server, context).await),
            "query" => Some(self.query(server, context).await),
            "proxying" => Some(self.proxying(server, context, proxy, body).await),
            _ => None,
        }
    }

    async fn proxying(
        &self,
        server: &Arc<Server>,
        context: &Context,
        proxy: &ClusterProxy,
        body: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let target = onward::target(&context.info, context.query.raw())?;
        self.fleet.planned().await;
        let path = target.split_once('?').map_or(target.as_str(), |(path, _)| path);
        let Some(asked) = self.asked(server, context, path) else {
            return proxy.own(server, context, &target, body.clone()).await;
        };
        let info = &asked.inner.info;
        let cached = info.subresource.is_empty() && context.method == http::Method::GET;
        match info.verb {
            "get" if cached => self.get(&asked).await.map(respond::brief),
            "list" if cached => self.list(&asked).await.map(respond::brief),
            "watch" if cached => self.watch(&asked).await,
            _ => self.write(&asked, proxy, &target, body).await,
        }
    }

    /// Parses the path behind an endpoint; `None` if its kind is not cached.
    fn asked<'a>(&self, server: &'a Arc<Server>, outer: &'a Context, path: &str) -> Option<Asked<'a>> {
        let query = Query::parse(Some(outer.query.raw()));
        let info = RequestInfo::parse(&outer.method, path, &query);
        let right_prefix = (info.prefix == "api") == info.group.is_empty();
        if !info.is_resource || !right_prefix {
            return None;
        }
        let cache = self.fleet.cache(&info.group, &info.version, &info.resource)?;
        let kind = server.registry.load().find(&info.group, &info.version, &info.resource)?.clone();
        let namespace = if kind.namespaced { info.namespace.clone() } else { String::new() };
        let named = !info.name.is_empty() && !matches!(info.verb, "list" | "watch" | "deletecollection");
        // As everywhere, a namespaced object is not found without its namespace, nor a cluster-scoped one with a namespace.
        let lost = kind.namespaced && namespace.is_empty() && named
            || !kind.namespaced && !kind.is_namespace() && !info.namespace.is_empty();
        if lost {
            return None;
        }
        let inner =
            Context::new(outer.method.clone(), info, query, outer.headers.clone(), outer.user.clone());
        Some(Asked { server, outer, inner, kind, cache, namespace })
    }

    /// Returns the clusters that allow the caller's request.
    async fn seen(&self, asked: &Asked<'_>, verb: &str) -> Seen {
        self.rights.seen(&self.fleet, &asked.outer.user, &asked.cache.clusters(), &asked.access(verb)).await
    }
}

/// Returns the attributes that a member would authorise if it had received the request: a Namespace is in itself, and a list of
/// one name concerns that name.
fn access(info: &RequestInfo, verb: &str) -> Access {
    Access {
        verb: verb.to_owned(),
        group: info.group.clone(),
        version: info.version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
    }
}

impl Asked<'_> {
    fn access(&self, verb: &str) -> Access {
        access(&self.inner.info, verb)
    }

    /// Warns the caller about clusters whose objects are hidden, and about those that may be shown out of date.
    fn warn(&self, seen: &Seen) {
        let resource = &self.inner.info.resource;
        if let Seen::Some { no, .. } = seen {
            for cluster in no {
                self.outer.warn(format!("cluster {cluster} does not let you read its {resource}"));
            }
        }
        for (place, listed, stale) in self.cache.places() {
            if !seen.has(&place.cluster) {
                continue;
            }
            match stale {
                Some(stale) if listed => self.outer.warn(format!(
                    "cluster {} has not been heard of since {}: what is shown of it may be old",
                    place.cluster, stale.since
                )),
                Some(stale) => {
                    self.outer.warn(format!("cluster {} is not shown: {}", place.cluster, stale.why))
                }
                None if !listed => {
                    self.outer.warn(format!("cluster {} has not been listed yet", place.cluster))
                }
                None => {}
            }
        }
    }

    fn forbidden(&self, verb: &str) -> Status {
        let (user, info) = (&self.outer.user.name, &self.inner.info);
        let resource = info.full_resource();
        let group = &info.group;
        let why = format!(
            "User {user:?} cannot {verb} resource {resource:?} in API group {group:?} in any cluster of the fleet"
        );
        Status::forbidden(&self.kind.resource, &info.name, &why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_asked_for_the_rights_that_they_would_want_themselves() {
        let check = |target: &str, verb: &str, namespace: &str, name: &str| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let info = RequestInfo::parse(&http::Method::GET, path, &Query::parse(Some(query)));
            let Access { verb: asked, namespace: space, name: one, .. } = access(&info, info.verb);
            assert_eq!((asked.as_str(), space.as_str(), one.as_str()), (verb, namespace, name), "{target}");
        };
        check("/api/v1/namespaces/shop", "get", "shop", "shop");
        check("/api/v1/namespaces", "list", "", "");
        check("/api/v1/namespaces/shop/pods/x", "get", "shop", "x");
        check("/api/v1/nodes/n1", "get", "", "n1");
        check("/api/v1/namespaces/shop/pods", "list", "shop", "");
        check("/api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dx", "list", "shop", "x");
        check("/api/v1/pods?watch=true&fieldSelector=metadata.name%3Dx", "watch", "", "x");
    }
}
