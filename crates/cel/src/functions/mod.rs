//! The functions: which exist, and where a call goes.

pub(crate) mod authorizer;
pub(crate) mod convert;
mod formats;
mod lists;
mod math;
mod net;
mod operators;
mod quantities;
pub(crate) mod semver;
mod strings;
pub(crate) mod time;
pub(crate) mod urls;

use crate::EvalError;
use crate::value::Value;

/// What a function makes of a call: `None` if it is not about these arguments.
type Outcome = Option<Result<Value, EvalError>>;
type Family = fn(Option<&Value>, &str, &[Value]) -> Outcome;

/// Asked in turn; the first that knows the call answers it.
const FAMILIES: [Family; 11] = [
    operators::call,
    convert::call,
    strings::call,
    lists::call,
    time::call,
    math::call,
    urls::call,
    net::call,
    quantities::call,
    semver::call,
    formats::call,
];

/// Functions that are called with their arguments alone.
const GLOBAL: &[&str] = &[
    "!_",
    "-_",
    "_+_",
    "_-_",
    "_*_",
    "_/_",
    "_%_",
    "_==_",
    "_!=_",
    "_<_",
    "_<=_",
    "_>_",
    "_>=_",
    "_in_",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "type",
    "dyn",
    "size",
    "timestamp",
    "duration",
    "matches",
    "url",
    "isURL",
    "ip",
    "isIP",
    "ip.isCanonical",
    "cidr",
    "isCIDR",
    "quantity",
    "isQuantity",
    "semver",
    "isSemver",
    "optional.of",
    "optional.ofNonZeroValue",
    "optional.none",
    "math.greatest",
    "math.least",
    "math.ceil",
    "math.floor",
    "math.round",
    "math.trunc",
    "math.abs",
    "math.sign",
    "math.isNaN",
    "math.isInf",
    "math.isFinite",
    "math.bitAnd",
    "math.bitOr",
    "math.bitXor",
    "math.bitNot",
    "math.bitShiftLeft",
    "math.bitShiftRight",
    "math.sqrt",
    "sets.contains",
    "sets.equivalent",
    "sets.intersects",
    "base64.encode",
    "base64.decode",
    "lists.range",
    "strings.quote",
    "format.named",
    "jsonpatch.escapeKey",
];

/// Functions that are called on a value.
const MEMBER: &[&str] = &[
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "charAt",
    "indexOf",
    "lastIndexOf",
    "join",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "reverse",
    "format",
    "find",
    "findAll",
    "isSorted",
    "sum",
    "min",
    "max",
    "includes",
    "flatten",
    "slice",
    "sort",
    "distinct",
    "first",
    "last",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "containsIP",
    "containsCIDR",
    "ip",
    "masked",
    "prefixLength",
    "sign",
    "isInteger",
    "asInteger",
    "asApproximateFloat",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "add",
    "sub",
    "major",
    "minor",
    "patch",
    "hasValue",
    "value",
    "or",
    "orValue",
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "validate",
    "named",
    "path",
    "group",
    "serviceAccount",
    "resource",
    "subresource",
    "namespace",
    "name",
    "check",
    "allowed",
    "reason",
    "errored",
    "error",
    "fieldSelector",
    "labelSelector",
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

pub(crate) fn exists(name: &str, member: bool) -> bool {
    if member { MEMBER.contains(&name) } else { GLOBAL.contains(&name) }
}

pub(crate) fn call(target: Option<&Value>, name: &str, args: &[Value]) -> Result<Value, EvalError> {
    let answered = FAMILIES.iter().find_map(|family| family(target, name, args));
    answered.unwrap_or_else(|| Err(EvalError("no such overload".to_owned())))
}

/// What a value adds to the cost of a call that looks at all of it; upstream counts a tenth of a step per character.
pub(crate) fn weight(value: &Value) -> u64 {
    let length = match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.len(),
        Value::Map(map) => map.len(),
        _ => 0,
    };
    (length / 10) as u64
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
