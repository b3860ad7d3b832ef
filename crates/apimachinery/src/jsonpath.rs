//! JSON paths in kubectl's dialect, as printer columns, scale paths and selectable fields use them.
//!
//! In: an expression such as `.spec.containers[*].name` or `{.status.conditions[?(@.type=="Ready")].status}`, and an
//! object. Out: the values it points to. Missing keys yield nothing; they are not an error. A [`Template`] is text with such
//! expressions in it.

use std::cell::Cell;
use std::cmp::Ordering;

use serde_json::Value;

mod parse;
mod template;

pub use template::{Template, Unfilled};

/// Why an expression is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// A parsed expression; parsing is done once, finding often.
#[derive(Debug, Clone, PartialEq)]
pub struct Path {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// `.name`, `['name']`
    Field(String),
    /// `[0]`, `[-1]`
    Index(i64),
    /// `[1:3]`, `[::2]`
    Slice { from: Option<i64>, to: Option<i64>, step: i64 },
    /// `[*]`, `.*`
    Every,
    /// `..`
    Descend,
    /// `[0,2]`, `['a','b']`
    Union(Vec<Path>),
    /// `[?(@.type=="Ready")]`
    Filter(Box<Filter>),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Operand,
    comparison: Option<(Comparison, Operand)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Literal(Value),
    /// Relative to the element under test.
    Path(Path),
}

/// How much may be looked at and printed. Steps that name everything below multiply, so that a short text can ask for more than any
/// memory holds.
#[derive(Debug)]
pub struct Fuel(Cell<usize>);

impl Fuel {
    /// Returns fuel for so many values and bytes together.
    pub fn new(amount: usize) -> Self {
        Self(Cell::new(amount))
    }

    fn endless() -> Self {
        Self::new(usize::MAX)
    }

    /// Uses up some of it; returns false, and leaves nothing, if there is not enough.
    fn burn(&self, amount: usize) -> bool {
        let left = self.0.get().checked_sub(amount);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }

    fn is_empty(&self) -> bool {
        self.0.get() == 0
    }
}

impl Path {
    /// Parses an expression, with or without the braces of a template.
    pub fn parse(expression: &str) -> Result<Self, Error> {
        parse::path(expression)
    }

    /// Returns the values that the path points to, in document order.
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        self.walk(root, &Fuel::endless())
    }

    /// Returns the values that the path points to, if the fuel lasts.
    pub fn find_within<'a>(&self, root: &'a Value, fuel: &Fuel) -> Option<Vec<&'a Value>> {
        let found = self.walk(root, fuel);
        (!fuel.is_empty()).then_some(found)
    }

    fn walk<'a>(&self, root: &'a Value, fuel: &Fuel) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                step.follow(value, fuel, &mut next);
            }
            found = next;
        }
        found
    }

    /// Returns the first value, which for a path without wildcards is the only one.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.find(root).into_iter().next()
    }

    /// Returns the field names if the path consists of plain names only: `.spec.replicas`.
    pub fn simple(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// Returns the text of a value as kubectl prints a result: strings bare, everything else as JSON.
pub fn print(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => crate::json::write(other),
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value, fuel: &Fuel, out: &mut Vec<&'a Value>) {
        if !fuel.burn(1) {
            return;
        }
        match self {
            Self::Field(name) => out.extend(value.get(name.as_str())),
            Self::Index(index) => {
                if let Value::Array(items) = value {
                    out.extend(position(*index, items.len()).and_then(|index| items.get(index)));
                }
            }
            Self::Slice { from, to, step } => {
                if let Value::Array(items) = value {
                    let clamp = |bound: i64| {
                        let length = items.len() as i64;
                        (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(0, length)
                            as usize
                    };
                    let start = clamp(from.unwrap_or(0));
                    let end = clamp(to.unwrap_or(items.len() as i64));
                    if start < end {
                        out.extend(
                            items
                                .get(start..end)
                                .unwrap_or_default()
                                .iter()
                                .step_by(usize::try_from(*step).unwrap_or(1).max(1)),
                        );
                    }
                }
            }
            Self::Every => match value {
                Value::Array(items) => out.extend(items),
                Value::Object(entries) => out.extend(entries.values()),
                _ => {}
            },
            Self::Descend => descend(value, fuel, out),
            Self::Union(paths) => {
                for path in paths {
                    out.extend(path.walk(value, fuel));
                }
            }
            Self::Filter(filter) => {
                if let Value::Array(items) = value {
                    out.extend(items.iter().filter(|item| filter.accepts(item, fuel)));
                }
            }
        }
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index.checked_add(length)? } else { index }).ok()
}

fn descend<'a>(value: &'a Value, fuel: &Fuel, out: &mut Vec<&'a Value>) {
    if !fuel.burn(1) {
        return;
    }
    out.push(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| descend(item, fuel, out)),
        Value::Object(entries) => entries.values().for_each(|item| descend(item, fuel, out)),
        _ => {}
    }
}

