//! Estimates what an expression may cost before there are values: at least this, at most that.
//!
//! In: a checked expression and the declaration of its root variable. Out: a range. It follows cel-go's estimate step by step,
//! oddities included, so that the same rules are refused for being too expensive. What calls cost is in [`crate::calls`].

use std::collections::BTreeMap;

use crate::ast::{Expr, Fold, Id, Kind};
use crate::calls;
use crate::checker::Facts;
use crate::decl::Decl;
use crate::types::Type;
use crate::value::Value;

/// A range of costs or sizes; it never exceeds what a number can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

impl Range {
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    pub(crate) const ZERO: Self = Self::exactly(0);
    /// Smaller and larger than everything: what it is united with remains.
    const NONE: Self = Self { min: u64::MAX, max: 0 };

    pub(crate) const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    pub(crate) const fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplies by a factor and rounds up.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        // Conversion of a float that is too large ends at the largest number.
        let scale = |value: u64| (value as f64 * factor).ceil() as u64;
        Self { min: scale(self.min), max: scale(self.max) }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Sizes of the keys and values of a list or map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries {
    is_list: bool,
    key: Range,
    value: Range,
}

impl Entries {
    fn union(self, other: Self) -> Self {
        Self { is_list: self.is_list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

/// What is known of an argument of a call.
#[derive(Debug, Clone)]
pub(crate) struct Part<'e> {
    /// From a variable through fields and items; empty if it leads nowhere.
    pub(crate) path: Vec<String>,
    pub(crate) ty: Type,
    pub(crate) expr: Option<&'e Expr>,
    pub(crate) size: Option<Range>,
}

impl Part<'_> {
    pub(crate) fn int(&self) -> Option<i64> {
        match self.expr.map(|expr| &expr.kind) {
            Some(Kind::Literal(Value::Int(number))) => Some(*number),
            _ => None,
        }
    }
}

/// Returns what an expression may cost.
pub(crate) fn estimate(root: &Expr, facts: &Facts, decl: Option<&Decl>) -> Range {
    let mut coster = Coster {
        facts,
        decl,
        locals: Vec::new(),
        paths: BTreeMap::new(),
        sizes: BTreeMap::new(),
        entries: BTreeMap::new(),
    };
    coster.cost(root)
}

struct Local {
    name: String,
    path: Vec<String>,
    size: Option<Range>,
    entries: Option<Entries>,
}

pub(crate) struct Coster<'a> {
    facts: &'a Facts,
    decl: Option<&'a Decl>,
    locals: Vec<Local>,
    paths: BTreeMap<Id, Vec<String>>,
    sizes: BTreeMap<Id, Range>,
    entries: BTreeMap<Id, Entries>,
}

impl<'a> Coster<'a> {
    fn cost(&mut self, expr: &'a Expr) -> Range {
        let one = Range::exactly(1);
        match &expr.kind {
            Kind::Literal(_) => Range::ZERO,
            Kind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![name.clone()], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                one
            }
            // A test costs nothing but what it takes to get there.
            Kind::Select { operand, test: true, .. } => self.cost(operand),
            Kind::Select { operand, field, .. } => {
                let cost = self.cost(operand);
                let mut path = self.path(operand);
                path.push(field.clone());
                self.paths.insert(expr.id, path);
                let ty = &self.facts.types[operand.id];
                if matches!(ty, Type::Map(..)) || ty.is_struct() { cost.plus(one) } else { cost }
            }
            Kind::Call { target, function, args } => self.call(expr, target.as_deref(), function, args),
            Kind::List(items) => {
                let mut cost = Range::exactly(10);
                let mut value = if items.is_empty() { Range::ZERO } else { Range::NONE };
                for (item, _) in items {
                    cost = cost.plus(self.cost(item));
                    value = value.union(self.size_or_unknown(item));
                }
                self.entries.insert(expr.id, Entries { is_list: true, key: one, value });
                cost
            }
            Kind::Map(entries) => {
                let mut cost = Range::exactly(30);
                let least = if entries.is_empty() { Range::ZERO } else { Range::NONE };
                let (mut key, mut value) = (least, least);
                for entry in entries {
                    cost = cost.plus(self.cost(&entry.key)).plus(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, Entries { is_list: false, key, value });
                cost
            }
            Kind::Struct { fields, .. } => {
                fields.iter().fold(Range::exactly(40), |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn call(&mut self, expr: &'a Expr, target: Option<&'a Expr>, function: &str, args: &'a [Expr]) -> Range {
        if function == "dyn"
            && let [arg] = args
        {
            let cost = self.cost(arg);
            self.copy_sizes(expr, arg);
            return cost.plus(Range::exactly(1));
        }
        let (mut costs, mut parts) = (Vec::new(), Vec::new());
        for arg in args {
            costs.push(self.cost(arg));
            parts.push(self.part(arg));
        }
        let overloads = &self.facts.overloads[expr.id];
        if overloads.is_empty() {
            return Range::ZERO;
        }
        let before = target.map_or(Range::ZERO, |target| self.cost(target));
        let target = target.map(|target| self.part(target));
        let (mut cost, mut size) = (Range::NONE, None::<Range>);
        for id in overloads {
            let (each, result) = self.overload(expr, function, id, target.as_ref(), args, &parts, &costs);
            cost = cost.union(each);
            size = match (size, result) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            if let ("index_list" | "index_map", Some(operand)) = (*id, args.first()) {
                size = self.entries_of(operand).map(|entries| entries.value);
                let mut path = self.path(operand);
                path.push(if *id == "index_list" { "@items" } else { "@values" }.to_owned());
                self.paths.insert(expr.id, path);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        before.plus(cost)
    }

    #[expect(clippy::too_many_arguments, reason = "a call, its parts, and what they cost")]
    fn overload(
        &mut self,
        expr: &'a Expr,
        function: &str,
        id: &str,
        target: Option<&Part<'a>>,
        args: &'a [Expr],
        parts: &[Part<'a>],
        costs: &[Range],
    ) -> (Range, Option<Range>) {
        let arguments = costs.iter().fold(Range::ZERO, |sum, cost| sum.plus(*cost));
        let size = |index: usize| parts[index].size.unwrap_or(Range::UNKNOWN);
        match (id, costs) {
            ("logical_and" | "logical_or", [left, right]) => {
                return (Range { min: left.min, max: left.plus(*right).max }, None);
            }
            ("conditional", [test, yes, no]) => {
                let both = self.entries_of(&args[1]).zip(self.entries_of(&args[2]));
                if let Some((yes, no)) = both {
                    self.entries.insert(expr.id, yes.union(no));
                }
                return (test.plus(yes.union(*no)), Some(size(1).union(size(2))));
            }
            ("add_string" | "add_bytes" | "add_list", [_, _]) => {
                if let Some((left, right)) = self.entries_of(&args[0]).zip(self.entries_of(&args[1])) {
                    self.entries.insert(expr.id, left.union(right));
                }
            }
            _ => {}
        }
        let sizes = Sizes { decl: self.decl };
        let (cost, result) = calls::cost(&sizes, function, id, target, parts);
        (cost.plus(arguments), result)
    }

    fn fold(&mut self, expr: &'a Expr, fold: &'a Fold) -> Range {
        let mut cost = self.cost(&fold.range).plus(self.cost(&fold.init));
        let (path, size, entries) =
            (self.path(&fold.init), self.size(&fold.init), self.entries_of(&fold.init));
        self.locals.push(Local { name: fold.accumulator.clone(), path, size, entries });
        if is_bind(fold) {
            cost = cost.plus(self.cost(&fold.result));
            self.locals.pop();
            self.copy_sizes(expr, &fold.result);
            return cost;
        }
        let depth = self.locals.len();
        let known = self.entries_of(&fold.range);
        let is_list = known
            .map_or_else(|| matches!(self.facts.types[fold.range.id], Type::List(_)), |known| known.is_list);
        let (keys, values) = if is_list { ("@indices", "@items") } else { ("@keys", "@values") };
        let push = |this: &mut Self, name: &str, part: &str, size: Option<Range>| {
            let mut path = this.path(&fold.range);
            path.push(part.to_owned());
            this.locals.push(Local { name: name.to_owned(), path, size, entries: None });
        };
        match &fold.second {
            Some(second) => {
                push(self, &fold.first, keys, known.map(|known| known.key));
                push(self, second, values, known.map(|known| known.value));
            }
            None if is_list => push(self, &fold.first, values, known.map(|known| known.value)),
            None => push(self, &fold.first, keys, known.map(|known| known.key)),
        }
        let ask = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.locals.truncate(depth);
        cost = cost.plus(self.cost(&fold.result));
        self.locals.pop();
        let rounds = self.size_or_unknown(&fold.range);
        cost = cost.plus(rounds.times(step.plus(ask)));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.sizes.insert(expr.id, rounds);
                if let Some(entries) = self.entries_of(&fold.step) {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        cost
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn local_of(&self, expr: &Expr) -> Option<&Local> {
        match &expr.kind {
            Kind::Ident(name) => self.local(name),
            _ => None,
        }
    }

    fn path(&self, expr: &Expr) -> Vec<String> {
        let local = self.local_of(expr).map(|local| &local.path);
        local.or_else(|| self.paths.get(&expr.id)).cloned().unwrap_or_default()
    }

    fn part(&mut self, expr: &'a Expr) -> Part<'a> {
        let path = self.path(expr);
        let size = self.size(expr);
        let path = if path.first().is_some_and(|first| first == crate::ast::ACCUMULATOR) {
            Vec::new()
        } else {
            path
        };
        Part { path, ty: self.facts.types[expr.id].clone(), expr: Some(expr), size }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    /// Returns the size, if that can be told. Declared sizes count more than what the expression says.
    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = written(expr) {
            return Some(size);
        }
        if let Some(size) = (Sizes { decl: self.decl }).declared(&self.path(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.facts.types[expr.id].is_scalar() {
            return Some(Range::exactly(1));
        }
        self.local_of(expr).and_then(|local| local.size)
    }

    fn entries_of(&self, expr: &Expr) -> Option<Entries> {
        self.entries.get(&expr.id).copied().or_else(|| self.local_of(expr).and_then(|local| local.entries))
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.size(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entries) = self.entries_of(from) {
            self.entries.insert(to.id, entries);
        }
    }
}

/// Says whether a loop only gives a value a name.
fn is_bind(fold: &Fold) -> bool {
    matches!(&fold.range.kind, Kind::List(items) if items.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Value::Bool(false)))
}

/// Returns the size of what stands in the source.
fn written(expr: &Expr) -> Option<Range> {
    let size = match &expr.kind {
        Kind::Literal(Value::String(text)) => text.chars().count(),
        Kind::Literal(Value::Bytes(bytes)) => bytes.len(),
        Kind::Literal(_) => 1,
        Kind::List(items) => items.len(),
        Kind::Map(entries) => entries.len(),
        _ => return None,
    };
    Some(Range::exactly(size as u64))
}

/// Knows how large things were declared to be.
pub(crate) struct Sizes<'a> {
    decl: Option<&'a Decl>,
}

impl Sizes<'_> {
    /// Returns the size at a path. kube-apiserver takes every variable for the root.
    fn declared(&self, path: &[String]) -> Option<Range> {
        let (_, path) = path.split_first()?;
        Some(Range::up_to(self.decl?.at(path)?.max))
    }

    pub(crate) fn of(&self, part: &Part<'_>) -> Range {
        part.size.or_else(|| self.declared(&part.path)).unwrap_or(Range::UNKNOWN)
    }

    /// Returns what the items of a list, or the keys of a map, are.
    pub(crate) fn item<'e>(&self, part: &Part<'e>) -> Option<Part<'e>> {
        let ty = match &part.ty {
            Type::List(item) | Type::Optional(item) | Type::Map(item, _) => Type::clone(item),
            _ => return None,
        };
        let mut path = part.path.clone();
        if !path.is_empty() {
            path.push("@items".to_owned());
        }
        Some(Part { path, ty, expr: None, size: None })
    }
}

#[test]
fn estimates_do_not_overflow() {
    let much = Range::UNKNOWN;
    assert_eq!(much.plus(Range::exactly(1)).max, u64::MAX);
    assert_eq!(much.times(Range::exactly(2)).max, u64::MAX);
    assert_eq!(Range::exactly(11).scaled(0.1), Range::exactly(2));
    assert_eq!(much.scaled(2.0).max, u64::MAX);
}
