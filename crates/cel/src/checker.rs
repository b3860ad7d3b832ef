//! Finds the type of an expression and of everything in it, the overloads that calls may use, and what cannot work.
//!
//! In: a parsed expression and what it is told about its environment. Out: types and overloads by node, and cel-go's words for
//! what is wrong. Names with dots are resolved on the way: `optional.of(1)` calls a function, not a method of `optional`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Issue;
use crate::ast::{Ast, Expr, Fold, Id, Kind};
use crate::decl::Decl;
use crate::schema;
use crate::signatures::{self, Overload};
use crate::types::{Mapping, Type, more_general};
use crate::value::Value;

/// What an expression is told about its environment.
#[derive(Debug, Default, Clone)]
pub struct Scope {
    variables: BTreeMap<String, Type>,
    /// The declaration by which sizes are estimated.
    pub(crate) root: Option<Arc<Decl>>,
    /// It may put together objects and patches.
    pub(crate) makes_objects: bool,
}

impl Scope {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a scope with variables of which nothing is known.
    pub fn of_names(names: &[&str]) -> Self {
        names.iter().fold(Self::default(), |scope, name| scope.typed(name, Type::Dyn))
    }

    /// Adds a variable of a declared type. Sizes are those of `self`.
    pub fn declare(mut self, name: &str, decl: &Arc<Decl>) -> Self {
        if name == "self" {
            self.root = Some(decl.clone());
        }
        self.typed(name, decl.ty())
    }

    /// Adds a variable of a type.
    pub fn typed(mut self, name: &str, ty: Type) -> Self {
        self.variables.insert(name.to_owned(), ty);
        self
    }

    /// Lets expressions put together objects (`Object{…}`) and patches (`JSONPatch{…}`).
    pub fn making_objects(mut self) -> Self {
        self.makes_objects = true;
        self
    }
}

/// What is known of the nodes of an expression.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) types: Vec<Type>,
    pub(crate) overloads: Vec<Vec<&'static str>>,
    /// Names that stand in the expression.
    pub(crate) names: Vec<String>,
}

/// Checks an expression; puts resolved names into it.
pub(crate) fn check(ast: &mut Ast, scope: &Scope) -> Result<Facts, Vec<Issue>> {
    let nodes = ast.offsets.len();
    let mut checker = Checker {
        scope,
        offsets: &ast.offsets,
        locals: Vec::new(),
        mapping: Mapping::default(),
        facts: Facts { types: vec![Type::Dyn; nodes], overloads: vec![Vec::new(); nodes], names: Vec::new() },
        issues: Vec::new(),
    };
    checker.visit(&mut ast.root);
    let Checker { mapping, mut facts, issues, .. } = checker;
    if !issues.is_empty() {
        return Err(issues);
    }
    for ty in &mut facts.types {
        *ty = mapping.fill_or_dyn(ty);
    }
    Ok(facts)
}

/// Returns the type that a name stands for; values know it by the same name.
pub(crate) fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "bool" => Type::Bool,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "type" => Type::Type(None),
        "optional_type" => Type::opaque(name),
        "google.protobuf.Timestamp" => Type::Timestamp,
        "google.protobuf.Duration" => Type::Duration,
        "net.IP" | "net.CIDR" => Type::opaque(name),
        _ => return None,
    })
}

