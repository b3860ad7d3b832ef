//! Expressions in admission: the variables they see, and conditions that decide whether a webhook or policy applies.

use std::sync::Arc;

use apimachinery::status::Status;
use cel::{Authorizer, Decl, Program, Question, Scope, Type, Value as Cel, Variables};
use serde_json::Value;

use super::webhooks::{Match, Occasion, review_request};
use crate::auth::User;
use crate::auth::rbac::Attributes;
use crate::server::Server;

/// What the conditions of one webhook or policy may cost together.
const CONDITIONS_BUDGET: u64 = 2_500_000;

/// A question about what is being written, to which only the verb has to be added.
const REQUEST_RESOURCE: &str = "authorizer.requestResource";

/// The error of an expression that was one too many for those evaluated together.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Returns what expressions are told: what they may be about, and of what types that is.
pub(crate) fn scope() -> Scope {
    message_scope()
        .typed("authorizer", Type::Opaque("kubernetes.authorization.Authorizer".into()))
        .typed(REQUEST_RESOURCE, Type::Opaque("kubernetes.authorization.ResourceCheck".into()))
}

/// As [`scope`], for expressions that make messages: they cannot ask about rights.
pub(crate) fn message_scope() -> Scope {
    Scope::of_names(&["object", "oldObject"])
        .declare("request", &request())
        .declare("namespaceObject", &namespace_type())
}

/// Adds the variables of a policy, with the types that they turned out to have.
pub(crate) fn with_variables(scope: Scope, variables: &[(String, Type)]) -> Scope {
    let fields = variables.iter().map(|(name, ty)| (name.clone(), Decl::simple(ty.clone())));
    scope.declare("variables", &Decl::object("kubernetes.variables", fields))
}

/// Adds the variables of a policy, which have been read.
pub(crate) fn with_types_of(scope: Scope, variables: &[(String, Expression)]) -> Scope {
    let types: Vec<(String, Type)> =
        variables.iter().map(|(name, expression)| (name.clone(), expression.ty())).collect();
    with_variables(scope, &types)
}

fn fields<const N: usize>(name: &str, fields: [(&str, &Arc<Decl>); N]) -> Arc<Decl> {
    Decl::object(name, fields.into_iter().map(|(name, decl)| (name, decl.clone())))
}

fn request() -> Arc<Decl> {
    let text = Decl::simple(Type::String);
    let texts = Decl::list(&text);
    let kind = fields("kubernetes.GroupVersionKind", [("group", &text), ("version", &text), ("kind", &text)]);
    let resource = fields(
        "kubernetes.GroupVersionResource",
        [("group", &text), ("version", &text), ("resource", &text)],
    );
    let user = fields(
        "kubernetes.UserInfo",
        [("username", &text), ("uid", &text), ("groups", &texts), ("extra", &Decl::map(&texts))],
    );
    fields(
        "kubernetes.AdmissionRequest",
        [
            ("kind", &kind),
            ("resource", &resource),
            ("subResource", &text),
            ("requestKind", &kind),
            ("requestResource", &resource),
            ("requestSubResource", &text),
            ("name", &text),
            ("namespace", &text),
            ("operation", &text),
            ("userInfo", &user),
            ("dryRun", &Decl::simple(Type::Bool)),
            ("options", &Decl::simple(Type::Dyn)),
        ],
    )
}

fn namespace_type() -> Arc<Decl> {
    let (text, moment) = (Decl::simple(Type::String), Decl::simple(Type::Timestamp));
    let (number, texts, named) = (Decl::simple(Type::Int), Decl::list(&text), Decl::map(&text));
    let condition = fields(
        "kubernetes.NamespaceCondition",
        [
            ("status", &text),
            ("type", &text),
            ("lastTransitionTime", &moment),
            ("message", &text),
            ("reason", &text),
        ],
    );
    let metadata = fields(
        "kubernetes.NamespaceMetadata",
        [
            ("name", &text),
            ("generateName", &text),
            ("namespace", &text),
            ("labels", &named),
            ("annotations", &named),
            ("UID", &text),
            ("creationTimestamp", &moment),
            ("deletionGracePeriodSeconds", &number),
            ("deletionTimestamp", &moment),
            ("generation", &number),
            ("resourceVersion", &text),
            ("finalizers", &texts),
        ],
    );
    let status =
        fields("kubernetes.NamespaceStatus", [("conditions", &Decl::list(&condition)), ("phase", &text)]);
    let spec = fields("kubernetes.NamespaceSpec", [("finalizers", &texts)]);
    fields("kubernetes.Namespace", [("metadata", &metadata), ("spec", &spec), ("status", &status)])
}

/// An expression and, if it does not compile, why.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) source: String,
    program: Result<Program, String>,
}

impl Expression {
    pub(crate) fn read(source: &str, scope: &Scope) -> Self {
        let program = match Program::compile_in(source, scope) {
            Err(error) => Err(format!("compilation failed: {}", error.report(source))),
            Ok(program) => match program.unusable() {
                Some(error) => Err(format!("program instantiation failed: {error}")),
                None => Ok(program),
            },
        };
        Self { source: source.to_owned(), program }
    }

    /// Returns the type of the result; one that does not compile can be anything.
    fn ty(&self) -> Type {
        self.program.as_ref().map_or(Type::Dyn, |program| program.ty().clone())
    }

    /// Reads the variables of a policy: each may use those before it. Returns them, and what expressions behind them are told.
    pub(crate) fn read_variables(variables: &Value, scope: &Scope) -> (Vec<(String, Self)>, Scope) {
        let (mut read, mut types) = (Vec::new(), Vec::new());
        let mut scope = with_variables(scope.clone(), &types);
        for variable in variables.as_array().into_iter().flatten() {
            let text = |field: &str| variable[field].as_str().unwrap_or("").to_owned();
            let expression = Self::read(&text("expression"), &scope);
            types.push((text("name"), expression.ty()));
            read.push((text("name"), expression));
            scope = with_variables(scope, &types);
        }
        (read, scope)
    }

    pub(crate) fn eval(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Cel, String> {
        let failed = |why: &str| format!("expression '{}' resulted in error: {why}", self.source);
        let program = self.program.as_ref().map_err(|why| failed(&format!("compilation error: {why}")))?;
        let done = program.run(variables, cel::PER_CALL);
        let Some(left) = budget.checked_sub(done.cost) else {
            *budget = 0;
            return Err(OUT_OF_BUDGET.to_owned());
        };
        *budget = left;
        done.result.map_err(|error| failed(&error.0))
    }
}

/// The `matchConditions` of a webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Expression>);

impl Conditions {
    pub(crate) fn read(conditions: &Value) -> Self {
        let list = conditions.as_array().into_iter().flatten();
        // The parameters of a policy may be asked for; a webhook has none, and its conditions were checked for that.
        let scope = scope().typed("params", Type::Dyn);
        let read =
            |condition: &Value| Expression::read(condition["expression"].as_str().unwrap_or(""), &scope);
        Self(list.map(read).collect())
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
        .set(REQUEST_RESOURCE, Cel::Authorizer(Arc::new(request_resource(occasion))))
        .with_authorizer(rights)
}

fn request_resource(occasion: &Occasion<'_>) -> Question {
    Question {
        group: occasion.kind.gvk.group.clone(),
        resource: occasion.kind.resource.resource.clone(),
        subresource: occasion.subresource.to_owned(),
        namespace: occasion.namespace.to_owned(),
        name: occasion.name.to_owned(),
        ..Question::default()
    }
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
