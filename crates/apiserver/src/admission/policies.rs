//! ValidatingAdmissionPolicies: rules in the Common Expression Language, bound to resources by their bindings.
//!
//! In: a write, and the policies and bindings as stored at this moment. Out: a refusal, warnings, or annotations for the audit
//! log, as the binding says, in kube-apiserver's words. All policies are evaluated. Of several refusals the first counts, by the
//! names of policy and binding (upstream evaluates in no particular order).

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::pointer;
use apimachinery::status::{Cause, Status};
use arc_swap::ArcSwap;
use cel::{Value as Cel, Variables};
use serde::Serialize;
use serde_json::Value;

pub(super) use super::bound::list;
use super::bound::{BUDGET, Binding, Computed, Constraints, ParamKind, in_binding, in_policy, params};
use super::declarations::Available;
use super::expressions::{Conditions, Expression, OUT_OF_BUDGET, Sight};
use super::webhooks::{Occasion, Seen, is_exempt};
use crate::server::Server;

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
/// The longest message that an expression may produce, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;
/// The length to which the value of an annotation is cut, in bytes.
const MAX_ANNOTATION: usize = 10 * 1024;

/// The policies and their bindings, parsed when they change.
#[derive(Default)]
pub struct Policies(ArcSwap<Parsed>);

impl std::fmt::Debug for Policies {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Policies { .. }")
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
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
    ignore_failure: bool,
}

struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

impl Policy {
    fn read(name: &str, policy: &Value) -> Self {
        let spec = &policy["spec"];
        let available = Available { params: true, authorizer: true, ..Available::default() };
        let (variables, scope) = Expression::read_variables(&spec["variables"], available);
        let expression = |source: &str| Expression::read(source, &scope);
        Self {
            name: name.to_owned(),
            constraints: Constraints::read(&spec["matchConstraints"]),
            params: ParamKind::read(spec),
            conditions: Conditions::read(&spec["matchConditions"]),
            variables,
            validations: list(spec, "validations")
                .map(|entry| Validation {
                    expression: expression(&pointer::owned(entry, "/expression")),
                    message: pointer::owned(entry, "/message").trim().to_owned(),
                    message_expression: Some(pointer::owned(entry, "/messageExpression"))
                        .filter(|source| !source.is_empty())
                        .map(|source| expression(&source)),
                    reason: pointer::owned(entry, "/reason"),
                })
                .collect(),
            annotations: list(spec, "auditAnnotations")
                .map(|entry| {
                    (pointer::owned(entry, "/key"), expression(&pointer::owned(entry, "/valueExpression")))
                })
                .collect(),
            ignore_failure: spec["failurePolicy"] == "Ignore",
        }
    }

    /// Refuses a write because the policy or a binding is faulty, whatever its validation actions are.
    fn misconfigured(&self, binding: Option<&Binding>, message: String) -> Option<Refusal> {
        let binding = binding.map(|binding| binding.name.clone());
        let refusal = Refusal { policy: self.name.clone(), binding, message, reason: String::new() };
        (!self.ignore_failure).then_some(refusal)
    }
}

impl Policies {
    fn parsed(&self, server: &Server) -> Arc<Parsed> {
        let (policies, bindings) = (server.store.snapshot(POLICIES), server.store.snapshot(BINDINGS));
        let known = self.0.load();
        let revisions = || policies.iter().chain(bindings.iter()).map(|entry| entry.modified);
        if revisions().eq(known.revisions.iter().copied()) {
            return known.clone();
        }
        let mut next = Parsed { revisions: revisions().collect(), bound: Vec::new() };
        let mut of_policy: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for entry in bindings.iter() {
            let Ok(binding) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let spec = binding.get("spec").unwrap_or(&Value::Null);
            of_policy
                .entry(pointer::owned(spec, "/policyName"))
                .or_default()
                .push(Binding::read(&entry.name, spec));
        }
        for entry in policies.iter() {
            let Ok(policy) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            if let Some(bindings) = of_policy.remove(&*entry.name) {
                next.bound.push((Policy::read(&entry.name, &policy), bindings));
            }
        }
        let next = Arc::new(next);
        self.0.store(next.clone());
        next
    }

    /// Evaluates all bound policies for a write.
    pub async fn validate(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let parsed = self.parsed(occasion.server);
        if parsed.bound.is_empty() || is_exempt(occasion.kind) {
            return Ok(());
        }
        let mut refusals = Vec::new();
        for (policy, bindings) in &parsed.bound {
            ask(policy, bindings, occasion, object, old, &mut refusals).await?;
        }
        match refusals.into_iter().next() {
            None => Ok(()),
            Some(refusal) => Err(refusal.into_status(occasion)),
        }
    }
}

