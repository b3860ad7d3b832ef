//! The second layer: ResourceInterpreterWebhookConfiguration. `interpreter::webhook` decides which hook is
//! asked and what its answer means; this file sends the request.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::config::{ResourceInterpreterContext, ResourceInterpreterWebhookConfiguration};
use apimachinery::gvk::Gvk;
use interpreter::webhook::{Hook, Hooks};
use interpreter::{Answer, Error, Layer, Operation, Pending, Question, Result};
use kube::Client;
use parking_lot::{Mutex, RwLock};
use runtime::{Mirror, place};
use tokio::sync::Semaphore;

use super::scripts::Changes;
use super::transport::Transport;

/// How many requests one hook gets at a time. The others wait, and delay only their own keys.
const IN_FLIGHT: usize = 16;
/// How long a hook that names no timeout may take: the most that one may name. Upstream waits for ever.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) struct Webhooks {
    mirror: Arc<Mirror<ResourceInterpreterWebhookConfiguration>>,
    hooks: RwLock<Arc<Hooks>>,
    changes: Changes,
    /// The requests in progress, by the id of their hook.
    in_flight: Mutex<HashMap<String, Arc<Semaphore>>>,
    transport: Transport,
}

impl Webhooks {
    pub(super) fn new(mirror: &Arc<Mirror<ResourceInterpreterWebhookConfiguration>>, client: Client) -> Self {
        Self {
            changes: Changes::of(mirror),
            mirror: mirror.clone(),
            hooks: RwLock::default(),
            in_flight: Mutex::default(),
            transport: Transport::new(client),
        }
    }

    fn hook(&self, kind: &Gvk, operation: Operation) -> Option<Arc<Hook>> {
        self.changes.catch_up(|| {
            let all = self.mirror.all();
            *self.hooks.write() = Arc::new(Hooks::new(all.iter().map(AsRef::as_ref)));
            // Hooks with requests in progress keep their count until these end.
            self.in_flight.lock().retain(|_, places| Arc::strong_count(places) > 1);
            self.transport.forget();
        });
        let hooks = self.hooks.read().clone();
        hooks.find(kind, operation).cloned()
    }

    async fn call(&self, hook: &Hook, question: Question) -> Result<Answer> {
        let places = {
            let mut in_flight = self.in_flight.lock();
            let new = || Arc::new(Semaphore::new(IN_FLIGHT));
            in_flight.entry(hook.id.clone()).or_insert_with(new).clone()
        };
        let _place = places.acquire().await.expect("the semaphore is never closed");
        let uid = uuid::Uuid::new_v4().to_string();
        let request = hook.request(&uid, &question)?;
        let failed = |reason: String| hook.failed(&format!("failed to call webhook: {reason}"));
        let body = serde_json::to_vec(&request).map_err(|error| failed(error.to_string()))?;
        let timeout = hook.webhook.timeout_seconds;
        let timeout = timeout.map(|seconds| Duration::from_secs(u64::from(seconds.max(1).unsigned_abs())));
        let sent = self.transport.post(&hook.webhook.client_config, timeout, LONGEST, body.into());
        let document = sent.await.map_err(|error| hook.failed(&error.reason()))?;
        let context: ResourceInterpreterContext =
            serde_json::from_value(document).map_err(|error| failed(error.to_string()))?;
        hook.answer(&uid, question, context)
    }
}

impl Layer for Webhooks {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.hook(kind, operation).is_some()
    }

    fn ask(&self, question: Question) -> Pending<'_> {
        Box::pin(place::outside(async move {
            let (kind, operation) = (question.kind(), question.operation());
            match self.hook(&kind, operation) {
                Some(hook) => self.call(&hook, question).await,
                // The hook was removed after it was found: the next attempt finds its replacement.
                None => Err(Error::NoRule { operation, kind }),
            }
        }))
    }
}
