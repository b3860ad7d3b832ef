//! Reads from a member's store and carries out the controllers' decisions, through the API server's own path for writes.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use apiserver::Server;
use apiserver::handlers::delete::{DeleteOptions, Preconditions};
use apiserver::head::Head;
use apiserver::internal::Actor;
use apiserver::registry;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::objects::{Object, map_at, micro_stamp, stamp, text};
use crate::plan::{Component, Event, Step, Tell};
use crate::view::Objects;

type Entry = store::Entry<Head>;

/// A member's API server, as the simulation uses it.
pub(crate) struct Executor {
    server: Arc<Server>,
    kinds: HashMap<Kind, Arc<registry::Kind>>,
    by_collection: HashMap<Arc<str>, Kind>,
    manager: Actor,
    scheduler: Actor,
    kubelet: Actor,
}

/// The result of a step.
pub(crate) enum Done {
    Nothing,
    Again(std::time::Duration),
    /// An object could not be created for the owner with this uid.
    Failed {
        owner: String,
        message: String,
    },
}

impl Executor {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        let registry = server.registry.load_full();
        let kinds: HashMap<Kind, Arc<registry::Kind>> = Kind::ALL
            .into_iter()
            .map(|kind| {
                let (group, version, plural) = kind.resource();
                (kind, registry.find(group, version, plural).expect("a native kind is served").clone())
            })
            .collect();
        Self {
            by_collection: kinds.iter().map(|(kind, served)| (served.collection.clone(), *kind)).collect(),
            kinds,
            manager: Actor::new(server, "system:kube-controller-manager"),
            scheduler: Actor::new(server, "system:kube-scheduler"),
            kubelet: Actor::new(server, "system:kubelet"),
            server: server.clone(),
        }
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Returns the kind whose objects are in a collection.
    pub(crate) fn kind_of(&self, collection: &str) -> Option<Kind> {
        self.by_collection.get(collection).copied()
    }

    fn actor(&self, component: Component) -> &Actor {
        match component {
            Component::ControllerManager => &self.manager,
            Component::Scheduler => &self.scheduler,
            Component::Kubelet => &self.kubelet,
        }
    }

    pub(crate) fn parse(&self, kind: Kind, entry: &Entry) -> Value {
        self.server.read_or_warn(&self.kinds[&kind], entry).unwrap_or_default()
    }

    /// Calls back for every entry of a kind, in a namespace or in all.
    pub(crate) fn each(&self, kind: Kind, namespace: &str, mut call: impl FnMut(&Arc<Entry>)) {
        let snapshot = self.server.store.snapshot(&self.kinds[&kind].collection);
        if namespace.is_empty() {
            snapshot.iter().for_each(call);
            return;
        }
        let prefix = format!("{namespace}/");
        let from = std::ops::Bound::Included(prefix.as_str());
        for entry in snapshot.range(from, std::ops::Bound::Unbounded) {
            if !entry.name.starts_with(&prefix) {
                break;
            }
            call(entry);
        }
    }

    /// Carries out one step. An object that is gone meanwhile needs no step any more.
    pub(crate) async fn carry_out(&self, step: Step, now: Timestamp) -> Result<Done, Status> {
        let result = self.attempt(step, now).await;
        match result {
            Err(status) if matches!(status.reason.as_ref(), "NotFound" | "Conflict") => Ok(Done::Nothing),
            other => other,
        }
    }

