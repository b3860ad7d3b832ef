//! The same manifests on a real and on a simulated member: the same final objects, the same way there.
//!
//! What differs on purpose is in `testdata/known-differences.txt`, each with its reason; any other difference fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

use crate::normal::{differences, normalise};
use crate::site::{KINDS, Site};

/// Longer than any timer in the manifests.
const QUIET: Duration = Duration::from_secs(8);
/// How often is looked again where something differs.
const LOOKS: usize = 5;

/// Returns the manifests by name.
fn manifests() -> BTreeMap<String, Vec<Value>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/manifests");
    let mut all = BTreeMap::new();
    for file in std::fs::read_dir(&dir).expect("manifests") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let documents = apimachinery::yaml::read_all(&text).expect("YAML");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        all.insert(name, documents.into_iter().map(|document| document.value).collect());
    }
    all
}

/// A difference that is there on purpose.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    kind: String,
    /// `*` stands for any index, `**` at the end for anything below.
    pointer: String,
    /// Whether it is a matter of chance that it shows.
    chance: bool,
}

fn known() -> Vec<Known> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/known-differences.txt");
    parse(&std::fs::read_to_string(file).expect("the list of known differences"))
}

fn parse(text: &str) -> Vec<Known> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let (kind, pointer) = (words.next(), words.next());
            let reason = words.next();
            assert!(reason.is_some(), "no reason: {line}");
            Known {
                kind: kind.unwrap_or("").to_owned(),
                pointer: pointer.unwrap_or("").to_owned(),
                chance: reason == Some("chance:"),
            }
        })
        .collect()
}

/// Returns the entry that covers a difference.
fn entry_for<'a>(known: &'a [Known], kind: &str, pointer: &str) -> Option<&'a Known> {
    known.iter().find(|entry| {
        (entry.kind == kind || entry.kind == "*")
            && match entry.pointer.strip_suffix("**") {
                Some(start) => pointer.starts_with(start),
                None => entry.pointer == pointer,
            }
    })
}

/// Returns the entries that covered nothing and are not a matter of chance.
fn stale<'a>(known: &'a [Known], shown: &BTreeSet<&'a Known>) -> Vec<&'a Known> {
    known.iter().filter(|entry| !entry.chance && !shown.contains(entry)).collect()
}

#[test]
fn a_known_difference_that_is_gone_is_noticed() {
    let known = parse("Pod /*/a a reason\nPod /*/b** another\nPod /*/c chance: now and then\n");
    let shown: BTreeSet<&Known> = entry_for(&known, "Pod", "/*/b/deep").into_iter().collect();
    let gone: Vec<&str> = stale(&known, &shown).iter().map(|entry| entry.pointer.as_str()).collect();
    assert_eq!(gone, ["/*/a"]);
    assert!(entry_for(&known, "Service", "/*/a").is_none());
}

/// A simulated member with the nodes that the real ones have.
fn options() -> sim::Options {
    let mut options = sim::Options::new(1, 0);
    options.members[0].nodes = ["a", "b", "c"]
        .iter()
        .enumerate()
        .map(|(index, zone)| {
            sim::NodeOptions::new(&format!("member1-node-{}", index + 1))
                .label("topology.kubernetes.io/region", "region-1")
                .label("topology.kubernetes.io/zone", &format!("region-1-{zone}"))
        })
        .collect();
    options
}

/// What came of the manifests, by their names.
type Outcome = BTreeMap<String, serde_json::Map<String, Value>>;

fn space(run: &str, name: &str) -> String {
    format!("{run}-{name}")
}

