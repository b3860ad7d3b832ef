//! The admission of an API server with nodes: new pods (service account, default tolerations, priority) and new claims (storage
//! class, protection). `quotas` refuses what exceeds quotas; `limits` applies LimitRanges.

pub(crate) mod limits;
pub(crate) mod quotas;

use std::sync::{Arc, OnceLock, Weak};

use apimachinery::status::Status;
use apiserver::Server;
use apiserver::admission::{Admit, Attributes, Operation};
use apiserver::registry::Kind;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::objects::{list, text};

/// The plug-in; it knows its server once that has started.
#[derive(Default)]
pub(crate) struct Pods {
    server: OnceLock<Weak<Server>>,
}

impl Pods {
    pub(crate) fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    fn class(&self, name: &str) -> Option<Value> {
        let server = self.server.get()?.upgrade()?;
        let entry = server.store.get("priorityclasses", name)?;
        serde_json::from_slice(&entry.value).ok()
    }

    fn default_class(&self) -> Option<(String, Value)> {
        let server = self.server.get()?.upgrade()?;
        let classes = server.store.snapshot("priorityclasses");
        classes.iter().find_map(|entry| {
            let class: Value = serde_json::from_slice(&entry.value).ok()?;
            (class["globalDefault"] == true).then(|| (entry.name.to_string(), class))
        })
    }
}

impl Admit for Pods {
    fn name(&self) -> &'static str {
        "Pods"
    }

    fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        subresource.is_empty()
            && match operation {
                Operation::Create => matches!(&*kind.collection, "pods" | "persistentvolumeclaims"),
                Operation::Update => &*kind.collection == "pods",
                Operation::Delete => false,
            }
    }

    fn mutate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let is_claim = &*attributes.kind.collection == "persistentvolumeclaims";
        let old = attributes.old.filter(|_| attributes.operation == Operation::Update);
        let result = match attributes.object.as_deref_mut() {
            Some(claim) if is_claim => {
                protect(claim);
                if claim.pointer("/spec/storageClassName").is_none() {
                    claim["spec"]["storageClassName"] = json!(STORAGE_CLASS);
                }
                Ok(())
            }
            Some(pod) if let Some(old) = old => {
                keep(pod, old);
                tolerate(pod);
                Ok(())
            }
            Some(pod) => {
                let wanted = text(pod, "/spec/priorityClassName").to_owned();
                let class = if wanted.is_empty() {
                    self.default_class()
                } else {
                    self.class(&wanted).map(|class| (wanted.clone(), class))
                };
                if !wanted.is_empty() && class.is_none() {
                    let why = format!("no PriorityClass with name {wanted} was found");
                    Err(Status::forbidden(&attributes.kind.resource, attributes.name, &why))
                } else {
                    prioritise(pod, class);
                    account(pod);
                    tolerate(pod);
                    Ok(())
                }
            }
            None => Ok(()),
        };
        Box::pin(std::future::ready(result))
    }
}

/// The storage class that every simulated cluster has, for claims without one.
pub(crate) const STORAGE_CLASS: &str = "standard";

/// A claim stays until no pod uses it.
fn protect(claim: &mut Value) {
    const PROTECTION: &str = "kubernetes.io/pvc-protection";
    let mut finalizers = list(claim, "/metadata/finalizers").to_vec();
    if !finalizers.iter().any(|own| own == PROTECTION) {
        finalizers.push(json!(PROTECTION));
    }
    claim["metadata"]["finalizers"] = finalizers.into();
}

/// A client that replaces a pod need not know its priority, which cannot change.
fn keep(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if pod["spec"].get(field).is_none()
            && let Some(value) = old["spec"].get(field)
        {
            pod["spec"][field] = value.clone();
        }
    }
}

fn prioritise(pod: &mut Value, class: Option<(String, Value)>) {
    let (name, priority, policy) = match class {
        Some((name, class)) => {
            let policy = class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority").to_owned();
            (name, class["value"].clone(), policy)
        }
        None => (String::new(), json!(0), "PreemptLowerPriority".to_owned()),
    };
    if !name.is_empty() {
        pod["spec"]["priorityClassName"] = json!(name);
    }
    pod["spec"]["priority"] = priority;
    if pod["spec"].get("preemptionPolicy").is_none() {
        pod["spec"]["preemptionPolicy"] = json!(policy);
    }
}

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Gives a pod its service account and the token in every container.
fn account(pod: &mut Value) {
    if text(pod, "/spec/serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    pod["spec"]["serviceAccount"] = pod["spec"]["serviceAccountName"].clone();
    if pod["spec"]["automountServiceAccountToken"] == false {
        return;
    }
    let has_token = |container: &Value| {
        list(container, "/volumeMounts").iter().any(|mount| mount["mountPath"] == TOKEN_PATH)
    };
    let known = list(pod, "/spec/volumes").iter().find_map(|volume| {
        volume["name"].as_str().filter(|name| name.starts_with("kube-api-access-")).map(str::to_owned)
    });
    let volume = known.clone().unwrap_or_else(|| format!("kube-api-access-{}", suffix()));
    let mut used = false;
    for field in ["initContainers", "containers"] {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten() {
            if has_token(container) {
                continue;
            }
            used = true;
            let mount = json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH});
            match container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                Some(mounts) => mounts.push(mount),
                None => container["volumeMounts"] = json!([mount]),
            }
        }
    }
    if !used || known.is_some() {
        return;
    }
    let volume = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}});
    match pod["spec"].get_mut("volumes").and_then(Value::as_array_mut) {
        Some(volumes) => volumes.push(volume),
        None => pod["spec"]["volumes"] = json!([volume]),
    }
}

fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect()
}

/// Tolerates a lost node for five minutes, unless the pod says otherwise.
fn tolerate(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = list(pod, "/spec/tolerations").iter().any(|toleration| {
            let (own, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
            (own == key || own.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if covered {
            continue;
        }
        let toleration =
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        match pod["spec"].get_mut("tolerations").and_then(Value::as_array_mut) {
            Some(tolerations) => tolerations.push(toleration),
            None => pod["spec"]["tolerations"] = json!([toleration]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_replaced_keeps_its_priority() {
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        let mut new = json!({"spec": {"activeDeadlineSeconds": 1}});
        keep(&mut new, &old);
        assert_eq!(
            new["spec"],
            json!({"activeDeadlineSeconds": 1, "priority": 7, "preemptionPolicy": "Never"})
        );
    }

    #[test]
    fn a_plain_pod_gets_what_every_pod_has() {
        let mut pod = json!({"spec": {"containers": [{"name": "c"}]}});
        account(&mut pod);
        tolerate(&mut pod);
        prioritise(&mut pod, None);
        assert_eq!(pod["spec"]["serviceAccountName"], "default");
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], TOKEN_PATH);
        assert_eq!(list(&pod, "/spec/volumes").len(), 1);
        assert_eq!(list(&pod, "/spec/tolerations").len(), 2);
        assert_eq!(pod["spec"]["priority"], 0);
        let before = pod.clone();
        account(&mut pod);
        tolerate(&mut pod);
        assert_eq!(pod, before);
    }
}
