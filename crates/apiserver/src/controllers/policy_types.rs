//! Tells authors of ValidatingAdmissionPolicies which of their expressions cannot work on the kinds that they match.
//!
//! Watches: ValidatingAdmissionPolicy. Writes: `status.typeChecking` and `status.observedGeneration`, once for each generation.
//! The result does not affect whether a policy is enforced. Types are known only for the kinds that its rules name, and for at
//! most ten of them.

use std::sync::Arc;

use apimachinery::gvk::Gvk;
use apimachinery::pointer;
use cel::{Decl, Program, Type};
use serde_json::{Value, json};

use crate::admission::declarations::{Available, of_variable};
use crate::internal::Actor;
use crate::registry::{Registry, Source};
use crate::server::Server;

const POLICIES: &str = "validatingadmissionpolicies";
/// How many kinds are checked at most.
const KINDS: usize = 10;

pub(super) async fn run(server: Arc<Server>) {
    let actor =
        Actor::new(&server, "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller");
    let Ok(mut watch) = server.store.watch(POLICIES, server.store.revision()) else { return };
    let present: Vec<String> =
        server.store.snapshot(POLICIES).iter().map(|entry| entry.name.to_string()).collect();
    for name in present {
        look(&actor, &name).await;
    }
    loop {
        let Ok(batch) = watch.next().await else { return };
        for event in batch {
            if event.current.is_some() {
                look(&actor, event.name()).await;
            }
        }
    }
}

