//! A member in pull mode with real pods, and a control plane in a network of its own that has no route to it: everything
//! that kubectl does with pods goes through the tunnel of the agent.
//!
//! ```text
//!  network of the control plane          the machine
//!  karmada server 10.199.7.2 ◄── veth ── 10.199.7.1 karmada agent ──► 127.0.0.1 the member
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clusters::{Fleet, FleetOptions};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, PostParams};
use kube::client::Body;
use serde_json::json;
use testkit::process::Speaks;
use testkit::{Process, client, eventually, install_tls, run};

use super::{MACHINE, kubectl, reach_into};
use crate::network::{Link, Network};
use crate::plane::KARMADA;

const NAME: &str = "remote";
const NAMESPACE: &str = "pull";
const PODS: usize = 1000;

/// Starts the agent with the kubeconfig that it was registered with.
fn agent(folder: &Path, member: &Path) -> Process {
    let own = folder.join("agent.kubeconfig").display().to_string();
    let flags = ["agent", "--karmada-kubeconfig", &own, "--cluster-name", NAME, "--leader-elect=false"];
    Process::start(
        KARMADA,
        &[&flags[..], &["--kubeconfig", &member.display().to_string()]].concat(),
        "agent runs",
    )
}

/// Returns a client that looks into the member.
async fn inside(kubeconfig: &Path) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("usable");
    let proxy = format!("{}apis/cluster.karmada.io/v1alpha1/clusters/{NAME}/proxy", config.cluster_url);
    config.cluster_url = proxy.parse().expect("an address");
    config.default_retry = false;
    kube::Client::try_from(config).expect("a client")
}

async fn watch(client: &kube::Client) -> Body {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?watch=true");
    let request = http::Request::get(path).body(Body::empty()).expect("a request");
    client.send(request).await.expect("a watch").into_body()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; `cargo xtask pods` runs it"]
async fn what_kubectl_does_with_pods_works_where_there_is_no_route() {
    install_tls();
    if let Some(needs) = clusters::pods_missing_for_tests() {
        return clusters::left_out(&needs);
    }
    let _machine = MACHINE.lock().await;
    let fleet = Fleet::start(FleetOptions::pods(1)).await.unwrap_or_else(|error| panic!("{}", error.chain()));
    let member: PathBuf = fleet.clusters().next().expect("a member").kubeconfig().to_path_buf();
    let folder = tempfile::tempdir().expect("a folder for the test");
    let link = Link::new(4, "eth0");
    let address = format!("{}:5443", link.inside);
    let network = Network::new(&[link]);
    let data = folder.path().join("data");
    let mut server =
        network.start(KARMADA, &["server", "--bind", &address, "--data-dir", &data.display().to_string()]);
    server.says("ready");
    let kubeconfig = data.join("karmada.kubeconfig");

    let control = kubeconfig.display().to_string();
    let made = run(KARMADA, &["token", "create", "--kubeconfig", &control]);
    let token = String::from_utf8(made.stdout).expect("text").trim().to_owned();
    let own = folder.path().join("agent.kubeconfig").display().to_string();
    let mut registering = Command::new(KARMADA);
    registering
        .args(["register", &address, "--token", &token, "--cluster-name", NAME, "--run"])
        .args(["--discovery-token-unsafe-skip-ca-verification", "--agent-kubeconfig", &own])
        .args(["--kubeconfig", &member.display().to_string()]);
    let mut running = Process::spawn(registering, Speaks::Stderr);
    running.says("agent runs");

    // A pod, made through the tunnel.
    let through = inside(&kubeconfig).await;
    eventually("the member is reached", async || {
        let made = Api::<Namespace>::all(through.clone());
        let namespace =
            serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
        match made.create(&PostParams::default(), &namespace).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    let pods = Api::<Pod>::namespaced(through.clone(), NAMESPACE);
    let pod = json!({
        "metadata": {"name": "web"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "web", "image": "nginx:1.19.0"}]},
    });
    eventually("a pod is taken", async || {
        let pod = serde_json::from_value(pod.clone()).expect("a pod");
        pods.create(&PostParams::default(), &pod).await.map_err(|error| error.to_string())
    })
    .await;
    testkit::until(&pods, "web", "the pod runs", |found| {
        let phase = found.and_then(|pod: &Pod| pod.status.as_ref()?.phase.as_deref());
        phase == Some("Running")
    })
    .await;
    let began = Instant::now();
    reach_into(&|arguments: &[&str]| kubectl(&kubeconfig, NAME, NAMESPACE, arguments), "web").await;
    println!(
        "logs, exec, cp, attach and port-forward through the tunnel: {:.1} s",
        began.elapsed().as_secs_f32()
    );

    // A watch that sees a thousand pods come. No node takes them: the machine has to bear them.
    let mut stream = watch(&through).await;
    let direct = Api::<Pod>::namespaced(client(&member).await, NAMESPACE);
    let creating = tokio::spawn(async move {
        let create = |number: usize| {
            let direct = direct.clone();
            async move {
                let pod = json!({
                    "metadata": {"name": format!("many-{number}")},
                    "spec": {"schedulerName": "nobody", "containers": [{"name": "a", "image": "a"}]},
                });
                let pod = serde_json::from_value(pod).expect("a pod");
                direct.create(&PostParams::default(), &pod).await.expect("a pod");
            }
        };
        let began = Instant::now();
        futures::stream::iter(0..PODS).map(create).buffer_unordered(16).collect::<Vec<()>>().await;
        began.elapsed()
    });
    let began = Instant::now();
    let (mut seen, mut rest) = (0, String::new());
    while seen < PODS {
        let frame = tokio::time::timeout(std::time::Duration::from_secs(180), stream.frame()).await;
        let frame = frame.expect("the watch goes on").expect("no end").expect("no error");
        rest += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
        while let Some((line, after)) = rest.split_once('\n') {
            let event: serde_json::Value = serde_json::from_str(line).expect("an event");
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or("");
            seen += usize::from(event["type"] == "ADDED" && name.starts_with("many-"));
            rest = after.to_owned();
        }
    }
    let created = creating.await.expect("all are created");
    println!(
        "{PODS} pods were created in {:.2} s; the watch through the tunnel had seen them after {:.2} s",
        created.as_secs_f32(),
        began.elapsed().as_secs_f32()
    );

    // Without the agent there is no way in, and with it there is one again.
    drop(running);
    let broken = async { while let Some(Ok(_)) = stream.frame().await {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), broken).await.expect("the watch ends");
    let said = kubectl(&kubeconfig, NAME, NAMESPACE, &["get", "pod", "web"]).output().expect("kubectl runs");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("has no tunnel to this control plane"), "{said}");
    let again = agent(folder.path(), &member);
    let began = Instant::now();
    eventually("the member is reached again", async || {
        pods.get("web").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    println!("a new agent was up and reached after {:.2} s", began.elapsed().as_secs_f32());
    drop((again, server, network));
    fleet.down().await.unwrap_or_else(|error| panic!("{}", error.chain()));
}
