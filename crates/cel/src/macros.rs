//! Macros: calls that become something else before anybody looks at types. They expand into what cel-go expands them into,
//! since that is what is checked, counted and evaluated.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use crate::ast::{ACCUMULATOR, Entry, Expr, Field, Fold, Kind};
use crate::parser::{Parser, call};
use crate::value::Value;

/// A variable that nothing asks for.
const UNUSED: &str = "#unused";
/// The list that `sortBy` is called on.
const SORTED: &str = "@__sortBy_input__";

/// A call without a receiver.
pub(crate) fn global(parser: &mut Parser<'_>, at: usize, name: String, mut args: Vec<Expr>) -> Expr {
    if name != "has" || args.len() != 1 {
        return parser.node(at, Kind::Call { target: None, function: name, args });
    }
    let arg = args.remove(0);
    match arg.kind {
        Kind::Select { operand, field, .. } => parser.node(at, Kind::Select { operand, field, test: true }),
        _ => {
            let offset = parser.offset(arg.id);
            parser.complain(offset, "invalid argument to has() macro")
        }
    }
}

/// A call with a receiver.
pub(crate) fn member(
    parser: &mut Parser<'_>,
    at: usize,
    target: Expr,
    name: String,
    mut args: Vec<Expr>,
) -> Expr {
    let mut make = Maker { parser, at };
    let expanded = match (name.as_str(), args.len()) {
        ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => make.quantifier(&name, target, args),
        ("map", 2 | 3) => make.map(target, args),
        ("filter", 2) => make.filter(target, args),
        ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
            make.transform(&name, target, args)
        }
        ("optMap" | "optFlatMap", 2) => make.opt_map(&name, target, args),
        ("sortBy", 2) => make.sort_by(target, args),
        _ => {
            let target = Some(Box::new(target));
            args.shrink_to_fit();
            return parser.node(at, Kind::Call { target, function: name, args });
        }
    };
    expanded.unwrap_or_else(|(id, message)| {
        let offset = parser.offset(id);
        parser.complain(offset, message)
    })
}

/// Where a macro is used wrongly, and how.
type Wrong = (usize, String);

/// Makes nodes that all stand where the macro stands.
struct Maker<'a, 'b> {
    parser: &'a mut Parser<'b>,
    at: usize,
}

impl Maker<'_, '_> {
    fn node(&mut self, kind: Kind) -> Expr {
        self.parser.node(self.at, kind)
    }

    fn literal(&mut self, value: Value) -> Expr {
        self.node(Kind::Literal(value))
    }

    fn ident(&mut self, name: &str) -> Expr {
        self.node(Kind::Ident(name.to_owned()))
    }

    fn accumulator(&mut self) -> Expr {
        self.ident(ACCUMULATOR)
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.node(call(function, args))
    }

    fn method(&mut self, target: Expr, function: &str, args: Vec<Expr>) -> Expr {
        let target = Some(Box::new(target));
        self.node(Kind::Call { target, function: function.to_owned(), args })
    }

    /// A loop over `range` that collects into the accumulator.
    fn fold(
        &mut self,
        range: Expr,
        names: Names,
        init: Expr,
        condition: Expr,
        step: Expr,
        result: Expr,
    ) -> Expr {
        let (first, second) = names;
        let accumulator = ACCUMULATOR.to_owned();
        let fold = Fold { range, first, second, accumulator, init, condition, step, result };
        self.node(Kind::Fold(Box::new(fold)))
    }

    /// Gives a value a name inside an expression, as a loop that never runs.
    fn bind(&mut self, name: &str, value: Expr, body: Expr) -> Expr {
        let range = self.node(Kind::List(Vec::new()));
        let condition = self.literal(Value::Bool(false));
        let step = self.ident(name);
        let fold = Fold {
            range,
            first: UNUSED.to_owned(),
            second: None,
            accumulator: name.to_owned(),
            init: value,
            condition,
            step,
            result: body,
        };
        self.node(Kind::Fold(Box::new(fold)))
    }

