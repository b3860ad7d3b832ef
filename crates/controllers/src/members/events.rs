//! Events on the objects that users look at.
//!
//! Reports go through a bounded channel to one task, so that no controller waits for an event. What was said about an
//! object already is not said again: events stay quiet when nothing changed. When too many come at once, the newest
//! are dropped; they are news, not state.

use std::collections::{HashMap, VecDeque};

use api::events::event_type;
use api::labels::annotations::TEMPLATE_UID;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use propagation::Object;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A burst of a thousand Works says about three things each.
const CAPACITY: usize = 4096;
/// How many sayings are remembered.
const MEMORY: usize = 8192;

struct Saying {
    about: ObjectReference,
    component: &'static str,
    reason: &'static str,
    message: String,
}

#[derive(Clone)]
pub(super) struct Recorder {
    sender: mpsc::Sender<Saying>,
}

impl Recorder {
    pub(super) fn start(client: Client, stop: CancellationToken, tasks: &TaskTracker) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        tasks.spawn(write(client, stop, receiver));
        Self { sender }
    }

    /// Says something about one of Karmada's own objects.
    pub(super) fn say<K: Resource<DynamicType = ()>>(
        &self,
        component: &'static str,
        object: &K,
        reason: &'static str,
        message: String,
    ) {
        self.send(Saying { about: object.object_ref(&()), component, reason, message });
    }

    /// Says something about the template of a manifest; nothing if the manifest does not tell which it is.
    pub(super) fn say_of_template(
        &self,
        component: &'static str,
        manifest: &Value,
        reason: &'static str,
        message: String,
    ) {
        let uid = manifest.annotation(TEMPLATE_UID).unwrap_or("");
        if uid.is_empty() {
            return;
        }
        let about = ObjectReference {
            api_version: Some(manifest.api_version().to_owned()),
            kind: Some(manifest.kind().to_owned()),
            namespace: Some(manifest.namespace().to_owned()).filter(|namespace| !namespace.is_empty()),
            name: Some(manifest.name().to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.send(Saying { about, component, reason, message });
    }

    fn send(&self, saying: Saying) {
        if self.sender.try_send(saying).is_err() {
            tracing::debug!("event dropped: too many at once, or stopping");
        }
    }
}

async fn write(client: Client, stop: CancellationToken, mut receiver: mpsc::Receiver<Saying>) {
    let mut last: HashMap<String, String> = HashMap::new();
    let mut order: VecDeque<String> = VecDeque::new();
    let mut serial: u64 = 0;
    loop {
        let saying = tokio::select! {
            () = stop.cancelled() => return,
            saying = receiver.recv() => saying,
        };
        let Some(saying) = saying else { return };
        let topic = format!("{}/{}", saying.about.uid.as_deref().unwrap_or(""), saying.reason);
        match last.insert(topic.clone(), saying.message.clone()) {
            Some(before) if before == saying.message => continue,
            Some(_) => {}
            None => {
                order.push_back(topic);
                if order.len() > MEMORY
                    && let Some(oldest) = order.pop_front()
                {
                    last.remove(&oldest);
                }
            }
        }
        serial += 1;
        let event = event(saying, Timestamp::now(), serial);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api = Api::<Event>::namespaced(client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, "event not written");
        }
    }
}

/// Events on cluster-scoped objects live in the default namespace.
fn event(saying: Saying, now: Timestamp, serial: u64) -> Event {
    let Saying { about, component, reason, message } = saying;
    let namespace = about.namespace.clone().unwrap_or_else(|| api::constants::NAMESPACE_DEFAULT.to_owned());
    let name = about.name.as_deref().unwrap_or("");
    let moment = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let mut event = Event {
        reason: Some(reason.to_owned()),
        type_: Some(event_type(reason).to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(moment.clone()),
        last_timestamp: Some(moment),
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        reporting_component: Some(component.to_owned()),
        involved_object: about.clone(),
        ..Event::default()
    };
    event.metadata.namespace = Some(namespace);
    // The moment makes the name unlike those before a restart, the serial unlike those of the same moment.
    let stamp = u64::try_from(now.as_nanosecond()).unwrap_or(0).wrapping_add(serial);
    event.metadata.name = Some(format!("{name}.{stamp:x}"));
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_on_a_cluster_scoped_object_lives_in_the_default_namespace() {
        let saying = Saying {
            about: ObjectReference {
                kind: Some("Cluster".into()),
                name: Some("m1".into()),
                ..ObjectReference::default()
            },
            component: "cluster-controller",
            reason: api::events::TAINT_CLUSTER_FAILED,
            message: "no".into(),
        };
        let event = event(saying, Timestamp::UNIX_EPOCH, 1);
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(event.metadata.name.as_deref(), Some("m1.1"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
    }
}
