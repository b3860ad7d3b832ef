//! Structural schemas: what a CustomResourceDefinition says about its objects.
//!
//! In: the `openAPIV3Schema` of a version. Out: a compiled [`Schema`] that prunes, defaults and validates objects, and
//! tells server-side apply how they merge. Whether a schema *is* structural is checked by [`check`].
//!
//! A compiled schema is an arena of nodes; every walk goes through object and nodes together.

use std::collections::HashSet;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

mod check;
mod compile;
mod defaults;
mod formats;
mod metadata;
mod pattern;
mod process;
mod types;
mod validate;

pub use check::check;
pub use metadata::Malformed;
pub use process::TooManyDefaults;
pub use types::SchemaType;
pub use validate::Lists;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    /// The root is the first node.
    nodes: Vec<Node>,
}

type NodeId = usize;

/// One level of a schema.
#[derive(Debug, Default)]
struct Node {
    kind: Option<Kind>,
    nullable: bool,
    int_or_string: bool,
    preserve_unknown: bool,
    embedded: bool,
    /// Sorted by name.
    properties: Vec<(String, NodeId)>,
    /// The positions of properties that have a default. A list may have a million items, and a schema as many properties.
    defaulted: Vec<usize>,
    additional: Option<Additional>,
    items: Option<NodeId>,
    default: Option<Value>,
    list: ListType,
    list_keys: Vec<String>,
    atomic_map: bool,
    /// Constraints on values; most nodes have none.
    rules: Option<Box<Rules>>,
    /// `x-kubernetes-validations`, kept as they are.
    validations: Vec<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

#[derive(Debug)]
enum Additional {
    Allowed(bool),
    Schema(NodeId),
}

#[derive(Debug, Default)]
struct Rules {
    format: String,
    maximum: Option<f64>,
    exclusive_maximum: bool,
    minimum: Option<f64>,
    exclusive_minimum: bool,
    multiple_of: Option<f64>,
    max_length: Option<i64>,
    min_length: Option<i64>,
    pattern: Option<Pattern>,
    max_items: Option<i64>,
    min_items: Option<i64>,
    unique_items: bool,
    max_properties: Option<i64>,
    min_properties: Option<i64>,
    required: Vec<String>,
    allowed: Allowed,
    all_of: Vec<NodeId>,
    any_of: Vec<NodeId>,
    one_of: Vec<NodeId>,
    not: Option<NodeId>,
}

/// A regular expression in Go's dialect, compiled at first use: large bundles have thousands.
#[derive(Debug)]
struct Pattern {
    source: String,
    compiled: OnceLock<Option<Regex>>,
}

/// The values of an enumeration.
#[derive(Debug, Default)]
struct Allowed {
    list: Vec<Value>,
    /// The same, where they are so many that a value should not be compared with each.
    set: HashSet<Value>,
    /// About how many bytes they have as text.
    size: usize,
}

impl Allowed {
    /// Up to here a list is as fast as a set.
    const FEW: usize = 16;

    fn new(list: &[Value]) -> Self {
        let set = if list.len() > Self::FEW { list.iter().cloned().collect() } else { HashSet::new() };
        Self { list: list.to_vec(), set, size: list.iter().map(process::weight).sum() }
    }

    fn contains(&self, value: &Value) -> bool {
        if self.set.is_empty() { self.list.contains(value) } else { self.set.contains(value) }
    }
}

impl Schema {
    /// Compiles a schema.
    ///
    /// Errors: a construct that structural schemas cannot have, in upstream's words.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        compile::compile(schema)
    }

    /// Returns the schema of objects about which nothing is known: everything below the metadata is kept.
    pub fn permissive() -> Self {
        let root = Node { kind: Some(Kind::Object), preserve_unknown: true, ..Node::default() };
        Self { nodes: vec![root] }
    }

    /// True if any level has `x-kubernetes-validations`.
    pub fn has_rules(&self) -> bool {
        self.nodes.iter().any(|node| !node.validations.is_empty())
    }

    #[expect(clippy::indexing_slicing, reason = "ids come from this schema, which never loses a node")]
    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }
}

impl Node {
    fn property(&self, name: &str) -> Option<NodeId> {
        let position = self.properties.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        self.properties.get(position).map(|(_, id)| *id)
    }

    /// The node of a field: declared, or the schema of free keys.
    fn field(&self, name: &str) -> Option<NodeId> {
        self.property(name).or(match &self.additional {
            Some(Additional::Schema(id)) => Some(*id),
            _ => None,
        })
    }
}

impl Pattern {
    fn regex(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| pattern::compile(&self.source).ok()).as_ref()
    }
}

/// Fields that every object and every embedded object has, whatever its schema says.
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

#[cfg(test)]
mod tests;
