//! What the parser makes of a script.
//!
//! Chains (`a + b - c`, `a.b.c()`) are lists and not left-deep trees, so that the depth of a tree is bounded by the
//! nesting that the parser allows, and whoever walks it may recurse.

/// A local variable, as an index into [`Function::variables`].
pub(super) type VariableId = usize;

#[derive(Debug)]
pub(super) struct Variable {
    pub(super) slot: u16,
    /// Does an inner function use it? Then it lives in a cell of its own.
    pub(super) captured: bool,
}

/// Where a closure finds a variable of the functions around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A local variable of the function right outside.
    Local(VariableId),
    /// An upvalue of the function right outside.
    Upvalue(u16),
}

#[derive(Debug, Default)]
pub(super) struct Function {
    pub(super) parameters: Vec<VariableId>,
    pub(super) vararg: bool,
    pub(super) body: Block,
    pub(super) variables: Vec<Variable>,
    pub(super) upvalues: Vec<Source>,
    /// How many slots its variables need at most at one time.
    pub(super) slots: u16,
    pub(super) line: u32,
}

pub(super) type Block = Vec<Statement>;

#[derive(Debug)]
pub(super) enum Statement {
    Local {
        variables: Vec<VariableId>,
        values: Vec<Expression>,
        line: u32,
    },
    LocalFunction {
        variable: VariableId,
        function: Box<Function>,
        line: u32,
    },
    Assign {
        targets: Vec<Expression>,
        values: Vec<Expression>,
        line: u32,
    },
    Call(Expression),
    Do(Block),
    While {
        condition: Expression,
        body: Block,
        line: u32,
    },
    Repeat {
        body: Block,
        condition: Expression,
    },
    If {
        arms: Vec<(Expression, Block)>,
        otherwise: Option<Block>,
    },
    /// `slot` is the first of three hidden ones: counter, limit, step.
    Count {
        slot: u16,
        variable: VariableId,
        start: Expression,
        limit: Expression,
        step: Option<Expression>,
        body: Block,
        line: u32,
    },
    /// `slot` is the first of three hidden ones: iterator, state, control.
    Each {
        slot: u16,
        variables: Vec<VariableId>,
        values: Vec<Expression>,
        body: Block,
        line: u32,
    },
    Return {
        values: Vec<Expression>,
        line: u32,
    },
    Break,
    Goto(String),
    Label(String),
}

#[derive(Debug)]
pub(super) enum Expression {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Vec<u8>),
    Vararg(u32),
    Function(Box<Function>),
    Local(VariableId),
    Upvalue(u16),
    Global(String, u32),
    /// In parentheses: of several values only the first is left.
    Single(Box<Expression>),
    Suffixed {
        head: Box<Expression>,
        suffixes: Vec<Suffix>,
    },
    Unary(Unary, Box<Expression>, u32),
    /// Operators applied one after the other to what stands before them.
    Chain {
        first: Box<Expression>,
        rest: Vec<(Binary, Expression, u32)>,
    },
    Table(Vec<Item>, u32),
}

#[derive(Debug)]
pub(super) enum Suffix {
    Index(Expression, u32),
    /// `name` is how messages call the function: the last word before the arguments.
    Call {
        arguments: Vec<Expression>,
        name: String,
        line: u32,
    },
    Method {
        name: String,
        arguments: Vec<Expression>,
        line: u32,
    },
}

#[derive(Debug)]
pub(super) enum Item {
    Positional(Expression),
    Keyed(Expression, Expression),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Negate,
    Length,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
}

impl Binary {
    pub(super) fn from_sign(sign: &str) -> Option<Self> {
        Some(match sign {
            "or" => Self::Or,
            "and" => Self::And,
            "<" => Self::Less,
            "<=" => Self::LessEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterEqual,
            "==" => Self::Equal,
            "~=" => Self::NotEqual,
            ".." => Self::Concat,
            "+" => Self::Add,
            "-" => Self::Subtract,
            "*" => Self::Multiply,
            "/" => Self::Divide,
            "%" => Self::Modulo,
            "^" => Self::Power,
            _ => return None,
        })
    }
}
