//! Refuses objects that exceed a namespace's quotas, and charges the others.
//!
//! As in kube-apiserver, the usage in a quota's status is raised before the object is stored, so that two concurrent objects
//! cannot share the last place. If the object is not stored after all, the controller corrects the usage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};

use apimachinery::gvk::GroupResource;
use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use apiserver::Server;
use apiserver::admission::{Admit, Attributes, Operation};
use apiserver::registry::Kind;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::controllers::quotas::{counts, covers};
use crate::executor::Executor;
use crate::kinds;
use crate::objects::{Object, list};
use crate::view::Objects;

/// The plug-in; it knows its server once that has started.
#[derive(Default)]
pub(crate) struct Quotas {
    server: OnceLock<Weak<Server>>,
}

/// Kinds whose updates can increase the usage; other kinds count only by number.
const GROWING: [&str; 3] = ["pods", "services/specs", "persistentvolumeclaims"];

impl Quotas {
    pub(crate) fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    async fn judge(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let Some(server) = self.server.get().and_then(Weak::upgrade) else { return Ok(()) };
        // Nearly always there are none.
        let prefix = format!("{}/", attributes.namespace);
        let has_quota =
            server.store.snapshot("resourcequotas").iter().any(|entry| entry.name.starts_with(&prefix));
        let Some(object) = attributes.object.as_deref().filter(|_| has_quota) else { return Ok(()) };
        let executor = Executor::new(&server);
        let resource_kind = &attributes.kind.resource;
        let refuse = |why: String| Status::forbidden(resource_kind, attributes.name, &why);
        let quotas = executor.list(kinds::Kind::Quota, attributes.namespace);
        // All quotas must agree before one is charged.
        for quota in &quotas {
            charge(quota, resource_kind, object, attributes.old).map_err(refuse)?;
        }
        if attributes.dry_run {
            return Ok(());
        }
        for quota in &quotas {
            let refused = Mutex::new(None);
            let change = |quota: &Value| match charge(quota, resource_kind, object, attributes.old) {
                Ok(used) => {
                    *refused.lock() = None;
                    used.map(|used| {
                        let mut quota = quota.clone();
                        quota["status"]["used"] = used;
                        quota
                    })
                }
                Err(why) => {
                    *refused.lock() = Some(why);
                    None
                }
            };
            match executor.write_status(kinds::Kind::Quota, attributes.namespace, quota.name(), change).await
            {
                Err(status) if status.reason == "NotFound" => continue,
                other => other?,
            }
            if let Some(why) = refused.into_inner() {
                return Err(refuse(why));
            }
        }
        Ok(())
    }
}

impl Admit for Quotas {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, operation: Operation, kind: &Kind, subresource: &str) -> bool {
        let grows = match operation {
            Operation::Create => true,
            Operation::Update => GROWING.contains(&&*kind.collection),
            Operation::Delete => false,
        };
        grows && kind.namespaced && subresource.is_empty() && !kind.rules.buffered
    }

    fn validate<'a>(&'a self, attributes: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move { self.judge(attributes).await })
    }
}

/// Returns a quota's new usage when an object is created or grows; `None` if it does not change. The error says why the object is
/// refused.
fn charge(
    quota: &Value,
    resource_kind: &GroupResource,
    new: &Value,
    old: Option<&Value>,
) -> Result<Option<Value>, String> {
    let is_pod = resource_kind.group.is_empty() && resource_kind.resource == "pods";
    if !covers(quota, resource_kind, new) {
        return Ok(None);
    }
    let Some(hard) = quota.pointer("/status/hard").and_then(Value::as_object) else { return Ok(None) };
    // An object that enters the scope of the quota counts as new.
    let counted = old.filter(|old| covers(quota, resource_kind, old));
    let mut asked: BTreeMap<&str, Quantity> = BTreeMap::new();
    for resource in hard.keys() {
        let Some(amount) = counts(resource_kind, new, resource) else { continue };
        let before = counted.and_then(|old| counts(resource_kind, old, resource)).unwrap_or(Quantity::ZERO);
        asked.insert(resource, amount - before);
    }
    if asked.is_empty() {
        return Ok(None);
    }
    if is_pod && old.is_none() {
        specified(new, hard.keys().map(String::as_str))
            .map_err(|why| format!("failed quota: {}: {why}", quota.name()))?;
    }
    asked.retain(|_, amount| amount.sign() > 0);
    if asked.is_empty() {
        return Ok(None);
    }
    let amount = |amounts: &Value, resource: &str| Quantity::parse(amounts.get(resource)?.as_str()?).ok();
    let mut used = quota.pointer("/status/used").cloned().unwrap_or_else(|| json!({}));
    let unknown: Vec<&str> = asked.keys().copied().filter(|each| amount(&used, each).is_none()).collect();
    if !unknown.is_empty() {
        return Err(format!("status unknown for quota: {}, resources: {}", quota.name(), unknown.join(",")));
    }
    let mut exceeded = [Vec::new(), Vec::new(), Vec::new()];
    let mut after = Vec::new();
    for (resource, wish) in &asked {
        let (now, most) = (amount(&used, resource), amount(&json!(hard), resource));
        let (now, most) = (now.unwrap_or_default(), most.unwrap_or_default());
        if now + *wish > most {
            for (list, amount) in exceeded.iter_mut().zip([*wish, now, most]) {
                list.push(format!("{resource}={amount}"));
            }
        }
        after.push((*resource, (now + *wish).to_string()));
    }
    let [requested, has, limited] = exceeded.map(|list| list.join(","));
    if !requested.is_empty() {
        return Err(format!(
            "exceeded quota: {}, requested: {requested}, used: {has}, limited: {limited}",
            quota.name()
        ));
    }
    for (resource, amount) in after {
        used[resource] = json!(amount);
    }
    Ok(Some(used))
}