async fn look(actor: &Actor, name: &str) {
    let server = actor.server();
    let registry = server.registry.load_full();
    let Some(kind) = registry.find("admissionregistration.k8s.io", "v1", POLICIES).cloned() else { return };
    let result = actor
        .update(&kind, "", name, "status", |old| {
            let generation = old.pointer("/metadata/generation").unwrap_or(&Value::Null);
            if old.pointer("/status/observedGeneration") == Some(generation) {
                return None;
            }
            let warnings = check(&registry, &old["spec"]);
            let checking =
                if warnings.is_empty() { json!({}) } else { json!({ "expressionWarnings": warnings }) };
            let mut new = old.clone();
            let status = pointer::object_at(&mut new, "status");
            pointer::set(status, "observedGeneration", generation.clone());
            pointer::set(status, "typeChecking", checking);
            Some(new)
        })
        .await;
    if let Err(status) = result
        && status.code != 404
    {
        tracing::warn!(object = name, error = %status, "cannot tell about the types of a policy");
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or("")
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// Returns a warning for each expression that cannot work.
fn check(registry: &Registry, spec: &Value) -> Vec<Value> {
    let kinds: Vec<(Gvk, Arc<Decl>)> = kinds(registry, spec)
        .into_iter()
        .filter_map(|gvk| declared(registry, &gvk).map(|decl| (gvk, decl)))
        .collect();
    let params = spec["paramKind"].is_object().then(|| {
        let kind = &spec["paramKind"];
        declared(registry, &Gvk::from_api_version(text(kind, "apiVersion"), text(kind, "kind")))
    });
    let mut warnings = Vec::new();
    for (index, validation) in list(spec, "validations").enumerate() {
        for field in ["expression", "messageExpression"] {
            let source = text(validation, field);
            if source.is_empty() {
                continue;
            }
            let found: Vec<String> = kinds
                .iter()
                .filter_map(|(gvk, decl)| {
                    let why = wrong(source, spec, decl, params.as_ref().map(Option::as_ref))?;
                    Some(format!("{}/{}, Kind={}: {why}\n", gvk.group, gvk.version, gvk.kind))
                })
                .collect();
            if !found.is_empty() {
                let at = format!("spec.validations[{index}].{field}");
                warnings.push(json!({"fieldRef": at, "warning": found.join("\n")}));
            }
        }
    }
    warnings
}

/// Returns the kinds that the rules of a policy name without stars.
fn kinds(registry: &Registry, spec: &Value) -> Vec<Gvk> {
    let mut found: Vec<Gvk> = Vec::new();
    for rule in list(&spec["matchConstraints"], "resourceRules") {
        let words = |field: &str| -> Vec<&str> { list(rule, field).filter_map(Value::as_str).collect() };
        let (groups, versions) = (words("apiGroups"), words("apiVersions"));
        if groups.iter().chain(&versions).any(|word| word.contains('*')) {
            continue;
        }
        for group in &groups {
            for version in &versions {
                for resource in words("resources").into_iter().filter(|word| !word.contains(['*', '/'])) {
                    if let Some(kind) = registry.find(group, version, resource)
                        && !found.contains(&kind.gvk)
                        && found.len() < KINDS
                    {
                        found.push(kind.gvk.clone());
                    }
                }
            }
        }
    }
    found.sort_by(|a, b| (&a.group, &a.version, &a.kind).cmp(&(&b.group, &b.version, &b.kind)));
    found
}

/// Returns the known types of a kind's objects.
fn declared(registry: &Registry, gvk: &Gvk) -> Option<Arc<Decl>> {
    let kind = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind)?;
    if let Source::Custom(custom) = &kind.source {
        let version = custom.versions.iter().find(|version| version.name == gvk.version)?;
        return Decl::of_schema(&version.document, true, &gvk.kind, &|_| None);
    }
    let path = if gvk.group.is_empty() { "api/v1".to_owned() } else { format!("apis/{}", gvk.api_version()) };
    let document: Value = serde_json::from_slice(&native::openapi::v3(&path)?).ok()?;
    let schemas = document.pointer("/components/schemas")?.as_object()?;
    let schema = schemas.values().find(|schema| {
        list(schema, "x-kubernetes-group-version-kind").any(|known| {
            text(known, "group") == gvk.group
                && text(known, "version") == gvk.version
                && text(known, "kind") == gvk.kind
        })
    })?;
    let resolve = |reference: &str| schemas.get(reference.rsplit('/').next()?).cloned();
    Decl::of_schema(schema, true, &gvk.kind, &resolve)
}

/// Returns why an expression cannot work on objects of one type. `params` is given for policies with parameters.
fn wrong(
    source: &str,
    spec: &Value,
    object: &Arc<Decl>,
    params: Option<Option<&Arc<Decl>>>,
) -> Option<String> {
    let judge = |source: &str, variables: &[(String, Type)]| {
        let available = Available {
            params: params.is_some(),
            authorizer: true,
            variables: Some(variables),
            ..Available::default()
        };
        let mut scope = available.scope().declare("object", object).declare("oldObject", object);
        if let Some(Some(params)) = params {
            scope = scope.declare("params", params);
        }
        let compiled = Program::compile_in(source, &scope).map_err(|error| error.report(source));
        compiled.map(|program| program.ty().clone())
    };
    // Each variable may use earlier ones. A variable that cannot work may have any type.
    let mut variables: Vec<(String, Type)> = Vec::new();
    for variable in list(spec, "variables") {
        let ty = judge(text(variable, "expression"), &variables).unwrap_or(Type::Dyn);
        variables.push((text(variable, "name").to_owned(), of_variable(&ty)));
    }
    judge(source, &variables).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Arc<Decl> {
        let registry = Registry::natives();
        declared(&registry, &Gvk::new("apps", "v1", "Deployment")).expect("a kind that is served")
    }

    #[test]
    fn an_expression_that_cannot_work_on_a_kind_gets_a_warning() {
        let spec = json!({"variables": [{"name": "n", "expression": "object.spec.replicas"}]});
        let object = deployment();
        assert_eq!(wrong("object.spec.replicas > 1", &spec, &object, None), None);
        assert_eq!(
            wrong("object.spec.template.spec.containers.all(c, c.image != '')", &spec, &object, None),
            None
        );
        let found = wrong("object.spec.replicas > '1'", &spec, &object, None).unwrap();
        assert!(found.contains("found no matching overload for '_>_' applied to '(int, string)'"), "{found}");
        let found = wrong("variables.n == 'x'", &spec, &object, None).unwrap();
        assert!(
            found.contains("found no matching overload for '_==_' applied to '(int, string)'"),
            "{found}"
        );
    }
}
