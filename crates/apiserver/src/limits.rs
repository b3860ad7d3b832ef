//! How many requests are worked on at once; the rest wait a little and are then told to come back.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::User;
use crate::auth::user::MASTERS;
use crate::http::RequestInfo;

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Separate limits for reads and writes, so that neither starves the other.
#[derive(Debug)]
pub struct Limits {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

impl Limits {
    pub fn new(reads: usize, writes: usize) -> Self {
        Self { reads: Arc::new(Semaphore::new(reads)), writes: Arc::new(Semaphore::new(writes)) }
    }

    /// Waits for a place. Administrators and long-running requests do not need one.
    pub async fn enter(
        &self,
        user: &User,
        info: &RequestInfo,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if info.is_long_running() || user.in_group(MASTERS) || !info.is_resource {
            return Ok(None);
        }
        let reading = matches!(info.verb, "get" | "list");
        let semaphore = if reading { &self.reads } else { &self.writes };
        match tokio::time::timeout(PATIENCE, semaphore.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(Status::too_many_requests("Too many requests, please try again later.", 1)),
        }
    }
}