    fn quantifier(&mut self, name: &str, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Wrong> {
        let body = args.pop().expect("a quantifier has a condition");
        let names = if args.len() == 2 {
            two(&args)?
        } else {
            (one(variable(&args), "argument must be a simple name")?, None)
        };
        let (init, condition, step, result);
        match name {
            "all" => {
                init = self.literal(Value::Bool(true));
                let so_far = self.accumulator();
                condition = self.call("@not_strictly_false", vec![so_far]);
                let so_far = self.accumulator();
                step = self.call("_&&_", vec![so_far, body]);
                result = self.accumulator();
            }
            "exists" => {
                init = self.literal(Value::Bool(false));
                let so_far = self.accumulator();
                let not = self.call("!_", vec![so_far]);
                condition = self.call("@not_strictly_false", vec![not]);
                let so_far = self.accumulator();
                step = self.call("_||_", vec![so_far, body]);
                result = self.accumulator();
            }
            _ => {
                init = self.literal(Value::Int(0));
                condition = self.literal(Value::Bool(true));
                let (so_far, one) = (self.accumulator(), self.literal(Value::Int(1)));
                let more = self.call("_+_", vec![so_far, one]);
                let as_before = self.accumulator();
                step = self.call("_?_:_", vec![body, more, as_before]);
                let (so_far, one) = (self.accumulator(), self.literal(Value::Int(1)));
                result = self.call("_==_", vec![so_far, one]);
            }
        }
        Ok(self.fold(range, names, init, condition, step, result))
    }

    /// A loop that adds to a list or map, perhaps only where a filter holds.
    fn collect(&mut self, range: Expr, names: Names, init: Kind, step: Expr, filter: Option<Expr>) -> Expr {
        let init = self.node(init);
        let condition = self.literal(Value::Bool(true));
        let step = match filter {
            Some(filter) => {
                let as_before = self.accumulator();
                self.call("_?_:_", vec![filter, step, as_before])
            }
            None => step,
        };
        let result = self.accumulator();
        self.fold(range, names, init, condition, step, result)
    }

    fn append(&mut self, item: Expr) -> Expr {
        let so_far = self.accumulator();
        let list = self.node(Kind::List(vec![(item, false)]));
        self.call("_+_", vec![so_far, list])
    }

    fn map(&mut self, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Wrong> {
        let name = one(variable(&args), "argument is not an identifier")?;
        let body = args.pop().expect("map has a body");
        let filter = if args.len() == 2 { args.pop() } else { None };
        let step = self.append(body);
        Ok(self.collect(range, (name, None), Kind::List(Vec::new()), step, filter))
    }

    fn filter(&mut self, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Wrong> {
        let name = one(variable(&args), "argument is not an identifier")?;
        let filter = args.pop();
        let item = args.pop().expect("filter has a variable");
        let step = self.append(item);
        Ok(self.collect(range, (name, None), Kind::List(Vec::new()), step, filter))
    }

    fn transform(&mut self, name: &str, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Wrong> {
        let names = two(&args)?;
        let body = args.pop().expect("a transformation has a body");
        let filter = if args.len() == 3 { args.pop() } else { None };
        if name == "transformList" {
            let step = self.append(body);
            return Ok(self.collect(range, names, Kind::List(Vec::new()), step, filter));
        }
        let so_far = self.accumulator();
        let args = if name == "transformMap" {
            let key = self.ident(&names.0);
            vec![so_far, key, body]
        } else {
            vec![so_far, body]
        };
        let step = self.call("cel.@mapInsert", args);
        Ok(self.collect(range, names, Kind::Map(Vec::new()), step, filter))
    }

    fn opt_map(&mut self, name: &str, target: Expr, mut args: Vec<Expr>) -> Result<Expr, Wrong> {
        let body = args.pop().expect("there is a body");
        let named = variable(&args);
        let Kind::Ident(variable) = &named.kind else {
            return Err((named.id, format!("{name}() variable name must be a simple identifier")));
        };
        let copy = self.copy(&target);
        let asked = self.method(target, "hasValue", Vec::new());
        let value = self.method(copy, "value", Vec::new());
        let mut bound = self.bind(variable, value, body);
        if name == "optMap" {
            bound = self.call("optional.of", vec![bound]);
        }
        let none = self.call("optional.none", Vec::new());
        Ok(self.call("_?_:_", vec![asked, bound, none]))
    }

    fn sort_by(&mut self, target: Expr, args: Vec<Expr>) -> Result<Expr, Wrong> {
        if matches!(target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Struct { .. }) {
            let message =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err((target.id, message.to_owned()));
        }
        let list = self.ident(SORTED);
        let keys = self.map(list, args)?;
        let list = self.ident(SORTED);
        let sorted = self.method(list, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bind(SORTED, target, sorted))
    }

    /// Returns the same expression with numbers of its own.
    fn copy(&mut self, expr: &Expr) -> Expr {
        let mut boxed = |expr: &Expr| Box::new(self.copy(expr));
        let kind = match &expr.kind {
            Kind::Literal(value) => Kind::Literal(value.clone()),
            Kind::Ident(name) => Kind::Ident(name.clone()),
            Kind::Select { operand, field, test } => {
                Kind::Select { operand: boxed(operand), field: field.clone(), test: *test }
            }
            Kind::Call { target, function, args } => {
                let args = args.iter().map(|arg| *boxed(arg)).collect();
                Kind::Call {
                    target: target.as_ref().map(|target| boxed(target)),
                    function: function.clone(),
                    args,
                }
            }
            Kind::List(items) => {
                Kind::List(items.iter().map(|(item, optional)| (*boxed(item), *optional)).collect())
            }
            Kind::Map(entries) => {
                let copy = |entry: &Entry| Entry {
                    key: *boxed(&entry.key),
                    value: *boxed(&entry.value),
                    optional: entry.optional,
                };
                Kind::Map(entries.iter().map(copy).collect())
            }
            Kind::Struct { name, fields } => {
                let fields = fields
                    .iter()
                    .map(|field| {
                        let value = *boxed(&field.value);
                        Field { id: field.id, name: field.name.clone(), value, optional: field.optional }
                    })
                    .collect();
                Kind::Struct { name: name.clone(), fields }
            }
            Kind::Fold(fold) => Kind::Fold(Box::new(Fold {
                range: *boxed(&fold.range),
                first: fold.first.clone(),
                second: fold.second.clone(),
                accumulator: fold.accumulator.clone(),
                init: *boxed(&fold.init),
                condition: *boxed(&fold.condition),
                step: *boxed(&fold.step),
                result: *boxed(&fold.result),
            })),
        };
        let offset = self.parser.offset(expr.id);
        self.parser.node(offset, kind)
    }
}

/// The variables of a loop.
type Names = (String, Option<String>);

fn one(expr: &Expr, otherwise: &str) -> Result<String, Wrong> {
    match &expr.kind {
        Kind::Ident(name) if name == "__result__" => {
            Err((expr.id, "iteration variable overwrites accumulator variable".to_owned()))
        }
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err((expr.id, otherwise.to_owned())),
    }
}

/// Returns the argument that names the variable.
fn variable(args: &[Expr]) -> &Expr {
    args.first().expect("the number of arguments chose the macro")
}

fn two(args: &[Expr]) -> Result<Names, Wrong> {
    let plain = |expr: &Expr| match &expr.kind {
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err((expr.id, "argument must be a simple name".to_owned())),
    };
    let [one_of_them, other, ..] = args else { unreachable!("the number of arguments chose the macro") };
    let (first, second) = (plain(one_of_them)?, plain(other)?);
    if first == second {
        return Err((other.id, format!("duplicate variable name: {first}")));
    }
    let message = "argument must be a simple name";
    Ok((one(one_of_them, message)?, Some(one(other, message)?)))
}
