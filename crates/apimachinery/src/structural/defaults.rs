//! The defaults of a schema: are they valid themselves, and what of them is applied?
//!
//! They are checked when a CRD is written, so that reading never has to doubt. Inside the metadata of an embedded object
//! they need not be pruned: what metadata does not have is dropped when the schema is put to use.

use serde_json::{Map, Value};

use super::metadata::Malformed;
use super::{Additional, NodeId, Schema};
use crate::field::{Complaints, Error, Trail};

/// The way from an object with metadata of its own down to a default. A step costs nothing, however long the names above are.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The node of the object.
    object: NodeId,
    /// Whether the place belongs to what every object has, whatever its schema says.
    is_meta: bool,
    last: Option<(&'a Place<'a>, Step<'a>)>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item,
}

impl<'a> Place<'a> {
    fn of(object: NodeId) -> Self {
        Self { object, is_meta: false, last: None }
    }

    fn below<'b>(&'b self, step: Step<'b>) -> Place<'b> {
        let is_meta = match (self.last, step) {
            (None, Step::Field(name)) => super::META_FIELDS.contains(&name),
            (None, Step::Item) => false,
            (Some(_), _) => self.is_meta,
        };
        Place { object: self.object, is_meta, last: Some((self, step)) }
    }

    fn field<'b>(&'b self, name: &'b str) -> Place<'b> {
        self.below(Step::Field(name))
    }

    /// Returns the steps from the place up to the object.
    fn steps_up(&self) -> impl Iterator<Item = Step<'a>> + use<'a> {
        let mut last = self.last;
        std::iter::from_fn(move || {
            let (above, step) = last?;
            last = above.last;
            Some(step)
        })
    }

    /// Returns an object that has nothing but a value at this place.
    fn surround(&self, value: Value) -> Value {
        self.steps_up().fold(value, |value, step| match step {
            Step::Field(name) => Value::Object(Map::from_iter([(name.to_owned(), value)])),
            Step::Item => Value::Array(vec![value]),
        })
    }

    /// Returns what stands at this place of an object.
    fn extract(&self, object: Value) -> Option<Value> {
        let mut steps: Vec<Step<'_>> = self.steps_up().collect();
        steps.reverse();
        steps.into_iter().try_fold(object, |mut value, step| match step {
            Step::Field(name) => value.as_object_mut()?.remove(name),
            Step::Item => value.as_array_mut()?.pop(),
        })
    }
}

impl Schema {
    /// Checks every default: nothing the schema does not specify, nothing it would refuse.
    pub fn check_defaults(&self, path: &Trail<'_>, errors: &mut Complaints) {
        self.defaults_below(0, path, &Place::of(0), errors);
    }

    fn defaults_below(&self, id: NodeId, path: &Trail<'_>, place: &Place<'_>, errors: &mut Complaints) {
        let node = self.node(id);
        let own = Place::of(id);
        let place = if node.embedded { &own } else { place };
        if let Some(default) = &node.default {
            let path = path.child("default");
            if place.is_meta {
                if let Err(error) = self.check_meta_default(default, place) {
                    let message = format!("must result in valid metadata: {error}");
                    errors.tell(&path, |at| Error::invalid(at, default.clone(), message));
                }
            } else {
                let mut pruned = default.clone();
                self.prune_value(&mut pruned, id);
                if pruned != *default {
                    let message = "must not have unknown fields";
                    errors.tell(&path, |at| Error::invalid(at, default.clone(), message));
                }
            }
            self.validate_below(default, id, &path, errors);
        }
        if let Some(items) = node.items {
            self.defaults_below(items, &path.child("items"), &place.below(Step::Item), errors);
        }
        for (name, property) in &node.properties {
            self.defaults_below(*property, &path.child("properties").key(name), &place.field(name), errors);
        }
    }

    /// Checks that a default for a part of the metadata makes metadata of the right types.
    fn check_meta_default(&self, default: &Value, place: &Place<'_>) -> Result<(), Error> {
        let mut object = place.surround(default.clone());
        self.coerce_part(&mut object, place.object, true, Malformed::Refuse)
    }

    /// Drops from the defaults whatever an object would not keep: unknown or malformed metadata of embedded objects.
    pub fn prune_defaults(&mut self) {
        let mut pruned = Vec::new();
        self.pruned_below(0, &Place::of(0), &mut pruned);
        for (id, default) in pruned {
            if let Some(node) = self.nodes.get_mut(id) {
                node.default = default;
            }
        }
    }

    fn pruned_below(&self, id: NodeId, place: &Place<'_>, pruned: &mut Vec<(NodeId, Option<Value>)>) {
        let node = self.node(id);
        let own = Place::of(id);
        if let Some(default) = &node.default {
            let kept = self.without_malformed(default, id, place);
            if kept.as_ref() != Some(default) {
                pruned.push((id, kept));
            }
        }
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

    /// Returns what an object keeps of a default. Only parts of metadata need the object around them, which repeats all names above.
    fn without_malformed(&self, default: &Value, id: NodeId, place: &Place<'_>) -> Option<Value> {
        // Malformed fields are dropped here, so that there is nothing to refuse.
        if place.is_meta {
            let mut object = place.surround(default.clone());
            let _ = self.coerce_part(&mut object, place.object, true, Malformed::Drop);
            self.prune_object(&mut object, place.object);
            return place.extract(object);
        }
        let mut value = default.clone();
        if place.last.is_none() {
            let _ = self.coerce_part(&mut value, place.object, true, Malformed::Drop);
            self.prune_object(&mut value, place.object);
        } else {
            let _ = self.coerce_part(&mut value, id, false, Malformed::Drop);
            self.prune_value(&mut value, id);
        }
        Some(value)
    }
}