    async fn attempt(&self, step: Step, now: Timestamp) -> Result<Done, Status> {
        match step {
            Step::Create { kind, object, tell } => return self.create(kind, object, tell, now).await,
            Step::Update { kind, object } => {
                self.manager
                    .update(&self.kinds[&kind], object.namespace(), object.name(), "", |old| {
                        // Another writer was faster: the decision may be outdated by now, and the change triggers a new one.
                        if old["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                            return None;
                        }
                        let mut new = object.clone();
                        if let Some(managed) = old.pointer("/metadata/managedFields") {
                            new["metadata"]["managedFields"] = managed.clone();
                        }
                        Some(new)
                    })
                    .await?;
            }
            Step::Status { kind, namespace, name, uid: wanted, status, annotations, by } => {
                self.actor(by)
                    .update(&self.kinds[&kind], &namespace, &name, "status", |old| {
                        if old.uid() != wanted {
                            return None;
                        }
                        let mut new = old.clone();
                        new["status"] = status.clone();
                        if let Some(annotations) = &annotations {
                            new["metadata"]["annotations"] = annotations.clone();
                        }
                        Some(new)
                    })
                    .await?;
            }
            Step::Delete { kind, namespace, name, uid, grace, tell } => {
                let options = DeleteOptions {
                    grace_period_seconds: grace,
                    preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
                    propagation_policy: Some("Background".to_owned()),
                    ..DeleteOptions::default()
                };
                let by = if grace == Some(0) { &self.kubelet } else { &self.manager };
                by.delete(&self.kinds[&kind], &namespace, &name, &options).await?;
                if let Some(tell) = tell {
                    self.event(told(&tell, "SuccessfulDelete", &name), now).await?;
                }
            }
            Step::Bind { namespace, name, uid: wanted, node, labels } => {
                self.scheduler
                    .update(&self.kinds[&Kind::Pod], &namespace, &name, "binding", |old| {
                        (old.uid() == wanted && text(old, "/spec/nodeName").is_empty())
                            .then(|| bound(old, &node, &labels, now))
                    })
                    .await?;
            }
            Step::Event(event) => self.event(event, now).await?,
            Step::Again(after) => return Ok(Done::Again(after)),
        }
        Ok(Done::Nothing)
    }

