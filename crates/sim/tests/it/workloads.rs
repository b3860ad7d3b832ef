//! What workloads do in a simulated member.

use serde_json::{Value, json};

use crate::site::Site;

async fn member() -> (sim::Fleet, Site) {
    let fleet = sim::start(sim::Options::new(1, 3)).await.expect("a simulated member");
    let site = Site::simulated(&fleet.members()[0]).await;
    site.namespace("test").await;
    (fleet, site)
}

fn count(object: &Value, field: &str) -> i64 {
    object["status"][field].as_i64().unwrap_or(0)
}

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [
        {"name": "c", "image": "nginx:1", "resources": {"requests": {"cpu": "100m"}}}]}})
}

#[tokio::test]
async fn nodes_are_ready_and_a_deployment_becomes_available() {
    let (fleet, site) = member().await;
    for node in ["node1", "node2", "node3"] {
        site.until("Node", "", node, "become ready", |node| {
            node["status"]["conditions"][0]["status"] == "True" && node["spec"]["taints"].is_null()
        })
        .await;
    }
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}});
    site.create("test", deployment).await;
    site.until("Deployment", "test", "web", "become available", |web| count(web, "availableReplicas") == 3)
        .await;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "nginx:2"}]}}}});
    site.patch("Deployment", "test", "web", patch).await;
    site.until("Deployment", "test", "web", "be rolled out", |web| {
        count(web, "observedGeneration") == 2
            && count(web, "updatedReplicas") == 3
            && count(web, "replicas") == 3
            && count(web, "availableReplicas") == 3
    })
    .await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_stateful_set_gets_its_pods_and_volumes() {
    let (fleet, site) = member().await;
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": template("db"), "volumeClaimTemplates": [{"metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}});
    site.create("test", set).await;
    site.until("StatefulSet", "test", "db", "become ready", |db| count(db, "readyReplicas") == 2).await;
    site.until("PersistentVolumeClaim", "test", "data-db-1", "be bound", |claim| {
        claim["status"]["phase"] == "Bound"
    })
    .await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_job_completes_and_its_pods_are_let_go() {
    let (fleet, site) = member().await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
        "spec": {"completions": 3, "parallelism": 2, "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "busybox"}]}}}});
    site.create("test", job).await;
    site.until("Job", "test", "work", "complete", |job| count(job, "succeeded") == 3).await;
    site.api("Namespace", "").delete("test", &Default::default()).await.expect("deleted");
    let gone = kube::runtime::wait::await_condition(
        site.api("Namespace", ""),
        "test",
        |namespace: Option<&kube::api::DynamicObject>| namespace.is_none(),
    );
    tokio::time::timeout(crate::site::DEADLINE, gone).await.expect("in time").expect("the namespace goes");
    fleet.stop().await;
}

#[tokio::test]
async fn an_autoscaler_follows_the_load() {
    let mut options = sim::Options::new(1, 3);
    options.delays.autoscale = std::time::Duration::from_millis(200);
    let fleet = sim::start(options).await.expect("a simulated member");
    let site = Site::simulated(&fleet.members()[0]).await;
    site.namespace("test").await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}});
    site.create("test", deployment).await;
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"minReplicas": 1, "maxReplicas": 5,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    site.create("test", scaler).await;
    let load = sim::Load { selector: "app=web".to_owned(), milli_cpu: 250, memory_mib: 0 };
    fleet.load("member1", load).expect("a member");
    site.until("Deployment", "test", "web", "be scaled", |web| count(web, "availableReplicas") == 5).await;
    fleet.stop().await;
}

#[tokio::test]
async fn state_survives_a_restart_if_asked_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = sim::Options::new(1, 1);
    options.data_dir = Some(dir.path().join("sim"));
    options.persist = true;
    let fleet = sim::start(options.clone()).await.expect("a simulated member");
    let (url, kubeconfig) = (fleet.members()[0].url.clone(), fleet.members()[0].kubeconfig.clone());
    Site::simulated(&fleet.members()[0]).await.namespace("kept").await;
    fleet.stop().await;
    // Nobody else may take its port in the meantime.
    let address = url.trim_start_matches("https://").parse().expect("an address");
    let place = testkit::process::keep_address(address);
    let fleet = sim::start(options).await.expect("the same member");
    drop(place);
    assert_eq!((&fleet.members()[0].url, &fleet.members()[0].kubeconfig), (&url, &kubeconfig));
    let site = Site::simulated(&fleet.members()[0]).await;
    site.until("Namespace", "", "kept", "exist", |_| true).await;
    fleet.stop().await;
}