/// Says whether a name is that of an object or patch that mutations put together.
pub(crate) fn is_made(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

struct Checker<'a> {
    scope: &'a Scope,
    offsets: &'a [usize],
    locals: Vec<(String, Type)>,
    mapping: Mapping,
    facts: Facts,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn complain(&mut self, id: Id, message: String) {
        self.issues.push(Issue::at(self.offsets[id], message));
    }

    fn undeclared(&mut self, id: Id, name: &str) -> Type {
        self.complain(id, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn mismatch(&mut self, id: Id, wanted: &Type, found: &Type) {
        self.complain(id, format!("expected type '{wanted}' but found '{found}'"));
    }

    fn fits(&mut self, wanted: &Type, given: &Type) -> bool {
        self.mapping.assignable(std::slice::from_ref(wanted), std::slice::from_ref(given))
    }

    fn visit(&mut self, expr: &mut Expr) -> Type {
        let ty = self.find(expr);
        self.facts.types[expr.id] = ty.clone();
        ty
    }

    fn find(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let name = expr.qualified_name();
        match &mut expr.kind {
            Kind::Literal(value) => literal(value),
            Kind::Ident(name) => match self.name(name) {
                Some(ty) => {
                    *name = name.trim_start_matches('.').to_owned();
                    ty
                }
                None => self.undeclared(id, &name.clone()),
            },
            Kind::Select { operand, field, test } => {
                if let Some(name) = name
                    && let Some(ty) = self.name(&name)
                {
                    expr.kind = Kind::Ident(name.trim_start_matches('.').to_owned());
                    return ty;
                }
                let test = *test;
                let ty = self.select(id, operand, &field.clone(), false);
                if test { Type::Bool } else { self.mapping.fill(&ty) }
            }
            Kind::Call { .. } => self.call(expr),
            Kind::List(items) => {
                let mut joined = None;
                for (item, optional) in items {
                    let ty = self.visit(item);
                    let ty = if *optional { self.unwrapped(item.id, ty) } else { ty };
                    joined = Some(self.join(joined, ty));
                }
                Type::list(joined.unwrap_or_else(|| self.mapping.fresh()))
            }
            Kind::Map(entries) => {
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    let key = self.visit(&mut entry.key);
                    keys = Some(self.join(keys, key));
                    let value = self.visit(&mut entry.value);
                    let value = if entry.optional { self.unwrapped(entry.value.id, value) } else { value };
                    values = Some(self.join(values, value));
                }
                let keys = keys.unwrap_or_else(|| self.mapping.fresh());
                Type::map(keys, values.unwrap_or_else(|| self.mapping.fresh()))
            }
            Kind::Struct { .. } => self.object(expr),
            Kind::Fold(fold) => self.fold(fold),
        }
    }

    /// Returns what a name stands for.
    fn name(&mut self, name: &str) -> Option<Type> {
        let plain = name.trim_start_matches('.');
        let known = self.locals.iter().rev().find(|(local, _)| local == plain).map(|(_, ty)| ty);
        let known = known.or_else(|| self.scope.variables.get(plain)).cloned();
        let known = known.or_else(|| {
            let made = self.scope.makes_objects && is_made(plain);
            // These two name types to the checker only: nothing can be done with them.
            let ty = match plain {
                "timestamp" => Type::Timestamp,
                "duration" => Type::Duration,
                _ => named_type(plain).or_else(|| made.then(|| Type::opaque(plain)))?,
            };
            Some(Type::Type(Some(Arc::new(ty))))
        });
        if known.is_some() && !self.facts.names.iter().any(|known| known == plain) {
            self.facts.names.push(plain.to_owned());
        }
        known
    }

    fn select(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        let ty = self.visit(operand);
        let ty = self.mapping.fill(&ty);
        let (target, is_optional) = match &ty {
            Type::Optional(inner) => (Type::clone(inner), true),
            other => (other.clone(), false),
        };
        let result = match &target {
            Type::Map(_, value) => Type::clone(value),
            Type::Var(_) => {
                self.fits(&Type::Dyn, &target);
                Type::Dyn
            }
            other if other.is_struct() => self.field(id, other, field),
            other => {
                if !other.is_dyn_or_error() {
                    self.complain(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(result) } else { result }
    }

    fn field(&mut self, id: Id, owner: &Type, field: &str) -> Type {
        match owner {
            Type::Object(decl) => {
                let reserved =
                    || schema::is_reserved(field).then(|| decl.field(&format!("__{field}__"))).flatten();
                if let Some(field) = decl.field(field).or_else(reserved) {
                    return field.ty();
                }
            }
            Type::Opaque(name) if &**name == "JSONPatch" => match field {
                "op" | "path" | "from" => return Type::String,
                "value" => return Type::Dyn,
                _ => {}
            },
            Type::Opaque(name) if is_made(name) => return Type::Dyn,
            other => {
                self.complain(id, format!("unexpected failed resolution of '{other}'"));
                return Type::Error;
            }
        }
        self.complain(id, format!("undefined field '{field}'"));
        Type::Error
    }

    /// Takes the value out of an optional one.
    fn unwrapped(&mut self, id: Id, ty: Type) -> Type {
        match &ty {
            Type::Optional(inner) => Type::clone(inner),
            Type::Dyn => ty,
            other => {
                self.mismatch(id, &Type::optional(other.clone()), other);
                ty
            }
        }
    }

    /// Returns the type of what is in a literal. That it should be one type is [`crate::validate`]'s to say.
    fn join(&mut self, joined: Option<Type>, ty: Type) -> Type {
        match joined {
            None => ty,
            Some(joined) if self.fits(&joined, &ty) => more_general(&joined, &ty).clone(),
            Some(_) => Type::Dyn,
        }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Call { target, function, args } = &mut expr.kind else { return Type::Error };
        if function == "_?._"
            && let [operand, Expr { kind: Kind::Literal(Value::String(field)), .. }] = args.as_mut_slice()
        {
            let field = field.to_string();
            let ty = self.select(id, operand, &field, true);
            self.facts.overloads[id] = vec!["select_optional_field"];
            return self.mapping.fill(&ty);
        }
        let mut given: Vec<Type> = args.iter_mut().map(|arg| self.visit(arg)).collect();
        if let Some(prefix) = target.as_ref().and_then(|target| target.qualified_name()) {
            let name = format!("{prefix}.{function}");
            let plain = name.trim_start_matches('.');
            if signatures::of(plain, self.scope.makes_objects).is_some() {
                *function = plain.to_owned();
                *target = None;
            }
        }
        if let Some(target) = target {
            given.insert(0, self.visit(target));
        }
        let member = target.is_some();
        let plain = function.trim_start_matches('.').to_owned();
        let Some(overloads) = signatures::of(&plain, self.scope.makes_objects) else {
            let name = function.clone();
            return self.undeclared(id, &name);
        };
        *function = plain;
        if matches!(function.as_str(), "_&&_" | "_||_") {
            let ids: Vec<Id> = args.iter().map(|arg| arg.id).collect();
            return self.logic(id, &ids, &given, overloads);
        }
        let function = function.clone();
        self.resolve(id, &function, overloads, member, given)
    }

    fn logic(&mut self, id: Id, ids: &[Id], given: &[Type], overloads: &'static [Overload]) -> Type {
        let mut result = Type::Bool;
        for (arg, ty) in ids.iter().zip(given) {
            if !self.fits(ty, &Type::Bool) {
                self.mismatch(*arg, &Type::Bool, ty);
                result = Type::Error;
            }
        }
        self.facts.overloads[id] = overloads.iter().map(|overload| overload.id).collect();
        result
    }

    /// Finds the ways to call a function that fit.
    fn resolve(
        &mut self,
        id: Id,
        function: &str,
        overloads: &'static [Overload],
        member: bool,
        given: Vec<Type>,
    ) -> Type {
        let mut result: Option<Type> = None;
        for overload in overloads.iter().filter(|overload| overload.member == member) {
            if overload.args.len() != given.len() {
                continue;
            }
            let mut params: Vec<(&'static str, Type)> = Vec::new();
            let wanted: Vec<Type> =
                overload.args.iter().map(|arg| instance(&mut self.mapping, &mut params, arg)).collect();
            let made = instance(&mut self.mapping, &mut params, &overload.result);
            if !self.mapping.assignable(&given, &wanted) {
                continue;
            }
            self.facts.overloads[id].push(overload.id);
            let made = self.mapping.fill(&made);
            result = Some(match result {
                None => made,
                Some(Type::Dyn) => Type::Dyn,
                Some(other) if other == made => other,
                Some(_) => Type::Dyn,
            });
        }
        result.unwrap_or_else(|| {
            let mut shown = given.iter().map(|ty| self.mapping.fill_or_dyn(ty).to_string());
            let target = if member { shown.next().map(|target| format!("{target}.")) } else { None };
            let list: Vec<String> = shown.collect();
            let signature = format!("{}({})", target.unwrap_or_default(), list.join(", "));
            self.complain(
                id,
                format!("found no matching overload for '{function}' applied to '{signature}'"),
            );
            Type::Error
        })
    }

    fn object(&mut self, expr: &mut Expr) -> Type {
        let id = expr.id;
        let Kind::Struct { name, fields } = &mut expr.kind else { return Type::Error };
        let Some(ty) = self.name(name) else {
            let name = name.clone();
            return self.undeclared(id, &name);
        };
        *name = name.trim_start_matches('.').to_owned();
        let made = match &ty {
            Type::Error => Type::Error,
            Type::Type(Some(named)) if named.is_struct() => Type::clone(named),
            Type::Type(named) => {
                let shown = named.as_ref().map_or_else(|| "type".to_owned(), |named| named.outer_name());
                self.complain(id, format!("'{shown}' is not a message type"));
                Type::Error
            }
            other => {
                self.complain(id, format!("'{}' is not a type", other.outer_name()));
                Type::Error
            }
        };
        for field in fields {
            let value = self.visit(&mut field.value);
            let wanted =
                if made.is_struct() { self.field(field.id, &made, &field.name) } else { Type::Error };
            let value = if field.optional { self.unwrapped(field.value.id, value) } else { value };
            if wanted == Type::Error && matches!(&made, Type::Opaque(name) if &**name == "JSONPatch") {
                // Of a field that does not exist kube-apiserver says that it has no type.
                self.issues.pop();
                let name = &field.name;
                let message = format!("expected type of field '{name}' is '' but provided type is '{value}'");
                self.complain(field.id, message);
            } else if !self.fits(&wanted, &value) {
                self.complain(
                    field.id,
                    format!(
                        "expected type of field '{}' is '{wanted}' but provided type is '{value}'",
                        field.name
                    ),
                );
            }
        }
        made
    }

    fn fold(&mut self, fold: &mut Fold) -> Type {
        let range = self.visit(&mut fold.range);
        let collected = self.visit(&mut fold.init);
        let range = self.mapping.fill(&range);
        let (first, second) = match &range {
            Type::List(item) if fold.second.is_some() => (Type::Int, Type::clone(item)),
            Type::List(item) => (Type::clone(item), Type::Dyn),
            Type::Map(key, value) => (Type::clone(key), Type::clone(value)),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.fits(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.complain(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let depth = self.locals.len();
        self.locals.push((fold.accumulator.clone(), collected.clone()));
        self.locals.push((fold.first.clone(), first));
        self.locals.extend(fold.second.clone().map(|name| (name, second)));
        self.assert(&mut fold.condition, &Type::Bool);
        self.assert(&mut fold.step, &collected);
        self.locals.truncate(depth + 1);
        let result = self.visit(&mut fold.result);
        self.locals.truncate(depth);
        self.mapping.fill(&result)
    }

    fn assert(&mut self, expr: &mut Expr, wanted: &Type) {
        let found = self.visit(expr);
        if !self.fits(wanted, &found) {
            self.mismatch(expr.id, wanted, &found);
        }
    }
}

/// Replaces the parameters of a signature by variables.
fn instance(mapping: &mut Mapping, params: &mut Vec<(&'static str, Type)>, ty: &Type) -> Type {
    match ty {
        Type::Param(name) => match params.iter().find(|(known, _)| known == name) {
            Some((_, ty)) => ty.clone(),
            None => {
                let fresh = mapping.fresh();
                params.push((name, fresh.clone()));
                fresh
            }
        },
        other => other.with_parts(&mut |part| instance(mapping, params, part)),
    }
}

fn literal(value: &Value) -> Type {
    match value {
        Value::Null => Type::Null,
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        _ => Type::Dyn,
    }
}
