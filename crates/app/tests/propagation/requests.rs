//! What is as wanted costs no request: neither a second look at everything, whatever the kind, nor a restart with a
//! thousand propagated templates writes anything anywhere.
//!
//! Control plane and members are kube-apiservers that log every write (their audit log), or simulated members that count
//! every request, so that nothing a controller sends goes unnoticed, not even a request that changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use futures::{StreamExt, stream};
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use testkit::{DEADLINE, Inventory, Kind, assert_kept, at, client, condition, install_tls, inventory, until};

use crate::cases;
use crate::members::{Place, have_kubernetes};
use crate::plane::ControlPlane;

use crate::world::World;

const TEMPLATES: usize = 1000;
/// Enough where the point is the members and not the number.
const FEW: usize = 100;
const TAG: &str = "restart";
const PLANE: &str = "karmada-apiserver";
const MEMBERS: [&str; 3] = ["member1", "member2", "member3"];
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
"rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Request"}]}"#;

mod real {
    #[tokio::test(flavor = "multi_thread")]
    async fn neither_a_second_look_nor_a_restart_with_a_thousand_templates_writes_anything() {
        let Some(audited) = super::Audited::start(&super::MEMBERS).await else { return };
        let places = super::MEMBERS.map(|name| audited.place(name));
        let witnesses = super::MEMBERS.map(|name| audited.witness(name, super::TAG)).into();
        let away = audited.cluster(super::MEMBERS[0]);
        let blink = async {
            away.cut_off().await.expect("cut off");
            away.heal().await.expect("healed");
        };
        super::silence(&audited, &places, witnesses, blink, super::TEMPLATES).await;
        audited.end().await;
    }
}

mod simulated {
    use crate::members::{Access, Members};

    #[tokio::test(flavor = "multi_thread")]
    async fn neither_a_second_look_nor_a_restart_writes_anything() {
        let Some(audited) = super::Audited::start(&[]).await else { return };
        let Some(members) = Members::simulated(Access::Exclusive, 3).await else { return };
        let mut witnesses = Vec::new();
        for place in members.places() {
            witnesses.push(super::Witness::counters(&place.kubeconfig).await);
        }
        let blink = async {
            members.cut_off(0).await;
            members.heal(0).await;
        };
        super::silence(&audited, &members.places(), witnesses, blink, super::FEW).await;
        audited.end().await;
    }
}

async fn silence(
    audited: &Audited,
    members: &[Place],
    mut witnesses: Vec<Witness>,
    blink: impl Future<Output = ()>,
    count: usize,
) {
    let control = ControlPlane::on(&audited.cluster(PLANE)).await;
    let mut world = World::new(TAG, control, members).await;
    witnesses.push(audited.witness(PLANE, "admin"));

    fill(&world, count).await;
    marker(&world, "marker-before").await;

    // Whatever makes the controllers look at everything once more: policies that change without effect, clusters that are
    // scheduled to anew, a member that was away.
    mark(&mut witnesses).await;
    let before = everything(&world).await;
    look_again(&world).await;
    // Away long enough to be missed by a watch, not by its heartbeat: its Works are not evicted, only looked at.
    blink.await;
    marker(&world, "marker-between").await;
    assert_silence(&witnesses, "a second look").await;
    assert_same(&before, &everything(&world).await, "a second look");

    world.control.kill();
    mark(&mut witnesses).await;
    world.control.start();
    // Queues are worked off in order: when this one has arrived, all others have been looked at.
    marker(&world, "marker-after").await;
    assert_silence(&witnesses, "a restart").await;
    assert_same(&before, &everything(&world).await, "a restart");
    world.check().await;
}

/// Returns what there is in the control plane and in the members, of all kinds.
async fn everything(world: &World) -> Vec<Inventory> {
    let mut all = vec![inventory(&world.plane, &Default::default(), |_| true).await];
    for index in 0..world.members.len() {
        all.push(world.inventory(index).await);
    }
    all
}

