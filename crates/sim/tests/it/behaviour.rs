//! What a cluster refuses, grants and takes in: quotas, evictions, bindings, orphans. Each scenario runs on a simulated
//! member and on a real one, with the same assertions down to the words.

use http::Request;
use serde_json::{Value, json};

use crate::site::Site;

/// Sends a request; returns the answer's object, or the Status with which it was refused.
async fn send(site: &Site, method: &str, path: &str, body: &Value) -> Value {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .expect("a request");
    match site.client.request::<Value>(request).await {
        Ok(value) => value,
        Err(kube::Error::Api(status)) => serde_json::to_value(&*status).expect("plain data"),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

fn pod(name: &str, app: &str, cpu: Option<&str>) -> Value {
    let requests = cpu.map_or(json!({}), |cpu| json!({"requests": {"cpu": cpu}}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "nginx:1", "resources": requests}]}})
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

async fn a_quota_is_enforced_and_shows_what_is_used(site: &Site, space: &str) {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "2", "requests.cpu": "1", "count/configmaps": "2"}}});
    site.create(space, quota).await;
    site.until("ResourceQuota", space, "q", "be counted", |quota| quota["status"]["used"]["pods"] == "0")
        .await;
    let pods = format!("/api/v1/namespaces/{space}/pods");
    let unsaid = send(site, "POST", &pods, &pod("unsaid", "a", None)).await;
    assert_eq!(
        (unsaid["code"].as_i64(), unsaid["message"].as_str()),
        (Some(403), Some("pods \"unsaid\" is forbidden: failed quota: q: must specify requests.cpu for: c"))
    );
    let first = send(site, "POST", &pods, &pod("first", "a", Some("600m"))).await;
    assert_eq!(first["kind"], "Pod", "{first}");
    site.until("ResourceQuota", space, "q", "count the pod", |quota| {
        quota["status"]["used"] == json!({"pods": "1", "requests.cpu": "600m", "count/configmaps": "1"})
    })
    .await;
    let greedy = send(site, "POST", &pods, &pod("greedy", "a", Some("500m"))).await;
    assert_eq!(
        greedy["message"],
        "pods \"greedy\" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, \
         limited: requests.cpu=1"
    );
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let maps = format!("/api/v1/namespaces/{space}/configmaps");
    assert_eq!(send(site, "POST", &maps, &map("one")).await["kind"], "ConfigMap");
    let refused = send(site, "POST", &maps, &map("two")).await;
    assert_eq!(
        refused["message"],
        "configmaps \"two\" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: \
         count/configmaps=2, limited: count/configmaps=2"
    );
    site.api("Pod", space).delete("first", &Default::default()).await.expect("deleted");
    site.until("ResourceQuota", space, "q", "give the room back", |quota| {
        quota["status"]["used"]["pods"] == "0" && quota["status"]["used"]["requests.cpu"] == "0"
    })
    .await;
}

async fn an_eviction_asks_the_budget(site: &Site, space: &str) {
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    site.create(space, budget).await;
    for name in ["one", "two"] {
        site.create(space, pod(name, "web", None)).await;
        site.until("Pod", space, name, "become ready", is_ready).await;
    }
    let allows = |count: i64| move |budget: &Value| budget["status"]["disruptionsAllowed"] == count;
    site.until("PodDisruptionBudget", space, "b", "allow one disruption", allows(1)).await;
    let eviction =
        |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let path = |name: &str| format!("/api/v1/namespaces/{space}/pods/{name}/eviction");
    let granted = send(site, "POST", &path("one"), &eviction("one")).await;
    assert_eq!(granted["status"], "Success", "{granted}");
    site.until("PodDisruptionBudget", space, "b", "allow none any more", |budget| {
        budget["status"]["currentHealthy"] == 1 && allows(0)(budget)
    })
    .await;
    let refused = send(site, "POST", &path("two"), &eviction("two")).await;
    assert_eq!(
        (refused["code"].as_i64(), refused["reason"].as_str(), refused["message"].as_str()),
        (
            Some(429),
            Some("TooManyRequests"),
            Some("Cannot evict pod as it would violate the pod's disruption budget.")
        )
    );
    assert_eq!(
        refused["details"]["causes"][0],
        json!({"reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently"})
    );
    let absent = send(site, "POST", &path("absent"), &eviction("absent")).await;
    assert_eq!(absent["message"], "pods \"absent\" not found");
}

async fn a_scheduler_of_ones_own_binds_a_pod_once(site: &Site, space: &str) {
    let mut waiting = pod("p", "a", None);
    waiting["spec"]["schedulerName"] = json!("mine");
    site.create(space, waiting).await;
    let nodes = site.list("Node", "").await;
    let node = nodes[0]["metadata"]["name"].as_str().expect("a name");
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let path = format!("/api/v1/namespaces/{space}/pods/p/binding");
    let done = send(site, "POST", &path, &binding).await;
    assert_eq!(done["status"], "Success", "{done}");
    let pod = site.until("Pod", space, "p", "run", is_ready).await;
    assert_eq!(pod["spec"]["nodeName"], node);
    let again = send(site, "POST", &path, &binding).await;
    assert_eq!(again["code"], 409);
    assert_eq!(
        again["message"],
        format!(
            "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"{node}\""
        )
    );
}

async fn orphans_are_taken_in_and_let_go(site: &Site, space: &str) {
    site.create(space, pod("orphan", "web", None)).await;
    site.until("Pod", space, "orphan", "become ready", is_ready).await;
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}});
    site.create(space, set).await;
    let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["name"] == "web";
    site.until("Pod", space, "orphan", "be taken in", owner).await;
    site.until("ReplicaSet", space, "web", "have one pod", |set| set["status"]["readyReplicas"] == 1).await;
    let pods = site.list("Pod", space).await;
    assert_eq!(pods.len(), 1, "no pod beside the one that was there: {pods:?}");
    // Quarantined by a label: the set gets another one.
    site.patch("Pod", space, "orphan", json!({"metadata": {"labels": {"app": "quarantine"}}})).await;
    site.until("Pod", space, "orphan", "be let go", |pod| pod["metadata"]["ownerReferences"].is_null()).await;
    // The set's own status may still be the one from before.
    site.until_any("Pod", space, "belong to the set and run", |pod| owner(pod) && is_ready(pod)).await;
    assert_eq!(site.list("Pod", space).await.len(), 2);
    // A set without its Deployment is taken in by one that matches.
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "boss"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}}});
    site.patch("ReplicaSet", space, "web", json!({"metadata": {"labels": {"app": "web"}}})).await;
    site.create(space, deployment).await;
    let boss = |set: &Value| set["metadata"]["ownerReferences"][0]["name"] == "boss";
    site.until("ReplicaSet", space, "web", "be taken in", boss).await;
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        mod simulated {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let fleet = sim::start(sim::Options::new(1, 3)).await.expect("a simulated member");
                let site = super::Site::simulated(&fleet.members()[0]).await;
                site.namespace("test").await;
                super::$name(&site, "test").await;
                fleet.stop().await;
            })*
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(members) = clusters::shared(1).await else { return };
                let site = super::Site::real(&members[0]).await;
                let space = format!("{}-{}", &stringify!($name).replace('_', "-")[..20], std::process::id());
                site.namespace(&space).await;
                super::$name(&site, &space).await;
                site.delete_namespace(&space).await;
            })*
        }
    };
}

scenarios! {
    a_quota_is_enforced_and_shows_what_is_used,
    an_eviction_asks_the_budget,
    a_scheduler_of_ones_own_binds_a_pod_once,
    orphans_are_taken_in_and_let_go,
}
