//! What is as wanted costs no request: a restart with a thousand propagated templates writes nothing anywhere.
//!
//! Control plane and members are kube-apiservers that log every write (their audit log), so that nothing a controller
//! sends goes unnoticed, not even a request that changes nothing.

use std::collections::BTreeSet;
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
async fn a_restart_with_a_thousand_templates_writes_nothing() {
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
    world.control.kill();
    let logs: Vec<PathBuf> = ["plane"].iter().chain(&names).map(|name| log(name)).collect();
    let before: Vec<usize> = logs.iter().map(|log| lines(log).len()).collect();
    world.control.start();
    // Queues are worked off in order: when this one has arrived, all others have been looked at.
    marker(&world, "marker-after").await;

    let mut writes = Vec::new();
    for (index, (log, before)) in logs.iter().zip(before).enumerate() {
        // In the members, the administrator is kwok, which keeps nodes and pods alive.
        let user = if index == 0 { "admin" } else { world.tag.as_str() };
        writes.extend(lines(log)[before..].iter().filter_map(|line| unexpected_write(user, line)));
    }
    assert!(writes.is_empty(), "{} writes after the restart:\n{}", writes.len(), writes.join("\n"));
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Returns a write of ours that the markers do not explain. Events are news, and a cluster's status follows the use of
/// the cluster.
fn unexpected_write(by: &str, line: &str) -> Option<String> {
    let entry: Value = serde_json::from_str(line).expect("a line of the audit log");
    let user = entry["user"]["username"].as_str().unwrap_or("");
    let object = &entry["objectRef"];
    let (resource, name) = (object["resource"].as_str().unwrap_or(""), object["name"].as_str().unwrap_or(""));
    // The namespace of the members' accounts is there already and not ours: its Work is tried again now and then, restart or not.
    let accounts = resource == "namespaces" && name.starts_with("accounts-");
    let expected = ["events", "leases", "clusters"].contains(&resource)
        || name.starts_with("marker")
        || name.is_empty()
        || accounts;
    let what = format!("{} {resource}/{name} {} by {user}", entry["verb"], object["subresource"]);
    (user.contains(by) && !expected).then_some(what)
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
