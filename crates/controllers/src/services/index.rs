//! An index of the Works of services across clusters, and of the members' slices, by their Service.
//!
//! It follows the mirror of Works and the events of members. It holds names only; the mirrors have the
//! objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::labels::annotations::PROVISION_CLUSTER;
use api::names;
use api::work::Work;
use parking_lot::Mutex;
use propagation::Object;
use runtime::{Change, Key};
use serde_json::Value;

use super::works::{Token, annotation, manifest, service_of};
use super::{SERVICE_NAME, SLICE};

/// A Service in a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServiceKey {
    pub(crate) cluster: String,
    pub(crate) service: Key,
}

/// How a Work relates to a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// It asks a provider for the endpoints of a MultiClusterService.
    Request,
    /// It propagates a ServiceExport to a member.
    Export,
    /// It holds a slice of its cluster.
    Collected,
    /// It dispatches a slice to its cluster.
    Dispatched,
}

/// Returns which Services a Work is about, and how.
pub(super) fn roles(work: &Work) -> Vec<(Key, Role)> {
    let mut found = Vec::new();
    for token in Token::ALL {
        let Some(service) = service_of(work, token) else { continue };
        let role = if manifest(work, SLICE).is_none() {
            Role::Request
        } else if annotation(work, PROVISION_CLUSTER).is_empty() {
            Role::Collected
        } else {
            Role::Dispatched
        };
        if !found.contains(&(service.clone(), role)) {
            found.push((service, role));
        }
    }
    if let Some(export) = manifest(work, "ServiceExport") {
        found.push((Key::new(export.namespace(), export.name()), Role::Export));
    }
    found
}

/// Returns the cluster that a Work belongs to.
pub(super) fn cluster_of(work: &Key) -> &str {
    names::cluster_of_execution_space(&work.namespace).unwrap_or("")
}

#[derive(Default)]
pub(crate) struct Index {
    works: Mutex<HashMap<Key, BTreeMap<Key, Role>>>,
    slices: Mutex<HashMap<ServiceKey, BTreeSet<String>>>,
}

impl Index {
    /// Handles a change of a Work. Subscribed before any controller.
    pub(crate) fn note_work(&self, change: &Change<'_, Work>) {
        let roles_of = |work: &Option<_>| work.as_deref().map(roles).unwrap_or_default();
        let (old, new) = (roles_of(&change.old), roles_of(&change.new));
        if old == new {
            return;
        }
        let mut works = self.works.lock();
        for (service, _) in old {
            if let Some(known) = works.get_mut(&service) {
                known.remove(change.key);
                if known.is_empty() {
                    works.remove(&service);
                }
            }
        }
        for (service, role) in new {
            works.entry(service).or_default().insert(change.key.clone(), role);
        }
    }

    /// Handles a change of a slice in a member; returns the Services that it concerns.
    pub(super) fn note_slice(
        &self,
        cluster: &str,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Vec<ServiceKey> {
        let named = |slice: &Value| {
            let service = slice.label(SERVICE_NAME).filter(|name| !name.is_empty())?;
            let service = Key::new(slice.namespace(), service);
            Some((ServiceKey { cluster: cluster.to_owned(), service }, slice.name().to_owned()))
        };
        let (old, new) = (old.and_then(named), new.and_then(named));
        let mut slices = self.slices.lock();
        if old != new
            && let Some((service, name)) = &old
            && let Some(known) = slices.get_mut(service)
        {
            known.remove(name);
            if known.is_empty() {
                slices.remove(service);
            }
        }
        if let Some((service, name)) = &new {
            slices.entry(service.clone()).or_default().insert(name.clone());
        }
        let mut services: Vec<ServiceKey> =
            [old, new].into_iter().flatten().map(|(service, _)| service).collect();
        services.dedup();
        services
    }

    /// Returns the names of a Service's slices in its member. Some may be gone, or belong to another Service by now.
    pub(super) fn slices(&self, service: &ServiceKey) -> Vec<Key> {
        let slices = self.slices.lock();
        let names = slices.get(service).into_iter().flatten();
        names.map(|name| Key::new(service.service.namespace.clone(), name.clone())).collect()
    }

    /// Returns the Works that are about a Service.
    pub(super) fn works(&self, service: &Key) -> Vec<(Key, Role)> {
        let works = self.works.lock();
        works.get(service).into_iter().flatten().map(|(key, role)| (key.clone(), *role)).collect()
    }

    /// Returns the Services that Works of a cluster are about.
    pub(crate) fn of_cluster(&self, cluster: &str) -> Vec<ServiceKey> {
        let works = self.works.lock();
        let mine = works.iter().filter(|(_, works)| works.keys().any(|work| cluster_of(work) == cluster));
        mine.map(|(service, _)| ServiceKey { cluster: cluster.to_owned(), service: service.clone() })
            .collect()
    }

    /// Returns the collected Works of a cluster.
    pub(super) fn collected_in(&self, cluster: &str) -> Vec<Key> {
        let works = self.works.lock();
        let all = works.values().flatten();
        let mine = all.filter(|(key, role)| **role == Role::Collected && cluster_of(key) == cluster);
        mine.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{merged, work};

    fn slice_work(labels: Value, annotations: Value) -> std::sync::Arc<Work> {
        let base = json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": { "workload": {
            "manifests": [{ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": "web-1", "namespace": "shop" } }],
        } } });
        work("m1", base)
    }

