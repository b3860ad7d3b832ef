//! Expressions in admission: the variables they see, and conditions that decide whether a webhook or policy applies.

use apimachinery::status::Status;
use cel::{Authorizer, Program, Question, Scope, Type, Value as Cel, Variables};
use serde_json::Value;

use super::declarations::{Available, compile, of_variable};
use super::webhooks::{Match, Occasion, Resource, Seen, request_namespace, review_request};
use crate::auth::User;
use crate::auth::rbac::Attributes;
use crate::auth::user::AUTHENTICATED;

/// The CEL cost that the conditions of one webhook or policy may have together.
const CONDITIONS_BUDGET: u64 = 2_500_000;

/// The error of the expression that exceeded the budget of those evaluated together.
pub(crate) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// An expression, or the reason why it does not compile.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    program: Result<Program, String>,
}

impl Expression {
    pub(crate) fn read(source: &str, scope: &Scope) -> Self {
        Self { source: source.to_owned(), program: compile(source, scope) }
    }

    /// Reads the variables of a policy: each may use earlier ones. Returns them, and the declarations for the expressions after
    /// them.
    pub(crate) fn read_variables(
        variables: &Value,
        available: Available<'_>,
    ) -> (Vec<(String, Self)>, Scope) {
        let (mut read, mut types) = (Vec::new(), Vec::new());
        for variable in variables.as_array().into_iter().flatten() {
            let text = |field: &str| variable[field].as_str().unwrap_or("").to_owned();
            let scope = Available { variables: Some(&types), ..available }.scope();
            let expression = Self::read(&text("expression"), &scope);
            let ty = expression.program.as_ref().map_or(Type::Dyn, |program| of_variable(program.ty()));
            types.retain(|(known, _)| *known != text("name"));
            types.push((text("name"), ty));
            read.push((text("name"), expression));
        }
        let scope = Available { variables: Some(&types), ..available }.scope();
        (read, scope)
    }

    pub(crate) fn eval(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Cel, String> {
        self.value(variables, budget).map_err(|why| {
            if why == OUT_OF_BUDGET || self.program.is_err() {
                why
            } else {
                format!("expression '{}' resulted in error: {why}", self.source)
            }
        })
    }

    /// As [`Expression::eval`], but returns the plain error of the language.
    pub(crate) fn value(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Cel, String> {
        let program = self.program.as_ref().map_err(|why| format!("compilation error: {why}"))?;
        let done = program.run(variables, cel::PER_CALL);
        let Some(left) = budget.checked_sub(done.cost) else {
            *budget = 0;
            return Err(OUT_OF_BUDGET.to_owned());
        };
        *budget = left;
        done.result.map_err(|error| error.0)
    }
}

/// The `matchConditions` of a webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Expression>);

impl Conditions {
    pub(crate) fn read(conditions: &Value) -> Self {
        let list = conditions.as_array().into_iter().flatten();
        // The conditions of a policy may use its parameters. A webhook has none; its conditions were checked for that.
        let scope = Available { params: true, authorizer: true, ..Available::default() }.scope();
        let read =
            |condition: &Value| Expression::read(condition["expression"].as_str().unwrap_or(""), &scope);
        Self(list.map(read).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all conditions hold. A condition that is false counts more than one that fails.
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

/// What the expressions of one webhook or policy see of a write.
pub(crate) struct Sight<'a> {
    rights: Rights<'a>,
    object: Cel,
    old: Cel,
    request: Cel,
    /// Conditions see the resource that the client used, in whichever version they see the object.
    request_of_conditions: Cel,
    namespace: Cel,
}

impl<'a> Sight<'a> {
    pub(crate) fn new(occasion: &'a Occasion<'_>, seen: &Seen<'_>) -> Self {
        let value = |object: Option<&Value>| object.map_or(Cel::Null, cel::from_json);
        let own = Resource::of(occasion.kind);
        let request = cel::from_json(&review_request(occasion, &seen.found));
        let request_of_conditions = if own == seen.found.resource {
            request.clone()
        } else {
            cel::from_json(&review_request(occasion, &Match { resource: own, ..seen.found.clone() }))
        };
        Self {
            rights: Rights { occasion },
            object: value(seen.object.as_deref()),
            old: value(seen.old.as_deref()),
            request,
            request_of_conditions,
            namespace: namespace(occasion),
        }
    }

    /// The variables of conditions, which do not include the namespace.
    pub(crate) fn of_conditions(&self) -> Variables<'_> {
        self.without_rights()
            .set("request", self.request_of_conditions.clone())
            .set("namespaceObject", Cel::Null)
            .with_authorizer(&self.rights)
    }

    /// The variables of all expressions that decide or change something.
    pub(crate) fn of_expressions(&self) -> Variables<'_> {
        self.without_rights().with_authorizer(&self.rights)
    }

    /// The variables of expressions that only produce text: messages and annotations.
    pub(crate) fn without_rights(&self) -> Variables<'_> {
        Variables::new()
            .set("object", self.object.clone())
            .set("oldObject", self.old.clone())
            .set("request", self.request.clone())
            .set("namespaceObject", self.namespace.clone())
    }
}

/// Returns the namespace of a write, without the fields that upstream hides from expressions.
fn namespace(occasion: &Occasion<'_>) -> Cel {
    if occasion.namespace.is_empty() {
        return Cel::Null;
    }
    let server = occasion.server;
    let registry = server.registry.load();
    let kind = registry.find("", "v1", "namespaces");
    let (Some(kind), Some(entry)) = (kind, server.store.get("namespaces", occasion.namespace)) else {
        return Cel::Null;
    };
    let Some(mut namespace) = server.read_or_warn(kind, &entry) else { return Cel::Null };
    if let Some(fields) = namespace.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    if let Some(metadata) = namespace.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("ownerReferences");
    }
    cel::from_json(&namespace)
}

/// Answers questions about the rights of the requester.
struct Rights<'a> {
    occasion: &'a Occasion<'a>,
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
        let account = question.account.as_ref().map(|(namespace, name)| {
            let mut account = User::for_service_account(namespace, name, "");
            // This user has not been authenticated.
            account.groups.retain(|group| group != AUTHENTICATED);
            account
        });
        let (server, own) = (self.occasion.server, &self.occasion.context.user);
        let user = account.as_ref().unwrap_or(own);
        let allowed = server.rbac.check(&server.store, user, &attributes).is_ok();
        let reason = if allowed { server.rbac.reason(user, &attributes) } else { String::new() };
        (allowed, reason)
    }

    fn request(&self) -> Question {
        let occasion = self.occasion;
        Question {
            group: occasion.kind.gvk.group.clone(),
            resource: occasion.kind.resource.resource.clone(),
            subresource: occasion.subresource.to_owned(),
            namespace: request_namespace(occasion).to_owned(),
            name: occasion.name.to_owned(),
            ..Question::default()
        }
    }
}

/// The refusal of a write because a condition could not be evaluated.
pub(crate) fn refused(occasion: &Occasion<'_>, why: &str) -> Status {
    Status::forbidden(&occasion.kind.resource, occasion.name, why)
}
