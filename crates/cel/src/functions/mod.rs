//! The functions: where a call goes, and what is said if it fits none.

pub(crate) mod authorizer;
pub(crate) mod convert;
pub(crate) mod format;
pub(crate) mod formats;
pub(crate) mod lists;
mod net;
mod operators;
mod quantities;
pub(crate) mod semver;
pub(crate) mod strings;
pub(crate) mod time;
pub(crate) mod urls;

use crate::EvalError;
use crate::value::Value;

/// What a function makes of a call: `None` if it is not about these arguments.
type Outcome = Option<Result<Value, EvalError>>;
type Family = fn(Option<&Value>, &str, &[Value]) -> Outcome;

/// Asked in turn; the first that knows the call answers it.
const FAMILIES: [Family; 10] = [
    operators::call,
    convert::call,
    strings::call,
    lists::call,
    time::call,
    urls::call,
    net::call,
    quantities::call,
    semver::call,
    formats::call,
];

/// Calls a function; the first argument of one that is called on a value is that value.
pub(crate) fn call(member: bool, name: &str, args: &[Value]) -> Result<Value, EvalError> {
    let (target, rest) = match args.split_first() {
        Some((first, rest)) if member => (Some(first), rest),
        _ => (None, args),
    };
    let answered = FAMILIES.iter().find_map(|family| family(target, name, rest));
    answered.unwrap_or_else(|| Err(EvalError(unanswered(name, args))))
}

/// Says whether one implementation serves all overloads of a function; it finds out about types by itself.
pub(crate) fn is_singleton(name: &str) -> bool {
    let operator = name.starts_with('_') || matches!(name, "!_" | "-_" | "@in");
    let of_texts = matches!(name, "matches" | "contains" | "startsWith" | "endsWith");
    operator || of_texts || matches!(name, "size" | "type" | "dyn" | "sort" | "@sortByAssociatedKeys")
}

/// Says that a function cannot be called with these values. Operators ask their first operand, which answers shortly;
/// functions are found by the types of all arguments.
fn unanswered(name: &str, args: &[Value]) -> String {
    if name == "flatten"
        && let Some((first, rest)) = args.split_first()
    {
        let rest: Vec<&str> = rest.iter().map(Value::type_name).collect();
        return format!("no such overload: {}.flatten({})", first.type_name(), rest.join(", "));
    }
    if matches!(name, "find" | "findAll") {
        return "no such overload".to_owned();
    }
    if !is_singleton(name) {
        let types: Vec<&str> = args.iter().map(Value::type_name).collect();
        return format!("no such overload: {name}({})", types.join(", "));
    }
    let (string, duration, timestamp) = ("string", "google.protobuf.Duration", "google.protobuf.Timestamp");
    let Some(first) = args.first().map(Value::type_name) else { return "no such overload".to_owned() };
    let capable: &[&str] = match name {
        "_+_" => &["bytes", "double", "int", "uint", "list", string, duration, timestamp],
        "_-_" => &["double", "int", "uint", string, duration, timestamp],
        "_*_" | "_/_" => &["double", "int", "uint", string, duration, timestamp],
        "_%_" => &["int", "uint", string, duration, timestamp],
        "-_" => &["bool", "double", "int", string, duration, timestamp],
        "_<_" | "_<=_" | "_>_" | "_>=_" => {
            &["bool", "bytes", "double", "int", "uint", string, duration, timestamp]
        }
        "size" | "sort" | "@sortByAssociatedKeys" => &[string, duration, timestamp],
        _ => return "no such overload".to_owned(),
    };
    if capable.contains(&first) { "no such overload".to_owned() } else { format!("no such overload: {name}") }
}

fn ok(value: Value) -> Outcome {
    Some(Ok(value))
}

fn bad(message: impl Into<String>) -> Outcome {
    Some(Err(EvalError(message.into())))
}

fn int(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
