//! Users can grant only rights that they hold: the guard on writing roles and bindings.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

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
    let held = server.rbac.rules_of(user, target.namespace);
    let missing: Vec<Single> =
        granted.iter().flat_map(single_rules).filter(|rule| !covered(&held, rule)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let mut lines: Vec<String> = compact(missing).iter().map(describe).collect();
    lines.sort();
    Err(format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        lines.join("\n")
    ))
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

/// One verb on one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Single {
    Url { verb: String, url: String },
    Resource { verb: String, group: String, resource: String, name: Option<String> },
}

/// Splits a rule into parts that each allow one verb on one thing.
fn single_rules(rule: &Rule) -> Vec<Single> {
    let mut singles = Vec::new();
    for verb in &rule.verbs {
        singles.extend(rule.urls.iter().map(|url| Single::Url { verb: verb.clone(), url: url.clone() }));
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let one = |name: Option<&String>| Single::Resource {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.cloned(),
                };
                if rule.resource_names.is_empty() {
                    singles.push(one(None));
                } else {
                    singles.extend(rule.resource_names.iter().map(|name| one(Some(name))));
                }
            }
        }
    }
    singles
}

fn covered(held: &[Rule], wanted: &Single) -> bool {
    let has = |list: &[String], value: &str| list.iter().any(|own| own == "*" || own == value);
    held.iter().any(|own| match wanted {
        Single::Url { verb, url } => {
            let allows = |mine: &String| match mine.strip_suffix('*') {
                Some(prefix) => url.starts_with(prefix),
                None => mine == url,
            };
            has(&own.verbs, verb) && own.urls.iter().any(allows)
        }
        Single::Resource { verb, group, resource, name } => {
            let by_wildcard = resource.split_once('/').is_some_and(|(_, subresource)| {
                own.resources.iter().any(|mine| *mine == format!("*/{subresource}"))
            });
            has(&own.verbs, verb)
                && has(&own.api_groups, group)
                && (has(&own.resources, resource) || by_wildcard)
                && (own.resource_names.is_empty()
                    || name.as_ref().is_some_and(|name| own.resource_names.contains(name)))
        }
    })
}

/// Joins the verbs of rules that are otherwise equal.
fn compact(singles: Vec<Single>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for single in singles {
        let rule = match single {
            Single::Url { verb, url } => Rule { verbs: vec![verb], urls: vec![url], ..Rule::default() },
            Single::Resource { verb, group, resource, name } => Rule {
                verbs: vec![verb],
                api_groups: vec![group],
                resources: vec![resource],
                resource_names: name.into_iter().collect(),
                ..Rule::default()
            },
        };
        let alike = joined.iter_mut().find(|other| {
            other.api_groups == rule.api_groups
                && other.resources == rule.resources
                && other.resource_names == rule.resource_names
                && other.urls == rule.urls
        });
        match alike {
            Some(other) => other.verbs.extend(rule.verbs),
            None => joined.push(rule),
        }
    }
    joined
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`
fn describe(rule: &Rule) -> String {
    let list = |values: &[String]| {
        let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        format!("[{}]", quoted.join(" "))
    };
    let mut parts = Vec::new();
    for (name, values) in [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("ResourceNames", &rule.resource_names),
        ("NonResourceURLs", &rule.urls),
        ("Verbs", &rule.verbs),
    ] {
        if !values.is_empty() {
            parts.push(format!("{name}:{}", list(values)));
        }
    }
    format!("{{{}}}", parts.join(", "))
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

    #[test]
    fn held_rights_cover_their_parts_and_nothing_else() {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let rule = |resources: &[&str], names: &[&str]| Rule {
            verbs: own(&["get"]),
            api_groups: own(&[""]),
            resources: own(resources),
            resource_names: own(names),
            urls: Vec::new(),
        };
        let covers = |held: Rule, wanted: Rule| {
            single_rules(&wanted).iter().all(|single| covered(std::slice::from_ref(&held), single))
        };
        assert!(covers(rule(&["*"], &[]), rule(&["secrets"], &["a"])));
        assert!(covers(rule(&["*/log"], &[]), rule(&["pods/log"], &[])));
        assert!(!covers(rule(&["secrets"], &["a"]), rule(&["secrets"], &[])));
        assert!(!covers(rule(&["pods"], &[]), rule(&["pods/log"], &[])));
        assert!(!covers(
            rule(&["*"], &[]),
            Rule { verbs: own(&["get"]), urls: own(&["/x"]), ..Rule::default() }
        ));
    }
}
