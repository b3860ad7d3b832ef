//! MutatingAdmissionPolicies: changes in the Common Expression Language, bound to resources by their bindings.
//!
//! In: a write, the policies and bindings as stored at this moment. Out: the changed object, or a refusal in kube-apiserver's
//! words. A change is a configuration that is merged as an applied one is (but belongs to nobody), or a JSON patch. Policies run
//! before webhooks and, like those, once more if something changes after them and they ask for it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::apply::typed::{self, Duplicates};
use apimachinery::apply::{List, Topology, TypeSchema};
use apimachinery::status::{Cause, Status};
use apimachinery::structural::SchemaType;
use arc_swap::ArcSwap;
use cel::Value as Cel;
use serde_json::{Value, json};

use super::expressions::{self, Conditions, Expression, Rights};
use super::policies::{BUDGET, Binding, Computed, Constraints, list, params, text};
use super::webhooks::{Match, Occasion, Rounds, is_exempt};
use crate::handlers::decode;
use crate::registry::Source;
use crate::server::Server;

const POLICIES: &str = "mutatingadmissionpolicies";
const BINDINGS: &str = "mutatingadmissionpolicybindings";

/// The policies and their bindings, parsed when they change.
#[derive(Default)]
pub struct Mutations(ArcSwap<Parsed>);

impl std::fmt::Debug for Mutations {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Mutations { .. }")
    }
}

#[derive(Default)]
struct Parsed {
    revisions: Vec<u64>,
    bound: Vec<(Arc<Policy>, Binding)>,
}

struct Policy {
    name: String,
    constraints: Constraints,
    params: Option<(String, String)>,
    conditions: Conditions,
    variables: Vec<(String, Expression)>,
    mutations: Vec<Mutation>,
    ignore_failure: bool,
    reinvoke: bool,
}

enum Mutation {
    Apply(Expression),
    Patch(Expression),
}

impl Policy {
    fn read(name: &str, policy: &Value) -> Self {
        let spec = &policy["spec"];
        let scope = expressions::scope().typed("params", cel::Type::Dyn).making_objects();
        let (variables, scope) = Expression::read_variables(&spec["variables"], &scope);
        Self {
            name: name.to_owned(),
            constraints: Constraints::read(&spec["matchConstraints"]),
            params: spec["paramKind"]
                .is_object()
                .then(|| (text(&spec["paramKind"], "apiVersion"), text(&spec["paramKind"], "kind"))),
            conditions: Conditions::read(&spec["matchConditions"]),
            variables,
            mutations: list(spec, "mutations")
                .map(|mutation| {
                    let expression =
                        |field: &str| Expression::read(&text(&mutation[field], "expression"), &scope);
                    if mutation["patchType"] == "JSONPatch" {
                        Mutation::Patch(expression("jsonPatch"))
                    } else {
                        Mutation::Apply(expression("applyConfiguration"))
                    }
                })
                .collect(),
            ignore_failure: spec["failurePolicy"] == "Ignore",
            reinvoke: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }
}

impl Mutations {
    fn parsed(&self, server: &Server) -> Arc<Parsed> {
        let (policies, bindings) = (server.store.snapshot(POLICIES), server.store.snapshot(BINDINGS));
        let known = self.0.load();
        let revisions = || policies.iter().chain(bindings.iter()).map(|entry| entry.modified);
        if revisions().eq(known.revisions.iter().copied()) {
            return known.clone();
        }
        let mut next = Parsed { revisions: revisions().collect(), bound: Vec::new() };
        for entry in policies.iter() {
            let Ok(policy) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let policy = Arc::new(Policy::read(&entry.name, &policy));
            for entry in bindings.iter() {
                let Ok(binding) = serde_json::from_slice::<Value>(&entry.value) else { continue };
                if text(&binding["spec"], "policyName") == policy.name {
                    next.bound.push((policy.clone(), Binding::read(&entry.name, &binding["spec"])));
                }
            }
        }
        let next = Arc::new(next);
        self.0.store(next.clone());
        next
    }