/// If CPU or memory is limited, every container must set it.
fn specified<'a>(pod: &Value, limited: impl Iterator<Item = &'a str>) -> Result<(), String> {
    const CHECKED: [&str; 6] =
        ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let limited: BTreeSet<&str> = limited.filter(|resource| CHECKED.contains(resource)).collect();
    let containers = list(pod, "/spec/containers").iter().chain(list(pod, "/spec/initContainers"));
    for container in containers {
        for resource in &limited {
            let (field, own) = resource.split_once('.').unwrap_or(("requests", resource));
            if container["resources"][field].get(own).is_none() {
                missing.entry(resource).or_default().insert(container["name"].as_str().unwrap_or(""));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = missing
        .into_iter()
        .map(|(resource, names)| format!("{resource} for: {}", Vec::from_iter(names).join(",")))
        .collect();
    Err(format!("must specify {}", words.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(hard: Value, used: Value) -> Value {
        json!({"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
    }

    fn pod(cpu: Option<&str>) -> Value {
        let requests = cpu.map_or(json!({}), |cpu| json!({"cpu": cpu}));
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
    }

    fn pods() -> GroupResource {
        GroupResource::new("", "pods")
    }

    #[test]
    fn an_admitted_object_is_charged() {
        let quota = quota(json!({"pods": "2", "cpu": "1"}), json!({"pods": "1", "cpu": "500m"}));
        let used = charge(&quota, &pods(), &pod(Some("250m")), None).expect("room").expect("charged");
        assert_eq!(used, json!({"pods": "2", "cpu": "750m"}));
    }

    #[test]
    fn an_object_beyond_a_quota_is_refused_in_kube_apiservers_words() {
        let full = quota(json!({"pods": "2", "cpu": "1"}), json!({"pods": "2", "cpu": "500m"}));
        assert_eq!(
            charge(&full, &pods(), &pod(Some("750m")), None).expect_err("refused"),
            "exceeded quota: q, requested: cpu=750m,pods=1, used: cpu=500m,pods=2, limited: cpu=1,pods=2"
        );
        let why = charge(&full, &pods(), &pod(None), None).expect_err("refused");
        assert_eq!(why, "failed quota: q: must specify cpu for: c");
    }

    #[test]
    fn an_object_that_enters_the_scope_of_a_quota_is_charged() {
        let mut quota = quota(json!({"pods": "1"}), json!({"pods": "0"}));
        quota["spec"]["scopes"] = json!(["Terminating"]);
        let before = pod(Some("250m"));
        let mut ending = before.clone();
        ending["spec"]["activeDeadlineSeconds"] = json!(60);
        assert_eq!(charge(&quota, &pods(), &ending, Some(&before)), Ok(Some(json!({"pods": "1"}))));
        quota["status"]["used"] = json!({"pods": "1"});
        assert!(charge(&quota, &pods(), &ending, Some(&before)).is_err());
        assert_eq!(charge(&quota, &pods(), &ending, Some(&ending)), Ok(None));
    }

    #[test]
    fn shrinking_and_uncounted_objects_are_admitted() {
        let full = quota(json!({"services.nodeports": "1"}), json!({"services.nodeports": "1"}));
        let services = GroupResource::new("", "services");
        let service = |kind: &str| json!({"spec": {"type": kind, "ports": [{"port": 80}]}});
        let (open, closed) = (service("NodePort"), service("ClusterIP"));
        assert_eq!(charge(&full, &services, &closed, Some(&open)), Ok(None));
        assert!(charge(&full, &services, &open, Some(&closed)).is_err());
        assert_eq!(charge(&full, &pods(), &pod(None), None), Ok(None));
    }
}
