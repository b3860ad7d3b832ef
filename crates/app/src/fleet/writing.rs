//! Writes and subresources: forwarded to the member that has the object, in the caller's name.
//!
//! The cache knows which member that is; the member's own rules decide the rest. The fleet's additions to objects are removed:
//! the annotation that names the cluster, and the composite resource version, which is replaced by the member's own. An
//! unreadable body is forwarded unchanged, and the member reports the error.

use std::sync::Arc;

use ::fleet::Versions;
use ::fleet::cache::Found;
use ::fleet::entry::key;
use apimachinery::status::{Details, Status};
use apiserver::http::Body;
use bytes::Bytes;
use http::Response;
use serde_json::Value;

use super::reading::{ambiguous, without_marks};
use super::rights::Access;
use super::{Asked, Endpoints};
use crate::cluster_proxy::ClusterProxy;

/// The media types of update bodies of native kinds.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

impl Endpoints {
    pub(super) async fn write(
        &self,
        asked: &Asked<'_>,
        proxy: &ClusterProxy,
        target: &str,
        body: &Bytes,
    ) -> Result<Response<Body>, Status> {
        let (info, kind) = (&asked.inner.info, &asked.kind);
        let resource = &kind.resource;
        if info.verb == "create" && info.name.is_empty() {
            // The target cluster is unknown: only propagation decides that.
            let message = format!("create is not supported on resources of kind \"{resource}\"");
            let details = Details {
                group: resource.group.clone(),
                kind: resource.resource.clone(),
                ..Details::default()
            };
            return Err(Status::new(405, "MethodNotAllowed", message).with_details(details));
        }
        let collection = matches!(info.verb, "list" | "watch" | "deletecollection");
        if collection || info.name.is_empty() {
            return Err(Status::not_found(resource, ""));
        }
        asked.cache.ready().await;
        let found = self.meant(asked, asked.cache.get(&key(&asked.namespace, &info.name))).await?;
        let found = match found.as_slice() {
            [] => return Err(Status::not_found(resource, &info.name)),
            [one] => one,
            several => return Err(ambiguous(kind, &info.name, several)),
        };
        let body = sent(asked, found, body);
        let registry = asked.server.registry.load_full();
        let clusters = registry
            .find(api::cluster::GROUP, "v1alpha1", "clusters")
            .ok_or_else(|| Status::unavailable("clusters are not served yet"))?;
        proxy.forward(asked.server, asked.outer, clusters, &found.place.cluster, target, body).await
    }
}

impl Endpoints {
    /// Returns those objects with a name that a write concerns: the ones that the caller may change; if there are none, the ones
    /// that the caller may see, whose members give the reason.
    ///
    /// # Errors
    /// If the caller may do neither anywhere: then the answer does not reveal whether such an object exists.
    async fn meant(&self, asked: &Asked<'_>, mut found: Vec<Found>) -> Result<Vec<Found>, Status> {
        let clusters: Vec<Arc<str>> = found.iter().map(|found| found.place.cluster.clone()).collect();
        let verb = asked.inner.info.verb;
        let user = &asked.outer.user;
        let mut may = self.rights.seen(&self.fleet, user, &clusters, &asked.access(verb)).await;
        if !clusters.iter().any(|cluster| may.has(cluster)) {
            if self.seen(asked, verb).await.is_refused() {
                return Err(asked.forbidden(verb));
            }
            let looking = Access { subresource: String::new(), ..asked.access("get") };
            may = self.rights.seen(&self.fleet, user, &clusters, &looking).await;
        }
        found.retain(|found| may.has(&found.place.cluster));
        Ok(found)
    }
}

