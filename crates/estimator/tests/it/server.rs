//! Our own service on a member in the same process, asked by our own client over mutual TLS.

use api::features::Features;
use estimator::protocol::{self, MaxAvailableReplicasRequest};
use estimator::server::Estimator;
use estimator::tls::{ServerTls, Tls};
use estimator::{Client, Options, Want};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ResourceQuota};
use kube::api::{Api, Patch, PatchParams, PostParams};
use runtime::Supervisor;
use serde_json::{Value, json};
use testkit::embedded::Embedded;

use crate::client::question;
use crate::service::control_plane;
use crate::tls::Authority;

/// Creates an object; its status is written as a second step, as anywhere.
async fn create<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let made: K = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &made).await.unwrap();
    if let Some(status) = object.get("status") {
        let patch = Patch::Merge(json!({ "status": status }));
        let name = object["metadata"]["name"].as_str().unwrap();
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

fn cpu(amount: &str) -> Want {
    Want::Replicas(Some(
        serde_json::from_value(json!({ "resourceRequest": { "cpu": amount }, "namespace": "limited" }))
            .unwrap(),
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_with_a_certificate_is_told_what_nodes_and_quotas_allow() {
    let member = Embedded::member("m7", Default::default()).await;
    let client = member.client.clone();
    for (name, cores) in [("n1", "4"), ("n2", "2")] {
        let allocatable = json!({ "cpu": cores, "memory": "8Gi", "pods": "110" });
        let node = json!({ "metadata": { "name": name }, "status": { "allocatable": allocatable } });
        let nodes = Api::<Node>::all(client.clone());
        create(nodes.clone(), node).await;
        // The server taints new nodes until somebody says that they are ready.
        let ready = Patch::Merge(json!({ "spec": { "taints": null } }));
        nodes.patch(name, &PatchParams::default(), &ready).await.unwrap();
    }
    create(Api::<Namespace>::all(client.clone()), json!({ "metadata": { "name": "limited" } })).await;
    let container = json!({ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } });
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n1", "containers": [container] } });
    create(Api::<Pod>::namespaced(client.clone(), "limited"), pod).await;
    let amounts = json!({ "hard": { "cpu": "3" }, "used": { "cpu": "1" } });
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "cpu": "3" } }, "status": amounts });
    create(Api::<ResourceQuota>::namespaced(client.clone(), "limited"), quota).await;

    let authority = Authority::new();
    let (certificate, key) = authority.issue_files("127.0.0.1");
    let tls = ServerTls {
        certificate: Some(certificate),
        key: Some(key),
        client_ca: Some(authority.file()),
        skip_client_verification: false,
    };
    let tls = tls.server_config().unwrap();
    assert!(tls.is_some());
    let supervisor = Supervisor::default();
    let mut ports = Vec::new();
    for gates in ["", "ResourceQuotaEstimate=true"] {
        let features = Features::parse(gates).unwrap();
        let estimator = Estimator::new("m7", client.clone(), features, &supervisor);
        estimator.complete().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        ports.push(listener.local_addr().unwrap().port());
        tokio::spawn(estimator.serve(listener, tls.clone(), supervisor.token().clone()));
    }

    let (certificate, key) = authority.issue_files("karmada-scheduler");
    let known =
        Tls { ca: Some(authority.file()), certificate: Some(certificate), key: Some(key), ..Tls::default() };
    let with = |tls: &Tls, port: u16| {
        Client::new(Options { tls: tls.client_config().unwrap(), ..Options::default() }, control_plane(port))
    };
    let plain = with(&known, ports[0]);
    plain.connect("m7").await.unwrap();
    let ask = async |client: &Client, want: Want| client.max_available(&question(&["m7"], want)).await;
    assert_eq!(ask(&plain, cpu("500m")).await.unwrap()["m7"], 10, "six and four");
    assert_eq!(ask(&plain, Want::Replicas(None)).await.unwrap()["m7"], 219);
    let sets: Vec<api::work::Component> = serde_json::from_value(json!([
        { "name": "a", "replicas": 1, "replicaRequirements": { "resourceRequest": { "cpu": "2" } } },
    ]))
    .unwrap();
    assert_eq!(ask(&plain, Want::Sets(sets)).await.unwrap()["m7"], 2);
    let limited = with(&known, ports[1]);
    limited.connect("m7").await.unwrap();
    assert_eq!(ask(&limited, cpu("500m")).await.unwrap()["m7"], 4, "the quota leaves two cores");
    limited.connect("m8").await.unwrap();
    let error = limited.max_available(&question(&["m8"], cpu("1"))).await.unwrap_err();
    assert!(error.to_string().ends_with("cluster name does not match, got: m8, desire: m7"), "{error}");

    // Whoever shows no certificate is not answered.
    let stranger = with(&Tls { ca: Some(authority.file()), ..Tls::default() }, ports[0]);
    let answered = match stranger.connect("m7").await {
        Ok(()) => ask(&stranger, cpu("1")).await.is_ok(),
        Err(_) => false,
    };
    assert!(!answered);
    supervisor.stop().await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_too_large_are_refused() {
    let member = Embedded::member("m9", Default::default()).await;
    let supervisor = Supervisor::default();
    let estimator = Estimator::new("m9", member.client.clone(), Features::parse("").unwrap(), &supervisor);
    estimator.complete().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(estimator.serve(listener, None, supervisor.token().clone()));
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let ask = async |request: MaxAvailableReplicasRequest| -> Result<i32, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static(protocol::MAX_AVAILABLE_REPLICAS);
        let codec = tonic_prost::ProstCodec::<_, protocol::MaxAvailableReplicasResponse>::default();
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await?;
        Ok(answer.into_inner().max_replicas)
    };
    let request = |assumed: usize, cluster: &str| MaxAvailableReplicasRequest {
        cluster: cluster.to_owned(),
        assumed_workloads: vec![protocol::AssumedWorkload::default(); assumed],
        ..MaxAvailableReplicasRequest::default()
    };
    assert_eq!(ask(request(10_000, "m9")).await.unwrap(), 0, "as many as allowed");
    let refused = ask(request(10_001, "m9")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    let refused = ask(request(0, &"x".repeat(5 * 1024 * 1024))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    // The connection serves on.
    assert_eq!(ask(request(1, "m9")).await.unwrap(), 0);
    supervisor.stop().await;
    member.stop().await;
}
