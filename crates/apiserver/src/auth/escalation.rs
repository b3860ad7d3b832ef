//! Nobody grants what they do not hold: the guard on writing roles and bindings.

use apimachinery::status::Status;
use serde_json::Value;

use super::rbac::{Attributes, Rule};
use super::user::MASTERS;
use crate::handlers::write::Target;
use crate::object;
use crate::server::Server;

/// Refuses a role that has, or a binding that gives, more than the caller holds, unless they may escalate or bind.
pub fn check(
    server: &Server,
    target: &Target<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let user = &target.context.user;
    if user.in_group(MASTERS) {
        return Ok(());
    }
    let is_role = matches!(&*target.kind.collection, "roles" | "clusterroles");
    let name = object::meta_str(object, "name");
    let granted: Vec<Rule> = if is_role {
        let same = |field: &str| old.and_then(|old| old.get(field)) == object.get(field);
        if old.is_some() && same("rules") && same("aggregationRule") {
            return Ok(());
        }
        if may(server, target, "escalate", target.kind.resource.resource.as_str(), name) {
            return Ok(());
        }
        if object.get("aggregationRule").is_some_and(|rule| !rule.is_null()) {
            // An aggregate may come to hold anything.
            vec![everything(false), everything(true)]
        } else {
            rules_of(object)
        }
    } else {
        let reference =
            |field: &str| object.pointer(&format!("/roleRef/{field}")).and_then(Value::as_str).unwrap_or("");
        if let Some(old) = old
            && old.get("subjects") == object.get("subjects")
            && old.get("roleRef") == object.get("roleRef")
        {
            return Ok(());
        }
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
        server.rbac.refresh(&server.store);
        match server.rbac.role(cluster, &key) {
            Some(rules) => rules.to_vec(),
            // Upstream names the kind that is being written, not the one that is missing.
            None => return Err(Status::not_found(&target.kind.resource, reference("name"))),
        }
    };
    server.rbac.refresh(&server.store);
    let held = server.rbac.rules_of(user, target.namespace);
    let missing: Vec<Rule> =
        granted.iter().flat_map(single_rules).filter(|rule| !covered(&held, rule)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let mut lines: Vec<String> = compact(missing).iter().map(describe).collect();
    lines.sort();
    let why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        lines.join("\n")
    );
    Err(Status::forbidden(&target.kind.resource, name, &why))
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

/// Splits a rule into rules that each allow one verb on one thing.
fn single_rules(rule: &Rule) -> Vec<Rule> {
    let mut singles = Vec::new();
    for verb in &rule.verbs {
        for url in &rule.urls {
            singles.push(Rule { verbs: vec![verb.clone()], urls: vec![url.clone()], ..Rule::default() });
        }
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let base = Rule {
                    verbs: vec![verb.clone()],
                    api_groups: vec![group.clone()],
                    resources: vec![resource.clone()],
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    singles.push(base);
                } else {
                    for name in &rule.resource_names {
                        singles.push(Rule { resource_names: vec![name.clone()], ..base.clone() });
                    }
                }
            }
        }
    }
    singles
}

fn covered(held: &[Rule], wanted: &Rule) -> bool {
    let has = |list: &[String], value: &str| list.iter().any(|own| own == "*" || own == value);
    let verb = wanted.verbs[0].as_str();
    held.iter().any(|own| {
        if !has(&own.verbs, verb) {
            return false;
        }
        if let Some(url) = wanted.urls.first() {
            return own.urls.iter().any(|mine| match mine.strip_suffix('*') {
                Some(prefix) => url.starts_with(prefix),
                None => mine == url,
            });
        }
        let resource = wanted.resources[0].as_str();
        let by_wildcard = resource.split_once('/').is_some_and(|(_, subresource)| {
            own.resources.iter().any(|mine| *mine == format!("*/{subresource}"))
        });
        has(&own.api_groups, &wanted.api_groups[0])
            && (has(&own.resources, resource) || by_wildcard)
            && (own.resource_names.is_empty()
                || wanted.resource_names.first().is_some_and(|name| own.resource_names.contains(name)))
    })
}

/// Joins the verbs of rules that are otherwise alike.
fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for rule in rules {
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
