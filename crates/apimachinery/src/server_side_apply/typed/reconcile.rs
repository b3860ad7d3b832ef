//! Adapts a stored set to a type that has changed since: what became atomic is owned as a whole.
//!
//! The other direction (atomic to granular) needs nothing: the owner keeps the parent path.

use crate::server_side_apply::path::{Path, PathElement};
use crate::server_side_apply::schema::{List, Topology, TypeSchema};
use crate::server_side_apply::set::Set;

/// Returns the adapted set, `None` if the stored one already fits.
pub fn reconcile<S: TypeSchema>(schema: &S, set: &Set) -> Option<Set> {
    let mut atomic = Set::new();
    walk(schema, set, false, &mut Vec::new(), &mut atomic);
    (!atomic.is_empty()).then(|| set.recursive_difference(&atomic).union(&atomic))
}

/// Collects the paths that the type now treats as one value but the set splits up. `whole` says that the set owns
/// this very path and nothing below it.
fn walk<S: TypeSchema>(schema: &S, set: &Set, whole: bool, path: &mut Path, atomic: &mut Set) {
    if let Some(topology) = schema.map() {
        if schema.is_untyped_map() {
            return;
        }
        if topology == Topology::Atomic {
            if !whole && !set.is_empty() {
                atomic.insert(path);
            }
            return;
        }
        for (element, member, below) in set.elements() {
            if let PathElement::Field(name) = element
                && let Some(field) = schema.member(name)
            {
                path.push(element.clone());
                walk(&field.schema, below, member && below.is_empty(), path, atomic);
                path.pop();
            }
        }
    } else if schema.scalar().is_none()
        && let Some(list) = schema.list()
    {
        if matches!(list, List::Atomic(_)) {
            if !whole {
                atomic.insert(path);
            }
            return;
        }
        let Some(item) = list.element() else { return };
        for (element, member, below) in set.elements() {
            path.push(element.clone());
            walk(&item, below, member && below.is_empty(), path, atomic);
            path.pop();
        }
    }
}
