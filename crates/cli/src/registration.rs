//! The objects that make another API server call our programs: webhook configurations, definitions with their conversion, and
//! APIServices. Pure: an address and an authority in, objects out.

use admission::{HOOKS, Hook, Operation, Scope};
use base64::Engine as _;
use serde_json::{Value, json};

/// The address at which an API server finds one of our programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    Url(&'a str),
    Service { namespace: &'a str, name: &'a str, port: u16 },
}

impl Place<'_> {
    fn client_config(&self, path: &str, authority: &str) -> Value {
        let bundle = encode(authority);
        match self {
            Self::Url(url) => {
                json!({ "url": format!("{}{path}", url.trim_end_matches('/')), "caBundle": bundle })
            }
            Self::Service { namespace, name, port } => json!({
                "service": { "namespace": namespace, "name": name, "port": port, "path": path },
                "caBundle": bundle,
            }),
        }
    }
}

/// The file beside a serving certificate that has what callers without a certificate show.
pub const PASSWORD_FILE: &str = "caller-password";

/// Makes what callers without a certificate show. An API server can show nothing but the path that its configuration has, whose parts
/// are DNS labels.
pub fn password() -> String {
    let random: [u8; 20] = rand::random();
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the mutating and the validating configuration from the table of rules, as Karmada's installers create them. The paths of
/// rules that ask the control plane end with the password, if callers need one.
pub fn webhooks(place: Place<'_>, authority: &str, password: Option<&str>) -> [Value; 2] {
    [
        ("MutatingWebhookConfiguration", "mutating-config", true),
        ("ValidatingWebhookConfiguration", "validating-config", false),
    ]
    .map(|(kind, name, mutates)| {
        let hooks = HOOKS.iter().filter(|hook| hook.mutates() == mutates);
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": name, "labels": { "app": "karmada-webhook" } },
            "webhooks": hooks.map(|hook| webhook(hook, place, authority, password)).collect::<Vec<_>>(),
        })
    })
}

fn webhook(hook: &Hook, place: Place<'_>, authority: &str, password: Option<&str>) -> Value {
    let path = match password.filter(|_| hook.asks_control_plane()) {
        Some(password) => format!("{}/{password}", hook.path),
        None => hook.path.to_owned(),
    };
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
        "clientConfig": place.client_config(&path, authority),
        "failurePolicy": "Fail",
        "sideEffects": if hook.has_side_effects() { "NoneOnDryRun" } else { "None" },
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": hook.timeout_seconds,
    });
    if let Some(label) = hook.selects_label() {
        entry["objectSelector"] = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
    }
    entry
}

/// Returns Karmada's definitions; those with several versions are converted at `place`.
pub fn definitions(place: Place<'_>, authority: &str) -> Vec<Value> {
    let mut all = api::crd::all();
    for definition in &mut all {
        if definition["spec"]["versions"].as_array().is_some_and(|versions| versions.len() > 1) {
            definition["spec"]["conversion"] = json!({
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": place.client_config("/convert", authority),
                    "conversionReviewVersions": ["v1"],
                },
            });
        }
    }
    all
}

/// The groups for which the aggregated server is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// Karmada's own groups.
    Karmada,
    /// Also the metrics of all members, under the names of a cluster's metrics server.
    AndMetrics,
}

/// Returns an APIService for each group version of the aggregated server, which listens on port `port` of a Service.
pub fn api_services(
    groups: Groups,
    namespace: &str,
    service: &str,
    port: u16,
    authority: &str,
) -> Vec<Value> {
    // Group, version and the priorities from upstream's installers.
    let karmada = [("cluster.karmada.io", "v1alpha1", 2000, 10), ("search.karmada.io", "v1alpha1", 2000, 10)];
    let metrics = [
        ("metrics.k8s.io", "v1beta1", 100, 100),
        ("custom.metrics.k8s.io", "v1beta2", 100, 200),
        ("custom.metrics.k8s.io", "v1beta1", 100, 100),
    ];
    let further = if groups == Groups::AndMetrics { &metrics[..] } else { &[] };
    let versions = karmada.iter().chain(further);
    let object = |&(group, version, minimum, priority): &(&str, &str, i32, i32)| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("{version}.{group}"), "labels": { "app": service, "apiserver": "true" } },
            "spec": {
                "group": group, "version": version, "caBundle": encode(authority),
                "groupPriorityMinimum": minimum, "versionPriority": priority,
                "service": { "name": service, "namespace": namespace, "port": port },
            },
        })
    };
    versions.map(object).collect()
}

fn encode(authority: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_registered_under_its_own_name() {
        let [mutating, validating] = webhooks(Place::Url("https://w:443/"), "PEM", None);
        let hooks = |object: &Value| object["webhooks"].as_array().expect("a list").clone();
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
        assert_eq!(binding.expect("a rule")["sideEffects"], "NoneOnDryRun");
    }

    #[test]
    fn a_service_is_named_with_the_path_beside_it() {
        let place = Place::Service { namespace: "n", name: "w", port: 443 };
        let [mutating, _] = webhooks(place, "PEM", None);
        let client = &mutating["webhooks"][0]["clientConfig"];
        let service =
            json!({ "namespace": "n", "name": "w", "port": 443, "path": "/mutate-propagationpolicy" });
        assert_eq!(*client, json!({ "service": service, "caBundle": "UEVN" }));
        let definitions = definitions(place, "PEM");
        let converted: Vec<_> =
            definitions.iter().filter(|one| one["spec"]["conversion"]["strategy"] == "Webhook").collect();
        assert!(!converted.is_empty() && converted.len() < definitions.len());
        let client = &converted[0]["spec"]["conversion"]["webhook"]["clientConfig"];
        assert_eq!(client["service"]["path"], "/convert");
    }

    #[test]
    fn finding_17_only_paths_of_rules_that_ask_the_control_plane_end_with_a_password() {
        let password = password();
        assert!(password.len() == 40 && password != super::password());
        let [mutating, validating] = webhooks(Place::Url("https://w"), "PEM", Some(&password));
        let paths = |object: &Value| -> Vec<String> {
            let hooks = object["webhooks"].as_array().expect("a list");
            let url = |hook: &Value| hook["clientConfig"]["url"].as_str().unwrap_or("").to_owned();
            hooks.iter().map(url).filter(|url| url.contains(&password)).collect()
        };
        assert_eq!(paths(&mutating), Vec::<String>::new());
        let asking = HOOKS.iter().filter(|hook| hook.asks_control_plane());
        let expected: Vec<String> = asking.map(|hook| format!("https://w{}/{password}", hook.path)).collect();
        assert_eq!(paths(&validating), expected);
    }

    #[test]
    fn metrics_are_registered_only_where_they_are_wanted() {
        let names = |groups: Groups| -> Vec<String> {
            let all = api_services(groups, "n", "s", 443, "PEM");
            all.iter().map(|one| one["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect()
        };
        assert_eq!(names(Groups::Karmada), ["v1alpha1.cluster.karmada.io", "v1alpha1.search.karmada.io"]);
        assert_eq!(names(Groups::AndMetrics).len(), 5);
    }
}
