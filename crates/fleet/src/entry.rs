//! How a member's object is kept in memory, and how it is written for clients.
//!
//! The body is compact JSON in three parts without anything between them: the content of `annotations`, the content of `labels`,
//! and the rest from the remaining metadata on. An answer is assembled from slices: the kind, an annotation that names the
//! cluster, a resource version, the parts. A read parses nothing, and labels are searched in the text.
//!
//! The fields by which all kinds can be searched are read once, when the object arrives ([`Facts`]).

use std::sync::Arc;

use api::labels::annotations::CACHED_FROM_CLUSTER;
use apimachinery::selector::label::Labels;
use serde_json::{Map, Value};

use crate::plan::Kind;

/// Annotation: since when the member has not answered, on everything that is shown from it.
pub const STALE_SINCE: &str = "search.karmada.io/stale-since";

/// The approximate size of an entry besides its texts: the structure itself, its place in the set, its postings.
pub(crate) const OVERHEAD: usize = 320;

/// An object of a member.
#[derive(Debug)]
pub struct Entry {
    /// `namespace/name`, or the name.
    key: Box<str>,
    /// The member's own resource version.
    pub revision: u64,
    pub facts: Facts,
    annotations: u32,
    labels: u32,
    body: Box<str>,
}

/// The searchable facts of an object. All entries of a kind with the same text share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub uid: Box<str>,
    /// In seconds since 1970; 0 if the object has no such time.
    pub created: i64,
    /// In one word, as `kubectl get` shows it; empty if the kind has none.
    pub status: Arc<str>,
    pub node: Arc<str>,
    pub images: Box<[Arc<str>]>,
}

/// An object that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("it is not an object with metadata")]
    Shape,
    #[error("it has no name")]
    Name,
    #[error("its resource version {0:?} is not a number")]
    Version(String),
    #[error("it has more than 4 GiB")]
    Size,
}

impl Entry {
    /// Reads an object in the form in which a member sends it.
    pub fn new(kind: &Kind, mut object: Value) -> Result<Self, Unusable> {
        let facts = Facts::of(kind, &object);
        let fields = object.as_object_mut().ok_or(Unusable::Shape)?;
        fields.remove("apiVersion");
        fields.remove("kind");
        let Some(Value::Object(mut metadata)) = fields.remove("metadata") else {
            return Err(Unusable::Shape);
        };
        let text = |metadata: &Map<String, Value>, field: &str| {
            metadata.get(field).and_then(Value::as_str).unwrap_or("").to_owned()
        };
        let (namespace, name) = (text(&metadata, "namespace"), text(&metadata, "name"));
        if name.is_empty() || name.contains('/') || namespace.contains('/') {
            return Err(Unusable::Name);
        }
        let version = text(&metadata, "resourceVersion");
        let revision = version.parse().map_err(|_| Unusable::Version(version))?;
        metadata.remove("resourceVersion");
        let mut body = String::with_capacity(2048);
        if let Some(Value::Object(mut annotations)) = metadata.remove("annotations") {
            annotations.remove(CACHED_FROM_CLUSTER);
            annotations.remove(STALE_SINCE);
            write_members(&mut body, &annotations);
        }
        let annotations = body.len();
        if let Some(Value::Object(labels)) = metadata.remove("labels") {
            write_members(&mut body, &labels);
        }
        let labels = body.len();
        write_members(&mut body, &metadata);
        body.push('}');
        if !fields.is_empty() {
            body.push(',');
            write_members(&mut body, fields);
        }
        body.push('}');
        let narrow = |place: usize| u32::try_from(place).map_err(|_| Unusable::Size);
        narrow(body.len())?;
        Ok(Self {
            key: key(&namespace, &name),
            revision,
            facts,
            annotations: narrow(annotations)?,
            labels: narrow(labels)?,
            // A copy of the right size: an allocator may leave a block in place when it only shrinks.
            body: Box::from(body.as_str()),
        })
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns namespace and name; cluster-scoped objects have no namespace.
    pub fn names(&self) -> (&str, &str) {
        self.key.split_once('/').unwrap_or(("", &self.key))
    }

    pub fn namespace(&self) -> &str {
        self.names().0
    }

    /// Returns whether it is the same state of the same object.
    pub(crate) fn is_as(&self, revision: u64, uid: &str) -> bool {
        self.revision == revision && *self.facts.uid == *uid
    }

    /// Returns how much it counts towards the caches' limit.
    pub fn cost(&self) -> usize {
        self.size().saturating_add(OVERHEAD)
    }

    /// Returns the bytes of the object itself.
    pub fn size(&self) -> usize {
        self.body.len().saturating_add(self.key.len())
    }

    fn parts(&self) -> (&str, &str, &str) {
        let (annotations, rest) = self.body.split_at(self.annotations as usize);
        let (labels, rest) = rest.split_at(self.labels.saturating_sub(self.annotations) as usize);
        (annotations, labels, rest)
    }

    /// Writes the object as clients see it.
    pub fn write(&self, out: &mut Vec<u8>, kind: &Kind, shown: &Shown<'_>) {
        let (annotations, labels, rest) = self.parts();
        let mut put = |text: &str| out.extend_from_slice(text.as_bytes());
        put("{\"apiVersion\":\"");
        put(&kind.api_version);
        put("\",\"kind\":\"");
        put(&kind.kind);
        put("\",\"metadata\":{\"annotations\":{\"");
        put(CACHED_FROM_CLUSTER);
        put("\":\"");
        put(shown.cluster);
        put("\"");
        if let Some(since) = shown.stale {
            put(",\"");
            put(STALE_SINCE);
            put("\":\"");
            put(since);
            put("\"");
        }
        if !annotations.is_empty() {
            put(",");
            put(annotations);
        }
        put("},");
        if !labels.is_empty() {
            put("\"labels\":{");
            put(labels);
            put("},");
        }
        put("\"resourceVersion\":\"");
        put(shown.version);
        put("\",");
        put(rest);
    }

    /// Returns the object as clients see it, as JSON values.
    pub fn to_value(&self, kind: &Kind, shown: &Shown<'_>) -> Value {
        let mut text = Vec::with_capacity(self.body.len().saturating_add(256));
        self.write(&mut text, kind, shown);
        serde_json::from_slice(&text).expect("what was taken apart can be put together")
    }
}

/// The parts that are added when an object is shown. None of them needs escaping.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    pub cluster: &'a str,
    pub version: &'a str,
    pub stale: Option<&'a str>,
}

