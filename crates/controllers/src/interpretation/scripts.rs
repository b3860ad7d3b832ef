//! The first layer: ResourceInterpreterCustomization, run on the threads of the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::config::ResourceInterpreterCustomization;
use apimachinery::gvk::Gvk;
use interpreter::pods::PriorityClass;
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

/// How often a collection has changed, and up to which change it has been read. Changes are read when they
/// are next needed, so that many changes at once, as in a first list, are read once.
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

    /// Calls `read` if something has changed since the last time; other callers wait for it meanwhile.
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
    pub(super) fn new(mirror: &Arc<Mirror<ResourceInterpreterCustomization>>, class: PriorityClass) -> Self {
        Self {
            changes: Changes::of(mirror),
            mirror: mirror.clone(),
            customizations: Arc::new(
                Customizations::new(Arc::new(Timestamp::now)).with_priority_class(class),
            ),
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
        let scripts = Scripts::new(&mirror, PriorityClass::default());
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

    /// How long honest scripts take with and without neighbours that loop, and how long a task of the runtime waits for its turn.
    /// Prints; a machine that is busy with other things would fail any bound.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "measures: cargo test -p controllers --lib -- --ignored neighbours --nocapture"]
    async fn honest_scripts_beside_hostile_neighbours() {
        use std::time::{Duration, Instant};

        let mirror = Arc::new(Mirror::default());
        let scripts = Arc::new(Scripts::new(&mirror, PriorityClass::default()));
        let deeds = [
            "while true do end",
            "local s = 'x' while true do s = s .. s end",
            "local t = {} for i = 1, 1e9 do t[i] = i end",
            "string.find(string.format('%0900000d', 0), '.-.-.-.-.-.-.-.-x')",
            "local function f() return 1 + f() end f()",
        ];
        for index in 0..200 {
            let script = format!("function InterpretHealth(o) {} end", deeds[index % deeds.len()]);
            let kind = format!("Hostile{index}");
            let customization = read(json!({ "metadata": { "name": kind }, "spec": {
                "target": { "apiVersion": "example.io/v1", "kind": kind },
                "customizations": { "healthInterpretation": { "luaScript": script } },
            } }));
            mirror.put(&Key::new("", kind), &(index + 10).to_string(), Arc::new(customization));
        }
        put(&mirror, "1000", "function InterpretHealth(o) return o.spec.ok end");
        let measure = async |label: &str| {
            let (mut answers, mut turns) = (Vec::new(), Vec::new());
            for _ in 0..400 {
                let started = Instant::now();
                let answer = scripts.ask(Question::Health { object: widget() }).await;
                assert_eq!(answer.and_then(interpreter::Answer::into_health), Ok(true));
                answers.push(started.elapsed());
                let started = Instant::now();
                tokio::spawn(async {}).await.expect("no panic");
                turns.push(started.elapsed());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let p99 = |times: &mut Vec<Duration>| {
                times.sort();
                times[times.len() * 99 / 100]
            };
            println!("{label}: p99 of a script {:?}, of a turn {:?}", p99(&mut answers), p99(&mut turns));
        };
        assert!(scripts.supports(&Gvk::new("example.io", "v1", "Widget"), Operation::InterpretHealth));
        measure("alone").await;
        let neighbours: Vec<_> = (0..200)
            .map(|index| {
                let scripts = scripts.clone();
                tokio::spawn(async move {
                    loop {
                        let mut object = widget();
                        object["kind"] = format!("Hostile{index}").into();
                        let answer = scripts.ask(Question::Health { object }).await;
                        assert!(answer.is_err());
                        // A key that fails waits before it is tried again.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                })
            })
            .collect();
        // Each slow script is detected once; then they share one thread that yields to all others.
        let (started, mut known) = (Instant::now(), usize::MAX);
        while known != scripts.pool.slow() {
            known = scripts.pool.slow();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        println!("{known} neighbours were found to be slow within {:?}", started.elapsed());
        measure("beside 200 that loop").await;
        neighbours.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