    async fn create(
        &self,
        kind: Kind,
        mut object: Value,
        tell: Option<Tell>,
        now: Timestamp,
    ) -> Result<Done, Status> {
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.name());
        let space = object.namespace().to_owned();
        let owner = object.controller().map(|owner| text(owner, "/uid").to_owned());
        let asked = format!("{}{}", text(&object, "/metadata/generateName"), object.name());
        match self.manager.create(&self.kinds[&kind], &space, object).await {
            Ok(made) => {
                if let Some(tell) = tell {
                    self.event(told(&tell, "SuccessfulCreate", made.name()), now).await?;
                }
                Ok(Done::Nothing)
            }
            Err(status) if matches!(status.reason.as_ref(), "AlreadyExists") => Ok(Done::Nothing),
            // The namespace and everything in it is being deleted.
            Err(status) if status.message.contains("because it is being terminated") => Ok(Done::Nothing),
            Err(status) => {
                tracing::debug!(kind = kind.name(), object = asked, error = %status, "cannot create");
                let message = status.message.clone();
                if let Some(tell) = tell {
                    let event = Event {
                        about: tell.about,
                        source: tell.source,
                        warning: true,
                        reason: "FailedCreate".to_owned(),
                        message: format!("Error creating: {message}"),
                    };
                    self.event(event, now).await?;
                }
                match owner {
                    Some(owner) => Ok(Done::Failed { owner, message }),
                    None => Err(status),
                }
            }
        }
    }

    /// Changes the status of an object; the closure returns `None` to leave it unchanged.
    pub(crate) async fn write_status(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        change: impl Fn(&Value) -> Option<Value> + Send + Sync,
    ) -> Result<(), Status> {
        self.manager.update(&self.kinds[&kind], namespace, name, "status", change).await.map(|_| ())
    }

    /// Changes a pod like a binding does.
    pub(crate) async fn write_binding(
        &self,
        namespace: &str,
        name: &str,
        change: impl Fn(&Value) -> Option<Value> + Send + Sync,
    ) -> Result<(), Status> {
        self.scheduler.update(&self.kinds[&Kind::Pod], namespace, name, "binding", change).await.map(|_| ())
    }

    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        self.manager.delete(&self.kinds[&Kind::Pod], namespace, name, options).await.map(|_| ())
    }

    /// Writes an event, as client-go does for the scheduler (new style) and for everyone else (old style).
    async fn event(&self, event: Event, now: Timestamp) -> Result<(), Status> {
        let about = json!({"metadata": {"name": event.about["name"]}}).name().to_owned();
        let space = match text(&event.about, "/namespace") {
            "" => "default",
            space => space,
        };
        let suffix = format!("{:x}", now.as_nanosecond() as u64 ^ u64::from(rand::random::<u16>()));
        let kind = if event.warning { "Warning" } else { "Normal" };
        let mut object = json!({
            "metadata": {"name": format!("{about}.{suffix}"), "namespace": space},
            "involvedObject": event.about,
            "reason": event.reason,
            "message": event.message,
            "type": kind,
            "reportingComponent": event.source,
        });
        let fields = object.as_object_mut().expect("an object by construction");
        if event.source == "default-scheduler" {
            let action = if event.warning { "Scheduling" } else { "Binding" };
            fields.insert("eventTime".to_owned(), json!(micro_stamp(now)));
            fields.insert("action".to_owned(), json!(action));
            fields.insert("reportingInstance".to_owned(), json!("default-scheduler-sim"));
            fields.insert("source".to_owned(), json!({}));
            fields.insert("firstTimestamp".to_owned(), Value::Null);
            fields.insert("lastTimestamp".to_owned(), Value::Null);
        } else {
            fields.insert("eventTime".to_owned(), Value::Null);
            fields.insert("count".to_owned(), json!(1));
            fields.insert("firstTimestamp".to_owned(), json!(stamp(now)));
            fields.insert("lastTimestamp".to_owned(), json!(stamp(now)));
            fields.insert("source".to_owned(), json!({"component": event.source}));
            fields.insert("reportingInstance".to_owned(), json!(""));
        }
        let actor = if event.source == "default-scheduler" { &self.scheduler } else { &self.manager };
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Event");
        match actor.create(&self.kinds[&Kind::Event], space, object).await {
            Err(status) if !status.message.contains("because it is being terminated") => {
                tracing::debug!(error = %status, "cannot write an event");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn told(tell: &Tell, reason: &str, name: &str) -> Event {
    Event {
        about: tell.about.clone(),
        source: tell.source,
        warning: false,
        reason: reason.to_owned(),
        message: tell.success.replace("{}", name),
    }
}

/// Returns a pod on a node.
pub(crate) fn bound(pod: &Value, node: &str, labels: &Value, now: Timestamp) -> Value {
    let mut pod = pod.clone();
    map_at(&mut pod, "spec").insert("nodeName".to_owned(), json!(node));
    if let Some(labels) = labels.as_object() {
        let own = map_at(&mut pod["metadata"], "labels");
        for (key, value) in labels {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let status = map_at(&mut pod, "status");
    let mut conditions = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "PodScheduled");
    conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": stamp(now)}));
    status.insert("conditions".to_owned(), conditions.into());
    pod
}

impl Objects for Executor {
    fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let entry = self.server.store.get(&self.kinds[&kind].collection, &key)?;
        Some(self.parse(kind, &entry))
    }

    fn list(&self, kind: Kind, namespace: &str) -> Vec<Value> {
        let mut found = Vec::new();
        self.each(kind, namespace, |entry| found.push(self.parse(kind, entry)));
        found
    }

    fn owned(&self, kind: Kind, namespace: &str, owner: &str) -> Vec<Value> {
        let mut found = Vec::new();
        self.each(kind, namespace, |entry| {
            if entry.head.owners.iter().any(|each| &*each.uid == owner) {
                found.push(self.parse(kind, entry));
            }
        });
        found
    }

    fn selected(&self, kind: Kind, namespace: &str, selector: &LabelSelector) -> Vec<Value> {
        let mut found = Vec::new();
        self.each(kind, namespace, |entry| {
            if selector.matches(&*entry.head.labels) {
                found.push(self.parse(kind, entry));
            }
        });
        found
    }

    fn family(
        &self,
        kind: Kind,
        namespace: &str,
        owner: &str,
        selector: Option<&LabelSelector>,
    ) -> Vec<Value> {
        let mut found = Vec::new();
        self.each(kind, namespace, |entry| {
            let owners = &entry.head.owners;
            if owners.iter().any(|each| &*each.uid == owner) {
                found.push(self.parse(kind, entry));
            } else if selector.is_some_and(|selector| selector.matches(&*entry.head.labels)) {
                let object = self.parse(kind, entry);
                if owners.is_empty() || object.controller().is_none() {
                    found.push(object);
                }
            }
        });
        found
    }

    fn count(&self, group: &str, plural: &str, namespace: &str) -> usize {
        let registry = self.server.registry.load();
        let Some(version) = registry.group(group).and_then(|group| group.versions.first()) else { return 0 };
        let Some(kind) = registry.find(group, version, plural) else { return 0 };
        let prefix = format!("{namespace}/");
        let snapshot = self.server.store.snapshot(&kind.collection);
        let from = std::ops::Bound::Included(prefix.as_str());
        let range = snapshot.range(from, std::ops::Bound::Unbounded);
        range.take_while(|entry| entry.name.starts_with(&prefix)).count()
    }
}
