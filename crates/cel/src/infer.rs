//! Judges an expression before it runs: of what type it is, what cannot work, and what it may cost.
//!
//! Costs follow cel-go's estimate step by step, macros as what they expand to, so that the same rules are refused for being too
//! expensive. Types that nobody declared are `dyn`, and nothing is held against those.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, Kind, Loop, LoopKind};
use crate::estimate::Range;
use crate::functions;
use crate::lexer::error;
use crate::signatures::{self, Overload};
use crate::types::{Bindings, Decl, Type};
use crate::value::Value;
use crate::{CompileError, calls};

/// What is known of an expression.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) ty: Type,
    pub(crate) cost: Range,
    /// Characters, items or entries, if that can be told.
    pub(crate) size: Option<Range>,
    /// The sizes of the keys and values in it, if that can be told.
    pub(crate) entries: Option<(Range, Range)>,
    /// Where it was declared.
    pub(crate) decl: Option<Arc<Decl>>,
    /// A whole number that stands in the source.
    pub(crate) literal: Option<i64>,
}

impl Known {
    fn of(ty: Type, cost: Range) -> Self {
        Self { ty, cost, size: None, entries: None, decl: None, literal: None }
    }

    /// Returns the size, or that it could be anything.
    pub(crate) fn size(&self) -> Range {
        let declared = || self.decl.as_ref().map(|decl| Range::up_to(decl.max));
        let by_type = || self.ty.is_scalar().then_some(Range::exactly(1));
        self.size.or_else(declared).or_else(by_type).unwrap_or(Range::UNKNOWN)
    }

    /// Returns what its items are.
    pub(crate) fn element(&self) -> Option<Self> {
        let Type::List(of) = &self.ty else { return None };
        let mut element = Self::of(Type::clone(of), Range::ZERO);
        element.decl = self.decl.as_ref().and_then(|decl| decl.element()).cloned();
        Some(element)
    }
}

/// What an expression is told about its surroundings.
#[derive(Debug, Default)]
pub struct Scope {
    variables: BTreeMap<String, (Type, Option<Arc<Decl>>)>,
}

impl Scope {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable of a declared type.
    pub fn declare(mut self, name: &str, decl: &Arc<Decl>) -> Self {
        self.variables.insert(name.to_owned(), (decl.ty(), Some(decl.clone())));
        self
    }

    /// Adds a variable of a type.
    pub fn typed(mut self, name: &str, ty: Type) -> Self {
        self.variables.insert(name.to_owned(), (ty, None));
        self
    }
}

/// What came out of looking at an expression.
#[derive(Debug)]
pub struct Judgement {
    pub ty: Type,
    /// The most it may cost.
    pub cost: u64,
    pub errors: Vec<CompileError>,
}

pub(crate) fn judge(root: &Expr, scope: &Scope) -> Judgement {
    let mut judge = Judge { scope, locals: Vec::new(), errors: Vec::new(), mixed: 0 };
    let known = judge.visit(root);
    judge.errors.sort_by_key(|error| error.at);
    Judgement { ty: known.ty, cost: known.cost.max, errors: judge.errors }
}

struct Judge<'a> {
    scope: &'a Scope,
    locals: Vec<(String, Known)>,
    errors: Vec<CompileError>,
    /// In how many calls it is whose literals may hold values of several types.
    mixed: usize,
}

