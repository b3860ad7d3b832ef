//! Events: what users see under `kubectl describe`.
//!
//! Written in the background, so that no reconcile waits for them. Repeated events about the same object
//! become one event with a count, which is written at most every `QUIET`: frequent repetitions carry no
//! information. When there are more events than can be written, the rest is dropped: events are a help for
//! users, not a record. A thousand templates that change at once cause some 20,000 events of success, which nobody reads
//! and which would cost more than the changes themselves, so normal events have a budget.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use api::events::event_type;
use api::work::ObjectReference;
use apimachinery::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Supervisor;

/// How many events may wait; as many as in Kubernetes' own recorder.
const WAITING: usize = 1000;
/// With more than this waiting, normal events about Works are not written,
const UNCROWDED: usize = 128;
/// and with more than this, no normal events at all: the rest of the queue is for warnings.
const CROWDED: usize = 750;
/// How many normal events may be written at once,
const BURST: u32 = 500;
/// and how often one more may follow. Upstream's recorder shares 40 requests a second with all else that its program writes.
const PACE: Duration = Duration::from_millis(20);
/// What is left of the burst for other objects than Works.
const RESERVE: u32 = 250;
/// How many events are remembered for counting.
const REMEMBERED: usize = 16_384;
/// How long repetitions of a written event are only counted.
const QUIET: Duration = Duration::from_secs(60);

/// The object that an event is about.
pub(crate) type Involved = k8s_openapi::api::core::v1::ObjectReference;

#[derive(Clone)]
pub struct Events(mpsc::Sender<News>);

struct News {
    component: &'static str,
    about: Involved,
    kind: &'static str,
    reason: &'static str,
    message: String,
}

/// What an event can be about.
pub trait Subject {
    fn involved(&self) -> Involved;
}

impl Subject for Value {
    fn involved(&self) -> Involved {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let metadata = &self["metadata"];
        Involved {
            api_version: text(&self["apiVersion"]),
            kind: text(&self["kind"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            field_path: None,
        }
    }
}

impl Subject for ObjectReference {
    fn involved(&self) -> Involved {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Involved {
            api_version: text(&self.api_version),
            kind: text(&self.kind),
            namespace: text(&self.namespace),
            name: text(&self.name),
            uid: text(&self.uid),
            resource_version: text(&self.resource_version),
            field_path: None,
        }
    }
}

/// Returns the reference by which events name an object of a known kind.
pub fn about<K: Resource<DynamicType = ()>>(object: &K) -> Involved {
    object.object_ref(&())
}

impl Subject for Involved {
    fn involved(&self) -> Involved {
        self.clone()
    }
}

impl Events {
    /// Returns the handle; a supervised task writes the events.
    pub fn new(client: Client, supervisor: &Supervisor) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let (receiver, stop) = (Arc::new(Mutex::new(receiver)), supervisor.token().clone());
        supervisor.keep("events", move || write(client.clone(), receiver.clone(), stop.clone()));
        Self(sender)
    }

    pub fn normal(
        &self,
        component: &'static str,
        about: &impl Subject,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.emit(component, about, "Normal", reason, message.into());
    }

    pub fn warning(
        &self,
        component: &'static str,
        about: &impl Subject,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.emit(component, about, "Warning", reason, message.into());
    }

    /// Emits an event about one of Karmada's own objects; the reason decides whether it is a warning.
    pub fn say<K: Resource<DynamicType = ()>>(
        &self,
        component: &'static str,
        object: &K,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.emit(component, &about(object), event_type(reason), reason, message.into());
    }

    pub fn emit(
        &self,
        component: &'static str,
        about: &impl Subject,
        kind: &'static str,
        reason: &'static str,
        message: String,
    ) {
        // Users look at templates and bindings, so the success of a Work has the lowest priority.
        let about = about.involved();
        let limit = match about.kind.as_deref() {
            _ if kind != "Normal" => WAITING,
            Some("Work") => UNCROWDED,
            _ => CROWDED,
        };
        if WAITING.saturating_sub(self.0.capacity()) > limit {
            return;
        }
        let news = News { component, about, kind, reason, message };
        if self.0.try_send(news).is_err() {
            tracing::debug!(reason, "event dropped");
        }
    }
}

/// What identifies repetitions of an event: a hash of object, component, reason and message.
type Identity = u64;

/// What has been written for an event.
struct Written {
    /// The event's name.
    name: String,
    count: i32,
    at: Instant,
}

#[derive(Default)]
struct Memory {
    written: HashMap<Identity, Written>,
    order: VecDeque<Identity>,
    hasher: RandomState,
    budget: Budget,
}

/// How many normal events may be written.
struct Budget {
    left: u32,
    /// Up to when `left` has been filled up.
    filled: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: BURST, filled: Instant::now() }
    }
}

impl Budget {
    /// Takes a place for an event, if there is one for it.
    fn allows(&mut self, event: &News, now: Instant) -> bool {
        if event.kind != "Normal" {
            return true;
        }
        let elapsed = now.saturating_duration_since(self.filled).as_nanos();
        let paces = elapsed.checked_div(PACE.as_nanos()).unwrap_or(elapsed);
        let more = u32::try_from(paces).unwrap_or(BURST).min(BURST);
        self.left = self.left.saturating_add(more).min(BURST);
        // What is full needs no memory of the time before.
        let filled = self.filled.checked_add(PACE.saturating_mul(more)).filter(|_| self.left < BURST);
        self.filled = filled.unwrap_or(now);
        let reserve = if event.about.kind.as_deref() == Some("Work") { RESERVE } else { 0 };
        let allowed = self.left > reserve;
        self.left = self.left.saturating_sub(u32::from(allowed));
        allowed
    }
}

