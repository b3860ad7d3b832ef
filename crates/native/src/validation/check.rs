//! Checks that many kinds share: one line each in a validator.

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use apimachinery::quantity::Quantity;
use apimachinery::selector::label;
use serde_json::Value;

use super::node::Node;

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const POSITIVE: &str = "must be greater than 0";
pub(super) const NOT_INTEGER: &str = "must be an integer";
pub(super) const IMMUTABLE: &str = "field is immutable";

/// Pushes one error per complaint about a text.
pub(super) fn complaints(errors: &mut Errors, path: &Path, value: &str, wrong: Vec<String>) {
    errors.extend(wrong.into_iter().map(|text| Error::invalid(path, value, text)));
}

/// A number that must not be negative; a missing one is zero.
pub(super) fn not_negative(errors: &mut Errors, path: &Path, value: Node<'_>) {
    let number = value.int();
    if number < 0 {
        errors.push(Error::invalid(path, number, NOT_NEGATIVE));
    }
}

/// Several numbers of one object that must not be negative.
pub(super) fn none_negative(errors: &mut Errors, path: &Path, owner: Node<'_>, fields: &[&str]) {
    for field in fields {
        not_negative(errors, &path.child(field), owner.at(field));
    }
}

/// A value out of a set; a missing one is reported as required.
pub(super) fn required_enum(errors: &mut Errors, path: &Path, value: Node<'_>, supported: &[&str]) {
    match value.text() {
        "" => errors.push(Error::required(path, "")),
        _ => optional_enum(errors, path, value, supported),
    }
}

/// A value out of a set; a missing one is fine.
pub(super) fn optional_enum(errors: &mut Errors, path: &Path, value: Node<'_>, supported: &[&str]) {
    let text = value.text();
    if !text.is_empty() && !supported.contains(&text) {
        errors.push(Error::not_supported(path, text, supported));
    }
}

/// A text that must be there.
pub(super) fn required(errors: &mut Errors, path: &Path, value: Node<'_>) {
    if value.is_empty() {
        errors.push(Error::required(path, ""));
    }
}

/// A field of `owner` that an update must leave alone.
pub(super) fn immutable(errors: &mut Errors, path: &Path, new: Node<'_>, old: Node<'_>) {
    if !super::node::same(new, old) {
        errors.push(Error::invalid(path, new.value(), IMMUTABLE));
    }
}

/// A label selector object, if there is one.
pub(super) fn selector(errors: &mut Errors, path: &Path, selector: Node<'_>) {
    if let Some(object) = selector.0.filter(|value| value.is_object()) {
        errors.extend(label::validate_object(object, path));
    }
}

/// Does the selector have no terms?
pub(super) fn selector_is_empty(selector: Node<'_>) -> bool {
    selector.at("matchLabels").is_empty() && selector.at("matchExpressions").is_empty()
}

/// A port: a number from 1 to 65535, or the name of one.
pub(super) fn port_or_name(errors: &mut Errors, path: &Path, port: Node<'_>) {
    match port.0 {
        Some(Value::String(name)) => complaints(errors, path, name, names::port_name(name)),
        _ => {
            let number = port.int();
            let wrong = names::port_number(number);
            errors.extend(wrong.into_iter().map(|text| Error::invalid(path, number, text)));
        }
    }
}

/// A whole number or a percentage, neither negative.
pub(super) fn int_or_percent(errors: &mut Errors, path: &Path, value: Node<'_>) {
    match value.0 {
        Some(Value::String(text)) => complaints(errors, path, text, names::percent(text)),
        _ => not_negative(errors, path, value),
    }
}

/// Returns the number in `25%` or `25`.
pub(super) fn int_or_percent_value(value: Node<'_>) -> i64 {
    match value.0 {
        Some(Value::String(text)) => text.strip_suffix('%').unwrap_or("").parse().unwrap_or(0),
        _ => value.int(),
    }
}

pub(super) fn at_most_100_percent(errors: &mut Errors, path: &Path, value: Node<'_>) {
    if let Some(Value::String(text)) = value.0
        && names::percent(text).is_empty()
        && int_or_percent_value(value) > 100
    {
        errors.push(Error::invalid(path, text.as_str(), "must not be greater than 100%"));
    }
}

/// Returns the amount; an unreadable one (decoding refuses those) counts as zero.
pub(super) fn quantity(value: Node<'_>) -> Quantity {
    value.text().parse().unwrap_or(Quantity::ZERO)
}

/// Resources that are counted in whole units: pods, objects, extended resources.
pub(super) fn is_integer_resource(name: &str) -> bool {
    is_extended_resource(name)
        || matches!(
            name,
            "pods"
                | "services"
                | "replicationcontrollers"
                | "resourcequotas"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "services.nodeports"
                | "services.loadbalancers"
        )
}

/// Named with a domain that is not Kubernetes' own.
pub(super) fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name) && !name.starts_with("requests.")
}

pub(super) fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// May requests be smaller than limits? Only for what the node can take back.
pub(super) fn is_overcommit_allowed(name: &str) -> bool {
    is_native_resource(name) && !name.starts_with("hugepages-")
}

/// An amount that is neither negative nor, for counted resources, a fraction.
pub(super) fn resource_amount(errors: &mut Errors, path: &Path, name: &str, value: Node<'_>) {
    let amount = quantity(value);
    if amount.sign() < 0 {
        errors.push(Error::invalid(path, value.text(), NOT_NEGATIVE));
    }
    if is_integer_resource(name) && amount.milli_value() % 1000 != 0 {
        errors.push(Error::invalid(path, value.text(), NOT_INTEGER));
    }
}

/// A relative path that stays where it is.
pub(super) fn descending_path(errors: &mut Errors, path: &Path, value: &str) {
    if value.starts_with('/') {
        errors.push(Error::invalid(path, value, "must be a relative path"));
    }
    no_backsteps(errors, path, value);
}

pub(super) fn no_backsteps(errors: &mut Errors, path: &Path, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(path, value, "must not contain '..'"));
    }
}
