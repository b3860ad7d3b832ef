//! ValidatingAdmissionPolicies: rules in the Common Expression Language, bound to resources by their bindings.
//!
//! In: a write, the policies and bindings as stored at this moment. Out: a refusal, warnings, or notes for the audit
//! log, as the binding says, in kube-apiserver's words. Does not check the types of expressions beforehand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::selector::LabelSelector;
use apimachinery::status::{Cause, Status};
use arc_swap::ArcSwap;
use cel::{EvalError, Lazy, Value as Cel, Variables};
use serde_json::{Value, json};

use super::expressions::{self, Conditions, Expression, Rights};
use super::webhooks::{Match, Occasion, Rule, find_rule, is_exempt, match_namespace, match_object, selector};
use crate::object;
use crate::server::Server;

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
/// What all expressions of one policy may cost for one write.
pub(super) const BUDGET: u64 = 10_000_000;

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
    bound: Vec<(Arc<Policy>, Binding)>,
}

struct Policy {
    name: String,
    constraints: Constraints,
    params: Option<(String, String)>,
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

pub(super) struct Binding {
    pub(super) name: String,
    pub(super) constraints: Option<Constraints>,
    pub(super) param_ref: Value,
    actions: Vec<String>,
}

impl Binding {
    pub(super) fn read(name: &str, spec: &Value) -> Self {
        Self {
            name: name.to_owned(),
            constraints: spec["matchResources"]
                .is_object()
                .then(|| Constraints::read(&spec["matchResources"])),
            param_ref: spec["paramRef"].clone(),
            actions: list(spec, "validationActions").filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

/// Which writes are meant: `matchConstraints` and `matchResources`.
pub(super) struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
}

pub(super) fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or("").to_owned()
}

pub(super) fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

impl Constraints {
    pub(super) fn read(value: &Value) -> Self {
        Self {
            rules: list(value, "resourceRules").map(Rule::read).collect(),
            excluded: list(value, "excludeResourceRules").map(Rule::read).collect(),
            equivalent: value["matchPolicy"] != "Exact",
            namespaces: selector(&value["namespaceSelector"]),
            objects: selector(&value["objectSelector"]),
        }
    }

    pub(super) fn find(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Option<Match>, Status> {
        if !match_namespace(&self.namespaces, occasion, object)? || !match_object(&self.objects, object, old)?
        {
            return Ok(None);
        }
        if find_rule(&self.excluded, self.equivalent, occasion).is_some() {
            return Ok(None);
        }
        // A binding without rules takes all that its policy takes.
        if self.rules.is_empty() {
            return Ok(Some(Match::own(occasion)));
        }
        Ok(find_rule(&self.rules, self.equivalent, occasion))
    }
}

impl Policy {
    fn read(name: &str, policy: &Value) -> Self {
        let spec = &policy["spec"];
        let scope = expressions::scope().typed("params", cel::Type::Dyn);
        let (variables, scope) = Expression::read_variables(&spec["variables"], &scope);
        let expression = |source: &str| Expression::read(source, &scope);
        let messages = expressions::message_scope().typed("params", cel::Type::Dyn);
        let messages = expressions::with_types_of(messages, &variables);
        Self {
            name: name.to_owned(),
            constraints: Constraints::read(&spec["matchConstraints"]),
            params: spec["paramKind"]
                .is_object()
                .then(|| (text(&spec["paramKind"], "apiVersion"), text(&spec["paramKind"], "kind"))),
            conditions: Conditions::read(&spec["matchConditions"]),
            variables,
            validations: list(spec, "validations")
                .map(|entry| Validation {
                    expression: expression(&text(entry, "expression")),
                    message: text(entry, "message").trim().to_owned(),
                    message_expression: Some(text(entry, "messageExpression"))
                        .filter(|source| !source.is_empty())
                        .map(|source| Expression::read(&source, &messages)),
                    reason: text(entry, "reason"),
                })
                .collect(),
            annotations: list(spec, "auditAnnotations")
                .map(|entry| (text(entry, "key"), expression(&text(entry, "valueExpression"))))
                .collect(),
            ignore_failure: spec["failurePolicy"] == "Ignore",
        }
    }
}

/// Something that a policy has to say against a write.
struct Objection {
    message: String,
    reason: String,
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
        let read: BTreeMap<String, Arc<Policy>> = policies
            .iter()
            .filter_map(|entry| {
                let policy: Value = serde_json::from_slice(&entry.value).ok()?;
                Some((entry.name.to_string(), Arc::new(Policy::read(&entry.name, &policy))))
            })
            .collect();
        for entry in bindings.iter() {
            let Ok(binding) = serde_json::from_slice::<Value>(&entry.value) else { continue };
            let spec = &binding["spec"];
            let Some(policy) = read.get(&text(spec, "policyName")) else { continue };
            let bound = Binding::read(&entry.name, spec);
            next.bound.push((policy.clone(), bound));
        }
        let next = Arc::new(next);
        self.0.store(next.clone());
        next
    }