async fn write(client: Client, receiver: Arc<Mutex<mpsc::Receiver<News>>>, stop: CancellationToken) {
    // Locked for as long as this task lives; the next one comes after it.
    let mut receiver = receiver.lock().await;
    let mut memory = Memory::default();
    let mut counter: u64 = 0;
    loop {
        let news = tokio::select! {
            () = stop.cancelled() => return,
            news = receiver.recv() => news,
        };
        let Some(news) = news else { return stop.cancelled().await };
        counter = counter.wrapping_add(1);
        if let Err(error) = write_one(&client, news, &mut memory, counter).await {
            // Events about an object in a namespace that is being deleted are refused, which is fine.
            tracing::debug!(%error, "event not written");
        }
    }
}

async fn write_one(
    client: &Client,
    news: News,
    memory: &mut Memory,
    counter: u64,
) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let time = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    // Events on cluster-scoped objects land in the default namespace.
    let namespace = news.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    // It may come from a reference that a user has written, and the client writes it into a path as it is.
    if !names::is_path_segment(&namespace) {
        return Ok(());
    }
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let about = &news.about;
    let object = (&about.kind, &namespace, &about.name, &about.uid);
    let identity = memory.hasher.hash_one((object, news.component, news.reason, &news.message));
    if let Some(written) = memory.written.get_mut(&identity) {
        written.count = written.count.saturating_add(1);
        if written.at.elapsed() < QUIET || !memory.budget.allows(&news, Instant::now()) {
            return Ok(());
        }
        let patch = json!({"count": written.count, "lastTimestamp": time});
        match api.patch(&written.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {
                written.at = Instant::now();
                return Ok(());
            }
            // It has expired; a new one follows.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    } else if !memory.budget.allows(&news, Instant::now()) {
        tracing::debug!(reason = news.reason, "event dropped");
        return Ok(());
    }
    let name = format!(
        "{}.{:x}{counter:x}",
        news.about.name.as_deref().unwrap_or(""),
        now.as_nanosecond().unsigned_abs()
    );
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: news.about,
        reason: Some(news.reason.to_owned()),
        message: Some(shortened(news.message)),
        type_: Some(news.kind.to_owned()),
        source: Some(EventSource { component: Some(news.component.to_owned()), host: None }),
        reporting_component: Some(news.component.to_owned()),
        first_timestamp: Some(time.clone()),
        last_timestamp: Some(time),
        count: Some(1),
        ..Event::default()
    };
    api.create(&PostParams::default(), &event).await?;
    let written = Written { name, count: 1, at: Instant::now() };
    if memory.written.insert(identity, written).is_none() {
        memory.order.push_back(identity);
    }
    if memory.order.len() > REMEMBERED
        && let Some(oldest) = memory.order.pop_front()
    {
        memory.written.remove(&oldest);
    }
    Ok(())
}

/// Messages may have 1024 bytes.
fn shortened(mut message: String) -> String {
    if message.len() > 1024 {
        let end = (0..=1021).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finding_25_an_event_about_what_cannot_exist_is_not_written() {
        let nobody = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            Err::<http::Response<kube::client::Body>, _>(format!("{} was asked for", request.uri()))
        });
        let client = Client::new(nobody, "default");
        let told = async |namespace: &str| {
            let about = ObjectReference { namespace: namespace.to_owned(), ..ObjectReference::default() };
            let (component, kind, reason) = ("c", "Normal", "r");
            let news = News { component, about: about.involved(), kind, reason, message: "m".to_owned() };
            write_one(&client, news, &mut Memory::default(), 1).await
        };
        for odd in ["shop/secrets?a=", "shop#", ".."] {
            told(odd).await.expect("nothing is asked for");
        }
        assert!(told("shop").await.is_err(), "what can exist is asked for");
    }

    fn news(kind: &'static str, about: &str) -> News {
        let about = Involved { kind: Some(about.to_owned()), ..Involved::default() };
        News { component: "c", about, kind, reason: "r", message: "m".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn normal_events_have_a_budget_and_warnings_have_none() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let mut allowed = |kind, about, tried: usize, now| {
            (0..tried).filter(|_| budget.allows(&news(kind, about), now)).count()
        };
        assert_eq!(allowed("Normal", "Work", 1000, start), 250, "half of the burst is for others");
        assert_eq!(allowed("Normal", "Deployment", 1000, start), 250);
        assert_eq!(allowed("Warning", "Work", 1000, start), 1000);
        let later = start + PACE * 3 + PACE / 2;
        assert_eq!(allowed("Normal", "Deployment", 10, later), 3, "one for each pace");
        let later = start + PACE * 4;
        assert_eq!(allowed("Normal", "Deployment", 10, later), 1, "half a pace was not lost");
        let much_later = start + Duration::from_secs(1_000_000);
        assert_eq!(allowed("Normal", "Deployment", 1000, much_later), 500, "never more than the burst");
    }
}
