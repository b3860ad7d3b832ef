//! The evaluator: walks the expression, counts its steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, Kind, Loop, LoopKind};
use crate::value::{Key, Object, Value};
use crate::{EvalError, Question, Variables, functions};

pub(crate) struct Machine<'a, 'b> {
    variables: &'a Variables<'a>,
    budget: &'b mut u64,
    scope: Vec<(String, Value)>,
}

pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError(message.into()))
}

impl<'a, 'b> Machine<'a, 'b> {
    pub(crate) fn new(variables: &'a Variables<'a>, budget: &'b mut u64) -> Self {
        Self { variables, budget, scope: Vec::new() }
    }

    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), EvalError> {
        match self.budget.checked_sub(steps) {
            Some(left) => {
                *self.budget = left;
                Ok(())
            }
            None => {
                *self.budget = 0;
                fail("operation cancelled: actual cost limit exceeded")
            }
        }
    }

    pub(crate) fn run(&mut self, expr: &Expr) -> Result<Value, EvalError> {
        self.spend(1)?;
        match &expr.kind {
            Kind::Literal(value) => Ok(value.clone()),
            Kind::Ident(name) => self.variable(name),
            Kind::Select { of, field, optional } => match self.run(of) {
                // To those who ask, this is one name.
                Err(error) if field == "requestResource" && error.0 == "no such attribute(s): authorizer" => {
                    fail("no such attribute(s): authorizer.requestResource")
                }
                of => self.select(of?, field, *optional),
            },
            Kind::Has { of, field } => {
                let of = self.run(of)?;
                self.has(&of, field)
            }
            Kind::Index { of, index, optional } => {
                let of = self.run(of)?;
                let index = self.run(index)?;
                self.index(of, &index, *optional)
            }
            Kind::Call { target, name, args } => self.call(target.as_deref(), name, args),
            Kind::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (item, optional) in items {
                    match (self.run(item)?, optional) {
                        (Value::Optional(inner), true) => list.extend(inner.map(|inner| *inner)),
                        (value, _) => list.push(value),
                    }
                }
                Ok(Value::list(list))
            }
            Kind::Map(entries) => {
                let mut map = BTreeMap::new();
                for (key, value, optional) in entries {
                    let key = self.run(key)?;
                    let Some(key) = Key::of(&key) else { return fail("unsupported key type") };
                    match (self.run(value)?, optional) {
                        (Value::Optional(None), true) => {}
                        (Value::Optional(Some(inner)), true) => {
                            map.insert(key, *inner);
                        }
                        (value, _) => {
                            if map.insert(key, value).is_some() {
                                return fail("map key conflict");
                            }
                        }
                    }
                }
                Ok(Value::Map(Arc::new(map)))
            }
            Kind::Struct { name, fields } => {
                let mut made = BTreeMap::new();
                for (field, value, optional) in fields {
                    match (self.run(value)?, optional) {
                        (Value::Optional(None), true) => {}
                        (Value::Optional(Some(inner)), true) => {
                            made.insert(field.clone(), *inner);
                        }
                        (value, _) => {
                            made.insert(field.clone(), value);
                        }
                    }
                }
                Ok(Value::Object(Arc::new(Object { name: name.as_str().into(), fields: made })))
            }
            Kind::And(a, b) => self.logic(a, b, false),
            Kind::Or(a, b) => self.logic(a, b, true),
            Kind::Condition(test, yes, no) => match self.run(test)? {
                Value::Bool(true) => self.run(yes),
                Value::Bool(false) => self.run(no),
                _ => fail("no such overload"),
            },
            Kind::Loop(inner) => self.walk(inner),
            Kind::Bind { name, value, body } => {
                let value = self.run(value)?;
                self.with(name, value, body)
            }
            Kind::OptMap { target, name, body, flat } => match self.run(target)? {
                Value::Optional(None) => Ok(Value::Optional(None)),
                Value::Optional(Some(value)) => {
                    let result = self.with(name, *value, body)?;
                    if *flat { Ok(result) } else { Ok(Value::some(result)) }
                }
                _ => fail("no such overload"),
            },
        }
    }

    fn with(&mut self, name: &str, value: Value, body: &Expr) -> Result<Value, EvalError> {
        self.scope.push((name.to_owned(), value));
        let result = self.run(body);
        self.scope.pop();
        result
    }

    fn variable(&self, name: &str) -> Result<Value, EvalError> {
        if let Some((_, value)) = self.scope.iter().rev().find(|(known, _)| known == name) {
            return Ok(value.clone());
        }
        if let Some(value) = self.variables.values.get(name) {
            return Ok(value.clone());
        }
        if self.variables.lazy.contains_key(name) {
            return Ok(Value::Lazy(name.into()));
        }
        if name == "authorizer" && self.variables.authorizer.is_some() {
            return Ok(Value::Authorizer(Arc::new(Question::default())));
        }
        let types = ["int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"];
        if let Some(known) = types.iter().find(|known| **known == name) {
            return Ok(Value::Type(known));
        }
        match name {
            // The namespace of named formats.
            "format" => Ok(Value::Format("")),
            "timestamp" => Ok(Value::Type("google.protobuf.Timestamp")),
            "duration" => Ok(Value::Type("google.protobuf.Duration")),
            _ => fail(format!("no such attribute(s): {name}")),
        }
    }

    fn select(&mut self, of: Value, field: &str, optional: bool) -> Result<Value, EvalError> {
        match of {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => self.select(*inner, field, true),
            Value::Map(map) => match (map.get(&Key::String(field.into())), optional) {
                (Some(value), true) => Ok(Value::some(value.clone())),
                (Some(value), false) => Ok(value.clone()),
                (None, true) => Ok(Value::Optional(None)),
                (None, false) => fail(format!("no such key: {field}")),
            },
            Value::Object(object) => match (object.fields.get(field), optional) {
                (Some(value), true) => Ok(Value::some(value.clone())),
                (Some(value), false) => Ok(value.clone()),
                (None, true) => Ok(Value::Optional(None)),
                (None, false) => fail(format!("no such field: {field}")),
            },
            // A variable of its own to those who declare it; only its name is made up of two.
            Value::Authorizer(_) if field == "requestResource" => {
                let request = self.variables.authorizer.map(|authorizer| authorizer.request());
                Ok(Value::Authorizer(Arc::new(request.unwrap_or_default())))
            }
            Value::Lazy(name) => {
                let Some(lazy) = self.variables.lazy.get(&*name) else {
                    return fail(format!("no such attribute(s): {name}"));
                };
                match lazy.field(field, self.budget) {
                    Some(value) => value,
                    None => fail(format!("no such key: {field}")),
                }
            }
            // What has no fields lacks this one, too.
            _ => fail(format!("no such key: {field}")),
        }
    }

    fn has(&mut self, of: &Value, field: &str) -> Result<Value, EvalError> {
        match of {
            Value::Map(map) => Ok(Value::Bool(map.contains_key(&Key::String(field.into())))),
            Value::Object(object) => Ok(Value::Bool(object.fields.contains_key(field))),
            Value::Optional(None) => Ok(Value::Bool(false)),
            Value::Optional(Some(inner)) => self.has(inner, field),
            Value::Lazy(name) => {
                let lazy = self.variables.lazy.get(&**name);
                let found = lazy.and_then(|lazy| lazy.field(field, self.budget));
                Ok(Value::Bool(found.transpose()?.is_some()))
            }
            _ => Ok(Value::Bool(false)),
        }
    }

    fn index(&mut self, of: Value, index: &Value, optional: bool) -> Result<Value, EvalError> {
        let wrap = |value: &Value| if optional { Value::some(value.clone()) } else { value.clone() };
        match of {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => self.index(*inner, index, true),
            Value::List(list) => {
                let Some(Key::Int(at)) = Key::of(index) else { return fail("unsupported index type") };
                match usize::try_from(at).ok().and_then(|at| list.get(at)) {
                    Some(value) => Ok(wrap(value)),
                    None if optional => Ok(Value::Optional(None)),
                    None => fail(format!("index out of bounds: {at}")),
                }
            }
            Value::Map(map) => {
                let Some(key) = Key::of(index) else { return fail("unsupported key type") };
                match map.get(&key) {
                    Some(value) => Ok(wrap(value)),
                    None if optional => Ok(Value::Optional(None)),
                    None => fail(format!("no such key: {}", functions::convert::show(index))),
                }
            }
            _ => fail("no such overload"),
        }
    }

    /// Either side may decide alone, even if the other one fails.
    fn logic(&mut self, a: &Expr, b: &Expr, decisive: bool) -> Result<Value, EvalError> {
        let left = self.run(a);
        if matches!(left, Ok(Value::Bool(value)) if value == decisive) {
            return Ok(Value::Bool(decisive));
        }
        let right = self.run(b);
        if matches!(right, Ok(Value::Bool(value)) if value == decisive) {
            return Ok(Value::Bool(decisive));
        }
        match (left, right) {
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decisive)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => fail("no such overload"),
        }
    }

    fn walk(&mut self, inner: &Loop) -> Result<Value, EvalError> {
        let over = self.run(&inner.over)?;
        let pairs: Vec<(Value, Value)> = match &over {
            Value::List(list) => {
                let index = |n: usize| Value::Int(i64::try_from(n).unwrap_or(i64::MAX));
                list.iter().enumerate().map(|(n, value)| (index(n), value.clone())).collect()
            }
            Value::Map(map) => map.iter().map(|(key, value)| (key.to_value(), value.clone())).collect(),
            _ => return fail("no such overload"),
        };
        let is_list = matches!(over, Value::List(_));
        let mut list = Vec::new();
        let mut map = BTreeMap::new();
        let mut hits = 0;
        let mut problem: Option<EvalError> = None;
        for (key, value) in pairs {
            self.spend(1)?;
            let depth = self.scope.len();
            match &inner.second {
                None => {
                    self.scope.push((inner.first.clone(), if is_list { value.clone() } else { key.clone() }))
                }
                Some(second) => {
                    self.scope.push((inner.first.clone(), key.clone()));
                    self.scope.push((second.clone(), value.clone()));
                }
            }
            let wanted = match &inner.filter {
                None => Ok(true),
                Some(filter) => self.run(filter).and_then(|value| truth(&value)),
            };
            let result = match wanted {
                Ok(true) => self.run(&inner.body).map(Some),
                Ok(false) => Ok(None),
                Err(error) => Err(error),
            };
            self.scope.truncate(depth);
            match inner.kind {
                LoopKind::All | LoopKind::Exists => {
                    let decisive = inner.kind == LoopKind::Exists;
                    match result {
                        Ok(Some(Value::Bool(value))) if value == decisive => {
                            return Ok(Value::Bool(decisive));
                        }
                        Ok(Some(Value::Bool(_)) | None) => {}
                        Ok(Some(_)) => problem = Some(EvalError("no such overload".to_owned())),
                        Err(error) if error.0.starts_with("operation cancelled") => return Err(error),
                        Err(error) => problem = Some(error),
                    }
                }
                LoopKind::ExistsOne => {
                    hits += usize::from(result?.map(|value| truth(&value)).transpose()? == Some(true))
                }
                LoopKind::Filter => {
                    if result?.map(|value| truth(&value)).transpose()? == Some(true) {
                        list.push(if is_list { value } else { key });
                    }
                }
                LoopKind::Map => list.extend(result?),
                LoopKind::TransformMap => {
                    if let (Some(value), Some(key)) = (result?, Key::of(&key)) {
                        map.insert(key, value);
                    }
                }
                LoopKind::TransformMapEntry => {
                    if let Some(Value::Map(entry)) = result? {
                        for (key, value) in entry.iter() {
                            if map.insert(key.clone(), value.clone()).is_some() {
                                return fail("insert failed: key already exists");
                            }
                        }
                    }
                }
            }
        }
        match inner.kind {
            LoopKind::All | LoopKind::Exists => match problem {
                Some(error) => Err(error),
                None => Ok(Value::Bool(inner.kind == LoopKind::All)),
            },
            LoopKind::ExistsOne => Ok(Value::Bool(hits == 1)),
            LoopKind::Filter | LoopKind::Map => Ok(Value::list(list)),
            LoopKind::TransformMap | LoopKind::TransformMapEntry => Ok(Value::Map(Arc::new(map))),
        }
    }

    fn call(&mut self, target: Option<&Expr>, name: &str, args: &[Expr]) -> Result<Value, EvalError> {
        let target = target.map(|target| self.run(target)).transpose()?;
        // These two look at the second operand only when the first is empty.
        if let (Some(Value::Optional(inner)), "orValue" | "or", [other]) = (&target, name, args) {
            return match (inner, name) {
                (Some(value), "orValue") => Ok((**value).clone()),
                (Some(_), _) => Ok(target.expect("just matched")),
                (None, _) => self.run(other),
            };
        }
        let args = args.iter().map(|arg| self.run(arg)).collect::<Result<Vec<_>, _>>()?;
        let size: u64 = target.iter().chain(&args).map(functions::weight).sum();
        self.spend(size)?;
        if let Some(Value::Authorizer(question)) = &target {
            if name == "check" {
                self.spend(crate::calls::CHECK)?;
            }
            return functions::authorizer::call(question, name, &args, self.variables.authorizer);
        }
        functions::call(target.as_ref(), name, &args)
    }
}

pub(crate) fn truth(value: &Value) -> Result<bool, EvalError> {
    match value {
        Value::Bool(value) => Ok(*value),
        _ => fail("no such overload"),
    }
}
