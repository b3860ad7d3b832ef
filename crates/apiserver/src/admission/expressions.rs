//! Expressions in admission: the variables they see, and conditions that decide whether a webhook or policy applies.

use apimachinery::status::Status;
use cel::{Authorizer, Program, Question, Value as Cel, Variables};
use serde_json::Value;

use super::webhooks::{Match, Occasion, review_request};
use crate::auth::User;
use crate::auth::rbac::Attributes;
use crate::server::Server;

/// What the conditions of one webhook or policy may cost together.
const CONDITIONS_BUDGET: u64 = 2_500_000;

/// The error of an expression that was one too many for those evaluated together.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// What expressions may be about, besides the variables of a policy.
pub(crate) const NAMES: [&str; 7] =
    ["object", "oldObject", "request", "authorizer", "namespaceObject", "params", "variables"];

/// An expression and, if it does not compile, why.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    program: Result<Program, String>,
}

impl Expression {
    pub(crate) fn read(source: &str) -> Self {
        let program = Program::compile(source, &NAMES).map_err(|error| error.report(source));
        Self { source: source.to_owned(), program }
    }

    /// As [`Expression::read`], for expressions that make objects and patches.
    pub(crate) fn read_mutation(source: &str) -> Self {
        let program = Program::compile_mutation(source, &NAMES).map_err(|error| error.report(source));
        Self { source: source.to_owned(), program }
    }

    pub(crate) fn eval(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Cel, String> {
        let failed = |why: &str| format!("expression '{}' resulted in error: {why}", self.source);
        let program = self
            .program
            .as_ref()
            .map_err(|why| failed(&format!("compilation error: compilation failed: {why}")))?;
        let mut allowance = cel::PER_CALL;
        let result = program.eval(variables, &mut allowance);
        let Some(left) = budget.checked_sub(cel::PER_CALL - allowance) else {
            *budget = 0;
            return Err(OUT_OF_BUDGET.to_owned());
        };
        *budget = left;
        result.map_err(|error| failed(&error.0))
    }
}

/// The `matchConditions` of a webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Expression>);

impl Conditions {
    pub(crate) fn read(conditions: &Value) -> Self {
        let list = conditions.as_array().into_iter().flatten();
        Self(list.map(|condition| Expression::read(condition["expression"].as_str().unwrap_or(""))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says whether all conditions hold. One that does not hold counts more than one that fails.
    pub(crate) fn hold(&self, variables: &Variables<'_>) -> Result<bool, String> {
        let mut budget = CONDITIONS_BUDGET;
        let mut problems = Vec::new();
        for condition in &self.0 {
            match condition.eval(variables, &mut budget) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(why) if why == OUT_OF_BUDGET => return Err(why),
                Err(why) => problems.push(why),
            }
        }
        match problems.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

/// Returns what every expression about a write sees.
pub(crate) fn variables<'a>(
    occasion: &'a Occasion<'_>,
    found: &Match,
    object: Option<&Value>,
    old: Option<&Value>,
    rights: &'a Rights<'a>,
) -> Variables<'a> {
    let value = |object: Option<&Value>| object.map_or(Cel::Null, cel::from_json);
    Variables::new()
        .set("object", value(object))
        .set("oldObject", value(old))
        .set("request", cel::from_json(&review_request(occasion, found)))
        .set("namespaceObject", namespace(occasion))
        .with_authorizer(rights)
}

/// Returns the namespace of a write, as it is stored.
fn namespace(occasion: &Occasion<'_>) -> Cel {
    if occasion.namespace.is_empty() {
        return Cel::Null;
    }
    let server = occasion.server;
    let registry = server.registry.load();
    let kind = registry.find("", "v1", "namespaces");
    match (kind, server.store.get("namespaces", occasion.namespace)) {
        (Some(kind), Some(entry)) => cel::from_json(&server.read(kind, &entry)),
        _ => Cel::Null,
    }
}

/// Answers questions about the rights of whoever writes.
pub(crate) struct Rights<'a> {
    pub(crate) server: &'a Server,
    pub(crate) user: &'a User,
}

impl Authorizer for Rights<'_> {
    fn allows(&self, question: &Question) -> (bool, String) {
        let attributes = Attributes {
            verb: &question.verb,
            group: &question.group,
            version: "*",
            resource: &question.resource,
            subresource: &question.subresource,
            namespace: &question.namespace,
            name: &question.name,
            path: question.path.as_deref(),
        };
        let account =
            question.account.as_ref().map(|(namespace, name)| User::for_service_account(namespace, name, ""));
        let user = account.as_ref().unwrap_or(self.user);
        let allowed = self.server.rbac.check(&self.server.store, user, &attributes).is_ok();
        (allowed, String::new())
    }
}

/// The refusal of a write since a condition could not be evaluated.
pub(crate) fn refused(occasion: &Occasion<'_>, why: &str) -> Status {
    Status::forbidden(&occasion.kind.resource, occasion.name, why)
}