/// Fails for objects that came, went, or were deleted and made again. The test's own are left out.
fn assert_same(before: &[Inventory], after: &[Inventory], when: &str) {
    let own = |key: &str| key.contains("/marker-") || key.ends_with("/load");
    for (before, after) in before.iter().zip(after) {
        assert_kept(before, after, own, &format!("after {when}"));
        let new: Vec<&String> = after.keys().filter(|key| !own(key) && !before.contains_key(*key)).collect();
        assert!(new.is_empty(), "{when} made {new:?}");
    }
}

async fn mark(witnesses: &mut [Witness]) {
    for witness in witnesses {
        witness.mark().await;
    }
}

/// Fails with the kinds that were written since the mark, and what was.
async fn assert_silence(witnesses: &[Witness], after: &str) {
    let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for witness in witnesses {
        for (kind, write) in witness.unexpected().await {
            writes.entry(kind).or_default().push(write);
        }
    }
    let counts: BTreeMap<&String, usize> = writes.iter().map(|(kind, writes)| (kind, writes.len())).collect();
    assert!(writes.is_empty(), "writes after {after} by kind: {counts:?}\n{writes:#?}");
}

/// A kube-apiserver as control plane, and maybe members, that log every write.
struct Audited {
    fleet: Fleet,
    dir: tempfile::TempDir,
}

impl Audited {
    async fn start(members: &[&str]) -> Option<Self> {
        install_tls();
        if !have_kubernetes() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a folder for the test");
        let policy = dir.path().join("policy.json");
        std::fs::write(&policy, POLICY).expect("a policy file");
        let audited = |options: ClusterOptions, name: &str| {
            options
                .apiserver_arg(format!("--audit-policy-file={}", policy.display()))
                .apiserver_arg(format!("--audit-log-path={}", dir.path().join(name).display()))
        };
        let options =
            FleetOptions::of(members.iter().map(|name| audited(ClusterOptions::member(*name), name)))
                .and(audited(ClusterOptions::control_plane(PLANE), PLANE));
        let fleet = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
        Some(Self { fleet, dir })
    }

    async fn end(self) {
        self.fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
    }

    fn cluster(&self, name: &str) -> clusters::Cluster {
        self.fleet.cluster(name).expect("a cluster of the fleet")
    }

    fn place(&self, name: &str) -> Place {
        Place {
            kubeconfig: self.cluster(name).kubeconfig().to_path_buf(),
            audit_log: Some(self.dir.path().join(name)),
        }
    }

    /// In members, the administrator is kwok, which keeps nodes and pods alive: only whoever has the name counts.
    fn witness(&self, name: &str, user: &'static str) -> Witness {
        Witness::Log { path: self.dir.path().join(name), user, marked: 0 }
    }
}

/// Sees every write to a cluster.
enum Witness {
    /// kube-apiserver's audit log.
    Log { path: PathBuf, user: &'static str, marked: usize },
    /// A simulated member's count of requests. Its own controllers send none.
    Counters { client: kube::Client, marked: BTreeMap<String, u64> },
}

impl Witness {
    async fn counters(kubeconfig: &Path) -> Self {
        Self::Counters { client: client(kubeconfig).await, marked: BTreeMap::new() }
    }

    /// What has been seen up to here does not count.
    async fn mark(&mut self) {
        match self {
            Self::Log { path, marked, .. } => *marked = lines(path).len(),
            Self::Counters { client, marked } => *marked = writes(client).await,
        }
    }