/// A fault that stops a write.
struct Refusal {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

impl Refusal {
    fn into_status(self, occasion: &Occasion<'_>) -> Status {
        let by = match &self.binding {
            Some(binding) => format!("'{}' with binding '{binding}'", self.policy),
            None => format!("'{}'", self.policy),
        };
        let message = format!("ValidatingAdmissionPolicy {by} denied request: {}", self.message);
        let mut status = Status::forbidden(&occasion.kind.resource, occasion.name, &message);
        let reason = if self.reason.is_empty() { "Invalid" } else { &self.reason };
        status.code = match reason {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        reason.clone_into(&mut status.reason);
        if let Some(details) = &mut status.details {
            details.causes.push(Cause { message, ..Cause::default() });
        }
        status
    }
}

/// Evaluates one policy through all its bindings, and carries out their validation actions.
async fn ask(
    policy: &Policy,
    bindings: &[Binding],
    occasion: &Occasion<'_>,
    object: Option<&Value>,
    old: Option<&Value>,
    refusals: &mut Vec<Refusal>,
) -> Result<(), Status> {
    let found = match policy.constraints.find(occasion, object, old) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(()),
        Err(why) => {
            refusals.extend(policy.misconfigured(None, in_policy(why)));
            return Ok(());
        }
    };
    if let Some(kind) = &policy.params
        && let Err(why) = kind.check(occasion)
    {
        refusals.extend(policy.misconfigured(None, why));
        return Ok(());
    }
    let mut seen: Option<Seen<'_>> = None;
    let mut notes = Notes::default();
    for binding in bindings {
        match binding.matches(occasion, object, old) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(why) => {
                refusals.extend(policy.misconfigured(Some(binding), why));
                continue;
            }
        }
        let all = match params(occasion, policy.params.as_ref(), &binding.param_ref).await {
            Ok(all) => all,
            Err(why) => {
                refusals.extend(policy.misconfigured(Some(binding), why));
                continue;
            }
        };
        if seen.is_none() && !all.is_empty() {
            match Seen::convert(occasion, &found, object, old).await {
                Ok(converted) => seen = Some(converted),
                Err(why) => {
                    let why = format!("failed to convert object version: {}", why.message);
                    refusals.extend(policy.misconfigured(Some(binding), in_binding(why)));
                    continue;
                }
            }
        }
        let Some(seen) = &seen else { continue };
        for params in all {
            let verdict = run(policy, occasion, seen, &cel::from_json(&params));
            for (index, objection) in verdict.objections {
                let message = &objection.message;
                for action in &binding.actions {
                    match action.as_str() {
                        "Deny" => refusals.push(Refusal {
                            policy: policy.name.clone(),
                            binding: Some(binding.name.clone()),
                            message: message.clone(),
                            reason: objection.reason.clone(),
                        }),
                        "Audit" => note_failure(policy, binding, occasion, index, message),
                        "Warn" => occasion.context.warn(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                            policy.name, binding.name
                        )),
                        _ => {}
                    }
                }
            }
            for (key, value) in verdict.annotations {
                match value {
                    Ok(value) => notes.add(key, value),
                    Err(message) => refusals.push(Refusal {
                        policy: policy.name.clone(),
                        binding: Some(binding.name.clone()),
                        message,
                        reason: String::new(),
                    }),
                }
            }
        }
    }
    for (key, values) in notes.0 {
        occasion.context.annotate(&format!("{}/{key}", policy.name), values.join(", "));
    }
    Ok(())
}

/// The annotations of one policy. A value that several bindings produce appears once.
#[derive(Default)]
struct Notes(BTreeMap<String, Vec<String>>);

impl Notes {
    fn add(&mut self, key: String, mut value: String) {
        if value.len() > MAX_ANNOTATION {
            let end = (0..=MAX_ANNOTATION).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
            value.truncate(end);
        }
        let known = self.0.entry(key).or_default();
        if !known.contains(&value) {
            known.push(value);
        }
    }
}

/// A failed validation for the audit log, with the fields in upstream's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    message: &'a str,
    policy: &'a str,
    binding: &'a str,
    expression_index: usize,
    validation_actions: &'a [String],
}

fn note_failure(policy: &Policy, binding: &Binding, occasion: &Occasion<'_>, index: usize, message: &str) {
    let failure = Failure {
        message,
        policy: &policy.name,
        binding: &binding.name,
        expression_index: index,
        validation_actions: &binding.actions,
    };
    let note = serde_json::to_string(&[failure]).unwrap_or_default();
    occasion.context.annotate("validation.policy.admission.k8s.io/validation_failure", note);
}

/// A failed validation.
struct Objection {
    message: String,
    reason: String,
}

