//! The first layer: ResourceInterpreterCustomization, run on the threads of the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::config::ResourceInterpreterCustomization;
use apimachinery::gvk::Gvk;
use interpreter::{Customizations, Error, Layer, Operation, Pending, Question, Rulebook as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use runtime::{Mirror, place};

use super::pool::Pool;

pub(super) struct Scripts {
    mirror: Arc<Mirror<ResourceInterpreterCustomization>>,
    customizations: Arc<Customizations>,
    pool: Pool,
    changes: Changes,
}

/// How often a collection has changed, and up to which change it has been read. What has changed is read when it is next
/// needed: many changes at once, as in a first list, are read once.
pub(super) struct Changes {
    seen: Arc<AtomicU64>,
    read: AtomicU64,
    reading: Mutex<()>,
}

impl Changes {
    pub(super) fn of<T: Send + Sync + 'static>(mirror: &Mirror<T>) -> Self {
        let seen = Arc::new(AtomicU64::new(1));
        let counted = seen.clone();
        mirror.subscribe(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        Self { seen, read: AtomicU64::new(0), reading: Mutex::default() }
    }

    /// Calls `read` if something has changed since the last time; whoever comes meanwhile waits for it.
    pub(super) fn catch_up(&self, read: impl FnOnce()) {
        let is_new = || self.read.load(Ordering::SeqCst) < self.seen.load(Ordering::SeqCst);
        if !is_new() {
            return;
        }
        let _one_at_a_time = self.reading.lock();
        if is_new() {
            let seen = self.seen.load(Ordering::SeqCst);
            read();
            self.read.store(seen, Ordering::SeqCst);
        }
    }
}

impl Scripts {
    pub(super) fn new(mirror: &Arc<Mirror<ResourceInterpreterCustomization>>) -> Self {
        Self {
            changes: Changes::of(mirror),
            mirror: mirror.clone(),
            customizations: Arc::new(Customizations::new(Arc::new(Timestamp::now))),
            pool: Pool::new(),
        }
    }

    fn catch_up(&self) {
        self.changes.catch_up(|| {
            let all = self.mirror.all();
            self.customizations.load(all.iter().map(AsRef::as_ref));
            self.pool.forget();
        });
    }
}

impl Layer for Scripts {
    fn supports(&self, kind: &Gvk, operation: Operation) -> bool {
        self.catch_up();
        self.customizations.supports(kind, operation)
    }

    fn ask(&self, question: Question) -> Pending<'_> {
        let (kind, operation) = (question.kind(), question.operation());
        let customizations = self.customizations.clone();
        Box::pin(place::outside(async move {
            let answer = self.pool.run((kind.clone(), operation), move || question.put_to(&*customizations));
            match answer.await {
                Ok(answer) => answer,
                Err(lost) => {
                    tracing::error!(%kind, %operation, error = %lost, "a script was given up");
                    Err(Error::Layer(format!("the customization of {operation} for \"{kind}\" {lost}")))
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use runtime::Key;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::read;

    fn put(mirror: &Mirror<ResourceInterpreterCustomization>, version: &str, script: &str) {
        let customization = read(json!({ "metadata": { "name": "c" }, "spec": {
            "target": { "apiVersion": "example.io/v1", "kind": "Widget" },
            "customizations": { "healthInterpretation": { "luaScript": script } },
        } }));
        mirror.put(&Key::new("", "c"), version, Arc::new(customization));
    }

    fn widget() -> Value {
        json!({ "apiVersion": "example.io/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "ok": true } })
    }

    #[tokio::test]
    async fn what_the_mirror_shows_is_what_is_run() {
        let mirror = Arc::new(Mirror::default());
        let scripts = Scripts::new(&mirror);
        let kind = Gvk::new("example.io", "v1", "Widget");
        assert!(!scripts.supports(&kind, Operation::InterpretHealth));
        let ask = async || {
            assert!(scripts.supports(&kind, Operation::InterpretHealth));
            scripts.ask(Question::Health { object: widget() }).await?.into_health()
        };
        put(&mirror, "1", "function InterpretHealth(o) return o.spec.ok end");
        assert_eq!(ask().await, Ok(true));
        put(&mirror, "2", "function InterpretHealth(o) return not o.spec.ok end");
        assert_eq!(ask().await, Ok(false));
        put(&mirror, "3", "function InterpretHealth(o)\n return o.a.b end");
        let error = ask().await.map_err(|error| error.to_string());
        let expected = "customization c: InterpretHealth: <string>:2: attempt to index a non-table object(nil) with key 'b'";
        assert!(error.as_ref().is_err_and(|error| error.starts_with(expected)), "{error:?}");
    }
}