    /// Returns the writes since the mark that the test does not explain: kind, and the rest.
    async fn unexpected(&self) -> Vec<(String, String)> {
        match self {
            Self::Log { path, user, marked } => {
                lines(path)[*marked..].iter().filter_map(|line| unexpected_write(user, line)).collect()
            }
            Self::Counters { client, marked } => {
                let now = writes(client).await;
                let new = |what: &String, count: u64| count - marked.get(what).copied().unwrap_or(0);
                now.iter()
                    .map(|(what, count)| (what, new(what, *count)))
                    // One for the marker.
                    .filter(|(what, new)| *new > u64::from(what.ends_with(" configmaps")))
                    .map(|(what, new)| {
                        let (verb, kind) = what.split_once(' ').unwrap_or(("", what));
                        (kind.to_owned(), format!("{new} × {verb} in a simulated member"))
                    })
                    .collect()
            }
        }
    }
}

/// Returns how many writes a simulated member has been asked for, by verb and resource.
async fn writes(client: &kube::Client) -> BTreeMap<String, u64> {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await.expect("the member's metrics");
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| {
            let start = line.find(&format!("{name}=\""))? + name.len() + 2;
            line[start..].split('"').next()
        };
        let (verb, resource) = (label("verb").expect("a verb"), label("resource").expect("a resource"));
        // Reviews are questions. The namespace of the members' accounts is there already and not ours: its Work is tried
        // again now and then, restart or not.
        let asks = ["GET", "LIST", "WATCH"].contains(&verb) || resource.ends_with("reviews");
        if asks || ["", "events", "leases", "namespaces"].contains(&resource) {
            continue;
        }
        let count: f64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        *counts.entry(format!("{verb} {resource}")).or_default() += count as u64;
    }
    assert!(!counts.is_empty(), "the metrics show no write at all:\n{text}");
    counts
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Has every controller look at every object again.
async fn look_again(world: &World) {
    let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "no-such-thing"});
    let policies =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    let policy = world.in_plane(&policies).get("load").await.expect("the policy");
    let mut selectors = policy.data["spec"]["resourceSelectors"].as_array().cloned().expect("selectors");
    selectors.push(nothing);
    world.patch(&policies, "load", &json!({"spec": {"resourceSelectors": selectors}})).await;
    // It selects everything, and does something nowhere.
    let overrides = Kind::namespaced("policy.karmada.io", "v1alpha1", "OverridePolicy", "overridepolicies");
    let rule = json!({"targetCluster": {"clusterNames": ["no-such-cluster"]},
        "overriders": {"labelsOverrider": [{"operator": "add", "value": {"where": "nowhere"}}]}});
    let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy",
        "metadata": {"name": "load"}, "spec": {"overrideRules": [rule]}});
    world.create(&overrides, policy).await;
    let clusters = Kind::cluster("cluster.karmada.io", "v1alpha1", "Cluster", "clusters");
    for member in &world.members {
        world.patch(&clusters, &member.name, &json!({"metadata": {"labels": {"looked-at": "again"}}})).await;
    }
}

/// Returns the kind and the rest of a write of ours that the test does not explain. Events are news, and a cluster's status
/// follows the use of the cluster.
fn unexpected_write(by: &str, line: &str) -> Option<(String, String)> {
    let entry: Value = serde_json::from_str(line).expect("a line of the audit log");
    let user = entry["user"]["username"].as_str().unwrap_or("");
    let object = &entry["objectRef"];
    let (resource, name) = (object["resource"].as_str().unwrap_or(""), object["name"].as_str().unwrap_or(""));
    // The namespace of the members' accounts is there already and not ours: its Work is tried again now and then, restart or not.
    let accounts = resource == "namespaces" && name.starts_with("accounts-");
    let by_the_test = ["propagationpolicies", "overridepolicies"].contains(&resource) && name == "load";
    let expected = ["events", "leases", "clusters"].contains(&resource)
        || by_the_test
        || name.starts_with("marker")
        || name.is_empty()
        || accounts;
    let sent = &entry["requestObject"];
    let what = format!("{} {name} {} by {user}: {sent}", entry["verb"], object["subresource"]);
    (user.contains(by) && !expected).then_some((resource.to_owned(), what))
}

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

