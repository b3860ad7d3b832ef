//! Which kinds are kept from which clusters and namespaces: the sum of all ResourceRegistries.
//!
//! In: registries, clusters, and how the control plane serves a kind. Out: the places of each kind, and for each registry what it
//! names but cannot have. Without a registry nothing is kept and no member is asked.
//!
//! Unlike in Karmada, a cluster that is not ready stays in the plan: its known objects are shown and marked as stale.

use std::collections::{BTreeMap, BTreeSet};

use api::cluster::{APIEnablementStatus, Cluster};
use api::search::ResourceRegistry;
use apimachinery::gvk::Gvk;
use apimachinery::names;

use crate::cache::Place;

/// How many selectors of a registry count. Each is evaluated for every cluster, again and again.
pub(crate) const SELECTORS: usize = 256;
/// How many single namespaces of a kind are kept from one cluster. Each needs a watch in the member.
const NAMESPACES: usize = 64;

/// A kind, as the control plane serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub api_version: String,
    pub namespaced: bool,
}

impl Kind {
    pub fn new(gvk: &Gvk, plural: &str, namespaced: bool) -> Self {
        Self {
            group: gvk.group.clone(),
            version: gvk.version.clone(),
            plural: plural.to_owned(),
            kind: gvk.kind.clone(),
            api_version: gvk.api_version(),
            namespaced,
        }
    }

    pub fn gvk(&self) -> Gvk {
        Gvk::new(&self.group, &self.version, &self.kind)
    }

    /// Returns the path of its objects in a place, or of all its objects.
    pub(crate) fn path(&self, place: Option<&str>) -> String {
        let prefix = if self.group.is_empty() { "/api" } else { "/apis" };
        match place {
            Some(namespace) => {
                format!("{prefix}/{}/namespaces/{namespace}/{}", self.api_version, self.plural)
            }
            None => format!("{prefix}/{}/{}", self.api_version, self.plural),
        }
    }

    #[cfg(test)]
    pub(crate) fn test(group: &str, version: &str, kind: &str, plural: &str) -> Self {
        Self::new(&Gvk::new(group, version, kind), plural, true)
    }
}

/// The plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub kinds: BTreeMap<Kind, BTreeSet<Place>>,
    /// By registry, then by what is wrong.
    pub complaints: BTreeMap<String, BTreeSet<String>>,
}

