//! The Common Expression Language as Kubernetes uses it: rules in definitions, admission policies, match conditions.
//!
//! In: an expression, what is known of its variables, values for them, a limit. Out: a value, or an error in cel-go's words.
//! Expressions are parsed (`parser`, `syntax`), checked (`checker`, `validate`), estimated (`estimate`), planned
//! (`plan`) and evaluated (`eval`), each as cel-go v0.26 does it with Kubernetes v1.36's libraries, so that messages and costs
//! are the same. `testdata/` holds cases that were observed there.

mod ast;
mod calls;
mod checker;
mod decl;
mod estimate;
mod eval;
mod functions;
mod lexer;
mod list;
mod literals;
mod macros;
mod parser;
mod plan;
mod schema;
mod signatures;
mod stack;
mod syntax;
mod tracker;
mod types;
mod validate;
mod value;

use std::collections::BTreeMap;

pub use checker::Scope;
pub use decl::Decl;
pub use list::List;
pub use schema::{escape, from_json, from_json_with, to_json};
pub use types::Type;
pub use value::{Key, Object, Value};

/// What one evaluation may cost.
pub const PER_CALL: u64 = 1_000_000;

/// How an evaluation ends that costs too much.
pub const CANCELLED: &str = "operation cancelled: actual cost limit exceeded";

/// Something that is wrong with an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    pub message: String,
    /// Byte offset in the source, if it is about a place.
    at: Option<usize>,
}

impl Issue {
    pub(crate) fn at(at: usize, message: impl Into<String>) -> Self {
        Self { message: message.into(), at: Some(at) }
    }

    pub(crate) fn nowhere(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None }
    }

    /// Returns the issue as cel-go prints it: with line, column, the line and a mark.
    fn report(&self, source: &str) -> String {
        let Some(at) = self.at else { return format!("ERROR: <input>:-1:0: {}", self.message) };
        let before = &source[..at.min(source.len())];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or("").chars().count();
        let head = format!("ERROR: <input>:{}:{}: {}", line + 1, column + 1, self.message);
        if source.is_empty() {
            return format!("ERROR: <input>:1:0: {}", self.message);
        }
        let text = source.split('\n').nth(line).unwrap_or("").replace('\t', " ");
        // Letters that are wide need a wide mark.
        let wide = |c: Option<char>| c.is_some_and(|c| c.len_utf8() > 1);
        let dots: String =
            text.chars().take(column).map(|c| if wide(Some(c)) { '．' } else { '.' }).collect();
        let mark = if wide(text.chars().nth(column)) { '＾' } else { '^' };
        format!("{head}\n | {text}\n | {dots}{mark}")
    }
}

/// Why an expression cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .issues.first().map_or("", |issue| issue.message.as_str()))]
pub struct CompileError {
    /// By position.
    pub issues: Vec<Issue>,
}

impl CompileError {
    fn new(mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|issue| issue.at);
        Self { issues }
    }

    /// Returns all issues as cel-go prints them.
    pub fn report(&self, source: &str) -> String {
        let reports: Vec<String> = self.issues.iter().map(|issue| issue.report(source)).collect();
        reports.join("\n")
    }
}

/// Why an evaluation has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub String);

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    /// Why there is none, if a constant part of it cannot be computed.
    plan: Result<plan::Node, EvalError>,
    ty: Type,
    cost: estimate::Range,
    names: Vec<String>,
}

/// What came out of an evaluation, and what it has cost.
#[derive(Debug)]
pub struct Evaluation {
    pub result: Result<Value, EvalError>,
    pub cost: u64,
}