/// The result of one run of a policy.
#[derive(Default)]
struct Verdict {
    /// With the positions of the expressions that produced them.
    objections: Vec<(usize, Objection)>,
    /// Values for the audit log, or why there are none.
    annotations: Vec<(String, Result<String, String>)>,
}

impl Verdict {
    /// The policy as a whole cannot be evaluated.
    fn failed(policy: &Policy, message: String) -> Self {
        let mut verdict = Self::default();
        if !policy.ignore_failure {
            verdict.objections.push((0, Objection { message, reason: String::new() }));
        }
        verdict
    }
}

fn run(policy: &Policy, occasion: &Occasion<'_>, seen: &Seen<'_>, params: &Cel) -> Verdict {
    let sight = Sight::new(occasion, seen);
    if !policy.conditions.is_empty() {
        let variables = sight.of_conditions().set("params", params.clone());
        match policy.conditions.hold(&variables) {
            Ok(true) => {}
            Ok(false) => return Verdict::default(),
            Err(why) => return Verdict::failed(policy, why),
        }
    }
    let mut budget = BUDGET;
    let with_rights = || sight.of_expressions().set("params", params.clone());
    let computed = Computed::new(&policy.variables, &with_rights);
    let variables = with_rights().set_lazy("variables", &computed);
    let mut results = Vec::new();
    for validation in &policy.validations {
        let result = validation.expression.eval(&variables, &mut budget);
        if let Err(why) = &result
            && why == OUT_OF_BUDGET
        {
            return Verdict::failed(policy, why.clone());
        }
        results.push(result);
    }
    // Messages and annotations are computed without the authorizer, from separate variables.
    let without_rights = || sight.without_rights().set("params", params.clone());
    let messages = {
        let computed = Computed::new(&policy.variables, &without_rights);
        messages(policy, &without_rights().set_lazy("variables", &computed), &mut budget)
    };
    let mut verdict = Verdict::default();
    for (index, (validation, result)) in policy.validations.iter().zip(results).enumerate() {
        let mut object = |message: String, reason: &str| {
            verdict.objections.push((index, Objection { message, reason: reason.to_owned() }));
        };
        match (result, &messages) {
            (Err(why), _) if !policy.ignore_failure => object(why, ""),
            (Err(_), _) => {}
            (Ok(_), Err(why)) if !policy.ignore_failure => {
                object(format!("failed messageExpression: {why}"), "");
            }
            (Ok(_), Err(_)) | (Ok(Cel::Bool(true)), _) => {}
            (Ok(_), Ok(messages)) => {
                object(words(validation, messages.get(index).and_then(Option::as_deref)), &validation.reason)
            }
        }
    }
    let computed = Computed::new(&policy.variables, &without_rights);
    match annotations(policy, &without_rights().set_lazy("variables", &computed)) {
        Ok(annotations) => verdict.annotations = annotations,
        Err(why) => return Verdict::failed(policy, why),
    }
    verdict
}

/// Computes the messages of all validations, including those that hold.
fn messages(
    policy: &Policy,
    variables: &Variables<'_>,
    budget: &mut u64,
) -> Result<Vec<Option<String>>, String> {
    let mut messages = Vec::new();
    for validation in &policy.validations {
        let made = validation.message_expression.as_ref().map(|made| made.eval(variables, budget));
        messages.push(match made {
            Some(Err(why)) if why == OUT_OF_BUDGET => return Err(why),
            Some(Ok(Cel::String(text))) => Some(text.trim().to_owned()),
            _ => None,
        });
    }
    Ok(messages)
}

/// Returns the message for a validation that does not hold.
fn words(validation: &Validation, made: Option<&str>) -> String {
    let usable = |text: &&str| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
    match made.filter(usable) {
        Some(made) => made.to_owned(),
        None if !validation.message.is_empty() => validation.message.clone(),
        None => format!("failed expression: {}", validation.expression.source.trim()),
    }
}

type Annotations = Vec<(String, Result<String, String>)>;

fn annotations(policy: &Policy, variables: &Variables<'_>) -> Result<Annotations, String> {
    let mut budget = BUDGET;
    let mut made = Vec::new();
    for (key, expression) in &policy.annotations {
        match expression.eval(variables, &mut budget) {
            Ok(Cel::String(text)) if text.trim().is_empty() => {}
            Ok(Cel::String(text)) => made.push((key.clone(), Ok(text.trim().to_owned()))),
            Ok(Cel::Null) => {}
            Ok(other) => {
                let why = format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    expression.source,
                    other.type_name()
                );
                made.push((key.clone(), Err(why)));
            }
            Err(why) if why == OUT_OF_BUDGET => return Err(why),
            Err(why) if !policy.ignore_failure => made.push((key.clone(), Err(why))),
            Err(_) => {}
        }
    }
    Ok(made)
}
