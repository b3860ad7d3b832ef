//! Keeps the rules of aggregated ClusterRoles equal to the union of the roles they select, and the authorizer
//! up to date with every role and binding.

use std::sync::Arc;

use apimachinery::pointer;
use apimachinery::selector::LabelSelector;
use serde_json::Value;

use crate::internal::Actor;
use crate::object;
use crate::server::Server;

pub(super) async fn run(server: Arc<Server>) {
    let actor = Actor::new(&server, "system:serviceaccount:kube-system:clusterrole-aggregation-controller");
    let Ok(mut watch) = server.store.watch_all(server.store.revision()) else { return };
    server.rbac.catch_up(&server.store);
    aggregate(&actor).await;
    loop {
        let Ok(batch) = watch.next().await else { return };
        server.rbac.catch_up(&server.store);
        let roles = batch.iter().any(|event| &*event.collection == "clusterroles");
        if roles {
            aggregate(&actor).await;
        }
    }
}

async fn aggregate(actor: &Actor) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("rbac.authorization.k8s.io", "v1", "clusterroles").cloned() else {
        return;
    };
    let snapshot = server.store.snapshot("clusterroles");
    let roles: Vec<(Arc<object::Entry>, Value)> = snapshot
        .iter()
        .map(|entry| (entry.clone(), serde_json::from_slice(&entry.value).unwrap_or(Value::Null)))
        .collect();
    for (entry, role) in &roles {
        let Some(selectors) = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array)
        else {
            continue;
        };
        let mut rules: Vec<Value> = Vec::new();
        for selector in selectors {
            let Ok(selector) = LabelSelector::from_object(Some(selector)) else { continue };
            for (other, body) in &roles {
                if other.name == entry.name || !selector.matches(&other.head) {
                    continue;
                }
                for rule in body.get("rules").and_then(Value::as_array).into_iter().flatten() {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
            }
        }
        let present = role.get("rules").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if present == rules {
            continue;
        }
        let name = entry.name.to_string();
        let result = actor
            .update(&kind, "", &name, "", |old| {
                let mut new = old.clone();
                let gathered = if rules.is_empty() { Value::Null } else { rules.clone().into() };
                pointer::set(&mut new, "rules", gathered);
                Some(new)
            })
            .await;
        if let Err(status) = result {
            tracing::warn!(object = name, error = %status, "cannot aggregate a role");
        }
    }
}