/// Creates the templates and policies for them, and waits until all have arrived and reported.
async fn fill(world: &World, count: usize) {
    let mut templates: Vec<(Kind, Value)> = cases::all(&world.tag)
        .into_iter()
        // The status of pods and autoscalers changes by itself, which has to be reported, restart or not.
        .filter(|case| {
            let kind = case.kind.resource.kind.as_str();
            case.kind.namespaced && !["Widget", "Pod", "HorizontalPodAutoscaler"].contains(&kind)
        })
        .map(|case| (case.kind, case.template))
        .collect();
    while templates.len() < count {
        let name = format!("load-{}", templates.len());
        templates.push((
            config_maps(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {"name": name}}),
        ));
    }
    for (_, template) in &mut templates {
        template["metadata"]["labels"]["load"] = "yes".into();
    }
    let kinds: BTreeSet<(String, String)> = templates
        .iter()
        .map(|(kind, _)| (kind.resource.api_version.clone(), kind.resource.kind.clone()))
        .collect();
    let selectors: Vec<Value> = kinds
        .iter()
        .map(|(version, kind)| {
            json!({"apiVersion": version, "kind": kind, "labelSelector": {"matchLabels": {"load": "yes"}}})
        })
        .collect();
    let policies =
        Kind::namespaced("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies");
    world
        .create(
            &policies,
            json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "load"}, "spec": {"resourceSelectors": selectors, "placement": {}}}),
        )
        .await;
    let waiting = {
        let bindings = Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
        let api = world.in_plane(&bindings);
        tokio::spawn(async move {
            let mut done = BTreeSet::new();
            let all = watcher(api, watcher::Config::default()).default_backoff();
            let mut changes = std::pin::pin!(all.applied_objects());
            while done.len() < count {
                // A watch that breaks begins anew by itself.
                let Ok(binding) = changes.next().await.expect("no end") else { continue };
                if condition(Some(&binding), "FullyApplied") == Some("True") && reports(&binding) == 3 {
                    done.insert(binding.metadata.name);
                }
            }
        })
    };
    stream::iter(templates)
        .for_each_concurrent(32, |(kind, template)| async move { world.create(&kind, template).await })
        .await;
    // Three thousand objects on a busy machine take their time.
    tokio::time::timeout(4 * DEADLINE, waiting)
        .await
        .expect("all arrive in time")
        .expect("the wait ends well");
    // What the members report last.
    for (kind, name, path, value) in [
        (
            Kind::namespaced("apps", "v1", "Deployment", "deployments"),
            "deployment",
            "/status/availableReplicas",
            6,
        ),
        (
            Kind::namespaced("apps", "v1", "StatefulSet", "statefulsets"),
            "statefulset",
            "/status/availableReplicas",
            3,
        ),
        (
            Kind::namespaced("apps", "v1", "DaemonSet", "daemonsets"),
            "daemonset",
            "/status/numberAvailable",
            9,
        ),
        (Kind::namespaced("batch", "v1", "Job", "jobs"), "job", "/status/succeeded", 3),
        (
            Kind::namespaced("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            "budget",
            "/status/desiredHealthy",
            3,
        ),
    ] {
        until(&world.in_plane(&kind), name, "the members' state", |found| {
            at(found, path) == Some(json!(value))
        })
        .await;
    }
}

fn reports(binding: &DynamicObject) -> usize {
    binding.data["status"]["aggregatedStatus"].as_array().map_or(0, Vec::len)
}

/// Sends a template through everything and waits until it has arrived and reported.
async fn marker(world: &World, name: &str) {
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
        "metadata": {"name": name, "labels": {"load": "yes"}}});
    world.create(&config_maps(), template).await;
    let bindings = Kind::namespaced("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings");
    let binding = api::names::binding("ConfigMap", name);
    until(&world.in_plane(&bindings), &binding, "the marker arrives", |found| {
        condition(found, "FullyApplied") == Some("True") && found.is_some_and(|found| reports(found) == 3)
    })
    .await;
}
