//! Why a request could not go through a tunnel.

/// What went wrong on the way to a member.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the agent of cluster {cluster} has no tunnel to this control plane; check that the agent runs, that it was not \
         started with --tunnel=false, and that it reaches this server"
    )]
    Absent { cluster: String },
    #[error(
        "{limit} requests to cluster {cluster} are on their way through its tunnel already; try again later"
    )]
    Busy { cluster: String, limit: usize },
    #[error("the tunnel to cluster {cluster} ended before the answer came")]
    Lost {
        cluster: String,
        #[source]
        source: hyper::Error,
    },
    #[error("a request to cluster {cluster} cannot be put into its tunnel: {why}")]
    Request { cluster: String, why: &'static str },
    #[error("the agent of cluster {cluster} did not open the tunnel as agreed: {why}")]
    Handshake { cluster: String, why: String },
}

impl Error {
    /// Finds the error of a tunnel among the causes of another.
    pub fn within<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }
}
