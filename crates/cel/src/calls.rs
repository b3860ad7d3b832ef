//! What calls cost, and how large their results get, by the sizes of what goes in: before there are values.
//!
//! The numbers are kube-apiserver's. The costs of the arguments are the caller's to add. What calls really cost is in
//! [`crate::tracker`].

use crate::estimate::{Part, Range, Sizes};
use crate::types::Type;

/// What a question about rights costs.
pub(crate) const CHECK: u64 = 350_000;
/// What it costs to look at one character.
pub(crate) const CHARACTER: f64 = 0.1;
/// What one character of a pattern costs.
pub(crate) const PATTERN: f64 = 0.25;
/// The longest name of a format.
const MAX_FORMAT: u64 = 64;

/// Functions that look at one value of a fixed size.
pub(crate) const STEPS: [&str; 27] = [
    "masked",
    "prefixLength",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "format.named",
    "sign",
    "asInteger",
    "isInteger",
    "asApproximateFloat",
    "isGreaterThan",
    "isLessThan",
    "compareTo",
    "add",
    "sub",
    "major",
    "minor",
    "patch",
    "getScheme",
    "getHostname",
    "getHost",
    "getPort",
    "getEscapedPath",
    "getQuery",
];

/// Overloads that compare two values character by character.
pub(crate) const COMPARISONS: [&str; 10] = [
    "less_string",
    "less_bytes",
    "less_equals_string",
    "less_equals_bytes",
    "greater_string",
    "greater_bytes",
    "greater_equals_string",
    "greater_equals_bytes",
    "equals",
    "not_equals",
];

type Cost = (Range, Option<Range>);