    #[test]
    fn what_a_work_has_to_do_with_a_service() {
        let (export, multi) = (Token::ServiceExport.labels(), Token::MultiClusterService.labels());
        let named = |keys: [&str; 2]| json!({ keys[0]: "shop", keys[1]: "web" });
        let web = || Key::new("shop", "web");
        assert_eq!(roles(&slice_work(named(export), json!({}))), [(web(), Role::Collected)]);
        assert_eq!(roles(&slice_work(named(multi), json!({}))), [(web(), Role::Collected)]);
        let both = merged(named(export), named(multi));
        assert_eq!(roles(&slice_work(both, json!({}))), [(web(), Role::Collected)], "once, not twice");
        let from = json!({ PROVISION_CLUSTER: "m2" });
        assert_eq!(roles(&slice_work(named(multi), from)), [(web(), Role::Dispatched)]);
        assert_eq!(roles(&slice_work(json!({}), json!({}))), []);
        let asks = work("m1", json!({ "metadata": { "labels": named(multi) } }));
        assert_eq!(roles(&asks), [(web(), Role::Request)]);
        let exports = json!({ "spec": { "workload": { "manifests": [
            { "kind": "ServiceExport", "metadata": { "name": "web", "namespace": "shop" } }] } } });
        assert_eq!(roles(&work("m1", exports)), [(web(), Role::Export)]);
    }

    #[test]
    fn works_are_found_by_their_service_as_it_is_now() {
        let index = Index::default();
        let named = |service: &str| {
            let [namespace, name] = Token::ServiceExport.labels();
            slice_work(json!({ namespace: "shop", name: service }), json!({}))
        };
        let key = Key::new("karmada-es-m1", "web-1");
        let note = |old: Option<&str>, new: Option<&str>| {
            let (old, new) = (old.map(named), new.map(named));
            index.note_work(&Change { key: &key, old, new, ours: false, initial: false });
        };
        let of = |service: &str| index.works(&Key::new("shop", service));
        let concerned = |cluster: &str| {
            let all = index.of_cluster(cluster).into_iter();
            all.map(|one| format!("{} {}", one.cluster, one.service)).collect::<Vec<_>>()
        };
        let found = [(key.clone(), Role::Collected)];
        note(None, Some("web"));
        assert_eq!(of("web"), found);
        note(Some("web"), Some("web"));
        assert_eq!(of("web"), found);
        assert_eq!((concerned("m1"), concerned("m2")), (vec!["m1 shop/web".to_owned()], vec![]));
        assert_eq!((index.collected_in("m1"), index.collected_in("m2")), (vec![key.clone()], vec![]));
        note(Some("web"), Some("api"));
        assert_eq!((of("web"), of("api")), (vec![], found.to_vec()), "it is of another Service by now");
        assert_eq!(concerned("m1"), ["m1 shop/api"]);
        note(Some("api"), None);
        assert!(of("api").is_empty() && concerned("m1").is_empty() && index.collected_in("m1").is_empty());

        let [namespace, name] = Token::MultiClusterService.labels();
        let asks = work("m1", json!({ "metadata": { "labels": { namespace: "shop", name: "web" } } }));
        index.note_work(&Change { key: &key, old: None, new: Some(asks), ours: false, initial: false });
        assert_eq!(of("web"), [(key.clone(), Role::Request)]);
        assert_eq!(index.collected_in("m1"), [], "nothing was collected");
    }

    #[test]
    fn slices_are_found_by_their_service_as_it_is_now() {
        let index = Index::default();
        let slice = |service: &str| json!({ "metadata": { "name": "s", "namespace": "shop", "labels": { SERVICE_NAME: service } } });
        let key = |name: &str| ServiceKey { cluster: "m1".to_owned(), service: Key::new("shop", name) };
        assert_eq!(index.note_slice("m1", None, Some(&slice("web"))), [key("web")]);
        assert_eq!(index.slices(&key("web")), [Key::new("shop", "s")]);
        assert_eq!(index.note_slice("m1", Some(&slice("web")), Some(&slice("web"))), [key("web")], "once");
        assert_eq!(index.slices(&key("web")), [Key::new("shop", "s")]);
        assert_eq!(
            index.note_slice("m1", Some(&slice("web")), Some(&slice("api"))),
            [key("web"), key("api")]
        );
        assert!(index.slices(&key("web")).is_empty());
        assert_eq!(index.note_slice("m1", Some(&slice("api")), None), [key("api")]);
        assert!(index.slices(&key("api")).is_empty());
        assert!(index.note_slice("m1", None, Some(&slice(""))).is_empty(), "it belongs to no Service");
    }
}
