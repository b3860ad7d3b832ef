//! The objects that make an API server call the webhook server, from the table of rules.

use admission::{HOOKS, Hook, Operation, Scope};
use apimachinery::pointer;
use serde_json::{Value, json};

use super::review::encode_base64;

/// Returns the mutating and the validating configuration, as Karmada's installers create them.
pub(super) fn objects(url: &str, authority: &str) -> [Value; 2] {
    [
        ("MutatingWebhookConfiguration", "mutating-config", true),
        ("ValidatingWebhookConfiguration", "validating-config", false),
    ]
    .map(|(kind, name, mutates)| {
        let hooks: Vec<Value> = HOOKS
            .iter()
            .filter(|hook| hook.mutates() == mutates)
            .map(|hook| entry(hook, url, authority))
            .collect();
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": name, "labels": { "app": "karmada-webhook" } },
            "webhooks": hooks,
        })
    })
}

fn entry(hook: &Hook, url: &str, authority: &str) -> Value {
    let operations: Vec<&str> = hook
        .operations
        .iter()
        .map(|operation| match operation {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        })
        .collect();
    let scope = match hook.scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "Cluster",
        Scope::Any => "*",
    };
    let mut entry = json!({
        "name": hook.name,
        "rules": [{
            "operations": operations,
            "apiGroups": [hook.group],
            "apiVersions": ["*"],
            "resources": [hook.resource],
            "scope": scope,
        }],
        "clientConfig": {
            "url": format!("{}{}", url.trim_end_matches('/'), hook.path),
            "caBundle": encode_base64(authority.as_bytes()),
        },
        "failurePolicy": "Fail",
        "sideEffects": if hook.has_side_effects() { "NoneOnDryRun" } else { "None" },
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": hook.timeout_seconds,
    });
    if let Some(label) = hook.selects_label() {
        let selector = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
        pointer::set(&mut entry, "objectSelector", selector);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_registered_under_its_own_name() {
        let [mutating, validating] = objects("https://w:443/", "PEM");
        let hooks = |object: &Value| object["webhooks"].as_array().unwrap().clone();
        assert_eq!(hooks(&mutating).len() + hooks(&validating).len(), HOOKS.len());
        for object in [&mutating, &validating] {
            let hooks = hooks(object);
            let mut names: Vec<&str> = hooks.iter().filter_map(|hook| hook["name"].as_str()).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "an API server wants names to be unique");
        }
        let first = &hooks(&mutating)[0];
        assert_eq!(first["clientConfig"]["url"], "https://w:443/mutate-propagationpolicy");
        assert_eq!(first["clientConfig"]["caBundle"], "UEVN");
        let binding =
            hooks(&validating).into_iter().find(|hook| hook["name"] == "resourcebinding.karmada.io");
        assert_eq!(binding.unwrap()["sideEffects"], "NoneOnDryRun");
    }
}