/// Joins namespace and name.
pub fn key(namespace: &str, name: &str) -> Box<str> {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() }
}

fn write_members(out: &mut String, members: &Map<String, Value>) {
    for (index, (key, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&Value::String(key.clone()).to_string());
        out.push(':');
        out.push_str(&value.to_string());
    }
}

/// Labels are searched in the text: valid ones have no character that JSON escapes.
impl Labels for Entry {
    fn label(&self, wanted: &str) -> Option<&str> {
        let mut rest = self.parts().1;
        while let Some(after) = rest.strip_prefix('"') {
            let (key, after) = after.split_once("\":\"")?;
            let (value, after) = after.split_once('"')?;
            if key == wanted {
                return Some(value);
            }
            rest = after.strip_prefix(',').unwrap_or("");
        }
        None
    }
}

impl Facts {
    fn of(kind: &Kind, object: &Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or("");
        let created = text("/metadata/creationTimestamp").parse::<jiff::Timestamp>();
        Self {
            uid: text("/metadata/uid").into(),
            created: created.map_or(0, |time| time.as_second()),
            status: status(kind, object).into(),
            node: text("/spec/nodeName").into(),
            images: images(object),
        }
    }
}

/// Returns the state of an object in one word.
fn status(kind: &Kind, object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or("");
    let condition = |wanted: &str| {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let is_wanted = |condition: &&Value| condition.get("type").is_some_and(|found| found == wanted);
        conditions.into_iter().flatten().find(is_wanted)?.get("status")?.as_str()
    };
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => {
            let cells = native::tables::cells(&kind.gvk(), object, jiff::Timestamp::UNIX_EPOCH);
            cells.get(2).and_then(Value::as_str).unwrap_or("").to_owned()
        }
        ("", "Event") | ("events.k8s.io", "Event") => text("/reason").to_owned(),
        ("", "Node") => match condition("Ready") {
            Some("True") => "Ready".to_owned(),
            Some("False") => "NotReady".to_owned(),
            _ => "Unknown".to_owned(),
        },
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => {
            let number = |path: &str| object.pointer(path).and_then(Value::as_i64);
            let wanted = number("/status/desiredNumberScheduled").or(number("/spec/replicas")).unwrap_or(1);
            let ready = number("/status/readyReplicas").or(number("/status/numberReady")).unwrap_or(0);
            if ready >= wanted { "Ready" } else { "NotReady" }.to_owned()
        }
        ("batch", "Job") => match (condition("Complete"), condition("Failed")) {
            (Some("True"), _) => "Complete".to_owned(),
            (_, Some("True")) => "Failed".to_owned(),
            _ => "Running".to_owned(),
        },
        _ => match (text("/status/phase"), condition("Ready")) {
            ("", Some("True")) => "Ready".to_owned(),
            ("", Some(_)) => "NotReady".to_owned(),
            (phase, _) => phase.to_owned(),
        },
    }
}

