//! Sets of owned paths, as a trie.
//!
//! A path is in the set when its node is marked; owning a field does not imply owning what is below it, and the
//! other way round. The stored form is `FieldsV1`: `{"f:spec":{"f:replicas":{}}}`, with `.` for a node that is
//! owned itself and has owned children.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::path::{Path, PathElement};
use super::schema::TypeSchema;

/// A set of paths. No node is useless: each is a member or has members below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    nodes: BTreeMap<PathElement, Node>,
}

/// A path of a set, with what is below it. Sets of objects are made from below: to go from the root to each path means to compare
/// all keys above with it, and one long key with many fields inside of it would take minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) member: bool,
    pub(super) below: Set,
}

impl Set {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the set of the given field paths, each a list of field names.
    pub fn of_fields<'a>(paths: impl IntoIterator<Item = &'a [&'a str]>) -> Self {
        let mut set = Self::new();
        for path in paths {
            set.insert(&path.iter().map(|name| PathElement::field(name)).collect::<Path>());
        }
        set
    }

    /// Reads the stored form. Elements of unknown types are skipped, as upstream does for newer servers' sake.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, String> {
        let mut set = Self::new();
        let Value::Object(entries) = fields else {
            return Err(format!("expected an object as field set, got {fields}"));
        };
        for (key, below) in entries {
            if key == "." {
                continue;
            }
            let Some(element) = PathElement::parse(key)? else { continue };
            let children = Self::from_fields_v1(below)?;
            let own =
                below.as_object().is_some_and(|entries| entries.is_empty() || entries.contains_key("."));
            if own || !children.is_empty() {
                set.nodes.insert(element, Node { member: own, below: children });
            }
        }
        Ok(set)
    }

    /// Prints the stored form.
    pub fn to_fields_v1(&self) -> Value {
        let mut entries = Map::new();
        for (element, node) in &self.nodes {
            let mut below = node.below.to_fields_v1();
            if node.member
                && !node.below.is_empty()
                && let Some(fields) = below.as_object_mut()
            {
                fields.insert(".".to_owned(), json!({}));
            }
            entries.insert(element.print(), below);
        }
        Value::Object(entries)
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns how many paths are in the set.
    pub fn len(&self) -> usize {
        self.nodes.values().map(|node| usize::from(node.member).saturating_add(node.below.len())).sum()
    }

    /// Adds a path; the empty path means the whole object, which nobody owns.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        if !self.nodes.contains_key(first) {
            self.nodes.insert(first.clone(), Node::default());
        }
        let node = self.nodes.get_mut(first).expect("inserted above");
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Adds what is known of an element, if that is anything.
    pub(super) fn put(&mut self, element: &PathElement, node: Node) {
        if !node.member && node.below.is_empty() {
            return;
        }
        match self.nodes.get_mut(element) {
            Some(present) => {
                present.member |= node.member;
                present.below = present.below.union(&node.below);
            }
            None => {
                self.nodes.insert(element.clone(), node);
            }
        }
    }

    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.has_element(last),
            [first, rest @ ..] => self.nodes.get(first).is_some_and(|node| node.below.has(rest)),
        }
    }

    pub(super) fn has_element(&self, element: &PathElement) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    /// Returns what the set says below an element.
    pub(super) fn below(&self, element: &PathElement) -> Option<&Self> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// Returns the direct elements: whether each is a member, and what is below.
    pub(super) fn elements(&self) -> impl Iterator<Item = (&PathElement, bool, &Self)> {
        self.nodes.iter().map(|(element, node)| (element, node.member, &node.below))
    }

    /// Returns all paths, parents before children.
    pub fn paths(&self) -> Vec<Path> {
        let mut left = usize::MAX;
        self.paths_within(&mut left)
    }

    /// Returns paths, parents before children, until they weigh more than what is left; nothing is left then.
    pub(super) fn paths_within(&self, left: &mut usize) -> Vec<Path> {
        fn walk(set: &Set, prefix: &mut Path, above: usize, left: &mut usize, out: &mut Vec<Path>) {
            for (element, node) in &set.nodes {
                if *left == 0 {
                    return;
                }
                let weight = above.saturating_add(element.weight());
                prefix.push(element.clone());
                if node.member {
                    *left = left.saturating_sub(weight);
                    out.push(prefix.clone());
                }
                walk(&node.below, prefix, weight, left, out);
                prefix.pop();
            }
        }
        let mut out = Vec::new();
        walk(self, &mut Vec::new(), 0, left, &mut out);
        out
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut nodes = self.nodes.clone();
        for (element, node) in &other.nodes {
            match nodes.get_mut(element) {
                Some(present) => {
                    present.member |= node.member;
                    present.below = present.below.union(&node.below);
                }
                None => {
                    nodes.insert(element.clone(), node.clone());
                }
            }
        }
        Self { nodes }
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.combine(|element, node| {
            let other = other.nodes.get(element)?;
            Some(Node { member: node.member && other.member, below: node.below.intersection(&other.below) })
        })
    }

    /// Returns the paths that are here and not there.
    pub fn difference(&self, other: &Self) -> Self {
        self.combine(|element, node| match other.nodes.get(element) {
            None => Some(node.clone()),
            Some(other) => Some(Node {
                member: node.member && !other.member,
                below: node.below.difference(&other.below),
            }),
        })
    }

    /// Like [`Set::difference`], but a member there also removes everything below it here.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.combine(|element, node| match other.nodes.get(element) {
            None => Some(node.clone()),
            Some(other) if other.member => None,
            Some(other) => {
                Some(Node { member: node.member, below: node.below.recursive_difference(&other.below) })
            }
        })
    }

    fn combine(&self, rule: impl Fn(&PathElement, &Node) -> Option<Node>) -> Self {
        let kept = self.nodes.iter().filter_map(|(element, node)| {
            let node = rule(element, node)?;
            (node.member || !node.below.is_empty()).then(|| (element.clone(), node))
        });
        Self { nodes: kept.collect() }
    }

    /// Returns the set with every declared field on the way to a member added.
    ///
    /// Parents that are declared fields are usually not stored; pruning needs them.
    pub fn with_declared_parents<S: TypeSchema>(&self, schema: Option<&S>) -> Self {
        let nodes = self.nodes.iter().map(|(element, node)| {
            let (declared, below) = match (element, schema) {
                (PathElement::Field(name), Some(schema)) if schema.map().is_some() => {
                    match schema.member(name) {
                        Some(member) => (member.declared, Some(member.schema)),
                        None => (false, None),
                    }
                }
                (PathElement::Key(_), Some(schema)) => (false, schema.list().and_then(|list| list.element())),
                _ => (false, None),
            };
            let member = node.member || (declared && !node.below.is_empty());
            (element.clone(), Node { member, below: node.below.with_declared_parents(below.as_ref()) })
        });
        Self { nodes: nodes.collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(fields: Value) -> Set {
        Set::from_fields_v1(&fields).unwrap()
    }

    #[test]
    fn the_stored_form_round_trips() {
        for fields in [
            json!({}),
            json!({"f:spec": {"f:replicas": {}}}),
            json!({"f:spec": {".": {}, "f:replicas": {}}}),
            json!({"f:l": {"k:{\"name\":\"x\"}": {".": {}, "f:image": {}}, "v:1": {}, "i:0": {}}}),
        ] {
            assert_eq!(set(fields.clone()).to_fields_v1(), fields);
        }
        assert_eq!(set(json!({"z:unknown": {}, "f:a": {}})).to_fields_v1(), json!({"f:a": {}}));
        assert!(Set::from_fields_v1(&json!([])).is_err());
        assert!(Set::from_fields_v1(&json!({"f:a": 1})).is_err());
    }

    #[test]
    fn owning_a_parent_and_a_child_are_two_things() {
        let parent = set(json!({"f:a": {}}));
        let child = set(json!({"f:a": {"f:b": {}}}));
        assert_eq!(parent.difference(&child), parent);
        assert_eq!(child.difference(&parent), child);
        assert!(child.recursive_difference(&parent).is_empty());
        assert!(parent.intersection(&child).is_empty());
        assert_eq!(parent.union(&child).len(), 2);
    }

    #[test]
    fn paths_below_a_long_key_are_listed_until_they_are_too_much() {
        let fields: Map<String, Value> = (0..1000).map(|number| (format!("f:{number}"), json!({}))).collect();
        let long = set(json!({"f:short": {}, format!("f:{}", "k".repeat(1 << 20)): fields}));
        let mut left = 4 << 20;
        let told = long.paths_within(&mut left).len();
        assert!(left == 0 && (4..10).contains(&told), "{told} paths, {left} bytes left");
        assert!(long.paths_within(&mut left).is_empty(), "nothing is left");
        assert_eq!(set(json!({"f:short": {}})).paths_within(&mut 100).len(), 1);
    }

    fn sets() -> impl Strategy<Value = Set> {
        proptest::collection::vec(proptest::collection::vec("[a-c]", 1..4), 0..8).prop_map(|paths| {
            let mut set = Set::new();
            for path in paths {
                set.insert(&path.iter().map(|name| PathElement::field(name)).collect::<Path>());
            }
            set
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn set_algebra_holds(left in sets(), right in sets()) {
            prop_assert_eq!(left.union(&right), right.union(&left));
            prop_assert_eq!(left.intersection(&right), right.intersection(&left));
            prop_assert_eq!(left.difference(&right).union(&left.intersection(&right)), left.clone());
            prop_assert!(left.difference(&right).intersection(&right).is_empty());
            prop_assert_eq!(left.union(&left), left.clone());
            prop_assert_eq!(left.paths().len(), left.len());
            prop_assert_eq!(Set::from_fields_v1(&left.to_fields_v1()).unwrap(), left);
        }

        #[test]
        fn membership_follows_the_operations(left in sets(), right in sets()) {
            for path in left.union(&right).paths() {
                let (here, there) = (left.has(&path), right.has(&path));
                prop_assert!(here || there);
                prop_assert_eq!(left.intersection(&right).has(&path), here && there);
                prop_assert_eq!(left.difference(&right).has(&path), here && !there);
            }
        }
    }
}
