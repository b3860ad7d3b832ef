//! Looks at what stands in an expression literally, after its types are known: texts that are not a time, duration or pattern, lists
//! of values that might be of several types, and texts whose values do not fit their clauses.

use crate::Issue;
use crate::ast::{Ast, Expr, Id, Kind};
use crate::checker::Facts;
use crate::functions::{self, format, strings};
use crate::types::Type;
use crate::value::Value;

/// Returns what is wrong.
pub(crate) fn validate(ast: &Ast, facts: &Facts) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mut complain = |id: Id, message: String| issues.push(Issue::at(ast.offsets[id], message));
    ast.root.walk(&mut |expr| {
        if let Kind::Call { target, function, args } = &expr.kind {
            if let Some(Expr { id, kind: Kind::Literal(value) }) = args.first() {
                argument(*id, function, value, &mut complain);
            }
            if let (Some(target), "format", [list]) = (target, function.as_str(), args.as_slice())
                && let (Kind::Literal(Value::String(text)), Kind::List(items)) = (&target.kind, &list.kind)
            {
                clauses(expr.id, text, items, facts, &mut complain);
            }
        }
    });
    same_types(&ast.root, facts, &mut complain);
    issues
}

fn argument(id: Id, function: &str, value: &Value, complain: &mut dyn FnMut(Id, String)) {
    let wrong = match (function, value) {
        ("duration" | "timestamp", value) => {
            functions::call(false, function, std::slice::from_ref(value)).is_err()
        }
        ("matches", Value::String(pattern)) => strings::compile(pattern).is_err(),
        _ => false,
    };
    if wrong {
        complain(id, format!("invalid {function} argument"));
    }
}

/// Literals hold values of one type, unless they are to be put into a text.
fn same_types(expr: &Expr, facts: &Facts, complain: &mut dyn FnMut(Id, String)) {
    let ty = |expr: &Expr, optional: bool| match &facts.types[expr.id] {
        Type::Optional(inner) if optional => Type::clone(inner),
        other => other.clone(),
    };
    let mut compare = |first: &Type, id: Id, found: &Type| {
        let differs = first != found;
        if differs {
            complain(id, format!("expected type '{first}' but found '{found}'"));
        }
        differs
    };
    match &expr.kind {
        Kind::Call { function, .. } if function == "format" => return,
        Kind::List(items) => {
            if let Some(((first, optional), rest)) = items.split_first() {
                let first = ty(first, *optional);
                for (item, optional) in rest {
                    if compare(&first, item.id, &ty(item, *optional)) {
                        break;
                    }
                }
            }
        }
        Kind::Map(entries) => {
            if let Some((first, rest)) = entries.split_first() {
                let (key, value) = (ty(&first.key, false), ty(&first.value, first.optional));
                for entry in rest {
                    compare(&key, entry.key.id, &ty(&entry.key, false));
                    compare(&value, entry.value.id, &ty(&entry.value, entry.optional));
                }
            }
        }
        _ => {}
    }
    expr.children(&mut |child| same_types(child, facts, complain));
}

fn clauses(id: Id, text: &str, items: &[(Expr, bool)], facts: &Facts, complain: &mut dyn FnMut(Id, String)) {
    let mut at = id;
    let asked = format::clauses(text, items.len(), &mut |index, clause| {
        let item = &items[index].0;
        match unfit(clause.verb, item, facts) {
            Some(bad) => {
                at = bad;
                Err(format::unfit(clause.verb, &facts.types[bad].outer_name()))
            }
            None => Ok(()),
        }
    });
    match asked {
        Err(why) => complain(at, why),
        Ok(asked) if items.len() > asked => complain(
            id,
            format!("too many arguments supplied to string.format (expected {asked}, got {})", items.len()),
        ),
        Ok(_) => {}
    }
}

/// Returns what a clause does not go with: the value, or something in it.
fn unfit(verb: char, expr: &Expr, facts: &Facts) -> Option<Id> {
    let fits = match (&facts.types[expr.id], verb) {
        (Type::Dyn, _) => true,
        (Type::Int | Type::Uint, verb) => !matches!(verb, 'f' | 'e'),
        (Type::Double, verb) => matches!(verb, 'f' | 'e' | 's'),
        (Type::String, verb) => matches!(verb, 'f' | 'e' | 's' | 'x' | 'X'),
        (Type::Bytes, verb) => matches!(verb, 's' | 'x' | 'X'),
        (Type::Bool, verb) => matches!(verb, 's' | 'b'),
        (
            Type::List(_) | Type::Map(..) | Type::Timestamp | Type::Duration | Type::Type(_) | Type::Null,
            's',
        ) => true,
        _ => false,
    };
    if !fits {
        return Some(expr.id);
    }
    let mut bad = None;
    if verb == 's' && matches!(expr.kind, Kind::List(_) | Kind::Map(_)) {
        expr.children(&mut |child| bad = bad.or_else(|| unfit(verb, child, facts)));
    }
    bad
}
