//! What the writer of an object must be allowed to read, because the control plane will read it on the writer's behalf.
//!
//! A Cluster names Secrets whose tokens are sent to its address, and a ResourceRegistry the Secret of its OpenSearch; a binding names
//! an object that is sent to members. All would show their writers, or members of their writers' choice, what the writers may not
//! see themselves. The caller asks the authorizer.

use api::cluster::{ClusterSpec, LocalSecretReference};
use api::search::{OpenSearchConfig, ResourceRegistrySpec};
use api::work::ResourceBindingSpec;
use apimachinery::names;
use serde_json::Value;

use crate::request::{Denial, Operation, Request, spec};

/// An object that the writer must be allowed to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The field that names it.
    pub field: &'static str,
    pub api_version: String,
    pub kind: String,
    /// Empty for a cluster-scoped object.
    pub namespace: String,
    pub name: String,
}

/// Returns the Secrets of a Cluster, if this write decides where their content goes.
pub(crate) fn of_cluster(request: &Request<'_>, object: &Value) -> Result<Vec<Reading>, Denial> {
    let Some((old, new)) = versions::<ClusterSpec>(request, object)? else { return Ok(Vec::new()) };
    let way = |spec: &ClusterSpec| {
        (
            (spec.secret_ref.clone(), spec.impersonator_secret_ref.clone()),
            (spec.api_endpoint.clone(), spec.insecure_skip_tls_verification),
            (spec.proxy_url.clone(), spec.proxy_header.clone()),
        )
    };
    if old.is_some_and(|old| way(&old) == way(&new)) {
        return Ok(Vec::new());
    }
    let own = new.secret_ref.map(|reference| secret("spec.secretRef", reference));
    let impersonator =
        new.impersonator_secret_ref.map(|reference| secret("spec.impersonatorSecretRef", reference));
    Ok(own.into_iter().chain(impersonator).collect())
}

/// Returns the Secret of a registry's OpenSearch, if this write decides where its content goes.
pub(crate) fn of_registry(request: &Request<'_>, object: &Value) -> Result<Vec<Reading>, Denial> {
    let Some((old, new)) = versions::<ResourceRegistrySpec>(request, object)? else { return Ok(Vec::new()) };
    let store = |spec: ResourceRegistrySpec| spec.backend_store.and_then(|store| store.open_search);
    let Some(new) = store(new) else { return Ok(Vec::new()) };
    if old.and_then(store).as_ref() == Some(&new) {
        return Ok(Vec::new());
    }
    let OpenSearchConfig { secret_ref: reference, .. } = new;
    // Without both, no Secret is read.
    if reference.namespace.is_empty() || reference.name.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![secret("spec.backendStore.openSearch.secretRef", reference)])
}

fn secret(field: &'static str, reference: LocalSecretReference) -> Reading {
    Reading {
        field,
        api_version: "v1".to_owned(),
        kind: "Secret".to_owned(),
        namespace: reference.namespace,
        name: reference.name,
    }
}

/// Returns the object that a binding stands for, if this write decides which one it is.
pub(crate) fn of_binding(request: &Request<'_>, object: &Value) -> Result<Vec<Reading>, Denial> {
    let Some((old, new)) = versions::<ResourceBindingSpec>(request, object)? else { return Ok(Vec::new()) };
    let named = |spec: &ResourceBindingSpec| {
        let resource = &spec.resource;
        Reading {
            field: "spec.resource",
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
            namespace: resource.namespace.clone(),
            name: resource.name.clone(),
        }
    };
    let reading = named(&new);
    if old.is_some_and(|old| named(&old) == reading) {
        return Ok(Vec::new());
    }
    // No object is called so. What reads it would write the name into a path as it is, and with it read another object.
    for (field, value) in [("namespace", &reading.namespace), ("name", &reading.name)] {
        if !names::is_path_segment(value) {
            let why = format!("spec.resource.{field} is {value:?}, which no object is called");
            return Err(Denial::forbidden(why));
        }
    }
    if !request.namespace.is_empty()
        && !reading.namespace.is_empty()
        && reading.namespace != request.namespace
    {
        return Err(Denial::forbidden(format!(
            "spec.resource.namespace is {:?}; a ResourceBinding refers to objects of its own namespace {:?}",
            reading.namespace, request.namespace
        )));
    }
    Ok(vec![reading])
}

