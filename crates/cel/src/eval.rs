//! The evaluator: walks a plan, counts what it costs.
//!
//! In: a plan, values of variables, a limit. Out: a value, or an error in cel-go's words. Errors are values until the end: `&&` and
//! `||` may do without a side that fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Id};
use crate::functions::{self, authorizer};
use crate::plan::{self, By, Call, FoldPlan, Node, Op, Path, Root, Step};
use crate::schema;
use crate::tracker::{self, Exceeded, Tracker};
use crate::value::{Key, Value};
use crate::{EvalError, Question, Variables};

pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T, EvalError> {
    Err(EvalError(message.into()))
}

/// Why there is no value.
enum Stop {
    Error(EvalError),
    Cancelled,
}

impl From<Exceeded> for Stop {
    fn from(_: Exceeded) -> Self {
        Self::Cancelled
    }
}

impl From<EvalError> for Stop {
    fn from(error: EvalError) -> Self {
        Self::Error(error)
    }
}

type Outcome = Result<Value, Stop>;

fn error<T>(message: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Error(EvalError(message.into())))
}

/// Evaluates a plan; returns the result and what it has cost, variables that were computed on the way included.
pub(crate) fn run(node: &Node, variables: &Variables<'_>, limit: u64) -> (Result<Value, EvalError>, u64) {
    let mut machine =
        Machine { variables, tracker: Tracker::new(limit), frames: Vec::new(), current: None, elsewhere: 0 };
    let result = match machine.eval(node) {
        Ok(value) => Ok(value),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Cancelled) => fail(crate::CANCELLED),
    };
    (result, machine.tracker.cost.saturating_add(machine.elsewhere))
}

/// The variables of a loop that is running.
struct Frame<'p> {
    plan: &'p FoldPlan,
    /// Not there until somebody asks for it.
    accumulator: Option<Result<Value, EvalError>>,
    first: Value,
    second: Value,
    /// The loop is over: its variables are gone.
    ended: bool,
    outer: Option<usize>,
}

struct Machine<'a, 'p> {
    variables: &'a Variables<'a>,
    tracker: Tracker,
    frames: Vec<Frame<'p>>,
    current: Option<usize>,
    /// What computing other variables has cost.
    elsewhere: u64,
}

