//! How a checked expression is evaluated: what is constant is computed once, selections are gathered into paths.
//!
//! In: a checked expression. Out: a plan for [`crate::eval`], or why a constant part of it cannot be computed. It is cel-go's plan
//! with its optimizations, since what is computed beforehand costs nothing later.

use crate::EvalError;
use crate::ast::{Expr, Id, Kind};
use crate::checker::{self, Facts};
use crate::functions::{self, strings};
use crate::types::Type;
use crate::value::{Key, Object, Value};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: Id,
    pub(crate) op: Op,
}

#[derive(Debug)]
pub(crate) enum Op {
    Const(Value),
    Path(Path),
    /// `has(…)`: the path ends in a test.
    Test(Path),
    And([Box<Node>; 2]),
    Or([Box<Node>; 2]),
    Equal([Box<Node>; 2]),
    NotEqual([Box<Node>; 2]),
    Call(Call),
    /// `or` and `orValue` look at the second operand only when the first is empty.
    OrElse {
        operands: [Box<Node>; 2],
        unwraps: bool,
    },
    /// Membership in a constant list of simple values.
    InSet {
        value: Box<Node>,
        set: Vec<Value>,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Struct {
        name: String,
        fields: Vec<(String, Node, bool)>,
    },
    Fold(Box<FoldPlan>),
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: String,
    /// Empty if only the values decide.
    pub(crate) overload: &'static str,
    pub(crate) member: bool,
    pub(crate) args: Vec<Node>,
    /// An argument that fails ends the call: the ones behind it are not looked at.
    pub(crate) ends_early: bool,
}

/// A value and what is selected from it, step by step.
#[derive(Debug)]
pub(crate) struct Path {
    id: Id,
    pub(crate) root: Root,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) enum Root {
    Name(String),
    Value(Box<Node>),
    Choice { test: Box<Node>, yes: Box<Path>, no: Box<Path> },
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) id: Id,
    pub(crate) optional: bool,
    pub(crate) by: std::sync::Arc<By>,
}

/// What a step selects by.
#[derive(Debug)]
pub(crate) enum By {
    Field(Value),
    /// Whether there is such a field.
    Test(Value),
    Path(Path),
    Value(Node),
}

#[derive(Debug)]
pub(crate) struct FoldPlan {
    pub(crate) range: Node,
    pub(crate) first: String,
    pub(crate) second: Option<String>,
    pub(crate) accumulator: String,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}

impl Path {
    /// Returns the number by which its value is known.
    pub(crate) fn id(&self) -> Id {
        if let Root::Choice { yes, no, .. } = &self.root {
            return if yes.id() == no.id() { yes.id() } else { self.id };
        }
        self.steps.last().map_or(self.id, |step| step.id)
    }

    fn push(&mut self, step: Step) {
        match &mut self.root {
            Root::Choice { yes, no, .. } => {
                yes.push(step.clone());
                no.push(step);
            }
            _ => self.steps.push(step),
        }
    }
}

/// Makes a plan.
///
/// *Errors*: a conversion of a constant that fails, or a pattern that is none.
pub(crate) fn plan(root: &Expr, facts: &Facts) -> Result<Node, EvalError> {
    Planner { facts }.plan(root)
}

struct Planner<'a> {
    facts: &'a Facts,
}

