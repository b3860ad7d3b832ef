//! Macros: calls that bind names or look at the shape of their arguments.

use crate::CompileError;
use crate::ast::{Expr, Kind, Loop, LoopKind};
use crate::lexer::error;

/// A call without a receiver.
pub(crate) fn global(name: String, mut args: Vec<Expr>, at: usize) -> Result<Expr, CompileError> {
    if name == "has" {
        if let [Expr { kind: Kind::Select { optional: false, .. }, .. }] = args.as_slice()
            && let Some(Expr { kind: Kind::Select { of, field, .. }, .. }) = args.pop()
        {
            return Ok(Expr { kind: Kind::Has { of, field }, at });
        }
        return Err(error(at, "invalid argument to has() macro"));
    }
    Ok(Expr { kind: Kind::Call { target: None, name, args }, at })
}

/// A call with a receiver.
pub(crate) fn member(target: Expr, name: String, args: Vec<Expr>, at: usize) -> Result<Expr, CompileError> {
    if let Kind::Ident(space) = &target.kind {
        if space == "cel" && name == "bind" {
            return bind(args, at);
        }
        if matches!(
            space.as_str(),
            "optional" | "math" | "sets" | "base64" | "ip" | "cidr" | "lists" | "strings" | "jsonpatch"
        ) {
            let name = format!("{space}.{name}");
            return Ok(Expr { kind: Kind::Call { target: None, name, args }, at });
        }
    }
    let kind = match (name.as_str(), args.len()) {
        ("all", 2 | 3) => LoopKind::All,
        ("exists", 2 | 3) => LoopKind::Exists,
        ("exists_one", 2) | ("existsOne", 2 | 3) => LoopKind::ExistsOne,
        ("filter", 2) => LoopKind::Filter,
        ("map", 2 | 3) | ("transformList", 3 | 4) => LoopKind::Map,
        ("transformMap", 3 | 4) => LoopKind::TransformMap,
        ("transformMapEntry", 3 | 4) => LoopKind::TransformMapEntry,
        ("optMap" | "optFlatMap", 2) => return opt_map(target, &name, args, at),
        _ => {
            return Ok(Expr { kind: Kind::Call { target: Some(Box::new(target)), name, args }, at });
        }
    };
    let two = match kind {
        LoopKind::Map => name == "transformList",
        LoopKind::TransformMap | LoopKind::TransformMapEntry => true,
        _ => args.len() == 3,
    };
    let mut args = args.into_iter();
    let first = variable(args.next())?;
    let second = if two { Some(variable(args.next())?) } else { None };
    let (filter, body) = match (args.next(), args.next()) {
        (Some(filter), Some(body)) => (Some(filter), body),
        (Some(body), None) => (None, body),
        _ => return Err(error(at, "a macro lacks an argument")),
    };
    Ok(Expr { kind: Kind::Loop(Box::new(Loop { kind, over: target, first, second, filter, body })), at })
}

fn variable(expr: Option<Expr>) -> Result<String, CompileError> {
    match expr {
        Some(Expr { kind: Kind::Ident(name), .. }) => Ok(name),
        Some(other) => Err(error(other.at, "argument must be a simple name")),
        None => Err(error(0, "argument must be a simple name")),
    }
}

fn bind(args: Vec<Expr>, at: usize) -> Result<Expr, CompileError> {
    let mut args = args.into_iter();
    let name = variable(args.next())?;
    match (args.next(), args.next(), args.next()) {
        (Some(value), Some(body), None) => {
            Ok(Expr { kind: Kind::Bind { name, value: Box::new(value), body: Box::new(body) }, at })
        }
        _ => Err(error(at, "cel.bind() takes a name, a value and an expression")),
    }
}

fn opt_map(target: Expr, name: &str, args: Vec<Expr>, at: usize) -> Result<Expr, CompileError> {
    let flat = name == "optFlatMap";
    let mut args = args.into_iter();
    let name = variable(args.next())?;
    let body = args.next().ok_or_else(|| error(at, "a macro lacks an argument"))?;
    Ok(Expr { kind: Kind::OptMap { target: Box::new(target), name, body: Box::new(body), flat }, at })
}