impl Filter {
    fn accepts(&self, element: &Value, fuel: &Fuel) -> bool {
        let Some(left) = self.left.resolve(element, fuel) else { return false };
        let Some((comparison, right)) = &self.comparison else { return true };
        let Some(right) = right.resolve(element, fuel) else { return false };
        let order = compare(left, right);
        match comparison {
            Comparison::Equal => order == Some(Ordering::Equal) || left == right,
            Comparison::NotEqual => {
                order.is_some_and(|order| order != Ordering::Equal) || (order.is_none() && left != right)
            }
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => order == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl Operand {
    fn resolve<'a>(&'a self, element: &'a Value, fuel: &Fuel) -> Option<&'a Value> {
        match self {
            Self::Literal(value) => Some(value),
            Self::Path(path) => path.walk(element, fuel).into_iter().next(),
        }
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "spec": {"replicas": 3, "a.b": 1, "list": [10, 20, 30, 40], "nodes": [{"name": "x", "cpu": 1}, {"name": "y", "cpu": 4}]},
            "status": {"conditions": [
                {"type": "Available", "status": "True"},
                {"type": "Ready", "status": "False", "ok": true},
            ]},
        })
    }

    fn found(expression: &str) -> Vec<Value> {
        let path = Path::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        path.find(&sample()).into_iter().cloned().collect()
    }

    #[test]
    fn expressions_find_what_kubectl_finds() {
        for (expression, values) in [
            (".spec.replicas", vec![json!(3)]),
            ("{.spec.replicas}", vec![json!(3)]),
            ("spec.replicas", vec![json!(3)]),
            ("$.spec.replicas", vec![json!(3)]),
            (".spec['replicas']", vec![json!(3)]),
            (r#".spec["replicas"]"#, vec![json!(3)]),
            (r".spec.a\.b", vec![json!(1)]),
            (".spec['a.b']", vec![json!(1)]),
            (".spec.missing.deep", vec![]),
            (".spec.replicas.deep", vec![]),
            (".spec.list[0]", vec![json!(10)]),
            (".spec.list[-1]", vec![json!(40)]),
            (".spec.list[9]", vec![]),
            (".spec.list[1:3]", vec![json!(20), json!(30)]),
            (".spec.list[:2]", vec![json!(10), json!(20)]),
            (".spec.list[::2]", vec![json!(10), json!(30)]),
            (".spec.list[-2:]", vec![json!(30), json!(40)]),
            (".spec.list[0,2]", vec![json!(10), json!(30)]),
            (".spec.list[*]", vec![json!(10), json!(20), json!(30), json!(40)]),
            (".spec.nodes[*].name", vec![json!("x"), json!("y")]),
            (".spec.nodes[*]['name','cpu']", vec![json!("x"), json!(1), json!("y"), json!(4)]),
            (".status.conditions[?(@.type==\"Ready\")].status", vec![json!("False")]),
            (".status.conditions[?(@.type=='Ready')].status", vec![json!("False")]),
            (".status.conditions[?(@.type!='Ready')].status", vec![json!("True")]),
            (".status.conditions[?(@.ok)].type", vec![json!("Ready")]),
            (".status.conditions[?(@.ok==true)].type", vec![json!("Ready")]),
            (".spec.nodes[?(@.cpu>2)].name", vec![json!("y")]),
            (".spec.nodes[?(@.cpu<=1)].name", vec![json!("x")]),
            (".spec.nodes[?( @.cpu >= 1 )].name", vec![json!("x"), json!("y")]),
            ("..name", vec![json!("x"), json!("y")]),
            (".spec.nodes[0].*", vec![json!(1), json!("x")]),
        ] {
            assert_eq!(found(expression), values, "{expression}");
        }
    }

    #[test]
    fn broken_expressions_are_refused() {
        let deep = ".a[?(@".repeat(100_000);
        for expression in [
            deep.as_str(),
            "{.a",
            ".a[",
            ".a[x",
            ".a[?(@.b",
            ".a['b",
            ".a[1:2:0]",
            ".a]",
            "{.a}{.b}",
            ".a[?(@.b==)]",
        ] {
            let shown = expression.get(..20).unwrap_or(expression);
            assert!(Path::parse(expression).is_err(), "{shown}");
        }
    }

    #[test]
    fn simple_paths_give_their_names() {
        assert_eq!(Path::parse(".spec.replicas").unwrap().simple(), Some(vec!["spec", "replicas"]));
        assert_eq!(Path::parse(".spec.list[0]").unwrap().simple(), None);
    }

    #[test]
    fn results_print_as_kubectl_prints_them() {
        assert_eq!(print(&json!("x")), "x");
        assert_eq!(print(&json!(1.0)), "1");
        assert_eq!(print(&json!({"a": [true]})), r#"{"a":[true]}"#);
    }
}
