//! What apply must know about a type.
//!
//! Native kinds bring tables, custom resources their structural schema; both implement [`TypeSchema`]. Below what is
//! unknown, [`Deduced`] takes maps as granular and lists as atomic.

use serde_json::Value;

/// A type, as a cheap handle. A type may allow several sorts of values (unknown subtrees do).
pub trait TypeSchema: Clone {
    /// Returns which scalars are allowed, if any.
    fn scalar(&self) -> Option<Scalar>;

    /// Returns how lists of this type behave, `None` if it is not a list type.
    fn list(&self) -> Option<List<Self>>;

    /// Returns how objects of this type behave, `None` if it is not an object type.
    fn map(&self) -> Option<Topology>;

    /// Returns the type of a field of an object type; `None` if there is no such field.
    fn member(&self, name: &str) -> Option<Member<Self>>;

    /// Returns the default of a field, needed where the field is a list key.
    fn default_of(&self, _name: &str) -> Option<Value> {
        None
    }

    /// True for objects of which nothing is declared: their ownership is never rewritten after schema changes.
    fn is_untyped_map(&self) -> bool {
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// Each field has its own owners.
    Granular,
    /// Owned and replaced as a whole.
    Atomic,
}

/// How the items of a list are told apart.
#[derive(Debug, Clone)]
pub enum List<S> {
    /// Not at all: the list is one value.
    Atomic(Option<S>),
    /// By value.
    Set(S),
    /// By the values of some of their fields.
    Map { keys: Vec<String>, element: S },
}

impl<S> List<S> {
    pub fn element(self) -> Option<S> {
        match self {
            Self::Atomic(element) => element,
            Self::Set(element) | Self::Map { element, .. } => Some(element),
        }
    }
}

/// A field of an object.
#[derive(Debug, Clone)]
pub struct Member<S> {
    pub schema: S,
    /// False for entries of a map with free keys.
    pub declared: bool,
}

/// The type of what nobody described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deduced;

impl TypeSchema for Deduced {
    fn scalar(&self) -> Option<Scalar> {
        Some(Scalar::Any)
    }

    fn list(&self) -> Option<List<Self>> {
        Some(List::Atomic(Some(Self)))
    }

    fn map(&self) -> Option<Topology> {
        Some(Topology::Granular)
    }

    fn member(&self, _name: &str) -> Option<Member<Self>> {
        Some(Member { schema: Self, declared: false })
    }

    fn is_untyped_map(&self) -> bool {
        true
    }
}
