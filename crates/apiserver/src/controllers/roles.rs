//! Keeps the rules of aggregated ClusterRoles equal to the union of the roles they select, and the authorizer
//! up to date with every role and binding.

use std::collections::HashSet;
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
        let selectors = selectors.iter().filter_map(|text| LabelSelector::from_object(Some(text)).ok());
        let selected = selectors.flat_map(|selector| {
            let others = roles.iter().filter(|(other, _)| other.name != entry.name);
            others.filter(move |(other, _)| selector.matches(&other.head)).map(|(_, body)| body)
        });
        let rules = union(selected);
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

/// Returns the rules of some roles, in their order and each once.
fn union<'a>(roles: impl Iterator<Item = &'a Value>) -> Vec<Value> {
    let mut seen = HashSet::new();
    let rules = roles.flat_map(|role| role.get("rules").and_then(Value::as_array).into_iter().flatten());
    rules.filter(|rule| seen.insert(*rule)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finding_25_many_rules_are_gathered_in_linear_time() {
        let rule = |number: usize| json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": [number.to_string()]});
        let role = |numbers: std::ops::Range<usize>| json!({"rules": numbers.map(rule).collect::<Vec<_>>()});
        let roles = [role(0..100_000), json!({}), role(50_000..100_001)];
        // Comparing each with each before it would take minutes.
        let rules = union(roles.iter());
        assert_eq!(rules.len(), 100_001);
        assert_eq!((&rules[7], rules.last()), (&rule(7), Some(&rule(100_000))));
    }
}
