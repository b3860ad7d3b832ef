//! What the copies of a large fleet cost: memory for each pod, lists, queries, and how soon a watcher hears of an update.
//!
//! `cargo xtask bench copies`; `--help` names the sizes; `cargo xtask bench search` measures a whole server. The members are
//! imitated where their answers come in: pages and events are made as text on the fly, so that nothing but the copies stays in
//! memory. Everything behind that is what the server runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet::cache::{Found, Take};
use fleet::entry::Shown;
use fleet::follow::{Backoff, Error, Event, Events, Follower, Page, Source};
use fleet::query::{Order, Page as Wanted, Query, run};
use fleet::{Cache, Fleet, Kind, Place, Start, Versions, Watch};
use futures::StreamExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Sizes {
    members: usize,
    pods: usize,
    watchers: usize,
    updates: usize,
}

/// A member that makes its answers up.
struct Imitated {
    cluster: usize,
    pods: usize,
    updates: Mutex<mpsc::Receiver<String>>,
}

/// Returns a pod of about 2.5 KB, as a cluster would send it.
fn pod(cluster: usize, number: usize, revision: u64, sent: u128) -> String {
    let phase = if number.is_multiple_of(50) { "Pending" } else { "Running" };
    let padding = "x".repeat(900);
    format!(
        r#"{{"metadata":{{"name":"checkout-6f7d9c5b8-{number:05}","namespace":"team-{}","uid":"{cluster:08x}-0000-4000-8000-{number:012x}",
        "resourceVersion":"{revision}","creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"app":"checkout","pod-template-hash":"6f7d9c5b8",
        "team":"team-{}"}},"annotations":{{"sent":"{sent}","checksum/config":"{padding}"}},"ownerReferences":[{{"apiVersion":"apps/v1",
        "kind":"ReplicaSet","name":"checkout-6f7d9c5b8","uid":"11111111-2222-3333-4444-555555555555","controller":true}}]}},
        "spec":{{"nodeName":"node-{}","restartPolicy":"Always","serviceAccountName":"default","schedulerName":"default-scheduler",
        "containers":[{{"name":"app","image":"registry.example/checkout:v{}","ports":[{{"containerPort":8080}}],"env":[{{"name":"A","value":"1"}}],
        "resources":{{"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"token","mountPath":"/var/run/secrets"}}]}},
        {{"name":"proxy","image":"registry.example/envoy:v1","resources":{{}}}}],"volumes":[{{"name":"token","projected":{{"sources":[]}}}}],
        "tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}]}},
        "status":{{"phase":"{phase}","podIP":"10.0.0.1","hostIP":"10.1.0.1","startTime":"2026-01-01T00:00:00Z","conditions":[
        {{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}},{{"type":"PodScheduled","status":"True",
        "lastTransitionTime":"2026-01-01T00:00:00Z"}}],"containerStatuses":[{{"name":"app","ready":true,"restartCount":0,"image":"checkout",
        "imageID":"sha256:0","state":{{"running":{{"startedAt":"2026-01-01T00:00:00Z"}}}}}}]}}}}"#,
        number % 20,
        number % 20,
        number % 100,
        number % 3,
    )
}

impl Source for Imitated {
    fn list(&self, limit: u32, next: &str) -> BoxFuture<'_, Result<Page, Error>> {
        let from: usize = next.parse().unwrap_or(0);
        let to = (from + limit as usize).min(self.pods);
        let item = |number| serde_json::from_str::<Value>(&pod(self.cluster, number, 1, 0)).expect("a pod");
        let items = (from..to).map(item).collect();
        let next = if to < self.pods { to.to_string() } else { String::new() };
        Box::pin(async move { Ok(Page { version: 1, next, items }) })
    }

    fn watch(&self, _: u64, _: u64) -> BoxFuture<'_, Result<Events, Error>> {
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel::<String>(1024);
            let mut updates = self.updates.lock().await;
            let mut taken = std::mem::replace(&mut *updates, mpsc::channel(1).1);
            drop(updates);
            tokio::spawn(async move {
                while let Some(text) = taken.recv().await {
                    if sender.send(text).await.is_err() {
                        return;
                    }
                }
            });
            let events = futures::stream::unfold(receiver, |mut receiver| async {
                let text = receiver.recv().await?;
                Some((Ok(Event::Put(serde_json::from_str(&text).expect("a pod"))), receiver))
            });
            Ok(events.boxed())
        })
    }
}

/// Returns the memory of this process that is in use.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn write(kind: &Kind, found: &[Found]) -> usize {
    let mut out = Vec::new();
    for found in found {
        let version = found.entry.revision.to_string();
        found.entry.write(
            &mut out,
            kind,
            &Shown { cluster: &found.place.cluster, version: &version, stale: None },
        );
    }
    out.len()
}

/// Returns how long a list takes, to the last byte of its text.
fn list(cache: &Cache, namespace: &str, limit: usize) -> Duration {
    let started = Instant::now();
    let mut count = 0;
    let listed = cache.list(namespace, None, |_, _| {
        count += 1;
        if limit > 0 && count > limit { Take::Enough } else { Take::Yes }
    });
    assert!(write(&cache.kind, &listed.found) > 0);
    started.elapsed()
}

