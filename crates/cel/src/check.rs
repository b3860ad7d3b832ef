//! Finds names and functions that do not exist.

use crate::ast::{Expr, Kind};
use crate::lexer::error;
use crate::{CompileError, functions};

const TYPES: [&str; 13] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "timestamp",
    "duration",
    "format",
];

/// Checks an expression; returns the variables it uses.
///
/// `makes_objects` says whether it may put together objects and patches.
pub(crate) fn check(
    root: &Expr,
    variables: &[&str],
    makes_objects: bool,
) -> Result<Vec<String>, CompileError> {
    let mut checker = Checker { variables, makes_objects, scope: Vec::new(), used: Vec::new() };
    checker.visit(root)?;
    Ok(checker.used)
}

struct Checker<'a> {
    variables: &'a [&'a str],
    makes_objects: bool,
    scope: Vec<String>,
    used: Vec<String>,
}

impl Checker<'_> {
    fn visit(&mut self, expr: &Expr) -> Result<(), CompileError> {
        match &expr.kind {
            Kind::Literal(_) => Ok(()),
            Kind::Ident(name) => {
                if self.scope.contains(name) {
                    return Ok(());
                }
                if self.variables.contains(&name.as_str()) {
                    if !self.used.contains(name) {
                        self.used.push(name.clone());
                    }
                    return Ok(());
                }
                if TYPES.contains(&name.as_str()) {
                    return Ok(());
                }
                Err(error(expr.at, format!("undeclared reference to '{name}' (in container '')")))
            }
            Kind::Select { of, .. } | Kind::Has { of, .. } => self.visit(of),
            Kind::Index { of, index, .. } => {
                self.visit(of)?;
                self.visit(index)
            }
            Kind::Call { target, name, args } => {
                if let Some(target) = target {
                    self.visit(target)?;
                }
                args.iter().try_for_each(|arg| self.visit(arg))?;
                if functions::exists(name, target.is_some()) {
                    Ok(())
                } else {
                    Err(error(expr.at, format!("undeclared reference to '{name}' (in container '')")))
                }
            }
            Kind::List(items) => items.iter().try_for_each(|(item, _)| self.visit(item)),
            Kind::Map(entries) => entries.iter().try_for_each(|(key, value, _)| {
                self.visit(key)?;
                self.visit(value)
            }),
            Kind::Struct { name, fields } => {
                let known = name == "JSONPatch" || name == "Object" || name.starts_with("Object.");
                if !known || !self.makes_objects {
                    let message = format!("undeclared reference to '{name}' (in container '')");
                    return Err(error(expr.at, message));
                }
                if name == "JSONPatch"
                    && let Some((odd, ..)) = fields
                        .iter()
                        .find(|(field, ..)| !matches!(field.as_str(), "op" | "path" | "from" | "value"))
                {
                    return Err(error(expr.at, format!("undefined field '{odd}'")));
                }
                fields.iter().try_for_each(|(_, value, _)| self.visit(value))
            }
            Kind::And(a, b) | Kind::Or(a, b) => {
                self.visit(a)?;
                self.visit(b)
            }
            Kind::Condition(test, yes, no) => {
                self.visit(test)?;
                self.visit(yes)?;
                self.visit(no)
            }
            Kind::Loop(inner) => {
                self.visit(&inner.over)?;
                let depth = self.scope.len();
                self.scope.push(inner.first.clone());
                self.scope.extend(inner.second.clone());
                if let Some(filter) = &inner.filter {
                    self.visit(filter)?;
                }
                let result = self.visit(&inner.body);
                self.scope.truncate(depth);
                result
            }
            Kind::Bind { name, value, body } | Kind::OptMap { name, target: value, body, .. } => {
                self.visit(value)?;
                self.scope.push(name.clone());
                let result = self.visit(body);
                self.scope.pop();
                result
            }
        }
    }
}
