//! Applies a namespace's LimitRanges to new pods and claims: containers get the defaults, and requests that are too small or too
//! large are refused, in kube-apiserver's words.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use apiserver::Server;
use apiserver::admission::{Admit, Attributes, Operation};
use apiserver::registry::Kind;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::controllers::quotas::pod_amount;
use crate::objects::{list, text};

/// The plug-in; it knows its server once that has started.
#[derive(Default)]
pub(crate) struct Limits {
    server: OnceLock<Weak<Server>>,
}

impl Limits {
    pub(crate) fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Returns the limits of all ranges of a namespace.
    fn of(&self, namespace: &str) -> Vec<Value> {
        let Some(server) = self.server.get().and_then(Weak::upgrade) else { return Vec::new() };
        let prefix = format!("{namespace}/");
        let ranges = server.store.snapshot("limitranges");
        let ranges = ranges.iter().filter(|entry| entry.name.starts_with(&prefix));
        let ranges = ranges.filter_map(|entry| serde_json::from_slice::<Value>(&entry.value).ok());
        ranges.flat_map(|range| list(&range, "/spec/limits").to_vec()).collect()
    }
}

impl Admit for Limits {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        subresource.is_empty()
            && match operation {
                Operation::Create => matches!(&*kind.collection, "pods" | "persistentvolumeclaims"),
                Operation::Update => &*kind.collection == "persistentvolumeclaims",
                Operation::Delete => false,
            }
    }

    fn mutate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if &*attributes.kind.collection == "pods" {
            let limits = self.of(attributes.namespace);
            if let Some(pod) = attributes.object.as_deref_mut() {
                fill(pod, &limits);
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let faults = match attributes.object.as_deref() {
            Some(pod) if &*attributes.kind.collection == "pods" => {
                faults_of_pod(pod, &self.of(attributes.namespace))
            }
            Some(claim) => faults_of_claim(claim, &self.of(attributes.namespace)),
            None => Vec::new(),
        };
        let why = match faults.as_slice() {
            [] => return Box::pin(std::future::ready(Ok(()))),
            [only] => only.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let refused = Status::forbidden(&attributes.kind.resource, attributes.name, &why);
        Box::pin(std::future::ready(Err(refused)))
    }
}

const CONTAINERS: [(&str, &str); 2] = [("containers", "container"), ("initContainers", "init container")];

/// Gives containers the default requests and limits, and records this in an annotation.
fn fill(pod: &mut Value, limits: &[Value]) {
    let mut told = Vec::new();
    for (field, word) in CONTAINERS {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten() {
            let name = text(container, "/name").to_owned();
            for (kind, source, called) in
                [("requests", "defaultRequest", "request"), ("limits", "default", "limit")]
            {
                let mut set = BTreeSet::new();
                for limit in limits.iter().filter(|limit| limit["type"] == "Container") {
                    for (resource, amount) in limit[source].as_object().into_iter().flatten() {
                        if container["resources"][kind].get(resource).is_none() {
                            container["resources"][kind][resource] = amount.clone();
                            set.insert(resource.as_str());
                        }
                    }
                }
                if !set.is_empty() {
                    let set: Vec<&str> = set.into_iter().collect();
                    told.push(format!("{} {called} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !told.is_empty() {
        pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"] =
            json!(format!("LimitRanger plugin set: {}", told.join("; ")));
    }
}

/// The requests and limits of an object.
struct Asked<'a> {
    request: &'a dyn Fn(&str) -> Option<Quantity>,
    limit: &'a dyn Fn(&str) -> Option<Quantity>,
}

fn quantity(amounts: &Value, resource: &str) -> Option<Quantity> {
    Quantity::parse(amounts.get(resource)?.as_str()?).ok()
}

fn faults_of_pod(pod: &Value, limits: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for limit in limits {
        match text(limit, "/type") {
            "Container" => {
                for (field, _) in CONTAINERS {
                    for container in list(&pod["spec"], &format!("/{field}")) {
                        let request =
                            |resource: &str| quantity(&container["resources"]["requests"], resource);
                        let most = |resource: &str| quantity(&container["resources"]["limits"], resource);
                        judge(limit, &Asked { request: &request, limit: &most }, &mut faults);
                    }
                }
            }
            "Pod" => {
                let some = |field: &str, resource: &str| {
                    let amount = pod_amount(pod, field, resource);
                    (!amount.is_zero()).then_some(amount)
                };
                let request = |resource: &str| some("requests", resource);
                let most = |resource: &str| some("limits", resource);
                judge(limit, &Asked { request: &request, limit: &most }, &mut faults);
            }
            _ => {}
        }
    }
    faults
}

fn faults_of_claim(claim: &Value, limits: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for limit in limits.iter().filter(|limit| limit["type"] == "PersistentVolumeClaim") {
        let request = |resource: &str| quantity(&claim["spec"]["resources"]["requests"], resource);
        each(limit, "min", |resource, least| {
            faults.extend(too_little(limit, resource, least, request(resource), None));
        });
        each(limit, "max", |resource, most| {
            let what = format!("maximum {resource} usage per {} is {most}", text(limit, "/type"));
            faults.extend(match request(resource) {
                None => Some(format!("{what}.  No request is specified")),
                Some(asked) if asked > most => Some(format!("{what}, but request is {asked}")),
                Some(_) => None,
            });
        });
    }
    faults
}

fn judge(limit: &Value, asked: &Asked<'_>, faults: &mut Vec<String>) {
    each(limit, "min", |resource, least| {
        let (request, most) = ((asked.request)(resource), (asked.limit)(resource));
        faults.extend(too_little(limit, resource, least, request, most));
    });
    each(limit, "max", |resource, most| {
        let what = format!("maximum {resource} usage per {} is {most}", text(limit, "/type"));
        faults.extend(match ((asked.limit)(resource), (asked.request)(resource)) {
            (None, _) => Some(format!("{what}.  No limit is specified")),
            (Some(own), _) if own > most => Some(format!("{what}, but limit is {own}")),
            (_, Some(own)) if own > most => Some(format!("{what}, but request is {own}")),
            _ => None,
        });
    });
    each(limit, "maxLimitRequestRatio", |resource, ratio| {
        let what = format!("{resource} max limit to request ratio per {} is {ratio}", text(limit, "/type"));
        let some = |amount: Option<Quantity>| amount.filter(|amount| !amount.is_zero());
        faults.extend(match (some((asked.request)(resource)), some((asked.limit)(resource))) {
            (None, _) => Some(format!("{what}, but no request is specified or request is 0")),
            (_, None) => Some(format!("{what}, but no limit is specified or limit is 0")),
            (Some(request), Some(most)) => {
                let own = most.as_f64() / request.as_f64();
                (own > ratio.as_f64()).then(|| format!("{what}, but provided ratio is {own:.6}"))
            }
        });
    });
}

fn too_little(
    limit: &Value,
    resource: &str,
    least: Quantity,
    request: Option<Quantity>,
    most: Option<Quantity>,
) -> Option<String> {
    let what = format!("minimum {resource} usage per {} is {least}", text(limit, "/type"));
    match (request, most) {
        (None, _) => Some(format!("{what}.  No request is specified")),
        (Some(own), _) if own < least => Some(format!("{what}, but request is {own}")),
        (_, Some(own)) if own < least => Some(format!("{what}, but limit is {own}")),
        _ => None,
    }
}

fn each(limit: &Value, field: &str, mut judge: impl FnMut(&str, Quantity)) {
    for (resource, amount) in limit[field].as_object().into_iter().flatten() {
        if let Some(amount) = amount.as_str().and_then(|text| Quantity::parse(text).ok()) {
            judge(resource, amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Vec<Value> {
        vec![json!({"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "500m"},
            "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m", "memory": "1Gi"}})]
    }

    fn pod(resources: Value) -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[test]
    fn containers_get_what_they_do_not_ask_for() {
        let mut pod = pod(json!({"requests": {"memory": "2Gi"}}));
        fill(&mut pod, &limits());
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"cpu": "500m"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        );
    }

    #[test]
    fn requests_outside_of_the_limits_are_refused() {
        let faults = |cpu: &str| {
            faults_of_pod(&pod(json!({"requests": {"cpu": cpu}, "limits": {"cpu": "500m"}})), &limits())
        };
        assert_eq!(faults("10m"), ["minimum cpu usage per Container is 50m, but request is 10m"]);
        assert_eq!(faults("600m"), ["maximum cpu usage per Container is 500m, but request is 600m"]);
        assert!(faults("200m").is_empty());
    }

    #[test]
    fn claims_are_judged_by_what_they_request() {
        let limits = vec![json!({"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}})];
        let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            faults_of_claim(&claim, &limits),
            ["minimum storage usage per PersistentVolumeClaim is 2Gi, but request is 1Gi"]
        );
    }
}