impl Judge<'_> {
    fn complain(&mut self, at: usize, message: String) {
        self.errors.push(error(at, message));
    }

    fn visit(&mut self, expr: &Expr) -> Known {
        match &expr.kind {
            Kind::Literal(value) => literal(value),
            Kind::Ident(name) => self.name(name),
            Kind::Select { of, field, .. } if self.qualified(of, field).is_some() => {
                let ty = self.qualified(of, field).expect("just looked at");
                Known::of(ty, Range::exactly(1))
            }
            Kind::Select { of, field, optional } => {
                let of = self.visit(of);
                self.select(of, field, *optional, expr.at)
            }
            Kind::Has { of, field } => {
                let of = self.visit(of);
                let cost = of.cost.plus(Range::exactly(1));
                self.select(of, field, false, expr.at);
                Known::of(Type::Bool, cost)
            }
            Kind::Index { of, index, optional } => {
                let args = vec![self.visit(of), self.visit(index)];
                let name = if *optional { "_[?_]" } else { "_[_]" };
                self.operator(name, args, expr.at)
            }
            Kind::Call { target, name, args } => {
                // What is put into a text may be of any type.
                let formats = usize::from(name == "format" && target.is_some());
                self.mixed += formats;
                let target = target.as_ref().map(|target| self.visit(target));
                let args: Vec<Known> = args.iter().map(|arg| self.visit(arg)).collect();
                self.mixed -= formats;
                self.call(name, target, args, expr.at)
            }
            Kind::And(a, b) | Kind::Or(a, b) => {
                let name = if matches!(expr.kind, Kind::And(..)) { "_&&_" } else { "_||_" };
                let args = vec![self.visit(a), self.visit(b)];
                self.operator(name, args, expr.at)
            }
            Kind::Condition(test, yes, no) => {
                let args = vec![self.visit(test), self.visit(yes), self.visit(no)];
                self.operator("_?_:_", args, expr.at)
            }
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => {
                let cost = fields
                    .iter()
                    .fold(Range::exactly(40), |sum, (_, value, _)| sum.plus(self.visit(value).cost));
                let ty = match name.as_str() {
                    "JSONPatch" => Type::Opaque("JSONPatch"),
                    "Object" => Type::Opaque("Object"),
                    part => Decl::object::<String>(part, []).ty(),
                };
                Known::of(ty, cost)
            }
            Kind::Loop(inner) => self.comprehension(inner, expr.at),
            Kind::Bind { name, value, body } => {
                let value = self.visit(value);
                let before = value.cost.plus(Range::exactly(10));
                let mut result = self.with(vec![(name.clone(), value)], |this| this.visit(body));
                result.cost = result.cost.plus(before);
                result
            }
            Kind::OptMap { target, name, body, flat } => {
                let target = self.visit(target);
                let inner = match &target.ty {
                    Type::Optional(of) => Type::clone(of),
                    Type::Dyn => Type::Dyn,
                    other => {
                        let message =
                            format!("found no matching overload for 'hasValue' applied to '{other}.()'");
                        self.complain(expr.at, message);
                        Type::Dyn
                    }
                };
                // It is asked whether there is a value, and taken out, before the body sees it.
                let mut value = Known::of(inner, target.cost.plus(Range::exactly(1)));
                value.decl = target.decl.clone();
                let asked = target.cost.plus(Range::exactly(1));
                let taken = value.cost.plus(Range::exactly(10));
                let result = self.with(vec![(name.clone(), value)], |this| this.visit(body));
                let wrapping = Range::exactly(u64::from(!flat));
                let with = taken.plus(result.cost).plus(wrapping);
                let ty = if *flat { result.ty } else { Type::Optional(Arc::new(result.ty)) };
                Known::of(ty, asked.plus(with.union(Range::exactly(1))))
            }
        }
    }

    fn with<R>(&mut self, names: Vec<(String, Known)>, run: impl FnOnce(&mut Self) -> R) -> R {
        let depth = self.locals.len();
        self.locals.extend(names);
        let result = run(self);
        self.locals.truncate(depth);
        result
    }

    fn name(&mut self, name: &str) -> Known {
        let step = Range::exactly(1);
        if let Some((_, known)) = self.locals.iter().rev().find(|(local, _)| local == name) {
            return Known { cost: step, literal: None, ..known.clone() };
        }
        if let Some((ty, decl)) = self.scope.variables.get(name) {
            return Known { decl: decl.clone(), ..Known::of(ty.clone(), step) };
        }
        // Names that do not exist were found before; what is left names a type, or nobody said of what type it is.
        let ty = match name {
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "bool" => Type::Bool,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "list" => Type::List(Arc::new(Type::Dyn)),
            "map" => Type::Map(Arc::new(Type::Dyn), Arc::new(Type::Dyn)),
            "null_type" => Type::Null,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "type" => Type::Type(Arc::new(Type::Dyn)),
            _ => return Known::of(Type::Dyn, step),
        };
        // kube-apiserver asks its schema for the size of whatever has a name, and takes every name for the root's.
        let size = self.scope.variables.get("self").and_then(|(_, decl)| decl.as_ref());
        let size = size.map(|decl| Range::up_to(decl.max));
        Known { size, ..Known::of(Type::Type(Arc::new(ty)), step) }
    }

    /// Returns the type of a variable whose name has a dot in it.
    fn qualified(&self, of: &Expr, field: &str) -> Option<Type> {
        let Kind::Ident(name) = &of.kind else { return None };
        let hidden = self.locals.iter().any(|(local, _)| local == name);
        let found = self.scope.variables.get(&format!("{name}.{field}")).filter(|_| !hidden);
        found.map(|(ty, _)| ty.clone())
    }

    fn select(&mut self, of: Known, field: &str, optional: bool, at: usize) -> Known {
        let step = Range::exactly(u64::from(matches!(of.ty, Type::Map(..) | Type::Object(_))));
        let cost = of.cost.plus(step);
        let (base, was_optional) = match &of.ty {
            Type::Optional(inner) => (Type::clone(inner), true),
            other => (other.clone(), false),
        };
        let (ty, decl) = match &base {
            Type::Dyn => (Type::Dyn, None),
            Type::Map(_, value) => {
                let decl = of.decl.as_ref().and_then(|decl| decl.element()).cloned();
                (Type::clone(value), decl)
            }
            // An object that is being put together may have any field.
            Type::Opaque("Object") => (Type::Dyn, None),
            Type::Object(object) if object.name().starts_with("Object.") => (Type::Dyn, None),
            Type::Opaque(name) if name.starts_with("kubernetes.authorization.") => {
                self.complain(at, format!("unexpected failed resolution of '{name}'"));
                (Type::Dyn, None)
            }
            Type::Object(object) => match object.field(field) {
                Some(decl) => (decl.ty(), Some(decl.clone())),
                None => {
                    self.complain(at, format!("undefined field '{field}'"));
                    (Type::Dyn, None)
                }
            },
            other => {
                self.complain(at, format!("type '{other}' does not support field selection"));
                (Type::Dyn, None)
            }
        };
        let ty = if optional || was_optional { Type::Optional(Arc::new(ty)) } else { ty };
        Known { decl, ..Known::of(ty, cost) }
    }

    fn list(&mut self, items: &[(Expr, bool)]) -> Known {
        let mut cost = Range::exactly(10);
        let mut element: Option<Type> = None;
        let mut size = Range { min: if items.is_empty() { 0 } else { u64::MAX }, max: 0 };
        for (item, optional) in items {
            let known = self.visit(item);
            cost = cost.plus(known.cost);
            size = size.union(known.size());
            let ty = match &known.ty {
                Type::Optional(inner) if *optional => Type::clone(inner),
                other => other.clone(),
            };
            element = Some(self.common(element, ty, item.at));
        }
        let mut list = Known::of(Type::List(Arc::new(element.unwrap_or(Type::Dyn))), cost);
        list.size = Some(Range::exactly(items.len() as u64));
        list.entries = Some((Range::exactly(1), size));
        list
    }

    fn map(&mut self, entries: &[(Expr, Expr, bool)]) -> Known {
        let mut cost = Range::exactly(30);
        let (mut key_type, mut value_type) = (None, None);
        let least = if entries.is_empty() { 0 } else { u64::MAX };
        let (mut keys, mut values) = (Range { min: least, max: 0 }, Range { min: least, max: 0 });
        for (key, value, optional) in entries {
            let (key_at, value_at) = (key.at, value.at);
            let (key, value) = (self.visit(key), self.visit(value));
            cost = cost.plus(key.cost).plus(value.cost);
            keys = keys.union(key.size());
            values = values.union(value.size());
            let ty = match &value.ty {
                Type::Optional(inner) if *optional => Type::clone(inner),
                other => other.clone(),
            };
            key_type = Some(self.common(key_type, key.ty, key_at));
            value_type = Some(self.common(value_type, ty, value_at));
        }
        let or_any = |ty: Option<Type>| Arc::new(ty.unwrap_or(Type::Dyn));
        let mut map = Known::of(Type::Map(or_any(key_type), or_any(value_type)), cost);
        map.size = Some(Range::exactly(entries.len() as u64));
        map.entries = Some((keys, values));
        map
    }

    /// Literals hold values of one type.
    fn common(&mut self, known: Option<Type>, ty: Type, at: usize) -> Type {
        let Some(known) = known else { return ty };
        let mut bindings = Bindings::default();
        if bindings.fits(&known, &ty) || bindings.fits(&ty, &known) {
            return if matches!(ty, Type::Dyn) { ty } else { known };
        }
        if self.mixed == 0 {
            self.complain(at, format!("expected type '{known}' but found '{ty}'"));
        }
        Type::Dyn
    }

    fn operator(&mut self, name: &'static str, args: Vec<Known>, at: usize) -> Known {
        let overloads = signatures::of(name, false).expect("operators have signatures");
        self.resolve(name, overloads, None, args, at)
    }

    fn call(&mut self, name: &str, target: Option<Known>, args: Vec<Known>, at: usize) -> Known {
        if name == "dyn"
            && let [arg] = args.as_slice()
        {
            return Known { ty: Type::Dyn, cost: arg.cost.plus(Range::exactly(1)), ..arg.clone() };
        }
        if target.is_none()
            && let [left, right] = args.as_slice()
            && let Some(found) = signatures::comparison(name, &left.ty, &right.ty)
        {
            if found.is_empty() {
                self.no_overload(name, None, &args, at);
            }
            let arguments = left.cost.plus(right.cost);
            let costs = found.iter().map(|id| calls::cost(name, id, None, &args).0);
            let cost = costs.reduce(Range::union).unwrap_or(Range::exactly(1));
            return Known::of(Type::Bool, cost.plus(arguments));
        }
        match signatures::of(name, target.is_some()) {
            Some(overloads) => self.resolve(name, overloads, target, args, at),
            None => {
                if !functions::exists(name, target.is_some()) {
                    self.complain(at, format!("undeclared reference to '{name}' (in container '')"));
                }
                let (cost, size) = calls::cost(name, "", target.as_ref(), &args);
                let cost = args.iter().chain(&target).fold(cost, |sum, part| sum.plus(part.cost));
                Known { size, ..Known::of(Type::Dyn, cost) }
            }
        }
    }

    /// Finds the ways to call a function that fit, and what they come to together.
    fn resolve(
        &mut self,
        name: &str,
        overloads: &'static [Overload],
        target: Option<Known>,
        args: Vec<Known>,
        at: usize,
    ) -> Known {
        let given: Vec<&Type> = target.iter().chain(&args).map(|known| &known.ty).collect();
        let mut fitting: Vec<(&'static str, Type)> = Vec::new();
        for overload in overloads.iter().filter(|overload| overload.args.len() == given.len()) {
            let mut bindings = Bindings::default();
            if overload.args.iter().zip(&given).all(|(wanted, given)| bindings.fits(wanted, given)) {
                fitting.push((overload.id, bindings.fill(&overload.result)));
            }
        }
        if fitting.is_empty() {
            self.no_overload(name, target.as_ref(), &args, at);
            return Known::of(Type::Dyn, Range::exactly(1));
        }
        let first = fitting[0].1.clone();
        let ty = if fitting.iter().all(|(_, ty)| *ty == first) { first } else { Type::Dyn };
        let mut cost: Option<Range> = None;
        let mut size: Option<Range> = None;
        for (id, _) in &fitting {
            let (each, result) = calls::cost(name, id, target.as_ref(), &args);
            let each = if calls::counts_arguments(id) {
                each
            } else {
                args.iter().fold(each, |sum, arg| sum.plus(arg.cost))
            };
            cost = Some(cost.map_or(each, |sum| sum.union(each)));
            size = match (size, result) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
        }
        let mut cost = cost.unwrap_or(Range::exactly(1));
        if let Some(target) = &target {
            cost = cost.plus(target.cost);
        }
        let mut known = Known { size, ..Known::of(ty, cost) };
        known.entries = calls::entries(name, &args);
        if matches!(name, "_[_]" | "_[?_]")
            && let Some(of) = args.first()
        {
            known.decl = of.decl.as_ref().and_then(|decl| decl.element()).cloned();
            known.size = of.entries.map(|(_, values)| values);
        }
        known
    }

    fn no_overload(&mut self, name: &str, target: Option<&Known>, args: &[Known], at: usize) {
        let list: Vec<String> = args.iter().map(|arg| arg.ty.to_string()).collect();
        let list = list.join(", ");
        let signature = match target {
            Some(target) => format!("{}.({list})", target.ty),
            None => format!("({list})"),
        };
        let name = if name == "_in_" { "@in" } else { name };
        self.complain(at, format!("found no matching overload for '{name}' applied to '{signature}'"));
    }

    fn comprehension(&mut self, inner: &Loop, at: usize) -> Known {
        let over = self.visit(&inner.over);
        let (key, value) = match &over.ty {
            Type::List(of) => (Type::Int, Type::clone(of)),
            Type::Map(key, value) => (Type::clone(key), Type::clone(value)),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(inner.over.at, message);
                (Type::Dyn, Type::Dyn)
            }
        };
        let is_list = matches!(over.ty, Type::List(_));
        let element = over.decl.as_ref().and_then(|decl| decl.element()).cloned();
        let sized = |ty: Type, size: Option<Range>, decl: Option<Arc<Decl>>| Known {
            size,
            decl,
            ..Known::of(ty, Range::exactly(1))
        };
        let (keys, values) = (over.entries.map(|(keys, _)| keys), over.entries.map(|(_, values)| values));
        let mut locals = Vec::new();
        match &inner.second {
            Some(second) => {
                locals.push((inner.first.clone(), sized(key, keys, None)));
                locals.push((second.clone(), sized(value, values, element)));
            }
            None if is_list => locals.push((inner.first.clone(), sized(value, values, element))),
            None => locals.push((inner.first.clone(), sized(key, keys, None))),
        }
        let (filter, body) = self.with(locals, |this| {
            let filter = inner.filter.as_ref().map(|filter| this.visit(filter));
            (filter, this.visit(&inner.body))
        });
        let is_predicate =
            matches!(inner.kind, LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne | LoopKind::Filter);
        for (known, operator) in
            filter.iter().map(|known| (known, "_?_:_")).chain(is_predicate.then_some((&body, "_&&_")))
        {
            if !matches!(known.ty, Type::Bool | Type::Dyn) {
                let (name, signature) = match (inner.kind, operator) {
                    (LoopKind::All, "_&&_") => ("_&&_", format!("(bool, {})", known.ty)),
                    (LoopKind::Exists, "_&&_") => ("_||_", format!("(bool, {})", known.ty)),
                    _ => ("_?_:_", format!("({}, int, int)", known.ty)),
                };
                self.complain(
                    at,
                    format!("found no matching overload for '{name}' applied to '{signature}'"),
                );
            }
        }
        let one = Range::exactly(1);
        // What the macro begins with, what each round asks and does, and what is asked at the end.
        let (begin, ask, step, end) = match inner.kind {
            LoopKind::All => (0, 2, Range { min: 1, max: body.cost.max.saturating_add(1) }, 1),
            LoopKind::Exists => (0, 3, Range { min: 1, max: body.cost.max.saturating_add(1) }, 1),
            LoopKind::ExistsOne => (0, 0, body.cost.plus(Range { min: 1, max: 2 }), 2),
            LoopKind::Filter => (10, 0, body.cost.plus(one.union(Range::exactly(13))), 1),
            LoopKind::Map => (10, 0, body.cost.plus(Range::exactly(12)), 1),
            LoopKind::TransformMap => (30, 0, body.cost.plus(Range::exactly(3)), 1),
            LoopKind::TransformMapEntry => (30, 0, body.cost.plus(Range::exactly(2)), 1),
        };
        let step = match &filter {
            Some(filter) => filter.cost.plus(step.union(one)),
            None => step,
        };
        let rounds = over.size();
        let cost =
            over.cost.plus(Range::exactly(begin + end)).plus(rounds.times(step.plus(Range::exactly(ask))));
        let element = Arc::new(body.ty.clone());
        let ty = match inner.kind {
            LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne => Type::Bool,
            LoopKind::Filter if is_list => over.ty.clone(),
            LoopKind::Filter => Type::List(Arc::new(match &over.ty {
                Type::Map(key, _) => Type::clone(key),
                _ => Type::Dyn,
            })),
            LoopKind::Map => Type::List(element),
            LoopKind::TransformMap => match &over.ty {
                Type::Map(key, _) => Type::Map(key.clone(), element),
                Type::List(_) => Type::Map(Arc::new(Type::Int), element),
                _ => Type::Map(Arc::new(Type::Dyn), element),
            },
            LoopKind::TransformMapEntry => body.ty.clone(),
        };
        let mut known = Known::of(ty, cost);
        if !matches!(inner.kind, LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne) {
            known.size = Some(rounds);
            let made = match inner.kind {
                LoopKind::Filter => values.or_else(|| over.element().map(|element| element.size())),
                _ => Some(body.size()),
            };
            known.entries = made.map(|made| (one, Range { min: 0, max: made.max }));
        }
        known
    }
}