/// Returns the images of a pod or of a workload's pods.
fn images(object: &Value) -> Box<[Arc<str>]> {
    let specs = ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec"];
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let mut images: Vec<Arc<str>> = specs
        .iter()
        .filter_map(|path| object.pointer(path))
        .flat_map(|spec| lists.iter().filter_map(|list| spec.get(*list)?.as_array()))
        .flatten()
        .filter_map(|container| container.get("image")?.as_str())
        .map(Arc::from)
        .collect();
    images.sort();
    images.dedup();
    images.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "105",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": "web", "tier": "front"},
                "annotations": {"note": "say \"hi\"", CACHED_FROM_CLUSTER: "elsewhere"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "nginx:v2"}, {"name": "b", "image": "envoy"}]},
            "status": {"phase": "Running"}})
    }

    #[test]
    fn an_object_is_shown_as_it_was_sent_with_its_cluster_and_version() {
        let kind = Kind::test("", "v1", "Pod", "pods");
        let entry = Entry::new(&kind, pod()).unwrap();
        assert_eq!((entry.key(), entry.names(), entry.revision), ("shop/web", ("shop", "web"), 105));
        let mut expected = pod();
        expected["metadata"]["annotations"][CACHED_FROM_CLUSTER] = json!("m1");
        expected["metadata"]["resourceVersion"] = json!("abc");
        let shown = Shown { cluster: "m1", version: "abc", stale: None };
        assert_eq!(entry.to_value(&kind, &shown), expected);
        expected["metadata"]["annotations"][STALE_SINCE] = json!("2026-01-01T00:00:00Z");
        let shown = Shown { stale: Some("2026-01-01T00:00:00Z"), ..shown };
        assert_eq!(entry.to_value(&kind, &shown), expected);
    }

    #[test]
    fn an_object_without_labels_annotations_or_content_is_shown() {
        let kind = Kind::test("", "v1", "Pod", "pods");
        let entry = Entry::new(&kind, json!({"metadata": {"name": "a", "resourceVersion": "1"}})).unwrap();
        let shown = Shown { cluster: "m1", version: "1", stale: None };
        let expected = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": "1",
            "annotations": {CACHED_FROM_CLUSTER: "m1"}}});
        assert_eq!(entry.to_value(&kind, &shown), expected);
        assert_eq!(entry.label("app"), None);
    }

    #[test]
    fn labels_are_found_in_the_text() {
        let entry = Entry::new(&Kind::test("", "v1", "Pod", "pods"), pod()).unwrap();
        assert_eq!(
            (entry.label("app"), entry.label("tier"), entry.label("note")),
            (Some("web"), Some("front"), None)
        );
        let odd = json!({"metadata": {"name": "a", "resourceVersion": "1", "labels": {"a\"": "b\\", "app": "web"}}});
        // An invalid label must not lead the search out of the labels.
        let _ = Entry::new(&Kind::test("", "v1", "Pod", "pods"), odd).unwrap().label("app");
    }

    #[test]
    fn facts_are_what_users_search_by() {
        let facts = Entry::new(&Kind::test("", "v1", "Pod", "pods"), pod()).unwrap().facts;
        assert_eq!(
            (&*facts.status, &*facts.node, &*facts.uid, facts.created),
            ("Running", "n1", "u1", 1_767_225_600)
        );
        assert_eq!(facts.images.iter().map(|image| &**image).collect::<Vec<_>>(), ["envoy", "nginx:v2"]);
        let deployment = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {"replicas": 2},
            "status": {"readyReplicas": 1}});
        let kind = Kind::test("apps", "v1", "Deployment", "deployments");
        assert_eq!(&*Entry::new(&kind, deployment).unwrap().facts.status, "NotReady");
    }

    #[test]
    fn an_object_that_a_member_should_not_send_is_refused() {
        let kind = Kind::test("", "v1", "Pod", "pods");
        let refused = |object: Value| Entry::new(&kind, object).unwrap_err();
        assert_eq!(refused(json!([])), Unusable::Shape);
        assert_eq!(refused(json!({"metadata": 3})), Unusable::Shape);
        assert_eq!(refused(json!({"metadata": {"resourceVersion": "1"}})), Unusable::Name);
        assert_eq!(refused(json!({"metadata": {"name": "a/b", "resourceVersion": "1"}})), Unusable::Name);
        assert_eq!(refused(json!({"metadata": {"name": "a"}})), Unusable::Version(String::new()));
    }
}