    /// Lets all bound policies change an object.
    pub fn mutate(
        &self,
        occasion: &Occasion<'_>,
        object: &mut Value,
        old: Option<&Value>,
        rounds: &mut Rounds,
    ) -> Result<(), Status> {
        let parsed = self.parsed(occasion.server);
        if parsed.bound.is_empty() || is_exempt(occasion.kind) {
            return Ok(());
        }
        rounds.before_policies(object);
        let mut refusals = Vec::new();
        for (policy, binding) in &parsed.bound {
            let mut refuse = |why: String, reason: &'static str| {
                if !policy.ignore_failure {
                    let message = format!(
                        "policy '{}' with binding '{}' denied request: {why}",
                        policy.name, binding.name
                    );
                    refusals.push((message, reason));
                }
            };
            let Some(found) = policy.constraints.find(occasion, Some(object), old)? else { continue };
            if let Some(narrower) = &binding.constraints
                && narrower.find(occasion, Some(object), old)?.is_none()
            {
                continue;
            }
            let all = match params(occasion, policy.params.as_ref(), &binding.param_ref) {
                Ok(all) => all,
                Err(why) => {
                    refuse(why, "");
                    continue;
                }
            };
            for (index, params) in all.into_iter().enumerate() {
                let key = format!("{}/{}/{index}", policy.name, binding.name);
                let before = object.clone();
                let due = rounds.policy_is_due(&key);
                match run(policy, occasion, &found, object, old, &params, due)? {
                    Ran::Not => continue,
                    Ran::Through(problems) => {
                        problems.into_iter().for_each(|why| refuse(why, "Invalid"));
                    }
                }
                if *object != before {
                    rounds.policy_changed();
                }
                if policy.reinvoke {
                    rounds.policy_called(key);
                }
            }
        }
        rounds.after_policies(object);
        match refusals.split_first() {
            None => Ok(()),
            Some(((message, reason), _)) => {
                let mut status = Status::forbidden(&occasion.kind.resource, occasion.name, "");
                status.message.clone_from(message);
                if !reason.is_empty() {
                    (*reason).clone_into(&mut status.reason);
                }
                if let Some(details) = &mut status.details {
                    let causes = refusals.iter();
                    details.causes.extend(
                        causes.map(|(message, _)| Cause { message: message.clone(), ..Cause::default() }),
                    );
                }
                Err(status)
            }
        }
    }
}

/// What came of a policy.
enum Ran {
    /// Its conditions do not hold, or it is not its turn.
    Not,
    /// With what went wrong.
    Through(Vec<String>),
}

fn run(
    policy: &Policy,
    occasion: &Occasion<'_>,
    found: &Match,
    object: &mut Value,
    old: Option<&Value>,
    params: &Cel,
    due: bool,
) -> Result<Ran, Status> {
    let rights = Rights { server: occasion.server, user: &occasion.context.user };
    if !policy.conditions.is_empty() {
        let variables =
            expressions::variables(occasion, found, Some(object), old, &rights).set("params", params.clone());
        match policy.conditions.hold(&variables) {
            Ok(true) => {}
            Ok(false) => return Ok(Ran::Not),
            Err(why) => return Ok(Ran::Through(vec![why])),
        }
    }
    if !due {
        return Ok(Ran::Not);
    }
    let mut problems = Vec::new();
    for mutation in &policy.mutations {
        let changed = {
            let shown: &Value = object;
            let base = || {
                expressions::variables(occasion, found, Some(shown), old, &rights)
                    .set("params", params.clone())
            };
            let computed =
                Computed { variables: &policy.variables, base: &base, known: RefCell::new(BTreeMap::new()) };
            let variables = base().set_lazy("variables", &computed);
            let mut budget = BUDGET;
            let (expression, is_patch) = match mutation {
                Mutation::Apply(expression) => (expression, false),
                Mutation::Patch(expression) => (expression, true),
            };
            expression.eval(&variables, &mut budget).and_then(|value| {
                if is_patch { patched(shown, &value) } else { merged(occasion, shown, &value) }
            })
        };
        match changed {
            Ok(mut changed) => {
                decode::canonicalise(occasion.kind, occasion.gvk, &mut changed).map_err(Status::internal)?;
                crate::apply::keep_readable(occasion.context, object, &mut changed);
                *object = changed;
            }
            Err(why) => problems.push(why),
        }
    }
    Ok(Ran::Through(problems))
}

/// Merges a configuration that an expression made.
fn merged(occasion: &Occasion<'_>, object: &Value, made: &Cel) -> Result<Value, String> {
    let Cel::Object(configuration) = made else {
        return Err(format!(
            "unsupported return type from ApplyConfiguration expression: {}",
            made.type_name()
        ));
    };
    let misplaced = configuration.misplaced();
    if !misplaced.is_empty() {
        return Err(format!("type mismatch: {}", misplaced.join("\n")));
    }
    let mut applied = cel::to_json(made)?;
    applied["apiVersion"] = object["apiVersion"].clone();
    applied["kind"] = object["kind"].clone();
    let failed = |why: String| format!("error applying patch: {why}");
    match &occasion.kind.source {
        Source::Custom(custom) if *occasion.gvk == occasion.kind.gvk => {
            let version = custom.versions.iter().find(|version| version.name == occasion.gvk.version);
            let version = version.ok_or_else(|| failed("its version is not served".to_owned()))?;
            merge(&SchemaType::root(version.schema.clone()), object, &applied).map_err(failed)
        }
        _ => {
            let schema = native::merge::schema(occasion.gvk);
            let schema = schema.ok_or_else(|| failed("its kind has no schema".to_owned()))?;
            merge(&schema, object, &applied).map_err(failed)
        }
    }
}

