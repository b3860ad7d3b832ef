//! ResourceQuotas: the usage of a namespace.
//!
//! [`counts`] computes how much one object counts. The status adds this up over all objects, and admission (`admission::quotas`)
//! uses it before an object is created or grows.

use std::collections::BTreeMap;

use apimachinery::gvk::GroupResource;
use apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, is_finished, list, text};
use crate::plan::Step;
use crate::view::View;

pub(crate) fn decide(view: &View<'_>, quota: &Value) -> Vec<Step> {
    let Some(hard) = quota.pointer("/spec/hard").and_then(Value::as_object) else { return Vec::new() };
    let space = quota.namespace();
    let mut used = BTreeMap::new();
    let mut known: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for kind in [Kind::Pod, Kind::Service, Kind::Claim] {
        let needed = hard.keys().any(|resource| needs(kind, resource));
        let mut objects = if needed { view.objects.list(kind, space) } else { Vec::new() };
        objects.retain(|object| covers(quota, &GroupResource::new("", kind.resource().2), object));
        known.insert(kind.resource().2, objects);
    }
    for resource in hard.keys() {
        let counted = known.iter().flat_map(|(plural, objects)| {
            let resource_of = GroupResource::new("", *plural);
            objects.iter().filter_map(move |object| counts(&resource_of, object, resource))
        });
        let amount = match generic(resource) {
            Some(other) if !known.contains_key(other.resource.as_str()) || !other.group.is_empty() => {
                view.objects.count(&other.group, &other.resource, space).to_string()
            }
            _ => sum(counted).to_string(),
        };
        used.insert(resource.clone(), json!(amount));
    }
    let status = json!({"hard": hard, "used": used});
    if status == quota["status"] { Vec::new() } else { vec![Step::status(Kind::Quota, quota, status)] }
}

/// Returns whether a quota's resource can depend on objects of a kind.
fn needs(kind: Kind, resource: &str) -> bool {
    let plural = kind.resource().2;
    match kind {
        Kind::Service => resource.starts_with("services") || resource == "count/services",
        Kind::Claim => resource.contains(plural) || resource.ends_with("requests.storage"),
        _ => resource == plural || resource == "count/pods" || compute(resource).is_some(),
    }
}

/// Returns the kind whose objects a quota's resource counts, if it counts objects.
fn generic(resource: &str) -> Option<GroupResource> {
    if let Some(what) = resource.strip_prefix("count/") {
        let (plural, group) = what.split_once('.').unwrap_or((what, ""));
        return Some(GroupResource::new(group, plural));
    }
    let countable = [
        "pods",
        "services",
        "configmaps",
        "secrets",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "resourcequotas",
    ];
    countable.contains(&resource).then(|| GroupResource::new("", resource))
}

/// Splits `requests.cpu` into the field and the resource; `None` for resources that containers do not request.
fn compute(resource: &str) -> Option<(&'static str, &str)> {
    let (field, own) = match resource.split_once('.') {
        Some(("requests", own)) => ("requests", own),
        Some(("limits", own)) => ("limits", own),
        _ => ("requests", resource),
    };
    let known = matches!(own, "cpu" | "memory" | "ephemeral-storage")
        || own.starts_with("hugepages-")
        || (field == "requests" && own.contains('/') && !own.contains("storage"));
    known.then_some((field, own))
}

/// Returns how much an object counts for a quota's resource; `None` if it does not affect it.
pub(crate) fn counts(counted: &GroupResource, object: &Value, resource: &str) -> Option<Quantity> {
    let one = Quantity::from_scaled(1, 0);
    if generic(resource).as_ref() == Some(counted) {
        let finished_pod = counted.group.is_empty() && counted.resource == "pods" && is_finished(object);
        // By this name, finished pods count like any other object.
        return Some(if finished_pod && resource == "pods" { Quantity::ZERO } else { one });
    }
    if !counted.group.is_empty() {
        return None;
    }
    match (counted.resource.as_str(), resource) {
        ("services", "services.loadbalancers") => {
            Some(if text(object, "/spec/type") == "LoadBalancer" { one } else { Quantity::ZERO })
        }
        ("services", "services.nodeports") => {
            let exposed = matches!(text(object, "/spec/type"), "NodePort" | "LoadBalancer")
                && object.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&json!(false));
            let ports = if exposed { list(object, "/spec/ports").len() } else { 0 };
            Some(Quantity::from_scaled(ports as i64, 0))
        }
        ("persistentvolumeclaims", resource) => {
            let what = match resource.split_once(".storageclass.storage.k8s.io/") {
                Some((class, what)) if class == text(object, "/spec/storageClassName") => what,
                Some(_) => return None,
                None => resource,
            };
            match what {
                "persistentvolumeclaims" => Some(one),
                "requests.storage" => {
                    let asked = object.pointer("/spec/resources/requests/storage").and_then(Value::as_str);
                    Some(asked.and_then(|text| Quantity::parse(text).ok()).unwrap_or(Quantity::ZERO))
                }
                _ => None,
            }
        }
        ("pods", resource) => {
            let (field, own) = compute(resource)?;
            if is_finished(object) {
                return Some(Quantity::ZERO);
            }
            Some(pod_amount(object, field, own))
        }
        _ => None,
    }
}