impl Planner<'_> {
    fn plan(&self, expr: &Expr) -> Result<Node, EvalError> {
        let id = expr.id;
        let op = match &expr.kind {
            Kind::Literal(value) => Op::Const(value.clone()),
            Kind::Ident(name) => self.name(id, name)?,
            Kind::Select { operand, field, test } => {
                let mut path = self.path(operand)?;
                let field = Value::text(field.as_str());
                let by = if *test { By::Test(field) } else { By::Field(field) };
                path.push(Step { id, optional: false, by: by.into() });
                if *test { Op::Test(path) } else { Op::Path(path) }
            }
            Kind::Call { target, function, args } => self.call(id, target.as_deref(), function, args)?,
            Kind::List(items) => {
                let items = items.iter().map(|(item, optional)| Ok((self.plan(item)?, *optional)));
                list(items.collect::<Result<_, EvalError>>()?)
            }
            Kind::Map(entries) => {
                let entries = entries
                    .iter()
                    .map(|entry| Ok((self.plan(&entry.key)?, self.plan(&entry.value)?, entry.optional)));
                map(entries.collect::<Result<_, EvalError>>()?)
            }
            Kind::Struct { name, fields } => {
                let fields = fields
                    .iter()
                    .map(|field| Ok((field.name.clone(), self.plan(&field.value)?, field.optional)));
                Op::Struct { name: name.clone(), fields: fields.collect::<Result<_, EvalError>>()? }
            }
            Kind::Fold(fold) => Op::Fold(Box::new(FoldPlan {
                range: self.plan(&fold.range)?,
                first: fold.first.clone(),
                second: fold.second.clone(),
                accumulator: fold.accumulator.clone(),
                init: self.plan(&fold.init)?,
                condition: self.plan(&fold.condition)?,
                step: self.plan(&fold.step)?,
                result: self.plan(&fold.result)?,
            })),
        };
        Ok(Node { id, op })
    }

    fn name(&self, id: Id, name: &str) -> Result<Op, EvalError> {
        if matches!(self.facts.types[id], Type::Type(_)) {
            return match checker::named_type(name) {
                Some(ty) => Ok(Op::Const(Value::Type(ty.outer_name().into()))),
                None => Err(EvalError(format!("reference to undefined type: {name}"))),
            };
        }
        Ok(Op::Path(Path { id, root: Root::Name(name.to_owned()), steps: Vec::new() }))
    }

    /// Returns a path that steps can be added to.
    fn path(&self, expr: &Expr) -> Result<Path, EvalError> {
        let node = self.plan(expr)?;
        Ok(as_path(node))
    }

    fn call(&self, id: Id, target: Option<&Expr>, function: &str, args: &[Expr]) -> Result<Op, EvalError> {
        if matches!(function, "_[_]" | "_[?_]" | "_?._")
            && let [operand, index] = args
        {
            let mut path = self.path(operand)?;
            let index = self.plan(index)?;
            let by = match index.op {
                Op::Const(value) => By::Field(value),
                Op::Path(path) | Op::Test(path) => By::Path(path),
                _ => By::Value(index),
            };
            path.push(Step { id, optional: function != "_[_]", by: by.into() });
            return Ok(Op::Path(path));
        }
        let member = target.is_some();
        let mut args: Vec<Node> =
            target.into_iter().chain(args).map(|arg| self.plan(arg)).collect::<Result<_, _>>()?;
        let pair = |args: &mut Vec<Node>| {
            let right = Box::new(args.pop().expect("it takes two operands"));
            [Box::new(args.pop().expect("it takes two operands")), right]
        };
        match function {
            "_&&_" => return Ok(Op::And(pair(&mut args))),
            "_||_" => return Ok(Op::Or(pair(&mut args))),
            "_==_" => return Ok(Op::Equal(pair(&mut args))),
            "_!=_" => return Ok(Op::NotEqual(pair(&mut args))),
            "or" | "orValue" if args.len() == 2 => {
                return Ok(Op::OrElse { operands: pair(&mut args), unwraps: function == "orValue" });
            }
            "_?_:_" => {
                let no = Box::new(as_path(args.pop().expect("there are two results")));
                let yes = Box::new(as_path(args.pop().expect("there are two results")));
                let test = Box::new(args.pop().expect("there is a test"));
                return Ok(Op::Path(Path { id, root: Root::Choice { test, yes, no }, steps: Vec::new() }));
            }
            _ => {}
        }
        let overload = match self.facts.overloads[id].as_slice() {
            [one] => one,
            _ => "",
        };
        // Where values decide between overloads, and where a function was written for any number of arguments, it stops at the
        // first that fails.
        let dispatches = overload.is_empty() && !functions::is_singleton(function);
        let mut ends_early = args.len() > 2 || dispatches || function == "format";
        if let (1 | 2, "matches" | "find" | "findAll") = (args.len().saturating_sub(1), function)
            && let Op::Const(Value::String(pattern)) = &args[1].op
        {
            strings::compile(pattern).map_err(EvalError)?;
            ends_early = true;
        }
        let call = Call { function: function.to_owned(), overload, member, args, ends_early };
        self.fold_constants(call)
    }

    fn fold_constants(&self, mut call: Call) -> Result<Op, EvalError> {
        if call.overload == "in_list"
            && let [_, Node { op: Op::Const(Value::List(list)), .. }] = call.args.as_slice()
        {
            if list.is_empty() {
                return Ok(Op::Const(Value::Bool(false)));
            }
            let simple = |value: &Value| {
                matches!(
                    value,
                    Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::String(_)
                )
            };
            if list.iter().all(simple) {
                let set = list.to_vec();
                call.args.truncate(1);
                let value = Box::new(call.args.pop().expect("it has two operands"));
                return Ok(Op::InSet { value, set });
            }
        }
        let converts = matches!(
            call.function.as_str(),
            "bool"
                | "bytes"
                | "double"
                | "duration"
                | "dyn"
                | "int"
                | "string"
                | "timestamp"
                | "type"
                | "uint"
        );
        if converts && let [Node { op: Op::Const(value), .. }] = call.args.as_slice() {
            return functions::call(false, &call.function, std::slice::from_ref(value)).map(Op::Const);
        }
        Ok(Op::Call(call))
    }
}

fn as_path(node: Node) -> Path {
    match node.op {
        Op::Path(path) | Op::Test(path) => path,
        _ => Path { id: node.id, root: Root::Value(Box::new(node)), steps: Vec::new() },
    }
}

fn list(items: Vec<(Node, bool)>) -> Op {
    let constant: Option<Vec<Value>> = items
        .iter()
        .map(|(item, optional)| match &item.op {
            Op::Const(value) if !optional => Some(value.clone()),
            _ => None,
        })
        .collect();
    constant.map_or(Op::List(items), |values| Op::Const(Value::list(values)))
}

fn map(entries: Vec<(Node, Node, bool)>) -> Op {
    let constant = entries
        .iter()
        .map(|(key, value, optional)| match (&key.op, &value.op) {
            (Op::Const(key), Op::Const(value)) if !optional => Some((Key::of(key)?, value.clone())),
            _ => None,
        })
        .collect::<Option<_>>();
    constant.map_or(Op::Map(entries), |entries| Op::Const(Value::Map(std::sync::Arc::new(entries))))
}

/// Returns an object that an expression has put together.
pub(crate) fn made(name: &str, fields: std::collections::BTreeMap<String, Value>) -> Value {
    Value::Object(std::sync::Arc::new(Object { name: name.into(), fields }))
}