fn argument(name: &str, default: usize) -> usize {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == name);
    place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
}

#[tokio::main]
async fn main() {
    if std::env::args().any(|argument| argument == "--help") {
        println!("--members N (20) --pods N, of each member (5000) --watchers N (100) --updates N (2000)");
        return;
    }
    let sizes = Sizes {
        members: argument("--members", 20),
        pods: argument("--pods", 5000),
        watchers: argument("--watchers", 100),
        updates: argument("--updates", 2000),
    };
    let fleet = Fleet::new(4 << 30);
    let kind = Kind::new(&apimachinery::gvk::Gvk::new("", "v1", "Pod"), "pods", true);
    let cache = fleet.add(&kind);
    let before = resident();
    let (stop, mut members) = (CancellationToken::new(), Vec::new());
    let started = Instant::now();
    for cluster in 0..sizes.members {
        let (sender, updates) = mpsc::channel(1024);
        let place = Place::cluster(&format!("member{cluster:02}"));
        cache.expect(&place);
        let source = Box::new(Imitated { cluster, pods: sizes.pods, updates: Mutex::new(updates) });
        let follower = Follower { cache: cache.clone(), place, source, backoff: Backoff::default() };
        let stop = stop.clone();
        tokio::spawn(async move { follower.run(&stop).await });
        members.push(sender);
    }
    while cache.places().iter().any(|(_, listed, _)| !listed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let filled = started.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pods = sizes.members * sizes.pods;
    let size: usize =
        cache.list("", None, |_, _| Take::Yes).found.iter().map(|found| found.entry.size()).sum();
    let taken = resident().saturating_sub(before);
    println!(
        "pods                                   {pods} in {} members, {} B each",
        sizes.members,
        size / pods
    );
    println!("filled after                           {filled:.1?}");
    println!("memory per pod beyond its size         {} B", taken.saturating_sub(size) / pods);
    println!(
        "list of all                            {:.1?}",
        median((0..5).map(|_| list(&cache, "", 0)).collect())
    );
    println!(
        "list of one namespace                  {:.1?}",
        median((0..11).map(|_| list(&cache, "team-7", 0)).collect())
    );
    println!(
        "first page of 500                      {:.2?}",
        median((0..51).map(|_| list(&cache, "", 500)).collect())
    );
    let asked = Query::parse("kind:pod status!=Running image:*:v2 cluster:member0* age>1h").expect("a query");
    let wanted = Wanted { order: Order::Name, limit: 500, after: String::new() };
    let query = || {
        let started = Instant::now();
        let found =
            run(&asked, &fleet.caches(), |_, _| true, jiff::Timestamp::now(), &wanted).expect("an answer");
        assert!(!found.rows.is_empty());
        started.elapsed()
    };
    println!("query for pods that do not run         {:.2?}", median((0..21).map(|_| query()).collect()));
    updates(&cache, &members, &sizes).await;
    let watching = resident().saturating_sub(before);
    println!("memory with {} watchers, per pod      {} B", sizes.watchers, watching / pods);
    stop.cancel();
}

/// Measures how long updates take from a member to all watchers.
async fn updates(cache: &Arc<Cache>, members: &[mpsc::Sender<String>], sizes: &Sizes) {
    let clock = Instant::now();
    let mut watchers = Vec::new();
    for _ in 0..sizes.watchers {
        let mut watch = Watch::begin(cache, Start::Now).await.expect("a watch");
        let count = sizes.updates;
        watchers.push(tokio::spawn(async move {
            let mut delays = Vec::with_capacity(count);
            while delays.len() < count {
                let told = watch.next(|event, version: &Versions| {
                    let entry = event.new.expect("an update");
                    let mut text = Vec::new();
                    let version = version.to_string();
                    let kind = Kind::new(&apimachinery::gvk::Gvk::new("", "v1", "Pod"), "pods", true);
                    entry.write(
                        &mut text,
                        &kind,
                        &Shown { cluster: &event.place.cluster, version: &version, stale: None },
                    );
                    let text = String::from_utf8(text).expect("text");
                    let sent = text.split("\"sent\":\"").nth(1).and_then(|rest| rest.split('"').next());
                    let sent: u128 = sent.and_then(|sent| sent.parse().ok()).expect("when it was sent");
                    delays.push(clock.elapsed().as_micros().saturating_sub(sent));
                });
                told.await.expect("nobody falls behind");
            }
            delays
        }));
    }
    for number in 0..sizes.updates {
        let cluster = number % members.len();
        let revision = 2 + number as u64;
        let text = pod(cluster, number % sizes.pods, revision, clock.elapsed().as_micros());
        members[cluster].send(text).await.expect("the member follows");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut delays = Vec::new();
    for watcher in watchers {
        delays.extend(watcher.await.expect("a watcher"));
    }
    delays.sort_unstable();
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!("update at {} watchers p50 / p99       {:.1} / {:.1} ms", sizes.watchers, at(0.5), at(0.99));
}
