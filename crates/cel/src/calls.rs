//! What one call of a function may cost, by the sizes of what it gets, and how large its result may be.
//!
//! cel-go's rules for the language itself and Kubernetes' rules for its libraries. The costs of the arguments are the
//! caller's to add, except where [`counts_arguments`] says otherwise: there it matters which of them are evaluated.

use crate::estimate::Range;
use crate::infer::Known;
use crate::types::Type;

/// What a question about rights costs.
pub(crate) const CHECK: u64 = 350_000;
/// What it costs to look at one character.
const CHARACTER: f64 = 0.1;
/// What one character of a pattern costs.
const PATTERN: f64 = 0.25;

/// Says whether the cost of a call includes that of its arguments.
pub(crate) fn counts_arguments(id: &str) -> bool {
    matches!(id, "logical_and" | "logical_or" | "conditional")
}

/// Returns the sizes of keys and values of what a call returns.
pub(crate) fn entries(name: &str, args: &[Known]) -> Option<(Range, Range)> {
    let (left, right) = match (name, args) {
        ("_?_:_", [_, yes, no]) => (yes, no),
        ("_+_", [left, right]) => (left, right),
        _ => return None,
    };
    let ((left_keys, left_values), (right_keys, right_values)) = (left.entries?, right.entries?);
    Some((left_keys.union(right_keys), left_values.union(right_values)))
}

/// Returns the cost of a call and the size of its result, if that can be told.
pub(crate) fn cost(name: &str, id: &str, target: Option<&Known>, args: &[Known]) -> (Range, Option<Range>) {
    library(name, id, target, args).unwrap_or_else(|| language(id, target, args))
}

fn library(name: &str, id: &str, target: Option<&Known>, args: &[Known]) -> Option<(Range, Option<Range>)> {
    let one = Some((Range::exactly(1), None));
    let size = |index: usize| args.get(index).map(Known::size);
    let walk = |size: Range, factor: f64| Some((size.scaled(factor), None));
    match name {
        "check" => Some((Range::exactly(CHECK), None)),
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name"
        | "allowed" | "reason" | "error" | "errored" => one,
        "fieldSelector" | "labelSelector" => {
            let length = size(0)?;
            let requirements = length.scaled(0.5).scaled(50.0);
            Some((Range::exactly(10).plus(length.scaled(CHARACTER)).plus(requirements), None))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            let target = target?;
            let Some(element) = target.element() else { return walk(target.size(), CHARACTER) };
            let mut each = Range::exactly(1);
            if matches!(element.ty, Type::String | Type::Bytes) {
                each = each.plus(element.size().scaled(CHARACTER));
            }
            Some((target.size().times(each), None))
        }
        "url" | "jsonpatch.escapeKey" => size(0).map(|size| (size.scaled(CHARACTER), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            target.map(Known::size).map(|size| (size.scaled(CHARACTER), Some(size)))
        }
        "replace" => {
            let (text, from, to) = (target?.size(), size(0)?, size(1)?);
            Some((text.scaled(2.0 * CHARACTER), Some(replaced(text, from, to))))
        }
        "split" => {
            let text = target?.size();
            let most = args.get(1).and_then(|limit| limit.literal).map_or(text.max, |limit| limit as u64);
            Some((text.scaled(2.0 * CHARACTER), Some(Range::up_to(most))))
        }
        "join" => {
            let target = target?;
            let list = target.size();
            let mut size = target.element().map_or(Range::ZERO, |element| list.times(element.size()));
            if let Some(separator) = args.first() {
                let gaps = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                size = size.plus(separator.size().times(gaps));
            }
            Some((size.scaled(CHARACTER), Some(size)))
        }
        "find" | "findAll" => {
            let text = target?.size();
            let cost = text.plus(Range::exactly(1)).scaled(CHARACTER).times(size(0)?.scaled(PATTERN));
            Some((cost, Some(Range::up_to(text.max))))
        }
        "ip" if id == "cidr_ip" => one,
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            walk(size(0)?, CHARACTER)
        }
        "ip.isCanonical" => walk(size(0)?, 2.0 * CHARACTER),
        "masked"
        | "prefixLength"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "format.named"
        | "sign"
        | "asInteger"
        | "isInteger"
        | "asApproximateFloat"
        | "isGreaterThan"
        | "isLessThan"
        | "compareTo"
        | "add"
        | "sub"
        | "major"
        | "minor"
        | "patch"
        | "getScheme"
        | "getHostname"
        | "getHost"
        | "getPort"
        | "getEscapedPath"
        | "getQuery" => one,
        "containsIP" | "containsCIDR" => {
            let address = Range { min: 4, max: 16 };
            let mut cost = address.plus(address).scaled(CHARACTER);
            if name == "containsCIDR" {
                cost = cost.plus(address.scaled(CHARACTER)).plus(Range::exactly(1));
            }
            if matches!(id, "cidr_contains_ip_string" | "cidr_contains_cidr_string") {
                cost = cost.plus(size(0)?.scaled(CHARACTER));
            }
            Some((cost, None))
        }
        "validate" => Some((size(0)?.scaled(CHARACTER).scaled(128.0 * PATTERN), None)),
        "_==_" => {
            let [left, right] = args else { return None };
            let opaque = matches!(&left.ty, Type::Opaque(_)) && left.ty == right.ty;
            opaque.then_some((Range::exactly(1), None))
        }
        _ => None,
    }
}

