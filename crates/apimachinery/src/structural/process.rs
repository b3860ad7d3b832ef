//! What a schema does to an object before validation: pruning and defaulting.

use serde_json::Value;

use super::{Additional, META_FIELDS, NodeId, Schema};

/// The bytes that defaults may add to one object: twice what can be stored.
const MOST_DEFAULTS: usize = 3 << 20;

/// The bytes of paths of unknown fields that are told. A path repeats all keys above, and in a map these are as long as the client
/// likes: many fields below a long one would take gigabytes. What is beyond goes without a word.
const MOST_PATHS: usize = 4 << 20;

/// The defaults of a schema would make an object larger than any that can be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of the schema would add more than {MOST_DEFAULTS} bytes to the object")]
pub struct TooManyDefaults;

/// Copies a default if it is within what is left.
fn copy_within(default: &Value, left: &mut usize) -> Result<Value, TooManyDefaults> {
    *left = left.checked_sub(weight(default)).ok_or(TooManyDefaults)?;
    Ok(default.clone())
}

/// Returns about how many bytes a value takes. Defaults are parts of a definition, and so is their depth limited.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len().saturating_add(2),
        Value::Array(items) => items.iter().map(weight).sum::<usize>().saturating_add(2),
        Value::Object(entries) => {
            let entry =
                |(key, value): (&String, &Value)| key.len().saturating_add(4).saturating_add(weight(value));
            entries.iter().map(entry).sum::<usize>().saturating_add(2)
        }
        _ => 8,
    }
}

impl Schema {
    /// Removes the fields that the schema does not specify, and returns their paths, sorted.
    ///
    /// `apiVersion`, `kind` and `metadata` stay, at the root and in embedded objects; what is inside `metadata` is
    /// the business of [`Schema::coerce_metadata`].
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut pruner = Pruner { schema: self, path: String::new(), unknown: Vec::new(), bytes: 0 };
        pruner.known(object, 0, true);
        pruner.unknown.sort_unstable();
        pruner.unknown
    }

    /// Prunes a value of a level of the schema, for defaults, which are not whole objects.
    pub(super) fn prune_value(&self, value: &mut Value, id: NodeId) {
        let mut pruner = Pruner { schema: self, path: String::new(), unknown: Vec::new(), bytes: 0 };
        pruner.known(value, id, self.node(id).embedded);
    }

    /// Prunes a whole object of a level of the schema, with metadata of its own.
    pub(super) fn prune_object(&self, object: &mut Value, id: NodeId) {
        let mut pruner = Pruner { schema: self, path: String::new(), unknown: Vec::new(), bytes: 0 };
        pruner.known(object, id, true);
    }

    /// Fills in defaults: for missing keys, and for nulls where null is not allowed. Stops where they would add more than
    /// 3 MiB to one object: a small list of empty items can ask for gigabytes.
    pub fn default(&self, object: &mut Value) -> Result<(), TooManyDefaults> {
        let mut left = MOST_DEFAULTS;
        self.default_node(object, 0, &mut left)
    }

    fn default_node(&self, value: &mut Value, id: NodeId, left: &mut usize) -> Result<(), TooManyDefaults> {
        let node = self.node(id);
        let refused_null = |value: &Value, id: NodeId| value.is_null() && !self.node(id).nullable;
        match value {
            Value::Object(entries) => {
                for (name, property) in node.defaulted.iter().filter_map(|at| node.properties.get(*at)) {
                    if let Some(default) = &self.node(*property).default {
                        let missing = entries.get(name).is_none_or(|value| refused_null(value, *property));
                        if missing {
                            entries.insert(name.clone(), copy_within(default, left)?);
                        }
                    }
                }
                for (name, value) in entries.iter_mut() {
                    if let Some(property) = node.property(name) {
                        self.default_node(value, property, left)?;
                    } else if let Some(Additional::Schema(additional)) = &node.additional {
                        if refused_null(value, *additional)
                            && let Some(default) = &self.node(*additional).default
                        {
                            *value = copy_within(default, left)?;
                        }
                        self.default_node(value, *additional, left)?;
                    }
                }
            }
            Value::Array(items) => {
                let Some(item_schema) = node.items else { return Ok(()) };
                for item in items {
                    if refused_null(item, item_schema)
                        && let Some(default) = &self.node(item_schema).default
                    {
                        *item = copy_within(default, left)?;
                    }
                    self.default_node(item, item_schema, left)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes nulls that the schema does not allow and that have no default to take their place.
    pub fn prune_nulls(&self, object: &mut Value) {
        self.prune_nulls_node(object, Some(0));
    }

    fn prune_nulls_node(&self, value: &mut Value, id: Option<NodeId>) {
        let Some(id) = id else { return };
        let node = self.node(id);
        match value {
            Value::Object(entries) => {
                entries.retain(|name, value| {
                    let field = node.field(name);
                    let refused = value.is_null()
                        && field.is_some_and(|id| !self.node(id).nullable && self.node(id).default.is_none());
                    if !refused {
                        self.prune_nulls_node(value, field);
                    }
                    !refused
                });
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.prune_nulls_node(item, node.items)),
            _ => {}
        }
    }
}

struct Pruner<'a> {
    schema: &'a Schema,
    path: String,
    unknown: Vec<String>,
    /// Of all paths of unknown fields.
    bytes: usize,
}

impl Pruner<'_> {
    /// Notes that the field at hand is unknown.
    fn note(&mut self) {
        if self.bytes <= MOST_PATHS {
            self.bytes = self.bytes.saturating_add(self.path.len());
            self.unknown.push(self.path.clone());
        }
    }

    /// Walks a value with a schema; `embedded` marks a level with metadata of its own.
    fn known(&mut self, value: &mut Value, id: NodeId, embedded: bool) {
        let schema = self.schema;
        let node = schema.node(id);
        let length = self.path.len();
        match value {
            Value::Object(entries) => {
                let at_root = self.path.is_empty();
                entries.retain(|name, value| {
                    if embedded && META_FIELDS.contains(&name.as_str()) {
                        return true;
                    }
                    self.push_field(name);
                    let keep = match (node.property(name), &node.additional) {
                        (Some(property), _) => {
                            self.known(value, property, schema.node(property).embedded);
                            true
                        }
                        (None, Some(Additional::Schema(additional))) => {
                            self.known(value, *additional, schema.node(*additional).embedded);
                            true
                        }
                        (None, _) if node.preserve_unknown => true,
                        // `additionalProperties: true` without a schema keeps the key and empties what is below.
                        (None, Some(Additional::Allowed(_))) => {
                            self.unspecified(value);
                            true
                        }
                        (None, None) => {
                            if !(at_root && META_FIELDS.contains(&name.as_str())) {
                                self.note();
                            }
                            false
                        }
                    };
                    self.path.truncate(length);
                    keep
                });
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    match node.items {
                        Some(item_schema) => self.known(item, item_schema, schema.node(item_schema).embedded),
                        None if node.preserve_unknown => {}
                        None => self.unspecified(item),
                    }
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    /// Walks a value without any schema: all fields go.
    fn unspecified(&mut self, value: &mut Value) {
        let length = self.path.len();
        match value {
            Value::Object(entries) => {
                for name in entries.keys() {
                    self.push_field(name);
                    self.note();
                    self.path.truncate(length);
                }
                entries.clear();
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.path.push_str(&format!("[{index}]"));
                    self.unspecified(item);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn push_field(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }
}