fn literal(value: &Value) -> Known {
    let (ty, size) = match value {
        Value::Null => (Type::Null, 1),
        Value::Bool(_) => (Type::Bool, 1),
        Value::Int(_) => (Type::Int, 1),
        Value::Uint(_) => (Type::Uint, 1),
        Value::Double(_) => (Type::Double, 1),
        Value::String(text) => (Type::String, text.chars().count() as u64),
        Value::Bytes(bytes) => (Type::Bytes, bytes.len() as u64),
        _ => return Known::of(Type::Dyn, Range::ZERO),
    };
    let number = match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    Known { size: Some(Range::exactly(size)), literal: number, ..Known::of(ty, Range::ZERO) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(source: &str) -> Judgement {
        let schema = json!({"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 10},
            "free": {"type": "string"},
            "count": {"type": "integer"},
            "names": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 10}},
            "many": {"type": "array", "items": {"type": "string"}},
            "either": {"x-kubernetes-int-or-string": true},
        }});
        let decl = Decl::of_schema(&schema, false, "self", &|_| None).unwrap();
        let root = crate::parser::parse(source).unwrap();
        judge(&root, &Scope::new().declare("self", &decl))
    }

    fn wrong(source: &str) -> Vec<String> {
        judged(source).errors.into_iter().map(|error| error.message).collect()
    }

    #[test]
    fn types_are_found_without_running_anything() {
        assert_eq!(judged("self.count + 1").ty.to_string(), "int");
        assert_eq!(judged("self.names.map(n, n.size())").ty.to_string(), "list(int)");
        assert_eq!(judged("self.names.filter(n, n == 'a')").ty.to_string(), "list(string)");
        assert_eq!(judged("self.?name.orValue('x')").ty.to_string(), "string");
        assert_eq!(judged("has(self.name) ? self.name : 'x'").ty.to_string(), "string");
        assert_eq!(judged("self.either == 1 || self.either == 'x'").ty.to_string(), "bool");
        assert_eq!(judged("'%s %d %s'.format(['a', 1, [2, 'b']])").ty.to_string(), "string");
    }

    #[test]
    fn what_cannot_work_is_told_in_cel_go_s_words() {
        assert_eq!(
            wrong("self.count == 'x'"),
            ["found no matching overload for '_==_' applied to '(int, string)'"]
        );
        assert_eq!(wrong("self.nmae == ''"), ["undefined field 'nmae'"]);
        assert_eq!(
            wrong("self.count.startsWith('x')"),
            ["found no matching overload for 'startsWith' applied to 'int.(string)'"]
        );
        assert_eq!(wrong("self.count.x"), ["type 'int' does not support field selection"]);
        assert_eq!(
            wrong("self.count.all(c, true)"),
            ["expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)"]
        );
        assert!(wrong("self.names.all(n, n.startsWith('a')) && self.count < 2.5").is_empty());
    }

    #[test]
    fn bounds_make_a_rule_cheap_and_their_lack_makes_it_dear() {
        assert!(judged("self.names.all(n, n.startsWith('a'))").cost < 100);
        assert!(judged("self.many.all(a, self.many.all(b, a == b))").cost > 10_000_000);
        assert!(judged("self.free == 'x'").cost < 10);
        assert!(judged("'is ' + string(self.count)").cost > 10_000_000, "nobody knows how long a number is");
    }
}