    /// Asks all bound policies about a write.
    pub fn validate(
        &self,
        occasion: &Occasion<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let parsed = self.parsed(occasion.server);
        if parsed.bound.is_empty() || is_exempt(occasion.kind) {
            return Ok(());
        }
        for (policy, binding) in &parsed.bound {
            let Some(found) = policy.constraints.find(occasion, object, old)? else { continue };
            if let Some(narrower) = &binding.constraints
                && narrower.find(occasion, object, old)?.is_none()
            {
                continue;
            }
            // The other version of an object is shown as the client sent it: conversions of policies' matches are not made.
            let mut objections = Vec::new();
            match params(occasion, policy.params.as_ref(), &binding.param_ref) {
                Ok(all) => {
                    for params in all {
                        run(policy, occasion, &found, object, old, params, &mut objections);
                    }
                }
                Err(why) if !policy.ignore_failure => {
                    objections.push(Objection { message: why, reason: String::new() });
                }
                Err(_) => {}
            }
            for objection in objections {
                act(policy, binding, occasion, objection)?;
            }
        }
        Ok(())
    }
}

/// Does with an objection what the binding says.
fn act(
    policy: &Policy,
    binding: &Binding,
    occasion: &Occasion<'_>,
    objection: Objection,
) -> Result<(), Status> {
    let (name, bound) = (&policy.name, &binding.name);
    let says = |action: &str| binding.actions.iter().any(|known| known == action);
    if says("Audit") {
        let note = json!([{"message": objection.message, "policy": name, "binding": bound, "expressionIndex": 0,
            "validationActions": binding.actions}]);
        occasion.context.annotate("validation.policy.admission.k8s.io/validation_failure", note.to_string());
    }
    if says("Warn") {
        occasion.context.warn(format!(
            "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {}",
            objection.message
        ));
    }
    if !says("Deny") {
        return Ok(());
    }
    let message = format!(
        "ValidatingAdmissionPolicy '{name}' with binding '{bound}' denied request: {}",
        objection.message
    );
    let mut status = Status::forbidden(&occasion.kind.resource, occasion.name, &message);
    let reason = if objection.reason.is_empty() { "Invalid" } else { &objection.reason };
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
    Err(status)
}

fn run(
    policy: &Policy,
    occasion: &Occasion<'_>,
    found: &Match,
    object: Option<&Value>,
    old: Option<&Value>,
    params: Cel,
    objections: &mut Vec<Objection>,
) {
    let rights = Rights { server: occasion.server, user: &occasion.context.user };
    let fail = |why: String, objections: &mut Vec<Objection>| {
        if !policy.ignore_failure {
            objections.push(Objection { message: why, reason: String::new() });
        }
    };
    let base = || expressions::variables(occasion, found, object, old, &rights).set("params", params.clone());
    if !policy.conditions.is_empty() {
        match policy.conditions.hold(&base()) {
            Ok(true) => {}
            Ok(false) => return,
            Err(why) => return fail(why, objections),
        }
    }
    let computed = Computed { variables: &policy.variables, base: &base, known: RefCell::default() };
    let variables = base().set_lazy("variables", &computed);
    let mut budget = BUDGET;
    for validation in &policy.validations {
        match validation.expression.eval(&variables, &mut budget) {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let made = validation.message_expression.as_ref().and_then(|expression| {
                    match expression.eval(&variables, &mut budget) {
                        Ok(Cel::String(text)) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
                        _ => None,
                    }
                });
                let message = made.unwrap_or_else(|| {
                    if validation.message.is_empty() {
                        format!("failed expression: {}", validation.expression.source.trim())
                    } else {
                        validation.message.clone()
                    }
                });
                objections.push(Objection { message, reason: validation.reason.clone() });
            }
            Err(why) => fail(why, objections),
        }
    }
    for (key, expression) in &policy.annotations {
        match expression.eval(&variables, &mut budget) {
            Ok(Cel::String(text)) => {
                occasion.context.annotate(&format!("{}/{key}", policy.name), text.to_string())
            }
            Ok(_) => {}
            Err(why) => fail(why, objections),
        }
    }
}

/// The `variables` of a policy: each is computed once, when it is first used, and may use those before it.
pub(super) struct Computed<'a> {
    pub(super) variables: &'a [(String, Expression)],
    pub(super) base: &'a dyn Fn() -> Variables<'a>,
    pub(super) known: RefCell<BTreeMap<String, Result<Cel, EvalError>>>,
}