/// How long a text may get when parts of it are replaced.
fn replaced(text: Range, from: Range, to: Range) -> Range {
    let (mut count, mut kept) = (Range::ZERO, Range::ZERO);
    let parts = |whole: u64, part: u64| (whole as f64 / part as f64).ceil() as u64;
    if from.min == 0 {
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if to.max <= from.min {
        kept.max = text.max;
    } else {
        count.max = parts(text.max, from.min);
    }
    if from.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if from.max <= to.min {
        kept.min = text.min;
    } else {
        count.min = parts(text.min, from.max);
    }
    count.times(to).plus(kept)
}

fn language(id: &str, target: Option<&Known>, args: &[Known]) -> (Range, Option<Range>) {
    let plain = (Range::exactly(1), None);
    match (id, target, args) {
        ("string_format", Some(target), _) => (target.size().scaled(CHARACTER), None),
        ("string_to_bytes", _, [text]) => {
            let size = text.size();
            (size.scaled(CHARACTER), Some(Range { min: size.min, max: size.max.saturating_mul(4) }))
        }
        ("bytes_to_string", _, [bytes]) => {
            let size = bytes.size();
            (size.scaled(CHARACTER), Some(Range { min: size.min / 4, max: size.max }))
        }
        ("strings_quote", _, [text]) => {
            let size = text.size();
            let max = size.max.saturating_mul(2).saturating_add(2);
            (size.scaled(CHARACTER), Some(Range { min: size.min.saturating_add(2), max }))
        }
        ("starts_with_string" | "ends_with_string", _, [part]) => (part.size().scaled(CHARACTER), None),
        ("in_list", _, [_, list]) => (list.size(), None),
        ("matches_string", Some(text), [pattern]) => {
            let text = text.size().plus(Range::exactly(1)).scaled(CHARACTER);
            (text.times(pattern.size().scaled(PATTERN)), None)
        }
        ("contains_string", Some(text), [part]) => {
            (text.size().scaled(CHARACTER).times(part.size().scaled(CHARACTER)), None)
        }
        ("logical_and" | "logical_or", _, [left, right]) => {
            (Range { min: left.cost.min, max: left.cost.max.saturating_add(right.cost.max) }, None)
        }
        ("conditional", _, [test, yes, no]) => {
            (test.cost.plus(yes.cost.union(no.cost)), Some(yes.size().union(no.size())))
        }
        ("add_list", _, [left, right]) => (Range::exactly(1), Some(left.size().plus(right.size()))),
        ("add_string" | "add_bytes", _, [left, right]) => {
            let size = left.size().plus(right.size());
            (size.scaled(CHARACTER), Some(size))
        }
        ("less_string" | "less_bytes" | "equals" | "not_equals", _, [left, right]) => {
            let max = left.size().max.min(right.size().max);
            (Range { min: u64::from(max > 0), max }.scaled(CHARACTER), None)
        }
        _ => plain,
    }
}
