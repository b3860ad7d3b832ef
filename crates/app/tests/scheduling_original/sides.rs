//! The two sides of the comparison: an API server each, with the same objects in it, and the scheduler that runs on it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testkit::{DEADLINE, condition, until};

use crate::bindings::NAMESPACE;

const AT_ONCE: usize = 16;

pub(crate) struct Side {
    pub(crate) name: &'static str,
    client: kube::Client,
    kubeconfig: PathBuf,
    program: PathBuf,
    arguments: Vec<&'static str>,
    log: PathBuf,
}

/// A scheduler at work; killed when the test ends in the middle.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(value: &Value) -> DynamicObject {
    serde_json::from_value(value.clone()).expect("an object")
}

fn tree(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}

impl Side {
    pub(crate) async fn new(
        name: &'static str,
        kubeconfig: &Path,
        program: &Path,
        arguments: &[&'static str],
        log: &Path,
    ) -> Self {
        let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default())
            .await
            .expect("a usable kubeconfig");
        Self {
            name,
            client: kube::Client::try_from(config).expect("a client"),
            kubeconfig: kubeconfig.to_owned(),
            program: program.to_owned(),
            arguments: arguments.to_vec(),
            log: log.join(format!("{name}.log")),
        }
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let kind = resource("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
        Api::all_with(self.client.clone(), &kind)
    }

    /// Returns the collection that a binding of this kind belongs to.
    fn bindings(&self, kind: &str) -> Api<DynamicObject> {
        if kind == "ResourceBinding" {
            let kind = resource("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
            Api::namespaced_with(self.client.clone(), NAMESPACE, &kind)
        } else {
            let kind =
                resource("work.karmada.io", "v1alpha2", "ClusterResourceBinding", "clusterresourcebindings");
            Api::all_with(self.client.clone(), &kind)
        }
    }

    /// Installs definitions, waits until they are served, and makes the namespace.
    pub(crate) async fn prepare(&self, definitions: &[Value]) {
        let kind =
            resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        for definition in definitions {
            api.create(&PostParams::default(), &object(definition)).await.expect("a definition");
        }
        for definition in definitions {
            let name = definition["metadata"]["name"].as_str().expect("a name");
            until(&api, name, "the definition is served", |found| {
                condition(found, "Established") == Some("True")
            })
            .await;
        }
        let namespaces: Api<DynamicObject> =
            Api::all_with(self.client.clone(), &resource("", "v1", "Namespace", "namespaces"));
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        namespaces.create(&PostParams::default(), &object(&namespace)).await.expect("a namespace");
    }

    /// Makes the clusters what they shall be; deletion begins where `deleting` says so.
    pub(crate) async fn put_clusters(&self, wanted: &[Value]) {
        let api = self.clusters();
        stream::iter(wanted)
            .for_each_concurrent(AT_ONCE, async |cluster| {
                put(&api, cluster).await;
                if cluster["deleting"] == true {
                    let name = cluster["metadata"]["name"].as_str().expect("a name");
                    api.delete(name, &DeleteParams::default()).await.expect("deletion begins");
                }
            })
            .await;
    }

    pub(crate) async fn put_bindings(&self, wanted: &[Value]) {
        stream::iter(wanted)
            .for_each_concurrent(AT_ONCE, async |binding| {
                let api = self.bindings(binding["kind"].as_str().expect("a kind"));
                put(&api, binding).await;
            })
            .await;
    }

    /// Removes all bindings and clusters.
    pub(crate) async fn clear(&self) {
        let (delete, list) = (DeleteParams::default(), ListParams::default());
        for kind in ["ResourceBinding", "ClusterResourceBinding"] {
            self.bindings(kind).delete_collection(&delete, &list).await.expect("bindings are deleted");
        }
        let api = self.clusters();
        api.delete_collection(&delete, &list).await.expect("clusters are deleted");
        for cluster in api.list(&list).await.expect("the clusters") {
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let name = cluster.metadata.name.as_deref().expect("a name");
            api.patch(name, &PatchParams::default(), &free).await.expect("a cluster may go");
        }
        for namespace in ["default", NAMESPACE] {
            let kind = resource("", "v1", "Event", "events");
            let events: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
            events.delete_collection(&delete, &list).await.expect("events are deleted");
        }
    }

    /// Runs the scheduler until nothing is left to do, and returns the bindings by name as it leaves them.
    pub(crate) async fn schedule(&self, flags: &[&str], count: usize) -> BTreeMap<String, Value> {
        let log = std::fs::File::create(&self.log).expect("a log");
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .args(flags)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the scheduler starts");
        let mut running = Running(child);
        for kind in ["ResourceBinding", "ClusterResourceBinding"] {
            self.settled(kind).await;
        }
        // A result that clears the previous one is looked at once more. Whoever is queued behind all that shows when
        // it is over; two in a row, since what was in work when the first came goes behind it.
        for turn in 0..2 {
            for kind in ["ResourceBinding", "ClusterResourceBinding"] {
                self.see_through(kind, turn).await;
            }
        }
        let mut all = BTreeMap::new();
        for kind in ["ResourceBinding", "ClusterResourceBinding"] {
            for binding in self.bindings(kind).list(&ListParams::default()).await.expect("the bindings") {
                let mut found = tree(&binding);
                found["kind"] = kind.into();
                all.insert(binding.metadata.name.clone().expect("a name"), found);
            }
        }
        assert_eq!(all.len(), count, "{}: bindings have vanished", self.name);
        self.told(all.values().flat_map(expected_events).collect()).await;
        running.stop().await;
        all
    }

    fn events(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource("", "v1", "Event", "events"))
    }

    /// Waits until these events have been written. What they say follows from what the bindings say, which is
    /// compared: so the events of both sides are the same.
    async fn told(&self, mut open: BTreeSet<Told>) {
        let count = open.len();
        let mut events = std::pin::pin!(kube::runtime::watcher(self.events(), Default::default()));
        let all_told = async {
            while !open.is_empty() {
                let event = events.try_next().await.expect("the watch holds").expect("a watch has no end");
                use kube::runtime::watcher::Event;
                if let Event::Apply(event) | Event::InitApply(event) = event {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let (data, about) = (&event.data, &event.data["involvedObject"]);
                    open.remove(&Told {
                        kind: text(&about["kind"]),
                        name: text(&about["name"]),
                        reason: text(&data["reason"]),
                        message: text(&data["message"]),
                    });
                }
            }
        };
        if tokio::time::timeout(DEADLINE, all_told).await.is_err() {
            panic!("{}: {} of {count} events are missing: {open:#?}", self.name, open.len());
        }
    }

    /// Waits until every binding of a kind has been looked at.
    async fn settled(&self, kind: &str) {
        let api = self.bindings(kind);
        let mut open: BTreeMap<String, bool> = BTreeMap::new();
        let mut listed = false;
        let events = kube::runtime::watcher(api, Default::default());
        let all_settled = async {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.try_next().await.expect("the watch holds") {
                use kube::runtime::watcher::Event;
                match event {
                    Event::Apply(binding) | Event::InitApply(binding) => {
                        let name = binding.metadata.name.clone().unwrap_or_default();
                        open.insert(name, !is_settled(&tree(&binding)));
                    }
                    Event::InitDone => listed = true,
                    Event::Init | Event::Delete(_) => {}
                }
                if listed && !open.values().any(|open| *open) {
                    return;
                }
            }
        };
        if tokio::time::timeout(DEADLINE, all_settled).await.is_err() {
            let left: Vec<&String> = open.iter().filter(|(_, open)| **open).map(|(name, _)| name).collect();
            panic!("{}: {kind} {left:?} not settled within {DEADLINE:?}; {}", self.name, self.log_tail());
        }
    }

    /// Puts a binding that fits nowhere behind all others, and waits until its turn has come.
    async fn see_through(&self, kind: &str, turn: usize) {
        let api = self.bindings(kind);
        let name = format!("last-{turn}");
        let mut last = json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": kind,
            "metadata": {"name": name, "labels": {"propagationpolicy.karmada.io/permanent-id": "compare"}},
            "spec": {
                "resource": {"apiVersion": "v1", "kind": "ConfigMap", "name": "last", "namespace": NAMESPACE},
                "placement": {"clusterAffinity": {"clusterNames": ["nowhere"]}},
            },
        });
        if kind == "ResourceBinding" {
            last["metadata"]["namespace"] = NAMESPACE.into();
        }
        api.create(&PostParams::default(), &object(&last)).await.expect("the last binding");
        until(&api, &name, "the binding is settled", |found| found.is_some_and(|one| is_settled(&tree(one))))
            .await;
        api.delete(&name, &DeleteParams::default()).await.expect("the last binding goes");
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Running {
    async fn stop(&mut self) {
        let pid = self.0.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(asked.success(), "the scheduler has ended before it was asked to");
        // It finishes what it is writing.
        while self.0.try_wait().expect("a child of ours").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What an event says about whom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    kind: String,
    name: String,
    reason: String,
    message: String,
}

/// Returns the events that tell what became of a binding: one about itself, one about its resource.
///
/// Left out are bindings with affinity groups: v1.17.1 forgets the result there, and tells of some failures group by
/// group only.
fn expected_events(binding: &Value) -> Vec<Told> {
    let (spec, conditions) = (&binding["spec"], binding["status"]["conditions"].as_array());
    let scheduled = conditions.into_iter().flatten().find(|one| one["type"] == "Scheduled");
    let Some(scheduled) = scheduled.filter(|_| spec["placement"]["clusterAffinities"].is_null()) else {
        return Vec::new();
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (reason, message) = if scheduled["status"] == "True" {
        let target = |target: &Value| {
            format!("{}:{}", text(&target["name"]), target["replicas"].as_i64().unwrap_or(0))
        };
        let targets: Vec<String> = spec["clusters"].as_array().into_iter().flatten().map(target).collect();
        let colon = if binding["kind"] == "ResourceBinding" { ":" } else { "" };
        let message = format!("{} Result{colon} {{{}}}", text(&scheduled["message"]), targets.join(", "));
        ("ScheduleBindingSucceed", message)
    } else {
        ("ScheduleBindingFailed", text(&scheduled["message"]))
    };
    let about = |kind: &Value, name: &Value| Told {
        kind: text(kind),
        name: text(name),
        reason: reason.to_owned(),
        message: message.clone(),
    };
    let resource = &spec["resource"];
    vec![about(&binding["kind"], &binding["metadata"]["name"]), about(&resource["kind"], &resource["name"])]
}

/// A binding is through when its generation was noted, or a failure was.
fn is_settled(binding: &Value) -> bool {
    let status = &binding["status"];
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let failed = conditions.iter().any(|one| one["type"] == "Scheduled" && one["status"] == "False");
    failed || status["schedulerObservedGeneration"] == binding["metadata"]["generation"]
}

/// Makes an object and its status exactly this, whether it exists or not.
async fn put(api: &Api<DynamicObject>, wanted: &Value) {
    let mut wanted = wanted.clone();
    let name = wanted["metadata"]["name"].as_str().expect("a name").to_owned();
    let status = wanted.as_object_mut().expect("an object").remove("status");
    let version = |object: &DynamicObject| object.metadata.resource_version.clone().unwrap_or_default();
    let written = match api.get_opt(&name).await.expect("the API answers") {
        Some(found) => {
            wanted["metadata"]["resourceVersion"] = version(&found).into();
            api.replace(&name, &PostParams::default(), &object(&wanted)).await
        }
        None => api.create(&PostParams::default(), &object(&wanted)).await,
    };
    let written = written.unwrap_or_else(|error| panic!("{name}: {error}: {wanted}"));
    let mut with_status = tree(&written);
    with_status["status"] = status.unwrap_or_else(|| json!({}));
    let put = api.replace_status(&name, &PostParams::default(), &object(&with_status)).await;
    put.unwrap_or_else(|error| panic!("the status of {name}: {error}: {with_status}"));
}
