//! `metrics.k8s.io` of a simulated member: what is set is what is shown, also by `kubectl top`.

use clusters::toolchain::{KUBERNETES, Toolchain};
use serde_json::{Value, json};

use crate::site::Site;

async fn get(site: &Site, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    site.client.request(request).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_load_shows_in_the_metrics_of_pods_and_nodes() {
    let dir = tempfile::tempdir().expect("a folder for the test");
    let mut options = sim::Options::new(1, 1);
    options.data_dir = Some(dir.path().join("sim"));
    let fleet = sim::start(options).await.expect("a simulated member");
    let member = &fleet.members()[0];
    let site = Site::simulated(member).await;
    site.namespace("test").await;
    for name in ["one", "two"] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}});
        site.create("test", pod).await;
        site.until("Pod", "test", name, "run", |pod| pod["status"]["phase"] == "Running").await;
    }
    let load = sim::Load { selector: "app=web".to_owned(), milli_cpu: 300, memory_mib: 64 };
    fleet.load("member1", load).expect("a member");

    let base = "/apis/metrics.k8s.io/v1beta1";
    let resources = get(&site, base).await;
    let names: Vec<&str> =
        resources["resources"].as_array().into_iter().flatten().filter_map(|r| r["name"].as_str()).collect();
    assert_eq!(names, ["nodes", "pods"]);
    let one = get(&site, &format!("{base}/namespaces/test/pods/one")).await;
    assert_eq!(one["kind"], "PodMetrics");
    assert_eq!(one["containers"], json!([{"name": "c", "usage": {"cpu": "150m", "memory": "32Mi"}}]));
    let list = get(&site, &format!("{base}/pods?labelSelector=app%3Dweb")).await;
    assert_eq!(
        (list["kind"].as_str(), list["items"].as_array().map(Vec::len)),
        (Some("PodMetricsList"), Some(2))
    );
    let nodes = get(&site, &format!("{base}/nodes")).await;
    assert_eq!(nodes["items"][0]["usage"], json!({"cpu": "300m", "memory": "64Mi"}));

    let toolchain = Toolchain::from_env().expect("a place for the programs");
    let kubectl = toolchain.path(&KUBERNETES.program("kubectl"));
    if !kubectl.is_file() {
        clusters::left_out(&format!("{} for its second half", kubectl.display()));
        return;
    }
    let kubeconfig = member.kubeconfig_path.clone().expect("a kubeconfig");
    let top = |what: &'static [&'static str]| {
        let (kubectl, kubeconfig) = (kubectl.clone(), kubeconfig.clone());
        async move {
            let output = tokio::process::Command::new(&kubectl)
                .arg("--kubeconfig")
                .arg(&kubeconfig)
                .arg("top")
                .args(what)
                .env("HOME", kubeconfig.parent().expect("a folder"))
                .output()
                .await
                .expect("kubectl runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
            lines.collect::<Vec<Vec<String>>>()
        }
    };
    let pods = top(&["pods", "-n", "test"]).await;
    assert_eq!(pods[0], ["NAME", "CPU(cores)", "MEMORY(bytes)"]);
    assert_eq!(pods[1], ["one", "150m", "32Mi"]);
    assert_eq!(pods[2], ["two", "150m", "32Mi"]);
    let nodes = top(&["nodes"]).await;
    assert_eq!(nodes[1], ["node1", "300m", "0%", "64Mi", "0%"]);
    fleet.stop().await;
}
