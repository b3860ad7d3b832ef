//! Expressions, with macros already recognised.

use crate::value::Value;

/// An expression and where it starts in the source.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    pub(crate) at: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Literal(Value),
    Ident(String),
    /// `of.field`, or with a question mark.
    Select {
        of: Box<Expr>,
        field: String,
        optional: bool,
    },
    /// `has(of.field)`.
    Has {
        of: Box<Expr>,
        field: String,
    },
    Index {
        of: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    Call {
        target: Option<Box<Expr>>,
        name: String,
        args: Vec<Expr>,
    },
    List(Vec<(Expr, bool)>),
    Map(Vec<(Expr, Expr, bool)>),
    /// `Object.spec{replicas: 1}`: a name, and fields with whether their values may be missing.
    Struct {
        name: String,
        fields: Vec<(String, Expr, bool)>,
    },
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Condition(Box<Expr>, Box<Expr>, Box<Expr>),
    Loop(Box<Loop>),
    /// `cel.bind(name, value, body)`.
    Bind {
        name: String,
        value: Box<Expr>,
        body: Box<Expr>,
    },
    /// `target.optMap(name, body)`; flat: the body is optional itself.
    OptMap {
        target: Box<Expr>,
        name: String,
        body: Box<Expr>,
        flat: bool,
    },
}

/// A comprehension over a list or a map.
#[derive(Debug, Clone)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) over: Expr,
    pub(crate) first: String,
    /// With two variables the first is the index or key, the second the value.
    pub(crate) second: Option<String>,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    /// The body is the predicate.
    Filter,
    Map,
    TransformMap,
    TransformMapEntry,
}