/// Returns the stored and the new spec, nothing for a deletion.
fn versions<T: serde::de::DeserializeOwned + Default>(
    request: &Request<'_>,
    object: &Value,
) -> Result<Option<(Option<T>, T)>, Denial> {
    if request.operation == Operation::Delete {
        return Ok(None);
    }
    let old = request.old.map(spec).transpose()?;
    Ok(Some((old, spec(object)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Rule = fn(&Request<'_>, &Value) -> Result<Vec<Reading>, Denial>;

    /// Returns what has to be readable, as `field kind namespace/name`.
    fn check(rule: Rule, namespace: &str, old: Option<&Value>, new: &Value) -> Vec<String> {
        let operation = if old.is_some() { Operation::Update } else { Operation::Create };
        let request = Request { operation, group: "g", version: "v1", kind: "K", namespace, old };
        match rule(&request, new) {
            Ok(readings) => readings
                .iter()
                .map(|it| format!("{} {} {}/{}", it.field, it.kind, it.namespace, it.name))
                .collect(),
            Err(denial) => vec![denial.message],
        }
    }

    #[test]
    fn finding_15_the_writer_of_a_cluster_must_be_allowed_to_read_its_secrets() {
        let cluster = json!({"spec": {"syncMode": "Push", "apiEndpoint": "https://m1",
            "secretRef": {"namespace": "bank", "name": "m1"},
            "impersonatorSecretRef": {"namespace": "bank", "name": "m1-impersonator"}}});
        let both =
            ["spec.secretRef Secret bank/m1", "spec.impersonatorSecretRef Secret bank/m1-impersonator"];
        assert_eq!(check(of_cluster, "", None, &cluster), both);
        assert!(check(of_cluster, "", Some(&cluster), &cluster).is_empty());
        let mut tainted = cluster.clone();
        tainted["spec"]["region"] = "r".into();
        tainted["spec"]["proxyURL"] = "".into();
        assert!(check(of_cluster, "", Some(&cluster), &tainted).is_empty());
        // Tokens go where the address leads, so that a new address is as much as a new Secret.
        for (field, value) in [
            ("apiEndpoint", json!("https://attacker")),
            ("proxyURL", json!("http://attacker")),
            ("proxyHeader", json!({"a": "b"})),
            ("insecureSkipTLSVerification", json!(true)),
            ("secretRef", json!({"namespace": "bank", "name": "m1"})),
        ] {
            let mut moved = cluster.clone();
            moved["spec"][field] = value;
            let expected = if field == "secretRef" { 0 } else { 2 };
            assert_eq!(check(of_cluster, "", Some(&cluster), &moved).len(), expected, "{field}");
        }
        assert!(check(of_cluster, "", None, &json!({"spec": {"syncMode": "Pull"}})).is_empty());
    }

    #[test]
    fn the_writer_of_a_registry_must_be_allowed_to_read_the_secret_of_its_opensearch() {
        let registry = |address: &str, name: &str, kind: &str| {
            json!({"spec": {"targetCluster": {}, "resourceSelectors": [{"apiVersion": "v1", "kind": kind}],
                "backendStore": {"openSearch": {"addresses": [address],
                    "secretRef": {"namespace": "bank", "name": name}}}}})
        };
        let own = registry("https://search", "token", "Pod");
        let needed = ["spec.backendStore.openSearch.secretRef Secret bank/token"];
        assert_eq!(check(of_registry, "", None, &own), needed);
        let other = registry("https://search", "token", "Node");
        assert!(check(of_registry, "", Some(&own), &other).is_empty());
        for old in [
            registry("https://attacker", "token", "Pod"),
            registry("https://search", "other", "Pod"),
            json!({"spec": {"targetCluster": {}, "resourceSelectors": []}}),
        ] {
            assert_eq!(check(of_registry, "", Some(&old), &own), needed, "{old}");
        }
        let plain = json!({"spec": {"targetCluster": {}, "resourceSelectors": []}});
        assert!(check(of_registry, "", Some(&own), &plain).is_empty());
        assert!(check(of_registry, "", None, &registry("https://search", "", "Pod")).is_empty());
    }

    #[test]
    fn finding_25_the_writer_of_a_binding_must_be_allowed_to_read_its_object() {
        let binding = |namespace: &str, clusters: i32| {
            json!({"spec": {"resource": {"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": "s"},
                "clusters": [{"name": "m1", "replicas": clusters}]}})
        };
        let own = binding("shop", 1);
        assert_eq!(check(of_binding, "shop", None, &own), ["spec.resource Secret shop/s"]);
        assert!(check(of_binding, "shop", Some(&own), &binding("shop", 2)).is_empty());
        assert_eq!(
            check(of_binding, "shop", Some(&own), &binding("bank", 1)),
            [
                "spec.resource.namespace is \"bank\"; a ResourceBinding refers to objects of its own namespace \"shop\""
            ]
        );
        assert_eq!(check(of_binding, "", None, &binding("bank", 1)), ["spec.resource Secret bank/s"]);
        assert_eq!(check(of_binding, "shop", None, &binding("", 1)), ["spec.resource Secret /s"]);
    }

    #[test]
    fn finding_25_the_object_of_a_binding_is_not_named_by_a_path() {
        let binding = |namespace: &str, name: &str| {
            json!({"spec": {"resource":
                {"apiVersion": "v1", "kind": "Namespace", "namespace": namespace, "name": name}}})
        };
        for name in ["bank/secrets/token", "bank%2fsecrets%2ftoken", "bank?watch=true", "bank#", ".."] {
            for (namespace, name, field) in [("", name, "name"), (name, "s", "namespace")] {
                let refused = check(of_binding, "", None, &binding(namespace, name));
                let start = format!("spec.resource.{field} is ");
                assert!(refused.len() == 1 && refused[0].starts_with(&start), "{name}: {refused:?}");
            }
        }
        assert_eq!(check(of_binding, "", None, &binding("", "bank")), ["spec.resource Namespace /bank"]);
    }
}