impl Lazy for Computed<'_> {
    fn field(&self, name: &str, budget: &mut u64) -> Option<Result<Cel, EvalError>> {
        if let Some(known) = self.known.borrow().get(name) {
            return Some(known.clone());
        }
        let (_, expression) = self.variables.iter().find(|(known, _)| known == name)?;
        // A variable that asks for itself finds this, not an endless loop.
        let circle = Err(EvalError(format!("variable {name} uses itself")));
        self.known.borrow_mut().insert(name.to_owned(), circle);
        let variables = (self.base)().set_lazy("variables", self);
        let value = expression.eval(&variables, budget).map_err(EvalError);
        self.known.borrow_mut().insert(name.to_owned(), value.clone());
        Some(value)
    }
}

/// Returns the parameters that a binding names: one value per object, or null for a policy without.
pub(super) fn params(
    occasion: &Occasion<'_>,
    kind: Option<&(String, String)>,
    reference: &Value,
) -> Result<Vec<Cel>, String> {
    let Some((api_version, kind_name)) = kind else { return Ok(vec![Cel::Null]) };
    if !reference.is_object() {
        return Ok(vec![Cel::Null]);
    }
    let server = occasion.server;
    let registry = server.registry.load();
    let gvk = apimachinery::gvk::Gvk::from_api_version(api_version, kind_name);
    let Some(kind) = registry.find_kind(&gvk.group, &gvk.version, &gvk.kind) else {
        return Err(format!(
            "failed to configure policy: failed to find resource referenced by paramKind: '{api_version}, Kind={kind_name}'"
        ));
    };
    let namespace = if kind.namespaced {
        let given = text(reference, "namespace");
        let found = if given.is_empty() { occasion.namespace.to_owned() } else { given };
        if found.is_empty() {
            return Err("failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned());
        }
        found
    } else {
        String::new()
    };
    let name = text(reference, "name");
    let found: Vec<Cel> = if name.is_empty() {
        let wanted =
            selector(&reference["selector"]).map_err(|why| format!("failed to configure binding: {why}"))?;
        let snapshot = server.store.snapshot(&kind.collection);
        let chosen = snapshot.iter().filter(|entry| {
            object::split_key(&entry.name).0 == namespace && wanted.matches(&entry.head.labels[..])
        });
        chosen.map(|entry| cel::from_json(&server.read(kind, entry))).collect()
    } else {
        let entry = server.store.get(&kind.collection, &object::join_key(&namespace, &name));
        entry.iter().map(|entry| cel::from_json(&server.read(kind, entry))).collect()
    };
    if !found.is_empty() {
        return Ok(found);
    }
    match reference["parameterNotFoundAction"].as_str() {
        Some("Allow") => Ok(Vec::new()),
        _ => Err("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()),
    }
}
