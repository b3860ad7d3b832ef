//! Why an interpretation failed. Messages are deterministic: they end up in events and conditions.

use apimachinery::gvk::Gvk;

use crate::Operation;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No layer answers the operation for this kind; upstream's text.
    #[error("default {operation} interpreter for \"{kind}\" not found")]
    NoRule { operation: Operation, kind: Gvk },
    /// Upstream words the dependency operation without the kind.
    #[error("default interpreter for operation InterpretDependency not found")]
    NoDependencyRule,
    /// There is no native layer for components.
    #[error("interface GetComponents not implemented yet")]
    NoComponentRule,
    #[error(".{path} accessor error: {found} is of the wrong type, expected {expected}")]
    WrongType { path: String, found: String, expected: &'static str },
    #[error("failed to get spec.replicas from {kind} {namespace}/{name}")]
    NoReplicasToRetain { kind: String, namespace: String, name: String },
    #[error("invalid template generation {value:?} in annotation {annotation}")]
    TemplateGeneration { annotation: &'static str, value: String },
    #[error("invalid quantity {value:?} at .{path}")]
    Quantity { path: String, value: String },
    #[error("invalid time {value:?} at .{path}")]
    Time { path: String, value: String },
    #[error("invalid node selector, affinity or toleration: {0}")]
    NodeClaim(String),
    #[error("{0}")]
    Dependency(String),
    #[error("{0} is missing")]
    Missing(String),
    /// A script failed, or what it returned cannot be used; the message is upstream's, with the script's line.
    #[error("customization {customization}: {operation}: {message}")]
    Script { customization: String, operation: Operation, message: String },
    /// A failure of a layer outside this crate, told in its own words.
    #[error("{0}")]
    Layer(String),
}
