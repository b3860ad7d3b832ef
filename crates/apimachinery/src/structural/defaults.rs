//! The defaults of a schema: are they valid themselves, and what of them is applied?
//!
//! They are checked when a CRD is written, so that reading never has to doubt. Inside the metadata of an embedded object
//! they need not be pruned: what metadata does not have is dropped when the schema is put to use.

use serde_json::{Map, Value};

use super::metadata::Malformed;
use super::{Additional, NodeId, Schema};
use crate::field::{Error, Errors, Path};

/// The way from an object with metadata of its own down to a default.
#[derive(Clone)]
struct Place {
    /// The node of the object.
    object: NodeId,
    steps: Vec<Step>,
}

#[derive(Clone)]
enum Step {
    Field(String),
    Item,
}

impl Place {
    fn of(object: NodeId) -> Self {
        Self { object, steps: Vec::new() }
    }

    fn below(&self, step: Step) -> Self {
        let mut steps = self.steps.clone();
        steps.push(step);
        Self { object: self.object, steps }
    }

    fn field(&self, name: &str) -> Self {
        self.below(Step::Field(name.to_owned()))
    }

    /// Says whether the place belongs to what every object has, whatever its schema says.
    fn is_meta(&self) -> bool {
        matches!(self.steps.first(), Some(Step::Field(name)) if super::META_FIELDS.contains(&name.as_str()))
    }

    /// Returns an object that has nothing but a value at this place.
    fn surround(&self, value: Value) -> Value {
        self.steps.iter().rev().fold(value, |value, step| match step {
            Step::Field(name) => Value::Object(Map::from_iter([(name.clone(), value)])),
            Step::Item => Value::Array(vec![value]),
        })
    }

    /// Returns what stands at this place of an object.
    fn extract(&self, object: Value) -> Option<Value> {
        self.steps.iter().try_fold(object, |mut value, step| match step {
            Step::Field(name) => value.as_object_mut()?.remove(name),
            Step::Item => value.as_array_mut()?.pop(),
        })
    }
}

impl Schema {
    /// Checks every default: nothing the schema does not specify, nothing it would refuse.
    pub fn check_defaults(&self, path: &Path) -> Errors {
        let mut errors = Errors::new();
        self.defaults_below(0, path, &Place::of(0), &mut errors);
        errors
    }

    fn defaults_below(&self, id: NodeId, path: &Path, place: &Place, errors: &mut Errors) {
        let node = self.node(id);
        let own = Place::of(id);
        let place = if node.embedded { &own } else { place };
        if let Some(default) = &node.default {
            let path = path.child("default");
            if place.is_meta() {
                errors.extend(self.check_meta_default(default, &path, place));
            } else {
                let mut pruned = default.clone();
                self.prune_value(&mut pruned, id);
                if pruned != *default {
                    errors.push(Error::invalid(&path, default.clone(), "must not have unknown fields"));
                }
            }
            errors.extend(self.validate_value(default, None, id, Some(&path)));
        }
        if let Some(items) = node.items {
            self.defaults_below(items, &path.child("items"), &place.below(Step::Item), errors);
        }
        for (name, property) in &node.properties {
            let path = path.child("properties").key(name);
            self.defaults_below(*property, &path, &place.field(name), errors);
        }
    }

    /// Checks that a default for a part of the metadata makes metadata of the right types.
    fn check_meta_default(&self, default: &Value, path: &Path, place: &Place) -> Option<Error> {
        let mut object = place.surround(default.clone());
        let error = self.coerce_embedded(&mut object, place.object, Malformed::Refuse).err()?;
        Some(Error::invalid(path, default.clone(), format!("must result in valid metadata: {error}")))
    }

    /// Drops from the defaults whatever an object would not keep: unknown or malformed metadata of embedded objects.
    pub fn prune_defaults(&mut self) {
        let mut pruned = Vec::new();
        self.pruned_below(0, &Place::of(0), &mut pruned);
        for (id, default) in pruned {
            self.nodes[id].default = default;
        }
    }

    fn pruned_below(&self, id: NodeId, place: &Place, pruned: &mut Vec<(NodeId, Option<Value>)>) {
        let node = self.node(id);
        if let Some(default) = &node.default {
            let mut object = place.surround(default.clone());
            // Malformed fields are dropped here, so that there is nothing to refuse.
            let _ = self.coerce_embedded(&mut object, place.object, Malformed::Drop);
            self.prune_object(&mut object, place.object);
            let kept = place.extract(object);
            if kept.as_ref() != Some(default) {
                pruned.push((id, kept));
            }
        }
        let own = Place::of(id);
        let place = if node.embedded { &own } else { place };
        if let Some(Additional::Schema(additional)) = &node.additional {
            self.pruned_below(*additional, &place.field("*"), pruned);
        }
        if let Some(items) = node.items {
            self.pruned_below(items, &place.below(Step::Item), pruned);
        }
        for (name, property) in &node.properties {
            self.pruned_below(*property, &place.field(name), pruned);
        }
    }
}