fn merge<S: TypeSchema>(schema: &S, object: &Value, applied: &Value) -> Result<Value, String> {
    typed::validate(schema, applied, Duplicates::Refused)
        .map_err(|error| format!("failed to convert patch object to typed object: {error}"))?;
    let mut found = Vec::new();
    atomics(schema, applied, "", &mut found);
    if !found.is_empty() {
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            found.join(", ")
        ));
    }
    typed::merge(schema, object, applied).map_err(|error| format!("failed to merge patch: {error}"))
}

/// Finds what can only be replaced as a whole.
fn atomics<S: TypeSchema>(schema: &S, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let Some(topology) = schema.map() else { return };
            if topology == Topology::Atomic {
                found.push(path.to_owned());
            }
            for (name, value) in fields {
                // Entries of maps have no declared field, and are not looked into.
                if let Some(member) = schema.member(name).filter(|member| member.declared) {
                    atomics(&member.schema, value, &format!("{path}.{name}"), found);
                }
            }
        }
        Value::Array(items) => {
            let element = match schema.list() {
                None => return,
                Some(List::Atomic(element)) => {
                    found.push(path.to_owned());
                    element
                }
                Some(List::Set(element) | List::Map { element, .. }) => Some(element),
            };
            let Some(element) = element else { return };
            for (index, item) in items.iter().enumerate() {
                atomics(&element, item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

/// Applies the operations that an expression made. A test that fails means that nothing is to be done.
fn patched(object: &Value, made: &Cel) -> Result<Value, String> {
    let Cel::List(operations) = made else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut patch = Vec::new();
    for operation in operations.iter() {
        let Cel::Object(operation) = operation else {
            return Err(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned()
            );
        };
        let mut document = json!({"op": "", "path": ""});
        for (name, value) in &operation.fields {
            if let Cel::Object(value) = value {
                let misplaced = value.misplaced();
                if !misplaced.is_empty() {
                    return Err(format!("type mismatch: {}", misplaced.join("\n")));
                }
            }
            document[name] = cel::to_json(value)?;
        }
        patch.push(document);
    }
    match apimachinery::patch::json::apply(object, &Value::Array(patch)) {
        Ok(changed) => Ok(changed),
        Err(error) if error.to_string().ends_with("test failed") => Ok(object.clone()),
        Err(error) => Err(format!("JSON Patch: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(source: &str) -> Cel {
        let program = cel::Program::compile_mutation(source, &[]).unwrap();
        program.eval(&cel::Variables::new(), &mut cel::PER_CALL.clone()).unwrap()
    }

    #[test]
    fn operations_change_an_object_unless_a_test_fails() {
        let object = json!({"metadata": {"labels": {"a": "1"}}});
        let changed = patched(
            &object,
            &value(
                "[JSONPatch{op: 'test', path: '/metadata/labels/a', value: '1'}, JSONPatch{op: 'add', path: '/metadata/labels/b', value: '2'}]",
            ),
        );
        assert_eq!(changed.unwrap()["metadata"]["labels"], json!({"a": "1", "b": "2"}));
        let tested = "[JSONPatch{op: 'test', path: '/metadata/labels/a', value: '9'}, JSONPatch{op: 'remove', path: '/metadata'}]";
        assert_eq!(patched(&object, &value(tested)).unwrap(), object);
    }

    #[test]
    fn configurations_merge_as_applied_ones_do() {
        let pod = apimachinery::gvk::Gvk::new("", "v1", "Pod");
        let schema = native::merge::schema(&pod).unwrap();
        let object =
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": "1"}]}});
        let applied = cel::to_json(&value(
            "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'b', image: '2'}]}}",
        ));
        let result = merge(&schema, &object, &applied.unwrap()).unwrap();
        assert_eq!(result["spec"]["containers"].as_array().unwrap().len(), 2);
        let atomic = json!({"spec": {"nodeSelector": {"a": "b"}}});
        assert!(merge(&schema, &object, &atomic).unwrap_err().contains("may not mutate atomic"));
    }
}
