//! What is as wanted costs no request: neither a second look at everything, whatever the kind, nor a restart with a
//! thousand propagated templates writes anything anywhere.
//!
//! Control plane and members are kube-apiservers that log every write (their audit log), so that nothing a controller
//! sends goes unnoticed, not even a request that changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clusters::{ClusterOptions, Fleet, FleetOptions};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

use crate::cases;
use crate::plane::{ControlPlane, install_tls};
use crate::world::{DEADLINE, Kind, World, at, condition, until};

const TEMPLATES: usize = 1000;
const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"],
"rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_second_look_nor_a_restart_with_a_thousand_templates_writes_anything() {
    install_tls();
    if clusters::shared(0).await.is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder for the test");
    let policy = dir.path().join("policy.json");
    std::fs::write(&policy, POLICY).expect("a policy file");
    let log = |name: &str| dir.path().join(format!("{name}.log"));
    let audited = |options: ClusterOptions, name: &str| {
        options
            .apiserver_arg(format!("--audit-policy-file={}", policy.display()))
            .apiserver_arg(format!("--audit-log-path={}", log(name).display()))
    };
    let names = ["member1", "member2", "member3"];
    let options = FleetOptions::of(names.map(|name| audited(ClusterOptions::member(name), name)))
        .and(audited(ClusterOptions::control_plane("karmada-apiserver"), "plane"));
    let fleet = Fleet::start(options).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let control = ControlPlane::on(&fleet.cluster("karmada-apiserver").expect("a control plane")).await;
    let members: Vec<PathBuf> =
        names.map(|name| fleet.cluster(name).expect("a member").kubeconfig().to_path_buf()).into();
    let members: Vec<&Path> = members.iter().map(PathBuf::as_path).collect();
    let mut world = World::new("restart", control, &members).await;

    fill(&world).await;
    marker(&world, "marker-before").await;
    let witnesses = Witnesses {
        logs: ["plane"].iter().chain(&names).map(|name| log(name)).collect(),
        tag: world.tag.clone(),
    };

    // Whatever makes the controllers look at everything once more: policies that change without effect, clusters that are
    // scheduled to anew, a member that was away.
    let before = witnesses.count();
    look_again(&world, &fleet).await;
    marker(&world, "marker-between").await;
    witnesses.assert_silence(&before, "a second look");

    world.control.kill();
    let before = witnesses.count();
    world.control.start();
    // Queues are worked off in order: when this one has arrived, all others have been looked at.
    marker(&world, "marker-after").await;
    witnesses.assert_silence(&before, "a restart");
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}

/// The audit logs: first the control plane's, then the members'.
struct Witnesses {
    logs: Vec<PathBuf>,
    tag: String,
}

impl Witnesses {
    /// Returns how much each has seen so far.
    fn count(&self) -> Vec<usize> {
        self.logs.iter().map(|log| lines(log).len()).collect()
    }

    /// Fails with the kinds that were written since then, and what was.
    fn assert_silence(&self, before: &[usize], after: &str) {
        let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (index, (log, before)) in self.logs.iter().zip(before).enumerate() {
            // In the members, the administrator is kwok, which keeps nodes and pods alive.
            let user = if index == 0 { "admin" } else { self.tag.as_str() };
            for (kind, write) in lines(log)[*before..].iter().filter_map(|line| unexpected_write(user, line))
            {
                writes.entry(kind).or_default().push(write);
            }
        }
        let counts: BTreeMap<&String, usize> =
            writes.iter().map(|(kind, writes)| (kind, writes.len())).collect();
        assert!(writes.is_empty(), "writes after {after} by kind: {counts:?}\n{writes:#?}");
    }
}

/// Has every controller look at every object again.
async fn look_again(world: &World, fleet: &Fleet) {
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
    // Away long enough to be missed by a watch, not by its heartbeat: its Works are not evicted, only looked at.
    let away = fleet.cluster("member1").expect("a member");
    away.cut_off().await.expect("cut off");
    away.heal().await.expect("healed");
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
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
    let what = format!("{} {name} {} by {user}", entry["verb"], object["subresource"]);
    (user.contains(by) && !expected).then_some((resource.to_owned(), what))
}

fn config_maps() -> Kind {
    Kind::namespaced("", "v1", "ConfigMap", "configmaps")
}

/// Creates the templates and policies for them, and waits until all have arrived and reported.
async fn fill(world: &World) {
    let mut templates: Vec<(Kind, Value)> = cases::all(&world.tag)
        .into_iter()
        // The status of pods and autoscalers changes by itself, which has to be reported, restart or not.
        .filter(|case| {
            let kind = case.kind.resource.kind.as_str();
            case.kind.namespaced && !["Widget", "Pod", "HorizontalPodAutoscaler"].contains(&kind)
        })
        .map(|case| (case.kind, case.template))
        .collect();
    while templates.len() < TEMPLATES {
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
            let mut changes = std::pin::pin!(watcher(api, watcher::Config::default()).applied_objects());
            while done.len() < TEMPLATES {
                let binding: DynamicObject = changes.try_next().await.expect("a watch").expect("no end");
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
            "/status/currentHealthy",
            6,
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
