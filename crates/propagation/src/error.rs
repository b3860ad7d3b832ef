//! Why something could not be decided.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binding of an earlier object of the same name is still there; the garbage collector will remove it.
    #[error(
        "binding {binding} still belongs to an earlier object (uid {owner}), waiting until it is garbage collected"
    )]
    ForeignOwner { binding: String, owner: String },
    #[error("work {work} is being deleted")]
    WorkBeingDeleted { work: String },
    #[error("work {work} belongs to binding {binding} and is left alone")]
    ForeignWork { work: String, binding: String },
    #[error("binding {binding} refers to {object}, which is not in its namespace, and is not carried out")]
    OutOfScope { binding: String, object: String },
    #[error("policy {policy} has no permanent id yet")]
    NoPermanentId { policy: String },
    #[error("priority class source {source_name} is not supported")]
    PrioritySource { source_name: String },
    #[error("priority class {name} not found")]
    NoPriorityClass { name: String },
    #[error("cannot interpret {object}: {source}")]
    Interpret { object: String, source: interpreter::Error },
    #[error("cannot put {object} into a work: {source}")]
    Depth { object: String, source: apimachinery::depth::TooDeep },
    #[error("cannot apply {} for cluster({cluster}): {}", failure.describe(), failure.error)]
    Override { cluster: String, failure: Box<crate::overrides::Failure> },
    #[error("no completions found for cluster {cluster}")]
    NoCompletions { cluster: String },
    #[error("{path} of {object} is not {expected}")]
    Field { object: String, path: &'static str, expected: &'static str },
    #[error("{what} is not readable: {source}")]
    Decode { what: String, source: serde_json::Error },
    #[error("work namespace {namespace} is not an execution space")]
    NotAnExecutionSpace { namespace: String },
    #[error("work {work} has no manifest of {object}")]
    NoSuchManifest { work: String, object: String },
    #[error("work {work} has the same object as {counted}, which counts")]
    SecondWork { work: String, counted: String },
    #[error("binding {binding}, which requires this one, does not exist")]
    NoReferrer { binding: String },
    #[error("dependency can not leave name and labelSelector all empty")]
    EmptyDependency,
    #[error("invalid label selector: {0}")]
    LabelSelector(String),
    #[error("unable to parse {token:?}")]
    SkippedApi { token: String },
    #[error("invalid namespace pattern {pattern:?}")]
    NamespacePattern { pattern: String },
}
