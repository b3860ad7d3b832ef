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
pub(crate) fn check(root: &Expr, variables: &[&str]) -> Result<Vec<String>, CompileError> {
    let mut checker = Checker { variables, scope: Vec::new(), used: Vec::new() };
    checker.visit(root)?;
    Ok(checker.used)
}

struct Checker<'a> {
    variables: &'a [&'a str],
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

/// Collects the selections that start at a variable. Names that a macro binds are left alone.
pub(crate) fn chains(root: &Expr, variable: &str) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    collect(root, variable, &mut found);
    found
}

fn chain(expr: &Expr, variable: &str) -> Option<Vec<String>> {
    match &expr.kind {
        Kind::Ident(name) if name == variable => Some(Vec::new()),
        Kind::Select { of, field, optional: false } => {
            let mut path = chain(of, variable)?;
            path.push(field.clone());
            Some(path)
        }
        _ => None,
    }
}

fn collect(expr: &Expr, variable: &str, found: &mut Vec<(Vec<String>, usize)>) {
    if let Some(path) = chain(expr, variable) {
        found.push((path, expr.at));
        return;
    }
    match &expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Has { of, field } => match chain(of, variable) {
            Some(mut path) => {
                path.push(field.clone());
                found.push((path, expr.at));
            }
            None => collect(of, variable, found),
        },
        Kind::Select { of, .. } => collect(of, variable, found),
        Kind::Index { of, index, .. } => {
            collect(of, variable, found);
            collect(index, variable, found);
        }
        Kind::Call { target, args, .. } => {
            target.iter().for_each(|target| collect(target, variable, found));
            args.iter().for_each(|arg| collect(arg, variable, found));
        }
        Kind::List(items) => items.iter().for_each(|(item, _)| collect(item, variable, found)),
        Kind::Map(entries) => entries.iter().for_each(|(key, value, _)| {
            collect(key, variable, found);
            collect(value, variable, found);
        }),
        Kind::And(a, b) | Kind::Or(a, b) => {
            collect(a, variable, found);
            collect(b, variable, found);
        }
        Kind::Condition(a, b, c) => [a, b, c].into_iter().for_each(|expr| collect(expr, variable, found)),
        Kind::Loop(inner) => {
            collect(&inner.over, variable, found);
            if inner.first != variable && inner.second.as_deref() != Some(variable) {
                inner.filter.iter().for_each(|filter| collect(filter, variable, found));
                collect(&inner.body, variable, found);
            }
        }
        Kind::Bind { name, value, body } | Kind::OptMap { name, target: value, body, .. } => {
            collect(value, variable, found);
            if name != variable {
                collect(body, variable, found);
            }
        }
    }
}
