//! Expressions as the checker, the estimate and the evaluator see them: macros are already expanded.
//!
//! Every node has a number of its own. Positions, types and chosen overloads are kept beside the tree by that number, as
//! cel-go keeps them, since its costs depend on which node a value was computed by.

use crate::value::Value;

/// The number of a node.
pub(crate) type Id = usize;

/// The variable that collects the result of a loop; it cannot be written in an expression.
pub(crate) const ACCUMULATOR: &str = "@result";

/// A parsed expression and where its nodes stand in the source.
#[derive(Debug)]
pub(crate) struct Ast {
    pub(crate) root: Expr,
    /// Byte offsets by node.
    pub(crate) offsets: Vec<usize>,
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Literal(Value),
    Ident(String),
    /// `operand.field`, or `has(operand.field)` if it is only a test.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    /// A function or an operator; operators are called `_+_` and the like.
    Call {
        target: Option<Box<Expr>>,
        function: String,
        args: Vec<Expr>,
    },
    /// Items, and whether they are optional.
    List(Vec<(Expr, bool)>),
    Map(Vec<Entry>),
    /// `Object.spec{replicas: 1}`.
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// The colon: field errors are told there.
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// What macros over lists and maps become: a loop that computes a value step by step.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    pub(crate) range: Expr,
    pub(crate) first: String,
    /// With two variables the first is the index or key, the second the value.
    pub(crate) second: Option<String>,
    pub(crate) accumulator: String,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

impl Expr {
    /// Returns the name that a chain of plain selections spells.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => {
                Some(format!("{}.{field}", operand.qualified_name()?))
            }
            _ => None,
        }
    }

    /// Calls `visit` with the node and everything below, the node itself first.
    pub(crate) fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        self.children(&mut |child| child.walk(visit));
    }

    pub(crate) fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => visit(operand),
            Kind::Call { target, args, .. } => {
                target.iter().for_each(|target| visit(target));
                args.iter().for_each(visit);
            }
            Kind::List(items) => items.iter().for_each(|(item, _)| visit(item)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                visit(&entry.key);
                visit(&entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    visit(part);
                }
            }
        }
    }
}