/// Returns the cost of a call and the size of its result, if that can be told.
pub(crate) fn cost(
    sizes: &Sizes<'_>,
    name: &str,
    id: &str,
    target: Option<&Part<'_>>,
    args: &[Part<'_>],
) -> Cost {
    lists(sizes, id, target, args)
        .or_else(|| library(sizes, name, id, target, args))
        .unwrap_or_else(|| language(id, target, args))
}

/// Functions of lists and sets that allocate, or compare everything with everything.
fn lists(sizes: &Sizes<'_>, id: &str, target: Option<&Part<'_>>, args: &[Part<'_>]) -> Option<Cost> {
    let made = |factor: f64, size: Range| Some((size.scaled(factor).plus(Range::exactly(11)), Some(size)));
    let number =
        |part: &Part<'_>, otherwise: u64| part.int().map_or(otherwise, |n| u64::try_from(n).unwrap_or(0));
    let squared = |size: Range| size.times(size);
    match (id, target, args) {
        ("list_slice", Some(list), [from, to]) => {
            let size = number(to, sizes.of(list).max).wrapping_sub(number(from, 0));
            made(1.0, Range::exactly(size))
        }
        ("lists_range", None, [count]) => made(1.0, Range::exactly(number(count, u64::MAX))),
        ("list_reverse", Some(list), []) => made(1.0, sizes.of(list)),
        ("list_flatten", Some(list), []) => made(1.0, sizes.of(list)),
        ("list_flatten_int", Some(list), [depth]) => made(number(depth, u64::MAX) as f64, sizes.of(list)),
        ("list_distinct", Some(list), []) => made(2.0, squared(sizes.of(list))),
        (
            "list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list",
            _,
            [a, b],
        ) => {
            let factor = if id == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
            Some((sizes.of(a).times(sizes.of(b)).scaled(factor).plus(Range::exactly(1)), None))
        }
        _ if id.ends_with("_sort") || id.ends_with("_sortByAssociatedKeys") => {
            let factor =
                if id.starts_with("list_string") || id.starts_with("list_bytes") { 2.1 } else { 2.0 };
            made(factor, squared(sizes.of(args.first().or(target)?)))
        }
        _ => None,
    }
}

fn library(
    sizes: &Sizes<'_>,
    name: &str,
    id: &str,
    target: Option<&Part<'_>>,
    args: &[Part<'_>],
) -> Option<Cost> {
    let one = Some((Range::exactly(1), None));
    let size = |index: usize| args.get(index).map(|arg| sizes.of(arg));
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
            let Some(element) = sizes.item(target) else { return walk(sizes.of(target), CHARACTER) };
            let mut each = Range::exactly(1);
            if matches!(element.ty, Type::String | Type::Bytes) {
                each = each.plus(sizes.of(&element).scaled(CHARACTER));
            }
            Some((sizes.of(target).times(each), None))
        }
        "url" | "jsonpatch.escapeKey" => size(0).map(|size| (size.scaled(CHARACTER), Some(size))),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            target.map(|target| sizes.of(target)).map(|size| (size.scaled(CHARACTER), Some(size)))
        }
        "replace" => {
            let (text, from, to) = (sizes.of(target?), size(0)?, size(1)?);
            Some((text.scaled(2.0 * CHARACTER), Some(replaced(text, from, to))))
        }
        "split" => {
            let text = sizes.of(target?);
            let most = args.get(1).and_then(Part::int).map_or(text.max, |limit| limit as u64);
            Some((text.scaled(2.0 * CHARACTER), Some(Range::up_to(most))))
        }
        "join" => {
            let target = target?;
            let list = sizes.of(target);
            let mut size = sizes.item(target).map_or(Range::ZERO, |item| list.times(sizes.of(&item)));
            if let Some(separator) = args.first() {
                let gaps = Range { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                size = size.plus(sizes.of(separator).times(gaps));
            }
            Some((size.scaled(CHARACTER), Some(size)))
        }
        "find" | "findAll" => {
            let text = sizes.of(target?);
            let cost = text.plus(Range::exactly(1)).scaled(CHARACTER).times(size(0)?.scaled(PATTERN));
            Some((cost, Some(Range::up_to(text.max))))
        }
        "ip" if id == "cidr_ip" => one,
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            walk(size(0)?, CHARACTER)
        }
        "ip.isCanonical" => walk(size(0)?, 2.0 * CHARACTER),
        name if STEPS.contains(&name) => one,
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
            let Type::Opaque(known) = &left.ty else { return None };
            if left.ty != right.ty {
                return None;
            }
            match &**known {
                "kubernetes.NamedFormat" => walk(Range { min: 1, max: MAX_FORMAT }, CHARACTER),
                "kubernetes.URL" => {
                    let max = right.size.map_or(1, |size| size.max);
                    walk(Range { min: 1, max }, CHARACTER)
                }
                known if known.starts_with("net.") || known.starts_with("kubernetes.") => one,
                _ => None,
            }
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

fn language(id: &str, target: Option<&Part<'_>>, args: &[Part<'_>]) -> Cost {
    let size = |part: &Part<'_>| part.size.unwrap_or(Range::UNKNOWN);
    let plain = (Range::exactly(1), None);
    match (id, target, args) {
        ("string_format", Some(target), _) => (size(target).scaled(CHARACTER), None),
        // Sizes that nobody knows wrap around here, as in cel-go.
        ("string_to_bytes", _, [text]) => {
            let size = size(text);
            (size.scaled(CHARACTER), Some(Range { min: size.min, max: size.max.wrapping_mul(4) }))
        }
        ("bytes_to_string", _, [bytes]) => {
            let size = size(bytes);
            (size.scaled(CHARACTER), Some(Range { min: size.min / 4, max: size.max }))
        }
        ("strings_quote", _, [text]) => {
            let size = size(text);
            let max = size.max.wrapping_mul(2).wrapping_add(2);
            (size.scaled(CHARACTER), Some(Range { min: size.min.wrapping_add(2), max }))
        }
        ("starts_with_string" | "ends_with_string", _, [part]) => (size(part).scaled(CHARACTER), None),
        ("in_list", _, [_, list]) => (size(list), None),
        ("matches_string", Some(text), [pattern]) => {
            let text = size(text).plus(Range::exactly(1)).scaled(CHARACTER);
            (text.times(size(pattern).scaled(PATTERN)), None)
        }
        ("contains_string", Some(text), [part]) => {
            (size(text).scaled(CHARACTER).times(size(part).scaled(CHARACTER)), None)
        }
        ("add_list", _, [left, right]) => (Range::exactly(1), Some(size(left).plus(size(right)))),
        ("add_string" | "add_bytes", _, [left, right]) => {
            let size = size(left).plus(size(right));
            (size.scaled(CHARACTER), Some(size))
        }
        (id, _, [left, right]) if COMPARISONS.contains(&id) => {
            let max = size(left).max.min(size(right).max);
            (Range { min: u64::from(max > 0), max }.scaled(CHARACTER), None)
        }
        _ => plain,
    }
}