impl<'p> Machine<'_, 'p> {
    fn eval(&mut self, node: &'p Node) -> Outcome {
        if let Some(result) = self.collect(node) {
            return result;
        }
        let result = self.raw(node);
        if let Err(Stop::Cancelled) = result {
            return result;
        }
        self.count(node, &result);
        self.note(node.id, &result)?;
        result
    }

    fn raw(&mut self, node: &'p Node) -> Outcome {
        match &node.op {
            Op::Const(value) => Ok(value.clone()),
            Op::Path(path) => self.resolve(path),
            Op::Test(path) => self.resolve(path).map(|value| match value {
                Value::Optional(inner) => Value::Bool(inner.is_some()),
                other => other,
            }),
            Op::And(terms) => self.logic(terms, false),
            Op::Or(terms) => self.logic(terms, true),
            Op::Equal(terms) => match self.both(terms)? {
                (a, b) if !a.knows(&b) => error("no such overload"),
                (a, b) => Ok(Value::Bool(a.equals(&b))),
            },
            Op::NotEqual(terms) => self.both(terms).map(|(a, b)| Value::Bool(!a.equals(&b))),
            Op::Call(call) => self.call(call),
            Op::OrElse { operands: [first, second], unwraps } => match self.eval(first) {
                Ok(Value::Optional(Some(inner))) if *unwraps => Ok(*inner),
                Ok(Value::Optional(None)) => self.eval(second),
                other => other,
            },
            Op::InSet { value, set } => {
                self.eval(value).map(|value| Value::Bool(set.iter().any(|item| item.equals(&value))))
            }
            Op::List(items) => self.list(items),
            Op::Map(entries) => self.map(entries),
            Op::Struct { name, fields } => self.object(name, fields),
            Op::Fold(fold) => self.fold(fold),
        }
    }

    /// Adds to what a loop has collected, in place: one item more shall not mean one copy more. `None` if the node does
    /// something else. What it adds to is not kept for the count, which does not look at it.
    fn collect(&mut self, node: &'p Node) -> Option<Outcome> {
        let Op::Call(call) = &node.op else { return None };
        let frame = self.current?;
        let [Node { id, op: Op::Path(Path { root: Root::Name(name), steps, .. }) }, rest @ ..] =
            call.args.as_slice()
        else {
            return None;
        };
        let grows = matches!(call.function.as_str(), "_+_" | "cel.@mapInsert");
        // Only loops collect; a name that was given to a list stands for it again and again.
        if !grows || !steps.is_empty() || name != ACCUMULATOR || self.frames[frame].plan.accumulator != *name
        {
            return None;
        }
        // What it has collected must not be held on to while it grows.
        match self.accumulator(frame).map(|collected| matches!(collected, Value::List(_) | Value::Map(_))) {
            Ok(true) => Some(self.grow(node, call, frame, *id, rest)),
            Err(Stop::Cancelled) => Some(Err(Stop::Cancelled)),
            _ => None,
        }
    }

    fn grow(&mut self, node: &'p Node, call: &'p Call, frame: usize, first: Id, rest: &'p [Node]) -> Outcome {
        self.tracker.drop(first);
        self.tracker.spend(1);
        self.tracker.push(first, None)?;
        let mut args = Vec::with_capacity(rest.len());
        let mut problem = None;
        for arg in rest {
            match self.settled(arg)? {
                Ok(value) => args.push(value),
                Err(error) => problem = problem.or(Some(error)),
            }
            if problem.is_some() && call.ends_early {
                break;
            }
        }
        let result = match problem {
            Some(error) => Err(error),
            None => match self.frames[frame].accumulator.take() {
                Some(Ok(collected)) => functions::lists::grown(collected, &call.function, args),
                other => other.unwrap_or_else(|| fail("no such overload")),
            },
        };
        if self.tracker.take(call.args.iter().map(|arg| arg.id)).is_some() {
            self.tracker.spend(1);
        }
        self.tracker.push(node.id, None)?;
        Ok(result?)
    }

    /// Counts what a node costs, now that its value is known.
    fn count(&mut self, node: &'p Node, result: &Outcome) {
        let ids = |nodes: &'p [Box<Node>; 2]| nodes.iter().map(|node| node.id);
        let (function, overload, args) = match &node.op {
            Op::Const(_) | Op::InSet { .. } | Op::OrElse { .. } => return,
            Op::Path(path) | Op::Test(path) => {
                match &path.root {
                    Root::Choice { test, yes, no } => {
                        for id in [no.id(), yes.id(), test.id] {
                            self.tracker.drop(id);
                        }
                    }
                    _ => {
                        self.tracker.drop(path.id());
                        self.tracker.spend(1);
                    }
                }
                if matches!(node.op, Op::Test(_)) {
                    self.tracker.refund();
                }
                return;
            }
            Op::And(terms) | Op::Or(terms) => {
                ids(terms).for_each(|id| self.tracker.drop(id));
                return;
            }
            Op::List(items) => {
                self.tracker.take(items.iter().map(|(item, _)| item.id));
                return self.tracker.spend(10);
            }
            Op::Map(entries) => {
                let ids: Vec<Id> = entries.iter().flat_map(|(key, value, _)| [key.id, value.id]).collect();
                self.tracker.take(ids.into_iter());
                return self.tracker.spend(30);
            }
            Op::Struct { fields, .. } => {
                self.tracker.take(fields.iter().map(|(_, value, _)| value.id));
                return self.tracker.spend(40);
            }
            Op::Fold(fold) => return self.tracker.drop(fold.range.id),
            Op::Equal(terms) => ("_==_", "equals", self.tracker.take(ids(terms))),
            Op::NotEqual(terms) => ("_!=_", "not_equals", self.tracker.take(ids(terms))),
            Op::Call(call) => {
                let args = self.tracker.take(call.args.iter().map(|arg| arg.id));
                (call.function.as_str(), call.overload, args)
            }
        };
        if let Some(args) = args {
            self.tracker.spend(tracker::cost(function, overload, &args, result.as_ref().ok()));
        }
    }

    fn note(&mut self, id: Id, result: &Outcome) -> Result<(), Exceeded> {
        self.tracker.push(id, result.as_ref().ok())
    }

    fn both(&mut self, [left, right]: &'p [Box<Node>; 2]) -> Result<(Value, Value), Stop> {
        let left = self.settled(left)?;
        let right = self.settled(right)?;
        Ok((left?, right?))
    }

    /// Evaluates a node; an error does not end things yet.
    fn settled(&mut self, node: &'p Node) -> Result<Result<Value, EvalError>, Stop> {
        match self.eval(node) {
            Ok(value) => Ok(Ok(value)),
            Err(Stop::Error(error)) => Ok(Err(error)),
            Err(Stop::Cancelled) => Err(Stop::Cancelled),
        }
    }

    /// Either side may decide alone, even if the other one fails.
    fn logic(&mut self, terms: &'p [Box<Node>; 2], decisive: bool) -> Outcome {
        let mut problem = None;
        for term in terms {
            match self.settled(term)? {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => problem = problem.or_else(|| Some(EvalError("no such overload".to_owned()))),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        problem.map_or(Ok(Value::Bool(!decisive)), |error| Err(error.into()))
    }

    fn call(&mut self, call: &'p Call) -> Outcome {
        if call.function == "@not_strictly_false" {
            let value = self.settled(&call.args[0])?;
            return Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false)))));
        }
        let mut args = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            let value = self.settled(arg)?;
            if call.ends_early && value.is_err() {
                return Ok(value?);
            }
            args.push(value);
        }
        let args = args.into_iter().collect::<Result<Vec<Value>, _>>()?;
        if let (true, Some(Value::Authorizer(question))) = (call.member, args.first()) {
            return Ok(authorizer::call(question, &call.function, &args[1..], self.variables.authorizer)?);
        }
        if let ("sum", [Value::List(list)]) = (call.function.as_str(), args.as_slice())
            && list.is_empty()
        {
            return Ok(functions::lists::empty_sum(call.overload));
        }
        Ok(functions::call(call.member, &call.function, &args)?)
    }

    fn list(&mut self, items: &'p [(Node, bool)]) -> Outcome {
        let mut list = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.eval(item)?, optional) {
                (Value::Optional(inner), true) => list.extend(inner.map(|inner| *inner)),
                (value, true) => {
                    let shown = functions::convert::go_value(&value);
                    return error(format!(
                        "cannot initialize optional list element from non-optional value {shown}"
                    ));
                }
                (value, false) => list.push(value),
            }
        }
        Ok(Value::list(list))
    }

    fn map(&mut self, entries: &'p [(Node, Node, bool)]) -> Outcome {
        let mut map = BTreeMap::new();
        for (key, value, optional) in entries {
            let shown = self.eval(key)?;
            let value = self.eval(value)?;
            let Some(key) = Key::of(&shown) else { return error("unsupported key type") };
            match (value, optional) {
                (Value::Optional(None), true) => {
                    map.remove(&key);
                }
                (Value::Optional(Some(inner)), true) => {
                    map.insert(key, *inner);
                }
                (value, true) => {
                    let (key, value) =
                        (functions::convert::go_value(&shown), functions::convert::go_value(&value));
                    return error(format!(
                        "cannot initialize optional entry '{key}' from non-optional value {value}"
                    ));
                }
                (value, false) => {
                    map.insert(key, value);
                }
            }
        }
        Ok(Value::Map(Arc::new(map)))
    }

    fn object(&mut self, name: &str, fields: &'p [(String, Node, bool)]) -> Outcome {
        let mut made = BTreeMap::new();
        for (field, value, optional) in fields {
            match (self.eval(value)?, optional) {
                (Value::Optional(None), true) => {
                    made.remove(field);
                }
                (Value::Optional(Some(inner)), true) => {
                    made.insert(field.clone(), *inner);
                }
                (value, _) => {
                    made.insert(field.clone(), value);
                }
            }
        }
        Ok(plan::made(name, made))
    }

    fn fold(&mut self, fold: &'p FoldPlan) -> Outcome {
        let range = self.eval(&fold.range)?;
        let index = |at: usize| Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
        let pairs: Vec<(Value, Value)> = match (&range, &fold.second) {
            (Value::List(list), None) => list.iter().map(|value| (value.clone(), Value::Null)).collect(),
            (Value::List(list), Some(_)) => {
                list.iter().enumerate().map(|(at, value)| (index(at), value.clone())).collect()
            }
            (Value::Map(map), _) => map.iter().map(|(key, value)| (key.to_value(), value.clone())).collect(),
            (other, None) => {
                return error(format!(
                    "got '{}', expected iterable type",
                    functions::convert::go_type(other)
                ));
            }
            (other, Some(_)) => {
                let found = functions::convert::go_type(other);
                return error(format!("unsupported comprehension range type: {found}"));
            }
        };
        let own = self.frames.len();
        let outer = self.current.replace(own);
        self.frames.push(Frame {
            plan: fold,
            accumulator: None,
            first: Value::Null,
            second: Value::Null,
            ended: false,
            outer,
        });
        let result = self.rounds(own, fold, pairs);
        self.frames.truncate(own);
        self.current = outer;
        result
    }

    fn rounds(&mut self, own: usize, fold: &'p FoldPlan, pairs: Vec<(Value, Value)>) -> Outcome {
        for (first, second) in pairs {
            self.frames[own].first = first;
            self.frames[own].second = second;
            if matches!(self.settled(&fold.condition)?, Ok(Value::Bool(false))) {
                break;
            }
            let next = match self.step_of(&fold.step) {
                Ok(value) => Ok(value),
                Err(Stop::Error(error)) => Err(error),
                Err(Stop::Cancelled) => return Err(Stop::Cancelled),
            };
            self.frames[own].accumulator = Some(next);
        }
        self.frames[own].ended = true;
        self.eval(&fold.result)
    }

    /// Evaluates the step of a loop; the count does not hold on to its result, as nothing asks for it there.
    fn step_of(&mut self, node: &'p Node) -> Outcome {
        if let Some(result) = self.collect(node) {
            return result;
        }
        let result = self.raw(node);
        if let Err(Stop::Cancelled) = result {
            return result;
        }
        self.count(node, &result);
        self.tracker.push(node.id, None)?;
        result
    }

    fn resolve(&mut self, path: &'p Path) -> Outcome {
        let value = match &path.root {
            Root::Name(name) => self.variable(name)?,
            Root::Value(node) => self.eval(node)?,
            Root::Choice { test, yes, no } => {
                return match self.eval(test)? {
                    Value::Bool(true) => self.resolve(yes),
                    Value::Bool(false) => self.resolve(no),
                    _ => error("no such overload"),
                };
            }
        };
        let (mut value, mut optional) = match value {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) if !path.steps.is_empty() => (*inner, true),
            Value::Optional(Some(inner)) => return Ok(Value::Optional(Some(inner))),
            other => (other, false),
        };
        for step in &path.steps {
            optional |= step.optional;
            match self.step(value, step, optional)? {
                Some(next) => value = next,
                None => return Ok(Value::Optional(None)),
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    /// Takes a step; `None` if there is nothing and nothing has to be.
    fn step(&mut self, operand: Value, step: &'p Step, optional: bool) -> Result<Option<Value>, Stop> {
        let (by, test) = match &*step.by {
            By::Field(field) => (Ok(field.clone()), false),
            By::Test(field) => (Ok(field.clone()), true),
            By::Path(path) => (self.settle(path)?, false),
            By::Value(node) => (self.settled(node)?, false),
        };
        let found = match by {
            Ok(by) => self.look_up(operand, &by, optional || test)?,
            Err(error) => Err(error),
        };
        // A test has a result either way; otherwise what is not there leaves no trace.
        let result = match found {
            Ok(found) if test && !optional => Ok(Some(Value::Bool(found.is_some()))),
            other => other,
        };
        if let By::Value(_) = &*step.by {
            self.tracker.drop(step.id);
        }
        let leaves_no_trace = matches!(result, Ok(None)) || optional && result.is_err();
        if !leaves_no_trace {
            self.tracker.spend(1);
            self.tracker.push(step.id, result.as_ref().ok().and_then(Option::as_ref))?;
        }
        Ok(result?)
    }

    fn settle(&mut self, path: &'p Path) -> Result<Result<Value, EvalError>, Stop> {
        match self.resolve(path) {
            Ok(value) => Ok(Ok(value)),
            Err(Stop::Error(error)) => Ok(Err(error)),
            Err(Stop::Cancelled) => Err(Stop::Cancelled),
        }
    }

    /// Selects from a value. What cannot be is an error, unless it was only asked whether it is there.
    fn look_up(
        &mut self,
        operand: Value,
        by: &Value,
        asks: bool,
    ) -> Result<Result<Option<Value>, EvalError>, Stop> {
        let missing = |what: &str| {
            if asks { Ok(None) } else { fail(format!("{what}: {}", functions::convert::go_value(by))) }
        };
        if !matches!(
            by,
            Value::String(_) | Value::Int(_) | Value::Uint(_) | Value::Bool(_) | Value::Double(_)
        ) {
            return Ok(fail(format!("invalid qualifier type: {}", functions::convert::go_type(by))));
        }
        Ok(match operand {
            Value::Map(map) => {
                // A field with the name of a reserved word may be called by it, too.
                let reserved = || match by {
                    Value::String(word) if schema::is_reserved(word) => {
                        map.get(&Key::String(format!("__{word}__").into()))
                    }
                    _ => None,
                };
                match Key::of(by).and_then(|key| map.get(&key)).or_else(reserved) {
                    Some(value) => Ok(Some(value.clone())),
                    None => missing("no such key"),
                }
            }
            // What an object was not given is null.
            Value::Object(object) => match by {
                Value::String(field) => match object.fields.get(&**field) {
                    None if !asks => Ok(Some(Value::Null)),
                    found => Ok(found.cloned()),
                },
                _ => missing("no such key"),
            },
            Value::List(list) => match by {
                Value::String(_) | Value::Bool(_) => {
                    fail(format!("unsupported index type '{}' in list", by.type_name()))
                }
                _ => match Key::of(by) {
                    Some(Key::Int(at)) => match usize::try_from(at).ok().and_then(|at| list.get(at)) {
                        Some(value) => Ok(Some(value.clone())),
                        None => missing("index out of bounds"),
                    },
                    _ => {
                        fail(format!("unsupported index value {} in list", functions::convert::go_value(by)))
                    }
                },
            },
            Value::Lazy(name) => {
                let lazy = self.variables.lazy.get(&*name);
                let Value::String(field) = by else { return Ok(missing("no such key")) };
                let mut left = u64::MAX;
                let found = lazy.and_then(|lazy| lazy.field(field, &mut left));
                self.elsewhere = self.elsewhere.saturating_add(u64::MAX - left);
                match found {
                    Some(value) => value.map(Some),
                    None => missing("no such key"),
                }
            }
            _ => missing("no such key"),
        })
    }

    fn variable(&mut self, name: &str) -> Outcome {
        let mut at = self.current;
        while let Some(frame) = at.map(|at| &self.frames[at]) {
            if frame.plan.accumulator == name {
                return self.accumulator(at.expect("the frame was just found"));
            }
            if !frame.ended {
                if frame.plan.first == name {
                    return Ok(frame.first.clone());
                }
                if frame.plan.second.as_deref() == Some(name) {
                    return Ok(frame.second.clone());
                }
            }
            at = frame.outer;
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
        // A variable of its own, whose name has a dot in it.
        if name == "authorizer.requestResource"
            && let Some(authorizer) = self.variables.authorizer
        {
            return Ok(Value::Authorizer(Arc::new(authorizer.request())));
        }
        error(format!("no such attribute(s): {name}"))
    }

    /// Returns what a loop has collected so far. What it begins with is computed when somebody first asks, outside of the loop.
    fn accumulator(&mut self, at: usize) -> Outcome {
        if self.frames[at].accumulator.is_none() {
            let inner = std::mem::replace(&mut self.current, self.frames[at].outer);
            let plan = self.frames[at].plan;
            let init = self.settled(&plan.init);
            self.current = inner;
            self.frames[at].accumulator = Some(init?);
        }
        match self.frames[at].accumulator.as_ref().expect("it was just computed") {
            Ok(value) => Ok(value.clone()),
            Err(error) => Err(error.clone().into()),
        }
    }
}
