//! Users can grant only rights that they hold: the guard on writing roles and bindings.

mod missing;

use apimachinery::go;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use self::missing::Refused;
use super::rbac::{Attributes, Rule};
use super::user::MASTERS;
use crate::handlers::write::Target;
use crate::object;
use crate::server::Server;

/// Refuses a role or binding that grants more than the caller holds, unless the caller may escalate or bind.
///
/// Every change is checked, even if it leaves the rules alone: a label can make an aggregated role include this one. Only the
/// fields that the garbage collector changes are open to every writer.
pub fn check(
    server: &Server,
    target: &Target<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let user = &target.context.user;
    if user.in_group(MASTERS) || old.is_some_and(|old| changes_only_ownership(object, old)) {
        return Ok(());
    }
    if target.kind.is_role() {
        check_role(server, target, object, old)
    } else {
        check_binding(server, target, object)
    }
}

fn check_role(server: &Server, target: &Target<'_>, role: &Value, old: Option<&Value>) -> Result<(), Status> {
    // A new role has no name yet, so a right to escalate certain roles does not help.
    if may(server, target, "escalate", target.kind.resource.resource.as_str(), target.name) {
        return Ok(());
    }
    let forbidden = |why: &str| Status::forbidden(&target.kind.resource, role.name(), why);
    confirm(server, target, &rules_of(role)).map_err(|why| forbidden(&why))?;
    // An aggregated role may gain any right.
    if [Some(role), old].into_iter().flatten().any(aggregates) {
        confirm(server, target, &[everything(false), everything(true)])
            .map_err(|_| forbidden("must have cluster-admin privileges to use the aggregationRule"))?;
    }
    Ok(())
}

fn check_binding(server: &Server, target: &Target<'_>, binding: &Value) -> Result<(), Status> {
    let reference =
        |field: &str| binding.pointer(&format!("/roleRef/{field}")).and_then(Value::as_str).unwrap_or("");
    let cluster = reference("kind") == "ClusterRole";
    let resource = if cluster { "clusterroles" } else { "roles" };
    if may(server, target, "bind", resource, reference("name")) {
        return Ok(());
    }
    let key = if cluster {
        reference("name").into()
    } else {
        object::join_key(target.namespace, reference("name"))
    };
    server.rbac.catch_up(&server.store);
    // Upstream names the kind that is being written, not the missing one.
    let rules = server.rbac.role(cluster, &key);
    let rules = rules.ok_or_else(|| Status::not_found(&target.kind.resource, reference("name")))?;
    confirm(server, target, &rules)
        .map_err(|why| Status::forbidden(&target.kind.resource, binding.name(), &why))
}

/// Checks that the caller holds everything that is granted. Returns what is missing otherwise.
fn confirm(server: &Server, target: &Target<'_>, granted: &[Rule]) -> Result<(), String> {
    let user = &target.context.user;
    server.rbac.catch_up(&server.store);
    let held = server.rbac.held(user, target.namespace);
    let held: Vec<&Rule> = held.iter().flat_map(|rules| rules.iter()).collect();
    let refused = match missing::check(&held, granted) {
        Ok(()) => return Ok(()),
        Err(refused) => refused,
    };
    let groups: Vec<String> = user.groups.iter().map(|group| go::quote(group)).collect();
    let caller = format!("user {} (groups=[{}])", go::quote(&user.name), groups.join(" "));
    Err(match refused {
        Refused::Missing { mut lines, all } => {
            if !all {
                lines.push("and others, which are too many to be told".to_owned());
            }
            format!(
                "{caller} is attempting to grant RBAC permissions not currently held:\n{}",
                lines.join("\n")
            )
        }
        Refused::TooMany => format!(
            "{caller} is attempting to grant RBAC permissions in too many combinations to be compared with \
             those currently held"
        ),
    })
}

/// Returns whether a change touches only fields that the garbage collector writes.
fn changes_only_ownership(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "selfLink", "resourceVersion"] {
            object.metadata_mut().remove(field);
        }
        object
    };
    rest(new) == rest(old)
}

fn aggregates(role: &Value) -> bool {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    selectors.is_some_and(|selectors| !selectors.is_empty())
}

fn may(server: &Server, target: &Target<'_>, verb: &str, resource: &str, name: &str) -> bool {
    let attributes = Attributes {
        verb,
        group: "rbac.authorization.k8s.io",
        version: "v1",
        resource,
        subresource: "",
        namespace: target.namespace,
        name,
        path: None,
    };
    server.rbac.check(&server.store, &target.context.user, &attributes).is_ok()
}

fn everything(urls: bool) -> Rule {
    let all = || vec!["*".to_owned()];
    if urls {
        Rule { verbs: all(), urls: all(), ..Rule::default() }
    } else {
        Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() }
    }
}

fn rules_of(role: &Value) -> Vec<Rule> {
    role.get("rules").and_then(|rules| serde_json::from_value(rules.clone()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_garbage_collectors_fields_may_change_unchecked() {
        let role = |metadata: Value| serde_json::json!({"metadata": metadata, "rules": [{"verbs": ["*"]}]});
        let old = role(serde_json::json!({"name": "r", "finalizers": ["a"], "ownerReferences": []}));
        assert!(changes_only_ownership(&role(serde_json::json!({"name": "r"})), &old));
        let labelled = role(serde_json::json!({"name": "r", "finalizers": ["a"], "labels": {"a": "b"}}));
        assert!(!changes_only_ownership(&labelled, &old), "a label may give the role to others");
    }
}
