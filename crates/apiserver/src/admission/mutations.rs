//! MutatingAdmissionPolicies: changes in the Common Expression Language, bound to resources by their bindings.
//!
//! In: a write, and the policies and bindings as stored at this moment. Out: the changed object, or a refusal in kube-apiserver's
//! words. A change is a JSON patch, or a configuration that is merged like an applied one, but without an owner. Policies run
//! before webhooks. Like webhooks, they run once more if they ask for it and the object changes after them.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::pointer;
use apimachinery::server_side_apply::typed::{self, Duplicates};
use apimachinery::server_side_apply::{List, Topology, TypeSchema};
use apimachinery::status::{Cause, Status};
use apimachinery::structural::SchemaType;
use arc_swap::ArcSwap;
use cel::Value as Cel;
use serde_json::{Value, json};

use super::bound::{
    BUDGET, Binding, Computed, Constraints, ParamKind, in_policy, list, params, without_type,
};
use super::declarations::Available;
use super::expressions::{Conditions, Expression, Sight};
use super::webhooks::{Match, Occasion, Rounds, Seen, convert_back, is_exempt};
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
    bound: Vec<(Policy, Vec<Binding>)>,
}

struct Policy {
    name: String,
    constraints: Constraints,
    params: Option<ParamKind>,
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
        let available = Available { params: true, authorizer: true, patches: true, ..Available::default() };
        let (variables, scope) = Expression::read_variables(&spec["variables"], available);
        Self {
            name: name.to_owned(),
            constraints: Constraints::read(&spec["matchConstraints"]),
            params: ParamKind::read(spec),
            conditions: Conditions::read(&spec["matchConditions"]),
            variables,
            mutations: list(spec, "mutations")
                .map(|mutation| {
                    let expression = |field: &str| {
                        Expression::read(&pointer::owned(&mutation[field], "/expression"), &scope)
                    };
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
            let policy = Policy::read(&entry.name, &policy);
            let bindings: Vec<Binding> = bindings
                .iter()
                .filter_map(|entry| {
                    let binding: Value = serde_json::from_slice(&entry.value).ok()?;
                    let own = pointer::text(&binding, "/spec/policyName") == policy.name;
                    own.then(|| Binding::read(&entry.name, binding.get("spec").unwrap_or(&Value::Null)))
                })
                .collect();
            if !bindings.is_empty() {
                next.bound.push((policy, bindings));
            }
        }
        let next = Arc::new(next);
        self.0.store(next.clone());
        next
    }

    /// Runs all bound policies on an object. Which ones apply is decided before the first one changes the object.
    pub async fn mutate(
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
        let mut refusals = Vec::new();
        let mut calls = Vec::new();
        for (policy, bindings) in &parsed.bound {
            choose(policy, bindings, occasion, object, old, &mut calls, &mut refusals).await;
        }
        rounds.before_policies(object);
        let mut ran = false;
        for call in calls {
            let key = format!("{}/{}/{}", call.policy.name, call.binding.name, call.index);
            let due = rounds.policy_is_due(&key);
            let Some(problems) = call.run(occasion, object, old, due, &mut ran, rounds).await? else {
                continue;
            };
            for why in problems {
                refusals.extend(call.policy.refuse(Some(call.binding), why, "Invalid"));
            }
            if call.policy.reinvoke {
                rounds.policy_called(key);
            }
        }
        // Upstream treats an object that went through a policy as changed.
        if ran {
            rounds.policy_changed();
        }
        rounds.after_policies(object);
        match refusals.first() {
            None => Ok(()),
            Some(first) => Err(first.status(occasion, &refusals)),
        }
    }
}

/// A fault that stops a write.
struct Refusal {
    message: String,
    reason: &'static str,
}

impl Refusal {
    fn status(&self, occasion: &Occasion<'_>, all: &[Self]) -> Status {
        let mut status = Status::forbidden(&occasion.kind.resource, occasion.name, "");
        status.message.clone_from(&self.message);
        if !self.reason.is_empty() {
            self.reason.clone_into(&mut status.reason);
        }
        if let Some(details) = &mut status.details {
            let causes = all.iter().map(|refusal| refusal.message.clone());
            details.causes.extend(causes.map(|message| Cause { message, ..Cause::default() }));
        }
        status
    }
}

impl Policy {
    fn refuse(&self, binding: Option<&Binding>, why: String, reason: &'static str) -> Option<Refusal> {
        let by = match binding {
            Some(binding) => format!("policy '{}' with binding '{}'", self.name, binding.name),
            None => format!("policy {:?}", self.name),
        };
        let refusal = Refusal { message: format!("{by} denied request: {why}"), reason };
        (!self.ignore_failure).then_some(refusal)
    }
}

/// One run of one policy: through which binding, with which parameters.
struct Call<'a> {
    policy: &'a Policy,
    binding: &'a Binding,
    found: Match,
    params: Cel,
    index: usize,
}

