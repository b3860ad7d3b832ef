//! Why a member could not be reached, or why it refused a request. Messages are deterministic, because they
//! end up in conditions.

use std::time::Duration;

use crate::limit::{TooLarge, shortened};

/// The result of a request to a member.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure on the way to a member, or in it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the api endpoint of cluster {cluster} is empty")]
    NoEndpoint { cluster: String },
    #[error("cluster {cluster} does not have a secret")]
    NoSecret { cluster: String },
    #[error("the impersonatorSecretRef of cluster {cluster} is nil")]
    NoImpersonator { cluster: String },
    #[error("cannot read the secret of cluster {cluster}")]
    Secret { cluster: String, source: Box<kube::Error> },
    #[error("the secret for cluster {cluster} is missing a non-empty value for {key:?}")]
    NoCredential { cluster: String, key: &'static str },
    /// The source is left out on purpose: it may quote secrets.
    #[error("cannot make a client for cluster {cluster} at {endpoint}")]
    Client { cluster: String, endpoint: String },
    /// The API answered with this error.
    #[error("{message}")]
    Refused { code: u16, reason: String, message: String },
    #[error("cannot reach cluster {cluster}")]
    Transport { cluster: String, source: Box<kube::Error> },
    #[error("cluster {cluster} did not answer within {after:?}")]
    Timeout { cluster: String, after: Duration },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("no matches for kind {kind:?} in version {version:?}")]
    UnknownKind { kind: String, version: String },
}

impl Error {
    /// Converts an error answer of the API; everything else is a failure to reach it.
    pub fn of(cluster: &str, error: kube::Error) -> Self {
        if let Some(found) = TooLarge::within(&error) {
            return Self::TooLarge(found.clone());
        }
        match error {
            kube::Error::Api(status) => Self::Refused {
                code: status.code,
                reason: status.reason.clone(),
                message: shortened(status.message.clone()),
            },
            other => Self::Transport { cluster: cluster.to_owned(), source: Box::new(other) },
        }
    }

    /// Returns whether the object, or its kind, does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Returns whether an object of this name exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// Returns whether a creation was refused for a reason that says nothing about whether the object exists.
    ///
    /// It is false where reading the object would not help: the credentials are not accepted, the member is
    /// busy, or the namespace or the kind does not exist.
    pub fn may_hide_existing(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if !matches!(code, 401 | 404 | 409 | 429))
    }

    /// Returns whether another writer changed the object meanwhile.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason != "AlreadyExists")
    }

    /// Returns whether the credentials were refused.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { code: 401, .. })
    }
}