/// Returns the request of a whole pod: its containers together, or a larger init container.
pub(crate) fn pod_amount(pod: &Value, field: &str, resource: &str) -> Quantity {
    let amount = |container: &Value| {
        let text = container.pointer("/resources").and_then(|all| all.get(field)?.get(resource)?.as_str());
        text.and_then(|text| Quantity::parse(text).ok())
    };
    let running = sum(list(pod, "/spec/containers").iter().filter_map(amount));
    // Init containers that keep running count together with the containers.
    let (staying, passing): (Vec<&Value>, Vec<&Value>) = list(pod, "/spec/initContainers")
        .iter()
        .partition(|container| text(container, "/restartPolicy") == "Always");
    let running = sum([running].into_iter().chain(staying.into_iter().filter_map(amount)));
    let mut most = passing.into_iter().filter_map(amount).fold(running, |most, one| most.max(one));
    if let Some(overhead) = pod.pointer("/spec/overhead").and_then(|all| all.get(resource)?.as_str())
        && let Ok(overhead) = Quantity::parse(overhead)
        && (field == "requests" || !most.is_zero())
    {
        most += overhead;
    }
    most
}

/// Returns whether a quota applies to an object, by its scopes: all of them must match. Only pods and claims have scopes.
pub(crate) fn covers(quota: &Value, counted: &GroupResource, object: &Value) -> bool {
    let takes = |scope: &str, operator: &str, values: &[Value]| match (
        counted.group.as_str(),
        counted.resource.as_str(),
    ) {
        ("", "pods") => in_scope(object, scope, operator, values),
        ("", "persistentvolumeclaims") => {
            scope == "VolumeAttributesClass" && selects(&attribute_classes(object), operator, values)
        }
        _ => false,
    };
    list(quota, "/spec/scopes").iter().all(|scope| takes(scope.as_str().unwrap_or(""), "Exists", &[]))
        && list(quota, "/spec/scopeSelector/matchExpressions").iter().all(|expression| {
            takes(text(expression, "/scopeName"), text(expression, "/operator"), list(expression, "/values"))
        })
}

fn in_scope(pod: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    let ends = pod.pointer("/spec/activeDeadlineSeconds").is_some_and(Value::is_number);
    match scope {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => looks_into_other_namespaces(pod),
        "PriorityClass" => {
            let class = text(pod, "/spec/priorityClassName");
            selects(if class.is_empty() { &[] } else { std::slice::from_ref(&class) }, operator, values)
        }
        _ => false,
    }
}

/// Returns whether a selector matches one of the names that an object has.
fn selects(names: &[&str], operator: &str, values: &[Value]) -> bool {
    let named = |name: &&str| values.iter().any(|value| value == name);
    match operator {
        "In" => names.iter().any(named),
        "NotIn" => names.is_empty() || names.iter().any(|name| !named(name)),
        "DoesNotExist" => names.is_empty(),
        _ => !names.is_empty(),
    }
}

/// The classes that a claim has, had or will have.
fn attribute_classes(claim: &Value) -> Vec<&str> {
    let places = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    places.iter().map(|place| text(claim, place)).filter(|class| !class.is_empty()).collect()
}

