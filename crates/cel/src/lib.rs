//! The Common Expression Language as Kubernetes uses it: rules in definitions, admission policies, match conditions.
//!
//! In: an expression, the names it may use, values for them, a budget. Out: a value, or an error in cel-go's words.
//! Unknown names, functions and macros that are used wrongly are found when an expression is compiled. Whoever knows the types of
//! its variables lets it be judged, too ([`Program::judge`]): what cannot work, and what it may cost. Values are checked when
//! they are used in any case.

mod ast;
mod calls;
mod check;
mod estimate;
mod eval;
mod functions;
mod infer;
mod lexer;
mod macros;
mod parser;
mod schema;
mod signatures;
mod types;
mod value;

use std::collections::BTreeMap;

pub use infer::{Judgement, Scope};
pub use schema::{escape, from_json, from_json_with, to_json};
pub use types::{Decl, Type};
pub use value::{Key, Object, Value};

/// What one evaluation may cost; one step of the evaluator costs one.
pub const PER_CALL: u64 = 1_000_000;

/// Why an expression cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CompileError {
    pub message: String,
    /// Byte offset in the source.
    pub at: usize,
}

impl CompileError {
    /// Returns the message as cel-go prints it: with line, column, the line and a mark.
    pub fn report(&self, source: &str) -> String {
        let before = &source[..self.at.min(source.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count();
        let text = source.lines().nth(line - 1).unwrap_or("");
        format!(
            "ERROR: <input>:{line}:{}: {}\n | {text}\n | {}^",
            column + 1,
            self.message,
            ".".repeat(column)
        )
    }
}

/// Why an evaluation has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(pub String);

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    root: ast::Expr,
    uses: Vec<String>,
}

impl Program {
    /// Parses an expression that may use the given variables.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, CompileError> {
        let root = parser::parse(source)?;
        let uses = check::check(&root, variables, false)?;
        Ok(Self { root, uses })
    }

    /// As [`Program::compile`], for expressions that put together objects (`Object{…}`) and patches (`JSONPatch{…}`).
    pub fn compile_mutation(source: &str, variables: &[&str]) -> Result<Self, CompileError> {
        let root = parser::parse(source)?;
        let uses = check::check(&root, variables, true)?;
        Ok(Self { root, uses })
    }

    /// Says whether a variable stands in the expression.
    pub fn uses(&self, variable: &str) -> bool {
        self.uses.iter().any(|used| used == variable)
    }

    /// Finds out the type of the result, what cannot work, and what the expression may cost.
    pub fn judge(&self, scope: &Scope) -> Judgement {
        infer::judge(&self.root, scope)
    }

    /// Evaluates; takes what it costs from the budget.
    pub fn eval(&self, variables: &Variables<'_>, budget: &mut u64) -> Result<Value, EvalError> {
        let mut machine = eval::Machine::new(variables, budget);
        machine.run(&self.root)
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