/// Creates what the manifests say.
async fn begin(site: &Site, run: &str) {
    let manifests = manifests();
    for name in manifests.keys() {
        let name = space(run, name);
        site.create("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    for (name, objects) in &manifests {
        let name = space(run, name);
        site.until("ServiceAccount", &name, "default", "exist", |_| true).await;
        for object in objects {
            site.create(&name, object.clone()).await;
        }
    }
}

async fn outcome(site: &Site, run: &str) -> Outcome {
    site.settle(&format!("{run}-"), QUIET).await;
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (group, version, kind, _) in KINDS {
        for mut object in site.list(kind, "").await {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
            if let Some(name) = namespace.strip_prefix(&format!("{run}-")) {
                object["kind"] = json!(kind);
                object["apiVersion"] =
                    json!(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") });
                found.entry(name.to_owned()).or_default().push(object);
            }
        }
    }
    found.into_iter().map(|(name, objects)| (name.clone(), normalise(&space(run, &name), objects))).collect()
}

/// Returns the differences that are not known, and the known ones that are not there.
fn compare<'a>(known: &'a [Known], real: &Outcome, simulated: &Outcome) -> (Vec<String>, Vec<&'a Known>) {
    let (mut complaints, mut shown) = (Vec::new(), BTreeSet::new());
    for name in manifests().keys() {
        let (left, right) = (real.get(name).cloned(), simulated.get(name).cloned());
        let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
        let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
        for key in keys {
            let kind = key.split('/').next().unwrap_or("");
            let absent = Value::Null;
            let (one, other) = (left.get(key).unwrap_or(&absent), right.get(key).unwrap_or(&absent));
            for (pointer, left, right) in differences(one, other) {
                match entry_for(known, kind, &pointer) {
                    Some(entry) => drop(shown.insert(entry)),
                    None => {
                        complaints.push(format!("{name} {key} {pointer}\n    real {left}\n    sim  {right}"));
                    }
                }
            }
        }
    }
    (complaints, stale(known, &shown))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_manifests_end_in_the_same_objects() {
    let Some(members) = clusters::shared(1).await else { return };
    let real = Site::real(&members[0]).await;
    let fleet = sim::start(options()).await.expect("a simulated member");
    let simulated = Site::simulated(&fleet.members()[0]).await;
    let run = format!("like{}", std::process::id());
    assert!(manifests().len() >= 60);
    let known = known();
    tokio::join!(begin(&real, &run), begin(&simulated, &run));
    let (mut complaints, mut gone) = (Vec::new(), Vec::new());
    // A busy machine may rest for a while in the middle of it: what differs then does not at a later look.
    for _ in 0..LOOKS {
        let (left, right) = tokio::join!(outcome(&real, &run), outcome(&simulated, &run));
        (complaints, gone) = compare(&known, &left, &right);
        if complaints.is_empty() && gone.is_empty() {
            break;
        }
    }
    for name in manifests().keys() {
        real.delete_namespace(&space(&run, name)).await;
    }
    fleet.stop().await;
    assert!(gone.is_empty(), "listed as known, but there is no such difference: {gone:#?}");
    assert!(complaints.is_empty(), "{} differences:\n{}", complaints.len(), complaints.join("\n"));
}

/// Changes a Deployment and returns the numbers of ready pods it goes through, without repetitions.
///
/// Counted from the pods themselves: the watch shows every one of their changes, in order. The Deployment's status says
/// the same, but a controller that is busy leaves some numbers out. A watch that was interrupted leaves some out as well, so all of it
/// begins again then, in another namespace.
async fn ready_counts(site: &Site, namespace: &str, start: Value, change: Value, wanted: i64) -> Vec<usize> {
    for look in 0..LOOKS {
        let namespace = format!("{namespace}-{look}");
        let counted = ready_counts_in(site, &namespace, start.clone(), change.clone(), wanted).await;
        site.delete_namespace(&namespace).await;
        match counted {
            Ok(counts) => return counts,
            Err(error) => eprintln!("the watch in {namespace} was interrupted: {error}; once more"),
        }
    }
    panic!("each of {LOOKS} watches was interrupted");
}

async fn ready_counts_in(
    site: &Site,
    namespace: &str,
    start: Value,
    change: Value,
    wanted: i64,
) -> Result<Vec<usize>, watcher::Error> {
    site.namespace(namespace).await;
    site.create(namespace, start).await;
    let is_done = |object: &Value, generation: i64, replicas: i64| {
        let count = |field: &str| object["status"][field].as_i64().unwrap_or(0);
        count("observedGeneration") >= generation
            && count("updatedReplicas") == replicas
            && count("replicas") == replicas
            && count("availableReplicas") == replicas
    };
    site.until("Deployment", namespace, "web", "become available", |object| {
        is_done(object, 1, object["spec"]["replicas"].as_i64().unwrap_or(0))
    })
    .await;
    let mut changes =
        watcher(site.api("Pod", namespace), watcher::Config::default()).default_backoff().boxed();
    let (mut ready, mut counts) = (BTreeSet::new(), Vec::new());
    // First what is there, then what changes.
    while let Some(event) = changes.next().await {
        match event? {
            watcher::Event::InitApply(pod) => note(&mut ready, &pod),
            watcher::Event::InitDone => break,
            _ => {}
        }
    }
    counts.push(ready.len());
    site.patch("Deployment", namespace, "web", change).await;
    let done = site.until("Deployment", namespace, "web", "be as wanted", |web| is_done(web, 2, wanted));
    let following = async {
        while let Some(event) = changes.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => return error,
            };
            match event {
                watcher::Event::Apply(pod) => note(&mut ready, &pod),
                watcher::Event::Delete(pod) => {
                    ready.remove(&pod.metadata.name);
                }
                _ => {}
            }
            if counts.last() != Some(&ready.len()) {
                counts.push(ready.len());
            }
        }
        panic!("the watch ended")
    };
    // The Deployment counts what has happened to its pods, so everything is on its way when it is done.
    tokio::select! {
        error = following => return Err(error),
        _ = async { done.await; site.settle(namespace, testkit::slowed(Duration::from_secs(2))).await } => {}
    }
    Ok(counts)
}

/// Notes whether a pod is ready and stays.
fn note(ready: &mut BTreeSet<Option<String>>, pod: &DynamicObject) {
    let conditions = pod.data["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let is_ready = conditions.iter().any(|each| each["type"] == "Ready" && each["status"] == "True");
    if is_ready && pod.metadata.deletion_timestamp.is_none() {
        ready.insert(pod.metadata.name.clone());
    } else {
        ready.remove(&pod.metadata.name);
    }
}

fn deployment(replicas: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_and_scaling_go_through_the_same_ready_counts() {
    let Some(members) = clusters::shared(1).await else { return };
    let real = Site::real(&members[0]).await;
    let fleet = sim::start(options()).await.expect("a simulated member");
    let simulated = Site::simulated(&fleet.members()[0]).await;
    let update = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}}});
    let cases = [
        ("update", deployment(3), update, 3),
        ("up", deployment(1), json!({"spec": {"replicas": 2}}), 2),
        ("down", deployment(2), json!({"spec": {"replicas": 1}}), 1),
    ];
    for (name, start, change, wanted) in cases {
        let namespace = format!("counts{}-{name}", std::process::id());
        let (left, right) = tokio::join!(
            ready_counts(&real, &namespace, start.clone(), change.clone(), wanted),
            ready_counts(&simulated, &namespace, start, change, wanted),
        );
        assert_eq!(left, right, "{name}: real, then simulated");
    }
    fleet.stop().await;
}
