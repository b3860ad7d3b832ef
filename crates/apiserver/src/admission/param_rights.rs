//! The writer of a policy or binding with parameters must be allowed to read them: expressions can show their content.
//!
//! In: a policy or binding that is otherwise valid, and the one it replaces. Out: the refusal, in upstream's words. Users who may
//! do everything are not checked.

use apimachinery::field::{Error, Path};
use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use serde_json::Value;

use crate::auth::User;
use crate::auth::rbac::Attributes;
use crate::auth::user::MASTERS;
use crate::server::Server;

/// Returns why the user may not write an object; `None` for other kinds.
pub(crate) fn check(
    server: &Server,
    user: &User,
    gvk: &Gvk,
    object: &Value,
    old: Option<&Value>,
) -> Option<Error> {
    if gvk.group != "admissionregistration.k8s.io" || user.in_group(MASTERS) {
        return None;
    }
    let (new, old) = (&object["spec"], old.map(|old| &old["spec"]));
    let same = |field: &str| old.is_some_and(|old| old[field] == new[field]);
    let spec = Path::new("spec");
    let collection = match gvk.kind.as_str() {
        "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy" => {
            let kind = object["spec"].get("paramKind").filter(|kind| kind.is_object())?;
            if same("paramKind") {
                return None;
            }
            let why = of_kind(server, user, kind)?;
            return Some(Error::forbidden(&spec.child("paramKind"), why));
        }
        "ValidatingAdmissionPolicyBinding" => "validatingadmissionpolicies",
        "MutatingAdmissionPolicyBinding" => "mutatingadmissionpolicies",
        _ => return None,
    };
    let reference = object["spec"].get("paramRef").filter(|reference| reference.is_object())?;
    if same("paramRef") && same("policyName") {
        return None;
    }
    let policy = server.store.get(collection, &pointer::owned(&object["spec"], "/policyName"));
    let policy = policy.map(|entry| serde_json::from_slice(&entry.value).unwrap_or(Value::Null));
    let why = of_reference(server, user, object, reference, policy.as_ref())?;
    // Upstream mixes these two up for one of the kinds.
    let why = if gvk.kind.starts_with("Mutating") { why.mixed_up } else { why.text };
    Some(Error::forbidden(&spec.child("paramRef"), why))
}

/// Returns the group, version and resource of a kind of parameters, as the authorizer knows it. Unknown parts are `*`.
fn resource(server: &Server, kind: Option<&Value>) -> (String, String, Option<String>) {
    let Some(kind) = kind else { return ("*".to_owned(), "*".to_owned(), Some("*".to_owned())) };
    let gvk = Gvk::from_api_version(&pointer::owned(kind, "/apiVersion"), &pointer::owned(kind, "/kind"));
    let registry = server.registry.load();
    let found = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind);
    let resource = found.map(|kind| kind.resource.resource.clone());
    (gvk.group, gvk.version, resource)
}

fn of_kind(server: &Server, user: &User, kind: &Value) -> Option<String> {
    let (group, version, resource) = resource(server, Some(kind));
    let wanted = Attributes {
        verb: "get",
        group: &group,
        version: &version,
        resource: resource.as_deref().unwrap_or("*"),
        namespace: "*",
        name: "*",
        ..Attributes::default()
    };
    server.rbac.check(&server.store, user, &wanted).err().map(|_| {
        format!(
            "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
            shown(user),
            pointer::owned(kind, "/kind"),
            pointer::owned(kind, "/apiVersion")
        )
    })
}

struct Why {
    text: String,
    mixed_up: String,
}

fn of_reference(
    server: &Server,
    user: &User,
    binding: &Value,
    reference: &Value,
    policy: Option<&Value>,
) -> Option<Why> {
    let kind = policy.and_then(|policy| policy["spec"].get("paramKind")).filter(|kind| kind.is_object());
    let (group, version, resource) = resource(server, kind);
    let (name, namespace) = (pointer::owned(reference, "/name"), pointer::owned(reference, "/namespace"));
    let verb = if name.is_empty() { "list" } else { "get" };
    let wanted = Attributes {
        verb,
        group: &group,
        version: &version,
        resource: resource.as_deref().unwrap_or("*"),
        namespace: &namespace,
        name: &name,
        ..Attributes::default()
    };
    server.rbac.check(&server.store, user, &wanted).err()?;
    let user = shown(user);
    let lacking =
        format!("user {user} does not have \"{verb}\" permission for all groups, versions and resources");
    let unknown = match (policy, kind, &resource) {
        (None, ..) => {
            Some(format!("unable to get policy {}", pointer::owned(&binding["spec"], "/policyName")))
        }
        (_, Some(kind), None) => Some(format!(
            "unable to resolve paramKind &{{{} {}}}",
            pointer::owned(kind, "/apiVersion"),
            pointer::owned(kind, "/kind")
        )),
        _ => None,
    };
    Some(match unknown {
        Some(unknown) => {
            let text = format!("{unknown} to determine minimum required permissions and {lacking}");
            Why { mixed_up: text.clone(), text }
        }
        None => {
            let say = |who: &str, what: &str| {
                format!("user {who} does not have \"{what}\" permission on the object referenced by paramRef")
            };
            Why { text: say(&user, verb), mixed_up: say(verb, &user) }
        }
    })
}

/// Shows a user as Go shows its structure.
fn shown(user: &User) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_shown_as_go_shows_them() {
        let mut user = User { name: "jane".into(), groups: vec!["a".into(), "b".into()], ..User::default() };
        user.extra.insert("k".into(), vec!["v".into(), "w".into()]);
        assert_eq!(shown(&user), "&{jane  [a b] map[k:[v w]]}");
    }
}