/// Returns the body as the member gets it.
fn sent(asked: &Asked<'_>, found: &Found, body: &Bytes) -> Bytes {
    let content_type = asked.inner.content_type();
    let gvk = asked.kind.gvk.clone();
    match (asked.inner.info.verb, content_type.as_str()) {
        ("update", PROTOBUF) => {
            let Ok((given, mut object)) = native::proto::decode_as(body, Some(&gvk)) else {
                return body.clone();
            };
            cleaned(&mut object, found);
            native::proto::encode(&given, &object).map_or_else(|_| body.clone(), Bytes::from)
        }
        (
            "update" | "patch",
            ""
            | "application/json"
            | "application/merge-patch+json"
            | "application/strategic-merge-patch+json",
        )
        | ("delete", "" | "application/json") => {
            let Ok(mut object) = serde_json::from_slice::<Value>(body) else { return body.clone() };
            if !object.is_object() {
                return body.clone();
            }
            cleaned(&mut object, found);
            object.to_string().into()
        }
        _ => body.clone(),
    }
}

/// Removes the fleet's additions.
fn cleaned(object: &mut Value, found: &Found) {
    without_marks(object);
    for path in ["/metadata/resourceVersion", "/preconditions/resourceVersion"] {
        let Some(version) = object.pointer_mut(path) else { continue };
        let Some(text) = version.as_str() else { continue };
        // The member's own versions are numbers and stay unchanged.
        if let Some(own) = Versions::of_object(text, &found.place, found.entry.namespace()) {
            *version = own.to_string().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use ::fleet::{Entry, Kind, Place};
    use apimachinery::gvk::Gvk;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_gets_its_own_version_and_none_of_our_marks() {
        let kind = Kind::new(&Gvk::new("", "v1", "Node"), "nodes", false);
        let object = json!({"metadata": {"name": "n", "resourceVersion": "7"}});
        let place = Place::cluster("m1");
        let entry = Arc::new(Entry::new(&kind, object).unwrap());
        let found = Found { place: place.clone(), entry, stale: None };
        let version = Versions::of(&place, 7).to_string();
        let mut object = json!({"metadata": {"name": "n", "resourceVersion": version,
            "annotations": {"resource.karmada.io/cached-from-cluster": "m1", "search.karmada.io/stale-since": "x", "own": "1"}}});
        cleaned(&mut object, &found);
        assert_eq!(
            object,
            json!({"metadata": {"name": "n", "resourceVersion": "7", "annotations": {"own": "1"}}})
        );
        let mut plain = json!({"metadata": {"resourceVersion": "105", "annotations": {"resource.karmada.io/cached-from-cluster": "m1"}}});
        cleaned(&mut plain, &found);
        assert_eq!(plain, json!({"metadata": {"resourceVersion": "105"}}));
        let mut options = json!({"preconditions": {"resourceVersion": version}});
        cleaned(&mut options, &found);
        assert_eq!(options["preconditions"]["resourceVersion"], "7");
    }

    #[test]
    fn a_member_gets_the_version_of_the_object_and_not_how_far_its_places_are_known() {
        let kind = Kind::new(&Gvk::new("", "v1", "ConfigMap"), "configmaps", true);
        let object = json!({"metadata": {"name": "n", "namespace": "shop", "resourceVersion": "103"}});
        let entry = Arc::new(Entry::new(&kind, object).unwrap());
        let (shop, bank) = (Place::namespace("m1", "shop"), Place::namespace("m1", "bank"));
        let found = Found { place: shop.clone(), entry, stale: None };
        let mut versions = Versions::of(&bank, 900);
        versions.advance(&shop, 105);
        let mut object = json!({"metadata": {"resourceVersion": versions.around(&shop).there(103)}});
        cleaned(&mut object, &found);
        assert_eq!(object["metadata"]["resourceVersion"], "103");
        // None of our versions becomes 0, which would overwrite any object.
        let zero = Versions::of(&shop, 0).to_string();
        let mut object = json!({"metadata": {"resourceVersion": zero}});
        cleaned(&mut object, &found);
        assert_eq!(object["metadata"]["resourceVersion"], zero);
    }
}