/// Returns all runs of a policy, with their parameters.
async fn choose<'a>(
    policy: &'a Policy,
    bindings: &'a [Binding],
    occasion: &Occasion<'_>,
    object: &Value,
    old: Option<&Value>,
    calls: &mut Vec<Call<'a>>,
    refusals: &mut Vec<Refusal>,
) {
    let found = match policy.constraints.find(occasion, Some(object), old) {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(why) => return refusals.extend(policy.refuse(None, in_policy(why), "")),
    };
    if let Some(kind) = &policy.params
        && let Err(why) = kind.check(occasion)
    {
        return refusals.extend(policy.refuse(None, why, ""));
    }
    for binding in bindings {
        match binding.matches(occasion, Some(object), old) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(why) => {
                refusals.extend(policy.refuse(Some(binding), why, ""));
                continue;
            }
        }
        if let Err(status) = Seen::convert(occasion, &found, Some(object), old).await {
            refusals.extend(policy.refuse(None, in_policy(status.message), ""));
            continue;
        }
        match params(occasion, policy.params.as_ref(), &binding.param_ref).await {
            Ok(all) => {
                for (index, params) in all.into_iter().enumerate() {
                    let params = cel::from_json(&without_type(occasion, policy.params.as_ref(), params));
                    calls.push(Call { policy, binding, found: found.clone(), params, index });
                }
            }
            Err(why) => refusals.extend(policy.refuse(Some(binding), why, "")),
        }
    }
}

impl Call<'_> {
    /// Changes an object. Returns what went wrong, or `None` if the policy does not apply.
    async fn run(
        &self,
        occasion: &Occasion<'_>,
        object: &mut Value,
        old: Option<&Value>,
        due: bool,
        ran: &mut bool,
        rounds: &mut Rounds,
    ) -> Result<Option<Vec<String>>, Status> {
        let policy = self.policy;
        let mut seen = Seen::convert(occasion, &self.found, Some(object), old)
            .await
            .map_err(|status| Status::internal(status.message))?;
        if !policy.conditions.is_empty() {
            let sight = Sight::new(occasion, &seen);
            match policy.conditions.hold(&sight.of_conditions().set("params", self.params.clone())) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(why) => return Ok(Some(vec![why])),
            }
        }
        if !due {
            return Ok(None);
        }
        let (mut problems, mut changed) = (Vec::new(), false);
        for mutation in &policy.mutations {
            match self.make(mutation, occasion, &seen) {
                Ok(mut made) => {
                    let kind = self.found.other.as_ref().unwrap_or(occasion.kind);
                    let unknown = decode::canonicalise(kind, &self.found.gvk, &mut made);
                    let unknown = unknown.map_err(Status::internal)?;
                    // Fields that a patch adds are read in the strictest way.
                    if matches!(mutation, Mutation::Patch(_)) && !kind.is_custom() && !unknown.is_empty() {
                        let list: Vec<String> =
                            unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
                        return Err(Status::internal(format!("strict decoding error: {}", list.join(", "))));
                    }
                    changed |= seen.object.as_deref() != Some(&made);
                    seen.object = Some(Cow::Owned(made));
                    *ran = true;
                }
                Err(why) => problems.push(why),
            }
        }
        if changed && let Some(made) = seen.object {
            let made = convert_back(occasion, &self.found, made.into_owned()).await;
            let mut made = made.map_err(|status| {
                Status::internal(format!("failed to convert object: {}", status.message))
            })?;
            crate::field_ownership::keep_readable(occasion.context, object, &mut made);
            *object = made;
            rounds.policy_changed();
        }
        Ok(Some(problems))
    }

    /// Returns the result of one mutation.
    fn make(&self, mutation: &Mutation, occasion: &Occasion<'_>, seen: &Seen<'_>) -> Result<Value, String> {
        let sight = Sight::new(occasion, seen);
        let base = || sight.of_expressions().set("params", self.params.clone());
        let computed = Computed::new(&self.policy.variables, &base);
        let variables = base().set_lazy("variables", &computed);
        let shown = seen.object.as_deref().unwrap_or(&Value::Null);
        let mut budget = BUDGET;
        match mutation {
            Mutation::Apply(expression) => {
                merged(occasion, &self.found, shown, &expression.eval(&variables, &mut budget)?)
            }
            Mutation::Patch(expression) => patched(shown, &expression.eval(&variables, &mut budget)?),
        }
    }
}

/// Merges a configuration that an expression produced.
fn merged(occasion: &Occasion<'_>, found: &Match, object: &Value, made: &Cel) -> Result<Value, String> {
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
    pointer::set(&mut applied, "apiVersion", object["apiVersion"].clone());
    pointer::set(&mut applied, "kind", object["kind"].clone());
    let failed = |why: String| format!("error applying patch: {why}");
    // Upstream finds no schema for the Scale of another kind.
    if found.gvk.kind == "Scale" {
        let kind = format!("{}, Kind=Scale", found.gvk.api_version());
        return Err(failed(format!(
            "failed to convert patch object to typed object: no corresponding type for {kind}"
        )));
    }
    match &occasion.kind.source {
        Source::Custom(custom) if *occasion.gvk == occasion.kind.gvk => {
            let version = custom.versions.iter().find(|version| version.name == found.gvk.version);
            let version = version.ok_or_else(|| failed("its version is not served".to_owned()))?;
            merge(&SchemaType::root(version.schema.clone()), object, &applied).map_err(failed)
        }
        _ => {
            let schema = native::merge::schema(&found.gvk);
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

/// Finds values that can only be replaced as a whole.
fn atomics<S: TypeSchema>(schema: &S, value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let Some(topology) = schema.map() else { return };
            if topology == Topology::Atomic {
                found.push(path.to_owned());
            }
            for (name, value) in fields {
                // Entries of maps have no declared field, and are not searched.
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

/// Applies the operations that an expression produced. If a test fails, nothing is changed.
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
            pointer::set(&mut document, name, cel::to_json(value)?);
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