impl Program {
    /// Compiles an expression that may use the given variables, of which nothing more is known.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, CompileError> {
        Self::compile_in(source, &Scope::of_names(variables))
    }

    /// As [`Program::compile`], for expressions that put together objects (`Object{…}`) and patches (`JSONPatch{…}`).
    pub fn compile_mutation(source: &str, variables: &[&str]) -> Result<Self, CompileError> {
        Self::compile_in(source, &Scope::of_names(variables).making_objects())
    }

    /// Compiles an expression that may use the variables of a scope.
    pub fn compile_in(source: &str, scope: &Scope) -> Result<Self, CompileError> {
        if !stack::may_be_deep(source) {
            return Self::compile_here(source, scope);
        }
        let compiled = apimachinery::stack::with_room(|| Self::compile_here(source, scope));
        compiled.unwrap_or_else(|| {
            let message = "there is no room to compile the expression now; try again later";
            Err(CompileError::new(vec![Issue::nowhere(message)]))
        })
    }

    fn compile_here(source: &str, scope: &Scope) -> Result<Self, CompileError> {
        let mut ast = parser::parse(source).map_err(CompileError::new)?;
        let facts = checker::check(&mut ast, scope).map_err(CompileError::new)?;
        let issues = validate::validate(&ast, &facts);
        if !issues.is_empty() {
            return Err(CompileError::new(issues));
        }
        Ok(Self {
            plan: plan::plan(&ast.root, &facts),
            ty: facts.types[ast.root.id].clone(),
            cost: estimate::estimate(&ast.root, &facts, scope.root.as_deref()),
            names: facts.names,
        })
    }

    /// Returns why the expression cannot be evaluated at all, if so: a constant part of it fails.
    pub fn unusable(&self) -> Option<&EvalError> {
        self.plan.as_ref().err()
    }

    /// Says whether a name stands in the expression.
    pub fn uses(&self, variable: &str) -> bool {
        self.names.iter().any(|used| used == variable)
    }

    /// Returns the type of the result.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// Returns the most that the expression may cost, by what was declared of its variables.
    pub fn cost(&self) -> u64 {
        self.cost.max
    }

    /// Returns the least that the expression costs.
    pub fn least_cost(&self) -> u64 {
        self.cost.min
    }

    /// Evaluates, up to a limit of costs.
    pub fn run(&self, variables: &Variables<'_>, limit: u64) -> Evaluation {
        match &self.plan {
            Ok(plan) => {
                let (result, cost) = eval::run(plan, variables, limit);
                Evaluation { result, cost }
            }
            Err(error) => Evaluation { result: Err(error.clone()), cost: 0 },
        }
    }

    /// Evaluates; takes what it costs from the budget.
    pub fn eval(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Value, EvalError> {
        let Evaluation { result, cost } = self.run(variables, *budget);
        *budget = budget.saturating_sub(cost);
        result
    }
}

/// Looks up a variable that is computed when it is first used.
pub trait Lazy {
    /// Returns the field of a lazy object, or `None` if it has none.
    fn field(&self, name: &str, budget: &mut u64) -> Option<Result<Value, EvalError>>;
}

/// The values of the variables.
#[derive(Default)]
pub struct Variables<'a> {
    values: BTreeMap<&'a str, Value>,
    lazy: BTreeMap<&'a str, &'a dyn Lazy>,
    authorizer: Option<&'a dyn Authorizer>,
}

impl std::fmt::Debug for Variables<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Variables").field("values", &self.values.keys()).finish_non_exhaustive()
    }
}

impl<'a> Variables<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set(mut self, name: &'a str, value: Value) -> Self {
        self.values.insert(name, value);
        self
    }

    pub fn set_lazy(mut self, name: &'a str, lazy: &'a dyn Lazy) -> Self {
        self.lazy.insert(name, lazy);
        self
    }

    pub fn with_authorizer(mut self, authorizer: &'a dyn Authorizer) -> Self {
        self.authorizer = Some(authorizer);
        self
    }
}

/// What an expression asks about the rights of the requester.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub verb: String,
    /// Asks for a service account instead of the requester: namespace and name.
    pub account: Option<(String, String)>,
}

/// Answers questions about rights.
pub trait Authorizer {
    /// Says whether it is allowed, and why or why not.
    fn allows(&self, question: &Question) -> (bool, String);

    /// Returns the question about what is being requested: `authorizer.requestResource`.
    fn request(&self) -> Question {
        Question::default()
    }
}