/// Computes the plan. `resolve` returns how the control plane serves a kind.
pub fn plan<'a>(
    registries: impl IntoIterator<Item = &'a ResourceRegistry>,
    clusters: &[&Cluster],
    resolve: impl Fn(&str, &str) -> Option<Kind>,
) -> Plan {
    let mut plan = Plan::default();
    for registry in registries {
        let name = registry.metadata.name.clone().unwrap_or_default();
        let mut complaints = BTreeSet::new();
        let count = registry.spec.resource_selectors.len();
        if count > SELECTORS {
            complaints.insert(format!("{count} selectors are too many: only the first {SELECTORS} count"));
        }
        for selector in registry.spec.resource_selectors.iter().take(SELECTORS) {
            let Some(kind) = resolve(&selector.api_version, &selector.kind) else {
                complaints.insert(format!(
                    "the control plane does not serve {} of {}",
                    selector.kind, selector.api_version
                ));
                continue;
            };
            // The client writes it into a path as it is: members would be asked for something else, without end.
            if !names::is_path_segment(&selector.namespace) {
                complaints.insert(format!("no namespace can be called {:?}", selector.namespace));
                continue;
            }
            let places = plan.kinds.entry(kind.clone()).or_default();
            for cluster in clusters {
                if !placement::affinity::cluster_matches(cluster, &registry.spec.target_cluster) {
                    continue;
                }
                let cluster_name = cluster.metadata.name.as_deref().unwrap_or_default();
                if cluster.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let served = cluster.status.api_enablement(&kind.api_version, &kind.kind);
                if served == APIEnablementStatus::Disabled {
                    complaints.insert(format!("cluster {cluster_name} does not serve {}", kind.kind));
                    continue;
                }
                let place = if kind.namespaced && !selector.namespace.is_empty() {
                    Place::namespace(cluster_name, &selector.namespace)
                } else {
                    Place::cluster(cluster_name)
                };
                let single = |other: &&Place| *other.cluster == *cluster_name && other.namespace.is_some();
                if place.namespace.is_some()
                    && !places.contains(&place)
                    && places.iter().filter(single).count() >= NAMESPACES
                {
                    complaints.insert(format!(
                        "more than {NAMESPACES} single namespaces of {} are registered for cluster {cluster_name}: \
                         the rest is not kept; a selector without a namespace keeps all",
                        kind.kind
                    ));
                    continue;
                }
                places.insert(place);
            }
        }
        plan.complaints.insert(name, complaints);
    }
    for places in plan.kinds.values_mut() {
        // If all namespaces are kept, single ones are not followed in addition.
        let whole: BTreeSet<Place> =
            places.iter().filter(|place| place.namespace.is_none()).cloned().collect();
        places.retain(|place| {
            place.namespace.is_none()
                || !whole.contains(&Place { cluster: place.cluster.clone(), namespace: None })
        });
    }
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn registry(name: &str, spec: Value) -> ResourceRegistry {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn cluster(name: &str, extra: Value) -> Cluster {
        let mut cluster =
            json!({"metadata": {"name": name, "labels": {"at": name}}, "spec": {"syncMode": "Push"}});
        if !extra.is_null() {
            cluster["status"] = extra;
        }
        serde_json::from_value(cluster).unwrap()
    }

    fn resolve(api_version: &str, kind: &str) -> Option<Kind> {
        match (api_version, kind) {
            ("v1", "Pod") => Some(Kind::test("", "v1", "Pod", "pods")),
            ("v1", "Node") => Some(Kind { namespaced: false, ..Kind::test("", "v1", "Node", "nodes") }),
            _ => None,
        }
    }

    /// Returns the places as `pods:m1 pods:m2/shop`.
    fn places(plan: &Plan) -> String {
        let all = plan
            .kinds
            .iter()
            .flat_map(|(kind, places)| places.iter().map(move |place| format!("{}:{place}", kind.plural)));
        all.collect::<Vec<_>>().join(" ")
    }

    fn check(registries: &[Value], expected: &str) {
        let registries: Vec<_> = registries
            .iter()
            .enumerate()
            .map(|(number, spec)| registry(&format!("r{number}"), spec.clone()))
            .collect();
        let (one, two) = (cluster("m1", Value::Null), cluster("m2", Value::Null));
        assert_eq!(places(&plan(&registries, &[&one, &two], resolve)), expected);
    }

    #[test]
    fn the_plan_is_the_union_of_all_registries() {
        let pods = json!({"apiVersion": "v1", "kind": "Pod"});
        let shop = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop"});
        let bank = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "bank"});
        let nodes = json!({"apiVersion": "v1", "kind": "Node", "namespace": "ignored"});
        let m1 = json!({"clusterNames": ["m1"]});
        check(&[], "");
        check(&[json!({"targetCluster": {}, "resourceSelectors": [pods]})], "pods:m1 pods:m2");
        check(&[json!({"targetCluster": m1, "resourceSelectors": [nodes]})], "nodes:m1");
        check(
            &[json!({"targetCluster": m1, "resourceSelectors": [shop, bank]})],
            "pods:m1/bank pods:m1/shop",
        );
        check(
            &[
                json!({"targetCluster": m1, "resourceSelectors": [pods]}),
                json!({"targetCluster": {}, "resourceSelectors": [shop]}),
            ],
            "pods:m1 pods:m2/shop",
        );
        let labelled = json!({"labelSelector": {"matchLabels": {"at": "m2"}}});
        check(&[json!({"targetCluster": labelled, "resourceSelectors": [pods]})], "pods:m2");
    }

    #[test]
    fn a_kind_is_registered_even_if_no_cluster_is_meant() {
        let spec = json!({"targetCluster": {"clusterNames": ["m9"]}, "resourceSelectors": [{"apiVersion": "v1", "kind": "Pod"}]});
        let plan = plan(&[registry("r", spec)], &[], resolve);
        assert_eq!((plan.kinds.len(), places(&plan).as_str()), (1, ""));
    }

    #[test]
    fn the_selectors_of_one_registry_are_limited() {
        let selectors: Vec<Value> = (0..1000)
            .map(|number| json!({"apiVersion": "v1", "kind": "Pod", "namespace": format!("n{number:04}")}))
            .collect();
        let m1 = cluster("m1", Value::Null);
        let many = registry("many", json!({"targetCluster": {}, "resourceSelectors": selectors}));
        let one = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "n0000"});
        let again = registry("other", json!({"targetCluster": {}, "resourceSelectors": [one]}));
        let plan = plan(&[many, again], &[&m1], resolve);
        assert_eq!(plan.kinds.values().map(BTreeSet::len).collect::<Vec<_>>(), [NAMESPACES]);
        let told: Vec<_> = plan.complaints["many"].iter().map(String::as_str).collect();
        assert_eq!(
            told,
            [
                "1000 selectors are too many: only the first 256 count",
                "more than 64 single namespaces of Pod are registered for cluster m1: the rest is not kept; a selector without a namespace keeps all"
            ]
        );
        assert!(plan.complaints["other"].is_empty(), "what is kept anyway costs nothing");
    }

    #[test]
    fn finding_25_a_namespace_that_is_more_than_a_name_is_not_asked_for() {
        let odd = ["shop/secrets?watch=true&a=", "shop#", "../secrets"];
        let selectors: Vec<Value> = odd
            .iter()
            .map(|namespace| json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace}))
            .collect();
        let registry = registry("r", json!({"targetCluster": {}, "resourceSelectors": selectors}));
        let plan = plan(&[registry], &[&cluster("m1", Value::Null)], resolve);
        assert_eq!(places(&plan), "");
        let told: Vec<_> = plan.complaints["r"].iter().cloned().collect();
        let mut expected = odd.map(|namespace| format!("no namespace can be called {namespace:?}"));
        expected.sort();
        assert_eq!(told, expected);
    }

    #[test]
    fn problems_of_a_registry_are_reported() {
        let spec = json!({"targetCluster": {}, "resourceSelectors": [
            {"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "example.io/v1", "kind": "Gone"}]});
        let without = json!({"apiEnablements": [],
            "conditions": [{"type": "CompleteAPIEnablements", "status": "True", "reason": "x", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let m1 = cluster("m1", without);
        let plan = plan(&[registry("r", spec)], &[&m1], resolve);
        let told: Vec<_> = plan.complaints["r"].iter().map(String::as_str).collect();
        assert_eq!(
            told,
            ["cluster m1 does not serve Pod", "the control plane does not serve Gone of example.io/v1"]
        );
        assert_eq!(places(&plan), "");
    }
}