fn looks_into_other_namespaces(pod: &Value) -> bool {
    let crosses =
        |term: &Value| !list(term, "/namespaces").is_empty() || !term["namespaceSelector"].is_null();
    ["podAffinity", "podAntiAffinity"].iter().any(|which| {
        let affinity = &pod["spec"]["affinity"][which];
        list(affinity, "/requiredDuringSchedulingIgnoredDuringExecution").iter().any(crosses)
            || list(affinity, "/preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|weighted| crosses(&weighted["podAffinityTerm"]))
    })
}

fn is_best_effort(pod: &Value) -> bool {
    let asks = |container: &Value| {
        ["requests", "limits"].iter().any(|field| {
            ["cpu", "memory"].iter().any(|resource| {
                let text = container["resources"][field][resource].as_str();
                text.and_then(|text| Quantity::parse(text).ok()).is_some_and(|amount| !amount.is_zero())
            })
        })
    };
    !["containers", "initContainers"]
        .iter()
        .any(|field| list(&pod["spec"], &format!("/{field}")).iter().any(asks))
}

/// Adds quantities; the sum is printed the way the first one is written.
pub(crate) fn sum(amounts: impl Iterator<Item = Quantity>) -> Quantity {
    amounts.reduce(|sum, amount| sum + amount).unwrap_or(Quantity::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fake::with_view;

    fn pod(name: &str, cpu: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "d"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}})
    }

    fn used(objects: Vec<Value>, spec: Value) -> Value {
        let quota =
            json!({"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "d"}, "spec": spec});
        let steps = with_view(objects, |view| decide(view, &quota));
        let [Step::Status { status, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        status["used"].clone()
    }

    #[test]
    fn requests_of_pods_are_added_up() {
        let spec = json!({"hard": {"pods": "5", "requests.cpu": "2", "memory": "4Gi", "secrets": "3"}});
        let pods = vec![pod("a", "100m"), pod("b", "1")];
        assert_eq!(
            used(pods, spec),
            json!({"pods": "2", "requests.cpu": "1100m", "memory": "2Gi", "secrets": "0"})
        );
    }

    #[test]
    fn finished_pods_use_nothing_but_are_there() {
        let mut done = pod("a", "1");
        done["status"] = json!({"phase": "Succeeded"});
        let spec = json!({"hard": {"pods": "5", "count/pods": "5", "cpu": "1"}});
        assert_eq!(used(vec![done], spec), json!({"pods": "0", "count/pods": "1", "cpu": "0"}));
    }

    #[test]
    fn a_quota_with_scopes_counts_only_what_is_in_them() {
        let mut short = pod("a", "1");
        short["spec"]["activeDeadlineSeconds"] = json!(10);
        let pods = vec![short, pod("b", "1")];
        let spec = |scope: &str| json!({"hard": {"pods": "5"}, "scopes": [scope]});
        assert_eq!(used(pods.clone(), spec("Terminating")), json!({"pods": "1"}));
        assert_eq!(used(pods, spec("BestEffort")), json!({"pods": "0"}));
    }

    #[test]
    fn claims_are_in_the_scope_of_the_class_they_have_or_will_have() {
        let claim = |class: &str| {
            json!({"kind": "PersistentVolumeClaim", "metadata": {"name": class, "namespace": "d"},
                "spec": {"volumeAttributesClassName": class}})
        };
        let mut changing = claim("gold");
        changing["status"] = json!({"modifyVolumeStatus": {"targetVolumeAttributesClassName": "silver"}});
        let spec = json!({"hard": {"persistentvolumeclaims": "5"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["silver"]}]}});
        let claims = vec![changing, claim("silver"), claim("bronze")];
        assert_eq!(used(claims, spec), json!({"persistentvolumeclaims": "2"}));
    }

    #[test]
    fn pods_that_look_into_other_namespaces_have_a_scope() {
        let mut looks = pod("a", "1");
        looks["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": "zone", "namespaces": ["other"]}]}});
        let spec = json!({"hard": {"pods": "5"}, "scopes": ["CrossNamespacePodAffinity"]});
        assert_eq!(used(vec![looks, pod("b", "1")], spec), json!({"pods": "1"}));
    }

    #[test]
    fn an_init_container_counts_if_it_asks_for_more() {
        let mut pod = pod("a", "1");
        pod["spec"]["initContainers"] = json!([{"resources": {"requests": {"cpu": "3"}}}]);
        let pods = GroupResource::new("", "pods");
        assert_eq!(counts(&pods, &pod, "cpu").expect("counted").to_string(), "3");
        assert_eq!(counts(&pods, &pod, "memory").expect("counted").to_string(), "1Gi");
    }

    #[test]
    fn services_and_claims_have_resources_of_their_own() {
        let service = json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}, {"port": 81}]}});
        let services = GroupResource::new("", "services");
        assert_eq!(counts(&services, &service, "services.nodeports").expect("counted").to_string(), "2");
        assert_eq!(counts(&services, &service, "services.loadbalancers").expect("counted").to_string(), "1");
        let claim =
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}}});
        let claims = GroupResource::new("", "persistentvolumeclaims");
        let fast = "fast.storageclass.storage.k8s.io/requests.storage";
        assert_eq!(counts(&claims, &claim, fast).expect("counted").to_string(), "2Gi");
        assert_eq!(counts(&claims, &claim, "slow.storageclass.storage.k8s.io/requests.storage"), None);
    }
}
